/* moonshine-chat through pipes: one-shot runs, conversations, state files, requests, errors. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "cli_run.h"

#define HELLO     "Hello! \xF0\x9F\x91\x8B How can I help you today?"
#define PARIS     "The capital of France is Paris."
#define ARGS(...) ((const char *const[]){__VA_ARGS__, NULL})

static int chat(cli *c, const char *const *args, const char *input) {
    return cli_run(c, "moonshine-chat", args, input);
}

static bool says(const ms_text *t, const char *part) { return t->data && strstr(t->data, part); }

/* Exit code and standard output of a run. */
static void expect(const char *const *args, const char *input, int code, const char *output) {
    cli c;
    int got = chat(&c, args, input);
    if (got != code) print_error("standard error: %s\n", c.err_text.data);
    assert_int_equal(got, code);
    assert_string_equal(c.out_text.data, output);
    cli_free(&c);
}

/* Exit code 2, nothing on standard output, and a message with `part`. */
static void expect_usage(const char *const *args, const char *part) {
    cli c;
    assert_int_equal(chat(&c, args, ""), 2);
    assert_string_equal(c.out_text.data, "");
    if (!says(&c.err_text, part)) print_error("expected \"%s\" in: %s\n", part, c.err_text.data);
    assert_true(says(&c.err_text, part));
    cli_free(&c);
}

/* Refused before the weights are loaded: exit code 1, nothing on standard output, and a message with `part`. */
static void expect_refusal(const char *const *args, const char *part) {
    cli c;
    assert_int_equal(chat(&c, args, ""), 1);
    assert_string_equal(c.out_text.data, "");
    if (!says(&c.err_text, part)) print_error("expected \"%s\" in: %s\n", part, c.err_text.data);
    assert_true(says(&c.err_text, part));
    assert_false(says(&c.err_text, "ready: "));
    cli_free(&c);
}

/* The number behind `name` in the nth stats line. */
static long stat_value(const ms_text *t, int line, const char *name) {
    const char *at = t->data;
    for (int i = 0; i <= line && at; i++) at = strstr(i ? at + 1 : at, "[prompt=");
    at = at ? strstr(at, name) : NULL;
    assert_non_null(at);
    return strtol(at + strlen(name), NULL, 10);
}

/* ------------------------------------------------------------------ without a model's weights */

static void help_and_version_need_nothing(void **state) {
    (void)state;
    cli c;
    expect(ARGS("--version"), "", 0, "moonshine-chat 0.1.0\n");
    assert_int_equal(chat(&c, ARGS("--help"), ""), 0);
    assert_string_equal(c.err_text.data, "");
    assert_true(says(&c.out_text, "--max-tokens N"));
    assert_true(says(&c.out_text, "(64 to 1048576)"));
    assert_false(says(&c.out_text, "--url"));
    cli_free(&c);
}

