/* model_test.h: a model through the engine on the GPU backend under test, beside the scalar CPU.
 *
 * Every function fails the test at the first bit that differs.  `prompt` is the number of tokens of the first range.
 */
#ifndef TESTS_MODEL_TEST_H
#define TESTS_MODEL_TEST_H

#include "moonshine/moonshine.h"

typedef struct model_case {
    const char *model; /* directory */
    uint32_t prompt;
    ms_precision precision;
    ms_static_format format;
} model_case;

/* A range, then single tokens: logits of every row and all state equal the scalar CPU's. */
void model_check(const model_case *c);
/* The same on the GPU in passes of `rows` rows: the bits of the whole range. */
void model_check_cut(const model_case *c, uint32_t rows);
/* The prompt on one backend, its state through a file to another one, and back: the same file again, and a token gives
 * the same bits on both. */
void model_move_state(const model_case *c, const char *from, const char *to);

/* A random MiMo V2.6 of three layers whose heads have the official sizes: groups of 8 and of 4 query heads, a window of
 * 12.  In a folder of its own. */
enum { MODEL_PATH = 64 };
void model_make_mimo(char dir[MODEL_PATH]);
void model_remove(const char *dir);

#endif
