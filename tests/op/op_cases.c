#include "op_cases.h"

#include "base/bytes.h"
#include "nn/rope.h"
#include "quant/fp8.h"

#include <math.h>
#include <stdlib.h>

const ms_scratch_need op_scratch_need = {.rows = 130,
                                         .input_cols = 8300,
                                         .mlp_width = 700,
                                         .expert = {.hidden = 512, .inner = 256},
                                         .pairs = 160,
                                         .kda_heads = 3,
                                         .kda_dim = 128,
                                         .kda_taps = 5,
                                         .mla_heads = 11,
                                         .mla_nope = 40,
                                         .mla_extra = 32,
                                         .mla_value = 40,
                                         .mla_rank = 132,
                                         .gqa_heads = 40,
                                         .gqa_group = 40,
                                         .gqa_key = 192,
                                         .gqa_value = 128,
                                         .context = 1100,
                                         .router_experts = 77};

/* ------------------------------------------------------------------ inputs */

static uint32_t next_random(uint64_t *state) {
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*state >> 33);
}

void op_fill(float *x, size_t count, uint32_t salt, op_values kind) {
    uint64_t state = salt * UINT64_C(0x9e3779b97f4a7c15) + 1;
    for (size_t i = 0; i < count; i++) {
        float u = (float)next_random(&state) / 0x1p30f - 1.0f, v = (float)next_random(&state) / 0x1p30f - 1.0f;
        uint32_t pick = next_random(&state) % 8;
        x[i] = u + v;
        if (kind == VALUES_ZERO) x[i] = pick < 4 ? 0.0f : -0.0f;
        if (kind == VALUES_TINY) x[i] *= pick < 4 ? 0x1p-140f : 0x1p-101f;
        if (kind == VALUES_LARGE) x[i] *= pick < 4 ? 1.0f : 0x1p20f;
        if (kind == VALUES_MIXED) x[i] *= pick == 0 ? 0.0f : pick == 1 ? 0x1p-130f : pick == 2 ? 0x1p-20f : 1.0f;
    }
}

static float *values(size_t count, uint32_t salt, op_values kind) {
    float *x = malloc((count ? count : 1) * sizeof *x);
    if (!x) abort();
    op_fill(x, count, salt, kind);
    return x;
}

/* Weights are always ordinary numbers, in BF16 so that every format starts from the same. */
static uint16_t *weight_values(size_t count, uint32_t salt) {
    float *x = values(count, salt, VALUES_NORMAL);
    uint16_t *w = malloc(count * sizeof *w);
    if (!w) abort();
    for (size_t i = 0; i < count; i++) w[i] = ms_bf16_from_f32(x[i] * 0.25f);
    free(x);
    return w;
}

static void make_weight(ms_backend *be, ms_weight *w, ms_format format, uint32_t rows, uint32_t cols, uint32_t salt) {
    uint16_t *host = weight_values((size_t)rows * cols, salt);
    if (be->weight_create(be, w, format, rows, cols, NULL) != MS_OK) abort();
    /* in two parts that cut a block of 8 rows */
    uint32_t first = rows > 3 ? 3 : rows;
    if (be->weight_fill(be, w, 0, first, host, MS_FORMAT_BF16, NULL) != MS_OK) abort();
    if (be->weight_fill(be, w, first, rows - first, host + (size_t)first * cols, MS_FORMAT_BF16, NULL) != MS_OK)
        abort();
    free(host);
}

static double *naive_weight(uint32_t rows, uint32_t cols, uint32_t salt) {
    uint16_t *host = weight_values((size_t)rows * cols, salt);
    double *w = malloc((size_t)rows * cols * sizeof *w);
    if (!w) abort();
    for (size_t i = 0; i < (size_t)rows * cols; i++) w[i] = (double)ms_bf16_to_f32(host[i]);
    free(host);
    return w;
}

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double situ(double g, double u, ms_situ a) {
    return (double)a.beta * tanh(g / (double)a.beta) * sigmoid(g) * (double)a.linear_beta *
           tanh(u / (double)a.linear_beta);
}
static double dot(const double *w, const float *x, size_t n) {
    double s = 0;
    for (size_t i = 0; i < n; i++) s += w[i] * (double)x[i];
    return s;
}
static double dot_d(const double *w, const double *x, size_t n) {
    double s = 0;
    for (size_t i = 0; i < n; i++) s += w[i] * x[i];
    return s;
}

static const ms_situ act = {4.0f, 25.0f}, swiglu = {0};
static double gated(double g, double u, ms_situ a) { return a.beta > 0 ? situ(g, u, a) : g * sigmoid(g) * u; }
static const float eps = 1e-5f;

/* ------------------------------------------------------------------ rms_norm: d = {dim} */

static size_t norm_count(const op_case *c) { return (size_t)c->n * c->d[0]; }

static void norm_run(ms_backend *be, const op_case *c, bool singles, float *out) {
    ms_weight w;
    float *x = values(norm_count(c), 1, c->values);
    make_weight(be, &w, c->format, 1, c->d[0], 2);
    for (uint32_t i = 0; i < (singles ? c->n : 1); i++)
        be->rms_norm(be, out + (size_t)i * c->d[0], x + (size_t)i * c->d[0], singles ? 1 : c->n, c->d[0], &w, eps);
    be->weight_destroy(be, &w);
    free(x);
}

static void rms(double *out, const double *x, const double *w, size_t n, double epsilon) {
    double r = 1 / sqrt(dot_d(x, x, n) / (double)n + epsilon);
    for (size_t i = 0; i < n; i++) out[i] = (w ? w[i] : 1) * x[i] * r;
}

static void norm_naive(const op_case *c, double *out) {
    float *x = values(norm_count(c), 1, c->values);
    double *w = naive_weight(1, c->d[0], 2);
    for (size_t i = 0; i < norm_count(c); i++) out[i] = (double)x[i];
    for (size_t i = 0; i < c->n; i++) rms(out + i * c->d[0], out + i * c->d[0], w, c->d[0], (double)eps);
    free(x);
    free(w);
}

/* ------------------------------------------------------------------ mix_norm: d = {dim, blocks}, flag: norm */

static void mix_run(ms_backend *be, const op_case *c, bool singles, float *out) {
    uint32_t dim = c->d[0];
    size_t stride = (size_t)(c->n + 2) * dim;
    float *blocks = values(c->d[1] * stride, 1, c->values), *prefix = values(norm_count(c), 2, c->values);
    ms_weight score, norm;
    make_weight(be, &score, MS_FORMAT_F32, 1, dim, 3);
    make_weight(be, &norm, c->format, 1, dim, 4);
    for (uint32_t i = 0; i < (singles ? c->n : 1); i++) {
        size_t at = (size_t)i * dim;
        ms_mix mix = {blocks + at, stride, c->d[1], prefix + at, &score};
        be->mix_norm(be, out + at, &mix, singles ? 1 : c->n, dim, eps, c->flag ? &norm : NULL);
    }
    be->weight_destroy(be, &score);
    be->weight_destroy(be, &norm);
    free(blocks);
    free(prefix);
}

static void mix_naive(const op_case *c, double *out) {
    size_t dim = c->d[0], stride = (size_t)(c->n + 2) * dim, m = c->d[1];
    float *blocks = values(m * stride, 1, c->values), *prefix = values(norm_count(c), 2, c->values);
    double *score = naive_weight(1, c->d[0], 3), *norm = naive_weight(1, c->d[0], 4), p[64];
    for (size_t i = 0; i < c->n; i++) {
        double l = 0;
        for (size_t s = 0; s <= m; s++) {
            const float *v = s == m ? prefix + i * dim : blocks + s * stride + i * dim;
            double square = 0;
            for (size_t d = 0; d < dim; d++) square += (double)v[d] * (double)v[d];
            p[s] = exp(dot(score, v, dim) / sqrt(square / (double)dim + (double)eps));
            l += p[s];
        }
        for (size_t d = 0; d < dim; d++) {
            double sum = 0;
            for (size_t s = 0; s <= m; s++) {
                const float *v = s == m ? prefix + i * dim : blocks + s * stride + i * dim;
                sum += p[s] / l * (double)v[d];
            }
            out[i * dim + d] = sum;
        }
        if (c->flag) rms(out + i * dim, out + i * dim, norm, dim, (double)eps);
    }
    free(blocks);
    free(prefix);
    free(score);
    free(norm);
}

