/* The program with the small model: a conversation over restarts, signals, exit codes, and a log without content. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "http_client.h"
#include "program.h"
#include "server_fixture.h"

static char folder[64];

static const char *state_root(void) {
    static char path[96];
    (void)snprintf(path, sizeof path, "%s/states", folder);
    return path;
}

static int make_folder(void **state) {
    (void)state;
    (void)snprintf(folder, sizeof folder, "/tmp/moonshine-server-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    char command[128];
    (void)snprintf(command, sizeof command, "rm -rf -- '%s'", folder);
    return system(command);
}

/* ------------------------------------------------------------------ conversations */

static void tool_turn(program *p, ms_text *m, size_t turn, long *kept) {
    static const char *const cities[] = {"Paris", "Rome", "Berlin", "Oslo"};
    http_response r;
    ms_text_printf(m, "%s{\"role\":\"user\",\"content\":\"What is the weather in %s?\"}", turn ? "," : "",
                   cities[turn]);
    chat(p->port, m->data, "," TOOLS ",\"tool_choice\":\"required\"", &r);
    assert_int_equal(cached(&r), *kept);
    *kept = total(&r);
    assert_string_equal(http_text(&r, "choices.0.finish_reason"), "tool_calls");
    replay(m, &r);
    ms_text_printf(m, ",{\"role\":\"tool\",\"tool_call_id\":\"%s\",\"content\":\"18 degrees\"}",
                   http_text(&r, "choices.0.message.tool_calls.0.id"));
    http_free(&r);
    chat(p->port, m->data, "," TOOLS, &r);
    assert_int_equal(cached(&r), *kept);
    *kept = total(&r);
    replay(m, &r);
    http_free(&r);
}

/* Four turns with tools: each keeps everything before it, also behind a side request and a restart; without its
 * reasoning the conversation is evaluated again. */
static void a_tool_conversation(void **state) {
    (void)state;
    const char *const args[] = {PLAIN, "--prefix-checkpoint-root", state_root(), NULL};
    program p;
    ms_text m = {0};
    http_response r;
    long kept = 0;
    program_start(&p, args);
    program_ready(&p);
    for (size_t turn = 0; turn < 2; turn++) tool_turn(&p, &m, turn, &kept);
    chat(p.port, "{\"role\":\"user\",\"content\":\"Give this a title.\"}", ",\"reasoning_effort\":\"low\"", &r);
    http_free(&r);
    tool_turn(&p, &m, 2, &kept);
    assert_int_equal(program_end(&p, SIGTERM), 0);
    program_free(&p);
    program_start(&p, args);
    program_ready(&p);
    tool_turn(&p, &m, 3, &kept);
    ms_text bare = {0};
    for (const char *s = m.data; *s;) { /* what some clients send: no reasoning */
        static const char key[] = ",\"reasoning_content\":\"";
        if (strncmp(s, key, sizeof key - 1) == 0) {
            s = strchr(s + sizeof key - 1, '"') + 1;
            continue;
        }
        ms_text_append(&bare, s++, 1);
    }
    ms_text_puts(&bare, ",{\"role\":\"user\",\"content\":\"Thank you.\"}");
    chat(p.port, bare.data, "," TOOLS, &r);
    assert_true(cached(&r) < kept / 2);
    assert_int_equal(program_end(&p, SIGINT), 0);
    assert_non_null(strstr(p.log.data, "prefix.checkpoint.restore"));
    assert_non_null(strstr(p.log.data, "server.stop"));
    program_free(&p);
    const char *const cold_args[] = {PLAIN, "--prefix-reuse", "off", NULL};
    http_response cold;
    program_start(&p, cold_args);
    program_ready(&p);
    chat(p.port, bare.data, "," TOOLS, &cold);
    assert_int_equal(cached(&cold), 0);
    static const char *const parts[] = {"choices.0.message.reasoning_content", "choices.0.message.content"};
    for (size_t i = 0; i < 2; i++) assert_string_equal(http_text(&r, parts[i]), http_text(&cold, parts[i]));
    http_free(&cold);
    http_free(&r);
    assert_int_equal(program_end(&p, SIGTERM), 0);
    program_free(&p);
    ms_text_free(&m);
    ms_text_free(&bare);
}

