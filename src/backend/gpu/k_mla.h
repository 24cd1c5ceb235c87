// k_mla.h - MLA over a range of tokens, absorbed form: cache rows, queries against the latent, blocks of 256 absolute
// keys, their merge in ascending order, value product and gate.
//
// Work: a block of keys of one row gives (m, l, a[rank]) a head.  Split form (few rows): blocks of keys are independent
//   work items that leave their parts in scratch, and k_mla_merge takes them in ascending order.  Fused form (many
//   rows): a block of threads walks the key blocks of its row and merges as it goes.  Both compute the same operations
//   in the same order.
// Scratch: mla_scratch_bytes(), pure, independent of the context: rows go in chunks of MLA_ROWS, key blocks in pieces.
// Shapes: the tuned kernel (rank 512, extra 64, bf16 rows) holds 4 heads of a query in registers and meets each cached
//   row with 16 heads; the generic one takes any shape, and f32 rows.
// Owns: nothing.  Bits: docs/numerics.md, section 4; the oracle is src/backend/cpu/cpu_mla.c.
#pragma once
#include "backend/gpu/k_common.h"

// Sizes of the pieces of work; results do not depend on them, and tests make them small.
#ifndef MLA_ROWS
#define MLA_ROWS 128 // rows that are worked on together
#endif
#ifndef MLA_PARTS
#define MLA_PARTS 128 // (row, key block) items of a split launch; at least MLA_SPLIT_ROWS
#endif
#ifndef MLA_LAUNCH_ITEMS
#define MLA_LAUNCH_ITEMS 4096 // (row, key block) items of a fused launch, so that none is long; at least MLA_ROWS
#endif
enum {
    MLA_KEYS = 256,      // keys of a block
    MLA_SPLIT_ROWS = 16, // at most so many rows use the split form
    MLA_RANK = 512,
    MLA_EXTRA = 64,
    MLA_WIDTH = MLA_RANK + MLA_EXTRA, // the tuned shape
    MLA_HEADS = 16,                   // heads a tuned block serves
    MLA_THREADS = 256,
    MLA_MAX_RANK = 8192
};

