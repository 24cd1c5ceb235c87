/* mimo_graph.c: one pass of MiMo V2.6 over any number of rows, against backend.h.
 *
 * Owns: nothing.  Reads rows of the state before the position, writes rows from it on; the caller commits.
 */
#include <math.h>

#include "lane/mimo26/mimo_weights.h"
#include "nn/moe.h"
#include "nn/rope.h"

enum {
    WS_SUM,    /* [rows][hidden]: the residual stream */
    WS_NORMED, /* [rows][hidden]: normed input of a half layer */
    WS_BRANCH, /* [rows][hidden]: what attention or feed-forward adds */
    WS_Q,
    WS_K,
    WS_V,
    WS_HEADS, /* [rows][heads * value]: attention output */
    WS_ROPE,  /* [rows][rotary] of either kind, full first */
    WS_ROPE_HOST,
    WS_IDS,
    WS_WEIGHTS,
    WS_PAIRS,
    WS_GUESS_IDS,
    WS_GUESS_WEIGHTS,
    WS_HOST,
    WS_COUNT
};

static uint64_t max_u64(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* Widths that either kind of layer may need. */
typedef struct widths {
    uint64_t q, k, v, heads, rotary, query_heads, group, key, value;
} widths;

static widths widest(const mimo_config *c) {
    widths w = {0};
    for (int i = 0; i < MIMO_KINDS; i++) {
        const mimo_attention *a = &c->attention[i];
        w.q = max_u64(w.q, (uint64_t)a->heads * a->key);
        w.k = max_u64(w.k, (uint64_t)a->kv_heads * a->key);
        w.v = max_u64(w.v, (uint64_t)a->kv_heads * a->value);
        w.heads = max_u64(w.heads, (uint64_t)a->heads * a->value);
        w.query_heads = max_u64(w.query_heads, a->heads);
        w.group = max_u64(w.group, a->heads / a->kv_heads);
        w.key = max_u64(w.key, a->key);
        w.value = max_u64(w.value, a->value);
        w.rotary += a->rotary;
    }
    return w;
}

uint32_t mimo_workspace(const void *config, uint32_t rows, ms_workspace_item *items) {
    if (!items) return WS_COUNT;
    const mimo_config *c = config;
    const widths w = widest(c);
    uint64_t row = 4ull * rows, hidden = row * c->hidden;
    items[WS_SUM] = (ms_workspace_item){"residual sum", hidden, false};
    items[WS_NORMED] = (ms_workspace_item){"normed input", hidden, false};
    items[WS_BRANCH] = (ms_workspace_item){"branch output", hidden, false};
    items[WS_Q] = (ms_workspace_item){"attention projections", row * w.q, false};
    items[WS_K] = (ms_workspace_item){"attention projections", row * w.k, false};
    items[WS_V] = (ms_workspace_item){"attention projections", row * w.v, false};
    items[WS_HEADS] = (ms_workspace_item){"attention output", row * w.heads, false};
    items[WS_ROPE] = (ms_workspace_item){"rotation angles", row * w.rotary, false};
    items[WS_ROPE_HOST] = (ms_workspace_item){"rotation angles", row * w.rotary + 4 * w.rotary, true};
    items[WS_IDS] = (ms_workspace_item){"expert ids", row * c->top_k, false};
    items[WS_WEIGHTS] = (ms_workspace_item){"expert weights", row * c->top_k, false};
    items[WS_PAIRS] = (ms_workspace_item){"expert outputs", row * c->top_k * c->hidden, false};
    items[WS_GUESS_IDS] = (ms_workspace_item){"guessed expert ids", 4ull * c->top_k, false};
    items[WS_GUESS_WEIGHTS] = (ms_workspace_item){"guessed expert weights", 4ull * c->top_k, false};
    items[WS_HOST] = (ms_workspace_item){"expert grouping", ms_moe_host_bytes(rows, c->top_k, c->experts), true};
    return WS_COUNT;
}

void mimo_scratch_need(const void *config, uint32_t rows, uint64_t context, ms_scratch_need *out) {
    const mimo_config *c = config;
    const widths w = widest(c);
    *out = (ms_scratch_need){.rows = rows,
                             .input_cols = (uint32_t)max_u64(c->hidden, w.heads),
                             .mlp_width = c->dense_width,
                             .expert = mimo_expert_shape(c),
                             .pairs = rows * c->top_k,
                             .gqa_heads = (uint32_t)w.query_heads,
                             .gqa_group = (uint32_t)w.group,
                             .gqa_key = (uint32_t)w.key,
                             .gqa_value = (uint32_t)w.value,
                             .context = context,
                             .router_experts = c->experts};
}

static const char *const kind_names[MIMO_KINDS] = {[MIMO_FULL] = "full", [MIMO_SLIDING] = "window"};

/* Digest order: rows of all full layers, windows of all sliding ones, each in layer order. */
uint32_t mimo_state_parts(const void *config, ms_precision precision, ms_state_part *parts) {
    const mimo_config *c = config;
    uint32_t n = 0;
    for (int kind = 0; kind < MIMO_KINDS; kind++) {
        const mimo_attention *a = &c->attention[kind];
        uint64_t row = (uint64_t)a->kv_heads * ((uint64_t)a->key + a->value) * ms_state_element_bytes(precision);
        for (uint32_t l = 0; l < c->layers; l++) {
            if (c->kind[l] != kind) continue;
            if (parts)
                parts[n] = (ms_state_part){.kind = kind_names[kind], .layer = l, .row_bytes = row, .window = a->window};
            n++;
        }
    }
    return n;
}

/* What every step of a pass needs. */
typedef struct pass {
    const ms_run *run;
    ms_backend *be;
    const mimo_config *c;
    const mimo_weights *w;
    uint32_t n;
    float *sum, *normed, *branch;
    const float *rope[MIMO_KINDS]; /* device */
} pass;

static float *ws(const pass *p, int item) { return p->run->workspace[item]; }

/* Angles of this pass's positions, the same for all layers of a kind. */
static void prepare_rope(pass *p) {
    float *host = p->run->workspace[WS_ROPE_HOST], *device = ws(p, WS_ROPE);
    float *frequencies = host + (size_t)p->run->max_rows * (p->c->attention[0].rotary + p->c->attention[1].rotary);
    for (int kind = 0; kind < MIMO_KINDS; kind++) {
        const mimo_attention *a = &p->c->attention[kind];
        size_t count = (size_t)p->n * a->rotary;
        ms_rope_frequencies(frequencies, a->theta, a->rotary);
        ms_rope_rows(host, frequencies, a->rotary, p->run->state->position, p->n);
        p->be->upload(p->be, device, host, count * sizeof *host);
        p->rope[kind] = device;
        host += count;
        device += count;
    }
}

static void attention(pass *p, uint32_t l) {
    const mimo_attention *a = mimo_attention_of(p->c, l);
    const mimo_layer *w = &p->w->layer[l];
    float *q = ws(p, WS_Q), *k = ws(p, WS_K), *v = ws(p, WS_V), *heads = ws(p, WS_HEADS);
    const ms_product in[] = {{&w->q, q, w->q.rows, false}, {&w->k, k, w->k.rows, false}, {&w->v, v, w->v.rows, false}};
    p->be->project(p->be, p->normed, p->n, in, sizeof in / sizeof in[0]);
    const ms_gqa gqa = {.heads = a->heads,
                        .kv_heads = a->kv_heads,
                        .key = a->key,
                        .value = a->value,
                        .rotary = a->rotary,
                        .window = a->window,
                        .scale = 1.0f / sqrtf((float)a->key),
                        .value_scale = p->c->value_scale,
                        .sink = a->sink ? &w->sink : NULL};
    const ms_state_part *rows = ms_state_find(p->run->state, kind_names[p->c->kind[l]], l);
    const ms_gqa_io io = {.q = q,
                          .k = k,
                          .v = v,
                          .rope = p->rope[p->c->kind[l]],
                          .rows = rows->current,
                          .ring = rows->ring,
                          .position = p->run->state->position,
                          .out = heads};
    p->be->gqa_range(p->be, &gqa, &io, p->n);
    const ms_product out = {&w->o, p->branch, p->c->hidden, false};
    p->be->project(p->be, heads, p->n, &out, 1);
}

static ms_router router_of(const pass *p, uint32_t l) {
    return (ms_router){.gate = &p->w->layer[l].router,
                       .bias = &p->w->layer[l].router_bias,
                       .top_k = p->c->top_k,
                       .renormalize = p->c->renormalize,
                       .scale = p->c->routed_scale};
}

static ms_moe_buffers moe_buffers(const pass *p) {
    return (ms_moe_buffers){.ids = p->run->workspace[WS_IDS],
                            .weights = ws(p, WS_WEIGHTS),
                            .pairs = ws(p, WS_PAIRS),
                            .guess_ids = p->run->workspace[WS_GUESS_IDS],
                            .guess_weights = ws(p, WS_GUESS_WEIGHTS),
                            .host = p->run->workspace[WS_HOST]};
}

/* What the router of layer l would say to the state as it is and `add` (NULL: nothing), if nothing else were added
 * before.  The reads run beside what is.  Behind the layer, when no read is under way, waiting for a device would cost
 * more than the reads. */
static ms_status guess(void *arg, uint32_t l, uint32_t moe_layer, const float *add, ms_error *err) {
    pass *p = arg;
    const mimo_config *c = p->c;
    if (p->n != 1 || (p->be->deferred && !add) || l >= c->layers || !c->moe[l]) return MS_OK;
    if (!ms_expert_wants_guess(p->run->experts, moe_layer)) return MS_OK;
    if (add) p->be->add(p->be, p->normed, p->sum, add, c->hidden);
    p->be->rms_norm(p->be, p->normed, add ? p->normed : p->sum, 1, c->hidden, &p->w->layer[l].post_norm, c->eps);
    const ms_router router = router_of(p, l);
    const ms_moe_buffers buf = moe_buffers(p);
    return ms_moe_guess(p->be, p->run->experts, moe_layer, &router, &buf, p->normed, err);
}

static ms_status feed_forward(pass *p, uint32_t l, uint32_t moe_layer, ms_error *err) {
    const mimo_config *c = p->c;
    const mimo_layer *w = &p->w->layer[l];
    const ms_situ swiglu = {0};
    if (!c->moe[l]) {
        p->be->mlp(p->be, p->branch, p->normed, p->n, &w->gate, &w->up, &w->down, swiglu);
        return MS_OK;
    }
    const ms_moe moe = {.layer = l,
                        .dim = c->hidden,
                        .experts = c->experts,
                        .shape = mimo_expert_shape(c),
                        .router = router_of(p, l),
                        .act = swiglu,
                        .guess = guess,
                        .guess_arg = p};
    const ms_moe_buffers buf = moe_buffers(p);
    const uint32_t *ids = NULL;
    MS_TRY(ms_moe_forward(p->be, p->run->experts, moe_layer, &moe, &buf, p->branch, p->normed, p->n, &ids, err));
    if (p->run->routes) p->run->routes(p->run->routes_arg, l, p->n, c->top_k, ids);
    return MS_OK;
}

static ms_status layer(pass *p, uint32_t l, uint32_t moe_layer, ms_error *err) {
    const mimo_config *c = p->c;
    const mimo_layer *w = &p->w->layer[l];
    size_t count = (size_t)p->n * c->hidden;
    p->be->rms_norm(p->be, p->normed, p->sum, p->n, c->hidden, &w->input_norm, c->eps);
    attention(p, l);
    p->be->add(p->be, p->sum, p->sum, p->branch, count);
    p->be->rms_norm(p->be, p->normed, p->sum, p->n, c->hidden, &w->post_norm, c->eps);
    MS_TRY(feed_forward(p, l, moe_layer, err));
    p->be->add(p->be, p->sum, p->sum, p->branch, count);
    return MS_OK;
}

/* Logits of the last want_logits rows, in batches. */
static ms_status head(pass *p, ms_error *err) {
    const ms_run *run = p->run;
    const mimo_config *c = p->c;
    for (uint32_t row = p->n - run->want_logits; row < p->n;) {
        uint32_t rows = p->n - row < run->logit_rows ? p->n - row : run->logit_rows;
        p->be->rms_norm(p->be, p->normed, p->sum + (size_t)row * c->hidden, rows, c->hidden, &p->w->final_norm, c->eps);
        const ms_product out = {&p->w->lm_head, run->logits, c->vocab, true};
        p->be->project(p->be, p->normed, rows, &out, 1);
        MS_TRY(run->emit(run->emit_arg, row, rows, run->logits, err));
        row += rows;
    }
    return MS_OK;
}

ms_status mimo_forward(const ms_run *run, ms_error *err) {
    pass p = {.run = run, .be = run->backend, .c = run->config, .w = run->weights, .n = run->rows};
    p.sum = ws(&p, WS_SUM);
    p.normed = ws(&p, WS_NORMED);
    p.branch = ws(&p, WS_BRANCH);
    p.be->copy(p.be, p.sum, run->embedding, (size_t)p.n * p.c->hidden * sizeof(float));
    prepare_rope(&p);
    uint32_t moe_layer = 0;
    for (uint32_t l = 0; l < p.c->layers; l++) {
        MS_TRY(layer(&p, l, moe_layer, err));
        if (p.c->moe[l]) moe_layer++;
        MS_TRY(guess(&p, l + 1, moe_layer, NULL, err));
        if (run->layer_done) MS_TRY(run->layer_done(run->layer_done_arg, l, err));
    }
    if (run->want_logits) MS_TRY(head(&p, err));
    return p.be->sync(p.be, err);
}
