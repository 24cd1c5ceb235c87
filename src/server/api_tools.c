/* api_tools.c: tool declarations, tool_choice and response formats of all APIs, into the chat form.
 *
 * Owns: nothing; texts go to the parse.
 * Invariants: p->tool_names[i] is the i-th element of p->tools while i < static_tools; declarations are passed on with
 * their source text, so that numbers keep their digits.
 */
#include "server/api_read.h"

#include <string.h>

/* ------------------------------------------------------------------ declarations */

static bool find_tool(const ms_api_parse *p, const ms_json *name, size_t *index) {
    for (size_t i = 0; i < p->tool_count; i++) {
        if (p->tool_names[i].n == name->str_len && memcmp(p->tool_names[i].s, name->str, name->str_len) == 0) {
            *index = i;
            return true;
        }
    }
    return false;
}

/* The next tool is the innermost index of its path; one further out is the message that declares it. */
static void remember_place(ms_api_parse *p, const ms_api_path *at) {
    uint32_t places[2] = {0, MS_API_NO_MESSAGE};
    size_t n = 0;
    for (; at && n < 2; at = at->up)
        if (!at->key) places[n++] = (uint32_t)at->index;
    p->tool_places[p->tool_count].index = places[0];
    p->tool_places[p->tool_count].message = places[1];
}

/* Name, description, parameters and strict at their paths under `at`; the name is remembered. */
static bool check_tool(ms_api_parse *p, const ms_api_path *at, const ms_api_tool_parts *t) {
    ms_api_path name_at = {.up = at, .key = "name"}, schema_at = {.up = at, .key = t->schema_key};
    ms_api_path text_at = {.up = at, .key = "description"}, strict_at = {.up = at, .key = "strict"};
    ms_api_path type_at = {.up = &schema_at, .key = "type"};
    size_t other;
    if (!t->name) return ms_api_bad(p, &name_at, "missing_field", "this field is required");
    if (!ms_api_is(p, &name_at, t->name, MS_WANT_STRING)) return false;
    if (!ms_api_identifier(t->name->str, t->name->str_len)) {
        return ms_api_bad(p, &name_at, "invalid_tool", "expected 1 to 64 characters of A-Z, a-z, 0-9, _ and -");
    }
    if (find_tool(p, t->name, &other)) {
        return ms_api_bad(p, &name_at, "invalid_tool", "another tool has the same name");
    }
    if (t->description && !ms_api_is(p, &text_at, t->description, MS_WANT_STRING)) return false;
    if (t->strict && !ms_api_is(p, &strict_at, t->strict, MS_WANT_BOOL)) return false;
    if (t->parameters) {
        if (!ms_api_is(p, &schema_at, t->parameters, MS_WANT_OBJECT)) return false;
        const ms_json *type = ms_api_any(t->parameters, "type");
        if (type && !ms_json_is_string(type, "object")) {
            return ms_api_bad(p, &type_at, "invalid_tool", "the parameters of a tool must be of type \"object\"");
        }
    }
    if (p->tool_count == MS_API_MAX_TOOLS) {
        return ms_api_bad(p, at, "invalid_tool", "expected at most %d tools", MS_API_MAX_TOOLS);
    }
    remember_place(p, at);
    p->tool_names[p->tool_count++] = (ms_api_str){t->name->str, t->name->str_len};
    return true;
}

/* The source text of an object without its cache_control, which clients move from request to request. */
static void write_without_hints(ms_api_parse *p, const ms_api_path *at, ms_text *out, const ms_json *v) {
    if (!ms_json_get(v, "cache_control")) {
        ms_text_append(out, v->raw, v->raw_len);
        return;
    }
    ms_api_path hint = {.up = at, .key = "cache_control"};
    ms_api_ignore(p, &hint);
    ms_text_puts(out, "{");
    bool first = true;
    for (const ms_json *m = v->child; m; m = m->next) {
        if (strcmp(m->key, "cache_control") == 0 && m->key_len == strlen("cache_control")) continue;
        if (!first) ms_text_puts(out, ",");
        first = false;
        ms_json_write_string(out, m->key, m->key_len);
        ms_text_puts(out, ":");
        ms_text_append(out, m->raw, m->raw_len);
    }
    ms_text_puts(out, "}");
}

static bool chat_tool(ms_api_parse *p, const ms_api_path *at, const ms_json *v, ms_text *out) {
    const ms_json *type, *f;
    ms_api_path type_at = {.up = at, .key = "type"}, f_at = {.up = at, .key = "function"};
    if (!ms_api_is(p, at, v, MS_WANT_OBJECT) || !ms_api_need(p, at, v, "type", MS_WANT_STRING, &type)) return false;
    if (!ms_json_is_string(type, "function")) {
        return ms_api_bad(p, &type_at, "invalid_tool", "only tools of type \"function\" are supported");
    }
    if (!ms_api_need(p, at, v, "function", MS_WANT_OBJECT, &f)) return false;
    ms_api_tool_parts parts = {.name = ms_api_any(f, "name"),
                               .description = ms_api_any(f, "description"),
                               .parameters = ms_api_any(f, "parameters"),
                               .strict = ms_api_any(f, "strict"),
                               .schema_key = "parameters"};
    if (!check_tool(p, &f_at, &parts)) return false;
    if (!out) return true;
    if (out->len) ms_text_puts(out, ",");
    write_without_hints(p, at, out, v);
    return true;
}

