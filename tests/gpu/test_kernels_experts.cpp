/* Expert kernels against the scalar CPU kernels: installation at every misalignment, products for single rows and for
 * groups of rows, both precisions, the weighted sum and its norm. */
#include "test_kernels.h"

#include "backend/gpu/k_experts.h"
#include "backend/gpu/k_rows.h"
#include "backend/gpu/k_install.h"

enum { EXPERTS = 6 };

/* Source bytes of an expert: scales of real experts; of odd experts, now and then one whose half is subnormal, or zero.
 */
static std::vector<uint8_t> make_source(uint32_t hidden, uint32_t inner, uint32_t e) {
    size_t matrix = mx_matrix_bytes(hidden, inner), packed = matrix / 17 * 16;
    std::vector<uint8_t> source(3 * matrix);
    uint64_t state = e + 77;
    for (size_t i = 0; i < source.size(); i++) {
        source[i] = (uint8_t)(next_random(&state) >> 8);
        if (i % matrix >= packed) source[i] = (uint8_t)(e % 2 && source[i] == 0 ? i % 3 : 117u + source[i] % 5);
    }
    return source;
}

struct problem {
    uint32_t hidden, inner, n, k;
    floats z, weights, norm;
    std::vector<std::vector<uint8_t>> sources;
    std::vector<uint32_t> row[EXPERTS], pair[EXPERTS];
};

/* Pair (i, j) goes to expert (i * i + j) % spread. */
static problem make_problem(uint32_t hidden, uint32_t inner, uint32_t n, uint32_t k, uint32_t spread,
                            kernel_values kind) {
    problem p = {};
    p.hidden = hidden;
    p.inner = inner;
    p.n = n;
    p.k = k;
    p.z = values((size_t)n * hidden, 1, kind);
    p.weights = values((size_t)n * k, 2);
    p.norm = weights(hidden, 3);
    for (uint32_t e = 0; e < spread; e++) p.sources.push_back(make_source(hidden, inner, e));
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < k; j++) {
            p.row[(i * i + j) % spread].push_back(i);
            p.pair[(i * i + j) % spread].push_back(i * k + j);
        }
    return p;
}

static std::vector<ms_expert_batch> batches_of(const problem &p, void *const *slots) {
    std::vector<ms_expert_batch> b;
    for (size_t e = p.sources.size(); e-- > 0;)
        if (!p.row[e].empty())
            b.push_back(ms_expert_batch{slots[e], p.row[e].data(), p.pair[e].data(), (uint32_t)p.row[e].size()});
    return b;
}

static const ms_situ act = {4.0f, 25.0f};

struct results {
    floats y, out;
};

static results run_oracle(const problem &p, bool fast) {
    ms_expert_shape s = {p.hidden, p.inner, MS_ORDER_W1_W2_W3};
    ms_scratch_need need = {};
    need.rows = p.n;
    need.expert = s;
    need.pairs = p.n * p.k;
    ms_backend *be = oracle(fast ? MS_PRECISION_FAST : MS_PRECISION_REFERENCE, &need);
    void *slots[EXPERTS];
    for (size_t e = 0; e < p.sources.size(); e++) {
        assert_int_equal(be->alloc(be, MS_MEM_DEVICE, ms_expert_bytes(s), "slot", &slots[e], NULL), MS_OK);
        assert_int_equal(be->install(be, slots[e], p.sources[e].data(), s, NULL), MS_OK);
    }
    results r;
    r.y.resize((size_t)p.n * p.k * p.hidden);
    r.out.resize((size_t)p.n * p.hidden);
    std::vector<ms_expert_batch> b = batches_of(p, slots);
    be->experts_begin(be, p.z.data(), p.n, s);
    be->experts_run(be, r.y.data(), s, act, b.data(), (uint32_t)b.size());
    ms_weight norm;
    oracle_weight(be, &norm, fast ? MS_FORMAT_BF16 : MS_FORMAT_F32, 1, p.hidden, p.norm);
    be->experts_reduce_norm(be, r.out.data(), r.y.data(), p.weights.data(), p.n, p.k, p.hidden, &norm, 1e-5f);
    be->weight_destroy(be, &norm);
    for (size_t e = 0; e < p.sources.size(); e++) be->release(be, MS_MEM_DEVICE, slots[e], ms_expert_bytes(s));
    oracle_close(be);
    return r;
}

