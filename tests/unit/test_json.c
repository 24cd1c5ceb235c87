/* test_json.c: the JSON reader's grammar, limits and messages; the writer's bytes. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/json.h"

static ms_json_doc *parse(const char *text, const ms_json_limits *limits) {
    ms_json_doc *doc;
    ms_error err = {0};
    if (ms_json_parse(&doc, text, strlen(text), "t", limits, &err) != MS_OK) fail_msg("%s: %s", text, err.message);
    return doc;
}

static void refuse_n(const char *text, size_t len, const ms_json_limits *limits, const char *message) {
    ms_json_doc *doc;
    ms_error err = {0};
    assert_int_equal(ms_json_parse(&doc, text, len, "t", limits, &err), MS_ERR_FORMAT);
    assert_null(doc);
    assert_string_equal(err.message, message);
}

static void refuse(const char *text, const char *message) { refuse_n(text, strlen(text), NULL, message); }

static void values_and_spans(void **state) {
    (void)state;
    ms_json_doc *doc = parse(" {\"a\": [1, -2.5e3 ,true,false,null],\"b\":{ } ,\"a\":\"last\"}\n", NULL);
    const ms_json *root = ms_json_root(doc), *list = root->child;
    assert_int_equal(root->type, MS_JSON_OBJECT);
    assert_int_equal(root->count, 3);
    assert_int_equal(root->raw_len, 55);
    assert_int_equal(list->type, MS_JSON_ARRAY);
    assert_int_equal(list->count, 5);
    assert_string_equal(list->key, "a");
    const ms_json *number = ms_json_at(list, 1);
    assert_int_equal(number->raw_len, 6);
    assert_memory_equal(number->raw, "-2.5e3", 6);
    assert_true(ms_json_is_string(ms_json_get(root, "a"), "last"));
    assert_null(ms_json_get(root, "c"));
    assert_null(ms_json_get(list, "a"));
    assert_null(ms_json_get(NULL, "a"));
    assert_null(ms_json_at(list, 5));
    assert_int_equal(ms_json_get(root, "b")->count, 0);
    ms_json_free(doc);
    ms_json_free(NULL);
}

static void strings(void **state) {
    (void)state;
    ms_json_doc *doc = parse("[\"\\u0000x\\n\\/\", \"\\ud83d\\ude00\", \"\\ud83d\", \"\\ude00\\ud83d\\ud83d\\ude00\", "
                             "\"\xc3\xa9\xf0\x9f\x98\x80\", \"\"]", NULL);
    const ms_json *v = ms_json_root(doc)->child;
    assert_int_equal(v->str_len, 4);
    assert_memory_equal(v->str, "\0x\n/", 5);
    v = v->next;
    assert_string_equal(v->str, "\xf0\x9f\x98\x80");
    v = v->next;
    assert_string_equal(v->str, "\xef\xbf\xbd");
    v = v->next;
    assert_string_equal(v->str, "\xef\xbf\xbd\xef\xbf\xbd\xf0\x9f\x98\x80");
    v = v->next;
    assert_string_equal(v->str, "\xc3\xa9\xf0\x9f\x98\x80");
    v = v->next;
    assert_int_equal(v->str_len, 0);
    assert_string_equal(v->str, "");
    ms_json_free(doc);
}

static void refusals(void **state) {
    (void)state;
    refuse("", "t: line 1, column 1: expected a JSON value, found the end of the text");
    refuse("{\"a\":1,\n \"b\" 2}", "t: line 2, column 6: expected ':', found '2'");
    refuse("[1,]", "t: line 1, column 4: expected a JSON value, found ']'");
    refuse("{\"a\":1,}", "t: line 1, column 8: expected a quoted key, found '}'");
    refuse("{1:2}", "t: line 1, column 2: expected a quoted key or '}', found '1'");
    refuse("[1 2]", "t: line 1, column 4: expected ',' or ']', found '2'");
    refuse("{\"a\":1", "t: line 1, column 7: expected ',' or '}', found the end of the text");
    refuse("[01]", "t: line 1, column 3: expected no digit after a leading 0, found '1'");
    refuse("[-]", "t: line 1, column 3: expected a digit, found ']'");
    refuse("[1.]", "t: line 1, column 4: expected a digit after the decimal point, found ']'");
    refuse("[1e+]", "t: line 1, column 5: expected a digit in the exponent, found ']'");
    refuse("[+1]", "t: line 1, column 2: expected a JSON value, found '+'");
    refuse("NaN", "t: line 1, column 1: expected a JSON value, found 'N'");
    refuse("-Infinity", "t: line 1, column 2: expected a digit, found 'I'");
    refuse("\"\xc3\xa9\\x\"",
           "t: line 1, column 4: expected an escape character (one of \" \\ / b f n r t u), found 'x'");
    refuse("\"\\u12g4\"", "t: line 1, column 6: expected four hexadecimal digits after \\u, found 'g'");
    refuse("\"\\u12\"", "t: line 1, column 6: expected four hexadecimal digits after \\u, found '\"'");
    refuse("\"a\nb\"", "t: line 1, column 3: expected an escape for a control character in a string, found byte 0x0a");
    refuse("\"a\xff\"", "t: line 1, column 3: expected well-formed UTF-8, found byte 0xff");
    refuse("\"\xed\xa0\x80\"", "t: line 1, column 2: expected well-formed UTF-8, found byte 0xed");
    refuse("[\"abc", "t: line 1, column 2: expected a closing quote for this string, found the end of the text");
    refuse("[\"abc\\", "t: line 1, column 2: expected a closing quote for this string, found the end of the text");
    refuse("1 x", "t: line 1, column 3: expected nothing after the JSON value, found 'x'");
    refuse("\f1", "t: line 1, column 1: expected a JSON value, found byte 0x0c");
    refuse_n("1\0", 2, NULL, "t: line 1, column 2: expected nothing after the JSON value, found byte 0x00");
}

static void limits(void **state) {
    (void)state;
    ms_json_limits l = {.max_depth = 2};
    ms_json_free(parse("[[1]]", &l));
    refuse_n("[[[1]]]", 7, &l, "t: line 1, column 3: expected at most 2 levels of nesting, found more");
    l = (ms_json_limits){.max_nodes = 3};
    ms_json_free(parse("[1,2]", &l));
    refuse_n("[1,2,3]", 7, &l, "t: expected at most 3 JSON values, found more");
    l = (ms_json_limits){.reject_duplicates = true};
    ms_json_free(parse("{\"a\":{\"a\":1},\"b\":2}", &l));
    refuse_n("{\"b\":1,\"a\":2,\n\"a\":3,\"b\":4}", 26, &l,
             "t: line 2, column 5: expected each key once, found \"a\" again");
    l = (ms_json_limits){.allow_trailing = true, .allow_nan = true, .allow_control = true};
    ms_json_doc *doc = parse("[NaN,-Infinity,Infinity,\"a\nb\"] rest", &l);
    assert_string_equal(ms_json_end(doc), " rest");
    assert_string_equal(ms_json_at(ms_json_root(doc), 3)->str, "a\nb");
    double d;
    assert_false(ms_json_double(ms_json_root(doc)->child, &d));
    ms_json_free(doc);
    l = (ms_json_limits){.allow_invalid_utf8 = true};
    doc = parse("\"\xff\xe2\x82x\xf0\x9f\x98\\n\"", &l);
    assert_string_equal(ms_json_root(doc)->str, "\xef\xbf\xbd\xef\xbf\xbdx\xef\xbf\xbd\n");
    ms_json_free(doc);
    /* Deep text is an error, whatever depth is asked for; it costs no stack. */
    char *deep = malloc(1000000);
    assert_non_null(deep);
    memset(deep, '[', 1000000);
    l = (ms_json_limits){.max_depth = 1000000};
    refuse_n(deep, 1000000, &l, "t: line 1, column 1001: expected at most 1000 levels of nesting, found more");
    free(deep);
}

