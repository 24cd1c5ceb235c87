/* schema_validate.c: whether a JSON value fits a schema (schema.h).
 *
 * A plain reading of the specification, by recursion over value and schema.  It shares nothing with the grammar: numbers
 * are compared as decimals of any size, formats are checked by hand, patterns by running their program.
 *
 * Errors: memory; MS_ERR_USAGE when a check takes far more steps than its texts are long (branches within branches).
 */
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/schema_internal.h"

enum { MAX_STEPS = 20000000 };

typedef struct check {
    const ms_schema *s;
    struct memo {
        const ms_json *schema, *value;
        bool fits;
    } *memo; /* of targets of references; open addressing */
    size_t memo_mask, memo_count;
    uint64_t most; /* steps */
    ms_error *err;
    ms_status status;
    uint64_t steps;
} check;

static bool fits(check *c, const ms_json *schema, const ms_json *v);

/* ------------------------------------------------------------------ references */

static size_t memo_slot(const check *c, const ms_json *schema, const ms_json *v) {
    uint64_t h = ((uint64_t)(uintptr_t)schema * 31 + (uint64_t)(uintptr_t)v) * UINT64_C(0x9E3779B97F4A7C15);
    size_t i = (size_t)(h >> 20) & c->memo_mask;
    while (c->memo[i].schema && (c->memo[i].schema != schema || c->memo[i].value != v)) i = (i + 1) & c->memo_mask;
    return i;
}

static bool grow_memo(check *c) {
    size_t old = c->memo ? c->memo_mask + 1 : 0, size = old ? old * 2 : 64;
    struct memo *was = c->memo, *memo = calloc(size, sizeof *memo);
    if (!memo) return false;
    c->memo = memo;
    c->memo_mask = size - 1;
    for (size_t i = 0; i < old; i++)
        if (was[i].schema) memo[memo_slot(c, was[i].schema, was[i].value)] = was[i];
    free(was);
    return true;
}

/* A target may be referred to many times about the same value, and so on below: its answer is kept. */
static bool target_fits(check *c, const ms_json *target, const ms_json *v) {
    if (c->memo_count * 2 >= (c->memo ? c->memo_mask : 0) && !grow_memo(c)) {
        c->status = ms_fail_memory(c->err, "a check", c->memo_count * sizeof *c->memo);
        return false;
    }
    size_t at = memo_slot(c, target, v);
    if (c->memo[at].schema) return c->memo[at].fits;
    bool good = fits(c, target, v);
    if (c->memo_count * 2 >= c->memo_mask) return good; /* it was filled meanwhile */
    at = memo_slot(c, target, v);
    c->memo_count += c->memo[at].schema == NULL;
    c->memo[at] = (struct memo){target, v, good};
    return good;
}

/* ------------------------------------------------------------------ numbers */

/* digits * 10^exponent; digits neither begin nor end with 0; none: zero. */
typedef struct decimal {
    bool negative;
    const char *text; /* a literal: its digits are read through digit() */
    size_t first, last, point; /* places of the first and last digit that counts, of the point (or behind the digits) */
    size_t digits;
    int64_t exponent;
} decimal;

static decimal decimal_of(const ms_json *v) {
    const char *s = v->raw;
    size_t n = v->raw_len, i = 0;
    decimal d = {.text = s};
    if (i < n && s[i] == '-') d.negative = true, i++;
    size_t start = i, end = i;
    while (end < n && s[end] != 'e' && s[end] != 'E') end++;
    d.point = end;
    for (size_t k = start; k < end; k++)
        if (s[k] == '.') d.point = k;
    int64_t e = 0;
    bool minus = false;
    for (size_t k = end + 1; k < n; k++) {
        if (s[k] == '-') minus = true;
        else if (s[k] != '+' && e < INT64_C(1000000000000)) e = e * 10 + (s[k] - '0');
    }
    if (minus) e = -e;
    d.first = start;
    while (d.first < end && (s[d.first] == '0' || s[d.first] == '.')) d.first++;
    if (d.first == end) return (decimal){0};
    d.last = end - 1;
    while (s[d.last] == '0' || s[d.last] == '.') d.last--;
    d.digits = d.last - d.first + 1 - (d.point > d.first && d.point < d.last);
    d.exponent = e + (d.last < d.point ? (int64_t)(d.point - 1 - d.last) : -(int64_t)(d.last - d.point));
    return d;
}

