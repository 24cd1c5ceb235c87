/* api_conversation.h: the neutral form of a request's history, between an API's items and chat.h's JSON.
 *
 * A codec adds messages in order, each with its text parts and calls; ms_api_conversation_finish checks the order of
 * calls and results, writes the chat request and binds what the request says about tools.
 *
 * Owns: its lists and the texts and documents handed to it; everything else belongs to the request's body.
 * Threads: belongs to one parse.
 * Errors: a failed allocation sets `failed`, which finish reports.
 */
#ifndef MS_SERVER_API_CONVERSATION_H
#define MS_SERVER_API_CONVERSATION_H

#include "server/api_read.h"

typedef enum ms_api_role { MS_ROLE_SYSTEM, MS_ROLE_USER, MS_ROLE_ASSISTANT, MS_ROLE_TOOL } ms_api_role;

typedef struct ms_api_call {
    ms_api_str id, name;
    const ms_json *arguments; /* a string or an object; NULL: none */
} ms_api_call;

typedef struct ms_api_message {
    ms_api_role role;
    size_t source; /* index in the request's list, for error paths */
    ms_api_str name, reasoning, call_id;
    bool has_reasoning;
    const ms_json *tools; /* dynamic declaration */
    size_t part, parts;   /* range of the conversation's parts */
    size_t call, calls;
} ms_api_message;

typedef struct ms_api_conversation {
    const char *list; /* "messages" or "input": how error paths begin */
    ms_api_message *messages;
    ms_api_str *parts;
    ms_api_call *calls;
    size_t message_count, message_cap, part_count, part_cap, call_count, call_cap;
    ms_json_doc **docs;
    char **texts;
    size_t doc_count, doc_cap, text_count, text_cap;
    bool failed;
} ms_api_conversation;

/* The new last message; NULL after a failed allocation.  Valid until the next one is added. */
ms_api_message *ms_api_add_message(ms_api_conversation *c, ms_api_role role, size_t source);
ms_api_message *ms_api_last(ms_api_conversation *c);                     /* NULL: no message yet */
void ms_api_add_part(ms_api_conversation *c, const char *s, size_t len); /* to the last message */
void ms_api_add_call(ms_api_conversation *c, const ms_api_call *call);
/* Takes over a text or document that messages point into. */
ms_api_str ms_api_keep_text(ms_api_conversation *c, ms_text *t);
void ms_api_keep_doc(ms_api_conversation *c, ms_json_doc *doc);
void ms_api_conversation_free(ms_api_conversation *c);

/* A string or a list of text parts, added to the last message. */
bool ms_api_content(ms_api_parse *p, const ms_api_path *at, const ms_json *v, bool assistant, ms_api_conversation *c);
/* One element of a chat.h `messages` list (api_chat.c). */
bool ms_api_chat_message(ms_api_parse *p, const ms_api_path *at, const ms_json *v, ms_api_conversation *c);
/* The arguments of an old call: an object, or a text that is no JSON or an object. */
bool ms_api_old_arguments(ms_api_parse *p, const ms_api_path *at, const ms_json *v);

bool ms_api_conversation_finish(ms_api_parse *p, ms_api_conversation *c);

#endif
