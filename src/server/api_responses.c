/* api_responses.c: a Responses request: items to messages.
 *
 * An assistant turn is a reasoning item, a message and calls, in that order, each optional.  A turn ends with a result,
 * with another role's message, or where the next item would come out of order.  What a client left out of a turn with
 * calls is taken from the conversation that the server remembers by call id.
 */
#include "server/api_conversation.h"
#include "server/api_write.h"

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------ remembered calls */

/* The remembered conversation of a call, as a document that the conversation keeps; NULL: not remembered. */
static const ms_json *remembered(ms_api_parse *p, ms_api_str id, ms_api_conversation *c) {
    ms_text list = {0}, all = {0};
    ms_json_doc *doc = NULL;
    ms_json_limits limits = {.max_depth = MS_JSON_MAX_DEPTH};
    if (p->limits->call_history && p->limits->call_history(p->limits->call_history_arg, id.s, id.n, &list)) {
        ms_text_puts(&all, "[");
        ms_text_append(&all, list.data, list.len);
        ms_text_puts(&all, "]");
        if (list.failed || all.failed)
            c->failed = true;
        else if (ms_json_parse(&doc, all.data, all.len, "history", &limits, NULL) != MS_OK)
            doc = NULL;
    }
    ms_text_free(&list);
    if (!doc) {
        ms_text_free(&all);
        return NULL;
    }
    (void)ms_api_keep_text(c, &all); /* raw texts of the document point into it */
    const ms_json *root = ms_json_root(doc);
    ms_api_keep_doc(c, doc);
    return c->failed || !root->count ? NULL : root;
}

/* Results for calls that the input does not have: the remembered conversation goes in front. */
static bool splice(ms_api_parse *p, const ms_api_path *at, ms_api_str id, ms_api_conversation *c) {
    const ms_json *list = remembered(p, id, c);
    if (c->failed) return ms_api_fail_memory(p->err);
    if (!list) {
        return ms_api_bad(p, at, "unknown_call_id",
                          "neither the input nor this server's memory has the call; replay the full input");
    }
    p->spliced = true;
    ms_api_path item = {.up = at};
    for (const ms_json *v = list->child; v; v = v->next) {
        if (!ms_api_chat_message(p, &item, v, c)) return false;
    }
    return true;
}

/* The reasoning of a remembered turn, by the id of its first call. */
typedef struct recall {
    ms_api_str id, text;
} recall;

static int by_id(const void *pa, const void *pb) {
    const recall *a = pa, *b = pb;
    size_t n = a->id.n < b->id.n ? a->id.n : b->id.n;
    int c = n ? memcmp(a->id.s, b->id.s, n) : 0;
    return c ? c : a->id.n < b->id.n ? -1 : a->id.n > b->id.n;
}

/* All turns of a remembered conversation that have calls and reasoning, sorted; *count 0: none.  NULL: no memory. */
static recall *recall_all(const ms_json *list, size_t *count) {
    recall *all = calloc(list->count + 1, sizeof *all);
    *count = 0;
    for (const ms_json *v = all ? list->child : NULL; v; v = v->next) {
        const ms_json *text = ms_api_any(v, "reasoning_content"),
                      *id = ms_api_any(ms_json_at(ms_api_any(v, "tool_calls"), 0), "id");
        if (!text || text->type != MS_JSON_STRING || !id || id->type != MS_JSON_STRING) continue;
        all[(*count)++] = (recall){{id->str, id->str_len}, {text->str, text->str_len}};
    }
    if (all) qsort(all, *count, sizeof *all, by_id);
    return all;
}

static bool lacks_reasoning(const ms_api_message *m) { return m->calls && !m->has_reasoning; }

static bool missing_reasoning(ms_api_parse *p, const ms_api_message *m) {
    ms_api_path input = {.key = "input"}, at = {.up = &input, .index = m->source};
    return ms_api_bad(p, &at, "missing_reasoning_state",
                      "this turn has calls but no reasoning item; replay the items of the response, with "
                      "reasoning.encrypted_content included");
}

/* Gives turns with calls the reasoning that the client did not send back.  The conversation of the last of them has it
 * for the earlier ones too. */
