/* MiMo V2.6: numbers from config.json, official sizes, and every kind of damage to a checkpoint's layout. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "../store/store_util.h"
#include "lane/mimo26/mimo_grid.h"
#include "lane/mimo26/mimo_synth.h"
#include "lane/mimo26/mimo_weights.h"
#include "session/engine.h"

static const char golden[] = "tests/golden/mimo26/mimo-tiny";

static ms_status read_config(mimo_config *out, const char *dir, ms_error *err) {
    ms_json_doc *doc = NULL;
    char *text = NULL;
    MS_TRY(ms_checkpoint_read_config(dir, &doc, &text, err));
    ms_status status = mimo_config_parse(out, ms_json_root(doc), "config.json", err);
    ms_json_free(doc);
    free(text);
    return status;
}

/* ------------------------------------------------------------------ config */

static void golden_numbers(void **state) {
    (void)state;
    mimo_config c;
    ms_error err = {0};
    if (read_config(&c, golden, &err) != MS_OK) fail_msg("%s", err.message);
    static const uint8_t kinds[] = {0, 1, 1, 1, 1, 0}, moe[] = {0, 1, 1, 1, 1, 1};
    assert_memory_equal(c.kind, kinds, 6);
    assert_memory_equal(c.moe, moe, 6);
    assert_int_equal(c.attention[MIMO_FULL].rotary, 32);
    assert_int_equal(c.attention[MIMO_FULL].window, 0);
    assert_int_equal(c.attention[MIMO_SLIDING].window, 8);
    assert_int_equal(c.attention[MIMO_SLIDING].kv_heads, 4);
    assert_true(c.attention[MIMO_SLIDING].sink && !c.attention[MIMO_FULL].sink);
    assert_true(c.eps == 1e-6f && c.value_scale == 0.707f && c.routed_scale == 1.0f && c.renormalize);
    assert_true(c.attention[MIMO_FULL].theta == 1e7 && c.attention[MIMO_SLIDING].theta == 1e4);
    assert_int_equal(c.eos, 319);
    assert_int_equal(c.chunks, 2);
}

/* The golden config with edits (pairs of from, to; NULL ends). */
static ms_status try_edits(mimo_config *c, const char *const *edits, ms_error *err) {
    char dir[PATH_BYTES];
    make_dir(dir);
    copy_file(golden, dir, "config.json");
    for (; edits[0]; edits += 2) edit_text(dir, "config.json", edits[0], edits[1]);
    ms_status status = read_config(c, dir, err);
    remove_dir(dir);
    return status;
}
#define EDITS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void what_may_be_absent(void **state) {
    (void)state;
    mimo_config c;
    ms_error err = {0};
    ms_status st = try_edits(&c,
                             EDITS("\"swa_num_key_value_heads\": 4,", "", "\"swa_head_dim\": 96,",
                                   "\"swa_head_dim\": null,", "\"swa_rope_theta\": 10000.0,", "",
                                   "\"attention_value_scale\": 0.707,", "", "\"add_swa_attention_sink_bias\": true,",
                                   "", "\"n_group\": 1,", "", "\"topk_method\"", "\"x\""),
                             &err);
    if (st != MS_OK) fail_msg("%s", err.message);
    assert_int_equal(c.attention[MIMO_SLIDING].kv_heads, 2);
    assert_int_equal(c.attention[MIMO_SLIDING].key, 96);
    assert_true(c.attention[MIMO_SLIDING].theta == 1e7 && c.value_scale == 1.0f && !c.attention[MIMO_SLIDING].sink);
    st = try_edits(&c,
                   EDITS("\"routed_scaling_factor\": null", "\"routed_scaling_factor\": 2.5", "\"eos_token_id\": 319",
                         "\"eos_token_id\": [17, 319]", "\"use_cache\": true",
                         "\"rope_scaling\": {\"type\": \"default\"}", "\"n_shared_experts\": null",
                         "\"n_shared_experts\": 0"),
                   &err);
    if (st != MS_OK) fail_msg("%s", err.message);
    assert_true(c.routed_scale == 2.5f);
    assert_int_equal(c.eos, 17);
}

