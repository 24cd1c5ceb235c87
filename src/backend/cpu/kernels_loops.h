/* kernels_loops.h: kernels in plain C that every table uses as they are, or for what its vectors leave over.
 *
 * Included once by each kernels_<name>.c, so that the compiler makes them with that file's instructions.  Elements are
 *   independent and -ffp-contract=off holds, so vectorising cannot change bits.
 */
#ifndef MS_BACKEND_CPU_KERNELS_LOOPS_H
#define MS_BACKEND_CPU_KERNELS_LOOPS_H

#include "backend/cpu/kernels.h"
#include "base/bytes.h"

#include <math.h>

static void loop_add(float *out, const float *a, const float *b, size_t n) {
    for (size_t i = 0; i < n; i++) out[i] = a[i] + b[i];
}

static void loop_scale(float *out, const float *x, float r, size_t n) {
    for (size_t i = 0; i < n; i++) out[i] = x[i] * r;
}

static void loop_scale_mul(float *out, const float *x, float r, const float *w, size_t n) {
    for (size_t i = 0; i < n; i++) out[i] = w[i] * (x[i] * r);
}

static void loop_axpy(float *out, float p, const float *v, size_t n) {
    for (size_t i = 0; i < n; i++) out[i] = fmaf(p, v[i], out[i]);
}

static void loop_fma_rows(float *out, const float *a, const float *b, size_t n) {
    for (size_t i = 0; i < n; i++) out[i] = fmaf(a[i], b[i], out[i]);
}

static void loop_merge(float *acc, float f, const float *part, float f_part, size_t n) {
    for (size_t i = 0; i < n; i++) acc[i] = fmaf(acc[i], f, part[i] * f_part);
}

static void loop_divide(float *out, const float *x, float d, size_t n) {
    for (size_t i = 0; i < n; i++) out[i] = x[i] / d;
}

static void loop_from_int8(float *out, const int8_t *q, float scale, size_t n) {
    for (size_t i = 0; i < n; i++) out[i] = (float)q[i] * scale;
}

/* ms_e4m3 without branches, so that it vectorises. */
static void loop_from_fp8(float *out, const uint8_t *codes, float scale, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint32_t magnitude = codes[i] & 0x7Fu, sign = (uint32_t)(codes[i] & 0x80u) << 24, bits = magnitude << 20;
        float low = ms_f32_from_bits(bits + (121u << 23)) - 0x1p-6f;
        uint32_t high = magnitude == 0x7F ? 0x7fc00000u : bits + (120u << 23);
        uint32_t x = magnitude < 8 ? ms_f32_bits(low) : high;
        out[i] = ms_f32_from_bits(x | sign) * scale;
    }
}

static void loop_to_bf16(uint16_t *out, const float *x, size_t n) {
    for (size_t i = 0; i < n; i++) out[i] = ms_bf16_from_f32(x[i]);
}

static void loop_from_bf16(float *out, const uint16_t *x, size_t n) {
    for (size_t i = 0; i < n; i++) out[i] = ms_bf16_to_f32(x[i]);
}

static void loop_round_bf16(float *out, const float *x, size_t n) {
    for (size_t i = 0; i < n; i++) out[i] = ms_bf16_to_f32(ms_bf16_from_f32(x[i]));
}

/* The end of col4 and of the group dots. */
static inline float loop_sum4(const float p[4]) { return (p[0] + p[2]) + (p[1] + p[3]); }

static void loop_kda_token(const ms_cpu_kda_run *run, size_t t, size_t columns) {
    size_t dim = run->dim;
    const float *before = t == 0 ? run->state_in : run->state;
    const float *q = run->q + t * dim, *k = run->k + t * dim, *alpha = run->alpha + t * dim, *v = run->v + t * dim;
    float p[MS_CPU_KDA_COLUMNS][4] = {{0}}, delta[MS_CPU_KDA_COLUMNS];
    for (size_t i = 0; i < dim; i++) {
        float *s = run->state + i * dim;
        for (size_t c = 0; c < columns; c++) {
            s[c] = alpha[i] * before[i * dim + c];
            p[c][i % 4] = fmaf(k[i], s[c], p[c][i % 4]);
        }
    }
    for (size_t c = 0; c < columns; c++) delta[c] = run->beta[t] * (v[c] - loop_sum4(p[c]));
    memset(p, 0, sizeof p);
    for (size_t i = 0; i < dim; i++) {
        float *s = run->state + i * dim;
        for (size_t c = 0; c < columns; c++) {
            s[c] = fmaf(k[i], delta[c], s[c]);
            p[c][i % 4] = fmaf(q[i], s[c], p[c][i % 4]);
        }
    }
    for (size_t c = 0; c < columns; c++) run->o[t * dim + c] = loop_sum4(p[c]);
}

static void loop_kda_columns(const ms_cpu_kda_run *run, size_t columns) {
    for (size_t t = 0; t < run->tokens; t++) loop_kda_token(run, t, columns);
}

#define MS_CPU_KERNELS_LOOPS                                                                                           \
    .add = loop_add, .scale = loop_scale, .scale_mul = loop_scale_mul, .axpy = loop_axpy, .fma_rows = loop_fma_rows,   \
    .merge = loop_merge, .from_int8 = loop_from_int8, .divide = loop_divide, .from_fp8 = loop_from_fp8,                \
    .to_bf16 = loop_to_bf16, .from_bf16 = loop_from_bf16, .round_bf16 = loop_round_bf16

#endif
