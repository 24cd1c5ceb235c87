/* session.c: one causal timeline: creation, passes over token ranges, reset.
 *
 * A pass of n rows is a transaction: the lane writes the `next` copies and rows beyond the position, and only a pass
 * that ends well is committed.  So an error, or a cancel at a layer boundary, leaves the state of the last finished
 * pass.
 */
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "session/session_internal.h"

static ms_status alloc_device(ms_session *s, const char *what, uint64_t bytes, void **out, ms_error *err) {
    ms_backend *be = s->engine->backend;
    return be->alloc(be, MS_MEM_DEVICE, (size_t)bytes, what, out, err);
}

static ms_status create_state(ms_session *s, ms_error *err) {
    const ms_engine *e = s->engine;
    uint32_t n = e->model.lane->state_parts(e->model.config, e->options.precision, NULL);
    ms_state_part *parts = calloc(n ? n : 1, sizeof *parts);
    if (!parts) return ms_fail_memory(err, "state parts", n * sizeof *parts);
    e->model.lane->state_parts(e->model.config, e->options.precision, parts);
    ms_state_size_rings(parts, n, e->options.range_rows);
    ms_status st = ms_state_create(&s->state, e->backend, parts, n, e->options.context, err);
    free(parts);
    return st;
}

/* Sizes here are the ledger's "logits" and "token history". */
static ms_status create_buffers(ms_session *s, ms_error *err) {
    const ms_engine *e = s->engine;
    const ms_lane_info *info = &e->model.info;
    uint64_t batch = (uint64_t)e->logit_rows * info->vocab;
    MS_TRY(ms_host_alloc("token history", e->options.context * sizeof *s->tokens, (void **)&s->tokens, err));
    MS_TRY(ms_host_alloc("logits", info->vocab * sizeof(float), (void **)&s->logits, err));
    MS_TRY(ms_host_alloc("logits batch", batch * sizeof(float), (void **)&s->sink_logits, err));
    return alloc_device(s, "logits batch", batch * sizeof(float), (void **)&s->dev_logits, err);
}

ms_status ms_session_create(ms_session **out, ms_engine *e, ms_error *err) {
    ms_session *s = calloc(1, sizeof *s);
    if (!s) return ms_fail_memory(err, "session", sizeof *s);
    s->engine = e;
    e->sessions++;
    atomic_init(&s->cancel, false);
    ms_status st = create_state(s, err);
    if (st == MS_OK) st = ms_pass_memory_create(&s->memory, e, e->plan->usual_rows, err);
    if (st == MS_OK) st = create_buffers(s, err);
    if (st != MS_OK) {
        ms_session_destroy(s);
        return st;
    }
    *out = s;
    return MS_OK;
}

void ms_session_destroy(ms_session *s) {
    if (!s) return;
    ms_engine *e = s->engine;
    ms_backend *be = e->backend;
    ms_session_detach_snapshots(s);
    ms_state_destroy(&s->state);
    ms_pass_memory_destroy(&s->memory, e);
    uint64_t batch = (uint64_t)e->logit_rows * e->model.info.vocab;
    if (s->dev_logits) be->release(be, MS_MEM_DEVICE, s->dev_logits, (size_t)(batch * sizeof(float)));
    free(s->tokens);
    free(s->logits);
    free(s->sink_logits);
    e->sessions--;
    free(s);
}

static bool is_finite(float x) { return (ms_f32_bits(x) & 0x7f800000u) != 0x7f800000u; }

/* One row of the embedding, read when it is needed: the matrix is not resident, so no load has checked it. */
static ms_status embed_row(ms_session *s, uint32_t id, uint32_t row, ms_error *err) {
    const ms_model *m = &s->engine->model;
    uint32_t hidden = m->info.hidden;
    uint16_t *stored = s->memory.embed_host + (size_t)row * hidden;
    float *x = s->memory.embed_f32 + (size_t)row * hidden;
    ms_status st = ms_checkpoint_read(m->checkpoint, m->embed, (uint64_t)id * hidden * sizeof *stored, stored,
                                      hidden * sizeof *stored, err);
    for (uint32_t i = 0; i < hidden && st == MS_OK; i++) {
        x[i] = ms_bf16_to_f32(stored[i]);
        if (!is_finite(x[i]))
            st = ms_fail(err, MS_ERR_NUMERIC, "column %u: expected a finite value, found %g", i, (double)x[i]);
    }
    if (st != MS_OK) ms_error_context(err, "%s row %u", m->info.embed_name, id);
    return st;
}

