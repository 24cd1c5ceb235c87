/* json.c: the reader of json.h.
 *
 * One pass over the bytes with an explicit stack of open containers; nodes and decoded strings come from an
 * arena of growing chunks that the document owns.
 * Threads: a parse touches only its own document; a finished document is never written.
 * Invariants: a node is linked to its parent as soon as its value begins, so freeing the arena frees all.
 * Errors: "name: line L, column C: expected ..., found ...".
 */
#include "base/json.h"

#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

typedef struct chunk chunk;
struct chunk {
    chunk *next;
    size_t used, size;
    char data[];
};

struct ms_json_doc {
    chunk *chunks; /* newest first */
    const ms_json *root;
    const char *end;
};

typedef struct open_node {
    ms_json *node;
    ms_json *last; /* last child so far */
} open_node;

typedef struct parser {
    ms_json_doc *doc;
    const char *text, *pos, *end;
    const char *name;
    ms_json_limits limits;
    size_t nodes;
    open_node *stack;
    unsigned depth, stack_cap;
    ms_error *err;
    ms_json_report report;
} parser;

/* ------------------------------------------------------------------ arena */

enum { ARENA_CHUNK_MAX = 1 << 20 };

/* Every request is rounded up so that the next one is aligned for a node. */
static void *arena_alloc(ms_json_doc *doc, size_t bytes) {
    if (bytes > SIZE_MAX - 7) return NULL;
    bytes = (bytes + 7) & ~(size_t)7;
    chunk *c = doc->chunks;
    if (!c || c->size - c->used < bytes) {
        size_t size = !c ? 4096 : c->size < ARENA_CHUNK_MAX / 2 ? c->size * 2 : ARENA_CHUNK_MAX;
        if (size < bytes) size = bytes;
        if (size > SIZE_MAX - sizeof *c) return NULL;
        c = malloc(sizeof *c + size);
        if (!c) return NULL;
        *c = (chunk){.next = doc->chunks, .size = size};
        doc->chunks = c;
    }
    void *p = c->data + c->used;
    c->used += bytes;
    return p;
}

/* Gives back the tail of the newest allocation: `start` keeps `bytes`. */
static void arena_trim(ms_json_doc *doc, const char *start, size_t bytes) {
    size_t used = (size_t)(start - doc->chunks->data) + bytes;
    used = (used + 7) & ~(size_t)7;
    if (used < doc->chunks->used) doc->chunks->used = used;
}

/* ------------------------------------------------------------------ members by key */

typedef struct member {
    const ms_json *value;
    size_t order; /* in the source; of the first, when a key is repeated */
} member;

static bool same_key(const ms_json *a, const ms_json *b) {
    return a->key_len == b->key_len && memcmp(a->key, b->key, a->key_len) == 0;
}

static int by_order(const void *pa, const void *pb) {
    const member *a = pa, *b = pb;
    return a->order < b->order ? -1 : a->order > b->order;
}

/* Byte order of UTF-8 is code point order. */
static int by_key(const void *pa, const void *pb) {
    const ms_json *a = ((const member *)pa)->value, *b = ((const member *)pb)->value;
    int c = memcmp(a->key, b->key, a->key_len < b->key_len ? a->key_len : b->key_len);
    if (c) return c;
    if (a->key_len != b->key_len) return a->key_len < b->key_len ? -1 : 1;
    return by_order(pa, pb);
}

/* All members by key, repeats in source order; NULL when there are none or no memory. */
static member *sorted_members(const ms_json *obj) {
    if (!obj->count || obj->count > SIZE_MAX / sizeof(member)) return NULL;
    member *list = malloc(obj->count * sizeof *list);
    if (!list) return NULL;
    size_t n = 0;
    for (const ms_json *m = obj->child; m; m = m->next, n++) list[n] = (member){m, n};
    qsort(list, n, sizeof *list, by_key);
    return list;
}

bool ms_json_members(const ms_json ***list, size_t *count, const ms_json *obj, bool sorted) {
    *list = NULL;
    *count = 0;
    if (!obj || obj->type != MS_JSON_OBJECT || !obj->count) return true;
    member *all = sorted_members(obj);
    const ms_json **out = all ? malloc(obj->count * sizeof *out) : NULL;
    if (!out) {
        free(all);
        return false;
    }
    size_t kept = 0;
    for (size_t i = 0; i < obj->count; i++) {
        if (kept && same_key(all[kept - 1].value, all[i].value)) all[kept - 1].value = all[i].value;
        else all[kept++] = all[i];
    }
    if (!sorted) qsort(all, kept, sizeof *all, by_order);
    for (size_t i = 0; i < kept; i++) out[i] = all[i].value;
    free(all);
    *list = out;
    *count = kept;
    return true;
}