/* The same words whatever was kept. */
static void reuse_changes_nothing(void **state) {
    (void)state;
    const char *const with[] = {PLAIN, NULL}, *const without[] = {PLAIN, "--prefix-reuse", "off", NULL};
    ms_text said[2] = {{0}, {0}};
    for (int i = 0; i < 2; i++) {
        program p;
        ms_text m = {0};
        program_start(&p, i ? without : with);
        program_ready(&p);
        static const char *const says[] = {"Hello!", "What is the capital of France?", "And of Italy?"};
        for (size_t turn = 0; turn < 3; turn++) {
            http_response r;
            ms_text_printf(&m, "%s{\"role\":\"user\",\"content\":\"%s\"}", turn ? "," : "", says[turn]);
            chat(p.port, m.data, "", &r);
            ms_text_puts(&said[i], http_text(&r, "choices.0.message.reasoning_content"));
            ms_text_puts(&said[i], http_text(&r, "choices.0.message.content"));
            replay(&m, &r);
            http_free(&r);
        }
        assert_int_equal(program_end(&p, SIGTERM), 0);
        program_free(&p);
        ms_text_free(&m);
    }
    assert_string_equal(said[0].data, said[1].data);
    ms_text_free(&said[0]);
    ms_text_free(&said[1]);
}

/* A commit where it was built in a repository, else nothing. */
static void check_build(program *p) {
    http_response r;
    char commit[64] = "";
    FILE *git = popen("test -e .git && git rev-parse --short=12 HEAD 2>/dev/null", "r");
    assert_non_null(git);
    bool known = fgets(commit, sizeof commit, git) != NULL;
    (void)pclose(git);
    http_call(p->port, "GET", "/health", NULL, NULL, &r);
    const char *build = http_text(&r, "build");
    if (known)
        assert_true(strlen(build) >= 12 && strspn(build, "0123456789abcdef") == strlen(build));
    else
        assert_string_equal(build, "");
    http_free(&r);
}

static void every_endpoint(void **state) {
    (void)state;
    const char *const args[] = {PLAIN, "--metrics", "--slots-endpoint", NULL};
    program p;
    http_response r;
    program_start(&p, args);
    program_ready(&p);
    static const struct {
        const char *path, *body, *has;
    } cases[] = {
        {"/health", NULL, "\"status\":\"ok\""},
        {"/v1/models", NULL, "\"id\":\"moonshine\""},
        {"/props", NULL, "\"tokenizer_digest\""},
        {"/slots", NULL, "\"state\":"},
        {"/metrics", NULL, "moonshine_build_info{version="},
        {"/tokenize", "{\"content\":\"Hello\",\"with_pieces\":true}", "\"piece\":"},
        {"/detokenize", "{\"tokens\":[72,105]}", "\"content\":"},
        {"/apply-template", "{\"model\":\"moonshine\",\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}",
         "<|open|>"},
        {"/v1/chat/completions/input_tokens",
         "{\"model\":\"moonshine\",\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}", "\"input_tokens\":"},
        {"/v1/completions", "{\"model\":\"moonshine\",\"prompt\":\"The capital of\",\"max_tokens\":4}",
         "text_completion"},
        {"/v1/messages",
         "{\"model\":\"moonshine\",\"max_tokens\":60,\"messages\":[{\"role\":\"user\",\"content\":\"Hello!\"}]}",
         "\"type\":\"message\""},
        {"/v1/messages/count_tokens",
         "{\"model\":\"moonshine\",\"messages\":[{\"role\":\"user\",\"content\":\"Hello!\"}]}", "\"input_tokens\":"},
        {"/v1/responses", "{\"model\":\"moonshine\",\"input\":\"Hello!\",\"max_output_tokens\":60}",
         "\"object\":\"response\""},
        {"/v1/responses/input_tokens", "{\"model\":\"moonshine\",\"input\":\"Hello!\"}", "\"input_tokens\":"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int again = 0; again < 200; again++) {
            http_call(p.port, cases[i].body ? "POST" : "GET", cases[i].path, NULL, cases[i].body, &r);
            if (r.status != 503) break;
            http_free(&r);
            pause_ms(20);
        }
        if (r.status != 200 || !strstr(r.body.data, cases[i].has)) {
            fail_msg("%s: %d %s", cases[i].path, r.status, r.body.data ? r.body.data : "");
        }
        http_free(&r);
    }
    check_build(&p);
    assert_int_equal(program_end(&p, SIGTERM), 0);
    program_free(&p);
}

/* ------------------------------------------------------------------ start and end */

