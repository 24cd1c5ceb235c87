// k_experts_wide.h - routed MXFP4 experts for many rows, on wide tiles of halves (gpu_wide.h).
//
// Work: a block takes an item (rows of one expert) through four tiles of 32 weight rows: two of gate and up, or four of
//   the down product.  Two teams of makers unpack weights and rows to halves in shared memory; two teams of adders, 64
//   weight rows each, multiply and add.  A stage has two groups of 32 columns, so that makers are up to
//   WIDE_MX_STAGES stages ahead; gates (gpu_gate.h) say which stages are full and which are free.
// Order: the groups g with g % 4 == 0 come first, then 2, 1, 3 (a pass each), so that a lane holds registers for one of
//   the four partial sums of docs/numerics.md; what waits is in shared memory.
// Sums: nibbles and int8 rows are halves; so are nibbles times the scale of their group over 64, where that is
//   moderate (WIDE_MX_PLAIN_LEAST).  Then a dot is exact and takes one fma with 64 times the row's scale: the bits of
//   fma(dot, weight scale * row scale, sum), since the product of the scales is exact too (k_experts_range.h).  A wave
//   that has another scale among its weight rows adds in the general form.
// Owns: nothing.  Bits: docs/numerics.md, section 1; the oracle is src/backend/cpu/cpu_moe.c.
//
// EXPERTS_WIDE: whether the backend uses them where it can (make GPU=cuda EXPERTS_WIDE=1).  All bits agree on the
//   emulator; no device has run them yet, so that k_experts_range.h does the work.
#pragma once
#include "backend/gpu/gpu_gate.h"
#include "backend/gpu/k_mx.h"

#ifndef EXPERTS_WIDE
#define EXPERTS_WIDE 0
#endif

enum {
    WIDE_MX_ADDERS = 2 * GPU_WIDE_TEAM,
    WIDE_MX_MAKERS = 2 * GPU_WIDE_TEAM,
    WIDE_MX_THREADS = WIDE_MX_ADDERS + WIDE_MX_MAKERS,
    WIDE_MX_ADDER_REGISTERS = 168, // of 65536 of a processor
    WIDE_MX_MAKER_REGISTERS = 88,
    WIDE_MX_TILES = 4,
    WIDE_MX_W = WIDE_MX_TILES * K_TILE, // weight rows
    WIDE_MX_X = 88,                     // most input rows, a multiple of 8
    WIDE_MX_STAGES = 4,
    WIDE_MX_SUMS = WIDE_MX_X / 8 * 4, // of a lane
    WIDE_MX_GROUP_BYTES = 2 * K_MX_GROUP,
    WIDE_MX_STEP = 8, // a stage has groups g and g + 4 of a pass
    // Scale bytes whose nibbles are halves when they are scaled, and for which a product with any row scale is exact.
    WIDE_MX_PLAIN_LEAST = 110,
    WIDE_MX_PLAIN_MOST = 134
};
static_assert((int)EXPERT_MANY <= (int)WIDE_MX_X, "items");

#if GPU_WIDE_HOST
struct wide_mx_stage {
    alignas(1024) uint8_t w[WIDE_MX_W * GPU_WIDE_BYTES];
    alignas(1024) uint8_t x[WIDE_MX_X * GPU_WIDE_BYTES];
    alignas(8) float x_s[2][WIDE_MX_X]; // 64 * scale
    float w_s[2][WIDE_MX_W];            // 0: it is in the halves; else half the scale
};
struct wide_mx_shared {
    union {
        wide_mx_stage in[WIDE_MX_STAGES];
        float out[WIDE_MX_X][WIDE_MX_W + 4]; // when all stages have been used
    };
    float even[WIDE_MX_SUMS][WIDE_MX_ADDERS], odd[WIDE_MX_SUMS][WIDE_MX_ADDERS];
    gpu_gate full[WIDE_MX_STAGES], free[WIDE_MX_STAGES];
};
static_assert(sizeof(wide_mx_shared) <= GPU_WIDE_SHARED, "shared memory");

#if GPU_WIDE_CODE
// ---------------------------------------------------------------- makers
// What a maker has of each stage: one weight row of one of the groups, and one input row of one of them.
struct wide_mx_source {
    const uint8_t *nibbles, *scales; // of group 0
    uint32_t w_row, w_half;
    const uint8_t *x; // NULL: none
    const float *x_scale;
    uint32_t x_row, x_half, groups;
};
struct wide_mx_raw {
    gpu_u4 w, x[2];
    float x_s;
    uint32_t e;
};