/* ------------------------------------------------------------------ messages */

/* Names what stands at `at`: printable ASCII as itself, other bytes by value. */
static void describe(char out[32], const parser *p, const char *at) {
    if (at >= p->end) {
        memcpy(out, "the end of the text", sizeof "the end of the text");
        return;
    }
    static const char hex[] = "0123456789abcdef";
    unsigned char c = (unsigned char)*at;
    if (c > 0x20 && c < 0x7f) {
        memcpy(out, "'x'", 4);
        out[1] = (char)c;
        return;
    }
    memcpy(out, "byte 0x..", sizeof "byte 0x..");
    out[7] = hex[c >> 4];
    out[8] = hex[c & 15];
}

static void position(const parser *p, const char *at, size_t *line, size_t *column) {
    *line = 1;
    const char *start = p->text;
    for (const char *s = p->text; s < at; s++) {
        if (*s == '\n') {
            ++*line;
            start = s + 1;
        }
    }
    *column = 1;
    for (const char *s = start; s < at; s++) {
        if (((unsigned char)*s & 0xc0u) != 0x80u) ++*column;
    }
}

static void note_fault(parser *p, const char *at, ms_json_fault fault) {
    p->report.fault = fault;
    p->report.offset = (size_t)(at - p->text);
}

static ms_status fail_found(parser *p, const char *at, const char *expected, const char *found) {
    size_t line, column;
    note_fault(p, at, MS_JSON_FAULT_SYNTAX);
    position(p, at, &line, &column);
    return ms_fail(p->err, MS_ERR_FORMAT, "%s: line %zu, column %zu: expected %s, found %s", p->name, line, column,
                   expected, found);
}

static ms_status fail_at(parser *p, const char *at, const char *expected) {
    char found[32];
    describe(found, p, at);
    return fail_found(p, at, expected, found);
}

/* ------------------------------------------------------------------ strings */

static int hex_value(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* Four hex digits at s, or -1. */
static int32_t hex4(const char *s, const char *end) {
    if (end - s < 4) return -1;
    int32_t v = 0;
    for (int i = 0; i < 4; i++) {
        int h = hex_value(s[i]);
        if (h < 0) return -1;
        v = v * 16 + h;
    }
    return v;
}

/* The escape at s ('\\' first).  Writes at out, advances both. */
static ms_status read_escape(parser *p, const char **s, const char *end, char **out) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *at = *s;
    char c = at[1]; /* the closing quote was found behind it */
    const char *simple = c ? strchr(from, c) : NULL;
    if (simple) {
        *(*out)++ = to[simple - from];
        *s = at + 2;
        return MS_OK;
    }
    if (c != 'u') return fail_at(p, at + 1, "an escape character (one of \" \\ / b f n r t u)");
    int32_t v = hex4(at + 2, end);
    if (v < 0) {
        const char *bad = at + 2;
        while (bad < end && hex_value(*bad) >= 0) bad++;
        return fail_at(p, bad, "four hexadecimal digits after \\u");
    }
    uint32_t cp = (uint32_t)v;
    *s = at + 6;
    if (cp >= 0xd800 && cp < 0xdc00 && end - *s >= 6 && (*s)[0] == '\\' && (*s)[1] == 'u') {
        int32_t low = hex4(*s + 2, end);
        if (low >= 0xdc00 && low < 0xe000) {
            cp = 0x10000 + ((cp - 0xd800) << 10) + ((uint32_t)low - 0xdc00);
            *s += 6;
        }
    }
    if (cp >= 0xd800 && cp < 0xe000) {
        cp = MS_UTF8_REPLACEMENT;
        p->report.lone_surrogates++;
    }
    *out += ms_utf8_encode(cp, *out);
    return MS_OK;
}

/* Decodes body[0..end) into out; only called when something in it is not plain ASCII. */
static ms_status decode_body(parser *p, const char *body, const char *end, char **out) {
    const char *s = body;
    while (s < end) {
        unsigned char c = (unsigned char)*s;
        if (c == '\\') {
            MS_TRY(read_escape(p, &s, end, out));
        } else if (c < 0x80) {
            *(*out)++ = *s++;
        } else {
            uint32_t cp;
            bool bad;
            size_t n = ms_utf8_decode((const uint8_t *)s, (size_t)(end - s), &cp, &bad);
            if (bad && !p->limits.allow_invalid_utf8) return fail_at(p, s, "well-formed UTF-8");
            if (bad) *out += ms_utf8_encode(cp, *out);
            else {
                memcpy(*out, s, n);
                *out += n;
            }
            s += n;
        }
    }
    return MS_OK;
}

