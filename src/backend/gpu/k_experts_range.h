// k_experts_range.h - routed MXFP4 experts for many rows, on the int8 matrix units.
//
// Work: a block of 8 waves takes an item (rows of one expert) through two tiles of 32 weight rows: gate and up, or two
//   tiles of the down product.  Wave w has the groups g of 32 columns with g % 4 == w % 4, which are one partial sum of
//   the group dots, and tile w / 4: so a weight is fetched and unpacked by one wave, straight from memory, and an
//   accumulator is one register.  Rows come through shared memory, four groups a stage, MX_STAGES - 1 stages ahead.
// Sums: an integer dot begins at the bits of 1.5 * 2^23, so that it is a float at once (less that number):
//   |dot| <= 32 * 12 * 127 < 2^22.  Where the scales of the weights are moderate powers of two, one fma takes that
//   number off and multiplies by the weight's scale, exactly, and another one by the row's: the bits of
//   fma(dot, weight scale * row scale, sum), since the product of the scales is exact too.
// Owns: nothing.  Bits: docs/numerics.md, section 1; the oracle is src/backend/cpu/cpu_moe.c.
#pragma once
#include "backend/gpu/k_mx.h"

enum {
    MX_THREADS = 256,
    MX_STAGES = 3,
    MX_PASS = 32, // rows that are put together at a time
    MX_MAGIC = 0x4b400000,
    // Scale bytes for which a product with any row scale (0, NaN or 2^-107 .. 2^121.1) is exact.
    MX_PLAIN_LEAST = 109,
    MX_PLAIN_MOST = 134,
    MX_ITEM_BLOCKS = 1 << 24 // most blocks of a launch, or one item's
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
    float v[2][BLOCKS][GPU_S8_SUMS]; // halves of the tile's rows, columns of the matrix unit
};

// ---------------------------------------------------------------- rows to shared memory
// What a thread copies: 16-byte pieces, eight of a row a stage, and scales, four of a row.
template <int ROWS> struct mx_source {
    enum { PIECES = (ROWS * 8 + MX_THREADS - 1) / MX_THREADS,
           SCALES = (ROWS * 4 + MX_THREADS - 1) / MX_THREADS };
    const uint8_t *q;
    const float *scales;
    uint32_t used, groups, piece_row[PIECES], scale_row[SCALES]; // of q and scales
};

template <int ROWS> GPU_DEV void mx_source_of(mx_source<ROWS> &s, const uint32_t *index, uint32_t count) {
    GPU_UNROLL
    for (uint32_t j = 0; j < mx_source<ROWS>::PIECES; j++) {
        uint32_t r = (gpu_tid() + j * MX_THREADS) / 8;
        s.piece_row[j] = index[r < count ? r : 0];
    }
    GPU_UNROLL
    for (uint32_t j = 0; j < mx_source<ROWS>::SCALES; j++) {
        uint32_t r = (gpu_tid() + j * MX_THREADS) / 4;
        s.scale_row[j] = index[r < count ? r : 0];
    }
    s.used = count;
}

template <int ROWS> GPU_DEV void mx_copy(mx_stage<ROWS> &to, const mx_source<ROWS> &s, uint32_t g0) {
    GPU_UNROLL
    for (uint32_t j = 0; j < mx_source<ROWS>::PIECES; j++) {
        uint32_t i = gpu_tid() + j * MX_THREADS, r = i / 8, part = i % 8, g = g0 + part / 2;
        if (r < s.used && g < s.groups)
            gpu_copy16(&to.x[part / 2][r][part % 2],
                       s.q + ((size_t)s.piece_row[j] * s.groups + g) * K_MX_GROUP + part % 2 * 16);
    }
    GPU_UNROLL
    for (uint32_t j = 0; j < mx_source<ROWS>::SCALES; j++) {
        uint32_t i = gpu_tid() + j * MX_THREADS, r = i / 4, g = g0 + i % 4;
        if (r < s.used && g < s.groups)
            gpu_copy4(&to.scale[i % 4][r], s.scales + (size_t)s.scale_row[j] * s.groups + g);
    }
    gpu_copy_batch();
}

