/* `moonshine trace`, `bench replay` and tools/analyze_decode_cache.py on k3-nano: a recorded trace passes the
 * analyzer's gate, a changed one does not, and what is printed for made up routes is what can be worked out by hand. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli_run.h"
#include "io/file.h"

#define ARGS(...) ((const char *const[]){__VA_ARGS__, NULL})
static const char analyzer[] = "../tools/analyze_decode_cache.py"; /* beside the folder of the programs */

static char dir[64];

static int make_folder(void **state) {
    (void)state;
    cli_make_folder(dir);
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    cli_remove_folder(dir);
    return 0;
}

static void expect(const char *program, const char *const *args, int code, const char *text) {
    cli c;
    int got = cli_run(&c, program, args, "");
    if (got != code) fail_msg("exit code %d instead of %d: %s%s", got, code, c.out_text.data, c.err_text.data);
    if (!strstr(code ? c.err_text.data : c.out_text.data, text))
        fail_msg("expected \"%s\" in: %s%s", text, c.out_text.data, c.err_text.data);
    cli_free(&c);
}

static void read_file(char **text, const char *path) {
    size_t len;
    ms_error err;
    if (ms_file_read_all(path, 1 << 20, text, &len, &err) != MS_OK) fail_msg("%s", err.message);
}

#define TRACE "trace", CLI_MODEL, "--threads", "1", "--context", "64"

