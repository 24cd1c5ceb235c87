/* Opening an engine and the edges of a session: what is refused, with which words, and what is left untouched. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine_util.h"

/* ------------------------------------------------------------------ files */

static void open_refused(const char *dir, ms_status want, const char *a, const char *b) {
    ms_engine_options o;
    ms_engine *e = NULL;
    ms_error err;
    ms_engine_options_default(&o, dir);
    ms_status st = ms_engine_open(&e, &o, &err);
    assert_null(e);
    REFUSED(st, &err, want, a, b);
    ms_plan *p = NULL;
    if (want != MS_ERR_NUMERIC) { /* what headers show, the plan refuses too, in the same words */
        ms_error plan_err;
        st = ms_plan_create(&p, &o, &plan_err);
        assert_null(p);
        assert_int_equal(st, want);
        assert_string_equal(plan_err.message, err.message);
    }
}

static void folders(void **state) {
    (void)state;
    char dir[] = "/tmp/ms-engine-XXXXXX", missing[64];
    assert_non_null(mkdtemp(dir));
    (void)snprintf(missing, sizeof missing, "%s/nothing", dir);
    open_refused(missing, MS_ERR_IO, missing, "config.json");
    open_refused(dir, MS_ERR_IO, dir, "config.json");
    rmdir(dir);
    ms_engine_options o;
    ms_engine *e = NULL;
    ms_error err;
    ms_engine_options_default(&o, NULL);
    REFUSED(ms_engine_open(&e, &o, &err), &err, MS_ERR_USAGE, "no model");
    o.model = "";
    REFUSED(ms_engine_open(&e, &o, &err), &err, MS_ERR_USAGE, "no model");
    ms_plan *p = NULL;
    REFUSED(ms_plan_create(&p, &o, &err), &err, MS_ERR_USAGE, "no model");
    o.model = NULL;
    REFUSED(ms_plan_create(&p, &o, &err), &err, MS_ERR_USAGE, "no model");
}

static void damaged(const char *file, const char *from, const char *to, ms_status want, const char *a, const char *b) {
    char dir[PATH_BYTES];
    copy_model(dir, TINY);
    edit_file(dir, file, from, to);
    open_refused(dir, want, a, b);
    remove_model(dir);
}

static void config_faults(void **state) {
    (void)state;
    damaged("config.json", "\"num_experts\"", "\"num_expertz\"", MS_ERR_FORMAT, "config.json", "num_experts");
    damaged("config.json", "\"kimi_k3\"", "\"gpt_x9s\"", MS_ERR_UNSUPPORTED, "config.json: model_type", "gpt_x9s");
    damaged("config.json", "{", "[", MS_ERR_FORMAT, "config.json", "");
}

static void header_faults(void **state) {
    (void)state;
    const char *shard = "model-00003-of-000008.safetensors", *index = "model.safetensors.index.json";
    damaged(shard, "layers.2.self_attn.o_proj", "layers.2.self_attn.o_proX", MS_ERR_FORMAT, shard, "layers.2.self_attn.o_pro");
    damaged(shard, "\"BF16\"", "\"F16\" ", MS_ERR_FORMAT, "expected BF16, found F16", "layers.2.");
    damaged(shard, "\"dtype\":\"F32\"", "\"dtype\":\"F99\"", MS_ERR_FORMAT, shard, "F99");
    damaged(index, "layers.2.self_attn.o_proj", "layers.2.self_attn.o_proX", MS_ERR_FORMAT, "layers.2.self_attn.o_pro", "");
    damaged(index, "model-00003-of-000008", "model-0000X-of-000008", MS_ERR_IO, "model-0000X-of-000008", "");

    char dir[PATH_BYTES];
    copy_model(dir, TINY); /* gone from the index and from the header: only the layout knows */
    edit_file(dir, shard, "layers.2.self_attn.o_proj", "layers.2.self_attn.o_proX");
    edit_file(dir, index, "layers.2.self_attn.o_proj", "layers.2.self_attn.o_proX");
    open_refused(dir, MS_ERR_FORMAT, "layers.2.self_attn.o_proj.weight", "missing");
    remove_model(dir);

    copy_model(dir, TINY);
    char path[PATH_BYTES];
    (void)snprintf(path, sizeof path, "%.200s/%s", dir, shard);
    cut c;
    cut_file(&c, path, 385263);
    open_refused(dir, MS_ERR_FORMAT, shard, "375199");
    mend_file(&c);
    cut_file(&c, path, 3);
    open_refused(dir, MS_ERR_FORMAT, shard, "3");
    free(c.data);
    remove_model(dir);
}

