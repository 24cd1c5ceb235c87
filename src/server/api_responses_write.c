/* api_responses_write.c: Responses documents and event streams.
 *
 * Invariants: sequence numbers count from 0 without gaps; one output item is open at a time; `output` holds every
 * finished item, so that the last event and the whole document are made of the same text.  A reasoning item comes first
 * whenever thinking is on.
 */
#include "server/api_write.h"

#include <stdlib.h>
#include <string.h>

typedef enum item { ITEM_NONE, ITEM_REASONING, ITEM_MESSAGE, ITEM_CALL } item;

typedef struct responses_writer {
    ms_api_base base;
    item open;
    bool thought, said; /* a reasoning item, a message item was begun */
    uint64_t sequence;
    size_t index;     /* of the open item, or of the next one */
    char item_id[40]; /* of the open item */
    ms_text text;     /* of the open item */
    ms_text output;   /* finished items */
} responses_writer;

/* ------------------------------------------------------------------ the response object */

/* What the request said, or what stands for nothing said.  Only small values: instructions, tools and schemas may be as
 * large as a body, and this object is written three times into a stream. */
static void put_echo(const responses_writer *w, ms_text *out, const char *key, const char *absent) {
    const ms_json *v = ms_api_any(ms_json_root(w->base.r->doc), key);
    ms_text_printf(out, ",\"%s\":", key);
    if (v && v->raw_len <= 256)
        ms_json_write(out, v, &ms_json_compact);
    else
        ms_text_puts(out, absent);
}

static void put_usage(ms_text *out, const ms_api_usage *u) {
    ms_text_printf(out,
                   "{\"input_tokens\":%llu,\"input_tokens_details\":{\"cached_tokens\":%llu},\"output_tokens\":%llu,"
                   "\"output_tokens_details\":{\"reasoning_tokens\":%llu},\"total_tokens\":%llu}",
                   (unsigned long long)u->prompt, (unsigned long long)u->cached, (unsigned long long)u->completion,
                   (unsigned long long)u->reasoning, (unsigned long long)(u->prompt + u->completion));
}

static void put_error(ms_text *out, const ms_api_error *e) {
    if (!e) {
        ms_text_puts(out, "null");
        return;
    }
    ms_text_puts(out, "{\"code\":");
    ms_api_put(out, e->code ? e->code : "internal_error");
    ms_text_puts(out, ",\"message\":");
    ms_json_write_string(out, e->message, ms_utf8_valid_prefix(e->message, strlen(e->message)));
    ms_text_printf(out, ",\"status\":%d", e->http);
    if (e->details[0]) ms_text_printf(out, ",\"details\":%s", e->details);
    ms_text_puts(out, "}");
}

static void put_response(const responses_writer *w, ms_text *out, const char *status, const ms_api_usage *usage,
                         const ms_api_error *e) {
    const ms_api_request *r = w->base.r;
    ms_text_printf(out, "{\"id\":\"resp_%s\",\"object\":\"response\",\"created_at\":%lld,\"status\":\"%s\",\"error\":",
                   w->base.start.id, (long long)w->base.start.created, status);
    put_error(out, e);
    ms_text_puts(out, ",\"incomplete_details\":");
    ms_text_puts(out, strcmp(status, "incomplete") == 0 ? "{\"reason\":\"max_output_tokens\"}" : "null");
    ms_text_puts(out,
                 ",\"background\":false,\"previous_response_id\":null,\"store\":false,\"truncation\":\"disabled\"");
    ms_text_puts(out, ",\"model\":");
    ms_api_put(out, w->base.start.model);
    ms_text_puts(out, ",\"system_fingerprint\":");
    ms_api_put(out, w->base.start.fingerprint);
    put_echo(w, out, "metadata", "{}");
    put_echo(w, out, "temperature", "0");
    put_echo(w, out, "top_p", "1");
    put_echo(w, out, "tool_choice", "\"auto\"");
    static const char *const formats[] = {"text", "json_object", "json_schema"};
    ms_text_printf(out, ",\"instructions\":null,\"tools\":[],\"text\":{\"format\":{\"type\":\"%s\"}}",
                   formats[r->format]);
    ms_text_printf(out, ",\"max_output_tokens\":%llu,\"parallel_tool_calls\":%s,\"reasoning\":{\"effort\":",
                   (unsigned long long)r->max_tokens, r->parallel_tools ? "true" : "false");
    ms_api_put(out, r->effort ? r->effort : "none");
    ms_text_printf(out, ",\"summary\":%s},\"output\":[", r->reasoning_summary ? "\"detailed\"" : "null");
    ms_text_append(out, w->output.data, w->output.len);
    ms_text_puts(out, "],\"usage\":");
    if (usage)
        put_usage(out, usage);
    else
        ms_text_puts(out, "null");
    ms_text_puts(out, "}");
    out->failed = out->failed || w->output.failed;
}

