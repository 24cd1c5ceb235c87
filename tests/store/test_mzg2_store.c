/* Building, resuming, verifying, restoring stores; refusals. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <sys/resource.h>
#include <sys/stat.h>

#include "mzg2_kill.h"
#include "store/mzg2_probe.h"

typedef struct place {
    char dir[PATH_BYTES], model[PATH_BYTES], store[PATH_BYTES];
    ms_model m;
    ms_mzg2_source s;
} place;

static void begin(place *p, uint32_t layers, uint32_t experts) {
    make_dir(p->dir);
    make_model(p->model, p->dir, "model", layers, experts, 1);
    path_in(p->store, p->dir, "store");
    open_source(&p->m, &p->s, p->model);
}

static void finish(place *p) {
    ms_model_close(&p->m);
    remove_dir(p->dir);
}

static bool exists(const char *dir, const char *name) {
    char path[PATH_BYTES];
    struct stat st;
    path_in(path, dir, name);
    return lstat(path, &st) == 0;
}

static ms_status verify(const place *p, bool fast, bool with_source, ms_error *err) {
    ms_mzg2_report r;
    const ms_mzg2_job_options o = {.jobs = 2, .fast = fast};
    *err = (ms_error){0};
    return ms_mzg2_verify(p->store, with_source ? &p->s : NULL, &o, &r, err);
}

static void jobs_do_not_matter(void **state) {
    (void)state;
    place p;
    char other[PATH_BYTES];
    ms_error err;
    ms_mzg2_report r;
    begin(&p, 6, 9);
    path_in(other, p.dir, "other");
    must_build(p.store, &p.s, &(ms_mzg2_job_options){.jobs = 1, .signs = true}, &r);
    must_build(other, &p.s, &(ms_mzg2_job_options){.jobs = 4, .signs = true}, NULL);
    assert_same_stores(p.store, other);
    assert_int_equal(r.layers, 5);
    assert_int_equal(r.experts, 45);
    assert_int_equal(r.canonical_bytes, 45 * ms_expert_bytes(p.s.shape));
    assert_int_equal(verify(&p, false, true, &err), MS_OK);
    assert_int_equal(verify(&p, false, false, &err), MS_OK);
    assert_int_equal(verify(&p, true, true, &err), MS_OK);
    assert_false(exists(p.store, "state.jsonl"));
    finish(&p);
}

/* What a checkpoint's layer holds, expert after expert. */
static uint8_t *layer_source(const place *p, uint32_t moe_layer, bool canonical) {
    const ms_expert_table *t = &p->m.experts;
    size_t n = (size_t)t->expert_bytes;
    uint8_t *all = malloc(t->expert_count * n);
    assert_non_null(all);
    for (uint32_t e = 0; e < t->expert_count; e++) {
        const ms_expert_extent *x = &t->extents[(size_t)moe_layer * t->expert_count + e];
        assert_int_equal(ms_checkpoint_read_shard(p->m.checkpoint, x->shard, x->offset, all + e * n, n, NULL), MS_OK);
        if (canonical) ms_mzg2_clear_zeros(all + e * n, p->s.shape);
    }
    return all;
}

static void check_restored(const place *p, uint32_t layer, bool canonical) {
    char path[PATH_BYTES], *got;
    size_t n;
    ms_error err = {0};
    path_in(path, p->dir, "restored");
    if (ms_mzg2_restore(p->store, layer, path, canonical, &err) != MS_OK) fail_msg("%s", err.message);
    get_bytes(p->dir, "restored", &got, &n);
    uint8_t *want = layer_source(p, layer - 1, canonical);
    assert_int_equal(n, p->m.experts.expert_count * ms_expert_bytes(p->s.shape));
    assert_memory_equal(got, want, n);
    free(got);
    free(want);
    assert_int_equal(ms_mzg2_restore(p->store, layer, path, canonical, &err), MS_ERR_IO); /* never over a file */
    assert_int_equal(remove(path), 0);
}

static void source_bytes_come_back(void **state) {
    (void)state;
    place p;
    ms_error err = {0};
    char path[PATH_BYTES];
    begin(&p, 3, 5);
    must_build(p.store, &p.s, &(ms_mzg2_job_options){.jobs = 2, .signs = true}, NULL);
    for (uint32_t layer = 1; layer <= 2; layer++) {
        check_restored(&p, layer, false);
        check_restored(&p, layer, true);
    }
    path_in(path, p.dir, "restored");
    assert_error(ms_mzg2_restore(p.store, 7, path, false, &err), &err, MS_ERR_USAGE, "layer 7");
    remove_dir(p.store);
    must_build(p.store, &p.s, &(ms_mzg2_job_options){.jobs = 2}, NULL);
    assert_error(ms_mzg2_restore(p.store, 1, path, false, &err), &err, MS_ERR_USAGE, "without the signs");
    check_restored(&p, 2, true);
    finish(&p);
}

