#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nano_fixture.h"
#include "server_fixture.h"

static void on_changed(void *arg, ms_worker_state state, const ms_error *err) {
    served *s = arg;
    if (state == MS_WORKER_FAILED) print_error("%s\n", err->message);
    if (state == MS_WORKER_READY) atomic_store(&s->loaded, true);
}

void served_start(served *s, const served_options *how) {
    bool look = how->diagnostics, forget = how->forget_experts;
    ms_error err;
    memset(s, 0, sizeof *s);
    if (ms_text_model_open(&s->text, NANO_MODEL, &err) != MS_OK) fail_msg("%s", err.message);
    if (look && ms_diagnostics_create(&s->diagnostics, how->diagnostics, true, &s->text.info, &err) != MS_OK)
        fail_msg("%s", err.message);
    const ms_causal_session_options c = {
        .engine = {.model = NANO_MODEL,
                   .context = NANO_CONTEXT,
                   .experts = 6,
                   .threads = 1,
                   .reserve_bytes = 0,
                   .precision = how->reference ? MS_PRECISION_REFERENCE : MS_PRECISION_FAST,
                   .snapshots = forget ? 0 : 2},
        .kept = {.root = how->root, .disk_entries = 4, .disk_bytes = 1 << 30},
        .logits = look};
    s->engine = ms_causal_session_create(&c);
    assert_non_null(s->engine);
    s->log_file = tmpfile();
    assert_non_null(s->log_file);
    ms_log_init(&s->log, fileno(s->log_file), false);
    ms_server_options o;
    ms_server_options_default(&o);
    o.port = 0;
    o.text = &s->text;
    o.source = ms_causal_session_source(s->engine);
    o.context = NANO_CONTEXT;
    o.max_output = 256;
    o.diagnostics = s->diagnostics;
    o.digest = true;
    o.forget_experts = forget;
    o.constrain = false;
    o.slots_endpoint = true;
    o.named_states = how->root != NULL;
    o.log = &s->log;
    o.changed = on_changed;
    o.changed_arg = s;
    if (ms_server_create(&s->server, &o, &err) != MS_OK) fail_msg("%s", err.message);
    for (unsigned i = 0; i < HTTP_LIMIT_MS && !atomic_load(&s->loaded); i++) pause_ms(1);
    assert_true(atomic_load(&s->loaded));
}

void served_stop(served *s) {
    ms_server_destroy(s->server);
    ms_causal_session_destroy(s->engine);
    ms_diagnostics_destroy(s->diagnostics);
    ms_text_model_close(&s->text);
    (void)fclose(s->log_file);
}

static void idle(served *s) {
    for (unsigned i = 0; i < HTTP_LIMIT_MS && !ms_server_idle(s->server); i++) pause_ms(1);
    assert_true(ms_server_idle(s->server));
}

/* Behind the last "key=" of the log. */
void served_log(served *s, const char *event, const char *key, char *out, size_t size) {
    char line[MS_LOG_LINE_BYTES + 1], found[MS_LOG_LINE_BYTES + 1] = "";
    rewind(s->log_file);
    while (fgets(line, sizeof line, s->log_file)) {
        if (strstr(line, event)) memcpy(found, line, sizeof line);
    }
    const char *at = strstr(found, key);
    if (!at) fail_msg("no %s of %s", key, event);
    at += strlen(key);
    size_t n = strcspn(at, " \n");
    (void)snprintf(out, size, "%.*s", (int)n, at);
}

void served_post(served *s, const char *path, const char *body, http_response *r) {
    idle(s);
    http_call(ms_server_port(s->server), "POST", path, NULL, body, r);
    idle(s);
}
