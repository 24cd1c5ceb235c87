/* Checkpoint directories: index, shards, lookups, reads, and everything that can be wrong between them. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <sys/stat.h>

#include "store/checkpoint.h"
#include "store_util.h"

#define INDEX "model.safetensors.index.json"
#define ENTRY(name, dtype, shape, begin, end)                                                                          \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" begin "," end "]}"

static bool needed(void *arg, const char *name, size_t len) {
    (void)arg;
    return len > 2 && memcmp(name, "t.", 2) == 0;
}

static ms_status try_open(const char *dir, ms_error *err) {
    ms_checkpoint *c = NULL;
    ms_status status = ms_checkpoint_open(&c, dir, needed, NULL, err);
    ms_checkpoint_close(c);
    return status;
}

/* Two shards with needed tensors, one without. */
static void make_pair(char dir[PATH_BYTES]) {
    make_dir(dir);
    put_shard(dir, "one-1.safetensors",
              "{" ENTRY("t.b", "U8", "4", "0", "4") "," ENTRY("x.skip", "F32", "1", "4", "8") "}", 8);
    put_shard(dir, "two-2.safetensors",
              "{" ENTRY("t.a", "F32", "2,2", "0", "16") "," ENTRY("t.c", "BF16", "3", "16", "22") "}", 22);
    put_text(dir, INDEX,
             "{\"metadata\":{\"total_size\":30},\"weight_map\":{\"t.b\":\"one-1.safetensors\",\"x.skip\":\"one-1."
             "safetensors\","
             "\"t.a\":\"two-2.safetensors\",\"t.c\":\"two-2.safetensors\",\"v.x\":\"vision.safetensors\"}}");
    put_text(dir, "vision.safetensors", "garbage");
}

static void test_open(void **state) {
    (void)state;
    char dir[PATH_BYTES];
    make_pair(dir);
    ms_checkpoint *c = NULL;
    ms_error err = {0};
    assert_int_equal(ms_checkpoint_open(&c, dir, needed, NULL, &err), MS_OK);
    assert_string_equal(ms_checkpoint_dir(c), dir);
    assert_int_equal(ms_checkpoint_tensor_count(c), 3);
    assert_string_equal(ms_checkpoint_tensor(c, 0)->name, "t.a");
    assert_string_equal(ms_checkpoint_tensor(c, 2)->name, "t.c");
    const ms_tensor *t = ms_checkpoint_find(c, "t.c");
    assert_ptr_equal(t, ms_checkpoint_tensor(c, 2));
    assert_int_equal(t->bytes, 6);
    assert_int_equal(t->dtype, MS_DTYPE_BF16);
    assert_non_null(strstr(ms_checkpoint_shard_path(c, t->shard), "/two-2.safetensors"));
    assert_null(ms_checkpoint_find(c, "x.skip"));
    assert_null(ms_checkpoint_find(c, "t.d"));
    ms_checkpoint_totals totals;
    ms_checkpoint_get_totals(c, &totals);
    assert_int_equal(totals.indexed_tensors, 5);
    assert_int_equal(totals.indexed_shards, 3);
    assert_int_equal(totals.skipped_shards, 1);
    assert_int_equal(totals.payload_bytes, 26);
    assert_int_equal(ms_checkpoint_shard_count(c), 2);
    uint64_t shape[] = {2, 2}, other[] = {4, 1};
    assert_int_equal(ms_checkpoint_expect(c, "t.a", MS_DTYPE_F32, 2, shape, &t, &err), MS_OK);
    assert_string_equal(t->name, "t.a");
    assert_error(ms_checkpoint_expect(c, "t.a", MS_DTYPE_F32, 2, other, &t, &err), &err, MS_ERR_FORMAT, "t.a", "[4, 1]",
                 "[2, 2]");
    assert_error(ms_checkpoint_expect(c, "t.a", MS_DTYPE_F32, 1, other, &t, &err), &err, MS_ERR_FORMAT, "t.a", "[4]",
                 "[2, 2]");
    assert_error(ms_checkpoint_expect(c, "t.a", MS_DTYPE_U8, 2, shape, &t, &err), &err, MS_ERR_FORMAT, "t.a", "U8",
                 "F32");
    assert_error(ms_checkpoint_expect(c, "t.q", MS_DTYPE_U8, 2, shape, &t, &err), &err, MS_ERR_FORMAT, "missing",
                 "t.q");
    ms_checkpoint_close(c);
    remove_dir(dir);
}

