/* Exact prefix reuse on a scripted engine: what a next turn keeps, what it must not, and that it never changes a reply.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server_fixture.h"

static fixture f;

#define TOOLS                                                                                                          \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"look\",\"description\":\"d\",\"parameters\":{"         \
    "\"type\":"                                                                                                        \
    "\"object\",\"properties\":{\"a\":{\"type\":\"string\"},\"b\":{\"type\":\"number\"}}}}}]"
#define SWAPPED                                                                                                        \
    "\"tools\":[{\"function\":{\"parameters\":{\"properties\":{\"b\":{\"type\":\"number\"},\"a\":{\"type\":"           \
    "\"string\"}},"                                                                                                    \
    "\"type\":\"object\"},\"description\":\"d\",\"name\":\"look\"},\"type\":\"function\"}]"
#define RESPONSE_OPEN "<|close|>think<|sep|><|open|>response<|sep|>"
#define MESSAGE_END   "<|close|>message<|sep|><|end_of_msg|>"

static int start(void **state) {
    (void)state;
    fixture_init(&f);
    script_say(&f.engine, "alpha", "first thought", "First answer.");
    script_say(&f.engine, "beta", "second thought", "Second answer.");
    script_say(&f.engine, "gamma", "", "Third answer.");
    script_say(&f.engine, "anobj", "o", "{\"x\": 1}");
    script_rule_cut(&f.engine, "letters",
                    "one by one" RESPONSE_OPEN "Letter for letter."
                    "<|close|>response<|sep|>" MESSAGE_END);
    script_rule_raw(
        &f.engine, "callit",
        "to call" RESPONSE_OPEN "<|close|>response<|sep|><|open|>tools<|sep|>"
        "<|open|>call tool=\"look\" index=\"1\"<|sep|>"
        "<|open|>argument key=\"b\" type=\"number\"<|sep|>1.500<|close|>argument<|sep|>"
        "<|open|>argument key=\"a\" type=\"string\"<|sep|>x \"y\"<|close|>argument<|sep|><|close|>call<|sep|>"
        "<|open|>call tool=\"look\" index=\"2\"<|sep|><|close|>call<|sep|>"
        "<|close|>tools<|sep|>" MESSAGE_END);
    script_say(&f.engine, "result two", "have it", "Both looked at.");
    f.o.constrain = false; /* the script writes keys in an order of its own */
    fixture_start(&f);
    fixture_wait_ready(&f);
    return 0;
}

static int stop(void **state) {
    (void)state;
    fixture_free(&f);
    return 0;
}

/* One exchange; `messages` is a list without brackets. */
static void ask(const char *messages, const char *more, http_response *r) {
    ms_text t = {0};
    ms_text_printf(&t, "\"messages\":[%s]%s", messages, more);
    fixture_wait_idle(&f);
    fixture_chat(&f, t.data, r);
    ms_text_free(&t);
    if (r->status != 200) fail_msg("%d %s", r->status, r->body.data ? r->body.data : "");
}

static long cached(http_response *r) { return http_number(r, "usage.prompt_tokens_details.cached_tokens"); }
static long prompt(http_response *r) { return http_number(r, "usage.prompt_tokens"); }
static long total(http_response *r) { return http_number(r, "usage.total_tokens"); }

/* Appends the reply's message to the list, as a client replays it. */
static void replay(ms_text *messages, http_response *r) {
    const ms_json *m = ms_json_get(ms_json_at(ms_json_get(http_json(r), "choices"), 0), "message");
    ms_text_puts(messages, ",");
    ms_json_write(messages, m, &ms_json_compact);
}

static void user(ms_text *messages, const char *text) {
    ms_text_printf(messages, "%s{\"role\":\"user\",\"content\":\"%s\"}", messages->len ? "," : "", text);
}

/* An unrelated request, so that the next one begins with an empty timeline and no point in common. */
static void forget(void) {
    http_response r;
    ask("{\"role\":\"user\",\"content\":\"gamma\"}", ",\"reasoning_effort\":\"low\"", &r);
    http_free(&r);
}

