/* common_terminal.h: writing to standard output and error, plain or styled, and a progress line.
 *
 * A stream writes at once, without a buffer of its own, so that text appears as it is made and a closed pipe is
 * noticed. Styles and cursor control only when the stream is a terminal, NO_COLOR is unset and TERM is not "dumb";
 * --color overrides.
 *
 * Threads: one.  Errors: the first failed write is remembered; later writes do nothing.
 */
#ifndef MS_APPS_COMMON_TERMINAL_H
#define MS_APPS_COMMON_TERMINAL_H

#include "base/error.h"

typedef enum app_when { APP_AUTO, APP_ALWAYS, APP_NEVER } app_when; /* --color */

typedef struct app_stream {
    int fd;
    bool terminal; /* control characters of model text are shown as escapes */
    bool styled;
    int error; /* errno of the first failed write; 0: none */
} app_stream;

void app_stream_init(app_stream *s, int fd, app_when color);
void app_write(app_stream *s, const void *data, size_t len);
void app_printf(app_stream *s, const char *fmt, ...) MS_PRINTF(2, 3);
/* Text from a model or a file (complete UTF-8): on a terminal control characters other than newline and tab become
 * escapes. */
void app_write_text(app_stream *s, const char *text, size_t len);
void app_style(app_stream *s, const char *sgr); /* "2" dim, "0" normal; nothing when not styled */

/* A progress line: redrawn at most 4 times a second, erased at the end; on anything but a terminal one plain line a
 * minute. */
typedef struct app_progress {
    app_stream *stream;
    bool enabled;
    const char *label; /* "prompt" */
    uint64_t start_ns, last_ns;
    uint64_t delay_ns; /* nothing is shown before */
    bool drawn;
} app_progress;

void app_progress_begin(app_progress *p, app_stream *s, bool enabled, const char *label, uint64_t delay_ns);
void app_progress_update(app_progress *p, const char *unit, uint64_t done, uint64_t total);
void app_progress_end(app_progress *p);

#endif
