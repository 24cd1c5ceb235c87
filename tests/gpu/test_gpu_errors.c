/* What a GPU backend does with bad numbers, impossible requests and the wrong program; and opening backends by name. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "backend/gpu/gpu_backend.h"
#include "backend/loader.h"
#include "gpu_test.h"
#include "quant/fp8.h"

#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DIM = 64, EXPERTS = 16, TOP = 3, ROWS = 3, HIDDEN = 64, INNER = 32 };

static const ms_scratch_need small = {.rows = ROWS,
                                      .input_cols = 300,
                                      .mlp_width = 64,
                                      .expert = {.hidden = HIDDEN, .inner = INNER},
                                      .pairs = 2,
                                      .kda_heads = 1,
                                      .kda_dim = 16,
                                      .kda_taps = 4,
                                      .mla_heads = 1,
                                      .mla_nope = 8,
                                      .mla_extra = 8,
                                      .mla_value = 8,
                                      .mla_rank = 16,
                                      .gqa_heads = 4,
                                      .gqa_group = 4,
                                      .gqa_key = 8,
                                      .gqa_value = 8,
                                      .context = 4,
                                      .router_experts = EXPERTS};

static ms_backend *open_small(ms_precision precision) {
    ms_error err;
    ms_backend *be = gpu_test_open(precision);
    if (be->scratch_reserve(be, &small, &err) != MS_OK) fail_msg("%s", err.message);
    return be;
}

static void *device(ms_backend *be, const void *from, size_t bytes) {
    void *p;
    assert_int_equal(be->alloc(be, MS_MEM_DEVICE, bytes, "test", &p, NULL), MS_OK);
    if (from) be->upload(be, p, from, bytes);
    return p;
}

static ms_weight weight(ms_backend *be, ms_format format, uint32_t rows, uint32_t cols) {
    ms_weight w;
    float *host = malloc((size_t)rows * cols * sizeof *host);
    assert_non_null(host);
    for (size_t i = 0; i < (size_t)rows * cols; i++) host[i] = (float)(i * 37 % 101) / 50.0f - 1.0f;
    assert_int_equal(be->weight_create(be, &w, format, rows, cols, NULL), MS_OK);
    assert_int_equal(be->weight_fill(be, &w, 0, rows, host, MS_FORMAT_F32, NULL), MS_OK);
    free(host);
    return w;
}

static void expect(ms_backend *be, ms_status code, const char *word) {
    ms_error err = {0};
    assert_int_equal(be->sync(be, &err), code);
    if (!strstr(err.message, word)) fail_msg("expected '%s' in '%s'", word, err.message);
    assert_int_equal(be->sync(be, &err), MS_OK);
}

static void router_row_not_finite(void **state) {
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t b = 0; b < 3; b++) {
        ms_backend *be = open_small(MS_PRECISION_FAST);
        float x[ROWS * DIM], weights[ROWS * TOP];
        uint32_t ids[ROWS * TOP];
        for (size_t i = 0; i < ROWS * DIM; i++) x[i] = (float)(i * 29 % 31) / 31.0f;
        x[DIM + 5] = bad[b];
        x[2 * DIM] = NAN;
        ms_weight gate = weight(be, MS_FORMAT_BF16, EXPERTS, DIM), bias = weight(be, MS_FORMAT_F32, 1, EXPERTS);
        float *dev_x = device(be, x, sizeof x), *dev_weights = device(be, NULL, sizeof weights);
        uint32_t *dev_ids = device(be, NULL, sizeof ids);
        ms_router r = {&gate, &bias, TOP, true, 1.0f};
        be->router_topk(be, dev_ids, dev_weights, dev_x, ROWS, &r);
        be->router_topk(be, dev_ids, dev_weights, dev_x + 2 * DIM, 1, &r); /* its row 0 is bad: not the first failure */
        be->router_topk(be, dev_ids, dev_weights, dev_x, ROWS, &r);
        /* an infinity may end as a sigmoid of 0 or 1, which is a finite score */
        expect(be, MS_ERR_NUMERIC, isnan(bad[b]) ? "row 1" : "row");
        be->download(be, ids, dev_ids, sizeof ids);
        be->download(be, weights, dev_weights, sizeof weights);
        for (uint32_t i = 0; i < TOP; i++) {
            assert_int_equal(ids[2 * TOP + i], i);
            assert_true(weights[2 * TOP + i] == 0.0f);
            assert_true(ids[i] < EXPERTS && weights[i] > 0.0f);
        }
        be->weight_destroy(be, &gate);
        be->weight_destroy(be, &bias);
        be->release(be, MS_MEM_DEVICE, dev_x, sizeof x);
        be->release(be, MS_MEM_DEVICE, dev_ids, sizeof ids);
        be->release(be, MS_MEM_DEVICE, dev_weights, sizeof weights);
        be->destroy(be);
    }
}

