/* Grouped-query attention, FP8 weights, SwiGLU and the bare expert sum: every kernel table, one and several threads,
 * ranges and single rows, flat rows and rings give the same bits, near to the textbook formula in double precision. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "backend/cpu/kernels.h"
#include "base/bytes.h"
#include "nn/rope.h"
#include "op_cases.h"
#include "quant/fp8.h"

#include <math.h>
#include <stdlib.h>

static const char *const tables[] = {"scalar", "avx2", "avx512", "neon"};
enum { TABLES = sizeof tables / sizeof tables[0], SINK = 1 };

static const ms_scratch_need need = {.rows = 600,
                                     .input_cols = 300,
                                     .mlp_width = 300,
                                     .expert = {.hidden = 64, .inner = 32},
                                     .pairs = 8,
                                     .gqa_heads = 40,
                                     .gqa_group = 40,
                                     .gqa_key = 192,
                                     .gqa_value = 128,
                                     .context = 2000,
                                     .router_experts = 4};

static ms_backend *open_backend(const char *kernels, unsigned threads, ms_precision precision) {
    ms_backend *be;
    ms_cpu_options o = {precision, threads, kernels};
    ms_error err;
    assert_int_equal(ms_backend_cpu_create(&be, &o, &err), MS_OK);
    assert_int_equal(be->scratch_reserve(be, &need, &err), MS_OK);
    return be;
}

static float *values(size_t count, uint32_t salt) {
    float *x = malloc(count * sizeof *x);
    assert_non_null(x);
    op_fill(x, count, salt, VALUES_NORMAL);
    return x;
}

/* ------------------------------------------------------------------ attention */

typedef struct shape {
    uint32_t heads, kv_heads, key, value, rotary, window, rows, position;
    unsigned flags;
} shape;

static const shape shapes[] = {
    {4, 2, 16, 8, 8, 0, 5, 0, 0},
    {8, 2, 96, 64, 32, 0, 3, 254, 0},
    {16, 1, 24, 40, 2, 0, 2, 600, SINK},
    {40, 1, 20, 12, 20, 0, 2, 3, 0},
    {8, 4, 96, 64, 32, 8, 40, 0, SINK},
    {6, 6, 33, 7, 10, 1, 4, 9, SINK},
    {8, 8, 192, 128, 64, 128, 9, 250, SINK},
    {4, 2, 16, 8, 8, 300, 7, 700, 0},
    {4, 4, 16, 8, 8, 20, 600, 0, SINK},
};

typedef struct inputs {
    float *q, *k, *v, *rope, *sink;
} inputs;

/* Keys and values of all positions come from the operation itself: earlier ones are run first, one by one. */
static inputs make_inputs(const shape *s) {
    size_t all = (size_t)s->position + s->rows;
    inputs in = {.q = values(all * s->heads * s->key, 1), .k = values(all * s->kv_heads * s->key, 2)};
    in.v = values(all * s->kv_heads * s->value, 3);
    in.sink = values(s->heads, 4);
    in.rope = malloc(all * s->rotary * sizeof *in.rope);
    float frequencies[128];
    assert_non_null(in.rope);
    ms_rope_frequencies(frequencies, 1e4, s->rotary);
    ms_rope_rows(in.rope, frequencies, s->rotary, 0, (uint32_t)all);
    return in;
}

static void free_inputs(inputs *in) {
    free(in->q);
    free(in->k);
    free(in->v);
    free(in->rope);
    free(in->sink);
}

static ms_gqa gqa_of(const shape *s, const ms_weight *sink) {
    return (ms_gqa){s->heads,
                    s->kv_heads,
                    s->key,
                    s->value,
                    s->rotary,
                    s->window,
                    1.0f / sqrtf((float)s->key),
                    0.707f,
                    s->flags & SINK ? sink : NULL};
}

