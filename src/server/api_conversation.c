/* api_conversation.c: history rules and the chat request of api_conversation.h.
 *
 * Invariants: `order` lists every message once, tool results of one assistant message in the order of its calls.
 */
#include "server/api_conversation.h"

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------ lists */

/* Room for one more element. */
static bool grow(ms_api_conversation *c, void *list, size_t count, size_t *cap, size_t size) {
    if (c->failed) return false;
    if (count < *cap) return true;
    size_t more = *cap ? *cap * 2 : 16, bytes;
    void *old, *fresh;
    memcpy(&old, list, sizeof old);
    fresh = __builtin_mul_overflow(more, size, &bytes) ? NULL : realloc(old, bytes);
    if (!fresh) {
        c->failed = true;
        return false;
    }
    memcpy(list, &fresh, sizeof fresh);
    *cap = more;
    return true;
}

ms_api_message *ms_api_last(ms_api_conversation *c) {
    return c->message_count ? &c->messages[c->message_count - 1] : NULL;
}

ms_api_message *ms_api_add_message(ms_api_conversation *c, ms_api_role role, size_t source) {
    if (!grow(c, &c->messages, c->message_count, &c->message_cap, sizeof *c->messages)) return NULL;
    c->messages[c->message_count++] =
        (ms_api_message){.role = role, .source = source, .part = c->part_count, .call = c->call_count};
    return ms_api_last(c);
}

void ms_api_add_part(ms_api_conversation *c, const char *s, size_t len) {
    if (!grow(c, &c->parts, c->part_count, &c->part_cap, sizeof *c->parts) || !c->message_count) return;
    c->parts[c->part_count++] = (ms_api_str){s, len};
    ms_api_last(c)->parts++;
}

void ms_api_add_call(ms_api_conversation *c, const ms_api_call *call) {
    if (!grow(c, &c->calls, c->call_count, &c->call_cap, sizeof *c->calls) || !c->message_count) return;
    c->calls[c->call_count++] = *call;
    ms_api_last(c)->calls++;
}

ms_api_str ms_api_keep_text(ms_api_conversation *c, ms_text *t) {
    ms_api_str s = {t->data ? t->data : "", t->len};
    if (t->failed) c->failed = true;
    if (grow(c, &c->texts, c->text_count, &c->text_cap, sizeof *c->texts)) {
        c->texts[c->text_count++] = t->data;
        *t = (ms_text){0};
        return s;
    }
    ms_text_free(t);
    return (ms_api_str){"", 0};
}

void ms_api_keep_doc(ms_api_conversation *c, ms_json_doc *doc) {
    if (grow(c, &c->docs, c->doc_count, &c->doc_cap, sizeof(ms_json_doc *)))
        c->docs[c->doc_count++] = doc;
    else
        ms_json_free(doc);
}

void ms_api_conversation_free(ms_api_conversation *c) {
    for (size_t i = 0; i < c->doc_count; i++) ms_json_free(c->docs[i]);
    for (size_t i = 0; i < c->text_count; i++) free(c->texts[i]);
    free(c->docs);
    free(c->texts);
    free(c->messages);
    free(c->parts);
    free(c->calls);
    *c = (ms_api_conversation){0};
}

/* ------------------------------------------------------------------ content and arguments */

static bool content_part(ms_api_parse *p, const ms_api_path *at, const ms_json *v, bool assistant,
                         ms_api_conversation *c) {
    const ms_json *type, *s;
    if (!ms_api_is(p, at, v, MS_WANT_OBJECT) || !ms_api_need(p, at, v, "type", MS_WANT_STRING, &type)) return false;
    bool text = ms_json_is_string(type, "text") || ms_json_is_string(type, "input_text");
    bool refusal = assistant && ms_json_is_string(type, "refusal");
    text = text || refusal || (assistant && ms_json_is_string(type, "output_text"));
    ms_api_path type_at = {.up = at, .key = "type"};
    if (!text) return ms_api_bad(p, &type_at, "unsupported_content_part", "only text parts are supported here");
    if (!ms_api_need(p, at, v, refusal ? "refusal" : "text", MS_WANT_STRING, &s)) return false;
    static const ms_api_field fields[] = {{"type", MS_RULE_USED, NULL},      {"text", MS_RULE_USED, NULL},
                                          {"refusal", MS_RULE_USED, NULL},   {"annotations", MS_RULE_QUIET, NULL},
                                          {"logprobs", MS_RULE_QUIET, NULL}, {NULL, MS_RULE_USED, NULL}};
    if (!ms_api_fields(p, at, v, fields)) return false;
    if (s->str_len) ms_api_add_part(c, s->str, s->str_len);
    return true;
}

