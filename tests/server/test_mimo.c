/* A model of the other kind over HTTP: thinking on and off, calls and formats, greedy unless permitted, a conversation
 * that goes back where it is edited, and deadlines in a prompt.  Its weights are random: what it says means nothing,
 * but calls and formats hold, and everything repeats. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api_test.h"
#include "mimo_checkpoint.h"
#include "server/causal_session.h"
#include "server_fixture.h"

static char dir[MIMO_TEST_PATH];
static fixture f;
static ms_causal_session *model;

#define TOOLS                                                                                                          \
    ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"look\",\"parameters\":{\"type\":\"object\","          \
    "\"properties\":{\"n\":{\"type\":\"integer\"}},\"required\":[\"n\"],\"additionalProperties\":false}}},"            \
    "{\"type\":\"function\",\"function\":{\"name\":\"find\",\"parameters\":{\"type\":\"object\",\"properties\":"       \
    "{\"what\":{\"type\":\"string\",\"minLength\":3,\"maxLength\":9}},\"required\":[\"what\"]}}}]"
#define OFF ",\"reasoning_effort\":\"none\""

static int make_checkpoint(void **state) {
    (void)state;
    mimo_checkpoint_make(dir, 4);
    return 0;
}

static int remove_checkpoint(void **state) {
    (void)state;
    mimo_checkpoint_remove(dir);
    return 0;
}

/* `slow`: every pass of a few tokens reads its experts from a slow drive. */
static void run(bool slow) {
    ms_causal_session_options o = {0};
    ms_error err;
    ms_engine_options_default(&o.engine, dir);
    o.engine.context = FIXTURE_CONTEXT;
    o.engine.range_rows = slow ? 16 : 64;
    o.engine.threads = 1;
    o.engine.reserve_bytes = 0;
    o.engine.snapshots = 2;
    if (slow) {
        o.engine.experts = 0;
        o.engine.no_lookahead = true;
        o.engine.read_limit = 250000;
    }
    model = ms_causal_session_create(&o);
    f.o.source = ms_causal_session_source(model);
    if (ms_server_create(&f.server, &f.o, &err) != MS_OK) fail_msg("%s", err.message);
    f.port = ms_server_port(f.server);
    fixture_wait_ready(&f);
}

static int begin(void **state) {
    (void)state;
    fixture_init_model(&f, dir);
    f.o.any_model = true;
    return 0;
}

static int end(void **state) {
    (void)state;
    fixture_free(&f);
    ms_causal_session_destroy(model);
    return 0;
}

static void post(const char *body, http_response *r) {
    fixture_wait_idle(&f);
    http_call(f.port, "POST", "/v1/chat/completions", NULL, body, r);
}

static void expect(const char *message, const char *more, http_response *r) {
    post(fixture_body(message, more), r);
    if (r->status != 200) fail_msg("%s: %d %s", more, r->status, r->body.data ? r->body.data : "");
}

static void refuse(const char *more, const char *code) {
    http_response r;
    post(fixture_body("x", more), &r);
    if (r.status != 400) fail_msg("%s: %d %s", more, r.status, r.body.data ? r.body.data : "");
    assert_string_equal(http_text(&r, "error.code"), code);
    http_free(&r);
}

static const char *content(http_response *r) { return http_text(r, "choices.0.message.content"); }
static const char *reasoning(http_response *r) { return http_text(r, "choices.0.message.reasoning_content"); }
static long cached(http_response *r) { return http_number(r, "usage.prompt_tokens_details.cached_tokens"); }

/* ------------------------------------------------------------------ thinking */

static void thinking(void **state) {
    (void)state;
    http_response r;
    run(false);
    http_call(f.port, "GET", "/v1/models", NULL, NULL, &r);
    assert_string_equal(http_text(&r, "data.0.id"), "mimo-v2.6-flash");
    http_free(&r);
    static const char *const off[] = {OFF, ",\"chat_template_kwargs\":{\"enable_thinking\":false}"};
    static const char *const on[] = {"", ",\"reasoning_effort\":\"high\"",
                                     ",\"chat_template_kwargs\":{\"enable_thinking\":true}"};
    char more[200], said[2000] = "";
    for (size_t i = 0; i < 2; i++) {
        (void)snprintf(more, sizeof more, "%s,\"max_tokens\":24", off[i]);
        expect("Hello!", more, &r);
        assert_string_equal(reasoning(&r), "");
        assert_true(strlen(content(&r)) > 0);
        if (i) assert_string_equal(content(&r), said);
        (void)snprintf(said, sizeof said, "%s", content(&r));
        http_free(&r);
    }
    for (size_t i = 0; i < 3; i++) {
        (void)snprintf(more, sizeof more, "%s,\"max_tokens\":24", on[i]);
        expect("Hello!", more, &r);
        assert_true(strlen(reasoning(&r)) > 0);
        if (i) assert_string_equal(reasoning(&r), said);
        (void)snprintf(said, sizeof said, "%s", reasoning(&r));
        http_free(&r);
    }
    refuse(",\"reasoning_effort\":\"low\"", "unsupported_value");
    refuse(",\"reasoning_effort\":\"max\"", "unsupported_value");
    refuse(OFF ",\"chat_template_kwargs\":{\"enable_thinking\":true}", "invalid_value");
}

