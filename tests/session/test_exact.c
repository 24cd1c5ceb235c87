/* Bits are a pure function of weights, tokens and precision: not of how the tokens are cut, of threads, cache size,
 * queue depth, read path, cache contents, kernels, or of a trip through a state file. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/cpu/kernels.h"
#include "base/bytes.h"
#include "session/engine.h"

static const char *const models[] = {"models/k3-nano", "tests/golden/k3/k3-tiny-a", "tests/golden/k3/k3-tiny-c",
                                     "tests/golden/mimo26/mimo-tiny"};
enum { MODELS = 4, PROMPT = 70, STEPS = 6, ALL = 1000 };

typedef struct setup {
    const char *label;
    ms_precision precision;
    ms_static_format format;
    const char *kernels;
    uint32_t experts, staging, depth, range;
    unsigned threads;
    bool buffered, no_uring, warm, reload, lookahead;
} setup;

typedef struct outcome {
    uint64_t logits; /* FNV-1a-64 over all prompt rows and the rows of STEPS greedy tokens */
    ms_digest digest;
} outcome;

static ms_status hash_rows(void *arg, uint64_t first, uint32_t rows, const float *logits, ms_error *err) {
    (void)first;
    (void)err;
    ms_engine *const *e = ((void **)arg)[1];
    uint64_t *h = ((void **)arg)[0];
    ms_model_info info;
    ms_engine_info(*e, &info);
    *h = ms_fnv1a64(*h, logits, (size_t)rows * info.vocab * sizeof *logits);
    return MS_OK;
}

static void ok(ms_status st, const ms_error *err) {
    if (st != MS_OK) fail_msg("%s", err->message);
}

static void export_import(ms_engine *e, ms_session **s) {
    char dir[] = "/tmp/ms-exact-XXXXXX", path[64];
    ms_error err;
    assert_non_null(mkdtemp(dir));
    (void)snprintf(path, sizeof path, "%s/state", dir);
    ok(ms_session_export(*s, path, false, &err), &err);
    ms_session_destroy(*s);
    ok(ms_session_create(s, e, &err), &err);
    ok(ms_session_import(*s, path, &err), &err);
    unlink(path);
    rmdir(dir);
}

static void continue_greedily(ms_session *s, ms_engine *e, uint64_t *h) {
    ms_model_info info;
    ms_engine_info(e, &info);
    ms_error err;
    uint32_t id = 7; /* the first continuation is fixed: an imported session has no logits yet */
    for (int i = 0; i < STEPS; i++) {
        ok(ms_session_forward(s, &id, 1, NULL, &err), &err);
        const float *row = ms_session_logits(s);
        *h = ms_fnv1a64(*h, row, info.vocab * sizeof *row);
        ms_sampler greedy;
        ms_sampler_greedy(&greedy);
        ok(ms_sampler_pick(&greedy, row, info.vocab, &id, &err), &err);
    }
}

static outcome run(const char *model, const setup *u) {
    ms_engine_options o;
    ms_error err;
    ms_engine *e = NULL;
    ms_session *s = NULL;
    ms_engine_options_default(&o, model);
    o.precision = u->precision;
    o.static_format = u->format;
    o.kernels = u->kernels;
    o.context = PROMPT + STEPS + 30;
    if (u->experts != ALL) o.experts = u->experts;
    o.staging = u->staging;
    o.read_depth = u->depth;
    o.threads = u->threads;
    o.buffered_reads = u->buffered;
    o.no_uring = u->no_uring;
    o.no_lookahead = !u->lookahead;
    ok(ms_engine_open(&e, &o, &err), &err);
    ok(ms_session_create(&s, e, &err), &err);

    ms_model_info info;
    ms_engine_info(e, &info);
    uint32_t ids[PROMPT];
    for (uint32_t i = 0; i < PROMPT; i++)
        ids[i] = (i * 2654435761u >> 8) % (info.vocab - 256 > 256 ? info.vocab - 256 : info.vocab);
    if (u->warm) {
        ok(ms_session_forward(s, ids + 3, 50, NULL, &err), &err);
        ms_session_reset(s);
    }
    outcome out = {.logits = MS_FNV1A64_INIT};
    void *arg[2] = {&out.logits, &e};
    ms_forward_options fo = {.range = u->range, .all_logits = true, .sink = hash_rows, .sink_arg = arg};
    ok(ms_session_forward(s, ids, PROMPT, &fo, &err), &err);
    if (u->reload) export_import(e, &s);
    continue_greedily(s, e, &out.logits);
    ok(ms_session_digest(s, &out.digest, &err), &err);
    ms_session_destroy(s);
    ms_engine_close(e);
    return out;
}

