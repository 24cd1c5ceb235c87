/* Every backend operation, over a table of sizes and inputs (op_cases.c): all kernel tables, ranges and single rows,
 * one and several threads give the same bits, and the results agree with the textbook formula in double precision. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "backend/cpu/kernels.h"
#include "base/bytes.h"
#include "op_cases.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const tables[] = {"scalar", "avx2", "avx512", "neon"};
enum { TABLES = sizeof tables / sizeof tables[0] };

static ms_backend *open_backend(const char *kernels, unsigned threads, ms_precision precision) {
    ms_backend *be;
    ms_cpu_options o = {precision, threads, kernels};
    ms_error err;
    assert_int_equal(ms_backend_cpu_create(&be, &o, &err), MS_OK);
    assert_int_equal(be->threads, threads);
    assert_string_equal(be->kernels, kernels);
    assert_int_equal(be->scratch_reserve(be, &op_scratch_need, &err), MS_OK);
    return be;
}

static const char *label(const op_case *c, const char *how) {
    static char text[256];
    (void)snprintf(text, sizeof text, "%s n=%u d=%u,%u,%u,%u,%u,%u format=%d values=%d: %s", c->name, c->n, c->d[0],
                   c->d[1], c->d[2], c->d[3], c->d[4], c->d[5], (int)c->format, (int)c->values, how);
    return text;
}

/* All NaNs are one value here: which operand's payload survives is the instruction's choice. */
static uint32_t comparable(float x) { return x != x ? 0x7fc00000u : ms_f32_bits(x); }

static float *run(const char *kernels, unsigned threads, ms_precision precision, const op_case *c, bool singles) {
    ms_backend *be = open_backend(kernels, threads, precision);
    size_t count = c->count(c);
    float *out = malloc(count * sizeof *out);
    assert_non_null(out);
    for (size_t i = 0; i < count; i++) out[i] = -12345.0f;
    c->run(be, c, singles, out);
    ms_error err = {0};
    if (be->sync(be, &err) != MS_OK) fail_msg("%s: %s", label(c, kernels), err.message);
    be->destroy(be);
    return out;
}

static void expect_bits(const float *expected, const float *found, const op_case *c, const char *how) {
    for (size_t i = 0; i < c->count(c); i++)
        if (comparable(expected[i]) != comparable(found[i]))
            fail_msg("%s: result %zu: expected %a, found %a", label(c, how), i, (double)expected[i], (double)found[i]);
}

static void expect_near(const float *found, const op_case *c, double tolerance) {
    size_t count = c->count(c);
    double *naive = malloc(count * sizeof *naive), largest = 1e-30;
    assert_non_null(naive);
    c->naive(c, naive);
    for (size_t i = 0; i < count; i++) largest = fabs(naive[i]) > largest ? fabs(naive[i]) : largest;
    for (size_t i = 0; i < count; i++)
        if (!(fabs((double)found[i] - naive[i]) <= tolerance * largest))
            fail_msg("%s: result %zu: expected %g, found %g, largest %g", label(c, "naive formula"), i, naive[i],
                     (double)found[i], largest);
    free(naive);
}

/* Returns the bits that every way gave. */
static float *check_case(const op_case *c, ms_precision precision) {
    float *base = run("scalar", 1, precision, c, false);
    bool fast = precision == MS_PRECISION_FAST;
    if (c->values == VALUES_NORMAL || c->values == VALUES_MIXED || c->values == VALUES_ZERO)
        expect_near(base, c, fast || c->format == MS_FORMAT_Q8 ? c->fast_tolerance : 1e-5); /* Q8 weights are rounded */
    static const struct {
        const char *kernels;
        unsigned threads;
        bool singles;
    } ways[] = {{"scalar", 1, true}, {"scalar", 3, false}, {"avx2", 1, false}, {"avx2", 3, false},
                {"avx2", 3, true},   {"avx512", 1, false}, {"avx512", 3, true},
                {"neon", 1, false},  {"neon", 3, false},   {"neon", 3, true}};
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        if (!ms_cpu_kernels_find(ways[i].kernels)) continue;
        char how[64];
        (void)snprintf(how, sizeof how, "%s, %s, %u threads, %s", fast ? "fast" : "reference", ways[i].kernels,
                       ways[i].threads, ways[i].singles ? "singles" : "range");
        float *other = run(ways[i].kernels, ways[i].threads, precision, c, ways[i].singles);
        expect_bits(base, other, c, how);
        free(other);
    }
    return base;
}