/* ------------------------------------------------------------------ project: d = {cols, rows, rows of a second
 * product} flag: exact input.  The second product is BF16 and has one spare column in its output. */

static size_t project_count(const op_case *c) { return (size_t)c->n * (c->d[1] + c->d[2] + 1); }

static void project_run(ms_backend *be, const op_case *c, bool singles, float *out) {
    uint32_t cols = c->d[0], stride = c->d[2] + 1;
    float *x = values((size_t)c->n * cols, 1, c->values), *second = out + (size_t)c->n * c->d[1];
    ms_weight a, b;
    make_weight(be, &a, c->format, c->d[1], cols, 2);
    make_weight(be, &b, MS_FORMAT_BF16, c->d[2], cols, 3);
    for (size_t i = 0; i < c->n; i++) second[i * stride + c->d[2]] = 5.0f;
    for (uint32_t i = 0; i < (singles ? c->n : 1); i++) {
        ms_product p[2] = {{&a, out + (size_t)i * c->d[1], c->d[1], c->flag},
                           {&b, second + (size_t)i * stride, stride, false}};
        be->project(be, x + (size_t)i * cols, singles ? 1 : c->n, p, 2);
    }
    be->weight_destroy(be, &a);
    be->weight_destroy(be, &b);
    free(x);
}

static void project_naive(const op_case *c, double *out) {
    size_t cols = c->d[0], stride = c->d[2] + 1;
    float *x = values((size_t)c->n * cols, 1, c->values);
    double *a = naive_weight(c->d[1], c->d[0], 2), *b = naive_weight(c->d[2], c->d[0], 3);
    double *second = out + (size_t)c->n * c->d[1];
    for (size_t i = 0; i < c->n; i++) {
        for (size_t r = 0; r < c->d[1]; r++) out[i * c->d[1] + r] = dot(a + r * cols, x + i * cols, cols);
        for (size_t r = 0; r < c->d[2]; r++) second[i * stride + r] = dot(b + r * cols, x + i * cols, cols);
        second[i * stride + c->d[2]] = 5;
    }
    free(x);
    free(a);
    free(b);
}

/* ------------------------------------------------------------------ project, weights of FP8 records: d = {cols, rows,
 * rows of the others}.  Three products: one of the case's format, a BF16 one, and an FP8 one kept as it is. */

/* Records of random codes, none of them NaN; decoded: what they mean. */
static uint8_t *fp8_records(uint32_t rows, uint32_t cols, uint32_t salt, double *decoded) {
    size_t record = ms_fp8_record_bytes(cols), groups = ms_q8_groups(cols);
    uint8_t *out = malloc(rows * record);
    float *scales = values(rows * groups, salt, VALUES_NORMAL);
    uint64_t state = salt;
    if (!out) abort();
    for (size_t r = 0; r < rows; r++) {
        memcpy(out + r * record, scales + r * groups, groups * sizeof *scales);
        for (size_t c = 0; c < cols; c++) {
            uint8_t code = (uint8_t)(next_random(&state) >> 8);
            if ((code & 0x7F) == 0x7F) code = (uint8_t)c % 8; /* more subnormal ones */
            out[r * record + groups * sizeof *scales + c] = code;
            if (decoded) decoded[r * cols + c] = (double)(ms_e4m3(code) * scales[r * groups + c / 128]);
        }
    }
    free(scales);
    return out;
}

static void make_fp8_weight(ms_backend *be, ms_weight *w, ms_format format, uint32_t rows, uint32_t cols,
                            uint32_t salt) {
    uint8_t *records = fp8_records(rows, cols, salt, NULL);
    uint32_t first = rows > 3 ? 3 : rows;
    if (be->weight_create(be, w, format, rows, cols, NULL) != MS_OK) abort();
    if (be->weight_fill(be, w, 0, first, records, MS_FORMAT_FP8, NULL) != MS_OK) abort();
    if (be->weight_fill(be, w, first, rows - first, records + first * ms_fp8_record_bytes(cols), MS_FORMAT_FP8,
                        NULL) != MS_OK)
        abort();
    free(records);
}

static size_t fp8_count(const op_case *c) { return (size_t)c->n * (c->d[1] + 2 * c->d[2]); }

static void fp8_run(ms_backend *be, const op_case *c, bool singles, float *out) {
    uint32_t cols = c->d[0];
    float *x = values((size_t)c->n * cols, 1, c->values), *second = out + (size_t)c->n * c->d[1];
    float *third = second + (size_t)c->n * c->d[2];
    ms_weight w[3];
    make_fp8_weight(be, &w[0], c->format, c->d[1], cols, 2);
    make_weight(be, &w[1], MS_FORMAT_BF16, c->d[2], cols, 3);
    make_fp8_weight(be, &w[2], MS_FORMAT_FP8, c->d[2], cols, 4);
    for (uint32_t i = 0; i < (singles ? c->n : 1); i++) {
        ms_product p[3] = {{&w[0], out + (size_t)i * c->d[1], c->d[1], c->flag},
                           {&w[1], second + (size_t)i * c->d[2], c->d[2], false},
                           {&w[2], third + (size_t)i * c->d[2], c->d[2], false}};
        be->project(be, x + (size_t)i * cols, singles ? 1 : c->n, p, 3);
    }
    for (int i = 0; i < 3; i++) be->weight_destroy(be, &w[i]);
    free(x);
}

static void fp8_naive(const op_case *c, double *out) {
    size_t cols = c->d[0];
    float *x = values((size_t)c->n * cols, 1, c->values);
    double *second = out + (size_t)c->n * c->d[1], *third = second + (size_t)c->n * c->d[2];
    double *a = malloc(c->d[1] * cols * sizeof *a), *b = naive_weight(c->d[2], c->d[0], 3);
    double *d = malloc(c->d[2] * cols * sizeof *d);
    if (!a || !d) abort();
    free(fp8_records(c->d[1], c->d[0], 2, a));
    free(fp8_records(c->d[2], c->d[0], 4, d));
    for (size_t i = 0; i < c->n; i++) {
        for (size_t r = 0; r < c->d[1]; r++) out[i * c->d[1] + r] = dot(a + r * cols, x + i * cols, cols);
        for (size_t r = 0; r < c->d[2]; r++) second[i * c->d[2] + r] = dot(b + r * cols, x + i * cols, cols);
        for (size_t r = 0; r < c->d[2]; r++) third[i * c->d[2] + r] = dot(d + r * cols, x + i * cols, cols);
    }
    free(x);
    free(a);
    free(b);
    free(d);
}

/* ------------------------------------------------------------------ mlp: d = {cols, width, out, 1 for SwiGLU} */

static size_t mlp_count(const op_case *c) { return (size_t)c->n * c->d[2]; }

static void mlp_run(ms_backend *be, const op_case *c, bool singles, float *out) {
    float *x = values((size_t)c->n * c->d[0], 1, c->values);
    ms_weight gate, up, down;
    make_weight(be, &gate, c->format, c->d[1], c->d[0], 2);
    make_weight(be, &up, c->flag ? MS_FORMAT_BF16 : c->format, c->d[1], c->d[0], 3);
    make_weight(be, &down, c->format, c->d[2], c->d[1], 4);
    for (uint32_t i = 0; i < (singles ? c->n : 1); i++)
        be->mlp(be, out + (size_t)i * c->d[2], x + (size_t)i * c->d[0], singles ? 1 : c->n, &gate, &up, &down,
                c->d[3] ? swiglu : act);
    be->weight_destroy(be, &gate);
    be->weight_destroy(be, &up);
    be->weight_destroy(be, &down);
    free(x);
}

