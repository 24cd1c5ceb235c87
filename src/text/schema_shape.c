/* schema_shape.c: one alternative, schemas that all hold, as blocks by type (schema_compile.h).
 *
 * Values that can be listed (enum, const, null, booleans) are listed and checked against the schemas; numbers and strings
 * become automata; arrays and objects refer to the sets of their parts.
 */
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "text/schema_compile.h"

enum { MAX_PATTERNS = 6, MAX_MINIMUM = 1 << 16 }; /* MAX_MINIMUM: steps to the members that a lower bound asks for */
enum { BIT_INTEGER = 1 << MS_JSON_TYPES, ALL_TYPES = (1 << (MS_JSON_TYPES + 1)) - 1 };

void ms_shapes_add(ms_compiler *c, ms_shapes *out, ms_json_type type, uint32_t block) {
    if (type == MS_JSON_TRUE) type = MS_JSON_FALSE;
    if (!block || c->status != MS_OK) return;
    size_t n = out->of[type].count;
    if (n == out->of[type].cap) {
        size_t cap = n ? n * 2 : 4;
        uint32_t *items = realloc(out->of[type].items, cap * sizeof *items);
        if (!items) {
            ms_compile_status(c, ms_fail_memory(c->err, "a schema", cap * sizeof *items));
            return;
        }
        out->of[type].items = items;
        out->of[type].cap = cap;
    }
    out->of[type].items[out->of[type].count++] = block;
}

void ms_shapes_free(ms_shapes *s) {
    for (int i = 0; i < MS_JSON_TYPES; i++) free(s->of[i].items);
    *s = (ms_shapes){0};
}

/* ------------------------------------------------------------------ types */

/* Bits 1 << MS_JSON_...; 1 << MS_JSON_NUMBER stands for numbers that are not integers, BIT_INTEGER for those that are. */
static unsigned types_of(const ms_json *k) {
    static const struct {
        const char *name;
        unsigned bits;
    } known[] = {{"null", 1 << MS_JSON_NULL},
                 {"boolean", 1 << MS_JSON_FALSE | 1 << MS_JSON_TRUE},
                 {"integer", BIT_INTEGER},
                 {"number", 1 << MS_JSON_NUMBER | BIT_INTEGER},
                 {"string", 1 << MS_JSON_STRING},
                 {"array", 1 << MS_JSON_ARRAY},
                 {"object", 1 << MS_JSON_OBJECT}};
    unsigned bits = 0;
    for (const ms_json *t = k->type == MS_JSON_ARRAY ? k->child : k; t; t = k->type == MS_JSON_ARRAY ? t->next : NULL) {
        for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
            if (ms_json_is_string(t, known[i].name)) bits |= known[i].bits;
    }
    return bits;
}

static unsigned common_types(const ms_set *a) {
    unsigned bits = ALL_TYPES;
    for (size_t i = 0; i < a->count; i++) {
        const ms_json *k = ms_json_get(a->items[i], "type");
        if (k) bits &= types_of(k);
        k = ms_json_get(a->items[i], "not");
        if (k && k->count == 1 && ms_json_is_string(ms_json_get(k, "type"), "integer")) bits &= ~(unsigned)BIT_INTEGER;
    }
    return bits;
}

static const ms_json *find(const ms_set *a, const char *keyword, const ms_json **owner) {
    for (size_t i = 0; i < a->count; i++) {
        const ms_json *k = ms_json_get(a->items[i], keyword);
        if (k) {
            if (owner) *owner = a->items[i];
            return k;
        }
    }
    return NULL;
}

/* The largest of the lower or smallest of the upper counts. */
static uint32_t count_of(const ms_set *a, const char *keyword, bool lower) {
    uint64_t best = lower ? 0 : MS_UNLIMITED;
    for (size_t i = 0; i < a->count; i++) {
        uint64_t n;
        const ms_json *k = ms_json_get(a->items[i], keyword);
        if (k && ms_schema_size(k, &n) && (lower ? n > best : n < best)) best = n;
    }
    return lower && best > MS_BOUND_NONE ? MS_BOUND_NONE : (uint32_t)best;
}

/* ------------------------------------------------------------------ listed values */

