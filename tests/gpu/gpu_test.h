/* gpu_test.h: the backend under test, and memory that both it and the test may touch.
 *
 * MOONSHINE_TEST_BACKEND names the backend; without it, "emu".
 */
#ifndef TESTS_GPU_TEST_H
#define TESTS_GPU_TEST_H

#include "backend/backend.h"

const char *gpu_test_name(void);

/* Opens it with op-case scratch; fails the test when that does not work. */
ms_backend *gpu_test_open(ms_precision precision);
/* An open GPU backend that gpu_test_malloc takes its memory from; NULL: plain malloc. */
void gpu_test_use(ms_backend *be);

void *gpu_test_malloc(size_t bytes);
void gpu_test_free(void *p);

#endif