static void test_fast(void **state) {
    (void)state;
    uint64_t digest = MS_FNV1A64_INIT;
    for (size_t i = 0; i < op_case_count; i++) {
        float *out = check_case(&op_cases[i], MS_PRECISION_FAST);
        for (size_t r = 0; r < op_cases[i].count(&op_cases[i]); r++) {
            uint32_t bits = comparable(out[r]);
            digest = ms_fnv1a64(digest, &bits, sizeof bits);
        }
        free(out);
    }
    /* The same on every compiler and instruction set.  It changes with op_cases.c and with docs/numerics.md only. */
    assert_int_equal(digest, UINT64_C(0xc6c15683bd7acde9));
}

static void test_reference(void **state) {
    (void)state;
    for (size_t i = 0; i < op_case_count; i++) free(check_case(&op_cases[i], MS_PRECISION_REFERENCE));
}

/* Every scale byte, also the ones whose half is subnormal: known values, and equal bits between tables. */
static void test_mxfp4_scales(void **state) {
    (void)state;
    enum { GROUPS = 5 };
    uint8_t tile[GROUPS * 32 * 17];
    int8_t q[32 * GROUPS];
    float x[32 * GROUPS], scales[GROUPS], one[32], out[TABLES][32];
    op_fill(x, 32 * GROUPS, 5, VALUES_NORMAL);
    for (uint32_t e = 0; e < 255; e++) {
        for (size_t i = 0; i < sizeof tile; i++)
            tile[i] = (uint8_t)(i < GROUPS * 512 ? i * 41 % 251 : i % 3 ? e : (e + i) % 255);
        for (size_t t = 0; t < TABLES; t++) {
            const ms_cpu_kernels *k = ms_cpu_kernels_find(tables[t]);
            if (!k) k = &ms_cpu_kernels_scalar;
            ms_cpu_q8 in = {.q = q, .scales = scales};
            k->quantize_split(q, scales, x, 32 * GROUPS);
            k->tile_mxfp4(out[t], 32, &in, 1, tile, GROUPS);
            /* a single group of fours at odd inputs times ones: 16 * 4 * 2^(e - 127) */
            uint8_t small[32 * 17];
            memset(small, 0x60, 512);
            memset(small + 512, (int)e, 32);
            for (size_t i = 0; i < 32; i++) one[i] = 127.0f;
            k->quantize_split(q, scales, one, 32);
            float known[32];
            k->tile_mxfp4(known, 32, &in, 1, small, 1);
            for (size_t i = 0; i < 32; i++)
                if (known[i] != (float)ldexp(127 * 64, (int)e - 127))
                    fail_msg("scale %u: found %a", e, (double)known[i]);
        }
        for (size_t t = 1; t < TABLES; t++)
            for (size_t i = 0; i < 32; i++)
                if (comparable(out[0][i]) != comparable(out[t][i])) fail_msg("%s: scale %u row %zu", tables[t], e, i);
    }
}

/* Kernels called directly with more rows than the backend gives them at a time, and short Q8 blocks: every table gives
 * the bits of the scalar one. */
enum { MANY = 19, WIDE = 300, MX_WIDE = 320, OUT = 32 };

typedef struct many {
    float x[MANY * MX_WIDE], scales[8 * 3], x_s[MANY * MX_WIDE / 32];
    int8_t x_q[MANY * MX_WIDE], q8[8 * WIDE];
    uint16_t bf16[5 * WIDE];
    uint8_t tile[MX_WIDE / 32 * 32 * 17];
} many;

static void run_many(float *out, const ms_cpu_kernels *k, many *m, size_t nx, uint32_t rows) {
    ms_cpu_q8 q8 = {.q = m->x_q, .q_stride = WIDE, .scales = m->x_s, .scale_stride = 3};
    for (size_t i = 0; i < nx; i++) k->quantize(m->x_q + i * WIDE, m->x_s + i * 3, m->x + i * WIDE, WIDE, 128);
    k->block_q8(out, OUT, &q8, nx, m->q8, m->scales, rows, WIDE);
    ms_cpu_q8 mx = {.q = m->x_q, .q_stride = MX_WIDE, .scales = m->x_s, .scale_stride = MX_WIDE / 32};
    k->quantize_split(m->x_q, m->x_s, m->x, nx * MX_WIDE);
    k->tile_mxfp4(out + MANY * OUT, OUT, &mx, nx, m->tile, MX_WIDE / 32);
    k->rows_bf16(out + 2 * MANY * OUT, OUT, m->x, WIDE, nx, m->bf16, WIDE, 5, WIDE);
}