bool ms_api_chat_tools(ms_api_parse *p, const ms_api_path *at, const ms_json *tools, ms_text *out) {
    ms_api_path item = {.up = at};
    for (const ms_json *v = tools->child; v; v = v->next, item.index++) {
        if (!chat_tool(p, &item, v, out)) return false;
    }
    return true;
}

bool ms_api_tool_add(ms_api_parse *p, const ms_api_path *at, const ms_api_tool_parts *t) {
    if (!check_tool(p, at, t)) return false;
    ms_text *out = &p->tools;
    if (out->len) ms_text_puts(out, ",");
    ms_text_puts(out, "{\"type\":\"function\",\"function\":{\"name\":");
    ms_json_write_string(out, t->name->str, t->name->str_len);
    if (t->description) {
        ms_text_puts(out, ",\"description\":");
        ms_json_write_string(out, t->description->str, t->description->str_len);
    }
    if (t->parameters) {
        ms_text_puts(out, ",\"parameters\":");
        ms_text_append(out, t->parameters->raw, t->parameters->raw_len);
    }
    if (t->strict) ms_text_puts(out, t->strict->type == MS_JSON_TRUE ? ",\"strict\":true" : ",\"strict\":false");
    ms_text_puts(out, "}}");
    return true;
}

/* ------------------------------------------------------------------ choice */

bool ms_api_choose(ms_api_parse *p, const ms_api_path *at, ms_api_tool_choice choice) {
    if (!p->tool_count && choice != MS_TOOLS_AUTO && choice != MS_TOOLS_NONE) {
        return ms_api_bad(p, at, "invalid_tool_choice", "this needs tools, and none is declared");
    }
    p->r->tool_choice = choice;
    for (size_t i = 0; i < p->tool_count; i++) p->allowed[i] = choice == MS_TOOLS_AUTO || choice == MS_TOOLS_REQUIRED;
    if (!p->tool_count) return true;
    if (choice == MS_TOOLS_NONE) ms_text_puts(&p->choice, "\"none\"");
    if (choice == MS_TOOLS_REQUIRED) ms_text_puts(&p->choice, "\"required\"");
    return true;
}

bool ms_api_choose_named(ms_api_parse *p, const ms_api_path *at, const ms_json *name) {
    size_t index;
    if (!ms_api_choose(p, at, MS_TOOLS_NAMED)) return false;
    if (!find_tool(p, name, &index) || index >= p->static_tools) {
        return ms_api_bad(p, at, "invalid_tool_choice", "`tools` declares no function of this name");
    }
    p->allowed[index] = true;
    ms_text_puts(&p->choice, "{\"type\":\"function\",\"function\":{\"name\":");
    ms_json_write_string(&p->choice, name->str, name->str_len);
    ms_text_puts(&p->choice, "}}");
    return true;
}

/* The function that a choice object names: {"function":{"name"}} or, flat, {"name"}. */
static bool choice_name(ms_api_parse *p, const ms_api_path *at, const ms_json *v, bool flat, const ms_json **name) {
    const ms_json *f = v;
    ms_api_path f_at = {.up = at, .key = "function"};
    if (!flat && !ms_api_need(p, at, v, "function", MS_WANT_OBJECT, &f)) return false;
    return ms_api_need(p, flat ? at : &f_at, f, "name", MS_WANT_STRING, name);
}

static bool allowed_list(ms_api_parse *p, const ms_api_path *at, const ms_json *list, bool flat) {
    ms_api_path item = {.up = at};
    for (const ms_json *v = list->child; v; v = v->next, item.index++) {
        const ms_json *type, *name;
        size_t index;
        if (!ms_api_is(p, &item, v, MS_WANT_OBJECT)) return false;
        if (!ms_api_need(p, &item, v, "type", MS_WANT_STRING, &type)) return false;
        if (!ms_json_is_string(type, "function")) {
            return ms_api_bad(p, &item, "invalid_tool_choice", "only tools of type \"function\" are supported");
        }
        if (!choice_name(p, &item, v, flat, &name)) return false;
        if (!find_tool(p, name, &index)) {
            return ms_api_bad(p, &item, "invalid_tool_choice", "no declared function has this name");
        }
        p->allowed[index] = true;
    }
    return true;
}