static void typed_reads(void **state) {
    (void)state;
    ms_json_doc *doc = parse("[18446744073709551615, 18446744073709551616, -1, -9223372036854775808, "
                             "-9223372036854775809, 1.0, 1e400, true, 0.1, 9223372036854775807]", NULL);
    const ms_json *r = ms_json_root(doc);
    uint64_t u = 7;
    int64_t i = 7;
    double d = 7;
    bool b = false;
    assert_true(ms_json_u64(ms_json_at(r, 0), &u));
    assert_true(u == UINT64_MAX);
    assert_false(ms_json_u64(ms_json_at(r, 1), &u));
    assert_false(ms_json_u64(ms_json_at(r, 2), &u));
    assert_false(ms_json_u64(ms_json_at(r, 5), &u));
    assert_false(ms_json_u64(NULL, &u));
    assert_true(u == UINT64_MAX);
    assert_false(ms_json_i64(ms_json_at(r, 0), &i));
    assert_true(ms_json_i64(ms_json_at(r, 3), &i));
    assert_true(i == INT64_MIN);
    assert_false(ms_json_i64(ms_json_at(r, 4), &i));
    assert_false(ms_json_i64(ms_json_at(r, 5), &i));
    assert_true(ms_json_i64(ms_json_at(r, 9), &i));
    assert_true(i == INT64_MAX);
    assert_false(ms_json_double(ms_json_at(r, 6), &d));
    assert_true(ms_json_double(ms_json_at(r, 8), &d));
    assert_true(d == 0.1);
    assert_false(ms_json_bool(ms_json_at(r, 8), &b));
    assert_true(ms_json_bool(ms_json_at(r, 7), &b) && b);
    ms_json_free(doc);
}