// Bounds of the kernels with many registers: 120 of them on AMD, where shared memory decides what is resident; 128 on
// NVIDIA.
#if GPU_HIP
#define MLA_BOUNDS GPU_BOUNDS(MLA_THREADS, 1) __attribute__((amdgpu_num_vgpr(120)))
#else
#define MLA_BOUNDS GPU_BOUNDS(MLA_THREADS, 2)
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
    float *query;       // [count][heads][rank + extra]
    mla_sums run, part; // of rows; of (row, key block) items
    uint64_t block;     // first key block of a launch
    uint32_t blocks;    // key blocks of a launch
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
GPU_KERNEL GPU_BOUNDS(MLA_ROW_THREADS, 4) k_mla_rows(mla_args a) {
    gpu_begin();
    uint32_t width = mla_width(a);
    const float *c = a.c + (size_t)gpu_bx() * width;
    size_t at = ((size_t)a.position + gpu_bx()) * width;
    float r = k_rms_factor(k_wave_dot32(c, c, a.rank), a.rank, a.norm_eps); // every wave for itself
    for (uint32_t i = gpu_tid(); i < width; i += gpu_nt())
        mla_row_set(a, at + i, i < a.rank ? k_vector_get(a.kv_norm, i) * (c[i] * r) : c[i]);
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

// ---------------------------------------------------------------- tuned form: a block for an item and 16 heads
enum {
    MLA_TILE = 16,                       // keys in shared memory
    MLA_LANE_WORDS = MLA_WIDTH / 32 / 2, // a lane's 18 values of a row as pairs: the columns lane + 32 i
    MLA_KEY_WORDS = 32 * MLA_LANE_WORDS,
    MLA_E_STEP = MLA_HEADS + 4
};
union mla_pair {
    uint32_t both;
    gpu_bf16 one[2];
};
struct mla_tuned_shared {
    alignas(16) float e[MLA_KEYS][MLA_E_STEP];
    union {
        mla_pair tile[MLA_TILE][MLA_KEY_WORDS];
        float part[8][2][K_BF16_BLOCK];
    };
    float m[MLA_HEADS], l[MLA_HEADS], f[MLA_HEADS], f_b[MLA_HEADS], m_b[MLA_HEADS], l_b[MLA_HEADS];
};
static_assert(sizeof(mla_tuned_shared) <= 48 << 10, "shared memory");

// Butterfly sums of 16 values a lane at once: lanes 2 i and 2 i + 1 get the sum of v[i].  Adds in the order of
// gpu_wave_sum.
GPU_DEV float mla_sum_transposed(float (&v)[16]) {
    GPU_UNROLL
    for (int m = 16; m > 1; m >>= 1) {
        bool upper = (gpu_lane() & (unsigned)m) != 0;
        GPU_UNROLL
        for (int i = 0; i < m / 2; i++) {
            float a = v[i], b = v[i + m / 2]; // values first: a choice between places would be an index
            v[i] = (upper ? b : a) + gpu_shfl_xor(upper ? a : b, m);
        }
    }
    return v[0] + gpu_shfl_xor(v[0], 1);
}

// Rows [first, first + count) of the cache to shared memory, in the order in which dot32's lanes take them.
GPU_DEV void mla_tile_load(mla_pair (*tile)[MLA_KEY_WORDS], const gpu_bf16 *rows, uint32_t count) {
    for (uint32_t i = gpu_tid(); i < count * (MLA_WIDTH / 8); i += MLA_THREADS) {
        uint32_t key = i / (MLA_WIDTH / 8), col = i % (MLA_WIDTH / 8) * 8;
        gpu_u4 u = gpu_load_u4(rows + i * 8); // the rows follow each other
        mla_pair *to = tile[key] + col % 32 * MLA_LANE_WORDS + col / 64;
        GPU_UNROLL
        for (uint32_t j = 0; j < 8; j++)
            to[j * MLA_LANE_WORDS].one[col / 32 % 2] = (gpu_bf16)(u.v[j / 2] >> j % 2 * 16);
    }
}

// Scores of 4 heads and 4 keys of a tile: (head, key) = (i / 4, i % 4) in the lanes 2 i and 2 i + 1.
GPU_DEV float mla_tile_scores(const float (&q)[4][2 * MLA_LANE_WORDS], const mla_pair (*tile)[MLA_KEY_WORDS]) {
    float acc[16];
    GPU_UNROLL
    for (int key = 0; key < 4; key++) {
        const mla_pair *w = tile[key] + gpu_lane() * MLA_LANE_WORDS;
        float s[4] = {};
        GPU_UNROLL
        for (int i = 0; i < MLA_LANE_WORDS; i++) {
            uint32_t pair = w[i].both;
            float lo = gpu_as_f32(pair << 16), hi = gpu_as_f32(pair & 0xffff0000u);
            GPU_UNROLL
            for (int h = 0; h < 4; h++) s[h] = gpu_fma(q[h][2 * i], lo, s[h]);
            GPU_UNROLL
            for (int h = 0; h < 4; h++) s[h] = gpu_fma(q[h][2 * i + 1], hi, s[h]);
        }
        GPU_UNROLL
        for (int h = 0; h < 4; h++) acc[h * 4 + key] = s[h];
    }
    return mla_sum_transposed(acc);
}

// Scores of a key block to sh.e.  Waves: 4 groups of 4 heads, 2 halves of a tile.  The query is read again for each
// block: its registers are needed for the sums.
GPU_DEV void mla_block_scores(mla_tuned_shared &sh, const float *query, uint32_t heads, const gpu_bf16 *rows,
                              uint32_t count, float scale) {
    uint32_t wave = mla_uniform(gpu_wave()), head0 = wave % 4 * 4, head = head0 + gpu_lane() / 8;
    float q[4][2 * MLA_LANE_WORDS];
    GPU_UNROLL
    for (uint32_t h = 0; h < 4; h++) {
        const float *from = query + (size_t)(head0 + h < heads ? head0 + h : 0) * MLA_WIDTH;
        GPU_UNROLL
        for (int i = 0; i < 2 * MLA_LANE_WORDS; i++) q[h][i] = from[(int)gpu_lane() + 32 * i];
    }
    for (uint32_t first = 0; first < count; first += MLA_TILE) {
        uint32_t tile = count - first < MLA_TILE ? count - first : (uint32_t)MLA_TILE;
        gpu_sync();
        mla_tile_load(sh.tile, rows + (size_t)first * MLA_WIDTH, tile);
        gpu_sync();
        for (uint32_t key = wave / 4 * 8, end = key + 8; key < end; key += 4) {
            float s = mla_tile_scores(q, sh.tile + key) * scale;
            uint32_t at = key + gpu_lane() / 2 % 4;
            if (at < tile && gpu_lane() % 2 == 0) sh.e[first + at][head] = s;
        }
    }
    gpu_sync();
}

// Weighted sums of 256 columns of a key block for 8 heads: the keys i with i % 4 == wave % 4, 8 columns a lane.
GPU_DEV void mla_block_sums(float (&acc)[8][8], const mla_tuned_shared &sh, const gpu_bf16 *rows, uint32_t count) {
    uint32_t wave = mla_uniform(gpu_wave()), head = wave / 4 * 8;
    for (uint32_t i = wave % 4; i < count; i += 4) {
        gpu_u4 u = gpu_load_u4(rows + (i * MLA_WIDTH + gpu_lane() * 8));
        gpu_f4 e0 = gpu_load_f4(&sh.e[i][head]), e1 = gpu_load_f4(&sh.e[i][head + 4]);
        GPU_UNROLL
        for (int t = 0; t < 4; t++) {
            float lo = gpu_as_f32(u.v[t] << 16), hi = gpu_as_f32(u.v[t] & 0xffff0000u);
            GPU_UNROLL
            for (int h = 0; h < 8; h++) {
                float e = h < 4 ? e0.v[h % 4] : e1.v[h % 4];
                acc[h][2 * t] = gpu_fma(e, lo, acc[h][2 * t]);
                acc[h][2 * t + 1] = gpu_fma(e, hi, acc[h][2 * t + 1]);
            }
        }
    }
}

GPU_KERNEL MLA_BOUNDS k_mla_attend_tuned(mla_args a, mla_chunk k) {
    gpu_begin();
    GPU_SHARED(mla_tuned_shared, sh);
    uint32_t head0 = gpu_bx() * MLA_HEADS, heads = a.heads - head0 < MLA_HEADS ? a.heads - head0 : (uint32_t)MLA_HEADS;
    mla_range_of range = mla_range_here(a, k, gpu_by());
    if (range.first >= range.last) return; // the whole block
    size_t to = (size_t)(k.split ? gpu_by() : range.row) * a.heads + head0;
    mla_sums out = k.split ? k.part : k.run;
    const float *query = k.query + ((size_t)range.row * a.heads + head0) * MLA_WIDTH;
    if (!k.split && k.block != 0 && gpu_tid() < heads) {
        sh.m[gpu_tid()] = out.m[to + gpu_tid()];
        sh.l[gpu_tid()] = out.l[to + gpu_tid()];
    }
    for (uint64_t b = range.first; b < range.last; b++) {
        uint64_t left = mla_keys(a, k, range.row) - b * MLA_KEYS;
        uint32_t count = left < MLA_KEYS ? (uint32_t)left : (uint32_t)MLA_KEYS;
        const gpu_bf16 *rows = (const gpu_bf16 *)a.rows + (size_t)b * MLA_KEYS * MLA_WIDTH;
        mla_block_scores(sh, query, heads, rows, count, a.scale);
        for (uint32_t h = gpu_wave(); h < MLA_HEADS; h += MLA_THREADS / GPU_WAVE) {
            float m, l;
            mla_softmax(&sh.e[0][h], MLA_E_STEP, count, &m, &l);
            if (gpu_lane() == 0) {
                sh.m_b[h] = m;
                sh.l_b[h] = l;
            }
        }
        gpu_sync();
        bool fresh = k.split || b == 0;
        if (gpu_tid() < heads) {
            uint32_t h = gpu_tid();
            mla_step s = {sh.m_b[h], sh.l_b[h], 0.0f, 0.0f};
            if (!fresh) s = mla_merge(sh.m[h], sh.l[h], sh.m_b[h], sh.l_b[h]);
            sh.m[h] = s.m;
            sh.l[h] = s.l;
            sh.f[h] = s.f;
            sh.f_b[h] = s.f_b;
        }
        for (uint32_t col0 = 0; col0 < MLA_RANK; col0 += K_BF16_BLOCK) {
            float acc[8][8] = {};
            mla_block_sums(acc, sh, rows + col0, count);
            GPU_UNROLL
            for (uint32_t h = 0; h < 8; h += 2) { // two heads of each half of the waves
                gpu_sync();
                GPU_UNROLL
                for (uint32_t i = 0; i < 2; i++) {
                    GPU_UNROLL
                    for (uint32_t t = 0; t < 8; t++) sh.part[gpu_wave()][i][gpu_lane() * 8 + t] = acc[h + i][t];
                }
                gpu_sync();
                GPU_UNROLL
                for (uint32_t i = 0; i < 4; i++) {
                    uint32_t wave = i / 2 * 4, head = i / 2 * 8 + h + i % 2, col = gpu_tid();
                    if (head >= heads) continue;
                    float sum = k_sum4(sh.part[wave][i % 2][col], sh.part[wave + 1][i % 2][col],
                                       sh.part[wave + 2][i % 2][col], sh.part[wave + 3][i % 2][col]);
                    float *at = out.a + (to + head) * MLA_RANK + col0 + col;
                    *at = fresh ? sum : gpu_fma(*at, sh.f[head], sum * sh.f_b[head]);
                }
            }
        }
    }
    if (gpu_tid() < heads) {
        out.m[to + gpu_tid()] = sh.m[gpu_tid()];
        out.l[to + gpu_tid()] = sh.l[gpu_tid()];
    }
}

// ---------------------------------------------------------------- split form: parts into the running sums
// A block for a head and a row.
struct mla_merge_shared {
    float m, l, f[MLA_PARTS], f_b[MLA_PARTS];
};
GPU_KERNEL GPU_BOUNDS(MLA_GENERIC_THREADS, 4) k_mla_merge(mla_args a, mla_chunk k) {
    gpu_begin();
    GPU_SHARED(mla_merge_shared, sh);
    uint32_t head = gpu_bx(), row = gpu_by(), count = k.blocks;
    uint64_t all = (mla_keys(a, k, row) + MLA_KEYS - 1) / MLA_KEYS;
    if (k.block >= all) return; // the whole block
    if (count > all - k.block) count = (uint32_t)(all - k.block);
    size_t to = (size_t)row * a.heads + head, part = (size_t)row * k.blocks * a.heads + head; // of the first part
    bool fresh = k.block == 0;
    if (gpu_tid() == 0) {
        mla_step s = {fresh ? k.part.m[part] : k.run.m[to], fresh ? k.part.l[part] : k.run.l[to], 0.0f, 0.0f};
        for (uint32_t b = fresh ? 1 : 0; b < count; b++) {
            s = mla_merge(s.m, s.l, k.part.m[part + (size_t)b * a.heads], k.part.l[part + (size_t)b * a.heads]);
            sh.f[b] = s.f;
            sh.f_b[b] = s.f_b;
        }
        k.run.m[to] = s.m;
        k.run.l[to] = s.l;
    }
    gpu_sync();
    size_t step = (size_t)a.heads * a.rank;
    for (uint32_t col = gpu_tid(); col < a.rank; col += gpu_nt()) {
        const float *from = k.part.a + part * a.rank + col;
        float *at = k.run.a + to * a.rank + col, sum = fresh ? from[0] : *at;
        for (uint32_t b = fresh ? 1 : 0; b < count; b++) sum = gpu_fma(sum, sh.f[b], from[b * step] * sh.f_b[b]);
        *at = sum;
    }
}

// ---------------------------------------------------------------- value product and gate
// A block for a head and some rows.
enum { MLA_VALUE_ROWS = 8, MLA_VALUE_FLOATS = MLA_MAX_RANK };
struct mla_value_shared {
    float lat[MLA_VALUE_FLOATS];
};
static_assert(sizeof(mla_value_shared) <= 48 << 10, "shared memory");
GPU_KERNEL GPU_BOUNDS(MLA_THREADS, 2) k_mla_value(mla_args a, mla_chunk k, uint32_t rows_each) {
    gpu_begin();
    GPU_SHARED(mla_value_shared, sh);
    uint32_t head = gpu_bx(), row0 = gpu_by() * rows_each,
             rows = k.count - row0 < rows_each ? k.count - row0 : rows_each;
    for (uint32_t i = 0; i < rows; i++) {
        size_t at = (size_t)(row0 + i) * a.heads + head;
        float l = k.run.l[at];
        for (uint32_t c = gpu_tid(); c < a.rank; c += gpu_nt()) sh.lat[i * a.rank + c] = k.run.a[at * a.rank + c] / l;
    }
    gpu_sync();
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

// ---------------------------------------------------------------- host
static_assert(MLA_PARTS >= MLA_SPLIT_ROWS && MLA_LAUNCH_ITEMS >= MLA_ROWS, "a launch takes a key block of every row");

static inline bool mla_fits(uint32_t heads, uint32_t extra, uint32_t rank) {
    return heads >= 1 && rank >= 1 && rank <= MLA_MAX_RANK && extra <= MLA_MAX_RANK && heads <= 1u << 16;
}

// Bytes for ranges of at most `rows` rows of a shape that fits.
static inline uint64_t mla_scratch_bytes(uint32_t rows, uint32_t heads, uint32_t extra, uint32_t rank) {
    uint64_t chunk = rows < MLA_ROWS ? rows : MLA_ROWS, sums = (uint64_t)heads * (rank + 2);
    return 4 * (chunk * heads * ((uint64_t)rank + extra) + (chunk + MLA_PARTS) * sums);
}

// Scratch order: query, then m, l, a of the rows, then m, l, a of the parts.
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
    return k;
}

static inline bool mla_tuned(const mla_args *a) {
    return a->rows_bf16 && a->rank == MLA_RANK && a->extra == MLA_EXTRA && (uintptr_t)a->rows % 16 == 0;
}

static inline void mla_attend(gpuStream_t stream, const mla_args *args, const mla_chunk *chunk) {
    mla_args a = *args;
    mla_chunk k = *chunk;
    uint32_t items = k.split ? k.count * k.blocks : k.count;
    if (mla_tuned(args))
        GPU_LAUNCH_EARLY(k_mla_attend_tuned, gpuDim3(k_ceil_div(a.heads, MLA_HEADS), items), gpuDim3(MLA_THREADS),
                         stream, a, k);
    else
        GPU_LAUNCH_EARLY(k_mla_attend_generic, gpuDim3(a.heads, items), gpuDim3(MLA_GENERIC_THREADS), stream, a, k);
}

// Attention of a chunk: every key block of its rows, ascending, into k.run.
static inline void mla_attend_all(gpuStream_t stream, const mla_args *args, mla_chunk k) {
    mla_args a = *args;
    uint64_t all = (mla_keys(a, k, k.count - 1) + MLA_KEYS - 1) / MLA_KEYS;
    k.split = k.count <= MLA_SPLIT_ROWS && all > 1;
    uint32_t step = (k.split ? (uint32_t)MLA_PARTS : (uint32_t)MLA_LAUNCH_ITEMS) / k.count;
    for (k.block = 0; k.block < all; k.block += step) {
        k.blocks = all - k.block < step ? (uint32_t)(all - k.block) : step;
        mla_attend(stream, args, &k);
        if (k.split)
            GPU_LAUNCH_EARLY(k_mla_merge, gpuDim3(a.heads, k.count), gpuDim3(MLA_GENERIC_THREADS), stream, a, k);
    }
}

static inline void k_mla_range(gpuStream_t stream, const mla_args *args) {
    mla_args a = *args;
    if (a.n == 0 || a.heads == 0) return;
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
        mla_attend_all(stream, args, k);
        GPU_LAUNCH_EARLY(k_mla_value, gpuDim3(a.heads, k_ceil_div(k.count, value_rows)), gpuDim3(MLA_THREADS), stream,
                         a, k, value_rows);
    }
}