static void write_value(ms_text *t, const ms_json *v) {
    if (v->type == MS_JSON_NUMBER) {
        ms_text_append(t, v->raw, v->raw_len); /* its own spelling: no rounding */
    } else if (v->type == MS_JSON_STRING) {
        ms_json_write_string(t, v->str, v->str_len);
    } else if (v->type == MS_JSON_ARRAY || v->type == MS_JSON_OBJECT) {
        ms_text_puts(t, v->type == MS_JSON_ARRAY ? "[" : "{");
        for (const ms_json *x = v->child; x; x = x->next) {
            if (v->type == MS_JSON_OBJECT) {
                ms_json_write_string(t, x->key, x->key_len);
                ms_text_puts(t, ":");
            }
            write_value(t, x);
            if (x->next) ms_text_puts(t, ",");
        }
        ms_text_puts(t, v->type == MS_JSON_ARRAY ? "]" : "}");
    } else {
        ms_text_puts(t, v->type == MS_JSON_NULL ? "null" : v->type == MS_JSON_TRUE ? "true" : "false");
    }
}

static bool holds(ms_compiler *c, const ms_set *a, const ms_json *v) {
    bool valid = true;
    for (size_t i = 0; i < a->count && valid; i++) valid = ms_compile_check(c, a->items[i], v);
    return valid;
}

static uint32_t word_block(ms_compiler *c, const ms_word *words, size_t count) {
    ms_dfa d;
    if (!count || c->status != MS_OK) return 0;
    ms_compile_status(c, ms_dfa_words(&d, words, count, false, &c->work, c->err));
    return c->status == MS_OK ? ms_grammar_dfa(c->g, &d) : 0;
}

typedef struct value_list {
    const ms_json **items;
    ms_word *words;
    size_t count;
} value_list;

static bool number_is_listed(ms_compiler *c, const value_list *l, const ms_json *v) {
    enum { PER_STEP = 16 };
    if (!ms_compile_work(c, l->count / PER_STEP)) return true;
    for (size_t i = 0; i < l->count; i++)
        if (ms_schema_equal(v, l->items[i])) return true;
    return false;
}

static bool is_bare(const ms_compiler *c, ms_form form, const ms_json *v) {
    return form == MS_FORM_TYPED || (form == MS_FORM_BARE && ms_is_unquoted(&c->unquoted, v->str, v->str_len));
}

/* Blocks of the values of a list (siblings; or one) that hold, by type. */
static void listed(ms_compiler *c, const ms_set *a, const ms_json *first, bool one, ms_form form, ms_shapes *out) {
    size_t n = 0;
    c->keyword = one ? "const" : "enum";
    for (const ms_json *v = first; v; v = one ? NULL : v->next) n++;
    value_list l = {.items = malloc((n + 1) * sizeof *l.items), .words = malloc((n + 1) * sizeof *l.words)};
    if (!l.items || !l.words) ms_compile_status(c, ms_fail_memory(c->err, "a schema", n * sizeof *l.words));
    for (int type = MS_JSON_NULL; type < MS_JSON_TYPES && c->status == MS_OK; type++) {
        l.count = 0;
        for (const ms_json *v = first; v && c->status == MS_OK; v = one ? NULL : v->next) {
            if ((int)v->type != type || !holds(c, a, v)) continue;
            if ((type == MS_JSON_ARRAY || type == MS_JSON_OBJECT) && ms_compile_null_is_open(c, v)) continue;
            if (form == MS_FORM_UNIQUE && (type == MS_JSON_ARRAY || type == MS_JSON_OBJECT)) {
                ms_compile_fail(c, c->current, "uniqueItems", "expected scalar items");
            }
            if (form == MS_FORM_UNIQUE && type == MS_JSON_NUMBER && number_is_listed(c, &l, v)) continue;
            ms_text t = {0};
            if (type == MS_JSON_STRING && is_bare(c, form, v)) ms_text_append(&t, v->str, v->str_len);
            else write_value(&t, v);
            if (c->end && t.len && memmem(t.data, t.len, c->end, strlen(c->end))) {
                ms_text_free(&t);
                continue;
            }
            char *kept = ms_compile_alloc(c, t.len + 1);
            if (kept && t.len) memcpy(kept, t.data, t.len);
            if (t.failed) ms_compile_status(c, ms_fail_memory(c->err, "a schema", t.len));
            l.items[l.count] = v;
            l.words[l.count++] = (ms_word){kept, t.len};
            ms_text_free(&t);
        }
        ms_shapes_add(c, out, (ms_json_type)type, word_block(c, l.words, l.count));
    }
    free(l.items);
    free(l.words);
}

/* ------------------------------------------------------------------ numbers, strings */

static bool says_numbers(const ms_set *a) {
    static const char *const names[] = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "not"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (find(a, names[i], NULL)) return true;
    return false;
}

