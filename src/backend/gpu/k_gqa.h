// k_gqa.h - grouped-query attention over a range of tokens: cache rows, rotated queries, blocks of 256 absolute keys
// cut to what a row sees, their merge in ascending order, the sink.
//
// Work: a block of keys of one row gives (m, l, a[value]) a query head.  Split form (few rows): blocks of keys are
//   independent work items that leave their parts in scratch, and k_gqa_merge takes them in ascending order.  Fused
//   form: a block of threads walks the key blocks of its rows and merges as it goes.  Both compute the same operations
//   in the same order.
// Scratch: gqa_scratch_bytes(), pure, independent of the context: rows go in chunks of GQA_ROWS, key blocks in pieces.
// Shapes: the tuned kernels (keys of 192, values of 128, bf16 rows) meet each cached row with up to 16 query heads of
//   its key head, or with those of several rows; where that leaves most of the device idle, with 8.  The generic one
//   takes any shape, and f32 rows.
// Owns: nothing.  Bits: docs/numerics.md, section 4; the oracle is src/backend/cpu/cpu_gqa.c.
#pragma once
#include "backend/gpu/k_common.h"

// Sizes of the pieces of work; results do not depend on them, and tests make them small.
#ifndef GQA_ROWS
#define GQA_ROWS 128 // rows that are worked on together
#endif
#ifndef GQA_PARTS
#define GQA_PARTS 256 // (row, key block) items of a split launch; at least GQA_SPLIT_ROWS
#endif
#ifndef GQA_LAUNCH_ITEMS
#define GQA_LAUNCH_ITEMS 4096 // (row, key block) items of a fused launch, so that none is long; at least GQA_ROWS
#endif
#ifndef GQA_SPLIT_ROWS
#define GQA_SPLIT_ROWS 32 // at most so many rows use the split form
#endif
#ifndef GQA_FEW_BLOCKS // a tuned launch of fewer blocks gives them half the queries
#if GPU_HIP
#define GQA_FEW_BLOCKS 64
#else
#define GQA_FEW_BLOCKS 256
#endif
#endif
enum {
    GQA_KEYS = 256,       // keys of a block
    GQA_FUSED_BLOCKS = 2, // so many key blocks are never split
    GQA_KEY = 192,
    GQA_VALUE = 128,   // the tuned shape
    GQA_MOST_SETS = 4, // a tuned block serves 2 or 4 sets of 4 queries that share a row
    GQA_THREADS = 256,
    GQA_PLAIN_THREADS = 128,
    GQA_GRID_Y = 65535,
    GQA_POSITIONS = 1 << 30 // longest sequence
};

// Bounds of the kernels with many registers: 120 of them on AMD, 128 on NVIDIA.
#if GPU_HIP
#define GQA_BOUNDS GPU_BOUNDS(GQA_THREADS, 1) __attribute__((amdgpu_num_vgpr(120)))
#else
#define GQA_BOUNDS GPU_BOUNDS(GQA_THREADS, 2)
#endif

// Shapes and meaning as ms_gqa and ms_gqa_io; every pointer is a device address.
typedef struct gqa_args {
    uint32_t heads, kv_heads, key, value, rotary, window, n;
    uint32_t group; // heads / kv_heads; set by k_gqa_range
    float scale, value_scale;
    k_vector sink; // data == NULL: none
    const float *q, *k, *v, *rope;
    void *rows;
    uint32_t rows_bf16; // fast
    uint32_t ring, position;
    float *out;
    float *scratch; // gqa_scratch_bytes()
} gqa_args;

// What an item leaves: [items][heads][gqa_stride()], a[value] in front, m and l at the end.
K_BOTH uint32_t gqa_stride(uint32_t value) { return (value + 3) / 4 * 4 + 4; }
enum { GQA_AT_M = 4, GQA_AT_L = 3 }; // from the end

// Rows [first, first + count) of the range and the key blocks of a launch.
typedef struct gqa_chunk {
    uint32_t first, count;
    uint32_t tile;     // rows of a work item
    uint32_t shift;    // tuned: 1 << shift slots of a row
    float *query;      // [count][heads][key], rotated
    float *run, *part; // of rows; of (row, key block) items
    uint32_t block;    // first key block
    uint32_t blocks;
    uint32_t split;
} gqa_chunk;

// Keys that a row of the chunk sees: positions [begin, end).
typedef struct gqa_span {
    uint32_t begin, end;
} gqa_span;
K_BOTH gqa_span gqa_span_of(const gqa_args &a, const gqa_chunk &k, uint32_t row) {
    const uint32_t end = a.position + k.first + row + 1;
    return {a.window && end > a.window ? end - a.window : 0, end};
}
K_BOTH uint32_t gqa_first_block(gqa_span s) { return s.begin / GQA_KEYS; }
K_BOTH uint32_t gqa_end_block(gqa_span s) { return (s.end - 1) / GQA_KEYS + 1; }

// What of a key block a row sees, from the block's first key; none: count == 0.
typedef struct gqa_cut {
    uint32_t offset, count;
} gqa_cut;
GPU_DEV gqa_cut gqa_cut_of(gqa_span s, uint32_t block) {
    const uint32_t base = block * GQA_KEYS, last = base + GQA_KEYS;
    const uint32_t from = s.begin > base ? s.begin : base, to = s.end < last ? s.end : last;
    if (from >= to) return {0, 0};
    return {from - base, to - from};
}

K_BOTH uint32_t gqa_width(const gqa_args &a) { return a.kv_heads * (a.key + a.value); }
// Elements before the row of a position.
GPU_DEV size_t gqa_row_at(const gqa_args &a, uint32_t position) {
    return (size_t)(a.ring ? position % a.ring : position) * gqa_width(a);
}

