/* The token mask: random walks end valid at any limit, masks equal what the matcher says token by token, copies. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "grammar_walk.h"
#include "text/schema.h"

static ms_text cases_text;
static ms_json_doc *cases;
static ms_tokenizer *tokenizer;
static ms_vocabulary *vocabulary;

static int set_up(void **state) {
    (void)state;
    char buffer[4096];
    ms_error err;
    FILE *f = fopen("tests/text/schema_cases.json", "rb");
    if (!f) return 1;
    for (size_t n; (n = fread(buffer, 1, sizeof buffer, f)) > 0;) ms_text_append(&cases_text, buffer, n);
    (void)fclose(f);
    if (ms_json_parse(&cases, cases_text.data, cases_text.len, "cases", NULL, &err) != MS_OK) return 1;
    tokenizer = walk_tokenizer(7, 1200);
    return ms_vocabulary_create(&vocabulary, tokenizer, ms_tokenizer_ranks(tokenizer) + 256, &err) != MS_OK;
}

static int tear_down(void **state) {
    (void)state;
    ms_vocabulary_destroy(vocabulary);
    ms_tokenizer_close(tokenizer);
    ms_json_free(cases);
    ms_text_free(&cases_text);
    return 0;
}

/* Every token's bit is what a matcher says about it. */
static void check_mask(const ms_matcher *m, const uint64_t *mask, const ms_json *schema, const ms_text *text) {
    ms_error err;
    ms_matcher *copy = NULL;
    for (uint32_t id = 0; id < ms_tokenizer_ranks(tokenizer); id++) {
        if (!copy) assert_int_equal(ms_matcher_copy(&copy, m, &err), MS_OK);
        bool fits = ms_matcher_token(copy, vocabulary, id), set = mask[id >> 6] >> (id & 63) & 1;
        size_t len;
        const char *bytes = (const char *)ms_tokenizer_token(tokenizer, id, &len);
        if (fits != set) {
            fail_msg("%.*s: token %u '%.*s': mask %d, matcher %d after %.*s", (int)schema->raw_len, schema->raw, id, (int)len,
                     bytes, set, fits, (int)text->len, text->data ? text->data : "");
        }
        if (!fits) continue; /* it is as before */
        ms_matcher_destroy(copy);
        copy = NULL;
    }
    ms_matcher_destroy(copy);
}

static size_t walks_done;

typedef struct walker {
    const ms_json *schema;
    const ms_schema *s;
    const ms_grammar *g;
    ms_mask_cache *cache;
    uint64_t *mask;
    uint64_t seed;
    unsigned checks; /* full mask checks left */
} walker;

static void check_result(walker *w, const ms_text *t, uint32_t limit) {
    ms_json_doc *doc;
    ms_error err;
    bool valid = false;
    ms_json_limits deep = {.max_depth = MS_JSON_MAX_DEPTH};
    if (ms_json_parse(&doc, t->data, t->len, "result", &deep, &err) != MS_OK) {
        fail_msg("%.*s, limit %u: %s: %.*s", (int)w->schema->raw_len, w->schema->raw, limit, err.message, (int)t->len, t->data);
    }
    assert_int_equal(ms_schema_validate(w->s, ms_json_root(doc), &valid, &err), MS_OK);
    if (!valid) {
        fail_msg("%.*s, limit %u: %.*s", (int)w->schema->raw_len, w->schema->raw, limit, (int)t->len, t->data);
    }
    ms_json_free(doc);
}

