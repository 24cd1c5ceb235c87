/* Reasoning that a client leaves out: put back where the history is the model's own, and nowhere else. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/reasoning.h"
#include "server_fixture.h"

static fixture f;

#define TOOLS                                                                                                          \
    ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"look\",\"parameters\":{\"type\":\"object\","          \
    "\"properties\":{\"a\":{\"type\":\"string\"}}}}}]"

static void start(bool restore) {
    fixture_init(&f);
    script_say(&f.engine, "alpha", "first thought", "First answer.");
    script_say(&f.engine, "beta", "second thought", "Second answer.");
    script_say(&f.engine, "gamma", "third thought", "Third answer.");
    script_call(&f.engine, "callit", "to call", "look", "a", "x y");
    script_say(&f.engine, "seen it", "have it", "Looked.");
    f.o.restore_reasoning = restore;
    fixture_start(&f);
    fixture_wait_ready(&f);
}

static void ask(const char *messages, const char *more, http_response *r) {
    ms_text t = {0};
    ms_text_printf(&t, "\"messages\":[%s]%s", messages, more);
    fixture_wait_idle(&f);
    fixture_chat(&f, t.data, r);
    ms_text_free(&t);
    if (r->status != 200) fail_msg("%d %s", r->status, r->body.data ? r->body.data : "");
}

static long cached(http_response *r) { return http_number(r, "usage.prompt_tokens_details.cached_tokens"); }
static long total(http_response *r) { return http_number(r, "usage.total_tokens"); }

/* "0" where nothing was put back. */
static const char *restored(const http_response *r) {
    const char *n = http_header(r, "X-Moonshine-Reasoning-Restored");
    return n ? n : "0";
}

static void user(ms_text *messages, const char *text) {
    ms_text_printf(messages, "%s{\"role\":\"user\",\"content\":\"%s\"}", messages->len ? "," : "", text);
}

static void answered(ms_text *messages, const char *text) {
    ms_text_printf(messages, ",{\"role\":\"assistant\",\"content\":\"%s\"}", text);
}

static void every_turn_is_kept(void **state) {
    (void)state;
    ms_text m = {0};
    http_response r;
    start(true);
    user(&m, "alpha");
    ask(m.data, "", &r);
    assert_string_equal(restored(&r), "0");
    long kept = total(&r);
    http_free(&r);
    answered(&m, "First answer.");
    user(&m, "beta");
    ask(m.data, "", &r);
    assert_string_equal(restored(&r), "1");
    assert_true(cached(&r) >= kept);
    kept = total(&r);
    http_free(&r);
    answered(&m, "Second answer.");
    user(&m, "gamma");
    ask(m.data, "", &r);
    assert_string_equal(restored(&r), "2");
    assert_true(cached(&r) >= kept);
    assert_string_equal(http_text(&r, "choices.0.message.content"), "Third answer.");
    http_free(&r);
    /* The same in a stream, and with parts instead of a text. */
    m.len = 0;
    ms_text_puts(&m, "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"alpha\"}]}");
    answered(&m, "First answer.");
    user(&m, "beta");
    ask(m.data, ",\"stream\":true", &r);
    assert_string_equal(restored(&r), "1");
    http_free(&r);
    ms_text_free(&m);
    fixture_free(&f);
}

static void other_histories_are_not(void **state) {
    (void)state;
    static const char *const others[] = {
        /* another answer, another question, more before it, a name, reasoning that is there */
        "{\"role\":\"user\",\"content\":\"alpha\"},{\"role\":\"assistant\",\"content\":\"First answer!\"}",
        "{\"role\":\"user\",\"content\":\"alpha \"},{\"role\":\"assistant\",\"content\":\"First answer.\"}",
        "{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"alpha\"},"
        "{\"role\":\"assistant\",\"content\":\"First answer.\"}",
        "{\"role\":\"user\",\"name\":\"n\",\"content\":\"alpha\"},"
        "{\"role\":\"assistant\",\"content\":\"First answer.\"}",
        "{\"role\":\"user\",\"content\":\"alpha\"},"
        "{\"role\":\"assistant\",\"reasoning_content\":\"\",\"content\":\"First answer.\"}",
    };
    http_response r;
    start(true);
    ask("{\"role\":\"user\",\"content\":\"alpha\"}", "", &r);
    http_free(&r);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        ms_text m = {0};
        ms_text_printf(&m, "%s", others[i]);
        user(&m, "beta");
        ask(m.data, "", &r);
        if (strcmp(restored(&r), "0") != 0) fail_msg("%s", others[i]);
        http_free(&r);
        ms_text_free(&m);
    }
    fixture_free(&f);
    start(false); /* off: nothing is put back */
    ask("{\"role\":\"user\",\"content\":\"alpha\"}", "", &r);
    http_free(&r);
    ask("{\"role\":\"user\",\"content\":\"alpha\"},{\"role\":\"assistant\",\"content\":\"First answer.\"},"
        "{\"role\":\"user\",\"content\":\"beta\"}",
        "", &r);
    assert_string_equal(restored(&r), "0");
    http_free(&r);
    fixture_free(&f);
}