/* Equal choices go to the lower index. */
static void router_ties(void **state) {
    (void)state;
    enum { MANY = 700, PICKS = 40 };
    ms_backend *be = gpu_test_open(MS_PRECISION_FAST);
    ms_error err;
    ms_scratch_need want = {.rows = 1, .input_cols = DIM, .router_experts = MANY};
    assert_int_equal(be->scratch_reserve(be, &want, &err), MS_OK);
    float host[MANY], zero[DIM] = {0}, got_weights[PICKS];
    uint32_t got[PICKS];
    for (uint32_t i = 0; i < MANY; i++) host[i] = i % 100 == 7 ? 2.0f : i % 2 ? 1.0f : 0.5f;
    ms_weight gate = weight(be, MS_FORMAT_BF16, MANY, DIM), bias;
    assert_int_equal(be->weight_create(be, &bias, MS_FORMAT_F32, 1, MANY, NULL), MS_OK);
    assert_int_equal(be->weight_fill(be, &bias, 0, 1, host, MS_FORMAT_F32, NULL), MS_OK);
    float *x = device(be, zero, sizeof zero), *weights = device(be, NULL, sizeof got_weights);
    uint32_t *ids = device(be, NULL, sizeof got);
    ms_router r = {&gate, &bias, PICKS, true, 1.0f};
    be->router_topk(be, ids, weights, x, 1, &r);
    be->download(be, got, ids, sizeof got);
    assert_int_equal(be->sync(be, &err), MS_OK);
    /* 7, 107, ... 607 are largest; the other 33 are the lowest odd ids, which hold 7 as well */
    uint32_t at = 0;
    for (uint32_t i = 1; i <= 67; i += 2) assert_int_equal(got[at++], i);
    for (uint32_t i = 107; i <= 607; i += 100) assert_int_equal(got[at++], i);
    assert_int_equal(at, PICKS);
    be->weight_destroy(be, &gate);
    be->weight_destroy(be, &bias);
    be->release(be, MS_MEM_DEVICE, x, sizeof zero);
    be->release(be, MS_MEM_DEVICE, weights, sizeof got_weights);
    be->release(be, MS_MEM_DEVICE, ids, sizeof got);
    be->destroy(be);
}

/* A non-finite activation passes a quantised product as NaN, so that the router can see it. */
static void not_finite_passes_products(void **state) {
    (void)state;
    ms_backend *be = open_small(MS_PRECISION_FAST);
    ms_weight w = weight(be, MS_FORMAT_Q8, 9, 300);
    float x[2 * 300], out[2 * 9], *dev_x = device(be, NULL, sizeof x), *dev_out = device(be, NULL, sizeof out);
    for (uint32_t at = 0; at < 300; at += 37) {
        for (int kind = 0; kind < 2; kind++) {
            for (size_t i = 0; i < 600; i++) x[i] = (float)(i % 7);
            x[at] = kind ? -INFINITY : NAN;
            be->upload(be, dev_x, x, sizeof x);
            ms_product p = {&w, dev_out, 9, false};
            be->project(be, dev_x, 2, &p, 1);
            be->download(be, out, dev_out, sizeof out);
            for (int r = 0; r < 9; r++) assert_true(isnan(out[r]) && isfinite(out[9 + r]));
        }
    }
    be->weight_destroy(be, &w);
    be->release(be, MS_MEM_DEVICE, dev_x, sizeof x);
    be->release(be, MS_MEM_DEVICE, dev_out, sizeof out);
    be->destroy(be);
}

