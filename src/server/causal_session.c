#include "server/causal_session.h"

#include <pthread.h>
#include <stdlib.h>

#include "session/engine.h"
#include "session/named_state.h"

struct ms_causal_session {
    ms_causal base; /* first */
    ms_causal_session_options options;
    ms_engine *engine;
    ms_session *session;
    ms_prefix_store *store; /* NULL: nothing is kept; behind the lock for other threads */
    bool disk;
    float *tap_device, *tap_host; /* [experts] */
    pthread_mutex_t lock;
};

static ms_causal_session *self_of(ms_causal *c) { return (ms_causal_session *)(void *)c; }

static ms_session *of(const ms_causal *c) { return ((const ms_causal_session *)(const void *)c)->session; }

static uint64_t position(const ms_causal *c) { return ms_session_position(of(c)); }
static const uint32_t *tokens(const ms_causal *c) { return ms_session_tokens(of(c)); }
static const float *logits(const ms_causal *c) { return ms_session_logits(of(c)); }
static void reset(ms_causal *c) { ms_session_reset(of(c)); }
static ms_status forward(ms_causal *c, const uint32_t *ids, size_t count, const ms_forward_options *o, ms_error *err) {
    return ms_session_forward(of(c), ids, count, o, err);
}
static void cancel(ms_causal *c) { ms_session_cancel(of(c)); }
static void clear_cancel(ms_causal *c) { ms_session_clear_cancel(of(c)); }
static ms_status mark(ms_causal *c, void **point, ms_error *err) {
    ms_snapshot *snap;
    MS_TRY(ms_session_snapshot(of(c), &snap, err));
    *point = snap;
    return MS_OK;
}
static ms_status go_back(ms_causal *c, const void *point, ms_error *err) {
    return ms_session_restore(of(c), point, err);
}
static void unmark(ms_causal *c, void *point) {
    (void)c;
    ms_snapshot_destroy(point);
}
static bool can_rewind(const ms_causal *c, uint64_t to) { return ms_session_can_rewind(of(c), to); }
static ms_status rewind_to(ms_causal *c, uint64_t to, ms_error *err) { return ms_session_rewind(of(c), to, err); }
static void stats(const ms_causal *c, ms_engine_stats *out) {
    ms_engine_get_stats(((const ms_causal_session *)(const void *)c)->engine, out);
}

static bool peek(ms_causal *c, size_t i, ms_causal_entry *out) {
    ms_prefix_match m;
    const uint32_t *ids;
    if (!ms_prefix_store_peek(self_of(c)->store, i, &m, &ids)) return false;
    *out = (ms_causal_entry){m.entry, ids, m.count, m.meta, m.meta_len};
    return true;
}
static ms_status restore(ms_causal *c, uint64_t entry, ms_error *err) {
    return ms_prefix_store_restore(self_of(c)->store, of(c), entry, err);
}
static void drop(ms_causal *c, uint64_t entry) { ms_prefix_store_drop(self_of(c)->store, entry); }
static void save(ms_causal *c, const char *meta, size_t len, ms_keep keep) {
    static const ms_prefix_keep keeps[] = {MS_PREFIX_MEMORY, MS_PREFIX_DISK, MS_PREFIX_DISK_NOW};
    ms_prefix_store_save(self_of(c)->store, of(c), meta, len, keeps[keep]);
}

static ms_expert_service *experts_of(const ms_causal *c) {
    return ((const ms_causal_session *)(const void *)c)->engine->experts;
}
static void watch(ms_causal *c, const ms_expert_watch *w) { ms_expert_service_watch(experts_of(c), w); }
static uint32_t resident(const ms_causal *c, uint32_t moe_layer, uint32_t *out) {
    return ms_expert_service_resident(experts_of(c), moe_layer, out);
}
static ms_status digest(ms_causal *c, ms_digest *out, ms_error *err) { return ms_session_digest(of(c), out, err); }
static ms_status forget_experts(ms_causal *c, ms_error *err) { return ms_expert_service_forget(experts_of(c), err); }

static ms_status save_named(ms_causal *c, const char *name, const char *meta, size_t len, uint64_t *bytes,
                            ms_error *err) {
    const char *root = self_of(c)->options.kept.root;
    if (!root) return ms_fail(err, MS_ERR_USAGE, "no folder for states");
    return ms_named_state_save(of(c), root, name, meta, len, bytes, err);
}
static ms_status restore_named(ms_causal *c, const char *name, ms_text *meta, uint64_t *bytes, bool *missing,
                               ms_error *err) {
    const char *root = self_of(c)->options.kept.root;
    *missing = false;
    if (!root) return ms_fail(err, MS_ERR_USAGE, "no folder for states");
    return ms_named_state_restore(of(c), root, name, meta, bytes, missing, err);
}

/* Without room for kept states those four stay NULL. */
#define TIMELINE                                                                                             \
    .position = position, .tokens = tokens, .logits = logits, .reset = reset, .forward = forward,            \
    .cancel = cancel, .clear_cancel = clear_cancel, .can_rewind = can_rewind, .rewind = rewind_to,           \
    .mark = mark, .go_back = go_back, .unmark = unmark, .stats = stats, .watch = watch,                      \
    .resident = resident, .digest = digest, .forget_experts = forget_experts, .save_named = save_named,      \
    .restore_named = restore_named
