/* cpu_gqa.c: grouped-query attention over a range of tokens, one task a row and group of query heads of one key head.
 *
 * Keys are taken in absolute blocks of 256 positions, cut to what the row sees, so that a result depends neither on how
 * tokens were cut into ranges nor on the size of a ring: a ring holds whole blocks, so a block is one piece of memory.
 */
#include "backend/cpu/cpu.h"

#include "base/bytes.h"
#include "base/fmath.h"

typedef struct gqa_job {
    const cpu_backend *c;
    const ms_gqa *gqa;
    const ms_gqa_io *io;
    const float *sink;
    uint32_t group;  /* query heads a task */
    uint32_t groups; /* tasks a key head */
} gqa_job;

typedef struct gqa_work {
    float *query; /* [group][key] */
    float *score; /* [group][256] */
    float *sum;   /* [group][value]: running weighted sum */
    float *part;  /* [value]: the same of one block */
    float m[CPU_GQA_HEADS], l[CPU_GQA_HEADS];
} gqa_work;

static uint32_t most_heads(uint32_t group) { return group < CPU_GQA_HEADS ? group : CPU_GQA_HEADS; }

uint64_t cpu_gqa_worker_floats(uint32_t group, uint32_t key, uint32_t value) {
    return most_heads(group) * ((uint64_t)key + MS_GQA_BLOCK + value) + (uint64_t)key + value;
}

static gqa_work work_of(const gqa_job *j, unsigned worker) {
    gqa_work w;
    w.query = cpu_worker(j->c, worker);
    w.score = w.query + (size_t)j->group * j->gqa->key;
    w.sum = w.score + (size_t)j->group * MS_GQA_BLOCK;
    w.part = w.sum + (size_t)j->group * j->gqa->value;
    return w;
}

/* Rotates the leading dimensions of one head: pairs lie half of them apart. */
static void rotate(float *out, const float *x, const float *rope, const ms_gqa *g) {
    size_t half = g->rotary / 2;
    const float *cosine = rope, *sine = rope + half;
    for (size_t i = 0; i < half; i++) {
        float a = x[i], b = x[half + i];
        out[i] = fmaf(-b, sine[i], a * cosine[i]);
        out[half + i] = fmaf(a, sine[i], b * cosine[i]);
    }
    memcpy(out + g->rotary, x + g->rotary, (g->key - g->rotary) * sizeof *out);
}

static size_t row_width(const ms_gqa *g) { return (size_t)g->kv_heads * ((size_t)g->key + g->value); }

/* Elements before the row of a position. */
static size_t row_at(const gqa_job *j, uint64_t position) {
    return (size_t)(j->io->ring ? position % j->io->ring : position) * row_width(j->gqa);
}

/* Writes one new cache row, rounded here, before its first use. */
static void row_task(void *arg, size_t i, unsigned worker) {
    const gqa_job *j = arg;
    const ms_gqa *g = j->gqa;
    const ms_cpu_kernels *k = j->c->k;
    const float *rope = j->io->rope + i * g->rotary, *key = j->io->k + i * g->kv_heads * g->key;
    const float *value = j->io->v + i * g->kv_heads * g->value;
    size_t at = row_at(j, j->io->position + i), values = (size_t)g->kv_heads * g->key;
    bool fast = cpu_fast(j->c);
    float *piece = cpu_worker(j->c, worker);
    for (size_t h = 0; h < g->kv_heads; h++) {
        float *to = fast ? piece : (float *)j->io->rows + at + h * g->key;
        rotate(to, key + h * g->key, rope, g);
        if (fast) k->to_bf16((uint16_t *)j->io->rows + at + h * g->key, piece, g->key);
    }
    for (size_t h = 0; h < g->kv_heads; h++) {
        float *to = fast ? piece : (float *)j->io->rows + at + values + h * g->value;
        k->scale(to, value + h * g->value, g->value_scale, g->value);
        if (fast) k->to_bf16((uint16_t *)j->io->rows + at + values + h * g->value, piece, g->value);
    }
}

static void scores(const gqa_job *j, const gqa_work *w, size_t kv_head, uint64_t first, size_t count, size_t heads) {
    const ms_cpu_kernels *k = j->c->k;
    size_t key = j->gqa->key, at = row_at(j, first) + kv_head * key, width = row_width(j->gqa);
    if (cpu_fast(j->c))
        k->rows_bf16(w->score, MS_GQA_BLOCK, w->query, key, heads, (const uint16_t *)j->io->rows + at, width, count,
                     key);
    else
        k->rows_f32(w->score, MS_GQA_BLOCK, w->query, key, heads, (const float *)j->io->rows + at, width, count, key);
    for (size_t h = 0; h < heads; h++)
        k->scale(w->score + h * MS_GQA_BLOCK, w->score + h * MS_GQA_BLOCK, j->gqa->scale, count);
}

static void block_sum(const gqa_job *j, float *out, const float *e, size_t kv_head, uint64_t first, size_t count) {
    const ms_gqa *g = j->gqa;
    size_t at = row_at(j, first) + (size_t)g->kv_heads * g->key + kv_head * g->value, width = row_width(g);
    if (cpu_fast(j->c))
        j->c->k->col4_bf16(out, e, (const uint16_t *)j->io->rows + at, width, count, g->value);
    else
        j->c->k->col4_f32(out, e, (const float *)j->io->rows + at, width, count, g->value);
}

