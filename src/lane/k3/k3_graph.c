/* k3_graph.c: one pass of Kimi K3 over any number of rows, against backend.h.
 *
 * The residual stream is not a sum but a learned mix: at the head of each half layer every row mixes its closed blocks
 * and the running sum (`prefix`); a block closes every block_size layers, after that layer's attention mix has been
 * taken and before its attention runs; the sum then restarts with the attention output.
 *
 * Owns: nothing.  Reads state->current, writes state->next and attention rows at the position; the caller commits.
 */
#include <math.h>

#include "lane/k3/k3_weights.h"
#include "nn/moe.h"

/* Workspace buffers.  Projections of both attention kinds share P0..P5. */
enum {
    WS_BANK,   /* [blocks][rows][hidden]: closed blocks */
    WS_PREFIX, /* [rows][hidden]: the running sum */
    WS_NORMED, /* [rows][hidden]: mixed and normed input of a half layer */
    WS_BRANCH, /* [rows][hidden]: what attention or feed-forward adds */
    WS_SHARED, /* [rows][hidden]: shared experts */
    WS_P0, WS_P1, WS_P2, WS_P3, WS_P4, WS_P5,
    WS_SMALL0, /* [rows][kda_dim] decay bottleneck */
    WS_SMALL1, /* [rows][kda_heads] */
    WS_IDS, WS_WEIGHTS, WS_LATENT, WS_PAIRS, WS_SUM,
    WS_GUESS, /* [hidden]: a state that is guessed from */
    WS_GUESS_IDS, WS_GUESS_WEIGHTS,
    WS_HOST,
    WS_COUNT
};

static uint64_t max_u64(uint64_t a, uint64_t b) { return a > b ? a : b; }

static uint64_t kda_inner(const k3_config *c) { return (uint64_t)c->kda_heads * c->kda_dim; }
static uint64_t mla_q_width(const k3_config *c) { return (uint64_t)c->mla_heads * (c->nope + c->extra); }
static uint64_t mla_v_width(const k3_config *c) { return (uint64_t)c->mla_heads * c->value; }
static uint32_t block_count(const k3_config *c) { return (c->layers + c->block_size - 1) / c->block_size; }

uint32_t k3_workspace(const void *config, uint32_t rows, ms_workspace_item *items) {
    if (!items) return WS_COUNT;
    const k3_config *c = config;
    uint64_t row = 4ull * rows, hidden = row * c->hidden, inner = kda_inner(c);
    items[WS_BANK] = (ms_workspace_item){"attention residual blocks", hidden * block_count(c), false};
    items[WS_PREFIX] = (ms_workspace_item){"residual sum", hidden, false};
    items[WS_NORMED] = (ms_workspace_item){"normed input", hidden, false};
    items[WS_BRANCH] = (ms_workspace_item){"branch output", hidden, false};
    items[WS_SHARED] = (ms_workspace_item){"shared experts", hidden, false};
    const uint64_t widths[6] = {
        max_u64(inner, mla_q_width(c)),           /* q            | q */
        max_u64(inner, mla_v_width(c)),           /* k            | gate */
        max_u64(inner, mla_v_width(c)),           /* v            | output */
        max_u64(inner, c->q_rank),                /* decay        | q latent */
        max_u64(inner, c->q_rank),                /* output gate  | normed q latent */
        max_u64(inner, c->kv_rank + (uint64_t)c->extra), /* output | kv latent and extra key */
    };
    for (int i = 0; i < 6; i++)
        items[WS_P0 + i] = (ms_workspace_item){"attention projections", row * widths[i], false};
    items[WS_SMALL0] = (ms_workspace_item){"decay bottleneck", row * c->kda_dim, false};
    items[WS_SMALL1] = (ms_workspace_item){"write strength", row * c->kda_heads, false};
    items[WS_IDS] = (ms_workspace_item){"expert ids", row * c->top_k, false};
    items[WS_WEIGHTS] = (ms_workspace_item){"expert weights", row * c->top_k, false};
    items[WS_LATENT] = (ms_workspace_item){"expert input", row * c->latent, false};
    items[WS_PAIRS] = (ms_workspace_item){"expert outputs", row * c->top_k * c->latent, false};
    items[WS_SUM] = (ms_workspace_item){"expert sum", row * c->latent, false};
    items[WS_GUESS] = (ms_workspace_item){"guessed state", 4ull * c->hidden, false};
    items[WS_GUESS_IDS] = (ms_workspace_item){"guessed expert ids", 4ull * c->top_k, false};
    items[WS_GUESS_WEIGHTS] = (ms_workspace_item){"guessed expert weights", 4ull * c->top_k, false};
    items[WS_HOST] = (ms_workspace_item){"expert grouping", ms_moe_host_bytes(rows, c->top_k, c->experts), true};
    return WS_COUNT;
}