static bool is_integer(const ms_json *v) { return decimal_of(v).exponent >= 0; }

static int compare_decimals(const decimal *a, const decimal *b) {
    int sign = a->negative ? -1 : 1;
    if (!a->digits || !b->digits) {
        if (!a->digits && !b->digits) return 0;
        return a->digits ? sign : b->negative ? 1 : -1;
    }
    if (a->negative != b->negative) return sign;
    int64_t size = a->exponent + (int64_t)a->digits, other = b->exponent + (int64_t)b->digits;
    if (size != other) return size > other ? sign : -sign;
    size_t i = a->first, j = b->first;
    for (size_t n = 0; n < a->digits && n < b->digits; n++, i++, j++) {
        if (a->text[i] == '.') i++;
        if (b->text[j] == '.') j++;
        if (a->text[i] != b->text[j]) return a->text[i] > b->text[j] ? sign : -sign;
    }
    return a->digits == b->digits ? 0 : a->digits > b->digits ? sign : -sign;
}

static int compare(const ms_json *x, const ms_json *y) {
    decimal a = decimal_of(x), b = decimal_of(y);
    return compare_decimals(&a, &b);
}

static uint64_t times_mod(uint64_t a, uint64_t b, uint64_t m) { return (uint64_t)((unsigned __int128)a * b % m); }

static bool is_multiple(const ms_json *v, const ms_json *of) {
    decimal a = decimal_of(v), b = decimal_of(of);
    if (!a.digits) return true;
    if (!b.digits || b.digits > 18) return false;
    uint64_t m = 0, rest = 0, power = 10;
    for (size_t i = b.first; i <= b.last; i++)
        if (b.text[i] != '.') m = m * 10 + (uint64_t)(b.text[i] - '0');
    int64_t shift = a.exponent - b.exponent;
    if (shift < 0) return false; /* a does not end with 0 */
    for (size_t i = a.first; i <= a.last; i++)
        if (a.text[i] != '.') rest = (times_mod(rest, 10, m) + (uint64_t)(a.text[i] - '0')) % m;
    for (power %= m; shift; shift >>= 1, power = times_mod(power, power, m))
        if (shift & 1) rest = times_mod(rest, power, m);
    return rest % m == 0;
}

/* ------------------------------------------------------------------ equality */

static const ms_json *member(const ms_json *obj, const char *key, size_t len) {
    for (const ms_json *m = obj->child; m; m = m->next)
        if (m->key_len == len && memcmp(m->key, key, len) == 0) return m;
    return NULL;
}

/* Digits alone: one spelling a value. */
static bool is_plain(const ms_json *v) {
    for (size_t i = 0; i < v->raw_len; i++)
        if (v->raw[i] < '0' || v->raw[i] > '9') return false;
    return true;
}

static bool equal(const ms_json *a, const ms_json *b) {
    if (a->type != b->type) return false;
    switch (a->type) {
    case MS_JSON_NUMBER:
        if (is_plain(a) && is_plain(b)) return a->raw_len == b->raw_len && memcmp(a->raw, b->raw, a->raw_len) == 0;
        return compare(a, b) == 0;
    case MS_JSON_STRING: return a->str_len == b->str_len && memcmp(a->str, b->str, a->str_len) == 0;
    case MS_JSON_ARRAY:
        if (a->count != b->count) return false;
        for (const ms_json *x = a->child, *y = b->child; x; x = x->next, y = y->next)
            if (!equal(x, y)) return false;
        return true;
    case MS_JSON_OBJECT:
        if (a->count != b->count) return false;
        for (const ms_json *x = a->child; x; x = x->next) {
            const ms_json *y = member(b, x->key, x->key_len);
            if (!y || !equal(x, y)) return false;
        }
        return true;
    default: return true;
    }
}

static bool has_repeated_members(check *c, const ms_json *v) {
    if (v->type == MS_JSON_OBJECT && v->count > 1) {
        const ms_json **list;
        size_t count;
        if (!ms_json_members(&list, &count, v, false)) {
            c->status = ms_fail_memory(c->err, "members of an object", v->count * sizeof *list);
            return true;
        }
        free(list);
        if (count != v->count) return true;
    }
    for (const ms_json *x = v->child; x; x = x->next)
        if (has_repeated_members(c, x)) return true;
    return false;
}