/* ------------------------------------------------------------------ events */

static void begin_event(responses_writer *w, ms_text *out, const char *type) {
    ms_text_printf(out, "event: response.%s\ndata: {\"type\":\"response.%s\",\"sequence_number\":%llu", type, type,
                   (unsigned long long)w->sequence++);
}

static void end_event(ms_text *out) { ms_text_puts(out, "}\n\n"); }

static void response_event(responses_writer *w, ms_text *out, const char *type, const char *status,
                           const ms_api_usage *usage, const ms_api_error *e) {
    begin_event(w, out, type);
    ms_text_puts(out, ",\"response\":");
    put_response(w, out, status, usage, e);
    end_event(out);
}

static bool summarised(const responses_writer *w) { return w->open == ITEM_REASONING && w->base.r->reasoning_summary; }

/* An event of the open item's one part: names and the index's key differ by kind. */
static void part_event(responses_writer *w, ms_text *out, const char *type) {
    begin_event(w, out, type);
    ms_text_printf(out, ",\"item_id\":\"%s\",\"output_index\":%zu", w->item_id, w->index);
    if (w->open == ITEM_CALL) return;
    ms_text_puts(out, summarised(w) ? ",\"summary_index\":0" : ",\"content_index\":0");
}

static void put_part(const responses_writer *w, ms_text *out, const char *s, size_t len) {
    const char *type = summarised(w) ? "summary_text" : w->open == ITEM_REASONING ? "reasoning_text" : "output_text";
    ms_text_printf(out, "{\"type\":\"%s\",\"text\":", type);
    ms_api_put_n(out, s, len);
    ms_text_puts(out, w->open == ITEM_MESSAGE ? ",\"annotations\":[],\"logprobs\":[]}" : "}");
}

static const char *part_added(const responses_writer *w) {
    return summarised(w) ? "reasoning_summary_part.added" : "content_part.added";
}

static const char *part_done(const responses_writer *w) {
    return summarised(w) ? "reasoning_summary_part.done" : "content_part.done";
}

static const char *delta_type(const responses_writer *w) {
    if (w->open == ITEM_CALL) return "function_call_arguments.delta";
    if (w->open == ITEM_MESSAGE) return "output_text.delta";
    return summarised(w) ? "reasoning_summary_text.delta" : "reasoning_text.delta";
}

static const char *text_done(const responses_writer *w) {
    if (w->open == ITEM_CALL) return "function_call_arguments.done";
    if (w->open == ITEM_MESSAGE) return "output_text.done";
    return summarised(w) ? "reasoning_summary_text.done" : "reasoning_text.done";
}

/* ------------------------------------------------------------------ items */

static void put_reasoning(const responses_writer *w, ms_text *out, bool done) {
    bool full = done && w->text.len;
    ms_text_puts(out, ",\"summary\":[");
    if (full && summarised(w)) put_part(w, out, w->text.data, w->text.len);
    ms_text_puts(out, "]");
    if (!full || !summarised(w)) {
        ms_text_puts(out, ",\"content\":[");
        if (full) put_part(w, out, w->text.data, w->text.len);
        ms_text_puts(out, "]");
    }
    if (!done || !w->base.r->include_encrypted_reasoning) return;
    ms_text_puts(out, ",\"encrypted_content\":\"");
    ms_api_seal(out, w->base.r->key, w->text.data, w->text.len);
    ms_text_puts(out, "\"");
}