static void weight_errors(void **state) {
    (void)state;
    ms_backend *be = open_small(MS_PRECISION_FAST);
    static const ms_format formats[] = {MS_FORMAT_F32, MS_FORMAT_BF16, MS_FORMAT_Q8};
    float host[20 * 150];
    for (size_t f = 0; f < 3; f++) {
        ms_weight w;
        ms_error err;
        for (size_t i = 0; i < 20 * 150; i++) host[i] = (float)i;
        host[12 * 150 + 130] = INFINITY;
        host[19 * 150] = NAN;
        assert_int_equal(be->weight_create(be, &w, formats[f], 22, 150, &err), MS_OK);
        assert_int_equal(be->weight_fill(be, &w, 2, 20, host, MS_FORMAT_F32, &err), MS_ERR_NUMERIC);
        assert_non_null(strstr(err.message, "row 14 column 130"));
        host[12 * 150 + 130] = 3.4e38f; /* finite, but its bf16 is not */
        host[19 * 150] = 0.0f;
        ms_status large = be->weight_fill(be, &w, 2, 20, host, MS_FORMAT_F32, &err);
        assert_int_equal(large, formats[f] == MS_FORMAT_BF16 ? MS_ERR_NUMERIC : MS_OK);
        if (large != MS_OK) assert_non_null(strstr(err.message, "row 14 column 130"));
        assert_int_equal(be->weight_fill(be, &w, 20, 3, host, MS_FORMAT_F32, &err), MS_ERR_INTERNAL);
        assert_int_equal(be->weight_fill(be, &w, 0, 1, host, MS_FORMAT_Q8, &err), MS_ERR_INTERNAL);
        be->weight_destroy(be, &w);
        assert_int_equal(be->weight_create(be, &w, formats[f], UINT32_MAX, UINT32_MAX, &err), MS_ERR_MEMORY);
        assert_int_equal(be->weight_create(be, &w, formats[f], 0, 1, &err), MS_ERR_FORMAT);
    }
    be->destroy(be);
}

/* Codes that are no numbers and scales that make none, whatever the rows become. */
static void fp8_errors(void **state) {
    (void)state;
    enum { ROWS_FP8 = 21, COLS = 700 };
    static const ms_format formats[] = {MS_FORMAT_FP8, MS_FORMAT_Q8, MS_FORMAT_BF16, MS_FORMAT_F32};
    const size_t record = ms_fp8_record_bytes(COLS), head = record - COLS;
    const float inf = INFINITY, one = 1.0f;
    uint8_t *host = calloc(ROWS_FP8, record);
    assert_non_null(host);
    ms_backend *be = open_small(MS_PRECISION_FAST);
    for (size_t f = 0; f < 4; f++) {
        ms_weight w;
        ms_error err;
        for (size_t r = 0; r < ROWS_FP8; r++)
            for (size_t g = 0; g < head / sizeof one; g++) memcpy(host + r * record + g * sizeof one, &one, sizeof one);
        assert_int_equal(be->weight_create(be, &w, formats[f], ROWS_FP8, COLS, &err), MS_OK);
        assert_int_equal(be->weight_fill(be, &w, 0, ROWS_FP8, host, MS_FORMAT_FP8, &err), MS_OK);
        host[5 * record + head + 657] = f % 2 ? 0xff : 0x7f;
        assert_int_equal(be->weight_fill(be, &w, 1, ROWS_FP8 - 1, host, MS_FORMAT_FP8, &err), MS_ERR_NUMERIC);
        if (!strstr(err.message, "row 6 column 657")) fail_msg("%s", err.message);
        host[5 * record + head + 657] = 0;
        host[7 * record + head + 300] = 0x38;
        memcpy(host + 7 * record + 2 * sizeof inf, &inf, sizeof inf);
        assert_int_equal(be->weight_fill(be, &w, 0, ROWS_FP8, host, MS_FORMAT_FP8, &err), MS_ERR_NUMERIC);
        if (!strstr(err.message, "row 7 column 256")) fail_msg("%s", err.message); /* 0 * infinity comes first */
        be->weight_destroy(be, &w);
    }
    ms_weight w;
    ms_error err;
    assert_int_equal(be->weight_create(be, &w, MS_FORMAT_FP8, 2, 3, &err), MS_OK);
    assert_int_equal(be->weight_fill(be, &w, 0, 1, host, MS_FORMAT_F32, &err), MS_ERR_INTERNAL);
    assert_int_equal(be->weight_fill(be, &w, 0, 1, host, MS_FORMAT_BF16, &err), MS_ERR_INTERNAL);
    be->weight_destroy(be, &w);
    free(host);
    be->destroy(be);
}

