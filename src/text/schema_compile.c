/* schema_compile.c: the sets of schemas that describe values, and the blocks they become (schema_compile.h).
 *
 * Invariant: a set gets its block when it is first asked for and its definition later, from a list of open sets; so
 * recursion of the schema is recursion of the grammar, and the compiler itself does not recurse from value to value.
 */
#include "text/schema_compile.h"

#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"

enum { MAX_SETS = 1 << 16, CHUNK = 1 << 14 };
/* A step is a tenth of a microsecond or so: a schema may take some time, and more the longer it is.  What it takes beyond
 * its own share comes from the grammar's. */
#define BASE_WORK     UINT64_C(1000000)
#define OWN_WORK      UINT64_C(10000)
#define WORK_PER_BYTE 4

struct ms_arena {
    ms_arena *next;
    size_t used, size;
    _Alignas(16) char data[];
};

void ms_compile_status(ms_compiler *c, ms_status status) {
    if (c->status != MS_OK) return;
    c->status = status;
    if (status != MS_ERR_USAGE || !c->err) return;
    ms_error why = *c->err; /* of an automaton, that knows no place */
    c->status = ms_schema_refuse(c->s, c->current, c->keyword ? c->keyword : "", c->fault, c->err, "%s", why.message);
}

void ms_compile_fail(ms_compiler *c, const ms_json *at, const char *keyword, const char *what) {
    if (c->status == MS_OK) c->status = ms_schema_refuse(c->s, at, keyword, c->fault, c->err, "%s", what);
}

bool ms_compile_work(ms_compiler *c, uint64_t steps) {
    if (c->status != MS_OK) return false;
    if (c->work <= steps) {
        c->work = 0;
        const char *keyword = c->choice ? c->choice : c->keyword ? c->keyword : "";
        ms_compile_fail(c, c->current, keyword, "expected a schema that takes less work to compile");
        return false;
    }
    c->work -= steps;
    return true;
}

bool ms_compile_check(ms_compiler *c, const ms_json *schema, const ms_json *value) {
    bool valid = false;
    ms_error why;
    if (c->status != MS_OK) return false;
    ms_status status = ms_schema_check(c->s, schema, value, &c->work, &valid, &why);
    if (status == MS_ERR_USAGE) (void)ms_compile_work(c, UINT64_MAX);
    else if (status != MS_OK) ms_compile_status(c, ms_fail(c->err, status, "%s", why.message));
    return valid && c->status == MS_OK;
}

static bool has_null(const ms_json *v) {
    if (v->type == MS_JSON_NULL) return true;
    for (const ms_json *x = v->child; x; x = x->next)
        if (has_null(x)) return true;
    return false;
}

bool ms_compile_null_is_open(const ms_compiler *c, const ms_json *value) { return c->s->nullable && has_null(value); }

void *ms_compile_alloc(ms_compiler *c, size_t bytes) {
    if (c->status != MS_OK) return NULL;
    bytes = (bytes + 15) & ~(size_t)15;
    if (!c->arena || c->arena->size - c->arena->used < bytes) {
        size_t size = bytes > CHUNK ? bytes : CHUNK;
        ms_arena *a = malloc(sizeof *a + size);
        if (!a) {
            c->status = ms_fail_memory(c->err, "a schema", size);
            return NULL;
        }
        *a = (ms_arena){.next = c->arena, .size = size};
        c->arena = a;
    }
    void *p = c->arena->data + c->arena->used;
    c->arena->used += bytes;
    return p;
}

/* ------------------------------------------------------------------ sets */

void ms_set_add(ms_compiler *c, ms_set *set, const ms_json *schema) {
    if (!schema || c->status != MS_OK) return;
    for (size_t i = 0; i < set->count; i++)
        if (set->items[i] == schema) return;
    if (set->count == set->cap) {
        size_t cap = set->cap ? set->cap * 2 : 4;
        const ms_json **items = realloc(set->items, cap * sizeof *items);
        if (!items) {
            c->status = ms_fail_memory(c->err, "a schema", cap * sizeof *items);
            return;
        }
        set->items = items;
        set->cap = cap;
    }
    set->items[set->count++] = schema;
}

void ms_set_free(ms_set *set) {
    free(set->items);
    *set = (ms_set){0};
}

static bool same(const ms_set *a, const ms_set *b) {
    return a->count == b->count && (!a->count || memcmp(a->items, b->items, a->count * sizeof *a->items) == 0);
}