static void number_block(ms_compiler *c, const ms_set *a, unsigned types, ms_form form, ms_shapes *out) {
    ms_dfa d;
    bool fractions = types >> MS_JSON_NUMBER & 1, integers = types & BIT_INTEGER, bounded = says_numbers(a);
    ms_number_kind kind = !fractions ? MS_INTEGERS : integers ? MS_NUMBERS : MS_FRACTIONS;
    uint32_t *known = bounded || form == MS_FORM_UNIQUE ? NULL : &c->numbers[kind];
    if (known && *known) {
        ms_shapes_add(c, out, MS_JSON_NUMBER, *known);
        return;
    }
    c->keyword = find(a, "multipleOf", NULL) ? "multipleOf" : find(a, "minimum", NULL) ? "minimum" : "maximum";
    ms_number_language(c, a, kind, form == MS_FORM_UNIQUE, &d);
    if (c->status == MS_OK && d.states) {
        uint32_t block = ms_grammar_dfa(c->g, &d);
        if (known) *known = block;
        ms_shapes_add(c, out, MS_JSON_NUMBER, block);
    }
    ms_dfa_clear(&d);
}

/* The format that is all the schemas say about strings; MS_FORMAT_OTHER: there is none, or more. */
static ms_format_kind only_format(const ms_set *a) {
    static const char *const others[] = {"pattern", "minLength", "maxLength", "not"};
    ms_format_kind kind = MS_FORMAT_OTHER;
    for (size_t i = 0; i < a->count; i++) {
        const ms_json *k = ms_json_get(a->items[i], "format");
        if (k && kind != MS_FORMAT_OTHER) return MS_FORMAT_OTHER;
        if (k) kind = ms_schema_format(k);
        for (size_t n = 0; n < sizeof others / sizeof others[0]; n++)
            if (ms_json_get(a->items[i], others[n])) return MS_FORMAT_OTHER;
    }
    return kind;
}

static void string_block(ms_compiler *c, const ms_set *a, ms_form form, ms_shapes *out) {
    ms_format_kind format = form == MS_FORM_JSON && !c->end ? only_format(a) : MS_FORMAT_OTHER;
    if (format != MS_FORMAT_OTHER && c->formats[format]) {
        ms_shapes_add(c, out, MS_JSON_STRING, c->formats[format]);
        return;
    }
    ms_dfa d;
    bool any;
    c->keyword = find(a, "format", NULL) ? "format" : "pattern";
    ms_string_rule rule = {.form = MS_STRING_JSON};
    ms_string_language(c, a, form == MS_FORM_UNIQUE, &d, &any, &rule.min, &rule.max);
    if (form == MS_FORM_BARE) {
        ms_dfa bare;
        ms_unquoted_texts(c, &d, &bare);
        ms_string_rule raw = {.form = MS_STRING_RAW, .dfa = &bare, .min = rule.min, .max = rule.max};
        if (c->status == MS_OK && bare.states) ms_shapes_add(c, out, MS_JSON_STRING, ms_grammar_string(c->g, &raw));
        ms_dfa_clear(&bare);
    }
    if (form == MS_FORM_TYPED) rule.form = MS_STRING_RAW;
    else if (!any || form == MS_FORM_UNIQUE) rule.form = MS_STRING_CANONICAL;
    if (!any) rule.dfa = &d;
    if (c->status == MS_OK && (any || d.states)) {
        uint32_t block = ms_grammar_string(c->g, &rule);
        if (format != MS_FORMAT_OTHER) c->formats[format] = block;
        ms_shapes_add(c, out, MS_JSON_STRING, block);
    }
    ms_dfa_clear(&d);
}

/* ------------------------------------------------------------------ arrays */

/* What the schemas say about an item; prefix: of each schema the one of prefixItems, NULL: it is behind them. */
static void item_set(ms_compiler *c, const ms_set *a, const ms_json *const *prefix, ms_set *out) {
    for (size_t i = 0; i < a->count; i++) {
        const ms_json *item = prefix && prefix[i] ? prefix[i] : ms_json_get(a->items[i], "items");
        if (item) ms_set_add(c, out, item);
    }
}

static uint32_t item_block(ms_compiler *c, const ms_set *a, const ms_json *const *prefix, const ms_json *also) {
    ms_set set = {0};
    item_set(c, a, prefix, &set);
    if (also) ms_set_add(c, &set, also);
    uint32_t block = ms_compile_set(c, &set);
    ms_set_free(&set);
    return block;
}

typedef struct unique_items {
    ms_shapes shapes;
} unique_items;

static void unique_alternative(ms_compiler *c, void *arg, const ms_set *a) {
    unique_items *u = arg;
    ms_shape_blocks(c, a, MS_FORM_UNIQUE, &u->shapes);
}

