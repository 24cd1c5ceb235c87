/* chat_signals.c: signal handlers; they only set flags, cancel the session, wake the reader or end the process. */
#include "chat_signals.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"

/* A signal handler can only reach static storage. */
static volatile sig_atomic_t phase = CHAT_STARTING, interrupts, terminated, insistent;
static ms_session *volatile running;
static volatile uint64_t last_interrupt_ns; /* written by the handler alone, with SIGINT blocked */
static int wake[2] = {-1, -1};

static void leave_now(int code) {
    static const char normal[] = "\033[0m\n";
    if (phase == CHAT_TURN && isatty(STDERR_FILENO)) (void)!write(STDERR_FILENO, normal, sizeof normal - 1);
    _exit(code);
}

static void on_signal(int number) {
    int saved = errno;
    if (phase == CHAT_STARTING) leave_now(number == SIGINT ? 130 : 143);
    if (number == SIGTERM) {
        terminated = 1;
    } else {
        uint64_t now = ms_clock_ns();
        if (last_interrupt_ns && now - last_interrupt_ns < UINT64_C(2000000000)) insistent = 1;
        if (insistent && phase == CHAT_TURN) leave_now(130);
        last_interrupt_ns = now;
        interrupts++;
    }
    if (running) ms_session_cancel(running);
    (void)!write(wake[1], "", 1);
    errno = saved;
}

ms_status chat_signals_install(ms_error *err) {
    if (pipe2(wake, O_CLOEXEC | O_NONBLOCK) != 0) return ms_fail_errno(err, MS_ERR_IO, errno, "a pipe for signals");
    struct sigaction action = {.sa_handler = on_signal}, ignore = {.sa_handler = SIG_IGN};
    sigemptyset(&action.sa_mask);
    sigaddset(&action.sa_mask, SIGINT);
    sigaddset(&action.sa_mask, SIGTERM);
    bool good = sigaction(SIGINT, &action, NULL) == 0 && sigaction(SIGTERM, &action, NULL) == 0 &&
                sigaction(SIGPIPE, &ignore, NULL) == 0;
    return good ? MS_OK : ms_fail_errno(err, MS_ERR_IO, errno, "signal handlers");
}

void chat_signals_phase(chat_phase next, ms_session *session) {
    running = NULL;
    phase = (sig_atomic_t)next;
    running = session;
    /* A signal that came before the session was set must not be lost. */
    if (session && terminated) ms_session_cancel(session);
}

bool chat_signals_terminated(void) { return terminated != 0; }

int chat_signals_take_interrupts(void) {
    int n = interrupts;
    interrupts = 0;
    return n;
}

bool chat_signals_interrupted(void) { return interrupts != 0; }

bool chat_signals_insistent(void) { return insistent != 0; }

int chat_signals_fd(void) { return wake[0]; }

void chat_signals_drain(void) {
    char bytes[64];
    while (read(wake[0], bytes, sizeof bytes) > 0) {}
}
