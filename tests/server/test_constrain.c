/* Replies held to their grammar: whatever the model prefers, calls and formats are right, also at a limit. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/causal_session.h"
#include "server_fixture.h"
#include "text/schema.h"

static fixture f;
static ms_causal_session *nano;

#define TOOLS                                                                                                          \
    ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"look\",\"parameters\":{\"type\":\"object\","          \
    "\"properties\":{\"n\":{\"type\":\"integer\"}},\"required\":[\"n\"],\"additionalProperties\":false}}},"            \
    "{\"type\":\"function\",\"function\":{\"name\":\"find\",\"parameters\":{\"type\":\"object\",\"properties\":"       \
    "{\"what\":{\"enum\":[\"sea\",\"sky\"]}},\"required\":[\"what\"]}}}]"

/* The small model: it prefers to chat. */
static int start(void **state) {
    (void)state;
    ms_causal_session_options o = {0};
    fixture_init(&f);
    ms_engine_options_default(&o.engine, "models/k3-nano");
    o.engine.context = FIXTURE_CONTEXT;
    o.engine.snapshots = 2;
    o.engine.reserve_bytes = 0;
    o.engine.threads = 1;
    nano = ms_causal_session_create(&o);
    f.o.source = ms_causal_session_source(nano);
    ms_error err;
    if (ms_server_create(&f.server, &f.o, &err) != MS_OK) fail_msg("%s", err.message);
    f.port = ms_server_port(f.server);
    fixture_wait_ready(&f);
    return 0;
}

static int stop(void **state) {
    (void)state;
    fixture_free(&f);
    ms_causal_session_destroy(nano);
    return 0;
}

static void ask(const char *message, const char *more, http_response *r) {
    fixture_wait_idle(&f);
    http_call(f.port, "POST", "/v1/chat/completions", NULL, fixture_body(message, more), r);
}

static void expect(const char *message, const char *more, http_response *r) {
    ask(message, more, r);
    if (r->status != 200) fail_msg("%s: %d %s", more, r->status, r->body.data ? r->body.data : "");
}

static void arguments_fit(http_response *r, size_t call) {
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
    if (!v || (look ? !ms_json_i64(v, &n) : !ms_json_is_string(v, "sea") && !ms_json_is_string(v, "sky"))) {
        fail_msg("%s", text);
    }
    ms_json_free(doc);
}

static void calls_that_are_required(void **state) {
    (void)state;
    http_response r;
    for (int seed = 0; seed < 12; seed++) {
        char more[1024];
        (void)snprintf(more, sizeof more,
                       TOOLS ",\"tool_choice\":\"required\",\"parallel_tool_calls\":%s,\"temperature\":1.5,"
                             "\"seed\":%d,\"max_tokens\":%d",
                       seed % 2 ? "false" : "true", seed, 120 + 40 * (seed % 3));
        expect("Hello! How are you?", more, &r);
        const ms_json *calls =
            ms_json_get(ms_json_get(ms_json_at(ms_json_get(http_json(&r), "choices"), 0), "message"), "tool_calls");
        assert_non_null(calls);
        if (seed % 2) assert_int_equal(calls->count, 1);
        for (size_t i = 0; i < calls->count; i++) arguments_fit(&r, i);
        http_free(&r);
    }
    expect("Hello!",
           TOOLS ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"find\"}},\"max_tokens\":200", &r);
    assert_string_equal(http_text(&r, "choices.0.message.tool_calls.0.function.name"), "find");
    http_free(&r);
    expect("Look at 7.", TOOLS ",\"tool_choice\":\"none\",\"max_tokens\":200", &r);
    assert_string_equal(http_text(&r, "choices.0.message.tool_calls.0.function.name"), "");
    http_free(&r);
}

