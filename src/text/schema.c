/* schema.c: reading a schema (schema.h): vocabulary, limits, references, patterns.
 *
 * Invariant: after open every schema of the document is an object of known, well-formed keywords or a boolean, every
 * $ref has a target among them, every pattern compiles, and in-place references never lead back without a value between.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/schema_internal.h"

typedef enum shape {
    SHAPE_NOTE, SHAPE_TYPE, SHAPE_ENUM, SHAPE_ANY, SHAPE_SCHEMA, SHAPE_LIST, SHAPE_MAP, SHAPE_COUNT, SHAPE_NUMBER,
    SHAPE_POSITIVE, SHAPE_TEXT, SHAPE_PATTERN, SHAPE_PATTERNS, SHAPE_NAMES, SHAPE_NAME_MAP, SHAPE_BOOL, SHAPE_REF
} shape;

typedef struct keyword {
    const char *name;
    shape shape;
    bool in_place; /* its schemas judge the same value */
} keyword;

static const keyword keywords[] = {
    {"type", SHAPE_TYPE, false}, {"enum", SHAPE_ENUM, false}, {"const", SHAPE_ANY, false},
    {"properties", SHAPE_MAP, false}, {"required", SHAPE_NAMES, false},
    {"additionalProperties", SHAPE_SCHEMA, false}, {"patternProperties", SHAPE_PATTERNS, false},
    {"propertyNames", SHAPE_SCHEMA, false}, {"minProperties", SHAPE_COUNT, false},
    {"maxProperties", SHAPE_COUNT, false}, {"items", SHAPE_SCHEMA, false}, {"prefixItems", SHAPE_LIST, false},
    {"minItems", SHAPE_COUNT, false}, {"maxItems", SHAPE_COUNT, false}, {"contains", SHAPE_SCHEMA, false},
    {"minContains", SHAPE_COUNT, false}, {"maxContains", SHAPE_COUNT, false}, {"uniqueItems", SHAPE_BOOL, false},
    {"minLength", SHAPE_COUNT, false}, {"maxLength", SHAPE_COUNT, false}, {"pattern", SHAPE_PATTERN, false},
    {"format", SHAPE_TEXT, false}, {"minimum", SHAPE_NUMBER, false}, {"maximum", SHAPE_NUMBER, false},
    {"exclusiveMinimum", SHAPE_NUMBER, false}, {"exclusiveMaximum", SHAPE_NUMBER, false},
    {"multipleOf", SHAPE_POSITIVE, false}, {"anyOf", SHAPE_LIST, true}, {"oneOf", SHAPE_LIST, true},
    {"allOf", SHAPE_LIST, true}, {"not", SHAPE_SCHEMA, true}, {"if", SHAPE_SCHEMA, true},
    {"then", SHAPE_SCHEMA, true}, {"else", SHAPE_SCHEMA, true}, {"dependentRequired", SHAPE_NAME_MAP, false},
    {"dependentSchemas", SHAPE_MAP, true}, {"$ref", SHAPE_REF, true}, {"$defs", SHAPE_MAP, false},
    {"definitions", SHAPE_MAP, false}, {"$anchor", SHAPE_TEXT, false}, {"title", SHAPE_NOTE, false},
    {"description", SHAPE_NOTE, false}, {"default", SHAPE_NOTE, false}, {"examples", SHAPE_NOTE, false},
    {"$schema", SHAPE_NOTE, false}, {"$id", SHAPE_NOTE, false}, {"$comment", SHAPE_NOTE, false},
    {"deprecated", SHAPE_NOTE, false}, {"readOnly", SHAPE_NOTE, false}, {"writeOnly", SHAPE_NOTE, false},
    {"contentMediaType", SHAPE_NOTE, false}, {"contentEncoding", SHAPE_NOTE, false},
    {"contentSchema", SHAPE_NOTE, false}, {"nullable", SHAPE_BOOL, false}, {"discriminator", SHAPE_NOTE, false},
    {"example", SHAPE_NOTE, false}, {"externalDocs", SHAPE_NOTE, false}, {"xml", SHAPE_NOTE, false},
    {"markdownDescription", SHAPE_NOTE, false}, {"enumDescriptions", SHAPE_NOTE, false},
    {"deprecationMessage", SHAPE_NOTE, false}};