static void wrong_usage_names_the_argument(void **state) {
    (void)state;
    expect_usage(ARGS("-p", "x"), "MOONSHINE_MODEL");
    expect_usage(ARGS("", "-p", "x"), "MODEL: expected a checkpoint directory, found an empty string");
    expect_usage(ARGS(CLI_MODEL, "--save", "", "-p", "x"), "--save: expected a file name");
    expect_usage(ARGS(CLI_MODEL, "--history", ""), "--history: expected a file name");
    expect_usage(ARGS(CLI_MODEL, "--temperature", "1e-1", "-p", "x"), "digits like 0.5, a number from 0 to 2");
    expect_usage(ARGS(CLI_MODEL, "--bogus"), "--bogus");
    expect_usage(ARGS(CLI_MODEL, "second"), "\"second\"");
    expect_usage(ARGS(CLI_MODEL, "--context", "63"), "64 to 1048576");
    expect_usage(ARGS(CLI_MODEL, "--context=1048577"), "64 to 1048576");
    expect_usage(ARGS(CLI_MODEL, "--context", "0x100"), "64 to 1048576");
    expect_usage(ARGS(CLI_MODEL, "-n", "0"), "1 to 1048576");
    expect_usage(ARGS(CLI_MODEL, "--temperature", "2.1"), "0 to 2");
    expect_usage(ARGS(CLI_MODEL, "--top-p", "0"), "above 0 to 1");
    expect_usage(ARGS(CLI_MODEL, "--min-p", "1"), "0 to below 1");
    expect_usage(ARGS(CLI_MODEL, "--top-k", "-1"), "--top-k");
    expect_usage(ARGS(CLI_MODEL, "--seed", "9223372036854775808"), "--seed");
    expect_usage(ARGS(CLI_MODEL, "--reserve", "4X"), "--reserve");
    expect_usage(ARGS(CLI_MODEL, "--effort", "huge"), "low, medium, high or max");
    expect_usage(ARGS(CLI_MODEL, "--stop", "1", "--stop", "2", "--stop", "3", "--stop", "4", "--stop", "5"),
                 "at most 4");
    expect_usage(ARGS(CLI_MODEL, "--stop", ""), "--stop");
    expect_usage(ARGS(CLI_MODEL, "-p", "x", "--stdin"), "exclude each other");
    expect_usage(ARGS(CLI_MODEL, "-p"), "-p");
    expect_usage(ARGS(CLI_MODEL, "--quiet=1"), "takes no value");
    expect_usage(ARGS(CLI_MODEL, "--render-only"), "--prompt");
    expect_usage(ARGS(CLI_MODEL, "--detokenize", "4096"), "0 to 4095");
    expect_usage(ARGS(CLI_MODEL, "--range-backend", "fast"), "default, blas or kda-blas");
    expect_usage(ARGS(CLI_MODEL, "--range-backend", "blas", "-p", "x"), "expected a GPU");
    expect_usage(ARGS(CLI_MODEL, "--url", "http://x"), "not available in this version");
    expect_usage(ARGS(CLI_MODEL, "--schema", "f", "-p", "x"), "not available in this version");
    expect_usage(ARGS(CLI_MODEL, "--json-object", "-p", "x"), "not available in this version");
    expect_usage(ARGS(CLI_MODEL, "--decode-diagnostics", "d", "-p", "x"), "not available in this version");
}

static void tokens_and_rendering(void **state) {
    (void)state;
    static const char ids[] =
        "3843 264 280 269 333 1 3845 1078 791 13 3844 264 3845 3842 3843 264 280 269 328 1 3845 3843 292 3845";
    expect(ARGS(CLI_MODEL, "--tokenize", "Say hello."), "", 0, "1078 791 13\n");
    expect(ARGS(CLI_MODEL, "--detokenize", "1078, 791 13,3842"), "", 0, "Say hello.<|end_of_msg|>\n");
    char output[1024];
    (void)snprintf(output, sizeof output,
                   "%s\n<|open|>message role=\"user\"<|sep|>Say hello.<|close|>message<|sep|><|end_of_msg|>"
                   "<|open|>message role=\"assistant\"<|sep|><|open|>response<|sep|>\n",
                   ids);
    expect(ARGS(CLI_MODEL, "--render-only", "-p", "Say hello."), "", 0, output);
    expect(ARGS(CLI_MODEL, "--render-only", "--stdin"), "Say hello.", 0, output);
    expect(ARGS(CLI_MODEL, "--json", "--tokenize", "Say hello."), "", 0, "{\"count\":3,\"ids\":[1078,791,13]}\n");
}

static void a_missing_model_is_named(void **state) {
    (void)state;
    cli c;
    assert_int_equal(chat(&c, ARGS("/nonexistent/model", "-p", "x"), ""), 1);
    assert_string_equal(c.out_text.data, "");
    assert_true(says(&c.err_text, "/nonexistent/model/config.json"));
    cli_free(&c);
    assert_int_equal(chat(&c, ARGS("/nonexistent/model", "-p", "x", "--json"), ""), 1);
    assert_true(says(&c.out_text, "{\"error\":{\"code\":\"io\",\"message\":"));
    cli_free(&c);
}

/* The context of `moonshine plan` under a value of MOONSHINE_CONTEXT. */
static unsigned long planned_context(const char *value, const char *option) {
    const char *folder = getenv("MOONSHINE_BIN");
    char line[1024], text[4096];
    (void)snprintf(line, sizeof line, "MOONSHINE_CONTEXT=%s '%s/moonshine' plan %s %s", value,
                   folder && *folder ? folder : "build", CLI_MODEL, option);
    FILE *p = popen(line, "r");
    assert_non_null(p);
    size_t n = fread(text, 1, sizeof text - 1, p);
    text[n] = 0;
    (void)pclose(p);
    const char *at = strstr(text, ", context ");
    assert_non_null(at);
    return strtoul(at + strlen(", context "), NULL, 10);
}

static void plan_takes_the_context_from_the_environment(void **state) {
    (void)state;
    assert_int_equal(planned_context("100", ""), 100);
    assert_int_equal(planned_context("100", "--context 200"), 200);
    assert_true(planned_context("", "") > 200);
}

