/* api_messages.c: a Messages request (and its token-counting form). */
#include "server/api_conversation.h"
#include "server/api_write.h"

#include <stdio.h>
#include <string.h>

/* ------------------------------------------------------------------ content blocks */

static const ms_api_field block_fields[] = {
    {"type", MS_RULE_USED, NULL},      {"text", MS_RULE_USED, NULL},        {"thinking", MS_RULE_USED, NULL},
    {"signature", MS_RULE_USED, NULL}, {"id", MS_RULE_USED, NULL},          {"name", MS_RULE_USED, NULL},
    {"input", MS_RULE_USED, NULL},     {"tool_use_id", MS_RULE_USED, NULL}, {"content", MS_RULE_USED, NULL},
    {"is_error", MS_RULE_USED, NULL},  {"citations", MS_RULE_COPY, NULL},   {NULL, MS_RULE_USED, NULL}};

/* is_error has no place in a template. */
static bool block_unused(ms_api_parse *p, const ms_api_path *at, const ms_json *v) {
    const ms_json *error;
    ms_api_path error_at = {.up = at, .key = "is_error"};
    if (!ms_api_get(p, at, v, "is_error", MS_WANT_BOOL, &error)) return false;
    if (error && error->type == MS_JSON_TRUE) ms_api_ignore(p, &error_at);
    return ms_api_fields(p, at, v, block_fields);
}

static bool block_type(ms_api_parse *p, const ms_api_path *at, const ms_json *v, const ms_json **type) {
    return ms_api_is(p, at, v, MS_WANT_OBJECT) && ms_api_need(p, at, v, "type", MS_WANT_STRING, type);
}

static bool bad_block(ms_api_parse *p, const ms_api_path *at) {
    ms_api_path type_at = {.up = at, .key = "type"};
    return ms_api_bad(p, &type_at, "unsupported_content_part", "this kind of content is not supported here");
}

static bool text_block(ms_api_parse *p, const ms_api_path *at, const ms_json *v, ms_api_conversation *c) {
    const ms_json *text;
    if (!ms_api_need(p, at, v, "text", MS_WANT_STRING, &text)) return false;
    if (text->str_len) ms_api_add_part(c, text->str, text->str_len);
    return block_unused(p, at, v);
}

/* ------------------------------------------------------------------ user turns */

/* The content of a result: a string or text blocks. */
static bool result_content(ms_api_parse *p, const ms_api_path *at, const ms_json *v, ms_api_conversation *c) {
    if (v->type == MS_JSON_STRING) {
        if (v->str_len) ms_api_add_part(c, v->str, v->str_len);
        return true;
    }
    if (v->type != MS_JSON_ARRAY) return ms_api_bad_type(p, at, v, "a string or an array of blocks");
    ms_api_path item = {.up = at};
    for (const ms_json *b = v->child; b; b = b->next, item.index++) {
        const ms_json *type;
        if (!block_type(p, &item, b, &type)) return false;
        if (!ms_json_is_string(type, "text")) return bad_block(p, &item);
        if (!text_block(p, &item, b, c)) return false;
    }
    return true;
}

static bool tool_result(ms_api_parse *p, const ms_api_path *at, const ms_json *v, size_t source,
                        ms_api_conversation *c) {
    const ms_json *id, *content = ms_api_any(v, "content");
    ms_api_path id_at = {.up = at, .key = "tool_use_id"}, content_at = {.up = at, .key = "content"};
    if (!ms_api_need(p, at, v, "tool_use_id", MS_WANT_STRING, &id) || !ms_api_name(p, &id_at, id, 256)) return false;
    ms_api_message *m = ms_api_add_message(c, MS_ROLE_TOOL, source);
    if (!m) return ms_api_fail_memory(p->err);
    m->call_id = (ms_api_str){id->str, id->str_len};
    return (!content || result_content(p, &content_at, content, c)) && block_unused(p, at, v);
}

/* Results first, as tool messages; the texts of the turn become one user message behind them. */
static bool user_blocks(ms_api_parse *p, const ms_api_path *at, const ms_json *list, size_t source,
                        ms_api_conversation *c) {
    ms_api_path item = {.up = at};
    size_t texts = 0, results = 0;
    for (const ms_json *v = list->child; v; v = v->next, item.index++) {
        const ms_json *type;
        if (!block_type(p, &item, v, &type)) return false;
        if (ms_json_is_string(type, "text")) {
            texts++;
            continue;
        }
        if (!ms_json_is_string(type, "tool_result")) return bad_block(p, &item);
        results++;
        if (!tool_result(p, &item, v, source, c)) return false;
    }
    if (!texts && results) return true;
    if (!ms_api_add_message(c, MS_ROLE_USER, source)) return ms_api_fail_memory(p->err);
    item.index = 0;
    for (const ms_json *v = list->child; v; v = v->next, item.index++) {
        if (ms_json_is_string(ms_api_any(v, "type"), "text") && !text_block(p, &item, v, c)) return false;
    }
    return true;
}

