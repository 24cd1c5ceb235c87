/* test_quality.c: `moonshine bench quality` on the qualification sets: every greedy token in the default
 * arithmetic is the recorded one, a wrong expectation is noticed, recording gives the file that is in the tree. */
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
#include <sys/wait.h>
#include <unistd.h>

#include "base/json.h"
#include "io/file.h"

#define SET   "tests/qualification/nano.jsonl"
#define MODEL "models/k3-nano"
enum { MAX_ARGS = 16, MAX_BYTES = 16 << 20 };

/* Folder of this case, the set in the tree, and what the last call printed. */
typedef struct place {
    char dir[64], set[96], out[96], errors[96];
    char *tree, *out_text, *errors_text;
    ms_json_doc *report;
} place;

static void read_into(char **text, const char *path) {
    size_t len;
    free(*text);
    assert_int_equal(ms_file_read_all(path, MAX_BYTES, text, &len, NULL), MS_OK);
}

static int make_place(void **state) {
    place *p = calloc(1, sizeof *p);
    if (!p) return -1;
    strcpy(p->dir, "/tmp/ms-quality-XXXXXX");
    if (!mkdtemp(p->dir)) {
        free(p);
        return -1;
    }
    (void)snprintf(p->set, sizeof p->set, "%s/set.jsonl", p->dir);
    (void)snprintf(p->out, sizeof p->out, "%s/out", p->dir);
    (void)snprintf(p->errors, sizeof p->errors, "%s/errors", p->dir);
    *state = p;
    return 0;
}

static int remove_place(void **state) {
    place *p = *state;
    ms_json_free(p->report);
    free(p->tree);
    free(p->out_text);
    free(p->errors_text);
    unlink(p->set);
    unlink(p->out);
    unlink(p->errors);
    int left = rmdir(p->dir);
    free(p);
    return left;
}

static void write_set(const place *p, const char *text, size_t len) {
    FILE *f = fopen(p->set, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
}

static void replace_fd(int fd, const char *path) {
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || dup2(file, fd) < 0) _exit(126);
}

