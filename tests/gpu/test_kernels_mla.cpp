/* MLA kernels against the scalar CPU kernels: outputs and cache rows, both precisions, the split and the fused form,
 * the tuned shape and others, key counts around the borders of a block. */
#include "test_kernels.h"

/* Small pieces, so that short inputs take several launches. */
#define MLA_ROWS 24
#define MLA_PARTS 24
#define MLA_LAUNCH_ITEMS 40
#include "backend/gpu/k_mla.h"

typedef struct shape {
    uint32_t heads, nope, extra, value, rank;
} shape;

struct results {
    floats out, rows;
};

/* Weight rows in the order of k_bf16_at(). */
static halves placed(const floats &w, uint32_t cols) {
    halves h(w.size());
    uint32_t rows = (uint32_t)(w.size() / cols);
    for (size_t i = 0; i < w.size(); i++)
        h[i / cols * cols + k_bf16_at(rows, cols, (uint32_t)(i % cols))] = gpu_f32_bf16(w[i]);
    return h;
}

struct inputs {
    floats q, c, gate, rows, norm, kv_b;
};

static inputs make_inputs(shape s, uint32_t n, uint64_t position, kernel_values kind) {
    inputs x;
    size_t width = (size_t)s.rank + s.extra;
    x.q = values((size_t)n * s.heads * (s.nope + s.extra), 1, kind);
    x.c = values(n * width, 2, kind);
    x.gate = values((size_t)n * s.heads * s.value, 3, kind);
    x.rows = weights((position + n) * width, 4); /* bf16 values in both precisions */
    for (float &v : x.rows) v *= 4.0f;
    x.norm = weights(s.rank, 5);
    x.kv_b = weights((size_t)s.heads * (s.nope + s.value) * s.rank, 6);
    return x;
}

static floats widened(const halves &h) {
    floats x(h.size());
    for (size_t i = 0; i < h.size(); i++) x[i] = gpu_bf16_f32(h[i]);
    return x;
}

static results run_oracle(shape s, inputs &x, uint32_t n, uint64_t position, bool fast, ms_format norm_format) {
    ms_scratch_need need = {};
    need.rows = n;
    need.mla_heads = s.heads;
    need.mla_nope = s.nope;
    need.mla_extra = s.extra;
    need.mla_value = s.value;
    need.mla_rank = s.rank;
    need.context = position + n;
    ms_backend *be = oracle(fast ? MS_PRECISION_FAST : MS_PRECISION_REFERENCE, &need);
    ms_weight norm, kv_b;
    oracle_weight(be, &norm, norm_format, 1, s.rank, x.norm);
    oracle_weight(be, &kv_b, MS_FORMAT_BF16, s.heads * (s.nope + s.value), s.rank, x.kv_b);
    ms_mla mla = {s.heads, s.nope, s.extra, s.value, s.rank, 1e-6f, 1.0f / sqrtf((float)(s.nope + s.extra)),
                  &norm,   &kv_b};
    halves rows = to_bf16(x.rows);
    results r;
    r.rows = x.rows;
    r.out.resize((size_t)n * s.heads * s.value);
    ms_mla_io io = {x.q.data(), x.c.data(),  x.gate.data(), fast ? (void *)rows.data() : r.rows.data(),
                    position,   r.out.data()};
    be->mla_range(be, &mla, &io, n);
    if (fast) r.rows = widened(rows);
    be->weight_destroy(be, &norm);
    be->weight_destroy(be, &kv_b);
    oracle_close(be);
    return r;
}

static results run_kernels(shape s, const inputs &x, uint32_t n, uint64_t position, bool fast, ms_format norm_format,
                           uint32_t cut) {
    halves host_rows = to_bf16(x.rows), host_norm = to_bf16(x.norm);
    device q(x.q), c(x.c), gate(x.gate), kv_b(placed(x.kv_b, s.rank)), out(nullptr, (size_t)n * s.heads * s.value * 4);
    device rows(fast ? (const void *)host_rows.data() : x.rows.data(), x.rows.size() * (fast ? 2 : 4));
    device norm(norm_format == MS_FORMAT_BF16 ? (const void *)host_norm.data() : x.norm.data(),
                x.norm.size() * 4 / (norm_format == MS_FORMAT_BF16 ? 2 : 1));
    device scratch(nullptr, mla_scratch_bytes(n, s.heads, s.extra, s.rank));
    for (uint32_t first = 0; first < n; first += cut ? cut : n) {
        mla_args a = {};
        a.heads = s.heads;
        a.nope = s.nope;
        a.extra = s.extra;
        a.value = s.value;
        a.rank = s.rank;
        a.n = cut && n - first > cut ? cut : n - first;
        a.norm_eps = 1e-6f;
        a.scale = 1.0f / sqrtf((float)(s.nope + s.extra));
        a.kv_norm = k_vector{norm.as<void>(), norm_format == MS_FORMAT_BF16};
        a.kv_b = kv_b.as<gpu_bf16>();
        a.q = q.as<float>() + (size_t)first * s.heads * (s.nope + s.extra);
        a.c = c.as<float>() + (size_t)first * (s.rank + s.extra);
        a.gate = gate.as<float>() + (size_t)first * s.heads * s.value;
        a.rows = rows.as<void>();
        a.rows_bf16 = fast;
        a.position = position + first;
        a.out = out.as<float>() + (size_t)first * s.heads * s.value;
        a.scratch = scratch.as<void>();
        k_mla_range(0, &a);
    }
    results r;
    r.out = out.get<float>((size_t)n * s.heads * s.value);
    r.rows = fast ? widened(rows.get<gpu_bf16>(x.rows.size())) : rows.get<float>(x.rows.size());
    return r;
}

