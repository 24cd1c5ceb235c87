#include "server/decode.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/utf8.h"

enum {
    PROGRESS_TOKENS = 64,
    PIECE_TOKENS = 16, /* with their log probabilities */
    PIECE_BYTES = 16384
};
static const float logprob_floor = -9999.0f;

/* ------------------------------------------------------------------ life */

static ms_status add_stops(ms_decode *d, ms_error *err) {
    const ms_api_request *r = &d->job->request;
    for (size_t i = 0; i < r->stop_count; i++) {
        MS_TRY(ms_stop_strings_add(&d->stops, r->stops[i].text, r->stops[i].len, err));
    }
    return MS_OK;
}

/* Tools of the request and of its messages, for formats whose calls cannot be read without them. */
static ms_status declare_tools(ms_decode *d, const ms_reply_parser_ops *ops, ms_error *err) {
    ms_text list = {0};
    ms_json_doc *doc = NULL;
    static const ms_json_limits limits = {.max_depth = MS_JSON_MAX_DEPTH};
    MS_TRY(ms_declared_tools(ms_json_root(d->job->request.chat_doc), &list, err));
    ms_status status = list.len ? ms_json_parse(&doc, list.data, list.len, "declared tools", &limits, err) : MS_OK;
    if (status == MS_OK && doc) status = ops->tools(d->parser, ms_json_root(doc), err);
    ms_json_free(doc);
    ms_text_free(&list);
    return status;
}

ms_status ms_decode_init(ms_decode *d, ms_generator *g, ms_job *j, ms_channel channel, uint64_t limit, ms_error *err) {
    const ms_api_request *r = &j->request;
    *d = (ms_decode){.g = g, .job = j, .limit = limit, .reasons = channel == MS_CHANNEL_THINK};
    ms_sampler_greedy(&d->sampler);
    if (r->sampled) {
        d->sampler.temperature = r->temperature;
        d->sampler.top_p = r->top_p;
        d->sampler.min_p = r->min_p;
        d->sampler.top_k = r->top_k > UINT32_MAX ? 0 : (uint32_t)r->top_k;
        d->sampler.seed = r->seed;
    }
    d->hold = r->format != MS_API_TEXT && g->buffer_structured;
    ms_status status = add_stops(d, err);
    if (status == MS_OK && j->constraint) status = ms_held_begin(&d->held, j->constraint, err);
    d->sampler.allowed = d->held.mask;
    if (status == MS_OK && channel != MS_CHANNEL_NONE) {
        const ms_reply_parser_ops *ops = g->text->lane->parser;
        status = ops->create(&d->parser, g->text->tokenizer, channel, err);
        if (status == MS_OK && ops->tools) status = declare_tools(d, ops, err);
        d->live_calls = r->stream && j->constraint && ops->calls && !d->hold && !r->stop_count;
    }
    if (status != MS_OK) ms_decode_fini(d);
    return status;
}

void ms_decode_fini(ms_decode *d) {
    if (d->parser) d->g->text->lane->parser->destroy(d->parser);
    d->parser = NULL;
    ms_held_end(&d->held);
    ms_stop_strings_free(&d->stops);
    ms_text_free(&d->delta.reasoning);
    ms_text_free(&d->delta.content);
    ms_text_free(&d->piece);
    ms_text_free(&d->shown);
    ms_ids_free(&d->generated);
    free(d->call_ids);
    free(d->logprobs.items);
}

/* ------------------------------------------------------------------ log probabilities */

static void name_token(const ms_decode *d, uint32_t id, const char **bytes, size_t *len) {
    const ms_tokenizer *t = d->g->text->tokenizer;
    const uint8_t *piece = ms_tokenizer_token(t, id, len);
    *bytes = (const char *)piece;
    if (piece) return;
    *bytes = ms_tokenizer_control_name(t, id);
    *len = *bytes ? strlen(*bytes) : 0;
}

static float clamp_logprob(double v) { return v < (double)logprob_floor ? logprob_floor : (float)v; }

