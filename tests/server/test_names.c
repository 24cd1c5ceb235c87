/* Options under the names that one family has had: taken and mapped for its models, refused for others. */
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

#include "http_client.h"
#include "mimo_checkpoint.h"
#include "program.h"

#define FAST "--port", "0", "--threads", "1", "--reserve", "0"

static char dir[MIMO_TEST_PATH];

static int make_checkpoint(void **state) {
    (void)state;
    mimo_checkpoint_make(dir, 4);
    return 0;
}

static int remove_checkpoint(void **state) {
    (void)state;
    mimo_checkpoint_remove(dir);
    return 0;
}

/* messages: JSON texts, without the brackets. */
static void ask(program *p, const char *messages, http_response *r) {
    ms_text t = {0};
    ms_text_printf(&t,
                   "{\"model\":\"mimo-v2.6-flash\",\"max_tokens\":8,\"reasoning_effort\":\"none\",\"messages\":[%s]}",
                   messages);
    http_call(p->port, "POST", "/v1/chat/completions", NULL, t.data, r);
    ms_text_free(&t);
    if (r->status != 200) fail_msg("%d %s", r->status, r->body.data ? r->body.data : "");
}

#define SAME "{\"role\":\"user\",\"content\":\"The same words again and again.\"}"

/* The same request twice: what the second finds of the first. */
static long kept_of(program *p) {
    http_response r;
    ask(p, SAME, &r);
    http_free(&r);
    for (int i = 0; i < 200; i++) { /* the slot may still be taken */
        http_call(p->port, "GET", "/slots", NULL, NULL, &r);
        bool idle = r.body.data && strstr(r.body.data, "\"idle\"");
        http_free(&r);
        if (idle) break;
        (void)usleep(5000);
    }
    ask(p, SAME, &r);
    long kept = http_number(&r, "usage.prompt_tokens_details.cached_tokens");
    http_free(&r);
    return kept;
}

static void its_models_take_them(void **state) {
    (void)state;
    program p;
    char states[64] = "/tmp/ms-names-XXXXXX", command[128];
    assert_non_null(mkdtemp(states));
    const char *const args[] = {dir,
                                FAST,
                                "--slots-endpoint",
                                "--slots",
                                "3",
                                "--prefill-chunk",
                                "32",
                                "--expert-lookahead",
                                "off",
                                "--expert-major=off",
                                "--retain-experts",
                                "on",
                                "--kv-prefix-reuse",
                                "on",
                                "--request-deadline-seconds",
                                "60",
                                "--prefix-cache-dir",
                                states,
                                "--prefix-cache-entries",
                                "2",
                                "--prefix-cache-gib",
                                "1",
                                NULL};
    program_start(&p, args);
    program_ready(&p);
    assert_non_null(strstr(p.log.data, " experts=3 "));
    assert_true(kept_of(&p) > 0);
    assert_int_equal(program_end(&p, SIGTERM), 0);
    assert_non_null(strstr(p.log.data, "strategy=token-major"));
    assert_null(strstr(p.log.data, "strategy=layer-major"));
    program_free(&p);
    const char *const off[] = {
        dir, FAST, "--slots-endpoint", "--slots", "3", "--retain-experts", "off", "--kv-prefix-reuse", "off", NULL};
    program_start(&p, off);
    program_ready(&p);
    assert_non_null(strstr(p.log.data, " experts=0 "));
    assert_int_equal(kept_of(&p), 0);
    assert_int_equal(program_end(&p, SIGTERM), 0);
    program_free(&p);
    (void)snprintf(command, sizeof command, "rm -rf -- '%s'", states);
    assert_int_equal(system(command), 0);
}

