/* test_k3_parse.c: generated K3 ids as replies: the golden cases, and moves that they leave out. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "../golden/text_parse_cases.c"

static ms_tokenizer *tokenizer;

static int open_tokenizer(void **state) {
    (void)state;
    ms_error err;
    return ms_tokenizer_open(&tokenizer, "tests/golden/k3-text/tok4096.tiktoken", &err) == MS_OK ? 0 : -1;
}

static int close_tokenizer(void **state) {
    (void)state;
    ms_tokenizer_close(tokenizer);
    return 0;
}

static void count_failures(void *arg, const char *name, bool ok, const char *detail) {
    if (ok) return;
    ++*(int *)arg;
    print_error("%s: %s\n", name, detail);
}

static void golden_cases(void **state) {
    (void)state;
    int failures = 0;
    assert_int_equal(golden_parse_file("tests/golden/k3-text/parse.json", tokenizer, count_failures, &failures), 50);
    assert_int_equal(failures, 0);
}

/* Reads `spelled`, in which control names are control ids. */
static ms_reply read_reply(const char *spelled, ms_channel channel) {
    ms_ids ids = {0};
    ms_error err = {0};
    k3_parser *p;
    ms_reply r;
    joined all = {0};
    ms_reply_delta delta = {0};
    bool done = false;
    assert_int_equal(ms_tokenizer_encode(tokenizer, spelled, strlen(spelled), true, &ids, &err), MS_OK);
    assert_int_equal(k3_parser_create(&p, tokenizer, channel, &err), MS_OK);
    for (size_t i = 0; i < ids.count && !done; i++) {
        assert_int_equal(k3_parser_push(p, ids.data[i], &delta, &done, &err), MS_OK);
        join(&all, &delta);
    }
    assert_int_equal(k3_parser_finish(p, &delta, &r, &err), MS_OK);
    join(&all, &delta);
    assert_int_equal(all.reasoning.len, r.reasoning_len);
    assert_int_equal(all.content.len, r.content_len);
    if (r.content_len) assert_memory_equal(all.content.data, r.content, r.content_len);
    k3_parser_destroy(p);
    ms_ids_free(&ids);
    ms_text_free(&delta.reasoning);
    ms_text_free(&delta.content);
    ms_text_free(&all.reasoning);
    ms_text_free(&all.content);
    return r;
}

static void expect(const char *spelled, ms_channel channel, ms_reply_status status, const char *error, bool recovered,
                   const char *reasoning, const char *content, size_t calls) {
    ms_reply r = read_reply(spelled, channel);
    assert_int_equal(r.status, status);
    if (error) assert_string_equal(r.error, error);
    else assert_null(r.error);
    assert_int_equal(r.recovered, recovered);
    assert_string_equal(r.reasoning, reasoning);
    assert_string_equal(r.content, content);
    assert_int_equal(r.call_count, calls);
    ms_reply_free(&r);
}

static void lone_markers_are_text(void **state) {
    (void)state;
    expect("a<|open|>b<|end_of_msg|>", MS_CHANNEL_RESPONSE, MS_REPLY_COMPLETE, NULL, true, "", "a<|open|>b", 0);
    expect("a<|open|>b<|close|>response<|sep|><|close|>message<|sep|>", MS_CHANNEL_RESPONSE, MS_REPLY_COMPLETE, NULL,
           true, "", "a<|open|>b", 0);
    expect("a<|open|><|sep|>b<|close|>response x<|sep|>c", MS_CHANNEL_RESPONSE, MS_REPLY_TRUNCATED, NULL, true, "",
           "a<|open|><|sep|>b<|close|>response x<|sep|>c", 0);
    expect("a<|close|>message<|sep|>", MS_CHANNEL_THINK, MS_REPLY_TRUNCATED, NULL, true, "a<|close|>message<|sep|>",
           "", 0);
    /* A header that the limit cut is not shown. */
    expect("a<|close|>resp", MS_CHANNEL_RESPONSE, MS_REPLY_TRUNCATED, NULL, false, "", "a", 0);
}

