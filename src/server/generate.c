/* generate.c: generate.h. */
#include "server/generate.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "server/decode.h"

enum {
    ANCHOR_MIN_TOKENS = 16,   /* a shorter beginning is not worth a point */
    KEEP_PROMPT_TOKENS = 512, /* a prompt that evaluated so many is kept at its end */
    DEADLINE_FIRST_ROWS = 32, /* of a prompt under a deadline, to learn the speed */
    PROGRESS_LOG_S = 60
};

/* Experts that a routed layer needs in one pass of several rows. */
typedef struct expert_count {
    uint8_t *seen; /* [experts]; NULL: nothing is counted */
    uint32_t experts;
    uint64_t layers, routes, sum, least, most;
} expert_count;

/* One job on its way. */
typedef struct run {
    ms_generator *g;
    ms_job *j;
    ms_turn_end *end;
    ms_beginning from;
    size_t prompt; /* ids that the model sees */
    size_t anchor; /* where to mark it; 0: nowhere */
    uint64_t room, start_ns, last_log_ns;
    uint64_t base; /* ids evaluated before the running forward */
    ms_engine_stats before, before_decode;
    expert_count count;
    uint64_t sweeps; /* passes over all layers */
} run;

void ms_turn_end_free(ms_turn_end *end) {
    ms_ids_free(&end->generated);
    ms_ids_free(&end->closing);
    ms_reply_free(&end->reply);
    *end = (ms_turn_end){0};
}

static double seconds(uint64_t ns) { return (double)ns / 1e9; }

/* ------------------------------------------------------------------ failures */

/* capture: of the diagnostics, that was kept; 0: none. */
static void fail(run *r, const ms_api_error *e, const char *stage, uint64_t capture) {
    ms_log_line l;
    ms_log_begin(&l, r->g->log, MS_LOG_ERROR, "request.failed", r->j->id);
    ms_log_word(&l, "stage", stage);
    ms_log_word(&l, "code", e->code);
    if (capture) ms_log_u64(&l, "capture", capture);
    ms_log_end(&l);
    (void)atomic_fetch_add(&r->g->metrics->requests[r->j->codec->kind][MS_OUTCOME_FAILED], 1);
    ms_job_fail(r->j, e);
}

/* The engine failed: does it still work?  One token on an empty timeline tells. */
static void fail_engine(run *r, const ms_error *err, const char *stage) {
    ms_generator *g = r->g;
    ms_api_error e = {0};
    (void)ms_api_fail(&e, 500, "engine_failure", "", "the engine failed in %s (%s)", stage, ms_status_name(err->code));
    if (r->from.origin == MS_ORIGIN_KEPT && g->timeline->ops->drop) g->timeline->ops->drop(g->timeline, r->from.entry);
    ms_retained_reset(&g->retained);
    const ms_forward_options one = {.range = 1};
    uint32_t probe = g->text->info.bos;
    g->broken = g->timeline->ops->forward(g->timeline, &probe, 1, &one, NULL) != MS_OK;
    ms_retained_reset(&g->retained);
    ms_log_line l;
    ms_log_begin(&l, g->log, MS_LOG_ERROR, g->broken ? "server.fatal" : "server.engine.error", r->j->id);
    ms_log_word(&l, "error", err->message);
    ms_log_end(&l);
    fail(r, &e, stage, 0);
}

static void log_cancelled(run *r, ms_stop why, const char *phase, size_t evaluated, size_t generated) {
    static const char *const reasons[] = {"none", "disconnect", "deadline", "shutdown"};
    ms_generator *g = r->g;
    bool prefill = strcmp(phase, "prefill") == 0;
    (void)atomic_fetch_add(&g->metrics->cancelled[prefill ? 1 : 2], 1);
    if (why == MS_STOP_DEADLINE) (void)atomic_fetch_add(&g->metrics->deadline_exceeded, 1);
    (void)atomic_fetch_add(&g->metrics->requests[r->j->codec->kind][MS_OUTCOME_CANCELLED], 1);
    ms_log_line l;
    ms_log_begin(&l, g->log, MS_LOG_INFO, "request.cancelled", r->j->id);
    ms_log_word(&l, "reason", reasons[why]);
    ms_log_word(&l, "phase", phase);
    ms_log_u64(&l, "evaluated", evaluated);
    ms_log_u64(&l, "generated", generated);
    ms_log_word(&l, "state", g->timeline->ops->position(g->timeline) ? "kept" : "reset");
    ms_log_end(&l);
}

