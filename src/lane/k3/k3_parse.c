/* k3_parse.c: reads a generated Kimi K3 message id by id (docs/formats.md, "K3 chat").
 *
 * Owns: a parser owns its buffers until k3_parser_finish hands the reply over.
 * Threads: a parser belongs to one thread.
 * Invariants: only control ids are structure; text that spells a marker is text.  Text appended to reasoning
 * or content is final, so a delta is the part that a push added.
 * Errors: bad output of the model is part of the reply; MS_ERR_USAGE for an id that the model does not have.
 */
#include "lane/k3/k3_chat.h"

#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

typedef enum state {
    ST_THINK, ST_IDLE, ST_RESPONSE, ST_EPILOGUE, ST_TOOLS, ST_CALL, ST_ARGUMENT, ST_JSON, ST_DONE
} state;

typedef enum tag_kind { TAG_NONE, TAG_OPEN, TAG_CLOSE } tag_kind;

/* The call being read. */
typedef struct open_call {
    ms_text name, arguments; /* arguments: JSON text so far, without the last brace, or the json child's text */
    bool has_json, has_arguments;
} open_call;

struct k3_parser {
    const ms_tokenizer *tokenizer;
    uint32_t first_control;
    state state;
    bool over; /* end-of-message id or a malformed point: nothing more is read */
    bool recovered;
    const char *error; /* malformed */
    bool malformed;
    tag_kind tag;  /* a header is being read */
    ms_text header;
    ms_utf8_stream utf8;
    ms_text decided; /* scratch of one push */
    ms_text reasoning, content;
    open_call call;
    ms_text key, value; /* the open argument; value: only what is no string, which is JSON when it is complete */
    bool is_text;       /* its type is string or missing */
    ms_tool_call *calls;
    size_t call_count, call_cap;
    ms_error *err; /* of the running call */
    bool failed;   /* no memory: *err is filled */
};

/* ------------------------------------------------------------------ small steps */

static void clear(ms_text *t) {
    t->len = 0;
    if (t->data) t->data[0] = 0;
}

static void fail(k3_parser *p, const char *what, size_t bytes) {
    if (!p->failed) (void)ms_fail_memory(p->err, what, bytes);
    p->failed = true;
}

static void malformed(k3_parser *p, const char *error) {
    p->malformed = p->over = true;
    p->error = error;
    p->tag = TAG_NONE;
}

static bool in_call(const k3_parser *p) {
    return p->state == ST_CALL || p->state == ST_ARGUMENT || p->state == ST_JSON;
}

static bool is_blank(const char *s, size_t len) {
    for (size_t i = 0; i < len; i++) {
        if (s[i] != ' ' && (s[i] < '\t' || s[i] > '\r')) return false;
    }
    return true;
}

/* A piece of a JSON string, without its quotes. */
static void append_escaped(ms_text *out, const char *s, size_t len) {
    size_t at = out->len;
    ms_json_write_string(out, s, len);
    if (out->failed) return;
    memmove(out->data + at, out->data + at + 1, out->len - at - 2);
    out->len -= 2;
    out->data[out->len] = 0;
}

/* Text of the current state. */
static void deliver(k3_parser *p, const char *s, size_t len) {
    if (!len || p->over) return;
    switch (p->state) {
    case ST_THINK: ms_text_append(&p->reasoning, s, len); break;
    case ST_IDLE: p->recovered = true; ms_text_append(&p->content, s, len); break;
    case ST_RESPONSE: ms_text_append(&p->content, s, len); break;
    case ST_EPILOGUE:
    case ST_TOOLS: p->recovered = true; break;
    case ST_CALL:
        if (is_blank(s, len)) p->recovered = true;
        else malformed(p, "bad_call_body");
        break;
    case ST_ARGUMENT:
        if (p->is_text) append_escaped(&p->call.arguments, s, len);
        else ms_text_append(&p->value, s, len);
        break;
    case ST_JSON: ms_text_append(&p->call.arguments, s, len); break;
    case ST_DONE: break;
    }
}

/* A marker or tag that has no meaning here is text by its spelling. */
static void literal(k3_parser *p, const char *before, const ms_text *middle, const char *after) {
    if (p->over || p->state == ST_DONE) return;
    if (p->state == ST_CALL) {
        malformed(p, "bad_call_body");
        return;
    }
    p->recovered = true;
    deliver(p, before, strlen(before));
    if (middle) deliver(p, middle->data, middle->len);
    deliver(p, after, strlen(after));
}

