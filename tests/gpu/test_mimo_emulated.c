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

#include "lane/mimo26/mimo_synth.h"
#include "moonshine/moonshine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TINY "tests/golden/mimo26/mimo-tiny"
enum { PROMPT = 21, OFFICIAL_PROMPT = 40 };

static char official[] = "/tmp/moonshine-mimo-XXXXXX";

/* Groups of 8 and of 4 query heads, a window of 12. */
static int make_official(void **state) {
    (void)state;
    mimo_config c;
    ms_error err;
    mimo_config_official(&c);
    c.vocab = 160;
    c.eos = 159;
    c.hidden = 128;
    c.layers = 3;
    c.dense_width = 96;
    c.experts = 4;
    c.top_k = 2;
    c.expert_inner = 32;
    c.chunks = 1;
    c.attention[MIMO_FULL] = (mimo_attention){8, 1, 192, 128, 64, 0, false, 1e7};
    c.attention[MIMO_SLIDING] = (mimo_attention){8, 2, 192, 128, 64, 12, true, 1e4};
    const ms_synth_options o = {.seed = 5, .threads = 1};
    if (!mkdtemp(official)) return -1;
    return mimo_synth_write(official, &c, &o, &err) == MS_OK ? 0 : -1;
}

static int remove_official(void **state) {
    (void)state;
    char command[64 + sizeof official];
    (void)snprintf(command, sizeof command, "rm -r '%s'", official);
    return system(command);
}

static void tiny(void **state) {
    (void)state;
    model_check(&(model_case){TINY, PROMPT, MS_PRECISION_FAST, MS_STATIC_Q8});
    model_check(&(model_case){TINY, PROMPT, MS_PRECISION_FAST, MS_STATIC_BF16});
    model_check(&(model_case){TINY, PROMPT, MS_PRECISION_REFERENCE, MS_STATIC_BF16});
}

static void official_heads(void **state) {
    (void)state;
    model_check(&(model_case){official, OFFICIAL_PROMPT, MS_PRECISION_FAST, MS_STATIC_Q8});
    model_check(&(model_case){official, 3, MS_PRECISION_REFERENCE, MS_STATIC_Q8});
}

static void cuts(void **state) {
    (void)state;
    const model_case c = {official, OFFICIAL_PROMPT, MS_PRECISION_FAST, MS_STATIC_Q8};
    const model_case t = {TINY, PROMPT, MS_PRECISION_FAST, MS_STATIC_BF16};
    model_check_cut(&c, 1);
    model_check_cut(&c, 7);
    model_check_cut(&t, 1);
    model_check_cut(&t, 5);
}

static void state_files(void **state) {
    (void)state;
    const model_case c = {TINY, PROMPT, MS_PRECISION_FAST, MS_STATIC_Q8};
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
