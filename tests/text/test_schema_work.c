/* Schemas that grow when they are compiled: each is compiled or refused by name, in steps that are bounded by its
 * length. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/json.h"
#include "text/schema_internal.h"

/* A schema by its text: %R: the repeated part, `count` times with commas between; in it %d: the number, %p: the number
 * before (0 at first), %r: the number from behind. */
typedef struct hard {
    const char *name, *text, *part;
    unsigned count;
    const char *refused; /* keyword; NULL: it compiles */
} hard;

static const hard schemas[] = {
    {"allOf doubled", "{\"$ref\":\"#/$defs/l24\",\"$defs\":{\"l0\":{},%R}}",
     "\"l%d\":{\"allOf\":[{\"$ref\":\"#/$defs/l%p\"},{\"$ref\":\"#/$defs/l%p\"}]}", 24, NULL},
    {"anyOf doubled", "{\"$ref\":\"#/$defs/l24\",\"$defs\":{\"l0\":{\"type\":\"string\"},%R}}",
     "\"l%d\":{\"anyOf\":[{\"$ref\":\"#/$defs/l%p\"},{\"$ref\":\"#/$defs/l%p\"}]}", 24, "anyOf"},
    {"oneOf doubled", "{\"$ref\":\"#/$defs/l24\",\"$defs\":{\"l0\":{\"type\":\"string\"},%R}}",
     "\"l%d\":{\"oneOf\":[{\"$ref\":\"#/$defs/l%p\"},{\"$ref\":\"#/$defs/l%p\"}]}", 24, "oneOf"},
    {"oneOf doubled about a value",
     "{\"const\":1,\"not\":{\"oneOf\":[{\"$ref\":\"#/$defs/l24\"}]},\"$defs\":{\"l0\":{},%R}}",
     "\"l%d\":{\"oneOf\":[{\"$ref\":\"#/$defs/l%p\"},{\"not\":{\"$ref\":\"#/$defs/l%p\"}}]}", 24, "not"},
    {"properties doubled", "{\"$ref\":\"#/$defs/l24\",\"$defs\":{\"l0\":{\"type\":\"string\"},%R}}",
     "\"l%d\":{\"type\":\"object\",\"allOf\":[{\"properties\":{\"a\":{\"$ref\":\"#/$defs/l%p\"}}},"
     "{\"properties\":{\"a\":{\"$ref\":\"#/$defs/l%p\"}}}]}",
     24, NULL},
    {"allOf of anyOf", "{\"allOf\":[%R]}", "{\"anyOf\":[{\"minLength\":%d},{\"maxLength\":%r}]}", 24, "anyOf"},
    {"if in a row", "{\"allOf\":[%R]}",
     "{\"if\":{\"required\":[\"a%d\"]},\"then\":{\"required\":[\"b%d\"]},\"else\":{\"required\":[\"c%d\"]}}", 16,
     "not"},
    {"dependent names", "{\"type\":\"object\",\"dependentRequired\":{%R}}", "\"a%d\":[\"b%d\"]", 16,
     "dependentRequired"},
    {"oneOf of many", "{\"oneOf\":[%R]}", "{\"properties\":{\"k\":{\"minLength\":%d}}}", 60, "not"},
    {"oneOf of constants", "{\"oneOf\":[%R]}",
     "{\"type\":\"object\",\"properties\":{\"k\":{\"const\":\"a%d\"}},\"required\":[\"k\"]}", 300, NULL},
    {"patterns of keys", "{\"type\":\"object\",\"patternProperties\":{%R}}",
     "\"(a|b)*a(a|b){1%d}\":{\"type\":\"string\"}", 3, "patternProperties"},
    {"a pattern of many states", "{\"type\":\"string\",\"pattern\":\"(a|b)*a(a|b){20}\"}", "", 0, "pattern"},
    {"a pattern repeated", "{\"type\":\"string\",\"pattern\":\"^.{1,100000}$\"}", "", 0, "pattern"},
    {"patterns together", "{\"allOf\":[%R]}", "{\"type\":\"string\",\"pattern\":\"a%d.*b%d.*c%d\"}", 8, "pattern"},
    {"a count beside a pattern", "{\"type\":\"string\",\"minLength\":50000,\"pattern\":\"a\"}", "", 0, "minLength"},
    {"two long lists", "{\"allOf\":[{\"enum\":[%R]},{\"enum\":[\"v0\",%R]}]}", "\"v%d\"", 4000, "enum"},
    {"a long list that differs", "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"enum\":[%R]}}", "%d", 2000,
     NULL},
    {"numbers left out", "{\"type\":\"integer\",\"not\":{\"enum\":[%R]}}", "%d", 4000, "maximum"},
    {"multiples in wide bounds", "{\"type\":\"number\",\"multipleOf\":9973,\"minimum\":-1e60,\"maximum\":1e60}", "", 0,
     "multipleOf"},
    {"many properties", "{\"type\":\"object\",\"properties\":{%R}}", "\"property number %d\":{\"type\":\"string\"}",
     8000, NULL},
    {"many names", "{\"type\":\"object\",\"required\":[%R]}", "\"p%d\"", 20000, NULL},
    {"many prefixes", "{\"type\":\"array\",\"prefixItems\":[%R]}", "{\"type\":\"string\"}", 8000, NULL},
    {"the same from everywhere", "{\"$ref\":\"#/$defs/n\",\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{%R}}}}",
     "\"p%d\":{\"$ref\":\"#/$defs/n\"}", 2000, NULL},
    {"least members", "{\"type\":\"object\",\"properties\":{%R},\"minProperties\":2000,\"additionalProperties\":false}",
     "\"p%d\":{\"type\":\"string\"}", 4000, "minProperties"},
    {"the longest least string", "{\"type\":\"string\",\"minLength\":262142}", "", 0, NULL},
    {"a longer one", "{\"type\":\"string\",\"minLength\":262143}", "", 0, ""},
    {"a string of a thousand million",
     "{\"properties\":{\"a\":{\"type\":\"string\",\"minLength\":1000000000}},"
     "\"required\":[\"a\"],\"type\":\"object\"}",
     "", 0, ""},
    {"the same where it may be left out",
     "{\"properties\":{\"a\":{\"type\":\"string\",\"minLength\":1000000000}},"
     "\"type\":\"object\"}",
     "", 0, NULL},
    {"a million items", "{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":1000000}", "", 0, ""},
    {"members doubled", "{\"$ref\":\"#/$defs/l20\",\"$defs\":{\"l0\":{\"type\":\"integer\"},%R}}",
     "\"l%d\":{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#/$defs/l%p\"},\"b\":{\"$ref\":\"#/$defs/l%p\"}},"
     "\"required\":[\"a\",\"b\"]}",
     20, ""},
    {"oneOf of texts", "{\"oneOf\":[%R]}", "{\"const\":\"v%d\"}", 500, NULL},
    {"a count beside a narrow pattern", "{\"type\":\"string\",\"minLength\":29000,\"pattern\":\"^a*$\"}", "", 0, NULL},
    {"a chain upwards",
     "{\"$ref\":\"#/$defs/r\",\"$defs\":{\"r\":{\"type\":\"object\",\"properties\":{\"p0\":{\"$ref\":\"#/$defs/l0\"},"
     "\"p1\":{\"$ref\":\"#/$defs/l4000\"}},\"required\":[\"p1\"]},\"l0\":{\"type\":\"null\"},%R}}",
     "\"l%d\":{\"type\":\"array\",\"prefixItems\":[{\"$ref\":\"#/$defs/l%p\"}],\"minItems\":1}", 4000, NULL},
    {"a pattern of wide states", "{\"type\":\"string\",\"pattern\":\"(a.{0,20}){1,30}x\"}", "", 0, "pattern"},
    {"one format often", "{\"type\":\"object\",\"properties\":{%R}}",
     "\"p%d\":{\"type\":\"string\",\"format\":\"email\"}", 500, NULL}};

