// k_dense.h - norms, mixes, matrix products, SITU of the dense MLP, sums and weight conversion (docs/numerics.md, 2 and
// 4).
//
// Owns: nothing.  Each launcher k_NAME puts its kernel into the stream and returns; pointers are device addresses.
// Invariants: an output element is computed by one wave in the documented order, whatever the launch geometry.
// Errors: launchers do not fail; the caller asks gpuGetLastError().
#pragma once
#include "backend/gpu/k_common.h"

enum { K_BLOCK = 256, K_WAVES = K_BLOCK / GPU_WAVE, K_MIX_SOURCES = 256, K_GRID_Y = 65535 };

// ---------------------------------------------------------------- rms_norm

typedef struct k_rms_norm_args {
    float *out;
    const float *x; // [n][dim]
    k_vector w;
    uint32_t n, dim;
    float eps;
} k_rms_norm_args;

typedef struct k_norm_shared {
    float factor;
} k_norm_shared;

// out = w * (x * RMS factor of x) for the row of this block; out may be x.
GPU_DEV void k_norm_row(k_norm_shared *sh, float *out, const float *x, k_vector w, uint32_t dim, float eps) {
    if (gpu_wave() == 0) {
        float r = k_rms_factor(k_wave_dot32(x, x, dim), dim, eps);
        if (gpu_lane() == 0) sh->factor = r;
    }
    gpu_sync();
    float r = sh->factor;
    for (uint32_t i = gpu_tid(); i < dim; i += gpu_nt()) out[i] = k_vector_get(w, i) * (x[i] * r);
}

GPU_KERNEL GPU_BOUNDS(K_BLOCK, 2) kern_rms_norm(k_rms_norm_args a) {
    GPU_SHARED(k_norm_shared, sh);
    size_t at = (size_t)gpu_bx() * a.dim;
    k_norm_row(&sh, a.out + at, a.x + at, a.w, a.dim, a.eps);
}

static void k_rms_norm(gpuStream_t stream, const k_rms_norm_args *a) {
    if (a->n) GPU_LAUNCH(kern_rms_norm, a->n, K_BLOCK, stream, *a);
}

// ---------------------------------------------------------------- mix_norm

typedef struct k_mix_args {
    float *out;
    const float *blocks; // closed block j, row i at blocks + j * block_stride + i * dim
    size_t block_stride;
    uint32_t block_count; // below K_MIX_SOURCES
    const float *prefix;  // [n][dim], the last source
    const float *score;   // [dim]
    k_vector norm;        // data == NULL: the bare mix
    uint32_t n, dim;
    float eps;
} k_mix_args;

typedef struct k_mix_shared {
    float p[K_MIX_SOURCES];
    k_norm_shared norm;
} k_mix_shared;

GPU_DEV const float *k_mix_source(const k_mix_args *a, uint32_t source, size_t row) {
    if (source == a->block_count) return a->prefix + row * a->dim;
    return a->blocks + source * a->block_stride + row * a->dim;
}

GPU_KERNEL GPU_BOUNDS(K_BLOCK, 2) kern_mix_norm(k_mix_args a) {
    GPU_SHARED(k_mix_shared, sh);
    const size_t row = gpu_bx();
    const uint32_t sources = a.block_count + 1;
    for (uint32_t s = gpu_wave(); s < sources; s += K_WAVES) {
        const float *v = k_mix_source(&a, s, row);
        float uv = 0.0f, vv = 0.0f;
        for (uint32_t i = gpu_lane(); i < a.dim; i += GPU_WAVE) {
            float x = v[i];
            uv = gpu_fma(a.score[i], x, uv);
            vv = gpu_fma(x, x, vv);
        }
        uv = gpu_wave_sum(uv);
        vv = gpu_wave_sum(vv);
        if (gpu_lane() == 0) sh.p[s] = uv * k_rms_factor(vv, a.dim, a.eps);
    }
    gpu_sync();
    float m = sh.p[0];
    for (uint32_t s = 1; s < sources; s++) m = sh.p[s] > m ? sh.p[s] : m;
    gpu_sync();
    if (gpu_tid() < sources) sh.p[gpu_tid()] = k_exp(sh.p[gpu_tid()] - m);
    gpu_sync();
    float l = 0.0f;
    for (uint32_t s = 0; s < sources; s++) l = l + sh.p[s];
    float *out = a.out + row * a.dim;
    for (uint32_t i = gpu_tid(); i < a.dim; i += K_BLOCK) {
        float y = 0.0f;
        for (uint32_t s = 0; s < sources; s++) y = gpu_fma(sh.p[s] / l, k_mix_source(&a, s, row)[i], y);
        out[i] = y;
    }
    if (!a.norm.data) return;
    gpu_sync();
    k_norm_row(&sh.norm, out, out, a.norm, a.dim, a.eps);
}

