// k_experts_range.h - routed MXFP4 experts for many rows, on the int8 matrix units.
//
// Work: a block takes an item (rows of one expert) through two tiles of 32 weight rows: gate and up, or two tiles of
// the
//   down product.  Wave w has the groups g of 32 columns with g % 4 == w % 4, which are one partial sum of the group
//   dots, and MX_HALVES times 16 weight rows, number w / 4: so a weight is fetched and unpacked by one wave, straight
//   from memory, and an accumulator is one register.  Rows come through shared memory, four groups a stage, MX_STAGES -
//   1 stages ahead.
// Sums: an integer dot begins at the bits of 1.5 * 2^23, so that it is a float at once (less that number):
//   |dot| <= 32 * 12 * 127 < 2^22.  Where the scales of the weights are moderate powers of two, one fma takes that
//   number off and multiplies by the weight's scale, exactly, and another one by the row's: the bits of
//   fma(dot, weight scale * row scale, sum), since the product of the scales is exact too.
// Owns: nothing.  Bits: docs/numerics.md, section 1; the oracle is src/backend/cpu/cpu_moe.c.
#pragma once
#include "backend/gpu/k_experts_wide.h"
#include "backend/gpu/k_mx.h"

enum {
    MX_HALVES = GPU_S8_WMMA ? 1 : 2,
    MX_THREADS = 512 / MX_HALVES,
    MX_STAGES = 3,
    MX_PASS = 32, // rows that are put together at a time
    MX_MAGIC = 0x4b400000,
    // Scale bytes for which a product with any row scale (0, NaN or 2^-107 .. 2^121.1) is exact.
    MX_PLAIN_LEAST = 109,
    MX_PLAIN_MOST = 134
};

template <int ROWS> struct mx_stage {
    gpu_u4 x[4][ROWS + 1][2]; // by group; a row more, so that the groups lie in different banks
    alignas(16) float scale[4][ROWS];
};
template <int ROWS> union mx_shared {
    mx_stage<ROWS> in[MX_STAGES];
    float part[4][MX_PASS][2 * K_TILE + 4]; // when all inputs have been used
};
static_assert(sizeof(mx_shared<EXPERT_MANY>) <= 48 << 10, "shared memory");

template <int ROWS> struct mx_sums {
    enum { BLOCKS = ROWS / GPU_S8_COLS };
    float v[MX_HALVES][BLOCKS][GPU_S8_SUMS]; // by columns of the matrix unit
};

// ---------------------------------------------------------------- rows to shared memory
// What a thread copies of each stage: 16-byte pieces, eight of a row, and scales, four of a row.  The limits are of the
// first group of a stage: behind them there is nothing to copy.
template <int ROWS> struct mx_source {
    enum { PIECES = (ROWS * 8 + MX_THREADS - 1) / MX_THREADS, SCALES = (ROWS * 4 + MX_THREADS - 1) / MX_THREADS };
    const uint8_t *piece[PIECES];
    const float *scale[SCALES];
    int piece_limit[PIECES], scale_limit[SCALES];
    uint32_t rows, groups;
};

// q and scales: [..][groups]; the item's rows are index[0 .. count).
template <int ROWS>
GPU_DEV void mx_source_of(mx_source<ROWS> &s, const uint8_t *q, const float *scales, const uint32_t *index,
                          uint32_t count, uint32_t groups) {
    GPU_UNROLL
    for (uint32_t j = 0; j < mx_source<ROWS>::PIECES; j++) {
        const uint32_t i = gpu_tid() + j * MX_THREADS, r = i / 8, part = i % 8;
        s.piece[j] = q + ((size_t)index[r < count ? r : 0] * groups + part / 2) * K_MX_GROUP + part % 2 * 16;
        s.piece_limit[j] = r < count ? (int)groups - (int)(part / 2) : 0;
    }
    GPU_UNROLL
    for (uint32_t j = 0; j < mx_source<ROWS>::SCALES; j++) {
        const uint32_t i = gpu_tid() + j * MX_THREADS, r = i / 4, g = i % 4;
        s.scale[j] = scales + (size_t)index[r < count ? r : 0] * groups + g;
        s.scale_limit[j] = r < count ? (int)groups - (int)g : 0;
    }
    s.rows = count;
    s.groups = groups;
}

