/* schema_language.c: automata of the numbers and strings that an alternative allows (schema_compile.h).
 *
 * Numbers are read digit by digit against both bounds: while as many digits as the bound's are not known, the comparison
 * of what was read stands beside the count of integer digits, and both together decide at the end.
 *
 * Readers of JSON mostly keep numbers as doubles, which tell decimals of 15 digits apart and may take longer ones for the
 * same.  Where a number must not be another one (an exclusive bound, an integer, a multiple, a value that is left out or
 * came before) its text has no more digits than that.
 */
#include <ctype.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

#include "text/schema_compile.h"

enum { MAX_DIGITS = 64, FRACTION_DIGITS = 17, TOLD_APART = 15, MAX_DIVISOR = 10000 };
enum { COUNTED_DIVISOR = 1000 }; /* digits of multiples are counted up to here: each count has all rests */

/* ------------------------------------------------------------------ bounds */

/* A decimal written out: integer digits without leading zeros (0: "0"), fraction without trailing ones. */
typedef struct bound {
    bool set, negative, zero, exclusive;
    uint8_t digits[MAX_DIGITS], fraction[MAX_DIGITS];
    uint32_t digit_count, fraction_count;
} bound;

/* false: too long to be written out. */
static bool read_bound(bound *out, const ms_json *v) {
    const char *s = v->raw;
    size_t n = v->raw_len;
    uint8_t all[2 * MAX_DIGITS];
    uint32_t count = 0;
    long point = 0, exponent = 0;
    bool seen_point = false, minus = false;
    *out = (bound){.set = true};
    size_t i = 0;
    if (i < n && s[i] == '-') out->negative = true, i++;
    for (; i < n && s[i] != 'e' && s[i] != 'E'; i++) {
        if (s[i] == '.') {
            seen_point = true;
            continue;
        }
        if (!count && s[i] == '0') { /* leading */
            point -= seen_point;
            continue;
        }
        if (count == sizeof all) return false;
        all[count++] = (uint8_t)(s[i] - '0');
        point += !seen_point;
    }
    for (i++; i < n; i++) {
        if (s[i] == '-') minus = true;
        else if (s[i] != '+' && exponent < 100000) exponent = exponent * 10 + (s[i] - '0');
    }
    while (count && all[count - 1] == 0) count--;
    out->zero = count == 0;
    if (out->zero) {
        *out = (bound){.set = true, .zero = true, .digit_count = 1};
        return true;
    }
    point += minus ? -exponent : exponent; /* the value is 0.all * 10^point */
    if (point > MAX_DIGITS || point < -(MAX_DIGITS - (long)count) || (long)count - point > MAX_DIGITS) return false;
    if (point <= 0) out->digit_count = 1;
    for (long k = 0; k < point; k++) out->digits[out->digit_count++] = k < (long)count ? all[k] : 0;
    for (long k = point < 0 ? point : 0; k < 0; k++) out->fraction[out->fraction_count++] = 0;
    for (long k = point > 0 ? point : 0; k < (long)count; k++) out->fraction[out->fraction_count++] = all[k];
    return true;
}

/* Digits from the first to the last that is not 0. */
static uint32_t significant(const bound *b) {
    uint32_t zeros = 0, all = b->digit_count + b->fraction_count, last = all;
    while (zeros < all && !(zeros < b->digit_count ? b->digits[zeros] : b->fraction[zeros - b->digit_count])) zeros++;
    while (last > zeros && last <= b->digit_count && !b->digits[last - 1]) last--;
    return last - zeros;
}

/* Another decimal, of few digits, that a double does not tell from the number; false: there is none. */
static bool same_double(const ms_json *number, bound *out) {
    char text[40];
    double value;
    if (!ms_json_double(number, &value)) return false;
    int n = snprintf(text, sizeof text, "%.*g", TOLD_APART, value);
    ms_json short_one = {.type = MS_JSON_NUMBER, .raw = text, .raw_len = (size_t)n};
    double again;
    return ms_json_double(&short_one, &again) && !(again < value) && !(again > value) && read_bound(out, &short_one);
}

static int compare_magnitude(const bound *a, const bound *b) {
    if (a->digit_count != b->digit_count) return a->digit_count > b->digit_count ? 1 : -1;
    int c = memcmp(a->digits, b->digits, a->digit_count);
    for (uint32_t i = 0; !c && (i < a->fraction_count || i < b->fraction_count); i++) {
        c = (i < a->fraction_count ? a->fraction[i] : 0) - (i < b->fraction_count ? b->fraction[i] : 0);
    }
    return (c > 0) - (c < 0);
}

static int compare_bounds(const bound *a, const bound *b) {
    bool x = a->negative && !a->zero, y = b->negative && !b->zero;
    if (x != y) return x ? -1 : 1;
    return x ? -compare_magnitude(a, b) : compare_magnitude(a, b);
}