/* The same request on an empty timeline gives the same message. */
static void same_when_cold(const char *messages, const char *more, http_response *warm) {
    http_response cold;
    forget();
    ask(messages, more, &cold);
    const ms_json *a = ms_json_get(http_json(warm), "choices"), *b = ms_json_get(http_json(&cold), "choices");
    assert_string_equal(http_text(warm, "choices.0.message.content"), http_text(&cold, "choices.0.message.content"));
    assert_string_equal(http_text(warm, "choices.0.message.reasoning_content"),
                        http_text(&cold, "choices.0.message.reasoning_content"));
    assert_int_equal(a->count, b->count);
    http_free(&cold);
}

static void turns_append(void **state) {
    (void)state;
    http_response r;
    ms_text m = {0};
    static const char *const says[] = {"alpha", "beta", "letters", "gamma"};
    long kept = 0;
    forget();
    for (size_t i = 0; i < 4; i++) {
        user(&m, says[i]);
        ask(m.data, "", &r);
        if (i) assert_int_equal(cached(&r), kept);
        assert_true(prompt(&r) > cached(&r));
        kept = total(&r);
        replay(&m, &r);
        http_free(&r);
    }
    ms_text_free(&m);
}

static void a_repeated_request(void **state) {
    (void)state;
    http_response a, b;
    forget();
    ask("{\"role\":\"user\",\"content\":\"alpha\"}", "", &a);
    fixture_wait_idle(&f);
    unsigned rows = atomic_load(&f.engine.rows);
    ask("{\"role\":\"user\",\"content\":\"alpha\"}", "", &b);
    assert_int_equal(cached(&b), prompt(&b)); /* from the end of the prompt */
    assert_int_equal(prompt(&a), prompt(&b));
    assert_string_equal(http_text(&a, "choices.0.message.content"), http_text(&b, "choices.0.message.content"));
    fixture_wait_idle(&f);
    assert_true(atomic_load(&f.engine.rows) - rows <= (unsigned)http_number(&b, "usage.completion_tokens"));
    http_free(&a);
    http_free(&b);
}

static void hidden_directives_stay(void **state) {
    (void)state;
    static const char *const first[] = {"," TOOLS ",\"tool_choice\":\"required\"",
                                        "," TOOLS
                                        ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"look\"}}"};
    for (size_t i = 0; i < 2; i++) {
        http_response r;
        ms_text m = {0};
        forget();
        user(&m, "callit");
        ask(m.data, first[i], &r);
        long kept = total(&r);
        replay(&m, &r);
        ms_text_printf(&m, ",{\"role\":\"tool\",\"tool_call_id\":\"%s\",\"content\":\"result one\"}",
                       http_text(&r, "choices.0.message.tool_calls.0.id"));
        ms_text_printf(&m, ",{\"role\":\"tool\",\"tool_call_id\":\"%s\",\"content\":\"result two\"}",
                       http_text(&r, "choices.0.message.tool_calls.1.id"));
        http_free(&r);
        ask(m.data, "," TOOLS, &r);
        assert_int_equal(cached(&r), kept);
        /* And once more, with another directive behind. */
        kept = total(&r);
        replay(&m, &r);
        user(&m, "callit");
        http_free(&r);
        ask(m.data, "," TOOLS ",\"tool_choice\":\"required\"", &r);
        assert_int_equal(cached(&r), kept);
        http_free(&r);
        ms_text_free(&m);
    }
}

static void formats_follow_each_other(void **state) {
    (void)state;
    http_response r;
    ms_text m = {0};
    static const char schema[] =
        ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\",\"schema\":"
        "{\"type\":\"object\",\"properties\":{\"x\":{\"type\":\"integer\"}},\"required\":[\"x\"]}}}";
    forget();
    user(&m, "anobj");
    ask(m.data, schema, &r);
    long kept = total(&r);
    replay(&m, &r);
    http_free(&r);
    user(&m, "anobj again");
    ask(m.data, schema, &r);
    assert_int_equal(cached(&r), kept);
    kept = total(&r);
    replay(&m, &r);
    http_free(&r);
    user(&m, "alpha");
    ask(m.data, "", &r);
    assert_int_equal(cached(&r), kept);
    http_free(&r);
    ms_text_free(&m);
}

