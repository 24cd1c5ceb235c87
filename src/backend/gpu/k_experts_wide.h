// k_experts_wide.h - routed MXFP4 experts for many rows on wide tiles (gpu_wide.h), in f16.
//
// Work: a block of two teams takes an item (rows of one expert) through four tiles of 32 weight rows: gate and up twice,
//   or four tiles of the down product.  A team has two tiles as its left rows, unpacked straight into registers; the
//   item's rows are the columns, in shared memory, of which a team makes two halves in turn.
// Sums: the four partial sums of the group dots come one after the other (a pass each, in the order 0 2 1 3), so that a
//   team holds registers for one; those that wait are in shared memory.  A step is two groups of a pass.
// Bits: a row's bytes and the doubled integers are f16 values, and so are the latter times a moderate power of two.
//   With the weights' scale in them, a group's dot times that scale comes out exactly (|dot| <= 32 * 12 * 127 < 2^16
//   times a power of two), and one fma with the row's scale gives the bits of fma(dot, weight scale * row scale, sum),
//   since the product of the scales is exact too.  Where a scale of a wave's weights is not moderate, the wave takes
//   the integers and both scales.
// Owns: nothing.  Bits: docs/numerics.md, section 1; the oracle is src/backend/cpu/cpu_moe.c.
#pragma once
#include "backend/gpu/gpu_wide.h"
#include "backend/gpu/k_mx.h"

enum {
    WIDE_THREADS = 2 * GPU_WIDE_TEAM,
    WIDE_TILES = 4,
    WIDE_STEP = 2 * 4, // from a step to the next one of its pass: two groups with the same remainder
    WIDE_PASSES = 4,
    WIDE_AHEAD = 3, // steps from where weights are asked for to where the cache is told of them
    WIDE_GROUP_BYTES = 64
};
static_assert((int)EXPERT_WIDE == 128, "two pieces of x and a scale of a step a thread");

#if GPU_WIDE_HOST && MX_NATURAL
struct wide_shared {
    alignas(1024) uint8_t tile[2][EXPERT_WIDE * GPU_WIDE_BYTES]; // by step % 2
    alignas(16) float scale[2][2][EXPERT_WIDE];                  // by step % 2, group of the step, wide_column()
    union {
        float held[2][EXPERT_WIDE / 2][WIDE_THREADS];
        float part[EXPERT_WIDE][WIDE_TILES * K_TILE + 4]; // when all products are made
    };
};
static_assert(sizeof(wide_shared) <= GPU_WIDE_SHARED, "shared memory");

// Scales lie so that a lane has those of its columns of two neighbouring blocks of eight in 16 bytes.
GPU_DEV uint32_t wide_column(uint32_t c) { return c / 16 * 16 + c % 8 / 2 * 4 + c / 8 % 2 * 2 + c % 2; }

#if GPU_WIDE_CODE
// ---------------------------------------------------------------- steps
struct wide_place {
    uint32_t group, step, pass; // the first group of a step; the second one is 4 behind it
};
GPU_DEV uint32_t wide_first(uint32_t pass) { return pass % 2 * 2 + pass / 2; }
GPU_DEV void wide_next(wide_place &p, uint32_t steps) {
    p.group += WIDE_STEP;
    if (++p.step < steps) return;
    p.step = 0;
    p.pass++;
    p.group = wide_first(p.pass);
}

// ---------------------------------------------------------------- rows
// What a thread brings of each step: 16 bytes of a group of up to two rows, and the scale of a row.
struct wide_rows {
    const uint8_t *piece[2];
    const float *scale;
    bool piece_live[2], scale_live;
};
struct wide_rows_raw {
    gpu_u4 x[2];
    float scale;
};

GPU_DEV wide_rows wide_rows_of(const uint8_t *q, const float *scales, const uint32_t *index, uint32_t count,
                               uint32_t groups) {
    wide_rows s;
    const uint32_t t = gpu_tid();
    GPU_UNROLL
    for (uint32_t j = 0; j < 2; j++) {
        const uint32_t r = t / 4 + j * 64, part = t % 4;
        s.piece_live[j] = r < count;
        s.piece[j] = q + ((size_t)index[r < count ? r : 0] * groups + part / 2 * 4) * K_MX_GROUP + part % 2 * 16;
    }
    s.scale_live = t / 2 < count;
    s.scale = scales + (size_t)index[t / 2 < count ? t / 2 : 0] * groups + t % 2 * 4;
    return s;
}