// A part of the copies of the next stage, which begins with group g0: there are PIECES + SCALES parts.
template <int ROWS> GPU_DEV void mx_copy_part(mx_stage<ROWS> &to, mx_source<ROWS> &s, uint32_t g0, uint32_t part) {
    enum { PIECES = mx_source<ROWS>::PIECES, ALL = PIECES + mx_source<ROWS>::SCALES };
    if (part < PIECES) {
        const uint32_t i = gpu_tid() + part * MX_THREADS, r = i / 8, of = i % 8;
        if ((int)g0 < s.piece_limit[part]) gpu_copy16(&to.x[of / 2][r][of % 2], s.piece[part]);
        s.piece[part] += 4 * K_MX_GROUP;
    } else if (part < ALL) {
        const uint32_t j = part - PIECES, i = gpu_tid() + j * MX_THREADS;
        if ((int)g0 < s.scale_limit[j]) gpu_copy4(&to.scale[i % 4][i / 4], s.scale[j]);
        s.scale[j] += 4;
    }
    if (part == ALL - 1) gpu_copy_batch();
}
template <int ROWS> GPU_DEV void mx_copy(mx_stage<ROWS> &to, mx_source<ROWS> &s, uint32_t g0) {
    GPU_UNROLL
    for (uint32_t part = 0; part < mx_source<ROWS>::PIECES + mx_source<ROWS>::SCALES; part++)
        mx_copy_part(to, s, g0, part);
}

// ---------------------------------------------------------------- weights
// A group of the wave's weight rows as this lane needs it.
struct mx_packed {
    uint32_t word[MX_HALVES][GPU_S8_LEFT / 2];
    uint8_t scale[MX_HALVES][GPU_S8_LANE_ROWS];
};
// Where this lane finds the next group of its wave; nibbles == NULL: there is nothing to do but to copy.
struct mx_weights {
    const uint8_t *nibbles, *scales;
    int limit; // of the group of a wave with number 0: behind it there is none
};

GPU_DEV mx_weights mx_weights_of(const uint8_t *tile, uint32_t groups) {
    const uint32_t of = gpu_uniform(gpu_wave() % 4),
                   row0 = MX_HALVES == 2 ? 0 : gpu_uniform(gpu_wave() / 4 % 2 * GPU_S8_ROWS);
    mx_weights w = {nullptr, nullptr, 0};
    if (!tile) return w;
    const size_t row = (size_t)of * K_TILE + row0 + gpu_s8_row(0);
    w.nibbles = tile + row * K_MX_BYTES;
#if !GPU_S8_WMMA
    w.nibbles += gpu_lane() % 4 * 4;
#endif
    w.scales = tile + (size_t)groups * K_TILE * K_MX_BYTES + row;
    w.limit = (int)groups - (int)of;
    return w;
}

GPU_DEV void mx_fetch(mx_packed &w, mx_weights &from, uint32_t g0) {
    if ((int)g0 < from.limit) {
        GPU_UNROLL
        for (uint32_t m = 0; m < MX_HALVES; m++) {
#if GPU_S8_WMMA
            gpu_u4 u = gpu_load_u4(from.nibbles + m * GPU_S8_ROWS * K_MX_BYTES);
            GPU_UNROLL
            for (int j = 0; j < 4; j++) w.word[m][j] = u.v[j];
            w.scale[m][0] = from.scales[m * GPU_S8_ROWS];
#else
            GPU_UNROLL
            for (uint32_t h = 0; h < 2; h++) {
                w.word[m][h] = *(const uint32_t *)(from.nibbles + (m * GPU_S8_ROWS + 8 * h) * K_MX_BYTES);
                w.scale[m][h] = from.scales[m * GPU_S8_ROWS + 8 * h];
            }
#endif
        }
    }
    from.nibbles += 4 * K_TILE * K_MX_BYTES;
    from.scales += 4 * K_TILE;
}

