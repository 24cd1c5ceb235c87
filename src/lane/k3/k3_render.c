/* k3_render.c: a chat request as XTML segments for Kimi K3 (docs/formats.md, "K3 chat").
 *
 * Owns: nothing beyond one call; segments go to the caller's list.
 * Threads: pure, no shared state.
 * Invariants: each attribute is four text segments (' name', '="', value, '"'), bodies are never escaped, an
 * empty text gives no segment, only this file's constants become control segments.
 * Errors: MS_ERR_USAGE "path: expected ..., found ..."; the list is then as it was before the call.
 */
#include "lane/k3/k3_chat.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

/* ------------------------------------------------------------------ the notes' texts */

static const char note_tools_before[] = "# Tools\n"
                                        "Here are the available tools, described in JSONSchema.\n\n"
                                        "```json\n";
static const char note_new_tools_before[] = "## New Tools Available\n"
                                            "The system dynamically extends the toolset via lazy-loading.\n"
                                            "You have access to all existing and extended tools.\n"
                                            "Here are the specs for the extended tools.\n\n"
                                            "```json\n";
static const char note_json_after[] = "\n```";
static const char note_effort_before[] =
    "`thinking_effort` guides on how much to think in your thinking channel (not including the response channel), "
    "supported values include `low`, `medium`, `high`, and `max`.\n"
    "Now the system is invoked with `thinking_effort=";
static const char note_effort_after[] = "`.";
static const char note_required[] = "The system is invoked with `tool_choice=required`.\n"
                                    "You MUST call tools in the next message.";
static const char note_none[] = "The system is invoked with `tool_choice=none`.\n"
                                "You MUST NOT call any tools in the next message.";
static const char note_serial[] = "The system is invoked with `parallel_tool_calls=false`.\n"
                                  "You MUST NOT make more than one tool call in the next message.";
static const char note_json_object[] =
    "The system is invoked with `response_format=json_object`.\n"
    "Your response must be raw JSON data without markdown code blocks (```json) or any additional formatting.";
static const char note_json_schema_before[] =
    "The system is invoked with `response_format=json_schema`.\n"
    "Your response must be raw JSON data without markdown code blocks (```json) or any additional formatting.\n"
    "The JSON data must match the following schema:\n"
    "```json\n";

/* ------------------------------------------------------------------ state of one rendering */

typedef struct call_id {
    const char *text;
    size_t len;
    size_t position;
} call_id;

typedef enum tool_choice { CHOICE_AUTO, CHOICE_REQUIRED, CHOICE_NONE } tool_choice;

typedef struct render {
    ms_segments *out;
    ms_error *err;
    bool thinking, generation, serial;
    const ms_json *tools; /* the non-empty list, or NULL */
    const ms_json *only;  /* the one tool that a named choice declares, or NULL */
    tool_choice choice;
    const ms_json *effort; /* a string, or NULL */
    const ms_json *format; /* response_format, or NULL */
    /* Calls of the latest assistant message: entries in order, and their ids sorted by text, then position. */
    const ms_json **calls;
    size_t call_count;
    call_id *ids;
    size_t id_count;
    ms_text id_texts;   /* numbers that are ids, written out */
    size_t results;     /* tool messages rendered since that message */
} render;

/* Null counts as absent everywhere. */
static const ms_json *field(const ms_json *obj, const char *key) {
    const ms_json *v = ms_json_get(obj, key);
    return v && v->type != MS_JSON_NULL ? v : NULL;
}

static bool is_string(const ms_json *v) { return v && v->type == MS_JSON_STRING; }

/* "path: expected ..., found ..." with the value shortened. */
static ms_status fail_value(ms_error *err, const ms_json *found, const char *expected, const char *path_format, ...)
    MS_PRINTF(4, 5);