GPU_DEV void wide_rows_load(wide_rows_raw &raw, const wide_rows &s, const wide_place &at, uint32_t groups) {
    GPU_UNROLL
    for (uint32_t j = 0; j < 2; j++)
        if (s.piece_live[j] && at.group + gpu_tid() % 4 / 2 * 4 < groups)
            raw.x[j] = gpu_load_u4(s.piece[j] + (size_t)at.group * K_MX_GROUP);
    if (s.scale_live && at.group + gpu_tid() % 2 * 4 < groups) raw.scale = s.scale[at.group];
}

// The same as f16, in the order of columns k that wide_unpack() gives the weights: of the eight bytes from 8 t on, pairs
// (0 2), (1 3), (4 6), (5 7) are the columns 2 t and 2 t + 1 of the four eights of a group.
template <int COLS> GPU_DEV void wide_rows_fill(wide_shared &sh, uint32_t to, const wide_rows_raw &raw) {
    const uint32_t part = gpu_tid() % 4;
    GPU_UNROLL
    for (uint32_t j = 0; j < 2; j++) {
        const uint32_t row = gpu_tid() / 4 + j * 64;
        if (j * 64 >= COLS || row >= COLS) break;
        GPU_UNROLL
        for (uint32_t s = 0; s < 2; s++) {
            gpu_u2 even, odd;
            GPU_UNROLL
            for (uint32_t t = 0; t < 2; t++) { // bytes of 1152 + q in 1024 + 256
                const uint32_t w = raw.x[j].v[2 * t + s];
                even.v[t] = gpu_half2_sub((w & 0x00ff00ffu) ^ 0x64806480u, 0x64806480u);
                odd.v[t] = gpu_half2_sub((w >> 8 & 0x00ff00ffu) ^ 0x64806480u, 0x64806480u);
            }
            const uint32_t byte = part / 2 * WIDE_GROUP_BYTES + s * 32;
            *(gpu_u2 *)&sh.tile[to][gpu_wide_at(row, byte) + part % 2 * 8] = even;
            *(gpu_u2 *)&sh.tile[to][gpu_wide_at(row, byte + 16) + part % 2 * 8] = odd;
        }
    }
    if (gpu_tid() / 2 < COLS) sh.scale[to][gpu_tid() % 2][wide_column(gpu_tid() / 2)] = raw.scale;
}

// ---------------------------------------------------------------- weights
// Two weight rows of this lane, 8 apart, in the two groups of a step: a word of eight nibbles and a scale byte of each.
struct wide_weights {
    const uint8_t *nibbles, *scales;
};
struct wide_weights_raw {
    uint32_t word[2][2], scale[2][2];
};

// `tile`: the first of the block's tiles, of which there are `tiles`; teams behind them take the last one.
GPU_DEV wide_weights wide_weights_of(const uint8_t *tile, uint32_t tiles, uint32_t groups) {
    const uint32_t of = gpu_wave() / 2, row = gpu_wave() % 2 * 16 + gpu_lane() / 4;
    tile += (of < tiles ? of : tiles - 1) * mx_tile_bytes(groups);
    tile = gpu_global(tile);
    return wide_weights{tile + row * K_MX_BYTES + gpu_lane() % 4 * 4, tile + (size_t)groups * K_TILE * K_MX_BYTES + row};
}

GPU_DEV void wide_weights_load(wide_weights_raw &raw, const wide_weights &w, const wide_place &at, uint32_t groups) {
    GPU_UNROLL
    for (uint32_t h = 0; h < 2; h++) {
        const uint32_t g = at.group + 4 * h;
        if (g >= groups) break;
        GPU_UNROLL
        for (uint32_t r = 0; r < 2; r++) {
            raw.word[h][r] = *(const uint32_t *)(w.nibbles + (size_t)g * (K_TILE * K_MX_BYTES) + r * 8 * K_MX_BYTES);
            raw.scale[h][r] = w.scales[(size_t)g * K_TILE + r * 8];
        }
    }
    const uint32_t ahead = at.group + WIDE_AHEAD * WIDE_STEP + gpu_lane() / 16 * 4;
    if (gpu_lane() % 8 == 0 && ahead < groups)
        gpu_prefetch(w.nibbles + (size_t)ahead * (K_TILE * K_MX_BYTES) + gpu_lane() / 8 % 2 * 128);
}

// Left registers of a group.  `plain`: they have their scales in them.
struct wide_left {
    uint32_t a[8], scale[2];
    bool plain;
};