/* ------------------------------------------------------------------ assistant turns */

/* Several thinking blocks of one turn are one reasoning text. */
static bool thinking_block(ms_api_parse *p, const ms_api_path *at, const ms_json *v, ms_text *reasoning, bool *any) {
    const ms_json *text, *sign;
    ms_api_path sign_at = {.up = at, .key = "signature"};
    if (!ms_api_need(p, at, v, "thinking", MS_WANT_STRING, &text)) return false;
    if (!ms_api_get(p, at, v, "signature", MS_WANT_STRING, &sign)) return false;
    bool good = sign && ms_api_sign_good(p->r->key, text->str, text->str_len, sign->str, sign->str_len);
    if (!good) ms_api_ignore(p, &sign_at); /* the text counts all the same: histories move between servers */
    ms_text_append(reasoning, text->str, text->str_len);
    *any = true;
    return block_unused(p, at, v);
}

static bool tool_use(ms_api_parse *p, const ms_api_path *at, const ms_json *v, ms_api_conversation *c) {
    const ms_json *id, *name, *input;
    ms_api_path id_at = {.up = at, .key = "id"}, name_at = {.up = at, .key = "name"};
    if (!ms_api_need(p, at, v, "id", MS_WANT_STRING, &id) || !ms_api_name(p, &id_at, id, 256)) return false;
    if (!ms_api_need(p, at, v, "name", MS_WANT_STRING, &name) || !ms_api_name(p, &name_at, name, 256)) return false;
    if (!ms_api_need(p, at, v, "input", MS_WANT_OBJECT, &input)) return false;
    ms_api_add_call(c, &(ms_api_call){{id->str, id->str_len}, {name->str, name->str_len}, input});
    return block_unused(p, at, v);
}

static bool assistant_block(ms_api_parse *p, const ms_api_path *at, const ms_json *v, ms_text *reasoning, bool *any,
                            ms_api_conversation *c) {
    const ms_json *type;
    if (!block_type(p, at, v, &type)) return false;
    if (ms_json_is_string(type, "text")) return text_block(p, at, v, c);
    if (ms_json_is_string(type, "tool_use")) return tool_use(p, at, v, c);
    if (ms_json_is_string(type, "thinking")) return thinking_block(p, at, v, reasoning, any);
    return bad_block(p, at);
}

static bool assistant_blocks(ms_api_parse *p, const ms_api_path *at, const ms_json *list, ms_api_conversation *c) {
    ms_text reasoning = {0};
    bool any = false;
    ms_api_path item = {.up = at};
    for (const ms_json *v = list->child; v; v = v->next, item.index++) {
        if (assistant_block(p, &item, v, &reasoning, &any, c)) continue;
        ms_text_free(&reasoning);
        return false;
    }
    ms_api_message *m = ms_api_last(c);
    m->has_reasoning = any;
    m->reasoning = ms_api_keep_text(c, &reasoning);
    return true;
}

/* ------------------------------------------------------------------ messages and system */

static bool one_message(ms_api_parse *p, const ms_api_path *at, const ms_json *v, ms_api_conversation *c) {
    const ms_json *role, *content = ms_api_any(v, "content");
    ms_api_path role_at = {.up = at, .key = "role"}, content_at = {.up = at, .key = "content"};
    static const ms_api_field fields[] = {
        {"role", MS_RULE_USED, NULL}, {"content", MS_RULE_USED, NULL}, {NULL, MS_RULE_USED, NULL}};
    if (!ms_api_is(p, at, v, MS_WANT_OBJECT) || !ms_api_need(p, at, v, "role", MS_WANT_STRING, &role)) return false;
    if (!ms_api_fields(p, at, v, fields)) return false;
    bool user = ms_json_is_string(role, "user"), assistant = ms_json_is_string(role, "assistant");
    if (!user && !assistant && !ms_json_is_string(role, "system")) {
        return ms_api_bad(p, &role_at, "unsupported_role", "expected user, assistant or system");
    }
    if (!content) return ms_api_bad(p, &content_at, "missing_field", "this field is required");
    if (content->type != MS_JSON_STRING && content->type != MS_JSON_ARRAY) {
        return ms_api_bad_type(p, &content_at, content, "a string or an array of blocks");
    }
    bool list = content->type == MS_JSON_ARRAY;
    if (user && list) return user_blocks(p, &content_at, content, at->index, c);
    ms_api_role kind = user ? MS_ROLE_USER : assistant ? MS_ROLE_ASSISTANT : MS_ROLE_SYSTEM;
    if (!ms_api_add_message(c, kind, at->index)) return ms_api_fail_memory(p->err);
    if (assistant && list) return assistant_blocks(p, &content_at, content, c);
    return result_content(p, &content_at, content, c);
}

