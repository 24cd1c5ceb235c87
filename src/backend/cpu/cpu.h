/* cpu.h: inside of the CPU backend, shared by its cpu_*.c files.
 *
 * Owns: the pool and the scratch arena.  Threads: one driver thread; tasks run on the pool and write disjoint outputs.
 * Invariants: work is split over outputs only; an operation that would need more scratch than was reserved keeps
 *   MS_ERR_INTERNAL as the failure and does nothing.
 */
#ifndef MS_BACKEND_CPU_CPU_H
#define MS_BACKEND_CPU_CPU_H

#include "backend/backend.h"
#include "backend/cpu/kernels.h"
#include "base/pool.h"

enum {
    CPU_X_BLOCK = 16,        /* input rows that a task takes through a weight chunk together */
    CPU_TASK_MACS = 1 << 16, /* multiply-adds below which work is not split further: about what handing over costs */
    CPU_INSTALL_BYTES = 1 << 16, /* of an expert that a task moves */
    CPU_MLP_CHUNK = 128,     /* inner columns of a task of mlp(): one Q8 group */
    CPU_TILE = 32,           /* rows of an MXFP4 tile: one group of the next product */
    CPU_KDA_TOKENS = 16,     /* tokens whose conv outputs a KDA task holds at a time */
    CPU_MLA_HEADS = 8,       /* most heads of one MLA task */
    CPU_GQA_HEADS = 16,      /* most query heads of one GQA task */
    CPU_GQA_ROWS = 8,        /* most rows of one */
    CPU_MIX_SOURCES = 256    /* most sources of one mix */
};

/* Pointers into one arena; [rows][dim] areas are dense. */
typedef struct cpu_scratch {
    ms_scratch_need need;
    void *base;
    uint64_t bytes;
    uint64_t max_cols; /* widest vector: row decode and norm weights */
    float *vector;     /* [max_cols] a norm weight widened to f32 */
    int8_t *x_q;       /* [rows][input_cols] */
    float *x_s;        /* [rows][q8 groups of input_cols] */
    float *act;        /* [rows][mlp_width] */
    int8_t *act_q;     /* [rows][mlp_width], fast only, as all of *_q and *_s */
    float *act_s;
    float *z; /* [rows][hidden], reference only */
    int8_t *z_q;
    float *z_s;   /* [rows][hidden / 32] */
    float *e_act; /* [pairs][inner], reference only */
    int8_t *e_q;
    float *e_s;          /* [pairs][inner / 32] */
    float *router;       /* [rows][router_experts] */
    uint8_t *router_bad; /* [rows] */
    uint8_t *worker;     /* [threads][worker_bytes] */
    uint64_t worker_bytes;
} cpu_scratch;

typedef struct cpu_backend {
    ms_backend base; /* first: the public object is this one */
    const ms_cpu_kernels *k;
    ms_pool *pool;
    ms_error failure; /* code MS_OK: none kept */
    const void *fetch_from; /* between fetch_begin and fetch_end */
    size_t fetch_bytes;
    cpu_scratch scratch;
    uint32_t experts_n; /* rows prepared by experts_begin */
    ms_expert_shape experts_shape;
} cpu_backend;

/* Input rows of products, as f32 and, for products that read int8, quantised in groups of 128. */
typedef struct cpu_input {
    const float *x;
    size_t x_stride;
    uint32_t n;
    ms_cpu_q8 q;
} cpu_input;

static inline cpu_backend *cpu_of(ms_backend *be) { return (cpu_backend *)be; }
static inline bool cpu_fast(const cpu_backend *c) { return c->base.precision == MS_PRECISION_FAST; }
static inline void *cpu_worker(const cpu_backend *c, unsigned worker) {
    return c->scratch.worker + worker * c->scratch.worker_bytes;
}

/* Runs tasks on the pool, a single one on the caller. */
void cpu_run(cpu_backend *c, ms_pool_fn *fn, void *arg, size_t tasks);
/* Keeps the first failure for sync(). */
void cpu_keep_failure(cpu_backend *c, ms_status code, const char *fmt, ...) MS_PRINTF(3, 4);
/* Keeps MS_ERR_INTERNAL and returns false unless ok; `what` says which need was exceeded. */
bool cpu_need(cpu_backend *c, bool ok, const char *op, const char *what);

/* Memory: at least 64-byte aligned (4096 when paged), zeroed; NULL when there is none. */
void *cpu_memory_new(size_t bytes, bool paged);
void cpu_memory_free(void *p, size_t bytes);

