// k_rows.h - what is done to whole rows: norms, mixes, the weighted sum of experts, sums; each can leave the int8 form
// of its result for the products that follow (docs/numerics.md, 2 and 4).
//
// Work: a block has a row.  Its dot product with itself is the work of one wave, in the order of dot32; everything else
//   is shared by all threads, which own four neighbouring columns each, so that a wave has a group of 128.  The scores
//   of a mix are a launch of their own, a block for each source.  Rows that are longer than K_ROW_KEPT, or no multiple
//   of four, take the plain form.
// Owns: nothing.  Errors: launchers do not fail; the caller asks gpuGetLastError().
#pragma once
#include "backend/gpu/k_common.h"

enum {
    K_ROW_BLOCK = 1024,
    K_ROW_WAVES = K_ROW_BLOCK / GPU_WAVE,
    K_ROW_KEPT = 8192,
    K_PLAIN_BLOCK = 256,
    K_MIX_SOURCES = 256,
    K_MIX_ADDS = 2
};

typedef struct k_row_shared {
    alignas(16) float y[K_ROW_KEPT];
    float factor;
} k_row_shared;
static_assert(sizeof(k_row_shared) <= 48 << 10, "shared memory");

// Where a result goes: f32 always, and int8 in groups of 128 when q is not NULL.
typedef struct k_row_out {
    float *out; // [n][dim]
    int8_t *q;  // [n][groups * 128]
    float *scales;
} k_row_out;

static inline bool k_row_fits(uint32_t dim) { return dim % 4 == 0 && dim <= K_ROW_KEPT; }

// More of this lane's sum of dot32: x[i] * y[i] for i = lane, lane + 32, .. below count, in shared memory.  The next
// values are under way while these are added, so that the additions wait for each other only.
GPU_DEV float k_row_dot(float s, const float *x, const float *y, uint32_t count) {
    enum { STEP = 8, WHOLE = STEP * GPU_WAVE };
    const uint32_t lane = gpu_lane();
    float left[STEP], right[STEP];
    uint32_t i = lane;
    if (count >= WHOLE) {
        GPU_UNROLL
        for (uint32_t j = 0; j < STEP; j++) {
            left[j] = x[i + j * GPU_WAVE];
            right[j] = y[i + j * GPU_WAVE];
        }
    }
    GPU_UNROLL_2
    for (; count - (i - lane) >= 2 * WHOLE; i += WHOLE) {
        float a[STEP], b[STEP];
        GPU_UNROLL
        for (uint32_t j = 0; j < STEP; j++) {
            a[j] = x[i + WHOLE + j * GPU_WAVE];
            b[j] = y[i + WHOLE + j * GPU_WAVE];
        }
        GPU_UNROLL
        for (uint32_t j = 0; j < STEP; j++) s = gpu_fma(left[j], right[j], s);
        GPU_UNROLL
        for (uint32_t j = 0; j < STEP; j++) {
            left[j] = a[j];
            right[j] = b[j];
        }
    }
    if (count >= WHOLE) {
        GPU_UNROLL
        for (uint32_t j = 0; j < STEP; j++) s = gpu_fma(left[j], right[j], s);
        i += WHOLE;
    }
    for (; i < count; i += GPU_WAVE) s = gpu_fma(x[i], y[i], s);
    return s;
}

enum { K_ROW_EACH = K_ROW_KEPT / K_Q8_GROUP / K_ROW_WAVES };
// The first of this thread's four columns of a group of 128.
GPU_DEV uint32_t k_row_column(uint32_t pass) { return (pass * K_ROW_WAVES + gpu_wave()) * K_Q8_GROUP + gpu_lane() * 4; }

