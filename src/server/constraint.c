#include "server/constraint.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/api_read.h"

enum { KEPT = 4 };

struct ms_constraint {
    const ms_vocabulary *vocabulary;
    ms_grammar *grammar;
    ms_mask_cache *masks;
    ms_text key;
    ms_text ignored; /* comma list */
    bool always_complete;
    uint32_t least; /* ms_constraint_least */
    atomic_uint references;
};

struct ms_constraints {
    const ms_text_model *model;
    ms_vocabulary *vocabulary;
    pthread_mutex_t lock;
    ms_constraint *kept[KEPT]; /* latest first */
};

/* ------------------------------------------------------------------ life */

ms_status ms_constraints_create(ms_constraints **out, const ms_text_model *model, ms_error *err) {
    *out = NULL;
    if (!model->lane->reply_grammar) return MS_OK;
    ms_constraints *c = calloc(1, sizeof *c);
    if (!c) return ms_fail_memory(err, "reply grammars", sizeof *c);
    c->model = model;
    (void)pthread_mutex_init(&c->lock, NULL);
    ms_status status = ms_vocabulary_create(&c->vocabulary, model->tokenizer, model->info.vocab, err);
    if (status == MS_OK)
        *out = c;
    else
        ms_constraints_destroy(c);
    return status;
}

void ms_constraints_destroy(ms_constraints *c) {
    if (!c) return;
    for (size_t i = 0; i < KEPT; i++) ms_constraint_release(c->kept[i]);
    ms_vocabulary_destroy(c->vocabulary);
    (void)pthread_mutex_destroy(&c->lock);
    free(c);
}

uint32_t ms_constraint_least(const ms_constraint *c) { return c->least; }

void ms_constraint_release(ms_constraint *c) {
    if (!c || atomic_fetch_sub(&c->references, 1) != 1) return;
    ms_mask_cache_destroy(c->masks);
    ms_grammar_free(c->grammar);
    ms_text_free(&c->key);
    ms_text_free(&c->ignored);
    free(c);
}

/* ------------------------------------------------------------------ making */

typedef struct making {
    ms_reply_rules rules;
    ms_reply_tool *tools;         /* [request's tools] */
    const ms_api_tool **declared; /* each as the request has it */
    bool *unconstrained;
} making;

static bool is_callable(const ms_api_request *q, size_t i) { return !q->tool_allowed || q->tool_allowed[i]; }

static bool prepare(making *m, const ms_api_request *q) {
    static const ms_reply_format formats[] = {MS_REPLY_TEXT, MS_REPLY_JSON_OBJECT, MS_REPLY_JSON_SCHEMA};
    size_t n = q->tool_count ? q->tool_count : 1;
    *m = (making){.tools = calloc(n, sizeof *m->tools),
                  .declared = calloc(n, sizeof *m->declared),
                  .unconstrained = calloc(n, sizeof *m->unconstrained)};
    if (!m->tools || !m->declared || !m->unconstrained) return false;
    bool must = q->tool_choice == MS_TOOLS_REQUIRED || q->tool_choice == MS_TOOLS_NAMED ||
                (q->tool_choice == MS_TOOLS_ALLOWED && q->allowed_required);
    m->rules = (ms_reply_rules){.channel = q->thinking ? MS_CHANNEL_THINK : MS_CHANNEL_RESPONSE,
                                .tools = m->tools,
                                .choice = must                              ? MS_REPLY_MUST_CALL
                                          : q->tool_choice == MS_TOOLS_NONE ? MS_REPLY_NO_TOOLS
                                                                            : MS_REPLY_AUTO,
                                .parallel = q->parallel_tools,
                                .format = formats[q->format],
                                .schema = q->schema};
    for (size_t i = 0; i < q->tool_count; i++) {
        if (!is_callable(q, i)) continue;
        const ms_api_tool *t = &q->tools[i];
        m->declared[m->rules.tool_count] = t;
        m->tools[m->rules.tool_count++] = (ms_reply_tool){t->name, t->name_len, t->parameters, t->strict};
    }
    if (m->rules.choice == MS_REPLY_NO_TOOLS || !m->rules.tool_count) {
        m->rules.choice = MS_REPLY_NO_TOOLS;
        m->rules.tool_count = 0;
    }
    return true;
}

static void unprepare(making *m) {
    free(m->tools);
    free(m->declared);
    free(m->unconstrained);
}

/* Everything that the grammar depends on, as text. */
static void write_key(const making *m, ms_text *key) {
    ms_text_printf(key, "%d %d %d %d\n", (int)m->rules.channel, (int)m->rules.choice, m->rules.parallel,
                   (int)m->rules.format);
    if (m->rules.schema) ms_text_append(key, m->rules.schema->raw, m->rules.schema->raw_len);
    for (size_t i = 0; i < m->rules.tool_count; i++) {
        const ms_reply_tool *t = &m->tools[i];
        ms_text_printf(key, "\n%u %u %zu %d ", m->declared[i]->message, m->declared[i]->index, t->name_len, t->strict);
        ms_text_append(key, t->name, t->name_len);
        if (t->parameters) ms_text_append(key, t->parameters->raw, t->parameters->raw_len);
    }
}

