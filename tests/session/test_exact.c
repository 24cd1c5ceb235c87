/* Bits are a pure function of weights, tokens and precision: not of how the tokens are cut, of threads, cache size,
 * queue depth, read path, cache contents, kernels, or of a trip through a state file. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "exact.h"

static const setup variants[] = {
    {.label = "range 1", .experts = ALL, .range = 1},
    {.label = "range 2", .experts = ALL, .range = 2},
    {.label = "range 3", .experts = ALL, .range = 3},
    {.label = "range 5", .experts = ALL, .range = 5},
    {.label = "range 16", .experts = ALL, .range = 16},
    {.label = "range 64", .experts = ALL, .range = 64},
    {.label = "two threads", .experts = ALL, .threads = 2},
    {.label = "three threads, range 7", .experts = ALL, .threads = 3, .range = 7},
    {.label = "no slots", .experts = 0},
    {.label = "one slot", .experts = 1},
    {.label = "one slot, token by token", .experts = 1, .range = 1},
    {.label = "two slots, one buffer", .experts = 2, .staging = 1},
    {.label = "five slots, depth 1", .experts = 5, .depth = 1},
    {.label = "five slots, depth 3", .experts = 5, .depth = 3, .range = 4},
    {.label = "three slots, depth 16", .experts = 3, .depth = 16, .staging = 16, .range = 1},
    {.label = "buffered", .experts = 3, .buffered = true},
    {.label = "pread", .experts = 3, .no_uring = true},
    {.label = "warm cache", .experts = 4, .warm = true},
    {.label = "export and import", .experts = 4, .reload = true},
    {.label = "lookahead, no slots", .experts = 0, .lookahead = true, .range = 1},
    {.label = "lookahead, three slots", .experts = 3, .lookahead = true, .range = 1},
    {.label = "lookahead, three slots, ranges", .experts = 3, .lookahead = true, .range = 5},
    {.label = "lookahead, two threads", .experts = 2, .lookahead = true, .range = 1, .threads = 2},
    {.label = "lookahead, two buffers", .experts = 1, .lookahead = true, .range = 1, .staging = 2},
    {.label = "lookahead, depth 1", .experts = 2, .lookahead = true, .range = 1, .depth = 1},
    {.label = "lookahead, pread", .experts = 2, .lookahead = true, .range = 1, .no_uring = true},
    {.label = "lookahead, export and import", .experts = 4, .lookahead = true, .reload = true},
    {.label = "scalar kernels", .experts = ALL, .kernels = "scalar"},
    {.label = "scalar kernels, two threads, range 3", .experts = 2, .kernels = "scalar", .threads = 2, .range = 3},
    {.label = "avx2 kernels", .experts = ALL, .kernels = "avx2"},
    {.label = "neon kernels", .experts = ALL, .kernels = "neon"},
    {.label = "avx512 kernels", .experts = ALL, .kernels = "avx512"},
    {.label = "avx512 kernels, two threads, range 3", .experts = 2, .kernels = "avx512", .threads = 2, .range = 3},
};

static void check_all(ms_precision precision, ms_static_format format) {
    for (int m = 0; m < MODELS; m++) {
        setup base = {.precision = precision, .format = format, .experts = ALL, .threads = 1};
        outcome want = run(models[m], &base);
        for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++) {
            setup u = variants[i];
            if (u.kernels && !ms_cpu_kernels_find(u.kernels)) continue; /* this processor lacks them */
            u.precision = precision;
            u.format = format;
            if (!u.threads) u.threads = 1;
            outcome got = run(models[m], &u);
            same(models[m], u.label, &want, &got);
        }
        /* the check can fail: another precision must give other bits */
        setup other = base;
        other.precision = precision == MS_PRECISION_FAST ? MS_PRECISION_REFERENCE : MS_PRECISION_FAST;
        outcome differs = run(models[m], &other);
        assert_true(differs.logits != want.logits);
    }
}

static void fast_q8(void **state) {
    (void)state;
    check_all(MS_PRECISION_FAST, MS_STATIC_Q8);
}
static void fast_bf16(void **state) {
    (void)state;
    check_all(MS_PRECISION_FAST, MS_STATIC_BF16);
}
static void reference_bf16(void **state) {
    (void)state;
    check_all(MS_PRECISION_REFERENCE, MS_STATIC_BF16);
}
static void reference_q8(void **state) {
    (void)state;
    check_all(MS_PRECISION_REFERENCE, MS_STATIC_Q8);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(fast_q8), cmocka_unit_test(fast_bf16),
                                       cmocka_unit_test(reference_bf16), cmocka_unit_test(reference_q8)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
