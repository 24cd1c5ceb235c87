/* bench_gpu.c: `moonshine bench gpu`: the operations of a backend at the shapes of the official model.
 *
 * Decode (one row) is told in bytes of weights a second beside the rate at which the device copies its own memory,
 * ranges of rows in multiply-adds a second beside its bf16 matrix rate (bench_gemm.c); both rates are measured in the
 * same run.  A case takes turns among sets of weights that together exceed any cache.  Each figure is the median of
 * rounds; a round repeats the operation without waiting and waits once.  Only operations of backend.h are used, so
 * every backend can be measured.
 * Owns: the memory of one case at a time.  Threads: the calling thread.
 * Errors: as ms_command_fail prints them; a case whose memory is not there is left out with a line.
 */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/loader.h"
#include "base/clock.h"
#include "bench.h"
#include "bench_gemm.h"
#include "bench_probe.h"
#include "command.h"

typedef struct gpu_flags {
    const char *backend, *only, *csv;
    uint32_t rounds, milliseconds;
    int shapes, range_backend;
} gpu_flags;

static const char *const shape_sets[] = {"k3", "small", NULL};
enum { SMALL_DIVISOR = 16 };

#define FIELD(f) offsetof(gpu_flags, f)
static const ms_option options[] = {
    {.name = "backend",
     .type = MS_OPTION_STRING,
     .offset = FIELD(backend),
     .arg = "NAME",
     .env = "MOONSHINE_BACKEND",
     .help = "cpu, cuda, hip, emu or auto (default: auto)."},
    {.name = "range-backend",
     .type = MS_OPTION_CHOICE,
     .offset = FIELD(range_backend),
     .arg = "B",
     .choices = ms_range_backends,
     .help = "blas: products of more than 16 rows by cuBLASLt or hipBLASLt, to compare (default: default)."},
    {.name = "shapes",
     .type = MS_OPTION_CHOICE,
     .offset = FIELD(shapes),
     .arg = "SET",
     .choices = shape_sets,
     .help = "Official sizes, or a sixteenth of every dimension (default: k3)."},
    {.name = "only",
     .type = MS_OPTION_STRING,
     .offset = FIELD(only),
     .arg = "TEXT",
     .help = "Only the cases whose name contains TEXT."},
    {.name = "rounds",
     .type = MS_OPTION_U32,
     .offset = FIELD(rounds),
     .arg = "N",
     .min = 1,
     .max = 100,
     .help = "Rounds (default: 5)."},
    {.name = "time",
     .type = MS_OPTION_U32,
     .offset = FIELD(milliseconds),
     .arg = "MS",
     .min = 1,
     .max = 60000,
     .help = "Least milliseconds of a round (default: 40)."},
    {.name = "csv",
     .type = MS_OPTION_STRING,
     .offset = FIELD(csv),
     .arg = "FILE",
     .help = "Also write the table there."},
};

typedef enum case_kind {
    CASE_PROJECT,
    CASE_MLP,
    CASE_ROUTER,
    CASE_EXPERTS,
    CASE_KDA,
    CASE_MLA,
    CASE_GQA,
    CASE_MIX,
    CASE_SUM
} case_kind;

typedef struct bench_case {
    const char *name;
    case_kind kind;
    ms_format format;
    uint32_t rows, cols, count; /* products of the same input; experts: how many there are; MLA, GQA: cached rows */
    uint32_t n;
} bench_case;

enum {
    HIDDEN = 7168,
    INNER = 12288,
    LATENT = 3584,
    EXPERT = 3072,
    DENSE = 33792,
    SHARED = 6144,
    VOCAB = 163840,
    EXPERTS = 896,
    HEADS = 96,
    TOP = 16,
    BLOCKS = 8, /* closed blocks of the last layers */
    HEAD_DIM = 128,
    EXTRA = 64,
    RANK = 512,
    TAPS = 4,
    GQA_HEADS = 64, /* of MiMo V2.6; key heads tell its two kinds of layers apart */
    GQA_FULL = 4,
    GQA_SLIDING = 8,
    GQA_KEY = 192,
    GQA_VALUE = 128,
    GQA_ROTARY = 64,
    GQA_WINDOW = 128,
    MAX_SETS = 32,
    MAX_PRODUCTS = 4,
    MAX_ROUNDS = 100,
    HOST_ROWS = 64
};

