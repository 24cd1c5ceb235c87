/* api_read.h: what the codecs share on the way in: paths, typed fields, field classes, common parameters, tools.
 *
 * A path is a chain of small structs on the caller's stack; it becomes text only when something is refused.
 * Null counts as absent at every level.  Every refusal says "PATH: expected ..., found ..." and never quotes a value.
 *
 * Owns: nothing beyond one parse.  Threads: a parse belongs to one thread.
 * Errors: functions return false with the parse's ms_api_error filled.
 */
#ifndef MS_SERVER_API_READ_H
#define MS_SERVER_API_READ_H

#include "base/utf8.h"
#include "server/api.h"

bool ms_api_fail_memory(ms_api_error *e);
void ms_api_put(ms_text *out, const char *s); /* a quoted JSON string */
/* The error envelope's inner object; with_status: the form inside a stream. */
void ms_api_error_object(ms_text *out, ms_api_kind kind, const ms_api_error *e, bool with_status);

typedef struct ms_api_path ms_api_path;
struct ms_api_path {
    const ms_api_path *up; /* NULL: a field of the body */
    const char *key;       /* NULL: [index] */
    size_t index;
};

enum { MS_API_MAX_TOOLS = 512 };

typedef struct ms_api_str {
    const char *s;
    size_t n;
} ms_api_str;

typedef struct ms_api_parse {
    ms_api_request *r;
    const ms_api_limits *limits;
    ms_api_error *err;
    const ms_json *root;
    bool count_only;
    bool spliced; /* Responses: a remembered conversation stands in front */
    /* Tools in the order of declaration; the first static_tools are those of the request, the rest of messages. */
    ms_api_str tool_names[MS_API_MAX_TOOLS];
    struct {
        uint32_t message, index;
    } tool_places[MS_API_MAX_TOOLS]; /* as in ms_api_tool */
    bool allowed[MS_API_MAX_TOOLS]; /* by tool_choice */
    size_t tool_count, static_tools;
    ms_text tools, choice, format; /* chat forms: elements of the list; values; "": absent */
} ms_api_parse;
void ms_api_parse_init(ms_api_parse *p, ms_api_request *r, ms_api_kind kind, const ms_api_limits *limits,
                       bool count_only, ms_api_error *err);
void ms_api_parse_fini(ms_api_parse *p); /* the request stays */

/* ------------------------------------------------------------------ refusals */

void ms_api_path_text(char *out, size_t size, const ms_api_path *at);
/* 400 with param = the path of `at` and the message "PATH: ...". */
bool ms_api_bad(ms_api_parse *p, const ms_api_path *at, const char *code, const char *fmt, ...) MS_PRINTF(4, 5);
/* invalid_type: "PATH: expected WHAT, found a number". */
bool ms_api_bad_type(ms_api_parse *p, const ms_api_path *at, const ms_json *found, const char *expected);

/* ------------------------------------------------------------------ body and fields */

/* Copies and parses the body (spec of the JSON rules: one object, depth 128, no repeated keys). */
bool ms_api_body(ms_api_parse *p, const char *body, size_t len);

typedef enum ms_api_want { MS_WANT_STRING, MS_WANT_BOOL, MS_WANT_ARRAY, MS_WANT_OBJECT, MS_WANT_NUMBER } ms_api_want;

/* *v: the member, NULL when absent or null. */
bool ms_api_get(ms_api_parse *p, const ms_api_path *up, const ms_json *obj, const char *key, ms_api_want want,
                const ms_json **v);
bool ms_api_need(ms_api_parse *p, const ms_api_path *up, const ms_json *obj, const char *key, ms_api_want want,
                 const ms_json **v);
/* Is the value itself of this type? */
bool ms_api_is(ms_api_parse *p, const ms_api_path *at, const ms_json *v, ms_api_want want);
/* *out stays when absent. */
bool ms_api_get_bool(ms_api_parse *p, const ms_api_path *up, const ms_json *obj, const char *key, bool *out);
bool ms_api_get_integer(ms_api_parse *p, const ms_api_path *up, const ms_json *obj, const char *key, int64_t low,
                        int64_t high, bool *found, int64_t *out);