// The same, ready for the matrix unit.
struct mx_left {
    uint32_t word[MX_HALVES][GPU_S8_LEFT];
    float scale[MX_HALVES][GPU_S8_LANE_ROWS];
    bool plain; // this lane's scales
};

GPU_DEV mx_left mx_unpack(const mx_packed &w) {
    mx_left left;
    left.plain = true;
    GPU_UNROLL
    for (uint32_t m = 0; m < MX_HALVES; m++) {
        GPU_UNROLL
        for (uint32_t j = 0; j < GPU_S8_LEFT / 2; j++) {
            uint32_t two[2];
            mx_eight(two, w.word[m][j]);
#if GPU_S8_WMMA
            left.word[m][mx_word(j, 0)] = two[0];
            left.word[m][mx_word(j, 1)] = two[1];
#else
            left.word[m][j] = two[0];
            left.word[m][j + 2] = two[1];
#endif
        }
        GPU_UNROLL
        for (uint32_t r = 0; r < GPU_S8_LANE_ROWS; r++) {
            const uint32_t e = w.scale[m][r];
            left.scale[m][r] = k_half_scale(e);
            left.plain = left.plain && e - MX_PLAIN_LEAST <= MX_PLAIN_MOST - MX_PLAIN_LEAST;
        }
    }
    return left;
}

// ---------------------------------------------------------------- a group of rows
// Rows [first, first + GPU_S8_COLS) of a group, and their scales.
GPU_DEV void mx_rows(uint32_t (&right)[GPU_S8_RIGHT], float (&scale)[GPU_S8_LANE_COLS], const gpu_u4 (*x)[2],
                     const float *scales, uint32_t first) {
#if GPU_S8_WMMA
    const gpu_u4 *u = x[first + gpu_lane() % 16];
    GPU_UNROLL
    for (int j = 0; j < 8; j++) right[j] = u[j / 4].v[j % 4];
    GPU_UNROLL
    for (uint32_t c = 0; c < GPU_S8_LANE_COLS; c++) scale[c] = scales[first + gpu_s8_col(c)];
#else
    const uint32_t *u = x[first + gpu_lane() / 4][0].v, t = gpu_lane() % 4;
#if MX_NATURAL
    gpu_u2 two = gpu_load_u2(u + 2 * t);
    right[0] = two.v[0];
    right[1] = two.v[1];
#else
    right[0] = u[mx_word(t, 0)];
    right[1] = u[mx_word(t, 1)];
#endif
    gpu_u2 s = gpu_load_u2(scales + first + gpu_s8_col(0));
    scale[0] = gpu_as_f32(s.v[0]);
    scale[1] = gpu_as_f32(s.v[1]);
#endif
}