static void test_read(void **state) {
    (void)state;
    ms_checkpoint *c = NULL;
    ms_error err = {0};
    char dir[PATH_BYTES];
    make_dir(dir);
    static const char header[] = "{" ENTRY("t.a", "U8", "4", "0", "4") "," ENTRY("t.b", "U8", "4", "4", "8") "}";
    char file[8 + sizeof header - 1 + 8];
    ms_put_le64(file, sizeof header - 1);
    memcpy(file + 8, header, sizeof header - 1);
    memcpy(file + 8 + sizeof header - 1, "abcdefgh", 8);
    put_bytes(dir, "model.safetensors", file, sizeof file);
    assert_int_equal(ms_checkpoint_open(&c, dir, needed, NULL, &err), MS_OK);
    const ms_tensor *t = ms_checkpoint_find(c, "t.b");
    char got[4] = {0};
    assert_int_equal(ms_checkpoint_read(c, t, 0, got, 4, &err), MS_OK);
    assert_memory_equal(got, "efgh", 4);
    assert_int_equal(ms_checkpoint_read(c, t, 3, got, 1, &err), MS_OK);
    assert_int_equal(got[0], 'h');
    assert_int_equal(ms_checkpoint_read(c, t, 4, got, 0, &err), MS_OK);
    assert_error(ms_checkpoint_read(c, t, 3, got, 2, &err), &err, MS_ERR_USAGE, "t.b", "within 4 bytes",
                 "2 bytes at 3");
    assert_error(ms_checkpoint_read(c, t, UINT64_MAX, got, 2, &err), &err, MS_ERR_USAGE, "t.b");
    ms_checkpoint_totals totals;
    ms_checkpoint_get_totals(c, &totals);
    assert_int_equal(totals.indexed_shards, 1);
    assert_int_equal(totals.header_bytes, 8 + sizeof header - 1);
    ms_checkpoint_close(c);
    /* cut while open files are valid: the read fails, nothing else */
    assert_int_equal(ms_checkpoint_open(&c, dir, needed, NULL, &err), MS_OK);
    char path[PATH_BYTES];
    path_in(path, dir, "model.safetensors");
    assert_int_equal(truncate(path, (off_t)sizeof file - 2), 0);
    t = ms_checkpoint_find(c, "t.b");
    assert_error(ms_checkpoint_read(c, t, 0, got, 4, &err), &err, MS_ERR_IO, "model.safetensors");
    ms_checkpoint_close(c);
    assert_error(try_open(dir, &err), &err, MS_ERR_FORMAT, "model.safetensors", "t.b", "6 payload bytes", "found 8");
    remove_dir(dir);
}

static void test_no_files(void **state) {
    (void)state;
    char dir[PATH_BYTES];
    make_dir(dir);
    ms_error err = {0};
    assert_error(try_open(dir, &err), &err, MS_ERR_IO, dir, INDEX, "model.safetensors, found neither");
    assert_error(try_open("/tmp/ms-test-no-such-directory", &err), &err, MS_ERR_IO, "ms-test-no-such-directory");
    remove_dir(dir);
}

/* Skipped shards are not even looked at: garbage, a folder, a dangling link, nothing at all. */
static void test_skipped_never_opened(void **state) {
    (void)state;
    char dir[PATH_BYTES], path[PATH_BYTES];
    ms_error err = {0};
    make_pair(dir);
    path_in(path, dir, "vision.safetensors");
    assert_int_equal(try_open(dir, &err), MS_OK);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(try_open(dir, &err), MS_OK);
    assert_int_equal(mkfifo(path, 0600), 0); /* opening it for reading would block */
    assert_int_equal(try_open(dir, &err), MS_OK);
    remove_dir(dir);
}

