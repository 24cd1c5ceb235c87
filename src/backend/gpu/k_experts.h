// k_experts.h - routed MXFP4 experts on the slot layout: input quantisation, gate and up with SITU, down, weighted sum
// and norm.
//
// Work: an item is up to EXPERT_ROWS rows of one expert; a block of 4 waves takes one item through a tile of 32 weight
//   rows (gate and up: a tile of each).  Lane = weight row, wave = group % 4 = partial sum; a 16-byte piece of weights
//   serves every row of the item.  Blocks of the same tile are neighbours in the grid, so that items of one expert
//   share its bytes in cache.
// Quantised inputs are kept in the order of mx_place(), which differs by target; nothing outside this file reads them.
// Owns: nothing.  Bits: docs/numerics.md, sections 2 and 4; the oracle is src/backend/cpu/cpu_moe.c.
#pragma once
#include "backend/gpu/k_common.h"

#include <string.h>
extern "C" {
#include "backend/backend.h"
}

enum {
    EXPERT_ROWS = 8,      // rows of an item
    EXPERT_THREADS = 128,
    // GPU_BOUNDS of the products: 120 registers on AMD, 128 on NVIDIA.
    // EXPERT_TOGETHER: groups of a wave whose weights are under way at a time, of a single row.
#if GPU_HIP
    EXPERT_RESIDENT = 6,
    EXPERT_TOGETHER = 2
#else
    EXPERT_RESIDENT = 4,
    EXPERT_TOGETHER = 4
#endif
};

// Nibbles are looked up eight at a time, either in their own order (one PRMT takes four nibbles as selectors), or split
// into even and odd ones (selectors of v_perm are bytes).
#ifndef MX_NATURAL
  #if GPU_CUDA
    #define MX_NATURAL 1
  #else
    #define MX_NATURAL 0
  #endif
#endif

#if GPU_HIP || GPU_CUDA
  #define EXPERT_PRAGMA(x) _Pragma(#x)
  #define EXPERT_UNROLL(n) EXPERT_PRAGMA(unroll n)
#else
  #define EXPERT_UNROLL(n) (void)n;
#endif

// ---------------------------------------------------------------- descriptor table
typedef struct expert_item {
    const uint8_t *slot; // device
    uint32_t first, count; // its part of the lists; 1 <= count <= EXPERT_ROWS
} expert_item;

// Device addresses inside an uploaded table.
typedef struct expert_table {
    const expert_item *items;
    const uint32_t *row, *pair;
    uint32_t count, largest; // items; most rows of an item
} expert_table;

// Bytes of a table for at most `pairs` pairs.
static inline size_t experts_table_bytes(uint32_t pairs) {
    return (size_t)pairs * (sizeof(expert_item) + 2 * sizeof(uint32_t));
}

// Lays the batches out in `host`; *used: bytes to upload to `device`, 16-aligned.  Fails (false, nothing is to be
// uploaded) when a row or pair is out of range or there are more than `pairs` of them.
static inline bool experts_table_build(expert_table *table, size_t *used, void *host, const void *device,
                                       const ms_expert_batch *batches, uint32_t count, uint32_t rows, uint32_t pairs) {
    uint64_t total = 0, items = 0;
    for (uint32_t b = 0; b < count; b++) {
        for (uint32_t i = 0; i < batches[b].count; i++)
            if (batches[b].row[i] >= rows || batches[b].pair[i] >= pairs) return false;
        total += batches[b].count;
        items += k_ceil_div(batches[b].count, EXPERT_ROWS);
    }
    if (total > pairs) return false;
    expert_item *item = (expert_item *)host;
    uint32_t *row = (uint32_t *)(item + items), *pair = row + total, at = 0;
    *table = expert_table{};
    for (uint32_t b = 0; b < count; b++) {
        for (uint32_t first = 0; first < batches[b].count; first += EXPERT_ROWS) {
            uint32_t n = batches[b].count - first < EXPERT_ROWS ? batches[b].count - first : (uint32_t)EXPERT_ROWS;
            *item++ = expert_item{(const uint8_t *)batches[b].slot, at, n};
            memcpy(row + at, batches[b].row + first, n * sizeof *row);
            memcpy(pair + at, batches[b].pair + first, n * sizeof *pair);
            at += n;
            if (n > table->largest) table->largest = n;
        }
    }
    table->count = (uint32_t)items;
    table->items = (const expert_item *)device;
    table->row = (const uint32_t *)(table->items + items);
    table->pair = table->row + total;
    *used = (size_t)items * sizeof(expert_item) + 2 * (size_t)total * sizeof(uint32_t);
    return true;
}

