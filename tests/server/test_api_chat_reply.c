/* test_api_chat_reply.c: chat completions responses: documents, streams, usage, progress, errors. */
#include "api_test.h"

#include <stdio.h>
#include <string.h>

#define BEGIN            "{'model':'moonshine','messages':[{'role':'user','content':'hi'}]"
#define TOOL(name, more) "{'type':'function','function':{'name':'" name "'" more "}}"
#define TOOLS(list)      BEGIN ",'tools':[" list "]"
static const ms_api_codec *const chat = &ms_api_chat;

static const reply full = {
    .reasoning = "Let me \"think\"\n\xc3\xa4\xe6\xbc\xa2\xf0\x9f\x98\x80 done \x01",
    .content = "Answer \xf0\x9f\x8e\x89\xf0\x9f\x8e\x89 with \\ and \xe2\x80\xa8 line",
    .calls = {{"get_weather", "{\"city\":\"Z\xc3\xbcrich \xf0\x9f\x8c\xa7\",\"n\":1.50}"}, {"stop_it", "{}"}},
    .call_count = 2,
    .finish = MS_API_TOOL_CALLS};

static void document(void **state) {
    (void)state;
    ms_api_request r;
    parse_good(&r, chat, TOOLS(TOOL("f", "")) "}");
    ms_text out = write_reply(chat, &r, &full, 0);
    ms_json_doc *doc = doc_of(&out);
    const ms_json *d = ms_json_root(doc);
    is_text(d, "id", "chatcmpl-00112233445566778899aabbccddeeff");
    is_text(d, "object", "chat.completion");
    is_number(d, "created", 1790000000);
    is_text(d, "model", "moonshine");
    is_text(d, "system_fingerprint", "moonshine-q8-greedy");
    is_text(d, "choices[0].message.content", full.content);
    is_text(d, "choices[0].message.reasoning_content", full.reasoning);
    is_text(d, "choices[0].message.tool_calls[0].function.name", "get_weather");
    is_text(d, "choices[0].message.tool_calls[0].function.arguments", full.calls[0].arguments);
    is_text(d, "choices[0].message.tool_calls[1].type", "function");
    const char *id = text_at(d, "choices[0].message.tool_calls[0].id");
    assert_int_equal(strlen(id), 5 + 24);
    assert_memory_equal(id, "call_", 5);
    is_text(d, "choices[0].finish_reason", "tool_calls");
    is_number(d, "usage.total_tokens", 42);
    is_number(d, "usage.prompt_tokens_details.cached_tokens", 10);
    is_number(d, "usage.completion_tokens_details.reasoning_tokens", 5);
    ms_json_free(doc);
    ms_text_free(&out);
    reply only_calls = full;
    only_calls.content = NULL;
    only_calls.reasoning = NULL;
    out = write_reply(chat, &r, &only_calls, 0);
    doc = doc_of(&out);
    assert_int_equal(at(ms_json_root(doc), "choices[0].message.content")->type, MS_JSON_NULL);
    is_text(ms_json_root(doc), "choices[0].message.reasoning_content", "");
    ms_json_free(doc);
    ms_text_free(&out);
    ms_api_request_free(&r);
    ms_api_limits l = greedy_limits();
    parse_good_with(&r, chat, &l, BEGIN ",'reasoning_effort':'none'}");
    out = write_reply(chat, &r, &(reply){.finish = MS_API_LENGTH}, 0);
    doc = doc_of(&out);
    is_text(ms_json_root(doc), "choices[0].message.content", "");
    assert_null(at(ms_json_root(doc), "choices[0].message.reasoning_content"));
    assert_null(at(ms_json_root(doc), "choices[0].message.tool_calls"));
    assert_int_equal(at(ms_json_root(doc), "choices[0].logprobs")->type, MS_JSON_NULL);
    is_text(ms_json_root(doc), "choices[0].finish_reason", "length");
    ms_json_free(doc);
    ms_text_free(&out);
    ms_api_request_free(&r);
}

typedef struct collected {
    ms_text reasoning, content, names, args[4];
    size_t calls;
} collected;