static void test_shard_kinds(void **state) {
    (void)state;
    char dir[PATH_BYTES], path[PATH_BYTES], aside[PATH_BYTES];
    ms_error err = {0};
    make_pair(dir);
    path_in(path, dir, "one-1.safetensors");
    path_in(aside, dir, "aside");
    assert_int_equal(rename(path, aside), 0);
    assert_error(try_open(dir, &err), &err, MS_ERR_IO, "one-1.safetensors", INDEX, "No such file");
    assert_int_equal(symlink(aside, path), 0); /* download caches link to their blobs */
    assert_int_equal(try_open(dir, &err), MS_OK);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_error(try_open(dir, &err), &err, MS_ERR_FORMAT, "one-1.safetensors", "regular file");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_error(try_open(dir, &err), &err, MS_ERR_FORMAT, "one-1.safetensors", "regular file");
    remove_dir(dir);
}

static void test_index_against_headers(void **state) {
    (void)state;
    char dir[PATH_BYTES];
    ms_error err = {0};
    make_pair(dir);
    edit_text(dir, INDEX, "\"t.c\"", "\"t.z\"");
    assert_error(try_open(dir, &err), &err, MS_ERR_FORMAT, "two-2.safetensors", "\"t.c\"", INDEX);
    remove_dir(dir);
    make_pair(dir);
    edit_text(dir, INDEX, "\"t.a\"", "\"t.e\":\"one-1.safetensors\",\"t.a\"");
    assert_error(try_open(dir, &err), &err, MS_ERR_FORMAT, "one-1.safetensors", "\"t.e\"", "found nothing");
    remove_dir(dir);
    /* the same name in two shards */
    make_pair(dir);
    edit_header(dir, "one-1.safetensors", "x.skip", "t.a");
    assert_error(try_open(dir, &err), &err, MS_ERR_FORMAT, "one-1.safetensors", "\"t.a\"", "two-2.safetensors",
                 "duplicate");
    remove_dir(dir);
    /* the same name twice in one header, and twice in the index */
    make_pair(dir);
    edit_header(dir, "one-1.safetensors", "x.skip", "t.b");
    assert_error(try_open(dir, &err), &err, MS_ERR_FORMAT, "one-1.safetensors", "each key once", "t.b");
    remove_dir(dir);
    make_pair(dir);
    edit_text(dir, INDEX, "\"t.c\"", "\"t.a\"");
    assert_error(try_open(dir, &err), &err, MS_ERR_FORMAT, INDEX, "each key once", "t.a");
    remove_dir(dir);
    /* a tensor that nobody needs is still checked where the shard is open */
    make_pair(dir);
    edit_header(dir, "one-1.safetensors", "[4,8]", "[0,4]");
    assert_error(try_open(dir, &err), &err, MS_ERR_FORMAT, "one-1.safetensors", "x.skip", "overlap");
    remove_dir(dir);
}

static void test_shard_names(void **state) {
    (void)state;
    static const char *const bad[] = {
        "\"../one-1.safetensors\"",
        "\"/etc/one-1.safetensors\"",
        "\"sub/one-1.safetensors\"",
        "\".one-1.safetensors\"",
        "\"a..safetensors\"",
        "\"\"",
        "\".safetensors\"",
        "\"config.json\"",
        "\"one\\u0000.safetensors\"",
        "7",
        "null",
        "[]",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char dir[PATH_BYTES];
        ms_error err = {0};
        make_pair(dir);
        edit_text(dir, INDEX, "\"one-1.safetensors\"", bad[i]);
        assert_error(try_open(dir, &err), &err, MS_ERR_FORMAT, INDEX, "\"t.b\"", "plain file name", bad[i]);
        remove_dir(dir);
    }
}

static void test_bad_index(void **state) {
    (void)state;
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"", INDEX},
        {"{", INDEX},
        {"[]", "weight_map"},
        {"{}", "weight_map"},
        {"{\"weight_map\":[]}", "weight_map"},
        {"{\"weight_map\":{\"\":\"a.safetensors\"}}", "tensor names"},
        {"{\"weight_map\":{\"t.\\u0000\":\"a.safetensors\"}}", "U+0000"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char dir[PATH_BYTES];
        ms_error err = {0};
        make_pair(dir);
        put_text(dir, INDEX, cases[i].text);
        assert_error(try_open(dir, &err), &err, MS_ERR_FORMAT, INDEX, cases[i].part);
        remove_dir(dir);
    }
    char dir[PATH_BYTES];
    ms_error err = {0};
    make_pair(dir);
    put_text(dir, INDEX, "{\"weight_map\":{}}"); /* nothing to read is for the lane to judge */
    assert_int_equal(try_open(dir, &err), MS_OK);
    remove_dir(dir);
}

