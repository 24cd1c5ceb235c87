#include "server/candidate.h"

#include <stdlib.h>
#include <string.h>

/* A request with some members left out or replaced, over the nodes of the original. */
typedef struct variant {
    ms_json root, *members;
    ms_json messages, *kept; /* kept: copies of leading messages */
    ms_json tools, only;
} variant;

static void variant_free(variant *v) {
    free(v->members);
    free(v->kept);
}

static bool is_directive(const char *key) {
    static const char *const keys[] = {"tool_choice", "parallel_tool_calls", "response_format",
                                       "add_generation_prompt"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        if (strcmp(key, keys[i]) == 0) return true;
    }
    return false;
}

/* The tool that a named choice leaves; NULL: all of them. */
static const ms_json *named_tool(const ms_json *request) {
    const ms_json *choice = ms_json_get(request, "tool_choice"), *f = ms_json_get(choice, "function");
    const ms_json *name = ms_json_get(f ? f : choice, "name"), *tools = ms_json_get(request, "tools");
    if (!name || name->type != MS_JSON_STRING || !tools || tools->type != MS_JSON_ARRAY) return NULL;
    for (const ms_json *t = tools->child; t; t = t->next) {
        const ms_json *own = ms_json_get(t, "function"), *n = ms_json_get(own ? own : t, "name");
        if (n && n->type == MS_JSON_STRING && n->str_len == name->str_len && !memcmp(n->str, name->str, n->str_len)) {
            return t;
        }
    }
    return NULL;
}

static ms_json *push_member(variant *v, size_t *n, const ms_json *member) {
    ms_json *m = &v->members[*n];
    *m = *member;
    m->next = NULL;
    if (*n) v->members[*n - 1].next = m;
    (*n)++;
    return m;
}

/* The first `keep` messages (SIZE_MAX: all) without directives; `named` still declares its one tool. */
static ms_status make_variant(variant *v, const ms_json *request, size_t keep, bool generation, ms_error *err) {
    *v = (variant){0};
    v->members = calloc(request->count + 1, sizeof *v->members);
    if (!v->members) return ms_fail_memory(err, "a request", request->count * sizeof *v->members);
    size_t n = 0;
    const ms_json *only = named_tool(request);
    for (const ms_json *m = request->child; m; m = m->next) {
        if (is_directive(m->key)) continue;
        ms_json *copy = push_member(v, &n, m);
        if (only && strcmp(m->key, "tools") == 0) {
            v->only = *only;
            v->only.next = NULL;
            copy->child = &v->only;
            copy->count = 1;
        }
        if (strcmp(m->key, "messages") == 0 && keep < m->count) {
            v->kept = calloc(keep ? keep : 1, sizeof *v->kept);
            if (!v->kept) return ms_fail_memory(err, "messages", keep * sizeof *v->kept);
            const ms_json *from = m->child;
            for (size_t i = 0; i < keep; i++, from = from->next) {
                v->kept[i] = *from;
                v->kept[i].next = i + 1 < keep ? &v->kept[i + 1] : NULL;
            }
            copy->child = keep ? v->kept : NULL;
            copy->count = keep;
        }
    }
    const ms_json prompt = {.type = generation ? MS_JSON_TRUE : MS_JSON_FALSE,
                            .raw = generation ? "true" : "false",
                            .raw_len = generation ? 4 : 5,
                            .key = "add_generation_prompt",
                            .key_len = 21};
    (void)push_member(v, &n, &prompt);
    v->root = *request;
    v->root.child = v->members;
    v->root.count = n;
    return MS_OK;
}

/* Renders a variant and counts its segments when `all` begins with them; else *count is 0. */
static ms_status count_prefix(const ms_text_model *model, const ms_json *request, size_t keep, bool generation,
                              const ms_segments *all, size_t *count, ms_error *err) {
    variant v;
    ms_segments s = {0};
    *count = 0;
    ms_status status = make_variant(&v, request, keep, generation, err);
    if (status == MS_OK) status = model->lane->render(&v.root, &s, err);
    bool same = status == MS_OK && s.count <= all->count;
    for (size_t i = 0; same && i < s.count; i++) {
        const ms_segment *a = &all->items[i], *b = &s.items[i];
        same = a->control == b->control && a->len == b->len && memcmp(a->text, b->text, a->len) == 0;
    }
    if (same || generation) *count = s.count;
    ms_segments_free(&s);
    variant_free(&v);
    return status;
}

