/* cpu_kda.c: KDA over a range of tokens: convolution, norms, gates and the recurrence, one task a head. */
#include "backend/cpu/cpu.h"

#include "base/bytes.h"
#include "base/fmath.h"

enum { STREAMS = 3 };
#define KDA_NORM_EPS 1e-6f /* added to the sum of squares */

typedef struct kda_job {
    const cpu_backend *c;
    const ms_kda *kda;
    const ms_kda_io *io;
    const float *conv[STREAMS], *a_log, *dt_bias, *o_norm;
    uint32_t n;
} kda_job;

/* What one worker holds of a head; T = CPU_KDA_TOKENS. */
typedef struct kda_work {
    float *taps[STREAMS];   /* [taps][dim] */
    float *window[STREAMS]; /* [taps - 1 + T][dim]: convolution inputs, the last of the past first */
    float *conv[STREAMS];   /* [T][dim]: q, k, v */
    float *alpha, *o;       /* [T][dim] */
    float *beta;            /* [T] */
    float *columns;         /* [dim][16] */
} kda_work;

uint64_t cpu_kda_worker_floats(uint32_t dim, uint32_t taps) {
    uint64_t t = CPU_KDA_TOKENS, window = taps ? taps - 1 + t : t;
    return dim * (STREAMS * (taps + window + t) + 2 * t + MS_CPU_KDA_COLUMNS) + t;
}

static kda_work work_of(const kda_job *j, unsigned worker) {
    kda_work w;
    size_t dim = j->kda->dim, taps = j->kda->taps;
    float *at = cpu_worker(j->c, worker);
    for (int s = 0; s < STREAMS; s++) {
        w.taps[s] = at;
        w.window[s] = at + taps * dim;
        w.conv[s] = w.window[s] + (taps - 1 + CPU_KDA_TOKENS) * dim;
        at = w.conv[s] + CPU_KDA_TOKENS * dim;
    }
    w.alpha = at;
    w.o = at + CPU_KDA_TOKENS * dim;
    w.beta = w.o + CPU_KDA_TOKENS * dim;
    w.columns = w.beta + CPU_KDA_TOKENS;
    return w;
}

/* History rows of a head to the front of the windows. */
static void load_history(const kda_job *j, const kda_work *w, size_t head) {
    size_t dim = j->kda->dim, past = j->kda->taps - 1, inner = (size_t)j->kda->heads * dim;
    for (size_t s = 0; s < STREAMS; s++) {
        for (size_t r = 0; r < past; r++) {
            size_t at = (s * past + r) * inner + head * dim;
            float *row = w->window[s] + r * dim;
            if (cpu_fast(j->c))
                j->c->k->from_bf16(row, (const uint16_t *)j->io->history_in + at, dim);
            else
                memcpy(row, (const float *)j->io->history_in + at, dim * sizeof *row);
        }
    }
}

/* The front of the windows, the newest inputs by now, to the history. */
static void store_history(const kda_job *j, const kda_work *w, size_t head) {
    size_t dim = j->kda->dim, past = j->kda->taps - 1, inner = (size_t)j->kda->heads * dim;
    for (size_t s = 0; s < STREAMS; s++) {
        for (size_t r = 0; r < past; r++) {
            size_t at = (s * past + r) * inner + head * dim;
            const float *row = w->window[s] + r * dim;
            if (cpu_fast(j->c))
                j->c->k->to_bf16((uint16_t *)j->io->history_out + at, row, dim);
            else
                memcpy((float *)j->io->history_out + at, row, dim * sizeof *row);
        }
    }
}

/* Convolution of `count` tokens from t0 on; leaves the newest inputs at the front of the window for what follows. */
static void convolve(const kda_job *j, const kda_work *w, size_t head, size_t t0, size_t count) {
    const ms_cpu_kernels *k = j->c->k;
    size_t dim = j->kda->dim, taps = j->kda->taps, past = taps - 1, inner = (size_t)j->kda->heads * dim;
    const float *streams[STREAMS] = {j->io->q, j->io->k, j->io->v};
    for (int s = 0; s < STREAMS; s++) {
        for (size_t t = 0; t < count; t++) {
            const float *z = streams[s] + (t0 + t) * inner + head * dim;
            float *row = w->window[s] + (past + t) * dim;
            if (cpu_fast(j->c))
                k->round_bf16(row, z, dim);
            else
                memcpy(row, z, dim * sizeof *row);
        }
        for (size_t t = 0; t < count; t++) {
            float *y = w->conv[s] + t * dim;
            memset(y, 0, dim * sizeof *y);
            for (size_t tap = 0; tap < taps; tap++)
                k->fma_rows(y, w->taps[s] + tap * dim, w->window[s] + (t + tap) * dim, dim);
            k->gate(y, y, y, dim);
        }
        memmove(w->window[s], w->window[s] + count * dim, past * dim * sizeof(float));
    }
}

