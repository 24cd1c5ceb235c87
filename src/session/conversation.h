/* conversation.h: what a conversation says, as messages and as token ids.
 *
 * A conversation is a list of messages and the token ids that stand for it.  The ids are the truth: after the first
 * turn they only grow, by the rendering of the new messages and by what the model generated, so that a session which
 * holds them is never replayed without need.  The messages serve to render new parts, and everything again when
 * thinking or effort change.
 *
 * A conversation that continues a state file or a foreign request is opaque: its ids are known, its messages are not.
 *
 *     ms_conversation_user / _request  ->  ms_prompt  ->  (evaluate, generate)  ->  ms_conversation_accept
 *
 * A prompt that is not accepted leaves the conversation as it was.
 *
 * Owns: messages and ids.  Does not own: the text model.  Threads: one.
 * Errors: MS_ERR_USAGE from the renderer, naming the field; MS_ERR_MEMORY; MS_ERR_INTERNAL when a lane's rendering of a
 * reply does not begin with its generation prompt.
 */
#ifndef MS_SESSION_CONVERSATION_H
#define MS_SESSION_CONVERSATION_H

#include "session/text_model.h"

/* How the model is asked to think.  effort: NULL or a level; without thinking it has no effect. */
typedef struct ms_think_mode {
    bool thinking;
    const char *effort; /* static text */
} ms_think_mode;

typedef struct ms_conversation {
    const ms_text_model *model;
    ms_think_mode mode;     /* of the next turn; may be changed between turns */
    ms_think_mode ids_mode; /* the mode that `ids` were rendered with */
    ms_text messages;       /* JSON objects joined with "," */
    size_t message_count;
    ms_ids ids;  /* everything up to the last message's end; empty before the first turn */
    bool opaque; /* ids begin with something that `messages` does not have */
    struct {     /* the conversation before the last accepted user turn */
        bool possible;
        size_t messages_len, message_count,
            ids_count; /* ids_count 0: the turn was rendered from the first message on */
    } undo;
} ms_conversation;

/* One turn to evaluate: all ids from position 0 to the end of the generation prompt. */
typedef struct ms_prompt {
    ms_ids ids;
    ms_channel channel;    /* that the generation prompt opens */
    size_t closing_tokens; /* at most so many ids close a reply without tool calls that is cut anywhere */
    ms_think_mode mode;    /* that was rendered */
    size_t appended_from;  /* ids before this index are the conversation's; 0 when rendered from the first message on */
    ms_text message;       /* the JSON of the new message; empty for a request */
    ms_text tools;         /* a request's declared tools, those of messages too: a JSON array; empty: none */
} ms_prompt;
void ms_prompt_free(ms_prompt *p);

void ms_conversation_init(ms_conversation *c, const ms_text_model *model);
void ms_conversation_fini(ms_conversation *c);
/* No messages, no ids; the mode stays. */
void ms_conversation_clear(ms_conversation *c);

/* The first message; MS_ERR_USAGE once there is another one. */
ms_status ms_conversation_system(ms_conversation *c, const char *text, size_t len, ms_error *err);

/* Continues foreign ids, as a state file holds them.  An assistant message that the ids leave open is closed; when
 * nothing that could be closed is found, with the end-of-turn id alone.  *closed (may be NULL) is the number of ids
 * added. */
ms_status ms_conversation_continue(ms_conversation *c, const uint32_t *ids, size_t count, size_t *closed,
                                   ms_error *err);

/* The prompt for a user message. */
ms_status ms_conversation_user(const ms_conversation *c, const char *text, size_t len, ms_prompt *out, ms_error *err);
/* The prompt for a whole request (chat.h); it replaces the conversation when it is accepted.  `request` is an object.
 */
ms_status ms_conversation_request(const ms_conversation *c, const ms_json *request, ms_prompt *out, ms_error *err);

/* Takes the turn over: prompt, generated ids, and the ids that close the message when generation was cut.  *forced is
 * their number.  When the generated ids do not spell the reply (a stop string cut it, it was repaired, a code point is
 * incomplete) the ids of its rendering take their place and *forced is 0: a session then has to go back to the prompt's
 * end. */
ms_status ms_conversation_accept(ms_conversation *c, const ms_prompt *p, const ms_reply *reply,
                                 const uint32_t *generated, size_t count, size_t *forced, ms_error *err);

/* Takes the last accepted user turn back; false: there is none. */
bool ms_conversation_undo(ms_conversation *c);

/* Ids that end a reply of which `generated` exists: what is missing behind it (*exact), else the whole reply's
 * rendering. */
ms_status ms_reply_finish_ids(const ms_text_model *model, bool thinking, const ms_reply *reply,
                              const uint32_t *generated, size_t count, bool *exact, ms_ids *out, ms_error *err);
/* At most so many ids close a reply without tool calls that is cut anywhere. */
ms_status ms_reply_closing_count(const ms_text_model *model, bool thinking, size_t *out, ms_error *err);

/* Whether the next turn renders earlier turns again, because the mode changed and the messages are known. */
bool ms_conversation_rerenders(const ms_conversation *c);

#endif
