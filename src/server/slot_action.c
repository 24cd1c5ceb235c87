/* slot_action.c: POST /slots/0: the live state is saved under a name, restored, or erased.
 *
 * Threads: ms_slot_run on the inference thread, the handler on a connection's; they meet in the job.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "server/api_read.h"
#include "server/server_internal.h"
#include "session/named_state.h"

enum { LOOK_MS = 1000 };

static const char *const actions[] = {"", "save", "restore", "erase"};

/* ------------------------------------------------------------------ inference thread */

static ms_status save(ms_generator *g, ms_job *j, ms_api_error *e, ms_error *err) {
    if (!j->slot_tokens) {
        (void)ms_api_fail(e, 409, "empty_state", "", "the slot holds nothing that could be saved");
        return ms_fail(err, MS_ERR_USAGE, "nothing to save");
    }
    ms_status st = ms_retained_save_named(&g->retained, j->slot_name, &j->slot_bytes, err);
    if (st != MS_OK) (void)ms_api_fail(e, 500, "internal_error", "", "the state could not be saved: %s", err->message);
    return st;
}

static ms_status restore(ms_generator *g, ms_job *j, ms_api_error *e, ms_error *err) {
    bool missing;
    ms_status st = ms_retained_restore_named(&g->retained, j->slot_name, &j->slot_bytes, &missing, err);
    j->slot_tokens = g->timeline->ops->position(g->timeline);
    if (st == MS_OK) return st;
    if (missing)
        (void)ms_api_fail(e, 404, "state_not_found", "filename", "there is no state of this name");
    else
        (void)ms_api_fail(e, 400, "invalid_state", "filename",
                          "the state cannot be used: damaged, or of another model, precision or context");
    return st;
}

void ms_slot_run(ms_generator *g, ms_job *j) {
    ms_error err;
    ms_api_error e = {0};
    uint64_t start = ms_clock_ns();
    ms_status st = MS_OK;
    j->slot_tokens = g->timeline->ops->position(g->timeline);
    if (j->slot_action == MS_SLOT_SAVE) st = save(g, j, &e, &err);
    if (j->slot_action == MS_SLOT_RESTORE) st = restore(g, j, &e, &err);
    if (j->slot_action == MS_SLOT_ERASE) ms_retained_reset(&g->retained);
    ms_log_line l;
    ms_log_begin(&l, g->log, st == MS_OK ? MS_LOG_INFO : MS_LOG_WARN, "slot.action", j->id);
    ms_log_word(&l, "action", actions[j->slot_action]);
    ms_log_u64(&l, "tokens", j->slot_tokens);
    ms_log_u64(&l, "bytes", j->slot_bytes);
    ms_log_real(&l, "seconds", (double)(ms_clock_ns() - start) / 1e9);
    ms_log_word(&l, "error", st == MS_OK ? NULL : err.message);
    ms_log_end(&l);
    if (st == MS_OK)
        ms_job_done(j);
    else
        ms_job_fail(j, &e);
}

/* ------------------------------------------------------------------ connection */

static bool read_action(ms_exchange *x, ms_job *j, ms_api_error *e) {
    const char *action = ms_exchange_query(x, "action");
    for (int i = MS_SLOT_SAVE; action && i <= MS_SLOT_ERASE; i++) {
        if (strcmp(action, actions[i]) == 0) j->slot_action = (ms_slot_action)i;
    }
    if (!j->slot_action)
        return ms_api_fail(e, 400, action ? "unsupported_value" : "missing_field", "action",
                           "action: expected save, restore or erase");
    if (j->slot_action == MS_SLOT_ERASE) return true;
    ms_json_doc *doc = ms_server_body(x, e);
    if (!doc) return false;
    const ms_json *name = ms_json_get(ms_json_root(doc), "filename");
    bool good = name && name->type == MS_JSON_STRING;
    if (!good) {
        (void)ms_api_fail(e, 400, name ? "invalid_type" : "missing_field", "filename", "filename: expected a string");
    } else if (!ms_named_state_valid(name->str, name->str_len)) {
        good = ms_api_fail(e, 400, "invalid_value", "filename",
                           "filename: expected 1 to %d letters, digits, '.', '_' or '-', the first one no dot",
                           MS_STATE_NAME_MAX);
    } else {
        memcpy(j->slot_name, name->str, name->str_len);
    }
    ms_json_free(doc);
    return good;
}