static void k_mix_norm(gpuStream_t stream, const k_mix_args *a) {
    if (a->n) GPU_LAUNCH(kern_mix_norm, a->n, K_BLOCK, stream, *a);
}

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
    if (items) GPU_LAUNCH(kern_quantise, (uint32_t)((items + K_WAVES - 1) / K_WAVES), K_BLOCK, stream, *a);
}

// ---------------------------------------------------------------- products

typedef enum k_mode { K_MODE_Q8, K_MODE_Q8_EXACT, K_MODE_BF16, K_MODE_F32 } k_mode;

typedef struct k_product {
    const void *data;    // in the layout of its mode; see k_common.h
    const float *scales; // Q8
    float *out;          // [n] rows, out_stride floats apart
    size_t out_stride;
    uint32_t rows, mode;
    uint32_t block_end; // set by the launcher: first block behind this product
} k_product;

enum { K_PRODUCTS = 8, K_Q8_ROWS = 8, K_DOT_ROWS = 4, K_X_ROWS = 4 };

// Products of the same input rows.
typedef struct k_project_args {
    k_product product[K_PRODUCTS];
    uint32_t count;
    const float *x;    // [n][cols]; for all modes but K_MODE_Q8
    const int8_t *x_q; // from k_quantise; for K_MODE_Q8
    const float *x_s;
    uint32_t n, cols;
} k_project_args;

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

// Four rows times up to NX input rows by dot32: the lanes are the partial sums.
template <int NX> GPU_DEV void k_dot_tile(const k_product *p, const k_project_args *a, uint32_t row0, uint32_t x0) {
    const uint32_t lane = gpu_lane(), cols = a->cols, last = p->rows - 1;
    float s[NX][K_DOT_ROWS];
    GPU_UNROLL
    for (int x = 0; x < NX; x++) {
        GPU_UNROLL
        for (int r = 0; r < K_DOT_ROWS; r++) s[x][r] = 0.0f;
    }
    uint32_t at = 0;
    if (p->mode == K_MODE_BF16 && p->rows > 1 && cols % 8 == 0) {
        GPU_ROLLED
        for (; cols - at >= K_BF16_BLOCK; at += K_BF16_BLOCK) {
            gpu_u4 w[K_DOT_ROWS];
            GPU_UNROLL
            for (uint32_t r = 0; r < K_DOT_ROWS; r++) {
                size_t row = row0 + r < last ? row0 + r : last;
                w[r] = gpu_load_u4((const gpu_bf16 *)p->data + row * cols + at + lane * 8);
            }
            GPU_UNROLL
            for (uint32_t x = 0; x < NX; x++) {
                if (x0 + x >= a->n) break;
                const float *v = a->x + (size_t)(x0 + x) * cols + at + lane;
                GPU_UNROLL
                for (int t = 0; t < 4; t++) {
                    float even = v[64 * t], odd = v[64 * t + 32];
                    GPU_UNROLL
                    for (int r = 0; r < K_DOT_ROWS; r++) {
                        s[x][r] = gpu_fma(even, gpu_as_f32(w[r].v[t] << 16), s[x][r]);
                        s[x][r] = gpu_fma(odd, gpu_as_f32(w[r].v[t] & 0xffff0000u), s[x][r]);
                    }
                }
            }
        }
    }
    GPU_ROLLED
    for (uint32_t i = at + lane; i < cols; i += GPU_WAVE) {
        float w[K_DOT_ROWS];
        GPU_UNROLL
        for (uint32_t r = 0; r < K_DOT_ROWS; r++) w[r] = k_weight_get(p, cols, row0 + r < last ? row0 + r : last, i);
        GPU_UNROLL
        for (uint32_t x = 0; x < NX; x++) {
            if (x0 + x >= a->n) break;
            float v = a->x[(size_t)(x0 + x) * cols + i];
            GPU_UNROLL
            for (int r = 0; r < K_DOT_ROWS; r++) s[x][r] = gpu_fma(v, w[r], s[x][r]);
        }
    }
    GPU_UNROLL
    for (uint32_t x = 0; x < NX; x++) {
        if (x0 + x >= a->n) break;
        // The butterfly, with a row less to carry in each half: the additions and their operands are the same.
        const bool high = lane & 16, odd = lane & 8;
        float s0 = (high ? s[x][2] : s[x][0]) + gpu_shfl_xor(high ? s[x][0] : s[x][2], 16);
        float s1 = (high ? s[x][3] : s[x][1]) + gpu_shfl_xor(high ? s[x][1] : s[x][3], 16);
        float y = (odd ? s1 : s0) + gpu_shfl_xor(odd ? s0 : s1, 8);
        GPU_UNROLL
        for (int m = 4; m; m >>= 1) y = y + gpu_shfl_xor(y, m);
        uint32_t r = row0 + lane / 16 * 2 + lane / 8 % 2;
        if (lane % 8 == 0 && r <= last) p->out[(x0 + x) * p->out_stride + r] = y;
    }
}