static uint64_t digest_of(const char *dir) {
    ms_checkpoint *c = NULL;
    ms_error err = {0};
    assert_int_equal(ms_checkpoint_open(&c, dir, needed, NULL, &err), MS_OK);
    uint64_t h = ms_checkpoint_layout_digest(c);
    ms_checkpoint_close(c);
    return h;
}

static void test_digest(void **state) {
    (void)state;
    char dir[PATH_BYTES], again[PATH_BYTES];
    make_pair(dir);
    make_pair(again);
    uint64_t h = digest_of(dir);
    assert_true(h == digest_of(again)); /* the folder does not count */
    edit_header(again, "two-2.safetensors", "[3]", "[3,1]");
    assert_true(h != digest_of(again));
    remove_dir(again);
    make_pair(again);
    edit_header(again, "one-1.safetensors", "{\"t.b\"", "{ \"t.b\""); /* moves the payload by a byte */
    assert_true(h != digest_of(again));
    remove_dir(again);
    remove_dir(dir);
}

static void test_config(void **state) {
    (void)state;
    char dir[PATH_BYTES];
    ms_error err = {0};
    ms_json_doc *doc = NULL;
    char *text = NULL;
    make_dir(dir);
    assert_error(ms_checkpoint_read_config(dir, &doc, &text, &err), &err, MS_ERR_IO, "config.json");
    put_text(dir, "config.json", "{\"a\":1,}");
    assert_error(ms_checkpoint_read_config(dir, &doc, &text, &err), &err, MS_ERR_FORMAT, "config.json", "line 1");
    put_text(dir, "config.json", "{\"a\":1,\"a\":2}");
    assert_error(ms_checkpoint_read_config(dir, &doc, &text, &err), &err, MS_ERR_FORMAT, "config.json",
                 "each key once");
    char *big = malloc(1000001);
    assert_non_null(big);
    memset(big, ' ', 1000001);
    big[0] = '1';
    put_bytes(dir, "config.json", big, 1000001);
    assert_error(ms_checkpoint_read_config(dir, &doc, &text, &err), &err, MS_ERR_FORMAT, "config.json", "1000000");
    put_bytes(dir, "config.json", big, 1000000);
    free(big);
    assert_int_equal(ms_checkpoint_read_config(dir, &doc, &text, &err), MS_OK);
    assert_int_equal(ms_json_root(doc)->type, MS_JSON_NUMBER);
    ms_json_free(doc);
    free(text);
    remove_dir(dir);
}

/* ------------------------------------------------------------------ experts */

static const ms_expert_naming naming = {
    .prefix_format = "t.%u.e.%u.",
    .suffix = {"w1.p", "w1.s", "w2.p", "w2.s", "w3.p", "w3.s"},
    .shape = {{2, 2}, {2, 1}, {3, 2}, {3, 1}, {2, 2}, {2, 1}},
};

/* Layer 5, experts 0 and 1: 21 bytes each. */
#define EXPERT(e, a, b, c, d, f, g, h)                                                                                 \
    ENTRY("t.5.e." e ".w1.p", "U8", "2,2", a, b)                                                                       \
    "," ENTRY("t.5.e." e ".w1.s", "U8", "2,1", b, c) "," ENTRY("t.5.e." e ".w2.p", "U8", "3,2", c, d) "," ENTRY(       \
        "t.5.e." e ".w2.s", "U8", "3,1", d, f) "," ENTRY("t.5.e." e ".w3.p", "U8", "2,2", f,                           \
                                                         g) "," ENTRY("t.5.e." e ".w3.s", "U8", "2,1", g, h)

static void make_experts(char dir[PATH_BYTES]) {
    make_dir(dir);
    put_shard(dir, "model.safetensors",
              "{" EXPERT("0", "0", "4", "6", "12", "15", "19", "21") "," EXPERT("1", "21", "25", "27", "33", "36", "40",
                                                                                "42") "}",
              42);
}