/* All positions, in ranges of `range`; out [all][heads * value].  ring 0: flat rows. */
static float *attend(const char *kernels, unsigned threads, ms_precision precision, const shape *s, uint32_t range,
                     uint64_t ring) {
    ms_backend *be = open_backend(kernels, threads, precision);
    inputs in = make_inputs(s);
    uint32_t all = s->position + s->rows;
    size_t element = ms_state_element_bytes(precision), width = (size_t)s->kv_heads * (s->key + s->value);
    void *rows = malloc((ring ? ring : all) * width * element);
    float *out = malloc((size_t)all * s->heads * s->value * sizeof *out);
    assert_non_null(rows);
    assert_non_null(out);
    memset(rows, 0xff, (ring ? ring : all) * width * element); /* NaN: what was never written must not count */
    ms_weight sink = {.format = MS_FORMAT_F32, .rows = 1, .cols = s->heads, .data = in.sink};
    const ms_gqa g = gqa_of(s, &sink);
    for (uint32_t at = 0; at < all; at += range) {
        uint32_t n = all - at < range ? all - at : range;
        const ms_gqa_io io = {.q = in.q + (size_t)at * s->heads * s->key,
                              .k = in.k + (size_t)at * s->kv_heads * s->key,
                              .v = in.v + (size_t)at * s->kv_heads * s->value,
                              .rope = in.rope + (size_t)at * s->rotary,
                              .rows = rows,
                              .ring = ring,
                              .position = at,
                              .out = out + (size_t)at * s->heads * s->value};
        be->gqa_range(be, &g, &io, n);
    }
    ms_error err = {0};
    if (be->sync(be, &err) != MS_OK) fail_msg("%s", err.message);
    be->destroy(be);
    free(rows);
    free_inputs(&in);
    return out;
}

static void rotate(double *x, uint32_t rotary, uint32_t position) {
    for (uint32_t j = 0; j < rotary / 2; j++) {
        double angle = position * pow(1e4, -2.0 * j / rotary), a = x[j], b = x[j + rotary / 2];
        x[j] = a * cos(angle) - b * sin(angle);
        x[j + rotary / 2] = b * cos(angle) + a * sin(angle);
    }
}

static void naive_head(double *out, const shape *s, const inputs *in, uint32_t row, uint32_t head) {
    uint32_t kv = head / (s->heads / s->kv_heads), first = s->window && row >= s->window ? row + 1 - s->window : 0;
    double l = s->flags & SINK ? exp((double)in->sink[head]) : 0, q[192], k[192];
    for (uint32_t d = 0; d < s->key; d++) q[d] = (double)in->q[((size_t)row * s->heads + head) * s->key + d];
    rotate(q, s->rotary, row);
    for (uint32_t c = 0; c < s->value; c++) out[c] = 0;
    for (uint32_t p = first; p <= row; p++) {
        double score = 0;
        for (uint32_t d = 0; d < s->key; d++) k[d] = (double)in->k[((size_t)p * s->kv_heads + kv) * s->key + d];
        rotate(k, s->rotary, p);
        for (uint32_t d = 0; d < s->key; d++) score += q[d] * k[d];
        double e = exp(score / sqrt((double)s->key));
        l += e;
        for (uint32_t c = 0; c < s->value; c++)
            out[c] += e * 0.707 * (double)in->v[((size_t)p * s->kv_heads + kv) * s->value + c];
    }
    for (uint32_t c = 0; c < s->value; c++) out[c] /= l;
}

static void near_naive(const float *found, const shape *s, double tolerance) {
    inputs in = make_inputs(s);
    double want[128];
    uint32_t all = s->position + s->rows;
    for (uint32_t row = s->position; row < all; row += s->rows > 100 ? 41 : 1) {
        for (uint32_t h = 0; h < s->heads; h++) {
            naive_head(want, s, &in, row, h);
            for (uint32_t c = 0; c < s->value; c++) {
                double f = (double)found[((size_t)row * s->heads + h) * s->value + c];
                if (!(fabs(f - want[c]) <= tolerance))
                    fail_msg("%u heads, row %u, head %u, %u: expected %g, found %g", s->heads, row, h, c, want[c], f);
            }
        }
    }
    free_inputs(&in);
}