static void test_many_rows(void **state) {
    (void)state;
    static many m;
    static float want[3 * MANY * OUT], got[3 * MANY * OUT];
    op_fill(m.x, MANY * MX_WIDE, 1, VALUES_NORMAL);
    op_fill(m.scales, 8 * 3, 2, VALUES_NORMAL);
    for (size_t i = 0; i < sizeof m.q8; i++) m.q8[i] = (int8_t)((int)(i * 89 % 255) - 127);
    for (size_t i = 0; i < 5 * WIDE; i++) m.bf16[i] = (uint16_t)(0x3f00 + i * 57 % 256 + (i % 3 ? 0 : 0x8000));
    for (size_t i = 0; i < sizeof m.tile; i++)
        m.tile[i] = (uint8_t)(i < MX_WIDE / 32 * 512 ? i * 41 % 251 : 120 + i % 9);
    for (size_t t = 1; t < TABLES; t++) {
        const ms_cpu_kernels *k = ms_cpu_kernels_find(tables[t]);
        if (!k) continue;
        for (size_t nx = 1; nx <= MANY; nx++) {
            uint32_t rows = nx % 2 ? 8 : (uint32_t)(nx / 2 % 8 + 1);
            memset(want, 0, sizeof want);
            memset(got, 0, sizeof got);
            run_many(want, &ms_cpu_kernels_scalar, &m, nx, rows);
            run_many(got, k, &m, nx, rows);
            for (size_t i = 0; i < sizeof want / sizeof want[0]; i++)
                if (comparable(want[i]) != comparable(got[i]))
                    fail_msg("%s, %zu rows: result %zu: expected %a, found %a", tables[t], nx, i, (double)want[i],
                             (double)got[i]);
        }
    }
}

/* ------------------------------------------------------------------ failures */

enum { DIM = 64, EXPERTS = 16, TOP = 3 };

static void router_with_bad_row(ms_backend *be, float bad) {
    float x[3 * DIM], weights[3 * TOP], gate_rows[EXPERTS * DIM], zero[EXPERTS] = {0};
    uint32_t ids[3 * TOP];
    op_fill(x, 3 * DIM, 1, VALUES_NORMAL);
    op_fill(gate_rows, EXPERTS * DIM, 2, VALUES_NORMAL);
    x[DIM + 5] = bad;
    ms_weight gate, bias;
    assert_int_equal(be->weight_create(be, &gate, MS_FORMAT_BF16, EXPERTS, DIM, NULL), MS_OK);
    assert_int_equal(be->weight_fill(be, &gate, 0, EXPERTS, gate_rows, MS_FORMAT_F32, NULL), MS_OK);
    assert_int_equal(be->weight_create(be, &bias, MS_FORMAT_F32, 1, EXPERTS, NULL), MS_OK);
    assert_int_equal(be->weight_fill(be, &bias, 0, 1, zero, MS_FORMAT_F32, NULL), MS_OK);
    ms_router r = {&gate, &bias, TOP, true, 1.0f};
    be->router_topk(be, ids, weights, x, 3, &r);
    ms_error err = {0};
    assert_int_equal(be->sync(be, &err), MS_ERR_NUMERIC);
    assert_non_null(strstr(err.message, "row 1"));
    assert_int_equal(be->sync(be, &err), MS_OK);
    for (uint32_t i = 0; i < TOP; i++) {
        assert_int_equal(ids[TOP + i], i);
        assert_true(weights[TOP + i] == 0.0f);
        assert_true(weights[i] > 0.0f && weights[2 * TOP + i] > 0.0f);
        assert_true(ids[i] < EXPERTS && ids[2 * TOP + i] < EXPERTS);
    }
    be->weight_destroy(be, &gate);
    be->weight_destroy(be, &bias);
}

static void test_router_not_finite(void **state) {
    (void)state;
    for (size_t t = 0; t < TABLES; t++) {
        if (!ms_cpu_kernels_find(tables[t])) continue;
        ms_backend *be = open_backend(tables[t], 2, MS_PRECISION_FAST);
        router_with_bad_row(be, NAN);
        be->destroy(be);
    }
}

