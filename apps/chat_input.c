/* chat_input.c: chat_input.h over libedit or plain reads.
 *
 * Every read waits on standard input and on the signal pipe together, so that a signal is never slept through.
 */
#include "chat_input.h"

#include <errno.h>
#include <fcntl.h>
#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/utf8.h"
#include "chat_signals.h"

enum { HISTORY_LINES = 1000, PIECE_BYTES = 65536 };
#define LINE_MAX_BYTES ((size_t)64 << 20)
#define PASTE_BEGIN    L"\033[200~"
#define PASTE_END      L"\033[201~"

struct chat_input {
    EditLine *editor; /* NULL: a pipe */
    History *history;
    FILE *screen;
    const char *history_path, *prompt;
    bool paste_marks;
    chat_read event; /* what ended the running read */
    char bytes[PIECE_BYTES];
    size_t at, filled;
};

/* CHAT_READ_LINE: no signal. */
static chat_read take_signal(void) {
    if (chat_signals_terminated()) return CHAT_READ_TERMINATE;
    return chat_signals_take_interrupts() ? CHAT_READ_INTERRUPT : CHAT_READ_LINE;
}

/* Waits until standard input is readable; anything but CHAT_READ_LINE is an event, and comes first. */
static chat_read wait_for_input(void) {
    for (bool ready = false;;) {
        chat_read event = take_signal();
        if (event != CHAT_READ_LINE || ready) return event;
        struct pollfd fds[2] = {{.fd = STDIN_FILENO, .events = POLLIN}, {.fd = chat_signals_fd(), .events = POLLIN}};
        if (poll(fds, 2, -1) < 0 && errno != EINTR) return CHAT_READ_FAILED;
        if (fds[1].revents) chat_signals_drain();
        ready = fds[0].revents != 0;
    }
}

/* Refills the buffer. */
static chat_read fill(chat_input *in) {
    for (;;) {
        chat_read event = wait_for_input();
        if (event != CHAT_READ_LINE) return event;
        ssize_t n = read(STDIN_FILENO, in->bytes, sizeof in->bytes);
        if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (n < 0) return CHAT_READ_FAILED;
        in->at = 0;
        in->filled = (size_t)n;
        if (n) return CHAT_READ_LINE;
        event = take_signal(); /* what ended the writer may have been meant for this program too */
        return event == CHAT_READ_LINE ? CHAT_READ_END : event;
    }
}

static chat_read next_byte(chat_input *in, uint8_t *out) {
    if (in->at == in->filled) {
        chat_read event = fill(in);
        if (event != CHAT_READ_LINE) return event;
    }
    *out = (uint8_t)in->bytes[in->at++];
    return CHAT_READ_LINE;
}

/* ------------------------------------------------------------------ terminal */

/* libedit's source of characters: UTF-8 in, whatever the locale. */
static int read_character(EditLine *editor, wchar_t *out) {
    chat_input *in = NULL;
    (void)el_get(editor, EL_CLIENTDATA, &in);
    uint8_t seq[4];
    uint32_t cp = 0;
    for (size_t n = 0; n < sizeof seq;) {
        in->event = next_byte(in, &seq[n]);
        if (in->event == CHAT_READ_END) return 0;
        if (in->event != CHAT_READ_LINE) return -1;
        ms_utf8_fault fault;
        (void)ms_utf8_decode_fault(seq, ++n, &cp, &fault);
        if (fault != MS_UTF8_CUT) break;
    }
    *out = (wchar_t)cp;
    return 1;
}

static char *editor_prompt(EditLine *editor) {
    chat_input *in = NULL;
    static char none[] = "";
    (void)el_get(editor, EL_CLIENTDATA, &in);
    return in ? (char *)(uintptr_t)in->prompt : none;
}

/* Pasted text keeps its newlines: they do not end the line. */
static unsigned char on_paste(EditLine *editor, int key) {
    (void)key;
    static const wchar_t end[] = PASTE_END;
    const size_t end_len = sizeof end / sizeof *end - 1;
    wchar_t *text = NULL;
    size_t len = 0, cap = 0;
    wchar_t c;
    while (read_character(editor, &c) == 1) {
        if (len + 2 > cap) {
            wchar_t *more = cap < LINE_MAX_BYTES / sizeof *text ? realloc(text, (cap + 1024) * 2 * sizeof *text) : NULL;
            if (!more) break;
            text = more;
            cap = (cap + 1024) * 2;
        }
        text[len++] = c == L'\r' ? L'\n' : c;
        if (len < end_len || wmemcmp(text + len - end_len, end, end_len) != 0) continue;
        len -= end_len;
        break;
    }
    if (text) {
        text[len] = 0;
        (void)el_winsertstr(editor, text);
    }
    free(text);
    return CC_REFRESH;
}