/* A turn with a call, whose arguments the client wrote anew; changed arguments are another history. */
static void calls_belong_to_it(void **state) {
    (void)state;
    static const char *const arguments[] = {"{ \\\"a\\\" : \\\"x y\\\" }", "{\\\"a\\\":\\\"x z\\\"}"};
    http_response r;
    char id[64];
    start(true);
    ask("{\"role\":\"user\",\"content\":\"callit\"}", TOOLS, &r);
    (void)snprintf(id, sizeof id, "%s", http_text(&r, "choices.0.message.tool_calls.0.id"));
    http_free(&r);
    for (int i = 0; i < 2; i++) {
        ms_text m = {0};
        ms_text_printf(&m,
                       "{\"role\":\"user\",\"content\":\"callit\"},{\"role\":\"assistant\",\"content\":null,"
                       "\"tool_calls\":[{\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":\"look\","
                       "\"arguments\":\"%s\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"%s\",\"content\":\"seen it\"}",
                       id, arguments[i], id);
        ask(m.data, TOOLS, &r);
        assert_string_equal(restored(&r), i ? "0" : "1");
        http_free(&r);
        ms_text_free(&m);
    }
    fixture_free(&f);
}

/* The memory is bounded: the oldest go. */
static void the_oldest_go(void **state) {
    (void)state;
    ms_reasoning_memory *m = ms_reasoning_memory_create(2, 100);
    char name[] = "a", big[101] = "";
    assert_non_null(m);
    for (int i = 0; i < 4; i++) {
        char text[] = "thought", content[] = {(char)('a' + i), 0};
        ms_reply r = {.reasoning = i == 3 ? big : text,
                      .reasoning_len = i == 3 ? sizeof big : strlen(text),
                      .content = content,
                      .content_len = 1};
        ms_reasoning_memory_add(m, &(ms_history){{1, 2}}, &r, NULL);
    }
    /* None of these answers nothing: the history above is nobody's. */
    ms_json_doc *doc;
    ms_text out = {0};
    ms_history h;
    const char *request = "{\"messages\":[{\"role\":\"assistant\",\"content\":\"a\"}]}";
    assert_int_equal(ms_json_parse(&doc, request, strlen(request), "request", NULL, NULL), MS_OK);
    assert_int_equal(ms_reasoning_memory_apply(m, ms_json_root(doc), &out, &h), 0);
    ms_history none = {0};
    for (char c = 'a'; c <= 'c'; c++) {
        name[0] = c;
        ms_reply r = {.reasoning = name, .reasoning_len = 1, .content = name, .content_len = 1};
        ms_reasoning_memory_add(m, &none, &r, NULL);
    }
    assert_int_equal(ms_reasoning_memory_apply(m, ms_json_root(doc), &out, &h), 0); /* "a" is gone */
    ms_json_free(doc);
    request = "{\"messages\":[{\"role\":\"assistant\",\"content\":\"c\"}],\"x\":1}";
    assert_int_equal(ms_json_parse(&doc, request, strlen(request), "request", NULL, NULL), MS_OK);
    assert_int_equal(ms_reasoning_memory_apply(m, ms_json_root(doc), &out, &h), 1);
    assert_string_equal(
        out.data, "{\"messages\":[{\"reasoning_content\":\"c\",\"role\":\"assistant\",\"content\":\"c\"}],\"x\":1}");
    ms_json_free(doc);
    ms_text_free(&out);
    ms_reasoning_memory_destroy(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_turn_is_kept),
        cmocka_unit_test(other_histories_are_not),
        cmocka_unit_test(calls_belong_to_it),
        cmocka_unit_test(the_oldest_go),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