void k3_scratch_need(const void *config, uint32_t rows, uint64_t context, ms_scratch_need *out) {
    const k3_config *c = config;
    uint64_t cols = max_u64(c->hidden, max_u64(kda_inner(c), mla_v_width(c)));
    cols = max_u64(cols, max_u64(c->q_rank, c->latent));
    *out = (ms_scratch_need){.rows = rows,
                             .input_cols = (uint32_t)cols,
                             .mlp_width = (uint32_t)max_u64(c->dense_width, (uint64_t)c->shared_experts * c->expert_inner),
                             .expert = k3_expert_shape(c),
                             .pairs = rows * c->top_k,
                             .kda_heads = c->kda_heads,
                             .kda_dim = c->kda_dim,
                             .kda_taps = c->conv_taps,
                             .mla_heads = c->mla_heads,
                             .mla_nope = c->nope,
                             .mla_extra = c->extra,
                             .mla_value = c->value,
                             .mla_rank = c->kv_rank,
                             .context = context,
                             .router_experts = c->experts};
}

/* Digest order: all KDA states, all convolution histories, all attention rows, each in layer order. */
uint32_t k3_state_parts(const void *config, ms_precision precision, ms_state_part *parts) {
    const k3_config *c = config;
    uint64_t element = ms_state_element_bytes(precision), inner = kda_inner(c);
    uint32_t n = 0;
    for (uint32_t l = 0; l < c->layers; l++) {
        if (c->is_mla[l]) continue;
        if (parts) parts[n] = (ms_state_part){.kind = "kda", .layer = l, .bytes = inner * c->kda_dim * 4};
        n++;
    }
    for (uint32_t l = 0; l < c->layers; l++) {
        if (c->is_mla[l]) continue;
        if (parts) parts[n] = (ms_state_part){.kind = "conv", .layer = l, .bytes = 3 * (c->conv_taps - 1) * inner * element};
        n++;
    }
    for (uint32_t l = 0; l < c->layers; l++) {
        if (!c->is_mla[l]) continue;
        if (parts) parts[n] = (ms_state_part){.kind = "mla", .layer = l, .row_bytes = (c->kv_rank + c->extra) * element};
        n++;
    }
    return n;
}

/* What every step of a pass needs. */
typedef struct pass {
    const ms_run *run;
    ms_backend *be;
    const k3_config *c;
    const k3_weights *w;
    uint32_t n;
    uint32_t blocks; /* closed so far */
    float *bank, *prefix, *normed, *branch;
} pass;

static float *ws(const pass *p, int item) { return p->run->workspace[item]; }
static const ms_weight *part(const pass *p, uint32_t layer, k3_part k) { return &p->w->layer[layer][k]; }
static size_t block_stride(const pass *p) { return (size_t)p->run->max_rows * p->c->hidden; }