/* A record longer than an upload piece goes in windows of columns with their scales: the values and the errors are those
 * of rows that go whole. */
static void long_fp8_rows(void **state) {
    (void)state;
    enum { COLS = 4 * 1024 * 1024 + 300 };
    const size_t record = ms_fp8_record_bytes(COLS), head = record - COLS;
    uint8_t *host = malloc(record);
    float *back = malloc(COLS * sizeof *back);
    assert_true(host && back);
    for (size_t g = 0; g < head / sizeof(float); g++) {
        const float scale = (float)(g % 100 + 1) / 64.0f;
        memcpy(host + g * sizeof scale, &scale, sizeof scale);
    }
    for (size_t i = 0; i < COLS; i++) host[head + i] = (uint8_t)(i * 31 % 127);
    ms_backend *be = open_small(MS_PRECISION_FAST);
    ms_weight w;
    ms_error err;
    assert_int_equal(be->weight_create(be, &w, MS_FORMAT_F32, 1, COLS, &err), MS_OK);
    assert_int_equal(be->weight_fill(be, &w, 0, 1, host, MS_FORMAT_FP8, &err), MS_OK);
    be->download(be, back, w.data, COLS * sizeof *back);
    for (size_t i = 0; i < COLS; i++)
        assert_true(back[i] == ms_e4m3(host[head + i]) * ((float)(i / 128 % 100 + 1) / 64.0f));
    host[head + COLS - 1] = 0x7f;
    assert_int_equal(be->weight_fill(be, &w, 0, 1, host, MS_FORMAT_FP8, &err), MS_ERR_NUMERIC);
    if (!strstr(err.message, "row 0 column 4194603")) fail_msg("%s", err.message);
    be->weight_destroy(be, &w);
    free(host);
    free(back);
    be->destroy(be);
}

/* Rows longer than an upload piece go in windows of columns. */
static void long_rows(void **state) {
    (void)state;
    enum { COLS = 3 * 1024 * 1024 + 100 };
    ms_backend *be = open_small(MS_PRECISION_FAST);
    float *host = malloc(COLS * sizeof *host), *back = malloc(COLS * sizeof *back);
    assert_true(host && back);
    for (size_t i = 0; i < COLS; i++) host[i] = (float)(i % 1000);
    ms_weight w;
    ms_error err;
    assert_int_equal(be->weight_create(be, &w, MS_FORMAT_F32, 1, COLS, &err), MS_OK);
    assert_int_equal(be->weight_fill(be, &w, 0, 1, host, MS_FORMAT_F32, &err), MS_OK);
    be->download(be, back, w.data, COLS * sizeof *back);
    assert_memory_equal(back, host, COLS * sizeof *back);
    host[COLS - 1] = NAN;
    assert_int_equal(be->weight_fill(be, &w, 0, 1, host, MS_FORMAT_F32, &err), MS_ERR_NUMERIC);
    assert_non_null(strstr(err.message, "row 0 column 3145827"));
    be->weight_destroy(be, &w);
    /* three pieces of one row: the error counts from the first row of the fill */
    host[COLS - 1] = 0.0f;
    host[3 * (COLS / 3) - 1] = NAN;
    assert_int_equal(be->weight_create(be, &w, MS_FORMAT_BF16, 5, COLS / 3, &err), MS_OK);
    assert_int_equal(be->weight_fill(be, &w, 1, 3, host, MS_FORMAT_F32, &err), MS_ERR_NUMERIC);
    if (!strstr(err.message, "row 3 column 1048608")) fail_msg("%s", err.message);
    be->weight_destroy(be, &w);
    free(host);
    free(back);
    be->destroy(be);
}

