/* fake_session.h: a hand-made ms_session on a backend of plain memory, for tests of state, snapshots and state files.
 *
 * The backend counts what it holds and can be told to fail or to interfere.  The "model" is fake_forward: a fixed
 * function of state and token that writes every copy in progress and one row of every growing part, as a lane would.
 *
 * Include it in one file of a program only: it defines ms_checkpoint_layout_digest in place of the checkpoint module.
 */
#ifndef MS_TESTS_SESSION_FAKE_SESSION_H
#define MS_TESTS_SESSION_FAKE_SESSION_H

#include "base/bytes.h"
#include "session/session_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct fake_backend {
    ms_backend be; /* first */
    size_t held, held_bytes, uploads, copies;
    long allocs_left; /* allocations that still succeed; negative: all */
    bool sync_fails;
    void (*on_upload)(void *arg, size_t number); /* after the number'th upload, from 1 */
    void *on_upload_arg;
} fake_backend;

static inline ms_status fake_alloc(ms_backend *be, ms_memory_kind kind, size_t bytes, const char *what, void **out,
                                   ms_error *err) {
    fake_backend *f = (fake_backend *)be;
    (void)kind;
    *out = NULL;
    if (f->allocs_left == 0) return ms_fail_memory(err, what, bytes);
    if (f->allocs_left > 0) f->allocs_left--;
    *out = calloc(1, bytes);
    if (!*out) return ms_fail_memory(err, what, bytes);
    f->held++;
    f->held_bytes += bytes;
    return MS_OK;
}
static inline void fake_release(ms_backend *be, ms_memory_kind kind, void *p, size_t bytes) {
    fake_backend *f = (fake_backend *)be;
    (void)kind;
    free(p);
    f->held--;
    f->held_bytes -= bytes;
}
static inline void fake_upload(ms_backend *be, void *dev, const void *host, size_t bytes) {
    fake_backend *f = (fake_backend *)be;
    memcpy(dev, host, bytes);
    f->uploads++;
    if (f->on_upload) f->on_upload(f->on_upload_arg, f->uploads);
}
static inline void fake_download(ms_backend *be, void *host, const void *dev, size_t bytes) {
    (void)be;
    memcpy(host, dev, bytes);
}
static inline void fake_copy(ms_backend *be, void *to, const void *from, size_t bytes) {
    ((fake_backend *)be)->copies++;
    memcpy(to, from, bytes);
}
static inline void fake_zero(ms_backend *be, void *dev, size_t bytes) {
    (void)be;
    memset(dev, 0, bytes);
}
static inline ms_status fake_sync(ms_backend *be, ms_error *err) {
    if (((fake_backend *)be)->sync_fails) return ms_fail(err, MS_ERR_IO, "the device is gone");
    return MS_OK;
}
static inline void fake_backend_init(fake_backend *f) {
    *f = (fake_backend){.be = {.name = "fake",
                               .alloc = fake_alloc,
                               .release = fake_release,
                               .upload = fake_upload,
                               .download = fake_download,
                               .copy = fake_copy,
                               .zero = fake_zero,
                               .sync = fake_sync},
                        .allocs_left = -1};
}

/* ------------------------------------------------------------------ session */

typedef struct fake_options {
    const char *lane;
    uint64_t layout, context;
    ms_precision precision;
    ms_static_format static_format;
    uint32_t vocab;
    uint64_t kda_bytes, conv_bytes, row_bytes;
} fake_options;

typedef struct fake_session {
    fake_backend backend;
    uint64_t layout;
    ms_lane lane;
    ms_engine engine;
    ms_session session;
} fake_session;

uint64_t ms_checkpoint_layout_digest(const ms_checkpoint *c) {
    uint64_t digest;
    memcpy(&digest, (const void *)c, sizeof digest); /* fake_open points it at fake_session.layout */
    return digest;
}

static inline fake_options fake_defaults(void) {
    return (fake_options){.lane = "fake",
                          .layout = UINT64_C(0x1122334455667788),
                          .context = 32,
                          .precision = MS_PRECISION_FAST,
                          .static_format = MS_STATIC_Q8,
                          .vocab = 1000,
                          .kda_bytes = 100,
                          .conv_bytes = 18,
                          .row_bytes = 12};
}

static inline ms_status fake_open(fake_session *f, const fake_options *o, ms_error *err) {
    const ms_state_part parts[] = {
        {.kind = "kda", .layer = 0, .bytes = o->kda_bytes},     {.kind = "kda", .layer = 1, .bytes = o->kda_bytes},
        {.kind = "conv", .layer = 0, .bytes = o->conv_bytes},   {.kind = "conv", .layer = 1, .bytes = o->conv_bytes},
        {.kind = "mla", .layer = 2, .row_bytes = o->row_bytes}, {.kind = "mla", .layer = 5, .row_bytes = o->row_bytes}};
    memset(f, 0, sizeof *f);
    fake_backend_init(&f->backend);
    f->layout = o->layout;
    f->lane.name = o->lane;
    f->engine.options.precision = o->precision;
    f->engine.options.static_format = o->static_format;
    f->engine.model.lane = &f->lane;
    f->engine.model.info.vocab = o->vocab;
    f->engine.model.checkpoint = (ms_checkpoint *)(void *)&f->layout;
    f->engine.backend = &f->backend.be;
    f->session.engine = &f->engine;
    f->session.tokens = calloc(o->context, sizeof *f->session.tokens);
    if (!f->session.tokens) return ms_fail_memory(err, "tokens", o->context * sizeof *f->session.tokens);
    return ms_state_create(&f->session.state, &f->backend.be, parts, sizeof parts / sizeof parts[0], o->context, err);
}

static inline void fake_close(fake_session *f) {
    ms_session_detach_snapshots(&f->session);
    ms_state_destroy(&f->session.state);
    free(f->session.tokens);
}

/* One token: every byte depends on the old state, the token and the position. */
static inline void fake_forward(fake_session *f, uint32_t token) {
    ms_state *s = &f->session.state;
    for (uint32_t i = 0; i < s->part_count; i++) {
        const ms_state_part *p = &s->parts[i];
        uint64_t n = p->row_bytes ? p->row_bytes : p->bytes, h = (uint64_t)token * 2654435761u + i + s->position;
        uint8_t *to = p->row_bytes ? p->current + s->position * p->row_bytes : p->next;
        for (uint64_t b = 0; b < n; b++) {
            h = h * UINT64_C(6364136223846793005) + (p->row_bytes ? 1u : p->current[b]) + 1u;
            to[b] = (uint8_t)(h >> 56);
        }
    }
    f->session.tokens[s->position] = token;
    ms_state_commit(s, 1);
    f->session.has_logits = true;
}

static inline void fake_reset(fake_session *f) {
    ms_state_reset(&f->session.state);
    f->session.timeline++;
    f->session.has_logits = false;
}

#endif
