/* interrupt.h: SIGINT, SIGTERM and SIGHUP for commands that have something to put away before they end.
 *
 * Once watched, the first signal is remembered and cancels the session; a second SIGINT ends the process at once.  A signal
 * that the process was started with as ignored (nohup) stays ignored.
 * Threads: the main thread.
 */
#ifndef MS_APPS_INTERRUPT_H
#define MS_APPS_INTERRUPT_H

#include "moonshine/moonshine.h"

void ms_interrupt_watch(void);
/* Back to what the signals do by default: nothing is left to put away. */
void ms_interrupt_unwatch(void);
/* What a signal cancels, also one that came before; NULL: nothing (before the session is destroyed). */
void ms_interrupt_session(ms_session *s);
/* 0, or 128 and the number of the signal: the exit code. */
int ms_interrupt_code(void);
/* Ends a command with status `st`: no longer watched, its message if it failed or was interrupted (`after`: behind that
 * word), and its exit code. */
int ms_interrupt_end(const char *program, ms_status st, const ms_error *err, const char *after);

#endif
