/* The program with the small trained model of the other kind: what it says over HTTP is right, with and without
 * thinking, calls and their results included; a conversation keeps what it has; a prompt that outlasts its deadline is
 * resumed and answered the same. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "http_client.h"
#include "io/file.h"
#include "program.h"

#define MODEL       "models/mimo-nano"
#define SET         "tests/qualification/mimo-nano.jsonl"
#define SERVED      MODEL, "--any-model", "--port", "0", "--threads", "1", "--reserve", "0"
#define NO_THINKING ",\"reasoning_effort\":\"none\""
#define MESSAGE     "choices.0.message."

static const char *const plain[] = {SERVED, NULL};

static void start(program *p, const char *const *args) {
    program_start(p, args);
    program_ready(p);
}

static void stop(program *p) {
    assert_int_equal(program_end(p, SIGTERM), 0);
    program_free(p);
}

/* ------------------------------------------------------------------ the qualification set */

/* Prompts of thousands of tokens are for `bench quality`. */
static bool is_asked(const ms_json *item) {
    const ms_json *family = ms_json_get(item, "family");
    return !ms_json_is_string(family, "retrieval-2000") && !ms_json_is_string(family, "retrieval-3500");
}

static void put_member(ms_text *body, const char *name, const ms_json *value) {
    if (value) ms_text_printf(body, "%s\"%s\":%.*s", body->len ? "," : "", name, (int)value->raw_len, value->raw);
}

/* Name and arguments of each call, as compact JSON, one a line. */
static void list_wanted(ms_text *out, const ms_json *want) {
    for (const ms_json *c = ms_json_get(want, "calls")->child; c; c = c->next) {
        ms_json_write(out, ms_json_get(c, "name"), &ms_json_compact);
        ms_json_write(out, ms_json_get(c, "arguments"), &ms_json_compact);
        ms_text_puts(out, "\n");
    }
}

static void list_found(ms_text *out, http_response *r) {
    const ms_json *message = ms_json_get(ms_json_at(ms_json_get(http_json(r), "choices"), 0), "message");
    const ms_json *calls = ms_json_get(message, "tool_calls");
    for (const ms_json *c = calls ? calls->child : NULL; c; c = c->next) {
        const ms_json *function = ms_json_get(c, "function"), *arguments = ms_json_get(function, "arguments");
        ms_json_doc *doc;
        assert_int_equal(ms_json_parse(&doc, arguments->str, arguments->str_len, "arguments", NULL, NULL), MS_OK);
        ms_json_write(out, ms_json_get(function, "name"), &ms_json_compact);
        ms_json_write(out, ms_json_root(doc), &ms_json_compact);
        ms_text_puts(out, "\n");
        ms_json_free(doc);
    }
}

static void ask_item(program *p, const ms_json *item) {
    const ms_json *request = ms_json_get(item, "request"), *want = ms_json_get(item, "want"),
                  *content = ms_json_get(want, "content");
    const char *name = ms_json_get(item, "name")->str;
    ms_text body = {0}, wanted = {0}, found = {0};
    http_response r;
    bool thinks = false;
    assert_true(ms_json_bool(ms_json_get(request, "thinking"), &thinks));
    put_member(&body, "messages", ms_json_get(request, "messages"));
    put_member(&body, "tools", ms_json_get(request, "tools"));
    ms_text all = {0};
    ms_text_printf(&all, "{\"model\":\"m\",\"max_tokens\":160,%s%s}", body.data, thinks ? "" : NO_THINKING);
    http_call(p->port, "POST", "/v1/chat/completions", NULL, all.data, &r);
    if (r.status != 200) fail_msg("%s: %d %s", name, r.status, r.body.data);
    list_wanted(&wanted, want);
    list_found(&found, &r);
    const char *said = http_text(&r, MESSAGE "content");
    bool same_calls = wanted.len == found.len && (!found.len || strcmp(wanted.data, found.data) == 0);
    if (strcmp(said, content->str) != 0 || !same_calls) fail_msg("%s: %s", name, r.body.data);
    /* Behind replies without reasoning the model may leave it out too. */
    bool thought = strlen(http_text(&r, MESSAGE "reasoning_content")) > 0;
    if (thought != thinks && (thought || ms_json_get(request, "messages")->count == 1))
        fail_msg("%s: %s", name, r.body.data);
    assert_string_equal(http_text(&r, "choices.0.finish_reason"), wanted.len ? "tool_calls" : "stop");
    http_free(&r);
    ms_text_free(&all);
    ms_text_free(&body);
    ms_text_free(&wanted);
    ms_text_free(&found);
}

