/* reasoning.h: the reasoning of the latest replies, for clients that do not send it back.
 *
 * A reply is found again by its whole history: role, name, text, call ids and arguments of every message before it, and
 * its own; reasoning does not count.  Histories are told apart by a keyed digest of 128 bits, so nobody can make one
 * that stands for another's.
 *
 * Owns: copies, bounded in number and bytes; the oldest go first.  Threads: any.
 * Errors: what cannot be kept is not kept.
 */
#ifndef MS_SERVER_REASONING_H
#define MS_SERVER_REASONING_H

#include "base/json.h"
#include "text/chat.h"

typedef struct ms_reasoning_memory ms_reasoning_memory;
typedef struct ms_history {
    uint64_t digest[2];
} ms_history;

ms_reasoning_memory *ms_reasoning_memory_create(size_t max_replies, size_t max_bytes); /* NULL: no memory, no random */
void ms_reasoning_memory_destroy(ms_reasoning_memory *m);
/* history: of the messages that the reply answers; ids[i] is the id of reply->calls[i]. */
void ms_reasoning_memory_add(ms_reasoning_memory *m, const ms_history *history, const ms_reply *reply,
                             const char (*ids)[48]);
/* Writes the chat request (chat.h) anew with reasoning put into assistant messages that have none; returns into how
 * many.  0: *out is as it was.  *history becomes that of all its messages. */
size_t ms_reasoning_memory_apply(ms_reasoning_memory *m, const ms_json *request, ms_text *out, ms_history *history);

#endif
