/* grammar_way.h: a shortest completion of what a matcher read, in tokens.
 *
 * The way follows the bound down, symbol by symbol, and is then cut into as few tokens as it can be.  What is left of a
 * way after some of its symbols is the way from there: so a matcher keeps its way while what it reads keeps to it, and
 * nothing depends on whether it did.
 *
 * Owns: a way its arrays.  Threads: as the matcher.
 * Errors: false: out of memory.
 */
#ifndef MS_TEXT_GRAMMAR_WAY_H
#define MS_TEXT_GRAMMAR_WAY_H

#include "text/grammar_internal.h"
#include "text/grammar_vocabulary.h"

/* *tokens: how many the way takes; *first: the first of them, MS_NO_TOKEN: none. */
bool ms_way_find(ms_matcher *m, const ms_vocabulary *v, uint32_t *tokens, uint32_t *first);

#endif
