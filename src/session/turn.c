/* turn.c: turn.h.
 *
 * Owns: see the header.  Threads: the inference thread.
 * Invariant: copy_ids are the session's tokens up to the copy's position, with copy_logits behind them.
 */
#include "session/turn.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

/* ------------------------------------------------------------------ timeline */

void ms_timeline_init(ms_timeline *t, ms_engine *engine, ms_session *session, const ms_text_model *model) {
    *t = (ms_timeline){.engine = engine, .session = session, .model = model};
}

void ms_timeline_forget(ms_timeline *t) {
    ms_snapshot_destroy(t->copy);
    t->copy = NULL;
    t->copy_ids.count = 0;
}

void ms_timeline_fini(ms_timeline *t) {
    ms_timeline_forget(t);
    ms_ids_free(&t->copy_ids);
    free(t->copy_logits);
    *t = (ms_timeline){0};
}

static bool is_prefix(const uint32_t *prefix, size_t prefix_count, const uint32_t *ids, size_t count) {
    return prefix_count <= count && (!prefix_count || memcmp(prefix, ids, prefix_count * sizeof *ids) == 0);
}

/* Where the timeline can begin for ids[0..count). */
typedef enum source { FROM_START, FROM_SESSION, FROM_COPY } source;

/* How many of ids[0..count) the session holds or can go back to.  With `fresh` one of them at least is left to evaluate
 * unless the session has their logits. */
static size_t from_session(const ms_timeline *t, const uint32_t *ids, size_t count, bool fresh) {
    size_t position = (size_t)ms_session_position(t->session), common = 0;
    const uint32_t *tokens = ms_session_tokens(t->session);
    while (common < position && common < count && tokens[common] == ids[common]) common++;
    if (fresh && common == count && common && (position > count || !ms_session_logits(t->session))) common--;
    return ms_session_can_rewind(t->session, common) ? common : 0;
}

static source best_from(const ms_timeline *t, const uint32_t *ids, size_t count, bool fresh, size_t *reused) {
    *reused = from_session(t, ids, count, fresh);
    source best = *reused ? FROM_SESSION : FROM_START;
    if (t->copy && t->copy_ids.count > *reused && is_prefix(t->copy_ids.data, t->copy_ids.count, ids, count)) {
        best = FROM_COPY;
        *reused = t->copy_ids.count;
    }
    return best;
}

static source best_source(const ms_timeline *t, const uint32_t *ids, size_t count, size_t *reused) {
    return best_from(t, ids, count, false, reused);
}

/* A prompt needs the logits of its last token too. */
static source best_with_logits(const ms_timeline *t, const uint32_t *ids, size_t count, size_t *reused) {
    return best_from(t, ids, count, true, reused);
}

size_t ms_timeline_reusable(const ms_timeline *t, const uint32_t *ids, size_t count) {
    size_t reused;
    (void)best_with_logits(t, ids, count, &reused);
    return reused;
}

typedef source (*chooser)(const ms_timeline *t, const uint32_t *ids, size_t count, size_t *reused);

/* Goes to where the timeline can begin for ids[0..count).  A copy that the session refuses, because it was reset or
 * imported behind the timeline's back, is dropped: the next best beginning serves. */
static ms_status begin(ms_timeline *t, chooser best, const uint32_t *ids, size_t count, source *from, size_t *reused,
                       ms_error *err) {
    *from = best(t, ids, count, reused);
    if (*from == FROM_COPY) {
        ms_status status = ms_session_restore(t->session, t->copy, err);
        if (status != MS_ERR_USAGE) return status;
        ms_timeline_forget(t);
        *from = best(t, ids, count, reused);
    }
    if (*from == FROM_SESSION) return ms_session_rewind(t->session, *reused, err);
    if (*from == FROM_START) {
        ms_timeline_forget(t);
        ms_session_reset(t->session);
    }
    return MS_OK;
}

