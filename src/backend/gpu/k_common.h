// k_common.h - what every kernel shares: elementary functions, wave reductions, int8 quantisation, weight layouts.
//
// Owns: nothing; device functions and index functions that host code may use too (K_BOTH).
// Invariants: the same bits as src/base/fmath.h, src/quant/q8.c and the scalar CPU kernels (docs/numerics.md).
// Functions named
//   k_wave_* are called by all 32 lanes of a wave and give every lane the same result.
//
// Weight layouts (chosen so that a wave reads 512 contiguous bytes at a time):
//   F32   row-major.
//   BF16  rows == 1: plain.  Else row-major rows of `cols` elements in which each full block of 256 columns is stored
//         transposed, column 32 * t + l of the block at l * 8 + t: the 8 values that lane l of dot32 needs are 16
//         bytes. The columns after the last full block are plain.  k_bf16_at() gives the place of a column in its row.
//   Q8    data row-major int8, rows k_q8_stride(cols) bytes apart, zeros behind a row; scales in blocks of 8 rows as in
//         src/quant/q8.h: [block][group][row of the block].
//   FP8   as Q8, with codes, but in each full block of 512 columns column 32 * t + l lies at l * 16 + t: the 16 codes
//         that lane l of dot32 needs are 16 bytes.  k_fp8_at() gives the place of a column in its row.
#pragma once
#include "backend/gpu/gpu.h"

#if GPU_HIP || GPU_CUDA
#define K_BOTH static __host__ __device__ __forceinline__
#else
#define K_BOTH static inline
#endif

enum { K_BLOCK = 256, K_WAVES = K_BLOCK / GPU_WAVE };
enum { K_Q8_GROUP = 128, K_BF16_BLOCK = 256, K_FP8_BLOCK = 512, K_MX_GROUP = 32, K_MX_BYTES = 16, K_TILE = 32 };
// How a product reads its weight.
typedef enum k_mode { K_MODE_Q8, K_MODE_Q8_EXACT, K_MODE_BF16, K_MODE_F32, K_MODE_FP8 } k_mode;

K_BOTH uint32_t k_ceil_div(uint32_t a, uint32_t b) { return a / b + (a % b != 0); }
K_BOTH uint32_t k_q8_groups(uint32_t cols) { return k_ceil_div(cols, K_Q8_GROUP); }

K_BOTH size_t k_q8_stride(uint32_t cols) { return ((size_t)cols + 15) / 16 * 16; }

// Index of the scale of group g of row r; the last block may have fewer than 8 rows.
K_BOTH size_t k_q8_scale_at(uint32_t rows, uint32_t groups, uint32_t r, uint32_t g) {
    uint32_t first = r / 8 * 8, in_block = rows - first < 8 ? rows - first : 8;
    return (size_t)first * groups + (size_t)g * in_block + (r - first);
}

// Place of column `col` within its row of a BF16 weight; see the head of this file.
K_BOTH size_t k_bf16_at(uint32_t rows, uint32_t cols, uint32_t col) {
    uint32_t block = col / K_BF16_BLOCK * K_BF16_BLOCK;
    if (rows == 1 || cols - block < K_BF16_BLOCK) return col;
    return block + col % 32 * 8 + (col - block) / 32;
}

// Place of column `col` within its row of an FP8 weight; see the head of this file.
K_BOTH size_t k_fp8_at(uint32_t cols, uint32_t col) {
    uint32_t block = col / K_FP8_BLOCK * K_FP8_BLOCK;
    return cols - block < K_FP8_BLOCK ? col : block + col % 32 * 16 + (col - block) / 32;
}

// A vector weight (rows == 1), F32 or BF16.
typedef struct k_vector {
    const void *data;
    uint32_t bf16;
} k_vector;
GPU_DEV float k_vector_get(k_vector w, size_t i) {
    return w.bf16 ? gpu_bf16_f32(((const gpu_bf16 *)w.data)[i]) : ((const float *)w.data)[i];
}
// Four of them; i is a multiple of 4.
GPU_DEV gpu_f4 k_vector_get4(k_vector w, size_t i) {
    if (!w.bf16) return gpu_load_f4((const float *)w.data + i);
    const gpu_u2 u = gpu_load_u2((const gpu_bf16 *)w.data + i);
    return gpu_f4{{gpu_as_f32(u.v[0] << 16), gpu_as_f32(u.v[0] & 0xffff0000u), gpu_as_f32(u.v[1] << 16),
                   gpu_as_f32(u.v[1] & 0xffff0000u)}};
}

// ---------------------------------------------------------------- elementary functions (docs/numerics.md, section 3)
GPU_DEV float k_exp(float x) {
    float t = gpu_fma(x, 1.44269504f, 12582912.0f);
    float k = t - 12582912.0f;
    float r = gpu_fma(k, -1.42860677e-6f, gpu_fma(k, -0.693145752f, x));
    float p = 1.98756914e-4f;
    p = gpu_fma(p, r, 1.39819994e-3f);
    p = gpu_fma(p, r, 8.33345205e-3f);
    p = gpu_fma(p, r, 4.16657962e-2f);
    p = gpu_fma(p, r, 1.66666657e-1f);
    p = gpu_fma(p, r, 0.5f);
    p = gpu_fma(p, r * r, r) + 1.0f;
    uint32_t n = gpu_as_u32(t) - 0x4b400000u;
    float y = p * gpu_as_f32((n + 127u) << 23);
    y = x < -87.0f ? 0.0f : y;
    return x > 88.0f ? gpu_as_f32(0x7f800000u) : y;
}