/* Answers a job that was stopped.  What was evaluated of its prompt stays: repeating it goes on there. */
static void end_stopped(run *r, ms_stop why, const char *phase, size_t generated) {
    ms_generator *g = r->g;
    size_t position = (size_t)g->timeline->ops->position(g->timeline);
    size_t evaluated = position > r->from.at.matched ? position - r->from.at.matched : 0;
    ms_api_error e = {0};
    if (why == MS_STOP_SHUTDOWN) {
        (void)ms_api_fail(&e, 503, "server_shutdown", "", "the server is shutting down");
        e.retry_after = 5;
    } else if (why == MS_STOP_DEADLINE) {
        bool resumable = evaluated > 0 && g->reuse;
        double elapsed = seconds(ms_clock_ns() - r->j->admitted_ns);
        (void)ms_api_fail(&e, 504, "deadline_exceeded", "",
                          "the deadline passed after %.3f seconds: %zu prompt tokens evaluated, %zu reused; repeating "
                          "the request %s",
                          elapsed, evaluated, r->from.at.matched,
                          resumable ? "continues there" : "does not get further");
        (void)snprintf(e.details, sizeof e.details,
                       "{\"elapsed_seconds\":%.3f,\"evaluated\":%zu,\"reused\":%zu,\"resumable\":%s}", elapsed,
                       evaluated, r->from.at.matched, resumable ? "true" : "false");
        e.should_retry = resumable ? 1 : -1;
    } else {
        (void)ms_api_fail(&e, 499, "client_disconnected", "", "the client is gone");
    }
    log_cancelled(r, why, phase, evaluated, generated);
    if (why == MS_STOP_DEADLINE) ms_retained_save(&g->retained, MS_KEEP_NOW);
    ms_job_fail(r->j, &e);
}

/* ------------------------------------------------------------------ prompt */

static const char *reuse_word(const run *r) {
    switch (r->from.origin) {
    case MS_ORIGIN_LIVE:
    case MS_ORIGIN_REWIND:
    case MS_ORIGIN_POINT:
        return "hit";
    case MS_ORIGIN_KEPT:
        return "checkpoint";
    case MS_ORIGIN_COLD:
        break;
    }
    if (!r->g->reuse) return "disabled";
    return r->g->timeline->ops->position(r->g->timeline) ? "miss" : "cold";
}

static void log_prefill_start(run *r, bool layers) {
    ms_generator *g = r->g;
    const char *word = reuse_word(r);
    bool miss = strcmp(word, "miss") == 0;
    ms_log_line l;
    if (miss) {
        ms_log_begin(&l, g->log, MS_LOG_WARN, "request.prefix.miss", r->j->id);
        ms_log_u64(&l, "retained", g->timeline->ops->position(g->timeline));
        ms_log_u64(&l, "matched", r->from.matched);
        ms_log_u64(&l, "candidate", r->j->prompt.ids.count);
        ms_log_end(&l);
    }
    ms_log_begin(&l, g->log, miss ? MS_LOG_WARN : MS_LOG_INFO, "request.prefill.start", r->j->id);
    ms_log_u64(&l, "prompt", r->prompt);
    ms_log_u64(&l, "evaluated", r->prompt - r->from.at.matched);
    ms_log_u64(&l, "reused", r->from.at.matched);
    ms_log_word(&l, "reuse", word);
    ms_log_word(&l, "strategy", layers ? "layer-major" : "token-major");
    ms_log_word(&l, "replacement", "guarded");
    ms_log_end(&l);
}

/* At every layer or token boundary: progress for others, and reasons to stop. */
static void on_progress(void *arg, ms_progress_unit unit, uint64_t done, uint64_t total) {
    run *r = arg;
    ms_job *j = r->j;
    ms_generator *g = r->g;
    uint64_t now = ms_clock_ns();
    if (j->deadline_ns && now >= j->deadline_ns) ms_job_stop(j, MS_STOP_DEADLINE);
    if (ms_job_stopped(j) != MS_STOP_NONE) g->timeline->ops->cancel(g->timeline);
    (void)pthread_mutex_lock(&j->lock);
    j->progress.layers = unit == MS_PROGRESS_LAYER;
    j->progress.done = done;
    j->progress.total = total;
    j->progress.processed = g->timeline->ops->position(g->timeline);
    (void)pthread_mutex_unlock(&j->lock);
    if (now - r->last_log_ns < PROGRESS_LOG_S * UINT64_C(1000000000)) return;
    r->last_log_ns = now;
    ms_log_line l;
    ms_log_begin(&l, g->log, MS_LOG_INFO, "request.prefill.progress", j->id);
    ms_log_word(&l, "unit", unit == MS_PROGRESS_LAYER ? "layer" : "token");
    ms_log_u64(&l, "completed", done);
    ms_log_u64(&l, "total", total);
    ms_log_real(&l, "elapsed", seconds(now - r->start_ns));
    ms_log_end(&l);
}

