/* exp, sigmoid and tanh of base/fmath.h: their error against libm in double, their edges, and that the vector kernels
 * give the scalar bits over sweeps of bit patterns; the group quantiser likewise. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "backend/cpu/kernels.h"
#include "base/fmath.h"

#include <stdio.h>

/* Distance in units in the last place of the f32 nearest to the exact value. */
static double ulps(float found, double exact) {
    int exponent;
    (void)frexp(exact, &exponent);
    double ulp = ldexp(1.0, (exponent < -125 ? -125 : exponent) - 24);
    return fabs((double)found - exact) / ulp;
}

static double exact_sigmoid(double x) { return 1 / (1 + exp(-x)); }

static void sweep(const char *name, float (*f)(float), double (*exact)(double), float low, float high, double limit) {
    double worst = 0;
    float at = low;
    const int steps = 400000;
    for (int i = 0; i <= steps; i++) {
        float x = low + (high - low) * ((float)i / (float)steps);
        double e = ulps(f(x), exact((double)x));
        if (e > worst) {
            worst = e;
            at = x;
        }
    }
    print_message("%s [%g, %g]: %.3f ulp at %a\n", name, (double)low, (double)high, worst, (double)at);
    if (!(worst < limit)) fail_msg("%s: %.3f ulp at %a, expected below %.1f", name, worst, (double)at, limit);
}

static float call_exp(float x) { return ms_exp(x); }
static float call_sigmoid(float x) { return ms_sigmoid(x); }
static float call_tanh(float x) { return ms_tanh(x); }

static void test_error(void **state) {
    (void)state;
    sweep("exp", call_exp, exp, -87.0f, 88.0f, 1.5);
    sweep("exp", call_exp, exp, -1.0f, 1.0f, 1.5);
    sweep("sigmoid", call_sigmoid, exact_sigmoid, -80.0f, 80.0f, 3.0);
    sweep("sigmoid", call_sigmoid, exact_sigmoid, -4.0f, 4.0f, 3.0);
    sweep("tanh", call_tanh, tanh, -0.62499f, 0.62499f, 1.5);
    sweep("tanh", call_tanh, tanh, -1e-4f, 1e-4f, 1.5);
    sweep("tanh", call_tanh, tanh, 0.625f, 10.0f, 2.0);
    sweep("tanh", call_tanh, tanh, -10.0f, -0.625f, 2.0);
}

static void test_edges(void **state) {
    (void)state;
    float nan = ms_f32_from_bits(0x7fc00000u), inf = ms_f32_from_bits(0x7f800000u);
    assert_true(isnan(ms_exp(nan)) && isnan(ms_sigmoid(nan)) && isnan(ms_tanh(nan)));
    assert_true(isnan(ms_exp(-nan)) && isnan(ms_sigmoid(-nan)) && isnan(ms_tanh(-nan)));
    assert_true(ms_exp(inf) == inf && ms_exp(-inf) == 0.0f && ms_exp(88.01f) == inf && ms_exp(-87.01f) == 0.0f);
    assert_true(ms_exp(0.0f) == 1.0f && ms_exp(-0.0f) == 1.0f && ms_exp(1e-45f) == 1.0f);
    assert_true(ms_sigmoid(inf) == 1.0f && ms_sigmoid(-inf) == 0.0f && ms_sigmoid(0.0f) == 0.5f);
    assert_true(ms_tanh(inf) == 1.0f && ms_tanh(-inf) == -1.0f && ms_tanh(50.0f) == 1.0f && ms_tanh(-50.0f) == -1.0f);
    assert_int_equal(ms_f32_bits(ms_tanh(-0.0f)), 0x80000000u);
    assert_int_equal(ms_f32_bits(ms_tanh(0.0f)), 0);
    assert_int_equal(ms_f32_bits(ms_tanh(ms_f32_from_bits(1))), 1);
}

/* Known bits: a change of a coefficient or of the order shows here before it shows as other digests. */
static void test_known_bits(void **state) {
    (void)state;
    static const float x[] = {-80.5f, -10.25f, -1.0f, -0.1f, 0.3f, 0.6f, 0.625f, 2.0f, 17.75f, 80.0f};
    uint64_t digest = MS_FNV1A64_INIT;
    for (size_t i = 0; i < sizeof x / sizeof x[0]; i++) {
        float y[3] = {ms_exp(x[i]), ms_sigmoid(x[i]), ms_tanh(x[i])};
        digest = ms_fnv1a64(digest, y, sizeof y);
    }
    assert_int_equal(digest, UINT64_C(0x9e9b01cece7b3a23));
}

enum { COUNT = 1021 };

static bool same(float a, float b) { return ms_f32_bits(a) == ms_f32_bits(b) || (a != a && b != b); }

static void expect_same(const float *a, const float *b, const float *x, size_t n, const char *what) {
    for (size_t i = 0; i < n; i++)
        if (!same(a[i], b[i]))
            fail_msg("%s of %a: scalar %a, vector %a", what, (double)x[i], (double)a[i], (double)b[i]);
}

