/* regex.c: pattern to program (a nondeterministic automaton with assertions), search and subset construction.
 *
 * Look-ahead right behind the ^ that begins a pattern says of the whole text what it must or must not begin with: it is
 * a program of its own, and a text that matches is one of the rest that all of them agree to.
 *
 * Invariants: node 0 loops over any symbol before a match and node 1 after it, so that search needs no special case.
 *   A `^` edge is followed only at the start of the text, a `$` edge only at its end.
 */
#include "text/regex.h"

#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

enum { MAX_NODES = 6000, MAX_LOOKS = 8, MAX_GROUP_DEPTH = 60, MAX_REPEAT = 1000, MAX_TEXT = 1 << 16, ALL = 0x10FFFF };

typedef enum op { OP_SPLIT, OP_CLASS, OP_BEGIN, OP_END, OP_MATCH } op;

typedef struct range {
    uint32_t lo, hi;
} range;

typedef struct node {
    op op;
    uint32_t a, b;        /* successors; MS_DFA_NONE: none */
    uint32_t first, count; /* OP_CLASS: ranges, ascending and disjoint */
} node;

typedef struct look {
    ms_regex *regex; /* anchored */
    bool negative;
} look;

struct ms_regex {
    look looks[MAX_LOOKS];
    size_t look_count;
    node *nodes;
    uint32_t count, cap;
    range *ranges;
    uint32_t range_count, range_cap;
};

typedef struct parser {
    ms_regex *r;
    const char *text;
    size_t len, at;
    unsigned depth;
    ms_error *err;
    ms_status status;
} parser;

/* A piece of program: entered at `start`, left through `end`, a split without successors. */
typedef struct piece {
    uint32_t start, end;
} piece;

static piece refuse(parser *p, ms_status status, const char *what) {
    if (p->status == MS_OK) p->status = ms_fail(p->err, status, "%s, at byte %zu", what, p->at);
    return (piece){0, 0};
}

/* What is not supported, and what is no pattern. */
static piece fail(parser *p, const char *what) { return refuse(p, MS_ERR_USAGE, what); }
static piece malformed(parser *p, const char *what) { return refuse(p, MS_ERR_FORMAT, what); }

static uint32_t add(parser *p, op kind, uint32_t a, uint32_t b) {
    ms_regex *r = p->r;
    if (p->status != MS_OK) return 0;
    if (r->count == MAX_NODES) {
        (void)fail(p, "expected a smaller pattern (repeats are counted out)");
        return 0;
    }
    if (r->count == r->cap) {
        uint32_t cap = r->cap ? r->cap * 2 : 64;
        node *nodes = realloc(r->nodes, cap * sizeof *nodes);
        if (!nodes) {
            p->status = ms_fail_memory(p->err, "a pattern", cap * sizeof *nodes);
            return 0;
        }
        r->nodes = nodes;
        r->cap = cap;
    }
    r->nodes[r->count] = (node){.op = kind, .a = a, .b = b};
    return r->count++;
}

static uint32_t empty_node(parser *p) { return add(p, OP_SPLIT, MS_DFA_NONE, MS_DFA_NONE); }

static void link_to(parser *p, uint32_t from, uint32_t to) {
    if (p->status != MS_OK) return;
    node *n = &p->r->nodes[from];
    if (n->a == MS_DFA_NONE) n->a = to;
    else n->b = to;
}

/* ------------------------------------------------------------------ classes */

typedef struct class_set {
    range items[512];
    unsigned count;
} class_set;

static void class_add(parser *p, class_set *c, uint32_t lo, uint32_t hi) {
    if (c->count == sizeof c->items / sizeof c->items[0]) (void)fail(p, "expected a smaller class");
    else c->items[c->count++] = (range){lo, hi};
}

static int by_low(const void *x, const void *y) {
    const range *a = x, *b = y;
    return (a->lo > b->lo) - (a->lo < b->lo);
}

static void class_tidy(class_set *c) {
    unsigned n = 0;
    qsort(c->items, c->count, sizeof c->items[0], by_low);
    for (unsigned i = 0; i < c->count; i++) {
        if (n && c->items[i].lo <= c->items[n - 1].hi + 1) {
            if (c->items[i].hi > c->items[n - 1].hi) c->items[n - 1].hi = c->items[i].hi;
        } else {
            c->items[n++] = c->items[i];
        }
    }
    c->count = n;
}