static void count_routes(void *arg, uint32_t layer, uint64_t first, uint32_t rows, uint32_t top_k,
                         const uint32_t *ids) {
    (void)layer;
    (void)first;
    expert_count *c = arg;
    uint64_t unique = 0;
    memset(c->seen, 0, c->experts);
    for (size_t i = 0; i < (size_t)rows * top_k; i++) {
        if (ids[i] >= c->experts || c->seen[ids[i]]) continue;
        c->seen[ids[i]] = 1;
        unique++;
    }
    if (!c->layers || unique < c->least) c->least = unique;
    if (unique > c->most) c->most = unique;
    c->sum += unique;
    c->layers++;
    c->routes += (uint64_t)rows * top_k;
}

/* Evaluates ids[0..count), under a deadline in pieces that leave room to stop in time. */
static ms_status evaluate(run *r, const uint32_t *ids, size_t count, bool layers, ms_error *err) {
    ms_causal *t = r->g->timeline;
    const ms_forward_options o = {.range = layers ? 0 : 1,
                                  .progress = on_progress,
                                  .progress_arg = r,
                                  .routes = layers && r->count.seen ? count_routes : NULL,
                                  .routes_arg = &r->count};
    uint64_t quarter = r->g->deadline_ns / 4;
    size_t piece = r->j->deadline_ns && layers ? DEADLINE_FIRST_ROWS : count;
    while (count) {
        size_t n = count < piece ? count : piece;
        uint64_t start = ms_clock_ns();
        MS_TRY(t->ops->forward(t, ids, n, &o, err));
        r->sweeps += layers ? (n - 1) / t->range_rows + 1 : n;
        ids += n;
        count -= n;
        if (!r->j->deadline_ns || !layers) continue;
        uint64_t one = (ms_clock_ns() - start) / n + 1, fit = quarter / one;
        piece = fit < 1 ? 1 : fit < t->range_rows ? (size_t)fit : t->range_rows;
    }
    return MS_OK;
}

static ms_status prefill(run *r, ms_error *err) {
    ms_generator *g = r->g;
    const ms_ids *ids = &r->j->prompt.ids;
    size_t at = r->from.at.used, rest = ids->count - at;
    bool layers = rest > g->sequential_limit;
    /* The anchor lies before anything hidden, so its index is the same on both sides. */
    size_t anchor = r->j->prompt.anchor;
    if (g->reuse && anchor >= ANCHOR_MIN_TOKENS && at < anchor && anchor < ids->count && at == r->from.at.matched) {
        MS_TRY(evaluate(r, ids->data + at, anchor - at, layers, err));
        MS_TRY(ms_retained_mark(&g->retained, true, NULL, err));
        ms_retained_save(&g->retained, MS_KEEP_MEMORY);
        at = anchor;
    }
    MS_TRY(evaluate(r, ids->data + at, ids->count - at, layers, err));
    const ms_candidate *c = &r->j->prompt;
    if (c->hidden_count && c->hidden_first >= r->from.at.used) {
        MS_TRY(ms_marks_add(&g->retained.marks, true, r->from.at.matched + (c->hidden_first - r->from.at.used),
                            c->hidden_count, err));
    }
    return MS_OK;
}

static const float *prompt_logits(const run *r) {
    const ms_retained *k = &r->g->retained;
    const float *live = r->g->timeline->ops->logits(r->g->timeline);
    for (size_t i = 0; !live && i < k->point_count; i++) {
        if (k->points[i].position == r->prompt) live = k->points[i].logits;
    }
    return live;
}

/* What was read of experts between two looks at the engine. */
static void log_reads(ms_log_line *l, const ms_engine_stats *before, const ms_engine_stats *now) {
    ms_log_u64(l, "reads", now->expert_reads - before->expert_reads);
    ms_log_u64(l, "read", now->expert_read_bytes - before->expert_read_bytes);
    ms_log_real(l, "read_wait", seconds(now->read_wait_ns - before->read_wait_ns));
    ms_log_u64(l, "cache_hits", now->expert_hits - before->expert_hits);
    ms_log_u64(l, "cache_accesses", now->expert_accesses - before->expert_accesses);
}

static void log_prefill_io(const run *r, const ms_engine_stats *now) {
    const expert_count *c = &r->count;
    ms_log_line l;
    ms_log_begin(&l, r->g->log, MS_LOG_INFO, "request.prefill.io", r->j->id);
    ms_log_u64(&l, "sweeps", r->sweeps);
    if (c->layers) {
        ms_log_u64(&l, "unique_experts_min", c->least);
        ms_log_real(&l, "unique_experts_avg", (double)c->sum / (double)c->layers);
        ms_log_u64(&l, "unique_experts_max", c->most);
        ms_log_u64(&l, "routes", c->routes);
    }
    log_reads(&l, &r->before, now);
    ms_log_end(&l);
}

