// gpu_dense.cpp - norms, mixes, matrix products and sums of a GPU backend.
//
// Threads and errors: as gpu_internal.h says.
#include "backend/gpu/gpu_internal.h"

#include "backend/gpu/k_dense.h"
#include "backend/gpu/k_fp8.h"
#include "backend/gpu/k_rows.h"

static_assert((int)SUMS == (int)K_MIX_ADDS, "a mix makes the sums that wait");

namespace {

bool quantised(const gpu_backend *g, const ms_weight *w, bool exact_input, uint32_t n) {
    return is_fast(g) && w->format == MS_FORMAT_Q8 && !exact_input && !blas_takes(g, n);
}

void quantise_input(gpu_backend *g, product_input *in) {
    const gpu_held *h = &g->held;
    in->q = g->scratch.x_q;
    in->scales = g->scratch.x_s;
    if (h->x == in->x && h->n == in->n && h->cols == in->cols) return;
    k_quantise_args a = {};
    a.q = g->scratch.x_q;
    a.scales = g->scratch.x_s;
    a.x = in->x;
    a.n = in->n;
    a.cols = in->cols;
    k_quantise(g->stream, &a);
    rows_held(g, in->x, in->n, in->cols);
}

} // namespace

bool overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes) {
    return (uintptr_t)a < (uintptr_t)b + b_bytes && (uintptr_t)b < (uintptr_t)a + a_bytes;
}

uint64_t mix_scratch_need(const ms_scratch_need *) { return K_MIX_SOURCES; }

void settle(gpu_backend *g) {
    choice_settle(g);
    for (uint32_t i = 0; i < g->sum_count; i++) {
        k_add_args args = {g->sums[i].sum, g->sums[i].a, g->sums[i].b, g->sums[i].count};
        k_add(g->stream, &args);
        launched(g, "add");
    }
    g->sum_count = 0;
}

void rows_written(gpu_backend *g, const void *p, size_t bytes) {
    const gpu_held *h = &g->held;
    if (h->x && overlap(p, bytes, h->x, (size_t)h->n * h->cols * sizeof(float))) g->held = {};
}

bool rows_fit(const gpu_backend *g, uint32_t n, uint32_t cols) {
    return is_fast(g) && n <= g->scratch.need.rows && cols <= g->scratch.need.input_cols;
}

void rows_held(gpu_backend *g, const float *x, uint32_t n, uint32_t cols) { g->held = {x, n, cols}; }

// FP8 weights have kernels of their own; returns how many products are left, those of other weights in front.
static uint32_t run_fp8(gpu_backend *g, const product_input *in, ms_product *products, uint32_t count) {
    k_fp8_args a = {};
    uint32_t left = 0;
    a.x = in->x;
    a.n = in->n;
    a.cols = in->cols;
    for (uint32_t i = 0; i < count; i++) {
        const ms_product *p = &products[i];
        const ms_weight *w = p->weight;
        if (w->format == MS_FORMAT_FP8)
            a.product[a.count++] = {(const uint8_t *)w->data, w->scales, p->out, p->out_stride, w->rows, 0};
        else
            products[left++] = *p;
    }
    k_project_fp8(g->stream, &a);
    return left;
}

void run_products(gpu_backend *g, const product_input *in, const ms_product *products, uint32_t count) {
    for (uint32_t at = 0; at < count; at += K_PRODUCTS) {
        ms_product of[K_PRODUCTS];
        k_project_args a = {};
        a.count = count - at < K_PRODUCTS ? count - at : (uint32_t)K_PRODUCTS;
        for (uint32_t i = 0; i < a.count; i++) of[i] = products[at + i];
        a.count = run_fp8(g, in, of, run_blas(g, in, of, a.count));
        a.x = in->x;
        a.x_q = in->q;
        a.x_s = in->scales;
        a.n = in->n;
        a.cols = in->cols;
        for (uint32_t i = 0; i < a.count; i++) {
            const ms_product *p = &of[i];
            const ms_weight *w = p->weight;
            a.product[i] = {
                w->data, w->scales, p->out, p->out_stride, w->rows, mode_of(w, quantised(g, w, p->exact_input, in->n)),
                0};
        }
        a.wide = g->wide && wide_q8_pays(&a);
        if (a.count) k_project(g->stream, &a);
    }
}

