/* mimo_call.h: one call of a MiMo V2.6 reply, read while its text comes.
 *
 *     <function=NAME>{<parameter=KEY>VALUE</parameter>}</function>
 *
 * or one JSON object between the function's tags.  Values of declared texts are strings and known piece by piece; any
 * other value is JSON when it parses, which its end decides.
 *
 * Owns: its texts.  Does not own: the declared tools, which outlive it.  Threads: one.
 * Invariant: the arguments only grow, by whole code points when what is pushed is whole code points.
 * Errors: what is no call is told by mimo_call_end; a failed allocation is `failed` of a text.
 */
#ifndef MS_LANE_MIMO26_CALL_H
#define MS_LANE_MIMO26_CALL_H

#include "base/json.h"

typedef enum mimo_call_phase {
    MIMO_CALL_HEAD, /* <function= comes */
    MIMO_CALL_NAME,
    MIMO_CALL_FIRST,  /* a parameter, the object or the end comes */
    MIMO_CALL_MEMBER, /* a further parameter or the end comes */
    MIMO_CALL_KEY,
    MIMO_CALL_VALUE,
    MIMO_CALL_OBJECT,
    MIMO_CALL_END,   /* behind the object: </function> comes */
    MIMO_CALL_AFTER, /* nothing but white space may come */
    MIMO_CALL_BROKEN
} mimo_call_phase;

typedef struct mimo_call {
    const ms_json *tools; /* as mimo_parser_tools takes them; NULL: none */
    ms_text block;        /* all that came */
    ms_text name;         /* complete from MIMO_CALL_FIRST on */
    ms_text arguments;    /* JSON as far as it is decided */
    mimo_call_phase phase;
    size_t at;   /* bytes of the block that are read */
    size_t seen; /* up to where the end of the present part was looked for */
    const ms_json *parameters;
    bool is_text;            /* the present value */
    bool is_object;          /* the arguments are one object */
    bool in_string, escaped; /* inside the object */
    uint32_t depth;
} mimo_call;

/* Begins a call; keeps the memory of the last one. */
void mimo_call_begin(mimo_call *c, const ms_json *tools);
void mimo_call_push(mimo_call *c, const char *text, size_t len);
/* Whether all that came is a call. */
bool mimo_call_end(mimo_call *c);
void mimo_call_free(mimo_call *c);

bool mimo_is_space(char c);

#endif
