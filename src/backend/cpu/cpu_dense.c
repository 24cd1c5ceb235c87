/* cpu_dense.c: norms, mixes, matrix products and the dense MLP (docs/numerics.md, sections 2 and 4). */
#include "backend/cpu/cpu.h"

#include "base/bytes.h"
#include "base/fmath.h"
#include "quant/q8.h"

enum { CHUNK_STEP = 8, CACHE_CHUNK_ROWS = 64, TASKS_PER_THREAD = 4 };

/* ------------------------------------------------------------------ norms and mixes */

static float rms_factor(const ms_cpu_kernels *k, const float *x, uint32_t dim, float eps) {
    return 1.0f / sqrtf(k->dot(x, x, dim) / (float)dim + eps);
}

typedef struct norm_job {
    const ms_cpu_kernels *k;
    float *out;
    const float *x, *w;
    uint32_t dim;
    float eps;
} norm_job;

static void norm_task(void *arg, size_t i, unsigned worker) {
    const norm_job *j = arg;
    (void)worker;
    const float *x = j->x + i * j->dim;
    j->k->scale_mul(j->out + i * j->dim, x, rms_factor(j->k, x, j->dim, j->eps), j->w, j->dim);
}

void cpu_rms_norm(ms_backend *be, float *out, const float *x, uint32_t n, uint32_t dim, const ms_weight *w, float eps) {
    cpu_backend *c = cpu_of(be);
    norm_job job = {c->k, out, x, cpu_vector(c, w, dim, "rms_norm"), dim, eps};
    if (job.w) cpu_run(c, norm_task, &job, n);
}

typedef struct mix_job {
    const ms_cpu_kernels *k;
    float *out;
    const ms_mix *mix;
    const float *score, *norm; /* norm: NULL for the bare mix */
    uint32_t dim;
    float eps;
} mix_job;

static const float *mix_source(const mix_job *j, uint32_t source, size_t row) {
    if (source == j->mix->block_count) return j->mix->prefix + row * j->dim;
    return j->mix->blocks + source * j->mix->block_stride + row * j->dim;
}

static void mix_task(void *arg, size_t i, unsigned worker) {
    const mix_job *j = arg;
    (void)worker;
    uint32_t sources = j->mix->block_count + 1;
    float p[CPU_MIX_SOURCES];
    float *out = j->out + i * j->dim;
    for (uint32_t s = 0; s < sources; s++) {
        const float *v = mix_source(j, s, i);
        p[s] = j->k->dot(j->score, v, j->dim) * rms_factor(j->k, v, j->dim, j->eps);
    }
    float m = p[0], l = 0.0f;
    for (uint32_t s = 1; s < sources; s++) m = p[s] > m ? p[s] : m;
    for (uint32_t s = 0; s < sources; s++) {
        p[s] = ms_exp(p[s] - m);
        l = l + p[s];
    }
    memset(out, 0, j->dim * sizeof *out);
    for (uint32_t s = 0; s < sources; s++) j->k->axpy(out, p[s] / l, mix_source(j, s, i), j->dim);
    if (j->norm) j->k->scale_mul(out, out, rms_factor(j->k, out, j->dim, j->eps), j->norm, j->dim);
}

void cpu_mix_norm(ms_backend *be, float *out, const ms_mix *mix, uint32_t n, uint32_t dim, float eps,
                  const ms_weight *norm) {
    cpu_backend *c = cpu_of(be);
    if (!cpu_need(c, mix->block_count < CPU_MIX_SOURCES, "mix_norm", "block count")) return;
    mix_job job = {c->k, out, mix, cpu_f32(c, mix->score, dim, "mix_norm", "score weight"), NULL, dim, eps};
    if (!job.score) return;
    if (norm && !(job.norm = cpu_vector(c, norm, dim, "mix_norm"))) return;
    cpu_run(c, mix_task, &job, n);
}

