/* grammar_mask.c: walks over the tree of a vocabulary, and what is kept of them (grammar_mask.h).
 *
 * A walk of one stack goes in two parts.  The local part has the top frame alone on a floor: tokens that stay inside are
 * allowed whatever is below; places where the frame ends are noted.  The second part goes on from those places with the
 * real frames below.  Results of the first are kept by frame, of both by whole stack.
 *
 * A result has, beside the mask, the tokens that raise the bound and by how much: with a limit those that raise it
 * beyond the slack are taken out.
 */
#include "text/grammar_mask.h"

#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "text/grammar_internal.h"
#include "text/grammar_vocabulary.h"
#include "text/grammar_way.h"

enum { CACHE_WORDS = 12 << 20, TABLE = 1 << 12 };
/* ------------------------------------------------------------------ results of walks */

typedef struct rise {
    uint32_t by, token;
} rise;

typedef struct result {
    uint64_t key[5]; /* by frame: its fields; by stack: kind and hash */
    struct result *next;
    uint64_t *mask;
    rise *rises; /* highest first */
    uint32_t rise_count, rise_cap;
    uint32_t *floors; /* nodes at which the top frame ends */
    uint32_t floor_count, floor_cap;
} result;

struct ms_mask_cache {
    const ms_grammar *g;
    const ms_vocabulary *v;
    result *table[TABLE];
    size_t words, used_words; /* of a mask; of all kept */
    uint64_t *scratch;
    uint32_t *from, *count; /* by depth: where the stacks of a walk begin in `sets`, and how many */
    ms_list sets;
    bool failed;
};

static void free_result(result *r) {
    if (!r) return;
    free(r->mask);
    free(r->rises);
    free(r->floors);
    free(r);
}

static void forget_all(ms_mask_cache *c) {
    for (size_t i = 0; i < TABLE; i++) {
        while (c->table[i]) {
            result *r = c->table[i];
            c->table[i] = r->next;
            free_result(r);
        }
    }
    c->used_words = 0;
}

ms_status ms_mask_cache_create(ms_mask_cache **out, const ms_grammar *g, const ms_vocabulary *v, ms_error *err) {
    *out = NULL;
    ms_mask_cache *c = calloc(1, sizeof *c);
    if (!c) return ms_fail_memory(err, "a mask cache", sizeof *c);
    c->g = g;
    c->v = v;
    c->words = ms_vocabulary_mask_words(v);
    c->scratch = malloc(c->words * sizeof *c->scratch);
    c->from = malloc(((size_t)v->deepest + 1) * sizeof *c->from);
    c->count = malloc(((size_t)v->deepest + 1) * sizeof *c->count);
    if (!c->scratch || !c->from || !c->count) {
        ms_status status = ms_fail_memory(err, "a mask cache", c->words * sizeof *c->scratch);
        ms_mask_cache_destroy(c);
        return status;
    }
    *out = c;
    return MS_OK;
}

void ms_mask_cache_destroy(ms_mask_cache *c) {
    if (!c) return;
    forget_all(c);
    free(c->scratch);
    free(c->from);
    free(c->count);
    free(c->sets.data);
    free(c);
}

static result *new_result(ms_mask_cache *c) {
    result *r = calloc(1, sizeof *r);
    uint64_t *mask = calloc(c->words, sizeof *mask);
    if (!r || !mask) {
        free(r);
        free(mask);
        c->failed = true;
        return NULL;
    }
    r->mask = mask;
    return r;
}

static result **bucket(ms_mask_cache *c, const uint64_t key[5]) {
    return &c->table[ms_fnv1a64(MS_FNV1A64_INIT, key, 5 * sizeof *key) >> 20 & (TABLE - 1)];
}

static result *find(ms_mask_cache *c, const uint64_t key[5]) {
    for (result *r = *bucket(c, key); r; r = r->next)
        if (memcmp(r->key, key, sizeof r->key) == 0) return r;
    return NULL;
}

static void keep(ms_mask_cache *c, result *r, const uint64_t key[5]) {
    memcpy(r->key, key, sizeof r->key);
    result **b = bucket(c, key);
    r->next = *b;
    *b = r;
    c->used_words += c->words + r->rise_cap + r->floor_cap / 2 + 16;
}

