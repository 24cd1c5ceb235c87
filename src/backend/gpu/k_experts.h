// k_experts.h - routed MXFP4 experts on the slot layout: gate and up with SITU, down, of single rows and in reference
// precision.  k_experts_range.h has the products of many rows.
//
// Work: of single rows, a block of 4 waves takes a row of one expert through a tile of 32 weight rows (gate and up: a
//   tile of each).  Lane = weight row, wave = group % 4 = partial sum.
// Owns: nothing.  Bits: docs/numerics.md, sections 2 and 4; the oracle is src/backend/cpu/cpu_moe.c.
#pragma once
#include "backend/gpu/k_experts_range.h"

enum {
    EXPERT_THREADS = 128,
// GPU_BOUNDS of the products: 120 registers on AMD, 96 on NVIDIA.
// EXPERT_DEEP: groups of a wave whose weights are under way at a time, of two matrices; of one, twice as many.
#if GPU_HIP
    EXPERT_RESIDENT = 6,
    EXPERT_DEEP = 2
#else
    EXPERT_RESIDENT = 5,
    EXPERT_DEEP = 4
#endif
};

enum { EXPERT_QUANT_THREADS = 256 };
typedef struct experts_quantize_args {
    uint8_t *q;
    float *scales;
    const float *x;
    size_t groups;
} experts_quantize_args;
GPU_DEV void experts_quantize(const experts_quantize_args &a, uint32_t block) {
    size_t g = (size_t)block * (EXPERT_QUANT_THREADS / GPU_WAVE) + gpu_wave();
    if (g < a.groups) // whole waves
        mx_quantize(a.q + g * K_MX_GROUP, a.scales + g, a.x[g * K_MX_GROUP + gpu_lane()]);
}
static inline uint32_t experts_quantize_blocks(size_t groups) {
    enum { EACH = EXPERT_QUANT_THREADS / GPU_WAVE };
    return (uint32_t)((groups + EACH - 1) / EACH);
}
GPU_KERNEL GPU_BOUNDS(EXPERT_QUANT_THREADS, 4) k_experts_quantize(experts_quantize_args a) {
    gpu_begin();
    experts_quantize(a, gpu_bx());
}

// ---------------------------------------------------------------- products of single rows
typedef struct experts_single_args {
    experts_args a;
    expert_pick pick[EXPERT_PICKS];
} experts_single_args;

// Groups of the input in shared memory at a time; a multiple of 4.
enum { EXPERT_PIECE = 128 };
typedef struct experts_shared {
    gpu_u4 x[EXPERT_PIECE][2];
    float scale[EXPERT_PIECE];
    float part[2][4][K_TILE];
} experts_shared;

// Input groups [g0, g0 + count) of a row to shared memory.
GPU_DEV void experts_load(experts_shared &sh, const uint8_t *q, const float *scales, uint32_t g0, uint32_t count) {
    for (uint32_t i = gpu_tid(); i < 2 * count; i += EXPERT_THREADS)
        sh.x[i / 2][i % 2] = gpu_load_u4(q + (size_t)g0 * K_MX_GROUP + i * 16);
    for (uint32_t i = gpu_tid(); i < count; i += EXPERT_THREADS) sh.scale[i] = scales[g0 + i];
}

// Groups of a tile, or of a pair of them, that a wave has under way; the first ones before the kernel before this one
// has ended, so that memory works on while one kernel ends and the next one begins.
template <int MATS> struct experts_ring {
    enum { DEEP = EXPERT_DEEP * 2 / MATS };
    static_assert(EXPERT_PIECE % (4 * DEEP) == 0, "a piece begins at the begin of the ring");
    gpu_u4 w[DEEP][MATS];
    uint32_t e[DEEP][MATS]; // scale bytes
};

template <int MATS>
GPU_DEV void experts_fetch(gpu_u4 (&w)[MATS], uint32_t (&e)[MATS], const uint8_t *const (&tile)[MATS], uint32_t groups,
                           uint32_t g) {
    if (g >= groups) return;
    GPU_UNROLL
    for (int m = 0; m < MATS; m++) {
        w[m] = gpu_load_u4(tile[m] + ((size_t)g * K_TILE + gpu_lane()) * K_MX_BYTES);
        e[m] = tile[m][((size_t)groups * K_MX_BYTES + g) * K_TILE + gpu_lane()];
    }
}