static const bench_case cases[] = {
    {"q8 project", CASE_PROJECT, MS_FORMAT_Q8, INNER, HIDDEN, 1, 1},
    {"q8 project, 4 at once", CASE_PROJECT, MS_FORMAT_Q8, INNER, HIDDEN, 4, 1},
    {"q8 output", CASE_PROJECT, MS_FORMAT_Q8, HIDDEN, INNER, 1, 1},
    {"q8 latent", CASE_PROJECT, MS_FORMAT_Q8, LATENT, HIDDEN, 1, 1},
    {"q8 shared mlp", CASE_MLP, MS_FORMAT_Q8, SHARED, HIDDEN, 3, 1},
    {"q8 dense mlp", CASE_MLP, MS_FORMAT_Q8, DENSE, HIDDEN, 3, 1},
    {"mxfp4 16 experts", CASE_EXPERTS, MS_FORMAT_Q8, EXPERT, LATENT, TOP * 4, 1},
    {"bf16 project", CASE_PROJECT, MS_FORMAT_BF16, INNER, HIDDEN, 1, 1},
    {"bf16 head", CASE_PROJECT, MS_FORMAT_BF16, VOCAB, HIDDEN, 1, 1},
    {"bf16 router", CASE_ROUTER, MS_FORMAT_BF16, EXPERTS, HIDDEN, 1, 1},
    {"kda", CASE_KDA, MS_FORMAT_F32, HEADS, HEAD_DIM, 1, 1},
    {"mla, 4096 cached", CASE_MLA, MS_FORMAT_BF16, HEADS, RANK, 4096, 1},
    {"mla, 32768 cached", CASE_MLA, MS_FORMAT_BF16, HEADS, RANK, 32768, 1},
    {"gqa, 4096 cached", CASE_GQA, MS_FORMAT_F32, GQA_HEADS, GQA_FULL, 4096, 1},
    {"gqa, 32768 cached", CASE_GQA, MS_FORMAT_F32, GQA_HEADS, GQA_FULL, 32768, 1},
    {"gqa, window", CASE_GQA, MS_FORMAT_F32, GQA_HEADS, GQA_SLIDING, 4096, 1},
    {"residual mix", CASE_MIX, MS_FORMAT_F32, BLOCKS, HIDDEN, 1, 1},
    {"sum of experts", CASE_SUM, MS_FORMAT_F32, TOP, LATENT, 1, 1},
    {"q8 project", CASE_PROJECT, MS_FORMAT_Q8, INNER, HIDDEN, 1, 512},
    {"q8 project", CASE_PROJECT, MS_FORMAT_Q8, INNER, HIDDEN, 1, 4096},
    {"bf16 project", CASE_PROJECT, MS_FORMAT_BF16, INNER, HIDDEN, 1, 512},
    {"mxfp4 experts", CASE_EXPERTS, MS_FORMAT_Q8, EXPERT, LATENT, EXPERTS, 512},
    {"mxfp4 experts", CASE_EXPERTS, MS_FORMAT_Q8, EXPERT, LATENT, EXPERTS, 4096},
    {"mxfp4 16 experts", CASE_EXPERTS, MS_FORMAT_Q8, EXPERT, LATENT, TOP, 512},
    {"mxfp4 16 experts", CASE_EXPERTS, MS_FORMAT_Q8, EXPERT, LATENT, TOP, 4096},
    {"bf16 router", CASE_ROUTER, MS_FORMAT_BF16, EXPERTS, HIDDEN, 1, 512},
    {"kda", CASE_KDA, MS_FORMAT_F32, HEADS, HEAD_DIM, 1, 512},
    {"mla, empty cache", CASE_MLA, MS_FORMAT_BF16, HEADS, RANK, 0, 512},
    {"gqa, empty cache", CASE_GQA, MS_FORMAT_F32, GQA_HEADS, GQA_FULL, 0, 512},
    {"gqa, 4096 cached", CASE_GQA, MS_FORMAT_F32, GQA_HEADS, GQA_FULL, 4096, 512},
    {"gqa, window", CASE_GQA, MS_FORMAT_F32, GQA_HEADS, GQA_SLIDING, 4096, 512},
    {"residual mix", CASE_MIX, MS_FORMAT_F32, BLOCKS, HIDDEN, 1, 512},
    {"sum of experts", CASE_SUM, MS_FORMAT_F32, TOP, LATENT, 1, 512},
};
#define COUNT(a) (sizeof(a) / sizeof(a)[0])

/* What a case holds, and how it is run. */
typedef struct job {
    ms_backend *be;
    bench_case c;
    uint32_t sets, next, x_cols;
    ms_weight weight[MAX_SETS][MAX_PRODUCTS];
    ms_weight vector[8]; /* KDA and MLA: small weights; GQA: sinks; router: bias */
    float *x, *out;
    size_t x_bytes, out_bytes;
    float *extra; /* KDA: the other inputs; GQA: keys, values, angles; router: weights */
    size_t extra_bytes;
    uint8_t *state; /* experts: slots; KDA: states and histories; MLA, GQA: cache rows */
    size_t state_bytes;
    uint32_t *lists; /* rows and pairs of the batches */
    ms_expert_batch *batches;
    uint32_t batch_count;
    uint64_t bytes; /* weights, or state, of one operation */
    double flops;
} job;

/* ------------------------------------------------------------------ memory of a case */

static uint32_t next_random(uint32_t *s) {
    *s ^= *s << 13;
    *s ^= *s >> 17;
    *s ^= *s << 5;
    return *s;
}

/* Uniform in (-scale, scale). */
static float next_float(uint32_t *s, float scale) {
    return scale * ((float)(next_random(s) >> 8) * 0x1p-23f - 1.0f);
}