static void what_does_not_fit_is_refused(void **state) {
    (void)state;
    cli c;
    assert_int_equal(chat(&c, ARGS(CLI_MODEL, "-p", "x", "--reserve", "900000G"), ""), 3);
    assert_string_equal(c.out_text.data, "");
    assert_true(says(&c.err_text, "does not fit"));
    cli_free(&c);
}

/* ------------------------------------------------------------------ one turn */

static void hello(void **state) {
    (void)state;
    cli c;
    assert_int_equal(chat(&c, ARGS(CLI_MODEL, "--prompt", "Say hello."), ""), 0);
    assert_string_equal(c.out_text.data, HELLO "\n");
    assert_int_equal(stat_value(&c.err_text, 0, "[prompt="), 24);
    assert_int_equal(stat_value(&c.err_text, 0, "; generated="), 17);
    assert_int_equal(stat_value(&c.err_text, 0, "; forced="), 0);
    assert_int_equal(stat_value(&c.err_text, 0, "; position="), 41);
    assert_true(says(&c.err_text, " layer-major "));
    assert_true(says(&c.err_text, "; finish=end_of_message;"));
    assert_true(says(&c.err_text, "[prefill read="));
    assert_true(says(&c.err_text, "ready: "));
    cli_free(&c);
    assert_int_equal(chat(&c, ARGS(CLI_MODEL, "-p", "Say hello.", "--quiet", "--sequential-limit", "24"), ""), 0);
    assert_string_equal(c.out_text.data, HELLO "\n");
    assert_string_equal(c.err_text.data, "");
    cli_free(&c);
    expect(ARGS("--stdin", CLI_MODEL), "Say hello.", 0, HELLO "\n");
    expect(ARGS("--prompt-file", "-", CLI_MODEL, "--sequential-limit", "24", "--experts", "0"), "Say hello.", 0,
           HELLO "\n");
}

static void a_path_with_spaces_and_accents(void **state) {
    (void)state;
    char folder[64], target[4096];
    cli_make_folder(folder);
    assert_non_null(realpath(CLI_MODEL, target));
    const char *link = cli_path(folder, "m\xC3\xB6"
                                        "dell \xE6\xA8\xA1\xE5\x9E\x8B 1");
    assert_int_equal(symlink(target, link), 0);
    expect(ARGS(link, "-p", "Say hello."), "", 0, HELLO "\n");
    cli_remove_folder(folder);
}

static void the_length_limit_forces_the_end(void **state) {
    (void)state;
    cli c;
    assert_int_equal(chat(&c, ARGS(CLI_MODEL, "-n", "3"), "Say hello.\nWhat is the capital of France?\n"), 0);
    assert_true(says(&c.err_text, "; finish=length;"));
    assert_int_equal(stat_value(&c.err_text, 0, "; forced="), 7);
    assert_int_equal(stat_value(&c.err_text, 0, "; position="), 24 + 3 + 7);
    /* The second turn only evaluates what is new. */
    assert_int_equal(stat_value(&c.err_text, 1, "[prompt="), 28);
    assert_int_equal(stat_value(&c.err_text, 1, "; position="), 34 + 28 + 3 + 7);
    cli_free(&c);
}

static void stop_strings(void **state) {
    (void)state;
    expect(ARGS(CLI_MODEL, "-p", "Say hello.", "--stop", "help"), "", 0, "Hello! \xF0\x9F\x91\x8B How can I \n");
    expect(ARGS(CLI_MODEL, "-p", "Say hello.", "--stop", "today?!", "--stop", "can I help", "--stop", "can"), "", 0,
           "Hello! \xF0\x9F\x91\x8B How \n");
    expect(ARGS(CLI_MODEL, "-p", "Say hello.", "--stop", "today?!"), "", 0, HELLO "\n");
    cli c;
    assert_int_equal(chat(&c, ARGS(CLI_MODEL, "-p", "Say hello.", "--stop", "Hello"), ""), 0);
    assert_string_equal(c.out_text.data, "\n");
    assert_true(says(&c.err_text, "(no response content)"));
    assert_true(says(&c.err_text, "; finish=stop;"));
    cli_free(&c);
}