static const keyword extension = {"x-", SHAPE_NOTE, false}; /* whatever the name begins with it */

static const keyword *keyword_of(const ms_json *member) {
    for (size_t i = 0; i < sizeof keywords / sizeof keywords[0]; i++) {
        if (strlen(keywords[i].name) == member->key_len && memcmp(keywords[i].name, member->key, member->key_len) == 0) {
            return &keywords[i];
        }
    }
    return member->key_len >= 2 && memcmp(member->key, extension.name, 2) == 0 ? &extension : NULL;
}

bool ms_schema_is_annotation(const ms_json *member) {
    const keyword *k = keyword_of(member);
    if (k && !strcmp(k->name, "nullable")) return member->type != MS_JSON_TRUE;
    return k && (k->shape == SHAPE_NOTE || !strcmp(k->name, "$defs") || !strcmp(k->name, "definitions") ||
                 !strcmp(k->name, "$anchor"));
}

ms_format_kind ms_schema_format(const ms_json *name) {
    static const char *const names[] = {"date", "time", "date-time", "duration", "email",
                                        "hostname", "ipv4", "ipv6", "uri", "uuid"};
    for (int i = 0; i < MS_FORMAT_OTHER; i++)
        if (ms_json_is_string(name, names[i])) return (ms_format_kind)i;
    return MS_FORMAT_OTHER;
}

/* ------------------------------------------------------------------ nodes */

static size_t hash_of(const void *p) {
    uint64_t h = (uint64_t)(uintptr_t)p * UINT64_C(0x9E3779B97F4A7C15);
    return (size_t)(h >> 24);
}

static const ms_schema_node *node_of(const ms_schema *s, const ms_json *at) {
    if (!s->table) return NULL;
    for (size_t h = hash_of(at) & s->table_mask; s->table[h]; h = (h + 1) & s->table_mask) {
        if (s->nodes[s->table[h] - 1].at == at) return &s->nodes[s->table[h] - 1];
    }
    return NULL;
}

static void pointer_step(ms_text *t, const char *s, size_t len) {
    ms_text_puts(t, "/");
    for (size_t i = 0; i < len; i++) {
        if (s[i] == '~') ms_text_puts(t, "~0");
        else if (s[i] == '/') ms_text_puts(t, "~1");
        else ms_text_append(t, s + i, 1);
    }
}

static void pointer_of(const ms_schema *s, const ms_schema_node *n, ms_text *t) {
    const ms_schema_node *chain[MS_SCHEMA_MAX_DEPTH + 2];
    size_t depth = 0;
    for (; n && n->parent && depth < MS_SCHEMA_MAX_DEPTH + 2; n = node_of(s, n->parent)) chain[depth++] = n;
    while (depth) {
        n = chain[--depth];
        pointer_step(t, n->step, strlen(n->step));
        if (n->key) pointer_step(t, n->key, n->key_len);
        else if (n->index != SIZE_MAX) ms_text_printf(t, "/%zu", n->index);
    }
}

