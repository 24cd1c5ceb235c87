/* `moonshine bench kernels` with little to do: every product and peak is in the table and in the CSV file, with figures
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

#define QUICK "bench", "kernels", "--rounds", "1", "--time", "1", "--shapes", "mid"

/* Field `at` of a CSV line as a number; -1 when it is empty. */
static double field(const char *line, int at) {
    for (; at > 0; at--) {
        line = strchr(line, ',');
        assert_non_null(line);
        line++;
    }
    return *line == ',' || *line == '\n' ? -1 : atof(line);
}

static void check_line(const char *line, int *peaks, int *products) {
    enum { ROWS = 4, GBPS = 7, GOPS, OF_READ = 11, OF_PEAK };
    bool product = field(line, ROWS) > 0;
    *(product ? products : peaks) += 1;
    if (product) {
        assert_true(field(line, GBPS) > 0 && field(line, GOPS) > 0);
        assert_true(field(line, OF_READ) > 0 && isfinite(field(line, OF_READ)));
        assert_true(field(line, OF_PEAK) > 0 && isfinite(field(line, OF_PEAK)));
    } else {
        assert_true(field(line, GBPS) > 0 || field(line, GOPS) > 0);
    }
}

static void table_and_file(void **state) {
    (void)state;
    char folder[64];
    cli_make_folder(folder);
    const char *csv = cli_path(folder, "kernels.csv");
    cli c;
    int code = cli_run(&c, "moonshine", (const char *const[]){QUICK, "--cpu-time", "--csv", csv, NULL}, "");
    if (code != 0) fail_msg("exit code %d: %s", code, c.err_text.data);
    static const char *const words[] = {"memory read", "memory copy", "f32 fma", "int8 dot", "bf16", "q8", "mxfp4"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (!strstr(c.out_text.data, words[i])) fail_msg("no '%s' in: %s", words[i], c.out_text.data);
    cli_free(&c);
    char *text;
    size_t len;
    assert_int_equal(ms_file_read_all(csv, 1 << 20, &text, &len, NULL), MS_OK);
    int peaks = 0, products = 0;
    const char *line = strchr(text, '\n');
    assert_non_null(line);
    for (line++; *line; line = strchr(line, '\n') + 1) {
        assert_non_null(strchr(line, '\n'));
        check_line(line, &peaks, &products);
    }
    assert_int_equal(peaks, 4);
    assert_int_equal(products, 3 * 4);
    free(text);
    unlink(csv);
    cli_remove_folder(folder);
}

static void refused(const char *word, const char *const *args) {
    cli c;
    int code = cli_run(&c, "moonshine", args, "");
    assert_int_equal(code, 2);
    if (!c.err_text.data || !strstr(c.err_text.data, word)) fail_msg("no '%s' in: %s", word, c.err_text.data);
    cli_free(&c);
}

static void refused_arguments(void **state) {
    (void)state;
    refused("mmx", (const char *const[]){QUICK, "--kernels", "mmx", NULL});
    refused("--cpu-time", (const char *const[]){QUICK, "--threads", "2", "--cpu-time", NULL});
    refused("--shapes", (const char *const[]){"bench", "kernels", "--shapes", "huge", NULL});
    refused("--rounds", (const char *const[]){"bench", "kernels", "--rounds", "0", NULL});
    refused("extra", (const char *const[]){QUICK, "extra", NULL});
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(table_and_file), cmocka_unit_test(refused_arguments)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
