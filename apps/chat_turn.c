/* chat_turn.c: runs one turn: live text, telemetry, what an interrupt or a failure leaves behind. */
#include <errno.h>
#include <string.h>

#include "chat.h"
#include "chat_signals.h"

/* ------------------------------------------------------------------ while it runs */

static void on_progress(void *arg, ms_progress_unit unit, uint64_t done, uint64_t total) {
    chat *c = arg;
    app_progress_update(&c->bar, unit == MS_PROGRESS_LAYER ? "layer" : "token", done, total);
}

static void on_prefilled(void *arg) { app_progress_end(&((chat *)arg)->bar); }

static void end_reasoning(chat *c) {
    if (!c->reasoning_open) return;
    app_style(&c->err, "0");
    app_write(&c->err, "\n", 1);
    c->reasoning_open = false;
}

static ms_status on_text(void *arg, ms_channel channel, const char *text, size_t len, ms_error *err) {
    chat *c = arg;
    if (channel == MS_CHANNEL_THINK) {
        if (!c->o->show_reasoning || c->o->json) return MS_OK;
        if (!c->reasoning_open) app_style(&c->err, "2");
        c->reasoning_open = true;
        app_write_text(&c->err, text, len);
        return MS_OK;
    }
    end_reasoning(c);
    if (c->o->json) return MS_OK;
    app_write_text(&c->out, text, len);
    return c->out.error ? ms_fail_errno(err, MS_ERR_IO, c->out.error, "standard output") : MS_OK;
}

/* ------------------------------------------------------------------ afterwards */

/* Ends the reply's line; an empty reply is an empty line and a note. */
static void end_text(chat *c, const ms_turn_result *r) {
    end_reasoning(c);
    if (c->o->json || !r->replied) return;
    app_write(&c->out, "\n", 1);
    if (!r->reply.content_len && r->finish != MS_FINISH_CANCELLED) chat_note(c, "(no response content)");
    for (size_t i = 0; i < r->reply.call_count; i++) {
        chat_note(c, "[tool call %s %s]", r->reply.calls[i].name, r->reply.calls[i].arguments);
    }
}

static ms_status report(chat *c, const ms_prompt *p, const ms_turn_result *r, size_t forced, ms_error *err) {
    c->last_stats.len = 0;
    chat_write_stats(&c->last_stats, r, forced, ms_session_position(c->session));
    if (c->o->digest) MS_TRY(chat_write_digest(&c->last_stats, c, err));
    if (c->last_stats.failed) return ms_fail_memory(err, "telemetry", c->last_stats.len);
    if (!c->o->quiet || c->o->digest) {
        const char *from = c->last_stats.data, *digest = strstr(from, "[digest");
        if (c->o->quiet && digest) from = digest;
        app_write(&c->err, from, c->last_stats.len - (size_t)(from - c->last_stats.data));
    }
    if (!c->o->json) return MS_OK;
    ms_text object = {0};
    chat_write_json(&object, c, p, r, forced);
    if (!object.failed) app_write(&c->out, object.data, object.len);
    ms_status status = object.failed ? ms_fail_memory(err, "a JSON object", object.len) : MS_OK;
    ms_text_free(&object);
    return status;
}

/* The turn becomes part of the conversation, and the session goes to the message's end.  When that is cut short or
 * needs earlier tokens again, it is left to the next turn. */
static ms_status keep(chat *c, const ms_prompt *p, const ms_turn_result *r, size_t *forced, ms_error *err) {
    MS_TRY(ms_conversation_accept(&c->conversation, p, &r->reply, r->generated.data, r->generated.count, forced, err));
    c->last_accepted = true;
    const ms_ids *ids = &c->conversation.ids;
    size_t position = (size_t)ms_session_position(c->session);
    if (r->finish == MS_FINISH_CANCELLED || ms_timeline_reusable(&c->timeline, ids->data, ids->count) < position)
        return MS_OK;
    ms_error ignored;
    (void)ms_timeline_settle(&c->timeline, ids, &ignored);
    return MS_OK;
}