/* What is wrong with the schema at a place: keyword and reason, as the compiler found them. */
static bool refuse_schema(const ms_schema_fault *f, const char *place, ms_api_error *e) {
    const char *code = f->kind == MS_SCHEMA_MALFORMED ? "invalid_schema" : "unsupported_schema";
    const char *reason = *f->reason ? f->reason : "it cannot be kept exactly, or takes too much work";
    if (f->kind == MS_SCHEMA_UNKNOWN) reason = "this keyword is not known";
    if (f->kind == MS_SCHEMA_IMPOSSIBLE) reason = "no value fits the schema, or none that can be written exactly";
    return ms_api_fail(e, 400, code, place, "%s: %s%s%s", place, f->keyword, *f->keyword ? ": " : "", reason);
}

/* Where the request has the schema of a tool or (NULL) of the response format, as a JSON pointer. */
static void schema_place(char *out, size_t size, ms_api_kind kind, const ms_api_tool *t) {
    const char *in_function = kind == MS_API_CHAT ? "/function" : "";
    const char *schema = kind == MS_API_MESSAGES ? "input_schema" : "parameters";
    if (t && t->message != MS_API_NO_MESSAGE)
        (void)snprintf(out, size, "/messages/%u/tools/%u%s/%s", t->message, t->index, in_function, schema);
    else if (t)
        (void)snprintf(out, size, "/tools/%u%s/%s", t->index, in_function, schema);
    else
        (void)snprintf(out, size, "%s",
                       kind == MS_API_CHAT       ? "/response_format/json_schema/schema"
                       : kind == MS_API_MESSAGES ? "/output_config/format/schema"
                                                 : "/text/format/schema");
}

static bool refuse(const making *m, const ms_api_request *q, const ms_reply_report *report, ms_status status,
                   ms_api_error *e) {
    if (status == MS_ERR_MEMORY) return ms_api_fail_memory(e);
    if (status != MS_ERR_USAGE)
        return ms_api_fail(e, 500, "internal_error", "", "the reply's grammar could not be made");
    char schema[60], place[256];
    bool of_tool = report->fault_tool != MS_REPLY_RESPONSE && report->fault_tool < m->rules.tool_count;
    schema_place(schema, sizeof schema, q->kind, of_tool ? m->declared[report->fault_tool] : NULL);
    (void)snprintf(place, sizeof place, "%s%.195s", schema, report->fault.pointer);
    return refuse_schema(&report->fault, place, e);
}

static bool make(ms_constraints *c, making *m, const ms_api_request *q, ms_constraint *out, ms_api_error *e) {
    ms_reply_report report = {.fault_tool = MS_REPLY_RESPONSE, .unconstrained = m->unconstrained};
    ms_error err;
    ms_status status = c->model->lane->reply_grammar(&out->grammar, c->model->tokenizer, &m->rules, &report, &err);
    if (status == MS_OK) status = ms_mask_cache_create(&out->masks, out->grammar, c->vocabulary, &err);
    out->vocabulary = c->vocabulary;
    out->least = 1;
    out->always_complete = m->rules.format != MS_REPLY_TEXT || m->rules.choice == MS_REPLY_MUST_CALL;
    if (status == MS_OK && out->always_complete)
        status = ms_grammar_tokens_needed(out->grammar, c->vocabulary, &out->least, &err);
    if (status != MS_OK) return refuse(m, q, &report, status, e);
    for (size_t i = 0; i < m->rules.tool_count; i++) {
        if (!m->unconstrained[i]) continue;
        const ms_api_tool *t = m->declared[i];
        if (out->ignored.len) ms_text_puts(&out->ignored, ",");
        if (t->message != MS_API_NO_MESSAGE) ms_text_printf(&out->ignored, "messages[%u].", t->message);
        ms_text_printf(&out->ignored, "tools[%u].parameters(grammar)", t->index);
    }
    return true;
}

/* The kept one of this key, moved to the front; NULL: none. */
static ms_constraint *find(ms_constraints *c, const ms_text *key) {
    ms_constraint *found = NULL;
    (void)pthread_mutex_lock(&c->lock);
    for (size_t i = 0; i < KEPT && c->kept[i] && !found; i++) {
        const ms_text *k = &c->kept[i]->key;
        if (k->len != key->len || memcmp(k->data, key->data, key->len) != 0) continue;
        found = c->kept[i];
        memmove(&c->kept[1], &c->kept[0], i * sizeof c->kept[0]);
        c->kept[0] = found;
        (void)atomic_fetch_add(&found->references, 1);
    }
    (void)pthread_mutex_unlock(&c->lock);
    return found;
}

