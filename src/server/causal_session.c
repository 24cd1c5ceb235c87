#include "server/causal_session.h"

#include <stdlib.h>

struct ms_causal_session {
    ms_causal base; /* first */
    ms_engine_options options;
    ms_engine *engine;
    ms_session *session;
};

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
static ms_status go_back(ms_causal *c, const void *point, ms_error *err) { return ms_session_restore(of(c), point, err); }
static void unmark(ms_causal *c, void *point) {
    (void)c;
    ms_snapshot_destroy(point);
}
static void stats(const ms_causal *c, ms_engine_stats *out) {
    ms_engine_get_stats(((const ms_causal_session *)(const void *)c)->engine, out);
}

static const ms_causal_ops ops = {.position = position,
                                  .tokens = tokens,
                                  .logits = logits,
                                  .reset = reset,
                                  .forward = forward,
                                  .cancel = cancel,
                                  .clear_cancel = clear_cancel,
                                  .mark = mark,
                                  .go_back = go_back,
                                  .unmark = unmark,
                                  .stats = stats};

static ms_status open_engine(void *self, ms_causal **out, ms_error *err) {
    ms_causal_session *s = self;
    MS_TRY(ms_engine_open(&s->engine, &s->options, err));
    MS_TRY(ms_session_create(&s->session, s->engine, err));
    const ms_plan *plan = ms_engine_plan(s->engine);
    ms_model_info info;
    ms_engine_info(s->engine, &info);
    s->base = (ms_causal){.ops = &ops,
                          .context = plan->context,
                          .vocab = info.vocab,
                          .range_rows = plan->range_rows,
                          .points = s->options.snapshots};
    *out = &s->base;
    return MS_OK;
}

static void close_engine(void *self) {
    ms_causal_session *s = self;
    ms_session_destroy(s->session);
    ms_engine_close(s->engine);
    s->session = NULL;
    s->engine = NULL;
}

ms_causal_session *ms_causal_session_create(const ms_engine_options *options) {
    ms_causal_session *s = calloc(1, sizeof *s);
    if (s) s->options = *options;
    return s;
}

ms_causal_source ms_causal_session_source(ms_causal_session *s) {
    return (ms_causal_source){.self = s, .open = open_engine, .close = close_engine};
}

void ms_causal_session_destroy(ms_causal_session *s) { free(s); }
