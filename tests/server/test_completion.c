/* Generation over HTTP on a scripted engine: replies, streams, limits, policies, failures of the model. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "server_fixture.h"

static fixture f;

#define TOOLS                                                                                                          \
    ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"look\",\"parameters\":{\"type\":\"object\"}}},"       \
    "{\"type\":\"function\",\"function\":{\"name\":\"find\",\"parameters\":{\"type\":\"object\"}}}]"
#define RESPONSE_OPEN           "<|close|>think<|sep|><|open|>response<|sep|>"
#define MESSAGE_END             "<|close|>message<|sep|><|end_of_msg|>"
#define CALL(tool, index, body) "<|open|>call tool=\"" tool "\" index=\"" index "\"<|sep|>" body "<|close|>call<|sep|>"

static void write_rules(script_engine *e) {
    script_say(e, "plain", "I think.", "Hello there.");
    script_say(e, "unicode", "h\xC3\xA4 \xF0\x9F\x98\x80!", "gr\xC3\xBC\xC3\x9F \xF0\x9F\x98\x80 \xE2\x82\xAC 100");
    script_say(e, "empty", "", "");
    script_say(e, "number", "n", "{\\\"a\\\": 1}");
    script_say(e, "anobj", "o", "{\"a\": [1, 2, {\"b\": null}]}");
    script_say(e, "prose", "o", "this is prose");
    script_say(e, "stopping", "END in thought", "one two END three");
    script_call(e, "callsky", "must look", "look", "what", "the \"sky\"");
    script_call(e, "stranger", "hm", "unknown", "a", "b");
    script_rule_raw(
        e, "twice",
        "two" RESPONSE_OPEN "<|close|>response<|sep|><|open|>tools<|sep|>" CALL("look", "1", "")
            CALL("find", "2",
                 "<|open|>argument key=\"n\" type=\"number\"<|sep|>1.50<|close|>argument<|sep|>") "<|close|>tools<|sep|"
                                                                                                  ">" MESSAGE_END);
    script_rule_raw(e, "broken",
                    "x" RESPONSE_OPEN "<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool=\"look\" "
                    "index=\"1\"<|sep|>text that is no argument<|close|>call<|sep|><|close|>tools<|sep|>" MESSAGE_END);
    script_rule_cut(e, "cut",
                    "letters" RESPONSE_OPEN "One letter a token."
                    "<|close|>response<|sep|>" MESSAGE_END);
}

static int start(void **state) {
    (void)state;
    fixture_init(&f);
    write_rules(&f.engine);
    f.o.metrics = f.o.slots_endpoint = true;
    f.o.constrain = false; /* so that what a model does wrong can be seen */
    fixture_start(&f);
    fixture_wait_ready(&f);
    return 0;
}

static int stop(void **state) {
    (void)state;
    fixture_free(&f);
    return 0;
}

static void post(const char *body, http_response *r) {
    http_call(f.port, "POST", "/v1/chat/completions", NULL, body, r);
}

#define MESSAGE "choices.0.message."

static void a_reply(void **state) {
    (void)state;
    http_response r;
    post(fixture_body("plain", ""), &r);
    assert_int_equal(r.status, 200);
    assert_string_equal(http_text(&r, MESSAGE "content"), "Hello there.");
    assert_string_equal(http_text(&r, MESSAGE "reasoning_content"), "I think.");
    assert_string_equal(http_text(&r, "choices.0.finish_reason"), "stop");
    assert_true(http_number(&r, "usage.prompt_tokens") > 5);
    assert_int_equal(http_number(&r, "usage.total_tokens"),
                     http_number(&r, "usage.prompt_tokens") + http_number(&r, "usage.completion_tokens"));
    assert_true(http_number(&r, "usage.completion_tokens_details.reasoning_tokens") > 0);
    assert_string_equal(http_header(&r, "Content-Type"), "application/json; charset=utf-8");
    assert_string_equal(http_header(&r, "Cache-Control"), "no-store");
    assert_string_equal(http_header(&r, "Server"), "moonshine/" MS_VERSION);
    assert_int_equal(strlen(http_header(&r, "X-Request-Id")), 32);
    assert_non_null(http_header(&r, "X-Moonshine-Prompt-Evaluated-Tokens"));
    assert_non_null(http_header(&r, "X-Moonshine-Decode-Tokens-Per-Second"));
    assert_null(http_header(&r, "X-Moonshine-Seed"));
    http_free(&r);
}