/* Items in one spelling each, as a choice of leaves. */
static uint32_t unique_block(ms_compiler *c, const ms_set *a, uint32_t max) {
    if (max == 0) return 0;
    unique_items u = {0};
    ms_set set = {0};
    item_set(c, a, NULL, &set);
    ms_expand(c, &set, unique_alternative, &u);
    ms_set_free(&set);
    uint32_t all[64];
    size_t n = 0;
    if (u.shapes.of[MS_JSON_NUMBER].count > 1) {
        ms_compile_fail(c, c->current, "uniqueItems", "expected numbers in one branch of the items only");
    }
    for (int t = 0; t < MS_JSON_TYPES; t++) {
        for (size_t i = 0; i < u.shapes.of[t].count; i++) {
            if (n == sizeof all / sizeof all[0]) ms_compile_fail(c, c->current, "uniqueItems", "expected fewer branches");
            else all[n++] = u.shapes.of[t].items[i];
        }
    }
    ms_shapes_free(&u.shapes);
    return ms_grammar_choice(c->g, all, n);
}

/* Most items that `contains` may ask for: the shortest reply is gone through item by item, up to 4 ms each. */
enum { MAX_CONTAINED = 256 };

static void contains_blocks(ms_compiler *c, const ms_set *a, ms_array_rule *rule) {
    const ms_json *owner = NULL, *contains = NULL;
    for (size_t i = 0; i < a->count; i++) {
        const ms_json *k = ms_json_get(a->items[i], "contains");
        if (!k) continue;
        if (contains) ms_compile_fail(c, owner, "contains", "expected one contains about the same array");
        contains = k;
        owner = a->items[i];
    }
    if (!contains) return;
    uint64_t min = 1, max = MS_UNLIMITED;
    const ms_json *k = ms_json_get(owner, "minContains");
    if (k) (void)ms_schema_size(k, &min);
    if ((k = ms_json_get(owner, "maxContains"))) (void)ms_schema_size(k, &max);
    if (min == 0 && max >= MS_UNLIMITED) return;
    if (min > MAX_CONTAINED) {
        ms_compile_fail(c, owner, "minContains", "expected at most 256");
        return;
    }
    if (rule->prefix_count || rule->unique) {
        ms_compile_fail(c, owner, "contains", "expected neither prefixItems nor uniqueItems beside it");
        return;
    }
    rule->min_contained = (uint32_t)min;
    rule->max_contained = max < MS_UNLIMITED ? (uint32_t)max : MS_UNLIMITED;
    rule->contained = item_block(c, a, NULL, contains);
    if (!rule->contained) rule->contained = ms_grammar_choice(c->g, NULL, 0); /* nothing is of that kind, and it matters */
    const ms_json *none = NULL;
    if (rule->max_contained != MS_UNLIMITED) { /* what is not counted must not be of that kind */
        ms_json *o = ms_make_object(c);
        if (!o) return;
        ms_make_member(c, o, "not", contains);
        none = o;
    }
    rule->other = item_block(c, a, NULL, none);
}

static void prefix_blocks(ms_compiler *c, const ms_set *a, size_t count, uint32_t *blocks) {
    const ms_json **at = calloc(a->count + 1, sizeof *at);
    if (!at) ms_compile_status(c, ms_fail_memory(c->err, "a schema", a->count * sizeof *at));
    for (size_t i = 0; at && i < a->count; i++) {
        const ms_json *prefix = ms_json_get(a->items[i], "prefixItems");
        at[i] = prefix ? prefix->child : NULL;
    }
    for (size_t i = 0; at && i < count; i++) {
        blocks[i] = item_block(c, a, at, NULL);
        for (size_t k = 0; k < a->count; k++) at[k] = at[k] ? at[k]->next : NULL;
    }
    free(at);
}

static void array_block(ms_compiler *c, const ms_set *a, ms_shapes *out) {
    ms_array_rule rule = {.min = count_of(a, "minItems", true), .max = count_of(a, "maxItems", false),
                          .max_contained = MS_UNLIMITED};
    uint32_t *prefix = NULL;
    for (size_t i = 0; i < a->count; i++) {
        const ms_json *k = ms_json_get(a->items[i], "prefixItems"), *u = ms_json_get(a->items[i], "uniqueItems");
        if (k && k->count > rule.prefix_count) rule.prefix_count = k->count;
        rule.unique = rule.unique || (u && u->type == MS_JSON_TRUE);
    }
    if (rule.max <= 1) rule.unique = false;
    if (rule.unique && (rule.prefix_count || rule.min > MS_DISTINCT_MAX)) {
        ms_compile_fail(c, c->current, "uniqueItems", "expected no prefixItems and at most 4096 minItems beside it");
        return;
    }
    if (rule.prefix_count > rule.max) rule.prefix_count = rule.max;
    if (rule.prefix_count && !(prefix = malloc(rule.prefix_count * sizeof *prefix))) {
        ms_compile_status(c, ms_fail_memory(c->err, "a schema", rule.prefix_count * sizeof *prefix));
        return;
    }
    prefix_blocks(c, a, rule.prefix_count, prefix);
    rule.prefix = prefix;
    rule.items = rule.unique ? unique_block(c, a, rule.max) : item_block(c, a, NULL, NULL);
    contains_blocks(c, a, &rule);
    if (c->status == MS_OK) ms_shapes_add(c, out, MS_JSON_ARRAY, ms_grammar_array(c->g, &rule));
    free(prefix);
}