/* ------------------------------------------------------------------ products */

/* Row r of a Q8 or FP8 weight as f32. */
static void decode_row(const cpu_backend *c, float *out, const ms_weight *w, uint32_t r) {
    for (uint32_t g = 0; g < ms_q8_groups(w->cols); g++) {
        size_t at = ms_q8_data_offset(w->rows, w->cols, r, g);
        float *x = out + (size_t)g * MS_Q8_WEIGHT_GROUP, scale = w->scales[ms_q8_scale_index(w->rows, w->cols, r, g)];
        if (w->format == MS_FORMAT_FP8) c->k->from_fp8(x, (const uint8_t *)w->data + at, scale, ms_q8_group_cols(w->cols, g));
        else c->k->from_int8(x, (const int8_t *)w->data + at, scale, ms_q8_group_cols(w->cols, g));
    }
}

/* Such rows as exact values: each is decoded once for all input rows, two at a time. */
static void decoded_rows(const cpu_backend *c, const ms_weight *w, const cpu_input *in, uint32_t x_first,
                         uint32_t x_count, uint32_t first, uint32_t last, float *out, size_t out_stride,
                         unsigned worker) {
    float *rows = cpu_worker(c, worker);
    for (uint32_t r = first; r < last; r += 2) {
        uint32_t count = last - r < 2 ? 1 : 2;
        for (uint32_t i = 0; i < count; i++) decode_row(c, rows + (size_t)i * w->cols, w, r + i);
        c->k->rows_f32(out + (r - first), out_stride, in->x + x_first * in->x_stride, in->x_stride, x_count, rows,
                       w->cols, count, w->cols);
    }
}

void cpu_product_rows(const cpu_backend *c, const ms_weight *w, bool quantised, const cpu_input *in, uint32_t x_first,
                      uint32_t x_count, uint32_t first, uint32_t last, float *out, size_t out_stride, unsigned worker) {
    const float *x = in->x + x_first * in->x_stride;
    size_t at = (size_t)first * w->cols;
    switch (w->format) {
    case MS_FORMAT_F32:
        c->k->rows_f32(out, out_stride, x, in->x_stride, x_count, (const float *)w->data + at, w->cols, last - first,
                       w->cols);
        break;
    case MS_FORMAT_BF16:
        c->k->rows_bf16(out, out_stride, x, in->x_stride, x_count, (const uint16_t *)w->data + at, w->cols,
                        last - first, w->cols);
        break;
    case MS_FORMAT_Q8:
    case MS_FORMAT_FP8:
        if (!quantised) {
            decoded_rows(c, w, in, x_first, x_count, first, last, out, out_stride, worker);
            break;
        }
        for (uint32_t r = first; r < last; r += MS_Q8_BLOCK_ROWS) {
            ms_cpu_q8 q = in->q;
            q.first = x_first;
            c->k->block_q8(out + (r - first), out_stride, &q, x_count,
                           (const int8_t *)w->data + ms_q8_data_offset(w->rows, w->cols, r, 0),
                           w->scales + ms_q8_scale_index(w->rows, w->cols, r, 0), ms_q8_block_rows(w->rows, r),
                           w->cols);
        }
        break;
    }
}

typedef struct quantise_job {
    const ms_cpu_kernels *k;
    int8_t *q;
    float *scales;
    const float *x;
    uint32_t cols, groups;
} quantise_job;

static void quantise_task(void *arg, size_t i, unsigned worker) {
    const quantise_job *j = arg;
    (void)worker;
    j->k->quantize(j->q + i * j->cols, j->scales + i * j->groups, j->x + i * j->cols, j->cols, MS_Q8_WEIGHT_GROUP);
}

