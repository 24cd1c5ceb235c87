/* Replies that the MiMo V2.6 grammar allows: random walks at every limit are read by the reply parser as complete, keep
 * the rules of the request, and their arguments and responses fit the schemas. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "../text/grammar_walk.h"
#include "lane/mimo26/mimo_chat.h"

/* What is hard here: values in front of `</parameter>`, types that are not spelled, keys that cannot be. */
static const char tools_text[] =
    "[{\"name\":\"look\",\"parameters\":{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\",\"minLength\":1,"
    "\"maxLength\":12},\"days\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":14},\"unit\":{\"enum\":[\"c\",\"f\",\"1\"]}},"
    "\"required\":[\"city\"],\"additionalProperties\":false}},"
    "{\"name\":\"now\",\"parameters\":{\"type\":\"object\",\"properties\":{},\"additionalProperties\":false}},"
    "{\"name\":\"mixed\",\"parameters\":{\"type\":\"object\",\"properties\":{\"q\\\"&\":{\"type\":[\"string\",\"null\","
    "\"boolean\"],\"minLength\":6},\"list\":{\"type\":\"array\",\"items\":{\"type\":\"number\"},\"maxItems\":4},\"o\":{\"type\":"
    "\"object\",\"properties\":{\"x\":{\"type\":\"string\",\"format\":\"date\"}},\"required\":[\"x\"],\"additionalProperties\":"
    "false}},\"required\":[\"q\\\"&\",\"o\"],\"additionalProperties\":false}},"
    "{\"name\":\"free\",\"parameters\":{\"type\":\"object\",\"properties\":{\"p\":{\"type\":\"string\",\"pattern\":\"^[a-c<>/]+$\"}},"
    "\"minProperties\":1}},"
    "{\"name\":\"either\",\"parameters\":{\"type\":\"object\",\"anyOf\":[{\"properties\":{\"k\":{\"const\":\"n\"},\"v\":"
    "{\"type\":\"integer\"}},\"required\":[\"k\",\"v\"],\"additionalProperties\":false},{\"properties\":{\"k\":{\"const\":"
    "\"s\"},\"v\":{\"type\":\"string\"}},\"required\":[\"k\",\"v\"],\"additionalProperties\":false}]}},"
    "{\"name\":\"maybe\",\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":"
    "\"null\"}]},\"b\":{\"enum\":[\"</parameter>\",\"true\",\"x</paramete\",[\"</parameter>\"],[\"<\"],7]},\"c\":{}},\"required\":"
    "[\"a\",\"b\"],\"additionalProperties\":false}},"
    "{\"name\":\"deep\",\"parameters\":{\"type\":\"object\",\"properties\":{\"l\":{\"type\":\"array\",\"items\":{\"type\":\"string\"},"
    "\"uniqueItems\":true},\"m\":{\"type\":\"object\",\"additionalProperties\":{\"type\":\"string\",\"minLength\":2}}},\"required\":"
    "[\"l\",\"m\"],\"additionalProperties\":false}},"
    "{\"name\":\"key\",\"parameters\":{\"type\":\"object\",\"properties\":{\"a>b\":{\"type\":\"string\"}},\"required\":[\"a>b\"],"
    "\"additionalProperties\":false}}]";
enum { TOOLS = 8 };
static const char response_text[] = "{\"type\":\"object\",\"properties\":{\"answer\":{\"type\":\"string\"},\"score\":"
                                    "{\"type\":\"number\",\"minimum\":0,\"maximum\":1}},\"required\":[\"answer\",\"score\"],"
                                    "\"additionalProperties\":false}";

typedef struct world {
    ms_tokenizer *tokenizer;
    ms_vocabulary *vocabulary;
    ms_json_doc *tools_doc, *response_doc;
    ms_reply_tool tools[TOOLS];
    ms_schema *schemas[TOOLS], *response;
    uint64_t *mask;
    uint64_t seed;
    size_t calls, responses; /* seen in all */
} world;

static world w;