/* ------------------------------------------------------------------ objects */

static bool pattern_matches(ms_compiler *c, const ms_json *pattern, const char *key, size_t len) {
    bool found = false;
    const ms_regex *r = ms_schema_regex(c->s, pattern->key, pattern->key_len);
    if (r) ms_compile_status(c, ms_regex_search(r, key, len, &found, c->err));
    return found;
}

/* ------------------------------------------------------------------ declared keys */

/* Members of the properties of all schemas, and declared keys, by the text of the key. */
struct ms_key_index {
    size_t mask;
    struct {
        const ms_json *map, *member; /* map NULL, member NULL: a declared key; `number` + 1 is then not 0 */
        uint32_t number;
    } slots[];
};

static size_t key_slot(const ms_key_index *x, const ms_declared_list *d, const ms_json *map, const char *key, size_t len) {
    uint64_t h = ms_fnv1a64(MS_FNV1A64_INIT ^ (uint64_t)(uintptr_t)map, key, len);
    size_t i = (size_t)(h ^ h >> 32) & x->mask;
    for (; x->slots[i].member || x->slots[i].number; i = (i + 1) & x->mask) {
        if (x->slots[i].map != map) continue;
        const ms_declared *own = map ? NULL : &d->items[x->slots[i].number - 1];
        size_t n = map ? x->slots[i].member->key_len : own->key_len;
        if (n == len && memcmp(map ? x->slots[i].member->key : own->key, key, len) == 0) break;
    }
    return i;
}

/* Room for every key that the schemas may declare. */
static void make_index(ms_compiler *c, const ms_set *a, ms_declared_list *d) {
    size_t keys = 0, size = 16;
    for (size_t i = 0; i < a->count; i++) {
        const ms_json *map = ms_json_get(a->items[i], "properties"), *names = ms_json_get(a->items[i], "required");
        keys += (map ? 2 * map->count : 0) + (names ? names->count : 0);
    }
    while (size < 2 * keys) size *= 2;
    d->index = calloc(1, sizeof *d->index + size * sizeof d->index->slots[0]);
    if (!d->index) {
        ms_compile_status(c, ms_fail_memory(c->err, "a schema", size * sizeof d->index->slots[0]));
        return;
    }
    d->index->mask = size - 1;
    for (size_t i = 0; i < a->count; i++) {
        const ms_json *map = ms_json_get(a->items[i], "properties");
        for (const ms_json *m = map ? map->child : NULL; m; m = m->next) {
            size_t at = key_slot(d->index, d, map, m->key, m->key_len);
            if (d->index->slots[at].member) continue; /* the first of repeated ones */
            d->index->slots[at].map = map;
            d->index->slots[at].member = m;
        }
    }
}

/* Everything the schemas say about the value of a declared key. */
static void value_set(ms_compiler *c, const ms_set *a, const ms_declared_list *d, const char *key, size_t len, ms_set *out) {
    static const ms_json never = {.type = MS_JSON_FALSE, .raw = ""};
    ms_json name = {.type = MS_JSON_STRING, .raw = "", .str = key, .str_len = len};
    for (size_t i = 0; i < a->count; i++) {
        const ms_json *n = a->items[i], *map = ms_json_get(n, "properties");
        const ms_json *known = map ? d->index->slots[key_slot(d->index, d, map, key, len)].member : NULL;
        if (known) ms_set_add(c, out, known);
        const ms_json *patterns = ms_json_get(n, "patternProperties");
        for (const ms_json *p = patterns ? patterns->child : NULL; p; p = p->next) {
            if (!pattern_matches(c, p, key, len)) continue;
            known = p;
            ms_set_add(c, out, p);
        }
        const ms_json *others = ms_json_get(n, "additionalProperties"), *names = ms_json_get(n, "propertyNames");
        if (!known && others) ms_set_add(c, out, others);
        if (names && !ms_compile_check(c, names, &name)) ms_set_add(c, out, &never);
    }
}