/* ------------------------------------------------------------------ weights */

static void weight_refused(const char *tensor, uint64_t element, uint16_t value, bool f32, ms_static_format format,
                           const char *place) {
    char dir[PATH_BYTES];
    copy_model(dir, TINY);
    ms_model m;
    ms_error err;
    ok(ms_model_open(&m, dir, &err), &err);
    const ms_tensor *t = ms_checkpoint_find(m.checkpoint, tensor);
    if (!t) fail_msg("no %s", tensor);
    /* the upper half of a float32 is a bf16 */
    uint64_t at = t->offset + element * (f32 ? 4 : 2) + (f32 ? 2 : 0);
    char shard[PATH_BYTES];
    (void)snprintf(shard, sizeof shard, "%s: ", ms_checkpoint_shard_path(m.checkpoint, t->shard));
    swap_bytes(ms_checkpoint_shard_path(m.checkpoint, t->shard), at, &value, sizeof value);
    ms_model_close(&m);
    ms_engine_options o;
    ms_engine *e = NULL;
    ms_engine_options_default(&o, dir);
    o.static_format = format;
    ms_status st = ms_engine_open(&e, &o, &err);
    assert_null(e);
    REFUSED(st, &err, MS_ERR_NUMERIC, shard, tensor, place);
    remove_model(dir);
}

static void weights_not_finite(void **state) {
    (void)state;
    const uint16_t nan = 0x7fc0, inf = 0x7f80, minus_inf = 0xff80;
    for (int f = 0; f < 2; f++) {
        ms_static_format format = f ? MS_STATIC_BF16 : MS_STATIC_Q8;
        weight_refused("language_model.model.layers.2.self_attn.o_proj.weight", 5 * 128 + 7, nan, false, format,
                       "row 5 column 7");
        weight_refused("language_model.lm_head.weight", 511 * 128 + 127, minus_inf, false, format, "row 511 column 127");
        weight_refused("language_model.model.layers.3.block_sparse_moe.gate.weight", 2 * 128, inf, false, format,
                       "row 2 column 0");
        weight_refused("language_model.model.layers.3.block_sparse_moe.gate.e_score_correction_bias", 6, nan, true, format,
                       "column 6");
        weight_refused("language_model.model.layers.3.mlp_res_norm.weight", 9, nan, false, format, "column 9");
        weight_refused("language_model.model.layers.3.mlp_res_proj.weight", 8, nan, false, format, "column 8");
        weight_refused("language_model.model.layers.2.post_attention_layernorm.weight", 100, inf, false, format,
                       "column 100");
        weight_refused("language_model.model.layers.2.self_attn.A_log", 1, inf, true, format, "column 1");
    }
}

/* ------------------------------------------------------------------ options */

static void option_refused(ms_engine_options o, const char *a, const char *b) {
    ms_engine *e = NULL;
    ms_error err;
    REFUSED(ms_engine_open(&e, &o, &err), &err, MS_ERR_USAGE, a, b);
    assert_null(e);
}