/* A stream has the words of the whole answer. */
static void streams(void **state) {
    (void)state;
    run(false);
    static const char *const cases[] = {OFF ",\"max_tokens\":60", ",\"max_tokens\":60",
                                        OFF TOOLS ",\"tool_choice\":\"required\",\"max_tokens\":120"};
    static const char *const paths[][2] = {
        {"choices.0.message.content", "choices[0].delta.content"},
        {"choices.0.message.reasoning_content", "choices[0].delta.reasoning_content"},
        {"choices.0.message.tool_calls.0.function.arguments", "choices[0].delta.tool_calls[0].function.arguments"}};
    for (size_t i = 0; i < 3; i++) {
        http_response whole, r;
        ms_text words = {0};
        char more[1024];
        expect("Tell me.", cases[i], &whole);
        (void)snprintf(more, sizeof more, "%s,\"stream\":true", cases[i]);
        expect("Tell me.", more, &r);
        sse s = sse_read(&r.body);
        for (size_t k = 0; k < s.count; k++) {
            const ms_json *d = s.items[k].doc ? ms_json_root(s.items[k].doc) : NULL;
            const ms_json *call = d ? at(d, "choices[0].delta.tool_calls[0].index") : NULL;
            int64_t index = 0;
            if (call) assert_true(ms_json_i64(call, &index));
            if (d && index == 0) ms_text_puts(&words, text_at(d, paths[i][1]));
        }
        ms_text_append(&words, "", 0);
        assert_true(words.len > 0);
        assert_string_equal(words.data, http_text(&whole, paths[i][0]));
        assert_string_equal(s.items[s.count - 1].data, "[DONE]");
        sse_free(&s);
        ms_text_free(&words);
        http_free(&whole);
        http_free(&r);
    }
}

/* ------------------------------------------------------------------ calls and formats */

static void check_call(http_response *r, size_t call) {
    char path[80];
    (void)snprintf(path, sizeof path, "choices.0.message.tool_calls.%zu.function.name", call);
    bool look = strcmp(http_text(r, path), "look") == 0;
    if (!look) assert_string_equal(http_text(r, path), "find");
    (void)snprintf(path, sizeof path, "choices.0.message.tool_calls.%zu.function.arguments", call);
    const char *text = http_text(r, path);
    ms_json_doc *doc;
    if (ms_json_parse(&doc, text, strlen(text), "arguments", NULL, NULL) != MS_OK) fail_msg("%s", text);
    const ms_json *v = ms_json_get(ms_json_root(doc), look ? "n" : "what");
    int64_t n;
    if (!v || (look ? !ms_json_i64(v, &n) : v->type != MS_JSON_STRING || v->str_len < 3)) fail_msg("%s", text);
    ms_json_free(doc);
}

static void calls_that_are_required(void **state) {
    (void)state;
    f.o.allow_sampling = true;
    run(false);
    http_response r;
    for (int i = 0; i < 12; i++) {
        char more[1400];
        (void)snprintf(more, sizeof more,
                       TOOLS "%s,\"tool_choice\":\"required\",\"parallel_tool_calls\":%s,\"max_tokens\":%d%s",
                       i % 2 ? OFF : "", i % 3 ? "true" : "false", 150 + 30 * (i % 4),
                       i < 4 ? "" : ",\"temperature\":1.5,\"seed\":5");
        expect(i % 2 ? "Hello!" : "What is it?", more, &r);
        const ms_json *calls = at(http_json(&r), "choices[0].message.tool_calls");
        assert_non_null(calls);
        if (i % 3 == 0) assert_int_equal(calls->count, 1);
        for (size_t k = 0; k < calls->count; k++) check_call(&r, k);
        assert_string_equal(http_text(&r, "choices.0.finish_reason"), "tool_calls");
        http_free(&r);
    }
    expect("x", TOOLS ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"find\"}},\"max_tokens\":200",
           &r);
    assert_string_equal(http_text(&r, "choices.0.message.tool_calls.0.function.name"), "find");
    http_free(&r);
    expect("x", TOOLS OFF ",\"tool_choice\":\"none\",\"max_tokens\":100", &r);
    assert_null(at(http_json(&r), "choices[0].message.tool_calls"));
    http_free(&r);
}

