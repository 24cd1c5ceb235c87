/* text.c: the growing text buffer of text.h.
 *
 * Owns: the bytes of each buffer.  Threads: none shared.
 * Invariant: data[len] is NUL whenever data is not NULL; cap counts that byte.
 */
#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Room for `more` bytes and the NUL. */
static bool text_reserve(ms_text *t, size_t more) {
    if (t->failed) return false;
    size_t need;
    if (__builtin_add_overflow(t->len, more, &need) || __builtin_add_overflow(need, (size_t)1, &need)) {
        t->failed = true;
        return false;
    }
    if (need <= t->cap) return true;
    size_t cap = t->cap < 64 ? 64 : t->cap;
    while (cap < need) {
        if (__builtin_mul_overflow(cap, (size_t)2, &cap)) cap = need;
    }
    char *data = realloc(t->data, cap);
    if (!data) {
        t->failed = true;
        return false;
    }
    t->data = data;
    t->cap = cap;
    return true;
}

void ms_text_append(ms_text *t, const void *data, size_t len) {
    if (!text_reserve(t, len)) return;
    if (len) memcpy(t->data + t->len, data, len);
    t->len += len;
    t->data[t->len] = 0;
}

void ms_text_puts(ms_text *t, const char *s) { ms_text_append(t, s, strlen(s)); }

void ms_text_printf(ms_text *t, const char *fmt, ...) {
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    char small[256];
    int n = vsnprintf(small, sizeof small, fmt, ap);
    va_end(ap);
    if (n < 0) {
        t->failed = true;
    } else if ((size_t)n < sizeof small) {
        ms_text_append(t, small, (size_t)n);
    } else if (text_reserve(t, (size_t)n)) {
        (void)vsnprintf(t->data + t->len, (size_t)n + 1, fmt, again);
        t->len += (size_t)n;
    }
    va_end(again);
}

void ms_text_free(ms_text *t) {
    if (!t) return;
    free(t->data);
    *t = (ms_text){0};
}