static void bad_numbers_are_listed(void **state) {
    (void)state;
    static const char *const cases[][3] = {
        {"\"model_type\": \"mimo_v2\"", "\"model_type\": \"mimo_v1\"", "model_type"},
        {"\"hybrid_layer_pattern\"", "\"x\"", "missing: hybrid_layer_pattern"},
        {"\"moe_layer_freq\"", "\"x\"", "missing: moe_layer_freq"},
        {"\"hidden_size\": 256", "\"hidden_size\": 250",
         "hidden_size: expected an integer from 32 to 16777216, a multiple of 32, found 250"},
        {"\"hidden_size\": 256", "\"hidden_size\": -1", "hidden_size"},
        {"\"num_hidden_layers\": 6", "\"num_hidden_layers\": 7",
         "hybrid_layer_pattern: expected an array with one number a layer"},
        {"\"num_hidden_layers\": 6", "\"num_hidden_layers\": 257", "num_hidden_layers"},
        {"\"num_attention_heads\": 8", "\"num_attention_heads\": 7",
         "full attention: expected 7 query heads to be a multiple of 2 key heads"},
        {"\"swa_num_key_value_heads\": 4", "\"swa_num_key_value_heads\": 3", "sliding attention"},
        {"\"num_experts_per_tok\": 4", "\"num_experts_per_tok\": 13",
         "num_experts_per_tok: expected at most n_routed_experts, found 13"},
        {"\"partial_rotary_factor\": 0.334", "\"partial_rotary_factor\": 0.35", "even number of rotated dimensions"},
        {"\"partial_rotary_factor\": 0.334", "\"partial_rotary_factor\": 2", "partial_rotary_factor"},
        {"\"layernorm_epsilon\": 1e-06", "\"layernorm_epsilon\": 0", "layernorm_epsilon"},
        {"\"layernorm_epsilon\"", "\"rms_norm_eps\"", "missing: layernorm_epsilon"},
        {"\"rope_theta\": 10000000.0", "\"rope_theta\": 0.5", "rope_theta"},
        {"\"fused_qkv\"", "\"split\"", "attention_projection_layout: expected \"fused_qkv\", found \"split\""},
        {"\"sigmoid\"", "\"softmax\"", "scoring_func"},
        {"\"noaux_tc\"", "\"greedy\"", "topk_method"},
        {"\"n_group\": 1", "\"n_group\": 2", "n_group"},
        {"\"n_shared_experts\": null", "\"n_shared_experts\": 1", "n_shared_experts: expected null or 0"},
        {"\"attention_bias\": false", "\"attention_bias\": true", "attention_bias"},
        {"\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true", "tie_word_embeddings"},
        {"\"hidden_act\": \"silu\"", "\"hidden_act\": \"gelu\"", "hidden_act"},
        {"\"norm_topk_prob\": true", "\"norm_topk_prob\": 1", "norm_topk_prob: expected true or false"},
        {"\"use_cache\": true", "\"rope_scaling\": {\"type\": \"yarn\"}", "rope_scaling"},
        {"\"eos_token_id\": 319", "\"eos_token_id\": 320", "eos_token_id"},
        {"\"eos_token_id\": 319", "\"eos_token_id\": []", "eos_token_id"},
        {"\"quant_method\": \"fp8\"", "\"quant_method\": \"int8\"", "quantization_config.quant_method"},
        {"\"store_dtype\": \"mxfp4\"", "\"store_dtype\": \"fp8\"", "quantization_config.store_dtype"},
        {"\"mxfp4_block_size\": 32", "\"mxfp4_block_size\": 16", "quantization_config.mxfp4_block_size"},
        {"128,\n      128", "128,\n      64", "weight_block_size: expected [128, 128]"},
        {"\"quantization_config\"", "\"x\"", "missing: quantization_config"},
        {"\"max_position_embeddings\": 1048576", "\"max_position_embeddings\": 0", "max_position_embeddings"},
        {"\"sliding_window\": 8", "\"sliding_window\": 0", "sliding_window"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        mimo_config c;
        ms_error err = {0};
        assert_error(try_edits(&c, EDITS(cases[i][0], cases[i][1]), &err), &err, MS_ERR_FORMAT,
                     "config.json: ", cases[i][2]);
    }
    mimo_config c;
    ms_error err = {0};
    assert_error(
        try_edits(&c, EDITS("\"vocab_size\": 320", "\"x\": 1", "\"sigmoid\"", "1", "\"n_group\": 1", "\"n_group\": 0"),
                  &err),
        &err, MS_ERR_FORMAT, "missing: vocab_size", "scoring_func", "n_group");
}

static void chunks_must_divide(void **state) {
    (void)state;
    mimo_config c;
    ms_error err = {0};
    mimo_config_official(&c);
    static const uint64_t good[] = {1, 2, 4}, bad[] = {0, 3, 8, UINT64_MAX};
    for (size_t i = 0; i < 3; i++) assert_int_equal(mimo_config_set_chunks(&c, good[i], &err), MS_OK);
    for (size_t i = 0; i < 4; i++)
        assert_error(mimo_config_set_chunks(&c, bad[i], &err), &err, MS_ERR_FORMAT, "metadata.tp_size",
                     "64 query and 4 key heads");
    assert_int_equal(c.chunks, 4);
}

/* ------------------------------------------------------------------ official sizes */

static void official_tensors(void **state) {
    (void)state;
    mimo_config c;
    mimo_config_official(&c);
    mimo_tensor t = mimo_tensor_describe(&c, 0, MIMO_QKV);
    assert_int_equal(t.shape[0], 13568);
    assert_int_equal(mimo_tensor_describe(&c, 1, MIMO_QKV).shape[0], 14848);
    t = mimo_tensor_describe(&c, 5, MIMO_QKV_SCALE);
    assert_int_equal(t.shape[0], 108);
    assert_int_equal(t.shape[1], 32);
    assert_int_equal(mimo_tensor_describe(&c, 4, MIMO_QKV_SCALE).shape[0], 116);
    uint64_t fp8 = 0, f32 = 0, count = 0;
    for (uint32_t l = 0; l < c.layers; l++) {
        for (mimo_part p = 0; p < MIMO_LAYER_PARTS; p++) {
            if (!mimo_has_part(&c, l, p)) continue;
            t = mimo_tensor_describe(&c, l, p);
            uint64_t elements = t.shape[0] * (t.dims > 1 ? t.shape[1] : 1);
            if (t.dtype == MS_DTYPE_F8_E4M3) fp8 += elements;
            if (t.dtype == MS_DTYPE_F32) f32 += elements;
            count++;
        }
    }
    assert_int_equal(count + 3 + 47 * 256 * 6, 72574);
    assert_int_equal(fp8, UINT64_C(2872049664) + 3 * 16384 * 4096); /* without the draft layers */
    assert_int_equal(ms_expert_bytes(mimo_expert_shape(&c)), 13369344);
    assert_true(f32 > 0);
}

static void what_is_skipped(void **state) {
    (void)state;
    static const char *const skipped[] = {"model.mtp.layers.0.x", "visual.a", "audio_encoder.b",
                                          "speech_embeddings.0.weight"};
    static const char *const taken[] = {"model.layers.0.input_layernorm.weight", "lm_head.weight", "model.mt", "other",
                                        "visual"};
    for (size_t i = 0; i < 4; i++) assert_false(mimo_tensor_needed(NULL, skipped[i], strlen(skipped[i])));
    for (size_t i = 0; i < 5; i++) assert_true(mimo_tensor_needed(NULL, taken[i], strlen(taken[i])));
}

/* ------------------------------------------------------------------ checkpoints */

static const char *const files[] = {"config.json", "model.safetensors.index.json", "model_pp0_ep0_shard0.safetensors",
                                    "model_pp0_ep1_shard0.safetensors", "model_pp0_ep2_shard0.safetensors"};

static void copy_golden(char dir[PATH_BYTES]) {
    make_dir(dir);
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) copy_file(golden, dir, files[i]);
}

