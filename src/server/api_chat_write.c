/* api_chat_write.c: chat completions responses, as one document and as a stream.
 *
 * Invariants: every chunk of a stream begins with the same head; finish or error is the last thing written.
 */
#include "server/api_write.h"

#include <stdlib.h>

typedef struct chat_writer {
    ms_api_base base;
    ms_text head;                                /* {"id":...,"system_fingerprint":... of every chunk */
    ms_text reasoning, content, calls, logprobs; /* whole document only */
} chat_writer;

/* ------------------------------------------------------------------ chunks */

static void begin_chunk(chat_writer *c, ms_text *out) {
    ms_text_puts(out, "data: ");
    ms_text_append(out, c->head.data, c->head.len);
    out->failed = out->failed || c->head.failed;
    ms_text_puts(out, ",\"choices\":[{\"index\":0,\"delta\":{");
}

/* `logprobs`: text of the list's elements, or NULL; `usage`: of the finish chunk that carries it. */
static void end_chunk(chat_writer *c, ms_text *out, const ms_text *logprobs, const char *finish,
                      const ms_api_usage *usage) {
    ms_text_puts(out, "},\"logprobs\":");
    if (logprobs && logprobs->len) {
        ms_text_puts(out, "{\"content\":[");
        ms_text_append(out, logprobs->data, logprobs->len);
        ms_text_puts(out, "],\"refusal\":null}");
        out->failed = out->failed || logprobs->failed;
    } else {
        ms_text_puts(out, "null");
    }
    ms_text_puts(out, ",\"finish_reason\":");
    if (finish)
        ms_api_put(out, finish);
    else
        ms_text_puts(out, "null");
    ms_text_puts(out, "}]");
    if (usage) {
        ms_text_puts(out, ",\"usage\":");
        ms_api_put_usage(out, usage);
    } else if (c->base.r->include_usage == 1) {
        ms_text_puts(out, ",\"usage\":null");
    }
    ms_text_puts(out, "}\n\n");
}

static void write_head(chat_writer *c) {
    const ms_api_start *s = &c->base.start;
    ms_text_printf(&c->head,
                   "{\"id\":\"chatcmpl-%s\",\"object\":\"chat.completion%s\",\"created\":%lld,\"model\":", s->id,
                   c->base.r->stream ? ".chunk" : "", (long long)s->created);
    ms_api_put(&c->head, s->model);
    ms_text_puts(&c->head, ",\"system_fingerprint\":");
    ms_api_put(&c->head, s->fingerprint);
}

/* ------------------------------------------------------------------ log probabilities */

static void put_token(ms_text *out, const char *bytes, size_t len, float logprob) {
    ms_text text = {0};
    ms_utf8_repair(&text, bytes, len);
    ms_text_puts(out, "{\"token\":");
    ms_api_put_n(out, text.data, text.len);
    ms_text_printf(out, ",\"logprob\":");
    ms_json_write_double(out, logprob >= -9999.0f ? (double)logprob : -9999.0); /* also for NaN */
    ms_text_puts(out, ",\"bytes\":[");
    for (size_t i = 0; i < len; i++) ms_text_printf(out, "%s%u", i ? "," : "", (unsigned)(unsigned char)bytes[i]);
    ms_text_puts(out, "]");
    out->failed = out->failed || text.failed;
    ms_text_free(&text);
}

static void put_logprobs(ms_text *out, const ms_api_logprob *list, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const ms_api_logprob *p = &list[i];
        if (out->len) ms_text_puts(out, ",");
        put_token(out, p->bytes, p->len, p->logprob);
        ms_text_puts(out, ",\"top_logprobs\":[");
        for (uint32_t t = 0; t < p->top_count; t++) {
            if (t) ms_text_puts(out, ",");
            put_token(out, p->top[t].bytes, p->top[t].len, p->top[t].logprob);
            ms_text_puts(out, "}");
        }
        ms_text_puts(out, "]}");
    }
}

/* ------------------------------------------------------------------ events */