static bool recall_reasoning(ms_api_parse *p, ms_api_conversation *c, const ms_api_message *last) {
    size_t count = 0;
    const ms_json *list = remembered(p, c->calls[last->call].id, c);
    if (c->failed) return ms_api_fail_memory(p->err);
    if (!list) return missing_reasoning(p, last);
    recall *all = recall_all(list, &count);
    if (!all) return ms_api_fail_memory(p->err);
    bool good = true;
    for (size_t i = 0; i < c->message_count && good; i++) {
        ms_api_message *m = &c->messages[i];
        if (!lacks_reasoning(m)) continue;
        recall key = {.id = c->calls[m->call].id};
        const recall *found = bsearch(&key, all, count, sizeof *all, by_id);
        good = found != NULL || missing_reasoning(p, m);
        m->has_reasoning = good;
        if (found) m->reasoning = found->text;
    }
    free(all);
    return good;
}

static bool complete_turns(ms_api_parse *p, ms_api_conversation *c) {
    if (!p->limits->needs_reasoning || !p->r->thinking) return true;
    const ms_api_message *last = NULL;
    for (size_t i = 0; i < c->message_count; i++) {
        if (lacks_reasoning(&c->messages[i])) last = &c->messages[i];
    }
    return !last || recall_reasoning(p, c, last);
}

/* ------------------------------------------------------------------ items */

static const ms_api_field item_fields[] = {
    {"type", MS_RULE_USED, NULL},      {"role", MS_RULE_USED, NULL},    {"content", MS_RULE_USED, NULL},
    {"summary", MS_RULE_USED, NULL},   {"call_id", MS_RULE_USED, NULL}, {"encrypted_content", MS_RULE_USED, NULL},
    {"arguments", MS_RULE_USED, NULL}, {"output", MS_RULE_USED, NULL},  {"name", MS_RULE_USED, NULL},
    {"id", MS_RULE_QUIET, NULL},       {"status", MS_RULE_QUIET, NULL}, {NULL, MS_RULE_USED, NULL}};

/* The open assistant turn; `fresh`: one that has neither content nor calls yet. */
static ms_api_message *assistant_turn(ms_api_conversation *c, size_t source, bool fresh) {
    ms_api_message *m = ms_api_last(c);
    bool open = m && m->role == MS_ROLE_ASSISTANT;
    if (open && (!fresh || (!m->parts && !m->calls))) return m;
    return ms_api_add_message(c, MS_ROLE_ASSISTANT, source);
}

static bool message_item(ms_api_parse *p, const ms_api_path *at, const ms_json *v, ms_api_conversation *c) {
    const ms_json *name, *content = ms_api_any(v, "content");
    ms_api_path role_at = {.up = at, .key = "role"}, content_at = {.up = at, .key = "content"};
    if (!ms_api_need(p, at, v, "role", MS_WANT_STRING, &name)) return false;
    bool assistant = ms_json_is_string(name, "assistant"), user = ms_json_is_string(name, "user");
    if (!assistant && !user && !ms_json_is_string(name, "system") && !ms_json_is_string(name, "developer")) {
        return ms_api_bad(p, &role_at, "unsupported_role", "expected user, assistant, system or developer");
    }
    if (!content) return ms_api_bad(p, &content_at, "missing_field", "this field is required");
    ms_api_message *m = assistant ? assistant_turn(c, at->index, true)
                                  : ms_api_add_message(c, user ? MS_ROLE_USER : MS_ROLE_SYSTEM, at->index);
    if (!m) return ms_api_fail_memory(p->err);
    return ms_api_content(p, &content_at, content, assistant, c);
}

/* The texts of a list of parts, joined. */
static bool joined_texts(ms_api_parse *p, const ms_api_path *up, const ms_json *v, const char *key, ms_text *out,
                         bool *any) {
    const ms_json *list, *text;
    ms_api_path at = {.up = up, .key = key}, item = {.up = &at};
    if (!ms_api_get(p, up, v, key, MS_WANT_ARRAY, &list)) return false;
    for (const ms_json *part = list ? list->child : NULL; part; part = part->next, item.index++) {
        if (!ms_api_is(p, &item, part, MS_WANT_OBJECT)) return false;
        if (!ms_api_need(p, &item, part, "text", MS_WANT_STRING, &text)) return false;
        ms_text_append(out, text->str, text->str_len);
        *any = true;
    }
    return true;
}

