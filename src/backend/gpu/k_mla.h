// k_mla.h - MLA over a range of tokens, absorbed form: cache rows, queries against the latent, blocks of 256 absolute
// keys, their merge in ascending order, value product and gate.
//
// Work: a block of keys of one row gives (m, l, a[rank]) a head.  Split form (few rows): blocks of keys are independent
//   work items that leave their parts in scratch, and a merge takes them in ascending order.  Fused form (many rows): a
//   block of threads walks the key blocks of its row and merges as it goes.  Both compute the same operations in the
//   same order.
// Scratch: mla_scratch_bytes(), pure, independent of the context: rows go in chunks of MLA_ROWS, key blocks in pieces.
// Shapes: the tuned form (rank 512, extra 64, bf16 rows) makes scores in one launch and weighted sums in another, each
//   with 16 heads a block; the generic one takes any shape, and f32 rows.
// Owns: nothing.  Bits: docs/numerics.md, section 4; the oracle is src/backend/cpu/cpu_mla.c.
#pragma once
#include "backend/gpu/k_common.h"

// Sizes of the pieces of work; results do not depend on them, and tests make them small.
#ifndef MLA_ROWS
#define MLA_ROWS 128 // rows that are worked on together
#endif
#ifndef MLA_PARTS
#define MLA_PARTS 128 // (row, key block) items of a split or tuned launch; at least MLA_ROWS
#endif
#ifndef MLA_LAUNCH_ITEMS
#define MLA_LAUNCH_ITEMS                                                                                               \
    4096 // (row, key block) items of a fused generic launch, so that none is long; at least MLA_ROWS
#endif
enum {
    MLA_KEYS = 256,      // keys of a block
    MLA_SPLIT_ROWS = 16, // at most so many rows use the split form
    MLA_RANK = 512,
    MLA_EXTRA = 64,
    MLA_WIDTH = MLA_RANK + MLA_EXTRA, // the tuned shape
    MLA_HEADS = 16,                   // heads a tuned block serves
    MLA_THREADS = 256,
    MLA_SCORE_BLOCKS = 768, // of a launch of scores, when there is so much to do
    MLA_MAX_RANK = 8192
};

// Bounds of the kernels with many registers: 120 of them on AMD, where shared memory decides what is resident; 128 on
// NVIDIA.
#if GPU_HIP
#define MLA_BOUNDS       GPU_BOUNDS(MLA_THREADS, 1) __attribute__((amdgpu_num_vgpr(120)))
#define MLA_SCORE_BOUNDS GPU_BOUNDS(MLA_SCORE_THREADS, 1) __attribute__((amdgpu_num_vgpr(120)))
#define MLA_COLS         4
#else
#define MLA_BOUNDS       GPU_BOUNDS(MLA_THREADS, 2)
#define MLA_SCORE_BOUNDS GPU_BOUNDS(MLA_SCORE_THREADS, 4)
#define MLA_COLS         8
#endif

// Shapes and meaning as ms_mla and ms_mla_io; every pointer is a device address.
typedef struct mla_args {
    uint32_t heads, nope, extra, value, rank, n;
    float norm_eps, scale;
    k_vector kv_norm;
    const gpu_bf16 *kv_b; // layout of k_bf16_at()
    const float *q, *c, *gate;
    void *rows;
    uint32_t rows_bf16; // fast
    uint64_t position;
    float *out;
    void *scratch; // mla_scratch_bytes()
} mla_args;

// (m, l, a) of some items: m and l [items][heads], a [items][heads][rank].
typedef struct mla_sums {
    float *m, *l, *a;
} mla_sums;

// Rows [first, first + count) of the range, and where their intermediate values lie.
typedef struct mla_chunk {
    uint32_t first, count;
    float *query;         // [count][heads][rank + extra]
    mla_sums run, part;   // of rows; of (row, key block) items
    float *m_out, *l_out; // of rows, where a fused launch leaves them
    float *e;             // scores of items, tuned form: [MLA_PARTS][heads][MLA_KEYS]
    uint64_t block;       // first key block of a launch
    uint32_t blocks;      // key blocks of a launch
    uint32_t split;
} mla_chunk;

K_BOTH uint32_t mla_width(const mla_args &a) { return a.rank + a.extra; }
K_BOTH uint64_t mla_keys(const mla_args &a, const mla_chunk &k, uint32_t row) { return a.position + k.first + row + 1; }

GPU_DEV float mla_row_get(const mla_args &a, size_t i) {
    return a.rows_bf16 ? gpu_bf16_f32(((const gpu_bf16 *)a.rows)[i]) : ((const float *)a.rows)[i];
}
GPU_DEV void mla_row_set(const mla_args &a, size_t i, float x) {
    if (a.rows_bf16)
        ((gpu_bf16 *)a.rows)[i] = gpu_f32_bf16(x);
    else
        ((float *)a.rows)[i] = x;
}

// Element `col` of row `row` of kv_b.
GPU_DEV float mla_weight(const mla_args &a, size_t row, uint32_t col) {
    return gpu_bf16_f32(a.kv_b[row * a.rank + k_bf16_at(2, a.rank, col)]);
}

// A value that all lanes of a wave share; AMD compilers then keep it, and addresses made from it, in scalar registers.
GPU_DEV uint32_t mla_uniform(uint32_t x) {
#if GPU_HIP
    return (uint32_t)__builtin_amdgcn_readfirstlane((int)x);
#else
    return x;
#endif
}

// ---------------------------------------------------------------- new cache rows: a block a row
enum { MLA_ROW_THREADS = 128 };
GPU_DEV void mla_row(const mla_args &a, uint32_t row) {
    uint32_t width = mla_width(a);
    const float *c = a.c + (size_t)row * width;
    size_t at = ((size_t)a.position + row) * width;
    float r = k_rms_factor(k_wave_dot32(c, c, a.rank), a.rank, a.norm_eps); // every wave for itself
    for (uint32_t i = gpu_tid(); i < width; i += gpu_nt())
        mla_row_set(a, at + i, i < a.rank ? k_vector_get(a.kv_norm, i) * (c[i] * r) : c[i]);
}
GPU_KERNEL GPU_BOUNDS(MLA_ROW_THREADS, 4) k_mla_rows(mla_args a) {
    gpu_begin();
    mla_row(a, gpu_bx());
}

// ---------------------------------------------------------------- absorbed queries: a block for a head and ROWS rows
// Waves w and w + 4 sum the key dimensions d with d % 4 == w.  A lane takes the 8 columns of one 16-byte piece of kv_b.
enum { MLA_Q_PIECE = 256 };
template <int ROWS> struct mla_absorb_shared { float q[ROWS][MLA_Q_PIECE], part[8][K_BF16_BLOCK]; };

template <int ROWS>
GPU_DEV void mla_absorb_piece(float (&acc)[ROWS][8], const float (*q)[MLA_Q_PIECE], uint32_t d, const gpu_bf16 *w) {
    gpu_u4 u = gpu_load_u4(w);
    float x[8];
    GPU_UNROLL
    for (int t = 0; t < 4; t++) {
        x[2 * t] = gpu_as_f32(u.v[t] << 16);
        x[2 * t + 1] = gpu_as_f32(u.v[t] & 0xffff0000u);
    }
    GPU_UNROLL
    for (int i = 0; i < ROWS; i++) {
        float y = q[i][d];
        GPU_UNROLL
        for (int t = 0; t < 8; t++) acc[i][t] = gpu_fma(y, x[t], acc[i][t]);
    }
}