// Element d of a head, rotated.
GPU_DEV float gqa_rotated(const float *x, const float *rope, uint32_t rotary, uint32_t d) {
    const uint32_t half = rotary / 2;
    if (d >= rotary) return x[d];
    if (d < half) return gpu_fma(-x[d + half], rope[d + half], x[d] * rope[d]);
    return gpu_fma(x[d - half], rope[d], x[d] * rope[d - half]);
}

// ---------------------------------------------------------------- new cache rows and queries: a block a row and head
GPU_DEV void gqa_row_set(const gqa_args &a, size_t i, float x) {
    if (a.rows_bf16)
        ((gpu_bf16 *)a.rows)[i] = gpu_f32_bf16(x);
    else
        ((float *)a.rows)[i] = x;
}
// Grid: rows of the chunk; key heads, then query heads.
GPU_KERNEL GPU_BOUNDS(GQA_PLAIN_THREADS, 4) k_gqa_rows(gqa_args a, gqa_chunk k) {
    gpu_begin();
    const size_t row = (size_t)k.first + gpu_bx();
    const float *rope = a.rope + row * a.rotary;
    if (gpu_by() >= a.kv_heads) {
        const uint32_t head = gpu_by() - a.kv_heads;
        const float *q = a.q + (row * a.heads + head) * a.key;
        float *to = k.query + ((size_t)gpu_bx() * a.heads + head) * a.key;
        for (uint32_t d = gpu_tid(); d < a.key; d += gpu_nt()) to[d] = gqa_rotated(q, rope, a.rotary, d);
        return;
    }
    const uint32_t head = gpu_by();
    const float *key = a.k + (row * a.kv_heads + head) * a.key, *value = a.v + (row * a.kv_heads + head) * a.value;
    const size_t at = gqa_row_at(a, a.position + k.first + gpu_bx()), to_key = at + (size_t)head * a.key;
    const size_t to_value = at + (size_t)a.kv_heads * a.key + (size_t)head * a.value;
    for (uint32_t d = gpu_tid(); d < a.key; d += gpu_nt())
        gqa_row_set(a, to_key + d, gqa_rotated(key, rope, a.rotary, d));
    for (uint32_t c = gpu_tid(); c < a.value; c += gpu_nt()) gqa_row_set(a, to_value + c, value[c] * a.value_scale);
}

// ---------------------------------------------------------------- softmax of one block, by one wave
// Scores e[i * step], i < count, become exp(score - m).
GPU_DEV void gqa_softmax(float *e, uint32_t step, uint32_t count, float *m_out, float *l_out) {
    // Not from e[0], which lane 0 overwrites: a shuffle orders no memory.  With a NaN among the scores every result is
    // NaN anyway.
    float m = gpu_as_f32(0xff800000u), s = 0.0f;
    for (uint32_t i = gpu_lane(); i < count; i += GPU_WAVE) m = e[i * step] > m ? e[i * step] : m;
    m = gpu_wave_max(m);
    for (uint32_t i = gpu_lane(); i < count; i += GPU_WAVE) {
        const float x = k_exp(e[i * step] - m);
        e[i * step] = x;
        s = s + x;
    }
    *m_out = m;
    *l_out = gpu_wave_sum(s);
}

// How a block's (m_b, l_b) enters the running (m, l); f and f_b are the factors of the running and the new sums.
typedef struct gqa_step {
    float m, l, f, f_b;
} gqa_step;
GPU_DEV gqa_step gqa_merge(float m, float l, float m_b, float l_b) {
    gqa_step s;
    s.m = m_b > m ? m_b : m;
    s.f = k_exp(m - s.m);
    s.f_b = k_exp(m_b - s.m);
    s.l = gpu_fma(l, s.f, l_b * s.f_b);
    return s;
}
// The end of a head: its sums times f, over l.
typedef struct gqa_end {
    float f, l;
    uint32_t sink;
} gqa_end;
GPU_DEV gqa_end gqa_end_of(const gqa_args &a, uint32_t head, float m, float l) {
    if (!a.sink.data) return {1.0f, l, 0};
    const float b = k_vector_get(a.sink, head), top = b > m ? b : m, f = k_exp(m - top);
    return {f, gpu_fma(l, f, k_exp(b - top)), 1};
}
GPU_DEV float gqa_ended(gqa_end e, float sum) { return (e.sink ? sum * e.f : sum) / e.l; }

// The work of a block of threads: rows [row, row + rows) of the chunk, key blocks [first, last).
typedef struct gqa_item {
    uint32_t row, rows, first, last;
} gqa_item;
GPU_DEV gqa_item gqa_item_here(const gqa_args &a, const gqa_chunk &k) {
    const uint32_t tile = k.split ? gpu_by() / k.blocks : gpu_by();
    gqa_item t;
    t.row = tile * k.tile;
    t.rows = k.count - t.row < k.tile ? k.count - t.row : k.tile;
    t.first = k.block + (k.split ? gpu_by() % k.blocks : 0);
    t.last = k.split ? t.first + 1 : k.block + k.blocks;
    const uint32_t first = gqa_first_block(gqa_span_of(a, k, t.row)),
                   last = gqa_end_block(gqa_span_of(a, k, t.row + t.rows - 1));
    if (t.first < first) t.first = first;
    if (t.last > last) t.last = last;
    return t;
}
// Where a row's sums of a head are, and its part of a key block.
GPU_DEV float *gqa_run_at(const gqa_args &a, const gqa_chunk &k, uint32_t row, uint32_t head) {
    return k.run + ((size_t)row * a.heads + head) * gqa_stride(a.value);
}
GPU_DEV float *gqa_part_at(const gqa_args &a, const gqa_chunk &k, uint32_t row, uint32_t head, uint32_t block) {
    return k.part + (((size_t)row * k.blocks + (block - k.block)) * a.heads + head) * gqa_stride(a.value);
}
// Whether the row has key blocks before this launch; whether this launch has its last one.
GPU_DEV bool gqa_begun(const gqa_chunk &k, gqa_span s) { return gqa_first_block(s) < k.block; }
GPU_DEV bool gqa_done(const gqa_chunk &k, gqa_span s) { return gqa_end_block(s) <= k.block + k.blocks; }