void decay_settle(gpu_backend *g) {
    if (!g->decay.open) return;
    const product_input in = {g->decay.x, nullptr, nullptr, 1, g->decay.product.weight->cols};
    g->decay.open = false;
    run_products(g, &in, &g->decay.product, 1);
    launched(g, "project");
}

bool untouched(const gpu_backend *g, const void *p, size_t bytes) {
    for (uint32_t i = 0; i < g->wrote.count; i++)
        if (overlap(p, bytes, g->wrote.to[i].p, g->wrote.to[i].bytes)) return false;
    return g->wrote.known;
}

namespace {

// Whether a product may be what makes the decay inputs of a kda_range; see take_decay().
bool may_be_decay(const float *x, uint32_t n, const ms_product *p) {
    const ms_weight *w = p->weight;
    return n == 1 && p->exact_input && w->format == MS_FORMAT_Q8 && w->cols == DECAY_COLS && (uintptr_t)x % 16 == 0;
}

// After the launches of products.
void products_launched(gpu_backend *g, uint32_t n, const ms_product *products, uint32_t count) {
    launched(g, "project");
    g->wrote.known = count <= WROTE;
    g->wrote.count = 0;
    for (uint32_t i = 0; i < count; i++) {
        const ms_product *p = &products[i];
        const size_t bytes = ((size_t)(n - 1) * p->out_stride + p->weight->rows) * sizeof(float);
        rows_written(g, p->out, bytes);
        if (g->wrote.known) g->wrote.to[g->wrote.count++] = {p->out, bytes};
    }
}

// Where an operation leaves rows; their int8 form too when it has room.
k_row_out row_out(const gpu_backend *g, float *out, uint32_t n, uint32_t dim) {
    const bool room = rows_fit(g, n, dim);
    return {out, room ? g->scratch.x_q : nullptr, g->scratch.x_s};
}
// After it.  `quantised`: the kernel was one that leaves the int8 form.
void rows_out(gpu_backend *g, const k_row_out *to, uint32_t n, uint32_t dim, bool quantised) {
    if (to->q && quantised)
        rows_held(g, to->out, n, dim);
    else
        rows_written(g, to->out, (size_t)n * dim * sizeof(float));
}

void rms_norm(ms_backend *be, float *out, const float *x, uint32_t n, uint32_t dim, const ms_weight *w, float eps) {
    gpu_backend *g = gpu_of(be);
    settle(g);
    k_rms_norm_args a = {row_out(g, out, n, dim), x, vector_of(g, w, dim, "rms_norm"), n, dim, eps};
    if (!a.w.data || !n) return;
    rows_out(g, &a.to, n, dim, k_rms_norm(g->stream, &a));
    launched(g, "rms_norm");
}

// The sums that wait become part of a mix, if it can make them; otherwise they are made now.
void take_sums(gpu_backend *g, k_mix_args *a) {
    const size_t rows = (size_t)a->n * a->dim * sizeof(float);
    const size_t blocks = a->block_count ? ((a->block_count - 1) * a->block_stride) * sizeof(float) + rows : 0;
    bool ok = a->dim % 4 == 0;
    for (uint32_t i = 0; i < g->sum_count; i++) {
        const gpu_sum *s = &g->sums[i];
        const bool aligned = ((uintptr_t)s->sum | (uintptr_t)s->a | (uintptr_t)s->b) % 16 == 0;
        ok = ok && aligned && s->count == (size_t)a->n * a->dim && !overlap(s->sum, rows, a->blocks, blocks) &&
             !overlap(s->sum, rows, a->to.out, rows);
        // Columns are made one by one: what a sum writes is read there or nowhere.
        for (uint32_t j = 0; j < g->sum_count; j++) {
            const float *const read[] = {g->sums[j].a, g->sums[j].b, g->sums[j].sum, a->prefix};
            for (const float *r : read) ok = ok && (r == s->sum || !overlap(s->sum, rows, r, rows));
        }
    }
    if (!ok) settle(g);
    for (uint32_t i = 0; i < g->sum_count; i++)
        a->add[i] = {g->sums[i].sum, g->sums[i].a, g->sums[i].b, g->sums[i].count};
    a->adds = g->sum_count;
    g->sum_count = 0;
}

void mix_norm(ms_backend *be, float *out, const ms_mix *mix, uint32_t n, uint32_t dim, float eps,
              const ms_weight *norm) {
    gpu_backend *g = gpu_of(be);
    k_mix_args a = {};
    a.to = row_out(g, out, n, dim);
    a.blocks = mix->blocks;
    a.block_stride = mix->block_stride;
    a.block_count = mix->block_count;
    a.prefix = mix->prefix;
    a.n = n;
    a.dim = dim;
    a.eps = eps;
    a.scores = g->scratch.mix;
    bool sane = mix->block_count < K_MIX_SOURCES && n <= g->scratch.need.rows;
    if (!need(g, sane, "mix_norm", "block count or rows")) return;
    a.score = f32_of(g, mix->score, dim, "mix_norm", "score weight");
    if (!a.score || !n) return;
    if (norm && !(a.norm = vector_of(g, norm, dim, "mix_norm")).data) return;
    choice_settle(g);
    take_sums(g, &a);
    rows_out(g, &a.to, n, dim, k_mix_norm(g->stream, &a));
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
        quantise |= quantised(g, products[i].weight, products[i].exact_input, n);
    }
    if (n == 0) return;
    ms_product all[K_PRODUCTS];
    const ms_product *made = products;
    uint32_t made_count = count;
    if (count < K_PRODUCTS && choice_joins(g, x, n, products, count)) {
        for (uint32_t i = 0; i < count; i++) all[i] = products[i];
        all[made_count++] = g->choice.product;
        made = all;
        g->choice.made = true;
    } else {
        settle(g);
    }
    if (count == 1 && made == products && may_be_decay(x, n, products)) {
        g->decay = {true, x, *products};
        rows_written(g, products->out, products->weight->rows * sizeof(float));
        return;
    }
    if (quantise) quantise_input(g, &in);
    run_products(g, &in, made, made_count);
    products_launched(g, n, products, count);
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
    settle(g);
    product_input in = {x, nullptr, nullptr, n, cols};
    if (quantised(g, gate, false, n) || quantised(g, up, false, n)) quantise_input(g, &in);
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
    if (!quantised(g, down, false, n)) a.plain = s->gate; // each value is read by the lane that overwrites it
    k_quantise(g->stream, &a);
    product_input inner = {s->gate, s->act_q, s->act_s, n, width};
    ms_product last = {down, out, down->rows, false};
    run_products(g, &inner, &last, 1);
    rows_written(g, out, (size_t)n * down->rows * sizeof(float));
    launched(g, "mlp");
}

void add(ms_backend *be, float *sum, const float *a, const float *b, size_t count) {
    gpu_backend *g = gpu_of(be);
    if (!count) return;
    choice_settle(g);
    if (g->sum_count == SUMS) settle(g);
    g->sums[g->sum_count++] = {sum, a, b, count};
    rows_written(g, sum, count * sizeof(float));
}

void experts_reduce_norm(ms_backend *be, float *out, const float *y, const float *weights, uint32_t n, uint32_t k,
                         uint32_t hidden, const ms_weight *norm, float eps) {
    gpu_backend *g = gpu_of(be);
    settle(g);
    k_reduce_args a = {row_out(g, out, n, hidden), y, weights, {}, n, k, hidden, eps};
    if (norm && !(a.norm = vector_of(g, norm, hidden, "experts_reduce_norm")).data) return;
    if (!n) return;
    rows_out(g, &a.to, n, hidden, k_reduce(g->stream, &a));
    launched(g, "experts_reduce_norm");
}

} // namespace

void set_dense_members(ms_backend *be) {
    be->rms_norm = rms_norm;
    be->mix_norm = mix_norm;
    be->project = project;
    be->mlp = mlp;
    be->add = add;
    be->experts_reduce_norm = experts_reduce_norm;
}