static ms_status fail_value(ms_error *err, const ms_json *found, const char *expected, const char *path_format, ...) {
    static const char *const names[] = {"null", "false", "true", "a number", "a string", "an array", "an object"};
    char path[160];
    va_list ap;
    va_start(ap, path_format);
    (void)vsnprintf(path, sizeof path, path_format, ap);
    va_end(ap);
    if (!found) return ms_fail(err, MS_ERR_USAGE, "%s: expected %s, found nothing", path, expected);
    if (found->type == MS_JSON_STRING || found->type == MS_JSON_NUMBER) {
        bool text = found->type == MS_JSON_STRING;
        const char *s = text ? found->str : found->raw, *quote = text ? "\"" : "";
        size_t len = text ? found->str_len : found->raw_len, show = len < 60 ? len : ms_utf8_valid_prefix(s, 60);
        return ms_fail(err, MS_ERR_USAGE, "%s: expected %s, found %s%.*s%s%s", path, expected, quote, (int)show, s,
                       show < len ? "..." : "", quote);
    }
    return ms_fail(err, MS_ERR_USAGE, "%s: expected %s, found %s", path, expected, names[found->type]);
}

/* ------------------------------------------------------------------ elements */

static ms_status control(render *r, const char *name) {
    return ms_segments_push(r->out, true, name, strlen(name), r->err);
}

static ms_status text(render *r, const char *s, size_t len) {
    return len ? ms_segments_push(r->out, false, s, len, r->err) : MS_OK;
}

static ms_status put(render *r, const char *s) { return text(r, s, strlen(s)); }

/* Renders *t as one segment and frees it. */
static ms_status text_out(render *r, ms_text *t) {
    ms_status status = t->failed ? ms_fail_memory(r->err, "a segment", t->len) : text(r, t->data, t->len);
    ms_text_free(t);
    return status;
}

static ms_status begin(render *r, const char *tag) {
    MS_TRY(control(r, "<|open|>"));
    return put(r, tag);
}

static ms_status end_tag(render *r) { return control(r, "<|sep|>"); }

static ms_status attr(render *r, const char *name, const char *value, size_t len) {
    char spaced[16];
    (void)snprintf(spaced, sizeof spaced, " %s", name);
    MS_TRY(put(r, spaced));
    MS_TRY(put(r, "=\""));
    ms_text escaped = {0};
    for (size_t i = 0, done = 0; i <= len; i++) {
        if (i < len && value[i] != '&' && value[i] != '"') continue;
        ms_text_append(&escaped, value + done, i - done);
        if (i < len) ms_text_puts(&escaped, value[i] == '&' ? "&amp;" : "&quot;");
        done = i + 1;
    }
    MS_TRY(text_out(r, &escaped));
    return put(r, "\"");
}

static ms_status attr_puts(render *r, const char *name, const char *value) {
    return attr(r, name, value, strlen(value));
}

static ms_status attr_index(render *r, size_t index) {
    char digits[24];
    (void)snprintf(digits, sizeof digits, "%zu", index);
    return attr_puts(r, "index", digits);
}

static ms_status open_plain(render *r, const char *tag) {
    MS_TRY(begin(r, tag));
    return end_tag(r);
}

static ms_status close_tag(render *r, const char *tag) {
    MS_TRY(control(r, "<|close|>"));
    MS_TRY(put(r, tag));
    return end_tag(r);
}

static ms_status end_message(render *r) {
    MS_TRY(close_tag(r, "message"));
    return control(r, "<|end_of_msg|>");
}

/* before + middle + after as one segment; consumes *middle. */
static ms_status note(render *r, const char *kind, const char *before, ms_text *middle, const char *after) {
    ms_text body = {0};
    ms_text_puts(&body, before);
    if (middle) {
        ms_text_append(&body, middle->data, middle->len);
        body.failed = body.failed || middle->failed;
        ms_text_free(middle);
    }
    ms_text_puts(&body, after);
    ms_status status = begin(r, "message");
    if (status == MS_OK) status = attr_puts(r, "role", "system");
    if (status == MS_OK) status = attr_puts(r, "type", kind);
    if (status == MS_OK) status = end_tag(r);
    if (status != MS_OK) {
        ms_text_free(&body);
        return status;
    }
    MS_TRY(text_out(r, &body));
    return end_message(r);
}

static ms_status note_json(render *r, const char *kind, const char *before, const ms_json *value) {
    ms_text json = {0};
    if (value) ms_json_write(&json, value, &ms_json_compact_sorted);
    else ms_text_puts(&json, "null");
    return note(r, kind, before, &json, note_json_after);
}

/* ------------------------------------------------------------------ content */