/* ------------------------------------------------------------------ the automaton of a range */

typedef struct range {
    bound lo, hi;
    bool integer, fractional, canonical, exponents; /* fractional: integers are not meant */
    uint32_t divisor, scale; /* multiples of divisor * 10^-scale; divisor 0: no such rule */
    uint32_t clamp;          /* integer digits beyond this are all the same */
    uint32_t max_fraction;
    uint32_t told_apart; /* significant digits at most; 0: any number of them */
} range;

typedef enum part { PART_START, PART_SIGN, PART_ZERO, PART_DIGITS, PART_POINT, PART_FRACTION, PART_E, PART_E_SIGN, PART_EXPONENT } part;

typedef struct key {
    uint32_t part, negative, count, rest; /* count: integer digits, then fraction or exponent digits are in `after` */
    int32_t lo, hi;                       /* what was read against the digits of the bounds: -1, 0, 1 */
    uint32_t digits;                      /* significant ones, where they are counted */
    uint32_t after, something, last_zero; /* something: 1: not zero so far, 2: in the fraction */
} key;

static int against(int so_far, const bound *b, bool fraction, uint32_t place, uint32_t digit) {
    if (so_far || !b->set) return so_far;
    uint32_t count = fraction ? b->fraction_count : b->digit_count;
    uint32_t other = place < count ? (fraction ? b->fraction[place] : b->digits[place]) : 0;
    return (digit > other) - (digit < other);
}

/* The magnitude read against a bound's magnitude. */
static int finally(const key *k, const bound *b, int so_far) {
    if (k->count != b->digit_count) return k->count > b->digit_count ? 1 : -1;
    if (so_far) return so_far;
    for (uint32_t i = k->after; i < b->fraction_count; i++)
        if (b->fraction[i]) return -1;
    return 0;
}

static bool within(const range *r, const key *k) {
    bool negative = k->negative != 0;
    if (r->lo.set) {
        int c = r->lo.negative != negative ? (negative ? -1 : 1)
                                           : (negative ? -finally(k, &r->lo, k->lo) : finally(k, &r->lo, k->lo));
        if (c < 0 || (c == 0 && r->lo.exclusive)) return false;
    }
    if (r->hi.set) {
        int c = r->hi.negative != negative ? (negative ? -1 : 1)
                                           : (negative ? -finally(k, &r->hi, k->hi) : finally(k, &r->hi, k->hi));
        if (c > 0 || (c == 0 && r->hi.exclusive)) return false;
    }
    return true;
}

static bool range_accept(const void *arg, const void *at) {
    const range *r = arg;
    const key *k = at;
    if (k->part == PART_EXPONENT) return true;
    if (k->part != PART_ZERO && k->part != PART_DIGITS && k->part != PART_FRACTION) return false;
    if (k->negative && !k->something) return false; /* no -0 */
    if (r->fractional && !(k->something & 2)) return false;
    if (r->canonical && k->part == PART_FRACTION && k->last_zero) return false;
    if (r->divisor) {
        uint64_t rest = k->rest;
        for (uint32_t i = k->after; i < r->scale; i++) rest = rest * 10 % r->divisor;
        if (rest) return false;
    }
    return within(r, k);
}

static void take_digit(const range *r, const key *from, uint32_t digit, key *k) {
    bool fraction = from->part == PART_POINT || from->part == PART_FRACTION;
    *k = *from;
    if (r->divisor) k->rest = (uint32_t)(((uint64_t)k->rest * 10 + digit) % r->divisor);
    if (r->told_apart && (k->digits || digit)) k->digits++;
    k->something |= digit != 0;
    if (fraction) {
        if (r->fractional && digit) k->something |= 2;
        if (k->count < r->clamp) {
            k->lo = against(k->lo, &r->lo, true, k->after, digit);
            k->hi = against(k->hi, &r->hi, true, k->after, digit);
        }
        k->after++;
        k->last_zero = r->canonical && digit == 0;
        k->part = PART_FRACTION;
        return;
    }
    k->lo = against(k->lo, &r->lo, false, k->count, digit);
    k->hi = against(k->hi, &r->hi, false, k->count, digit);
    if (k->count < r->clamp) k->count++;
    if (k->count == r->clamp) k->lo = k->hi = 0; /* longer than the bounds: their digits say nothing any more */
    k->part = from->part == PART_DIGITS || digit ? PART_DIGITS : PART_ZERO;
}

static void digits_from(const range *r, const key *k, uint32_t lo, ms_dfa_sink *sink) {
    for (uint32_t d = lo; d < 10; d++) {
        key next;
        take_digit(r, k, d, &next);
        if (next.digits > r->told_apart) continue;
        ms_dfa_emit(sink, '0' + d, '0' + d, &next);
    }
}