// The kept row to its place, normed when there is a norm.  The block has written sh.y; it is not yet synchronised.
GPU_DEV void k_row_finish(k_row_shared *sh, const k_row_out *to, size_t row, k_vector norm, uint32_t dim, float eps) {
    gpu_f4 w[K_ROW_EACH] = {}; // under way while the row is squared
    GPU_UNROLL
    for (uint32_t p = 0; p < K_ROW_EACH; p++)
        if (norm.data && k_row_column(p) < dim) w[p] = k_vector_get4(norm, k_row_column(p));
    gpu_sync();
    if (norm.data && gpu_wave() == 0) {
        const float r = k_rms_factor(gpu_wave_sum(k_row_dot(0.0f, sh->y, sh->y, dim)), dim, eps);
        if (gpu_lane() == 0) sh->factor = r;
    }
    gpu_sync();
    const uint32_t groups = k_q8_groups(dim);
    float *out = to->out + row * dim;
    GPU_UNROLL
    for (uint32_t p = 0; p < K_ROW_EACH; p++) { // whole waves
        const uint32_t g = p * K_ROW_WAVES + gpu_wave(), col = k_row_column(p);
        if (g >= groups) break;
        gpu_f4 x = {{0.0f, 0.0f, 0.0f, 0.0f}};
        uint32_t amax = 0;
        if (col < dim) {
            x = gpu_load_f4(&sh->y[col]);
            GPU_UNROLL
            for (uint32_t i = 0; i < 4; i++) {
                if (norm.data) x.v[i] = w[p].v[i] * (x.v[i] * sh->factor);
                amax = gpu_max_u32(amax, k_abs_bits(x.v[i]));
            }
            *(gpu_f4 *)(out + col) = x;
        }
        if (!to->q) continue;
        const k_quant k = k_quant_of(gpu_wave_max_u32(amax));
        const size_t at = row * groups + g;
        ((uint32_t *)(to->q + at * K_Q8_GROUP))[gpu_lane()] =
            k_pack4(k_quant_one(x.v[0], k), k_quant_one(x.v[1], k), k_quant_one(x.v[2], k), k_quant_one(x.v[3], k));
        if (gpu_lane() == 0) to->scales[at] = k.scale;
    }
}

// ---------------------------------------------------------------- rms_norm

typedef struct k_rms_norm_args {
    k_row_out to;
    const float *x; // [n][dim]
    k_vector w;
    uint32_t n, dim;
    float eps;
} k_rms_norm_args;

GPU_KERNEL GPU_BOUNDS(K_ROW_BLOCK, 1) kern_rms_norm(k_rms_norm_args a) {
    GPU_SHARED(k_row_shared, sh);
    gpu_begin();
    const float *x = a.x + (size_t)gpu_bx() * a.dim;
    GPU_UNROLL_2
    for (uint32_t i = gpu_tid() * 4; i < a.dim; i += K_ROW_BLOCK * 4) *(gpu_f4 *)&sh.y[i] = gpu_load_f4(x + i);
    k_row_finish(&sh, &a.to, gpu_bx(), a.w, a.dim, a.eps);
}

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

GPU_KERNEL GPU_BOUNDS(K_PLAIN_BLOCK, 2) kern_rms_norm_plain(k_rms_norm_args a) {
    GPU_SHARED(k_norm_shared, sh);
    gpu_begin();
    size_t at = (size_t)gpu_bx() * a.dim;
    k_norm_row(&sh, a.to.out + at, a.x + at, a.w, a.dim, a.eps);
}

// Whether the int8 form is left too.
static inline bool k_rms_norm(gpuStream_t stream, const k_rms_norm_args *a) {
    const bool fits = k_row_fits(a->dim);
    if (a->n && fits)
        GPU_LAUNCH_EARLY(kern_rms_norm, a->n, K_ROW_BLOCK, stream, *a);
    else if (a->n)
        GPU_LAUNCH_EARLY(kern_rms_norm_plain, a->n, K_PLAIN_BLOCK, stream, *a);
    return fits;
}

// ---------------------------------------------------------------- sums

typedef struct k_add_args {
    float *sum;
    const float *a, *b;
    size_t count;
} k_add_args;

GPU_KERNEL GPU_BOUNDS(K_PLAIN_BLOCK, 4) kern_add(k_add_args a) {
    gpu_begin();
    size_t step = (size_t)gpu_nbx() * K_PLAIN_BLOCK;
    for (size_t i = (size_t)gpu_bx() * K_PLAIN_BLOCK + gpu_tid(); i < a.count; i += step) a.sum[i] = a.a[i] + a.b[i];
}

static inline void k_add(gpuStream_t stream, const k_add_args *a) {
    size_t blocks = (a->count + K_PLAIN_BLOCK - 1) / K_PLAIN_BLOCK;
    if (blocks) GPU_LAUNCH_EARLY(kern_add, (uint32_t)(blocks < 4096 ? blocks : 4096), K_PLAIN_BLOCK, stream, *a);
}

// ---------------------------------------------------------------- mix_norm