static void log_prefill_complete(run *r) {
    ms_generator *g = r->g;
    ms_engine_stats now;
    g->timeline->ops->stats(g->timeline, &now);
    uint64_t ns = r->j->prefill_ns;
    size_t evaluated = r->prompt - r->from.at.matched;
    (void)atomic_fetch_add(&g->metrics->prompt_tokens, r->prompt);
    (void)atomic_fetch_add(&g->metrics->prompt_tokens_reused, r->from.at.matched);
    (void)atomic_fetch_add(&g->metrics->prefill_us, ns / 1000);
    ms_log_line l;
    ms_log_begin(&l, g->log, MS_LOG_INFO, "request.prefill.complete", r->j->id);
    ms_log_u64(&l, "evaluated", evaluated);
    ms_log_u64(&l, "reused", r->from.at.matched);
    ms_log_real(&l, "seconds", seconds(ns));
    ms_log_real(&l, "rate", ns ? (double)evaluated / seconds(ns) : 0);
    ms_log_u64(&l, "read", now.expert_read_bytes - r->before.expert_read_bytes);
    ms_log_u64(&l, "workspace_borrow", now.workspace_borrow_bytes - r->before.workspace_borrow_bytes);
    ms_log_end(&l);
    if (evaluated) log_prefill_io(r, &now);
}

/* ------------------------------------------------------------------ policy */

static const ms_api_tool *find_tool(const ms_api_request *q, const ms_tool_call *c, size_t *index) {
    for (size_t i = 0; i < q->tool_count; i++) {
        if (q->tools[i].name_len == c->name_len && memcmp(q->tools[i].name, c->name, c->name_len) == 0) {
            *index = i;
            return &q->tools[i];
        }
    }
    return NULL;
}

static bool arguments_fit(const ms_api_tool *tool, const ms_tool_call *c) {
    static const ms_json_limits limits = {.max_depth = MS_JSON_MAX_DEPTH};
    ms_json_doc *doc = NULL;
    bool parsed = ms_json_parse(&doc, c->arguments, c->arguments_len, "arguments", &limits, NULL) == MS_OK;
    bool fit = parsed ? ms_json_root(doc)->type == MS_JSON_OBJECT : !tool->strict;
    ms_json_free(doc);
    return fit;
}

/* What the request asked of calls; NULL: all is well, else the rule that was broken. */
static const char *broken_rule(const ms_api_request *q, const ms_reply *reply) {
    bool required = q->tool_choice == MS_TOOLS_REQUIRED || q->tool_choice == MS_TOOLS_NAMED ||
                    (q->tool_choice == MS_TOOLS_ALLOWED && q->allowed_required);
    if (reply->status == MS_REPLY_MALFORMED) return "the model wrote a call that cannot be read";
    if (required && !reply->call_count) return "a call was required and the model made none";
    if (q->tool_choice == MS_TOOLS_NONE && reply->call_count) return "the model made a call although none was allowed";
    if (!q->parallel_tools && reply->call_count > 1) return "the model made several calls where one was allowed";
    for (size_t i = 0; i < reply->call_count; i++) {
        size_t index;
        const ms_api_tool *tool = find_tool(q, &reply->calls[i], &index);
        if (!tool) return "the model called a tool that was not declared";
        if (q->tool_allowed && !q->tool_allowed[index]) return "the model called a tool that was not allowed";
        if (!arguments_fit(tool, &reply->calls[i])) return "the model wrote arguments that are not a JSON object";
    }
    return NULL;
}

static const char *broken_format(const ms_api_request *q, const ms_reply *reply, ms_decode_end end) {
    if (q->format == MS_API_TEXT || reply->call_count) return NULL;
    if (ms_response_fits(q, reply->content ? reply->content : "", reply->content_len)) return NULL;
    return end == MS_END_LENGTH || end == MS_END_DEADLINE ? "output limit reached inside the value"
                                                          : "the model's output is not what response_format asks for";
}

/* ------------------------------------------------------------------ reply */