static void keep(ms_constraints *c, ms_constraint *one) {
    (void)atomic_fetch_add(&one->references, 1);
    (void)pthread_mutex_lock(&c->lock);
    ms_constraint *last = c->kept[KEPT - 1];
    memmove(&c->kept[1], &c->kept[0], (KEPT - 1) * sizeof c->kept[0]);
    c->kept[0] = one;
    (void)pthread_mutex_unlock(&c->lock);
    ms_constraint_release(last);
}

static bool get(ms_constraints *c, making *m, const ms_api_request *q, ms_constraint **out, ms_api_error *e) {
    ms_text key = {0};
    write_key(m, &key);
    if (key.failed) return ms_api_fail(e, 500, "internal_error", "", "out of memory");
    *out = find(c, &key);
    if (*out) {
        ms_text_free(&key);
        return true;
    }
    ms_constraint *one = calloc(1, sizeof *one);
    if (!one) {
        ms_text_free(&key);
        return ms_api_fail(e, 500, "internal_error", "", "out of memory");
    }
    atomic_init(&one->references, 1);
    one->key = key;
    if (!make(c, m, q, one, e)) {
        ms_constraint_release(one);
        return false;
    }
    keep(c, one);
    *out = one;
    return true;
}

bool ms_constraints_get(ms_constraints *c, ms_api_request *q, ms_constraint **out, ms_api_error *e) {
    *out = NULL;
    if (!c || q->kind == MS_API_COMPLETIONS || (!q->tool_count && q->format == MS_API_TEXT)) return true;
    making m;
    bool good = prepare(&m, q) ? get(c, &m, q, out, e) : ms_api_fail(e, 500, "internal_error", "", "out of memory");
    unprepare(&m);
    if (good && (*out)->least > q->max_tokens) {
        return ms_api_fail(e, 400, "out_of_range", q->max_tokens_key,
                           "%s: expected at least %u, which the shortest reply takes that keeps to tool_choice and the "
                           "response format, found %llu",
                           q->max_tokens_key, (*out)->least, (unsigned long long)q->max_tokens);
    }
    if (good && (*out)->ignored.len) {
        if (q->ignored.len) ms_text_puts(&q->ignored, ",");
        ms_text_append(&q->ignored, (*out)->ignored.data, (*out)->ignored.len);
    }
    return good;
}

/* ------------------------------------------------------------------ holding */

ms_status ms_held_begin(ms_held *h, ms_constraint *c, ms_error *err) {
    size_t words = ms_vocabulary_mask_words(c->vocabulary);
    *h = (ms_held){.constraint = c, .mask = calloc(words, sizeof *h->mask), .always_complete = c->always_complete};
    if (!h->mask) return ms_fail_memory(err, "a token mask", words * sizeof *h->mask);
    return ms_matcher_create(&h->matcher, c->grammar, err);
}

ms_status ms_held_next(ms_held *h, bool in_tools, uint64_t remaining, ms_error *err) {
    bool limited = (h->always_complete || in_tools) && remaining < MS_UNLIMITED;
    return ms_mask_next(h->constraint->masks, h->matcher, limited ? (uint32_t)remaining : MS_UNLIMITED, h->mask, err);
}

ms_status ms_held_take(ms_held *h, uint32_t id, ms_error *err) {
    if (ms_matcher_token(h->matcher, h->constraint->vocabulary, id)) return MS_OK;
    if (ms_matcher_failed(h->matcher)) return ms_fail_memory(err, "what a reply has read", sizeof *h);
    return ms_fail(err, MS_ERR_INTERNAL, "a token that the mask allowed does not fit the grammar");
}

ms_status ms_held_fits(const ms_held *h, uint64_t remaining, bool *fits, ms_error *err) {
    uint32_t needed;
    MS_TRY(ms_mask_tokens_needed(h->constraint->masks, h->matcher, &needed, err));
    *fits = needed <= remaining;
    return MS_OK;
}

void ms_held_end(ms_held *h) {
    ms_matcher_destroy(h->matcher);
    free(h->mask);
    *h = (ms_held){0};
}

/* ------------------------------------------------------------------ the other check */

static bool fits_schema(const ms_json *schema, const ms_json *value) {
    ms_schema *s = NULL;
    bool valid = false;
    if (ms_schema_open(&s, schema, NULL, NULL) != MS_OK) return false;
    bool good = ms_schema_validate(s, value, &valid, NULL) == MS_OK && valid;
    ms_schema_close(s);
    return good;
}

bool ms_response_fits(const ms_api_request *q, const char *content, size_t len) {
    ms_json_doc *doc = NULL;
    static const ms_json_limits limits = {.max_depth = MS_JSON_MAX_DEPTH, .reject_duplicates = true};
    bool good = ms_json_parse(&doc, content, len, "content", &limits, NULL) == MS_OK;
    if (good && q->format == MS_API_JSON_OBJECT) good = ms_json_root(doc)->type == MS_JSON_OBJECT;
    if (good && q->format == MS_API_JSON_SCHEMA && q->schema) good = fits_schema(q->schema, ms_json_root(doc));
    ms_json_free(doc);
    return good;
}