/* ------------------------------------------------------------------ streams */

typedef struct streamed {
    ms_text reasoning, content, arguments, finish, error_code;
    size_t chunks, finishes, usages, done;
    long completion_tokens;
} streamed;

static void add_delta(ms_text *to, const ms_json *delta, const char *key) {
    const ms_json *v = ms_json_get(delta, key);
    if (v && v->type == MS_JSON_STRING) ms_text_append(to, v->str, v->str_len);
}

static void take_chunk(streamed *s, const char *line, size_t len) {
    ms_json_doc *doc;
    ms_error err;
    assert_int_equal(s->done, 0);
    if (len == 6 && memcmp(line, "[DONE]", 6) == 0) {
        s->done++;
        return;
    }
    if (ms_json_parse(&doc, line, len, "chunk", NULL, &err) != MS_OK) fail_msg("%s: %.*s", err.message, (int)len, line);
    const ms_json *root = ms_json_root(doc), *choice = ms_json_at(ms_json_get(root, "choices"), 0);
    const ms_json *delta = ms_json_get(choice, "delta"), *finish = ms_json_get(choice, "finish_reason");
    const ms_json *usage = ms_json_get(root, "usage"), *error = ms_json_get(root, "error");
    s->chunks++;
    add_delta(&s->reasoning, delta, "reasoning_content");
    add_delta(&s->content, delta, "content");
    const ms_json *calls = ms_json_get(delta, "tool_calls");
    for (const ms_json *c = calls ? calls->child : NULL; c; c = c->next) {
        const ms_json *fn = ms_json_get(c, "function");
        add_delta(&s->arguments, fn, "name");
        add_delta(&s->arguments, fn, "arguments");
    }
    if (finish && finish->type == MS_JSON_STRING) {
        s->finishes++;
        ms_text_append(&s->finish, finish->str, finish->str_len);
    }
    if (usage && usage->type == MS_JSON_OBJECT) {
        uint64_t n = 0;
        s->usages++;
        assert_true(ms_json_u64(ms_json_get(usage, "completion_tokens"), &n));
        s->completion_tokens = (long)n;
    }
    add_delta(&s->error_code, error, "code");
    ms_json_free(doc);
}

static void read_stream(http_response *r, streamed *s) {
    *s = (streamed){0};
    for (const char *p = r->body.data; p && *p;) {
        const char *end = strchr(p, '\n');
        assert_non_null(end);
        if (strncmp(p, "data: ", 6) == 0)
            take_chunk(s, p + 6, (size_t)(end - p) - 6);
        else
            assert_true(*p == ':' || *p == '\n');
        p = end + 1;
    }
    ms_text *all[] = {&s->reasoning, &s->content, &s->arguments, &s->finish, &s->error_code};
    for (size_t i = 0; i < 5; i++) ms_text_append(all[i], "", 0);
}

static void free_stream(streamed *s) {
    ms_text_free(&s->reasoning);
    ms_text_free(&s->content);
    ms_text_free(&s->arguments);
    ms_text_free(&s->finish);
    ms_text_free(&s->error_code);
}

static void stream_equals_reply(const char *key, const char *more) {
    http_response whole, live;
    streamed s;
    char with[1024];
    (void)snprintf(with, sizeof with, ",\"stream\":true%s", more);
    post(fixture_body(key, more), &whole);
    post(fixture_body(key, with), &live);
    assert_int_equal(live.status, 200);
    assert_string_equal(http_header(&live, "Content-Type"), "text/event-stream; charset=utf-8");
    assert_string_equal(http_header(&live, "Connection"), "close");
    assert_null(http_header(&live, "Transfer-Encoding"));
    read_stream(&live, &s);
    assert_string_equal(s.reasoning.data, http_text(&whole, MESSAGE "reasoning_content"));
    assert_string_equal(s.content.data, http_text(&whole, MESSAGE "content"));
    assert_string_equal(s.finish.data, http_text(&whole, "choices.0.finish_reason"));
    assert_int_equal(s.completion_tokens, http_number(&whole, "usage.completion_tokens"));
    assert_int_equal(s.finishes, 1);
    assert_int_equal(s.usages, 1);
    assert_int_equal(s.done, 1);
    assert_non_null(strstr(live.body.data, "\n: moonshine prompt total="));
    free_stream(&s);
    http_free(&whole);
    http_free(&live);
}

