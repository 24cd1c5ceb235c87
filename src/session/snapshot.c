/* snapshot.c: digests, the session's identity, and snapshots: state copies that share the append-only rows.
 *
 * A snapshot copies the fixed parts and the rows of window parts that count; of the growing parts it needs rows
 * [0, position), which the session keeps as long as nothing rewrites them.  Rows are rewritten after a reset or an import
 * (from 0) and after a restore or a rewind to p (from p).
 * So:
 *   - reset and import change the session's timeline: no older snapshot fits any more;
 *   - restore and rewind to p change it too, and takes the snapshots of the old timeline at or before p along to the new one.
 * A snapshot is restorable iff its timeline is the session's; its position is then never beyond the session's.  The
 * token history follows the same rule and is shared the same way.
 *
 * Owns: one block of backend memory a snapshot.  Threads: the inference thread.
 * Errors: MS_ERR_USAGE (a snapshot of another session or of a left timeline), MS_ERR_MEMORY, the backend's.
 */
#include "session/session_internal.h"

#include "base/bytes.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { DIGEST_PIECE_BYTES = 1 << 20, SNAPSHOT_ALIGN = 64 };

struct ms_snapshot {
    ms_session *session; /* NULL: the session is gone */
    ms_backend *backend;
    ms_snapshot *next, **link; /* *link == this */
    uint64_t timeline, position;
    uint8_t *block; /* device: fixed parts and windows in order, each aligned */
    size_t block_bytes;
};

/* ------------------------------------------------------------------ identity and digest */

static uint64_t hash_u64(uint64_t h, uint64_t v) {
    uint8_t le[8];
    ms_put_le64(le, v);
    return ms_fnv1a64(h, le, sizeof le);
}

/* With the terminating zero, so that neighbours cannot run together. */
static uint64_t hash_text(uint64_t h, const char *text) { return ms_fnv1a64(h, text, strlen(text) + 1); }

uint64_t ms_session_identity(const ms_session *s) {
    const ms_engine *e = s->engine;
    uint64_t h = hash_text(MS_FNV1A64_INIT, e->model.lane->name);
    h = hash_u64(h, ms_checkpoint_layout_digest(e->model.checkpoint));
    h = hash_u64(h, e->options.precision == MS_PRECISION_REFERENCE);
    h = hash_u64(h, e->options.static_format == MS_STATIC_BF16);
    h = hash_u64(h, s->state.part_count);
    for (uint32_t i = 0; i < s->state.part_count; i++) {
        const ms_state_part *p = &s->state.parts[i];
        h = hash_text(h, p->kind);
        h = hash_u64(h, p->layer);
        h = hash_u64(h, p->bytes);
        h = hash_u64(h, p->row_bytes);
        if (p->window) h = hash_u64(h, p->window);
    }
    return e->options.range_blas ? hash_text(h, "blas") : h;
}

static ms_status hash_part(const ms_state *state, const ms_state_part *p, uint8_t *piece, uint64_t *hash,
                           ms_error *err) {
    ms_backend *be = state->backend;
    uint64_t bytes = ms_state_part_bytes(state, p);
    for (uint64_t at = 0, n; at < bytes; at += n) {
        size_t length = bytes - at < DIGEST_PIECE_BYTES ? (size_t)(bytes - at) : DIGEST_PIECE_BYTES;
        const uint8_t *from = ms_state_span(p, state->position, at, &length);
        n = length;
        be->download(be, piece, from, length);
        MS_TRY(be->sync(be, err));
        *hash = ms_fnv1a64(*hash, piece, length);
    }
    return MS_OK;
}

static ms_status digest_kinds(const ms_state *state, uint8_t *piece, ms_digest *out, ms_error *err) {
    const uint32_t most = sizeof out->part / sizeof out->part[0];
    ms_digest_part *d = NULL;
    for (uint32_t i = 0; i < state->part_count; i++) {
        const ms_state_part *p = &state->parts[i];
        if (i == 0 || strcmp(p->kind, state->parts[i - 1].kind) != 0) {
            if (out->count == most || strlen(p->kind) >= sizeof d->kind) {
                return ms_fail(err, MS_ERR_INTERNAL, "digest: state kind %s does not fit", p->kind);
            }
            d = &out->part[out->count++];
            memcpy(d->kind, p->kind, strlen(p->kind) + 1);
            d->fnv1a64 = MS_FNV1A64_INIT;
        }
        MS_TRY(hash_part(state, p, piece, &d->fnv1a64, err));
    }
    return MS_OK;
}