/* A nonce in front of the prompt would cost the whole prefix on every turn. */
static bool billing_header(const ms_json *text) {
    static const char mark[] = "x-anthropic-billing-header:";
    size_t n = sizeof mark - 1;
    return text && text->type == MS_JSON_STRING && text->str_len >= n && memcmp(text->str, mark, n) == 0;
}

static bool system_block(ms_api_parse *p, const ms_api_path *at, const ms_json *v, ms_api_conversation *c) {
    const ms_json *type;
    static const ms_api_path dropped = {.key = "system(billing-header)"};
    if (!block_type(p, at, v, &type)) return false;
    if (!ms_json_is_string(type, "text")) return bad_block(p, at);
    if (billing_header(ms_api_any(v, "text"))) {
        ms_api_ignore(p, &dropped);
        return true;
    }
    return text_block(p, at, v, c);
}

static bool system_prompt(ms_api_parse *p, ms_api_conversation *c) {
    const ms_json *v = ms_api_any(p->root, "system");
    static const ms_api_path at = {.key = "system"};
    if (!v) return true;
    if (!ms_api_add_message(c, MS_ROLE_SYSTEM, 0)) return ms_api_fail_memory(p->err);
    if (v->type == MS_JSON_STRING) {
        if (v->str_len) ms_api_add_part(c, v->str, v->str_len);
    } else if (v->type != MS_JSON_ARRAY) {
        return ms_api_bad_type(p, &at, v, "a string or an array of text blocks");
    } else {
        ms_api_path item = {.up = &at};
        for (const ms_json *b = v->child; b; b = b->next, item.index++) {
            if (!system_block(p, &item, b, c)) return false;
        }
    }
    if (!ms_api_last(c)->parts) c->message_count--; /* nothing said is no message */
    return true;
}

static bool all_messages(ms_api_parse *p, ms_api_conversation *c) {
    const ms_json *list;
    static const ms_api_path at = {.key = "messages"};
    if (!ms_api_need(p, NULL, p->root, "messages", MS_WANT_ARRAY, &list)) return false;
    if (!list->count) return ms_api_bad(p, &at, "invalid_value", "expected at least one message");
    ms_api_path item = {.up = &at};
    for (const ms_json *v = list->child; v; v = v->next, item.index++) {
        if (!one_message(p, &item, v, c)) return false;
    }
    return true;
}

/* ------------------------------------------------------------------ tools */

static bool one_tool(ms_api_parse *p, const ms_api_path *at, const ms_json *v) {
    const ms_json *type;
    static const ms_api_field fields[] = {{"type", MS_RULE_USED, NULL},        {"name", MS_RULE_USED, NULL},
                                          {"description", MS_RULE_USED, NULL}, {"input_schema", MS_RULE_USED, NULL},
                                          {"strict", MS_RULE_USED, NULL},      {NULL, MS_RULE_USED, NULL}};
    if (!ms_api_is(p, at, v, MS_WANT_OBJECT) || !ms_api_get(p, at, v, "type", MS_WANT_STRING, &type)) return false;
    if (type && !ms_json_is_string(type, "custom")) {
        ms_api_tool_skip(p, type);
        return true;
    }
    ms_api_tool_parts parts = {.name = ms_api_any(v, "name"),
                               .description = ms_api_any(v, "description"),
                               .parameters = ms_api_any(v, "input_schema"),
                               .strict = ms_api_any(v, "strict"),
                               .schema_key = "input_schema"};
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
    return true;
}

static bool choice(ms_api_parse *p) {
    const ms_json *v, *type, *name;
    static const ms_api_path at = {.key = "tool_choice"};
    static const ms_api_path type_at = {.up = &at, .key = "type"};
    if (!ms_api_get(p, NULL, p->root, "tool_choice", MS_WANT_OBJECT, &v)) return false;
    if (!v) return ms_api_choose(p, &at, MS_TOOLS_AUTO);
    bool serial = false;
    if (!ms_api_need(p, &at, v, "type", MS_WANT_STRING, &type)) return false;
    if (!ms_api_get_bool(p, &at, v, "disable_parallel_tool_use", &serial)) return false;
    p->r->parallel_tools = !serial;
    if (ms_json_is_string(type, "auto")) return ms_api_choose(p, &at, MS_TOOLS_AUTO);
    if (ms_json_is_string(type, "none")) return ms_api_choose(p, &at, MS_TOOLS_NONE);
    if (ms_json_is_string(type, "any")) return ms_api_choose(p, &at, MS_TOOLS_REQUIRED);
    if (!ms_json_is_string(type, "tool")) {
        return ms_api_bad(p, &type_at, "invalid_tool_choice", "expected auto, any, none or tool");
    }
    return ms_api_need(p, &at, v, "name", MS_WANT_STRING, &name) && ms_api_choose_named(p, &at, name);
}

