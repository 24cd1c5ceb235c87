/* The parts of the server alone: paths, keys, log lines, remembered calls, marks and what a prompt follows. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/calls.h"
#include "server/http_path.h"
#include "server/job.h"
#include "server/keys.h"
#include "server/log.h"
#include "server/metrics.h"
#include "server/retained.h"

/* ------------------------------------------------------------------ paths */

static void paths(void **state) {
    (void)state;
    static const struct {
        const char *raw, *path;
    } cases[] = {{"/", "/"},
                 {"/v1/models/", "/v1/models"},
                 {"/v1/models?x=/../", "/v1/models"},
                 {"/a%2Fb", "/a/b"},
                 {"/%25", "/%"},
                 {"/..a/b..", "/..a/b.."},
                 {"", NULL},
                 {"x", NULL},
                 {"/%", NULL},
                 {"/%4", NULL},
                 {"/%4g", NULL},
                 {"/%00", NULL},
                 {"/%7f", NULL},
                 {"/\x01", NULL},
                 {"/..", NULL},
                 {"/a/../b", NULL},
                 {"/%2e%2e/b", NULL},
                 {"/%ff", NULL},
                 {"/%C3%A4", "/\xC3\xA4"}};
    char out[MS_PATH_BYTES];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bool good = ms_path_decode(cases[i].raw, out);
        if (good != (cases[i].path != NULL)) fail_msg("%s", cases[i].raw);
        if (good) assert_string_equal(out, cases[i].path);
    }
    char large[MS_PATH_BYTES + 8];
    memset(large, 'a', sizeof large);
    large[0] = '/';
    large[MS_PATH_BYTES - 1] = 0;
    assert_true(ms_path_decode(large, out));
    large[MS_PATH_BYTES - 1] = 'a';
    large[MS_PATH_BYTES] = 0;
    assert_false(ms_path_decode(large, out));
}

static void targets(void **state) {
    (void)state;
    static const struct {
        const char *raw, *host, *path;
    } cases[] = {{"/v1/models", "", "/v1/models"},
                 {"//host/path", "", "//host/path"},
                 {"http://host/v1/models", "host", "/v1/models"},
                 {"HTTPS://Host.example:8443/", "Host.example:8443", "/"},
                 {"http://[::1]:80/a?b", "[::1]:80", "/a?b"},
                 {"http://host", "host", "/"},
                 {"http://host?q", "host", "/"},
                 {"http:///path", NULL, NULL},
                 {"http://", NULL, NULL},
                 {"http:/host/", NULL, NULL},
                 {"http://user@host/", NULL, NULL},
                 {"http://ho st/", NULL, NULL},
                 {"http://host#x", NULL, NULL},
                 {"http://ho\\st/", NULL, NULL},
                 {"http://h\xc3\xa4/", NULL, NULL},
                 {"ftp://host/", NULL, NULL},
                 {"host:80", NULL, NULL},
                 {"*", NULL, NULL},
                 {"", NULL, NULL}};
    char host[MS_HOST_BYTES], large[MS_HOST_BYTES + 16];
    const char *path;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bool good = ms_target_split(cases[i].raw, host, &path);
        if (good != (cases[i].host != NULL)) fail_msg("%s", cases[i].raw);
        if (!good) continue;
        assert_string_equal(host, cases[i].host);
        assert_string_equal(path, cases[i].path);
    }
    for (int i = 0; i < 2; i++) { /* as long as fits, and one more */
        int n = snprintf(large, sizeof large, "http://%0*d/x", MS_HOST_BYTES - 1 + i, 0);
        assert_int_equal(n, MS_HOST_BYTES + 8 + i);
        assert_int_equal(ms_target_split(large, host, &path), i == 0);
    }
}

/* ------------------------------------------------------------------ keys */

static void write_file(const char *path, const char *text, mode_t mode) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    assert_int_equal(fchmod(fd, mode), 0);
    (void)close(fd);
}

