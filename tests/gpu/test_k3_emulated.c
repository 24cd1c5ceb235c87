/* Whole models through the engine on the GPU backend: logits of every row and all state equal the scalar CPU's; a state
 * file of one goes on in the other. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "gpu_test.h"
#include "moonshine/moonshine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PROMPT = 9, STEPS = 2, SLOTS = 2 };

typedef struct outcome {
    float *logits; /* [rows][vocab] */
    size_t rows;
    uint32_t vocab;
    ms_digest digest;
} outcome;

static void ok(ms_status st, const ms_error *err) {
    if (st != MS_OK) fail_msg("%s", err->message);
}

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
static ms_engine *open_model(const char *model, const char *backend, ms_precision precision, ms_static_format format) {
    ms_engine_options o;
    ms_engine *e = NULL;
    ms_error err;
    ms_engine_options_default(&o, model);
    o.precision = precision;
    o.static_format = format;
    o.backend = backend;
    if (!strcmp(backend, "cpu")) o.kernels = "scalar";
    o.threads = 1;
    o.context = PROMPT + STEPS;
    o.experts = SLOTS;
    ok(ms_engine_open(&e, &o, &err), &err);
    return e;
}

static uint32_t token(uint32_t i, uint32_t vocab) { return (i * 2654435761u >> 8) % vocab; }

/* A range, then single tokens. */
static outcome run(const char *model, const char *backend, ms_precision precision, ms_static_format format) {
    outcome out = {0};
    ms_session *s = NULL;
    ms_error err;
    ms_engine *e = open_model(model, backend, precision, format);
    ok(ms_session_create(&s, e, &err), &err);
    ms_model_info info;
    ms_engine_info(e, &info);
    if (!strcmp(backend, "cpu"))
        assert_string_equal(info.kernels, "scalar");
    else
        assert_string_not_equal(info.kernels, "scalar");
    out.vocab = info.vocab;
    uint32_t ids[PROMPT + STEPS];
    for (uint32_t i = 0; i < PROMPT + STEPS; i++) ids[i] = token(i, info.vocab);
    ms_forward_options fo = {.all_logits = true, .sink = sink, .sink_arg = &out};
    ok(ms_session_forward(s, ids, PROMPT, &fo, &err), &err);
    for (uint32_t i = 0; i < STEPS; i++) {
        ok(ms_session_forward(s, ids + PROMPT + i, 1, NULL, &err), &err);
        keep(&out, ms_session_logits(s), 1);
    }
    ok(ms_session_digest(s, &out.digest, &err), &err);
    ms_session_destroy(s);
    ms_engine_close(e);
    return out;
}

static void check(const char *model, ms_precision precision, ms_static_format format) {
    outcome want = run(model, "cpu", precision, format), got = run(model, gpu_test_name(), precision, format);
    assert_int_equal(want.rows, PROMPT + STEPS);
    assert_int_equal(got.rows, want.rows);
    for (size_t i = 0; i < want.rows * want.vocab; i++)
        if (memcmp(&want.logits[i], &got.logits[i], sizeof want.logits[i]) != 0)
            fail_msg("%s: row %zu logit %zu: expected %a, found %a", model, i / want.vocab, i % want.vocab,
                     (double)want.logits[i], (double)got.logits[i]);
    assert_int_equal(want.digest.count, got.digest.count);
    assert_int_equal(want.digest.position, got.digest.position);
    for (uint32_t i = 0; i < want.digest.count; i++)
        if (want.digest.part[i].fnv1a64 != got.digest.part[i].fnv1a64)
            fail_msg("%s: %s state differs", model, want.digest.part[i].kind);
    free(want.logits);
    free(got.logits);
}

static void tiny_a(void **state) {
    (void)state;
    check("tests/golden/k3/k3-tiny-a", MS_PRECISION_FAST, MS_STATIC_Q8);
    check("tests/golden/k3/k3-tiny-a", MS_PRECISION_REFERENCE, MS_STATIC_BF16);
}
static void tiny_c(void **state) {
    (void)state;
    check("tests/golden/k3/k3-tiny-c", MS_PRECISION_FAST, MS_STATIC_BF16);
    check("tests/golden/k3/k3-tiny-c", MS_PRECISION_FAST, MS_STATIC_Q8);
}

/* The prompt on one backend, its state through a file, a token on both. */
static void move_state(const char *model, const char *from, const char *to) {
    ms_engine *e[2] = {open_model(model, from, MS_PRECISION_FAST, MS_STATIC_Q8),
                       open_model(model, to, MS_PRECISION_FAST, MS_STATIC_Q8)};
    ms_session *s[2];
    ms_model_info info;
    ms_error err;
    uint32_t ids[PROMPT + 1];
    char folder[] = "/tmp/moonshine-state-XXXXXX", file[sizeof folder + 8];
    assert_non_null(mkdtemp(folder));
    (void)snprintf(file, sizeof file, "%s/state", folder);
    ms_engine_info(e[0], &info);
    for (uint32_t i = 0; i <= PROMPT; i++) ids[i] = token(i, info.vocab);
    for (int i = 0; i < 2; i++) ok(ms_session_create(&s[i], e[i], &err), &err);
    ok(ms_session_forward(s[0], ids, PROMPT, NULL, &err), &err);
    ok(ms_session_export(s[0], file, false, &err), &err);
    ok(ms_session_import(s[1], file, &err), &err);
    assert_int_equal(ms_session_position(s[1]), PROMPT);
    for (int i = 0; i < 2; i++) ok(ms_session_forward(s[i], ids + PROMPT, 1, NULL, &err), &err);
    assert_memory_equal(ms_session_logits(s[0]), ms_session_logits(s[1]), info.vocab * sizeof(float));
    ms_digest digest[2];
    for (int i = 0; i < 2; i++) ok(ms_session_digest(s[i], &digest[i], &err), &err);
    assert_int_equal(digest[0].count, digest[1].count);
    for (uint32_t i = 0; i < digest[0].count; i++)
        assert_true(digest[0].part[i].fnv1a64 == digest[1].part[i].fnv1a64);
    for (int i = 0; i < 2; i++) {
        ms_session_destroy(s[i]);
        ms_engine_close(e[i]);
    }
    assert_int_equal(unlink(file), 0);
    assert_int_equal(rmdir(folder), 0);
}

static void state_files(void **state) {
    (void)state;
    move_state("tests/golden/k3/k3-tiny-a", gpu_test_name(), "cpu");
    move_state("tests/golden/k3/k3-tiny-a", "cpu", gpu_test_name());
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(tiny_a), cmocka_unit_test(tiny_c),
                                       cmocka_unit_test(state_files)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
