/* schema_expand.c: from a set of schemas to alternatives without choices (schema_compile.h).
 *
 * References and allOf add schemas to the set.  anyOf, oneOf, if and the dependent keywords choose: each choice is tried,
 * with everything else of the set.  `not` is put in other words, which are a choice again.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/schema_compile.h"

enum { MAX_ALTERNATIVES = 2000, MAX_TODO = 1000, MAX_NEGATIONS = 24, TASK_WORK = 16 };

/* ------------------------------------------------------------------ made schemas */

static ms_json *make(ms_compiler *c, ms_json_type type) {
    ms_json *v = ms_compile_alloc(c, sizeof *v);
    if (v) *v = (ms_json){.type = type, .raw = ""};
    return v;
}

ms_json *ms_make_object(ms_compiler *c) { return make(c, MS_JSON_OBJECT); }

ms_json *ms_make_text(ms_compiler *c, const char *text) {
    ms_json *v = make(c, MS_JSON_STRING);
    if (v) v->str = text, v->str_len = strlen(text);
    return v;
}

static ms_json *make_boolean(ms_compiler *c, bool value) { return make(c, value ? MS_JSON_TRUE : MS_JSON_FALSE); }

static ms_json *make_count(ms_compiler *c, uint64_t n) {
    ms_json *v = make(c, MS_JSON_NUMBER);
    char *digits = ms_compile_alloc(c, 24);
    if (v && digits) v->raw = digits, v->raw_len = (size_t)snprintf(digits, 24, "%llu", (unsigned long long)n);
    return v;
}

static ms_json *append(ms_compiler *c, ms_json *parent, const ms_json *value) {
    ms_json *copy = ms_compile_alloc(c, sizeof *copy);
    if (!copy || !parent || !value) return NULL;
    *copy = *value;
    copy->next = NULL;
    copy->key = NULL;
    ms_json **at = &parent->child;
    while (*at) at = &(*at)->next;
    *at = copy;
    parent->count++;
    return copy;
}

static void make_keyed(ms_compiler *c, ms_json *object, const char *key, size_t key_len, const ms_json *value) {
    ms_json *m = append(c, object, value);
    if (m) m->key = key, m->key_len = key_len;
}

void ms_make_member(ms_compiler *c, ms_json *object, const char *key, const ms_json *value) {
    make_keyed(c, object, key, strlen(key), value);
}

static ms_json *with(ms_compiler *c, const char *key, const ms_json *value) {
    ms_json *o = ms_make_object(c);
    ms_make_member(c, o, key, value);
    return o;
}

static ms_json *typed(ms_compiler *c, const char *type, const char *key, const ms_json *value) {
    ms_json *o = with(c, "type", ms_make_text(c, type));
    if (key) ms_make_member(c, o, key, value);
    return o;
}

static ms_json *names_of(ms_compiler *c, const char *name, size_t len) {
    ms_json *list = make(c, MS_JSON_ARRAY), *s = make(c, MS_JSON_STRING);
    if (s) s->str = name, s->str_len = len;
    (void)append(c, list, s);
    return list;
}

/* {"properties": {key: value}} */
static ms_json *property(ms_compiler *c, const char *key, size_t key_len, const ms_json *value) {
    ms_json *map = ms_make_object(c);
    make_keyed(c, map, key, key_len, value);
    return with(c, "properties", map);
}

/* ------------------------------------------------------------------ negation */

typedef struct options {
    const ms_json *items[128];
    size_t count;
    bool refused; /* cannot be said in other words */
    bool local;   /* stays as it is: excluded values, patterns, formats, integers */
} options;

static void option(options *o, const ms_json *schema) {
    if (o->count == sizeof o->items / sizeof o->items[0]) o->refused = true;
    else o->items[o->count++] = schema;
}

static const ms_json *negated(ms_compiler *c, const ms_json *schema) { return with(c, "not", schema); }

static void not_type(ms_compiler *c, const ms_json *k, options *o) {
    static const char *const names[] = {"null", "boolean", "number", "string", "array", "object"};
    bool has[6] = {false}, integer = false;
    for (const ms_json *t = k->type == MS_JSON_ARRAY ? k->child : k; t; t = k->type == MS_JSON_ARRAY ? t->next : NULL) {
        for (int i = 0; i < 6; i++) has[i] = has[i] || ms_json_is_string(t, names[i]);
        integer = integer || ms_json_is_string(t, "integer");
    }
    if (integer && !has[2]) { /* numbers with a fraction only */
        has[2] = true;
        option(o, typed(c, "number", "not", with(c, "type", ms_make_text(c, "integer"))));
    }
    for (int i = 0; i < 6; i++)
        if (!has[i]) option(o, typed(c, names[i], NULL, NULL));
}