/* ------------------------------------------------------------------ parameters */

static const ms_api_field request_fields[] = {
    {"model", MS_RULE_USED, NULL},       {"max_tokens", MS_RULE_USED, NULL},   {"messages", MS_RULE_USED, NULL},
    {"system", MS_RULE_USED, NULL},      {"stream", MS_RULE_USED, NULL},       {"stop_sequences", MS_RULE_USED, NULL},
    {"temperature", MS_RULE_USED, NULL}, {"top_p", MS_RULE_USED, NULL},        {"top_k", MS_RULE_USED, NULL},
    {"min_p", MS_RULE_USED, NULL},       {"seed", MS_RULE_USED, NULL},         {"tools", MS_RULE_USED, NULL},
    {"tool_choice", MS_RULE_USED, NULL}, {"thinking", MS_RULE_USED, NULL},     {"output_config", MS_RULE_USED, NULL},
    {"thread", MS_RULE_USED, NULL},      {"mcp_servers", MS_RULE_EMPTY, NULL}, {"container", MS_RULE_NULL, NULL},
    {NULL, MS_RULE_USED, NULL}};

/* A conversation that the server keeps: it would send only what is new.  The details tell the client library to send
 * the whole conversation instead. */
static bool no_thread(ms_api_parse *p) {
    static const ms_api_path at = {.key = "thread"};
    if (!ms_api_any(p->root, "thread")) return true;
    (void)ms_api_bad(p, &at, "unsupported_parameter", "conversations are not stored; send all messages");
    if (p->err) {
        (void)snprintf(p->err->details, sizeof p->err->details,
                       "{\"error_code\":\"thread_unsupported_request\",\"unsupported\":[\"thread\"]}");
    }
    return false;
}

static bool thinking_and_format(ms_api_parse *p) {
    const ms_json *config, *format = NULL, *effort = NULL;
    int switched;
    static const ms_api_path at = {.key = "output_config"}, switch_at = {.key = "thinking"};
    static const ms_api_path effort_at = {.up = &at, .key = "effort"}, format_at = {.up = &at, .key = "format"};
    static const ms_api_field fields[] = {
        {"effort", MS_RULE_USED, NULL}, {"format", MS_RULE_USED, NULL}, {NULL, MS_RULE_USED, NULL}};
    if (!ms_api_get(p, NULL, p->root, "output_config", MS_WANT_OBJECT, &config)) return false;
    if (config) {
        effort = ms_api_any(config, "effort");
        if (!ms_api_get(p, &at, config, "format", MS_WANT_OBJECT, &format)) return false;
        if (!ms_api_fields(p, &at, config, fields)) return false;
    }
    if (!ms_api_thinking(p, &switched) || !ms_api_effort(p, &effort_at, effort, switched, &switch_at)) return false;
    return !format || ms_api_format_of(p, &format_at, format, MS_FORM_BARE);
}

static bool parse_all(ms_api_parse *p, ms_api_conversation *c) {
    return ms_api_model(p) && no_thread(p) && ms_api_get_bool(p, NULL, p->root, "stream", &p->r->stream) &&
           ms_api_max_tokens(p, "max_tokens", NULL, p->limits->default_output, !p->count_only) &&
           thinking_and_format(p) && ms_api_sampling(p) &&
           ms_api_stops(p, "stop_sequences", sizeof p->r->stops / sizeof p->r->stops[0], false) &&
           ms_api_fields(p, NULL, p->root, request_fields) && tools(p) && system_prompt(p, c) && all_messages(p, c) &&
           choice(p) && ms_api_conversation_finish(p, c);
}

static bool messages_parse(ms_api_request *out, const char *body, size_t len, const ms_api_limits *limits,
                           bool count_only, ms_api_error *err) {
    ms_api_parse p;
    ms_api_conversation c = {.list = "messages"};
    ms_api_parse_init(&p, out, MS_API_MESSAGES, limits, count_only, err);
    bool good = ms_api_body(&p, body, len) && parse_all(&p, &c);
    ms_api_conversation_free(&c);
    ms_api_parse_fini(&p);
    if (!good) ms_api_request_free(out);
    return good;
}

const ms_api_codec ms_api_messages = {
    .kind = MS_API_MESSAGES, .name = "messages", .parse = messages_parse, .writer = ms_api_messages_writer};