static void streams_equal_replies(void **state) {
    (void)state;
    const char *const keys[] = {"plain", "unicode", "empty", "number", "cut", "stopping"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) stream_equals_reply(keys[i], "");
    stream_equals_reply("stopping", ",\"stop\":[\"END\"]");
    stream_equals_reply("unicode", ",\"max_tokens\":9");
    stream_equals_reply("anobj", ",\"response_format\":{\"type\":\"json_object\"}");
}

static void a_streamed_call(void **state) {
    (void)state;
    http_response r;
    streamed s;
    post(fixture_body("callsky", ",\"stream\":true" TOOLS), &r);
    read_stream(&r, &s);
    assert_string_equal(s.arguments.data, "look{\"what\":\"the \\\"sky\\\"\"}");
    assert_string_equal(s.finish.data, "tool_calls");
    free_stream(&s);
    http_free(&r);
}

/* ------------------------------------------------------------------ limits and stops */

static void stop_strings(void **state) {
    (void)state;
    http_response r;
    post(fixture_body("stopping", ",\"stop\":[\"END t\",\"END\",\"zzz\"]"), &r);
    assert_string_equal(http_text(&r, MESSAGE "content"), "one two ");
    assert_string_equal(http_text(&r, MESSAGE "reasoning_content"), "END in thought"); /* not searched */
    assert_string_equal(http_text(&r, "choices.0.finish_reason"), "stop");
    http_free(&r);
    fixture_wait_idle(&f);
    /* What was cut is never taken for what was said. */
    post("{\"model\":\"moonshine\",\"messages\":[{\"role\":\"user\",\"content\":\"stopping\"},{\"role\":\"assistant\","
         "\"reasoning_content\":\"END in thought\",\"content\":\"one two "
         "\"},{\"role\":\"user\",\"content\":\"plain\"}]}",
         &r);
    assert_string_equal(http_text(&r, MESSAGE "content"), "Hello there.");
    http_free(&r);
}

static void lengths(void **state) {
    (void)state;
    http_response r;
    for (long n = 1; n < 12; n++) {
        char more[64];
        (void)snprintf(more, sizeof more, ",\"max_completion_tokens\":%ld", n);
        post(fixture_body("plain", more), &r);
        assert_int_equal(r.status, 200);
        assert_int_equal(http_number(&r, "usage.completion_tokens"), n);
        assert_string_equal(http_text(&r, "choices.0.finish_reason"), "length");
        http_free(&r);
        fixture_wait_idle(&f);
    }
    post(fixture_body("plain", ",\"max_tokens\":1025"), &r);
    assert_int_equal(r.status, 400);
    assert_string_equal(http_text(&r, "error.code"), "out_of_range");
    assert_non_null(strstr(http_text(&r, "error.message"), "[1,1024]"));
    http_free(&r);
}

static void context_is_bounded(void **state) {
    (void)state;
    http_response r;
    ms_text body = {0};
    ms_text_puts(&body, "{\"model\":\"moonshine\",\"messages\":[{\"role\":\"user\",\"content\":\"");
    for (int i = 0; i < 3000; i++) ms_text_puts(&body, "x y ");
    ms_text_puts(&body, "\"}]}");
    post(body.data, &r);
    assert_int_equal(r.status, 400);
    assert_string_equal(http_text(&r, "error.code"), "context_length_exceeded");
    assert_string_equal(http_text(&r, "error.param"), "messages");
    assert_non_null(strstr(http_text(&r, "error.message"), "maximum context length is 2048 tokens"));
    assert_int_equal(http_number(&r, "error.details.n_ctx"), 2048);
    assert_true(http_number(&r, "error.details.n_prompt_tokens") > 2048);
    ms_text_free(&body);
    http_free(&r);
    fixture_wait_idle(&f);
    a_reply(state); /* the slot is free and the engine as before */
}