static int set_up(void **state) {
    (void)state;
    ms_error err;
    if (ms_tokenizer_open_hf(&w.tokenizer, "tests/text/hf/tokenizer.json", &err) != MS_OK) return 1;
    w.seed = 5;
    if (ms_vocabulary_create(&w.vocabulary, w.tokenizer, ms_tokenizer_ids(w.tokenizer), &err) != MS_OK) return 1;
    w.mask = calloc(ms_vocabulary_mask_words(w.vocabulary), sizeof *w.mask);
    if (ms_json_parse(&w.tools_doc, tools_text, sizeof tools_text - 1, "tools", NULL, &err) != MS_OK) return 1;
    if (ms_json_parse(&w.response_doc, response_text, sizeof response_text - 1, "response", NULL, &err) != MS_OK) return 1;
    size_t i = 0;
    for (const ms_json *t = ms_json_root(w.tools_doc)->child; t; t = t->next, i++) {
        const ms_json *name = ms_json_get(t, "name"), *parameters = ms_json_get(t, "parameters");
        w.tools[i] = (ms_reply_tool){name->str, name->str_len, parameters, true};
        if (ms_schema_open(&w.schemas[i], parameters, NULL, &err) != MS_OK) return 1;
    }
    return ms_schema_open(&w.response, ms_json_root(w.response_doc), NULL, &err) != MS_OK;
}

static int tear_down(void **state) {
    (void)state;
    for (size_t i = 0; i < TOOLS; i++) ms_schema_close(w.schemas[i]);
    ms_schema_close(w.response);
    ms_json_free(w.tools_doc);
    ms_json_free(w.response_doc);
    ms_vocabulary_destroy(w.vocabulary);
    ms_tokenizer_close(w.tokenizer);
    free(w.mask);
    return 0;
}

static void check_text(const ms_schema *s, const char *text, size_t len) {
    ms_json_doc *doc;
    ms_error err;
    bool valid;
    ms_json_limits deep = {.max_depth = MS_JSON_MAX_DEPTH};
    if (ms_json_parse(&doc, text, len, "reply", &deep, &err) != MS_OK) fail_msg("%s: %.*s", err.message, (int)len, text);
    assert_int_equal(ms_schema_validate(s, ms_json_root(doc), &valid, &err), MS_OK);
    if (!valid) fail_msg("does not fit: %.*s", (int)len, text);
    ms_json_free(doc);
}

static void check_call(const ms_reply_rules *rules, const ms_tool_call *call) {
    for (size_t i = 0; i < rules->tool_count; i++) {
        const ms_reply_tool *t = &rules->tools[i];
        if (t->name_len != call->name_len || memcmp(t->name, call->name, t->name_len) != 0) continue;
        check_text(w.schemas[t - w.tools], call->arguments, call->arguments_len);
        w.calls++;
        return;
    }
    fail_msg("a call of %s", call->name);
}

static void check_reply(const ms_reply_rules *rules, const ms_ids *ids) {
    mimo_parser *p;
    ms_reply reply;
    ms_error err;
    bool done = false;
    assert_int_equal(mimo_parser_create(&p, w.tokenizer, rules->channel, &err), MS_OK);
    assert_int_equal(mimo_parser_tools(p, ms_json_root(w.tools_doc), &err), MS_OK);
    for (size_t i = 0; i < ids->count; i++) {
        assert_false(done);
        assert_int_equal(mimo_parser_push(p, ids->data[i], NULL, &done, &err), MS_OK);
    }
    assert_true(done);
    assert_int_equal(mimo_parser_finish(p, NULL, &reply, &err), MS_OK);
    assert_int_equal(reply.status, MS_REPLY_COMPLETE);
    assert_false(reply.recovered);
    for (size_t i = 0; i < reply.call_count; i++) check_call(rules, &reply.calls[i]);
    if (rules->choice == MS_REPLY_MUST_CALL) assert_true(reply.call_count > 0);
    if (rules->choice == MS_REPLY_NO_TOOLS || !rules->tool_count) assert_int_equal(reply.call_count, 0);
    if (!rules->parallel) assert_true(reply.call_count <= 1);
    if (rules->format != MS_REPLY_TEXT && reply.call_count) assert_int_equal(reply.content_len, 0);
    if (rules->format == MS_REPLY_JSON_SCHEMA && !reply.call_count) {
        check_text(w.response, reply.content, reply.content_len);
        w.responses++;
    }
    ms_reply_free(&reply);
    mimo_parser_destroy(p);
}

