/* mimo_layout.c: the table of a MiMo V2.6 checkpoint's tensors, and the check against it.
 *
 * Owns: nothing.  Threads: any.
 * Invariants: the table has one row a part in enum order; widths were bounded by mimo_config_parse.
 * Errors: MS_ERR_FORMAT listing what is missing, mis-shaped or unknown.
 */
#include "lane/mimo26/mimo_layout.h"

#include "lane/misses.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum place { EVERY, SINKS, DENSE, MOE, OUTSIDE } place;

/* Sizes that depend on config and layer; D_B_*: counts of 128 x 128 blocks. */
typedef enum dim {
    D_NONE,
    D_HIDDEN,
    D_VOCAB,
    D_QKV,
    D_HEADS,
    D_VALUES,
    D_DENSE,
    D_EXPERTS,
    D_B_QKV,
    D_B_HIDDEN,
    D_B_DENSE
} dim;

typedef struct part_row {
    const char *name;
    place where;
    ms_dtype dtype;
    dim shape[2];
} part_row;

#define BF16 MS_DTYPE_BF16
#define FP8  MS_DTYPE_F8_E4M3
#define F32  MS_DTYPE_F32

static const part_row table[MIMO_PARTS] = {
    [MIMO_INPUT_NORM] = {"input_layernorm.weight", EVERY, BF16, {D_HIDDEN}},
    [MIMO_POST_NORM] = {"post_attention_layernorm.weight", EVERY, BF16, {D_HIDDEN}},
    [MIMO_QKV] = {"self_attn.qkv_proj.weight", EVERY, FP8, {D_QKV, D_HIDDEN}},
    [MIMO_QKV_SCALE] = {"self_attn.qkv_proj.weight_scale_inv", EVERY, F32, {D_B_QKV, D_B_HIDDEN}},
    [MIMO_O_PROJ] = {"self_attn.o_proj.weight", EVERY, BF16, {D_HIDDEN, D_VALUES}},
    [MIMO_SINK] = {"self_attn.attention_sink_bias", SINKS, BF16, {D_HEADS}},
    [MIMO_DENSE_GATE] = {"mlp.gate_proj.weight", DENSE, FP8, {D_DENSE, D_HIDDEN}},
    [MIMO_DENSE_GATE_SCALE] = {"mlp.gate_proj.weight_scale_inv", DENSE, F32, {D_B_DENSE, D_B_HIDDEN}},
    [MIMO_DENSE_UP] = {"mlp.up_proj.weight", DENSE, FP8, {D_DENSE, D_HIDDEN}},
    [MIMO_DENSE_UP_SCALE] = {"mlp.up_proj.weight_scale_inv", DENSE, F32, {D_B_DENSE, D_B_HIDDEN}},
    [MIMO_DENSE_DOWN] = {"mlp.down_proj.weight", DENSE, FP8, {D_HIDDEN, D_DENSE}},
    [MIMO_DENSE_DOWN_SCALE] = {"mlp.down_proj.weight_scale_inv", DENSE, F32, {D_B_HIDDEN, D_B_DENSE}},
    [MIMO_ROUTER] = {"mlp.gate.weight", MOE, BF16, {D_EXPERTS, D_HIDDEN}},
    [MIMO_ROUTER_BIAS] = {"mlp.gate.e_score_correction_bias", MOE, F32, {D_EXPERTS}},
    [MIMO_EMBED] = {"model.embed_tokens.weight", OUTSIDE, BF16, {D_VOCAB, D_HIDDEN}},
    [MIMO_FINAL_NORM] = {"model.norm.weight", OUTSIDE, BF16, {D_HIDDEN}},
    [MIMO_LM_HEAD] = {"lm_head.weight", OUTSIDE, BF16, {D_VOCAB, D_HIDDEN}},
};

#undef BF16
#undef FP8
#undef F32

static uint64_t blocks(uint64_t n) { return (n + MIMO_FP8_BLOCK - 1) / MIMO_FP8_BLOCK; }

static uint64_t dim_size(const mimo_config *c, uint32_t layer, dim d) {
    const mimo_attention *a = mimo_attention_of(c, layer);
    switch (d) {
    case D_NONE:
        return 1;
    case D_HIDDEN:
        return c->hidden;
    case D_VOCAB:
        return c->vocab;
    case D_QKV:
        return (uint64_t)c->chunks * mimo_chunk_of(c, a).rows;
    case D_HEADS:
        return a->heads;
    case D_VALUES:
        return (uint64_t)a->heads * a->value;
    case D_DENSE:
        return c->dense_width;
    case D_EXPERTS:
        return c->experts;
    case D_B_QKV:
        return c->chunks * blocks(mimo_chunk_of(c, a).rows);
    case D_B_HIDDEN:
        return blocks(c->hidden);
    case D_B_DENSE:
        return blocks(c->dense_width);
    }
    return 0;
}

bool mimo_has_part(const mimo_config *c, uint32_t layer, mimo_part part) {
    if (table[part].where == OUTSIDE) return true;
    if (layer >= c->layers) return false;
    switch (table[part].where) {
    case SINKS:
        return mimo_attention_of(c, layer)->sink;
    case DENSE:
        return !c->moe[layer];
    case MOE:
        return c->moe[layer] != 0;
    case EVERY:
    case OUTSIDE:
        break;
    }
    return true;
}

void mimo_tensor_name(char *name, size_t size, uint32_t layer, mimo_part part) {
    if (table[part].where == OUTSIDE)
        (void)snprintf(name, size, "%s", table[part].name);
    else
        (void)snprintf(name, size, "model.layers.%u.%s", (unsigned)layer, table[part].name);
}