// ---------------------------------------------------------------- places
// Byte of element i of a quantised group.
GPU_DEV uint32_t mx_place(uint32_t i) { return MX_NATURAL ? i : i / 2 + i % 2 * K_MX_BYTES; }

// ---------------------------------------------------------------- nibbles to signed bytes
// Eight codes as bytes of 12 + 2 x value (0..24), so that no byte needs a sign: the caller takes 12 x (sum of x) off
// again. u[0] goes with the input word mx_word(j, 0), u[1] with mx_word(j, 1), j the number of the weight word.
#define MX_UP_LO 0x0f0e0d0cu   // 12 + 0 1 2 3
#define MX_UP_HI 0x18141210u   // 12 + 4 6 8 12
#define MX_DOWN_LO 0x090a0b0cu // 12 - 0 1 2 3
#define MX_DOWN_HI 0x00040608u // 12 - 4 6 8 12
GPU_DEV uint32_t mx_word(uint32_t j, uint32_t half) { return MX_NATURAL ? 2 * j + half : j + 4 * half; }

#if MX_NATURAL
// Nibbles of sel pick bytes of hi:lo; bit 3 of a nibble: the byte's sign instead, eight times.
GPU_DEV uint32_t mx_prmt(uint32_t lo, uint32_t hi, uint32_t sel) {
  #if GPU_CUDA
    uint32_t r;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(lo), "r"(hi), "r"(sel));
    return r;
  #else
    uint64_t t = (uint64_t)hi << 32 | lo;
    uint32_t r = 0;
    for (int i = 0; i < 4; i++) {
        uint32_t s = sel >> 4 * i & 15u, b = (uint32_t)(t >> 8 * (s & 7u)) & 0xffu;
        r |= (s & 8u ? (b & 0x80u ? 0xffu : 0u) : b) << 8 * i;
    }
    return r;
  #endif
}
GPU_DEV uint32_t mx_four(uint32_t q) {
    uint32_t sel = q & 0x7777u, minus = mx_prmt(0x80808080u, 0x80808080u, q); // bits 0..6 of a byte: its nibble's sign
    return (mx_prmt(MX_UP_LO, MX_UP_HI, sel) & ~minus) | (mx_prmt(MX_DOWN_LO, MX_DOWN_HI, sel) & minus);
}
GPU_DEV void mx_eight(uint32_t (&u)[2], uint32_t q) {
    u[0] = mx_four(q);
    u[1] = mx_four(q >> 16);
}
#else
GPU_DEV uint32_t mx_four(uint32_t code) { // a code a byte
    uint32_t sel = code & 0x07070707u, sign = code & 0x08080808u;
    uint32_t minus = (sign << 2) - (sign >> 3); // 0x1f where the sign is set
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

enum { EXPERT_QUANT_THREADS = 256 };
GPU_KERNEL GPU_BOUNDS(EXPERT_QUANT_THREADS, 4)
    k_experts_quantize(uint8_t *q, float *scales, const float *x, size_t groups) {
    gpu_begin();
    size_t g = (size_t)gpu_bx() * (EXPERT_QUANT_THREADS / GPU_WAVE) + gpu_wave();
    if (g < groups) mx_quantize(q + g * K_MX_GROUP, scales + g, x[g * K_MX_GROUP + gpu_lane()]); // whole waves
}

// ---------------------------------------------------------------- products, fast
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
} experts_args;