/* ------------------------------------------------------------------ damage */

static void flip(const char *dir, const char *name, size_t at, int bit) {
    char *data;
    size_t n;
    get_bytes(dir, name, &data, &n);
    assert_true(at < n);
    data[at] = (char)(data[at] ^ 1 << bit);
    put_bytes(dir, name, data, n);
    free(data);
}

static void damage_is_found(void **state) {
    (void)state;
    place p;
    ms_error err;
    begin(&p, 3, 4);
    must_build(p.store, &p.s, &(ms_mzg2_job_options){.jobs = 2, .signs = true}, NULL);
    char *data;
    size_t n;
    get_bytes(p.store, "layer-002.mzg2", &data, &n);
    free(data);
    for (size_t i = 0; i < 40; i++) {
        size_t at = n * i / 40 + i;
        flip(p.store, "layer-002.mzg2", at, (int)(i % 8));
        assert_error(verify(&p, true, false, &err), &err, MS_ERR_FORMAT, "layer-002.mzg2");
        assert_error(verify(&p, false, true, &err), &err, MS_ERR_FORMAT, "layer-002.mzg2");
        flip(p.store, "layer-002.mzg2", at, (int)(i % 8));
    }
    flip(p.store, "cold/layer-001.nz", 50, 0);
    assert_error(verify(&p, true, false, &err), &err, MS_ERR_FORMAT, "layer-001.nz", "SHA-256");
    flip(p.store, "cold/layer-001.nz", 50, 0);
    get_bytes(p.store, "manifest.json", &data, &n);
    free(data);
    for (size_t at = 0; at < n; at += 41) { /* the manifest vouches for itself */
        flip(p.store, "manifest.json", at, 1);
        assert_error(verify(&p, true, false, &err), &err, err.code, "manifest.json");
        flip(p.store, "manifest.json", at, 1);
    }
    assert_int_equal(verify(&p, false, true, &err), MS_OK);
    finish(&p);
}

/* A block that was changed after the manifest was made anew is found by tile. */
static void damage_behind_good_digests_is_named(void **state) {
    (void)state;
    place p;
    begin(&p, 2, 3);
    must_build(p.store, &p.s, &(ms_mzg2_job_options){.jobs = 1}, NULL);
    ms_error err = {0};
    ms_mzg2_manifest m;
    ms_mzg2_layer layer;
    char path[PATH_BYTES], *data;
    size_t n;
    get_bytes(p.store, "layer-001.mzg2", &data, &n);
    assert_int_equal(ms_mzg2_layer_parse(&layer, (const uint8_t *)data, n, n, &err), MS_OK);
    size_t tile = (size_t)layer.index[1].offset + ms_le32(data + layer.index[1].offset + 16 + 12 * 3) + 200;
    ms_mzg2_layer_free(&layer);
    free(data);
    flip(p.store, "layer-001.mzg2", tile, 3);
    path_in(path, p.store, "layer-001.mzg2");
    assert_int_equal(ms_mzg2_manifest_read(&m, p.store, &err), MS_OK);
    assert_int_equal(ms_sha256_file(m.layers[0].sha, path, NULL, &err), MS_OK);
    ms_text text = {0};
    ms_mzg2_manifest_write(&text, &m);
    assert_int_equal(ms_mzg2_seal(&text, "manifest_sha256", m.sha, &err), MS_OK);
    put_bytes(p.store, "manifest.json", text.data, text.len);
    ms_text_free(&text);
    ms_mzg2_manifest_free(&m);
    assert_int_equal(verify(&p, true, true, &err), MS_OK);
    assert_error(verify(&p, false, true, &err), &err, MS_ERR_FORMAT, "layer-001.mzg2", "layer 1, expert 1", "CRC");
    finish(&p);
}

static void other_weights_are_refused(void **state) {
    (void)state;
    place p, q;
    ms_error err = {0};
    ms_mzg2_report r;
    begin(&p, 3, 4);
    must_build(p.store, &p.s, &(ms_mzg2_job_options){.jobs = 1}, NULL);
    make_dir(q.dir);
    make_model(q.model, q.dir, "model", 3, 4, 2); /* the same layout */
    open_source(&q.m, &q.s, q.model);
    const ms_mzg2_job_options o = {.jobs = 1};
    assert_error(ms_mzg2_verify(p.store, &q.s, &o, &r, &err), &err, MS_ERR_FORMAT, "probe", "other weights");
    finish(&q);
    make_dir(q.dir);
    make_model(q.model, q.dir, "model", 3, 5, 1);
    open_source(&q.m, &q.s, q.model);
    assert_error(ms_mzg2_verify(p.store, &q.s, &o, &r, &err), &err, MS_ERR_FORMAT, "5", "found 2 of 4");
    finish(&q);
    finish(&p);
}

