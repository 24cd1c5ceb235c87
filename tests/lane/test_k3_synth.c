/* The synthetic writer: loadable output, exact layout, determinism, value ranges, refusals and clean-up. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <sys/stat.h>

#include "../store/store_util.h"
#include "lane/k3/k3_layout.h"
#include "lane/k3/k3_synth.h"

/* Small, with different attention widths of the two kinds, odd sizes and a shard above one write. */
static k3_config small_config(void) {
    k3_config c;
    k3_config_official(&c);
    c.vocab = 9000;
    c.hidden = 250;
    c.layers = 4;
    c.dense_width = 300;
    c.block_size = 3;
    c.experts = 11;
    c.top_k = 3;
    c.expert_inner = 64;
    c.latent = 96;
    c.mla_heads = 3;
    c.q_rank = 50;
    c.kv_rank = 48;
    c.nope = 16;
    c.extra = 8;
    c.value = 24;
    c.kda_heads = 5;
    c.kda_dim = 16;
    c.conv_taps = 3;
    c.routed_scale = 2.5f;
    c.rms_eps = 3e-6f;
    c.gate_bound = -4.25f;
    c.max_context = 5000;
    c.bos = 1;
    c.eos = 2;
    c.pad = 8999;
    memset(c.is_mla, 0, sizeof c.is_mla);
    c.is_mla[1] = c.is_mla[3] = 1;
    return c;
}

static void fresh_dir(char dir[PATH_BYTES]) {
    make_dir(dir);
    assert_int_equal(rmdir(dir), 0);
}

static void write_or_fail(const char *dir, const k3_config *c, const ms_synth_options *opt) {
    ms_error err = {0};
    if (k3_synth_write(dir, c, opt, &err) != MS_OK) fail_msg("%s", err.message);
}

static void load(const char *dir, ms_checkpoint **c, k3_config *cfg, ms_expert_table *experts) {
    ms_json_doc *doc = NULL;
    char *text = NULL;
    ms_error err = {0};
    if (ms_checkpoint_read_config(dir, &doc, &text, &err) != MS_OK ||
        k3_config_parse(cfg, ms_json_root(doc), "config.json", &err) != MS_OK ||
        ms_checkpoint_open(c, dir, k3_tensor_needed, NULL, &err) != MS_OK ||
        k3_layout_check(*c, cfg, experts, &err) != MS_OK)
        fail_msg("%s", err.message);
    ms_json_free(doc);
    free(text);
}

static void read_tensor(const ms_checkpoint *c, const char *name, void *to, size_t bytes) {
    const ms_tensor *t = ms_checkpoint_find(c, name);
    ms_error err = {0};
    assert_non_null(t);
    assert_int_equal(t->bytes, bytes);
    if (ms_checkpoint_read(c, t, 0, to, bytes, &err) != MS_OK) fail_msg("%s", err.message);
}

static double rms_bf16(const uint16_t *v, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)ms_bf16_to_f32(v[i]) * (double)ms_bf16_to_f32(v[i]);
    return sqrt(sum / (double)n);
}

