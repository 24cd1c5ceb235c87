/* moonshine.h: the one installed header.
 *
 * A program opens an engine on a checkpoint directory, creates sessions on it and runs token ranges
 * through them.  Errors are values: every call that can fail returns ms_status and fills *err.
 *
 * Threads: an engine and its sessions belong to one thread at a time (the inference thread).
 * ms_session_cancel and ms_error functions may be called from any thread or a signal handler.
 */
#ifndef MOONSHINE_H
#define MOONSHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MS_VERSION "0.1.0"

/* ------------------------------------------------------------------ errors */

typedef enum ms_status {
    MS_OK = 0,
    MS_ERR_USAGE,       /* an argument or option is outside its documented range            */
    MS_ERR_FORMAT,      /* a file or a message is not what it must be                       */
    MS_ERR_IO,          /* the operating system refused or failed a read, write, open ...   */
    MS_ERR_MEMORY,      /* an allocation failed                                             */
    MS_ERR_NO_FIT,      /* the plan does not fit into memory; nothing was allocated         */
    MS_ERR_CONTEXT,     /* the tokens do not fit into the session's context                 */
    MS_ERR_NUMERIC,     /* a value that must be finite is not                               */
    MS_ERR_CANCELLED,   /* ms_session_cancel was called                                     */
    MS_ERR_UNSUPPORTED, /* well formed, but not something this build can do                 */
    MS_ERR_INTERNAL     /* a broken invariant: a defect of this library                     */
} ms_status;

typedef struct ms_error {
    ms_status code;
    char message[1024]; /* one line, UTF-8, no trailing newline; names file, field, expected, found */
} ms_error;

/* A short stable word for a status: "ok", "usage", "format", ... */
const char *ms_status_name(ms_status code);

/* ------------------------------------------------------------------ options */

typedef enum ms_precision { MS_PRECISION_FAST, MS_PRECISION_REFERENCE } ms_precision;
typedef enum ms_static_format { MS_STATIC_Q8, MS_STATIC_BF16 } ms_static_format;

#define MS_DEFAULT_RESERVE UINT64_MAX
#define MS_DEFAULT_EXPERTS UINT32_MAX
#define MS_RANGE_AUTO UINT32_MAX

/* Zero-initialise, set `model`, change what is wanted: ms_engine_options_default does both. */
typedef struct ms_engine_options {
    const char *model;            /* checkpoint or bundle directory */
    const char *store;            /* NULL, "raw", "off": experts from the checkpoint; "auto": from auto_store if that is faster
                                     here; else the folder of a store.  A bundle has its own: NULL, "off" or "auto" */
    const char *auto_store;       /* NULL: mzg2 in the model's folder, or MODEL.mzg2 beside it, if one is there */
    ms_precision precision;       /* default: fast */
    ms_static_format static_format; /* default: q8 */
    uint64_t context;             /* tokens; 0: min(8192, model maximum) */
    uint32_t experts;             /* cache slots a routed layer, 0..all; MS_DEFAULT_EXPERTS: min(32, all), or with a
                                     device that has its own memory what fits there */
    uint32_t staging;             /* expert read buffers; 0: 16 */
    uint32_t read_depth;          /* expert reads in flight; 0: as many as staging buffers, fewer for single tokens */
    uint32_t range_rows;          /* most rows of one layer-major pass; 0: min(context, 512); MS_RANGE_AUTO: what fits */
    uint32_t snapshots;           /* retained state copies that the plan counts */
    uint64_t kept_state_bytes;    /* host memory that the caller will use for states it keeps; counted, not allocated */
    unsigned threads;             /* 0: all processors */
    uint64_t memory_bytes;        /* host memory that is taken for available, a plan alone also more than there is; 0: all that is */
    uint64_t reserve_bytes;       /* memory to leave free; MS_DEFAULT_RESERVE: min(4 GiB, 10 % of the limit) */
    bool buffered_reads;          /* no O_DIRECT */
    bool no_uring;                /* plain pread */
    const char *expert_dirs;      /* folders, separated by commas, with copies of files with experts */
    bool no_lookahead;            /* never read what the next layer will probably want before it asks */
    uint64_t read_limit;          /* expert bytes a second, as of a slower drive, for measurements; 0: none */
    const char *backend;          /* NULL: "cpu"; or "hip", "cuda" (must open), "auto" (a GPU if one opens, else the CPU) */
    bool range_blas;              /* GPU only, a diagnostic: products of many rows by the vendor's matrix library, in an order
                                     of sums of its own.  Results depend on how ranges are cut; states carry the mark */
    const char *kernels;          /* CPU only; NULL: best for this CPU; or "scalar", "avx2", "avx512", "neon" */
    void (*log)(void *arg, const char *line); /* one-line notes: fallbacks, load progress; may be NULL */
    void *log_arg;
    /* Load progress: bytes of static weights done of total; may be NULL. */
    void (*load_progress)(void *arg, uint64_t done_bytes, uint64_t total_bytes);
    void *load_progress_arg;
} ms_engine_options;

