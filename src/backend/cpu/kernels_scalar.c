/* kernels_scalar.c: the kernels in plain C, as docs/numerics.md writes them.  The oracle of every other table. */
#include "backend/cpu/kernels.h"
#include "backend/cpu/kernels_loops.h"
#include "base/fmath.h"
#include "quant/mxfp4.h"
#include "quant/q8.h"

enum { LANES = 32, COL_BLOCK = 64, MX_GROUP = 32, MX_BYTES = 16, MX_TILE = 32 };

/* The fixed tree over 32 partial sums; s[0] of the butterfly. */
static float butterfly(float s[LANES]) {
    for (size_t m = LANES / 2; m; m /= 2)
        for (size_t l = 0; l < m; l++) s[l] = s[l] + s[l + m];
    return s[0];
}

static float scalar_dot(const float *x, const float *y, size_t n) {
    float s[LANES] = {0};
    for (size_t i = 0; i < n; i++) s[i % LANES] = fmaf(x[i], y[i], s[i % LANES]);
    return butterfly(s);
}

static float scalar_sum(const float *x, size_t n) {
    float s[LANES] = {0};
    for (size_t i = 0; i < n; i++) s[i % LANES] = s[i % LANES] + x[i];
    return butterfly(s);
}

static float dot_bf16(const float *x, const uint16_t *w, size_t n) {
    float s[LANES] = {0};
    for (size_t i = 0; i < n; i++) s[i % LANES] = fmaf(x[i], ms_bf16_to_f32(w[i]), s[i % LANES]);
    return butterfly(s);
}

static void scalar_rows_f32(float *out, size_t out_stride, const float *x, size_t x_stride, size_t nx, const float *w,
                            size_t w_stride, size_t nw, size_t n) {
    for (size_t j = 0; j < nw; j++)
        for (size_t i = 0; i < nx; i++) out[i * out_stride + j] = scalar_dot(x + i * x_stride, w + j * w_stride, n);
}

static void scalar_rows_bf16(float *out, size_t out_stride, const float *x, size_t x_stride, size_t nx,
                             const uint16_t *w, size_t w_stride, size_t nw, size_t n) {
    for (size_t j = 0; j < nw; j++)
        for (size_t i = 0; i < nx; i++) out[i * out_stride + j] = dot_bf16(x + i * x_stride, w + j * w_stride, n);
}

/* Columns go in blocks so that a row of the matrix is read along its memory. */
static void scalar_col4_f32(float *out, const float *a, const float *m, size_t m_stride, size_t rows, size_t cols) {
    for (size_t first = 0; first < cols; first += COL_BLOCK) {
        size_t count = cols - first < COL_BLOCK ? cols - first : COL_BLOCK;
        float p[COL_BLOCK][4] = {{0}};
        for (size_t d = 0; d < rows; d++)
            for (size_t c = 0; c < count; c++) p[c][d % 4] = fmaf(a[d], m[d * m_stride + first + c], p[c][d % 4]);
        for (size_t c = 0; c < count; c++) out[first + c] = loop_sum4(p[c]);
    }
}

static void scalar_col4_bf16(float *out, const float *a, const uint16_t *m, size_t m_stride, size_t rows, size_t cols) {
    for (size_t first = 0; first < cols; first += COL_BLOCK) {
        size_t count = cols - first < COL_BLOCK ? cols - first : COL_BLOCK;
        float p[COL_BLOCK][4] = {{0}};
        for (size_t d = 0; d < rows; d++)
            for (size_t c = 0; c < count; c++)
                p[c][d % 4] = fmaf(a[d], ms_bf16_to_f32(m[d * m_stride + first + c]), p[c][d % 4]);
        for (size_t c = 0; c < count; c++) out[first + c] = loop_sum4(p[c]);
    }
}

static int32_t dot_int8(const int8_t *x, const int8_t *w, size_t n) {
    int32_t sum = 0;
    for (size_t i = 0; i < n; i++) sum += x[i] * w[i];
    return sum;
}

static void scalar_block_q8(float *out, size_t out_stride, const ms_cpu_q8 *x, size_t nx, const int8_t *data,
                            const float *scales, uint32_t rows, uint32_t cols) {
    uint32_t groups = ms_q8_groups(cols);
    for (size_t i = 0; i < nx; i++) {
        const int8_t *xq = ms_cpu_q8_row(x, i);
        const float *xs = ms_cpu_q8_scales(x, i);
        for (uint32_t r = 0; r < rows; r++) {
            float p[4] = {0};
            for (uint32_t g = 0; g < groups; g++) {
                size_t at = (size_t)g * MS_Q8_WEIGHT_GROUP;
                uint32_t n = ms_q8_group_cols(cols, g);
                int32_t dot = dot_int8(xq + at, data + at * rows + (size_t)r * n, n);
                p[g % 4] = fmaf((float)dot, scales[(size_t)g * rows + r] * xs[g], p[g % 4]);
            }
            out[i * out_stride + r] = loop_sum4(p);
        }
    }
}

