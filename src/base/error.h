/* error.h: how every function below main reports failure.
 *
 * A function that can fail returns ms_status and takes `ms_error *err` last.  err may be NULL.
 * On MS_OK *err is untouched.  Messages are one line of well-formed UTF-8: control characters and ill-formed
 * bytes from outside become '?'.
 */
#ifndef MS_BASE_ERROR_H
#define MS_BASE_ERROR_H

#include "moonshine/moonshine.h"

#if defined(__GNUC__)
#define MS_PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define MS_PRINTF(f, a)
#endif

/* Fills *err and returns `code`, so that `return ms_fail(err, MS_ERR_IO, ...)` reads as one step. */
ms_status ms_fail(ms_error *err, ms_status code, const char *fmt, ...) MS_PRINTF(3, 4);

/* Like ms_fail, with ": <strerror(errno_value)>" added. */
ms_status ms_fail_errno(ms_error *err, ms_status code, int errno_value, const char *fmt, ...) MS_PRINTF(4, 5);

/* Puts "<context>: " in front of the message that is already in *err; returns err->code. */
ms_status ms_error_context(ms_error *err, const char *fmt, ...) MS_PRINTF(2, 3);

/* "PATH: expected a regular file, found a FIFO" and the like, MS_ERR_FORMAT; mode is st_mode. */
ms_status ms_fail_not_regular(ms_error *err, const char *path, unsigned mode);

/* Shared one-line "out of memory" (names the thing and the bytes asked for). */
ms_status ms_fail_memory(ms_error *err, const char *what, size_t bytes);

#define MS_TRY(expr)                                  \
    do {                                              \
        ms_status ms_try_status_ = (expr);            \
        if (ms_try_status_ != MS_OK) return ms_try_status_; \
    } while (0)

#endif
