/* mimo_parse.c: reads a generated MiMo V2.6 message id by id (docs/formats.md, "MiMo V2.6 chat").
 *
 * Owns: a parser owns its buffers until mimo_parser_finish hands the reply over, and its copy of the tools.
 * Threads: a parser belongs to one thread.
 * Invariants: only control ids begin or end reasoning, calls and the message; text that spells one is text.  Text
 * appended to reasoning or content is final, so a delta is the part that a push added. Errors: bad output of the model
 * is part of the reply; MS_ERR_USAGE for an id that the tokenizer does not have.
 */
#include "lane/mimo26/mimo_call.h"
#include "lane/mimo26/mimo_chat.h"

#include <stdlib.h>
#include <string.h>

typedef enum state { REASONING, CONTENT, CALL } state;

struct mimo_parser {
    const ms_tokenizer *tokenizer;
    uint32_t end, think, end_think, call, end_call; /* control ids */
    state state;
    bool fresh;       /* reasoning in which nothing came yet */
    bool over;        /* the end-of-turn token came */
    bool behind_call; /* nothing but white space came behind a call */
    ms_utf8_stream utf8;
    ms_text decided; /* scratch of one push */
    ms_text reasoning, content;
    ms_text gap; /* white space behind a call: dropped unless text follows */
    mimo_call open;
    ms_tool_call *calls;
    size_t call_count, call_cap;
    ms_json_doc *tools;
    char *tools_text;
};

static const char open_name[] = "<tool_call>", close_name[] = "</tool_call>";

/* ------------------------------------------------------------------ life */

ms_status mimo_parser_create(mimo_parser **out, const ms_tokenizer *t, ms_channel channel, ms_error *err) {
    mimo_parser *p = calloc(1, sizeof *p);
    if (!p) return ms_fail_memory(err, "a reply parser", sizeof *p);
    p->tokenizer = t;
    p->state = channel == MS_CHANNEL_THINK ? REASONING : CONTENT;
    p->fresh = true;
    uint32_t start; /* which prompts begin with */
    const struct {
        const char *name;
        uint32_t *id;
    } names[] = {{"<|im_start|>", &start},    {"<|im_end|>", &p->end}, {"<think>", &p->think},
                 {"</think>", &p->end_think}, {open_name, &p->call},   {close_name, &p->end_call}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (ms_tokenizer_control_id(t, names[i].name, strlen(names[i].name), names[i].id)) continue;
        free(p);
        return ms_fail(err, MS_ERR_FORMAT, "tokenizer.json: added_tokens: expected %s, found nothing", names[i].name);
    }
    *out = p;
    return MS_OK;
}

void mimo_parser_destroy(mimo_parser *p) {
    if (!p) return;
    ms_reply calls = {.calls = p->calls, .call_count = p->call_count};
    ms_reply_free(&calls);
    ms_text *const texts[] = {&p->decided, &p->reasoning, &p->content, &p->gap};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) ms_text_free(texts[i]);
    mimo_call_free(&p->open);
    ms_json_free(p->tools);
    free(p->tools_text);
    free(p);
}

ms_status mimo_parser_tools(mimo_parser *p, const ms_json *tools, ms_error *err) {
    ms_text copy = {0};
    ms_json_write(&copy, tools, &ms_json_compact);
    if (copy.failed) {
        ms_text_free(&copy);
        return ms_fail_memory(err, "declared tools", copy.len);
    }
    static const ms_json_limits limits = {.max_depth = MS_JSON_MAX_DEPTH, .allow_nan = true};
    ms_json_doc *doc = NULL;
    ms_status status = ms_json_parse(&doc, copy.data, copy.len, "tools", &limits, err);
    if (status != MS_OK) {
        ms_text_free(&copy);
        return status;
    }
    ms_json_free(p->tools);
    free(p->tools_text);
    p->tools = doc;
    p->tools_text = copy.data; /* raw spans of the document lie in it */
    return MS_OK;
}

/* ------------------------------------------------------------------ calls */

/* The open call becomes one of the reply's. */
static ms_status add_call(mimo_parser *p, ms_error *err) {
    if (p->call_count == p->call_cap) {
        size_t cap = p->call_cap ? 2 * p->call_cap : 4;
        ms_tool_call *calls = realloc(p->calls, cap * sizeof *calls);
        if (!calls) return ms_fail_memory(err, "tool calls", cap * sizeof *calls);
        p->calls = calls;
        p->call_cap = cap;
    }
    ms_text *name = &p->open.name, *arguments = &p->open.arguments;
    p->calls[p->call_count++] = (ms_tool_call){name->data, name->len, arguments->data, arguments->len};
    *name = *arguments = (ms_text){0};
    return MS_OK;
}

/* A block that is no call is text. */
static void block_to_text(mimo_parser *p, bool closed) {
    ms_text_append(&p->content, p->gap.data, p->gap.len);
    ms_text_puts(&p->content, open_name);
    ms_text_append(&p->content, p->open.block.data, p->open.block.len);
    if (closed) ms_text_puts(&p->content, close_name);
    p->gap.len = 0;
}

static ms_status close_call(mimo_parser *p, ms_error *err) {
    p->state = CONTENT;
    if (!mimo_call_end(&p->open)) {
        block_to_text(p, true);
        return MS_OK;
    }
    p->gap.len = 0;
    p->behind_call = true;
    return add_call(p, err);
}

/* ------------------------------------------------------------------ text */

static void deliver_content(mimo_parser *p, const char *s, size_t len) {
    size_t blank = 0;
    while (p->behind_call && blank < len && mimo_is_space(s[blank])) blank++;
    ms_text_append(&p->gap, s, blank);
    s += blank;
    len -= blank;
    if (!len) return;
    p->behind_call = false;
    ms_text_append(&p->content, p->gap.data, p->gap.len);
    p->gap.len = 0;
    ms_text_append(&p->content, s, len);
}