typedef struct k_mix_args {
    k_row_out to;
    const float *blocks; // closed block j, row i at blocks + j * block_stride + i * dim
    size_t block_stride;
    uint32_t block_count; // below K_MIX_SOURCES
    const float *prefix;  // [n][dim], the last source
    const float *score;   // [dim]
    k_vector norm;        // data == NULL: the bare mix
    uint32_t n, dim;
    float eps;
    float *scores; // [n][K_MIX_SOURCES]
    // Sums of [n][dim] to be made first, in this order; none of them writes to a block, or to what others still read.
    k_add_args add[K_MIX_ADDS];
    uint32_t adds;
} k_mix_args;

GPU_DEV const float *k_mix_source(const k_mix_args *a, uint32_t source, size_t row) {
    if (source == a->block_count) return a->prefix + row * a->dim;
    return a->blocks + source * a->block_stride + row * a->dim;
}

// A block has a source of a row, which goes through shared memory in pieces; the next one is under way meanwhile.
enum { K_SCORE_BLOCK = 512, K_SCORE_EACH = 2, K_SCORE_PIECE = K_SCORE_BLOCK * K_SCORE_EACH * 4 };
typedef struct k_score_shared {
    alignas(16) float u[K_SCORE_PIECE];
    alignas(16) float v[K_SCORE_PIECE];
    float square;
} k_score_shared;

// A thread's columns of a piece: of the score weight, the source, and what is to be added up first.
typedef gpu_f4 k_score_columns[K_SCORE_EACH];
typedef struct k_score_piece {
    k_score_columns u, v, a[K_MIX_ADDS], b[K_MIX_ADDS];
} k_score_piece;

GPU_DEV uint32_t k_score_column(uint32_t first, uint32_t j) { return first + (gpu_tid() + j * K_SCORE_BLOCK) * 4; }

GPU_DEV void k_score_load(k_score_columns &to, const float *from, uint32_t first, uint32_t dim) {
    GPU_UNROLL
    for (uint32_t j = 0; j < K_SCORE_EACH; j++) {
        to[j] = gpu_f4{{0.0f, 0.0f, 0.0f, 0.0f}};
        if (k_score_column(first, j) < dim) to[j] = gpu_load_f4(from + k_score_column(first, j));
    }
}

GPU_DEV void k_score_fetch(k_score_piece *p, const k_mix_args *a, const float *v, uint32_t first, uint32_t adds,
                           size_t row) {
    k_score_load(p->u, a->score, first, a->dim);
    k_score_load(p->v, v, first, a->dim);
    GPU_UNROLL
    for (uint32_t s = 0; s < K_MIX_ADDS; s++) {
        if (s >= adds) break;
        k_score_load(p->a[s], a->add[s].a + row * a->dim, first, a->dim);
        k_score_load(p->b[s], a->add[s].b + row * a->dim, first, a->dim);
    }
}

// Makes the sums of a piece that was fetched.  A thread alone has its columns, and what a sum writes was fetched from
// that same place or not at all: so everything could be fetched before anything is written.
GPU_DEV void k_score_add(k_score_piece *p, const k_mix_args *a, const float *v, uint32_t first, uint32_t adds,
                         size_t row) {
    GPU_UNROLL
    for (uint32_t s = 0; s < K_MIX_ADDS; s++) {
        if (s >= adds) break;
        float *sum = a->add[s].sum + row * a->dim;
        GPU_UNROLL
        for (uint32_t j = 0; j < K_SCORE_EACH; j++) {
            gpu_f4 z;
            GPU_UNROLL
            for (int e = 0; e < 4; e++) z.v[e] = p->a[s][j].v[e] + p->b[s][j].v[e];
            if (k_score_column(first, j) < a->dim) *(gpu_f4 *)(sum + k_score_column(first, j)) = z;
            if (sum == v) p->v[j] = z;
            GPU_UNROLL
            for (uint32_t later = s + 1; later < K_MIX_ADDS; later++) {
                if (a->add[later].a == a->add[s].sum) p->a[later][j] = z;
                if (a->add[later].b == a->add[s].sum) p->b[later][j] = z;
            }
        }
    }
}

