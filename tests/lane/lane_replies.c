#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "lane_replies.h"

#include <stdlib.h>
#include <string.h>

static const char response_text[] =
    "{\"type\":\"object\",\"properties\":{\"answer\":{\"type\":\"string\"},\"score\":"
    "{\"type\":\"number\",\"minimum\":0,\"maximum\":1}},\"required\":[\"answer\",\"score\"],"
    "\"additionalProperties\":false}";

typedef struct lane_replies {
    const ms_lane *lane;
    ms_tokenizer *tokenizer;
    ms_vocabulary *vocabulary;
    ms_json_doc *tools_doc, *response_doc;
    ms_reply_tool tools[REPLIES_TOOLS];
    ms_schema *schemas[REPLIES_TOOLS], *response;
    size_t tool_count;
    uint64_t *mask, seed;
    size_t calls, responses; /* seen in all */
    replies_rare *rare;
} lane_replies;

static lane_replies w;

int replies_open(const ms_lane *lane, ms_tokenizer *tokenizer, const char *tools, replies_rare *rare) {
    ms_error err;
    w = (lane_replies){.lane = lane, .tokenizer = tokenizer, .seed = 5, .rare = rare};
    if (ms_vocabulary_create(&w.vocabulary, tokenizer, ms_tokenizer_ids(tokenizer), &err) != MS_OK) return 1;
    w.mask = calloc(ms_vocabulary_mask_words(w.vocabulary), sizeof *w.mask);
    if (!w.mask || ms_json_parse(&w.tools_doc, tools, strlen(tools), "tools", NULL, &err) != MS_OK) return 1;
    if (ms_json_parse(&w.response_doc, response_text, sizeof response_text - 1, "response", NULL, &err) != MS_OK)
        return 1;
    for (const ms_json *t = ms_json_root(w.tools_doc)->child; t; t = t->next, w.tool_count++) {
        const ms_json *name = ms_json_get(t, "name"), *parameters = ms_json_get(t, "parameters");
        if (w.tool_count == REPLIES_TOOLS) return 1;
        w.tools[w.tool_count] = (ms_reply_tool){name->str, name->str_len, parameters, true};
        if (ms_schema_open(&w.schemas[w.tool_count], parameters, NULL, &err) != MS_OK) return 1;
    }
    return ms_schema_open(&w.response, ms_json_root(w.response_doc), NULL, &err) != MS_OK;
}

int replies_close(void **state) {
    (void)state;
    for (size_t i = 0; i < w.tool_count; i++) ms_schema_close(w.schemas[i]);
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
    if (ms_json_parse(&doc, text, len, "reply", &deep, &err) != MS_OK)
        fail_msg("%s: %.*s", err.message, (int)len, text);
    assert_int_equal(ms_schema_validate(s, ms_json_root(doc), &valid, &err), MS_OK);
    if (!valid) fail_msg("does not fit: %.*s", (int)len, text);
    ms_json_free(doc);
}

static void check_call(const ms_reply_rules *rules, const ms_tool_call *call) {
    for (size_t i = 0; i < rules->tool_count; i++) {
        const ms_reply_tool *t = &rules->tools[i];
        if (t->name_len != call->name_len || memcmp(t->name, call->name, t->name_len) != 0) continue;
        check_text(w.schemas[t - w.tools], call->arguments, call->arguments_len);
        assert_int_equal(call->arguments[0], '{');
        w.calls++;
        return;
    }
    fail_msg("a call of %s", call->name);
}

static void check_reply(const ms_reply_rules *rules, const ms_ids *ids) {
    const ms_reply_parser_ops *ops = w.lane->parser;
    void *p;
    ms_reply reply;
    ms_error err;
    bool done = false;
    assert_int_equal(ops->create(&p, w.tokenizer, rules->channel, &err), MS_OK);
    if (ops->tools) assert_int_equal(ops->tools(p, ms_json_root(w.tools_doc), &err), MS_OK);
    for (size_t i = 0; i < ids->count; i++) {
        assert_false(done);
        assert_int_equal(ops->push(p, ids->data[i], NULL, &done, &err), MS_OK);
    }
    assert_true(done);
    assert_int_equal(ops->finish(p, NULL, &reply, &err), MS_OK);
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
    ops->destroy(p);
}