static void go(ms_dfa_sink *sink, const key *k, char symbol, part next) {
    key to = *k;
    to.part = (uint32_t)next;
    ms_dfa_emit(sink, (uint8_t)symbol, (uint8_t)symbol, &to);
}

static void exponent_edges(const key *k, ms_dfa_sink *sink) {
    key to = {.part = PART_EXPONENT, .after = k->part == PART_EXPONENT ? k->after + 1 : 1};
    if (k->part == PART_E) {
        go(sink, k, '+', PART_E_SIGN);
        go(sink, k, '-', PART_E_SIGN);
    }
    if (to.after <= 2) ms_dfa_emit(sink, '0', '9', &to);
}

static void range_edges(const void *arg, const void *at, ms_dfa_sink *sink) {
    const range *r = arg;
    const key *k = at;
    key plain = {.part = PART_E}; /* behind an e nothing before it matters */
    switch ((part)k->part) {
    case PART_START: {
        key minus = *k;
        minus.part = PART_SIGN;
        minus.negative = 1;
        if (!r->lo.set || r->lo.negative) ms_dfa_emit(sink, '-', '-', &minus);
        if (!r->hi.set || !r->hi.negative) digits_from(r, k, 0, sink);
        return;
    }
    case PART_SIGN: digits_from(r, k, 0, sink); return;
    case PART_POINT: digits_from(r, k, 0, sink); return;
    case PART_ZERO:
    case PART_DIGITS:
        if (!r->integer) go(sink, k, '.', PART_POINT);
        if (k->part == PART_DIGITS) digits_from(r, k, 0, sink);
        break;
    case PART_FRACTION:
        if (k->after < r->max_fraction) digits_from(r, k, 0, sink);
        break;
    default: exponent_edges(k, sink); return;
    }
    if (!r->exponents || (k->negative && !k->something)) return;
    ms_dfa_emit(sink, 'E', 'E', &plain);
    ms_dfa_emit(sink, 'e', 'e', &plain);
}

/* ------------------------------------------------------------------ numbers */

static void narrow_to_bound(bound *b, const bound *other, int side) {
    int order = b->set ? compare_bounds(other, b) * side : 1;
    if (order > 0 || (order == 0 && other->exclusive)) *b = *other;
}

static void narrow_bound(ms_compiler *c, bound *b, const ms_json *node, const char *name, bool exclusive, int side) {
    const ms_json *k = ms_json_get(node, name);
    bound other;
    if (!k) return;
    if (!read_bound(&other, k)) {
        ms_compile_fail(c, node, name, "expected a bound of at most 64 digits on each side of the point");
        return;
    }
    other.exclusive = exclusive;
    narrow_to_bound(b, &other, side);
    if (exclusive && significant(&other) > TOLD_APART && same_double(k, &other)) {
        other.exclusive = true;
        narrow_to_bound(b, &other, side);
    }
}

static uint64_t gcd(uint64_t a, uint64_t b) {
    while (b) {
        uint64_t t = a % b;
        a = b;
        b = t;
    }
    return a;
}

/* Multiples of both. */
static void narrow_divisor(ms_compiler *c, range *r, const ms_json *node) {
    const ms_json *k = ms_json_get(node, "multipleOf");
    bound b;
    if (!k) return;
    uint64_t divisor = 0, other = r->divisor ? r->divisor : 1;
    uint32_t scale = 0;
    bool good = read_bound(&b, k) && b.digit_count + b.fraction_count <= 15;
    for (uint32_t i = 0; good && i < b.digit_count; i++) divisor = divisor * 10 + b.digits[i];
    for (uint32_t i = 0; good && i < b.fraction_count; i++) divisor = divisor * 10 + b.fraction[i];
    if (good) scale = b.fraction_count;
    uint64_t mine = divisor;
    for (uint32_t i = scale; good && i < r->scale; i++) mine *= 10, good = mine < UINT64_C(1) << 40;
    for (uint32_t i = r->scale; good && r->divisor && i < scale; i++) other *= 10, good = other < UINT64_C(1) << 20;
    if (good && r->divisor) mine = mine / gcd(mine, other) * other;
    if (!good || mine > MAX_DIVISOR) {
        ms_compile_fail(c, node, "multipleOf", "expected a divisor of at most 10000 units of its last digit");
        return;
    }
    if (scale > r->scale) r->scale = scale;
    r->divisor = (uint32_t)mine;
}