static void not_count(ms_compiler *c, const char *type, const char *other, const ms_json *k, bool lower, options *o) {
    uint64_t n = 0;
    (void)ms_schema_size(k, &n);
    if (lower && n == 0) return;
    if (n < UINT64_MAX) option(o, typed(c, type, other, make_count(c, lower ? n - 1 : n + 1)));
}

static void not_number(ms_compiler *c, const char *other, const ms_json *k, options *o) {
    option(o, typed(c, "number", other, k));
}

static void not_required(ms_compiler *c, const ms_json *k, options *o) {
    for (const ms_json *n = k->child; n; n = n->next) {
        ms_json *s = property(c, n->str, n->str_len, make_boolean(c, false));
        ms_make_member(c, s, "type", ms_make_text(c, "object"));
        option(o, s);
    }
}

static void not_properties(ms_compiler *c, const ms_json *k, options *o) {
    for (const ms_json *p = k->child; p; p = p->next) {
        if (p->type == MS_JSON_TRUE) continue;
        ms_json *s = property(c, p->key, p->key_len, negated(c, p));
        ms_make_member(c, s, "type", ms_make_text(c, "object"));
        ms_make_member(c, s, "required", names_of(c, p->key, p->key_len));
        option(o, s);
    }
}

static void not_all(ms_compiler *c, const ms_json *list, options *o) {
    for (const ms_json *x = list->child; x; x = x->next) option(o, negated(c, x));
}

static void not_any(ms_compiler *c, const ms_json *list, options *o) {
    ms_json *all = make(c, MS_JSON_ARRAY);
    for (const ms_json *x = list->child; x; x = x->next) (void)append(c, all, negated(c, x));
    option(o, with(c, "allOf", all));
}

static bool named(const ms_json *m, const char *name) {
    return m->key_len == strlen(name) && memcmp(m->key, name, m->key_len) == 0;
}

static const struct {
    const char *name, *other, *type;
    bool lower;
} opposites[] = {{"minLength", "maxLength", "string", true},
                 {"maxLength", "minLength", "string", false},
                 {"minItems", "maxItems", "array", true},
                 {"maxItems", "minItems", "array", false},
                 {"minProperties", "maxProperties", "object", true},
                 {"maxProperties", "minProperties", "object", false},
                 {"minimum", "exclusiveMaximum", "number", false},
                 {"exclusiveMinimum", "maximum", "number", false},
                 {"maximum", "exclusiveMinimum", "number", false},
                 {"exclusiveMaximum", "minimum", "number", false}};

static bool not_bound(ms_compiler *c, const ms_json *m, options *o) {
    for (size_t i = 0; i < sizeof opposites / sizeof opposites[0]; i++) {
        if (!named(m, opposites[i].name)) continue;
        if (i < 6) not_count(c, opposites[i].type, opposites[i].other, m, opposites[i].lower, o);
        else not_number(c, opposites[i].other, m, o);
        return true;
    }
    return false;
}

/* What may hold when keyword m of x does not. */
static void not_keyword(ms_compiler *c, const ms_json *x, const ms_json *m, options *o) {
    if (not_bound(c, m, o) || ms_schema_is_annotation(m)) return;
    if (named(m, "type")) not_type(c, m, o);
    else if (named(m, "enum") || named(m, "const")) option(o, negated(c, with(c, named(m, "enum") ? "enum" : "const", m)));
    else if (named(m, "pattern")) option(o, typed(c, "string", "not", with(c, "pattern", m)));
    else if (named(m, "format")) {
        if (ms_schema_format(m) != MS_FORMAT_OTHER) option(o, typed(c, "string", "not", with(c, "format", m)));
    } else if (named(m, "required")) not_required(c, m, o);
    else if (named(m, "properties")) not_properties(c, m, o);
    else if (named(m, "not")) option(o, m);
    else if (named(m, "allOf")) not_all(c, m, o);
    else if (named(m, "anyOf")) not_any(c, m, o);
    else if (named(m, "$ref")) option(o, negated(c, ms_schema_target(c->s, m)));
    else if (named(m, "items") && !ms_json_get(x, "prefixItems")) {
        option(o, typed(c, "array", "contains", negated(c, m)));
    } else if (named(m, "contains") && !ms_json_get(x, "minContains") && !ms_json_get(x, "maxContains")) {
        option(o, typed(c, "array", "items", negated(c, m)));
    } else {
        o->refused = true;
    }
}