static ms_status content_part(render *r, const ms_json *part, size_t message, size_t index) {
    if (part->type != MS_JSON_OBJECT) {
        return fail_value(r->err, part, "an object", "messages[%zu].content[%zu]", message, index);
    }
    const ms_json *type = field(part, "type");
    if (ms_json_is_string(type, "image") || ms_json_is_string(type, "image_url")) {
        return fail_value(r->err, type, "\"text\" (images are not supported)", "messages[%zu].content[%zu].type",
                          message, index);
    }
    if (!ms_json_is_string(type, "text")) {
        return fail_value(r->err, type, "\"text\"", "messages[%zu].content[%zu].type", message, index);
    }
    const ms_json *s = field(part, "text");
    if (!is_string(s)) return fail_value(r->err, s, "a string", "messages[%zu].content[%zu].text", message, index);
    return text(r, s->str, s->str_len);
}

/* One segment a part: parts are not joined. */
static ms_status content(render *r, const ms_json *m, size_t message) {
    const ms_json *c = field(m, "content");
    if (!c) return MS_OK;
    if (c->type == MS_JSON_STRING) return text(r, c->str, c->str_len);
    if (c->type != MS_JSON_ARRAY) {
        return fail_value(r->err, c, "a string or a list of parts", "messages[%zu].content", message);
    }
    size_t i = 0;
    for (const ms_json *p = c->child; p; p = p->next) MS_TRY(content_part(r, p, message, i++));
    return MS_OK;
}

static ms_status begin_message(render *r, const ms_json *m, size_t message, const char *role) {
    const ms_json *name = field(m, "name");
    if (name && !is_string(name)) return fail_value(r->err, name, "a string", "messages[%zu].name", message);
    MS_TRY(begin(r, "message"));
    MS_TRY(attr_puts(r, "role", role));
    if (name && name->str_len) MS_TRY(attr(r, "name", name->str, name->str_len));
    return end_tag(r);
}

static ms_status plain_message(render *r, const ms_json *m, size_t message, const char *role) {
    MS_TRY(begin_message(r, m, message, role));
    MS_TRY(content(r, m, message));
    return end_message(r);
}

static ms_status system_message(render *r, const ms_json *m, size_t message) {
    const ms_json *tools = field(m, "tools");
    if (tools && tools->type != MS_JSON_ARRAY) {
        return fail_value(r->err, tools, "a list", "messages[%zu].tools", message);
    }
    if (tools && tools->count) return note_json(r, "tool-declare", note_new_tools_before, tools);
    return plain_message(r, m, message, "system");
}

/* ------------------------------------------------------------------ calls */

/* The object that holds name and arguments. */
static const ms_json *call_function(const ms_json *call) {
    const ms_json *f = field(call, "function");
    return f ? f : call;
}

static const char *type_name(const ms_json *v) {
    static const char *const names[] = {"null", "boolean", "boolean", "number", "string", "array", "object"};
    return names[v->type];
}

static ms_status argument(render *r, const ms_json *v, bool literal) {
    MS_TRY(begin(r, "argument"));
    MS_TRY(attr(r, "key", v->key, v->key_len));
    MS_TRY(attr_puts(r, "type", type_name(v)));
    MS_TRY(end_tag(r));
    if (v->type == MS_JSON_STRING) {
        MS_TRY(text(r, v->str, v->str_len));
    } else if (literal) {
        MS_TRY(text(r, v->raw, v->raw_len));
    } else {
        ms_text body = {0};
        ms_json_write(&body, v, &ms_json_spaced);
        MS_TRY(text_out(r, &body));
    }
    return close_tag(r, "argument");
}

static ms_status arguments_object(render *r, const ms_json *args) {
    const ms_json **list;
    size_t count;
    if (!ms_json_members(&list, &count, args, false)) {
        return ms_fail_memory(r->err, "a list of arguments", args->count * sizeof *list);
    }
    ms_status status = MS_OK;
    for (size_t i = 0; i < count && status == MS_OK; i++) status = argument(r, list[i], false);
    free(list);
    return status;
}