template <int MATS>
GPU_DEV void experts_fill(experts_ring<MATS> &ring, const uint8_t *const (&tile)[MATS], uint32_t groups) {
    GPU_UNROLL
    for (uint32_t d = 0; d < experts_ring<MATS>::DEEP; d++)
        experts_fetch<MATS>(ring.w[d], ring.e[d], tile, groups, gpu_wave() + 4 * d);
}

// This wave's groups of a piece into acc: g = wave, wave + 4, ...; the ring has those of g0.
template <int MATS>
GPU_DEV void experts_groups(float (&acc)[MATS], experts_ring<MATS> &ring, const experts_shared &sh,
                            const uint8_t *const (&tile)[MATS], uint32_t groups, uint32_t g0, uint32_t count) {
    enum { DEEP = experts_ring<MATS>::DEEP };
    GPU_ROLLED
    for (uint32_t first = gpu_wave(); first < count; first += 4 * DEEP) {
        GPU_UNROLL
        for (uint32_t d = 0; d < DEEP; d++) {
            const uint32_t g = first + 4 * d;
            if (g >= count) break;
            const gpu_u4 lo = sh.x[g][0], hi = sh.x[g][1];
            GPU_UNROLL
            for (int m = 0; m < MATS; m++) {
                int dot = 0;
                GPU_UNROLL
                for (uint32_t j = 0; j < 4; j++) {
                    uint32_t two[2];
                    mx_eight(two, ring.w[d][m].v[j]);
                    GPU_UNROLL
                    for (uint32_t h = 0; h < 2; h++) {
                        const uint32_t word = mx_word(j, h);
                        dot = gpu_dot4(two[h], word < 4 ? lo.v[word % 4] : hi.v[word % 4], dot);
                    }
                }
                acc[m] = gpu_fma((float)dot, k_half_scale(ring.e[d][m]) * sh.scale[g], acc[m]);
            }
            experts_fetch<MATS>(ring.w[d], ring.e[d], tile, groups, g0 + g + 4 * DEEP);
        }
    }
}

// The products of a tile (or pair of tiles) with a row; the partial sums are in sh.part after it.
template <int MATS>
GPU_DEV void experts_tile(experts_shared &sh, experts_ring<MATS> &ring, const uint8_t *const (&tile)[MATS],
                          const uint8_t *q, const float *scales, uint32_t groups) {
    float acc[MATS] = {};
    for (uint32_t g0 = 0; g0 < groups; g0 += EXPERT_PIECE) {
        uint32_t count = groups - g0 < EXPERT_PIECE ? groups - g0 : (uint32_t)EXPERT_PIECE;
        gpu_sync();
        experts_load(sh, q, scales, g0, count);
        gpu_sync();
        experts_groups<MATS>(acc, ring, sh, tile, groups, g0, count);
    }
    GPU_UNROLL
    for (int m = 0; m < MATS; m++) sh.part[m][gpu_wave()][gpu_lane()] = acc[m];
    gpu_sync();
}

GPU_DEV float experts_sum(const experts_shared &sh, uint32_t m) {
    const float(*p)[K_TILE] = sh.part[m];
    return k_sum4(p[0][gpu_lane()], p[1][gpu_lane()], p[2][gpu_lane()], p[3][gpu_lane()]);
}