ms_status ms_session_digest(ms_session *s, ms_digest *out, ms_error *err) {
    memset(out, 0, sizeof *out);
    uint8_t *piece = malloc(DIGEST_PIECE_BYTES);
    if (!piece) return ms_fail_memory(err, "digest buffer", DIGEST_PIECE_BYTES);
    ms_status status = digest_kinds(&s->state, piece, out, err);
    free(piece);
    out->position = s->state.position;
    return status;
}

/* ------------------------------------------------------------------ snapshots */

/* The aligned total, or false when it is beyond the address space. */
static bool block_bytes(const ms_state *state, size_t *out) {
    uint64_t total = 0;
    for (uint32_t i = 0; i < state->part_count; i++) {
        if (!ms_add_u64(total, ms_state_snapshot_bytes(&state->parts[i]), &total) || total > PTRDIFF_MAX - SNAPSHOT_ALIGN) return false;
        total = ms_align_up(total, SNAPSHOT_ALIGN);
    }
    *out = (size_t)total;
    return true;
}

static ms_status copy_out(const ms_state *state, uint8_t *block, ms_error *err) {
    ms_backend *be = state->backend;
    for (uint32_t i = 0; i < state->part_count; i++) {
        const ms_state_part *p = &state->parts[i];
        if (p->row_bytes && !p->window) continue;
        uint64_t bytes = ms_state_part_bytes(state, p);
        for (uint64_t at = 0; at < bytes;) {
            size_t n = (size_t)(bytes - at);
            const uint8_t *from = ms_state_span(p, state->position, at, &n);
            be->copy(be, block + at, from, n);
            at += n;
        }
        block += ms_align_up(ms_state_snapshot_bytes(p), SNAPSHOT_ALIGN);
    }
    return be->sync(be, err);
}

/* Fixed parts into the copy in progress. */
static ms_status copy_in_next(const ms_state *state, const uint8_t *block, ms_error *err) {
    ms_backend *be = state->backend;
    for (uint32_t i = 0; i < state->part_count; i++) {
        const ms_state_part *p = &state->parts[i];
        if (p->row_bytes && !p->window) continue;
        if (!p->window) be->copy(be, p->next, block, (size_t)p->bytes);
        block += ms_align_up(ms_state_snapshot_bytes(p), SNAPSHOT_ALIGN);
    }
    return be->sync(be, err);
}

/* Windows into their places in the rings, which is final. */
static ms_status copy_in_windows(const ms_state *state, const uint8_t *block, uint64_t position, ms_error *err) {
    ms_backend *be = state->backend;
    for (uint32_t i = 0; i < state->part_count; i++) {
        const ms_state_part *p = &state->parts[i];
        if (p->row_bytes && !p->window) continue;
        uint64_t bytes = p->window ? ms_state_bytes_at(p, position) : 0;
        for (uint64_t at = 0; at < bytes;) {
            size_t n = (size_t)(bytes - at);
            uint8_t *to = ms_state_span(p, position, at, &n);
            be->copy(be, to, block + at, n);
            at += n;
        }
        block += ms_align_up(ms_state_snapshot_bytes(p), SNAPSHOT_ALIGN);
    }
    return be->sync(be, err);
}