template <int ROWS> GPU_KERNEL MLA_BOUNDS k_mla_absorb(mla_args a, mla_chunk k) {
    gpu_begin();
    GPU_SHARED(mla_absorb_shared<ROWS>, sh);
    uint32_t head = gpu_bx(), row0 = gpu_by() * ROWS, rows = k.count - row0 < ROWS ? k.count - row0 : ROWS;
    uint32_t width = mla_width(a), q_dim = a.nope + a.extra, wave = gpu_wave(), lane = gpu_lane();
    size_t weight = (size_t)head * (a.nope + a.value);
    const float *q = a.q + ((size_t)(k.first + row0) * a.heads + head) * q_dim;
    float *query = k.query + ((size_t)row0 * a.heads + head) * width;
    size_t q_step = (size_t)a.heads * q_dim, out_step = (size_t)a.heads * width;
    uint32_t whole = a.rank % 8 == 0 ? a.rank / K_BF16_BLOCK * K_BF16_BLOCK : 0;
    for (uint32_t first = 0; first < whole; first += 2 * K_BF16_BLOCK) {
        uint32_t mine = first + wave / 4 * K_BF16_BLOCK; // this wave's 256 columns
        float acc[ROWS][8] = {};
        for (uint32_t d0 = 0; d0 < a.nope; d0 += MLA_Q_PIECE) {
            uint32_t piece = a.nope - d0 < MLA_Q_PIECE ? a.nope - d0 : (uint32_t)MLA_Q_PIECE;
            gpu_sync();
            for (uint32_t i = 0; i < ROWS; i++)
                for (uint32_t d = gpu_tid(); d < piece; d += gpu_nt())
                    sh.q[i][d] = i < rows ? q[i * q_step + d0 + d] : 0.0f;
            gpu_sync();
            if (mine < whole)
                for (uint32_t d = wave % 4; d < piece; d += 4)
                    mla_absorb_piece<ROWS>(acc, sh.q, d, a.kv_b + (weight + d0 + d) * a.rank + mine + lane * 8);
        }
        GPU_UNROLL
        for (int i = 0; i < ROWS; i++) {
            gpu_sync();
            GPU_UNROLL
            for (int t = 0; t < 8; t++) sh.part[wave][t * 32 + (int)lane] = acc[i][t];
            gpu_sync();
            for (uint32_t col = gpu_tid(); col < 2 * K_BF16_BLOCK; col += gpu_nt()) {
                uint32_t w = col / K_BF16_BLOCK * 4, at = col % K_BF16_BLOCK;
                if ((uint32_t)i < rows && first + col < whole)
                    query[(size_t)i * out_step + first + col] =
                        k_sum4(sh.part[w][at], sh.part[w + 1][at], sh.part[w + 2][at], sh.part[w + 3][at]);
            }
        }
    }
    for (uint32_t i = 0; i < rows; i++) {
        for (uint32_t col = whole + gpu_tid(); col < a.rank; col += gpu_nt()) {
            float p[4] = {};
            for (uint32_t d = 0; d < a.nope; d += 4) {
                GPU_UNROLL
                for (uint32_t r = 0; r < 4; r++)
                    if (d + r < a.nope) p[r] = gpu_fma(q[i * q_step + d + r], mla_weight(a, weight + d + r, col), p[r]);
            }
            query[i * out_step + col] = k_sum4(p[0], p[1], p[2], p[3]);
        }
        for (uint32_t x = gpu_tid(); x < a.extra; x += gpu_nt())
            query[i * out_step + a.rank + x] = q[i * q_step + a.nope + x];
    }
}

// The same for few rows, a block for a head and a row: the weights are under way before the queries are there.
enum { MLA_FEW_ROWS = 3, MLA_ABSORB_EACH = 16, MLA_ABSORB_STEP = 4 * MLA_ABSORB_EACH };
struct mla_absorb_few_shared {
    float part[8][K_BF16_BLOCK];
};
GPU_DEV void mla_absorb_fetch(gpu_u4 (&w)[MLA_ABSORB_EACH], const gpu_bf16 *weight, uint32_t rank, uint32_t first,
                              uint32_t nope) {
    GPU_UNROLL
    for (uint32_t i = 0; i < MLA_ABSORB_EACH; i++)
        if (first + 4 * i < nope) w[i] = gpu_load_u4(weight + (size_t)(first + 4 * i) * rank);
}

GPU_KERNEL MLA_BOUNDS k_mla_absorb_few(mla_args a, mla_chunk k) {
    GPU_SHARED(mla_absorb_few_shared, sh);
    const uint32_t head = gpu_bx(), row = gpu_by(), wave = mla_uniform(gpu_wave()), lane = gpu_lane();
    if (head == a.heads) { // the cache row
        gpu_wait_previous();
        mla_row(a, k.first + row);
        return;
    }
    const size_t weight = (size_t)head * (a.nope + a.value);
    const float *q = a.q + ((size_t)(k.first + row) * a.heads + head) * (a.nope + a.extra);
    float *query = k.query + ((size_t)row * a.heads + head) * mla_width(a);
    for (uint32_t first = 0; first < MLA_RANK; first += 2 * K_BF16_BLOCK) {
        const gpu_bf16 *from = a.kv_b + weight * MLA_RANK + first + wave / 4 * K_BF16_BLOCK + lane * 8;
        gpu_u4 w[MLA_ABSORB_EACH] = {};
        mla_absorb_fetch(w, from, MLA_RANK, wave % 4, a.nope);
        gpu_wait_previous();
        float acc[8] = {};
        GPU_ROLLED
        for (uint32_t d = wave % 4; d < a.nope; d += MLA_ABSORB_STEP) {
            GPU_UNROLL
            for (uint32_t i = 0; i < MLA_ABSORB_EACH; i++) {
                if (d + 4 * i >= a.nope) break;
                const float y = q[d + 4 * i];
                GPU_UNROLL
                for (int t = 0; t < 4; t++) {
                    acc[2 * t] = gpu_fma(y, gpu_as_f32(w[i].v[t] << 16), acc[2 * t]);
                    acc[2 * t + 1] = gpu_fma(y, gpu_as_f32(w[i].v[t] & 0xffff0000u), acc[2 * t + 1]);
                }
            }
            mla_absorb_fetch(w, from, MLA_RANK, d + MLA_ABSORB_STEP, a.nope);
        }
        gpu_sync();
        GPU_UNROLL
        for (int t = 0; t < 8; t++) sh.part[wave][t * 32 + (int)lane] = acc[t];
        gpu_sync();
        for (uint32_t col = gpu_tid(); col < 2 * K_BF16_BLOCK; col += MLA_THREADS) {
            const uint32_t of = col / K_BF16_BLOCK * 4, at = col % K_BF16_BLOCK;
            query[first + col] = k_sum4(sh.part[of][at], sh.part[of + 1][at], sh.part[of + 2][at], sh.part[of + 3][at]);
        }
    }
    for (uint32_t x = gpu_tid(); x < a.extra; x += MLA_THREADS) query[MLA_RANK + x] = q[a.nope + x];
}

