/* Whole models through the engine on the GPU backend: logits of every row and all state equal the scalar CPU's; a state
 * file of one goes on in the other. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "gpu_test.h"
#include "model_test.h"

#define TINY_A "tests/golden/k3/k3-tiny-a"
#define TINY_C "tests/golden/k3/k3-tiny-c"
enum { PROMPT = 9 };

static void tiny_a(void **state) {
    (void)state;
    model_check(&(model_case){TINY_A, PROMPT, MS_PRECISION_FAST, MS_STATIC_Q8});
    model_check(&(model_case){TINY_A, PROMPT, MS_PRECISION_REFERENCE, MS_STATIC_BF16});
}

static void tiny_c(void **state) {
    (void)state;
    model_check(&(model_case){TINY_C, PROMPT, MS_PRECISION_FAST, MS_STATIC_BF16});
    model_check(&(model_case){TINY_C, PROMPT, MS_PRECISION_FAST, MS_STATIC_Q8});
}

static void state_files(void **state) {
    (void)state;
    const model_case c = {TINY_A, PROMPT, MS_PRECISION_FAST, MS_STATIC_Q8};
    model_move_state(&c, gpu_test_name(), "cpu");
    model_move_state(&c, "cpu", gpu_test_name());
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(tiny_a), cmocka_unit_test(tiny_c),
                                       cmocka_unit_test(state_files)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