static bool allowed(uint32_t id) { return w.mask[id >> 6] >> (id & 63) & 1; }

/* Control tokens, and what the lane finds rare, more often than their number says, so that elements end. */
static uint32_t pick(const ms_ids *ids) {
    uint32_t choices[256], n = 0, total = ms_tokenizer_ids(w.tokenizer);
    for (uint32_t id = ms_tokenizer_first_control(w.tokenizer); id < total; id++)
        if (allowed(id)) choices[n++] = id;
    if (n && walk_random(&w.seed) % 3 == 0) return choices[walk_random(&w.seed) % n];
    if (w.rare && walk_random(&w.seed) % 2) {
        uint32_t id = w.rare(w.tokenizer, ids);
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
    ms_status status = w.lane->reply_grammar(&g, w.tokenizer, rules, &report, &err);
    if (status != MS_OK) fail_msg("%s", err.message);
    assert_int_equal(ms_mask_cache_create(&cache, g, w.vocabulary, &err), MS_OK);
    for (uint32_t i = 0; i < times; i++) walk(rules, g, cache, i < 4 ? i : walk_random(&w.seed) % 150);
    ms_mask_cache_destroy(cache);
    ms_grammar_free(g);
}

void replies_of_all_rules(uint32_t times) {
    for (int choice = MS_REPLY_AUTO; choice <= MS_REPLY_MUST_CALL; choice++) {
        for (int format = MS_REPLY_TEXT; format <= MS_REPLY_JSON_SCHEMA; format++) {
            for (int bits = 0; bits < 4; bits++) {
                ms_reply_rules rules = {.channel = bits & 1 ? MS_CHANNEL_THINK : MS_CHANNEL_RESPONSE,
                                        .tools = w.tools,
                                        .tool_count = w.tool_count,
                                        .choice = (ms_reply_choice)choice,
                                        .parallel = (bits & 2) != 0,
                                        .format = (ms_reply_format)format,
                                        .schema = ms_json_root(w.response_doc)};
                walk_rules(&rules, times);
            }
        }
    }
    print_message("%zu calls, %zu responses\n", w.calls, w.responses);
    assert_true(w.calls > 200);
    assert_true(w.responses > 50);
}

void replies_of_each_tool(uint32_t times) {
    for (size_t i = 0; i < w.tool_count; i++) {
        ms_reply_rules rules = {.channel = MS_CHANNEL_RESPONSE,
                                .tools = &w.tools[i],
                                .tool_count = 1,
                                .choice = MS_REPLY_MUST_CALL,
                                .parallel = true};
        walk_rules(&rules, times);
    }
}

void replies_of_open_schemas(void **state) {
    (void)state;
    static const char *const schemas[] = {
        "{}",
        "{\"title\":\"x\"}",
        "{\"additionalProperties\":{\"type\":\"integer\"}}",
        "{\"not\":{\"type\":\"array\"}}",
        "{\"anyOf\":[{\"type\":\"object\"},{\"type\":\"string\"}]}",
        "{\"$ref\":\"#/$defs/a\",\"$defs\":{\"a\":{}}}",
        "{\"properties\":{\"a\":{\"type\":\"integer\"}}}",
        "{\"enum\":[7,{\"a\":1},\"x\"]}",
        "{\"properties\":{\"next\":{\"$ref\":\"#\"}},\"required\":[\"next\"],\"maxProperties\":2}"};
    const lane_replies all = w;
    for (size_t i = 0; i < 2 * sizeof schemas / sizeof schemas[0]; i++) {
        ms_text tools = {0};
        ms_error err;
        ms_text_printf(&tools, "[{\"name\":\"open\",\"parameters\":%s}]", schemas[i / 2]);
        assert_int_equal(ms_json_parse(&w.tools_doc, tools.data, tools.len, "tools", NULL, &err), MS_OK);
        const ms_json *parameters = ms_json_get(ms_json_root(w.tools_doc)->child, "parameters");
        w.tools[0] = (ms_reply_tool){"open", 4, parameters, i % 2 == 0};
        w.tool_count = 1;
        assert_int_equal(ms_schema_open(&w.schemas[0], parameters, NULL, &err), MS_OK);
        replies_of_each_tool(60);
        ms_schema_close(w.schemas[0]);
        ms_json_free(w.tools_doc);
        ms_text_free(&tools);
    }
    w = all;
}

ms_grammar *replies_grammar(ms_channel channel, size_t first, size_t count, bool parallel) {
    ms_reply_rules rules = {.channel = channel,
                            .tools = w.tools + first,
                            .tool_count = count,
                            .choice = MS_REPLY_MUST_CALL,
                            .parallel = parallel};
    ms_grammar *g;
    ms_reply_report report = {0};
    ms_error err;
    if (w.lane->reply_grammar(&g, w.tokenizer, &rules, &report, &err) != MS_OK) fail_msg("%s", err.message);
    return g;
}

bool replies_read(const ms_grammar *g, const char *text) {
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

void replies_of_bad_schemas(void **state) {
    (void)state;
    static const char bad[] = "{\"type\":\"object\",\"properties\":{\"x\":{\"$dynamicRef\":\"#\"}}}";
    ms_json_doc *doc;
    ms_error err;
    ms_grammar *g;
    bool unconstrained[2];
    ms_reply_report report = {.unconstrained = unconstrained};
    assert_int_equal(ms_json_parse(&doc, bad, sizeof bad - 1, "bad", NULL, &err), MS_OK);
    ms_reply_tool tools[2] = {w.tools[0], {"bad", 3, ms_json_root(doc), true}};
    ms_reply_rules rules = {.channel = MS_CHANNEL_THINK, .tools = tools, .tool_count = 2, .choice = MS_REPLY_AUTO};
    assert_int_equal(w.lane->reply_grammar(&g, w.tokenizer, &rules, &report, &err), MS_ERR_USAGE);
    assert_int_equal(report.fault_tool, 1);
    assert_string_equal(report.fault.pointer, "/properties/x");
    assert_string_equal(report.fault.keyword, "$dynamicRef");
    tools[1].strict = false;
    assert_int_equal(w.lane->reply_grammar(&g, w.tokenizer, &rules, &report, &err), MS_OK);
    assert_false(unconstrained[0]);
    assert_true(unconstrained[1]);
    ms_grammar_free(g);
    rules = (ms_reply_rules){.channel = MS_CHANNEL_THINK, .format = MS_REPLY_JSON_SCHEMA, .schema = ms_json_root(doc)};
    assert_int_equal(w.lane->reply_grammar(&g, w.tokenizer, &rules, &report, &err), MS_ERR_USAGE);
    assert_true(report.fault_tool == MS_REPLY_RESPONSE);
    ms_json_free(doc);
    static const char no_object[] = "{\"enum\":[7,\"x\"]}"; /* some value fits, and no arguments */
    assert_int_equal(ms_json_parse(&doc, no_object, sizeof no_object - 1, "bad", NULL, &err), MS_OK);
    tools[1] = (ms_reply_tool){"bad", 3, ms_json_root(doc), true};
    rules = (ms_reply_rules){.channel = MS_CHANNEL_THINK, .tools = tools, .tool_count = 2, .choice = MS_REPLY_AUTO};
    assert_int_equal(w.lane->reply_grammar(&g, w.tokenizer, &rules, &report, &err), MS_ERR_USAGE);
    assert_int_equal(report.fault.kind, MS_SCHEMA_IMPOSSIBLE);
    ms_json_free(doc);
}