// High bytes of f16 values, 2^-8 of the codes' own; low bytes are 0.
GPU_DEV uint32_t wide_four(uint32_t sel, uint32_t sign) {
    return mx_prmt(mx_prmt(0x1e1c1800u, 0x26242220u, sel), mx_prmt(0x9e9c9800u, 0xa6a4a2a0u, sel), sign);
}

GPU_DEV wide_left wide_unpack(const wide_weights_raw &raw, uint32_t h) {
    wide_left left;
    bool plain = true;
    GPU_UNROLL
    for (uint32_t r = 0; r < 2; r++) {
        left.scale[r] = raw.scale[h][r];
        plain = plain && raw.scale[h][r] - MX_PLAIN_LEAST <= (uint32_t)MX_PLAIN_MOST - MX_PLAIN_LEAST;
    }
    left.plain = gpu_ballot(plain) == 0xffffffffu;
    GPU_UNROLL
    for (uint32_t r = 0; r < 2; r++) {
        const uint32_t q = raw.word[h][r], sel = q & 0x77777777u, sign = (q >> 1 & 0x44444444u) | 0x32103210u;
        // 2^(e - 119), or 2^9 for the doubled integers
        const uint32_t factor = left.plain ? (left.scale[r] - 104u) * 0x04000400u : 0x60006000u;
        GPU_UNROLL
        for (uint32_t s = 0; s < 2; s++) {
            const uint32_t four = wide_four(sel >> 16 * s, sign >> 16 * s);
            left.a[4 * s + r] = gpu_half2_mul(mx_prmt(four, 0, 0x2404u), factor);
            left.a[4 * s + 2 + r] = gpu_half2_mul(mx_prmt(four, 0, 0x3414u), factor);
        }
    }
    return left;
}

// ---------------------------------------------------------------- products
template <int HALF> struct wide_sums {
    float v[2][HALF / 8][4];
};

// Adds the dots of a half of the columns.
template <int HALF, bool PLAIN>
GPU_DEV void wide_add_as(wide_sums<HALF> &sum, const float (&dot)[HALF / 8][4], uint32_t half, const float *scales,
                         const wide_left &left) {
    gpu_f4 s = {};
    const float weight[2] = {k_half_scale(left.scale[0]), k_half_scale(left.scale[1])};
    GPU_UNROLL
    for (uint32_t b = 0; b < HALF / 8; b++) {
        const uint32_t block = half * (HALF / 8) + b;
        if (b == 0 || block % 2 == 0) s = gpu_load_f4(scales + block / 2 * 16 + gpu_lane() % 4 * 4);
        GPU_UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            float *p = &sum.v[half][b][i];
            const float x = s.v[block % 2 * 2 + i % 2];
            *p = gpu_fma(dot[b][i], PLAIN ? x : weight[i / 2] * x, *p);
        }
    }
}
template <int HALF>
GPU_DEV void wide_add(wide_sums<HALF> &sum, const float (&dot)[HALF / 8][4], uint32_t half, const float *scales,
                      const wide_left &left) {
    if (left.plain)
        wide_add_as<HALF, true>(sum, dot, half, scales, left);
    else
        wide_add_as<HALF, false>(sum, dot, half, scales, left);
}

// At the end of a pass: partial sums 0, 2, 1, 3.
template <int HALF, int PASS> GPU_DEV void wide_hold_as(wide_shared &sh, wide_sums<HALF> &sum) {
    GPU_UNROLL
    for (uint32_t i = 0; i < HALF; i++) {
        float *p = &sum.v[i / (HALF / 2)][i / 4 % (HALF / 8)][i % 4], *even = &sh.held[0][i][gpu_tid()],
              *odd = &sh.held[1][i][gpu_tid()];
        if (PASS == 0) *even = *p;
        if (PASS == 1) *even = *even + *p;
        if (PASS == 2) *odd = *p;
        *p = PASS == 3 ? *even + (*odd + *p) : 0.0f;
    }
}
template <int HALF> GPU_DEV void wide_hold(wide_shared &sh, wide_sums<HALF> &sum, uint32_t pass) {
    if (pass == 0)
        wide_hold_as<HALF, 0>(sh, sum);
    else if (pass == 1)
        wide_hold_as<HALF, 1>(sh, sum);
    else if (pass == 2)
        wide_hold_as<HALF, 2>(sh, sum);
    else
        wide_hold_as<HALF, 3>(sh, sum);
}

struct wide_source {
    wide_rows rows;
    wide_weights weights;
    uint32_t groups, count;
};