static void finish_range(range *r) {
    uint32_t fraction = FRACTION_DIGITS, clamp = 1;
    if (r->lo.set && r->lo.digit_count + 1 > clamp) clamp = r->lo.digit_count + 1;
    if (r->hi.set && r->hi.digit_count + 1 > clamp) clamp = r->hi.digit_count + 1;
    if (r->lo.fraction_count + 1 > fraction) fraction = r->lo.fraction_count + 1;
    if (r->hi.fraction_count + 1 > fraction) fraction = r->hi.fraction_count + 1;
    r->clamp = clamp;
    r->max_fraction = r->divisor ? r->scale : fraction;
    r->integer = r->integer || (r->divisor && r->scale == 0);
    r->exponents = !r->integer && !r->fractional && !r->canonical && !r->divisor && !r->lo.set && !r->hi.set;
}

static void build_range(ms_compiler *c, const range *r, ms_dfa *out) {
    static const key start = {.part = PART_START};
    ms_dfa_source src = {r, sizeof start, &start, range_edges, range_accept};
    ms_error why;
    ms_status status = ms_dfa_build(out, &src, MS_MAX_AUTOMATON, &c->work, &why);
    if (status == MS_ERR_USAGE) ms_compile_fail(c, c->current, c->keyword ? c->keyword : "minimum", "expected simpler bounds of a number");
    else if (status != MS_OK) ms_compile_status(c, ms_fail(c->err, status, "%s", why.message));
}

/* The words of d without those of the range, or only those. */
static void without(ms_compiler *c, ms_dfa *d, const range *r) {
    ms_dfa values = {0}, others = {0}, rest = {0};
    build_range(c, r, &values);
    if (c->status == MS_OK) ms_compile_status(c, ms_dfa_complement(&others, &values, MS_MAX_AUTOMATON, &c->work, c->err));
    if (c->status == MS_OK) ms_compile_status(c, ms_dfa_intersect(&rest, d, &others, MS_MAX_AUTOMATON, &c->work, c->err));
    ms_dfa_clear(&values);
    ms_dfa_clear(&others);
    ms_dfa_clear(d);
    *d = rest;
}

/* Values that a `not` of the node excludes: calls for the numbers of an enum or const. */
static const ms_json *excluded(const ms_json *node) {
    const ms_json *k = ms_json_get(node, "not");
    if (!k || k->type != MS_JSON_OBJECT) return NULL;
    const ms_json *only = NULL;
    for (const ms_json *m = k->child; m; m = m->next) {
        if (ms_schema_is_annotation(m)) continue;
        if (only) return NULL;
        only = m;
    }
    return only;
}

static bool is_key(const ms_json *m, const char *name) {
    return m && m->key_len == strlen(name) && memcmp(m->key, name, m->key_len) == 0;
}

static void exclude_number(ms_compiler *c, const bound *number, bool integer, ms_dfa *d) {
    range r = {.integer = integer, .lo = *number, .hi = *number};
    finish_range(&r);
    without(c, d, &r);
}

static void exclude_numbers(ms_compiler *c, const ms_json *node, bool integer, ms_dfa *d) {
    const ms_json *k = excluded(node);
    if (!is_key(k, "enum") && !is_key(k, "const")) return;
    for (const ms_json *v = is_key(k, "enum") ? k->child : k; v && c->status == MS_OK; v = is_key(k, "enum") ? v->next : NULL) {
        bound number;
        if (v->type != MS_JSON_NUMBER) continue;
        if (!read_bound(&number, v)) {
            ms_compile_fail(c, c->current, "not", "expected a number of at most 64 digits");
            return;
        }
        exclude_number(c, &number, integer, d);
        if (significant(&number) > TOLD_APART && same_double(v, &number)) exclude_number(c, &number, integer, d);
    }
}

/* Whether an excluded number is longer than a double tells apart. */
static bool excludes_long(const ms_json *k) {
    bound number;
    for (const ms_json *v = is_key(k, "enum") ? k->child : k; v; v = is_key(k, "enum") ? v->next : NULL)
        if (v->type == MS_JSON_NUMBER && read_bound(&number, v) && significant(&number) > TOLD_APART) return true;
    return false;
}

/* Integers of at most 15 digits are told apart from everything that is as short; `more`: something is longer. */
static uint32_t digits_told_apart(const range *r, bool excludes, bool more) {
    bool exclusive = r->lo.exclusive || r->hi.exclusive;
    bool divided = r->divisor > 1 || r->scale; /* every integer is a multiple of 1 */
    bool short_bounds = r->lo.digit_count <= TOLD_APART && r->hi.digit_count <= TOLD_APART;
    uint64_t counted = r->divisor * (r->scale + 1) * (excludes || exclusive ? 4 : 1);
    if (divided && short_bounds && counted <= COUNTED_DIVISOR) return TOLD_APART;
    if (!r->integer) return r->canonical || r->fractional || excludes || exclusive ? TOLD_APART : 0;
    return short_bounds && (r->canonical || more) ? TOLD_APART : 0;
}

