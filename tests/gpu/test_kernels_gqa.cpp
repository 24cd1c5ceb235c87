/* Grouped-query attention kernels against the scalar CPU kernels: outputs and cache rows, both precisions, the split
 * and the fused form, the tuned shape and others, windows and rings, key counts around the borders of a block. */
#include "test_kernels.h"

/* Small pieces, so that short inputs take several launches. */
#define GQA_ROWS         12
#define GQA_PARTS        8
#define GQA_LAUNCH_ITEMS 12
#ifndef GQA_FEW_BLOCKS
#define GQA_FEW_BLOCKS 1 // none is fewer
#endif
#define GQA_SPLIT_ROWS 4
#include "backend/gpu/k_gqa.h"

typedef struct shape {
    uint32_t heads, kv_heads, key, value, rotary, window;
} shape;

enum sinks { SINKS_NONE, SINKS_PLAIN, SINKS_LARGE, SINKS_LOW };

struct inputs {
    floats q, k, v, rope, rows, sink;
};

static uint32_t width_of(shape s) { return s.kv_heads * (s.key + s.value); }
static uint32_t ring_of(shape s, uint32_t n) {
    return s.window ? (s.window - 1 + n + GQA_KEYS - 1) / GQA_KEYS * GQA_KEYS : 0;
}

/* Rows that nobody may read are NaN: those of a ring that is not yet full, and all behind the position. */
static inputs make_inputs(shape s, uint32_t n, uint32_t position, kernel_values kind, sinks sink) {
    inputs x;
    const uint32_t ring = ring_of(s, n), stored = ring ? ring : position + n, width = width_of(s);
    x.q = values((size_t)n * s.heads * s.key, 1, kind);
    x.k = values((size_t)n * s.kv_heads * s.key, 2, kind);
    x.v = values((size_t)n * s.kv_heads * s.value, 3, kind);
    x.rope = values((size_t)n * s.rotary, 4);
    x.rows = weights((size_t)stored * width, 5); /* bf16 values in both precisions */
    for (float &v : x.rows) v *= 4.0f;
    for (uint32_t p = 0; p < stored; p++) {
        bool seen = !ring;
        for (uint32_t back = 1; ring && back < s.window && back <= position; back++)
            seen = seen || (position - back) % ring == p;
        for (uint32_t i = 0; i < width; i++)
            if (!seen || (!ring && p >= position)) x.rows[(size_t)p * width + i] = NAN;
    }
    if (sink == SINKS_NONE) return x;
    x.sink = values(s.heads, 6);
    for (uint32_t h = 0; h < s.heads; h++) {
        if (sink == SINKS_LARGE) x.sink[h] = h % 2 ? 1e30f : 60.0f;
        if (sink == SINKS_LOW) x.sink[h] = h % 2 ? -INFINITY : -300.0f;
    }
    return x;
}

static floats widened(const halves &h) {
    floats x(h.size());
    for (size_t i = 0; i < h.size(); i++) x[i] = gpu_bf16_f32(h[i]);
    return x;
}

struct results {
    floats out, rows;
};

static results run_oracle(shape s, inputs &x, uint32_t n, uint32_t position, bool fast) {
    ms_scratch_need need = {};
    need.rows = n;
    need.input_cols = s.heads;
    need.gqa_heads = s.heads;
    need.gqa_group = s.heads / s.kv_heads;
    need.gqa_key = s.key;
    need.gqa_value = s.value;
    need.context = position + n;
    ms_backend *be = oracle(fast ? MS_PRECISION_FAST : MS_PRECISION_REFERENCE, &need);
    ms_weight sink = {};
    sink.format = MS_FORMAT_F32;
    sink.rows = 1;
    sink.cols = s.heads;
    sink.data = x.sink.data();
    ms_gqa gqa = {s.heads,
                  s.kv_heads,
                  s.key,
                  s.value,
                  s.rotary,
                  s.window,
                  1.0f / sqrtf((float)s.key),
                  0.707f,
                  x.sink.empty() ? nullptr : &sink};
    halves rows = to_bf16(x.rows);
    results r;
    r.rows = x.rows;
    r.out.resize((size_t)n * s.heads * s.value);
    ms_gqa_io io = {x.q.data(),    x.k.data(), x.v.data(),  x.rope.data(), fast ? (void *)rows.data() : r.rows.data(),
                    ring_of(s, n), position,   r.out.data()};
    be->gqa_range(be, &gqa, &io, n);
    if (fast) r.rows = widened(rows);
    oracle_close(be);
    return r;
}

