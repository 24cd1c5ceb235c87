// k_dense.h - norms, mixes, matrix products, SITU of the dense MLP and sums (docs/numerics.md, 2 and 4).
//
// Owns: nothing.  Each launcher k_NAME puts its kernel into the stream and returns; pointers are device addresses.
// Invariants: an output element is computed by one wave in the documented order, whatever the launch geometry.
// Errors: launchers do not fail; the caller asks gpuGetLastError().
#pragma once
#include "backend/gpu/gpu_s8.h"
#include "backend/gpu/k_project_wide.h"

enum { K_GRID_Y = 65535 };

// ---------------------------------------------------------------- int8 inputs of products

// Rows quantised in groups of 128; rows of q are groups * 128 bytes apart, zeros behind the last column.
typedef struct k_quantise_args {
    int8_t *q;
    float *scales;   // [n][groups]
    float *plain;    // not NULL: the values go here as f32 [n][cols] instead of to q
    const float *x;  // [n][cols]
    const float *up; // not NULL: the values are SITU(x, up)
    float beta, linear_beta;
    uint32_t n, cols;
} k_quantise_args;

// A wave takes a group, a lane four neighbours.
GPU_KERNEL GPU_BOUNDS(K_BLOCK, 4) kern_quantise(k_quantise_args a) {
    gpu_begin();
    const uint32_t groups = k_q8_groups(a.cols);
    const uint64_t item = (uint64_t)gpu_bx() * K_WAVES + gpu_wave();
    if (item >= (uint64_t)a.n * groups) return;
    const size_t row = (size_t)(item / groups);
    const uint32_t g = (uint32_t)(item % groups), col = g * K_Q8_GROUP + gpu_lane() * 4;
    const size_t at = row * a.cols + col;
    float x[4];
    uint32_t amax = 0;
    GPU_UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        bool in = col + i < a.cols;
        x[i] = in ? a.x[at + i] : 0.0f;
        if (a.up && in) x[i] = k_situ(x[i], a.up[at + i], a.beta, a.linear_beta);
        if (a.plain && in) a.plain[at + i] = x[i];
        amax = k_abs_bits(x[i]) > amax ? k_abs_bits(x[i]) : amax;
    }
    if (a.plain) return;
    k_quant k = k_quant_of(gpu_wave_max_u32(amax));
    uint32_t *q = (uint32_t *)(a.q + (row * groups + g) * K_Q8_GROUP);
    q[gpu_lane()] = k_pack4(k_quant_one(x[0], k), k_quant_one(x[1], k), k_quant_one(x[2], k), k_quant_one(x[3], k));
    if (gpu_lane() == 0) a.scales[row * groups + g] = k.scale;
}

static void k_quantise(gpuStream_t stream, const k_quantise_args *a) {
    uint64_t items = (uint64_t)a->n * k_q8_groups(a->cols);
    if (items) GPU_LAUNCH_EARLY(kern_quantise, (uint32_t)((items + K_WAVES - 1) / K_WAVES), K_BLOCK, stream, *a);
}

// ---------------------------------------------------------------- products

enum { K_Q8_ROWS = 8, K_DOT_ROWS = 4, K_X_ROWS = 4 }; // a Q8 tile is 8 rows
// Of a single input row, the tiles are dealt to K_SPLIT_BLOCKS blocks, as many as an H200 holds at a time: all of them
// begin and end together.  Where the dots of a block are too many, a wave has a tile.
enum { K_SPLIT_BLOCKS = 264, K_SPLIT_DOTS = 3584 };
// Weights of at most so many rows are read by a wave a row.
enum { K_DOT_FEW_ROWS = 4096, K_DOT_DEEP = 4 };

// Eight integers per lane; afterwards lane l has the sum of v[l % 8] over the eight lanes around it.
GPU_DEV int32_t k_scatter_sum8(int32_t v[8]) {
    const uint32_t lane = gpu_lane();
    GPU_UNROLL
    for (int m = 4; m; m >>= 1) {
        const bool high = (lane & (uint32_t)m) != 0;
        GPU_UNROLL
        for (int i = 0; i < m; i++) {
            int32_t keep = high ? v[i + m] : v[i], give = high ? v[i] : v[i + m];
            v[i] = keep + (int32_t)gpu_shfl_xor_u32((uint32_t)give, m);
        }
    }
    return v[0];
}

