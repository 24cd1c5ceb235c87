/* grammar_mask.c: walks over the tree of a vocabulary, and what is kept of them (grammar_mask.h).
 *
 * A walk of one stack goes in two parts.  The local part has the top frame alone on a floor: tokens that stay inside are
 * allowed whatever is below; places where the frame ends are noted.  The second part goes on from there with the real
 * frames below: what follows those places, put together as one tree (grammar_result.h).  Results of the first are kept by
 * frame, of both by whole stack.
 *
 * A result has, beside the mask, the tokens that raise the bound and by how much: with a limit those that raise it
 * beyond the slack are taken out.
 */
#include "text/grammar_mask.h"

#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "text/grammar_internal.h"
#include "text/grammar_leaf.h"
#include "text/grammar_result.h"
#include "text/grammar_vocabulary.h"
#include "text/grammar_way.h"

enum { CACHE_WORDS = 12 << 20, TABLE = 1 << 12, KEY = 9 };

/* ------------------------------------------------------------------ what is kept */

typedef struct kept {
    uint64_t key[KEY]; /* by frame: its fields and the bytes that may follow; by stack: kind and hash */
    struct kept *next;
    ms_result *result;
} kept;

struct ms_mask_cache {
    const ms_grammar *g;
    const ms_vocabulary *v;
    ms_leaf_walker *leaves;
    kept *table[TABLE];
    size_t words, used_words; /* of a mask; of all kept */
    uint64_t *scratch;
    uint32_t *from, *count; /* by depth: where the stacks of a walk begin in `sets`, and how many */
    uint32_t *suffix;       /* by depth: the suffix that is walked */
    ms_list sets;
    bool failed;
};

