/* api_messages_write.c: Messages responses, as one document and as a stream of named events.
 *
 * Invariants: block indexes are consecutive and one block is open at a time; a thinking block comes first whenever
 * thinking is on, also when it is empty, since a replay must be able to say so.
 */
#include "server/api_write.h"

#include <stdlib.h>
#include <string.h>

typedef enum block { BLOCK_NONE, BLOCK_THINKING, BLOCK_TEXT, BLOCK_TOOL } block;

typedef struct messages_writer {
    ms_api_base base;
    block open;
    bool thought;    /* the thinking block was begun */
    size_t index;    /* of the open block, or of the next one */
    ms_text text;    /* of the open block */
    ms_text content; /* whole document: finished blocks */
} messages_writer;

/* ------------------------------------------------------------------ pieces */

static void put_usage(ms_text *out, const ms_api_usage *u) {
    ms_text_printf(out,
                   "{\"input_tokens\":%llu,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":%llu,"
                   "\"output_tokens\":%llu}",
                   (unsigned long long)(u->prompt - u->cached), (unsigned long long)u->cached,
                   (unsigned long long)u->completion);
}

static void begin_event(ms_text *out, const char *type) {
    ms_text_printf(out, "event: %s\ndata: {\"type\":\"%s\"", type, type);
}

static void end_event(ms_text *out) { ms_text_puts(out, "}\n\n"); }

/* {"id":... up to and with the key of the content list. */
static void put_head(const messages_writer *m, ms_text *out) {
    ms_text_printf(out, "{\"id\":\"msg_%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", m->base.start.id);
    ms_api_put(out, m->base.start.model);
    ms_text_puts(out, ",\"content\":");
}

static void put_stop(ms_text *out, const ms_api_end *e) {
    static const char *const reasons[] = {[MS_API_STOP] = "end_turn",
                                          [MS_API_STOP_STRING] = "stop_sequence",
                                          [MS_API_LENGTH] = "max_tokens",
                                          [MS_API_TOOL_CALLS] = "tool_use"};
    ms_text_printf(out, "\"stop_reason\":\"%s\",\"stop_sequence\":", reasons[e->finish]);
    if (e->finish == MS_API_STOP_STRING && e->stop)
        ms_api_put_n(out, e->stop, e->stop_len);
    else
        ms_text_puts(out, "null");
}

static bool is_object(const ms_text *t) {
    ms_json_doc *doc;
    ms_json_limits limits = {.max_depth = MS_JSON_MAX_DEPTH};
    if (ms_json_parse(&doc, t->data, t->len, "input", &limits, NULL) != MS_OK) return false;
    bool object = ms_json_root(doc)->type == MS_JSON_OBJECT;
    ms_json_free(doc);
    return object;
}

/* The input of a finished call.  A text that is no object (a raw block of the model) is handed over inside one. */
static void put_input(ms_text *out, const ms_text *args) {
    if (!args->len) {
        ms_text_puts(out, "{}");
    } else if (is_object(args)) {
        ms_text_append(out, args->data, args->len);
    } else {
        ms_text_puts(out, "{\"raw_arguments\":");
        ms_api_put_n(out, args->data, args->len);
        ms_text_puts(out, "}");
    }
}

/* ------------------------------------------------------------------ blocks */

static void delta(messages_writer *m, ms_text *out, const char *type, const char *key, const char *s, size_t len) {
    begin_event(out, "content_block_delta");
    ms_text_printf(out, ",\"index\":%zu,\"delta\":{\"type\":\"%s\",\"%s\":", m->index, type, key);
    ms_api_put_n(out, s, len);
    ms_text_puts(out, "}");
    end_event(out);
}