static ms_status open_model(const char *dir, ms_error *err) {
    ms_model m;
    MS_TRY(ms_model_open(&m, dir, err));
    ms_model_close(&m);
    return MS_OK;
}

/* Neither the folder dflash, whose tensors have names of the model, nor skipped shards are touched. */
static void only_the_index_counts(void **state) {
    (void)state;
    char dir[PATH_BYTES], sub[PATH_BYTES];
    ms_error err = {0};
    copy_golden(dir); /* without model_mtp.safetensors */
    path_in(sub, dir, "dflash");
    assert_int_equal(mkdir(sub, 0700), 0);
    put_text(sub, "model.safetensors", "damaged");
    put_text(dir, "stray.safetensors", "damaged");
    if (open_model(dir, &err) != MS_OK) fail_msg("%s", err.message);
    remove_dir(dir);
}

static void damage(const char *file, bool header, const char *from, const char *to, const char *part) {
    char dir[PATH_BYTES];
    ms_error err = {0};
    copy_golden(dir);
    if (header)
        edit_header(dir, file, from, to);
    else
        edit_text(dir, file, from, to);
    assert_error(open_model(dir, &err), &err, MS_ERR_FORMAT, part);
    remove_dir(dir);
}

static void damaged_layouts_are_refused(void **state) {
    (void)state;
    damage(files[1], false, "\"tp_size\": 2", "\"tp_size\": 4", "metadata.tp_size");
    damage(files[1], false, "\"tp_size\": 2", "\"tp_size\": -2", "metadata.tp_size: expected a whole number");
    damage(files[1], false, "\"tp_size\": 2", "\"tp_size\": \"2\"", "metadata.tp_size: expected a whole number");
    damage(files[1], false, "\"tp_size\": 2", "\"tp_size\": 1",
           "qkv_proj.weight_scale_inv"); /* another grid, another shape */
    damage(files[2], true, "[10,2]", "[20,1]", "model.layers.0.self_attn.qkv_proj.weight_scale_inv");
    damage(files[2], true, "\"model.norm.weight\":{\"dtype\":\"BF16\",\"shape\":[256]",
           "\"model.norm.weight\":{\"dtype\":\"BF16\",\"shape\":[2,128]", "model.norm.weight");
    damage(files[2], true, "\"lm_head.weight\":{\"dtype\":\"BF16\"", "\"lm_head.weight\":{\"dtype\":\"F16\"",
           "lm_head.weight");
    damage(files[0], false, "\"add_swa_attention_sink_bias\": true", "\"add_swa_attention_sink_bias\": false",
           "unknown tensor \"model.layers.1.self_attn.attention_sink_bias\"");
    damage(files[0], false, "\"add_full_attention_sink_bias\": false", "\"add_full_attention_sink_bias\": true",
           "model.layers.0.self_attn.attention_sink_bias");
    damage(files[0], false, "\"n_routed_experts\": 12", "\"n_routed_experts\": 11",
           "tensor \"model.layers.1.mlp.gate.weight\": shape: expected [11, 256], found [12, 256]");
}

