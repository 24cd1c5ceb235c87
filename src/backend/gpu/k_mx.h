// k_mx.h - what the kernels of routed MXFP4 experts share: items of work, nibbles to bytes, quantised inputs,
// arguments.
//
// Quantised inputs are kept in the order of mx_place(), which differs by target; nothing outside the expert kernels
//   reads them.
// Owns: nothing.  Bits: docs/numerics.md, sections 2 and 4; the oracle is src/backend/cpu/cpu_moe.c.
#pragma once
#include "backend/gpu/gpu_s8.h"
#include "backend/gpu/k_common.h"

#include <string.h>
extern "C" {
#include "backend/backend.h"
}

// Rows of an item: at most EXPERT_FEW for one kernel (k_experts_range.h); at most EXPERT_MANY for the other one, or
// WIDE_MX_X for that of wide tiles (k_experts_wide.h).
enum { EXPERT_FEW = GPU_S8_WMMA ? 32 : 24, EXPERT_MANY = GPU_S8_WMMA ? 64 : 88 };
enum { MX_ITEM_BLOCKS = 1 << 24 }; // most blocks of a launch of many rows, or one item's

// Nibbles are looked up eight at a time, either in their own order (one PRMT takes four nibbles as selectors), or split
// into even and odd ones (selectors of v_perm are bytes).
#ifndef MX_NATURAL
#if GPU_CUDA
#define MX_NATURAL 1
#else
#define MX_NATURAL 0
#endif
#endif

// ---------------------------------------------------------------- descriptor table
typedef struct expert_item {
    const uint8_t *slot;   // device
    uint32_t first, count; // its part of the lists; 1 <= count <= `most` of experts_table_build()
} expert_item;

// Device addresses inside an uploaded table.
typedef struct expert_table {
    const expert_item *items; // first those of at most EXPERT_FEW rows
    const uint32_t *row, *pair;
    uint32_t count, few;
} expert_table;

// Bytes of a table for at most `pairs` pairs.
static inline size_t experts_table_bytes(uint32_t pairs) {
    return (size_t)pairs * (sizeof(expert_item) + 2 * sizeof(uint32_t));
}

// Whether all rows and pairs are in range, and pairs no more than there may be.
static inline bool experts_in_range(const ms_expert_batch *batches, uint32_t count, uint32_t rows, uint32_t pairs) {
    uint64_t total = 0;
    for (uint32_t b = 0; b < count; b++) {
        for (uint32_t i = 0; i < batches[b].count; i++)
            if (batches[b].row[i] >= rows || batches[b].pair[i] >= pairs) return false;
        total += batches[b].count;
    }
    return total <= pairs;
}

// Rows of the items of a batch, but perhaps of the last: as even as columns of the matrix unit allow.
static inline uint32_t experts_item_rows(uint32_t rows, uint32_t most) {
    uint32_t each = k_ceil_div(rows, k_ceil_div(rows, most));
    return k_ceil_div(each, GPU_S8_COLS) * GPU_S8_COLS;
}

// Lays batches that are in range out in `host`, as items of at most `most` rows, a multiple of GPU_S8_COLS; *used:
// bytes to upload to `device`, 8-aligned.
static inline void experts_table_build(expert_table *table, size_t *used, void *host, const void *device,
                                       const ms_expert_batch *batches, uint32_t count, uint32_t most) {
    uint32_t total = 0, items = 0, few = 0;
    for (uint32_t b = 0; b < count; b++) {
        if (batches[b].count == 0) continue;
        uint32_t each = experts_item_rows(batches[b].count, most), n = k_ceil_div(batches[b].count, each);
        total += batches[b].count;
        items += n;
        few += each <= EXPERT_FEW ? n : batches[b].count - (n - 1) * each <= EXPERT_FEW ? 1 : 0;
    }
    expert_item *item = (expert_item *)host;
    uint32_t *row = (uint32_t *)(item + items), *pair = row + total, at = 0, next_few = 0, next_many = few;
    for (uint32_t b = 0; b < count; b++) {
        uint32_t each = batches[b].count ? experts_item_rows(batches[b].count, most) : 0;
        for (uint32_t first = 0; first < batches[b].count; first += each) {
            uint32_t n = batches[b].count - first < each ? batches[b].count - first : each;
            item[n <= EXPERT_FEW ? next_few++ : next_many++] =
                expert_item{(const uint8_t *)batches[b].slot, at + first, n};
        }
        memcpy(row + at, batches[b].row, batches[b].count * sizeof *row);
        memcpy(pair + at, batches[b].pair, batches[b].count * sizeof *pair);
        at += batches[b].count;
    }
    table->count = items;
    table->few = few;
    table->items = (const expert_item *)device;
    table->row = (const uint32_t *)(table->items + items);
    table->pair = table->row + total;
    *used = (size_t)items * sizeof(expert_item) + 2 * (size_t)total * sizeof(uint32_t);
}