enum { K_KIND_Q8 = 1, K_KIND_DOT = 2 };

// KINDS: what the products may be, so that a kernel holds registers for no more than that.
template <int NX, int KINDS> GPU_DEV void k_project_block(const k_project_args *a) {
    k_product p = a->product[0];
    uint32_t first = 0;
    GPU_UNROLL
    for (uint32_t i = 1; i < K_PRODUCTS; i++) {
        if (i < a->count && gpu_bx() >= a->product[i - 1].block_end) {
            first = a->product[i - 1].block_end;
            p = a->product[i];
        }
    }
    const uint32_t tile = gpu_uniform((gpu_bx() - first) * K_WAVES + gpu_wave());
    const bool q8 = KINDS == K_KIND_Q8 || (KINDS != K_KIND_DOT && p.mode == K_MODE_Q8);
    if (tile >= k_ceil_div(p.rows, q8 ? (uint32_t)K_Q8_ROWS : (uint32_t)K_DOT_ROWS)) return;
    for (uint32_t x = gpu_by() * NX; x < a->n; x += gpu_nby() * NX) {
        if (q8)
            k_q8_tile<NX>(&p, a, tile * K_Q8_ROWS, x);
        else
            k_dot_tile<NX>(&p, a, tile * K_DOT_ROWS, x);
    }
}

GPU_KERNEL GPU_BOUNDS(K_BLOCK, 2) kern_project_one(k_project_args a) { k_project_block<1, K_KIND_Q8 | K_KIND_DOT>(&a); }
GPU_KERNEL GPU_BOUNDS(K_BLOCK, 2) kern_project_q8(k_project_args a) { k_project_block<K_X_ROWS, K_KIND_Q8>(&a); }
GPU_KERNEL GPU_BOUNDS(K_BLOCK, 2) kern_project_dot(k_project_args a) { k_project_block<K_X_ROWS, K_KIND_DOT>(&a); }

// The products of the wanted kinds, with their blocks; the number of blocks.
static uint32_t k_project_select(k_project_args *a, const k_project_args *all, int kinds) {
    uint32_t blocks = 0;
    *a = *all;
    a->count = 0;
    for (uint32_t i = 0; i < all->count; i++) {
        bool q8 = all->product[i].mode == K_MODE_Q8;
        if (!(kinds & (q8 ? K_KIND_Q8 : K_KIND_DOT))) continue;
        k_product *p = &a->product[a->count++];
        *p = all->product[i];
        blocks += k_ceil_div(p->rows, K_WAVES * (q8 ? (uint32_t)K_Q8_ROWS : (uint32_t)K_DOT_ROWS));
        p->block_end = blocks;
    }
    return blocks;
}

// One launch for a single row, where launches count; one a kind for a range.
static void k_project(gpuStream_t stream, const k_project_args *all) {
    k_project_args a;
    if (!all->n) return;
    if (all->n == 1) {
        uint32_t blocks = k_project_select(&a, all, K_KIND_Q8 | K_KIND_DOT);
        if (blocks) GPU_LAUNCH(kern_project_one, blocks, K_BLOCK, stream, a);
        return;
    }
    uint32_t rows = k_ceil_div(all->n, K_X_ROWS), y = rows < K_GRID_Y ? rows : (uint32_t)K_GRID_Y;
    uint32_t blocks = k_project_select(&a, all, K_KIND_Q8);
    if (blocks) GPU_LAUNCH(kern_project_q8, gpuDim3(blocks, y), K_BLOCK, stream, a);
    blocks = k_project_select(&a, all, K_KIND_DOT);
    if (blocks) GPU_LAUNCH(kern_project_dot, gpuDim3(blocks, y), K_BLOCK, stream, a);
}