static const char *tag_spelling(tag_kind tag) { return tag == TAG_OPEN ? "<|open|>" : "<|close|>"; }

/* The started tag has no separator: its marker is alone, what follows it is text. */
static void spill_tag(k3_parser *p) {
    if (p->tag == TAG_NONE) return;
    tag_kind tag = p->tag;
    p->tag = TAG_NONE;
    literal(p, tag_spelling(tag), &p->header, "");
}

/* Decided bytes go into the header while there is one. */
static void take_decided(k3_parser *p) {
    if (p->decided.failed) fail(p, "decoded text", p->decided.len);
    if (p->tag != TAG_NONE) ms_text_append(&p->header, p->decided.data, p->decided.len);
    else deliver(p, p->decided.data, p->decided.len);
    clear(&p->decided);
}

/* ------------------------------------------------------------------ headers */

static bool is_space(char c) { return is_blank(&c, 1); }

typedef struct header_attrs {
    const char *tool, *key, *type; /* still escaped; NULL: absent; of repeats the last */
    size_t tool_len, key_len, type_len;
} header_attrs;

/* Length of the name at the start of a header. */
static size_t name_length(const ms_text *h) {
    size_t n = 0;
    while (n < h->len && !is_space(h->data[n])) n++;
    return n;
}

/* One ` key="value"`; moves *at behind it. */
static bool read_attr(const ms_text *h, size_t *at, header_attrs *out) {
    size_t key = *at, i = key;
    while (i < h->len && !is_space(h->data[i]) && h->data[i] != '=' && h->data[i] != '"') i++;
    size_t key_len = i - key;
    if (!key_len || h->len - i < 2 || h->data[i] != '=' || h->data[i + 1] != '"') return false;
    const char *value = h->data + i + 2, *quote = memchr(value, '"', h->len - i - 2);
    if (!quote) return false;
    size_t value_len = (size_t)(quote - value);
    const char *name = h->data + key;
    if (key_len == 4 && memcmp(name, "tool", 4) == 0) {
        out->tool = value;
        out->tool_len = value_len;
    } else if (key_len == 4 && memcmp(name, "type", 4) == 0) {
        out->type = value;
        out->type_len = value_len;
    } else if (key_len == 3 && memcmp(name, "key", 3) == 0) {
        out->key = value;
        out->key_len = value_len;
    }
    *at = (size_t)(quote + 1 - h->data);
    return true;
}

/* The attributes behind the name; false when they are not a list of key="value" with white space before each. */
static bool read_attrs(const ms_text *h, size_t at, header_attrs *out) {
    *out = (header_attrs){0};
    while (at < h->len) {
        size_t start = at;
        while (at < h->len && is_space(h->data[at])) at++;
        if (at == h->len) return true;
        if (at == start || !read_attr(h, &at, out)) return false;
    }
    return true;
}

/* Only the two entities that the renderer writes. */
static void unescape(ms_text *out, const char *s, size_t len) {
    clear(out);
    ms_text_append(out, "", 0);
    for (size_t i = 0; i < len; i++) {
        if (s[i] == '&' && len - i >= 6 && memcmp(s + i, "&quot;", 6) == 0) {
            ms_text_append(out, "\"", 1);
            i += 5;
        } else if (s[i] == '&' && len - i >= 5 && memcmp(s + i, "&amp;", 5) == 0) {
            ms_text_append(out, "&", 1);
            i += 4;
        } else {
            ms_text_append(out, s + i, 1);
        }
    }
}

/* ------------------------------------------------------------------ calls */

static void open_call_tag(k3_parser *p, const header_attrs *a) {
    unescape(&p->call.name, a->tool ? a->tool : "", a->tool ? a->tool_len : 0);
    clear(&p->call.arguments);
    p->call.has_json = p->call.has_arguments = false;
    p->state = ST_CALL;
}

static void open_argument(k3_parser *p, const header_attrs *a) {
    if (!a->key || p->call.has_json) {
        malformed(p, "bad_call_body");
        return;
    }
    unescape(&p->key, a->key, a->key_len);
    p->is_text = !a->type || (a->type_len == 6 && memcmp(a->type, "string", 6) == 0);
    clear(&p->value);
    ms_text *out = &p->call.arguments;
    ms_text_append(out, p->call.has_arguments ? "," : "{", 1);
    ms_json_write_string(out, p->key.data, p->key.len);
    ms_text_append(out, p->is_text ? ":\"" : ":", p->is_text ? 2 : 1);
    p->call.has_arguments = true;
    p->state = ST_ARGUMENT;
}