static void mlp_naive(const op_case *c, double *out) {
    size_t cols = c->d[0], width = c->d[1];
    float *x = values((size_t)c->n * cols, 1, c->values);
    double *gate = naive_weight(c->d[1], c->d[0], 2), *up = naive_weight(c->d[1], c->d[0], 3);
    double *down = naive_weight(c->d[2], c->d[1], 4), *inner = malloc(width * sizeof *inner);
    if (!inner) abort();
    for (size_t i = 0; i < c->n; i++) {
        for (size_t r = 0; r < width; r++)
            inner[r] = gated(dot(gate + r * cols, x + i * cols, cols), dot(up + r * cols, x + i * cols, cols),
                             c->d[3] ? swiglu : act);
        for (size_t r = 0; r < c->d[2]; r++) out[i * c->d[2] + r] = dot_d(down + r * width, inner, width);
    }
    free(x);
    free(gate);
    free(up);
    free(down);
    free(inner);
}

/* ------------------------------------------------------------------ kda_range: d = {heads, dim, taps}, flag: a product
 * with an exact input makes the decay inputs, which a device may put together.  Results: out, state, history, and what
 * the product made. */

static size_t kda_state(const op_case *c) { return (size_t)c->d[0] * c->d[1] * c->d[1]; }
static size_t kda_inner(const op_case *c) { return (size_t)c->d[0] * c->d[1]; }
static size_t kda_past(const op_case *c) { return 3 * (size_t)(c->d[2] - 1) * kda_inner(c); }
static size_t kda_made(const op_case *c) { return c->flag ? c->n * kda_inner(c) : 0; }
static size_t kda_count(const op_case *c) { return c->n * kda_inner(c) + kda_state(c) + kda_past(c) + kda_made(c); }

/* Waits: what a device has not yet computed must not be read. */
static void copy_state(ms_backend *be, float *out, const void *stored, size_t count, ms_precision p) {
    float *host = values(count, 0, VALUES_ZERO);
    be->download(be, host, stored, count * (p == MS_PRECISION_FAST ? 2 : 4));
    for (size_t i = 0; i < count; i++)
        out[i] = p == MS_PRECISION_FAST ? ms_bf16_to_f32(((const uint16_t *)(void *)host)[i]) : host[i];
    free(host);
}

static void *stored_values(size_t count, uint32_t salt, ms_precision p) {
    float *x = values(count, salt, VALUES_NORMAL);
    /* bf16 values in both precisions, so that both start from the same state */
    for (size_t i = 0; i < count; i++) x[i] = ms_bf16_to_f32(ms_bf16_from_f32(x[i]));
    if (p == MS_PRECISION_FAST)
        for (size_t i = 0; i < count; i++) ((uint16_t *)(void *)x)[i] = ms_bf16_from_f32(x[i]);
    return x;
}

static void kda_run(ms_backend *be, const op_case *c, bool singles, float *out) {
    size_t inner = kda_inner(c), heads = c->d[0], n = c->n;
    float *in[5], *b = values(n * heads, 15, c->values);
    for (uint32_t i = 0; i < 5; i++) in[i] = values(n * inner, 10 + i, c->values);
    float *state[2] = {values(kda_state(c), 16, VALUES_NORMAL), values(kda_state(c), 17, VALUES_LARGE)};
    void *past[2] = {stored_values(kda_past(c), 18, be->precision), stored_values(kda_past(c), 19, be->precision)};
    float *x = values(n * c->d[1], 26, c->values);
    ms_weight w[6], decay;
    for (uint32_t i = 0; i < 3; i++) make_weight(be, &w[i], MS_FORMAT_F32, (uint32_t)inner, c->d[2], 20 + i);
    make_weight(be, &w[3], MS_FORMAT_F32, 1, c->d[0] + 2, 23);
    make_weight(be, &w[4], MS_FORMAT_F32, 1, (uint32_t)inner, 24);
    make_weight(be, &w[5], MS_FORMAT_F32, 1, c->d[1], 25);
    ms_kda kda = {c->d[0], c->d[1], c->d[2], -5.0f, eps, {&w[0], &w[1], &w[2]}, &w[3], &w[4], &w[5]};
    if (c->flag) make_weight(be, &decay, c->format, (uint32_t)inner, c->d[1], 27);
    uint32_t calls = singles ? c->n : 1;
    for (size_t i = 0; i < calls; i++) {
        ms_product p = {&decay, in[3] + i * inner, inner, true};
        if (c->flag) be->project(be, x + i * c->d[1], singles ? 1 : c->n, &p, 1);
        ms_kda_io io = {in[0] + i * inner, in[1] + i * inner, in[2] + i * inner, in[3] + i * inner,
                        b + i * heads,     in[4] + i * inner, state[i % 2],      state[1 - i % 2],
                        past[i % 2],       past[1 - i % 2],   out + i * inner};
        be->kda_range(be, &kda, &io, singles ? 1 : c->n);
    }
    copy_state(be, out + n * inner, state[calls % 2], kda_state(c), MS_PRECISION_REFERENCE);
    copy_state(be, out + n * inner + kda_state(c), past[calls % 2], kda_past(c), be->precision);
    if (c->flag) {
        copy_state(be, out + kda_count(c) - kda_made(c), in[3], kda_made(c), MS_PRECISION_REFERENCE);
        be->weight_destroy(be, &decay);
    }
    free(x);
    for (int i = 0; i < 6; i++) be->weight_destroy(be, &w[i]);
    for (int i = 0; i < 5; i++) free(in[i]);
    for (int i = 0; i < 2; i++) {
        free(state[i]);
        free(past[i]);
    }
    free(b);
}

/* One token of one head; z[s] holds the convolution outputs. */
static void kda_token(double *s, double *out, double z[3][128], const double *alpha, double beta, const double *norm,
                      const float *g, size_t dim) {
    double q2 = 1e-6, k2 = 1e-6, o[128];
    for (size_t d = 0; d < dim; d++) {
        q2 += z[0][d] * z[0][d];
        k2 += z[1][d] * z[1][d];
    }
    for (size_t d = 0; d < dim; d++) {
        z[0][d] /= sqrt(q2) * sqrt((double)dim);
        z[1][d] /= sqrt(k2);
    }
    for (size_t j = 0; j < dim; j++) {
        double p = 0;
        for (size_t i = 0; i < dim; i++) p += z[1][i] * (s[i * dim + j] *= alpha[i]);
        o[j] = 0;
        for (size_t i = 0; i < dim; i++) {
            s[i * dim + j] += z[1][i] * beta * (z[2][j] - p);
            o[j] += z[0][i] * s[i * dim + j];
        }
    }
    rms(o, o, norm, dim, (double)eps);
    for (size_t d = 0; d < dim; d++) out[d] = o[d] * sigmoid((double)g[d]);
}

