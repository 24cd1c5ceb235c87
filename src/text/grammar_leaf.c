/* grammar_leaf.c: see grammar_leaf.h. */
#include "text/grammar_leaf.h"

#include <stdlib.h>
#include <string.h>

#include "text/grammar_groups.h"

enum { FEW_NODES = 20000, MAX_GROUPINGS = 24 };

/* What is known of an automaton over code points. */
typedef struct language {
    bool known, ungrouped; /* ungrouped: groups would be too many */
    uint32_t universal;    /* the state that any text keeps and that accepts; MS_DFA_NONE: there is none */
    uint8_t *total;        /* by state: whether any text goes on from it; NULL: of none */
    uint32_t farthest;     /* largest distance */
} language;

struct ms_leaf_walker {
    const ms_grammar *g;
    const ms_vocabulary *v;
    language *languages; /* by automaton */
    ms_groups *groups;
    uint32_t group_count;
    ms_frame *frames; /* by depth */
    struct place {
        uint32_t a, b;
        bool alive;
    } *places; /* by group */
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
    for (uint32_t i = 0; w->languages && i < w->g->dfa_count; i++) free(w->languages[i].total);
    while (w->groups) {
        ms_groups *g = w->groups;
        w->groups = g->next;
        ms_groups_free(g);
    }
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

/* Whether the state has an edge for every code point. */
static bool is_full(const ms_dfa *d, uint32_t state) {
    uint32_t next = 0;
    for (uint32_t e = d->first[state]; e < d->first[state + 1]; e++) {
        if (d->edges[e].lo > next && !(next == 0xD800 && d->edges[e].lo == 0xE000)) return false;
        next = d->edges[e].hi + 1;
    }
    return next == 0x110000;
}

static bool is_universal(const ms_dfa *d, uint32_t state) {
    for (uint32_t e = d->first[state]; e < d->first[state + 1]; e++)
        if (d->edges[e].to != state) return false;
    return d->accept[state] && is_full(d, state);
}

/* Takes out the states from which some text does not go on, until all that are left lead to each other. */
static void find_total(const ms_dfa *d, uint8_t *total) {
    enum { ROUNDS = 64 };
    bool changed = true;
    for (uint32_t q = 0; q < d->states; q++) total[q] = is_full(d, q);
    for (int round = 0; changed; round++) {
        changed = false;
        for (uint32_t q = d->states; q-- > 0;) {
            for (uint32_t e = d->first[q]; total[q] && e < d->first[q + 1]; e++) {
                if (total[d->edges[e].to]) continue;
                total[q] = 0;
                changed = true;
            }
        }
        if (round == ROUNDS && changed) { /* long chains: they are walked otherwise */
            memset(total, 0, d->states);
            return;
        }
    }
}

static language *language_of(ms_leaf_walker *w, const ms_block *b) {
    language *l = &w->languages[b->dfa];
    const ms_dfa *d = &w->g->dfas[b->dfa];
    if (l->known) return l;
    l->known = true;
    l->universal = MS_DFA_NONE;
    for (uint32_t q = 0; q < d->states; q++) {
        if (d->dist[q] > l->farthest) l->farthest = d->dist[q];
        if (l->universal == MS_DFA_NONE && is_universal(d, q)) l->universal = q;
    }
    if (l->universal == MS_DFA_NONE || !(l->total = malloc(d->states))) return l;
    find_total(d, l->total);
    return l;
}

ms_frame ms_leaf_canonical(ms_leaf_walker *w, const ms_matcher *m, const ms_frame *f) {
    const ms_block *b = &m->g->blocks[f->block];
    ms_frame out = *f;
    if (b->kind != MS_BLOCK_STRING) return out;
    uint64_t reach = (uint64_t)w->v->deepest + (b->dfa != MS_DFA_NONE ? language_of(w, b)->farthest : 0) + 2;
    uint64_t below_max = b->max == MS_UNLIMITED ? UINT64_MAX : b->max < reach ? 0 : b->max - reach; /* far from max up to here */
    if (f->b >= b->min) { /* the lower bound is behind */
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

/* false: more than `budget` nodes; the result is then not to be used. */
static bool walk_bytes(ms_leaf_walker *w, const ms_matcher *m, const ms_frame *top, uint32_t before,
                       const uint64_t stops[4], ms_result *r, uint32_t budget) {
    const ms_vocabulary *v = w->v;
    const ms_block *b = &m->g->blocks[top->block];
    bool bare = b->kind == MS_BLOCK_STRING && b->form == MS_STRING_RAW;
    w->frames[0] = *top;
    for (uint32_t n = 0; n < v->nodes && !r->failed; budget--) {
        if (!budget) return false;
        uint32_t depth = v->depth[n], cost = MS_BOUND_NONE;
        ms_frame f = w->frames[depth - 1];
        if (bare && depth > 1 && is_stop(stops, v->byte[n]) && ms_string_may_end(m, &f)) ms_result_floor(r, n);
        int what = step(m, &f, b, v->byte[n]);
        if (what == 1) cost = ms_cost_frame(m, &f);
        if (what == 2) ms_result_floor(r, n);
        if (cost >= MS_BOUND_NONE) {
            n = v->end[n];
            continue;
        }
        if (b->kind == MS_BLOCK_DFA && m->g->dfas[b->dfa].accept[f.a]) ms_result_floor(r, n);
        w->frames[depth] = f;
        if (v->token[n] != MS_NO_TOKEN) ms_result_allow(r, v->token[n], before, cost);
        n++;
    }
    return true;
}

static void walk_text(const ms_vocabulary *v, ms_result *r) {
    for (uint32_t n = 0; n < v->nodes; n++)
        if (v->token[n] != MS_NO_TOKEN) ms_result_allow(r, v->token[n], 0, 0);
}

/* ------------------------------------------------------------------ group by group */

/* NULL: there are none, and none can be made. */
static const ms_groups *groups_for(ms_leaf_walker *w, const ms_group_key *key, bool make, bool *too_many) {
    for (ms_groups *g = w->groups; g; g = g->next)
        if (memcmp(&g->key, key, sizeof *key) == 0) return g;
    if (!make || w->group_count == MAX_GROUPINGS) return NULL;
    ms_groups *g = ms_groups_make(w->v, key, too_many);
    if (!g) return NULL;
    g->next = w->groups;
    w->groups = g;
    w->group_count++;
    return g;
}

static void allow_group(const ms_vocabulary *v, const ms_groups *g, uint32_t at, uint32_t before, uint32_t after,
                        ms_result *r) {
    const ms_group *x = &g->groups[at];
    if (x->mask && after <= before) {
        size_t words = ms_vocabulary_mask_words(v);
        for (size_t i = 0; i < words; i++) r->mask[i] |= x->mask[i];
        return;
    }
    for (uint32_t t = x->tokens; t < g->groups[at + 1].tokens; t++) ms_result_allow(r, g->tokens[t], before, after);
}

static void allow_parts(const ms_matcher *m, const ms_groups *g, uint32_t at, ms_frame f, uint32_t before, ms_result *r) {
    uint32_t cost = MS_BOUND_NONE, known = 0;
    for (uint32_t p = g->groups[at].parts; p < g->groups[at + 1].parts; p++) {
        if (g->parts[p].part != known) {
            f.c = known = g->parts[p].part;
            cost = ms_string_cost(m, &f);
        }
        if (cost < MS_BOUND_NONE) ms_result_allow(r, g->parts[p].token, before, cost);
    }
}

static void walk_groups(ms_leaf_walker *w, const ms_matcher *m, const ms_frame *top, uint32_t before, const ms_groups *g,
                        ms_result *r) {
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
        allow_group(w->v, g, i, before, cost, r);
        allow_parts(m, g, i, f, before, r);
        if (x->floors == g->groups[i + 1].floors || !ms_string_may_end(m, &f)) continue;
        for (uint32_t k = x->floors; k < g->groups[i + 1].floors; k++) ms_result_floor(r, g->floors[k]);
    }
}

/* Any text goes on, but as long as it may still become a certain one, it costs more or must not end: those texts are
 * looked at one by one, as what the groups found holds for the others.  Floors that are none are taken out. */
static void walk_exceptions(ms_leaf_walker *w, const ms_matcher *m, const ms_frame *top, uint32_t before,
                            uint32_t universal, ms_result *r) {
    const ms_vocabulary *v = w->v;
    const ms_block *b = &m->g->blocks[top->block];
    ms_result wrong = {0};
    w->frames[0] = *top;
    for (uint32_t n = 0; n < v->nodes && !r->failed;) {
        uint32_t depth = v->depth[n];
        ms_frame f = w->frames[depth - 1];
        int what = step(m, &f, b, v->byte[n]);
        if (what != 1) {
            uint32_t part = w->frames[depth - 1].c, cp;
            if (!what && ms_string_decode(b->form, &part, v->byte[n], &cp) == MS_DECODED_END) ms_result_floor(&wrong, n);
            n = v->end[n];
            continue;
        }
        if (f.a == universal) {
            n = v->end[n];
            continue;
        }
        w->frames[depth] = f;
        if (v->token[n] != MS_NO_TOKEN) ms_result_allow(r, v->token[n], before, ms_string_cost(m, &f));
        n++;
    }
    uint32_t kept = 0;
    for (uint32_t i = 0; i < r->floor_count; i++) {
        bool out = false;
        for (uint32_t k = 0; k < wrong.floor_count && !out; k++) out = wrong.floors[k] == r->floors[i];
        if (!out) r->floors[kept++] = r->floors[i];
    }
    r->floor_count = kept;
    r->failed = r->failed || wrong.failed;
    free(wrong.floors);
}

static void reset(ms_result *r, const ms_vocabulary *v) {
    memset(r->mask, 0, ms_vocabulary_mask_words(v) * sizeof *r->mask);
    r->rise_count = r->floor_count = 0;
}

/* Where all tokens but a few are alike.  false: not so. */
static bool walk_nearly_any(ms_leaf_walker *w, const ms_matcher *m, const ms_frame *top, uint32_t before, ms_result *r) {
    const ms_block *b = &m->g->blocks[top->block];
    if (b->dfa == MS_DFA_NONE || b->form == MS_STRING_RAW || b->max != MS_UNLIMITED) return false;
    const language *l = language_of(w, b);
    if (l->universal == MS_DFA_NONE || !l->total || !l->total[top->a] || top->a == l->universal) return false;
    ms_group_key key = {.form = (uint32_t)b->form, .part = top->c};
    bool too_many;
    const ms_groups *g = groups_for(w, &key, true, &too_many);
    if (!g) return false;
    ms_frame any = *top;
    any.a = l->universal;
    walk_groups(w, m, &any, before, g, r);
    walk_exceptions(w, m, top, before, l->universal, r);
    return true;
}

static bool walk_by_groups(ms_leaf_walker *w, const ms_matcher *m, const ms_frame *top, uint32_t before,
                           const uint64_t stops[4], ms_result *r) {
    const ms_block *b = &m->g->blocks[top->block];
    language *l = b->dfa != MS_DFA_NONE ? language_of(w, b) : NULL;
    ms_group_key key;
    if (l && l->universal == top->a) { /* any text from here on */
        memset(&key, 0, sizeof key);
        key.form = (uint32_t)b->form;
    } else if ((l && l->ungrouped) || !ms_group_key_of(m->g, b, &key)) {
        if (l) l->ungrouped = true;
        return false;
    }
    key.part = top->c;
    if (b->form == MS_STRING_RAW) memcpy(key.stops, stops, sizeof key.stops);
    bool too_many = false;
    const ms_groups *g = groups_for(w, &key, false, &too_many);
    if (!g) {
        if (l && walk_bytes(w, m, top, before, stops, r, FEW_NODES)) return true;
        reset(r, w->v);
        g = groups_for(w, &key, true, &too_many);
        if (l && too_many) l->ungrouped = true;
    }
    if (g) walk_groups(w, m, top, before, g, r);
    return g != NULL;
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
    r->at = bare;
    if (b->kind == MS_BLOCK_STRING && begun && (!top.c || top.c == ms_string_escape)) {
        if (walk_nearly_any(w, m, &top, before, r) || walk_by_groups(w, m, &top, before, stops, r)) return;
    }
    (void)walk_bytes(w, m, &top, before, stops, r, UINT32_MAX);
}