void ms_engine_options_default(ms_engine_options *o, const char *model);

/* ------------------------------------------------------------------ plan: every byte, before anything is allocated */

typedef struct ms_plan_item {
    const char *group; /* "static", "cache", "state", "staging", "workspace", "process" */
    const char *name;
    uint64_t bytes;
    bool device; /* in a device's own memory; else in the host's, which a CPU and an integrated GPU use for all */
} ms_plan_item;

typedef struct ms_plan {
    char lane[32];
    const char *model_source, *expert_store; /* as in ms_model_info */
    uint64_t context;
    uint32_t experts, experts_all, moe_layers, range_rows, staging;
    /* Passes of more than usual_rows borrow the memory of the last lent_slots of every layer; lent_slots 0: usual_rows is
     * range_rows, and none do. */
    uint32_t usual_rows, lent_slots;
    uint64_t lent_bytes;
    uint64_t expert_bytes;         /* one expert in a slot */
    uint64_t state_bytes_per_token; /* growing part of the state */
    ms_plan_item *items;
    size_t item_count;
    uint64_t total_bytes;          /* of host memory */
    uint64_t available_bytes;      /* what this process may use now: MemAvailable or the memory cgroup's room */
    uint64_t reserve_bytes;
    /* A device with memory of its own; all 0 without one. */
    uint64_t device_total_bytes;     /* of the items there */
    uint64_t device_available_bytes; /* free there now */
    uint64_t device_reserve_bytes;   /* left free there: what the driver takes for itself while kernels run */
    bool has_device;
    bool fits; /* total + reserve <= available, on the host and on the device */
} ms_plan;

/* Reads headers only.  A plan that does not fit is still MS_OK with fits == false. */
ms_status ms_plan_create(ms_plan **out, const ms_engine_options *options, ms_error *err);
void ms_plan_destroy(ms_plan *p);
uint64_t ms_plan_group_bytes(const ms_plan *p, const char *group);

/* ------------------------------------------------------------------ engine: immutable weights and the expert service */

typedef struct ms_engine ms_engine;

/* MS_ERR_NO_FIT with the numbers when the plan does not fit. */
ms_status ms_engine_open(ms_engine **out, const ms_engine_options *options, ms_error *err);
/* All sessions must be gone.  NULL is fine. */
void ms_engine_close(ms_engine *e);

const ms_plan *ms_engine_plan(const ms_engine *e);

typedef struct ms_model_info {
    char lane[32];
    uint32_t vocab, layers, moe_layers, experts, top_k;
    uint32_t bos, eos; /* eos ends a turn */
    uint64_t context, max_context;
    uint64_t layout_digest; /* of the tensor directory */
    char kernels[16];
    char model_source[16]; /* "safetensors", "bundle" */
    char expert_store[8];  /* "raw", "mzg2" */
    unsigned threads;
} ms_model_info;
void ms_engine_info(const ms_engine *e, ms_model_info *out);

typedef struct ms_engine_stats {
    uint64_t expert_accesses, expert_hits, expert_fills, expert_streams, expert_evictions;
    uint64_t expert_reads, expert_read_bytes, failed_reads, read_wait_ns;
    uint64_t workspace_borrow_bytes;      /* of cache slots lent to long passes, all loans added up */
    uint64_t guessed_reads, guesses_used; /* lookahead: reads begun for guesses; those that were wanted */
    uint64_t read_busy_ns;                /* time a read was certainly under way */
    uint64_t decode_ns; /* decoding compressed experts */
    uint64_t buffered_files;
    bool direct, uring;
} ms_engine_stats;
void ms_engine_get_stats(const ms_engine *e, ms_engine_stats *out);

/* ------------------------------------------------------------------ session: one causal timeline */

typedef struct ms_session ms_session;

ms_status ms_session_create(ms_session **out, ms_engine *e, ms_error *err);
void ms_session_destroy(ms_session *s);

typedef enum ms_progress_unit { MS_PROGRESS_TOKEN, MS_PROGRESS_LAYER } ms_progress_unit;