static void sampling_repeats_with_its_seed(void **state) {
    (void)state;
    cli a, b;
    const char *const *args =
        ARGS(CLI_MODEL, "-p", "Tell me a story.", "--temperature", "1.5", "--seed", "-7", "-n", "24");
    assert_int_equal(chat(&a, args, ""), 0);
    assert_int_equal(chat(&b, args, ""), 0);
    assert_string_equal(a.out_text.data, b.out_text.data);
    cli_free(&a);
    cli_free(&b);
    assert_int_equal(chat(&a, ARGS(CLI_MODEL, "-p", "Say hello.", "--top-k", "5"), ""), 0);
    assert_true(says(&a.err_text, "have no effect"));
    cli_free(&a);
}

static void reasoning_goes_to_standard_error(void **state) {
    (void)state;
    cli c;
    assert_int_equal(chat(&c, ARGS(CLI_MODEL, "-p", "Say hello.", "--think", "--show-reasoning"), ""), 0);
    assert_string_equal(c.out_text.data, HELLO "\n");
    assert_true(says(&c.err_text, "The user wants a greeting"));
    cli_free(&c);
    assert_int_equal(chat(&c, ARGS(CLI_MODEL, "-p", "Say hello.", "--think"), ""), 0);
    assert_false(says(&c.err_text, "The user wants a greeting"));
    cli_free(&c);
}

static const ms_json *path(const ms_json *v, const char *a, const char *b) {
    v = ms_json_get(v, a);
    return b ? ms_json_get(v, b) : v;
}

static void json_output(void **state) {
    (void)state;
    cli c;
    ms_json_doc *doc;
    uint64_t n;
    assert_int_equal(chat(&c, ARGS(CLI_MODEL, "--json", "--quiet", "--think", "-p", "Say hello."), ""), 0);
    assert_int_equal(ms_json_parse(&doc, c.out_text.data, c.out_text.len, "output", NULL, NULL), MS_OK);
    const ms_json *root = ms_json_root(doc);
    assert_true(ms_json_is_string(path(root, "content", NULL), HELLO));
    assert_true(path(root, "reasoning_content", NULL)->str_len > 10);
    assert_true(ms_json_is_string(path(root, "finish_reason", NULL), "stop"));
    assert_true(ms_json_u64(path(root, "usage", "prompt_tokens"), &n));
    assert_int_equal(n, 87);
    assert_true(ms_json_u64(path(root, "prefill", "evaluated"), &n));
    assert_int_equal(n, 87);
    assert_non_null(path(root, "tool_calls", NULL));
    assert_non_null(path(root, "timing", "load_seconds"));
    assert_non_null(path(root, "prefill", "strategy"));
    assert_non_null(path(root, "position", NULL));
    assert_non_null(path(root, "forced_trailer", NULL));
    assert_non_null(path(root, "cache", "accesses"));
    ms_json_free(doc);
    cli_free(&c);
}

/* ------------------------------------------------------------------ conversations */

static void each_line_is_a_message(void **state) {
    (void)state;
    cli c;
    assert_int_equal(chat(&c, ARGS(CLI_MODEL), "Say hello.\n\nWhat is the capital of France?\n//quit\n"), 0);
    assert_int_equal(stat_value(&c.err_text, 0, "[prompt="), 24);
    assert_true(strncmp(c.out_text.data, HELLO "\n" PARIS "\n", strlen(HELLO "\n" PARIS "\n")) == 0);
    /* //quit was sent, not obeyed. */
    assert_true(stat_value(&c.err_text, 2, "[prompt=") > 0);
    cli_free(&c);
    expect(ARGS(CLI_MODEL), "Say hello.\n/quit\nSay hello.\n", 0, HELLO "\n");
    expect(ARGS(CLI_MODEL), "Say hello.", 0, HELLO "\n");
    cli lines, whole;
    assert_int_equal(chat(&lines, ARGS(CLI_MODEL, "--quiet", "--decode-state-digest"), "Say \\\nhello\\\n."), 0);
    assert_int_equal(chat(&whole, ARGS(CLI_MODEL, "--quiet", "--decode-state-digest", "-p", "Say \nhello\n."), ""), 0);
    assert_string_equal(lines.err_text.data, whole.err_text.data);
    cli_free(&lines);
    cli_free(&whole);
}