/* ------------------------------------------------------------------ formats */

static bool digits(const char *s, size_t n, unsigned *out) {
    *out = 0;
    for (size_t i = 0; i < n; i++) {
        if (s[i] < '0' || s[i] > '9') return false;
        *out = *out * 10 + (unsigned)(s[i] - '0');
    }
    return n > 0;
}

static bool alnum(char c) { return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z'); }
static bool is_hex(char c) { return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'f'); }

static bool is_date(const char *s, size_t n) {
    static const unsigned days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    unsigned y, m, d;
    if (n != 10 || !digits(s, 4, &y) || s[4] != '-' || !digits(s + 5, 2, &m) || s[7] != '-' || !digits(s + 8, 2, &d)) {
        return false;
    }
    if (m < 1 || m > 12 || d < 1) return false;
    bool leap = (y % 4 == 0 && y % 100 != 0) || y % 400 == 0;
    return d <= days[m - 1] + (m == 2 && leap);
}

static bool is_time(const char *s, size_t n) {
    unsigned h, m, sec, x;
    if (n < 9 || !digits(s, 2, &h) || s[2] != ':' || !digits(s + 3, 2, &m) || s[5] != ':' || !digits(s + 6, 2, &sec)) {
        return false;
    }
    if (h > 23 || m > 59 || sec > 59) return false; /* leap seconds: refused, their place depends on a table */
    size_t i = 8;
    if (s[i] == '.') {
        size_t start = ++i;
        while (i < n && s[i] >= '0' && s[i] <= '9') i++;
        if (i == start) return false;
    }
    if (i == n) return false;
    if (n - i == 1) return s[i] == 'Z' || s[i] == 'z';
    if (n - i != 6 || (s[i] != '+' && s[i] != '-') || s[i + 3] != ':') return false;
    return digits(s + i + 1, 2, &x) && x <= 23 && digits(s + i + 4, 2, &x) && x <= 59;
}

static bool is_date_time(const char *s, size_t n) {
    return n > 11 && is_date(s, 10) && (s[10] == 'T' || s[10] == 't') && is_time(s + 11, n - 11);
}

static bool is_duration(const char *s, size_t n) {
    static const char before[] = "YMD", after[] = "HMS";
    size_t i = 1, units = 0, next = 0;
    bool time = false;
    if (n < 3 || s[0] != 'P') return false;
    while (i < n) {
        if (s[i] == 'T' && !time) {
            time = true;
            next = units = 0;
            i++;
            continue;
        }
        size_t start = i;
        while (i < n && s[i] >= '0' && s[i] <= '9') i++;
        if (i == start || i == n) return false;
        if (s[i] == 'W') return start == 1 && i + 1 == n;
        const char *order = time ? after : before, *unit = strchr(order + next, s[i]);
        if (!s[i] || !unit) return false;
        if (units && (size_t)(unit - order) != next) return false; /* no unit in between is left out */
        next = (size_t)(unit - order) + 1;
        units++;
        i++;
    }
    return units > 0;
}

static bool is_hostname(const char *s, size_t n) {
    size_t label = 0;
    if (n == 0 || n > 253) return false;
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '.') {
            if (!label || s[i - 1] == '-') return false;
            label = 0;
            continue;
        }
        if (!alnum(s[i]) && (s[i] != '-' || !label)) return false;
        if (++label > 63) return false;
    }
    return label > 0 && s[n - 1] != '-';
}

static bool is_email(const char *s, size_t n) {
    const char *at = memchr(s, '@', n);
    if (!at || at == s || at[-1] == '.' || s[0] == '.' || at - s > 64) return false;
    for (const char *p = s; p < at; p++) {
        if (*p == '.' && p[1] == '.') return false;
        if (!alnum(*p) && (!*p || !strchr("!#$%&'*+/=?^_`{|}~.-", *p))) return false;
    }
    return is_hostname(at + 1, n - (size_t)(at + 1 - s));
}

