/* completion.c: the endpoints that generate: from a body to a job, and from a job to a response. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "server/server_internal.h"

enum { LOOK_MS = 1000 };

/* A connection and the job it waits for. */
typedef struct waiting {
    ms_server *server;
    ms_exchange *x;
    ms_job *job;
} waiting;

/* ------------------------------------------------------------------ refusals */

static void count_refusal(ms_server *s, ms_api_kind kind, const ms_api_error *e) {
    ms_outcome o = e->http < 500 ? MS_OUTCOME_CLIENT_ERROR : MS_OUTCOME_FAILED;
    (void)atomic_fetch_add(&s->metrics.requests[kind][o], 1);
}

static void refuse(ms_server *s, ms_exchange *x, ms_api_kind kind, const ms_api_error *e) {
    count_refusal(s, kind, e);
    if (strcmp(e->code, "server_busy") == 0) {
        ms_log_line l;
        ms_log_begin(&l, s->o.log, MS_LOG_WARN, "request.busy", ms_exchange_id(x));
        ms_log_word(&l, "peer", ms_exchange_peer(x));
        ms_log_u64(&l, "retry_after", (uint64_t)e->retry_after);
        ms_log_end(&l);
        ms_exchange_error(x, e);
    } else {
        ms_exchange_reject(x, e);
    }
}

/* ------------------------------------------------------------------ prompt */

static bool render_fault(ms_api_error *e, const ms_error *err) {
    if (err->code != MS_ERR_USAGE) return ms_api_fail(e, 500, "internal_error", "", "the prompt could not be made");
    /* The renderer names the field first; what it found is the client's own text and stays out. */
    char param[256];
    size_t n = strcspn(err->message, ":");
    (void)snprintf(param, sizeof param, "%.*s", (int)(n < sizeof param ? n : sizeof param - 1), err->message);
    return ms_api_fail(e, 400, "invalid_value", param, "this model's chat format does not take the value of %.200s",
                       param);
}

static bool raw_prompt(ms_server *s, const ms_api_request *q, ms_candidate *out, ms_api_error *e) {
    ms_ids ids = {0};
    ms_status status = MS_OK;
    for (size_t i = 0; i < q->prompt_id_count; i++) {
        if (q->prompt_ids[i] < s->o.text->info.vocab) continue;
        return ms_api_fail(e, 400, "out_of_range", "prompt", "prompt[%zu]: expected a token id below %u", i,
                           s->o.text->info.vocab);
    }
    if (q->has_prompt_text) {
        status = ms_tokenizer_encode(s->o.text->tokenizer, q->prompt, q->prompt_len, false, &ids, NULL);
    } else {
        status = ms_ids_append(&ids, q->prompt_ids, q->prompt_id_count, NULL);
    }
    if (status == MS_OK && !ids.count) status = ms_ids_push(&ids, s->o.text->info.bos, NULL);
    if (status == MS_OK) status = ms_candidate_raw(out, ids.data, ids.count, NULL);
    ms_ids_free(&ids);
    return status == MS_OK || ms_api_fail(e, 500, "internal_error", "", "out of memory");
}

bool ms_server_render(ms_server *s, const ms_api_request *q, ms_candidate *out, ms_api_error *e) {
    if (q->kind == MS_API_COMPLETIONS) return raw_prompt(s, q, out, e);
    ms_error err;
    ms_text anew = {0}, restored = {0};
    ms_json_doc *doc = NULL, *more = NULL;
    const ms_json *request = ms_json_root(q->chat_doc);
    static const ms_json_limits limits = {.max_depth = MS_JSON_MAX_DEPTH};
    ms_status status = MS_OK;
    ms_history history = {0};
    size_t count = 0;
    if (ms_call_memory_apply(s->calls, request, &anew)) {
        status = ms_json_parse(&doc, anew.data, anew.len, "request", &limits, &err);
        if (status == MS_OK) request = ms_json_root(doc);
    }
    if (status == MS_OK && s->reasoning && q->thinking) {
        count = ms_reasoning_memory_apply(s->reasoning, request, &restored, &history);
        if (count) status = ms_json_parse(&more, restored.data, restored.len, "request", &limits, &err);
        if (count && status == MS_OK) request = ms_json_root(more);
    }
    if (status == MS_OK) status = ms_candidate_build(out, s->o.text, request, &err);
    out->history = history;
    out->restored = count;
    ms_json_free(more);
    ms_json_free(doc);
    ms_text_free(&anew);
    ms_text_free(&restored);
    return status == MS_OK || render_fault(e, &err);
}

/* ------------------------------------------------------------------ waiting */

