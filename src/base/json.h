/* json.h: the product's JSON reader and writer.
 *
 * Strict RFC 8259 reader over a byte buffer.  Kept beyond the usual: raw text of numbers and of every
 * value, key order, repeated keys.  Strings are decoded to UTF-8 with explicit lengths (U+0000 is data);
 * a surrogate pair escape is one code point, a lone surrogate becomes U+FFFD.
 *
 * Owns: a ms_json_doc owns an arena with all nodes and decoded strings.  Raw spans point into the caller's
 * text, which must outlive the document.
 * Threads: a document may be read by many threads, parsed by one.
 * Errors: MS_ERR_FORMAT with line, column and what was expected; depth and node limits are errors, not
 * crashes; the parser is not recursive.  Columns count code points from 1.
 */
#ifndef MS_BASE_JSON_H
#define MS_BASE_JSON_H

#include "base/error.h"
#include "base/text.h"

typedef enum ms_json_type {
    MS_JSON_NULL, MS_JSON_FALSE, MS_JSON_TRUE, MS_JSON_NUMBER, MS_JSON_STRING, MS_JSON_ARRAY, MS_JSON_OBJECT
} ms_json_type;

typedef struct ms_json ms_json;
struct ms_json {
    ms_json_type type;
    const char *raw;  /* this value's text in the source, first to last character */
    size_t raw_len;
    const char *str;  /* strings: decoded UTF-8, NUL-terminated for convenience */
    size_t str_len;
    const char *key;  /* members of an object: decoded key, NUL-terminated; else NULL */
    size_t key_len;
    ms_json *child;   /* arrays and objects: first element or member in source order */
    ms_json *next;    /* next sibling */
    size_t count;     /* arrays and objects: number of children */
};

typedef struct ms_json_doc ms_json_doc;

/* No document nests deeper, so that the (recursive) writer needs little stack. */
#define MS_JSON_MAX_DEPTH 1000u

/* What a parse met, for callers that answer in their own words. */
typedef enum ms_json_fault {
    MS_JSON_FAULT_NONE,
    MS_JSON_FAULT_SYNTAX,
    MS_JSON_FAULT_DEPTH,
    MS_JSON_FAULT_NODES,
    MS_JSON_FAULT_DUPLICATE,
    MS_JSON_FAULT_MEMORY
} ms_json_fault;

typedef struct ms_json_report {
    ms_json_fault fault;
    size_t offset;          /* of the fault, in bytes from the start of the text */
    size_t lone_surrogates; /* escapes that became U+FFFD */
} ms_json_report;

typedef struct ms_json_limits {
    unsigned max_depth;  /* nesting of arrays and objects; 0: 64; more than MS_JSON_MAX_DEPTH counts as that */
    size_t max_nodes;    /* values in all; 0: 4 million */
    bool allow_nan;      /* accept NaN, Infinity, -Infinity as numbers (Python's reader) */
    bool allow_control;  /* accept raw control characters inside strings (Python's strict=False) */
    bool allow_invalid_utf8; /* replace maximal ill-formed subparts by U+FFFD instead of refusing */
    bool allow_trailing; /* stop after the first value; *end tells where */
    bool reject_duplicates; /* a repeated key in one object is an error */
    ms_json_report *report; /* filled on every outcome; may be NULL */
} ms_json_limits;

/* Parses text[0..len).  `name` goes in front of error messages (a file name, "request body").
 * `limits` may be NULL (strict defaults).  On success *doc is owned by the caller. */
ms_status ms_json_parse(ms_json_doc **doc, const char *text, size_t len, const char *name,
                        const ms_json_limits *limits, ms_error *err);
const ms_json *ms_json_root(const ms_json_doc *doc);
const char *ms_json_end(const ms_json_doc *doc); /* first byte after the root value */
void ms_json_free(ms_json_doc *doc);             /* NULL is fine */

/* Last member with this key (Python's rule for repeated keys), or NULL; NULL obj or non-object gives NULL. */
const ms_json *ms_json_get(const ms_json *obj, const char *key);
const ms_json *ms_json_at(const ms_json *arr, size_t index);

/* The members of an object with each key once: of repeated keys the last value at the place of the first, in
 * source order or sorted by code point.  *list is malloced (NULL when there is no member); false: no memory. */
bool ms_json_members(const ms_json ***list, size_t *count, const ms_json *obj, bool sorted);

/* Typed reads; false when the type or range is wrong (nothing is written then). */
bool ms_json_u64(const ms_json *v, uint64_t *out);   /* a non-negative integer literal: no '.', no exponent */
bool ms_json_i64(const ms_json *v, int64_t *out);
bool ms_json_double(const ms_json *v, double *out);  /* any finite number, locale-independent */
/* The value of a number literal; infinite when it is beyond double, NaN when memory runs out. */
double ms_json_number_value(const char *raw, size_t len);
bool ms_json_bool(const ms_json *v, bool *out);
bool ms_json_is_string(const ms_json *v, const char *text);

/* ------------------------------------------------------------------ writing
 * By the rules of Python's json.dumps(ensure_ascii=False). */

typedef struct ms_json_style {
    const char *item_sep, *key_sep; /* "," and ":" or ", " and ": " */
    bool sort_keys;                 /* by code point, at every depth; the last of repeated keys wins */
} ms_json_style;

extern const ms_json_style ms_json_compact_sorted; /* "," ":" sorted: declarations and schemas */
extern const ms_json_style ms_json_spaced;         /* ", " ": " in source order: object arguments */
extern const ms_json_style ms_json_compact;        /* "," ":" in source order */

/* Appends a quoted string: only '"', '\\' and U+0000..001F are escaped. */
void ms_json_write_string(ms_text *t, const char *s, size_t len);
/* Appends a number literal rewritten as Python would print the parsed value (1e2 -> 100.0, -0 -> 0, 1e999 ->
 * Infinity). */
void ms_json_write_number(ms_text *t, const char *raw, size_t len);
/* Appends a double with the shortest digits that read back, always with '.' or exponent (Python repr); what is
 * not finite is NaN, Infinity or -Infinity. */
void ms_json_write_double(ms_text *t, double v);
/* Appends a whole value.  Of repeated keys the last value is written, at the place of the first. */
void ms_json_write(ms_text *t, const ms_json *v, const ms_json_style *style);

#endif