// Butterfly sums of N values a lane at once: the lanes i * 32 / N and behind it get the sum of v[i].  Adds in the order
// of gpu_wave_sum.
template <int N, int HALF> GPU_DEV void mla_sum_half(float (&v)[N]) {
    enum { MASK = GPU_WAVE / N * HALF };
    const bool upper = (gpu_lane() & (unsigned)MASK) != 0;
    GPU_UNROLL
    for (int i = 0; i < HALF; i++) {
        const float a = v[i], b = v[i + HALF]; // values first: a choice between places would be an index
        v[i] = (upper ? b : a) + gpu_shfl_xor(upper ? a : b, MASK);
    }
}
GPU_DEV float mla_sum_transposed(float (&v)[16]) {
    mla_sum_half<16, 8>(v);
    mla_sum_half<16, 4>(v);
    mla_sum_half<16, 2>(v);
    mla_sum_half<16, 1>(v);
    return v[0] + gpu_shfl_xor(v[0], 1);
}
GPU_DEV float mla_sum_transposed(float (&v)[32]) {
    mla_sum_half<32, 16>(v);
    mla_sum_half<32, 8>(v);
    mla_sum_half<32, 4>(v);
    mla_sum_half<32, 2>(v);
    mla_sum_half<32, 1>(v);
    return v[0];
}

// ---------------------------------------------------------------- softmax of one block, by one wave
// Scores e[i * step], i < count, become exp(score - m).
GPU_DEV void mla_softmax(float *e, uint32_t step, uint32_t count, float *m_out, float *l_out) {
    // Not from e[0], which lane 0 overwrites: a shuffle orders no memory.  With a NaN among the scores every result is
    // NaN anyway.
    float m = gpu_as_f32(0xff800000u), s = 0.0f;
    for (uint32_t i = gpu_lane(); i < count; i += GPU_WAVE) m = e[i * step] > m ? e[i * step] : m;
    m = gpu_wave_max(m);
    for (uint32_t i = gpu_lane(); i < count; i += GPU_WAVE) {
        float x = k_exp(e[i * step] - m);
        e[i * step] = x;
        s = s + x;
    }
    *m_out = m;
    *l_out = gpu_wave_sum(s);
}

// How a block's (m_b, l_b) enters the running (m, l); f and f_b are the factors of the running and the new sums.
typedef struct mla_step {
    float m, l, f, f_b;
} mla_step;
GPU_DEV mla_step mla_merge(float m, float l, float m_b, float l_b) {
    mla_step s;
    s.m = m_b > m ? m_b : m;
    s.f = k_exp(m - s.m);
    s.f_b = k_exp(m_b - s.m);
    s.l = gpu_fma(l, s.f, l_b * s.f_b);
    return s;
}

// The key blocks [first, last) of this thread block's row; split: the one block of its item.
typedef struct mla_range_of {
    uint32_t row;
    uint64_t first, last;
} mla_range_of;
GPU_DEV mla_range_of mla_range_here(const mla_args &a, const mla_chunk &k, uint32_t item) {
    mla_range_of r;
    r.row = k.split ? item / k.blocks : item;
    r.first = k.block + (k.split ? item % k.blocks : 0);
    r.last = k.split ? r.first + 1 : k.block + k.blocks;
    uint64_t all = (mla_keys(a, k, r.row) + MLA_KEYS - 1) / MLA_KEYS;
    if (r.last > all) r.last = all;
    return r;
}

// ---------------------------------------------------------------- generic form: a block for an item and a head
enum { MLA_GENERIC_THREADS = 128 };
struct mla_generic_shared {
    float e[MLA_KEYS], m, l;
};
GPU_KERNEL GPU_BOUNDS(MLA_GENERIC_THREADS, 4) k_mla_attend_generic(mla_args a, mla_chunk k) {
    gpu_begin();
    GPU_SHARED(mla_generic_shared, sh);
    uint32_t head = gpu_bx(), width = mla_width(a);
    mla_range_of range = mla_range_here(a, k, gpu_by());
    const float *query = k.query + ((size_t)range.row * a.heads + head) * width;
    size_t to = (size_t)(k.split ? gpu_by() : range.row) * a.heads + head;
    mla_sums out = k.split ? k.part : k.run;
    float m_run = 0.0f, l_run = 0.0f;
    if (!k.split && k.block != 0 && range.first < range.last) {
        m_run = out.m[to];
        l_run = out.l[to];
    }
    for (uint64_t b = range.first; b < range.last; b++) {
        uint64_t left = mla_keys(a, k, range.row) - b * MLA_KEYS;
        uint32_t count = left < MLA_KEYS ? (uint32_t)left : (uint32_t)MLA_KEYS;
        size_t rows = (size_t)b * MLA_KEYS * width;
        gpu_sync();
        for (uint32_t i = gpu_wave(); i < count; i += gpu_nt() / GPU_WAVE) {
            float s = 0.0f;
            for (uint32_t d = gpu_lane(); d < width; d += GPU_WAVE)
                s = gpu_fma(query[d], mla_row_get(a, rows + (size_t)i * width + d), s);
            s = gpu_wave_sum(s) * a.scale;
            if (gpu_lane() == 0) sh.e[i] = s;
        }
        gpu_sync();
        if (gpu_wave() == 0) {
            float m, l;
            mla_softmax(sh.e, 1, count, &m, &l);
            if (gpu_lane() == 0) {
                sh.m = m;
                sh.l = l;
            }
        }
        gpu_sync();
        bool fresh = k.split || b == 0;
        mla_step s = {sh.m, sh.l, 0.0f, 0.0f};
        if (!fresh) s = mla_merge(m_run, l_run, sh.m, sh.l);
        for (uint32_t col = gpu_tid(); col < a.rank; col += gpu_nt()) {
            float p[4] = {};
            for (uint32_t i = 0; i < count; i += 4) {
                GPU_UNROLL
                for (uint32_t r = 0; r < 4; r++)
                    if (i + r < count)
                        p[r] = gpu_fma(sh.e[i + r], mla_row_get(a, rows + (size_t)(i + r) * width + col), p[r]);
            }
            float sum = k_sum4(p[0], p[1], p[2], p[3]), *at = out.a + to * a.rank + col;
            *at = fresh ? sum : gpu_fma(*at, s.f, sum * s.f_b);
        }
        m_run = s.m;
        l_run = s.l;
    }
    if (range.first < range.last && gpu_tid() == 0) {
        out.m[to] = m_run;
        out.l[to] = l_run;
    }
}

// ---------------------------------------------------------------- tuned form: scores
// A block has 16 heads, a wave four of them, and some keys of an item, which come through shared memory; the next ones
// are under way meanwhile.
enum {
    MLA_TILE = 16, // keys in shared memory
    MLA_SCORE_THREADS = 128,
    MLA_LANE_DIMS = MLA_WIDTH / 32, // a lane's part of a row: the columns lane + 32 i
    MLA_LEAST_KEYS = 32             // of a block
};
struct mla_score_shared {
    alignas(16) gpu_bf16 tile[2][MLA_TILE][MLA_WIDTH];
};
static_assert(sizeof(mla_score_shared) <= 48 << 10, "shared memory");