static void attention_kda(pass *p, uint32_t l) {
    const k3_config *c = p->c;
    size_t inner = kda_inner(c);
    float *q = ws(p, WS_P0), *k = ws(p, WS_P1), *v = ws(p, WS_P2), *e = ws(p, WS_P3), *g = ws(p, WS_P4), *o = ws(p, WS_P5);
    float *fa = ws(p, WS_SMALL0), *b = ws(p, WS_SMALL1);
    const ms_product in[] = {
        {part(p, l, K3_Q_PROJ), q, inner, false},       {part(p, l, K3_K_PROJ), k, inner, false},
        {part(p, l, K3_V_PROJ), v, inner, false},       {part(p, l, K3_G_PROJ), g, inner, false},
        {part(p, l, K3_F_A), fa, c->kda_dim, true},     {part(p, l, K3_B_PROJ), b, c->kda_heads, true},
    };
    p->be->project(p->be, p->normed, p->n, in, sizeof in / sizeof in[0]);
    const ms_product decay = {part(p, l, K3_F_B), e, inner, true};
    p->be->project(p->be, fa, p->n, &decay, 1);
    const ms_kda kda = {.heads = c->kda_heads,
                        .dim = c->kda_dim,
                        .taps = c->conv_taps,
                        .gate_bound = c->gate_bound,
                        .norm_eps = c->rms_eps,
                        .conv = {part(p, l, K3_Q_CONV), part(p, l, K3_K_CONV), part(p, l, K3_V_CONV)},
                        .a_log = part(p, l, K3_A_LOG),
                        .dt_bias = part(p, l, K3_DT_BIAS),
                        .o_norm = part(p, l, K3_O_NORM)};
    const ms_state_part *s = ms_state_find(p->run->state, "kda", l), *h = ms_state_find(p->run->state, "conv", l);
    const ms_kda_io io = {.q = q, .k = k, .v = v, .e = e, .b = b, .g = g,
                          .state_in = (const float *)(const void *)s->current,
                          .state_out = (float *)(void *)s->next,
                          .history_in = h->current,
                          .history_out = h->next,
                          .out = o};
    p->be->kda_range(p->be, &kda, &io, p->n);
    const ms_product out = {part(p, l, K3_O_PROJ), p->branch, c->hidden, false};
    p->be->project(p->be, o, p->n, &out, 1);
}

static void attention_mla(pass *p, uint32_t l) {
    const k3_config *c = p->c;
    float *q = ws(p, WS_P0), *gate = ws(p, WS_P1), *o = ws(p, WS_P2), *qa = ws(p, WS_P3), *qn = ws(p, WS_P4), *kv = ws(p, WS_P5);
    const ms_product in[] = {
        {part(p, l, K3_Q_A), qa, c->q_rank, false},
        {part(p, l, K3_KV_A), kv, c->kv_rank + (size_t)c->extra, false},
        {part(p, l, K3_G_PROJ), gate, mla_v_width(c), false},
    };
    p->be->project(p->be, p->normed, p->n, in, sizeof in / sizeof in[0]);
    p->be->rms_norm(p->be, qn, qa, p->n, c->q_rank, part(p, l, K3_Q_A_NORM), K3_MLA_NORM_EPS);
    const ms_product qb = {part(p, l, K3_Q_B), q, mla_q_width(c), false};
    p->be->project(p->be, qn, p->n, &qb, 1);
    const ms_mla mla = {.heads = c->mla_heads,
                        .nope = c->nope,
                        .extra = c->extra,
                        .value = c->value,
                        .rank = c->kv_rank,
                        .norm_eps = K3_MLA_NORM_EPS,
                        .scale = 1.0f / sqrtf((float)(c->nope + c->extra)),
                        .kv_norm = part(p, l, K3_KV_A_NORM),
                        .kv_b = part(p, l, K3_KV_B)};
    const ms_mla_io io = {.q = q, .c = kv, .gate = gate,
                          .rows = ms_state_find(p->run->state, "mla", l)->current,
                          .position = p->run->state->position,
                          .out = o};
    p->be->mla_range(p->be, &mla, &io, p->n);
    const ms_product out = {part(p, l, K3_O_PROJ), p->branch, c->hidden, false};
    p->be->project(p->be, o, p->n, &out, 1);
}