/* What a pipe ends in the middle of an entry is sent. */
static void the_end_of_a_pipe_ends_an_entry(void **state) {
    (void)state;
    cli whole, c;
    const char *const *args = ARGS(CLI_MODEL, "--quiet", "--decode-state-digest");
    assert_int_equal(chat(&whole, ARGS(CLI_MODEL, "--quiet", "--decode-state-digest", "-p", "Say\nhello."), ""), 0);
    assert_true(whole.out_text.len > 1);
    static const char *const inputs[] = {"/multi\nSay\nhello.\n", "/multi\nSay\nhello.", "Say\\\nhello.\\\n",
                                         "Say\\\nhello.\\", "/multi\r\nSay\r\nhello.\r\n.\r\n",
                                         "Say\\\r\nhello.\r\n/quit\r\n"};
    for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++) {
        assert_int_equal(chat(&c, args, inputs[i]), 0);
        assert_string_equal(c.out_text.data, whole.out_text.data);
        assert_string_equal(c.err_text.data, whole.err_text.data);
        cli_free(&c);
    }
    cli_free(&whole);
    expect(args, "/multi\n", 0, "");
    expect(args, "\\\n", 0, "");
}

static void the_same_as_one_long_prompt(void **state) {
    (void)state;
    char folder[64];
    cli_make_folder(folder);
    const char *request = cli_path(folder, "request.json");
    cli_write_file(
        request,
        "{\"thinking\":false,\"messages\":[{\"role\":\"user\",\"content\":\"Say hello.\"},{\"role\":\"assistant\","
        "\"content\":\"" HELLO "\"},{\"role\":\"user\",\"content\":\"What is the capital of France?\"}]}");
    cli turns, once;
    assert_int_equal(chat(&turns, ARGS(CLI_MODEL, "--quiet", "--decode-state-digest"),
                          "Say hello.\nWhat is the capital of France?\n"),
                     0);
    assert_int_equal(chat(&once, ARGS(CLI_MODEL, "--quiet", "--decode-state-digest", "--messages", request), ""), 0);
    assert_string_equal(once.out_text.data, PARIS "\n");
    assert_true(says(&once.err_text, "[digest position="));
    assert_non_null(strstr(turns.err_text.data, once.err_text.data));
    cli_free(&turns);
    cli_free(&once);
    cli_remove_folder(folder);
}

static void commands(void **state) {
    (void)state;
    cli c;
    assert_int_equal(
        chat(&c, ARGS(CLI_MODEL),
             "/system Be kind.\nSay hello.\n/regen\n/system late\n/effort low\nSay hello.\n/no-think\n/reset\n"
             "Say hello.\n/ctx\n/bogus\n/saved x\n/max 0\n/effort\n/help x\n/load /nonexistent/state\n"),
        1);
    assert_string_equal(c.out_text.data, HELLO "\n" HELLO "\n" HELLO "\n" HELLO "\n");
    long first = stat_value(&c.err_text, 0, "[prompt=");
    assert_true(first > 24);
    assert_int_equal(stat_value(&c.err_text, 1, "[prompt="), 0); /* /regen starts at the prompt's end */
    assert_true(stat_value(&c.err_text, 2, "[prompt=") > 41);    /* another effort evaluates everything again */
    assert_int_equal(stat_value(&c.err_text, 3, "[prompt="), first);
    assert_true(says(&c.err_text, "before the first turn"));
    assert_true(says(&c.err_text, "starts a new prefix"));
    assert_true(says(&c.err_text, "[position="));
    assert_true(says(&c.err_text, "unknown command /bogus"));
    assert_true(says(&c.err_text, "unknown command /saved"));
    assert_true(says(&c.err_text, "/max: expected a number from 1 to 1048576"));
    assert_true(says(&c.err_text, "/effort needs LEVEL"));
    assert_true(says(&c.err_text, "/nonexistent/state"));
    cli_free(&c);
}

static void multi_and_read(void **state) {
    (void)state;
    char folder[64], input[512];
    cli_make_folder(folder);
    const char *file = cli_path(folder, "a question");
    cli_write_file(file, "What is the capital of France?");
    (void)snprintf(input, sizeof input, "/multi\nSay\nhello.\n.\n/read %s\n/read %s/none\n", file, folder);
    cli c;
    assert_int_equal(chat(&c, ARGS(CLI_MODEL), input), 1);
    assert_true(says(&c.out_text, PARIS "\n"));
    assert_true(says(&c.err_text, "/none"));
    assert_true(stat_value(&c.err_text, 1, "[prompt=") > 0);
    cli_free(&c);
    cli_remove_folder(folder);
}

static void the_context_is_a_limit(void **state) {
    (void)state;
    cli c;
    assert_int_equal(chat(&c, ARGS(CLI_MODEL, "--context", "64"), "Say hello.\nWhat is the capital of France?\n"), 1);
    assert_string_equal(c.out_text.data, HELLO "\n");
    assert_true(says(&c.err_text, "maximum context length is 64 tokens"));
    cli_free(&c);
}