// Eight rows of a Q8 weight times up to NX input rows.  A step is 512 columns: lane l has 16 of them, the eight lanes
// of a group of 128 share its integer dot, and lanes 8 * j .. 8 * j + 7 keep partial sum p[j] of the eight rows.
template <int NX> GPU_DEV void k_q8_tile(const k_product *p, const k_project_args *a, uint32_t row0, uint32_t x0) {
    const uint32_t lane = gpu_lane(), groups = k_q8_groups(a->cols);
    const uint32_t in_block = p->rows - row0 < K_Q8_ROWS ? p->rows - row0 : (uint32_t)K_Q8_ROWS;
    const uint32_t sub = lane % 8 < in_block ? lane % 8 : in_block - 1;
    const size_t stride = k_q8_stride(a->cols), x_stride = (size_t)groups * K_Q8_GROUP;
    const int8_t *data = (const int8_t *)p->data + row0 * stride;
    const float *scales = p->scales + (size_t)row0 * groups + sub;
    float part[NX];
    GPU_UNROLL
    for (int x = 0; x < NX; x++) part[x] = 0.0f;
    GPU_ROLLED
    for (uint32_t g0 = 0; g0 < groups; g0 += 4) {
        const uint32_t g = g0 + lane / 8, col = g0 * K_Q8_GROUP + lane * 16;
        const bool live = g < groups, stored = col < stride;
        const float scale = live ? scales[(size_t)g * in_block] : 0.0f;
        gpu_u4 w[K_Q8_ROWS];
        GPU_UNROLL
        for (uint32_t r = 0; r < K_Q8_ROWS; r++) {
            w[r] = {{0, 0, 0, 0}};
            if (stored) w[r] = gpu_load_u4(data + (r < in_block ? r : in_block - 1) * stride + col);
        }
        GPU_UNROLL
        for (uint32_t x = 0; x < NX; x++) {
            if (x0 + x >= a->n) break;
            gpu_u4 q = {{0, 0, 0, 0}};
            if (stored) q = gpu_load_u4(a->x_q + (x0 + x) * x_stride + col);
            int32_t v[K_Q8_ROWS];
            GPU_UNROLL
            for (int r = 0; r < K_Q8_ROWS; r++) {
                int32_t d = gpu_dot4(w[r].v[0], q.v[0], 0);
                d = gpu_dot4(w[r].v[1], q.v[1], d);
                d = gpu_dot4(w[r].v[2], q.v[2], d);
                v[r] = gpu_dot4(w[r].v[3], q.v[3], d);
            }
            int32_t dot = k_scatter_sum8(v);
            if (live) part[x] = gpu_fma((float)dot, scale * a->x_s[(size_t)(x0 + x) * groups + g], part[x]);
        }
    }
    GPU_UNROLL
    for (uint32_t x = 0; x < NX; x++) {
        if (x0 + x >= a->n) break;
        float y = part[x] + gpu_shfl_xor(part[x], 16); // p0 + p2, p1 + p3
        y = y + gpu_shfl_xor(y, 8);
        if (lane < in_block) p->out[(x0 + x) * p->out_stride + row0 + lane] = y;
    }
}

// Integer dots of the groups and what they are to be multiplied with, [tile of the block][group][row of the tile].
typedef struct k_split_shared {
    int32_t dot[K_SPLIT_DOTS];
    float scale[K_SPLIT_DOTS];
} k_split_shared;

// The weights of a step of a wave, 512 columns of a tile.  Two steps are under way, the first two of a wave before the
// kernel before this one has ended, so that memory works on while one kernel ends and the next one begins.
typedef struct k_q8_step {
    gpu_u4 w[K_Q8_ROWS];
    float scale;
} k_q8_step;
#if GPU_HIP // no registers for more
#define K_STEP_LOOP     GPU_ROLLED
#define K_ONE_REGISTERS __attribute__((amdgpu_num_vgpr(120)))
enum { K_SCALE_LATE = 1 };
#else
#define K_STEP_LOOP GPU_UNROLL_2
#define K_ONE_REGISTERS
enum { K_SCALE_LATE = 0 };
#endif

// Where a wave is: its steps are `stride` apart in the steps of its tiles, one after the other.
typedef struct k_q8_place {
    uint32_t tile, step;
} k_q8_place;
GPU_DEV void k_q8_advance(k_q8_place &at, uint32_t by, uint32_t steps) {
    for (at.step += by; at.step >= steps; at.step -= steps) at.tile++;
}

// Rows of the tile.
GPU_DEV uint32_t k_q8_rows(const k_product *p, uint32_t tile) {
    const uint32_t left = p->rows - tile * K_Q8_ROWS;
    return left < K_Q8_ROWS ? left : (uint32_t)K_Q8_ROWS;
}
// The scale of this lane's group and row; any one where there is none.
GPU_DEV float k_q8_scale(const k_product *p, uint32_t cols, k_q8_place at) {
    const uint32_t lane = gpu_lane(), groups = k_q8_groups(cols), rows = k_q8_rows(p, at.tile);
    const uint32_t g = at.step * 4 + lane / 8, r = lane % 8;
    const float *scales = p->scales + (size_t)at.tile * K_Q8_ROWS * groups;
    return scales[(g < groups ? g * rows : 0) + (r < rows ? r : rows - 1)];
}
GPU_DEV void k_q8_load(k_q8_step &s, const k_product *p, uint32_t cols, k_q8_place at) {
    const uint32_t rows = k_q8_rows(p, at.tile), col = at.step * 4 * K_Q8_GROUP + gpu_lane() * 16;
    const size_t stride = k_q8_stride(cols);
    const int8_t *data = (const int8_t *)p->data + (size_t)at.tile * K_Q8_ROWS * stride;
    if (!K_SCALE_LATE) s.scale = k_q8_scale(p, cols, at);
    GPU_UNROLL
    for (uint32_t r = 0; r < K_Q8_ROWS; r++) { // behind the end of a row something else, which meets zeros
        const int8_t *row = data + (r < rows ? r : rows - 1) * stride;
        s.w[r] = gpu_load_u4(row + (col < stride ? col : 0));
    }
}

// Lane l: the dot of group l / 8 of the step and row l % 8 of the tile.
GPU_DEV int32_t k_q8_dot(const k_q8_step &s, const gpu_u4 &q) {
    int32_t v[K_Q8_ROWS];
    GPU_UNROLL
    for (int r = 0; r < K_Q8_ROWS; r++) {
        int32_t d = gpu_dot4(s.w[r].v[0], q.v[0], 0);
        d = gpu_dot4(s.w[r].v[1], q.v[1], d);
        d = gpu_dot4(s.w[r].v[2], q.v[2], d);
        v[r] = gpu_dot4(s.w[r].v[3], q.v[3], d);
    }
    return k_scatter_sum8(v);
}

// The partial sums p[g % 4] lie eight lanes apart.
GPU_DEV void k_q8_store(const k_product *p, uint32_t tile, float part) {
    float y = part + gpu_shfl_xor(part, 16); // p0 + p2, p1 + p3
    y = y + gpu_shfl_xor(y, 8);
    const uint32_t row = tile * K_Q8_ROWS + gpu_lane();
    if (gpu_lane() < K_Q8_ROWS && row < p->rows) p->out[row] = y;
}