// a / b.  MODERATE: |a| and |b| are in 2^-61 .. 2^61, or a is 1 or 2 and b in 1 .. 2^125.  Then CUDA needs no branch,
// and works at several of them at a time: the steps that it takes itself behind its check of the exponents, rounded
// right (tools/gpu/check_division.cu, on an H200: 5.4e9 random pairs, and all b of three exponents with a of 1, 2 and
// 127; it needs the approximate reciprocal to be right itself where all bits of b's significand are set).
template <bool MODERATE = false> GPU_DEV float k_div(float a, float b) {
#if GPU_CUDA
    if (MODERATE) {
        float r;
        asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(b));
        r = gpu_fma(gpu_fma(-b, r, 1.0f), r, r);
        float q = a * r;
        q = gpu_fma(gpu_fma(-b, q, a), r, q);
        return gpu_fma(gpu_fma(-b, q, a), r, q);
    }
#endif
    return a / b;
}

template <bool MODERATE = false> GPU_DEV float k_sigmoid(float x) {
    const float y = k_div<MODERATE>(1.0f, 1.0f + k_exp(-x));
    return MODERATE && x < -88.0f ? 0.0f : y; // 1 / infinity
}

template <bool MODERATE = false> GPU_DEV float k_tanh(float x) {
    uint32_t sign = gpu_as_u32(x) & 0x80000000u;
    float a = gpu_as_f32(gpu_as_u32(x) & 0x7fffffffu);
    if (MODERATE) a = a < 30.0f ? a : 30.0f; // 1 in any case
    float z = a * a;
    float p = -5.69738355e-3f;
    p = gpu_fma(p, z, 2.06325464e-2f);
    p = gpu_fma(p, z, -5.37377968e-2f);
    p = gpu_fma(p, z, 1.33314207e-1f);
    p = gpu_fma(p, z, -3.33332807e-1f);
    const bool small = a < 0.625f;
    float y = gpu_fma(p * z, a, a), large = 0.0f;
    if (MODERATE || !small) large = 1.0f - k_div<MODERATE>(2.0f, k_exp(a + a) + 1.0f);
    y = small ? y : large;
    return gpu_as_f32(gpu_as_u32(y) | sign);
}

// beta == 0: SWIGLU.
template <bool MODERATE = false> GPU_DEV float k_situ(float g, float u, float beta, float linear_beta) {
    if (beta == 0.0f) return g * k_sigmoid<MODERATE>(g) * u;
    float capped = beta * k_tanh<MODERATE>(k_div<MODERATE>(g, beta));
    return capped * k_sigmoid<MODERATE>(g) * (linear_beta * k_tanh<MODERATE>(k_div<MODERATE>(u, linear_beta)));
}
// Whether k_situ<true> may have these.
GPU_DEV bool k_between(float x, float least, float most) {
    return (gpu_as_u32(x) & 0x7fffffffu) - gpu_as_u32(least) <= gpu_as_u32(most) - gpu_as_u32(least);
}
GPU_DEV bool k_situ_moderate(float g, float u) {
    return k_between(g, 0x1p-40f, 0x1p40f) && (g >= -86.0f || g < -88.0f) && k_between(u, 0x1p-40f, 0x1p40f);
}
GPU_DEV bool k_situ_betas_moderate(float beta, float linear_beta) {
    return beta == 0.0f || (k_between(beta, 0x1p-20f, 0x1p20f) && k_between(linear_beta, 0x1p-20f, 0x1p20f));
}

// 1 / sqrt(mean square + eps) from a sum of squares.
GPU_DEV float k_rms_factor(float sum_squares, uint32_t dim, float eps) {
    return 1.0f / gpu_sqrt(sum_squares / (float)dim + eps);
}

GPU_DEV bool k_finite(float x) { return (gpu_as_u32(x) & 0x7f800000u) != 0x7f800000u; }

// ---------------------------------------------------------------- reductions by one wave (docs/numerics.md, section 1)
// The 32 partial sums are the lanes.
GPU_DEV float k_wave_dot32(const float *x, const float *y, uint32_t n) {
    float s = 0.0f;
    for (uint32_t i = gpu_lane(); i < n; i += GPU_WAVE) s = gpu_fma(x[i], y[i], s);
    return gpu_wave_sum(s);
}

GPU_DEV float k_wave_sum32(const float *x, uint32_t n) {
    float s = 0.0f;
    for (uint32_t i = gpu_lane(); i < n; i += GPU_WAVE) s = s + x[i];
    return gpu_wave_sum(s);
}