static void log_complete(run *r, const ms_decode *d, const ms_reply *reply, ms_api_finish finish) {
    static const char *const finishes[] = {"stop", "stop", "length", "tool_calls"};
    ms_generator *g = r->g;
    ms_job *j = r->j;
    ms_engine_stats now;
    g->timeline->ops->stats(g->timeline, &now);
    (void)atomic_fetch_add(&g->metrics->completion_tokens, d->generated.count);
    (void)atomic_fetch_add(&g->metrics->reasoning_tokens, d->reasoning);
    (void)atomic_fetch_add(&g->metrics->decode_us, j->decode_ns / 1000);
    (void)atomic_fetch_add(&g->metrics->requests[j->codec->kind][MS_OUTCOME_OK], 1);
    ms_log_line l;
    ms_log_begin(&l, g->log, MS_LOG_INFO, "request.complete", j->id);
    ms_log_u64(&l, "prompt", r->prompt);
    ms_log_u64(&l, "evaluated", r->prompt - r->from.at.matched);
    ms_log_u64(&l, "reused", r->from.at.matched);
    ms_log_real(&l, "prefill", seconds(j->prefill_ns));
    ms_log_u64(&l, "generated", d->generated.count);
    ms_log_real(&l, "decode", seconds(j->decode_ns));
    ms_log_real(&l, "rate", j->decode_ns ? (double)d->generated.count / seconds(j->decode_ns) : 0);
    ms_log_real(&l, "total", seconds(ms_clock_ns() - j->admitted_ns));
    ms_log_word(&l, "finish", finishes[finish]);
    ms_log_u64(&l, "forced_trailer", r->end->exact ? r->end->closing.count : 0);
    ms_log_u64(&l, "tool_calls", reply->call_count);
    ms_log_u64(&l, "reasoning_bytes", reply->reasoning_len);
    ms_log_u64(&l, "content_bytes", reply->content_len);
    ms_log_yes(&l, "stream", j->request.stream);
    ms_log_word(&l, "client", ms_job_stopped(j) == MS_STOP_GONE ? "disconnected" : "connected");
    ms_log_u64(&l, "cache_hits", now.expert_hits - r->before.expert_hits);
    ms_log_u64(&l, "cache_accesses", now.expert_accesses - r->before.expert_accesses);
    ms_log_end(&l);
}

/* ------------------------------------------------------------------ diagnostics */

/* Ends the capture of a generated reply; gives its number, or 0. */
static uint64_t keep_capture(ms_generator *g, const ms_job *j) {
    ms_error err;
    uint64_t capture;
    if (ms_diagnostics_commit(g->diagnostics, g->timeline, &capture, &err) == MS_OK) return capture;
    ms_log_line l;
    ms_log_begin(&l, g->log, MS_LOG_ERROR, "server.diagnostics.failed", j->id);
    ms_log_word(&l, "error", err.message);
    ms_log_end(&l);
    return 0;
}

/* With any of the options that look at decoding. */
static void log_decode_io(const run *r) {
    const ms_generator *g = r->g;
    if (!g->digest && !g->diagnostics) return;
    ms_engine_stats now;
    g->timeline->ops->stats(g->timeline, &now);
    ms_log_line l;
    ms_log_begin(&l, g->log, MS_LOG_INFO, "request.decode.io", r->j->id);
    log_reads(&l, &r->before_decode, &now);
    ms_log_end(&l);
}

static void log_digest(const run *r) {
    const ms_generator *g = r->g;
    ms_digest digest;
    ms_error err;
    if (!g->digest || !g->timeline->ops->digest) return;
    ms_status st = g->timeline->ops->digest(g->timeline, &digest, &err);
    ms_log_line l;
    ms_log_begin(&l, g->log, st == MS_OK ? MS_LOG_INFO : MS_LOG_ERROR, "request.state.digest", r->j->id);
    if (st == MS_OK) {
        ms_log_word(&l, "kind", "non-cryptographic");
        ms_log_u64(&l, "position", digest.position);
    } else {
        ms_log_word(&l, "error", err.message);
    }
    for (uint32_t i = 0; st == MS_OK && i < digest.count; i++) {
        char hex[17];
        (void)snprintf(hex, sizeof hex, "%016" PRIx64, digest.part[i].fnv1a64);
        ms_log_word(&l, digest.part[i].kind, hex);
    }
    ms_log_end(&l);
}

/* ------------------------------------------------------------------ end of a reply */

/* Sends the calls, as far as the client does not have them, and remembers them. */
static ms_status send_calls(run *r, ms_decode *d, const ms_reply *reply, ms_error *err) {
    ms_job *j = r->j;
    MS_TRY(ms_decode_calls(d, reply->calls, reply->call_count, err));
    for (size_t i = 0; r->g->calls && i < reply->call_count; i++)
        ms_call_memory_add(r->g->calls, d->call_ids[i], reply->calls[i].arguments, reply->calls[i].arguments_len);
    if (r->g->reasoning && j->prompt.thinking && j->prompt.channel != MS_CHANNEL_NONE)
        ms_reasoning_memory_add(r->g->reasoning, &j->prompt.history, reply,
                                (const char(*)[MS_CALL_ID_BYTES])d->call_ids);
    if (!r->g->turns || j->request.kind != MS_API_RESPONSES || !reply->call_count) return MS_OK;
    ms_turn_memory_add(r->g->turns, ms_json_get(ms_json_root(j->request.chat_doc), "messages"), reply,
                       j->prompt.thinking, (const char(*)[MS_CALL_ID_BYTES])d->call_ids);
    return MS_OK;
}