// The dots of a group with BLOCKS columns of rows, into the sums.  PLAIN: see the head of this file.  In between, so
// that no unit of the processor waits for another: the copies of the next stage are asked for, and the next weights
// unpacked.
template <int ROWS, int BLOCKS, bool PLAIN>
GPU_DEV mx_left mx_group(mx_sums<ROWS> &sum, const mx_stage<ROWS> &in, uint32_t of, const mx_left &w,
                         mx_stage<ROWS> &to, mx_source<ROWS> &source, uint32_t copy_g0, const mx_packed &next) {
    enum { PARTS = mx_source<ROWS>::PIECES + mx_source<ROWS>::SCALES, EACH = (PARTS + BLOCKS - 1) / BLOCKS };
    float off[MX_HALVES][GPU_S8_LANE_ROWS];
    GPU_UNROLL
    for (int m = 0; m < MX_HALVES; m++) {
        GPU_UNROLL
        for (int r = 0; r < GPU_S8_LANE_ROWS; r++) off[m][r] = w.scale[m][r] * -12582912.0f;
    }
    mx_left left;
    GPU_UNROLL
    for (uint32_t n = 0; n < BLOCKS; n++) {
        if (n == BLOCKS / 2) left = mx_unpack(next);
        uint32_t right[GPU_S8_RIGHT];
        float x_s[GPU_S8_LANE_COLS];
        mx_rows(right, x_s, in.x[of], in.scale[of], n * GPU_S8_COLS);
        GPU_UNROLL
        for (uint32_t i = 0; i < EACH; i++) mx_copy_part(to, source, copy_g0, n * EACH + i);
        GPU_UNROLL
        for (uint32_t m = 0; m < MX_HALVES; m++) {
            int32_t dot[GPU_S8_SUMS];
            gpu_s8_product(dot, MX_MAGIC, w.word[m], right);
            GPU_UNROLL
            for (uint32_t i = 0; i < GPU_S8_SUMS; i++) {
                const uint32_t r = gpu_s8_row_of(i);
                const float d = gpu_as_f32((uint32_t)dot[i]), xs = x_s[gpu_s8_col_of(i)];
                float *p = &sum.v[m][n][i];
                if (PLAIN)
                    *p = gpu_fma(gpu_fma(d, w.scale[m][r], off[m][r]), xs, *p);
                else
                    *p = gpu_fma(d - 12582912.0f, w.scale[m][r] * xs, *p);
            }
        }
    }
    return left;
}

// All groups of this wave.
template <int ROWS, int BLOCKS>
GPU_DEV void mx_walk(mx_sums<ROWS> &sum, mx_shared<ROWS> &sh, mx_source<ROWS> &source, mx_weights &weights) {
    const uint32_t of = gpu_uniform(gpu_wave() % 4), groups = source.groups;
    mx_packed next = {}, after = {};
    mx_fetch(next, weights, 0);
    mx_fetch(after, weights, 4);
    mx_copy(sh.in[0], source, 0);
    mx_copy(sh.in[1], source, 4);
    mx_left left = mx_unpack(next);
    uint32_t stage = 0, free = 2;
    GPU_ROLLED
    for (uint32_t g0 = 0; g0 < groups; g0 += 4) {
        const uint32_t copy_g0 = g0 + 4 * (MX_STAGES - 1);
        const bool plain = gpu_ballot(left.plain) == 0xffffffffu;
        next = after;
        mx_fetch(after, weights, g0 + 8);
        gpu_copy_wait<MX_STAGES - 2>();
        gpu_sync(); // this stage is there for all, and all are through with the one before
        if ((int)g0 >= weights.limit)
            mx_copy(sh.in[free], source, copy_g0);
        else if (plain)
            left = mx_group<ROWS, BLOCKS, true>(sum, sh.in[stage], of, left, sh.in[free], source, copy_g0, next);
        else
            left = mx_group<ROWS, BLOCKS, false>(sum, sh.in[stage], of, left, sh.in[free], source, copy_g0, next);
        free = stage;
        stage = stage == MX_STAGES - 1 ? 0 : stage + 1;
    }
    gpu_copy_wait<0>();
}

