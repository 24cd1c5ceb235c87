/* config.json of K3 checkpoints: values from real files, and complaints that list everything wrong at once. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "../store/store_util.h"
#include "lane/k3/k3_synth.h"
#include "store/checkpoint.h"

static ms_status read_config(k3_config *out, const char *dir, ms_error *err) {
    ms_json_doc *doc = NULL;
    char *text = NULL;
    ms_status status = ms_checkpoint_read_config(dir, &doc, &text, err);
    if (status != MS_OK) return status;
    status = k3_config_parse(out, ms_json_root(doc), "config.json", err);
    ms_json_free(doc);
    free(text);
    return status;
}

static void test_nano(void **state) {
    (void)state;
    k3_config c;
    ms_error err = {0};
    if (read_config(&c, "models/k3-nano", &err) != MS_OK) fail_msg("%s", err.message);
    assert_int_equal(c.vocab, 4096);
    assert_int_equal(c.hidden, 256);
    assert_int_equal(c.layers, 9);
    assert_int_equal(c.dense_width, 512);
    assert_true(c.rms_eps == 1e-5f && c.situ_beta == 4.0f && c.situ_linear_beta == 25.0f && c.gate_bound == -5.0f);
    assert_int_equal(c.block_size, 3);
    assert_int_equal(c.experts, 32);
    assert_int_equal(c.top_k, 4);
    assert_int_equal(c.latent, 128);
    assert_int_equal(c.extra, 32);
    assert_int_equal(c.kda_dim, 64);
    assert_int_equal(c.conv_taps, 4);
    assert_int_equal(c.max_context, 131072);
    assert_int_equal(c.eos, 3842);
    assert_true(c.renormalize);
    static const uint8_t mla[9] = {0, 0, 0, 1, 0, 0, 0, 1, 1};
    assert_memory_equal(c.is_mla, mla, 9);
    assert_false(k3_is_moe(&c, 0));
    assert_true(k3_is_moe(&c, 1));
}

static void test_goldens(void **state) {
    (void)state;
    k3_config c;
    ms_error err = {0};
    if (read_config(&c, "tests/golden/k3/k3-tiny-a", &err) != MS_OK) fail_msg("%s", err.message);
    assert_int_equal(c.layers, 5);
    assert_int_equal(c.kv_rank, 64);
    assert_int_equal(c.block_size, 2);
    if (read_config(&c, "tests/golden/k3/k3-tiny-c", &err) != MS_OK) fail_msg("%s", err.message);
    assert_int_equal(c.layers, 4);
    assert_int_equal(c.kda_heads, 2);
    assert_int_equal(c.kda_dim, 128);
    assert_int_equal(c.expert_inner, 96);
}

static void test_matches(void **state) {
    (void)state;
    static const struct {
        const char *text;
        bool yes;
    } cases[] = {{"{\"model_type\":\"kimi_k3\"}", true},
                 {"{\"model_type\":\"kimi_linear\"}", false},
                 {"{}", false},
                 {"{\"model_type\":3}", false},
                 {"[]", false},
                 {"null", false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ms_json_doc *doc = NULL;
        ms_error err = {0};
        assert_int_equal(ms_json_parse(&doc, cases[i].text, strlen(cases[i].text), "x", NULL, &err), MS_OK);
        assert_true(k3_config_matches(ms_json_root(doc)) == cases[i].yes);
        ms_json_free(doc);
    }
}

/* The nano config with edits (pairs of from, to; NULL ends) must be refused with all the parts. */
static ms_status try_edits(const char *const *edits, ms_error *err) {
    char dir[PATH_BYTES];
    make_dir(dir);
    copy_file("models/k3-nano", dir, "config.json");
    for (; edits[0]; edits += 2) edit_text(dir, "config.json", edits[0], edits[1]);
    k3_config c;
    ms_status status = read_config(&c, dir, err);
    remove_dir(dir);
    return status;
}