/* Sealed text first, since it is certainly ours and whole; then the plain text; then the summary, which this server
 * fills with the whole text when one was asked for. */
static bool reasoning_text(ms_api_parse *p, const ms_api_path *at, const ms_json *v, ms_text *out, bool *any) {
    const ms_json *sealed;
    if (!ms_api_get(p, at, v, "encrypted_content", MS_WANT_STRING, &sealed)) return false;
    if (sealed && ms_api_unseal(out, p->r->key, sealed->str, sealed->str_len)) {
        *any = true;
        return true;
    }
    if (!joined_texts(p, at, v, "content", out, any)) return false;
    if (!*any && !joined_texts(p, at, v, "summary", out, any)) return false;
    if (*any || !sealed) return true;
    ms_api_path sealed_at = {.up = at, .key = "encrypted_content"};
    return ms_api_bad(p, &sealed_at, "missing_reasoning_state",
                      "this was not sealed by this server, and the item has no readable text");
}

static bool reasoning_item(ms_api_parse *p, const ms_api_path *at, const ms_json *v, ms_api_conversation *c) {
    ms_text text = {0};
    bool any = false;
    if (!reasoning_text(p, at, v, &text, &any)) {
        ms_text_free(&text);
        return false;
    }
    ms_api_message *m = ms_api_last(c);
    bool fits = m && m->role == MS_ROLE_ASSISTANT && !m->parts && !m->calls && !m->has_reasoning;
    if (!fits) m = ms_api_add_message(c, MS_ROLE_ASSISTANT, at->index);
    if (!m) {
        ms_text_free(&text);
        return ms_api_fail_memory(p->err);
    }
    /* An empty list of content is this server's way to say that there was none; no list says nothing. */
    const ms_json *content = ms_api_any(v, "content");
    m->has_reasoning = any || content;
    m->reasoning = ms_api_keep_text(c, &text);
    return true;
}

static bool call_item(ms_api_parse *p, const ms_api_path *at, const ms_json *v, ms_api_conversation *c) {
    const ms_json *id, *name, *args;
    ms_api_path id_at = {.up = at, .key = "call_id"}, name_at = {.up = at, .key = "name"};
    ms_api_path args_at = {.up = at, .key = "arguments"};
    if (!ms_api_need(p, at, v, "call_id", MS_WANT_STRING, &id) || !ms_api_name(p, &id_at, id, 256)) return false;
    if (!ms_api_need(p, at, v, "name", MS_WANT_STRING, &name) || !ms_api_name(p, &name_at, name, 256)) return false;
    if (!ms_api_get(p, at, v, "arguments", MS_WANT_STRING, &args) || !ms_api_old_arguments(p, &args_at, args)) {
        return false;
    }
    if (!assistant_turn(c, at->index, false)) return ms_api_fail_memory(p->err);
    ms_api_add_call(c, &(ms_api_call){{id->str, id->str_len}, {name->str, name->str_len}, args});
    return true;
}

static bool call_in_input(const ms_api_conversation *c, const ms_json *id) {
    for (size_t i = 0; i < c->call_count; i++) {
        if (c->calls[i].id.n == id->str_len && memcmp(c->calls[i].id.s, id->str, id->str_len) == 0) return true;
    }
    return false;
}

/* A result that stands behind no turn with calls: at the very beginning the server may remember the turn. */
static bool lone_result(ms_api_parse *p, const ms_api_path *at, const ms_json *id, ms_api_conversation *c) {
    ms_api_path id_at = {.up = at, .key = "call_id"};
    if (!c->message_count) return splice(p, &id_at, (ms_api_str){id->str, id->str_len}, c);
    if (call_in_input(c, id)) {
        return ms_api_bad(p, at, "tool_history_invalid", "this result does not follow a turn with calls");
    }
    return ms_api_bad(p, &id_at, "unknown_call_id", "the input has no call of this id; replay the full input");
}