/* Text that reads as an object keeps its literals and repeated keys; any other text stays one piece. */
static ms_status arguments_text(render *r, const ms_json *args) {
    if (!args->str_len) return MS_OK;
    static const ms_json_limits limits = {
        .max_depth = MS_JSON_MAX_DEPTH, .allow_nan = true, .allow_control = true, .allow_trailing = true};
    ms_json_doc *doc;
    ms_error why;
    ms_status status = ms_json_parse(&doc, args->str, args->str_len, "arguments", &limits, &why);
    if (status == MS_ERR_MEMORY) return ms_fail(r->err, status, "%s", why.message);
    const ms_json *root = ms_json_root(doc);
    if (root && root->type == MS_JSON_OBJECT) {
        status = MS_OK;
        for (const ms_json *v = root->child; v && status == MS_OK; v = v->next) status = argument(r, v, true);
        ms_json_free(doc);
        return status;
    }
    ms_json_free(doc);
    MS_TRY(begin(r, "json"));
    MS_TRY(attr_puts(r, "type", "object"));
    MS_TRY(end_tag(r));
    MS_TRY(text(r, args->str, args->str_len));
    return close_tag(r, "json");
}

static ms_status tool_call(render *r, const ms_json *call, size_t message, size_t index) {
    if (call->type != MS_JSON_OBJECT) {
        return fail_value(r->err, call, "an object", "messages[%zu].tool_calls[%zu]", message, index);
    }
    const ms_json *f = call_function(call), *name = field(f, "name"), *args = field(f, "arguments");
    const char *where = f == call ? "" : ".function";
    if (!is_string(name) || !name->str_len) {
        return fail_value(r->err, name, "a function name", "messages[%zu].tool_calls[%zu]%s.name", message, index,
                          where);
    }
    MS_TRY(begin(r, "call"));
    MS_TRY(attr(r, "tool", name->str, name->str_len));
    MS_TRY(attr_index(r, index + 1));
    MS_TRY(end_tag(r));
    if (args && args->type == MS_JSON_OBJECT) {
        MS_TRY(arguments_object(r, args));
    } else if (is_string(args)) {
        MS_TRY(arguments_text(r, args));
    } else if (args) {
        return fail_value(r->err, args, "an object or a string", "messages[%zu].tool_calls[%zu]%s.arguments", message,
                          index, where);
    }
    return close_tag(r, "call");
}

/* ------------------------------------------------------------------ ids of calls and results */

static int compare_ids(const char *a, size_t a_len, const char *b, size_t b_len) {
    size_t n = a_len < b_len ? a_len : b_len;
    int c = n ? memcmp(a, b, n) : 0;
    return c ? c : a_len < b_len ? -1 : a_len > b_len;
}

static int by_id(const void *pa, const void *pb) {
    const call_id *a = pa, *b = pb;
    int c = compare_ids(a->text, a->len, b->text, b->len);
    return c ? c : a->position < b->position ? -1 : a->position > b->position;
}

static void forget_calls(render *r) {
    free(r->calls);
    free(r->ids);
    ms_text_free(&r->id_texts);
    r->calls = NULL;
    r->ids = NULL;
    r->call_count = r->id_count = r->results = 0;
}

/* Ids are compared as text, so 7 is "7". */
static ms_status remember_calls(render *r, const ms_json *calls) {
    forget_calls(r);
    if (!calls || !calls->count) return MS_OK;
    r->calls = calloc(calls->count, sizeof *r->calls);
    r->ids = calloc(calls->count, sizeof *r->ids);
    if (!r->calls || !r->ids) return ms_fail_memory(r->err, "a list of calls", calls->count * sizeof *r->ids);
    for (const ms_json *c = calls->child; c; c = c->next) {
        size_t position = r->call_count;
        r->calls[r->call_count++] = c;
        const ms_json *id = field(c, "id");
        if (is_string(id)) {
            r->ids[r->id_count++] = (call_id){id->str, id->str_len, position};
        } else if (id && id->type == MS_JSON_NUMBER) {
            size_t start = r->id_texts.len;
            ms_json_write_number(&r->id_texts, id->raw, id->raw_len);
            /* The buffer may still move: the offset stands in for the address. */
            r->ids[r->id_count++] = (call_id){NULL, r->id_texts.len - start, position};
        }
    }
    if (r->id_texts.failed) return ms_fail_memory(r->err, "ids of calls", r->id_texts.len);
    size_t offset = 0;
    for (size_t i = 0; i < r->id_count; i++) {
        if (r->ids[i].text) continue;
        r->ids[i].text = r->id_texts.data + offset;
        offset += r->ids[i].len;
    }
    qsort(r->ids, r->id_count, sizeof *r->ids, by_id);
    return MS_OK;
}