static ms_status device_floats(job *j, float **out, size_t *out_bytes, size_t count, ms_error *err) {
    enum { PIECE = 1 << 18 };
    void *p;
    MS_TRY(j->be->alloc(j->be, MS_MEM_DEVICE, count * sizeof(float), "activations", &p, err));
    *out = p;
    *out_bytes = count * sizeof(float);
    size_t piece = count < PIECE ? count : PIECE;
    float *host = malloc(piece * sizeof *host);
    if (!host) return ms_fail_memory(err, "activations", piece * sizeof *host);
    uint32_t seed = 0x9e3779b9u;
    for (size_t i = 0; i < piece; i++) host[i] = next_float(&seed, 1.0f);
    for (size_t at = 0; at < count; at += piece)
        j->be->upload(j->be, *out + at, host, (count - at < piece ? count - at : piece) * sizeof *host);
    free(host);
    return MS_OK;
}

static ms_status make_weight(job *j, ms_weight *w, ms_format format, uint32_t rows, uint32_t cols, ms_error *err) {
    MS_TRY(j->be->weight_create(j->be, w, format, rows, cols, err));
    uint32_t at_once = rows < HOST_ROWS ? rows : (uint32_t)HOST_ROWS, seed = rows * 2654435761u + cols;
    float *host = malloc((size_t)at_once * cols * sizeof *host);
    if (!host) return ms_fail_memory(err, "weight rows", (size_t)at_once * cols * sizeof *host);
    for (size_t i = 0; i < (size_t)at_once * cols; i++) host[i] = next_float(&seed, 0.05f);
    ms_status st = MS_OK;
    for (uint32_t r = 0; r < rows && st == MS_OK; r += at_once)
        st = j->be->weight_fill(j->be, w, r, rows - r < at_once ? rows - r : at_once, host, MS_FORMAT_F32, err);
    free(host);
    return st;
}

static void end_job(job *j) {
    ms_backend *be = j->be;
    for (size_t s = 0; s < MAX_SETS; s++)
        for (size_t p = 0; p < MAX_PRODUCTS; p++)
            if (j->weight[s][p].data) be->weight_destroy(be, &j->weight[s][p]);
    for (size_t i = 0; i < COUNT(j->vector); i++)
        if (j->vector[i].data) be->weight_destroy(be, &j->vector[i]);
    be->release(be, MS_MEM_DEVICE, j->x, j->x_bytes);
    be->release(be, MS_MEM_DEVICE, j->out, j->out_bytes);
    be->release(be, MS_MEM_DEVICE, j->extra, j->extra_bytes);
    be->release(be, MS_MEM_DEVICE, j->state, j->state_bytes);
    free(j->lists);
    free(j->batches);
}

static ms_status in_and_out(job *j, size_t in, size_t out, ms_error *err) {
    MS_TRY(device_floats(j, &j->x, &j->x_bytes, in, err));
    return device_floats(j, &j->out, &j->out_bytes, out, err);
}

/* As many sets as exceed the caches of every device by far. */
static uint32_t sets_for(uint64_t bytes) {
    const uint64_t enough = (uint64_t)640 << 20;
    uint64_t sets = enough / bytes + 1;
    return sets > MAX_SETS ? (uint32_t)MAX_SETS : (uint32_t)sets;
}

/* ------------------------------------------------------------------ kinds of cases */

static ms_status begin_dense(job *j, ms_scratch_need *need, ms_error *err) {
    const bench_case *c = &j->c;
    bool mlp = c->kind == CASE_MLP;
    need->input_cols = c->cols;
    if (mlp) need->mlp_width = c->rows;
    if (c->kind == CASE_ROUTER) need->router_experts = c->rows;
    j->bytes = ms_weight_bytes(c->format, c->rows, c->cols) * c->count;
    j->flops = 2.0 * c->n * c->rows * c->cols * c->count;
    j->sets = c->n == 1 ? sets_for(j->bytes) : 1;
    MS_TRY(in_and_out(j, (size_t)c->n * c->cols, (size_t)c->n * (mlp ? c->cols : c->rows * c->count), err));
    for (uint32_t s = 0; s < j->sets; s++) {
        for (uint32_t p = 0; p < c->count; p++) {
            bool down = mlp && p == 2;
            uint32_t rows = down ? c->cols : c->rows, cols = down ? c->rows : c->cols;
            MS_TRY(make_weight(j, &j->weight[s][p], c->format, rows, cols, err));
        }
    }
    if (c->kind != CASE_ROUTER) return MS_OK;
    MS_TRY(device_floats(j, &j->extra, &j->extra_bytes, (size_t)c->n * TOP, err));
    return make_weight(j, &j->vector[0], MS_FORMAT_F32, 1, c->rows, err);
}

