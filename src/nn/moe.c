#include "nn/moe.h"

#include <string.h>

/* Host tables of one call, laid out in the caller's buffer. */
typedef struct groups {
    uint32_t *ids;    /* [rows * k] as the router gave them */
    uint32_t *first;  /* [experts + 1]: where an expert's rows start in `row` and `pair` */
    uint32_t *row;    /* [rows * k] */
    uint32_t *pair;   /* [rows * k] */
    uint32_t *unique; /* [experts]: the union, ascending */
    uint32_t *uses;   /* [experts]: rows of each */
    uint32_t *guess;  /* [2 * k]: ids of a guess, then its weights */
    ms_expert_ready *ready;   /* [experts] */
    ms_expert_batch *batches; /* [experts] */
    uint32_t unique_count;
} groups;

size_t ms_moe_host_bytes(uint32_t rows, uint32_t top_k, uint32_t experts) {
    size_t pairs = (size_t)rows * top_k;
    return experts * (sizeof(ms_expert_ready) + sizeof(ms_expert_batch)) +
           (3 * pairs + 3 * (size_t)experts + 1 + 2 * (size_t)top_k) * sizeof(uint32_t);
}

static groups lay_out(void *host, uint32_t rows, uint32_t k, uint32_t experts) {
    size_t pairs = (size_t)rows * k;
    groups g = {0};
    /* pointers first: they need the larger alignment */
    g.batches = host;
    g.ready = (ms_expert_ready *)(g.batches + experts);
    g.ids = (uint32_t *)(g.ready + experts);
    g.row = g.ids + pairs;
    g.pair = g.row + pairs;
    g.unique = g.pair + pairs;
    g.uses = g.unique + experts;
    g.first = g.uses + experts;
    g.guess = g.first + experts + 1;
    return g;
}

/* Counting sort of (row, choice) by expert; stable, so rows ascend within an expert. */
static ms_status group_rows(groups *g, uint32_t n, uint32_t k, uint32_t experts, ms_error *err) {
    uint32_t pairs = n * k;
    memset(g->first, 0, (experts + 1) * sizeof *g->first);
    for (uint32_t p = 0; p < pairs; p++) {
        /* Ids become file offsets: never trust a device with them. */
        if (g->ids[p] >= experts)
            return ms_fail(err, MS_ERR_INTERNAL, "router gave expert id %u of %u", g->ids[p], experts);
        g->first[g->ids[p] + 1]++;
    }
    g->unique_count = 0;
    for (uint32_t e = 0; e < experts; e++) {
        if (g->first[e + 1]) {
            g->uses[g->unique_count] = g->first[e + 1];
            g->unique[g->unique_count++] = e;
        }
        g->first[e + 1] += g->first[e];
    }
    for (uint32_t p = 0; p < pairs; p++) {
        uint32_t at = g->first[g->ids[p]]++;
        g->row[at] = p / k;
        g->pair[at] = p;
    }
    /* first[e] is now the end of e's rows: shift back to starts */
    for (uint32_t e = experts; e > 0; e--) g->first[e] = g->first[e - 1];
    g->first[0] = 0;
    return MS_OK;
}

/* From the experts' results to the layer's. */
static void sum_up(ms_backend *be, const ms_moe *moe, const ms_moe_buffers *buf, float *out, uint32_t n) {
    be->experts_reduce_norm(be, moe->latent_up ? buf->sum : out, buf->pairs, buf->weights, n, moe->router.top_k,
                            moe->shape.hidden, moe->latent_norm, moe->norm_eps);
    if (moe->latent_up) {
        ms_product up = {.weight = moe->latent_up, .out = out, .out_stride = moe->dim};
        be->project(be, buf->sum, n, &up, 1);
    }
    if (moe->shared_gate) be->add(be, out, out, buf->shared, (size_t)n * moe->dim);
}

static ms_status run_experts(ms_backend *be, ms_expert_service *service, uint32_t moe_layer, const ms_moe *moe,
                             const ms_moe_buffers *buf, float *out, groups *g, bool guesses, ms_error *err) {
    if (guesses) be->zero(be, buf->pairs, (size_t)moe->router.top_k * moe->shape.hidden * sizeof *buf->pairs);
    for (;;) {
        uint32_t ready = 0;
        if (guesses && ms_expert_runs_dry(service)) {
            guesses = false;
            sum_up(be, moe, buf, out, 1);
            MS_TRY(moe->guess(moe->guess_arg, moe->layer + 1, moe_layer + 1, out, err));
        }
        MS_TRY(ms_expert_next(service, g->ready, &ready, err));
        if (!ready) return MS_OK;
        for (uint32_t i = 0; i < ready; i++) {
            uint32_t e = g->unique[g->ready[i].index];
            g->batches[i] = (ms_expert_batch){.slot = g->ready[i].slot,
                                              .row = g->row + g->first[e],
                                              .pair = g->pair + g->first[e],
                                              .count = g->first[e + 1] - g->first[e]};
        }
        be->experts_run(be, buf->pairs, moe->shape, moe->act, g->batches, ready);
    }
}

