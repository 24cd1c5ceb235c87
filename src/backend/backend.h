/* backend.h: what a lane's graph asks of a device.
 *
 * A small set of fused operations over n rows of f32 activations; every lane is written against it and every
 * backend implements all of it.  What each operation computes, to the bit, is docs/numerics.md.
 *
 * Memory: `float *`, `void *` named dev_* or documented as device are addresses in the backend's memory; only
 *   the backend dereferences them (address arithmetic is fine).  On the CPU they are plain memory.
 * Owns: a backend owns its threads or streams and its scratch; weights and buffers belong to the caller, who frees them through
 *   the backend before destroying it.
 * Threads: one thread drives a backend.
 * Order: operations take effect in call order.  Operations do not fail one by one: a failure is kept and given by sync().
 * Rows: activations are row-major f32, row i of x at x + i * stride; "[n][dim]" means stride == dim.
 */
#ifndef MS_BACKEND_BACKEND_H
#define MS_BACKEND_BACKEND_H

#include "base/error.h"
#include "quant/mxfp4.h"
#include "store/mzg2.h"

/* FP8: e4m3 codes with a f32 scale for each 128 inputs of a row (quant/fp8.h). */
typedef enum ms_format { MS_FORMAT_F32, MS_FORMAT_BF16, MS_FORMAT_Q8, MS_FORMAT_FP8 } ms_format;

/* Keys that attention takes together, by absolute position. */
enum { MS_Q8_GROUP = 128, MS_MLA_BLOCK = 256, MS_GQA_BLOCK = 256, MS_TICKETS = 64, MS_DECODE_BATCH = 16 };

/* A matrix [rows][cols] (or vector: rows == 1) in the backend's own layout. */
typedef struct ms_weight {
    ms_format format;
    uint32_t rows, cols;
    void *data;    /* device */
    float *scales; /* device; Q8 and FP8 only */
} ms_weight;

/* Ledger size of a weight: Q8 and FP8 are rows * cols + rows * ceil(cols / 128) * 4, BF16 2 and F32 4 bytes an element. */
uint64_t ms_weight_bytes(ms_format format, uint32_t rows, uint32_t cols);

typedef struct ms_product {
    const ms_weight *weight; /* [out_dim][in_dim] */
    float *out;              /* [n] rows of out_dim, out_stride apart */
    size_t out_stride;       /* floats */
    bool exact_input;        /* never quantise the input of this product */
} ms_product;

/* Activation of a gated feed-forward.  beta 0: no cap, which is SwiGLU: g * sigmoid(g) * u. */
typedef struct ms_situ {
    float beta, linear_beta;
} ms_situ;

typedef struct ms_mix {
    const float *blocks; /* closed block j, row i at blocks + j * block_stride + i * dim */
    size_t block_stride; /* floats */
    uint32_t block_count;
    const float *prefix;     /* [n][dim]: the running sum, last source */
    const ms_weight *score;  /* u = norm weight * projection, F32 [1][dim] */
} ms_mix;

typedef struct ms_kda {
    uint32_t heads, dim, taps; /* inner = heads * dim; taps: convolution length, 2..8 */
    float gate_bound, norm_eps;
    const ms_weight *conv[3];  /* q, k, v: F32 [inner][taps], last tap is the current token */
    const ms_weight *a_log;    /* F32, first `heads` entries count */
    const ms_weight *dt_bias;  /* F32 [1][inner] */
    const ms_weight *o_norm;   /* F32 [1][dim] */
} ms_kda;

typedef struct ms_kda_io {
    const float *q, *k, *v; /* [n][inner]: projections before the convolution */
    const float *e;         /* [n][inner]: decay input */
    const float *b;         /* [n][heads] */
    const float *g;         /* [n][inner]: output gate, before sigmoid */
    /* State is read from *_in and written to *_out, never in place, so that a range that fails half way has
     * changed nothing.  in and out do not overlap. */
    const float *state_in;  /* [heads][dim key][dim value] f32 */
    float *state_out;
    const void *history_in; /* [3][taps - 1][inner], oldest row first; f32 in reference, bf16 in fast */
    void *history_out;
    float *out;             /* [n][inner] */
} ms_kda_io;