static bool is_ipv4(const char *s, size_t n) {
    unsigned parts = 0;
    for (size_t i = 0; i <= n;) {
        size_t start = i;
        unsigned v;
        while (i < n && s[i] != '.') i++;
        if (i - start > 3 || !digits(s + start, i - start, &v) || v > 255 || (i - start > 1 && s[start] == '0')) return false;
        parts++;
        i++;
    }
    return parts == 4;
}

static bool is_ipv6(const char *s, size_t n) {
    unsigned groups = 0;
    bool gap = false;
    size_t i = 0;
    if (n >= 2 && s[0] == ':' && s[1] == ':') gap = true, i = 2;
    while (i < n) {
        size_t start = i;
        while (i < n && is_hex(s[i])) i++;
        if (i < n && s[i] == '.') {
            if (!is_ipv4(s + start, n - start)) return false;
            groups += 2;
            i = n;
            break;
        }
        if (i == start || i - start > 4) return false;
        groups++;
        if (i == n) break;
        if (s[i++] != ':') return false;
        if (i == n) return false;
        if (s[i] == ':') {
            if (gap) return false;
            gap = true;
            i++;
        }
    }
    return gap ? groups <= 7 : groups == 8;
}

static bool is_uri(const char *s, size_t n) {
    size_t i = 0;
    if (!n || !((s[0] | 32) >= 'a' && (s[0] | 32) <= 'z')) return false;
    while (i < n && (alnum(s[i]) || s[i] == '+' || s[i] == '-' || s[i] == '.')) i++;
    if (i == n || s[i] != ':') return false;
    bool fragment = false;
    for (i++; i < n; i++) {
        if (s[i] == '%') {
            if (n - i < 3 || !is_hex(s[i + 1]) || !is_hex(s[i + 2])) return false;
        } else if (s[i] == '#') {
            if (fragment) return false;
            fragment = true;
        } else if (!alnum(s[i]) && (!s[i] || !strchr("-._~:/?@!$&'()*+,;=", s[i]))) {
            return false;
        }
    }
    return true;
}

static bool is_uuid(const char *s, size_t n) {
    if (n != 36) return false;
    for (size_t i = 0; i < n; i++) {
        bool dash = i == 8 || i == 13 || i == 18 || i == 23;
        if (dash ? s[i] != '-' : !is_hex(s[i])) return false;
    }
    return true;
}

static bool has_format(ms_format_kind kind, const char *s, size_t n) {
    switch (kind) {
    case MS_FORMAT_DATE: return is_date(s, n);
    case MS_FORMAT_TIME: return is_time(s, n);
    case MS_FORMAT_DATE_TIME: return is_date_time(s, n);
    case MS_FORMAT_DURATION: return is_duration(s, n);
    case MS_FORMAT_EMAIL: return is_email(s, n);
    case MS_FORMAT_HOSTNAME: return is_hostname(s, n);
    case MS_FORMAT_IPV4: return is_ipv4(s, n);
    case MS_FORMAT_IPV6: return is_ipv6(s, n);
    case MS_FORMAT_URI: return is_uri(s, n);
    case MS_FORMAT_UUID: return is_uuid(s, n);
    case MS_FORMAT_OTHER: break;
    }
    return true;
}

/* ------------------------------------------------------------------ keywords by type */

static bool matches(check *c, const char *pattern, size_t pattern_len, const char *text, size_t len) {
    bool found = false;
    const ms_regex *r = ms_schema_regex(c->s, pattern, pattern_len);
    ms_status status = r ? ms_regex_search(r, text, len, &found, c->err)
                         : ms_fail(c->err, MS_ERR_INTERNAL, "schema: a pattern is not compiled");
    if (status != MS_OK) c->status = status;
    c->steps += len;
    return found;
}

/* Compares with the value of a count keyword; absent gives true. */
static bool count_within(const ms_json *schema, const char *min, const char *max, size_t count) {
    uint64_t n;
    const ms_json *lo = ms_json_get(schema, min), *hi = ms_json_get(schema, max);
    if (lo && ms_schema_size(lo, &n) && count < n) return false;
    return !(hi && ms_schema_size(hi, &n) && count > n);
}