static ms_declared *declare(ms_compiler *c, const ms_set *a, ms_declared_list *d, const char *key, size_t len) {
    if (!ms_compile_work(c, 1 + a->count)) return NULL;
    size_t at = key_slot(d->index, d, NULL, key, len);
    if (d->index->slots[at].number) return &d->items[d->index->slots[at].number - 1];
    if (d->count == d->cap) {
        size_t cap = d->cap ? d->cap * 2 : 8;
        ms_declared *items = realloc(d->items, cap * sizeof *items);
        if (!items) {
            ms_compile_status(c, ms_fail_memory(c->err, "a schema", cap * sizeof *items));
            return NULL;
        }
        d->items = items;
        d->cap = cap;
    }
    ms_declared *x = &d->items[d->count++];
    *x = (ms_declared){.key = key, .key_len = len};
    d->index->slots[at].number = (uint32_t)d->count;
    value_set(c, a, d, key, len, &x->value);
    return x;
}

static bool set_is_never(const ms_set *set) {
    for (size_t i = 0; i < set->count; i++)
        if (set->items[i]->type == MS_JSON_FALSE) return true;
    return false;
}

/* Values of keys of which exactly the patterns of `which` match, out of `count`. */
static void extra_set(ms_compiler *c, const ms_set *a, const ms_json *const *patterns, size_t count, unsigned which,
                      ms_set *out) {
    for (size_t i = 0; i < a->count; i++) {
        const ms_json *map = ms_json_get(a->items[i], "patternProperties");
        const ms_json *others = ms_json_get(a->items[i], "additionalProperties");
        bool known = false;
        for (const ms_json *p = map ? map->child : NULL; p; p = p->next) {
            for (size_t k = 0; k < count; k++) {
                if (!(which >> k & 1) || p->key_len != patterns[k]->key_len) continue;
                if (memcmp(p->key, patterns[k]->key, p->key_len) != 0) continue;
                ms_set_add(c, out, p);
                known = true;
            }
        }
        if (!known && others) ms_set_add(c, out, others);
    }
}

/* The distinct patterns of patternProperties. */
static size_t all_patterns(ms_compiler *c, const ms_set *a, const ms_json **out) {
    size_t n = 0;
    for (size_t i = 0; i < a->count; i++) {
        const ms_json *map = ms_json_get(a->items[i], "patternProperties");
        for (const ms_json *p = map ? map->child : NULL; p; p = p->next) {
            bool known = false;
            for (size_t k = 0; k < n && !known; k++) {
                known = p->key_len == out[k]->key_len && memcmp(p->key, out[k]->key, p->key_len) == 0;
            }
            if (known) continue;
            if (n == MAX_PATTERNS) {
                ms_compile_fail(c, a->items[i], "patternProperties", "expected at most 6 patterns in one place");
                return n;
            }
            out[n++] = p;
        }
    }
    return n;
}

void ms_declared_free(ms_declared_list *d) {
    for (size_t i = 0; i < d->count; i++) ms_set_free(&d->items[i].value);
    free(d->items);
    free(d->index);
    *d = (ms_declared_list){0};
}

void ms_shape_declared(ms_compiler *c, const ms_set *a, ms_declared_list *d) {
    *d = (ms_declared_list){.may_be_object = (common_types(a) >> MS_JSON_OBJECT & 1) != 0,
                            .min = count_of(a, "minProperties", true), .max = count_of(a, "maxProperties", false)};
    make_index(c, a, d);
    if (!d->index) return;
    for (size_t i = 0; i < a->count; i++) {
        const ms_json *map = ms_json_get(a->items[i], "properties");
        for (const ms_json *p = map ? map->child : NULL; p; p = p->next) (void)declare(c, a, d, p->key, p->key_len);
    }
    for (size_t i = 0; i < a->count; i++) {
        const ms_json *names = ms_json_get(a->items[i], "required");
        for (const ms_json *n = names ? names->child : NULL; n; n = n->next) {
            ms_declared *x = declare(c, a, d, n->str, n->str_len);
            if (x) x->required = true;
        }
    }
    const ms_json *patterns[MAX_PATTERNS];
    size_t count = all_patterns(c, a, patterns);
    for (unsigned which = 0; which < 1u << count && !d->extra; which++) {
        ms_set value = {0};
        extra_set(c, a, patterns, count, which, &value);
        d->extra = !set_is_never(&value);
        ms_set_free(&value);
    }
}

typedef struct extras {
    const ms_set *alternative;
    const ms_declared_list *declared;
    ms_extra_rule *rules;
    ms_dfa *keys; /* by rule; the rule points here only at the end */
    bool *any;
    size_t count, cap;
    /* of the class that is being made */
    const ms_json *const *patterns;
    size_t pattern_count;
    unsigned which;
    uint32_t value;
} extras;

