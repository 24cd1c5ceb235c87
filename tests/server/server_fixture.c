#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "server_fixture.h"

static void on_changed(void *arg, ms_worker_state state, const ms_error *err) {
    fixture *f = arg;
    (void)err;
    (void)pthread_mutex_lock(&f->lock);
    f->loaded = f->loaded || state == MS_WORKER_READY;
    f->failed = f->failed || state == MS_WORKER_FAILED;
    (void)pthread_mutex_unlock(&f->lock);
}

void fixture_init(fixture *f) { fixture_init_model(f, "models/k3-nano"); }

void fixture_init_model(fixture *f, const char *model) {
    ms_error err;
    memset(f, 0, sizeof *f);
    if (ms_text_model_open(&f->text, model, &err) != MS_OK) fail_msg("%s", err.message);
    script_init(&f->engine, &f->text, FIXTURE_CONTEXT);
    (void)pthread_mutex_init(&f->lock, NULL);
    f->log_file = tmpfile();
    assert_non_null(f->log_file);
    ms_log_init(&f->log, fileno(f->log_file), false);
    ms_server_options_default(&f->o);
    f->o.port = 0;
    f->o.text = &f->text;
    f->o.context = FIXTURE_CONTEXT;
    f->o.max_output = 1024;
    f->o.log = &f->log;
    f->o.changed = on_changed;
    f->o.changed_arg = f;
}

void fixture_start(fixture *f) {
    ms_error err;
    f->loaded = f->failed = false;
    f->o.source = script_source(&f->engine);
    if (ms_server_create(&f->server, &f->o, &err) != MS_OK) fail_msg("%s", err.message);
    f->port = ms_server_port(f->server);
}

static void wait_for(fixture *f, const bool *flag, const char *what) {
    for (unsigned i = 0; i < HTTP_LIMIT_MS; i++) {
        (void)pthread_mutex_lock(&f->lock);
        bool done = *flag;
        (void)pthread_mutex_unlock(&f->lock);
        if (done) return;
        pause_ms(1);
    }
    fail_msg("not %s in time", what);
}

void fixture_wait_ready(fixture *f) { wait_for(f, &f->loaded, "loaded"); }
void fixture_wait_failed(fixture *f) { wait_for(f, &f->failed, "failed"); }

void fixture_stop(fixture *f) {
    ms_server_destroy(f->server);
    f->server = NULL;
    assert_int_equal(atomic_load(&f->engine.points_alive), 0);
}

void fixture_free(fixture *f) {
    if (f->server) fixture_stop(f);
    script_free(&f->engine);
    ms_text_model_close(&f->text);
    (void)fclose(f->log_file);
    (void)pthread_mutex_destroy(&f->lock);
}

size_t fixture_log_size(fixture *f) {
    ms_text all = {0};
    fixture_log(f, &all);
    size_t n = all.len;
    ms_text_free(&all);
    return n;
}

void fixture_log(fixture *f, ms_text *out) {
    char piece[4096];
    off_t at = 0;
    for (ssize_t n; (n = pread(fileno(f->log_file), piece, sizeof piece, at)) > 0; at += n) {
        ms_text_append(out, piece, (size_t)n);
    }
    ms_text_append(out, "", 0);
}

bool fixture_wait_log(fixture *f, size_t from, const char *text) {
    for (unsigned i = 0; i < HTTP_LIMIT_MS / 2; i++) {
        ms_text all = {0};
        fixture_log(f, &all);
        bool found = all.len > from && strstr(all.data + from, text);
        ms_text_free(&all);
        if (found) return true;
        pause_ms(2);
    }
    return false;
}

void fixture_wait_idle(fixture *f) {
    for (unsigned i = 0; i < HTTP_LIMIT_MS; i++) {
        if (ms_server_idle(f->server)) return;
        pause_ms(1);
    }
    fail_msg("the slot is not free in time");
}

void fixture_chat(fixture *f, const char *rest, http_response *r) {
    ms_text body = {0};
    ms_text_printf(&body, "{\"model\":\"moonshine\",%s}", rest);
    http_call(f->port, "POST", "/v1/chat/completions", NULL, body.data, r);
    ms_text_free(&body);
}

const char *fixture_body(const char *message, const char *more) {
    static char bodies[4][8192];
    static unsigned turn;
    char *body = bodies[turn++ % 4];
    (void)snprintf(body, sizeof bodies[0],
                   "{\"model\":\"moonshine\",\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}]%s}", message, more);
    return body;
}