/* 2^(e - 128): half of the E8M0 value, for the doubled integers. */
static float half_scale(uint8_t e) {
    return ms_f32_from_bits(e < 2 ? UINT32_C(0x200000) << e : (uint32_t)(e - 1) << 23);
}

static void scalar_tile_mxfp4(float *out, size_t out_stride, const ms_cpu_q8 *x, size_t nx, const uint8_t *tile,
                              uint32_t groups) {
    const uint8_t *scales = tile + (size_t)groups * MX_TILE * MX_BYTES;
    for (uint32_t r = 0; r < MX_TILE; r++) {
        for (size_t i = 0; i < nx; i++) {
            const int8_t *xq = ms_cpu_q8_row(x, i);
            const float *xs = ms_cpu_q8_scales(x, i);
            float p[4] = {0};
            for (uint32_t g = 0; g < groups; g++) {
                const uint8_t *w = tile + ((size_t)g * MX_TILE + r) * MX_BYTES;
                const int8_t *even = xq + (size_t)g * MX_GROUP, *odd = even + MX_BYTES;
                int32_t dot = 0;
                for (size_t b = 0; b < MX_BYTES; b++)
                    dot += ms_e2m1_doubled[w[b] & 15] * even[b] + ms_e2m1_doubled[w[b] >> 4] * odd[b];
                p[g % 4] = fmaf((float)dot, half_scale(scales[(size_t)g * MX_TILE + r]) * xs[g], p[g % 4]);
            }
            out[i * out_stride + r] = loop_sum4(p);
        }
    }
}

static void scalar_quantize(int8_t *q, float *scales, const float *x, size_t n, size_t group) {
    for (size_t at = 0; at < n; at += group)
        (void)ms_q8_group(q + at, scales + at / group, x + at, n - at < group ? n - at : group);
}

static void scalar_quantize_split(int8_t *q, float *scales, const float *x, size_t n) {
    for (size_t at = 0; at < n; at += MX_GROUP) {
        int8_t plain[MX_GROUP];
        (void)ms_q8_group(plain, scales + at / MX_GROUP, x + at, MX_GROUP);
        for (size_t i = 0; i < MX_GROUP; i++) q[at + i / 2 + (i % 2) * MX_BYTES] = plain[i];
    }
}

static void scalar_exp_sub(float *out, const float *x, float m, size_t n) {
    for (size_t i = 0; i < n; i++) out[i] = ms_exp(x[i] - m);
}

static void scalar_sigmoid(float *out, const float *x, size_t n) {
    for (size_t i = 0; i < n; i++) out[i] = ms_sigmoid(x[i]);
}

static void scalar_gate(float *out, const float *x, const float *g, size_t n) {
    for (size_t i = 0; i < n; i++) out[i] = x[i] * ms_sigmoid(g[i]);
}

static void scalar_situ(float *out, const float *g, const float *u, size_t n, float beta, float linear_beta) {
    for (size_t i = 0; i < n; i++) {
        float capped = beta * ms_tanh(g[i] / beta);
        out[i] = capped * ms_sigmoid(g[i]) * (linear_beta * ms_tanh(u[i] / linear_beta));
    }
}

static void scalar_decay(float *out, const float *e, const float *bias, float a, float bound, size_t n) {
    for (size_t i = 0; i < n; i++) out[i] = ms_exp(bound * ms_sigmoid(a * (e[i] + bias[i])));
}

const ms_cpu_kernels ms_cpu_kernels_scalar = {
    .name = "scalar",
    .dot = scalar_dot,
    .sum = scalar_sum,
    .rows_f32 = scalar_rows_f32,
    .rows_bf16 = scalar_rows_bf16,
    .col4_f32 = scalar_col4_f32,
    .col4_bf16 = scalar_col4_bf16,
    .block_q8 = scalar_block_q8,
    .tile_mxfp4 = scalar_tile_mxfp4,
    .quantize = scalar_quantize,
    .quantize_split = scalar_quantize_split,
    .exp_sub = scalar_exp_sub,
    .sigmoid = scalar_sigmoid,
    .gate = scalar_gate,
    .situ = scalar_situ,
    .decay = scalar_decay,
    MS_CPU_KERNELS_LOOPS,
    .kda_columns = loop_kda_columns,
};