/* A non-finite activation passes a quantised product as NaN, so that the router can see it. */
static void test_not_finite_passes_products(void **state) {
    (void)state;
    for (size_t t = 0; t < TABLES; t++) {
        if (!ms_cpu_kernels_find(tables[t])) continue;
        ms_backend *be = open_backend(tables[t], 1, MS_PRECISION_FAST);
        float x[2 * 300], w[9 * 300], out[2 * 9];
        op_fill(w, 9 * 300, 1, VALUES_NORMAL);
        ms_weight weight;
        assert_int_equal(be->weight_create(be, &weight, MS_FORMAT_Q8, 9, 300, NULL), MS_OK);
        assert_int_equal(be->weight_fill(be, &weight, 0, 9, w, MS_FORMAT_F32, NULL), MS_OK);
        for (uint32_t at = 0; at < 300; at += 37) {
            for (int kind = 0; kind < 2; kind++) {
                op_fill(x, 2 * 300, 2, VALUES_NORMAL);
                x[at] = kind ? -INFINITY : NAN;
                ms_product p = {&weight, out, 9, false};
                be->project(be, x, 2, &p, 1);
                for (int r = 0; r < 9; r++) assert_true(isnan(out[r]) && isfinite(out[9 + r]));
            }
        }
        be->weight_destroy(be, &weight);
        be->destroy(be);
    }
}

static void expect_kept(ms_backend *be, const char *word) {
    ms_error err = {0};
    assert_int_equal(be->sync(be, &err), MS_ERR_INTERNAL);
    if (!strstr(err.message, word)) fail_msg("expected '%s' in '%s'", word, err.message);
    assert_int_equal(be->sync(be, &err), MS_OK);
}

/* Asking for more than was reserved is kept as a failure; nothing is written. */
static void test_beyond_scratch(void **state) {
    (void)state;
    ms_backend *be = open_backend("scalar", 1, MS_PRECISION_FAST);
    ms_scratch_need small = {.rows = 2,
                             .input_cols = 64,
                             .mlp_width = 64,
                             .expert = {.hidden = 64, .inner = 32},
                             .pairs = 2,
                             .kda_heads = 1,
                             .kda_dim = 16,
                             .kda_taps = 4,
                             .mla_heads = 1,
                             .mla_nope = 8,
                             .mla_extra = 8,
                             .mla_value = 8,
                             .mla_rank = 16,
                             .context = 4,
                             .router_experts = 8};
    assert_int_equal(be->scratch_reserve(be, &small, NULL), MS_OK);
    float x[3 * 128] = {0}, out[3 * 128], weights[8];
    uint32_t ids[8];
    memset(out, 0x55, sizeof out);
    ms_weight w, wide, bias;
    assert_int_equal(be->weight_create(be, &w, MS_FORMAT_Q8, 16, 64, NULL), MS_OK);
    assert_int_equal(be->weight_create(be, &wide, MS_FORMAT_Q8, 128, 128, NULL), MS_OK);
    assert_int_equal(be->weight_create(be, &bias, MS_FORMAT_F32, 16, 64, NULL), MS_OK);
    ms_product p = {&w, out, 16, false};
    be->project(be, x, 3, &p, 1);
    expect_kept(be, "project");
    p.weight = &wide;
    be->project(be, x, 1, &p, 1);
    expect_kept(be, "project");
    be->mlp(be, out, x, 1, &wide, &wide, &wide, (ms_situ){4, 25});
    expect_kept(be, "mlp");
    ms_kda kda = {1, 17, 4, -5, 1e-5f, {&bias, &bias, &bias}, &bias, &bias, &bias};
    ms_kda_io kda_io = {x, x, x, x, x, x, x, out, x, out, out};
    be->kda_range(be, &kda, &kda_io, 1);
    expect_kept(be, "kda_range");
    ms_mla mla = {1, 8, 8, 8, 16, 1e-6f, 0.25f, &bias, &w};
    ms_mla_io mla_io = {x, x, x, out, 4, out};
    be->mla_range(be, &mla, &mla_io, 1);
    expect_kept(be, "context");
    ms_router r = {&bias, &bias, 2, true, 1};
    be->router_topk(be, ids, weights, x, 1, &r);
    expect_kept(be, "router_topk");
    be->experts_begin(be, x, 3, small.expert);
    expect_kept(be, "experts_begin");
    be->experts_begin(be, x, 2, small.expert);
    uint32_t row = 2, pair = 0;
    ms_expert_batch batch = {x, &row, &pair, 1};
    be->experts_run(be, out, small.expert, (ms_situ){4, 25}, &batch, 1);
    expect_kept(be, "experts_run");
    row = 0;
    pair = 2;
    be->experts_run(be, out, small.expert, (ms_situ){4, 25}, &batch, 1);
    expect_kept(be, "experts_run");
    for (size_t i = 0; i < sizeof out; i++) assert_int_equal(((uint8_t *)out)[i], 0x55);
    be->weight_destroy(be, &w);
    be->weight_destroy(be, &wide);
    be->weight_destroy(be, &bias);
    be->destroy(be);
}