static void same_bits(const float *a, float *b, const shape *s, const char *how) {
    size_t bytes = ((size_t)s->position + s->rows) * s->heads * s->value * sizeof *a;
    if (memcmp(a, b, bytes) != 0) fail_msg("%u heads, window %u: %s gives other bits", s->heads, s->window, how);
    free(b);
}

static void check_shape(const shape *s, ms_precision precision) {
    uint32_t all = s->position + s->rows;
    float *base = attend("scalar", 1, precision, s, 1, 0);
    near_naive(base, s, precision == MS_PRECISION_FAST ? 0.02 : 2e-5);
    for (size_t t = 0; t < TABLES; t++) {
        if (!ms_cpu_kernels_find(tables[t])) continue;
        same_bits(base, attend(tables[t], 1, precision, s, all < need.rows ? all : need.rows, 0), s, tables[t]);
        same_bits(base, attend(tables[t], 3, precision, s, 7, 0), s, "three threads, ranges of 7");
        if (!s->window) continue;
        uint64_t ring = ms_align_up((uint64_t)s->window + 6, MS_GQA_BLOCK);
        same_bits(base, attend(tables[t], 1, precision, s, 7, ring), s, "the smallest ring");
        same_bits(base, attend(tables[t], 2, precision, s, 5, ring + MS_GQA_BLOCK), s, "a larger ring");
    }
    free(base);
}

static void attention_reference(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) check_shape(&shapes[i], MS_PRECISION_REFERENCE);
}

static void attention_fast(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) check_shape(&shapes[i], MS_PRECISION_FAST);
}

/* The same on every compiler and instruction set; it changes with docs/numerics.md only. */
static void attention_digest(void **state) {
    (void)state;
    uint64_t digest = MS_FNV1A64_INIT;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        const shape *s = &shapes[i];
        float *out = attend("scalar", 1, MS_PRECISION_FAST, s, 7, 0);
        digest = ms_fnv1a64(digest, out, ((size_t)s->position + s->rows) * s->heads * s->value * sizeof *out);
        free(out);
    }
    assert_int_equal(digest, UINT64_C(0xc36304b61779d109));
}

static void refuses(const shape *s, uint64_t ring, uint32_t n) {
    ms_backend *be = open_backend("scalar", 1, MS_PRECISION_FAST);
    const ms_gqa g = gqa_of(s, NULL);
    const ms_gqa_io io = {.ring = ring, .position = s->position};
    ms_error err = {0};
    be->gqa_range(be, &g, &io, n);
    assert_int_equal(be->sync(be, &err), MS_ERR_INTERNAL);
    assert_non_null(strstr(err.message, "gqa_range"));
    be->destroy(be);
}

static void bad_shapes_are_refused(void **state) {
    (void)state;
    refuses(&(shape){.heads = 3, .kv_heads = 2, .key = 8, .value = 8, .rotary = 2}, 0, 1);
    refuses(&(shape){.heads = 3, .kv_heads = 0, .key = 8, .value = 8, .rotary = 2}, 0, 1);
    refuses(&(shape){.heads = 2, .kv_heads = 2, .key = 8, .value = 8, .rotary = 3}, 0, 1);
    refuses(&(shape){.heads = 2, .kv_heads = 2, .key = 8, .value = 8, .rotary = 10}, 0, 1);
    refuses(&(shape){.heads = 2, .kv_heads = 2, .key = 193, .value = 8, .rotary = 2}, 0, 1);
    refuses(&(shape){.heads = 41, .kv_heads = 1, .key = 8, .value = 8, .rotary = 2}, 0, 1);
    refuses(&(shape){.heads = 2, .kv_heads = 2, .key = 8, .value = 8, .rotary = 2, .position = 1995}, 0, 6);
    refuses(&(shape){.heads = 2, .kv_heads = 2, .key = 8, .value = 8, .rotary = 2, .window = 8}, 250, 1);
    refuses(&(shape){.heads = 2, .kv_heads = 2, .key = 8, .value = 8, .rotary = 2, .window = 250}, 256, 8);
    refuses(&(shape){.heads = 2, .kv_heads = 2, .key = 8, .value = 8, .rotary = 2}, 256, 1);
}