// ---------------------------------------------------------------- generic form: a block for an item and a head
struct gqa_generic_shared {
    float e[GQA_KEYS], m, l;
};
GPU_DEV float gqa_row_get(const gqa_args &a, size_t i) {
    return a.rows_bf16 ? gpu_bf16_f32(((const gpu_bf16 *)a.rows)[i]) : ((const float *)a.rows)[i];
}

// Scores of the keys [0, count) from element `at` of the cache on.
GPU_DEV void gqa_generic_scores(gqa_generic_shared &sh, const gqa_args &a, const float *query, size_t at,
                                uint32_t count) {
    const size_t width = gqa_width(a);
    GPU_ROLLED
    for (uint32_t i = gpu_wave(); i < count; i += GQA_PLAIN_THREADS / GPU_WAVE) {
        float s = 0.0f;
        for (uint32_t d = gpu_lane(); d < a.key; d += GPU_WAVE)
            s = gpu_fma(query[d], gqa_row_get(a, at + i * width + d), s);
        s = gpu_wave_sum(s) * a.scale;
        if (gpu_lane() == 0) sh.e[i] = s;
    }
}

GPU_DEV float gqa_generic_sum(const gqa_generic_shared &sh, const gqa_args &a, size_t at, uint32_t count) {
    const size_t width = gqa_width(a);
    float p[4] = {};
    for (uint32_t i = 0; i < count; i += 4) {
        GPU_UNROLL
        for (uint32_t r = 0; r < 4; r++)
            if (i + r < count) p[r] = gpu_fma(sh.e[i + r], gqa_row_get(a, at + (i + r) * width), p[r]);
    }
    return k_sum4(p[0], p[1], p[2], p[3]);
}

GPU_KERNEL GPU_BOUNDS(GQA_PLAIN_THREADS, 4) k_gqa_attend_generic(gqa_args a, gqa_chunk k) {
    GPU_SHARED(gqa_generic_shared, sh);
    gpu_begin();
    const uint32_t head = gpu_bx(), kv = head / a.group;
    const gqa_item item = gqa_item_here(a, k);
    if (item.first >= item.last) return; // the whole block
    const gqa_span span = gqa_span_of(a, k, item.row);
    const size_t row = (size_t)k.first + item.row;
    float *to = k.split ? gqa_part_at(a, k, item.row, head, item.first) : gqa_run_at(a, k, item.row, head);
    float *end_of = to + gqa_stride(a.value);
    const float *query = k.query + ((size_t)item.row * a.heads + head) * a.key;
    gqa_step s = {};
    if (!k.split && gqa_begun(k, span)) {
        s.m = end_of[-GQA_AT_M];
        s.l = end_of[-GQA_AT_L];
    }
    GPU_ROLLED
    for (uint32_t b = item.first; b < item.last; b++) {
        const gqa_cut cut = gqa_cut_of(span, b);
        const size_t rows = gqa_row_at(a, b * GQA_KEYS) + cut.offset * gqa_width(a);
        gpu_sync();
        gqa_generic_scores(sh, a, query, rows + (size_t)kv * a.key, cut.count);
        gpu_sync();
        if (gpu_wave() == 0) {
            float m, l;
            gqa_softmax(sh.e, 1, cut.count, &m, &l);
            if (gpu_lane() == 0) {
                sh.m = m;
                sh.l = l;
            }
        }
        gpu_sync();
        const bool fresh = k.split || b == gqa_first_block(span);
        if (fresh)
            s = {sh.m, sh.l, 0.0f, 0.0f};
        else
            s = gqa_merge(s.m, s.l, sh.m, sh.l);
        const size_t values = rows + (size_t)a.kv_heads * a.key + (size_t)kv * a.value;
        for (uint32_t c = gpu_tid(); c < a.value; c += gpu_nt()) {
            const float sum = gqa_generic_sum(sh, a, values + c, cut.count);
            to[c] = fresh ? sum : gpu_fma(to[c], s.f, sum * s.f_b);
        }
    }
    if (!k.split && gqa_done(k, span)) {
        const gqa_end end = gqa_end_of(a, head, s.m, s.l);
        for (uint32_t c = gpu_tid(); c < a.value; c += gpu_nt())
            a.out[(row * a.heads + head) * a.value + c] = gqa_ended(end, to[c]);
    } else if (gpu_tid() == 0) {
        end_of[-GQA_AT_M] = s.m;
        end_of[-GQA_AT_L] = s.l;
    }
}