static ms_router router_of(const pass *p, uint32_t l) {
    return (ms_router){.gate = part(p, l, K3_ROUTER),
                       .bias = part(p, l, K3_ROUTER_BIAS),
                       .top_k = p->c->top_k,
                       .renormalize = p->c->renormalize,
                       .scale = p->c->routed_scale};
}

static ms_moe_buffers moe_buffers(const pass *p) {
    return (ms_moe_buffers){.ids = p->run->workspace[WS_IDS],
                            .weights = ws(p, WS_WEIGHTS),
                            .latent = ws(p, WS_LATENT),
                            .pairs = ws(p, WS_PAIRS),
                            .sum = ws(p, WS_SUM),
                            .shared = ws(p, WS_SHARED),
                            .guess_ids = p->run->workspace[WS_GUESS_IDS],
                            .guess_weights = ws(p, WS_GUESS_WEIGHTS),
                            .host = p->run->workspace[WS_HOST]};
}

static ms_mix mix_of(const pass *p, const ms_weight *score, uint32_t first_row) {
    size_t skip = (size_t)first_row * p->c->hidden;
    return (ms_mix){.blocks = p->bank + skip,
                    .block_stride = block_stride(p),
                    .block_count = p->blocks,
                    .prefix = p->prefix + skip,
                    .score = score};
}

/* What the router of layer l would say to the state as it is and `add` (NULL: nothing), if nothing else were added
 * before.  The reads run beside what is.  Behind the layer, when no read is under way, waiting for a device would cost
 * more than the reads. */
static ms_status guess(void *arg, uint32_t l, uint32_t moe_layer, const float *add, ms_error *err) {
    pass *p = arg;
    const k3_config *c = p->c;
    if (p->n != 1 || (p->be->deferred && !add) || l >= c->layers || !k3_is_moe(c, l)) return MS_OK;
    if (!ms_expert_wants_guess(p->run->experts, moe_layer)) return MS_OK;
    ms_mix m = mix_of(p, part(p, l, K3_MLP_RES_NORM), 0);
    if (add) {
        p->be->add(p->be, ws(p, WS_GUESS), p->prefix, add, c->hidden);
        m.prefix = ws(p, WS_GUESS);
    }
    p->be->mix_norm(p->be, p->normed, &m, 1, c->hidden, c->rms_eps, part(p, l, K3_POST_NORM));
    const ms_router router = router_of(p, l);
    const ms_moe_buffers buf = moe_buffers(p);
    return ms_moe_guess(p->be, p->run->experts, moe_layer, &router, &buf, p->normed, err);
}

static ms_status feed_forward(pass *p, uint32_t l, uint32_t moe_layer, ms_error *err) {
    const k3_config *c = p->c;
    const ms_situ act = {c->situ_beta, c->situ_linear_beta};
    if (!k3_is_moe(c, l)) {
        p->be->mlp(p->be, p->branch, p->normed, p->n, part(p, l, K3_DENSE_GATE), part(p, l, K3_DENSE_UP),
                   part(p, l, K3_DENSE_DOWN), act);
        return MS_OK;
    }
    const ms_moe moe = {.layer = l,
                        .dim = c->hidden,
                        .experts = c->experts,
                        .shape = k3_expert_shape(c),
                        .router = router_of(p, l),
                        .act = act,
                        .norm_eps = c->rms_eps,
                        .latent_down = part(p, l, K3_LATENT_DOWN),
                        .latent_norm = part(p, l, K3_LATENT_NORM),
                        .latent_up = part(p, l, K3_LATENT_UP),
                        .shared_gate = part(p, l, K3_SHARED_GATE),
                        .shared_up = part(p, l, K3_SHARED_UP),
                        .shared_down = part(p, l, K3_SHARED_DOWN),
                        .guess = guess,
                        .guess_arg = p};
    const ms_moe_buffers buf = moe_buffers(p);
    const uint32_t *ids = NULL;
    ms_status st = ms_moe_forward(p->be, p->run->experts, moe_layer, &moe, &buf, p->branch, p->normed, p->n, &ids, err);
    if (st != MS_OK) return st;
    if (p->run->routes) p->run->routes(p->run->routes_arg, l, p->n, c->top_k, ids);
    return MS_OK;
}