/* Quantises x [n][cols] into the scratch for project() and mlp(). */
static void quantise_input(cpu_backend *c, cpu_input *in, uint32_t cols) {
    uint32_t groups = ms_q8_groups(cols);
    quantise_job job = {c->k, c->scratch.x_q, c->scratch.x_s, in->x, cols, groups};
    cpu_run(c, quantise_task, &job, in->n);
    in->q = (ms_cpu_q8){.q = job.q, .q_stride = cols, .scales = job.scales, .scale_stride = groups};
}

/* Rows of a task, whole Q8 blocks: small enough to share the work and to stay in a cache, but not below the work that
 * is worth handing over. */
static uint32_t chunk_rows(const cpu_backend *c, uint64_t rows, uint32_t cols, uint32_t n) {
    uint64_t least = CPU_TASK_MACS / ((uint64_t)cols * n) / CHUNK_STEP * CHUNK_STEP + CHUNK_STEP;
    uint64_t share = rows / ((uint64_t)c->base.threads * TASKS_PER_THREAD) / CHUNK_STEP * CHUNK_STEP;
    uint64_t chunk = share < CACHE_CHUNK_ROWS ? share : CACHE_CHUNK_ROWS;
    return (uint32_t)(chunk < least ? least : chunk);
}

typedef struct project_job {
    const cpu_backend *c;
    const ms_product *products;
    uint32_t count, chunk;
    cpu_input in;
} project_job;

static uint32_t chunks_of(const ms_product *p, uint32_t chunk) {
    return p->weight->rows / chunk + (p->weight->rows % chunk != 0);
}

static void project_task(void *arg, size_t task, unsigned worker) {
    const project_job *j = arg;
    const ms_product *p = j->products;
    while (task >= chunks_of(p, j->chunk)) task -= chunks_of(p++, j->chunk);
    uint32_t first = (uint32_t)task * j->chunk;
    uint32_t last = p->weight->rows - first < j->chunk ? p->weight->rows : first + j->chunk;
    bool quantised = cpu_quantised(j->c, p->weight, p->exact_input);
    for (uint32_t x = 0; x < j->in.n; x += CPU_X_BLOCK) {
        uint32_t count = j->in.n - x < CPU_X_BLOCK ? j->in.n - x : CPU_X_BLOCK;
        cpu_product_rows(j->c, p->weight, quantised, &j->in, x, count, first, last, p->out + x * p->out_stride + first,
                         p->out_stride, worker);
    }
}

void cpu_project(ms_backend *be, const float *x, uint32_t n, const ms_product *products, uint32_t count) {
    cpu_backend *c = cpu_of(be);
    const ms_scratch_need *need = &c->scratch.need;
    uint64_t rows = 0;
    uint32_t cols = count ? products[0].weight->cols : 0;
    bool quantise = false;
    if (!cpu_need(c, n <= need->rows && cols <= need->input_cols, "project", "input")) return;
    for (uint32_t i = 0; i < count; i++) {
        if (!cpu_need(c, products[i].weight->cols == cols, "project", "width of a product")) return;
        rows += products[i].weight->rows;
        quantise |= cpu_quantised(c, products[i].weight, products[i].exact_input);
    }
    if (n == 0 || count == 0) return;
    project_job job = {c, products, count, chunk_rows(c, rows, cols, n), {.x = x, .x_stride = cols, .n = n}};
    if (quantise) quantise_input(c, &job.in, cols);
    size_t tasks = 0;
    for (uint32_t i = 0; i < count; i++) tasks += chunks_of(&products[i], job.chunk);
    cpu_run(c, project_task, &job, tasks);
}

/* ------------------------------------------------------------------ MLP */

typedef struct mlp_job {
    const cpu_backend *c;
    const ms_weight *gate, *up;
    ms_situ act;
    bool quantise_act;
    cpu_input in;
} mlp_job;