static bool allowed(uint32_t id) { return w.mask[id >> 6] >> (id & 63) & 1; }

/* The next byte of an end of a value, when the reply spells the beginning of one; 256: the beginning. */
static uint32_t next_of_end(const ms_ids *ids) {
    static const char end[] = "</parameter>";
    ms_text tail = {0};
    ms_error err;
    size_t from = ids->count > 12 ? ids->count - 12 : 0, n = 11;
    assert_int_equal(ms_tokenizer_decode(w.tokenizer, ids->data + from, ids->count - from, true, &tail, &err), MS_OK);
    while (n && (tail.len < n || memcmp(tail.data + tail.len - n, end, n) != 0)) n--;
    ms_text_free(&tail);
    return (uint8_t)end[n];
}

static uint32_t id_of(uint32_t byte) {
    ms_ids ids = {0};
    ms_error err;
    char text = (char)byte;
    assert_int_equal(ms_tokenizer_encode(w.tokenizer, &text, 1, false, &ids, &err), MS_OK);
    assert_int_equal(ids.count, 1);
    uint32_t id = ids.data[0];
    ms_ids_free(&ids);
    return id;
}

/* Control tokens and ends of values more often than their number says. */
static uint32_t pick(const ms_ids *ids) {
    uint32_t choices[256], n = 0, total = ms_tokenizer_ids(w.tokenizer);
    for (uint32_t id = ms_tokenizer_first_control(w.tokenizer); id < total; id++)
        if (allowed(id)) choices[n++] = id;
    if (n && walk_random(&w.seed) % 3 == 0) return choices[walk_random(&w.seed) % n];
    if (walk_random(&w.seed) % 2) {
        uint32_t id = id_of(next_of_end(ids));
        if (allowed(id)) return id;
    }
    return walk_pick(w.mask, ms_vocabulary_mask_words(w.vocabulary), &w.seed);
}

static void walk(const ms_reply_rules *rules, const ms_grammar *g, ms_mask_cache *cache, uint32_t slack) {
    ms_matcher *m;
    ms_error err;
    uint32_t limit;
    ms_ids ids = {0};
    assert_int_equal(ms_matcher_create(&m, g, &err), MS_OK);
    assert_int_equal(ms_mask_tokens_needed(cache, m, &limit, &err), MS_OK);
    limit += slack;
    while (!ms_matcher_accepts(m)) {
        if (ids.count == limit) fail_msg("not complete after %u tokens", limit);
        assert_int_equal(ms_mask_next(cache, m, limit - (uint32_t)ids.count, w.mask, &err), MS_OK);
        uint32_t id = pick(&ids);
        assert_true(id != UINT32_MAX);
        assert_true(ms_matcher_token(m, w.vocabulary, id));
        assert_int_equal(ms_ids_push(&ids, id, &err), MS_OK);
    }
    check_reply(rules, &ids);
    ms_ids_free(&ids);
    ms_matcher_destroy(m);
}

static void walk_rules(const ms_reply_rules *rules, uint32_t times) {
    ms_grammar *g;
    ms_mask_cache *cache;
    ms_reply_report report = {0};
    ms_error err;
    ms_status status = mimo_reply_grammar(&g, w.tokenizer, rules, &report, &err);
    if (status != MS_OK) fail_msg("%s", err.message);
    assert_true(report.exact);
    assert_int_equal(ms_mask_cache_create(&cache, g, w.vocabulary, &err), MS_OK);
    for (uint32_t i = 0; i < times; i++) walk(rules, g, cache, i < 4 ? i : walk_random(&w.seed) % 150);
    ms_mask_cache_destroy(cache);
    ms_grammar_free(g);
}