/* slack: tokens beyond the fewest. */
static void walk(walker *w, uint32_t slack) {
    ms_matcher *m;
    ms_error err;
    uint32_t limit;
    size_t words = ms_vocabulary_mask_words(vocabulary);
    ms_text text = {0};
    assert_int_equal(ms_matcher_create(&m, w->g, &err), MS_OK);
    assert_int_equal(ms_mask_tokens_needed(w->cache, m, &limit, &err), MS_OK);
    uint32_t whole;
    assert_int_equal(ms_grammar_tokens_needed(w->g, vocabulary, &whole, &err), MS_OK);
    assert_int_equal(whole, limit);
    limit += slack;
    for (uint32_t used = 0;; used++) {
        if (ms_matcher_accepts(m) && (used == limit || walk_random(&w->seed) % 4 == 0)) break;
        if (used == limit) {
            fail_msg("%.*s: not complete after %u tokens: %.*s", (int)w->schema->raw_len, w->schema->raw, limit, (int)text.len, text.data);
        }
        uint32_t needed, again;
        ms_matcher *copy;
        assert_int_equal(ms_matcher_copy(&copy, m, &err), MS_OK); /* a way that was kept is the way from here */
        assert_int_equal(ms_mask_tokens_needed(w->cache, m, &needed, &err), MS_OK);
        assert_int_equal(ms_mask_tokens_needed(w->cache, copy, &again, &err), MS_OK);
        assert_int_equal(needed, again);
        ms_matcher_destroy(copy);
        if (w->checks > 0 && walk_random(&w->seed) % 8 == 0 &&
            ms_mask_next(w->cache, m, MS_UNLIMITED, w->mask, &err) == MS_OK) {
            check_mask(m, w->mask, w->schema, &text);
            w->checks--;
        }
        if (ms_mask_next(w->cache, m, limit - used, w->mask, &err) != MS_OK) { /* it is complete and has no room to go on */
            if (!ms_matcher_accepts(m)) fail_msg("%.*s: %s after %.*s", (int)w->schema->raw_len, w->schema->raw, err.message, (int)text.len, text.data);
            break;
        }
        uint32_t id = walk_pick(w->mask, words, &w->seed);
        assert_true(id != UINT32_MAX);
        uint32_t bound = ms_matcher_bound(m);
        size_t len;
        const uint8_t *bytes = ms_tokenizer_token(tokenizer, id, &len);
        if (!ms_matcher_token(m, vocabulary, id)) {
            fail_msg("%.*s: token %u '%.*s' of the mask does not fit (bound %u) after %.*s", (int)w->schema->raw_len, w->schema->raw,
                     id, (int)len, (const char *)bytes, bound, (int)text.len, text.data);
        }
        if (bytes) ms_text_append(&text, bytes, len);
    }
    check_result(w, &text, limit);
    walks_done++;
    ms_text_free(&text);
    ms_matcher_destroy(m);
}

static void walk_schema(const ms_json *schema, uint64_t seed) {
    ms_grammar *g;
    ms_schema *s;
    ms_error err;
    uint32_t root;
    walker w = {.schema = schema, .seed = seed, .checks = 3};
    assert_int_equal(ms_grammar_create(&g, &err), MS_OK);
    if (ms_schema_open(&s, schema, NULL, &err) != MS_OK) {
        ms_grammar_free(g);
        return;
    }
    if (ms_schema_compile(s, g, &root, NULL, &err) == MS_OK && ms_grammar_finish(g, root, &err) == MS_OK) {
        static const uint32_t slacks[] = {0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 120};
        w.s = s;
        w.g = g;
        w.mask = calloc(ms_vocabulary_mask_words(vocabulary), sizeof *w.mask);
        assert_int_equal(ms_mask_cache_create(&w.cache, g, vocabulary, &err), MS_OK);
        for (size_t i = 0; i < sizeof slacks / sizeof slacks[0]; i++) walk(&w, slacks[i]);
        ms_mask_cache_destroy(w.cache);
        free(w.mask);
    }
    ms_schema_close(s);
    ms_grammar_free(g);
}

static void walks_end_valid_at_any_limit(void **state) {
    (void)state;
    uint64_t seed = 11;
    for (const ms_json *c = ms_json_root(cases)->child; c; c = c->next) walk_schema(ms_json_get(c, "schema"), seed++);
    assert_true(walks_done > 1500);
}

/* ------------------------------------------------------------------ random schemas */

