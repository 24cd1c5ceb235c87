/* k3_chat.h: Kimi K3's XTML chat format: rendering requests, reading generated messages.  No I/O, no engine.
 *
 * Rules: docs/formats.md; exact note texts are constants of k3_render.c.
 * Threads: k3_render is pure; a parser belongs to one thread.
 */
#ifndef MS_LANE_K3_CHAT_H
#define MS_LANE_K3_CHAT_H

#include "text/chat.h"
#include "text/grammar_reply.h"

/* Renders a request (chat.h) to segments.  Errors are MS_ERR_USAGE naming the field, e.g.
 * "messages[2].role: expected system, user, assistant, tool or developer, found \"robot\"". */
ms_status k3_render(const ms_json *request, ms_segments *out, ms_error *err);

typedef struct k3_parser k3_parser;
ms_status k3_parser_create(k3_parser **out, const ms_tokenizer *t, ms_channel channel, ms_error *err);
/* Feeds one generated id.  delta (may be NULL): cleared, then filled with text that became final.
 * *done is set when the message is over (end-of-message id, or a malformed point). */
ms_status k3_parser_push(k3_parser *p, uint32_t id, ms_reply_delta *delta, bool *done, ms_error *err);
/* Ends the stream and gives the result, which the caller frees.  delta as above for held-back text. */
ms_status k3_parser_finish(k3_parser *p, ms_reply_delta *delta, ms_reply *out, ms_error *err);
/* lane.h, calls. */
void k3_parser_calls(const k3_parser *p, ms_call_view *out);
void k3_parser_destroy(k3_parser *p);

/* lane.h, reply_grammar.  What it accepts k3_parser reads as complete and without recovery. */
ms_status k3_reply_grammar(ms_grammar **out, const ms_reply_rules *rules, ms_reply_report *report, ms_error *err);

#endif
