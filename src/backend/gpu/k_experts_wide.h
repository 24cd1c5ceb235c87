// k_experts_wide.h - routed MXFP4 experts for many rows, on wide tiles of halves (gpu_wide.h).
//
// Work: a block takes an item, up to 128 rows of one expert, through two tiles of 32 weight rows: gate and up, or two
//   of the down product.  A team of makers copies rows, which are halves in memory, and unpacks weights to halves, both
//   to shared memory; a team of adders multiplies and adds.  A stage has two groups of 32 columns; makers are up to
//   WIDE_MX_STAGES stages ahead; gates (gpu_gate.h) say which stages are full and which are free.
// Rows are the left tile: so a lane adds to two of them only, and has their scales in four registers.  With weights on
//   the left it reads 22 scales a group from shared memory, which bounds all (166 against 230 TFLOP/s on an H200).
// Order: even groups first, then odd ones (a pass each): g and g + 2 of a stage belong to two of the four partial sums
//   of docs/numerics.md, for both of which a lane has registers.  The sum of the even ones waits in shared memory.
// Sums: int8 rows are halves; so are nibbles times the scale of their group over 64, where that is moderate
//   (WIDE_MX_PLAIN_LEAST).  Then a dot is exact and takes one fma with 64 times the row's scale: the bits of
//   fma(dot, weight scale * row scale, sum), since the product of the scales is exact too (k_experts_range.h).  Where a
//   weight row of a stage has another scale, all are added in the general form.
// Owns: nothing.  Bits: docs/numerics.md, section 1; the oracle is src/backend/cpu/cpu_moe.c.
#pragma once
#include "backend/gpu/gpu_gate.h"
#include "backend/gpu/k_mx.h"

enum {
    WIDE_MX_ADDERS = GPU_WIDE_TEAM,
    WIDE_MX_MAKERS = GPU_WIDE_TEAM,
    WIDE_MX_THREADS = WIDE_MX_ADDERS + WIDE_MX_MAKERS,
    WIDE_MX_BLOCKS = 2,            // of a processor at a time, so that one works while the other begins or ends
    WIDE_MX_ADDER_REGISTERS = 208, // of 65536 of a processor
    WIDE_MX_MAKER_REGISTERS = 48,
    WIDE_MX_REGISTERS = 128, // of both before and after their work
    WIDE_MX_TILES = 2,
    WIDE_MX_W = WIDE_MX_TILES * K_TILE, // weight rows
    WIDE_MX_X = 2 * GPU_WIDE_ROWS,      // most input rows
    WIDE_MX_STAGES = 3,
    WIDE_MX_SUMS = WIDE_MX_X * WIDE_MX_W / WIDE_MX_ADDERS, // of a lane
    WIDE_MX_GROUP_BYTES = 2 * K_MX_GROUP,
    WIDE_MX_PIECES = WIDE_MX_X * GPU_WIDE_BYTES / 16 / WIDE_MX_MAKERS, // of the input rows of a stage, for a maker
    // Scale bytes whose nibbles are halves when they are scaled, and for which a product with any row scale is exact.
    WIDE_MX_PLAIN_LEAST = 110,
    WIDE_MX_PLAIN_MOST = 134
};

// ---------------------------------------------------------------- rows of halves
// A row in memory is in the order of the walk: two passes of wide_mx_stages() stages of two groups.
K_BOTH uint32_t wide_mx_stages(uint32_t groups) { return (groups + 3) / 4; }
// Groups of a row, those that nobody reads among them.
K_BOTH uint32_t wide_mx_row(uint32_t groups) { return 4 * wide_mx_stages(groups); }
K_BOTH uint32_t wide_mx_place(uint32_t g, uint32_t groups) {
    return 2 * (g % 2 * wide_mx_stages(groups) + g / 4) + g / 2 % 2;
}

// Whether places in rows of halves fit 32 bits.
static inline bool wide_mx_fits(uint32_t rows, uint32_t pairs, uint32_t hidden, uint32_t inner) {
    const uint64_t z = (uint64_t)rows * wide_mx_row(hidden / K_MX_GROUP),
                   act = (uint64_t)pairs * wide_mx_row(inner / K_MX_GROUP);
    return (z > act ? z : act) <= UINT32_MAX / (WIDE_MX_GROUP_BYTES / 16);
}

