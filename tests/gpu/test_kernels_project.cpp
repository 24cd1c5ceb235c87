/* Q8 products on wide tiles against the same products on small ones, which the tests of operations hold against the
 * CPU. */
#include "test_kernels.h"

#include "backend/gpu/k_dense.h"

struct weight {
    std::vector<int8_t> data;
    floats scales;
    uint32_t rows;
};

static weight make_weight(uint32_t rows, uint32_t cols, uint32_t salt) {
    weight w = {std::vector<int8_t>(rows * k_q8_stride(cols)), values((size_t)rows * k_q8_groups(cols), salt), rows};
    uint64_t state = salt;
    for (size_t i = 0; i < w.data.size(); i++)
        w.data[i] = (int8_t)(i % k_q8_stride(cols) < cols ? (int)(next_random(&state) % 255) - 127 : 0);
    return w;
}

/* Results of both weights for n rows, rows of the second one three floats further apart than they are long. */
static floats run(const floats &x, uint32_t n, uint32_t cols, const weight &first, const weight &second, bool wide) {
    const uint32_t groups = k_q8_groups(cols), stride = second.rows + 3;
    const size_t a_count = (size_t)n * first.rows, b_count = (size_t)n * stride;
    device in(x), q(nullptr, (size_t)n * groups * K_Q8_GROUP), scales(nullptr, (size_t)n * groups * 4);
    device a_data(first.data.data(), first.data.size()), b_data(second.data.data(), second.data.size());
    device a_scales(first.scales), b_scales(second.scales), a_out(floats(a_count, 7.0f)), b_out(floats(b_count, 7.0f));
    k_quantise_args quantise = {};
    quantise.q = q.as<int8_t>();
    quantise.scales = scales.as<float>();
    quantise.x = in.as<float>();
    quantise.n = n;
    quantise.cols = cols;
    k_quantise(0, &quantise);
    k_project_args a = {};
    a.count = 2;
    a.x = in.as<float>();
    a.x_q = quantise.q;
    a.x_s = quantise.scales;
    a.n = n;
    a.cols = cols;
    a.wide = wide;
    a.product[0] = {a_data.as<void>(), a_scales.as<float>(), a_out.as<float>(), first.rows, first.rows, K_MODE_Q8, 0};
    a.product[1] = {b_data.as<void>(), b_scales.as<float>(), b_out.as<float>(), stride, second.rows, K_MODE_Q8, 0};
    k_project(0, &a);
    floats out = a_out.get<float>(a_count), more = b_out.get<float>(b_count);
    out.insert(out.end(), more.begin(), more.end());
    return out;
}

/* Every number of groups up to two of each partial sum, rows that fill no tile, and inputs of every kind. */
static void test_wide(void **state) {
    (void)state;
    static const uint32_t shapes[][4] = {{70, 16, 131, 5},   {2, 129, 15, 128},   {130, 384, 7, 1},
                                         {64, 500, 129, 64}, {129, 650, 33, 300}, {65, 1024, 128, 9}};
    for (const uint32_t *s : shapes)
        for (int kind = VALUES_NORMAL; kind <= VALUES_NAN; kind++) {
            char label[64];
            (void)snprintf(label, sizeof label, "%u rows, %u columns, values %d", s[0], s[1], kind);
            const floats x = values((size_t)s[0] * s[1], 1, (kernel_values)kind);
            const weight first = make_weight(s[2], s[1], 2), second = make_weight(s[3], s[1], 3);
            expect_bits(run(x, s[0], s[1], first, second, false), run(x, s[0], s[1], first, second, true), label,
                        "result");
        }
}

/* Large products of many rows only. */
static void test_pays(void **state) {
    (void)state;
    k_project_args a = {};
    a.count = 2;
    a.n = 512;
    a.product[0].rows = 12288;
    a.product[0].mode = K_MODE_Q8;
    a.product[1].rows = 1 << 20;
    a.product[1].mode = K_MODE_BF16;
    assert_true(wide_q8_pays(&a));
    a.n = WIDE_Q8_LEAST - 1;
    assert_false(wide_q8_pays(&a));
    a.n = WIDE_Q8_LEAST;
    assert_true(wide_q8_pays(&a));
    a.product[0].rows = 63 * WIDE_Q8_W;
    assert_false(wide_q8_pays(&a));
    a.product[0].rows++;
    assert_true(wide_q8_pays(&a));
    a.product[0].rows = UINT32_MAX;
    assert_false(wide_q8_pays(&a));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_wide), cmocka_unit_test(test_pays)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
