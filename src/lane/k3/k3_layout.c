/* k3_layout.c: the table of a Kimi K3 checkpoint's tensors, and the check against it.
 *
 * Owns: nothing.  Threads: any.
 * Invariants: the table has one row a part in enum order; widths were bounded by k3_config_parse.
 * Errors: MS_ERR_FORMAT listing what is missing, mis-shaped or unknown.
 */
#include "lane/k3/k3_layout.h"

#include "lane/misses.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char k3_text_prefix[] = "language_model.";

/* Where a part occurs. */
typedef enum place { EVERY, KDA, MLA, DENSE, MOE, OUTSIDE } place;

/* Sizes that depend on the config; D_OUT is the attention output width of the layer's kind. */
typedef enum dim {
    D_NONE, D_ONE, D_HIDDEN, D_VOCAB, D_OUT, D_KDA, D_KDA_HEADS, D_KDA_DIM, D_A_LOG, D_TAPS, D_Q_RANK, D_Q, D_KV_A,
    D_KV_RANK, D_KV_B, D_DENSE, D_EXPERTS, D_LATENT, D_SHARED
} dim;

enum { QUANT = 1, ROWS = 2 /* read by row, not resident */ };

typedef struct part_row {
    const char *name;
    place where;
    ms_dtype dtype;
    dim shape[3];
    unsigned flags;
} part_row;

#define BF16 MS_DTYPE_BF16
#define F32  MS_DTYPE_F32

