/* moonshine-chat on a pseudo terminal: editing, interrupts, escapes, history. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli_run.h"

#define HELLO     "Hello! \xF0\x9F\x91\x8B How can I help you today?"
#define PARIS     "The capital of France is Paris."
#define ARGS(...) ((const char *const[]){__VA_ARGS__, NULL})
/* Slow enough to be interrupted. */
#define SLOW "--kernels", "scalar", "--precision", "reference", "--threads", "1", "--static", "bf16"

static void start(cli *c, const char *const *args) {
    cli_start_terminal(c, "moonshine-chat", args);
    assert_true(cli_wait_for(c, &c->out_text, 0, "> "));
}

/* Sends keys and waits for what the program answers behind them. */
static void ask(cli *c, const char *keys, const char *answer) {
    size_t from = c->out_text.len;
    cli_send(c, keys);
    bool found = cli_wait_for(c, &c->out_text, from, answer);
    if (!found) print_error("expected \"%s\" in: %s\n", answer, c->out_text.data + from);
    assert_true(found);
}

static int quit(cli *c) {
    cli_send(c, "/quit\r");
    return cli_finish(c);
}

static void a_conversation_with_editing(void **state) {
    (void)state;
    cli c;
    start(&c, ARGS(CLI_MODEL));
    ask(&c, "Say hello\xC3\xA9\x7F.\r", HELLO); /* a backspace takes one character of two bytes */
    ask(&c, "", "position=41");
    ask(&c, "What is the capital of France?\r", PARIS);
    ask(&c, "/ctx\r", "[position=");
    ask(&c, "/help\r", "/no-think");
    assert_int_equal(quit(&c), 0);
    cli_free(&c);
}

static void the_end_of_input_leaves(void **state) {
    (void)state;
    cli c;
    start(&c, ARGS(CLI_MODEL));
    cli_send(&c, "\x04");
    assert_int_equal(cli_finish(&c), 0);
    cli_free(&c);
}

static void pasted_lines_are_one_message(void **state) {
    (void)state;
    cli c;
    start(&c, ARGS(CLI_MODEL, "--decode-state-digest"));
    ask(&c, "\033[200~Say\nhello.\033[201~\r", "[digest position=");
    size_t from = c.out_text.len;
    cli_send(&c, "/reset\r/multi\rSay\rhello.\r.\r");
    assert_true(cli_wait_for(&c, &c.out_text, from, "[digest position="));
    assert_int_equal(quit(&c), 0);
    const char *first = strstr(c.out_text.data, "[digest "), *second = strstr(first + 1, "[digest ");
    assert_non_null(second);
    assert_memory_equal(first, second, strcspn(first, "]"));
    cli_free(&c);
}

static void interrupts_at_the_prompt(void **state) {
    (void)state;
    cli c;
    start(&c, ARGS(CLI_MODEL));
    ask(&c, "garbage\x03", "(again to leave)");
    (void)usleep(2200 * 1000);
    ask(&c, "Say hello.\r", HELLO); /* the interrupted line is gone */
    ask(&c, "", "position=41");
    ask(&c, "\x03", "(again to leave)");
    cli_send(&c, "\x03");
    assert_int_equal(cli_finish(&c), 130);
    cli_free(&c);
}

static void an_interrupt_in_a_turn(void **state) {
    (void)state;
    cli c;
    start(&c, ARGS(CLI_MODEL, SLOW));
    ask(&c, "Tell me a story.\r", "Once");
    ask(&c, "\x03", "tokens of the reply are kept");
    (void)usleep(2200 * 1000);
    ask(&c, "Say hello.\r", "position=");
    ask(&c, "Tell me a story.\r", "Once");
    cli_send(&c, "\x03");
    (void)usleep(20 * 1000);
    cli_send(&c, "\x03");
    assert_int_equal(cli_finish(&c), 130);
    cli_free(&c);
}

static void an_interrupt_in_the_prompt_keeps_the_conversation(void **state) {
    (void)state;
    char folder[64], line[128];
    cli_make_folder(folder);
    const char *file = cli_path(folder, "long");
    ms_text longer = {0};
    for (int i = 0; i < 900; i++) ms_text_puts(&longer, "many words ");
    cli_write_file(file, longer.data);
    ms_text_free(&longer);
    cli c;
    start(&c, ARGS(CLI_MODEL, "--kernels", "scalar", "--threads", "1", "--sequential-limit", "100000"));
    ask(&c, "Say hello.\r", "position=41");
    (void)snprintf(line, sizeof line, "/read %s\r", file);
    cli_send(&c, line);
    (void)usleep(400 * 1000);
    ask(&c, "\x03", "interrupted in the prompt");
    (void)usleep(2200 * 1000);
    ask(&c, "/ctx\r", "[position=41 ");
    ask(&c, "What is the capital of France?\r", PARIS);
    ask(&c, "", "position=");
    assert_int_equal(quit(&c), 0);
    cli_free(&c);
    cli_remove_folder(folder);
}