static void schema_text(ms_text *t, uint64_t *seed, unsigned depth);

static void bounds_text(ms_text *t, uint64_t *seed, const char *lo, const char *hi, uint32_t range) {
    uint32_t a = walk_random(seed) % range, b = a + walk_random(seed) % range, which = walk_random(seed) % 4;
    if (which & 1) ms_text_printf(t, ",\"%s\":%u", lo, a);
    if (which & 2) ms_text_printf(t, ",\"%s\":%u", hi, b);
}

static void string_text(ms_text *t, uint64_t *seed) {
    static const char *const more[] = {"", "", ",\"pattern\":\"^[a-d]+$\"", ",\"pattern\":\"x|y\"", ",\"format\":\"date\"",
                                       ",\"format\":\"ipv4\"", ",\"pattern\":\"^(ab|c){0,5}é?$\"",
                                       ",\"not\":{\"enum\":[\"\",\"a\"]}"};
    ms_text_puts(t, "{\"type\":\"string\"");
    ms_text_puts(t, more[walk_random(seed) % 8]);
    bounds_text(t, seed, "minLength", "maxLength", 8);
    ms_text_puts(t, "}");
}

static void number_text(ms_text *t, uint64_t *seed) {
    static const char *const more[] = {"", "", ",\"multipleOf\":3", ",\"exclusiveMaximum\":40", ",\"not\":{\"const\":2}",
                                       ",\"multipleOf\":0.5"};
    ms_text_printf(t, "{\"type\":\"%s\"", walk_random(seed) % 3 ? "integer" : "number");
    ms_text_puts(t, more[walk_random(seed) % 6]);
    bounds_text(t, seed, "minimum", "maximum", 30);
    ms_text_puts(t, "}");
}

static void object_text(ms_text *t, uint64_t *seed, unsigned depth) {
    uint32_t n = walk_random(seed) % 4, required = walk_random(seed);
    static const char *const more[] = {"", ",\"additionalProperties\":false", ",\"additionalProperties\":false",
                                       ",\"additionalProperties\":{\"type\":\"null\"}", ",\"maxProperties\":3",
                                       ",\"minProperties\":2", ",\"propertyNames\":{\"maxLength\":3}",
                                       ",\"patternProperties\":{\"^a\":{\"type\":\"boolean\"}}",
                                       ",\"dependentRequired\":{\"a\":[\"b\"]}"};
    ms_text_puts(t, "{\"type\":\"object\",\"properties\":{");
    for (uint32_t i = 0; i < n; i++) {
        ms_text_printf(t, "%s\"%c\":", i ? "," : "", (int)('a' + i));
        schema_text(t, seed, depth - 1);
    }
    ms_text_puts(t, "},\"required\":[");
    bool comma = false;
    for (uint32_t i = 0; i < n; i++) {
        if (!(required >> i & 1)) continue;
        ms_text_printf(t, "%s\"%c\"", comma ? "," : "", (int)('a' + i));
        comma = true;
    }
    ms_text_printf(t, "]%s}", more[walk_random(seed) % 9]);
}

static void array_text(ms_text *t, uint64_t *seed, unsigned depth) {
    static const char *const more[] = {"", "", ",\"contains\":{\"type\":\"integer\"}", ",\"uniqueItems\":true",
                                       ",\"prefixItems\":[{\"type\":\"null\"}]", ",\"contains\":{\"const\":1},\"maxContains\":1"};
    ms_text_puts(t, "{\"type\":\"array\",\"items\":");
    schema_text(t, seed, depth - 1);
    ms_text_puts(t, more[walk_random(seed) % 6]);
    bounds_text(t, seed, "minItems", "maxItems", 3);
    ms_text_puts(t, "}");
}

