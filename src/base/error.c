/* error.c: see error.h.  No state. */
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/utf8.h"

static const char *const status_names[] = {
    [MS_OK] = "ok",           [MS_ERR_USAGE] = "usage",         [MS_ERR_FORMAT] = "format",
    [MS_ERR_IO] = "io",       [MS_ERR_MEMORY] = "memory",       [MS_ERR_NO_FIT] = "no-fit",
    [MS_ERR_CONTEXT] = "context", [MS_ERR_NUMERIC] = "numeric", [MS_ERR_CANCELLED] = "cancelled",
    [MS_ERR_UNSUPPORTED] = "unsupported", [MS_ERR_INTERNAL] = "internal",
};

const char *ms_status_name(ms_status code) {
    size_t i = (size_t)code;
    if (i >= sizeof status_names / sizeof status_names[0]) return "unknown";
    return status_names[i];
}

/* Names from hostile files end up in messages: keep them on one line, free of terminal controls (C0, DEL, C1), and
 * well-formed UTF-8, so that every reader can show them and JSON can carry them. */
static void make_printable(char *s) {
    for (size_t left = strlen(s); left > 0;) {
        uint32_t cp;
        bool bad;
        size_t n = ms_utf8_decode((const uint8_t *)s, left, &cp, &bad);
        if (bad || cp < 0x20 || (cp >= 0x7f && cp < 0xa0)) memset(s, '?', n);
        s += n;
        left -= n;
    }
}

ms_status ms_fail(ms_error *err, ms_status code, const char *fmt, ...) {
    if (!err) return code;
    va_list ap;
    va_start(ap, fmt);
    err->code = code;
    (void)vsnprintf(err->message, sizeof err->message, fmt, ap);
    va_end(ap);
    make_printable(err->message);
    return code;
}

ms_status ms_fail_errno(ms_error *err, ms_status code, int errno_value, const char *fmt, ...) {
    if (!err) return code;
    va_list ap;
    va_start(ap, fmt);
    err->code = code;
    (void)vsnprintf(err->message, sizeof err->message, fmt, ap);
    va_end(ap);
    size_t n = strlen(err->message);
    (void)snprintf(err->message + n, sizeof err->message - n, ": %s", strerror(errno_value));
    make_printable(err->message);
    return code;
}

ms_status ms_error_context(ms_error *err, const char *fmt, ...) {
    if (!err) return MS_ERR_INTERNAL;
    char old[sizeof err->message];
    memcpy(old, err->message, sizeof old);
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(err->message, sizeof err->message, fmt, ap);
    va_end(ap);
    size_t n = strlen(err->message);
    (void)snprintf(err->message + n, sizeof err->message - n, ": %s", old);
    make_printable(err->message);
    return err->code;
}

ms_status ms_fail_memory(ms_error *err, const char *what, size_t bytes) {
    return ms_fail(err, MS_ERR_MEMORY, "out of memory: %s needs %zu bytes", what, bytes);
}

ms_status ms_fail_not_regular(ms_error *err, const char *path, unsigned mode) {
    const char *what = S_ISFIFO(mode)                     ? "a FIFO"
                       : S_ISDIR(mode)                    ? "a directory"
                       : S_ISCHR(mode) || S_ISBLK(mode) ? "a device"
                       : S_ISSOCK(mode)                   ? "a socket"
                                                          : "something else";
    return ms_fail(err, MS_ERR_FORMAT, "%s: expected a regular file, found %s", path, what);
}