static void test_weight_errors(void **state) {
    (void)state;
    ms_backend *be = open_backend("scalar", 2, MS_PRECISION_FAST);
    static const ms_format formats[] = {MS_FORMAT_F32, MS_FORMAT_BF16, MS_FORMAT_Q8};
    float host[20 * 150];
    for (size_t f = 0; f < 3; f++) {
        ms_weight w;
        ms_error err;
        op_fill(host, 20 * 150, 3, VALUES_NORMAL);
        host[12 * 150 + 130] = INFINITY;
        host[19 * 150] = NAN;
        assert_int_equal(be->weight_create(be, &w, formats[f], 22, 150, &err), MS_OK);
        assert_int_equal(be->weight_fill(be, &w, 2, 20, host, MS_FORMAT_F32, &err), MS_ERR_NUMERIC);
        assert_non_null(strstr(err.message, "row 14 column 130"));
        assert_int_equal(be->weight_fill(be, &w, 20, 3, host, MS_FORMAT_F32, &err), MS_ERR_INTERNAL);
        be->weight_destroy(be, &w);
        assert_int_equal(be->weight_create(be, &w, formats[f], UINT32_MAX, UINT32_MAX, &err), MS_ERR_MEMORY);
    }
    assert_int_equal(ms_weight_bytes(MS_FORMAT_Q8, 7, 300), 7 * 300 + 7 * 3 * 4);
    assert_int_equal(ms_weight_bytes(MS_FORMAT_BF16, 7, 300), 7 * 300 * 2);
    be->destroy(be);
}

static void test_memory(void **state) {
    (void)state;
    ms_backend *be = open_backend("scalar", 1, MS_PRECISION_REFERENCE);
    static const size_t sizes[] = {0, 1, 4097, (size_t)5 << 20};
    for (size_t i = 0; i < 4; i++) {
        for (int kind = 0; kind < 2; kind++) {
            void *p;
            assert_int_equal(be->alloc(be, (ms_memory_kind)kind, sizes[i], "test", &p, NULL), MS_OK);
            assert_int_equal((uintptr_t)p % (kind == MS_MEM_STAGING ? 4096 : 64), 0);
            for (size_t b = 0; b < sizes[i]; b++)
                if (((uint8_t *)p)[b]) fail_msg("byte %zu is not zero", b);
            be->release(be, (ms_memory_kind)kind, p, sizes[i]);
        }
    }
    ms_error err;
    void *p;
    assert_int_equal(be->alloc(be, MS_MEM_DEVICE, SIZE_MAX, "everything", &p, &err), MS_ERR_MEMORY);
    assert_non_null(strstr(err.message, "everything"));
    ms_scratch_need huge = {.rows = UINT32_MAX, .input_cols = UINT32_MAX, .mlp_width = UINT32_MAX};
    assert_int_equal(be->scratch_reserve(be, &huge, &err), MS_ERR_MEMORY);
    be->destroy(be);
    ms_cpu_options o = {MS_PRECISION_FAST, 1, "mmx"};
    assert_int_equal(ms_backend_cpu_create(&be, &o, &err), MS_ERR_USAGE);
    assert_non_null(strstr(err.message, "mmx"));
}

int main(void) {
    for (size_t t = 0; t < TABLES; t++)
        if (!ms_cpu_kernels_find(tables[t])) (void)printf("%s: this processor lacks it, not compared\n", tables[t]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fast),
        cmocka_unit_test(test_reference),
        cmocka_unit_test(test_mxfp4_scales),
        cmocka_unit_test(test_many_rows),
        cmocka_unit_test(test_router_not_finite),
        cmocka_unit_test(test_not_finite_passes_products),
        cmocka_unit_test(test_beyond_scratch),
        cmocka_unit_test(test_weight_errors),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