/* ------------------------------------------------------------------ synthetic checkpoints */

static mimo_config odd_config(void) {
    mimo_config c;
    mimo_config_official(&c);
    c.vocab = 333;
    c.hidden = 160;
    c.layers = 4;
    c.dense_width = 250;
    c.experts = 11;
    c.top_k = 3;
    c.expert_inner = 64;
    c.chunks = 1;
    c.eos = 7;
    c.routed_scale = 2.5f;
    c.attention[MIMO_FULL] = (mimo_attention){6, 3, 40, 24, 12, 0, true, 5e5};
    c.attention[MIMO_SLIDING] = (mimo_attention){4, 1, 40, 16, 12, 5, true, 123.0};
    for (uint32_t l = 0; l < 4; l++) {
        c.kind[l] = l == 2 ? MIMO_FULL : MIMO_SLIDING;
        c.moe[l] = l % 2;
    }
    return c;
}

/* Other head counts in both kinds, sinks everywhere, one chunk: it loads, and ranges give the bits of single tokens. */
static void odd_shapes_run(void **state) {
    (void)state;
    char dir[PATH_BYTES];
    ms_error err = {0};
    make_dir(dir);
    mimo_config c = odd_config(), back;
    ms_synth_report report;
    ms_synth_options o = {.seed = 3, .vision = true, .threads = 1, .report = &report};
    if (mimo_synth_write(dir, &c, &o, &err) != MS_OK) fail_msg("%s", err.message);
    assert_int_equal(report.shards, 4);
    if (read_config(&back, dir, &err) != MS_OK) fail_msg("%s", err.message);
    assert_int_equal(mimo_config_set_chunks(&back, 1, &err), MS_OK);
    assert_memory_equal(back.kind, c.kind, 4);
    assert_memory_equal(back.moe, c.moe, 4);
    assert_memory_equal(back.attention, c.attention, sizeof c.attention);
    static const ms_static_format formats[] = {MS_STATIC_Q8, MS_STATIC_BF16};
    for (int i = 0; i < 2; i++) {
        ms_engine_options eo;
        ms_engine *e = NULL;
        ms_session *s = NULL;
        ms_digest whole, single;
        ms_engine_options_default(&eo, dir);
        eo.static_format = formats[i];
        eo.context = 400;
        eo.range_rows = 50;
        eo.threads = 1;
        if (ms_engine_open(&e, &eo, &err) != MS_OK || ms_session_create(&s, e, &err) != MS_OK)
            fail_msg("%s", err.message);
        uint32_t ids[390];
        for (uint32_t k = 0; k < 390; k++) ids[k] = k * 97 % 333;
        const ms_forward_options one = {.range = 1};
        assert_int_equal(ms_session_forward(s, ids, 390, NULL, &err), MS_OK);
        assert_int_equal(ms_session_digest(s, &whole, &err), MS_OK);
        float *logits = malloc(333 * sizeof *logits);
        assert_non_null(logits);
        memcpy(logits, ms_session_logits(s), 333 * sizeof *logits);
        ms_session_reset(s);
        assert_int_equal(ms_session_forward(s, ids, 390, &one, &err), MS_OK);
        assert_int_equal(ms_session_digest(s, &single, &err), MS_OK);
        assert_memory_equal(&whole, &single, sizeof whole);
        assert_memory_equal(logits, ms_session_logits(s), 333 * sizeof *logits);
        free(logits);
        ms_session_destroy(s);
        ms_engine_close(e);
    }
    remove_dir(dir);
}