/* Position of the first call with this id; false when there is none. */
static bool find_call(const render *r, const char *id, size_t len, size_t *position) {
    size_t low = 0, high = r->id_count;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (compare_ids(r->ids[mid].text, r->ids[mid].len, id, len) < 0) low = mid + 1;
        else high = mid;
    }
    if (low == r->id_count || compare_ids(r->ids[low].text, r->ids[low].len, id, len) != 0) return false;
    *position = r->ids[low].position;
    return true;
}

static ms_status match_result(render *r, const ms_json *m, bool *matched, size_t *position) {
    const ms_json *id = field(m, "tool_call_id");
    if (!id || (is_string(id) && !id->str_len)) id = field(m, "id");
    *matched = false;
    if (is_string(id)) {
        *matched = find_call(r, id->str, id->str_len, position);
    } else if (id && id->type == MS_JSON_NUMBER) {
        ms_text number = {0};
        ms_json_write_number(&number, id->raw, id->raw_len);
        if (number.failed) return ms_fail_memory(r->err, "the id of a tool result", id->raw_len);
        *matched = find_call(r, number.data, number.len, position);
        ms_text_free(&number);
    }
    return MS_OK;
}

/* ------------------------------------------------------------------ assistant and tool messages */

static ms_status assistant_message(render *r, const ms_json *m, size_t message) {
    const ms_json *calls = field(m, "tool_calls");
    if (calls && calls->type != MS_JSON_ARRAY) {
        return fail_value(r->err, calls, "a list", "messages[%zu].tool_calls", message);
    }
    MS_TRY(begin_message(r, m, message, "assistant"));
    if (r->thinking) {
        const char *key = "reasoning_content";
        const ms_json *s = field(m, key);
        if (!s || (is_string(s) && !s->str_len)) {
            key = "reasoning";
            s = field(m, key);
        }
        if (s && !is_string(s)) return fail_value(r->err, s, "a string", "messages[%zu].%s", message, key);
        MS_TRY(open_plain(r, "think"));
        if (s) MS_TRY(text(r, s->str, s->str_len));
        MS_TRY(close_tag(r, "think"));
    }
    MS_TRY(open_plain(r, "response"));
    MS_TRY(content(r, m, message));
    MS_TRY(close_tag(r, "response"));
    if (calls && calls->count) {
        MS_TRY(open_plain(r, "tools"));
        size_t i = 0;
        for (const ms_json *c = calls->child; c; c = c->next) MS_TRY(tool_call(r, c, message, i++));
        MS_TRY(close_tag(r, "tools"));
    }
    MS_TRY(end_message(r));
    return remember_calls(r, calls);
}

typedef struct result {
    const ms_json *message;
    size_t number; /* in `messages` */
    size_t call;   /* position of its call, when the run is matched */
} result;

static int by_call(const void *pa, const void *pb) {
    const result *a = pa, *b = pb;
    if (a->call != b->call) return a->call < b->call ? -1 : 1;
    return a->number < b->number ? -1 : a->number > b->number;
}

static ms_status tool_message(render *r, const result *one, bool matched) {
    const char *key = "tool";
    const ms_json *name = NULL;
    size_t index = ++r->results;
    if (matched) {
        name = field(call_function(r->calls[one->call]), "name");
    } else {
        name = field(one->message, key);
        if (!name) name = field(one->message, key = "name");
        if (!name || (is_string(name) && !name->str_len && strcmp(key, "name") == 0)) {
            name = index <= r->call_count ? field(call_function(r->calls[index - 1]), "name") : NULL;
        }
    }
    if (!is_string(name) || !name->str_len) {
        return fail_value(r->err, name, "the name of the function or the id of a call before it", "messages[%zu].%s",
                          one->number, key);
    }
    MS_TRY(begin(r, "message"));
    MS_TRY(attr_puts(r, "role", "tool"));
    MS_TRY(attr(r, "tool", name->str, name->str_len));
    MS_TRY(attr_index(r, index));
    MS_TRY(end_tag(r));
    MS_TRY(content(r, one->message, one->number));
    return end_message(r);
}