/* A member without type check; NULL when absent or null. */
const ms_json *ms_api_any(const ms_json *obj, const char *key);
/* A name or id: 1..max bytes, no U+0000. */
bool ms_api_name(ms_api_parse *p, const ms_api_path *at, const ms_json *v, size_t max);
/* [A-Za-z0-9_-]{1,64} */
bool ms_api_identifier(const char *s, size_t len);

/* What becomes of a field that is present and not null.  Names in no table are advisory. */
typedef enum ms_api_rule {
    MS_RULE_USED,
    MS_RULE_QUIET,    /* accepted without effect and without report */
    MS_RULE_ADVISORY, /* accepted without effect, reported */
    MS_RULE_COPY,     /* what clients copy from responses: quiet when empty, else advisory */
    MS_RULE_NULL,     /* refused: `help` says what to use */
    MS_RULE_FALSE,    /* false: advisory, true: refused */
    MS_RULE_ZERO,     /* 0 accepted, else refused */
    MS_RULE_ONE,      /* the integer 1 accepted, else refused */
    MS_RULE_EMPTY,    /* an empty object or list accepted, else refused */
    MS_RULE_TEXT      /* ["text"] accepted, else refused */
} ms_api_rule;

typedef struct ms_api_field {
    const char *name;
    ms_api_rule rule;
    const char *help;
} ms_api_field;

/* Sorts every member of obj into its class.  The table ends with a NULL name; a name with '*' at its end is a prefix.
 */
bool ms_api_fields(ms_api_parse *p, const ms_api_path *at, const ms_json *obj, const ms_api_field *table);
/* Reports the field at this path as ignored, each path once with [] for every index. */
void ms_api_ignore(ms_api_parse *p, const ms_api_path *at);

/* ------------------------------------------------------------------ common parameters (api_params.c) */

bool ms_api_model(ms_api_parse *p);
/* The output limit; `second` may be NULL.  Absent: fallback tokens. */
bool ms_api_max_tokens(ms_api_parse *p, const char *first, const char *second, uint64_t fallback, bool required);
bool ms_api_stream_options(ms_api_parse *p); /* stream, stream_options.include_usage */
bool ms_api_sampling(ms_api_parse *p);
bool ms_api_stops(ms_api_parse *p, const char *key, size_t most, bool or_string);
bool ms_api_logprobs(ms_api_parse *p);
/* Sets effort and thinking.  given: the effort's value or NULL, at its path.  switched: -1 not said, 0 off, 1 on,
 * said at switch_at. */
bool ms_api_effort(ms_api_parse *p, const ms_api_path *at, const ms_json *given, int switched,
                   const ms_api_path *switch_at);
/* {"type": "enabled" | "adaptive" | "disabled"}: *switched as above. */
bool ms_api_thinking(ms_api_parse *p, int *switched);

/* ------------------------------------------------------------------ tools and formats (api_tools.c) */

/* Tools in the form of chat completions.  out: gets the elements of the list; NULL: they are only checked. */
bool ms_api_chat_tools(ms_api_parse *p, const ms_api_path *at, const ms_json *tools, ms_text *out);
/* Adds {"type":"function","function":{...}} to p->tools; all but the name may be NULL.  `schema_key`: how the API calls
 * the parameters. */
typedef struct ms_api_tool_parts {
    const ms_json *name, *description, *parameters, *strict;
    const char *schema_key;
} ms_api_tool_parts;
bool ms_api_tool_add(ms_api_parse *p, const ms_api_path *at, const ms_api_tool_parts *tool);
void ms_api_tool_skip(ms_api_parse *p, const ms_json *type); /* a kind that is reported, not used */
/* tool_choice of chat completions (nested) and Responses (flat); after all tools are known. */
bool ms_api_read_choice(ms_api_parse *p, bool flat);
bool ms_api_choose(ms_api_parse *p, const ms_api_path *at, ms_api_tool_choice choice);
bool ms_api_choose_named(ms_api_parse *p, const ms_api_path *at, const ms_json *name);

typedef enum ms_api_format_form {
    MS_FORM_NESTED, /* chat: name, strict and schema inside json_schema */
    MS_FORM_FLAT,   /* Responses: beside type */
    MS_FORM_BARE    /* Messages: beside type, no name */
} ms_api_format_form;
bool ms_api_format_of(ms_api_parse *p, const ms_api_path *at, const ms_json *format, ms_api_format_form form);

#endif