/* cut: rows of each call, 0 for all in one. */
static results run_kernels(shape s, const inputs &x, uint32_t n, uint32_t position, bool fast, uint32_t cut) {
    halves host_rows = to_bf16(x.rows);
    device q(x.q), k(x.k), v(x.v), rope(x.rope), out(nullptr, (size_t)n * s.heads * s.value * 4);
    device rows(fast ? (const void *)host_rows.data() : x.rows.data(), x.rows.size() * (fast ? 2 : 4));
    device sink(x.sink.data(), x.sink.size() * 4);
    device scratch(nullptr, gqa_scratch_bytes(n, s.heads, s.key, s.value));
    for (uint32_t first = 0; first < n; first += cut ? cut : n) {
        gqa_args a = {};
        a.heads = s.heads;
        a.kv_heads = s.kv_heads;
        a.key = s.key;
        a.value = s.value;
        a.rotary = s.rotary;
        a.window = s.window;
        a.n = cut && n - first > cut ? cut : n - first;
        a.scale = 1.0f / sqrtf((float)s.key);
        a.value_scale = 0.707f;
        a.sink = k_vector{x.sink.empty() ? nullptr : sink.as<void>(), 0};
        a.q = q.as<float>() + (size_t)first * s.heads * s.key;
        a.k = k.as<float>() + (size_t)first * s.kv_heads * s.key;
        a.v = v.as<float>() + (size_t)first * s.kv_heads * s.value;
        a.rope = rope.as<float>() + (size_t)first * s.rotary;
        a.rows = rows.as<void>();
        a.rows_bf16 = fast;
        a.ring = ring_of(s, n);
        a.position = position + first;
        a.out = out.as<float>() + (size_t)first * s.heads * s.value;
        a.scratch = scratch.as<float>();
        k_gqa_range(0, &a);
    }
    results r;
    r.out = out.get<float>((size_t)n * s.heads * s.value);
    r.rows = fast ? widened(rows.get<gpu_bf16>(x.rows.size())) : rows.get<float>(x.rows.size());
    return r;
}

static void check(shape s, uint32_t n, uint32_t position, bool fast, sinks sink = SINKS_PLAIN, uint32_t cut = 0,
                  kernel_values kind = VALUES_NORMAL) {
    char label[160];
    (void)snprintf(label, sizeof label, "%u/%u heads of %u+%u, rotary %u, window %u, n %u at %u, %s, sinks %d, cut %u",
                   s.heads, s.kv_heads, s.key, s.value, s.rotary, s.window, n, position, fast ? "fast" : "reference",
                   (int)sink, cut);
    inputs x = make_inputs(s, n, position, kind, sink);
    results expected = run_oracle(s, x, n, position, fast);
    results found = run_kernels(s, x, n, position, fast, cut);
    expect_bits(expected.rows, found.rows, label, "row value");
    expect_bits(expected.out, found.out, label, "output");
}

/* Every group, also those that do not fill a block or need several. */
static void test_groups(void **state) {
    (void)state;
    for (uint32_t group = 1; group <= 18; group++) check({group, 1, 192, 128, 64, 0}, 2, 3, true);
    check({40, 2, 192, 128, 64, 5}, 3, 9, true);
    check({33, 3, 192, 128, 192, 0}, 1, 20, true, SINKS_NONE);
    check({12, 3, 192, 128, 0, 0}, 5, 0, true);
}

/* Heads of the official shape take the tuned kernel in `fast`, all others the generic one. */
static void test_shapes(void **state) {
    (void)state;
    static const shape shapes[] = {{8, 2, 96, 64, 32, 8},  {4, 2, 16, 8, 8, 0},      {3, 1, 1, 1, 0, 0},
                                   {6, 6, 33, 7, 10, 1},   {8, 1, 192, 128, 64, 16}, {5, 1, 192, 64, 64, 0},
                                   {2, 1, 128, 128, 2, 0}, {2, 2, 300, 260, 300, 0}};
    for (shape s : shapes)
        for (uint32_t n = 1; n <= 17; n += 8)
            for (int fast = 0; fast < 2; fast++) check(s, n, n == 1 ? 0 : 7, fast);
}

static void test_one_key(void **state) {
    (void)state;
    for (int sink = SINKS_NONE; sink <= SINKS_LOW; sink++) {
        check({16, 1, 192, 128, 64, 0}, 1, 0, true, (sinks)sink);
        check({8, 1, 192, 128, 64, 1}, 3, 255, true, (sinks)sink);
        check({4, 1, 24, 16, 8, 1}, 3, 255, false, (sinks)sink);
    }
}

