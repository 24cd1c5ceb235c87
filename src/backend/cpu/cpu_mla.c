/* cpu_mla.c: MLA over a range of tokens in the absorbed form, one task a row and group of heads.
 *
 * Context is taken in absolute blocks of 256 keys, so that a row's result does not depend on how the tokens before it
 * were cut into ranges, and scratch does not depend on the context.
 */
#include "backend/cpu/cpu.h"

#include "base/bytes.h"
#include "base/fmath.h"

typedef struct mla_job {
    const cpu_backend *c;
    const ms_mla *mla;
    const ms_mla_io *io;
    const float *kv_norm;
    uint32_t n, group, groups; /* heads a task, tasks a row */
} mla_job;

typedef struct mla_work {
    float *query; /* [group][rank + extra] */
    float *score; /* [group][256] */
    float *sum;   /* [group][rank]: running weighted sum of rows */
    float *part;  /* [rank]: the same of one block */
    float *value; /* [value] */
    float m[CPU_MLA_HEADS], l[CPU_MLA_HEADS];
} mla_work;

uint64_t cpu_mla_worker_floats(uint32_t extra, uint32_t value, uint32_t rank) {
    uint64_t width = (uint64_t)rank + extra;
    return CPU_MLA_HEADS * (width + MS_MLA_BLOCK + rank) + rank + value;
}

static mla_work work_of(const mla_job *j, unsigned worker) {
    mla_work w;
    size_t rank = j->mla->rank;
    w.query = cpu_worker(j->c, worker);
    w.score = w.query + CPU_MLA_HEADS * (rank + j->mla->extra);
    w.sum = w.score + CPU_MLA_HEADS * MS_MLA_BLOCK;
    w.part = w.sum + CPU_MLA_HEADS * rank;
    w.value = w.part + rank;
    return w;
}

/* Writes one new cache row: normed latent, then the extra key; rounded here, before its first use. */
static void row_task(void *arg, size_t i, unsigned worker) {
    const mla_job *j = arg;
    const ms_cpu_kernels *k = j->c->k;
    size_t rank = j->mla->rank, extra = j->mla->extra, width = rank + extra;
    const float *c = j->io->c + i * width;
    float r = 1.0f / sqrtf(k->dot(c, c, rank) / (float)rank + j->mla->norm_eps);
    size_t at = ((size_t)j->io->position + i) * width;
    if (!cpu_fast(j->c)) {
        float *row = (float *)j->io->rows + at;
        k->scale_mul(row, c, r, j->kv_norm, rank);
        memcpy(row + rank, c + rank, extra * sizeof *row);
        return;
    }
    uint16_t *row = (uint16_t *)j->io->rows + at;
    float *normed = cpu_worker(j->c, worker);
    k->scale_mul(normed, c, r, j->kv_norm, rank);
    k->to_bf16(row, normed, rank);
    k->to_bf16(row + rank, c + rank, extra);
}

static void scores(const mla_job *j, const mla_work *w, size_t first, size_t count, size_t heads) {
    const ms_cpu_kernels *k = j->c->k;
    size_t width = (size_t)j->mla->rank + j->mla->extra;
    if (cpu_fast(j->c))
        k->rows_bf16(w->score, MS_MLA_BLOCK, w->query, width, heads, (const uint16_t *)j->io->rows + first * width,
                     width, count, width);
    else
        k->rows_f32(w->score, MS_MLA_BLOCK, w->query, width, heads, (const float *)j->io->rows + first * width, width,
                    count, width);
    for (size_t h = 0; h < heads; h++)
        k->scale(w->score + h * MS_MLA_BLOCK, w->score + h * MS_MLA_BLOCK, j->mla->scale, count);
}

/* Weighted sum of a block's latents for one head. */
static void block_sum(const mla_job *j, float *out, const float *e, size_t first, size_t count) {
    size_t rank = j->mla->rank, width = rank + j->mla->extra;
    if (cpu_fast(j->c))
        j->c->k->col4_bf16(out, e, (const uint16_t *)j->io->rows + first * width, width, count, rank);
    else
        j->c->k->col4_f32(out, e, (const float *)j->io->rows + first * width, width, count, rank);
}

