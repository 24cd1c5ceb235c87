// k_project_wide.h - Q8 products of many rows on wide tiles (gpu_wide.h).
//
// Work: a block of two teams makes 128 input rows, 64 a team, times 128 weight rows, of which a team makes two halves
//   in turn.  Groups of 128 columns come through shared memory, WIDE_Q8_STAGES - 1 of them ahead.
// Sums: the four partial sums of the group dots come one after the other (a pass each, in the order 0 2 1 3), so that a
//   lane holds registers for one; one that waits is in registers too, another in shared memory.
// Owns: nothing.  Bits: docs/numerics.md, section 1.
#pragma once
#include "backend/gpu/gpu_wide.h"
#include "backend/gpu/k_common.h"
#include "backend/gpu/k_product.h"

enum {
    WIDE_Q8_THREADS = 2 * GPU_WIDE_TEAM,
    WIDE_Q8_X = 2 * GPU_WIDE_ROWS,
    WIDE_Q8_W = 2 * GPU_WIDE_ROWS,
    WIDE_Q8_SUMS = WIDE_Q8_W / 2, // of a lane
    WIDE_Q8_STAGES = 3,
    WIDE_Q8_GRID_Y = 65535,
    WIDE_Q8_PIECES = 4, // of 16 bytes of either side, that a thread copies of a group
    WIDE_Q8_LEAST = 64, // input rows, and
    WIDE_Q8_BLOCKS = 64 // blocks, from which it pays: half as many smaller ones leave a large device idle
};

#if GPU_WIDE_HOST
struct wide_q8_stage {
    alignas(1024) uint8_t x[WIDE_Q8_X * GPU_WIDE_BYTES];
    alignas(1024) uint8_t w[WIDE_Q8_W * GPU_WIDE_BYTES];
};
struct wide_q8_shared {
    wide_q8_stage in[WIDE_Q8_STAGES];
    float x_s[WIDE_Q8_STAGES][WIDE_Q8_X];
    alignas(16) float w_s[WIDE_Q8_STAGES][WIDE_Q8_W]; // by wide_q8_column()
    float held[WIDE_Q8_SUMS][WIDE_Q8_THREADS];
};
static_assert(sizeof(wide_q8_shared) <= GPU_WIDE_SHARED, "shared memory");

// Scales lie so that a lane has those of its columns of two neighbouring blocks of eight in 16 bytes.
GPU_DEV uint32_t wide_q8_column(uint32_t c) { return c / 16 * 16 + c % 8 / 2 * 4 + c / 8 % 2 * 2 + c % 2; }

#if GPU_WIDE_CODE
// What a thread copies of each group: pieces of rows tid / 8 + 32 i of either side, and a scale.
struct wide_q8_source {
    const int8_t *x, *w;
    uint32_t x_row[WIDE_Q8_PIECES], w_row[WIDE_Q8_PIECES]; // from x and w
    const float *scale;
    uint32_t scale_step, col, w_stride;
};

GPU_DEV wide_q8_source wide_q8_source_of(const k_product *p, const k_project_args *a, uint32_t row0, uint32_t x0) {
    const uint32_t t = gpu_tid(), groups = k_q8_groups(a->cols), x_left = a->n - 1 - x0, w_left = p->rows - 1 - row0;
    const size_t stride = k_q8_stride(a->cols), x_stride = (size_t)groups * K_Q8_GROUP;
    wide_q8_source s;
    s.col = t % 8 * 16;
    s.x = a->x_q + x0 * x_stride + s.col;
    s.w = (const int8_t *)p->data + row0 * stride + s.col;
    s.w_stride = (uint32_t)stride;
    GPU_UNROLL
    for (uint32_t i = 0; i < WIDE_Q8_PIECES; i++) {
        const uint32_t r = t / 8 + 32 * i;
        s.x_row[i] = (uint32_t)((r < x_left ? r : x_left) * x_stride);
        s.w_row[i] = (uint32_t)((r < w_left ? r : w_left) * stride);
    }
    if (t < WIDE_Q8_X) {
        s.scale = a->x_s + (size_t)(x0 + (t < x_left ? t : x_left)) * groups;
        s.scale_step = 1;
    } else {
        const uint32_t r = t - WIDE_Q8_X, row = row0 + (r < w_left ? r : w_left);
        s.scale = p->scales + k_q8_scale_at(p->rows, groups, row, 0);
        s.scale_step = p->rows - row / 8 * 8 < 8 ? p->rows - row / 8 * 8 : 8;
    }
    return s;
}

