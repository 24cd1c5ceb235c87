/* lane_replies.h: the replies that a lane's grammar allows, for one lane a program: random walks at every limit must be
 * read by the lane's parser as complete, keep to the rules and fit the schemas.
 *
 * Every function fails the test where something does not hold.
 */
#ifndef TESTS_LANE_REPLIES_H
#define TESTS_LANE_REPLIES_H

#include "../text/grammar_walk.h"
#include "lane/lane.h"
#include "text/schema.h"

enum { REPLIES_TOOLS = 8 };

/* An id to try before any other, now and then: what random ones seldom give. */
typedef uint32_t replies_rare(const ms_tokenizer *t, const ms_ids *ids);

/* `tools`: a JSON list of at most REPLIES_TOOLS tools.  Takes the tokenizer over; rare may be NULL.  0, or 1 for a
 * cmocka set-up. */
int replies_open(const ms_lane *lane, ms_tokenizer *tokenizer, const char *tools, replies_rare *rare);
int replies_close(void **state);

/* Walks a grammar of each kind of rules, `times` times each. */
void replies_of_all_rules(uint32_t times);
/* Each tool alone, which must be called. */
void replies_of_each_tool(uint32_t times);
/* Tools whose schemas leave open that arguments are objects: they are none the less. */
void replies_of_open_schemas(void **state);
/* Of tools [first, first + count), one of which must be called. */
ms_grammar *replies_grammar(ms_channel channel, size_t first, size_t count, bool parallel);
/* Whether `text` is a whole reply. */
bool replies_read(const ms_grammar *g, const char *text);
/* A tool's or a response's schema that does not compile is named, and without `strict` unconstrained. */
void replies_of_bad_schemas(void **state);

#endif
