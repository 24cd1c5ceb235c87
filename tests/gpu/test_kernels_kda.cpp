/* KDA kernels against the scalar CPU kernels: outputs, state and history, both precisions, whole ranges and ranges in
 * two parts. */
#include "test_kernels.h"

#include "backend/gpu/k_kda.h"

typedef struct shape {
    uint32_t heads, dim, taps;
} shape;

struct inputs {
    floats in[5], b, state, history, conv[3], a_log, dt_bias, o_norm;
};
struct results {
    floats out, state, history;
};

static inputs make_inputs(shape s, uint32_t n, kernel_values kind) {
    inputs x;
    size_t inner = (size_t)s.heads * s.dim;
    for (uint32_t i = 0; i < 5; i++) x.in[i] = values(n * inner, 10 + i, kind);
    x.b = values((size_t)n * s.heads, 15, kind);
    x.state = values(inner * s.dim, 16);
    x.history = weights(3 * (s.taps - 1) * inner, 18);
    for (uint32_t i = 0; i < 3; i++) x.conv[i] = weights(inner * s.taps, 20 + i);
    x.a_log = weights(s.heads, 23);
    x.dt_bias = weights(inner, 24);
    x.o_norm = weights(s.dim, 25);
    return x;
}

static floats stored(const void *p, size_t count, bool bf16) {
    floats x(count);
    for (size_t i = 0; i < count; i++) x[i] = bf16 ? gpu_bf16_f32(((const gpu_bf16 *)p)[i]) : ((const float *)p)[i];
    return x;
}

static results run_oracle(shape s, const inputs &x, uint32_t n, bool fast) {
    ms_scratch_need need = {};
    need.rows = n + 1;
    need.kda_heads = s.heads;
    need.kda_dim = s.dim;
    need.kda_taps = s.taps;
    ms_backend *be = oracle(fast ? MS_PRECISION_FAST : MS_PRECISION_REFERENCE, &need);
    uint32_t inner = s.heads * s.dim;
    ms_weight w[6];
    for (uint32_t i = 0; i < 3; i++) oracle_weight(be, &w[i], MS_FORMAT_F32, inner, s.taps, x.conv[i]);
    oracle_weight(be, &w[3], MS_FORMAT_F32, 1, s.heads, x.a_log);
    oracle_weight(be, &w[4], MS_FORMAT_F32, 1, inner, x.dt_bias);
    oracle_weight(be, &w[5], MS_FORMAT_F32, 1, s.dim, x.o_norm);
    ms_kda kda = {s.heads, s.dim, s.taps, -5.0f, 1e-5f, {&w[0], &w[1], &w[2]}, &w[3], &w[4], &w[5]};
    results r;
    r.out.resize((size_t)n * inner);
    r.state.resize(x.state.size());
    halves past = to_bf16(x.history);
    floats history(x.history.size());
    ms_kda_io io = {};
    io.q = x.in[0].data();
    io.k = x.in[1].data();
    io.v = x.in[2].data();
    io.e = x.in[3].data();
    io.g = x.in[4].data();
    io.b = x.b.data();
    io.state_in = x.state.data();
    io.state_out = r.state.data();
    io.history_in = fast ? (const void *)past.data() : x.history.data();
    io.history_out = history.data();
    io.out = r.out.data();
    be->kda_range(be, &kda, &io, n);
    r.history = stored(history.data(), history.size(), fast);
    for (ms_weight &each : w) be->weight_destroy(be, &each);
    oracle_close(be);
    return r;
}

