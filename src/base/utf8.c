/* utf8.c: see utf8.h.  Pure functions, no state. */
#include "base/utf8.h"

#include "base/bytes.h"

/* What a lead byte asks for: the continuation bytes, and the range of the first of them (the only one whose
 * range is ever narrower than 80..BF).  need is 0 for a byte that cannot lead. */
typedef struct lead_rule {
    unsigned need;
    uint8_t low, high;
} lead_rule;

static lead_rule rule_of(uint8_t b) {
    if (b >= 0xC2 && b <= 0xDF) return (lead_rule){1, 0x80, 0xBF};
    if (b == 0xE0) return (lead_rule){2, 0xA0, 0xBF};
    if (b == 0xED) return (lead_rule){2, 0x80, 0x9F};
    if (b >= 0xE1 && b <= 0xEF) return (lead_rule){2, 0x80, 0xBF};
    if (b == 0xF0) return (lead_rule){3, 0x90, 0xBF};
    if (b >= 0xF1 && b <= 0xF3) return (lead_rule){3, 0x80, 0xBF};
    if (b == 0xF4) return (lead_rule){3, 0x80, 0x8F};
    return (lead_rule){0, 0, 0};
}

size_t ms_utf8_decode_fault(const uint8_t *s, size_t n, uint32_t *cp, ms_utf8_fault *fault) {
    ms_utf8_fault unused;
    if (fault == NULL) fault = &unused;
    *cp = MS_UTF8_REPLACEMENT;
    *fault = MS_UTF8_CUT;
    if (n == 0) return 0;
    if (s[0] < 0x80) {
        *cp = s[0];
        *fault = MS_UTF8_GOOD;
        return 1;
    }
    lead_rule rule = rule_of(s[0]);
    if (rule.need == 0) {
        *fault = MS_UTF8_BAD;
        return 1;
    }
    uint32_t value = s[0] & (0x3Fu >> rule.need);
    for (unsigned i = 1; i <= rule.need; i++) {
        if (i >= n) return i;
        uint8_t low = i == 1 ? rule.low : 0x80, high = i == 1 ? rule.high : 0xBF;
        if (s[i] < low || s[i] > high) {
            *fault = MS_UTF8_BAD;
            return i;
        }
        value = value << 6 | (s[i] & 0x3Fu);
    }
    *cp = value;
    *fault = MS_UTF8_GOOD;
    return rule.need + 1;
}

size_t ms_utf8_decode(const uint8_t *s, size_t n, uint32_t *cp, bool *bad) {
    ms_utf8_fault fault;
    size_t used = ms_utf8_decode_fault(s, n, cp, &fault);
    if (bad != NULL) *bad = fault != MS_UTF8_GOOD;
    return used;
}

unsigned ms_utf8_encode(uint32_t cp, char out[4]) {
    if ((cp >= 0xD800 && cp <= 0xDFFF) || cp > 0x10FFFF) cp = MS_UTF8_REPLACEMENT;
    uint8_t b[4];
    unsigned len;
    if (cp < 0x80) {
        b[0] = (uint8_t)cp;
        len = 1;
    } else if (cp < 0x800) {
        b[0] = (uint8_t)(0xC0 | cp >> 6);
        len = 2;
    } else if (cp < 0x10000) {
        b[0] = (uint8_t)(0xE0 | cp >> 12);
        len = 3;
    } else {
        b[0] = (uint8_t)(0xF0 | cp >> 18);
        len = 4;
    }
    for (unsigned i = 1; i < len; i++) b[i] = (uint8_t)(0x80 | (cp >> 6 * (len - 1 - i) & 0x3F));
    memcpy(out, b, len);
    return len;
}

size_t ms_utf8_valid_prefix(const void *s, size_t n) {
    const uint8_t *p = s;
    size_t i = 0;
    while (i < n) {
        /* eight ASCII bytes at a time: the usual case */
        while (n - i >= 8 && (ms_le64(p + i) & UINT64_C(0x8080808080808080)) == 0) i += 8;
        if (i == n) break;
        uint32_t cp;
        bool bad;
        size_t used = ms_utf8_decode(p + i, n - i, &cp, &bad);
        if (bad) return i;
        i += used;
    }
    return n;
}

bool ms_utf8_valid(const void *s, size_t n) { return ms_utf8_valid_prefix(s, n) == n; }

void ms_utf8_repair(ms_text *out, const void *s, size_t n) {
    const uint8_t *p = s;
    size_t i = 0;
    while (i < n) {
        size_t good = ms_utf8_valid_prefix(p + i, n - i);
        if (good > 0) ms_text_append(out, p + i, good);
        i += good;
        if (i == n) break;
        uint32_t cp;
        i += ms_utf8_decode(p + i, n - i, &cp, NULL);
        ms_text_append(out, "\xEF\xBF\xBD", 3);
    }
}