static void deliver(mimo_parser *p, const char *s, size_t len) {
    if (!len) return;
    p->fresh = false;
    switch (p->state) {
    case REASONING:
        ms_text_append(&p->reasoning, s, len);
        break;
    case CONTENT:
        deliver_content(p, s, len);
        break;
    case CALL:
        mimo_call_push(&p->open, s, len);
        break;
    }
}

static void deliver_decided(mimo_parser *p) {
    deliver(p, p->decided.data, p->decided.len);
    p->decided.len = 0;
}

static ms_status take_control(mimo_parser *p, uint32_t id, const char *name, ms_error *err) {
    ms_utf8_stream_end(&p->utf8, &p->decided);
    deliver_decided(p);
    if (id == p->end) {
        p->over = true;
    } else if (p->state == REASONING && id == p->think && p->fresh) {
        p->fresh = false;
    } else if (p->state == REASONING && id == p->end_think) {
        p->state = CONTENT;
    } else if (p->state == CONTENT && id == p->call) {
        p->state = CALL;
        mimo_call_begin(&p->open, p->tools ? ms_json_root(p->tools) : NULL);
    } else if (p->state == CALL && id == p->end_call) {
        return close_call(p, err);
    } else if (!ms_tokenizer_control_hidden(p->tokenizer, id)) {
        deliver(p, name, strlen(name));
    }
    return MS_OK;
}

/* Whose text an ordinary id is now. */
static ms_channel text_channel(const mimo_parser *p) {
    static const ms_channel channels[] = {
        [REASONING] = MS_CHANNEL_THINK, [CONTENT] = MS_CHANNEL_RESPONSE, [CALL] = MS_CHANNEL_NONE};
    return channels[p->state];
}

/* What was added behind the given lengths. */
static ms_status give_delta(mimo_parser *p, ms_reply_delta *delta, size_t reasoning, size_t content, ms_error *err) {
    const ms_text *const texts[] = {&p->reasoning,  &p->content,   &p->gap,           &p->decided,
                                    &p->open.block, &p->open.name, &p->open.arguments};
    bool failed = false;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) failed |= texts[i]->failed;
    if (delta) {
        delta->reasoning.len = delta->content.len = 0;
        if (p->reasoning.len > reasoning)
            ms_text_append(&delta->reasoning, p->reasoning.data + reasoning, p->reasoning.len - reasoning);
        if (p->content.len > content)
            ms_text_append(&delta->content, p->content.data + content, p->content.len - content);
        failed |= delta->reasoning.failed || delta->content.failed;
    }
    return failed ? ms_fail_memory(err, "a reply", p->reasoning.len + p->content.len) : MS_OK;
}

ms_status mimo_parser_push(mimo_parser *p, uint32_t id, ms_reply_delta *delta, bool *done, ms_error *err) {
    size_t reasoning = p->reasoning.len, content = p->content.len, len;
    const char *name = ms_tokenizer_control_name(p->tokenizer, id);
    const uint8_t *bytes = ms_tokenizer_token(p->tokenizer, id, &len);
    if (!name && !bytes)
        return ms_fail(err, MS_ERR_USAGE, "token id %u: the tokenizer has no such token", (unsigned)id);
    if (delta) delta->channel = p->over || name ? MS_CHANNEL_NONE : text_channel(p);
    if (!p->over && name) {
        MS_TRY(take_control(p, id, name, err));
    } else if (!p->over) {
        ms_utf8_stream_push(&p->utf8, bytes, len, &p->decided);
        deliver_decided(p);
    }
    *done = p->over;
    if (delta) delta->in_tools = p->state == CALL || p->behind_call;
    return give_delta(p, delta, reasoning, content, err);
}

static void hand_over(char **to, size_t *len, ms_text *text) {
    *to = text->data;
    *len = text->len;
    *text = (ms_text){0};
}

ms_status mimo_parser_finish(mimo_parser *p, ms_reply_delta *delta, ms_reply *out, ms_error *err) {
    size_t reasoning = p->reasoning.len, content = p->content.len;
    if (delta) delta->channel = MS_CHANNEL_NONE, delta->in_tools = false;
    *out = (ms_reply){.status = p->over ? MS_REPLY_COMPLETE : MS_REPLY_TRUNCATED};
    ms_utf8_stream_end(&p->utf8, &p->decided);
    deliver_decided(p);
    if (p->state == CALL) {
        block_to_text(p, false);
        out->recovered = true;
        p->state = CONTENT;
    }
    ms_text_append(&p->reasoning, "", 0); /* NUL-terminated also when empty */
    ms_text_append(&p->content, "", 0);
    MS_TRY(give_delta(p, delta, reasoning, content, err));
    hand_over(&out->reasoning, &out->reasoning_len, &p->reasoning);
    hand_over(&out->content, &out->content_len, &p->content);
    out->calls = p->calls;
    out->call_count = p->call_count;
    p->calls = NULL;
    p->call_count = p->call_cap = 0;
    return MS_OK;
}

void mimo_parser_calls(const mimo_parser *p, ms_call_view *out) {
    const mimo_call *c = &p->open;
    *out = (ms_call_view){.whole = p->calls, .count = p->call_count};
    if (p->over || p->state != CALL || c->phase < MIMO_CALL_FIRST || c->phase == MIMO_CALL_BROKEN) return;
    out->name = c->name.data;
    out->name_len = c->name.len;
    out->arguments = c->arguments.data ? c->arguments.data : "";
    out->arguments_len = c->arguments.len;
}