/* A string with its opening quote at p->pos. */
static ms_status read_string(parser *p, const char **str, size_t *len) {
    const char *body = p->pos + 1, *s = body;
    bool plain = true, high = false;
    for (;; s++) {
        if (s >= p->end) return fail_found(p, p->pos, "a closing quote for this string", "the end of the text");
        unsigned char c = (unsigned char)*s;
        if (c == '"') break;
        if (c == '\\') {
            plain = false;
            if (s + 1 < p->end) s++; /* whatever is escaped, it does not close the string */
        } else if (c < 0x20) {
            if (!p->limits.allow_control) return fail_at(p, s, "an escape for a control character in a string");
        } else if (c >= 0x80) {
            plain = false;
            high = true;
        }
    }
    size_t raw = (size_t)(s - body), room = raw;
    /* A replaced byte becomes three; every other form gets shorter or stays. */
    if (high && p->limits.allow_invalid_utf8 && __builtin_mul_overflow(raw, (size_t)3, &room)) room = SIZE_MAX;
    char *out = room < SIZE_MAX ? arena_alloc(p->doc, room + 1) : NULL;
    if (!out) return ms_fail_memory(p->err, "a JSON string", room);
    char *w = out;
    if (plain) {
        memcpy(w, body, raw);
        w += raw;
    } else {
        MS_TRY(decode_body(p, body, s, &w));
    }
    *w = 0;
    *str = out;
    *len = (size_t)(w - out);
    arena_trim(p->doc, out, *len + 1);
    p->pos = s + 1;
    return MS_OK;
}

/* ------------------------------------------------------------------ numbers and names */

static const char *skip_digits(const char *s, const char *end) {
    while (s < end && *s >= '0' && *s <= '9') s++;
    return s;
}

static ms_status read_number(parser *p) {
    const char *s = p->pos;
    if (*s == '-') s++;
    const char *digits = s;
    s = skip_digits(s, p->end);
    if (s == digits) return fail_at(p, s, "a digit");
    if (*digits == '0' && s > digits + 1) return fail_at(p, digits + 1, "no digit after a leading 0");
    if (s < p->end && *s == '.') {
        const char *fraction = ++s;
        s = skip_digits(s, p->end);
        if (s == fraction) return fail_at(p, s, "a digit after the decimal point");
    }
    if (s < p->end && (*s == 'e' || *s == 'E')) {
        s++;
        if (s < p->end && (*s == '+' || *s == '-')) s++;
        const char *exponent = s;
        s = skip_digits(s, p->end);
        if (s == exponent) return fail_at(p, s, "a digit in the exponent");
    }
    p->pos = s;
    return MS_OK;
}

static bool take_word(parser *p, const char *word) {
    size_t n = strlen(word);
    if ((size_t)(p->end - p->pos) < n || memcmp(p->pos, word, n) != 0) return false;
    p->pos += n;
    return true;
}

static void skip_space(parser *p) {
    while (p->pos < p->end && (*p->pos == ' ' || *p->pos == '\n' || *p->pos == '\t' || *p->pos == '\r')) p->pos++;
}

/* ------------------------------------------------------------------ values */

static ms_json *new_node(parser *p) {
    if (p->nodes >= p->limits.max_nodes) {
        note_fault(p, p->pos, MS_JSON_FAULT_NODES);
        (void)ms_fail(p->err, MS_ERR_FORMAT, "%s: expected at most %zu JSON values, found more", p->name,
                      p->limits.max_nodes);
        return NULL;
    }
    ms_json *v = arena_alloc(p->doc, sizeof *v);
    if (!v) {
        (void)ms_fail_memory(p->err, "a JSON value", sizeof *v);
        return NULL;
    }
    *v = (ms_json){.type = MS_JSON_NULL};
    p->nodes++;
    return v;
}

static ms_status push_open(parser *p, ms_json *v) {
    if (p->depth >= p->limits.max_depth) {
        size_t line, column;
        note_fault(p, p->pos, MS_JSON_FAULT_DEPTH);
        position(p, p->pos, &line, &column);
        return ms_fail(p->err, MS_ERR_FORMAT,
                       "%s: line %zu, column %zu: expected at most %u levels of nesting, found more", p->name, line,
                       column, p->limits.max_depth);
    }
    if (p->depth == p->stack_cap) {
        unsigned cap = p->stack_cap ? p->stack_cap * 2 : 16;
        open_node *stack = realloc(p->stack, cap * sizeof *stack);
        if (!stack) return ms_fail_memory(p->err, "the JSON stack", cap * sizeof *stack);
        p->stack = stack;
        p->stack_cap = cap;
    }
    p->stack[p->depth++] = (open_node){.node = v};
    return MS_OK;
}