static void expect_number(const char *raw, const char *want) {
    ms_text t = {0};
    ms_json_write_number(&t, raw, strlen(raw));
    assert_string_equal(t.data, want);
    ms_text_free(&t);
}

static void numbers(void **state) {
    (void)state;
    static const char *const pairs[][2] = {
        {"0", "0"}, {"-0", "0"}, {"-0.0", "-0.0"}, {"0e9", "0.0"}, {"-12", "-12"}, {"1e2", "100.0"},
        {"1.50", "1.5"}, {"1E-7", "1e-07"}, {"0.0001", "0.0001"}, {"0.00001", "1e-05"}, {"0.00012345", "0.00012345"},
        {"1e15", "1000000000000000.0"}, {"1e16", "1e+16"}, {"12345678901234567e0", "1.2345678901234568e+16"},
        {"123456789012345680000.0", "1.2345678901234568e+20"}, {"9007199254740993.0", "9007199254740992.0"},
        {"9007199254740993", "9007199254740993"}, {"123456789012345678901234567890", "123456789012345678901234567890"},
        {"1e22", "1e+22"}, {"1e23", "1e+23"}, {"1.5e300", "1.5e+300"}, {"1e-310", "1e-310"},
        {"4.94065645841247e-324", "5e-324"}, {"2.2250738585072014e-308", "2.2250738585072014e-308"},
        {"1.7976931348623157e308", "1.7976931348623157e+308"}, {"1e999", "Infinity"}, {"-1e999", "-Infinity"},
        {"1e-999", "0.0"}, {"0.1", "0.1"}, {"0.30000000000000004", "0.30000000000000004"},
        /* 2^-44: the nearest 16 digits do not read back, the next ones do. */
        {"5.6843418860808015e-14", "5.684341886080802e-14"}, {"9.5367431640625e-7", "9.5367431640625e-07"},
        {"123456.789e3", "123456789.0"}, {"NaN", "NaN"}, {"-Infinity", "-Infinity"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) expect_number(pairs[i][0], pairs[i][1]);
}

static void expect_written(const char *text, const ms_json_style *style, const char *want) {
    ms_json_doc *doc = parse(text, NULL);
    ms_text t = {0};
    ms_json_write(&t, ms_json_root(doc), style);
    assert_false(t.failed);
    assert_string_equal(t.data, want);
    ms_text_free(&t);
    ms_json_free(doc);
}

static void styles(void **state) {
    (void)state;
    static const char text[] = "{\"b\":[1, {\"z\":1,\"Z\":2}],\"\xf0\x9f\x98\x80\":0,\"\xef\xbd\x9e\":1,"
                               "\"a\":1,\"b\":2,\"\":[]}";
    expect_written(text, &ms_json_compact_sorted,
                   "{\"\":[],\"a\":1,\"b\":2,\"\xef\xbd\x9e\":1,\"\xf0\x9f\x98\x80\":0}");
    expect_written(text, &ms_json_spaced,
                   "{\"b\": 2, \"\xf0\x9f\x98\x80\": 0, \"\xef\xbd\x9e\": 1, \"a\": 1, \"\": []}");
    expect_written("[ {} , [ ],\t{\"z\":1,\"Z\":[true,null,false]}]", &ms_json_compact,
                   "[{},[],{\"z\":1,\"Z\":[true,null,false]}]");
    expect_written("\"\\b\\f\\n\\r\\t\\u0001\\u001f\\u007f\\u2028\\/\\\"\\\\\"", &ms_json_compact,
                   "\"\\b\\f\\n\\r\\t\\u0001\\u001f\x7f\xe2\x80\xa8/\\\"\\\\\"");
}

static void text_buffer(void **state) {
    (void)state;
    ms_text t = {0};
    ms_text_append(&t, NULL, 0);
    assert_string_equal(t.data, "");
    for (int i = 0; i < 1000; i++) ms_text_printf(&t, "%d,", i);
    assert_int_equal(t.len, 3890);
    assert_int_equal(strlen(t.data), t.len);
    char wide[600];
    memset(wide, 'w', sizeof wide - 1);
    wide[sizeof wide - 1] = 0;
    ms_text_printf(&t, "<%s>", wide);
    assert_int_equal(t.len, 3890 + 601);
    assert_int_equal(t.data[t.len - 1], '>');
    ms_text_append(&t, "x", SIZE_MAX - 3); /* cannot fit: nothing is read */
    assert_true(t.failed);
    ms_text_puts(&t, "more");
    assert_int_equal(t.len, 3890 + 601);
    ms_text_free(&t);
    assert_null(t.data);
    ms_text_free(NULL);
}

static ms_json_report report_of(const char *text) {
    ms_json_report report = {.offset = 99};
    ms_json_limits limits = {.max_depth = 3, .max_nodes = 6, .reject_duplicates = true, .report = &report};
    ms_json_doc *doc;
    ms_status status = ms_json_parse(&doc, text, strlen(text), "t", &limits, NULL);
    assert_int_equal(status == MS_OK, report.fault == MS_JSON_FAULT_NONE);
    ms_json_free(doc);
    return report;
}

static void reports(void **state) {
    (void)state;
    ms_json_report r = report_of("[\"\\ud800\", \"\\ud83d\\ude00\", {\"\\udc00\\ud800\": \"\\ufffd\"}]");
    assert_int_equal(r.lone_surrogates, 3);
    assert_int_equal(r.offset, 0);
    r = report_of("[1, x]");
    assert_int_equal(r.fault, MS_JSON_FAULT_SYNTAX);
    assert_int_equal(r.offset, 4);
    r = report_of("[[[[1]]]]");
    assert_int_equal(r.fault, MS_JSON_FAULT_DEPTH);
    assert_int_equal(r.offset, 3);
    r = report_of("{\"a\":1,\"b\":2,\"a\":3}");
    assert_int_equal(r.fault, MS_JSON_FAULT_DUPLICATE);
    assert_int_equal(r.offset, 17);
    assert_int_equal(report_of("[1,2,3,4,5,6,7]").fault, MS_JSON_FAULT_NODES);
    assert_int_equal(report_of("[1").offset, 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_and_spans), cmocka_unit_test(strings),     cmocka_unit_test(refusals),
        cmocka_unit_test(limits),           cmocka_unit_test(typed_reads), cmocka_unit_test(numbers),
        cmocka_unit_test(styles),           cmocka_unit_test(text_buffer), cmocka_unit_test(reports),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