static const char *const schemas[] = {
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":12},\"age\":{\"type\":"
    "\"integer\",\"minimum\":0,"
    "\"maximum\":120}},\"required\":[\"name\",\"age\"],\"additionalProperties\":false}",
    "{\"type\":\"array\",\"items\":{\"enum\":[\"red\",\"green\",\"blue\"]},\"minItems\":1,\"maxItems\":4}",
    "{\"type\":\"object\",\"properties\":{\"when\":{\"type\":\"string\",\"format\":\"date\"},\"id\":{\"type\":"
    "\"string\",\"pattern\":"
    "\"^[A-Z]{2}[0-9]{3}$\"}},\"required\":[\"when\",\"id\"],\"additionalProperties\":false}",
    ("{\"anyOf\":[{\"type\":\"null\"},{\"type\":\"boolean\"},{\"type\":\"array\",\"items\":{\"type\":\"integer\"},"
     "\"maxItems\":3}]}")};

static void check_schema(const char *schema, http_response *r) {
    ms_json_doc *doc, *value;
    ms_schema *s;
    bool valid = false;
    const char *text = http_text(r, "choices.0.message.content");
    assert_int_equal(ms_json_parse(&doc, schema, strlen(schema), "schema", NULL, NULL), MS_OK);
    assert_int_equal(ms_schema_open(&s, ms_json_root(doc), NULL, NULL), MS_OK);
    if (ms_json_parse(&value, text, strlen(text), "value", NULL, NULL) != MS_OK) fail_msg("%s: %s", schema, text);
    assert_int_equal(ms_schema_validate(s, ms_json_root(value), &valid, NULL), MS_OK);
    if (!valid) fail_msg("%s: %s", schema, text);
    ms_json_free(value);
    ms_schema_close(s);
    ms_json_free(doc);
}

static void formats(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof schemas / sizeof schemas[0]; i++) {
        for (int seed = 0; seed < 6; seed++) {
            http_response r;
            char more[1024];
            (void)snprintf(
                more, sizeof more,
                ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"s\",\"schema\":%s}},"
                "\"temperature\":1,\"seed\":%d,\"max_tokens\":%d,\"reasoning_effort\":\"low\"",
                schemas[i], seed, seed ? 300 : 80); /* a reply whose thoughts would fill the limit */
            expect("Tell me a long story.", more, &r);
            check_schema(schemas[i], &r);
            http_free(&r);
        }
    }
    http_response r;
    expect("Tell me a story.", ",\"response_format\":{\"type\":\"json_object\"},\"max_tokens\":120", &r);
    assert_int_equal(http_text(&r, "choices.0.message.content")[0], '{');
    http_free(&r);
}

#define SCHEMA(s) ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"s\",\"schema\":" s "}}"

/* Schemas that no reply can keep, each with its own reason. */
static void why_a_schema_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *schema, *code, *keyword, *param;
    } rules[] = {{"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"pattern\":\"(?=x)\"}}}",
                  "unsupported_schema", "pattern:", "/properties/a"},
                 {"{\"type\":\"array\",\"items\":{\"type\":\"object\"},\"uniqueItems\":true}", "unsupported_schema",
                  "uniqueItems:", ""},
                 {"{\"type\":\"string\",\"minLength\":1000000}", "unsupported_schema", "262144 bytes", ""},
                 {"{\"properties\":{\"a\":{\"tpye\":\"string\"}}}", "unsupported_schema",
                  "tpye: this keyword is not known", "/properties/a"},
                 {"{\"items\":[{}]}", "unsupported_schema", "items: expected one schema", ""},
                 {"{\"properties\":{\"a\":{\"pattern\":\"(\"}}}", "invalid_schema", "pattern: expected ), at byte 1",
                  "/properties/a"},
                 {"{\"patternProperties\":{\"1\":{},\"2\":{},\"3\":{},\"4\":{},\"5\":{},\"6\":{},\"7\":{}}}",
                  "unsupported_schema", "patternProperties: expected at most 6 patterns in one place", ""},
                 {"{\"properties\":{\"a\":{\"type\":\"strong\"}}}", "invalid_schema", "type:", "/properties/a"},
                 {"{\"properties\":{\"a\":{\"$ref\":\"#/nowhere\"}}}", "invalid_schema",
                  "$ref: expected a schema at its target", "/properties/a"},
                 {"{\"type\":\"integer\",\"minimum\":5,\"maximum\":4}", "unsupported_schema", "no value fits", ""},
                 {"{\"not\":{}}", "unsupported_schema", "no value fits", ""},
                 {"{\"type\":\"object\",\"required\":[\"a\"],\"additionalProperties\":false}", "unsupported_schema",
                  "no value fits", ""}};
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        for (int tools = 0; tools < 2; tools++) { /* whether or not something else could be replied */
            http_response r;
            char more[1024], param[128];
            (void)snprintf(more, sizeof more,
                           "%s,\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"s\","
                           "\"schema\":%s}}",
                           tools ? TOOLS : "", rules[i].schema);
            (void)snprintf(param, sizeof param, "/response_format/json_schema/schema%s", rules[i].param);
            ask("x", more, &r);
            if (tools && strstr(rules[i].schema, "1000000")) { /* calls are shorter */
                http_free(&r);
                continue;
            }
            assert_int_equal(r.status, 400);
            assert_string_equal(http_text(&r, "error.code"), rules[i].code);
            assert_string_equal(http_text(&r, "error.param"), param);
            const char *message = http_text(&r, "error.message");
            if (!strstr(message, rules[i].keyword)) fail_msg("%s", message);
            assert_memory_equal(message, param, strlen(param)); /* some APIs have the message alone */
            http_free(&r);
        }
    }
}