void ms_number_language(ms_compiler *c, const ms_set *alternative, ms_number_kind kind, bool canonical, ms_dfa *out) {
    range r = {.integer = kind == MS_INTEGERS, .fractional = kind == MS_FRACTIONS, .canonical = canonical};
    bool excludes = false, more = false;
    *out = (ms_dfa){0};
    for (size_t i = 0; i < alternative->count && c->status == MS_OK; i++) {
        const ms_json *n = alternative->items[i], *k = excluded(n);
        narrow_bound(c, &r.lo, n, "minimum", false, 1);
        narrow_bound(c, &r.lo, n, "exclusiveMinimum", true, 1);
        narrow_bound(c, &r.hi, n, "maximum", false, -1);
        narrow_bound(c, &r.hi, n, "exclusiveMaximum", true, -1);
        narrow_divisor(c, &r, n);
        bool some = is_key(k, "enum") || is_key(k, "const");
        excludes = excludes || some;
        more = more || (some && excludes_long(k));
    }
    if (c->status != MS_OK) return;
    finish_range(&r);
    r.told_apart = digits_told_apart(&r, excludes, more);
    if (excludes) r.exponents = false;
    build_range(c, &r, out);
    for (size_t i = 0; i < alternative->count && c->status == MS_OK && excludes; i++) {
        exclude_numbers(c, alternative->items[i], r.integer, out);
    }
}

/* ------------------------------------------------------------------ strings */

void ms_narrow(ms_compiler *c, ms_dfa *d, bool *any, ms_dfa *other) {
    ms_dfa both = {0};
    if (*any) {
        *d = *other;
        *other = (ms_dfa){0};
        *any = false;
        return;
    }
    ms_error why;
    ms_status status = c->status == MS_OK ? ms_dfa_intersect(&both, d, other, MS_MAX_AUTOMATON, &c->work, &why) : MS_OK;
    if (status == MS_ERR_USAGE) ms_compile_fail(c, c->current, c->keyword ? c->keyword : "pattern", "expected simpler patterns in one place");
    else if (status != MS_OK) ms_compile_status(c, ms_fail(c->err, status, "%s", why.message));
    ms_dfa_clear(d);
    ms_dfa_clear(other);
    *d = both;
}

#define BYTE "(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define HEX4 "[0-9a-fA-F]{1,4}"
#define LABEL "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
/* Labels whose hyphens stand alone, so that none looks like one of another script (xn--). */
#define PLAIN "[A-Za-z0-9]+(-[A-Za-z0-9]+)*"
#define MAIL "A-Za-z0-9_+-"
/* Domains that are of no mailbox. */
#define RESERVED "([Aa][Rr][Pp][Aa]|[Ii][Nn][Vv][Aa][Ll][Ii][Dd]|[Ll][Oo][Cc][Aa][Ll]([Hh][Oo][Ss][Tt])?|" \
                 "[Oo][Nn][Ii][Oo][Nn]|[Tt][Ee][Ss][Tt])"
#define HEX2 "%[0-9A-Fa-f]{2}"
#define USER "([A-Za-z0-9._~!$&'()*+,;=:-]|" HEX2 ")"
#define PCHAR "([A-Za-z0-9._~!$&'()*+,;=:@-]|" HEX2 ")"
#define QUERY "([A-Za-z0-9._~!$&'()*+,;=:@/?-]|" HEX2 ")*"
#define HOST "(([A-Za-z0-9_]+(-[A-Za-z0-9_]+)*\\.)*[A-Za-z][A-Za-z0-9_]*(-[A-Za-z0-9_]+)*|" BYTE "(\\." BYTE "){3})"
#define PORT "(\\d{1,4}|[1-5]\\d{4}|6[0-4]\\d{3}|65[0-4]\\d\\d|655[0-2]\\d|6553[0-5])"
/* Browsers read a host into whatever comes behind these schemes, and none into the other. */
#define WEB "([Hh][Tt][Tt][Pp][Ss]?|[Ww][Ss][Ss]?|[Ff][Tt][Pp]):([^/]|/[^/]|/$|///)"
#define FILES "[Ff][Ii][Ll][Ee]:([^/]|/[^/]|/$|//[^/])"
#define LEAP "(\\d\\d(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
#define YEAR "(\\d{3}[1-9]|\\d\\d[1-9]\\d|\\d[1-9]\\d\\d|[1-9]\\d{3})"
#define DATE "(" YEAR "-((0[13578]|1[02])-(0[1-9]|[12]\\d|3[01])|(0[469]|11)-(0[1-9]|[12]\\d|30)|02-(0[1-9]|1\\d|2[0-8]))|" LEAP "-02-29)"
#define TIME "([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,9})?(Z|[+-]([01]\\d|2[0-3]):[0-5]\\d)"

/* What ajv-formats and zod both take; of a mailbox also what email-validator says it takes, of a URI what browsers read.
 * A value that the schema itself has (const, enum) is judged by the format's own standard (schema_validate.c). */
