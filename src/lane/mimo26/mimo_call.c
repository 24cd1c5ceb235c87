#include "lane/mimo26/mimo_call.h"

#include <string.h>

#include "lane/mimo26/mimo_chat.h"

static const char end_value[] = "</parameter>", end_function[] = "</function>";

bool mimo_is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

static void clear(ms_text *t) { t->len = 0; }

void mimo_call_begin(mimo_call *c, const ms_json *tools) {
    ms_text block = c->block, name = c->name, arguments = c->arguments;
    *c = (mimo_call){.tools = tools, .block = block, .name = name, .arguments = arguments};
    clear(&c->block);
    clear(&c->name);
    clear(&c->arguments);
}

void mimo_call_free(mimo_call *c) {
    ms_text_free(&c->block);
    ms_text_free(&c->name);
    ms_text_free(&c->arguments);
}

/* ------------------------------------------------------------------ declarations */

bool mimo_argument_is_text(const ms_json *parameters, const char *key, size_t key_len) {
    const ms_json *properties = ms_json_get(parameters, "properties"), *schema = NULL;
    for (const ms_json *v = properties && properties->type == MS_JSON_OBJECT ? properties->child : NULL; v; v = v->next)
        if (v->key_len == key_len && memcmp(v->key, key, key_len) == 0) schema = v;
    const ms_json *type = ms_json_get(schema, "type");
    if (ms_json_is_string(type, "string")) return true;
    for (const ms_json *t = type && type->type == MS_JSON_ARRAY ? type->child : NULL; t; t = t->next)
        if (ms_json_is_string(t, "string")) return true;
    return false;
}

/* The declared parameters of a tool, or NULL. */
static const ms_json *parameters_of(const ms_json *tools, const char *name, size_t name_len) {
    for (const ms_json *t = tools && tools->type == MS_JSON_ARRAY ? tools->child : NULL; t; t = t->next) {
        const ms_json *f = ms_json_get(t, "function"), *tool = f ? f : t, *n = ms_json_get(tool, "name");
        if (!n || n->type != MS_JSON_STRING || n->str_len != name_len || memcmp(n->str, name, name_len) != 0) continue;
        const ms_json *parameters = ms_json_get(tool, "parameters");
        return parameters ? parameters : ms_json_get(tool, "input_schema");
    }
    return NULL;
}

/* ------------------------------------------------------------------ reading */

static const char *rest(const mimo_call *c) { return c->block.data + c->at; }
static size_t left(const mimo_call *c) { return c->block.len - c->at; }

static bool go(mimo_call *c, mimo_call_phase phase) {
    c->phase = phase;
    c->seen = c->at;
    return true;
}

static void skip_space(mimo_call *c) {
    while (left(c) && mimo_is_space(*rest(c))) c->at++;
}

typedef enum found { FOUND_NO, FOUND_MAYBE, FOUND_YES } found;

/* Whether a word comes here; passes it when it does. */
static found take(mimo_call *c, const char *word) {
    size_t n = strlen(word), have = left(c) < n ? left(c) : n;
    if (memcmp(rest(c), word, have) != 0) return FOUND_NO;
    if (have < n) return FOUND_MAYBE;
    c->at += n;
    return FOUND_YES;
}

/* Bytes up to the next `end`; false: it has not come. */
static bool until(mimo_call *c, const char *end, size_t *len) {
    size_t n = strlen(end);
    const char *from = c->block.data + c->seen, *hit = memmem(from, c->block.len - c->seen, end, n);
    if (hit) {
        *len = (size_t)(hit - rest(c));
        return true;
    }
    if (c->block.len - c->seen >= n) c->seen = c->block.len - n + 1; /* its beginning may be there */
    return false;
}

/* Bytes at the end of what came that may be the beginning of `end`. */
static size_t held_back(const mimo_call *c, const char *end) {
    size_t n = strlen(end) - 1;
    if (n > left(c)) n = left(c);
    while (n && memcmp(c->block.data + c->block.len - n, end, n) != 0) n--;
    return n;
}

/* A piece of a JSON string, without its quotes. */
static void append_escaped(ms_text *out, const char *s, size_t len) {
    size_t at = out->len;
    ms_json_write_string(out, s, len);
    if (out->failed) return;
    memmove(out->data + at, out->data + at + 1, out->len - at - 2);
    out->len -= 2;
}

static const ms_json_limits deep = {.max_depth = MS_JSON_MAX_DEPTH};

/* JSON when it parses, by the model's own spelling. */
static void put_value(ms_text *out, const char *value, size_t len) {
    ms_json_doc *doc = NULL;
    if (ms_json_parse(&doc, value, len, "value", &deep, NULL) == MS_OK)
        ms_text_append(out, ms_json_root(doc)->raw, ms_json_root(doc)->raw_len);
    else
        ms_json_write_string(out, value, len);
    ms_json_free(doc);
}

/* Each reads one part; false: more must come before it can be read. */

