/* cpu_scratch.c: the arena: one layout function serves both the size and the pointers, so that they agree exactly. */
#include "backend/cpu/cpu.h"

#include "base/bytes.h"
#include "quant/q8.h"

enum { ALIGN = 64, MX_GROUP = 32 };

typedef struct carver {
    uint8_t *base; /* NULL: only count */
    uint64_t used;
    bool overflow;
} carver;

/* a * b * element_bytes more bytes, 64-byte aligned. */
static void *carve(carver *v, uint64_t a, uint64_t b, uint64_t element_bytes) {
    uint64_t bytes, end, at = v->used;
    if (!ms_mul_u64(a, b, &bytes) || !ms_mul_u64(bytes, element_bytes, &bytes) ||
        !ms_add_u64(bytes, ALIGN - 1, &bytes) || !ms_add_u64(at, ms_align_down(bytes, ALIGN), &end)) {
        v->overflow = true;
        return NULL;
    }
    v->used = end;
    return v->base ? v->base + at : NULL;
}

static uint64_t max_u64(uint64_t a, uint64_t b) { return a > b ? a : b; }

static uint64_t worker_floats(const cpu_scratch *s, const ms_scratch_need *need) {
    /* two decoded rows, then gate and up of a block of rows; the router's k best (value and id) */
    uint64_t floats = 2 * s->max_cols + 2 * (uint64_t)CPU_X_BLOCK * CPU_MLP_CHUNK;
    floats = max_u64(floats, 2 * (uint64_t)need->router_experts);
    floats = max_u64(floats, cpu_kda_worker_floats(need->kda_dim, need->kda_taps));
    floats = max_u64(floats, cpu_mla_worker_floats(need->mla_extra, need->mla_value, need->mla_rank));
    return max_u64(floats, cpu_gqa_worker_floats(need->gqa_group, need->gqa_key, need->gqa_value));
}

static void layout(cpu_scratch *s, carver *v, const ms_backend *be, const ms_scratch_need *need) {
    bool fast = be->precision == MS_PRECISION_FAST;
    uint64_t rows = need->rows, pairs = need->pairs, hidden = need->expert.hidden, inner = need->expert.inner;
    s->need = *need;
    s->max_cols = max_u64(max_u64(need->input_cols, need->mlp_width), max_u64(hidden, inner));
    s->max_cols = max_u64(s->max_cols, need->mla_rank);
    s->vector = carve(v, 1, s->max_cols, sizeof(float));
    s->act = carve(v, rows, need->mlp_width, sizeof(float));
    s->router = carve(v, rows, need->router_experts, sizeof(float));
    s->router_bad = carve(v, rows, 1, 1);
    if (fast) {
        s->x_q = carve(v, rows, need->input_cols, 1);
        s->x_s = carve(v, rows, ms_q8_groups(need->input_cols), sizeof(float));
        s->act_q = carve(v, rows, need->mlp_width, 1);
        s->act_s = carve(v, rows, ms_q8_groups(need->mlp_width), sizeof(float));
        s->z_q = carve(v, rows, hidden, 1);
        s->z_s = carve(v, rows, hidden / MX_GROUP, sizeof(float));
        s->e_q = carve(v, pairs, inner, 1);
        s->e_s = carve(v, pairs, inner / MX_GROUP, sizeof(float));
    } else {
        s->z = carve(v, rows, hidden, sizeof(float));
        s->e_act = carve(v, pairs, inner, sizeof(float));
    }
    s->worker_bytes = ms_align_up(worker_floats(s, need) * sizeof(float), ALIGN);
    s->worker = carve(v, be->threads, s->worker_bytes, 1);
}

uint64_t cpu_scratch_bytes(const ms_backend *be, const ms_scratch_need *need) {
    cpu_scratch s = {0};
    carver v = {0};
    layout(&s, &v, be, need);
    return v.overflow ? UINT64_MAX : v.used;
}

void cpu_scratch_free(cpu_backend *c) {
    cpu_memory_free(c->scratch.base, (size_t)c->scratch.bytes);
    c->scratch = (cpu_scratch){0};
    c->experts_n = 0;
}

ms_status cpu_scratch_reserve(ms_backend *be, const ms_scratch_need *need, ms_error *err) {
    cpu_backend *c = cpu_of(be);
    uint64_t bytes = cpu_scratch_bytes(be, need);
    if (bytes >= SIZE_MAX) return ms_fail_memory(err, "workspace", SIZE_MAX);
    cpu_scratch_free(c);
    void *base = cpu_memory_new((size_t)bytes, false);
    if (!base) return ms_fail_memory(err, "workspace", (size_t)bytes);
    carver v = {.base = base};
    layout(&c->scratch, &v, be, need);
    c->scratch.base = base;
    c->scratch.bytes = bytes;
    return MS_OK;
}