static const char *const format_patterns[] = {
    [MS_FORMAT_DATE] = "^" DATE "$",
    [MS_FORMAT_TIME] = "^" TIME "$",
    [MS_FORMAT_DATE_TIME] = "^" DATE "T" TIME "$",
    [MS_FORMAT_DURATION] = "^P(\\d+W|(\\d+Y(\\d+M(\\d+D)?)?|\\d+M(\\d+D)?|\\d+D)(T(\\d+H(\\d+M(\\d+S)?)?|\\d+M(\\d+S)?|\\d+S))?|"
                           "T(\\d+H(\\d+M(\\d+S)?)?|\\d+M(\\d+S)?|\\d+S))$",
    [MS_FORMAT_EMAIL] = "^(['" MAIL "]+\\.)*['" MAIL "]*[" MAIL "]@(" PLAIN "\\.)+[A-Za-z]{2,}$",
    [MS_FORMAT_HOSTNAME] = "^" LABEL "(\\." LABEL ")*$",
    [MS_FORMAT_IPV4] = "^" BYTE "(\\." BYTE "){3}$",
    [MS_FORMAT_IPV6] = "^((" HEX4 ":){7}" HEX4 "|(" HEX4 ":){1,7}:|(" HEX4 ":){1,6}:" HEX4 "|(" HEX4 ":){1,5}(:" HEX4 "){1,2}|"
                       "(" HEX4 ":){1,4}(:" HEX4 "){1,3}|(" HEX4 ":){1,3}(:" HEX4 "){1,4}|(" HEX4 ":){1,2}(:" HEX4 "){1,5}|"
                       HEX4 ":(:" HEX4 "){1,6}|:(:" HEX4 "){1,7}|::|::(" HEX4 ":){0,5}" BYTE "(\\." BYTE "){3}|"
                       "(" HEX4 ":){6}" BYTE "(\\." BYTE "){3})$",
    [MS_FORMAT_URI] = "^(?!" WEB "|" FILES ")[A-Za-z][A-Za-z0-9+.-]*:(//(" USER "+@)?" HOST "(:" PORT ")?(/" PCHAR "*)*|"
                      "//(/" PCHAR "*)+|/(" PCHAR "+(/" PCHAR "*)*)?|" PCHAR "+(/" PCHAR "*)*)"
                      "(\\?" QUERY ")?(#" QUERY ")?$",
    [MS_FORMAT_UUID] = "^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$"};

static void regex_language(ms_compiler *c, const ms_regex *r, const char *keyword, bool inverted, ms_dfa *out) {
    ms_error why;
    ms_dfa d = {0};
    *out = d;
    ms_status status = ms_regex_dfa(&d, r, MS_MAX_AUTOMATON, &c->work, &why);
    if (status == MS_OK && inverted) {
        status = ms_dfa_complement(out, &d, MS_MAX_AUTOMATON, &c->work, &why);
        ms_dfa_clear(&d);
    } else {
        *out = d;
    }
    if (status == MS_ERR_USAGE) ms_compile_fail(c, c->current, keyword, "expected a pattern with fewer states");
    else if (status != MS_OK) ms_compile_status(c, ms_fail(c->err, status, "%s", why.message));
}

/* Builds what a pattern of this file matches, within another language where there is one. */
static ms_status narrow_to(const char *pattern, ms_dfa *d, ms_error *err) {
    ms_regex *r;
    ms_dfa one = {0}, both = {0};
    MS_TRY(ms_regex_compile(&r, pattern, strlen(pattern), err));
    ms_status status = ms_regex_dfa(&one, r, MS_MAX_AUTOMATON, NULL, err);
    ms_regex_free(r);
    if (status == MS_OK && d->states) {
        status = ms_dfa_intersect(&both, d, &one, MS_MAX_AUTOMATON, NULL, err);
        ms_dfa_clear(&one);
        one = both;
    }
    ms_dfa_clear(d);
    *d = one;
    return status;
}

/* The automaton of a format, built once and kept for good: schemas ask for the same few again and again. */
static const ms_dfa *format_automaton(ms_compiler *c, ms_format_kind kind) {
    /* No longer than a hostname or the name of a mailbox may be; of domains those that are no longer than a label. */
    static const char *const limits[MS_FORMAT_OTHER] = {[MS_FORMAT_HOSTNAME] = "^[^]{0,253}$",
                                                        [MS_FORMAT_EMAIL] = "^(?![^]*\\." RESERVED "$)[^@]{1,64}@[^]{0,63}$"};
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static ms_dfa made[MS_FORMAT_OTHER];
    ms_error why = {0};
    ms_status status = MS_OK;
    (void)pthread_mutex_lock(&lock);
    if (!made[kind].states) {
        ms_dfa d = {0};
        status = narrow_to(format_patterns[kind], &d, &why);
        if (status == MS_OK && limits[kind]) status = narrow_to(limits[kind], &d, &why);
        if (status == MS_OK) made[kind] = d;
        else ms_dfa_clear(&d);
    }
    (void)pthread_mutex_unlock(&lock);
    if (status != MS_OK) ms_compile_status(c, ms_fail(c->err, status, "%s", why.message));
    return status == MS_OK ? &made[kind] : NULL;
}