bool ms_api_content(ms_api_parse *p, const ms_api_path *at, const ms_json *v, bool assistant, ms_api_conversation *c) {
    if (v->type == MS_JSON_STRING) {
        if (v->str_len) ms_api_add_part(c, v->str, v->str_len);
        return true;
    }
    if (v->type != MS_JSON_ARRAY) return ms_api_bad_type(p, at, v, "a string or an array of text parts");
    ms_api_path item = {.up = at};
    for (const ms_json *part = v->child; part; part = part->next, item.index++) {
        if (!content_part(p, &item, part, assistant, c)) return false;
    }
    return true;
}

bool ms_api_old_arguments(ms_api_parse *p, const ms_api_path *at, const ms_json *v) {
    if (!v || v->type == MS_JSON_OBJECT) return true;
    if (v->type != MS_JSON_STRING) return ms_api_bad_type(p, at, v, "a string");
    ms_json_limits limits = {.max_depth = MS_JSON_MAX_DEPTH};
    ms_json_doc *doc;
    if (ms_json_parse(&doc, v->str, v->str_len, "arguments", &limits, NULL) != MS_OK) return true;
    bool object = ms_json_root(doc)->type == MS_JSON_OBJECT;
    ms_json_free(doc);
    return object || ms_api_bad(p, at, "invalid_value", "arguments that are JSON must be an object");
}

/* ------------------------------------------------------------------ order of calls and results */

typedef struct call_ref {
    ms_api_str id;
    size_t position;
} call_ref;

static int compare(ms_api_str a, ms_api_str b) {
    size_t n = a.n < b.n ? a.n : b.n;
    int c = n ? memcmp(a.s, b.s, n) : 0;
    return c ? c : a.n < b.n ? -1 : a.n > b.n;
}

static int by_id(const void *a, const void *b) { return compare(((const call_ref *)a)->id, ((const call_ref *)b)->id); }

static bool bad_history(ms_api_parse *p, const ms_api_conversation *c, size_t message, ms_api_str id, const char *why) {
    ms_api_path list = {.key = c->list}, at = {.up = &list, .index = c->messages[message].source};
    bool plain = id.n && ms_api_identifier(id.s, id.n); /* else the text cannot name it */
    return ms_api_bad(p, &at, "tool_history_invalid", "%s%s%.*s", why, plain ? ": " : "", plain ? (int)id.n : 0,
                      plain ? id.s : "");
}

/* The results that must follow assistant message `at`: order[at + 1 ..] gets their indexes in call order. */
static bool order_results(ms_api_parse *p, const ms_api_conversation *c, size_t at, call_ref *refs, size_t *order) {
    const ms_api_message *m = &c->messages[at];
    for (size_t i = 0; i < m->calls; i++) refs[i] = (call_ref){c->calls[m->call + i].id, i};
    qsort(refs, m->calls, sizeof *refs, by_id);
    for (size_t i = 1; i < m->calls; i++) {
        if (!compare(refs[i - 1].id, refs[i].id)) return bad_history(p, c, at, refs[i].id, "two calls have one id");
    }
    for (size_t i = 0; i < m->calls; i++) order[at + 1 + i] = SIZE_MAX;
    for (size_t i = 0; i < m->calls; i++) {
        size_t t = at + 1 + i;
        if (t >= c->message_count || c->messages[t].role != MS_ROLE_TOOL) {
            const ms_api_call *call = &c->calls[m->call];
            while (order[at + 1 + (size_t)(call - &c->calls[m->call])] != SIZE_MAX) call++;
            return bad_history(p, c, at, call->id, "a call has no result right after this message");
        }
        call_ref key = {.id = c->messages[t].call_id};
        const call_ref *found = bsearch(&key, refs, m->calls, sizeof *refs, by_id);
        if (!found) return bad_history(p, c, t, key.id, "the message before has no call of this id");
        if (order[at + 1 + found->position] != SIZE_MAX) {
            return bad_history(p, c, t, key.id, "a second result for one call");
        }
        order[at + 1 + found->position] = t;
    }
    return true;
}

