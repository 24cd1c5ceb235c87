/* regex.h: patterns of JSON Schema, the part of ECMA-262 that is regular.
 *
 * Known: literals, `.`, classes with ranges and negation, \d \D \w \W \s \S, \t \n \v \f \r \0 \cX \xHH \uHHHH \u{H} and
 * escaped punctuation, groups (plain, (?:..), (?<name>..)), alternation, * + ? {n} {n,} {n,m} (lazy forms too), ^ and $
 * anywhere, and (?=..) (?!..) right behind a ^ that begins the pattern, without alternation beside them.  A pattern is
 * searched for: without anchors it may match anywhere.  Refused by name: other look-around, back references, \b, \B,
 * \p, \k.  Symbols are code points, as with ECMA's u flag.
 *
 * Owns: ms_regex owns its program.  Threads: immutable once compiled.
 * Errors: MS_ERR_USAGE for what is not supported, MS_ERR_FORMAT for what is no pattern, with the byte offset in it.
 */
#ifndef MS_TEXT_REGEX_H
#define MS_TEXT_REGEX_H

#include "text/dfa.h"

typedef struct ms_regex ms_regex;
ms_status ms_regex_compile(ms_regex **out, const char *pattern, size_t len, ms_error *err);
void ms_regex_free(ms_regex *r);

/* Whether the well-formed text has a match, by running the program itself: no automaton is built. */
ms_status ms_regex_search(const ms_regex *r, const char *text, size_t len, bool *found, ms_error *err);
/* All texts that have a match. */
ms_status ms_regex_dfa(ms_dfa *out, const ms_regex *r, uint32_t max_states, uint64_t *work, ms_error *err);

#endif
