/* chat_input.h: lines from a terminal, with editing and history, or from a pipe.
 *
 * Editing needs standard input and standard error to be terminals; the prompt goes to standard error.  History is kept
 * in memory and, when a path is given, written to it (mode 0600, regular files only, never through a symlink) at the
 * end.
 *
 * Owns: editor and history.  Threads: one.
 */
#ifndef MS_APPS_CHAT_INPUT_H
#define MS_APPS_CHAT_INPUT_H

#include "base/text.h"

typedef struct chat_input chat_input;

typedef enum chat_read {
    CHAT_READ_LINE,
    CHAT_READ_END,
    CHAT_READ_INTERRUPT, /* SIGINT: the line so far is dropped, also one that is just complete in a pipe */
    CHAT_READ_TERMINATE, /* SIGTERM */
    CHAT_READ_FAILED     /* *err is filled */
} chat_read;

ms_status chat_input_open(chat_input **out, const char *history, bool styled, ms_error *err);
/* MS_ERR_IO when the history cannot be written. */
ms_status chat_input_close(chat_input *in, ms_error *err);
/* MS_ERR_IO when there could be no history at `path`: something else than a regular file, or no folder. */
ms_status chat_input_check_history(const char *path, ms_error *err);
/* Reads one line without its end (LF; CR LF too, except typed) into *line.  prompt is shown on a terminal only. */
chat_read chat_input_line(chat_input *in, const char *prompt, ms_text *line, ms_error *err);
bool chat_input_is_terminal(const chat_input *in);

#endif
