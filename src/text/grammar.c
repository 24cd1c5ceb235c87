/* grammar.c: building blocks (grammar.h). */
#include "text/grammar_internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"

enum { MAX_BLOCKS = 1 << 20, MAX_INDENT = 32, COUNT_WORK = 2000000, SCHEMA_WORK = 8000000, ENOUGH_WORDS = 1 << 20 };

static bool failed(const ms_grammar *g) { return g->status != MS_OK; }

static void *allocate(ms_grammar *g, size_t count, size_t size) {
    if (failed(g)) return NULL;
    void *p = calloc(count ? count : 1, size);
    if (!p) g->status = ms_fail_memory(&g->error, "a grammar", count * size);
    return p;
}

static void *duplicate(ms_grammar *g, const void *data, size_t count, size_t size) {
    void *p = allocate(g, count, size);
    if (p && count) memcpy(p, data, count * size);
    return p;
}

static ms_block *add(ms_grammar *g, ms_block_kind kind, uint32_t *id) {
    *id = 0;
    if (failed(g)) return NULL;
    if (g->count == MAX_BLOCKS) {
        g->status = ms_fail(&g->error, MS_ERR_USAGE, "grammar: expected at most %d blocks, found more", MAX_BLOCKS);
        return NULL;
    }
    if (g->count == g->cap) {
        uint32_t cap = g->cap ? g->cap * 2 : 64;
        ms_block *blocks = realloc(g->blocks, cap * sizeof *blocks);
        if (!blocks) {
            g->status = ms_fail_memory(&g->error, "a grammar", cap * sizeof *blocks);
            return NULL;
        }
        g->blocks = blocks;
        g->cap = cap;
    }
    *id = g->count++;
    g->blocks[*id] = (ms_block){.kind = kind, .dfa = MS_DFA_NONE, .cost = MS_BOUND_NONE};
    return &g->blocks[*id];
}

/* Takes the automaton over, also when it fails. */
static uint32_t own_dfa(ms_grammar *g, ms_dfa *d) {
    if (!failed(g) && g->dfa_count == g->dfa_cap) {
        uint32_t cap = g->dfa_cap ? g->dfa_cap * 2 : 32;
        ms_dfa *dfas = realloc(g->dfas, cap * sizeof *dfas);
        if (!dfas) {
            g->status = ms_fail_memory(&g->error, "a grammar", cap * sizeof *dfas);
        } else {
            g->dfas = dfas;
            g->dfa_cap = cap;
        }
    }
    if (failed(g)) {
        ms_dfa_clear(d);
        return 0;
    }
    g->dfas[g->dfa_count] = *d;
    *d = (ms_dfa){0};
    return g->dfa_count++;
}

/* ------------------------------------------------------------------ white space */

static void space_edges(const void *arg, const void *key, ms_dfa_sink *sink) {
    (void)arg;
    uint32_t k = *(const uint32_t *)key, last = MAX_INDENT + 2, line = 1, deeper = k + 1;
    if (k == 0) {
        ms_dfa_emit(sink, '\n', '\n', &line);
        ms_dfa_emit(sink, ' ', ' ', &last);
    } else if (k <= MAX_INDENT) {
        ms_dfa_emit(sink, '\t', '\t', &deeper);
        ms_dfa_emit(sink, ' ', ' ', &deeper);
    }
}

static bool space_accept(const void *arg, const void *key) {
    (void)arg;
    (void)key;
    return true;
}

/* Nothing, one space, or a line end with bounded indentation. */
static void add_space(ms_grammar *g) {
    static const uint32_t start = 0;
    ms_dfa d;
    ms_dfa_source src = {NULL, sizeof start, &start, space_edges, space_accept};
    g->status = ms_dfa_build(&d, &src, MAX_INDENT + 3, NULL, &g->error);
    if (!failed(g)) g->space = ms_grammar_dfa(g, &d);
}