// ---------------------------------------------------------------- tuned form: a block for an item and its queries
// Slot s of the 4 * SETS of a block is the query of row s >> shift and of the head that its low bits are in the block's
// part of a group; one row has all slots.
enum {
    GQA_TILE = 32,                     // keys in shared memory, twice
    GQA_LANE_WORDS = GQA_KEY / 32 / 2, // a lane's 6 values of a key as pairs: the columns lane + 32 i
    GQA_KEY_WORDS = 32 * GQA_LANE_WORDS + 3,
    GQA_KEY_PIECES = GQA_KEY / 16, // pairs of 16 bytes of a key, 32 columns apart
    GQA_LOADS = (GQA_TILE * GQA_KEY_PIECES + GQA_THREADS - 1) / GQA_THREADS,
    GQA_AHEAD = 4, // values of a lane under way
    GQA_WAVES = GQA_THREADS / GPU_WAVE,
    GQA_LINE = 64 // elements of a cache line
};
template <int SETS> struct gqa_tuned_shared {
    enum { SLOTS = 4 * SETS, E_STEP = SLOTS + 4 };
    alignas(16) float e[GQA_KEYS][E_STEP];
    union {
        uint32_t tile[2][GQA_TILE][GQA_KEY_WORDS];
        alignas(16) float part[SLOTS][GQA_VALUE];
    };
    float m[SLOTS], l[SLOTS], f[SLOTS], f_b[SLOTS];
};
static_assert(sizeof(gqa_tuned_shared<GQA_MOST_SETS>) <= 48 << 10, "shared memory");

// Which queries a block of threads has.
typedef struct gqa_slots {
    uint32_t kv, head, heads; // query heads [head, head + heads)
    uint32_t shift, used;     // 1 << shift slots of a row; slots that may be queries
} gqa_slots;
template <int SETS> GPU_DEV gqa_slots gqa_slots_here(const gqa_args &a, const gqa_chunk &k, uint32_t rows) {
    const uint32_t most = 4 * SETS, parts = k_ceil_div(a.group, most);
    const uint32_t first = gpu_bx() % parts * most;
    gqa_slots s;
    s.kv = gpu_bx() / parts;
    s.head = s.kv * a.group + first;
    s.heads = a.group - first < most ? a.group - first : most;
    s.shift = k.shift;
    s.used = ((rows - 1) << s.shift) + s.heads;
    return s;
}
GPU_DEV uint32_t gqa_slot_row(const gqa_slots &s, uint32_t slot) { return slot >> s.shift; }
GPU_DEV uint32_t gqa_slot_head(const gqa_slots &s, uint32_t slot) { return s.head + (slot & ((1u << s.shift) - 1)); }
GPU_DEV bool gqa_slot_valid(const gqa_slots &s, uint32_t slot) {
    return slot < s.used && gqa_slot_head(s, slot) < s.head + s.heads;
}

// Butterfly sums of 16 values a lane at once: lanes 2 i and 2 i + 1 get the sum of v[i].  Adds in the order of
// gpu_wave_sum.
GPU_DEV float gqa_sum_transposed(float (&v)[16]) {
    GPU_UNROLL
    for (int m = 16; m > 1; m >>= 1) {
        const bool upper = (gpu_lane() & (unsigned)m) != 0;
        GPU_UNROLL
        for (int i = 0; i < m / 2; i++) {
            const float a = v[i], b = v[i + m / 2]; // values first: a choice between places would be an index
            v[i] = (upper ? b : a) + gpu_shfl_xor(upper ? a : b, m);
        }
    }
    return v[0] + gpu_shfl_xor(v[0], 1);
}

// Keys on their way to shared memory: what a thread has of a tile.
typedef struct gqa_pieces {
    gpu_u4 low[GQA_LOADS], high[GQA_LOADS];
} gqa_pieces;
GPU_DEV void gqa_tile_fetch(gqa_pieces &p, const gpu_bf16 *keys, size_t width, uint32_t first, uint32_t end) {
    GPU_UNROLL
    for (uint32_t u = 0; u < GQA_LOADS; u++) {
        const uint32_t task = gpu_tid() + u * GQA_THREADS, key = first + task / GQA_KEY_PIECES,
                       piece = task % GQA_KEY_PIECES;
        if (task >= GQA_TILE * GQA_KEY_PIECES || key >= end) continue;
        const gpu_bf16 *from = keys + key * width + piece / 4 * 64 + piece % 4 * 8;
        p.low[u] = gpu_load_u4(from);
        p.high[u] = gpu_load_u4(from + 32);
    }
}
// In the order in which dot32's lanes take them.
GPU_DEV void gqa_tile_store(uint32_t (*tile)[GQA_KEY_WORDS], const gqa_pieces &p, uint32_t first, uint32_t end) {
    GPU_UNROLL
    for (uint32_t u = 0; u < GQA_LOADS; u++) {
        const uint32_t task = gpu_tid() + u * GQA_THREADS, key = task / GQA_KEY_PIECES, piece = task % GQA_KEY_PIECES;
        if (task >= GQA_TILE * GQA_KEY_PIECES || first + key >= end) continue;
        uint32_t *to = tile[key] + piece % 4 * 8 * GQA_LANE_WORDS + piece / 4;
        GPU_UNROLL
        for (int j = 0; j < 4; j++) {
            const uint32_t low = p.low[u].v[j], high = p.high[u].v[j];
            to[2 * j * GQA_LANE_WORDS] = (low & 0xffffu) | high << 16;
            to[(2 * j + 1) * GQA_LANE_WORDS] = low >> 16 | (high & 0xffff0000u);
        }
    }
}

// Scores of 4 queries and 4 keys of a tile: (query, key) = (i / 4, i % 4) in the lanes 2 i and 2 i + 1.
GPU_DEV float gqa_tile_scores(const float (&q)[4][2 * GQA_LANE_WORDS], const uint32_t (*tile)[GQA_KEY_WORDS]) {
    float acc[16];
    GPU_UNROLL
    for (int key = 0; key < 4; key++) {
        const uint32_t *w = tile[key] + gpu_lane() * GQA_LANE_WORDS;
        float s[4] = {};
        GPU_UNROLL
        for (int i = 0; i < GQA_LANE_WORDS; i++) {
            const float low = gpu_as_f32(w[i] << 16), high = gpu_as_f32(w[i] & 0xffff0000u);
            GPU_UNROLL
            for (int h = 0; h < 4; h++) s[h] = gpu_fma(q[h][2 * i], low, s[h]);
            GPU_UNROLL
            for (int h = 0; h < 4; h++) s[h] = gpu_fma(q[h][2 * i + 1], high, s[h]);
        }
        GPU_UNROLL
        for (int h = 0; h < 4; h++) acc[h * 4 + key] = s[h];
    }
    return gqa_sum_transposed(acc);
}

