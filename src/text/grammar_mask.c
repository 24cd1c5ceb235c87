/* grammar_mask.c: walks over the tree of a vocabulary, and what is kept of them (grammar_mask.h).
 *
 * A walk of one stack goes in two parts.  The local part has the top frame alone on a floor: tokens that stay inside
 * are allowed whatever is below; places where the frame ends are noted.  The second part goes on from there with the
 * real frames below: what follows those places, put together as one tree (grammar_result.h).  Results of the first are
 * kept by frame, of both by whole stack.
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
#include "text/grammar_taken.h"
#include "text/grammar_vocabulary.h"
#include "text/grammar_way.h"

/* TEXT_MARGIN: bytes that the bound of a text among others may be off by, as it follows one of the cheapest symbols. */
enum { CACHE_WORDS = 12 << 20, GENERATIONS = 3, TABLE = 1 << 12, KEY = 9, TEXT_MARGIN = 8 };
/* SWEEP: lists of the oldest generation that one mask frees, so that none waits for all of them. */
enum { SWEEP = 32 };

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
    kept **table[GENERATIONS]; /* the latest; the one before, from which what is used comes back; one to be freed */
    uint32_t swept;            /* lists of the last that are free */
    size_t words, used_words;  /* of a mask; of the latest generation */
    uint64_t *scratch;
    uint32_t *from, *count; /* by depth: where the stacks of a walk begin in `sets`, and how many */
    uint32_t *suffix;       /* by depth: the suffix that is walked */
    ms_list sets;
    ms_list paths, ends; /* nodes on the way to texts that must not come again, and those at their ends; both ascend */
    ms_list doubtful;    /* suffixes in which another such text ends */
    bool failed;
};

static void forget_list(kept **list) {
    while (*list) {
        kept *k = *list;
        *list = k->next;
        ms_result_free(k->result);
        free(k);
    }
}

static void sweep(ms_mask_cache *c, uint32_t lists) {
    for (; lists && c->swept < TABLE; lists--) forget_list(&c->table[2][c->swept++]);
}

static void next_generation(ms_mask_cache *c) {
    sweep(c, TABLE);
    kept **empty = c->table[2];
    c->table[2] = c->table[1];
    c->table[1] = c->table[0];
    c->table[0] = empty;
    c->used_words = 0;
    c->swept = 0;
}

ms_status ms_mask_cache_create(ms_mask_cache **out, const ms_grammar *g, const ms_vocabulary *v, ms_error *err) {
    *out = NULL;
    ms_mask_cache *c = calloc(1, sizeof *c);
    if (!c) return ms_fail_memory(err, "a mask cache", sizeof *c);
    c->g = g;
    c->v = v;
    c->words = ms_vocabulary_mask_words(v);
    c->leaves = ms_leaf_walker_create(g, v);
    bool tables = true;
    for (int i = 0; i < GENERATIONS; i++) tables = (c->table[i] = calloc(TABLE, sizeof *c->table[i])) && tables;
    c->scratch = malloc(c->words * sizeof *c->scratch);
    c->from = malloc(((size_t)v->deepest + 1) * sizeof *c->from);
    c->count = malloc(((size_t)v->deepest + 1) * sizeof *c->count);
    c->suffix = malloc(((size_t)v->deepest + 1) * sizeof *c->suffix);
    if (!tables || !c->leaves || !ms_leaf_warm(c->leaves) || !c->scratch || !c->from || !c->count || !c->suffix) {
        ms_status status = ms_fail_memory(err, "a mask cache", c->words * sizeof *c->scratch);
        ms_mask_cache_destroy(c);
        return status;
    }
    *out = c;
    return MS_OK;
}

void ms_mask_cache_destroy(ms_mask_cache *c) {
    if (!c) return;
    for (int i = 0; i < GENERATIONS; i++) {
        for (uint32_t k = 0; c->table[i] && k < TABLE; k++) forget_list(&c->table[i][k]);
        free(c->table[i]);
    }
    ms_leaf_walker_destroy(c->leaves);
    free(c->scratch);
    free(c->from);
    free(c->count);
    free(c->suffix);
    free(c->sets.data);
    free(c->paths.data);
    free(c->ends.data);
    free(c->doubtful.data);
    free(c);
}