/* ------------------------------------------------------------------ the grid of block scales */

enum { GRID_COLS = 300, GRID_ROWS = 3 * 128 + 192 + 128 };

/* Codes as a quantiser makes them of random values, larger in V, with blocks that run through the chunk. */
static uint8_t *quantised_chunks(uint32_t chunks, const mimo_chunk *chunk) {
    uint8_t *codes = malloc((size_t)chunks * GRID_ROWS * GRID_COLS);
    assert_non_null(codes);
    uint64_t seed = 5;
    for (uint32_t t = 0; t < chunks; t++) {
        uint8_t *at = codes + (size_t)t * GRID_ROWS * GRID_COLS;
        for (uint32_t row = 0; row < GRID_ROWS; row += 128) {
            for (uint32_t col = 0; col < GRID_COLS; col += 128) {
                size_t largest = 0, largest_size = 0;
                for (uint32_t r = row; r < row + 128 && r < GRID_ROWS; r++) {
                    for (uint32_t c = col; c < col + 128 && c < GRID_COLS; c++) {
                        seed = seed * UINT64_C(6364136223846793005) + 1;
                        size_t size = (size_t)(seed >> 60) + (r >= chunk->q + chunk->k ? 64 : 0),
                               i = (size_t)r * GRID_COLS + c;
                        at[i] = (uint8_t)(size | (seed >> 40 & 0x80));
                        if (size >= largest_size) largest = i, largest_size = size;
                    }
                }
                at[largest] |= 0x7E;
                at[largest] &= 0xFE;
            }
        }
    }
    return codes;
}

static void the_grid_shows_in_the_weights(void **state) {
    (void)state;
    const mimo_chunk chunk = {3 * 128, 192, 128,
                              GRID_ROWS}; /* as official full layers: one block is shared by K and V */
    uint8_t *codes = quantised_chunks(2, &chunk);
    mimo_grid g = {0};
    mimo_grid_count(&g, codes, 2, &chunk, GRID_COLS);
    assert_int_equal(g.running, 2 * 3 * 3);
    assert_int_equal(g.running_full, g.running);
    assert_int_equal(g.restarting, 2 * 3 * 3);
    assert_int_equal(g.restarting_full, 2 * 3 * 2); /* the last 64 rows of K have none */
    free(codes);
}