#if GPU_WIDE_HOST
struct wide_mx_stage {
    alignas(1024) uint8_t x[WIDE_MX_X * GPU_WIDE_BYTES];
    alignas(1024) uint8_t w[WIDE_MX_W * GPU_WIDE_BYTES];
    alignas(8) float x_s[WIDE_MX_X][2]; // 64 * scale
    float w_s[2][WIDE_MX_W];            // where `special` says so: half the scale, or 0: it is in the halves
    alignas(4) uint8_t special[2][WIDE_MX_TILES];
};
struct wide_mx_shared {
    union {
        wide_mx_stage in[WIDE_MX_STAGES];
        float out[WIDE_MX_X][WIDE_MX_W + 8]; // when all stages have been used
    };
    float even[WIDE_MX_SUMS][WIDE_MX_ADDERS];
    gpu_gate full[WIDE_MX_STAGES], free[WIDE_MX_STAGES], done;
};
static_assert(sizeof(wide_mx_shared) <= GPU_WIDE_SHARED / WIDE_MX_BLOCKS - 1024, "shared memory");

#if GPU_WIDE_CODE
// This lane's element of a group of quantised values; the order of a group is that of wide_mx_codes().
GPU_DEV void wide_mx_put(uint8_t *h, float *scales, size_t group, int32_t q, float scale) {
    const uint32_t i = gpu_lane() % 8, half = gpu_half2_add(0x6480u + (uint32_t)q, 0xe480u); // 1152 + q, less 1152
    *(uint16_t *)(h + group * WIDE_MX_GROUP_BYTES + gpu_lane() / 8 * 16 + i % 4 * 4 + i / 4 * 2) = (uint16_t)half;
    if (gpu_lane() == 0) scales[group] = 64.0f * scale;
}

// ---------------------------------------------------------------- makers
// What a maker has of each stage: a row of one of the groups of a weight tile; pieces of input rows; a row's scales.
struct wide_mx_source {
    const uint8_t *tile;
    uint32_t w_row, w_half, groups, stages, g; // g: the next one
    const uint8_t *x;
    uint32_t piece[WIDE_MX_PIECES], count; // pieces: in units of 16 bytes; of the last row instead of those behind it
    const float *x_scales;
    uint32_t x_scale; // in units of two
};
struct wide_mx_raw {
    gpu_u4 w;
    uint32_t e; // of four rows: a byte would be converted, and so waited for, as soon as it is asked for
};

// tile: the first one of `tiles`; h and scales: [..][wide_mx_row()] groups of halves, and scales; the item's rows are
// index[0 .. count).
GPU_DEV wide_mx_source wide_mx_source_of(const uint8_t *tile, uint32_t tiles, const uint8_t *h, const float *scales,
                                         const uint32_t *index, uint32_t count, uint32_t groups) {
    const uint32_t t = gpu_tid() - WIDE_MX_ADDERS, of = t / GPU_WAVE % WIDE_MX_TILES;
    wide_mx_source s;
    s.tile = tile + (of < tiles ? of : tiles - 1) * mx_tile_bytes(groups);
    s.w_row = of * K_TILE + gpu_lane();
    s.w_half = t / GPU_WAVE / WIDE_MX_TILES;
    s.groups = groups;
    s.g = 2 * s.w_half;
    s.stages = 2 * wide_mx_stages(groups);
    s.count = count;
    s.x = h;
    GPU_UNROLL
    for (uint32_t j = 0; j < WIDE_MX_PIECES; j++) {
        const uint32_t r = (t + j * WIDE_MX_MAKERS) / 8;
        s.piece[j] = index[r < count ? r : count - 1] * s.stages * (GPU_WIDE_BYTES / 16) + t % 8;
    }
    s.x_scales = scales;
    s.x_scale = index[t < count ? t : count - 1] * s.stages;
    return s;
}

// Starts the copies of the input rows of the next stage, as many times 32 as there are.
GPU_DEV void wide_mx_copy(wide_mx_stage &to, wide_mx_source &s) {
    const uint32_t t = gpu_tid() - WIDE_MX_ADDERS;
    uint8_t *first = &to.x[gpu_wide_at(t / 8, t % 8 * 16)];
    GPU_UNROLL
    for (uint32_t j = 0; j < WIDE_MX_PIECES; j++) {
        if (s.count > j / 2 * 32) gpu_copy16(first + j * WIDE_MX_MAKERS * 16, s.x + (size_t)s.piece[j] * 16);
    }
    gpu_copy8(to.x_s[t], s.x_scales + (size_t)s.x_scale * 2);
    gpu_copy_batch();
    s.x += GPU_WIDE_BYTES;
    s.x_scale++;
}

