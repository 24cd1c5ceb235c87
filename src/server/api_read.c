/* api_read.c: paths, typed fields and field classes of api_read.h. */
#include "server/api_read.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------ paths and refusals */

enum { MAX_PATH_LEVELS = 16, MAX_KEY = 64 };

/* A client's key may stand in a path only when it is plainly a name. */
static bool plain_key(const char *s, size_t len) {
    if (!len || len > MAX_KEY) return false;
    for (size_t i = 0; i < len; i++) {
        char c = s[i];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
        if (!plain) return false;
    }
    return true;
}

static void path_write(ms_text *out, const ms_api_path *at, bool indexes) {
    const ms_api_path *levels[MAX_PATH_LEVELS];
    size_t count = 0;
    for (; at && count < MAX_PATH_LEVELS; at = at->up) levels[count++] = at;
    for (size_t i = count; i-- > 0;) {
        const ms_api_path *level = levels[i];
        if (level->key)
            ms_text_printf(out, "%s%s", i + 1 < count ? "." : "", level->key);
        else if (indexes)
            ms_text_printf(out, "[%zu]", level->index);
        else
            ms_text_puts(out, "[]");
    }
}

void ms_api_path_text(char *out, size_t size, const ms_api_path *at) {
    ms_text t = {0};
    path_write(&t, at, true);
    (void)snprintf(out, size, "%s", t.data ? t.data : "");
    ms_text_free(&t);
}

bool ms_api_bad(ms_api_parse *p, const ms_api_path *at, const char *code, const char *fmt, ...) {
    char path[256], why[400];
    ms_api_path_text(path, sizeof path, at);
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    if (!path[0]) return ms_api_fail(p->err, 400, code, NULL, "%s", why);
    return ms_api_fail(p->err, 400, code, path, "%.100s: %s", path, why);
}

bool ms_api_bad_type(ms_api_parse *p, const ms_api_path *at, const ms_json *found, const char *expected) {
    static const char *const names[] = {"null", "false", "true", "a number", "a string", "an array", "an object"};
    return ms_api_bad(p, at, "invalid_type", "expected %s, found %s", expected, found ? names[found->type] : "nothing");
}

/* ------------------------------------------------------------------ body */

enum { MAX_DEPTH = 128, MAX_NODES = 1000000 };

