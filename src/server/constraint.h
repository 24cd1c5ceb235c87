/* constraint.h: the grammar of a request's reply: tool calls and response format as the lane writes them.
 *
 * Making one may take a while and what a mask learns is worth keeping, so the latest ones are kept, by the text of
 * what they were made from.
 *
 * Owns: a cache its constraints and the vocabulary; a constraint its grammar and masks.  Reference counted.
 * Threads: get and release on any; masks on the inference thread, for one job at a time.
 * Errors: a schema that cannot be kept exactly is refused with the place in it; never passed over silently.
 */
#ifndef MS_SERVER_CONSTRAINT_H
#define MS_SERVER_CONSTRAINT_H

#include "server/api.h"
#include "session/text_model.h"
#include "text/grammar_mask.h"

typedef struct ms_constraints ms_constraints;
typedef struct ms_constraint ms_constraint;

/* *out is NULL when the lane has no grammars. */
ms_status ms_constraints_create(ms_constraints **out, const ms_text_model *model, ms_error *err);
void ms_constraints_destroy(ms_constraints *c);

/* *out: NULL when nothing constrains the reply.  Tools whose schema is not compiled are added to q->ignored. */
bool ms_constraints_get(ms_constraints *c, ms_api_request *q, ms_constraint **out, ms_api_error *e);
/* Tokens that the shortest valid reply takes: a smaller limit cannot be kept.  0: the reply may end anywhere. */
uint32_t ms_constraint_tokens_needed(const ms_constraint *c);
void ms_constraint_release(ms_constraint *c); /* NULL is fine */

/* One reply being held to a constraint. */
typedef struct ms_held {
    ms_constraint *constraint;
    ms_matcher *matcher;
    uint64_t *mask;
    bool always_complete; /* the whole reply must fit into its limit; else only its calls */
} ms_held;
ms_status ms_held_begin(ms_held *h, ms_constraint *c, ms_error *err);
/* The tokens that may come next; remaining: tokens left, that one included. */
ms_status ms_held_next(ms_held *h, bool in_tools, uint64_t remaining, ms_error *err);
ms_status ms_held_take(ms_held *h, uint32_t id, ms_error *err);
void ms_held_end(ms_held *h);

/* Whether content is what the response format asks for; independent of any grammar. */
bool ms_response_fits(const ms_api_request *q, const char *content, size_t len);

#endif