static void on_done(void *arg, bool sent) {
    waiting *w = arg;
    if (!sent) ms_job_stop(w->job, MS_STOP_GONE);
    ms_job_sent(w->job);
    ms_job_release(w->job);
    free(w);
}

static void is_gone(waiting *w) { ms_job_stop(w->job, MS_STOP_GONE); }

typedef struct moment {
    bool started, ended, empty;
} moment;

static moment look(ms_job *j) {
    (void)pthread_mutex_lock(&j->lock);
    moment m = {j->started, j->ended, j->out.len == j->taken};
    (void)pthread_mutex_unlock(&j->lock);
    return m;
}

/* Until the job has started (stream) or ended; false: the client is gone. */
static bool wait_for_job(waiting *w) {
    for (;;) {
        moment m = look(w->job);
        if (m.ended || (w->job->request.stream && m.started)) return true;
        if (ms_exchange_wait(w->x, w->job->event_fd, -1) == MS_WAIT_GONE) {
            is_gone(w);
            return false;
        }
    }
}

static ptrdiff_t next_bytes(void *arg, char *to, size_t room) {
    waiting *w = arg;
    uint64_t interval = (uint64_t)w->server->o.keepalive_s * UINT64_C(1000000000);
    for (;;) {
        moment m = look(w->job); /* before the bytes: what ended earlier has left them all */
        size_t n = ms_job_take(w->job, to, room);
        if (n) return (ptrdiff_t)n;
        if (m.ended && m.empty) return 0;
        if (ms_job_stopped(w->job) == MS_STOP_GONE) return -1;
        uint64_t due = interval ? ms_job_keepalive(w->job, interval) : UINT64_MAX;
        int ms = due < (uint64_t)INT32_MAX * 1000000 ? (int)(due / 1000000) + 1 : -1;
        if (ms_exchange_wait(w->x, w->job->event_fd, ms) == MS_WAIT_GONE) {
            is_gone(w);
            return -1;
        }
    }
}

/* Asks for the slot until it is there; false: answered or gone. */
static bool wait_for_slot(waiting *w) {
    ms_server *s = w->server;
    ms_job *j = w->job;
    ms_api_error e = {0};
    bool queued = false;
    uint64_t since = ms_clock_ns();
    ms_log_line l;
    for (;;) {
        ms_turn turn = ms_worker_turn(s->worker, j, &e);
        if (turn == MS_TURN_REFUSED) {
            refuse(s, w->x, j->codec->kind, &e);
            return false;
        }
        if (turn == MS_TURN_NOW) break;
        if (!queued) {
            ms_log_begin(&l, s->o.log, MS_LOG_INFO, "request.queued", j->id);
            ms_log_end(&l);
        }
        queued = true;
        if (ms_exchange_wait(w->x, j->event_fd, LOOK_MS) == MS_WAIT_GONE) {
            (void)atomic_fetch_add(&s->metrics.cancelled[0], 1);
            ms_worker_leave(s->worker, j);
            return false;
        }
    }
    if (!queued) return true;
    ms_log_begin(&l, s->o.log, MS_LOG_INFO, "request.dequeued", j->id);
    ms_log_real(&l, "waited", (double)(ms_clock_ns() - since) / 1e9);
    ms_log_end(&l);
    return true;
}

/* ------------------------------------------------------------------ responses */

static void header_u64(ms_exchange *x, const char *name, uint64_t value) {
    char text[24];
    (void)snprintf(text, sizeof text, "%" PRIu64, value);
    ms_exchange_header(x, name, text);
}

static void header_seconds(ms_exchange *x, const char *name, double value) {
    char text[40];
    (void)snprintf(text, sizeof text, "%.6f", value);
    ms_exchange_header(x, name, text);
}

/* What is known before generation. */
static void early_headers(ms_exchange *x, const ms_job *j) {
    const ms_api_request *q = &j->request;
    char text[64];
    if (q->ignored.len) ms_exchange_header(x, "X-Moonshine-Ignored-Fields", q->ignored.data);
    if (q->ignored_tools.len) ms_exchange_header(x, "X-Moonshine-Ignored-Tools", q->ignored_tools.data);
    if (q->repaired_surrogates) {
        (void)snprintf(text, sizeof text, "lone-surrogates=%u", q->repaired_surrogates);
        ms_exchange_header(x, "X-Moonshine-Repaired", text);
    }
    if (q->clamped) {
        (void)snprintf(text, sizeof text, "max_tokens=%" PRIu64, q->max_tokens);
        ms_exchange_header(x, "X-Moonshine-Clamped", text);
    }
    if (j->seeded) {
        (void)snprintf(text, sizeof text, "%" PRId64, q->seed);
        ms_exchange_header(x, "X-Moonshine-Seed", text);
    }
}

