/* Calls on the wire while they are written: their pieces are the whole, and nothing of a call that must not be. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mimo_checkpoint.h"
#include "server_fixture.h"

static fixture f;

#define LONG "first \"line\"\n\tand a \\ second one, 0123456789 abcdefghijklmnopqrstuvwxyz"
#define WIDE "with \xc3\xa9, \xf0\x9f\x8c\x99 and \xe6\x97\xa5\xe6\x9c\xac"
#define FREE "{\"deep\": [1, {\"t\": \"</function> }\"}], \"e\": \"\xc3\xa9\"}"

/* Kimi K3's spelling. */
#define CALL(tool, index, members)                                                                                     \
    "<|open|>call tool=\"" tool "\" index=\"" index "\"<|sep|>" members "<|close|>call<|sep|>"
#define ARGUMENT(key, type, value)                                                                                     \
    "<|open|>argument key=\"" key "\" type=\"" type "\"<|sep|>" value "<|close|>argument<|sep|>"
#define PUT_CALL(index, text, n) CALL("put", index, ARGUMENT("text", "string", text) ARGUMENT("n", "number", n))
#define BEFORE(say)              "why<|close|>think<|sep|><|open|>response<|sep|>" say "<|close|>response<|sep|><|open|>tools<|sep|>"
#define AFTER                    "<|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>"

static int begin(void **state) {
    (void)state;
    fixture_init(&f);
    script_rule_cut(&f.engine, "onecall", BEFORE("Look:") PUT_CALL("1", LONG, "12.50") AFTER);
    script_rule_raw(&f.engine, "widecall", BEFORE("Look:") PUT_CALL("1", WIDE, "1e3") AFTER);
    script_rule_cut(&f.engine, "twocalls", BEFORE("Look:") PUT_CALL("1", "one", "1") PUT_CALL("2", "two", "2") AFTER);
    script_rule_cut(&f.engine, "nothing", BEFORE("Look:") CALL("stop", "1", "") AFTER);
    script_rule_cut(&f.engine, "stopped", BEFORE("Look") PUT_CALL("1", "x", "1") AFTER);
    script_rule_cut(&f.engine, "freecall",
                    BEFORE("Look:") CALL("any", "1", "<|open|>json type=\"object\"<|sep|>" FREE "<|close|>json<|sep|>")
                        AFTER);
    fixture_start(&f);
    fixture_wait_ready(&f);
    return 0;
}

/* MiMo's spelling, with its tokenizer. */
#define MIMO(say, calls)      "<think>why</think>" say calls "<|im_end|>"
#define MIMO_CALL(tool, body) "<tool_call><function=" tool ">" body "</function></tool_call>"
#define MIMO_PUT(text, n)     MIMO_CALL("put", "<parameter=text>" text "</parameter><parameter=n>" n "</parameter>")

static char mimo_dir[MIMO_TEST_PATH];

static int begin_mimo(void **state) {
    (void)state;
    fixture_init_model(&f, mimo_dir);
    f.o.any_model = true;
    script_rule_cut(&f.engine, "onecall", MIMO("Look:", MIMO_PUT(LONG, "12.50")));
    script_rule_raw(&f.engine, "widecall", MIMO("Look:", MIMO_PUT(WIDE, "1e3")));
    script_rule_cut(&f.engine, "twocalls", MIMO("Look:", MIMO_PUT("one", "1") MIMO_PUT("two", "2")));
    script_rule_cut(&f.engine, "nothing", MIMO("Look:", MIMO_CALL("stop", "")));
    script_rule_cut(&f.engine, "stopped", MIMO("Look", MIMO_PUT("x", "1")));
    script_rule_cut(&f.engine, "freecall", MIMO("Look:", MIMO_CALL("any", FREE)));
    fixture_start(&f);
    fixture_wait_ready(&f);
    return 0;
}

static int make_mimo(void **state) {
    (void)state;
    mimo_checkpoint_make(mimo_dir, 4);
    return 0;
}