static void open_json(k3_parser *p) {
    if (p->call.has_json || p->call.has_arguments) {
        malformed(p, "bad_call_body");
        return;
    }
    clear(&p->value);
    p->state = ST_JSON;
}

/* The value's own literal keeps its spelling, so that rendering the call again gives the same ids. */
static void close_argument(k3_parser *p) {
    ms_text *out = &p->call.arguments;
    p->state = ST_CALL;
    if (p->is_text) {
        ms_text_append(out, "\"", 1);
        return;
    }
    ms_json_doc *doc = NULL;
    static const ms_json_limits limits = {.max_depth = MS_JSON_MAX_DEPTH};
    ms_status status = ms_json_parse(&doc, p->value.data, p->value.len, "argument", &limits, NULL);
    if (status == MS_ERR_MEMORY) fail(p, "an argument", p->value.len);
    if (status != MS_OK) p->recovered = true;
    const ms_json *v = ms_json_root(doc);
    if (v) ms_text_append(out, v->raw, v->raw_len);
    else ms_json_write_string(out, p->value.data, p->value.len);
    ms_json_free(doc);
}

static void close_json(k3_parser *p) {
    p->call.has_json = true;
    p->state = ST_CALL;
}

static char *copy_text(k3_parser *p, const char *s, size_t len) {
    char *copy = len < SIZE_MAX ? malloc(len + 1) : NULL;
    if (!copy) {
        fail(p, "a tool call", len);
        return NULL;
    }
    if (len) memcpy(copy, s, len);
    copy[len] = 0;
    return copy;
}

static void close_call(k3_parser *p) {
    p->state = ST_TOOLS;
    if (!p->call.name.len) { /* nobody could run it */
        p->recovered = true;
        return;
    }
    if (p->call_count == p->call_cap) {
        size_t cap = p->call_cap ? p->call_cap * 2 : 4;
        ms_tool_call *calls = realloc(p->calls, cap * sizeof *calls);
        if (!calls) {
            fail(p, "the list of calls", cap * sizeof *calls);
            return;
        }
        p->calls = calls;
        p->call_cap = cap;
    }
    ms_text whole = {0};
    ms_text_append(&whole, p->call.arguments.data, p->call.arguments.len);
    if (!p->call.has_json) ms_text_puts(&whole, p->call.has_arguments ? "}" : "{}");
    if (whole.failed || p->call.arguments.failed) fail(p, "arguments of a call", whole.len);
    ms_tool_call *c = &p->calls[p->call_count];
    c->name = copy_text(p, p->call.name.data, p->call.name.len);
    c->name_len = p->call.name.len;
    c->arguments = copy_text(p, whole.data, whole.len);
    c->arguments_len = whole.len;
    p->call_count++;
    ms_text_free(&whole);
}

/* ------------------------------------------------------------------ moves */

static bool named(const ms_text *h, size_t name_len, const char *name) {
    return strlen(name) == name_len && memcmp(h->data, name, name_len) == 0;
}

/* Moves to `next`; `regular` is false for a move that repairs the message. */
static bool move(k3_parser *p, state next, bool regular) {
    p->state = next;
    if (!regular) p->recovered = true;
    return true;
}

/* A complete opening tag; false: it has no meaning in this state. */
static bool open_tag(k3_parser *p) {
    const ms_text *h = &p->header;
    size_t n = name_length(h);
    header_attrs a;
    bool well_formed = read_attrs(h, n, &a);
    if (p->state == ST_TOOLS && named(h, n, "call")) {
        if (well_formed) open_call_tag(p, &a);
        else malformed(p, "bad_call_header");
        return true;
    }
    if (!well_formed) return false;
    if (p->state == ST_CALL) {
        if (named(h, n, "argument")) open_argument(p, &a);
        else if (named(h, n, "json")) open_json(p);
        else return false;
        return true;
    }
    bool think = p->state == ST_THINK, idle = p->state == ST_IDLE;
    if (idle && named(h, n, "think")) return move(p, ST_THINK, true);
    if ((idle || think) && named(h, n, "response")) return move(p, ST_RESPONSE, idle);
    if ((idle || think || p->state == ST_RESPONSE) && named(h, n, "tools")) return move(p, ST_TOOLS, false);
    if (p->state == ST_EPILOGUE && named(h, n, "tools")) return move(p, ST_TOOLS, true);
    return false;
}