// Groups of the inputs in shared memory at a time; a multiple of 4.
template <int ROWS> struct experts_piece { enum { GROUPS = ROWS == 1 ? 128 : 32 }; };
template <int ROWS> struct experts_inputs {
    gpu_u4 x[ROWS][experts_piece<ROWS>::GROUPS][2];
    float scale[ROWS][experts_piece<ROWS>::GROUPS];
    int32_t twelve[ROWS][experts_piece<ROWS>::GROUPS]; // 12 x sum of the group
};
template <int ROWS, int MATS> union experts_shared {
    experts_inputs<ROWS> in;
    float part[ROWS][MATS][4][K_TILE]; // when all inputs have been used
};
static_assert(sizeof(experts_shared<EXPERT_ROWS, 2>) <= 48 << 10, "shared memory");

// Input groups [g0, g0 + count) of the item's rows to shared memory, zeros for the rows up to ROWS that it lacks.
template <int ROWS, int MATS>
GPU_DEV void experts_load(experts_shared<ROWS, MATS> &sh, const uint8_t *q, const float *scales, const uint32_t *index,
                          uint32_t rows, uint32_t groups, uint32_t g0, uint32_t count) {
    for (uint32_t i = gpu_tid(); i < ROWS * count; i += EXPERT_THREADS) {
        uint32_t r = i / count, g = i % count;
        size_t at = (size_t)index[r < rows ? r : 0] * groups + g0 + g;
        int sum = 0;
        GPU_UNROLL
        for (uint32_t h = 0; h < 2; h++) {
            gpu_u4 u = {};
            if (r < rows) u = gpu_load_u4(q + at * K_MX_GROUP + h * 16);
            sh.in.x[r][g][h] = u;
            GPU_UNROLL
            for (int j = 0; j < 4; j++) sum = gpu_dot4(u.v[j], 0x01010101u, sum);
        }
        sh.in.scale[r][g] = scales[at];
        sh.in.twelve[r][g] = 12 * sum;
    }
}

// This wave's groups of a piece into acc, for the first USED rows: g = wave, wave + 4, ...
template <int USED, int ROWS, int MATS>
GPU_DEV void experts_groups(float (&acc)[MATS][ROWS], const experts_shared<ROWS, MATS> &sh,
                            const uint8_t *const (&tile)[MATS], uint32_t groups, uint32_t g0, uint32_t count) {
    // Groups in flight; with many rows their sums need the registers.
    const int together = USED == 1 ? (int)EXPERT_TOGETHER : 1;
    EXPERT_UNROLL(together)
    for (uint32_t g = gpu_wave(); g < count; g += 4) {
        uint32_t w[MATS][8];
        float scale[MATS];
        GPU_UNROLL
        for (int m = 0; m < MATS; m++) {
            gpu_u4 u = gpu_load_u4(tile[m] + ((size_t)(g0 + g) * K_TILE + gpu_lane()) * K_MX_BYTES);
            scale[m] = k_half_scale(tile[m][((size_t)groups * K_MX_BYTES + g0 + g) * K_TILE + gpu_lane()]);
            GPU_UNROLL
            for (uint32_t j = 0; j < 4; j++) {
                uint32_t two[2];
                mx_eight(two, u.v[j]);
                w[m][mx_word(j, 0)] = two[0];
                w[m][mx_word(j, 1)] = two[1];
            }
        }
        GPU_UNROLL
        for (int r = 0; r < USED; r++) {
            gpu_u4 lo = sh.in.x[r][g][0], hi = sh.in.x[r][g][1];
            GPU_UNROLL
            for (int m = 0; m < MATS; m++) {
                int dot = -sh.in.twelve[r][g];
                GPU_UNROLL
                for (int j = 0; j < 4; j++) dot = gpu_dot4(w[m][j], lo.v[j], dot);
                GPU_UNROLL
                for (int j = 0; j < 4; j++) dot = gpu_dot4(w[m][4 + j], hi.v[j], dot);
                acc[m][r] = gpu_fma((float)dot, scale[m] * sh.in.scale[r][g], acc[m][r]);
            }
        }
    }
}

// Asks for the first weights of this wave.
template <int MATS> GPU_DEV void experts_prefetch(const uint8_t *const (&tile)[MATS], uint32_t groups) {
    GPU_UNROLL
    for (uint32_t i = 0; i < EXPERT_TOGETHER; i++) {
        uint32_t g = gpu_wave() + 4 * i;
        GPU_UNROLL
        for (int m = 0; m < MATS; m++)
            if (g < groups) gpu_prefetch(tile[m] + ((size_t)g * K_TILE + gpu_lane()) * K_MX_BYTES);
    }
}

