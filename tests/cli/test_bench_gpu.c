/* `moonshine bench gpu` with little to do, on the CPU backend: every operation is in the table and in the CSV file,
 * with figures that can be; refused arguments.  How fast anything is, is not tested. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli_run.h"
#include "io/file.h"

#define QUICK "bench", "gpu", "--backend", "cpu", "--rounds", "1", "--time", "1", "--shapes", "small"

static const char *const phases[] = {"q8 project", "q8 latent", "q8 shared mlp", "mxfp4 16 experts", "mxfp4 experts",
                                     "bf16 head",  "bf16 router", "kda",         "mla, 4096 cached", "gqa, 4096 cached",
                                     "gqa, window", "residual mix",
                                     "sum of experts"};
enum { PHASES = sizeof phases / sizeof phases[0] };

/* A line behind the head: "name",rows,cols,n,us,GBps,of_copy,TFLOPps,of_bf16 */
static void check_case(const char *line) {
    enum { FIELDS = 8 };
    double field[FIELDS];
    assert_int_equal(*line, '"');
    line = strchr(line + 1, '"');
    assert_non_null(line);
    line++;
    for (int i = 0; i < FIELDS; i++) {
        char *end;
        assert_int_equal(*line, ',');
        field[i] = strtod(line + 1, &end);
        assert_true(end > line + 1 && isfinite(field[i]));
        line = end;
    }
    assert_int_equal(*line, '\n');
    for (int i = 0; i < 4; i++) assert_true(field[i] > 0); /* the sizes and the time */
}

static void table_and_file(void **state) {
    (void)state;
    char folder[64];
    cli_make_folder(folder);
    const char *csv = cli_path(folder, "gpu.csv");
    cli c;
    int code = cli_run(&c, "moonshine", (const char *const[]){QUICK, "--csv", csv, NULL}, "");
    if (code != 0) fail_msg("exit code %d: %s", code, c.err_text.data);
    char *text;
    size_t len;
    assert_int_equal(ms_file_read_all(csv, 1 << 20, &text, &len, NULL), MS_OK);
    for (size_t i = 0; i < PHASES; i++)
        if (!strstr(c.out_text.data, phases[i]) || !strstr(text, phases[i]))
            fail_msg("no '%s' in: %s", phases[i], c.out_text.data);
    int cases = 0;
    for (const char *line = text; *line; line = strchr(line, '\n') + 1) {
        assert_non_null(strchr(line, '\n'));
        if (*line != '"') continue; /* the head and the two rates */
        check_case(line);
        cases++;
    }
    assert_true(cases > PHASES);
    cli_free(&c);
    free(text);
    unlink(csv);
    cli_remove_folder(folder);
}

static void only_some(void **state) {
    (void)state;
    cli c;
    assert_int_equal(cli_run(&c, "moonshine", (const char *const[]){QUICK, "--only", "residual", NULL}, ""), 0);
    assert_non_null(strstr(c.out_text.data, "residual mix"));
    assert_null(strstr(c.out_text.data, "q8"));
    cli_free(&c);
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
    refused("--shapes", (const char *const[]){"bench", "gpu", "--shapes", "huge", NULL});
    refused("--rounds", (const char *const[]){"bench", "gpu", "--rounds", "0", NULL});
    refused("range backend blas", (const char *const[]){QUICK, "--range-backend", "blas", NULL});
    refused("extra", (const char *const[]){QUICK, "extra", NULL});
}

/* Whether a GPU's library lies beside the program: then what `auto` does depends on the machine. */
static bool has_library(const char *file) {
    const char *folder = getenv("MOONSHINE_BIN");
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/%s", folder && *folder ? folder : "build", file);
    return access(path, F_OK) == 0;
}

static void backend_from_the_environment(void **state) {
    (void)state;
    assert_int_equal(setenv("MOONSHINE_BACKEND", "nonsense", 1), 0);
    refused("\"nonsense\"", (const char *const[]){"bench", "gpu", NULL});
    assert_int_equal(unsetenv("MOONSHINE_BACKEND"), 0);
}

/* `auto` without a GPU is the CPU, and says so, with what would build the libraries. */
static void no_gpu_is_said(void **state) {
    (void)state;
    if (has_library("libmoonshine_cuda.so") || has_library("libmoonshine_hip.so")) skip();
    const char *const bench[] = {"bench", "gpu", "--backend", "auto", "--rounds", "1", "--time", "1",
                                 "--shapes", "small", "--only", "residual", NULL},
                      *const plan[] = {"plan", "models/k3-nano", "--backend", "auto", NULL};
    const char *const *const runs[] = {bench, plan};
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        cli c;
        assert_int_equal(cli_run(&c, "moonshine", runs[i], ""), 0);
        const char *const words[] = {": no GPU is used: ", "(make GPU=cuda builds it)", "(make GPU=hip builds it)"};
        for (size_t w = 0; w < sizeof words / sizeof words[0]; w++)
            if (!strstr(c.err_text.data, words[w])) fail_msg("no '%s' in: %s", words[w], c.err_text.data);
        cli_free(&c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(table_and_file), cmocka_unit_test(only_some),
                                       cmocka_unit_test(refused_arguments),
                                       cmocka_unit_test(backend_from_the_environment),
                                       cmocka_unit_test(no_gpu_is_said)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
