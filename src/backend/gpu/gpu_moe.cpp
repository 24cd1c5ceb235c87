// gpu_moe.cpp - the router and the routed experts of a GPU backend.
//
// Threads and errors: as gpu_internal.h says.
#include "backend/gpu/gpu_internal.h"

#include "backend/gpu/k_choose.h"

#include <string.h>

// A few words go by a kernel: copies would wait for the kernel before them to end, and the next one for them.
void fetch_words(gpu_backend *g, void *to, const void *dev, size_t bytes, void *flag) {
    if (bytes % sizeof(uint32_t) == 0 && bytes <= K_FETCH_WORDS * sizeof(uint32_t)) {
        k_fetch_args a = {(uint32_t *)to, (const uint32_t *)dev, (uint32_t)(bytes / sizeof(uint32_t)), (uint32_t *)flag,
                          g->flags + FLAG_ROUTER};
        k_fetch(g->stream, &a);
        launched(g, "fetch");
        return;
    }
    (void)gpu_ok(g, gpuMemcpyAsync(to, dev, bytes, gpuMemcpyDeviceToHost, g->stream), "fetch");
    if (flag)
        (void)gpu_ok(g,
                     gpuMemcpyAsync(flag, g->flags + FLAG_ROUTER, sizeof(uint32_t), gpuMemcpyDeviceToHost, g->stream),
                     "fetch");
}

// ---------------------------------------------------------------- a choice that waits

bool choice_joins(const gpu_backend *g, const float *x, uint32_t n, const ms_product *products, uint32_t count) {
    const gpu_choice *c = &g->choice;
    if (!c->open || c->made || n != 1 || x != c->x) return false;
    const size_t ids = c->top_k * sizeof *c->ids, row = c->product.weight->cols * sizeof *x;
    for (uint32_t i = 0; i < count; i++) {
        const float *out = products[i].out;
        const size_t bytes = products[i].weight->rows * sizeof *out;
        if (products[i].weight->cols != c->product.weight->cols || overlap(out, bytes, c->ids, ids) ||
            overlap(out, bytes, c->weights, ids) || overlap(out, bytes, x, row))
            return false;
    }
    return true;
}

namespace {

k_router_args router_args(gpu_backend *g, const gpu_choice *c, uint32_t n) {
    k_router_args a = {};
    a.ids = c->ids;
    a.weights = c->weights;
    a.score = g->scratch.router;
    a.bias = c->bias;
    a.n = n;
    a.experts = c->product.weight->rows;
    a.top_k = c->top_k;
    a.renormalize = c->renormalize;
    a.scale = c->scale;
    a.bad = g->flags + FLAG_ROUTER;
    a.bad_base = c->bad_base;
    if (!c->fetched) return a;
    a.host_ids = (uint32_t *)(void *)(g->scratch.fetched + FETCH_HEAD);
    a.host_bad = (uint32_t *)(void *)g->scratch.fetched;
    return a;
}

void choice_products(gpu_backend *g) {
    gpu_choice *c = &g->choice;
    if (c->made) return;
    product_input in = {c->x, nullptr, nullptr, 1, c->product.weight->cols};
    run_products(g, &in, &c->product, 1);
    c->made = true;
}

// After the launch that makes it.
void choice_made(gpu_backend *g) {
    gpu_choice *c = &g->choice;
    launched(g, "router_topk");
    if (c->fetched) (void)gpu_ok(g, gpuEventRecord(g->fetch_done, g->stream), "fetch");
    *c = {};
}

} // namespace

void choice_settle(gpu_backend *g) {
    decay_settle(g);
    if (!g->choice.open) return;
    choice_products(g);
    const k_router_args a = router_args(g, &g->choice, 1);
    k_router(g->stream, &a);
    choice_made(g);
}

bool choice_fetch(gpu_backend *g, const void *dev, size_t bytes) {
    gpu_choice *c = &g->choice;
    c->fetched = c->open && dev == c->ids && bytes == c->top_k * sizeof *c->ids;
    return c->fetched;
}

uint64_t halves_groups(uint32_t cols) { return wide_mx_row(cols / K_MX_GROUP); }

uint64_t table_scratch_need(const ms_scratch_need *n) { return (experts_table_bytes(n->pairs) + 63) / 64 * 64; }