/* ------------------------------------------------------------------ state files */

static void saved_and_loaded_is_uninterrupted(void **state) {
    (void)state;
    char folder[64], input[512];
    struct stat st;
    cli_make_folder(folder);
    const char *file = cli_path(folder, "\xC3\xA4 state"), *second = cli_path(folder, "second");
    cli whole, tail;
    (void)snprintf(input, sizeof input, "My name is Ada.\n/save %s\nWhat is the capital of France?\n", file);
    assert_int_equal(chat(&whole, ARGS(CLI_MODEL, "--quiet", "--decode-state-digest"), input), 0);
    assert_int_equal(stat(file, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(chat(&tail,
                          ARGS(CLI_MODEL, "--quiet", "--decode-state-digest", "--load", file, "--save", second, "-p",
                               "What is the capital of France?"),
                          ""),
                     0);
    assert_string_equal(tail.out_text.data, PARIS "\n");
    assert_non_null(strstr(whole.err_text.data, tail.err_text.data)); /* digest and position of the second turn */
    assert_int_equal(stat(second, &st), 0);
    cli_free(&whole);
    cli_free(&tail);
    /* An existing file stays without --force; a damaged one changes nothing. */
    expect_refusal(ARGS(CLI_MODEL, "-p", "x", "--save", second), "--force");
    expect(ARGS(CLI_MODEL, "--save", second, "--force"), "Say hello.\n", 0, HELLO "\n");
    cli_write_file(file, "not a state file");
    (void)snprintf(input, sizeof input, "Say hello.\n/load %s\n/ctx\nWhat is the capital of France?\n", file);
    assert_int_equal(chat(&whole, ARGS(CLI_MODEL), input), 1);
    assert_string_equal(whole.out_text.data, HELLO "\n" PARIS "\n");
    assert_true(says(&whole.err_text, "[position=41 "));
    cli_free(&whole);
    expect_usage(ARGS(CLI_MODEL, "--load", second, "--system", "x"), "exclude each other");
    cli_remove_folder(folder);
}

static void save_targets_are_checked_before_loading(void **state) {
    (void)state;
    char folder[64], inner[80], missing[80];
    cli_make_folder(folder);
    (void)snprintf(inner, sizeof inner, "%s/", folder);
    (void)snprintf(missing, sizeof missing, "%s/none/state", folder);
    const char *fifo = cli_path(folder, "fifo"), *link = cli_path(folder, "link"), *file = cli_path(folder, "file");
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(symlink("nowhere", link), 0);
    cli_write_file(file, "mine");
    const char *const targets[] = {folder, inner, missing, fifo, link, "/dev/null"};
    for (size_t i = 0; i < sizeof targets / sizeof targets[0]; i++) {
        expect_refusal(ARGS(CLI_MODEL, "-p", "x", "--save", targets[i]), "--save: ");
        expect_refusal(ARGS(CLI_MODEL, "--save", targets[i], "--force"), "--save: ");
    }
    expect_refusal(ARGS(CLI_MODEL, "--save", file), "exists; --force");
    /* One that appears later is not replaced either. */
    cli c;
    const char *late = cli_path(folder, "late");
    cli_start(&c, "moonshine-chat", ARGS(CLI_MODEL, "--save", late));
    cli_send(&c, "Say hello.\n");
    assert_true(cli_wait_for(&c, &c.err_text, 0, "position=41"));
    cli_write_file(late, "mine");
    assert_int_equal(cli_finish(&c), 1);
    assert_true(says(&c.err_text, "file exists"));
    struct stat st;
    assert_int_equal(stat(late, &st), 0);
    assert_int_equal(st.st_size, 4);
    cli_free(&c);
    cli_remove_folder(folder);
}

static void a_cut_reply_continues_after_loading(void **state) {
    (void)state;
    char folder[64], input[512];
    cli_make_folder(folder);
    const char *file = cli_path(folder, "state");
    cli a, b;
    (void)snprintf(input, sizeof input, "Say hello.\n/save %s\nWhat is the capital of France?\n", file);
    assert_int_equal(chat(&a, ARGS(CLI_MODEL, "-n", "5", "--quiet", "--decode-state-digest"), input), 0);
    (void)snprintf(input, sizeof input, "/load %s\nWhat is the capital of France?\n/regen\n", file);
    assert_int_equal(chat(&b, ARGS(CLI_MODEL, "-n", "5", "--quiet", "--decode-state-digest"), input), 0);
    char *digest = strchr(a.err_text.data, '\n') + 1;
    size_t len = strlen(digest);
    assert_true(len > 40);
    assert_memory_equal(b.err_text.data, digest, len);  /* the continuation */
    assert_string_equal(b.err_text.data + len, digest); /* and its repetition */
    cli_free(&a);
    cli_free(&b);
    cli_remove_folder(folder);
}

/* ------------------------------------------------------------------ requests */

static void tool_calls(void **state) {
    (void)state;
    char folder[64];
    cli_make_folder(folder);
    const char *request = cli_path(folder, "request.json");
    cli_write_file(
        request,
        "{\"thinking\":false,\"max_tokens\":100,\"user\":\"me\",\"messages\":[{\"role\":\"user\",\"content\":"
        "\"What is the weather in Paris?\"}],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\","
        "\"description\":\"Weather\",\"parameters\":{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"}"
        "},"
        "\"required\":[\"city\"]}}}]}");
    cli c;
    ms_json_doc *doc;
    assert_int_equal(chat(&c, ARGS(CLI_MODEL, "--json", "--messages", request), ""), 0);
    assert_true(says(&c.err_text, "without effect: user"));
    assert_true(says(&c.err_text, "finish=tool_calls"));
    assert_int_equal(ms_json_parse(&doc, c.out_text.data, c.out_text.len, "output", NULL, NULL), MS_OK);
    const ms_json *root = ms_json_root(doc), *call = ms_json_at(ms_json_get(root, "tool_calls"), 0);
    assert_int_equal(ms_json_get(root, "content")->type, MS_JSON_NULL);
    assert_true(ms_json_is_string(ms_json_get(root, "finish_reason"), "tool_calls"));
    assert_true(ms_json_is_string(path(call, "function", "name"), "get_weather"));
    assert_true(ms_json_is_string(path(call, "function", "arguments"), "{\"city\":\"Paris\"}"));
    ms_json_free(doc);
    cli_free(&c);
    cli_remove_folder(folder);
}

static void wrong_requests(void **state) {
    (void)state;
    static const struct {
        const char *body, *part;
    } cases[] = {
        {"{\"messages\":[{\"role\":\"robot\",\"content\":\"x\"}]}", "messages[0].role"},
        {"{\"messages\":[", "request.json"},
        {"[]", "expected an object"},
        {"", "request.json"},
        {"{\"messages\":[],\"temperature\":3}", "temperature: expected a number from 0 to 2"},
        {"{\"messages\":[],\"max_tokens\":0}", "max_tokens: expected a whole number from 1"},
        {"{\"messages\":[],\"stop\":[\"\"]}", "stop"},
        {"{\"messages\":[],\"stop\":5}", "stop"},
        {"{\"thinking\":false,\"add_generation_prompt\":false,\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}",
         "add_generation_prompt: expected true"},
        {"{\"messages\":[],\"response_format\":{\"type\":\"json_object\"}}", "not available in this version"},
    };
    char folder[64];
    cli_make_folder(folder);
    const char *request = cli_path(folder, "request.json");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cli_write_file(request, cases[i].body);
        expect_usage(ARGS(CLI_MODEL, "--messages", request), cases[i].part);
        expect_usage(ARGS(CLI_MODEL, "--messages", request), "/request.json: ");
    }
    cli_remove_folder(folder);
}