/* The only keyword of a schema that says something; NULL: none or several. */
static const ms_json *only_keyword(const ms_json *x, size_t *count) {
    const ms_json *only = NULL;
    *count = 0;
    for (const ms_json *m = x->child; m; m = m->next) {
        if (ms_schema_is_annotation(m)) continue;
        only = m;
        ++*count;
    }
    return *count == 1 ? only : NULL;
}

static void negate(ms_compiler *c, const ms_json *x, options *o) {
    *o = (options){.count = 0};
    if (x->type != MS_JSON_OBJECT) {
        if (x->type == MS_JSON_FALSE) option(o, make_boolean(c, true));
        return;
    }
    size_t count;
    const ms_json *only = only_keyword(x, &count);
    if (only && (named(only, "enum") || named(only, "const") || (named(only, "type") && ms_json_is_string(only, "integer")))) {
        o->local = true;
        return;
    }
    if (only && (named(only, "pattern") || (named(only, "format") && ms_schema_format(only) != MS_FORMAT_OTHER))) {
        o->local = true;
        option(o, typed(c, "string", NULL, NULL));
        return;
    }
    for (const ms_json *m = x->child; m && !o->refused; m = m->next) not_keyword(c, x, m, o);
}

/* Whether every schema that a negation leads to can be negated as well. */
static bool can_negate(ms_compiler *c, const ms_json *x, int depth) {
    options o;
    if (depth == 0) return false;
    negate(c, x, &o);
    if (o.refused || o.count > 16) return false;
    if (x->type != MS_JSON_OBJECT) return true;
    static const char *const maps[] = {"properties", "allOf", "anyOf"}, *const ones[] = {"items", "contains"};
    for (size_t i = 0; i < sizeof maps / sizeof maps[0]; i++) {
        const ms_json *k = ms_json_get(x, maps[i]);
        for (const ms_json *v = k ? k->child : NULL; v; v = v->next)
            if (!can_negate(c, v, depth - 1)) return false;
    }
    for (size_t i = 0; i < sizeof ones / sizeof ones[0]; i++) {
        const ms_json *k = ms_json_get(x, ones[i]);
        if (k && !can_negate(c, k, depth - 1)) return false;
    }
    const ms_json *ref = ms_json_get(x, "$ref");
    return !ref || can_negate(c, ms_schema_target(c->s, ref), depth - 1);
}

/* ------------------------------------------------------------------ branches that exclude each other */

static unsigned type_bits(const ms_json *schema) {
    static const char *const names[] = {"null", "boolean", "number", "string", "array", "object"};
    const ms_json *k = ms_json_get(schema, "type"), *list = ms_json_get(schema, "enum"), *one = ms_json_get(schema, "const");
    static const unsigned of_value[] = {1, 2, 2, 4, 8, 16, 32};
    unsigned bits = 0;
    if (one) return of_value[one->type];
    for (const ms_json *v = list ? list->child : NULL; v; v = v->next) bits |= of_value[v->type];
    if (list) return bits;
    if (!k) return 63;
    for (const ms_json *t = k->type == MS_JSON_ARRAY ? k->child : k; t; t = k->type == MS_JSON_ARRAY ? t->next : NULL) {
        for (int i = 0; i < 6; i++)
            if (ms_json_is_string(t, names[i])) bits |= 1u << i;
        if (ms_json_is_string(t, "integer")) bits |= 4;
    }
    return bits;
}

/* Whether no value of the finite schema a (const, enum) fits b; false also when a is not finite. */
static bool values_apart(ms_compiler *c, const ms_json *a, const ms_json *b) {
    const ms_json *one = ms_json_get(a, "const"), *list = ms_json_get(a, "enum");
    if (!one && !list) return false;
    const ms_json *other = ms_json_get(b, "const");
    for (const ms_json *v = one ? one : list->child; v; v = one ? NULL : v->next) {
        if (other && !ms_schema_equal(v, other)) continue;
        if (ms_compile_null_is_open(c, v)) return false;
        if (ms_compile_check(c, b, v) || c->status != MS_OK) return false;
    }
    return true;
}

