/* api_chat.c: a chat completions request. */
#include "server/api_conversation.h"
#include "server/api_write.h"

#include <string.h>

/* ------------------------------------------------------------------ messages */

static const ms_api_field message_fields[] = {{"role", MS_RULE_USED, NULL},
                                              {"content", MS_RULE_USED, NULL},
                                              {"name", MS_RULE_USED, NULL},
                                              {"reasoning_content", MS_RULE_USED, NULL},
                                              {"reasoning", MS_RULE_USED, NULL},
                                              {"tool_calls", MS_RULE_USED, NULL},
                                              {"tool_call_id", MS_RULE_USED, NULL},
                                              {"tools", MS_RULE_USED, NULL},
                                              {"refusal", MS_RULE_COPY, NULL},
                                              {"annotations", MS_RULE_COPY, NULL},
                                              {"id", MS_RULE_COPY, NULL},
                                              {"status", MS_RULE_COPY, NULL},
                                              {"type", MS_RULE_COPY, NULL},
                                              {"audio", MS_RULE_NULL, NULL},
                                              {"function_call", MS_RULE_NULL, "use tool_calls"},
                                              {NULL, MS_RULE_USED, NULL}};

static bool old_call(ms_api_parse *p, const ms_api_path *at, const ms_json *v, ms_api_conversation *c) {
    const ms_json *id, *type, *f, *name, *args;
    ms_api_path id_at = {.up = at, .key = "id"}, type_at = {.up = at, .key = "type"};
    ms_api_path f_at = {.up = at, .key = "function"}, name_at = {.up = &f_at, .key = "name"};
    ms_api_path args_at = {.up = &f_at, .key = "arguments"};
    if (!ms_api_is(p, at, v, MS_WANT_OBJECT) || !ms_api_need(p, at, v, "id", MS_WANT_STRING, &id)) return false;
    if (!ms_api_name(p, &id_at, id, 256) || !ms_api_get(p, at, v, "type", MS_WANT_STRING, &type)) return false;
    if (type && !ms_json_is_string(type, "function")) {
        return ms_api_bad(p, &type_at, "unsupported_value", "only calls of type \"function\" are supported");
    }
    if (!ms_api_need(p, at, v, "function", MS_WANT_OBJECT, &f)) return false;
    if (!ms_api_need(p, &f_at, f, "name", MS_WANT_STRING, &name) || !ms_api_name(p, &name_at, name, 256)) return false;
    args = ms_api_any(f, "arguments");
    if (!ms_api_old_arguments(p, &args_at, args)) return false;
    ms_api_add_call(
        c, &(ms_api_call){.id = {id->str, id->str_len}, .name = {name->str, name->str_len}, .arguments = args});
    return true;
}

static bool same_text(const ms_json *a, const ms_json *b) {
    return a->str_len == b->str_len && memcmp(a->str, b->str, a->str_len) == 0;
}

static bool reasoning_of(ms_api_parse *p, const ms_api_path *at, const ms_json *v, ms_api_message *m) {
    const ms_json *first, *second;
    ms_api_path second_at = {.up = at, .key = "reasoning"};
    if (!ms_api_get(p, at, v, "reasoning_content", MS_WANT_STRING, &first)) return false;
    if (!ms_api_get(p, at, v, "reasoning", MS_WANT_STRING, &second)) return false;
    if (first && second && !same_text(first, second)) {
        return ms_api_bad(p, &second_at, "invalid_value", "this differs from reasoning_content");
    }
    const ms_json *text = first ? first : second;
    if (!text) return true;
    if (m->role != MS_ROLE_ASSISTANT) {
        ms_api_path here = {.up = at, .key = first ? "reasoning_content" : "reasoning"};
        return ms_api_bad(p, &here, "invalid_value", "only an assistant message may have this");
    }
    m->has_reasoning = true;
    m->reasoning = (ms_api_str){text->str, text->str_len};
    return true;
}