static bool read_head(mimo_call *c) {
    skip_space(c);
    found f = take(c, "<function=");
    if (f == FOUND_MAYBE) return false;
    return go(c, f == FOUND_YES ? MIMO_CALL_NAME : MIMO_CALL_BROKEN);
}

static bool read_name(mimo_call *c) {
    size_t len;
    if (!until(c, ">", &len)) return false;
    if (!len) return go(c, MIMO_CALL_BROKEN);
    ms_text_append(&c->name, rest(c), len);
    c->parameters = parameters_of(c->tools, c->name.data, c->name.len);
    c->at += len + 1;
    return go(c, MIMO_CALL_FIRST);
}

static bool read_member(mimo_call *c) {
    skip_space(c);
    if (c->phase == MIMO_CALL_FIRST && left(c) && *rest(c) == '{') {
        c->is_object = true;
        return go(c, MIMO_CALL_OBJECT);
    }
    found parameter = take(c, "<parameter=");
    if (parameter == FOUND_YES) return go(c, MIMO_CALL_KEY);
    found end = take(c, end_function);
    if (end == FOUND_YES) {
        ms_text_puts(&c->arguments, c->phase == MIMO_CALL_FIRST ? "{}" : "}");
        return go(c, MIMO_CALL_AFTER);
    }
    if (parameter == FOUND_MAYBE || end == FOUND_MAYBE) return false;
    return go(c, MIMO_CALL_BROKEN);
}

static bool read_key(mimo_call *c) {
    size_t len;
    if (!until(c, ">", &len)) return false;
    ms_text_puts(&c->arguments, c->arguments.len ? "," : "{");
    ms_json_write_string(&c->arguments, rest(c), len);
    c->is_text = mimo_argument_is_text(c->parameters, rest(c), len);
    ms_text_puts(&c->arguments, c->is_text ? ":\"" : ":");
    c->at += len + 1;
    return go(c, MIMO_CALL_VALUE);
}

static bool read_value(mimo_call *c) {
    size_t len;
    bool whole = until(c, end_value, &len);
    if (!whole && !c->is_text) return false;
    if (!whole) len = left(c) - held_back(c, end_value);
    if (c->is_text)
        append_escaped(&c->arguments, rest(c), len);
    else
        put_value(&c->arguments, rest(c), len);
    c->at += len;
    if (!whole) return false;
    if (c->is_text) ms_text_puts(&c->arguments, "\"");
    c->at += strlen(end_value);
    return go(c, MIMO_CALL_MEMBER);
}

/* Braces and strings tell where an object ends; whether it is one is looked at when all is there. */
static bool read_object(mimo_call *c) {
    size_t n = 0;
    bool whole = false;
    for (; n < left(c) && !whole; n++) {
        char b = rest(c)[n];
        if (c->escaped)
            c->escaped = false;
        else if (c->in_string && b == '\\')
            c->escaped = true;
        else if (b == '"')
            c->in_string = !c->in_string;
        else if (!c->in_string && (b == '{' || b == '['))
            c->depth++;
        else if (!c->in_string && (b == '}' || b == ']'))
            whole = --c->depth == 0;
    }
    ms_text_append(&c->arguments, rest(c), n);
    c->at += n;
    return whole && go(c, MIMO_CALL_END);
}

static bool read_end(mimo_call *c) {
    skip_space(c);
    found f = take(c, end_function);
    if (f == FOUND_MAYBE) return false;
    return go(c, f == FOUND_YES ? MIMO_CALL_AFTER : MIMO_CALL_BROKEN);
}

static bool read_after(mimo_call *c) {
    skip_space(c);
    return left(c) && go(c, MIMO_CALL_BROKEN);
}

static bool read_part(mimo_call *c) {
    switch (c->phase) {
    case MIMO_CALL_HEAD:
        return read_head(c);
    case MIMO_CALL_NAME:
        return read_name(c);
    case MIMO_CALL_FIRST:
    case MIMO_CALL_MEMBER:
        return read_member(c);
    case MIMO_CALL_KEY:
        return read_key(c);
    case MIMO_CALL_VALUE:
        return read_value(c);
    case MIMO_CALL_OBJECT:
        return read_object(c);
    case MIMO_CALL_END:
        return read_end(c);
    case MIMO_CALL_AFTER:
        return read_after(c);
    case MIMO_CALL_BROKEN:
        break;
    }
    return false;
}

static bool has_memory(const mimo_call *c) { return !c->block.failed && !c->name.failed && !c->arguments.failed; }

void mimo_call_push(mimo_call *c, const char *text, size_t len) {
    ms_text_append(&c->block, text, len);
    while (has_memory(c) && read_part(c)) {}
}

bool mimo_call_end(mimo_call *c) {
    if (c->phase != MIMO_CALL_AFTER || !has_memory(c)) return false;
    if (!c->is_object) return true;
    ms_json_doc *doc = NULL;
    bool good = ms_json_parse(&doc, c->arguments.data, c->arguments.len, "arguments", &deep, NULL) == MS_OK;
    ms_json_free(doc);
    return good;
}
