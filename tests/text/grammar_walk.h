/* grammar_walk.h: random walks through the token mask of a grammar, over a small random vocabulary. */
#ifndef TESTS_TEXT_GRAMMAR_WALK_H
#define TESTS_TEXT_GRAMMAR_WALK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/grammar_mask.h"

/* A fixed sequence of numbers for each seed. */
static inline uint32_t walk_random(uint64_t *state) {
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*state >> 33);
}

static inline void walk_base64(ms_text *t, const uint8_t *s, size_t n) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        uint32_t v = (uint32_t)s[i] << 16 | (i + 1 < n ? (uint32_t)s[i + 1] << 8 : 0) | (i + 2 < n ? s[i + 2] : 0u);
        char out[4] = {digits[v >> 18], digits[v >> 12 & 63], i + 1 < n ? digits[v >> 6 & 63] : '=',
                       i + 2 < n ? digits[v & 63] : '='};
        ms_text_append(t, out, 4);
    }
}

/* The single bytes, then pieces of JSON, of markup and of UTF-8 in every cut. */
static inline ms_tokenizer *walk_tokenizer(uint64_t seed, uint32_t more) {
    static const char source[] = "{\"a\":1,\"b\": [true, null, \"x\"],\n  \"xa\": -0.5e3, \"k\":{\"v\":[[1,2],[]]}}, \"d\":\"2024-02-29\", "
                                 "argument key=\"city\" type=\"string\" call tool=\"look\" index=\"1\" tools response message "
                                 "think é😀ü\\n\\u00e9\\\\ \"]}]}\"}}, \"\": false,\"required\":\"abc\"  \n\n    100 25.5 foobar";
    ms_text ranks = {0};
    uint8_t seen[4000][13];
    uint32_t count = 0, rank = 256;
    for (uint32_t i = 0; i < 256; i++) {
        uint8_t b = (uint8_t)i;
        walk_base64(&ranks, &b, 1);
        ms_text_printf(&ranks, " %u\n", i);
    }
    for (uint32_t tries = 0; count < more && count < 4000 && tries < 100000; tries++) {
        uint8_t token[13] = {0};
        uint32_t len = 2 + walk_random(&seed) % 5, at = walk_random(&seed) % (uint32_t)(sizeof source - 1 - len);
        if (walk_random(&seed) % 8 == 0) len += 4;
        if (at + len >= sizeof source) continue;
        memcpy(token + 1, source + at, len);
        if (walk_random(&seed) % 5 == 0) token[1 + walk_random(&seed) % len] = (uint8_t)"\"{}[],:0a\xc3\xa9"[walk_random(&seed) % 11];
        token[0] = (uint8_t)len;
        bool known = false;
        for (uint32_t k = 0; k < count && !known; k++) known = memcmp(seen[k], token, sizeof token) == 0;
        if (known) continue;
        memcpy(seen[count++], token, sizeof token);
        walk_base64(&ranks, token + 1, len);
        ms_text_printf(&ranks, " %u\n", rank++);
    }
    ms_tokenizer *t;
    ms_error err;
    if (ms_tokenizer_parse(&t, ranks.data, ranks.len, "walk", &err) != MS_OK) {
        (void)fprintf(stderr, "%s\n", err.message);
        abort();
    }
    ms_text_free(&ranks);
    return t;
}

/* A random set bit; UINT32_MAX: there is none. */
static inline uint32_t walk_pick(const uint64_t *mask, size_t words, uint64_t *seed) {
    uint32_t n = 0;
    for (size_t i = 0; i < words; i++) n += (uint32_t)__builtin_popcountll(mask[i]);
    if (!n) return UINT32_MAX;
    n = walk_random(seed) % n;
    for (size_t i = 0;; i++) {
        uint32_t here = (uint32_t)__builtin_popcountll(mask[i]);
        if (n >= here) {
            n -= here;
            continue;
        }
        uint64_t bits = mask[i];
        while (n--) bits &= bits - 1;
        return (uint32_t)(i * 64) + (uint32_t)__builtin_ctzll(bits);
    }
}

#endif
