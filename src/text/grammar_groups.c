/* grammar_groups.c: see grammar_groups.h. */
#include "text/grammar_groups.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* KEPT: groupings that no grammar uses, a megabyte each or so. */
enum { MAX_GROUPS = 1 << 17, MANY_TOKENS = 2000, KEPT = 32 };

/* ------------------------------------------------------------------ classes */

static bool add_cut(ms_group_key *key, uint32_t cut) {
    if (!cut) return true;
    uint32_t at = 0;
    while (at < key->cut_count && key->cuts[at] < cut) at++;
    if (at < key->cut_count && key->cuts[at] == cut) return true;
    if (key->cut_count == MS_GROUP_CUTS) return false;
    memmove(&key->cuts[at + 1], &key->cuts[at], (key->cut_count - at) * sizeof key->cuts[0]);
    key->cuts[at] = cut;
    key->cut_count++;
    return true;
}

static uint32_t range_of(const ms_group_key *key, uint32_t cp) {
    uint32_t lo = 0, hi = key->cut_count;
    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;
        if (key->cuts[mid] <= cp)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* Ranges that lead to the same states from everywhere are one class. */
static bool merge_ranges(const ms_dfa *d, ms_group_key *key) {
    uint64_t hash[MS_GROUP_CUTS + 1][2] = {{0}};
    for (uint32_t q = 0; q < d->states; q++) {
        for (uint32_t e = d->first[q]; e < d->first[q + 1]; e++) {
            uint64_t edge = ((uint64_t)q << 32 | d->edges[e].to) + 1;
            uint32_t end = range_of(key, d->edges[e].hi);
            for (uint32_t i = range_of(key, d->edges[e].lo); i <= end; i++) {
                hash[i][0] = (hash[i][0] ^ edge) * UINT64_C(0x9E3779B97F4A7C15) ^ hash[i][0] >> 29;
                hash[i][1] = (hash[i][1] + edge) * UINT64_C(0xC2B2AE3D27D4EB4F) ^ hash[i][1] >> 31;
            }
        }
    }
    uint32_t count = 0, firsts[MS_GROUP_CLASSES];
    for (uint32_t i = 0; i <= key->cut_count; i++) {
        uint32_t k = 0;
        while (k < count && (hash[firsts[k]][0] != hash[i][0] || hash[firsts[k]][1] != hash[i][1])) k++;
        if (k == MS_GROUP_CLASSES) return false;
        if (k == count) firsts[count++] = i;
        key->classes[i] = (uint8_t)k;
    }
    return true;
}

bool ms_group_key_of(const ms_grammar *g, const ms_block *b, ms_group_key *key) {
    memset(key, 0, sizeof *key);
    key->form = (uint32_t)b->form;
    if (b->dfa == MS_DFA_NONE) return true;
    const ms_dfa *d = &g->dfas[b->dfa];
    for (uint32_t e = 0; d->states && e < d->first[d->states]; e++)
        if (!add_cut(key, d->edges[e].lo) || !add_cut(key, d->edges[e].hi + 1)) return false;
    return merge_ranges(d, key);
}

static uint32_t class_of(const ms_group_key *key, uint32_t cp) { return key->classes[range_of(key, cp)]; }

/* ------------------------------------------------------------------ one pass over the vocabulary */

/* Things found: tokens, parts, floors, each with its group. */
typedef struct found {
    uint32_t group, part, what;
} found;

typedef struct found_list {
    found *items;
    uint32_t count, cap;
} found_list;

typedef struct maker {
    const ms_vocabulary *v;
    ms_groups *g;
    uint32_t cap;
    uint32_t *table; /* group + 1 by parent and class */
    uint32_t table_mask;
    uint32_t *classes; /* by group */
    uint8_t ascii[128]; /* classes */
    found_list tokens, parts, floors;
    bool no_memory, too_many;
} maker;

static void note(maker *k, found_list *l, uint32_t group, uint32_t part, uint32_t what) {
    if (l->count == l->cap) {
        uint32_t cap = l->cap ? l->cap * 2 : 1024;
        found *p = realloc(l->items, cap * sizeof *p);
        if (!p) {
            k->no_memory = true;
            return;
        }
        l->items = p;
        l->cap = cap;
    }
    l->items[l->count++] = (found){group, part, what};
}

static uint32_t slot_of(const maker *k, uint32_t parent, uint32_t class) {
    uint64_t h = ((uint64_t)parent << 8 | class) * UINT64_C(0x9E3779B97F4A7C15);
    return (uint32_t)(h >> 40) & k->table_mask;
}

static bool more_room(maker *k) {
    uint32_t cap = k->cap ? k->cap * 2 : 256;
    ms_group *groups = realloc(k->g->groups, ((size_t)cap + 1) * sizeof *groups);
    if (groups) k->g->groups = groups;
    uint32_t *classes = realloc(k->classes, cap * sizeof *classes);
    if (classes) k->classes = classes;
    uint32_t *table = calloc((size_t)cap * 2, sizeof *table);
    if (!groups || !classes || !table) {
        free(table);
        k->no_memory = true;
        return false;
    }
    free(k->table);
    k->table = table;
    k->table_mask = cap * 2 - 1;
    k->cap = cap;
    for (uint32_t i = 1; i < k->g->count; i++) {
        uint32_t h = slot_of(k, groups[i].parent, classes[i]);
        while (table[h]) h = (h + 1) & k->table_mask;
        table[h] = i + 1;
    }
    return true;
}

/* The group that a code point leads to from another; group 0 when there is no room. */
static uint32_t child(maker *k, uint32_t parent, uint32_t cp) {
    uint32_t class = cp < sizeof k->ascii ? k->ascii[cp] : class_of(&k->g->key, cp), h = slot_of(k, parent, class);
    for (; k->table[h]; h = (h + 1) & k->table_mask) {
        uint32_t i = k->table[h] - 1;
        if (k->g->groups[i].parent == parent && k->classes[i] == class) return i;
    }
    if (k->g->count == MAX_GROUPS) {
        k->too_many = true;
        return 0;
    }
    if (k->g->count == k->cap) {
        if (!more_room(k)) return 0;
        h = slot_of(k, parent, class);
        while (k->table[h]) h = (h + 1) & k->table_mask;
    }
    uint32_t id = k->g->count++;
    k->g->groups[id] = (ms_group){.parent = parent, .symbol = cp};
    k->classes[id] = class;
    k->table[h] = id + 1;
    return id;
}

static bool is_stop(const ms_group_key *key, uint8_t byte) { return key->stops[byte >> 6] >> (byte & 63) & 1; }

/* A character that stands for itself in every form of a string. */
static bool is_plain(uint8_t byte) { return byte >= ' ' && byte < 0x80 && byte != '"' && byte != '\\'; }

static void visit(maker *k, uint32_t *group, uint32_t *part) {
    const ms_vocabulary *v = k->v;
    const ms_group_key *key = &k->g->key;
    group[0] = 0;
    part[0] = key->part;
    for (uint32_t n = 0; n < v->nodes && !k->no_memory && !k->too_many;) {
        uint32_t depth = v->depth[n], at = group[depth - 1], rest = part[depth - 1], cp = 0;
        bool bare = key->form == MS_STRING_RAW;
        if (bare && depth > 1 && !rest && is_stop(key, v->byte[n])) note(k, &k->floors, at, 0, n);
        ms_decoded what = MS_DECODED_SYMBOL;
        if (rest || !is_plain(v->byte[n])) what = ms_string_decode((ms_string_form)key->form, &rest, v->byte[n], &cp);
        else cp = v->byte[n];
        if (what == MS_DECODED_BAD || what == MS_DECODED_END) {
            if (what == MS_DECODED_END) note(k, &k->floors, at, 0, n);
            n = v->end[n];
            continue;
        }
        if (what == MS_DECODED_SYMBOL) at = child(k, at, cp);
        group[depth] = at;
        part[depth] = rest;
        if (v->token[n] != MS_NO_TOKEN) note(k, rest ? &k->parts : &k->tokens, at, rest, v->token[n]);
        n++;
    }
}

/* ------------------------------------------------------------------ the arrays */

static int by_group(const void *x, const void *y) {
    const found *a = x, *b = y;
    if (a->group != b->group) return a->group < b->group ? -1 : 1;
    if (a->part != b->part) return a->part < b->part ? -1 : 1;
    return (a->what > b->what) - (a->what < b->what);
}

static void fill(maker *k) {
    ms_groups *g = k->g;
    if (k->parts.count) qsort(k->parts.items, k->parts.count, sizeof(found), by_group);
    /* Tokens and floors are many, groups few: count, then place. */
    for (uint32_t i = 0; i < k->tokens.count; i++) g->groups[k->tokens.items[i].group].tokens++;
    for (uint32_t i = 0; i < k->floors.count; i++) g->groups[k->floors.items[i].group].floors++;
    for (uint32_t i = 0; i < k->parts.count; i++) g->groups[k->parts.items[i].group].parts++;
    uint32_t tokens = 0, floors = 0, parts = 0;
    for (uint32_t i = 0; i <= g->count; i++) { /* ends for now: placing from behind makes them beginnings */
        ms_group *x = &g->groups[i];
        x->tokens = tokens += i < g->count ? x->tokens : 0;
        x->floors = floors += i < g->count ? x->floors : 0;
        x->parts = parts += i < g->count ? x->parts : 0;
    }
    for (uint32_t i = k->tokens.count; i-- > 0;)
        g->tokens[--g->groups[k->tokens.items[i].group].tokens] = k->tokens.items[i].what;
    for (uint32_t i = k->floors.count; i-- > 0;)
        g->floors[--g->groups[k->floors.items[i].group].floors] = k->floors.items[i].what;
    for (uint32_t i = k->parts.count; i-- > 0;) {
        const found *f = &k->parts.items[i];
        g->parts[--g->groups[f->group].parts] = (ms_group_part){f->part, f->what};
    }
}

static bool add_masks(ms_groups *g, const ms_vocabulary *v) {
    size_t words = ms_vocabulary_mask_words(v);
    for (uint32_t i = 0; i < g->count; i++) {
        ms_group *x = &g->groups[i];
        uint32_t end = g->groups[i + 1].tokens;
        if (end - x->tokens < MANY_TOKENS) continue;
        if (!(x->mask = calloc(words, sizeof *x->mask))) return false;
        for (uint32_t t = x->tokens; t < end; t++) x->mask[g->tokens[t] >> 6] |= UINT64_C(1) << (g->tokens[t] & 63);
    }
    return true;
}

static void groups_free(ms_groups *g) {
    if (!g) return;
    for (uint32_t i = 0; g->groups && i < g->count; i++) free(g->groups[i].mask);
    free(g->groups);
    free(g->tokens);
    free(g->parts);
    free(g->floors);
    free(g);
}

static void release(maker *k) {
    free(k->table);
    free(k->classes);
    free(k->tokens.items);
    free(k->parts.items);
    free(k->floors.items);
}

static bool make_arrays(maker *k) {
    ms_groups *g = k->g;
    g->groups[g->count] = (ms_group){0};
    g->tokens = malloc((k->tokens.count + 1) * sizeof *g->tokens);
    g->parts = malloc((k->parts.count + 1) * sizeof *g->parts);
    g->floors = malloc((k->floors.count + 1) * sizeof *g->floors);
    if (k->no_memory || !g->tokens || !g->parts || !g->floors) return false;
    fill(k);
    return add_masks(g, k->v);
}

/* What is left of one that has too many groups: that it has. */
static void forget(maker *k) {
    free(k->g->groups);
    k->g->groups = NULL;
    k->g->count = 0;
    k->g->too_many = true;
}

/* NULL: no memory. */
static ms_groups *make(const ms_vocabulary *v, const ms_group_key *key) {
    maker k = {.v = v, .g = calloc(1, sizeof *k.g)};
    uint32_t *group = malloc(((size_t)v->deepest + 1) * sizeof *group);
    uint32_t *part = malloc(((size_t)v->deepest + 1) * sizeof *part);
    bool good = k.g && group && part;
    if (good) {
        k.g->key = *key;
        for (uint32_t i = 0; i < sizeof k.ascii; i++) k.ascii[i] = (uint8_t)class_of(key, i);
        good = more_room(&k);
    }
    if (good) {
        k.g->groups[0] = (ms_group){0};
        k.classes[0] = 0;
        k.g->count = 1;
        visit(&k, group, part);
        if (k.too_many) forget(&k);
        else good = make_arrays(&k);
    }
    free(group);
    free(part);
    release(&k);
    if (good) return k.g;
    groups_free(k.g);
    return NULL;
}

/* ------------------------------------------------------------------ the store */

struct ms_group_store {
    pthread_mutex_t lock;
    ms_groups *list;
};

ms_group_store *ms_group_store_create(void) {
    ms_group_store *s = calloc(1, sizeof *s);
    if (s) (void)pthread_mutex_init(&s->lock, NULL);
    return s;
}

void ms_group_store_destroy(ms_group_store *s) {
    if (!s) return;
    while (s->list) {
        ms_groups *g = s->list;
        s->list = g->next;
        groups_free(g);
    }
    (void)pthread_mutex_destroy(&s->lock);
    free(s);
}

bool ms_group_keys_equal(const ms_group_key *a, const ms_group_key *b) {
    return a->form == b->form && a->part == b->part && a->cut_count == b->cut_count &&
           memcmp(a->cuts, b->cuts, a->cut_count * sizeof a->cuts[0]) == 0 &&
           memcmp(a->classes, b->classes, a->cut_count + 1) == 0 && memcmp(a->stops, b->stops, sizeof a->stops) == 0;
}

/* The known one of a key, now the latest; NULL: none. */
static ms_groups *borrow(ms_group_store *s, const ms_group_key *key) {
    for (ms_groups **at = &s->list; *at; at = &(*at)->next) {
        ms_groups *g = *at;
        if (!ms_group_keys_equal(&g->key, key)) continue;
        *at = g->next;
        g->next = s->list;
        s->list = g;
        g->borrowed++;
        return g;
    }
    return NULL;
}

/* Of those that nobody uses the latest stay. */
static void drop_oldest(ms_group_store *s) {
    uint32_t spare = 0;
    for (ms_groups **at = &s->list; *at;) {
        ms_groups *g = *at;
        if (g->borrowed || ++spare <= KEPT) {
            at = &g->next;
            continue;
        }
        *at = g->next;
        groups_free(g);
    }
}

const ms_groups *ms_groups_borrow(const ms_vocabulary *v, const ms_group_key *key, bool make_it) {
    ms_group_store *s = v->groups;
    (void)pthread_mutex_lock(&s->lock);
    ms_groups *g = borrow(s, key);
    (void)pthread_mutex_unlock(&s->lock);
    if (g || !make_it) return g;
    ms_groups *made = make(v, key); /* others may go on meanwhile, or make the same */
    if (!made) return NULL;
    (void)pthread_mutex_lock(&s->lock);
    g = borrow(s, key);
    if (!g) {
        made->next = s->list;
        made->borrowed = 1;
        s->list = made;
    }
    (void)pthread_mutex_unlock(&s->lock);
    if (!g) return made;
    groups_free(made);
    return g;
}

void ms_groups_return(const ms_vocabulary *v, const ms_groups *g) {
    ms_group_store *s = v->groups;
    (void)pthread_mutex_lock(&s->lock);
    for (ms_groups *x = s->list; x; x = x->next)
        if (x == g) x->borrowed--;
    drop_oldest(s);
    (void)pthread_mutex_unlock(&s->lock);
}