const ms_json *ms_compile_follow(const ms_compiler *c, const ms_json *x) {
    for (int i = 0; i < 64 && x && x->type == MS_JSON_OBJECT; i++) {
        const ms_json *ref = ms_json_get(x, "$ref");
        size_t count;
        if (!ref || !only_keyword(x, &count)) break;
        x = ms_schema_target(c->s, ref);
    }
    return x;
}

static bool requires(const ms_json *schema, const ms_json *key) {
    const ms_json *names = ms_json_get(schema, "required");
    for (const ms_json *n = names ? names->child : NULL; n; n = n->next)
        if (n->str_len == key->key_len && memcmp(n->str, key->key, n->str_len) == 0) return true;
    return false;
}

/* Types that a schema may have for some reader: null as well by `nullable`. */
static unsigned open_type_bits(const ms_json *schema) {
    const ms_json *k = ms_json_get(schema, "nullable");
    return type_bits(schema) | (k && k->type == MS_JSON_TRUE);
}

/* Whether it is plain that no value of a fits b. */
static bool apart(ms_compiler *c, const ms_json *a, const ms_json *b, int depth) {
    enum { PAIR_WORK = 2 };
    if (!ms_compile_work(c, PAIR_WORK)) return false;
    a = ms_compile_follow(c, a);
    b = ms_compile_follow(c, b);
    if (!a || !b || a->type == MS_JSON_FALSE || b->type == MS_JSON_FALSE) return true;
    if (a->type == MS_JSON_TRUE || b->type == MS_JSON_TRUE) return false;
    unsigned common = type_bits(a) & open_type_bits(b);
    if (!common || values_apart(c, a, b) || values_apart(c, b, a)) return true;
    if (common != 32 || depth == 0) return false;
    const ms_json *p = ms_json_get(a, "properties"), *q = ms_json_get(b, "properties");
    for (const ms_json *x = p ? p->child : NULL; x; x = x->next) {
        for (const ms_json *y = q ? q->child : NULL; y; y = y->next) {
            if (x->key_len != y->key_len || memcmp(x->key, y->key, x->key_len) != 0) continue;
            if ((requires(a, x) || requires(b, y)) && apart(c, x, y, depth - 1)) return true;
        }
    }
    return false;
}

/* The text that a branch has as the value of a required key (NULL: as its own value); NULL: none. */
static const ms_json *tag_of(const ms_json *branch, const ms_json *key) {
    if (!branch || branch->type != MS_JSON_OBJECT) return NULL;
    if (key) {
        const ms_json *map = ms_json_get(branch, "properties"), *found = NULL;
        if (type_bits(branch) != 32 || !requires(branch, key)) return NULL;
        for (const ms_json *m = map ? map->child : NULL; m && !found; m = m->next)
            if (m->key_len == key->key_len && memcmp(m->key, key->key, m->key_len) == 0) found = m;
        branch = found;
    }
    const ms_json *tag = branch ? ms_json_get(branch, "const") : NULL;
    return tag && tag->type == MS_JSON_STRING ? tag : NULL;
}

static int by_text(const void *x, const void *y) {
    const ms_json *a = *(const ms_json *const *)x, *b = *(const ms_json *const *)y;
    size_t n = a->str_len < b->str_len ? a->str_len : b->str_len;
    int c = n ? memcmp(a->str, b->str, n) : 0;
    return c ? c : (a->str_len > b->str_len) - (a->str_len < b->str_len);
}

/* Whether every branch of a list has a tag of its own under the key; tags: room for all. */
static bool tags_differ(ms_compiler *c, const ms_json *list, const ms_json *key, const ms_json **tags) {
    size_t n = 0;
    for (const ms_json *x = list->child; x; x = x->next) {
        if (!ms_compile_work(c, 1) || !(tags[n] = tag_of(ms_compile_follow(c, x), key))) return false;
        n++;
    }
    qsort(tags, n, sizeof *tags, by_text);
    for (size_t i = 1; i < n; i++)
        if (by_text(&tags[i - 1], &tags[i]) == 0) return false;
    return true;
}

