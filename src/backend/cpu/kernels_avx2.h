/* kernels_avx2.h: the kernels of the AVX2 table that a wider instruction set takes over as they are: column products,
 * quantising, elementary functions and the KDA recurrence.
 *
 * Included once by each kernels_<name>.c of an x86 table, so that the compiler makes them with that file's instructions
 *   and registers.  The same bits as kernels_scalar.c: lanes are the partial sums of docs/numerics.md, and what vectors
 *   leave over runs the scalar steps.
 */
#ifndef MS_BACKEND_CPU_KERNELS_AVX2_H
#define MS_BACKEND_CPU_KERNELS_AVX2_H

#include "backend/cpu/kernels.h"
#include "backend/cpu/kernels_loops.h"
#include "base/fmath.h"
#include "quant/q8.h"

#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))

enum { LANES = 32, V = 8, MX_GROUP = 32, MX_BYTES = 16, MX_TILE = 32 };

INLINE __m256 widen(const uint16_t *h) {
    __m128i v = _mm_loadu_si128((const __m128i *)(const void *)h);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16));
}

/* Eight weights from index i of a row that is f32 or bf16. */
INLINE __m256 load_weight(const void *w, size_t i, bool bf16) {
    return bf16 ? widen((const uint16_t *)w + i) : _mm256_loadu_ps((const float *)w + i);
}

INLINE float scalar_weight(const void *w, size_t i, bool bf16) {
    return bf16 ? ms_bf16_to_f32(((const uint16_t *)w)[i]) : ((const float *)w)[i];
}
INLINE __m256i load_bytes(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }

/* Asks for the weights FETCH_AHEAD bytes behind the next `bytes`.  The first input rows of a product wait for memory, and
 * hardware that fetches ahead stops at each page and misses blocks that are not read line by line: Zen 5 then gets a
 * third of its memory rate.  4 to 16 KiB are alike. */
enum { FETCH_AHEAD = 8192, FETCH_LINE = 64 };

INLINE void fetch_ahead(const void *next, size_t bytes) {
    for (size_t b = 0; b < bytes; b += FETCH_LINE)
        _mm_prefetch((const char *)((uintptr_t)next + FETCH_AHEAD + b), _MM_HINT_T0);
}

/* Undoes what two steps of packs or hadd do to the order of eight elements. */
INLINE __m256i row_order(__m256i v) {
    return _mm256_permutevar8x32_epi32(v, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

/* ------------------------------------------------------------------ col4 */

INLINE __m256 sum4(const __m256 p[4]) { return _mm256_add_ps(_mm256_add_ps(p[0], p[2]), _mm256_add_ps(p[1], p[3])); }

/* 8 * nv columns; nv is a constant after inlining. */
INLINE void col4_block(float *out, const float *a, const void *m, size_t m_stride, size_t rows, size_t c, size_t nv,
                       bool bf16) {
    __m256 p[2][4];
    for (size_t v = 0; v < nv; v++)
        for (size_t q = 0; q < 4; q++) p[v][q] = _mm256_setzero_ps();
    size_t whole = rows / 4 * 4;
    for (size_t d = 0; d < whole; d += 4) {
        for (size_t q = 0; q < 4; q++) {
            __m256 factor = _mm256_broadcast_ss(a + d + q);
            for (size_t v = 0; v < nv; v++)
                p[v][q] = _mm256_fmadd_ps(factor, load_weight(m, (d + q) * m_stride + c + v * V, bf16), p[v][q]);
        }
    }
    for (size_t q = 0; q < 3; q++) { /* rows % 4 more */
        if (whole + q >= rows) break;
        __m256 factor = _mm256_broadcast_ss(a + whole + q);
        for (size_t v = 0; v < nv; v++)
            p[v][q] = _mm256_fmadd_ps(factor, load_weight(m, (whole + q) * m_stride + c + v * V, bf16), p[v][q]);
    }
    for (size_t v = 0; v < nv; v++) _mm256_storeu_ps(out + c + v * V, sum4(p[v]));
}

INLINE void col4_any(float *out, const float *a, const void *m, size_t m_stride, size_t rows, size_t cols, bool bf16) {
    size_t c = 0;
    for (; c + 2 * V <= cols; c += 2 * V) col4_block(out, a, m, m_stride, rows, c, 2, bf16);
    for (; c + V <= cols; c += V) col4_block(out, a, m, m_stride, rows, c, 1, bf16);
    for (; c < cols; c++) {
        float p[4] = {0};
        for (size_t d = 0; d < rows; d++) p[d % 4] = fmaf(a[d], scalar_weight(m, d * m_stride + c, bf16), p[d % 4]);
        out[c] = loop_sum4(p);
    }
}

static void avx2_col4_f32(float *out, const float *a, const float *m, size_t m_stride, size_t rows, size_t cols) {
    col4_any(out, a, m, m_stride, rows, cols, false);
}

static void avx2_col4_bf16(float *out, const float *a, const uint16_t *m, size_t m_stride, size_t rows, size_t cols) {
    col4_any(out, a, m, m_stride, rows, cols, true);
}

/* ------------------------------------------------------------------ quantising */

/* Largest |x| as bits, which order like the values and put NaN and infinity last; n % 8 == 0. */
INLINE uint32_t abs_max_bits(const float *x, size_t n) {
    __m256i m = _mm256_setzero_si256(), mask = _mm256_set1_epi32(0x7fffffff);
    for (size_t i = 0; i < n; i += V) m = _mm256_max_epi32(m, _mm256_and_si256(load_bytes(x + i), mask));
    __m128i s = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    s = _mm_max_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    s = _mm_max_epi32(s, _mm_shuffle_epi32(s, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(s);
}

/* 32 values times inv, rounded half to even: |x * inv| < 127.5, so the packs never saturate. */
INLINE __m256i round32(const float *x, __m256 inv) {
    __m256i v[4];
    for (size_t i = 0; i < 4; i++) v[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i * V), inv));
    return row_order(_mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3])));
}

