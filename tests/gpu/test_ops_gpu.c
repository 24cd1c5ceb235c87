/* The cases of tests/op on the GPU backend: the same bits as the scalar CPU kernels, as a range and row by row. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "../op/op_cases.h"
#include "backend/loader.h"
#include "base/bytes.h"
#include "gpu_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const char *label(const op_case *c, const char *how) {
    static char text[256];
    (void)snprintf(text, sizeof text, "%s n=%u d=%u,%u,%u,%u,%u,%u format=%d values=%d: %s", c->name, c->n, c->d[0],
                   c->d[1], c->d[2], c->d[3], c->d[4], c->d[5], (int)c->format, (int)c->values, how);
    return text;
}

/* All NaNs are one value here: which operand's payload survives is the instruction's choice. */
static uint32_t comparable(float x) { return x != x ? 0x7fc00000u : ms_f32_bits(x); }

static float *run(ms_backend *be, const op_case *c, bool singles) {
    size_t count = c->count(c);
    float *out = gpu_test_malloc(count * sizeof *out);
    assert_non_null(out);
    for (size_t i = 0; i < count; i++) out[i] = -12345.0f;
    c->run(be, c, singles, out);
    ms_error err = {0};
    if (be->sync(be, &err) != MS_OK) fail_msg("%s: %s", label(c, be->name), err.message);
    return out;
}

static void check_case(ms_backend *cpu, ms_backend *gpu, const op_case *c) {
    float *expected = run(cpu, c, false);
    for (int singles = 0; singles < 2; singles++) {
        float *found = run(gpu, c, singles);
        for (size_t i = 0; i < c->count(c); i++)
            if (comparable(expected[i]) != comparable(found[i]))
                fail_msg("%s: result %zu: expected %a, found %a", label(c, singles ? "singles" : "range"), i,
                         (double)expected[i], (double)found[i]);
        gpu_test_free(found);
    }
    gpu_test_free(expected);
}

static void check_all(ms_precision precision) {
    ms_error err;
    ms_backend *cpu, *gpu = gpu_test_open(precision);
    ms_cpu_options o = {precision, 1, "scalar"};
    assert_int_equal(ms_backend_cpu_create(&cpu, &o, &err), MS_OK);
    assert_int_equal(cpu->scratch_reserve(cpu, &op_scratch_need, &err), MS_OK);
    assert_int_equal(gpu->scratch_reserve(gpu, &op_scratch_need, &err), MS_OK);
    gpu_test_use(gpu);
    const char *only = getenv("MOONSHINE_TEST_OP");
    for (size_t i = 0; i < op_case_count; i++)
        if (!only || !strcmp(only, op_cases[i].name)) check_case(cpu, gpu, &op_cases[i]);
    gpu_test_use(NULL);
    gpu->destroy(gpu);
    cpu->destroy(cpu);
}

static void test_fast(void **state) {
    (void)state;
    check_all(MS_PRECISION_FAST);
}

static void test_reference(void **state) {
    (void)state;
    check_all(MS_PRECISION_REFERENCE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fast),
        cmocka_unit_test(test_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