/* ------------------------------------------------------------------ calls and formats */

static void calls(void **state) {
    (void)state;
    http_response r;
    post(fixture_body("twice", TOOLS), &r);
    assert_int_equal(r.status, 200);
    assert_string_equal(http_text(&r, "choices.0.finish_reason"), "tool_calls");
    assert_string_equal(http_text(&r, MESSAGE "tool_calls.0.function.arguments"), "{}");
    assert_string_equal(http_text(&r, MESSAGE "tool_calls.1.function.name"), "find");
    assert_string_equal(http_text(&r, MESSAGE "tool_calls.1.function.arguments"), "{\"n\":1.50}");
    assert_true(strncmp(http_text(&r, MESSAGE "tool_calls.0.id"), "call_", 5) == 0);
    http_free(&r);
}

static void refused(const char *key, const char *more, const char *code) {
    http_response r;
    streamed s;
    char with[1024];
    post(fixture_body(key, more), &r);
    if (r.status != 500) fail_msg("%s %s: %d %s", key, more, r.status, r.body.data);
    assert_string_equal(http_text(&r, "error.code"), code);
    assert_string_equal(http_text(&r, "error.type"), "server_error");
    assert_string_equal(http_header(&r, "x-should-retry"), "false");
    http_free(&r);
    (void)snprintf(with, sizeof with, ",\"stream\":true%s", more);
    post(fixture_body(key, with), &r);
    assert_int_equal(r.status, 200);
    read_stream(&r, &s);
    assert_string_equal(s.error_code.data, code);
    assert_int_equal(s.finishes, 0);
    assert_int_equal(s.done, 1);
    assert_string_equal(s.arguments.data, ""); /* nothing of a call was shown */
    free_stream(&s);
    http_free(&r);
}

static void policies(void **state) {
    (void)state;
    const char *policy = "tool_policy_unsatisfied";
    refused("plain", TOOLS ",\"tool_choice\":\"required\"", policy);
    refused("callsky", TOOLS ",\"tool_choice\":\"none\"", policy);
    refused("twice", TOOLS ",\"parallel_tool_calls\":false", policy);
    refused("stranger", TOOLS, policy);
    refused("callsky", "", policy);
    refused("broken", TOOLS, policy);
    refused("callsky", TOOLS ",\"tool_choice\":\"required\",\"max_tokens\":5", policy);
    refused("callsky",
            TOOLS ",\"tool_choice\":{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":\"auto\",\"tools\":"
                  "[{\"type\":\"function\",\"function\":{\"name\":\"find\"}}]}}",
            policy);
    refused("prose", ",\"response_format\":{\"type\":\"json_object\"}", "structured_output_invalid");
    refused("anobj", ",\"response_format\":{\"type\":\"json_object\"},\"max_tokens\":8", "structured_output_invalid");
    refused("anobj", ",\"response_format\":{\"type\":\"json_object\"},\"stop\":\"2\"", "structured_output_invalid");
}

/* ------------------------------------------------------------------ sampling */

static void sampling(void **state) {
    (void)state;
    http_response r;
    post(fixture_body("plain", ",\"temperature\":0.5,\"seed\":7"), &r);
    assert_int_equal(r.status, 200);
    assert_null(http_header(&r, "X-Moonshine-Seed"));
    http_free(&r);
    post(fixture_body("plain", ",\"temperature\":0.5"), &r);
    assert_int_equal(r.status, 200);
    assert_non_null(http_header(&r, "X-Moonshine-Seed"));
    http_free(&r);
}

static void log_probabilities(void **state) {
    (void)state;
    http_response r;
    post(fixture_body("plain", ",\"logprobs\":true,\"top_logprobs\":3"), &r);
    assert_int_equal(r.status, 200);
    ms_text joined = {0};
    const ms_json *list =
        ms_json_get(ms_json_get(ms_json_at(ms_json_get(http_json(&r), "choices"), 0), "logprobs"), "content");
    assert_non_null(list);
    for (const ms_json *e = list->child; e; e = e->next) {
        double p = 1;
        assert_true(ms_json_double(ms_json_get(e, "logprob"), &p));
        assert_true(p <= 0 && p > -0.1);
        assert_int_equal(ms_json_get(e, "top_logprobs")->count, 3);
        add_delta(&joined, e, "token");
    }
    assert_string_equal(joined.data, "Hello there.");
    ms_text_free(&joined);
    http_free(&r);
}