/* A complete closing tag, as above.  It has no attributes. */
static bool close_tag(k3_parser *p) {
    const ms_text *h = &p->header;
    size_t n = h->len;
    bool message = named(h, n, "message");
    switch (p->state) {
    case ST_THINK: return named(h, n, "think") && move(p, ST_IDLE, true);
    case ST_IDLE: return message && move(p, ST_DONE, false);
    case ST_RESPONSE:
        if (message) return move(p, ST_DONE, false);
        return named(h, n, "response") && move(p, ST_EPILOGUE, true);
    case ST_EPILOGUE: return message && move(p, ST_DONE, true);
    case ST_TOOLS:
        if (message) return move(p, ST_DONE, false);
        return named(h, n, "tools") && move(p, ST_EPILOGUE, true);
    case ST_CALL:
        if (!named(h, n, "call")) return false;
        close_call(p);
        return true;
    case ST_ARGUMENT:
        if (!named(h, n, "argument")) return false;
        close_argument(p);
        return true;
    case ST_JSON:
        if (!named(h, n, "json")) return false;
        close_json(p);
        return true;
    case ST_DONE: break;
    }
    return false;
}

static void end_tag(k3_parser *p) {
    tag_kind tag = p->tag;
    p->tag = TAG_NONE;
    if (tag == TAG_NONE) {
        literal(p, "", NULL, "<|sep|>");
        return;
    }
    ms_text_append(&p->header, "", 0); /* so that an empty header has an address */
    if (p->header.failed) {
        fail(p, "a tag", p->header.len);
        return;
    }
    bool known = tag == TAG_OPEN ? open_tag(p) : close_tag(p);
    if (!known) literal(p, tag_spelling(tag), &p->header, "<|sep|>");
}

static void end_message(k3_parser *p) {
    if (in_call(p)) {
        malformed(p, "incomplete_call");
        return;
    }
    spill_tag(p);
    if (p->state != ST_DONE) p->recovered = true;
    p->over = true;
}

static void control_id(k3_parser *p, uint32_t offset) {
    ms_utf8_stream_end(&p->utf8, &p->decided);
    take_decided(p);
    if (p->over) return;
    switch (offset) {
    case MS_CTL_OPEN:
    case MS_CTL_CLOSE:
        spill_tag(p);
        if (p->over) return;
        p->tag = offset == MS_CTL_OPEN ? TAG_OPEN : TAG_CLOSE;
        clear(&p->header);
        return;
    case MS_CTL_SEP: end_tag(p); return;
    case MS_CTL_END_OF_MSG:
    case MS_CTL_EOS:
    case MS_CTL_EOT: end_message(p); return;
    default:
        if (p->state != ST_DONE) p->recovered = true;
    }
}

/* ------------------------------------------------------------------ interface */

ms_status k3_parser_create(k3_parser **out, const ms_tokenizer *t, ms_channel channel, ms_error *err) {
    *out = NULL;
    k3_parser *p = calloc(1, sizeof *p);
    if (!p) return ms_fail_memory(err, "a reply parser", sizeof *p);
    p->tokenizer = t;
    p->first_control = ms_tokenizer_ranks(t);
    p->state = channel == MS_CHANNEL_THINK ? ST_THINK : channel == MS_CHANNEL_RESPONSE ? ST_RESPONSE : ST_IDLE;
    *out = p;
    return MS_OK;
}

static void fill_delta(k3_parser *p, ms_reply_delta *delta, size_t reasoning, size_t content) {
    if (!delta) return;
    if (p->reasoning.len > reasoning) {
        ms_text_append(&delta->reasoning, p->reasoning.data + reasoning, p->reasoning.len - reasoning);
    }
    if (p->content.len > content) {
        ms_text_append(&delta->content, p->content.data + content, p->content.len - content);
    }
    if (delta->reasoning.failed || delta->content.failed) fail(p, "new text of a reply", p->content.len);
}

static void clear_delta(ms_reply_delta *delta) {
    if (!delta) return;
    clear(&delta->reasoning);
    clear(&delta->content);
    delta->channel = MS_CHANNEL_NONE;
    delta->in_tools = false;
}

