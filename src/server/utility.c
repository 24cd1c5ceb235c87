/* utility.c: text to ids and back.  Needs the tokenizer alone. */
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "server/server_internal.h"

enum { BODY_DEPTH = 128 };

ms_json_doc *ms_server_body(ms_exchange *x, ms_api_error *e) {
    const ms_text *body = ms_exchange_body(x);
    ms_json_report report;
    const ms_json_limits limits = {.max_depth = BODY_DEPTH, .reject_duplicates = true, .report = &report};
    ms_json_doc *doc = NULL;
    ms_status status = ms_json_parse(&doc, body->data ? body->data : "", body->len, "body", &limits, NULL);
    if (status == MS_OK && ms_json_root(doc)->type == MS_JSON_OBJECT) return doc;
    if (status == MS_OK) {
        (void)ms_api_fail(e, 400, "invalid_type", "", "the body must be a JSON object");
    } else if (report.fault == MS_JSON_FAULT_DEPTH) {
        (void)ms_api_fail(e, 400, "json_too_deep", "", "the body is nested deeper than %d", BODY_DEPTH);
    } else if (report.fault == MS_JSON_FAULT_DUPLICATE) {
        (void)ms_api_fail(e, 400, "duplicate_key", "", "a key is repeated in one object at byte %zu", report.offset);
    } else if (report.fault == MS_JSON_FAULT_MEMORY) {
        (void)ms_api_fail(e, 500, "internal_error", "", "out of memory");
    } else {
        (void)ms_api_fail(e, 400, "invalid_json", "", "the body is not JSON at byte %zu", report.offset);
    }
    ms_json_free(doc);
    return NULL;
}

static const ms_json *field(const ms_json *o, const char *key) {
    const ms_json *v = ms_json_get(o, key);
    return v && v->type != MS_JSON_NULL ? v : NULL;
}

static bool read_bool(const ms_json *o, const char *key, bool *out, ms_api_error *e) {
    const ms_json *v = field(o, key);
    if (!v || ms_json_bool(v, out)) return true;
    return ms_api_fail(e, 400, "invalid_type", key, "%s: expected true or false", key);
}

static void write_piece(const ms_server *s, uint32_t id, ms_text *out) {
    size_t len;
    const uint8_t *bytes = ms_tokenizer_token(s->o.text->tokenizer, id, &len);
    if (!bytes) {
        const char *name = ms_tokenizer_control_name(s->o.text->tokenizer, id);
        ms_json_write_string(out, name ? name : "", name ? strlen(name) : 0);
    } else if (ms_utf8_valid(bytes, len)) {
        ms_json_write_string(out, (const char *)bytes, len);
    } else {
        for (size_t i = 0; i < len; i++) ms_text_printf(out, i ? ",%u" : "[%u", bytes[i]);
        ms_text_puts(out, "]");
    }
}

static bool tokenize(ms_server *s, const ms_json *o, ms_text *out, ms_api_error *e) {
    bool add = false, special = false, pieces = false;
    const ms_json *content = field(o, "content");
    if (!content) return ms_api_fail(e, 400, "missing_field", "content", "content: expected a string");
    if (content->type != MS_JSON_STRING) {
        return ms_api_fail(e, 400, "invalid_type", "content", "content: expected a string");
    }
    if (!read_bool(o, "add_special", &add, e) || !read_bool(o, "parse_special", &special, e) ||
        !read_bool(o, "with_pieces", &pieces, e)) {
        return false;
    }
    ms_ids ids = {0};
    ms_status status = add ? ms_ids_push(&ids, s->o.text->info.bos, NULL) : MS_OK;
    if (status == MS_OK) {
        status = ms_tokenizer_encode(s->o.text->tokenizer, content->str, content->str_len, special, &ids, NULL);
    }
    ms_text_puts(out, "{\"tokens\":[");
    for (size_t i = 0; i < ids.count; i++) {
        if (i) ms_text_puts(out, ",");
        if (pieces)
            ms_text_printf(out, "{\"id\":%u,\"piece\":", ids.data[i]);
        else
            ms_text_printf(out, "%u", ids.data[i]);
        if (!pieces) continue;
        write_piece(s, ids.data[i], out);
        ms_text_puts(out, "}");
    }
    ms_text_puts(out, "]}");
    ms_ids_free(&ids);
    return status == MS_OK || ms_api_fail(e, 500, "internal_error", "", "out of memory");
}

static bool detokenize(ms_server *s, const ms_json *o, ms_text *out, ms_api_error *e) {
    const ms_json *tokens = field(o, "tokens");
    if (!tokens) return ms_api_fail(e, 400, "missing_field", "tokens", "tokens: expected a list of ids");
    if (tokens->type != MS_JSON_ARRAY)
        return ms_api_fail(e, 400, "invalid_type", "tokens", "tokens: expected a list of ids");
    ms_ids ids = {0};
    ms_text text = {0}, repaired = {0};
    bool good = true;
    size_t i = 0;
    for (const ms_json *v = tokens->child; v && good; v = v->next, i++) {
        uint64_t id;
        good = ms_json_u64(v, &id) && id < s->o.text->info.vocab;
        if (good) good = ms_ids_push(&ids, (uint32_t)id, NULL) == MS_OK;
    }
    if (!good) {
        (void)ms_api_fail(e, 400, "out_of_range", "tokens", "tokens[%zu]: expected an id below %u", i - 1,
                          s->o.text->info.vocab);
    } else if (ms_tokenizer_decode(s->o.text->tokenizer, ids.data, ids.count, true, &text, NULL) != MS_OK) {
        good = ms_api_fail(e, 500, "internal_error", "", "out of memory");
    }
    ms_utf8_stream stream = {0}; /* the ids may cut a code point */
    if (text.len) ms_utf8_stream_push(&stream, (const uint8_t *)text.data, text.len, &repaired);
    ms_utf8_stream_end(&stream, &repaired);
    ms_text_puts(out, "{\"content\":");
    ms_json_write_string(out, repaired.data ? repaired.data : "", repaired.len);
    ms_text_puts(out, "}");
    out->failed = out->failed || repaired.failed || text.failed;
    ms_text_free(&text);
    ms_text_free(&repaired);
    ms_ids_free(&ids);
    return good;
}

static void answer(ms_server *s, ms_exchange *x,
                   bool (*make)(ms_server *s, const ms_json *o, ms_text *out, ms_api_error *e)) {
    ms_api_error e = {0};
    ms_text out = {0};
    (void)pthread_mutex_lock(&s->parsing);
    ms_json_doc *doc = ms_server_body(x, &e);
    bool good = doc && make(s, ms_json_root(doc), &out, &e);
    ms_json_free(doc);
    (void)pthread_mutex_unlock(&s->parsing);
    if (good) {
        ms_exchange_reply(x, 200, MS_JSON_CONTENT, &out);
    } else {
        ms_text_free(&out);
        ms_exchange_reject(x, &e);
    }
}

void ms_handle_tokenize(void *arg, ms_exchange *x) { answer(arg, x, tokenize); }
void ms_handle_detokenize(void *arg, ms_exchange *x) { answer(arg, x, detokenize); }
