/* Replies that the MiMo V2.6 grammar allows: random walks at every limit are read by the reply parser as complete, keep
 * the rules of the request, and their arguments and responses fit the schemas. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "lane_replies.h"

/* What is hard here: values in front of `</parameter>`, types that are not spelled, keys that cannot be. */
static const char tools_text[] =
    "[{\"name\":\"look\",\"parameters\":{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\","
    "\"minLength\":1,"
    "\"maxLength\":12},\"days\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":14},\"unit\":{\"enum\":[\"c\",\"f\","
    "\"1\"]}},"
    "\"required\":[\"city\"],\"additionalProperties\":false}},"
    "{\"name\":\"now\",\"parameters\":{\"type\":\"object\",\"properties\":{},\"additionalProperties\":false}},"
    "{\"name\":\"mixed\",\"parameters\":{\"type\":\"object\",\"properties\":{\"q\\\"&\":{\"type\":[\"string\",\"null\","
    "\"boolean\"],\"minLength\":6},\"list\":{\"type\":\"array\",\"items\":{\"type\":\"number\"},\"maxItems\":4},\"o\":{"
    "\"type\":"
    "\"object\",\"properties\":{\"x\":{\"type\":\"string\",\"format\":\"date\"}},\"required\":[\"x\"],"
    "\"additionalProperties\":"
    "false}},\"required\":[\"q\\\"&\",\"o\"],\"additionalProperties\":false}},"
    "{\"name\":\"free\",\"parameters\":{\"type\":\"object\",\"properties\":{\"p\":{\"type\":\"string\",\"pattern\":\"^["
    "a-c<>/]+$\"}},"
    "\"minProperties\":1}},"
    "{\"name\":\"either\",\"parameters\":{\"type\":\"object\",\"anyOf\":[{\"properties\":{\"k\":{\"const\":\"n\"},"
    "\"v\":"
    "{\"type\":\"integer\"}},\"required\":[\"k\",\"v\"],\"additionalProperties\":false},{\"properties\":{\"k\":{"
    "\"const\":"
    "\"s\"},\"v\":{\"type\":\"string\"}},\"required\":[\"k\",\"v\"],\"additionalProperties\":false}]}},"
    "{\"name\":\"maybe\",\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"anyOf\":[{\"type\":\"string\"},{"
    "\"type\":"
    "\"null\"}]},\"b\":{\"enum\":[\"</parameter>\",\"true\",\"x</paramete\",[\"</"
    "parameter>\"],[\"<\"],7]},\"c\":{}},\"required\":"
    "[\"a\",\"b\"],\"additionalProperties\":false}},"
    "{\"name\":\"deep\",\"parameters\":{\"type\":\"object\",\"properties\":{\"l\":{\"type\":\"array\",\"items\":{"
    "\"type\":\"string\"},"
    "\"uniqueItems\":true},\"m\":{\"type\":\"object\",\"additionalProperties\":{\"type\":\"string\",\"minLength\":2}}},"
    "\"required\":"
    "[\"l\",\"m\"],\"additionalProperties\":false}},"
    "{\"name\":\"key\",\"parameters\":{\"type\":\"object\",\"properties\":{\"a>b\":{\"type\":\"string\"}},\"required\":"
    "[\"a>b\"],"
    "\"additionalProperties\":false}}]";
/* The next byte of an end of a value, when the reply spells the beginning of one; 256: the beginning. */
static uint32_t next_of_end(const ms_tokenizer *t, const ms_ids *ids) {
    static const char end[] = "</parameter>";
    ms_text tail = {0};
    ms_error err;
    size_t from = ids->count > 12 ? ids->count - 12 : 0, n = 11;
    assert_int_equal(ms_tokenizer_decode(t, ids->data + from, ids->count - from, true, &tail, &err), MS_OK);
    while (n && (tail.len < n || memcmp(tail.data + tail.len - n, end, n) != 0)) n--;
    ms_text_free(&tail);
    return (uint8_t)end[n];
}

static uint32_t id_of(const ms_tokenizer *t, uint32_t byte) {
    ms_ids ids = {0};
    ms_error err;
    char text = (char)byte;
    assert_int_equal(ms_tokenizer_encode(t, &text, 1, false, &ids, &err), MS_OK);
    assert_int_equal(ids.count, 1);
    uint32_t id = ids.data[0];
    ms_ids_free(&ids);
    return id;
}

static uint32_t end_of_value(const ms_tokenizer *t, const ms_ids *ids) { return id_of(t, next_of_end(t, ids)); }