static void forget_all(ms_mask_cache *c) {
    for (size_t i = 0; i < TABLE; i++) {
        while (c->table[i]) {
            kept *k = c->table[i];
            c->table[i] = k->next;
            ms_result_free(k->result);
            free(k);
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
    c->leaves = ms_leaf_walker_create(g, v);
    c->scratch = malloc(c->words * sizeof *c->scratch);
    c->from = malloc(((size_t)v->deepest + 1) * sizeof *c->from);
    c->count = malloc(((size_t)v->deepest + 1) * sizeof *c->count);
    c->suffix = malloc(((size_t)v->deepest + 1) * sizeof *c->suffix);
    if (!c->leaves || !c->scratch || !c->from || !c->count || !c->suffix) {
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
    ms_leaf_walker_destroy(c->leaves);
    free(c->scratch);
    free(c->from);
    free(c->count);
    free(c->suffix);
    free(c->sets.data);
    free(c);
}

static ms_result *new_result(ms_mask_cache *c) {
    ms_result *r = ms_result_create(c->v);
    if (!r) c->failed = true;
    return r;
}

static kept **bucket(ms_mask_cache *c, const uint64_t key[KEY]) {
    return &c->table[ms_fnv1a64(MS_FNV1A64_INIT, key, KEY * sizeof *key) >> 20 & (TABLE - 1)];
}

static ms_result *find(ms_mask_cache *c, const uint64_t key[KEY]) {
    for (kept *k = *bucket(c, key); k; k = k->next)
        if (memcmp(k->key, key, sizeof k->key) == 0) return k->result;
    return NULL;
}

static bool keep(ms_mask_cache *c, ms_result *r, const uint64_t key[KEY]) {
    kept *k = malloc(sizeof *k), **b = bucket(c, key);
    if (!k) return false;
    *k = (kept){.next = *b, .result = r};
    memcpy(k->key, key, sizeof k->key);
    *b = k;
    c->used_words += ms_result_words(r, c->v) + sizeof *k / sizeof(uint64_t);
    return true;
}

/* ------------------------------------------------------------------ walks with frames */

typedef struct walk {
    ms_mask_cache *c;
    ms_matcher *m;
    ms_result *r;
    uint32_t before; /* bound of the stack */
    bool local;      /* places where the floor is reached are noted */
} walk;

static uint32_t least_bound(const walk *w, uint32_t depth) {
    uint32_t best = MS_BOUND_NONE;
    for (uint32_t i = 0; i < w->c->count[depth]; i++) {
        uint32_t total = w->m->frames[w->c->sets.data[w->c->from[depth] + i]].total;
        if (total < best) best = total;
    }
    return best;
}

/* The stacks at `depth`, moved by one byte to depth + 1; their lowest bound, MS_BOUND_NONE: none. */
static uint32_t step_set(walk *w, uint32_t depth, uint8_t byte, bool *floor) {
    ms_mask_cache *c = w->c;
    ms_matcher *m = w->m;
    uint32_t end = c->from[depth] + c->count[depth];
    c->sets.count = end;
    c->from[depth + 1] = end;
    c->count[depth + 1] = 0;
    if (!ms_match_log(m, byte)) return MS_BOUND_NONE;
    ms_match_epoch(m);
    for (uint32_t i = 0; i < c->count[depth]; i++) ms_match_step(m, c->sets.data[c->from[depth] + i], byte, &c->sets);
    for (uint32_t i = end; i < c->sets.count; i++) {
        uint32_t f = c->sets.data[i];
        if (f == MS_FRAME_FLOOR) *floor = true;
        else c->sets.data[end++] = f;
    }
    c->sets.count = end;
    c->count[depth + 1] = end - c->from[depth + 1];
    return least_bound(w, depth + 1);
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
        if (floor && w->local) ms_result_floor(w->r, n);
        if (best >= MS_BOUND_NONE) {
            n = v->end[n];
            continue;
        }
        if (v->token[n] != MS_NO_TOKEN) ms_result_allow(w->r, v->token[n], w->before, best);
        n++;
    }
    w->m->log_len = log_base;
}

static void start_set(ms_mask_cache *c, uint32_t depth) {
    c->from[depth] = c->sets.count = 0;
    c->count[depth] = 0;
}

static void walk_frames(ms_mask_cache *c, ms_matcher *m, uint32_t leaf, bool local, ms_result *r) {
    start_set(c, 0);
    ms_list_push(m, &c->sets, leaf);
    c->count[0] = 1;
    walk w = {c, m, r, m->frames[leaf].total, local};
    walk_range(&w, 0, c->v->nodes, m->log_len);
}

/* The part of a walk that stays above the frames below `top`. */
static ms_result *walk_local(ms_mask_cache *c, ms_matcher *m, const ms_frame *top, const uint64_t stops[4]) {
    ms_result *r = new_result(c);
    if (!r) return NULL;
    if (ms_leaf_walks(m, top)) {
        ms_leaf_walk(c->leaves, m, top, stops, r);
    } else {
        ms_match_mark mark = ms_match_marked(m);
        ms_frame alone = *top;
        alone.parent = MS_FRAME_FLOOR;
        uint32_t f = ms_match_frame(m, &alone);
        if (f != MS_DFA_NONE) walk_frames(c, m, f, true, r);
        ms_match_back(m, mark);
    }
    ms_result_suffixes(r, c->v);
    ms_result_sort(r);
    return r;
}

/* ------------------------------------------------------------------ below the top frame */

/* The stacks under `leaf` once it has ended, at a depth. */
static void resume_below(walk *w, uint32_t leaf, uint32_t depth) {
    start_set(w->c, depth);
    ms_match_epoch(w->m);
    ms_match_resume(w->m, w->m->frames[leaf].parent, &w->c->sets);
    w->c->count[depth] = w->c->sets.count;
}

/* Under a text that must be new every place where it may end is another text. */
static void walk_each_floor(walk *w, uint32_t leaf, const ms_result *local) {
    const ms_vocabulary *v = w->c->v;
    ms_matcher *m = w->m;
    ms_match_mark mark = ms_match_marked(m);
    for (uint32_t i = 0; i < local->floor_count && !m->failed && !w->c->failed; i++) {
        uint32_t node = local->floors[i], depth = v->depth[node] - (local->at ? 1u : 0u);
        ms_match_back(m, mark);
        const uint8_t *path = ms_vocabulary_path(v, node);
        for (uint32_t k = 0; k < depth; k++) (void)ms_match_log(m, path[k]);
        resume_below(w, leaf, depth);
        uint32_t best = least_bound(w, depth);
        if (best >= MS_BOUND_NONE) continue;
        if (!local->at && v->token[node] != MS_NO_TOKEN) ms_result_allow(w->r, v->token[node], w->before, best);
        walk_range(w, local->at ? node : node + 1, v->end[node], m->log_len);
    }
    ms_match_back(m, mark);
}

static void allow_suffix(walk *w, const ms_result *local, uint32_t suffix, uint32_t best) {
    for (uint32_t t = local->suffixes[suffix].tokens; t; t = local->suffix_tokens[t - 1].next)
        ms_result_allow(w->r, local->suffix_tokens[t - 1].token, w->before, best);
}

/* From behind the frame's end on with the frames below. */
static void walk_suffixes(walk *w, uint32_t leaf, const ms_result *local) {
    ms_matcher *m = w->m;
    ms_match_mark mark = ms_match_marked(m);
    uint32_t depth = 0, *at = w->c->suffix, log = m->log_len;
    resume_below(w, leaf, 0);
    uint32_t best = least_bound(w, 0);
    if (best < MS_BOUND_NONE) allow_suffix(w, local, 0, best);
    at[1] = best < MS_BOUND_NONE ? local->suffixes[0].child : 0;
    for (depth = 1; depth && !m->failed && !w->c->failed;) {
        uint32_t s = at[depth];
        if (!s) {
            depth--;
            continue;
        }
        at[depth] = local->suffixes[s].next;
        m->log_len = log + depth - 1;
        bool floor = false;
        best = step_set(w, depth - 1, local->suffixes[s].byte, &floor);
        if (best >= MS_BOUND_NONE) continue;
        allow_suffix(w, local, s, best);
        if (local->suffixes[s].child) at[++depth] = local->suffixes[s].child;
    }
    ms_match_back(m, mark);
}

/* ------------------------------------------------------------------ one stack */

static bool text_matters(const ms_matcher *m, const ms_frame *f) {
    const ms_frame *up = &m->frames[f->parent];
    return up->phase == MS_PHASE_EXTRA || up->phase == MS_PHASE_ITEM;
}

static bool leaf_is_shared(const ms_matcher *m, const ms_frame *f) {
    return !f->seen && !(m->frames[f->parent].seen && text_matters(m, f));
}

/* Keys among texts that must be new: with any text as the language, another one is never far. */
static bool leaf_is_free(const ms_matcher *m, const ms_frame *f) {
    const ms_block *b = &m->g->blocks[f->block];
    return !f->seen && b->kind == MS_BLOCK_STRING && b->dfa == MS_DFA_NONE && b->max == MS_UNLIMITED;
}

/* Bytes that may follow an automaton or a bare string. */
static void bytes_behind(ms_mask_cache *c, ms_matcher *m, uint32_t leaf, uint64_t stops[4]) {
    const ms_block *b = &m->g->blocks[m->frames[leaf].block];
    memset(stops, 0, 4 * sizeof *stops);
    if (b->kind != MS_BLOCK_DFA && (b->kind != MS_BLOCK_STRING || b->form != MS_STRING_RAW)) return;
    uint64_t symbols[MS_SYMBOLS / 64] = {0};
    ms_match_mark mark = ms_match_marked(m);
    walk w = {.c = c, .m = m};
    resume_below(&w, leaf, 0);
    for (uint32_t i = 0; i < c->sets.count; i++) ms_match_candidates(m, c->sets.data[i], symbols);
    memcpy(stops, symbols, 4 * sizeof *stops);
    ms_match_back(m, mark);
}

static ms_result *local_result(ms_mask_cache *c, ms_matcher *m, uint32_t leaf) {
    uint64_t stops[4];
    bytes_behind(c, m, leaf, stops);
    ms_frame f = ms_leaf_canonical(c->leaves, m, &m->frames[leaf]);
    uint64_t key[KEY] = {1 + f.phase, (uint64_t)f.block << 32 | f.a, (uint64_t)f.b << 32 | f.c,
                         (uint64_t)f.d << 32 | f.start, 0, stops[0], stops[1], stops[2], stops[3]};
    ms_result *r = find(c, key);
    if (r) return r;
    r = walk_local(c, m, &f, stops);
    if (r && !r->failed && !m->failed && keep(c, r, key)) return r;
    c->failed = true;
    ms_result_free(r);
    return NULL;
}

/* What is found of a whole stack: the part below, or, where the text of the leaf matters, all of it.  *owned: the caller
 * frees it. */
static ms_result *stack_result(ms_mask_cache *c, ms_matcher *m, uint32_t leaf, const ms_result *local, bool *owned) {
    uint64_t key[KEY] = {0, m->frames[leaf].stack};
    *owned = false;
    ms_result *r = key[1] ? find(c, key) : NULL;
    if (r) return r;
    r = new_result(c);
    if (!r) return NULL;
    *owned = true;
    if (!local) {
        ms_match_mark mark = ms_match_marked(m);
        walk_frames(c, m, leaf, false, r);
        ms_match_back(m, mark);
    } else if (local->floor_count) {
        walk w = {c, m, r, m->frames[leaf].total, false};
        if (text_matters(m, &m->frames[leaf])) walk_each_floor(&w, leaf, local);
        else walk_suffixes(&w, leaf, local);
    }
    ms_result_sort(r);
    if (r->failed) c->failed = true;
    if (key[1] && !c->failed && !m->failed) *owned = !keep(c, r, key);
    return r;
}

static void add_stack(ms_mask_cache *c, ms_matcher *m, uint32_t leaf, uint64_t slack, uint64_t *mask) {
    const ms_frame *f = &m->frames[leaf];
    ms_result *local = NULL;
    bool owned;
    if (leaf_is_shared(m, f) || (slack > 4096 && leaf_is_free(m, f))) {
        local = local_result(c, m, leaf);
        if (!local) return;
        ms_result_add(local, slack, c->scratch, mask);
    }
    ms_result *r = stack_result(c, m, leaf, local, &owned);
    if (r) ms_result_add(r, slack, c->scratch, mask);
    if (owned) ms_result_free(r);
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
        add_stack(c, m, leaf, remaining == MS_UNLIMITED ? UINT64_MAX : (uint64_t)remaining - 1 - bound, mask);
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