/* Whether the branches are texts, or objects by a text in them, that all differ: no pair of them is to be compared. */
static bool all_apart(ms_compiler *c, const ms_json *list) {
    const ms_json *first = ms_compile_follow(c, list->child), **tags = malloc((list->count + 1) * sizeof *tags);
    if (!tags) {
        ms_compile_status(c, ms_fail_memory(c->err, "a schema", list->count * sizeof *tags));
        return false;
    }
    bool good = tags_differ(c, list, NULL, tags);
    const ms_json *map = first ? ms_json_get(first, "properties") : NULL;
    for (const ms_json *key = map ? map->child : NULL; key && !good && c->status == MS_OK; key = key->next)
        good = tag_of(first, key) && tags_differ(c, list, key, tags);
    free(tags);
    return good;
}

/* ------------------------------------------------------------------ expansion */

typedef enum task_kind { TASK_SCHEMA, TASK_ANY, TASK_ONE, TASK_NOT, TASK_IF, TASK_NAMES, TASK_SCHEMAS } task_kind;

static const char *const keyword_of[] = {[TASK_SCHEMA] = NULL, [TASK_ANY] = "anyOf", [TASK_ONE] = "oneOf", [TASK_NOT] = "not",
                                         [TASK_IF] = "if", [TASK_NAMES] = "dependentRequired",
                                         [TASK_SCHEMAS] = "dependentSchemas"};

typedef struct task {
    task_kind kind;
    const ms_json *at; /* schema, list, negated schema, schema with if, member of a dependent keyword */
    unsigned negations;
} task;

typedef struct expansion {
    ms_compiler *c;
    task *todo;
    size_t count;
    ms_set done;
    ms_alternative_fn *fn;
    void *arg;
    size_t alternatives;
} expansion;

static void push(expansion *x, task_kind kind, const ms_json *at, unsigned negations) {
    if (!at) return;
    if (x->count == MAX_TODO) {
        ms_compile_fail(x->c, x->c->current, "allOf", "expected fewer schemas in one place");
        return;
    }
    x->todo[x->count++] = (task){kind, at, negations};
}

static void run(expansion *x, size_t at);

/* One option: these schemas too. */
static void try_option(expansion *x, size_t at, const ms_json *a, const ms_json *b, unsigned negations) {
    size_t count = x->count;
    push(x, TASK_SCHEMA, a, negations);
    push(x, TASK_SCHEMA, b, negations);
    run(x, at + 1);
    x->count = count;
}

static void try_one(expansion *x, size_t at, const ms_json *list, unsigned negations) {
    ms_compiler *c = x->c;
    bool told = all_apart(c, list);
    for (const ms_json *a = list->child; a && c->status == MS_OK; a = a->next) {
        size_t count = x->count;
        push(x, TASK_SCHEMA, a, negations);
        for (const ms_json *b = told ? NULL : list->child; b; b = b->next) {
            if (b == a || apart(c, a, b, 3)) continue;
            const ms_json *plain = ms_compile_follow(c, b);
            if (negations >= MAX_NEGATIONS || !can_negate(c, plain, 8)) {
                ms_compile_fail(c, c->current, "oneOf",
                                "expected branches of which one alone fits, or that can be told apart");
                return;
            }
            push(x, TASK_NOT, plain, negations);
        }
        run(x, at + 1);
        x->count = count;
    }
}

static void try_not(expansion *x, size_t at, const ms_json *schema, unsigned negations) {
    options o;
    if (negations > MAX_NEGATIONS) {
        ms_compile_fail(x->c, x->c->current, "not", "expected fewer negations within each other");
        return;
    }
    negate(x->c, schema, &o);
    if (o.refused) {
        ms_compile_fail(x->c, x->c->current, "not", "expected a negation that other keywords can say");
        return;
    }
    size_t before = x->done.count;
    if (o.local) ms_set_add(x->c, &x->done, negated(x->c, schema));
    if (o.local && !o.count) run(x, at + 1);
    for (size_t i = 0; i < o.count; i++) try_option(x, at, o.items[i], NULL, negations + 1);
    x->done.count = before;
}

static void try_if(expansion *x, size_t at, const ms_json *schema, unsigned negations) {
    const ms_json *condition = ms_json_get(schema, "if"), *then = ms_json_get(schema, "then");
    const ms_json *otherwise = ms_json_get(schema, "else");
    if (!then && !otherwise) {
        run(x, at + 1);
        return;
    }
    try_option(x, at, condition, then, negations);
    options o;
    negate(x->c, condition, &o);
    if (o.refused) {
        ms_compile_fail(x->c, schema, "if", "expected a condition whose negation other keywords can say");
        return;
    }
    try_option(x, at, negated(x->c, condition), otherwise, negations + 1);
}