ms_status ms_session_snapshot(ms_session *s, ms_snapshot **out, ms_error *err) {
    *out = NULL;
    ms_snapshot *snap = calloc(1, sizeof *snap);
    if (!snap) return ms_fail_memory(err, "snapshot", sizeof *snap);
    *snap = (ms_snapshot){.backend = s->state.backend, .timeline = s->timeline, .position = s->state.position};
    ms_status status = block_bytes(&s->state, &snap->block_bytes)
                           ? MS_OK
                           : ms_fail(err, MS_ERR_NO_FIT, "snapshot: the fixed state is too large to copy");
    if (status == MS_OK && snap->block_bytes > 0) {
        void *block = NULL;
        status = snap->backend->alloc(snap->backend, MS_MEM_DEVICE, snap->block_bytes, "snapshot", &block, err);
        snap->block = block;
    }
    if (status == MS_OK) status = copy_out(&s->state, snap->block, err);
    if (status != MS_OK) {
        ms_snapshot_destroy(snap);
        return status;
    }
    snap->session = s;
    snap->next = s->snapshots;
    snap->link = &s->snapshots;
    if (snap->next) snap->next->link = &snap->next;
    s->snapshots = snap;
    *out = snap;
    return MS_OK;
}

/* The session goes on from `position`: rows from there on will be rewritten, so only older snapshots come along. */
static void leave_timeline(ms_session *s, uint64_t position) {
    uint64_t left = s->timeline++;
    for (ms_snapshot *snap = s->snapshots; snap; snap = snap->next) {
        if (snap->timeline == left && snap->position <= position) snap->timeline = s->timeline;
    }
}

void ms_session_clear(ms_session *s) {
    ms_state_reset(&s->state);
    s->timeline++;
    s->has_logits = false;
}

static void go_back(ms_session *s, uint64_t position) {
    ms_state_rewind(&s->state, position);
    s->has_logits = false;
    leave_timeline(s, position);
}

ms_status ms_session_restore(ms_session *s, const ms_snapshot *snap, ms_error *err) {
    if (snap->session != s) return ms_fail(err, MS_ERR_USAGE, "snapshot: it belongs to another session");
    if (snap->timeline != s->timeline) {
        return ms_fail(err, MS_ERR_USAGE,
                       "snapshot at position %" PRIu64 ": the session was reset, imported or restored to an earlier "
                       "position since; it can no longer be restored",
                       snap->position);
    }
    if (ms_state_can_rewind(&s->state, snap->position)) {
        go_back(s, snap->position);
        return MS_OK;
    }
    /* Into the copy in progress, so that a failing device leaves the session as it is. */
    MS_TRY(copy_in_next(&s->state, snap->block, err));
    ms_status status = copy_in_windows(&s->state, snap->block, snap->position, err);
    if (status != MS_OK) {
        ms_state_reset(&s->state);
        s->timeline++;
        s->has_logits = false;
        return ms_error_context(err, "restoring failed after rows had been overwritten, the session was reset to position 0");
    }
    ms_state_commit(&s->state, 0);
    ms_state_adopt(&s->state, snap->position);
    s->has_logits = false;
    leave_timeline(s, snap->position);
    return MS_OK;
}

bool ms_session_can_rewind(const ms_session *s, uint64_t position) { return ms_state_can_rewind(&s->state, position); }

ms_status ms_session_rewind(ms_session *s, uint64_t position, ms_error *err) {
    if (!ms_state_can_rewind(&s->state, position)) {
        return ms_fail(err, MS_ERR_USAGE,
                       "rewind to position %" PRIu64 " from %" PRIu64 ": the state before it is no longer there", position,
                       s->state.position);
    }
    if (position != s->state.position) go_back(s, position);
    return MS_OK;
}

uint64_t ms_snapshot_position(const ms_snapshot *snap) { return snap->position; }

void ms_snapshot_destroy(ms_snapshot *snap) {
    if (!snap) return;
    if (snap->session) {
        *snap->link = snap->next;
        if (snap->next) snap->next->link = snap->link;
    }
    if (snap->block) snap->backend->release(snap->backend, MS_MEM_DEVICE, snap->block, snap->block_bytes);
    free(snap);
}

void ms_session_detach_snapshots(ms_session *s) {
    ms_snapshot *snap = s->snapshots;
    while (snap) {
        ms_snapshot *next = snap->next;
        snap->session = NULL;
        snap->next = NULL;
        snap->link = NULL;
        snap = next;
    }
    s->snapshots = NULL;
}