static ms_status embed(ms_session *s, const uint32_t *ids, uint32_t n, ms_error *err) {
    ms_backend *be = s->engine->backend;
    for (uint32_t i = 0; i < n; i++) MS_TRY(embed_row(s, ids[i], i, err));
    be->upload(be, s->memory.embedding, s->memory.embed_f32, (size_t)n * s->engine->model.info.hidden * sizeof(float));
    return MS_OK;
}

/* One forward call, split into passes. */
typedef struct forwarding {
    ms_session *s;
    const ms_forward_options *o;
    ms_progress_unit unit;
    uint64_t done, total;   /* in units */
    uint64_t pass_position; /* position the running pass started at */
    uint32_t pass_rows;
} forwarding;

static void report(forwarding *f, uint64_t more) {
    f->done += more;
    if (f->o->progress) f->o->progress(f->o->progress_arg, f->unit, f->done, f->total);
}

static ms_status layer_done(void *arg, uint32_t layer, ms_error *err) {
    forwarding *f = arg;
    if (f->unit == MS_PROGRESS_LAYER) report(f, 1);
    if (!atomic_load_explicit(&f->s->cancel, memory_order_relaxed)) return MS_OK;
    return ms_fail(err, MS_ERR_CANCELLED, "cancelled after layer %u; the session keeps its first %llu tokens", layer,
                   (unsigned long long)f->pass_position);
}

/* The last place where a value that is not finite can show: before the pass is committed, before anyone samples. */
static ms_status check_logits(const forwarding *f, uint32_t first_row, uint32_t rows, uint32_t vocab, ms_error *err) {
    const float *logits = f->s->sink_logits;
    for (size_t i = 0; i < (size_t)rows * vocab; i++)
        if (!is_finite(logits[i]))
            return ms_fail(err, MS_ERR_NUMERIC, "logits of position %llu, id %zu: expected a finite value, found %g",
                           (unsigned long long)(f->pass_position + first_row + i / vocab), i % vocab,
                           (double)logits[i]);
    return MS_OK;
}

static ms_status emit(void *arg, uint32_t first_row, uint32_t rows, const float *device_logits, ms_error *err) {
    forwarding *f = arg;
    ms_session *s = f->s;
    ms_backend *be = s->engine->backend;
    uint32_t vocab = s->engine->model.info.vocab;
    be->download(be, s->sink_logits, device_logits, (size_t)rows * vocab * sizeof(float));
    MS_TRY(be->sync(be, err)); /* logits of a failed pass are nobody's */
    MS_TRY(check_logits(f, first_row, rows, vocab, err));
    if (first_row + rows == f->pass_rows)
        memcpy(s->logits, s->sink_logits + (size_t)(rows - 1) * vocab, vocab * sizeof(float));
    if (!f->o->all_logits || !f->o->sink) return MS_OK;
    return f->o->sink(f->o->sink_arg, f->pass_position + first_row, rows, s->sink_logits, err);
}

static void routes(void *arg, uint32_t layer, uint32_t rows, uint32_t top_k, const uint32_t *ids) {
    forwarding *f = arg;
    f->o->routes(f->o->routes_arg, layer, f->pass_position, rows, top_k, ids);
}