/* ------------------------------------------------------------------ unfinished builds */

static bool stop_soon(void *arg, uint64_t done, uint64_t total) {
    (void)total;
    return done < *(uint64_t *)arg;
}

static void unfinished_builds_go_on(void **state) {
    (void)state;
    place p;
    char calm[PATH_BYTES], partial[PATH_BYTES];
    ms_error err = {0};
    ms_mzg2_report r;
    begin(&p, 6, 4);
    path_in(calm, p.dir, "calm");
    path_in(partial, p.dir, "store.partial");
    must_build(calm, &p.s, &(ms_mzg2_job_options){.jobs = 1}, NULL);
    uint64_t limit = 10 * ms_expert_bytes(p.s.shape); /* in the third of five layers */
    const ms_mzg2_job_options stop = {.jobs = 1, .progress = stop_soon, .progress_arg = &limit};
    assert_error(ms_mzg2_build(p.store, &p.s, &stop, &r, &err), &err, MS_ERR_CANCELLED, "cancelled");
    assert_true(exists(partial, "layer-002.mzg2") && !exists(partial, "layer-003.mzg2"));
    assert_false(exists(partial, "layer-003.mzg2.tmp"));
    /* other parameters */
    assert_error(ms_mzg2_build(p.store, &p.s, &(ms_mzg2_job_options){.jobs = 1, .tables = 4}, &r, &err), &err,
                 MS_ERR_USAGE, "parameters", "state.jsonl");
    /* a torn state line, a stale temporary file, and a finished layer that lost its file's end */
    char *text;
    size_t n;
    get_bytes(partial, "state.jsonl", &text, &n);
    char *torn = malloc(n + 20);
    memcpy(torn, text, n);
    memcpy(torn + n, "{\"layer\":3,\"fi", 14);
    put_bytes(partial, "state.jsonl", torn, n + 14);
    free(torn);
    free(text);
    put_text(partial, "layer-004.mzg2.tmp", "stale");
    get_bytes(partial, "layer-001.mzg2", &text, &n);
    put_bytes(partial, "layer-001.mzg2", text, n - 4096);
    free(text);
    must_build(p.store, &p.s, &(ms_mzg2_job_options){.jobs = 3}, &r);
    assert_int_equal(r.kept_layers, 1);
    assert_same_stores(calm, p.store);
    /* killed between the last two steps: only the rename is left */
    remove_dir(calm);
    assert_int_equal(rename(p.store, partial), 0);
    must_build(p.store, &p.s, &(ms_mzg2_job_options){.jobs = 1}, &r);
    assert_int_equal(r.kept_layers, 5);
    assert_int_equal(verify(&p, false, true, &err), MS_OK);
    assert_error(ms_mzg2_build(p.store, &p.s, &(ms_mzg2_job_options){.jobs = 1}, &r, &err), &err, MS_ERR_USAGE,
                 "existing");
    finish(&p);
}

static void recheck_finds_changed_layers(void **state) {
    (void)state;
    place p;
    char partial[PATH_BYTES];
    ms_error err = {0};
    ms_mzg2_report r;
    begin(&p, 4, 4);
    path_in(partial, p.dir, "store.partial");
    uint64_t limit = 9 * ms_expert_bytes(p.s.shape);
    const ms_mzg2_job_options stop = {.jobs = 1, .progress = stop_soon, .progress_arg = &limit};
    assert_int_equal(ms_mzg2_build(p.store, &p.s, &stop, &r, &err), MS_ERR_CANCELLED);
    flip(partial, "layer-001.mzg2", 5000, 2);
    must_build(p.store, &p.s, &(ms_mzg2_job_options){.jobs = 1, .recheck = true}, &r);
    assert_int_equal(r.kept_layers, 1);
    assert_int_equal(verify(&p, false, true, &err), MS_OK);
    finish(&p);
}

/* A write that fails half way, as on a full disk: one error, no temporary file, and the rest later. */
static void failed_writes_leave_a_resumable_build(void **state) {
    (void)state;
    place p;
    char partial[PATH_BYTES];
    begin(&p, 4, 6);
    path_in(partial, p.dir, "store.partial");
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        ms_error err = {0};
        ms_mzg2_report r;
        (void)signal(SIGXFSZ, SIG_IGN);
        const struct rlimit limit = {60000, 60000};
        if (setrlimit(RLIMIT_FSIZE, &limit) != 0) _exit(9);
        ms_status st = ms_mzg2_build(p.store, &p.s, &(ms_mzg2_job_options){.jobs = 1}, &r, &err);
        _exit(st == MS_ERR_IO && strstr(err.message, "layer-001.mzg2.tmp") && strstr(err.message, "write") ? 0 : 1);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_false(exists(partial, "layer-001.mzg2.tmp") || exists(p.dir, "store"));
    ms_error err = {0};
    must_build(p.store, &p.s, &(ms_mzg2_job_options){.jobs = 2}, NULL);
    assert_int_equal(verify(&p, false, true, &err), MS_OK);
    finish(&p);
}