static bool grow_pairs(ms_mask_cache *c, void **data, uint32_t *cap, uint32_t count, size_t item) {
    if (count < *cap) return true;
    uint32_t more = *cap ? *cap * 2 : 64;
    void *p = realloc(*data, more * item);
    if (!p) {
        c->failed = true;
        return false;
    }
    *data = p;
    *cap = more;
    return true;
}

/* Notes a token that leads from bound `before` to `after`. */
static void allow(ms_mask_cache *c, result *r, uint32_t token, uint32_t before, uint32_t after) {
    uint64_t *word = &r->mask[token >> 6], bit = UINT64_C(1) << (token & 63);
    *word |= bit;
    if (after <= before) return;
    if (!grow_pairs(c, (void **)&r->rises, &r->rise_cap, r->rise_count, sizeof *r->rises)) return;
    r->rises[r->rise_count++] = (rise){after - before, token};
}

static int by_rise(const void *x, const void *y) {
    const rise *a = x, *b = y;
    return a->by != b->by ? (a->by < b->by ? 1 : -1) : (a->token > b->token) - (a->token < b->token);
}

/* ------------------------------------------------------------------ walks */

typedef struct walk {
    ms_mask_cache *c;
    ms_matcher *m;
    result *r;
    uint32_t before; /* bound of the stack */
    bool local;      /* places where the floor is reached are noted */
} walk;

/* The stacks at `depth`, moved by one byte to depth + 1; their lowest bound, MS_BOUND_NONE: none. */
static uint32_t step_set(walk *w, uint32_t depth, uint8_t byte, bool *floor) {
    ms_mask_cache *c = w->c;
    ms_matcher *m = w->m;
    uint32_t best = MS_BOUND_NONE, kept = c->from[depth] + c->count[depth];
    c->sets.count = kept;
    if (!ms_match_log(m, byte)) return best;
    ms_match_epoch(m);
    for (uint32_t i = 0; i < c->count[depth]; i++) ms_match_step(m, c->sets.data[c->from[depth] + i], byte, &c->sets);
    c->from[depth + 1] = kept;
    for (uint32_t i = kept; i < c->sets.count; i++) {
        uint32_t f = c->sets.data[i];
        if (f == MS_FRAME_FLOOR) {
            *floor = true;
            continue;
        }
        if (m->frames[f].total < best) best = m->frames[f].total;
        c->sets.data[kept++] = f;
    }
    c->sets.count = kept;
    c->count[depth + 1] = kept - c->from[depth + 1];
    return best;
}

/* Nodes first..end, whose parent has the stacks at depth `base`.  Frames made on the way are forgotten in between, when
 * they are many. */
static void walk_range(walk *w, uint32_t first, uint32_t end, uint32_t log_base) {
    const ms_vocabulary *v = w->c->v;
    uint32_t base = first < end ? v->depth[first] - 1u : 0;
    ms_match_mark mark = ms_match_marked(w->m);
    for (uint32_t n = first; n < end && !w->m->failed && !w->c->failed;) {
        uint32_t depth = v->depth[n] - 1u;
        w->m->log_len = log_base + depth - base;
        if (depth == base && w->m->count > mark.frames + 20000) ms_match_back(w->m, mark);
        bool floor = false;
        uint32_t best = step_set(w, depth, v->byte[n], &floor);
        if (floor && w->local && grow_pairs(w->c, (void **)&w->r->floors, &w->r->floor_cap, w->r->floor_count, sizeof(uint32_t))) {
            w->r->floors[w->r->floor_count++] = n;
        }
        if (best >= MS_BOUND_NONE) {
            n = v->end[n];
            continue;
        }
        if (v->token[n] != MS_NO_TOKEN) allow(w->c, w->r, v->token[n], w->before, best);
        n++;
    }
    w->m->log_len = log_base;
}

static void start_set(ms_mask_cache *c, uint32_t depth) {
    c->from[depth] = c->sets.count = 0;
    c->count[depth] = 0;
}

