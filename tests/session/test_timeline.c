/* The timeline when its session was reset or damaged by an import behind its back: the next turn still works, with the
 * same reply. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "session/engine.h"
#include "session/turn.h"

enum { MOST_TOKENS = 6 };

typedef struct setup {
    ms_text_model text;
    ms_engine *engine;
    ms_session *session;
    ms_timeline timeline;
    ms_conversation conversation;
    ms_sampler sampler;
} setup;

static void ok(ms_status st, const ms_error *err) {
    if (st != MS_OK) fail_msg("%s", err->message);
}

static void quiet(void *arg, const char *line) {
    (void)arg;
    (void)line;
}

static void open_setup(setup *s) {
    ms_error err;
    ms_engine_options o;
    *s = (setup){0};
    ms_engine_options_default(&o, "models/k3-nano");
    o.context = 256;
    o.snapshots = 1;
    o.reserve_bytes = 0;
    o.log = quiet;
    ok(ms_text_model_open(&s->text, "models/k3-nano", &err), &err);
    ok(ms_engine_open(&s->engine, &o, &err), &err);
    ok(ms_session_create(&s->session, s->engine, &err), &err);
    ms_timeline_init(&s->timeline, s->engine, s->session, &s->text);
    s->timeline.keep_prompt_end = true;
    ms_conversation_init(&s->conversation, &s->text);
    ms_sampler_greedy(&s->sampler);
}

static void close_setup(setup *s) {
    ms_timeline_fini(&s->timeline);
    ms_conversation_fini(&s->conversation);
    ms_session_destroy(s->session);
    ms_engine_close(s->engine);
    ms_text_model_close(&s->text);
}

static void run(setup *s, const ms_prompt *p, ms_turn_result *r) {
    const ms_turn_options o = {.max_tokens = MOST_TOKENS, .sampler = &s->sampler};
    ms_error err;
    ok(ms_turn_run(&s->timeline, p, &o, r, &err), &err);
    assert_true(r->replied);
}

/* A turn that becomes part of the conversation. */
static void say(setup *s, const char *text) {
    ms_error err;
    ms_prompt p;
    ms_turn_result r;
    size_t forced;
    ok(ms_conversation_user(&s->conversation, text, strlen(text), &p, &err), &err);
    run(s, &p, &r);
    ok(ms_conversation_accept(&s->conversation, &p, &r.reply, r.generated.data, r.generated.count, &forced, &err),
       &err);
    ok(ms_timeline_settle(&s->timeline, &s->conversation.ids, &err), &err);
    ms_turn_result_free(&r);
    ms_prompt_free(&p);
}

/* The same prompt again, which begins at the copy as long as there is one. */
static void repeats_from_the_start(setup *s, const ms_prompt *p, const ms_turn_result *before) {
    ms_turn_result r;
    run(s, p, &r);
    assert_int_equal(r.reused, 0);
    assert_int_equal(r.evaluated, p->ids.count);
    assert_int_equal(r.generated.count, before->generated.count);
    assert_memory_equal(r.generated.data, before->generated.data, r.generated.count * sizeof *r.generated.data);
    ms_turn_result_free(&r);
    run(s, p, &r); /* the new copy serves again */
    assert_int_equal(r.reused, p->ids.count);
    assert_int_equal(r.generated.count, before->generated.count);
    ms_turn_result_free(&r);
}

static void a_refused_copy_is_dropped(void **state) {
    (void)state;
    setup s;
    ms_error err;
    ms_prompt p;
    ms_turn_result r;
    open_setup(&s);
    ok(ms_conversation_user(&s.conversation, "Say hello.", 10, &p, &err), &err);
    run(&s, &p, &r);
    ms_session_reset(s.session);
    repeats_from_the_start(&s, &p, &r);
    /* Settling falls back as well. */
    ms_session_reset(s.session);
    ok(ms_timeline_settle(&s.timeline, &p.ids, &err), &err);
    assert_int_equal(ms_session_position(s.session), p.ids.count);
    ms_turn_result_free(&r);
    ms_prompt_free(&p);
    close_setup(&s);
}

/* ------------------------------------------------------------------ a state file that changes while it is read */

static struct {
    void (*upload)(ms_backend *be, void *dev, const void *host, size_t bytes);
    const char *path;
    off_t tokens_bytes; /* at the end of the file */
    bool done;
} damage;

/* The first piece passes; then the last byte of the rows, which are read last, changes: only the second checksum can
 * tell. */
static void damaging_upload(ms_backend *be, void *dev, const void *host, size_t bytes) {
    damage.upload(be, dev, host, bytes);
    if (damage.done) return;
    damage.done = true;
    int fd = open(damage.path, O_RDWR);
    assert_true(fd >= 0);
    uint8_t byte;
    off_t at = lseek(fd, 0, SEEK_END) - damage.tokens_bytes - 1;
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    assert_int_equal(close(fd), 0);
}

static ms_status torn_import(setup *s, const char *path, uint64_t position, ms_error *err) {
    ms_backend *be = s->engine->backend;
    damage.upload = be->upload;
    damage.path = path;
    damage.tokens_bytes = (off_t)(position * sizeof(uint32_t));
    damage.done = false;
    be->upload = damaging_upload;
    ms_status status = ms_session_import(s->session, path, err);
    be->upload = damage.upload;
    return status;
}

static void a_late_import_failure_keeps_the_conversation(void **state) {
    (void)state;
    char dir[] = "/tmp/ms-timeline-XXXXXX", path[64];
    setup s;
    ms_error err;
    ms_prompt p;
    ms_turn_result r;
    assert_non_null(mkdtemp(dir));
    (void)snprintf(path, sizeof path, "%s/state", dir);
    open_setup(&s);
    say(&s, "Say hello.");
    ok(ms_session_export(s.session, path, false, &err), &err);
    uint64_t saved = ms_session_position(s.session);
    ok(ms_conversation_user(&s.conversation, "What is the capital of France?", 30, &p, &err), &err);
    run(&s, &p, &r);
    assert_int_equal(torn_import(&s, path, saved, &err), MS_ERR_FORMAT);
    assert_non_null(strstr(err.message, "the session was reset"));
    assert_int_equal(ms_session_position(s.session), 0);
    repeats_from_the_start(&s, &p, &r);
    ms_turn_result_free(&r);
    ms_prompt_free(&p);
    close_setup(&s);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_refused_copy_is_dropped),
        cmocka_unit_test(a_late_import_failure_keeps_the_conversation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
