/* utf8_stream.c: the streaming UTF-8 reader of tokenizer.h. */
#include <string.h>

#include "base/utf8.h"
#include "text/tokenizer.h"

/* A surrogate's first two bytes are ill-formed, but the reference decoder of this format waits for a third
 * byte before it says so; the text is the same, only the moment differs. */
static bool waits_for_surrogate(const ms_utf8_stream *s) {
    return s->count == 2 && s->pending[0] == 0xED && s->pending[1] >= 0xA0 && s->pending[1] <= 0xBF;
}

/* Appends what the pending bytes decide; `final` decides all of them. */
static void settle(ms_utf8_stream *s, bool final, ms_text *out) {
    while (s->count > 0) {
        uint32_t cp;
        ms_utf8_fault fault;
        size_t used = ms_utf8_decode_fault(s->pending, s->count, &cp, &fault);
        if (!final && (fault == MS_UTF8_CUT || waits_for_surrogate(s))) return;
        char text[4];
        ms_text_append(out, text, ms_utf8_encode(cp, text));
        s->count -= (unsigned)used;
        memmove(s->pending, s->pending + used, s->count);
    }
}

void ms_utf8_stream_push(ms_utf8_stream *s, const uint8_t *bytes, size_t len, ms_text *out) {
    while (len > 0) {
        size_t good = s->count == 0 ? ms_utf8_valid_prefix(bytes, len) : 0;
        if (good > 0) ms_text_append(out, bytes, good);
        bytes += good;
        len -= good;
        if (len == 0) return;
        s->pending[s->count++] = *bytes++;
        len--;
        settle(s, false, out);
    }
}

void ms_utf8_stream_end(ms_utf8_stream *s, ms_text *out) { settle(s, true, out); }