static void other_controls(void **state) {
    (void)state;
    expect("a[EOS]b", MS_CHANNEL_RESPONSE, MS_REPLY_COMPLETE, NULL, true, "", "a", 0);
    expect("a<|close|>response<|sep|><|close|>message<|sep|>junk[BOS][EOT]b", MS_CHANNEL_RESPONSE, MS_REPLY_COMPLETE,
           NULL, false, "", "a", 0);
    expect("a[BOS]b<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>", MS_CHANNEL_RESPONSE,
           MS_REPLY_COMPLETE, NULL, true, "", "ab", 0);
    expect("r<|close|>think<|sep|><|open|>think<|sep|>s<|close|>think<|sep|><|open|>response<|sep|>c"
           "<|close|>response<|sep|><|close|>message<|sep|>", MS_CHANNEL_THINK, MS_REPLY_COMPLETE, NULL, false, "rs",
           "c", 0);
}

#define TOOLS "<|close|>response<|sep|><|open|>tools<|sep|>"
#define ENDS  "<|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>"

static void calls(void **state) {
    (void)state;
    expect(TOOLS "<|open|>call index=\"1\"<|sep|><|close|>call<|sep|>" ENDS, MS_CHANNEL_RESPONSE, MS_REPLY_COMPLETE,
           NULL, true, "", "", 0);
    expect(TOOLS "<|open|>call tool=\"f\"<|sep|><|open|>json type=\"object\"<|sep|>{}<|close|>json<|sep|>"
           "<|open|>argument key=\"a\"<|sep|>", MS_CHANNEL_RESPONSE, MS_REPLY_MALFORMED, "bad_call_body", false, "", "",
           0);
    expect(TOOLS "<|open|>call tool=\"f\"<|sep|><|open|>json<|sep|><|close|>json<|sep|><|open|>json<|sep|>",
           MS_CHANNEL_RESPONSE, MS_REPLY_MALFORMED, "bad_call_body", false, "", "", 0);
    expect(TOOLS "<|open|>call tool=\"f\"<|sep|><|sep|>", MS_CHANNEL_RESPONSE, MS_REPLY_MALFORMED, "bad_call_body",
           false, "", "", 0);
    expect(TOOLS "<|open|>call tool=\"f\"index=\"1\"<|sep|>", MS_CHANNEL_RESPONSE, MS_REPLY_MALFORMED,
           "bad_call_header", false, "", "", 0);
    expect(TOOLS "<|open|>call tool=\"f\"<|sep|><|close|>call<|end_of_msg|>", MS_CHANNEL_RESPONSE, MS_REPLY_MALFORMED,
           "incomplete_call", false, "", "", 0);
    ms_reply r = read_reply(TOOLS "<|open|>call tool=\"f\"<|sep|><|open|>argument key=\"k\" type=\"any\"<|sep|>NaN"
                            "<|close|>argument<|sep|><|open|>argument key=\"l\" type=\"number\"<|sep|>\t1E400 "
                            "<|close|>argument<|sep|><|close|>call<|sep|>" ENDS, MS_CHANNEL_RESPONSE);
    assert_int_equal(r.call_count, 1);
    assert_string_equal(r.calls[0].arguments, "{\"k\":\"NaN\",\"l\":1E400}");
    assert_true(r.recovered);
    ms_reply_free(&r);
}

static uint32_t byte_id(uint8_t byte) {
    for (uint32_t id = 0; id < 256; id++) {
        size_t len;
        const uint8_t *s = ms_tokenizer_token(tokenizer, id, &len);
        if (len == 1 && s[0] == byte) return id;
    }
    fail();
    return 0;
}

static void push(k3_parser *p, uint32_t id, const char *content) {
    ms_reply_delta d = {0};
    ms_error err = {0};
    bool done;
    assert_int_equal(k3_parser_push(p, id, &d, &done, &err), MS_OK);
    assert_string_equal(d.content.data ? d.content.data : "", content);
    ms_text_free(&d.reasoning);
    ms_text_free(&d.content);
}