static void same(const char *model, const char *label, const outcome *a, const outcome *b) {
    if (a->logits != b->logits) fail_msg("%s, %s: logits differ", model, label);
    assert_int_equal(a->digest.count, b->digest.count);
    assert_int_equal(a->digest.position, b->digest.position);
    for (uint32_t i = 0; i < a->digest.count; i++)
        if (a->digest.part[i].fnv1a64 != b->digest.part[i].fnv1a64)
            fail_msg("%s, %s: %s state differs", model, label, a->digest.part[i].kind);
}

static const setup variants[] = {
    {.label = "range 1", .experts = ALL, .range = 1},
    {.label = "range 2", .experts = ALL, .range = 2},
    {.label = "range 3", .experts = ALL, .range = 3},
    {.label = "range 5", .experts = ALL, .range = 5},
    {.label = "range 16", .experts = ALL, .range = 16},
    {.label = "range 64", .experts = ALL, .range = 64},
    {.label = "two threads", .experts = ALL, .threads = 2},
    {.label = "three threads, range 7", .experts = ALL, .threads = 3, .range = 7},
    {.label = "no slots", .experts = 0},
    {.label = "one slot", .experts = 1},
    {.label = "one slot, token by token", .experts = 1, .range = 1},
    {.label = "two slots, one buffer", .experts = 2, .staging = 1},
    {.label = "five slots, depth 1", .experts = 5, .depth = 1},
    {.label = "five slots, depth 3", .experts = 5, .depth = 3, .range = 4},
    {.label = "three slots, depth 16", .experts = 3, .depth = 16, .staging = 16, .range = 1},
    {.label = "buffered", .experts = 3, .buffered = true},
    {.label = "pread", .experts = 3, .no_uring = true},
    {.label = "warm cache", .experts = 4, .warm = true},
    {.label = "export and import", .experts = 4, .reload = true},
    {.label = "lookahead, no slots", .experts = 0, .lookahead = true, .range = 1},
    {.label = "lookahead, three slots", .experts = 3, .lookahead = true, .range = 1},
    {.label = "lookahead, three slots, ranges", .experts = 3, .lookahead = true, .range = 5},
    {.label = "lookahead, two threads", .experts = 2, .lookahead = true, .range = 1, .threads = 2},
    {.label = "lookahead, two buffers", .experts = 1, .lookahead = true, .range = 1, .staging = 2},
    {.label = "lookahead, depth 1", .experts = 2, .lookahead = true, .range = 1, .depth = 1},
    {.label = "lookahead, pread", .experts = 2, .lookahead = true, .range = 1, .no_uring = true},
    {.label = "lookahead, export and import", .experts = 4, .lookahead = true, .reload = true},
    {.label = "scalar kernels", .experts = ALL, .kernels = "scalar"},
    {.label = "scalar kernels, two threads, range 3", .experts = 2, .kernels = "scalar", .threads = 2, .range = 3},
    {.label = "avx2 kernels", .experts = ALL, .kernels = "avx2"},
    {.label = "avx512 kernels", .experts = ALL, .kernels = "avx512"},
    {.label = "avx512 kernels, two threads, range 3", .experts = 2, .kernels = "avx512", .threads = 2, .range = 3},
};

static void check_all(ms_precision precision, ms_static_format format) {
    for (int m = 0; m < MODELS; m++) {
        setup base = {.precision = precision, .format = format, .experts = ALL, .threads = 1};
        outcome want = run(models[m], &base);
        for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++) {
            setup u = variants[i];
            if (u.kernels && !ms_cpu_kernels_find(u.kernels)) continue; /* this processor lacks them */
            u.precision = precision;
            u.format = format;
            if (!u.threads) u.threads = 1;
            outcome got = run(models[m], &u);
            same(models[m], u.label, &want, &got);
        }
        /* the check can fail: another precision must give other bits */
        setup other = base;
        other.precision = precision == MS_PRECISION_FAST ? MS_PRECISION_REFERENCE : MS_PRECISION_FAST;
        outcome differs = run(models[m], &other);
        assert_true(differs.logits != want.logits);
    }
}

static void fast_q8(void **state) {
    (void)state;
    check_all(MS_PRECISION_FAST, MS_STATIC_Q8);
}
static void fast_bf16(void **state) {
    (void)state;
    check_all(MS_PRECISION_FAST, MS_STATIC_BF16);
}
static void reference_bf16(void **state) {
    (void)state;
    check_all(MS_PRECISION_REFERENCE, MS_STATIC_BF16);
}
static void reference_q8(void **state) {
    (void)state;
    check_all(MS_PRECISION_REFERENCE, MS_STATIC_Q8);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(fast_q8), cmocka_unit_test(fast_bf16),
                                       cmocka_unit_test(reference_bf16), cmocka_unit_test(reference_q8)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