/* Writes a code into the fused matrix of a layer. */
static void put_code(const ms_model *m, uint32_t layer, uint32_t row, uint32_t col, uint8_t code) {
    char name[MIMO_NAME_SIZE];
    mimo_tensor_name(name, sizeof name, layer, MIMO_QKV);
    const ms_tensor *t = ms_checkpoint_find(m->checkpoint, name);
    assert_non_null(t);
    FILE *f = fopen(ms_checkpoint_shard_path(m->checkpoint, t->shard), "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, (long)(t->offset + (uint64_t)row * t->shape[1] + col), SEEK_SET), 0);
    assert_int_equal(fputc(code, f), code);
    assert_int_equal(fclose(f), 0);
}

static void another_grid_is_refused(void **state) {
    (void)state;
    char dir[PATH_BYTES];
    ms_error err = {0};
    ms_text report = {0};
    ms_model m;
    make_dir(dir);
    mimo_config c = odd_config();
    const ms_synth_options o = {.threads = 1};
    if (mimo_synth_write(dir, &c, &o, &err) != MS_OK || ms_model_open(&m, dir, &err) != MS_OK)
        fail_msg("%s", err.message);
    if (m.lane->weights_check(m.checkpoint, m.config, &report, &err) != MS_OK) fail_msg("%s", err.message);
    assert_non_null(strstr(report.data, "do not tell"));
    /* layer 2: Q 240 rows, K 120, V 72; a largest code in K and in V, none in the last running block.  The others have
     * one running block, Q 160, K 40, V 16. */
    for (uint32_t col = 0; col < 160; col += 128) {
        for (uint32_t l = 0; l < 4; l++) {
            if (l == 2) continue;
            put_code(&m, l, 170, col, 0x7E);
            put_code(&m, l, 210, col, 0x7E);
        }
        put_code(&m, 2, 250, col, 0x7E);
        put_code(&m, 2, 365, col, 0xFE);
    }
    assert_error(m.lane->weights_check(m.checkpoint, m.config, &report, &err), &err, MS_ERR_FORMAT,
                 "run through a chunk");
    for (uint32_t col = 0; col < 160; col += 128) put_code(&m, 2, 400, col, 0x7E);
    for (uint32_t col = 0; col < 160; col += 128) put_code(&m, 2, 250, col, 0);
    for (uint32_t col = 0; col < 160; col += 128) put_code(&m, 2, 200, col, 0x7E);
    if (m.lane->weights_check(m.checkpoint, m.config, &report, &err) != MS_OK) fail_msg("%s", err.message);
    ms_text_free(&report);
    ms_model_close(&m);
    remove_dir(dir);
}

static uint64_t item(const ms_plan *p, const char *group, const char *name) {
    for (size_t i = 0; i < p->item_count; i++)
        if (!strcmp(p->items[i].group, group) && !strcmp(p->items[i].name, name)) return p->items[i].bytes;
    fail_msg("the ledger has no line %s: %s", group, name);
    return 0;
}

/* The official size, sparse: known totals of the release and of its plan. */
static void full_size(void **state) {
    (void)state;
    char dir[PATH_BYTES];
    ms_error err = {0};
    make_dir(dir);
    mimo_config c;
    mimo_config_official(&c);
    ms_synth_options so = {.sparse = true, .vision = true};
    if (mimo_synth_write(dir, &c, &so, &err) != MS_OK) fail_msg("%s", err.message);
    ms_model m;
    ms_checkpoint_totals totals;
    if (ms_model_open(&m, dir, &err) != MS_OK) fail_msg("%s", err.message);
    ms_checkpoint_get_totals(m.checkpoint, &totals);
    assert_int_equal(ms_checkpoint_tensor_count(m.checkpoint), 72574);
    assert_int_equal(totals.payload_bytes, UINT64_C(169754520448));
    assert_int_equal(totals.skipped_shards, 1);
    assert_int_equal(m.experts.extents[8].shard, m.experts.extents[11].shard);
    assert_true(m.experts.extents[10].offset < m.experts.extents[8].offset); /* "10" before "8" */
    ms_model_close(&m);

    ms_engine_options o;
    ms_plan *p = NULL;
    ms_engine_options_default(&o, dir);
    o.context = 131072;
    o.experts = 160;
    o.static_format = MS_STATIC_BF16;
    o.snapshots = 1;
    if (ms_plan_create(&p, &o, &err) != MS_OK) fail_msg("%s", err.message);
    assert_string_equal(p->lane, "mimo26");
    assert_int_equal(p->expert_bytes, 13369344);
    assert_int_equal(p->state_bytes_per_token, 23040);
    assert_int_equal(item(p, "state", "full"), UINT64_C(23040) * 131072);
    assert_int_equal(item(p, "state", "window"), UINT64_C(39) * 768 * 8 * 320 * 2);
    assert_int_equal(item(p, "state", "snapshots"), UINT64_C(39) * 127 * 8 * 320 * 2);
    assert_int_equal(item(p, "cache", "expert slots"), UINT64_C(47) * 160 * 13369344);
    /* FP8 as stored, with a scale for each row's block instead of 128 rows' */
    assert_int_equal(item(p, "static", "fp8 weights"), UINT64_C(3073376256) / 32 * 33);
    ms_plan_destroy(p);
    remove_dir(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_numbers),          cmocka_unit_test(what_may_be_absent),
        cmocka_unit_test(bad_numbers_are_listed),  cmocka_unit_test(chunks_must_divide),
        cmocka_unit_test(official_tensors),        cmocka_unit_test(what_is_skipped),
        cmocka_unit_test(only_the_index_counts),   cmocka_unit_test(damaged_layouts_are_refused),
        cmocka_unit_test(odd_shapes_run),          cmocka_unit_test(the_grid_shows_in_the_weights),
        cmocka_unit_test(another_grid_is_refused), cmocka_unit_test(full_size)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