static void exit_codes(void **state) {
    (void)state;
    static const char *const cases[][8] = {{"--no-such-option"},
                                           {"models/k3-nano", "--port", "1x"},
                                           {"models/k3-nano", "--port"},
                                           {"models/k3-nano", "extra"},
                                           {"models/k3-nano", "--host", "0.0.0.0", "--port", "0"},
                                           {"models/k3-nano", "--port", "0", "--context", "9999999999"},
                                           {"models/k3-nano", "--port", "0", "--context", "63"},
                                           {"models/k3-nano", "--port", "0", "--cors-origin", "x y"},
                                           {"models/k3-nano", "--port", "0", "--cors-origin", "https://a.example/"},
                                           {"models/k3-nano", "--port", "0", "--cors-origin", "a.example"},
                                           {"models/k3-nano", "--port", "0", "--cors-origin", ""},
                                           {"models/k3-nano", "--port", "0", "--cors-origin", "*"},
                                           {"models/k3-nano", "--port", "0", "--store", ""},
                                           {"models/k3-nano", "--port", "0", "--expert-dirs", "nosuch"},
                                           {"models/k3-nano", "--port", "0", "--model-id", ""},
                                           {"models/k3-nano", "--port", "0", "--model-alias", "a,,b"},
                                           {"models/k3-nano", "--port", "0", "--prefix-checkpoint-root", ""},
                                           {"models/k3-nano", "--port", "0", "--decode-diagnostics", ""},
                                           {"models/k3-nano", "--port", "0", "--api-key-file", ""},
                                           {"models/k3-nano", "--port", "0", "--api-key-file", "README.md"}};
    program p;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int code = program_exit(&p, cases[i]);
        if (code != 2) fail_msg("case %zu: %d %s", i, code, p.log.data ? p.log.data : "");
        assert_null(strchr(strchr(p.log.data, '\n') + 1, '\n')); /* one line */
        program_free(&p);
    }
    const char *const large[] = {"models/k3-nano", "--port", "0", "--reserve", "900T", NULL};
    assert_int_equal(program_exit(&p, large), 3);
    program_free(&p);
    const char *const missing[] = {"no/such/model", "--port", "0", NULL};
    assert_int_equal(program_exit(&p, missing), 1);
    program_free(&p);
}

/* The three options of looking at experts together, and what each of them leaves. */
static void looking_at_experts(void **state) {
    (void)state;
    static const char *const heads[][2] = {
        {".cache.csv", "capture,layer,lru_rank,expert_id\n"},
        {".ledger.csv", "capture,scope,layer,steps,accesses,hits,misses,read_requests,logical_expert_bytes,"
                        "physical_read_bytes,wait_calls,completions,max_inflight,pre_moe_seconds,io_wait_seconds,"
                        "expert_pipeline_seconds,expert_sync_seconds,shared_sync_seconds,host_interval_seconds\n"},
        {".routes.csv", "capture,step,position,layer,observed_hit_mask,expert_0,expert_1,expert_2,expert_3\n"},
        {".logits.bin", "MSRLTAP1"}};
    char prefix[96], path[128], begin[512];
    (void)snprintf(prefix, sizeof prefix, "%s/run", folder);
    const char *const alone[] = {PLAIN, "--router-logits-tap", NULL};
    const char *const all[] = {PLAIN, "--decode-diagnostics", prefix, "--router-logits-tap", "--decode-state-digest",
                               NULL};
    program p;
    http_response r;
    assert_int_equal(program_exit(&p, alone), 2);
    assert_non_null(strstr(p.log.data, "--router-logits-tap: needs --decode-diagnostics"));
    program_free(&p);
    program_start(&p, all);
    program_ready(&p);
    chat(p.port, "{\"role\":\"user\",\"content\":\"Hello!\"}", "", &r);
    http_free(&r);
    assert_int_equal(program_end(&p, SIGTERM), 0);
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        (void)snprintf(path, sizeof path, "%s%s", prefix, heads[i][0]);
        FILE *f = fopen(path, "r");
        assert_non_null(f);
        size_t head = strlen(heads[i][1]), n = fread(begin, 1, sizeof begin, f);
        (void)fclose(f);
        assert_true(n > head); /* and something behind it */
        assert_memory_equal(begin, heads[i][1], head);
    }
    /* The order of events, each once. */
    static const char *const events[] = {"request.decode.start", "request.decode.phase", "request.decode.io",
                                         "request.state.digest", "request.complete"};
    const char *at = p.log.data;
    for (size_t i = 0; i < sizeof events / sizeof events[0]; i++) {
        at = strstr(at, events[i]);
        if (!at) fail_msg("%s: %s", events[i], p.log.data);
        at += strlen(events[i]);
        assert_null(strstr(at, events[i]));
    }
    assert_non_null(strstr(p.log.data, "kind=non-cryptographic position="));
    program_free(&p);
    assert_int_equal(program_exit(&p, all), 1); /* the files must be new */
    assert_non_null(strstr(p.log.data, "run.cache.csv: create: File exists"));
    program_free(&p);
}