// This lane's partial sum of dot32(x, row) over a BF16 row of a weight with more than one row; `aligned`: row is
// 16-aligned.
GPU_DEV float k_lane_dot_bf16(float s, const float *x, const gpu_bf16 *row, uint32_t cols, bool aligned) {
    uint32_t lane = gpu_lane(), at = 0;
    for (; cols - at >= K_BF16_BLOCK; at += K_BF16_BLOCK) {
        const gpu_bf16 *w = row + at + lane * 8;
        const float *v = x + at + lane;
        if (aligned) {
            gpu_u4 q = gpu_load_u4(w);
            GPU_UNROLL
            for (int t = 0; t < 4; t++) {
                s = gpu_fma(v[64 * t], gpu_as_f32(q.v[t] << 16), s);
                s = gpu_fma(v[64 * t + 32], gpu_as_f32(q.v[t] & 0xffff0000u), s);
            }
        } else {
            for (int t = 0; t < 8; t++) s = gpu_fma(v[32 * t], gpu_bf16_f32(w[t]), s);
        }
    }
    for (uint32_t i = at + lane; i < cols; i += GPU_WAVE) s = gpu_fma(x[i], gpu_bf16_f32(row[i]), s);
    return s;
}

// The end of col4 and of the group dots.
GPU_DEV float k_sum4(float p0, float p1, float p2, float p3) { return (p0 + p2) + (p1 + p3); }

// ---------------------------------------------------------------- int8 quantisation (docs/numerics.md, section 2)
typedef struct k_quant {
    float scale, inv; // inv == 0: every q is 0
} k_quant;

// From the largest |x| of the group as bits (a NaN or infinity is larger than every finite value).
template <bool MODERATE = false> GPU_DEV k_quant k_quant_of(uint32_t amax_bits) {
    k_quant k;
    float amax = gpu_as_f32(amax_bits);
    if (MODERATE) {
        k.scale = k_div<true>(amax, 127.0f);
        k.inv = k_div<true>(127.0f, amax);
        return k;
    }
    if (amax_bits >= 0x7f800000u || amax < 0x1p-100f) {
        k.scale = amax_bits >= 0x7f800000u ? gpu_as_f32(0x7fc00000u) : 0.0f;
        k.inv = 0.0f;
    } else {
        k.scale = amax / 127.0f;
        k.inv = 127.0f / amax;
    }
    return k;
}

GPU_DEV uint32_t k_abs_bits(float x) { return gpu_as_u32(x) & 0x7fffffffu; }

// Whether k_quant_of<true> may have it.
GPU_DEV bool k_quant_moderate(uint32_t amax_bits) { return k_between(gpu_as_f32(amax_bits), 0x1p-60f, 0x1p60f); }

GPU_DEV int32_t k_quant_one(float x, k_quant k) {
    if (k.inv == 0.0f) return 0;
    int32_t v = (int32_t)(gpu_as_u32(x * k.inv + 12582912.0f) - 0x4b400000u);
    return v < -127 ? -127 : v > 127 ? 127 : v;
}

GPU_DEV uint32_t k_pack4(int32_t a, int32_t b, int32_t c, int32_t d) {
    return ((uint32_t)a & 0xffu) | ((uint32_t)b & 0xffu) << 8 | ((uint32_t)c & 0xffu) << 16 | (uint32_t)d << 24;
}

// ---------------------------------------------------------------- FP8 e4m3
// The value of the code in the low byte; any value for the codes of NaN.  The bits are those of a float (a subnormal
// one for a subnormal code) 2^120 below it.
GPU_DEV float k_fp8_value(uint32_t code) {
    return gpu_as_f32((code & 0x7fu) << 20 | (code & 0x80u) << 24) * 0x1p120f;
}
GPU_DEV bool k_fp8_nan(uint32_t code) { return (code & 0x7fu) == 0x7fu; }

// ---------------------------------------------------------------- MXFP4
// 2^(e - 128): half of the E8M0 value, for the doubled integers.  e in 0..254.
GPU_DEV float k_half_scale(uint32_t e) { return gpu_as_f32(e < 2 ? 0x200000u << e : (e - 1) << 23); }
// 2^(e - 127)
GPU_DEV float k_e8m0(uint32_t e) { return gpu_as_f32(e == 0 ? 0x00400000u : e << 23); }

// ---------------------------------------------------------------- expert slots: see quant/mxfp4.h for the layout
K_BOTH size_t mx_tile_bytes(uint32_t groups) { return (size_t)groups * K_TILE * (K_MX_BYTES + 1); }
// Bytes of one of the three matrices.
K_BOTH size_t mx_matrix_bytes(uint32_t hidden, uint32_t inner) {
    return (size_t)hidden * (inner / K_MX_GROUP) * (K_MX_BYTES + 1);
}

// Shapes that the kernels take: multiples of 32 whose scale positions fit 32 bits and whose tiles fit a grid.
static inline bool experts_fit(uint32_t hidden, uint32_t inner) {
    return hidden && inner && hidden % K_MX_GROUP == 0 && inner % K_MX_GROUP == 0 && hidden / K_TILE <= 65535 &&
           inner / K_TILE <= 65535 && (uint64_t)hidden * (inner / K_MX_GROUP) < UINT32_MAX;
}