// Asks for the keys and values [from, end) of a block: they are read piece by piece.
GPU_DEV void gqa_block_prefetch(const gqa_args &a, uint32_t kv, const gpu_bf16 *rows, uint32_t from, uint32_t end) {
    if (from + gpu_tid() >= end) return;
    const gpu_bf16 *row = rows + (size_t)(from + gpu_tid()) * gqa_width(a), *value = row + (size_t)a.kv_heads * GQA_KEY;
    GPU_UNROLL
    for (int i = 0; i < GQA_KEY; i += GQA_LINE) gpu_prefetch(row + (size_t)kv * GQA_KEY + i);
    GPU_UNROLL
    for (int i = 0; i < GQA_VALUE; i += GQA_LINE) gpu_prefetch(value + (size_t)kv * GQA_VALUE + i);
}

// Scores of the keys [from, end) of a block to sh.e.  Waves: sets of queries, pieces of a tile.  The queries are read
// again for each block: their registers are needed for the sums.
template <int SETS>
GPU_DEV void gqa_block_scores(gqa_tuned_shared<SETS> &sh, const gqa_args &a, const gqa_slots &slots, const float *query,
                              const gpu_bf16 *keys, uint32_t from, uint32_t end) {
    const uint32_t wave = gpu_uniform(gpu_wave()), set = wave % SETS, piece = wave / SETS;
    const uint32_t each = GQA_TILE / (GQA_WAVES / SETS); // keys of a piece
    const size_t width = gqa_width(a);
    const bool live = set * 4 < slots.used;
    gqa_pieces p = {};
    gqa_tile_fetch(p, keys, width, from, end);
    float q[4][2 * GQA_LANE_WORDS];
    GPU_UNROLL
    for (uint32_t h = 0; h < 4; h++) {
        const uint32_t slot = gqa_slot_valid(slots, set * 4 + h) ? set * 4 + h : 0;
        const float *from_query =
            query + ((size_t)gqa_slot_row(slots, slot) * a.heads + gqa_slot_head(slots, slot)) * GQA_KEY;
        GPU_UNROLL
        for (uint32_t i = 0; i < 2 * GQA_LANE_WORDS; i++) q[h][i] = from_query[gpu_lane() + 32 * i];
    }
    for (uint32_t first = from, buffer = 0; first < end; first += GQA_TILE, buffer ^= 1) {
        const uint32_t count = end - first < GQA_TILE ? end - first : (uint32_t)GQA_TILE;
        gqa_tile_store(sh.tile[buffer], p, first, end);
        gpu_sync(); // the tile is there for all, and all are through with the one before the last
        gqa_tile_fetch(p, keys, width, first + GQA_TILE, end);
        if (!live) continue;
        GPU_ROLLED
        for (uint32_t key = piece * each; key < (piece + 1) * each && key < count; key += 4) {
            const float s = gqa_tile_scores(q, sh.tile[buffer] + key) * a.scale;
            const uint32_t at = key + gpu_lane() / 2 % 4;
            if (at < count && gpu_lane() % 2 == 0) sh.e[first + at][set * 4 + gpu_lane() / 8] = s;
        }
    }
    gpu_sync();
}

// One key of a lane's sums: `w` has its weights for Q queries.
template <int Q> GPU_DEV void gqa_value_add(float (&acc)[Q][8], const float *w, gpu_u4 v) {
    float e[Q];
    if (Q == 4) {
        const gpu_f4 four = gpu_load_f4(w);
        GPU_UNROLL
        for (int h = 0; h < Q; h++) e[h] = four.v[h % 4];
    } else {
        const gpu_u2 two = gpu_load_u2(w);
        GPU_UNROLL
        for (int h = 0; h < Q; h++) e[h] = gpu_as_f32(two.v[h % 2]);
    }
    GPU_UNROLL
    for (int t = 0; t < 4; t++) {
        const float low = gpu_as_f32(v.v[t] << 16), high = gpu_as_f32(v.v[t] & 0xffff0000u);
        GPU_UNROLL
        for (int h = 0; h < Q; h++) acc[h][2 * t] = gpu_fma(e[h], low, acc[h][2 * t]);
        GPU_UNROLL
        for (int h = 0; h < Q; h++) acc[h][2 * t + 1] = gpu_fma(e[h], high, acc[h][2 * t + 1]);
    }
}

// Weighted sums of the values of a row's cut for Q queries, 8 columns a lane: half waves have the keys i with
// i % 4 == klass, counted from the cut's first one.
template <int Q>
GPU_DEV void gqa_block_sums(float (&acc)[Q][8], const float *e, uint32_t e_step, const gpu_bf16 *values, size_t width,
                            uint32_t klass, uint32_t count) {
    uint32_t i = klass;
    GPU_ROLLED
    for (; i + 4 * (GQA_AHEAD - 1) < count; i += 4 * GQA_AHEAD) {
        gpu_u4 v[GQA_AHEAD];
        GPU_UNROLL
        for (uint32_t j = 0; j < GQA_AHEAD; j++) v[j] = gpu_load_u4(values + (i + 4 * j) * width);
        GPU_UNROLL
        for (uint32_t j = 0; j < GQA_AHEAD; j++) gqa_value_add<Q>(acc, e + (i + 4 * j) * e_step, v[j]);
    }
    GPU_ROLLED
    for (; i < count; i += 4) gqa_value_add<Q>(acc, e + i * e_step, gpu_load_u4(values + i * width));
}