ms_status ms_schema_refuse(const ms_schema *s, const ms_json *at, const char *word, ms_schema_fault *fault,
                           ms_error *err, const char *fmt, ...) {
    char what[256];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    ms_text t = {0};
    ms_text_append(&t, "", 0);
    pointer_of(s, node_of(s, at), &t);
    const char *shown = t.data ? t.data : "";
    size_t skip = t.len > 190 ? t.len - 190 : 0;
    while (skip && skip < t.len && ((uint8_t)shown[skip] & 0xC0) == 0x80) skip++;
    if (fault) {
        fault->kind = MS_SCHEMA_UNSUPPORTED;
        (void)snprintf(fault->pointer, sizeof fault->pointer, "%s%s", skip ? "..." : "", shown + skip);
        (void)snprintf(fault->keyword, sizeof fault->keyword, "%s", word);
        (void)snprintf(fault->reason, sizeof fault->reason, "%.159s", what);
    }
    ms_status status = ms_fail(err, MS_ERR_USAGE, "schema #%s%s%s%s: %s", skip ? "..." : "", shown + skip,
                               *word ? "/" : "", word, what);
    ms_text_free(&t);
    return status;
}

/* ------------------------------------------------------------------ reading */

typedef struct reader {
    ms_schema *s;
    ms_schema_fault *fault;
    ms_error *err;
} reader;

/* A refusal that is of another kind. */
static ms_status as(ms_schema_fault_kind kind, const reader *r, ms_status status) {
    if (r->fault && status == MS_ERR_USAGE) r->fault->kind = kind;
    return status;
}

static bool rehash(ms_schema *s) {
    size_t size = s->table ? (s->table_mask + 1) * 2 : 64;
    uint32_t *table = calloc(size, sizeof *table);
    if (!table) return false;
    for (size_t i = 0; i < s->count; i++) {
        size_t h = hash_of(s->nodes[i].at) & (size - 1);
        while (table[h]) h = (h + 1) & (size - 1);
        table[h] = (uint32_t)i + 1;
    }
    free(s->table);
    s->table = table;
    s->table_mask = size - 1;
    return true;
}

static ms_status add_node(reader *r, const ms_schema_node *n) {
    ms_schema *s = r->s;
    if (s->count >= MS_SCHEMA_MAX_NODES) {
        return ms_schema_refuse(s, n->parent, n->step, r->fault, r->err, "expected at most %d schemas, found more",
                                MS_SCHEMA_MAX_NODES);
    }
    if (s->count == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 64;
        ms_schema_node *nodes = realloc(s->nodes, cap * sizeof *nodes);
        if (!nodes) return ms_fail_memory(r->err, "a schema", cap * sizeof *nodes);
        s->nodes = nodes;
        s->cap = cap;
    }
    if ((!s->table || s->count * 2 > s->table_mask) && !rehash(s)) return ms_fail_memory(r->err, "a schema", s->count);
    s->nodes[s->count++] = *n;
    size_t h = hash_of(n->at) & s->table_mask;
    while (s->table[h]) h = (h + 1) & s->table_mask;
    s->table[h] = (uint32_t)s->count;
    return MS_OK;
}

static ms_status add_pattern(reader *r, const ms_json *at, const char *word, const char *text, size_t len) {
    ms_schema *s = r->s;
    if (ms_schema_regex(s, text, len)) return MS_OK;
    if (s->pattern_count == s->pattern_cap) {
        size_t cap = s->pattern_cap ? s->pattern_cap * 2 : 8;
        ms_schema_pattern *p = realloc(s->patterns, cap * sizeof *p);
        if (!p) return ms_fail_memory(r->err, "a schema", cap * sizeof *p);
        s->patterns = p;
        s->pattern_cap = cap;
    }
    ms_error why = {0};
    ms_regex *regex;
    ms_status status = ms_regex_compile(&regex, text, len, &why);
    if (status == MS_ERR_USAGE) return ms_schema_refuse(s, at, word, r->fault, r->err, "%s", why.message);
    if (status == MS_ERR_FORMAT)
        return as(MS_SCHEMA_MALFORMED, r, ms_schema_refuse(s, at, word, r->fault, r->err, "%s", why.message));
    if (status != MS_OK) return ms_fail(r->err, status, "%s", why.message);
    s->patterns[s->pattern_count++] = (ms_schema_pattern){text, len, regex};
    return MS_OK;
}