static ms_result *new_result(ms_mask_cache *c) {
    ms_result *r = ms_result_create(c->v);
    if (!r) c->failed = true;
    return r;
}

static uint32_t bucket(const uint64_t key[KEY]) {
    return (uint32_t)(ms_fnv1a64(MS_FNV1A64_INIT, key, KEY * sizeof *key) >> 20) & (TABLE - 1);
}

static void put(ms_mask_cache *c, kept *k) {
    kept **list = &c->table[0][bucket(k->key)];
    k->next = *list;
    *list = k;
    c->used_words += ms_result_words(k->result, c->v) + sizeof *k / sizeof(uint64_t);
}

static ms_result *find(ms_mask_cache *c, const uint64_t key[KEY]) {
    uint32_t at = bucket(key);
    for (kept *k = c->table[0][at]; k; k = k->next)
        if (memcmp(k->key, key, sizeof k->key) == 0) return k->result;
    for (kept **from = &c->table[1][at]; *from; from = &(*from)->next) {
        kept *k = *from;
        if (memcmp(k->key, key, sizeof k->key) != 0) continue;
        *from = k->next;
        put(c, k);
        return k->result;
    }
    return NULL;
}

static bool keep(ms_mask_cache *c, ms_result *r, const uint64_t key[KEY]) {
    kept *k = malloc(sizeof *k);
    if (!k) return false;
    *k = (kept){.result = r};
    memcpy(k->key, key, sizeof k->key);
    put(c, k);
    return true;
}

/* ------------------------------------------------------------------ walks with frames */

typedef struct walk {
    ms_mask_cache *c;
    ms_matcher *m;
    ms_result *r;
    uint32_t before; /* bound of the stack */
    uint32_t margin; /* what another text than the one looked at may cost more, where the next one has begun */
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
        if (f == MS_FRAME_FLOOR)
            *floor = true;
        else
            c->sets.data[end++] = f;
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
    walk w = {c, m, r, m->frames[leaf].total, 0, local};
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

static void log_path(walk *w, uint32_t node, uint32_t depth) {
    const uint8_t *path = ms_vocabulary_path(w->c->v, node);
    for (uint32_t k = 0; k < depth; k++) (void)ms_match_log(w->m, path[k]);
}

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
        log_path(w, node, depth);
        resume_below(w, leaf, depth);
        uint32_t best = least_bound(w, depth);
        if (best >= MS_BOUND_NONE) continue;
        if (!local->at && v->token[node] != MS_NO_TOKEN) ms_result_allow(w->r, v->token[node], w->before, best);
        walk_range(w, local->at ? node : node + 1, v->end[node], m->log_len);
    }
    ms_match_back(m, mark);
}

/* Whether the text that ends at this floor must not come again. */
static bool is_taken(const ms_mask_cache *c, const ms_result *local, uint32_t floor) {
    const ms_vocabulary *v = c->v;
    for (uint32_t i = 0; i < c->ends.count && c->ends.data[i] <= floor; i++) {
        uint32_t end = c->ends.data[i];
        if (local->at ? floor < v->end[end] && v->depth[end] + 1u == v->depth[floor] : end == floor) return true;
    }
    return false;
}

static void allow_suffix(walk *w, const ms_result *local, uint32_t suffix, uint32_t best) {
    for (uint32_t t = local->suffixes[suffix].tokens; t; t = local->suffix_tokens[t - 1].next) {
        const ms_suffix_token *x = &local->suffix_tokens[t - 1];
        if (!is_taken(w->c, local, x->floor)) ms_result_allow(w->r, x->token, w->before, best);
    }
}

/* Where the next text may have begun: depths of a comma and of the quote behind it. */
typedef struct next_text {
    uint32_t comma, quote;
} next_text;

/* Whether the byte, at this depth, is of the next text: whether that fits may hang on the one before. */
static bool is_doubtful(next_text *n, uint32_t depth, uint8_t byte) {
    if (depth <= n->comma) n->comma = UINT32_MAX;
    if (depth <= n->quote) n->quote = UINT32_MAX;
    if (n->comma == UINT32_MAX) {
        if (byte == ',') n->comma = depth;
        return false;
    }
    if (byte == ' ' || byte == '\n' || byte == '\t' || byte == '\r') return n->quote != UINT32_MAX;
    if (byte != '"' || n->quote != UINT32_MAX) return true;
    n->quote = depth;
    return false;
}