static void bad_expert(void **state) {
    (void)state;
    ms_backend *be = open_small(MS_PRECISION_FAST);
    ms_expert_shape s = {.hidden = HIDDEN, .inner = INNER};
    size_t bytes = ms_expert_bytes(s), packed = HIDDEN * INNER / 2, matrix = packed + HIDDEN * INNER / 32;
    uint8_t *staging, *slot = device(be, NULL, bytes);
    ms_error err;
    assert_int_equal(be->alloc(be, MS_MEM_STAGING, bytes + 3, "staging", (void **)&staging, NULL), MS_OK);
    memset(staging, 100, bytes + 3);
    assert_int_equal(be->install(be, slot, staging + 3, s, &err), MS_OK);
    /* source order is w1, w2, w3; w1 and w3 have 2 groups a row, w2 one */
    staging[3 + matrix + packed + 40] = 255;
    assert_int_equal(be->install(be, slot, staging + 3, s, &err), MS_ERR_FORMAT);
    assert_non_null(strstr(err.message, "w2 scale of row 40 group 0"));
    staging[3 + packed + 7] = 255;
    assert_int_equal(be->install(be, slot, staging + 3, s, &err), MS_ERR_FORMAT);
    assert_non_null(strstr(err.message, "w1 scale of row 3 group 1"));
    assert_int_equal(be->install(be, slot, staging, (ms_expert_shape){.hidden = 33, .inner = 32}, &err), MS_ERR_INTERNAL);
    assert_int_equal(be->sync(be, &err), MS_OK);
    be->release(be, MS_MEM_STAGING, staging, bytes + 3);
    be->release(be, MS_MEM_DEVICE, slot, bytes);
    be->destroy(be);
}