static const ms_causal_ops plain_ops = {TIMELINE};
static const ms_causal_ops keeping_ops = {TIMELINE, .peek = peek, .restore = restore, .drop = drop, .save = save};

/* ------------------------------------------------------------------ life */

static ms_status open_store(ms_causal_session *s, ms_error *err) {
    ms_prefix_options *o = &s->options.kept;
    o->memory_bytes = s->options.engine.kept_state_bytes;
    if (!o->memory_bytes && !o->root) return MS_OK;
    ms_prefix_store *store = NULL;
    bool disabled = false;
    MS_TRY(ms_prefix_store_open(&store, s->session, o, &disabled, err));
    if (disabled && s->options.disabled) s->options.disabled(s->options.disabled_arg);
    (void)pthread_mutex_lock(&s->lock);
    s->store = store;
    s->disk = o->root && !disabled;
    (void)pthread_mutex_unlock(&s->lock);
    return MS_OK;
}

static size_t tap_bytes(const ms_engine *e) { return e->model.info.experts * sizeof(float); }

static ms_status open_tap(ms_causal_session *s, ms_error *err) {
    ms_backend *be = s->engine->backend;
    size_t bytes = tap_bytes(s->engine);
    s->tap_host = malloc(bytes ? bytes : 1);
    if (!s->tap_host) return ms_fail_memory(err, "router logits", bytes);
    return be->alloc(be, MS_MEM_DEVICE, bytes, "router logits", (void **)&s->tap_device, err);
}

static void close_tap(ms_causal_session *s) {
    if (s->tap_device)
        s->engine->backend->release(s->engine->backend, MS_MEM_DEVICE, s->tap_device, tap_bytes(s->engine));
    free(s->tap_host);
    s->tap_device = s->tap_host = NULL;
}

static ms_status open_engine(void *self, ms_causal **out, ms_error *err) {
    ms_causal_session *s = self;
    MS_TRY(ms_engine_open(&s->engine, &s->options.engine, err));
    MS_TRY(ms_session_create(&s->session, s->engine, err));
    MS_TRY(open_store(s, err));
    if (s->options.logits) MS_TRY(open_tap(s, err));
    const ms_plan *plan = ms_engine_plan(s->engine);
    ms_model_info info;
    ms_engine_info(s->engine, &info);
    s->base = (ms_causal){.ops = s->store ? &keeping_ops : &plain_ops,
                          .context = plan->context,
                          .vocab = info.vocab,
                          .range_rows = plan->range_rows,
                          .points = s->options.engine.snapshots,
                          .routed = s->engine->model.experts.layers,
                          .routed_count = s->engine->model.experts.layer_count,
                          .tap_device = s->tap_device,
                          .tap_host = s->tap_host};
    *out = &s->base;
    return MS_OK;
}

static void close_engine(void *self) {
    ms_causal_session *s = self;
    (void)pthread_mutex_lock(&s->lock);
    ms_prefix_store *store = s->store;
    s->store = NULL;
    (void)pthread_mutex_unlock(&s->lock);
    ms_prefix_store_close(store);
    ms_session_destroy(s->session);
    close_tap(s);
    ms_engine_close(s->engine);
    s->session = NULL;
    s->engine = NULL;
}

static void kept(void *self, ms_kept_view *out) {
    ms_causal_session *s = self;
    ms_prefix_stats n = {0};
    (void)pthread_mutex_lock(&s->lock);
    if (s->store) ms_prefix_store_stats(s->store, &n);
    *out = (ms_kept_view){.disk = s->disk,
                          .entries = n.entries,
                          .memory_entries = n.memory_entries,
                          .memory_bytes = n.memory_bytes,
                          .max_memory_bytes = s->options.engine.kept_state_bytes,
                          .disk_entries = n.disk_entries,
                          .disk_bytes = n.disk_bytes,
                          .max_disk_entries = s->disk ? s->options.kept.disk_entries : 0,
                          .max_disk_bytes = s->disk ? s->options.kept.disk_bytes : 0,
                          .writes = n.writes,
                          .write_failures = n.write_failures,
                          .evictions = n.evictions,
                          .corrupt = n.corrupt,
                          .restores = n.restores};
    (void)pthread_mutex_unlock(&s->lock);
}

ms_causal_session *ms_causal_session_create(const ms_causal_session_options *options) {
    ms_causal_session *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->options = *options;
    (void)pthread_mutex_init(&s->lock, NULL);
    return s;
}

ms_causal_source ms_causal_session_source(ms_causal_session *s) {
    return (ms_causal_source){.self = s, .open = open_engine, .close = close_engine, .kept = kept};
}

void ms_causal_session_destroy(ms_causal_session *s) {
    if (!s) return;
    (void)pthread_mutex_destroy(&s->lock);
    free(s);
}
