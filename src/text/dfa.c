/* dfa.c: building, combining and counting automata (dfa.h). */
#include "text/dfa.h"

#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/utf8.h"

enum { MAX_CODE_POINT = 0x10FFFF, SURROGATE_FIRST = 0xD800, SURROGATE_LAST = 0xDFFF };

void ms_dfa_clear(ms_dfa *d) {
    free(d->first);
    free(d->edges);
    free(d->accept);
    free(d->dist);
    *d = (ms_dfa){0};
}

static void *duplicate(const void *data, size_t bytes) {
    void *p = malloc(bytes + 1);
    if (p && bytes) memcpy(p, data, bytes);
    return p;
}

ms_status ms_dfa_copy(ms_dfa *out, const ms_dfa *d, ms_error *err) {
    *out = (ms_dfa){0};
    if (!d->states) return MS_OK;
    size_t edges = d->first[d->states] * sizeof *d->edges;
    *out = (ms_dfa){.states = d->states,
                    .first = duplicate(d->first, ((size_t)d->states + 1) * sizeof *d->first),
                    .edges = duplicate(d->edges, edges),
                    .accept = duplicate(d->accept, d->states),
                    .dist = duplicate(d->dist, d->states * sizeof *d->dist)};
    if (out->first && out->edges && out->accept && out->dist) return MS_OK;
    ms_dfa_clear(out);
    return ms_fail_memory(err, "an automaton", edges);
}

/* ------------------------------------------------------------------ exploration */

struct ms_dfa_sink {
    size_t key_bytes;
    char *keys; /* [states][key_bytes] */
    uint32_t states, state_cap, max_states;
    uint32_t *table; /* state + 1; open addressing */
    uint32_t table_mask;
    ms_dfa_edge *edges;
    size_t edge_count, edge_cap;
    uint64_t work;
    bool no_memory, too_large;
};

static void *grow(void *p, size_t count, size_t item, bool *failed) {
    void *q = count <= SIZE_MAX / item ? realloc(p, count * item) : NULL;
    if (!q) *failed = true;
    return q ? q : p;
}

/* Keys are long where patterns are: eight bytes at a time. */
static uint32_t hash_of(const ms_dfa_sink *s, const void *key) {
    const char *at = key;
    uint64_t h = MS_FNV1A64_INIT;
    size_t left = s->key_bytes;
    for (; left >= 8; at += 8, left -= 8) h = (h ^ ms_le64(at)) * UINT64_C(0x9E3779B97F4A7C15) ^ h >> 29;
    for (; left; at++, left--) h = (h ^ (uint8_t)*at) * UINT64_C(0x9E3779B97F4A7C15) ^ h >> 29;
    return (uint32_t)(h >> 32);
}

static bool rehash(ms_dfa_sink *s) {
    uint32_t size = s->table ? (s->table_mask + 1) * 2 : 64;
    uint32_t *table = calloc(size, sizeof *table);
    if (!table) return false;
    for (uint32_t i = 0; i < s->states; i++) {
        uint32_t h = hash_of(s, s->keys + i * s->key_bytes) & (size - 1);
        while (table[h]) h = (h + 1) & (size - 1);
        table[h] = i + 1;
    }
    free(s->table);
    s->table = table;
    s->table_mask = size - 1;
    return true;
}

static uint32_t intern(ms_dfa_sink *s, const void *key) {
    if (!s->table || s->states * 2 > s->table_mask) {
        if (!rehash(s)) {
            s->no_memory = true;
            return 0;
        }
    }
    uint32_t h = hash_of(s, key) & s->table_mask;
    for (; s->table[h]; h = (h + 1) & s->table_mask) {
        if (memcmp(s->keys + (s->table[h] - 1) * s->key_bytes, key, s->key_bytes) == 0) return s->table[h] - 1;
    }
    if (s->states >= s->max_states) {
        s->too_large = true;
        return 0;
    }
    if (s->states == s->state_cap) {
        s->state_cap = s->state_cap ? s->state_cap * 2 : 16;
        s->keys = grow(s->keys, s->state_cap, s->key_bytes, &s->no_memory);
        if (s->no_memory) return 0;
    }
    memcpy(s->keys + s->states * s->key_bytes, key, s->key_bytes);
    s->table[h] = s->states + 1;
    return s->states++;
}

