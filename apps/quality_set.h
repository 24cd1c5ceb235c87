/* quality_set.h: a qualification set: chat requests in a JSON lines file, with the greedy tokens expected of a model.
 *
 *   {"name": N, "family": F, "request": {chat request}, ..., "expected": {"ids": [...], "text": T, "margins": [...]}}
 *
 * name is unique in the file; a family's lines need not be adjacent.  `expected` is what `--record` writes: the ids up
 * to and with the end of the turn or the token limit, their text with the names of control tokens, and for each id the
 * logit of the chosen token less the next largest.  Other members are kept and not looked at.
 *
 * Owns: the file's text and everything read from it.  Threads: one at a time.
 * Errors: file, line, field, expected, found.
 */
#ifndef MS_APPS_QUALITY_SET_H
#define MS_APPS_QUALITY_SET_H

#include "base/json.h"
#include "text/tokenizer.h"

typedef struct ms_quality_item {
    ms_json_doc *doc;
    const char *name, *family;
    const ms_json *request;
    ms_ids ids;      /* expected; none: not recorded */
    double *margins; /* [ids.count] */
} ms_quality_item;

typedef struct ms_quality_set {
    char *text;
    ms_quality_item *items;
    size_t count;
} ms_quality_set;

/* At least one line is needed.  recorded: every line must have `expected`, else it is not looked at.  On failure
 * *out is empty. */
ms_status ms_quality_set_load(ms_quality_set *out, const char *path, bool recorded, ms_error *err);
void ms_quality_set_free(ms_quality_set *s);

/* Appends the item's line with the given expectation in place of its own.  text: the ids' text. */
void ms_quality_item_write(ms_text *out, const ms_quality_item *item, const ms_ids *ids, const ms_text *text,
                           const double *margins);

#endif
