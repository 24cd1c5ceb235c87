/* text.h: a growing text buffer, used by all writers.
 *
 * A plain value, zero-initialised.  Bytes have explicit lengths; U+0000 is data.
 * Threads: a buffer belongs to one thread.
 * Errors: a failed allocation sets `failed` and later appends do nothing, so a writer checks once at the end.
 */
#ifndef MS_BASE_TEXT_H
#define MS_BASE_TEXT_H

#include "base/error.h"

typedef struct ms_text {
    char *data; /* always NUL-terminated when not NULL */
    size_t len, cap;
    bool failed; /* an allocation failed: later appends do nothing; check once at the end */
} ms_text;

void ms_text_append(ms_text *t, const void *data, size_t len);
void ms_text_puts(ms_text *t, const char *s);
void ms_text_printf(ms_text *t, const char *fmt, ...) MS_PRINTF(2, 3);
void ms_text_free(ms_text *t); /* back to empty */

#endif