static void test_block_borders(void **state) {
    (void)state;
    static const uint32_t positions[] = {254, 255, 256, 511, 513};
    for (uint32_t position : positions) {
        check({8, 1, 192, 128, 64, 0}, 2, position, true);
        check({8, 1, 192, 128, 64, 128}, 3, position, true);
        check({8, 2, 192, 128, 64, 31}, 5, position, true);
        check({4, 2, 24, 16, 8, 0}, 2, position, false);
        check({4, 2, 24, 16, 8, 20}, 3, position, false);
    }
}

/* The edge of the window: one key fewer than it, as many, one more; the ring goes round on the way. */
static void test_windows(void **state) {
    (void)state;
    for (uint32_t position = 126; position <= 129; position++) check({8, 1, 192, 128, 64, 128}, 1, position, true);
    check({8, 1, 192, 128, 64, 128}, 40, 100, true);
    check({8, 2, 192, 128, 64, 128}, 23, 758, true);
    check({16, 2, 192, 128, 64, 300}, 6, 1019, true); /* three key blocks: split */
    check({16, 2, 192, 128, 64, 700}, 9, 1200, true);
    check({4, 2, 24, 16, 8, 700}, 9, 1200, false);
    check({8, 2, 192, 128, 64, 4000}, 3, 600, true); /* longer than what there is */
}

/* Many rows: the fused form, several chunks of rows, several launches of key blocks. */
static void test_fused(void **state) {
    (void)state;
    check({8, 1, 192, 128, 64, 0}, 15, 1010, true);
    check({4, 1, 192, 128, 64, 0}, 14, 760, true);
    check({4, 2, 24, 16, 8, 0}, 30, 700, false);
    check({4, 2, 24, 16, 8, 0}, 13, 1030, true, SINKS_NONE);
}

/* Few rows and more key blocks than one split launch takes; rows that end in different launches. */
static void test_split(void **state) {
    (void)state;
    check({8, 1, 192, 128, 64, 0}, 3, 1022, true);
    check({5, 1, 192, 128, 64, 0}, 1, 2300, true);
    check({4, 2, 24, 16, 8, 0}, 4, 1278, false);
    check({4, 2, 24, 16, 8, 0}, 1, 2304, true, SINKS_NONE);
}

/* A range gives the bits of its parts, whatever form each takes. */
static void test_cuts(void **state) {
    (void)state;
    check({8, 1, 192, 128, 64, 0}, 14, 508, true, SINKS_PLAIN, 1);
    check({8, 1, 192, 128, 64, 20}, 20, 250, true, SINKS_PLAIN, 7);
    check({4, 2, 24, 16, 8, 0}, 5, 510, false, SINKS_PLAIN, 2);
}

static void test_values(void **state) {
    (void)state;
    for (int kind = VALUES_MIXED; kind <= VALUES_NAN; kind++) {
        check({8, 1, 192, 128, 64, 0}, 3, 520, true, SINKS_PLAIN, 0, (kernel_values)kind);
        check({8, 2, 192, 128, 64, 30}, 5, 250, true, SINKS_LARGE, 0, (kernel_values)kind);
        check({4, 2, 24, 16, 8, 0}, 3, 520, false, SINKS_NONE, 0, (kernel_values)kind);
    }
}

/* Scratch is bounded whatever the range and the context are. */
static void test_scratch(void **state) {
    (void)state;
    assert_true(gqa_scratch_bytes(1, 64, 192, 128) < gqa_scratch_bytes(GQA_ROWS, 64, 192, 128));
    assert_true(gqa_scratch_bytes(GQA_ROWS, 64, 192, 128) == gqa_scratch_bytes(1u << 20, 64, 192, 128));
    assert_true(gqa_fits(64, 4) && gqa_fits(1, 1));
    assert_false(gqa_fits(3, 2) || gqa_fits(0, 1) || gqa_fits(4, 0) || gqa_fits(1u << 16, 1u << 15));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_groups),  cmocka_unit_test(test_shapes),
                                       cmocka_unit_test(test_one_key), cmocka_unit_test(test_block_borders),
                                       cmocka_unit_test(test_windows), cmocka_unit_test(test_fused),
                                       cmocka_unit_test(test_split),   cmocka_unit_test(test_cuts),
                                       cmocka_unit_test(test_values),  cmocka_unit_test(test_scratch)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
