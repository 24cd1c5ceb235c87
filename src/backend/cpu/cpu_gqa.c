/* cpu_gqa.c: grouped-query attention over a range of tokens, one task a few rows and a group of query heads of one key
 * head.
 *
 * Keys are taken in absolute blocks of 256 positions, cut to what the row sees, so that a result depends neither on how
 * tokens were cut into ranges nor on the size of a ring: a ring holds whole blocks, so a block is one piece of memory.
 *
 * Rows of a task go through the blocks together.  A block that several rows read is first widened to f32, which is
 * exact, and kept close together: it is then read from memory and widened once instead of by each row and head.
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
    uint32_t groups; /* tasks a key head and rows */
    uint32_t rows;   /* rows a task */
    uint32_t total;  /* rows of the range */
} gqa_job;

/* By pair of a row and a head, in this order. */
typedef struct gqa_work {
    float *query; /* [pairs][key] */
    float *score; /* [pairs][256] */
    float *sum;   /* [pairs][value]: running weighted sum */
    float *part;  /* [value]: the same of one block */
    float *wide;  /* [256][key or value]: keys, then values of a block */
    float m[CPU_GQA_ROWS * CPU_GQA_HEADS], l[CPU_GQA_ROWS * CPU_GQA_HEADS];
} gqa_work;

/* What a task works on. */
typedef struct gqa_tile {
    size_t kv_head, head, heads; /* query heads head .. head + heads - 1 */
    size_t row, rows;
    bool wide;
    uint64_t first; /* of the keys of the current block that some row sees */
    size_t count;
} gqa_tile;

/* Keys of the current block that one row sees. */
typedef struct gqa_part {
    size_t offset, count; /* from the tile's first; none: 0 */
    bool start;           /* the row's first ones */
} gqa_part;

static uint32_t most_heads(uint32_t group) { return group < CPU_GQA_HEADS ? group : CPU_GQA_HEADS; }

uint64_t cpu_gqa_worker_floats(uint32_t group, uint32_t key, uint32_t value) {
    uint64_t pairs = (uint64_t)most_heads(group) * CPU_GQA_ROWS, wide = key > value ? key : value;
    return pairs * ((uint64_t)key + MS_GQA_BLOCK + value) + value + MS_GQA_BLOCK * wide;
}

