/* A compressed store on a device: the same logits and state as raw experts on the CPU, also with few slots. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "../session/exact.h"
#include "../store/mzg2_kill.h"
#include "gpu_test.h"

static void same_bits(void **state) {
    (void)state;
    static const char *const gpu_models[] = {"tests/golden/k3/k3-tiny-a", "tests/golden/k3/k3-tiny-c"};
    for (size_t m = 0; m < sizeof gpu_models / sizeof gpu_models[0]; m++) {
        char dir[PATH_BYTES], store[PATH_BYTES];
        ms_model model;
        ms_mzg2_source s;
        make_dir(dir);
        path_in(store, dir, "store");
        open_source(&model, &s, gpu_models[m]);
        must_build(store, &s, &(ms_mzg2_job_options){.jobs = 2}, NULL);
        ms_model_close(&model);
        const setup base = {.label = "cpu", .experts = ALL, .threads = 1};
        outcome want = run(gpu_models[m], &base);
        for (uint32_t slots = 0; slots < 3; slots += 2) {
            const setup u = {.label = "store",
                             .experts = slots,
                             .threads = 1,
                             .range = slots ? 16 : 1,
                             .store = store,
                             .backend = gpu_test_name()};
            outcome got = run(gpu_models[m], &u);
            same(gpu_models[m], u.label, &want, &got);
        }
        remove_dir(dir);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