static int remove_mimo(void **state) {
    (void)state;
    mimo_checkpoint_remove(mimo_dir);
    return 0;
}

static int end(void **state) {
    (void)state;
    fixture_free(&f);
    return 0;
}

#define PUT                                                                                                            \
    "{\"type\":\"object\",\"properties\":{\"text\":{\"type\":\"string\"},\"n\":{\"type\":\"number\"}},"                \
    "\"required\":[\"text\",\"n\"],\"additionalProperties\":false}"
#define TOOLS                                                                                                          \
    ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"put\",\"parameters\":" PUT "}},"                      \
    "{\"type\":\"function\",\"function\":{\"name\":\"stop\",\"parameters\":{\"type\":\"object\",\"properties\":{},"    \
    "\"additionalProperties\":false}}},"                                                                               \
    "{\"type\":\"function\",\"function\":{\"name\":\"any\",\"parameters\":{\"type\":\"object\"}}}]"

enum { CALLS_MAX = 4 };

/* What a stream said of calls, put together. */
typedef struct heard {
    ms_text name[CALLS_MAX], arguments[CALLS_MAX];
    size_t count, pieces[CALLS_MAX];
    bool text_late; /* content behind a call */
    bool failed;
} heard;

static void heard_free(heard *h) {
    for (size_t i = 0; i < CALLS_MAX; i++) {
        ms_text_free(&h->name[i]);
        ms_text_free(&h->arguments[i]);
    }
}

static void hear_call(heard *h, const ms_json *call) {
    uint64_t index;
    assert_true(ms_json_u64(ms_json_get(call, "index"), &index) && index < CALLS_MAX);
    const ms_json *function = ms_json_get(call, "function"), *name = ms_json_get(function, "name");
    const ms_json *arguments = ms_json_get(function, "arguments");
    assert_non_null(arguments);
    if (name) {
        assert_int_equal(index, h->count++); /* in order, the name first and once */
        assert_non_null(ms_json_get(call, "id"));
        ms_text_append(&h->name[index], name->str, name->str_len);
        assert_int_equal(arguments->str_len, 0);
        return;
    }
    assert_int_equal(index + 1, h->count);
    assert_null(ms_json_get(call, "id"));
    ms_text_append(&h->arguments[index], arguments->str, arguments->str_len);
    h->pieces[index]++;
}

static void hear(heard *h, const char *stream) {
    *h = (heard){0};
    for (const char *s = stream; (s = strstr(s, "data: {")); s++) {
        s += 6;
        ms_json_doc *doc;
        size_t len = strcspn(s, "\n");
        assert_int_equal(ms_json_parse(&doc, s, len, "chunk", NULL, NULL), MS_OK);
        const ms_json *root = ms_json_root(doc);
        const ms_json *delta = ms_json_get(ms_json_at(ms_json_get(root, "choices"), 0), "delta");
        h->failed = h->failed || ms_json_get(root, "error");
        if (ms_json_get(delta, "content") && ms_json_get(delta, "content")->str_len && h->count) h->text_late = true;
        const ms_json *calls = ms_json_get(delta, "tool_calls");
        for (size_t i = 0; calls && i < calls->count; i++) hear_call(h, ms_json_at(calls, i));
        ms_json_free(doc);
    }
}

static void ask_limited(const char *word, const char *more, int limit, bool stream, http_response *r) {
    ms_text t = {0};
    ms_text_printf(&t,
                   "{\"model\":\"moonshine\",\"max_tokens\":%d,\"stream\":%s,\"messages\":[{\"role\":\"user\","
                   "\"content\":\"%s\"}]" TOOLS "%s}",
                   limit, stream ? "true" : "false", word, more);
    fixture_wait_idle(&f);
    http_call(f.port, "POST", "/v1/chat/completions", NULL, t.data, r);
    assert_int_equal(r->status, 200);
    ms_text_free(&t);
}

