/* cpu_moe.c: router, experts and their weighted sum (docs/numerics.md, section 4). */
#include "backend/cpu/cpu.h"

#include <stdatomic.h>

#include "base/bytes.h"
#include "base/fmath.h"

/* ------------------------------------------------------------------ router */

typedef struct router_job {
    const cpu_backend *c;
    const ms_router *r;
    const float *bias;
    uint32_t *ids;
    float *weights;
} router_job;

/* Keeps the k largest (value, id) seen, best first.  Ids arrive ascending, so an equal value goes behind. */
static void keep_best(float *best, uint32_t *best_ids, uint32_t *kept, uint32_t k, float value, uint32_t id) {
    if (*kept == k && !(value > best[k - 1])) return;
    uint32_t at = *kept < k ? (*kept)++ : k - 1;
    for (; at > 0 && value > best[at - 1]; at--) {
        best[at] = best[at - 1];
        best_ids[at] = best_ids[at - 1];
    }
    best[at] = value;
    best_ids[at] = id;
}

static void sort_ids(uint32_t *ids, uint32_t k) {
    for (uint32_t i = 1; i < k; i++) {
        uint32_t id = ids[i], at = i;
        for (; at > 0 && ids[at - 1] > id; at--) ids[at] = ids[at - 1];
        ids[at] = id;
    }
}

static bool is_finite(float x) { return (ms_f32_bits(x) & 0x7f800000u) != 0x7f800000u; }

static void router_task(void *arg, size_t row, unsigned worker) {
    const router_job *j = arg;
    uint32_t experts = j->r->gate->rows, k = j->r->top_k, kept = 0;
    uint32_t *ids = j->ids + row * k;
    float *weights = j->weights + row * k, *score = j->c->scratch.router + row * experts;
    float *best = cpu_worker(j->c, worker);
    bool bad = false;
    j->c->k->sigmoid(score, score, experts);
    for (uint32_t e = 0; e < experts; e++) {
        float choice = score[e] + j->bias[e];
        if (!is_finite(choice))
            bad = true;
        else
            keep_best(best, ids, &kept, k, choice, e);
    }
    j->c->scratch.router_bad[row] = bad;
    if (bad) {
        for (uint32_t i = 0; i < k; i++) {
            ids[i] = i;
            weights[i] = 0.0f;
        }
        return;
    }
    sort_ids(ids, k);
    float l = 0.0f;
    for (uint32_t i = 0; i < k; i++) l = l + score[ids[i]];
    l = l + 1e-20f;
    for (uint32_t i = 0; i < k; i++) {
        float w = score[ids[i]];
        weights[i] = (j->r->renormalize ? w / l : w) * j->r->scale;
    }
}

void cpu_router_topk(ms_backend *be, uint32_t *ids, float *weights, const float *x, uint32_t n, const ms_router *r) {
    cpu_backend *c = cpu_of(be);
    uint32_t experts = r->gate->rows;
    bool fits = n <= c->scratch.need.rows && experts <= c->scratch.need.router_experts;
    if (!cpu_need(c, fits, "router_topk", "rows or experts")) return;
    if (!cpu_need(c, r->top_k <= experts && !r->gate->scales, "router_topk", "gate or top_k")) return;
    router_job job = {c, r, cpu_f32(c, r->bias, experts, "router_topk", "bias"), ids, weights};
    if (!job.bias || n == 0) return;
    ms_product product = {.weight = r->gate, .out = c->scratch.router, .out_stride = experts, .exact_input = true};
    cpu_project(be, x, n, &product, 1);
    cpu_run(c, router_task, &job, n);
    for (uint32_t i = 0; i < n; i++) {
        if (!c->scratch.router_bad[i]) continue;
        cpu_keep_failure(c, MS_ERR_NUMERIC, "router: row %u: expected finite scores, found NaN or infinity", i);
        return;
    }
}

/* ------------------------------------------------------------------ experts */