static void schema_text(ms_text *t, uint64_t *seed, unsigned depth) {
    static const char *const combine[] = {"anyOf", "oneOf", "allOf"};
    switch (walk_random(seed) % (depth ? 10 : 5)) {
    case 0: string_text(t, seed); break;
    case 1: number_text(t, seed); break;
    case 2: ms_text_puts(t, "{\"enum\":[1,\"a\",\"ab\",null,[1],{\"a\":2}]}"); break;
    case 3: ms_text_puts(t, "{\"type\":[\"boolean\",\"null\",\"string\"],\"maxLength\":4}"); break;
    case 4: ms_text_puts(t, depth ? "{\"$ref\":\"#/$defs/r\"}" : "true"); break;
    case 5:
    case 6: object_text(t, seed, depth); break;
    case 7: array_text(t, seed, depth); break;
    default:
        ms_text_printf(t, "{\"%s\":[", combine[walk_random(seed) % 3]);
        schema_text(t, seed, depth - 1);
        ms_text_puts(t, ",");
        schema_text(t, seed, depth - 1);
        ms_text_puts(t, "]}");
    }
}

static void random_schemas_end_valid(void **state) {
    (void)state;
    uint64_t seed = 2;
    size_t before = walks_done;
    for (int i = 0; i < 400; i++) {
        ms_text t = {0};
        ms_json_doc *doc;
        ms_error err;
        ms_text_puts(&t, "{\"$defs\":{\"r\":{\"type\":\"object\",\"properties\":{\"k\":{\"$ref\":\"#/$defs/r\"},\"v\":"
                         "{\"type\":\"integer\"}},\"required\":[\"v\"],\"additionalProperties\":false}},\"allOf\":[");
        schema_text(&t, &seed, 3);
        ms_text_puts(&t, "]}");
        if (ms_json_parse(&doc, t.data, t.len, "random", NULL, &err) != MS_OK) fail_msg("%s", err.message);
        walk_schema(ms_json_root(doc), (uint64_t)i);
        ms_json_free(doc);
        ms_text_free(&t);
    }
    assert_true(walks_done - before > 2000);
}

/* ------------------------------------------------------------------ masks at every position */

/* What a mask does not look at token by token: counts, wide languages, texts that must differ, what follows a string. */
static const char *const wide_schemas[] = {
    "{\"type\":\"object\"}", "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"maxLength\":7}}",
    "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"minLength\":3,\"maxLength\":12}}",
    "{\"type\":\"string\",\"minLength\":40}", "{\"type\":\"string\",\"maxLength\":300}",
    "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"pattern\":\"^.{0,9}$\"}}",
    "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"pattern\":\"^[a-z ]{2,9}$\",\"maxLength\":6}}",
    "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"pattern\":\"^([a-z]+[ :,\\\"]){1,4}[a-z]+$\",\"maxLength\":20}}",
    "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"pattern\":\"a.*[\\\\n\u00e9]\"}}",
    "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"not\":{\"enum\":[\"\",\"a\",\"ab\",\"true\",\"x\"]}}}",
    "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"not\":{\"pattern\":\"a[rg]\"}}}",
    "{\"type\":\"array\",\"items\":{\"type\":\"string\"},\"uniqueItems\":true}",
    "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"maxLength\":2},\"uniqueItems\":true}",
    "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"pattern\":\"^[a-c]{0,2}$\"},\"uniqueItems\":true}",
    "{\"type\":\"array\",\"items\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":400},\"uniqueItems\":true}",
    "{\"type\":\"array\",\"items\":{\"enum\":[\"a\",\"ab\",\"abc\",1,12,true,null]},\"uniqueItems\":true}",
    "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"pattern\":\"^[ab\u00e9\\\\\\\"\\n]{0,3}$\"},\"uniqueItems\":true}",
    "{\"type\":\"array\",\"items\":{\"anyOf\":[{\"enum\":[\"a\",\"ab\",true]},{\"type\":\"string\",\"pattern\":\"^[a-d]{1,3}$\"},"
    "{\"type\":\"integer\"}]},\"uniqueItems\":true}",
    "{\"type\":\"object\",\"patternProperties\":{\"^[a-c]{1,2}$\":{\"type\":\"array\",\"items\":{\"type\":\"string\",\"maxLength\":1},"
    "\"uniqueItems\":true}},\"additionalProperties\":false,\"minProperties\":4}",
    "{\"type\":\"object\",\"additionalProperties\":{\"type\":\"integer\"},\"properties\":{\"a\":{},\"ar\":{},\"x\":{}}}",
    "{\"type\":\"object\",\"patternProperties\":{\"^[a-z]+$\":{\"type\":\"integer\"},\"[0-9]\":{\"type\":\"string\",\"maxLength\":"
    "3}},\"additionalProperties\":{\"type\":\"array\",\"items\":{\"type\":\"object\"}},\"minProperties\":3}",
    "{\"type\":\"object\",\"propertyNames\":{\"maxLength\":3},\"additionalProperties\":{\"type\":\"object\",\"additionalProperties\":"
    "{\"type\":\"array\",\"items\":{\"type\":\"string\"},\"uniqueItems\":true}}}",
    "{\"type\":\"array\",\"items\":{\"type\":\"number\",\"minimum\":-12.5,\"maximum\":250}}"};