static bool role_of(ms_api_parse *p, const ms_api_path *at, const ms_json *v, ms_api_role *role) {
    static const struct {
        const char *name;
        ms_api_role role;
    } roles[] = {{"system", MS_ROLE_SYSTEM},
                 {"developer", MS_ROLE_SYSTEM},
                 {"user", MS_ROLE_USER},
                 {"assistant", MS_ROLE_ASSISTANT},
                 {"tool", MS_ROLE_TOOL}};
    const ms_json *name;
    ms_api_path role_at = {.up = at, .key = "role"};
    if (!ms_api_need(p, at, v, "role", MS_WANT_STRING, &name)) return false;
    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++) {
        if (ms_json_is_string(name, roles[i].name)) {
            *role = roles[i].role;
            return true;
        }
    }
    return ms_api_bad(p, &role_at, "unsupported_role", "expected system, developer, user, assistant or tool");
}

static bool calls_of(ms_api_parse *p, const ms_api_path *at, const ms_json *v, ms_api_role role,
                     ms_api_conversation *c) {
    const ms_json *calls;
    ms_api_path calls_at = {.up = at, .key = "tool_calls"}, item = {.up = &calls_at};
    if (!ms_api_get(p, at, v, "tool_calls", MS_WANT_ARRAY, &calls)) return false;
    if (!calls || !calls->count) return true;
    if (role != MS_ROLE_ASSISTANT) {
        return ms_api_bad(p, &calls_at, "invalid_value", "only an assistant message may have this");
    }
    for (const ms_json *one = calls->child; one; one = one->next, item.index++) {
        if (!old_call(p, &item, one, c)) return false;
    }
    return true;
}

/* Fields that belong to one role only. */
static bool role_fields(ms_api_parse *p, const ms_api_path *at, const ms_json *v, ms_api_message *m) {
    const ms_json *id, *tools;
    ms_api_path id_at = {.up = at, .key = "tool_call_id"}, tools_at = {.up = at, .key = "tools"};
    if (!ms_api_get(p, at, v, "tool_call_id", MS_WANT_STRING, &id)) return false;
    if (m->role == MS_ROLE_TOOL) {
        if (!id) return ms_api_bad(p, &id_at, "missing_field", "this field is required");
        if (!ms_api_name(p, &id_at, id, 256)) return false;
        m->call_id = (ms_api_str){id->str, id->str_len};
    } else if (id) {
        return ms_api_bad(p, &id_at, "invalid_value", "only a tool message may have this");
    }
    if (!ms_api_get(p, at, v, "tools", MS_WANT_ARRAY, &tools)) return false;
    if (!tools || !tools->count) return true;
    if (m->role != MS_ROLE_SYSTEM || !p->limits->dynamic_tools) {
        return ms_api_bad(p, &tools_at, "unsupported_parameter", "%s",
                          p->limits->dynamic_tools ? "only a system message may declare tools"
                                                   : "this model has no tools declared by messages");
    }
    m->tools = tools;
    return ms_api_chat_tools(p, &tools_at, tools, NULL);
}

static bool content_of(ms_api_parse *p, const ms_api_path *at, const ms_json *v, const ms_api_message *m,
                       ms_api_conversation *c) {
    const ms_json *content = ms_api_any(v, "content");
    ms_api_path content_at = {.up = at, .key = "content"};
    if (m->tools) {
        return !content || ms_api_bad(p, &content_at, "invalid_value", "a message that declares tools has no content");
    }
    bool needed = m->role == MS_ROLE_SYSTEM || m->role == MS_ROLE_USER;
    if (!content) return !needed || ms_api_bad(p, &content_at, "missing_field", "this field is required");
    return ms_api_content(p, &content_at, content, m->role == MS_ROLE_ASSISTANT, c);
}