static bool output_item(ms_api_parse *p, const ms_api_path *at, const ms_json *v, ms_api_conversation *c) {
    const ms_json *id, *output = ms_api_any(v, "output");
    ms_api_path id_at = {.up = at, .key = "call_id"}, output_at = {.up = at, .key = "output"};
    if (!ms_api_need(p, at, v, "call_id", MS_WANT_STRING, &id) || !ms_api_name(p, &id_at, id, 256)) return false;
    if (!output) return ms_api_bad(p, &output_at, "missing_field", "this field is required");
    const ms_api_message *before = ms_api_last(c); /* results only stand behind calls, so a result is good company */
    bool follows = before && (before->role == MS_ROLE_TOOL || before->calls);
    if (!follows && !lone_result(p, at, id, c)) return false;
    ms_api_message *m = ms_api_add_message(c, MS_ROLE_TOOL, at->index);
    if (!m) return ms_api_fail_memory(p->err);
    m->call_id = (ms_api_str){id->str, id->str_len};
    return ms_api_content(p, &output_at, output, false, c);
}

static bool one_item(ms_api_parse *p, const ms_api_path *at, const ms_json *v, ms_api_conversation *c) {
    const ms_json *type;
    ms_api_path type_at = {.up = at, .key = "type"};
    if (!ms_api_is(p, at, v, MS_WANT_OBJECT) || !ms_api_get(p, at, v, "type", MS_WANT_STRING, &type)) return false;
    if (!ms_api_fields(p, at, v, item_fields)) return false;
    if (!type || ms_json_is_string(type, "message")) return message_item(p, at, v, c);
    if (ms_json_is_string(type, "reasoning")) return reasoning_item(p, at, v, c);
    if (ms_json_is_string(type, "function_call")) return call_item(p, at, v, c);
    if (ms_json_is_string(type, "function_call_output")) return output_item(p, at, v, c);
    if (ms_json_is_string(type, "item_reference")) {
        return ms_api_bad(p, &type_at, "previous_response_unsupported",
                          "responses are not stored; replay the full input");
    }
    return ms_api_bad(p, &type_at, "unsupported_value",
                      "expected message, reasoning, function_call or function_call_output");
}

static bool items(ms_api_parse *p, ms_api_conversation *c) {
    const ms_json *v = ms_api_any(p->root, "input");
    static const ms_api_path at = {.key = "input"};
    if (!v) return ms_api_bad(p, &at, "missing_field", "this field is required");
    if (v->type == MS_JSON_STRING) {
        if (!ms_api_add_message(c, MS_ROLE_USER, 0)) return ms_api_fail_memory(p->err);
        return ms_api_content(p, &at, v, false, c);
    }
    if (v->type != MS_JSON_ARRAY) return ms_api_bad_type(p, &at, v, "a string or an array of items");
    if (!v->count) return ms_api_bad(p, &at, "invalid_value", "expected at least one item");
    ms_api_path item = {.up = &at};
    for (const ms_json *i = v->child; i; i = i->next, item.index++) {
        if (!one_item(p, &item, i, c)) return false;
    }
    return true;
}

/* Instructions are the first system message.  A remembered conversation begins with those it had: they are not
 * repeated, and others change the prompt like any other edit. */
static bool instructions(ms_api_parse *p, ms_api_conversation *c) {
    const ms_json *v;
    if (!ms_api_get(p, NULL, p->root, "instructions", MS_WANT_STRING, &v)) return false;
    if (!v) return true;
    size_t before = c->message_count;
    if (!ms_api_add_message(c, MS_ROLE_SYSTEM, 0)) return ms_api_fail_memory(p->err);
    ms_api_add_part(c, v->str, v->str_len);
    if (c->failed) return ms_api_fail_memory(p->err);
    ms_api_message system = c->messages[before];
    const ms_api_message *first = &c->messages[0];
    bool same = before && first->role == MS_ROLE_SYSTEM && first->parts == 1 && c->parts[first->part].n == v->str_len &&
                memcmp(c->parts[first->part].s, v->str, v->str_len) == 0;
    if (same && p->spliced) {
        c->message_count = before;
        return true;
    }
    memmove(c->messages + 1, c->messages, before * sizeof *c->messages);
    c->messages[0] = system;
    return true;
}

