/* MiMo V2.6 through the engine on the GPU backend: logits and state of the scalar CPU across the edge of the window, in
 * one range, in pieces and row by row; state files go both ways.  The golden model (window 8), and a random one whose
 * heads have the official sizes, which are those of the tuned kernels. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "gpu_test.h"
#include "model_test.h"

#define WINDOWED "tests/golden/mimo26/mimo-tiny"
enum { PROMPT = 21, OFFICIAL_PROMPT = 40 };

static char official[MODEL_PATH];

static int make_official(void **state) {
    (void)state;
    model_make_mimo(official);
    return 0;
}

static int remove_official(void **state) {
    (void)state;
    model_remove(official);
    return 0;
}

static void tiny(void **state) {
    (void)state;
    model_check(&(model_case){WINDOWED, PROMPT, MS_PRECISION_FAST, MS_STATIC_Q8});
    model_check(&(model_case){WINDOWED, PROMPT, MS_PRECISION_FAST, MS_STATIC_BF16});
    model_check(&(model_case){WINDOWED, PROMPT, MS_PRECISION_REFERENCE, MS_STATIC_BF16});
}

static void official_heads(void **state) {
    (void)state;
    model_check(&(model_case){official, OFFICIAL_PROMPT, MS_PRECISION_FAST, MS_STATIC_Q8});
    model_check(&(model_case){official, 3, MS_PRECISION_REFERENCE, MS_STATIC_Q8});
}

static void cuts(void **state) {
    (void)state;
    const model_case c = {official, OFFICIAL_PROMPT, MS_PRECISION_FAST, MS_STATIC_Q8};
    const model_case t = {WINDOWED, PROMPT, MS_PRECISION_FAST, MS_STATIC_BF16};
    model_check_cut(&c, 1);
    model_check_cut(&c, 7);
    model_check_cut(&t, 1);
    model_check_cut(&t, 5);
}

static void state_files(void **state) {
    (void)state;
    const model_case c = {WINDOWED, PROMPT, MS_PRECISION_FAST, MS_STATIC_Q8};
    const model_case o = {official, OFFICIAL_PROMPT, MS_PRECISION_FAST, MS_STATIC_Q8};
    model_move_state(&c, gpu_test_name(), "cpu");
    model_move_state(&c, "cpu", gpu_test_name());
    model_move_state(&o, gpu_test_name(), "cpu");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(tiny), cmocka_unit_test(official_heads), cmocka_unit_test(cuts),
                                       cmocka_unit_test(state_files)};
    return cmocka_run_group_tests(tests, make_official, remove_official);
}