ms_status ms_timeline_settle(ms_timeline *t, const ms_ids *ids, ms_error *err) {
    size_t reused;
    source from;
    MS_TRY(begin(t, best_source, ids->data, ids->count, &from, &reused, err));
    return reused < ids->count ? ms_session_forward(t->session, ids->data + reused, ids->count - reused, NULL, err)
                               : MS_OK;
}

static ms_status keep_prompt_end(ms_timeline *t, const ms_prompt *p, const float *logits, ms_error *err) {
    if (!t->keep_prompt_end) return MS_OK;
    size_t bytes = (size_t)t->model->info.vocab * sizeof *t->copy_logits;
    if (!t->copy_logits) t->copy_logits = malloc(bytes);
    if (!t->copy_logits) return ms_fail_memory(err, "a copy of the logits", bytes);
    if (logits == t->copy_logits) return MS_OK; /* the turn began at the copy: it is this one */
    ms_timeline_forget(t);
    MS_TRY(ms_ids_append(&t->copy_ids, p->ids.data, p->ids.count, err));
    ms_status status = ms_session_snapshot(t->session, &t->copy, err);
    if (status != MS_OK)
        t->copy_ids.count = 0;
    else
        memcpy(t->copy_logits, logits, bytes);
    return status;
}

/* ------------------------------------------------------------------ prompt */

/* Counts the experts that a routed layer needs in one sweep. */
typedef struct expert_count {
    uint8_t *seen; /* [experts] */
    uint32_t experts;
    uint64_t layers, sum, min, max;
} expert_count;

static void count_experts(void *arg, uint32_t layer, uint64_t first_position, uint32_t rows, uint32_t top_k,
                          const uint32_t *ids) {
    (void)layer;
    (void)first_position;
    expert_count *c = arg;
    uint64_t unique = 0;
    memset(c->seen, 0, c->experts);
    for (size_t i = 0; i < (size_t)rows * top_k; i++) {
        if (ids[i] >= c->experts || c->seen[ids[i]]) continue;
        c->seen[ids[i]] = 1;
        unique++;
    }
    c->min = c->layers && c->min < unique ? c->min : unique;
    c->max = c->max > unique ? c->max : unique;
    c->sum += unique;
    c->layers++;
}

static ms_status evaluate(ms_timeline *t, const ms_prompt *p, const ms_turn_options *o, ms_turn_result *out,
                          ms_error *err) {
    size_t rest = p->ids.count - out->reused;
    out->layer_major = rest > o->sequential_limit;
    if (!rest) return MS_OK;
    expert_count c = {.experts = t->model->info.experts};
    c.seen = calloc(c.experts ? c.experts : 1, 1);
    if (!c.seen) return ms_fail_memory(err, "expert counts", c.experts);
    ms_forward_options f = {.range = out->layer_major ? 0 : 1, .progress = o->progress, .progress_arg = o->arg};
    if (out->layer_major) {
        f.routes = count_experts;
        f.routes_arg = &c;
    }
    uint64_t before = ms_session_position(t->session);
    ms_status status = ms_session_forward(t->session, p->ids.data + out->reused, rest, &f, err);
    out->evaluated = (size_t)(ms_session_position(t->session) - before);
    uint32_t rows = ms_engine_plan(t->engine)->range_rows;
    out->sweeps = out->layer_major && rows ? (out->evaluated + rows - 1) / rows : out->evaluated;
    out->unique_min = c.min;
    out->unique_max = c.max;
    out->unique_avg = c.layers ? (double)c.sum / (double)c.layers : 0;
    free(c.seen);
    return status;
}

static ms_status check_room(const ms_prompt *p, uint64_t context, uint64_t *room, ms_error *err) {
    uint64_t need = (uint64_t)p->ids.count + p->closing_tokens;
    *room = need < context ? context - need : 0;
    if (*room) return MS_OK;
    return ms_fail(err, MS_ERR_CONTEXT,
                   "maximum context length is %" PRIu64
                   " tokens: the prompt of %zu and %zu to close the reply leave no room",
                   context, p->ids.count, p->closing_tokens);
}

/* ------------------------------------------------------------------ reply */