/* Inserts into the list of the best, largest first, the lower id first at a tie. */
static void keep_best(uint32_t *ids, uint32_t *count, uint32_t most, const float *logits, uint32_t id) {
    uint32_t at = *count;
    while (at && logits[ids[at - 1]] < logits[id]) at--;
    if (at == most) return;
    uint32_t last = *count < most ? (*count)++ : most - 1;
    memmove(ids + at + 1, ids + at, (last - at) * sizeof *ids);
    ids[at] = id;
}

static ms_status add_logprob(ms_decode *d, const float *logits, uint32_t id, ms_error *err) {
    ms_logprob_list *l = &d->logprobs;
    if (l->count == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 8;
        ms_api_logprob *items = realloc(l->items, cap * sizeof *items);
        if (!items) return ms_fail_memory(err, "log probabilities", cap * sizeof *items);
        l->items = items;
        l->cap = cap;
    }
    uint32_t vocab = ms_text_model_ids(d->g->text), best[20], count = 0;
    double max = -INFINITY, sum = 0;
    uint32_t most = d->job->request.top_logprobs < 20 ? d->job->request.top_logprobs : 20;
    for (uint32_t i = 0; i < vocab; i++) {
        if ((double)logits[i] > max) max = (double)logits[i];
        if (most) keep_best(best, &count, most, logits, i);
    }
    for (uint32_t i = 0; i < vocab; i++) sum += exp((double)logits[i] - max);
    double log_sum = max + log(sum);
    ms_api_logprob *p = &l->items[l->count++];
    *p = (ms_api_logprob){.logprob = clamp_logprob((double)logits[id] - log_sum), .top_count = count};
    name_token(d, id, &p->bytes, &p->len);
    for (uint32_t i = 0; i < count; i++) {
        name_token(d, best[i], &p->top[i].bytes, &p->top[i].len);
        p->top[i].logprob = clamp_logprob((double)logits[best[i]] - log_sum);
    }
    return MS_OK;
}

/* ------------------------------------------------------------------ text */

/* Bytes of whole code points at the beginning of a text, at most `most`; not 0 unless the text is empty. */
static size_t whole_part(const char *s, size_t len, size_t most) {
    if (len <= most) return len;
    size_t n = ms_utf8_valid_prefix(s, most);
    return n ? n : len;
}

/* The next tokens' text.  What the tokens do not spell comes with the last of them. */
static size_t piece_text(const ms_decode *d, const ms_api_logprob *tokens, size_t count, bool last) {
    const char *text = d->shown.data + d->held_from;
    size_t left = d->shown.len - d->held_from, bytes = 0;
    for (size_t i = 0; i < count; i++) bytes += tokens[i].len;
    if (last) return whole_part(text, left, PIECE_BYTES);
    return bytes && left ? ms_utf8_valid_prefix(text, bytes < left ? bytes : left) : 0;
}

/* Gives out response text up to the end of `shown`, with the tokens that made it: in pieces that the client's queue can
 * take one by one. */
static void show_response(ms_decode *d) {
    const ms_logprob_list *l = &d->logprobs;
    if (d->hold || d->held_from == d->shown.len) return;
    for (size_t i = 0; i < l->count || d->held_from < d->shown.len;) {
        size_t count = l->count - i < PIECE_TOKENS ? l->count - i : PIECE_TOKENS;
        size_t len = piece_text(d, l->items + i, count, i + count == l->count);
        ms_job_text(d->job, MS_CHANNEL_RESPONSE, d->shown.data + d->held_from, len, l->items + i, count);
        d->held_from += len;
        i += count;
    }
    d->logprobs.count = 0;
}

void ms_decode_release(ms_decode *d) {
    d->hold = false;
    show_response(d);
}

static ms_status give_delta(ms_decode *d, bool last, ms_error *err) {
    ms_job_text(d->job, MS_CHANNEL_THINK, d->delta.reasoning.data, d->delta.reasoning.len, NULL, 0);
    d->piece.len = 0;
    MS_TRY(ms_stop_strings_push(&d->stops, d->delta.content.data, d->delta.content.len, &d->piece, err));
    if (last) MS_TRY(ms_stop_strings_finish(&d->stops, &d->piece, err));
    ms_text_append(&d->shown, d->piece.data, d->piece.len);
    if (d->piece.failed || d->shown.failed) return ms_fail_memory(err, "text of a reply", d->shown.len);
    show_response(d);
    return MS_OK;
}