// Q8 products of one input row.  SPLIT: a block has a->share tiles, whose steps go around among its waves; the dots
// meet in shared memory and are added up in the order of groups.  Otherwise a wave has a tile.
template <bool SPLIT>
GPU_DEV void k_q8_one(k_split_shared &sh, const k_product *p, const k_project_args *a, uint32_t block) {
    const uint32_t lane = gpu_lane(), wave = gpu_uniform(gpu_wave()), groups = k_q8_groups(a->cols);
    const uint32_t steps = k_ceil_div(groups, 4), tiles = k_ceil_div(p->rows, (uint32_t)K_Q8_ROWS);
    const uint32_t first = block * (SPLIT ? a->share : (uint32_t)K_WAVES), by = SPLIT ? K_WAVES : 1;
    const uint32_t behind = SPLIT ? first + a->share : first + wave + 1, end = behind < tiles ? behind : tiles;
    k_q8_place at = {SPLIT ? first : first + wave, 0};
    if (SPLIT) k_q8_advance(at, wave, steps);
    k_q8_place ahead = at;
    k_q8_step step = {}, next = {};
    if (ahead.tile < end) k_q8_load(step, p, a->cols, ahead);
    k_q8_advance(ahead, by, steps);
    if (ahead.tile < end) k_q8_load(next, p, a->cols, ahead);
    k_q8_advance(ahead, by, steps);
    gpu_wait_previous();
    float part = 0.0f;
    K_STEP_LOOP
    while (at.tile < end) {
        const uint32_t g = at.step * 4 + lane / 8, col = at.step * 4 * K_Q8_GROUP + lane * 16;
        const bool live = g < groups;
        gpu_u4 q = {{0, 0, 0, 0}};
        if (live) q = gpu_load_u4(a->x_q + col); // whole groups: there are zeros behind the end
        const int32_t dot = k_q8_dot(step, q);
        const float scale = (K_SCALE_LATE ? k_q8_scale(p, a->cols, at) : step.scale) * a->x_s[live ? g : 0];
        if (live && SPLIT) {
            const uint32_t to = ((at.tile - first) * groups + g) * K_Q8_ROWS + lane % 8;
            sh.dot[to] = dot;
            sh.scale[to] = scale;
        } else if (live) {
            part = gpu_fma((float)dot, scale, part);
        }
        step = next;
        if (ahead.tile < end) k_q8_load(next, p, a->cols, ahead);
        k_q8_advance(at, by, steps);
        k_q8_advance(ahead, by, steps);
    }
    if (!SPLIT) {
        if (first + wave < tiles) k_q8_store(p, first + wave, part);
        return;
    }
    gpu_sync();
    for (uint32_t tile = first + wave; tile < end; tile += K_WAVES) {
        float sum = 0.0f;
        for (uint32_t g = lane / 8, i = (tile - first) * groups * K_Q8_ROWS + lane; g < groups; g += 4)
            sum = gpu_fma((float)sh.dot[i + (g - lane / 8) * K_Q8_ROWS], sh.scale[i + (g - lane / 8) * K_Q8_ROWS], sum);
        k_q8_store(p, tile, sum);
    }
}

// ---------------------------------------------------------------- Q8 products of many rows: matrix instructions
// A block makes 128 input rows times 64 weight rows, a wave 32 times 32 of them, all four partial sums in registers.
// Halves of groups (64 columns) come through shared memory, two of them ahead; their integer dots begin at the bits of
// 1.5 * 2^23, so that the sum is already a float (less that number): |dot| <= 128 * 127 * 127 < 2^22.
enum {
    K_MMA_X = 128,
    K_MMA_W = 64,
    K_MMA_HALF = K_Q8_GROUP / 2,
    K_MMA_STAGES = 3,
    K_MMA_MAGIC = 0x4b400000,
    K_MMA_LEAST = 16 // rows from which it pays
};

#if !GPU_HIP // AMD's matrix instructions have another arrangement
typedef struct k_mma_shared {
    alignas(16) uint8_t x[K_MMA_STAGES][K_MMA_X][K_MMA_HALF];
    alignas(16) uint8_t w[K_MMA_STAGES][K_MMA_W][K_MMA_HALF];
    float x_s[2][K_MMA_X], w_s[2][K_MMA_W]; // by group % 2
} k_mma_shared;

// What a thread copies of each half: a 16-byte piece of two input rows and of a weight row, and a scale of each group.
typedef struct k_mma_source {
    const int8_t *x[2], *w;
    const float *scale;
    uint32_t scale_step, col, w_stride;
} k_mma_source;

GPU_DEV k_mma_source k_mma_source_of(const k_product *p, const k_project_args *a, uint32_t row0, uint32_t x0) {
    const uint32_t t = gpu_tid(), groups = k_q8_groups(a->cols), last = p->rows - 1;
    const size_t stride = k_q8_stride(a->cols);
    k_mma_source s;
    s.col = t % 4 * 16;
    s.w_stride = (uint32_t)stride;
    GPU_UNROLL
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t x = x0 + t / 4 + i * 64;
        s.x[i] = a->x_q + (size_t)(x < a->n ? x : a->n - 1) * groups * K_Q8_GROUP + s.col;
    }
    uint32_t r = row0 + t / 4;
    s.w = (const int8_t *)p->data + (r < last ? r : last) * stride + s.col;
    if (t < K_MMA_X) {
        uint32_t x = x0 + t;
        s.scale = a->x_s + (size_t)(x < a->n ? x : a->n - 1) * groups;
        s.scale_step = 1;
    } else {
        uint32_t row = row0 + (t - K_MMA_X) % K_MMA_W;
        row = row < last ? row : last;
        s.scale = p->scales + k_q8_scale_at(p->rows, groups, row, 0);
        s.scale_step = p->rows - row / 8 * 8 < 8 ? p->rows - row / 8 * 8 : 8;
    }
    return s;
}