// ---------------------------------------------------------------- weights of a tile
// A group of a tile as this lane needs it.
struct mx_packed {
    uint32_t word[2][GPU_S8_LEFT / 2];
    uint8_t scale[2][GPU_S8_LANE_ROWS];
};

GPU_DEV void mx_fetch(mx_packed &w, const uint8_t *tile, uint32_t groups, uint32_t g) {
    const uint8_t *nibbles = tile + (size_t)g * K_TILE * K_MX_BYTES;
    const uint8_t *scales = tile + ((size_t)groups * K_MX_BYTES + g) * K_TILE;
    GPU_UNROLL
    for (uint32_t m = 0; m < 2; m++) {
#if GPU_S8_WMMA
        gpu_u4 u = gpu_load_u4(nibbles + (m * GPU_S8_ROWS + gpu_s8_row(0)) * K_MX_BYTES);
        GPU_UNROLL
        for (int j = 0; j < 4; j++) w.word[m][j] = u.v[j];
        w.scale[m][0] = scales[m * GPU_S8_ROWS + gpu_s8_row(0)];
#else
        GPU_UNROLL
        for (uint32_t h = 0; h < 2; h++) {
            uint32_t row = m * GPU_S8_ROWS + gpu_s8_row(2 * h);
            w.word[m][h] = *(const uint32_t *)(nibbles + row * K_MX_BYTES + gpu_lane() % 4 * 4);
            w.scale[m][h] = scales[row];
        }
#endif
    }
}