static void chat_start(ms_api_writer *w, ms_text *out, const ms_api_start *s) {
    chat_writer *c = (chat_writer *)w;
    c->base.start = *s;
    c->base.started = true;
    write_head(c);
    if (!c->base.r->stream) return;
    begin_chunk(c, out);
    ms_text_puts(out, "\"role\":\"assistant\",\"content\":\"\"");
    if (c->base.r->thinking) ms_text_puts(out, ",\"reasoning_content\":\"\"");
    end_chunk(c, out, NULL, NULL, NULL);
}

static void chat_text(ms_api_writer *w, ms_text *out, ms_channel channel, const char *text, size_t len,
                      const ms_api_logprob *logprobs, size_t count) {
    chat_writer *c = (chat_writer *)w;
    bool think = channel == MS_CHANNEL_THINK, wanted = c->base.r->logprobs;
    if (!c->base.r->stream) {
        ms_text_append(think ? &c->reasoning : &c->content, text, len);
        if (wanted) put_logprobs(&c->logprobs, logprobs, count);
        return;
    }
    if (!len && !(wanted && count)) return;
    ms_text list = {0};
    if (wanted) put_logprobs(&list, logprobs, count);
    begin_chunk(c, out);
    ms_text_puts(out, think ? "\"reasoning_content\":" : "\"content\":");
    ms_api_put_n(out, text, len);
    end_chunk(c, out, &list, NULL, NULL);
    ms_text_free(&list);
}

static void chat_tool_begin(ms_api_writer *w, ms_text *out, const char *name, size_t len) {
    chat_writer *c = (chat_writer *)w;
    uint32_t index = c->base.calls;
    ms_api_base_call(&c->base, out, "call_", name, len);
    if (!c->base.r->stream) return;
    begin_chunk(c, out);
    ms_text_printf(out,
                   "\"tool_calls\":[{\"index\":%u,\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":", index,
                   w->call_id);
    ms_api_put_n(out, name, len);
    ms_text_puts(out, ",\"arguments\":\"\"}}]");
    end_chunk(c, out, NULL, NULL, NULL);
}

static void chat_tool_arguments(ms_api_writer *w, ms_text *out, const char *text, size_t len) {
    chat_writer *c = (chat_writer *)w;
    if (!c->base.r->stream) {
        ms_text_append(&c->base.args, text, len);
        return;
    }
    if (!len) return;
    begin_chunk(c, out);
    ms_text_printf(out, "\"tool_calls\":[{\"index\":%u,\"function\":{\"arguments\":", c->base.calls - 1);
    ms_api_put_n(out, text, len);
    ms_text_puts(out, "}}]");
    end_chunk(c, out, NULL, NULL, NULL);
}

static void chat_tool_end(ms_api_writer *w, ms_text *out) {
    chat_writer *c = (chat_writer *)w;
    if (c->base.r->stream) return;
    ms_text_printf(&c->calls, "%s{\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":", c->calls.len ? "," : "",
                   w->call_id);
    ms_api_put_n(&c->calls, c->base.name.data, c->base.name.len);
    ms_text_puts(&c->calls, ",\"arguments\":");
    ms_api_put_n(&c->calls, c->base.args.data, c->base.args.len);
    ms_text_puts(&c->calls, "}}");
    out->failed = out->failed || c->base.args.failed || c->base.name.failed;
}

static void finish_stream(chat_writer *c, ms_text *out, const ms_api_end *e) {
    int include = c->base.r->include_usage;
    ms_api_comment(out, e->comment);
    begin_chunk(c, out);
    end_chunk(c, out, NULL, ms_api_finish_reason(e->finish), include < 0 ? &e->usage : NULL);
    if (include == 1) {
        ms_text_puts(out, "data: ");
        ms_text_append(out, c->head.data, c->head.len);
        ms_text_puts(out, ",\"choices\":[],\"usage\":");
        ms_api_put_usage(out, &e->usage);
        ms_text_puts(out, "}\n\n");
    }
    ms_text_puts(out, "data: [DONE]\n\n");
}