/* ------------------------------------------------------------------ tools and parameters */

static bool one_tool(ms_api_parse *p, const ms_api_path *at, const ms_json *v) {
    const ms_json *type;
    static const ms_api_field fields[] = {{"type", MS_RULE_USED, NULL},        {"name", MS_RULE_USED, NULL},
                                          {"description", MS_RULE_USED, NULL}, {"parameters", MS_RULE_USED, NULL},
                                          {"strict", MS_RULE_USED, NULL},      {NULL, MS_RULE_USED, NULL}};
    if (!ms_api_is(p, at, v, MS_WANT_OBJECT) || !ms_api_need(p, at, v, "type", MS_WANT_STRING, &type)) return false;
    if (!ms_json_is_string(type, "function")) {
        ms_api_tool_skip(p, type);
        return true;
    }
    ms_api_tool_parts parts = {.name = ms_api_any(v, "name"),
                               .description = ms_api_any(v, "description"),
                               .parameters = ms_api_any(v, "parameters"),
                               .strict = ms_api_any(v, "strict"),
                               .schema_key = "parameters"};
    return ms_api_tool_add(p, at, &parts) && ms_api_fields(p, at, v, fields);
}

static bool tools(ms_api_parse *p) {
    const ms_json *list;
    static const ms_api_path at = {.key = "tools"};
    if (!ms_api_get(p, NULL, p->root, "tools", MS_WANT_ARRAY, &list)) return false;
    ms_api_path item = {.up = &at};
    for (const ms_json *v = list ? list->child : NULL; v; v = v->next, item.index++) {
        if (!one_tool(p, &item, v)) return false;
    }
    p->static_tools = p->tool_count;
    return ms_api_get_bool(p, NULL, p->root, "parallel_tool_calls", &p->r->parallel_tools);
}

static const ms_api_field request_fields[] = {{"model", MS_RULE_USED, NULL},
                                              {"input", MS_RULE_USED, NULL},
                                              {"instructions", MS_RULE_USED, NULL},
                                              {"tools", MS_RULE_USED, NULL},
                                              {"tool_choice", MS_RULE_USED, NULL},
                                              {"parallel_tool_calls", MS_RULE_USED, NULL},
                                              {"max_output_tokens", MS_RULE_USED, NULL},
                                              {"reasoning", MS_RULE_USED, NULL},
                                              {"text", MS_RULE_USED, NULL},
                                              {"temperature", MS_RULE_USED, NULL},
                                              {"top_p", MS_RULE_USED, NULL},
                                              {"top_k", MS_RULE_USED, NULL},
                                              {"min_p", MS_RULE_USED, NULL},
                                              {"seed", MS_RULE_USED, NULL},
                                              {"stream", MS_RULE_USED, NULL},
                                              {"include", MS_RULE_USED, NULL},
                                              {"truncation", MS_RULE_USED, NULL},
                                              {"background", MS_RULE_USED, NULL},
                                              {"previous_response_id", MS_RULE_USED, NULL},
                                              {"conversation", MS_RULE_USED, NULL},
                                              {"top_logprobs", MS_RULE_ZERO, NULL},
                                              {"prompt", MS_RULE_NULL, "send instructions and input"},
                                              {NULL, MS_RULE_USED, NULL}};

/* What would need stored responses. */
static bool not_stored(ms_api_parse *p) {
    static const char *const keys[] = {"previous_response_id", "conversation"};
    bool background = false;
    ms_api_path at = {.key = "background"};
    if (!ms_api_get_bool(p, NULL, p->root, "background", &background)) return false;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0] && !background; i++) {
        at.key = keys[i];
        background = ms_api_any(p->root, keys[i]) != NULL;
    }
    return !background ||
           ms_api_bad(p, &at, "previous_response_unsupported", "responses are not stored; replay the full input");
}