static void finish(run *r, ms_decode *d, const ms_reply *reply) {
    ms_job *j = r->j;
    char comment[160];
    bool deadline = d->end == MS_END_DEADLINE;
    (void)snprintf(comment, sizeof comment, "%smoonshine prompt total=%zu evaluated=%zu reused=%zu",
                   deadline ? "moonshine stop=deadline\n" : "", r->prompt, r->prompt - r->from.at.matched,
                   r->from.at.matched);
    if (deadline) {
        j->stop_note = "deadline";
        (void)atomic_fetch_add(&r->g->metrics->deadline_exceeded, 1);
    }
    ms_api_end e = {.usage = {.prompt = r->prompt,
                              .cached = r->from.at.matched,
                              .completion = d->generated.count,
                              .reasoning = d->reasoning},
                    .comment = comment};
    if (d->end == MS_END_MESSAGE)
        e.finish = reply->call_count ? MS_API_TOOL_CALLS : MS_API_STOP;
    else if (d->end == MS_END_STOP_STRING)
        e.finish = MS_API_STOP_STRING;
    else
        e.finish = MS_API_LENGTH;
    if (d->end == MS_END_STOP_STRING && d->stops.matched) {
        const ms_text *s = &d->stops.text[d->stops.match];
        e.stop = s->data;
        e.stop_len = s->len;
    }
    log_complete(r, d, reply, e.finish);
    ms_job_finish(j, &e);
}

/* What will be evaluated behind the reply; settle does it. */
static void plan_closing(run *r, const ms_decode *d, const ms_reply *reply) {
    ms_turn_end *e = r->end;
    e->raw = r->j->prompt.channel == MS_CHANNEL_NONE;
    if (e->raw || !r->g->reuse) return;
    ms_status st = ms_reply_finish_ids(r->g->text, r->j->prompt.thinking, reply, d->generated.data, d->generated.count,
                                       &e->exact, &e->closing, NULL);
    if (st != MS_OK) e->exact = false; /* the state goes back to the end of the prompt */
}

/* Ends the reply: everything that may still refuse it comes before its calls and its held text. */
static void conclude(run *r, ms_decode *d) {
    ms_error err;
    ms_reply reply;
    ms_api_error e = {0};
    if (ms_decode_finish(d, &reply, &err) != MS_OK) {
        fail_engine(r, &err, "the reply");
        return;
    }
    log_decode_io(r);
    log_digest(r);
    const char *rule = broken_rule(&r->j->request, &reply), *format = broken_format(&r->j->request, &reply, d->end);
    if (!rule && d->calls_begun > reply.call_count) rule = "the reply ended inside a call";
    bool deadline = d->end == MS_END_DEADLINE && (rule || format);
    if (deadline) {
        end_stopped(r, MS_STOP_DEADLINE, "decode", d->generated.count);
    } else if (rule) {
        (void)ms_api_fail(&e, 500, "tool_policy_unsatisfied", "", "%s", rule);
        e.should_retry = -1;
        fail(r, &e, "policy", keep_capture(r->g, r->j));
    } else if (format) {
        (void)ms_api_fail(&e, 500, "structured_output_invalid", "", "%s", format);
        e.should_retry = -1;
        fail(r, &e, "format", keep_capture(r->g, r->j));
    } else {
        ms_job_hand_over(r->j);
        ms_decode_release(d);
        if (send_calls(r, d, &reply, &err) != MS_OK) {
            ms_reply_free(&reply);
            fail_engine(r, &err, "the calls");
            return;
        }
        plan_closing(r, d, &reply);
        finish(r, d, &reply);
    }
    if (rule || format) {
        (void)ms_retained_back(&r->g->retained, r->prompt, NULL);
        ms_reply_free(&reply);
        return;
    }
    r->end->settle = true;
    r->end->prompt_end = r->prompt;
    r->end->generated = d->generated;
    d->generated = (ms_ids){0};
    r->end->reply = reply;
}

static void set_phase(ms_job *j, ms_phase phase) {
    uint64_t now = ms_clock_ns();
    (void)pthread_mutex_lock(&j->lock);
    j->progress.phase = phase;
    if (phase == MS_PHASE_PREFILL) j->progress.start_ns = now;
    if (phase == MS_PHASE_DECODE) j->progress.decode_start_ns = now;
    (void)pthread_mutex_unlock(&j->lock);
}

