/* op_cases.h: what test_ops.c runs: one case is one operation at one size with one kind of input.
 *
 * `run` executes the operation on a backend, as one range or as n single rows, and leaves every result (also updated
 * state) as f32 in out.  `naive` computes the same from the same inputs in double precision, by the textbook formula.
 */
#ifndef TESTS_OP_CASES_H
#define TESTS_OP_CASES_H

#include "backend/backend.h"

typedef enum op_values { VALUES_NORMAL, VALUES_ZERO, VALUES_TINY, VALUES_LARGE, VALUES_MIXED } op_values;

typedef struct op_case op_case;
struct op_case {
    const char *name;
    void (*run)(ms_backend *be, const op_case *c, bool singles, float *out);
    void (*naive)(const op_case *c, double *out);
    size_t (*count)(const op_case *c); /* results */
    uint32_t n;
    uint32_t d[6]; /* sizes, by operation */
    ms_format format;
    bool flag;
    double fast_tolerance; /* of the largest result; reference: 1e-5 */
    op_values values;
};

extern const op_case op_cases[];
extern const size_t op_case_count;

/* Everything a case may need. */
extern const ms_scratch_need op_scratch_need;

/* Deterministic values; `salt` tells inputs of a case apart. */
void op_fill(float *x, size_t count, uint32_t salt, op_values kind);

#endif