static void option_limits(void **state) {
    (void)state;
    ms_engine_options base, o;
    ms_engine_options_default(&base, TINY);
    o = base, o.experts = 9, option_refused(o, "experts 9", "0 to 8");
    o = base, o.experts = UINT32_MAX - 1, option_refused(o, "experts", "0 to 8");
    o = base, o.context = 4097, option_refused(o, "context 4097", "4096");
    o = base, o.context = UINT64_MAX, option_refused(o, "context", "4096");
    o = base, o.staging = 1025, option_refused(o, "staging 1025", "1024");
    o = base, o.range_rows = (1u << 20) + 1, option_refused(o, "range", "1048576");
    o = base, o.kernels = "mmx", option_refused(o, "mmx", "");

    rig r;
    o = base; /* zeros are defaults, cut to the model */
    rig_open(&r, &o);
    ms_model_info info;
    ms_engine_info(r.e, &info);
    assert_int_equal(info.context, 4096);
    assert_int_equal(ms_engine_plan(r.e)->experts, 8);
    assert_int_equal(ms_engine_plan(r.e)->range_rows, 512);
    rig_close(&r);
    o = base, o.context = 1, o.experts = 8, o.read_depth = 1000, o.staging = 3;
    rig_open(&r, &o);
    assert_int_equal(ms_engine_plan(r.e)->range_rows, 1);
    uint32_t id = 1;
    ms_error err;
    ok(ms_session_forward(r.s, &id, 1, NULL, &err), &err);
    rig_close(&r);
}

