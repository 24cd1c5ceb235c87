/* fuzz_mimo_parser.c: any ids to the MiMo reply parser; the joined deltas must be the reply's texts, and arguments
 * JSON.
 *
 * The vocabulary is that of tests/text/hf: bytes are ids below 256; bytes 0x80..0x8f stand for control ids and short
 * tags, or structure would hardly ever appear. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "lane/mimo26/mimo_chat.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct feed {
    const ms_tokenizer *t;
    mimo_parser *parser;
    ms_reply_delta delta;
    ms_text reasoning, content, arguments;
    size_t calls;
    bool done;
} feed;

/* Calls in progress only grow. */
static void look(feed *f) {
    ms_call_view v;
    mimo_parser_calls(f->parser, &v);
    const ms_tool_call *whole = v.count > f->calls ? &v.whole[f->calls] : NULL;
    const char *now = whole ? whole->arguments : v.name ? v.arguments : NULL;
    size_t len = whole ? whole->arguments_len : v.arguments_len;
    if (v.count < f->calls || v.count > f->calls + 1) abort();
    if (now && (len < f->arguments.len || !ms_utf8_valid(now, len))) abort();
    if (now && f->arguments.len && memcmp(now, f->arguments.data, f->arguments.len) != 0) abort();
    f->calls = v.count;
    f->arguments.len = 0;
    if (v.name) ms_text_append(&f->arguments, v.arguments, v.arguments_len);
}

static void take(feed *f) {
    ms_text_append(&f->reasoning, f->delta.reasoning.data, f->delta.reasoning.len);
    ms_text_append(&f->content, f->delta.content.data, f->delta.content.len);
}

static void push_text(feed *f, const char *s, size_t len) {
    ms_ids ids = {0};
    ms_error err;
    if (ms_tokenizer_encode(f->t, s, len, true, &ids, &err) != MS_OK) abort();
    for (size_t i = 0; i < ids.count; i++) {
        if (mimo_parser_push(f->parser, ids.data[i], &f->delta, &f->done, &err) != MS_OK) abort();
        take(f);
        look(f);
    }
    ms_ids_free(&ids);
}

static void push_byte(feed *f, uint8_t b) {
    static const char *const tags[16] = {"<think>",
                                         "</think>",
                                         "<tool_call>",
                                         "</tool_call>",
                                         "<|vision_pad|>",
                                         "<tool_response>",
                                         "<function=f>",
                                         "</function>",
                                         "<parameter=s>",
                                         "<parameter=i>",
                                         "</parameter>",
                                         "<tool_call><function=f><parameter=",
                                         "</function></tool_call>",
                                         "{\"a\":",
                                         "}",
                                         "<|im_end|>"};
    ms_error err;
    if (b >= 0x80 && b <= 0x8f) {
        push_text(f, tags[b - 0x80], strlen(tags[b - 0x80]));
        return;
    }
    if (mimo_parser_push(f->parser, b, &f->delta, &f->done, &err) != MS_OK) abort();
    take(f);
    look(f);
}

static void declare(mimo_parser *p) {
    static const char tools[] =
        "[{\"name\":\"f\",\"parameters\":{\"properties\":{\"s\":{\"type\":\"string\"},\"i\":{\"type\":\"integer\"}}}}]";
    ms_json_doc *doc;
    ms_error err;
    if (ms_json_parse(&doc, tools, sizeof tools - 1, "tools", NULL, &err) != MS_OK) abort();
    if (mimo_parser_tools(p, ms_json_root(doc), &err) != MS_OK) abort();
    ms_json_free(doc);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!size) return 0;
    static ms_tokenizer *t; /* opened once, for speed */
    ms_error err;
    if (!t && ms_tokenizer_open_hf(&t, "tests/text/hf/tokenizer.json", &err) != MS_OK) {
        (void)fprintf(stderr, "%s\n", err.message);
        abort();
    }
    feed f = {.t = t};
    ms_reply r;
    if (mimo_parser_create(&f.parser, t, (ms_channel)(data[0] % 3), &err) != MS_OK) abort();
    if (data[0] & 0x80) declare(f.parser);
    for (size_t i = 1; i < size && !f.done; i++) push_byte(&f, data[i]);
    if (mimo_parser_finish(f.parser, &f.delta, &r, &err) != MS_OK) abort();
    take(&f);
    if (f.reasoning.len != r.reasoning_len || f.content.len != r.content_len || r.status == MS_REPLY_MALFORMED) abort();
    if (r.reasoning_len && memcmp(f.reasoning.data, r.reasoning, r.reasoning_len) != 0) abort();
    if (r.content_len && memcmp(f.content.data, r.content, r.content_len) != 0) abort();
    for (size_t i = 0; i < r.call_count; i++) {
        const ms_tool_call *c = &r.calls[i];
        ms_json_doc *doc = NULL;
        if (!c->name_len || c->name[c->name_len] || c->arguments[c->arguments_len]) abort();
        if (ms_json_parse(&doc, c->arguments, c->arguments_len, "arguments", NULL, &err) != MS_OK) abort();
        if (ms_json_root(doc)->type != MS_JSON_OBJECT) abort();
        ms_json_free(doc);
    }
    ms_reply_free(&r);
    mimo_parser_destroy(f.parser);
    ms_text_free(&f.delta.reasoning);
    ms_text_free(&f.delta.content);
    ms_text_free(&f.reasoning);
    ms_text_free(&f.content);
    ms_text_free(&f.arguments);
    return 0;
}