/* Everything that needs no expert. */
static void run_shared(ms_backend *be, const ms_moe *moe, const ms_moe_buffers *buf, const float *x, uint32_t n) {
    if (moe->latent_down) {
        ms_product down = {.weight = moe->latent_down, .out = buf->latent, .out_stride = moe->shape.hidden};
        be->project(be, x, n, &down, 1);
    }
    be->experts_begin(be, moe->latent_down ? buf->latent : x, n, moe->shape);
    if (moe->shared_gate)
        be->mlp(be, buf->shared, x, n, moe->shared_gate, moe->shared_up, moe->shared_down, moe->act);
}

/* For whoever looks on: the products that the router makes for itself, once more. */
static void show_logits(ms_backend *be, const ms_expert_watch *w, const ms_moe *moe, const float *x) {
    ms_product gate = {
        .weight = moe->router.gate, .out = w->device, .out_stride = moe->experts, .exact_input = true};
    be->project(be, x, 1, &gate, 1);
    be->download(be, w->host, w->device, moe->experts * sizeof *w->host);
    w->logits(w->arg, moe->layer, w->host, moe->experts);
}

ms_status ms_moe_forward(ms_backend *be, ms_expert_service *service, uint32_t moe_layer, const ms_moe *moe,
                         const ms_moe_buffers *buf, float *out, const float *x, uint32_t n, const uint32_t **host_ids,
                         ms_error *err) {
    uint32_t k = moe->router.top_k;
    groups g = lay_out(buf->host, n, k, moe->experts);
    const ms_expert_watch *watch = ms_expert_service_watching(service);
    if (watch && watch->logits && n == 1) show_logits(be, watch, moe, x);
    be->router_topk(be, buf->ids, buf->weights, x, n, &moe->router);
    be->fetch_begin(be, buf->ids, (size_t)n * k * sizeof *g.ids);
    /* What does not need the ids runs while they travel and while reads are in flight: on a device it is in the queue
     * before the host waits; where operations run at once, the reads come first. */
    if (be->deferred) run_shared(be, moe, buf, x, n);
    ms_status st = be->fetch_end(be, g.ids, err); /* a router row that is not finite stops here, before any read */
    if (st == MS_OK) st = group_rows(&g, n, k, moe->experts, err);
    if (st != MS_OK) {
        ms_error_context(err, "layer %u", moe->layer);
        return st;
    }
    if (host_ids) *host_ids = g.ids;

    MS_TRY(ms_expert_request(service, moe_layer, g.unique, g.uses, g.unique_count, err));
    if (!be->deferred) run_shared(be, moe, buf, x, n);
    bool guesses =
        moe->guess && n == 1 && ms_expert_waits(service) && ms_expert_wants_guess(service, moe_layer + 1);
    if (n > 1 && g.unique_count >= moe->experts - moe->experts / 8) ms_expert_guess_all(service, moe_layer + 1);
    st = run_experts(be, service, moe_layer, moe, buf, out, &g, guesses, err);
    ms_expert_end(service);
    if (st == MS_OK) sum_up(be, moe, buf, out, n);
    return st;
}

static ms_status fetch(ms_backend *be, void *host, const void *dev, size_t bytes, ms_error *err) {
    be->fetch_begin(be, dev, bytes);
    return be->fetch_end(be, host, err);
}

/* Largest weight first. */
static void sort_by_weight(uint32_t *ids, float *weights, uint32_t k) {
    for (uint32_t i = 1; i < k; i++) {
        uint32_t id = ids[i], at = i;
        float w = weights[i];
        for (; at > 0 && weights[at - 1] < w; at--) {
            ids[at] = ids[at - 1];
            weights[at] = weights[at - 1];
        }
        ids[at] = id;
        weights[at] = w;
    }
}

ms_status ms_moe_guess(ms_backend *be, ms_expert_service *service, uint32_t moe_layer, const ms_router *router,
                       const ms_moe_buffers *buf, const float *x, ms_error *err) {
    uint32_t k = router->top_k, *ids = lay_out(buf->host, 1, k, router->gate->rows).guess;
    float *weights = (float *)(ids + k);
    ms_error why;
    be->router_topk(be, buf->guess_ids, buf->guess_weights, x, 1, router);
    ms_status st = fetch(be, ids, buf->guess_ids, k * sizeof *ids, &why);
    if (st == MS_OK) st = fetch(be, weights, buf->guess_weights, k * sizeof *weights, &why);
    if (st == MS_ERR_NUMERIC) return MS_OK; /* only a guess: should it be true, the router itself will say so */
    if (st != MS_OK) {
        if (err) *err = why;
        return st;
    }
    sort_by_weight(ids, weights, k);
    ms_expert_guess(service, moe_layer, ids, k - k / 4); /* the last ones are the least certain */
    return MS_OK;
}
