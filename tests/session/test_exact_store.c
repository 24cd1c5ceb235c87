/* Raw experts, a compressed store and a bundle give the same bits, cold and warm, whatever else is chosen; a store of
 * other weights, a damaged one and an unfinished one are refused. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "../store/mzg2_kill.h"
#include "exact.h"
#include "store/bundle.h"

enum { STORE, BUNDLE, SOURCES };

static const setup store_variants[] = {
    {.label = "all slots", .experts = ALL},
    {.label = "range 1", .experts = ALL, .range = 1},
    {.label = "range 5", .experts = ALL, .range = 5},
    {.label = "three threads, range 7", .experts = ALL, .threads = 3, .range = 7},
    {.label = "no slots", .experts = 0},
    {.label = "one slot, token by token", .experts = 1, .range = 1},
    {.label = "two slots, one buffer", .experts = 2, .staging = 1},
    {.label = "five slots, depth 3", .experts = 5, .depth = 3, .range = 4},
    {.label = "buffered", .experts = 3, .buffered = true},
    {.label = "pread", .experts = 3, .no_uring = true},
    {.label = "warm cache", .experts = 4, .warm = true},
    {.label = "export and import", .experts = 4, .reload = true},
    {.label = "scalar kernels, two threads, range 3", .experts = 2, .kernels = "scalar", .threads = 2, .range = 3},
    {.label = "avx2 kernels", .experts = ALL, .kernels = "avx2"},
    {.label = "neon kernels", .experts = ALL, .kernels = "neon"},
    {.label = "a slow drive", .experts = 2, .range = 16, .read_limit = 200000000},
};

static void make_both(const char *model, const char *dir, char store[PATH_BYTES], char bundle[PATH_BYTES]) {
    ms_model m;
    ms_mzg2_source s;
    ms_error err = {0};
    ms_bundle_report r;
    path_in(store, dir, "store");
    path_in(bundle, dir, "bundle");
    open_source(&m, &s, model);
    must_build(store, &s, &(ms_mzg2_job_options){.jobs = 2}, NULL);
    if (ms_bundle_build(bundle, &s, store, &(ms_mzg2_job_options){.jobs = 1}, &r, &err) != MS_OK)
        fail_msg("%s", err.message);
    ms_model_close(&m);
}

static void check(ms_precision precision, ms_static_format format) {
    for (int m = 0; m < MODELS; m++) {
        char dir[PATH_BYTES], store[PATH_BYTES], bundle[PATH_BYTES];
        make_dir(dir);
        make_both(models[m], dir, store, bundle);
        setup base = {.precision = precision, .format = format, .experts = ALL, .threads = 1};
        outcome want = run(models[m], &base);
        for (size_t i = 0; i < SOURCES * sizeof store_variants / sizeof store_variants[0]; i++) {
            setup u = store_variants[i / SOURCES];
            if (u.kernels && !ms_cpu_kernels_find(u.kernels)) continue; /* this processor lacks them */
            bool bundled = i % SOURCES == BUNDLE;
            u.precision = precision;
            u.format = format;
            if (!u.threads) u.threads = 1;
            if (!bundled) u.store = store;
            outcome got = run(bundled ? bundle : models[m], &u);
            same(bundled ? "bundle" : "store", u.label, &want, &got);
        }
        remove_dir(dir);
    }
}

static void fast_q8(void **state) {
    (void)state;
    check(MS_PRECISION_FAST, MS_STATIC_Q8);
}
static void reference_bf16(void **state) {
    (void)state;
    check(MS_PRECISION_REFERENCE, MS_STATIC_BF16);
}

/* ------------------------------------------------------------------ what is opened, and what is not */

static ms_status try_open(const char *model, const char *store, ms_model_info *info, ms_error *err) {
    ms_engine_options o;
    ms_engine *e = NULL;
    *err = (ms_error){0};
    ms_engine_options_default(&o, model);
    o.store = store;
    o.threads = 1;
    o.context = 64;
    o.read_limit = store && !strcmp(store, "auto") ? 20000000 : 0; /* any decoder is faster than that */
    ms_status st = ms_engine_open(&e, &o, err);
    if (st == MS_OK && info) ms_engine_info(e, info);
    ms_engine_close(e);
    return st;
}

static void stores_are_told_apart(void **state) {
    (void)state;
    char dir[PATH_BYTES], a[PATH_BYTES], b[PATH_BYTES], store[PATH_BYTES], bundle[PATH_BYTES], path[PATH_BYTES];
    ms_error err;
    ms_model_info info;
    make_dir(dir);
    make_model(a, dir, "a", 4, 4, 1);
    make_model(b, dir, "b", 4, 4, 2);
    make_both(a, dir, store, bundle);
    assert_int_equal(try_open(a, store, &info, &err), MS_OK);
    assert_string_equal(info.expert_store, "mzg2");
    assert_string_equal(info.model_source, "safetensors");
    uint64_t layout = info.layout_digest;
    assert_int_equal(try_open(a, "raw", &info, &err), MS_OK);
    assert_string_equal(info.expert_store, "raw");
    assert_int_equal(try_open(bundle, NULL, &info, &err), MS_OK);
    assert_string_equal(info.expert_store, "mzg2");
    assert_string_equal(info.model_source, "bundle");
    assert_true(info.layout_digest == layout); /* so that states are exchanged */
    assert_error(try_open(bundle, store, NULL, &err), &err, MS_ERR_USAGE, "bundle");
    assert_error(try_open(b, store, NULL, &err), &err, MS_ERR_FORMAT, "probe", "other weights");
    path_in(path, dir, "a.mzg2"); /* beside the model: auto finds it */
    assert_int_equal(try_open(a, "auto", &info, &err), MS_OK);
    assert_string_equal(info.expert_store, "raw");
    assert_int_equal(rename(store, path), 0);
    assert_int_equal(try_open(a, "auto", &info, &err), MS_OK);
    assert_string_equal(info.expert_store, "mzg2");
    assert_error(try_open(a, store, NULL, &err), &err, MS_ERR_FORMAT, "manifest.json", "found none");
    path_in(store, path, "layer-002.mzg2");
    assert_int_equal(remove(store), 0);
    assert_error(try_open(a, path, NULL, &err), &err, MS_ERR_IO, "layer-002.mzg2", "No such file");
    edit_text(path, "manifest.json", "\"version\":1", "\"version\":2");
    assert_error(try_open(a, path, NULL, &err), &err, MS_ERR_UNSUPPORTED, "version", "expected 1, found 2");
    remove_dir(dir);
}

