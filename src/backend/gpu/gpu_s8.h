// gpu_s8.h - exact products of int8 matrices by one wave, on the matrix units where the target has them.
//
// gpu_mma_s8: NVIDIA's arrangement of a product, 16 x 32 times 32 x 8 (the emulator has it too).
// gpu_s8_product: a product for any target, s = start + left * right.  It sums each of 16 left rows of 32 bytes with
// each
//   of GPU_S8_COLS right rows.  Bytes are told apart by the word (of four) that a lane gives them in; both sides must
//   use the same order. Arrangement 0, NVIDIA, q = lane / 4: left words {row q, row q + 8, row q, row q + 8}, right
//   words {row q, row q};
//     words 0, 1 of a left side meet word 0 of the right one, words 2, 3 meet word 1.  The four lanes of a row share
//     its 32 bytes.
//   Arrangement 1, AMD: left and right words are the whole row lane % 16; both halves of the wave have the same ones.
//   Sum i of a lane is of left row gpu_s8_row(i) and right row gpu_s8_col(i); the lane has GPU_S8_LANE_ROWS different
//   left rows, numbered by gpu_s8_row_of(i), and GPU_S8_LANE_COLS right ones, numbered by gpu_s8_col_of(i).
// GPU_S8_WMMA chooses the arrangement on the emulator.
#pragma once
#include "backend/gpu/gpu.h"

#if !defined(GPU_S8_WMMA)
#if GPU_HIP
#define GPU_S8_WMMA 1
#else
#define GPU_S8_WMMA 0
#endif
#endif

// ---------------------------------------------------------------- c += a * b, 16 x 32 and 32 x 8
// Lane l, quarter t = l % 4, has
//   c[0], c[1]: row l / 4, columns 2 t, 2 t + 1; c[2], c[3]: the same of row l / 4 + 8
//   a[0], a[1]: rows l / 4 and l / 4 + 8, k from 4 t on; a[2], a[3]: the same, k from 16 + 4 t on
//   b[0], b[1]: column l / 4, k from 4 t and from 16 + 4 t on
// gpu_mma_s8_from: c = start + a * b.
#if GPU_CUDA
GPU_DEV void gpu_mma_s8_from(int32_t (&c)[4], int32_t start, const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %10, %10, %10};"
        : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(start));
}
GPU_DEV void gpu_mma_s8(int32_t (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#elif GPU_EMU
GPU_DEV void gpu_mma_s8(int32_t (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    const uint32_t mine[6] = {a[0], a[1], a[2], a[3], b[0], b[1]}, lane = gpu_tid() % GPU_WAVE;
    const gpu_emu_words *all = gpu_emu_share(mine, 6);
    for (uint32_t t = 0; t < 4; t++) {
        const uint32_t *left = all[lane / 4 * 4 + t].v, *even = all[lane % 4 * 8 + t].v,
                       *odd = all[lane % 4 * 8 + 4 + t].v;
        for (uint32_t half = 0; half < 2; half++) {
            c[0] = gpu_dot4(left[2 * half], even[4 + half], c[0]);
            c[1] = gpu_dot4(left[2 * half], odd[4 + half], c[1]);
            c[2] = gpu_dot4(left[2 * half + 1], even[4 + half], c[2]);
            c[3] = gpu_dot4(left[2 * half + 1], odd[4 + half], c[3]);
        }
    }
}
GPU_DEV void gpu_mma_s8_from(int32_t (&c)[4], int32_t start, const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    for (int i = 0; i < 4; i++) c[i] = start;
    gpu_mma_s8(c, a, b);
}
#endif

// ---------------------------------------------------------------- any target
enum { GPU_S8_ROWS = 16 };
#if GPU_S8_WMMA
enum {
    GPU_S8_COLS = 16,
    GPU_S8_SUMS = 8,
    GPU_S8_LEFT = 8,
    GPU_S8_RIGHT = 8,
    GPU_S8_LANE_ROWS = 1,
    GPU_S8_LANE_COLS = 8
};
GPU_DEV uint32_t gpu_s8_row_of(uint32_t) { return 0; }
GPU_DEV uint32_t gpu_s8_col_of(uint32_t i) { return i; }
GPU_DEV uint32_t gpu_s8_row(uint32_t) { return gpu_tid() % 16; }
GPU_DEV uint32_t gpu_s8_col(uint32_t i) { return 2 * i + gpu_tid() % GPU_WAVE / 16; }
#if defined(__gfx1100__) || defined(__gfx1101__) || defined(__gfx1102__) || defined(__gfx1103__) ||                    \
    defined(__gfx1150__) || defined(__gfx1151__) || defined(__gfx1152__)
typedef int gpu_i4 __attribute__((ext_vector_type(4)));
typedef int gpu_i8 __attribute__((ext_vector_type(8)));
// The instruction's rows run over the registers of a lane: they are our right side.
GPU_DEV void gpu_s8_product(int32_t (&s)[8], int32_t start, const uint32_t (&l)[8], const uint32_t (&r)[8]) {
    gpu_i8 c = {start, start, start, start, start, start, start, start};
    GPU_UNROLL
    for (int k = 0; k < 8; k += 4) {
        gpu_i4 left = {(int)l[k], (int)l[k + 1], (int)l[k + 2], (int)l[k + 3]};
        gpu_i4 right = {(int)r[k], (int)r[k + 1], (int)r[k + 2], (int)r[k + 3]};
        c = __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32(true, right, true, left, c, false);
    }
    GPU_UNROLL
    for (int i = 0; i < 8; i++) s[i] = c[i];
}
#elif GPU_EMU
GPU_DEV void gpu_s8_product(int32_t (&s)[8], int32_t start, const uint32_t (&l)[8], const uint32_t (&r)[8]) {
    const gpu_emu_words *all = gpu_emu_share(r, 8);
    for (uint32_t i = 0; i < 8; i++) s[i] = start;
    for (uint32_t i = 0; i < 8; i++)
        for (uint32_t k = 0; k < 8; k++) s[i] = gpu_dot4(l[k], all[gpu_s8_col(i)].v[k], s[i]);
}
#else // a part without these instructions
GPU_DEV void gpu_s8_product(int32_t (&s)[8], int32_t start, const uint32_t (&l)[8], const uint32_t (&r)[8]) {
    for (uint32_t i = 0; i < 8; i++) s[i] = start;
    for (uint32_t i = 0; i < 8; i++)
        for (uint32_t k = 0; k < 8; k++) s[i] = gpu_dot4(l[k], gpu_shfl(r[k], (int)gpu_s8_col(i)), s[i]);
}
#endif
#else
enum {
    GPU_S8_COLS = 8,
    GPU_S8_SUMS = 4,
    GPU_S8_LEFT = 4,
    GPU_S8_RIGHT = 2,
    GPU_S8_LANE_ROWS = 2,
    GPU_S8_LANE_COLS = 2
};
GPU_DEV uint32_t gpu_s8_row_of(uint32_t i) { return i / 2; }
GPU_DEV uint32_t gpu_s8_col_of(uint32_t i) { return i % 2; }
GPU_DEV uint32_t gpu_s8_row(uint32_t i) { return gpu_tid() % GPU_WAVE / 4 + i / 2 * 8; }
GPU_DEV uint32_t gpu_s8_col(uint32_t i) { return gpu_tid() % 4 * 2 + i % 2; }
GPU_DEV void gpu_s8_product(int32_t (&s)[4], int32_t start, const uint32_t (&l)[4], const uint32_t (&r)[2]) {
    gpu_mma_s8_from(s, start, l, r);
}
#endif