/* Asking for more than was reserved is kept as a failure; nothing is written. */
static void beyond_scratch(void **state) {
    (void)state;
    ms_backend *be = open_small(MS_PRECISION_FAST);
    enum { FLOATS = 4 * 400 };
    float host[FLOATS];
    memset(host, 0x55, sizeof host);
    float *out = device(be, host, sizeof host), *x = device(be, NULL, sizeof host);
    uint32_t *ids = device(be, NULL, 64);
    ms_weight w = weight(be, MS_FORMAT_Q8, 16, 64), wide = weight(be, MS_FORMAT_Q8, 400, 400),
              f32 = weight(be, MS_FORMAT_F32, 32, 64);
    ms_product p = {&w, out, 16, false};
    be->project(be, x, ROWS + 1, &p, 1);
    expect(be, MS_ERR_INTERNAL, "project");
    p.weight = &wide;
    be->project(be, x, 1, &p, 1);
    expect(be, MS_ERR_INTERNAL, "project");
    be->mlp(be, out, x, 1, &wide, &wide, &wide, (ms_situ){4, 25});
    expect(be, MS_ERR_INTERNAL, "mlp");
    be->rms_norm(be, out, x, 1, 64, &w, 1e-5f);
    expect(be, MS_ERR_INTERNAL, "rms_norm");
    ms_mix mix = {x, 64, 300, x, &f32};
    be->mix_norm(be, out, &mix, 1, 64, 1e-5f, NULL);
    expect(be, MS_ERR_INTERNAL, "mix_norm");
    ms_kda kda = {1, 17, 4, -5, 1e-5f, {&f32, &f32, &f32}, &f32, &f32, &f32};
    ms_kda_io kda_io = {x, x, x, x, x, x, x, out, x, out, out};
    be->kda_range(be, &kda, &kda_io, 1);
    expect(be, MS_ERR_INTERNAL, "kda_range");
    ms_mla mla = {1, 8, 8, 8, 16, 1e-6f, 0.25f, &f32, &w};
    ms_mla_io mla_io = {x, x, x, out, 4, out};
    be->mla_range(be, &mla, &mla_io, 1);
    expect(be, MS_ERR_INTERNAL, "context");
    const ms_gqa good = {4, 2, 8, 8, 4, 2, 0.3f, 1, NULL};
    ms_gqa gqa[9];
    for (int i = 0; i < 9; i++) gqa[i] = good;
    gqa[0].heads = 3;
    gqa[1].heads = gqa[1].kv_heads = 5;
    gqa[2].kv_heads = 0;
    gqa[3].key = 9;
    gqa[4].value = 9;
    gqa[5].rotary = 10;
    gqa[6].rotary = 3;
    gqa[7].sink = &w; /* Q8 */
    gqa[8].window = 0;
    for (int i = 0; i < 9; i++) {
        ms_gqa_io io = {x, x, x, x, out, i == 8 ? 256 : 0, 0, out};
        be->gqa_range(be, &gqa[i], &io, 1);
        expect(be, MS_ERR_INTERNAL, "gqa_range");
    }
    static const struct {
        uint64_t ring, position;
        uint32_t n;
    } bad[] = {{0, 4, 1}, {0, 2, 3}, {0, 0, ROWS + 1}, {250, 0, 1}};
    for (int i = 0; i < 4; i++) {
        ms_gqa_io io = {x, x, x, x, out, bad[i].ring, bad[i].position, out};
        be->gqa_range(be, &good, &io, bad[i].n);
        expect(be, MS_ERR_INTERNAL, "gqa_range");
    }
    ms_router r = {&f32, &f32, 2, true, 1};
    be->router_topk(be, ids, out, x, 1, &r);
    expect(be, MS_ERR_INTERNAL, "router_topk");
    be->experts_begin(be, x, ROWS + 1, small.expert);
    expect(be, MS_ERR_INTERNAL, "experts_begin");
    be->experts_begin(be, x, 2, small.expert);
    uint32_t row = 2, pair = 0;
    ms_expert_batch batch = {x, &row, &pair, 1};
    be->experts_run(be, out, small.expert, (ms_situ){4, 25}, &batch, 1);
    expect(be, MS_ERR_INTERNAL, "experts_run");
    row = 0;
    pair = 2;
    be->experts_run(be, out, small.expert, (ms_situ){4, 25}, &batch, 1);
    expect(be, MS_ERR_INTERNAL, "experts_run");
    be->download(be, host, out, sizeof host);
    for (size_t i = 0; i < sizeof host; i++) assert_int_equal(((uint8_t *)host)[i], 0x55);
    be->weight_destroy(be, &w);
    be->weight_destroy(be, &wide);
    be->weight_destroy(be, &f32);
    be->release(be, MS_MEM_DEVICE, out, sizeof host);
    be->release(be, MS_MEM_DEVICE, x, sizeof host);
    be->release(be, MS_MEM_DEVICE, ids, 64);
    be->destroy(be);
}

static void memory(void **state) {
    (void)state;
    ms_backend *be = open_small(MS_PRECISION_REFERENCE);
    static const size_t sizes[] = {0, 1, 4097, (size_t)9 << 20};
    ms_error err;
    for (size_t i = 0; i < 4; i++) {
        uint8_t *host = malloc(sizes[i] + 1), *p[2];
        assert_non_null(host);
        for (int kind = 0; kind < 2; kind++) {
            assert_int_equal(be->alloc(be, (ms_memory_kind)kind, sizes[i], "test", (void **)&p[kind], NULL), MS_OK);
            assert_int_equal((uintptr_t)p[kind] % (kind == MS_MEM_STAGING ? 4096 : 64), 0);
        }
        for (size_t b = 0; b < sizes[i]; b++) assert_int_equal(p[1][b], 0);
        memset(host, 1, sizes[i]);
        be->download(be, host, p[0], sizes[i]);
        for (size_t b = 0; b < sizes[i]; b++) assert_int_equal(host[b], 0);
        for (size_t b = 0; b < sizes[i]; b++) host[b] = (uint8_t)(b * 7 + b / 999);
        be->upload(be, p[0], host, sizes[i]);
        be->copy(be, p[1], p[0], sizes[i]);
        be->zero(be, p[0], sizes[i] / 2);
        assert_int_equal(be->sync(be, &err), MS_OK);
        assert_memory_equal(p[1], host, sizes[i]);
        be->download(be, host, p[0], sizes[i]);
        for (size_t b = 0; b < sizes[i]; b++) assert_int_equal(host[b], b < sizes[i] / 2 ? 0 : p[1][b]);
        free(host);
        for (int kind = 0; kind < 2; kind++) be->release(be, (ms_memory_kind)kind, p[kind], sizes[i]);
    }
    void *p;
    assert_int_equal(be->alloc(be, MS_MEM_DEVICE, SIZE_MAX, "everything", &p, &err), MS_ERR_MEMORY);
    assert_non_null(strstr(err.message, "everything"));
    assert_int_equal(be->sync(be, &err), MS_OK);
    ms_scratch_need huge = {.rows = UINT32_MAX, .input_cols = UINT32_MAX, .mlp_width = UINT32_MAX};
    assert_int_equal(be->scratch_reserve(be, &huge, &err), MS_ERR_MEMORY);
    be->destroy(be);
}