typedef struct install_job {
    void *slot;
    const uint8_t *source;
    ms_expert_shape s;
    uint32_t tiles, step; /* tiles a task */
    atomic_bool bad;
} install_job;

static void install_task(void *arg, size_t task, unsigned worker) {
    install_job *j = arg;
    uint32_t first = (uint32_t)task * j->step, last = j->tiles - first < j->step ? j->tiles : first + j->step;
    (void)worker;
    for (uint32_t tile = first; tile < last; tile++)
        if (!ms_expert_install_tile(j->slot, j->source, j->s, tile))
            atomic_store_explicit(&j->bad, true, memory_order_relaxed);
}

/* On all threads: one moves bytes more slowly than a fast drive delivers them. */
ms_status cpu_install(ms_backend *be, void *slot, const uint8_t *staging, ms_expert_shape s, ms_error *err) {
    if (!ms_expert_shape_valid(s))
        return ms_fail(err, MS_ERR_INTERNAL, "expert of %u x %u: expected multiples of 32", s.hidden, s.inner);
    install_job job = {.slot = slot, .source = staging, .s = s, .tiles = ms_expert_tiles(s)};
    job.step = (uint32_t)(CPU_INSTALL_BYTES / (ms_expert_bytes(s) / job.tiles)) + 1;
    cpu_run(cpu_of(be), install_task, &job, job.tiles / job.step + (job.tiles % job.step != 0));
    return job.bad ? ms_expert_check(staging, s, err) : MS_OK;
}

typedef struct begin_job {
    const cpu_backend *c;
    const float *z;
    uint32_t hidden;
} begin_job;

static void begin_task(void *arg, size_t i, unsigned worker) {
    const begin_job *j = arg;
    const cpu_scratch *s = &j->c->scratch;
    (void)worker;
    const float *z = j->z + i * j->hidden;
    if (cpu_fast(j->c))
        j->c->k->quantize_split(s->z_q + i * j->hidden, s->z_s + i * (j->hidden / CPU_TILE), z, j->hidden);
    else
        memcpy(s->z + i * j->hidden, z, j->hidden * sizeof *z);
}

void cpu_experts_begin(ms_backend *be, const float *z, uint32_t n, ms_expert_shape s) {
    cpu_backend *c = cpu_of(be);
    const ms_scratch_need *need = &c->scratch.need;
    bool fits = ms_expert_shape_valid(s) && s.hidden <= need->expert.hidden && s.inner <= need->expert.inner;
    c->experts_n = 0;
    if (!cpu_need(c, fits && n <= need->rows, "experts_begin", "rows or expert shape")) return;
    c->experts_n = n;
    c->experts_shape = s;
    begin_job job = {c, z, s.hidden};
    cpu_run(c, begin_task, &job, n);
}

typedef struct experts_job {
    const cpu_backend *c;
    ms_expert_shape s;
    ms_situ act;
    const ms_expert_batch *batches;
    uint32_t tiles, step, per_batch; /* of the phase: tiles of a matrix, tiles a task, tasks a batch */
    float *y;
} experts_job;

static const uint8_t *tile_of(const experts_job *j, const ms_expert_batch *b, ms_expert_matrix m, uint32_t tile) {
    return (const uint8_t *)b->slot + ms_expert_tile_offset(j->s, m, tile);
}