/* Takes one block of keys into the running (m, l, sum) of a head. */
static void absorb_block(const mla_job *j, mla_work *w, size_t h, size_t first, size_t count) {
    const ms_cpu_kernels *k = j->c->k;
    float *e = w->score + h * MS_MLA_BLOCK, *sum = w->sum + h * j->mla->rank;
    float m_b = e[0];
    for (size_t i = 1; i < count; i++) m_b = e[i] > m_b ? e[i] : m_b;
    k->exp_sub(e, e, m_b, count);
    float l_b = k->sum(e, count);
    if (first == 0) {
        block_sum(j, sum, e, first, count);
        w->m[h] = m_b;
        w->l[h] = l_b;
        return;
    }
    block_sum(j, w->part, e, first, count);
    float m = m_b > w->m[h] ? m_b : w->m[h], f = ms_exp(w->m[h] - m), f_b = ms_exp(m_b - m);
    w->l[h] = fmaf(w->l[h], f, l_b * f_b);
    k->merge(sum, f, w->part, f_b, j->mla->rank);
    w->m[h] = m;
}

static void attend_task(void *arg, size_t task, unsigned worker) {
    const mla_job *j = arg;
    const ms_mla *mla = j->mla;
    const ms_cpu_kernels *k = j->c->k;
    size_t row = task / j->groups, head = task % j->groups * j->group;
    size_t heads = mla->heads - head < j->group ? mla->heads - head : j->group;
    size_t rank = mla->rank, width = rank + mla->extra, q_dim = (size_t)mla->nope + mla->extra;
    const uint16_t *kv_b = (const uint16_t *)mla->kv_b->data + head * (mla->nope + mla->value) * rank;
    mla_work w = work_of(j, worker);
    for (size_t h = 0; h < heads; h++) {
        const float *q = j->io->q + (row * mla->heads + head + h) * q_dim;
        k->col4_bf16(w.query + h * width, q, kv_b + h * (mla->nope + mla->value) * rank, rank, mla->nope, rank);
        memcpy(w.query + h * width + rank, q + mla->nope, mla->extra * sizeof(float));
    }
    size_t keys = (size_t)j->io->position + row + 1;
    for (size_t first = 0; first < keys; first += MS_MLA_BLOCK) {
        size_t count = keys - first < MS_MLA_BLOCK ? keys - first : MS_MLA_BLOCK;
        scores(j, &w, first, count, heads);
        for (size_t h = 0; h < heads; h++) absorb_block(j, &w, h, first, count);
    }
    for (size_t h = 0; h < heads; h++) {
        float *lat = w.sum + h * rank;
        size_t at = (row * mla->heads + head + h) * mla->value;
        k->divide(lat, lat, w.l[h], rank);
        k->rows_bf16(w.value, mla->value, lat, rank, 1, kv_b + (h * (mla->nope + mla->value) + mla->nope) * rank, rank,
                     mla->value, rank);
        k->gate(j->io->out + at, w.value, j->io->gate + at, mla->value);
    }
}

void cpu_mla_range(ms_backend *be, const ms_mla *mla, const ms_mla_io *io, uint32_t n) {
    cpu_backend *c = cpu_of(be);
    const ms_scratch_need *need = &c->scratch.need;
    bool fits = mla->rank >= 1 && mla->rank <= need->mla_rank && mla->extra <= need->mla_extra &&
                mla->value <= need->mla_value && mla->heads <= need->mla_heads && mla->nope <= need->mla_nope;
    if (!cpu_need(c, fits, "mla_range", "head shape")) return;
    if (!cpu_need(c, io->position <= need->context && n <= need->context - io->position, "mla_range", "context"))
        return;
    uint64_t kv_rows = (uint64_t)mla->heads * ((uint64_t)mla->nope + mla->value);
    bool kv_ok = mla->kv_b->format == MS_FORMAT_BF16 && mla->kv_b->cols == mla->rank && mla->kv_b->rows == kv_rows;
    if (!cpu_need(c, kv_ok, "mla_range", "kv_b weight")) return;
    mla_job job = {
        .c = c, .mla = mla, .io = io, .n = n, .kv_norm = cpu_vector(c, mla->kv_norm, mla->rank, "mla_range")};
    if (!job.kv_norm || n == 0 || mla->heads == 0) return;
    /* Heads of a task share the reading of the rows; enough tasks for the threads come first. */
    uint64_t pieces = (uint64_t)mla->heads * n / (2 * (uint64_t)be->threads);
    job.group = (uint32_t)(pieces < 1 ? 1 : pieces > CPU_MLA_HEADS ? CPU_MLA_HEADS : pieces);
    if (job.group > mla->heads) job.group = mla->heads;
    job.groups = mla->heads / job.group + (mla->heads % job.group != 0);
    cpu_run(c, row_task, &job, n);
    cpu_run(c, attend_task, &job, (size_t)n * job.groups);
}
