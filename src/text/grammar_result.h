/* grammar_result.h: what a walk over a vocabulary finds: tokens, what they raise the bound by, and where a frame ends.
 *
 * Owns: a result its arrays.  Threads: none of its own.
 */
#ifndef MS_TEXT_GRAMMAR_RESULT_H
#define MS_TEXT_GRAMMAR_RESULT_H

#include "text/grammar_internal.h"
#include "text/grammar_vocabulary.h"

typedef struct ms_rise {
    uint32_t by, token;
} ms_rise;

/* What follows the places where a frame ends, put together: a tree of bytes; node 0 is behind the end. */
typedef struct ms_suffix {
    uint32_t child, next, tokens; /* 0: none; tokens: + 1 */
    uint8_t byte;
} ms_suffix;

typedef struct ms_suffix_token {
    uint32_t token, floor, next; /* next: + 1 */
} ms_suffix_token;

typedef struct ms_result {
    uint32_t *tokens; /* while they are few */
    uint32_t token_count, token_cap;
    uint64_t *mask; /* NULL: the list has them */
    size_t words;
    ms_rise *rises;
    uint32_t rise_count, rise_cap;
    uint32_t *floors; /* nodes behind which the frame may end; at: before which, and their bytes follow it */
    uint32_t floor_count, floor_cap;
    bool at;
    ms_suffix *suffixes;
    ms_suffix_token *suffix_tokens;
    uint32_t suffix_count, suffix_cap, suffix_token_count, suffix_token_cap;
    bool failed; /* no memory */
} ms_result;

ms_result *ms_result_create(const ms_vocabulary *v); /* NULL: no memory */
void ms_result_free(ms_result *r);
size_t ms_result_words(const ms_result *r, const ms_vocabulary *v); /* about how much memory, in 64-bit words */
/* Tokens of a whole mask, that raise nothing. */
void ms_result_allow_all(ms_result *r, const uint64_t *mask);
/* Everything that another one allows. */
void ms_result_allow_like(ms_result *r, const ms_result *other);
void ms_result_forbid(ms_result *r, uint32_t token);
/* Adds its tokens that raise the bound by at most the slack; scratch: as many words as a mask. */
void ms_result_add(const ms_result *r, uint64_t slack, uint64_t *scratch, uint64_t *mask);
/* To be called once all is noted. */
void ms_result_sort(ms_result *r);
/* Notes a token that leads from bound `before` to `after`. */
void ms_result_allow(ms_result *r, uint32_t token, uint32_t before, uint32_t after);
void ms_result_floor(ms_result *r, uint32_t node);
/* Makes the suffixes of the floors. */
void ms_result_suffixes(ms_result *r, const ms_vocabulary *v);

#endif