static uint32_t spell_argument(const void *arg, ms_grammar *g, const char *key, size_t key_len, const char *type,
                               uint32_t body) {
    (void)arg;
    (void)type;
    uint32_t parts[3] = {ms_grammar_literal(g, key, key_len), body, ms_grammar_literal(g, "]}\"", 3)};
    return ms_grammar_sequence(g, parts, 3);
}

enum { WALKS = 4 };

static void check_walk(const ms_grammar *g, ms_mask_cache *cache, const ms_json *schema, uint64_t seed) {
    enum { POSITIONS = 24 };
    size_t words = ms_vocabulary_mask_words(vocabulary);
    uint64_t *mask = calloc(words, sizeof *mask);
    ms_text text = {0};
    ms_matcher *m;
    ms_error err;
    assert_non_null(mask);
    assert_int_equal(ms_matcher_create(&m, g, &err), MS_OK);
    for (int i = 0; i < POSITIONS && ms_mask_next(cache, m, MS_UNLIMITED, mask, &err) == MS_OK; i++) {
        check_mask(m, mask, schema, &text);
        uint32_t id = walk_pick(mask, words, &seed);
        size_t len;
        const uint8_t *bytes = ms_tokenizer_token(tokenizer, id, &len);
        assert_true(id != UINT32_MAX && ms_matcher_token(m, vocabulary, id));
        if (bytes) ms_text_append(&text, bytes, len);
    }
    ms_text_free(&text);
    ms_matcher_destroy(m);
    free(mask);
}

/* as_arguments: strings are bare, up to a text that ends them. */
static void check_schema(const char *text, bool as_arguments) {
    static const ms_arguments_syntax syntax = {.argument = spell_argument, .raw_strings = true, .end = "]}\""};
    ms_json_doc *doc;
    ms_schema *s;
    ms_grammar *g;
    ms_mask_cache *cache;
    ms_error err;
    uint32_t root;
    bool extra;
    assert_int_equal(ms_json_parse(&doc, text, strlen(text), "schema", NULL, &err), MS_OK);
    assert_int_equal(ms_schema_open(&s, ms_json_root(doc), NULL, &err), MS_OK);
    assert_int_equal(ms_grammar_create(&g, &err), MS_OK);
    ms_status status = as_arguments ? ms_schema_compile_arguments(s, g, &syntax, &root, &extra, NULL, &err)
                                    : ms_schema_compile(s, g, &root, NULL, &err);
    if (status == MS_OK) status = ms_grammar_finish(g, root, &err);
    if (status != MS_OK) fail_msg("%s: %s", text, err.message);
    assert_int_equal(ms_mask_cache_create(&cache, g, vocabulary, &err), MS_OK);
    for (uint64_t seed = 1; seed <= WALKS; seed++) check_walk(g, cache, ms_json_root(doc), seed);
    ms_mask_cache_destroy(cache);
    ms_grammar_free(g);
    ms_schema_close(s);
    ms_json_free(doc);
}

