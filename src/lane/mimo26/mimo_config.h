/* mimo_config.h: the numbers of a MiMo V2.6 checkpoint, read from its config.json.
 *
 * What the file may leave out follows the release: swa_* default to the matching full value, attention_value_scale and
 * routed_scaling_factor to 1, sink switches to off.  The two layer lists must be there.
 *
 * Threads: values.  Errors: MS_ERR_FORMAT listing every missing or contradictory field at once.
 */
#ifndef MS_LANE_MIMO26_CONFIG_H
#define MS_LANE_MIMO26_CONFIG_H

#include "base/json.h"
#include "quant/mxfp4.h"

enum { MIMO_MAX_LAYERS = 256, MIMO_MAX_TOP_K = 64, MIMO_FP8_BLOCK = 128 };

typedef enum mimo_kind { MIMO_FULL, MIMO_SLIDING, MIMO_KINDS } mimo_kind;

/* Attention of one kind of layer. */
typedef struct mimo_attention {
    uint32_t heads, kv_heads, key, value; /* counts, and widths of a head */
    uint32_t rotary;                      /* leading dimensions that are rotated */
    uint32_t window;                      /* 0: full */
    bool sink;
    double theta;
} mimo_attention;

typedef struct mimo_config {
    uint32_t vocab, hidden, layers, dense_width;
    uint32_t experts, top_k, expert_inner;
    float eps, value_scale, routed_scale;
    bool renormalize;
    uint64_t max_context;
    uint32_t eos;
    mimo_attention attention[MIMO_KINDS];
    /* How the fused qkv matrix is stored: so many chunks of [Q; K; V].  mimo_config_bind. */
    uint32_t chunks;
    uint8_t kind[MIMO_MAX_LAYERS]; /* mimo_kind */
    uint8_t moe[MIMO_MAX_LAYERS];
} mimo_config;

static inline const mimo_attention *mimo_attention_of(const mimo_config *c, uint32_t layer) {
    return &c->attention[c->kind[layer]];
}
static inline ms_expert_shape mimo_expert_shape(const mimo_config *c) {
    return (ms_expert_shape){.hidden = c->hidden, .inner = c->expert_inner, .order = MS_ORDER_W2_W1_W3};
}

/* Rows of one stored chunk of the fused matrix: queries, keys, values, and all. */
typedef struct mimo_chunk {
    uint32_t q, k, v, rows;
} mimo_chunk;
static inline mimo_chunk mimo_chunk_of(const mimo_config *c, const mimo_attention *a) {
    mimo_chunk r = {a->heads / c->chunks * a->key, a->kv_heads / c->chunks * a->key, a->kv_heads / c->chunks * a->value,
                    0};
    r.rows = r.q + r.k + r.v;
    return r;
}

/* True when the document's model_type is mimo_v2. */
bool mimo_config_matches(const ms_json *root);
/* Checks root, the parsed config.json called `file` in messages.  Fields that the text path does not use are ignored.
 * After success widths (heads x head size) fit 2^28; chunks is the number of full key heads. */
ms_status mimo_config_parse(mimo_config *out, const ms_json *root, const char *file, ms_error *err);
/* Takes the number of chunks from the index (metadata.tp_size), when it has one; it must divide all head counts. */
ms_status mimo_config_set_chunks(mimo_config *c, uint64_t chunks, ms_error *err);

#endif