/* A file that does not exist yet needs its folder. */
static ms_status check_folder(const char *path, ms_error *err) {
    const char *slash = strrchr(path, '/');
    if (slash && !slash[1]) return ms_fail(err, MS_ERR_IO, "--history: %s: expected a file name", path);
    char *folder = !slash ? strdup(".") : slash == path ? strdup("/") : strndup(path, (size_t)(slash - path));
    if (!folder) return ms_fail_memory(err, "a path", strlen(path));
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int cause = errno;
    free(folder);
    if (fd < 0) return ms_fail_errno(err, MS_ERR_IO, cause, "--history: %s: open its folder", path);
    (void)close(fd);
    return MS_OK;
}

static ms_status check_regular(const char *path, int fd, ms_error *err) {
    struct stat st;
    if (fstat(fd, &st) != 0) return ms_fail_errno(err, MS_ERR_IO, errno, "--history: %s", path);
    return S_ISREG(st.st_mode) ? MS_OK : ms_fail(err, MS_ERR_IO, "--history: %s: expected a regular file", path);
}

ms_status chat_input_check_history(const char *path, ms_error *err) {
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY);
    if (fd < 0 && errno == ENOENT) return check_folder(path, err);
    if (fd < 0 && errno == ELOOP) return ms_fail(err, MS_ERR_IO, "--history: %s: is a symbolic link; refused", path);
    if (fd < 0) return ms_fail_errno(err, MS_ERR_IO, errno, "--history: %s", path);
    ms_status status = check_regular(path, fd, err);
    (void)close(fd);
    return status;
}

static ms_status open_history(chat_input *in, ms_error *err) {
    HistEvent ev;
    in->history = history_init();
    if (!in->history) return ms_fail_memory(err, "the line history", 0);
    (void)history(in->history, &ev, H_SETSIZE, HISTORY_LINES);
    (void)history(in->history, &ev, H_SETUNIQUE, 1);
    if (!in->history_path) return MS_OK;
    MS_TRY(chat_input_check_history(in->history_path, err)); /* again: loading the model took its time */
    if (access(in->history_path, F_OK) != 0) return MS_OK;
    if (history(in->history, &ev, H_LOAD, in->history_path) >= 0) return MS_OK;
    struct stat st;
    if (stat(in->history_path, &st) == 0 && S_ISREG(st.st_mode) && st.st_size == 0) return MS_OK;
    return ms_fail(err, MS_ERR_FORMAT, "--history: %s is not a history file of this program", in->history_path);
}

static ms_status open_editor(chat_input *in, ms_error *err) {
    /* libedit shows non-ASCII text only under a UTF-8 locale. */
    (void)setlocale(LC_CTYPE, "");
    if (strcmp(nl_langinfo(CODESET), "UTF-8") != 0) (void)setlocale(LC_CTYPE, "C.UTF-8");
    int fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
    in->screen = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (!in->screen) {
        if (fd >= 0) (void)close(fd);
        return ms_fail_errno(err, MS_ERR_IO, errno, "standard error");
    }
    in->editor = el_init("moonshine-chat", stdin, in->screen, in->screen);
    if (!in->editor) return ms_fail(err, MS_ERR_IO, "line editing does not start on this terminal");
    MS_TRY(open_history(in, err));
    (void)el_set(in->editor, EL_CLIENTDATA, in);
    (void)el_set(in->editor, EL_GETCFN, read_character);
    (void)el_set(in->editor, EL_PROMPT, editor_prompt);
    (void)el_set(in->editor, EL_EDITOR, "emacs");
    (void)el_set(in->editor, EL_HIST, history, in->history);
    (void)el_wset(in->editor, EL_ADDFN, L"ms-paste", L"insert pasted text", on_paste);
    (void)el_wset(in->editor, EL_BIND, PASTE_BEGIN, L"ms-paste", NULL);
    (void)el_source(in->editor, NULL);
    return MS_OK;
}

static chat_read edited_line(chat_input *in, ms_text *line, ms_error *err) {
    int count = 0;
    in->event = CHAT_READ_END;
    (void)el_set(in->editor, EL_PREP_TERM, 1); /* before the prompt: what is typed at its sight is edited */
    if (in->paste_marks) (void)fputs("\033[?2004h", in->screen);
    const char *text = el_gets(in->editor, &count);
    if (in->paste_marks) (void)fputs("\033[?2004l", in->screen);
    (void)fflush(in->screen);
    if (!text || count <= 0) {
        (void)fputs("\n", in->screen);
        (void)fflush(in->screen);
        if (in->event == CHAT_READ_FAILED) (void)ms_fail_errno(err, MS_ERR_IO, errno, "the terminal");
        return in->event == CHAT_READ_LINE ? CHAT_READ_END : in->event;
    }
    HistEvent ev;
    size_t len = strlen(text);
    if (len && text[len - 1] == '\n') len--;
    if (len) (void)history(in->history, &ev, H_ENTER, text);
    ms_text_append(line, text, len);
    return CHAT_READ_LINE;
}