/* cut: rows of each call, 0 for all in one. */
static void check(shape s, uint32_t n, uint64_t position, bool fast, kernel_values kind = VALUES_NORMAL,
                  uint32_t cut = 0) {
    char label[160];
    (void)snprintf(label, sizeof label, "%u heads, %u+%u, value %u, rank %u, n %u at %u, %s, values %d, cut %u",
                   s.heads, s.nope, s.extra, s.value, s.rank, n, (unsigned)position, fast ? "fast" : "reference",
                   (int)kind, cut);
    ms_format norm_format = n % 2 ? MS_FORMAT_BF16 : MS_FORMAT_F32;
    inputs x = make_inputs(s, n, position, kind);
    results expected = run_oracle(s, x, n, position, fast, norm_format);
    results found = run_kernels(s, x, n, position, fast, norm_format, cut);
    expect_bits(expected.rows, found.rows, label, "row value");
    expect_bits(expected.out, found.out, label, "output");
}

static const shape nano = {4, 64, 32, 64, 96}, tiny_a = {4, 32, 32, 32, 64}, tiny_c = {2, 128, 64, 128, 512};

static void test_shapes(void **state) {
    (void)state;
    static const shape shapes[] = {
        nano, tiny_a, tiny_c, {3, 40, 32, 40, 132}, {2, 5, 3, 7, 33}, {2, 9, 0, 8, 256}, {1, 300, 16, 9, 768}};
    static const uint32_t ns[] = {1, 2, 5, 17};
    for (shape s : shapes)
        for (uint32_t n : ns)
            for (int fast = 0; fast < 2; fast++) check(s, n, n == 2 ? 0 : 7, fast);
}

/* Heads beyond a block's 16, and a block that has fewer. */
static void test_many_heads(void **state) {
    (void)state;
    check({21, 128, 64, 16, 512}, 1, 300, true);
    check({18, 32, 64, 16, 512}, 2, 20, true);
}

static void test_block_borders(void **state) {
    (void)state;
    static const uint64_t positions[] = {254, 255, 256, 511, 513};
    for (uint64_t position : positions) {
        for (int fast = 0; fast < 2; fast++) check(nano, 2, position, fast);
        check(tiny_c, 1, position, true);
        check(tiny_c, 3, position, true);
    }
}

/* Many rows: the fused form, several chunks of rows, several launches of key blocks. */
static void test_fused(void **state) {
    (void)state;
    check(tiny_c, 17, 250, true);
    check(tiny_c, 17, 630, true);
    check({2, 8, 4, 8, 24}, 30, 700, true);
    check({2, 8, 4, 8, 24}, 51, 250, false);
    check({3, 8, 64, 8, 512}, 26, 500, true);
}

/* Few rows and more key blocks than one split launch takes. */
static void test_split(void **state) {
    (void)state;
    check({1, 8, 4, 8, 24}, 12, 1100, true);
    check({1, 8, 4, 8, 24}, 5, 1020, false);
    check({1, 8, 64, 8, 512}, 5, 1021, true);
    check({1, 8, 64, 8, 512}, 1, 6200, true);
    check({2, 70, 64, 70, 512}, 3, 2100, true);
    check({1, 8, 64, 8, 512}, 12, 1100, true);
}

/* A range gives the bits of its parts, whatever form each takes. */
static void test_cuts(void **state) {
    (void)state;
    check(tiny_c, 18, 250, true, VALUES_NORMAL, 1);
    check(tiny_a, 20, 250, true, VALUES_NORMAL, 7);
    check(tiny_a, 5, 510, false, VALUES_NORMAL, 2);
}

static void test_values(void **state) {
    (void)state;
    for (int kind = VALUES_MIXED; kind <= VALUES_NAN; kind++) {
        check(nano, 3, 260, true, (kernel_values)kind);
        check(tiny_c, 3, 260, true, (kernel_values)kind);
        check(nano, 3, 260, false, (kernel_values)kind);
    }
}

/* Scratch is bounded whatever the range and the context are. */
static void test_scratch(void **state) {
    (void)state;
    assert_true(mla_scratch_bytes(1, 96, 64, 512) < mla_scratch_bytes(MLA_ROWS, 96, 64, 512));
    assert_true(mla_scratch_bytes(MLA_ROWS, 96, 64, 512) == mla_scratch_bytes(1u << 20, 96, 64, 512));
    assert_true(mla_fits(96, 64, 512));
    assert_false(mla_fits(96, 64, MLA_MAX_RANK + 1));
    assert_false(mla_fits(0, 64, 512));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shapes), cmocka_unit_test(test_many_heads),
                                       cmocka_unit_test(test_block_borders), cmocka_unit_test(test_fused),
                                       cmocka_unit_test(test_split), cmocka_unit_test(test_cuts),
                                       cmocka_unit_test(test_values), cmocka_unit_test(test_scratch)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
