/* calls.h: the arguments of calls as the model wrote them, by call id.
 *
 * A client sends a call back with its arguments as JSON, often written anew: other spaces, other order of keys, other
 * numerals.  Rendered like that they would not be what the state holds.  So the text is remembered, and what equals it
 * as JSON is replaced by it.
 *
 * Owns: copies, bounded in number and bytes; the oldest go first.  Threads: any.
 */
#ifndef MS_SERVER_CALLS_H
#define MS_SERVER_CALLS_H

#include "base/json.h"

typedef struct ms_call_memory ms_call_memory;

ms_call_memory *ms_call_memory_create(size_t max_calls, size_t max_bytes); /* NULL: no memory */
void ms_call_memory_destroy(ms_call_memory *m);
void ms_call_memory_add(ms_call_memory *m, const char *id, const char *arguments, size_t len);
/* Writes the chat request (chat.h) anew with remembered arguments put in; false: nothing was replaced, *out is as it
 * was. */
bool ms_call_memory_apply(ms_call_memory *m, const ms_json *request, ms_text *out);

/* Equal as JSON: numbers by value, objects whatever the order of their keys. */
bool ms_json_same(const ms_json *a, const ms_json *b);

#endif