/* ------------------------------------------------------------------ pipe */

/* Up to the end of a line or of the input. */
static chat_read raw_line(chat_input *in, ms_text *line, ms_error *err) {
    bool any = false;
    for (;;) {
        if (in->at == in->filled) {
            chat_read event = fill(in);
            if (event == CHAT_READ_END && any) return CHAT_READ_LINE;
            if (event == CHAT_READ_FAILED) (void)ms_fail_errno(err, MS_ERR_IO, errno, "standard input");
            if (event != CHAT_READ_LINE) return event;
        }
        const char *from = in->bytes + in->at, *end = memchr(from, '\n', in->filled - in->at);
        size_t len = end ? (size_t)(end - from) : in->filled - in->at;
        ms_text_append(line, from, len);
        in->at += len + (end != NULL);
        any = true;
        if (line->len > LINE_MAX_BYTES) {
            (void)ms_fail(err, MS_ERR_FORMAT, "standard input: expected lines of at most %zu bytes, found more",
                          LINE_MAX_BYTES);
            return CHAT_READ_FAILED;
        }
        if (end) return CHAT_READ_LINE;
    }
}

/* Many lines may come from one read: signals are looked for at each. */
static chat_read piped_line(chat_input *in, ms_text *line, ms_error *err) {
    chat_read event = raw_line(in, line, err);
    if (event != CHAT_READ_LINE) return event;
    if (line->len && !line->failed && line->data[line->len - 1] == '\r') line->len--;
    return take_signal();
}

/* ------------------------------------------------------------------ interface */

ms_status chat_input_open(chat_input **out, const char *history_path, bool styled, ms_error *err) {
    *out = NULL;
    chat_input *in = calloc(1, sizeof *in);
    if (!in) return ms_fail_memory(err, "the line reader", sizeof *in);
    in->history_path = history_path;
    in->paste_marks = styled;
    ms_status status = MS_OK;
    if (isatty(STDIN_FILENO) == 1 && isatty(STDERR_FILENO) == 1) status = open_editor(in, err);
    if (status != MS_OK) {
        in->history_path = NULL;
        (void)chat_input_close(in, NULL);
        return status;
    }
    *out = in;
    return MS_OK;
}

static ms_status save_history(const chat_input *in, ms_error *err) {
    int fd = open(in->history_path, O_WRONLY | O_CREAT | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY, 0600);
    if (fd < 0) return ms_fail_errno(err, MS_ERR_IO, errno, "--history: %s", in->history_path);
    ms_status status = check_regular(in->history_path, fd, err);
    FILE *file = NULL;
    if (status == MS_OK) {
        file = fchmod(fd, 0600) == 0 && ftruncate(fd, 0) == 0 ? fdopen(fd, "w") : NULL;
        if (!file) status = ms_fail_errno(err, MS_ERR_IO, errno, "--history: %s", in->history_path);
    }
    if (!file) {
        (void)close(fd);
        return status;
    }
    HistEvent ev;
    bool good = history(in->history, &ev, H_SAVE_FP, file) >= 0;
    good = fclose(file) == 0 && good;
    return good ? MS_OK : ms_fail(err, MS_ERR_IO, "--history: %s: the history was not written", in->history_path);
}

ms_status chat_input_close(chat_input *in, ms_error *err) {
    if (!in) return MS_OK;
    ms_status status = in->history && in->history_path ? save_history(in, err) : MS_OK;
    if (in->history) history_end(in->history);
    if (in->editor) el_end(in->editor);
    if (in->screen) (void)fclose(in->screen);
    free(in);
    return status;
}

chat_read chat_input_line(chat_input *in, const char *prompt, ms_text *line, ms_error *err) {
    line->len = 0;
    in->prompt = prompt;
    chat_read r = in->editor ? edited_line(in, line, err) : piped_line(in, line, err);
    ms_text_append(line, "", 0);
    if (!line->failed) return r;
    (void)ms_fail_memory(err, "a line", line->len);
    return CHAT_READ_FAILED;
}

bool chat_input_is_terminal(const chat_input *in) { return in->editor != NULL; }