typedef struct decoding {
    ms_timeline *t;
    const ms_turn_options *o;
    ms_turn_result *out;
    void *parser;
    ms_reply_delta delta;
    ms_text shown;        /* response text that was given out */
    ms_text piece;        /* scratch */
    bool done, reasoning; /* reasoning: no control token yet in the thinking channel */
} decoding;

static ms_status give(decoding *d, ms_channel channel, const char *text, size_t len, ms_error *err) {
    if (!len || !d->o->text) return MS_OK;
    return d->o->text(d->o->arg, channel, text, len, err);
}

/* Passes the delta on, response text through the stop strings. */
static ms_status give_delta(decoding *d, bool last, ms_error *err) {
    MS_TRY(give(d, MS_CHANNEL_THINK, d->delta.reasoning.data, d->delta.reasoning.len, err));
    d->piece.len = 0;
    if (d->o->stops) {
        MS_TRY(ms_stop_strings_push(d->o->stops, d->delta.content.data, d->delta.content.len, &d->piece, err));
        if (last) MS_TRY(ms_stop_strings_finish(d->o->stops, &d->piece, err));
    } else {
        ms_text_append(&d->piece, d->delta.content.data, d->delta.content.len);
    }
    ms_text_append(&d->shown, d->piece.data, d->piece.len);
    if (d->piece.failed || d->shown.failed) return ms_fail_memory(err, "text of a reply", d->shown.len);
    return give(d, MS_CHANNEL_RESPONSE, d->piece.data, d->piece.len, err);
}

static bool stopped(const decoding *d) { return d->o->stops && d->o->stops->matched; }

/* Takes one id into the reply. */
static ms_status take(decoding *d, uint32_t id, ms_error *err) {
    MS_TRY(ms_ids_push(&d->out->generated, id, err));
    if (ms_tokenizer_control_name(d->t->model->tokenizer, id)) d->reasoning = false;
    if (d->reasoning) d->out->reasoning_tokens++;
    MS_TRY(d->t->model->lane->parser->push(d->parser, id, &d->delta, &d->done, err));
    d->done = d->done || ms_text_model_stops(d->t->model, id);
    return give_delta(d, false, err);
}

static ms_status decode(decoding *d, const float *logits, uint64_t limit, ms_error *err) {
    const ms_forward_options one = {.range = 1};
    uint32_t ids = ms_text_model_ids(d->t->model);
    for (;;) {
        uint32_t id;
        MS_TRY(ms_sampler_pick(d->o->sampler, logits, ids, &id, err));
        MS_TRY(take(d, id, err));
        if (d->done || stopped(d) || d->out->generated.count >= limit) break;
        MS_TRY(ms_session_forward(d->t->session, &id, 1, &one, err));
        logits = ms_session_logits(d->t->session);
    }
    d->out->finish = stopped(d) ? MS_FINISH_STOP : d->done ? MS_FINISH_END : MS_FINISH_LENGTH;
    return MS_OK;
}

/* Reads the reply to its end, also after an error, so that what was shown is what is kept. */
static ms_status finish_reply(decoding *d, ms_error *err) {
    ms_reply *r = &d->out->reply;
    MS_TRY(d->t->model->lane->parser->finish(d->parser, &d->delta, r, err));
    d->out->replied = true;
    MS_TRY(give_delta(d, true, err));
    if (stopped(d)) {
        d->out->finish = MS_FINISH_STOP;
        ms_text_append(&d->shown, "", 0);
        if (d->shown.failed) return ms_fail_memory(err, "text of a reply", d->shown.len);
        free(r->content);
        r->content = d->shown.data;
        r->content_len = d->shown.len;
        d->shown = (ms_text){0};
    } else if (d->out->finish == MS_FINISH_END && r->call_count) {
        d->out->finish = MS_FINISH_TOOL_CALLS;
    }
    if (r->status != MS_REPLY_MALFORMED) return MS_OK;
    return ms_fail(err, MS_ERR_FORMAT, "the model's reply is malformed: %s", r->error);
}