static bool number_fits(const ms_json *schema, const ms_json *v) {
    const ms_json *k;
    if ((k = ms_json_get(schema, "minimum")) && compare(v, k) < 0) return false;
    if ((k = ms_json_get(schema, "maximum")) && compare(v, k) > 0) return false;
    if ((k = ms_json_get(schema, "exclusiveMinimum")) && compare(v, k) <= 0) return false;
    if ((k = ms_json_get(schema, "exclusiveMaximum")) && compare(v, k) >= 0) return false;
    return !(k = ms_json_get(schema, "multipleOf")) || is_multiple(v, k);
}

static bool string_fits(check *c, const ms_json *schema, const ms_json *v) {
    size_t n = 0;
    for (size_t i = 0; i < v->str_len; i++) n += ((uint8_t)v->str[i] & 0xC0) != 0x80;
    if (!count_within(schema, "minLength", "maxLength", n)) return false;
    const ms_json *k = ms_json_get(schema, "pattern");
    if (k && !matches(c, k->str, k->str_len, v->str, v->str_len)) return false;
    k = ms_json_get(schema, "format");
    return !k || has_format(ms_schema_format(k), v->str, v->str_len);
}

static bool contains_fits(check *c, const ms_json *schema, const ms_json *v) {
    const ms_json *k = ms_json_get(schema, "contains"), *min = ms_json_get(schema, "minContains");
    const ms_json *max = ms_json_get(schema, "maxContains");
    uint64_t least = 1, most = UINT64_MAX, n = 0;
    if (!k) return true;
    if (min) (void)ms_schema_size(min, &least);
    if (max) (void)ms_schema_size(max, &most);
    for (const ms_json *x = v->child; x; x = x->next) n += fits(c, k, x);
    return n >= least && n <= most;
}

static bool array_fits(check *c, const ms_json *schema, const ms_json *v) {
    if (!count_within(schema, "minItems", "maxItems", v->count)) return false;
    const ms_json *prefix = ms_json_get(schema, "prefixItems"), *items = ms_json_get(schema, "items"), *x = v->child;
    for (const ms_json *p = prefix ? prefix->child : NULL; p && x; p = p->next, x = x->next)
        if (!fits(c, p, x)) return false;
    for (; items && x; x = x->next)
        if (!fits(c, items, x)) return false;
    const ms_json *unique = ms_json_get(schema, "uniqueItems");
    if (unique && unique->type == MS_JSON_TRUE) {
        for (x = v->child; x; x = x->next) {
            for (const ms_json *y = x->next; y; y = y->next, c->steps++)
                if (equal(x, y)) return false;
        }
    }
    return contains_fits(c, schema, v);
}

static bool name_fits(check *c, const ms_json *schema, const ms_json *m) {
    ms_json name = {.type = MS_JSON_STRING, .raw = "", .str = m->key, .str_len = m->key_len};
    return fits(c, schema, &name);
}

static bool member_fits(check *c, const ms_json *schema, const ms_json *m) {
    const ms_json *k = ms_json_get(schema, "properties"), *p = k ? member(k, m->key, m->key_len) : NULL;
    bool known = p != NULL;
    if (p && !fits(c, p, m)) return false;
    k = ms_json_get(schema, "patternProperties");
    for (p = k ? k->child : NULL; p; p = p->next) {
        if (!matches(c, p->key, p->key_len, m->key, m->key_len)) continue;
        known = true;
        if (!fits(c, p, m)) return false;
    }
    k = ms_json_get(schema, "additionalProperties");
    if (k && !known && !fits(c, k, m)) return false;
    k = ms_json_get(schema, "propertyNames");
    return !k || name_fits(c, k, m);
}

static bool has_names(const ms_json *names, const ms_json *v) {
    for (const ms_json *n = names ? names->child : NULL; n; n = n->next)
        if (!member(v, n->str, n->str_len)) return false;
    return true;
}

static bool object_fits(check *c, const ms_json *schema, const ms_json *v) {
    if (!count_within(schema, "minProperties", "maxProperties", v->count)) return false;
    if (!has_names(ms_json_get(schema, "required"), v)) return false;
    for (const ms_json *m = v->child; m; m = m->next)
        if (!member_fits(c, schema, m)) return false;
    const ms_json *k = ms_json_get(schema, "dependentRequired");
    for (const ms_json *d = k ? k->child : NULL; d; d = d->next)
        if (member(v, d->key, d->key_len) && !has_names(d, v)) return false;
    k = ms_json_get(schema, "dependentSchemas");
    for (const ms_json *d = k ? k->child : NULL; d; d = d->next)
        if (member(v, d->key, d->key_len) && !fits(c, d, v)) return false;
    return true;
}