static void kda_naive(const op_case *c, double *out) {
    size_t inner = kda_inner(c), heads = c->d[0], dim = c->d[1], taps = c->d[2], n = c->n, past = taps - 1;
    float *in[5], *b = values(n * heads, 15, c->values), *state = values(kda_state(c), 16, VALUES_NORMAL);
    for (uint32_t i = 0; i < 5; i++) in[i] = values(n * inner, 10 + i, c->values);
    float *history = stored_values(kda_past(c), 18, MS_PRECISION_REFERENCE);
    double *w[6], *s_out = out + n * inner, *h_out = s_out + kda_state(c);
    for (uint32_t i = 0; i < 3; i++) w[i] = naive_weight((uint32_t)inner, c->d[2], 20 + i);
    w[3] = naive_weight(1, c->d[0] + 2, 23);
    w[4] = naive_weight(1, (uint32_t)inner, 24);
    w[5] = naive_weight(1, c->d[1], 25);
    if (c->flag) {
        float *x = values(n * dim, 26, c->values);
        double *decay = naive_weight((uint32_t)inner, c->d[1], 27), *made = out + kda_count(c) - kda_made(c);
        for (size_t i = 0; i < n * inner; i++) {
            made[i] = 0;
            for (size_t d = 0; d < dim; d++) made[i] += decay[i % inner * dim + d] * (double)x[i / inner * dim + d];
            in[3][i] = (float)made[i];
        }
        free(x);
        free(decay);
    }
    for (size_t i = 0; i < kda_state(c); i++) s_out[i] = (double)state[i];
    for (size_t t = 0; t < n; t++) {
        for (size_t h = 0; h < heads; h++) {
            double z[3][128], alpha[128];
            for (size_t d = 0; d < dim; d++) {
                size_t at = h * dim + d;
                for (size_t s = 0; s < 3; s++) {
                    double y = 0;
                    for (size_t tap = 0; tap < taps; tap++) {
                        size_t from = t + tap; /* counted from the oldest history row */
                        y += w[s][at * taps + tap] * (double)(from < past ? history[(s * past + from) * inner + at]
                                                                          : in[s][(from - past) * inner + at]);
                    }
                    z[s][d] = y * sigmoid(y);
                }
                alpha[d] = exp(-5 * sigmoid(exp(w[3][h]) * ((double)in[3][t * inner + at] + w[4][at])));
            }
            kda_token(s_out + h * dim * dim, out + t * inner + h * dim, z, alpha, sigmoid((double)b[t * heads + h]),
                      w[5], in[4] + t * inner + h * dim, dim);
        }
    }
    for (size_t s = 0; s < 3; s++)
        for (size_t r = 0; r < past; r++)
            for (size_t at = 0; at < inner; at++)
                h_out[(s * past + r) * inner + at] = (double)(r + n < past ? history[(s * past + r + n) * inner + at]
                                                                           : in[s][(r + n - past) * inner + at]);
    for (int i = 0; i < 6; i++) free(w[i]);
    for (int i = 0; i < 5; i++) free(in[i]);
    free(b);
    free(state);
    free(history);
}

/* ------------------------------------------------------------------ mla_range: d = {heads, nope, extra, value, rank,
 * position} Results: out, new rows. */

static size_t mla_width(const op_case *c) { return (size_t)c->d[4] + c->d[2]; }
static size_t mla_count(const op_case *c) { return (size_t)c->n * ((size_t)c->d[0] * c->d[3] + mla_width(c)); }

static void mla_run(ms_backend *be, const op_case *c, bool singles, float *out) {
    size_t n = c->n, q_dim = (size_t)c->d[0] * (c->d[1] + c->d[2]), v_dim = (size_t)c->d[0] * c->d[3];
    size_t width = mla_width(c), element = ms_state_element_bytes(be->precision), position = c->d[5];
    float *q = values(n * q_dim, 1, c->values), *latent = values(n * width, 2, c->values);
    float *gate = values(n * v_dim, 3, c->values);
    uint8_t *rows = stored_values((position + n) * width, 4, be->precision);
    ms_weight norm, kv_b;
    make_weight(be, &norm, c->format, 1, c->d[4], 5);
    make_weight(be, &kv_b, MS_FORMAT_BF16, c->d[0] * (c->d[1] + c->d[3]), c->d[4], 6);
    ms_mla mla = {c->d[0], c->d[1], c->d[2], c->d[3], c->d[4], 1e-6f, 1.0f / sqrtf((float)(c->d[1] + c->d[2])),
                  &norm,   &kv_b};
    for (size_t i = 0; i < (singles ? n : 1); i++) {
        ms_mla_io io = {q + i * q_dim, latent + i * width, gate + i * v_dim, rows, position + i, out + i * v_dim};
        be->mla_range(be, &mla, &io, singles ? 1 : c->n);
    }
    copy_state(be, out + n * v_dim, rows + position * width * element, n * width, be->precision);
    be->weight_destroy(be, &norm);
    be->weight_destroy(be, &kv_b);
    free(q);
    free(latent);
    free(gate);
    free(rows);
}

/* One head of one row against `keys` expanded keys and values. */
static void mla_head(double *out, const float *q, const float *gate, const double *rows, size_t keys, const double *wk,
                     const op_case *c) {
    size_t nope = c->d[1], extra = c->d[2], value = c->d[3], rank = c->d[4], width = rank + extra;
    double l = 0, *p = malloc(keys * sizeof *p);
    if (!p) abort();
    for (size_t j = 0; j < value; j++) out[j] = 0;
    for (size_t t = 0; t < keys; t++) {
        double s = 0;
        for (size_t d = 0; d < nope; d++) s += (double)q[d] * dot_d(wk + d * rank, rows + t * width, rank);
        for (size_t d = 0; d < extra; d++) s += (double)q[nope + d] * rows[t * width + rank + d];
        p[t] = exp(s / sqrt((double)(nope + extra)));
        l += p[t];
    }
    for (size_t t = 0; t < keys; t++)
        for (size_t j = 0; j < value; j++)
            out[j] += p[t] / l * dot_d(wk + (nope + j) * rank, rows + t * width, rank) * sigmoid((double)gate[j]);
    free(p);
}

static void mla_naive(const op_case *c, double *out) {
    size_t n = c->n, heads = c->d[0], per_q = c->d[1] + c->d[2], value = c->d[3], rank = c->d[4], position = c->d[5];
    size_t width = mla_width(c), keys = position + n;
    float *q = values(n * heads * per_q, 1, c->values), *latent = values(n * width, 2, c->values);
    float *gate = values(n * heads * value, 3, c->values);
    float *old = stored_values(keys * width, 4, MS_PRECISION_REFERENCE);
    double *norm = naive_weight(1, c->d[4], 5), *kv = naive_weight(c->d[0] * (c->d[1] + c->d[3]), c->d[4], 6);
    double *rows = malloc(keys * width * sizeof *rows);
    if (!rows) abort();
    for (size_t i = 0; i < position * width; i++) rows[i] = (double)old[i];
    for (size_t i = 0; i < n * width; i++) rows[position * width + i] = (double)latent[i];
    for (size_t i = 0; i < n; i++) {
        double *row = rows + (position + i) * width;
        rms(row, row, norm, rank, 1e-6);
        for (size_t d = 0; d < width; d++) out[n * heads * value + i * width + d] = row[d];
    }
    for (size_t i = 0; i < n; i++)
        for (size_t h = 0; h < heads; h++)
            mla_head(out + (i * heads + h) * value, q + (i * heads + h) * per_q, gate + (i * heads + h) * value, rows,
                     position + i + 1, kv + h * (c->d[1] + value) * rank, c);
    free(q);
    free(latent);
    free(gate);
    free(old);
    free(norm);
    free(kv);
    free(rows);
}

/* ------------------------------------------------------------------ gqa_range: d = {heads, key heads, key, value, window,
 * position}, flag: sinks; format F32: all of a head is rotated, else a third.  Rows are a ring where there is a window.
 * Results: out, new rows. */