static void test_load(void **state) {
    (void)state;
    char dir[PATH_BYTES];
    fresh_dir(dir);
    k3_config c = small_config(), back;
    ms_synth_report report, measured;
    ms_synth_options opt = {.seed = 7, .threads = 2, .vision = true, .report = &report};
    ms_error err = {0};
    assert_int_equal(k3_synth_measure(&c, &opt, &measured, &err), MS_OK);
    write_or_fail(dir, &c, &opt);
    assert_int_equal(report.shards, 7);
    assert_int_equal(report.shards, measured.shards);
    assert_int_equal(report.tensors, measured.tensors);
    assert_int_equal(report.shard_bytes, measured.shard_bytes);
    ms_checkpoint *p = NULL;
    ms_expert_table experts = {0};
    load(dir, &p, &back, &experts);
    /* field by field: padding bytes do not count */
    assert_true(back.vocab == c.vocab && back.hidden == c.hidden && back.layers == c.layers &&
                back.conv_taps == c.conv_taps);
    assert_true(back.routed_scale == c.routed_scale && back.rms_eps == c.rms_eps && back.gate_bound == c.gate_bound);
    assert_true(back.extra == c.extra && back.max_context == c.max_context && back.pad == c.pad &&
                back.first_dense == 1);
    assert_memory_equal(back.is_mla, c.is_mla, sizeof c.is_mla);
    ms_checkpoint_totals totals;
    ms_checkpoint_get_totals(p, &totals);
    assert_int_equal(totals.indexed_tensors, report.tensors);
    assert_int_equal(totals.indexed_tensors - ms_checkpoint_tensor_count(p), 168);
    assert_int_equal(totals.skipped_shards, 2);
    assert_int_equal(experts.layer_count, 3);
    ms_expert_table_free(&experts);
    ms_checkpoint_close(p);
    remove_dir(dir);
}

static void test_values(void **state) {
    (void)state;
    char dir[PATH_BYTES];
    fresh_dir(dir);
    k3_config c = small_config(), back;
    ms_synth_options opt = {.seed = 3, .threads = 2};
    write_or_fail(dir, &c, &opt);
    ms_checkpoint *p = NULL;
    load(dir, &p, &back, NULL);

    float a_log[16];
    read_tensor(p, "language_model.model.layers.0.self_attn.A_log", a_log, sizeof a_log);
    for (int i = 0; i < 16; i++) assert_true(i < 5 ? a_log[i] >= 0.0f && a_log[i] <= 2.7f : a_log[i] == 0.0f);
    float bias[11];
    read_tensor(p, "language_model.model.layers.1.block_sparse_moe.gate.e_score_correction_bias", bias, sizeof bias);
    for (int i = 0; i < 11; i++) assert_true(bias[i] >= -0.01f && bias[i] <= 0.01f);

    static uint16_t head[9000 * 250], down[96 * 250], norm[250];
    read_tensor(p, "language_model.model.layers.1.block_sparse_moe.routed_expert_down_proj.weight", down, sizeof down);
    double rms = rms_bf16(down, 96 * 250) * sqrt(250.0);
    assert_true(rms > 0.97 && rms < 1.03);
    read_tensor(p, "language_model.lm_head.weight", head, sizeof head);
    rms = rms_bf16(head, 9000 * 250) * sqrt(250.0);
    assert_true(rms > 2.97 && rms < 3.03);
    read_tensor(p, "language_model.model.norm.weight", norm, sizeof norm);
    for (int i = 0; i < 250; i++) assert_true(ms_bf16_to_f32(norm[i]) >= 0.89f && ms_bf16_to_f32(norm[i]) <= 1.11f);

    /* experts: all 16 codes about equally often, four scale bytes, unit gain */
    uint8_t codes[64 * 48], scales[64 * 3];
    read_tensor(p, "language_model.model.layers.2.block_sparse_moe.experts.10.w1.weight_packed", codes, sizeof codes);
    read_tensor(p, "language_model.model.layers.2.block_sparse_moe.experts.10.w1.weight_scale", scales, sizeof scales);
    unsigned seen[16] = {0};
    for (size_t i = 0; i < sizeof codes; i++) seen[codes[i] & 15]++, seen[codes[i] >> 4]++;
    for (int i = 0; i < 16; i++) assert_in_range(seen[i], 300, 470); /* 384 expected */
    double square = 0;
    for (size_t i = 0; i < sizeof scales; i++) {
        assert_in_range(scales[i], scales[0] - 3, scales[0] + 3);
        square += ldexp(1.0, 2 * (scales[i] - 127));
    }
    double gain = sqrt(square / sizeof scales * 8.5625 * 96);
    assert_true(gain > 0.5 && gain < 2.0);
    ms_checkpoint_close(p);
    remove_dir(dir);
}