static bool is_tool_message(const ms_json *m) {
    return m && m->type == MS_JSON_OBJECT && ms_json_is_string(field(m, "role"), "tool");
}

/* A maximal run of tool messages from *m on: in the order of their calls when every one has a call, else as it
 * is.  Moves *m and *message behind the run. */
static ms_status tool_run(render *r, const ms_json **m, size_t *message) {
    size_t count = 0;
    for (const ms_json *t = *m; is_tool_message(t); t = t->next) count++;
    result *run = calloc(count, sizeof *run);
    if (!run) return ms_fail_memory(r->err, "a run of tool results", count * sizeof *run);
    ms_status status = MS_OK;
    bool all = true;
    for (size_t i = 0; i < count && status == MS_OK; i++, *m = (*m)->next) {
        bool matched;
        run[i] = (result){.message = *m, .number = (*message)++};
        status = match_result(r, *m, &matched, &run[i].call);
        all = all && matched;
    }
    if (status == MS_OK && all) qsort(run, count, sizeof *run, by_call);
    for (size_t i = 0; i < count && status == MS_OK; i++) status = tool_message(r, &run[i], all);
    free(run);
    return status;
}

static ms_status one_message(render *r, const ms_json *m, size_t message) {
    if (m->type != MS_JSON_OBJECT) return fail_value(r->err, m, "an object", "messages[%zu]", message);
    const ms_json *role = field(m, "role");
    if (ms_json_is_string(role, "user")) return plain_message(r, m, message, "user");
    if (ms_json_is_string(role, "assistant")) return assistant_message(r, m, message);
    if (ms_json_is_string(role, "system") || ms_json_is_string(role, "developer")) return system_message(r, m, message);
    return fail_value(r->err, role, "system, user, assistant, tool or developer", "messages[%zu].role", message);
}

/* ------------------------------------------------------------------ options */

static ms_status option_bool(render *r, const ms_json *request, const char *key, bool *value) {
    const ms_json *v = field(request, key);
    if (v && !ms_json_bool(v, value)) return fail_value(r->err, v, "true or false", "%s", key);
    return MS_OK;
}

static ms_status option_effort(render *r, const ms_json *request) {
    const char *key = "thinking_effort";
    const ms_json *v = field(request, key);
    if (!v) v = field(request, key = "reasoning_effort");
    if (!v) return MS_OK;
    static const char *const known[] = {"low", "medium", "high", "max"};
    bool good = false;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) good = good || ms_json_is_string(v, known[i]);
    if (!good) return fail_value(r->err, v, "low, medium, high or max", "%s", key);
    if (r->thinking) r->effort = v;
    return MS_OK;
}

static ms_status option_choice(render *r, const ms_json *request) {
    const ms_json *v = field(request, "tool_choice");
    if (!v || ms_json_is_string(v, "auto")) return MS_OK;
    if (ms_json_is_string(v, "required") || ms_json_is_string(v, "none")) {
        r->choice = ms_json_is_string(v, "none") ? CHOICE_NONE : CHOICE_REQUIRED;
        return MS_OK;
    }
    const ms_json *name = field(call_function(v), "name");
    if (v->type != MS_JSON_OBJECT) {
        return fail_value(r->err, v, "auto, required, none or a named function", "tool_choice");
    }
    if (!is_string(name)) return fail_value(r->err, name, "the name of a function", "tool_choice.function.name");
    for (const ms_json *t = r->tools ? r->tools->child : NULL; t && !r->only; t = t->next) {
        const ms_json *n = field(call_function(t), "name");
        if (is_string(n) && n->str_len == name->str_len && memcmp(n->str, name->str, n->str_len) == 0) r->only = t;
    }
    if (!r->only) return fail_value(r->err, name, "a function that `tools` declares", "tool_choice.function.name");
    r->choice = CHOICE_REQUIRED;
    return MS_OK;
}