static const part_row table[K3_PARTS] = {
    [K3_INPUT_NORM] = {"input_layernorm.weight", EVERY, BF16, {D_HIDDEN}, 0},
    [K3_POST_NORM] = {"post_attention_layernorm.weight", EVERY, BF16, {D_HIDDEN}, 0},
    [K3_ATTN_RES_NORM] = {"self_attention_res_norm.weight", EVERY, BF16, {D_HIDDEN}, 0},
    [K3_ATTN_RES_PROJ] = {"self_attention_res_proj.weight", EVERY, BF16, {D_ONE, D_HIDDEN}, 0},
    [K3_MLP_RES_NORM] = {"mlp_res_norm.weight", EVERY, BF16, {D_HIDDEN}, 0},
    [K3_MLP_RES_PROJ] = {"mlp_res_proj.weight", EVERY, BF16, {D_ONE, D_HIDDEN}, 0},
    [K3_G_PROJ] = {"self_attn.g_proj.weight", EVERY, BF16, {D_OUT, D_HIDDEN}, QUANT},
    [K3_O_PROJ] = {"self_attn.o_proj.weight", EVERY, BF16, {D_HIDDEN, D_OUT}, QUANT},

    [K3_Q_PROJ] = {"self_attn.q_proj.weight", KDA, BF16, {D_KDA, D_HIDDEN}, QUANT},
    [K3_K_PROJ] = {"self_attn.k_proj.weight", KDA, BF16, {D_KDA, D_HIDDEN}, QUANT},
    [K3_V_PROJ] = {"self_attn.v_proj.weight", KDA, BF16, {D_KDA, D_HIDDEN}, QUANT},
    [K3_Q_CONV] = {"self_attn.q_conv1d.weight", KDA, F32, {D_KDA, D_ONE, D_TAPS}, 0},
    [K3_K_CONV] = {"self_attn.k_conv1d.weight", KDA, F32, {D_KDA, D_ONE, D_TAPS}, 0},
    [K3_V_CONV] = {"self_attn.v_conv1d.weight", KDA, F32, {D_KDA, D_ONE, D_TAPS}, 0},
    [K3_F_A] = {"self_attn.f_a_proj.weight", KDA, BF16, {D_KDA_DIM, D_HIDDEN}, QUANT},
    [K3_F_B] = {"self_attn.f_b_proj.weight", KDA, BF16, {D_KDA, D_KDA_DIM}, QUANT},
    [K3_B_PROJ] = {"self_attn.b_proj.weight", KDA, BF16, {D_KDA_HEADS, D_HIDDEN}, QUANT},
    [K3_A_LOG] = {"self_attn.A_log", KDA, F32, {D_A_LOG}, 0},
    [K3_DT_BIAS] = {"self_attn.dt_bias", KDA, F32, {D_KDA}, 0},
    [K3_O_NORM] = {"self_attn.o_norm.weight", KDA, F32, {D_KDA_DIM}, 0},

    [K3_Q_A] = {"self_attn.q_a_proj.weight", MLA, BF16, {D_Q_RANK, D_HIDDEN}, QUANT},
    [K3_Q_A_NORM] = {"self_attn.q_a_layernorm.weight", MLA, BF16, {D_Q_RANK}, 0},
    [K3_Q_B] = {"self_attn.q_b_proj.weight", MLA, BF16, {D_Q, D_Q_RANK}, QUANT},
    [K3_KV_A] = {"self_attn.kv_a_proj_with_mqa.weight", MLA, BF16, {D_KV_A, D_HIDDEN}, QUANT},
    [K3_KV_A_NORM] = {"self_attn.kv_a_layernorm.weight", MLA, BF16, {D_KV_RANK}, 0},
    [K3_KV_B] = {"self_attn.kv_b_proj.weight", MLA, BF16, {D_KV_B, D_KV_RANK}, 0},

    [K3_DENSE_GATE] = {"mlp.gate_proj.weight", DENSE, BF16, {D_DENSE, D_HIDDEN}, QUANT},
    [K3_DENSE_UP] = {"mlp.up_proj.weight", DENSE, BF16, {D_DENSE, D_HIDDEN}, QUANT},
    [K3_DENSE_DOWN] = {"mlp.down_proj.weight", DENSE, BF16, {D_HIDDEN, D_DENSE}, QUANT},

    [K3_ROUTER] = {"block_sparse_moe.gate.weight", MOE, BF16, {D_EXPERTS, D_HIDDEN}, 0},
    [K3_ROUTER_BIAS] = {"block_sparse_moe.gate.e_score_correction_bias", MOE, F32, {D_EXPERTS}, 0},
    [K3_LATENT_DOWN] = {"block_sparse_moe.routed_expert_down_proj.weight", MOE, BF16, {D_LATENT, D_HIDDEN}, QUANT},
    [K3_LATENT_NORM] = {"block_sparse_moe.routed_expert_norm.weight", MOE, BF16, {D_LATENT}, 0},
    [K3_LATENT_UP] = {"block_sparse_moe.routed_expert_up_proj.weight", MOE, BF16, {D_HIDDEN, D_LATENT}, QUANT},
    [K3_SHARED_GATE] = {"block_sparse_moe.shared_experts.gate_proj.weight", MOE, BF16, {D_SHARED, D_HIDDEN}, QUANT},
    [K3_SHARED_UP] = {"block_sparse_moe.shared_experts.up_proj.weight", MOE, BF16, {D_SHARED, D_HIDDEN}, QUANT},
    [K3_SHARED_DOWN] = {"block_sparse_moe.shared_experts.down_proj.weight", MOE, BF16, {D_HIDDEN, D_SHARED}, QUANT},

    [K3_EMBED] = {"language_model.model.embed_tokens.weight", OUTSIDE, BF16, {D_VOCAB, D_HIDDEN}, ROWS},
    [K3_FINAL_NORM] = {"language_model.model.norm.weight", OUTSIDE, BF16, {D_HIDDEN}, 0},
    [K3_OUT_RES_NORM] = {"language_model.model.output_attn_res_norm.weight", OUTSIDE, BF16, {D_HIDDEN}, 0},
    [K3_OUT_RES_PROJ] = {"language_model.model.output_attn_res_proj.weight", OUTSIDE, BF16, {D_ONE, D_HIDDEN}, 0},
    [K3_LM_HEAD] = {"language_model.lm_head.weight", OUTSIDE, BF16, {D_VOCAB, D_HIDDEN}, 0},
};

#undef BF16
#undef F32