/* ------------------------------------------------------------------ headers */

/* A number with six decimals. */
static void is_real(const http_response *r, const char *name) {
    const char *value = http_header(r, name);
    if (!value) fail_msg("no %s", name);
    size_t whole = strspn(value, "0123456789");
    if (!whole || value[whole] != '.' || strspn(value + whole + 1, "0123456789") != 6 || value[whole + 7])
        fail_msg("%s: %s", name, value);
}

/* What was done to a request beside answering it. */
static void headers_tell(void **state) {
    (void)state;
    fixture own;
    http_response r;
    fixture_init(&own);
    script_say(&own.engine, "plain", "I think.", "Hello there.");
    own.o.clamp_max_tokens = true;
    fixture_start(&own);
    fixture_wait_ready(&own);
    http_call(own.port, "POST", "/v1/chat/completions", NULL, fixture_body("plain", ",\"max_tokens\":99999"), &r);
    assert_int_equal(r.status, 200);
    assert_string_equal(http_header(&r, "X-Moonshine-Clamped"), "max_tokens=1024");
    assert_null(http_header(&r, "X-Moonshine-Ignored-Tools"));
    is_real(&r, "X-Moonshine-Prompt-Seconds");
    is_real(&r, "X-Moonshine-Decode-Seconds");
    is_real(&r, "X-Moonshine-Decode-Tokens-Per-Second");
    http_free(&r);
    fixture_wait_idle(&own);
    http_call(own.port, "POST", "/v1/responses", NULL,
              "{\"model\":\"moonshine\",\"input\":\"plain\",\"max_output_tokens\":100,"
              "\"tools\":[{\"type\":\"web_search\"},{\"type\":\"custom\",\"name\":\"x\"}]}",
              &r);
    assert_int_equal(r.status, 200);
    assert_null(http_header(&r, "X-Moonshine-Clamped"));
    assert_string_equal(http_header(&r, "X-Moonshine-Ignored-Tools"), "web_search,custom");
    http_free(&r);
    fixture_free(&own);
}

/* ------------------------------------------------------------------ engine faults */

static void a_failed_pass(void **state) {
    (void)state;
    http_response r;
    size_t before = fixture_log_size(&f);
    atomic_store(&f.engine.fail_in, 2);
    post(fixture_body("plain now", ""), &r);
    assert_int_equal(r.status, 500);
    assert_string_equal(http_text(&r, "error.code"), "engine_failure");
    assert_null(strstr(r.body.data, "secret"));
    http_free(&r);
    assert_true(fixture_wait_log(&f, before, "request.failed"));
    fixture_wait_idle(&f);
    a_reply(state);
}

static void metrics_count(void **state) {
    (void)state;
    http_response r;
    fixture_wait_idle(&f);
    http_call(f.port, "GET", "/metrics", NULL, NULL, &r);
    assert_int_equal(r.status, 200);
    assert_non_null(strstr(r.body.data, "moonshine_requests_total{endpoint=\"chat\",outcome=\"ok\"} "));
    assert_null(strstr(r.body.data, "outcome=\"ok\"} 0\nmoonshine_requests_total{endpoint=\"chat\",outcome=\"client"));
    assert_non_null(strstr(r.body.data, "moonshine_slot_state{state=\"idle\"} 1"));
    assert_non_null(strstr(r.body.data, "moonshine_requests_in_progress 0\n"));
    http_free(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_reply),         cmocka_unit_test(streams_equal_replies),
        cmocka_unit_test(a_streamed_call), cmocka_unit_test(stop_strings),
        cmocka_unit_test(lengths),         cmocka_unit_test(context_is_bounded),
        cmocka_unit_test(calls),           cmocka_unit_test(policies),
        cmocka_unit_test(sampling),        cmocka_unit_test(log_probabilities),
        cmocka_unit_test(headers_tell),    cmocka_unit_test(a_failed_pass),
        cmocka_unit_test(metrics_count),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
