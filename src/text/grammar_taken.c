/* grammar_taken.c: see grammar_taken.h. */
#include "text/grammar_taken.h"

#include <string.h>

#include "base/bytes.h"

enum { ALL = 0x10FFFF };

/* How a class reads its texts. */
typedef struct reader {
    const ms_matcher *m;
    const ms_block *leaf;
    const ms_dfa *dfa; /* NULL: any text */
    uint32_t end;      /* bytes of the closing quote */
} reader;

static reader reader_of(const ms_matcher *m, const ms_block *leaf) {
    return (reader){m, leaf, leaf->dfa == MS_DFA_NONE ? NULL : &m->g->dfas[leaf->dfa], leaf->kind == MS_BLOCK_STRING};
}

static uint32_t to_end(const reader *r, uint32_t state) {
    uint32_t rest = !r->dfa                          ? 0
                    : !r->dfa->states                ? MS_BOUND_NONE
                    : r->leaf->kind == MS_BLOCK_DFA  ? r->dfa->dist[state]
                                                     : r->leaf->weights[state];
    return ms_bound_add(rest, r->end);
}

static bool accepts(const reader *r, uint32_t state) { return !r->dfa || (r->dfa->states && r->dfa->accept[state]); }

static uint32_t step(const reader *r, uint32_t state, uint32_t symbol) {
    return !r->dfa ? 0 : r->dfa->states ? ms_dfa_step(r->dfa, state, symbol) : MS_DFA_NONE;
}

static uint32_t symbol_cost(const reader *r, uint32_t symbol) {
    return r->leaf->kind == MS_BLOCK_DFA ? 1 : ms_char_cost(r->leaf->form, symbol, symbol);
}

/* Bytes of the symbol that a text goes on with; 0: it is none of this class. */
static uint32_t next_symbol(const reader *r, const uint8_t *text, uint32_t len, uint32_t *symbol) {
    if (r->leaf->kind == MS_BLOCK_DFA) {
        *symbol = len ? *text : 0;
        return len > 0;
    }
    uint32_t part = 0;
    for (uint32_t i = 0; i < len; i++) {
        ms_decoded what = ms_string_decode(r->leaf->form, &part, text[i], symbol);
        if (what == MS_DECODED_SYMBOL) return i + 1;
        if (what != MS_DECODED_PART) return 0;
    }
    return 0;
}

/* The state behind a text; MS_DFA_NONE: the class has none that begins so. */
static uint32_t run(const reader *r, uint32_t state, const uint8_t *text, uint32_t len) {
    if (r->dfa && !r->dfa->states) return MS_DFA_NONE;
    while (len && state != MS_DFA_NONE) {
        uint32_t symbol, n = next_symbol(r, text, len, &symbol);
        if (!n) return MS_DFA_NONE;
        state = step(r, state, symbol);
        text += n;
        len -= n;
    }
    return state;
}

/* ------------------------------------------------------------------ costs */

/* Code points of a quoted string by how many bytes they take. */
static const struct span {
    uint32_t lo, hi, cost;
} spans[] = {{0, 7, 6},      {8, 10, 2},     {11, 11, 6},     {12, 13, 2},         {14, 31, 6},
             {' ', '!', 1},  {'"', '"', 2},  {'#', '[', 1},   {'\\', '\\', 2},     {']', 0x7F, 1},
             {0x80, 0x7FF, 2}, {0x800, 0xD7FF, 3}, {0xE000, 0xFFFF, 3}, {0x10000, ALL, 4}};