static void run_dense(job *j, uint32_t set) {
    ms_backend *be = j->be;
    const bench_case *c = &j->c;
    const ms_weight *w = j->weight[set];
    if (c->kind == CASE_MLP) {
        be->mlp(be, j->out, j->x, c->n, &w[0], &w[1], &w[2], (ms_situ){4.0f, 25.0f});
    } else if (c->kind == CASE_ROUTER) {
        ms_router r = {.gate = &w[0], .bias = &j->vector[0], .top_k = TOP, .renormalize = true, .scale = 1.0f};
        be->router_topk(be, (uint32_t *)(void *)j->out, j->extra, j->x, c->n, &r);
    } else {
        ms_product p[MAX_PRODUCTS];
        for (uint32_t i = 0; i < c->count; i++)
            p[i] = (ms_product){&w[i], j->out + (size_t)i * c->n * c->rows, c->rows, false};
        be->project(be, j->x, c->n, p, c->count);
    }
}

/* One row: the next TOP experts of all.  More rows: TOP different experts each, at random. */
static ms_status choose_experts(job *j, ms_error *err) {
    const bench_case *c = &j->c;
    const uint32_t total = c->count;
    const size_t pairs = (size_t)c->n * TOP, slot = j->state_bytes / total;
    j->lists = calloc(pairs * 3 + 2 * (size_t)total, sizeof *j->lists);
    j->batches = calloc(total, sizeof *j->batches);
    if (!j->lists || !j->batches) return ms_fail_memory(err, "expert lists", pairs * 3 * sizeof *j->lists);
    uint32_t *row = j->lists, *pair = row + pairs, *chosen = pair + pairs, *deck = chosen + pairs, *at = deck + total;
    uint32_t seed = 12345;
    for (uint32_t e = 0; e < total; e++) deck[e] = e;
    for (size_t i = 0; i < pairs; i++) {
        uint32_t k = (uint32_t)(i % TOP), other = k + next_random(&seed) % (total - k), e = deck[other];
        deck[other] = deck[k];
        deck[k] = e;
        chosen[i] = e;
        at[e]++;
    }
    uint32_t first = 0;
    for (uint32_t e = 0; e < total; e++) {
        uint32_t count = at[e];
        if (count)
            j->batches[j->batch_count++] = (ms_expert_batch){j->state + e * slot, row + first, pair + first, count};
        at[e] = first;
        first += count;
    }
    for (size_t i = 0; i < pairs; i++) {
        uint32_t k = at[chosen[i]]++;
        row[k] = (uint32_t)(i / TOP);
        pair[k] = (uint32_t)i;
    }
    if (c->n > 1) return MS_OK;
    j->sets = total / TOP;
    j->batch_count = total;
    for (uint32_t e = 0; e < total; e++) {
        row[e % TOP] = 0;
        pair[e % TOP] = e % TOP;
        j->batches[e] = (ms_expert_batch){j->state + e * slot, row + e % TOP, pair + e % TOP, 1};
    }
    return MS_OK;
}

static ms_status fill_slots(job *j, ms_expert_shape shape, size_t slot, ms_error *err) {
    void *staging;
    MS_TRY(j->be->alloc(j->be, MS_MEM_STAGING, slot, "expert", &staging, err));
    uint8_t *p = staging;
    uint32_t seed = 77;
    /* Bytes of weights and of scales alike: 112..127, both codes and powers of two of moderate size. */
    for (size_t i = 0; i < slot; i++) p[i] = (uint8_t)(112 + next_random(&seed) % 16);
    ms_status st = MS_OK;
    for (uint32_t e = 0; e < j->c.count && st == MS_OK; e++)
        st = j->be->install(j->be, j->state + e * slot, staging, shape, err);
    j->be->release(j->be, MS_MEM_STAGING, staging, slot);
    return st;
}

static ms_status begin_experts(job *j, ms_scratch_need *need, ms_error *err) {
    const bench_case *c = &j->c;
    ms_expert_shape shape = {.hidden = c->cols, .inner = c->rows};
    size_t slot = ms_expert_bytes(shape);
    void *slots;
    need->expert = shape;
    need->pairs = c->n * TOP;
    MS_TRY(j->be->alloc(j->be, MS_MEM_DEVICE, slot * c->count, "experts", &slots, err));
    j->state = slots;
    j->state_bytes = slot * c->count;
    MS_TRY(in_and_out(j, (size_t)c->n * c->cols, (size_t)c->n * TOP * c->cols, err));
    MS_TRY(fill_slots(j, shape, slot, err));
    j->sets = 1;
    MS_TRY(choose_experts(j, err));
    j->bytes = (uint64_t)slot * (c->n == 1 ? (uint32_t)TOP : j->batch_count);
    j->flops = 6.0 * c->n * TOP * c->rows * c->cols;
    return MS_OK;
}

static void run_experts(job *j, uint32_t set) {
    ms_expert_shape shape = {.hidden = j->c.cols, .inner = j->c.rows};
    bool one = j->c.n == 1;
    j->be->experts_begin(j->be, j->x, j->c.n, shape);
    j->be->experts_run(j->be, j->out, shape, (ms_situ){4.0f, 25.0f}, j->batches + (one ? set * TOP : 0),
                       one ? (uint32_t)TOP : j->batch_count);
}