static void signals(void **state) {
    (void)state;
    const char *const args[] = {PLAIN, "--shutdown-grace-seconds", "30", "--log-format", "json", NULL};
    program p;
    program_start(&p, args);
    assert_true(program_log_has(&p, "server.ready"));
    const char *listen = strstr(p.log.data, "\"listen\":\"127.0.0.1:");
    assert_non_null(listen);
    p.port = (uint32_t)strtoul(strchr(listen + 12, ':') + 1, NULL, 10);
    (void)kill(p.pid, SIGHUP); /* has no effect */
    assert_true(program_log_has(&p, "SIGHUP"));
    /* A long reply, then one signal to drain and another that ends it at once. */
    int fd = http_connect(p.port);
    ms_text all = {0};
    static const char body[] =
        "{\"model\":\"moonshine\",\"stream\":true,\"max_tokens\":4000,\"temperature\":2,\"seed\":3,"
        "\"messages\":[{\"role\":\"user\",\"content\":\"Tell me everything.\"}]}";
    ms_text t = {0};
    ms_text_printf(&t, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n%s",
                   sizeof body - 1, body);
    assert_true(http_send(fd, t.data, t.len));
    assert_true(http_read_until(fd, &all, "delta"));
    (void)kill(p.pid, SIGTERM);
    pause_ms(50);
    (void)kill(p.pid, SIGTERM);
    uint64_t start = ms_clock_ns();
    assert_true(http_read_until(fd, &all, "[DONE]"));
    assert_int_equal(program_end(&p, 0), 0);
    assert_true(ms_clock_ns() - start < UINT64_C(10000000000));
    assert_non_null(strstr(p.log.data, "\"event\":\"server.stop\""));
    (void)close(fd);
    ms_text_free(&all);
    ms_text_free(&t);
    program_free(&p);
}

/* Nothing that a client or the model wrote gets into the log; nor does the key. */
static void the_log_has_no_content(void **state) {
    (void)state;
    const char *const args[] = {PLAIN, "--api-key", "KEYMARK-0123456789", NULL};
    program p;
    http_response r;
    program_start(&p, args);
    program_ready(&p);
    static const char *const bodies[] = {"{\"model\":\"moonshine\",\"max_tokens\":40,\"user\":\"MARK1\",\"metadata\":{"
                                         "\"MARK2\":\"MARK3\"},\"stop\":[\"MARK4\"],"
                                         "\"messages\":[{\"role\":\"system\",\"content\":\"MARK5\"},{\"role\":\"user\","
                                         "\"name\":\"MARK6\",\"content\":\"MARK7\"}],"
                                         "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"MARK8\","
                                         "\"description\":\"MARK9\",\"parameters\":{\"type\":"
                                         "\"object\",\"properties\":{\"MARK10\":{\"type\":\"string\"}}}}}]}",
                                         "{\"model\":\"MARK11\",\"messages\":[]}", "{\"MARK12\":",
                                         "{\"model\":\"moonshine\",\"messages\":[{\"role\":\"MARK13\"}]}",
                                         "{\"model\":\"moonshine\",\"messages\":\"MARK14\"}"};
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        http_call(p.port, "POST", "/v1/chat/completions",
                  "Authorization: Bearer KEYMARK-0123456789\r\nX-Client-Request-Id: MARK15\r\n", bodies[i], &r);
        http_free(&r);
    }
    http_call(p.port, "GET", "/MARK16?MARK17", "x-api-key: MARK18\r\n", NULL, &r);
    assert_int_equal(r.status, 401);
    http_free(&r);
    /* The key is not among the arguments either. */
    char path[64], line[4096];
    (void)snprintf(path, sizeof path, "/proc/%d/cmdline", (int)p.pid);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    size_t n = fread(line, 1, sizeof line, f);
    (void)fclose(f);
    assert_null(memmem(line, n, "KEYMARK", 7));
    assert_int_equal(program_end(&p, SIGTERM), 0);
    assert_null(strstr(p.log.data, "MARK"));
    assert_non_null(strstr(p.log.data, "request.complete"));
    assert_non_null(strstr(p.log.data, "request.reject"));
    program_free(&p);
}

/* A killed server leaves nothing that hinders the next one. */
static void killed(void **state) {
    (void)state;
    const char *const args[] = {PLAIN, "--prefix-checkpoint-root", state_root(), NULL};
    for (int i = 0; i < 4; i++) {
        program p;
        http_response r;
        program_start(&p, args);
        program_ready(&p);
        chat(p.port, "{\"role\":\"user\",\"content\":\"Hello!\"}", "", &r);
        http_free(&r);
        pause_ms((unsigned)i * 15);
        assert_int_equal(program_end(&p, SIGKILL), -SIGKILL);
        program_free(&p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tool_conversation),    cmocka_unit_test(reuse_changes_nothing),
        cmocka_unit_test(every_endpoint),         cmocka_unit_test(exit_codes),
        cmocka_unit_test(looking_at_experts),     cmocka_unit_test(signals),
        cmocka_unit_test(the_log_has_no_content), cmocka_unit_test(killed),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