/* ------------------------------------------------------------------ pipes and signals */

static void a_closed_output_ends_quietly(void **state) {
    (void)state;
    cli c;
    cli_start(&c, "moonshine-chat", ARGS(CLI_MODEL, "--quiet"));
    (void)close(c.out);
    c.out = -1;
    cli_send(&c, "Say hello.\nSay hello.\n");
    assert_int_equal(cli_finish(&c), 141);
    assert_string_equal(c.err_text.data, "");
    cli_free(&c);
}

/* Slow enough to be interrupted. */
#define SLOW "--kernels", "scalar", "--precision", "reference", "--threads", "1", "--static", "bf16"

static void an_interrupt_ends_a_piped_conversation(void **state) {
    (void)state;
    char folder[64];
    cli_make_folder(folder);
    const char *file = cli_path(folder, "state");
    cli c;
    cli_start(&c, "moonshine-chat", ARGS(CLI_MODEL, SLOW, "--save", file));
    cli_send(&c, "Tell me a story.\nWhat is the capital of France?\n");
    assert_true(cli_wait_for(&c, &c.out_text, 0, "Once"));
    cli_signal(&c, SIGINT);
    assert_int_equal(cli_finish(&c), 130);
    assert_true(c.out_text.len < 200);
    assert_null(strstr(c.out_text.data, "capital"));
    assert_true(says(&c.err_text, "interrupted after "));
    assert_true(says(&c.err_text, "tokens of the reply"));
    assert_int_equal(access(file, F_OK), -1);
    cli_free(&c);
    cli_remove_folder(folder);
}