static void add_parts(ms_text *t, const hard *h) {
    for (unsigned i = 1; i <= h->count; i++) {
        if (i > 1) ms_text_puts(t, ",");
        for (const char *p = h->part; *p; p++) {
            if (*p != '%')
                ms_text_append(t, p, 1);
            else if (*++p == 'd')
                ms_text_printf(t, "%u", i);
            else
                ms_text_printf(t, "%u", *p == 'p' ? i - 1 : h->count - i);
        }
    }
}

static void write_schema(ms_text *t, const hard *h) {
    for (const char *s = h->text; *s; s++) {
        if (*s != '%') {
            ms_text_append(t, s, 1);
            continue;
        }
        add_parts(t, h);
        s++;
    }
}

static void work_is_bounded(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof schemas / sizeof schemas[0]; i++) {
        const hard *h = &schemas[i];
        ms_text text = {0};
        ms_json_doc *doc;
        ms_schema *s = NULL;
        ms_grammar *g;
        ms_error err;
        ms_schema_fault fault = {0};
        uint32_t block;
        uint64_t steps = 0;
        write_schema(&text, h);
        assert_int_equal(ms_json_parse(&doc, text.data, text.len, h->name, NULL, &err), MS_OK);
        assert_int_equal(ms_grammar_create(&g, &err), MS_OK);
        ms_status status = ms_schema_open(&s, ms_json_root(doc), &fault, &err);
        if (status == MS_OK) status = ms_schema_compile_counted(s, g, &block, &steps, &fault, &err);
        if (status == MS_OK) status = ms_grammar_finish(g, block, &err);
        if ((status == MS_OK) != !h->refused) fail_msg("%s: %s", h->name, status == MS_OK ? "compiled" : err.message);
        if (h->refused && (status != MS_ERR_USAGE || strcmp(fault.keyword, h->refused) != 0)) {
            fail_msg("%s: expected %s, found '%s': %s", h->name, h->refused, fault.keyword, err.message);
        }
        if (steps > 1000000 + 4 * text.len) fail_msg("%s: %llu steps", h->name, (unsigned long long)steps);
        ms_grammar_free(g);
        ms_schema_close(s);
        ms_json_free(doc);
        ms_text_free(&text);
    }
}