static ms_status encode(ms_candidate *c, const ms_text_model *model, ms_error *err) {
    c->first = calloc(c->segments.count + 1, sizeof *c->first);
    if (!c->first) return ms_fail_memory(err, "a prompt", (c->segments.count + 1) * sizeof *c->first);
    for (size_t i = 0; i < c->segments.count; i++) {
        c->first[i] = c->ids.count;
        const ms_segments one = {.items = &c->segments.items[i], .count = 1};
        MS_TRY(ms_segments_encode(&one, model->tokenizer, &c->ids, err));
    }
    c->first[c->segments.count] = c->ids.count;
    return MS_OK;
}

static bool has_directives(const ms_json *request) {
    for (const ms_json *m = request->child; m; m = m->next) {
        if (m->type != MS_JSON_NULL && is_directive(m->key)) return true;
    }
    return false;
}

static size_t leading_system(const ms_json *request) {
    const ms_json *messages = ms_json_get(request, "messages");
    size_t n = 0;
    for (const ms_json *m = messages && messages->type == MS_JSON_ARRAY ? messages->child : NULL; m; m = m->next, n++) {
        const ms_json *role = ms_json_get(m, "role");
        if (!ms_json_is_string(role, "system") && !ms_json_is_string(role, "developer")) break;
    }
    return n;
}

/* Finds the directives: what stands behind the messages, before as much as a generation prompt takes. */
static ms_status find_hidden(ms_candidate *c, const ms_text_model *model, const ms_json *request, ms_error *err) {
    if (!has_directives(request)) return MS_OK;
    size_t messages, with_prompt;
    MS_TRY(count_prefix(model, request, SIZE_MAX, false, &c->segments, &messages, err));
    MS_TRY(count_prefix(model, request, SIZE_MAX, true, &c->segments, &with_prompt, err));
    size_t opener = with_prompt - messages;
    if (!messages || with_prompt < messages || c->segments.count < messages + opener) return MS_OK;
    size_t end = c->first[c->segments.count - opener];
    c->hidden_first = c->first[messages];
    c->hidden_count = end - c->hidden_first;
    return MS_OK;
}

static ms_status build(ms_candidate *c, const ms_text_model *model, const ms_json *request, ms_error *err) {
    c->thinking = true;
    (void)ms_json_bool(ms_json_get(request, "thinking"), &c->thinking);
    c->channel = c->thinking ? MS_CHANNEL_THINK : MS_CHANNEL_RESPONSE;
    MS_TRY(model->lane->render(request, &c->segments, err));
    MS_TRY(encode(c, model, err));
    MS_TRY(find_hidden(c, model, request, err));
    size_t anchor;
    MS_TRY(count_prefix(model, request, leading_system(request), false, &c->segments, &anchor, err));
    c->anchor = c->first[anchor];
    return ms_reply_closing_count(model, c->thinking, &c->closing, err);
}

ms_status ms_candidate_build(ms_candidate *out, const ms_text_model *model, const ms_json *request, ms_error *err) {
    *out = (ms_candidate){0};
    ms_status status = build(out, model, request, err);
    if (status != MS_OK) ms_candidate_free(out);
    return status;
}

ms_status ms_candidate_raw(ms_candidate *out, const uint32_t *ids, size_t count, ms_error *err) {
    *out = (ms_candidate){0};
    ms_status status = ms_ids_append(&out->ids, ids, count, err);
    if (status == MS_OK) {
        out->first = calloc(1, sizeof *out->first);
        if (!out->first) status = ms_fail_memory(err, "a prompt", sizeof *out->first);
    }
    if (status == MS_OK) out->first[0] = count;
    if (status != MS_OK) ms_candidate_free(out);
    return status;
}

void ms_candidate_free(ms_candidate *c) {
    ms_segments_free(&c->segments);
    ms_ids_free(&c->ids);
    free(c->first);
    *c = (ms_candidate){0};
}
