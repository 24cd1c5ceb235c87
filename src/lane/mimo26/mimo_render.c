/* mimo_render.c: a chat request as MiMo V2.6 turns (docs/formats.md, "MiMo V2.6 chat").
 *
 * Owns: nothing beyond one call; segments go to the caller's list.
 * Threads: pure, no shared state.
 * Invariants: text of a request is never escaped and never becomes a control token; an empty text gives no segment.
 * Errors: MS_ERR_USAGE "path: expected ..., found ..."; the list is then as it was before the call.
 */
#include "lane/mimo26/mimo_chat.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

typedef struct render {
    ms_segments *out;
    ms_text text; /* not yet a segment */
    ms_error *err;
} render;

/* Null counts as absent. */
static const ms_json *field(const ms_json *obj, const char *key) {
    const ms_json *v = ms_json_get(obj, key);
    return v && v->type != MS_JSON_NULL ? v : NULL;
}

/* "path: expected ..., found ..." with the value shortened. */
static ms_status fail_value(render *r, const ms_json *found, const char *expected, const char *path_format, ...)
    MS_PRINTF(4, 5);
static ms_status fail_value(render *r, const ms_json *found, const char *expected, const char *path_format, ...) {
    char path[160];
    va_list ap;
    va_start(ap, path_format);
    (void)vsnprintf(path, sizeof path, path_format, ap);
    va_end(ap);
    if (!found) return ms_fail(r->err, MS_ERR_USAGE, "%s: expected %s, found nothing", path, expected);
    size_t show = found->raw_len < 60 ? found->raw_len : ms_utf8_valid_prefix(found->raw, 60);
    return ms_fail(r->err, MS_ERR_USAGE, "%s: expected %s, found %.*s%s", path, expected, (int)show, found->raw,
                   show < found->raw_len ? "..." : "");
}

/* ------------------------------------------------------------------ segments */

static void put(render *r, const char *text) { ms_text_puts(&r->text, text); }

static ms_status flush(render *r) {
    if (r->text.failed) return ms_fail_memory(r->err, "a rendered message", r->text.len);
    if (!r->text.len) return MS_OK;
    MS_TRY(ms_segments_push(r->out, false, r->text.data, r->text.len, r->err));
    r->text.len = 0;
    return MS_OK;
}

static ms_status control(render *r, const char *name) {
    MS_TRY(flush(r));
    return ms_segments_push(r->out, true, name, strlen(name), r->err);
}

/* ------------------------------------------------------------------ tools */

static ms_status check_tools(render *r, const ms_json *tools, const char *path) {
    if (tools && tools->type != MS_JSON_ARRAY) return fail_value(r, tools, "an array of tools", "%s", path);
    size_t i = 0;
    for (const ms_json *t = tools ? tools->child : NULL; t; t = t->next, i++)
        if (t->type != MS_JSON_OBJECT) return fail_value(r, t, "an object", "%s[%zu]", path, i);
    return MS_OK;
}

/* One line a tool, as it came. */
static void put_tools(render *r, const ms_json *tools) {
    put(r, "You are provided with the following tools:\n\n<tools>");
    for (const ms_json *t = tools->child; t; t = t->next) {
        put(r, "\n");
        ms_json_write(&r->text, t, &ms_json_spaced);
    }
    put(r, "\n</tools>");
}

/* ------------------------------------------------------------------ messages */

/* Texts of a content: a string, nothing, or a list of strings and text parts (what has a text and no other type). */
static ms_status put_content(render *r, const ms_json *content, size_t message) {
    if (!content) return MS_OK;
    if (content->type == MS_JSON_STRING) {
        ms_text_append(&r->text, content->str, content->str_len);
        return MS_OK;
    }
    if (content->type != MS_JSON_ARRAY)
        return fail_value(r, content, "a string, null or an array of text parts", "messages[%zu].content", message);
    size_t i = 0;
    for (const ms_json *part = content->child; part; part = part->next, i++) {
        const ms_json *type = ms_json_get(part, "type"),
                      *text = part->type == MS_JSON_STRING ? part : ms_json_get(part, "text");
        bool is_text = part->type == MS_JSON_STRING || !type || ms_json_is_string(type, "text");
        if (!is_text || !text || text->type != MS_JSON_STRING)
            return fail_value(r, part, "a text part", "messages[%zu].content[%zu]", message, i);
        ms_text_append(&r->text, text->str, text->str_len);
    }
    return MS_OK;
}

static ms_status put_members(render *r, const ms_json *arguments) {
    const ms_json **members = NULL;
    size_t count = 0;
    if (!ms_json_members(&members, &count, arguments, false))
        return ms_fail_memory(r->err, "arguments", arguments->count);
    for (size_t i = 0; i < count; i++) {
        put(r, "<parameter=");
        ms_text_append(&r->text, members[i]->key, members[i]->key_len);
        put(r, ">");
        if (members[i]->type == MS_JSON_STRING)
            ms_text_append(&r->text, members[i]->str, members[i]->str_len);
        else
            ms_json_write(&r->text, members[i], &ms_json_spaced);
        put(r, "</parameter>");
    }
    free((void *)members);
    return MS_OK;
}