static gqa_work work_of(const gqa_job *j, unsigned worker) {
    size_t pairs = (size_t)j->group * j->rows;
    gqa_work w;
    w.query = cpu_worker(j->c, worker);
    w.score = w.query + pairs * j->gqa->key;
    w.sum = w.score + pairs * MS_GQA_BLOCK;
    w.part = w.sum + pairs * j->gqa->value;
    w.wide = w.part + j->gqa->value;
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

/* Rows of one head's keys or values, from element `at` of the cache. */
static void widen(const gqa_job *j, const gqa_work *w, size_t at, size_t count, size_t width) {
    const uint16_t *rows = (const uint16_t *)j->io->rows + at;
    for (size_t i = 0; i < count; i++) j->c->k->from_bf16(w->wide + i * width, rows + i * row_width(j->gqa), width);
}

static size_t keys_at(const gqa_job *j, const gqa_tile *t, size_t offset) {
    return row_at(j, t->first + offset) + t->kv_head * j->gqa->key;
}

static size_t values_at(const gqa_job *j, const gqa_tile *t, size_t offset) {
    const ms_gqa *g = j->gqa;
    return row_at(j, t->first + offset) + (size_t)g->kv_heads * g->key + t->kv_head * g->value;
}

static gqa_part part_of(const gqa_job *j, const gqa_tile *t, size_t row) {
    const ms_gqa *g = j->gqa;
    uint64_t end = j->io->position + t->row + row + 1, begin = g->window && end > g->window ? end - g->window : 0;
    uint64_t first = begin > t->first ? begin : t->first, last = t->first + t->count < end ? t->first + t->count : end;
    if (first >= last) return (gqa_part){0};
    return (gqa_part){(size_t)(first - t->first), (size_t)(last - first), first == begin};
}

static void scores(const gqa_job *j, const gqa_work *w, const gqa_tile *t, size_t pair, const gqa_part *part) {
    const ms_cpu_kernels *k = j->c->k;
    size_t key = j->gqa->key, at = keys_at(j, t, part->offset), width = row_width(j->gqa), n = part->count;
    float *score = w->score + pair * MS_GQA_BLOCK, *query = w->query + pair * key;
    if (t->wide)
        k->rows_f32(score, MS_GQA_BLOCK, query, key, t->heads, w->wide + part->offset * key, key, n, key);
    else if (cpu_fast(j->c))
        k->rows_bf16(score, MS_GQA_BLOCK, query, key, t->heads, (const uint16_t *)j->io->rows + at, width, n, key);
    else
        k->rows_f32(score, MS_GQA_BLOCK, query, key, t->heads, (const float *)j->io->rows + at, width, n, key);
    for (size_t h = 0; h < t->heads; h++)
        k->scale(score + h * MS_GQA_BLOCK, score + h * MS_GQA_BLOCK, j->gqa->scale, n);
}

static void block_sum(const gqa_job *j, const gqa_work *w, const gqa_tile *t, float *out, const float *e,
                      const gqa_part *part) {
    const ms_cpu_kernels *k = j->c->k;
    size_t value = j->gqa->value, at = values_at(j, t, part->offset), width = row_width(j->gqa);
    if (t->wide)
        k->col4_f32(out, e, w->wide + part->offset * value, value, part->count, value);
    else if (cpu_fast(j->c))
        k->col4_bf16(out, e, (const uint16_t *)j->io->rows + at, width, part->count, value);
    else
        k->col4_f32(out, e, (const float *)j->io->rows + at, width, part->count, value);
}

/* Takes one block of keys into the running (m, l, sum) of a pair. */
static void absorb_block(const gqa_job *j, gqa_work *w, const gqa_tile *t, size_t pair, const gqa_part *part) {
    const ms_cpu_kernels *k = j->c->k;
    float *e = w->score + pair * MS_GQA_BLOCK, *sum = w->sum + pair * j->gqa->value;
    float m_b = e[0];
    for (size_t i = 1; i < part->count; i++) m_b = e[i] > m_b ? e[i] : m_b;
    k->exp_sub(e, e, m_b, part->count);
    float l_b = k->sum(e, part->count);
    if (part->start) {
        block_sum(j, w, t, sum, e, part);
        w->m[pair] = m_b;
        w->l[pair] = l_b;
        return;
    }
    block_sum(j, w, t, w->part, e, part);
    float m = m_b > w->m[pair] ? m_b : w->m[pair], f = ms_exp(w->m[pair] - m), f_b = ms_exp(m_b - m);
    w->l[pair] = fmaf(w->l[pair], f, l_b * f_b);
    k->merge(sum, f, w->part, f_b, j->gqa->value);
    w->m[pair] = m;
}

static void take_block(const gqa_job *j, gqa_work *w, const gqa_tile *t) {
    if (t->wide) widen(j, w, keys_at(j, t, 0), t->count, j->gqa->key);
    for (size_t r = 0; r < t->rows; r++) {
        gqa_part part = part_of(j, t, r);
        if (part.count) scores(j, w, t, r * t->heads, &part);
    }
    if (t->wide) widen(j, w, values_at(j, t, 0), t->count, j->gqa->value);
    for (size_t r = 0; r < t->rows; r++) {
        gqa_part part = part_of(j, t, r);
        for (size_t h = 0; part.count && h < t->heads; h++) absorb_block(j, w, t, r * t->heads + h, &part);
    }
}

/* The sink: one more key without a value. */
static void absorb_sink(const gqa_job *j, gqa_work *w, size_t h, float b) {
    float m = b > w->m[h] ? b : w->m[h], f = ms_exp(w->m[h] - m), f_b = ms_exp(b - m);
    w->l[h] = fmaf(w->l[h], f, f_b);
    j->c->k->scale(w->sum + h * j->gqa->value, w->sum + h * j->gqa->value, f, j->gqa->value);
}

static gqa_tile tile_of(const gqa_job *j, size_t task) {
    const ms_gqa *g = j->gqa;
    size_t per_key = g->heads / g->kv_heads, per_rows = (size_t)j->groups * g->kv_heads;
    size_t part = task % j->groups * j->group;
    gqa_tile t = {.kv_head = task % per_rows / j->groups, .row = task / per_rows * j->rows};
    t.head = t.kv_head * per_key + part;
    t.heads = per_key - part < j->group ? per_key - part : j->group;
    t.rows = j->total - t.row < j->rows ? j->total - t.row : j->rows;
    t.wide = cpu_fast(j->c) && t.rows > 1;
    return t;
}

static void attend_task(void *arg, size_t task, unsigned worker) {
    const gqa_job *j = arg;
    const ms_gqa *g = j->gqa;
    gqa_tile t = tile_of(j, task);
    gqa_work w = work_of(j, worker);
    for (size_t p = 0; p < t.rows * t.heads; p++) {
        size_t row = t.row + p / t.heads, head = t.head + p % t.heads;
        rotate(w.query + p * g->key, j->io->q + (row * g->heads + head) * g->key, j->io->rope + row * g->rotary, g);
    }
    uint64_t first_end = j->io->position + t.row + 1, end = first_end + t.rows - 1;
    for (t.first = g->window && first_end > g->window ? first_end - g->window : 0; t.first < end; t.first += t.count) {
        uint64_t next = (t.first / MS_GQA_BLOCK + 1) * MS_GQA_BLOCK;
        t.count = (size_t)((next < end ? next : end) - t.first);
        take_block(j, &w, &t);
    }
    for (size_t p = 0; p < t.rows * t.heads; p++) {
        size_t row = t.row + p / t.heads, head = t.head + p % t.heads;
        if (j->sink) absorb_sink(j, &w, p, j->sink[head]);
        j->c->k->divide(j->io->out + (row * g->heads + head) * g->value, w.sum + p * g->value, w.l[p], g->value);
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
    /* Heads and rows of a task share the reading of the keys; enough tasks for the threads come first. */
    uint32_t per_key = gqa->heads / gqa->kv_heads;
    uint64_t pieces = (uint64_t)gqa->heads * n / (2 * (uint64_t)be->threads);
    job.group = (uint32_t)(pieces < 1 ? 1 : pieces > most_heads(per_key) ? most_heads(per_key) : pieces);
    job.groups = per_key / job.group + (per_key % job.group != 0);
    cpu_run(c, row_task, &job, n);
    uint64_t row_tasks = (uint64_t)n * gqa->kv_heads * job.groups / (2 * (uint64_t)be->threads);
    job.total = n;
    job.rows = (uint32_t)(row_tasks < 1 ? 1 : row_tasks > CPU_GQA_ROWS ? CPU_GQA_ROWS : row_tasks);
    uint64_t tiles = n / job.rows + (n % job.rows != 0);
    cpu_run(c, attend_task, &job, (size_t)tiles * gqa->kv_heads * job.groups);
}