/* Whose text an ordinary id is now. */
static ms_channel text_channel(const k3_parser *p) {
    if (p->tag != TAG_NONE) return MS_CHANNEL_NONE;
    if (p->state == ST_THINK) return MS_CHANNEL_THINK;
    return p->state == ST_RESPONSE || p->state == ST_IDLE ? MS_CHANNEL_RESPONSE : MS_CHANNEL_NONE;
}

static ms_status check_memory(k3_parser *p) {
    const ms_text *all[] = {&p->header, &p->decided, &p->reasoning, &p->content,
                            &p->call.name, &p->call.arguments, &p->key, &p->value};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (all[i]->failed) fail(p, "text of a reply", all[i]->len);
    }
    return p->failed ? MS_ERR_MEMORY : MS_OK;
}

ms_status k3_parser_push(k3_parser *p, uint32_t id, ms_reply_delta *delta, bool *done, ms_error *err) {
    clear_delta(delta);
    *done = p->over;
    if (id >= p->first_control && id - p->first_control >= MS_CONTROL_COUNT) {
        return ms_fail(err, MS_ERR_USAGE, "generated id: expected less than %u, found %u",
                       p->first_control + MS_CONTROL_COUNT, id);
    }
    if (p->over) return MS_OK;
    p->err = err;
    size_t reasoning = p->reasoning.len, content = p->content.len;
    if (id < p->first_control) {
        if (delta) delta->channel = text_channel(p);
        size_t len;
        const uint8_t *bytes = ms_tokenizer_token(p->tokenizer, id, &len);
        ms_utf8_stream_push(&p->utf8, bytes, len, &p->decided);
        take_decided(p);
    } else {
        control_id(p, id - p->first_control);
    }
    fill_delta(p, delta, reasoning, content);
    if (delta) delta->in_tools = p->state == ST_TOOLS || in_call(p);
    *done = p->over;
    return check_memory(p);
}

static ms_status hand_over(k3_parser *p, ms_reply *out) {
    ms_text_append(&p->reasoning, "", 0);
    ms_text_append(&p->content, "", 0);
    MS_TRY(check_memory(p));
    bool ended = p->over || p->state == ST_DONE;
    out->status = p->malformed ? MS_REPLY_MALFORMED : ended ? MS_REPLY_COMPLETE : MS_REPLY_TRUNCATED;
    out->error = p->malformed ? p->error : !ended && in_call(p) ? "incomplete_call" : NULL;
    out->recovered = p->recovered;
    out->reasoning = p->reasoning.data;
    out->reasoning_len = p->reasoning.len;
    out->content = p->content.data;
    out->content_len = p->content.len;
    out->calls = p->calls;
    out->call_count = p->call_count;
    p->reasoning = p->content = (ms_text){0};
    p->calls = NULL;
    p->call_count = p->call_cap = 0;
    return MS_OK;
}

ms_status k3_parser_finish(k3_parser *p, ms_reply_delta *delta, ms_reply *out, ms_error *err) {
    *out = (ms_reply){0};
    clear_delta(delta);
    p->err = err;
    size_t reasoning = p->reasoning.len, content = p->content.len;
    if (!p->over) {
        /* A header that was cut is not text: it goes with the code point that may end it. */
        ms_utf8_stream_end(&p->utf8, &p->decided);
        take_decided(p);
    }
    fill_delta(p, delta, reasoning, content);
    return hand_over(p, out);
}

void k3_parser_calls(const k3_parser *p, ms_call_view *out) {
    *out = (ms_call_view){.whole = p->calls, .count = p->call_count};
    if (p->over || !in_call(p) || !p->call.name.len) return;
    out->name = p->call.name.data;
    out->name_len = p->call.name.len;
    out->arguments = p->call.arguments.data ? p->call.arguments.data : "";
    out->arguments_len = p->call.arguments.len;
}

void k3_parser_destroy(k3_parser *p) {
    if (!p) return;
    ms_reply calls = {.calls = p->calls, .call_count = p->call_count};
    ms_reply_free(&calls);
    ms_text *all[] = {&p->header, &p->decided, &p->reasoning, &p->content,
                      &p->call.name, &p->call.arguments, &p->key, &p->value};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) ms_text_free(all[i]);
    free(p);
}