/* Many schemas of one reply are no more work than a few. */
static void work_together_is_bounded(void **state) {
    (void)state;
    static const char schema[] = "{\"type\":\"string\",\"pattern\":\"(a|b)*a(a|b){12}\"}";
    ms_json_doc *doc;
    ms_schema *s;
    ms_grammar *g;
    ms_error err;
    uint64_t total = 0, bound = 8000000 + 200 * (10000 + 4 * sizeof schema + 1000);
    unsigned refused = 0;
    assert_int_equal(ms_json_parse(&doc, schema, strlen(schema), "schema", NULL, &err), MS_OK);
    assert_int_equal(ms_schema_open(&s, ms_json_root(doc), NULL, &err), MS_OK);
    assert_int_equal(ms_grammar_create(&g, &err), MS_OK);
    for (int i = 0; i < 200; i++) {
        ms_schema_fault fault;
        uint32_t block;
        uint64_t steps;
        ms_status status = ms_schema_compile_counted(s, g, &block, &steps, &fault, &err);
        if (i == 0) assert_int_equal(status, MS_OK);
        refused += status == MS_ERR_USAGE;
        total += steps;
    }
    assert_true(refused > 100);
    assert_true(total < bound);
    ms_grammar_free(g);
    ms_schema_close(s);
    ms_json_free(doc);
}

/* A value against a schema whose references double at every level. */
static void checks_are_bounded(void **state) {
    (void)state;
    ms_text text = {0};
    ms_json_doc *doc;
    ms_schema *s;
    ms_error err;
    uint64_t work = 2000;
    bool valid = false;
    write_schema(&text, &schemas[0]);
    assert_int_equal(ms_json_parse(&doc, text.data, text.len, "doubled", NULL, &err), MS_OK);
    assert_int_equal(ms_schema_open(&s, ms_json_root(doc), NULL, &err), MS_OK);
    assert_int_equal(ms_schema_check(s, ms_json_root(doc), ms_json_root(doc), &work, &valid, &err), MS_OK);
    assert_true(valid);
    assert_true(work > 1000);
    ms_schema_close(s);
    ms_json_free(doc);
    ms_text_free(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(work_is_bounded), cmocka_unit_test(work_together_is_bounded),
                                       cmocka_unit_test(checks_are_bounded)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