GPU_DEV void mla_tile_copy(gpu_bf16 (*to)[MLA_WIDTH], const gpu_bf16 *rows, uint32_t count) {
    for (uint32_t i = gpu_tid(); i < count * (MLA_WIDTH / 8); i += MLA_SCORE_THREADS)
        gpu_copy16(to[0] + i * 8, rows + i * 8); // the rows follow each other
    gpu_copy_batch();
}

// Scores of 4 heads and 4 keys of a tile: (head, key) = (i / 4, i % 4) in the lanes 2 i and 2 i + 1.
GPU_DEV float mla_tile_scores(const float (&q)[4][MLA_LANE_DIMS], const gpu_bf16 (*tile)[MLA_WIDTH]) {
    float acc[16];
    GPU_UNROLL
    for (int key = 0; key < 4; key++) {
        float s[4] = {};
        GPU_UNROLL
        for (int i = 0; i < MLA_LANE_DIMS; i++) {
            const float x = gpu_bf16_f32(tile[key][(int)gpu_lane() + 32 * i]);
            GPU_UNROLL
            for (int h = 0; h < 4; h++) s[h] = gpu_fma(q[h][i], x, s[h]);
        }
        GPU_UNROLL
        for (int h = 0; h < 4; h++) acc[h * 4 + key] = s[h];
    }
    return mla_sum_transposed(acc);
}

// Grid: groups of heads times parts of a key block, items.
GPU_KERNEL MLA_SCORE_BOUNDS k_mla_scores(mla_args a, mla_chunk k, uint32_t parts) {
    gpu_begin();
    GPU_SHARED(mla_score_shared, sh);
    const uint32_t item = gpu_by(), wave = mla_uniform(gpu_wave()), head0 = gpu_bx() / parts * MLA_HEADS + wave * 4;
    const uint32_t row = item / k.blocks, each = MLA_KEYS / parts, first = gpu_bx() % parts * each;
    const uint64_t keys = mla_keys(a, k, row), start = (k.block + item % k.blocks) * MLA_KEYS + first;
    if (start >= keys) return; // the whole block
    const uint32_t count = keys - start < each ? (uint32_t)(keys - start) : each;
    const gpu_bf16 *rows = (const gpu_bf16 *)a.rows + (size_t)start * MLA_WIDTH;
    mla_tile_copy(sh.tile[0], rows, count < MLA_TILE ? count : (uint32_t)MLA_TILE);
    float q[4][MLA_LANE_DIMS];
    GPU_UNROLL
    for (uint32_t h = 0; h < 4; h++) {
        const uint32_t head = head0 + h < a.heads ? head0 + h : a.heads - 1;
        const float *from = k.query + ((size_t)row * a.heads + head) * MLA_WIDTH;
        GPU_UNROLL
        for (int i = 0; i < MLA_LANE_DIMS; i++) q[h][i] = from[(int)gpu_lane() + 32 * i];
    }
    const uint32_t head = head0 + gpu_lane() / 8;
    float *e = k.e + ((size_t)item * a.heads + head) * MLA_KEYS + first;
    GPU_ROLLED
    for (uint32_t t = 0; t < count; t += MLA_TILE) {
        const uint32_t next = t + MLA_TILE, buffer = t / MLA_TILE % 2;
        gpu_copy_wait<0>();
        gpu_sync(); // this tile is there for all, and all are through with the one before
        if (next < count)
            mla_tile_copy(sh.tile[buffer ^ 1], rows + (size_t)next * MLA_WIDTH,
                          count - next < MLA_TILE ? count - next : (uint32_t)MLA_TILE);
        GPU_ROLLED
        for (uint32_t key = 0; key < MLA_TILE; key += 4) {
            const float s = mla_tile_scores(q, sh.tile[buffer] + key) * a.scale;
            const uint32_t at = t + key + gpu_lane() / 2 % 4;
            if (at < count && gpu_lane() % 2 == 0 && head < a.heads) e[at] = s;
        }
    }
}

// ---------------------------------------------------------------- tuned form: softmax and weighted sums
// A block has 16 heads and a slice of the columns; the keys come through shared memory, MLA_STAGES - 1 tiles ahead.  A
// wave sums the keys i with i % 4 == wave % 4 for 8 heads, MLA_COLS columns a lane; what the waves have is put together
// for MLA_PASS of their heads at a time.
enum {
    MLA_SLICE = GPU_WAVE * MLA_COLS,
    MLA_SLICES = MLA_RANK / MLA_SLICE,
    MLA_STAGES = 3,
    MLA_E_STEP = MLA_HEADS + 4,
    MLA_EACH = MLA_HEADS / 2,
    MLA_PASS = 32 / MLA_COLS,
    MLA_PASS_OUT = 2 * MLA_PASS * MLA_SLICE / MLA_THREADS // outputs of a thread
};
struct mla_sum_shared {
    union {
        struct {
            alignas(16) float e[MLA_KEYS][MLA_E_STEP];
            alignas(16) gpu_bf16 tile[MLA_STAGES][MLA_TILE][MLA_SLICE];
        };
        alignas(16) float part[8][MLA_PASS][MLA_SLICE];
    };
    float m[MLA_HEADS], l[MLA_HEADS], f[MLA_HEADS], f_b[MLA_HEADS], m_b[MLA_HEADS], l_b[MLA_HEADS];
};
static_assert(sizeof(mla_sum_shared) <= 48 << 10, "shared memory");

// A head's scores of a block, by one wave: to sh.e as exp(score - m), with m and l.
GPU_DEV void mla_head_softmax(mla_sum_shared &sh, uint32_t h, const float *scores, uint32_t count) {
    float x[MLA_KEYS / GPU_WAVE], m = gpu_as_f32(0xff800000u), l = 0.0f;
    GPU_UNROLL
    for (uint32_t j = 0; j < MLA_KEYS / GPU_WAVE; j++) {
        const uint32_t i = gpu_lane() + j * GPU_WAVE;
        x[j] = i < count ? scores[i] : gpu_as_f32(0xff800000u);
    }
    GPU_UNROLL
    for (uint32_t j = 0; j < MLA_KEYS / GPU_WAVE; j++) m = x[j] > m ? x[j] : m;
    m = gpu_wave_max(m);
    GPU_UNROLL
    for (uint32_t j = 0; j < MLA_KEYS / GPU_WAVE; j++) {
        const uint32_t i = gpu_lane() + j * GPU_WAVE;
        if (i >= count) continue;
        const float e = k_exp(x[j] - m);
        sh.e[i][h] = e;
        l = l + e;
    }
    l = gpu_wave_sum(l);
    if (gpu_lane() == 0) {
        sh.m_b[h] = m;
        sh.l_b[h] = l;
    }
}

// A slice of the keys [first, ..) of a block, of `count`, on its way.
GPU_DEV void mla_slice_copy(mla_sum_shared &sh, const gpu_bf16 *rows, uint32_t first, uint32_t count) {
    for (uint32_t i = gpu_tid(); i < MLA_TILE * (MLA_SLICE / 8); i += MLA_THREADS) {
        const uint32_t key = i / (MLA_SLICE / 8), col = i % (MLA_SLICE / 8) * 8;
        if (first + key < count) // never NULL; but with gpu_copy16 this kernel spills on sm_120
            gpu_copy16_or_zero(&sh.tile[first / MLA_TILE % MLA_STAGES][key][col],
                               rows + (size_t)(first + key) * MLA_WIDTH + col);
    }
    gpu_copy_batch();
}