/* Any bit pattern: all exponents, both signs, subnormals, infinities, NaNs. */
static void fill_bits(float *x, size_t n, uint32_t seed) {
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        uint32_t bits = seed ^ seed >> 15;
        if (i % 3 == 0) bits = (bits & 0x83ffffffu) | 0x3c000000u; /* the range where these functions move */
        if (i % 97 == 0) bits |= 0x7f800000u;
        x[i] = ms_f32_from_bits(bits);
    }
}

static void test_vectors(void **state) {
    (void)state;
    const ms_cpu_kernels *s = &ms_cpu_kernels_scalar, *v = ms_cpu_kernels_find(NULL);
    float x[COUNT], y[COUNT], a[COUNT], b[COUNT];
    for (uint32_t round = 0; round < 200; round++) {
        fill_bits(x, COUNT, round);
        fill_bits(y, COUNT, round + 1000);
        s->exp_sub(a, x, 0.25f, COUNT);
        v->exp_sub(b, x, 0.25f, COUNT);
        expect_same(a, b, x, COUNT, "exp");
        s->sigmoid(a, x, COUNT);
        v->sigmoid(b, x, COUNT);
        expect_same(a, b, x, COUNT, "sigmoid");
        s->gate(a, y, x, COUNT);
        v->gate(b, y, x, COUNT);
        expect_same(a, b, x, COUNT, "gate");
        s->situ(a, x, y, COUNT, 4.0f, 25.0f);
        v->situ(b, x, y, COUNT, 4.0f, 25.0f);
        expect_same(a, b, x, COUNT, "situ");
        s->decay(a, x, y, 1.7f, -5.0f, COUNT);
        v->decay(b, x, y, 1.7f, -5.0f, COUNT);
        expect_same(a, b, x, COUNT, "decay");
        s->round_bf16(a, x, COUNT);
        v->round_bf16(b, x, COUNT);
        expect_same(a, b, x, COUNT, "bf16");
    }
}

static void test_quantise(void **state) {
    (void)state;
    const ms_cpu_kernels *s = &ms_cpu_kernels_scalar, *v = ms_cpu_kernels_find(NULL);
    enum { N = 960 };
    float x[N], sa[N], sb[N];
    int8_t a[N], b[N];
    for (uint32_t round = 0; round < 300; round++) {
        fill_bits(x, N, round);
        size_t group = round % 2 ? 128 : 32;
        /* a group with one wild exponent is mostly zeros: bring most rounds into one range */
        for (size_t i = 0; round % 4 && i < N; i++)
            x[i] = ms_f32_from_bits((ms_f32_bits(x[i]) & 0x80ffffffu) | 0x3f000000u);
        /* exact halves must go to even */
        for (size_t i = 0; round % 8 == 1 && i < N; i++)
            x[i] = i % group == 0 ? 127.0f : (float)(i % 255) * 0.5f - 63.5f;
        for (size_t i = 0; round % 16 == 3 && i < N; i++) x[i] *= 0x1p-100f;
        s->quantize(a, sa, x, N, group);
        v->quantize(b, sb, x, N, group);
        assert_memory_equal(a, b, N);
        expect_same(sa, sb, x, N / group + (N % group != 0), "scale");
        s->quantize_split(a, sa, x, N);
        v->quantize_split(b, sb, x, N);
        assert_memory_equal(a, b, N);
        expect_same(sa, sb, x, N / 32, "scale");
    }
}

static void test_quantise_known(void **state) {
    (void)state;
    const ms_cpu_kernels *tables[] = {&ms_cpu_kernels_scalar, ms_cpu_kernels_find(NULL)};
    for (int t = 0; t < 2; t++) {
        float x[32] = {127.0f, -127.0f, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, 126.4f, 0.49f, -0.0f}, scale;
        static const int8_t expected[10] = {127, -127, 0, 2, 2, 0, -2, 126, 0, 0};
        int8_t q[32];
        tables[t]->quantize(q, &scale, x, 32, 32);
        assert_memory_equal(q, expected, 10);
        assert_true(scale == 1.0f);
        tables[t]->quantize_split(q, &scale, x, 32);
        for (int i = 0; i < 10; i++) assert_int_equal(q[i / 2 + i % 2 * 16], expected[i]);
        x[3] = ms_f32_from_bits(0xff800000u);
        tables[t]->quantize(q, &scale, x, 32, 32);
        assert_true(isnan(scale) && q[0] == 0);
        for (int i = 0; i < 32; i++) x[i] = i % 2 ? 0x1.fffffep-101f : -0x1p-149f;
        tables[t]->quantize(q, &scale, x, 32, 32);
        assert_true(scale == 0.0f && q[1] == 0);
        x[9] = -0x1p-100f;
        tables[t]->quantize(q, &scale, x, 32, 32);
        assert_true(scale > 0.0f && q[9] == -127);
    }
}

int main(void) {
    if (ms_cpu_kernels_find(NULL) == &ms_cpu_kernels_scalar) (void)printf("no vector kernels on this processor\n");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_error),   cmocka_unit_test(test_edges),    cmocka_unit_test(test_known_bits),
        cmocka_unit_test(test_vectors), cmocka_unit_test(test_quantise), cmocka_unit_test(test_quantise_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