/* Gate, up and activation of 128 inner columns, which are one group of the down product's input. */
static void mlp_task(void *arg, size_t task, unsigned worker) {
    const mlp_job *j = arg;
    const cpu_backend *c = j->c;
    const cpu_scratch *s = &c->scratch;
    uint32_t width = j->gate->rows, groups = ms_q8_groups(width);
    uint32_t first = (uint32_t)task * CPU_MLP_CHUNK, n = ms_q8_group_cols(width, (uint32_t)task);
    float *gate = (float *)cpu_worker(c, worker) + 2 * s->max_cols, *up = gate + CPU_X_BLOCK * CPU_MLP_CHUNK;
    for (uint32_t x = 0; x < j->in.n; x += CPU_X_BLOCK) {
        uint32_t count = j->in.n - x < CPU_X_BLOCK ? j->in.n - x : CPU_X_BLOCK;
        cpu_product_rows(c, j->gate, cpu_quantised(c, j->gate, false), &j->in, x, count, first, first + n, gate,
                         CPU_MLP_CHUNK, worker);
        cpu_product_rows(c, j->up, cpu_quantised(c, j->up, false), &j->in, x, count, first, first + n, up,
                         CPU_MLP_CHUNK, worker);
        for (uint32_t i = 0; i < count; i++) {
            size_t row = (size_t)x + i;
            float *act = s->act + row * width + first;
            cpu_activate(c->k, j->act, act, gate + i * CPU_MLP_CHUNK, up + i * CPU_MLP_CHUNK, n);
            if (j->quantise_act)
                c->k->quantize(s->act_q + row * width + first, s->act_s + row * groups + task, act, n, CPU_MLP_CHUNK);
        }
    }
}

void cpu_mlp(ms_backend *be, float *out, const float *x, uint32_t n, const ms_weight *gate, const ms_weight *up,
             const ms_weight *down, ms_situ act) {
    cpu_backend *c = cpu_of(be);
    const cpu_scratch *s = &c->scratch;
    uint32_t cols = gate->cols, width = gate->rows;
    bool same = up->cols == cols && up->rows == width && down->cols == width;
    if (!cpu_need(c, same, "mlp", "shape of a weight")) return;
    if (!cpu_need(c, n <= s->need.rows && cols <= s->need.input_cols, "mlp", "input")) return;
    if (!cpu_need(c, width <= s->need.mlp_width, "mlp", "inner width")) return;
    if (n == 0) return;
    mlp_job job = {c, gate, up, act, cpu_quantised(c, down, false), {.x = x, .x_stride = cols, .n = n}};
    if (cpu_quantised(c, gate, false) || cpu_quantised(c, up, false)) quantise_input(c, &job.in, cols);
    cpu_run(c, mlp_task, &job, ms_q8_groups(width));

    ms_product product = {.weight = down, .out = out, .out_stride = down->rows};
    project_job second = {
        c, &product, 1, chunk_rows(c, down->rows, width, n), {.x = s->act, .x_stride = width, .n = n}};
    second.in.q =
        (ms_cpu_q8){.q = s->act_q, .q_stride = width, .scales = s->act_s, .scale_stride = ms_q8_groups(width)};
    cpu_run(c, project_task, &second, chunks_of(&product, second.chunk));
}

/* ------------------------------------------------------------------ sums */

enum { ADD_CHUNK = 1 << 14 };

typedef struct add_job {
    const ms_cpu_kernels *k;
    float *sum;
    const float *a, *b;
    size_t count;
} add_job;

static void add_task(void *arg, size_t task, unsigned worker) {
    const add_job *j = arg;
    (void)worker;
    size_t at = task * ADD_CHUNK, n = j->count - at < ADD_CHUNK ? j->count - at : ADD_CHUNK;
    j->k->add(j->sum + at, j->a + at, j->b + at, n);
}

void cpu_add(ms_backend *be, float *sum, const float *a, const float *b, size_t count) {
    cpu_backend *c = cpu_of(be);
    add_job job = {c->k, sum, a, b, count};
    cpu_run(c, add_task, &job, count / ADD_CHUNK + (count % ADD_CHUNK != 0));
}
