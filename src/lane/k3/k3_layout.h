/* k3_layout.h: which tensors a Kimi K3 checkpoint has: names, dtypes, shapes, and what becomes of each.
 *
 * One table serves the checker (verify), the plan (bytes), the loader and the synthetic writer.
 * Threads: pure.
 */
#ifndef MS_LANE_K3_LAYOUT_H
#define MS_LANE_K3_LAYOUT_H

#include "lane/k3/k3_config.h"
#include "store/checkpoint.h"

/* Names a place in the model.  Per-layer kinds first. */
typedef enum k3_part {
    K3_INPUT_NORM, K3_POST_NORM, K3_ATTN_RES_NORM, K3_ATTN_RES_PROJ, K3_MLP_RES_NORM, K3_MLP_RES_PROJ,
    K3_G_PROJ, K3_O_PROJ,
    /* KDA layers */
    K3_Q_PROJ, K3_K_PROJ, K3_V_PROJ, K3_Q_CONV, K3_K_CONV, K3_V_CONV, K3_F_A, K3_F_B, K3_B_PROJ, K3_A_LOG, K3_DT_BIAS,
    K3_O_NORM,
    /* MLA layers */
    K3_Q_A, K3_Q_A_NORM, K3_Q_B, K3_KV_A, K3_KV_A_NORM, K3_KV_B,
    /* dense feed-forward */
    K3_DENSE_GATE, K3_DENSE_UP, K3_DENSE_DOWN,
    /* MoE feed-forward */
    K3_ROUTER, K3_ROUTER_BIAS, K3_LATENT_DOWN, K3_LATENT_NORM, K3_LATENT_UP, K3_SHARED_GATE, K3_SHARED_UP,
    K3_SHARED_DOWN,
    K3_LAYER_PARTS,
    /* outside the layers */
    K3_EMBED = K3_LAYER_PARTS, K3_FINAL_NORM, K3_OUT_RES_NORM, K3_OUT_RES_PROJ, K3_LM_HEAD,
    K3_PARTS
} k3_part;

typedef struct k3_tensor_info {
    ms_dtype dtype;
    uint8_t dims;
    uint64_t shape[3];
    bool quantizable; /* becomes Q8 when the static format is q8 */
    bool resident;    /* false: embedding rows, read one by one */
    uint32_t rows, cols; /* as a matrix */
    uint32_t alt_shape0; /* A_log may also have exactly kda_heads entries; 0: no alternative */
} k3_tensor_info;

/* Whether a layer has this part; layer is ignored for parts outside the layers. */
bool k3_has_part(const k3_config *c, uint32_t layer, k3_part part);
/* Writes the full tensor name; size of name >= 160. */
void k3_tensor_name(char *name, size_t size, uint32_t layer, k3_part part);
/* Attention output widths differ by layer kind, so the layer counts; it is ignored for parts outside the layers. */
k3_tensor_info k3_tensor_describe(const k3_config *c, uint32_t layer, k3_part part);
/* Bytes as stored, and as Q8 (quantizable parts only): int8 values plus one float32 scale per 128 inputs of a row. */
uint64_t k3_tensor_bytes(const k3_tensor_info *info);
uint64_t k3_tensor_q8_bytes(const k3_tensor_info *info);

extern const char k3_text_prefix[]; /* "language_model." */
bool k3_tensor_needed(void *unused, const char *name, size_t len);
void k3_expert_naming(const k3_config *c, ms_expert_naming *out);
/* Model layers with routed experts, ascending; returns the count. */
uint32_t k3_moe_layers(const k3_config *c, uint32_t layers[K3_MAX_LAYERS]);

/* Everything must be there, with the right dtype and shape, and nothing unknown under the text prefix.  Lists up to 20
 * misses in one message (fewer when names are long), then how many more there are.
 * Fills `experts` (caller frees) when not NULL. */
ms_status k3_layout_check(const ms_checkpoint *c, const k3_config *cfg, ms_expert_table *experts, ms_error *err);

#endif
