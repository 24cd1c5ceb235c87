/* grammar_leaf.c: see grammar_leaf.h. */
#include "text/grammar_leaf.h"

#include <stdlib.h>
#include <string.h>

#include "text/grammar_groups.h"

enum { FEW_NODES = 2000, SOME_NODES = 20000, WARM_BLOCKS = 64, MAX_GROUPINGS = 24, MAX_WAYS_OUT = 4 };

/* What is known of an automaton over code points. */
typedef struct language {
    bool known, ungrouped; /* ungrouped: its classes or groups are too many */
    ms_group_key key;      /* without part and stops */
    uint32_t home;         /* an accepting state that nearly any text keeps; MS_DFA_NONE: there is none */
    uint8_t ways_out[MAX_WAYS_OUT];
    uint32_t way_out_count; /* the characters that lead away from it */
    uint32_t farthest;      /* largest distance */
} language;

struct ms_leaf_walker {
    const ms_grammar *g;
    const ms_vocabulary *v;
    language *languages; /* by automaton */
    const ms_groups *groups[MAX_GROUPINGS]; /* borrowed */
    uint32_t group_count;
    ms_frame *frames; /* by depth */
    struct place {
        uint32_t a, b;
        bool alive;
    } * places; /* by group */
    uint32_t place_cap;
};

ms_leaf_walker *ms_leaf_walker_create(const ms_grammar *g, const ms_vocabulary *v) {
    ms_leaf_walker *w = calloc(1, sizeof *w);
    if (!w) return NULL;
    w->g = g;
    w->v = v;
    w->languages = calloc((size_t)g->dfa_count + 1, sizeof *w->languages);
    w->frames = malloc(((size_t)v->deepest + 1) * sizeof *w->frames);
    if (w->languages && w->frames) return w;
    ms_leaf_walker_destroy(w);
    return NULL;
}

void ms_leaf_walker_destroy(ms_leaf_walker *w) {
    if (!w) return;
    while (w->group_count) ms_groups_return(w->v, w->groups[--w->group_count]);
    free(w->languages);
    free(w->frames);
    free(w->places);
    free(w);
}

bool ms_leaf_walks(const ms_matcher *m, const ms_frame *f) {
    ms_block_kind kind = m->g->blocks[f->block].kind;
    return kind == MS_BLOCK_DFA || kind == MS_BLOCK_STRING || kind == MS_BLOCK_TEXT;
}

/* ------------------------------------------------------------------ languages */

/* Whether `lo` up to `hi` lead elsewhere, and are few characters that stand for themselves in any string. */
static bool add_ways_out(language *l, uint32_t lo, uint32_t hi) {
    for (uint32_t c = lo; c <= hi; c++) {
        if (c >= 0xD800 && c <= 0xDFFF) continue;
        if (l->way_out_count == MAX_WAYS_OUT || c <= ' ' || c >= 0x7F || c == '"' || c == '\\') return false;
        l->ways_out[l->way_out_count++] = (uint8_t)c;
    }
    return true;
}

static bool is_home(const ms_dfa *d, uint32_t state, language *l) {
    uint32_t next = 0;
    l->way_out_count = 0;
    if (!d->accept[state]) return false;
    for (uint32_t e = d->first[state]; e < d->first[state + 1]; e++) {
        if (d->edges[e].to != state) continue;
        if (d->edges[e].lo && !add_ways_out(l, next, d->edges[e].lo - 1)) return false;
        next = d->edges[e].hi + 1;
    }
    return next == 0x110000;
}

static language *language_of(ms_leaf_walker *w, const ms_block *b) {
    language *l = &w->languages[b->dfa];
    const ms_dfa *d = &w->g->dfas[b->dfa];
    if (l->known) return l;
    l->known = true;
    l->home = MS_DFA_NONE;
    for (uint32_t q = 0; q < d->states; q++) {
        if (d->dist[q] > l->farthest) l->farthest = d->dist[q];
        if (l->home == MS_DFA_NONE && is_home(d, q, l)) l->home = q;
    }
    if (l->home != MS_DFA_NONE) (void)is_home(d, l->home, l);
    l->ungrouped = !ms_group_key_of(w->g, b, &l->key);
    return l;
}

