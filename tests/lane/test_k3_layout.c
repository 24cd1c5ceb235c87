/* The tensor table of K3: official sizes, real checkpoints, and every kind of damage to one. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "../store/store_util.h"
#include "lane/k3/k3_layout.h"
#include "lane/k3/k3_synth.h"

static const char golden[] = "tests/golden/k3/k3-tiny-a";

static void open_dir(const char *dir, ms_checkpoint **c, k3_config *cfg) {
    ms_json_doc *doc = NULL;
    char *text = NULL;
    ms_error err = {0};
    if (ms_checkpoint_read_config(dir, &doc, &text, &err) != MS_OK) fail_msg("%s", err.message);
    if (k3_config_parse(cfg, ms_json_root(doc), "config.json", &err) != MS_OK) fail_msg("%s", err.message);
    ms_json_free(doc);
    free(text);
    if (ms_checkpoint_open(c, dir, k3_tensor_needed, NULL, &err) != MS_OK) fail_msg("%s", err.message);
}

static void test_official_bytes(void **state) {
    (void)state;
    k3_config c;
    k3_config_official(&c);
    uint64_t resident = 0, kda = 0, mla = 0;
    uint32_t parts = 0;
    for (uint32_t l = 0; l < c.layers; l++) {
        for (k3_part p = 0; p < K3_LAYER_PARTS; p++) {
            if (!k3_has_part(&c, l, p)) continue;
            k3_tensor_info t = k3_tensor_describe(&c, l, p);
            resident += t.quantizable ? k3_tensor_q8_bytes(&t) : k3_tensor_bytes(&t);
            if (l == 1) kda += k3_tensor_bytes(&t);
            if (l == 3) mla += k3_tensor_bytes(&t);
            parts++;
        }
    }
    for (k3_part p = K3_LAYER_PARTS; p < K3_PARTS; p++) {
        k3_tensor_info t = k3_tensor_describe(&c, 0, p);
        if (t.resident) resident += k3_tensor_bytes(&t);
        parts++;
    }
    assert_true(resident == UINT64_C(59345729536));
    assert_int_equal(kda, 1267744256);
    assert_int_equal(mla, 844335616);
    assert_int_equal(parts, 69 * 12 + 24 * 6 + 93 * 8 + 92 * 8 + 3 + 5);
}

static void test_describe(void **state) {
    (void)state;
    k3_config c;
    k3_config_official(&c);
    k3_tensor_info t = k3_tensor_describe(&c, 0, K3_Q_CONV);
    assert_int_equal(t.dims, 3);
    assert_int_equal(t.shape[1], 1);
    assert_int_equal(t.rows, 12288);
    assert_int_equal(t.cols, 4);
    assert_int_equal(t.dtype, MS_DTYPE_F32);
    t = k3_tensor_describe(&c, 0, K3_A_LOG);
    assert_int_equal(t.shape[0], 128);
    assert_int_equal(t.alt_shape0, 96);
    t = k3_tensor_describe(&c, 3, K3_KV_B);
    assert_int_equal(t.rows, 24576);
    assert_false(t.quantizable);
    t = k3_tensor_describe(&c, 0, K3_EMBED);
    assert_false(t.resident || t.quantizable);
    t = k3_tensor_describe(&c, 0, K3_MLP_RES_PROJ);
    assert_false(t.quantizable);
    assert_int_equal(t.rows, 1);
    /* attention widths follow the layer's kind */
    c.kda_heads = 64;
    assert_int_equal(k3_tensor_describe(&c, 0, K3_G_PROJ).rows, 64 * 128);
    assert_int_equal(k3_tensor_describe(&c, 3, K3_G_PROJ).rows, 96 * 128);
    assert_int_equal(k3_tensor_describe(&c, 0, K3_O_PROJ).cols, 64 * 128);
    c.kda_heads = 200; /* more heads than channels: one entry a head */
    t = k3_tensor_describe(&c, 0, K3_A_LOG);
    assert_int_equal(t.shape[0], 200);
    assert_int_equal(t.alt_shape0, 0);
    char name[160];
    k3_tensor_name(name, sizeof name, 12, K3_ROUTER_BIAS);
    assert_string_equal(name, "language_model.model.layers.12.block_sparse_moe.gate.e_score_correction_bias");
    k3_tensor_name(name, sizeof name, 12, K3_LM_HEAD);
    assert_string_equal(name, "language_model.lm_head.weight");
    assert_true(k3_tensor_needed(NULL, name, strlen(name)));
    assert_false(k3_tensor_needed(NULL, "vision_tower.x", 14));
    assert_false(k3_tensor_needed(NULL, "language_model", 14));
}