/* Runs `moonshine bench quality` with the arguments up to NULL; gives the exit code. */
static int quality(place *p, ...) {
    const char *bin = getenv("MOONSHINE_BIN");
    char program[4096];
    (void)snprintf(program, sizeof program, "%s/moonshine", bin ? bin : "build");
    const char *argv[MAX_ARGS + 4] = {program, "bench", "quality"};
    va_list ap;
    va_start(ap, p);
    for (size_t i = 3; i < MAX_ARGS + 3 && (argv[i] = va_arg(ap, const char *)) != NULL; i++) {}
    va_end(ap);
    ms_json_free(p->report); /* points into out_text */
    p->report = NULL;
    pid_t child = fork();
    if (child == 0) {
        replace_fd(STDOUT_FILENO, p->out);
        replace_fd(STDERR_FILENO, p->errors);
        execv(program, (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    assert_true(child > 0);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    read_into(&p->out_text, p->out);
    read_into(&p->errors_text, p->errors);
    if (!WIFEXITED(status)) fail_msg("%s ended by signal %d: %s", program, WTERMSIG(status), p->errors_text);
    return WEXITSTATUS(status);
}

static const ms_json *report(place *p) {
    if (ms_json_parse(&p->report, p->out_text, strlen(p->out_text), "report", NULL, NULL) != MS_OK)
        fail_msg("no report: '%s' '%s'", p->out_text, p->errors_text);
    return ms_json_root(p->report);
}

static uint64_t number(const ms_json *obj, const char *key) {
    uint64_t v;
    if (!ms_json_u64(ms_json_get(obj, key), &v)) fail_msg("%s: no number", key);
    return v;
}

/* Length of the set's first `lines` lines. */
static size_t head_length(const char *text, size_t lines) {
    const char *end = text;
    while (lines--) {
        end = strchr(end, '\n');
        assert_non_null(end);
        end++;
    }
    return (size_t)(end - text);
}

/* The offset of the text of the first expected id of line 1. */
static size_t first_id(const char *text) {
    const char *at = strstr(text, "\"expected\":{\"ids\":[");
    assert_non_null(at);
    return (size_t)(strchr(at, '[') + 1 - text);
}

static void expect_refusal(place *p, const char *set_text, int code, const char *part) {
    write_set(p, set_text, strlen(set_text));
    int found = quality(p, MODEL, "--set", p->set, "--threads", "1", NULL);
    if (found != code || !strstr(p->errors_text, part))
        fail_msg("expected exit code %d and '%s', found %d and '%s'", code, part, found, p->errors_text);
}

/* `longest`: the family of the longest prompts; all prompts together have at least `prefill` tokens. */
static void check_all_equal(place *p, const char *model, const char *set, const char *longest, uint64_t prefill) {
    int code = quality(p, model, "--set", set, "--json", NULL);
    const ms_json *r = report(p);
    const ms_json *differences = ms_json_get(r, "differences");
    if (code || differences->count)
        fail_msg("exit code %d, differences %.*s", code, (int)differences->raw_len, differences->raw);
    assert_true(ms_json_is_string(ms_json_get(r, "precision"), "fast"));
    assert_true(ms_json_is_string(ms_json_get(r, "static"), "q8"));
    assert_true(number(r, "prompts") >= 72);
    assert_true(number(r, "tokens") >= 1000);
    assert_int_equal(number(r, "equal"), number(r, "tokens"));
    const ms_json *families = ms_json_get(r, "families");
    uint64_t long_prompts = 0, prompts = 0;
    for (const ms_json *f = families->child; f; f = f->next) {
        assert_int_equal(number(f, "equal"), number(f, "tokens"));
        prompts += number(f, "prompts");
        if (ms_json_is_string(ms_json_get(f, "family"), longest)) long_prompts = number(f, "prompts");
    }
    assert_true(families->count >= 12);
    assert_int_equal(prompts, number(r, "prompts"));
    assert_true(long_prompts >= 3);
    assert_true(number(ms_json_get(r, "prefill"), "tokens") >= prefill);
}

static void test_every_token_equal(void **state) { check_all_equal(*state, MODEL, SET, "retrieval-6000", 3 * 6000); }

static void test_every_token_equal_mimo(void **state) {
    check_all_equal(*state, "models/mimo-nano", "tests/qualification/mimo-nano.jsonl", "retrieval-3500", 3 * 3500);
}

/* The last digit changes: a zero in front would not be JSON. */
static void test_a_damaged_id_is_noticed(void **state) {
    place *p = *state;
    read_into(&p->tree, SET);
    char *text = p->tree;
    size_t len = head_length(text, 2), at = first_id(text);
    unsigned long right = strtoul(text + at, NULL, 10);
    size_t last = at + strspn(text + at, "0123456789") - 1;
    text[last] = text[last] == '9' ? '8' : (char)(text[last] + 1);
    unsigned long wrong = strtoul(text + at, NULL, 10);
    write_set(p, text, len);

    assert_int_equal(quality(p, MODEL, "--set", p->set, "--json", NULL), 1);
    const ms_json *r = report(p), *differences = ms_json_get(r, "differences"), *d = differences->child;
    assert_int_equal(number(r, "prompts"), 2);
    /* Behind it the model reads the damaged answer, so more may differ. */
    assert_true(number(r, "equal") < number(r, "tokens"));
    assert_int_equal(differences->count, 1);
    assert_true(ms_json_is_string(ms_json_get(d, "name"), "greeting-01"));
    assert_int_equal(number(d, "position"), 0);
    assert_int_equal(number(d, "expected"), wrong);
    assert_int_equal(number(d, "got"), right);
    double margin;
    assert_true(ms_json_double(ms_json_get(d, "reference_margin"), &margin));
    assert_true(margin > 0);

    assert_int_equal(quality(p, MODEL, "--set", p->set, NULL), 1);
    char line[80];
    (void)snprintf(line, sizeof line, "greeting-01 differs at position 0: expected %lu, got %lu", wrong, right);
    assert_non_null(strstr(p->out_text, line));
}

/* Recording again, over damaged expectations, gives the bytes of the file in the tree. */
static void test_recording_is_reproducible(void **state) {
    place *p = *state;
    read_into(&p->tree, SET);
    char *text = p->tree, *recorded = NULL;
    size_t len = head_length(text, 3), at = first_id(text);
    char kept = text[at];
    text[at] = kept == '1' ? '2' : '1';
    write_set(p, text, len);
    text[at] = kept;
    assert_int_equal(
        quality(p, MODEL, "--set", p->set, "--record", "--precision", "reference", "--static", "bf16", NULL), 0);
    read_into(&recorded, p->set);
    bool same = strlen(recorded) == len && memcmp(recorded, text, len) == 0;
    free(recorded);
    assert_true(same);

    /* A limit cuts the answers, and what is compared. */
    assert_int_equal(quality(p, MODEL, "--set", p->set, "--record", "--precision", "reference", "--static", "bf16",
                             "--max-tokens", "5", NULL),
                     0);
    assert_int_equal(quality(p, MODEL, "--set", p->set, "--json", NULL), 0);
    assert_int_equal(number(report(p), "tokens"), 3 * 5);
    assert_int_equal(quality(p, MODEL, "--set", p->set, "--json", "--max-tokens", "2", NULL), 0);
    assert_int_equal(number(report(p), "tokens"), 3 * 2);
}

static void test_error_against_reference(void **state) {
    place *p = *state;
    read_into(&p->tree, SET);
    write_set(p, p->tree, head_length(p->tree, 3));
    double relative, max_abs;
    assert_int_equal(quality(p, MODEL, "--set", p->set, "--json", "--against-reference", NULL), 0);
    const ms_json *a = ms_json_get(report(p), "against_reference");
    assert_true(ms_json_double(ms_json_get(a, "relative_error"), &relative));
    assert_true(ms_json_double(ms_json_get(a, "max_abs"), &max_abs));
    assert_true(relative > 0 && relative < 0.05);
    assert_true(max_abs > 0 && max_abs < 1);

    assert_int_equal(quality(p, MODEL, "--set", p->set, "--json", "--against-reference", "--precision", "reference",
                             "--static", "bf16", NULL),
                     0);
    a = ms_json_get(report(p), "against_reference");
    assert_true(ms_json_double(ms_json_get(a, "relative_error"), &relative));
    assert_true(relative == 0);
}

#define REQUEST              "\"request\":{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}"
#define GOOD                 ",\"expected\":{\"ids\":[1],\"margins\":[1]}"
#define LINE(name, expected) "{\"name\":\"" name "\",\"family\":\"f\"," REQUEST expected "}\n"

static void test_bad_sets_are_refused(void **state) {
    place *p = *state;
    expect_refusal(p, "", 1, "found none");
    expect_refusal(p, "\n{\"name\":\"a\"\n", 1, "line 2");
    expect_refusal(p, "[]\n", 1, "expected an object");
    expect_refusal(p, "{\"family\":\"f\"," REQUEST "}\n", 1, "name");
    expect_refusal(p, "{\"name\":\"a\\u0007\",\"family\":\"f\"," REQUEST "}\n", 1, "name");
    expect_refusal(p, "{\"name\":\"a\",\"family\":\"f\"}\n", 1, "request");
    expect_refusal(p, LINE("a", ""), 1, "--record");
    expect_refusal(p, LINE("a", ",\"expected\":{\"ids\":[1],\"margins\":[1,2]}"), 1, "expected.margins");
    expect_refusal(p, LINE("a", ",\"expected\":{\"ids\":[-1],\"margins\":[1]}"), 1, "expected.ids[0]");
    expect_refusal(p, LINE("a", ",\"expected\":{\"ids\":[1],\"margins\":[-1]}"), 1, "expected.margins[0]");
    expect_refusal(p, LINE("a", ",\"expected\":{\"ids\":[],\"margins\":[]}"), 1, "expected.ids");
    expect_refusal(p, LINE("a", GOOD) LINE("a", GOOD), 1, "'a' twice");
    /* The timeline refuses an id beyond the vocabulary; the message says whose it is. */
    expect_refusal(p, LINE("a", ",\"expected\":{\"ids\":[4000000000,1],\"margins\":[1,1]}"), 2, "set.jsonl: a: ");
    expect_refusal(p, "{\"name\":\"a\",\"family\":\"f\",\"request\":{\"messages\":7}" GOOD "}\n", 2,
                   "set.jsonl: a: request: messages");
}

static void test_wrong_usage(void **state) {
    place *p = *state;
    assert_int_equal(quality(p, MODEL, NULL), 2);
    assert_non_null(strstr(p->errors_text, "--set"));
    assert_int_equal(quality(p, MODEL, "--set", SET, "--record", NULL), 2);
    assert_non_null(strstr(p->errors_text, "--precision reference --static bf16"));
    assert_int_equal(quality(p, MODEL, "--set", SET, "--record", "--precision", "reference", NULL), 2);
    assert_int_equal(quality(p, MODEL, "--set", SET, "--record", "--against-reference", "--precision", "reference",
                             "--static", "bf16", NULL),
                     2);
    assert_int_equal(quality(p, MODEL, "--set", "/nonexistent/set.jsonl", NULL), 1);
    assert_non_null(strstr(p->errors_text, "/nonexistent/set.jsonl"));
    assert_int_equal(quality(p, "--help", NULL), 0);
    assert_non_null(strstr(p->out_text, "--against-reference"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_wrong_usage, make_place, remove_place),
        cmocka_unit_test_setup_teardown(test_bad_sets_are_refused, make_place, remove_place),
        cmocka_unit_test_setup_teardown(test_a_damaged_id_is_noticed, make_place, remove_place),
        cmocka_unit_test_setup_teardown(test_recording_is_reproducible, make_place, remove_place),
        cmocka_unit_test_setup_teardown(test_error_against_reference, make_place, remove_place),
        cmocka_unit_test_setup_teardown(test_every_token_equal, make_place, remove_place),
        cmocka_unit_test_setup_teardown(test_every_token_equal_mimo, make_place, remove_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