static void test_official_totals(void **state) {
    (void)state;
    k3_config c;
    k3_config_official(&c);
    ms_synth_options opt = {.vision = true};
    ms_synth_report r;
    ms_error err = {0};
    assert_int_equal(k3_synth_measure(&c, &opt, &r, &err), MS_OK);
    assert_int_equal(r.shards, 96);
    assert_int_equal(r.tensors, 497220);
    assert_true(r.payload_bytes == UINT64_C(1560860324864));
    assert_true(r.shard_bytes == UINT64_C(1560936091448));
}

static void assert_same_files(const char *a, const char *b, const ms_synth_report *r) {
    for (uint32_t i = 1; i <= r->shards; i++) {
        char name[64], *x, *y;
        size_t n, m;
        (void)snprintf(name, sizeof name, "model-%05u-of-%06u.safetensors", (unsigned)i, (unsigned)r->shards);
        get_bytes(a, name, &x, &n);
        get_bytes(b, name, &y, &m);
        assert_int_equal(n, m);
        assert_memory_equal(x, y, n);
        free(x);
        free(y);
    }
}

static void test_deterministic(void **state) {
    (void)state;
    char a[PATH_BYTES], b[PATH_BYTES], d[PATH_BYTES];
    fresh_dir(a);
    make_dir(b); /* an existing empty directory is fine */
    fresh_dir(d);
    k3_config c = small_config();
    ms_synth_report r;
    ms_synth_options opt = {.seed = 1, .threads = 1, .report = &r};
    write_or_fail(a, &c, &opt);
    opt.threads = 5;
    write_or_fail(b, &c, &opt);
    assert_same_files(a, b, &r);
    opt.seed = 2;
    write_or_fail(d, &c, &opt);
    char *x, *y;
    size_t n, m;
    get_bytes(a, "model-00002-of-000005.safetensors", &x, &n);
    get_bytes(d, "model-00002-of-000005.safetensors", &y, &m);
    assert_int_equal(n, m);
    size_t header = 8 + (size_t)ms_le64(x), same = 0;
    assert_memory_equal(x, y, header);
    for (size_t i = header; i < n; i++) same += x[i] == y[i];
    assert_true(same < (n - header) / 4);
    assert_int_equal(header % 8, 0);
    assert_int_equal(
        strncmp(x + 8,
                "{\"language_model.model.layers.1.block_sparse_moe.gate.e_score_correction_bias\":{\"dtype\":\"F32\"",
                60),
        0);
    free(x);
    free(y);
    remove_dir(a);
    remove_dir(b);
    remove_dir(d);
}

static void any_cut(bool gaussian) {
    k3_config c = small_config();
    ms_synth_plan p = {0};
    ms_synth_model model = k3_synth_model(&c);
    model.gaussian = gaussian;
    ms_error err = {0};
    assert_int_equal(ms_synth_plan_shard(&p, &model, 2, &err), MS_OK);
    size_t n = (size_t)ms_synth_plan_bytes(&p);
    uint8_t *whole = malloc(n), *pieces = malloc(n);
    assert_non_null(whole);
    assert_non_null(pieces);
    ms_synth_bytes(whole, &p, 9, 0, n);
    static const size_t sizes[] = {1, 2, 3, 5, 8, 13, 31, 1000};
    for (size_t at = 0, i = 0; at < n; i++) {
        size_t take = sizes[i % 8] < n - at ? sizes[i % 8] : n - at;
        ms_synth_bytes(pieces + at, &p, 9, at, take);
        at += take;
    }
    assert_memory_equal(whole, pieces, n);
    free(whole);
    free(pieces);
    ms_synth_plan_free(&p);
}

/* A shard's bytes do not depend on where the writes are cut. */
static void test_any_cut(void **state) {
    (void)state;
    any_cut(false);
    any_cut(true);
}

