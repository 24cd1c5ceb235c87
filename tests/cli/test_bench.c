/* `moonshine bench disk`, `decode` and `prefill` on k3-nano with little to do: exit codes, tables, CSV files, figures
 * that can be; refused arguments.  How fast anything is, is not tested. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli_run.h"
#include "io/file.h"

enum { MAX_COLUMNS = 32, MAX_ROWS = 64, MAX_BYTES = 1 << 20, EXPERTS = 32 };
#define ARGS(...) ((const char *const[]){"bench", __VA_ARGS__, NULL})
#define QUICK     "--probe", "256K", "--threads", "2", "--context", "64"

typedef struct table {
    char *text;
    char *head[MAX_COLUMNS];
    char *cell[MAX_ROWS][MAX_COLUMNS];
    size_t columns, rows;
} table;

static size_t split(char *line, char *out[MAX_COLUMNS]) {
    size_t n = 0;
    for (char *p = line; p; n++) {
        assert_true(n < MAX_COLUMNS);
        out[n] = p;
        p = strchr(p, ',');
        if (p) *p++ = '\0';
    }
    return n;
}

/* Every line has as many cells as the head, and the last ends with a newline. */
static void read_table(table *t, const char *path) {
    size_t len;
    *t = (table){0};
    assert_int_equal(ms_file_read_all(path, MAX_BYTES, &t->text, &len, NULL), MS_OK);
    assert_true(len > 0 && t->text[len - 1] == '\n');
    for (char *line = t->text, *end; *line; line = end + 1) {
        end = strchr(line, '\n');
        assert_non_null(end);
        *end = '\0';
        if (!t->columns) {
            t->columns = split(line, t->head);
            continue;
        }
        assert_true(t->rows < MAX_ROWS);
        size_t n = split(line, t->cell[t->rows++]);
        if (n != t->columns) fail_msg("row %zu: %zu cells instead of %zu", t->rows, n, t->columns);
    }
    assert_true(t->rows > 0);
}

static size_t count_of(const char *text, const char *part) {
    size_t n = 0;
    for (; (text = strstr(text, part)); text++) n++;
    return n;
}

/* Every tag is closed, every point is in the picture. */
static void check_plot(const char *path, size_t points, size_t least_series) {
    char *text = NULL;
    size_t len;
    assert_int_equal(ms_file_read_all(path, MAX_BYTES, &text, &len, NULL), MS_OK);
    assert_int_equal(strncmp(text, "<svg ", 5), 0);
    assert_string_equal(text + len - 7, "</svg>\n");
    assert_int_equal(count_of(text, "<text"), count_of(text, "</text>"));
    assert_null(strstr(text, "nan"));
    assert_null(strstr(text, "inf"));
    size_t circles = 0;
    for (const char *at = text; (at = strstr(at, "<circle cx=\"")); at++, circles++) {
        double x = strtod(at + 12, NULL), y = strtod(strstr(at, "cy=\"") + 4, NULL);
        assert_true(x >= 0 && x <= 800 && y >= 0 && y <= 420);
    }
    assert_int_equal(circles % points, 0);
    assert_true(circles >= points * least_series);
    free(text);
}

static const char *cell(const table *t, size_t row, const char *column) {
    for (size_t i = 0; i < t->columns; i++)
        if (!strcmp(t->head[i], column)) return t->cell[row][i];
    fail_msg("no column %s", column);
    return NULL;
}

static double number(const table *t, size_t row, const char *column) {
    const char *text = cell(t, row, column);
    char *end;
    double v = strtod(text, &end);
    if (end == text || *end || !isfinite(v)) fail_msg("row %zu, %s: no number: '%s'", row, column, text);
    return v;
}

static void positive(const table *t, size_t row, const char *column) {
    double v = number(t, row, column);
    if (!(v > 0)) fail_msg("row %zu, %s: expected more than 0, found %g", row, column, v);
}

static void in_unit(const table *t, size_t row, const char *column) {
    double v = number(t, row, column);
    if (!(v >= 0 && v <= 1)) fail_msg("row %zu, %s: expected 0 to 1, found %g", row, column, v);
}

static void run(int code, const char *out, const char *err, const char *const *args) {
    cli c;
    int got = cli_run(&c, "moonshine", args, "");
    const char *o = c.out_text.data ? c.out_text.data : "", *e = c.err_text.data ? c.err_text.data : "";
    if (got != code) fail_msg("bench %s: exit %d instead of %d: %s", args[1] ? args[1] : "", got, code, e);
    if (!strstr(o, out)) fail_msg("expected \"%s\", found: %s", out, o);
    if (!strstr(e, err)) fail_msg("expected \"%s\", found: %s", err, e);
    cli_free(&c);
}