/* Order within a stream: role, reasoning, content, calls, finish. */
static void collect_chunk(collected *c, const ms_json *d, int *stage) {
    const ms_json *delta = at(d, "choices[0].delta"), *s;
    assert_non_null(delta);
    is_number(d, "choices[0].index", 0);
    is_text(d, "object", "chat.completion.chunk");
    is_text(d, "id", "chatcmpl-00112233445566778899aabbccddeeff");
    is_text(d, "system_fingerprint", "moonshine-q8-greedy");
    if (ms_json_get(delta, "role")) {
        assert_int_equal((*stage)++, 0);
        is_text(delta, "content", "");
        return;
    }
    if (at(d, "choices[0].finish_reason")->type == MS_JSON_STRING) {
        assert_int_equal(delta->count, 0);
        assert_true(*stage < 9);
        *stage = 9;
        return;
    }
    if ((s = ms_json_get(delta, "reasoning_content"))) {
        assert_int_equal(*stage, 1);
        ms_text_append(&c->reasoning, s->str, s->str_len);
    } else if ((s = ms_json_get(delta, "content"))) {
        assert_true(*stage == 1 || *stage == 2);
        *stage = 2;
        ms_text_append(&c->content, s->str, s->str_len);
    } else if ((s = at(delta, "tool_calls[0]"))) {
        assert_true(*stage >= 1 && *stage <= 3);
        *stage = 3;
        if (ms_json_get(s, "id")) {
            is_number(s, "index", (long long)c->calls++);
            is_text(s, "type", "function");
            ms_text_printf(&c->names, "%s ", text_at(s, "function.name"));
        } else {
            assert_int_equal(s->count, 2);
            assert_int_equal(ms_json_get(s, "function")->count, 1);
        }
        is_number(s, "index", (long long)c->calls - 1);
        ms_text_puts(&c->args[c->calls - 1], text_at(s, "function.arguments"));
    } else {
        assert_int_equal(delta->count, 0);
    }
}

static void same_as_document(const ms_text *stream) {
    sse s = sse_read(stream);
    collected c = {0};
    int stage = 0;
    for (size_t i = 0; i + 1 < s.count; i++) {
        assert_null(s.items[i].event);
        if (s.items[i].doc && at(ms_json_root(s.items[i].doc), "choices[0]")) {
            collect_chunk(&c, ms_json_root(s.items[i].doc), &stage);
        }
    }
    assert_int_equal(stage, 9);
    assert_string_equal(s.items[s.count - 1].data, "[DONE]");
    assert_string_equal(c.reasoning.data, full.reasoning);
    assert_string_equal(c.content.data, full.content);
    assert_string_equal(c.names.data, "get_weather stop_it ");
    assert_int_equal(c.calls, 2);
    for (size_t i = 0; i < 2; i++) assert_string_equal(c.args[i].data, full.calls[i].arguments);
    ms_text_free(&c.reasoning);
    ms_text_free(&c.content);
    ms_text_free(&c.names);
    for (size_t i = 0; i < 4; i++) ms_text_free(&c.args[i]);
    sse_free(&s);
}

static void stream_equals_document(void **state) {
    (void)state;
    ms_api_request r;
    parse_good(&r, chat, TOOLS(TOOL("f", "")) ",'stream':true,'return_progress':true}");
    for (unsigned seed = 0; seed < 250; seed++) {
        ms_text out = write_reply(chat, &r, &full, seed);
        same_as_document(&out);
        ms_text_free(&out);
    }
    ms_api_request_free(&r);
}

static void usage_variants(void **state) {
    (void)state;
    static const char *const option[] = {"", ",'stream_options':{'include_usage':true}",
                                         ",'stream_options':{'include_usage':false}"};
    for (int v = 0; v < 3; v++) {
        char body[300];
        (void)snprintf(body, sizeof body, "%s,'stream':true%s}", BEGIN, option[v]);
        ms_api_request r;
        parse_good(&r, chat, body);
        ms_text out = write_reply(chat, &r, &(reply){.content = "x", .finish = MS_API_STOP}, 1);
        sse s = sse_read(&out);
        size_t with = 0, nulls = 0, docs = 0;
        for (size_t i = 0; i < s.count; i++) {
            const ms_json *usage = s.items[i].doc ? ms_json_get(ms_json_root(s.items[i].doc), "usage") : NULL;
            docs += s.items[i].doc != NULL;
            nulls += usage && usage->type == MS_JSON_NULL;
            if (!usage || usage->type == MS_JSON_NULL) continue;
            with++;
            const ms_json *choices = ms_json_get(ms_json_root(s.items[i].doc), "choices");
            assert_int_equal(choices->count, v == 1 ? 0 : 1);
            assert_int_equal(i, s.count - 2);
            is_number(usage, "completion_tokens", 12);
        }
        assert_int_equal(with, v == 2 ? 0 : 1);
        assert_int_equal(nulls, v == 1 ? docs - 1 : 0);
        sse_free(&s);
        ms_text_free(&out);
        ms_api_request_free(&r);
    }
    parse_bad(chat, BEGIN ",'stream_options':{'include_usage':true}}", 400, "invalid_value", "stream_options");
    parse_bad(chat, BEGIN ",'stream':true,'stream_options':{'include_usage':1}}", 400, "invalid_type",
              "stream_options.include_usage");
}