/* A dependent keyword's member: the key is absent, or it is there and more holds. */
static void try_dependent(expansion *x, size_t at, const task *t) {
    ms_compiler *c = x->c;
    const ms_json *m = t->at;
    try_option(x, at, property(c, m->key, m->key_len, make_boolean(c, false)), NULL, t->negations);
    ms_json *names = names_of(c, m->key, m->key_len);
    for (const ms_json *n = t->kind == TASK_NAMES ? m->child : NULL; n; n = n->next) (void)append(c, names, n);
    ms_json *required = with(c, "required", names);
    ms_make_member(c, required, "type", ms_make_text(c, "object"));
    try_option(x, at, required, t->kind == TASK_SCHEMAS ? m : NULL, t->negations);
}

/* A schema joins the set; what it says about the same value in other schemas is still to do. */
static void join(expansion *x, size_t at, const ms_json *schema, unsigned negations) {
    size_t count = x->count, before = x->done.count;
    for (size_t i = 0; i < before; i++) {
        if (x->done.items[i] != schema) continue;
        run(x, at + 1);
        return;
    }
    ms_set_add(x->c, &x->done, schema);
    const ms_json *k;
    if ((k = ms_json_get(schema, "$ref"))) push(x, TASK_SCHEMA, ms_schema_target(x->c->s, k), negations);
    if ((k = ms_json_get(schema, "allOf")))
        for (const ms_json *v = k->child; v; v = v->next) push(x, TASK_SCHEMA, v, negations);
    if ((k = ms_json_get(schema, "not"))) push(x, TASK_NOT, k, negations);
    if ((k = ms_json_get(schema, "if"))) push(x, TASK_IF, schema, negations);
    if ((k = ms_json_get(schema, "anyOf"))) push(x, TASK_ANY, k, negations);
    if ((k = ms_json_get(schema, "oneOf"))) push(x, TASK_ONE, k, negations);
    if ((k = ms_json_get(schema, "dependentRequired")))
        for (const ms_json *v = k->child; v; v = v->next) push(x, TASK_NAMES, v, negations);
    if ((k = ms_json_get(schema, "dependentSchemas")))
        for (const ms_json *v = k->child; v; v = v->next) push(x, TASK_SCHEMAS, v, negations);
    run(x, at + 1);
    x->count = count;
    x->done.count = before;
}

static void run(expansion *x, size_t at) {
    ms_compiler *c = x->c;
    if (c->status != MS_OK) return;
    if (!ms_compile_work(c, TASK_WORK + x->done.count)) return;
    if (at == x->count) {
        if (++x->alternatives > MAX_ALTERNATIVES) {
            ms_compile_fail(c, c->current, c->choice ? c->choice : "", "expected fewer combinations of branches");
            return;
        }
        x->fn(c, x->arg, &x->done);
        return;
    }
    task t = x->todo[at];
    if (keyword_of[t.kind]) c->choice = keyword_of[t.kind];
    switch (t.kind) {
    case TASK_SCHEMA:
        if (t.at->type == MS_JSON_TRUE) run(x, at + 1);
        else if (t.at->type == MS_JSON_OBJECT) join(x, at, t.at, t.negations);
        break; /* false: no value */
    case TASK_ANY:
        for (const ms_json *v = t.at->child; v; v = v->next) try_option(x, at, v, NULL, t.negations);
        break;
    case TASK_ONE: try_one(x, at, t.at, t.negations); break;
    case TASK_NOT: try_not(x, at, t.at, t.negations); break;
    case TASK_IF: try_if(x, at, t.at, t.negations); break;
    case TASK_NAMES:
    case TASK_SCHEMAS: try_dependent(x, at, &t); break;
    }
}

void ms_expand(ms_compiler *c, const ms_set *set, ms_alternative_fn *fn, void *arg) {
    expansion x = {.c = c, .fn = fn, .arg = arg, .todo = malloc(MAX_TODO * sizeof *x.todo)};
    if (!x.todo) {
        ms_compile_status(c, ms_fail_memory(c->err, "a schema", MAX_TODO * sizeof *x.todo));
        return;
    }
    const char *outer = c->choice;
    c->choice = c->keyword = NULL;
    for (size_t i = 0; i < set->count; i++) push(&x, TASK_SCHEMA, set->items[i], 0);
    run(&x, 0);
    c->choice = outer;
    free(x.todo);
    ms_set_free(&x.done);
}
