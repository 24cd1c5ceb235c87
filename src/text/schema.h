/* schema.h: JSON Schema: reading one, checking values against it, compiling it to a grammar.
 *
 *     ms_schema_open      every keyword known and well-formed, references resolved, limits kept
 *     ms_schema_validate  whether a value fits (schema_validate.c; knows nothing of grammars)
 *     ms_schema_compile   a grammar block whose texts all fit (schema_compile.c)
 *
 * The vocabulary is that of 2020-12 without unevaluated* and dynamic references, and annotations of OpenAPI and
 * editors; unknown keywords are refused.  A grammar is stricter than its schema: members come in declared order, then
 * the others; integers are plain; white space is bounded.  What cannot be compiled exactly is refused, with the place and
 * the keyword.
 *
 * Owns: a schema borrows the JSON values, which must outlive it.
 * Threads: immutable after open.
 * Errors: MS_ERR_USAGE with the fault filled; MS_ERR_MEMORY.
 */
#ifndef MS_TEXT_SCHEMA_H
#define MS_TEXT_SCHEMA_H

#include "base/json.h"
#include "text/grammar.h"

enum {
    MS_SCHEMA_MAX_BYTES = 1 << 20, MS_SCHEMA_MAX_DEPTH = 64, MS_SCHEMA_MAX_NODES = 16384, MS_SCHEMA_MAX_ENUM = 4096
};

typedef struct ms_schema ms_schema;

typedef enum ms_schema_fault_kind {
    MS_SCHEMA_UNSUPPORTED, /* it cannot be kept exactly, or is beyond a limit */
    MS_SCHEMA_UNKNOWN,     /* a keyword that is not known */
    MS_SCHEMA_MALFORMED,   /* no schema: a keyword has a value that it must not have, a reference leads nowhere */
    MS_SCHEMA_IMPOSSIBLE   /* no text: no value fits, or none that the grammar's bounds allow; set by who finishes a
                              grammar (grammar_reply.h) */
} ms_schema_fault_kind;

/* Where a schema is refused. */
typedef struct ms_schema_fault {
    ms_schema_fault_kind kind;
    char pointer[256]; /* JSON pointer of the schema; long ones keep their end behind "..." */
    char keyword[48];  /* "": the schema as a whole */
    char reason[160];  /* fixed words and numbers: what was expected; "": only the kind is known */
} ms_schema_fault;

/* fault may be NULL everywhere. */
ms_status ms_schema_open(ms_schema **out, const ms_json *root, ms_schema_fault *fault, ms_error *err);
void ms_schema_close(ms_schema *s); /* NULL is fine */

/* Whether a value fits.  Members that are repeated never do. */
ms_status ms_schema_validate(const ms_schema *s, const ms_json *value, bool *valid, ms_error *err);

/* Adds the blocks for the schema: no text of them is one that ms_schema_validate refuses. */
ms_status ms_schema_compile(const ms_schema *s, ms_grammar *g, uint32_t *block, ms_schema_fault *fault,
                            ms_error *err);

/* The same for the objects among the values alone: arguments of tools are objects, whatever their schema leaves open. */
ms_status ms_schema_compile_object(const ms_schema *s, ms_grammar *g, uint32_t *block, ms_schema_fault *fault,
                                   ms_error *err);

/* How a model family spells the members of the outermost object (tool arguments). */
typedef struct ms_arguments_syntax {
    /* A block of one argument; body: its value, of the JSON type `type` ("string", "number", ...).  0: the key cannot be
     * spelled. */
    uint32_t (*argument)(const void *arg, ms_grammar *g, const char *key, size_t key_len, const char *type, uint32_t body);
    const void *arg;
    bool raw_strings; /* a string's body is its bare text, which a control token or `end` ends */
    const char *end;  /* text behind every body, which no body holds; NULL: a control token */
    /* Where types are not spelled out: whether the value of a key is text whatever it looks like.  Such a value is written
     * as a bare string alone; of any other key, a string that reads as JSON is quoted.  Needs `end` and raw_strings. */
    bool (*is_text)(const void *arg, const char *key, size_t key_len);
} ms_arguments_syntax;

/* The same for a schema of an object, its members spelled by the syntax, without extra members.  *extra_members tells
 * that the schema allows members beyond the declared ones, which only the plain JSON form can have. */
ms_status ms_schema_compile_arguments(const ms_schema *s, ms_grammar *g, const ms_arguments_syntax *syntax,
                                      uint32_t *block, bool *extra_members, ms_schema_fault *fault,
                                      ms_error *err);

/* Any JSON value; any JSON object. */
uint32_t ms_schema_any(ms_grammar *g, uint32_t *object);

#endif