ms_status ms_grammar_create(ms_grammar **out, ms_error *err) {
    *out = NULL;
    ms_grammar *g = calloc(1, sizeof *g);
    if (!g) return ms_fail_memory(err, "a grammar", sizeof *g);
    g->count_work = COUNT_WORK;
    g->schema_work = SCHEMA_WORK;
    uint32_t id;
    (void)add(g, MS_BLOCK_CHOICE, &id); /* 0: nothing fits */
    if (!failed(g)) add_space(g);
    ms_status status = g->status;
    if (failed(g)) {
        if (err) *err = g->error;
        ms_grammar_free(g);
        return status;
    }
    *out = g;
    return MS_OK;
}

static void free_object(ms_object_block *o) {
    if (!o) return;
    for (uint32_t i = 0; o->members && i < o->member_count; i++) free(o->members[i].literal);
    for (uint32_t i = 0; o->extras && i < o->extra_count; i++) free(o->extras[i].levels);
    free(o->members);
    free(o->sorted);
    free(o->rank);
    free(o->next_required);
    free(o->required_cost);
    free(o->required_left);
    free(o->extras);
    free(o);
}

static void free_array(ms_array_block *a) {
    if (!a) return;
    for (uint32_t i = 0; a->classes && i < a->class_count; i++) free(a->classes[i].levels);
    free(a->classes);
    free(a->prefix);
    free(a->prefix_cost);
    free(a);
}

void ms_grammar_free(ms_grammar *g) {
    if (!g) return;
    for (uint32_t i = 0; i < g->count; i++) {
        ms_block *b = &g->blocks[i];
        free(b->items);
        free(b->tail);
        free(b->required);
        free(b->weights);
        free_object(b->object);
        free_array(b->array);
    }
    for (uint32_t i = 0; i < g->dfa_count; i++) ms_dfa_clear(&g->dfas[i]);
    free(g->blocks);
    free(g->dfas);
    free(g);
}

/* ------------------------------------------------------------------ plain blocks */

uint32_t ms_grammar_dfa(ms_grammar *g, ms_dfa *bytes) {
    uint32_t id, dfa = own_dfa(g, bytes);
    ms_block *b = add(g, MS_BLOCK_DFA, &id);
    if (b) b->dfa = dfa;
    return id;
}

uint32_t ms_grammar_literal(ms_grammar *g, const char *text, size_t len) {
    if (failed(g)) return 0;
    ms_dfa d;
    ms_word w = {text, len};
    g->status = ms_dfa_words(&d, &w, 1, false, NULL, &g->error);
    return failed(g) ? 0 : ms_grammar_dfa(g, &d);
}

uint32_t ms_grammar_control(ms_grammar *g, uint32_t offset) {
    uint32_t id;
    ms_block *b = add(g, MS_BLOCK_CONTROL, &id);
    if (!b) return 0;
    b->symbol = MS_SYMBOL_CONTROL + (offset & 255);
    g->control_used[offset & 255] = true;
    return id;
}

uint32_t ms_grammar_text(ms_grammar *g) {
    uint32_t id;
    (void)add(g, MS_BLOCK_TEXT, &id);
    return id;
}

static uint32_t list_block(ms_grammar *g, ms_block_kind kind, const uint32_t *items, size_t count) {
    uint32_t id, *copy = duplicate(g, items, count, sizeof *items);
    ms_block *b = add(g, kind, &id);
    if (!b) {
        free(copy);
        return 0;
    }
    b->items = copy;
    b->count = (uint32_t)count;
    return id;
}

uint32_t ms_grammar_sequence(ms_grammar *g, const uint32_t *items, size_t count) {
    uint32_t id = list_block(g, MS_BLOCK_SEQUENCE, items, count);
    if (id) g->blocks[id].tail = allocate(g, count + 1, sizeof(uint32_t));
    return id;
}

uint32_t ms_grammar_choice(ms_grammar *g, const uint32_t *items, size_t count) {
    return list_block(g, MS_BLOCK_CHOICE, items, count);
}

uint32_t ms_grammar_reserve(ms_grammar *g) { return list_block(g, MS_BLOCK_CHOICE, NULL, 0); }

void ms_grammar_define(ms_grammar *g, uint32_t reserved, const uint32_t *items, size_t count) {
    uint32_t *copy = duplicate(g, items, count, sizeof *items);
    if (!copy) return;
    free(g->blocks[reserved].items);
    g->blocks[reserved].items = copy;
    g->blocks[reserved].count = (uint32_t)count;
}

