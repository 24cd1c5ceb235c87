#include "cli_run.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"

static void exec_program(const char *program, const char *const *args) {
    char path[4096], *argv[CLI_ARGS_MAX + 2];
    const char *folder = getenv("MOONSHINE_BIN");
    (void)snprintf(path, sizeof path, "%s/%s", folder && *folder ? folder : "build", program);
    size_t n = 0;
    argv[n++] = path;
    for (; args[n - 1] && n <= CLI_ARGS_MAX; n++) argv[n] = (char *)(uintptr_t)args[n - 1];
    argv[n] = NULL;
    (void)unsetenv("MOONSHINE_MODEL");
    (void)unsetenv("MOONSHINE_CONTEXT");
    (void)unsetenv("NO_COLOR");
    (void)setenv("TERM", "xterm", 1);
    (void)execv(path, argv);
    (void)fprintf(stderr, "cannot run %s: %s\n", path, strerror(errno));
    _exit(127);
}

static void close_fd(int *fd) {
    if (*fd >= 0) (void)close(*fd);
    *fd = -1;
}

static void start(cli *c, const char *program, const char *const *args, bool deaf) {
    int in[2], out[2], err[2];
    *c = (cli){0};
    (void)signal(SIGPIPE, SIG_IGN);
    assert_int_equal(pipe2(in, O_CLOEXEC), 0);
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    assert_int_equal(pipe2(err, O_CLOEXEC), 0);
    if (deaf) close_fd(&out[0]); /* before the program exists: it may be quick */
    c->pid = fork();
    assert_true(c->pid >= 0);
    if (c->pid == 0) {
        (void)signal(SIGPIPE, SIG_DFL);
        if (dup2(in[0], 0) < 0 || dup2(out[1], 1) < 0 || dup2(err[1], 2) < 0) _exit(126);
        exec_program(program, args);
    }
    (void)close(in[0]);
    (void)close(out[1]);
    (void)close(err[1]);
    c->in = in[1];
    c->out = out[0];
    c->err = err[0];
}

void cli_start(cli *c, const char *program, const char *const *args) { start(c, program, args, false); }
void cli_start_deaf(cli *c, const char *program, const char *const *args) { start(c, program, args, true); }

void cli_start_terminal(cli *c, const char *program, const char *const *args) {
    *c = (cli){0};
    struct winsize size = {.ws_row = 24, .ws_col = 200};
    int master;
    c->pid = forkpty(&master, NULL, NULL, &size);
    assert_true(c->pid >= 0);
    if (c->pid == 0) exec_program(program, args);
    (void)fcntl(master, F_SETFD, FD_CLOEXEC);
    c->in = c->out = master;
    c->err = -1;
}

void cli_send(cli *c, const char *text) {
    for (size_t len = strlen(text); len;) {
        ssize_t n = write(c->in, text, len);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return; /* the program has closed its side: the test sees it by its exit */
        text += n;
        len -= (size_t)n;
    }
}

void cli_signal(cli *c, int number) { assert_int_equal(kill(c->pid, number), 0); }

void cli_close_input(cli *c) {
    if (c->in != c->out) close_fd(&c->in);
}

/* One read from whatever is ready; false at the time limit or when both ends are closed. */
static bool read_some(cli *c, uint64_t until_ns) {
    uint64_t now = ms_clock_ns();
    if (now >= until_ns || (c->out < 0 && c->err < 0)) return false;
    struct pollfd fds[2] = {{.fd = c->out, .events = POLLIN}, {.fd = c->err, .events = POLLIN}};
    if (poll(fds, 2, (int)((until_ns - now) / 1000000 + 1)) <= 0) return ms_clock_ns() < until_ns;
    int *ends[2] = {&c->out, &c->err};
    ms_text *texts[2] = {&c->out_text, &c->err_text};
    for (int i = 0; i < 2; i++) {
        if (!fds[i].revents) continue;
        char piece[4096];
        ssize_t n = read(*ends[i], piece, sizeof piece);
        if (n > 0) {
            ms_text_append(texts[i], piece, (size_t)n);
        } else if (n == 0 || errno != EINTR) { /* a terminal reports EIO when its last user is gone */
            if (c->in == c->out) c->in = -1;
            close_fd(ends[i]);
        }
    }
    return true;
}

static uint64_t limit(void) { return ms_clock_ns() + (uint64_t)CLI_LIMIT_MS * 1000000; }

bool cli_wait_for(cli *c, const ms_text *text, size_t from, const char *pattern) {
    uint64_t until = limit();
    for (;;) {
        if (text->len > from && memmem(text->data + from, text->len - from, pattern, strlen(pattern))) return true;
        if (!read_some(c, until)) return false;
    }
}

int cli_finish(cli *c) {
    cli_close_input(c);
    uint64_t until = limit();
    while (read_some(c, until)) {}
    if (ms_clock_ns() >= until) (void)kill(c->pid, SIGKILL);
    int status = 0;
    while (waitpid(c->pid, &status, 0) < 0 && errno == EINTR) {}
    close_fd(&c->out);
    close_fd(&c->err);
    ms_text_append(&c->out_text, "", 0);
    ms_text_append(&c->err_text, "", 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

void cli_free(cli *c) {
    ms_text_free(&c->out_text);
    ms_text_free(&c->err_text);
}

int cli_run(cli *c, const char *program, const char *const *args, const char *input) {
    cli_start(c, program, args);
    cli_send(c, input);
    return cli_finish(c);
}

void cli_make_folder(char path[64]) {
    (void)snprintf(path, 64, "/tmp/moonshine-cli-XXXXXX");
    assert_non_null(mkdtemp(path));
}

const char *cli_path(const char *folder, const char *name) {
    static char paths[4][512];
    static unsigned next;
    char *path = paths[next++ % 4];
    (void)snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

void cli_remove_folder(const char *path) {
    DIR *d = opendir(path);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) (void)unlink(cli_path(path, e->d_name));
    }
    (void)closedir(d);
    assert_int_equal(rmdir(path), 0);
}

void cli_write_file(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
    assert_int_equal(fclose(f), 0);
}