/* A vector weight of `dim` entries as f32; BF16 is widened into scratch.vector.  NULL, and a kept failure, when it is
 * not such a vector. */
const float *cpu_vector(cpu_backend *c, const ms_weight *w, uint32_t dim, const char *op);
/* F32 data of a weight with at least `count` elements; NULL and a kept failure otherwise. */
const float *cpu_f32(cpu_backend *c, const ms_weight *w, uint64_t count, const char *op, const char *what);

/* out = act(g, u); out may be g. */
static inline void cpu_activate(const ms_cpu_kernels *k, ms_situ act, float *out, const float *g, const float *u,
                                size_t n) {
    if (act.beta != 0.0f) {
        k->situ(out, g, u, n, act.beta, act.linear_beta);
        return;
    }
    k->gate(out, g, g, n);
    k->scale_mul(out, out, 1.0f, u, n);
}

/* True when a product of this weight reads int8 inputs. */
static inline bool cpu_quantised(const cpu_backend *c, const ms_weight *w, bool exact_input) {
    return cpu_fast(c) && w->format == MS_FORMAT_Q8 && !exact_input;
}

/* out[i * out_stride + r - first] for rows [first, last) of w, first % 8 == 0, inputs [x_first, x_first + x_count). */
void cpu_product_rows(const cpu_backend *c, const ms_weight *w, bool quantised, const cpu_input *in, uint32_t x_first,
                      uint32_t x_count, uint32_t first, uint32_t last, float *out, size_t out_stride, unsigned worker);

/* Members of ms_backend, by file. */
ms_status cpu_weight_create(ms_backend *be, ms_weight *w, ms_format format, uint32_t rows, uint32_t cols,
                            ms_error *err);
ms_status cpu_weight_fill(ms_backend *be, ms_weight *w, uint32_t first, uint32_t count, const void *host,
                          ms_format source, ms_error *err);
void cpu_weight_destroy(ms_backend *be, ms_weight *w);
uint64_t cpu_scratch_bytes(const ms_backend *be, const ms_scratch_need *need);
ms_status cpu_scratch_reserve(ms_backend *be, const ms_scratch_need *need, ms_error *err);
void cpu_scratch_free(cpu_backend *c);
void cpu_rms_norm(ms_backend *be, float *out, const float *x, uint32_t n, uint32_t dim, const ms_weight *w, float eps);
void cpu_mix_norm(ms_backend *be, float *out, const ms_mix *mix, uint32_t n, uint32_t dim, float eps,
                  const ms_weight *norm);
void cpu_project(ms_backend *be, const float *x, uint32_t n, const ms_product *products, uint32_t count);
void cpu_mlp(ms_backend *be, float *out, const float *x, uint32_t n, const ms_weight *gate, const ms_weight *up,
             const ms_weight *down, ms_situ act);
void cpu_add(ms_backend *be, float *sum, const float *a, const float *b, size_t count);
void cpu_kda_range(ms_backend *be, const ms_kda *kda, const ms_kda_io *io, uint32_t n);
void cpu_mla_range(ms_backend *be, const ms_mla *mla, const ms_mla_io *io, uint32_t n);
void cpu_gqa_range(ms_backend *be, const ms_gqa *gqa, const ms_gqa_io *io, uint32_t n);
void cpu_router_topk(ms_backend *be, uint32_t *ids, float *weights, const float *x, uint32_t n, const ms_router *r);
ms_status cpu_install_block(ms_backend *be, void *slot, const ms_mzg2_block *block, const ms_mzg2_tables *tables,
                            ms_error *err);
ms_status cpu_install(ms_backend *be, void *slot, const uint8_t *staging, ms_expert_shape s, ms_error *err);
void cpu_experts_begin(ms_backend *be, const float *z, uint32_t n, ms_expert_shape s);
void cpu_experts_run(ms_backend *be, float *y, ms_expert_shape s, ms_situ act, const ms_expert_batch *batches,
                     uint32_t count);
void cpu_experts_reduce_norm(ms_backend *be, float *out, const float *y, const float *weights, uint32_t n, uint32_t k,
                             uint32_t hidden, const ms_weight *norm, float eps);

/* Bytes of one worker's scratch that a family of operations needs; for the layout in cpu_scratch.c. */
uint64_t cpu_kda_worker_floats(uint32_t dim, uint32_t taps);
uint64_t cpu_mla_worker_floats(uint32_t extra, uint32_t value, uint32_t rank);
uint64_t cpu_gqa_worker_floats(uint32_t group, uint32_t key, uint32_t value);

#endif