// tile: the first one of `tiles`; q and scales: [..][groups]; the item's rows are index[0 .. count).
GPU_DEV wide_mx_source wide_mx_source_of(const uint8_t *tile, uint32_t tiles, const uint8_t *q, const float *scales,
                                         const uint32_t *index, uint32_t count, uint32_t groups) {
    const uint32_t t = gpu_tid() - WIDE_MX_ADDERS, of = t / GPU_WAVE % WIDE_MX_TILES;
    wide_mx_source s;
    const uint8_t *mine = tile + (of < tiles ? of : tiles - 1) * mx_tile_bytes(groups);
    s.nibbles = mine + gpu_lane() * K_MX_BYTES;
    s.scales = mine + (size_t)groups * K_TILE * K_MX_BYTES + gpu_lane();
    s.w_row = of * K_TILE + gpu_lane();
    s.w_half = t / GPU_WAVE / WIDE_MX_TILES;
    s.x_row = t / 2;
    s.x_half = t % 2;
    s.groups = groups;
    s.x = nullptr;
    s.x_scale = nullptr;
    if (s.x_row < count) {
        s.x = q + (size_t)index[s.x_row] * groups * K_MX_GROUP;
        s.x_scale = scales + (size_t)index[s.x_row] * groups;
    }
    return s;
}

GPU_DEV void wide_mx_fetch(wide_mx_raw &r, const wide_mx_source &s, const gpu_wide_place &at) {
    if (at.pass == 4) return;
    const uint32_t w_g = at.group + 4 * s.w_half, x_g = at.group + 4 * s.x_half;
    if (w_g < s.groups) {
        r.w = gpu_load_u4(s.nibbles + (size_t)w_g * K_TILE * K_MX_BYTES);
        r.e = s.scales[w_g * K_TILE];
    }
    if (s.x && x_g < s.groups) {
        r.x[0] = gpu_load_u4(s.x + x_g * K_MX_GROUP);
        r.x[1] = gpu_load_u4(s.x + x_g * K_MX_GROUP + 16);
        r.x_s = s.x_scale[x_g];
    }
}

// Eight codes to halves, times `factor`: of u[i], the low half is code i, the high one code i + 4.
// A code at the top of a half's exponent is its value over 2^14, zero and the subnormal one too.
GPU_DEV gpu_u4 wide_mx_codes(uint32_t q, uint32_t factor) {
    const uint32_t sign = 0x80008000u, rest = 0x0e000e00u;
    gpu_u4 u;
    u.v[0] = (q << 12 & sign) | (q << 9 & rest);
    u.v[1] = (q << 8 & sign) | (q << 5 & rest);
    u.v[2] = (q << 4 & sign) | (q << 1 & rest);
    u.v[3] = (q & sign) | (q >> 3 & rest);
    GPU_UNROLL
    for (int i = 0; i < 4; i++) u.v[i] = gpu_half2_mul(u.v[i], factor);
    return u;
}

// The same places of eight int8 values, of the words that go with a weight word (mx_eight).
GPU_DEV gpu_u4 wide_mx_bytes(uint32_t a, uint32_t b) {
#if MX_NATURAL
    const uint32_t low = a, high = b;
#else
    const uint32_t low = mx_prmt(a, b, 0x5140), high = mx_prmt(a, b, 0x7362);
#endif
    // 1024 + 128 + the value, as the bits of a half
    const uint32_t even = mx_prmt(low, high, 0x5140) ^ 0x80808080u, odd = mx_prmt(low, high, 0x7362) ^ 0x80808080u;
    gpu_u4 u;
    u.v[0] = mx_prmt(even, 0x64646464u, 0x4140);
    u.v[1] = mx_prmt(even, 0x64646464u, 0x4342);
    u.v[2] = mx_prmt(odd, 0x64646464u, 0x4140);
    u.v[3] = mx_prmt(odd, 0x64646464u, 0x4342);
    GPU_UNROLL
    for (int i = 0; i < 4; i++) u.v[i] = gpu_half2_add(u.v[i], 0xe480e480u);
    return u;
}