static void other_texts(ms_compiler *c, const char *pattern, size_t len, ms_dfa *out);

/* Texts that no validator should take for the format: some take more than what is written here, and have one of these. */
static void without_format(ms_compiler *c, ms_format_kind kind, const ms_dfa *format, ms_dfa *out) {
    static const char *const widest[MS_FORMAT_OTHER] = {[MS_FORMAT_DATE] = "^\\d{4}[\\dW-]{3,6}$",
                                                        [MS_FORMAT_TIME] = "^\\d\\d:",
                                                        [MS_FORMAT_DATE_TIME] = "^\\d{4}-\\d\\d-\\d\\d[Tt\\s]",
                                                        [MS_FORMAT_DURATION] = "^[+-]?[Pp]",
                                                        [MS_FORMAT_EMAIL] = "@",
                                                        [MS_FORMAT_HOSTNAME] = "^[^\\s:/?#@]+$",
                                                        [MS_FORMAT_IPV6] = "^[^/?#@]*:",
                                                        [MS_FORMAT_URI] = "^\\s*[A-Za-z][A-Za-z0-9+.-]*:",
                                                        [MS_FORMAT_UUID] = "[0-9A-Fa-f]{12}"};
    if (widest[kind]) other_texts(c, widest[kind], strlen(widest[kind]), out);
    else ms_compile_status(c, ms_dfa_complement(out, format, MS_MAX_AUTOMATON, &c->work, c->err));
}

static void format_language(ms_compiler *c, const ms_json *name, bool inverted, bool *any, ms_dfa *d) {
    ms_format_kind kind = ms_schema_format(name);
    if (kind == MS_FORMAT_OTHER || c->status != MS_OK) return;
    const ms_dfa *format = format_automaton(c, kind);
    ms_dfa own = {0};
    if (!format) return;
    if (inverted) {
        without_format(c, kind, format, &own);
    } else if (ms_compile_work(c, format->states)) {
        ms_compile_status(c, ms_dfa_copy(&own, format, c->err));
    }
    ms_narrow(c, d, any, &own);
}

static void pattern_language(ms_compiler *c, const ms_json *k, bool inverted, bool *any, ms_dfa *d) {
    const ms_regex *r = ms_schema_regex(c->s, k->str, k->str_len);
    ms_dfa one;
    if (!r || c->status != MS_OK) return;
    regex_language(c, r, "pattern", inverted, &one);
    ms_narrow(c, d, any, &one);
}

void ms_other_words(ms_compiler *c, const ms_word *words, size_t count, ms_dfa *out) {
    ms_dfa d = {0};
    *out = d;
    if (c->status != MS_OK) return;
    ms_compile_status(c, ms_dfa_words(&d, words, count, true, &c->work, c->err));
    if (c->status == MS_OK) ms_compile_status(c, ms_dfa_complement(out, &d, 1u << 22, &c->work, c->err));
    ms_dfa_clear(&d);
}

/* ------------------------------------------------------------------ in front of an end */

/* Texts without a match of the pattern. */
static void other_texts(ms_compiler *c, const char *pattern, size_t len, ms_dfa *out) {
    ms_regex *r = NULL;
    if (c->status == MS_OK) ms_compile_status(c, ms_regex_compile(&r, pattern, len, c->err));
    if (c->status == MS_OK) regex_language(c, r, "", true, out);
    ms_regex_free(r);
}

void ms_end_languages(ms_compiler *c) {
    static const char json[] = "^[ \\t\\n\\r]*([\\[{\"0-9-]|(true|false|null)[ \\t\\n\\r]*$)";
    ms_text pattern = {0};
    for (const char *p = c->end; *p; p++) {
        if (ispunct((unsigned char)*p)) ms_text_puts(&pattern, "\\");
        ms_text_append(&pattern, p, 1);
    }
    if (pattern.failed) ms_compile_status(c, ms_fail_memory(c->err, "a schema", pattern.len));
    other_texts(c, pattern.data, pattern.len, &c->endless);
    other_texts(c, json, sizeof json - 1, &c->unquoted);
    ms_text_free(&pattern);
}

static void copy_language(ms_compiler *c, const ms_dfa *from, ms_dfa *out) {
    *out = (ms_dfa){0};
    if (c->status == MS_OK)
        ms_compile_status(c, ms_dfa_intersect(out, from, from, MS_MAX_AUTOMATON, &c->work, c->err));
}