GPU_DEV void wide_q8_copy(wide_q8_shared &sh, const wide_q8_source &s, const gpu_wide_place &at, uint32_t stage) {
    if (at.pass < 4) {
        const uint32_t t = gpu_tid(), first = at.group * K_Q8_GROUP;
        wide_q8_stage &in = sh.in[stage];
        const bool stored = first + s.col < s.w_stride;
        GPU_UNROLL
        for (uint32_t i = 0; i < WIDE_Q8_PIECES; i++) {
            const uint32_t to = gpu_wide_at(t / 8 + 32 * i, s.col);
            gpu_copy16(&in.x[to], s.x + s.x_row[i] + first);
            gpu_copy16_or_zero(&in.w[to], stored ? s.w + s.w_row[i] + first : nullptr);
        }
        gpu_copy4(t < WIDE_Q8_X ? &sh.x_s[stage][t] : &sh.w_s[stage][wide_q8_column(t - WIDE_Q8_X)],
                  s.scale + (size_t)at.group * s.scale_step);
    }
    gpu_copy_batch();
}

struct wide_q8_sums {
    float v[2][GPU_WIDE_BLOCKS][4];
};

// Adds the dots of a half of the weight rows.
GPU_DEV void wide_q8_add(wide_q8_sums &sum, const int32_t (&dot)[GPU_WIDE_BLOCKS][4], uint32_t half, const float *w_s,
                         const float (&x_s)[2]) {
    GPU_UNROLL
    for (uint32_t b = 0; b < GPU_WIDE_BLOCKS; b += 2) {
        const gpu_f4 s = gpu_load_f4(w_s + half * GPU_WIDE_ROWS + b * 8 + gpu_lane() % 4 * 4);
        GPU_UNROLL
        for (uint32_t i = 0; i < 8; i++) {
            float *p = &sum.v[half][b + i / 4][i % 4];
            *p = gpu_fma((float)dot[b + i / 4][i % 4], s.v[i / 4 * 2 + i % 2] * x_s[i % 4 / 2], *p);
        }
    }
}

// At the end of a pass: partial sums 0, 2, 1, 3.  (A loop a pass would spill registers.)
GPU_DEV void wide_q8_hold(wide_q8_shared &sh, wide_q8_sums &sum, wide_q8_sums &odd, uint32_t pass) {
    GPU_UNROLL
    for (uint32_t i = 0; i < WIDE_Q8_SUMS; i++) {
        float *p = &sum.v[i / 32][i / 4 % 8][i % 4], *even = &sh.held[i][gpu_tid()],
              *o = &odd.v[i / 32][i / 4 % 8][i % 4];
        if (pass == 0) *even = *p;
        if (pass == 1) *even = *even + *p;
        if (pass == 2) *o = *p;
        if (pass == 3)
            *p = *even + (*o + *p);
        else
            *p = 0.0f;
    }
}