static void recorded_trace_passes(void **state) {
    (void)state;
    char path[128];
    (void)snprintf(path, sizeof path, "%s", cli_path(dir, "routes.jsonl"));
    expect("moonshine", ARGS(TRACE, "--experts", "6", "--ids", "5,6,7", "--generate", "20", "--out", path), 0,
           "23 tokens");
    expect("moonshine", ARGS(TRACE, "--ids", "5", "--out", path), 1, "routes.jsonl");
    expect("moonshine", ARGS(TRACE, "--ids", "5"), 2, "--out");
    expect("moonshine", ARGS(TRACE, "--out", cli_path(dir, "other.jsonl")), 2, "--ids");
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    expect(analyzer, ARGS("report", dir, "--observed-capacity", "6"), 0,
           "passed the gate\n23 tokens, 8 layers, 4 of 32 experts");
    expect(analyzer, ARGS("report", dir, "--observed-capacity", "7"), 1, "made with 6 slots");
    expect(analyzer, ARGS("report", dir, "--observed-capacity", "6", "--capacities", "6,12"), 1,
           "--fresh-empty-source");
    expect(analyzer, ARGS("report", dir, "--observed-capacity", "6", "--capacities", "12", "--fresh-empty-source"), 1,
           "must contain the observed capacity 6");

    char out[128];
    (void)snprintf(out, sizeof out, "%s", cli_path(dir, "out"));
    expect(analyzer,
           ARGS("report", dir, "--observed-capacity", "6", "--capacities", "6,12,32", "--fresh-empty-source",
                "--pin-counts", "0,2", "--total-slots", "48", "--marginal-range", "4:8", "--out", out),
           0, "belady");
    assert_int_equal(stat(out, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    char *json = NULL;
    read_file(&json, cli_path(out, "report.json"));
    assert_null(strstr(json, dir)); /* base names only */
    assert_non_null(strstr(json, "\"trusted\": true"));
    free(json);
    expect(analyzer, ARGS("report", dir, "--observed-capacity", "6", "--out", out), 1, "File exists");
    unlink(cli_path(out, "report.json"));
    unlink(cli_path(out, "report.csv"));
    unlink(cli_path(out, "report.txt"));
    rmdir(out);
}

static bool write_damaged(const char *path, const char *good, const char *from, const char *to) {
    const char *at = strstr(good, from);
    ms_text t = {0};
    if (!at) return false;
    ms_text_append(&t, good, (size_t)(at - good));
    ms_text_puts(&t, to);
    ms_text_puts(&t, at + strlen(from));
    assert_false(t.failed);
    cli_write_file(path, t.data);
    ms_text_free(&t);
    return true;
}

/* Every kind of damage to a good trace is found. */
static void damaged_traces_are_refused(void **state) {
    (void)state;
    const char *path = cli_path(dir, "routes.jsonl"), *bad = cli_path(dir, "bad.jsonl");
    unlink(path);
    expect("moonshine", ARGS(TRACE, "--experts", "6", "--ids", "5,6,7", "--generate", "25", "--out", path), 0,
           "28 tokens");
    char *good = NULL;
    read_file(&good, path);
    size_t len = strlen(good);
    static const struct {
        const char *from, *to, *says;
    } damages[] = {
        {"\"slots\":6", "\"slots\":8", "made with 8 slots"},
        {"\"hits\":[0,0,", "\"hits\":[0,1,", "the sum of the lines"},
        {"\"tokens\":28", "\"tokens\":29", "expected 28 tokens"},
        {"\"version\":1", "\"version\":2", "version 1"},
        {"{\"end\"", "{\"bnd\"", "expected \"layers\""},
        {"[[", "[[31,", "expected 4 experts"},
    };
    for (size_t i = 0; i < sizeof damages / sizeof damages[0]; i++) {
        if (!write_damaged(bad, good, damages[i].from, damages[i].to)) fail_msg("no %s in the trace", damages[i].from);
        expect(analyzer, ARGS("report", dir, "--capture", "bad.jsonl", "--observed-capacity", "6"), 1, damages[i].says);
    }
    /* hits that move to the next layer; ids ascend, so these numbers can only be masks */
    assert_true(write_damaged(bad, good, "1,0", "0,1") || write_damaged(bad, good, "2,0", "0,2") ||
                write_damaged(bad, good, "4,0", "0,4") || write_damaged(bad, good, "8,0", "0,8"));
    expect(analyzer, ARGS("report", dir, "--capture", "bad.jsonl", "--observed-capacity", "6"), 1, "cannot be trusted");
    good[len / 2] = '\0';
    cli_write_file(bad, good);
    expect(analyzer, ARGS("report", dir, "--capture", "bad.jsonl", "--observed-capacity", "6"), 1, "bad.jsonl");
    free(good);
}

/* Two experts alternate in one slot each way: A A B B A A B B.  One slot: every second use hits. */
static void figures_by_hand(void **state) {
    (void)state;
    char path[128];
    (void)snprintf(path, sizeof path, "%s", cli_path(dir, "bare.jsonl"));
    cli_write_file(path, "{\"layers\":[[0]]}\n{\"layers\":[[0]]}\n{\"layers\":[[1]]}\n{\"layers\":[[1]]}\n"
                         "{\"layers\":[[0]]}\n{\"layers\":[[0]]}\n{\"layers\":[[2]]}\n{\"layers\":[[0]]}\n");
    char out[128];
    (void)snprintf(out, sizeof out, "%s", cli_path(dir, "hand"));
    expect(analyzer,
           ARGS("report", "--routes", path, "--capacities", "1,2,3", "--total-slots", "2", "--max-layer-slots", "2",
                "--min-layer-slots", "2", "--out", out),
           0, "nothing vouches");
    char *csv = NULL;
    read_file(&csv, cli_path(out, "report.csv"));
    static const char *const rows[] = {
        "lru,0,1,3,5,4,",  "lru,0,2,5,3,1,",    "lru,0,3,5,3,0,",    "heat,0,1,3,5,4,", "heat,0,2,5,3,1,",
        "heat,0,3,5,3,0,", "belady,1,1,4,3,2,", "belady,1,2,5,2,0,", "lfu,0,2,5,3,1,",  "s3fifo,0,3,5,3,0,",
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (!strstr(csv, rows[i])) fail_msg("expected \"%s\" in:\n%s", rows[i], csv);
    free(csv);
    unlink(cli_path(out, "report.json"));
    unlink(cli_path(out, "report.csv"));
    unlink(cli_path(out, "report.txt"));
    rmdir(out);
    cli_write_file(path, "{\"layers\":[[0,0]]}\n");
    expect(analyzer, ARGS("report", "--routes", path), 1, "named twice");
    cli_write_file(path, "");
    expect(analyzer, ARGS("report", "--routes", path), 1, "found none");
    expect(analyzer, ARGS("report"), 1, "either RUN_DIR or --routes");
    const char *made = cli_path(dir, "made.jsonl");
    expect(analyzer, ARGS("synth", "--out", made, "--layers", "2", "--experts", "20", "--top-k", "3", "--tokens", "40"),
           0, "");
    expect(analyzer, ARGS("report", "--routes", made, "--capacities", "3,10,20"), 0,
           "40 tokens, 2 layers, 3 of 20 experts");
}

#define REPLAY "bench", "replay", CLI_MODEL, "--probe", "256K", "--repeat", "2", "--threads", "1"

static void replays(void **state) {
    (void)state;
    const char *path = cli_path(dir, "replay.jsonl"), *csv = cli_path(dir, "replay.csv");
    expect("moonshine", ARGS(TRACE, "--experts", "6", "--ids", "9,8", "--generate", "10", "--out", path), 0,
           "12 tokens");
    char *trace = NULL, *text = NULL, want[64];
    read_file(&trace, path);
    unsigned long long hits = strtoull(strstr(strstr(trace, "\"end\""), "\"hits\":") + 7, NULL, 10);
    expect("moonshine", ARGS(REPLAY, "--trace", path, "--experts", "6", "--depth", "4", "--csv", csv), 0,
           "12 tokens, 8 layers, 4 experts each; depth 4;");
    read_file(&text, csv); /* the same cache has the same hits */
    (void)snprintf(want, sizeof want, "\n12,8,4,4,%.6g,", (double)hits / (12 * 8 * 4));
    if (!strstr(text, want)) fail_msg("expected \"%s\" in %s", want, text);
    free(text);
    expect("moonshine", ARGS(REPLAY, "--tokens", "5", "--experts", "4", "--guess", "0.9", "--busy", "50", "--install"),
           0, "guessed reads");
    expect("moonshine", ARGS(REPLAY, "--tokens", "5", "--reuse", "1", "--experts", "32"), 0, "80.0 % hits");
    expect("moonshine", ARGS(REPLAY, "--tokens", "3", "--no-direct", "--no-uring"), 0, "3 tokens");
    cli_write_file(path, "{\"layers\":[[1,2],[3,400]]}\n");
    expect("moonshine", ARGS(REPLAY, "--trace", path), 1, "line 1: expected an expert id below 32, found 400");
    cli_write_file(path, "{\"layers\":[[1,2],[3,1]]}\n{\"layers\":[[1,2]]}\n");
    expect("moonshine", ARGS(REPLAY, "--trace", path), 1, "line 2: expected as many layers");
    cli_write_file(path, "{\"layers\":[[1,2],[3,3]]}\n");
    expect("moonshine", ARGS(REPLAY, "--trace", path), 1, "named twice");
    cli_write_file(path, "[]\n");
    expect("moonshine", ARGS(REPLAY, "--trace", path), 1, "line 1: expected an object");
    cli_write_file(path, "{\"layers\":[[1]],\n");
    expect("moonshine", ARGS(REPLAY, "--trace", path), 1, "replay.jsonl");
    free(trace);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(recorded_trace_passes, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(damaged_traces_are_refused, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(figures_by_hand, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(replays, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