// The first tiles have been asked for; the block is not yet synchronised.
GPU_DEV void mla_slice_sums(float (&acc)[MLA_EACH][MLA_COLS], mla_sum_shared &sh, const gpu_bf16 *rows,
                            uint32_t count) {
    const uint32_t wave = mla_uniform(gpu_wave()), head = wave / 4 * MLA_EACH;
    GPU_ROLLED
    for (uint32_t first = 0; first < count; first += MLA_TILE) {
        gpu_copy_wait<MLA_STAGES - 2>();
        gpu_sync(); // this tile is there for all, and all are through with the one before
        mla_slice_copy(sh, rows, first + (MLA_STAGES - 1) * MLA_TILE, count);
        const gpu_bf16(*tile)[MLA_SLICE] = sh.tile[first / MLA_TILE % MLA_STAGES];
        GPU_UNROLL
        for (uint32_t key = 0; key < MLA_TILE; key += 4) {
            const uint32_t i = key + wave % 4;
            if (first + i >= count) break; // whole waves
            uint32_t u[MLA_COLS / 2];
            GPU_UNROLL
            for (uint32_t t = 0; t < MLA_COLS / 2; t += 2) {
                const gpu_u2 two = gpu_load_u2(tile[i] + gpu_lane() * MLA_COLS + 2 * t);
                u[t] = two.v[0];
                u[t + 1] = two.v[1];
            }
            const gpu_f4 e0 = gpu_load_f4(&sh.e[first + i][head]), e1 = gpu_load_f4(&sh.e[first + i][head + 4]);
            GPU_UNROLL
            for (int t = 0; t < MLA_COLS / 2; t++) {
                const float lo = gpu_as_f32(u[t] << 16), hi = gpu_as_f32(u[t] & 0xffff0000u);
                GPU_UNROLL
                for (int h = 0; h < MLA_EACH; h++) {
                    const float e = h < 4 ? e0.v[h % 4] : e1.v[h % 4];
                    acc[h][2 * t] = gpu_fma(e, lo, acc[h][2 * t]);
                    acc[h][2 * t + 1] = gpu_fma(e, hi, acc[h][2 * t + 1]);
                }
            }
        }
    }
    gpu_copy_wait<0>();
}

// Output i of this thread in a pass: head mla_out_head() of the 16, column gpu_tid() % MLA_SLICE of the slice.
GPU_DEV uint32_t mla_out_head(uint32_t pass, uint32_t i) {
    const uint32_t n = gpu_tid() / MLA_SLICE + i * (MLA_THREADS / MLA_SLICE); // of 2 * MLA_PASS
    return n / MLA_PASS * MLA_EACH + pass * MLA_PASS + n % MLA_PASS;
}

// Grid: groups of heads times slices; items (split) or rows.
GPU_KERNEL MLA_BOUNDS k_mla_sums(mla_args a, mla_chunk k) {
    enum { PASSES = MLA_EACH / MLA_PASS };
    gpu_begin();
    GPU_SHARED(mla_sum_shared, sh);
    const uint32_t head0 = gpu_bx() / MLA_SLICES * MLA_HEADS, slice = gpu_bx() % MLA_SLICES * MLA_SLICE;
    const uint32_t heads = a.heads - head0 < MLA_HEADS ? a.heads - head0 : (uint32_t)MLA_HEADS;
    const mla_range_of range = mla_range_here(a, k, gpu_by());
    if (k.split && range.first >= range.last) return; // the whole block
    const size_t to = (size_t)(k.split ? gpu_by() : range.row) * a.heads + head0;
    const uint32_t col = gpu_tid() % MLA_SLICE;
    const mla_sums out = k.split ? k.part : k.run;
    float run[PASSES][MLA_PASS_OUT] = {}, *sums = out.a + to * MLA_RANK + slice + col;
    if (!k.split && k.block != 0) {
        if (gpu_tid() < heads) {
            sh.m[gpu_tid()] = out.m[to + gpu_tid()];
            sh.l[gpu_tid()] = out.l[to + gpu_tid()];
        }
        GPU_UNROLL
        for (uint32_t n = 0; n < PASSES * MLA_PASS_OUT; n++) {
            const uint32_t h = mla_out_head(n / MLA_PASS_OUT, n % MLA_PASS_OUT);
            if (h < heads) run[n / MLA_PASS_OUT][n % MLA_PASS_OUT] = sums[h * MLA_RANK];
        }
    }
    for (uint64_t b = range.first; b < range.last; b++) {
        const uint64_t left = mla_keys(a, k, range.row) - b * MLA_KEYS;
        const uint32_t count = left < MLA_KEYS ? (uint32_t)left : (uint32_t)MLA_KEYS;
        const size_t item = k.split ? gpu_by() : (size_t)range.row * k.blocks + (b - k.block);
        const bool fresh = k.split || b == 0;
        const gpu_bf16 *rows = (const gpu_bf16 *)a.rows + (size_t)b * MLA_KEYS * MLA_WIDTH + slice;
        gpu_sync();
        GPU_UNROLL
        for (uint32_t t = 0; t < MLA_STAGES - 1; t++) mla_slice_copy(sh, rows, t * MLA_TILE, count);
        for (uint32_t h = gpu_wave(); h < heads; h += MLA_THREADS / GPU_WAVE)
            mla_head_softmax(sh, h, k.e + (item * a.heads + head0 + h) * MLA_KEYS, count);
        gpu_sync();
        if (gpu_tid() < heads) {
            const uint32_t h = gpu_tid();
            mla_step s = {sh.m_b[h], sh.l_b[h], 0.0f, 0.0f};
            if (!fresh) s = mla_merge(sh.m[h], sh.l[h], sh.m_b[h], sh.l_b[h]);
            sh.m[h] = s.m;
            sh.l[h] = s.l;
            sh.f[h] = s.f;
            sh.f_b[h] = s.f_b;
        }
        float acc[MLA_EACH][MLA_COLS] = {};
        mla_slice_sums(acc, sh, rows, count);
        GPU_UNROLL
        for (uint32_t pass = 0; pass < PASSES; pass++) {
            gpu_sync();
            GPU_UNROLL
            for (uint32_t n = 0; n < MLA_PASS * MLA_COLS; n += 4) {
                const float *x = &acc[pass * MLA_PASS + n / MLA_COLS][n % MLA_COLS];
                gpu_f4 y = {{x[0], x[1], x[2], x[3]}};
                *(gpu_f4 *)&sh.part[gpu_wave()][n / MLA_COLS][gpu_lane() * MLA_COLS + n % MLA_COLS] = y;
            }
            gpu_sync();
            GPU_UNROLL
            for (uint32_t i = 0; i < MLA_PASS_OUT; i++) {
                const uint32_t h = mla_out_head(pass, i), w = h / MLA_EACH * 4, of = h % MLA_PASS;
                if (h >= heads) continue;
                const float sum = k_sum4(sh.part[w][of][col], sh.part[w + 1][of][col], sh.part[w + 2][of][col],
                                         sh.part[w + 3][of][col]);
                run[pass][i] = fresh ? sum : gpu_fma(run[pass][i], sh.f[h], sum * sh.f_b[h]);
            }
        }
    }
    GPU_UNROLL
    for (uint32_t n = 0; n < PASSES * MLA_PASS_OUT; n++) {
        const uint32_t h = mla_out_head(n / MLA_PASS_OUT, n % MLA_PASS_OUT);
        if (h < heads) sums[h * MLA_RANK] = run[n / MLA_PASS_OUT][n % MLA_PASS_OUT];
    }
    if (slice == 0 && gpu_tid() < heads) {
        (k.split ? out.m : k.m_out)[to + gpu_tid()] = sh.m[gpu_tid()];
        (k.split ? out.l : k.l_out)[to + gpu_tid()] = sh.l[gpu_tid()];
    }
}