/* The value at p->pos.  A container is pushed and left open behind its bracket. */
static ms_status read_value(parser *p, ms_json *v) {
    const char *start = p->pos;
    char c = p->pos < p->end ? *p->pos : 0;
    v->raw = start;
    if (c == '"') {
        v->type = MS_JSON_STRING;
        MS_TRY(read_string(p, &v->str, &v->str_len));
    } else if (c == '{' || c == '[') {
        v->type = c == '{' ? MS_JSON_OBJECT : MS_JSON_ARRAY;
        MS_TRY(push_open(p, v));
        p->pos++;
    } else if (take_word(p, "null")) {
        v->type = MS_JSON_NULL;
    } else if (take_word(p, "true")) {
        v->type = MS_JSON_TRUE;
    } else if (take_word(p, "false")) {
        v->type = MS_JSON_FALSE;
    } else if (p->limits.allow_nan && (take_word(p, "NaN") || take_word(p, "Infinity") || take_word(p, "-Infinity"))) {
        v->type = MS_JSON_NUMBER;
    } else if (c == '-' || (c >= '0' && c <= '9')) {
        v->type = MS_JSON_NUMBER;
        MS_TRY(read_number(p));
    } else {
        return fail_at(p, start, "a JSON value");
    }
    v->raw_len = (size_t)(p->pos - start);
    return MS_OK;
}

static ms_status check_unique(parser *p, const ms_json *obj) {
    member *list = sorted_members(obj);
    if (!list) return obj->count ? ms_fail_memory(p->err, "a list of JSON keys", obj->count * sizeof *list) : MS_OK;
    const ms_json *again = NULL;
    for (size_t i = 1; i < obj->count; i++) {
        const ms_json *v = list[i].value;
        if (same_key(list[i - 1].value, v) && (!again || v->raw < again->raw)) again = v;
    }
    free(list);
    if (!again) return MS_OK;
    size_t line, column;
    note_fault(p, again->raw, MS_JSON_FAULT_DUPLICATE);
    position(p, again->raw, &line, &column);
    return ms_fail(p->err, MS_ERR_FORMAT, "%s: line %zu, column %zu: expected each key once, found \"%.80s\" again",
                   p->name, line, column, again->key);
}

static ms_status close_top(parser *p) {
    ms_json *v = p->stack[p->depth - 1].node;
    p->pos++;
    v->raw_len = (size_t)(p->pos - v->raw);
    p->depth--;
    if (v->type == MS_JSON_OBJECT && p->limits.reject_duplicates) return check_unique(p, v);
    return MS_OK;
}

/* One step inside the innermost open container: its end, or its next child with what precedes it. */
static ms_status step(parser *p) {
    ms_json *parent = p->stack[p->depth - 1].node;
    bool object = parent->type == MS_JSON_OBJECT;
    char closing = object ? '}' : ']';
    skip_space(p);
    if (p->pos < p->end && *p->pos == closing) return close_top(p);
    if (parent->count) {
        if (p->pos >= p->end || *p->pos != ',') return fail_at(p, p->pos, object ? "',' or '}'" : "',' or ']'");
        p->pos++;
        skip_space(p);
    }
    ms_json *v = new_node(p);
    if (!v) return p->nodes >= p->limits.max_nodes ? MS_ERR_FORMAT : MS_ERR_MEMORY;
    if (object) {
        if (p->pos >= p->end || *p->pos != '"') {
            return fail_at(p, p->pos, parent->count ? "a quoted key" : "a quoted key or '}'");
        }
        MS_TRY(read_string(p, &v->key, &v->key_len));
        skip_space(p);
        if (p->pos >= p->end || *p->pos != ':') return fail_at(p, p->pos, "':'");
        p->pos++;
        skip_space(p);
    }
    open_node *top = &p->stack[p->depth - 1];
    if (top->last) top->last->next = v;
    else parent->child = v;
    top->last = v;
    parent->count++;
    return read_value(p, v); /* may move the stack */
}

static ms_status parse_all(parser *p) {
    skip_space(p);
    ms_json *root = new_node(p);
    if (!root) return MS_ERR_MEMORY;
    MS_TRY(read_value(p, root));
    while (p->depth) MS_TRY(step(p));
    p->doc->root = root;
    p->doc->end = p->pos;
    if (p->limits.allow_trailing) return MS_OK;
    skip_space(p);
    if (p->pos < p->end) return fail_at(p, p->pos, "nothing after the JSON value");
    return MS_OK;
}