/* From behind the frame's end on with the frames below, whose stacks are at depth 0.  Where the leaf's text matters,
 * only up to another one like it: what both are is not known here. */
static void walk_suffixes(walk *w, const ms_result *local, bool text) {
    ms_matcher *m = w->m;
    uint32_t depth = 0, *at = w->c->suffix, log = m->log_len;
    uint32_t best = least_bound(w, 0);
    next_text next = {UINT32_MAX, UINT32_MAX};
    w->c->doubtful.count = 0;
    if (best < MS_BOUND_NONE) allow_suffix(w, local, 0, best);
    at[1] = best < MS_BOUND_NONE ? local->suffixes[0].child : 0;
    for (depth = 1; depth && !m->failed && !w->c->failed;) {
        uint32_t s = at[depth];
        if (!s) {
            depth--;
            continue;
        }
        at[depth] = local->suffixes[s].next;
        if (text && is_doubtful(&next, depth, local->suffixes[s].byte)) {
            ms_list_push(m, &w->c->doubtful, s);
            continue;
        }
        m->log_len = log + depth - 1;
        bool floor = false;
        best = step_set(w, depth - 1, local->suffixes[s].byte, &floor);
        if (best >= MS_BOUND_NONE) continue;
        allow_suffix(w, local, s, depth >= next.comma ? ms_bound_add(best, w->margin) : best);
        if (local->suffixes[s].child) at[++depth] = local->suffixes[s].child;
    }
}

/* A token by its own bytes. */
static void walk_token(walk *w, uint32_t leaf, uint32_t token) {
    size_t len;
    const uint8_t *bytes = ms_tokenizer_token(w->c->v->tokenizer, token, &len);
    ms_match_mark mark = ms_match_marked(w->m);
    uint32_t best = MS_BOUND_NONE;
    start_set(w->c, 0);
    ms_list_push(w->m, &w->c->sets, leaf);
    w->c->count[0] = 1;
    for (uint32_t i = 0; i < len; i++) {
        bool floor = false;
        best = step_set(w, i, bytes[i], &floor);
        if (best >= MS_BOUND_NONE) break;
    }
    if (best < MS_BOUND_NONE) ms_result_allow(w->r, token, w->before, best);
    ms_match_back(w->m, mark);
}

static void walk_doubtful(walk *w, uint32_t leaf, const ms_result *local) {
    ms_list *l = &w->c->doubtful;
    while (l->count && !w->m->failed) {
        uint32_t s = l->data[--l->count];
        for (uint32_t t = local->suffixes[s].tokens; t; t = local->suffix_tokens[t - 1].next)
            walk_token(w, leaf, local->suffix_tokens[t - 1].token);
        for (uint32_t i = local->suffixes[s].child; i; i = local->suffixes[i].next) ms_list_push(w->m, l, i);
    }
}

static void walk_below(walk *w, uint32_t leaf, const ms_result *local) {
    ms_matcher *m = w->m;
    ms_match_mark mark = ms_match_marked(m);
    w->c->ends.count = 0;
    resume_below(w, leaf, 0);
    walk_suffixes(w, local, false);
    ms_match_back(m, mark);
}

/* The same for a text that must be new, where there are more texts than can be taken: which of them it is makes no
 * difference to what may follow. */
static void walk_below_text(walk *w, uint32_t leaf, const ms_result *local) {
    ms_matcher *m = w->m;
    ms_match_mark mark = ms_match_marked(m);
    uint32_t i = 0;
    while (i < local->floor_count && is_taken(w->c, local, local->floors[i])) i++;
    if (i == local->floor_count) return;
    log_path(w, local->floors[i], w->c->v->depth[local->floors[i]] - (local->at ? 1u : 0u));
    resume_below(w, leaf, 0);
    walk_suffixes(w, local, true);
    ms_match_back(m, mark);
    walk_doubtful(w, leaf, local);
}

/* ------------------------------------------------------------------ one stack */

static bool text_matters(const ms_matcher *m, const ms_frame *f) {
    const ms_frame *up = &m->frames[f->parent];
    return up->phase == MS_PHASE_EXTRA || up->phase == MS_PHASE_ITEM;
}

