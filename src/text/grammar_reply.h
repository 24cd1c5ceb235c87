/* grammar_reply.h: what a reply must keep to, in terms that every model family shares; lane.h's reply_grammar turns it
 * into a grammar of the family's own format.
 *
 * Reasoning is never constrained.  With a response format and callable tools the reply either has a response of that
 * format or calls tools, and then its response is empty.
 *
 * Threads: values belong to one thread; the grammar may be shared.
 */
#ifndef MS_TEXT_GRAMMAR_REPLY_H
#define MS_TEXT_GRAMMAR_REPLY_H

#include "text/chat.h"
#include "text/schema.h"

typedef struct ms_reply_tool {
    const char *name;
    size_t name_len;
    const ms_json *parameters; /* schema of the arguments; NULL: {"type": "object"} */
    bool strict; /* a schema that cannot be compiled is an error; else such a tool's arguments are any object */
} ms_reply_tool;

typedef enum ms_reply_choice { MS_REPLY_AUTO, MS_REPLY_NO_TOOLS, MS_REPLY_MUST_CALL } ms_reply_choice;
typedef enum ms_reply_format { MS_REPLY_TEXT, MS_REPLY_JSON_OBJECT, MS_REPLY_JSON_SCHEMA } ms_reply_format;

typedef struct ms_reply_rules {
    ms_channel channel; /* where generation begins: think or response */
    const ms_reply_tool *tools; /* those that may be called: a named choice is a list of one */
    size_t tool_count;
    ms_reply_choice choice;
    bool parallel; /* more than one call is fine */
    ms_reply_format format;
    const ms_json *schema; /* MS_REPLY_JSON_SCHEMA */
} ms_reply_rules;

#define MS_REPLY_RESPONSE SIZE_MAX

typedef struct ms_reply_report {
    ms_schema_fault fault; /* when a schema is refused (MS_ERR_USAGE) */
    size_t fault_tool;     /* whose; MS_REPLY_RESPONSE: the response format */
    bool *unconstrained;   /* in, may be NULL: [tool_count]; set for tools whose schema is not compiled */
    bool has_response;     /* ms_reply_response_block made the block `response` */
    uint32_t response;
} ms_reply_report;

/* Block of the response for rules->format other than text. */
ms_status ms_reply_response_block(ms_grammar *g, const ms_reply_rules *rules, uint32_t *block, ms_reply_report *report,
                                  ms_error *err);
/* Blocks of one tool's arguments: `typed` in the family's spelling (0: not possible), `json` as one JSON object (0: the
 * typed form says it all). */
ms_status ms_reply_tool_blocks(ms_grammar *g, const ms_reply_rules *rules, size_t tool,
                               const ms_arguments_syntax *syntax, uint32_t *typed, uint32_t *json,
                               ms_reply_report *report, ms_error *err);

/* ms_grammar_finish, with the fault filled when no response can exist (whatever else the reply may be), or only long ones. */
ms_status ms_reply_finish(ms_grammar *g, uint32_t root, ms_reply_report *report, ms_error *err);

#endif