static size_t kda_state_bytes(const bench_case *c) { return (size_t)c->rows * c->cols * c->cols * sizeof(float); }

static ms_status begin_kda(job *j, ms_scratch_need *need, ms_error *err) {
    const bench_case *c = &j->c;
    const uint32_t inner = c->rows * c->cols;
    need->kda_heads = c->rows;
    need->kda_dim = c->cols;
    need->kda_taps = TAPS;
    const size_t history = (size_t)3 * (TAPS - 1) * inner * ms_state_element_bytes(j->be->precision);
    const size_t set = 2 * (kda_state_bytes(c) + history);
    j->bytes = set;
    j->flops = 2.0 * c->n * c->rows * c->cols * c->cols * 4.0;
    j->sets = sets_for(set);
    void *states;
    MS_TRY(j->be->alloc(j->be, MS_MEM_DEVICE, set * j->sets, "states", &states, err));
    j->state = states;
    j->state_bytes = set * j->sets;
    MS_TRY(in_and_out(j, (size_t)c->n * inner, (size_t)c->n * inner, err));
    MS_TRY(device_floats(j, &j->extra, &j->extra_bytes, (size_t)c->n * c->rows, err));
    for (size_t i = 0; i < 3; i++) MS_TRY(make_weight(j, &j->vector[i], MS_FORMAT_F32, inner, TAPS, err));
    MS_TRY(make_weight(j, &j->vector[3], MS_FORMAT_F32, 1, c->rows, err));
    MS_TRY(make_weight(j, &j->vector[4], MS_FORMAT_F32, 1, inner, err));
    return make_weight(j, &j->vector[5], MS_FORMAT_F32, 1, c->cols, err);
}

static void run_kda(job *j, uint32_t set) {
    const ms_weight *v = j->vector;
    ms_kda kda = {.heads = j->c.rows, .dim = j->c.cols, .taps = TAPS, .gate_bound = -5.0f, .norm_eps = 1e-5f,
                  .conv = {&v[0], &v[1], &v[2]}, .a_log = &v[3], .dt_bias = &v[4], .o_norm = &v[5]};
    const size_t state = kda_state_bytes(&j->c), bytes = j->state_bytes / j->sets, history = bytes / 2 - state;
    uint8_t *p = j->state + set * bytes;
    ms_kda_io io = {.q = j->x, .k = j->x, .v = j->x, .e = j->x, .b = j->extra, .g = j->x, .out = j->out,
                    .state_in = (float *)(void *)p, .state_out = (float *)(void *)(p + state),
                    .history_in = p + 2 * state, .history_out = p + 2 * state + history};
    j->be->kda_range(j->be, &kda, &io, j->c.n);
}

static ms_status begin_mla(job *j, ms_scratch_need *need, ms_error *err) {
    const bench_case *c = &j->c;
    const uint32_t extra = c->cols / (RANK / EXTRA), dim = c->cols / (RANK / HEAD_DIM);
    const uint64_t row = (uint64_t)(c->cols + extra) * ms_state_element_bytes(j->be->precision);
    need->mla_heads = c->rows;
    need->mla_nope = need->mla_value = dim;
    need->mla_extra = extra;
    need->mla_rank = c->cols;
    need->context = (uint64_t)c->count + c->n;
    const uint64_t kv_b = ms_weight_bytes(MS_FORMAT_BF16, c->rows * 2 * dim, c->cols);
    j->bytes = row * need->context + kv_b;
    j->flops = 2.0 * c->n * c->rows *
               (2.0 * dim * c->cols + (c->count + (c->n + 1.0) / 2.0) * (2.0 * c->cols + extra));
    j->sets = c->n == 1 ? sets_for(j->bytes) : 1;
    void *cache;
    j->state_bytes = row * need->context * j->sets;
    MS_TRY(j->be->alloc(j->be, MS_MEM_DEVICE, j->state_bytes, "cache rows", &cache, err));
    j->state = cache;
    size_t q = (size_t)c->n * c->rows * (dim + extra);
    MS_TRY(in_and_out(j, q, (size_t)c->n * c->rows * dim, err));
    MS_TRY(make_weight(j, &j->vector[0], MS_FORMAT_F32, 1, c->cols, err));
    for (uint32_t s = 0; s < j->sets; s++)
        MS_TRY(make_weight(j, &j->weight[s][0], MS_FORMAT_BF16, c->rows * 2 * dim, c->cols, err));
    return MS_OK;
}

static void run_mla(job *j, uint32_t set) {
    const bench_case *c = &j->c;
    const uint32_t extra = c->cols / (RANK / EXTRA), dim = c->cols / (RANK / HEAD_DIM);
    ms_mla mla = {.heads = c->rows, .nope = dim, .extra = extra, .value = dim, .rank = c->cols, .norm_eps = 1e-6f,
                  .scale = 0.0721688f, .kv_norm = &j->vector[0], .kv_b = &j->weight[set][0]};
    ms_mla_io io = {.q = j->x, .c = j->x, .gate = j->x, .out = j->out, .position = c->count,
                    .rows = j->state + set * (j->state_bytes / j->sets)};
    j->be->mla_range(j->be, &mla, &io, c->n);
}