/* Gaussian experts: in every group the largest code is 3, 4 or 6 (the scale is as small as can be), half of the zeros
 * are negative, small codes are the most frequent, and scale bytes fit the codes of the same matrix. */
static void test_gaussian(void **state) {
    (void)state;
    k3_config c = small_config();
    c.latent = 512;
    c.expert_inner = 256;
    c.experts = c.top_k;
    ms_synth_plan p = {0};
    ms_synth_model model = k3_synth_model(&c);
    model.gaussian = true;
    ms_error err = {0};
    assert_int_equal(ms_synth_plan_shard(&p, &model, 2, &err), MS_OK);
    size_t n = (size_t)ms_synth_plan_bytes(&p);
    uint8_t *bytes = malloc(n);
    assert_non_null(bytes);
    ms_synth_bytes(bytes, &p, 5, 0, n);
    size_t seen[16] = {0}, groups = 0, scales = 0, scale_sum = 0;
    for (size_t i = 0; i < p.count; i++) {
        const ms_synth_tensor *t = &p.tensors[i];
        const uint8_t *b = bytes + p.header.len + t->begin;
        if (t->fill == MS_FILL_GAUSS_SCALES) {
            for (size_t k = 0; k < t->bytes; k++, scales++) {
                assert_in_range(b[k], 112, 128);
                scale_sum += b[k];
            }
        }
        if (t->fill != MS_FILL_GAUSS_CODES) continue;
        for (size_t k = 0; k < t->bytes; k += 16, groups++) {
            unsigned most = 0;
            for (size_t j = 0; j < 32; j++) {
                unsigned code = b[k + j / 2] >> (j % 2 ? 4 : 0) & 15;
                seen[code]++;
                if ((code & 7) > most) most = code & 7;
            }
            assert_in_range(most, 5, 7);
        }
    }
    assert_true(groups > 0 && scales == groups);
    assert_in_range(scale_sum / scales, 118, 122);
    double zeros = (double)(seen[0] + seen[8]), all = (double)groups * 32;
    assert_in_range((int)(1000 * (double)seen[8] / zeros), 490, 510);
    assert_in_range((int)(1000 * zeros / all), 110, 140); /* measured on samples of real size: 0.125 */
    assert_true(seen[1] > seen[5] && seen[5] > seen[7]);
    free(bytes);
    ms_synth_plan_free(&p);
}

static void test_sparse(void **state) {
    (void)state;
    char dir[PATH_BYTES];
    fresh_dir(dir);
    k3_config c = small_config(), back;
    ms_synth_report r;
    ms_synth_options opt = {.sparse = true, .report = &r};
    write_or_fail(dir, &c, &opt);
    assert_false(r.direct);
    ms_checkpoint *p = NULL;
    load(dir, &p, &back, NULL);
    float a_log[16];
    read_tensor(p, "language_model.model.layers.0.self_attn.A_log", a_log, sizeof a_log);
    for (int i = 0; i < 16; i++) assert_true(a_log[i] == 0.0f);
    ms_checkpoint_close(p);
    char path[PATH_BYTES];
    struct stat st;
    path_in(path, dir, "model-00005-of-000005.safetensors"); /* embedding and head: 9 MB */
    assert_int_equal(stat(path, &st), 0);
    assert_true(st.st_size > 9000000 && st.st_blocks * 512 < 100000);
    remove_dir(dir);
}

static void test_heads_above_channels(void **state) {
    (void)state;
    char dir[PATH_BYTES];
    fresh_dir(dir);
    k3_config c = small_config(), back;
    c.kda_heads = 20;
    ms_synth_options opt = {.seed = 4};
    write_or_fail(dir, &c, &opt);
    ms_checkpoint *p = NULL;
    load(dir, &p, &back, NULL);
    float a_log[20];
    read_tensor(p, "language_model.model.layers.2.self_attn.A_log", a_log, sizeof a_log);
    assert_true(a_log[19] > 0.0f);
    ms_checkpoint_close(p);
    remove_dir(dir);
}