bool ms_api_chat_message(ms_api_parse *p, const ms_api_path *at, const ms_json *v, ms_api_conversation *c) {
    ms_api_role role = MS_ROLE_USER;
    const ms_json *name;
    ms_api_path name_at = {.up = at, .key = "name"};
    if (!ms_api_is(p, at, v, MS_WANT_OBJECT) || !role_of(p, at, v, &role)) return false;
    ms_api_message *m = ms_api_add_message(c, role, at->index);
    if (!m) return ms_api_fail_memory(p->err);
    if (!ms_api_get(p, at, v, "name", MS_WANT_STRING, &name)) return false;
    if (name && !ms_api_name(p, &name_at, name, 256)) return false;
    if (name) m->name = (ms_api_str){name->str, name->str_len};
    return reasoning_of(p, at, v, m) && role_fields(p, at, v, m) && content_of(p, at, v, m, c) &&
           calls_of(p, at, v, role, c) && ms_api_fields(p, at, v, message_fields);
}

static bool all_messages(ms_api_parse *p, ms_api_conversation *c) {
    const ms_json *list;
    static const ms_api_path at = {.key = "messages"};
    if (!ms_api_need(p, NULL, p->root, "messages", MS_WANT_ARRAY, &list)) return false;
    ms_api_path item = {.up = &at};
    for (const ms_json *v = list->child; v; v = v->next, item.index++) {
        if (!ms_api_chat_message(p, &item, v, c)) return false;
    }
    return true;
}

/* ------------------------------------------------------------------ parameters */

static const ms_api_field request_fields[] = {{"model", MS_RULE_USED, NULL},
                                              {"messages", MS_RULE_USED, NULL},
                                              {"stream", MS_RULE_USED, NULL},
                                              {"stream_options", MS_RULE_USED, NULL},
                                              {"max_completion_tokens", MS_RULE_USED, NULL},
                                              {"max_tokens", MS_RULE_USED, NULL},
                                              {"tools", MS_RULE_USED, NULL},
                                              {"tool_choice", MS_RULE_USED, NULL},
                                              {"parallel_tool_calls", MS_RULE_USED, NULL},
                                              {"response_format", MS_RULE_USED, NULL},
                                              {"reasoning_effort", MS_RULE_USED, NULL},
                                              {"thinking", MS_RULE_USED, NULL},
                                              {"chat_template_kwargs", MS_RULE_USED, NULL},
                                              {"temperature", MS_RULE_USED, NULL},
                                              {"top_p", MS_RULE_USED, NULL},
                                              {"top_k", MS_RULE_USED, NULL},
                                              {"min_p", MS_RULE_USED, NULL},
                                              {"seed", MS_RULE_USED, NULL},
                                              {"stop", MS_RULE_USED, NULL},
                                              {"logprobs", MS_RULE_USED, NULL},
                                              {"top_logprobs", MS_RULE_USED, NULL},
                                              {"return_progress", MS_RULE_USED, NULL},
                                              {"n", MS_RULE_ONE, NULL},
                                              {"presence_penalty", MS_RULE_ZERO, NULL},
                                              {"frequency_penalty", MS_RULE_ZERO, NULL},
                                              {"repetition_penalty", MS_RULE_ONE, NULL},
                                              {"logit_bias", MS_RULE_EMPTY, NULL},
                                              {"functions", MS_RULE_NULL, "use tools"},
                                              {"function_call", MS_RULE_NULL, "use tool_choice"},
                                              {"modalities", MS_RULE_TEXT, NULL},
                                              {"audio", MS_RULE_NULL, NULL},
                                              {"prediction", MS_RULE_NULL, NULL},
                                              {"web_search_options", MS_RULE_NULL, NULL},
                                              {"store", MS_RULE_FALSE, NULL},
                                              {"grammar", MS_RULE_NULL, "use response_format"},
                                              {"guided_*", MS_RULE_NULL, "use response_format"},
                                              {"json_schema", MS_RULE_NULL, "use response_format"},
                                              {NULL, MS_RULE_USED, NULL}};