static int lines;
static void count_lines(void *arg, const char *line) {
    (void)arg;
    assert_null(strchr(line, '\n'));
    lines++;
}

static void names(void **state) {
    (void)state;
    ms_backend *be;
    ms_error err;
    ms_backend_options o = {.name = "vulkan", .threads = 1, .log = count_lines};
    assert_int_equal(ms_backend_open(&be, &o, &err), MS_ERR_USAGE);
    assert_non_null(strstr(err.message, "vulkan"));
    o.name = NULL;
    assert_int_equal(ms_backend_open(&be, &o, &err), MS_OK);
    assert_string_equal(be->name, "cpu");
    be->destroy(be);
    static const char *const gpus[] = {"hip", "cuda"};
    for (size_t i = 0; i < 2; i++) {
        o.name = gpus[i];
        ms_status st = ms_backend_open(&be, &o, &err);
        if (st == MS_OK) {
            be->destroy(be);
            continue;
        }
        assert_int_equal(st, MS_ERR_UNSUPPORTED);
        assert_non_null(strstr(err.message, gpus[i]));
        assert_null(be);
    }
    o.name = "auto";
    lines = 0;
    assert_int_equal(ms_backend_open(&be, &o, &err), MS_OK);
    assert_int_equal(lines, strcmp(be->name, "cpu") ? 0 : 1);
    be->destroy(be);
    o.name = "emu";
    o.device = 1;
    assert_int_equal(ms_backend_open(&be, &o, &err), MS_ERR_UNSUPPORTED);
}

static void other_program(void **state) {
    (void)state;
    void *library = dlopen("libmoonshine_emu.so", RTLD_NOW), *symbol;
    if (!library) fail_msg("%s", dlerror());
    symbol = dlsym(library, MS_GPU_CREATE_SYMBOL);
    assert_non_null(symbol);
    ms_backend_gpu_create_fn *create;
    memcpy(&create, &symbol, sizeof create);
    ms_gpu_options good = {MS_GPU_INTERFACE, sizeof(ms_backend), MS_VERSION, MS_PRECISION_FAST, 0, false},
                   bad[3] = {good, good, good};
    bad[0].interface++;
    bad[1].backend_bytes--;
    bad[2].version = "0.0";
    for (size_t i = 0; i < 3; i++) {
        ms_backend *be;
        ms_error err;
        assert_int_equal(create(&be, &bad[i], &err), MS_ERR_UNSUPPORTED);
        assert_null(be);
    }
    ms_backend *be;
    assert_int_equal(create(&be, &good, NULL), MS_OK);
    assert_string_equal(be->name, "gpu-emulated");
    be->destroy(be);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(router_row_not_finite),
        cmocka_unit_test(not_finite_passes_products),
        cmocka_unit_test(weight_errors),
        cmocka_unit_test(fp8_errors),
        cmocka_unit_test(long_fp8_rows),
        cmocka_unit_test(long_rows),
        cmocka_unit_test(bad_expert),
        cmocka_unit_test(beyond_scratch),
        cmocka_unit_test(memory),
        cmocka_unit_test(names),
        cmocka_unit_test(other_program),
        cmocka_unit_test(router_ties),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