GPU_DEV void wide_mx_make(wide_mx_stage &to, const wide_mx_source &s, const wide_mx_raw &r, const gpu_wide_place &at) {
    if (at.group + 4 * s.w_half < s.groups) {
        const bool plain = r.e - WIDE_MX_PLAIN_LEAST <= WIDE_MX_PLAIN_MOST - WIDE_MX_PLAIN_LEAST;
        // 2^14 / 64 times the scale, or 2^14 / 64
        const uint32_t half = ((plain ? r.e : 127) + 14 - 6 - 127 + 15) << 10, factor = half << 16 | half;
        GPU_UNROLL
        for (uint32_t j = 0; j < 4; j++)
            *(gpu_u4 *)&to.w[gpu_wide_at(s.w_row, s.w_half * WIDE_MX_GROUP_BYTES + 16 * j)] =
                wide_mx_codes(r.w.v[j], factor);
        to.w_s[s.w_half][s.w_row] = plain ? 0.0f : k_half_scale(r.e);
    }
    if (s.x && at.group + 4 * s.x_half < s.groups) {
        GPU_UNROLL
        for (uint32_t j = 0; j < 4; j++) {
            const uint32_t a = mx_word(j, 0), b = mx_word(j, 1);
            *(gpu_u4 *)&to.x[gpu_wide_at(s.x_row, s.x_half * WIDE_MX_GROUP_BYTES + 16 * j)] =
                wide_mx_bytes(r.x[a / 4].v[a % 4], r.x[b / 4].v[b % 4]);
        }
        to.x_s[s.x_half][s.x_row] = 64.0f * r.x_s;
    }
}

GPU_DEV void wide_mx_makers(wide_mx_shared &sh, const wide_mx_source &s) {
    gpu_wide_place at = {0, 0}, load;
    wide_mx_raw now = {}, next = {};
    wide_mx_fetch(now, s, at);
    load = at;
    gpu_wide_next(load, WIDE_MX_STEP, s.groups);
    wide_mx_fetch(next, s, load);
    uint32_t stage = 0, turn = 0;
    GPU_ROLLED
    while (at.pass < 4) {
        gpu_gate_wait(&sh.free[stage], turn - 1);
        wide_mx_make(sh.in[stage], s, now, at);
        gpu_wide_written();
        gpu_gate_arrive(&sh.full[stage]);
        now = next;
        gpu_wide_next(load, WIDE_MX_STEP, s.groups);
        wide_mx_fetch(next, s, load);
        gpu_wide_next(at, WIDE_MX_STEP, s.groups);
        stage = stage == WIDE_MX_STAGES - 1 ? 0 : stage + 1;
        turn += stage == 0;
    }
}

// ---------------------------------------------------------------- adders
template <int B> struct wide_mx_sums { float v[B][4]; };

// The dots of group `half` of a stage.
template <int B>
GPU_DEV void wide_mx_add(wide_mx_sums<B> &sum, const float (&dot)[B][4], const wide_mx_stage &in, uint32_t half) {
    const uint32_t row = gpu_wave() * 16 + gpu_lane() / 4, col = gpu_lane() % 4 * 2;
    const float w_s[2] = {in.w_s[half][row], in.w_s[half][row + 8]};
    if (gpu_ballot(w_s[0] == 0.0f && w_s[1] == 0.0f) == 0xffffffffu) {
        GPU_UNROLL
        for (uint32_t b = 0; b < B; b++) {
            const gpu_u2 s = gpu_load_u2(&in.x_s[half][8 * b + col]);
            GPU_UNROLL
            for (uint32_t i = 0; i < 4; i++) sum.v[b][i] = gpu_fma(dot[b][i], gpu_as_f32(s.v[i % 2]), sum.v[b][i]);
        }
        return;
    }
    GPU_UNROLL
    for (uint32_t b = 0; b < B; b++) {
        const gpu_u2 s = gpu_load_u2(&in.x_s[half][8 * b + col]);
        GPU_UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            const float w = w_s[i / 2], x = gpu_as_f32(s.v[i % 2]);
            const float d = w == 0.0f ? dot[b][i] : dot[b][i] * 128.0f, by = w == 0.0f ? x : w * (x * 0.015625f);
            sum.v[b][i] = gpu_fma(d, by, sum.v[b][i]);
        }
    }
}