static size_t hash_of(const ms_set *set) {
    return (size_t)(ms_fnv1a64(MS_FNV1A64_INIT, set->items, set->count * sizeof *set->items) >> 8);
}

static bool rehash(ms_compiler *c) {
    size_t size = c->set_table ? (c->set_mask + 1) * 2 : 64;
    uint32_t *table = calloc(size, sizeof *table);
    if (!table) return false;
    for (size_t i = 0; i < c->set_count; i++) {
        size_t h = hash_of(&c->sets[i].set) & (size - 1);
        while (table[h]) h = (h + 1) & (size - 1);
        table[h] = (uint32_t)i + 1;
    }
    free(c->set_table);
    c->set_table = table;
    c->set_mask = size - 1;
    return true;
}

static uint32_t new_set(ms_compiler *c, const ms_set *set, size_t h) {
    if (c->set_count == MAX_SETS) {
        ms_compile_fail(c, c->current, "", "expected fewer combinations of schemas");
        return 0;
    }
    if (c->set_count == c->set_cap) {
        size_t cap = c->set_cap ? c->set_cap * 2 : 64;
        ms_known_set *sets = realloc(c->sets, cap * sizeof *sets);
        if (!sets) {
            c->status = ms_fail_memory(c->err, "a schema", cap * sizeof *sets);
            return 0;
        }
        c->sets = sets;
        c->set_cap = cap;
    }
    ms_known_set *k = &c->sets[c->set_count];
    *k = (ms_known_set){.block = ms_grammar_reserve(c->g)};
    for (size_t i = 0; i < set->count; i++) ms_set_add(c, &k->set, set->items[i]);
    c->set_table[h] = (uint32_t)++c->set_count;
    return k->block;
}

uint32_t ms_compile_set(ms_compiler *c, const ms_set *set) {
    if (c->status != MS_OK) return 0;
    ms_set plain = {0}; /* without what says nothing */
    for (size_t i = 0; i < set->count; i++) {
        const ms_json *s = ms_compile_follow(c, set->items[i]);
        if (s->type == MS_JSON_FALSE) {
            ms_set_free(&plain);
            return 0;
        }
        if (s->type == MS_JSON_OBJECT && s->count) ms_set_add(c, &plain, s);
    }
    if ((!c->set_table || c->set_count * 2 > c->set_mask) && !rehash(c)) {
        c->status = ms_fail_memory(c->err, "a schema", c->set_count);
        ms_set_free(&plain);
        return 0;
    }
    size_t h = hash_of(&plain) & c->set_mask;
    while (c->set_table[h] && !same(&c->sets[c->set_table[h] - 1].set, &plain)) h = (h + 1) & c->set_mask;
    uint32_t block = c->set_table[h] ? c->sets[c->set_table[h] - 1].block : new_set(c, &plain, h);
    ms_set_free(&plain);
    return block;
}

static void json_alternative(ms_compiler *c, void *arg, const ms_set *a) {
    ms_shape_blocks(c, a, MS_FORM_JSON, arg);
}

static void define(ms_compiler *c, uint32_t block, const ms_shapes *shapes) {
    size_t n = 0, at = 0;
    for (int t = 0; t < MS_JSON_TYPES; t++) n += shapes->of[t].count;
    uint32_t *items = malloc((n + 1) * sizeof *items);
    if (!items) {
        ms_compile_status(c, ms_fail_memory(c->err, "a schema", n * sizeof *items));
        return;
    }
    for (int t = 0; t < MS_JSON_TYPES; t++) {
        if (shapes->of[t].count) memcpy(items + at, shapes->of[t].items, shapes->of[t].count * sizeof *items);
        at += shapes->of[t].count;
    }
    ms_grammar_define(c->g, block, items, n);
    free(items);
}

/* The schema of the document that a message about a set should name. */
static const ms_json *place_of(const ms_compiler *c, const ms_set *set) {
    return set->count ? set->items[0] : c->s->root;
}

static void run(ms_compiler *c) {
    while (c->status == MS_OK && c->next_set < c->set_count) {
        size_t i = c->next_set++;
        ms_shapes shapes = {0};
        ms_set set = {0};
        for (size_t k = 0; k < c->sets[i].set.count; k++) ms_set_add(c, &set, c->sets[i].set.items[k]);
        c->current = place_of(c, &set);
        ms_expand(c, &set, json_alternative, &shapes);
        if (c->status == MS_OK) define(c, c->sets[i].block, &shapes);
        ms_shapes_free(&shapes);
        ms_set_free(&set);
    }
    if (c->status == MS_OK) {
        c->status = ms_grammar_status(c->g);
        if (c->status != MS_OK) (void)ms_grammar_finish(c->g, 0, c->err);
    }
}

