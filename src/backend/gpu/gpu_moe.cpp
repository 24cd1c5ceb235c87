// gpu_moe.cpp - the router and the routed experts of a GPU backend.
//
// Threads and errors: as gpu_internal.h says.
#include "backend/gpu/gpu_internal.h"

#include "backend/gpu/k_experts.h"
#include "backend/gpu/k_router.h"

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
    k_router_args a = {};
    a.bias = f32_of(g, r->bias, experts, "router_topk", "bias");
    if (!a.bias || n == 0) return;
    settle(g);
    product_input in = {x, nullptr, nullptr, n, r->gate->cols};
    ms_product product = {r->gate, g->scratch.router, experts, true};
    run_products(g, &in, &product, 1);
    a.ids = ids;
    a.weights = weights;
    a.score = g->scratch.router;
    a.n = n;
    a.experts = experts;
    a.top_k = r->top_k;
    a.renormalize = r->renormalize;
    a.scale = r->scale;
    a.bad = g->flags + FLAG_ROUTER;
    a.bad_base = (g->router_calls < ROUTER_CALLS ? g->router_calls : (uint32_t)ROUTER_CALLS) << ROUTER_ROW_BITS;
    g->router_calls++;
    k_router(g->stream, &a);
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
    settle(g);
    if (is_fast(g))
        k_experts_begin(g->stream, (uint8_t *)g->scratch.z_q, g->scratch.z_s, z, n, s.hidden);
    else
        be->copy(be, g->scratch.z, z, (size_t)n * s.hidden * sizeof *z);
    launched(g, "experts_begin");
}

// A table goes through one of two pinned copies, so that the next call can be prepared while this one runs.
bool send_table(gpu_backend *g, expert_table *table, const ms_expert_batch *batches, uint32_t count) {
    const gpu_scratch *sc = &g->scratch;
    unsigned i = g->next_table;
    uint8_t *host = sc->table_host + i * table_scratch_need(&sc->need);
    size_t bytes = 0;
    if (!gpu_ok(g, gpuEventSynchronize(g->table_free[i]), "experts_run")) return false;
    experts_table_build(table, &bytes, host, sc->table, batches, count);
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
    slots_use(g, batches, count);
    if (is_fast(g) && experts_all_single(batches, count))
        k_experts_singles(g->stream, &a, batches, count);
    else if (send_table(g, &a.table, batches, count))
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