/* `order` has room for every message and every call, also for results that are missing. */
static bool check_history(ms_api_parse *p, const ms_api_conversation *c, size_t *order) {
    size_t most = 0;
    for (size_t i = 0; i < c->message_count; i++) {
        if (c->messages[i].calls > most) most = c->messages[i].calls;
    }
    call_ref *refs = calloc(most + 1, sizeof *refs);
    if (!refs) return ms_api_fail_memory(p->err);
    bool good = true;
    for (size_t i = 0; i < c->message_count && good;) {
        const ms_api_message *m = &c->messages[i];
        if (m->role == MS_ROLE_TOOL) {
            good = bad_history(p, c, i, m->call_id, "this result does not follow a message with calls");
            break;
        }
        order[i] = i;
        if (m->role == MS_ROLE_ASSISTANT && i + 1 == c->message_count) break;
        if (m->calls) good = order_results(p, c, i, refs, order);
        i += 1 + m->calls;
    }
    free(refs);
    return good;
}

/* ------------------------------------------------------------------ the chat request */

static void put_string(ms_text *out, const char *key, ms_api_str s) {
    ms_text_printf(out, ",\"%s\":", key);
    ms_json_write_string(out, s.s, s.n);
}

static void put_content(ms_text *out, const ms_api_conversation *c, const ms_api_message *m) {
    const ms_api_str *parts = c->parts ? c->parts + m->part : NULL;
    ms_text_puts(out, ",\"content\":");
    if (m->parts > 1 && m->role != MS_ROLE_ASSISTANT) {
        for (size_t i = 0; i < m->parts; i++) {
            ms_text_puts(out, i ? ",{\"type\":\"text\"" : "[{\"type\":\"text\"");
            put_string(out, "text", parts[i]);
            ms_text_puts(out, "}");
        }
        ms_text_puts(out, "]");
        return;
    }
    ms_text joined = {0};
    for (size_t i = 0; i < m->parts; i++) ms_text_append(&joined, parts[i].s, parts[i].n);
    ms_json_write_string(out, joined.data ? joined.data : "", joined.len);
    out->failed = out->failed || joined.failed;
    ms_text_free(&joined);
}

static void put_call(ms_text *out, const ms_api_call *call) {
    ms_text_puts(out, "{\"type\":\"function\"");
    put_string(out, "id", call->id);
    ms_text_puts(out, ",\"function\":{\"name\":");
    ms_json_write_string(out, call->name.s, call->name.n);
    ms_text_puts(out, ",\"arguments\":");
    if (call->arguments && (call->arguments->type != MS_JSON_STRING || call->arguments->str_len)) {
        ms_text_append(out, call->arguments->raw, call->arguments->raw_len);
    } else {
        ms_text_puts(out, "\"{}\"");
    }
    ms_text_puts(out, "}}");
}

static void put_message(ms_text *out, const ms_api_conversation *c, const ms_api_message *m) {
    static const char *const roles[] = {"system", "user", "assistant", "tool"};
    ms_text_printf(out, "{\"role\":\"%s\"", roles[m->role]);
    if (m->name.n) put_string(out, "name", m->name);
    if (m->role == MS_ROLE_TOOL) put_string(out, "tool_call_id", m->call_id);
    if (m->has_reasoning) put_string(out, "reasoning_content", m->reasoning);
    if (m->tools) {
        ms_text_puts(out, ",\"tools\":");
        ms_text_append(out, m->tools->raw, m->tools->raw_len);
    } else {
        put_content(out, c, m);
    }
    for (size_t i = 0; i < m->calls; i++) {
        ms_text_puts(out, i ? "," : ",\"tool_calls\":[");
        put_call(out, &c->calls[m->call + i]);
    }
    ms_text_puts(out, m->calls ? "]}" : "}");
}