static void the_set_is_answered(void **state) {
    (void)state;
    program p;
    char *text;
    size_t len, asked = 0;
    assert_int_equal(ms_file_read_all(SET, 16 << 20, &text, &len, NULL), MS_OK);
    start(&p, plain);
    for (char *line = text, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        ms_json_doc *doc;
        assert_int_equal(ms_json_parse(&doc, line, (size_t)(end - line), SET, NULL, NULL), MS_OK);
        if (is_asked(ms_json_root(doc))) {
            ask_item(&p, ms_json_root(doc));
            asked++;
        }
        ms_json_free(doc);
    }
    assert_true(asked >= 80);
    stop(&p);
    free(text);
}

/* ------------------------------------------------------------------ conversations */

static void expect(http_response *r, const char *path, const char *text) {
    if (strcmp(http_text(r, path), text) != 0) fail_msg("expected '%s', found %s", text, r->body.data);
}

/* Question, call, result and answer; everything before each request was kept from the one before. */
static void tool_turn(program *p, ms_text *m, const char *city, const char *more, long *kept) {
    char text[200];
    http_response r;
    ms_text_printf(m, "%s{\"role\":\"user\",\"content\":\"What is the weather in %s?\"}", m->len ? "," : "", city);
    chat(p->port, m->data, more, &r);
    assert_int_equal(cached(&r), *kept);
    *kept = total(&r);
    expect(&r, MESSAGE "tool_calls.0.function.name", "get_weather");
    (void)snprintf(text, sizeof text, "{\"city\":\"%s\"}", city);
    expect(&r, MESSAGE "tool_calls.0.function.arguments", text);
    replay(m, &r);
    ms_text_printf(m, ",{\"role\":\"tool\",\"tool_call_id\":\"%s\",\"content\":\"rainy, 18 C\"}",
                   http_text(&r, MESSAGE "tool_calls.0.id"));
    http_free(&r);
    chat(p->port, m->data, more, &r);
    assert_int_equal(cached(&r), *kept);
    *kept = total(&r);
    (void)snprintf(text, sizeof text, "The weather in %s is rainy with 18 degrees.", city);
    expect(&r, MESSAGE "content", text);
    replay(m, &r);
    http_free(&r);
}

static void a_tool_conversation(void **state) {
    (void)state;
    static const char *const cities[] = {"Paris", "Rome", "Berlin", "Oslo"};
    for (int thinks = 0; thinks < 2; thinks++) {
        program p;
        ms_text m = {0};
        long kept = 0;
        start(&p, plain);
        for (size_t i = 0; i < 4; i++) tool_turn(&p, &m, cities[i], thinks ? "," TOOLS : "," TOOLS NO_THINKING, &kept);
        assert_true(kept > 4 * 64); /* windows of 64 have gone round */
        stop(&p);
        ms_text_free(&m);
    }
}

/* ------------------------------------------------------------------ deadlines */

static void put_records(ms_text *m) {
    static const char *const things[] = {"lamp", "letter", "river", "compass", "market", "mirror"};
    ms_text_puts(m, "{\"role\":\"user\",\"content\":\"Read the records.");
    for (int i = 1; i <= 12; i++) {
        ms_text_printf(m, "\\nRecord %d: operator Ada moved the calm %s at station %d.", i, things[i % 6], 40 + i);
        if (i == 2) ms_text_puts(m, " The relay city is Prague.");
    }
    ms_text_puts(m, "\\nWhat is the relay city?\"}");
}

static void a_deadline_is_resumed(void **state) {
    (void)state;
    const char *const slow[] = {SERVED, "--request-deadline-seconds",
                                "1",    "--read-limit",
                                "0.06", "--experts",
                                "0",    "--range",
                                "8",    "--lookahead",
                                "off",  NULL};
    program p;
    ms_text m = {0};
    http_response r;
    put_records(&m);
    start(&p, slow);
    long before = 0;
    int tries = 0;
    for (; tries < 60; tries++) {
        chat_try(p.port, m.data, NO_THINKING, &r);
        if (r.status == 200) break;
        assert_int_equal(r.status, 504);
        expect(&r, "error.code", "deadline_exceeded");
        assert_int_equal(http_number(&r, "error.details.reused"), before);
        before += http_number(&r, "error.details.evaluated");
        http_free(&r);
    }
    print_message("%d attempts, the last from %ld\n", tries + 1, before);
    assert_true(tries > 1);
    assert_int_equal(r.status, 200);
    assert_true(before > 64);
    assert_int_equal(cached(&r), before);
    assert_true(before < http_number(&r, "usage.prompt_tokens"));
    /* The deadline may also cut the reply short; then there is less left to do. */
    for (; strcmp(http_text(&r, "choices.0.finish_reason"), "length") == 0 && tries < 60; tries++) {
        http_free(&r);
        chat(p.port, m.data, NO_THINKING, &r);
    }
    expect(&r, MESSAGE "content", "Prague");
    http_free(&r);
    stop(&p);
    ms_text_free(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_set_is_answered),
        cmocka_unit_test(a_tool_conversation),
        cmocka_unit_test(a_deadline_is_resumed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
