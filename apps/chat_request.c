/* chat_request.c: a chat request from a file.  Options of the command line win over its fields; fields without effect
 * are named. */
#include <string.h>

#include "chat.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))

/* A number of the request; absent and null leave *out. */
static ms_status number(const ms_json *root, const char *key, double low, bool low_open, double high, bool high_open,
                        double *out, ms_error *err) {
    const ms_json *v = ms_json_get(root, key);
    if (!v || v->type == MS_JSON_NULL) return MS_OK;
    double value;
    if (ms_json_double(v, &value) && (low_open ? value > low : value >= low) &&
        (high_open ? value < high : value <= high)) {
        *out = value;
        return MS_OK;
    }
    return ms_fail(err, MS_ERR_USAGE, "%s: expected a number from %s%g to %s%g, found %.*s", key,
                   low_open ? "above " : "", low, high_open ? "below " : "", high,
                   (int)(v->raw_len < 60 ? v->raw_len : 60), v->raw);
}

static ms_status whole(const ms_json *root, const char *key, uint64_t low, uint64_t high, uint64_t *out,
                       ms_error *err) {
    const ms_json *v = ms_json_get(root, key);
    if (!v || v->type == MS_JSON_NULL) return MS_OK;
    uint64_t value;
    if (ms_json_u64(v, &value) && value >= low && value <= high) {
        *out = value;
        return MS_OK;
    }
    return ms_fail(err, MS_ERR_USAGE, "%s: expected a whole number from %llu to %llu, found %.*s", key,
                   (unsigned long long)low, (unsigned long long)high, (int)(v->raw_len < 60 ? v->raw_len : 60), v->raw);
}

/* Sampling and limits that the command line does not give. */
static ms_status take_settings(chat *c, const ms_json *root, ms_error *err) {
    const chat_options *o = c->o;
    ms_sampler *s = &c->sampler;
    if (!o->temperature_given) MS_TRY(number(root, "temperature", 0, false, 2, false, &s->temperature, err));
    if (!o->top_p_given) MS_TRY(number(root, "top_p", 0, true, 1, false, &s->top_p, err));
    if (!o->min_p_given) MS_TRY(number(root, "min_p", 0, false, 1, true, &s->min_p, err));
    uint64_t top_k = s->top_k;
    if (!o->top_k_given) MS_TRY(whole(root, "top_k", 0, UINT32_MAX, &top_k, err));
    s->top_k = (uint32_t)top_k;
    const ms_json *seed = ms_json_get(root, "seed");
    if (!o->seed_given && seed && seed->type != MS_JSON_NULL) {
        if (!ms_json_i64(seed, &s->seed)) {
            return ms_fail(err, MS_ERR_USAGE, "seed: expected a whole number of 64 bits, found %.*s",
                           (int)(seed->raw_len < 60 ? seed->raw_len : 60), seed->raw);
        }
        c->seeded = true;
    }
    if (o->max_tokens_given) return MS_OK;
    const ms_json *preferred = ms_json_get(root, "max_completion_tokens");
    bool given = preferred && preferred->type != MS_JSON_NULL;
    return whole(root, given ? "max_completion_tokens" : "max_tokens", 1, 1048576, &c->max_tokens, err);
}

static ms_status take_stops(chat *c, const ms_json *root, ms_error *err) {
    const ms_json *v = ms_json_get(root, "stop");
    if (!v || v->type == MS_JSON_NULL || c->o->stop.count) return MS_OK;
    if (v->type == MS_JSON_STRING) return ms_stop_strings_add(&c->stops, v->str, v->str_len, err);
    for (const ms_json *e = v->type == MS_JSON_ARRAY ? v->child : v; e; e = e->next) {
        if (e->type != MS_JSON_STRING)
            return ms_fail(err, MS_ERR_USAGE, "stop: expected a string or a list of strings");
        MS_TRY(ms_stop_strings_add(&c->stops, e->str, e->str_len, err));
    }
    return MS_OK;
}

