/* utf8.h: UTF-8 validation, decoding, encoding and repair.
 *
 * Ill-formed input follows the Unicode replacement rule: each maximal ill-formed subpart (the longest prefix
 * of a well-formed sequence, else one byte) counts as one error.  Surrogates, overlong forms and code points
 * above U+10FFFF are ill-formed.
 *
 * Threads: pure functions.
 */
#ifndef MS_BASE_UTF8_H
#define MS_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/text.h"

#define MS_UTF8_REPLACEMENT UINT32_C(0xFFFD)

/* The sequence at s[0..n), when it is not one whole code point. */
typedef enum ms_utf8_fault {
    MS_UTF8_GOOD,      /* one code point */
    MS_UTF8_BAD,       /* ill-formed whatever follows */
    MS_UTF8_CUT        /* the input ends inside a sequence that is well-formed so far */
} ms_utf8_fault;

/* Decodes the sequence at s[0..n), n > 0.  Returns the bytes it takes (1..4) and puts the code point in *cp.
 * On a fault *cp is U+FFFD and the length is that of the maximal ill-formed subpart.  *fault (may be NULL)
 * tells a fault from a literal U+FFFD.  n == 0 returns 0 with MS_UTF8_CUT. */
size_t ms_utf8_decode_fault(const uint8_t *s, size_t n, uint32_t *cp, ms_utf8_fault *fault);

/* The same; *bad (may be NULL) is true for both kinds of fault. */
size_t ms_utf8_decode(const uint8_t *s, size_t n, uint32_t *cp, bool *bad);

/* Writes one code point, returns the bytes written (1..4).  Surrogates and values above U+10FFFF are written as
 * U+FFFD. */
unsigned ms_utf8_encode(uint32_t cp, char out[4]);

bool ms_utf8_valid(const void *s, size_t n);

/* Bytes at the start of s[0..n) that are well-formed; n when all are. */
size_t ms_utf8_valid_prefix(const void *s, size_t n);

/* Appends s[0..n) with U+FFFD for each maximal ill-formed subpart.  Memory failure shows in out->failed. */
void ms_utf8_repair(ms_text *out, const void *s, size_t n);

#endif
