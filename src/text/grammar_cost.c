/* grammar_cost.c: how many symbols a completion takes at most (grammar_internal.h).
 *
 * Invariant: the bound is a potential: from every frame that has one, some symbol leads to a frame (or an end) whose bound
 * is smaller.  So what counts is not that a bound is the least one, but that the plan behind it stays open.  And a bound
 * falls, or stays, when the costs it is made of fall: an object plans its required members and the cheapest of the others.
 */
#include <stdlib.h>
#include <string.h>

#include "text/grammar_internal.h"
#include "text/grammar_taken.h"

static uint32_t block_cost(const ms_matcher *m, uint32_t block) { return m->g->blocks[block].cost; }

/* ------------------------------------------------------------------ texts that must differ */

/* The first level with so many texts; level_count: there are fewer. */
static uint32_t level_of(const ms_distinct *d, uint64_t texts) {
    uint32_t lo = 0, hi = d->level_count;
    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;
        if (d->levels[mid].words < texts) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

bool ms_texts_known(const ms_distinct *d, uint64_t texts, uint32_t *longest) {
    uint32_t level = level_of(d, texts);
    if (level < d->level_count) *longest = d->levels[level].length;
    return level < d->level_count;
}

/* Bytes, at most, of the so many shortest texts. */
static uint64_t bytes_of(const ms_distinct *d, uint64_t texts) {
    uint32_t level = texts ? level_of(d, texts) : 0;
    if (!texts) return 0;
    const ms_level *x = &d->levels[level];
    return x->bytes - (x->words - texts) * x->length;
}

/* What is taken already: `used` texts, those of the list `seen`, and one more while it is being written. */
typedef struct used_texts {
    uint32_t used, seen;
    bool writing;
} used_texts;

/* `wanted` more texts of one class; `each` is added for every one.  What a text that is being written will be is not known,
 * so nothing can be said of the very next one beyond what is true of any so many texts. */
static uint32_t distinct_cost(const ms_matcher *m, const ms_distinct *d, const used_texts *u, uint32_t wanted,
                              uint32_t each) {
    if (each >= MS_BOUND_NONE) return MS_BOUND_NONE;
    if (d->known < u->used || d->known - u->used < wanted) {
        if (wanted != 1 || !m || u->writing) return MS_BOUND_NONE;
        return ms_bound_add(ms_taken_cost(m, d, u->seen), each);
    }
    uint64_t bytes = bytes_of(d, (uint64_t)u->used + wanted) - bytes_of(d, u->used);
    return bytes >= MS_BOUND_NONE ? MS_BOUND_NONE : ms_bound_add((uint32_t)bytes, ms_bound_times(each, wanted));
}

/* ------------------------------------------------------------------ objects */

typedef struct place {
    uint32_t a, b;    /* next declared member, members so far */
    used_texts texts; /* of extra members or items so far */
    bool comma;       /* one is due before the next member */
    bool one;         /* a member must come */
} place;

static uint32_t member_cost(const ms_grammar *g, const ms_member *x) {
    return ms_bound_add(ms_bound_add(x->literal_len, 2), g->blocks[x->value].cost);
}

/* Optional members in ascending order of cost, one a call. */
typedef struct cheapest {
    uint32_t cost, index; /* of the last one */
    bool begun;
} cheapest;

typedef uint32_t member_cost_fn(const ms_grammar *g, const void *members, uint32_t i); /* MS_BOUND_NONE: required */

static uint32_t next_cheapest(const ms_grammar *g, member_cost_fn *fn, const void *members, uint32_t from, uint32_t end,
                              cheapest *c) {
    uint32_t best = MS_BOUND_NONE, at = 0;
    for (uint32_t i = from; i < end; i++) {
        uint32_t cost = fn(g, members, i);
        if (cost >= best || (c->begun && (cost < c->cost || (cost == c->cost && i <= c->index)))) continue;
        best = cost;
        at = i;
    }
    *c = (cheapest){best, at, true};
    return best;
}

static uint32_t optional_member(const ms_grammar *g, const void *members, uint32_t i) {
    const ms_member *x = (const ms_member *)members + i;
    return x->required ? MS_BOUND_NONE : member_cost(g, x);
}

static uint32_t extra_cost(const ms_grammar *g, const ms_matcher *m, const ms_object_block *o, const place *p,
                           uint32_t wanted) {
    uint32_t best = MS_BOUND_NONE;
    for (uint32_t i = 0; i < o->extra_count; i++) {
        uint32_t each = ms_bound_add(2, g->blocks[o->extras[i].value].cost);
        uint32_t cost = distinct_cost(m, &o->extras[i], &p->texts, wanted, each);
        if (cost < best) best = cost;
    }
    return best;
}

/* `wanted` members beyond the required ones: the cheapest optional ones and extra ones, in the best mixture. */
static uint32_t optional_cost(const ms_grammar *g, const ms_matcher *m, const ms_object_block *o, const place *p,
                              uint32_t wanted) {
    uint32_t cost = 0, best = MS_BOUND_NONE;
    cheapest c = {0};
    for (uint32_t declared = 0; declared <= wanted && cost < MS_BOUND_NONE; declared++) {
        uint32_t rest = wanted - declared;
        uint32_t total = rest ? ms_bound_add(cost, extra_cost(g, m, o, p, rest)) : cost;
        if (total < best) best = total;
        if (rest) cost = ms_bound_add(cost, next_cheapest(g, optional_member, o->members, p->a, o->member_count, &c));
    }
    return best;
}

/* From a place between members to behind the closing brace. */
static uint32_t object_rest(const ms_grammar *g, const ms_matcher *m, const ms_object_block *o, const place *p) {
    uint32_t members = o->required_left[p->a], cost = o->required_cost[p->a], more = 0;
    if (o->counted && (uint64_t)p->b + members < o->min) more = o->min - p->b - members;
    if (p->one && members + more == 0) more = 1;
    if (o->max != MS_UNLIMITED && (uint64_t)p->b + members + more > o->max) return MS_BOUND_NONE;
    if (more) cost = ms_bound_add(cost, optional_cost(g, m, o, p, more));
    if (cost >= MS_BOUND_NONE) return MS_BOUND_NONE;
    return ms_bound_add(cost - (!p->comma && members + more > 0 ? 1u : 0u), 1);
}

static const ms_object_block *object_of(const ms_matcher *m, const ms_frame *f) { return m->g->blocks[f->block].object; }

static place place_of(const ms_matcher *m, const ms_frame *f) {
    return (place){.a = f->a, .b = f->b, .texts = {m->seen[f->seen].count, f->seen, false}};
}

static void one_more(place *p) {
    p->texts.used++;
    p->texts.writing = true;
}

bool ms_member_fits(const ms_matcher *m, const ms_frame *f, uint32_t member) {
    const ms_object_block *o = object_of(m, f);
    if (member < f->a || member > o->next_required[f->a] || member >= o->member_count) return false;
    if (block_cost(m, o->members[member].value) >= MS_BOUND_NONE) return false;
    place p = place_of(m, f);
    p.a = member + 1;
    p.b += o->counted;
    p.comma = true;
    return object_rest(m->g, m, o, &p) < MS_BOUND_NONE;
}

/* After an extra member of this frame's object: no declared one follows. */
static uint32_t after_extra(const ms_matcher *m, const ms_frame *f) {
    const ms_object_block *o = object_of(m, f);
    place p = place_of(m, f);
    p.a = o->member_count;
    p.b += o->counted;
    one_more(&p);
    p.comma = true;
    return object_rest(m->g, m, o, &p);
}

bool ms_extra_fits(const ms_matcher *m, const ms_frame *f, uint32_t extra) {
    const ms_object_block *o = object_of(m, f);
    const ms_distinct *x = &o->extras[extra];
    if (o->next_required[f->a] != o->member_count || block_cost(m, x->value) >= MS_BOUND_NONE) return false;
    if (ms_taken_cost(m, x, f->seen) >= MS_BOUND_NONE) return false;
    return after_extra(m, f) < MS_BOUND_NONE;
}

static bool more_members(const ms_matcher *m, const ms_frame *f) {
    const ms_object_block *o = object_of(m, f);
    if (o->next_required[f->a] < o->member_count) return true;
    for (uint32_t i = f->a; i < o->member_count; i++)
        if (ms_member_fits(m, f, i)) return true;
    for (uint32_t i = 0; i < o->extra_count; i++)
        if (ms_extra_fits(m, f, i)) return true;
    return false;
}

/* Inside a declared key: the best of the members that it can still become. */
static uint32_t key_cost(const ms_matcher *m, const ms_frame *f) {
    const ms_object_block *o = object_of(m, f);
    uint32_t best = MS_BOUND_NONE, last = o->next_required[f->a];
    bool by_place = last - f->a < f->d - f->c; /* the fewer ones */
    uint32_t end = by_place ? (last < o->member_count ? last + 1 : last) : f->d;
    for (uint32_t i = by_place ? f->a : f->c; i < end; i++) {
        uint32_t j = by_place ? i : o->sorted[i], at = o->rank[j];
        const ms_member *x = &o->members[j];
        if (at < f->c || at >= f->d || j < f->a || j > last || block_cost(m, x->value) >= MS_BOUND_NONE) continue;
        place p = place_of(m, f);
        p.a = j + 1;
        p.b += o->counted;
        p.comma = true;
        uint32_t cost = ms_bound_add(x->literal_len - f->start + 1, block_cost(m, x->value));
        cost = ms_bound_add(cost, object_rest(m->g, m, o, &p));
        if (cost < best) best = cost;
    }
    return best;
}

static uint32_t object_cost(const ms_matcher *m, const ms_frame *f) {
    const ms_object_block *o = object_of(m, f);
    place p = place_of(m, f);
    switch (f->phase) {
    case MS_PHASE_START: return m->g->blocks[f->block].cost;
    case MS_PHASE_KEY: return key_cost(m, f);
    case MS_PHASE_END: return 1;
    case MS_PHASE_EXTRA:
        return ms_bound_add(ms_bound_add(1, block_cost(m, o->extras[f->c].value)), after_extra(m, f));
    case MS_PHASE_NEXT: p.one = true; break;
    case MS_PHASE_FIRST: break;
    default: p.comma = true;
    }
    uint32_t cost = object_rest(m->g, m, o, &p);
    if (f->phase == MS_PHASE_COLON) cost = ms_bound_add(cost, 1);
    if (f->phase == MS_PHASE_COLON || f->phase == MS_PHASE_VALUE) cost = ms_bound_add(cost, block_cost(m, f->c));
    return cost;
}

/* ------------------------------------------------------------------ arrays */

static uint32_t contained_cost(const ms_grammar *g, const ms_array_block *a, const place *p, uint32_t items) {
    uint32_t must = p->b < a->min_contained ? a->min_contained - p->b : 0;
    uint32_t yes = ms_bound_add(g->blocks[a->contained].cost, 1), no = ms_bound_add(g->blocks[a->other].cost, 1);
    if (a->max_contained != MS_UNLIMITED && (uint64_t)p->b + must > a->max_contained) return MS_BOUND_NONE;
    uint32_t least = ms_bound_add(ms_bound_times(yes, must), ms_bound_times(no, items - must));
    bool all_fit = a->max_contained == MS_UNLIMITED || (uint64_t)p->b + items <= a->max_contained;
    uint32_t all = all_fit ? ms_bound_times(yes, items) : MS_BOUND_NONE;
    return all < least ? all : least;
}

static uint32_t items_cost(const ms_grammar *g, const ms_matcher *m, const ms_array_block *a, const place *p,
                           uint32_t items) {
    uint32_t cost = 0, best = MS_BOUND_NONE;
    if (a->contained) return contained_cost(g, a, p, items);
    for (uint32_t i = 0; a->unique && i < a->class_count; i++) {
        uint32_t c = distinct_cost(m, &a->classes[i], &p->texts, items, 1);
        if (c < best) best = c;
    }
    if (a->unique) return best;
    for (uint32_t i = p->a; i < a->prefix_count && items; i++, items--) {
        cost = ms_bound_add(cost, ms_bound_add(g->blocks[a->prefix[i]].cost, 1));
    }
    return ms_bound_add(cost, ms_bound_times(ms_bound_add(g->blocks[a->items].cost, 1), items));
}

/* From a place between items to behind the closing bracket. */
static uint32_t array_rest(const ms_grammar *g, const ms_matcher *m, const ms_array_block *a, const place *p) {
    uint32_t items = p->a < a->min ? a->min - p->a : 0;
    if (a->contained && p->b < a->min_contained && a->min_contained - p->b > items) items = a->min_contained - p->b;
    if (p->one && !items) items = 1;
    if (a->max != MS_UNLIMITED && (uint64_t)p->a + items > a->max) return MS_BOUND_NONE;
    uint32_t cost = items ? items_cost(g, m, a, p, items) : 0;
    return cost >= MS_BOUND_NONE ? MS_BOUND_NONE : ms_bound_add(cost - (!p->comma && items > 0 ? 1u : 0u), 1);
}

static bool more_items(const ms_matcher *m, const ms_frame *f) {
    const ms_array_block *a = m->g->blocks[f->block].array;
    place p = place_of(m, f);
    p.one = true;
    return (a->max == MS_UNLIMITED || f->a < a->max) && array_rest(m->g, m, a, &p) < MS_BOUND_NONE;
}

static uint32_t array_cost(const ms_matcher *m, const ms_frame *f) {
    const ms_array_block *a = m->g->blocks[f->block].array;
    place p = place_of(m, f);
    switch (f->phase) {
    case MS_PHASE_START: return m->g->blocks[f->block].cost;
    case MS_PHASE_END: return 1;
    case MS_PHASE_ITEM: one_more(&p); p.comma = true; break;
    case MS_PHASE_NEXT: p.one = true; break;
    case MS_PHASE_FIRST: break;
    default: p.comma = true;
    }
    return array_rest(m->g, m, a, &p);
}

bool ms_more_fits(const ms_matcher *m, const ms_frame *f) {
    return m->g->blocks[f->block].kind == MS_BLOCK_OBJECT ? more_members(m, f) : more_items(m, f);
}

bool ms_may_end(const ms_matcher *m, const ms_frame *f) {
    const ms_block *b = &m->g->blocks[f->block];
    if (b->kind == MS_BLOCK_OBJECT) {
        return b->object->next_required[f->a] == b->object->member_count && (!b->object->counted || f->b >= b->object->min);
    }
    return f->a >= b->array->min && (!b->array->contained || f->b >= b->array->min_contained);
}

/* ------------------------------------------------------------------ frames */

static uint32_t optional_argument(const ms_grammar *g, const void *members, uint32_t i) {
    const ms_block *b = members;
    return b->required[i] ? MS_BOUND_NONE : g->blocks[b->items[i]].cost;
}

/* Required members of a typed list, then the cheapest of the others. */
static uint32_t members_cost(const ms_grammar *g, const ms_block *b, uint32_t a, uint32_t done) {
    uint32_t cost = 0;
    uint64_t members = done;
    for (uint32_t i = a; i < b->count; i++) {
        if (!b->required[i]) continue;
        cost = ms_bound_add(cost, g->blocks[b->items[i]].cost);
        members++;
    }
    cheapest c = {0};
    for (; members < b->min && cost < MS_BOUND_NONE; members++) {
        cost = ms_bound_add(cost, next_cheapest(g, optional_argument, b, a, b->count, &c));
    }
    return b->max != MS_UNLIMITED && members > b->max ? MS_BOUND_NONE : cost;
}

static uint32_t digits_of(uint32_t v) {
    uint32_t n = 1;
    while (v /= 10) n++;
    return n;
}

uint32_t ms_cost_frame(const ms_matcher *m, const ms_frame *f) {
    const ms_block *b = &m->g->blocks[f->block];
    switch (b->kind) {
    case MS_BLOCK_DFA: {
        const ms_frame *up = &m->frames[f->parent];
        if (up->phase == MS_PHASE_ITEM && up->seen) return ms_taken_rest(m, f, NULL, 0);
        const ms_dfa *d = &m->g->dfas[b->dfa];
        return d->states ? d->dist[f->a] : MS_BOUND_NONE;
    }
    case MS_BLOCK_CONTROL: return 1;
    case MS_BLOCK_TEXT: return 0;
    case MS_BLOCK_SEQUENCE: return b->tail[f->a];
    case MS_BLOCK_CHOICE: return b->cost;
    case MS_BLOCK_REPEAT: return f->a < b->min ? ms_bound_times(block_cost(m, b->items[0]), b->min - f->a) : 0;
    case MS_BLOCK_NUMBER: return digits_of(f->a) - f->b;
    case MS_BLOCK_STRING: return ms_string_cost(m, f);
    case MS_BLOCK_OBJECT: return object_cost(m, f);
    case MS_BLOCK_MEMBERS: return members_cost(m->g, b, f->a, f->b);
    case MS_BLOCK_ARRAY: return array_cost(m, f);
    }
    return MS_BOUND_NONE;
}

/* ------------------------------------------------------------------ blocks */

static uint32_t string_block_cost(const ms_grammar *g, const ms_block *b) {
    uint32_t quotes = b->form == MS_STRING_RAW ? 0 : 2;
    if (b->dfa == MS_DFA_NONE) return b->min > b->max ? MS_BOUND_NONE : ms_bound_add(b->min < MS_BOUND_NONE ? b->min : MS_BOUND_NONE, quotes);
    const ms_dfa *d = &g->dfas[b->dfa];
    if (!d->states || d->dist[0] > b->max) return MS_BOUND_NONE;
    return ms_bound_add(b->weights[0], quotes);
}

static uint32_t object_block_cost(const ms_grammar *g, ms_object_block *o) {
    for (uint32_t i = o->member_count; i-- > 0;) {
        o->required_cost[i] = o->required_cost[i + 1];
        if (o->members[i].required) {
            o->required_cost[i] = ms_bound_add(o->required_cost[i], member_cost(g, &o->members[i]));
        }
    }
    return ms_bound_add(1, object_rest(g, NULL, o, &(place){0}));
}

/* One look at a block with the costs of the others as they are. */
static uint32_t look(const ms_grammar *g, ms_block *b) {
    uint32_t best = MS_BOUND_NONE;
    switch (b->kind) {
    case MS_BLOCK_DFA: return g->dfas[b->dfa].states ? g->dfas[b->dfa].dist[0] : MS_BOUND_NONE;
    case MS_BLOCK_CONTROL: return 1;
    case MS_BLOCK_TEXT: return 0;
    case MS_BLOCK_SEQUENCE:
        for (uint32_t i = b->count; i-- > 0;) b->tail[i] = ms_bound_add(b->tail[i + 1], g->blocks[b->items[i]].cost);
        return b->tail[0];
    case MS_BLOCK_CHOICE:
        for (uint32_t i = 0; i < b->count; i++)
            if (g->blocks[b->items[i]].cost < best) best = g->blocks[b->items[i]].cost;
        return best;
    case MS_BLOCK_REPEAT: return b->min > b->max ? best : ms_bound_times(g->blocks[b->items[0]].cost, b->min);
    case MS_BLOCK_NUMBER: return 10;
    case MS_BLOCK_STRING: return string_block_cost(g, b);
    case MS_BLOCK_OBJECT: return object_block_cost(g, b->object);
    case MS_BLOCK_MEMBERS: return members_cost(g, b, 0, 0);
    case MS_BLOCK_ARRAY: return ms_bound_add(1, array_rest(g, NULL, b->array, &(place){0}));
    }
    return best;
}

/* Which blocks are made of a block: those of `first[b]` up to `first[b + 1]`. */
typedef struct uses {
    uint32_t *first, *users, *queue;
    uint8_t *queued;
} uses;

typedef void part_fn(uses *u, uint32_t part, uint32_t user);

static void count_use(uses *u, uint32_t part, uint32_t user) {
    (void)user;
    u->first[part + 1]++;
}

static void note_use(uses *u, uint32_t part, uint32_t user) { u->users[u->first[part]++] = user; }

static void each_part(const ms_grammar *g, uint32_t user, part_fn *fn, uses *u) {
    const ms_block *b = &g->blocks[user];
    const ms_object_block *o = b->object;
    const ms_array_block *a = b->array;
    for (uint32_t i = 0; i < b->count; i++) fn(u, b->items[i], user);
    for (uint32_t i = 0; o && i < o->member_count; i++) fn(u, o->members[i].value, user);
    for (uint32_t i = 0; o && i < o->extra_count; i++) {
        fn(u, o->extras[i].leaf, user);
        fn(u, o->extras[i].value, user);
    }
    for (uint32_t i = 0; a && i < a->prefix_count; i++) fn(u, a->prefix[i], user);
    for (uint32_t i = 0; a && i < a->class_count; i++) fn(u, a->classes[i].leaf, user);
    if (!a) return;
    fn(u, a->items, user);
    fn(u, a->contained, user);
    fn(u, a->other, user);
}

static bool find_uses(const ms_grammar *g, uses *u) {
    u->first = calloc((size_t)g->count + 2, sizeof *u->first);
    u->queue = malloc(((size_t)g->count + 1) * sizeof *u->queue);
    u->queued = malloc((size_t)g->count + 1);
    if (!u->first || !u->queue || !u->queued) return false;
    for (uint32_t i = 0; i < g->count; i++) each_part(g, i, count_use, u);
    for (uint32_t i = 0; i < g->count; i++) u->first[i + 1] += u->first[i];
    u->users = malloc(((size_t)u->first[g->count] + 1) * sizeof *u->users);
    if (!u->users) return false;
    for (uint32_t i = 0; i < g->count; i++) each_part(g, i, note_use, u);
    for (uint32_t i = g->count; i-- > 0;) u->first[i + 1] = u->first[i]; /* noting has moved them on */
    u->first[0] = 0;
    return true;
}

/* Looks at blocks while one may have fallen: at all of them, later ones first, then at what is made of one that fell. */
static void let_fall(ms_grammar *g, uses *u, uint64_t *work) {
    uint32_t head = 0, waiting = g->count;
    for (uint32_t i = 0; i < g->count; i++) u->queue[i] = g->count - 1 - i;
    memset(u->queued, 1, g->count);
    while (waiting && *work) {
        uint32_t at = u->queue[head];
        ms_block *b = &g->blocks[at];
        uint64_t steps = 1 + b->count + (b->object ? b->object->member_count : 0) + (b->array ? b->array->prefix_count : 0);
        uint32_t cost = look(g, b);
        head = head + 1 < g->count ? head + 1 : 0;
        waiting--;
        u->queued[at] = 0;
        *work = *work > steps ? *work - steps : 0;
        if (cost >= b->cost) continue;
        b->cost = cost;
        for (uint32_t k = u->first[at]; k < u->first[at + 1]; k++) {
            uint32_t user = u->users[k];
            if (u->queued[user]) continue;
            u->queued[user] = 1;
            u->queue[(head + waiting++) % g->count] = user;
        }
    }
}

ms_status ms_cost_blocks(ms_grammar *g, ms_error *err) {
    uint64_t work = UINT64_C(4000000) + 64 * (uint64_t)g->count;
    uses u = {0};
    bool good = find_uses(g, &u);
    if (good) let_fall(g, &u, &work);
    free(u.first);
    free(u.users);
    free(u.queue);
    free(u.queued);
    if (!good) return ms_fail_memory(err, "a grammar", g->count * sizeof *u.queue);
    if (!work) return ms_fail(err, MS_ERR_USAGE, "expected rules whose shortest text is found in fewer steps");
    return MS_OK;
}