static void every_combination_of_rules_holds(void **state) {
    (void)state;
    for (int choice = MS_REPLY_AUTO; choice <= MS_REPLY_MUST_CALL; choice++) {
        for (int format = MS_REPLY_TEXT; format <= MS_REPLY_JSON_SCHEMA; format++) {
            for (int bits = 0; bits < 4; bits++) {
                ms_reply_rules rules = {.channel = bits & 1 ? MS_CHANNEL_THINK : MS_CHANNEL_RESPONSE, .tools = w.tools,
                                        
                                        .tool_count = TOOLS, .choice = (ms_reply_choice)choice, .parallel = (bits & 2) != 0,
                                        .format = (ms_reply_format)format, .schema = ms_json_root(w.response_doc)};
                walk_rules(&rules, 80);
            }
        }
    }
    print_message("%zu calls, %zu responses\n", w.calls, w.responses);
    assert_true(w.calls > 200);
    assert_true(w.responses > 50);
}

static void a_named_tool_is_a_list_of_one(void **state) {
    (void)state;
    for (size_t i = 0; i < TOOLS; i++) {
        ms_reply_rules rules = {.channel = MS_CHANNEL_RESPONSE, .tools = &w.tools[i], .tool_count = 1,
                                .choice = MS_REPLY_MUST_CALL, .parallel = true};
        walk_rules(&rules, 100);
    }
}

static bool reads(const ms_grammar *g, const char *text) {
    ms_matcher *m;
    ms_error err;
    ms_ids ids = {0};
    assert_int_equal(ms_matcher_create(&m, g, &err), MS_OK);
    assert_int_equal(ms_tokenizer_encode(w.tokenizer, text, strlen(text), true, &ids, &err), MS_OK);
    bool good = true;
    for (size_t i = 0; i < ids.count && good; i++) good = ms_matcher_token(m, w.vocabulary, ids.data[i]);
    good = good && ms_matcher_accepts(m);
    ms_ids_free(&ids);
    ms_matcher_destroy(m);
    return good;
}

#define CALL(name, body) "<tool_call><function=" name ">" body "</function></tool_call>"
#define P(key, value)    "<parameter=" key ">" value "</parameter>"
#define END              "<|im_end|>"

static ms_grammar *grammar_of(ms_channel channel, size_t first, size_t count, bool parallel) {
    ms_reply_rules rules = {.channel = channel, .tools = w.tools + first, .tool_count = count,
                            .choice = MS_REPLY_MUST_CALL, .parallel = parallel};
    ms_grammar *g;
    ms_reply_report report = {0};
    ms_error err;
    if (mimo_reply_grammar(&g, w.tokenizer, &rules, &report, &err) != MS_OK) fail_msg("%s", err.message);
    return g;
}