/* The block as a whole, for the document. */
static void put_block(messages_writer *m) {
    ms_text *out = &m->content;
    if (out->len) ms_text_puts(out, ",");
    switch (m->open) {
    case BLOCK_THINKING:
        ms_text_puts(out, "{\"type\":\"thinking\",\"thinking\":");
        ms_api_put_n(out, m->text.data, m->text.len);
        ms_text_puts(out, ",\"signature\":\"");
        ms_api_sign(out, m->base.r->key, m->text.data, m->text.len);
        ms_text_puts(out, "\"}");
        break;
    case BLOCK_TEXT:
        ms_text_puts(out, "{\"type\":\"text\",\"text\":");
        ms_api_put_n(out, m->text.data, m->text.len);
        ms_text_puts(out, "}");
        break;
    case BLOCK_TOOL:
        ms_text_printf(out, "{\"type\":\"tool_use\",\"id\":\"%s\",\"name\":", m->base.writer.call_id);
        ms_api_put_n(out, m->base.name.data, m->base.name.len);
        ms_text_puts(out, ",\"input\":");
        put_input(out, &m->text);
        ms_text_puts(out, "}");
        break;
    case BLOCK_NONE:
        break;
    }
}

static void close_block(messages_writer *m, ms_text *out) {
    if (m->open == BLOCK_NONE) return;
    if (!m->base.r->stream) {
        put_block(m);
    } else {
        if (m->open == BLOCK_THINKING) {
            ms_text sign = {0};
            ms_api_sign(&sign, m->base.r->key, m->text.data, m->text.len);
            delta(m, out, "signature_delta", "signature", sign.data, sign.len);
            out->failed = out->failed || sign.failed;
            ms_text_free(&sign);
        }
        begin_event(out, "content_block_stop");
        ms_text_printf(out, ",\"index\":%zu", m->index);
        end_event(out);
    }
    m->index++;
    m->open = BLOCK_NONE;
    out->failed = out->failed || m->text.failed || m->content.failed;
    m->text.len = 0;
}

static void open_block(messages_writer *m, ms_text *out, block kind);

/* Thinking comes first, also when the model thought nothing. */
static void first_block(messages_writer *m, ms_text *out) {
    if (m->thought || !m->base.r->thinking) return;
    open_block(m, out, BLOCK_THINKING);
    close_block(m, out);
}

static void open_block(messages_writer *m, ms_text *out, block kind) {
    if (m->open == kind && kind != BLOCK_TOOL) return;
    close_block(m, out);
    if (kind == BLOCK_THINKING)
        m->thought = true;
    else
        first_block(m, out);
    m->open = kind;
    if (!m->base.r->stream) return;
    begin_event(out, "content_block_start");
    ms_text_printf(out, ",\"index\":%zu,\"content_block\":", m->index);
    if (kind == BLOCK_THINKING) {
        ms_text_puts(out, "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}");
    } else if (kind == BLOCK_TEXT) {
        ms_text_puts(out, "{\"type\":\"text\",\"text\":\"\"}");
    } else {
        ms_text_printf(out, "{\"type\":\"tool_use\",\"id\":\"%s\",\"name\":", m->base.writer.call_id);
        ms_api_put_n(out, m->base.name.data, m->base.name.len);
        ms_text_puts(out, ",\"input\":{}}");
    }
    end_event(out);
}

/* ------------------------------------------------------------------ events */

