/* mimo_layout.h: the tensors of a MiMo V2.6 checkpoint: names, types, shapes, and what becomes of them.
 *
 * The fused matrix model.layers.N.self_attn.qkv_proj.weight is stored as `chunks` pieces of [Q; K; V]; its block scales
 * run through a piece without regard to Q, K and V and start anew at the next one.
 *
 * Owns: nothing.  Threads: pure functions.
 * Errors: mimo_layout_check lists what is missing, mis-shaped or unknown.
 */
#ifndef MS_LANE_MIMO26_LAYOUT_H
#define MS_LANE_MIMO26_LAYOUT_H

#include "lane/mimo26/mimo_config.h"
#include "store/checkpoint.h"

/* Stored tensors.  Parts from MIMO_EMBED on are outside the layers. */
typedef enum mimo_part {
    MIMO_INPUT_NORM,
    MIMO_POST_NORM,
    MIMO_QKV,
    MIMO_QKV_SCALE,
    MIMO_O_PROJ,
    MIMO_SINK,
    MIMO_DENSE_GATE,
    MIMO_DENSE_GATE_SCALE,
    MIMO_DENSE_UP,
    MIMO_DENSE_UP_SCALE,
    MIMO_DENSE_DOWN,
    MIMO_DENSE_DOWN_SCALE,
    MIMO_ROUTER,
    MIMO_ROUTER_BIAS,
    MIMO_LAYER_PARTS,
    MIMO_EMBED = MIMO_LAYER_PARTS,
    MIMO_FINAL_NORM,
    MIMO_LM_HEAD,
    MIMO_PARTS
} mimo_part;

enum { MIMO_NAME_SIZE = 160 };

typedef struct mimo_tensor {
    ms_dtype dtype;
    uint8_t dims;
    uint64_t shape[2];
} mimo_tensor;

bool mimo_has_part(const mimo_config *c, uint32_t layer, mimo_part part);
/* Writes the full tensor name; size of name >= MIMO_NAME_SIZE. */
void mimo_tensor_name(char *name, size_t size, uint32_t layer, mimo_part part);
mimo_tensor mimo_tensor_describe(const mimo_config *c, uint32_t layer, mimo_part part);

/* Everything but what the text path skips: model.mtp., visual., audio_encoder., speech_embeddings. */
bool mimo_tensor_needed(void *unused, const char *name, size_t len);
void mimo_expert_naming(const mimo_config *c, ms_expert_naming *out);
/* Model layers with routed experts, ascending; returns the count. */
uint32_t mimo_moe_layers(const mimo_config *c, uint32_t layers[MIMO_MAX_LAYERS]);

/* Everything must be there, with the right dtype and shape, and nothing unknown.  Lists up to 20 misses in one message
 * (fewer when names are long), then how many more there are.  Fills `experts` (caller frees) when not NULL. */
ms_status mimo_layout_check(const ms_checkpoint *c, const mimo_config *cfg, ms_expert_table *experts, ms_error *err);

#endif
