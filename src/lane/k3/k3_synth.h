/* k3_synth.h: writes a random checkpoint in the official Kimi K3 layout, of any size.
 *
 * Files: model-NNNNN-of-NNNNNN.safetensors (one a layer, one for the rest, two with vision dummies when asked for),
 *   model.safetensors.index.json, config.json (last, so that an interrupted run leaves no loadable checkpoint).
 * Values: experts are random E2M1 codes with scale bytes that keep products near unit size, or, on demand, what rounding
 *   Gaussian weights gives (as compressible as a trained model's); matrices are uniform with a
 *   variance of 1 / inputs, norm weights lie around 1.  Each 8-byte word is a function of seed, tensor name and
 *   place, so bytes depend neither on thread count nor on write order.
 * Sparse: real headers, holes for the payload (all weights read as zero): the full layout costs only its headers on
 *   disk.
 *
 * Owns: what it creates; on failure all of it is removed again.
 * Threads: one call uses its own workers; progress is called from the calling thread.
 * Errors: MS_ERR_USAGE (existing non-empty directory), MS_ERR_FORMAT (numbers that k3_config_parse refuses),
 *   MS_ERR_NO_FIT (free space, with the numbers), MS_ERR_IO, MS_ERR_CANCELLED.
 */
#ifndef MS_LANE_K3_SYNTH_H
#define MS_LANE_K3_SYNTH_H

#include "lane/k3/k3_config.h"

typedef struct k3_synth_report {
    uint32_t shards;
    uint64_t tensors;
    uint64_t payload_bytes; /* metadata.total_size of the index */
    uint64_t shard_bytes;   /* payload and headers */
    bool direct;            /* every shard was written past the page cache; false: some buffered, or sparse */
} k3_synth_report;

typedef struct k3_synth_options {
    uint64_t seed;
    bool sparse;
    bool gaussian;    /* experts as rounded Gaussian weights */
    bool vision;      /* two more shards with 3 + 165 tensors that the text path never reads */
    unsigned threads; /* 0: all processors */
    bool (*progress)(void *arg, uint64_t done_bytes, uint64_t total_bytes); /* false cancels; may be NULL */
    void *progress_arg;
    k3_synth_report *report; /* filled on success; may be NULL */
} k3_synth_options;

/* Creates `dir` (or fills it when it exists and is empty).  The parent must exist. */
ms_status k3_synth_write(const char *dir, const k3_config *cfg, const k3_synth_options *opt, ms_error *err);

/* What k3_synth_write would write. */
ms_status k3_synth_measure(const k3_config *cfg, const k3_synth_options *opt, k3_synth_report *out, ms_error *err);

/* The official model's numbers, for presets and tests; the engine reads config.json. */
void k3_config_official(k3_config *out);

#endif