static void messages_start(ms_api_writer *w, ms_text *out, const ms_api_start *s) {
    messages_writer *m = (messages_writer *)w;
    m->base.start = *s;
    m->base.started = true;
    if (!m->base.r->stream) return;
    begin_event(out, "message_start");
    ms_text_puts(out, ",\"message\":");
    put_head(m, out);
    ms_text_puts(out, "[],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":");
    put_usage(out, &s->usage);
    ms_text_puts(out, "}");
    end_event(out);
}

static void messages_text(ms_api_writer *w, ms_text *out, ms_channel channel, const char *text, size_t len,
                          const ms_api_logprob *logprobs, size_t count) {
    (void)logprobs;
    (void)count;
    messages_writer *m = (messages_writer *)w;
    bool think = channel == MS_CHANNEL_THINK;
    if (!len) return;
    open_block(m, out, think ? BLOCK_THINKING : BLOCK_TEXT);
    /* A thinking block needs its text for the signature. */
    if (think || !m->base.r->stream) ms_text_append(&m->text, text, len);
    if (!m->base.r->stream) return;
    if (think)
        delta(m, out, "thinking_delta", "thinking", text, len);
    else
        delta(m, out, "text_delta", "text", text, len);
}

static void messages_tool_begin(ms_api_writer *w, ms_text *out, const char *name, size_t len) {
    messages_writer *m = (messages_writer *)w;
    close_block(m, out);
    first_block(m, out);
    ms_api_base_call(&m->base, out, "toolu_", name, len);
    open_block(m, out, BLOCK_TOOL);
}

static void messages_tool_arguments(ms_api_writer *w, ms_text *out, const char *text, size_t len) {
    messages_writer *m = (messages_writer *)w;
    if (!len) return;
    if (m->base.r->stream)
        delta(m, out, "input_json_delta", "partial_json", text, len);
    else
        ms_text_append(&m->text, text, len);
}

static void messages_tool_end(ms_api_writer *w, ms_text *out) { close_block((messages_writer *)w, out); }

static void messages_finish(ms_api_writer *w, ms_text *out, const ms_api_end *e) {
    messages_writer *m = (messages_writer *)w;
    close_block(m, out);
    first_block(m, out);
    m->base.ended = true;
    if (m->base.r->stream) {
        begin_event(out, "message_delta");
        ms_text_puts(out, ",\"delta\":{");
        put_stop(out, e);
        ms_text_puts(out, "},\"usage\":");
        put_usage(out, &e->usage);
        end_event(out);
        begin_event(out, "message_stop");
        end_event(out);
        return;
    }
    put_head(m, out);
    ms_text_puts(out, "[");
    ms_text_append(out, m->content.data, m->content.len);
    ms_text_puts(out, "],");
    put_stop(out, e);
    ms_text_puts(out, ",\"usage\":");
    put_usage(out, &e->usage);
    ms_text_puts(out, "}");
}

static void messages_error(ms_api_writer *w, ms_text *out, const ms_api_error *e, const char *request_id) {
    messages_writer *m = (messages_writer *)w;
    bool event = m->base.r->stream && m->base.started;
    m->base.ended = true;
    if (event) ms_text_puts(out, "event: error\ndata: ");
    ms_api_error_document(out, MS_API_MESSAGES, e, request_id);
    if (event) ms_text_puts(out, "\n\n");
}

static void messages_keepalive(ms_api_writer *w, ms_text *out, const char *what) {
    messages_writer *m = (messages_writer *)w;
    (void)what;
    if (!m->base.r->stream || !m->base.started || m->base.ended) return;
    begin_event(out, "ping");
    end_event(out);
}

static void messages_destroy(ms_api_writer *w) {
    messages_writer *m = (messages_writer *)w;
    ms_api_base_free(&m->base);
    ms_text_free(&m->text);
    ms_text_free(&m->content);
    free(m);
}

static const ms_api_writer_ops messages_ops = {.start = messages_start,
                                               .text = messages_text,
                                               .tool_begin = messages_tool_begin,
                                               .tool_arguments = messages_tool_arguments,
                                               .tool_end = messages_tool_end,
                                               .finish = messages_finish,
                                               .error = messages_error,
                                               .keepalive = messages_keepalive,
                                               .progress = ms_api_progress,
                                               .destroy = messages_destroy};

ms_api_writer *ms_api_messages_writer(const ms_api_request *r) {
    messages_writer *m = calloc(1, sizeof *m);
    if (!m) return NULL;
    m->base.writer.ops = &messages_ops;
    m->base.r = r;
    return &m->base.writer;
}