GPU_DEV void k_mma_copy(k_mma_shared &sh, const k_mma_source &s, uint32_t half, uint32_t halves) {
    if (half < halves) {
        const uint32_t t = gpu_tid(), stage = half % K_MMA_STAGES, at = half * K_MMA_HALF, g = half / 2;
        gpu_copy16(&sh.x[stage][t / 4][s.col], s.x[0] + at);
        gpu_copy16(&sh.x[stage][t / 4 + 64][s.col], s.x[1] + at);
        gpu_copy16_or_zero(&sh.w[stage][t / 4][s.col], at + s.col < s.w_stride ? s.w + at : nullptr);
        if (half % 2 == 0 && t < K_MMA_X + K_MMA_W)
            gpu_copy4(t < K_MMA_X ? &sh.x_s[g % 2][t] : &sh.w_s[g % 2][t - K_MMA_X],
                      s.scale + (size_t)g * s.scale_step);
    }
    gpu_copy_batch();
}

// Dots of one half group.  Within it the order of columns is the lanes' own, the same for both matrices.
GPU_DEV void k_mma_half(int32_t (&dot)[2][4][4], const k_mma_shared &sh, uint32_t stage, uint32_t x, uint32_t w) {
    const uint32_t row = gpu_lane() / 4, col = gpu_lane() % 4 * 16;
    gpu_u4 lo[2], hi[2];
    GPU_UNROLL
    for (uint32_t m = 0; m < 2; m++) {
        lo[m] = gpu_load_u4(&sh.x[stage][x + m * 16 + row][col]);
        hi[m] = gpu_load_u4(&sh.x[stage][x + m * 16 + row + 8][col]);
    }
    GPU_UNROLL
    for (uint32_t n = 0; n < 4; n++) {
        const gpu_u4 q = gpu_load_u4(&sh.w[stage][w + n * 8 + row][col]);
        GPU_UNROLL
        for (int k = 0; k < 4; k += 2) {
            const uint32_t b[2] = {q.v[k], q.v[k + 1]};
            GPU_UNROLL
            for (int m = 0; m < 2; m++) {
                const uint32_t left[4] = {lo[m].v[k], hi[m].v[k], lo[m].v[k + 1], hi[m].v[k + 1]};
                gpu_mma_s8(dot[m][n], left, b);
            }
        }
    }
}

GPU_DEV void k_mma_add(float (&part)[2][4][4], const int32_t (&dot)[2][4][4], const float *x_s, const float *w_s) {
    const uint32_t row = gpu_lane() / 4, col = gpu_lane() % 4 * 2;
    GPU_UNROLL
    for (uint32_t m = 0; m < 2; m++) {
        const float top = x_s[m * 16 + row], low = x_s[m * 16 + row + 8];
        GPU_UNROLL
        for (uint32_t n = 0; n < 4; n++) {
            GPU_UNROLL
            for (uint32_t i = 0; i < 4; i++) {
                float d = gpu_as_f32((uint32_t)dot[m][n][i]) - 12582912.0f;
                float scale = w_s[n * 8 + col + i % 2] * (i < 2 ? top : low);
                part[m][n][i] = gpu_fma(d, scale, part[m][n][i]);
            }
        }
    }
}

GPU_KERNEL GPU_BOUNDS(K_BLOCK, 1) kern_project_mma(k_project_args a) {
    GPU_SHARED(k_mma_shared, sh);
    gpu_begin();
    k_product p = a.product[0];
    uint32_t first = 0;
    for (uint32_t i = 1; i < a.count; i++) {
        if (gpu_bx() < a.product[i - 1].block_end) break;
        first = a.product[i - 1].block_end;
        p = a.product[i];
    }
    const uint32_t row0 = (gpu_bx() - first) * K_MMA_W, x0 = gpu_by() * K_MMA_X;
    const uint32_t x = gpu_wave() / 2 * 32, w = gpu_wave() % 2 * 32, groups = k_q8_groups(a.cols), halves = 2 * groups;
    const k_mma_source source = k_mma_source_of(&p, &a, row0, x0);
    float part[4][2][4][4];
    GPU_UNROLL
    for (int i = 0; i < 128; i++) part[i / 32][i / 16 % 2][i / 4 % 4][i % 4] = 0.0f;
    k_mma_copy(sh, source, 0, halves);
    k_mma_copy(sh, source, 1, halves);
    GPU_ROLLED
    for (uint32_t g0 = 0; g0 < groups; g0 += 4) {
        GPU_UNROLL
        for (uint32_t j = 0; j < 4; j++) {
            const uint32_t g = g0 + j;
            if (g >= groups) break;
            int32_t dot[2][4][4];
            GPU_UNROLL
            for (int i = 0; i < 32; i++) dot[i / 16][i / 4 % 4][i % 4] = K_MMA_MAGIC;
            GPU_UNROLL
            for (uint32_t half = 2 * g; half < 2 * g + 2; half++) {
                gpu_copy_wait<1>();
                gpu_sync(); // this half is there for all, and all are through with the one before
                k_mma_copy(sh, source, half + 2, halves);
                k_mma_half(dot, sh, half % K_MMA_STAGES, x, w);
            }
            k_mma_add(part[j], dot, &sh.x_s[g % 2][x], &sh.w_s[g % 2][w]);
        }
    }
    GPU_UNROLL
    for (uint32_t i = 0; i < 32; i++) {
        const uint32_t m = i / 16, n = i / 4 % 4, c = i % 4;
        const uint32_t out_x = x0 + x + m * 16 + gpu_lane() / 4 + c / 2 * 8;
        const uint32_t out_r = row0 + w + n * 8 + gpu_lane() % 4 * 2 + c % 2;
        float y = k_sum4(part[0][m][n][c], part[1][m][n][c], part[2][m][n][c], part[3][m][n][c]);
        if (out_x < a.n && out_r < p.rows) p.out[out_x * p.out_stride + out_r] = y;
    }
}
#endif