// At the end of a pass: partial sums 0, 2, 1, 3.
template <int B> GPU_DEV void wide_mx_hold(wide_mx_shared &sh, wide_mx_sums<B> &sum, uint32_t pass) {
    GPU_UNROLL
    for (uint32_t i = 0; i < 4 * B; i++) {
        float *p = &sum.v[i / 4][i % 4], *even = &sh.even[i][gpu_tid()], *odd = &sh.odd[i][gpu_tid()];
        if (pass == 0) *even = *p;
        if (pass == 1) *even = *even + *p;
        if (pass == 2) *odd = *p;
        *p = pass == 3 ? *even + (*odd + *p) : 0.0f;
    }
}

template <int B> GPU_DEV void wide_mx_walk(wide_mx_shared &sh, wide_mx_sums<B> &sum, uint32_t groups) {
    const uint32_t left = gpu_wave() / 4 * GPU_WIDE_ROWS * GPU_WIDE_BYTES;
    float dot[B][4], later[B][4];
    GPU_UNROLL
    for (uint32_t i = 0; i < 4 * B; i++) sum.v[i / 4][i % 4] = dot[i / 4][i % 4] = later[i / 4][i % 4] = 0.0f;
    gpu_wide_place at = {0, 0};
    uint32_t stage = 0, turn = 0, pass = 0;
    GPU_ROLLED
    while (at.pass < 4) {
        const wide_mx_stage &in = sh.in[stage];
        gpu_gate_wait(&sh.full[stage], turn);
        gpu_wide_open();
        gpu_wide_f16(dot, in.w + left, in.x, 0);
        gpu_wide_close();
        gpu_wide_f16(later, in.w + left, in.x, WIDE_MX_GROUP_BYTES);
        gpu_wide_close();
        gpu_wide_wait<1>();
        gpu_wide_take(dot);
        wide_mx_add<B>(sum, dot, in, 0);
        gpu_wide_wait<0>();
        gpu_wide_take(later);
        if (at.group + 4 < groups) wide_mx_add<B>(sum, later, in, 1);
        gpu_gate_arrive(&sh.free[stage]);
        stage = stage == WIDE_MX_STAGES - 1 ? 0 : stage + 1;
        turn += stage == 0;
        gpu_wide_next(at, WIDE_MX_STEP, groups);
        for (; pass < at.pass; pass++) wide_mx_hold<B>(sh, sum, pass);
    }
}

template <int B> GPU_DEV void wide_mx_adders(wide_mx_shared &sh, uint32_t groups) {
    wide_mx_sums<B> sum;
    wide_mx_walk<B>(sh, sum, groups);
    gpu_sync(); // all stages have been used
    GPU_UNROLL
    for (uint32_t i = 0; i < 4 * B; i++)
        sh.out[i / 4 * 8 + gpu_lane() % 4 * 2 + i % 2][gpu_wave() * 16 + gpu_lane() / 4 + i / 2 % 2 * 8] =
            sum.v[i / 4][i % 4];
    gpu_sync();
}

// ---------------------------------------------------------------- a block
// sh.out[input row][weight row] of four tiles, or of `tiles` if there are no more.
GPU_DEV void wide_mx_products(wide_mx_shared &sh, const uint8_t *tile, uint32_t tiles, const uint8_t *q,
                              const float *scales, const uint32_t *index, uint32_t count, uint32_t groups) {
    if (gpu_tid() == 0) {
        for (uint32_t i = 0; i < WIDE_MX_STAGES; i++) {
            gpu_gate_init(&sh.full[i], WIDE_MX_MAKERS / GPU_WAVE);
            gpu_gate_init(&sh.free[i], WIDE_MX_ADDERS / GPU_WAVE);
        }
    }
    gpu_sync();
    if (gpu_tid() >= WIDE_MX_ADDERS) {
        gpu_registers_fewer<WIDE_MX_MAKER_REGISTERS>();
        wide_mx_makers(sh, wide_mx_source_of(tile, tiles, q, scales, index, count, groups));
        gpu_sync();
        gpu_sync();
        return;
    }
    gpu_registers_more<WIDE_MX_ADDER_REGISTERS>();
    if (count <= 48)
        wide_mx_adders<6>(sh, groups);
    else if (count <= 72)
        wide_mx_adders<9>(sh, groups);
    else
        wide_mx_adders<11>(sh, groups);
}
#endif

