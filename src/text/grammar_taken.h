/* grammar_taken.h: texts that must not come again, and what a new one costs.
 *
 * A list of taken texts (ms_seen) has for every class of texts that may follow (ms_distinct) a tree of those that the
 * class has: a node is a run of bytes behind its parent's, cut between symbols.  Trees never change.  One more text makes
 * new nodes along its own path, so every list keeps its trees, and to go back is to forget the newest nodes.
 *
 * Invariant: costs are exact: the fewest bytes to the end of a text of the class that was not taken.
 * Owns: nothing; the matcher has the arrays.
 * Errors: a matcher without memory has failed (ms_matcher_failed).
 */
#ifndef MS_TEXT_GRAMMAR_TAKEN_H
#define MS_TEXT_GRAMMAR_TAKEN_H

#include "text/grammar_internal.h"

/* The list with the text of the log from start on, one of these classes; MS_DFA_NONE: it was taken, or no memory. */
uint32_t ms_taken_add(ms_matcher *m, const ms_distinct *classes, uint32_t count, uint32_t seen, uint32_t start);
/* Bytes of the shortest new text of a class; MS_BOUND_NONE: none is left. */
uint32_t ms_taken_cost(const ms_matcher *m, const ms_distinct *class, uint32_t seen);
/* The same from inside of a text, a leaf under a frame that has taken texts.  pieces: what a symbol that has begun can
 * become, that the log ends in; NULL: none has begun. */
uint32_t ms_taken_rest(const ms_matcher *m, const ms_frame *leaf, const ms_piece *pieces, unsigned count);
/* Goes along what taken texts of a leaf's class go on with, behind what the leaf has read. */
typedef struct ms_taken_visitor {
    void *arg;
    /* One byte further from a place of the visitor's own; MS_DFA_NONE: no further. */
    uint32_t (*enter)(void *arg, uint32_t place, uint8_t byte);
    void (*end)(void *arg, uint32_t place); /* a text ends here */
} ms_taken_visitor;
void ms_taken_visit(const ms_matcher *m, const ms_frame *leaf, uint32_t place, const ms_taken_visitor *v);
/* The class of a leaf under such a frame; NULL: it is none. */
const ms_distinct *ms_taken_class(const ms_matcher *m, const ms_frame *leaf);

#endif