static void put_options(ms_text *out, const ms_api_parse *p) {
    const ms_api_request *r = p->r;
    if (p->tools.len) ms_text_printf(out, ",\"tools\":[");
    ms_text_append(out, p->tools.data, p->tools.len);
    if (p->tools.len) ms_text_puts(out, "]");
    if (p->choice.len) ms_text_printf(out, ",\"tool_choice\":");
    ms_text_append(out, p->choice.data, p->choice.len);
    if (p->tool_count && !r->parallel_tools) ms_text_puts(out, ",\"parallel_tool_calls\":false");
    if (p->format.len) ms_text_puts(out, ",\"response_format\":");
    ms_text_append(out, p->format.data, p->format.len);
    ms_text_printf(out, ",\"thinking\":%s", r->thinking ? "true" : "false");
    if (r->effort) {
        ms_text_puts(out, ",\"thinking_effort\":");
        ms_api_put(out, r->effort);
    }
    out->failed = out->failed || p->tools.failed || p->choice.failed || p->format.failed;
}

static void bind_tools(ms_api_request *r, const ms_json *list, size_t room, size_t *count) {
    for (const ms_json *v = list ? list->child : NULL; v && *count < room; v = v->next) {
        const ms_json *f = ms_api_any(v, "function"), *name = ms_api_any(f, "name"), *strict = ms_api_any(f, "strict");
        if (!name) continue;
        r->tools[(*count)++] = (ms_api_tool){.name = name->str,
                                             .name_len = name->str_len,
                                             .parameters = ms_api_any(f, "parameters"),
                                             .strict = strict && strict->type == MS_JSON_TRUE};
    }
}

/* Points the request at its parts of the chat document. */
static bool bind(ms_api_parse *p) {
    ms_api_request *r = p->r;
    ms_json_limits limits = {.max_depth = MS_JSON_MAX_DEPTH};
    if (r->chat.failed) return ms_api_fail_memory(p->err);
    if (ms_json_parse(&r->chat_doc, r->chat.data, r->chat.len, "chat", &limits, NULL) != MS_OK) {
        return ms_api_fail_memory(p->err);
    }
    const ms_json *root = ms_json_root(r->chat_doc);
    r->schema = ms_json_get(ms_json_get(ms_json_get(root, "response_format"), "json_schema"), "schema");
    if (!p->tool_count) return true;
    r->tools = calloc(p->tool_count, sizeof *r->tools);
    r->tool_allowed = calloc(p->tool_count, sizeof *r->tool_allowed);
    if (!r->tools || !r->tool_allowed) return ms_api_fail_memory(p->err);
    bind_tools(r, ms_json_get(root, "tools"), p->tool_count, &r->tool_count);
    for (const ms_json *m = ms_json_get(root, "messages")->child; m; m = m->next) {
        bind_tools(r, ms_json_get(m, "tools"), p->tool_count, &r->tool_count);
    }
    for (size_t i = 0; i < r->tool_count; i++) {
        r->tool_allowed[i] = p->allowed[i];
        r->tools[i].message = p->tool_places[i].message;
        r->tools[i].index = p->tool_places[i].index;
    }
    return true;
}

bool ms_api_conversation_finish(ms_api_parse *p, ms_api_conversation *c) {
    if (c->failed) return ms_api_fail_memory(p->err);
    ms_api_path list = {.key = c->list};
    if (!c->message_count) return ms_api_bad(p, &list, "invalid_value", "expected at least one message");
    size_t *order = calloc(c->message_count + c->call_count, sizeof *order);
    if (!order) return ms_api_fail_memory(p->err);
    if (!check_history(p, c, order)) {
        free(order);
        return false;
    }
    const ms_api_message *last = ms_api_last(c);
    ms_api_path at = {.up = &list, .index = last->source};
    if (last->role == MS_ROLE_ASSISTANT) {
        free(order);
        return ms_api_bad(p, &at, "assistant_prefill_unsupported", "the last message must not be of the assistant");
    }
    ms_api_request *r = p->r;
    ms_text_puts(&r->chat, "{\"messages\":[");
    for (size_t i = 0; i < c->message_count; i++) {
        if (i) ms_text_puts(&r->chat, ",");
        put_message(&r->chat, c, &c->messages[order[i]]);
    }
    free(order);
    ms_text_puts(&r->chat, "]");
    put_options(&r->chat, p);
    ms_text_puts(&r->chat, "}");
    r->message_count = c->message_count > UINT32_MAX ? UINT32_MAX : (uint32_t)c->message_count;
    return bind(p);
}
