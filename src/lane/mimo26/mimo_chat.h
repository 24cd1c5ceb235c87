/* mimo_chat.h: MiMo V2.6's chat format: rendering requests, reading generated messages.  No I/O, no engine.
 *
 * Rules: docs/formats.md, "MiMo V2.6 chat".
 * Threads: mimo_render is pure; a parser belongs to one thread.
 */
#ifndef MS_LANE_MIMO26_CHAT_H
#define MS_LANE_MIMO26_CHAT_H

#include "text/chat.h"
#include "text/grammar_reply.h"

/* Renders a request (chat.h; `enable_thinking` is another name of `thinking`) to segments.  Errors are MS_ERR_USAGE
 * naming the field. */
ms_status mimo_render(const ms_json *request, ms_segments *out, ms_error *err);

typedef struct mimo_parser mimo_parser;
/* The tokenizer must have the format's control tokens, else MS_ERR_FORMAT naming one. */
ms_status mimo_parser_create(mimo_parser **out, const ms_tokenizer *t, ms_channel channel, ms_error *err);
/* Types of arguments come from these declarations: an array of tools, with or without the wrapper `function`. */
ms_status mimo_parser_tools(mimo_parser *p, const ms_json *tools, ms_error *err);
/* Feeds one generated id.  delta (may be NULL): cleared, then filled with text that became final.  *done is set when
 * the message is over (the end-of-turn token). */
ms_status mimo_parser_push(mimo_parser *p, uint32_t id, ms_reply_delta *delta, bool *done, ms_error *err);
/* Ends the stream and gives the result, which the caller frees.  delta as above for held-back text. */
ms_status mimo_parser_finish(mimo_parser *p, ms_reply_delta *delta, ms_reply *out, ms_error *err);
/* lane.h, calls.  A call is told as if what is still to come makes it one; a block that is none is text in the end. */
void mimo_parser_calls(const mimo_parser *p, ms_call_view *out);
void mimo_parser_destroy(mimo_parser *p);

/* Whether an argument is taken as text whatever it looks like, by the tool's declared parameters (may be NULL). */
bool mimo_argument_is_text(const ms_json *parameters, const char *key, size_t key_len);

/* lane.h, reply_grammar.  What it accepts mimo_parser reads as complete and without recovery, with arguments that fit. */
ms_status mimo_reply_grammar(ms_grammar **out, const ms_tokenizer *t, const ms_reply_rules *rules,
                             ms_reply_report *report, ms_error *err);

#endif