typedef struct ms_mla {
    uint32_t heads, nope, extra, value, rank;
    float norm_eps;
    float scale;               /* (nope + extra)^-0.5 */
    const ms_weight *kv_norm;  /* [1][rank] */
    const ms_weight *kv_b;     /* BF16 [heads * (nope + value)][rank] */
} ms_mla;

typedef struct ms_mla_io {
    const float *q;    /* [n][heads * (nope + extra)] */
    const float *c;    /* [n][rank + extra]: latent before its norm, then the extra key */
    const float *gate; /* [n][heads * value], before sigmoid */
    void *rows;        /* cache of one layer: [capacity][rank + extra], f32 or bf16 (row_bytes) */
    uint64_t position; /* rows that exist before this range; rows position .. position + n - 1 are written */
    float *out;        /* [n][heads * value] */
} ms_mla_io;

/* Grouped-query attention: query head h reads key and value head h / (heads / kv_heads). */
typedef struct ms_gqa {
    uint32_t heads, kv_heads; /* heads is a multiple of kv_heads */
    uint32_t key, value;      /* widths of a key and of a value */
    uint32_t rotary;          /* leading dimensions of queries and keys that are rotated; even */
    uint32_t window;          /* keys that a query sees, its own included; 0: all before it */
    float scale;              /* of scores */
    float value_scale;        /* of values, before they are stored */
    const ms_weight *sink;    /* [1][heads] logits that add to the denominator only; NULL: none */
} ms_gqa;

typedef struct ms_gqa_io {
    const float *q;    /* [n][heads * key] */
    const float *k;    /* [n][kv_heads * key] */
    const float *v;    /* [n][kv_heads * value] */
    const float *rope; /* [n][rotary]: cosines of the rotary / 2 angles, then their sines */
    /* Cache of one layer: rows of kv_heads * key, then kv_heads * value elements, f32 or bf16 (row_bytes).  Position p
     * lies in row p, or in row p % ring: ring is a multiple of MS_GQA_BLOCK and at least window - 1 + n, so that a range
     * overwrites no key that it, or a pass in its place, needs. */
    void *rows;
    uint64_t ring;     /* 0: as many rows as positions */
    uint64_t position; /* rows position .. position + n - 1 are written */
    float *out;        /* [n][heads * value] */
} ms_gqa_io;

typedef struct ms_router {
    const ms_weight *gate; /* BF16 [experts][dim] */
    const ms_weight *bias; /* F32 [1][experts] */
    uint32_t top_k;
    bool renormalize;
    float scale;
} ms_router;

/* Rows that use one expert.  row[i] indexes the activations, pair[i] the results. Host memory. */
typedef struct ms_expert_batch {
    const void *slot; /* device, slot layout */
    const uint32_t *row, *pair;
    uint32_t count;
} ms_expert_batch;

/* Scratch a backend keeps for its operations; the largest of everything that will be asked. */
typedef struct ms_scratch_need {
    uint32_t rows;         /* largest n */
    uint32_t input_cols;   /* widest input of project() and mlp() */
    uint32_t mlp_width;    /* widest inner width of mlp() */
    ms_expert_shape expert;
    uint32_t pairs;        /* most (row, expert) pairs of one experts_run */
    uint32_t kda_heads, kda_dim, kda_taps;
    uint32_t mla_heads, mla_nope, mla_extra, mla_value, mla_rank;
    uint32_t gqa_heads;    /* most query heads; 0: no gqa_range */
    uint32_t gqa_group;    /* most of them of one key head */
    uint32_t gqa_key, gqa_value;
    uint64_t context;      /* longest sequence */
    uint32_t router_experts;
} ms_scratch_need;

typedef enum ms_memory_kind {
    MS_MEM_DEVICE,  /* weights, state, activations, slots */
    MS_MEM_STAGING  /* read by the device, written by the reader: 4096-aligned, pinned where that exists */
} ms_memory_kind;

typedef struct ms_backend ms_backend;
struct ms_backend {
    const char *name;     /* "cpu" */
    const char *kernels;  /* "scalar", "avx2", ...: for logs */
    ms_precision precision;
    unsigned threads;