static void keys(void **state) {
    (void)state;
    char path[] = "/tmp/moonshine-keys-XXXXXX";
    int fd = mkstemp(path);
    ms_keys k = {0};
    ms_error err;
    assert_true(fd >= 0);
    (void)close(fd);
    assert_int_equal(ms_keys_add(&k, "", 0, &err), MS_OK);
    assert_int_equal(k.count, 0);
    assert_false(ms_keys_match(&k, "", 0));
    write_file(path, "# comment\n\n  first key \r\nsecond\nlast", 0600);
    assert_int_equal(ms_keys_add_file(&k, path, &err), MS_OK);
    assert_int_equal(k.count, 3);
    assert_true(ms_keys_match(&k, "first key", 9));
    assert_true(ms_keys_match(&k, "second", 6));
    assert_true(ms_keys_match(&k, "last", 4));
    assert_false(ms_keys_match(&k, "las", 3));
    assert_false(ms_keys_match(&k, "", 0));
    assert_false(ms_keys_match(&k, "# comment", 9));
    write_file(path, "secret-in-file\n", 0640);
    assert_int_equal(ms_keys_add_file(&k, path, &err), MS_ERR_USAGE);
    assert_null(strstr(err.message, "secret"));
    write_file(path, "# nothing\n", 0600);
    assert_int_equal(ms_keys_add_file(&k, path, &err), MS_ERR_USAGE);
    (void)unlink(path);
    assert_int_equal(ms_keys_add_file(&k, path, &err), MS_ERR_USAGE);
    assert_int_equal(ms_keys_add_file(&k, "/", &err), MS_ERR_FORMAT);
    ms_keys_free(&k);
}

/* ------------------------------------------------------------------ log */

static void read_back(FILE *f, char *out, size_t size) {
    ssize_t n = pread(fileno(f), out, size - 1, 0);
    assert_true(n >= 0);
    out[n] = 0;
}

static void log_lines(void **state) {
    (void)state;
    char text[16384];
    ms_log log;
    ms_log_line l;
    FILE *f = tmpfile();
    ms_log_init(&log, fileno(f), false);
    ms_log_begin(&l, &log, MS_LOG_WARN, "an.event", "id7");
    ms_log_word(&l, "word", "a\nb \"c\"");
    ms_log_word(&l, "absent", NULL);
    ms_log_u64(&l, "count", 42);
    ms_log_real(&l, "time", 1.5);
    ms_log_yes(&l, "stream", true);
    ms_log_end(&l);
    read_back(f, text, sizeof text);
    assert_non_null(
        strstr(text, "Z WARN  an.event                  id=id7 word=\"a b 'c'\" count=42 time=1.500 stream=yes\n"));
    assert_int_equal(text[10], 'T');
    assert_int_equal(text[23], 'Z');
    (void)fclose(f);
    f = tmpfile();
    ms_log_init(&log, fileno(f), true);
    ms_log_begin(&l, &log, MS_LOG_INFO, "large", NULL);
    for (int i = 0; i < 2000; i++) ms_log_u64(&l, "key", 123456);
    ms_log_end(&l);
    read_back(f, text, sizeof text);
    assert_true(strlen(text) <= MS_LOG_LINE_BYTES);
    assert_string_equal(text + strlen(text) - 23, ",\"log_truncated\":true}\n");
    (void)fclose(f);
    /* A reader that does not read: lines are dropped, nobody waits. */
    int pipes[2];
    assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
    ms_log_init(&log, pipes[1], false);
    for (int i = 0; i < 5000; i++) {
        ms_log_begin(&l, &log, MS_LOG_INFO, "noise", NULL);
        ms_log_end(&l);
    }
    assert_true(atomic_load(&log.dropped) > 0);
    (void)close(pipes[0]);
    (void)close(pipes[1]);
}

/* ------------------------------------------------------------------ calls */

static bool same(const char *a, const char *b) {
    ms_json_doc *x, *y;
    assert_int_equal(ms_json_parse(&x, a, strlen(a), "a", NULL, NULL), MS_OK);
    assert_int_equal(ms_json_parse(&y, b, strlen(b), "b", NULL, NULL), MS_OK);
    bool equal = ms_json_same(ms_json_root(x), ms_json_root(y));
    ms_json_free(x);
    ms_json_free(y);
    return equal;
}