static uint64_t own_work(const ms_schema *s) { return OWN_WORK + WORK_PER_BYTE * (uint64_t)s->root->raw_len; }

static uint64_t work_of(const ms_schema *s, ms_grammar *g) {
    uint64_t most = BASE_WORK + WORK_PER_BYTE * (uint64_t)s->root->raw_len, has = own_work(s) + *ms_grammar_work(g);
    return has < most ? has : most;
}

static ms_compiler compiler(const ms_schema *s, ms_grammar *g, ms_schema_fault *fault, ms_error *err) {
    if (fault) *fault = (ms_schema_fault){0};
    uint64_t work = work_of(s, g);
    return (ms_compiler){.s = s, .g = g, .fault = fault, .err = err, .status = MS_OK,
                         .work = work, .had = work, .current = s->root};
}

static void take_from_grammar(ms_compiler *c) {
    uint64_t spent = c->had - c->work, own = own_work(c->s), *left = ms_grammar_work(c->g);
    if (spent > own) *left -= spent - own < *left ? spent - own : *left;
}

static ms_status finish(ms_compiler *c) {
    take_from_grammar(c);
    for (size_t i = 0; i < c->set_count; i++) ms_set_free(&c->sets[i].set);
    free(c->sets);
    free(c->set_table);
    ms_dfa_clear(&c->endless);
    ms_dfa_clear(&c->unquoted);
    while (c->arena) {
        ms_arena *a = c->arena;
        c->arena = a->next;
        free(a);
    }
    return c->status;
}

ms_status ms_schema_compile(const ms_schema *s, ms_grammar *g, uint32_t *block, ms_schema_fault *fault,
                            ms_error *err) {
    uint64_t steps;
    return ms_schema_compile_counted(s, g, block, &steps, fault, err);
}

/* The root and {"type": "object"}: what a schema says nothing about may be any value, and arguments may not. */
static void objects_of_root(ms_compiler *c, ms_set *set) {
    ms_json *object = ms_make_object(c);
    if (!object) return;
    ms_make_member(c, object, "type", ms_make_text(c, "object"));
    ms_set_add(c, set, c->s->root);
    ms_set_add(c, set, object);
}

ms_status ms_schema_compile_object(const ms_schema *s, ms_grammar *g, uint32_t *block, ms_schema_fault *fault,
                                   ms_error *err) {
    ms_compiler c = compiler(s, g, fault, err);
    ms_set set = {0};
    objects_of_root(&c, &set);
    *block = ms_compile_set(&c, &set);
    ms_set_free(&set);
    run(&c);
    return finish(&c);
}

ms_status ms_schema_compile_counted(const ms_schema *s, ms_grammar *g, uint32_t *block, uint64_t *steps,
                                    ms_schema_fault *fault, ms_error *err) {
    ms_compiler c = compiler(s, g, fault, err);
    *steps = c.work;
    ms_set set = {0};
    ms_set_add(&c, &set, s->root);
    *block = ms_compile_set(&c, &set);
    ms_set_free(&set);
    run(&c);
    *steps -= c.work;
    return finish(&c);
}

/* ------------------------------------------------------------------ arguments */

typedef struct arguments {
    const ms_arguments_syntax *syntax;
    ms_shapes choices; /* one block an alternative of the whole object */
    bool extra;
    bool text; /* the current key: only strings are written */
} arguments;

static void typed_alternative(ms_compiler *c, void *arg, const ms_set *a) {
    const arguments *x = ((void **)arg)[0];
    ms_form strings = x->syntax->is_text && !x->text ? MS_FORM_BARE : MS_FORM_TYPED;
    ms_shape_blocks(c, a, x->syntax->raw_strings ? strings : MS_FORM_JSON, ((void **)arg)[1]);
}