GPU_DEV void gqa_store8(float *to, const float (&x)[8]) {
    *(gpu_f4 *)to = {{x[0], x[1], x[2], x[3]}};
    *(gpu_f4 *)(to + 4) = {{x[4], x[5], x[6], x[7]}};
}
GPU_DEV void gqa_load8(float (&x)[8], const float *from) {
    const gpu_f4 a = gpu_load_f4(from), b = gpu_load_f4(from + 4);
    GPU_UNROLL
    for (int i = 0; i < 4; i++) {
        x[i] = a.v[i];
        x[4 + i] = b.v[i];
    }
}

// Softmax of each query's cut, and how it enters what is there.  A wave has the same slots every time.
template <int SETS>
GPU_DEV void gqa_block_softmax(gqa_tuned_shared<SETS> &sh, const gqa_args &a, const gqa_chunk &k,
                               const gqa_slots &slots, uint32_t row, uint32_t block) {
    GPU_ROLLED
    for (uint32_t slot = gpu_wave(); slot < sh.SLOTS; slot += GQA_WAVES) {
        if (!gqa_slot_valid(slots, slot)) continue;
        const gqa_span span = gqa_span_of(a, k, row + gqa_slot_row(slots, slot));
        const gqa_cut cut = gqa_cut_of(span, block);
        if (!cut.count) continue;
        float m, l;
        gqa_softmax(&sh.e[cut.offset][slot], sh.E_STEP, cut.count, &m, &l);
        if (gpu_lane() != 0) continue;
        gqa_step s = {m, l, 0.0f, 0.0f};
        if (!k.split && block != gqa_first_block(span)) s = gqa_merge(sh.m[slot], sh.l[slot], m, l);
        sh.m[slot] = s.m;
        sh.l[slot] = s.l;
        sh.f[slot] = s.f;
        sh.f_b[slot] = s.f_b;
    }
    gpu_sync();
}

// What launches before this one left of the rows that began there.
template <int SETS>
GPU_DEV void gqa_block_begin(gqa_tuned_shared<SETS> &sh, const gqa_args &a, const gqa_chunk &k, const gqa_slots &slots,
                             uint32_t row) {
    GPU_ROLLED
    for (uint32_t slot = gpu_wave(); slot < sh.SLOTS; slot += GQA_WAVES) {
        const uint32_t r = row + gqa_slot_row(slots, slot);
        if (gpu_lane() != 0 || !gqa_slot_valid(slots, slot) || !gqa_begun(k, gqa_span_of(a, k, r))) continue;
        const float *from = gqa_run_at(a, k, r, gqa_slot_head(slots, slot)) + gqa_stride(GQA_VALUE);
        sh.m[slot] = from[-GQA_AT_M];
        sh.l[slot] = from[-GQA_AT_L];
    }
}

// Eight columns of a query's block sum to where they go: the part, the row's sums, or the result.
template <int SETS>
GPU_DEV void gqa_block_store(const gqa_tuned_shared<SETS> &sh, const gqa_args &a, const gqa_chunk &k,
                             const gqa_slots &slots, uint32_t slot, uint32_t row, uint32_t block, uint32_t col,
                             float (&x)[8]) {
    const gqa_span span = gqa_span_of(a, k, row);
    const uint32_t head = gqa_slot_head(slots, slot);
    float *to = k.split ? gqa_part_at(a, k, row, head, block) : gqa_run_at(a, k, row, head);
    if (!k.split && block != gqa_first_block(span)) {
        float before[8];
        gqa_load8(before, to + col);
        GPU_UNROLL
        for (int t = 0; t < 8; t++) x[t] = gpu_fma(before[t], sh.f[slot], x[t] * sh.f_b[slot]);
    }
    if (!k.split && block + 1 == gqa_end_block(span)) {
        const gqa_end end = gqa_end_of(a, head, sh.m[slot], sh.l[slot]);
        GPU_UNROLL
        for (int t = 0; t < 8; t++) x[t] = gqa_ended(end, x[t]);
        gqa_store8(a.out + (((size_t)k.first + row) * a.heads + head) * GQA_VALUE + col, x);
        return;
    }
    gqa_store8(to + col, x);
    if (col != 0) return;
    to[gqa_stride(GQA_VALUE) - GQA_AT_M] = sh.m[slot];
    to[gqa_stride(GQA_VALUE) - GQA_AT_L] = sh.l[slot];
}