typedef struct ms_forward_options {
    uint32_t range; /* rows a pass: 1 is token-major; 0: the plan's range_rows.  Never changes a result */
    bool all_logits; /* logits of every row go to `sink`, in order */
    ms_status (*sink)(void *arg, uint64_t first_position, uint32_t rows, const float *logits, ms_error *err);
    void *sink_arg;
    void (*progress)(void *arg, ms_progress_unit unit, uint64_t done, uint64_t total); /* may be NULL */
    void *progress_arg;
    /* Chosen experts, for inspection: called once a routed layer and pass with ids [rows][top_k] ascending; may be NULL. */
    void (*routes)(void *arg, uint32_t layer, uint64_t first_position, uint32_t rows, uint32_t top_k, const uint32_t *ids);
    void *routes_arg;
} ms_forward_options;

/* Appends ids to the timeline and computes the logits of the last one.  options may be NULL.
 * On any error the session holds exactly what the finished passes gave: position tells; nothing is half applied.
 * Errors: MS_ERR_USAGE (no ids, id >= vocab), MS_ERR_CONTEXT, MS_ERR_IO, MS_ERR_NUMERIC, MS_ERR_CANCELLED. */
ms_status ms_session_forward(ms_session *s, const uint32_t *ids, size_t count, const ms_forward_options *options, ms_error *err);
/* [vocab] f32 logits of the last token; NULL after reset, restore or import until the next forward. */
const float *ms_session_logits(const ms_session *s);

uint64_t ms_session_position(const ms_session *s);
const uint32_t *ms_session_tokens(const ms_session *s); /* [position] */
void ms_session_reset(ms_session *s);
/* Makes the running or the next forward stop at the next layer boundary with MS_ERR_CANCELLED, until
 * ms_session_clear_cancel.  Async-signal-safe. */
void ms_session_cancel(ms_session *s);
void ms_session_clear_cancel(ms_session *s);

typedef struct ms_digest_part {
    char kind[8]; /* "kda", "conv", "mla" */
    uint64_t fnv1a64;
} ms_digest_part;
typedef struct ms_digest {
    ms_digest_part part[8];
    uint32_t count;
    uint64_t position;
} ms_digest;
/* FNV-1a-64 over the little-endian bytes of each kind of state, in layer order. */
ms_status ms_session_digest(ms_session *s, ms_digest *out, ms_error *err);

typedef struct ms_snapshot ms_snapshot;
/* A copy of the causal state at the current position. Rows of append-only parts are shared with the session: a snapshot stays
 * valid until the session is reset, imported, or restored or rewound to an earlier position, after which restoring it fails with
 * MS_ERR_USAGE. */
ms_status ms_session_snapshot(ms_session *s, ms_snapshot **out, ms_error *err);
ms_status ms_session_restore(ms_session *s, const ms_snapshot *snap, ms_error *err);
uint64_t ms_snapshot_position(const ms_snapshot *snap);
void ms_snapshot_destroy(ms_snapshot *snap);

/* Goes back to an earlier position without a snapshot, where the state allows it: attention rows do, as long as sliding
 * windows still hold the rows before the position; a recurrence does not.  Position 0 and the current one always work.
 * MS_ERR_USAGE when it does not; the session is then unchanged. */
bool ms_session_can_rewind(const ms_session *s, uint64_t position);
ms_status ms_session_rewind(ms_session *s, uint64_t position, ms_error *err);

/* Causal-state file, version 1 (docs/formats.md).  0600, appears whole or not at all; replace allows an existing target. */
ms_status ms_session_export(ms_session *s, const char *path, bool replace, ms_error *err);
/* Everything is checked before anything changes; on failure the session is as before. */
ms_status ms_session_import(ms_session *s, const char *path, ms_error *err);

/* ------------------------------------------------------------------ sampling */

typedef struct ms_sampler {
    double temperature; /* 0: greedy, first maximum; up to 2 */
    double top_p;       /* (0, 1]; 1: off */
    double min_p;       /* [0, 1); 0: off */
    uint32_t top_k;     /* 0: off */
    int64_t seed;
    uint64_t draws;     /* draws made so far; start at 0 */
    const uint64_t *allowed; /* bit i & 63 of word i >> 6: token i may be picked; NULL: all may */
} ms_sampler;

void ms_sampler_greedy(ms_sampler *s);
/* Picks a token from logits [vocab].  Order: allowed, temperature, top_k, top_p, min_p, renormalise, draw.  A NaN among the logits is
 * MS_ERR_NUMERIC.  Deterministic for (logits, options, seed, draws). */
ms_status ms_sampler_pick(ms_sampler *s, const float *logits, uint32_t vocab, uint32_t *token, ms_error *err);

#ifdef __cplusplus
}
#endif
#endif