static void reply(run *r) {
    ms_generator *g = r->g;
    ms_job *j = r->j;
    ms_error err;
    ms_decode d;
    const float *logits = prompt_logits(r);
    uint64_t limit = j->request.max_tokens < r->room ? j->request.max_tokens : r->room;
    ms_status status = logits ? ms_decode_init(&d, g, j, j->prompt.channel, limit, &err)
                              : ms_fail(&err, MS_ERR_INTERNAL, "no logits at the end of the prompt");
    if (status != MS_OK) {
        fail_engine(r, &err, "the reply");
        return;
    }
    set_phase(j, MS_PHASE_DECODE);
    ms_log_line l;
    ms_log_begin(&l, g->log, MS_LOG_INFO, "request.decode.start", j->id);
    ms_log_word(&l, "phase", j->prompt.channel == MS_CHANNEL_THINK ? "reasoning" : "response");
    ms_log_u64(&l, "max_output", limit);
    ms_log_end(&l);
    ms_histogram_add(&g->metrics->first_token, seconds(ms_clock_ns() - j->admitted_ns));
    ms_diagnostics_begin(g->diagnostics, g->timeline);
    g->timeline->ops->stats(g->timeline, &r->before_decode);
    uint64_t start = ms_clock_ns();
    status = ms_decode_run(&d, logits, &err);
    j->decode_ns = ms_clock_ns() - start;
    if (status != MS_OK) {
        fail_engine(r, &err, "decode");
    } else if (d.end == MS_END_CUT) {
        size_t generated = d.generated.count;
        (void)ms_retained_back(&g->retained, r->prompt, NULL);
        end_stopped(r, d.stop, "decode", generated);
    } else {
        conclude(r, &d);
    }
    if (!r->end->settle) ms_diagnostics_rollback(g->diagnostics, g->timeline);
    ms_decode_fini(&d);
}

/* ------------------------------------------------------------------ all of it */

/* How long the prompt is from where it begins, and what that leaves for the reply. */
static bool check_room(run *r) {
    r->prompt = r->from.at.matched + (r->j->prompt.ids.count - r->from.at.used);
    uint64_t context = r->g->timeline->context, need = (uint64_t)r->prompt + r->j->prompt.closing;
    uint32_t least = r->j->constraint ? ms_constraint_least(r->j->constraint) : 1;
    r->room = need < context ? context - need : 0;
    if (r->room >= least) return true;
    static const char *const params[] = {"messages", "prompt", "messages", "input"};
    ms_api_error e = {0};
    (void)ms_api_fail(&e, 400, "context_length_exceeded", params[r->j->codec->kind],
                      "maximum context length is %" PRIu64 " tokens; the prompt has %zu, the shortest reply %u and "
                      "closing it may take %zu",
                      context, r->prompt, least, r->j->prompt.closing);
    (void)snprintf(e.details, sizeof e.details, "{\"n_prompt_tokens\":%zu,\"n_ctx\":%" PRIu64 "}", r->prompt, context);
    (void)atomic_fetch_add(&r->g->metrics->requests[r->j->codec->kind][MS_OUTCOME_CLIENT_ERROR], 1);
    ms_log_line l;
    ms_log_begin(&l, r->g->log, MS_LOG_WARN, "request.reject", r->j->id);
    ms_log_word(&l, "peer", r->j->peer);
    ms_log_u64(&l, "status", 400);
    ms_log_word(&l, "code", e.code);
    ms_log_end(&l);
    ms_job_fail(r->j, &e);
    return false;
}

static void start(run *r) {
    ms_job *j = r->j;
    ms_api_start s = {.created = (int64_t)time(NULL),
                      .model = r->g->model_id,
                      .fingerprint = r->g->fingerprint,
                      .usage = {.prompt = r->prompt, .cached = r->from.at.matched}};
    (void)snprintf(s.id, sizeof s.id, "%s", j->id);
    (void)pthread_mutex_lock(&j->lock);
    j->progress.prompt = r->prompt;
    j->progress.reused = j->progress.processed = r->from.at.matched;
    j->progress.limit = j->request.max_tokens < r->room ? j->request.max_tokens : r->room;
    (void)pthread_mutex_unlock(&j->lock);
    ms_job_start(j, &s);
}

static void count_engine(ms_generator *g) {
    ms_engine_stats now;
    g->timeline->ops->stats(g->timeline, &now);
    atomic_store(&g->metrics->expert_hits, now.expert_hits);
    atomic_store(&g->metrics->expert_accesses, now.expert_accesses);
    atomic_store(&g->metrics->expert_read_bytes, now.expert_read_bytes);
    atomic_store(&g->metrics->borrowed_bytes, now.workspace_borrow_bytes);
}