static void damage(const char *dir, const char *name, size_t from_end) {
    char *data;
    size_t n;
    get_bytes(dir, name, &data, &n);
    data[n - from_end] = (char)(data[n - from_end] ^ 8);
    put_bytes(dir, name, data, n);
    free(data);
}

/* A block that went bad after the store was opened: an error that names it, and the next pass works. */
static void damaged_blocks_stop_a_pass(void **state) {
    (void)state;
    char dir[PATH_BYTES], a[PATH_BYTES], store[PATH_BYTES], bundle[PATH_BYTES], *good;
    size_t n;
    ms_engine_options o;
    ms_engine *e = NULL;
    ms_session *s = NULL;
    ms_error err = {0};
    uint32_t ids[12];
    make_dir(dir);
    make_model(a, dir, "a", 3, 4, 1);
    make_both(a, dir, store, bundle);
    get_bytes(store, "layer-002.mzg2", &good, &n);
    ms_engine_options_default(&o, a);
    o.store = store;
    o.threads = 2;
    o.context = 64;
    o.experts = 2;
    ok(ms_engine_open(&e, &o, &err), &err);
    ok(ms_session_create(&s, e, &err), &err);
    for (uint32_t i = 0; i < 12; i++) ids[i] = 5 + 7 * i;
    ms_mzg2_layer layer;
    ok(ms_mzg2_layer_parse(&layer, (const uint8_t *)good, n, n, &err), &err);
    for (uint32_t x = 0; x < 4; x++) damage(store, "layer-002.mzg2", n - (size_t)layer.index[x].offset - 600);
    assert_error(ms_session_forward(s, ids, 12, NULL, &err), &err, MS_ERR_FORMAT, "layer 2, expert", "layer-002.mzg2",
                 "tile");
    assert_int_equal(ms_session_position(s), 0);
    put_bytes(store, "layer-002.mzg2", good, n);
    ok(ms_session_forward(s, ids, 12, NULL, &err), &err);
    ok(ms_expert_service_check(e->experts, &err), &err);
    ms_mzg2_layer_free(&layer);
    ms_session_destroy(s);
    ms_engine_close(e);
    free(good);
    remove_dir(dir);
}

/* ------------------------------------------------------------------ bundles */

static void bundles_are_checked(void **state) {
    (void)state;
    char dir[PATH_BYTES], a[PATH_BYTES], store[PATH_BYTES], bundle[PATH_BYTES], other[PATH_BYTES];
    ms_error err = {0};
    ms_bundle_report r;
    ms_model m;
    ms_mzg2_source s;
    const ms_mzg2_job_options o = {.jobs = 2};
    make_dir(dir);
    make_model(a, dir, "a", 3, 4, 1);
    put_text(a, "LICENSE", "words\n");
    make_both(a, dir, store, bundle);
    open_source(&m, &s, a);
    path_in(other, dir, "other"); /* without a store to link: the same bundle */
    ok(ms_bundle_build(other, &s, NULL, &o, &r, &err), &err);
    assert_same_stores(bundle, other);
    assert_error(ms_bundle_build(other, &s, NULL, &o, &r, &err), &err, MS_ERR_USAGE, "existing");
    ms_model_close(&m);
    ok(ms_bundle_verify(bundle, &o, &r, &err), &err);
    assert_true(r.files >= 6);
    remove_dir(a); /* nothing of the original is needed */
    remove_dir(store);
    assert_int_equal(try_open(bundle, NULL, NULL, &err), MS_OK);
    static const char *const files[] = {"LICENSE",
                                        "config.json",
                                        "model-static.safetensors",
                                        "model.safetensors.index.json",
                                        "mzg2/layer-001.mzg2",
                                        "mzg2/manifest.json",
                                        "bundle.json"};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        const char *base = strrchr(files[i], '/') ? strrchr(files[i], '/') + 1 : files[i];
        damage(other, files[i], 5);
        ms_status st = ms_bundle_verify(other, &o, &r, &err);
        assert_error(st, &err, MS_ERR_FORMAT, base);
        damage(other, files[i], 5);
    }
    put_text(other, "mzg2/more", "x");
    assert_error(ms_bundle_verify(other, &o, &r, &err), &err, MS_ERR_FORMAT, "more");
    remove_dir(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stores_are_told_apart), cmocka_unit_test(damaged_blocks_stop_a_pass),
        cmocka_unit_test(bundles_are_checked),   cmocka_unit_test(fast_q8),
        cmocka_unit_test(reference_bf16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
