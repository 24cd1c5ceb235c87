// k_plain.h - rows of a weight, or of activations, as plain row-major rows of one type: what matrix libraries take.
//
// Owns: nothing.  Errors: the launcher does not fail; the caller asks gpuGetLastError().
#pragma once
#include "backend/gpu/k_common.h"

// Rows [first, first + n) of a weight of rows x cols in the layout of its mode (k_common.h).  Activations are an F32
// weight.
typedef struct k_plain_args {
    void *to;      // [n][stride]
    size_t stride; // elements, at least cols; zeros behind the last column
    uint32_t bf16; // the type of `to`; else f32
    uint32_t mode; // k_mode; both Q8 modes are the same here
    const void *data;
    const float *scales;
    uint32_t rows, cols, first, n;
} k_plain_args;

GPU_DEV float k_plain_value(const k_plain_args *a, uint32_t row, uint32_t col) {
    const size_t at = (size_t)row * a->cols;
    if (a->mode == K_MODE_F32) return ((const float *)a->data)[at + col];
    if (a->mode == K_MODE_BF16) return gpu_bf16_f32(((const gpu_bf16 *)a->data)[at + k_bf16_at(a->rows, a->cols, col)]);
    const uint8_t *codes = (const uint8_t *)a->data + row * k_q8_stride(a->cols);
    const float scale = a->scales[k_q8_scale_at(a->rows, k_q8_groups(a->cols), row, col / K_Q8_GROUP)];
    if (a->mode == K_MODE_FP8) return k_fp8_value(codes[k_fp8_at(a->cols, col)]) * scale;
    return (float)(int8_t)codes[col] * scale;
}

// A wave takes 128 columns of a row, a lane four neighbours.
GPU_KERNEL GPU_BOUNDS(K_BLOCK, 4) kern_plain(k_plain_args a) {
    const uint32_t groups = (uint32_t)((a.stride + K_Q8_GROUP - 1) / K_Q8_GROUP);
    const uint64_t item = (uint64_t)gpu_bx() * K_WAVES + gpu_wave();
    if (item >= (uint64_t)a.n * groups) return;
    const uint32_t i = (uint32_t)(item / groups), col = (uint32_t)(item % groups) * K_Q8_GROUP + gpu_lane() * 4;
    GPU_UNROLL
    for (uint32_t e = 0; e < 4; e++) {
        if (col + e >= a.stride) break;
        const float x = col + e < a.cols ? k_plain_value(&a, a.first + i, col + e) : 0.0f;
        if (a.bf16)
            ((gpu_bf16 *)a.to)[i * a.stride + col + e] = gpu_f32_bf16(x);
        else
            ((float *)a.to)[i * a.stride + col + e] = x;
    }
}

static void k_plain(gpuStream_t stream, const k_plain_args *a) {
    const uint64_t items = a->n * ((a->stride + K_Q8_GROUP - 1) / K_Q8_GROUP);
    if (items) GPU_LAUNCH(kern_plain, (uint32_t)((items + K_WAVES - 1) / K_WAVES), K_BLOCK, stream, *a);
}