static void ask(const char *word, const char *more, bool stream, http_response *r) {
    ask_limited(word, more, 900, stream, r);
}

/* Streamed and whole say the same; returns what was heard. */
static heard compare(const char *word, const char *more) {
    http_response whole, stream;
    heard h;
    ask(word, more, false, &whole);
    ask(word, more, true, &stream);
    hear(&h, stream.body.data);
    assert_false(h.failed);
    assert_false(h.text_late);
    assert_non_null(strstr(stream.body.data, "\"finish_reason\":\"tool_calls\""));
    for (size_t i = 0; i < h.count; i++) {
        char path[80];
        (void)snprintf(path, sizeof path, "choices.0.message.tool_calls.%zu.function.name", i);
        assert_string_equal(http_text(&whole, path), h.name[i].data);
        (void)snprintf(path, sizeof path, "choices.0.message.tool_calls.%zu.function.arguments", i);
        assert_string_equal(http_text(&whole, path), h.arguments[i].data);
    }
    const ms_json *message = ms_json_get(ms_json_at(ms_json_get(http_json(&whole), "choices"), 0), "message");
    assert_int_equal(ms_json_get(message, "tool_calls")->count, h.count);
    http_free(&whole);
    http_free(&stream);
    return h;
}

static void pieces_are_the_whole(void **state) {
    (void)state;
    heard h = compare("onecall", "");
    assert_int_equal(h.count, 1);
    assert_string_equal(h.name[0].data, "put");
    assert_string_equal(h.arguments[0].data, "{\"text\":\"first \\\"line\\\"\\n\\tand a \\\\ second one, "
                                             "0123456789 abcdefghijklmnopqrstuvwxyz\",\"n\":12.50}");
    assert_true(h.pieces[0] > 50);
    heard_free(&h);
    h = compare("widecall", "");
    assert_string_equal(h.arguments[0].data, "{\"text\":\"" WIDE "\",\"n\":1e3}");
    assert_true(h.pieces[0] > 3);
    heard_free(&h);
    h = compare("twocalls", "");
    assert_int_equal(h.count, 2);
    assert_string_equal(h.arguments[1].data, "{\"text\":\"two\",\"n\":2}");
    heard_free(&h);
    h = compare("freecall", "");
    assert_int_equal(h.count, 1);
    assert_string_equal(h.arguments[0].data, FREE);
    assert_true(h.pieces[0] > 20);
    heard_free(&h);
    h = compare("nothing", "");
    assert_int_equal(h.count, 1);
    assert_string_equal(h.arguments[0].data, "{}");
    heard_free(&h);
}

/* The first pieces come while the rest is not written yet. */
static void pieces_come_live(void **state) {
    (void)state;
    ms_text body = {0}, seen = {0};
    ms_text_puts(&body, "{\"model\":\"moonshine\",\"max_tokens\":900,\"stream\":true,\"messages\":[{\"role\":\"user\","
                        "\"content\":\"onecall\"}]" TOOLS "}");
    fixture_wait_idle(&f);
    atomic_store(&f.engine.token_us, 5000);
    int fd = http_connect(f.port);
    ms_text head = {0};
    ms_text_printf(&head,
                   "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                   "Content-Length: %zu\r\n\r\n%s",
                   body.len, body.data);
    assert_true(http_send(fd, head.data, head.len));
    assert_true(http_read_until(fd, &seen, "\"arguments\":\"\""));
    assert_true(http_read_until(fd, &seen, "\"f\"}}"));
    assert_null(strstr(seen.data, "12.50"));
    assert_null(strstr(seen.data, "[DONE]"));
    assert_true(http_read_until(fd, &seen, "[DONE]"));
    assert_non_null(strstr(seen.data, "12.50"));
    atomic_store(&f.engine.token_us, 0);
    ms_text_free(&body);
    ms_text_free(&head);
    ms_text_free(&seen);
}