static void put_item(const responses_writer *w, ms_text *out, const char *status, bool done) {
    static const char *const types[] = {"", "reasoning", "message", "function_call"};
    ms_text_printf(out, "{\"id\":\"%s\",\"type\":\"%s\",\"status\":\"%s\"", w->item_id, types[w->open], status);
    if (w->open == ITEM_REASONING) {
        put_reasoning(w, out, done);
    } else if (w->open == ITEM_MESSAGE) {
        ms_text_puts(out, ",\"role\":\"assistant\",\"content\":[");
        if (done) put_part(w, out, w->text.data, w->text.len);
        ms_text_puts(out, "]");
    } else {
        ms_text_printf(out, ",\"call_id\":\"%s\",\"name\":", w->base.writer.call_id);
        ms_api_put_n(out, w->base.name.data, w->base.name.len);
        ms_text_puts(out, ",\"arguments\":");
        ms_api_put_n(out, w->text.data, done ? w->text.len : 0);
    }
    ms_text_puts(out, "}");
    out->failed = out->failed || w->text.failed || w->base.name.failed;
}

static void item_event(responses_writer *w, ms_text *out, const char *type, const ms_text *body) {
    begin_event(w, out, type);
    ms_text_printf(out, ",\"output_index\":%zu,\"item\":", w->index);
    ms_text_append(out, body->data, body->len);
    end_event(out);
    out->failed = out->failed || body->failed;
}

static void done_events(responses_writer *w, ms_text *out) {
    part_event(w, out, text_done(w));
    if (w->open == ITEM_CALL) {
        ms_text_puts(out, ",\"name\":");
        ms_api_put_n(out, w->base.name.data, w->base.name.len);
    }
    ms_text_puts(out, w->open == ITEM_CALL ? ",\"arguments\":" : ",\"text\":");
    ms_api_put_n(out, w->text.data, w->text.len);
    if (w->open == ITEM_MESSAGE) ms_text_puts(out, ",\"logprobs\":[]");
    end_event(out);
    if (w->open == ITEM_CALL) return;
    part_event(w, out, part_done(w));
    ms_text_puts(out, ",\"part\":");
    put_part(w, out, w->text.data, w->text.len);
    end_event(out);
}

static void close_item(responses_writer *w, ms_text *out, const char *status) {
    if (w->open == ITEM_NONE) return;
    ms_text body = {0};
    put_item(w, &body, status, true);
    if (w->base.r->stream) {
        done_events(w, out);
        item_event(w, out, "output_item.done", &body);
    }
    if (w->output.len) ms_text_puts(&w->output, ",");
    ms_text_append(&w->output, body.data, body.len);
    out->failed = out->failed || body.failed;
    ms_text_free(&body);
    w->index++;
    w->open = ITEM_NONE;
    w->text.len = 0;
}

static void open_item(responses_writer *w, ms_text *out, item kind) {
    if (w->open == kind && kind != ITEM_CALL) return;
    close_item(w, out, "completed");
    if (kind != ITEM_REASONING && !w->thought && w->base.r->thinking) {
        open_item(w, out, ITEM_REASONING);
        close_item(w, out, "completed");
    }
    static const char *const prefixes[] = {"", "rs_", "msg_", "fc_"};
    w->open = kind;
    w->thought = w->thought || kind == ITEM_REASONING;
    w->said = w->said || kind == ITEM_MESSAGE;
    if (!ms_api_random_id(w->item_id, sizeof w->item_id, prefixes[kind])) out->failed = true;
    if (!w->base.r->stream) return;
    ms_text body = {0};
    put_item(w, &body, "in_progress", false);
    item_event(w, out, "output_item.added", &body);
    ms_text_free(&body);
    if (kind == ITEM_CALL) return;
    part_event(w, out, part_added(w));
    ms_text_puts(out, ",\"part\":");
    put_part(w, out, "", 0);
    end_event(out);
}