static void test_disk_of_model(void **state) {
    (void)state;
    char dir[64];
    table t;
    cli_make_folder(dir);
    const char *csv = cli_path(dir, "disk.csv"), *plot = cli_path(dir, "disk.svg");
    run(0, "service, all experts of a layer (32)", "",
        ARGS("disk", CLI_MODEL, "--bytes", "64K", "--repeat", "2", "--threads", "2", "--csv", csv, "--plot", plot));
    check_plot(plot, 7, 4); /* depths; at least so many block sizes */
    read_table(&t, csv);
    size_t reader = 0, experts = 0, pread = 0, service = 0, install = 0;
    for (size_t i = 0; i < t.rows; i++) {
        const char *what = cell(&t, i, "what");
        reader += !strcmp(what, "reader");
        experts += !strcmp(what, "reader-experts");
        pread += !strcmp(what, "pread") || !strcmp(what, "pread-experts");
        service += !strcmp(what, "service-layer") || !strcmp(what, "service-top-k");
        install += !strcmp(what, "install");
        positive(&t, i, "block_bytes");
        positive(&t, i, "read_bytes");
        positive(&t, i, "bytes_per_second");
        positive(&t, i, "share");
        in_unit(&t, i, "wait_share");
    }
    assert_int_equal(experts, 6);
    assert_true(reader >= 6 && reader % 6 == 0);
    assert_int_equal(pread, reader / 6 + 1);
    assert_int_equal(service, 2);
    assert_int_equal(install, 1);
    free(t.text);
    cli_remove_folder(dir);
}

static void test_disk_of_file(void **state) {
    (void)state;
    char dir[64];
    table t;
    cli_make_folder(dir);
    const char *file = cli_path(dir, "data"), *csv = cli_path(dir, "disk.csv"), *tiny = cli_path(dir, "tiny");
    cli_write_file(file, "");
    cli_write_file(tiny, "x");
    assert_int_equal(truncate(file, 300 << 10), 0); /* holds blocks of 64K and 256K */
    run(0, "256K", "",
        ARGS("disk", file, "--bytes", "64K", "--repeat", "1", "--no-uring", "--no-direct", "--csv", csv));
    read_table(&t, csv);
    assert_int_equal(t.rows, 2 * 7);
    for (size_t i = 0; i < t.rows; i++) {
        positive(&t, i, "bytes_per_second");
        assert_string_equal(cell(&t, i, "direct"), "0");
        assert_string_equal(cell(&t, i, "uring"), "0");
    }
    free(t.text);
    run(2, "", "at least 64 KiB", ARGS("disk", tiny));
    run(1, "", "No such file", ARGS("disk", cli_path(dir, "none")));
    cli_remove_folder(dir);
}

static void check_speed_row(const table *t, size_t i, const char *what, unsigned slots) {
    assert_string_equal(cell(t, i, "what"), what);
    assert_string_equal(cell(t, i, "state"), i % 2 ? "warm" : "cold");
    assert_int_equal((int)number(t, i, "slots"), slots);
    static const char *const above_zero[] = {"tokens_per_second",
                                             "slowest",
                                             "fastest",
                                             "seconds_per_token",
                                             "memory_bytes_per_token",
                                             "disk_bytes_per_second",
                                             "disk_median_bytes_per_second",
                                             "memory_bytes_per_second",
                                             "memory_roof_seconds",
                                             "roof_ratio"};
    for (size_t c = 0; c < sizeof above_zero / sizeof above_zero[0]; c++) positive(t, i, above_zero[c]);
    in_unit(t, i, "hit_rate");
    in_unit(t, i, "overlap");
    assert_true(number(t, i, "slowest") <= number(t, i, "tokens_per_second"));
    assert_true(number(t, i, "fastest") >= number(t, i, "tokens_per_second"));
    assert_true(number(t, i, "cpu_seconds_per_token") >= 0);
    assert_true(number(t, i, "wait_seconds_per_token") >= 0);
    assert_true(number(t, i, "disk_roof_seconds") >= 0);
}