/* Other spaces, other numerals, other order of keys: the model's own text is put back.  Results in any order. */
static void arguments_written_anew(void **state) {
    (void)state;
    http_response r;
    ms_text m = {0};
    forget();
    user(&m, "callit");
    ask(m.data, "," TOOLS, &r);
    assert_string_equal(http_text(&r, "choices.0.message.tool_calls.0.function.arguments"),
                        "{\"b\":1.500,\"a\":\"x \\\"y\\\"\"}");
    long kept = total(&r);
    char id[2][64];
    (void)snprintf(id[0], sizeof id[0], "%s", http_text(&r, "choices.0.message.tool_calls.0.id"));
    (void)snprintf(id[1], sizeof id[1], "%s", http_text(&r, "choices.0.message.tool_calls.1.id"));
    ms_text_printf(&m,
                   ",{\"role\":\"assistant\",\"content\":null,\"reasoning_content\":\"to call\",\"tool_calls\":["
                   "{\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":\"look\",\"arguments\":"
                   "\"{ \\\"a\\\": \\\"x \\\\\\\"y\\\\\\\"\\\", \\\"b\\\": 1.5 }\"}},"
                   "{\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":\"look\",\"arguments\":\"{}\"}}]}",
                   id[0], id[1]);
    ms_text_printf(&m, ",{\"role\":\"tool\",\"tool_call_id\":\"%s\",\"content\":\"result two\"}", id[1]);
    ms_text_printf(&m, ",{\"role\":\"tool\",\"tool_call_id\":\"%s\",\"content\":\"result one\"}", id[0]);
    http_free(&r);
    ask(m.data, "," SWAPPED, &r);
    assert_int_equal(cached(&r), kept);
    http_free(&r);
    ms_text_free(&m);
}

static void what_misses(void **state) {
    (void)state;
    http_response r;
    ms_text m = {0};
    static const char *const other[] = {
        "{\"role\":\"user\",\"content\":\"alpha\"},{\"role\":\"assistant\",\"reasoning_content\":\"first thought\","
        "\"content\":\"First answer!\"},{\"role\":\"user\",\"content\":\"beta\"}",
        "{\"role\":\"user\",\"content\":\"alpha\"},{\"role\":\"assistant\",\"content\":\"First answer.\"},"
        "{\"role\":\"user\",\"content\":\"beta\"}",
        "{\"role\":\"user\",\"content\":\"alpha\"},{\"role\":\"assistant\",\"reasoning_content\":\"\","
        "\"content\":\"First answer.\"},{\"role\":\"user\",\"content\":\"beta\"}"};
    for (size_t i = 0; i < 3; i++) {
        forget();
        user(&m, "alpha");
        ask(m.data, "", &r);
        long at_prompt = prompt(&r);
        http_free(&r);
        ask(other[i], "", &r);
        /* The first prompt's end is before what differs: the reply itself is not reused. */
        assert_int_equal(cached(&r), at_prompt);
        assert_string_equal(http_text(&r, "choices.0.message.content"), "Second answer.");
        same_when_cold(other[i], "", &r);
        http_free(&r);
        ms_text_free(&m);
    }
    /* An edited first message keeps nothing but what is before it. */
    forget();
    ask("{\"role\":\"user\",\"content\":\"alpha\"}", "", &r);
    http_free(&r);
    ask("{\"role\":\"user\",\"content\":\"not alpha\"},{\"role\":\"assistant\",\"reasoning_content\":\"first thought\","
        "\"content\":\"First answer.\"},{\"role\":\"user\",\"content\":\"beta\"}",
        "", &r);
    assert_true(cached(&r) < prompt(&r) / 2);
    http_free(&r);
}

/* Another conversation with the same system part begins behind it. */
static void the_system_part_is_an_anchor(void **state) {
    (void)state;
    http_response r;
    forget();
#define SYSTEM "{\"role\":\"system\",\"content\":\"You are a helpful assistant that knows a great many things.\"},"
    ask(SYSTEM "{\"role\":\"user\",\"content\":\"alpha\"}", "," TOOLS, &r);
    assert_int_equal(cached(&r), 0);
    http_free(&r);
    ask(SYSTEM "{\"role\":\"user\",\"content\":\"beta\"}", "," TOOLS, &r);
    assert_true(cached(&r) > 100);
    assert_true(cached(&r) > prompt(&r) - 40);
    assert_string_equal(http_text(&r, "choices.0.message.content"), "Second answer.");
    http_free(&r);
}