/* c.cols key heads: those of a layer with a window or of one without. */
static uint64_t gqa_window(const bench_case *c) { return c->cols == GQA_SLIDING ? GQA_WINDOW : 0; }
static uint64_t gqa_ring(const bench_case *c) {
    const uint64_t least = gqa_window(c) + c->n;
    return gqa_window(c) ? (least + MS_GQA_BLOCK - 1) / MS_GQA_BLOCK * MS_GQA_BLOCK : 0;
}

static ms_status begin_gqa(job *j, ms_scratch_need *need, ms_error *err) {
    const bench_case *c = &j->c;
    const size_t k = (size_t)c->cols * GQA_KEY, v = (size_t)c->cols * GQA_VALUE;
    const uint64_t row = (k + v) * ms_state_element_bytes(j->be->precision), window = gqa_window(c);
    need->gqa_heads = c->rows;
    need->gqa_group = c->rows / c->cols;
    need->gqa_key = GQA_KEY;
    need->gqa_value = GQA_VALUE;
    need->context = (uint64_t)c->count + c->n;
    const uint64_t stored = window ? gqa_ring(c) : need->context, seen = window ? window - 1 + c->n : stored;
    j->bytes = row * (seen < need->context ? seen : need->context);
    j->flops = 2.0 * c->n * c->rows * (GQA_KEY + GQA_VALUE) *
               (window ? (double)window : c->count + (c->n + 1.0) / 2.0);
    j->sets = c->n == 1 ? sets_for(j->bytes) : 1;
    j->state_bytes = row * stored * j->sets;
    void *cache;
    MS_TRY(j->be->alloc(j->be, MS_MEM_DEVICE, j->state_bytes, "cache rows", &cache, err));
    j->state = cache;
    MS_TRY(in_and_out(j, (size_t)c->n * c->rows * GQA_KEY, (size_t)c->n * c->rows * GQA_VALUE, err));
    MS_TRY(device_floats(j, &j->extra, &j->extra_bytes, (size_t)c->n * (k + v + GQA_ROTARY), err));
    return make_weight(j, &j->vector[0], MS_FORMAT_F32, 1, c->rows, err);
}

static void run_gqa(job *j, uint32_t set) {
    const bench_case *c = &j->c;
    const float *k = j->extra, *v = k + (size_t)c->n * c->cols * GQA_KEY;
    ms_gqa gqa = {.heads = c->rows, .kv_heads = c->cols, .key = GQA_KEY, .value = GQA_VALUE, .rotary = GQA_ROTARY,
                  .window = (uint32_t)gqa_window(c), .scale = 0.0721688f, .value_scale = 0.707f,
                  .sink = gqa_window(c) ? &j->vector[0] : NULL};
    ms_gqa_io io = {.q = j->x, .k = k, .v = v, .rope = v + (size_t)c->n * c->cols * GQA_VALUE, .ring = gqa_ring(c),
                    .position = c->count, .rows = j->state + set * (j->state_bytes / j->sets), .out = j->out};
    j->be->gqa_range(j->be, &gqa, &io, c->n);
}

/* Mix: c.rows closed blocks and the running sum; sum: c.rows results a row.  Both with the norm behind them. */
static ms_status begin_rows(job *j, ms_scratch_need *need, ms_error *err) {
    const bench_case *c = &j->c;
    const uint32_t sources = c->rows + (c->kind == CASE_MIX);
    need->input_cols = c->cols;
    j->bytes = (uint64_t)c->n * sources * c->cols * sizeof(float);
    j->flops = (c->kind == CASE_MIX ? 6.0 : 2.0) * c->n * sources * c->cols;
    j->sets = 1;
    MS_TRY(in_and_out(j, (size_t)c->n * sources * c->cols, (size_t)c->n * c->cols, err));
    MS_TRY(device_floats(j, &j->extra, &j->extra_bytes, (size_t)c->n * c->rows, err));
    MS_TRY(make_weight(j, &j->vector[0], MS_FORMAT_F32, 1, c->cols, err));
    return make_weight(j, &j->vector[1], MS_FORMAT_F32, 1, c->cols, err);
}

static void run_rows(job *j, uint32_t set) {
    const bench_case *c = &j->c;
    const size_t rows = (size_t)c->n * c->cols;
    (void)set;
    ms_mix mix = {.blocks = j->x, .block_stride = rows, .block_count = c->rows, .prefix = j->x + c->rows * rows,
                  .score = &j->vector[0]};
    if (c->kind == CASE_MIX) j->be->mix_norm(j->be, j->out, &mix, c->n, c->cols, 1e-5f, &j->vector[1]);
    else j->be->experts_reduce_norm(j->be, j->out, j->x, j->extra, c->n, c->rows, c->cols, &j->vector[1], 1e-5f);
}

