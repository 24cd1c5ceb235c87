/* The option parser: every type, its ranges, forms on the command line, environment, help text. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/options.h"

typedef struct values {
    bool flag;
    int mode, choice;
    const char *text;
    ms_option_list list;
    uint32_t small;
    uint64_t big, bytes;
    int64_t seed;
    double real;
} values;

static const char *const colours[] = {"red", "green", NULL};
#define FIELD(f) offsetof(values, f)
static const ms_option table[] = {
    {.name = "flag", .letter = 'f', .type = MS_OPTION_FLAG, .offset = FIELD(flag), .help = "A flag."},
    {.name = "on", .type = MS_OPTION_SET, .offset = FIELD(mode), .set = 1, .help = "On."},
    {.name = "off", .type = MS_OPTION_SET, .offset = FIELD(mode), .set = 2, .help = "Off."},
    {.name = "text",
     .letter = 't',
     .type = MS_OPTION_STRING,
     .offset = FIELD(text),
     .arg = "TEXT",
     .help = "A text.",
     .env = "MS_TEST_TEXT"},
    {.name = "list",
     .type = MS_OPTION_LIST,
     .offset = FIELD(list),
     .arg = "X",
     .max = 2,
     .filled = true,
     .help = "A list."},
    {.name = "small",
     .letter = 's',
     .type = MS_OPTION_U32,
     .offset = FIELD(small),
     .arg = "N",
     .min = 1,
     .help = "Small."},
    {.name = "big",
     .type = MS_OPTION_U64,
     .offset = FIELD(big),
     .arg = "N",
     .min = 64,
     .max = 1024,
     .help = "Big.",
     .env = "MS_TEST_BIG"},
    {.name = "bytes", .type = MS_OPTION_BYTES, .offset = FIELD(bytes), .arg = "BYTES", .help = "Bytes."},
    {.name = "seed", .type = MS_OPTION_I64, .offset = FIELD(seed), .arg = "N", .help = "Seed."},
    {.name = "real",
     .type = MS_OPTION_REAL,
     .offset = FIELD(real),
     .arg = "R",
     .low = 0,
     .low_open = true,
     .high = 1,
     .help = "Real."},
    {.name = "choice", .type = MS_OPTION_CHOICE, .offset = FIELD(choice), .choices = colours, .help = "A colour."},
    {.name = "secret", .type = MS_OPTION_FLAG, .offset = FIELD(flag)},
};

typedef struct run {
    values v;
    ms_option_result r;
    ms_error err;
    ms_option_group group;
    ms_option_set set;
} run;

static ms_status parse(run *p, const char *const *args) {
    *p = (run){0};
    p->group = (ms_option_group){"Things", table, sizeof table / sizeof table[0], &p->v};
    p->set = (ms_option_set){
        .program = "prog", .synopsis = "[options]", .groups = &p->group, .group_count = 1, .max_args = 1};
    char *argv[16] = {0};
    int argc = 1;
    for (; args[argc - 1]; argc++) argv[argc] = (char *)(uintptr_t)args[argc - 1];
    return ms_options_parse(&p->set, argc, argv, &p->r, &p->err);
}

#define ARGS(...) ((const char *const[]){__VA_ARGS__, NULL})
#define NONE      ((const char *const[]){NULL})

static void refused(const char *const *args, const char *part) {
    run p;
    assert_int_equal(parse(&p, args), MS_ERR_USAGE);
    if (!strstr(p.err.message, part)) print_error("expected \"%s\" in \"%s\"\n", part, p.err.message);
    assert_non_null(strstr(p.err.message, part));
}

static void every_type(void **state) {
    (void)state;
    run p;
    assert_int_equal(parse(&p, ARGS("--flag", "--off", "--text", "-x", "--list=a", "--list", "b", "--small=4294967295",
                                    "--big", "64", "arg", "--bytes=4G", "--seed", "-9223372036854775808")),
                     MS_OK);
    assert_true(p.v.flag);
    assert_int_equal(p.v.mode, 2);
    assert_string_equal(p.v.text, "-x"); /* a value may begin with a dash */
    assert_int_equal(p.v.list.count, 2);
    assert_string_equal(p.v.list.items[1], "b");
    assert_int_equal(p.v.small, UINT32_MAX);
    assert_int_equal(p.v.big, 64);
    assert_true(p.v.bytes == UINT64_C(4) << 30);
    assert_true(p.v.seed == INT64_MIN);
    assert_int_equal(p.r.arg_count, 1);
    assert_string_equal(p.r.args[0], "arg");
    assert_int_equal(
        parse(&p, ARGS("--real", "0.25", "--choice", "green", "--bytes", "512MiB", "--on", "--off", "--on")), MS_OK);
    assert_true(p.v.real == 0.25);
    assert_int_equal(p.v.choice, 1);
    assert_true(p.v.bytes == UINT64_C(512) << 20);
    assert_int_equal(p.v.mode, 1); /* the last one counts */
}

static void letters_and_the_end_of_options(void **state) {
    (void)state;
    run p;
    assert_int_equal(parse(&p, ARGS("-fs5", "-t", "a", "--", "-f")), MS_OK);
    assert_true(p.v.flag);
    assert_int_equal(p.v.small, 5);
    assert_string_equal(p.v.text, "a");
    assert_string_equal(p.r.args[0], "-f");
    assert_int_equal(parse(&p, ARGS("-tvalue", "-")), MS_OK);
    assert_string_equal(p.v.text, "value");
    assert_string_equal(p.r.args[0], "-");
    assert_true(ms_options_given(&p.set, &p.r, "text"));
    assert_false(ms_options_given(&p.set, &p.r, "flag"));
    assert_false(ms_options_given(&p.set, &p.r, "nothing"));
}