    void (*destroy)(ms_backend *be);

    /* -------- memory */
    /* Bytes of the memory behind MS_MEM_DEVICE: all, and free now.  0 and 0 where that is the host's memory. */
    void (*device_memory)(const ms_backend *be, uint64_t *total_bytes, uint64_t *free_bytes);
    /* At least 64-byte aligned, zeroed. */
    ms_status (*alloc)(ms_backend *be, ms_memory_kind kind, size_t bytes, const char *what, void **out, ms_error *err);
    void (*release)(ms_backend *be, ms_memory_kind kind, void *p, size_t bytes);
    /* What these bytes of an allocation hold is lost, and whole pages of them go back to the system until they are written
     * again.  NULL where that cannot be. */
    void (*discard)(ms_backend *be, void *p, size_t bytes);
    void (*upload)(ms_backend *be, void *dev, const void *host, size_t bytes);
    void (*download)(ms_backend *be, void *host, const void *dev, size_t bytes); /* waits */
    void (*copy)(ms_backend *be, void *dev_to, const void *dev_from, size_t bytes);
    void (*zero)(ms_backend *be, void *dev, size_t bytes);
    ms_status (*sync)(ms_backend *be, ms_error *err); /* waits; first kept failure, then clear */
    /* A download that leaves the device busy: fetch_begin asks for what dev holds when everything before it has run
     * (at most 4 * pairs bytes of the reserved scratch), fetch_end waits for that and no more and gives the first kept
     * failure of what came before.  One at a time; nothing else may be downloaded between the two. */
    void (*fetch_begin)(ms_backend *be, const void *dev, size_t bytes);
    ms_status (*fetch_end)(ms_backend *be, void *host, ms_error *err);
    bool deferred; /* operations return before they have run */

    /* -------- weights */
    ms_status (*weight_create)(ms_backend *be, ms_weight *w, ms_format format, uint32_t rows, uint32_t cols, ms_error *err);
    /* Fills rows [first, first + count) from host rows, converting to the weight's format.  source: MS_FORMAT_BF16 or
     * _F32, row-major, or MS_FORMAT_FP8, records (quant/fp8.h).  A non-finite value is MS_ERR_NUMERIC naming row and
     * column. */
    ms_status (*weight_fill)(ms_backend *be, ms_weight *w, uint32_t first, uint32_t count, const void *host,
                             ms_format source, ms_error *err);
    /* The same without waiting, from staging memory; see finish.  The weight is used after finish only. */
    ms_status (*fill_begin)(ms_backend *be, ms_weight *w, uint32_t first, uint32_t count, const void *staging,
                            ms_format source, uint32_t *ticket, ms_error *err);
    void (*weight_destroy)(ms_backend *be, ms_weight *w);

    /* The caller will wait for something else before it calls again.  NULL: all the same to this backend. */
    void (*rest)(ms_backend *be);

    /* -------- what was begun from staging memory */
    /* Gives the result of a ticket, once; until then the staging bytes stay as they are.  *done == false: not finished
     * yet, ask again (never with `wait`).  At most MS_TICKETS are open, counted from the oldest open one.  A begin may
     * give the result itself: after a failure there is no ticket. */
    ms_status (*finish)(ms_backend *be, uint32_t ticket, bool wait, bool *done, ms_error *err);

    /* -------- scratch: sizes are pure, so that the plan can count them */
    uint64_t (*scratch_bytes)(const ms_backend *be, const ms_scratch_need *need);
    /* What of scratch_bytes is host memory where the device has its own; 0 where it has not. */
    uint64_t (*scratch_host_bytes)(const ms_backend *be, const ms_scratch_need *need);
    ms_status (*scratch_reserve)(ms_backend *be, const ms_scratch_need *need, ms_error *err);