static void install(void *slot, const std::vector<uint8_t> &bytes, size_t at, ms_expert_shape shape, uint32_t bad[3]) {
    device source(bytes), flags(nullptr, 12);
    assert_int_equal(k_experts_retile(0, slot, source.as<uint8_t>() + at, shape, flags.as<uint32_t>()), gpuSuccess);
    std::vector<uint32_t> f = flags.get<uint32_t>(3);
    memcpy(bad, f.data(), 12);
}

enum kernel_form { FORM_PLAIN, FORM_WIDE, FORM_WIDE_ALWAYS }; /* the last one also for items of few rows */

static results run_kernels(const problem &p, bool fast, kernel_form form) {
    const bool wide = form != FORM_PLAIN;
    device z(p.z), w(p.weights), y(nullptr, (size_t)p.n * p.k * p.hidden * 4), out(nullptr, (size_t)p.n * p.hidden * 4);
    halves norm16 = to_bf16(p.norm);
    device norm(fast ? (const void *)norm16.data() : p.norm.data(), p.norm.size() * (fast ? 2 : 4));
    device z_q(nullptr, p.z.size()), z_s(nullptr, p.z.size() / 8), act_q(nullptr, (size_t)p.n * p.k * p.inner);
    device act_s(nullptr, (size_t)p.n * p.k * p.inner / 8), act_f(nullptr, (size_t)p.n * p.k * p.inner * 4);
    const size_t z_groups = (size_t)p.n * wide_mx_row(p.hidden / K_MX_GROUP),
                 act_groups = (size_t)p.n * p.k * wide_mx_row(p.inner / K_MX_GROUP);
    device z_h(nullptr, z_groups * WIDE_MX_GROUP_BYTES), z_hs(nullptr, z_groups * 4);
    device act_h(nullptr, act_groups * WIDE_MX_GROUP_BYTES), act_hs(nullptr, act_groups * 4);
    std::vector<device *> slot;
    void *slots[EXPERTS] = {};
    for (size_t e = 0; e < p.sources.size(); e++) {
        uint32_t bad[3];
        slot.push_back(new device(nullptr, p.sources[e].size()));
        slots[e] = slot[e]->as<void>();
        install(slots[e], p.sources[e], 0, {p.hidden, p.inner, MS_ORDER_W1_W2_W3}, bad);
        for (uint32_t flag : bad) assert_int_equal(flag, UINT32_MAX);
    }
    std::vector<ms_expert_batch> b = batches_of(p, slots);
    std::vector<uint64_t> host(experts_table_bytes(p.n * p.k) / 8 + 1);
    device table(nullptr, host.size() * 8);
    experts_args a = {};
    size_t used = 0;
    assert_true(experts_in_range(b.data(), (uint32_t)b.size(), p.n, p.n * p.k));
    a.hidden = p.hidden;
    a.inner = p.inner;
    a.beta = act.beta;
    a.linear_beta = act.linear_beta;
    a.z = z.as<float>();
    a.z_q = z_q.as<uint8_t>();
    a.z_s = z_s.as<float>();
    a.act = act_f.as<float>();
    a.act_q = act_q.as<uint8_t>();
    a.act_s = act_s.as<float>();
    a.y = y.as<float>();
    a.wide = wide;
    a.rows = p.n;
    a.z_h = z_h.as<uint8_t>();
    a.z_hs = z_hs.as<float>();
    a.act_h = act_h.as<uint8_t>();
    a.act_hs = act_hs.as<float>();
    const experts_quantize_args input = {z_q.as<uint8_t>(), z_s.as<float>(), a.z, p.n * (p.hidden / K_MX_GROUP)};
    if (fast) k_experts_begin(0, &input);
    if (fast && experts_all_single(b.data(), (uint32_t)b.size())) {
        k_experts_singles(0, &a, b.data(), (uint32_t)b.size());
    } else {
        experts_table_build(&a.table, &used, host.data(), table.as<void>(), b.data(), (uint32_t)b.size(),
                            experts_most(wide));
        assert_true(used <= host.size() * 8);
        if (form == FORM_WIDE_ALWAYS) a.table.few = 0;
        assert_int_equal(gpuMemcpyAsync(table.as<void>(), host.data(), used, gpuMemcpyHostToDevice, 0), gpuSuccess);
        k_experts_run(0, &a, fast);
    }
    k_reduce_args r = {
        {out.as<float>(), nullptr, nullptr}, a.y, w.as<float>(), {norm.as<void>(), fast}, p.n, p.k, p.hidden, 1e-5f};
    (void)k_reduce(0, &r);
    results found = {y.get<float>((size_t)p.n * p.k * p.hidden), out.get<float>((size_t)p.n * p.hidden)};
    for (device *d : slot) delete d;
    return found;
}

