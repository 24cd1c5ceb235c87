/* synth.h: writes a random checkpoint of a lane's official layout, of any size.
 *
 * The lane says which shards there are, which tensors each holds, and what config.json reads; files are those shards,
 *   model.safetensors.index.json and config.json (last, so that an interrupted run leaves no loadable checkpoint).
 * Values: experts are random E2M1 codes with scale bytes that keep products near unit size, or, on demand, what
 * rounding Gaussian weights gives (as compressible as a trained model's); matrices are uniform with a variance of 1 /
 * inputs, norm weights lie around 1.  Each 8-byte word is a function of seed, tensor name and place, so bytes depend
 * neither on thread count nor on write order. Sparse: real headers, holes for the payload (all weights read as zero):
 * the full layout costs only its headers on disk.
 *
 * Owns: what it creates; on failure all of it is removed again.  A plan owns its names, tensors and header.
 * Threads: one call uses its own workers; progress is called from the calling thread.  A finished plan may be read by
 * many. Errors: MS_ERR_USAGE (existing non-empty directory), MS_ERR_FORMAT (numbers that the lane's config check
 * refuses), MS_ERR_NO_FIT (free space, with the numbers), MS_ERR_IO, MS_ERR_CANCELLED.
 */
#ifndef MS_LANE_SYNTH_H
#define MS_LANE_SYNTH_H

#include "base/json.h"
#include "base/text.h"
#include "store/safetensors.h"

typedef struct ms_synth_report {
    uint32_t shards;
    uint64_t tensors;
    uint64_t payload_bytes; /* metadata.total_size of the index */
    uint64_t shard_bytes;   /* payload and headers */
    bool direct;            /* every shard was written past the page cache; false: some buffered, or sparse */
} ms_synth_report;

typedef struct ms_synth_options {
    uint64_t seed;
    bool sparse;
    bool gaussian;    /* experts as rounded Gaussian weights */
    bool vision;      /* also tensors that the text path never reads */
    unsigned threads; /* 0: all processors */
    bool (*progress)(void *arg, uint64_t done_bytes, uint64_t total_bytes); /* false cancels; may be NULL */
    void *progress_arg;
    ms_synth_report *report; /* filled on success; may be NULL */
} ms_synth_options;

/* ------------------------------------------------------------------ one shard */

typedef enum ms_synth_fill {
    MS_FILL_UNIFORM,
    MS_FILL_CODES,
    MS_FILL_SCALES,
    MS_FILL_GAUSS_CODES,
    MS_FILL_GAUSS_SCALES,
    MS_FILL_FP8
} ms_synth_fill;

typedef struct ms_synth_tensor {
    const char *name;
    size_t name_at;        /* in the plan's pool while it grows */
    uint64_t begin, bytes; /* in the payload */
    uint64_t shape[MS_TENSOR_MAX_DIMS];
    uint64_t live; /* elements from here on are zero; 0 when added: all count */
    ms_dtype dtype;
    uint8_t dims;
    uint8_t scale_base; /* MS_FILL_SCALES: lowest of four scale bytes */
    ms_synth_fill fill;
    float mean, amplitude; /* MS_FILL_UNIFORM: mean +- amplitude */
} ms_synth_tensor;

typedef struct ms_synth_plan {
    char file[64];
    ms_text names;
    ms_synth_tensor *tensors; /* in payload order */
    size_t count, capacity;
    ms_text header; /* with the length field and padding */
    float *normal;  /* ms_synth_normal_table; NULL without Gaussian experts */
    uint64_t payload_bytes;
} ms_synth_plan;

/* What an expert's tensor is filled with: even parts are codes, odd ones scales. */
static inline ms_synth_fill ms_synth_expert_fill(int part, bool gaussian) {
    if (gaussian) return part % 2 ? MS_FILL_GAUSS_SCALES : MS_FILL_GAUSS_CODES;
    return part % 2 ? MS_FILL_SCALES : MS_FILL_CODES;
}
ms_status ms_synth_add(ms_synth_plan *p, const char *name, const ms_synth_tensor *what, ms_error *err);
/* F32, BF16, then the others, by name within a type; else tensors lie as they were added.  Elements must not straddle
 * 8-byte words of the file. */
ms_status ms_synth_sort(ms_synth_plan *p, ms_error *err);
/* Amplitude of a uniform distribution whose products over `inputs` unit inputs have variance 1. */
float ms_synth_amplitude(uint64_t inputs);
/* The lowest of four neighbouring scale bytes that keep products of E2M1 codes over `inputs` near unit size. */
uint8_t ms_synth_scale_base(uint64_t inputs);

/* Word i of the random stream of a key: words need no predecessor. */
uint64_t ms_synth_word(uint64_t key, uint64_t i);

enum { MS_NORMAL_LEVELS = 65536 };
/* [2 * MS_NORMAL_LEVELS], for the caller to free(); NULL: no memory. */
float *ms_synth_normal_table(void);
/* 8-byte words [word, word + words) of a matrix of Gaussian weights with `groups` groups a row: its codes, its scales.
 */
void ms_synth_gauss_codes(uint8_t *out, const float *table, uint64_t key, uint64_t word, size_t words, uint64_t groups);
void ms_synth_gauss_scales(uint8_t *out, const float *table, uint64_t key, uint64_t word, size_t words,
                           uint64_t groups);

void ms_synth_plan_free(ms_synth_plan *p);
uint64_t ms_synth_plan_bytes(const ms_synth_plan *p);
/* Writes file bytes [at, at + length) of the shard to out. */
void ms_synth_bytes(uint8_t *out, const ms_synth_plan *p, uint64_t seed, uint64_t at, size_t length);

/* ------------------------------------------------------------------ a checkpoint */

typedef struct ms_synth_model {
    const void *config;    /* the lane's */
    bool vision, gaussian; /* of the options; set by the writer */
    /* Numbers beside total_size in the index's metadata: `,` and lines of JSON; "" for none. */
    char metadata[64];
    uint32_t (*shards)(const struct ms_synth_model *m);
    /* Names the file and adds the tensors of shard `number` (0-based). */
    ms_status (*plan)(ms_synth_plan *p, const struct ms_synth_model *m, uint32_t number, ms_error *err);
    void (*config_text)(ms_text *out, const struct ms_synth_model *m);
    /* Whether the lane takes the config that config_text wrote. */
    ms_status (*check)(const struct ms_synth_model *m, const ms_json *root, ms_error *err);
} ms_synth_model;

/* A finished plan of one shard. */
ms_status ms_synth_plan_shard(ms_synth_plan *out, const ms_synth_model *m, uint32_t number, ms_error *err);

/* Creates `dir` (or fills it when it exists and is empty).  The parent must exist. */
ms_status ms_synth_write(const char *dir, const ms_synth_model *m, const ms_synth_options *opt, ms_error *err);
/* What ms_synth_write would write. */
ms_status ms_synth_measure(const ms_synth_model *m, const ms_synth_options *opt, ms_synth_report *out, ms_error *err);

/* The shortest decimal number that reads back as this float, for config texts. */
void ms_synth_put_float(ms_text *t, float f);

#endif