/* ------------------------------------------------------------------ FP8 */

static void all_codes(void **state) {
    (void)state;
    uint8_t codes[256];
    float out[256];
    for (int i = 0; i < 256; i++) codes[i] = (uint8_t)i;
    for (size_t t = 0; t < TABLES; t++) {
        const ms_cpu_kernels *k = ms_cpu_kernels_find(tables[t]);
        if (!k) continue;
        k->from_fp8(out, codes, 1.5f, 256);
        for (int i = 0; i < 256; i++) {
            int e = i >> 3 & 15, m = i & 7;
            double want = (e ? ldexp(8 + m, e - 10) : ldexp(m, -9)) * (i & 128 ? -1 : 1);
            if (e == 15 && m == 7) {
                assert_true(isnan(ms_e4m3((uint8_t)i)) && isnan(out[i]));
                continue;
            }
            assert_true((double)ms_e4m3((uint8_t)i) == want);
            assert_true((double)out[i] == 1.5 * want);
        }
    }
    assert_true(signbit(ms_e4m3(0x80)) && !signbit(ms_e4m3(0)));
}

enum { FP8_ROWS = 21, FP8_COLS = 300 };

/* Records of random codes, none of them NaN. */
static uint8_t *fp8_records(float *decoded) {
    size_t record = ms_fp8_record_bytes(FP8_COLS), groups = ms_q8_groups(FP8_COLS);
    uint8_t *out = malloc(FP8_ROWS * record);
    float *scales = values(FP8_ROWS * groups, 9);
    assert_non_null(out);
    for (size_t r = 0; r < FP8_ROWS; r++) {
        memcpy(out + r * record, scales + r * groups, groups * sizeof *scales);
        for (size_t c = 0; c < FP8_COLS; c++) {
            uint8_t code = (uint8_t)((r * 77 + c * 41 + (c >> 5) * 3) % 251);
            if ((code & 0x7F) == 0x7F) code = 0x7E;
            out[r * record + groups * sizeof *scales + c] = code;
            decoded[r * FP8_COLS + c] = ms_e4m3(code) * scales[r * groups + c / 128];
        }
    }
    free(scales);
    return out;
}

static void project_fp8(const char *kernels, ms_precision precision, ms_format format, const uint8_t *records,
                        float *out, const float *x, uint32_t n) {
    ms_backend *be = open_backend(kernels, 2, precision);
    ms_weight w;
    ms_error err;
    assert_int_equal(be->weight_create(be, &w, format, FP8_ROWS, FP8_COLS, &err), MS_OK);
    /* in two parts that cut a block of 8 rows */
    assert_int_equal(be->weight_fill(be, &w, 0, 3, records, MS_FORMAT_FP8, &err), MS_OK);
    assert_int_equal(
        be->weight_fill(be, &w, 3, FP8_ROWS - 3, records + 3 * ms_fp8_record_bytes(FP8_COLS), MS_FORMAT_FP8, &err),
        MS_OK);
    ms_product p = {&w, out, FP8_ROWS, false};
    be->project(be, x, n, &p, 1);
    assert_int_equal(be->sync(be, &err), MS_OK);
    be->weight_destroy(be, &w);
    be->destroy(be);
}