static void prompt_headers(ms_exchange *x, ms_job *j) {
    (void)pthread_mutex_lock(&j->lock);
    ms_api_usage u = j->usage;
    (void)pthread_mutex_unlock(&j->lock);
    header_u64(x, "X-Moonshine-Prompt-Evaluated-Tokens", u.prompt - u.cached);
    header_u64(x, "X-Moonshine-Prompt-Reused-Tokens", u.cached);
}

static void reply_whole(waiting *w) {
    ms_job *j = w->job;
    (void)pthread_mutex_lock(&j->lock);
    ms_text body = j->out;
    j->out = (ms_text){0};
    j->taken = 0;
    (void)pthread_mutex_unlock(&j->lock);
    double decode = (double)j->decode_ns / 1e9;
    header_seconds(w->x, "X-Moonshine-Prompt-Seconds", (double)j->prefill_ns / 1e9);
    header_seconds(w->x, "X-Moonshine-Decode-Seconds", decode);
    header_seconds(w->x, "X-Moonshine-Decode-Tokens-Per-Second", decode > 0 ? (double)j->usage.completion / decode : 0);
    if (j->stop_note) ms_exchange_header(w->x, "X-Moonshine-Stop", j->stop_note);
    ms_exchange_reply(w->x, 200, MS_JSON_CONTENT, &body);
}

/* The job runs: answers, or lets the connection end. */
static void answer(waiting *w) {
    ms_job *j = w->job;
    ms_exchange *x = w->x;
    ms_exchange_on_done(x, on_done, w); /* takes w over */
    if (!wait_for_job(w)) return;
    (void)pthread_mutex_lock(&j->lock);
    bool failed = j->error.http != 0, started = j->started;
    ms_api_error e = j->error;
    (void)pthread_mutex_unlock(&j->lock);
    if (failed && e.http == 499) return;
    if (failed && !(started && j->request.stream)) {
        ms_exchange_error(x, &e);
        return;
    }
    prompt_headers(x, j);
    if (j->request.stream)
        ms_exchange_stream(x, "text/event-stream; charset=utf-8", next_bytes, w);
    else
        reply_whole(w);
}

/* ------------------------------------------------------------------ requests */

static bool parse(ms_server *s, const ms_api_codec *codec, ms_exchange *x, ms_api_request *out, bool count,
                  ms_api_error *e) {
    const ms_text *body = ms_exchange_body(x);
    (void)pthread_mutex_lock(&s->parsing);
    bool good = codec->parse(out, body->data ? body->data : "", body->len, &s->limits, count, e);
    (void)pthread_mutex_unlock(&s->parsing);
    return good;
}

static void log_start(ms_server *s, ms_job *j, ms_exchange *x) {
    static const char *const choices[] = {"auto", "none", "required", "named", "allowed"};
    static const char *const formats[] = {"text", "json_object", "json_schema"};
    const ms_api_request *q = &j->request;
    ms_log_line l;
    ms_log_begin(&l, s->o.log, MS_LOG_INFO, "request.start", j->id);
    ms_log_word(&l, "peer", ms_exchange_peer(x));
    ms_log_word(&l, "api", j->codec->name);
    ms_log_yes(&l, "stream", q->stream);
    ms_log_u64(&l, "messages", q->message_count);
    ms_log_u64(&l, "max_output", q->max_tokens);
    ms_log_word(&l, "reasoning", !q->thinking ? "off" : q->effort ? q->effort : "on");
    ms_log_u64(&l, "tools", q->tool_count);
    ms_log_word(&l, "tool_choice", choices[q->tool_choice]);
    ms_log_yes(&l, "parallel_tools", q->parallel_tools);
    ms_log_word(&l, "format", formats[q->format]);
    ms_log_word(&l, "sampling", q->sampled ? "sampled" : "greedy");
    ms_log_yes(&l, "ignored", q->ignored.len > 0);
    ms_log_end(&l);
}

static ms_job *new_job(ms_server *s, const ms_api_codec *codec, ms_exchange *x, ms_api_error *e) {
    ms_job *j = ms_job_create();
    if (!j) {
        (void)ms_api_fail(e, 500, "internal_error", "", "out of memory");
        return NULL;
    }
    j->codec = codec;
    j->max_queue_bytes = s->o.queue_bytes;
    j->write_ns = (uint64_t)s->o.io_timeout_s * UINT64_C(1000000000);
    (void)snprintf(j->id, sizeof j->id, "%s", ms_exchange_id(x));
    (void)snprintf(j->peer, sizeof j->peer, "%s", ms_exchange_peer(x));
    bool good = parse(s, codec, x, &j->request, false, e);
    if (good) good = ms_constraints_get(s->constraints, &j->request, &j->constraint, e);
    if (good && !(j->writer = codec->writer(&j->request))) {
        good = ms_api_fail(e, 500, "internal_error", "", "out of memory");
    }
    ms_api_request *q = &j->request;
    if (good && q->sampled && !q->has_seed) {
        j->seeded = getrandom(&q->seed, sizeof q->seed, 0) == (ssize_t)sizeof q->seed;
        if (!j->seeded) good = ms_api_fail(e, 500, "internal_error", "", "no random seed");
    }
    if (good) return j;
    ms_job_release(j);
    return NULL;
}