// As few columns as the rows need, of those that are compiled.
template <int ROWS>
GPU_DEV void mx_products(mx_sums<ROWS> &sum, mx_shared<ROWS> &sh, mx_source<ROWS> &source, const uint8_t *tile) {
    enum {
        ALL = mx_sums<ROWS>::BLOCKS,
        STEP = (ALL > 8) ? 2 : 1,
        ONE = (ALL > 1) ? ALL - 1 : 1,
        TWO = (ALL > STEP + 1) ? ALL - STEP : 1,
        THREE = (ALL > 2 * STEP + 1) ? ALL - 2 * STEP : 1,
        FOUR = (ALL > 3 * STEP + 1) ? ALL - 3 * STEP : 1
    };
    const int blocks = (int)k_ceil_div(source.rows, GPU_S8_COLS);
    mx_weights weights = mx_weights_of(tile, source.groups);
    GPU_UNROLL
    for (int i = 0; i < MX_HALVES * ALL * GPU_S8_SUMS; i++)
        sum.v[i / GPU_S8_SUMS / ALL][i / GPU_S8_SUMS % ALL][i % GPU_S8_SUMS] = 0.0f;
    if (blocks <= FOUR)
        mx_walk<ROWS, FOUR>(sum, sh, source, weights);
    else if (blocks <= THREE)
        mx_walk<ROWS, THREE>(sum, sh, source, weights);
    else if (blocks <= TWO)
        mx_walk<ROWS, TWO>(sum, sh, source, weights);
    else if (blocks <= ONE)
        mx_walk<ROWS, ONE>(sum, sh, source, weights);
    else
        mx_walk<ROWS, ALL>(sum, sh, source, weights);
}

// ---------------------------------------------------------------- results
// The partial sums of rows [MX_PASS * pass, ...) to shared memory.
template <int ROWS> GPU_DEV void mx_put(mx_shared<ROWS> &sh, const mx_sums<ROWS> &sum, uint32_t pass) {
    enum { EACH = MX_PASS / GPU_S8_COLS };
    gpu_sync();
    GPU_UNROLL
    for (uint32_t n = 0; n < EACH && pass * EACH + n < mx_sums<ROWS>::BLOCKS; n++) {
        GPU_UNROLL
        for (uint32_t i = 0; i < MX_HALVES * GPU_S8_SUMS; i++) {
            const uint32_t m = i / GPU_S8_SUMS, c = i % GPU_S8_SUMS;
            sh.part[gpu_wave() % 4][n * GPU_S8_COLS + gpu_s8_col(c)]
                   [(gpu_wave() / 4 * MX_HALVES + m) * GPU_S8_ROWS + gpu_s8_row(c)] = sum.v[m][pass * EACH + n][c];
        }
    }
    gpu_sync();
}
template <int ROWS> GPU_DEV float mx_get(const mx_shared<ROWS> &sh, uint32_t x, uint32_t row) {
    return k_sum4(sh.part[0][x][row], sh.part[1][x][row], sh.part[2][x][row], sh.part[3][x][row]);
}

#if GPU_HIP
#define MX_BOUNDS(rows) GPU_BOUNDS(MX_THREADS, 1)
#else
#define MX_BOUNDS(rows) GPU_BOUNDS(MX_THREADS, (rows) > EXPERT_FEW ? 1 : 2)
#endif

// Blocks: the tiles of the first item, of the second, ...
template <int ROWS> GPU_KERNEL MX_BOUNDS(ROWS) k_experts_inner_range(experts_args a, uint32_t first_item) {
    GPU_SHARED(mx_shared<ROWS>, sh);
    gpu_begin();
    const uint32_t tiles = a.inner / K_TILE, tile = gpu_bx() % tiles, groups = a.hidden / K_MX_GROUP;
    const expert_item item = a.table.items[first_item + gpu_bx() / tiles];
    mx_source<ROWS> source;
    mx_source_of(source, a.z_q, a.z_s, a.table.row + item.first, item.count, groups);
    mx_sums<ROWS> sum;
    mx_products(sum, sh, source,
                item.slot + (2 * (size_t)tile + gpu_uniform(gpu_wave() / (8 / MX_HALVES))) * mx_tile_bytes(groups));
    const uint32_t *pairs = a.table.pair + item.first;
    GPU_UNROLL
    for (uint32_t pass = 0; pass < (ROWS + MX_PASS - 1) / MX_PASS; pass++) {
        if (pass * MX_PASS >= item.count) break;
        mx_put(sh, sum, pass);
        for (uint32_t x = gpu_wave(); x < MX_PASS && pass * MX_PASS + x < item.count; x += MX_THREADS / GPU_WAVE) {
            float y = k_situ(mx_get(sh, x, gpu_lane()), mx_get(sh, x, K_TILE + gpu_lane()), a.beta, a.linear_beta);
            size_t at = (size_t)pairs[pass * MX_PASS + x] * tiles + tile;
            mx_quantize(a.act_q + at * K_MX_GROUP, a.act_s + at, y);
        }
    }
}