static void check(uint32_t hidden, uint32_t inner, uint32_t n, uint32_t k, uint32_t spread, bool fast,
                  kernel_values kind = VALUES_NORMAL) {
    char label[128];
    (void)snprintf(label, sizeof label, "%u x %u, n %u, k %u of %u, %s, values %d", hidden, inner, n, k, spread,
                   fast ? "fast" : "reference", (int)kind);
    problem p = make_problem(hidden, inner, n, k, spread, kind);
    results expected = run_oracle(p, fast);
    static const char *const names[][2] = {
        {"result", "sum"}, {"result, wide", "sum, wide"}, {"result, always wide", "sum, always wide"}};
    for (int form = FORM_PLAIN; form <= (fast && GPU_WIDE_HOST ? FORM_WIDE_ALWAYS : FORM_PLAIN); form++) {
        results found = run_kernels(p, fast, (kernel_form)form);
        expect_bits(expected.y, found.y, label, names[form][0]);
        expect_bits(expected.out, found.out, label, names[form][1]);
    }
}

static void test_shapes(void **state) {
    (void)state;
    static const uint32_t shapes[][2] = {
        {128, 128}, {64, 64}, {128, 96}, {32, 32}, {96, 256}}; /* nano, tiny-a, tiny-c, ... */
    static const uint32_t ns[] = {1, 2, 5, 17};
    for (const uint32_t *s : shapes)
        for (uint32_t n : ns)
            for (int fast = 0; fast < 2; fast++) check(s[0], s[1], n, 3, n == 2 ? EXPERTS : 4, fast);
}

/* One row an expert in one launch, and more groups than a piece of shared memory holds. */
static void test_long_rows(void **state) {
    (void)state;
    check(4256, 64, 1, 2, 2, true);
    check(3584, 96, 1, 5, 5, true);
    check(2208, 32, 11, 1, 1, true);
    check(64, 2208, 3, 2, 2, true);
    check(3584, 64, 2, 2, 2, false);
}

/* Items of every width of the matrix units, and more rows than an item takes. */
static void test_groups(void **state) {
    (void)state;
    static const uint32_t rows[] = {8, 9, 16, 24, 32, 33, 48, 64, 65, 72, 88, 96, 97, 127, 128, 129, 200};
    for (uint32_t n : rows) check(96, 64, n, 1, 1, true);
    check(96, 64, 40, 2, 2, true);
    check(160, 32, 70, 1, 1, true, VALUES_MIXED);
    check(1120, 288, 40, 1, 1, true); /* several stages a pass, tiles left over */
    check(416, 160, 100, 1, 1, true);
    check(32, 32, 80, 1, 1, true, VALUES_NAN);
    check(96, 64, 9, 1, 1, false);
}

