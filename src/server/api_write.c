/* api_write.c: pieces of responses that the codecs share. */
#include "server/api_write.h"

#include <string.h>

void ms_api_base_free(ms_api_base *b) {
    ms_text_free(&b->name);
    ms_text_free(&b->args);
}

void ms_api_base_call(ms_api_base *b, ms_text *out, const char *prefix, const char *name, size_t len) {
    if (!ms_api_random_id(b->writer.call_id, sizeof b->writer.call_id, prefix)) out->failed = true;
    b->calls++;
    b->name.len = b->args.len = 0;
    ms_text_append(&b->name, name, len);
}

void ms_api_put_n(ms_text *out, const char *s, size_t len) { ms_json_write_string(out, s ? s : "", len); }

void ms_api_comment(ms_text *out, const char *text) {
    while (text && *text) {
        size_t n = strcspn(text, "\r\n");
        if (n) {
            ms_text_puts(out, ": ");
            ms_text_append(out, text, n);
            ms_text_puts(out, "\n\n");
        }
        text += n + (text[n] != 0);
    }
}

void ms_api_keepalive(ms_api_writer *w, ms_text *out, const char *what) {
    const ms_api_base *b = (const ms_api_base *)w;
    if (!b->r->stream || !b->started || b->ended) return;
    ms_text t = {0};
    ms_text_printf(&t, "moonshine %s", what && *what ? what : "waiting");
    ms_api_comment(out, t.data);
    out->failed = out->failed || t.failed;
    ms_text_free(&t);
}

void ms_api_progress(ms_api_writer *w, ms_text *out, uint64_t total, uint64_t cached, uint64_t processed,
                     uint64_t elapsed_ms) {
    (void)cached;
    (void)elapsed_ms;
    ms_text t = {0};
    ms_text_printf(&t, "prefill token %llu/%llu", (unsigned long long)processed, (unsigned long long)total);
    if (t.data) w->ops->keepalive(w, out, t.data);
    ms_text_free(&t);
}

void ms_api_put_usage(ms_text *out, const ms_api_usage *u) {
    ms_text_printf(out,
                   "{\"prompt_tokens\":%llu,\"completion_tokens\":%llu,\"total_tokens\":%llu,"
                   "\"prompt_tokens_details\":{\"cached_tokens\":%llu},"
                   "\"completion_tokens_details\":{\"reasoning_tokens\":%llu}}",
                   (unsigned long long)u->prompt, (unsigned long long)u->completion,
                   (unsigned long long)(u->prompt + u->completion), (unsigned long long)u->cached,
                   (unsigned long long)u->reasoning);
}

const char *ms_api_finish_reason(ms_api_finish f) {
    switch (f) {
    case MS_API_LENGTH:
        return "length";
    case MS_API_TOOL_CALLS:
        return "tool_calls";
    case MS_API_STOP:
    case MS_API_STOP_STRING:
        break;
    }
    return "stop";
}

void ms_api_stream_error(ms_text *out, const ms_api_error *e) {
    ms_text_puts(out, "data: {\"error\":");
    ms_api_error_object(out, MS_API_CHAT, e, true);
    ms_text_puts(out, "}\n\ndata: [DONE]\n\n");
}
