/* schema_internal.h: what the reader, the validator and the compiler of schemas share. */
#ifndef MS_TEXT_SCHEMA_INTERNAL_H
#define MS_TEXT_SCHEMA_INTERNAL_H

#include "text/regex.h"
#include "text/schema.h"

/* A schema found in the document. */
typedef struct ms_schema_node {
    const ms_json *at;
    const ms_json *parent; /* the schema it belongs to; NULL: the root */
    const char *step;      /* keyword, with key or index below */
    const char *key;
    size_t key_len, index;
} ms_schema_node;

typedef struct ms_schema_pattern {
    const char *text;
    size_t len;
    ms_regex *regex;
} ms_schema_pattern;

struct ms_schema {
    const ms_json *root;
    ms_schema_node *nodes;
    size_t count, cap;
    uint32_t *table; /* node + 1 by address */
    size_t table_mask;
    ms_schema_pattern *patterns;
    size_t pattern_count, pattern_cap;
    const ms_json **refs; /* pairs: the value of a $ref, its target */
    size_t ref_count, ref_cap;
    bool nullable; /* some schema has `nullable`: readers of OpenAPI take null where it stands, others do not */
};

typedef enum ms_format_kind {
    MS_FORMAT_DATE, MS_FORMAT_TIME, MS_FORMAT_DATE_TIME, MS_FORMAT_DURATION, MS_FORMAT_EMAIL, MS_FORMAT_HOSTNAME,
    MS_FORMAT_IPV4, MS_FORMAT_IPV6, MS_FORMAT_URI, MS_FORMAT_UUID, MS_FORMAT_OTHER
} ms_format_kind;
ms_format_kind ms_schema_format(const ms_json *name); /* MS_FORMAT_OTHER: an annotation */

const ms_json *ms_schema_target(const ms_schema *s, const ms_json *ref); /* of the value of a $ref */
const ms_regex *ms_schema_regex(const ms_schema *s, const char *text, size_t len);
/* Whether a keyword says nothing about values.  `nullable` that is true does: no null is written for it, but what is not
 * to fit such a schema may not be null either. */
bool ms_schema_is_annotation(const ms_json *member);
/* Fills the fault for a schema and keyword and the error; returns MS_ERR_USAGE. */
ms_status ms_schema_refuse(const ms_schema *s, const ms_json *at, const char *keyword, ms_schema_fault *fault,
                           ms_error *err, const char *fmt, ...) MS_PRINTF(6, 7);
/* A keyword's value that must be an integer, 0 or more: also one written 2.0 or 2e1, up to 2^53. */
bool ms_schema_size(const ms_json *v, uint64_t *out);
/* A value checked against one schema of the document, or one made by the compiler; *work (may be NULL) is lowered by the
 * steps taken, and more than that many are refused. */
ms_status ms_schema_check(const ms_schema *s, const ms_json *schema, const ms_json *value, uint64_t *work, bool *valid,
                          ms_error *err);
/* As ms_schema_compile; *steps: the work that it took, at most a million and four a byte. */
ms_status ms_schema_compile_counted(const ms_schema *s, ms_grammar *g, uint32_t *block, uint64_t *steps,
                                    ms_schema_fault *fault, ms_error *err);
/* Whether two values are the same; numbers by value. */
bool ms_schema_equal(const ms_json *a, const ms_json *b);

#endif