static void json_equality(void **state) {
    (void)state;
    assert_true(same("{\"a\":1,\"b\":[1.0,\"x\"]}", "{ \"b\": [1, \"x\"], \"a\": 1e0 }"));
    assert_true(same("[]", "[ ]"));
    assert_true(same("123456789012345678901234567890", "123456789012345678901234567890"));
    assert_false(same("9007199254740993", "9007199254740992")); /* equal only as doubles */
    assert_false(same("[1,2]", "[2,1]"));
    assert_false(same("[1]", "[1,1]"));
    assert_false(same("{\"a\":1}", "{\"a\":1,\"b\":2}"));
    assert_false(same("{\"a\":null}", "{\"b\":null}"));
    assert_false(same("true", "false"));
    assert_false(same("\"1\"", "1"));
}

static void apply(ms_call_memory *m, const char *request, const char *expected) {
    ms_json_doc *doc;
    ms_text out = {0};
    assert_int_equal(ms_json_parse(&doc, request, strlen(request), "request", NULL, NULL), MS_OK);
    bool changed = ms_call_memory_apply(m, ms_json_root(doc), &out);
    if (changed != (expected != NULL)) fail_msg("%s", request);
    if (changed) assert_string_equal(out.data, expected);
    ms_text_free(&out);
    ms_json_free(doc);
}

#define REQUEST(id, args)                                                                                              \
    "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"" id                                             \
    "\",\"function\":{\"name\":\"f\",\"arguments\":" args "}}]}]}"

static void remembered_calls(void **state) {
    (void)state;
    ms_call_memory *m = ms_call_memory_create(2, 64);
    assert_non_null(m);
    ms_call_memory_add(m, "one", "{\"a\":1.50}", 10);
    apply(m, REQUEST("one", "\"{ \\\"a\\\" : 1.5 }\""), REQUEST("one", "\"{\\\"a\\\":1.50}\""));
    apply(m, REQUEST("one", "{\"a\":1.5}"), REQUEST("one", "\"{\\\"a\\\":1.50}\""));
    apply(m, REQUEST("one", "\"{\\\"a\\\":1.50}\""), NULL); /* as it was */
    apply(m, REQUEST("one", "\"{\\\"a\\\":2}\""), NULL);
    apply(m, REQUEST("one", "\"not json\""), NULL);
    apply(m, REQUEST("two", "\"{ \\\"a\\\" : 1.5 }\""), NULL);
    apply(m, "{\"messages\":7}", NULL);
    ms_call_memory_add(m, "two", "{}", 2);
    ms_call_memory_add(m, "three", "{}", 2);
    apply(m, REQUEST("one", "\"{ \\\"a\\\" : 1.5 }\""), NULL); /* the oldest went */
    apply(m, REQUEST("three", "\"{ }\""), REQUEST("three", "\"{}\""));
    ms_call_memory_destroy(m);
}

/* ------------------------------------------------------------------ marks */

static void marks(void **state) {
    (void)state;
    ms_marks m = {0}, back = {0};
    ms_text t = {0};
    assert_int_equal(ms_marks_add(&m, true, 3, 4, NULL), MS_OK);
    assert_int_equal(ms_marks_add(&m, false, 10, 5, NULL), MS_OK);
    ms_marks_write(&m, &t);
    assert_string_equal(t.data, "h3+4 g10+5 ");
    assert_true(ms_marks_read(&back, t.data, t.len, 15));
    assert_int_equal(back.count, 2);
    assert_false(back.items[1].hidden);
    static const char *const bad[] = {
        "x1+2 ", "h1+2", "h1 ", "h+1 ", "h1+ ", "h1+0 ", "h5+5 g2+1 ", "h1+99 ", "h99999999999999999999+1 "};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        ms_marks x = {0};
        if (ms_marks_read(&x, bad[i], strlen(bad[i]), 15)) fail_msg("%s", bad[i]);
        free(x.items);
    }
    ms_marks_cut(&m, 12);
    assert_int_equal(m.items[1].count, 2);
    ms_marks_cut(&m, 10);
    assert_int_equal(m.count, 1);
    ms_marks_cut(&m, 0);
    assert_int_equal(m.count, 0);
    free(m.items);
    free(back.items);
    ms_text_free(&t);
}