/* The usual interface carries an object's text; what is no object's text is printed as it is. */
static ms_status put_arguments(render *r, const ms_json *arguments, bool free_form, size_t message, size_t call) {
    if (!arguments) return MS_OK;
    if (arguments->type == MS_JSON_OBJECT) return put_members(r, arguments);
    if (arguments->type != MS_JSON_STRING)
        return fail_value(r, arguments, "an object or its JSON text", "messages[%zu].tool_calls[%zu] arguments",
                          message, call);
    ms_json_doc *doc = NULL;
    ms_status status = MS_OK;
    bool parsed =
        !free_form && ms_json_parse(&doc, arguments->str, arguments->str_len, "arguments", NULL, NULL) == MS_OK;
    if (parsed && ms_json_root(doc)->type == MS_JSON_OBJECT)
        status = put_members(r, ms_json_root(doc));
    else
        ms_text_append(&r->text, arguments->str, arguments->str_len);
    ms_json_free(doc);
    return status;
}

static ms_status put_calls(render *r, const ms_json *calls, size_t message) {
    if (calls && calls->type != MS_JSON_ARRAY)
        return fail_value(r, calls, "an array", "messages[%zu].tool_calls", message);
    size_t i = 0;
    for (const ms_json *c = calls ? calls->child : NULL; c; c = c->next, i++) {
        const ms_json *function = field(c, "function"), *custom = function ? NULL : field(c, "custom");
        const ms_json *call = function ? function : custom ? custom : c, *name = ms_json_get(call, "name");
        if (!name || name->type != MS_JSON_STRING || name->str_len == 0)
            return fail_value(r, name, "a function's name", "messages[%zu].tool_calls[%zu].function.name", message, i);
        MS_TRY(control(r, "<tool_call>"));
        put(r, "<function=");
        ms_text_append(&r->text, name->str, name->str_len);
        put(r, ">");
        MS_TRY(put_arguments(r, field(call, custom ? "input" : "arguments"), custom != NULL, message, i));
        put(r, "</function>");
        MS_TRY(control(r, "</tool_call>"));
    }
    return MS_OK;
}

static ms_status put_assistant(render *r, const ms_json *m, size_t index) {
    put(r, "assistant\n");
    MS_TRY(control(r, "<think>"));
    const ms_json *reasoning = ms_json_get(m, "reasoning_content");
    if (reasoning && reasoning->type == MS_JSON_STRING) ms_text_append(&r->text, reasoning->str, reasoning->str_len);
    MS_TRY(control(r, "</think>"));
    MS_TRY(put_content(r, field(m, "content"), index));
    return put_calls(r, field(m, "tool_calls"), index);
}

static ms_status put_message(render *r, const ms_json *m, size_t index) {
    const ms_json *role = ms_json_get(m, "role");
    if (m->type != MS_JSON_OBJECT) return fail_value(r, m, "an object", "messages[%zu]", index);
    if (!role || role->type != MS_JSON_STRING || role->str_len == 0)
        return fail_value(r, role, "a role", "messages[%zu].role", index);
    MS_TRY(control(r, "<|im_start|>"));
    if (ms_json_is_string(role, "assistant")) {
        MS_TRY(put_assistant(r, m, index));
        return control(r, "<|im_end|>");
    }
    ms_text_append(&r->text, role->str, role->str_len);
    put(r, "\n");
    size_t before = r->text.len;
    MS_TRY(put_content(r, field(m, "content"), index));
    const ms_json *tools = field(m, "tools");
    char path[64];
    (void)snprintf(path, sizeof path, "messages[%zu].tools", index);
    MS_TRY(check_tools(r, tools, path));
    if (tools && tools->count) {
        if (r->text.len > before) put(r, "\n\n");
        put_tools(r, tools);
    }
    return control(r, "<|im_end|>");
}

/* ------------------------------------------------------------------ requests */

static ms_status read_flag(render *r, const ms_json *request, const char *key, bool *out) {
    const ms_json *v = field(request, key);
    if (v && !ms_json_bool(v, out)) return fail_value(r, v, "true or false", "%s", key);
    return MS_OK;
}

static ms_status put_request(render *r, const ms_json *request) {
    bool thinking = true, generation = true;
    if (!request || request->type != MS_JSON_OBJECT) return fail_value(r, request, "an object", "request");
    /* The template's own switch: only the boolean false is off. */
    (void)ms_json_bool(field(request, "enable_thinking"), &thinking);
    MS_TRY(read_flag(r, request, "thinking", &thinking));
    MS_TRY(read_flag(r, request, "add_generation_prompt", &generation));
    const ms_json *messages = field(request, "messages"), *tools = field(request, "tools");
    if (!messages || messages->type != MS_JSON_ARRAY) return fail_value(r, messages, "an array", "messages");
    MS_TRY(check_tools(r, tools, "tools"));
    if (tools && tools->count) {
        MS_TRY(control(r, "<|im_start|>"));
        put(r, "system\n");
        put_tools(r, tools);
        MS_TRY(control(r, "<|im_end|>"));
    }
    size_t i = 0;
    for (const ms_json *m = messages->child; m; m = m->next) MS_TRY(put_message(r, m, i++));
    if (!generation) return flush(r);
    MS_TRY(control(r, "<|im_start|>"));
    put(r, "assistant\n");
    if (thinking) return flush(r);
    MS_TRY(control(r, "<think>"));
    return control(r, "</think>");
}

ms_status mimo_render(const ms_json *request, ms_segments *out, ms_error *err) {
    render r = {.out = out, .err = err};
    size_t before = out->count;
    ms_status status = put_request(&r, request);
    ms_text_free(&r.text);
    while (status != MS_OK && out->count > before) free(out->items[--out->count].text);
    return status;
}
