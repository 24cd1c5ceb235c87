/* A model whose state can go back: a prompt begins where it leaves the timeline, and computes what an empty timeline
 * computes. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../session/engine_util.h"
#include "mimo_checkpoint.h"
#include "server/causal_session.h"
#include "server/retained.h"

static char dir[MIMO_TEST_PATH];
static ms_text_model text;

static int make_checkpoint(void **state) {
    (void)state;
    ms_error err;
    mimo_checkpoint_make(dir, 4);
    ok(ms_text_model_open(&text, dir, &err), &err);
    return 0;
}

static int remove_checkpoint(void **state) {
    (void)state;
    ms_text_model_close(&text);
    mimo_checkpoint_remove(dir);
    return 0;
}

typedef struct server {
    ms_causal_session *session;
    ms_causal_source source;
    ms_causal *timeline;
    ms_retained retained;
} server;

static void open_server(server *s) {
    ms_causal_session_options o = {0};
    ms_error err;
    ms_engine_options_default(&o.engine, dir);
    o.engine.context = 1000;
    o.engine.range_rows = 64;
    o.engine.threads = 1;
    s->session = ms_causal_session_create(&o);
    assert_non_null(s->session);
    s->source = ms_causal_session_source(s->session);
    ok(s->source.open(s->source.self, &s->timeline, &err), &err);
    ms_retained_init(&s->retained, s->timeline, &text);
}

static void close_server(server *s) {
    ms_retained_fini(&s->retained);
    s->source.close(s->source.self);
    ms_causal_session_destroy(s->session);
}

static void build(ms_candidate *c, const char *messages) {
    ms_text request = {0};
    ms_json_doc *doc;
    ms_error err;
    ms_text_printf(&request, "{\"messages\":[%s],\"thinking\":false}", messages);
    ok(ms_json_parse(&doc, request.data, request.len, "request", NULL, &err), &err);
    ok(ms_candidate_build(c, &text, ms_json_root(doc), &err), &err);
    ms_json_free(doc);
    ms_text_free(&request);
}

/* Evaluates a prompt; returns how many ids were there, and compares the logits with those of an empty timeline. */
static size_t evaluate(server *s, const char *messages, ms_origin origin) {
    ms_candidate c;
    ms_error err;
    build(&c, messages);
    ms_beginning b = ms_retained_find(&s->retained, &c);
    assert_int_equal(b.origin, origin);
    assert_true(ms_retained_take(&s->retained, &c, &b));
    ok(ms_retained_begin(&s->retained, &b, &err), &err);
    assert_int_equal(s->timeline->ops->position(s->timeline), b.at.matched);
    size_t rest = c.ids.count - b.at.used; /* 0: the logits are there */
    if (rest) ok(s->timeline->ops->forward(s->timeline, c.ids.data + b.at.used, rest, NULL, &err), &err);
    server fresh;
    open_server(&fresh);
    ok(fresh.timeline->ops->forward(fresh.timeline, c.ids.data, c.ids.count, NULL, &err), &err);
    assert_memory_equal(s->timeline->ops->logits(s->timeline), fresh.timeline->ops->logits(fresh.timeline),
                        MIMO_TEST_VOCAB * sizeof(float));
    close_server(&fresh);
    ms_candidate_free(&c);
    return b.at.matched;
}

#define SYSTEM "{\"role\":\"system\",\"content\":\"A rule that all conversations share.\"},"

static void a_prompt_begins_where_it_parts(void **state) {
    (void)state;
    server s;
    open_server(&s);
    assert_int_equal(evaluate(&s, SYSTEM "{\"role\":\"user\",\"content\":\"one thing\"}", MS_ORIGIN_COLD), 0);
    size_t shared = evaluate(&s, SYSTEM "{\"role\":\"user\",\"content\":\"another thing\"}", MS_ORIGIN_REWIND);
    assert_true(shared > 8);
    /* the same again: its logits are there */
    size_t again = evaluate(&s, SYSTEM "{\"role\":\"user\",\"content\":\"another thing\"}", MS_ORIGIN_LIVE);
    assert_true(again > shared);
    assert_int_equal(evaluate(&s, SYSTEM "{\"role\":\"user\",\"content\":\"one thing\"}", MS_ORIGIN_REWIND), shared);
    close_server(&s);
}

/* The model's own cut of a reply into tokens stays; a prompt that edits the reply goes back before it. */
static void generated_text_is_not_cut(void **state) {
    (void)state;
    server s;
    ms_error err;
    open_server(&s);
    (void)evaluate(&s, "{\"role\":\"user\",\"content\":\"hi\"}", MS_ORIGIN_COLD);
    size_t end = (size_t)s.timeline->ops->position(s.timeline);
    uint32_t reply[6] = {'t', 'h', 'e', ' ', 't', text.info.eos}; /* letter by letter, as no encoder would */
    ok(s.timeline->ops->forward(s.timeline, reply, 6, NULL, &err), &err);
    ok(ms_marks_add(&s.retained.marks, false, end, 6, &err), &err);
    ms_candidate c;
    build(&c, "{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\",\"content\":\"the "
              "t\"},{\"role\":\"user\",\"content\":\"x\"}");
    ms_beginning b = ms_retained_find(&s.retained, &c);
    assert_int_equal(b.at.matched, end + 6);
    ms_candidate_free(&c);
    build(&c, "{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\",\"content\":\"the "
              "x\"},{\"role\":\"user\",\"content\":\"x\"}");
    b = ms_retained_find(&s.retained, &c);
    assert_int_equal(b.origin, MS_ORIGIN_REWIND);
    assert_int_equal(b.at.matched, end);
    ms_candidate_free(&c);
    ok(ms_retained_back(&s.retained, end, &err), &err);
    assert_int_equal(s.timeline->ops->position(s.timeline), end);
    assert_int_equal(s.retained.marks.count, 0);
    close_server(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_prompt_begins_where_it_parts),
                                       cmocka_unit_test(generated_text_is_not_cut)};
    return cmocka_run_group_tests(tests, make_checkpoint, remove_checkpoint);
}