/* Whether there are more texts than any token can take; *margin: what a new one costs at most. */
static bool texts_abound(const ms_matcher *m, const ms_frame *f, uint32_t *margin) {
    enum { SPARE = 64 };
    const ms_distinct *d = ms_taken_class(m, f);
    uint64_t texts = (uint64_t)m->seen[m->frames[f->parent].seen].count + SPARE;
    if (!d || !ms_leaf_walks(m, f) || !ms_texts_known(d, texts, margin)) return false;
    *margin += TEXT_MARGIN;
    return true;
}

/* Bytes that may follow an automaton or a bare string. */
static void bytes_behind(ms_mask_cache *c, ms_matcher *m, uint32_t leaf, uint64_t stops[4]) {
    const ms_block *b = &m->g->blocks[m->frames[leaf].block];
    memset(stops, 0, 4 * sizeof *stops);
    if (b->kind != MS_BLOCK_DFA && (b->kind != MS_BLOCK_STRING || b->form != MS_STRING_RAW)) return;
    uint64_t symbols[MS_SYMBOLS / 64] = {0};
    ms_match_mark mark = ms_match_marked(m);
    ms_frame up = m->frames[m->frames[leaf].parent];
    start_set(c, 0);
    ms_match_epoch(m);
    if (up.phase == MS_PHASE_ITEM) { /* whatever its text is */
        up.phase = MS_PHASE_AFTER;
        up.start = 0;
        ms_match_resume(m, ms_match_frame(m, &up), &c->sets);
    } else {
        ms_match_resume(m, m->frames[leaf].parent, &c->sets);
    }
    for (uint32_t i = 0; i < c->sets.count; i++) ms_match_candidates(m, c->sets.data[i], symbols);
    memcpy(stops, symbols, 4 * sizeof *stops);
    ms_match_back(m, mark);
}

static ms_result *local_result(ms_mask_cache *c, ms_matcher *m, uint32_t leaf) {
    uint64_t stops[4];
    bytes_behind(c, m, leaf, stops);
    ms_frame f = ms_leaf_canonical(c->leaves, m, &m->frames[leaf]);
    uint64_t key[KEY] = {1 + f.phase,
                         (uint64_t)f.block << 32 | f.a,
                         (uint64_t)f.b << 32 | f.c,
                         (uint64_t)f.d << 32 | f.start,
                         m->seen[f.seen].hash,
                         stops[0],
                         stops[1],
                         stops[2],
                         stops[3]};
    ms_result *r = find(c, key);
    if (r) return r;
    r = walk_local(c, m, &f, stops);
    if (r && !r->failed && !m->failed && keep(c, r, key)) return r;
    c->failed = true;
    ms_result_free(r);
    return NULL;
}

/* ------------------------------------------------------------------ texts that must not come again */

static int by_number(const void *x, const void *y) {
    uint32_t a = *(const uint32_t *)x, b = *(const uint32_t *)y;
    return (a > b) - (a < b);
}

static void sort_nodes(ms_list *l) {
    uint32_t n = 0;
    bool sorted = true; /* as they mostly are found */
    for (uint32_t i = 1; i < l->count && sorted; i++) sorted = l->data[i - 1] < l->data[i];
    if (sorted) return;
    qsort(l->data, l->count, sizeof *l->data, by_number);
    for (uint32_t i = 0; i < l->count; i++)
        if (!n || l->data[n - 1] != l->data[i]) l->data[n++] = l->data[i];
    l->count = n;
}

typedef struct paths {
    ms_mask_cache *c;
    ms_matcher *m;
} paths;

#define ABOVE_ALL (UINT32_MAX - 1)

/* From a node, or from above all, to the one of a byte below it. */
static uint32_t enter_node(void *arg, uint32_t at, uint8_t byte) {
    paths *p = arg;
    const ms_vocabulary *v = p->c->v;
    uint32_t node = at == ABOVE_ALL ? v->root[byte] : at + 1, end = at == ABOVE_ALL ? v->nodes : v->end[at];
    while (node < end && v->byte[node] != byte) node = v->end[node];
    if (node >= end) return MS_DFA_NONE;
    ms_list_push(p->m, &p->c->paths, node);
    return node;
}

static void end_at_node(void *arg, uint32_t at) {
    paths *p = arg;
    ms_list_push(p->m, &p->c->ends, at);
}