// The products of a tile (or pair of tiles) with the item's rows; the partial sums are in sh.part after it.
template <int ROWS, int MATS>
GPU_DEV void experts_tile(experts_shared<ROWS, MATS> &sh, const uint8_t *const (&tile)[MATS], const uint8_t *q,
                          const float *scales, const uint32_t *index, uint32_t rows, uint32_t groups) {
    const uint32_t piece = experts_piece<ROWS>::GROUPS;
    float acc[MATS][ROWS] = {};
    for (uint32_t g0 = 0; g0 < groups; g0 += piece) {
        uint32_t count = groups - g0 < piece ? groups - g0 : piece;
        gpu_sync();
        experts_load<ROWS, MATS>(sh, q, scales, index, rows, groups, g0, count);
        gpu_sync();
        if (ROWS > 2 && rows <= 2) experts_groups<ROWS < 2 ? ROWS : 2>(acc, sh, tile, groups, g0, count);
        else if (ROWS > 4 && rows <= 4) experts_groups<ROWS < 4 ? ROWS : 4>(acc, sh, tile, groups, g0, count);
        else experts_groups<ROWS>(acc, sh, tile, groups, g0, count);
    }
    gpu_sync();
    GPU_UNROLL
    for (int r = 0; r < ROWS; r++) {
        GPU_UNROLL
        for (int m = 0; m < MATS; m++) sh.part[r][m][gpu_wave()][gpu_lane()] = acc[m][r];
    }
    gpu_sync();
}

template <int ROWS, int MATS> GPU_DEV float experts_sum(const experts_shared<ROWS, MATS> &sh, uint32_t r, uint32_t m) {
    const float(*p)[K_TILE] = sh.part[r][m];
    return k_sum4(p[0][gpu_lane()], p[1][gpu_lane()], p[2][gpu_lane()], p[3][gpu_lane()]);
}

// Grid: items, tiles of 32 inner rows, each of which is one group of the down product's input.
template <int ROWS> GPU_KERNEL GPU_BOUNDS(EXPERT_THREADS, EXPERT_RESIDENT) k_experts_inner(experts_args a) {
    typedef experts_shared<ROWS, 2> shared;
    GPU_SHARED(shared, sh);
    gpu_wait_previous();
    gpu_release_next(); // not before: the next kernel reads the table without waiting
    expert_item item = a.table.items[gpu_bx()];
    uint32_t groups = a.hidden / K_MX_GROUP, tile = gpu_by();
    const uint8_t *gate = item.slot + 2 * (size_t)tile * mx_tile_bytes(groups);
    const uint8_t *const tiles[2] = {gate, gate + mx_tile_bytes(groups)};
    experts_prefetch<2>(tiles, groups);
    experts_tile<ROWS, 2>(sh, tiles, a.z_q, a.z_s, a.table.row + item.first, item.count, groups);
    for (uint32_t r = gpu_wave(); r < item.count; r += EXPERT_THREADS / GPU_WAVE) {
        float x = k_situ(experts_sum(sh, r, 0), experts_sum(sh, r, 1), a.beta, a.linear_beta);
        size_t at = (size_t)a.table.pair[item.first + r] * (a.inner / K_MX_GROUP) + tile;
        mx_quantize(a.act_q + at * K_MX_GROUP, a.act_s + at, x);
    }
}

// Grid: items, tiles of 32 result rows.
template <int ROWS> GPU_KERNEL GPU_BOUNDS(EXPERT_THREADS, EXPERT_RESIDENT) k_experts_outer(experts_args a) {
    typedef experts_shared<ROWS, 1> shared;
    GPU_SHARED(shared, sh);
    gpu_release_next(); // the table is there: all blocks of the kernel before this one have waited for it
    expert_item item = a.table.items[gpu_bx()];
    uint32_t groups = a.inner / K_MX_GROUP, tile = gpu_by();
    const uint8_t *const tiles[1] = {item.slot + 2 * mx_matrix_bytes(a.hidden, a.inner) +
                                     (size_t)tile * mx_tile_bytes(groups)};
    experts_prefetch<1>(tiles, groups);
    gpu_wait_previous();
    experts_tile<ROWS, 1>(sh, tiles, a.act_q, a.act_s, a.table.pair + item.first, item.count, groups);
    for (uint32_t r = gpu_wave(); r < item.count; r += EXPERT_THREADS / GPU_WAVE)
        a.y[(size_t)a.table.pair[item.first + r] * a.hidden + tile * K_TILE + gpu_lane()] = experts_sum(sh, r, 0);
}

