/* state.c: allocation, commit and reset of a session's causal state (see state.h).
 *
 * Threads: the inference thread.
 * Invariants: kinds lie together, at most STATE_MAX_KINDS of them, layers ascending within a kind; a fixed part has
 *   `bytes`, a growing or window part `row_bytes`, never both.  Every size that is later formed as row_bytes * rows was checked at
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
    bool ring_fits = p->window ? p->row_bytes && p->ring >= p->window && p->ring % MS_STATE_RING_ROWS == 0 : !p->ring;
    if (!ring_fits) {
        return ms_fail(err, MS_ERR_INTERNAL,
                       "state part %" PRIu32 " (%s, layer %" PRIu32 "): a ring of %" PRIu64
                       " rows does not fit a window of %" PRIu32,
                       index, p->kind, p->layer, p->ring, p->window);
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

static uint64_t product_or_max(uint64_t a, uint64_t b) {
    uint64_t product;
    return ms_mul_u64(a, b, &product) ? product : UINT64_MAX;
}

void ms_state_size_rings(ms_state_part *parts, uint32_t count, uint32_t range_rows) {
    for (uint32_t i = 0; i < count; i++) {
        if (parts[i].window)
            parts[i].ring = ms_align_up((uint64_t)parts[i].window - 1 + range_rows, MS_STATE_RING_ROWS);
    }
}

uint64_t ms_state_memory_bytes(const ms_state_part *p, uint64_t context) {
    return p->row_bytes ? product_or_max(p->row_bytes, p->window ? p->ring : context) : p->bytes;
}

uint64_t ms_state_snapshot_bytes(const ms_state_part *p) {
    return p->window ? product_or_max(p->row_bytes, p->window - 1) : p->bytes;
}

/* Allocated size of one copy; checked by create. */
static size_t copy_bytes(const ms_state *s, const ms_state_part *p) {
    return (size_t)ms_state_memory_bytes(p, s->context);
}

static ms_status allocate_copy(ms_state *s, const ms_state_part *p, uint8_t **out, ms_error *err) {
    uint64_t bytes = ms_state_memory_bytes(p, s->context);
    if (bytes > PTRDIFF_MAX) {
        return ms_fail(err, MS_ERR_NO_FIT,
                       "%s state of layer %" PRIu32 ": %" PRIu64 " bytes and %" PRIu64 " rows of %" PRIu64
                       " bytes are beyond the address space",
                       p->kind, p->layer, p->bytes, !p->row_bytes ? 0 : p->window ? p->ring : s->context, p->row_bytes);
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
    s->position = s->low = s->high = 0;
}

void ms_state_begin(ms_state *s, uint32_t rows) {
    if (s->high < s->position + rows) s->high = s->position + rows;
}

void ms_state_commit(ms_state *s, uint32_t rows) {
    ms_state_begin(s, rows);
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

/* The first row that counts at a position. */
static uint64_t first_row(const ms_state_part *p, uint64_t position) {
    return p->window && position > p->window - 1 ? position - (p->window - 1) : 0;
}

bool ms_state_can_rewind(const ms_state *s, uint64_t position) {
    if (position >= s->position) return position == s->position;
    if (position == 0) return true;
    for (uint32_t i = 0; i < s->part_count; i++) {
        const ms_state_part *p = &s->parts[i];
        if (!p->row_bytes) return false;
        if (!p->window || p->window == 1) continue;
        uint64_t first = first_row(p, position);
        if (first < s->low || first + p->ring < s->high) return false;
    }
    return true;
}

void ms_state_rewind(ms_state *s, uint64_t position) {
    if (position == 0) ms_state_reset(s);
    else s->position = position;
}

void ms_state_adopt(ms_state *s, uint64_t position) {
    s->position = s->high = position;
    s->low = 0;
    for (uint32_t i = 0; i < s->part_count; i++) {
        uint64_t first = first_row(&s->parts[i], position);
        if (s->low < first) s->low = first;
    }
}

uint64_t ms_state_bytes_at(const ms_state_part *p, uint64_t position) {
    return p->row_bytes ? p->row_bytes * (position - first_row(p, position)) : p->bytes;
}

uint64_t ms_state_part_bytes(const ms_state *s, const ms_state_part *p) { return ms_state_bytes_at(p, s->position); }

uint8_t *ms_state_span(const ms_state_part *p, uint64_t position, uint64_t at, size_t *length) {
    if (!p->window) return p->current + at;
    uint64_t size = p->ring * p->row_bytes, from = (first_row(p, position) * p->row_bytes + at) % size;
    if (*length > size - from) *length = (size_t)(size - from);
    return p->current + from;
}