    /* -------- operations */
    void (*rms_norm)(ms_backend *be, float *out, const float *x, uint32_t n, uint32_t dim, const ms_weight *w, float eps);
    /* out = MIX, or RMS(MIX; norm) when norm is not NULL.  out may not alias a source. */
    void (*mix_norm)(ms_backend *be, float *out, const ms_mix *mix, uint32_t n, uint32_t dim, float eps, const ms_weight *norm);
    /* One or more products of the same input rows [n][cols]. */
    void (*project)(ms_backend *be, const float *x, uint32_t n, const ms_product *products, uint32_t count);
    /* out = down(act(gate x, up x)); [n][dim]. */
    void (*mlp)(ms_backend *be, float *out, const float *x, uint32_t n, const ms_weight *gate, const ms_weight *up,
                const ms_weight *down, ms_situ act);
    void (*kda_range)(ms_backend *be, const ms_kda *kda, const ms_kda_io *io, uint32_t n);
    void (*mla_range)(ms_backend *be, const ms_mla *mla, const ms_mla_io *io, uint32_t n);
    void (*gqa_range)(ms_backend *be, const ms_gqa *gqa, const ms_gqa_io *io, uint32_t n);
    /* sum[i] = a[i] + b[i] over count floats; sum may be a or b. */
    void (*add)(ms_backend *be, float *sum, const float *a, const float *b, size_t count);

    /* ids [n][k] ascending per row, weights [n][k] beside them: device.  A row with a non-finite choice sets the kept
     * failure to MS_ERR_NUMERIC (naming the row) and gets ids 0..k-1 with weight 0. */
    void (*router_topk)(ms_backend *be, uint32_t *ids, float *weights, const float *x, uint32_t n, const ms_router *r);

    /* Source bytes of an expert in staging (any misalignment) to a slot.  A bad scale is MS_ERR_FORMAT; the slot's
     * bytes are then undefined.  Slots are used by installs, experts_run and the memory functions only. */
    ms_status (*install)(ms_backend *be, void *slot, const uint8_t *staging, ms_expert_shape s, ms_error *err);
    /* The same without waiting: what is called later and uses the slot comes after it; see finish. */
    ms_status (*install_begin)(ms_backend *be, void *slot, const uint8_t *staging, ms_expert_shape s, uint32_t *ticket,
                               ms_error *err);
    /* A compressed expert to a slot, on all threads; returns when it is done.  NULL where slots are no host memory. */
    ms_status (*install_block)(ms_backend *be, void *slot, const ms_mzg2_block *block, const ms_mzg2_tables *tables,
                               ms_error *err);
    /* Compressed experts to slots where install_block is NULL.  dev_blocks hold checked blocks, at 16-aligned addresses;
     * dev_bad[i], all ones before, becomes the first bad tile of expert i << 8 | its ms_mzg2_fault, or 255 for a scale byte
     * 255.  At most MS_DECODE_BATCH at a time.  NULL: the caller decodes and uploads. */
    void (*decode_blocks)(ms_backend *be, void *const *slots, const uint8_t *const *dev_blocks, uint32_t count,
                          const ms_mzg2_tables *dev_tables, ms_expert_shape s, uint32_t *dev_bad);
    /* Prepares z [n][hidden] for experts_run calls until the next experts_begin. */
    void (*experts_begin)(ms_backend *be, const float *z, uint32_t n, ms_expert_shape s);
    /* y [pairs][hidden]: pair results of the given batches. */
    void (*experts_run)(ms_backend *be, float *y, ms_expert_shape s, ms_situ act, const ms_expert_batch *batches, uint32_t count);
    /* out [n][hidden] = RMS(sum of weights[i][j] * y[i * k + j], j ascending; norm), or the bare sum when norm is NULL. */
    void (*experts_reduce_norm)(ms_backend *be, float *out, const float *y, const float *weights, uint32_t n, uint32_t k,
                                uint32_t hidden, const ms_weight *norm, float eps);
};

/* Bytes of stored state elements: 2 (bf16) in fast, 4 (f32) in reference. */
static inline size_t ms_state_element_bytes(ms_precision p) { return p == MS_PRECISION_FAST ? 2 : 4; }

typedef struct ms_cpu_options {
    ms_precision precision;
    unsigned threads;    /* 0: all processors */
    const char *kernels; /* NULL: best for this CPU; "scalar", "avx2", "avx512": must exist here */
} ms_cpu_options;
ms_status ms_backend_cpu_create(ms_backend **out, const ms_cpu_options *options, ms_error *err);

#endif