bool ms_dfa_spend(ms_dfa_sink *s, uint64_t steps) {
    if (s->too_large || s->work < steps) {
        s->work = s->too_large ? s->work : 0;
        s->too_large = true;
        return false;
    }
    s->work -= steps;
    return true;
}

void ms_dfa_emit(ms_dfa_sink *s, uint32_t lo, uint32_t hi, const void *key) {
    if (s->no_memory || !ms_dfa_spend(s, 1 + s->key_bytes / 16)) return;
    uint32_t to = intern(s, key);
    ms_dfa_edge *last = s->edge_count ? &s->edges[s->edge_count - 1] : NULL;
    if (last && last->to == to && last->hi + 1 == lo && last->lo != UINT32_MAX) { /* the mark below ends a state */
        last->hi = hi;
        return;
    }
    if (s->edge_count == s->edge_cap) {
        s->edge_cap = s->edge_cap ? s->edge_cap * 2 : 64;
        s->edges = grow(s->edges, s->edge_cap, sizeof *s->edges, &s->no_memory);
        if (s->no_memory) return;
    }
    s->edges[s->edge_count++] = (ms_dfa_edge){lo, hi, to};
}

/* Shortest distances to acceptance, by rounds; UINT32_MAX: none. */
static bool distances(uint32_t *dist, const ms_dfa_sink *s, const uint32_t *first, const uint8_t *accept) {
    /* Reverse edges in a counting layout, then breadth first. */
    uint32_t *in = calloc((size_t)s->states + 1, sizeof *in), *queue = malloc(s->states * sizeof *queue + 1);
    uint32_t *from = malloc(s->edge_count * sizeof *from + 1);
    bool good = in && queue && from;
    if (good) {
        for (size_t e = 0; e < s->edge_count; e++) in[s->edges[e].to]++;
        uint32_t sum = 0;
        for (uint32_t i = 0; i <= s->states; i++) {
            uint32_t n = i < s->states ? in[i] : 0;
            in[i] = sum;
            sum += n;
        }
        for (uint32_t i = 0; i < s->states; i++)
            for (uint32_t e = first[i]; e < first[i + 1]; e++) from[in[s->edges[e].to]++] = i;
        uint32_t head = 0, tail = 0;
        for (uint32_t i = 0; i < s->states; i++) {
            dist[i] = accept[i] ? 0 : UINT32_MAX;
            if (accept[i]) queue[tail++] = i;
        }
        while (head < tail) {
            uint32_t q = queue[head++];
            for (uint32_t e = q ? in[q - 1] : 0; e < in[q]; e++) {
                if (dist[from[e]] != UINT32_MAX) continue;
                dist[from[e]] = dist[q] + 1;
                queue[tail++] = from[e];
            }
        }
    }
    free(in);
    free(queue);
    free(from);
    return good;
}

/* Keeps the states that reach acceptance. */
static bool cut(ms_dfa *out, const ms_dfa_sink *s, const uint32_t *first, const uint8_t *accept, const uint32_t *dist) {
    *out = (ms_dfa){0};
    if (dist[0] == UINT32_MAX) return true;
    uint32_t *name = malloc(s->states * sizeof *name), n = 0;
    out->first = malloc(((size_t)s->states + 1) * sizeof *out->first);
    out->edges = malloc(s->edge_count * sizeof *out->edges + 1);
    out->accept = malloc(s->states);
    out->dist = malloc(s->states * sizeof *out->dist);
    if (!name || !out->first || !out->edges || !out->accept || !out->dist) {
        free(name);
        return false;
    }
    for (uint32_t i = 0; i < s->states; i++) name[i] = dist[i] == UINT32_MAX ? MS_DFA_NONE : n++;
    uint32_t edges = 0;
    for (uint32_t i = 0; i < s->states; i++) {
        if (name[i] == MS_DFA_NONE) continue;
        out->first[name[i]] = edges;
        out->accept[name[i]] = accept[i];
        out->dist[name[i]] = dist[i];
        for (uint32_t e = first[i]; e < first[i + 1]; e++) {
            if (name[s->edges[e].to] == MS_DFA_NONE) continue;
            out->edges[edges] = s->edges[e];
            out->edges[edges++].to = name[s->edges[e].to];
        }
    }
    out->first[n] = edges;
    out->states = n;
    free(name);
    return true;
}