static uint64_t status_kib(const char *key) {
    char line[256];
    unsigned long long value = 0;
    FILE *f = fopen("/proc/self/status", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        if (!strncmp(line, key, strlen(key))) value = strtoull(line + strlen(key) + 1, NULL, 10);
    (void)fclose(f);
    return value;
}

/* A context that is too long for the memory is refused with the numbers, before any of it is allocated. */
static void no_fit(void **state) {
    (void)state;
    ms_engine_options o;
    ms_engine *e = NULL;
    ms_plan *p = NULL;
    ms_error err;
    ms_engine_options_default(&o, NANO);
    o.threads = 1;
    ok(ms_plan_create(&p, &o, &err), &err);
    assert_true(p->fits);
    uint64_t small = p->total_bytes;
    o.reserve_bytes = p->available_bytes - small - (32u << 20);
    ms_plan_destroy(p);
    o.context = 131072;
    ok(ms_plan_create(&p, &o, &err), &err);
    assert_false(p->fits);
    assert_true(p->total_bytes > small + (64u << 20));
    char total[32], reserve[32];
    (void)snprintf(total, sizeof total, "needs %.3f GiB", (double)p->total_bytes / (double)(1u << 30));
    (void)snprintf(reserve, sizeof reserve, "reserve of %.3f GiB", (double)p->reserve_bytes / (double)(1u << 30));
    ms_plan_destroy(p);

    uint64_t size = status_kib("VmSize:"), resident = status_kib("VmRSS:");
    ms_status st = ms_engine_open(&e, &o, &err);
    uint64_t size_after = status_kib("VmSize:"), resident_after = status_kib("VmRSS:");
    assert_null(e);
    REFUSED(st, &err, MS_ERR_NO_FIT, total, reserve, "static", "cache", "state", "available", "--context");
    if (SANITIZED) print_message("memory is not compared: a sanitizer's is not the program's\n");
    else assert_true(size_after <= size + 2048 && resident_after <= resident + 2048);

    o.context = 0; /* the same reserve, less context: fits, and the check above could have failed */
    rig r;
    rig_open(&r, &o);
    if (!SANITIZED) assert_true(status_kib("VmSize:") > size + small / 1024 / 2);
    rig_close(&r);
    o.reserve_bytes = UINT64_MAX - 1;
    assert_int_equal(ms_engine_open(&e, &o, &err), MS_ERR_NO_FIT);
}

/* ------------------------------------------------------------------ a session's edges */

static void context_edge(void **state) {
    (void)state;
    ms_engine_options o;
    ms_error err;
    rig r;
    uint32_t ids[17];
    ms_engine_options_default(&o, TINY);
    o.context = 16;
    rig_open(&r, &o);
    some_ids(ids, 17, r.vocab);
    uint64_t empty = fingerprint(&r);
    REFUSED(ms_session_forward(r.s, ids, 17, NULL, &err), &err, MS_ERR_CONTEXT, "17 tokens", "position 0", "context of 16");
    assert_int_equal(fingerprint(&r), empty);
    assert_int_equal(ms_session_position(r.s), 0);
    ok(ms_session_forward(r.s, ids, 16, NULL, &err), &err);
    uint64_t full = fingerprint_with_logits(&r);
    REFUSED(ms_session_forward(r.s, ids, 1, NULL, &err), &err, MS_ERR_CONTEXT, "1 tokens", "position 16");
    assert_int_equal(fingerprint_with_logits(&r), full); /* the logits stay, too */
    assert_memory_equal(ms_session_tokens(r.s), ids, 16 * sizeof *ids);

    ms_session_reset(r.s);
    assert_null(ms_session_logits(r.s));
    assert_int_equal(fingerprint(&r), empty);
    for (int i = 0; i < 16; i++) ok(ms_session_forward(r.s, ids + i, 1, NULL, &err), &err);
    assert_int_equal(fingerprint_with_logits(&r), full);
    rig_close(&r);
}

static void bad_ids(void **state) {
    (void)state;
    ms_engine_options o;
    ms_error err;
    rig r;
    ms_engine_options_default(&o, TINY);
    rig_open(&r, &o);
    uint32_t ids[4] = {1, 2, 511, 3};
    ok(ms_session_forward(r.s, ids, 4, NULL, &err), &err);
    uint64_t before = fingerprint_with_logits(&r);
    ids[2] = 512;
    REFUSED(ms_session_forward(r.s, ids, 4, NULL, &err), &err, MS_ERR_USAGE, "token 2", "512");
    ids[2] = UINT32_MAX;
    REFUSED(ms_session_forward(r.s, ids, 4, NULL, &err), &err, MS_ERR_USAGE, "token 2", "4294967295");
    REFUSED(ms_session_forward(r.s, NULL, 0, NULL, &err), &err, MS_ERR_USAGE, "no tokens");
    assert_int_equal(fingerprint_with_logits(&r), before);
    rig_close(&r);
}

/* ------------------------------------------------------------------ cancel */

typedef struct stopper {
    ms_session *s;
    uint64_t at, calls; /* cancels in call number `at`, from 1; 0: never */
} stopper;

static void count_and_stop(void *arg, ms_progress_unit unit, uint64_t done, uint64_t total) {
    stopper *p = arg;
    (void)unit;
    assert_true(done <= total);
    if (++p->calls == p->at) ms_session_cancel(p->s);
}

enum { START = 3, TURN = 11 };

/* Runs START + TURN tokens, cancelled in progress call `at` of the turn, then goes on. */
static uint64_t cancelled_at(rig *r, uint32_t range, uint64_t at, uint64_t *calls, bool *was) {
    uint32_t ids[START + TURN];
    ms_error err;
    some_ids(ids, START + TURN, r->vocab);
    ms_session_reset(r->s);
    stopper p = {.s = r->s, .at = at};
    ms_forward_options fo = {.range = range, .progress = count_and_stop, .progress_arg = &p};
    ok(ms_session_forward(r->s, ids, START, NULL, &err), &err);
    uint64_t before = fingerprint(r);
    ms_status st = ms_session_forward(r->s, ids + START, TURN, &fo, &err);
    uint64_t position = ms_session_position(r->s);
    *was = st != MS_OK;
    *calls = p.calls;
    if (st != MS_OK) {
        assert_int_equal(st, MS_ERR_CANCELLED);
        assert_null(ms_session_logits(r->s));
        uint32_t pass = range ? range : 512;
        assert_int_equal((position - START) % pass, 0); /* whole passes only */
        if (position == START) assert_int_equal(fingerprint(r), before);
        assert_int_equal(ms_session_forward(r->s, ids, 1, NULL, &err), MS_ERR_CANCELLED); /* until it is cleared */
        assert_int_equal(ms_session_position(r->s), position);
        ms_session_clear_cancel(r->s);
        fo.progress = NULL;
        ok(ms_session_forward(r->s, ids + position, START + TURN - position, &fo, &err), &err);
    } else {
        assert_int_equal(position, START + TURN);
        ms_session_clear_cancel(r->s);
    }
    assert_memory_equal(ms_session_tokens(r->s), ids, sizeof ids);
    return fingerprint_with_logits(r);
}

static void cancel_everywhere(void **state) {
    (void)state;
    static const uint32_t ranges[] = {1, 2, 4, 0};
    ms_engine_options o;
    rig r;
    ms_engine_options_default(&o, TINY);
    o.context = 64;
    o.experts = 2;
    rig_open(&r, &o);
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        uint64_t total, calls;
        bool was;
        uint64_t want = cancelled_at(&r, ranges[i], 0, &total, &was);
        assert_false(was);
        assert_int_equal(total, ranges[i] == 1 ? TURN : (TURN + (ranges[i] ? ranges[i] : 512) - 1) / (ranges[i] ? ranges[i] : 512) * 5);
        for (uint64_t at = 1; at <= total; at++) {
            assert_int_equal(cancelled_at(&r, ranges[i], at, &calls, &was), want);
            /* a progress call comes before the cancel check of its layer, but after a token is committed */
            assert_true(was || (ranges[i] == 1 && at == total));
            assert_int_equal(calls, at);
        }
    }
    service_is_sound(&r);
    rig_close(&r);
}

