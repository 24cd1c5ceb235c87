/* interrupt.c: see interrupt.h.  The handler sets a flag, cancels the session or ends the process, nothing else. */
#include "interrupt.h"

#include "command.h"

#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <unistd.h>

/* A signal handler can only reach static storage. */
static volatile sig_atomic_t caught;
static ms_session *volatile running;

static const int watched[] = {SIGINT, SIGTERM, SIGHUP};
enum { WATCHED = sizeof watched / sizeof watched[0] };

static void on_signal(int number) {
    if (caught && number == SIGINT) _exit(128 + SIGINT);
    if (!caught) caught = number;
    if (running) ms_session_cancel(running);
}

static void set_handlers(void (*handler)(int)) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART}, old;
    (void)sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < WATCHED; i++) (void)sigaddset(&action.sa_mask, watched[i]);
    for (size_t i = 0; i < WATCHED; i++)
        if (sigaction(watched[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN)
            (void)sigaction(watched[i], &action, NULL);
}

void ms_interrupt_watch(void) { set_handlers(on_signal); }

void ms_interrupt_unwatch(void) { set_handlers(SIG_DFL); }

void ms_interrupt_session(ms_session *s) {
    running = s;
    if (s && caught) ms_session_cancel(s);
}

int ms_interrupt_code(void) { return caught ? 128 + (int)caught : 0; }

int ms_interrupt_end(const char *program, ms_status st, const ms_error *err, const char *after) {
    ms_interrupt_unwatch();
    if (st == MS_ERR_CANCELLED && ms_interrupt_code()) {
        fprintf(stderr, "%s: interrupted%s\n", program, after);
        return ms_interrupt_code();
    }
    if (st != MS_OK) return ms_command_fail(program, err);
    return ms_command_finish(program);
}