static bool allowed_tools(ms_api_parse *p, const ms_api_path *at, const ms_json *v, bool flat) {
    const ms_json *body = v, *mode, *list;
    ms_api_path nested = {.up = at, .key = "allowed_tools"};
    if (!flat && !ms_api_need(p, at, v, "allowed_tools", MS_WANT_OBJECT, &body)) return false;
    const ms_api_path *here = flat ? at : &nested;
    ms_api_path mode_at = {.up = here, .key = "mode"}, list_at = {.up = here, .key = "tools"};
    if (!ms_api_need(p, here, body, "mode", MS_WANT_STRING, &mode)) return false;
    if (!ms_api_need(p, here, body, "tools", MS_WANT_ARRAY, &list)) return false;
    bool required = ms_json_is_string(mode, "required");
    if (!required && !ms_json_is_string(mode, "auto")) {
        return ms_api_bad(p, &mode_at, "invalid_tool_choice", "expected auto or required");
    }
    if (!list->count) return ms_api_bad(p, &list_at, "invalid_tool_choice", "expected at least one function");
    if (!ms_api_choose(p, at, MS_TOOLS_ALLOWED) || !allowed_list(p, &list_at, list, flat)) return false;
    p->r->allowed_required = required;
    if (required) ms_text_puts(&p->choice, "\"required\"");
    return true;
}

bool ms_api_read_choice(ms_api_parse *p, bool flat) {
    static const ms_api_path at = {.key = "tool_choice"};
    const ms_json *v = ms_api_any(p->root, "tool_choice"), *type, *name;
    if (!v || ms_json_is_string(v, "auto")) return ms_api_choose(p, &at, MS_TOOLS_AUTO);
    if (ms_json_is_string(v, "none")) return ms_api_choose(p, &at, MS_TOOLS_NONE);
    if (ms_json_is_string(v, "required")) return ms_api_choose(p, &at, MS_TOOLS_REQUIRED);
    if (v->type == MS_JSON_STRING) {
        return ms_api_bad(p, &at, "invalid_tool_choice", "expected auto, none, required or an object");
    }
    if (v->type != MS_JSON_OBJECT) return ms_api_bad_type(p, &at, v, "a string or an object");
    if (!ms_api_need(p, &at, v, "type", MS_WANT_STRING, &type)) return false;
    if (ms_json_is_string(type, "allowed_tools")) return allowed_tools(p, &at, v, flat);
    if (!ms_json_is_string(type, "function")) {
        return ms_api_bad(p, &at, "invalid_tool_choice", "expected the type function or allowed_tools");
    }
    return choice_name(p, &at, v, flat, &name) && ms_api_choose_named(p, &at, name);
}

/* ------------------------------------------------------------------ response format */

static bool schema_format(ms_api_parse *p, const ms_api_path *at, const ms_json *v, ms_api_format_form form) {
    const ms_json *body = v, *name, *text, *schema;
    ms_api_path nested = {.up = at, .key = "json_schema"};
    if (form == MS_FORM_NESTED && !ms_api_need(p, at, v, "json_schema", MS_WANT_OBJECT, &body)) return false;
    const ms_api_path *here = form == MS_FORM_NESTED ? &nested : at;
    ms_api_path name_at = {.up = here, .key = "name"};
    if (form != MS_FORM_BARE) {
        if (!ms_api_need(p, here, body, "name", MS_WANT_STRING, &name)) return false;
        if (!ms_api_identifier(name->str, name->str_len)) {
            return ms_api_bad(p, &name_at, "invalid_value", "expected 1 to 64 characters of A-Z, a-z, 0-9, _ and -");
        }
    }
    if (!ms_api_get(p, here, body, "description", MS_WANT_STRING, &text)) return false;
    if (!ms_api_get_bool(p, here, body, "strict", &p->r->schema_strict)) return false;
    if (!ms_api_need(p, here, body, "schema", MS_WANT_OBJECT, &schema)) return false;
    p->r->format = MS_API_JSON_SCHEMA;
    ms_text_puts(&p->format, "{\"type\":\"json_schema\",\"json_schema\":{\"schema\":");
    ms_text_append(&p->format, schema->raw, schema->raw_len);
    ms_text_puts(&p->format, "}}");
    return true;
}

bool ms_api_format_of(ms_api_parse *p, const ms_api_path *at, const ms_json *v, ms_api_format_form form) {
    const ms_json *type;
    ms_api_path type_at = {.up = at, .key = "type"};
    if (!ms_api_need(p, at, v, "type", MS_WANT_STRING, &type)) return false;
    if (ms_json_is_string(type, "json_schema")) return schema_format(p, at, v, form);
    if (ms_json_is_string(type, "json_object") && form != MS_FORM_BARE) {
        p->r->format = MS_API_JSON_OBJECT;
        ms_text_puts(&p->format, "{\"type\":\"json_object\"}");
        return true;
    }
    if (ms_json_is_string(type, "text") && form != MS_FORM_BARE) return true;
    return ms_api_bad(p, &type_at, "unsupported_value", "expected %s",
                      form == MS_FORM_BARE ? "json_schema" : "text, json_object or json_schema");
}
