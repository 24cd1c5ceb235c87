/* program.c: program.h. */
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

#include "program.h"
#include "server_fixture.h"

enum { ARGS_MAX = 32 };

void program_start(program *p, const char *const *args) {
    const char *bin = getenv("MOONSHINE_BIN");
    char path[256];
    (void)snprintf(path, sizeof path, "%s/moonshine-server", bin ? bin : "build");
    program_start_path(p, path, args);
}

void program_start_path(program *p, const char *path, const char *const *args) {
    const char *argv[ARGS_MAX] = {path};
    size_t n = 1;
    int pipes[2];
    for (size_t i = 0; args[i]; i++) {
        assert_true(n + 1 < ARGS_MAX);
        argv[n++] = args[i];
    }
    assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
    *p = (program){.err = pipes[0]};
    p->pid = fork();
    assert_true(p->pid >= 0);
    if (p->pid == 0) {
        (void)dup2(pipes[1], STDERR_FILENO);
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)execv(path, (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    (void)close(pipes[1]);
}

bool program_log_has(program *p, const char *text) {
    char piece[4096];
    while (!p->log.data || !strstr(p->log.data, text)) {
        struct pollfd f = {.fd = p->err, .events = POLLIN};
        if (poll(&f, 1, HTTP_LIMIT_MS) != 1) return false;
        ssize_t n = read(p->err, piece, sizeof piece);
        if (n <= 0) return false;
        ms_text_append(&p->log, piece, (size_t)n);
    }
    return true;
}

bool program_try_ready(program *p) {
    if (!program_log_has(p, "server.ready") || !program_log_has(p, "auth")) return false;
    const char *listen = strstr(p->log.data, "127.0.0.1:"); /* of either log format */
    assert_non_null(listen);
    p->port = (uint32_t)strtoul(listen + strlen("127.0.0.1:"), NULL, 10);
    return true;
}

void program_ready(program *p) {
    if (!program_try_ready(p)) fail_msg("no start: %s", p->log.data ? p->log.data : "");
}

int program_end(program *p, int number) {
    int status = 0;
    if (number) (void)kill(p->pid, number);
    (void)program_log_has(p, "\x01"); /* to the end */
    assert_int_equal(waitpid(p->pid, &status, 0), p->pid);
    (void)close(p->err);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

int program_exit(program *p, const char *const *args) {
    program_start(p, args);
    return program_end(p, 0);
}

void program_free(program *p) { ms_text_free(&p->log); }

void chat_try(uint32_t port, const char *messages, const char *more, http_response *r) {
    ms_text t = {0};
    ms_text_printf(&t, "{\"model\":\"moonshine\",\"max_tokens\":160,\"messages\":[%s]%s}", messages, more);
    for (int i = 0; i < 200; i++) {
        http_call(port, "POST", "/v1/chat/completions", NULL, t.data, r);
        if (r->status != 503) break;
        http_free(r);
        pause_ms(20);
    }
    ms_text_free(&t);
}

void chat(uint32_t port, const char *messages, const char *more, http_response *r) {
    chat_try(port, messages, more, r);
    if (r->status != 200) fail_msg("%d %s", r->status, r->body.data ? r->body.data : "");
}

void replay(ms_text *messages, http_response *r) {
    const ms_json *m = ms_json_get(ms_json_at(ms_json_get(http_json(r), "choices"), 0), "message");
    ms_text_puts(messages, ",");
    ms_json_write(messages, m, &ms_json_compact);
}

long cached(http_response *r) { return http_number(r, "usage.prompt_tokens_details.cached_tokens"); }
long total(http_response *r) { return http_number(r, "usage.total_tokens"); }
