/* chat.c: lists of segments and replies of chat.h.
 *
 * Owns: each list its texts.  Threads: values belong to one thread.
 * Errors: memory; a control name the tokenizer does not have.
 */
#include "text/chat.h"

#include <stdlib.h>
#include <string.h>

ms_status ms_segments_push(ms_segments *s, bool control, const char *text, size_t len, ms_error *err) {
    if (s->count == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 32, bytes;
        if (__builtin_mul_overflow(cap, sizeof *s->items, &bytes)) bytes = SIZE_MAX;
        ms_segment *items = bytes < SIZE_MAX ? realloc(s->items, bytes) : NULL;
        if (!items) return ms_fail_memory(err, "the list of segments", bytes);
        s->items = items;
        s->cap = cap;
    }
    char *copy = len < SIZE_MAX ? malloc(len + 1) : NULL;
    if (!copy) return ms_fail_memory(err, "a segment", len);
    if (len) memcpy(copy, text, len);
    copy[len] = 0;
    s->items[s->count++] = (ms_segment){.control = control, .text = copy, .len = len};
    return MS_OK;
}

void ms_segments_free(ms_segments *s) {
    if (!s) return;
    for (size_t i = 0; i < s->count; i++) free(s->items[i].text);
    free(s->items);
    *s = (ms_segments){0};
}

ms_status ms_segments_encode(const ms_segments *s, const ms_tokenizer *t, ms_ids *out, ms_error *err) {
    for (size_t i = 0; i < s->count; i++) {
        const ms_segment *seg = &s->items[i];
        if (!seg->control) {
            MS_TRY(ms_tokenizer_encode(t, seg->text, seg->len, false, out, err));
            continue;
        }
        uint32_t id;
        if (!ms_tokenizer_control_id(t, seg->text, seg->len, &id)) {
            return ms_fail(err, MS_ERR_INTERNAL, "segment %zu: expected the name of a control token, found \"%.60s\"",
                           i, seg->text);
        }
        MS_TRY(ms_ids_push(out, id, err));
    }
    return MS_OK;
}

static bool spell_bytes(const ms_segments *s, ms_segment_place *p, const uint8_t *bytes, size_t len) {
    while (len) {
        if (p->segment == s->count || s->items[p->segment].control) return false;
        const ms_segment *seg = &s->items[p->segment];
        size_t n = seg->len - p->offset < len ? seg->len - p->offset : len;
        if (memcmp(seg->text + p->offset, bytes, n) != 0) return false;
        bytes += n;
        len -= n;
        p->offset += n;
        if (p->offset == seg->len) *p = (ms_segment_place){p->segment + 1, 0};
    }
    return true;
}

bool ms_segments_spell(const ms_segments *s, const ms_tokenizer *t, ms_segment_place *p, const uint32_t *ids,
                       size_t count) {
    for (size_t i = 0; i < count; i++) {
        const char *name = ms_tokenizer_control_name(t, ids[i]);
        if (name) {
            if (p->offset || p->segment == s->count) return false;
            const ms_segment *seg = &s->items[p->segment];
            if (!seg->control || strlen(name) != seg->len || memcmp(name, seg->text, seg->len) != 0) return false;
            p->segment++;
            continue;
        }
        size_t len;
        const uint8_t *bytes = ms_tokenizer_token(t, ids[i], &len);
        if (!bytes || !spell_bytes(s, p, bytes, len)) return false;
    }
    return true;
}

bool ms_segments_whole(const ms_segments *s, const ms_segment_place *p) {
    return !p->offset || (s->items[p->segment].text[p->offset] & 0xC0) != 0x80;
}

void ms_reply_free(ms_reply *r) {
    if (!r) return;
    for (size_t i = 0; i < r->call_count; i++) {
        free(r->calls[i].name);
        free(r->calls[i].arguments);
    }
    free(r->calls);
    free(r->reasoning);
    free(r->content);
    *r = (ms_reply){0};
}
