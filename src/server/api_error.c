/* api_error.c: refusals of api.h and their documents.
 *
 * Owns: nothing.  Threads: pure functions of their arguments.
 * Invariants: the type follows from the status alone; a document is complete whatever fields are empty.
 */
#include "server/api_read.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

bool ms_api_fail(ms_api_error *e, int http, const char *code, const char *param, const char *fmt, ...) {
    if (!e) return false;
    *e = (ms_api_error){.http = http, .code = code};
    if (param) (void)snprintf(e->param, sizeof e->param, "%s", param);
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(e->message, sizeof e->message, fmt, ap);
    va_end(ap);
    return false;
}

bool ms_api_fail_memory(ms_api_error *e) {
    return ms_api_fail(e, 500, "internal_error", NULL, "not enough memory for this request");
}

static const char *openai_type(int http) {
    switch (http) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 500:
    case 503:
    case 504:
        return "server_error";
    default:
        return "invalid_request_error";
    }
}

static const char *messages_type(int http) {
    switch (http) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 404:
        return "not_found_error";
    case 413:
        return "request_too_large";
    case 500:
    case 504:
        return "api_error";
    case 503:
        return "overloaded_error";
    default:
        return "invalid_request_error";
    }
}

void ms_api_put(ms_text *out, const char *s) { ms_json_write_string(out, s, strlen(s)); }

/* A text of a fixed-size field: a multi-byte character cut at its end, or anything ill-formed, is dropped. */
static void put_field(ms_text *out, const char *s) { ms_json_write_string(out, s, ms_utf8_valid_prefix(s, strlen(s))); }

void ms_api_error_object(ms_text *out, ms_api_kind kind, const ms_api_error *e, bool with_status) {
    bool messages = kind == MS_API_MESSAGES;
    ms_text_puts(out, "{\"type\":");
    ms_api_put(out, messages ? messages_type(e->http) : openai_type(e->http));
    ms_text_puts(out, ",\"message\":");
    put_field(out, e->message);
    if (!messages) {
        ms_text_puts(out, ",\"param\":");
        if (e->param[0])
            put_field(out, e->param);
        else
            ms_text_puts(out, "null");
        ms_text_puts(out, ",\"code\":");
        ms_api_put(out, e->code ? e->code : "internal_error");
    }
    if (e->details[0]) ms_text_printf(out, ",\"details\":%s", e->details);
    if (with_status) ms_text_printf(out, ",\"status\":%d", e->http);
    ms_text_puts(out, "}");
}

void ms_api_error_document(ms_text *out, ms_api_kind kind, const ms_api_error *e, const char *request_id) {
    ms_text_puts(out, kind == MS_API_MESSAGES ? "{\"type\":\"error\",\"error\":" : "{\"error\":");
    ms_api_error_object(out, kind, e, false);
    if (kind == MS_API_MESSAGES) {
        ms_text_puts(out, ",\"request_id\":");
        if (request_id)
            ms_api_put(out, request_id);
        else
            ms_text_puts(out, "null");
    }
    ms_text_puts(out, "}");
}
