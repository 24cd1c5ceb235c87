// gpu_dense.cpp - norms, mixes, matrix products and sums of a GPU backend.
//
// Threads and errors: as gpu_internal.h says.
#include "backend/gpu/gpu_internal.h"

#include "backend/gpu/k_dense.h"

namespace {

bool quantised(const gpu_backend *g, const ms_weight *w, bool exact_input) {
    return is_fast(g) && w->format == MS_FORMAT_Q8 && !exact_input;
}

void quantise_input(gpu_backend *g, product_input *in) {
    k_quantise_args a = {};
    a.q = g->scratch.x_q;
    a.scales = g->scratch.x_s;
    a.x = in->x;
    a.n = in->n;
    a.cols = in->cols;
    k_quantise(g->stream, &a);
    in->q = a.q;
    in->scales = a.scales;
}

} // namespace

void run_products(gpu_backend *g, const product_input *in, const ms_product *products, uint32_t count) {
    for (uint32_t at = 0; at < count; at += K_PRODUCTS) {
        k_project_args a = {};
        a.count = count - at < K_PRODUCTS ? count - at : (uint32_t)K_PRODUCTS;
        a.x = in->x;
        a.x_q = in->q;
        a.x_s = in->scales;
        a.n = in->n;
        a.cols = in->cols;
        for (uint32_t i = 0; i < a.count; i++) {
            const ms_product *p = &products[at + i];
            const ms_weight *w = p->weight;
            a.product[i] = {
                w->data, w->scales, p->out, p->out_stride, w->rows, mode_of(w, quantised(g, w, p->exact_input)), 0};
        }
        k_project(g->stream, &a);
    }
}

namespace {

void rms_norm(ms_backend *be, float *out, const float *x, uint32_t n, uint32_t dim, const ms_weight *w, float eps) {
    gpu_backend *g = gpu_of(be);
    k_rms_norm_args a = {out, x, vector_of(g, w, dim, "rms_norm"), n, dim, eps};
    if (!a.w.data) return;
    k_rms_norm(g->stream, &a);
    launched(g, "rms_norm");
}

void mix_norm(ms_backend *be, float *out, const ms_mix *mix, uint32_t n, uint32_t dim, float eps,
              const ms_weight *norm) {
    gpu_backend *g = gpu_of(be);
    if (!need(g, mix->block_count < K_MIX_SOURCES, "mix_norm", "block count")) return;
    k_mix_args a = {};
    a.out = out;
    a.blocks = mix->blocks;
    a.block_stride = mix->block_stride;
    a.block_count = mix->block_count;
    a.prefix = mix->prefix;
    a.score = f32_of(g, mix->score, dim, "mix_norm", "score weight");
    if (!a.score) return;
    if (norm && !(a.norm = vector_of(g, norm, dim, "mix_norm")).data) return;
    a.n = n;
    a.dim = dim;
    a.eps = eps;
    k_mix_norm(g->stream, &a);
    launched(g, "mix_norm");
}

void project(ms_backend *be, const float *x, uint32_t n, const ms_product *products, uint32_t count) {
    gpu_backend *g = gpu_of(be);
    product_input in = {x, nullptr, nullptr, n, count ? products[0].weight->cols : 0};
    bool quantise = false;
    bool fits = n <= g->scratch.need.rows && in.cols <= g->scratch.need.input_cols;
    if (!need(g, fits, "project", "input")) return;
    for (uint32_t i = 0; i < count; i++) {
        if (!need(g, products[i].weight->cols == in.cols, "project", "width of a product")) return;
        quantise |= quantised(g, products[i].weight, products[i].exact_input);
    }
    if (n == 0) return;
    if (quantise) quantise_input(g, &in);
    run_products(g, &in, products, count);
    launched(g, "project");
}

void mlp(ms_backend *be, float *out, const float *x, uint32_t n, const ms_weight *gate, const ms_weight *up,
         const ms_weight *down, ms_situ act) {
    gpu_backend *g = gpu_of(be);
    const gpu_scratch *s = &g->scratch;
    uint32_t cols = gate->cols, width = gate->rows;
    bool same = up->cols == cols && up->rows == width && down->cols == width;
    if (!need(g, same, "mlp", "shape of a weight")) return;
    if (!need(g, n <= s->need.rows && cols <= s->need.input_cols, "mlp", "input")) return;
    if (!need(g, width <= s->need.mlp_width, "mlp", "inner width")) return;
    if (n == 0) return;
    product_input in = {x, nullptr, nullptr, n, cols};
    if (quantised(g, gate, false) || quantised(g, up, false)) quantise_input(g, &in);
    ms_product first[2] = {{gate, s->gate, width, false}, {up, s->up, width, false}};
    run_products(g, &in, first, 2);

    k_quantise_args a = {};
    a.x = s->gate;
    a.up = s->up;
    a.beta = act.beta;
    a.linear_beta = act.linear_beta;
    a.n = n;
    a.cols = width;
    a.q = s->act_q;
    a.scales = s->act_s;
    if (!quantised(g, down, false)) a.plain = s->gate; // each value is read by the lane that overwrites it
    k_quantise(g->stream, &a);
    product_input inner = {s->gate, s->act_q, s->act_s, n, width};
    ms_product last = {down, out, down->rows, false};
    run_products(g, &inner, &last, 1);
    launched(g, "mlp");
}

void add(ms_backend *be, float *sum, const float *a, const float *b, size_t count) {
    gpu_backend *g = gpu_of(be);
    k_add_args args = {sum, a, b, count};
    k_add(g->stream, &args);
    launched(g, "add");
}

} // namespace

void set_dense_members(ms_backend *be) {
    be->rms_norm = rms_norm;
    be->mix_norm = mix_norm;
    be->project = project;
    be->mlp = mlp;
    be->add = add;
}