/* A group of n % 32 == 0 values; inv of a group that is stored as zeros is 0 and *plain is false. */
INLINE bool group_scale(float *scale, float *inv, const float *x, size_t n) {
    uint32_t bits = abs_max_bits(x, n);
    float amax = ms_f32_from_bits(bits);
    bool finite = bits < 0x7f800000u;
    if (!finite || amax < 0x1p-100f) {
        *scale = finite ? 0.0f : ms_f32_from_bits(0x7fc00000u);
        return false;
    }
    *scale = amax / 127.0f;
    *inv = 127.0f / amax;
    return true;
}

static void avx2_quantize(int8_t *q, float *scales, const float *x, size_t n, size_t group) {
    for (size_t at = 0; at < n; at += group) {
        size_t count = n - at < group ? n - at : group;
        float *scale = scales + at / group, inv;
        if (count % 32) {
            (void)ms_q8_group(q + at, scale, x + at, count);
        } else if (!group_scale(scale, &inv, x + at, count)) {
            memset(q + at, 0, count);
        } else {
            for (size_t i = at; i < at + count; i += 32)
                _mm256_storeu_si256((__m256i *)(void *)(q + i), round32(x + i, _mm256_set1_ps(inv)));
        }
    }
}

static void avx2_quantize_split(int8_t *q, float *scales, const float *x, size_t n) {
    const __m256i split = _mm256_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15, 0, 2, 4, 6, 8, 10, 12,
                                           14, 1, 3, 5, 7, 9, 11, 13, 15);
    for (size_t at = 0; at < n; at += MX_GROUP) {
        float inv;
        __m256i v = _mm256_setzero_si256();
        if (group_scale(scales + at / MX_GROUP, &inv, x + at, MX_GROUP))
            v = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(round32(x + at, _mm256_set1_ps(inv)), split), 0xd8);
        _mm256_storeu_si256((__m256i *)(void *)(q + at), v);
    }
}

/* ------------------------------------------------------------------ elementary functions, as base/fmath.h */

INLINE __m256 exp8(__m256 x) {
    const __m256 shift = _mm256_set1_ps(MS_EXP_SHIFT);
    __m256 t = _mm256_fmadd_ps(x, _mm256_set1_ps(MS_EXP_LOG2E), shift);
    __m256 k = _mm256_sub_ps(t, shift);
    __m256 r =
        _mm256_fmadd_ps(k, _mm256_set1_ps(-MS_EXP_LN2_LO), _mm256_fmadd_ps(k, _mm256_set1_ps(-MS_EXP_LN2_HI), x));
    __m256 p = _mm256_set1_ps(MS_EXP_C0);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(MS_EXP_C1));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(MS_EXP_C2));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(MS_EXP_C3));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(MS_EXP_C4));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(MS_EXP_C5));
    p = _mm256_add_ps(_mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r), _mm256_set1_ps(1.0f));
    __m256i n = _mm256_sub_epi32(_mm256_castps_si256(t), _mm256_castps_si256(shift));
    __m256i power = _mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23);
    __m256 y = _mm256_mul_ps(p, _mm256_castsi256_ps(power));
    y = _mm256_blendv_ps(y, _mm256_setzero_ps(), _mm256_cmp_ps(x, _mm256_set1_ps(MS_EXP_MIN), _CMP_LT_OQ));
    const __m256 infinity = _mm256_castsi256_ps(_mm256_set1_epi32(0x7f800000));
    return _mm256_blendv_ps(y, infinity, _mm256_cmp_ps(x, _mm256_set1_ps(MS_EXP_MAX), _CMP_GT_OQ));
}

