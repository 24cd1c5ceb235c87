/* JSON Schema: schema_cases.json against the grammar, byte by byte, and against the validator; both must agree.
 *
 * A case has a schema and instances: `valid` fit both, `loose` fit the schema but have a spelling that the grammar does
 * not write (order, exponents), `invalid` fit neither.  `refuse` names the keyword that is refused; `unsatisfiable`
 * schemas have no text.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/schema.h"

static ms_text read_file(const char *path) {
    ms_text t = {0};
    char buffer[4096];
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("cannot open %s", path);
    for (size_t n; (n = fread(buffer, 1, sizeof buffer, f)) > 0;) ms_text_append(&t, buffer, n);
    (void)fclose(f);
    return t;
}

static bool flag(const ms_json *c, const char *name) {
    const ms_json *v = ms_json_get(c, name);
    return v && v->type == MS_JSON_TRUE;
}

static bool reads(const ms_grammar *g, const char *text, size_t len) {
    ms_matcher *m;
    ms_error err;
    assert_int_equal(ms_matcher_create(&m, g, &err), MS_OK);
    bool good = true;
    for (size_t i = 0; i < len && good; i++) {
        uint32_t bound = ms_matcher_bound(m);
        assert_true(bound < MS_BOUND_NONE);
        good = ms_matcher_symbol(m, (uint8_t)text[i]);
    }
    good = good && ms_matcher_accepts(m);
    assert_false(ms_matcher_failed(m));
    ms_matcher_destroy(m);
    return good;
}

static size_t faults;
#define fault_msg(...) (print_error(__VA_ARGS__), print_error("\n"), (void)faults++)

static size_t check_list(const ms_json *c, const char *list, const ms_schema *s, const ms_grammar *g, bool fits,
                         bool read) {
    const ms_json *all = ms_json_get(c, list), *schema = ms_json_get(c, "schema");
    size_t count = 0;
    for (const ms_json *v = all ? all->child : NULL; v; v = v->next, count++) {
        bool valid;
        ms_error err;
        assert_int_equal(ms_schema_validate(s, v, &valid, &err), MS_OK);
        if (valid != fits) {
            fault_msg("%.*s: the validator says %d about %.*s", (int)schema->raw_len, schema->raw, valid, (int)v->raw_len, v->raw);
        }
        if (g && reads(g, v->raw, v->raw_len) != read) {
            fault_msg("%.*s: the grammar says %d about %.*s", (int)schema->raw_len, schema->raw, !read, (int)v->raw_len, v->raw);
        }
    }
    return count;
}

static size_t check_case(const ms_json *c) {
    const ms_json *schema = ms_json_get(c, "schema"), *refuse = ms_json_get(c, "refuse");
    int len = (int)schema->raw_len;
    ms_schema *s;
    ms_schema_fault fault;
    ms_error err = {0};
    ms_grammar *g;
    uint32_t root = 0;
    assert_int_equal(ms_grammar_create(&g, &err), MS_OK);
    ms_status status = ms_schema_open(&s, schema, &fault, &err);
    if (status == MS_OK) status = ms_schema_compile(s, g, &root, &fault, &err);
    if (refuse) {
        if (status != MS_ERR_USAGE) fault_msg("%.*s was not refused", len, schema->raw);
        else if (strcmp(fault.keyword, refuse->str) != 0) fault_msg("%.*s: refused at %s", len, schema->raw, fault.keyword);
        else assert_non_null(strstr(err.message, "schema #"));
    } else if (status != MS_OK) {
        fault_msg("%.*s: %s", len, schema->raw, err.message);
    }
    size_t count = refuse ? 1 : 0;
    if (!refuse && status == MS_OK) {
        bool empty = ms_grammar_finish(g, root, &err) == MS_ERR_USAGE;
        if (empty != flag(c, "unsatisfiable")) fault_msg("%.*s: satisfiable is %d", len, schema->raw, !empty);
        count += check_list(c, "valid", s, g, true, true);
        count += check_list(c, "loose", s, g, true, false);
        count += check_list(c, "invalid", s, empty ? NULL : g, false, false);
    }
    ms_grammar_free(g);
    ms_schema_close(s);
    return count;
}

static void cases_agree(void **state) {
    (void)state;
    ms_text t = read_file("tests/text/schema_cases.json");
    ms_json_doc *doc;
    ms_error err;
    if (ms_json_parse(&doc, t.data, t.len, "schema_cases.json", NULL, &err) != MS_OK) fail_msg("%s", err.message);
    size_t count = 0;
    for (const ms_json *c = ms_json_root(doc)->child; c; c = c->next) count += check_case(c);
    assert_true(count >= 800);
    assert_int_equal(faults, 0);
    ms_json_free(doc);
    ms_text_free(&t);
}

/* ------------------------------------------------------------------ kinds of refusals */

