/* k3_config.h: the numbers of a Kimi K3 checkpoint, read from its config.json.  Nothing defaults.
 *
 * Threads: values.  Errors: MS_ERR_FORMAT listing every missing or contradictory field at once.
 */
#ifndef MS_LANE_K3_CONFIG_H
#define MS_LANE_K3_CONFIG_H

#include "base/json.h"
#include "quant/mxfp4.h"

enum { K3_MAX_LAYERS = 256, K3_MAX_TOP_K = 64, K3_MIN_CONV_TAPS = 2, K3_MAX_CONV_TAPS = 8 };

typedef struct k3_config {
    uint32_t vocab, hidden, layers, dense_width;
    float rms_eps;
    float situ_beta, situ_linear_beta;
    uint32_t block_size;      /* layers per AttnRes block */
    uint32_t first_dense;     /* layers below are dense */
    uint32_t moe_freq;
    uint32_t experts, top_k, shared_experts, expert_inner, latent; /* latent: width the routed experts work in */
    bool renormalize;
    float routed_scale;
    uint32_t mla_heads, q_rank, kv_rank, nope, extra, value;
    uint32_t kda_heads, kda_dim, conv_taps;
    float gate_bound;
    uint64_t max_context;
    uint32_t bos, eos, pad;
    uint8_t is_mla[K3_MAX_LAYERS]; /* by 0-based layer; 0: KDA */
} k3_config;

/* Epsilons that the config does not carry. */
#define K3_MLA_NORM_EPS 1e-6f /* q_a_layernorm and kv_a_layernorm */

static inline bool k3_is_moe(const k3_config *c, uint32_t layer) {
    return layer >= c->first_dense && layer % c->moe_freq == 0;
}
static inline ms_expert_shape k3_expert_shape(const k3_config *c) {
    return (ms_expert_shape){.hidden = c->latent, .inner = c->expert_inner, .order = MS_ORDER_W1_W2_W3};
}

/* True when the document's model_type is kimi_k3. */
bool k3_config_matches(const ms_json *root);
/* Checks root, the parsed config.json called `file` in messages.  Fields that the text path does not use are ignored.
 * After success widths (heads x head size, shared experts x inner) fit 2^28 and every layer is either KDA or MLA. */
ms_status k3_config_parse(k3_config *out, const ms_json *root, const char *file, ms_error *err);

#endif