INLINE __m256 sigmoid8(__m256 x) {
    const __m256 one = _mm256_set1_ps(1.0f), sign = _mm256_set1_ps(-0.0f);
    return _mm256_div_ps(one, _mm256_add_ps(one, exp8(_mm256_xor_ps(x, sign))));
}

INLINE __m256 tanh8(__m256 x) {
    const __m256 one = _mm256_set1_ps(1.0f), sign_bit = _mm256_set1_ps(-0.0f);
    __m256 sign = _mm256_and_ps(x, sign_bit), a = _mm256_andnot_ps(sign_bit, x), z = _mm256_mul_ps(a, a);
    __m256 p = _mm256_set1_ps(MS_TANH_T0);
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(MS_TANH_T1));
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(MS_TANH_T2));
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(MS_TANH_T3));
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(MS_TANH_T4));
    __m256 small = _mm256_fmadd_ps(_mm256_mul_ps(p, z), a, a);
    __m256 e = _mm256_add_ps(exp8(_mm256_add_ps(a, a)), one);
    __m256 large = _mm256_sub_ps(one, _mm256_div_ps(_mm256_set1_ps(2.0f), e));
    __m256 use_small = _mm256_cmp_ps(a, _mm256_set1_ps(MS_TANH_BRANCH), _CMP_LT_OQ);
    return _mm256_or_ps(_mm256_blendv_ps(large, small, use_small), sign);
}

static void avx2_exp_sub(float *out, const float *x, float m, size_t n) {
    size_t i = 0;
    for (; i + V <= n; i += V)
        _mm256_storeu_ps(out + i, exp8(_mm256_sub_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(m))));
    for (; i < n; i++) out[i] = ms_exp(x[i] - m);
}

static void avx2_sigmoid(float *out, const float *x, size_t n) {
    size_t i = 0;
    for (; i + V <= n; i += V) _mm256_storeu_ps(out + i, sigmoid8(_mm256_loadu_ps(x + i)));
    for (; i < n; i++) out[i] = ms_sigmoid(x[i]);
}

static void avx2_gate(float *out, const float *x, const float *g, size_t n) {
    size_t i = 0;
    for (; i + V <= n; i += V)
        _mm256_storeu_ps(out + i, _mm256_mul_ps(_mm256_loadu_ps(x + i), sigmoid8(_mm256_loadu_ps(g + i))));
    for (; i < n; i++) out[i] = x[i] * ms_sigmoid(g[i]);
}

static void avx2_situ(float *out, const float *g, const float *u, size_t n, float beta, float linear_beta) {
    const __m256 b = _mm256_set1_ps(beta), lb = _mm256_set1_ps(linear_beta);
    size_t i = 0;
    for (; i + V <= n; i += V) {
        __m256 gv = _mm256_loadu_ps(g + i), uv = _mm256_loadu_ps(u + i);
        __m256 capped = _mm256_mul_ps(b, tanh8(_mm256_div_ps(gv, b)));
        __m256 linear = _mm256_mul_ps(lb, tanh8(_mm256_div_ps(uv, lb)));
        _mm256_storeu_ps(out + i, _mm256_mul_ps(_mm256_mul_ps(capped, sigmoid8(gv)), linear));
    }
    for (; i < n; i++) {
        float capped = beta * ms_tanh(g[i] / beta);
        out[i] = capped * ms_sigmoid(g[i]) * (linear_beta * ms_tanh(u[i] / linear_beta));
    }
}

static void avx2_decay(float *out, const float *e, const float *bias, float a, float bound, size_t n) {
    const __m256 av = _mm256_set1_ps(a), bv = _mm256_set1_ps(bound);
    size_t i = 0;
    for (; i + V <= n; i += V) {
        __m256 x = _mm256_mul_ps(av, _mm256_add_ps(_mm256_loadu_ps(e + i), _mm256_loadu_ps(bias + i)));
        _mm256_storeu_ps(out + i, exp8(_mm256_mul_ps(bv, sigmoid8(x))));
    }
    for (; i < n; i++) out[i] = ms_exp(bound * ms_sigmoid(a * (e[i] + bias[i])));
}

/* ------------------------------------------------------------------ KDA */