/* One more way to say that thinking is on or off; *switched: -1 when none said it yet. */
static bool template_kwargs(ms_api_parse *p, int *switched) {
    const ms_json *v;
    static const ms_api_path at = {.key = "chat_template_kwargs"};
    if (!ms_api_get(p, NULL, p->root, "chat_template_kwargs", MS_WANT_OBJECT, &v) || !v) return !v;
    for (const ms_json *m = v->child; m; m = m->next) {
        if (m->type == MS_JSON_NULL) continue;
        bool plain = ms_api_identifier(m->key, m->key_len);
        ms_api_path here = {.up = &at, .key = plain ? m->key : "unnamed"};
        bool known = strcmp(here.key, "thinking") == 0 || strcmp(here.key, "enable_thinking") == 0, on;
        if (!known) return ms_api_bad(p, &here, "unsupported_parameter", "expected thinking or enable_thinking");
        if (!ms_json_bool(m, &on)) return ms_api_bad_type(p, &here, m, "true or false");
        if (*switched >= 0 && *switched != on) {
            return ms_api_bad(p, &here, "invalid_value", "this contradicts what else is said about thinking");
        }
        *switched = on;
    }
    return true;
}

static bool thinking(ms_api_parse *p) {
    int switched;
    static const ms_api_path effort = {.key = "reasoning_effort"}, by_thinking = {.key = "thinking"};
    static const ms_api_path by_template = {.key = "chat_template_kwargs"};
    if (!ms_api_thinking(p, &switched)) return false;
    const ms_api_path *said_at = switched >= 0 ? &by_thinking : &by_template;
    if (!template_kwargs(p, &switched)) return false;
    return ms_api_effort(p, &effort, ms_api_any(p->root, "reasoning_effort"), switched, said_at);
}

static bool tools_and_format(ms_api_parse *p) {
    const ms_json *tools, *format;
    static const ms_api_path tools_at = {.key = "tools"}, format_at = {.key = "response_format"};
    if (!ms_api_get(p, NULL, p->root, "tools", MS_WANT_ARRAY, &tools)) return false;
    if (tools && !ms_api_chat_tools(p, &tools_at, tools, &p->tools)) return false;
    p->static_tools = p->tool_count;
    if (!ms_api_get_bool(p, NULL, p->root, "parallel_tool_calls", &p->r->parallel_tools)) return false;
    if (!ms_api_get(p, NULL, p->root, "response_format", MS_WANT_OBJECT, &format)) return false;
    return !format || ms_api_format_of(p, &format_at, format, MS_FORM_NESTED);
}

static bool parse_all(ms_api_parse *p, ms_api_conversation *c) {
    return ms_api_model(p) && ms_api_stream_options(p) &&
           ms_api_max_tokens(p, "max_completion_tokens", "max_tokens", p->limits->default_output, false) &&
           ms_api_get_bool(p, NULL, p->root, "return_progress", &p->r->return_progress) && thinking(p) &&
           ms_api_sampling(p) && ms_api_stops(p, "stop", 4, true) && ms_api_logprobs(p) &&
           ms_api_fields(p, NULL, p->root, request_fields) && tools_and_format(p) && all_messages(p, c) &&
           ms_api_read_choice(p, false) && ms_api_conversation_finish(p, c);
}

static bool chat_parse(ms_api_request *out, const char *body, size_t len, const ms_api_limits *limits, bool count_only,
                       ms_api_error *err) {
    ms_api_parse p;
    ms_api_conversation c = {.list = "messages"};
    ms_api_parse_init(&p, out, MS_API_CHAT, limits, count_only, err);
    bool good = ms_api_body(&p, body, len) && parse_all(&p, &c);
    ms_api_conversation_free(&c);
    ms_api_parse_fini(&p);
    if (!good) ms_api_request_free(out);
    return good;
}

const ms_api_codec ms_api_chat = {
    .kind = MS_API_CHAT, .name = "chat", .parse = chat_parse, .writer = ms_api_chat_writer};