static uint32_t first_from(const ms_branch *b, uint32_t count, uint32_t symbol) {
    uint32_t lo = 0, hi = count;
    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;
        if (b[mid].symbol < symbol) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

/* Whether lo..hi has a symbol that is no branch. */
static bool some_free(const ms_branch *b, uint32_t count, uint32_t lo, uint32_t hi) {
    uint32_t first = first_from(b, count, lo), end = first;
    while (end < count && b[end].symbol <= hi) end++;
    return hi - lo + 1 > end - first;
}

typedef struct branches {
    const ms_branch *at;
    uint32_t count;
} branches;

/* Bytes to the end behind a symbol of the piece that leads to `to` and is no branch, if below best. */
static uint32_t free_of_edge(const reader *r, branches b, ms_piece piece, uint32_t to, uint32_t best) {
    uint32_t rest = to_end(r, to);
    if (piece.rest || r->leaf->kind == MS_BLOCK_DFA) {
        uint32_t cost = ms_bound_add(piece.rest ? piece.rest : 1, rest);
        return cost < best && some_free(b.at, b.count, piece.lo, piece.hi) ? cost : best;
    }
    for (size_t i = 0; i < sizeof spans / sizeof spans[0]; i++) {
        uint32_t lo = spans[i].lo > piece.lo ? spans[i].lo : piece.lo, hi = spans[i].hi < piece.hi ? spans[i].hi : piece.hi;
        uint32_t cost = ms_bound_add(spans[i].cost, rest);
        if (lo <= hi && cost < best && some_free(b.at, b.count, lo, hi)) best = cost;
    }
    return best;
}

/* The best of all symbols of the piece that are no branches. */
static uint32_t free_cost(const reader *r, branches b, uint32_t state, ms_piece piece, uint32_t best) {
    if (!r->dfa) return free_of_edge(r, b, piece, 0, best);
    if (!r->dfa->states) return best;
    for (uint32_t e = r->dfa->first[state]; e < r->dfa->first[state + 1]; e++) {
        const ms_dfa_edge *x = &r->dfa->edges[e];
        ms_piece p = {x->lo > piece.lo ? x->lo : piece.lo, x->hi < piece.hi ? x->hi : piece.hi, piece.rest};
        if (p.lo <= p.hi) best = free_of_edge(r, b, p, x->to, best);
    }
    return best;
}

static const ms_piece any_symbol = {0, ALL, 0};

/* From inside a node's run, `at` bytes into it, to the end of a new text. */
static uint32_t cost_from(const reader *r, uint32_t node, uint32_t at, uint32_t state) {
    const ms_taken *n = &r->m->taken[node];
    uint32_t best = MS_BOUND_NONE, spent = 0;
    while (at < n->label_len) {
        ms_branch only = {0};
        if (ms_bound_add(spent, to_end(r, state)) >= best) return best;
        if (accepts(r, state)) return ms_bound_add(spent, r->end); /* it is the bound */
        uint32_t len = next_symbol(r, r->m->log + n->label + at, n->label_len - at, &only.symbol);
        uint32_t out = free_cost(r, (branches){&only, 1}, state, any_symbol, MS_BOUND_NONE);
        if (ms_bound_add(spent, out) < best) best = ms_bound_add(spent, out);
        spent = ms_bound_add(spent, symbol_cost(r, only.symbol));
        state = step(r, state, only.symbol);
        if (!len || state == MS_DFA_NONE) return best;
        at += len;
    }
    uint32_t cost = ms_bound_add(spent, n->cost);
    return cost < best ? cost : best;
}

/* Behind a branch. */
static uint32_t branch_cost(const reader *r, uint32_t node, uint32_t state) {
    const ms_taken *n = &r->m->taken[node];
    uint32_t symbol, len = next_symbol(r, r->m->log + n->label, n->label_len, &symbol);
    uint32_t to = len ? step(r, state, symbol) : MS_DFA_NONE;
    return to == MS_DFA_NONE ? MS_BOUND_NONE : cost_from(r, node, len, to);
}

/* From behind a node. */
static uint32_t end_cost(const reader *r, const ms_taken *n) {
    const ms_branch *b = &r->m->branches[n->branches];
    uint32_t best = accepts(r, n->state) && !n->taken ? r->end : MS_BOUND_NONE;
    best = free_cost(r, (branches){b, n->branch_count}, n->state, any_symbol, best);
    for (uint32_t i = 0; i < n->branch_count && best > to_end(r, n->state); i++) {
        uint32_t cost = ms_bound_add(symbol_cost(r, b[i].symbol), branch_cost(r, b[i].node, n->state));
        if (cost < best) best = cost;
    }
    return best;
}

/* ------------------------------------------------------------------ one more text */

static uint32_t new_node(ms_matcher *m, const reader *r, ms_taken n) {
    if (!ms_match_grow(m, (void **)&m->taken, &m->taken_cap, m->taken_count + 1, sizeof *m->taken)) return MS_DFA_NONE;
    n.cost = end_cost(r, &n);
    m->taken[m->taken_count] = n;
    return m->taken_count++;
}

/* A copy of branches with one more, or with another node for a symbol that is there. */
static bool with_branch(ms_matcher *m, ms_taken *n, uint32_t symbol, uint32_t node) {
    uint32_t from = n->branches, count = n->branch_count, to = m->branch_count;
    if (node == MS_DFA_NONE) return false;
    if (!ms_match_grow(m, (void **)&m->branches, &m->branch_cap, to + count + 1, sizeof *m->branches)) return false;
    ms_branch *b = m->branches;
    uint32_t place = first_from(b + from, count, symbol);
    bool known = place < count && b[from + place].symbol == symbol;
    if (count) memcpy(b + to, b + from, place * sizeof *b);
    b[to + place] = (ms_branch){symbol, node};
    if (count > place + known)
        memcpy(b + to + place + 1, b + from + place + known, (count - place - known) * sizeof *b);
    n->branches = to;
    n->branch_count = count + !known;
    m->branch_count = to + n->branch_count;
    return true;
}

/* A branch for the rest of a text; `state` is before it.  false: no memory. */
static bool add_tail(ms_matcher *m, const reader *r, ms_taken *n, uint32_t state, uint32_t label, uint32_t len) {
    uint32_t symbol;
    (void)next_symbol(r, m->log + label, len, &symbol);
    ms_taken tail = {.label = label, .label_len = len, .state = run(r, state, m->log + label, len), .taken = true};
    return with_branch(m, n, symbol, new_node(m, r, tail));
}

/* Bytes of whole symbols that two texts begin with. */
static uint32_t common(const reader *r, const uint8_t *a, uint32_t a_len, const uint8_t *b, uint32_t b_len) {
    uint32_t n = a_len < b_len ? a_len : b_len, same = 0, at = 0, symbol;
    while (same < n && a[same] == b[same]) same++;
    if (same == a_len) return same; /* all of a node's run */
    for (uint32_t len; at < same && (len = next_symbol(r, a + at, a_len - at, &symbol)) && at + len <= same;) at += len;
    return at;
}

/* A node's run is cut after `at` bytes: the node in front of the rest of it, and of the text's. */
static uint32_t split(ms_matcher *m, const reader *r, uint32_t node, uint32_t before, uint32_t at, uint32_t label,
                      uint32_t len) {
    ms_taken rest = m->taken[node], n = {.label = rest.label, .label_len = at, .taken = len == at};
    uint32_t symbol;
    n.state = run(r, before, m->log + n.label, at);
    rest.label += at;
    rest.label_len -= at;
    (void)next_symbol(r, m->log + rest.label, rest.label_len, &symbol);
    if (!with_branch(m, &n, symbol, new_node(m, r, rest))) return MS_DFA_NONE;
    if (len > at && !add_tail(m, r, &n, n.state, label + at, len - at)) return MS_DFA_NONE;
    return new_node(m, r, n);
}

/* The tree with a text of the class that it does not have.  Result: its root; MS_DFA_NONE: no memory. */
static uint32_t insert(ms_matcher *m, const reader *r, uint32_t root, uint32_t label, uint32_t len) {
    uint32_t node = root, before = 0, made = MS_DFA_NONE;
    m->path.count = 0;
    for (;;) {
        ms_taken n = m->taken[node];
        uint32_t same = common(r, m->log + n.label, n.label_len, m->log + label, len), symbol;
        if (same < n.label_len) {
            made = split(m, r, node, before, same, label, len);
            break;
        }
        label += same;
        len -= same;
        if (!len) {
            n.taken = true;
            made = new_node(m, r, n);
            break;
        }
        (void)next_symbol(r, m->log + label, len, &symbol);
        const ms_branch *b = &m->branches[n.branches];
        uint32_t place = first_from(b, n.branch_count, symbol);
        if (place == n.branch_count || b[place].symbol != symbol) {
            if (add_tail(m, r, &n, n.state, label, len)) made = new_node(m, r, n);
            break;
        }
        ms_list_push(m, &m->path, node);
        ms_list_push(m, &m->path, symbol);
        before = n.state;
        node = b[place].node;
    }
    while (m->path.count && made != MS_DFA_NONE && !m->failed) {
        uint32_t symbol = m->path.data[--m->path.count];
        ms_taken n = m->taken[m->path.data[--m->path.count]];
        made = with_branch(m, &n, symbol, made) ? new_node(m, r, n) : MS_DFA_NONE;
    }
    return made;
}

/* ------------------------------------------------------------------ finding a place */

typedef struct place {
    uint32_t node, at; /* bytes into the node's run; node 0: no taken text begins so */
} place;

static place find(const reader *r, uint32_t root, const uint8_t *text, uint32_t len) {
    uint32_t node = root;
    while (node) {
        const ms_taken *n = &r->m->taken[node];
        uint32_t k = n->label_len < len ? n->label_len : len, symbol;
        if (k && memcmp(r->m->log + n->label, text, k) != 0) break;
        text += k;
        len -= k;
        if (!len) return (place){node, k};
        const ms_branch *b = &r->m->branches[n->branches];
        if (!next_symbol(r, text, len, &symbol)) break;
        uint32_t i = first_from(b, n->branch_count, symbol);
        if (i == n->branch_count || b[i].symbol != symbol) break;
        node = b[i].node;
    }
    return (place){0};
}

/* What of a text is in a tree: all of it, or what is between the quotes.  false: the class has no such text. */
static bool inner(const reader *r, const uint8_t *log, uint32_t *start, uint32_t *len) {
    if (!r->end) return true;
    if (*len < 2 || log[*start] != '"') return false;
    *start += 1;
    *len -= 2;
    return true;
}

static uint32_t root_of(const ms_matcher *m, const ms_distinct *class, uint32_t seen) {
    return m->roots[m->seen[seen].roots + class->number];
}

static bool is_taken(const ms_matcher *m, const ms_distinct *classes, uint32_t count, uint32_t seen, uint32_t start,
                     uint32_t len) {
    for (uint32_t i = 0; seen && i < count; i++) {
        reader r = reader_of(m, &m->g->blocks[classes[i].leaf]);
        uint32_t from = start, n = len;
        if (!inner(&r, m->log, &from, &n)) continue;
        place p = find(&r, root_of(m, &classes[i], seen), m->log + from, n);
        if (p.node && p.at == m->taken[p.node].label_len && m->taken[p.node].taken) return true;
    }
    return false;
}

uint32_t ms_taken_add(ms_matcher *m, const ms_distinct *classes, uint32_t count, uint32_t seen, uint32_t start) {
    uint32_t len = m->log_len - start, roots = m->root_count;
    if (is_taken(m, classes, count, seen, start, len)) return MS_DFA_NONE;
    if (!ms_match_grow(m, (void **)&m->roots, &m->root_cap, roots + count, sizeof *m->roots)) return MS_DFA_NONE;
    m->root_count += count;
    for (uint32_t i = 0; i < count; i++) {
        reader r = reader_of(m, &m->g->blocks[classes[i].leaf]);
        uint32_t from = start, n = len, root = seen ? root_of(m, &classes[i], seen) : 0;
        if (inner(&r, m->log, &from, &n)) {
            uint32_t state = run(&r, 0, m->log + from, n);
            if (state != MS_DFA_NONE && accepts(&r, state)) root = insert(m, &r, root, from, n);
        }
        if (root == MS_DFA_NONE) return MS_DFA_NONE;
        m->roots[roots + i] = root;
    }
    if (!ms_match_grow(m, (void **)&m->seen, &m->seen_cap, m->seen_count + 1, sizeof *m->seen)) return MS_DFA_NONE;
    uint64_t hash = ms_fnv1a64(MS_FNV1A64_INIT ^ m->seen[seen].hash, m->log + start, len);
    m->seen[m->seen_count] = (ms_seen){.older = seen,
                                       .start = start,
                                       .len = len,
                                       .count = m->seen[seen].count + 1,
                                       .roots = roots,
                                       .hash = ms_fnv1a64(hash, &len, sizeof len)};
    return m->seen_count++;
}

/* ------------------------------------------------------------------ what is asked for */

uint32_t ms_taken_cost(const ms_matcher *m, const ms_distinct *class, uint32_t seen) {
    reader r = reader_of(m, &m->g->blocks[class->leaf]);
    uint32_t root = seen ? root_of(m, class, seen) : 0;
    return ms_bound_add(root ? m->taken[root].cost : to_end(&r, 0), r.end);
}

const ms_distinct *ms_taken_class(const ms_matcher *m, const ms_frame *leaf) {
    const ms_frame *up = &m->frames[leaf->parent];
    const ms_block *b = &m->g->blocks[up->block];
    if (b->kind == MS_BLOCK_OBJECT) return &b->object->extras[up->c];
    for (uint32_t i = 0; i < b->array->class_count; i++)
        if (b->array->classes[i].leaf == leaf->block) return &b->array->classes[i];
    return NULL;
}

/* A symbol of the piece, that has begun behind a place; node 0: behind nothing that was taken. */
static uint32_t piece_cost(const reader *r, place p, uint32_t state, ms_piece piece) {
    const ms_taken *n = &r->m->taken[p.node];
    bool inside = p.node && p.at < n->label_len;
    ms_branch only = {.node = p.node};
    branches b = {&only, inside};
    uint32_t len = 0;
    if (inside) len = next_symbol(r, r->m->log + n->label + p.at, n->label_len - p.at, &only.symbol);
    else if (p.node) b = (branches){&r->m->branches[n->branches], n->branch_count};
    uint32_t best = free_cost(r, b, state, piece, MS_BOUND_NONE);
    for (uint32_t i = first_from(b.at, b.count, piece.lo); i < b.count && b.at[i].symbol <= piece.hi; i++) {
        uint32_t to = step(r, state, b.at[i].symbol), cost = MS_BOUND_NONE;
        if (to != MS_DFA_NONE && inside) cost = cost_from(r, p.node, p.at + len, to);
        if (to != MS_DFA_NONE && !inside) cost = branch_cost(r, b.at[i].node, state);
        cost = ms_bound_add(piece.rest, cost);
        if (cost < best) best = cost;
    }
    return best;
}

/* The place of a leaf that has begun, behind its last whole symbol; *begun: bytes of the next one. */
static place place_of(const reader *r, const ms_distinct *class, const ms_frame *leaf, uint32_t *begun) {
    const ms_matcher *m = r->m;
    const ms_frame *up = &m->frames[leaf->parent];
    uint32_t from = up->start + r->end;
    *begun = r->end ? ms_string_begun(leaf->c) : 0;
    return find(r, root_of(m, class, up->seen), m->log + from, m->log_len - *begun - from);
}

/* Before the opening quote. */
static bool is_before(const reader *r, const ms_frame *leaf) { return r->end && leaf->phase == MS_PHASE_START; }

uint32_t ms_taken_rest(const ms_matcher *m, const ms_frame *leaf, const ms_piece *pieces, unsigned count) {
    const ms_distinct *class = ms_taken_class(m, leaf);
    if (!class) return MS_BOUND_NONE;
    reader r = reader_of(m, &m->g->blocks[leaf->block]);
    if (is_before(&r, leaf)) return ms_taken_cost(m, class, m->frames[leaf->parent].seen);
    uint32_t begun, best = MS_BOUND_NONE;
    place p = place_of(&r, class, leaf, &begun);
    if (!pieces) return p.node ? cost_from(&r, p.node, p.at, leaf->a) : to_end(&r, leaf->a);
    for (unsigned i = 0; i < count; i++) {
        uint32_t cost = piece_cost(&r, p, leaf->a, pieces[i]);
        if (cost < best) best = cost;
    }
    return best;
}

/* ------------------------------------------------------------------ going along */

/* skip: bytes that were read already, the visitor is behind them. */
static void visit(const reader *r, place p, const uint8_t *skip, uint32_t skip_len, uint32_t at,
                  const ms_taken_visitor *v) {
    const ms_taken *n = &r->m->taken[p.node];
    const uint8_t *run = r->m->log + n->label;
    for (; p.at < n->label_len && at != MS_DFA_NONE; p.at++) {
        if (!skip_len) {
            at = v->enter(v->arg, at, run[p.at]);
        } else if (*skip++ == run[p.at]) {
            skip_len--;
        } else {
            return;
        }
    }
    if (at == MS_DFA_NONE) return;
    uint32_t end = n->taken && !skip_len && r->end ? v->enter(v->arg, at, '"') : at;
    if (n->taken && !skip_len && end != MS_DFA_NONE) v->end(v->arg, end);
    for (uint32_t i = 0; i < n->branch_count; i++)
        visit(r, (place){r->m->branches[n->branches + i].node, 0}, skip, skip_len, at, v);
}

void ms_taken_visit(const ms_matcher *m, const ms_frame *leaf, uint32_t place_at, const ms_taken_visitor *v) {
    const ms_distinct *class = ms_taken_class(m, leaf);
    if (!class || !m->frames[leaf->parent].seen) return;
    reader r = reader_of(m, &m->g->blocks[leaf->block]);
    uint32_t begun = 0;
    place p = {root_of(m, class, m->frames[leaf->parent].seen), 0};
    if (!p.node) return;
    if (is_before(&r, leaf)) place_at = v->enter(v->arg, place_at, '"');
    else p = place_of(&r, class, leaf, &begun);
    if (p.node && place_at != MS_DFA_NONE) visit(&r, p, m->log + m->log_len - begun, begun, place_at, v);
}