static int interrupted(chat *c, const ms_turn_result *r) {
    if (chat_signals_terminated()) return CHAT_TERMINATED;
    if (r->replied) {
        chat_note(c, c->interactive ? "interrupted: %zu tokens of the reply are kept"
                                    : "interrupted after %zu tokens of the reply",
                  r->generated.count);
    } else {
        ms_error err;
        (void)ms_fail(&err, MS_ERR_CANCELLED,
                      "interrupted in the prompt after %zu of %zu tokens: the message is dropped, "
                      "the conversation stays as it was",
                      r->evaluated, r->prompt - r->reused);
        (void)chat_fail(c, &err);
    }
    return chat_signals_insistent() ? CHAT_INTERRUPTED : CHAT_OK;
}

static int finish(chat *c, const ms_prompt *p, const ms_turn_result *r, ms_status status, ms_error *err) {
    size_t forced = 0;
    bool cancelled = status == MS_ERR_CANCELLED || r->finish == MS_FINISH_CANCELLED;
    end_text(c, r);
    if (r->replied) {
        ms_error second;
        ms_status kept = keep(c, p, r, &forced, &second);
        if (kept == MS_OK && status == MS_OK) kept = report(c, p, r, forced, &second);
        if (status == MS_OK && kept != MS_OK) {
            status = kept;
            *err = second;
        }
    }
    if (c->out.error == EPIPE) return CHAT_CLOSED;
    if (status == MS_OK && c->out.error) status = ms_fail_errno(err, MS_ERR_IO, c->out.error, "standard output");
    if (cancelled) return interrupted(c, r);
    if (status == MS_OK) return CHAT_OK;
    int code = chat_fail(c, err);
    if (r->replied && !chat_options_one_shot(c->o))
        chat_note(c, "the reply stays as far as it was read; /regen repeats the turn");
    return code == CHAT_CLOSED || code == CHAT_REFUSED ? code : CHAT_FAILED;
}

int chat_turn_prompt(chat *c, const ms_prompt *p) {
    const ms_turn_options o = {
        .max_tokens = c->max_tokens,
        .sequential_limit = c->o->sequential_limit,
        .sampler = &c->sampler,
        .stops = c->stops.count ? &c->stops : NULL,
        .text = on_text,
        .progress = on_progress,
        .prefilled = on_prefilled,
        .arg = c,
    };
    ms_turn_result r;
    ms_error err;
    c->reasoning_open = false;
    app_progress_begin(&c->bar, &c->err, chat_wants_bar(c->o), "prompt", UINT64_C(500000000));
    chat_begin_work(c);
    ms_status status = ms_turn_run(&c->timeline, p, &o, &r, &err);
    app_progress_end(&c->bar);
    int code = finish(c, p, &r, status, &err);
    chat_signals_phase(CHAT_PROMPT, NULL);
    ms_turn_result_free(&r);
    if (chat_signals_terminated()) return CHAT_TERMINATED;
    /* Also one that came too late to cancel the turn. */
    if (!c->interactive && chat_signals_interrupted() && (code == CHAT_OK || code == CHAT_FAILED)) {
        return CHAT_INTERRUPTED;
    }
    return code;
}

int chat_turn_user(chat *c, const char *text, size_t len) {
    ms_prompt p;
    ms_error err;
    ms_text message = {0}; /* text may be last_user itself */
    ms_text_append(&message, text, len);
    ms_text_free(&c->last_user);
    c->last_user = message;
    c->last_accepted = false;
    ms_status status = message.failed ? ms_fail_memory(&err, "a message", len)
                                      : ms_conversation_user(&c->conversation, message.data, message.len, &p, &err);
    if (status != MS_OK) return chat_fail(c, &err);
    int code = chat_turn_prompt(c, &p);
    ms_prompt_free(&p);
    return code;
}