static void known_replies(void **state) {
    (void)state;
    ms_grammar *g = grammar_of(MS_CHANNEL_RESPONSE, 0, 2, true);
    assert_true(reads(g, CALL("look", P("city", "Bern")) END));
    assert_true(reads(g, "I will look." CALL("look", P("city", "\"B\"\n") P("days", "3") P("unit", "c")) CALL("now", "") END));
    assert_true(reads(g, CALL("look", P("city", "42") P("unit", "\"1\"")) END)); /* text stays text, a listed digit is quoted */
    assert_false(reads(g, CALL("look", P("city", "B") P("unit", "1")) END));
    assert_false(reads(g, CALL("look", "") END));                /* city is required */
    assert_false(reads(g, CALL("look", P("city", "")) END));     /* and not empty */
    assert_false(reads(g, CALL("look", P("city", "a</parameter>b")) END));
    assert_false(reads(g, CALL("look", P("city", "Bern")) "more" END));
    assert_false(reads(g, CALL("look", P("city", "Bern"))));
    assert_false(reads(g, "text" END)); /* no call */
    assert_false(reads(g, "<think></think>" CALL("now", "") END));
    ms_grammar_free(g);
    g = grammar_of(MS_CHANNEL_THINK, 0, 2, false);
    assert_true(reads(g, "<think>so <be> it</think>" CALL("now", "") END));
    assert_true(reads(g, "so be it</think>Well. " CALL("now", "") END));
    assert_false(reads(g, "<think>so be it" CALL("now", "") END));
    assert_false(reads(g, "</think>" CALL("now", "") CALL("now", "") END));
    ms_grammar_free(g);
    g = grammar_of(MS_CHANNEL_RESPONSE, 5, 3, true);
    assert_true(reads(g, CALL("maybe", P("a", "null") P("b", "x</paramete")) END));
    assert_true(reads(g, CALL("maybe", P("a", "Rome") P("b", "[\"<\"]") P("c", "{\"k\":[1]}")) END));
    assert_true(reads(g, CALL("maybe", P("a", "\"7\"") P("b", "7")) END));
    assert_false(reads(g, CALL("maybe", P("a", "7") P("b", "7")) END)); /* would be read as a number */
    assert_false(reads(g, CALL("maybe", P("a", "x") P("b", "true")) END));
    assert_true(reads(g, CALL("maybe", P("a", "x") P("b", "\"true\"")) END));
    assert_false(reads(g, CALL("maybe", P("a", "x") P("b", "</parameter>")) END));
    assert_true(reads(g, CALL("deep", P("l", "[\"</param\",\"<\"]") P("m", "{\"<a\":\"</p\"}")) END));
    assert_false(reads(g, CALL("deep", P("l", "[\"</parameter>\"]") P("m", "{}")) END));
    assert_false(reads(g, CALL("deep", P("l", "[]") P("m", "{\"</parameter>\":\"ab\"}")) END));
    assert_true(reads(g, CALL("key", "{\"a>b\":\"</function></parameter>\"}") END)); /* only JSON spells this key */
    assert_false(reads(g, CALL("key", P("a>b", "x")) END));
    ms_grammar_free(g);
}

static void schemas_that_do_not_compile(void **state) {
    (void)state;
    static const char bad[] = "{\"type\":\"object\",\"properties\":{\"x\":{\"$dynamicRef\":\"#\"}}}";
    ms_json_doc *doc;
    ms_error err;
    ms_grammar *g;
    bool unconstrained[2];
    ms_reply_report report = {.unconstrained = unconstrained};
    assert_int_equal(ms_json_parse(&doc, bad, sizeof bad - 1, "bad", NULL, &err), MS_OK);
    ms_reply_tool tools[2] = {w.tools[0],
                              {"bad", 3, ms_json_root(doc), true}};
    ms_reply_rules rules = {.channel = MS_CHANNEL_THINK, .tools = tools, .tool_count = 2, .choice = MS_REPLY_AUTO};
    assert_int_equal(mimo_reply_grammar(&g, w.tokenizer, &rules, &report, &err), MS_ERR_USAGE);
    assert_int_equal(report.fault_tool, 1);
    assert_string_equal(report.fault.pointer, "/properties/x");
    assert_string_equal(report.fault.keyword, "$dynamicRef");
    tools[1].strict = false;
    assert_int_equal(mimo_reply_grammar(&g, w.tokenizer, &rules, &report, &err), MS_OK);
    assert_false(unconstrained[0]);
    assert_true(unconstrained[1]);
    ms_grammar_free(g);
    rules = (ms_reply_rules){.channel = MS_CHANNEL_THINK, .format = MS_REPLY_JSON_SCHEMA, .schema = ms_json_root(doc)};
    assert_int_equal(mimo_reply_grammar(&g, w.tokenizer, &rules, &report, &err), MS_ERR_USAGE);
    assert_true(report.fault_tool == MS_REPLY_RESPONSE);
    ms_json_free(doc);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_combination_of_rules_holds), cmocka_unit_test(a_named_tool_is_a_list_of_one),
        cmocka_unit_test(known_replies), cmocka_unit_test(schemas_that_do_not_compile)};
    return cmocka_run_group_tests_name("mimo grammar", tests, set_up, tear_down);
}