/* Nodes along the rests of taken texts that begin with what the leaf has read. */
static void find_paths(ms_mask_cache *c, ms_matcher *m, uint32_t leaf) {
    paths p = {c, m};
    ms_frame f = m->frames[leaf];
    c->paths.count = c->ends.count = 0;
    ms_taken_visit(m, &f, ABOVE_ALL, &(ms_taken_visitor){&p, enter_node, end_at_node});
    sort_nodes(&c->paths);
    sort_nodes(&c->ends);
}

/* Tokens along the taken texts, one by one: whether they still lead to a new one. */
static void correct_paths(walk *w, uint32_t leaf) {
    const ms_vocabulary *v = w->c->v;
    ms_matcher *m = w->m;
    ms_match_mark mark = ms_match_marked(m);
    start_set(w->c, 0);
    ms_list_push(m, &w->c->sets, leaf);
    w->c->count[0] = 1;
    for (uint32_t i = 0; i < w->c->paths.count && !m->failed; i++) {
        uint32_t n = w->c->paths.data[i], depth = v->depth[n];
        bool floor = false;
        m->log_len = mark.log + depth - 1;
        uint32_t best = step_set(w, depth - 1, v->byte[n], &floor);
        if (v->token[n] == MS_NO_TOKEN) continue;
        if (best >= MS_BOUND_NONE)
            ms_result_forbid(w->r, v->token[n]);
        else
            ms_result_allow(w->r, v->token[n], w->before, best);
    }
    ms_match_back(m, mark);
}

/* ------------------------------------------------------------------ the whole of a stack */

/* The part of a stack below its top frame. */
static ms_result *below_result(ms_mask_cache *c, ms_matcher *m, uint32_t leaf, const ms_result *local, bool *owned) {
    uint64_t key[KEY] = {0, m->frames[leaf].stack};
    *owned = false;
    ms_result *r = key[1] ? find(c, key) : NULL;
    if (r) return r;
    r = new_result(c);
    if (!r) return NULL;
    *owned = true;
    walk w = {c, m, r, m->frames[leaf].total, 0, false};
    if (local->floor_count) walk_below(&w, leaf, local);
    ms_result_sort(r);
    if (r->failed) c->failed = true;
    if (key[1] && !c->failed && !m->failed) *owned = !keep(c, r, key);
    return r;
}

/* A leaf whose text must be new. */
static void add_text(ms_mask_cache *c, ms_matcher *m, uint32_t leaf, uint64_t slack, uint64_t *mask) {
    const ms_frame f = m->frames[leaf];
    uint32_t margin = 0;
    bool abound = texts_abound(m, &f, &margin), fresh = !m->frames[f.parent].seen;
    const ms_result *local = abound || fresh ? local_result(c, m, leaf) : NULL;
    ms_result *r = new_result(c);
    walk w = {c, m, r, f.total, margin, false};
    ms_match_mark mark = ms_match_marked(m);
    if (!r || c->failed) {
        ms_result_free(r);
        return;
    }
    if (local) ms_result_allow_like(r, local);
    if (abound) {
        find_paths(c, m, leaf);
        correct_paths(&w, leaf);
        walk_below_text(&w, leaf, local);
    } else if (local) {
        walk_each_floor(&w, leaf, local);
    } else {
        walk_frames(c, m, leaf, false, r);
    }
    ms_match_back(m, mark);
    ms_result_sort(r);
    if (r->failed) c->failed = true;
    if (!abound || slack > TEXT_MARGIN) ms_result_add(r, abound ? slack - TEXT_MARGIN : slack, c->scratch, mask);
    ms_result_free(r);
}

static void add_stack(ms_mask_cache *c, ms_matcher *m, uint32_t leaf, uint64_t slack, uint64_t *mask) {
    bool owned;
    if (text_matters(m, &m->frames[leaf])) {
        add_text(c, m, leaf, slack, mask);
        return;
    }
    const ms_result *local = local_result(c, m, leaf);
    if (!local) return;
    ms_result_add(local, slack, c->scratch, mask);
    ms_result *r = below_result(c, m, leaf, local, &owned);
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
    if (c->used_words > CACHE_WORDS / GENERATIONS) next_generation(c);
    sweep(c, SWEEP);
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