static ms_status explore(ms_dfa *out, ms_dfa_sink *s, const ms_dfa_source *src, ms_error *err) {
    uint32_t *first = NULL, cap = 0;
    uint8_t *accept = NULL;
    (void)intern(s, src->start);
    char *key = malloc(s->key_bytes);
    if (!key) s->no_memory = true;
    for (uint32_t i = 0; i < s->states && !s->no_memory && !s->too_large; i++) {
        if (i + 1 >= cap) {
            cap = cap ? cap * 2 : 64;
            first = grow(first, (size_t)cap + 1, sizeof *first, &s->no_memory);
            accept = grow(accept, cap, 1, &s->no_memory);
            if (s->no_memory) break;
        }
        memcpy(key, s->keys + i * s->key_bytes, s->key_bytes); /* the table moves while edges are added */
        if (s->edge_count > UINT32_MAX / 2) s->too_large = true;
        first[i] = (uint32_t)s->edge_count;
        accept[i] = src->accept(src->arg, key);
        size_t before = s->edge_count;
        if (before) { /* no merging across states */
            ms_dfa_edge keep = s->edges[before - 1];
            s->edges[before - 1].lo = UINT32_MAX;
            src->edges(src->arg, key, s);
            s->edges[before - 1] = keep;
        } else {
            src->edges(src->arg, key, s);
        }
        first[i + 1] = (uint32_t)s->edge_count;
    }
    uint32_t *dist = malloc((size_t)s->states * sizeof *dist + 1);
    ms_status status = MS_OK;
    if (s->too_large) {
        status = ms_fail(err, MS_ERR_USAGE, "expected at most %u states, found more", s->max_states);
    } else if (s->no_memory || !dist || !distances(dist, s, first, accept) || !cut(out, s, first, accept, dist)) {
        ms_dfa_clear(out);
        status = ms_fail_memory(err, "an automaton", s->states * (s->key_bytes + sizeof(ms_dfa_edge)));
    }
    free(dist);
    free(first);
    free(accept);
    free(key);
    return status;
}

ms_status ms_dfa_build(ms_dfa *out, const ms_dfa_source *src, uint32_t max_states, uint64_t *work, ms_error *err) {
    *out = (ms_dfa){0};
    ms_dfa_sink s = {.key_bytes = src->key_bytes, .max_states = max_states, .work = work ? *work : UINT64_MAX};
    ms_status status = explore(out, &s, src, err);
    if (work) *work = s.work;
    free(s.keys);
    free(s.table);
    free(s.edges);
    return status;
}

/* ------------------------------------------------------------------ products */

typedef struct two {
    const ms_dfa *a, *b;
    uint32_t min, max;
} two;

static void both_edges(const void *arg, const void *key, ms_dfa_sink *sink) {
    const two *t = arg;
    const uint32_t *k = key;
    const ms_dfa *a = t->a, *b = t->b;
    uint32_t i = a->first[k[0]], j = b->first[k[1]], iend = a->first[k[0] + 1], jend = b->first[k[1] + 1];
    while (i < iend && j < jend) {
        const ms_dfa_edge *x = &a->edges[i], *y = &b->edges[j];
        uint32_t lo = x->lo > y->lo ? x->lo : y->lo, hi = x->hi < y->hi ? x->hi : y->hi;
        if (lo <= hi) ms_dfa_emit(sink, lo, hi, (uint32_t[2]){x->to, y->to});
        if (x->hi <= y->hi) i++;
        else j++;
    }
}

static bool both_accept(const void *arg, const void *key) {
    const two *t = arg;
    const uint32_t *k = key;
    return t->a->accept[k[0]] && t->b->accept[k[1]];
}

ms_status ms_dfa_intersect(ms_dfa *out, const ms_dfa *a, const ms_dfa *b, uint32_t max_states, uint64_t *work,
                           ms_error *err) {
    *out = (ms_dfa){0};
    if (!a->states || !b->states) return MS_OK;
    two t = {.a = a, .b = b};
    static const uint32_t start[2] = {0, 0};
    return ms_dfa_build(out, &(ms_dfa_source){&t, sizeof start, start, both_edges, both_accept}, max_states, work, err);
}