static void one_call_is_one(void **state) {
    (void)state;
    heard h = compare("twocalls", ",\"parallel_tool_calls\":false");
    assert_int_equal(h.count, 1);
    assert_string_equal(h.arguments[0].data, "{\"text\":\"one\",\"n\":1}");
    heard_free(&h);
}

/* Wherever the limit cuts: a call that cannot end within it is not shown, and stream and whole say the same. */
static void limits_cut_no_call(void **state) {
    (void)state;
    size_t counts[3] = {0};
    for (int limit = 1; limit < 400; limit += 1 + limit / 30) {
        http_response whole, stream;
        heard h;
        char finish[64];
        ask_limited("twocalls", "", limit, false, &whole);
        ask_limited("twocalls", "", limit, true, &stream);
        hear(&h, stream.body.data);
        if (h.failed) fail_msg("%d: %s\n%s", limit, whole.body.data, stream.body.data);
        (void)snprintf(finish, sizeof finish, "\"finish_reason\":\"%s\"", http_text(&whole, "choices.0.finish_reason"));
        assert_non_null(strstr(stream.body.data, finish));
        const ms_json *calls =
            ms_json_get(ms_json_get(ms_json_at(ms_json_get(http_json(&whole), "choices"), 0), "message"), "tool_calls");
        assert_int_equal(calls ? calls->count : 0, h.count);
        assert_true(h.count <= 2);
        for (size_t i = 0; i < h.count; i++) {
            char path[80];
            (void)snprintf(path, sizeof path, "choices.0.message.tool_calls.%zu.function.arguments", i);
            assert_string_equal(http_text(&whole, path), h.arguments[i].data);
        }
        counts[h.count]++;
        heard_free(&h);
        http_free(&whole);
        http_free(&stream);
    }
    for (size_t i = 0; i < 3; i++) assert_true(counts[i] > 0);
}

/* Text that may become a stop string waits, so calls wait behind it. */
static void text_stays_before_calls(void **state) {
    (void)state;
    heard h = compare("stopped", ",\"stop\":[\"Look here\"]");
    assert_int_equal(h.count, 1);
    assert_true(h.pieces[0] == 1);
    heard_free(&h);
}

/* The other APIs that stream calls: pieces there too. */
static void other_apis(void **state) {
    (void)state;
    static const struct {
        const char *path, *body, *piece;
    } cases[] = {
        {"/v1/messages",
         "{\"model\":\"moonshine\",\"max_tokens\":900,\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":"
         "\"onecall\"}],\"tools\":[{\"name\":\"put\",\"input_schema\":" PUT "}]}",
         "input_json_delta"},
        {"/v1/responses",
         "{\"model\":\"moonshine\",\"max_output_tokens\":900,\"stream\":true,\"input\":\"onecall\",\"tools\":[{"
         "\"type\":"
         "\"function\",\"name\":\"put\",\"strict\":false,\"parameters\":" PUT "}]}",
         "event: response.function_call_arguments.delta"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        http_response r;
        size_t n = 0;
        fixture_wait_idle(&f);
        http_call(f.port, "POST", cases[i].path, NULL, cases[i].body, &r);
        if (r.status != 200) fail_msg("%s: %d %s", cases[i].path, r.status, r.body.data);
        for (const char *s = r.body.data; (s = strstr(s, cases[i].piece)); s++) n++;
        if (n <= 50) fail_msg("%s: %zu pieces: %s", cases[i].path, n, r.body.data);
        http_free(&r);
    }
}

#define BOTH(name)                                                                                                     \
    cmocka_unit_test_setup_teardown(name, begin, end), { #name " (mimo)", name, begin_mimo, end, NULL }

int main(void) {
    const struct CMUnitTest tests[] = {
        BOTH(pieces_are_the_whole), BOTH(pieces_come_live),        BOTH(one_call_is_one),
        BOTH(limits_cut_no_call),   BOTH(text_stays_before_calls), BOTH(other_apis),
    };
    return cmocka_run_group_tests(tests, make_mimo, remove_mimo);
}