// One column of a row as f32.
GPU_DEV float k_weight_get(const k_product *p, uint32_t cols, uint32_t r, uint32_t col) {
    switch (p->mode) {
    case K_MODE_F32:
        return ((const float *)p->data)[(size_t)r * cols + col];
    case K_MODE_BF16:
        return gpu_bf16_f32(((const gpu_bf16 *)p->data)[(size_t)r * cols + k_bf16_at(p->rows, cols, col)]);
    default: {
        float q = (float)((const int8_t *)p->data)[r * k_q8_stride(cols) + col];
        return q * p->scales[k_q8_scale_at(p->rows, k_q8_groups(cols), r, col / K_Q8_GROUP)];
    }
    }
}

// The part of k_dot_tile for full blocks of a BF16 weight, DEEP blocks at a time: so many loads are under way.
template <int NX, int ROWS, int DEEP>
GPU_DEV uint32_t k_dot_blocks(float (&s)[NX][ROWS], const k_product *p, const k_project_args *a, uint32_t row0,
                              uint32_t x0, uint32_t at) {
    const uint32_t lane = gpu_lane(), cols = a->cols, last = p->rows - 1;
    GPU_ROLLED
    for (; cols - at >= DEEP * K_BF16_BLOCK; at += DEEP * K_BF16_BLOCK) {
        gpu_u4 w[DEEP][ROWS];
        GPU_UNROLL
        for (uint32_t d = 0; d < DEEP; d++) {
            GPU_UNROLL
            for (uint32_t r = 0; r < ROWS; r++) {
                size_t row = row0 + r < last ? row0 + r : last;
                w[d][r] = gpu_load_u4((const gpu_bf16 *)p->data + row * cols + at + d * K_BF16_BLOCK + lane * 8);
            }
        }
        GPU_UNROLL
        for (uint32_t d = 0; d < DEEP; d++) {
            GPU_UNROLL
            for (uint32_t x = 0; x < NX; x++) {
                if (x0 + x >= a->n) break;
                const float *v = a->x + (size_t)(x0 + x) * cols + at + d * K_BF16_BLOCK + lane;
                GPU_UNROLL
                for (int t = 0; t < 4; t++) {
                    float even = v[64 * t], odd = v[64 * t + 32];
                    GPU_UNROLL
                    for (int r = 0; r < ROWS; r++) {
                        s[x][r] = gpu_fma(even, gpu_as_f32(w[d][r].v[t] << 16), s[x][r]);
                        s[x][r] = gpu_fma(odd, gpu_as_f32(w[d][r].v[t] & 0xffff0000u), s[x][r]);
                    }
                }
            }
        }
    }
    return at;
}

// The same for whole groups of a Q8 weight whose input is exact: each value is decoded, one rounded product.
template <int NX, int ROWS, int DEEP>
GPU_DEV uint32_t k_dot_groups(float (&s)[NX][ROWS], const k_product *p, const k_project_args *a, uint32_t row0,
                              uint32_t x0, uint32_t at) {
    enum { STEPS = K_Q8_GROUP / GPU_WAVE };
    const uint32_t lane = gpu_lane(), cols = a->cols, last = p->rows - 1, groups = k_q8_groups(cols);
    const size_t stride = k_q8_stride(cols);
    GPU_ROLLED
    for (; cols - at >= DEEP * K_Q8_GROUP; at += DEEP * K_Q8_GROUP) {
        int8_t w[DEEP][STEPS][ROWS];
        float scale[DEEP][ROWS];
        GPU_UNROLL
        for (uint32_t d = 0; d < DEEP; d++) {
            GPU_UNROLL
            for (uint32_t r = 0; r < ROWS; r++) {
                const uint32_t row = row0 + r < last ? row0 + r : last;
                const int8_t *q = (const int8_t *)p->data + row * stride + at + d * K_Q8_GROUP + lane;
                scale[d][r] = p->scales[k_q8_scale_at(p->rows, groups, row, at / K_Q8_GROUP + d)];
                GPU_UNROLL
                for (uint32_t t = 0; t < STEPS; t++) w[d][t][r] = q[t * GPU_WAVE];
            }
        }
        GPU_UNROLL
        for (uint32_t d = 0; d < DEEP; d++) {
            GPU_UNROLL
            for (uint32_t t = 0; t < STEPS; t++) {
                GPU_UNROLL
                for (uint32_t x = 0; x < NX; x++) {
                    if (x0 + x >= a->n) break;
                    const float v = a->x[(size_t)(x0 + x) * cols + at + d * K_Q8_GROUP + t * GPU_WAVE + lane];
                    GPU_UNROLL
                    for (int r = 0; r < ROWS; r++) s[x][r] = gpu_fma(v, (float)w[d][t][r] * scale[d][r], s[x][r]);
                }
            }
        }
    }
    return at;
}

