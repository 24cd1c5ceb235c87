/* grammar_string.c: strings read byte by byte, as code points with escapes (grammar_internal.h).
 *
 * A string frame has a: state of the automaton, b: code points so far as far as they matter, c: a code point that is not
 * complete: kind << 27 | bytes or digits still to come << 24 | bits so far.  Every such part stands for a few ranges of
 * code points, and it is kept only when one of them can go on.
 */
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/grammar_internal.h"
#include "text/grammar_taken.h"

typedef enum part_kind {
    PART_NONE, PART_UTF8_2, PART_UTF8_3, PART_UTF8_4, /* bytes */
    PART_ESCAPE, PART_HEX, PART_HIGH, PART_HIGH_ESCAPE, PART_LOW /* behind a backslash */
} part_kind;

enum { ALL = 0x10FFFF };

const uint32_t ms_string_escape = (uint32_t)PART_ESCAPE << 27;

static uint32_t make_part(part_kind kind, uint32_t rest, uint32_t bits) {
    return (uint32_t)kind << 27 | rest << 24 | bits;
}
static part_kind kind_of(uint32_t part) { return (part_kind)(part >> 27); }
static uint32_t rest_of(uint32_t part) { return part >> 24 & 7; }
static uint32_t bits_of(uint32_t part) { return part & 0xFFFFFF; }

static const char short_escapes[] = "\b\t\n\f\r", short_letters[] = "btnfr";

static uint32_t one_cost(ms_string_form form, uint32_t cp) {
    if (form != MS_STRING_RAW) {
        if (cp == '"' || cp == '\\') return 2;
        if (cp < 0x20) return memchr(short_escapes, (int)cp, 5) ? 2 : 6;
    }
    return cp < 0x80 ? 1 : cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
}

uint32_t ms_char_cost(ms_string_form form, uint32_t lo, uint32_t hi) {
    uint32_t best = one_cost(form, lo);
    static const uint32_t steps[] = {'\b', '\f', ' ', '!', '#', ']'};
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        if (steps[i] < lo || steps[i] > hi) continue;
        uint32_t cost = one_cost(form, steps[i]);
        if (cost < best) best = cost;
    }
    return best;
}

/* ------------------------------------------------------------------ ranges behind a part */

static const ms_piece escape_pieces[] = {{'"', '"', 1},   {'\\', '\\', 1}, {8, 10, 1},  {12, 13, 1},
                                      {0, 7, 5}, {11, 11, 5},   {14, 31, 5}};

/* The code points a part can become in canonical or raw form; at most 7 pieces. */
static unsigned pieces_of(uint32_t part, ms_piece out[7]) {
    uint32_t rest = rest_of(part), bits = bits_of(part);
    unsigned n = 0;
    if (kind_of(part) == PART_ESCAPE) {
        memcpy(out, escape_pieces, sizeof escape_pieces);
        return 7;
    }
    if (kind_of(part) == PART_HEX) {
        uint32_t lo = bits << 4 * rest, hi = lo | ((UINT32_C(1) << 4 * rest) - 1);
        for (unsigned i = 4; i < 7; i++) {
            ms_piece p = escape_pieces[i];
            if (p.lo < lo) p.lo = lo;
            if (p.hi > hi) p.hi = hi;
            if (p.lo <= p.hi) out[n++] = (ms_piece){p.lo, p.hi, rest};
        }
        return n;
    }
    if (kind_of(part) > PART_UTF8_4) return 0; /* halves of a pair: no canonical form has them */
    static const uint32_t least[] = {0, 0x80, 0x800, 0x10000};
    uint32_t lo = bits << 6 * rest, hi = lo | ((UINT32_C(1) << 6 * rest) - 1), min = least[kind_of(part)];
    if (lo < min) lo = min;
    if (hi > ALL) hi = ALL;
    if (lo < 0xD800) out[n++] = (ms_piece){lo, hi < 0xD800 ? hi : 0xD7FF, rest};
    if (hi > 0xDFFF) out[n++] = (ms_piece){lo > 0xDFFF ? lo : 0xE000, hi, rest};
    return n && out[0].lo > out[0].hi ? 0 : n;
}

/* ------------------------------------------------------------------ costs */

/* What the frame above says about repeated texts; 0: nothing. */
static uint32_t seen_above(const ms_matcher *m, const ms_frame *f) {
    const ms_frame *up = &m->frames[f->parent];
    return up->phase == MS_PHASE_EXTRA || up->phase == MS_PHASE_ITEM ? up->seen : 0;
}

uint32_t ms_string_begun(uint32_t part) {
    switch (kind_of(part)) {
    case PART_NONE: return 0;
    case PART_ESCAPE: return 1;
    case PART_HEX: return 6 - rest_of(part);
    default: return (uint32_t)kind_of(part) + 1 - rest_of(part);
    }
}