/* Cancelled before it starts: stops at the first boundary. */
static void cancel_before(void **state) {
    (void)state;
    ms_engine_options o;
    ms_error err;
    rig r;
    uint32_t ids[2] = {5, 6};
    ms_engine_options_default(&o, TINY);
    rig_open(&r, &o);
    uint64_t empty = fingerprint(&r);
    ms_session_cancel(r.s);
    REFUSED(ms_session_forward(r.s, ids, 2, NULL, &err), &err, MS_ERR_CANCELLED, "after layer 0", "first 0 tokens");
    assert_int_equal(fingerprint(&r), empty);
    rig_close(&r);
}

/* A sink that fails stops the call like any other error. */
static ms_status full_sink(void *arg, uint64_t first, uint32_t rows, const float *logits, ms_error *err) {
    (void)arg, (void)rows, (void)logits;
    return first < 4 ? MS_OK : ms_fail(err, MS_ERR_IO, "sink is full");
}

static void sink_fails(void **state) {
    (void)state;
    ms_engine_options o;
    ms_error err;
    rig r;
    uint32_t ids[9];
    ms_engine_options_default(&o, TINY);
    rig_open(&r, &o);
    some_ids(ids, 9, r.vocab);
    ok(ms_session_forward(r.s, ids, 4, NULL, &err), &err);
    uint64_t four = fingerprint(&r);
    ok(ms_session_forward(r.s, ids + 4, 5, NULL, &err), &err);
    uint64_t want = fingerprint_with_logits(&r);
    ms_session_reset(r.s);
    ms_forward_options fo = {.range = 2, .all_logits = true, .sink = full_sink};
    REFUSED(ms_session_forward(r.s, ids, 9, &fo, &err), &err, MS_ERR_IO, "sink is full");
    assert_int_equal(ms_session_position(r.s), 4);
    assert_int_equal(fingerprint(&r), four);
    assert_null(ms_session_logits(r.s));
    ok(ms_session_forward(r.s, ids + 4, 5, NULL, &err), &err);
    assert_int_equal(fingerprint_with_logits(&r), want);
    rig_close(&r);
}

/* Three threads do one forward, with the bits of one thread; for the thread sanitizer above all. */
static void threads(void **state) {
    (void)state;
    uint64_t found[2];
    for (int i = 0; i < 2; i++) {
        ms_engine_options o;
        ms_error err;
        rig r;
        uint32_t ids[24];
        ms_engine_options_default(&o, TINY);
        o.threads = i ? 3 : 1;
        o.experts = 3;
        rig_open(&r, &o);
        assert_int_equal(r.e->backend->threads, o.threads);
        some_ids(ids, 24, r.vocab);
        ok(ms_session_forward(r.s, ids, 23, NULL, &err), &err);
        ok(ms_session_forward(r.s, ids + 23, 1, NULL, &err), &err);
        found[i] = fingerprint_with_logits(&r);
        rig_close(&r);
    }
    assert_int_equal(found[0], found[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(folders),       cmocka_unit_test(config_faults), cmocka_unit_test(header_faults),
        cmocka_unit_test(weights_not_finite), cmocka_unit_test(option_limits), cmocka_unit_test(no_fit),
        cmocka_unit_test(context_edge),  cmocka_unit_test(bad_ids),       cmocka_unit_test(cancel_everywhere),
        cmocka_unit_test(cancel_before), cmocka_unit_test(sink_fails),
        cmocka_unit_test(threads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