static void test_values(void **state) {
    (void)state;
    for (int kind = VALUES_MIXED; kind <= VALUES_NAN; kind++)
        for (int fast = 0; fast < 2; fast++) check(256, 64, 7, 2, 3, fast, (kernel_values)kind);
}

/* Every code with every scale byte. */
static void test_scales(void **state) {
    (void)state;
    for (int form = 0; form < 4; form++) {
        const bool fast = form > 0, wide = form == 3;
        if (wide && !GPU_WIDE_HOST) continue;
        problem p = make_problem(32, 288, form < 2 ? 3 : 40, 1, 1, VALUES_NORMAL);
        size_t matrix = mx_matrix_bytes(32, 288), packed = matrix / 17 * 16;
        for (size_t i = 0; i < p.sources[0].size(); i++)
            p.sources[0][i] = (uint8_t)(i % matrix < packed ? i * 37 % 256 : (i % matrix - packed) % 255);
        results expected = run_oracle(p, fast), found = run_kernels(p, fast, wide ? FORM_WIDE : FORM_PLAIN);
        expect_bits(expected.y, found.y, wide ? "scales, wide" : "scales", "result");
    }
}

static void test_install(void **state) {
    (void)state;
    static const uint32_t shapes[][2] = {{128, 96}, {32, 32}, {1088, 64}, {64, 1056}};
    for (size_t i = 0; i < 2 * sizeof shapes / sizeof shapes[0]; i++) {
        const uint32_t *s = shapes[i / 2];
        ms_expert_shape shape = {s[0], s[1], i % 2 ? MS_ORDER_W2_W1_W3 : MS_ORDER_W1_W2_W3};
        std::vector<uint8_t> source = make_source(s[0], s[1], 5), expected(source.size());
        assert_int_equal(ms_expert_install(expected.data(), source.data(), shape, NULL), MS_OK);
        for (size_t at = 0; at < 19; at += at < 5 ? 1 : 3) {
            std::vector<uint8_t> shifted(at, 0xff);
            shifted.insert(shifted.end(), source.begin(), source.end());
            device slot(nullptr, source.size());
            uint32_t bad[3];
            install(slot.as<void>(), shifted, at, shape, bad);
            std::vector<uint8_t> found = slot.get<uint8_t>(source.size());
            assert_memory_equal(found.data(), expected.data(), found.size());
            for (uint32_t flag : bad) assert_int_equal(flag, UINT32_MAX);
        }
    }
}

/* The reported position is that of ms_expert_install's message. */
static void test_bad_scale(void **state) {
    (void)state;
    static const char *const names[] = {"w1", "w3", "w2"}; /* by ms_expert_matrix */
    const uint32_t hidden = 128, inner = 96;
    size_t matrix = mx_matrix_bytes(hidden, inner), packed = matrix / 17 * 16;
    uint64_t random = 3;
    for (int i = 0; i < 12; i++) {
        std::vector<uint8_t> source = make_source(hidden, inner, 9), slot_host(source.size());
        for (int j = 0; j < 3; j++) /* some in the packed bytes, where 255 is a value */
            source[next_random(&random) % 3 * matrix + packed + next_random(&random) % (matrix - packed)] = 255;
        ms_error err = {};
        ms_expert_shape shape = {hidden, inner, i % 2 ? MS_ORDER_W2_W1_W3 : MS_ORDER_W1_W2_W3};
        assert_int_equal(ms_expert_install(slot_host.data(), source.data(), shape, &err), MS_ERR_FORMAT);
        device slot(nullptr, source.size());
        uint32_t bad[3], row = 0, group = 0;
        ms_expert_matrix m = MS_W1;
        install(slot.as<void>(), source, 0, shape, bad);
        assert_true(experts_bad_scale(bad, hidden, inner, &m, &row, &group));
        char text[64];
        (void)snprintf(text, sizeof text, "expert %s scale of row %u group %u:", names[m], row, group);
        if (!strstr(err.message, text)) fail_msg("found \"%s\", expected \"%s\"", text, err.message);
    }
}