static ms_status layer(pass *p, uint32_t l, uint32_t moe_layer, ms_error *err) {
    const k3_config *c = p->c;
    ms_backend *be = p->be;
    size_t count = (size_t)p->n * c->hidden;

    if (p->blocks == 0) { /* one source: the mix is that source */
        be->rms_norm(be, p->normed, p->prefix, p->n, c->hidden, part(p, l, K3_INPUT_NORM), c->rms_eps);
    } else {
        ms_mix m = mix_of(p, part(p, l, K3_ATTN_RES_NORM), 0);
        be->mix_norm(be, p->normed, &m, p->n, c->hidden, c->rms_eps, part(p, l, K3_INPUT_NORM));
    }
    bool close = l % c->block_size == 0;
    if (close) be->copy(be, p->bank + p->blocks++ * block_stride(p), p->prefix, count * sizeof(float));
    if (c->is_mla[l])
        attention_mla(p, l);
    else
        attention_kda(p, l);
    if (close)
        be->copy(be, p->prefix, p->branch, count * sizeof(float));
    else
        be->add(be, p->prefix, p->prefix, p->branch, count);

    ms_mix m = mix_of(p, part(p, l, K3_MLP_RES_NORM), 0);
    be->mix_norm(be, p->normed, &m, p->n, c->hidden, c->rms_eps, part(p, l, K3_POST_NORM));
    MS_TRY(feed_forward(p, l, moe_layer, err));
    be->add(be, p->prefix, p->prefix, p->branch, count);
    return MS_OK;
}

/* Logits of the last want_logits rows, in batches. */
static ms_status head(pass *p, ms_error *err) {
    const ms_run *run = p->run;
    const k3_config *c = p->c;
    for (uint32_t row = p->n - run->want_logits; row < p->n;) {
        uint32_t rows = p->n - row < run->logit_rows ? p->n - row : run->logit_rows;
        ms_mix m = mix_of(p, k3_outside(p->w, K3_OUT_RES_NORM), row);
        p->be->mix_norm(p->be, p->normed, &m, rows, c->hidden, c->rms_eps, k3_outside(p->w, K3_FINAL_NORM));
        const ms_product out = {k3_outside(p->w, K3_LM_HEAD), run->logits, c->vocab, true};
        p->be->project(p->be, p->normed, rows, &out, 1);
        MS_TRY(run->emit(run->emit_arg, row, rows, run->logits, err));
        row += rows;
    }
    return MS_OK;
}

ms_status k3_forward(const ms_run *run, ms_error *err) {
    pass p = {.run = run, .be = run->backend, .c = run->config, .w = run->weights, .n = run->rows};
    p.bank = ws(&p, WS_BANK);
    p.prefix = ws(&p, WS_PREFIX);
    p.normed = ws(&p, WS_NORMED);
    p.branch = ws(&p, WS_BRANCH);
    p.be->copy(p.be, p.prefix, run->embedding, (size_t)p.n * p.c->hidden * sizeof(float));
    uint32_t moe_layer = 0;
    for (uint32_t l = 0; l < p.c->layers; l++) {
        MS_TRY(layer(&p, l, moe_layer, err));
        if (k3_is_moe(p.c, l)) moe_layer++;
        MS_TRY(guess(&p, l + 1, moe_layer, NULL, err));
        if (run->layer_done) MS_TRY(run->layer_done(run->layer_done_arg, l, err));
    }
    if (run->want_logits) MS_TRY(head(&p, err));
    return p.be->sync(p.be, err);
}