static bool grow_extras(ms_compiler *c, extras *x) {
    if (x->count < x->cap) return true;
    size_t cap = x->cap ? x->cap * 2 : 4;
    ms_extra_rule *rules = realloc(x->rules, cap * sizeof *rules);
    if (rules) x->rules = rules;
    ms_dfa *keys = realloc(x->keys, cap * sizeof *keys);
    if (keys) x->keys = keys;
    bool *any = realloc(x->any, cap * sizeof *any);
    if (any) x->any = any;
    if (!rules || !keys || !any) {
        ms_compile_status(c, ms_fail_memory(c->err, "a schema", cap * sizeof *keys));
        return false;
    }
    x->cap = cap;
    return true;
}

/* Keys by pattern, and none that is declared. */
static void narrow_keys(ms_compiler *c, const extras *x, ms_dfa *d, bool *any) {
    ms_dfa one = {0}, other = {0};
    c->keyword = x->pattern_count ? "patternProperties" : "properties";
    for (size_t k = 0; k < x->pattern_count && c->status == MS_OK; k++) {
        const ms_regex *r = ms_schema_regex(c->s, x->patterns[k]->key, x->patterns[k]->key_len);
        ms_error why;
        ms_status status = ms_regex_dfa(&one, r, MS_MAX_AUTOMATON, &c->work, &why);
        if (status == MS_OK && !(x->which >> k & 1)) {
            status = ms_dfa_complement(&other, &one, MS_MAX_AUTOMATON, &c->work, &why);
            ms_dfa_clear(&one);
            one = other;
        }
        if (status == MS_ERR_USAGE) ms_compile_fail(c, c->current, "patternProperties", "expected simpler patterns");
        else if (status != MS_OK) ms_compile_status(c, ms_fail(c->err, status, "%s", why.message));
        if (c->status == MS_OK) ms_narrow(c, d, any, &one);
    }
    ms_narrow_endless(c, d, any);
    if (!x->declared->count || c->status != MS_OK) return;
    ms_word *words = malloc(x->declared->count * sizeof *words);
    if (!words) {
        ms_compile_status(c, ms_fail_memory(c->err, "a schema", x->declared->count * sizeof *words));
        return;
    }
    for (size_t i = 0; i < x->declared->count; i++) {
        words[i] = (ms_word){x->declared->items[i].key, x->declared->items[i].key_len};
    }
    ms_other_words(c, words, x->declared->count, &one);
    free(words);
    if (c->status == MS_OK) ms_narrow(c, d, any, &one);
}

static void add_extra(ms_compiler *c, extras *x, ms_dfa *d, bool any) {
    narrow_keys(c, x, d, &any);
    if (c->status != MS_OK || (!any && !d->states) || !grow_extras(c, x)) {
        ms_dfa_clear(d);
        return;
    }
    x->rules[x->count] = (ms_extra_rule){.value = x->value};
    x->keys[x->count] = *d;
    x->any[x->count++] = any;
}

/* One alternative of propertyNames. */
static void extra_names(ms_compiler *c, void *arg, const ms_set *a) {
    extras *x = arg;
    ms_dfa d = {0};
    bool any = true;
    uint32_t min, max;
    const ms_json *list = find(a, "enum", NULL), *one = find(a, "const", NULL);
    if (!(common_types(a) >> MS_JSON_STRING & 1) || c->status != MS_OK) return;
    if (!list && !one) {
        ms_string_language(c, a, true, &d, &any, &min, &max);
        add_extra(c, x, &d, any);
        return;
    }
    size_t n = list ? list->count : 1;
    ms_word *words = malloc(n * sizeof *words);
    if (!words) {
        ms_compile_status(c, ms_fail_memory(c->err, "a schema", n * sizeof *words));
        return;
    }
    n = 0;
    for (const ms_json *v = one ? one : list->child; v; v = one ? NULL : v->next)
        if (v->type == MS_JSON_STRING && holds(c, a, v)) words[n++] = (ms_word){v->str, v->str_len};
    if (c->status == MS_OK) ms_compile_status(c, ms_dfa_words(&d, words, n, true, &c->work, c->err));
    free(words);
    add_extra(c, x, &d, false);
}

static void collect_extras(ms_compiler *c, const ms_set *a, extras *x) {
    const ms_json *patterns[MAX_PATTERNS];
    ms_set names = {0};
    x->patterns = patterns;
    x->pattern_count = all_patterns(c, a, patterns);
    for (size_t i = 0; i < a->count; i++) {
        const ms_json *k = ms_json_get(a->items[i], "propertyNames");
        if (k) ms_set_add(c, &names, k);
    }
    for (x->which = 0; x->which < 1u << x->pattern_count && c->status == MS_OK; x->which++) {
        ms_set value = {0};
        extra_set(c, a, patterns, x->pattern_count, x->which, &value);
        if (!set_is_never(&value)) {
            x->value = ms_compile_set(c, &value);
            if (names.count) ms_expand(c, &names, extra_names, x);
            else add_extra(c, x, &(ms_dfa){0}, true);
        }
        ms_set_free(&value);
    }
    ms_set_free(&names);
    x->patterns = NULL;
    for (size_t i = 0; i < x->count; i++) x->rules[i].key = x->any[i] ? NULL : &x->keys[i];
}

