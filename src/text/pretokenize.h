/* pretokenize.h: hard cuts and the fixed pre-tokenizer pattern, as a scanner over UTF-8 bytes.
 *
 *     [\p{Han}]+
 *     [^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|..)?
 *     [^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|..)?
 *     \p{N}{1,3}
 *      ?[^\s\p{L}\p{N}]+[\r\n]*
 *     \s*[\r\n]+
 *     \s+(?!\S)
 *     \s+
 *
 * with the contractions 's 't 're 've 'm 'll 'd.  The first alternative that matches wins.
 *
 * Threads: pure functions; a cutter belongs to one thread.
 * Invariant: the text is well-formed UTF-8 (repair it first); a whole segment takes time linear in its length.
 */
#ifndef MS_TEXT_PRETOKENIZE_H
#define MS_TEXT_PRETOKENIZE_H

#include <stddef.h>
#include <stdint.h>

#include "text/tokenizer.h"

/* Walks the parts of one segment.  Zero-initialise, then set `limits`. */
typedef struct ms_cutter {
    ms_cut_limits limits; /* both at least 1 */
    size_t chunk_used;    /* code points of the current chunk in earlier parts */
} ms_cutter;

/* Bytes of the next part of the segment whose rest is text[0..len), len > 0.  Result 1..len. */
size_t ms_cutter_next(ms_cutter *c, const uint8_t *text, size_t len);

/* Bytes of the first piece of the part text[0..len), len > 0.  Result 1..len. */
size_t ms_pretoken_next(const uint8_t *text, size_t len);

/* The same for another pattern, whose spelling this is: letters of any case, single digits, contractions by themselves. */
extern const char ms_pretoken_plain_pattern[];
size_t ms_pretoken_plain_next(const uint8_t *text, size_t len);

#endif
