/* mimo_synth.c: what a synthetic MiMo V2.6 checkpoint holds, its config.json, and the official model's numbers.
 *
 * Owns: nothing; plans belong to the caller.  Threads: pure.  Errors: memory.
 */
#include "lane/mimo26/mimo_synth.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lane/mimo26/mimo_layout.h"

enum { EXPERTS_A_SHARD = 4 };

/* ------------------------------------------------------------------ tensors */

static void choose_values(ms_synth_tensor *t, mimo_part part) {
    uint64_t inputs = t->shape[t->dims - 1];
    t->amplitude = ms_synth_amplitude(inputs);
    if (t->dtype == MS_DTYPE_F8_E4M3) t->fill = MS_FILL_FP8;
    if (t->dims == 1) { /* norm weights */
        t->mean = 1.0f;
        t->amplitude = 0.1f;
    }
    switch (part) {
    case MIMO_SINK:
        t->mean = 0.0f;
        t->amplitude = 1.0f;
        break;
    case MIMO_ROUTER_BIAS:
        t->mean = 0.0f;
        t->amplitude = 0.01f;
        break;
    case MIMO_EMBED:
        t->amplitude = ms_synth_amplitude(1);
        break;
    case MIMO_LM_HEAD:
        t->amplitude *= 3.0f;
        break; /* logits with clear maxima */
    case MIMO_QKV_SCALE:
    case MIMO_DENSE_GATE_SCALE:
    case MIMO_DENSE_UP_SCALE:
    case MIMO_DENSE_DOWN_SCALE: /* codes have a root mean square of 0.6 */
        t->mean = 1.0f / (0.6f * sqrtf((float)(inputs * MIMO_FP8_BLOCK)));
        t->amplitude = 0.1f * t->mean;
        break;
    default:
        break;
    }
}

static ms_status add_part(ms_synth_plan *p, const mimo_config *c, uint32_t layer, mimo_part part, ms_dtype only,
                          ms_error *err) {
    if (!mimo_has_part(c, layer, part)) return MS_OK;
    char name[MIMO_NAME_SIZE];
    mimo_tensor_name(name, sizeof name, layer, part);
    mimo_tensor info = mimo_tensor_describe(c, layer, part);
    if (info.dtype != only) return MS_OK;
    ms_synth_tensor t = {.dtype = info.dtype, .dims = info.dims, .fill = MS_FILL_UNIFORM};
    memcpy(t.shape, info.shape, sizeof info.shape);
    choose_values(&t, part);
    return ms_synth_add(p, name, &t, err);
}

/* By type, so that elements lie aligned. */
static ms_status add_dense(ms_synth_plan *p, const mimo_config *c, ms_error *err) {
    static const ms_dtype types[] = {MS_DTYPE_F32, MS_DTYPE_BF16, MS_DTYPE_F8_E4M3};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        for (mimo_part part = MIMO_LAYER_PARTS; part < MIMO_PARTS; part++)
            MS_TRY(add_part(p, c, 0, part, types[i], err));
        for (uint32_t l = 0; l < c->layers; l++)
            for (mimo_part part = 0; part < MIMO_LAYER_PARTS; part++) MS_TRY(add_part(p, c, l, part, types[i], err));
    }
    return MS_OK;
}

static ms_status add_expert(ms_synth_plan *p, const ms_expert_naming *naming, uint32_t layer, uint32_t expert,
                            bool gaussian, ms_error *err) {
    for (int i = 0; i < MS_EXPERT_PARTS; i++) {
        char name[MIMO_NAME_SIZE];
        (void)snprintf(name, sizeof name, "model.layers.%u.mlp.experts.%u.%s", (unsigned)layer, (unsigned)expert,
                       naming->suffix[i]);
        bool packed = i % 2 == 0;
        ms_synth_tensor t = {
            .dtype = MS_DTYPE_U8,
            .dims = 2,
            .shape = {naming->shape[i][0], naming->shape[i][1]},
            .fill = ms_synth_expert_fill(i, gaussian),
            .scale_base = packed ? 0 : ms_synth_scale_base(naming->shape[i][1] * 32),
        };
        MS_TRY(ms_synth_add(p, name, &t, err));
    }
    return MS_OK;
}

/* The experts of a shard lie in the order of their names as text: "10" before "8". */
static ms_status add_experts(ms_synth_plan *p, const mimo_config *c, uint32_t number, bool gaussian, ms_error *err) {
    ms_expert_naming naming;
    uint32_t ids[EXPERTS_A_SHARD], count = 0;
    mimo_expert_naming(c, &naming);
    for (uint32_t e = number * EXPERTS_A_SHARD; e < c->experts && count < EXPERTS_A_SHARD; e++) {
        char text[16], other[16];
        uint32_t at = count++;
        (void)snprintf(text, sizeof text, "%u", (unsigned)e);
        for (; at > 0; at--) {
            (void)snprintf(other, sizeof other, "%u", (unsigned)ids[at - 1]);
            if (strcmp(other, text) < 0) break;
            ids[at] = ids[at - 1];
        }
        ids[at] = e;
    }
    for (uint32_t l = 0; l < c->layers; l++)
        for (uint32_t i = 0; c->moe[l] && i < count; i++) MS_TRY(add_expert(p, &naming, l, ids[i], gaussian, err));
    return MS_OK;
}