void ms_narrow_endless(ms_compiler *c, ms_dfa *d, bool *any) {
    if (!c->end || c->status != MS_OK) return;
    ms_dfa copy;
    copy_language(c, &c->endless, &copy);
    if (c->status == MS_OK) ms_narrow(c, d, any, &copy);
}

void ms_unquoted_texts(ms_compiler *c, const ms_dfa *of, ms_dfa *out) {
    *out = (ms_dfa){0};
    if (c->status == MS_OK)
        ms_compile_status(c, ms_dfa_intersect(out, of, &c->unquoted, MS_MAX_AUTOMATON, &c->work, c->err));
}

bool ms_is_unquoted(const ms_dfa *unquoted, const char *text, size_t len) {
    uint32_t state = unquoted->states ? 0 : MS_DFA_NONE;
    while (len && state != MS_DFA_NONE) {
        uint32_t cp;
        bool bad;
        size_t n = ms_utf8_decode((const uint8_t *)text, len, &cp, &bad);
        state = ms_dfa_step(unquoted, state, cp);
        text += n;
        len -= n;
    }
    return state != MS_DFA_NONE && unquoted->accept[state];
}

static void exclude_strings(ms_compiler *c, const ms_json *k, bool *any, ms_dfa *d) {
    ms_word *words = malloc((k->count + 1) * sizeof *words);
    size_t n = 0;
    ms_dfa others;
    if (!words) {
        ms_compile_status(c, ms_fail_memory(c->err, "a schema", k->count * sizeof *words));
        return;
    }
    bool list = is_key(k, "enum");
    for (const ms_json *v = list ? k->child : k; v; v = list ? v->next : NULL)
        if (v->type == MS_JSON_STRING) words[n++] = (ms_word){v->str, v->str_len};
    if (n) {
        ms_other_words(c, words, n, &others);
        ms_narrow(c, d, any, &others);
    }
    free(words);
}

static void count_bounds(const ms_set *alternative, uint32_t *min, uint32_t *max) {
    *min = 0;
    *max = MS_UNLIMITED;
    for (size_t i = 0; i < alternative->count; i++) {
        uint64_t n;
        const ms_json *lo = ms_json_get(alternative->items[i], "minLength");
        const ms_json *hi = ms_json_get(alternative->items[i], "maxLength");
        if (lo && ms_schema_size(lo, &n) && n > *min) *min = n < MS_BOUND_NONE ? (uint32_t)n : MS_BOUND_NONE;
        if (hi && ms_schema_size(hi, &n) && n < *max) *max = (uint32_t)n;
    }
}

void ms_string_language(ms_compiler *c, const ms_set *alternative, bool bounded, ms_dfa *out, bool *any, uint32_t *min,
                        uint32_t *max) {
    *out = (ms_dfa){0};
    *any = true;
    for (size_t i = 0; i < alternative->count && c->status == MS_OK; i++) {
        const ms_json *n = alternative->items[i], *k;
        if ((k = ms_json_get(n, "pattern"))) pattern_language(c, k, false, any, out);
        if ((k = ms_json_get(n, "format"))) format_language(c, k, false, any, out);
        k = excluded(n);
        if (is_key(k, "pattern")) pattern_language(c, k, true, any, out);
        else if (is_key(k, "format")) format_language(c, k, true, any, out);
        else if (is_key(k, "enum") || is_key(k, "const")) exclude_strings(c, k, any, out);
    }
    ms_narrow_endless(c, out, any);
    count_bounds(alternative, min, max);
    if (c->status != MS_OK || (*any && (!bounded || (!*min && *max == MS_UNLIMITED)))) return;
    if (*min == 0 && (!bounded || *max == MS_UNLIMITED)) return;
    /* The automaton counts: up to the lower bound always, up to the upper one when asked to. */
    ms_dfa every = {0}, counted = {0};
    if (*any) ms_other_words(c, NULL, 0, &every);
    ms_error why;
    if (c->status != MS_OK) return;
    ms_status status = ms_dfa_bounded(&counted, *any ? &every : out, *min, bounded ? *max : MS_UNLIMITED,
                                      MS_MAX_AUTOMATON, &c->work, &why);
    if (status == MS_ERR_USAGE) {
        ms_compile_fail(c, c->current, *min ? "minLength" : "maxLength", "expected a smaller bound beside a pattern");
    } else if (status != MS_OK) {
        ms_compile_status(c, ms_fail(c->err, status, "%s", why.message));
    }
    ms_dfa_clear(&every);
    ms_dfa_clear(out);
    *out = counted;
    *any = false;
    *min = 0;
    if (bounded) *max = MS_UNLIMITED;
}