static void name_ignored(chat *c, const ms_json *root) {
    static const char *const used[] = {"messages",
                                       "tools",
                                       "tool_choice",
                                       "parallel_tool_calls",
                                       "response_format",
                                       "thinking",
                                       "thinking_effort",
                                       "reasoning_effort",
                                       "add_generation_prompt",
                                       "max_tokens",
                                       "max_completion_tokens",
                                       "temperature",
                                       "top_p",
                                       "top_k",
                                       "min_p",
                                       "seed",
                                       "stop"};
    ms_text names = {0};
    for (const ms_json *m = root->child; m; m = m->next) {
        bool known = false;
        for (size_t i = 0; i < COUNT(used); i++) known = known || strcmp(m->key, used[i]) == 0;
        if (!known) ms_text_printf(&names, "%s%.60s", names.len ? ", " : "", m->key);
    }
    if (names.len && !names.failed) chat_note(c, "note: fields without effect: %.900s", names.data);
    ms_text_free(&names);
}

/* The file's object with what the command line adds behind it: of repeated keys the last one counts. */
static void write_text(ms_text *out, const ms_json *root, const chat_options *o) {
    ms_text_append(out, root->raw, root->raw_len - 1);
    const char *comma = root->count ? "," : "";
    if (o->thinking >= 0) {
        ms_text_printf(out, "%s\"thinking\":%s", comma, o->thinking ? "true" : "false");
        comma = ",";
    }
    if (o->effort >= 0) ms_text_printf(out, "%s\"thinking_effort\":\"%s\"", comma, chat_efforts[o->effort]);
    ms_text_puts(out, "}");
}

/* Without a grammar the reply could break the promise that response_format makes. */
static ms_status check_format(const chat *c, const ms_json *root, ms_error *err) {
    const ms_json *format = ms_json_get(root, "response_format");
    if (c->o->render_only || !format || format->type != MS_JSON_OBJECT) return MS_OK;
    const ms_json *type = ms_json_get(format, "type");
    if (!ms_json_is_string(type, "json_object") && !ms_json_is_string(type, "json_schema")) return MS_OK;
    return ms_fail(err, MS_ERR_USAGE, "response_format: %s is not available in this version", type->str);
}

static ms_status open_request(chat_request *r, chat *c, const char *path, ms_error *err) {
    ms_json_doc *doc = NULL;
    MS_TRY(chat_read_file(path, &r->file, err));
    MS_TRY(ms_json_parse(&doc, r->file.data ? r->file.data : "", r->file.len, path, NULL, err));
    const ms_json *root = ms_json_root(doc);
    ms_status status = MS_OK;
    if (root->type != MS_JSON_OBJECT) status = ms_fail(err, MS_ERR_FORMAT, "%s: expected an object", path);
    if (status == MS_OK) write_text(&r->text, root, c->o);
    ms_json_free(doc);
    MS_TRY(status);
    if (r->text.failed) return ms_fail_memory(err, "a request", r->file.len);
    MS_TRY(ms_json_parse(&r->doc, r->text.data, r->text.len, path, NULL, err));
    root = ms_json_root(r->doc);
    status = check_format(c, root, err);
    if (status == MS_OK) status = take_settings(c, root, err);
    if (status == MS_OK) status = take_stops(c, root, err);
    if (status != MS_OK) return ms_error_context(err, "%s", path);
    name_ignored(c, root);
    return MS_OK;
}

ms_status chat_request_open(chat_request *r, chat *c, const char *path, ms_error *err) {
    *r = (chat_request){0};
    ms_status status = open_request(r, c, path, err);
    if (status != MS_OK) chat_request_close(r);
    /* What the file says wrong is a matter of usage, like an option's value. */
    if (status == MS_ERR_FORMAT) return err->code = MS_ERR_USAGE;
    return status;
}

void chat_request_close(chat_request *r) {
    ms_json_free(r->doc);
    ms_text_free(&r->text);
    ms_text_free(&r->file);
    *r = (chat_request){0};
}

ms_status chat_request_prompt(chat *c, const char *path, ms_prompt *out, ms_error *err) {
    chat_request r;
    MS_TRY(chat_request_open(&r, c, path, err));
    ms_status status = ms_conversation_request(&c->conversation, ms_json_root(r.doc), out, err);
    chat_request_close(&r);
    return status == MS_OK ? MS_OK : ms_error_context(err, "%s", path);
}
