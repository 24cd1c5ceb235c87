/* chat_signals.h: what SIGINT and SIGTERM do, by what the program is doing.
 *
 *   starting   both end the program at once (130, 143): nothing is written then
 *   prompt     SIGINT is told to the reader; SIGTERM ends the loop
 *   turn       both cancel the session; a second SIGINT within two seconds ends the program at once
 *   writing    both are only remembered: a state file is written whole
 *
 * What is remembered or cancelled ends the program with 130 or 143, except SIGINT where someone types (chat.h).
 *
 * SIGPIPE is ignored: a closed output shows as a failed write.
 */
#ifndef MS_APPS_CHAT_SIGNALS_H
#define MS_APPS_CHAT_SIGNALS_H

#include "moonshine/moonshine.h"

typedef enum chat_phase { CHAT_STARTING, CHAT_PROMPT, CHAT_TURN, CHAT_WRITING } chat_phase;

ms_status chat_signals_install(ms_error *err);
/* session: what CHAT_TURN cancels. */
void chat_signals_phase(chat_phase phase, ms_session *session);
bool chat_signals_terminated(void);
/* Interrupts since the last call. */
int chat_signals_take_interrupts(void);
/* There are some. */
bool chat_signals_interrupted(void);
/* Two interrupts came within two seconds. */
bool chat_signals_insistent(void);
/* Readable when a signal came; chat_signals_drain empties it. */
int chat_signals_fd(void);
void chat_signals_drain(void);

#endif