static const struct {
    ms_status (*begin)(job *j, ms_scratch_need *need, ms_error *err);
    void (*run)(job *j, uint32_t set);
} kinds[] = {
    [CASE_PROJECT] = {begin_dense, run_dense},     [CASE_MLP] = {begin_dense, run_dense},
    [CASE_ROUTER] = {begin_dense, run_dense},      [CASE_EXPERTS] = {begin_experts, run_experts},
    [CASE_KDA] = {begin_kda, run_kda},             [CASE_MLA] = {begin_mla, run_mla},
    [CASE_GQA] = {begin_gqa, run_gqa},             [CASE_MIX] = {begin_rows, run_rows},
    [CASE_SUM] = {begin_rows, run_rows},
};

/* ------------------------------------------------------------------ timing */

static ms_status time_repetitions(job *j, uint32_t repetitions, double *seconds, ms_error *err) {
    uint64_t begin = ms_clock_ns();
    for (uint32_t i = 0; i < repetitions; i++) {
        kinds[j->c.kind].run(j, j->next);
        j->next = (j->next + 1) % j->sets;
    }
    MS_TRY(j->be->sync(j->be, err));
    *seconds = (double)(ms_clock_ns() - begin) * 1e-9;
    return MS_OK;
}

/* Seconds of one operation: the median of the rounds. */
static ms_status time_job(job *j, const gpu_flags *f, double *seconds, ms_error *err) {
    double least = 1e-3 * f->milliseconds, took, round[MAX_ROUNDS];
    uint32_t repetitions = 1;
    MS_TRY(time_repetitions(j, 1, &took, err)); /* first use of everything */
    for (;;) {
        MS_TRY(time_repetitions(j, repetitions, &took, err));
        if (took >= least || repetitions >= 1u << 16) break;
        double more = took > 0 ? least / took * 1.2 : 16.0;
        repetitions = more > 16.0 ? repetitions * 16 : (uint32_t)((double)repetitions * more) + 1;
    }
    for (uint32_t r = 0; r < f->rounds; r++) {
        MS_TRY(time_repetitions(j, repetitions, &took, err));
        round[r] = took / repetitions;
    }
    *seconds = ms_probe_median(round, f->rounds);
    return MS_OK;
}

/* Bytes read and written a second by copies within the device. */
static ms_status copy_rate(ms_backend *be, const gpu_flags *f, double *rate, ms_error *err) {
    const size_t half = (size_t)(f->shapes ? 16 : 2048) << 20;
    enum { COPIES = 4 };
    double round[MAX_ROUNDS];
    void *p;
    MS_TRY(be->alloc(be, MS_MEM_DEVICE, 2 * half, "copy area", &p, err));
    uint8_t *area = p;
    ms_status st = MS_OK;
    for (uint32_t r = 0; r <= f->rounds && st == MS_OK; r++) { /* the first is not counted */
        uint64_t begin = ms_clock_ns();
        for (int i = 0; i < COPIES; i++) be->copy(be, area + (i % 2 ? half : 0), area + (i % 2 ? 0 : half), half);
        st = be->sync(be, err);
        double took = (double)(ms_clock_ns() - begin) * 1e-9;
        if (r) round[r - 1] = 2.0 * COPIES * (double)half / took;
    }
    be->release(be, MS_MEM_DEVICE, p, 2 * half);
    if (st == MS_OK) *rate = ms_probe_median(round, f->rounds);
    return st;
}

/* ------------------------------------------------------------------ the run */

static bench_case shrunk(const bench_case *c, int shapes) {
    bench_case s = *c;
    if (!shapes) return s;
    bool attention = c->kind == CASE_KDA || c->kind == CASE_MLA || c->kind == CASE_GQA;
    bool whole = c->kind == CASE_MIX || c->kind == CASE_SUM;
    if (!whole) s.rows /= c->kind == CASE_GQA ? 4 : SMALL_DIVISOR; /* a multiple of the key heads */
    if (!attention) s.cols /= SMALL_DIVISOR;
    if (c->kind == CASE_EXPERTS && c->n > 1 && c->count > TOP) s.count /= SMALL_DIVISOR;
    if (c->kind == CASE_MLA || c->kind == CASE_GQA) s.count /= SMALL_DIVISOR;
    if (s.n > 1) s.n /= SMALL_DIVISOR;
    return s;
}

static ms_status begin_job(job *j, ms_error *err) {
    ms_scratch_need need = {.rows = j->c.n, .context = 1};
    MS_TRY(kinds[j->c.kind].begin(j, &need, err));
    MS_TRY(j->be->scratch_reserve(j->be, &need, err));
    return j->be->sync(j->be, err);
}

typedef struct rates {
    double copy, matrix; /* bytes and operations a second; 0: not measured */
} rates;

