/* k3_synth_internal.h: parts of the synthetic writer: the plan of one shard, its bytes, the config text.
 *
 * Owns: a plan owns its names, tensors and header.  Threads: a finished plan may be read by many threads.
 */
#ifndef MS_LANE_K3_SYNTH_INTERNAL_H
#define MS_LANE_K3_SYNTH_INTERNAL_H

#include "base/text.h"
#include "lane/k3/k3_synth.h"
#include "store/safetensors.h"

typedef enum k3_fill {
    K3_FILL_UNIFORM, K3_FILL_CODES, K3_FILL_SCALES, K3_FILL_GAUSS_CODES, K3_FILL_GAUSS_SCALES
} k3_fill;

typedef struct k3_synth_tensor {
    const char *name;
    size_t name_at; /* in the plan's pool while it grows */
    uint64_t begin, bytes; /* in the payload */
    uint64_t shape[MS_TENSOR_MAX_DIMS];
    uint64_t live; /* elements from here on are zero */
    ms_dtype dtype;
    uint8_t dims;
    uint8_t scale_base; /* K3_FILL_SCALES: lowest of four scale bytes */
    k3_fill fill;
    float mean, amplitude; /* K3_FILL_UNIFORM: mean +- amplitude */
} k3_synth_tensor;

typedef struct k3_synth_plan {
    char file[64];
    ms_text names;
    k3_synth_tensor *tensors; /* in payload order */
    size_t count, capacity;
    ms_text header; /* with the length field and padding */
    float *normal;  /* k3_synth_normal_table; NULL without Gaussian experts */
    uint64_t payload_bytes;
} k3_synth_plan;

/* Word i of the random stream of a key: words need no predecessor. */
uint64_t k3_synth_word(uint64_t key, uint64_t i);

enum { K3_NORMAL_LEVELS = 65536 };
/* [2 * K3_NORMAL_LEVELS], for the caller to free(); NULL: no memory. */
float *k3_synth_normal_table(void);
/* 8-byte words [word, word + words) of a matrix of Gaussian weights with `groups` groups a row: its codes, its scales. */
void k3_synth_gauss_codes(uint8_t *out, const float *table, uint64_t key, uint64_t word, size_t words, uint64_t groups);
void k3_synth_gauss_scales(uint8_t *out, const float *table, uint64_t key, uint64_t word, size_t words, uint64_t groups);

uint32_t k3_synth_shard_count(const k3_config *c, bool vision);
/* Plans shard `number` (0-based). */
ms_status k3_synth_plan_shard(k3_synth_plan *out, const k3_config *c, const k3_synth_options *opt, uint32_t number,
                             ms_error *err);
void k3_synth_plan_free(k3_synth_plan *p);
uint64_t k3_synth_plan_bytes(const k3_synth_plan *p);

/* Writes file bytes [at, at + length) of the shard to out. */
void k3_synth_bytes(uint8_t *out, const k3_synth_plan *p, uint64_t seed, uint64_t at, size_t length);

/* config.json of these numbers. */
void k3_synth_config_text(ms_text *out, const k3_config *c, bool vision);

#endif
