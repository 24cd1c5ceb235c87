/* json_write.c: the writer of json.h, byte for byte what Python's json.dumps(ensure_ascii=False) gives.
 *
 * Threads: pure functions of their arguments.
 * Invariants: no output depends on the process locale; recursion is bounded by MS_JSON_MAX_DEPTH.
 * Errors: a failed allocation marks the text as failed.
 */
#include "base/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const ms_json_style ms_json_compact_sorted = {.item_sep = ",", .key_sep = ":", .sort_keys = true};
const ms_json_style ms_json_spaced = {.item_sep = ", ", .key_sep = ": ", .sort_keys = false};
const ms_json_style ms_json_compact = {.item_sep = ",", .key_sep = ":", .sort_keys = false};

/* ------------------------------------------------------------------ strings */

void ms_json_write_string(ms_text *t, const char *s, size_t len) {
    static const char hex[] = "0123456789abcdef";
    static const char shorts[0x20] = {['\b'] = 'b', ['\f'] = 'f', ['\n'] = 'n', ['\r'] = 'r', ['\t'] = 't'};
    if (!len) {
        ms_text_puts(t, "\"\"");
        return;
    }
    ms_text_append(t, "\"", 1);
    size_t done = 0;
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c >= 0x20 && c != '"' && c != '\\') continue;
        ms_text_append(t, s + done, i - done);
        done = i + 1;
        char escape[6] = {'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]};
        char letter = c < 0x20 ? shorts[c] : (char)c;
        if (letter) escape[1] = letter;
        ms_text_append(t, escape, letter ? 2 : 6);
    }
    ms_text_append(t, s + done, len - done);
    ms_text_append(t, "\"", 1);
}

/* ------------------------------------------------------------------ numbers */

typedef struct decimal {
    char digits[20]; /* digits[0] is before the decimal point */
    int count;
    int exponent; /* of ten */
} decimal;

static double decimal_value(const decimal *d) {
    char s[48];
    int n = snprintf(s, sizeof s, "%.*se%d", d->count, d->digits, d->exponent - (d->count - 1));
    if (n < 0) return (double)NAN;
    return ms_json_number_value(s, (size_t)n);
}

/* v > 0 rounded to `count` digits. */
static decimal round_decimal(double v, int count) {
    char s[48];
    decimal d = {.count = 0};
    (void)snprintf(s, sizeof s, "%.*e", count - 1, v);
    const char *e = s;
    /* The separator is the process locale's, so only digits are looked at. */
    for (; *e && *e != 'e'; e++) {
        if (*e >= '0' && *e <= '9' && d.count < count) d.digits[d.count++] = *e;
    }
    d.exponent = *e == 'e' ? (int)strtol(e + 1, NULL, 10) : 0;
    return d;
}

static void step_up(decimal *d) {
    int i = d->count - 1;
    while (i >= 0 && d->digits[i] == '9') d->digits[i--] = '0';
    if (i >= 0) {
        d->digits[i]++;
    } else {
        d->digits[0] = '1';
        d->exponent++;
    }
}

/* The fewest digits that read back as v > 0; of those the nearest to v. */
static decimal shortest(double v) {
    /* Fifteen digits always survive in a normal number, so fewer are that with its zeros taken off. */
    int first = v < 2.2250738585072014e-308 ? 1 : 15;
    decimal d = {.count = 0};
    for (int count = first; count <= 17; count++) {
        d = round_decimal(v, count);
        if (decimal_value(&d) == v) break;
        /* Above a power of two the interval is twice as wide as below it: the nearest decimal may be outside
         * and the next one inside. */
        decimal up = d;
        step_up(&up);
        if (decimal_value(&up) == v) {
            d = up;
            break;
        }
    }
    while (d.count > 1 && d.digits[d.count - 1] == '0') d.count--;
    return d;
}

void ms_json_write_double(ms_text *t, double v) {
    if (isnan(v)) {
        ms_text_puts(t, "NaN");
        return;
    }
    if (signbit(v)) ms_text_append(t, "-", 1);
    v = fabs(v);
    if (isinf(v) || v == 0) {
        ms_text_puts(t, v == 0 ? "0.0" : "Infinity");
        return;
    }
    decimal d = shortest(v);
    if (d.exponent >= 16 || d.exponent < -4) {
        ms_text_append(t, d.digits, 1);
        if (d.count > 1) {
            ms_text_append(t, ".", 1);
            ms_text_append(t, d.digits + 1, (size_t)(d.count - 1));
        }
        ms_text_printf(t, "e%c%02d", d.exponent < 0 ? '-' : '+', abs(d.exponent));
    } else if (d.exponent < 0) {
        ms_text_append(t, "0.000", (size_t)(1 - d.exponent));
        ms_text_append(t, d.digits, (size_t)d.count);
    } else {
        int whole = d.exponent + 1;
        int have = d.count < whole ? d.count : whole;
        ms_text_append(t, d.digits, (size_t)have);
        for (int i = have; i < whole; i++) ms_text_append(t, "0", 1);
        ms_text_append(t, ".", 1);
        if (d.count > whole) ms_text_append(t, d.digits + whole, (size_t)(d.count - whole));
        else ms_text_append(t, "0", 1);
    }
}

void ms_json_write_number(ms_text *t, const char *raw, size_t len) {
    size_t digits = 0;
    while (digits < len && (raw[digits] == '-' || (raw[digits] >= '0' && raw[digits] <= '9'))) digits++;
    if (digits < len) {
        double v = ms_json_number_value(raw, len);
        if (isnan(v) && raw[0] != 'N') t->failed = true; /* no memory for a very long literal */
        ms_json_write_double(t, v);
    } else if (len == 2 && memcmp(raw, "-0", 2) == 0) {
        ms_text_append(t, "0", 1);
    } else {
        ms_text_append(t, raw, len);
    }
}

/* ------------------------------------------------------------------ values */

static void write_object(ms_text *t, const ms_json *obj, const ms_json_style *style) {
    const ms_json **list;
    size_t count;
    if (!ms_json_members(&list, &count, obj, style->sort_keys)) {
        t->failed = true;
        return;
    }
    ms_text_puts(t, "{");
    for (size_t i = 0; i < count; i++) {
        if (i) ms_text_puts(t, style->item_sep);
        ms_json_write_string(t, list[i]->key, list[i]->key_len);
        ms_text_puts(t, style->key_sep);
        ms_json_write(t, list[i], style);
    }
    ms_text_puts(t, "}");
    free(list);
}

void ms_json_write(ms_text *t, const ms_json *v, const ms_json_style *style) {
    switch (v->type) {
    case MS_JSON_NULL: ms_text_puts(t, "null"); break;
    case MS_JSON_FALSE: ms_text_puts(t, "false"); break;
    case MS_JSON_TRUE: ms_text_puts(t, "true"); break;
    case MS_JSON_NUMBER: ms_json_write_number(t, v->raw, v->raw_len); break;
    case MS_JSON_STRING: ms_json_write_string(t, v->str, v->str_len); break;
    case MS_JSON_OBJECT: write_object(t, v, style); break;
    case MS_JSON_ARRAY:
        ms_text_puts(t, "[");
        for (const ms_json *e = v->child; e; e = e->next) {
            if (e != v->child) ms_text_puts(t, style->item_sep);
            ms_json_write(t, e, style);
        }
        ms_text_puts(t, "]");
        break;
    }
}