static uint64_t dim_size(const k3_config *c, uint32_t layer, dim d) {
    const uint64_t kda = (uint64_t)c->kda_heads * c->kda_dim;
    switch (d) {
    case D_NONE:
    case D_ONE: return 1;
    case D_HIDDEN: return c->hidden;
    case D_VOCAB: return c->vocab;
    case D_OUT: return c->is_mla[layer] ? (uint64_t)c->mla_heads * c->value : kda;
    case D_KDA: return kda;
    case D_KDA_HEADS: return c->kda_heads;
    case D_KDA_DIM: return c->kda_dim;
    case D_A_LOG: return c->kda_heads > c->kda_dim ? c->kda_heads : c->kda_dim;
    case D_TAPS: return c->conv_taps;
    case D_Q_RANK: return c->q_rank;
    case D_Q: return c->mla_heads * ((uint64_t)c->nope + c->extra);
    case D_KV_A: return (uint64_t)c->kv_rank + c->extra;
    case D_KV_RANK: return c->kv_rank;
    case D_KV_B: return c->mla_heads * ((uint64_t)c->nope + c->value);
    case D_DENSE: return c->dense_width;
    case D_EXPERTS: return c->experts;
    case D_LATENT: return c->latent;
    case D_SHARED: return (uint64_t)c->shared_experts * c->expert_inner;
    }
    return 0;
}

bool k3_has_part(const k3_config *c, uint32_t layer, k3_part part) {
    switch (table[part].where) {
    case EVERY: return layer < c->layers;
    case KDA: return layer < c->layers && !c->is_mla[layer];
    case MLA: return layer < c->layers && c->is_mla[layer];
    case DENSE: return layer < c->layers && !k3_is_moe(c, layer);
    case MOE: return layer < c->layers && k3_is_moe(c, layer);
    case OUTSIDE: return true;
    }
    return false;
}

void k3_tensor_name(char *name, size_t size, uint32_t layer, k3_part part) {
    if (table[part].where == OUTSIDE) (void)snprintf(name, size, "%s", table[part].name);
    else (void)snprintf(name, size, "%smodel.layers.%u.%s", k3_text_prefix, (unsigned)layer, table[part].name);
}

k3_tensor_info k3_tensor_describe(const k3_config *c, uint32_t layer, k3_part part) {
    const part_row *row = &table[part];
    if (row->where == OUTSIDE) layer = 0;
    k3_tensor_info info = {
        .dtype = row->dtype,
        .quantizable = (row->flags & QUANT) != 0,
        .resident = (row->flags & ROWS) == 0,
        .rows = 1,
        .cols = 1,
    };
    for (; info.dims < 3 && row->shape[info.dims] != D_NONE; info.dims++)
        info.shape[info.dims] = dim_size(c, layer, row->shape[info.dims]);
    /* A vector is one row; the convolution's middle dimension is 1. */
    info.cols = (uint32_t)info.shape[info.dims - 1];
    if (info.dims > 1) info.rows = (uint32_t)info.shape[0];
    if (part == K3_A_LOG && info.shape[0] != c->kda_heads) info.alt_shape0 = c->kda_heads;
    return info;
}

uint64_t k3_tensor_bytes(const k3_tensor_info *info) {
    return (uint64_t)info->rows * info->cols * ms_dtype_bytes(info->dtype);
}

uint64_t k3_tensor_q8_bytes(const k3_tensor_info *info) {
    const uint64_t group = 128, groups = (info->cols + group - 1) / group;
    return (uint64_t)info->rows * (info->cols + groups * sizeof(float));
}

bool k3_tensor_needed(void *unused, const char *name, size_t len) {
    (void)unused;
    const size_t n = sizeof k3_text_prefix - 1;
    return len > n && memcmp(name, k3_text_prefix, n) == 0;
}

void k3_expert_naming(const k3_config *c, ms_expert_naming *out) {
    static const char *const suffix[MS_EXPERT_PARTS] = {
        "w1.weight_packed", "w1.weight_scale",  "w2.weight_packed",
        "w2.weight_scale",  "w3.weight_packed", "w3.weight_scale",
    };
    const uint64_t inner = c->expert_inner, latent = c->latent;
    const uint64_t shape[MS_EXPERT_PARTS][2] = {
        {inner, latent / 2},  {inner, latent / 32}, {latent, inner / 2},
        {latent, inner / 32}, {inner, latent / 2},  {inner, latent / 32},
    };
    *out = (ms_expert_naming){.prefix_format = "language_model.model.layers.%u.block_sparse_moe.experts.%u."};
    for (int i = 0; i < MS_EXPERT_PARTS; i++) {
        out->suffix[i] = suffix[i];
        memcpy(out->shape[i], shape[i], sizeof shape[i]);
    }
}