static bool is_type_name(const ms_json *v) {
    static const char *const names[] = {"null", "boolean", "integer", "number", "string", "array", "object"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (ms_json_is_string(v, names[i])) return true;
    return false;
}

static bool all_strings(const ms_json *list) {
    if (list->type != MS_JSON_ARRAY) return false;
    for (const ms_json *v = list->child; v; v = v->next)
        if (v->type != MS_JSON_STRING) return false;
    return true;
}

bool ms_schema_size(const ms_json *v, uint64_t *out) {
    double d;
    if (ms_json_u64(v, out)) return true;
    if (!ms_json_double(v, &d) || !(d >= 0 && d <= 0x1p53) || d > (double)(uint64_t)d) return false;
    *out = (uint64_t)d;
    return true;
}

/* What a keyword's value should have been; NULL: it is fine. */
static const char *bad_value(shape kind, const ms_json *v) {
    uint64_t n;
    double d;
    bool b;
    switch (kind) {
    case SHAPE_TYPE:
        if (is_type_name(v)) return NULL;
        if (v->type != MS_JSON_ARRAY || !v->count) return "a type's name or a list of them";
        for (const ms_json *t = v->child; t; t = t->next)
            if (!is_type_name(t)) return "a type's name or a list of them";
        return NULL;
    case SHAPE_ENUM:
        return v->type != MS_JSON_ARRAY || !v->count ? "a list of values, not empty" : NULL;
    case SHAPE_LIST: return v->type != MS_JSON_ARRAY || !v->count ? "a list of schemas, not empty" : NULL;
    case SHAPE_MAP:
    case SHAPE_PATTERNS: return v->type != MS_JSON_OBJECT ? "an object of schemas" : NULL;
    case SHAPE_COUNT: return !ms_schema_size(v, &n) ? "an integer, 0 or more" : NULL;
    case SHAPE_NUMBER: return v->type != MS_JSON_NUMBER ? "a number" : NULL;
    case SHAPE_POSITIVE: return !ms_json_double(v, &d) || !(d > 0) ? "a number above 0" : NULL;
    case SHAPE_TEXT:
    case SHAPE_PATTERN:
    case SHAPE_REF: return v->type != MS_JSON_STRING ? "a string" : NULL;
    case SHAPE_NAMES: return !all_strings(v) ? "a list of strings" : NULL;
    case SHAPE_NAME_MAP:
        if (v->type != MS_JSON_OBJECT) return "an object of lists of strings";
        for (const ms_json *m = v->child; m; m = m->next)
            if (!all_strings(m)) return "an object of lists of strings";
        return NULL;
    case SHAPE_BOOL: return !ms_json_bool(v, &b) ? "true or false" : NULL;
    default: return NULL;
    }
}

static ms_status read_schema(reader *r, const ms_schema_node *n, unsigned depth);

static ms_status read_children(reader *r, const ms_json *at, const keyword *k, const ms_json *v, unsigned depth) {
    if (!strcmp(k->name, "items") && v->type == MS_JSON_ARRAY) { /* as drafts up to 7 have it */
        return ms_schema_refuse(r->s, at, k->name, r->fault, r->err,
                                "expected one schema for all items; lists of them are prefixItems");
    }
    ms_schema_node n = {.at = v, .parent = at, .step = k->name, .index = SIZE_MAX};
    if (k->shape == SHAPE_SCHEMA) return read_schema(r, &n, depth + 1);
    if (k->shape != SHAPE_LIST && k->shape != SHAPE_MAP && k->shape != SHAPE_PATTERNS) return MS_OK;
    size_t index = 0;
    for (const ms_json *c = v->child; c; c = c->next, index++) {
        n.at = c;
        n.index = index;
        n.key = c->key;
        n.key_len = c->key_len;
        if (k->shape == SHAPE_PATTERNS) MS_TRY(add_pattern(r, at, k->name, c->key, c->key_len));
        MS_TRY(read_schema(r, &n, depth + 1));
    }
    return MS_OK;
}

static ms_status add_ref(reader *r, const ms_json *ref) {
    ms_schema *s = r->s;
    if (s->ref_count == s->ref_cap) {
        size_t cap = s->ref_cap ? s->ref_cap * 2 : 16;
        const ms_json **refs = realloc(s->refs, 2 * cap * sizeof *refs);
        if (!refs) return ms_fail_memory(r->err, "a schema", 2 * cap * sizeof *refs);
        s->refs = refs;
        s->ref_cap = cap;
    }
    s->refs[2 * s->ref_count] = ref;
    s->refs[2 * s->ref_count++ + 1] = NULL;
    return MS_OK;
}

static ms_status read_schema(reader *r, const ms_schema_node *n, unsigned depth) {
    const ms_json *at = n->at;
    if (depth > MS_SCHEMA_MAX_DEPTH) {
        return ms_schema_refuse(r->s, n->parent, n->step, r->fault, r->err, "expected at most %d levels, found more",
                                MS_SCHEMA_MAX_DEPTH);
    }
    MS_TRY(add_node(r, n));
    bool boolean;
    if (ms_json_bool(at, &boolean)) return MS_OK;
    if (at->type != MS_JSON_OBJECT) {
        return as(MS_SCHEMA_MALFORMED, r,
                  ms_schema_refuse(r->s, at, "", r->fault, r->err, "expected an object, true or false"));
    }
    for (const ms_json *m = at->child; m; m = m->next) {
        const keyword *k = keyword_of(m);
        char name[40];
        (void)snprintf(name, sizeof name, "%.*s", (int)(m->key_len < 32 ? m->key_len : ms_utf8_valid_prefix(m->key, 32)), m->key);
        if (!k)
            return as(MS_SCHEMA_UNKNOWN, r, ms_schema_refuse(r->s, at, name, r->fault, r->err, "unknown keyword"));
        if (k != &extension && ms_json_get(at, k->name) != m) {
            return as(MS_SCHEMA_MALFORMED, r,
                      ms_schema_refuse(r->s, at, name, r->fault, r->err, "repeated keyword"));
        }
        const char *expected = bad_value(k->shape, m);
        if (expected) {
            return as(MS_SCHEMA_MALFORMED, r,
                      ms_schema_refuse(r->s, at, name, r->fault, r->err, "expected %s", expected));
        }
        if (k->shape == SHAPE_ENUM && m->count > MS_SCHEMA_MAX_ENUM) {
            return ms_schema_refuse(r->s, at, name, r->fault, r->err, "expected at most %d values", MS_SCHEMA_MAX_ENUM);
        }
        if (!strcmp(k->name, "nullable") && m->type == MS_JSON_TRUE) r->s->nullable = true;
        if (k->shape == SHAPE_PATTERN) MS_TRY(add_pattern(r, at, k->name, m->str, m->str_len));
        if (k->shape == SHAPE_REF) MS_TRY(add_ref(r, m));
        MS_TRY(read_children(r, at, k, m, depth));
    }
    return MS_OK;
}

/* ------------------------------------------------------------------ references */

/* One step of a JSON pointer in a URI fragment, decoded; moves *at behind it. */
static void decode_step(ms_text *out, const char *s, size_t len, size_t *at) {
    out->len = 0;
    ms_text_append(out, "", 0);
    for (; *at < len && s[*at] != '/'; ++*at) {
        char c = s[*at];
        unsigned v;
        if (c == '%' && len - *at > 2 && sscanf(s + *at + 1, "%2x", &v) == 1) {
            c = (char)v;
            *at += 2;
        }
        if (c == '~' && *at + 1 < len && (s[*at + 1] == '0' || s[*at + 1] == '1')) c = s[++*at] == '0' ? '~' : '/';
        ms_text_append(out, &c, 1);
    }
}

static const ms_json *child_named(const ms_json *v, const ms_text *step) {
    if (v->type == MS_JSON_OBJECT) {
        for (const ms_json *m = v->child; m; m = m->next)
            if (m->key_len == step->len && memcmp(m->key, step->data, step->len) == 0) return m;
    } else if (v->type == MS_JSON_ARRAY && step->len && step->len < 8) {
        char *end;
        unsigned long index = strtoul(step->data, &end, 10);
        if (!*end) return ms_json_at(v, index);
    }
    return NULL;
}

static const ms_json *anchor(const ms_schema *s, const char *name, size_t len) {
    for (size_t i = 0; i < s->count; i++) {
        const ms_json *a = ms_json_get(s->nodes[i].at, "$anchor");
        if (a && a->str_len == len && memcmp(a->str, name, len) == 0) return s->nodes[i].at;
    }
    return NULL;
}

static const ms_json *resolve(const ms_schema *s, const ms_json *ref, bool *remote, bool *failed) {
    const char *text = ref->str;
    size_t len = ref->str_len;
    const ms_json *id = ms_json_get(s->root, "$id");
    if (id && id->type == MS_JSON_STRING && id->str_len && len >= id->str_len && !memcmp(text, id->str, id->str_len) &&
        (len == id->str_len || text[id->str_len] == '#')) {
        text += id->str_len;
        len -= id->str_len;
        if (!len) return s->root;
    }
    *remote = !len || text[0] != '#';
    if (*remote) return NULL;
    if (len == 1) return s->root;
    if (text[1] != '/') return anchor(s, text + 1, len - 1);
    const ms_json *v = s->root;
    ms_text step = {0};
    for (size_t at = 1; v && at < len;) {
        at++;
        decode_step(&step, text, len, &at);
        *failed = *failed || step.failed;
        v = step.failed ? NULL : child_named(v, &step);
    }
    ms_text_free(&step);
    return v && node_of(s, v) ? v : NULL;
}

/* The schema that a $ref belongs to, for messages. */
static const ms_json *owner_of(const ms_schema *s, const ms_json *ref) {
    for (size_t i = 0; i < s->count; i++)
        if (ms_json_get(s->nodes[i].at, "$ref") == ref) return s->nodes[i].at;
    return NULL;
}

static ms_status resolve_all(reader *r) {
    ms_schema *s = r->s;
    for (size_t i = 0; i < s->ref_count; i++) {
        const ms_json *ref = s->refs[2 * i];
        bool remote = false, failed = false;
        s->refs[2 * i + 1] = resolve(s, ref, &remote, &failed);
        if (failed) return ms_fail_memory(r->err, "a reference", ref->str_len);
        if (s->refs[2 * i + 1]) continue;
        return as(remote ? MS_SCHEMA_UNSUPPORTED : MS_SCHEMA_MALFORMED, r,
                  ms_schema_refuse(s, owner_of(s, ref), "$ref", r->fault, r->err,
                                   remote ? "expected a reference into this document"
                                          : "expected a schema at its target"));
    }
    return MS_OK;
}

static int by_address(const void *x, const void *y) {
    uintptr_t a = (uintptr_t)*(const ms_json *const *)x, b = (uintptr_t)*(const ms_json *const *)y;
    return (a > b) - (a < b);
}

const ms_json *ms_schema_target(const ms_schema *s, const ms_json *ref) {
    size_t lo = 0, hi = s->ref_count;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if ((uintptr_t)s->refs[2 * mid] < (uintptr_t)ref) lo = mid + 1;
        else hi = mid;
    }
    return lo < s->ref_count && s->refs[2 * lo] == ref ? s->refs[2 * lo + 1] : NULL;
}