#define BAD   "{\"type\":\"object\",\"properties\":{\"a\":{\"pattern\":\"\\\\bx\"}}}"
#define ASKED "{\"model\":\"moonshine\",\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"

/* The place is that of the request as it came, past tools that are skipped. */
static void where_a_schema_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *path, *body, *place;
    } rules[] = {
        {"/v1/chat/completions",
         ASKED "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"t\",\"strict\":true,\"parameters\":" BAD
               "}}]}",
         "/tools/0/function/parameters"},
        {"/v1/chat/completions",
         "{\"model\":\"moonshine\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"system\",\"tools\":["
         "{\"type\":\"function\",\"function\":{\"name\":\"s\"}},{\"type\":\"function\",\"function\":{\"name\":\"t\","
         "\"strict\":true,\"parameters\":" BAD "}}]}]}",
         "/messages/1/tools/1/function/parameters"},
        {"/v1/messages",
         ASKED "\"tools\":[{\"type\":\"web_search_20250305\",\"name\":\"w\"},{\"name\":\"t\",\"strict\":true,"
               "\"input_schema\":" BAD "}]}",
         "/tools/1/input_schema"},
        {"/v1/messages", ASKED "\"output_config\":{\"format\":{\"type\":\"json_schema\",\"schema\":" BAD "}}}",
         "/output_config/format/schema"},
        {"/v1/responses",
         "{\"model\":\"moonshine\",\"input\":\"x\",\"tools\":[{\"type\":\"web_search\"},{\"type\":\"function\","
         "\"name\":"
         "\"t\",\"strict\":true,\"parameters\":" BAD "}]}",
         "/tools/1/parameters"},
        {"/v1/responses",
         "{\"model\":\"moonshine\",\"input\":\"x\",\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":\"s\","
         "\"schema\":" BAD "}}}",
         "/text/format/schema"}};
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        http_response r;
        char message[256], param[128];
        (void)snprintf(param, sizeof param, "%s/properties/a", rules[i].place);
        (void)snprintf(message, sizeof message, "%s: pattern: word boundaries (\\b, \\B) are not supported, at byte 1",
                       param);
        http_call(f.port, "POST", rules[i].path, NULL, rules[i].body, &r);
        if (r.status != 400) fail_msg("%zu: %d %s", i, r.status, r.body.data);
        assert_string_equal(http_text(&r, "error.message"), message);
        if (strcmp(rules[i].path, "/v1/messages") != 0) {
            assert_string_equal(http_text(&r, "error.code"), "unsupported_schema");
            assert_string_equal(http_text(&r, "error.param"), param);
        }
        http_free(&r);
    }
}