static void test_decode(void **state) {
    (void)state;
    char dir[64];
    table t;
    cli_make_folder(dir);
    const char *csv = cli_path(dir, "decode.csv"), *plot = cli_path(dir, "decode.svg");
    run(0, "overlap", "",
        ARGS("decode", CLI_MODEL, "--slots", "0,4,all", "--prompt", "4", "--tokens", "3", "--repeat", "2", "--csv", csv, "--plot", plot,
             "--lookahead", "off", /* wrong guesses are read too */
             QUICK));
    check_plot(plot, 3, 4); /* --slots; cold and warm, measured and roof */
    read_table(&t, csv);
    assert_int_equal(t.rows, 6);
    static const unsigned slots[] = {0, 4, EXPERTS};
    for (size_t i = 0; i < t.rows; i++) check_speed_row(&t, i, "decode", slots[i / 2]);
    /* No slots: every chosen expert is read, warm or not; all slots: the second time none is. */
    assert_true(number(&t, 0, "read_bytes_per_token") > 0);
    assert_true(number(&t, 0, "read_bytes_per_token") == number(&t, 1, "read_bytes_per_token"));
    assert_true(number(&t, 0, "hit_rate") == 0);
    assert_true(number(&t, 4, "read_bytes_per_token") > 0);
    assert_true(number(&t, 5, "read_bytes_per_token") == 0);
    assert_true(number(&t, 5, "hit_rate") == 1);
    assert_true(number(&t, 5, "busy_seconds_per_token") == 0);
    free(t.text);
    /* The roof of a limited run is the limit, and the drive that is imitated is at work for just its bytes. */
    run(0, "overlap", "",
        ARGS("decode", CLI_MODEL, "--slots", "0", "--prompt", "4", "--tokens", "3", "--repeat", "1", "--csv", csv,
             "--read-limit", "0.02", "--lookahead", "off", QUICK));
    read_table(&t, csv);
    for (size_t i = 0; i < t.rows; i++) {
        double bytes = number(&t, i, "read_bytes_per_token"), busy = number(&t, i, "busy_seconds_per_token");
        assert_true(number(&t, i, "disk_bytes_per_second") <= 2e7);
        assert_true(bytes > 0 && busy > 0.999 * bytes / 2e7 && busy < 1.001 * bytes / 2e7);
        assert_true(number(&t, i, "busy_ratio") <= 1.001);
    }
    free(t.text);
    cli_remove_folder(dir);
}

static void test_prefill(void **state) {
    (void)state;
    char dir[64];
    table t;
    cli_make_folder(dir);
    const char *csv = cli_path(dir, "prefill.csv");
    run(0, "tok/s", "",
        ARGS("prefill", CLI_MODEL, "--slots", "all", "--prompt", "8", "--repeat", "1", "--csv", csv, "--range", "4",
             QUICK));
    read_table(&t, csv);
    assert_int_equal(t.rows, 2);
    for (size_t i = 0; i < t.rows; i++) check_speed_row(&t, i, "prefill", EXPERTS);
    assert_true(number(&t, 0, "read_bytes_per_token") > 0);
    assert_true(number(&t, 1, "hit_rate") == 1);
    free(t.text);
    cli_remove_folder(dir);
}

static void test_load(void **state) {
    (void)state;
    run(0, "MB read", "", ARGS("load", CLI_MODEL, "--repeat", "2", "--probe", "64K"));
    run(0, "of the disk", "", ARGS("load", CLI_MODEL, "--repeat", "1", "--probe", "64K", "--no-direct", "--no-uring"));
    run(1, "", "README", ARGS("load", "README.md"));
}

static void test_wrong_usage(void **state) {
    (void)state;
    run(2, "", "unknown measurement 'disc'", ARGS("disc"));
    run(2, "", "--repeat", ARGS("disk", CLI_MODEL, "--repeat", "0"));
    run(2, "", "--bytes", ARGS("disk", CLI_MODEL, "--bytes", "many"));
    run(2, "", "--slots", ARGS("decode", CLI_MODEL, "--slots", "1,33", QUICK));
    run(2, "", "--slots", ARGS("decode", CLI_MODEL, "--slots", "1,", QUICK));
    run(2, "", "--slots", ARGS("decode", CLI_MODEL, "--slots", "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16", QUICK));
    run(2, "", "--tokens", ARGS("decode", CLI_MODEL, "--tokens", "0"));
    run(1, "", "README", ARGS("prefill", "README.md"));
    run(3, "", "do not fit a cap of 1048576", ARGS("decode", CLI_MODEL, "--cap", "1M", QUICK));
    run(1, "", "context",
        ARGS("decode", CLI_MODEL, "--prompt", "8", "--tokens", "8", "--context", "4", "--probe", "64K", "--repeat",
             "1"));
    run(0, "--cap", "", ARGS("decode", "--help"));
    run(0, "--csv", "", ARGS("disk", "--help"));
    run(1, "", "/no/such/folder",
        ARGS("prefill", CLI_MODEL, "--prompt", "2", "--repeat", "1", "--csv", "/no/such/folder/x.csv", QUICK));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_disk_of_model), cmocka_unit_test(test_disk_of_file), cmocka_unit_test(test_decode),
        cmocka_unit_test(test_prefill),       cmocka_unit_test(test_load),
        cmocka_unit_test(test_wrong_usage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