/* FP8 is exact in both precisions; as Q8 it equals a Q8 weight made of the decoded values. */
static void fp8_products(void **state) {
    (void)state;
    enum { N = 3 };
    float decoded[FP8_ROWS * FP8_COLS], out[N * FP8_ROWS], other[N * FP8_ROWS], *x = values(N * FP8_COLS, 12);
    uint8_t *records = fp8_records(decoded);
    project_fp8("scalar", MS_PRECISION_REFERENCE, MS_FORMAT_FP8, records, out, x, N);
    for (size_t i = 0; i < N; i++) {
        for (size_t r = 0; r < FP8_ROWS; r++) {
            double want = 0, size = 0;
            for (size_t c = 0; c < FP8_COLS; c++) {
                double term = (double)x[i * FP8_COLS + c] * (double)decoded[r * FP8_COLS + c];
                want += term;
                size += fabs(term);
            }
            assert_true(fabs((double)out[i * FP8_ROWS + r] - want) <= 1e-6 * size);
        }
    }
    for (size_t t = 0; t < TABLES; t++) {
        if (!ms_cpu_kernels_find(tables[t])) continue;
        project_fp8(tables[t], MS_PRECISION_FAST, MS_FORMAT_FP8, records, other, x, N);
        assert_memory_equal(out, other, sizeof out);
    }
    ms_backend *be = open_backend("scalar", 1, MS_PRECISION_FAST);
    ms_weight w;
    ms_error err;
    assert_int_equal(be->weight_create(be, &w, MS_FORMAT_Q8, FP8_ROWS, FP8_COLS, &err), MS_OK);
    assert_int_equal(be->weight_fill(be, &w, 0, FP8_ROWS, decoded, MS_FORMAT_F32, &err), MS_OK);
    ms_product p = {&w, out, FP8_ROWS, false};
    be->project(be, x, N, &p, 1);
    be->weight_destroy(be, &w);
    be->destroy(be);
    project_fp8("scalar", MS_PRECISION_FAST, MS_FORMAT_Q8, records, other, x, N);
    assert_memory_equal(out, other, sizeof out);
    free(records);
    free(x);
}

static void fp8_damage_is_named(void **state) {
    (void)state;
    float decoded[FP8_ROWS * FP8_COLS], inf = ms_f32_from_bits(0x7f800000u);
    size_t record = ms_fp8_record_bytes(FP8_COLS), codes = ms_q8_groups(FP8_COLS) * sizeof(float);
    static const ms_format formats[] = {MS_FORMAT_FP8, MS_FORMAT_Q8};
    for (int i = 0; i < 4; i++) {
        uint8_t *records = fp8_records(decoded);
        if (i % 2)
            records[5 * record + codes + 257] = 0xFF;
        else
            memcpy(records + 5 * record + 8, &inf, sizeof inf);
        ms_backend *be = open_backend("scalar", 1, MS_PRECISION_FAST);
        ms_weight w;
        ms_error err = {0};
        assert_int_equal(be->weight_create(be, &w, formats[i / 2], FP8_ROWS, FP8_COLS, &err), MS_OK);
        assert_int_equal(be->weight_fill(be, &w, 0, FP8_ROWS, records, MS_FORMAT_FP8, &err), MS_ERR_NUMERIC);
        if (!strstr(err.message, "row 5 column 25")) fail_msg("%s", err.message);
        be->weight_destroy(be, &w);
        assert_int_equal(be->weight_create(be, &w, MS_FORMAT_FP8, 2, 3, &err), MS_OK);
        assert_int_equal(be->weight_fill(be, &w, 0, 1, decoded, MS_FORMAT_F32, &err), MS_ERR_INTERNAL);
        be->weight_destroy(be, &w);
        be->destroy(be);
        free(records);
    }
}

/* ------------------------------------------------------------------ SwiGLU, bare sums */

static double silu(double x) { return x / (1 + exp(-x)); }