ms_status ms_json_parse(ms_json_doc **doc, const char *text, size_t len, const char *name,
                        const ms_json_limits *limits, ms_error *err) {
    *doc = NULL;
    if (!text) {
        text = "";
        len = 0;
    }
    parser p = {.text = text, .pos = text, .end = text + len, .name = name ? name : "JSON text", .err = err};
    if (limits) p.limits = *limits;
    if (!p.limits.max_depth) p.limits.max_depth = 64;
    if (p.limits.max_depth > MS_JSON_MAX_DEPTH) p.limits.max_depth = MS_JSON_MAX_DEPTH;
    if (!p.limits.max_nodes) p.limits.max_nodes = 4000000;
    p.doc = calloc(1, sizeof *p.doc);
    ms_status status = p.doc ? parse_all(&p) : ms_fail_memory(err, "a JSON document", sizeof *p.doc);
    free(p.stack);
    if (status == MS_ERR_MEMORY) p.report.fault = MS_JSON_FAULT_MEMORY;
    if (p.limits.report) *p.limits.report = p.report;
    if (status != MS_OK) {
        ms_json_free(p.doc);
        return status;
    }
    *doc = p.doc;
    return MS_OK;
}

const ms_json *ms_json_root(const ms_json_doc *doc) { return doc ? doc->root : NULL; }
const char *ms_json_end(const ms_json_doc *doc) { return doc ? doc->end : NULL; }

void ms_json_free(ms_json_doc *doc) {
    if (!doc) return;
    for (chunk *c = doc->chunks, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    free(doc);
}

/* ------------------------------------------------------------------ reading values */

const ms_json *ms_json_get(const ms_json *obj, const char *key) {
    if (!obj || obj->type != MS_JSON_OBJECT) return NULL;
    size_t n = strlen(key);
    const ms_json *found = NULL;
    for (const ms_json *m = obj->child; m; m = m->next) {
        if (m->key_len == n && memcmp(m->key, key, n) == 0) found = m;
    }
    return found;
}

const ms_json *ms_json_at(const ms_json *arr, size_t index) {
    if (!arr || arr->type != MS_JSON_ARRAY || index >= arr->count) return NULL;
    const ms_json *v = arr->child;
    while (index--) v = v->next;
    return v;
}

bool ms_json_u64(const ms_json *v, uint64_t *out) {
    if (!v || v->type != MS_JSON_NUMBER) return false;
    uint64_t n = 0;
    for (size_t i = 0; i < v->raw_len; i++) {
        unsigned digit = (unsigned)(unsigned char)v->raw[i] - '0';
        if (digit > 9) return false;
        if (__builtin_mul_overflow(n, UINT64_C(10), &n) || __builtin_add_overflow(n, (uint64_t)digit, &n)) return false;
    }
    *out = n;
    return true;
}

bool ms_json_i64(const ms_json *v, int64_t *out) {
    if (!v || v->type != MS_JSON_NUMBER) return false;
    bool negative = v->raw[0] == '-';
    int64_t n = 0;
    for (size_t i = negative; i < v->raw_len; i++) {
        int digit = v->raw[i] - '0';
        if (digit < 0 || digit > 9) return false;
        if (negative) digit = -digit; /* INT64_MIN has no positive counterpart */
        if (__builtin_mul_overflow(n, INT64_C(10), &n) || __builtin_add_overflow(n, (int64_t)digit, &n)) return false;
    }
    *out = n;
    return true;
}

double ms_json_number_value(const char *raw, size_t len) {
    char small[128], *s = small;
    if (len >= sizeof small) s = malloc(len + 1);
    if (!s) return (double)NAN;
    memcpy(s, raw, len);
    s[len] = 0;
    /* In glibc the C locale is a constant object: nothing is allocated here. */
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    double v = c ? strtod_l(s, NULL, c) : (double)NAN;
    if (c) freelocale(c);
    if (s != small) free(s);
    return v;
}

bool ms_json_double(const ms_json *v, double *out) {
    if (!v || v->type != MS_JSON_NUMBER) return false;
    double d = ms_json_number_value(v->raw, v->raw_len);
    if (!isfinite(d)) return false;
    *out = d;
    return true;
}

bool ms_json_bool(const ms_json *v, bool *out) {
    if (!v || (v->type != MS_JSON_TRUE && v->type != MS_JSON_FALSE)) return false;
    *out = v->type == MS_JSON_TRUE;
    return true;
}

bool ms_json_is_string(const ms_json *v, const char *text) {
    size_t n = strlen(text);
    return v && v->type == MS_JSON_STRING && v->str_len == n && memcmp(v->str, text, n) == 0;
}