/* The part of a walk that stays above the frames below `top`. */
static result *walk_local(ms_mask_cache *c, ms_matcher *m, const ms_frame *top) {
    result *r = new_result(c);
    if (!r) return NULL;
    ms_match_mark mark = ms_match_marked(m);
    ms_frame alone = *top;
    alone.parent = MS_FRAME_FLOOR;
    uint32_t f = ms_match_frame(m, &alone);
    if (f != MS_DFA_NONE) {
        start_set(c, 0);
        ms_list_push(m, &c->sets, f);
        c->count[0] = 1;
        walk w = {c, m, r, m->frames[f].total, true};
        walk_range(&w, 0, c->v->nodes, m->log_len);
    }
    ms_match_back(m, mark);
    return r;
}

/* Bytes of the way to a node: those of the first token below it. */
static const uint8_t *path_of(const ms_vocabulary *v, uint32_t node) {
    size_t len;
    while (v->token[node] == MS_NO_TOKEN) node++;
    return ms_tokenizer_token(v->tokenizer, v->token[node], &len);
}

/* From the noted places on with the frames below: adds to *r. */
static void walk_below(ms_mask_cache *c, ms_matcher *m, uint32_t leaf, const result *local, result *r) {
    const ms_vocabulary *v = c->v;
    uint32_t parent = m->frames[leaf].parent, phase = m->frames[parent].phase;
    bool text_matters = phase == MS_PHASE_EXTRA || phase == MS_PHASE_ITEM;
    ms_match_mark mark = ms_match_marked(m);
    walk w = {c, m, r, m->frames[leaf].total, false};
    for (uint32_t i = 0; i < local->floor_count && !m->failed && !c->failed; i++) {
        uint32_t node = local->floors[i], depth = v->depth[node];
        ms_match_back(m, mark);
        if (!text_matters && v->end[node] == node + 1) { /* nothing below the node */
            allow(c, r, v->token[node], w.before, m->frames[parent].total);
            continue;
        }
        const uint8_t *path = path_of(v, node);
        for (uint32_t k = 0; k < depth; k++) (void)ms_match_log(m, path[k]);
        start_set(c, depth);
        ms_match_epoch(m);
        ms_match_resume(m, parent, &c->sets);
        c->count[depth] = c->sets.count;
        uint32_t best = MS_BOUND_NONE;
        for (uint32_t k = 0; k < c->sets.count; k++)
            if (m->frames[c->sets.data[k]].total < best) best = m->frames[c->sets.data[k]].total;
        if (best >= MS_BOUND_NONE) continue;
        if (v->token[node] != MS_NO_TOKEN) allow(c, r, v->token[node], w.before, best);
        walk_range(&w, node + 1, v->end[node], m->log_len);
    }
    ms_match_back(m, mark);
}

/* ------------------------------------------------------------------ one stack */

static bool leaf_is_shared(const ms_matcher *m, const ms_frame *f) {
    const ms_frame *up = &m->frames[f->parent];
    bool tracked = up->seen && (up->phase == MS_PHASE_EXTRA || up->phase == MS_PHASE_ITEM);
    return !f->seen && !tracked;
}

/* Keys among texts that must be new: with any text as the language, another one is never far. */
static bool leaf_is_free(const ms_matcher *m, const ms_frame *f) {
    const ms_block *b = &m->g->blocks[f->block];
    return !f->seen && b->kind == MS_BLOCK_STRING && b->dfa == MS_DFA_NONE && b->max == MS_UNLIMITED;
}

static result *local_result(ms_mask_cache *c, ms_matcher *m, const ms_frame *f) {
    uint64_t key[5] = {1 + f->phase, (uint64_t)f->block << 32 | f->a, (uint64_t)f->b << 32 | f->c,
                       (uint64_t)f->d << 32 | f->start, 0};
    result *r = find(c, key);
    if (r) return r;
    r = walk_local(c, m, f);
    if (r && !c->failed && !m->failed) keep(c, r, key);
    return r;
}