/* All spellings of one argument, a choice by type. */
static uint32_t argument_block(ms_compiler *c, arguments *x, const ms_declared *d) {
    static const char *const names[MS_JSON_TYPES] = {"null", "boolean", "boolean", "number", "string", "array", "object"};
    ms_shapes shapes = {0};
    void *pair[2] = {x, &shapes};
    x->text = x->syntax->is_text && x->syntax->is_text(x->syntax->arg, d->key, d->key_len);
    ms_expand(c, &d->value, typed_alternative, pair);
    uint32_t choices[MS_JSON_TYPES];
    size_t n = 0;
    for (int t = 0; t < MS_JSON_TYPES && c->status == MS_OK; t++) {
        if (!shapes.of[t].count || (x->text && t != MS_JSON_STRING)) continue;
        uint32_t body = ms_grammar_choice(c->g, shapes.of[t].items, shapes.of[t].count);
        choices[n] = x->syntax->argument(x->syntax->arg, c->g, d->key, d->key_len, names[t], body);
        n += choices[n] != 0;
    }
    if (!n && x->syntax->end) x->extra = true; /* only JSON can say it */
    ms_shapes_free(&shapes);
    return ms_grammar_choice(c->g, choices, n);
}

static void arguments_alternative(ms_compiler *c, void *arg, const ms_set *a) {
    arguments *x = arg;
    bool listed = false;
    for (size_t i = 0; i < a->count; i++) {
        listed = listed || ms_json_get(a->items[i], "enum") || ms_json_get(a->items[i], "const");
    }
    if (listed) { /* whole objects: only as JSON */
        x->extra = true;
        return;
    }
    ms_declared_list d;
    ms_shape_declared(c, a, &d);
    uint32_t *blocks = malloc((d.count + 1) * sizeof *blocks);
    bool *required = malloc((d.count + 1) * sizeof *required);
    if (!blocks || !required) ms_compile_status(c, ms_fail_memory(c->err, "a schema", d.count * sizeof *blocks));
    for (size_t i = 0; i < d.count && c->status == MS_OK && d.may_be_object; i++) {
        blocks[i] = argument_block(c, x, &d.items[i]);
        required[i] = d.items[i].required;
    }
    if (c->status == MS_OK && d.may_be_object) {
        x->extra = x->extra || d.extra;
        ms_shapes_add(c, &x->choices, MS_JSON_OBJECT,
                      ms_grammar_members(c->g, blocks, required, d.count, d.min, d.max));
    }
    free(blocks);
    free(required);
    ms_declared_free(&d);
}

ms_status ms_schema_compile_arguments(const ms_schema *s, ms_grammar *g, const ms_arguments_syntax *syntax,
                                      uint32_t *block, bool *extra_members, ms_schema_fault *fault,
                                      ms_error *err) {
    ms_compiler c = compiler(s, g, fault, err);
    arguments x = {.syntax = syntax};
    c.end = syntax->end;
    if (c.end) ms_end_languages(&c);
    ms_set set = {0};
    objects_of_root(&c, &set);
    ms_expand(&c, &set, arguments_alternative, &x);
    ms_set_free(&set);
    run(&c);
    *block = ms_grammar_choice(g, x.choices.of[MS_JSON_OBJECT].items, x.choices.of[MS_JSON_OBJECT].count);
    *extra_members = x.extra;
    ms_shapes_free(&x.choices);
    return finish(&c);
}

/* ------------------------------------------------------------------ any value */

uint32_t ms_schema_any(ms_grammar *g, uint32_t *object) {
    uint32_t value = ms_grammar_reserve(g), parts[6];
    static const ms_json any = {.type = MS_JSON_OBJECT, .raw = ""};
    ms_schema s = {.root = &any};
    ms_error err;
    ms_compiler c = compiler(&s, g, NULL, &err);
    ms_set set = {0};
    ms_dfa number;
    static const ms_word words[] = {{"null", 4}, {"true", 4}, {"false", 5}};
    parts[0] = ms_grammar_string(g, &(ms_string_rule){.form = MS_STRING_JSON, .max = MS_UNLIMITED});
    parts[1] = ms_grammar_array(g, &(ms_array_rule){.items = value, .max = MS_UNLIMITED, .max_contained = MS_UNLIMITED});
    ms_extra_rule extra = {.value = value};
    parts[2] = ms_grammar_object(g, &(ms_object_rule){.extras = &extra, .extra_count = 1, .max = MS_UNLIMITED});
    *object = parts[2];
    size_t n = 3;
    ms_number_language(&c, &set, MS_NUMBERS, false, &number);
    if (c.status == MS_OK) parts[n++] = ms_grammar_dfa(g, &number);
    if (c.status == MS_OK && ms_dfa_words(&number, words, 3, false, NULL, &err) == MS_OK) parts[n++] = ms_grammar_dfa(g, &number);
    (void)finish(&c);
    if (n != 5) return 0;
    ms_grammar_define(g, value, parts, n);
    return value;
}