static ms_status pass(forwarding *f, const uint32_t *ids, uint32_t n, bool last, ms_error *err) {
    ms_session *s = f->s;
    const ms_engine *e = s->engine;
    f->pass_position = s->state.position;
    f->pass_rows = n;
    MS_TRY(embed(s, ids, n, err));
    ms_run run = {.backend = e->backend,
                  .config = e->model.config,
                  .weights = e->weights,
                  .state = &s->state,
                  .experts = e->experts,
                  .workspace = s->memory.workspace,
                  .rows = n,
                  .max_rows = s->memory.rows,
                  .embedding = s->memory.embedding,
                  .want_logits = f->o->all_logits ? n : last,
                  .logits = s->dev_logits,
                  .logit_rows = e->logit_rows,
                  .emit = emit,
                  .emit_arg = f,
                  .layer_done = layer_done,
                  .layer_done_arg = f,
                  .routes = f->o->routes ? routes : NULL,
                  .routes_arg = f};
    ms_state_begin(&s->state, n);
    ms_status st = e->model.lane->forward(&run, err);
    if (st != MS_OK) {
        (void)e->backend->sync(e->backend, NULL); /* what was queued must not outlive this pass */
        if (st == MS_ERR_NUMERIC)                 /* rows in the message count from here */
            ms_error_context(err, "tokens from position %llu", (unsigned long long)f->pass_position);
        return st;
    }
    memcpy(s->tokens + s->state.position, ids, n * sizeof *ids);
    ms_state_commit(&s->state, n);
    if (f->unit == MS_PROGRESS_TOKEN) report(f, n);
    return MS_OK;
}

static ms_status check(const ms_session *s, const uint32_t *ids, size_t count, ms_error *err) {
    const ms_engine *e = s->engine;
    if (count == 0) return ms_fail(err, MS_ERR_USAGE, "no tokens to evaluate");
    uint64_t room = s->state.context - s->state.position;
    if (count > room)
        return ms_fail(err, MS_ERR_CONTEXT, "%zu tokens at position %llu do not fit into a context of %llu", count,
                       (unsigned long long)s->state.position, (unsigned long long)s->state.context);
    for (size_t i = 0; i < count; i++)
        if (ids[i] >= e->model.info.vocab)
            return ms_fail(err, MS_ERR_USAGE, "token %zu: id %u is outside the vocabulary of %u", i, ids[i],
                           e->model.info.vocab);
    return MS_OK;
}

static ms_status passes(forwarding *f, const uint32_t *ids, size_t count, uint32_t range, ms_error *err) {
    uint64_t n = (count + range - 1) / range;
    f->unit = range == 1 ? MS_PROGRESS_TOKEN : MS_PROGRESS_LAYER;
    f->total = range == 1 ? count : n * f->s->engine->model.info.layers;
    for (size_t at = 0; at < count;) {
        uint32_t rows = count - at < range ? (uint32_t)(count - at) : range;
        MS_TRY(pass(f, ids + at, rows, at + rows == count, err));
        at += rows;
    }
    return MS_OK;
}

ms_status ms_session_forward(ms_session *s, const uint32_t *ids, size_t count, const ms_forward_options *options,
                             ms_error *err) {
    static const ms_forward_options plain = {0};
    forwarding f = {.s = s, .o = options ? options : &plain};
    ms_engine *e = s->engine;
    MS_TRY(check(s, ids, count, err));
    uint32_t usual = e->plan->usual_rows, rows = ms_pass_rows(e, count);
    if (f.o->range && f.o->range < rows) rows = f.o->range;
    s->has_logits = false;
    ms_status st = rows > usual ? ms_pass_memory_borrow(&s->memory, e, rows, err)
                                : ms_pass_memory_create(&s->memory, e, usual, err);
    if (st == MS_OK) st = passes(&f, ids, count, rows, err);
    if (rows > usual) {
        ms_status back = ms_pass_memory_return(&s->memory, e, st == MS_OK ? err : NULL);
        if (st == MS_OK) st = back;
    }
    s->has_logits = st == MS_OK;
    return st;
}

const float *ms_session_logits(const ms_session *s) { return s->has_logits ? s->logits : NULL; }
uint64_t ms_session_position(const ms_session *s) { return s->state.position; }
const uint32_t *ms_session_tokens(const ms_session *s) { return s->tokens; }

void ms_session_reset(ms_session *s) { ms_session_clear(s); }

void ms_session_cancel(ms_session *s) { atomic_store_explicit(&s->cancel, true, memory_order_relaxed); }
void ms_session_clear_cancel(ms_session *s) { atomic_store_explicit(&s->cancel, false, memory_order_relaxed); }
