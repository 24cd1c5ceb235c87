/* test_api_completions.c: raw completions: prompt forms, refusals, documents and streams; error documents of all APIs.
 */
#include "api_test.h"

#include <stdio.h>
#include <string.h>

#define BEGIN "{'model':'moonshine','prompt':'Once'"
static const ms_api_codec *const raw = &ms_api_completions;

static void prompts(void **state) {
    (void)state;
    ms_api_request r;
    parse_good(&r, raw, "{'model':'moonshine','prompt':'a\\u0000b','echo':false,'best_of':1,'user':'x'}");
    assert_true(r.has_prompt_text && !r.prompt_ids && r.prompt_len == 3);
    assert_memory_equal(r.prompt, "a\0b", 3);
    assert_int_equal(r.max_tokens, 16);
    assert_string_equal(r.ignored.data, "echo,user");
    ms_api_request_free(&r);
    parse_good(&r, raw, "{'model':'moonshine','prompt':[1,2,4294967295],'max_tokens':5,'stop':['a'],'temperature':1}");
    assert_true(!r.has_prompt_text && r.prompt_id_count == 3 && r.prompt_ids[2] == UINT32_MAX);
    assert_true(r.max_tokens == 5 && r.stop_count == 1 && r.sampled);
    ms_api_request_free(&r);
    parse_good(&r, raw, "{'model':'moonshine','prompt':['one']}");
    assert_true(r.has_prompt_text && r.prompt_len == 3);
    ms_api_request_free(&r);
#define PROMPT(p) "{'model':'moonshine','prompt':" p "}"
    parse_bad(raw, "{'model':'moonshine'}", 400, "missing_field", "prompt");
    parse_bad(raw, PROMPT("''"), 400, "invalid_value", "prompt");
    parse_bad(raw, PROMPT("[]"), 400, "invalid_value", "prompt");
    parse_bad(raw, PROMPT("{}"), 400, "invalid_type", "prompt");
    parse_bad(raw, PROMPT("['a','b']"), 400, "unsupported_value", "prompt[0]");
    parse_bad(raw, PROMPT("[[1],[2]]"), 400, "unsupported_value", "prompt[0]");
    parse_bad(raw, PROMPT("[1,-2]"), 400, "out_of_range", "prompt[1]");
    parse_bad(raw, PROMPT("[1,2.0]"), 400, "out_of_range", "prompt[1]");
    parse_bad(raw, PROMPT("[1,4294967296]"), 400, "out_of_range", "prompt[1]");
    parse_bad(raw, PROMPT("[1,true]"), 400, "invalid_type", "prompt[1]");
    parse_bad(raw, BEGIN ",'suffix':'x'}", 400, "unsupported_parameter", "suffix");
    parse_bad(raw, BEGIN ",'best_of':2}", 400, "unsupported_value", "best_of");
    parse_bad(raw, BEGIN ",'echo':true}", 400, "unsupported_value", "echo");
    parse_bad(raw, BEGIN ",'logprobs':1}", 400, "unsupported_parameter", "logprobs");
    parse_bad(raw, BEGIN ",'n':2}", 400, "unsupported_value", "n");
    parse_bad(raw, BEGIN ",'max_tokens':9000}", 400, "out_of_range", "max_tokens");
}

static void replies(void **state) {
    (void)state;
    const char *text = "Once upon \xf0\x9f\x8e\x89 \"a\" time\n";
    ms_api_request r;
    parse_good(&r, raw, BEGIN "}");
    ms_text out = write_reply(raw, &r, &(reply){.content = text, .finish = MS_API_LENGTH}, 3);
    ms_json_doc *doc = doc_of(&out);
    is_text(ms_json_root(doc), "choices[0].text", text);
    is_text(ms_json_root(doc), "object", "text_completion");
    is_text(ms_json_root(doc), "id", "cmpl-00112233445566778899aabbccddeeff");
    is_text(ms_json_root(doc), "choices[0].finish_reason", "length");
    is_number(ms_json_root(doc), "usage.prompt_tokens", 30);
    ms_json_free(doc);
    ms_text_free(&out);
    ms_api_request_free(&r);
    for (int usage = 0; usage < 2; usage++) {
        parse_good(&r, raw,
                   usage ? BEGIN ",'stream':true,'stream_options':{'include_usage':true}}" : BEGIN ",'stream':true}");
        for (unsigned seed = 0; seed < 200; seed++) {
            out = write_reply(raw, &r, &(reply){.content = text, .finish = MS_API_STOP}, seed);
            sse s = sse_read(&out);
            ms_text joined = {0};
            for (size_t i = 0; i + 1 < s.count; i++) {
                if (s.items[i].doc) ms_text_puts(&joined, text_at(ms_json_root(s.items[i].doc), "choices[0].text"));
            }
            assert_string_equal(joined.data, text);
            assert_string_equal(s.items[s.count - 1].data, "[DONE]");
            is_number(ms_json_root(s.items[s.count - 2].doc), "usage.total_tokens", 42);
            is_text(ms_json_root(s.items[s.count - 2 - (size_t)usage].doc), "choices[0].finish_reason", "stop");
            ms_text_free(&joined);
            sse_free(&s);
            ms_text_free(&out);
        }
        ms_api_request_free(&r);
    }
    ms_api_error e;
    (void)ms_api_fail(&e, 503, "server_shutdown", NULL, "the server stops");
    parse_good(&r, raw, BEGIN ",'stream':true}");
    out = write_reply(raw, &r, &(reply){.content = text, .error = &e}, 0);
    sse s = sse_read(&out);
    is_number(ms_json_root(s.items[s.count - 2].doc), "error.status", 503);
    assert_string_equal(s.items[s.count - 1].data, "[DONE]");
    sse_free(&s);
    ms_text_free(&out);
    ms_api_request_free(&r);
}

