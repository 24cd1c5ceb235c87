/* fuzz_k3_parser.c: any ids to the K3 reply parser; the joined deltas must be the reply's texts.
 *
 * The vocabulary is the 256 single bytes, so a text input is its own ids; bytes 0x80..0x8f stand for control
 * ids and short tags, or structure would hardly ever appear.
 */
#include <stdlib.h>
#include <string.h>

#include "lane/k3/k3_chat.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct feed {
    k3_parser *parser;
    ms_reply_delta delta;
    ms_text reasoning, content;
    bool done;
} feed;

static ms_tokenizer *byte_tokenizer(void) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    ms_text ranks = {0};
    ms_error err;
    ms_tokenizer *t;
    for (unsigned i = 0; i < 256; i++) ms_text_printf(&ranks, "%c%c== %u\n", digits[i >> 2], digits[(i & 3) << 4], i);
    if (ms_tokenizer_parse(&t, ranks.data, ranks.len, "bytes", &err) != MS_OK) abort();
    ms_text_free(&ranks);
    return t;
}

static void take(feed *f) {
    ms_text_append(&f->reasoning, f->delta.reasoning.data, f->delta.reasoning.len);
    ms_text_append(&f->content, f->delta.content.data, f->delta.content.len);
}

static void push(feed *f, uint32_t id) {
    ms_error err;
    if (k3_parser_push(f->parser, id, &f->delta, &f->done, &err) != MS_OK) abort();
    take(f);
}

static void push_all(feed *f, const char *s) {
    static const struct { char mark; uint32_t offset; } marks[] = {
        {'\1', MS_CTL_OPEN}, {'\2', MS_CTL_CLOSE}, {'\3', MS_CTL_SEP}};
    for (; *s; s++) {
        uint32_t id = (unsigned char)*s;
        for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++) {
            if (*s == marks[i].mark) id = 256 + marks[i].offset;
        }
        push(f, id);
    }
}

static void push_byte(feed *f, uint8_t b) {
    static const char *const tags[16] = {
        "\1", "\2", "\3", "\2think\3", "\1response\3", "\2response\3", "\1tools\3", "\2tools\3", "\1call tool=\"f\"\3",
        "\2call\3", "\1argument key=\"k\" type=\"number\"\3", "\2argument\3", "\1json type=\"object\"\3", "\2json\3",
        "\2message\3", NULL};
    if (b < 0x80 || b > 0x8f) push(f, b);
    else if (tags[b - 0x80]) push_all(f, tags[b - 0x80]);
    else push(f, 256 + MS_CTL_END_OF_MSG);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!size) return 0;
    static ms_tokenizer *t; /* built once, for speed */
    if (!t) t = byte_tokenizer();
    feed f = {0};
    ms_error err;
    ms_reply r;
    if (k3_parser_create(&f.parser, t, (ms_channel)(data[0] % 3), &err) != MS_OK) abort();
    for (size_t i = 1; i < size && !f.done; i++) push_byte(&f, data[i]);
    if (k3_parser_finish(f.parser, &f.delta, &r, &err) != MS_OK) abort();
    take(&f);
    if (f.reasoning.len != r.reasoning_len || f.content.len != r.content_len) abort();
    if (r.reasoning_len && memcmp(f.reasoning.data, r.reasoning, r.reasoning_len) != 0) abort();
    if (r.content_len && memcmp(f.content.data, r.content, r.content_len) != 0) abort();
    if (r.status == MS_REPLY_MALFORMED && !r.error) abort();
    for (size_t i = 0; i < r.call_count; i++) {
        const ms_tool_call *c = &r.calls[i];
        if (!c->name_len || c->name[c->name_len] || c->arguments[c->arguments_len]) abort();
    }
    ms_reply_free(&r);
    k3_parser_destroy(f.parser);
    ms_text_free(&f.delta.reasoning);
    ms_text_free(&f.delta.content);
    ms_text_free(&f.reasoning);
    ms_text_free(&f.content);
    return 0;
}