/* Until the slot is the job's; false: it was refused, or the client is gone. */
static bool take_slot(ms_server *s, ms_exchange *x, ms_job *j) {
    ms_api_error e = {0};
    for (;;) {
        ms_turn turn = ms_worker_turn(s->worker, j, &e);
        if (turn == MS_TURN_NOW) return true;
        if (turn == MS_TURN_REFUSED) {
            ms_exchange_reject(x, &e);
            return false;
        }
        if (ms_exchange_wait(x, j->event_fd, LOOK_MS) != MS_WAIT_GONE) continue;
        ms_worker_leave(s->worker, j);
        return false;
    }
}

static bool has_ended(ms_job *j, ms_api_error *e) {
    (void)pthread_mutex_lock(&j->lock);
    bool ended = j->ended;
    *e = j->error;
    (void)pthread_mutex_unlock(&j->lock);
    return ended;
}

static void reply(ms_exchange *x, const ms_job *j) {
    static const char *const counts[] = {"", "n_saved", "n_restored", "n_erased"};
    static const char *const sizes[] = {"", "n_written", "n_read", NULL};
    ms_text t = {0};
    ms_text_puts(&t, "{\"id_slot\":0");
    if (j->slot_name[0]) ms_text_printf(&t, ",\"filename\":\"%s\"", j->slot_name);
    ms_text_printf(&t, ",\"%s\":%" PRIu64, counts[j->slot_action], j->slot_tokens);
    if (sizes[j->slot_action]) ms_text_printf(&t, ",\"%s\":%" PRIu64, sizes[j->slot_action], j->slot_bytes);
    ms_text_puts(&t, "}");
    ms_exchange_reply(x, 200, MS_JSON_CONTENT, &t);
}

/* What has begun goes to its end, also when the client leaves. */
static void run(ms_server *s, ms_exchange *x, ms_job *j) {
    ms_api_error e = {0};
    if (!ms_worker_admit(s->worker, j, &e)) {
        ms_exchange_reject(x, &e);
        return;
    }
    if (!take_slot(s, x, j)) return;
    ms_worker_submit(s->worker, j);
    bool gone = false;
    while (!has_ended(j, &e)) {
        const struct timespec step = {.tv_nsec = 1000000};
        if (gone)
            (void)nanosleep(&step, NULL);
        else
            gone = ms_exchange_wait(x, j->event_fd, LOOK_MS) == MS_WAIT_GONE;
    }
    if (e.http)
        ms_exchange_reject(x, &e);
    else
        reply(x, j);
    ms_job_sent(j);
}

void ms_handle_slot(void *arg, ms_exchange *x) {
    static const ms_api_codec codec = {.kind = MS_API_CHAT, .name = "slot"};
    ms_server *s = arg;
    ms_api_error e = {0};
    if (!s->o.slots_endpoint || !s->o.named_states) {
        ms_server_disabled(x, s->o.slots_endpoint ? "--prefix-checkpoint-root" : "--slots-endpoint");
        return;
    }
    ms_job *j = ms_job_create();
    if (!j) {
        (void)ms_api_fail_memory(&e);
        ms_exchange_reject(x, &e);
        return;
    }
    j->codec = &codec;
    (void)snprintf(j->id, sizeof j->id, "%s", ms_exchange_id(x));
    (void)snprintf(j->peer, sizeof j->peer, "%s", ms_exchange_peer(x));
    if (read_action(x, j, &e))
        run(s, x, j);
    else
        ms_exchange_reject(x, &e);
    ms_job_release(j);
}