namespace {

void router_topk(ms_backend *be, uint32_t *ids, float *weights, const float *x, uint32_t n, const ms_router *r) {
    gpu_backend *g = gpu_of(be);
    const ms_scratch_need *have = &g->scratch.need;
    uint32_t experts = r->gate->rows;
    bool fits = n <= have->rows && experts <= have->router_experts && n <= 1u << ROUTER_ROW_BITS;
    if (!need(g, fits && r->gate->cols <= have->input_cols, "router_topk", "rows or experts")) return;
    bool sane = r->top_k <= experts && r->top_k <= K_ROUTER_TOP && !has_scales(r->gate->format);
    if (!need(g, sane, "router_topk", "gate or top_k")) return;
    const float *bias = f32_of(g, r->bias, experts, "router_topk", "bias");
    if (!bias || n == 0) return;
    settle(g);
    const uint32_t call = g->router_calls < ROUTER_CALLS ? g->router_calls : (uint32_t)ROUTER_CALLS;
    g->router_calls++;
    gpu_choice c = {};
    c.open = n == 1 && k_router_is_few(experts, r->top_k);
    c.x = x;
    c.product = {r->gate, g->scratch.router, experts, true};
    c.ids = ids;
    c.weights = weights;
    c.bias = bias;
    c.top_k = r->top_k;
    c.renormalize = r->renormalize;
    c.bad_base = call << ROUTER_ROW_BITS;
    c.scale = r->scale;
    if (c.open) {
        g->choice = c;
    } else {
        product_input in = {x, nullptr, nullptr, n, r->gate->cols};
        run_products(g, &in, &c.product, 1);
        const k_router_args a = router_args(g, &c, n);
        k_router(g->stream, &a);
    }
    rows_written(g, ids, (size_t)n * r->top_k * sizeof *ids);
    rows_written(g, weights, (size_t)n * r->top_k * sizeof *weights);
    launched(g, "router_topk");
}

void experts_begin(ms_backend *be, const float *z, uint32_t n, ms_expert_shape s) {
    gpu_backend *g = gpu_of(be);
    const ms_scratch_need *have = &g->scratch.need;
    bool fits = ms_expert_shape_valid(s) && s.hidden <= have->expert.hidden && s.inner <= have->expert.inner;
    g->experts_n = 0;
    if (!need(g, fits && experts_fit(s.hidden, s.inner) && n <= have->rows, "experts_begin", "rows or expert shape"))
        return;
    g->experts_n = n;
    g->experts_shape = s;
    const experts_quantize_args input = {(uint8_t *)g->scratch.z_q, g->scratch.z_s, z,
                                         (size_t)n * (s.hidden / K_MX_GROUP)};
    if (is_fast(g) && g->choice.open) {
        choice_products(g);
        const k_choose_args a = {router_args(g, &g->choice, 1), input};
        k_choose(g->stream, &a);
        choice_made(g);
        return;
    }
    settle(g);
    if (is_fast(g))
        k_experts_begin(g->stream, &input);
    else
        be->copy(be, g->scratch.z, z, (size_t)n * s.hidden * sizeof *z);
    launched(g, "experts_begin");
}

// A table goes through one of two pinned copies, so that the next call can be prepared while this one runs.
bool send_table(gpu_backend *g, experts_args *a, const ms_expert_batch *batches, uint32_t count) {
    const gpu_scratch *sc = &g->scratch;
    unsigned i = g->next_table;
    uint8_t *host = sc->table_host + i * table_scratch_need(&sc->need);
    size_t bytes = 0;
    if (!gpu_ok(g, gpuEventSynchronize(g->table_free[i]), "experts_run")) return false;
    experts_table_build(&a->table, &bytes, host, sc->table, batches, count, experts_most(a->wide));
    g->next_table = (i + 1) % TABLES;
    (void)gpu_ok(g, gpuMemcpyAsync(sc->table, host, bytes, gpuMemcpyHostToDevice, g->stream), "experts_run");
    return gpu_ok(g, gpuEventRecord(g->table_free[i], g->stream), "experts_run");
}

void experts_run(ms_backend *be, float *y, ms_expert_shape s, ms_situ act, const ms_expert_batch *batches,
                 uint32_t count) {
    gpu_backend *g = gpu_of(be);
    const gpu_scratch *sc = &g->scratch;
    bool same = s.hidden == g->experts_shape.hidden && s.inner == g->experts_shape.inner;
    if (!need(g, same && g->experts_n, "experts_run", "shape")) return;
    if (!need(g, experts_in_range(batches, count, g->experts_n, sc->need.pairs), "experts_run", "row or pair")) return;
    settle(g);
    experts_args a = {};
    a.hidden = s.hidden;
    a.inner = s.inner;
    a.beta = act.beta;
    a.linear_beta = act.linear_beta;
    a.z_q = (const uint8_t *)sc->z_q;
    a.z_s = sc->z_s;
    a.z = sc->z;
    a.act_q = (uint8_t *)sc->e_q;
    a.act_s = sc->e_s;
    a.act = sc->e_act;
    a.y = y;
    a.wide = is_fast(g) && g->wide && wide_mx_fits(g->experts_n, sc->need.pairs, s.hidden, s.inner);
    a.rows = g->experts_n;
    a.z_h = sc->z_h;
    a.z_hs = sc->z_hs;
    a.act_h = sc->e_h;
    a.act_hs = sc->e_hs;
    slots_use(g, batches, count);
    if (is_fast(g) && experts_all_single(batches, count))
        k_experts_singles(g->stream, &a, batches, count);
    else if (send_table(g, &a, batches, count))
        k_experts_run(g->stream, &a, is_fast(g));
    slots_used(g, batches, count);
    rows_written(g, y, (size_t)sc->need.pairs * s.hidden * sizeof *y);
    launched(g, "experts_run");
}

} // namespace

void set_moe_members(ms_backend *be) {
    be->router_topk = router_topk;
    be->experts_begin = experts_begin;
    be->experts_run = experts_run;
}