// One half of the rows, unpacked.
GPU_DEV void mx_unpack(uint32_t (&left)[GPU_S8_LEFT], const uint32_t (&word)[GPU_S8_LEFT / 2]) {
    GPU_UNROLL
    for (uint32_t j = 0; j < GPU_S8_LEFT / 2; j++) {
        uint32_t two[2];
        mx_eight(two, word[j]);
#if GPU_S8_WMMA
        left[mx_word(j, 0)] = two[0];
        left[mx_word(j, 1)] = two[1];
#else
        left[j] = two[0];
        left[j + 2] = two[1];
#endif
    }
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

// The dots of a group with BLOCKS columns of rows, into the sums.  PLAIN: see the head of this file.
template <int ROWS, int BLOCKS, bool PLAIN>
GPU_DEV void mx_group_sums(mx_sums<ROWS> &sum, const mx_stage<ROWS> &in, uint32_t of,
                           const uint32_t (&left)[2][GPU_S8_LEFT], const float (&w_s)[2][GPU_S8_LANE_ROWS]) {
    float off[2][GPU_S8_LANE_ROWS];
    GPU_UNROLL
    for (int i = 0; i < 2 * GPU_S8_LANE_ROWS; i++)
        off[i / GPU_S8_LANE_ROWS][i % GPU_S8_LANE_ROWS] =
            w_s[i / GPU_S8_LANE_ROWS][i % GPU_S8_LANE_ROWS] * -12582912.0f;
    GPU_UNROLL
    for (uint32_t n = 0; n < BLOCKS; n++) {
        uint32_t right[GPU_S8_RIGHT];
        float x_s[GPU_S8_LANE_COLS];
        mx_rows(right, x_s, in.x[of], in.scale[of], n * GPU_S8_COLS);
        GPU_UNROLL
        for (uint32_t m = 0; m < 2; m++) {
            int32_t dot[GPU_S8_SUMS];
            gpu_s8_product(dot, MX_MAGIC, left[m], right);
            GPU_UNROLL
            for (uint32_t i = 0; i < GPU_S8_SUMS; i++) {
                const float d = gpu_as_f32((uint32_t)dot[i]), ws = w_s[m][gpu_s8_row_of(i)];
                const float xs = x_s[gpu_s8_col_of(i)];
                float *p = &sum.v[m][n][i];
                if (PLAIN) *p = gpu_fma(gpu_fma(d, ws, off[m][gpu_s8_row_of(i)]), xs, *p);
                else *p = gpu_fma(d - 12582912.0f, ws * xs, *p);
            }
        }
    }
}

template <int ROWS, int BLOCKS>
GPU_DEV void mx_group(mx_sums<ROWS> &sum, const mx_stage<ROWS> &in, uint32_t of, const mx_packed &w) {
    uint32_t left[2][GPU_S8_LEFT];
    float w_s[2][GPU_S8_LANE_ROWS];
    bool plain = true;
    GPU_UNROLL
    for (uint32_t m = 0; m < 2; m++) {
        mx_unpack(left[m], w.word[m]);
        GPU_UNROLL
        for (uint32_t r = 0; r < GPU_S8_LANE_ROWS; r++) {
            const uint32_t e = w.scale[m][r];
            w_s[m][r] = k_half_scale(e);
            plain = plain && e - MX_PLAIN_LEAST <= MX_PLAIN_MOST - MX_PLAIN_LEAST;
        }
    }
    if (gpu_ballot(plain) == 0xffffffffu) mx_group_sums<ROWS, BLOCKS, true>(sum, in, of, left, w_s);
    else mx_group_sums<ROWS, BLOCKS, false>(sum, in, of, left, w_s);
}

// All groups of this wave.  tile == NULL: there is nothing to do but to copy.
template <int ROWS, int BLOCKS>
GPU_DEV void mx_walk(mx_sums<ROWS> &sum, mx_shared<ROWS> &sh, const mx_source<ROWS> &source, const uint8_t *tile) {
    enum { AHEAD = ROWS > EXPERT_FEW ? 1 : 2 };
    const uint32_t of = gpu_uniform(gpu_wave() % 4), groups = source.groups;
    mx_packed next[AHEAD] = {};
    GPU_UNROLL
    for (uint32_t i = 0; i < AHEAD; i++)
        if (tile && of + 4 * i < groups) mx_fetch(next[i], tile, groups, of + 4 * i);
    mx_copy(sh.in[0], source, 0);
    mx_copy(sh.in[1], source, 4);
    uint32_t stage = 0, free = 2;
    GPU_ROLLED
    for (uint32_t g0 = 0; g0 < groups; g0 += 4) {
        const uint32_t g = g0 + of;
        const mx_packed now = next[0];
        if (AHEAD > 1) next[0] = next[AHEAD - 1];
        if (tile && g + 4 * AHEAD < groups) mx_fetch(next[AHEAD - 1], tile, groups, g + 4 * AHEAD);
        gpu_copy_wait<MX_STAGES - 2>();
        gpu_sync(); // this stage is there for all, and all are through with the one before
        mx_copy(sh.in[free], source, g0 + 4 * (MX_STAGES - 1));
        if (tile && g < groups) mx_group<ROWS, BLOCKS>(sum, sh.in[stage], of, now);
        free = stage;
        stage = stage == MX_STAGES - 1 ? 0 : stage + 1;
    }
    gpu_copy_wait<0>();
}

// As few columns as the rows need, of those that are compiled.
template <int ROWS>
GPU_DEV void mx_products(mx_sums<ROWS> &sum, mx_shared<ROWS> &sh, const mx_source<ROWS> &source, const uint8_t *tile) {
    enum {
        ALL = mx_sums<ROWS>::BLOCKS,
        STEP = (ALL > 8) ? 2 : 1,
        TWO = (ALL > 2 * STEP) ? ALL - 2 * STEP : 1,
        THREE = (ALL > 3 * STEP) ? ALL - 3 * STEP : 1
    };
    const int blocks = (int)k_ceil_div(source.used, GPU_S8_COLS);
    GPU_UNROLL
    for (int i = 0; i < 2 * ALL * GPU_S8_SUMS; i++)
        sum.v[i / (ALL * GPU_S8_SUMS)][i / GPU_S8_SUMS % ALL][i % GPU_S8_SUMS] = 0.0f;
    if (blocks <= THREE) mx_walk<ROWS, THREE>(sum, sh, source, tile);
    else if (blocks <= TWO) mx_walk<ROWS, TWO>(sum, sh, source, tile);
    else if (blocks <= ALL - STEP) mx_walk<ROWS, ALL - STEP>(sum, sh, source, tile);
    else mx_walk<ROWS, ALL>(sum, sh, source, tile);
}

// ---------------------------------------------------------------- results
// The partial sums of rows [MX_PASS * pass, ...) to shared memory.
template <int ROWS> GPU_DEV void mx_put(mx_shared<ROWS> &sh, const mx_sums<ROWS> &sum, uint32_t pass) {
    enum { EACH = MX_PASS / GPU_S8_COLS };
    gpu_sync();
    GPU_UNROLL
    for (uint32_t n = 0; n < EACH; n++) {
        GPU_UNROLL
        for (uint32_t m = 0; m < 2; m++) {
            GPU_UNROLL
            for (uint32_t i = 0; i < GPU_S8_SUMS; i++)
                sh.part[gpu_wave() % 4][n * GPU_S8_COLS + gpu_s8_col(i)]
                       [gpu_wave() / 4 * K_TILE + m * GPU_S8_ROWS + gpu_s8_row(i)] = sum.v[m][pass * EACH + n][i];
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
    source.q = a.z_q;
    source.scales = a.z_s;
    source.groups = groups;
    mx_source_of(source, a.table.row + item.first, item.count);
    mx_sums<ROWS> sum;
    mx_products(sum, sh, source, item.slot + (2 * (size_t)tile + gpu_uniform(gpu_wave() / 4)) * mx_tile_bytes(groups));
    const uint32_t *pairs = a.table.pair + item.first;
    GPU_UNROLL
    for (uint32_t pass = 0; pass < ROWS / MX_PASS; pass++) {
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
    const uint32_t groups = a.inner / K_MX_GROUP, tile = gpu_uniform(tile0 + gpu_wave() / 4);
    const expert_item item = a.table.items[first_item + gpu_bx() / twos];
    mx_source<ROWS> source;
    source.q = a.act_q;
    source.scales = a.act_s;
    source.groups = groups;
    mx_source_of(source, a.table.pair + item.first, item.count);
    mx_sums<ROWS> sum;
    const uint8_t *down = item.slot + 2 * mx_matrix_bytes(a.hidden, a.inner);
    mx_products(sum, sh, source, tile < tiles ? down + (size_t)tile * mx_tile_bytes(groups) : nullptr);
    const uint32_t *pairs = a.table.pair + item.first;
    GPU_UNROLL
    for (uint32_t pass = 0; pass < ROWS / MX_PASS; pass++) {
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
    const uint32_t tiles = INNER ? a.inner / K_TILE : k_ceil_div(a.hidden / K_TILE, 2);
    const uint32_t most = MX_ITEM_BLOCKS / tiles ? MX_ITEM_BLOCKS / tiles : 1;
    for (uint32_t done = 0; done < count; done += most) {
        const uint32_t at = first + done, n = count - done < most ? count - done : most;
        if (INNER) GPU_LAUNCH(k_experts_inner_range<ROWS>, gpuDim3(n * tiles), gpuDim3(MX_THREADS), stream, a, at);
        else GPU_LAUNCH(k_experts_outer_range<ROWS>, gpuDim3(n * tiles), gpuDim3(MX_THREADS), stream, a, at);
    }
}

// Quantised inputs; the table is on the device when the stream gets here.
static inline void k_experts_range(gpuStream_t stream, const experts_args *a) {
    const uint32_t few = a->table.few, many = a->table.count - few;
    mx_launch<EXPERT_FEW, true>(stream, a, 0, few);
    mx_launch<EXPERT_MANY, true>(stream, a, few, many);
    mx_launch<EXPERT_FEW, false>(stream, a, 0, few);
    mx_launch<EXPERT_MANY, false>(stream, a, few, many);
}