static void report(const job *j, double seconds, const rates *r, ms_text *csv) {
    double bytes = (double)j->bytes / seconds, flops = j->flops / seconds;
    double of_copy = bytes / r->copy, of_matrix = r->matrix > 0 ? flops / r->matrix : 0;
    printf("%-22s %6" PRIu32 " x %-5" PRIu32 " %5" PRIu32 " %10.1f %9.1f %6.1f%% %9.2f ", j->c.name, j->c.rows,
           j->c.cols, j->c.n, seconds * 1e6, bytes * 1e-9, 100 * of_copy, flops * 1e-12);
    if (r->matrix > 0) printf("%6.1f%%\n", 100 * of_matrix);
    else puts("      -");
    (void)fflush(stdout);
    ms_text_printf(csv, "\"%s\",%" PRIu32 ",%" PRIu32 ",%" PRIu32 ",%.3f,%.3f,%.4f,%.4f,%.4f\n",
                   j->c.name, j->c.rows, j->c.cols, j->c.n, seconds * 1e6, bytes * 1e-9,
                   of_copy, flops * 1e-12, of_matrix);
}

static ms_status run_case(ms_backend *be, const gpu_flags *f, const bench_case *c, const rates *r, ms_text *csv,
                          ms_error *err) {
    job *j = calloc(1, sizeof *j);
    if (!j) return ms_fail_memory(err, "case", sizeof *j);
    j->be = be;
    j->c = shrunk(c, f->shapes);
    double seconds = 0;
    ms_status st = begin_job(j, err);
    if (st == MS_ERR_MEMORY) {
        printf("%-22s left out: %s\n", c->name, err->message);
        st = be->sync(be, err);
    } else {
        if (st == MS_OK) st = time_job(j, f, &seconds, err);
        if (st == MS_OK) report(j, seconds, r, csv);
    }
    end_job(j);
    free(j);
    return st;
}

static ms_status run(ms_backend *be, const gpu_flags *f, ms_text *csv, ms_error *err) {
    rates r = {0};
    char why[128];
    ms_text machine = {0};
    ms_probe_machine(&machine);
    if (machine.data) printf("%s", machine.data);
    ms_text_free(&machine);
    MS_TRY(copy_rate(be, f, &r.copy, err));
    printf("backend %s, %s: copies %.1f GB/s (read and written), ", be->name, be->kernels, r.copy * 1e-9);
    MS_TRY(ms_probe_gemm(be, f->shapes ? 256 : 8192, f->rounds, &r.matrix, why, sizeof why, err));
    if (r.matrix > 0) printf("bf16 matrices %.1f TFLOP/s\n", r.matrix * 1e-12);
    else printf("bf16 matrices not measured: %s\n", why);
    printf("medians of %" PRIu32 " rounds of at least %" PRIu32 " ms; GB/s are weights or state of one operation\n\n"
           "case                   rows   cols       n         us      GB/s of copy   TFLOP/s of bf16\n",
           f->rounds, f->milliseconds);
    ms_text_printf(csv, "case,rows,cols,n,us,GBps,of_copy,TFLOPps,of_bf16\ncopy,,,,,%.3f,,,\n"
                   "bf16 matrices,,,,,,,%.4f,\n",
                   r.copy * 1e-9, r.matrix * 1e-12);
    for (size_t i = 0; i < COUNT(cases); i++)
        if (!f->only || strstr(cases[i].name, f->only)) MS_TRY(run_case(be, f, &cases[i], &r, csv, err));
    return MS_OK;
}

static ms_status open_and_run(const char *program, const gpu_flags *f, ms_error *err) {
    ms_backend_options o = {.name = f->backend,
                            .precision = MS_PRECISION_FAST,
                            .range_blas = f->range_backend != 0,
                            .log = ms_command_log,
                            .log_arg = (void *)(uintptr_t)program};
    ms_backend *be;
    ms_text csv = {0};
    MS_TRY(ms_backend_open(&be, &o, err));
    ms_status st = run(be, f, &csv, err);
    be->destroy(be);
    if (st == MS_OK && csv.failed) st = ms_fail_memory(err, "report", csv.len);
    if (st == MS_OK) st = ms_probe_save_file(f->csv, &csv, err);
    ms_text_free(&csv);
    return st;
}

int ms_bench_gpu(int argc, char **argv) {
    static const char program[] = "moonshine bench gpu";
    gpu_flags flags = {.backend = "auto", .rounds = 5, .milliseconds = 40};
    const ms_option_group groups[] = {{"Options", options, COUNT(options), &flags}};
    const ms_option_set set = {
        .program = program,
        .synopsis = "[options]",
        .about = "Measures the operations of a backend at the sizes of the official model: products of one row beside "
                 "the rate of copies in the device's memory, products of many rows beside its bf16 matrix rate, "
                 "attention and router. Needs about 20 GB of the device's memory; cases that do not fit are left out.",
        .groups = groups,
        .group_count = COUNT(groups),
    };
    ms_option_result result;
    int code = ms_command_parse(&set, argc, argv, &result);
    if (code >= 0) return code;
    ms_error err;
    return open_and_run(program, &flags, &err) == MS_OK ? ms_command_finish(program) : ms_command_fail(program, &err);
}
