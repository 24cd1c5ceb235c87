/* Replies that the Kimi K3 grammar allows: random walks at every limit are read by the reply parser as complete, keep
 * the rules of the request, and their arguments and responses fit the schemas. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "lane_replies.h"

static const char tools_text[] =
    "[{\"name\":\"look\",\"parameters\":{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\","
    "\"minLength\":1,"
    "\"maxLength\":12},\"days\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":14},\"unit\":{\"enum\":[\"c\",\"f\"]}},"
    "\"required\":[\"city\"],\"additionalProperties\":false}},"
    "{\"name\":\"now\",\"parameters\":{\"type\":\"object\",\"properties\":{},\"additionalProperties\":false}},"
    "{\"name\":\"a\\\"&b\",\"parameters\":{\"type\":\"object\",\"properties\":{\"q\\\"&\":{\"type\":[\"string\","
    "\"null\","
    "\"boolean\"]},\"list\":{\"type\":\"array\",\"items\":{\"type\":\"number\"},\"maxItems\":4},\"o\":{\"type\":"
    "\"object\","
    "\"properties\":{\"x\":{\"type\":\"string\",\"format\":\"date\"}},\"required\":[\"x\"],\"additionalProperties\":"
    "false}},"
    "\"required\":[\"q\\\"&\",\"o\"],\"additionalProperties\":false}},"
    "{\"name\":\"free\",\"parameters\":{\"type\":\"object\",\"properties\":{\"p\":{\"type\":\"string\",\"pattern\":\"^["
    "a-c]+$\"}},"
    "\"minProperties\":1}},"
    "{\"name\":\"either\",\"parameters\":{\"type\":\"object\",\"anyOf\":[{\"properties\":{\"k\":{\"const\":\"n\"},"
    "\"v\":"
    "{\"type\":\"integer\"}},\"required\":[\"k\",\"v\"],\"additionalProperties\":false},{\"properties\":{\"k\":{"
    "\"const\":"
    "\"s\"},\"v\":{\"type\":\"string\"}},\"required\":[\"k\",\"v\"],\"additionalProperties\":false}]}}]";
static int set_up(void **state) {
    (void)state;
    return replies_open(&ms_lane_k3, walk_tokenizer(3, 900), tools_text, NULL);
}

static void every_combination_of_rules_holds(void **state) {
    (void)state;
    replies_of_all_rules(20);
}

static void a_named_tool_is_a_list_of_one(void **state) {
    (void)state;
    replies_of_each_tool(30);
}

#define HEAD         "<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool=\"look\" index=\"1\"<|sep|>"
#define CITY         "<|open|>argument key=\"city\" type=\"string\"<|sep|>"
#define END_ARGUMENT "<|close|>argument<|sep|>"
#define END_CALL     "<|close|>call<|sep|>"
#define TAIL         "<|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>"

static void known_replies(void **state) {
    (void)state;
    ms_grammar *g = replies_grammar(MS_CHANNEL_RESPONSE, 0, 2, true);
    assert_true(replies_read(g, HEAD CITY "Bern" END_ARGUMENT END_CALL TAIL));
    assert_true(replies_read(g, "I will look." HEAD CITY "\"B\"\n" END_ARGUMENT END_CALL
                                "<|open|>call tool=\"now\" index=\"2\"<|sep|>" END_CALL TAIL));
    assert_false(replies_read(g, HEAD END_CALL TAIL));                   /* city is required */
    assert_false(replies_read(g, HEAD CITY END_ARGUMENT END_CALL TAIL)); /* and not empty */
    assert_false(replies_read(g, HEAD CITY "Bern" END_ARGUMENT END_CALL
                                           "<|open|>call tool=\"now\" index=\"1\"<|sep|>" END_CALL TAIL));
    assert_false(replies_read(g, HEAD CITY "Bern" END_CALL TAIL));
    assert_false(replies_read(g, "text<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>")); /* no call */
    assert_false(replies_read(
        g, "<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool=\"free\" index=\"1\"<|sep|>" END_CALL TAIL));
    ms_grammar_free(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_combination_of_rules_holds),
                                       cmocka_unit_test(a_named_tool_is_a_list_of_one), cmocka_unit_test(known_replies),
                                       cmocka_unit_test(replies_of_open_schemas),
                                       cmocka_unit_test(replies_of_bad_schemas)};
    return cmocka_run_group_tests_name("k3 grammar", tests, set_up, replies_close);
}