ms_frame ms_leaf_canonical(ms_leaf_walker *w, const ms_matcher *m, const ms_frame *f) {
    const ms_block *b = &m->g->blocks[f->block];
    ms_frame out = *f;
    if (b->kind != MS_BLOCK_STRING) return out;
    uint64_t reach = (uint64_t)w->v->deepest + (b->dfa != MS_DFA_NONE ? language_of(w, b)->farthest : 0) + 2;
    uint64_t below_max = b->max == MS_UNLIMITED ? UINT64_MAX
                         : b->max < reach       ? 0
                                                : b->max - reach; /* far from max up to here */
    if (f->b >= b->min) {                                   /* the lower bound is behind */
        if (b->max != MS_UNLIMITED && f->b < below_max) out.b = (uint32_t)below_max;
    } else if (b->min - f->b > reach && b->min - reach <= below_max) {
        out.b = (uint32_t)(b->min - reach);
    }
    return out;
}

/* ------------------------------------------------------------------ byte by byte */

static bool is_stop(const uint64_t stops[4], uint8_t byte) { return stops[byte >> 6] >> (byte & 63) & 1; }

static int step(const ms_matcher *m, ms_frame *f, const ms_block *b, uint8_t byte) {
    if (b->kind == MS_BLOCK_STRING) return ms_string_step(m, f, byte);
    f->a = ms_dfa_step(&m->g->dfas[b->dfa], f->a, byte);
    return f->a != MS_DFA_NONE;
}

static bool may_end(const ms_matcher *m, const ms_frame *f, const ms_block *b) {
    return b->kind == MS_BLOCK_DFA ? m->g->dfas[b->dfa].accept[f->a] != 0 : ms_string_may_end(m, f);
}

/* false: more than `budget` nodes; the result is then not to be used. */
static bool walk_bytes(ms_leaf_walker *w, const ms_matcher *m, const ms_frame *top, uint32_t before,
                       const uint64_t stops[4], ms_result *r, uint32_t budget) {
    const ms_vocabulary *v = w->v;
    const ms_block *b = &m->g->blocks[top->block];
    w->frames[0] = *top;
    for (uint32_t n = 0; n < v->nodes && !r->failed; budget--) {
        if (!budget) return false;
        uint32_t depth = v->depth[n], cost = MS_BOUND_NONE;
        ms_frame f = w->frames[depth - 1];
        if (r->at && depth > 1 && is_stop(stops, v->byte[n]) && may_end(m, &f, b)) ms_result_floor(r, n);
        int what = step(m, &f, b, v->byte[n]);
        if (what == 1) cost = ms_cost_frame(m, &f);
        if (what == 2) ms_result_floor(r, n);
        if (cost >= MS_BOUND_NONE) {
            n = v->end[n];
            continue;
        }
        w->frames[depth] = f;
        if (v->token[n] != MS_NO_TOKEN) ms_result_allow(r, v->token[n], before, cost);
        n++;
    }
    return true;
}

static void reset(ms_result *r) {
    free(r->mask);
    r->mask = NULL;
    r->token_count = r->rise_count = r->floor_count = 0;
}

static void walk_text(const ms_vocabulary *v, ms_result *r) {
    for (uint32_t n = 0; n < v->nodes; n++)
        if (v->token[n] != MS_NO_TOKEN) ms_result_allow(r, v->token[n], 0, 0);
}

/* ------------------------------------------------------------------ group by group */

/* NULL: there are none, and none can be made. */
static const ms_groups *groups_for(ms_leaf_walker *w, const ms_group_key *key, bool make) {
    for (uint32_t i = 0; i < w->group_count; i++)
        if (ms_group_keys_equal(&w->groups[i]->key, key)) return w->groups[i];
    if (w->group_count == MAX_GROUPINGS) return NULL;
    const ms_groups *g = ms_groups_borrow(w->v, key, make);
    if (g) w->groups[w->group_count++] = g;
    return g;
}