static void swiglu_mlp(void **state) {
    (void)state;
    enum { DIM = 40, WIDTH = 130, OUT = 9, N = 5 };
    float *x = values(N * DIM, 1), *g = values(WIDTH * DIM, 2), *u = values(WIDTH * DIM, 3),
          *d = values(OUT * WIDTH, 4);
    float first[N * OUT], out[N * OUT];
    for (size_t t = 0; t < TABLES; t++) {
        if (!ms_cpu_kernels_find(tables[t])) continue;
        ms_backend *be = open_backend(tables[t], 2, MS_PRECISION_FAST);
        ms_weight w[3] = {{MS_FORMAT_F32, WIDTH, DIM, g, NULL},
                          {MS_FORMAT_F32, WIDTH, DIM, u, NULL},
                          {MS_FORMAT_F32, OUT, WIDTH, d, NULL}};
        be->mlp(be, out, x, N, &w[0], &w[1], &w[2], (ms_situ){0});
        assert_int_equal(be->sync(be, NULL), MS_OK);
        be->destroy(be);
        if (t == 0) memcpy(first, out, sizeof out);
        assert_memory_equal(first, out, sizeof out);
    }
    for (size_t i = 0; i < N; i++) {
        for (size_t r = 0; r < OUT; r++) {
            double want = 0;
            for (size_t c = 0; c < WIDTH; c++) {
                double a = 0, b = 0;
                for (size_t k = 0; k < DIM; k++) {
                    a += (double)g[c * DIM + k] * (double)x[i * DIM + k];
                    b += (double)u[c * DIM + k] * (double)x[i * DIM + k];
                }
                want += silu(a) * b * (double)d[r * WIDTH + c];
            }
            assert_true(fabs((double)out[i * OUT + r] - want) < 1e-3);
        }
    }
    free(x);
    free(g);
    free(u);
    free(d);
}

static void bare_sum(void **state) {
    (void)state;
    enum { N = 3, K = 2, HIDDEN = 50 };
    float *y = values(N * K * HIDDEN, 1), *weights = values(N * K, 2), out[N * HIDDEN];
    ms_backend *be = open_backend("scalar", 2, MS_PRECISION_FAST);
    be->experts_reduce_norm(be, out, y, weights, N, K, HIDDEN, NULL, 0);
    assert_int_equal(be->sync(be, NULL), MS_OK);
    be->destroy(be);
    for (size_t i = 0; i < N; i++)
        for (size_t c = 0; c < HIDDEN; c++) {
            float u = fmaf(weights[i * K], y[i * K * HIDDEN + c], 0.0f);
            assert_true(out[i * HIDDEN + c] == fmaf(weights[i * K + 1], y[(i * K + 1) * HIDDEN + c], u));
        }
    free(y);
    free(weights);
}

/* ------------------------------------------------------------------ rotary angles */

static void angles(void **state) {
    (void)state;
    static const double thetas[] = {1e4, 1e7, 2.5};
    static const uint32_t widths[] = {64, 32, 2, 10};
    static const uint64_t positions[] = {0, 1, 2, 7, 127, 1000, 65535, 1048575, 16777215, 4294967295};
    for (size_t t = 0; t < 3; t++) {
        for (size_t w = 0; w < 4; w++) {
            float f[32], row[64];
            ms_rope_frequencies(f, thetas[t], widths[w]);
            for (uint32_t j = 0; j < widths[w] / 2; j++)
                assert_true(f[j] == (float)pow(thetas[t], -2.0 * j / widths[w]));
            for (size_t p = 0; p < sizeof positions / sizeof positions[0]; p++) {
                ms_rope_rows(row, f, widths[w], positions[p], 1);
                for (uint32_t j = 0; j < widths[w] / 2; j++) {
                    float angle = (float)positions[p] * f[j];
                    assert_true(row[j] == (float)cos((double)angle));
                    assert_true(row[widths[w] / 2 + j] == (float)sin((double)angle));
                }
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(attention_reference),
                                       cmocka_unit_test(attention_fast),
                                       cmocka_unit_test(attention_digest),
                                       cmocka_unit_test(bad_shapes_are_refused),
                                       cmocka_unit_test(all_codes),
                                       cmocka_unit_test(fp8_products),
                                       cmocka_unit_test(fp8_damage_is_named),
                                       cmocka_unit_test(swiglu_mlp),
                                       cmocka_unit_test(bare_sum),
                                       cmocka_unit_test(angles)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