// Blocks: the tiles of the first item, of the second, ...
GPU_KERNEL GPU_BOUNDS(WIDE_MX_THREADS, 1) k_experts_inner_wide(experts_args a, uint32_t first_item) {
#if GPU_WIDE_CODE
    GPU_SHARED_WIDE(wide_mx_shared, sh);
    gpu_begin();
    const uint32_t tiles = a.inner / K_TILE, twos = k_ceil_div(tiles, 2), tile0 = gpu_bx() % twos * 2;
    const uint32_t groups = a.hidden / K_MX_GROUP, here = tiles - tile0 < 2 ? 1 : 2;
    const expert_item item = a.table.items[first_item + gpu_bx() / twos];
    wide_mx_products(sh, item.slot + 2 * (size_t)tile0 * mx_tile_bytes(groups), 2 * here, a.z_q, a.z_s,
                     a.table.row + item.first, item.count, groups);
    const uint32_t *pairs = a.table.pair + item.first;
    for (uint32_t i = gpu_wave(); i < here * item.count; i += WIDE_MX_THREADS / GPU_WAVE) {
        const uint32_t x = i / here, t = i % here;
        const float *sums = sh.out[x] + 2 * t * K_TILE + gpu_lane();
        const float y = k_situ(sums[0], sums[K_TILE], a.beta, a.linear_beta);
        const size_t at = (size_t)pairs[x] * tiles + tile0 + t;
        mx_quantize(a.act_q + at * K_MX_GROUP, a.act_s + at, y);
    }
#endif
}

GPU_KERNEL GPU_BOUNDS(WIDE_MX_THREADS, 1) k_experts_outer_wide(experts_args a, uint32_t first_item) {
#if GPU_WIDE_CODE
    GPU_SHARED_WIDE(wide_mx_shared, sh);
    gpu_begin();
    const uint32_t tiles = a.hidden / K_TILE, fours = k_ceil_div(tiles, WIDE_MX_TILES);
    const uint32_t tile0 = gpu_bx() % fours * WIDE_MX_TILES, groups = a.inner / K_MX_GROUP;
    const uint32_t left = tiles - tile0 < WIDE_MX_TILES ? tiles - tile0 : (uint32_t)WIDE_MX_TILES;
    const expert_item item = a.table.items[first_item + gpu_bx() / fours];
    const uint8_t *down = item.slot + 2 * mx_matrix_bytes(a.hidden, a.inner);
    wide_mx_products(sh, down + tile0 * mx_tile_bytes(groups), left, a.act_q, a.act_s, a.table.pair + item.first,
                     item.count, groups);
    const uint32_t *pairs = a.table.pair + item.first;
    for (uint32_t x = gpu_wave(); x < item.count; x += WIDE_MX_THREADS / GPU_WAVE) {
        float *y = a.y + (size_t)pairs[x] * a.hidden + tile0 * K_TILE + gpu_lane();
        GPU_UNROLL
        for (uint32_t t = 0; t < WIDE_MX_TILES; t++)
            if (t < left) y[t * K_TILE] = sh.out[x][t * K_TILE + gpu_lane()];
    }
#endif
}

// ---------------------------------------------------------------- host
// Items [first, first + count) of the table.
template <bool INNER>
static inline void wide_mx_launch(gpuStream_t stream, const experts_args *args, uint32_t first, uint32_t count) {
    const experts_args a = *args;
    const uint32_t blocks = INNER ? k_ceil_div(a.inner / K_TILE, 2) : k_ceil_div(a.hidden / K_TILE, WIDE_MX_TILES);
    const uint32_t most = MX_ITEM_BLOCKS / blocks ? MX_ITEM_BLOCKS / blocks : 1;
    for (uint32_t done = 0; done < count; done += most) {
        const uint32_t at = first + done, n = count - done < most ? count - done : most;
        if (INNER)
            GPU_LAUNCH_WIDE(wide_mx_shared, k_experts_inner_wide, gpuDim3(n * blocks), gpuDim3(WIDE_MX_THREADS), stream,
                            a, at);
        else
            GPU_LAUNCH_WIDE(wide_mx_shared, k_experts_outer_wide, gpuDim3(n * blocks), gpuDim3(WIDE_MX_THREADS), stream,
                            a, at);
    }
}
#endif
