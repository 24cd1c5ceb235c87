/* chat.h: the chat message model that lanes render and parse.
 *
 * A request is a JSON object with `messages` and optionally `tools`, `tool_choice`, `parallel_tool_calls`,
 * `response_format`, `thinking` (bool), `thinking_effort` or `reasoning_effort` (string or null),
 * `add_generation_prompt` (bool, default true).  A lane renders it to segments; the ids of a prompt are the
 * concatenated ids of the segments, each encoded by itself.
 *
 * A reply is read token by token by a lane's reply parser.
 *
 * Owns: ms_segments and ms_reply own their text.  Threads: values belong to one thread.
 */
#ifndef MS_TEXT_CHAT_H
#define MS_TEXT_CHAT_H

#include "text/tokenizer.h"

typedef struct ms_segment {
    bool control;  /* text is the name of one control token */
    char *text;    /* UTF-8, NUL-terminated; may contain U+0000, so use len */
    size_t len;
} ms_segment;

typedef struct ms_segments {
    ms_segment *items;
    size_t count, cap;
} ms_segments;

ms_status ms_segments_push(ms_segments *s, bool control, const char *text, size_t len, ms_error *err);
void ms_segments_free(ms_segments *s);
/* Appends the ids of all segments.  A control name the tokenizer does not have is MS_ERR_INTERNAL. */
ms_status ms_segments_encode(const ms_segments *s, const ms_tokenizer *t, ms_ids *out, ms_error *err);

/* A place in a list of segments. */
typedef struct ms_segment_place {
    size_t segment, offset;
} ms_segment_place;
/* Whether ids spell the segments from *place on, however the text between control tokens is cut into tokens; *place
 * moves to where they end. */
bool ms_segments_spell(const ms_segments *s, const ms_tokenizer *t, ms_segment_place *place, const uint32_t *ids,
                       size_t count);
/* Whether the place is not inside a code point. */
bool ms_segments_whole(const ms_segments *s, const ms_segment_place *place);

typedef struct ms_tool_call {
    char *name; /* not empty; generated, so it may contain U+0000: compare with name_len */
    size_t name_len;
    char *arguments; /* JSON text: literals keep the model's spelling; a json child's text as it is, valid or not */
    size_t arguments_len;
} ms_tool_call;

typedef enum ms_reply_status { MS_REPLY_COMPLETE, MS_REPLY_TRUNCATED, MS_REPLY_MALFORMED } ms_reply_status;

typedef struct ms_reply {
    ms_reply_status status;
    const char *error; /* static text: "incomplete_call", "bad_call_header", "bad_call_body"; NULL: none */
    bool recovered;
    char *reasoning;
    size_t reasoning_len;
    char *content;
    size_t content_len;
    ms_tool_call *calls;
    size_t call_count;
} ms_reply;
void ms_reply_free(ms_reply *r);

/* Calls of a reply in progress.  The text of one only grows, and ends as its whole arguments. */
typedef struct ms_call_view {
    const ms_tool_call *whole; /* [count] */
    size_t count;
    const char *name, *arguments; /* of the call after them, as far as they are decided; name NULL: none is open */
    size_t name_len, arguments_len;
} ms_call_view;

/* Channel that generation continues. */
typedef enum ms_channel { MS_CHANNEL_NONE, MS_CHANNEL_THINK, MS_CHANNEL_RESPONSE } ms_channel;

/* Text decided by the last pushed token; either may be empty. */
typedef struct ms_reply_delta {
    ms_text reasoning, content; /* replaced on every push; owned by the parser's caller, see lane docs */
    ms_channel channel;         /* whose text the pushed token is; NONE: structure or a call */
    bool in_tools;              /* the reply is where calls are */
} ms_reply_delta;

#endif