/* The whole result of a stack; *owned: the caller frees it. */
static result *stack_result(ms_mask_cache *c, ms_matcher *m, uint32_t leaf, bool loose, bool *owned) {
    ms_frame f = m->frames[leaf];
    uint64_t key[5] = {0, f.stack, 0, 0, 0};
    *owned = false;
    result *r = f.stack ? find(c, key) : NULL;
    if (r) return r;
    r = new_result(c);
    if (!r) return NULL;
    if (leaf_is_shared(m, &f) || (loose && leaf_is_free(m, &f))) {
        const result *local = local_result(c, m, &f);
        if (local) {
            memcpy(r->mask, local->mask, c->words * sizeof *r->mask);
            for (uint32_t i = 0; i < local->rise_count; i++) allow(c, r, local->rises[i].token, 0, local->rises[i].by);
            walk_below(c, m, leaf, local, r);
        }
    } else {
        ms_match_mark mark = ms_match_marked(m);
        start_set(c, 0);
        ms_list_push(m, &c->sets, leaf);
        c->count[0] = 1;
        walk w = {c, m, r, f.total, false};
        walk_range(&w, 0, c->v->nodes, m->log_len);
        ms_match_back(m, mark);
    }
    if (r->rise_count) qsort(r->rises, r->rise_count, sizeof *r->rises, by_rise);
    if (f.stack && !c->failed && !m->failed) keep(c, r, key);
    else *owned = true;
    return r;
}

static void add_mask(const ms_mask_cache *c, const result *r, uint64_t slack, uint64_t *mask) {
    const uint64_t *from = r->mask;
    if (r->rise_count && r->rises[0].by > slack) {
        memcpy(c->scratch, r->mask, c->words * sizeof *mask);
        for (uint32_t i = 0; i < r->rise_count && r->rises[i].by > slack; i++) {
            c->scratch[r->rises[i].token >> 6] &= ~(UINT64_C(1) << (r->rises[i].token & 63));
        }
        from = c->scratch;
    }
    for (size_t i = 0; i < c->words; i++) mask[i] |= from[i];
}

/* ------------------------------------------------------------------ interface */

static ms_status check(const ms_mask_cache *c, const ms_matcher *m, ms_error *err) {
    if (c->failed || m->failed) return ms_fail_memory(err, "a token mask", c->words * sizeof(uint64_t));
    return MS_OK;
}

ms_status ms_grammar_tokens_needed(const ms_grammar *g, const ms_vocabulary *v, uint32_t *tokens, ms_error *err) {
    ms_matcher *m;
    uint32_t first;
    *tokens = 0;
    MS_TRY(ms_matcher_create(&m, g, err));
    bool good = ms_way_find(m, v, tokens, &first);
    ms_matcher_destroy(m);
    return good ? MS_OK : ms_fail_memory(err, "the shortest reply", *tokens);
}

ms_status ms_mask_tokens_needed(ms_mask_cache *c, ms_matcher *m, uint32_t *tokens, ms_error *err) {
    uint32_t first;
    if (!ms_way_find(m, c->v, tokens, &first)) c->failed = true;
    return check(c, m, err);
}

ms_status ms_mask_next(ms_mask_cache *c, ms_matcher *m, uint32_t remaining, uint64_t *mask, ms_error *err) {
    const ms_vocabulary *v = c->v;
    if (c->used_words > CACHE_WORDS) forget_all(c);
    memset(mask, 0, c->words * sizeof *mask);
    for (uint32_t i = 0; i < m->stacks.count; i++) {
        uint32_t leaf = m->stacks.data[i], bound = m->frames[leaf].total;
        if (leaf <= MS_FRAME_FLOOR || bound >= remaining) continue; /* bound == remaining: below */
        const ms_block *b = &m->g->blocks[m->frames[leaf].block];
        if (b->kind == MS_BLOCK_CONTROL) {
            uint32_t id = v->first_control + b->symbol - MS_SYMBOL_CONTROL;
            if (id < v->logits) mask[id >> 6] |= UINT64_C(1) << (id & 63);
            continue;
        }
        bool owned;
        uint64_t slack = remaining == MS_UNLIMITED ? UINT64_MAX : (uint64_t)remaining - 1 - bound;
        result *r = stack_result(c, m, leaf, slack > 4096, &owned);
        if (r) add_mask(c, r, slack, mask);
        if (owned) free_result(r);
        MS_TRY(check(c, m, err));
    }
    bool any = false;
    for (size_t i = 0; i < c->words && !any; i++) any = mask[i] != 0;
    if (!any) {
        uint32_t first, tokens;
        if (!ms_way_find(m, v, &tokens, &first)) c->failed = true;
        MS_TRY(check(c, m, err));
        if (first == MS_NO_TOKEN) return ms_fail(err, MS_ERR_USAGE, "grammar: expected a state in which a token fits");
        mask[first >> 6] |= UINT64_C(1) << (first & 63);
    }
    return MS_OK;
}