/* ------------------------------------------------------------------ calls */

static ms_status begin_call(ms_decode *d, const char *name, size_t len, ms_error *err) {
    size_t bytes = (d->calls_begun + 1) * sizeof *d->call_ids;
    void *more = realloc(d->call_ids, bytes);
    if (!more) return ms_fail_memory(err, "ids of calls", bytes);
    d->call_ids = more;
    ms_job_call_begin(d->job, name, len, d->call_ids[d->calls_begun++]);
    d->call_shown = 0;
    return MS_OK;
}

static void show_arguments(ms_decode *d, const char *text, size_t len) {
    while (d->call_shown < len) {
        size_t n = whole_part(text + d->call_shown, len - d->call_shown, PIECE_BYTES);
        ms_job_call_arguments(d->job, text + d->call_shown, n);
        d->call_shown += n;
    }
}

ms_status ms_decode_calls(ms_decode *d, const ms_tool_call *calls, size_t count, ms_error *err) {
    for (; d->calls_ended < count; d->calls_ended++) {
        const ms_tool_call *c = &calls[d->calls_ended];
        if (d->calls_begun == d->calls_ended) MS_TRY(begin_call(d, c->name, c->name_len, err));
        show_arguments(d, c->arguments, c->arguments_len);
        ms_job_call_end(d->job);
    }
    return MS_OK;
}

/* A second call where one is allowed cannot come; should it, the rules at the end find it before anything is shown. */
static ms_status show_calls(ms_decode *d, ms_error *err) {
    ms_call_view v;
    if (!d->live_calls || !d->delta.in_tools) return MS_OK;
    d->g->text->lane->parser->calls(d->parser, &v);
    size_t most = d->job->request.parallel_tools ? v.count : 1;
    MS_TRY(ms_decode_calls(d, v.whole, v.count < most ? v.count : most, err));
    if (!v.name || (v.count && !d->job->request.parallel_tools)) return MS_OK;
    if (d->calls_begun == d->calls_ended) {
        /* A call that the limit will cut is none in the end. */
        MS_TRY(ms_held_fits(&d->held, d->limit - d->generated.count, &d->live_calls, err));
        if (!d->live_calls) return MS_OK;
        MS_TRY(begin_call(d, v.name, v.name_len, err));
    }
    show_arguments(d, v.arguments, v.arguments_len);
    return MS_OK;
}

/* A token of text without structure. */
static ms_status push_raw(ms_decode *d, uint32_t id) {
    size_t len;
    const uint8_t *bytes = ms_tokenizer_token(d->g->text->tokenizer, id, &len);
    d->delta.reasoning.len = d->delta.content.len = 0;
    d->delta.channel = MS_CHANNEL_RESPONSE;
    if (bytes)
        ms_utf8_stream_push(&d->utf8, bytes, len, &d->delta.content);
    else
        ms_utf8_stream_end(&d->utf8, &d->delta.content);
    return MS_OK;
}

static void log_progress(ms_decode *d, const char *event, const char *phase, uint64_t elapsed_ns) {
    ms_log_line l;
    ms_log_begin(&l, d->g->log, MS_LOG_INFO, event, d->job->id);
    ms_log_word(&l, "phase", phase);
    ms_log_u64(&l, "generated", d->generated.count);
    ms_log_real(&l, "elapsed", (double)elapsed_ns / 1e9);
    ms_log_end(&l);
}

static void note_progress(ms_decode *d) {
    ms_job *j = d->job;
    uint64_t now = ms_clock_ns();
    (void)pthread_mutex_lock(&j->lock);
    j->progress.generated = d->generated.count;
    if (d->delta.in_tools)
        j->progress.part = "tool";
    else if (d->delta.channel == MS_CHANNEL_THINK)
        j->progress.part = "reasoning";
    else if (d->delta.channel == MS_CHANNEL_RESPONSE)
        j->progress.part = "response";
    const char *part = j->progress.part;
    uint64_t start = j->progress.decode_start_ns;
    (void)pthread_mutex_unlock(&j->lock);
    if (d->last_token_ns) ms_histogram_add(&d->g->metrics->decode_token, (double)(now - d->last_token_ns) / 1e9);
    d->last_token_ns = now;
    bool reasons = part ? strcmp(part, "reasoning") == 0 : d->reasons;
    if (d->reasons && !reasons) log_progress(d, "request.decode.phase", "response_or_tool", now - start);
    d->reasons = reasons;
    if (d->generated.count % PROGRESS_TOKENS == 0) log_progress(d, "request.decode.progress", part, now - start);
}