static void masks_are_exact_at_every_position(void **state) {
    (void)state;
    ms_vocabulary *small_vocabulary = vocabulary;
    ms_tokenizer *small = tokenizer;
    ms_error err;
    tokenizer = walk_tokenizer(9, 3900);
    assert_int_equal(ms_vocabulary_create(&vocabulary, tokenizer, ms_tokenizer_ranks(tokenizer) + 256, &err), MS_OK);
    for (size_t i = 0; i < sizeof wide_schemas / sizeof wide_schemas[0]; i++) check_schema(wide_schemas[i], false);
    check_schema("{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"},\"b\":{\"type\":\"string\",\"maxLength\":9},\"c\":"
                 "{},\"d\":{\"type\":\"string\",\"pattern\":\"^[a-z\\\"]{3,40}$\"}},\"required\":[\"a\",\"b\",\"c\",\"d\"],"
                 "\"additionalProperties\":false}", true);
    ms_vocabulary_destroy(vocabulary);
    ms_tokenizer_close(tokenizer);
    vocabulary = small_vocabulary;
    tokenizer = small;
}

/* More kinds of strings than a vocabulary keeps groups of, and the first again. */
static void groups_come_and_go(void **state) {
    (void)state;
    enum { KINDS = 40 };
    for (unsigned i = 0; i <= KINDS; i++) {
        char schema[160];
        (void)snprintf(schema, sizeof schema, "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"pattern\":\"^[%c-z%u ]{0,9}$\"}}",
                       (int)('a' + i % KINDS % 20), i % KINDS / 20);
        check_schema(schema, false);
    }
}

static bool reads(ms_matcher *m, const char *text) {
    for (; *text; text++)
        if (!ms_matcher_symbol(m, (uint8_t)*text)) return false;
    return true;
}

static void copies_go_their_own_way(void **state) {
    (void)state;
    static const char schema[] = "{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"uniqueItems\":true,\"maxItems\":3}";
    ms_json_doc *doc;
    ms_schema *s;
    ms_grammar *g;
    ms_matcher *a, *b;
    ms_error err;
    uint32_t root;
    assert_int_equal(ms_json_parse(&doc, schema, sizeof schema - 1, "schema", NULL, &err), MS_OK);
    assert_int_equal(ms_schema_open(&s, ms_json_root(doc), NULL, &err), MS_OK);
    assert_int_equal(ms_grammar_create(&g, &err), MS_OK);
    assert_int_equal(ms_schema_compile(s, g, &root, NULL, &err), MS_OK);
    assert_int_equal(ms_grammar_finish(g, root, &err), MS_OK);
    assert_int_equal(ms_matcher_create(&a, g, &err), MS_OK);
    assert_true(reads(a, "[1,2"));
    assert_int_equal(ms_matcher_copy(&b, a, &err), MS_OK);
    assert_true(reads(a, ",3]"));
    assert_true(ms_matcher_accepts(a));
    assert_false(ms_matcher_accepts(b));
    assert_false(reads(b, ",1]")); /* came before */
    assert_true(reads(b, "2]"));   /* "[1,2,12]": what did not fit left no trace */
    assert_true(ms_matcher_accepts(b));
    ms_matcher_destroy(a);
    ms_matcher_destroy(b);
    ms_grammar_free(g);
    ms_schema_close(s);
    ms_json_free(doc);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(walks_end_valid_at_any_limit),
                                       cmocka_unit_test(random_schemas_end_valid),
                                       cmocka_unit_test(masks_are_exact_at_every_position),
                                       cmocka_unit_test(groups_come_and_go),
                                       cmocka_unit_test(copies_go_their_own_way)};
    return cmocka_run_group_tests_name("grammar", tests, set_up, tear_down);
}