// ---------------------------------------------------------------- split form: parts into the running sums
struct mla_factors {
    float m, l, f[MLA_PARTS], f_b[MLA_PARTS], l_b[MLA_PARTS];
};

// Wave 0 makes the factors of `count` parts and the running m and l: the maxima by a scan, so that what takes time is
// done for all parts at once.  The parts are `step` apart.
GPU_DEV void mla_factors_of(mla_factors &sh, const float *m, const float *l, uint32_t step, uint32_t count, bool fresh,
                            float m_run, float l_run) {
    if (gpu_wave() == 0) {
        float before = m_run; // the maximum of all parts before these 32; there is none when fresh
        for (uint32_t first = 0; first < count; first += GPU_WAVE) {
            const uint32_t b = first + gpu_lane();
            const float m_b = b < count ? m[(size_t)b * step] : gpu_as_f32(0xff800000u);
            const float l_b = b < count ? l[(size_t)b * step] : 0.0f;
            float top = m_b;
            GPU_UNROLL
            for (uint32_t d = 1; d < GPU_WAVE; d <<= 1) {
                const float o = gpu_as_f32(gpu_shfl(gpu_as_u32(top), (int)(gpu_lane() - d)));
                if (gpu_lane() >= d) top = o > top ? o : top;
            }
            const bool first_of_all = fresh && first == 0;
            float past = gpu_as_f32(gpu_shfl(gpu_as_u32(top), (int)(gpu_lane() - 1)));
            if (!first_of_all) top = before > top ? before : top;
            if (gpu_lane() == 0)
                past = before;
            else if (!first_of_all)
                past = before > past ? before : past;
            if (b < count) {
                const float f_b = k_exp(m_b - top);
                sh.f[b] = k_exp(past - top);
                sh.f_b[b] = f_b;
                sh.l_b[b] = first_of_all && b == 0 ? l_b : l_b * f_b;
            }
            const uint32_t last = count - first < GPU_WAVE ? count - first - 1 : (uint32_t)GPU_WAVE - 1;
            before = gpu_as_f32(gpu_shfl(gpu_as_u32(top), (int)last));
        }
        if (gpu_lane() == 0) sh.m = before;
    }
    gpu_sync();
    if (gpu_tid() == 0) {
        float sum = fresh ? sh.l_b[0] : l_run;
        GPU_UNROLL_8
        for (uint32_t b = fresh ? 1 : 0; b < count; b++) sum = gpu_fma(sum, sh.f[b], sh.l_b[b]);
        sh.l = sum;
    }
}

// A column of the parts, which are `step` apart, into the running sum.
GPU_DEV float mla_merge_column(const mla_factors &sh, float sum, const float *from, size_t step, uint32_t count,
                               bool fresh) {
    if (fresh) sum = from[0];
    GPU_UNROLL_8
    for (uint32_t b = fresh ? 1 : 0; b < count; b++) sum = gpu_fma(sum, sh.f[b], from[b * step] * sh.f_b[b]);
    return sum;
}

// Parts of a row that are there.
GPU_DEV uint32_t mla_parts_of(const mla_args &a, const mla_chunk &k, uint32_t row) {
    const uint64_t all = (mla_keys(a, k, row) + MLA_KEYS - 1) / MLA_KEYS;
    if (k.block >= all) return 0;
    return k.blocks < all - k.block ? k.blocks : (uint32_t)(all - k.block);
}

// A block for a head and a row.
GPU_KERNEL GPU_BOUNDS(MLA_GENERIC_THREADS, 4) k_mla_merge(mla_args a, mla_chunk k) {
    gpu_begin();
    GPU_SHARED(mla_factors, sh);
    const uint32_t head = gpu_bx(), row = gpu_by(), count = mla_parts_of(a, k, row);
    if (!count) return;                                                                             // the whole block
    const size_t to = (size_t)row * a.heads + head, part = (size_t)row * k.blocks * a.heads + head; // of the first part
    const bool fresh = k.block == 0;
    mla_factors_of(sh, k.part.m + part, k.part.l + part, a.heads, count, fresh, fresh ? 0.0f : k.run.m[to],
                   fresh ? 0.0f : k.run.l[to]);
    gpu_sync();
    if (gpu_tid() == 0) {
        k.run.m[to] = sh.m;
        k.run.l[to] = sh.l;
    }
    for (uint32_t col = gpu_tid(); col < a.rank; col += gpu_nt()) {
        float *at = k.run.a + to * a.rank + col;
        *at = mla_merge_column(sh, fresh ? 0.0f : *at, k.part.a + part * a.rank + col, (size_t)a.heads * a.rank, count,
                               fresh);
    }
}

// ---------------------------------------------------------------- value product and gate
// A block for a head and some rows.
enum { MLA_VALUE_ROWS = 8, MLA_VALUE_FLOATS = MLA_MAX_RANK };
struct mla_value_shared {
    float lat[MLA_VALUE_FLOATS];
};
static_assert(sizeof(mla_value_shared) <= 48 << 10 && (int)MLA_VALUE_FLOATS >= (int)MLA_VALUE_ROWS * MLA_RANK,
              "shared memory");
// The tuned shape: a wave has four values and all rows at a time.
enum { MLA_VALUE_EACH = 4 };
GPU_DEV void mla_value_tile(const mla_args &a, const mla_value_shared &sh, uint32_t head, uint32_t row0, uint32_t rows,
                            uint32_t j0) {
    enum { BLOCKS = MLA_RANK / K_BF16_BLOCK };
    const uint32_t lane = gpu_lane();
    const gpu_bf16 *weight = a.kv_b + ((size_t)head * (a.nope + a.value) + a.nope) * MLA_RANK + lane * 8;
    float acc[MLA_VALUE_ROWS * MLA_VALUE_EACH] = {};
    GPU_ROLLED
    for (uint32_t b = 0; b < BLOCKS; b++) {
        gpu_u4 w[MLA_VALUE_EACH];
        GPU_UNROLL
        for (uint32_t j = 0; j < MLA_VALUE_EACH; j++)
            w[j] =
                gpu_load_u4(weight + (size_t)(j0 + j < a.value ? j0 + j : a.value - 1) * MLA_RANK + b * K_BF16_BLOCK);
        GPU_UNROLL
        for (uint32_t t = 0; t < 8; t++) {
            float x[MLA_VALUE_EACH];
            GPU_UNROLL
            for (uint32_t j = 0; j < MLA_VALUE_EACH; j++)
                x[j] = gpu_as_f32(t % 2 ? w[j].v[t / 2] & 0xffff0000u : w[j].v[t / 2] << 16);
            GPU_UNROLL
            for (uint32_t i = 0; i < MLA_VALUE_ROWS; i++) {
                const float v = sh.lat[i * MLA_RANK + b * K_BF16_BLOCK + 32 * t + lane];
                GPU_UNROLL
                for (uint32_t j = 0; j < MLA_VALUE_EACH; j++)
                    acc[i * MLA_VALUE_EACH + j] = gpu_fma(v, x[j], acc[i * MLA_VALUE_EACH + j]);
            }
        }
    }
    const float o = mla_sum_transposed(acc);
    const uint32_t i = lane / MLA_VALUE_EACH, j = j0 + lane % MLA_VALUE_EACH;
    const size_t at = ((size_t)(row0 + i) * a.heads + head) * a.value + j;
    if (i < rows && j < a.value) a.out[at] = o * k_sigmoid(a.gate[at]);
}