uint32_t k3_moe_layers(const k3_config *c, uint32_t layers[K3_MAX_LAYERS]) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->layers; i++) {
        if (k3_is_moe(c, i)) layers[n++] = i;
    }
    return n;
}

/* ------------------------------------------------------------------ the check */

enum { NAME_SIZE = 160 };

static void check_part(const ms_checkpoint *c, const k3_config *cfg, uint32_t layer, k3_part part, uint8_t *seen,
                       ms_misses *m) {
    char name[NAME_SIZE];
    k3_tensor_name(name, sizeof name, layer, part);
    k3_tensor_info info = k3_tensor_describe(cfg, layer, part);
    const ms_tensor *t = ms_checkpoint_find(c, name);
    if (t && info.alt_shape0 && t->dims == 1 && t->shape[0] == info.alt_shape0) info.shape[0] = info.alt_shape0;
    ms_misses_expect(m, c, name, info.dtype, info.dims, info.shape, seen);
}

/* Whether the name is exactly one that ms_expert_table_build looks for. */
static bool is_expert_name(const k3_config *cfg, const ms_expert_naming *naming, const char *name) {
    char expected[NAME_SIZE];
    unsigned layer, expert;
    if (sscanf(name, "language_model.model.layers.%9u.block_sparse_moe.experts.%9u.", &layer, &expert) != 2)
        return false;
    if (layer >= cfg->layers || !k3_is_moe(cfg, layer) || expert >= cfg->experts) return false;
    for (int i = 0; i < MS_EXPERT_PARTS; i++) {
        (void)snprintf(expected, sizeof expected, "language_model.model.layers.%u.block_sparse_moe.experts.%u.%s",
                       layer, expert, naming->suffix[i]);
        if (strcmp(name, expected) == 0) return true;
    }
    return false;
}

static void check_unknown(const ms_checkpoint *c, const k3_config *cfg, const ms_expert_naming *naming,
                          const uint8_t *seen, ms_misses *m) {
    size_t count = ms_checkpoint_tensor_count(c);
    for (size_t i = 0; i < count; i++) {
        const ms_tensor *t = ms_checkpoint_tensor(c, i);
        if (seen[i] || is_expert_name(cfg, naming, t->name)) continue;
        ms_misses_unknown(m, t->name);
    }
}

ms_status k3_layout_check(const ms_checkpoint *c, const k3_config *cfg, ms_expert_table *experts, ms_error *err) {
    const size_t count = ms_checkpoint_tensor_count(c);
    uint8_t *seen = calloc(count ? count : 1, 1);
    if (!seen) return ms_fail_memory(err, "tensor marks", count);

    ms_misses m = {0};
    for (uint32_t layer = 0; layer < cfg->layers; layer++) {
        for (k3_part part = 0; part < K3_LAYER_PARTS; part++) {
            if (k3_has_part(cfg, layer, part)) check_part(c, cfg, layer, part, seen, &m);
        }
    }
    for (k3_part part = K3_LAYER_PARTS; part < K3_PARTS; part++) check_part(c, cfg, 0, part, seen, &m);

    ms_expert_naming naming;
    k3_expert_naming(cfg, &naming);
    uint32_t layers[K3_MAX_LAYERS];
    uint32_t layer_count = k3_moe_layers(cfg, layers);
    ms_expert_table built = {0};
    ms_error error = {0};
    ms_status status = ms_expert_table_build(&built, c, &naming, layers, layer_count, cfg->experts, &error);
    if (status == MS_ERR_FORMAT) ms_misses_note(&m, error.message);
    check_unknown(c, cfg, &naming, seen, &m);
    free(seen);

    if (status != MS_OK && status != MS_ERR_FORMAT) {
        ms_text_free(&m.list);
        if (err) *err = error;
    } else {
        status = ms_misses_finish(&m, ms_checkpoint_dir(c), err);
    }
    if (status == MS_OK && experts) *experts = built;
    else ms_expert_table_free(&built);
    return status;
}