typedef struct progress {
    uint64_t done, total, stop_at;
    unsigned calls;
} progress;

static bool on_progress(void *arg, uint64_t done, uint64_t total) {
    progress *p = arg;
    assert_true(done > p->done && done <= total);
    p->done = done;
    p->total = total;
    p->calls++;
    return done < p->stop_at;
}

static void test_progress_and_cancel(void **state) {
    (void)state;
    char dir[PATH_BYTES];
    struct stat st;
    ms_error err = {0};
    k3_config c = small_config();
    progress p = {.stop_at = UINT64_MAX};
    ms_synth_report r;
    ms_synth_options opt = {.progress = on_progress, .progress_arg = &p, .report = &r};
    fresh_dir(dir);
    write_or_fail(dir, &c, &opt);
    assert_int_equal(p.done, p.total);
    assert_int_equal(p.total, r.shard_bytes);
    assert_true(p.calls >= 5);
    remove_dir(dir);

    p = (progress){.stop_at = r.shard_bytes / 2};
    assert_error(k3_synth_write(dir, &c, &opt, &err), &err, MS_ERR_CANCELLED, dir, "cancelled");
    assert_int_equal(stat(dir, &st), -1); /* a directory of ours goes */
    make_dir(dir);
    p = (progress){.stop_at = r.shard_bytes / 2};
    assert_int_equal(k3_synth_write(dir, &c, &opt, &err), MS_ERR_CANCELLED);
    assert_int_equal(rmdir(dir), 0); /* one that was there stays, empty */
}

static void test_refusals(void **state) {
    (void)state;
    char dir[PATH_BYTES], path[PATH_BYTES];
    struct stat st;
    ms_error err = {0};
    k3_config c = small_config();
    ms_synth_options opt = {.seed = 1};
    make_dir(dir);
    put_text(dir, "mine.txt", "x");
    assert_error(k3_synth_write(dir, &c, &opt, &err), &err, MS_ERR_USAGE, dir, "empty directory", "mine.txt");
    path_in(path, dir, "mine.txt");
    assert_int_equal(stat(path, &st), 0);
    assert_error(k3_synth_write(path, &c, &opt, &err), &err, MS_ERR_USAGE, "mine.txt", "Not a directory");
    path_in(path, dir, "no/such");
    assert_error(k3_synth_write(path, &c, &opt, &err), &err, MS_ERR_IO, "no/such", "No such file");
    remove_dir(dir);

    fresh_dir(dir);
    c.latent = 90;
    c.top_k = 12;
    assert_error(k3_synth_write(dir, &c, &opt, &err), &err, MS_ERR_FORMAT, "routed_expert_hidden_size",
                 "multiple of 32, found 90", "num_experts_per_token", "found 12");
    c = small_config();
    c.layers = 0;
    assert_error(k3_synth_write(dir, &c, &opt, &err), &err, MS_ERR_FORMAT, "num_hidden_layers");
    c = small_config();
    c.rms_eps = NAN;
    assert_int_equal(k3_synth_write(dir, &c, &opt, &err), MS_ERR_FORMAT);
    k3_config_official(&c); /* about 13 PB */
    c.experts = 4096;
    c.expert_inner = 1 << 20;
    c.latent = 1 << 20;
    c.layers = 2;
    memset(c.is_mla, 0, sizeof c.is_mla);
    assert_error(k3_synth_write(dir, &c, &opt, &err), &err, MS_ERR_NO_FIT, dir, "free bytes");
    assert_int_equal(stat(dir, &st), -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_load),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_official_totals),
        cmocka_unit_test(test_deterministic),
        cmocka_unit_test(test_any_cut),
        cmocka_unit_test(test_gaussian),
        cmocka_unit_test(test_sparse),
        cmocka_unit_test(test_heads_above_channels),
        cmocka_unit_test(test_progress_and_cancel),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