/* Tensors that are never read. */
static ms_status add_dummy(ms_synth_plan *p, const char *name, unsigned dims, const uint64_t *shape, ms_error *err) {
    ms_synth_tensor t = {.dtype = MS_DTYPE_BF16, .dims = (uint8_t)dims, .fill = MS_FILL_UNIFORM, .amplitude = 0.02f};
    memcpy(t.shape, shape, dims * sizeof *shape);
    return ms_synth_add(p, name, &t, err);
}

static ms_status add_dummies(ms_synth_plan *p, bool mtp, ms_error *err) {
    const uint64_t patches[] = {32, 3, 2, 14, 14}, square[] = {32, 32}, vector[] = {32};
    if (mtp) {
        MS_TRY(add_dummy(p, "model.mtp.layers.0.eh_proj.weight", 2, square, err));
        return add_dummy(p, "model.mtp.layers.0.enorm.weight", 1, vector, err);
    }
    MS_TRY(add_dummy(p, "audio_encoder.projection.mlp.0.weight", 2, square, err));
    MS_TRY(add_dummy(p, "speech_embeddings.0.weight", 2, square, err));
    return add_dummy(p, "visual.patch_embed.proj.weight", 5, patches, err);
}

/* ------------------------------------------------------------------ shards */

static uint32_t expert_shards(const mimo_config *c) {
    uint32_t n = c->experts / EXPERTS_A_SHARD + (c->experts % EXPERTS_A_SHARD != 0);
    return n ? n : 1;
}

static uint32_t shard_count(const ms_synth_model *m) { return expert_shards(m->config) + (m->vision ? 1 : 0); }

static ms_status plan_shard(ms_synth_plan *p, const ms_synth_model *m, uint32_t number, ms_error *err) {
    const mimo_config *c = m->config;
    if (number == expert_shards(c)) {
        (void)snprintf(p->file, sizeof p->file, "model_mtp.safetensors");
        return add_dummies(p, true, err);
    }
    (void)snprintf(p->file, sizeof p->file, "model_pp0_ep%u_shard0.safetensors", (unsigned)number);
    if (number == 0) {
        MS_TRY(add_dense(p, c, err));
        if (m->vision) MS_TRY(add_dummies(p, false, err));
    }
    return add_experts(p, c, number, m->gaussian, err);
}

/* ------------------------------------------------------------------ config.json */

static void put_uint(ms_text *t, const char *key, uint64_t v) {
    ms_text_printf(t, " \"%s\": %llu,\n", key, (unsigned long long)v);
}

static void put_float(ms_text *t, const char *key, float f) {
    ms_text_printf(t, " \"%s\": ", key);
    ms_synth_put_float(t, f);
    ms_text_puts(t, ",\n");
}

static void put_list(ms_text *t, const char *key, const uint8_t *values, uint32_t count) {
    ms_text_printf(t, " \"%s\": [", key);
    for (uint32_t i = 0; i < count; i++) ms_text_printf(t, "%s%u", i ? ", " : "", (unsigned)values[i]);
    ms_text_puts(t, "],\n");
}

static void put_attention(ms_text *t, const mimo_attention *a, const char *prefix, const char *heads,
                          const char *kv_heads) {
    ms_text_printf(
        t, " \"%s%s\": %u,\n \"%s%s\": %u,\n \"%shead_dim\": %u,\n \"%sv_head_dim\": %u,\n \"%srope_theta\": ", prefix,
        heads, (unsigned)a->heads, prefix, kv_heads, (unsigned)a->kv_heads, prefix, (unsigned)a->key, prefix,
        (unsigned)a->value, prefix);
    ms_json_write_double(t, a->theta);
    ms_text_puts(t, ",\n");
}

/* The factor that gives exactly this many rotated dimensions, whatever is done with it in double. */
static void put_rotary(ms_text *t, const mimo_attention *a) {
    ms_text_puts(t, " \"partial_rotary_factor\": ");
    ms_json_write_double(t, a->rotary == a->key ? 1.0 : ((double)a->rotary + 0.125) / (double)a->key);
    ms_text_puts(t, ",\n");
}

static void put_quantization(ms_text *t) {
    ms_text_puts(
        t,
        " \"quantization_config\": {\"quant_method\": \"fp8\", \"fmt\": \"e4m3\", \"activation_scheme\": \"dynamic\", "
        "\"weight_block_size\": [128, 128], \"store_dtype\": \"mxfp4\", \"mxfp4_block_size\": 32}\n}\n");
}

