/* exact.h: one evaluation of a model with every choice that must not change its bits, and the comparison of two. */
#ifndef MS_TESTS_EXACT_H
#define MS_TESTS_EXACT_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/cpu/kernels.h"
#include "base/bytes.h"
#include "session/engine.h"

static const char *const models[] = {"models/k3-nano", "models/mimo-nano", "tests/golden/k3/k3-tiny-a",
                                     "tests/golden/k3/k3-tiny-c", "tests/golden/mimo26/mimo-tiny"};
enum { MODELS = 5, PROMPT = 70, STEPS = 6, ALL = 1000 };

typedef struct setup {
    const char *label;
    ms_precision precision;
    ms_static_format format;
    const char *kernels, *backend; /* NULL: the best of the CPU */
    uint32_t experts, staging, depth, range;
    unsigned threads;
    bool buffered, no_uring, warm, reload, lookahead;
    const char *store;   /* of compressed experts; NULL: raw */
    uint64_t read_limit; /* bytes a second */
} setup;

typedef struct outcome {
    uint64_t logits; /* FNV-1a-64 over all prompt rows and the rows of STEPS greedy tokens */
    ms_digest digest;
} outcome;

static inline ms_status hash_rows(void *arg, uint64_t first, uint32_t rows, const float *logits, ms_error *err) {
    (void)first;
    (void)err;
    ms_engine *const *e = ((void **)arg)[1];
    uint64_t *h = ((void **)arg)[0];
    ms_model_info info;
    ms_engine_info(*e, &info);
    *h = ms_fnv1a64(*h, logits, (size_t)rows * info.vocab * sizeof *logits);
    return MS_OK;
}

static inline void ok(ms_status st, const ms_error *err) {
    if (st != MS_OK) fail_msg("%s", err->message);
}

static inline void export_import(ms_engine *e, ms_session **s) {
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

static inline void continue_greedily(ms_session *s, ms_engine *e, uint64_t *h) {
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

static inline outcome run(const char *model, const setup *u) {
    ms_engine_options o;
    ms_error err;
    ms_engine *e = NULL;
    ms_session *s = NULL;
    ms_engine_options_default(&o, model);
    o.precision = u->precision;
    o.static_format = u->format;
    o.kernels = u->kernels;
    o.backend = u->backend;
    o.context = PROMPT + STEPS + 30;
    if (u->experts != ALL) o.experts = u->experts;
    o.staging = u->staging;
    o.read_depth = u->depth;
    o.threads = u->threads;
    o.buffered_reads = u->buffered;
    o.no_uring = u->no_uring;
    o.no_lookahead = !u->lookahead;
    o.store = u->store;
    o.read_limit = u->read_limit;
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

static inline void same(const char *model, const char *label, const outcome *a, const outcome *b) {
    if (a->logits != b->logits) fail_msg("%s, %s: logits differ", model, label);
    assert_int_equal(a->digest.count, b->digest.count);
    assert_int_equal(a->digest.position, b->digest.position);
    for (uint32_t i = 0; i < a->digest.count; i++)
        if (a->digest.part[i].fnv1a64 != b->digest.part[i].fnv1a64)
            fail_msg("%s, %s: %s state differs", model, label, a->digest.part[i].kind);
}

#endif