static void formats(void **state) {
    (void)state;
    run(false);
    http_response r;
    for (int thinks = 0; thinks < 2; thinks++) {
        char more[1024];
        (void)snprintf(
            more, sizeof more,
            "%s,\"max_tokens\":120,\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"s\","
            "\"schema\":{\"type\":\"object\",\"properties\":{\"a\":{\"enum\":[\"red\",\"blue\"]}},\"required\":[\"a\"],"
            "\"additionalProperties\":false}}}",
            thinks ? "" : OFF);
        expect("Tell me.", more, &r);
        ms_json_doc *doc;
        const char *text = content(&r);
        if (ms_json_parse(&doc, text, strlen(text), "content", NULL, NULL) != MS_OK) fail_msg("%s", text);
        const ms_json *a = ms_json_get(ms_json_root(doc), "a");
        assert_true(ms_json_is_string(a, "red") || ms_json_is_string(a, "blue"));
        ms_json_free(doc);
        http_free(&r);
    }
    expect("x", OFF ",\"response_format\":{\"type\":\"json_object\"},\"max_tokens\":80", &r);
    assert_int_equal(content(&r)[0], '{');
    http_free(&r);
}

#define FIND                                                                                                           \
    "{\"type\":\"object\",\"properties\":{\"what\":{\"type\":\"string\",\"minLength\":3,\"maxLength\":9}},"            \
    "\"required\":"                                                                                                    \
    "[\"what\"],\"additionalProperties\":false}"
#define COLOUR                                                                                                         \
    "{\"type\":\"object\",\"properties\":{\"what\":{\"enum\":[\"red\",\"blue\"]}},\"required\":[\"what\"],"            \
    "\"additionalProperties\":false}"
#define ANTHROPIC                                                                                                      \
    "\"max_tokens\":250,\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[{\"name\":\"find\","           \
    "\"input_schema\":" FIND "}]"
#define RESPONSES                                                                                                      \
    "\"max_output_tokens\":250,\"input\":\"x\",\"tools\":[{\"type\":\"function\",\"name\":\"find\","                   \
    "\"parameters\":" FIND "}]"

