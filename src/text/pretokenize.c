/* pretokenize.c: see pretokenize.h. */
#include "text/pretokenize.h"

#include <stdbool.h>

#include "text/unicode.h"

/* One code point of well-formed UTF-8. */
static inline uint32_t code_point(const uint8_t *p, unsigned *len) {
    if (p[0] < 0x80) {
        *len = 1;
        return p[0];
    }
    if (p[0] < 0xE0) {
        *len = 2;
        return (p[0] & 0x1Fu) << 6 | (p[1] & 0x3Fu);
    }
    if (p[0] < 0xF0) {
        *len = 3;
        return (p[0] & 0x0Fu) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu);
    }
    *len = 4;
    return (p[0] & 0x07u) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3Fu);
}

/* Class at p; 0 at the end of the text, so that no run and no test goes beyond it. */
static inline unsigned class_at(const uint8_t *p, const uint8_t *end, unsigned *len) {
    *len = 0;
    if (p == end) return 0;
    return ms_unicode_class(code_point(p, len));
}

static const uint8_t *run_of(const uint8_t *p, const uint8_t *end, unsigned mask) {
    unsigned len;
    while (class_at(p, end, &len) & mask) p += len;
    return p;
}

static inline bool is_line_end(const uint8_t *p, const uint8_t *end) { return p < end && (*p == '\r' || *p == '\n'); }

/* Neither letter, number nor white space; marks count. */
static inline bool is_punctuation(unsigned class) {
    return (class & (MS_UC_ANY | MS_UC_LETTER | MS_UC_NUMBER | MS_UC_WHITE)) == MS_UC_ANY;
}

/* End of the contraction at p, or p.  The only non-ASCII case variant in the set is U+017F, long s. */
static const uint8_t *skip_contraction(const uint8_t *p, const uint8_t *end) {
    if (end - p < 2 || p[0] != '\'') return p;
    unsigned first = p[1] | 0x20u;
    if (p[1] < 0x80 && (first == 's' || first == 't' || first == 'm' || first == 'd')) return p + 2;
    if (end - p < 3) return p;
    if (p[1] == 0xC5 && p[2] == 0xBF) return p + 3;
    if (p[1] >= 0x80 || p[2] >= 0x80) return p;
    unsigned second = p[2] | 0x20u;
    if ((first == 'r' && second == 'e') || (first == 'v' && second == 'e') || (first == 'l' && second == 'l'))
        return p + 3;
    return p;
}

/* UP* LO+ contraction?  The greedy UP run gives back code points until a LO one follows: that is the LO code
 * point after the run, or else the last one inside it that is LO too (then LO+ is that one alone, because
 * the next is not LO).  NULL: no match. */
static const uint8_t *lower_form(const uint8_t *p, const uint8_t *end) {
    const uint8_t *after_last = NULL;
    unsigned class, len;
    for (;;) {
        class = class_at(p, end, &len);
        if (!(class & MS_UC_UP)) break;
        p += len;
        if (class & MS_UC_LO) after_last = p;
    }
    if (class & MS_UC_LO) return skip_contraction(run_of(p, end, MS_UC_LO), end);
    return after_last == NULL ? NULL : skip_contraction(after_last, end);
}

/* UP+ LO* contraction?  NULL: no match. */
static const uint8_t *upper_form(const uint8_t *p, const uint8_t *end) {
    const uint8_t *q = run_of(p, end, MS_UC_UP);
    if (q == p) return NULL;
    return skip_contraction(run_of(q, end, MS_UC_LO), end);
}

/* The two word alternatives; `len` is the length of the code point at p, whose class is given. */
static const uint8_t *word(const uint8_t *p, const uint8_t *end, unsigned class, unsigned len) {
    bool prefix = !(class & (MS_UC_LETTER | MS_UC_NUMBER)) && !is_line_end(p, end);
    const uint8_t *q;
    if (prefix && (q = lower_form(p + len, end)) != NULL) return q;
    if ((q = lower_form(p, end)) != NULL) return q;
    if (prefix && (q = upper_form(p + len, end)) != NULL) return q;
    return upper_form(p, end);
}

/* The three white-space alternatives. */
static const uint8_t *white_space(const uint8_t *p, const uint8_t *end) {
    const uint8_t *q = p, *last = p, *after_line = NULL;
    unsigned len;
    while (class_at(q, end, &len) & MS_UC_WHITE) {
        last = q;
        q += len;
        if (is_line_end(last, end)) after_line = q;
    }
    if (after_line != NULL) return after_line;
    if (q == end || last == p) return q;
    return last;
}

/* " ?[^\s\p{L}\p{N}]+[\r\n]*"; NULL: no match. */
static const uint8_t *punctuation(const uint8_t *p, const uint8_t *end) {
    unsigned size;
    if (*p == ' ') p++;
    if (!is_punctuation(class_at(p, end, &size))) return NULL;
    do p += size;
    while (is_punctuation(class_at(p, end, &size)));
    while (is_line_end(p, end)) p++;
    return p;
}

const char ms_pretoken_plain_pattern[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
    "\\s+(?!\\S)|\\s+";

size_t ms_pretoken_plain_next(const uint8_t *text, size_t len) {
    const uint8_t *end = text + len, *q = skip_contraction(text, end);
    if (q != text) return (size_t)(q - text);
    unsigned first, size, class = class_at(text, end, &first);
    if (class & MS_UC_LETTER) return (size_t)(run_of(text, end, MS_UC_LETTER) - text);
    if (class & MS_UC_NUMBER) return first;
    q = text + first;
    if (!is_line_end(text, end) && (class_at(q, end, &size) & MS_UC_LETTER))
        return (size_t)(run_of(q, end, MS_UC_LETTER) - text);
    if ((q = punctuation(text, end)) != NULL) return (size_t)(q - text);
    return (size_t)(white_space(text, end) - text);
}

size_t ms_pretoken_next(const uint8_t *text, size_t len) {
    const uint8_t *end = text + len, *q;
    unsigned first, size;
    unsigned class = class_at(text, end, &first);
    if (class & MS_UC_HAN) return (size_t)(run_of(text, end, MS_UC_HAN) - text);
    if ((q = word(text, end, class, first)) != NULL) return (size_t)(q - text);
    if (class & MS_UC_NUMBER) {
        q = text + first;
        for (int i = 1; i < 3 && (class_at(q, end, &size) & MS_UC_NUMBER); i++) q += size;
        return (size_t)(q - text);
    }
    if ((q = punctuation(text, end)) != NULL) return (size_t)(q - text);
    return (size_t)(white_space(text, end) - text);
}

size_t ms_cutter_next(ms_cutter *c, const uint8_t *text, size_t len) {
    /* A code point is at least one byte, so a short rest has no cut. */
    if (len <= c->limits.run_chars && len <= c->limits.chunk_chars - c->chunk_used) {
        c->chunk_used += len;
        return len;
    }
    size_t at = 0, run = 0;
    bool in_space = false;
    while (at < len) {
        if (c->chunk_used == c->limits.chunk_chars) {
            c->chunk_used = 0;
            if (at > 0) return at;
        }
        unsigned size;
        bool space = ms_unicode_cut_space(code_point(text + at, &size));
        if (at == 0 || space != in_space) {
            run = 1;
            in_space = space;
        } else if (run == c->limits.run_chars) {
            return at;
        } else {
            run++;
        }
        c->chunk_used++;
        at += size;
    }
    return len;
}