// ---------------------------------------------------------------- sums

typedef struct k_add_args {
    float *sum;
    const float *a, *b;
    size_t count;
} k_add_args;

GPU_KERNEL GPU_BOUNDS(K_BLOCK, 4) kern_add(k_add_args a) {
    size_t step = (size_t)gpu_nbx() * K_BLOCK;
    for (size_t i = (size_t)gpu_bx() * K_BLOCK + gpu_tid(); i < a.count; i += step) a.sum[i] = a.a[i] + a.b[i];
}

static void k_add(gpuStream_t stream, const k_add_args *a) {
    size_t blocks = (a->count + K_BLOCK - 1) / K_BLOCK;
    if (blocks) GPU_LAUNCH(kern_add, (uint32_t)(blocks < 4096 ? blocks : 4096), K_BLOCK, stream, *a);
}

// ---------------------------------------------------------------- weight conversion

// Rows [first, first + n), columns [col0, col0 + window) of a weight, from raw rows of `window` elements.  col0 is a
// multiple of 256.  A row with a value that is not finite, or for BF16 is not after rounding, lowers *bad to bad_base +
// its index.
typedef struct k_convert_args {
    const void *raw;
    uint32_t raw_bf16; // else F32
    void *data;
    float *scales;
    uint32_t mode; // K_MODE_Q8, _BF16 or _F32
    uint32_t rows, cols, first, n, col0, window;
    uint32_t *bad;
    uint32_t bad_base;
} k_convert_args;

GPU_DEV bool k_convert_plain(const k_convert_args *a, uint32_t row, uint32_t col, float x) {
    if (a->mode == K_MODE_F32) {
        ((float *)a->data)[(size_t)row * a->cols + col] = x;
        return k_finite(x);
    }
    gpu_bf16 h = gpu_f32_bf16(x);
    ((gpu_bf16 *)a->data)[(size_t)row * a->cols + k_bf16_at(a->rows, a->cols, col)] = h;
    return k_finite(gpu_bf16_f32(h));
}

// A wave takes 128 columns of a row, a lane four neighbours.
GPU_KERNEL GPU_BOUNDS(K_BLOCK, 4) kern_convert(k_convert_args a) {
    const uint32_t groups = k_q8_groups(a.window);
    const uint64_t item = (uint64_t)gpu_bx() * K_WAVES + gpu_wave();
    if (item >= (uint64_t)a.n * groups) return;
    const uint32_t i = (uint32_t)(item / groups), row = a.first + i;
    const uint32_t in = (uint32_t)(item % groups) * K_Q8_GROUP + gpu_lane() * 4;
    const size_t at = (size_t)i * a.window + in;
    float x[4];
    uint32_t amax = 0;
    bool ok = true;
    GPU_UNROLL
    for (uint32_t e = 0; e < 4; e++) {
        x[e] = 0.0f;
        if (in + e >= a.window) continue;
        x[e] = a.raw_bf16 ? gpu_bf16_f32(((const gpu_bf16 *)a.raw)[at + e]) : ((const float *)a.raw)[at + e];
        if (a.mode == K_MODE_Q8)
            amax = k_abs_bits(x[e]) > amax ? k_abs_bits(x[e]) : amax;
        else
            ok = k_convert_plain(&a, row, a.col0 + in + e, x[e]) && ok;
    }
    if (a.mode == K_MODE_Q8) {
        amax = gpu_wave_max_u32(amax);
        k_quant k = k_quant_of(amax);
        ok = amax < 0x7f800000u;
        const uint32_t col = a.col0 + in;
        const size_t stride = k_q8_stride(a.cols);
        if (col < stride) {
            uint32_t q =
                k_pack4(k_quant_one(x[0], k), k_quant_one(x[1], k), k_quant_one(x[2], k), k_quant_one(x[3], k));
            *(uint32_t *)((int8_t *)a.data + row * stride + col) = q;
        }
        if (gpu_lane() == 0) a.scales[k_q8_scale_at(a.rows, k_q8_groups(a.cols), row, col / K_Q8_GROUP)] = k.scale;
    }
    if (!ok) (void)gpu_atomic_min(a.bad, a.bad_base + i);
}

static void k_convert(gpuStream_t stream, const k_convert_args *a) {
    uint64_t items = (uint64_t)a->n * k_q8_groups(a->window);
    if (items) GPU_LAUNCH(kern_convert, (uint32_t)((items + K_WAVES - 1) / K_WAVES), K_BLOCK, stream, *a);
}
