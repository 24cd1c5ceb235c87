/* grammar_leaf.h: the walk of one top frame over a vocabulary, for the frames that most tokens go through.
 *
 * Automata and strings are stepped as they are, without frames of the matcher; strings that many tokens fit by groups
 * of tokens (grammar_groups.h).  Which of the two is only a matter of time: both find the same.
 *
 * Owns: a walker borrows the groups.  Threads: one at a time.
 */
#ifndef MS_TEXT_GRAMMAR_LEAF_H
#define MS_TEXT_GRAMMAR_LEAF_H

#include "text/grammar_result.h"

typedef struct ms_leaf_walker ms_leaf_walker;
ms_leaf_walker *ms_leaf_walker_create(const ms_grammar *g, const ms_vocabulary *v); /* NULL: no memory */
void ms_leaf_walker_destroy(ms_leaf_walker *w);                                     /* NULL is fine */

/* Makes the groups that quoted strings of the grammar begin with, so that no first mask waits for them.  false: no
 * memory. */
bool ms_leaf_warm(ms_leaf_walker *w);

/* Whether the frame is of a kind that this file walks. */
bool ms_leaf_walks(const ms_matcher *m, const ms_frame *f);
/* A frame of which the same tokens are true: counts that no token can tell apart are one. */
ms_frame ms_leaf_canonical(ms_leaf_walker *w, const ms_matcher *m, const ms_frame *f);
/* Fills a fresh result.  stops: bytes that may follow an automaton or a bare string, whose end no byte of theirs tells.
 */
void ms_leaf_walk(ms_leaf_walker *w, const ms_matcher *m, const ms_frame *f, const uint64_t stops[4], ms_result *r);

#endif