/* What lies in the folder of a build would be published with it. */
static void foreign_files_are_refused(void **state) {
    (void)state;
    place p;
    char partial[PATH_BYTES], letter[PATH_BYTES];
    ms_error err = {0};
    ms_mzg2_report r;
    begin(&p, 3, 4);
    path_in(partial, p.dir, "store.partial");
    assert_int_equal(mkdir(partial, 0700), 0);
    put_bytes(partial, "letter", "mine", 4);
    const ms_mzg2_job_options o = {.jobs = 1};
    assert_error(ms_mzg2_build(p.store, &p.s, &o, &r, &err), &err, MS_ERR_USAGE, "store.partial", "letter");
    assert_true(exists(partial, "letter"));
    assert_false(exists(p.dir, "store") || exists(partial, "state.jsonl"));
    path_in(letter, partial, "letter");
    assert_int_equal(remove(letter), 0);
    put_bytes(partial, "layer-001.mzg2.tmp", "cut", 3);
    must_build(p.store, &p.s, &o, NULL);
    assert_false(exists(p.store, "layer-001.mzg2.tmp"));
    assert_int_equal(verify(&p, false, true, &err), MS_OK);
    finish(&p);
}

static void bad_sources_are_refused(void **state) {
    (void)state;
    place p;
    ms_error err = {0};
    ms_mzg2_report r;
    begin(&p, 3, 4);
    const ms_expert_extent *x = &p.m.experts.extents[1 * 4 + 2];
    const char *path = ms_checkpoint_shard_path(p.m.checkpoint, x->shard), *base = strrchr(path, '/') + 1;
    char *data;
    size_t n, part = ms_expert_bytes(p.s.shape) / 3;
    get_bytes(p.model, base, &data, &n);
    data[x->offset + part - 1] = (char)255; /* the last scale of w1 */
    put_bytes(p.model, base, data, n);
    free(data);
    assert_error(ms_mzg2_build(p.store, &p.s, &(ms_mzg2_job_options){.jobs = 1}, &r, &err), &err, MS_ERR_FORMAT,
                 "layer 2, expert 2", "w1 scale", "255");
    assert_false(exists(p.dir, "store"));
    finish(&p);
}

static void single_layers_and_probe(void **state) {
    (void)state;
    place p;
    char path[PATH_BYTES], built[PATH_BYTES];
    ms_error err = {0};
    ms_mzg2_layer_record rec;
    begin(&p, 3, 6);
    must_build(p.store, &p.s, &(ms_mzg2_job_options){.jobs = 1}, NULL);
    path_in(path, p.dir, "one");
    path_in(built, p.store, "layer-002.mzg2");
    const ms_mzg2_job_options o = {.jobs = 1};
    assert_int_equal(ms_mzg2_build_layer(path, &p.s, 1, &o, &rec, &err), MS_OK);
    assert_same_stores(path, built);
    assert_error(ms_mzg2_build_layer(path, &p.s, 1, &o, &rec, &err), &err, MS_ERR_USAGE, "existing");
    ms_mzg2_probe probe;
    if (ms_mzg2_probe_run(&probe, &p.s, &(ms_mzg2_probe_options){.threads = 2, .buffered = true}, &err) != MS_OK)
        fail_msg("%s", err.message);
    assert_true(probe.decode_rate > 0 && probe.decode_rate_all > 0 && probe.read_rate > 0 && probe.encode_rate > 0);
    assert_true(probe.order0_saving > 0.12 && probe.order0_saving < 0.16);
    assert_true(probe.saving[2][1] >= probe.saving[0][0]);
    finish(&p);
}

static void killed_builds_go_on(void **state) {
    (void)state;
    kill_many(10, 2, 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(jobs_do_not_matter),
        cmocka_unit_test(source_bytes_come_back),
        cmocka_unit_test(damage_is_found),
        cmocka_unit_test(damage_behind_good_digests_is_named),
        cmocka_unit_test(other_weights_are_refused),
        cmocka_unit_test(unfinished_builds_go_on),
        cmocka_unit_test(recheck_finds_changed_layers),
        cmocka_unit_test(failed_writes_leave_a_resumable_build),
        cmocka_unit_test(foreign_files_are_refused),
        cmocka_unit_test(bad_sources_are_refused),
        cmocka_unit_test(single_layers_and_probe),
        cmocka_unit_test(killed_builds_go_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