// Many rows: a wave has a source of a row, straight from memory.
enum { K_SCORE_MANY = 8, K_SCORE_WAVES = K_PLAIN_BLOCK / GPU_WAVE };
GPU_KERNEL GPU_BOUNDS(K_PLAIN_BLOCK, 4) kern_mix_scores_many(k_mix_args a) {
    gpu_begin();
    const uint32_t sources = a.block_count + 1;
    const uint64_t item = (uint64_t)gpu_bx() * K_SCORE_WAVES + gpu_wave();
    if (item >= (uint64_t)a.n * sources) return;
    const size_t row = (size_t)(item / sources);
    const uint32_t source = (uint32_t)(item % sources), adds = source == a.block_count ? a.adds : 0;
    const float *v = k_mix_source(&a, source, row);
    float uv = 0.0f, vv = 0.0f;
    for (uint32_t s = 0; s < adds; s++) { // each lane reads what it wrote
        const k_add_args *add = &a.add[s];
        GPU_UNROLL_8
        for (size_t i = row * a.dim + gpu_lane(); i < (row + 1) * a.dim; i += GPU_WAVE)
            add->sum[i] = add->a[i] + add->b[i];
    }
    GPU_UNROLL_8
    for (uint32_t i = gpu_lane(); i < a.dim; i += GPU_WAVE) {
        const float x = v[i];
        uv = gpu_fma(a.score[i], x, uv);
        vv = gpu_fma(x, x, vv);
    }
    uv = gpu_wave_sum(uv);
    vv = gpu_wave_sum(vv);
    if (gpu_lane() == 0) a.scores[row * K_MIX_SOURCES + source] = uv * k_rms_factor(vv, a.dim, a.eps);
}

GPU_KERNEL GPU_BOUNDS(K_SCORE_BLOCK, 1) kern_mix_scores(k_mix_args a) {
    GPU_SHARED(k_score_shared, sh);
    gpu_begin();
    const uint32_t source = gpu_bx();
    const size_t row = gpu_by();
    const float *v = k_mix_source(&a, source, row);
    const uint32_t adds = source == a.block_count ? a.adds : 0;
    k_score_piece next;
    k_score_fetch(&next, &a, v, 0, adds, row);
    float s = 0.0f; // of wave 0: dot32(u, v), of wave 1: dot32(v, v)
    for (uint32_t first = 0; first < a.dim; first += K_SCORE_PIECE) {
        k_score_add(&next, &a, v, first, adds, row);
        gpu_sync();
        GPU_UNROLL
        for (uint32_t j = 0; j < K_SCORE_EACH; j++) {
            *(gpu_f4 *)&sh.u[k_score_column(0, j)] = next.u[j];
            *(gpu_f4 *)&sh.v[k_score_column(0, j)] = next.v[j];
        }
        gpu_sync();
        if (first + K_SCORE_PIECE < a.dim) k_score_fetch(&next, &a, v, first + K_SCORE_PIECE, adds, row);
        const uint32_t count = a.dim - first < K_SCORE_PIECE ? a.dim - first : (uint32_t)K_SCORE_PIECE;
        if (gpu_wave() <= 1) s = k_row_dot(s, gpu_wave() == 0 ? sh.u : sh.v, sh.v, count);
    }
    if (gpu_wave() <= 1) s = gpu_wave_sum(s);
    if (gpu_tid() == GPU_WAVE) sh.square = s;
    gpu_sync();
    if (gpu_tid() == 0) a.scores[row * K_MIX_SOURCES + source] = s * k_rms_factor(sh.square, a.dim, a.eps);
}

// Sources that are taken together, their loads too.
enum { K_MIX_EARLY = 9 };
// The factor of source `lane`, of at most 32: every wave makes them for itself.
GPU_DEV float k_mix_factor(const float *scores, uint32_t sources) {
    const bool live = gpu_lane() < sources;
    const float s = live ? scores[gpu_lane()] : gpu_as_f32(0xff800000u), e = k_exp(s - gpu_wave_max(s));
    float l = 0.0f;
    GPU_UNROLL
    for (uint32_t i = 0; i < K_MIX_EARLY; i++) {
        const float more = l + gpu_as_f32(gpu_shfl(gpu_as_u32(e), (int)i));
        l = i < sources ? more : l;
    }
    for (uint32_t i = K_MIX_EARLY; i < sources; i++) l = l + gpu_as_f32(gpu_shfl(gpu_as_u32(e), (int)i));
    return e / l;
}