static void allow_group(const ms_groups *g, uint32_t at, uint32_t before, uint32_t after, ms_result *r) {
    const ms_group *x = &g->groups[at];
    if (x->mask && after <= before) {
        ms_result_allow_all(r, x->mask);
        return;
    }
    for (uint32_t t = x->tokens; t < g->groups[at + 1].tokens; t++) ms_result_allow(r, g->tokens[t], before, after);
}

static void allow_parts(const ms_matcher *m, const ms_groups *g, uint32_t at, ms_frame f, uint32_t before,
                        ms_result *r) {
    uint32_t cost = MS_BOUND_NONE, known = 0;
    for (uint32_t p = g->groups[at].parts; p < g->groups[at + 1].parts; p++) {
        if (g->parts[p].part != known) {
            f.c = known = g->parts[p].part;
            cost = ms_string_cost(m, &f);
        }
        if (cost < MS_BOUND_NONE) ms_result_allow(r, g->parts[p].token, before, cost);
    }
}

static void walk_groups(ms_leaf_walker *w, const ms_matcher *m, const ms_frame *top, uint32_t before,
                        const ms_groups *g, ms_result *r) {
    if (g->count > w->place_cap) {
        struct place *p = realloc(w->places, g->count * sizeof *p);
        if (!p) {
            r->failed = true;
            return;
        }
        w->places = p;
        w->place_cap = g->count;
    }
    for (uint32_t i = 0; i < g->count && !r->failed; i++) {
        const ms_group *x = &g->groups[i];
        ms_frame f = *top;
        uint32_t cost = before;
        w->places[i].alive = false;
        if (i) {
            const struct place *p = &w->places[x->parent];
            if (!p->alive) continue;
            f.a = p->a;
            f.b = p->b;
            if (!ms_string_take(m, &f, x->symbol)) continue;
            cost = ms_string_cost(m, &f);
            if (cost >= MS_BOUND_NONE) continue;
        }
        w->places[i] = (struct place){f.a, f.b, true};
        allow_group(g, i, before, cost, r);
        allow_parts(m, g, i, f, before, r);
        if (x->floors == g->groups[i + 1].floors || !ms_string_may_end(m, &f)) continue;
        for (uint32_t k = x->floors; k < g->groups[i + 1].floors; k++) ms_result_floor(r, g->floors[k]);
    }
}

/* ------------------------------------------------------------------ nearly any text */

/* The groups of any text hold for most tokens; those that leave the home state, or have not come to it, are looked at
 * one by one: they may cost more, not fit, or not end where others do. */
typedef struct exceptions {
    ms_leaf_walker *w;
    const ms_matcher *m;
    ms_result *r;
    uint32_t before, home;
    uint32_t left;   /* nodes to look at yet: where they are many, groups of the language itself are quicker */
    ms_result wrong; /* floors: pairs of nodes; floors from the first up to the second are none */
} exceptions;

static bool spend(exceptions *x) { return x->left && --x->left; }

static void no_floors(exceptions *x, uint32_t first, uint32_t end) {
    if (first >= end) return;
    ms_result_floor(&x->wrong, first);
    ms_result_floor(&x->wrong, end);
}