/* So is the place of a tool that is free because its schema cannot be kept. */
static void where_a_schema_is_left(void **state) {
    (void)state;
    for (int skipped = 0; skipped < 2; skipped++) {
        http_response r;
        char body[1024], header[64];
        (void)snprintf(body, sizeof body, "%s\"tools\":[%s{\"name\":\"t\",\"input_schema\":%s}]}", ASKED,
                       skipped ? "{\"type\":\"web_search_20250305\",\"name\":\"w\"}," : "", BAD);
        (void)snprintf(header, sizeof header, "tools[%d].parameters(grammar)", skipped);
        fixture_wait_idle(&f);
        http_call(f.port, "POST", "/v1/messages", NULL, body, &r);
        assert_int_equal(r.status, 200);
        assert_string_equal(http_header(&r, "X-Moonshine-Ignored-Fields"), header);
        http_free(&r);
    }
}

static void what_is_refused(void **state) {
    (void)state;
    http_response r;
    ask("x", SCHEMA("{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"http://x/y\"}}}"), &r);
    assert_int_equal(r.status, 400);
    assert_string_equal(http_text(&r, "error.code"), "unsupported_schema");
    assert_non_null(strstr(http_text(&r, "error.param"), "/response_format/json_schema/schema/properties/a"));
    http_free(&r);
    ask("x",
        ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"t\",\"strict\":true,\"parameters\":{\"type\":"
        "\"object\","
        "\"properties\":{\"a\":{\"type\":\"string\",\"pattern\":\"(?=x)\"}}}}}]",
        &r);
    assert_int_equal(r.status, 400);
    assert_string_equal(http_text(&r, "error.code"), "unsupported_schema");
    assert_non_null(strstr(http_text(&r, "error.param"), "/tools/0/function/parameters"));
    http_free(&r);
    /* Without strict such a tool is free, and the reply says so. */
    expect("x",
           ",\"max_tokens\":8,\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"t\",\"parameters\":{\"type\":"
           "\"object\","
           "\"properties\":{\"a\":{\"type\":\"string\",\"pattern\":\"(?=x)\"}}}}}]",
           &r);
    assert_string_equal(http_header(&r, "X-Moonshine-Ignored-Fields"), "tools[0].parameters(grammar)");
    http_free(&r);
}

/* ------------------------------------------------------------------ limits that no reply can keep */

#define SHORT  "\"parameters\":{\"type\":\"object\",\"properties\":{\"n\":{\"type\":\"integer\"}},\"required\":[\"n\"]}"
#define LONG   "{\"type\":\"array\",\"minItems\":40,\"items\":{\"type\":\"integer\"}}"
#define FORMAT "\"type\":\"json_schema\",\"name\":\"s\",\"schema\":" LONG

static const struct {
    const char *path, *limit, *members, *value; /* value: where a reply must have something */
} tight[] = {
    {"/v1/chat/completions", "max_tokens",
     "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]" TOOLS ",\"tool_choice\":\"required\"",
     "choices.0.message.tool_calls.0.function.arguments"},
    {"/v1/chat/completions", "max_completion_tokens",
     "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]" TOOLS
     ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"find\"}}",
     "choices.0.message.tool_calls.0.function.arguments"},
    {"/v1/chat/completions", "max_tokens", "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]" SCHEMA(LONG),
     "choices.0.message.content"},
    {"/v1/messages", "max_tokens",
     "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tool_choice\":{\"type\":\"any\"},"
     "\"tools\":[{\"name\":\"look\",\"input_schema\":{\"type\":\"object\",\"properties\":{\"n\":{\"type\":\"integer\"}}"
     ","
     "\"required\":[\"n\"]}}]",
     NULL},
    {"/v1/messages", "max_tokens",
     "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
     "\"tool_choice\":{\"type\":\"tool\",\"name\":\"look\"},"
     "\"tools\":[{\"name\":\"look\",\"input_schema\":{\"type\":\"object\",\"properties\":{\"n\":{\"type\":\"integer\"}}"
     ","
     "\"required\":[\"n\"]}}]",
     NULL},
    {"/v1/responses", "max_output_tokens",
     "\"input\":\"x\",\"tools\":[{\"type\":\"function\",\"name\":\"look\"," SHORT "}],\"tool_choice\":\"required\"",
     NULL},
    {"/v1/responses", "max_output_tokens", "\"input\":\"x\",\"text\":{\"format\":{" FORMAT "}}", NULL},
};

static void post_limit(size_t i, long limit, bool stream, http_response *r) {
    char body[2048];
    (void)snprintf(body, sizeof body, "{\"model\":\"moonshine\",\"%s\":%ld,\"stream\":%s,%s}", tight[i].limit, limit,
                   stream ? "true" : "false", tight[i].members);
    fixture_wait_idle(&f);
    http_call(f.port, "POST", tight[i].path, NULL, body, r);
}

/* Refused before anything is evaluated, with the least that would do; that much does. */
static void limits_that_are_too_small(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof tight / sizeof tight[0]; i++) {
        http_response r;
        size_t log = fixture_log_size(&f);
        post_limit(i, 2, false, &r);
        if (r.status != 400) fail_msg("%zu: %d %s", i, r.status, r.body.data);
        assert_string_equal(http_text(&r, "error.type"), "invalid_request_error");
        bool messages = strcmp(tight[i].path, "/v1/messages") == 0; /* whose errors have neither */
        if (!messages) assert_string_equal(http_text(&r, "error.code"), "out_of_range");
        if (!messages) assert_string_equal(http_text(&r, "error.param"), tight[i].limit);
        const char *text = strstr(http_text(&r, "error.message"), "at least ");
        assert_non_null(text);
        long least = strtol(text + 9, NULL, 10);
        assert_true(least > 5);
        http_free(&r);
        for (int stream = 0; stream < 2; stream++) {
            post_limit(i, least - 1, stream, &r);
            assert_int_equal(r.status, 400);
            http_free(&r);
        }
        ms_text all = {0};
        fixture_log(&f, &all);
        assert_null(strstr(all.data + log, "request.start"));
        ms_text_free(&all);
        post_limit(i, least, false, &r);
        if (r.status != 200) fail_msg("%zu with %ld: %d %s", i, least, r.status, r.body.data);
        if (tight[i].value) {
            ms_json_doc *doc;
            const char *value = http_text(&r, tight[i].value);
            if (ms_json_parse(&doc, value, strlen(value), "value", NULL, NULL) != MS_OK) fail_msg("%zu: %s", i, value);
            ms_json_free(doc);
        }
        http_free(&r);
    }
}

/* The same where the context has no room for the least. */
static void a_context_that_is_too_small(void **state) {
    (void)state;
    http_response r;
    ms_text message = {0};
    for (int i = 0; i < 1850; i++) ms_text_puts(&message, "y ");
    char more[512];
    expect(message.data, ",\"max_tokens\":1", &r); /* a free reply has room */
    http_free(&r);
    (void)snprintf(more, sizeof more, "%s,\"max_tokens\":600",
                   SCHEMA("{\"type\":\"array\",\"minItems\":90,\"items\":{\"type\":\"integer\"}}"));
    ask(message.data, more, &r);
    assert_int_equal(r.status, 400);
    assert_string_equal(http_text(&r, "error.code"), "context_length_exceeded");
    assert_non_null(strstr(http_text(&r, "error.message"), "maximum context length is 2048 tokens"));
    http_free(&r);
    ms_text_free(&message);
}

/* Free text with tools at hand still ends where the limit cuts it. */
static void free_text_is_cut(void **state) {
    (void)state;
    http_response r;
    expect("Hello!", TOOLS ",\"max_tokens\":5", &r);
    assert_string_equal(http_text(&r, "choices.0.finish_reason"), "length");
    assert_int_equal(http_number(&r, "usage.completion_tokens"), 5);
    http_free(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_that_are_required),
        cmocka_unit_test(formats),
        cmocka_unit_test(what_is_refused),
        cmocka_unit_test(why_a_schema_is_refused),
        cmocka_unit_test(where_a_schema_is_refused),
        cmocka_unit_test(where_a_schema_is_left),
        cmocka_unit_test(free_text_is_cut),
        cmocka_unit_test(limits_that_are_too_small),
        cmocka_unit_test(a_context_that_is_too_small),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