// Waves 2 i and 2 i + 1 sum for SETS queries, all of one row.
template <int SETS> GPU_KERNEL GQA_BOUNDS k_gqa_attend_tuned(gqa_args a, gqa_chunk k) {
    GPU_SHARED(gqa_tuned_shared<SETS>, sh);
    const gqa_item item = gqa_item_here(a, k);
    const gqa_slots slots = gqa_slots_here<SETS>(a, k, item.rows);
    const gqa_span all = {gqa_span_of(a, k, item.row).begin, gqa_span_of(a, k, item.row + item.rows - 1).end};
    const uint32_t wave = gpu_uniform(gpu_wave()), half = gpu_lane() / 16, col = gpu_lane() % 16 * 8;
    const uint32_t first = wave / 2 * SETS; // of the queries that this wave sums for
    const bool live = first < slots.used;
    const uint32_t row = live ? item.row + gqa_slot_row(slots, first) : item.row;
    bool begun = false;
    GPU_ROLLED
    for (uint32_t b = item.first; b < item.last; b++) {
        const gpu_bf16 *rows = (const gpu_bf16 *)a.rows + gqa_row_at(a, b * GQA_KEYS);
        const gqa_cut every = gqa_cut_of(all, b), cut = gqa_cut_of(gqa_span_of(a, k, row), b);
        gqa_block_prefetch(a, slots.kv, rows, every.offset, every.offset + every.count);
        if (!begun) {
            gpu_wait_previous();
            if (!k.split) gqa_block_begin<SETS>(sh, a, k, slots, item.row);
            begun = true;
        }
        gpu_sync(); // all are through with sh.part
        gqa_block_scores<SETS>(sh, a, slots, k.query + (size_t)item.row * a.heads * GQA_KEY,
                               rows + (size_t)slots.kv * GQA_KEY, every.offset, every.offset + every.count);
        gqa_block_softmax<SETS>(sh, a, k, slots, item.row, b);
        float acc[SETS][8] = {};
        const uint32_t count = live ? cut.count : 0;
        gqa_block_sums<SETS>(acc, &sh.e[cut.offset][first], sh.E_STEP,
                             rows + (size_t)cut.offset * gqa_width(a) + (size_t)a.kv_heads * GQA_KEY +
                                 (size_t)slots.kv * GQA_VALUE + col,
                             gqa_width(a), wave % 2 + half * 2, count);
        // p0 + p2 and p1 + p3, then their sum; half of the queries are left to each half wave.
        float mine[SETS / 2][8];
        GPU_UNROLL
        for (int i = 0; i < SETS / 2; i++) {
            GPU_UNROLL
            for (int t = 0; t < 8; t++) {
                const float low = acc[i][t], high = acc[SETS / 2 + i][t];
                mine[i][t] = (half ? high : low) + gpu_shfl_xor(half ? low : high, 16);
            }
        }
        const uint32_t slot = first + half * (SETS / 2);
        if (wave % 2 == 1) {
            GPU_UNROLL
            for (uint32_t i = 0; i < SETS / 2; i++) gqa_store8(&sh.part[slot + i][col], mine[i]);
        }
        gpu_sync();
        if (wave % 2 == 1 || !count) continue;
        GPU_UNROLL
        for (uint32_t i = 0; i < SETS / 2; i++) {
            float other[8];
            gqa_load8(other, &sh.part[slot + i][col]);
            GPU_UNROLL
            for (int t = 0; t < 8; t++) mine[i][t] = mine[i][t] + other[t];
            if (gqa_slot_valid(slots, slot + i)) gqa_block_store<SETS>(sh, a, k, slots, slot + i, row, b, col, mine[i]);
        }
    }
    if (!begun) gpu_wait_previous(); // every kernel waits
}

// ---------------------------------------------------------------- split form: parts into the running sums
// A block for a head and a row.
struct gqa_merge_shared {
    float m[GQA_PARTS], l[GQA_PARTS], f[GQA_PARTS], f_b[GQA_PARTS], add[GQA_PARTS], m_end, l_end;
};
GPU_KERNEL GPU_BOUNDS(GQA_PLAIN_THREADS, 4) k_gqa_merge(gqa_args a, gqa_chunk k) {
    GPU_SHARED(gqa_merge_shared, sh);
    gpu_begin();
    const uint32_t head = gpu_bx(), row = gpu_by();
    const gqa_span span = gqa_span_of(a, k, row);
    const bool fresh = !gqa_begun(k, span);
    const uint32_t first = fresh ? gqa_first_block(span) : k.block,
                   last = gqa_done(k, span) ? gqa_end_block(span) : k.block + k.blocks;
    if (first >= last) return; // the whole block
    const uint32_t count = last - first, begin = fresh ? 1 : 0, stride = gqa_stride(a.value);
    float *to = gqa_run_at(a, k, row, head);
    const float *part = gqa_part_at(a, k, row, head, first);
    const size_t step = (size_t)a.heads * stride;
    for (uint32_t b = gpu_tid(); b < count; b += gpu_nt()) {
        sh.m[b] = part[b * step + stride - GQA_AT_M];
        sh.l[b] = part[b * step + stride - GQA_AT_L];
    }
    gpu_sync();
    const float m_start = fresh ? sh.m[0] : to[stride - GQA_AT_M], l_start = fresh ? sh.l[0] : to[stride - GQA_AT_L];
    for (uint32_t b = gpu_tid(); b < count; b += gpu_nt()) {
        float before = m_start;
        GPU_UNROLL_8
        for (uint32_t i = begin; i < b; i++) before = sh.m[i] > before ? sh.m[i] : before;
        const gqa_step s = gqa_merge(before, 0.0f, sh.m[b], 0.0f);
        sh.f[b] = s.f;
        sh.f_b[b] = s.f_b;
        sh.add[b] = sh.l[b] * s.f_b;
        if (b + 1 == count) sh.m_end = s.m;
    }
    gpu_sync();
    if (gpu_tid() == 0) {
        float l = l_start;
        GPU_UNROLL_8
        for (uint32_t b = begin; b < count; b++) l = gpu_fma(l, sh.f[b], sh.add[b]);
        sh.l_end = l;
    }
    gpu_sync();
    const bool done = gqa_done(k, span);
    gqa_end end = {1.0f, 1.0f, 0};
    if (done) end = gqa_end_of(a, head, sh.m_end, sh.l_end);
    for (uint32_t c = gpu_tid(); c < a.value; c += gpu_nt()) {
        const float *from = part + c;
        float sum = fresh ? from[0] : to[c];
        GPU_UNROLL_8
        for (uint32_t b = begin; b < count; b++) sum = gpu_fma(sum, sh.f[b], from[b * step] * sh.f_b[b]);
        if (done)
            a.out[(((size_t)k.first + row) * a.heads + head) * a.value + c] = gqa_ended(end, sum);
        else
            to[c] = sum;
    }
    if (!done && gpu_tid() == 0) {
        to[stride - GQA_AT_M] = sh.m_end;
        to[stride - GQA_AT_L] = sh.l_end;
    }
}