/* What the log says of a prompt's beginning is what the reply counts. */
static void log_tells(size_t from, const char *reuse, http_response *r) {
    ms_text all = {0};
    char expected[160];
    fixture_log(&f, &all);
    const char *line = strstr(all.data + from, "request.prefill.start");
    assert_non_null(line);
    (void)snprintf(expected, sizeof expected, " prompt=%ld evaluated=%ld reused=%ld reuse=%s ", prompt(r),
                   prompt(r) - cached(r), cached(r), reuse);
    const char *end = strchr(line, '\n'), *found = strstr(line, expected);
    if (!found || found > end) fail_msg("expected%s, found %.*s", expected, (int)(end - line), line);
    assert_null(strstr(end, "request.prefill.start"));
    ms_text_free(&all);
}

static void kept_states(void **state) {
    (void)state;
    http_response r;
    ms_text m = {0};
    fixture_stop(&f);
    f.engine.keeps = true;
    fixture_start(&f);
    fixture_wait_ready(&f);
    user(&m, "callit");
    ask(m.data, "," TOOLS ",\"tool_choice\":\"required\"", &r);
    long kept = total(&r);
    replay(&m, &r);
    ms_text_printf(&m, ",{\"role\":\"tool\",\"tool_call_id\":\"%s\",\"content\":\"result one\"}",
                   http_text(&r, "choices.0.message.tool_calls.0.id"));
    ms_text_printf(&m, ",{\"role\":\"tool\",\"tool_call_id\":\"%s\",\"content\":\"result two\"}",
                   http_text(&r, "choices.0.message.tool_calls.1.id"));
    http_free(&r);
    forget(); /* a side request */
    ask(m.data, "," TOOLS, &r);
    assert_int_equal(cached(&r), kept); /* directives came back with the state */
    kept = total(&r);
    replay(&m, &r);
    user(&m, "beta");
    http_free(&r);
    fixture_wait_idle(&f);
    fixture_stop(&f); /* a restart */
    fixture_start(&f);
    fixture_wait_ready(&f);
    size_t from = fixture_log_size(&f);
    ask(m.data, "," TOOLS, &r);
    assert_int_equal(cached(&r), kept);
    log_tells(from, "checkpoint", &r);
    http_free(&r);
    /* A state that cannot be read is passed over, and nothing claims otherwise. */
    forget();
    atomic_store(&f.engine.restore_fails, true);
    from = fixture_log_size(&f);
    ask(m.data, "," TOOLS, &r);
    assert_string_equal(http_text(&r, "choices.0.message.content"), "Second answer.");
    assert_int_equal(cached(&r), 0);
    assert_string_equal(http_header(&r, "X-Moonshine-Prompt-Reused-Tokens"), "0");
    log_tells(from, "miss", &r);
    http_free(&r);
    atomic_store(&f.engine.restore_fails, false);
    ms_text_free(&m);
}

/* A timeline that can go back by itself keeps everything up to the difference. */
static void a_timeline_that_rewinds(void **state) {
    (void)state;
    http_response r;
    f.engine.rewinds = true;
    forget();
    ask("{\"role\":\"user\",\"content\":\"alpha and a number of words that do not change, then one\"}", "", &r);
    long first = prompt(&r);
    http_free(&r);
    ask("{\"role\":\"user\",\"content\":\"alpha and a number of words that do not change, then beta\"}", "", &r);
    assert_true(cached(&r) > first / 2 && cached(&r) < first);
    assert_string_equal(http_text(&r, "choices.0.message.content"), "Second answer.");
    http_free(&r);
    f.engine.rewinds = false;
}

static void without_reuse(void **state) {
    (void)state;
    http_response r;
    fixture_stop(&f);
    f.o.reuse = false;
    fixture_start(&f);
    fixture_wait_ready(&f);
    for (int i = 0; i < 2; i++) {
        ask("{\"role\":\"user\",\"content\":\"alpha\"}", "", &r);
        assert_int_equal(cached(&r), 0);
        http_free(&r);
    }
    fixture_stop(&f);
    f.o.reuse = true;
    fixture_start(&f);
    fixture_wait_ready(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(turns_append),
        cmocka_unit_test(a_repeated_request),
        cmocka_unit_test(hidden_directives_stay),
        cmocka_unit_test(formats_follow_each_other),
        cmocka_unit_test(arguments_written_anew),
        cmocka_unit_test(what_misses),
        cmocka_unit_test(the_system_part_is_an_anchor),
        cmocka_unit_test(a_timeline_that_rewinds),
        cmocka_unit_test(without_reuse),
        cmocka_unit_test(kept_states),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