/* Rows [i, i + count), count <= 4, of the decay pass: work = alpha * from, p += k * work. */
INLINE void decay_rows(__m256 p[2][4], float *work, const float *from, size_t stride, const float *alpha,
                       const float *k, size_t i, size_t count) {
    for (size_t q = 0; q < count; q++) {
        __m256 a = _mm256_broadcast_ss(alpha + i + q), key = _mm256_broadcast_ss(k + i + q);
        for (size_t v = 0; v < 2; v++) {
            __m256 s = _mm256_mul_ps(a, _mm256_loadu_ps(from + (i + q) * stride + v * V));
            _mm256_storeu_ps(work + (i + q) * MS_CPU_KDA_COLUMNS + v * V, s);
            p[v][q] = _mm256_fmadd_ps(key, s, p[v][q]);
        }
    }
}

/* The same rows of the write pass: to = work + k * delta, p += q * to. */
INLINE void write_rows(__m256 p[2][4], float *to, size_t stride, const float *work, const float *k, const float *query,
                       const __m256 delta[2], size_t i, size_t count) {
    for (size_t q = 0; q < count; q++) {
        __m256 key = _mm256_broadcast_ss(k + i + q), factor = _mm256_broadcast_ss(query + i + q);
        for (size_t v = 0; v < 2; v++) {
            __m256 s = _mm256_loadu_ps(work + (i + q) * MS_CPU_KDA_COLUMNS + v * V);
            s = _mm256_fmadd_ps(key, delta[v], s);
            _mm256_storeu_ps(to + (i + q) * stride + v * V, s);
            p[v][q] = _mm256_fmadd_ps(factor, s, p[v][q]);
        }
    }
}

INLINE void clear8(__m256 p[2][4]) {
    for (size_t v = 0; v < 2; v++)
        for (size_t q = 0; q < 4; q++) p[v][q] = _mm256_setzero_ps();
}

/* The 16 columns live in `work` between the passes and tokens: state rows are too far apart to stay in the first
 * level cache together. */
static void kda_columns16(const ms_cpu_kda_run *run) {
    size_t dim = run->dim, whole = dim / 4 * 4, rest = dim % 4;
    for (size_t t = 0; t < run->tokens; t++) {
        const float *q = run->q + t * dim, *k = run->k + t * dim, *alpha = run->alpha + t * dim;
        const float *from = t == 0 ? run->state_in : run->work;
        size_t from_stride = t == 0 ? dim : MS_CPU_KDA_COLUMNS;
        bool last = t + 1 == run->tokens;
        float *to = last ? run->state : run->work;
        size_t to_stride = last ? dim : MS_CPU_KDA_COLUMNS;
        __m256 p[2][4], delta[2];
        clear8(p);
        for (size_t i = 0; i < whole; i += 4) decay_rows(p, run->work, from, from_stride, alpha, k, i, 4);
        for (size_t i = 0; i < rest; i++) {
            __m256 one[2][4];
            one[0][0] = p[0][i];
            one[1][0] = p[1][i];
            decay_rows(one, run->work, from, from_stride, alpha, k, whole + i, 1);
            p[0][i] = one[0][0];
            p[1][i] = one[1][0];
        }
        for (size_t v = 0; v < 2; v++) {
            __m256 value = _mm256_sub_ps(_mm256_loadu_ps(run->v + t * dim + v * V), sum4(p[v]));
            delta[v] = _mm256_mul_ps(_mm256_set1_ps(run->beta[t]), value);
        }
        clear8(p);
        for (size_t i = 0; i < whole; i += 4) write_rows(p, to, to_stride, run->work, k, q, delta, i, 4);
        for (size_t i = 0; i < rest; i++) {
            __m256 one[2][4];
            one[0][0] = p[0][i];
            one[1][0] = p[1][i];
            write_rows(one, to, to_stride, run->work, k, q, delta, whole + i, 1);
            p[0][i] = one[0][0];
            p[1][i] = one[1][0];
        }
        for (size_t v = 0; v < 2; v++) _mm256_storeu_ps(run->o + t * dim + v * V, sum4(p[v]));
    }
}

static void avx2_kda_columns(const ms_cpu_kda_run *run, size_t columns) {
    if (columns == MS_CPU_KDA_COLUMNS && run->tokens)
        kda_columns16(run);
    else
        loop_kda_columns(run, columns);
}

#define MS_CPU_KERNELS_AVX2                                                                                            \
    .col4_f32 = avx2_col4_f32, .col4_bf16 = avx2_col4_bf16, .quantize = avx2_quantize,                                 \
    .quantize_split = avx2_quantize_split, .exp_sub = avx2_exp_sub, .sigmoid = avx2_sigmoid, .gate = avx2_gate,        \
    .situ = avx2_situ, .decay = avx2_decay, .kda_columns = avx2_kda_columns

#endif