static uint32_t gqa_rotary(const op_case *c) {
    return c->format == MS_FORMAT_F32 ? c->d[2] / 2 * 2 : c->d[2] / 6 * 2;
}
static uint64_t gqa_ring(const op_case *c) {
    return c->d[4] ? ms_align_up((uint64_t)c->d[4] - 1 + c->n, MS_GQA_BLOCK) : 0;
}
static size_t gqa_width(const op_case *c) { return (size_t)c->d[1] * (c->d[2] + c->d[3]); }
static size_t gqa_stored(const op_case *c) { return gqa_ring(c) ? (size_t)gqa_ring(c) : (size_t)c->d[5] + c->n; }
static size_t gqa_row(const op_case *c, size_t position) {
    return (gqa_ring(c) ? position % (size_t)gqa_ring(c) : position) * gqa_width(c);
}
static size_t gqa_count(const op_case *c) { return (size_t)c->n * ((size_t)c->d[0] * c->d[3] + gqa_width(c)); }

/* Cosines and sines of the rows of a case. */
static float *gqa_angles(const op_case *c) {
    float frequencies[96], *rope = values((size_t)c->n * gqa_rotary(c), 0, VALUES_ZERO);
    ms_rope_frequencies(frequencies, 1e4, gqa_rotary(c));
    ms_rope_rows(rope, frequencies, gqa_rotary(c), c->d[5], c->n);
    return rope;
}

static void gqa_run(ms_backend *be, const op_case *c, bool singles, float *out) {
    size_t n = c->n, q_dim = (size_t)c->d[0] * c->d[2], k_dim = (size_t)c->d[1] * c->d[2];
    size_t v_dim = (size_t)c->d[1] * c->d[3], out_dim = (size_t)c->d[0] * c->d[3], width = gqa_width(c);
    float *q = values(n * q_dim, 1, c->values), *k = values(n * k_dim, 2, c->values);
    float *v = values(n * v_dim, 3, c->values), *rope = gqa_angles(c);
    uint8_t *rows = stored_values(gqa_stored(c) * width, 4, be->precision);
    ms_weight sink;
    make_weight(be, &sink, MS_FORMAT_F32, 1, c->d[0], 5);
    ms_gqa gqa = {c->d[0], c->d[1], c->d[2], c->d[3], gqa_rotary(c), c->d[4], 1.0f / sqrtf((float)c->d[2]),
                  0.707f,  c->flag ? &sink : NULL};
    for (size_t i = 0; i < (singles ? n : 1); i++) {
        ms_gqa_io io = {q + i * q_dim, k + i * k_dim, v + i * v_dim, rope + i * gqa_rotary(c), rows, gqa_ring(c),
                        c->d[5] + i,   out + i * out_dim};
        be->gqa_range(be, &gqa, &io, singles ? 1 : c->n);
    }
    for (size_t i = 0; i < n; i++)
        copy_state(be, out + n * out_dim + i * width,
                   rows + gqa_row(c, c->d[5] + i) * ms_state_element_bytes(be->precision), width, be->precision);
    be->weight_destroy(be, &sink);
    free(q);
    free(k);
    free(v);
    free(rope);
    free(rows);
}

/* The angles are the operation's input: rounded as they are. */
static void gqa_rotate(double *x, const float *rope, size_t rotary) {
    for (size_t j = 0; j < rotary / 2; j++) {
        double a = x[j], b = x[j + rotary / 2], cosine = (double)rope[j], sine = (double)rope[rotary / 2 + j];
        x[j] = a * cosine - b * sine;
        x[j + rotary / 2] = b * cosine + a * sine;
    }
}

/* One head of row i against the rows of its window. */
static void gqa_head(double *out, const op_case *c, const double *q, const double *rows, size_t i, size_t kv,
                     const double *sink) {
    size_t key = c->d[2], value = c->d[3], end = c->d[5] + i + 1, window = c->d[4];
    double l = sink ? exp(*sink) : 0;
    for (size_t j = 0; j < value; j++) out[j] = 0;
    for (size_t p = window && end > window ? end - window : 0; p < end; p++) {
        const double *row = rows + gqa_row(c, p);
        double e = exp(dot_d(q, row + kv * key, key) / sqrt((double)key));
        l += e;
        for (size_t j = 0; j < value; j++) out[j] += e * row[c->d[1] * key + kv * value + j];
    }
    for (size_t j = 0; j < value; j++) out[j] /= l;
}

static void gqa_naive(const op_case *c, double *out) {
    size_t n = c->n, heads = c->d[0], kvs = c->d[1], key = c->d[2], value = c->d[3], width = gqa_width(c), at = 0;
    float *q = values(n * heads * key, 1, c->values), *k = values(n * kvs * key, 2, c->values);
    float *v = values(n * kvs * value, 3, c->values), *rope = gqa_angles(c);
    float *old = stored_values(gqa_stored(c) * width, 4, MS_PRECISION_REFERENCE);
    double *sink = naive_weight(1, c->d[0], 5), *rows = malloc(gqa_stored(c) * width * sizeof *rows), head[192];
    if (!rows) abort();
    for (size_t i = 0; i < gqa_stored(c) * width; i++) rows[i] = (double)old[i];
    for (size_t i = 0; i < n; i++) {
        double *row = rows + gqa_row(c, c->d[5] + i);
        for (size_t d = 0; d < kvs * key; d++) row[d] = (double)k[i * kvs * key + d];
        for (size_t h = 0; h < kvs; h++) gqa_rotate(row + h * key, rope + i * gqa_rotary(c), gqa_rotary(c));
        for (size_t d = 0; d < kvs * value; d++) row[kvs * key + d] = 0.707 * (double)v[i * kvs * value + d];
        for (size_t d = 0; d < width; d++) out[n * heads * value + i * width + d] = row[d];
        for (size_t h = 0; h < heads; h++, at += value) {
            for (size_t d = 0; d < key; d++) head[d] = (double)q[(i * heads + h) * key + d];
            gqa_rotate(head, rope + i * gqa_rotary(c), gqa_rotary(c));
            gqa_head(out + at, c, head, rows, i, h / (heads / kvs), c->flag ? &sink[h] : NULL);
        }
    }
    free(q);
    free(k);
    free(v);
    free(rope);
    free(old);
    free(sink);
    free(rows);
}

/* ------------------------------------------------------------------ router_topk: d = {dim, experts, k}, flag:
 * renormalize Results: ids, then weights. */

static size_t router_count(const op_case *c) { return 2 * (size_t)c->n * c->d[2]; }

static void router_run(ms_backend *be, const op_case *c, bool singles, float *out) {
    size_t n = c->n, dim = c->d[0], k = c->d[2];
    float *x = values(n * dim, 1, c->values);
    uint32_t *ids = malloc(n * k * sizeof *ids);
    if (!ids) abort();
    ms_weight gate, bias;
    make_weight(be, &gate, c->format, c->d[1], c->d[0], 2);
    make_weight(be, &bias, MS_FORMAT_F32, 1, c->d[1], 3);
    ms_router r = {&gate, &bias, c->d[2], c->flag, 1.5f};
    for (size_t i = 0; i < (singles ? n : 1); i++)
        be->router_topk(be, ids + i * k, out + (n + i) * k, x + i * dim, singles ? 1 : c->n, &r);
    uint32_t *host = malloc(n * k * sizeof *host);
    if (!host) abort();
    be->download(be, host, ids, n * k * sizeof *host);
    for (size_t i = 0; i < n * k; i++) out[i] = (float)host[i];
    free(host);
    be->weight_destroy(be, &gate);
    be->weight_destroy(be, &bias);
    free(x);
    free(ids);
}

static void router_naive(const op_case *c, double *out) {
    size_t n = c->n, dim = c->d[0], experts = c->d[1], k = c->d[2];
    float *x = values(n * dim, 1, c->values);
    double *gate = naive_weight(c->d[1], c->d[0], 2), *bias = naive_weight(1, c->d[1], 3), score[128], sum;
    for (size_t i = 0; i < n; i++) {
        for (size_t e = 0; e < experts; e++) score[e] = sigmoid(dot(gate + e * dim, x + i * dim, dim));
        size_t at = 0;
        sum = 0;
        for (size_t e = 0; e < experts; e++) {
            size_t better = 0;
            for (size_t f = 0; f < experts; f++) {
                double a = score[f] + bias[f], b = score[e] + bias[e];
                better += a > b || (!(a < b) && f < e);
            }
            if (better >= k) continue;
            out[i * k + at] = (double)e;
            out[(n + i) * k + at++] = score[e] * 1.5;
            sum += score[e];
        }
        for (size_t j = 0; c->flag && j < k; j++) out[(n + i) * k + j] /= sum;
    }
    free(x);
    free(gate);
    free(bias);
}