/* No automaton: any code point goes on, as long as there is room. */
static uint32_t plain_cost(const ms_block *b, const ms_frame *f) {
    uint32_t count = f->b, part = f->c, cost = 0;
    if (part) {
        if (count >= b->max) return MS_BOUND_NONE;
        if (count != UINT32_MAX) count++;
        switch (kind_of(part)) {
        case PART_ESCAPE: cost = 1; break;
        case PART_HIGH: cost = 6; break;
        case PART_HIGH_ESCAPE: cost = 5; break;
        default: cost = rest_of(part);
        }
        uint32_t top = rest_of(part) <= 2 ? bits_of(part) >> 4 * (2 - rest_of(part)) : 0;
        if (kind_of(part) == PART_HEX && top >= 0xD8 && top <= 0xDB) cost += 6; /* its second half must follow */
    }
    return count < b->min ? ms_bound_add(cost, b->min - count < MS_BOUND_NONE ? b->min - count : MS_BOUND_NONE) : cost;
}

static uint32_t range_cost(const ms_matcher *m, const ms_block *b, const ms_frame *f, ms_piece p) {
    const ms_dfa *d = &m->g->dfas[b->dfa];
    uint32_t best = MS_BOUND_NONE;
    for (uint32_t e = d->first[f->a]; e < d->first[f->a + 1]; e++) {
        const ms_dfa_edge *x = &d->edges[e];
        if (x->hi < p.lo || x->lo > p.hi) continue;
        if (b->max != MS_UNLIMITED && (uint64_t)f->b + 1 + d->dist[x->to] > b->max) continue;
        uint32_t cost = ms_bound_add(p.rest, b->weights[x->to]);
        if (cost < best) best = cost;
    }
    return best;
}

uint32_t ms_string_cost(const ms_matcher *m, const ms_frame *f) {
    const ms_block *b = &m->g->blocks[f->block];
    uint32_t quotes = b->form == MS_STRING_RAW ? 0 : f->phase == MS_PHASE_START ? 2 : 1, seen = seen_above(m, f);
    ms_piece pieces[7];
    unsigned n = f->c ? pieces_of(f->c, pieces) : 0;
    uint32_t best = MS_BOUND_NONE;
    if (seen) return ms_taken_rest(m, f, f->c ? pieces : NULL, n);
    if (b->dfa == MS_DFA_NONE && b->form == MS_STRING_CANONICAL && f->c && !n) return MS_BOUND_NONE;
    if (b->dfa == MS_DFA_NONE) return ms_bound_add(plain_cost(b, f), quotes);
    const ms_dfa *d = &m->g->dfas[b->dfa];
    if (!d->states) return MS_BOUND_NONE;
    if (!f->c) {
        if (b->max != MS_UNLIMITED && (uint64_t)f->b + d->dist[f->a] > b->max) return MS_BOUND_NONE;
        return ms_bound_add(b->weights[f->a], quotes);
    }
    for (unsigned i = 0; i < n; i++) {
        uint32_t cost = range_cost(m, b, f, pieces[i]);
        if (cost < best) best = cost;
    }
    return ms_bound_add(best, quotes);
}

bool ms_string_may_end(const ms_matcher *m, const ms_frame *f) {
    const ms_block *b = &m->g->blocks[f->block];
    if (f->c || (b->form != MS_STRING_RAW && f->phase == MS_PHASE_START)) return false;
    return b->dfa == MS_DFA_NONE ? f->b >= b->min : m->g->dfas[b->dfa].accept[f->a] != 0;
}

/* ------------------------------------------------------------------ steps */

bool ms_string_take(const ms_matcher *m, ms_frame *f, uint32_t cp) {
    const ms_block *b = &m->g->blocks[f->block];
    f->c = 0;
    if (b->dfa != MS_DFA_NONE) {
        f->a = ms_dfa_step(&m->g->dfas[b->dfa], f->a, cp);
        if (f->a == MS_DFA_NONE) return false;
    }
    if (b->max != MS_UNLIMITED) {
        if (f->b >= b->max) return false;
        f->b++;
    } else if (f->b < b->min) {
        f->b++;
    }
    return true;
}

static ms_decoded set_part(uint32_t *part, part_kind kind, uint32_t rest, uint32_t bits) {
    ms_piece pieces[7];
    *part = make_part(kind, rest, bits);
    return kind > PART_UTF8_4 || pieces_of(*part, pieces) > 0 ? MS_DECODED_PART : MS_DECODED_BAD;
}

static ms_decoded whole(uint32_t *part, uint32_t cp, uint32_t *out) {
    *part = 0;
    *out = cp;
    return MS_DECODED_SYMBOL;
}