// ---------------------------------------------------------------- places
// Byte of element i of a quantised group.
GPU_DEV uint32_t mx_place(uint32_t i) { return MX_NATURAL ? i : i / 2 + i % 2 * K_MX_BYTES; }
GPU_DEV uint32_t mx_word(uint32_t j, uint32_t half) { return MX_NATURAL ? 2 * j + half : j + 4 * half; }

// ---------------------------------------------------------------- nibbles to signed bytes: 2 x value
// u[0] goes with the input word mx_word(j, 0), u[1] with mx_word(j, 1), j the number of the weight word.
#define MX_UP_LO   0x03020100u // 0 1 2 3
#define MX_UP_HI   0x0c080604u // 4 6 8 12
#define MX_DOWN_LO 0xfdfeff00u // the same, negative
#define MX_DOWN_HI 0xf4f8fafcu

#if !GPU_HIP
// The low four nibbles of sel, below 8, pick bytes of hi:lo.
GPU_DEV uint32_t mx_prmt(uint32_t lo, uint32_t hi, uint32_t sel) {
#if GPU_CUDA
    uint32_t r;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(lo), "r"(hi), "r"(sel));
    return r;
#else
    uint64_t t = (uint64_t)hi << 32 | lo;
    uint32_t r = 0;
    for (int i = 0; i < 4; i++) r |= (uint32_t)(t >> 8 * (sel >> 4 * i & 7u) & 0xffu) << 8 * i;
    return r;
#endif
}
#endif

#if MX_NATURAL
// Four codes by their values, and for each of them the choice of sign.
GPU_DEV uint32_t mx_four(uint32_t sel, uint32_t sign) {
    return mx_prmt(mx_prmt(MX_UP_LO, MX_UP_HI, sel), mx_prmt(MX_DOWN_LO, MX_DOWN_HI, sel), sign);
}
GPU_DEV void mx_eight(uint32_t (&u)[2], uint32_t q) {
    const uint32_t sel = q & 0x77777777u, sign = (q >> 1 & 0x44444444u) | 0x32103210u;
    u[0] = mx_four(sel, sign);
    u[1] = mx_four(sel >> 16, sign >> 16);
}
#else
GPU_DEV uint32_t mx_four(uint32_t code) { // a code a byte
    uint32_t sel = code & 0x07070707u, minus = gpu_lut8(0x0000ff00u, 0, code >> 3 & 0x01010101u);
    return (gpu_lut8(MX_UP_LO, MX_UP_HI, sel) & ~minus) | (gpu_lut8(MX_DOWN_LO, MX_DOWN_HI, sel) & minus);
}
GPU_DEV void mx_eight(uint32_t (&u)[2], uint32_t q) {
    u[0] = mx_four(q & 0x0f0f0f0fu);
    u[1] = mx_four(q >> 4 & 0x0f0f0f0fu);
}
#endif

// ---------------------------------------------------------------- input quantisation: a wave a group
// This lane's value is element `lane` of the group.
GPU_DEV void mx_quantize(uint8_t *q, float *scale, float x) {
    k_quant k = k_quant_of(gpu_wave_max_u32(k_abs_bits(x)));
    q[mx_place(gpu_lane())] = (uint8_t)k_quant_one(x, k);
    if (gpu_lane() == 0) *scale = k.scale;
}

// ---------------------------------------------------------------- arguments
// A row of an expert that is alone.
typedef struct expert_pick {
    const uint8_t *slot;
    uint32_t row, pair;
} expert_pick;
enum { EXPERT_PICKS = 64 };

typedef struct experts_args {
    uint32_t hidden, inner;
    float beta, linear_beta;
    expert_table table;
    // fast: quantised rows of z and of the activations; reference: the same as floats
    const uint8_t *z_q;
    const float *z_s, *z;
    uint8_t *act_q;
    float *act_s, *act;
    float *y; // [pairs][hidden]
    // Items of many rows by k_experts_wide.h, on a device of gpu_wide_device(): it has rows of halves, z[rows].
    bool wide;
    uint32_t rows;
    uint8_t *z_h, *act_h;
    float *z_hs, *act_hs;
} experts_args;

// ---------------------------------------------------------------- host
// Items [first, first + count) of the table, a block for a tile of gate and of up (INNER) or for two of the down
// product: launch(its first item, its blocks), as often as a grid's limit asks for.
template <bool INNER, class F>
static inline void mx_launches(const experts_args &a, uint32_t first, uint32_t count, F launch) {
    const uint32_t blocks = INNER ? a.inner / K_TILE : k_ceil_div(a.hidden / K_TILE, 2);
    const uint32_t most = MX_ITEM_BLOCKS / blocks ? MX_ITEM_BLOCKS / blocks : 1;
    for (uint32_t done = 0; done < count; done += most) {
        const uint32_t n = count - done < most ? count - done : most;
        launch(first + done, n * blocks);
    }
}
