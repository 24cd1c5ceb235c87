/* turns.h: the last conversations that ended in calls, by call id.
 *
 * A Responses client may send only the results of calls, or leave out reasoning; the call id proves which conversation
 * it means (ms_api_limits.call_history).
 *
 * Owns: copies, bounded in number and bytes; the oldest go first.  Threads: any.
 * Errors: what cannot be kept is not kept; a client is then asked for its full input.
 */
#ifndef MS_SERVER_TURNS_H
#define MS_SERVER_TURNS_H

#include "server/api.h"

typedef struct ms_turn_memory ms_turn_memory;
enum { MS_CALL_ID_BYTES = 48 };

ms_turn_memory *ms_turn_memory_create(size_t max_turns, size_t max_bytes); /* NULL: no memory */
void ms_turn_memory_destroy(ms_turn_memory *m);
/* messages: the request's list (chat.h); ids[i] is the id of reply->calls[i]; thinking: the reply has reasoning, also
 * when it is empty. */
void ms_turn_memory_add(ms_turn_memory *m, const ms_json *messages, const ms_reply *reply, bool thinking,
                        const char (*ids)[MS_CALL_ID_BYTES]);
/* For ms_api_limits: m is the memory. */
bool ms_turn_memory_history(void *m, const char *call_id, size_t len, ms_text *messages);

#endif