static ms_status take(ms_decode *d, const float *logits, uint32_t id, bool *done, ms_error *err) {
    MS_TRY(ms_ids_push(&d->generated, id, err));
    ms_status status =
        d->parser ? d->g->text->lane->parser->push(d->parser, id, &d->delta, done, err) : push_raw(d, id);
    MS_TRY(status);
    *done = *done || ms_text_model_stops(d->g->text, id);
    if (d->delta.channel == MS_CHANNEL_THINK) d->reasoning++;
    if (d->job->request.logprobs && d->delta.channel == MS_CHANNEL_RESPONSE && !*done) {
        MS_TRY(add_logprob(d, logits, id, err));
    }
    MS_TRY(give_delta(d, false, err));
    MS_TRY(show_calls(d, err));
    note_progress(d);
    return MS_OK;
}

/* ------------------------------------------------------------------ loop */

/* Why the reply must not go on; false: it may. */
static bool is_cut(ms_decode *d) {
    ms_job *j = d->job;
    if (j->deadline_ns && ms_clock_ns() >= j->deadline_ns) {
        d->end = MS_END_DEADLINE;
        return true;
    }
    d->stop = ms_job_stopped(j);
    if (d->stop == MS_STOP_NONE) return false;
    d->end = MS_END_CUT;
    return true;
}

ms_status ms_decode_run(ms_decode *d, const float *logits, ms_error *err) {
    ms_causal *t = d->g->timeline;
    const ms_forward_options one = {.range = 1};
    /* Ids behind the tokenizer's last one are padding of the matrices: no text. */
    uint32_t ids = ms_tokenizer_ids(d->g->text->tokenizer);
    if (ids > t->vocab) ids = t->vocab;
    for (;;) {
        uint32_t id;
        bool done = false;
        if (d->held.matcher) {
            MS_TRY(ms_held_next(&d->held, d->delta.in_tools, d->limit - d->generated.count, err));
        }
        MS_TRY(ms_sampler_pick(&d->sampler, logits, ids, &id, err));
        if (d->held.matcher) MS_TRY(ms_held_take(&d->held, id, err));
        MS_TRY(take(d, logits, id, &done, err));
        if (done || d->stops.matched) {
            d->end = done ? MS_END_MESSAGE : MS_END_STOP_STRING;
            return MS_OK;
        }
        if (d->generated.count >= d->limit) {
            d->end = MS_END_LENGTH;
            return MS_OK;
        }
        if (is_cut(d)) return MS_OK;
        MS_TRY(t->ops->forward(t, &id, 1, &one, err));
        logits = t->ops->logits(t);
    }
}

ms_status ms_decode_finish(ms_decode *d, ms_reply *reply, ms_error *err) {
    *reply = (ms_reply){0};
    if (d->parser) {
        MS_TRY(d->g->text->lane->parser->finish(d->parser, &d->delta, reply, err));
    } else {
        d->delta.content.len = 0;
        ms_utf8_stream_end(&d->utf8, &d->delta.content);
    }
    MS_TRY(give_delta(d, true, err));
    if (!d->stops.matched || d->end == MS_END_CUT) return MS_OK;
    d->end = MS_END_STOP_STRING;
    ms_text_append(&d->shown, "", 0);
    char *copy = malloc(d->shown.len + 1);
    if (!copy || d->shown.failed) {
        free(copy);
        return ms_fail_memory(err, "text of a reply", d->shown.len);
    }
    memcpy(copy, d->shown.data, d->shown.len + 1);
    free(reply->content);
    reply->content = copy;
    reply->content_len = d->shown.len;
    return MS_OK;
}