// Of the next stage.
GPU_DEV void wide_mx_fetch(wide_mx_raw &r, wide_mx_source &s) {
    const uint32_t g = s.g < s.groups ? s.g : s.groups - 1; // where there is none, nobody looks
    const uint32_t row = g * K_TILE + gpu_lane();
    r.w = gpu_load_u4(s.tile + (size_t)row * K_MX_BYTES);
    r.e = *(const uint32_t *)(const void *)(s.tile + s.groups * K_TILE * K_MX_BYTES + row / 4 * 4);
    s.g = s.g + 4 >= 2 * s.stages ? s.g % 2 ? s.g : s.w_half * 2 + 1 : s.g + 4;
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

GPU_DEV void wide_mx_make(wide_mx_stage &to, const wide_mx_source &s, const wide_mx_raw &r) {
    const uint32_t e = r.e >> s.w_row % 4 * 8 & 0xffu;
    const bool plain = e - WIDE_MX_PLAIN_LEAST <= WIDE_MX_PLAIN_MOST - WIDE_MX_PLAIN_LEAST;
    // 2^14 / 64 times the scale, or 2^14 / 64
    const uint32_t half = ((plain ? e : 127) + 14 - 6 - 127 + 15) << 10, factor = half << 16 | half;
    GPU_UNROLL
    for (uint32_t j = 0; j < 4; j++)
        *(gpu_u4 *)&to.w[gpu_wide_at(s.w_row, s.w_half * WIDE_MX_GROUP_BYTES + 16 * j)] =
            wide_mx_codes(r.w.v[j], factor);
    const bool special = gpu_ballot(plain) != 0xffffffffu;
    if (special) to.w_s[s.w_half][s.w_row] = plain ? 0.0f : k_half_scale(e);
    if (gpu_lane() == 0) to.special[s.w_half][s.w_row / K_TILE] = special;
}

GPU_DEV uint32_t wide_mx_before(uint32_t stage) { return stage ? stage - 1 : (uint32_t)WIDE_MX_STAGES - 1; }

GPU_DEV void wide_mx_makers(wide_mx_shared &sh, wide_mx_source s) {
    enum { AHEAD = 2 }; // divides the stages of both passes
    wide_mx_raw raw[AHEAD] = {};
    uint32_t stage = 0, turn = 0;
    GPU_UNROLL
    for (uint32_t i = 0; i < AHEAD; i++) wide_mx_fetch(raw[i], s);
    GPU_ROLLED
    for (uint32_t t = 0; t < s.stages; t += AHEAD) {
        GPU_UNROLL
        for (uint32_t i = 0; i < AHEAD; i++) {
            gpu_gate_wait(&sh.free[stage], turn - 1);
            wide_mx_copy(sh.in[stage], s);
            wide_mx_make(sh.in[stage], s, raw[i]);
            wide_mx_fetch(raw[i], s);
            if (t + i) { // the stage before this one has all that was copied
                gpu_copy_wait<1>();
                gpu_wide_written();
                gpu_gate_arrive(&sh.full[wide_mx_before(stage)]);
            }
            stage = stage == WIDE_MX_STAGES - 1 ? 0 : stage + 1;
            turn += stage == 0;
        }
    }
    gpu_copy_wait<0>();
    gpu_wide_written();
    gpu_gate_arrive(&sh.full[wide_mx_before(stage)]);
}

// ---------------------------------------------------------------- adders
typedef float wide_mx_dots[GPU_WIDE_BLOCKS][4]; // of 64 input rows and all weight rows

// x: the scales of the lane's two rows.
GPU_DEV void wide_mx_add(wide_mx_dots &sum, const wide_mx_dots &dot, const float (&x)[2]) {
    GPU_UNROLL
    for (uint32_t i = 0; i < 4 * GPU_WIDE_BLOCKS; i++)
        sum[i / 4][i % 4] = gpu_fma(dot[i / 4][i % 4], x[i % 4 / 2], sum[i / 4][i % 4]);
}

// The general form.  special: of the two tiles.
GPU_DEV void wide_mx_add_special(wide_mx_dots &sum, const wide_mx_dots &dot, const float (&x)[2], const float *w_s,
                                 uint32_t special) {
    GPU_UNROLL
    for (uint32_t i = 0; i < 4 * GPU_WIDE_BLOCKS; i++) {
        const uint32_t tile = i / 4 / 4;
        const float w = special >> 8 * tile & 1u ? w_s[i / 4 * 8 + gpu_lane() % 4 * 2 + i % 2] : 0.0f, s = x[i % 4 / 2];
        const float d = dot[i / 4][i % 4];
        sum[i / 4][i % 4] = gpu_fma(w == 0.0f ? d : d * 128.0f, w == 0.0f ? s : w * (s * 0.015625f), sum[i / 4][i % 4]);
    }
}

GPU_DEV void wide_mx_dot(wide_mx_dots &dot, const wide_mx_stage &in, uint32_t h, uint32_t m) {
    gpu_wide_open();
    gpu_wide_f16(dot, in.x + m * GPU_WIDE_ROWS * GPU_WIDE_BYTES, in.w, h * WIDE_MX_GROUP_BYTES);
    gpu_wide_close();
}

// M * 64 rows.  The dots of one half of a stage are made while those of the other are added.
template <int M> GPU_DEV void wide_mx_walk(wide_mx_shared &sh, wide_mx_dots (&sum)[2][M], uint32_t groups) {
    const uint32_t each = wide_mx_stages(groups), row = gpu_wave() * 16 + gpu_lane() / 4;
    uint32_t stage = 0, turn = 0;
    GPU_UNROLL
    for (uint32_t i = 0; i < 64 * M; i++) sum[i / 32 / M][i / 32 % M][i / 4 % 8][i % 4] = 0.0f;
    GPU_ROLLED
    for (uint32_t pass = 0; pass < 2; pass++) {
        GPU_ROLLED
        for (uint32_t g = pass; g < 4 * each; g += 4) {
            const wide_mx_stage &in = sh.in[stage];
            gpu_gate_wait(&sh.full[stage], turn);
            const uint32_t flags = *(const uint32_t *)in.special;
            gpu_u2 x[M][2];
            GPU_UNROLL
            for (uint32_t i = 0; i < 2 * M; i++)
                x[i / 2][i % 2] = gpu_load_u2(in.x_s[i / 2 * GPU_WIDE_ROWS + i % 2 * 8 + row]);
            wide_mx_dots dot[M];
            if (flags == 0 && g + 2 < groups) {
                GPU_UNROLL
                for (uint32_t m = 0; m < M; m++) wide_mx_dot(dot[m], in, 0, m);
                GPU_UNROLL
                for (uint32_t i = 0; i < 2 * M; i++) {
                    const uint32_t h = i / M, m = i % M;
                    const float s[2] = {gpu_as_f32(x[m][0].v[h]), gpu_as_f32(x[m][1].v[h])};
                    if (M == 2 && i < 2 * M - 1)
                        gpu_wide_wait<1>();
                    else
                        gpu_wide_wait<0>();
                    gpu_wide_take(dot[m]);
                    wide_mx_add(sum[h][m], dot[m], s);
                    if (h == 0) wide_mx_dot(dot[m], in, 1, m);
                }
            } else {
                GPU_UNROLL
                for (uint32_t i = 0; i < 2 * M; i++) {
                    const uint32_t h = i / M, m = i % M;
                    const float s[2] = {gpu_as_f32(x[m][0].v[h]), gpu_as_f32(x[m][1].v[h])};
                    wide_mx_dot(dot[0], in, h, m);
                    gpu_wide_wait<0>();
                    gpu_wide_take(dot[0]);
                    if (g + 2 * h < groups)
                        wide_mx_add_special(sum[h][m], dot[0], s, in.w_s[h], flags >> 16 * h & 0xffffu);
                }
            }
            gpu_gate_arrive(&sh.free[stage]);
            stage = stage == WIDE_MX_STAGES - 1 ? 0 : stage + 1;
            turn += stage == 0;
        }
        GPU_UNROLL
        for (uint32_t i = 0; i < 32 * M; i++) {
            float *a = &sum[0][i / 32][i / 4 % 8][i % 4], *b = &sum[1][i / 32][i / 4 % 8][i % 4],
                  *even = &sh.even[i][gpu_tid()];
            if (pass == 0) *even = *a + *b;
            *a = pass == 0 ? 0.0f : *even + (*a + *b);
            *b = 0.0f;
        }
    }
}

template <int M> GPU_DEV void wide_mx_adders(wide_mx_shared &sh, uint32_t groups) {
    wide_mx_dots sum[2][M];
    wide_mx_walk<M>(sh, sum, groups);
    gpu_gate_arrive(&sh.done);
    gpu_gate_wait(&sh.done, 0); // all stages have been used
    GPU_UNROLL
    for (uint32_t i = 0; i < 32 * M; i += 2) {
        const uint32_t row = i / 32 * GPU_WIDE_ROWS + gpu_wave() * 16 + gpu_lane() / 4 + i % 4 / 2 * 8;
        gpu_u2 two;
        two.v[0] = gpu_as_u32(sum[0][i / 32][i / 4 % 8][i % 4]);
        two.v[1] = gpu_as_u32(sum[0][i / 32][i / 4 % 8][i % 4 + 1]);
        gpu_store_u2(&sh.out[row][i / 4 % 8 * 8 + gpu_lane() % 4 * 2], two);
    }
}

// ---------------------------------------------------------------- a block
// sh.out[input row][weight row] of two tiles, or of one.
GPU_DEV void wide_mx_products(wide_mx_shared &sh, const uint8_t *tile, uint32_t tiles, const uint8_t *h,
                              const float *scales, const uint32_t *index, uint32_t count, uint32_t groups) {
    if (gpu_tid() == 0) {
        for (uint32_t i = 0; i < WIDE_MX_STAGES; i++) {
            gpu_gate_init(&sh.full[i], WIDE_MX_MAKERS / GPU_WAVE);
            gpu_gate_init(&sh.free[i], WIDE_MX_ADDERS / GPU_WAVE);
        }
        gpu_gate_init(&sh.done, WIDE_MX_ADDERS / GPU_WAVE);
    }
    gpu_sync();
    if (gpu_tid() >= WIDE_MX_ADDERS) {
        gpu_registers_fewer<WIDE_MX_MAKER_REGISTERS>();
        wide_mx_makers(sh, wide_mx_source_of(tile, tiles, h, scales, index, count, groups));
        gpu_registers_more<WIDE_MX_REGISTERS>();
    } else {
        gpu_registers_more<WIDE_MX_ADDER_REGISTERS>();
        if (count <= GPU_WIDE_ROWS)
            wide_mx_adders<1>(sh, groups);
        else
            wide_mx_adders<2>(sh, groups);
        gpu_registers_fewer<WIDE_MX_REGISTERS>();
    }
    gpu_sync();
}

// Of two rows at a time, so that one need not wait for the other.
GPU_DEV void wide_mx_situ(float (&y)[2], const float *first, const float *second, bool betas, float beta,
                          float linear) {
    const float g[2] = {first[gpu_lane()], second[gpu_lane()]},
                u[2] = {first[K_TILE + gpu_lane()], second[K_TILE + gpu_lane()]};
    GPU_UNROLL
    for (uint32_t r = 0; r < 2; r++) y[r] = k_situ<true>(g[r], u[r], beta, linear);
    if (gpu_ballot(betas && k_situ_moderate(g[0], u[0]) && k_situ_moderate(g[1], u[1])) == 0xffffffffu) return;
    GPU_UNROLL
    for (uint32_t r = 0; r < 2; r++) y[r] = k_situ(g[r], u[r], beta, linear);
}
#endif

enum { WIDE_MX_ROWS_THREADS = 256 };
// Quantised rows to halves.
GPU_KERNEL GPU_BOUNDS(WIDE_MX_ROWS_THREADS, 4) k_experts_rows_wide(experts_args a) {
#if GPU_WIDE_CODE
    gpu_begin();
    const uint32_t groups = a.hidden / K_MX_GROUP;
    const size_t i = (size_t)gpu_bx() * (WIDE_MX_ROWS_THREADS / GPU_WAVE) + gpu_wave();
    if (i >= (size_t)a.rows * groups) return; // whole waves
    const size_t row = i / groups;
    wide_mx_put(a.z_h, a.z_hs, row * wide_mx_row(groups) + wide_mx_place((uint32_t)(i - row * groups), groups),
                (int8_t)a.z_q[i * K_MX_GROUP + mx_place(gpu_lane())], a.z_s[i]);
#endif
}

// Blocks: the tiles of the first item, of the second, ...
GPU_KERNEL GPU_BOUNDS(WIDE_MX_THREADS, WIDE_MX_BLOCKS) k_experts_inner_wide(experts_args a, uint32_t first_item) {
#if GPU_WIDE_CODE
    enum { WAVES = WIDE_MX_THREADS / GPU_WAVE };
    GPU_SHARED_WIDE(wide_mx_shared, sh);
    gpu_begin();
    const uint32_t tiles = a.inner / K_TILE, tile = gpu_bx() % tiles, groups = a.hidden / K_MX_GROUP;
    const expert_item item = a.table.items[first_item + gpu_bx() / tiles];
    wide_mx_products(sh, item.slot + 2 * (size_t)tile * mx_tile_bytes(groups), 2, a.z_h, a.z_hs,
                     a.table.row + item.first, item.count, groups);
    const uint32_t place = wide_mx_place(tile, tiles), mine = gpu_wave() + gpu_lane() * WAVES;
    const uint32_t pair = a.table.pair[item.first + (mine < item.count ? mine : 0)];
    const bool betas = k_situ_betas_moderate(a.beta, a.linear_beta);
    GPU_ROLLED
    for (uint32_t x = gpu_wave(), i = 0; x < item.count; x += 2 * WAVES, i += 2) {
        const uint32_t rows[2] = {x, x + WAVES < item.count ? x + WAVES : x};
        float y[2];
        wide_mx_situ(y, sh.out[rows[0]], sh.out[rows[1]], betas, a.beta, a.linear_beta);
        const uint32_t most[2] = {gpu_wave_max_u32(k_abs_bits(y[0])), gpu_wave_max_u32(k_abs_bits(y[1]))};
        k_quant k[2] = {k_quant_of<true>(most[0]), k_quant_of<true>(most[1])};
        if (!k_quant_moderate(most[0]) || !k_quant_moderate(most[1])) {
            GPU_UNROLL
            for (uint32_t r = 0; r < 2; r++) k[r] = k_quant_of(most[r]);
        }
        GPU_UNROLL
        for (uint32_t r = 0; r < 2; r++) {
            const size_t group = (size_t)gpu_shfl(pair, (int)(i + r)) * wide_mx_row(tiles) + place;
            if (rows[r] == x + r * WAVES) wide_mx_put(a.act_h, a.act_hs, group, k_quant_one(y[r], k[r]), k[r].scale);
        }
    }
#endif
}

GPU_KERNEL GPU_BOUNDS(WIDE_MX_THREADS, WIDE_MX_BLOCKS) k_experts_outer_wide(experts_args a, uint32_t first_item) {
#if GPU_WIDE_CODE
    GPU_SHARED_WIDE(wide_mx_shared, sh);
    gpu_begin();
    const uint32_t tiles = a.hidden / K_TILE, twos = k_ceil_div(tiles, 2), tile = gpu_bx() % twos * 2;
    const uint32_t groups = a.inner / K_MX_GROUP, here = tiles - tile < 2 ? 1 : 2;
    const expert_item item = a.table.items[first_item + gpu_bx() / twos];
    const uint8_t *down = item.slot + 2 * mx_matrix_bytes(a.hidden, a.inner);
    wide_mx_products(sh, down + tile * mx_tile_bytes(groups), here, a.act_h, a.act_hs, a.table.pair + item.first,
                     item.count, groups);
    const uint32_t *pairs = a.table.pair + item.first;
    for (uint32_t x = gpu_wave(); x < item.count; x += WIDE_MX_THREADS / GPU_WAVE) {
        float *y = a.y + (size_t)pairs[x] * a.hidden + tile * K_TILE + gpu_lane();
        y[0] = sh.out[x][gpu_lane()];
        if (here == 2) y[K_TILE] = sh.out[x][K_TILE + gpu_lane()];
    }
#endif
}

// ---------------------------------------------------------------- host
static inline void wide_mx_launch_rows(gpuStream_t stream, const experts_args *a) {
    const size_t waves = (size_t)a->rows * (a->hidden / K_MX_GROUP), each = WIDE_MX_ROWS_THREADS / GPU_WAVE;
    GPU_LAUNCH(k_experts_rows_wide, gpuDim3((uint32_t)((waves + each - 1) / each)), gpuDim3(WIDE_MX_ROWS_THREADS),
               stream, *a);
}

// Items [first, first + count) of the table.
template <bool INNER>
static inline void wide_mx_launch(gpuStream_t stream, const experts_args *args, uint32_t first, uint32_t count) {
    const experts_args a = *args;
    mx_launches<INNER>(a, first, count, [&](uint32_t at, uint32_t blocks) {
        if (INNER)
            GPU_LAUNCH_WIDE(wide_mx_shared, k_experts_inner_wide, gpuDim3(blocks), gpuDim3(WIDE_MX_THREADS), stream, a,
                            at);
        else
            GPU_LAUNCH_WIDE(wide_mx_shared, k_experts_outer_wide, gpuDim3(blocks), gpuDim3(WIDE_MX_THREADS), stream, a,
                            at);
    });
}
#endif