static ms_decoded utf8_byte(uint32_t *part, uint8_t byte, uint32_t *cp) {
    if (!*part) {
        if (byte < 0x80) return whole(part, byte, cp);
        if (byte >= 0xC2 && byte < 0xE0) return set_part(part, PART_UTF8_2, 1, byte & 31);
        if (byte >= 0xE0 && byte < 0xF0) return set_part(part, PART_UTF8_3, 2, byte & 15);
        if (byte >= 0xF0 && byte < 0xF5) return set_part(part, PART_UTF8_4, 3, byte & 7);
        return MS_DECODED_BAD;
    }
    if ((byte & 0xC0) != 0x80) return MS_DECODED_BAD;
    uint32_t bits = bits_of(*part) << 6 | (byte & 63), rest = rest_of(*part) - 1;
    return rest ? set_part(part, kind_of(*part), rest, bits) : whole(part, bits, cp);
}

static int hex_digit(uint8_t c, bool lower_only) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F' && !lower_only) return c - 'A' + 10;
    return -1;
}

static ms_decoded canonical_hex(uint32_t *part, uint32_t rest, uint32_t bits, uint32_t *cp) {
    ms_piece pieces[7];
    *part = make_part(PART_HEX, rest, bits);
    if (rest) return pieces_of(*part, pieces) > 0 ? MS_DECODED_PART : MS_DECODED_BAD;
    if (bits >= 0x20 || memchr(short_escapes, (int)bits, 5)) return MS_DECODED_BAD;
    return whole(part, bits, cp);
}

static ms_decoded hex_byte(uint32_t *part, uint8_t byte, bool canonical, uint32_t *cp) {
    int digit = hex_digit(byte, canonical);
    if (digit < 0) return MS_DECODED_BAD;
    uint32_t rest = rest_of(*part) - 1, bits = bits_of(*part) << 4 | (uint32_t)digit;
    if (kind_of(*part) == PART_LOW) { /* ten bits of the first half, then the second */
        uint32_t low = bits & 0xFFFF;
        if (rest == 3 && digit != 13) return MS_DECODED_BAD;
        if (rest == 2 && (low & 15) < 12) return MS_DECODED_BAD;
        if (rest) return set_part(part, PART_LOW, rest, bits);
        return whole(part, 0x10000 + ((bits >> 16 & 0x3FF) << 10) + (low - 0xDC00), cp);
    }
    if (canonical) return canonical_hex(part, rest, bits, cp);
    if (rest == 2 && bits >= 0xDC && bits <= 0xDF) return MS_DECODED_BAD;
    if (rest) return set_part(part, PART_HEX, rest, bits);
    if (bits >= 0xD800 && bits < 0xDC00) return set_part(part, PART_HIGH, 0, bits - 0xD800);
    return whole(part, bits, cp);
}

static ms_decoded escape_byte(uint32_t *part, uint8_t byte, bool canonical, uint32_t *cp) {
    uint32_t bits = bits_of(*part);
    switch (kind_of(*part)) {
    case PART_ESCAPE: {
        const char *letter = byte ? memchr(short_letters, byte, 5) : NULL;
        if (letter) return whole(part, (uint8_t)short_escapes[letter - short_letters], cp);
        if (byte == '"' || byte == '\\') return whole(part, byte, cp);
        if (byte == '/' && !canonical) return whole(part, byte, cp);
        return byte == 'u' ? set_part(part, PART_HEX, 4, 0) : MS_DECODED_BAD;
    }
    case PART_HIGH: return byte == '\\' ? set_part(part, PART_HIGH_ESCAPE, 0, bits) : MS_DECODED_BAD;
    case PART_HIGH_ESCAPE: return byte == 'u' ? set_part(part, PART_LOW, 4, bits) : MS_DECODED_BAD;
    default: return hex_byte(part, byte, canonical, cp);
    }
}

ms_decoded ms_string_decode(ms_string_form form, uint32_t *part, uint8_t byte, uint32_t *cp) {
    if (form == MS_STRING_RAW) return utf8_byte(part, byte, cp);
    if (kind_of(*part) > PART_UTF8_4) return escape_byte(part, byte, form == MS_STRING_CANONICAL, cp);
    if (!*part && byte == '"') return MS_DECODED_END;
    if (!*part && byte == '\\') return set_part(part, PART_ESCAPE, 0, 0);
    if (!*part && byte < 0x20) return MS_DECODED_BAD;
    return utf8_byte(part, byte, cp);
}

int ms_string_step(const ms_matcher *m, ms_frame *f, uint8_t byte) {
    const ms_block *b = &m->g->blocks[f->block];
    uint32_t cp;
    if (b->form != MS_STRING_RAW && f->phase == MS_PHASE_START) {
        f->phase = MS_PHASE_FIRST;
        return byte == '"';
    }
    switch (ms_string_decode(b->form, &f->c, byte, &cp)) {
    case MS_DECODED_PART: return 1;
    case MS_DECODED_SYMBOL: return ms_string_take(m, f, cp);
    case MS_DECODED_END: return ms_string_may_end(m, f) ? 2 : 0;
    default: return 0;
    }
}