static bool include(ms_api_parse *p) {
    const ms_json *list;
    static const ms_api_path at = {.key = "include"};
    if (!ms_api_get(p, NULL, p->root, "include", MS_WANT_ARRAY, &list)) return false;
    ms_api_path item = {.up = &at};
    for (const ms_json *v = list ? list->child : NULL; v; v = v->next, item.index++) {
        if (!ms_api_is(p, &item, v, MS_WANT_STRING)) return false;
        if (ms_json_is_string(v, "reasoning.encrypted_content"))
            p->r->include_encrypted_reasoning = true;
        else
            ms_api_ignore(p, &item);
    }
    return true;
}

static bool reasoning_options(ms_api_parse *p) {
    const ms_json *v, *summary, *effort = NULL;
    static const ms_api_path at = {.key = "reasoning"}, effort_at = {.up = &at, .key = "effort"};
    static const ms_api_field fields[] = {{"effort", MS_RULE_USED, NULL},
                                          {"summary", MS_RULE_USED, NULL},
                                          {"generate_summary", MS_RULE_USED, NULL},
                                          {NULL, MS_RULE_USED, NULL}};
    if (!ms_api_get(p, NULL, p->root, "reasoning", MS_WANT_OBJECT, &v)) return false;
    if (v) {
        effort = ms_api_any(v, "effort");
        if (!ms_api_get(p, &at, v, "summary", MS_WANT_STRING, &summary)) return false;
        if (!summary && !ms_api_get(p, &at, v, "generate_summary", MS_WANT_STRING, &summary)) return false;
        p->r->reasoning_summary = summary && !ms_json_is_string(summary, "none");
        if (!ms_api_fields(p, &at, v, fields)) return false;
    }
    return ms_api_effort(p, &effort_at, effort, -1, NULL);
}

static bool text_options(ms_api_parse *p) {
    const ms_json *v, *format;
    static const ms_api_path at = {.key = "text"}, format_at = {.up = &at, .key = "format"};
    static const ms_api_field fields[] = {{"format", MS_RULE_USED, NULL}, {NULL, MS_RULE_USED, NULL}};
    if (!ms_api_get(p, NULL, p->root, "text", MS_WANT_OBJECT, &v) || !v) return !v;
    if (!ms_api_get(p, &at, v, "format", MS_WANT_OBJECT, &format) || !ms_api_fields(p, &at, v, fields)) return false;
    return !format || ms_api_format_of(p, &format_at, format, MS_FORM_FLAT);
}

static bool options(ms_api_parse *p) {
    const ms_json *v;
    static const ms_api_path at = {.key = "truncation"};
    if (!ms_api_get(p, NULL, p->root, "truncation", MS_WANT_STRING, &v)) return false;
    if (v && !ms_json_is_string(v, "disabled")) {
        return ms_api_bad(p, &at, "unsupported_value", "only \"disabled\" is supported here");
    }
    return ms_api_get_bool(p, NULL, p->root, "stream", &p->r->stream) && not_stored(p) && include(p) &&
           reasoning_options(p) && text_options(p);
}

/* Clients of this API rarely send a limit and mean none. */
static bool parse_all(ms_api_parse *p, ms_api_conversation *c) {
    return ms_api_model(p) && options(p) &&
           ms_api_max_tokens(p, "max_output_tokens", NULL, p->limits->max_output_ceiling, false) &&
           ms_api_sampling(p) && ms_api_fields(p, NULL, p->root, request_fields) && tools(p) && items(p, c) &&
           instructions(p, c) && ms_api_read_choice(p, true) && complete_turns(p, c) &&
           ms_api_conversation_finish(p, c);
}

static bool responses_parse(ms_api_request *out, const char *body, size_t len, const ms_api_limits *limits,
                            bool count_only, ms_api_error *err) {
    ms_api_parse p;
    ms_api_conversation c = {.list = "input"};
    ms_api_parse_init(&p, out, MS_API_RESPONSES, limits, count_only, err);
    bool good = ms_api_body(&p, body, len) && parse_all(&p, &c);
    ms_api_conversation_free(&c);
    ms_api_parse_fini(&p);
    if (!good) ms_api_request_free(out);
    return good;
}

const ms_api_codec ms_api_responses = {
    .kind = MS_API_RESPONSES, .name = "responses", .parse = responses_parse, .writer = ms_api_responses_writer};