static void add_text(responses_writer *w, ms_text *out, const char *s, size_t len) {
    ms_text_append(&w->text, s, len);
    if (!w->base.r->stream || !len) return;
    part_event(w, out, delta_type(w));
    ms_text_puts(out, ",\"delta\":");
    ms_api_put_n(out, s, len);
    if (w->open == ITEM_MESSAGE) ms_text_puts(out, ",\"logprobs\":[]");
    end_event(out);
}

/* ------------------------------------------------------------------ writer */

static void responses_start(ms_api_writer *writer, ms_text *out, const ms_api_start *s) {
    responses_writer *w = (responses_writer *)writer;
    w->base.start = *s;
    w->base.started = true;
    if (!w->base.r->stream) return;
    response_event(w, out, "created", "in_progress", NULL, NULL);
    response_event(w, out, "in_progress", "in_progress", NULL, NULL);
}

static void responses_text(ms_api_writer *writer, ms_text *out, ms_channel channel, const char *text, size_t len,
                           const ms_api_logprob *logprobs, size_t count) {
    (void)logprobs;
    (void)count;
    responses_writer *w = (responses_writer *)writer;
    if (!len) return;
    open_item(w, out, channel == MS_CHANNEL_THINK ? ITEM_REASONING : ITEM_MESSAGE);
    add_text(w, out, text, len);
}

static void responses_tool_begin(ms_api_writer *writer, ms_text *out, const char *name, size_t len) {
    responses_writer *w = (responses_writer *)writer;
    close_item(w, out, "completed");
    ms_api_base_call(&w->base, out, "call_", name, len);
    open_item(w, out, ITEM_CALL);
}

static void responses_tool_arguments(ms_api_writer *writer, ms_text *out, const char *text, size_t len) {
    add_text((responses_writer *)writer, out, text, len);
}

static void responses_tool_end(ms_api_writer *writer, ms_text *out) {
    close_item((responses_writer *)writer, out, "completed");
}

static void responses_finish(ms_api_writer *writer, ms_text *out, const ms_api_end *e) {
    responses_writer *w = (responses_writer *)writer;
    bool cut = e->finish == MS_API_LENGTH;
    const char *status = cut ? "incomplete" : "completed";
    close_item(w, out, status);
    if (!w->said && !w->base.calls && !cut)
        open_item(w, out, ITEM_MESSAGE);
    else if (!w->thought && w->base.r->thinking)
        open_item(w, out, ITEM_REASONING);
    close_item(w, out, status);
    w->base.ended = true;
    if (!w->base.r->stream) {
        put_response(w, out, status, &e->usage, NULL);
        return;
    }
    ms_api_comment(out, e->comment);
    response_event(w, out, status, status, &e->usage, NULL);
}

static void responses_error(ms_api_writer *writer, ms_text *out, const ms_api_error *e, const char *request_id) {
    responses_writer *w = (responses_writer *)writer;
    w->base.ended = true;
    if (w->base.r->stream && w->base.started)
        response_event(w, out, "failed", "failed", NULL, e);
    else
        ms_api_error_document(out, MS_API_RESPONSES, e, request_id);
}

static void responses_destroy(ms_api_writer *writer) {
    responses_writer *w = (responses_writer *)writer;
    ms_api_base_free(&w->base);
    ms_text_free(&w->text);
    ms_text_free(&w->output);
    free(w);
}

static const ms_api_writer_ops responses_ops = {.start = responses_start,
                                                .text = responses_text,
                                                .tool_begin = responses_tool_begin,
                                                .tool_arguments = responses_tool_arguments,
                                                .tool_end = responses_tool_end,
                                                .finish = responses_finish,
                                                .error = responses_error,
                                                .keepalive = ms_api_keepalive,
                                                .progress = ms_api_progress,
                                                .destroy = responses_destroy};

ms_api_writer *ms_api_responses_writer(const ms_api_request *r) {
    responses_writer *w = calloc(1, sizeof *w);
    if (!w) return NULL;
    w->base.writer.ops = &responses_ops;
    w->base.r = r;
    return &w->base.writer;
}