// The products of the block's tiles with 2 * HALF columns, to sh.part.
template <int HALF> GPU_DEV void wide_walk(wide_shared &sh, const wide_source &from) {
    const uint32_t groups = from.groups, steps = k_ceil_div(groups, WIDE_STEP);
    wide_sums<HALF> sum;
    float low[HALF / 8][4], high[HALF / 8][4];
    GPU_UNROLL
    for (uint32_t i = 0; i < HALF; i++) sum.v[i / (HALF / 2)][i / 4 % (HALF / 8)][i % 4] = 0.0f;
    GPU_UNROLL
    for (uint32_t i = 0; i < HALF / 2; i++) low[i / 4][i % 4] = high[i / 4][i % 4] = 0.0f;
    wide_rows_raw rows = {};
    wide_weights_raw now = {}, next = {};
    wide_place at = {0, 0, 0}, load = {0, 0, 0};
    wide_rows_load(rows, from.rows, load, groups);
    wide_weights_load(now, from.weights, load, groups);
    wide_rows_fill<2 * HALF>(sh, 0, rows);
    wide_left left = wide_unpack(now, 0);
    gpu_wide_written();
    gpu_sync();
    GPU_ROLLED
    for (uint32_t stage = 0; at.pass < WIDE_PASSES; stage ^= 1) {
        const uint8_t *tile = sh.tile[stage];
        wide_next(load, steps);
        wide_rows_load(rows, from.rows, load, load.pass < WIDE_PASSES ? groups : 0);
        wide_weights_load(next, from.weights, load, load.pass < WIDE_PASSES ? groups : 0);
        gpu_wide_open();
        gpu_wide_f16<HALF>(low, left.a, tile, 0);
        gpu_wide_close();
        gpu_wide_f16<HALF>(high, left.a, tile + HALF * GPU_WIDE_BYTES, 0);
        gpu_wide_close();
        const wide_left second = wide_unpack(now, 1);
        gpu_wide_wait<1>();
        gpu_wide_take(low);
        if (at.group < groups) wide_add<HALF>(sum, low, 0, sh.scale[stage][0], left);
        gpu_wide_wait<0>();
        gpu_wide_take(high);
        gpu_wide_keep(left.a);
        if (at.group < groups) wide_add<HALF>(sum, high, 1, sh.scale[stage][0], left);

        gpu_wide_open();
        gpu_wide_f16<HALF>(low, second.a, tile, WIDE_GROUP_BYTES);
        gpu_wide_close();
        gpu_wide_f16<HALF>(high, second.a, tile + HALF * GPU_WIDE_BYTES, WIDE_GROUP_BYTES);
        gpu_wide_close();
        now = next;
        left = wide_unpack(now, 0);
        wide_rows_fill<2 * HALF>(sh, stage ^ 1, rows); // what was asked for is here: the fence does not wait for it
        gpu_wide_wait<1>();
        gpu_wide_take(low);
        const bool live = at.group + 4 < groups;
        if (live) wide_add<HALF>(sum, low, 0, sh.scale[stage][1], second);
        gpu_wide_wait<0>();
        gpu_wide_take(high);
        gpu_wide_keep(second.a);
        if (live) wide_add<HALF>(sum, high, 1, sh.scale[stage][1], second);
        if (at.step + 1 == steps) wide_hold<HALF>(sh, sum, at.pass);
        wide_next(at, steps);
        gpu_wide_written();
        gpu_sync(); // the next tile is there, and this one and what was held are free
    }
    const uint32_t row = gpu_wave() * 16 + gpu_lane() / 4, col = gpu_lane() % 4 * 2;
    GPU_UNROLL
    for (uint32_t i = 0; i < HALF; i++)
        sh.part[i / 4 * 8 + col + i % 2][row + i / 2 % 2 * 8] = sum.v[i / (HALF / 2)][i / 4 % (HALF / 8)][i % 4];
    gpu_sync();
}

// As few columns as the rows need.
GPU_DEV void wide_products(wide_shared &sh, const wide_source &from) {
    switch (k_ceil_div(from.count, 16)) {
    case 0:
    case 1:
    case 2:
        wide_walk<16>(sh, from);
        break;
    case 3:
        wide_walk<24>(sh, from);
        break;
    case 4:
        wide_walk<32>(sh, from);
        break;
    case 5:
        wide_walk<40>(sh, from);
        break;
    case 6:
        wide_walk<48>(sh, from);
        break;
    case 7:
        wide_walk<56>(sh, from);
        break;
    default:
        wide_walk<64>(sh, from);
    }
}
#endif