static void refusals_say_what_is_wrong(void **state) {
    (void)state;
    static const struct {
        const char *schema, *pointer, *keyword;
        ms_schema_fault_kind kind;
    } rules[] = {{"{\"items\":{\"tpye\":\"x\"}}", "/items", "tpye", MS_SCHEMA_UNKNOWN},
                 {"{\"items\":{\"type\":\"strong\"}}", "/items", "type", MS_SCHEMA_MALFORMED},
                 {"{\"items\":3}", "/items", "", MS_SCHEMA_MALFORMED},
                 {"{\"enum\":[]}", "", "enum", MS_SCHEMA_MALFORMED},
                 {"{\"$ref\":\"#/nowhere\"}", "", "$ref", MS_SCHEMA_MALFORMED},
                 {"{\"$ref\":\"#\"}", "", "$ref", MS_SCHEMA_MALFORMED},
                 {"{\"$ref\":\"http://x.example/\"}", "", "$ref", MS_SCHEMA_UNSUPPORTED},
                 {"{\"items\":{\"pattern\":\"(?=a)\"}}", "/items", "pattern", MS_SCHEMA_UNSUPPORTED},
                 {"{\"pattern\":\"(?i)a\"}", "", "pattern", MS_SCHEMA_UNSUPPORTED},
                 {"{\"pattern\":\"a{2000}\"}", "", "pattern", MS_SCHEMA_UNSUPPORTED},
                 {"{\"pattern\":\"(\"}", "", "pattern", MS_SCHEMA_MALFORMED},
                 {"{\"pattern\":\"[z-a]\"}", "", "pattern", MS_SCHEMA_MALFORMED},
                 {"{\"pattern\":\"a{2,1}\"}", "", "pattern", MS_SCHEMA_MALFORMED},
                 {"{\"pattern\":\"^(?!a)+b\"}", "", "pattern", MS_SCHEMA_MALFORMED},
                 {"{\"patternProperties\":{\"a**\":{}}}", "", "patternProperties", MS_SCHEMA_MALFORMED},
                 {"{\"items\":[{},{}]}", "", "items", MS_SCHEMA_UNSUPPORTED},
                 {"{\"not\":{\"multipleOf\":3}}", "", "not", MS_SCHEMA_UNSUPPORTED}};
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        ms_json_doc *doc;
        ms_schema *s;
        ms_grammar *g;
        ms_schema_fault fault = {.kind = MS_SCHEMA_IMPOSSIBLE};
        ms_error err;
        uint32_t root;
        assert_int_equal(ms_json_parse(&doc, rules[i].schema, strlen(rules[i].schema), "schema", NULL, &err), MS_OK);
        assert_int_equal(ms_grammar_create(&g, &err), MS_OK);
        ms_status status = ms_schema_open(&s, ms_json_root(doc), &fault, &err);
        if (status == MS_OK) {
            status = ms_schema_compile(s, g, &root, &fault, &err);
            ms_schema_close(s);
        }
        assert_int_equal(status, MS_ERR_USAGE);
        if (fault.kind != rules[i].kind) fail_msg("%s: kind %d: %s", rules[i].schema, (int)fault.kind, err.message);
        assert_string_equal(fault.pointer, rules[i].pointer);
        assert_string_equal(fault.keyword, rules[i].keyword);
        ms_grammar_free(g);
        ms_json_free(doc);
    }
}

/* ------------------------------------------------------------------ numbers as doubles */

static uint32_t random_below(uint32_t n) {
    static uint64_t state = 5;
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(state >> 33) % n;
}

/* A random text of the grammar, of many digits: 0 and 9 most of all, which round. */
static void random_number(const ms_grammar *g, char *out, size_t size) {
    static const char symbols[] = "000009999912345678.......-eE+";
    ms_matcher *m;
    ms_error err;
    size_t n = 0;
    assert_int_equal(ms_matcher_create(&m, g, &err), MS_OK);
    for (unsigned tries = 0; n + 1 < size && tries < 200; tries++) {
        if (ms_matcher_accepts(m) && random_below(60) == 0) break;
        char c = symbols[random_below(sizeof symbols - 1)];
        if (ms_matcher_symbol(m, (uint8_t)c)) out[n++] = c;
    }
    for (uint32_t s = '0'; !ms_matcher_accepts(m); s = s == '9' ? '0' : s + 1) { /* to its end */
        assert_true(n + 1 < size);
        if (ms_matcher_symbol(m, s)) out[n++] = (char)s;
    }
    out[n] = 0;
    ms_matcher_destroy(m);
}

/* What a reader with doubles must find, too. */
static void numbers_hold_as_doubles(void **state) {
    (void)state;
    static const struct {
        const char *schema;
        double above, below, other; /* NAN: no such rule */
        bool fraction;
    } rules[] = {{"{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}", -INFINITY, INFINITY, NAN, true},
                 {"{\"type\":\"number\",\"exclusiveMinimum\":80,\"exclusiveMaximum\":90}", 80, 90, NAN, false},
                 {"{\"type\":\"number\",\"not\":{\"const\":80}}", -INFINITY, INFINITY, 80, false},
                 {"{\"type\":\"number\",\"exclusiveMinimum\":0.1000000000000000055}", 0.1, INFINITY, NAN, false}};
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        ms_json_doc *doc;
        ms_schema *s;
        ms_grammar *g;
        ms_error err;
        uint32_t root;
        assert_int_equal(ms_json_parse(&doc, rules[i].schema, strlen(rules[i].schema), "schema", NULL, &err), MS_OK);
        assert_int_equal(ms_schema_open(&s, ms_json_root(doc), NULL, &err), MS_OK);
        assert_int_equal(ms_grammar_create(&g, &err), MS_OK);
        assert_int_equal(ms_schema_compile(s, g, &root, NULL, &err), MS_OK);
        assert_int_equal(ms_grammar_finish(g, root, &err), MS_OK);
        for (int k = 0; k < 3000; k++) {
            char text[300];
            random_number(g, text, sizeof text);
            double d = strtod(text, NULL);
            bool good = d > rules[i].above && d < rules[i].below && !(d >= rules[i].other && d <= rules[i].other) &&
                        (!rules[i].fraction || floor(d) < d);
            if (!good) fail_msg("%s: %s", rules[i].schema, text);
        }
        ms_grammar_free(g);
        ms_schema_close(s);
        ms_json_free(doc);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(cases_agree), cmocka_unit_test(refusals_say_what_is_wrong),
                                       cmocka_unit_test(numbers_hold_as_doubles)};
    return cmocka_run_group_tests_name("schema", tests, NULL, NULL);
}