/* Everything in lo..hi but the surrogates. */
static void emit_rest(ms_dfa_sink *sink, uint32_t lo, uint32_t hi, const void *key) {
    if (lo < SURROGATE_FIRST && lo <= hi) ms_dfa_emit(sink, lo, hi < SURROGATE_FIRST ? hi : SURROGATE_FIRST - 1, key);
    if (hi > SURROGATE_LAST && lo <= hi) ms_dfa_emit(sink, lo > SURROGATE_LAST ? lo : SURROGATE_LAST + 1, hi, key);
}

static void other_edges(const void *arg, const void *key, ms_dfa_sink *sink) {
    const ms_dfa *a = arg;
    uint32_t state = *(const uint32_t *)key, out = MS_DFA_NONE, next = 0;
    if (state != MS_DFA_NONE && a->states) {
        for (uint32_t e = a->first[state]; e < a->first[state + 1]; e++) {
            if (a->edges[e].lo > next) emit_rest(sink, next, a->edges[e].lo - 1, &out);
            ms_dfa_emit(sink, a->edges[e].lo, a->edges[e].hi, &a->edges[e].to);
            next = a->edges[e].hi + 1;
        }
    }
    if (next <= MAX_CODE_POINT) emit_rest(sink, next, MAX_CODE_POINT, &out);
}

static bool other_accept(const void *arg, const void *key) {
    const ms_dfa *a = arg;
    uint32_t state = *(const uint32_t *)key;
    return state == MS_DFA_NONE || !a->states || !a->accept[state];
}

ms_status ms_dfa_complement(ms_dfa *out, const ms_dfa *a, uint32_t max_states, uint64_t *work, ms_error *err) {
    static const uint32_t start = 0;
    return ms_dfa_build(out, &(ms_dfa_source){a, sizeof start, &start, other_edges, other_accept}, max_states, work, err);
}

static void counted_edges(const void *arg, const void *key, ms_dfa_sink *sink) {
    const two *t = arg;
    const uint32_t *k = key;
    if (k[1] >= t->max) return;
    uint32_t count = t->max != UINT32_MAX || k[1] < t->min ? k[1] + 1 : k[1];
    for (uint32_t e = t->a->first[k[0]]; e < t->a->first[k[0] + 1]; e++) {
        const ms_dfa_edge *x = &t->a->edges[e];
        ms_dfa_emit(sink, x->lo, x->hi, (uint32_t[2]){x->to, count});
    }
}

static bool counted_accept(const void *arg, const void *key) {
    const two *t = arg;
    const uint32_t *k = key;
    return t->a->accept[k[0]] && k[1] >= t->min;
}

ms_status ms_dfa_bounded(ms_dfa *out, const ms_dfa *a, uint32_t min, uint32_t max, uint32_t max_states, uint64_t *work,
                         ms_error *err) {
    *out = (ms_dfa){0};
    if (!a->states) return MS_OK;
    two t = {.a = a, .min = min, .max = max};
    static const uint32_t start[2] = {0, 0};
    return ms_dfa_build(out, &(ms_dfa_source){&t, sizeof start, start, counted_edges, counted_accept}, max_states, work,
                        err);
}

/* ------------------------------------------------------------------ word lists */

/* A key is the range of sorted words that share the symbols read so far. */
typedef struct word_key {
    uint32_t first, end, at; /* at: bytes read */
} word_key;

typedef struct word_list {
    ms_word *words;
    bool utf8;
} word_list;

static int by_bytes(const void *x, const void *y) {
    const ms_word *a = x, *b = y;
    size_t n = a->len < b->len ? a->len : b->len;
    int c = n ? memcmp(a->text, b->text, n) : 0;
    return c ? c : (a->len > b->len) - (a->len < b->len);
}

static uint32_t symbol_at(const word_list *l, uint32_t word, uint32_t at, uint32_t *bytes) {
    const ms_word *w = &l->words[word];
    uint32_t cp = (uint8_t)w->text[at];
    *bytes = 1;
    if (l->utf8) *bytes = (uint32_t)ms_utf8_decode((const uint8_t *)w->text + at, w->len - at, &cp, NULL);
    return cp;
}

static void word_edges(const void *arg, const void *key, ms_dfa_sink *sink) {
    const word_list *l = arg;
    const word_key *k = key;
    uint32_t i = k->first;
    while (i < k->end && l->words[i].len == k->at) i++;
    while (i < k->end) {
        uint32_t bytes, other, symbol = symbol_at(l, i, k->at, &bytes), j = i + 1;
        while (j < k->end && symbol_at(l, j, k->at, &other) == symbol) j++;
        ms_dfa_emit(sink, symbol, symbol, &(word_key){i, j, k->at + bytes});
        i = j;
    }
}