/* ------------------------------------------------------------------ experts: d = {hidden, inner, experts, k}
 * begin, run, reduce_norm; row i uses experts (i + 2 j) % experts.  flag: SwiGLU, w2 stored first, and the bare sum. */

static ms_expert_shape shape_of(const op_case *c) {
    return (ms_expert_shape){
        .hidden = c->d[0], .inner = c->d[1], .order = c->flag ? MS_ORDER_W2_W1_W3 : (ms_expert_order)0};
}

static size_t experts_count(const op_case *c) { return (size_t)c->n * c->d[0]; }

static uint8_t *expert_source(const op_case *c, uint32_t e) {
    ms_expert_shape s = shape_of(c);
    size_t bytes = ms_expert_bytes(s), groups = (size_t)s.hidden * s.inner / 32;
    uint8_t *source = malloc(bytes);
    if (!source) abort();
    uint64_t state = e + 77;
    for (size_t i = 0; i < bytes; i++) {
        source[i] = (uint8_t)(next_random(&state) >> 8);
        if (i % (groups * 17) < groups * 16) continue;
        /* mostly the scales of real experts, and the two that are subnormal when halved */
        source[i] = (uint8_t)(source[i] % 16 == 0 ? i % 3 : 117u + source[i] % 5);
    }
    return source;
}

static void experts_run(ms_backend *be, const op_case *c, bool singles, float *out) {
    ms_expert_shape s = shape_of(c);
    uint32_t experts = c->d[2], k = c->d[3], rows[128], pairs[128];
    size_t hidden = s.hidden, n = c->n;
    float *z = values(n * hidden, 1, c->values), *y = values(n * k * hidden, 2, VALUES_LARGE);
    float *weights = values(n * k, 3, VALUES_NORMAL);
    void *slots[8];
    ms_weight norm;
    make_weight(be, &norm, c->format, 1, s.hidden, 4);
    for (uint32_t e = 0; e < experts; e++) {
        uint8_t *source = expert_source(c, e);
        if (be->alloc(be, MS_MEM_DEVICE, ms_expert_bytes(s), "slot", &slots[e], NULL) != MS_OK) abort();
        if (be->install(be, slots[e], source, s, NULL) != MS_OK) abort();
        free(source);
    }
    for (size_t first = 0; first < n; first += singles ? 1 : n) {
        uint32_t count = singles ? 1 : c->n;
        be->experts_begin(be, z + first * hidden, count, s);
        for (uint32_t e = experts; e-- > 0;) { /* arrival order must not matter */
            ms_expert_batch batch = {slots[e], rows, pairs, 0};
            for (uint32_t i = 0; i < count; i++) {
                for (uint32_t j = 0; j < k; j++) {
                    if ((first + i + 2 * j) % experts != e) continue;
                    rows[batch.count] = i;
                    pairs[batch.count++] = i * k + j;
                }
            }
            be->experts_run(be, y + first * k * hidden, s, c->flag ? swiglu : act, &batch, 1);
        }
        be->experts_reduce_norm(be, out + first * hidden, y + first * k * hidden, weights + first * k, count, k,
                                s.hidden, c->flag ? NULL : &norm, eps);
    }
    for (uint32_t e = 0; e < experts; e++) be->release(be, MS_MEM_DEVICE, slots[e], ms_expert_bytes(s));
    be->weight_destroy(be, &norm);
    free(z);
    free(y);
    free(weights);
}