static void test_table(void **state) {
    (void)state;
    uint32_t row[20], pair[20];
    for (uint32_t i = 0; i < 20; i++) {
        row[i] = i;
        pair[i] = 19 - i;
    }
    ms_expert_batch batches[3] = {{row, row, pair, 19}, {pair, row, pair, 0}, {pair, row + 19, pair + 19, 1}};
    std::vector<uint64_t> host(experts_table_bytes(220) / 8 + 1);
    expert_table t = {};
    size_t used = 0;
    assert_true(experts_in_range(batches, 3, 20, 20));
    assert_false(experts_in_range(batches, 3, 19, 20));
    assert_false(experts_in_range(batches, 3, 20, 19));
    assert_false(experts_all_single(batches, 3));
    assert_true(experts_all_single(batches + 1, 2));
    experts_table_build(&t, &used, host.data(), host.data(), batches, 3, EXPERT_MANY);
    assert_int_equal(t.count, 2);
    assert_int_equal(t.few, 2);
    assert_ptr_equal(t.items[1].slot, pair);
    assert_int_equal(t.items[0].count, 19);
    assert_int_equal(t.row[t.items[1].first], 19);
    assert_int_equal(t.pair[t.items[1].first], 0);
    assert_int_equal(used, 2 * sizeof(expert_item) + 2 * 20 * sizeof(uint32_t));
    batches[2] = batches[0];
    assert_false(experts_in_range(batches, 3, 20, 20));
    experts_table_build(&t, &used, host.data(), host.data(), batches, 0, EXPERT_MANY);
    assert_int_equal(t.count, 0);
}

/* A batch is cut into even items; those with many rows come last, and the items cover every row once. */
static void test_items(void **state) {
    (void)state;
    std::vector<uint32_t> list(1000);
    for (uint32_t i = 0; i < 1000; i++) list[i] = i;
    std::vector<uint64_t> host(experts_table_bytes(1000) / 8 + 1);
    for (uint32_t n = 1; n < 800; n++) {
        const uint32_t most = experts_most(n % 2);
        ms_expert_batch batches[2] = {{host.data(), list.data(), list.data(), n},
                                      {host.data(), list.data() + n, list.data() + n, 7}};
        expert_table t = {};
        size_t used = 0;
        experts_table_build(&t, &used, host.data(), host.data(), batches, 2, most);
        assert_true(used <= experts_table_bytes(n + 7));
        std::vector<int> seen(n + 7);
        for (uint32_t i = 0; i < t.count; i++) {
            assert_true(t.items[i].count >= 1 && t.items[i].count <= most);
            assert_int_equal(t.items[i].count > EXPERT_FEW, i >= t.few);
            for (uint32_t j = 0; j < t.items[i].count; j++) seen[t.row[t.items[i].first + j]]++;
        }
        for (int times : seen) assert_int_equal(times, 1);
    }
}

static void test_fit(void **state) {
    (void)state;
    assert_true(experts_fit(3584, 3072));
    assert_false(experts_fit(3584, 3000));
    assert_false(experts_fit(0, 32));
    assert_false(experts_fit(32u << 17, 32));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_install),   cmocka_unit_test(test_bad_scale),
                                       cmocka_unit_test(test_table),     cmocka_unit_test(test_items),
                                       cmocka_unit_test(test_fit),       cmocka_unit_test(test_shapes),
                                       cmocka_unit_test(test_long_rows), cmocka_unit_test(test_groups),
                                       cmocka_unit_test(test_values),    cmocka_unit_test(test_scales)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
