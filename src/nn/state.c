/* state.c: allocation, commit and reset of a session's causal state (see state.h).
 *
 * Threads: the inference thread.
 * Invariants: kinds lie together, at most STATE_MAX_KINDS of them, layers ascending within a kind; a fixed part has
 *   `bytes`, a growing part `row_bytes`, never both.  Every size that is later formed as row_bytes * rows was checked at
 *   creation.
 * Errors: MS_ERR_INTERNAL for a part list a lane must not give, MS_ERR_NO_FIT for sizes beyond the address space,
 *   MS_ERR_MEMORY; nothing stays allocated.
 */
#include "nn/state.h"

#include "base/bytes.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STATE_MAX_KINDS = 8, STATE_KIND_CHARS = 7 };

static ms_status check_part(const ms_state_part *p, uint32_t index, ms_error *err) {
    size_t length = p->kind ? strlen(p->kind) : 0;
    if (length < 1 || length > STATE_KIND_CHARS) {
        return ms_fail(err, MS_ERR_INTERNAL, "state part %" PRIu32 ": kind: expected 1 to %d characters, found %zu",
                       index, STATE_KIND_CHARS, length);
    }
    if ((p->bytes == 0) == (p->row_bytes == 0)) {
        return ms_fail(err, MS_ERR_INTERNAL,
                       "state part %" PRIu32 " (%s, layer %" PRIu32
                       "): expected one of bytes and row_bytes, found %" PRIu64 " and %" PRIu64,
                       index, p->kind, p->layer, p->bytes, p->row_bytes);
    }
    return MS_OK;
}

/* Digests and files walk the parts in order and start a segment at every new kind: a kind may not come back. */
static ms_status check_parts(const ms_state_part *parts, uint32_t count, ms_error *err) {
    const char *kinds[STATE_MAX_KINDS];
    uint32_t kind_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        MS_TRY(check_part(&parts[i], i, err));
        if (i > 0 && strcmp(parts[i].kind, parts[i - 1].kind) == 0) {
            if (parts[i].layer > parts[i - 1].layer) continue;
            return ms_fail(err, MS_ERR_INTERNAL,
                           "state part %" PRIu32 " (%s): layer: expected more than %" PRIu32 ", found %" PRIu32, i,
                           parts[i].kind, parts[i - 1].layer, parts[i].layer);
        }
        for (uint32_t k = 0; k < kind_count; k++) {
            if (strcmp(kinds[k], parts[i].kind) == 0) {
                return ms_fail(err, MS_ERR_INTERNAL, "state part %" PRIu32 ": kind %s comes back after another kind", i,
                               parts[i].kind);
            }
        }
        if (kind_count == STATE_MAX_KINDS) {
            return ms_fail(err, MS_ERR_INTERNAL, "state part %" PRIu32 ": kind %s: expected at most %d kinds", i,
                           parts[i].kind, STATE_MAX_KINDS);
        }
        kinds[kind_count++] = parts[i].kind;
    }
    return MS_OK;
}

/* Allocated size of one copy; checked by create. */
static size_t copy_bytes(const ms_state *s, const ms_state_part *p) {
    return (size_t)(p->row_bytes ? p->row_bytes * s->context : p->bytes);
}

static ms_status allocate_copy(ms_state *s, const ms_state_part *p, uint8_t **out, ms_error *err) {
    uint64_t bytes = p->bytes;
    if (p->row_bytes && !ms_mul_u64(p->row_bytes, s->context, &bytes)) bytes = UINT64_MAX;
    if (bytes > PTRDIFF_MAX) {
        return ms_fail(err, MS_ERR_NO_FIT,
                       "%s state of layer %" PRIu32 ": %" PRIu64 " bytes and %" PRIu64 " rows of %" PRIu64
                       " bytes are beyond the address space",
                       p->kind, p->layer, p->bytes, p->row_bytes ? s->context : 0, p->row_bytes);
    }
    char what[64];
    (void)snprintf(what, sizeof what, "%s state of layer %" PRIu32, p->kind, p->layer);
    void *memory = NULL;
    MS_TRY(s->backend->alloc(s->backend, MS_MEM_DEVICE, (size_t)bytes, what, &memory, err));
    *out = memory;
    return MS_OK;
}

ms_status ms_state_create(ms_state *out, ms_backend *be, const ms_state_part *parts, uint32_t count, uint64_t context,
                          ms_error *err) {
    *out = (ms_state){.backend = be, .context = context};
    if (context == 0) return ms_fail(err, MS_ERR_USAGE, "context: expected at least 1 token, found 0");
    MS_TRY(check_parts(parts, count, err));
    if (count == 0) return MS_OK;
    out->parts = calloc(count, sizeof *out->parts);
    if (!out->parts) return ms_fail_memory(err, "state parts", count * sizeof *out->parts);
    for (uint32_t i = 0; i < count; i++) {
        ms_state_part *p = &out->parts[i];
        *p = parts[i];
        p->current = p->next = NULL;
        out->part_count = i + 1;
        ms_status status = allocate_copy(out, p, &p->current, err);
        if (status == MS_OK && p->bytes) status = allocate_copy(out, p, &p->next, err);
        if (status != MS_OK) {
            ms_state_destroy(out);
            return status;
        }
    }
    return MS_OK;
}

void ms_state_destroy(ms_state *s) {
    for (uint32_t i = 0; i < s->part_count; i++) {
        ms_state_part *p = &s->parts[i];
        if (p->current) s->backend->release(s->backend, MS_MEM_DEVICE, p->current, copy_bytes(s, p));
        if (p->next) s->backend->release(s->backend, MS_MEM_DEVICE, p->next, copy_bytes(s, p));
    }
    free(s->parts);
    *s = (ms_state){0};
}

void ms_state_reset(ms_state *s) {
    for (uint32_t i = 0; i < s->part_count; i++) {
        ms_state_part *p = &s->parts[i];
        /* Rows at or beyond the position do not count: clearing them would only touch memory that was never used. */
        if (p->row_bytes) continue;
        s->backend->zero(s->backend, p->current, (size_t)p->bytes);
        s->backend->zero(s->backend, p->next, (size_t)p->bytes);
    }
    s->position = 0;
}

void ms_state_commit(ms_state *s, uint32_t rows) {
    for (uint32_t i = 0; i < s->part_count; i++) {
        ms_state_part *p = &s->parts[i];
        if (p->row_bytes) continue;
        uint8_t *written = p->next;
        p->next = p->current;
        p->current = written;
    }
    s->position += rows;
}

ms_state_part *ms_state_find(const ms_state *s, const char *kind, uint32_t layer) {
    for (uint32_t i = 0; i < s->part_count; i++) {
        if (s->parts[i].layer == layer && strcmp(s->parts[i].kind, kind) == 0) return &s->parts[i];
    }
    return NULL;
}

uint64_t ms_state_part_bytes(const ms_state *s, const ms_state_part *p) {
    return p->row_bytes ? p->row_bytes * s->position : p->bytes;
}