uint32_t ms_grammar_repeat(ms_grammar *g, uint32_t item, uint32_t min, uint32_t max) {
    uint32_t id = list_block(g, MS_BLOCK_REPEAT, &item, 1);
    if (id) g->blocks[id].min = min, g->blocks[id].max = max;
    return id;
}

uint32_t ms_grammar_number_of_item(ms_grammar *g) {
    uint32_t id;
    (void)add(g, MS_BLOCK_NUMBER, &id);
    return id;
}

uint32_t ms_grammar_members(ms_grammar *g, const uint32_t *blocks, const bool *required, size_t count, uint32_t min,
                            uint32_t max) {
    uint32_t id = list_block(g, MS_BLOCK_MEMBERS, blocks, count);
    if (!id) return 0;
    g->blocks[id].required = duplicate(g, required, count, sizeof *required);
    g->blocks[id].min = min;
    g->blocks[id].max = max;
    return failed(g) ? 0 : id;
}

/* ------------------------------------------------------------------ strings */

static uint32_t weight_of(const ms_dfa *d, ms_string_form form, const uint32_t *weights, uint32_t state) {
    uint32_t best = d->dist[state] ? MS_BOUND_NONE : 0;
    for (uint32_t e = d->first[state]; best && e < d->first[state + 1]; e++) {
        const ms_dfa_edge *x = &d->edges[e];
        if (d->dist[x->to] + 1 != d->dist[state]) continue;
        uint32_t cost = ms_bound_add(ms_char_cost(form, x->lo, x->hi), weights[x->to]);
        if (cost < best) best = cost;
    }
    return best;
}

/* Bytes to the end along a shortest word, so that a maximal length is never exceeded on the way. */
static void fill_weights(ms_grammar *g, const ms_dfa *d, ms_string_form form, uint32_t *weights) {
    uint32_t longest = 0;
    for (uint32_t i = 0; i < d->states; i++) longest = d->dist[i] > longest ? d->dist[i] : longest;
    uint32_t *first = allocate(g, (size_t)longest + 2, sizeof *first), *order = allocate(g, d->states, sizeof *order);
    for (uint32_t i = 0; first && order && i < d->states; i++) first[d->dist[i] + 1]++;
    for (uint32_t k = 0; first && order && k <= longest; k++) first[k + 1] += first[k];
    for (uint32_t i = 0; first && order && i < d->states; i++) order[first[d->dist[i]]++] = i;
    for (uint32_t i = 0; first && order && i < d->states; i++)
        weights[order[i]] = weight_of(d, form, weights, order[i]);
    free(first);
    free(order);
}

uint32_t ms_grammar_string(ms_grammar *g, const ms_string_rule *rule) {
    uint32_t id, dfa = rule->dfa ? own_dfa(g, rule->dfa) : MS_DFA_NONE;
    ms_block *b = add(g, MS_BLOCK_STRING, &id);
    if (!b) return 0;
    b->form = rule->form;
    b->dfa = dfa;
    b->min = rule->min;
    b->max = rule->max;
    if (dfa == MS_DFA_NONE) return id;
    uint32_t *weights = allocate(g, g->dfas[dfa].states, sizeof *weights);
    if (!weights) return 0;
    g->blocks[id].weights = weights;
    fill_weights(g, &g->dfas[dfa], rule->form, weights);
    return failed(g) ? 0 : id;
}

/* ------------------------------------------------------------------ distinct texts */