/* What the folder keeps, a later server finds. */
static void states_outlive_the_server(void **state) {
    (void)state;
    char states[64] = "/tmp/ms-names-XXXXXX", command[128];
    assert_non_null(mkdtemp(states));
    const char *const args[] = {dir, FAST, "--context", "2048", "--prefix-cache-dir", states, NULL};
    ms_text words = {0};
    ms_text_puts(&words, "{\"role\":\"user\",\"content\":\"");
    for (int i = 0; i < 120; i++) ms_text_printf(&words, "word%d ", i); /* short prompts are not kept */
    ms_text_puts(&words, "\"}");
    long kept[2];
    for (int i = 0; i < 2; i++) {
        program p;
        http_response r;
        program_start(&p, args);
        program_ready(&p);
        ask(&p, words.data, &r);
        kept[i] = http_number(&r, "usage.prompt_tokens_details.cached_tokens");
        http_free(&r);
        assert_int_equal(program_end(&p, SIGTERM), 0);
        assert_true((strstr(p.log.data, "prefix.checkpoint.restore") != NULL) == (i == 1));
        program_free(&p);
        ms_text_puts(&words, ",{\"role\":\"assistant\",\"content\":\"Yes.\"},{\"role\":\"user\",\"content\":\"And?\"}");
    }
    assert_int_equal(kept[0], 0);
    assert_true(kept[1] > 500);
    ms_text_free(&words);
    (void)snprintf(command, sizeof command, "rm -rf -- '%s'", states);
    assert_int_equal(system(command), 0);
}