const ms_regex *ms_schema_regex(const ms_schema *s, const char *text, size_t len) {
    for (size_t i = 0; i < s->pattern_count; i++) {
        if (s->patterns[i].len == len && memcmp(s->patterns[i].text, text, len) == 0) return s->patterns[i].regex;
    }
    return NULL;
}

/* ------------------------------------------------------------------ cycles */

/* The next in-place schema of `at` after `from` (NULL: the first). */
typedef struct cursor {
    const ms_json *at, *member, *item; /* item: next of a list */
    size_t node;
} cursor;

static const ms_json *next_in_place(const ms_schema *s, cursor *c) {
    for (;;) {
        if (c->item) {
            const ms_json *v = c->item;
            c->item = v->next;
            return v;
        }
        if (!c->member) return NULL;
        const ms_json *m = c->member;
        c->member = m->next;
        const keyword *k = keyword_of(m);
        if (!k || !k->in_place) continue;
        if (k->shape == SHAPE_REF) return ms_schema_target(s, m);
        if (k->shape == SHAPE_SCHEMA) return m;
        c->item = m->child;
    }
}

static cursor cursor_at(const ms_schema *s, const ms_json *at) {
    return (cursor){.at = at, .member = at->type == MS_JSON_OBJECT ? at->child : NULL,
                    .node = (size_t)(node_of(s, at) - s->nodes)};
}