void mimo_synth_config_text(ms_text *out, const mimo_config *c) {
    const mimo_attention *full = &c->attention[MIMO_FULL], *sliding = &c->attention[MIMO_SLIDING];
    ms_text_puts(
        out, "{\n \"architectures\": [\"MiMoV2ForCausalLM\"],\n \"model_type\": \"mimo_v2\",\n"
             " \"attention_projection_layout\": \"fused_qkv\",\n \"attention_bias\": false,\n"
             " \"hidden_act\": \"silu\",\n \"scoring_func\": \"sigmoid\",\n \"topk_method\": \"noaux_tc\",\n"
             " \"n_group\": 1,\n \"topk_group\": 1,\n \"n_shared_experts\": null,\n \"tie_word_embeddings\": false,\n"
             " \"bos_token_id\": null,\n");
    put_uint(out, "vocab_size", c->vocab);
    put_uint(out, "hidden_size", c->hidden);
    put_uint(out, "num_hidden_layers", c->layers);
    put_uint(out, "intermediate_size", c->dense_width);
    put_uint(out, "moe_intermediate_size", c->expert_inner);
    put_uint(out, "n_routed_experts", c->experts);
    put_uint(out, "num_experts_per_tok", c->top_k);
    put_uint(out, "max_position_embeddings", c->max_context);
    put_uint(out, "sliding_window", sliding->window);
    put_uint(out, "eos_token_id", c->eos);
    put_attention(out, full, "", "num_attention_heads", "num_key_value_heads");
    put_attention(out, sliding, "swa_", "num_attention_heads", "num_key_value_heads");
    put_rotary(out, full);
    put_float(out, "layernorm_epsilon", c->eps);
    put_float(out, "attention_value_scale", c->value_scale);
    put_float(out, "routed_scaling_factor", c->routed_scale);
    ms_text_printf(
        out,
        " \"norm_topk_prob\": %s,\n \"add_full_attention_sink_bias\": %s,\n \"add_swa_attention_sink_bias\": %s,\n",
        c->renormalize ? "true" : "false", full->sink ? "true" : "false", sliding->sink ? "true" : "false");
    put_list(out, "hybrid_layer_pattern", c->kind, c->layers);
    put_list(out, "moe_layer_freq", c->moe, c->layers);
    put_quantization(out);
}

static void config_text(ms_text *out, const ms_synth_model *m) { mimo_synth_config_text(out, m->config); }

static ms_status check(const ms_synth_model *m, const ms_json *root, ms_error *err) {
    const mimo_config *c = m->config;
    mimo_config back;
    MS_TRY(mimo_config_parse(&back, root, "the model's numbers", err));
    return mimo_config_set_chunks(&back, c->chunks, err);
}

void mimo_config_official(mimo_config *out) {
    *out = (mimo_config){
        .vocab = 152576,
        .hidden = 4096,
        .layers = 48,
        .dense_width = 16384,
        .experts = 256,
        .top_k = 8,
        .expert_inner = 2048,
        .eps = 1e-6f,
        .value_scale = 0.707f,
        .routed_scale = 1.0f,
        .renormalize = true,
        .max_context = 1048576,
        .eos = 151645,
        .chunks = 4,
        .attention = {[MIMO_FULL] = {64, 4, 192, 128, 64, 0, false, 1e7},
                      [MIMO_SLIDING] = {64, 8, 192, 128, 64, 128, true, 1e4}},
    };
    for (uint32_t i = 0; i < out->layers; i++) {
        out->kind[i] = i == 0 || i % 6 == 5 ? MIMO_FULL : MIMO_SLIDING;
        out->moe[i] = i > 0;
    }
}

/* ------------------------------------------------------------------ writing */

static ms_status model_of(ms_synth_model *m, const mimo_config *cfg, ms_error *err) {
    if (cfg->layers == 0 || cfg->layers > MIMO_MAX_LAYERS)
        return ms_fail(err, MS_ERR_FORMAT, "num_hidden_layers: expected 1 to %d, found %u", MIMO_MAX_LAYERS,
                       (unsigned)cfg->layers);
    if (cfg->chunks == 0) return ms_fail(err, MS_ERR_FORMAT, "metadata.tp_size: expected at least 1, found 0");
    *m = (ms_synth_model){
        .config = cfg, .shards = shard_count, .plan = plan_shard, .config_text = config_text, .check = check};
    (void)snprintf(m->metadata, sizeof m->metadata, ",\n    \"tp_size\": %u", (unsigned)cfg->chunks);
    return MS_OK;
}

ms_status mimo_synth_write(const char *dir, const mimo_config *cfg, const ms_synth_options *opt, ms_error *err) {
    ms_synth_model m;
    MS_TRY(model_of(&m, cfg, err));
    return ms_synth_write(dir, &m, opt, err);
}
