/* nfc.c: see nfc.h.  A run is one character with all that follow it from U+0300 on; runs are normalised one by one. */
#include "text/nfc.h"

#include "base/utf8.h"

#include <stdlib.h>

enum {
    FIRST_COMBINING_BYTE = 0xCC, /* leads U+0300 and above; nothing below changes or combines with what is before it */
    S_BASE = 0xAC00,
    L_BASE = 0x1100,
    V_BASE = 0x1161,
    T_BASE = 0x11A7,
    L_COUNT = 19,
    V_COUNT = 21,
    T_COUNT = 28,
    S_COUNT = L_COUNT * V_COUNT * T_COUNT
};

typedef struct mark {
    uint32_t cp;
    uint8_t class;
} mark;

typedef struct run {
    mark *items;
    size_t count, cap;
    bool failed;
} run;

static uint8_t class_of(uint32_t cp) {
    size_t low = 0, high = ms_nfc_class_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        const ms_nfc_class *c = &ms_nfc_classes[middle];
        if (cp > c->last)
            low = middle + 1;
        else if (cp < c->first)
            high = middle;
        else
            return c->value;
    }
    return 0;
}

static const ms_nfc_decomposition *decomposition_of(uint32_t cp) {
    size_t low = 0, high = ms_nfc_decomposition_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        const ms_nfc_decomposition *d = &ms_nfc_decompositions[middle];
        if (cp > d->cp)
            low = middle + 1;
        else if (cp < d->cp)
            high = middle;
        else
            return d;
    }
    return NULL;
}

/* 0: the two do not compose. */
static uint32_t compose(uint32_t a, uint32_t b) {
    if (a - L_BASE < L_COUNT && b - V_BASE < V_COUNT) return S_BASE + ((a - L_BASE) * V_COUNT + (b - V_BASE)) * T_COUNT;
    if (a - S_BASE < S_COUNT && (a - S_BASE) % T_COUNT == 0 && b - T_BASE - 1 < T_COUNT - 1) return a + (b - T_BASE);
    size_t low = 0, high = ms_nfc_pair_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        const ms_nfc_pair *p = &ms_nfc_pairs[middle];
        if (a > p->a || (a == p->a && b > p->b))
            low = middle + 1;
        else if (a < p->a || b < p->b)
            high = middle;
        else
            return p->composed;
    }
    return 0;
}

static void push(run *r, uint32_t cp) {
    if (r->count == r->cap) {
        size_t cap = r->cap ? 2 * r->cap : 64;
        mark *items = realloc(r->items, cap * sizeof *items);
        if (!items) {
            r->failed = true;
            return;
        }
        r->items = items;
        r->cap = cap;
    }
    r->items[r->count++] = (mark){cp, class_of(cp)};
}

static void push_decomposed(run *r, uint32_t cp) {
    if (cp - S_BASE < S_COUNT) {
        uint32_t s = cp - S_BASE;
        push(r, L_BASE + s / (V_COUNT * T_COUNT));
        push(r, V_BASE + s % (V_COUNT * T_COUNT) / T_COUNT);
        if (s % T_COUNT) push(r, T_BASE + s % T_COUNT);
        return;
    }
    const ms_nfc_decomposition *d = decomposition_of(cp);
    if (!d) push(r, cp);
    for (size_t i = 0; d && i < d->count; i++) push(r, ms_nfc_expansion[d->at + i]);
}

static int by_class(const void *a, const void *b) {
    const mark *x = a, *y = b;
    return (x->class > y->class) - (x->class < y->class);
}

/* A stable sort of items[0..count), all of non-zero class: insertion for the usual few, a merge for a hostile many. */
static bool sort_marks(mark *items, size_t count) {
    enum { FEW = 32 };
    if (count <= FEW) {
        for (size_t i = 1; i < count; i++) {
            mark m = items[i];
            size_t at = i;
            for (; at > 0 && by_class(&items[at - 1], &m) > 0; at--) items[at] = items[at - 1];
            items[at] = m;
        }
        return true;
    }
    mark *sorted = malloc(count * sizeof *sorted);
    if (!sorted) return false;
    size_t start[257] = {0};
    for (size_t i = 0; i < count; i++) start[items[i].class + 1]++;
    for (size_t c = 1; c < 257; c++) start[c] += start[c - 1];
    for (size_t i = 0; i < count; i++) sorted[start[items[i].class]++] = items[i];
    for (size_t i = 0; i < count; i++) items[i] = sorted[i];
    free(sorted);
    return true;
}

static void reorder(run *r) {
    for (size_t at = 0; at < r->count;) {
        size_t end = at;
        while (end < r->count && r->items[end].class) end++;
        if (end > at + 1 && !sort_marks(r->items + at, end - at)) r->failed = true;
        at = end + 1;
    }
}

/* Composes in place.  A mark is blocked from the starter by one of its own class or above between them. */
static void compose_run(run *r) {
    size_t starter = SIZE_MAX, kept = 0;
    int before = -1; /* class of the last one kept behind the starter; -1: none */
    for (size_t i = 0; i < r->count; i++) {
        mark m = r->items[i];
        uint32_t joined = 0;
        if (starter != SIZE_MAX && before < (int)m.class) joined = compose(r->items[starter].cp, m.cp);
        if (joined) {
            r->items[starter].cp = joined;
            continue;
        }
        if (m.class == 0) {
            starter = kept;
            before = -1;
        } else {
            before = m.class;
        }
        r->items[kept++] = m;
    }
    r->count = kept;
}

static void flush(run *r, ms_text *out) {
    reorder(r);
    compose_run(r);
    for (size_t i = 0; i < r->count && !r->failed; i++) {
        char text[4];
        ms_text_append(out, text, ms_utf8_encode(r->items[i].cp, text));
    }
    r->count = 0;
}

bool ms_nfc_may_change(const uint8_t *text, size_t len) {
    for (size_t i = 0; i < len; i++) {
        if (text[i] >= FIRST_COMBINING_BYTE) return true;
    }
    return false;
}

void ms_nfc(ms_text *out, const uint8_t *text, size_t len) {
    run r = {0};
    while (len > 0 && !r.failed) {
        uint32_t cp;
        size_t used = ms_utf8_decode(text, len, &cp, NULL);
        push_decomposed(&r, cp);
        text += used;
        len -= used;
        if (len == 0 || *text < FIRST_COMBINING_BYTE) flush(&r, out);
    }
    if (r.failed) out->failed = true;
    free(r.items);
}