// ---------------------------------------------------------------- products, reference: a wave a weight row, dot32
// Element `lane` of a group: its value times its scale.
GPU_DEV float mx_value(const uint8_t *tile, uint32_t groups, uint32_t row, uint32_t g) {
    uint32_t lane = gpu_lane(), byte = tile[((size_t)g * K_TILE + row) * K_MX_BYTES + lane / 2];
    uint32_t code = lane % 2 ? byte >> 4 : byte & 15u;
    float twice = (float)(gpu_lut8(0x03020100u, 0x0c080604u, code & 7u) & 0xffu);
    float value = gpu_as_f32(gpu_as_u32(0.5f * twice) | code >> 3 << 31);
    return value * k_e8m0(tile[((size_t)groups * K_MX_BYTES + g) * K_TILE + row]);
}
GPU_DEV float mx_dot32(const float *x, const uint8_t *tile, uint32_t groups, uint32_t row) {
    float s = 0.0f;
    for (uint32_t g = 0; g < groups; g++)
        s = gpu_fma(x[g * K_MX_GROUP + gpu_lane()], mx_value(tile, groups, row, g), s);
    return gpu_wave_sum(s);
}

GPU_KERNEL GPU_BOUNDS(EXPERT_THREADS, 4) k_experts_inner_exact(experts_args a) {
    expert_item item = a.table.items[gpu_bx()];
    uint32_t groups = a.hidden / K_MX_GROUP;
    const uint8_t *gate = item.slot + 2 * (size_t)gpu_by() * mx_tile_bytes(groups), *up = gate + mx_tile_bytes(groups);
    for (uint32_t row = gpu_wave(); row < K_TILE; row += EXPERT_THREADS / GPU_WAVE) {
        for (uint32_t i = 0; i < item.count; i++) {
            const float *x = a.z + (size_t)a.table.row[item.first + i] * a.hidden;
            float g = mx_dot32(x, gate, groups, row), u = mx_dot32(x, up, groups, row);
            size_t at = (size_t)a.table.pair[item.first + i] * a.inner + gpu_by() * K_TILE + row;
            if (gpu_lane() == 0) a.act[at] = k_situ(g, u, a.beta, a.linear_beta);
        }
    }
}

GPU_KERNEL GPU_BOUNDS(EXPERT_THREADS, 4) k_experts_outer_exact(experts_args a) {
    expert_item item = a.table.items[gpu_bx()];
    uint32_t groups = a.inner / K_MX_GROUP;
    const uint8_t *tile = item.slot + 2 * mx_matrix_bytes(a.hidden, a.inner) + (size_t)gpu_by() * mx_tile_bytes(groups);
    for (uint32_t row = gpu_wave(); row < K_TILE; row += EXPERT_THREADS / GPU_WAVE) {
        for (uint32_t i = 0; i < item.count; i++) {
            size_t pair = a.table.pair[item.first + i];
            float y = mx_dot32(a.act + pair * a.inner, tile, groups, row);
            if (gpu_lane() == 0) a.y[pair * a.hidden + gpu_by() * K_TILE + row] = y;
        }
    }
}