// Sums the lanes of each row.  Four rows: the butterfly, with a row less to carry in each half; the additions and their
// operands are the same.
template <int ROWS> GPU_DEV void k_dot_store(const float (&s)[ROWS], float *out, uint32_t row0, uint32_t last) {
    const uint32_t lane = gpu_lane();
    if (ROWS == 1) {
        float y = gpu_wave_sum(s[0]);
        if (lane == 0 && row0 <= last) out[row0] = y;
        return;
    }
    const bool high = lane & 16, odd = lane & 8;
    float s0 = (high ? s[2 % ROWS] : s[0]) + gpu_shfl_xor(high ? s[0] : s[2 % ROWS], 16);
    float s1 = (high ? s[3 % ROWS] : s[1 % ROWS]) + gpu_shfl_xor(high ? s[1 % ROWS] : s[3 % ROWS], 16);
    float y = (odd ? s1 : s0) + gpu_shfl_xor(odd ? s0 : s1, 8);
    GPU_UNROLL
    for (int m = 4; m; m >>= 1) y = y + gpu_shfl_xor(y, m);
    uint32_t r = row0 + lane / 16 * 2 + lane / 8 % 2;
    if (lane % 8 == 0 && r <= last) out[r] = y;
}

// ROWS (1 or 4) rows times up to NX input rows by dot32: the lanes are the partial sums.
template <int NX, int ROWS>
GPU_DEV void k_dot_tile(const k_product *p, const k_project_args *a, uint32_t row0, uint32_t x0) {
    const uint32_t lane = gpu_lane(), cols = a->cols, last = p->rows - 1;
    float s[NX][ROWS];
    GPU_UNROLL
    for (int x = 0; x < NX; x++) {
        GPU_UNROLL
        for (int r = 0; r < ROWS; r++) s[x][r] = 0.0f;
    }
    uint32_t at = 0;
    if (p->mode == K_MODE_BF16 && p->rows > 1 && cols % 8 == 0) {
        if (ROWS == 1) at = k_dot_blocks < NX, ROWS, ROWS == 1 ? K_DOT_DEEP : 1 > (s, p, a, row0, x0, at);
        at = k_dot_blocks<NX, ROWS, 1>(s, p, a, row0, x0, at);
    } else if (p->mode == K_MODE_Q8_EXACT) {
        if (ROWS == 1) at = k_dot_groups < NX, ROWS, ROWS == 1 ? K_DOT_DEEP : 1 > (s, p, a, row0, x0, at);
        at = k_dot_groups<NX, ROWS, 1>(s, p, a, row0, x0, at);
    }
    GPU_ROLLED
    for (uint32_t i = at + lane; i < cols; i += GPU_WAVE) {
        float w[ROWS];
        GPU_UNROLL
        for (uint32_t r = 0; r < ROWS; r++) w[r] = k_weight_get(p, cols, row0 + r < last ? row0 + r : last, i);
        GPU_UNROLL
        for (uint32_t x = 0; x < NX; x++) {
            if (x0 + x >= a->n) break;
            float v = a->x[(size_t)(x0 + x) * cols + i];
            GPU_UNROLL
            for (int r = 0; r < ROWS; r++) s[x][r] = gpu_fma(v, w[r], s[x][r]);
        }
    }
    GPU_UNROLL
    for (uint32_t x = 0; x < NX; x++) {
        if (x0 + x >= a->n) break;
        k_dot_store<ROWS>(s[x], p->out + (x0 + x) * p->out_stride, row0, last);
    }
}

// ---------------------------------------------------------------- few rows of an exact product, one input row
// A wave makes a row by dot32; the input comes through shared memory, and all of the row that fits into registers is
// asked for before anything is used, also before the kernel before this one has ended.
enum { K_FEW_COLS = 8192, K_FEW_DEEP = 14, K_FEW_PIECE = 1024, K_FEW_PIECES = K_FEW_COLS / K_FEW_PIECE };
typedef struct k_few_shared {
    alignas(16) float x[K_FEW_COLS];
    alignas(16) int8_t w[K_WAVES][K_FEW_PIECE];
} k_few_shared;

GPU_DEV void k_few_input(k_few_shared &sh, const k_project_args *a) {
    gpu_wait_previous();
    for (uint32_t i = gpu_tid() * 4; i < a->cols; i += K_BLOCK * 4) *(gpu_f4 *)&sh.x[i] = gpu_load_f4(a->x + i);
    gpu_sync();
}

GPU_DEV void k_few_fetch(gpu_u4 (&w)[K_FEW_DEEP], const gpu_bf16 *row, uint32_t at, uint32_t whole) {
    GPU_UNROLL
    for (uint32_t d = 0; d < K_FEW_DEEP; d++)
        if (at + d * K_BF16_BLOCK < whole) w[d] = gpu_load_u4(row + at + d * K_BF16_BLOCK + gpu_lane() * 8);
}

GPU_DEV void k_few_bf16(k_few_shared &sh, const k_product *p, const k_project_args *a, uint32_t row) {
    const uint32_t last = p->rows - 1, whole = a->cols / K_BF16_BLOCK * K_BF16_BLOCK, lane = gpu_lane();
    const gpu_bf16 *data = (const gpu_bf16 *)p->data + (size_t)(row < last ? row : last) * a->cols;
    gpu_u4 w[K_FEW_DEEP] = {};
    k_few_fetch(w, data, 0, whole);
    for (uint32_t at = K_FEW_DEEP * K_BF16_BLOCK + lane * 64; at < whole; at += GPU_WAVE * 64) gpu_prefetch(data + at);
    k_few_input(sh, a);
    float s = 0.0f;
    GPU_ROLLED
    for (uint32_t at = 0; at < whole; at += K_FEW_DEEP * K_BF16_BLOCK) {
        GPU_UNROLL
        for (uint32_t d = 0; d < K_FEW_DEEP; d++) {
            if (at + d * K_BF16_BLOCK >= whole) break;
            const float *x = sh.x + at + d * K_BF16_BLOCK + lane;
            GPU_UNROLL
            for (int t = 0; t < 4; t++) {
                s = gpu_fma(x[64 * t], gpu_as_f32(w[d].v[t] << 16), s);
                s = gpu_fma(x[64 * t + 32], gpu_as_f32(w[d].v[t] & 0xffff0000u), s);
            }
        }
        k_few_fetch(w, data, at + K_FEW_DEEP * K_BF16_BLOCK, whole);
    }
    for (uint32_t i = whole + lane; i < a->cols; i += GPU_WAVE) s = gpu_fma(sh.x[i], gpu_bf16_f32(data[i]), s);
    s = gpu_wave_sum(s);
    if (lane == 0 && row <= last) p->out[row] = s;
}

