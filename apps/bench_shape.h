/* bench_shape.h: what the files of `moonshine bench shape` share.
 *
 * Owns: nothing; a shape_run belongs to bench_shape.c.  Threads: the calling thread.
 */
#ifndef MS_APPS_BENCH_SHAPE_H
#define MS_APPS_BENCH_SHAPE_H

#include "base/clock.h"
#include "lane/k3/k3_config.h"
#include "session/engine.h"

#define SHAPE_PROGRAM "moonshine bench shape"

enum { SHAPE_PIECE_VALUES = 4 << 20, SHAPE_STAGING = 16, SHAPE_MAX_HITS = 8 };

typedef struct shape_flags {
    uint32_t layers, slots, tokens, rows, device, real_layers, depth;
    uint32_t guess; /* percent of guessed experts that are right; 0: no guesses */
    uint64_t position;
    int shape, precision, static_format;
    bool phases;
    const char *backend, *folder, *hits;
    uint32_t hit_rates[SHAPE_MAX_HITS], hit_rate_count; /* of `hits`, percent; none: all are hits */
} shape_flags;

/* A weight whose device bytes serve for later ones of its kind. */
typedef struct pattern {
    size_t part;
    ms_weight weight;
} pattern;

typedef struct shape_run {
    const shape_flags *f;
    k3_config config;
    char dir[512];
    ms_model model;
    ms_backend *be;
    ms_backend *timed; /* the one that passes use */
    void *weights;
    ms_static_list statics;
    uint64_t static_bytes;
    pattern *patterns;
    size_t pattern_count;
    void *values; /* SHAPE_PIECE_VALUES random BF16 numbers, then as many F32 */
    uint32_t slots, planned_slots, logit_rows;
    uint64_t planned_bytes, free_bytes; /* of device memory: by the ledger; free before any of it was taken */
    ms_expert_service *experts;
    float *routes, *guesses; /* [routed layers][experts] biases while routes are chosen, else NULL */
    ms_state state;
    ms_workspace_item *items;
    void **workspace;
    uint32_t item_count;
    float *embedding, *logits; /* device */
    double copy_bytes_per_second;
} shape_run;

static inline double shape_seconds(uint64_t since_ns) { return (double)(ms_clock_ns() - since_ns) / 1e9; }

/* MS_ERR_CANCELLED once a signal has come. */
ms_status shape_interrupted(ms_error *err);
/* One pass of f->rows rows; commits it. */
ms_status shape_pass(shape_run *r, ms_error *err);
/* `passes` of them, and the mean time of one. */
ms_status shape_passes(shape_run *r, uint32_t passes, double *mean, ms_error *err);
ms_status shape_phases(shape_run *r, ms_error *err);
/* A router's bias says what routed layer `l` takes next. */
void shape_set_bias(shape_run *r, uint32_t l, const float *bias);
/* An expert service with r->slots slots and nothing in them; the one before is destroyed. */
ms_status shape_new_experts(shape_run *r, bool buffered, ms_error *err);

/* -------- bench_shape_stream.c: experts that come from the disk */

/* Whether experts are read while it measures. */
static inline bool shape_streams(const shape_flags *f) { return f->hit_rate_count > 0; }
/* Random bytes for every expert of the first f->real_layers routed layers; the other layers read the same places. */
ms_status shape_real_layers(shape_run *r, ms_error *err);
/* Passes with every expert in its slot, then with each of f->hit_rates; prints disk, compute and the share of the
 * larger of the two. */
ms_status shape_stream(shape_run *r, ms_error *err);

#endif
