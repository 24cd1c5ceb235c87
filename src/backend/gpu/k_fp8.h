// k_fp8.h - products of FP8 weights (docs/numerics.md, section 2): dot32 of the input and the decoded row, in both
// precisions.
//
// Owns: nothing.  Invariants: an output element is computed by one wave in the documented order.
// Errors: the launcher does not fail; the caller asks gpuGetLastError().
#pragma once
#include "backend/gpu/k_common.h"

enum {
    K_FP8_PRODUCTS = 8,
    K_FP8_STEPS = K_FP8_BLOCK / GPU_WAVE, // codes of a lane in a block: 16 bytes
    K_FP8_GRID_Y = 65535
};

typedef struct k_fp8_product {
    const uint8_t *data; // in the layout of k_common.h
    const float *scales;
    float *out; // [n] rows, out_stride floats apart
    size_t out_stride;
    uint32_t rows;
    uint32_t block_end; // set by the launcher: first block behind this product
} k_fp8_product;

// Products of the same input rows.
typedef struct k_fp8_args {
    k_fp8_product product[K_FP8_PRODUCTS];
    uint32_t count;
    const float *x; // [n][cols]
    uint32_t n, cols;
} k_fp8_args;

// Half of the lane's codes of a full block, of ROWS rows, and up to NX input rows into s.
template <int NX, int ROWS>
GPU_DEV void k_fp8_half(float (&s)[NX][ROWS], const uint32_t (&w)[ROWS][2], const float *const (&scale)[ROWS],
                        uint32_t scale_at, uint32_t scale_step, const float *x, uint32_t cols, uint32_t nx) {
    GPU_UNROLL
    for (uint32_t t = 0; t < K_FP8_STEPS / 2; t++) {
        const uint32_t g = t * GPU_WAVE / K_Q8_GROUP;
        float value[ROWS];
        GPU_UNROLL
        for (int r = 0; r < ROWS; r++)
            value[r] = k_fp8_value(w[r][t / 4] >> t % 4 * 8) * scale[r][scale_at + g * scale_step];
        GPU_UNROLL
        for (uint32_t i = 0; i < NX; i++) {
            if (i >= nx) break;
            const float v = x[(size_t)i * cols + t * GPU_WAVE];
            GPU_UNROLL
            for (int r = 0; r < ROWS; r++) s[i][r] = gpu_fma(v, value[r], s[i][r]);
        }
    }
}

// ROWS rows from row0 on times up to NX input rows from x0 on.
template <int NX, int ROWS>
GPU_DEV void k_fp8_tile(const k_fp8_product *p, const k_fp8_args *a, uint32_t row0, uint32_t x0) {
    const uint32_t lane = gpu_lane(), cols = a->cols, groups = k_q8_groups(cols);
    const uint32_t nx = a->n - x0 < NX ? a->n - x0 : (uint32_t)NX, in_block = p->rows - row0 / 8 * 8;
    const uint32_t scale_step = in_block < 8 ? in_block : 8;
    const float *x = a->x + (size_t)x0 * cols + lane;
    const uint8_t *data[ROWS];
    const float *scale[ROWS];
    float s[NX][ROWS];
    GPU_UNROLL
    for (uint32_t r = 0; r < ROWS; r++) {
        const uint32_t row = row0 + r < p->rows ? row0 + r : p->rows - 1;
        data[r] = p->data + (size_t)row * k_q8_stride(cols);
        scale[r] = p->scales + k_q8_scale_at(p->rows, groups, row, 0);
        GPU_UNROLL
        for (int i = 0; i < NX; i++) s[i][r] = 0.0f;
    }
    uint32_t at = 0;
    GPU_ROLLED
    for (; cols - at >= K_FP8_BLOCK; at += K_FP8_BLOCK) {
        gpu_u4 w[ROWS];
        GPU_UNROLL
        for (int r = 0; r < ROWS; r++) w[r] = gpu_load_u4(data[r] + at + lane * K_FP8_STEPS);
        GPU_ROLLED
        for (uint32_t half = 0; half < 2; half++) { // not both at once: registers
            uint32_t words[ROWS][2];
            GPU_UNROLL
            for (int r = 0; r < ROWS; r++) {
                words[r][0] = half ? w[r].v[2] : w[r].v[0];
                words[r][1] = half ? w[r].v[3] : w[r].v[1];
            }
            const uint32_t col = at + half * (K_FP8_BLOCK / 2);
            k_fp8_half<NX, ROWS>(s, words, scale, col / K_Q8_GROUP * scale_step, scale_step, x + col, cols, nx);
        }
    }
    GPU_ROLLED
    for (uint32_t i = at; i + lane < cols; i += GPU_WAVE) {
        GPU_UNROLL
        for (int r = 0; r < ROWS; r++) {
            const float ws = scale[r][i / K_Q8_GROUP * scale_step], value = k_fp8_value(data[r][i + lane]) * ws;
            GPU_UNROLL
            for (uint32_t j = 0; j < NX; j++)
                if (j < nx) s[j][r] = gpu_fma(x[(size_t)j * cols + i], value, s[j][r]);
        }
    }
    GPU_UNROLL
    for (uint32_t j = 0; j < NX; j++) {
        if (j >= nx) break;
        GPU_UNROLL
        for (uint32_t r = 0; r < ROWS; r++) {
            const float y = gpu_wave_sum(s[j][r]);
            if (lane == 0 && row0 + r < p->rows) p->out[(x0 + j) * p->out_stride + row0 + r] = y;
        }
    }
}

// Rows of a wave: as many as share a block of scales.
template <int NX> struct k_fp8_rows {
    enum { N = NX == 1 ? 2 : 4 };
};

template <int NX> GPU_KERNEL GPU_BOUNDS(K_BLOCK, 2) kern_project_fp8(k_fp8_args a) {
    enum { ROWS = k_fp8_rows<NX>::N };
    gpu_begin();
    k_fp8_product p = a.product[0];
    uint32_t first = 0;
    GPU_UNROLL
    for (uint32_t i = 1; i < K_FP8_PRODUCTS; i++) {
        if (i < a.count && gpu_bx() >= a.product[i - 1].block_end) {
            first = a.product[i - 1].block_end;
            p = a.product[i];
        }
    }
    const uint32_t row0 = gpu_uniform((gpu_bx() - first) * K_WAVES + gpu_wave()) * ROWS;
    if (row0 >= p.rows) return;
    for (uint32_t x = gpu_by() * NX; x < a.n; x += gpu_nby() * NX) k_fp8_tile<NX, ROWS>(&p, &a, row0, x);
}

template <int NX> static inline void k_fp8_launch(gpuStream_t stream, k_fp8_args a) {
    uint32_t blocks = 0, y = k_ceil_div(a.n, NX);
    for (uint32_t i = 0; i < a.count; i++) {
        blocks += k_ceil_div(a.product[i].rows, K_WAVES * (uint32_t)k_fp8_rows<NX>::N);
        a.product[i].block_end = blocks;
    }
    GPU_LAUNCH_EARLY(kern_project_fp8<NX>, gpuDim3(blocks, y < K_FP8_GRID_Y ? y : (uint32_t)K_FP8_GRID_Y), K_BLOCK,
                     stream, a);
}

static inline void k_project_fp8(gpuStream_t stream, const k_fp8_args *a) {
    if (!a->count || !a->n) return;
    if (a->n == 1)
        k_fp8_launch<1>(stream, *a);
    else
        k_fp8_launch<4>(stream, *a);
}