// Later parts have no registers for this beside the rest of the kernel.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ > 900
enum { K_FEW_Q8 = 0 };
#else
enum { K_FEW_Q8 = 1 };
#endif
// Scales of the row's groups lie in the lanes: two of each, for at most 64 groups.
GPU_DEV void k_few_q8(k_few_shared &sh, const k_product *p, const k_project_args *a, uint32_t row) {
    const uint32_t last = p->rows - 1, lane = gpu_lane(), groups = k_q8_groups(a->cols), r = row < last ? row : last;
    const size_t stride = k_q8_stride(a->cols);
    const int8_t *data = (const int8_t *)p->data + r * stride;
    float scale[2] = {0.0f, 0.0f}, s = 0.0f;
    gpu_u4 w[K_FEW_PIECES][2] = {};
    GPU_UNROLL
    for (uint32_t i = 0; i < 2 * K_FEW_PIECES; i++)
        if ((i * GPU_WAVE + lane) * 16 < stride) w[i / 2][i % 2] = gpu_load_u4(data + (i * GPU_WAVE + lane) * 16);
    GPU_UNROLL
    for (uint32_t i = 0; i < 2; i++)
        if (i * GPU_WAVE + lane < groups) scale[i] = p->scales[k_q8_scale_at(p->rows, groups, r, i * GPU_WAVE + lane)];
    k_few_input(sh, a);
    int8_t *mine = sh.w[gpu_wave()];
    GPU_UNROLL
    for (uint32_t piece = 0; piece < K_FEW_PIECES; piece++) {
        if (piece * K_FEW_PIECE >= a->cols) break;
        gpu_sync();
        *(gpu_u4 *)&mine[lane * 16] = w[piece][0];
        *(gpu_u4 *)&mine[(GPU_WAVE + lane) * 16] = w[piece][1];
        gpu_sync();
        GPU_UNROLL
        for (uint32_t g = 0; g < K_FEW_PIECE / K_Q8_GROUP; g++) {
            const uint32_t group = piece * (K_FEW_PIECE / K_Q8_GROUP) + g, at = group * K_Q8_GROUP;
            if (group >= groups) break;
            const float ws = gpu_as_f32(gpu_shfl(gpu_as_u32(scale[group / GPU_WAVE]), (int)(group % GPU_WAVE)));
            GPU_UNROLL
            for (uint32_t i = lane; i < K_Q8_GROUP; i += GPU_WAVE)
                if (at + i < a->cols) s = gpu_fma(sh.x[at + i], (float)mine[g * K_Q8_GROUP + i] * ws, s);
        }
    }
    s = gpu_wave_sum(s);
    if (lane == 0 && row <= last) p->out[row] = s;
}

enum { K_KIND_Q8 = 1, K_KIND_DOT = 2 };

// The product of this block, and the number of the block within it.
GPU_DEV k_product k_project_find(const k_project_args *a, uint32_t *block) {
    k_product p = a->product[0];
    uint32_t first = 0;
    GPU_UNROLL
    for (uint32_t i = 1; i < K_PRODUCTS; i++) {
        if (i < a->count && gpu_bx() >= a->product[i - 1].block_end) {
            first = a->product[i - 1].block_end;
            p = a->product[i];
        }
    }
    *block = gpu_bx() - first;
    return p;
}

// KIND: what the products are, so that a kernel holds registers for no more than that.
template <int NX, int KIND> GPU_DEV void k_project_block(const k_project_args *a) {
    uint32_t block;
    const k_product p = k_project_find(a, &block);
    const uint32_t tile = gpu_uniform(block * K_WAVES + gpu_wave());
    const bool q8 = KIND == K_KIND_Q8;
    if (tile >= k_ceil_div(p.rows, q8 ? (uint32_t)K_Q8_ROWS : (uint32_t)K_DOT_ROWS)) return;
    for (uint32_t x = gpu_by() * NX; x < a->n; x += gpu_nby() * NX) {
        if (q8)
            k_q8_tile<NX>(&p, a, tile * K_Q8_ROWS, x);
        else
            k_dot_tile<NX, K_DOT_ROWS>(&p, a, tile * K_DOT_ROWS, x);
    }
}

K_BOTH bool k_few_rows(const k_product *p) { return p->rows <= K_DOT_FEW_ROWS; }

typedef union k_one_shared {
    k_split_shared split;
    k_few_shared few;
} k_one_shared;
static_assert(sizeof(k_one_shared) <= 48 << 10, "shared memory");