static void what_is_refused(void **state) {
    (void)state;
    refused(ARGS("--nope"), "unknown option --nope");
    refused(ARGS("--fla"), "unknown option --fla");
    refused(ARGS("-x"), "unknown option -x");
    refused(ARGS("a", "b"), "superfluous argument \"b\"");
    refused(ARGS("--text"), "--text: expected a value");
    refused(ARGS("-s"), "-s: expected a value");
    refused(ARGS("--flag=1"), "--flag takes no value");
    refused(ARGS("--small", "0"), "from 1 to 4294967295, found \"0\"");
    refused(ARGS("--small", "4294967296"), "from 1 to 4294967295");
    refused(ARGS("--big", "18446744073709551680"), "from 64 to 1024");
    refused(ARGS("--big", ""), "from 64 to 1024");
    refused(ARGS("--big", "+65"), "from 64 to 1024");
    refused(ARGS("--big", "65 "), "from 64 to 1024");
    refused(ARGS("--big", "0x41"), "from 64 to 1024");
    refused(ARGS("--bytes", "G"), "--bytes");
    refused(ARGS("--bytes", "1Gi"), "--bytes");
    refused(ARGS("--bytes", "16777216T"), "--bytes"); /* 2^64 */
    refused(ARGS("--seed", "9223372036854775808"), "--seed");
    refused(ARGS("--seed", "-"), "--seed");
    refused(ARGS("--real", "0"), "above 0 to 1, found \"0\"");
    refused(ARGS("--real", "1.01"), "above 0 to 1");
    refused(ARGS("--real", "1."), "above 0 to 1");
    refused(ARGS("--real", ".5"), "above 0 to 1");
    refused(ARGS("--real", "nan"), "above 0 to 1");
    refused(ARGS("--real", "1e-1"), "above 0 to 1");
    refused(ARGS("--choice", "blue"), "expected red or green, found \"blue\"");
    refused(ARGS("--list", "a", "--list", ""), "--list: expected X, found \"\"");
    double real = 7;
    ms_error err;
    assert_int_equal(ms_option_parse_real(&real, "/rate", "0.25", 0.001, 1000, &err), MS_OK);
    assert_true(real == 0.25);
    assert_int_equal(ms_option_parse_real(&real, "/rate", "0", 0.001, 1000, &err), MS_ERR_USAGE);
    assert_string_equal(err.message, "/rate: expected digits like 0.5, a number from 0.001 to 1000, found \"0\"");
    refused(ARGS("--list", "1", "--list", "2", "--list", "3"), "at most 2");
}

static void the_environment_fills_gaps(void **state) {
    (void)state;
    run p;
    assert_int_equal(setenv("MS_TEST_TEXT", "from outside", 1), 0);
    assert_int_equal(setenv("MS_TEST_BIG", "", 1), 0);
    assert_int_equal(parse(&p, NONE), MS_OK);
    assert_string_equal(p.v.text, "from outside");
    assert_int_equal(p.v.big, 0); /* empty is unset */
    assert_false(ms_options_given(&p.set, &p.r, "text"));
    assert_int_equal(parse(&p, ARGS("-t", "mine")), MS_OK);
    assert_string_equal(p.v.text, "mine");
    assert_int_equal(setenv("MS_TEST_BIG", "5", 1), 0);
    refused(NONE, "MS_TEST_BIG: expected a number from 64 to 1024");
    assert_int_equal(unsetenv("MS_TEST_TEXT"), 0);
    assert_int_equal(unsetenv("MS_TEST_BIG"), 0);
}

static void exclusive_options(void **state) {
    (void)state;
    static const char *const names[] = {"flag", "text", "big"};
    run p;
    assert_int_equal(parse(&p, ARGS("-f", "--on")), MS_OK);
    assert_int_equal(ms_options_exclusive(&p.set, &p.r, names, 3, &p.err), MS_OK);
    assert_int_equal(parse(&p, ARGS("--big", "64", "-f")), MS_OK);
    assert_int_equal(ms_options_exclusive(&p.set, &p.r, names, 3, &p.err), MS_ERR_USAGE);
    assert_non_null(strstr(p.err.message, "--flag and --big"));
}

static void help_stops_and_describes(void **state) {
    (void)state;
    run p;
    assert_int_equal(parse(&p, ARGS("--help", "--nope")), MS_OK);
    assert_true(p.r.help);
    assert_int_equal(parse(&p, ARGS("-fh")), MS_OK);
    assert_true(p.r.help);
    assert_int_equal(parse(&p, ARGS("--version")), MS_OK);
    assert_true(p.r.version);
    ms_text t = {0};
    ms_options_help(&p.set, &t);
    assert_false(t.failed);
    assert_non_null(strstr(t.data, "usage: prog [options]\n"));
    assert_non_null(strstr(t.data, "  -t, --text TEXT             A text. [MS_TEST_TEXT]\n"));
    assert_non_null(strstr(t.data, "Big. (64 to 1024)"));
    assert_non_null(strstr(t.data, "--choice red|green"));
    assert_non_null(strstr(t.data, "(above 0 to 1)"));
    assert_null(strstr(t.data, "secret"));
    for (const char *line = t.data; *line; line += strcspn(line, "\n") + 1) assert_true(strcspn(line, "\n") <= 100);
    ms_text_free(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type),        cmocka_unit_test(letters_and_the_end_of_options),
        cmocka_unit_test(what_is_refused),   cmocka_unit_test(the_environment_fills_gaps),
        cmocka_unit_test(exclusive_options), cmocka_unit_test(help_stops_and_describes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