// ---------------------------------------------------------------- kernels
// Blocks: the fours of tiles of the first item, of the second, ...
GPU_KERNEL GPU_BOUNDS(WIDE_THREADS, 1) k_experts_inner_wide(experts_args a, uint32_t first_item) {
#if GPU_WIDE_CODE
    GPU_SHARED_WIDE(wide_shared, sh);
    const uint32_t tiles = a.inner / K_TILE, blocks = k_ceil_div(tiles, 2), tile = gpu_bx() % blocks * 2;
    const uint32_t groups = a.hidden / K_MX_GROUP, twos = tiles - tile < 2 ? 1 : 2;
    const expert_item item = a.table.items[first_item + gpu_bx() / blocks];
    const wide_source from = {wide_rows_of(a.z_q, a.z_s, a.table.row + item.first, item.count, groups),
                              wide_weights_of(item.slot + 2 * tile * mx_tile_bytes(groups), 2 * twos, groups), groups,
                              item.count};
    wide_products(sh, from);
    const uint32_t *pairs = a.table.pair + item.first, two = gpu_wave() % 2;
    if (two >= twos) return; // the whole wave, and nobody waits any more
    GPU_UNROLL_4
    for (uint32_t x = gpu_wave() / 2; x < item.count; x += WIDE_THREADS / GPU_WAVE / 2) {
        const float *part = sh.part[x] + two * 2 * K_TILE + gpu_lane();
        const size_t at = (size_t)pairs[x] * tiles + tile + two;
        mx_quantize(a.act_q + at * K_MX_GROUP, a.act_s + at, k_situ(part[0], part[K_TILE], a.beta, a.linear_beta));
    }
#endif
}

GPU_KERNEL GPU_BOUNDS(WIDE_THREADS, 1) k_experts_outer_wide(experts_args a, uint32_t first_item) {
#if GPU_WIDE_CODE
    GPU_SHARED_WIDE(wide_shared, sh);
    const uint32_t tiles = a.hidden / K_TILE, blocks = k_ceil_div(tiles, WIDE_TILES);
    const uint32_t tile = gpu_bx() % blocks * WIDE_TILES, groups = a.inner / K_MX_GROUP;
    const uint32_t some = tiles - tile < WIDE_TILES ? tiles - tile : (uint32_t)WIDE_TILES;
    const expert_item item = a.table.items[first_item + gpu_bx() / blocks];
    const uint8_t *down = item.slot + 2 * mx_matrix_bytes(a.hidden, a.inner);
    const wide_source from = {wide_rows_of(a.act_q, a.act_s, a.table.pair + item.first, item.count, groups),
                              wide_weights_of(down + tile * mx_tile_bytes(groups), some, groups), groups, item.count};
    wide_products(sh, from);
    const uint32_t *pairs = a.table.pair + item.first;
    GPU_UNROLL_4
    for (uint32_t x = gpu_wave(); x < item.count; x += WIDE_THREADS / GPU_WAVE) {
        float *y = a.y + (size_t)pairs[x] * a.hidden + tile * K_TILE + gpu_lane();
        GPU_UNROLL
        for (uint32_t i = 0; i < WIDE_TILES; i++)
            if (i < some) y[i * K_TILE] = sh.part[x][i * K_TILE + gpu_lane()];
    }
#endif
}

// ---------------------------------------------------------------- host
// Items [first, first + count) of the table.
template <bool INNER>
static inline void wide_launch(gpuStream_t stream, const experts_args *args, uint32_t first, uint32_t count) {
    const experts_args a = *args;
    const uint32_t tiles = k_ceil_div((INNER ? a.inner : a.hidden) / K_TILE, INNER ? 2 : WIDE_TILES);
    const uint32_t most = MX_ITEM_BLOCKS / tiles ? MX_ITEM_BLOCKS / tiles : 1;
    for (uint32_t done = 0; done < count; done += most) {
        const uint32_t at = first + done, n = count - done < most ? count - done : most;
        if (INNER)
            GPU_LAUNCH_WIDE(wide_shared, k_experts_inner_wide, gpuDim3(n * tiles), gpuDim3(WIDE_THREADS), stream, a, at);
        else
            GPU_LAUNCH_WIDE(wide_shared, k_experts_outer_wide, gpuDim3(n * tiles), gpuDim3(WIDE_THREADS), stream, a, at);
    }
}
#endif