template <bool TUNED> GPU_KERNEL MLA_BOUNDS k_mla_value(mla_args a, mla_chunk k, uint32_t rows_each) {
    gpu_begin();
    GPU_SHARED(mla_value_shared, sh);
    uint32_t head = gpu_bx(), row0 = gpu_by() * rows_each,
             rows = k.count - row0 < rows_each ? k.count - row0 : rows_each;
    for (uint32_t i = 0; i < rows_each; i++) {
        size_t at = (size_t)(row0 + (i < rows ? i : 0)) * a.heads + head;
        float l = k.run.l[at];
        for (uint32_t c = gpu_tid(); c < a.rank; c += gpu_nt()) sh.lat[i * a.rank + c] = k.run.a[at * a.rank + c] / l;
    }
    gpu_sync();
    if (TUNED) {
        for (uint32_t j = gpu_wave() * MLA_VALUE_EACH; j < a.value; j += MLA_THREADS / GPU_WAVE * MLA_VALUE_EACH)
            mla_value_tile(a, sh, head, k.first + row0, rows, j);
        return;
    }
    bool aligned = a.rank % 8 == 0;
    for (uint32_t j = gpu_wave(); j < a.value; j += MLA_THREADS / GPU_WAVE) {
        const gpu_bf16 *w = a.kv_b + ((size_t)head * (a.nope + a.value) + a.nope + j) * a.rank;
        for (uint32_t i = 0; i < rows; i++) {
            float o = gpu_wave_sum(k_lane_dot_bf16(0.0f, sh.lat + i * a.rank, w, a.rank, aligned));
            size_t at = ((size_t)(k.first + row0 + i) * a.heads + head) * a.value + j;
            if (gpu_lane() == 0) a.out[at] = o * k_sigmoid(a.gate[at]);
        }
    }
}

// The same for a row of the split form, with the merge of its last parts: a block for a head, a row and MLA_FINISH_ROWS
// values, whose weights are under way before the parts are there.
enum { MLA_FINISH_EACH = 8, MLA_FINISH_ROWS = MLA_THREADS / GPU_WAVE * MLA_FINISH_EACH };
struct mla_finish_shared {
    mla_factors factors;
    float lat[MLA_RANK];
};
GPU_KERNEL MLA_BOUNDS k_mla_finish(mla_args a, mla_chunk k) {
    enum { BLOCKS = MLA_RANK / K_BF16_BLOCK };
    GPU_SHARED(mla_finish_shared, sh);
    const uint32_t head = gpu_bx() % a.heads, row = gpu_by(), lane = gpu_lane();
    const uint32_t j0 = gpu_bx() / a.heads * MLA_FINISH_ROWS + mla_uniform(gpu_wave()) * MLA_FINISH_EACH;
    const gpu_bf16 *weight = a.kv_b + ((size_t)head * (a.nope + a.value) + a.nope) * MLA_RANK + lane * 8;
    gpu_u4 w[MLA_FINISH_EACH][BLOCKS] = {};
    GPU_UNROLL
    for (uint32_t i = 0; i < MLA_FINISH_EACH; i++) {
        GPU_UNROLL
        for (uint32_t b = 0; b < BLOCKS; b++)
            if (j0 + i < a.value) w[i][b] = gpu_load_u4(weight + (size_t)(j0 + i) * MLA_RANK + b * K_BF16_BLOCK);
    }
    gpu_wait_previous();
    const uint32_t count = mla_parts_of(a, k, row);
    const size_t at = (size_t)row * a.heads + head, part = (size_t)row * k.blocks * a.heads + head;
    const size_t out = ((size_t)(k.first + row) * a.heads + head) * a.value;
    const bool fresh = k.block == 0;
    const uint32_t mine = j0 + lane % MLA_FINISH_EACH;
    const float gate = mine < a.value ? a.gate[out + mine] : 0.0f;
    if (count)
        mla_factors_of(sh.factors, k.part.m + part, k.part.l + part, a.heads, count, fresh, fresh ? 0.0f : k.run.m[at],
                       fresh ? 0.0f : k.run.l[at]);
    float sum[MLA_RANK / MLA_THREADS];
    GPU_UNROLL
    for (uint32_t i = 0; i < MLA_RANK / MLA_THREADS; i++) {
        const uint32_t col = gpu_tid() + i * MLA_THREADS;
        const float before = fresh ? 0.0f : k.run.a[at * MLA_RANK + col];
        sum[i] = mla_merge_column(sh.factors, before, k.part.a + part * MLA_RANK + col, (size_t)a.heads * MLA_RANK,
                                  count, fresh && count);
    }
    if (!count && gpu_tid() == 0) sh.factors.l = k.run.l[at];
    gpu_sync();
    GPU_UNROLL
    for (uint32_t i = 0; i < MLA_RANK / MLA_THREADS; i++) sh.lat[gpu_tid() + i * MLA_THREADS] = sum[i] / sh.factors.l;
    gpu_sync();
    float o = 0.0f; // of value j0 + lane % 8
    GPU_UNROLL
    for (uint32_t i = 0; i < MLA_FINISH_EACH; i++) {
        float s = 0.0f;
        GPU_UNROLL
        for (uint32_t b = 0; b < BLOCKS; b++) {
            const float *v = sh.lat + b * K_BF16_BLOCK + lane;
            GPU_UNROLL
            for (int t = 0; t < 4; t++) {
                s = gpu_fma(v[64 * t], gpu_as_f32(w[i][b].v[t] << 16), s);
                s = gpu_fma(v[64 * t + 32], gpu_as_f32(w[i][b].v[t] & 0xffff0000u), s);
            }
        }
        s = gpu_wave_sum(s);
        if (lane == i) o = s;
    }
    if (lane < MLA_FINISH_EACH && mine < a.value) a.out[out + mine] = o * k_sigmoid(gate);
}

// ---------------------------------------------------------------- host
static_assert(MLA_PARTS >= MLA_SPLIT_ROWS && MLA_PARTS >= MLA_ROWS && MLA_LAUNCH_ITEMS >= MLA_ROWS,
              "a launch takes a key block of every row");

static inline bool mla_fits(uint32_t heads, uint32_t extra, uint32_t rank) {
    return heads >= 1 && rank >= 1 && rank <= MLA_MAX_RANK && extra <= MLA_MAX_RANK && heads <= 1u << 16;
}