// ---------------------------------------------------------------- host
static_assert(GQA_PARTS >= GQA_SPLIT_ROWS && GQA_LAUNCH_ITEMS >= GQA_ROWS, "a launch takes a key block of every row");
static_assert(GQA_ROWS <= GQA_GRID_Y && GQA_PARTS <= GQA_GRID_Y, "grid");

static inline bool gqa_fits(uint32_t heads, uint32_t kv_heads) {
    return kv_heads >= 1 && heads >= kv_heads && heads <= GQA_GRID_Y / 2 && heads % kv_heads == 0;
}

// Bytes for ranges of at most `rows` rows.
static inline uint64_t gqa_scratch_bytes(uint32_t rows, uint32_t heads, uint32_t key, uint32_t value) {
    const uint64_t chunk = rows < GQA_ROWS ? rows : GQA_ROWS, stride = gqa_stride(value);
    return 4 * ((chunk + GQA_PARTS) * heads * stride + chunk * heads * key);
}

static inline gqa_chunk gqa_chunk_of(const gqa_args *a, uint32_t first) {
    gqa_chunk k = {};
    k.first = first;
    k.count = a->n - first < GQA_ROWS ? a->n - first : (uint32_t)GQA_ROWS;
    k.part = a->scratch;
    k.run = k.part + (size_t)GQA_PARTS * a->heads * gqa_stride(a->value);
    k.query = k.run + (size_t)(a->n < GQA_ROWS ? a->n : (uint32_t)GQA_ROWS) * a->heads * gqa_stride(a->value);
    return k;
}

static inline bool gqa_tuned(const gqa_args *a) {
    const bool aligned = ((uintptr_t)a->rows | (uintptr_t)a->scratch | (uintptr_t)a->out) % 16 == 0;
    return a->rows_bf16 && a->key == GQA_KEY && a->value == GQA_VALUE && aligned;
}

// Rows whose queries share a tuned block of `slots`; sets of 4 have one row.
static inline void gqa_tile(const gqa_args *a, gqa_chunk *k, uint32_t slots) {
    const bool several = a->group == 4 || a->group == 8;
    const uint32_t per = several ? a->group : slots;
    k->tile = slots / per;
    k->shift = per == 4 ? 2 : per == 8 ? 3 : 4;
}

template <int SETS> static inline uint32_t gqa_blocks_x(const gqa_args *a) {
    return a->kv_heads * k_ceil_div(a->group, 4 * SETS);
}
static inline uint32_t gqa_items(const gqa_chunk *k) {
    return k_ceil_div(k->count, k->tile) * (k->split ? k->blocks : 1);
}

static inline void gqa_attend(gpuStream_t stream, const gqa_args *args, const gqa_chunk *chunk) {
    gqa_args a = *args;
    gqa_chunk k = *chunk;
    k.tile = 1;
    if (gqa_tuned(args)) gqa_tile(args, &k, 4 * GQA_MOST_SETS);
    const bool few = (uint64_t)gqa_blocks_x<GQA_MOST_SETS>(args) * gqa_items(&k) < GQA_FEW_BLOCKS;
    if (gqa_tuned(args) && few) {
        gqa_tile(args, &k, 8);
        GPU_LAUNCH_EARLY(k_gqa_attend_tuned<2>, gpuDim3(gqa_blocks_x<2>(args), gqa_items(&k)), gpuDim3(GQA_THREADS),
                         stream, a, k);
    } else if (gqa_tuned(args)) {
        GPU_LAUNCH_EARLY(k_gqa_attend_tuned<GQA_MOST_SETS>, gpuDim3(gqa_blocks_x<GQA_MOST_SETS>(args), gqa_items(&k)),
                         gpuDim3(GQA_THREADS), stream, a, k);
    } else {
        GPU_LAUNCH_EARLY(k_gqa_attend_generic, gpuDim3(a.heads, gqa_items(&k)), gpuDim3(GQA_PLAIN_THREADS), stream, a,
                         k);
    }
    if (k.split) GPU_LAUNCH_EARLY(k_gqa_merge, gpuDim3(a.heads, k.count), gpuDim3(GQA_PLAIN_THREADS), stream, a, k);
}

static inline void k_gqa_range(gpuStream_t stream, const gqa_args *args) {
    gqa_args a = *args;
    if (a.n == 0) return;
    a.group = a.heads / a.kv_heads;
    for (uint32_t first = 0; first < a.n; first += GQA_ROWS) {
        gqa_chunk k = gqa_chunk_of(&a, first);
        const uint32_t begin = gqa_first_block(gqa_span_of(a, k, 0)),
                       end = gqa_end_block(gqa_span_of(a, k, k.count - 1));
        GPU_LAUNCH_EARLY(k_gqa_rows, gpuDim3(k.count, a.kv_heads + a.heads), gpuDim3(GQA_PLAIN_THREADS), stream, a, k);
        k.split = k.count <= GQA_SPLIT_ROWS && end - begin > GQA_FUSED_BLOCKS;
        const uint32_t step = (k.split ? (uint32_t)GQA_PARTS : (uint32_t)GQA_LAUNCH_ITEMS) / k.count;
        for (k.block = begin; k.block < end; k.block += step) {
            k.blocks = end - k.block < step ? end - k.block : step;
            gqa_attend(stream, &a, &k);
        }
    }
}