static ms_status no_cycles(reader *r) {
    const ms_schema *s = r->s;
    uint8_t *state = calloc(s->count, 1);
    cursor *stack = malloc((s->count + 1) * sizeof *stack);
    ms_status status = state && stack ? MS_OK : ms_fail_memory(r->err, "a schema", s->count * sizeof *stack);
    for (size_t i = 0; i < s->count && status == MS_OK; i++) {
        size_t depth = 0;
        if (state[i]) continue;
        stack[depth++] = cursor_at(s, s->nodes[i].at);
        state[i] = 1;
        while (depth && status == MS_OK) {
            const ms_json *next = next_in_place(s, &stack[depth - 1]);
            if (!next) {
                state[stack[--depth].node] = 2;
                continue;
            }
            cursor c = cursor_at(s, next);
            if (state[c.node] == 1) {
                status = as(MS_SCHEMA_MALFORMED, r,
                            ms_schema_refuse(s, stack[depth - 1].at, "$ref", r->fault, r->err,
                                             "expected a value between a schema and itself: the reference is a circle"));
            } else if (!state[c.node]) {
                state[c.node] = 1;
                stack[depth++] = c;
            }
        }
    }
    free(state);
    free(stack);
    return status;
}

/* ------------------------------------------------------------------ interface */