// One input row.
GPU_KERNEL GPU_BOUNDS(K_BLOCK, 2) K_ONE_REGISTERS kern_project_one(k_project_args a) {
    GPU_SHARED(k_one_shared, sh);
    uint32_t block;
    const k_product p = k_project_find(&a, &block);
    const uint32_t tile = gpu_uniform(block * K_WAVES + gpu_wave());
    if (p.mode == K_MODE_Q8) {
        if (a.share)
            k_q8_one<true>(sh.split, &p, &a, block);
        else
            k_q8_one<false>(sh.split, &p, &a, block);
        return;
    }
    if (k_few_rows(&p) && a.cols <= K_FEW_COLS && a.cols % 8 == 0 && (uintptr_t)a.x % 16 == 0) {
        if (p.mode == K_MODE_BF16 && p.rows > 1) {
            k_few_bf16(sh.few, &p, &a, tile);
            return;
        }
        if (p.mode == K_MODE_Q8_EXACT && K_FEW_Q8) {
            k_few_q8(sh.few, &p, &a, tile);
            return;
        }
    }
    gpu_wait_previous();
    if (k_few_rows(&p)) {
        if (tile < p.rows) k_dot_tile<1, 1>(&p, &a, tile, 0);
    } else if (tile < k_ceil_div(p.rows, K_DOT_ROWS)) {
        k_dot_tile<1, K_DOT_ROWS>(&p, &a, tile * K_DOT_ROWS, 0);
    }
}
GPU_KERNEL GPU_BOUNDS(K_BLOCK, 2) kern_project_q8(k_project_args a) {
    gpu_begin();
    k_project_block<K_X_ROWS, K_KIND_Q8>(&a);
}
GPU_KERNEL GPU_BOUNDS(K_BLOCK, 3) kern_project_dot(k_project_args a) {
    gpu_begin();
    k_project_block<K_X_ROWS, K_KIND_DOT>(&a);
}

static bool k_project_mma(const k_project_args *a) {
#if GPU_HIP
    (void)a;
    return false;
#else
    return a->n >= K_MMA_LEAST && k_ceil_div(a->n, K_MMA_X) <= K_GRID_Y;
#endif
}

// Rows of p that a block takes.
static uint32_t k_project_rows(const k_project_args *a, const k_product *p) {
    if (p->mode == K_MODE_Q8 && a->wide && a->n > 1) return WIDE_Q8_W;
    if (p->mode == K_MODE_Q8 && k_project_mma(a)) return K_MMA_W;
    if (p->mode == K_MODE_Q8) return (a->n == 1 && a->share ? a->share : (uint32_t)K_WAVES) * K_Q8_ROWS;
    return a->n == 1 && p->rows <= K_DOT_FEW_ROWS ? (uint32_t)K_WAVES : K_WAVES * (uint32_t)K_DOT_ROWS;
}

// The products of the wanted kinds, with their blocks; the number of blocks.
static uint32_t k_project_select(k_project_args *a, const k_project_args *all, int kinds) {
    uint32_t blocks = 0;
    *a = *all;
    a->count = 0;
    // Dots first: their few blocks take long, and so they are not what runs at the end.
    for (int kind = K_KIND_DOT; kind >= K_KIND_Q8; kind--) {
        for (uint32_t i = 0; i < all->count; i++) {
            bool q8 = all->product[i].mode == K_MODE_Q8;
            if (!(kinds & kind) || q8 != (kind == K_KIND_Q8)) continue;
            k_product *p = &a->product[a->count++];
            *p = all->product[i];
            blocks += k_ceil_div(p->rows, k_project_rows(a, p));
            p->block_end = blocks;
        }
    }
    return blocks;
}

// Q8 tiles of a block that shares them among its waves.
static uint32_t k_project_share(const k_project_args *a) {
    const uint32_t groups = k_q8_groups(a->cols);
    uint32_t tiles = 0, dots = 0;
    for (uint32_t i = 0; i < a->count; i++) {
        const k_product *p = &a->product[i];
        if (p->mode == K_MODE_Q8)
            tiles += k_ceil_div(p->rows, K_Q8_ROWS);
        else
            dots += k_ceil_div(p->rows, k_project_rows(a, p));
    }
    const uint32_t share = k_ceil_div(tiles, K_SPLIT_BLOCKS - (dots <= K_SPLIT_BLOCKS / 2 ? dots : 0));
    return (uint64_t)share * groups * K_Q8_ROWS <= K_SPLIT_DOTS ? share : 0;
}

// One launch for a single row, where launches count; one a kind for a range.
static void k_project(gpuStream_t stream, const k_project_args *all) {
    k_project_args a = *all;
    if (!all->n) return;
    if (all->n == 1) {
        k_project_args one = *all;
        one.share = k_project_share(all);
        uint32_t blocks = k_project_select(&a, &one, K_KIND_Q8 | K_KIND_DOT);
        if (blocks) GPU_LAUNCH_EARLY(kern_project_one, blocks, K_BLOCK, stream, a);
        return;
    }
    uint32_t rows = k_ceil_div(all->n, K_X_ROWS), y = rows < K_GRID_Y ? rows : (uint32_t)K_GRID_Y;
    uint32_t blocks = k_project_select(&a, all, K_KIND_Q8);
#if !GPU_HIP
    if (blocks && all->wide) {
        GPU_LAUNCH_WIDE(wide_q8_shared, kern_project_wide, gpuDim3(k_ceil_div(all->n, WIDE_Q8_X), blocks),
                        WIDE_Q8_THREADS, stream, a);
        blocks = 0;
    }
    if (blocks && k_project_mma(all)) {
        GPU_LAUNCH_EARLY(kern_project_mma, gpuDim3(blocks, k_ceil_div(all->n, K_MMA_X)), K_BLOCK, stream, a);
        blocks = 0;
    }
#endif
    if (blocks) GPU_LAUNCH_EARLY(kern_project_q8, gpuDim3(blocks, y), K_BLOCK, stream, a);
    blocks = k_project_select(&a, all, K_KIND_DOT);
    if (blocks) GPU_LAUNCH_EARLY(kern_project_dot, gpuDim3(blocks, y), K_BLOCK, stream, a);
}