/* ------------------------------------------------------------------ keywords for every type */

static bool is_type(const ms_json *v, const ms_json *name) {
    static const char *const names[] = {"null", "boolean", "boolean", "number", "string", "array", "object"};
    if (ms_json_is_string(name, "integer")) return v->type == MS_JSON_NUMBER && is_integer(v);
    return ms_json_is_string(name, names[v->type]);
}

static bool type_fits(const ms_json *k, const ms_json *v) {
    if (k->type == MS_JSON_STRING) return is_type(v, k);
    for (const ms_json *t = k->child; t; t = t->next)
        if (is_type(v, t)) return true;
    return false;
}

static bool among(check *c, const ms_json *list, const ms_json *v) {
    enum { PER_STEP = 16 };
    for (const ms_json *x = list->child; x; x = x->next)
        if (x == v) return true;
    c->steps += list->count / PER_STEP;
    for (const ms_json *x = list->child; x; x = x->next)
        if (equal(x, v)) return true;
    return false;
}

static size_t branches(check *c, const ms_json *list, const ms_json *v, size_t enough) {
    size_t n = 0;
    for (const ms_json *x = list->child; x && n < enough; x = x->next) n += fits(c, x, v);
    return n;
}

static bool in_place_fits(check *c, const ms_json *schema, const ms_json *v) {
    const ms_json *k;
    if ((k = ms_json_get(schema, "$ref")) && !target_fits(c, ms_schema_target(c->s, k), v)) return false;
    if ((k = ms_json_get(schema, "allOf")) && branches(c, k, v, SIZE_MAX) != k->count) return false;
    if ((k = ms_json_get(schema, "anyOf")) && !branches(c, k, v, 1)) return false;
    if ((k = ms_json_get(schema, "oneOf")) && branches(c, k, v, 2) != 1) return false;
    if ((k = ms_json_get(schema, "not")) && fits(c, k, v)) return false;
    if (!(k = ms_json_get(schema, "if"))) return true;
    k = ms_json_get(schema, fits(c, k, v) ? "then" : "else");
    return !k || fits(c, k, v);
}

static bool fits(check *c, const ms_json *schema, const ms_json *v) {
    const ms_json *k;
    if (c->status != MS_OK) return false;
    if (++c->steps > c->most) {
        c->status = ms_fail(c->err, MS_ERR_USAGE, "schema: expected a check of at most %llu steps", (unsigned long long)c->most);
        return false;
    }
    if (!schema) {
        c->status = ms_fail(c->err, MS_ERR_INTERNAL, "schema: a reference has no target");
        return false;
    }
    if (schema->type != MS_JSON_OBJECT) return schema->type == MS_JSON_TRUE;
    if ((k = ms_json_get(schema, "type")) && !type_fits(k, v)) return false;
    if ((k = ms_json_get(schema, "const")) && !equal(k, v)) return false;
    if ((k = ms_json_get(schema, "enum")) && !among(c, k, v)) return false;
    if (v->type == MS_JSON_NUMBER && !number_fits(schema, v)) return false;
    if (v->type == MS_JSON_STRING && !string_fits(c, schema, v)) return false;
    if (v->type == MS_JSON_ARRAY && !array_fits(c, schema, v)) return false;
    if (v->type == MS_JSON_OBJECT && !object_fits(c, schema, v)) return false;
    return in_place_fits(c, schema, v);
}

bool ms_schema_equal(const ms_json *a, const ms_json *b) { return equal(a, b); }

ms_status ms_schema_check(const ms_schema *s, const ms_json *schema, const ms_json *value, uint64_t *work, bool *valid,
                          ms_error *err) {
    check c = {.s = s, .err = err, .status = MS_OK, .most = work ? *work : MAX_STEPS};
    *valid = !has_repeated_members(&c, value) && fits(&c, schema, value);
    if (work) *work -= c.steps < *work ? c.steps : *work;
    free(c.memo);
    return c.status;
}

ms_status ms_schema_validate(const ms_schema *s, const ms_json *value, bool *valid, ms_error *err) {
    return ms_schema_check(s, s->root, value, NULL, valid, err);
}