/* Nodes first..end until they come home; frames[depth of first - 1] is known. */
static void look_from(exceptions *x, uint32_t first, uint32_t end) {
    const ms_vocabulary *v = x->w->v;
    ms_frame *frames = x->w->frames;
    const ms_block *b = &x->m->g->blocks[frames[v->depth[first] - 1].block];
    for (uint32_t n = first; n < end && !x->r->failed && !x->wrong.failed && spend(x);) {
        uint32_t depth = v->depth[n], cost = MS_BOUND_NONE, cp, part = frames[depth - 1].c;
        ms_frame f = frames[depth - 1];
        ms_decoded what_any = ms_string_decode(b->form, &part, v->byte[n], &cp);
        bool ends = !f.c && (x->r->at || what_any == MS_DECODED_END);
        if (ends && !ms_string_may_end(x->m, &f)) no_floors(x, n, n + 1);
        int what = step(x->m, &f, b, v->byte[n]);
        if (what == 1) cost = ms_string_cost(x->m, &f);
        bool home = what == 1 && f.a == x->home && !f.c && cost < MS_BOUND_NONE;
        if (cost < MS_BOUND_NONE && !home) {
            frames[depth] = f;
            if (v->token[n] != MS_NO_TOKEN) ms_result_allow(x->r, v->token[n], x->before, cost);
            n++;
            continue;
        }
        if (cost >= MS_BOUND_NONE && (what_any == MS_DECODED_PART || what_any == MS_DECODED_SYMBOL)) {
            /* what the groups allowed there does not fit */
            no_floors(x, n + 1, v->end[n]);
            for (uint32_t k = n; k < v->end[n]; k++)
                if (v->token[k] != MS_NO_TOKEN) ms_result_forbid(x->r, v->token[k]);
        }
        n = v->end[n];
    }
}

/* Where a token comes home and leaves it again. */
static void look_outside(exceptions *x, const ms_frame *top, uint8_t way_out) {
    const ms_vocabulary *v = x->w->v;
    const ms_block *b = &x->m->g->blocks[top->block];
    for (const uint8_t *at = v->byte, *end = v->byte + v->nodes;
         at < end && spend(x) && (at = memchr(at, way_out, (size_t)(end - at))); at++) {
        uint32_t n = (uint32_t)(at - v->byte), depth = v->depth[n], k = 0;
        ms_frame f = *top;
        const uint8_t *path = ms_vocabulary_path(v, n);
        while (k < depth - 1u && step(x->m, &f, b, path[k]) == 1 && ms_string_cost(x->m, &f) < MS_BOUND_NONE) k++;
        if (k < depth - 1u || f.a != x->home || f.c) continue;
        x->w->frames[depth - 1] = f;
        look_from(x, n, v->end[n]);
    }
}

static int by_first(const void *x, const void *y) {
    uint32_t a = *(const uint32_t *)x, b = *(const uint32_t *)y;
    return (a > b) - (a < b);
}

/* Nested ranges of wrong floors become one; both lists ascend. */
static void drop_floors(exceptions *x) {
    ms_result *r = x->r, *wrong = &x->wrong;
    uint32_t kept = 0, at = 0, end = 0;
    if (!wrong->floor_count) return;
    qsort(wrong->floors, wrong->floor_count / 2, 2 * sizeof *wrong->floors, by_first);
    qsort(r->floors, r->floor_count, sizeof *r->floors, by_first);
    for (uint32_t i = 0; i < r->floor_count; i++) {
        for (; at < wrong->floor_count && wrong->floors[at] <= r->floors[i]; at += 2)
            if (wrong->floors[at + 1] > end) end = wrong->floors[at + 1];
        if (r->floors[i] >= end) r->floors[kept++] = r->floors[i];
    }
    r->floor_count = kept;
}

/* false: not such a string. */
static bool walk_nearly_any(ms_leaf_walker *w, const ms_matcher *m, const ms_frame *top, uint32_t before,
                            const uint64_t stops[4], ms_result *r) {
    const ms_block *b = &m->g->blocks[top->block];
    if (b->dfa == MS_DFA_NONE) return false;
    const language *l = language_of(w, b);
    if (l->home == MS_DFA_NONE) return false;
    if ((top->a != l->home || top->c) && walk_bytes(w, m, top, before, stops, r, FEW_NODES)) return true;
    reset(r);
    ms_group_key key = {.form = (uint32_t)b->form, .part = top->c};
    if (b->form == MS_STRING_RAW) memcpy(key.stops, stops, sizeof key.stops);
    const ms_groups *g = groups_for(w, &key, true);
    if (!g) return false;
    /* The groups see a string of any text that has the same bounds: a state that every code point of a class keeps. */
    ms_frame any = *top;
    any.a = l->home;
    walk_groups(w, m, &any, before, g, r);
    exceptions x = {w, m, r, before, l->home, l->ungrouped ? UINT32_MAX : SOME_NODES, {.at = false}};
    w->frames[0] = *top;
    if (top->a != l->home || top->c) look_from(&x, 0, w->v->nodes);
    for (uint32_t i = 0; i < l->way_out_count; i++) look_outside(&x, top, l->ways_out[i]);
    drop_floors(&x);
    r->failed = r->failed || x.wrong.failed;
    free(x.wrong.floors);
    if (!x.left) reset(r);
    return x.left > 0;
}

