#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "model_test.h"

#include "../session/engine_util.h"
#include "gpu_test.h"
#include "lane/mimo26/mimo_synth.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STEPS = 2, SLOTS = 2, MOST = 512 };

typedef struct outcome {
    float *logits; /* [rows][vocab] */
    size_t rows;
    uint32_t vocab;
    uint64_t guesses, right; /* reads */
    ms_digest digest;
} outcome;

static void keep(outcome *out, const float *rows, size_t count) {
    out->logits = realloc(out->logits, (out->rows + count) * out->vocab * sizeof *rows);
    assert_non_null(out->logits);
    memcpy(out->logits + out->rows * out->vocab, rows, count * out->vocab * sizeof *rows);
    out->rows += count;
}

static ms_status sink(void *arg, uint64_t first, uint32_t rows, const float *logits, ms_error *err) {
    (void)first;
    (void)err;
    keep(arg, logits, rows);
    return MS_OK;
}

/* Few slots, so that experts are evicted and streamed. */
static ms_engine *open_model(const model_case *c, const char *backend) {
    ms_engine_options o;
    ms_engine *e = NULL;
    ms_error err;
    ms_engine_options_default(&o, c->model);
    o.precision = c->precision;
    o.static_format = c->format;
    o.backend = backend;
    if (!strcmp(backend, "cpu")) o.kernels = "scalar";
    o.threads = 1;
    o.context = c->prompt + STEPS;
    o.experts = SLOTS;
    ok(ms_engine_open(&e, &o, &err), &err);
    return e;
}

static uint32_t token(uint32_t i, uint32_t vocab) { return (i * 2654435761u >> 8) % vocab; }

/* A range in passes of `rows` rows, or 0 for one, then single tokens. */
static outcome run(const model_case *c, const char *backend, uint32_t rows) {
    outcome out = {0};
    ms_session *s = NULL;
    ms_error err;
    ms_engine *e = open_model(c, backend);
    ok(ms_session_create(&s, e, &err), &err);
    ms_model_info info;
    ms_engine_info(e, &info);
    if (!strcmp(backend, "cpu"))
        assert_string_equal(info.kernels, "scalar");
    else
        assert_string_not_equal(info.kernels, "scalar");
    out.vocab = info.vocab;
    uint32_t ids[MOST + STEPS];
    assert_true(c->prompt <= MOST);
    for (uint32_t i = 0; i < c->prompt + STEPS; i++) ids[i] = token(i, info.vocab);
    ms_forward_options fo = {.range = rows, .all_logits = true, .sink = sink, .sink_arg = &out};
    ok(ms_session_forward(s, ids, c->prompt, &fo, &err), &err);
    for (uint32_t i = 0; i < STEPS; i++) {
        ok(ms_session_forward(s, ids + c->prompt + i, 1, NULL, &err), &err);
        keep(&out, ms_session_logits(s), 1);
    }
    ok(ms_session_digest(s, &out.digest, &err), &err);
    ms_engine_stats stats;
    ms_engine_get_stats(e, &stats);
    out.guesses = stats.guessed_reads;
    out.right = stats.guesses_used;
    ms_session_destroy(s);
    ms_engine_close(e);
    return out;
}

static void expect_same(outcome *want, outcome *got, const model_case *c) {
    assert_int_equal(want->rows, c->prompt + STEPS);
    assert_int_equal(got->rows, want->rows);
    for (size_t i = 0; i < want->rows * want->vocab; i++)
        if (memcmp(&want->logits[i], &got->logits[i], sizeof want->logits[i]) != 0)
            fail_msg("%s: row %zu logit %zu: expected %a, found %a", c->model, i / want->vocab, i % want->vocab,
                     (double)want->logits[i], (double)got->logits[i]);
    assert_int_equal(want->digest.count, got->digest.count);
    assert_int_equal(want->digest.position, got->digest.position);
    for (uint32_t i = 0; i < want->digest.count; i++)
        if (want->digest.part[i].fnv1a64 != got->digest.part[i].fnv1a64)
            fail_msg("%s: %s state differs", c->model, want->digest.part[i].kind);
    free(want->logits);
    free(got->logits);
}