static void chat_finish(ms_api_writer *w, ms_text *out, const ms_api_end *e) {
    chat_writer *c = (chat_writer *)w;
    c->base.ended = true;
    if (c->base.r->stream) {
        finish_stream(c, out, e);
        return;
    }
    ms_text_append(out, c->head.data, c->head.len);
    ms_text_puts(out, ",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":");
    if (c->calls.len && !c->content.len)
        ms_text_puts(out, "null");
    else
        ms_api_put_n(out, c->content.data, c->content.len);
    if (c->base.r->thinking) {
        ms_text_puts(out, ",\"reasoning_content\":");
        ms_api_put_n(out, c->reasoning.data, c->reasoning.len);
    }
    if (c->calls.len) ms_text_puts(out, ",\"tool_calls\":[");
    ms_text_append(out, c->calls.data, c->calls.len);
    ms_text_puts(out, c->calls.len ? "]},\"logprobs\":" : "},\"logprobs\":");
    ms_text_puts(out, c->base.r->logprobs ? "{\"content\":[" : "null");
    ms_text_append(out, c->logprobs.data, c->logprobs.len);
    if (c->base.r->logprobs) ms_text_puts(out, "],\"refusal\":null}");
    ms_text_puts(out, ",\"finish_reason\":");
    ms_api_put(out, ms_api_finish_reason(e->finish));
    ms_text_puts(out, "}],\"usage\":");
    ms_api_put_usage(out, &e->usage);
    ms_text_puts(out, "}");
    out->failed = out->failed || c->head.failed || c->content.failed || c->reasoning.failed || c->calls.failed ||
                  c->logprobs.failed;
}

static void chat_error(ms_api_writer *w, ms_text *out, const ms_api_error *e, const char *request_id) {
    chat_writer *c = (chat_writer *)w;
    c->base.ended = true;
    if (c->base.r->stream && c->base.started)
        ms_api_stream_error(out, e);
    else
        ms_api_error_document(out, MS_API_CHAT, e, request_id);
}

static void chat_progress(ms_api_writer *w, ms_text *out, uint64_t total, uint64_t cached, uint64_t processed,
                          uint64_t elapsed_ms) {
    chat_writer *c = (chat_writer *)w;
    if (!c->base.r->stream || !c->base.started) return;
    if (!c->base.r->return_progress) {
        ms_api_progress(w, out, total, cached, processed, elapsed_ms);
        return;
    }
    ms_text_puts(out, "data: ");
    ms_text_append(out, c->head.data, c->head.len);
    ms_text_printf(out,
                   ",\"choices\":[{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":null}],"
                   "\"prompt_progress\":{\"total\":%llu,\"cache\":%llu,\"processed\":%llu,\"time_ms\":%llu}%s}\n\n",
                   (unsigned long long)total, (unsigned long long)cached, (unsigned long long)processed,
                   (unsigned long long)elapsed_ms, c->base.r->include_usage == 1 ? ",\"usage\":null" : "");
}

static void chat_destroy(ms_api_writer *w) {
    chat_writer *c = (chat_writer *)w;
    ms_api_base_free(&c->base);
    ms_text_free(&c->head);
    ms_text_free(&c->reasoning);
    ms_text_free(&c->content);
    ms_text_free(&c->calls);
    ms_text_free(&c->logprobs);
    free(c);
}

static const ms_api_writer_ops chat_ops = {.start = chat_start,
                                           .text = chat_text,
                                           .tool_begin = chat_tool_begin,
                                           .tool_arguments = chat_tool_arguments,
                                           .tool_end = chat_tool_end,
                                           .finish = chat_finish,
                                           .error = chat_error,
                                           .keepalive = ms_api_keepalive,
                                           .progress = chat_progress,
                                           .destroy = chat_destroy};

ms_api_writer *ms_api_chat_writer(const ms_api_request *r) {
    chat_writer *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    c->base.writer.ops = &chat_ops;
    c->base.r = r;
    return &c->base.writer;
}