/* Element (r, col) of matrix 0 w1, 1 w2, 2 w3 of an expert's source bytes. */
static double source_element(const uint8_t *source, const op_case *c, size_t matrix, size_t r, size_t col) {
    static const double e2m1[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    size_t elements = (size_t)c->d[0] * c->d[1], cols = matrix == 1 ? c->d[1] : c->d[0];
    static const size_t w2_first[3] = {1, 0, 2};
    const uint8_t *packed = source + (c->flag ? w2_first[matrix] : matrix) * (elements / 32 * 17), *scales = packed + elements / 2;
    uint8_t byte = packed[(r * cols + col) / 2], code = col % 2 ? byte >> 4 : byte & 15;
    return ldexp(code & 8 ? -e2m1[code & 7] : e2m1[code & 7], scales[(r * cols + col) / 32] - 127);
}

static void experts_naive(const op_case *c, double *out) {
    size_t hidden = c->d[0], inner = c->d[1], experts = c->d[2], k = c->d[3], n = c->n;
    float *z = values(n * hidden, 1, c->values), *weights = values(n * k, 3, VALUES_NORMAL);
    double *norm = naive_weight(1, c->d[0], 4), *a = malloc(inner * sizeof *a);
    if (!a) abort();
    for (size_t i = 0; i < n * hidden; i++) out[i] = 0;
    for (uint32_t e = 0; e < experts; e++) {
        uint8_t *source = expert_source(c, e);
        for (size_t i = 0; i < n * k; i++) {
            if ((i / k + 2 * (i % k)) % experts != e) continue;
            for (size_t r = 0; r < inner; r++) {
                double g = 0, u = 0;
                for (size_t d = 0; d < hidden; d++) {
                    g += source_element(source, c, 0, r, d) * (double)z[i / k * hidden + d];
                    u += source_element(source, c, 2, r, d) * (double)z[i / k * hidden + d];
                }
                a[r] = gated(g, u, c->flag ? swiglu : act);
            }
            for (size_t d = 0; d < hidden; d++) {
                double y = 0;
                for (size_t r = 0; r < inner; r++) y += source_element(source, c, 1, d, r) * a[r];
                out[i / k * hidden + d] += (double)weights[i] * y;
            }
        }
        free(source);
    }
    for (size_t i = 0; i < n && !c->flag; i++) rms(out + i * hidden, out + i * hidden, norm, hidden, (double)eps);
    free(z);
    free(weights);
    free(norm);
    free(a);
}

/* ------------------------------------------------------------------ add: d = {count of a row} */

static void add_run(ms_backend *be, const op_case *c, bool singles, float *out) {
    size_t dim = c->d[0];
    float *a = values(norm_count(c), 1, c->values), *b = values(norm_count(c), 2, c->values);
    for (size_t i = 0; i < (singles ? c->n : 1); i++)
        be->add(be, b + i * dim, a + i * dim, b + i * dim, singles ? dim : norm_count(c));
    be->download(be, out, b, norm_count(c) * sizeof *out);
    free(a);
    free(b);
}

static void add_naive(const op_case *c, double *out) {
    float *a = values(norm_count(c), 1, c->values), *b = values(norm_count(c), 2, c->values);
    for (size_t i = 0; i < norm_count(c); i++) out[i] = (double)a[i] + (double)b[i];
    free(a);
    free(b);
}

/* ------------------------------------------------------------------ the table */

#define NORM(n, dim, fmt, kind)                                                                                        \
    { "rms_norm", norm_run, norm_naive, norm_count, n, {dim}, fmt, false, 1e-5, kind }
#define MIX(n, dim, blocks, norm, kind)                                                                                \
    { "mix_norm", mix_run, mix_naive, norm_count, n, {dim, blocks}, MS_FORMAT_BF16, norm, 1e-5, kind }
#define PROJECT(n, cols, rows, more, fmt, exact, kind)                                                                 \
    { "project", project_run, project_naive, project_count, n, {cols, rows, more}, fmt, exact, 0.03, kind }
#define MLP(n, cols, width, rows, fmt, mixed, kind)                                                                    \
    { "mlp", mlp_run, mlp_naive, mlp_count, n, {cols, width, rows}, fmt, mixed, 0.05, kind }
#define KDA(n, heads, dim, taps, kind)                                                                                 \
    { "kda_range", kda_run, kda_naive, kda_count, n, {heads, dim, taps}, MS_FORMAT_F32, false, 0.01, kind }
#define DECAY(n, heads, dim, taps, fmt, kind)                                                                          \
    { "kda_range", kda_run, kda_naive, kda_count, n, {heads, dim, taps}, fmt, true, 0.03, kind }
#define MLA(n, heads, nope, extra, value, rank, position, fmt, kind)                                                   \
    {                                                                                                                  \
        "mla_range", mla_run, mla_naive, mla_count, n, {heads, nope, extra, value, rank, position}, fmt, false, 0.02,  \
            kind                                                                                                       \
    }
#define GQA(n, heads, kv_heads, key, value, window, position, fmt, sinks, kind)                                        \
    {                                                                                                                  \
        "gqa_range", gqa_run, gqa_naive, gqa_count, n, {heads, kv_heads, key, value, window, position}, fmt, sinks,    \
            0.02, kind                                                                                                 \
    }
#define FP8(n, cols, rows, more, fmt, exact, kind)                                                                     \
    { "project_fp8", fp8_run, fp8_naive, fp8_count, n, {cols, rows, more}, fmt, exact, 0.03, kind }
#define SWIGLU(n, cols, width, rows, fmt, kind)                                                                        \
    { "mlp", mlp_run, mlp_naive, mlp_count, n, {cols, width, rows, 1}, fmt, false, 0.05, kind }
#define SWIGLU_EXPERTS(n, hidden, inner, experts, k, kind)                                                             \
    {                                                                                                                  \
        "experts", experts_run, experts_naive, experts_count, n, {hidden, inner, experts, k}, MS_FORMAT_F32, true,     \
            0.05, kind                                                                                                 \
    }
#define ROUTER(n, dim, experts, k, fmt, renormalize, kind)                                                             \
    { "router_topk", router_run, router_naive, router_count, n, {dim, experts, k}, fmt, renormalize, 1e-5, kind }
#define EXPERTS(n, hidden, inner, experts, k, kind)                                                                    \
    {                                                                                                                  \
        "experts", experts_run, experts_naive, experts_count, n, {hidden, inner, experts, k}, MS_FORMAT_F32, false,    \
            0.05, kind                                                                                                 \
    }
#define ADD(n, dim, kind)                                                                                              \
    { "add", add_run, add_naive, norm_count, n, {dim}, MS_FORMAT_F32, false, 1e-5, kind }

const op_case op_cases[] = {
    NORM(1, 256, MS_FORMAT_BF16, VALUES_NORMAL),
    NORM(3, 77, MS_FORMAT_F32, VALUES_NORMAL),
    NORM(17, 1, MS_FORMAT_F32, VALUES_NORMAL),
    NORM(2, 100, MS_FORMAT_BF16, VALUES_ZERO),
    NORM(2, 100, MS_FORMAT_BF16, VALUES_TINY),
    NORM(2, 300, MS_FORMAT_F32, VALUES_LARGE),
    MIX(1, 256, 1, true, VALUES_NORMAL),
    MIX(5, 133, 8, true, VALUES_NORMAL),
    MIX(2, 1130, 9, true, VALUES_NORMAL),
    MIX(1, 8300, 2, true, VALUES_NORMAL),
    MIX(1, 7168, 8, true, VALUES_NORMAL),
    MIX(2, 4100, 12, true, VALUES_NORMAL),
    MIX(11, 1100, 12, true, VALUES_NORMAL),
    MIX(1, 260, 31, true, VALUES_NORMAL),
    MIX(1, 260, 40, true, VALUES_NORMAL),
    MIX(2, 520, 9, false, VALUES_MIXED),
    MIX(3, 64, 0, false, VALUES_NORMAL),
    MIX(2, 70, 3, true, VALUES_ZERO),
    MIX(2, 70, 3, true, VALUES_LARGE),
    MIX(2, 70, 3, false, VALUES_TINY),
    PROJECT(1, 256, 64, 8, MS_FORMAT_Q8, false, VALUES_NORMAL),
    PROJECT(1, 1024, 203, 9, MS_FORMAT_Q8, false, VALUES_NORMAL),
    PROJECT(2, 1100, 15, 1, MS_FORMAT_Q8, false, VALUES_NORMAL),
    PROJECT(3, 300, 83, 5, MS_FORMAT_Q8, false, VALUES_MIXED),
    PROJECT(5, 96, 7, 2, MS_FORMAT_Q8, false, VALUES_NORMAL),
    PROJECT(17, 640, 129, 31, MS_FORMAT_Q8, false, VALUES_NORMAL),
    PROJECT(40, 128, 16, 3, MS_FORMAT_Q8, false, VALUES_LARGE),
    PROJECT(4, 1, 1, 1, MS_FORMAT_Q8, false, VALUES_NORMAL),
    PROJECT(130, 264, 4001, 1, MS_FORMAT_Q8, false, VALUES_NORMAL), /* GPU: enough for wide tiles */
    PROJECT(3, 1057, 11, 4, MS_FORMAT_Q8, true, VALUES_NORMAL),
    PROJECT(3, 256, 24, 4, MS_FORMAT_Q8, false, VALUES_ZERO),
    PROJECT(3, 256, 24, 4, MS_FORMAT_Q8, false, VALUES_TINY),
    PROJECT(1, 512, 100, 3, MS_FORMAT_BF16, false, VALUES_NORMAL),
    PROJECT(2, 77, 33, 2, MS_FORMAT_BF16, false, VALUES_MIXED),
    PROJECT(3, 95, 6, 5, MS_FORMAT_BF16, false, VALUES_NORMAL),
    PROJECT(5, 40, 13, 7, MS_FORMAT_BF16, false, VALUES_TINY),
    PROJECT(17, 320, 50, 3, MS_FORMAT_BF16, false, VALUES_NORMAL),
    PROJECT(3, 130, 9, 2, MS_FORMAT_F32, false, VALUES_NORMAL),
    PROJECT(7, 31, 5, 2, MS_FORMAT_F32, false, VALUES_LARGE),
    MLP(1, 256, 512, 256, MS_FORMAT_Q8, false, VALUES_NORMAL),
    MLP(5, 100, 300, 77, MS_FORMAT_Q8, false, VALUES_NORMAL),
    MLP(17, 64, 130, 10, MS_FORMAT_Q8, true, VALUES_NORMAL),
    MLP(3, 130, 96, 33, MS_FORMAT_BF16, false, VALUES_NORMAL),
    MLP(2, 64, 40, 12, MS_FORMAT_F32, false, VALUES_NORMAL),
    MLP(2, 128, 64, 12, MS_FORMAT_Q8, false, VALUES_LARGE),
    MLP(2, 128, 64, 12, MS_FORMAT_Q8, false, VALUES_ZERO),
    MLP(2, 128, 64, 12, MS_FORMAT_Q8, false, VALUES_TINY),
    KDA(1, 2, 64, 4, VALUES_NORMAL),
    KDA(2, 3, 32, 4, VALUES_NORMAL),
    KDA(3, 1, 128, 4, VALUES_NORMAL),
    KDA(17, 2, 37, 4, VALUES_NORMAL),
    KDA(5, 2, 10, 5, VALUES_MIXED),
    KDA(35, 2, 16, 2, VALUES_NORMAL),
    KDA(2, 2, 20, 4, VALUES_ZERO),
    KDA(2, 2, 20, 4, VALUES_LARGE),
    KDA(2, 2, 20, 4, VALUES_TINY),
    DECAY(3, 2, 128, 4, MS_FORMAT_Q8, VALUES_NORMAL),
    DECAY(2, 3, 128, 4, MS_FORMAT_Q8, VALUES_MIXED),
    DECAY(2, 2, 128, 4, MS_FORMAT_BF16, VALUES_NORMAL),
    DECAY(3, 2, 128, 3, MS_FORMAT_Q8, VALUES_NORMAL),
    DECAY(2, 2, 64, 4, MS_FORMAT_Q8, VALUES_NORMAL),
    MLA(1, 2, 16, 8, 16, 32, 0, MS_FORMAT_BF16, VALUES_NORMAL),
    MLA(3, 4, 32, 32, 32, 64, 5, MS_FORMAT_F32, VALUES_NORMAL),
    MLA(5, 3, 13, 5, 17, 37, 254, MS_FORMAT_BF16, VALUES_NORMAL),
    MLA(17, 11, 40, 32, 40, 132, 500, MS_FORMAT_BF16, VALUES_NORMAL),
    MLA(2, 9, 24, 16, 24, 96, 600, MS_FORMAT_BF16, VALUES_NORMAL),
    MLA(2, 2, 16, 8, 16, 32, 300, MS_FORMAT_BF16, VALUES_LARGE),
    MLA(2, 2, 16, 8, 16, 32, 255, MS_FORMAT_BF16, VALUES_ZERO),
    MLA(2, 2, 16, 8, 16, 32, 3, MS_FORMAT_BF16, VALUES_TINY),
    ROUTER(1, 256, 32, 4, MS_FORMAT_BF16, true, VALUES_NORMAL),
    ROUTER(5, 130, 77, 16, MS_FORMAT_BF16, true, VALUES_NORMAL),
    ROUTER(3, 64, 9, 9, MS_FORMAT_F32, false, VALUES_NORMAL),
    ROUTER(2, 64, 20, 3, MS_FORMAT_BF16, true, VALUES_ZERO),
    EXPERTS(1, 64, 32, 4, 2, VALUES_NORMAL),
    EXPERTS(3, 256, 128, 5, 2, VALUES_NORMAL),
    EXPERTS(5, 96, 64, 6, 3, VALUES_MIXED),
    EXPERTS(17, 160, 96, 4, 2, VALUES_NORMAL),
    EXPERTS(3, 512, 256, 3, 2, VALUES_NORMAL),
    EXPERTS(39, 64, 32, 2, 2, VALUES_NORMAL),
    EXPERTS(2, 64, 64, 4, 2, VALUES_ZERO),
    EXPERTS(2, 64, 64, 4, 2, VALUES_LARGE),
    EXPERTS(2, 64, 64, 4, 2, VALUES_TINY),
    ADD(3, 5, VALUES_NORMAL),
    ADD(5, 8001, VALUES_LARGE),
    GQA(1, 4, 2, 16, 8, 0, 0, MS_FORMAT_BF16, false, VALUES_NORMAL),
    GQA(5, 4, 2, 16, 8, 0, 0, MS_FORMAT_F32, true, VALUES_NORMAL),
    GQA(3, 8, 2, 96, 64, 0, 254, MS_FORMAT_BF16, false, VALUES_NORMAL),
    GQA(2, 16, 1, 24, 40, 0, 600, MS_FORMAT_BF16, true, VALUES_NORMAL),
    GQA(2, 40, 1, 20, 12, 0, 3, MS_FORMAT_F32, false, VALUES_NORMAL),
    GQA(4, 6, 6, 33, 7, 1, 9, MS_FORMAT_BF16, true, VALUES_NORMAL),
    GQA(40, 8, 4, 96, 64, 8, 0, MS_FORMAT_BF16, true, VALUES_NORMAL),
    GQA(9, 8, 4, 96, 64, 8, 507, MS_FORMAT_BF16, true, VALUES_NORMAL),
    GQA(3, 4, 2, 16, 8, 700, 900, MS_FORMAT_BF16, false, VALUES_NORMAL),
    GQA(1, 16, 1, 192, 128, 0, 0, MS_FORMAT_BF16, false, VALUES_NORMAL),
    GQA(1, 16, 1, 192, 128, 0, 255, MS_FORMAT_BF16, false, VALUES_NORMAL),
    GQA(1, 16, 1, 192, 128, 0, 1000, MS_FORMAT_BF16, true, VALUES_NORMAL),
    GQA(1, 8, 1, 192, 128, 128, 127, MS_FORMAT_BF16, true, VALUES_NORMAL),
    GQA(3, 16, 2, 192, 128, 128, 254, MS_FORMAT_BF16, true, VALUES_NORMAL),
    GQA(17, 8, 2, 192, 128, 128, 760, MS_FORMAT_BF16, true, VALUES_NORMAL),
    GQA(2, 20, 1, 192, 128, 0, 255, MS_FORMAT_F32, false, VALUES_NORMAL),
    GQA(3, 5, 1, 192, 128, 300, 600, MS_FORMAT_BF16, true, VALUES_NORMAL),
    GQA(2, 4, 4, 192, 128, 1, 256, MS_FORMAT_BF16, false, VALUES_NORMAL),
    GQA(40, 8, 1, 192, 128, 0, 690, MS_FORMAT_BF16, false, VALUES_NORMAL),
    GQA(2, 16, 2, 192, 128, 20, 260, MS_FORMAT_BF16, true, VALUES_ZERO),
    GQA(2, 16, 2, 192, 128, 20, 260, MS_FORMAT_BF16, true, VALUES_LARGE),
    GQA(2, 16, 2, 192, 128, 20, 260, MS_FORMAT_BF16, true, VALUES_TINY),
    GQA(2, 8, 2, 24, 16, 0, 260, MS_FORMAT_BF16, true, VALUES_LARGE),
    GQA(2, 8, 2, 24, 16, 0, 260, MS_FORMAT_BF16, false, VALUES_TINY),
    FP8(1, 1024, 20, 9, MS_FORMAT_FP8, false, VALUES_NORMAL),
    FP8(1, 300, 37, 3, MS_FORMAT_FP8, true, VALUES_NORMAL),
    FP8(5, 1100, 15, 2, MS_FORMAT_FP8, false, VALUES_MIXED),
    FP8(7, 512, 70, 33, MS_FORMAT_FP8, false, VALUES_NORMAL),
    FP8(2, 1, 1, 2, MS_FORMAT_FP8, false, VALUES_NORMAL),
    FP8(3, 1057, 11, 4, MS_FORMAT_Q8, false, VALUES_NORMAL),
    FP8(1, 300, 21, 4, MS_FORMAT_Q8, true, VALUES_NORMAL),
    FP8(2, 300, 9, 4, MS_FORMAT_BF16, false, VALUES_TINY),
    FP8(2, 300, 9, 4, MS_FORMAT_F32, false, VALUES_NORMAL),
    SWIGLU(1, 256, 512, 256, MS_FORMAT_Q8, VALUES_NORMAL),
    SWIGLU(5, 100, 300, 77, MS_FORMAT_Q8, VALUES_MIXED),
    SWIGLU(3, 130, 96, 33, MS_FORMAT_BF16, VALUES_NORMAL),
    SWIGLU(2, 128, 64, 12, MS_FORMAT_Q8, VALUES_LARGE),
    SWIGLU_EXPERTS(1, 64, 32, 4, 2, VALUES_NORMAL),
    SWIGLU_EXPERTS(17, 160, 96, 4, 2, VALUES_NORMAL),
    SWIGLU_EXPERTS(39, 512, 256, 2, 2, VALUES_MIXED),
    SWIGLU_EXPERTS(2, 64, 64, 4, 2, VALUES_LARGE),
};
const size_t op_case_count = sizeof op_cases / sizeof op_cases[0];