/* Calls and formats of the other APIs: the object with `what` is where it must be, whole and in a stream. */
static void other_apis(void **state) {
    (void)state;
    run(false);
    static const struct {
        const char *path, *body, *piece, *key; /* stream: pieces are at `key` of events with `piece` */
    } cases[] = {
        {"/v1/messages", ANTHROPIC ",\"tool_choice\":{\"type\":\"any\"}", "input_json_delta", "delta.partial_json"},
        {"/v1/messages", ANTHROPIC ",\"tool_choice\":{\"type\":\"tool\",\"name\":\"find\"}", "input_json_delta",
         "delta.partial_json"},
        {"/v1/responses", RESPONSES ",\"tool_choice\":\"required\"", "function_call_arguments.delta", "delta"},
        {"/v1/responses", RESPONSES ",\"tool_choice\":{\"type\":\"function\",\"name\":\"find\"}",
         "function_call_arguments.delta", "delta"},
        {"/v1/responses",
         "\"max_output_tokens\":250,\"input\":\"x\",\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":\"s\","
         "\"schema\":" COLOUR "}}",
         "output_text.delta", "delta"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char body[1400];
        http_response r;
        ms_text words = {0};
        (void)snprintf(body, sizeof body, "{\"model\":\"m\",\"stream\":true,%s}", cases[i].body);
        fixture_wait_idle(&f);
        http_call(f.port, "POST", cases[i].path, NULL, body, &r);
        assert_int_equal(r.status, 200);
        sse s = sse_read(&r.body);
        for (size_t k = 0; k < s.count; k++) {
            const ms_json *e = s.items[k].doc ? ms_json_root(s.items[k].doc) : NULL;
            const char *type = e ? text_at(e, "type") : "";
            if (e && strcmp(type, "content_block_delta") == 0) type = text_at(e, "delta.type");
            if (strstr(type, cases[i].piece)) ms_text_puts(&words, text_at(e, cases[i].key));
        }
        ms_text_append(&words, "", 0);
        ms_json_doc *doc;
        const char *end = strstr(words.data, "}{"); /* of the first call */
        size_t len = end ? (size_t)(end - words.data) + 1 : words.len;
        if (ms_json_parse(&doc, words.data, len, "object", NULL, NULL) != MS_OK) fail_msg("%zu: %s", i, r.body.data);
        assert_true(ms_json_get(ms_json_root(doc), "what")->str_len >= 3);
        ms_json_free(doc);
        sse_free(&s);
        ms_text_free(&words);
        http_free(&r);
    }
}

/* ------------------------------------------------------------------ greedy */

static void greedy_unless_permitted(void **state) {
    (void)state;
    run(false);
    http_response r;
    refuse(",\"temperature\":0.7", "unsupported_value");
    refuse(",\"top_p\":0.9", "unsupported_value");
    refuse(",\"top_k\":5", "unsupported_value");
    expect("x", OFF ",\"temperature\":0,\"top_p\":1,\"top_k\":1,\"min_p\":0,\"max_tokens\":8", &r);
    http_free(&r);
}

static void sampling_when_permitted(void **state) {
    (void)state;
    f.o.allow_sampling = true;
    run(false);
    char said[3][2000];
    for (int i = 0; i < 3; i++) {
        http_response r;
        expect("x",
               i == 2 ? OFF ",\"temperature\":2,\"seed\":8,\"max_tokens\":30"
                      : OFF ",\"temperature\":2,\"seed\":7,\"max_tokens\":30",
               &r);
        (void)snprintf(said[i], sizeof said[i], "%s", content(&r));
        http_free(&r);
    }
    assert_string_equal(said[0], said[1]);
    assert_string_not_equal(said[0], said[2]);
}

/* ------------------------------------------------------------------ what is kept */

#define SYSTEM                                                                                                         \
    "{\"model\":\"m\",\"max_tokens\":12" OFF                                                                           \
    ",\"messages\":[{\"role\":\"system\",\"content\":\"Say little and say it "                                         \
    "well.\"},{\"role\":\"user\",\"content\":\"The first message of "                                                  \
    "both.\"},{\"role\":\"assistant\",\"content\":\"Yes.\"},"                                                          \
    "{\"role\":\"user\",\"content\":\"And then "

/* An edited last message: everything before the edit stays, and the words are those of a fresh server. */
static void an_edited_message_goes_back(void **state) {
    (void)state;
    run(false);
    http_response r;
    post(SYSTEM "one thing came.\"}]}", &r);
    assert_int_equal(r.status, 200);
    long prompt = http_number(&r, "usage.prompt_tokens");
    assert_int_equal(cached(&r), 0);
    http_free(&r);
    post(SYSTEM "another followed.\"}]}", &r);
    assert_int_equal(r.status, 200);
    assert_true(cached(&r) > prompt / 2);
    assert_true(cached(&r) < http_number(&r, "usage.prompt_tokens"));
    char said[2000];
    (void)snprintf(said, sizeof said, "%s", content(&r));
    http_free(&r);
    fixture_stop(&f);
    ms_causal_session_destroy(model);
    f.loaded = false;
    f.o.reuse = false;
    run(false);
    for (int i = 0; i < 2; i++) {
        post(i ? SYSTEM "another followed.\"}]}" : SYSTEM "one thing came.\"}]}", &r);
        assert_int_equal(cached(&r), 0);
        if (i) assert_string_equal(content(&r), said);
        http_free(&r);
    }
}

/* ------------------------------------------------------------------ deadlines */

static void a_deadline_in_the_prompt(void **state) {
    (void)state;
    f.o.deadline_s = 1;
    run(true);
    http_response r;
    ms_text words = {0}, body = {0};
    for (int i = 0; i < 90; i++) ms_text_printf(&words, "word%d ", i);
    ms_text_printf(&body,
                   "{\"model\":\"m\",\"max_tokens\":1" OFF ",\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}]}",
                   words.data);
    long before = -1;
    int tries = 0, steps = 0;
    for (; tries < 60; tries++) {
        post(body.data, &r);
        if (r.status == 200) break;
        assert_int_equal(r.status, 504);
        assert_string_equal(http_text(&r, "error.code"), "deadline_exceeded");
        long reached = http_number(&r, "error.details.reused") + http_number(&r, "error.details.evaluated");
        /* Each attempt gets further; one on a machine that is busy with other things may not, and says so. */
        bool further = http_number(&r, "error.details.evaluated") > 0;
        if (further != (reached > before) || (!further && reached != before) ||
            further != !!strstr(r.body.data, "\"resumable\":true"))
            fail_msg("%ld, and before %ld: %s", reached, before, r.body.data);
        steps += further;
        before = reached;
        http_free(&r);
    }
    print_message("%d attempts, the last from %ld\n", tries + 1, before);
    assert_true(steps > 0);
    assert_int_equal(r.status, 200);
    assert_int_equal(http_number(&r, "usage.completion_tokens"), 1);
    assert_int_equal(cached(&r), before);
    http_free(&r);
    ms_text_free(&words);
    ms_text_free(&body);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(thinking),
        TEST(streams),
        TEST(calls_that_are_required),
        TEST(formats),
        TEST(other_apis),
        TEST(greedy_unless_permitted),
        TEST(sampling_when_permitted),
        TEST(an_edited_message_goes_back),
        TEST(a_deadline_in_the_prompt),
    };
    return cmocka_run_group_tests(tests, make_checkpoint, remove_checkpoint);
}