// Bytes for ranges of at most `rows` rows of a shape that fits.
static inline uint64_t mla_scratch_bytes(uint32_t rows, uint32_t heads, uint32_t extra, uint32_t rank) {
    uint64_t chunk = rows < MLA_ROWS ? rows : MLA_ROWS, sums = (uint64_t)heads * (rank + 2);
    uint64_t scores = rank == MLA_RANK && extra == MLA_EXTRA ? (uint64_t)MLA_PARTS * heads * MLA_KEYS : 0;
    return 4 * (chunk * heads * ((uint64_t)rank + extra) + (chunk + MLA_PARTS) * sums + 2 * chunk * heads + scores);
}

// Scratch order: query, then a of the rows and of the parts, m and l of both, m and l of the rows again, scores.
static inline mla_chunk mla_chunk_of(const mla_args *a, uint32_t first) {
    mla_chunk k = {};
    size_t rows = a->n < MLA_ROWS ? a->n : MLA_ROWS;
    k.first = first;
    k.count = a->n - first < MLA_ROWS ? a->n - first : MLA_ROWS;
    k.query = (float *)a->scratch;
    k.run.a = k.query + rows * a->heads * (a->rank + a->extra);
    k.part.a = k.run.a + rows * a->heads * a->rank;
    k.run.m = k.part.a + (size_t)MLA_PARTS * a->heads * a->rank;
    k.run.l = k.run.m + rows * a->heads;
    k.part.m = k.run.l + rows * a->heads;
    k.part.l = k.part.m + (size_t)MLA_PARTS * a->heads;
    k.m_out = k.part.l + (size_t)MLA_PARTS * a->heads;
    k.l_out = k.m_out + rows * a->heads;
    k.e = k.l_out + rows * a->heads;
    return k;
}

static inline bool mla_tuned(const mla_args *a) {
    return a->rows_bf16 && a->rank == MLA_RANK && a->extra == MLA_EXTRA && (uintptr_t)a->rows % 16 == 0;
}

// Key blocks of a launch into parts (split) or the running sums.
static inline void mla_attend(gpuStream_t stream, const mla_args *args, const mla_chunk *chunk) {
    mla_args a = *args;
    mla_chunk k = *chunk;
    const uint32_t items = k.split ? k.count * k.blocks : k.count;
    if (!mla_tuned(args)) {
        GPU_LAUNCH_EARLY(k_mla_attend_generic, gpuDim3(a.heads, items), gpuDim3(MLA_GENERIC_THREADS), stream, a, k);
        return;
    }
    const uint32_t groups = k_ceil_div(a.heads, MLA_HEADS), all = k.count * k.blocks;
    uint32_t parts = 1; // as many as fill a device
    while (parts < MLA_KEYS / MLA_LEAST_KEYS && groups * all * parts < MLA_SCORE_BLOCKS) parts *= 2;
    GPU_LAUNCH_EARLY(k_mla_scores, gpuDim3(groups * parts, all), gpuDim3(MLA_SCORE_THREADS), stream, a, k, parts);
    GPU_LAUNCH_EARLY(k_mla_sums, gpuDim3(groups * MLA_SLICES, items), gpuDim3(MLA_THREADS), stream, a, k);
}

// Attention of a chunk: every key block of its rows, ascending.  What a split form leaves in parts is for k_mla_finish.
static inline void mla_attend_all(gpuStream_t stream, const mla_args *args, mla_chunk *k) {
    const bool tuned = mla_tuned(args);
    uint64_t all = (mla_keys(*args, *k, k->count - 1) + MLA_KEYS - 1) / MLA_KEYS;
    uint32_t step = (k->split || tuned ? (uint32_t)MLA_PARTS : (uint32_t)MLA_LAUNCH_ITEMS) / k->count;
    const uint64_t launches = (all + step - 1) / step;
    step = (uint32_t)((all + launches - 1) / launches); // none of them small
    for (k->block = 0;; k->block += step) {
        k->blocks = all - k->block < step ? (uint32_t)(all - k->block) : step;
        mla_attend(stream, args, k);
        if (k->split && (!tuned || k->block + step < all))
            GPU_LAUNCH_EARLY(k_mla_merge, gpuDim3(args->heads, k->count), gpuDim3(MLA_GENERIC_THREADS), stream, *args,
                             *k);
        if (!k->split && tuned) { // the next launch reads what this one has left
            float *m = k->run.m, *l = k->run.l;
            k->run.m = k->m_out;
            k->run.l = k->l_out;
            k->m_out = m;
            k->l_out = l;
        }
        if (k->block + step >= all) return;
    }
}

// One row or a few of them, tuned: what follows each other is little else than latency, so there are few launches.
static inline void mla_few(gpuStream_t stream, const mla_args *args) {
    mla_args a = *args;
    mla_chunk k = mla_chunk_of(args, 0);
    k.split = 1;
    GPU_LAUNCH_EARLY(k_mla_absorb_few, gpuDim3(a.heads + 1, k.count), gpuDim3(MLA_THREADS), stream, a, k);
    mla_attend_all(stream, args, &k);
    GPU_LAUNCH_EARLY(k_mla_finish, gpuDim3(a.heads * k_ceil_div(a.value, MLA_FINISH_ROWS), k.count),
                     gpuDim3(MLA_THREADS), stream, a, k);
}

static inline void k_mla_range(gpuStream_t stream, const mla_args *args) {
    mla_args a = *args;
    if (a.n == 0 || a.heads == 0) return;
    if (a.n <= MLA_FEW_ROWS && mla_tuned(args)) {
        mla_few(stream, args);
        return;
    }
    GPU_LAUNCH_EARLY(k_mla_rows, gpuDim3(a.n), gpuDim3(MLA_ROW_THREADS), stream, a);
    uint32_t value_rows =
        MLA_VALUE_FLOATS / a.rank < MLA_VALUE_ROWS ? MLA_VALUE_FLOATS / a.rank : (uint32_t)MLA_VALUE_ROWS;
    for (uint32_t first = 0; first < a.n; first += MLA_ROWS) {
        mla_chunk k = mla_chunk_of(args, first);
        if (k.count < 4)
            GPU_LAUNCH_EARLY(k_mla_absorb<1>, gpuDim3(a.heads, k.count), gpuDim3(MLA_THREADS), stream, a, k);
        else
            GPU_LAUNCH_EARLY(k_mla_absorb<8>, gpuDim3(a.heads, k_ceil_div(k.count, 8)), gpuDim3(MLA_THREADS), stream, a,
                             k);
        const uint64_t blocks = (mla_keys(a, k, k.count - 1) + MLA_KEYS - 1) / MLA_KEYS;
        k.split = k.count <= MLA_SPLIT_ROWS && (blocks > 1 || mla_tuned(args));
        mla_attend_all(stream, args, &k);
        if (k.split && mla_tuned(args))
            GPU_LAUNCH_EARLY(k_mla_finish, gpuDim3(a.heads * k_ceil_div(a.value, MLA_FINISH_ROWS), k.count),
                             gpuDim3(MLA_THREADS), stream, a, k);
        else if (mla_tuned(args))
            GPU_LAUNCH_EARLY(k_mla_value<true>, gpuDim3(a.heads, k_ceil_div(k.count, value_rows)), gpuDim3(MLA_THREADS),
                             stream, a, k, value_rows);
        else
            GPU_LAUNCH_EARLY(k_mla_value<false>, gpuDim3(a.heads, k_ceil_div(k.count, value_rows)),
                             gpuDim3(MLA_THREADS), stream, a, k, value_rows);
    }
}