static void deltas_hold_back_what_is_undecided(void **state) {
    (void)state;
    k3_parser *p;
    ms_error err = {0};
    ms_reply r;
    ms_reply_delta d = {0};
    uint32_t n = ms_tokenizer_ranks(tokenizer);
    assert_int_equal(k3_parser_create(&p, tokenizer, MS_CHANNEL_RESPONSE, &err), MS_OK);
    push(p, byte_id(0xf0), "");
    push(p, byte_id(0x9f), "");
    push(p, byte_id(0x98), "");
    push(p, byte_id(0x80), "\xf0\x9f\x98\x80");
    push(p, byte_id(0xe2), "");
    push(p, byte_id('a'), "\xef\xbf\xbd" "a");
    push(p, byte_id(0xe2), "");
    push(p, n + MS_CTL_OPEN, "\xef\xbf\xbd");
    push(p, byte_id('b'), "");
    push(p, n + MS_CTL_SEP, "<|open|>b<|sep|>");
    push(p, byte_id(0xe2), "");
    assert_int_equal(k3_parser_finish(p, &d, &r, &err), MS_OK);
    assert_string_equal(d.content.data, "\xef\xbf\xbd");
    assert_string_equal(r.content, "\xf0\x9f\x98\x80\xef\xbf\xbd" "a\xef\xbf\xbd<|open|>b<|sep|>\xef\xbf\xbd");
    ms_reply_free(&r);
    ms_text_free(&d.reasoning);
    ms_text_free(&d.content);
    k3_parser_destroy(p);
}

static void ids_outside_are_refused(void **state) {
    (void)state;
    k3_parser *p;
    ms_error err = {0};
    bool done;
    ms_reply r;
    assert_int_equal(k3_parser_create(&p, tokenizer, MS_CHANNEL_NONE, &err), MS_OK);
    assert_int_equal(k3_parser_push(p, 4096 + 256, NULL, &done, &err), MS_ERR_USAGE);
    assert_string_equal(err.message, "generated id: expected less than 4352, found 4352");
    assert_int_equal(k3_parser_push(p, UINT32_MAX, NULL, &done, &err), MS_ERR_USAGE);
    assert_int_equal(k3_parser_push(p, 4096 + MS_CTL_END_OF_MSG, NULL, &done, &err), MS_OK);
    assert_true(done);
    assert_int_equal(k3_parser_push(p, 64, NULL, &done, &err), MS_OK); /* after the end: ignored */
    assert_int_equal(k3_parser_finish(p, NULL, &r, &err), MS_OK);
    assert_int_equal(r.status, MS_REPLY_COMPLETE);
    assert_string_equal(r.content, "");
    ms_reply_free(&r);
    k3_parser_destroy(p);
}

/* Arguments that were read render to the ids that were generated: a kept state stays a prefix. */
static void arguments_render_back(void **state) {
    (void)state;
    static const char call[] =
        "<|open|>call tool=\"f\" index=\"1\"<|sep|><|open|>argument key=\"a\" type=\"number\"<|sep|>1e2"
        "<|close|>argument<|sep|><|open|>argument key=\"b&amp;&quot;\" type=\"string\"<|sep|>x\n\"y\"\\"
        "<|close|>argument<|sep|><|open|>argument key=\"c\" type=\"object\"<|sep|>{\"k\" :[1,2]}"
        "<|close|>argument<|sep|><|open|>argument key=\"a\" type=\"null\"<|sep|>null<|close|>argument<|sep|>"
        "<|close|>call<|sep|>";
    ms_text spelled = {0}, request = {0}, all = {0};
    ms_text_printf(&spelled, TOOLS "%s" ENDS, call);
    ms_reply r = read_reply(spelled.data, MS_CHANNEL_RESPONSE);
    assert_int_equal(r.call_count, 1);
    ms_text_puts(&request, "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"name\":\"f\",\"arguments\":");
    ms_json_write_string(&request, r.calls[0].arguments, r.calls[0].arguments_len);
    ms_text_puts(&request, "}]}]}");
    ms_json_doc *doc;
    ms_error err = {0};
    ms_segments s = {0};
    assert_int_equal(ms_json_parse(&doc, request.data, request.len, "request", NULL, &err), MS_OK);
    assert_int_equal(k3_render(ms_json_root(doc), &s, &err), MS_OK);
    for (size_t i = 0; i < s.count; i++) ms_text_append(&all, s.items[i].text, s.items[i].len);
    assert_non_null(strstr(all.data, call));
    ms_segments_free(&s);
    ms_json_free(doc);
    ms_reply_free(&r);
    ms_text_free(&spelled);
    ms_text_free(&request);
    ms_text_free(&all);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_cases),
        cmocka_unit_test(lone_markers_are_text),
        cmocka_unit_test(other_controls),
        cmocka_unit_test(calls),
        cmocka_unit_test(deltas_hold_back_what_is_undecided),
        cmocka_unit_test(ids_outside_are_refused),
        cmocka_unit_test(arguments_render_back),
    };
    return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}