static void others_refuse_them(void **state) {
    (void)state;
    static const char *const cases[][2] = {{"--slots", "3"},
                                           {"--prefill-chunk", "32"},
                                           {"--expert-lookahead", "on"},
                                           {"--expert-major", "on"},
                                           {"--retain-experts", "on"},
                                           {"--kv-prefix-reuse", "on"},
                                           {"--prefix-cache-dir", "/tmp"},
                                           {"--prefix-cache-entries", "2"},
                                           {"--prefix-cache-gib", "1"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        program p;
        const char *const args[] = {"models/k3-nano", FAST, cases[i][0], cases[i][1], NULL};
        assert_int_equal(program_exit(&p, args), 2);
        assert_non_null(strstr(p.log.data, cases[i][0]));
        assert_string_equal(strchr(p.log.data, '\n'), "\n"); /* one line */
        program_free(&p);
    }
}

/* Kept states are for what gives the same bits again. */
static void no_kept_states_with_blas(void **state) {
    (void)state;
    program p;
    const char *const args[] = {"models/k3-nano", FAST, "--range-backend", "blas", "--prefix-checkpoint-root", "/tmp",
                                NULL};
    assert_int_equal(program_exit(&p, args), 2);
    assert_non_null(strstr(p.log.data, "--range-backend blas: expected no folder of kept states, found /tmp"));
    program_free(&p);
}

static void wrong_values(void **state) {
    (void)state;
    static const char *const cases[][5] = {{"--slots", "5"},
                                           {"--slots", "-1"},
                                           {"--slots"},
                                           {"--prefill-chunk", "0"},
                                           {"--expert-major", "1"},
                                           {"--retain-experts", "yes"},
                                           {"--prefix-cache-gib", "0"},
                                           {"--prefill-chunk", "automatic"},
                                           {"--slots", "3", "--experts", "3"},
                                           {"--prefill-chunk", "8", "--range", "8"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        program p;
        const char *const args[] = {dir, FAST, cases[i][0], cases[i][1], cases[i][2], cases[i][3], NULL};
        int code = program_exit(&p, args);
        if (code != 2) fail_msg("case %zu: %d %s", i, code, p.log.data ? p.log.data : "");
        program_free(&p);
    }
}

/* What is said when it does not start: one line with these words, and nothing was begun. */
static void refuses(const char *const *args, const char *one, const char *other) {
    program p;
    int code = program_exit(&p, args);
    const char *log = p.log.data ? p.log.data : "";
    if (code != 2 || !strstr(log, one) || !strstr(log, other)) fail_msg("%s: %d %s", one, code, log);
    assert_string_equal(strchr(log, '\n'), "\n");
    assert_null(strstr(log, "server."));
    program_free(&p);
}

static void bounds_need_a_folder(void **state) {
    (void)state;
    static const char *const cases[][3] = {{"--prefix-cache-gib", "1", "needs --prefix-cache-dir"},
                                           {"--prefix-cache-entries", "2", "needs --prefix-cache-dir"},
                                           {"--prefix-checkpoint-bytes", "1G", "needs --prefix-checkpoint-root"},
                                           {"--prefix-checkpoint-entries", "2", "needs --prefix-checkpoint-root"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *const args[] = {dir, FAST, cases[i][0], cases[i][1], NULL};
        refuses(args, cases[i][0], cases[i][2]);
    }
}

/* Whatever is wrong with the folder of states is the same exit status, before the model is loaded. */
static void a_folder_that_cannot_be(void **state) {
    (void)state;
    char base[64] = "/tmp/ms-names-XXXXXX", path[8][400], command[128];
    assert_non_null(mkdtemp(base));
    static const char *const names[] = {"none/states", "file", "file/states", "link", "open"};
    for (size_t i = 0; i < 5; i++) (void)snprintf(path[i], sizeof path[i], "%s/%s", base, names[i]);
    (void)snprintf(path[5], sizeof path[5], "%s/%0300d", base, 0);
    (void)snprintf(path[6], sizeof path[6], "/proc/states");
    (void)snprintf(command, sizeof command, "cd %s && touch file && ln -s . link && mkdir -m 755 open", base);
    assert_int_equal(system(command), 0);
    for (size_t i = 0; i < 7; i++) {
        const char *const args[] = {dir, FAST, "--prefix-cache-dir", path[i], NULL};
        refuses(args, "--prefix-cache-dir: ", path[i]);
        const char *const common[] = {dir, FAST, "--prefix-checkpoint-root", path[i], NULL};
        refuses(common, "--prefix-checkpoint-root: ", path[i]);
    }
    (void)snprintf(command, sizeof command, "rm -rf -- '%s'", base);
    assert_int_equal(system(command), 0);
}

/* A chunk as long as memory allows. */
static void chunks_as_long_as_fit(void **state) {
    (void)state;
    program p;
    http_response r;
    const char *const args[] = {dir, FAST, "--prefill-chunk", "auto", NULL};
    program_start(&p, args);
    program_ready(&p);
    ask(&p, SAME, &r);
    http_free(&r);
    assert_int_equal(program_end(&p, SIGTERM), 0);
    program_free(&p);
    const char *const small[] = {dir, FAST, "--prefill-chunk", "auto", "--range", "8", NULL};
    refuses(small, "--prefill-chunk", "--range");
}

/* The name for the server, also through a link and from elsewhere. */
static void the_other_name(void **state) {
    (void)state;
    program p;
    char tool[512], link[MIMO_TEST_PATH + 32];
    assert_non_null(realpath("tools/mimo26_server", tool));
    (void)snprintf(link, sizeof link, "%s/server", dir);
    assert_int_equal(symlink(tool, link), 0);
    const char *const args[] = {dir, FAST, "--slots", "2", NULL};
    program_start_path(&p, link, args);
    program_ready(&p);
    assert_non_null(strstr(p.log.data, " experts=2 "));
    assert_int_equal(program_end(&p, SIGTERM), 0);
    program_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(its_models_take_them),   cmocka_unit_test(states_outlive_the_server),
        cmocka_unit_test(others_refuse_them),     cmocka_unit_test(no_kept_states_with_blas),
        cmocka_unit_test(wrong_values),           cmocka_unit_test(bounds_need_a_folder),
        cmocka_unit_test(a_folder_that_cannot_be), cmocka_unit_test(chunks_as_long_as_fit),
        cmocka_unit_test(the_other_name)};
    return cmocka_run_group_tests(tests, make_checkpoint, remove_checkpoint);
}