static ms_status declare_tools(decoding *d, const ms_reply_parser_ops *ops, const ms_prompt *p, ms_error *err) {
    static const ms_json_limits limits = {.max_depth = MS_JSON_MAX_DEPTH, .allow_nan = true};
    ms_json_doc *doc = NULL;
    MS_TRY(ms_json_parse(&doc, p->tools.data, p->tools.len, "declared tools", &limits, err));
    ms_status status = ops->tools(d->parser, ms_json_root(doc), err);
    ms_json_free(doc);
    return status;
}

static ms_status generate(decoding *d, const ms_prompt *p, const float *logits, uint64_t limit, ms_error *err) {
    const ms_reply_parser_ops *ops = d->t->model->lane->parser;
    MS_TRY(ops->create(&d->parser, d->t->model->tokenizer, p->channel, err));
    if (ops->tools && p->tools.len) MS_TRY(declare_tools(d, ops, p, err));
    d->reasoning = p->channel == MS_CHANNEL_THINK;
    ms_error first;
    ms_status status = decode(d, logits, limit, &first);
    if (status == MS_ERR_CANCELLED) {
        d->out->finish = MS_FINISH_CANCELLED;
        status = MS_OK;
    }
    ms_status end = finish_reply(d, status == MS_OK ? err : NULL);
    if (status == MS_OK) return end;
    return ms_fail(err, status, "%s", first.message);
}

/* ------------------------------------------------------------------ turn */

void ms_turn_result_free(ms_turn_result *r) {
    ms_ids_free(&r->generated);
    ms_reply_free(&r->reply);
    *r = (ms_turn_result){0};
}

static ms_status run(decoding *d, const ms_prompt *p, ms_error *err) {
    ms_timeline *t = d->t;
    ms_turn_result *out = d->out;
    uint64_t room, start = ms_clock_ns();
    ms_engine_stats before, after;
    MS_TRY(check_room(p, ms_engine_plan(t->engine)->context, &room, err));
    ms_engine_get_stats(t->engine, &before);
    source from;
    MS_TRY(begin(t, best_with_logits, p->ids.data, p->ids.count, &from, &out->reused, err));
    ms_status status = evaluate(t, p, d->o, out, err);
    ms_engine_get_stats(t->engine, &after);
    out->prompt_read_bytes = after.expert_read_bytes - before.expert_read_bytes;
    out->prompt_ns = ms_clock_ns() - start;
    MS_TRY(status);
    const float *logits = out->evaluated      ? ms_session_logits(t->session)
                          : from == FROM_COPY ? t->copy_logits
                                              : ms_session_logits(t->session);
    MS_TRY(keep_prompt_end(t, p, logits, err));
    if (d->o->prefilled) d->o->prefilled(d->o->arg);
    start = ms_clock_ns();
    status = generate(d, p, logits, d->o->max_tokens < room ? d->o->max_tokens : room, err);
    out->decode_ns = ms_clock_ns() - start;
    ms_engine_get_stats(t->engine, &after);
    out->cache_hits = after.expert_hits - before.expert_hits;
    out->cache_accesses = after.expert_accesses - before.expert_accesses;
    return status;
}

ms_status ms_turn_run(ms_timeline *t, const ms_prompt *prompt, const ms_turn_options *o, ms_turn_result *out,
                      ms_error *err) {
    *out = (ms_turn_result){.prompt = prompt->ids.count};
    if (prompt->channel == MS_CHANNEL_NONE) {
        return ms_fail(err, MS_ERR_USAGE, "add_generation_prompt: expected true for a reply, found false");
    }
    decoding d = {.t = t, .o = o, .out = out};
    if (o->stops) ms_stop_strings_restart(o->stops);
    ms_status status = run(&d, prompt, err);
    if (d.parser) t->model->lane->parser->destroy(d.parser);
    ms_text_free(&d.delta.reasoning);
    ms_text_free(&d.delta.content);
    ms_text_free(&d.shown);
    ms_text_free(&d.piece);
    return status;
}
