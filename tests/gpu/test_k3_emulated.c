/* Whole models through the engine on the GPU backend: logits of every row and all state equal the scalar CPU's. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "gpu_test.h"
#include "moonshine/moonshine.h"

#include <stdlib.h>
#include <string.h>

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

/* A range, then single tokens; few slots, so that experts are evicted and streamed. */
static outcome run(const char *model, const char *backend, ms_precision precision, ms_static_format format) {
    outcome out = {0};
    ms_engine_options o;
    ms_engine *e = NULL;
    ms_session *s = NULL;
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
    ok(ms_session_create(&s, e, &err), &err);
    ms_model_info info;
    ms_engine_info(e, &info);
    if (!strcmp(backend, "cpu"))
        assert_string_equal(info.kernels, "scalar");
    else
        assert_string_not_equal(info.kernels, "scalar");
    out.vocab = info.vocab;
    uint32_t ids[PROMPT + STEPS];
    for (uint32_t i = 0; i < PROMPT + STEPS; i++) ids[i] = (i * 2654435761u >> 8) % info.vocab;
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

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(tiny_a), cmocka_unit_test(tiny_c)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