static void an_interrupt_in_a_piped_prompt(void **state) {
    (void)state;
    cli c;
    ms_text longer = {0};
    for (int i = 0; i < 900; i++) ms_text_puts(&longer, "many words ");
    ms_text_puts(&longer, "\nSay hello.\n");
    cli_start(&c, "moonshine-chat",
              ARGS(CLI_MODEL, "--kernels", "scalar", "--threads", "1", "--sequential-limit", "100000"));
    cli_send(&c, "Say hello.\n");
    assert_true(cli_wait_for(&c, &c.err_text, 0, "position=41"));
    cli_send(&c, longer.data);
    (void)usleep(300 * 1000);
    cli_signal(&c, SIGINT);
    assert_int_equal(cli_finish(&c), 130);
    assert_string_equal(c.out_text.data, HELLO "\n");
    assert_true(says(&c.err_text, "interrupted in the prompt"));
    cli_free(&c);
    ms_text_free(&longer);
}

static void an_interrupt_between_piped_turns(void **state) {
    (void)state;
    static const char *const begun[] = {"", "What is the capital"}; /* nothing, and half a line */
    for (size_t i = 0; i < 2; i++) {
        cli c;
        cli_start(&c, "moonshine-chat", ARGS(CLI_MODEL));
        cli_send(&c, "Say hello.\n");
        assert_true(cli_wait_for(&c, &c.err_text, 0, "[prefill read="));
        cli_send(&c, begun[i]);
        (void)usleep(200 * 1000);
        cli_signal(&c, SIGINT);
        assert_int_equal(cli_finish(&c), 130);
        assert_string_equal(c.out_text.data, HELLO "\n");
        cli_free(&c);
    }
}

static void one_shot_ends_with_130_and_143(void **state) {
    (void)state;
    char folder[64];
    cli_make_folder(folder);
    const char *file = cli_path(folder, "state");
    for (int i = 0; i < 2; i++) {
        cli c;
        cli_start(&c, "moonshine-chat", ARGS(CLI_MODEL, SLOW, "-p", "Tell me a story.", "--save", file));
        assert_true(cli_wait_for(&c, &c.out_text, 0, "Once"));
        cli_signal(&c, i ? SIGTERM : SIGINT);
        assert_int_equal(cli_finish(&c), i ? 143 : 130);
        assert_int_equal(access(file, F_OK), -1);
        cli_free(&c);
    }
    cli_remove_folder(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(help_and_version_need_nothing),
        cmocka_unit_test(wrong_usage_names_the_argument),
        cmocka_unit_test(tokens_and_rendering),
        cmocka_unit_test(a_missing_model_is_named),
        cmocka_unit_test(plan_takes_the_context_from_the_environment),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(hello),
        cmocka_unit_test(a_path_with_spaces_and_accents),
        cmocka_unit_test(the_length_limit_forces_the_end),
        cmocka_unit_test(stop_strings),
        cmocka_unit_test(sampling_repeats_with_its_seed),
        cmocka_unit_test(reasoning_goes_to_standard_error),
        cmocka_unit_test(json_output),
        cmocka_unit_test(each_line_is_a_message),
        cmocka_unit_test(the_end_of_a_pipe_ends_an_entry),
        cmocka_unit_test(the_same_as_one_long_prompt),
        cmocka_unit_test(commands),
        cmocka_unit_test(multi_and_read),
        cmocka_unit_test(the_context_is_a_limit),
        cmocka_unit_test(saved_and_loaded_is_uninterrupted),
        cmocka_unit_test(save_targets_are_checked_before_loading),
        cmocka_unit_test(a_cut_reply_continues_after_loading),
        cmocka_unit_test(tool_calls),
        cmocka_unit_test(wrong_requests),
        cmocka_unit_test(a_closed_output_ends_quietly),
        cmocka_unit_test(an_interrupt_ends_a_piped_conversation),
        cmocka_unit_test(an_interrupt_in_a_piped_prompt),
        cmocka_unit_test(an_interrupt_between_piped_turns),
        cmocka_unit_test(one_shot_ends_with_130_and_143),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
