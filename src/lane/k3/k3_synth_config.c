/* k3_synth_config.c: config.json of a synthetic checkpoint, and the official model's numbers.
 *
 * Owns: nothing.  Threads: any.  Errors: a failed allocation shows in the text buffer.
 */
#include "lane/k3/k3_synth.h"

#include <stdio.h>
#include <stdlib.h>

static void put_uint(ms_text *t, const char *key, uint64_t v) {
    ms_text_printf(t, "  \"%s\": %llu,\n", key, (unsigned long long)v);
}

static void put_number(ms_text *t, const char *key, float f) {
    ms_text_printf(t, "  \"%s\": ", key);
    ms_synth_put_float(t, f);
    ms_text_puts(t, ",\n");
}

static void put_layers(ms_text *t, const k3_config *c, const char *key, bool mla) {
    ms_text_printf(t, "   \"%s\": [", key);
    const char *separator = "";
    for (uint32_t i = 0; i < c->layers; i++) {
        if ((c->is_mla[i] != 0) != mla) continue;
        ms_text_printf(t, "%s%u", separator, (unsigned)(i + 1));
        separator = ", ";
    }
    ms_text_puts(t, "],\n");
}

static void put_quantization(ms_text *t) {
    ms_text_puts(t,
                 "  \"quantization_config\": {\n"
                 "   \"quant_method\": \"compressed-tensors\",\n"
                 "   \"format\": \"mxfp4-pack-quantized\",\n"
                 "   \"quantization_status\": \"compressed\",\n"
                 "   \"config_groups\": {\n"
                 "    \"group_0\": {\n"
                 "     \"format\": \"mxfp4-pack-quantized\",\n"
                 "     \"input_activations\": null,\n"
                 "     \"output_activations\": null,\n"
                 "     \"targets\": [\"Linear\"],\n"
                 "     \"weights\": {\"num_bits\": 4, \"type\": \"float\", \"symmetric\": true, "
                 "\"strategy\": \"group\", \"group_size\": 32, \"dynamic\": false, \"scale_dtype\": \"torch.uint8\"}\n"
                 "    }\n"
                 "   }\n"
                 "  }\n");
}

static void put_tokens(ms_text *t, const k3_config *c) {
    put_uint(t, "bos_token_id", c->bos);
    put_uint(t, "eos_token_id", c->eos);
    put_uint(t, "pad_token_id", c->pad);
    ms_text_puts(t, "  \"tie_word_embeddings\": false,\n");
}

static void put_text_config(ms_text *t, const k3_config *c) {
    ms_text_puts(t, " \"text_config\": {\n  \"architectures\": [\"KimiLinearForCausalLM\"],\n"
                    "  \"model_type\": \"kimi_linear\",\n  \"dtype\": \"bfloat16\",\n  \"hidden_act\": \"situ\",\n"
                    "  \"latent_moe_use_norm\": true,\n  \"moe_router_activation_func\": \"sigmoid\",\n"
                    "  \"num_expert_group\": 1,\n  \"topk_group\": 1,\n  \"topk_method\": \"noaux_tc\",\n"
                    "  \"use_grouped_topk\": true,\n  \"mla_use_nope\": true,\n  \"mla_use_output_gate\": true,\n"
                    "  \"num_nextn_predict_layers\": 0,\n");
    put_uint(t, "vocab_size", c->vocab);
    put_uint(t, "hidden_size", c->hidden);
    put_uint(t, "num_hidden_layers", c->layers);
    put_uint(t, "intermediate_size", c->dense_width);
    put_number(t, "rms_norm_eps", c->rms_eps);
    put_number(t, "activation_situ_beta", c->situ_beta);
    put_number(t, "activation_situ_linear_beta", c->situ_linear_beta);
    put_uint(t, "attn_res_block_size", c->block_size);
    put_uint(t, "first_k_dense_replace", c->first_dense);
    put_uint(t, "moe_layer_freq", c->moe_freq);
    put_uint(t, "num_experts", c->experts);
    put_uint(t, "num_experts_per_token", c->top_k);
    put_uint(t, "num_shared_experts", c->shared_experts);
    put_uint(t, "moe_intermediate_size", c->expert_inner);
    put_uint(t, "routed_expert_hidden_size", c->latent);
    ms_text_printf(t, "  \"moe_renormalize\": %s,\n", c->renormalize ? "true" : "false");
    put_number(t, "routed_scaling_factor", c->routed_scale);
    put_uint(t, "num_attention_heads", c->mla_heads);
    put_uint(t, "num_key_value_heads", c->mla_heads);
    put_uint(t, "q_lora_rank", c->q_rank);
    put_uint(t, "kv_lora_rank", c->kv_rank);
    put_uint(t, "qk_nope_head_dim", c->nope);
    put_uint(t, "qk_rope_head_dim", c->extra);
    put_uint(t, "v_head_dim", c->value);
    put_uint(t, "max_position_embeddings", c->max_context);
    put_tokens(t, c);
    ms_text_puts(t, "  \"linear_attn_config\": {\n");
    put_layers(t, c, "full_attn_layers", true);
    put_layers(t, c, "kda_layers", false);
    ms_text_printf(t, "   \"num_heads\": %u,\n   \"head_dim\": %u,\n   \"short_conv_kernel_size\": %u,\n",
                   (unsigned)c->kda_heads, (unsigned)c->kda_dim, (unsigned)c->conv_taps);
    ms_text_puts(t, "   \"use_full_rank_gate\": true,\n   \"gate_lower_bound\": ");
    ms_synth_put_float(t, c->gate_bound);
    ms_text_puts(t, "\n  },\n");
    put_quantization(t);
    ms_text_puts(t, " }");
}

void k3_synth_config_text(ms_text *out, const k3_config *c, bool vision) {
    ms_text_puts(out, "{\n \"architectures\": [\"KimiK3ForConditionalGeneration\"],\n \"model_type\": \"kimi_k3\",\n"
                      " \"dtype\": \"bfloat16\",\n");
    put_text_config(out, c);
    if (vision) ms_text_printf(out, ",\n \"vision_config\": {\"text_hidden_size\": %u}", (unsigned)c->hidden);
    ms_text_puts(out, "\n}\n");
}

void k3_config_official(k3_config *out) {
    *out = (k3_config){
        .vocab = 163840, .hidden = 7168, .layers = 93, .dense_width = 33792,
        .rms_eps = 1e-5f, .situ_beta = 4.0f, .situ_linear_beta = 25.0f,
        .block_size = 12, .first_dense = 1, .moe_freq = 1,
        .experts = 896, .top_k = 16, .shared_experts = 2, .expert_inner = 3072, .latent = 3584,
        .renormalize = true, .routed_scale = 1.0f,
        .mla_heads = 96, .q_rank = 1536, .kv_rank = 512, .nope = 128, .extra = 64, .value = 128,
        .kda_heads = 96, .kda_dim = 128, .conv_taps = 4, .gate_bound = -5.0f,
        .max_context = 1048576, .bos = 163584, .eos = 163586, .pad = 163839,
    };
    for (uint32_t i = 0; i < out->layers; i++) out->is_mla[i] = i % 4 == 3 || i == out->layers - 1;
}