// Those of the sources from `first` on and before `end`.
GPU_DEV void k_mix_early(gpu_f4 (&early)[K_MIX_EARLY], const k_mix_args *a, size_t row, uint32_t col, uint32_t first,
                         uint32_t end) {
    GPU_UNROLL
    for (uint32_t s = 0; s < K_MIX_EARLY; s++)
        if (s >= first && s < end && col < a->dim) early[s] = gpu_load_f4(k_mix_source(a, s, row) + col);
}

GPU_KERNEL GPU_BOUNDS(K_ROW_BLOCK, 1) kern_mix_rows(k_mix_args a) {
    GPU_SHARED(k_row_shared, sh);
    const size_t row = gpu_bx();
    const uint32_t sources = a.block_count + 1;
    gpu_f4 early[K_MIX_EARLY] = {};
    k_mix_early(early, &a, row, gpu_tid() * 4, 0, a.block_count); // the scores' kernel does not write to blocks
    gpu_wait_previous();
    k_mix_early(early, &a, row, gpu_tid() * 4, a.block_count, sources);
    const float mine = k_mix_factor(a.scores + row * K_MIX_SOURCES, sources);
    GPU_ROLLED
    for (uint32_t first = 0; first < a.dim; first += K_ROW_BLOCK * 4) { // whole waves
        const uint32_t col = first + gpu_tid() * 4;
        gpu_f4 y = {{0.0f, 0.0f, 0.0f, 0.0f}};
        GPU_UNROLL
        for (uint32_t s = 0; s < K_MIX_EARLY; s++) {
            const float p = gpu_as_f32(gpu_shfl(gpu_as_u32(mine), (int)s));
            GPU_UNROLL
            for (int e = 0; e < 4; e++) {
                const float sum = gpu_fma(p, early[s].v[e], y.v[e]);
                y.v[e] = s < sources ? sum : y.v[e];
            }
        }
        k_mix_early(early, &a, row, col + K_ROW_BLOCK * 4, 0, sources);
        for (uint32_t s = K_MIX_EARLY; s < sources; s++) {
            const float p = gpu_as_f32(gpu_shfl(gpu_as_u32(mine), (int)s));
            gpu_f4 v = {};
            if (col < a.dim) v = gpu_load_f4(k_mix_source(&a, s, row) + col);
            GPU_UNROLL
            for (int e = 0; e < 4; e++) y.v[e] = gpu_fma(p, v.v[e], y.v[e]);
        }
        if (col < a.dim) *(gpu_f4 *)&sh.y[col] = y;
    }
    k_row_finish(&sh, &a.to, row, a.norm, a.dim, a.eps);
}

// The plain form.
// Scores in p become the factors of the sources.
GPU_DEV void k_mix_factors(float *p, uint32_t sources) {
    gpu_sync();
    float m = p[0];
    for (uint32_t s = 1; s < sources; s++) m = p[s] > m ? p[s] : m;
    gpu_sync();
    if (gpu_tid() < sources) p[gpu_tid()] = k_exp(p[gpu_tid()] - m);
    gpu_sync();
    float l = 0.0f;
    for (uint32_t s = 0; s < sources; s++) l = l + p[s];
    gpu_sync();
    if (gpu_tid() < sources) p[gpu_tid()] = p[gpu_tid()] / l;
    gpu_sync();
}

typedef struct k_mix_plain_shared {
    float p[K_MIX_SOURCES];
    k_norm_shared norm;
} k_mix_plain_shared;

GPU_KERNEL GPU_BOUNDS(K_PLAIN_BLOCK, 2) kern_mix_plain(k_mix_args a) {
    GPU_SHARED(k_mix_plain_shared, sh);
    gpu_begin();
    const size_t row = gpu_bx();
    const uint32_t sources = a.block_count + 1;
    for (uint32_t s = gpu_wave(); s < sources; s += K_PLAIN_BLOCK / GPU_WAVE) {
        const float *v = k_mix_source(&a, s, row);
        float uv = k_wave_dot32(a.score, v, a.dim), vv = k_wave_dot32(v, v, a.dim);
        if (gpu_lane() == 0) sh.p[s] = uv * k_rms_factor(vv, a.dim, a.eps);
    }
    k_mix_factors(sh.p, sources);
    float *out = a.to.out + row * a.dim;
    for (uint32_t i = gpu_tid(); i < a.dim; i += K_PLAIN_BLOCK) {
        float y = 0.0f;
        for (uint32_t s = 0; s < sources; s++) y = gpu_fma(sh.p[s], k_mix_source(&a, s, row)[i], y);
        out[i] = y;
    }
    if (!a.norm.data) return;
    gpu_sync();
    k_norm_row(&sh.norm, out, out, a.norm, a.dim, a.eps);
}