/* First phase, fast: 32 inner rows, which are one group of the second phase's input. */
static void inner_tile_fast(const experts_job *j, const ms_expert_batch *b, uint32_t tile, unsigned worker) {
    const cpu_backend *c = j->c;
    const cpu_scratch *s = &c->scratch;
    uint32_t in_groups = j->s.hidden / CPU_TILE, out_groups = j->s.inner / CPU_TILE;
    float *gate = (float *)cpu_worker(c, worker) + 2 * s->max_cols, *up = gate + CPU_X_BLOCK * CPU_TILE;
    ms_cpu_q8 x = {.q = s->z_q, .q_stride = j->s.hidden, .scales = s->z_s, .scale_stride = in_groups};
    for (uint32_t at = 0; at < b->count; at += CPU_X_BLOCK) {
        uint32_t count = b->count - at < CPU_X_BLOCK ? b->count - at : CPU_X_BLOCK;
        x.index = b->row + at;
        c->k->tile_mxfp4(gate, CPU_TILE, &x, count, tile_of(j, b, MS_W1, tile), in_groups);
        c->k->tile_mxfp4(up, CPU_TILE, &x, count, tile_of(j, b, MS_W3, tile), in_groups);
        for (uint32_t i = 0; i < count; i++) {
            float *g = gate + i * CPU_TILE;
            size_t pair = b->pair[at + i];
            cpu_activate(c->k, j->act, g, g, up + i * CPU_TILE, CPU_TILE);
            c->k->quantize_split(s->e_q + pair * j->s.inner + tile * CPU_TILE, s->e_s + pair * out_groups + tile, g,
                                 CPU_TILE);
        }
    }
}

/* First phase, reference: the weight rows are decoded once for all input rows. */
static void inner_tile_exact(const experts_job *j, const ms_expert_batch *b, uint32_t tile, unsigned worker) {
    const cpu_backend *c = j->c;
    const cpu_scratch *s = &c->scratch;
    float *gate_row = cpu_worker(c, worker), *up_row = gate_row + s->max_cols;
    for (uint32_t r = tile * CPU_TILE; r < (tile + 1) * CPU_TILE; r++) {
        ms_expert_row(gate_row, b->slot, j->s, MS_W1, r);
        ms_expert_row(up_row, b->slot, j->s, MS_W3, r);
        for (uint32_t i = 0; i < b->count; i++) {
            const float *z = s->z + (size_t)b->row[i] * j->s.hidden;
            float gate = c->k->dot(z, gate_row, j->s.hidden), up = c->k->dot(z, up_row, j->s.hidden);
            cpu_activate(c->k, j->act, s->e_act + (size_t)b->pair[i] * j->s.inner + r, &gate, &up, 1);
        }
    }
}

static void inner_task(void *arg, size_t task, unsigned worker) {
    const experts_job *j = arg;
    const ms_expert_batch *b = &j->batches[task / j->per_batch];
    uint32_t first = (uint32_t)(task % j->per_batch) * j->step;
    uint32_t last = j->tiles - first < j->step ? j->tiles : first + j->step;
    for (uint32_t tile = first; tile < last; tile++) {
        if (cpu_fast(j->c))
            inner_tile_fast(j, b, tile, worker);
        else
            inner_tile_exact(j, b, tile, worker);
    }
}

static void outer_tile_fast(const experts_job *j, const ms_expert_batch *b, uint32_t tile, unsigned worker) {
    const cpu_scratch *s = &j->c->scratch;
    uint32_t groups = j->s.inner / CPU_TILE;
    float *block = (float *)cpu_worker(j->c, worker) + 2 * s->max_cols;
    ms_cpu_q8 x = {.q = s->e_q, .q_stride = j->s.inner, .scales = s->e_s, .scale_stride = groups};
    for (uint32_t at = 0; at < b->count; at += CPU_X_BLOCK) {
        uint32_t count = b->count - at < CPU_X_BLOCK ? b->count - at : CPU_X_BLOCK;
        x.index = b->pair + at;
        j->c->k->tile_mxfp4(block, CPU_TILE, &x, count, tile_of(j, b, MS_W2, tile), groups);
        for (uint32_t i = 0; i < count; i++)
            memcpy(j->y + (size_t)b->pair[at + i] * j->s.hidden + tile * CPU_TILE, block + i * CPU_TILE,
                   CPU_TILE * sizeof *block);
    }
}