static void test_real(void **state) {
    (void)state;
    static const struct {
        const char *dir;
        size_t tensors;
        uint32_t layers, experts;
        uint64_t bytes;
    } cases[] = {{"models/k3-nano", 1770, 8, 32, 26112},
                 {"tests/golden/k3/k3-tiny-a", 320, 4, 8, 6528},
                 {"tests/golden/k3/k3-tiny-c", 394, 3, 16, 19584}};
    for (size_t i = 0; i < 3; i++) {
        ms_checkpoint *c = NULL;
        k3_config cfg;
        ms_expert_table t = {0};
        ms_error err = {0};
        open_dir(cases[i].dir, &c, &cfg);
        if (k3_layout_check(c, &cfg, &t, &err) != MS_OK) fail_msg("%s", err.message);
        assert_int_equal(k3_layout_check(c, &cfg, NULL, NULL), MS_OK);
        assert_int_equal(ms_checkpoint_tensor_count(c), cases[i].tensors);
        assert_int_equal(t.layer_count, cases[i].layers);
        assert_int_equal(t.expert_count, cases[i].experts);
        assert_int_equal(t.expert_bytes, cases[i].bytes);
        assert_int_equal(t.layers[0], 1);
        ms_expert_table_free(&t);
        ms_checkpoint_close(c);
    }
}

/* ------------------------------------------------------------------ damage */

static void copy_golden(char dir[PATH_BYTES]) {
    make_dir(dir);
    copy_file(golden, dir, "config.json");
    copy_file(golden, dir, "model.safetensors.index.json");
    for (int i = 1; i <= 6; i++) { /* 7 and 8 are vision dummies, which nobody may open */
        char name[64];
        (void)snprintf(name, sizeof name, "model-%05d-of-000008.safetensors", i);
        copy_file(golden, dir, name);
    }
}

static ms_status check_dir(const char *dir, ms_error *err) {
    ms_checkpoint *c = NULL;
    k3_config cfg;
    open_dir(dir, &c, &cfg);
    ms_expert_table t = {0};
    ms_status status = k3_layout_check(c, &cfg, &t, err);
    assert_true(status != MS_OK || t.extents);
    ms_expert_table_free(&t);
    ms_checkpoint_close(c);
    return status;
}

#define SHARD(n) "model-0000" n "-of-000008.safetensors"
#define INDEX    "model.safetensors.index.json"

/* Renames a tensor in header and index alike. */
static void rename_tensor(const char *dir, const char *shard, const char *from, const char *to) {
    edit_header(dir, shard, from, to);
    edit_text(dir, INDEX, from, to);
}

static void test_damage(void **state) {
    (void)state;
    char dir[PATH_BYTES];
    ms_error err = {0};
    copy_golden(dir);
    assert_int_equal(check_dir(dir, &err), MS_OK);

    rename_tensor(dir, SHARD("1"), "layers.0.mlp.up_proj.weight", "layers.0.mlp.upp_proj.weight");
    rename_tensor(dir, SHARD("2"), "layers.1.self_attn.dt_bias", "layers.1.self_attn.dt_bios");
    edit_header(dir, SHARD("3"), "layers.2.input_layernorm.weight\":{\"dtype\":\"BF16\",\"shape\":[128]",
                "layers.2.input_layernorm.weight\":{\"dtype\":\"F16\",\"shape\":[128]");
    edit_header(dir, SHARD("4"), "q_a_proj.weight\":{\"dtype\":\"BF16\",\"shape\":[96,128]",
                "q_a_proj.weight\":{\"dtype\":\"BF16\",\"shape\":[128,96]");
    assert_error(check_dir(dir, &err), &err, MS_ERR_FORMAT, dir,
                 "missing tensor \"language_model.model.layers.0.mlp.up_proj.weight\"",
                 "unknown tensor \"language_model.model.layers.0.mlp.upp_proj.weight\"", "layers.1.self_attn.dt_bias\"",
                 "layers.2.input_layernorm.weight\": dtype: expected BF16, found F16",
                 "layers.3.self_attn.q_a_proj.weight\": shape: expected [96, 128], found [128, 96]");
    remove_dir(dir);
}