static void class_invert(parser *p, class_set *c) {
    class_set other = {.count = 0};
    uint32_t next = 0;
    class_tidy(c);
    for (unsigned i = 0; i < c->count; i++) {
        if (c->items[i].lo > next) class_add(p, &other, next, c->items[i].lo - 1);
        next = c->items[i].hi + 1;
    }
    if (next <= ALL) class_add(p, &other, next, ALL);
    *c = other;
}

/* The class of an escape letter; false: it is none. */
static bool class_escape(parser *p, class_set *out, char letter) {
    static const range digit[] = {{'0', '9'}}, word[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}},
                       space[] = {{9, 13},          {32, 32},         {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
                                  {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
    const range *from;
    size_t n;
    switch (letter | 0x20) {
    case 'd': from = digit, n = 1; break;
    case 'w': from = word, n = 4; break;
    case 's': from = space, n = sizeof space / sizeof space[0]; break;
    default: return false;
    }
    class_set c = {.count = 0};
    for (size_t i = 0; i < n; i++) class_add(p, &c, from[i].lo, from[i].hi);
    if (letter < 'a') class_invert(p, &c);
    for (unsigned i = 0; i < c.count; i++) class_add(p, out, c.items[i].lo, c.items[i].hi);
    return true;
}

/* A class as a node, without the surrogates, which no text has. */
static piece class_piece(parser *p, class_set *c) {
    uint32_t end = empty_node(p), start = add(p, OP_CLASS, end, MS_DFA_NONE);
    class_tidy(c);
    ms_regex *r = p->r;
    if (r->range_count + 2 * c->count > r->range_cap) {
        uint32_t cap = 2 * r->range_cap + 2 * c->count + 64;
        range *ranges = realloc(r->ranges, cap * sizeof *ranges);
        if (!ranges) {
            if (p->status == MS_OK) p->status = ms_fail_memory(p->err, "a pattern", cap * sizeof *ranges);
            return (piece){0, 0};
        }
        r->ranges = ranges;
        r->range_cap = cap;
    }
    if (p->status != MS_OK) return (piece){0, 0};
    r->nodes[start].first = r->range_count;
    for (unsigned i = 0; i < c->count; i++) {
        range x = c->items[i];
        if (x.lo < 0xD800) r->ranges[r->range_count++] = (range){x.lo, x.hi < 0xD800 ? x.hi : 0xD7FF};
        if (x.hi > 0xDFFF) r->ranges[r->range_count++] = (range){x.lo > 0xDFFF ? x.lo : 0xE000, x.hi};
    }
    r->nodes[start].count = r->range_count - r->nodes[start].first;
    return (piece){start, end};
}

static piece one(parser *p, uint32_t cp) {
    class_set c = {.items = {{cp, cp}}, .count = 1};
    return class_piece(p, &c);
}

/* ------------------------------------------------------------------ parsing */

static int peek(const parser *p) { return p->at < p->len ? (unsigned char)p->text[p->at] : -1; }
static bool take(parser *p, char c) {
    if (peek(p) != c) return false;
    p->at++;
    return true;
}

static uint32_t next_cp(parser *p) {
    uint32_t cp;
    p->at += ms_utf8_decode((const uint8_t *)p->text + p->at, p->len - p->at, &cp, NULL);
    return cp;
}

static bool hex(parser *p, unsigned digits, uint32_t *out) {
    uint32_t v = 0;
    if (p->len - p->at < digits) return false;
    for (unsigned i = 0; i < digits; i++) {
        char c = p->text[p->at + i];
        unsigned d = c >= '0' && c <= '9'   ? (unsigned)(c - '0')
                     : c >= 'a' && c <= 'f' ? (unsigned)(c - 'a' + 10)
                     : c >= 'A' && c <= 'F' ? (unsigned)(c - 'A' + 10)
                                            : 16;
        if (d > 15) return false;
        v = v << 4 | d;
    }
    p->at += digits;
    *out = v;
    return true;
}

static uint32_t unicode_escape(parser *p) {
    uint32_t v = 0, low;
    if (take(p, '{')) {
        size_t start = p->at, n = 0;
        while (start + n < p->len && p->text[start + n] != '}') n++;
        if (n == 0 || n > 6 || !hex(p, (unsigned)n, &v) || v > ALL || !take(p, '}'))
            (void)malformed(p, "bad \\u{ escape");
        return v;
    }
    if (!hex(p, 4, &v)) {
        (void)malformed(p, "expected four hexadecimal digits after \\u");
    } else if (v >= 0xD800 && v < 0xDC00 && p->len - p->at >= 6 && p->text[p->at] == '\\' && p->text[p->at + 1] == 'u') {
        size_t back = p->at;
        p->at += 2;
        if (hex(p, 4, &low) && low >= 0xDC00 && low < 0xE000) return 0x10000 + ((v - 0xD800) << 10) + (low - 0xDC00);
        p->at = back;
    }
    return v;
}

/* The code point of an escape that is not a class; p is behind the backslash. */
static uint32_t char_escape(parser *p) {
    uint32_t v = 0;
    int c = peek(p);
    if (c < 0) {
        (void)malformed(p, "expected a character after \\");
        return 0;
    }
    p->at++;
    switch (c) {
    case 't': return 9;
    case 'n': return 10;
    case 'v': return 11;
    case 'f': return 12;
    case 'r': return 13;
    case '0':
        if (peek(p) >= '0' && peek(p) <= '9') (void)fail(p, "octal escapes are not supported");
        return 0;
    case 'c':
        c = peek(p) | 0x20;
        if (c < 'a' || c > 'z') (void)malformed(p, "expected a letter after \\c");
        p->at++;
        return (uint32_t)c & 31;
    case 'x':
        if (!hex(p, 2, &v)) (void)malformed(p, "expected two hexadecimal digits after \\x");
        return v;
    case 'u': return unicode_escape(p);
    default: break;
    }
    p->at--;
    if (c >= '1' && c <= '9') (void)fail(p, "back references are not supported");
    else if (c == 'b' || c == 'B') (void)fail(p, "word boundaries (\\b, \\B) are not supported");
    else if (c == 'p' || c == 'P') (void)fail(p, "Unicode property classes (\\p, \\P) are not supported");
    else if (c == 'k') (void)fail(p, "back references are not supported");
    else if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_') (void)fail(p, "unknown escape");
    return next_cp(p);
}

/* One member of a class; true: a single code point in *cp, else a whole class was added. */
static bool class_member(parser *p, class_set *c, uint32_t *cp) {
    if (!take(p, '\\')) {
        *cp = next_cp(p);
        return true;
    }
    if (p->at < p->len && class_escape(p, c, p->text[p->at])) {
        p->at++;
        return false;
    }
    if (take(p, 'b')) {
        *cp = 8;
        return true;
    }
    *cp = char_escape(p);
    return true;
}

static piece bracket(parser *p) {
    class_set c = {.count = 0};
    bool invert = take(p, '^');
    while (p->status == MS_OK && !take(p, ']')) {
        uint32_t lo, hi;
        if (peek(p) < 0) return malformed(p, "expected ] to end the class");
        bool single = class_member(p, &c, &lo);
        if (p->at + 1 < p->len && p->text[p->at] == '-' && p->text[p->at + 1] != ']') {
            p->at++;
            if (!single || !class_member(p, &c, &hi) || hi < lo) return malformed(p, "bad range in a class");
            class_add(p, &c, lo, hi);
        } else if (single) {
            class_add(p, &c, lo, lo);
        }
    }
    if (invert) class_invert(p, &c);
    return class_piece(p, &c);
}

static piece alternation(parser *p);

static piece group(parser *p) {
    if (take(p, '?')) {
        if (take(p, '<')) {
            if (peek(p) == '=' || peek(p) == '!') return fail(p, "look-behind is not supported");
            while (peek(p) >= 0 && peek(p) != '>') p->at++;
            if (!take(p, '>')) return malformed(p, "expected > after a group's name");
        } else if (peek(p) == '=' || peek(p) == '!') {
            return fail(p, "look-ahead is supported only right behind a ^ that begins the pattern");
        } else if (!take(p, ':')) {
            return fail(p, "unknown group form");
        }
    }
    if (++p->depth > MAX_GROUP_DEPTH) return fail(p, "groups nest too deep");
    piece inner = alternation(p);
    p->depth--;
    if (!take(p, ')')) return malformed(p, "expected )");
    return inner;
}

static piece assertion(parser *p, op kind) {
    uint32_t end = empty_node(p);
    return (piece){add(p, kind, end, MS_DFA_NONE), end};
}

static bool quantifier(parser *p, uint32_t *min, uint32_t *max);

static piece atom(parser *p) {
    uint32_t min, max;
    if (take(p, '(')) return group(p);
    if (take(p, '[')) return bracket(p);
    if (take(p, '^')) return assertion(p, OP_BEGIN);
    if (take(p, '$')) return assertion(p, OP_END);
    if (take(p, '.')) {
        class_set s = {.items = {{10, 10}, {13, 13}, {0x2028, 0x2029}}, .count = 3};
        class_invert(p, &s);
        return class_piece(p, &s);
    }
    if (take(p, '\\')) {
        class_set s = {.count = 0};
        if (p->at < p->len && class_escape(p, &s, p->text[p->at])) {
            p->at++;
            return class_piece(p, &s);
        }
        return one(p, char_escape(p));
    }
    if (quantifier(p, &min, &max)) return malformed(p, "nothing to repeat");
    return one(p, next_cp(p));
}

/* All digits, so that a large bound is not taken for a literal; what is above every limit stays above. */
static bool number(parser *p, uint32_t *out) {
    uint32_t v = 0;
    size_t start = p->at;
    for (; peek(p) >= '0' && peek(p) <= '9'; p->at++)
        if (v < 100000) v = v * 10 + (uint32_t)(p->text[p->at] - '0');
    *out = v;
    return p->at > start;
}

/* The bounds of a quantifier; false: there is none here.  `{` that begins no bounds is a literal. */
static bool quantifier(parser *p, uint32_t *min, uint32_t *max) {
    *max = UINT32_MAX;
    *min = 0;
    size_t back = p->at;
    if (take(p, '*')) {
    } else if (take(p, '+')) {
        *min = 1;
    } else if (take(p, '?')) {
        *max = 1;
    } else if (take(p, '{')) {
        bool good = number(p, min);
        if (good && take(p, ',')) {
            if (peek(p) != '}') good = number(p, max);
        } else {
            *max = *min;
        }
        if (!good || !take(p, '}')) {
            p->at = back;
            return false;
        }
    } else {
        return false;
    }
    (void)take(p, '?');
    return true;
}

/* The atom at `from` once more: repeats are counted out by reading their text again. */
static piece again(parser *p, size_t from) {
    size_t back = p->at;
    p->at = from;
    piece x = atom(p);
    p->at = back;
    return x;
}

static piece repeat(parser *p, piece x, size_t from, uint32_t min, uint32_t max) {
    if (max < min) return malformed(p, "expected bounds of a repeat in order");
    if (min > MAX_REPEAT || (max != UINT32_MAX && max > MAX_REPEAT)) return fail(p, "expected at most 1000 repeats");
    uint32_t start = empty_node(p), at = start, end = empty_node(p);
    uint32_t copies = max == UINT32_MAX ? min + 1 : max;
    for (uint32_t i = 0; i < copies && p->status == MS_OK; i++) {
        piece y = i ? again(p, from) : x;
        uint32_t head = add(p, OP_SPLIT, y.start, i >= min ? end : MS_DFA_NONE);
        link_to(p, at, head);
        at = y.end;
        if (max == UINT32_MAX && i == min) {
            link_to(p, y.end, head);
            at = MS_DFA_NONE;
        }
    }
    if (at != MS_DFA_NONE) link_to(p, at, end);
    return (piece){start, end};
}

static piece sequence(parser *p) {
    uint32_t start = empty_node(p), at = start;
    while (p->status == MS_OK && peek(p) >= 0 && peek(p) != '|' && peek(p) != ')') {
        size_t from = p->at;
        uint32_t min, max;
        piece x = atom(p);
        if (p->status == MS_OK && quantifier(p, &min, &max)) {
            if (p->text[from] == '^' || p->text[from] == '$') return malformed(p, "nothing to repeat");
            x = repeat(p, x, from, min, max);
        }
        link_to(p, at, x.start);
        at = x.end;
    }
    return (piece){start, at};
}

static piece alternation(parser *p) {
    piece all = sequence(p);
    while (p->status == MS_OK && take(p, '|')) {
        piece other = sequence(p);
        uint32_t end = empty_node(p);
        link_to(p, all.end, end);
        link_to(p, other.end, end);
        all = (piece){add(p, OP_SPLIT, all.start, other.start), end};
    }
    return all;
}

/* What a part of a pattern is: all of it, the inside of a look-ahead, what stands behind them. */
typedef enum part { PART_ALL, PART_LOOK, PART_REST } part;

static piece body_of(parser *p, part kind) {
    piece body = kind == PART_REST ? sequence(p) : alternation(p);
    if (p->status == MS_OK && peek(p) == ')') return malformed(p, "unexpected )");
    if (p->status == MS_OK && peek(p) == '|')
        return fail(p, "alternation beside a look-ahead is supported only in a group");
    return kind == PART_ALL ? body : (piece){add(p, OP_BEGIN, body.start, MS_DFA_NONE), body.end};
}

static ms_status compile_part(ms_regex **out, parser *whole, size_t from, size_t to, part kind) {
    *out = NULL;
    ms_regex *r = calloc(1, sizeof *r);
    if (!r) return ms_fail_memory(whole->err, "a pattern", sizeof *r);
    parser p = {.r = r, .text = whole->text, .len = to, .at = from, .err = whole->err, .status = MS_OK};
    class_set any = {.items = {{0, ALL}}, .count = 1};
    uint32_t before = add(&p, OP_SPLIT, MS_DFA_NONE, MS_DFA_NONE);
    uint32_t after = add(&p, OP_MATCH, MS_DFA_NONE, MS_DFA_NONE);
    piece head = class_piece(&p, &any), tail = class_piece(&p, &any), body = body_of(&p, kind);
    if (p.status == MS_OK) {
        link_to(&p, before, body.start);
        link_to(&p, before, head.start);
        link_to(&p, head.end, before);
        link_to(&p, body.end, after);
        link_to(&p, after, tail.start);
        link_to(&p, tail.end, after);
        *out = r;
    } else {
        ms_regex_free(r);
    }
    return p.status;
}

/* The place of the ) that ends a group whose inside begins here; the end of the text: there is none. */
static size_t end_of_group(const parser *p, size_t at) {
    bool in_class = false;
    for (unsigned depth = 1; at < p->len; at++) {
        char c = p->text[at];
        if (c == '\\') at++;
        else if (in_class) in_class = c != ']';
        else if (c == '[') in_class = true;
        else if (c == '(') depth++;
        else if (c == ')' && --depth == 0) return at;
    }
    return p->len;
}

static bool look_begins(const parser *p) {
    const char *s = p->text + p->at;
    return p->len - p->at >= 3 && s[0] == '(' && s[1] == '?' && (s[2] == '=' || s[2] == '!');
}

static void take_looks(parser *p, look *looks, size_t *count) {
    for (*count = 0; p->status == MS_OK && look_begins(p);) {
        size_t inside = p->at + 3, end = end_of_group(p, inside);
        if (end >= p->len) {
            (void)malformed(p, "expected ) to end the look-ahead");
        } else if (*count == MAX_LOOKS) {
            (void)fail(p, "expected at most 8 look-aheads");
        } else {
            looks[*count].negative = p->text[inside - 1] == '!';
            p->status = compile_part(&looks[*count].regex, p, inside, end, PART_LOOK);
            *count += p->status == MS_OK;
            p->at = end + 1;
        }
    }
}

ms_status ms_regex_compile(ms_regex **out, const char *pattern, size_t len, ms_error *err) {
    parser p = {.text = pattern, .len = len, .err = err, .status = MS_OK};
    look looks[MAX_LOOKS];
    size_t count = 0;
    *out = NULL;
    if (len > MAX_TEXT) (void)fail(&p, "expected a shorter pattern");
    if (take(&p, '^')) take_looks(&p, looks, &count);
    if (p.status == MS_OK) p.status = compile_part(out, &p, count ? p.at : 0, len, count ? PART_REST : PART_ALL);
    if (p.status == MS_OK) {
        memcpy((*out)->looks, looks, count * sizeof *looks);
        (*out)->look_count = count;
    } else {
        for (size_t i = 0; i < count; i++) ms_regex_free(looks[i].regex);
    }
    return p.status;
}

void ms_regex_free(ms_regex *r) {
    if (!r) return;
    for (size_t i = 0; i < r->look_count; i++) ms_regex_free(r->looks[i].regex);
    free(r->nodes);
    free(r->ranges);
    free(r);
}

/* ------------------------------------------------------------------ sets of nodes */

typedef struct runner {
    const ms_regex *r;
    uint32_t words;   /* of a set */
    uint64_t *seen;   /* closure scratch */
    uint32_t *stack;
    uint64_t *target; /* subset construction scratch */
    range *cuts;
} runner;

static bool has(const uint64_t *set, uint32_t i) { return set[i >> 6] >> (i & 63) & 1; }
static void put(uint64_t *set, uint32_t i) { set[i >> 6] |= UINT64_C(1) << (i & 63); }

/* Adds what is reached from `from` without reading; only classes and the match stay in `set`. */
static bool close_over(const runner *x, uint64_t *set, uint32_t from, bool begin, bool end) {
    uint32_t n = 0;
    bool match = false;
    if (has(x->seen, from)) return false;
    put(x->seen, from);
    x->stack[n++] = from;
    while (n) {
        uint32_t i = x->stack[--n], next[2] = {MS_DFA_NONE, MS_DFA_NONE};
        const node *d = &x->r->nodes[i];
        if (d->op == OP_CLASS) {
            put(set, i);
            continue;
        }
        if (d->op == OP_END) put(set, i); /* may hold later */
        if (d->op == OP_MATCH) put(set, i), match = true;
        if ((d->op != OP_BEGIN || begin) && (d->op != OP_END || end)) next[0] = d->a, next[1] = d->b;
        for (int k = 0; k < 2; k++) {
            if (next[k] == MS_DFA_NONE || has(x->seen, next[k])) continue;
            put(x->seen, next[k]);
            x->stack[n++] = next[k];
        }
    }
    return match;
}

static bool runner_init(runner *x, const ms_regex *r) {
    *x = (runner){.r = r, .words = (r->count + 63) / 64};
    x->seen = calloc(x->words, sizeof *x->seen);
    x->target = calloc(x->words * 2, sizeof *x->target);
    x->stack = malloc(r->count * sizeof *x->stack);
    x->cuts = malloc((2 * r->range_count + 2) * sizeof *x->cuts);
    return x->seen && x->target && x->stack && x->cuts;
}

static void runner_free(runner *x) {
    free(x->seen);
    free(x->target);
    free(x->stack);
    free(x->cuts);
}

static uint64_t live(const runner *x, const uint64_t *set) {
    uint64_t n = 0;
    for (uint32_t w = 0; w < x->words; w++) n += (uint64_t)__builtin_popcountll(set[w]);
    return n;
}

/* target = what `set` becomes by reading cp. */
static bool advance(const runner *x, const uint64_t *set, uint32_t cp, uint64_t *target) {
    bool any = false;
    memset(x->seen, 0, x->words * sizeof *x->seen);
    memset(target, 0, x->words * sizeof *target);
    for (uint32_t w = 0; w < x->words; w++) {
        for (uint64_t bits = set[w]; bits; bits &= bits - 1) {
            uint32_t i = w * 64 + (uint32_t)__builtin_ctzll(bits);
            const node *d = &x->r->nodes[i];
            if (d->op != OP_CLASS) continue;
            for (uint32_t k = d->first; k < d->first + d->count; k++) {
                if (cp < x->r->ranges[k].lo || cp > x->r->ranges[k].hi) continue;
                (void)close_over(x, target, d->a, false, false);
                any = true;
            }
        }
    }
    return any;
}

/* Whether the set matches when the text ends here: `$` edges open up. */
static bool matches_at_end(const runner *x, const uint64_t *set, bool begin) {
    uint64_t *scratch = x->target + x->words;
    bool match = false;
    memset(x->seen, 0, x->words * sizeof *x->seen);
    for (uint32_t w = 0; w < x->words && !match; w++) {
        for (uint64_t bits = set[w]; bits && !match; bits &= bits - 1) {
            match = close_over(x, scratch, w * 64 + (uint32_t)__builtin_ctzll(bits), begin, true);
        }
    }
    return match;
}

static ms_status search_one(const ms_regex *r, const char *text, size_t len, bool *found, ms_error *err) {
    runner x;
    uint64_t *set = NULL;
    bool good = runner_init(&x, r) && (set = calloc(x.words, sizeof *set)) != NULL;
    if (good) {
        (void)close_over(&x, set, 0, true, len == 0);
        for (size_t at = 0; at < len;) {
            uint32_t cp;
            at += ms_utf8_decode((const uint8_t *)text + at, len - at, &cp, NULL);
            (void)advance(&x, set, cp, x.target);
            memcpy(set, x.target, x.words * sizeof *set);
        }
        *found = matches_at_end(&x, set, len == 0);
    }
    free(set);
    runner_free(&x);
    return good ? MS_OK : ms_fail_memory(err, "a pattern search", r->count * sizeof *set);
}

ms_status ms_regex_search(const ms_regex *r, const char *text, size_t len, bool *found, ms_error *err) {
    MS_TRY(search_one(r, text, len, found, err));
    for (size_t i = 0; i < r->look_count && *found; i++) {
        MS_TRY(search_one(r->looks[i].regex, text, len, found, err));
        *found = *found != r->looks[i].negative;
    }
    return MS_OK;
}

/* ------------------------------------------------------------------ subset construction */

/* A key is a set and, in its last word, whether the text has not begun. */
static int by_symbol(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static void set_edges(const void *arg, const void *key, ms_dfa_sink *sink) {
    const runner *x = arg;
    const uint64_t *set = key;
    enum { PER_STEP = 16, LOOKS_PER_STEP = 64 }; /* live nodes that one step goes through; nodes it looks at */
    uint32_t *starts = (uint32_t *)x->cuts, n = 0; /* where the set of ranges may change */
    uint64_t steps = live(x, set) / PER_STEP;
    if (!ms_dfa_spend(sink, steps + x->r->count / LOOKS_PER_STEP)) return;
    for (uint32_t i = 0; i < x->r->count; i++) {
        const node *d = &x->r->nodes[i];
        if (d->op != OP_CLASS || !has(set, i)) continue;
        for (uint32_t k = d->first; k < d->first + d->count; k++) {
            starts[n++] = x->r->ranges[k].lo;
            starts[n++] = x->r->ranges[k].hi + 1;
        }
    }
    qsort(starts, n, sizeof *starts, by_symbol);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t lo = starts[i];
        if (lo > ALL || (i && starts[i - 1] == lo)) continue;
        uint32_t j = i + 1;
        while (j < n && starts[j] == lo) j++;
        uint32_t hi = j < n ? starts[j] - 1 : ALL;
        if (!ms_dfa_spend(sink, steps)) return;
        if (!advance(x, set, lo, x->target)) continue;
        if (!ms_dfa_spend(sink, live(x, x->target) / PER_STEP)) return;
        x->target[x->words] = 0;
        ms_dfa_emit(sink, lo, hi, x->target);
    }
}

static bool set_accept(const void *arg, const void *key) {
    const runner *x = arg;
    const uint64_t *set = key;
    return matches_at_end(x, set, set[x->words] != 0);
}

static ms_status one_dfa(ms_dfa *out, const ms_regex *r, uint32_t max_states, uint64_t *work, ms_error *err) {
    runner x;
    uint64_t *start = NULL;
    *out = (ms_dfa){0};
    ms_status status;
    if (runner_init(&x, r) && (start = calloc(x.words + 1, sizeof *start)) != NULL) {
        (void)close_over(&x, start, 0, true, false);
        start[x.words] = 1;
        ms_dfa_source src = {&x, (x.words + 1) * sizeof *start, start, set_edges, set_accept};
        status = ms_dfa_build(out, &src, max_states, work, err);
    } else {
        status = ms_fail_memory(err, "a pattern", r->count * sizeof *start);
    }
    free(start);
    runner_free(&x);
    return status;
}

/* Replaces *all by the texts of it that a look-ahead agrees to. */
static ms_status narrow_by(ms_dfa *all, const look *l, uint32_t max_states, uint64_t *work, ms_error *err) {
    ms_dfa one = {0}, other = {0}, both = {0};
    MS_TRY(one_dfa(&one, l->regex, max_states, work, err));
    ms_status status = MS_OK;
    if (l->negative) {
        status = ms_dfa_complement(&other, &one, max_states, work, err);
        ms_dfa_clear(&one);
        one = other;
    }
    if (status == MS_OK) status = ms_dfa_intersect(&both, all, &one, max_states, work, err);
    ms_dfa_clear(&one);
    ms_dfa_clear(all);
    *all = both;
    return status;
}

ms_status ms_regex_dfa(ms_dfa *out, const ms_regex *r, uint32_t max_states, uint64_t *work, ms_error *err) {
    ms_status status = one_dfa(out, r, max_states, work, err);
    for (size_t i = 0; i < r->look_count && status == MS_OK; i++) {
        status = narrow_by(out, &r->looks[i], max_states, work, err);
    }
    if (status != MS_OK) ms_dfa_clear(out);
    return status;
}
