// k_convert.h - raw rows of a checkpoint to the layouts of weights (docs/numerics.md, section 2).
//
// Owns: nothing.  Errors: the launcher does not fail; the caller asks gpuGetLastError().
#pragma once
#include "backend/gpu/k_common.h"

// Rows [first, first + n), columns [col0, col0 + window) of a weight, from raw rows of `window` elements.  col0 is a
// multiple of 256.  A row with a value that is not finite, or for BF16 is not after rounding, lowers *bad to bad_base +
// its index.
typedef struct k_convert_args {
    const void *raw;
    uint32_t raw_bf16; // else F32
    void *data;
    float *scales;
    uint32_t mode; // K_MODE_Q8, _BF16 or _F32
    uint32_t rows, cols, first, n, col0, window;
    uint32_t *bad;
    uint32_t bad_base;
} k_convert_args;

GPU_DEV bool k_convert_plain(const k_convert_args *a, uint32_t row, uint32_t col, float x) {
    if (a->mode == K_MODE_F32) {
        ((float *)a->data)[(size_t)row * a->cols + col] = x;
        return k_finite(x);
    }
    gpu_bf16 h = gpu_f32_bf16(x);
    ((gpu_bf16 *)a->data)[(size_t)row * a->cols + k_bf16_at(a->rows, a->cols, col)] = h;
    return k_finite(gpu_bf16_f32(h));
}

// A wave takes 128 columns of a row, a lane four neighbours.
GPU_KERNEL GPU_BOUNDS(K_BLOCK, 4) kern_convert(k_convert_args a) {
    const uint32_t groups = k_q8_groups(a.window);
    const uint64_t item = (uint64_t)gpu_bx() * K_WAVES + gpu_wave();
    if (item >= (uint64_t)a.n * groups) return;
    const uint32_t i = (uint32_t)(item / groups), row = a.first + i;
    const uint32_t in = (uint32_t)(item % groups) * K_Q8_GROUP + gpu_lane() * 4;
    const size_t at = (size_t)i * a.window + in;
    float x[4];
    uint32_t amax = 0;
    bool ok = true;
    GPU_UNROLL
    for (uint32_t e = 0; e < 4; e++) {
        x[e] = 0.0f;
        if (in + e >= a.window) continue;
        x[e] = a.raw_bf16 ? gpu_bf16_f32(((const gpu_bf16 *)a.raw)[at + e]) : ((const float *)a.raw)[at + e];
        if (a.mode == K_MODE_Q8)
            amax = k_abs_bits(x[e]) > amax ? k_abs_bits(x[e]) : amax;
        else
            ok = k_convert_plain(&a, row, a.col0 + in + e, x[e]) && ok;
    }
    if (a.mode == K_MODE_Q8) {
        amax = gpu_wave_max_u32(amax);
        k_quant k = k_quant_of(amax);
        ok = amax < 0x7f800000u;
        const uint32_t col = a.col0 + in;
        const size_t stride = k_q8_stride(a.cols);
        if (col < stride) {
            uint32_t q =
                k_pack4(k_quant_one(x[0], k), k_quant_one(x[1], k), k_quant_one(x[2], k), k_quant_one(x[3], k));
            *(uint32_t *)((int8_t *)a.data + row * stride + col) = q;
        }
        if (gpu_lane() == 0) a.scales[k_q8_scale_at(a.rows, k_q8_groups(a.cols), row, col / K_Q8_GROUP)] = k.scale;
    }
    if (!ok) (void)gpu_atomic_min(a.bad, a.bad_base + i);
}

static void k_convert(gpuStream_t stream, const k_convert_args *a) {
    uint64_t items = (uint64_t)a->n * k_q8_groups(a->window);
    if (items) GPU_LAUNCH(kern_convert, (uint32_t)((items + K_WAVES - 1) / K_WAVES), K_BLOCK, stream, *a);
}

// ---------------------------------------------------------------- FP8 records (quant/fp8.h)
// The same from rows of scales and codes; `window` is a multiple of 512, or all that is left of the row.
typedef struct k_convert_fp8_args {
    const uint8_t *raw; // rows row_bytes apart: a scale for each group of the window, then its codes; any alignment
    size_t row_bytes;
    void *data;
    float *scales;
    uint32_t mode; // K_MODE_FP8, _Q8, _BF16 or _F32
    uint32_t rows, cols, first, n, col0, window;
    uint32_t *bad;
    uint32_t bad_base;
} k_convert_fp8_args;

// A wave takes 128 columns of a row, a lane four neighbours.
GPU_KERNEL GPU_BOUNDS(K_BLOCK, 4) kern_convert_fp8(k_convert_fp8_args a) {
    const uint32_t groups = k_q8_groups(a.window);
    const uint64_t item = (uint64_t)gpu_bx() * K_WAVES + gpu_wave();
    if (item >= (uint64_t)a.n * groups) return;
    const uint32_t i = (uint32_t)(item / groups), row = a.first + i, group = (uint32_t)(item % groups);
    const uint32_t in = group * K_Q8_GROUP + gpu_lane() * 4, col = a.col0 + in;
    const uint8_t *record = a.raw + i * a.row_bytes, *scale_at = record + group * sizeof(float),
                  *codes = record + groups * sizeof(float) + in;
    const float scale = gpu_as_f32((uint32_t)scale_at[0] | (uint32_t)scale_at[1] << 8 | (uint32_t)scale_at[2] << 16 |
                                   (uint32_t)scale_at[3] << 24);
    k_convert_args plain = {};
    plain.data = a.data;
    plain.mode = a.mode;
    plain.rows = a.rows;
    plain.cols = a.cols;
    float x[4];
    uint32_t amax = 0;
    bool ok = true;
    GPU_UNROLL
    for (uint32_t e = 0; e < 4; e++) {
        x[e] = 0.0f;
        if (in + e >= a.window) continue;
        const uint32_t code = codes[e];
        x[e] = k_fp8_value(code) * scale;
        ok = ok && !k_fp8_nan(code) && k_finite(x[e]);
        amax = gpu_max_u32(amax, k_abs_bits(x[e]));
        if (a.mode == K_MODE_FP8)
            ((uint8_t *)a.data)[row * k_q8_stride(a.cols) + k_fp8_at(a.cols, col + e)] = (uint8_t)code;
        else if (a.mode != K_MODE_Q8)
            ok = k_convert_plain(&plain, row, col + e, x[e]) && ok;
    }
    const size_t to = k_q8_scale_at(a.rows, k_q8_groups(a.cols), row, col / K_Q8_GROUP);
    if (a.mode == K_MODE_FP8 && gpu_lane() == 0) a.scales[to] = scale;
    if (a.mode == K_MODE_Q8) {
        const k_quant k = k_quant_of(gpu_wave_max_u32(amax));
        const size_t stride = k_q8_stride(a.cols);
        if (col < stride)
            *(uint32_t *)((int8_t *)a.data + row * stride + col) =
                k_pack4(k_quant_one(x[0], k), k_quant_one(x[1], k), k_quant_one(x[2], k), k_quant_one(x[3], k));
        if (gpu_lane() == 0) a.scales[to] = k.scale;
    }
    if (!ok) (void)gpu_atomic_min(a.bad, a.bad_base + i);
}

static void k_convert_fp8(gpuStream_t stream, const k_convert_fp8_args *a) {
    uint64_t items = (uint64_t)a->n * k_q8_groups(a->window);
    if (items) GPU_LAUNCH(kern_convert_fp8, (uint32_t)((items + K_WAVES - 1) / K_WAVES), K_BLOCK, stream, *a);
}