/* A candidate whose segments are the given texts; "<|" begins a control name. */
static void make(ms_candidate *c, const ms_tokenizer *t, const char *const *texts, size_t count) {
    *c = (ms_candidate){.first = calloc(count + 1, sizeof *c->first)};
    for (size_t i = 0; i < count; i++) {
        const ms_segments one = {
            .items = &(ms_segment){strncmp(texts[i], "<|", 2) == 0, (char *)(uintptr_t)texts[i], strlen(texts[i])},
            .count = 1};
        c->first[i] = c->ids.count;
        assert_int_equal(ms_segments_encode(&one, t, &c->ids, NULL), MS_OK);
        assert_int_equal(ms_segments_push(&c->segments, one.items[0].control, texts[i], strlen(texts[i]), NULL), MS_OK);
    }
    c->first[count] = c->ids.count;
}

static void following(void **state) {
    (void)state;
    ms_text_model model;
    ms_error err;
    if (ms_text_model_open(&model, "models/k3-nano", &err) != MS_OK) fail_msg("%s", err.message);
    const ms_tokenizer *t = model.tokenizer;
    static const char *const now[] = {"<|open|>", "question", "<|sep|>", "the answer", "<|close|>", "next"};
    ms_candidate c, hidden;
    make(&c, t, now, 6);
    /* What the timeline holds: the question, something hidden, the answer letter by letter, its end. */
    static const char *const secret[] = {"psst"};
    make(&hidden, t, secret, 1);
    ms_ids ids = {0};
    ms_marks m = {0};
    size_t question = c.first[3], start, end;
    (void)ms_ids_append(&ids, c.ids.data, question, NULL);
    (void)ms_marks_add(&m, true, ids.count, hidden.ids.count, NULL);
    (void)ms_ids_append(&ids, hidden.ids.data, hidden.ids.count, NULL);
    start = ids.count;
    for (const char *s = "the answer"; *s; s++) (void)ms_tokenizer_encode(t, s, 1, false, &ids, NULL);
    (void)ms_marks_add(&m, false, start, ids.count - start, NULL);
    end = ids.count;
    (void)ms_ids_append(&ids, c.ids.data + c.first[4], 1, NULL);
    ms_follow at[] = {{question, 0}, {start - hidden.ids.count + 1, 0}, {start, 0}, {start + 1, 0}, {end, 0},
                      {end + 1, 0}};
    assert_int_equal(ms_follow_ids(&c, t, ids.data, ids.count, &m, at, 6), ids.count);
    assert_int_equal(at[0].used, question);
    if (hidden.ids.count > 1) assert_true(at[1].used == SIZE_MAX);
    assert_int_equal(at[2].used, question);
    assert_true(at[3].used == SIZE_MAX); /* inside a segment of the prompt */
    assert_int_equal(at[4].used, c.first[4]);
    assert_int_equal(at[5].used, c.first[5]);
    /* Without the mark the hidden ids are a difference. */
    m.count = 0;
    assert_int_equal(ms_follow_ids(&c, t, ids.data, ids.count, &m, at, 0), question);
    ms_ids_free(&ids);
    free(m.items);
    ms_candidate_free(&c);
    ms_candidate_free(&hidden);
    ms_text_model_close(&model);
}

/* ------------------------------------------------------------------ metrics */

static void histograms(void **state) {
    (void)state;
    static ms_metrics m;
    ms_text t = {0};
    ms_histogram_add(&m.first_token, 0.003);
    ms_histogram_add(&m.first_token, 0.3);
    ms_histogram_add(&m.first_token, 5000);
    ms_metrics_write(&m, &t);
    assert_false(t.failed);
    assert_non_null(strstr(t.data, "moonshine_time_to_first_token_seconds_bucket{le=\"0.005\"} 1\n"));
    assert_non_null(strstr(t.data, "moonshine_time_to_first_token_seconds_bucket{le=\"0.5\"} 2\n"));
    assert_non_null(strstr(t.data, "moonshine_time_to_first_token_seconds_bucket{le=\"600\"} 2\n"));
    assert_non_null(strstr(t.data, "moonshine_time_to_first_token_seconds_bucket{le=\"+Inf\"} 3\n"));
    assert_non_null(strstr(t.data, "moonshine_time_to_first_token_seconds_count 3\n"));
    ms_text_free(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(paths),     cmocka_unit_test(targets),       cmocka_unit_test(keys),
        cmocka_unit_test(log_lines), cmocka_unit_test(json_equality), cmocka_unit_test(remembered_calls),
        cmocka_unit_test(marks),     cmocka_unit_test(following),     cmocka_unit_test(histograms),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