ms_status ms_schema_open(ms_schema **out, const ms_json *root, ms_schema_fault *fault, ms_error *err) {
    *out = NULL;
    if (fault) *fault = (ms_schema_fault){0};
    ms_schema *s = calloc(1, sizeof *s);
    if (!s) return ms_fail_memory(err, "a schema", sizeof *s);
    s->root = root;
    reader r = {s, fault, err};
    ms_schema_node n = {.at = root, .step = "", .index = SIZE_MAX};
    ms_status status = root->raw_len > MS_SCHEMA_MAX_BYTES
                           ? ms_schema_refuse(s, root, "", fault, err, "expected at most %d bytes", MS_SCHEMA_MAX_BYTES)
                           : read_schema(&r, &n, 0);
    if (status == MS_OK) status = resolve_all(&r);
    if (status == MS_OK && s->ref_count) qsort(s->refs, s->ref_count, 2 * sizeof *s->refs, by_address);
    if (status == MS_OK) status = no_cycles(&r);
    if (status == MS_OK) *out = s;
    else ms_schema_close(s);
    return status;
}

void ms_schema_close(ms_schema *s) {
    if (!s) return;
    for (size_t i = 0; i < s->pattern_count; i++) ms_regex_free(s->patterns[i].regex);
    free(s->patterns);
    free(s->nodes);
    free(s->table);
    free(s->refs);
    free(s);
}