static int set_up(void **state) {
    (void)state;
    ms_tokenizer *t;
    ms_error err;
    if (ms_tokenizer_open_hf(&t, "tests/text/hf/tokenizer.json", &err) != MS_OK) return 1;
    return replies_open(&ms_lane_mimo26, t, tools_text, end_of_value);
}

static void every_combination_of_rules_holds(void **state) {
    (void)state;
    replies_of_all_rules(80);
}

static void a_named_tool_is_a_list_of_one(void **state) {
    (void)state;
    replies_of_each_tool(100);
}

#define CALL(name, body) "<tool_call><function=" name ">" body "</function></tool_call>"
#define P(key, value)    "<parameter=" key ">" value "</parameter>"
#define END              "<|im_end|>"

static void known_replies(void **state) {
    (void)state;
    ms_grammar *g = replies_grammar(MS_CHANNEL_RESPONSE, 0, 2, true);
    assert_true(replies_read(g, CALL("look", P("city", "Bern")) END));
    assert_true(replies_read(g, "I will look." CALL("look", P("city", "\"B\"\n") P("days", "3") P("unit", "c"))
                                    CALL("now", "") END));
    assert_true(replies_read(g, CALL("look", P("city", "42") P("unit", "\"1\""))
                                    END)); /* text stays text, a listed digit is quoted */
    assert_false(replies_read(g, CALL("look", P("city", "B") P("unit", "1")) END));
    assert_false(replies_read(g, CALL("look", "") END));            /* city is required */
    assert_false(replies_read(g, CALL("look", P("city", "")) END)); /* and not empty */
    assert_false(replies_read(g, CALL("look", P("city", "a</parameter>b")) END));
    assert_false(replies_read(g, CALL("look", P("city", "Bern")) "more" END));
    assert_false(replies_read(g, CALL("look", P("city", "Bern"))));
    assert_false(replies_read(g, "text" END)); /* no call */
    assert_false(replies_read(g, "<think></think>" CALL("now", "") END));
    ms_grammar_free(g);
    g = replies_grammar(MS_CHANNEL_THINK, 0, 2, false);
    assert_true(replies_read(g, "<think>so <be> it</think>" CALL("now", "") END));
    assert_true(replies_read(g, "so be it</think>Well. " CALL("now", "") END));
    assert_false(replies_read(g, "<think>so be it" CALL("now", "") END));
    assert_false(replies_read(g, "</think>" CALL("now", "") CALL("now", "") END));
    ms_grammar_free(g);
    g = replies_grammar(MS_CHANNEL_RESPONSE, 5, 3, true);
    assert_true(replies_read(g, CALL("maybe", P("a", "null") P("b", "x</paramete")) END));
    assert_true(replies_read(g, CALL("maybe", P("a", "Rome") P("b", "[\"<\"]") P("c", "{\"k\":[1]}")) END));
    assert_true(replies_read(g, CALL("maybe", P("a", "\"7\"") P("b", "7")) END));
    assert_false(replies_read(g, CALL("maybe", P("a", "7") P("b", "7")) END)); /* would be read as a number */
    assert_false(replies_read(g, CALL("maybe", P("a", "x") P("b", "true")) END));
    assert_true(replies_read(g, CALL("maybe", P("a", "x") P("b", "\"true\"")) END));
    assert_false(replies_read(g, CALL("maybe", P("a", "x") P("b", "</parameter>")) END));
    assert_true(replies_read(g, CALL("deep", P("l", "[\"</param\",\"<\"]") P("m", "{\"<a\":\"</p\"}")) END));
    assert_false(replies_read(g, CALL("deep", P("l", "[\"</parameter>\"]") P("m", "{}")) END));
    assert_false(replies_read(g, CALL("deep", P("l", "[]") P("m", "{\"</parameter>\":\"ab\"}")) END));
    assert_true(
        replies_read(g, CALL("key", "{\"a>b\":\"</function></parameter>\"}") END)); /* only JSON spells this key */
    assert_false(replies_read(g, CALL("key", P("a>b", "x")) END));
    ms_grammar_free(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_combination_of_rules_holds),
                                       cmocka_unit_test(a_named_tool_is_a_list_of_one), cmocka_unit_test(known_replies),
                                       cmocka_unit_test(replies_of_open_schemas),
                                       cmocka_unit_test(replies_of_bad_schemas)};
    return cmocka_run_group_tests_name("mimo grammar", tests, set_up, replies_close);
}