static void generate(ms_server *s, const ms_api_codec *codec, ms_exchange *x) {
    ms_api_error e = {0};
    ms_job *j = new_job(s, codec, x, &e);
    if (!j) {
        refuse(s, x, codec->kind, &e);
        return;
    }
    waiting *w = calloc(1, sizeof *w);
    bool admitted = w && ms_worker_admit(s->worker, j, &e);
    if (!admitted) {
        if (!w) (void)ms_api_fail(&e, 500, "internal_error", "", "out of memory");
        refuse(s, x, codec->kind, &e);
        ms_job_release(j);
        free(w);
        return;
    }
    *w = (waiting){s, x, j};
    early_headers(x, j);
    bool ready = wait_for_slot(w);
    if (ready && !ms_server_render(s, &j->request, &j->prompt, &e)) {
        refuse(s, x, codec->kind, &e);
        ms_worker_leave(s->worker, j);
        ready = false;
    }
    if (!ready) {
        ms_job_release(j);
        free(w);
        return;
    }
    if (j->prompt.restored) header_u64(x, "X-Moonshine-Reasoning-Restored", j->prompt.restored);
    log_start(s, j, x);
    ms_worker_submit(s->worker, j);
    answer(w);
}

void ms_handle_chat(void *arg, ms_exchange *x) { generate(arg, &ms_api_chat, x); }
void ms_handle_completions(void *arg, ms_exchange *x) { generate(arg, &ms_api_completions, x); }
void ms_handle_messages(void *arg, ms_exchange *x) { generate(arg, &ms_api_messages, x); }
void ms_handle_responses(void *arg, ms_exchange *x) { generate(arg, &ms_api_responses, x); }

/* ------------------------------------------------------------------ counting */

/* Parses and renders like the real request, without the slot. */
static bool count(ms_server *s, const ms_api_codec *codec, ms_exchange *x, ms_candidate *c) {
    ms_api_request q = {0};
    ms_api_error e = {0};
    bool good = parse(s, codec, x, &q, true, &e) && ms_server_render(s, &q, c, &e);
    ms_api_request_free(&q);
    if (!good) refuse(s, x, codec->kind, &e);
    return good;
}

static void reply_count(ms_server *s, const ms_api_codec *codec, ms_exchange *x, const char *object) {
    ms_candidate c = {0};
    if (!count(s, codec, x, &c)) return;
    ms_text body = {0};
    ms_text_puts(&body, "{");
    if (object) ms_text_printf(&body, "\"object\":\"%s\",", object);
    ms_text_printf(&body, "\"input_tokens\":%zu}", c.ids.count);
    ms_candidate_free(&c);
    ms_exchange_reply(x, 200, MS_JSON_CONTENT, &body);
}

void ms_handle_chat_count(void *arg, ms_exchange *x) {
    reply_count(arg, &ms_api_chat, x, "chat.completion.input_tokens");
}
void ms_handle_messages_count(void *arg, ms_exchange *x) { reply_count(arg, &ms_api_messages, x, NULL); }
void ms_handle_responses_count(void *arg, ms_exchange *x) {
    reply_count(arg, &ms_api_responses, x, "response.input_tokens");
}

void ms_handle_template(void *arg, ms_exchange *x) {
    ms_server *s = arg;
    ms_candidate c = {0};
    if (!count(s, &ms_api_chat, x, &c)) return;
    ms_text prompt = {0}, body = {0};
    (void)ms_tokenizer_decode(s->o.text->tokenizer, c.ids.data, c.ids.count, true, &prompt, NULL);
    ms_text_puts(&body, "{\"prompt\":");
    ms_json_write_string(&body, prompt.data ? prompt.data : "", prompt.len);
    ms_text_puts(&body, ",\"tokens\":[");
    for (size_t i = 0; i < c.ids.count; i++) ms_text_printf(&body, i ? ",%u" : "%u", c.ids.data[i]);
    ms_text_printf(&body, "],\"n\":%zu}", c.ids.count);
    body.failed = body.failed || prompt.failed;
    ms_text_free(&prompt);
    ms_candidate_free(&c);
    ms_exchange_reply(x, 200, MS_JSON_CONTENT, &body);
}