void model_check(const model_case *c) {
    outcome want = run(c, "cpu", 0), got = run(c, gpu_test_name(), 0);
    expect_same(&want, &got, c);
    assert_true(got.right > 0 && got.right <= got.guesses); /* experts are guessed on a device too */
}

void model_check_cut(const model_case *c, uint32_t rows) {
    outcome want = run(c, gpu_test_name(), 0), got = run(c, gpu_test_name(), rows);
    expect_same(&want, &got, c);
}

static void same_files(const char *a, const char *b) {
    FILE *f[2] = {fopen(a, "rb"), fopen(b, "rb")};
    assert_non_null(f[0]);
    assert_non_null(f[1]);
    for (int x = 0, y = 0; x != EOF; assert_int_equal(x, y)) {
        x = getc(f[0]);
        y = getc(f[1]);
    }
    for (int i = 0; i < 2; i++) assert_int_equal(fclose(f[i]), 0);
}

void model_move_state(const model_case *c, const char *from, const char *to) {
    ms_engine *e[2] = {open_model(c, from), open_model(c, to)};
    ms_session *s[2];
    ms_model_info info;
    ms_error err;
    uint32_t ids[MOST + 1];
    char folder[] = "/tmp/moonshine-state-XXXXXX", file[2][sizeof folder + 8];
    assert_non_null(mkdtemp(folder));
    assert_true(c->prompt <= MOST);
    for (int i = 0; i < 2; i++) (void)snprintf(file[i], sizeof file[i], "%s/state%d", folder, i);
    ms_engine_info(e[0], &info);
    for (uint32_t i = 0; i <= c->prompt; i++) ids[i] = token(i, info.vocab);
    for (int i = 0; i < 2; i++) ok(ms_session_create(&s[i], e[i], &err), &err);
    ok(ms_session_forward(s[0], ids, c->prompt, NULL, &err), &err);
    ok(ms_session_export(s[0], file[0], false, &err), &err);
    ok(ms_session_import(s[1], file[0], &err), &err);
    assert_int_equal(ms_session_position(s[1]), c->prompt);
    ok(ms_session_export(s[1], file[1], false, &err), &err);
    same_files(file[0], file[1]);
    ms_session_reset(s[0]);
    ok(ms_session_import(s[0], file[1], &err), &err);
    for (int i = 0; i < 2; i++) ok(ms_session_forward(s[i], ids + c->prompt, 1, NULL, &err), &err);
    assert_memory_equal(ms_session_logits(s[0]), ms_session_logits(s[1]), info.vocab * sizeof(float));
    ms_digest digest[2];
    for (int i = 0; i < 2; i++) ok(ms_session_digest(s[i], &digest[i], &err), &err);
    assert_int_equal(digest[0].count, digest[1].count);
    for (uint32_t i = 0; i < digest[0].count; i++) assert_true(digest[0].part[i].fnv1a64 == digest[1].part[i].fnv1a64);
    for (int i = 0; i < 2; i++) {
        ms_session_destroy(s[i]);
        ms_engine_close(e[i]);
        assert_int_equal(unlink(file[i]), 0);
    }
    assert_int_equal(rmdir(folder), 0);
}

void model_make_mimo(char dir[MODEL_PATH]) {
    mimo_config c;
    ms_error err;
    mimo_config_official(&c);
    c.vocab = 160;
    c.eos = 159;
    c.hidden = 128;
    c.layers = 3;
    c.dense_width = 96;
    c.experts = 4;
    c.top_k = 2;
    c.expert_inner = 32;
    c.chunks = 1;
    c.attention[MIMO_FULL] = (mimo_attention){8, 1, 192, 128, 64, 0, false, 1e7};
    c.attention[MIMO_SLIDING] = (mimo_attention){8, 2, 192, 128, 64, 12, true, 1e4};
    const ms_synth_options o = {.seed = 5, .threads = 1};
    (void)snprintf(dir, MODEL_PATH, "/tmp/moonshine-mimo-XXXXXX");
    assert_non_null(mkdtemp(dir));
    ok(mimo_synth_write(dir, &c, &o, &err), &err);
}

void model_remove(const char *dir) { remove_model(dir); }
