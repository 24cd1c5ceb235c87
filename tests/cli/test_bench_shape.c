/* `moonshine bench shape` with small sizes: what it prints, what it refuses, and that its folder goes, also on a
 * signal. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "cli_run.h"

#define SHAPE "bench", "shape", "--shape", "small", "--backend", "cpu", "--folder", dir

static uint32_t entries(const char *folder) {
    uint32_t n = 0;
    DIR *d = opendir(folder);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) n += e->d_name[0] != '.';
    (void)closedir(d);
    return n;
}

static void finds(const ms_text *text, const char *pattern) {
    if (!strstr(text->data, pattern)) fail_msg("expected '%s' in '%s'", pattern, text->data);
}

/* Runs to the end; every pattern is in the output. */
static void run(const char *const *args, int code, const char *dir, const char *const *patterns) {
    cli c;
    assert_int_equal(cli_run(&c, "moonshine", args, ""), code);
    for (; *patterns; patterns++) finds(code ? &c.err_text : &c.out_text, *patterns);
    cli_free(&c);
    assert_int_equal(entries(dir), 0);
}

#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void test_all_hits(void **state) {
    (void)state;
    char dir[64];
    cli_make_folder(dir);
    run(WORDS(SHAPE, "--tokens", "2", "--phases"), 0, dir,
        WORDS("cpu (", "5 layers, 32 slots", "2 of 1 rows", "of floor", "router_topk", "80 of 80"));
    run(WORDS(SHAPE, "--tokens", "2", "--rows", "3"), 0, dir, WORDS("2 of 3 rows"));
    cli_remove_folder(dir);
}

static void test_streaming(void **state) {
    (void)state;
    char dir[64];
    cli_make_folder(dir);
    run(WORDS(SHAPE, "--tokens", "3", "--slots", "12", "--hits", "50"), 0, dir,
        WORDS("files of 1 routed layers serve all 4 layers", "3 passes, 50.0 % hits, 12 slots", "right with a chance of 93 %", "max(disk of the misses, compute)"));
    run(WORDS(SHAPE, "--tokens", "2", "--slots", "12", "--hits", "0", "--real-layers", "2", "--phases"), 0, dir,
        WORDS("files of 2 routed layers serve all 4 layers", "2 passes, 0.0 % hits", "experts_run"));
    run(WORDS(SHAPE, "--tokens", "2", "--rows", "16", "--hits", "25"), 0, dir,
        WORDS("ms a pass of 16 rows", "8 slots a layer", "all experts of the next layer"));
    run(WORDS(SHAPE, "--tokens", "2", "--slots", "12", "--hits", "75,0", "--guess", "0", "--depth", "2"), 0, dir,
        WORDS("75.0 % hits", " 0.0 % hits", "overlap"));
    cli_remove_folder(dir);
}

static void test_refused(void **state) {
    (void)state;
    char dir[64];
    cli_make_folder(dir);
    run(WORDS(SHAPE, "--slots", "3"), 2, dir, WORDS("slots 3: expected 4 to 32"));
    run(WORDS(SHAPE, "--slots", "32", "--hits", "50"), 2, dir, WORDS("slots 32", "at most 28"));
    run(WORDS(SHAPE, "--guess", "93"), 2, dir, WORDS("--guess", "--hits below 100"));
    run(WORDS(SHAPE, "--hits", "100", "--depth", "0"), 2, dir, WORDS("--depth", "--hits below 100"));
    run(WORDS(SHAPE, "--real-layers", "1"), 2, dir, WORDS("--real-layers", "--hits below 100"));
    static const char *const bad[] = {"101", "50,100", "50,", ",50", "", "x", "50 ", "1,2,3,4,5,6,7,8,9"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) run(WORDS(SHAPE, "--hits", bad[i]), 2, dir, WORDS("--hits"));
    run(WORDS("bench", "shape", "--folder", "/no/such/folder"), 1, dir, WORDS("/no/such/folder"));
    cli_remove_folder(dir);
}

static void test_signals(void **state) {
    (void)state;
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        char dir[64];
        cli c;
        cli_make_folder(dir);
        const char *const args[] = {SHAPE, "--tokens", "100000", "--slots", "12", "--hits", "50", NULL};
        cli_start(&c, "moonshine", args);
        assert_true(cli_wait_for(&c, &c.err_text, 0, "weights"));
        assert_int_equal(entries(dir), 1);
        cli_signal(&c, signals[i]);
        assert_int_equal(cli_finish(&c), 128 + signals[i]);
        finds(&c.err_text, "interrupted");
        cli_free(&c);
        assert_int_equal(entries(dir), 0);
        cli_remove_folder(dir);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_hits),
        cmocka_unit_test(test_streaming),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_signals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