template <int ROWS> GPU_KERNEL MX_BOUNDS(ROWS) k_experts_outer_range(experts_args a, uint32_t first_item) {
    GPU_SHARED(mx_shared<ROWS>, sh);
    gpu_begin();
    const uint32_t tiles = a.hidden / K_TILE, twos = k_ceil_div(tiles, 2), tile0 = gpu_bx() % twos * 2;
    const uint32_t groups = a.inner / K_MX_GROUP, tile = gpu_uniform(tile0 + gpu_wave() / (8 / MX_HALVES));
    const expert_item item = a.table.items[first_item + gpu_bx() / twos];
    mx_source<ROWS> source;
    mx_source_of(source, a.act_q, a.act_s, a.table.pair + item.first, item.count, groups);
    mx_sums<ROWS> sum;
    const uint8_t *down = item.slot + 2 * mx_matrix_bytes(a.hidden, a.inner);
    mx_products(sum, sh, source, tile < tiles ? down + (size_t)tile * mx_tile_bytes(groups) : nullptr);
    const uint32_t *pairs = a.table.pair + item.first;
    GPU_UNROLL
    for (uint32_t pass = 0; pass < (ROWS + MX_PASS - 1) / MX_PASS; pass++) {
        if (pass * MX_PASS >= item.count) break;
        mx_put(sh, sum, pass);
        for (uint32_t x = gpu_wave(); x < MX_PASS && pass * MX_PASS + x < item.count; x += MX_THREADS / GPU_WAVE) {
            float *y = a.y + (size_t)pairs[pass * MX_PASS + x] * a.hidden + tile0 * K_TILE + gpu_lane();
            y[0] = mx_get(sh, x, gpu_lane());
            if (tile0 + 1 < tiles) y[K_TILE] = mx_get(sh, x, K_TILE + gpu_lane());
        }
    }
}

// ---------------------------------------------------------------- host
// Items [first, first + count) of the table.
template <int ROWS, bool INNER>
static inline void mx_launch(gpuStream_t stream, const experts_args *args, uint32_t first, uint32_t count) {
    experts_args a = *args;
    mx_launches<INNER>(a, first, count, [&](uint32_t at, uint32_t blocks) {
        if (INNER)
            GPU_LAUNCH(k_experts_inner_range<ROWS>, gpuDim3(blocks), gpuDim3(MX_THREADS), stream, a, at);
        else
            GPU_LAUNCH(k_experts_outer_range<ROWS>, gpuDim3(blocks), gpuDim3(MX_THREADS), stream, a, at);
    });
}

// Most rows of an item.
static inline uint32_t experts_most(bool wide) { return wide ? (uint32_t)WIDE_MX_X : (uint32_t)EXPERT_MANY; }

// Items of more than EXPERT_FEW rows.
template <bool INNER> static inline void mx_launch_many(gpuStream_t stream, const experts_args *a) {
    const uint32_t few = a->table.few, many = a->table.count - few;
#if GPU_WIDE_HOST
    if (a->wide) {
        if (INNER && many) wide_mx_launch_rows(stream, a);
        wide_mx_launch<INNER>(stream, a, few, many);
        return;
    }
#endif
    mx_launch<EXPERT_MANY, INNER>(stream, a, few, many);
}

// Quantised inputs; the table is on the device when the stream gets here.
static inline void k_experts_range(gpuStream_t stream, const experts_args *a) {
    mx_launch<EXPERT_FEW, true>(stream, a, 0, a->table.few);
    mx_launch_many<true>(stream, a);
    mx_launch<EXPERT_FEW, false>(stream, a, 0, a->table.few);
    mx_launch_many<false>(stream, a);
}
