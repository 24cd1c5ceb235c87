/* stop_strings.c: stop_strings.h.
 *
 * Owns: see the header.  Threads: none shared.
 * Invariant: `held` is a proper prefix of a stop string, so it is shorter than the longest of them.
 */
#include "session/stop_strings.h"

#include <string.h>

ms_status ms_stop_strings_add(ms_stop_strings *s, const char *text, size_t len, ms_error *err) {
    if (!len) return ms_fail(err, MS_ERR_USAGE, "stop: expected text, found an empty string");
    if (s->count == MS_STOP_STRINGS_MAX) {
        return ms_fail(err, MS_ERR_USAGE, "stop: expected at most %u strings, found more", MS_STOP_STRINGS_MAX);
    }
    ms_text *t = &s->text[s->count];
    ms_text_append(t, text, len);
    if (t->failed) return ms_fail_memory(err, "a stop string", len);
    s->count++;
    return MS_OK;
}

void ms_stop_strings_restart(ms_stop_strings *s) {
    s->held.len = 0;
    s->matched = false;
}

/* What begins at text[0..len): a whole stop string, the beginning of one that the text cuts, or neither. */
typedef enum start { START_NONE, START_PARTIAL, START_WHOLE } start;

static start looks_like(ms_stop_strings *s, const char *text, size_t len) {
    start found = START_NONE;
    for (size_t i = 0; i < s->count; i++) {
        const ms_text *t = &s->text[i];
        size_t n = t->len < len ? t->len : len;
        if (memcmp(t->data, text, n) != 0) continue;
        if (n == t->len && (found != START_WHOLE || t->len > s->text[s->match].len)) s->match = i;
        if (n == t->len) found = START_WHOLE;
        else if (found == START_NONE) found = START_PARTIAL;
    }
    return found;
}

ms_status ms_stop_strings_push(ms_stop_strings *s, const char *piece, size_t len, ms_text *out, ms_error *err) {
    if (s->matched) return MS_OK;
    ms_text_append(&s->held, piece, len);
    if (s->held.failed) return ms_fail_memory(err, "held-back text", len);
    size_t at = 0;
    for (start found = START_NONE; at < s->held.len; at++) {
        found = looks_like(s, s->held.data + at, s->held.len - at);
        s->matched = found == START_WHOLE;
        if (found != START_NONE) break;
    }
    ms_text_append(out, s->held.data, at);
    size_t rest = s->matched ? 0 : s->held.len - at;
    if (rest) memmove(s->held.data, s->held.data + at, rest);
    s->held.len = rest;
    return out->failed ? ms_fail_memory(err, "text of a reply", out->len) : MS_OK;
}

ms_status ms_stop_strings_finish(ms_stop_strings *s, ms_text *out, ms_error *err) {
    if (!s->matched) ms_text_append(out, s->held.data, s->held.len);
    s->held.len = 0;
    return out->failed ? ms_fail_memory(err, "text of a reply", out->len) : MS_OK;
}

void ms_stop_strings_free(ms_stop_strings *s) {
    for (size_t i = 0; i < s->count; i++) ms_text_free(&s->text[i]);
    ms_text_free(&s->held);
    *s = (ms_stop_strings){0};
}