static void object_block(ms_compiler *c, const ms_set *a, ms_shapes *out) {
    ms_declared_list d;
    ms_shape_declared(c, a, &d);
    ms_member_rule *members = malloc((d.count + 1) * sizeof *members);
    if (!members) ms_compile_status(c, ms_fail_memory(c->err, "a schema", d.count * sizeof *members));
    for (size_t i = 0; i < d.count && c->status == MS_OK; i++) {
        if (c->end && memmem(d.items[i].key, d.items[i].key_len, c->end, strlen(c->end)))
            ms_compile_fail(c, c->current, "properties", "expected keys without the text that ends a value");
        members[i] = (ms_member_rule){d.items[i].key, d.items[i].key_len, ms_compile_set(c, &d.items[i].value),
                                      d.items[i].required};
    }
    extras x = {.alternative = a, .declared = &d};
    if (c->status == MS_OK) collect_extras(c, a, &x);
    if ((uint64_t)d.min * (d.count + (x.count ? d.min : 0)) > MAX_MINIMUM)
        ms_compile_fail(c, c->current, "minProperties", "expected a smaller number, or fewer properties beside it");
    if (x.count && d.min > MS_DISTINCT_MAX) {
        ms_compile_fail(c, c->current, "minProperties", "expected at most 4096 where members are not declared");
    }
    if (c->status == MS_OK) {
        ms_object_rule rule = {.members = members, .member_count = d.count, .extras = x.rules, .extra_count = x.count,
                               .min = d.min, .max = d.max};
        ms_shapes_add(c, out, MS_JSON_OBJECT, ms_grammar_object(c->g, &rule));
    }
    for (size_t i = 0; i < x.count; i++) ms_dfa_clear(&x.keys[i]);
    free(x.rules);
    free(x.keys);
    free(x.any);
    free(members);
    ms_declared_free(&d);
}

/* ------------------------------------------------------------------ all types */

/* Excluding arrays or objects by value cannot be said in blocks. */
static void check_excluded(ms_compiler *c, const ms_set *a, unsigned types) {
    for (size_t i = 0; i < a->count; i++) {
        const ms_json *k = ms_json_get(a->items[i], "not"), *list = k ? ms_json_get(k, "enum") : NULL;
        const ms_json *one = k ? ms_json_get(k, "const") : NULL;
        if (k && k->count > (size_t)(list != NULL) + (one != NULL)) continue; /* put in other words before */
        for (const ms_json *v = one ? one : list ? list->child : NULL; v; v = one ? NULL : v->next) {
            if ((v->type == MS_JSON_ARRAY || v->type == MS_JSON_OBJECT) && (types >> v->type & 1)) {
                ms_compile_fail(c, c->current, "not", "expected no arrays or objects among excluded values");
            }
        }
    }
}

void ms_shape_blocks(ms_compiler *c, const ms_set *a, ms_form form, ms_shapes *out) {
    static const ms_json simple[3] = {{.type = MS_JSON_NULL, .raw = "null"},
                                      {.type = MS_JSON_FALSE, .raw = "false"},
                                      {.type = MS_JSON_TRUE, .raw = "true"}};
    const ms_json *list = find(a, "enum", NULL), *one = find(a, "const", NULL);
    unsigned types = common_types(a);
    if (!types || c->status != MS_OK) return;
    if (one || list) {
        listed(c, a, one ? one : list->child, one != NULL, form, out);
        return;
    }
    for (int i = 0; i < 3; i++)
        if (types >> simple[i].type & 1) listed(c, a, &simple[i], true, form, out);
    check_excluded(c, a, types);
    if (types & (BIT_INTEGER | 1 << MS_JSON_NUMBER)) number_block(c, a, types, form, out);
    if (types >> MS_JSON_STRING & 1) string_block(c, a, form, out);
    if (form == MS_FORM_UNIQUE && (types >> MS_JSON_ARRAY & 3)) {
        ms_compile_fail(c, c->current, "uniqueItems", "expected scalar items");
        return;
    }
    if (types >> MS_JSON_ARRAY & 1) array_block(c, a, out);
    if (types >> MS_JSON_OBJECT & 1) object_block(c, a, out);
}