/* Norms of q and k, decay and write strength. */
static void prepare(const kda_job *j, const kda_work *w, size_t head, size_t t0, size_t count) {
    const ms_cpu_kernels *k = j->c->k;
    size_t dim = j->kda->dim, heads = j->kda->heads;
    float q_scale = 1.0f / sqrtf((float)dim), a = ms_exp(j->a_log[head]);
    for (size_t t = 0; t < count; t++) {
        float *q = w->conv[0] + t * dim, *key = w->conv[1] + t * dim;
        k->scale(q, q, 1.0f / sqrtf(k->dot(q, q, dim) + KDA_NORM_EPS), dim);
        k->scale(q, q, q_scale, dim);
        k->scale(key, key, 1.0f / sqrtf(k->dot(key, key, dim) + KDA_NORM_EPS), dim);
        k->decay(w->alpha + t * dim, j->io->e + ((t0 + t) * heads + head) * dim, j->dt_bias + head * dim, a,
                 j->kda->gate_bound, dim);
        w->beta[t] = ms_sigmoid(j->io->b[(t0 + t) * heads + head]);
    }
}

static void recur(const kda_job *j, const kda_work *w, size_t head, size_t t0, size_t count) {
    size_t dim = j->kda->dim;
    const float *before = t0 == 0 ? j->io->state_in : j->io->state_out;
    for (size_t first = 0; first < dim; first += MS_CPU_KDA_COLUMNS) {
        ms_cpu_kda_run run = {.dim = dim,
                              .tokens = count,
                              .q = w->conv[0],
                              .k = w->conv[1],
                              .alpha = w->alpha,
                              .beta = w->beta,
                              .v = w->conv[2] + first,
                              .o = w->o + first,
                              .state_in = before + head * dim * dim + first,
                              .state = j->io->state_out + head * dim * dim + first,
                              .work = w->columns};
        j->c->k->kda_columns(&run, dim - first < MS_CPU_KDA_COLUMNS ? dim - first : MS_CPU_KDA_COLUMNS);
    }
}

static void kda_task(void *arg, size_t head, unsigned worker) {
    const kda_job *j = arg;
    const ms_cpu_kernels *k = j->c->k;
    kda_work w = work_of(j, worker);
    size_t dim = j->kda->dim, taps = j->kda->taps, heads = j->kda->heads;
    for (int s = 0; s < STREAMS; s++)
        for (size_t d = 0; d < dim; d++)
            for (size_t tap = 0; tap < taps; tap++)
                w.taps[s][tap * dim + d] = j->conv[s][(head * dim + d) * taps + tap];
    load_history(j, &w, head);
    if (j->n == 0) {
        size_t at = head * dim * dim;
        memcpy(j->io->state_out + at, j->io->state_in + at, dim * dim * sizeof(float));
    }
    for (size_t t0 = 0; t0 < j->n; t0 += CPU_KDA_TOKENS) {
        size_t count = j->n - t0 < CPU_KDA_TOKENS ? j->n - t0 : CPU_KDA_TOKENS;
        convolve(j, &w, head, t0, count);
        prepare(j, &w, head, t0, count);
        recur(j, &w, head, t0, count);
        for (size_t t = 0; t < count; t++) {
            const float *o = w.o + t * dim;
            size_t at = ((t0 + t) * heads + head) * dim;
            float r = 1.0f / sqrtf(k->dot(o, o, dim) / (float)dim + j->kda->norm_eps);
            k->scale_mul(w.o + t * dim, o, r, j->o_norm, dim);
            k->gate(j->io->out + at, o, j->io->g + at, dim);
        }
    }
    store_history(j, &w, head);
}

void cpu_kda_range(ms_backend *be, const ms_kda *kda, const ms_kda_io *io, uint32_t n) {
    cpu_backend *c = cpu_of(be);
    const ms_scratch_need *need = &c->scratch.need;
    uint64_t inner = (uint64_t)kda->heads * kda->dim;
    bool fits = kda->dim >= 1 && kda->dim <= need->kda_dim && kda->taps >= 1 && kda->taps <= need->kda_taps;
    if (!cpu_need(c, fits && kda->heads <= need->kda_heads, "kda_range", "head shape")) return;
    kda_job job = {.c = c, .kda = kda, .io = io, .n = n};
    for (int s = 0; s < STREAMS; s++)
        if (!(job.conv[s] = cpu_f32(c, kda->conv[s], inner * kda->taps, "kda_range", "conv weight"))) return;
    job.a_log = cpu_f32(c, kda->a_log, kda->heads, "kda_range", "a_log");
    job.dt_bias = cpu_f32(c, kda->dt_bias, inner, "kda_range", "dt_bias");
    job.o_norm = cpu_f32(c, kda->o_norm, kda->dim, "kda_range", "o_norm");
    if (!job.a_log || !job.dt_bias || !job.o_norm) return;
    cpu_run(c, kda_task, &job, kda->heads);
}