static bool word_accept(const void *arg, const void *key) {
    const word_list *l = arg;
    const word_key *k = key;
    return k->first < k->end && l->words[k->first].len == k->at;
}

ms_status ms_dfa_words(ms_dfa *out, const ms_word *words, size_t count, bool utf8, uint64_t *work, ms_error *err) {
    *out = (ms_dfa){0};
    if (!count) return MS_OK;
    word_list l = {.words = malloc(count * sizeof *l.words), .utf8 = utf8};
    if (!l.words) return ms_fail_memory(err, "a word list", count * sizeof *l.words);
    memcpy(l.words, words, count * sizeof *l.words);
    qsort(l.words, count, sizeof *l.words, by_bytes);
    uint32_t kept = 1;
    for (size_t i = 1; i < count; i++)
        if (by_bytes(&l.words[kept - 1], &l.words[i])) l.words[kept++] = l.words[i];
    word_key start = {0, kept, 0};
    ms_status status = ms_dfa_build(out, &(ms_dfa_source){&l, sizeof start, &start, word_edges, word_accept}, 1u << 22,
                                    work, err);
    free(l.words);
    return status;
}

/* ------------------------------------------------------------------ counting */

static uint64_t capped(uint64_t n) { return n < UINT32_MAX ? n : UINT32_MAX; }

/* Words by the state that they lead to, for the states that some word leads to. */
typedef struct census {
    uint64_t *words;
    uint32_t *states;
    uint32_t count;
} census;

/* One symbol further; leaves *from empty. */
static void advance(const ms_dfa *d, census *from, census *to) {
    to->count = 0;
    for (uint32_t i = 0; i < from->count; i++) {
        uint32_t q = from->states[i];
        for (uint32_t e = d->first[q]; e < d->first[q + 1]; e++) {
            uint32_t next = d->edges[e].to;
            uint64_t width = (uint64_t)d->edges[e].hi - d->edges[e].lo + 1;
            if (!to->words[next]) to->states[to->count++] = next;
            to->words[next] = capped(to->words[next] + capped(from->words[q] * width));
        }
        from->words[q] = 0;
    }
    from->count = 0;
}

static uint64_t accepted(const ms_dfa *d, const census *c, uint64_t *steps) {
    uint64_t words = 0;
    *steps = 1;
    for (uint32_t i = 0; i < c->count; i++) {
        uint32_t q = c->states[i];
        words += d->accept[q] ? c->words[q] : 0;
        *steps += 1 + d->first[q + 1] - d->first[q];
    }
    return words;
}

static bool census_of(const ms_dfa *d, census *c) {
    c->words = calloc(d->states, sizeof *c->words);
    c->states = malloc(d->states * sizeof *c->states);
    return c->words && c->states;
}

/* Level by level, until there are enough words or the steps run out. */
static void count_levels(const ms_dfa *d, const ms_dfa_count *what, census *now, census *next, uint32_t *count,
                         uint64_t *work) {
    enum { MORE_STEPS = 20000 };
    uint64_t total = 0, more = MORE_STEPS, steps;
    for (uint32_t l = 0; now->count && *count < what->cap && total < what->enough && *work && more; l++) {
        uint64_t words = accepted(d, now, &steps);
        if (total >= what->needed) more = more > steps ? more - steps : 0;
        *work = *work > steps ? *work - steps : 0;
        total += words;
        if (words) what->levels[(*count)++] = (ms_dfa_level){l, total};
        advance(d, now, next);
        census swap = *now;
        *now = *next;
        *next = swap;
    }
}

ms_status ms_dfa_count_words(const ms_dfa *d, const ms_dfa_count *what, uint32_t *count, uint64_t *work, ms_error *err) {
    *count = 0;
    if (!d->states) return MS_OK;
    census now = {0}, next = {0};
    bool good = census_of(d, &now) && census_of(d, &next);
    if (good) {
        now.words[0] = 1;
        now.states[now.count++] = 0;
        count_levels(d, what, &now, &next, count, work);
    }
    free(now.words);
    free(next.words);
    free(now.states);
    free(next.states);
    return good ? MS_OK : ms_fail_memory(err, "counting words", d->states * 24);
}