static ms_status build(const char *dir, uint32_t experts, ms_expert_table *t, ms_error *err) {
    ms_checkpoint *c = NULL;
    assert_int_equal(ms_checkpoint_open(&c, dir, needed, NULL, err), MS_OK);
    const uint32_t layers[] = {5};
    ms_status status = ms_expert_table_build(t, c, &naming, layers, 1, experts, err);
    ms_checkpoint_close(c);
    return status;
}

static void test_experts(void **state) {
    (void)state;
    char dir[PATH_BYTES];
    ms_error err = {0};
    ms_expert_table t = {0};
    make_experts(dir);
    assert_int_equal(build(dir, 2, &t, &err), MS_OK);
    assert_int_equal(t.expert_bytes, 21);
    assert_int_equal(t.layers[0], 5);
    assert_int_equal(t.extents[1].offset - t.extents[0].offset, 21);
    ms_expert_table_free(&t);
    assert_error(build(dir, 3, &t, &err), &err, MS_ERR_FORMAT, "layer 5, expert 2", "missing", "t.5.e.2.w1.p");
    remove_dir(dir);

    make_experts(dir); /* same sizes, two parts swapped on disk */
    edit_header(dir, "model.safetensors", "w1.p", "w3.q");
    edit_header(dir, "model.safetensors", "w3.p", "w1.p");
    edit_header(dir, "model.safetensors", "w3.q", "w3.p");
    assert_error(build(dir, 2, &t, &err), &err, MS_ERR_FORMAT, "layer 5, expert 0", "t.5.e.0.w1.s", "without a gap");
    remove_dir(dir);

    make_experts(dir);
    edit_header(dir, "model.safetensors", "\"U8\",\"shape\":[3,2]", "\"I8\",\"shape\":[3,2]");
    assert_error(build(dir, 2, &t, &err), &err, MS_ERR_FORMAT, "layer 5, expert 0", "w2.p", "expected U8", "found I8");
    remove_dir(dir);

    make_experts(dir);
    edit_header(dir, "model.safetensors", "[3,1]", "[1,3]");
    assert_error(build(dir, 2, &t, &err), &err, MS_ERR_FORMAT, "layer 5, expert 0", "w2.s", "[3, 1]", "[1, 3]");
    remove_dir(dir);
}

static void test_expert_across_shards(void **state) {
    (void)state;
    char dir[PATH_BYTES];
    ms_error err = {0};
    ms_expert_table t = {0};
    make_dir(dir);
    put_shard(
        dir, "a.safetensors",
        "{" ENTRY("t.5.e.0.w1.p", "U8", "2,2", "0", "4") "," ENTRY("t.5.e.0.w1.s", "U8", "2,1", "4", "6") "," ENTRY(
            "t.5.e.0.w2.p", "U8", "3,2", "6", "12") "," ENTRY("t.5.e.0.w2.s", "U8", "3,1", "12", "15") "}",
        15);
    put_shard(dir, "b.safetensors",
              "{" ENTRY("t.5.e.0.w3.p", "U8", "2,2", "0", "4") "," ENTRY("t.5.e.0.w3.s", "U8", "2,1", "4", "6") "}", 6);
    put_text(dir, INDEX,
             "{\"weight_map\":{\"t.5.e.0.w1.p\":\"a.safetensors\",\"t.5.e.0.w1.s\":\"a.safetensors\","
             "\"t.5.e.0.w2.p\":\"a.safetensors\",\"t.5.e.0.w2.s\":\"a.safetensors\",\"t.5.e.0.w3.p\":\"b.safetensors\","
             "\"t.5.e.0.w3.s\":\"b.safetensors\"}}");
    assert_error(build(dir, 1, &t, &err), &err, MS_ERR_FORMAT, "layer 5, expert 0", "w3.p", "a.safetensors",
                 "b.safetensors");
    remove_dir(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open),        cmocka_unit_test(test_read),
        cmocka_unit_test(test_no_files),    cmocka_unit_test(test_skipped_never_opened),
        cmocka_unit_test(test_shard_kinds), cmocka_unit_test(test_index_against_headers),
        cmocka_unit_test(test_shard_names), cmocka_unit_test(test_bad_index),
        cmocka_unit_test(test_digest),      cmocka_unit_test(test_config),
        cmocka_unit_test(test_experts),     cmocka_unit_test(test_expert_across_shards),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