static bool walk_by_groups(ms_leaf_walker *w, const ms_matcher *m, const ms_frame *top, uint32_t before,
                           const uint64_t stops[4], ms_result *r) {
    const ms_block *b = &m->g->blocks[top->block];
    language *l = b->dfa != MS_DFA_NONE ? language_of(w, b) : NULL;
    ms_group_key key;
    if (l && l->ungrouped) return false;
    if (l)
        key = l->key;
    else
        (void)ms_group_key_of(m->g, b, &key);
    key.part = top->c;
    if (b->form == MS_STRING_RAW) memcpy(key.stops, stops, sizeof key.stops);
    const ms_groups *g = groups_for(w, &key, false);
    if (!g) {
        if (l && walk_bytes(w, m, top, before, stops, r, FEW_NODES)) return true;
        reset(r);
        g = groups_for(w, &key, true);
    }
    if (!g || g->too_many) {
        if (g && l) l->ungrouped = true;
        return false;
    }
    walk_groups(w, m, top, before, g, r);
    return true;
}

void ms_leaf_walk(ms_leaf_walker *w, const ms_matcher *m, const ms_frame *f, const uint64_t stops[4], ms_result *r) {
    const ms_block *b = &m->g->blocks[f->block];
    if (b->kind == MS_BLOCK_TEXT) {
        walk_text(w->v, r);
        return;
    }
    ms_frame top = *f;
    top.parent = MS_FRAME_FLOOR;
    uint32_t before = ms_cost_frame(m, &top);
    bool bare = b->kind == MS_BLOCK_STRING && b->form == MS_STRING_RAW, begun = bare || top.phase != MS_PHASE_START;
    r->at = bare || b->kind == MS_BLOCK_DFA;
    if (b->kind == MS_BLOCK_STRING && begun && (!top.c || top.c == ms_string_escape)) {
        if (walk_nearly_any(w, m, &top, before, stops, r) || walk_by_groups(w, m, &top, before, stops, r)) return;
    }
    (void)walk_bytes(w, m, &top, before, stops, r, UINT32_MAX);
}

/* Whether a language is cut like one of these. */
static bool is_known(const ms_group_key *const *known, uint32_t count, const ms_group_key *key) {
    for (uint32_t i = 0; i < count; i++)
        if (ms_group_keys_equal(known[i], key)) return true;
    return false;
}

bool ms_leaf_warm(ms_leaf_walker *w) {
    static const uint64_t stops[4] = {0};
    ms_matcher *m;
    const ms_group_key *known[WARM_BLOCKS];
    uint32_t count = 0;
    if (ms_matcher_create(&m, w->g, NULL) != MS_OK) return false;
    for (uint32_t i = 1; i < w->g->count && count < WARM_BLOCKS; i++) {
        const ms_block *b = &w->g->blocks[i];
        if (b->kind != MS_BLOCK_STRING || b->form == MS_STRING_RAW || b->dfa == MS_DFA_NONE || b->cost >= MS_BOUND_NONE)
            continue;
        const language *l = language_of(w, b);
        if (l->ungrouped || is_known(known, count, &l->key)) continue;
        known[count++] = &l->key;
        if (groups_for(w, &l->key, false)) continue;
        ms_result *r = ms_result_create(w->v);
        if (r) ms_leaf_walk(w, m, &(ms_frame){.parent = MS_FRAME_FLOOR, .block = i, .phase = MS_PHASE_FIRST}, stops, r);
        ms_result_free(r);
    }
    ms_matcher_destroy(m);
    return true;
}