GPU_DEV void wide_q8_walk(wide_q8_shared &sh, wide_q8_sums &sum, const wide_q8_source &from, uint32_t groups) {
    const uint32_t team = gpu_wave() / 4, x = gpu_wave() * 16 + gpu_lane() / 4;
    wide_q8_sums odd;
    int32_t low[GPU_WIDE_BLOCKS][4], high[GPU_WIDE_BLOCKS][4];
    GPU_UNROLL
    for (uint32_t i = 0; i < WIDE_Q8_SUMS; i++) {
        sum.v[i / 32][i / 4 % 8][i % 4] = odd.v[i / 32][i / 4 % 8][i % 4] = 0.0f;
        (i < 32 ? low : high)[i / 4 % 8][i % 4] = 0;
    }
    gpu_wide_place at = {0, 0}, load = {0, 0};
    GPU_UNROLL
    for (uint32_t i = 0; i < WIDE_Q8_STAGES - 1; i++) {
        wide_q8_copy(sh, from, load, i);
        gpu_wide_next(load, 4, groups);
    }
    uint32_t stage = 0, free = WIDE_Q8_STAGES - 1, pass = 0;
    GPU_ROLLED
    while (at.pass < 4) {
        gpu_copy_wait<WIDE_Q8_STAGES - 2>();
        gpu_wide_written();
        gpu_sync(); // this group is there for all, and all are through with the one before
        wide_q8_copy(sh, from, load, free);
        gpu_wide_next(load, 4, groups);
        const uint8_t *left = sh.in[stage].x + team * GPU_WIDE_ROWS * GPU_WIDE_BYTES;
        gpu_wide_open();
        gpu_wide_s8(low, left, sh.in[stage].w);
        gpu_wide_close();
        gpu_wide_s8(high, left, sh.in[stage].w + GPU_WIDE_ROWS * GPU_WIDE_BYTES);
        gpu_wide_close();
        const float x_s[2] = {sh.x_s[stage][x], sh.x_s[stage][x + 8]};
        gpu_wide_wait<1>();
        gpu_wide_take(low);
        wide_q8_add(sum, low, 0, sh.w_s[stage], x_s);
        gpu_wide_wait<0>();
        gpu_wide_take(high);
        wide_q8_add(sum, high, 1, sh.w_s[stage], x_s);
        free = stage;
        stage = stage == WIDE_Q8_STAGES - 1 ? 0 : stage + 1;
        gpu_wide_next(at, 4, groups);
        for (; pass < at.pass; pass++) wide_q8_hold(sh, sum, odd, pass);
    }
    gpu_copy_wait<0>();
}
#endif

// Grid: blocks of input rows, which share weights and so come together, blocks of weight rows.
GPU_KERNEL GPU_BOUNDS(WIDE_Q8_THREADS, 1) kern_project_wide(k_project_args a) {
#if GPU_WIDE_CODE
    GPU_SHARED_WIDE(wide_q8_shared, sh);
    gpu_begin();
    k_product p = a.product[0];
    uint32_t first = 0;
    for (uint32_t i = 1; i < a.count; i++) {
        if (gpu_by() < a.product[i - 1].block_end) break;
        first = a.product[i - 1].block_end;
        p = a.product[i];
    }
    const uint32_t row0 = (gpu_by() - first) * WIDE_Q8_W, x0 = gpu_bx() * WIDE_Q8_X;
    wide_q8_sums sum;
    wide_q8_walk(sh, sum, wide_q8_source_of(&p, &a, row0, x0), k_q8_groups(a.cols));
    const uint32_t x = x0 + gpu_wave() * 16 + gpu_lane() / 4, r = row0 + gpu_lane() % 4 * 2;
    GPU_UNROLL
    for (uint32_t i = 0; i < WIDE_Q8_SUMS; i++) {
        const uint32_t out_x = x + i / 2 % 2 * 8, out_r = r + i / 4 * 8 + i % 2;
        if (out_x < a.n && out_r < p.rows) p.out[out_x * p.out_stride + out_r] = sum.v[i / 32][i / 4 % 8][i % 4];
    }
#endif
}
#endif

// Whether Q8 products are worth it on a device that has wide tiles.
static inline bool wide_q8_pays(const k_project_args *a) {
    uint64_t blocks = 0;
    for (uint32_t i = 0; i < a->count; i++)
        if (a->product[i].mode == K_MODE_Q8) blocks += k_ceil_div(a->product[i].rows, WIDE_Q8_W);
    return a->n >= WIDE_Q8_LEAST && blocks <= WIDE_Q8_GRID_Y && blocks * k_ceil_div(a->n, WIDE_Q8_X) >= WIDE_Q8_BLOCKS;
}