// ---------------------------------------------------------------- weighted sum and norm: a block a row
typedef struct reduce_args {
    float *out;
    const float *y, *weights;
    k_vector norm;
    uint32_t per_row, hidden;
    float eps;
} reduce_args;
enum { EXPERT_REDUCE_THREADS = 256 };
GPU_KERNEL GPU_BOUNDS(EXPERT_REDUCE_THREADS, 4) k_experts_reduce(reduce_args a) {
    const float *weights = a.weights + (size_t)gpu_bx() * a.per_row, *y = a.y + (size_t)gpu_bx() * a.per_row * a.hidden;
    float *out = a.out + (size_t)gpu_bx() * a.hidden;
    for (uint32_t d = gpu_tid(); d < a.hidden; d += gpu_nt()) {
        float u = 0.0f;
        for (uint32_t e = 0; e < a.per_row; e++) u = gpu_fma(weights[e], y[(size_t)e * a.hidden + d], u);
        out[d] = u;
    }
    gpu_sync();
    float r = k_rms_factor(k_wave_dot32(out, out, a.hidden), a.hidden, a.eps); // every wave for itself
    gpu_sync();
    for (uint32_t d = gpu_tid(); d < a.hidden; d += gpu_nt()) out[d] = k_vector_get(a.norm, d) * (out[d] * r);
}

// ---------------------------------------------------------------- host
// Quantises z [n][hidden] (fast; in reference the backend copies z).
static inline void k_experts_begin(gpuStream_t stream, uint8_t *q, float *scales, const float *z, uint32_t n,
                                   uint32_t hidden) {
    size_t groups = (size_t)n * (hidden / K_MX_GROUP);
    uint32_t blocks = (uint32_t)((groups + 7) / (EXPERT_QUANT_THREADS / GPU_WAVE));
    if (blocks)
        GPU_LAUNCH(k_experts_quantize, gpuDim3(blocks), gpuDim3(EXPERT_QUANT_THREADS), stream, q, scales, z, groups);
}

// A small table goes as an argument of a kernel: a copy from the host would keep the products waiting for longer.
enum { EXPERT_TABLE_WORDS = 256 };
typedef struct table_args {
    uint32_t *to;
    uint32_t count, word[EXPERT_TABLE_WORDS];
} table_args;
GPU_KERNEL GPU_BOUNDS(EXPERT_TABLE_WORDS, 1) k_experts_table(table_args a) {
    gpu_begin();
    if (gpu_tid() < a.count) a.to[gpu_tid()] = a.word[gpu_tid()];
}

static inline bool experts_table_small(size_t bytes) { return bytes <= EXPERT_TABLE_WORDS * sizeof(uint32_t); }

// Puts the table that lies in `host` to where the kernels read it; `host` may change once the stream has passed this,
// and at once when the table is small.
static inline gpuError_t k_experts_send(gpuStream_t stream, void *to, const void *host, size_t bytes) {
    table_args a;
    if (!experts_table_small(bytes))
        return gpuMemcpyAsync(to, host, bytes, gpuMemcpyHostToDevice, stream);
    a.to = (uint32_t *)to;
    a.count = (uint32_t)(bytes / sizeof a.word[0]);
    memset(a.word, 0, sizeof a.word);
    memcpy(a.word, host, bytes);
    GPU_LAUNCH_EARLY(k_experts_table, 1, EXPERT_TABLE_WORDS, stream, a);
    return gpuGetLastError();
}

// The table is on the device when the stream gets here.
static inline void k_experts_run(gpuStream_t stream, const experts_args *args, bool fast) {
    experts_args a = *args;
    if (a.table.count == 0) return;
    gpuDim3 block(EXPERT_THREADS), inner(a.table.count, a.inner / K_TILE), outer(a.table.count, a.hidden / K_TILE);
    if (!fast) {
        GPU_LAUNCH(k_experts_inner_exact, inner, block, stream, a);
        GPU_LAUNCH(k_experts_outer_exact, outer, block, stream, a);
    } else if (a.table.largest == 1) {
        GPU_LAUNCH_EARLY(k_experts_inner<1>, inner, block, stream, a);
        GPU_LAUNCH_EARLY(k_experts_outer<1>, outer, block, stream, a);
    } else {
        GPU_LAUNCH_EARLY(k_experts_inner<EXPERT_ROWS>, inner, block, stream, a);
        GPU_LAUNCH_EARLY(k_experts_outer<EXPERT_ROWS>, outer, block, stream, a);
    }
}

static inline void k_experts_reduce_norm(gpuStream_t stream, const reduce_args *args, uint32_t n) {
    reduce_args a = *args;
    if (n) GPU_LAUNCH(k_experts_reduce, gpuDim3(n), gpuDim3(EXPERT_REDUCE_THREADS), stream, a);
}