static void outer_tile_exact(const experts_job *j, const ms_expert_batch *b, uint32_t tile, unsigned worker) {
    const cpu_scratch *s = &j->c->scratch;
    float *row = cpu_worker(j->c, worker);
    for (uint32_t r = tile * CPU_TILE; r < (tile + 1) * CPU_TILE; r++) {
        ms_expert_row(row, b->slot, j->s, MS_W2, r);
        for (uint32_t i = 0; i < b->count; i++) {
            size_t pair = b->pair[i];
            j->y[pair * j->s.hidden + r] = j->c->k->dot(s->e_act + pair * j->s.inner, row, j->s.inner);
        }
    }
}

static void outer_task(void *arg, size_t task, unsigned worker) {
    const experts_job *j = arg;
    const ms_expert_batch *b = &j->batches[task / j->per_batch];
    uint32_t first = (uint32_t)(task % j->per_batch) * j->step;
    uint32_t last = j->tiles - first < j->step ? j->tiles : first + j->step;
    for (uint32_t tile = first; tile < last; tile++) {
        if (cpu_fast(j->c))
            outer_tile_fast(j, b, tile, worker);
        else
            outer_tile_exact(j, b, tile, worker);
    }
}

/* Every index is used as an offset: all are checked first. */
static bool batches_fit(const cpu_backend *c, const ms_expert_batch *batches, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t p = 0; p < batches[i].count; p++)
            if (batches[i].row[p] >= c->experts_n || batches[i].pair[p] >= c->scratch.need.pairs) return false;
    return true;
}

static void set_phase(experts_job *j, uint32_t tiles, uint64_t tile_macs) {
    j->tiles = tiles;
    j->step = (uint32_t)(CPU_TASK_MACS / tile_macs) + 1;
    j->per_batch = tiles / j->step + (tiles % j->step != 0);
}

void cpu_experts_run(ms_backend *be, float *y, ms_expert_shape s, ms_situ act, const ms_expert_batch *batches,
                     uint32_t count) {
    cpu_backend *c = cpu_of(be);
    bool same = s.hidden == c->experts_shape.hidden && s.inner == c->experts_shape.inner;
    if (!cpu_need(c, same && batches_fit(c, batches, count), "experts_run", "shape, row or pair")) return;
    experts_job job = {.c = c, .s = s, .act = act, .batches = batches, .y = y};
    set_phase(&job, s.inner / CPU_TILE, 2 * (uint64_t)CPU_TILE * s.hidden);
    cpu_run(c, inner_task, &job, (size_t)count * job.per_batch);
    set_phase(&job, s.hidden / CPU_TILE, (uint64_t)CPU_TILE * s.inner);
    cpu_run(c, outer_task, &job, (size_t)count * job.per_batch);
}

typedef struct reduce_job {
    const ms_cpu_kernels *k;
    float *out;
    const float *y, *weights, *norm; /* norm: NULL for the bare sum */
    uint32_t per_row, hidden;
    float eps;
} reduce_job;

static void reduce_task(void *arg, size_t i, unsigned worker) {
    const reduce_job *j = arg;
    (void)worker;
    float *u = j->out + i * j->hidden;
    memset(u, 0, j->hidden * sizeof *u);
    for (uint32_t e = 0; e < j->per_row; e++)
        j->k->axpy(u, j->weights[i * j->per_row + e], j->y + (i * j->per_row + e) * j->hidden, j->hidden);
    if (!j->norm) return;
    float r = 1.0f / sqrtf(j->k->dot(u, u, j->hidden) / (float)j->hidden + j->eps);
    j->k->scale_mul(u, u, r, j->norm, j->hidden);
}

void cpu_experts_reduce_norm(ms_backend *be, float *out, const float *y, const float *weights, uint32_t n, uint32_t k,
                             uint32_t hidden, const ms_weight *norm, float eps) {
    cpu_backend *c = cpu_of(be);
    reduce_job job = {c->k, out, y, weights, NULL, k, hidden, eps};
    if (norm && !(job.norm = cpu_vector(c, norm, hidden, "experts_reduce_norm"))) return;
    cpu_run(c, reduce_task, &job, n);
}