/* Counts the shortest texts of a leaf: as many as a lower bound can ask for, and more while that is quick. */
static void fill_levels(ms_grammar *g, ms_distinct *d, uint32_t wanted) {
    if (wanted > MS_DISTINCT_MAX) wanted = MS_DISTINCT_MAX;
    ms_dfa_level *found = allocate(g, MS_DISTINCT_MAX, sizeof *found);
    if (!found) return;
    const ms_block *b = &g->blocks[d->leaf];
    bool quoted = b->kind == MS_BLOCK_STRING;
    uint32_t count = 2;
    if (b->dfa == MS_DFA_NONE) { /* the empty text, then single characters */
        found[0] = (ms_dfa_level){0, 1};
        found[1] = (ms_dfa_level){1, ENOUGH_WORDS};
    } else {
        ms_dfa_count what = {wanted, ENOUGH_WORDS, found, MS_DISTINCT_MAX};
        g->status = ms_dfa_count_words(&g->dfas[b->dfa], &what, &count, &g->count_work, &g->error);
    }
    d->levels = allocate(g, count, sizeof *d->levels);
    for (uint32_t i = 0; d->levels && i < count; i++) {
        const ms_level *last = i ? &d->levels[i - 1] : &(ms_level){0};
        uint32_t length = quoted ? ms_bound_add(ms_bound_times(found[i].length, 6), 2) : found[i].length;
        uint64_t more = found[i].words - last->words;
        d->levels[i] = (ms_level){length, found[i].words, last->bytes + more * length};
        d->level_count = i + 1;
    }
    uint64_t words = d->level_count ? d->levels[d->level_count - 1].words : 0;
    d->known = words < wanted ? (uint32_t)words : wanted;
    free(found);
    if (!failed(g) && !g->count_work && d->known < wanted)
        g->status = ms_fail(&g->error, MS_ERR_USAGE, "expected texts that must differ to be counted in fewer steps");
}

/* ------------------------------------------------------------------ objects */

static void copy_member(ms_grammar *g, ms_member *out, const ms_member_rule *in) {
    ms_text t = {0};
    ms_json_write_string(&t, in->key, in->key_len);
    if (t.failed || t.len > UINT32_MAX / 2) {
        ms_text_free(&t);
        g->status = ms_fail_memory(&g->error, "a grammar", in->key_len);
        return;
    }
    *out = (ms_member){.literal = t.data, .literal_len = (uint32_t)t.len, .value = in->value, .required = in->required};
}

static int by_literal(const void *x, const void *y, void *arg) {
    const ms_member *members = arg, *a = &members[*(const uint32_t *)x], *b = &members[*(const uint32_t *)y];
    uint32_t n = a->literal_len < b->literal_len ? a->literal_len : b->literal_len;
    int c = memcmp(a->literal, b->literal, n);
    return c ? c : (a->literal_len > b->literal_len) - (a->literal_len < b->literal_len);
}

static void copy_extras(ms_grammar *g, ms_object_block *o, const ms_object_rule *rule) {
    o->extras = allocate(g, rule->extra_count, sizeof *o->extras);
    for (size_t i = 0; i < rule->extra_count; i++) {
        const ms_extra_rule *x = &rule->extras[i];
        ms_string_rule key = {.form = MS_STRING_CANONICAL, .dfa = x->key, .max = MS_UNLIMITED};
        uint32_t leaf = ms_grammar_string(g, &key); /* also after a failure: it takes the automaton */
        if (failed(g)) continue;
        o->extras[i] = (ms_distinct){.leaf = leaf, .number = (uint32_t)i, .value = x->value};
        o->extra_count = (uint32_t)i + 1;
        fill_levels(g, &o->extras[i], rule->min);
    }
}

uint32_t ms_grammar_object(ms_grammar *g, const ms_object_rule *rule) {
    size_t n = rule->member_count;
    ms_object_block empty = {0}, *o = allocate(g, 1, sizeof *o);
    if (!o) {
        copy_extras(g, &empty, rule);
        free(empty.extras);
        return 0;
    }
    o->min = rule->min;
    o->max = rule->max;
    o->counted = rule->min > 0 || rule->max != MS_UNLIMITED;
    o->members = allocate(g, n, sizeof *o->members);
    o->sorted = allocate(g, n, sizeof *o->sorted);
    o->rank = allocate(g, n, sizeof *o->rank);
    o->next_required = allocate(g, n + 1, sizeof *o->next_required);
    o->required_cost = allocate(g, n + 1, sizeof *o->required_cost);
    o->required_left = allocate(g, n + 1, sizeof *o->required_left);
    for (size_t i = 0; i < n && !failed(g); i++) {
        copy_member(g, &o->members[i], &rule->members[i]);
        o->sorted[i] = (uint32_t)i;
        o->member_count = (uint32_t)i + 1;
    }
    copy_extras(g, o, rule);
    uint32_t id;
    ms_block *b = add(g, MS_BLOCK_OBJECT, &id);
    if (!b) {
        free_object(o);
        return 0;
    }
    b->object = o;
    qsort_r(o->sorted, n, sizeof *o->sorted, by_literal, o->members);
    for (size_t i = 0; i < n; i++) o->rank[o->sorted[i]] = (uint32_t)i;
    o->next_required[n] = (uint32_t)n;
    for (size_t i = n; i-- > 0;) {
        o->next_required[i] = o->members[i].required ? (uint32_t)i : o->next_required[i + 1];
        o->required_left[i] = o->required_left[i + 1] + o->members[i].required;
    }
    return id;
}