// Grid: picks, tiles of 32 inner rows, each of which is one group of the down product's input.
GPU_KERNEL GPU_BOUNDS(EXPERT_THREADS, EXPERT_RESIDENT) k_experts_inner(experts_single_args s) {
    GPU_SHARED(experts_shared, sh);
    const experts_args &a = s.a;
    const expert_pick pick = s.pick[gpu_bx()];
    const uint32_t groups = a.hidden / K_MX_GROUP, tile = gpu_by();
    const uint8_t *gate = pick.slot + 2 * (size_t)tile * mx_tile_bytes(groups);
    const uint8_t *const tiles[2] = {gate, gate + mx_tile_bytes(groups)};
    experts_ring<2> ring = {};
    experts_fill<2>(ring, tiles, groups);
    gpu_wait_previous();
    experts_tile<2>(sh, ring, tiles, a.z_q + (size_t)pick.row * a.hidden, a.z_s + (size_t)pick.row * groups, groups);
    if (gpu_wave() != 0) return; // the whole wave
    float x = k_situ(experts_sum(sh, 0), experts_sum(sh, 1), a.beta, a.linear_beta);
    size_t at = (size_t)pick.pair * (a.inner / K_MX_GROUP) + tile;
    mx_quantize(a.act_q + at * K_MX_GROUP, a.act_s + at, x);
}

// Grid: picks, tiles of 32 result rows.
GPU_KERNEL GPU_BOUNDS(EXPERT_THREADS, EXPERT_RESIDENT) k_experts_outer(experts_single_args s) {
    GPU_SHARED(experts_shared, sh);
    const experts_args &a = s.a;
    const expert_pick pick = s.pick[gpu_bx()];
    const uint32_t groups = a.inner / K_MX_GROUP, tile = gpu_by();
    const uint8_t *const tiles[1] = {pick.slot + 2 * mx_matrix_bytes(a.hidden, a.inner) +
                                     (size_t)tile * mx_tile_bytes(groups)};
    experts_ring<1> ring = {};
    experts_fill<1>(ring, tiles, groups);
    gpu_wait_previous();
    const size_t pair = pick.pair;
    experts_tile<1>(sh, ring, tiles, a.act_q + pair * a.inner, a.act_s + pair * groups, groups);
    if (gpu_wave() == 0) a.y[pair * a.hidden + tile * K_TILE + gpu_lane()] = experts_sum(sh, 0);
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

// ---------------------------------------------------------------- host
// The experts' input in int8 (fast; in reference the backend copies it).
static inline void k_experts_begin(gpuStream_t stream, const experts_quantize_args *a) {
    if (a->groups)
        GPU_LAUNCH_EARLY(k_experts_quantize, gpuDim3(experts_quantize_blocks(a->groups)), gpuDim3(EXPERT_QUANT_THREADS),
                         stream, *a);
}

// Whether every batch is a single row: k_experts_singles takes them, and needs no table.
static inline bool experts_all_single(const ms_expert_batch *batches, uint32_t count) {
    for (uint32_t b = 0; b < count; b++)
        if (batches[b].count > 1) return false;
    return true;
}

static inline void k_experts_singles(gpuStream_t stream, const experts_args *a, const ms_expert_batch *batches,
                                     uint32_t count) {
    experts_single_args s = {};
    s.a = *a;
    for (uint32_t b = 0; b < count;) {
        uint32_t n = 0;
        for (; b < count && n < EXPERT_PICKS; b++)
            if (batches[b].count)
                s.pick[n++] = expert_pick{(const uint8_t *)batches[b].slot, batches[b].row[0], batches[b].pair[0]};
        if (!n) return;
        GPU_LAUNCH_EARLY(k_experts_inner, gpuDim3(n, a->inner / K_TILE), gpuDim3(EXPERT_THREADS), stream, s);
        GPU_LAUNCH_EARLY(k_experts_outer, gpuDim3(n, a->hidden / K_TILE), gpuDim3(EXPERT_THREADS), stream, s);
    }
}

// The table is on the device when the stream gets here.
static inline void k_experts_run(gpuStream_t stream, const experts_args *args, bool fast) {
    experts_args a = *args;
    if (a.table.count == 0) return;
    if (fast) {
        k_experts_range(stream, args);
        return;
    }
    gpuDim3 block(EXPERT_THREADS);
    GPU_LAUNCH(k_experts_inner_exact, gpuDim3(a.table.count, a.inner / K_TILE), block, stream, a);
    GPU_LAUNCH(k_experts_outer_exact, gpuDim3(a.table.count, a.hidden / K_TILE), block, stream, a);
}