static ms_status option_format(render *r, const ms_json *request) {
    const ms_json *v = field(request, "response_format");
    if (!v) return MS_OK;
    if (v->type != MS_JSON_OBJECT) return fail_value(r->err, v, "an object", "response_format");
    const ms_json *type = field(v, "type"), *schema = field(v, "json_schema");
    if (ms_json_is_string(type, "text")) return MS_OK;
    if (!ms_json_is_string(type, "json_object") && !ms_json_is_string(type, "json_schema")) {
        return fail_value(r->err, type, "text, json_object or json_schema", "response_format.type");
    }
    if (ms_json_is_string(type, "json_schema") && schema && schema->type != MS_JSON_OBJECT) {
        return fail_value(r->err, schema, "an object", "response_format.json_schema");
    }
    r->format = v;
    return MS_OK;
}

static ms_status read_options(render *r, const ms_json *request) {
    bool parallel = true;
    r->thinking = r->generation = true;
    MS_TRY(option_bool(r, request, "thinking", &r->thinking));
    MS_TRY(option_bool(r, request, "add_generation_prompt", &r->generation));
    MS_TRY(option_bool(r, request, "parallel_tool_calls", &parallel));
    const ms_json *tools = field(request, "tools");
    if (tools && tools->type != MS_JSON_ARRAY) return fail_value(r->err, tools, "a list", "tools");
    if (tools && tools->count) r->tools = tools;
    MS_TRY(option_effort(r, request));
    MS_TRY(option_choice(r, request));
    MS_TRY(option_format(r, request));
    r->serial = !parallel && r->tools && r->choice != CHOICE_NONE;
    return MS_OK;
}

static ms_status notes_before(render *r) {
    if (r->only) {
        ms_json alone = *r->only, list = {.type = MS_JSON_ARRAY, .child = &alone, .count = 1};
        alone.next = NULL;
        MS_TRY(note_json(r, "tool-declare", note_tools_before, &list));
    } else if (r->tools) {
        MS_TRY(note_json(r, "tool-declare", note_tools_before, r->tools));
    }
    if (!r->effort) return MS_OK;
    ms_text effort = {0};
    ms_text_puts(&effort, r->effort->str);
    return note(r, "thinking-effort", note_effort_before, &effort, note_effort_after);
}

static ms_status notes_after(render *r) {
    if (r->choice == CHOICE_REQUIRED) MS_TRY(note(r, "tool-choice", note_required, NULL, ""));
    if (r->choice == CHOICE_NONE) MS_TRY(note(r, "tool-choice", note_none, NULL, ""));
    if (r->serial) MS_TRY(note(r, "parallel-tool-calls", note_serial, NULL, ""));
    if (!r->format) return MS_OK;
    if (ms_json_is_string(field(r->format, "type"), "json_object")) {
        return note(r, "response-format", note_json_object, NULL, "");
    }
    const ms_json *outer = field(r->format, "json_schema"), *schema = field(outer, "schema");
    if (!schema) schema = field(outer, "json_schema");
    return note_json(r, "response-format", note_json_schema_before, schema ? schema : outer);
}

static ms_status render_all(render *r, const ms_json *request) {
    if (!request || request->type != MS_JSON_OBJECT) return fail_value(r->err, request, "an object", "request");
    const ms_json *messages = field(request, "messages");
    if (!messages || messages->type != MS_JSON_ARRAY) return fail_value(r->err, messages, "a list", "messages");
    MS_TRY(read_options(r, request));
    MS_TRY(notes_before(r));
    size_t number = 0;
    for (const ms_json *m = messages->child; m;) {
        if (is_tool_message(m)) {
            MS_TRY(tool_run(r, &m, &number));
            continue;
        }
        MS_TRY(one_message(r, m, number++));
        m = m->next;
    }
    MS_TRY(notes_after(r));
    if (!r->generation) return MS_OK;
    MS_TRY(begin(r, "message"));
    MS_TRY(attr_puts(r, "role", "assistant"));
    MS_TRY(end_tag(r));
    return open_plain(r, r->thinking ? "think" : "response");
}

ms_status k3_render(const ms_json *request, ms_segments *out, ms_error *err) {
    size_t before = out->count;
    render r = {.out = out, .err = err};
    ms_status status = render_all(&r, request);
    forget_calls(&r);
    if (status != MS_OK) {
        while (out->count > before) free(out->items[--out->count].text);
    }
    return status;
}