/* In one range, or as two: [0, cut) and [cut, n). */
static results run_kernels(shape s, const inputs &x, uint32_t n, bool fast, uint32_t cut) {
    uint32_t inner = s.heads * s.dim;
    halves past = to_bf16(x.history);
    device in0(x.in[0]), in1(x.in[1]), in2(x.in[2]), in3(x.in[3]), in4(x.in[4]), b(x.b), state0(x.state);
    device history0(fast ? (const void *)past.data() : x.history.data(), x.history.size() * (fast ? 2 : 4));
    device state1(nullptr, x.state.size() * 4), history1(nullptr, x.history.size() * 4);
    device state2(nullptr, x.state.size() * 4), history2(nullptr, x.history.size() * 4);
    device conv0(x.conv[0]), conv1(x.conv[1]), conv2(x.conv[2]), a_log(x.a_log), dt_bias(x.dt_bias), o_norm(x.o_norm);
    device out(nullptr, (size_t)n * inner * 4);
    for (uint32_t part = 0; part < (cut ? 2u : 1u); part++) {
        size_t first = part ? cut : 0;
        kda_args a = {};
        a.heads = s.heads;
        a.dim = s.dim;
        a.taps = s.taps;
        a.n = cut && !part ? cut : n - (uint32_t)first;
        a.gate_bound = -5.0f;
        a.norm_eps = 1e-5f;
        a.conv[0] = conv0.as<float>();
        a.conv[1] = conv1.as<float>();
        a.conv[2] = conv2.as<float>();
        a.a_log = a_log.as<float>();
        a.dt_bias = dt_bias.as<float>();
        a.o_norm = o_norm.as<float>();
        a.in[0] = in0.as<float>() + first * inner;
        a.in[1] = in1.as<float>() + first * inner;
        a.in[2] = in2.as<float>() + first * inner;
        a.e = in3.as<float>() + first * inner;
        a.g = in4.as<float>() + first * inner;
        a.b = b.as<float>() + first * s.heads;
        a.state_in = (part ? state1 : state0).as<float>();
        a.state_out = (part ? state2 : state1).as<float>();
        a.history_in = (part ? history1 : history0).as<void>();
        a.history_out = (part ? history2 : history1).as<void>();
        a.out = out.as<float>() + first * inner;
        a.history_bf16 = fast;
        k_kda_range(0, &a);
    }
    results r;
    r.out = out.get<float>((size_t)n * inner);
    r.state = (cut ? state2 : state1).get<float>(x.state.size());
    std::vector<float> raw = (cut ? history2 : history1).get<float>(x.history.size());
    r.history = stored(raw.data(), raw.size(), fast);
    return r;
}

static void check(shape s, uint32_t n, kernel_values kind, bool fast, uint32_t cut) {
    char label[128];
    (void)snprintf(label, sizeof label, "%u heads, dim %u, %u taps, n %u, values %d, %s, cut %u", s.heads, s.dim,
                   s.taps, n, (int)kind, fast ? "fast" : "reference", cut);
    inputs x = make_inputs(s, n, kind);
    results expected = run_oracle(s, x, n, fast), found = run_kernels(s, x, n, fast, cut);
    expect_bits(expected.out, found.out, label, "output");
    expect_bits(expected.state, found.state, label, "state");
    expect_bits(expected.history, found.history, label, "history");
}

static const shape nano = {4, 64, 4}, tiny_a = {4, 32, 4}, tiny_c = {2, 128, 4};

static void test_shapes(void **state) {
    (void)state;
    static const shape shapes[] = {nano, tiny_a, tiny_c, {1, 128, 8}, {2, 40, 2}, {3, 33, 8}, {2, 7, 3}, {1, 300, 4}};
    static const uint32_t ns[] = {1, 2, 5, 17};
    for (shape s : shapes)
        for (uint32_t n : ns)
            for (int fast = 0; fast < 2; fast++) check(s, n, VALUES_NORMAL, fast, 0);
}

static void test_values(void **state) {
    (void)state;
    static const shape shapes[] = {nano, tiny_c};
    for (shape s : shapes)
        for (int fast = 0; fast < 2; fast++) {
            check(s, 9, VALUES_MIXED, fast, 0);
            check(s, 9, VALUES_NAN, fast, 0);
        }
}

/* A range equals its parts, also when a part is shorter than the history. */
static void test_cuts(void **state) {
    (void)state;
    static const shape shapes[] = {nano, tiny_c};
    static const uint32_t cuts[] = {1, 2, 8, 10};
    for (shape s : shapes)
        for (uint32_t cut : cuts) check(s, 11, VALUES_NORMAL, true, cut);
}

/* No rows: state and history move on unchanged. */
static void test_empty(void **state) {
    (void)state;
    check(nano, 0, VALUES_NORMAL, true, 0);
    check(tiny_c, 0, VALUES_NORMAL, true, 0);
    check(tiny_c, 0, VALUES_NORMAL, false, 0);
}

static void test_fits(void **state) {
    (void)state;
    assert_true(kda_fits(96, 128, 4));
    assert_true(kda_fits(1, KDA_MAX_DIM, 1));
    assert_false(kda_fits(1, KDA_MAX_DIM + 1, 4));
    assert_false(kda_fits(0, 128, 4));
    assert_false(kda_fits(1, 128, 0));
    check({1, 128, 1}, 3, VALUES_NORMAL, true, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shapes), cmocka_unit_test(test_values),
                                       cmocka_unit_test(test_cuts), cmocka_unit_test(test_empty),
                                       cmocka_unit_test(test_fits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
