/* grammar_mask.h: which tokens of a vocabulary may come next.
 *
 * A vocabulary is a tree of the bytes of all ordinary tokens, built once a tokenizer.  A mask walks it along every
 * stack of a matcher, so a token may end inside a code point and may cross any number of blocks.  What a walk finds
 * depends on the top frame first and on the frames below only where a token leaves it; both parts are kept.  Strings,
 * that nearly all tokens fit, are walked by groups of tokens (grammar_groups.h), so that a state that is new costs
 * little, too.
 *
 * With a limit, a token is allowed only when the text after it can be completed in the tokens that are left (a byte is
 * never more than a token).  So a reply that can be completed at its start is complete at its limit.
 *
 * Owns: a vocabulary its tree and the groups, a cache its masks (bounded).  A vocabulary outlives its caches.
 * Threads: a vocabulary is immutable; a cache belongs to one thread at a time and serves matchers of one grammar.
 * Errors: MS_ERR_MEMORY; MS_ERR_USAGE when no token fits, which only a matcher at its end has.
 */
#ifndef MS_TEXT_GRAMMAR_MASK_H
#define MS_TEXT_GRAMMAR_MASK_H

#include "text/grammar.h"
#include "text/tokenizer.h"

typedef struct ms_vocabulary ms_vocabulary;
/* logits: how many ids the model has, at least the tokenizer's.  The tokenizer outlives the vocabulary. */
ms_status ms_vocabulary_create(ms_vocabulary **out, const ms_tokenizer *t, uint32_t logits, ms_error *err);
void ms_vocabulary_destroy(ms_vocabulary *v);
/* 64-bit words of a mask; bit i & 63 of word i >> 6 is token i. */
size_t ms_vocabulary_mask_words(const ms_vocabulary *v);

/* Reads a token.  false: it does not fit, and the matcher is as before. */
bool ms_matcher_token(ms_matcher *m, const ms_vocabulary *v, uint32_t id);

typedef struct ms_mask_cache ms_mask_cache;
ms_status ms_mask_cache_create(ms_mask_cache **out, const ms_grammar *g, const ms_vocabulary *v, ms_error *err);
void ms_mask_cache_destroy(ms_mask_cache *c);

/* Fills mask with the tokens that may come next when `remaining` tokens, that one included, are left; MS_UNLIMITED: no
 * limit.  When nothing can be completed in them, only the way to the shortest completion is open. */
ms_status ms_mask_next(ms_mask_cache *c, ms_matcher *m, uint32_t remaining, uint64_t *mask, ms_error *err);
/* Tokens that the shortest reply of a grammar takes: no limit below is kept by any reply, and one of as many always is.
 * Needs no cache, so any thread may ask. */
ms_status ms_grammar_tokens_needed(const ms_grammar *g, const ms_vocabulary *v, uint32_t *tokens, ms_error *err);
/* Tokens that suffice to complete what was read: a limit of as many is never missed. */
ms_status ms_mask_tokens_needed(ms_mask_cache *c, ms_matcher *m, uint32_t *tokens, ms_error *err);

#endif
