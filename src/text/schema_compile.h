/* schema_compile.h: the parts of the schema compiler.
 *
 * A value is described by a set of schemas that must all hold.  schema_expand.c turns a set into alternatives, lists of
 * schemas without choices between them; schema_shape.c turns an alternative into blocks, one a type; schema_language.c
 * builds the automata of numbers and strings; schema_compile.c keeps the sets and their blocks.
 *
 * Schemas that the compiler makes itself (to say what `not` says in other words) look like those of the document.
 */
#ifndef MS_TEXT_SCHEMA_COMPILE_H
#define MS_TEXT_SCHEMA_COMPILE_H

#include "text/schema_internal.h"

typedef struct ms_set {
    const ms_json **items;
    size_t count, cap;
} ms_set;

typedef struct ms_arena ms_arena;

typedef struct ms_known_set {
    ms_set set;
    uint32_t block;
} ms_known_set;

typedef enum ms_number_kind { MS_NUMBERS, MS_INTEGERS, MS_FRACTIONS, MS_NUMBER_KINDS } ms_number_kind;

typedef struct ms_compiler {
    const ms_schema *s;
    ms_grammar *g;
    ms_schema_fault *fault;
    ms_error *err;
    ms_status status;
    uint64_t work, had; /* steps left, and at first */
    ms_known_set *sets;
    size_t set_count, set_cap, next_set;
    uint32_t *set_table;
    size_t set_mask;
    ms_arena *arena;
    const char *end; /* text that no value holds; NULL: none */
    ms_dfa endless;  /* texts without it */
    uint32_t formats[MS_FORMAT_OTHER]; /* blocks of quoted strings of a format; 0: none yet */
    uint32_t numbers[MS_NUMBER_KINDS]; /* the same of numbers without bounds */
    ms_dfa unquoted; /* texts that do not read as JSON */
    const ms_json *current; /* a schema of the document that is being compiled, for messages */
    const char *choice;     /* the latest keyword that made a choice about the value; NULL: none */
    const char *keyword;    /* the one at work; NULL: none */
} ms_compiler;

enum { MS_MAX_AUTOMATON = 60000 };

/* How the blocks of a value are wanted. */
typedef enum ms_form {
    MS_FORM_JSON,
    MS_FORM_UNIQUE, /* scalars in one spelling each */
    MS_FORM_TYPED,  /* strings without quotes */
    MS_FORM_BARE    /* strings without quotes unless they read as JSON */
} ms_form;

enum { MS_JSON_TYPES = MS_JSON_OBJECT + 1 };

/* Blocks by JSON type (MS_JSON_FALSE stands for both booleans). */
typedef struct ms_shapes {
    struct {
        uint32_t *items;
        size_t count, cap;
    } of[MS_JSON_TYPES];
} ms_shapes;

void ms_compile_fail(ms_compiler *c, const ms_json *at, const char *keyword, const char *what);
/* Takes steps off the work that is left; false: it ran out. */
bool ms_compile_work(ms_compiler *c, uint64_t steps);
/* Whether a value fits a schema; false also after a failure. */
bool ms_compile_check(ms_compiler *c, const ms_json *schema, const ms_json *value);
/* Whether there is a null in a value that readers of the document take differently (`nullable`). */
bool ms_compile_null_is_open(const ms_compiler *c, const ms_json *value);
void ms_compile_status(ms_compiler *c, ms_status status); /* keeps the first failure */
void *ms_compile_alloc(ms_compiler *c, size_t bytes); /* lives as long as the compiler */

void ms_set_add(ms_compiler *c, ms_set *set, const ms_json *schema);
void ms_set_free(ms_set *set);
/* The block of values that fit a whole set; defined later. */
uint32_t ms_compile_set(ms_compiler *c, const ms_set *set);

/* ------------------------------------------------------------------ schema_expand.c */

typedef void ms_alternative_fn(ms_compiler *c, void *arg, const ms_set *alternative);
void ms_expand(ms_compiler *c, const ms_set *set, ms_alternative_fn *fn, void *arg);
/* What a schema that is nothing but a reference refers to. */
const ms_json *ms_compile_follow(const ms_compiler *c, const ms_json *schema);
/* {"not": schema}, and the like. */
ms_json *ms_make_object(ms_compiler *c);
void ms_make_member(ms_compiler *c, ms_json *object, const char *key, const ms_json *value);
ms_json *ms_make_text(ms_compiler *c, const char *text);

/* ------------------------------------------------------------------ schema_shape.c */

void ms_shape_blocks(ms_compiler *c, const ms_set *alternative, ms_form form, ms_shapes *out);
void ms_shapes_add(ms_compiler *c, ms_shapes *out, ms_json_type type, uint32_t block);
void ms_shapes_free(ms_shapes *s);
/* The declared members of an object alternative in order, as sets; extra: whether others may follow. */
typedef struct ms_declared {
    const char *key;
    size_t key_len;
    bool required;
    ms_set value;
} ms_declared;
typedef struct ms_key_index ms_key_index;
typedef struct ms_declared_list {
    ms_declared *items;
    size_t count, cap;
    ms_key_index *index;
    bool may_be_object; /* by type */
    bool extra;
    uint32_t min, max;
} ms_declared_list;
void ms_shape_declared(ms_compiler *c, const ms_set *alternative, ms_declared_list *out);
void ms_declared_free(ms_declared_list *d);

/* ------------------------------------------------------------------ schema_language.c */

/* Texts of the JSON numbers that fit an alternative; canonical: one spelling a value. */
void ms_number_language(ms_compiler *c, const ms_set *alternative, ms_number_kind kind, bool canonical, ms_dfa *out);
/* Strings: *any is set when no automaton is needed; bounds that the automaton does not hold are left in *min, *max. */
void ms_string_language(ms_compiler *c, const ms_set *alternative, bool bounded, ms_dfa *out, bool *any, uint32_t *min,
                        uint32_t *max);
/* For values in front of `end`. */
void ms_end_languages(ms_compiler *c);
/* Replaces *d by those without c->end. */
void ms_narrow_endless(ms_compiler *c, ms_dfa *d, bool *any);
/* Those of a language that do not read as JSON. */
void ms_unquoted_texts(ms_compiler *c, const ms_dfa *of, ms_dfa *out);
bool ms_is_unquoted(const ms_dfa *unquoted, const char *text, size_t len);
/* Replaces *d by what both allow. */
void ms_narrow(ms_compiler *c, ms_dfa *d, bool *any, ms_dfa *other);
/* Everything but the words. */
void ms_other_words(ms_compiler *c, const ms_word *words, size_t count, ms_dfa *out);

#endif