static void test_damaged_experts(void **state) {
    (void)state;
    char dir[PATH_BYTES];
    ms_error err = {0};
    copy_golden(dir); /* an expert beyond the config's count; its number is then missing */
    rename_tensor(dir, SHARD("2"), "experts.7.w2.weight_scale", "experts.8.w2.weight_scale");
    assert_error(check_dir(dir, &err), &err, MS_ERR_FORMAT, "layer 1, expert 7", "missing", "experts.7.w2.weight_scale",
                 "unknown tensor", "experts.8.w2.weight_scale");
    remove_dir(dir);

    copy_golden(dir); /* numbers with a leading zero are other names */
    rename_tensor(dir, SHARD("2"), "experts.7.w2.weight_scale", "experts.07.w2.weight_scale");
    assert_error(check_dir(dir, &err), &err, MS_ERR_FORMAT, "layer 1, expert 7", "unknown tensor",
                 "experts.07.w2.weight_scale");
    remove_dir(dir);

    copy_golden(dir); /* w1 and w3 of one expert in each other's place: same shapes, wrong order */
    edit_header(dir, SHARD("3"), "experts.2.w1.weight_packed", "experts.2.wX.weight_packed");
    edit_header(dir, SHARD("3"), "experts.2.w3.weight_packed", "experts.2.w1.weight_packed");
    edit_header(dir, SHARD("3"), "experts.2.wX.weight_packed", "experts.2.w3.weight_packed");
    assert_error(check_dir(dir, &err), &err, MS_ERR_FORMAT, "layer 2, expert 2", "experts.2.w1.weight_scale",
                 "offset: expected", "without a gap");
    remove_dir(dir);
}

/* Many misses: twenty at most are listed, the rest is counted. */
static void test_many(void **state) {
    (void)state;
    char dir[PATH_BYTES];
    make_dir(dir);
    copy_file(golden, dir, "config.json");
    put_shard(dir, "model.safetensors", "{}", 0);
    ms_error err = {0};
    assert_error(check_dir(dir, &err), &err, MS_ERR_FORMAT,
                 "missing tensor \"language_model.model.layers.0.input_layernorm.weight\"", "; and ", " more");
    remove_dir(dir);
}

static void test_a_log_per_head(void **state) {
    (void)state;
    /* exactly one entry a head is accepted as well; 4 heads, 32 channels */
    char dir[PATH_BYTES];
    ms_error err = {0};
    copy_golden(dir);
    /* the rest of its bytes goes to a name outside the text model, which is skipped */
    edit_header(dir, SHARD("1"), "A_log\":{\"dtype\":\"F32\",\"shape\":[32],\"data_offsets\":[0,128]}",
                "A_log\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]},"
                "\"other\":{\"dtype\":\"F32\",\"shape\":[28],\"data_offsets\":[16,128]}");
    if (check_dir(dir, &err) != MS_OK) fail_msg("%s", err.message);
    edit_header(dir, SHARD("1"), "\"shape\":[4],\"data_offsets\":[0,16]", "\"shape\":[2,2],\"data_offsets\":[0,16]");
    assert_error(check_dir(dir, &err), &err, MS_ERR_FORMAT, "layers.0.self_attn.A_log", "expected [32], found [2, 2]");
    remove_dir(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_official_bytes), cmocka_unit_test(test_describe),        cmocka_unit_test(test_real),
        cmocka_unit_test(test_damage),         cmocka_unit_test(test_damaged_experts), cmocka_unit_test(test_many),
        cmocka_unit_test(test_a_log_per_head),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