/* From the chosen beginning to the end of the prompt. */
static bool evaluate_prompt(run *r) {
    ms_generator *g = r->g;
    ms_causal *t = g->timeline;
    ms_error err;
    ms_status status = ms_retained_begin(&g->retained, &r->from, &err);
    if (status == MS_OK) {
        start(r);
        status = prefill(r, &err);
    }
    r->j->prefill_ns = ms_clock_ns() - r->start_ns;
    ms_stop why = ms_job_stopped(r->j);
    if (status == MS_ERR_CANCELLED && why != MS_STOP_NONE) {
        t->ops->clear_cancel(t);
        ms_marks_cut(&g->retained.marks, (size_t)t->ops->position(t));
        if (!g->reuse) ms_retained_reset(&g->retained);
        end_stopped(r, why, "prefill", 0);
        return false;
    }
    t->ops->clear_cancel(t);
    const float *logits = status == MS_OK ? prompt_logits(r) : NULL;
    if (status == MS_OK && g->reuse && logits) status = ms_retained_mark(&g->retained, false, logits, &err);
    if (status == MS_OK) {
        bool worth = r->prompt - r->from.at.matched >= KEEP_PROMPT_TOKENS;
        if (worth && g->reuse) ms_retained_save(&g->retained, MS_KEEP_DISK);
        return true;
    }
    fail_engine(r, &err, "the prompt");
    return false;
}

void ms_generate(ms_generator *g, ms_job *j, ms_turn_end *end) {
    *end = (ms_turn_end){0};
    run r = {.g = g, .j = j, .end = end, .start_ns = ms_clock_ns(), .last_log_ns = ms_clock_ns()};
    j->deadline_ns = g->deadline_ns ? j->admitted_ns + g->deadline_ns : 0;
    g->timeline->ops->stats(g->timeline, &r.before);
    set_phase(j, MS_PHASE_PREFILL);
    if (g->forget_experts && g->timeline->ops->forget_experts)
        (void)g->timeline->ops->forget_experts(g->timeline, NULL); /* nothing is leased between requests */
    g->timeline->ops->clear_cancel(g->timeline);
    if (g->reuse) r.from = ms_retained_find(&g->retained, &j->prompt);
    if (!check_room(&r)) return;
    /* A kept state is proved by being brought back: before that nothing is said of what is reused. */
    if (!ms_retained_take(&g->retained, &j->prompt, &r.from) && !check_room(&r)) return;
    log_prefill_start(&r, j->prompt.ids.count - r.from.at.used > g->sequential_limit);
    r.count.experts = g->text->info.experts;
    r.count.seen = malloc(r.count.experts ? r.count.experts : 1); /* without it nothing is counted */
    bool done = evaluate_prompt(&r);
    free(r.count.seen);
    if (done) {
        log_prefill_complete(&r);
        reply(&r);
    }
    count_engine(g);
}

/* ------------------------------------------------------------------ afterwards */

/* Evaluates what closes the reply, so that the next turn's prompt begins with the whole of it. */
static ms_status close_reply(ms_generator *g, ms_turn_end *end, ms_error *err) {
    ms_causal *t = g->timeline;
    size_t count = end->generated.count;
    if (!end->exact) return ms_retained_back(&g->retained, end->prompt_end, err);
    const ms_forward_options one = {.range = 1};
    MS_TRY(ms_marks_add(&g->retained.marks, false, end->prompt_end, count, err));
    size_t missing = end->prompt_end + count - (size_t)t->ops->position(t);
    if (missing) MS_TRY(t->ops->forward(t, end->generated.data + count - missing, missing, &one, err));
    return end->closing.count ? t->ops->forward(t, end->closing.data, end->closing.count, &one, err) : MS_OK;
}

void ms_generate_settle(ms_generator *g, ms_job *j, ms_turn_end *end) {
    if (!end->settle) return;
    ms_causal *t = g->timeline;
    ms_error err;
    set_phase(j, MS_PHASE_EXPORT);
    ms_diagnostics_resume(g->diagnostics);
    if (!g->reuse) {
        (void)keep_capture(g, j);
        ms_retained_reset(&g->retained);
        return;
    }
    ms_status status = end->raw ? MS_OK : close_reply(g, end, &err);
    if (status == MS_OK)
        (void)keep_capture(g, j);
    else
        ms_diagnostics_rollback(g->diagnostics, t);
    if (status == MS_OK) {
        ms_retained_save(&g->retained, MS_KEEP_DISK);
    } else if (status == MS_ERR_CANCELLED) {
        t->ops->clear_cancel(t);
        ms_marks_cut(&g->retained.marks, (size_t)t->ops->position(t));
    } else {
        run r = {.g = g, .j = j, .end = end};
        ms_log_line l;
        ms_log_begin(&l, g->log, MS_LOG_ERROR, "server.engine.error", r.j->id);
        ms_log_word(&l, "error", err.message);
        ms_log_end(&l);
        ms_retained_reset(&g->retained);
    }
    count_engine(g);
}