#define EDITS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void test_accepted_variants(void **state) {
    (void)state;
    static const char *const variants[][3] = {
        {"\"num_key_value_heads\": 4,", "", NULL}, /* no effect */
        {"\"topk_method\": \"noaux_tc\",", "", NULL},
        {"\"num_nextn_predict_layers\": 0,", "", NULL},
        {"\"short_conv_kernel_size\": 4", "\"short_conv_kernel_size\": 2", NULL},
        {"\"short_conv_kernel_size\": 4", "\"short_conv_kernel_size\": 8", NULL},
        {"\"num_heads\": 4", "\"num_heads\": 6", NULL}, /* independent of the MLA heads */
        {"\"first_k_dense_replace\": 1", "\"first_k_dense_replace\": 9", NULL},
        {"\"bos_token_id\": 3840,", "", NULL}, /* the other one remains */
    };
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++) {
        ms_error err = {0};
        if (try_edits(variants[i], &err) != MS_OK) fail_msg("%zu: %s", i, err.message);
    }
}

static void test_single_faults(void **state) {
    (void)state;
    static const struct {
        const char *from, *to, *parts[2];
    } cases[] = {
        {"\"kimi_k3\"", "\"kimi_k2\"", {"model_type: expected \"kimi_k3\"", "found \"kimi_k2\""}},
        {"\"kimi_linear\"", "\"llama\"", {"text_config.model_type", "found \"llama\""}},
        {"\"hidden_size\": 256", "\"hidden_size\": 0", {"text_config.hidden_size", "found 0"}},
        {"\"hidden_size\": 256", "\"hidden_size\": \"256\"", {"text_config.hidden_size", "found \"256\""}},
        {"\"hidden_size\": 256", "\"hidden_size\": 256.0", {"text_config.hidden_size", "found 256.0"}},
        {"\"hidden_size\": 256", "\"hidden_size\": 99999999999", {"text_config.hidden_size", "found 99999999999"}},
        {"\"num_hidden_layers\": 9", "\"num_hidden_layers\": 257", {"num_hidden_layers", "from 1 to 256"}},
        {"\"num_hidden_layers\": 9",
         "\"num_hidden_layers\": 8",
         {"full_attn_layers", "layer numbers from 1 to 8, found 9"}},
        {"\"num_hidden_layers\": 9", "\"num_hidden_layers\": 10", {"layer 10 of 10", "neither"}},
        {"\"num_experts_per_token\": 4",
         "\"num_experts_per_token\": 33",
         {"num_experts_per_token", "at most num_experts (32), found 33"}},
        {"\"num_experts_per_token\": 4", "\"num_experts_per_token\": 65", {"num_experts_per_token", "from 1 to 64"}},
        {"\"moe_intermediate_size\": 128",
         "\"moe_intermediate_size\": 120",
         {"moe_intermediate_size", "multiple of 32, found 120"}},
        {"\"routed_expert_hidden_size\": 128",
         "\"routed_expert_hidden_size\": 8",
         {"routed_expert_hidden_size", "multiple of 32"}},
        {"\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": 0", {"rms_norm_eps", "found 0"}},
        {"\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": 1e-60", {"rms_norm_eps", "found 1e-60"}},
        {"\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": -1e-5", {"rms_norm_eps", "found -1e-5"}},
        {"\"activation_situ_beta\": 4.0", "\"activation_situ_beta\": 1e999", {"activation_situ_beta", "found 1e999"}},
        {"\"gate_lower_bound\": -5.0", "\"gate_lower_bound\": 5.0", {"gate_lower_bound", "found 5.0"}},
        {"\"hidden_act\": \"situ\"", "\"hidden_act\": \"silu\"", {"hidden_act: expected \"situ\"", "found \"silu\""}},
        {"\"latent_moe_use_norm\": true",
         "\"latent_moe_use_norm\": false",
         {"latent_moe_use_norm: expected true", "found false"}},
        {"\"moe_router_activation_func\": \"sigmoid\"",
         "\"moe_router_activation_func\": \"softmax\"",
         {"\"sigmoid\"", "\"softmax\""}},
        {"\"moe_renormalize\": true", "\"moe_renormalize\": 1", {"moe_renormalize", "found 1"}},
        {"\"num_expert_group\": 1", "\"num_expert_group\": 8", {"num_expert_group: expected 1", "found 8"}},
        {"\"topk_group\": 1", "\"topk_group\": 4", {"topk_group: expected 1", "found 4"}},
        {"\"mla_use_nope\": true", "\"mla_use_nope\": false", {"mla_use_nope: expected true", "found false"}},
        {"\"mla_use_output_gate\": true",
         "\"mla_use_output_gate\": null",
         {"mla_use_output_gate: expected true", "found null"}},
        {"\"use_full_rank_gate\": true",
         "\"use_full_rank_gate\": false",
         {"use_full_rank_gate: expected true", "found false"}},
        {"\"num_nextn_predict_layers\": 0",
         "\"num_nextn_predict_layers\": 1",
         {"num_nextn_predict_layers: expected 0", "found 1"}},
        {"\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true", {"tie_word_embeddings", "differ"}},
        {"\"eos_token_id\": 3842", "\"eos_token_id\": 4096", {"eos_token_id", "differ"}},
        {"\"short_conv_kernel_size\": 4",
         "\"short_conv_kernel_size\": 1",
         {"short_conv_kernel_size", "from 2 to 8, found 1"}},
        {"\"short_conv_kernel_size\": 4", "\"short_conv_kernel_size\": 9", {"short_conv_kernel_size", "found 9"}},
        {"\"kda_layers\": [\n    1,",
         "\"kda_layers\": [\n    4,",
         {"kda_layers", "layer 4 is listed as both MLA and KDA"}},
        {"\"kda_layers\": [\n    1,", "\"kda_layers\": [\n    2,", {"kda_layers", "layer 2 is listed twice"}},
        {"\"kda_layers\": [\n    1,",
         "\"kda_layers\": [\n",
         {"layer 1 of 9", "neither full_attn_layers nor kda_layers"}},
        {"\"kda_layers\": [\n    1,", "\"kda_layers\": [\n    0,", {"kda_layers", "found 0"}},
        {"\"full_attn_layers\": [",
         "\"full_attn_layers\": 3, \"x\": [",
         {"full_attn_layers", "array of layer numbers, found 3"}},
        {"\"format\": \"mxfp4-pack-quantized\"",
         "\"format\": \"int-quantized\"",
         {"quantization_config.format", "int-quantized"}},
        {"\"group_size\": 32", "\"group_size\": 128", {"group_size: expected 32", "found 128"}},
        {"\"num_bits\": 4", "\"num_bits\": 8", {"num_bits: expected 4", "found 8"}},
        {"\"type\": \"float\"", "\"type\": \"int\"", {"type: expected \"float\"", "found \"int\""}},
        {"\"torch.uint8\"", "\"torch.float32\"", {"scale_dtype", "torch.float32"}},
        {"\"quantization_config\": {",
         "\"quantization_config\": 3, \"x\": {",
         {"quantization_config", "an object, found 3"}},
        {"\"max_position_embeddings\": 131072",
         "\"max_position_embeddings\": 0",
         {"max_position_embeddings", "found 0"}},
        {"\"text_config\": {", "\"text_config\": 3, \"x\": {", {"text_config: expected an object", "found 3"}},
        {"\"linear_attn_config\": {", "\"linear_attn_config\": 5, \"x\": {",
         {"linear_attn_config: expected an object", "found 5"}},
        {"\"text_config\"", "\"text_konfig\"", {"text_config: expected an object", "found nothing"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ms_error err = {0};
        ms_status status = try_edits(EDITS(cases[i].from, cases[i].to), &err);
        assert_error(status, &err, MS_ERR_FORMAT, "config.json", cases[i].parts[0], cases[i].parts[1]);
    }
}

static void test_both_copies_wrong(void **state) {
    (void)state;
    ms_error err = {0};
    assert_error(try_edits(EDITS("\"tie_word_embeddings\": false", "\"tie_word_embeddings\":  true",
                                 "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true"),
                           &err),
                 &err, MS_ERR_FORMAT, "tie_word_embeddings: expected false, found true");
    assert_error(try_edits(EDITS("\"pad_token_id\": 4095", "\"pad_token_id\":  4096", "\"pad_token_id\": 4095",
                                 "\"pad_token_id\": 4096"),
                           &err),
                 &err, MS_ERR_FORMAT, "pad_token_id: expected a token id below 4096, found 4096");
    assert_error(try_edits(EDITS("\"v_head_dim\": 64", "\"v_head_dim\": 16777216", "\"num_attention_heads\": 4",
                                 "\"num_attention_heads\": 65536"),
                           &err),
                 &err, MS_ERR_FORMAT, "MLA key and value width", "65536 x 16777280");
}

static void test_lists_everything(void **state) {
    (void)state;
    ms_error err = {0};
    assert_error(try_edits(EDITS("\"hidden_size\"", "\"hidden_siz\"", "\"q_lora_rank\"", "\"q_lora_rnk\"",
                                 "\"gate_lower_bound\"", "\"gate_bound\"", "\"hidden_act\": \"situ\"",
                                 "\"hidden_act\": \"gelu\"", "\"num_experts\": 32", "\"num_experts\": 3"),
                           &err),
                 &err, MS_ERR_FORMAT, "missing in text_config: hidden_size, q_lora_rank",
                 "missing in text_config.linear_attn_config: gate_lower_bound", "hidden_act", "\"gelu\"",
                 "num_experts (3), found 4");
    /* without any field every required one is named */
    char dir[PATH_BYTES];
    k3_config c;
    make_dir(dir);
    put_text(dir, "config.json", "{\"model_type\":\"kimi_k3\",\"text_config\":{}}");
    assert_error(read_config(&c, dir, &err), &err, MS_ERR_FORMAT, "vocab_size", "hidden_size", "num_hidden_layers",
                 "intermediate_size", "rms_norm_eps", "hidden_act", "activation_situ_beta",
                 "activation_situ_linear_beta", "attn_res_block_size", "first_k_dense_replace", "moe_layer_freq",
                 "num_experts,", "num_experts_per_token", "num_shared_experts", "moe_intermediate_size",
                 "routed_expert_hidden_size", "latent_moe_use_norm", "moe_router_activation_func", "moe_renormalize",
                 "routed_scaling_factor", "num_expert_group", "topk_group", "num_attention_heads", "q_lora_rank",
                 "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "mla_use_nope",
                 "mla_use_output_gate", "max_position_embeddings", "tie_word_embeddings", "bos_token_id",
                 "eos_token_id", "pad_token_id", "text_config.linear_attn_config: ", "num_heads", "head_dim",
                 "short_conv_kernel_size", "gate_lower_bound", "use_full_rank_gate", "full_attn_layers", "kda_layers");
    remove_dir(dir);
}

static void test_official(void **state) {
    (void)state;
    k3_config c;
    k3_config_official(&c);
    uint32_t mla = 0;
    for (uint32_t i = 0; i < c.layers; i++) mla += c.is_mla[i];
    assert_int_equal(mla, 24);
    assert_true(c.is_mla[3] && c.is_mla[91] && c.is_mla[92] && !c.is_mla[0] && !c.is_mla[90]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nano),
        cmocka_unit_test(test_goldens),
        cmocka_unit_test(test_matches),
        cmocka_unit_test(test_accepted_variants),
        cmocka_unit_test(test_single_faults),
        cmocka_unit_test(test_both_copies_wrong),
        cmocka_unit_test(test_lists_everything),
        cmocka_unit_test(test_official),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