/* ------------------------------------------------------------------ arrays */

static void copy_classes(ms_grammar *g, ms_array_block *a, const ms_array_rule *rule) {
    const ms_block *items = &g->blocks[rule->items];
    bool choice = items->kind == MS_BLOCK_CHOICE;
    uint32_t n = choice ? items->count : 1;
    a->classes = allocate(g, n, sizeof *a->classes);
    for (uint32_t i = 0; i < n && !failed(g); i++) {
        a->classes[i] = (ms_distinct){.leaf = choice ? g->blocks[rule->items].items[i] : rule->items, .number = i};
        a->class_count = i + 1;
        fill_levels(g, &a->classes[i], rule->min);
    }
}

uint32_t ms_grammar_array(ms_grammar *g, const ms_array_rule *rule) {
    ms_array_block *a = allocate(g, 1, sizeof *a);
    if (!a) return 0;
    *a = (ms_array_block){.prefix_count = (uint32_t)rule->prefix_count,
                          .items = rule->items,
                          .min = rule->min,
                          .max = rule->max,
                          .contained = rule->contained,
                          .other = rule->other,
                          .min_contained = rule->min_contained,
                          .max_contained = rule->max_contained,
                          .unique = rule->unique};
    a->prefix = duplicate(g, rule->prefix, rule->prefix_count, sizeof *a->prefix);
    a->prefix_cost = allocate(g, rule->prefix_count + 1, sizeof *a->prefix_cost);
    if (rule->unique && !failed(g)) copy_classes(g, a, rule);
    a->clamp = rule->max != MS_UNLIMITED ? MS_UNLIMITED : rule->min > a->prefix_count ? rule->min : a->prefix_count;
    a->contained_clamp = rule->max_contained != MS_UNLIMITED ? MS_UNLIMITED : rule->min_contained;
    uint32_t id;
    ms_block *b = add(g, MS_BLOCK_ARRAY, &id);
    if (!b) {
        free_array(a);
        return 0;
    }
    b->array = a;
    return id;
}

/* ------------------------------------------------------------------ end */

bool ms_grammar_is_empty(const ms_grammar *g, uint32_t block) { return g->blocks[block].cost >= MS_BOUND_NONE; }

uint64_t *ms_grammar_work(ms_grammar *g) { return &g->schema_work; }

ms_status ms_grammar_status(const ms_grammar *g) { return g->status; }

ms_status ms_grammar_finish(ms_grammar *g, uint32_t root, ms_error *err) {
    if (!failed(g)) g->status = ms_cost_blocks(g, &g->error);
    for (uint32_t i = 1; i < g->count && !failed(g); i++) {
        const ms_block *b = &g->blocks[i];
        if (b->kind == MS_BLOCK_REPEAT && b->max == MS_UNLIMITED && g->blocks[b->items[0]].cost == 0) {
            g->status = ms_fail(&g->error, MS_ERR_INTERNAL, "grammar: expected a repeated block that reads something");
        }
    }
    if (failed(g)) {
        if (err) *err = g->error;
        return g->status;
    }
    g->root = root;
    uint32_t least = g->blocks[root].cost;
    if (least >= MS_BOUND_NONE) return ms_fail(err, MS_ERR_USAGE, "expected rules that some text fits");
    if (least > MS_LEAST_MAX)
        return ms_fail(err, MS_ERR_USAGE, "expected rules that a text of %d bytes or less fits, found at least %u",
                       MS_LEAST_MAX, least);
    return MS_OK;
}