mimo_tensor mimo_tensor_describe(const mimo_config *c, uint32_t layer, mimo_part part) {
    const part_row *row = &table[part];
    if (row->where == OUTSIDE) layer = 0;
    mimo_tensor t = {.dtype = row->dtype};
    for (; t.dims < 2 && row->shape[t.dims] != D_NONE; t.dims++)
        t.shape[t.dims] = dim_size(c, layer, row->shape[t.dims]);
    return t;
}

bool mimo_tensor_needed(void *unused, const char *name, size_t len) {
    static const char *const skipped[] = {"model.mtp.", "visual.", "audio_encoder.", "speech_embeddings."};
    (void)unused;
    for (size_t i = 0; i < sizeof skipped / sizeof skipped[0]; i++) {
        size_t n = strlen(skipped[i]);
        if (len >= n && memcmp(name, skipped[i], n) == 0) return false;
    }
    return true;
}

void mimo_expert_naming(const mimo_config *c, ms_expert_naming *out) {
    static const char *const suffix[MS_EXPERT_PARTS] = {
        "down_proj.weight",       "down_proj.weight_scale", "gate_proj.weight",
        "gate_proj.weight_scale", "up_proj.weight",         "up_proj.weight_scale",
    };
    const uint64_t inner = c->expert_inner, hidden = c->hidden;
    const uint64_t shape[MS_EXPERT_PARTS][2] = {
        {hidden, inner / 2},  {hidden, inner / 32}, {inner, hidden / 2},
        {inner, hidden / 32}, {inner, hidden / 2},  {inner, hidden / 32},
    };
    *out = (ms_expert_naming){.prefix_format = "model.layers.%u.mlp.experts.%u."};
    for (int i = 0; i < MS_EXPERT_PARTS; i++) {
        out->suffix[i] = suffix[i];
        memcpy(out->shape[i], shape[i], sizeof shape[i]);
    }
}

uint32_t mimo_moe_layers(const mimo_config *c, uint32_t layers[MIMO_MAX_LAYERS]) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->layers; i++) {
        if (c->moe[i]) layers[n++] = i;
    }
    return n;
}

/* ------------------------------------------------------------------ the check */

/* Whether the name is exactly one that ms_expert_table_build looks for. */
static bool is_expert_name(const mimo_config *cfg, const ms_expert_naming *naming, const char *name) {
    char expected[MIMO_NAME_SIZE];
    unsigned layer, expert;
    if (sscanf(name, "model.layers.%9u.mlp.experts.%9u.", &layer, &expert) != 2) return false;
    if (layer >= cfg->layers || !cfg->moe[layer] || expert >= cfg->experts) return false;
    for (int i = 0; i < MS_EXPERT_PARTS; i++) {
        (void)snprintf(expected, sizeof expected, "model.layers.%u.mlp.experts.%u.%s", layer, expert,
                       naming->suffix[i]);
        if (strcmp(name, expected) == 0) return true;
    }
    return false;
}

static void check_part(ms_misses *m, const ms_checkpoint *c, const mimo_config *cfg, uint32_t layer, mimo_part part,
                       uint8_t *seen) {
    char name[MIMO_NAME_SIZE];
    mimo_tensor_name(name, sizeof name, layer, part);
    mimo_tensor t = mimo_tensor_describe(cfg, layer, part);
    ms_misses_expect(m, c, name, t.dtype, t.dims, t.shape, seen);
}

static void check_all(ms_misses *m, const ms_checkpoint *c, const mimo_config *cfg, uint8_t *seen) {
    for (uint32_t layer = 0; layer < cfg->layers; layer++)
        for (mimo_part part = 0; part < MIMO_LAYER_PARTS; part++)
            if (mimo_has_part(cfg, layer, part)) check_part(m, c, cfg, layer, part, seen);
    for (mimo_part part = MIMO_LAYER_PARTS; part < MIMO_PARTS; part++) check_part(m, c, cfg, 0, part, seen);
}

ms_status mimo_layout_check(const ms_checkpoint *c, const mimo_config *cfg, ms_expert_table *experts, ms_error *err) {
    const size_t count = ms_checkpoint_tensor_count(c);
    uint8_t *seen = calloc(count ? count : 1, 1);
    if (!seen) return ms_fail_memory(err, "tensor marks", count);
    ms_misses m = {0};
    check_all(&m, c, cfg, seen);
    ms_expert_naming naming;
    mimo_expert_naming(cfg, &naming);
    uint32_t layers[MIMO_MAX_LAYERS], layer_count = mimo_moe_layers(cfg, layers);
    ms_expert_table built = {0};
    ms_error error = {0};
    ms_status status = ms_expert_table_build(&built, c, &naming, layers, layer_count, cfg->experts, &error);
    if (status == MS_ERR_FORMAT) ms_misses_note(&m, error.message);
    for (size_t i = 0; i < count; i++) {
        const char *name = ms_checkpoint_tensor(c, i)->name;
        if (!seen[i] && !is_expert_name(cfg, &naming, name)) ms_misses_unknown(&m, name);
    }
    free(seen);
    ms_status listed = ms_misses_finish(&m, ms_checkpoint_dir(c), err);
    if (status != MS_OK && status != MS_ERR_FORMAT) { /* no memory: what was listed does not matter */
        if (err) *err = error;
        listed = status;
    }
    if (listed == MS_OK && experts)
        *experts = built;
    else
        ms_expert_table_free(&built);
    return listed;
}