bool ms_api_body(ms_api_parse *p, const char *body, size_t len) {
    size_t bom = len >= 3 && memcmp(body, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    ms_api_request *r = p->r;
    ms_text_append(&r->body, body, len);
    if (r->body.failed) return ms_api_fail_memory(p->err);
    ms_json_report report;
    ms_json_limits limits = {
        .max_depth = MAX_DEPTH, .max_nodes = MAX_NODES, .reject_duplicates = true, .report = &report};
    (void)ms_json_parse(&r->doc, r->body.data + bom, len - bom, "request body", &limits, NULL);
    size_t offset = report.offset + bom;
    switch (report.fault) {
    case MS_JSON_FAULT_NONE:
        break;
    case MS_JSON_FAULT_SYNTAX:
        return ms_api_fail(p->err, 400, "invalid_json", NULL, "the body is not valid JSON at byte %zu", offset);
    case MS_JSON_FAULT_DEPTH:
        return ms_api_fail(p->err, 400, "json_too_deep", NULL, "the body nests deeper than %d levels at byte %zu",
                           MAX_DEPTH, offset);
    case MS_JSON_FAULT_NODES:
        return ms_api_fail(p->err, 400, "invalid_json", NULL, "the body has more than %d values at byte %zu", MAX_NODES,
                           offset);
    case MS_JSON_FAULT_DUPLICATE:
        return ms_api_fail(p->err, 400, "duplicate_key", NULL, "an object has a key twice; second value at byte %zu",
                           offset);
    case MS_JSON_FAULT_MEMORY:
        return ms_api_fail_memory(p->err);
    }
    r->repaired_surrogates = report.lone_surrogates > UINT32_MAX ? UINT32_MAX : (uint32_t)report.lone_surrogates;
    p->root = ms_json_root(r->doc);
    if (p->root->type != MS_JSON_OBJECT) {
        return ms_api_fail(p->err, 400, "invalid_json", NULL, "the body must be a JSON object, at byte %zu", offset);
    }
    return true;
}

/* ------------------------------------------------------------------ typed fields */

const ms_json *ms_api_any(const ms_json *obj, const char *key) {
    const ms_json *v = ms_json_get(obj, key);
    return v && v->type != MS_JSON_NULL ? v : NULL;
}

bool ms_api_is(ms_api_parse *p, const ms_api_path *at, const ms_json *v, ms_api_want want) {
    bool good = false;
    const char *name = "a number";
    switch (want) {
    case MS_WANT_STRING:
        good = v->type == MS_JSON_STRING;
        name = "a string";
        break;
    case MS_WANT_BOOL:
        good = v->type == MS_JSON_TRUE || v->type == MS_JSON_FALSE;
        name = "true or false";
        break;
    case MS_WANT_ARRAY:
        good = v->type == MS_JSON_ARRAY;
        name = "an array";
        break;
    case MS_WANT_OBJECT:
        good = v->type == MS_JSON_OBJECT;
        name = "an object";
        break;
    case MS_WANT_NUMBER:
        good = v->type == MS_JSON_NUMBER;
        break;
    }
    return good || ms_api_bad_type(p, at, v, name);
}

bool ms_api_get(ms_api_parse *p, const ms_api_path *up, const ms_json *obj, const char *key, ms_api_want want,
                const ms_json **v) {
    *v = ms_api_any(obj, key);
    ms_api_path at = {.up = up, .key = key};
    return !*v || ms_api_is(p, &at, *v, want);
}

bool ms_api_need(ms_api_parse *p, const ms_api_path *up, const ms_json *obj, const char *key, ms_api_want want,
                 const ms_json **v) {
    if (!ms_api_get(p, up, obj, key, want, v)) return false;
    ms_api_path at = {.up = up, .key = key};
    return *v || ms_api_bad(p, &at, "missing_field", "this field is required");
}

bool ms_api_get_bool(ms_api_parse *p, const ms_api_path *up, const ms_json *obj, const char *key, bool *out) {
    const ms_json *v;
    if (!ms_api_get(p, up, obj, key, MS_WANT_BOOL, &v)) return false;
    if (v) *out = v->type == MS_JSON_TRUE;
    return true;
}

static bool integer_literal(const ms_json *v) {
    size_t i = v->raw[0] == '-';
    for (; i < v->raw_len; i++) {
        if (v->raw[i] < '0' || v->raw[i] > '9') return false;
    }
    return true;
}

bool ms_api_get_integer(ms_api_parse *p, const ms_api_path *up, const ms_json *obj, const char *key, int64_t low,
                        int64_t high, bool *found, int64_t *out) {
    const ms_json *v = ms_api_any(obj, key);
    ms_api_path at = {.up = up, .key = key};
    *found = v != NULL;
    if (!v) return true;
    if (v->type != MS_JSON_NUMBER || !integer_literal(v)) {
        return v->type == MS_JSON_NUMBER
                   ? ms_api_bad(p, &at, "invalid_type", "expected an integer without fraction or exponent")
                   : ms_api_bad_type(p, &at, v, "an integer");
    }
    if (!ms_json_i64(v, out) || *out < low || *out > high) {
        return ms_api_bad(p, &at, "out_of_range", "expected an integer in [%lld,%lld]", (long long)low,
                          (long long)high);
    }
    return true;
}

bool ms_api_name(ms_api_parse *p, const ms_api_path *at, const ms_json *v, size_t max) {
    if (!ms_api_is(p, at, v, MS_WANT_STRING)) return false;
    if (!v->str_len || v->str_len > max) {
        return ms_api_bad(p, at, "invalid_value", "expected 1 to %zu bytes, found %zu", max, v->str_len);
    }
    if (memchr(v->str, 0, v->str_len)) {
        return ms_api_bad(p, at, "invalid_value", "the character U+0000 is not allowed here");
    }
    return true;
}

bool ms_api_identifier(const char *s, size_t len) { return plain_key(s, len); }

/* ------------------------------------------------------------------ field classes */

enum { MAX_IGNORED = 2048 };

static bool listed(const ms_text *list, const char *item, size_t len) {
    for (size_t start = 0; start < list->len;) {
        const char *s = list->data + start, *comma = memchr(s, ',', list->len - start);
        size_t n = comma ? (size_t)(comma - s) : list->len - start;
        if (n == len && memcmp(s, item, n) == 0) return true;
        start += n + 1;
    }
    return false;
}

/* A header has its limits: what does not fit is counted by nobody, but the first of its kind always fits. */
static void list_add(ms_text *list, const char *item, size_t len) {
    if (list->len + len + 1 > MAX_IGNORED || listed(list, item, len)) return;
    if (list->len) ms_text_puts(list, ",");
    ms_text_append(list, item, len);
}

void ms_api_ignore(ms_api_parse *p, const ms_api_path *at) {
    ms_text t = {0};
    path_write(&t, at, false);
    if (t.len) list_add(&p->r->ignored, t.data, t.len);
    ms_text_free(&t);
}

void ms_api_tool_skip(ms_api_parse *p, const ms_json *type) {
    bool plain = type && type->type == MS_JSON_STRING && plain_key(type->str, type->str_len);
    if (plain)
        list_add(&p->r->ignored_tools, type->str, type->str_len);
    else
        list_add(&p->r->ignored_tools, "unnamed", strlen("unnamed"));
}

static bool empty_value(const ms_json *v) {
    bool list = v->type == MS_JSON_OBJECT || v->type == MS_JSON_ARRAY;
    return list ? !v->count : v->type == MS_JSON_STRING && !v->str_len;
}

static const ms_api_field *find_field(const ms_api_field *table, const ms_json *v) {
    for (const ms_api_field *f = table; f->name; f++) {
        size_t n = strlen(f->name);
        if (f->name[n - 1] == '*' ? v->key_len >= n - 1 && memcmp(v->key, f->name, n - 1) == 0
                                  : v->key_len == n && memcmp(v->key, f->name, n) == 0) {
            return f;
        }
    }
    return NULL;
}

static bool neutral_value(ms_api_rule rule, const ms_json *v) {
    double d;
    switch (rule) {
    case MS_RULE_FALSE:
        return v->type == MS_JSON_FALSE;
    case MS_RULE_ZERO:
        return ms_json_double(v, &d) && d >= 0.0 && d <= 0.0;
    case MS_RULE_ONE:
        return ms_json_double(v, &d) && d >= 1.0 && d <= 1.0;
    case MS_RULE_EMPTY:
        return v->type != MS_JSON_STRING && empty_value(v);
    case MS_RULE_TEXT:
        return v->type == MS_JSON_ARRAY && v->count == 1 && ms_json_is_string(v->child, "text");
    default:
        return false;
    }
}

/* The refusal of a value that would change the output. */
static bool refuse_field(ms_api_parse *p, const ms_api_path *at, const ms_api_field *f, const ms_json *v) {
    bool number = f->rule == MS_RULE_ZERO || f->rule == MS_RULE_ONE;
    if (number && v->type != MS_JSON_NUMBER) return ms_api_bad_type(p, at, v, "a number");
    if (f->rule == MS_RULE_FALSE && v->type != MS_JSON_TRUE) return ms_api_bad_type(p, at, v, "true or false");
    static const char *const only[] = {[MS_RULE_FALSE] = "false",
                                       [MS_RULE_ZERO] = "0",
                                       [MS_RULE_ONE] = "1",
                                       [MS_RULE_EMPTY] = "an empty object",
                                       [MS_RULE_TEXT] = "[\"text\"]"};
    if (f->rule == MS_RULE_NULL) {
        return ms_api_bad(p, at, "unsupported_parameter", "not supported here%s%s", f->help ? "; " : "",
                          f->help ? f->help : "");
    }
    return ms_api_bad(p, at, "unsupported_value", "only %s is supported here", only[f->rule]);
}

bool ms_api_fields(ms_api_parse *p, const ms_api_path *up, const ms_json *obj, const ms_api_field *table) {
    for (const ms_json *v = obj->child; v; v = v->next) {
        if (v->type == MS_JSON_NULL) continue;
        const ms_api_field *f = find_field(table, v);
        ms_api_path at = {.up = up, .key = plain_key(v->key, v->key_len) ? v->key : f ? f->name : "unnamed"};
        ms_api_rule rule = f ? f->rule : MS_RULE_ADVISORY;
        if (rule == MS_RULE_USED || rule == MS_RULE_QUIET || (rule == MS_RULE_COPY && empty_value(v))) continue;
        if (rule == MS_RULE_ADVISORY || rule == MS_RULE_COPY) {
            ms_api_ignore(p, &at);
            continue;
        }
        if (!neutral_value(rule, v)) return refuse_field(p, &at, f, v);
        if (rule == MS_RULE_FALSE) ms_api_ignore(p, &at);
    }
    return true;
}

void ms_api_request_free(ms_api_request *r) {
    if (!r) return;
    ms_json_free(r->doc);
    ms_json_free(r->chat_doc);
    ms_text_free(&r->body);
    ms_text_free(&r->chat);
    ms_text_free(&r->ignored);
    ms_text_free(&r->ignored_tools);
    free(r->prompt_ids);
    free(r->tools);
    free(r->tool_allowed);
    *r = (ms_api_request){0};
}

void ms_api_parse_init(ms_api_parse *p, ms_api_request *r, ms_api_kind kind, const ms_api_limits *limits,
                       bool count_only, ms_api_error *err) {
    *r = (ms_api_request){.kind = kind, .include_usage = -1, .parallel_tools = true};
    memcpy(r->key, limits->key, sizeof r->key);
    if (err) *err = (ms_api_error){0};
    memset(p, 0, sizeof *p);
    p->r = r;
    p->limits = limits;
    p->err = err;
    p->count_only = count_only;
}

void ms_api_parse_fini(ms_api_parse *p) {
    ms_text_free(&p->tools);
    ms_text_free(&p->choice);
    ms_text_free(&p->format);
}