static void mistyped_commands_are_no_failure(void **state) {
    (void)state;
    cli c;
    start(&c, ARGS(CLI_MODEL));
    ask(&c, "/bogus\r", "unknown command /bogus");
    ask(&c, "/effort\r", "/effort needs LEVEL");
    ask(&c, "/effort much\r", "expected low, medium, high or max");
    ask(&c, "/quit now\r", "takes nothing after it");
    ask(&c, "/max 0\r", "expected a number from 1");
    ask(&c, "/help\r", "only with --force");
    assert_int_equal(quit(&c), 0);
    cli_free(&c);
}

static void termination_at_the_prompt(void **state) {
    (void)state;
    cli c;
    start(&c, ARGS(CLI_MODEL));
    cli_signal(&c, SIGTERM);
    assert_int_equal(cli_finish(&c), 143);
    cli_free(&c);
}

static void colours_only_where_wanted(void **state) {
    (void)state;
    cli c;
    const char *const *args = ARGS(CLI_MODEL, "-p", "Say hello.", "--think", "--show-reasoning");
    cli_start_terminal(&c, "moonshine-chat", args);
    assert_int_equal(cli_finish(&c), 0);
    assert_non_null(strstr(c.out_text.data, "\033[2m"));
    cli_free(&c);
    args = ARGS(CLI_MODEL, "-p", "Say hello.", "--think", "--show-reasoning", "--color", "never");
    cli_start_terminal(&c, "moonshine-chat", args);
    assert_int_equal(cli_finish(&c), 0);
    assert_null(strchr(c.out_text.data, '\033'));
    cli_free(&c);
}

static void control_characters_are_escaped(void **state) {
    (void)state;
    cli c;
    cli_start_terminal(&c, "moonshine-chat",
                       ARGS(CLI_MODEL, "--render-only", "-p",
                            "a\033[31mb\rc\xC2\x9B"
                            "d"));
    assert_int_equal(cli_finish(&c), 0);
    assert_non_null(strstr(c.out_text.data, "a\\x1b[31mb\\x0dc\\x9bd"));
    cli_free(&c);
}

static void history_is_kept_privately(void **state) {
    (void)state;
    char folder[64];
    struct stat st;
    cli_make_folder(folder);
    const char *file = cli_path(folder, "history");
    cli c;
    start(&c, ARGS(CLI_MODEL, "--history", file));
    ask(&c, "Say hello.\r", "position=41");
    assert_int_equal(quit(&c), 0);
    cli_free(&c);
    assert_int_equal(stat(file, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    start(&c, ARGS(CLI_MODEL, "--history", file));
    ask(&c, "\x10\x10\r", "position=41"); /* the line before /quit */
    assert_int_equal(quit(&c), 0);
    cli_free(&c);
    cli_remove_folder(folder);
}

/* Neither followed nor waited for: refused before the model is loaded. */
static void what_cannot_be_a_history_is_refused(void **state) {
    (void)state;
    char folder[64], missing[80];
    cli_make_folder(folder);
    (void)snprintf(missing, sizeof missing, "%s/none/history", folder);
    const char *link = cli_path(folder, "link"), *fifo = cli_path(folder, "fifo"), *file = cli_path(folder, "file");
    cli_write_file(file, "_HiStOrY_V2_\n");
    assert_int_equal(symlink("file", link), 0);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    const char *const paths[] = {link, fifo, folder, missing, "/dev/null"};
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        cli c;
        cli_start_terminal(&c, "moonshine-chat", ARGS(CLI_MODEL, "--history", paths[i]));
        assert_int_equal(cli_finish(&c), 1);
        assert_non_null(strstr(c.out_text.data, "--history: "));
        assert_null(strstr(c.out_text.data, "ready: "));
        cli_free(&c);
    }
    cli_remove_folder(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_conversation_with_editing),  cmocka_unit_test(the_end_of_input_leaves),
        cmocka_unit_test(pasted_lines_are_one_message), cmocka_unit_test(interrupts_at_the_prompt),
        cmocka_unit_test(an_interrupt_in_a_turn),       cmocka_unit_test(termination_at_the_prompt),
        cmocka_unit_test(colours_only_where_wanted),    cmocka_unit_test(control_characters_are_escaped),
        cmocka_unit_test(history_is_kept_privately),    cmocka_unit_test(what_cannot_be_a_history_is_refused),
        cmocka_unit_test(mistyped_commands_are_no_failure),
        cmocka_unit_test(an_interrupt_in_the_prompt_keeps_the_conversation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