/* Takes one block of keys into the running (m, l, sum) of a head. */
static void absorb_block(const gqa_job *j, gqa_work *w, size_t h, size_t kv_head, uint64_t first, size_t count,
                         bool start) {
    const ms_cpu_kernels *k = j->c->k;
    float *e = w->score + h * MS_GQA_BLOCK, *sum = w->sum + h * j->gqa->value;
    float m_b = e[0];
    for (size_t i = 1; i < count; i++) m_b = e[i] > m_b ? e[i] : m_b;
    k->exp_sub(e, e, m_b, count);
    float l_b = k->sum(e, count);
    if (start) {
        block_sum(j, sum, e, kv_head, first, count);
        w->m[h] = m_b;
        w->l[h] = l_b;
        return;
    }
    block_sum(j, w->part, e, kv_head, first, count);
    float m = m_b > w->m[h] ? m_b : w->m[h], f = ms_exp(w->m[h] - m), f_b = ms_exp(m_b - m);
    w->l[h] = fmaf(w->l[h], f, l_b * f_b);
    k->merge(sum, f, w->part, f_b, j->gqa->value);
    w->m[h] = m;
}

/* The sink: one more key without a value. */
static void absorb_sink(const gqa_job *j, gqa_work *w, size_t h, float b) {
    float m = b > w->m[h] ? b : w->m[h], f = ms_exp(w->m[h] - m), f_b = ms_exp(b - m);
    w->l[h] = fmaf(w->l[h], f, f_b);
    j->c->k->scale(w->sum + h * j->gqa->value, w->sum + h * j->gqa->value, f, j->gqa->value);
}

static void attend_task(void *arg, size_t task, unsigned worker) {
    const gqa_job *j = arg;
    const ms_gqa *g = j->gqa;
    size_t per_key = g->heads / g->kv_heads, per_row = (size_t)j->groups * g->kv_heads;
    size_t row = task / per_row, kv_head = task % per_row / j->groups, part = task % j->groups * j->group;
    size_t heads = per_key - part < j->group ? per_key - part : j->group, head = kv_head * per_key + part;
    gqa_work w = work_of(j, worker);
    for (size_t h = 0; h < heads; h++)
        rotate(w.query + h * g->key, j->io->q + (row * g->heads + head + h) * g->key, j->io->rope + row * g->rotary, g);
    uint64_t end = j->io->position + row + 1, begin = g->window && end > g->window ? end - g->window : 0;
    for (uint64_t first = begin; first < end;) {
        uint64_t next = (first / MS_GQA_BLOCK + 1) * MS_GQA_BLOCK;
        size_t count = (size_t)((next < end ? next : end) - first);
        scores(j, &w, kv_head, first, count, heads);
        for (size_t h = 0; h < heads; h++) absorb_block(j, &w, h, kv_head, first, count, first == begin);
        first += count;
    }
    for (size_t h = 0; h < heads; h++) {
        if (j->sink) absorb_sink(j, &w, h, j->sink[head + h]);
        j->c->k->divide(j->io->out + (row * g->heads + head + h) * g->value, w.sum + h * g->value, w.l[h], g->value);
    }
}

static bool fits(const cpu_backend *c, const ms_gqa *g, const ms_gqa_io *io, uint32_t n) {
    const ms_scratch_need *need = &c->scratch.need;
    if (!g->kv_heads || g->heads % g->kv_heads || g->heads / g->kv_heads > need->gqa_group) return false;
    if (g->key > need->gqa_key || g->value > need->gqa_value || g->rotary > g->key || g->rotary % 2) return false;
    if (io->position > need->context || n > need->context - io->position) return false;
    return !io->ring || (io->ring % MS_GQA_BLOCK == 0 && g->window && io->ring >= (uint64_t)g->window - 1 + n);
}

void cpu_gqa_range(ms_backend *be, const ms_gqa *gqa, const ms_gqa_io *io, uint32_t n) {
    cpu_backend *c = cpu_of(be);
    if (!cpu_need(c, fits(c, gqa, io, n), "gqa_range", "head shape, context or ring") || n == 0) return;
    gqa_job job = {.c = c, .gqa = gqa, .io = io};
    if (gqa->sink && !(job.sink = cpu_vector(c, gqa->sink, gqa->heads, "gqa_range"))) return;
    /* Heads of a task share the reading of the rows; enough tasks for the threads come first. */
    uint32_t per_key = gqa->heads / gqa->kv_heads;
    uint64_t pieces = (uint64_t)gqa->heads * n / (2 * (uint64_t)be->threads);
    job.group = (uint32_t)(pieces < 1 ? 1 : pieces > most_heads(per_key) ? most_heads(per_key) : pieces);
    job.groups = per_key / job.group + (per_key % job.group != 0);
    cpu_run(c, row_task, &job, n);
    cpu_run(c, attend_task, &job, (size_t)n * gqa->kv_heads * job.groups);
}
