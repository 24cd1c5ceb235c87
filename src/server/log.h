/* log.h: the lifecycle log of the server: one line an event on a file descriptor, as text or as JSON.
 *
 *     2026-01-31T12:00:00.123Z INFO  request.start              id=3f.. api=chat stream=yes
 *
 * Fields are counts, times, words of this program and numeric addresses; what a client or the model wrote never gets
 * here: the callers have no function that takes it.
 *
 * Owns: nothing; the descriptor stays the caller's.
 * Threads: any; a line is one write().
 * Errors: best effort: a line that the reader of a pipe has no room for is dropped and counted, never waited for.
 */
#ifndef MS_SERVER_LOG_H
#define MS_SERVER_LOG_H

#include <stdatomic.h>

#include "base/error.h"

typedef enum ms_log_level { MS_LOG_INFO, MS_LOG_WARN, MS_LOG_ERROR } ms_log_level;

typedef struct ms_log {
    int fd; /* -1: nothing is written */
    bool json, color;
    atomic_uint_fast64_t dropped;
} ms_log;

/* color: only when fd is a terminal and NO_COLOR is unset. */
void ms_log_init(ms_log *log, int fd, bool json);

enum { MS_LOG_LINE_BYTES = 4096 };

/* One line being made; lives on the stack of the caller. */
typedef struct ms_log_line {
    ms_log *log;
    ms_log_level level;
    size_t len;
    bool truncated;
    char text[MS_LOG_LINE_BYTES];
} ms_log_line;

/* id: the request's, or NULL. */
void ms_log_begin(ms_log_line *l, ms_log *log, ms_log_level level, const char *event, const char *id);
void ms_log_word(ms_log_line *l, const char *key, const char *value); /* NULL is not written */
void ms_log_u64(ms_log_line *l, const char *key, uint64_t value);
void ms_log_real(ms_log_line *l, const char *key, double value); /* three decimals */
void ms_log_yes(ms_log_line *l, const char *key, bool value);    /* yes or no; a JSON bool */
void ms_log_end(ms_log_line *l);

#endif