static void comments_and_progress(void **state) {
    (void)state;
    ms_api_request r;
    parse_good(&r, chat, BEGIN ",'stream':true}");
    ms_text out = write_reply(chat, &r, &(reply){.content = "x"}, 1);
    sse s = sse_read(&out);
    assert_string_equal(s.items[1].comment, "moonshine prefill token 20/30");
    assert_string_equal(s.items[2].comment, "moonshine decode reasoning 128");
    assert_string_equal(s.items[s.count - 3].comment, "moonshine prompt total=30 evaluated=20 reused=10");
    sse_free(&s);
    ms_text_free(&out);
    ms_api_request_free(&r);
    parse_good(&r, chat, BEGIN ",'stream':true,'return_progress':true}");
    out = write_reply(chat, &r, &(reply){.content = "x"}, 1);
    s = sse_read(&out);
    is_number(ms_json_root(s.items[1].doc), "prompt_progress.total", 30);
    is_number(ms_json_root(s.items[1].doc), "prompt_progress.cache", 10);
    is_number(ms_json_root(s.items[1].doc), "prompt_progress.processed", 20);
    is_number(ms_json_root(s.items[1].doc), "prompt_progress.time_ms", 1500);
    assert_int_equal(at(ms_json_root(s.items[1].doc), "choices[0].delta")->count, 0);
    sse_free(&s);
    ms_text_free(&out);
    ms_api_request_free(&r);
}

static void errors(void **state) {
    (void)state;
    ms_api_request r;
    ms_api_error e;
    assert_false(ms_api_fail(&e, 504, "deadline_exceeded", NULL, "stopped after %d s", 7));
    (void)strcpy(e.details, "{\"resumable\":true}");
    parse_good(&r, chat, BEGIN ",'stream':true}");
    ms_text out = write_reply(chat, &r, &(reply){.content = "x", .error = &e}, 0);
    sse s = sse_read(&out);
    const ms_json *d = ms_json_root(s.items[s.count - 2].doc);
    is_number(d, "error.status", 504);
    is_text(d, "error.type", "server_error");
    is_text(d, "error.code", "deadline_exceeded");
    is_text(d, "error.message", "stopped after 7 s");
    assert_int_equal(at(d, "error.param")->type, MS_JSON_NULL);
    assert_int_equal(at(d, "error.details.resumable")->type, MS_JSON_TRUE);
    assert_string_equal(s.items[s.count - 1].data, "[DONE]");
    sse_free(&s);
    ms_text_free(&out);
    ms_api_request_free(&r);
    parse_good(&r, chat, BEGIN "}");
    out = write_reply(chat, &r, &(reply){.content = "x", .error = &e}, 0);
    ms_json_doc *doc = doc_of(&out);
    is_text(ms_json_root(doc), "error.code", "deadline_exceeded");
    assert_null(at(ms_json_root(doc), "error.status"));
    assert_int_equal(ms_json_root(doc)->count, 1);
    ms_json_free(doc);
    ms_text_free(&out);
    ms_api_request_free(&r);
    /* Before start, a stream's error is a document too. */
    parse_good(&r, chat, BEGIN ",'stream':true}");
    ms_api_writer *w = chat->writer(&r);
    out = (ms_text){0};
    w->ops->error(w, &out, &e, "req_1");
    doc = doc_of(&out);
    is_text(ms_json_root(doc), "error.type", "server_error");
    w->ops->destroy(w);
    ms_json_free(doc);
    ms_text_free(&out);
    ms_api_request_free(&r);
}

static void logprob_entries(void **state) {
    (void)state;
    ms_api_request r;
    for (int stream = 0; stream < 2; stream++) {
        parse_good(&r, chat,
                   stream ? BEGIN ",'logprobs':true,'top_logprobs':1,'stream':true}"
                          : BEGIN ",'logprobs':true,'top_logprobs':1}");
        ms_api_writer *w = chat->writer(&r);
        ms_text out = {0};
        ms_api_start start = {.id = "1", .model = "m", .fingerprint = "f"};
        ms_api_logprob p = {.bytes = "\xf0\x9f", .len = 2, .logprob = -0.5f, .top_count = 1};
        p.top[0].bytes = "a";
        p.top[0].len = 1;
        p.top[0].logprob = -1e30f;
        w->ops->start(w, &out, &start);
        out.len = 0;
        w->ops->text(w, &out, MS_CHANNEL_RESPONSE, "", 0, &p, 1);
        if (stream)
            out.len -= 2; /* the empty line */
        else
            w->ops->finish(w, &out, &(ms_api_end){0});
        ms_text body = {.data = out.data + (stream ? 6 : 0), .len = out.len - (stream ? 6 : 0)};
        ms_json_doc *doc = doc_of(&body);
        const ms_json *entry = at(ms_json_root(doc), "choices[0].logprobs.content[0]");
        is_text(entry, "token", "\xef\xbf\xbd");
        is_number(entry, "bytes[0]", 0xf0);
        is_number(entry, "bytes[1]", 0x9f);
        double v = 0;
        assert_true(ms_json_double(at(entry, "logprob"), &v) && v > -0.51 && v < -0.49);
        assert_true(ms_json_double(at(entry, "top_logprobs[0].logprob"), &v) && v > -9999.5 && v < -9998.5);
        w->ops->destroy(w);
        ms_json_free(doc);
        ms_text_free(&out);
        ms_api_request_free(&r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(document),       cmocka_unit_test(stream_equals_document),
                                       cmocka_unit_test(usage_variants), cmocka_unit_test(comments_and_progress),
                                       cmocka_unit_test(errors),         cmocka_unit_test(logprob_entries)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