/* Every status of the table: type of each envelope. */
static void error_documents(void **state) {
    (void)state;
    static const struct {
        int http;
        const char *code, *openai, *messages;
    } rows[] = {{400, "bad_http", "invalid_request_error", "invalid_request_error"},
                {400, "context_length_exceeded", "invalid_request_error", "invalid_request_error"},
                {401, "invalid_api_key", "authentication_error", "authentication_error"},
                {403, "origin_not_allowed", "permission_error", "permission_error"},
                {404, "model_not_found", "invalid_request_error", "not_found_error"},
                {405, "method_not_allowed", "invalid_request_error", "invalid_request_error"},
                {408, "request_timeout", "invalid_request_error", "invalid_request_error"},
                {411, "length_required", "invalid_request_error", "invalid_request_error"},
                {413, "body_too_large", "invalid_request_error", "request_too_large"},
                {414, "uri_too_long", "invalid_request_error", "invalid_request_error"},
                {415, "unsupported_media_type", "invalid_request_error", "invalid_request_error"},
                {417, "expectation_failed", "invalid_request_error", "invalid_request_error"},
                {431, "headers_too_large", "invalid_request_error", "invalid_request_error"},
                {500, "engine_failure", "server_error", "api_error"},
                {500, "tool_policy_unsatisfied", "server_error", "api_error"},
                {501, "transfer_coding", "invalid_request_error", "invalid_request_error"},
                {503, "server_busy", "server_error", "overloaded_error"},
                {504, "deadline_exceeded", "server_error", "api_error"},
                {505, "http_version", "invalid_request_error", "invalid_request_error"}};
    static const ms_api_kind kinds[] = {MS_API_CHAT, MS_API_COMPLETIONS, MS_API_MESSAGES, MS_API_RESPONSES};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        for (size_t k = 0; k < 4; k++) {
            ms_api_error e;
            ms_text out = {0};
            assert_false(ms_api_fail(&e, rows[i].http, rows[i].code, "a.b[3]", "said \"%s\"", "so"));
            ms_api_error_document(&out, kinds[k], &e, k % 2 ? NULL : "req_9");
            ms_json_doc *doc = doc_of(&out);
            const ms_json *d = ms_json_root(doc);
            bool messages = kinds[k] == MS_API_MESSAGES;
            is_text(d, "error.type", messages ? rows[i].messages : rows[i].openai);
            is_text(d, "error.message", "said \"so\"");
            if (messages) {
                is_text(d, "type", "error");
                is_text(d, "request_id", "req_9");
                assert_int_equal(at(d, "error")->count, 2);
            } else {
                is_text(d, "error.param", "a.b[3]");
                is_text(d, "error.code", rows[i].code);
                assert_int_equal(at(d, "error")->count, 4);
                assert_int_equal(d->count, 1);
            }
            ms_json_free(doc);
            ms_text_free(&out);
        }
    }
}

static void long_messages(void **state) {
    (void)state;
    char big[2000];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = 0;
    memcpy(big + 510, "\xc3\xa4", 2); /* the message's end falls into this character */
    ms_api_error e;
    assert_false(ms_api_fail(NULL, 400, "x", big, "%s", big));
    assert_false(ms_api_fail(&e, 400, "x", big, "%s", big));
    assert_int_equal(strlen(e.message), sizeof e.message - 1);
    assert_int_equal(strlen(e.param), sizeof e.param - 1);
    ms_text out = {0};
    ms_api_error_document(&out, MS_API_CHAT, &e, NULL);
    ms_json_doc *doc = doc_of(&out);
    assert_int_equal(strlen(text_at(ms_json_root(doc), "error.message")), 510);
    ms_json_free(doc);
    ms_text_free(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(prompts), cmocka_unit_test(replies),
                                       cmocka_unit_test(error_documents), cmocka_unit_test(long_messages)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
