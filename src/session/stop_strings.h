/* stop_strings.h: finds stop strings in streamed text.
 *
 * Text comes in pieces; what can no longer become part of a stop string is released.  Held back is only the longest
 * suffix that is a proper prefix of a stop string.  The earliest match wins, the longest at an equal start.
 *
 * Owns: the held-back text and copies of the stop strings.  Threads: one.
 * Errors: MS_ERR_USAGE for an empty stop string or too many; MS_ERR_MEMORY.
 */
#ifndef MS_SESSION_STOP_STRINGS_H
#define MS_SESSION_STOP_STRINGS_H

#include "base/text.h"

#define MS_STOP_STRINGS_MAX 16u

typedef struct ms_stop_strings {
    ms_text text[MS_STOP_STRINGS_MAX];
    size_t count;
    ms_text held;
    bool matched;
    size_t match; /* which one, when matched */
} ms_stop_strings;

/* The value is zero-initialised; adds one stop string of len bytes. */
ms_status ms_stop_strings_add(ms_stop_strings *s, const char *text, size_t len, ms_error *err);
/* Forgets held-back text and a match, keeps the strings. */
void ms_stop_strings_restart(ms_stop_strings *s);
/* Takes a piece and appends to `out` what is certain to be shown.  After a match nothing more comes out. */
ms_status ms_stop_strings_push(ms_stop_strings *s, const char *piece, size_t len, ms_text *out, ms_error *err);
/* End of the text: appends what was held back, unless a stop string matched. */
ms_status ms_stop_strings_finish(ms_stop_strings *s, ms_text *out, ms_error *err);
void ms_stop_strings_free(ms_stop_strings *s);

#endif
