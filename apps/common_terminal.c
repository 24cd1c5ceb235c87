/* common_terminal.c: common_terminal.h. */
#include "common_terminal.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/text.h"
#include "base/utf8.h"

enum { BAR_CELLS = 24 };

void app_stream_init(app_stream *s, int fd, app_when color) {
    const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");
    bool terminal = isatty(fd) == 1;
    bool plain = (no_color && *no_color) || (term && strcmp(term, "dumb") == 0);
    *s = (app_stream){.fd = fd, .terminal = terminal, .styled = terminal && !plain};
    if (color != APP_AUTO) s->styled = color == APP_ALWAYS;
}

void app_write(app_stream *s, const void *data, size_t len) {
    const char *at = data;
    while (len && !s->error) {
        ssize_t n = write(s->fd, at, len);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            s->error = errno;
            return;
        }
        at += n;
        len -= (size_t)n;
    }
}

void app_printf(app_stream *s, const char *fmt, ...) {
    char small[2048];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(small, sizeof small, fmt, ap);
    va_end(ap);
    if (n < 0) return;
    app_write(s, small, (size_t)n < sizeof small ? (size_t)n : sizeof small - 1);
}

void app_write_text(app_stream *s, const char *text, size_t len) {
    if (!s->terminal) {
        app_write(s, text, len);
        return;
    }
    ms_text out = {0};
    for (size_t i = 0; i < len;) {
        uint32_t cp;
        size_t n = ms_utf8_decode((const uint8_t *)text + i, len - i, &cp, NULL);
        bool control = (cp < 0x20 && cp != '\n' && cp != '\t') || (cp >= 0x7f && cp < 0xa0);
        if (control)
            ms_text_printf(&out, "\\x%02x", (unsigned)cp);
        else
            ms_text_append(&out, text + i, n);
        i += n;
    }
    if (out.failed)
        s->error = s->error ? s->error : ENOMEM;
    else
        app_write(s, out.data, out.len);
    ms_text_free(&out);
}

void app_style(app_stream *s, const char *sgr) {
    if (s->styled) app_printf(s, "\033[%sm", sgr);
}

/* ------------------------------------------------------------------ progress */

void app_progress_begin(app_progress *p, app_stream *s, bool enabled, const char *label, uint64_t delay_ns) {
    *p = (app_progress){
        .stream = s, .enabled = enabled, .label = label, .start_ns = ms_clock_ns(), .delay_ns = delay_ns};
    p->last_ns = p->start_ns;
}

static void draw(const app_progress *p, const char *unit, uint64_t done, uint64_t total, double seconds) {
    double rate = seconds > 0 ? (double)done / seconds : 0;
    double left = rate > 0 ? (double)(total - done) / rate : 0;
    char bar[BAR_CELLS + 1];
    for (int i = 0; i < BAR_CELLS; i++) bar[i] = (double)i < (double)done / (double)total * BAR_CELLS ? '#' : '.';
    bar[BAR_CELLS] = 0;
    if (p->stream->styled) app_printf(p->stream, "\r[%s] ", bar);
    app_printf(p->stream, "%s: %s %llu/%llu, %.2f/s, %.0f s left", p->label, unit, (unsigned long long)done,
               (unsigned long long)total, rate, left);
    app_printf(p->stream, p->stream->styled ? "\033[K" : "\n");
}

void app_progress_update(app_progress *p, const char *unit, uint64_t done, uint64_t total) {
    if (!p->enabled || !total || done > total) return;
    const uint64_t second = UINT64_C(1000000000);
    uint64_t now = ms_clock_ns();
    if (now - p->start_ns < p->delay_ns) return;
    if (now - p->last_ns < (p->stream->styled ? second / 4 : 60 * second)) return;
    p->last_ns = now;
    p->drawn = true;
    draw(p, unit, done, total, (double)(now - p->start_ns) / 1e9);
}

void app_progress_end(app_progress *p) {
    if (p->drawn && p->stream->styled) app_printf(p->stream, "\r\033[K");
    p->drawn = false;
    p->enabled = false;
}