// Whether the int8 form is left too.
static inline bool k_mix_norm(gpuStream_t stream, const k_mix_args *a) {
    enum { ROWS_Y = 65535 };
    if (!a->n) return k_row_fits(a->dim);
    if (!k_row_fits(a->dim) || a->n > ROWS_Y || a->block_stride % 4 != 0 || a->block_count >= GPU_WAVE) {
        for (uint32_t s = 0; s < a->adds; s++) k_add(stream, &a->add[s]);
        GPU_LAUNCH_EARLY(kern_mix_plain, a->n, K_PLAIN_BLOCK, stream, *a);
        return false;
    }
    const uint64_t items = (uint64_t)(a->block_count + 1) * a->n;
    if (a->n < K_SCORE_MANY)
        GPU_LAUNCH_EARLY(kern_mix_scores, gpuDim3(a->block_count + 1, a->n), K_SCORE_BLOCK, stream, *a);
    else
        GPU_LAUNCH_EARLY(kern_mix_scores_many, (uint32_t)((items + K_SCORE_WAVES - 1) / K_SCORE_WAVES), K_PLAIN_BLOCK,
                         stream, *a);
    GPU_LAUNCH_EARLY(kern_mix_rows, a->n, K_ROW_BLOCK, stream, *a);
    return true;
}

// ---------------------------------------------------------------- weighted sum of experts and its norm

typedef struct k_reduce_args {
    k_row_out to;
    const float *y, *weights; // [n][per_row][hidden], [n][per_row]
    k_vector norm;
    uint32_t n, per_row, hidden;
    float eps;
} k_reduce_args;

GPU_KERNEL GPU_BOUNDS(K_ROW_BLOCK, 1) kern_reduce(k_reduce_args a) {
    GPU_SHARED(k_row_shared, sh);
    gpu_begin();
    const size_t row = gpu_bx();
    const float *weights = a.weights + row * a.per_row, *y = a.y + row * a.per_row * a.hidden;
    for (uint32_t i = gpu_tid() * 4; i < a.hidden; i += K_ROW_BLOCK * 4) {
        gpu_f4 u = {{0.0f, 0.0f, 0.0f, 0.0f}};
        GPU_UNROLL_8
        for (uint32_t e = 0; e < a.per_row; e++) {
            const gpu_f4 v = gpu_load_f4(y + (size_t)e * a.hidden + i);
            const float w = weights[e];
            GPU_UNROLL
            for (int k = 0; k < 4; k++) u.v[k] = gpu_fma(w, v.v[k], u.v[k]);
        }
        *(gpu_f4 *)&sh.y[i] = u;
    }
    k_row_finish(&sh, &a.to, row, a.norm, a.hidden, a.eps);
}

GPU_KERNEL GPU_BOUNDS(K_PLAIN_BLOCK, 4) kern_reduce_plain(k_reduce_args a) {
    GPU_SHARED(k_norm_shared, sh);
    gpu_begin();
    const size_t row = gpu_bx();
    const float *weights = a.weights + row * a.per_row, *y = a.y + row * a.per_row * a.hidden;
    float *out = a.to.out + row * a.hidden;
    for (uint32_t d = gpu_tid(); d < a.hidden; d += K_PLAIN_BLOCK) {
        float u = 0.0f;
        for (uint32_t e = 0; e < a.per_row; e++) u = gpu_fma(weights[e], y[(size_t)e * a.hidden + d], u);
        out[d] = u;
    }
    if (!a.norm.data) return;
    gpu_sync();
    k_norm_row(&sh, out, out, a.norm, a.hidden, a.eps);
}

// Whether the int8 form is left too.
static inline bool k_reduce(gpuStream_t stream, const k_reduce_args *a) {
    const bool fits = k_row_fits(a->hidden);
    if (a->n && fits)
        GPU_LAUNCH_EARLY(kern_reduce, a->n, K_ROW_BLOCK, stream, *a);
    else if (a->n)
        GPU_LAUNCH_EARLY(kern_reduce_plain, a->n, K_PLAIN_BLOCK, stream, *a);
    return fits;
}
