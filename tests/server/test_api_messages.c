/* test_api_messages.c: Messages requests, documents and event streams. */
#include "api_test.h"

#include <stdio.h>
#include <string.h>

#include "server/api_write.h"

#define HEAD "{'model':'moonshine','max_tokens':100"
#define ASK  HEAD ",'messages':[{'role':'user','content':'hi'}]"
#define END  ",'thinking':true,'thinking_effort':'max'}"
static const ms_api_codec *const api = &ms_api_messages;

/* ------------------------------------------------------------------ requests */

static void basics(void **state) {
    (void)state;
    ms_api_request r;
    parse_good(&r, api,
               HEAD
               ",'system':[{'type':'text','text':'x-anthropic-billing-header: cc_version=1; n=2'},"
               "{'type':'text','text':'one','cache_control':{'type':'ephemeral'}},{'type':'text','text':'two'}],"
               "'messages':[{'role':'user','content':'hi'},{'role':'assistant','content':'yo'},{'role':'system',"
               "'content':'now'},{'role':'user','content':[{'type':'text','text':'a'},{'type':'text','text':'b'}]}],"
               "'metadata':{'user_id':'u'},'stop_sequences':['A','B'],'stream':true,'temperature':1,'top_k':5}");
    chat_is(&r, "{'messages':[{'role':'system','content':[{'type':'text','text':'one'},{'type':'text','text':'two'}]},"
                "{'role':'user','content':'hi'},{'role':'assistant','content':'yo'},{'role':'system','content':'now'},"
                "{'role':'user','content':[{'type':'text','text':'a'},{'type':'text','text':'b'}]}]" END);
    assert_string_equal(r.ignored.data, "metadata,system(billing-header),system[].cache_control");
    assert_true(r.stream && r.stop_count == 2 && r.sampled && r.max_tokens == 100);
    ms_api_request_free(&r);
    parse_good(&r, api, ASK ",'system':'be brief'}");
    chat_is(&r, "{'messages':[{'role':'system','content':'be brief'},{'role':'user','content':'hi'}]" END);
    ms_api_request_free(&r);
    parse_good(&r, api, ASK ",'system':[{'type':'text','text':'x-anthropic-billing-header: only'}]}");
    chat_is(&r, "{'messages':[{'role':'user','content':'hi'}]" END);
    ms_api_request_free(&r);
    parse_bad(api, "{'model':'moonshine','messages':[{'role':'user','content':'hi'}]}", 400, "missing_field",
              "max_tokens");
    ms_api_limits l = k3_limits();
    ms_api_error e;
    const char *body = json("{'model':'moonshine','messages':[{'role':'user','content':'hi'}]}");
    assert_true(api->parse(&r, body, strlen(body), &l, true, &e));
    ms_api_request_free(&r);
    parse_bad(api, HEAD "}", 400, "missing_field", "messages");
    parse_bad(api, HEAD ",'messages':[]}", 400, "invalid_value", "messages");
    parse_bad(api, ASK ",'stop_sequences':'A'}", 400, "invalid_type", "stop_sequences");
    parse_bad(api, ASK ",'system':7}", 400, "invalid_type", "system");
    parse_bad(api, ASK ",'system':[{'type':'image'}]}", 400, "unsupported_content_part", "system[0].type");
    parse_bad(api, HEAD ",'messages':[{'role':'tool','content':'x'}]}", 400, "unsupported_role", "messages[0].role");
    parse_bad(api, HEAD ",'messages':[{'role':'user','content':null}]}", 400, "missing_field", "messages[0].content");
    parse_bad(api, HEAD ",'messages':[{'role':'user','content':[{'type':'image','source':{}}]}]}", 400,
              "unsupported_content_part", "messages[0].content[0].type");
    parse_bad(api, HEAD ",'messages':[{'role':'user','content':'x'},{'role':'assistant','content':'{'}]}", 400,
              "assistant_prefill_unsupported", "messages[1]");
    ms_api_request none;
    body = json(ASK ",'thread':{'type':'continue','previous_message_id':'msg_1'}}");
    assert_false(api->parse(&none, body, strlen(body), &l, false, &e));
    assert_string_equal(e.code, "unsupported_parameter");
    ms_text out = {0};
    ms_api_error_document(&out, MS_API_MESSAGES, &e, NULL);
    ms_json_doc *doc = doc_of(&out); /* what the client library looks for before it sends the whole conversation */
    is_text(ms_json_root(doc), "error.details.error_code", "thread_unsupported_request");
    is_text(ms_json_root(doc), "error.details.unsupported[0]", "thread");
    ms_json_free(doc);
    ms_text_free(&out);
    parse_bad(api, "{'model':'moonshine','max_tokens':0,'messages':[]}", 400, "out_of_range", "max_tokens");
}

#define USE(id)       "{'type':'tool_use','id':'" id "','name':'f','input':{'a': 1.50}}"
#define RES(id, more) "{'type':'tool_result','tool_use_id':'" id "'" more "}"

static void tool_turns(void **state) {
    (void)state;
    ms_api_request r;
    parse_good(
        &r, api,
        HEAD
        ",'messages':[{'role':'user','content':'q'},{'role':'assistant','content':["
        "{'type':'thinking','thinking':'hm','signature':'bad'},{'type':'text','text':'I call'}," USE("t1") "," USE(
            "t2") "]},{'role':'user','content':[{'type':'text','text':'note'}," RES("t2",
                                                                                    ",'content':[{'type':'text','text':"
                                                                                    "'r2'}]") "," RES("t1",
                                                                                                      ",'content'"
                                                                                                      ":'r1','is_"
                                                                                                      "error':"
                                                                                                      "true") "]}"
                                                                                                              "]"
                                                                                                              "}");
    chat_is(
        &r,
        "{'messages':[{'role':'user','content':'q'},{'role':'assistant','reasoning_content':'hm','content':'I call',"
        "'tool_calls':[{'type':'function','id':'t1','function':{'name':'f','arguments':{'a': 1.50}}},"
        "{'type':'function','id':'t2','function':{'name':'f','arguments':{'a': 1.50}}}]},"
        "{'role':'tool','tool_call_id':'t1','content':'r1'},{'role':'tool','tool_call_id':'t2','content':'r2'},"
        "{'role':'user','content':'note'}]" END);
    assert_string_equal(r.ignored.data, "messages[].content[].signature,messages[].content[].is_error");
    ms_api_request_free(&r);
    parse_good(&r, api,
               HEAD ",'messages':[{'role':'assistant','content':[" USE("t1") "]},{'role':'user','content':[" RES(
                   "t1", ",'is_error':false") "]}]}");
    assert_null(r.ignored.data);
    ms_api_request_free(&r);
    parse_bad(api, HEAD ",'messages':[{'role':'assistant','content':[" USE("t1") "]},{'role':'user','content':'x'}]}",
              400, "tool_history_invalid", "messages[0]");
    parse_bad(api, HEAD ",'messages':[{'role':'user','content':[" RES("t1", "") "]}]}", 400, "tool_history_invalid",
              "messages[0]");
    parse_bad(api,
              HEAD
              ",'messages':[{'role':'assistant','content':[{'type':'tool_use','id':'a','name':'f','input':'{}'}]}]}",
              400, "invalid_type", "messages[0].content[0].input");
    parse_bad(api, HEAD ",'messages':[{'role':'assistant','content':[{'type':'redacted_thinking','data':'x'}]}]}", 400,
              "unsupported_content_part", "messages[0].content[0].type");
    parse_bad(api,
              HEAD ",'messages':[{'role':'assistant','content':[" USE("t1") "]},{'role':'user','content':[" RES(
                  "t1", ",'content':[{'type':'image'}]") "]}]}",
              400, "unsupported_content_part", "messages[1].content[0].content[0].type");
}

static void tools(void **state) {
    (void)state;
    ms_api_request r;
    parse_good(&r, api,
               ASK ",'tools':[{'name':'f','description':'does','input_schema':{'type':'object'},"
                   "'cache_control':{}},{'type':'web_search_20250305','name':'web_search'},{'type':'custom','name':'g',"
                   "'input_schema':{}}],'tool_choice':{'type':'tool','name':'g','disable_parallel_tool_use':true}}");
    chat_is(
        &r,
        "{'messages':[{'role':'user','content':'hi'}],'tools':[{'type':'function','function':{'name':'f',"
        "'description':'does','parameters':{'type':'object'}}},{'type':'function','function':{'name':'g',"
        "'parameters':{}}}],'tool_choice':{'type':'function','function':{'name':'g'}},'parallel_tool_calls':false" END);
    assert_string_equal(r.ignored_tools.data, "web_search_20250305");
    assert_string_equal(r.ignored.data, "tools[].cache_control");
    assert_true(r.tool_count == 2 && r.tool_choice == MS_TOOLS_NAMED && r.tool_allowed[1] && !r.tool_allowed[0]);
    ms_api_request_free(&r);
#define WITH(choice) ASK ",'tools':[{'name':'f','input_schema':{}}],'tool_choice':" choice "}"
    parse_good(&r, api, WITH("{'type':'any'}"));
    assert_int_equal(r.tool_choice, MS_TOOLS_REQUIRED);
    ms_api_request_free(&r);
    parse_good(&r, api, WITH("{'type':'none'}"));
    assert_int_equal(r.tool_choice, MS_TOOLS_NONE);
    ms_api_request_free(&r);
    parse_bad(api, WITH("'auto'"), 400, "invalid_type", "tool_choice");
    parse_bad(api, WITH("{'type':'x'}"), 400, "invalid_tool_choice", "tool_choice.type");
    parse_bad(api, WITH("{'type':'tool'}"), 400, "missing_field", "tool_choice.name");
    parse_bad(api, WITH("{'type':'tool','name':'zz'}"), 400, "invalid_tool_choice", "tool_choice");
    parse_bad(api, ASK ",'tool_choice':{'type':'any'}}", 400, "invalid_tool_choice", "tool_choice");
    parse_bad(api, ASK ",'tools':[{'name':'f','input_schema':{'type':'array'}}]}", 400, "invalid_tool",
              "tools[0].input_schema.type");
    parse_bad(api, ASK ",'tools':[{'description':'f'}]}", 400, "missing_field", "tools[0].name");
}

static void thinking(void **state) {
    (void)state;
    ms_api_request r;
    parse_good(&r, api, ASK ",'thinking':{'type':'enabled','budget_tokens':2000},'output_config':{'effort':'low'}}");
    assert_string_equal(r.effort, "low");
    assert_string_equal(r.ignored.data, "thinking.budget_tokens");
    ms_api_request_free(&r);
    parse_good(&r, api,
               ASK ",'thinking':{'type':'adaptive'},'output_config':{'format':{'type':'json_schema','schema':{}}}}");
    assert_true(r.thinking && r.format == MS_API_JSON_SCHEMA && r.schema);
    ms_api_request_free(&r);
    parse_bad(api, ASK ",'thinking':{'type':'disabled'}}", 400, "unsupported_value", "thinking");
    parse_bad(api, ASK ",'output_config':{'effort':'xhigh'}}", 400, "unsupported_value", "output_config.effort");
    parse_bad(api, ASK ",'output_config':{'format':{'type':'json_object'}}}", 400, "unsupported_value",
              "output_config.format.type");
    ms_api_limits l = greedy_limits();
    parse_good_with(&r, api, &l, ASK ",'thinking':{'type':'disabled'}}");
    assert_false(r.thinking);
    ms_api_request_free(&r);
}

/* ------------------------------------------------------------------ replies */

static const reply full = {
    .reasoning = "Think \xf0\x9f\x98\x80\xe6\xbc\xa2 \"x\"\n",
    .content = "Answer \xf0\x9f\x8e\x89\xf0\x9f\x8e\x89 \\",
    .calls = {{"get_weather", "{\"city\":\"Z\xc3\xbcrich \xf0\x9f\x8c\xa7\",\"n\":1.50}"}, {"none", ""}},
    .call_count = 2,
    .finish = MS_API_TOOL_CALLS};

static void document(void **state) {
    (void)state;
    ms_api_request r;
    parse_good(&r, api, ASK "}");
    ms_text out = write_reply(api, &r, &full, 0);
    ms_json_doc *doc = doc_of(&out);
    const ms_json *d = ms_json_root(doc);
    is_text(d, "id", "msg_00112233445566778899aabbccddeeff");
    is_text(d, "type", "message");
    is_text(d, "role", "assistant");
    is_text(d, "content[0].thinking", full.reasoning);
    const ms_json *sign = at(d, "content[0].signature");
    assert_true(ms_api_sign_good(r.key, full.reasoning, strlen(full.reasoning), sign->str, sign->str_len));
    is_text(d, "content[1].text", full.content);
    is_text(d, "content[2].type", "tool_use");
    is_text(d, "content[2].name", "get_weather");
    is_text(d, "content[2].input.city", "Z\xc3\xbcrich \xf0\x9f\x8c\xa7");
    assert_memory_equal(at(d, "content[2].input.n")->raw, "1.50", 4);
    assert_memory_equal(text_at(d, "content[2].id"), "toolu_", 6);
    assert_int_equal(at(d, "content[3].input")->count, 0);
    assert_int_equal(at(d, "content")->count, 4);
    is_text(d, "stop_reason", "tool_use");
    assert_int_equal(at(d, "stop_sequence")->type, MS_JSON_NULL);
    is_number(d, "usage.input_tokens", 20);
    is_number(d, "usage.cache_read_input_tokens", 10);
    is_number(d, "usage.cache_creation_input_tokens", 0);
    is_number(d, "usage.output_tokens", 12);
    ms_json_free(doc);
    ms_text_free(&out);
    static const struct {
        ms_api_finish finish;
        const char *stop, *reason;
    } ends[] = {{MS_API_STOP, NULL, "end_turn"},
                {MS_API_STOP_STRING, "STOP", "stop_sequence"},
                {MS_API_LENGTH, NULL, "max_tokens"}};
    for (size_t i = 0; i < 3; i++) {
        out = write_reply(api, &r, &(reply){.content = "x", .finish = ends[i].finish, .stop = ends[i].stop}, 0);
        doc = doc_of(&out);
        is_text(ms_json_root(doc), "stop_reason", ends[i].reason);
        if (ends[i].stop) is_text(ms_json_root(doc), "stop_sequence", ends[i].stop);
        is_text(ms_json_root(doc), "content[0].thinking", ""); /* thinking was on: a replay can say so */
        is_text(ms_json_root(doc), "content[1].text", "x");
        ms_json_free(doc);
        ms_text_free(&out);
    }
    reply raw = {.calls = {{"f", "{broken"}}, .call_count = 1, .finish = MS_API_TOOL_CALLS};
    out = write_reply(api, &r, &raw, 0);
    doc = doc_of(&out);
    is_text(ms_json_root(doc), "content[1].input.raw_arguments", "{broken");
    ms_json_free(doc);
    ms_text_free(&out);
    ms_api_request_free(&r);
}

/* The document that a strict client assembles; fails on any event out of order. */
typedef struct assembly {
    ms_text blocks[6], ids[6];
    char types[6][16];
    size_t count;
    bool open, stopped, signed_;
    size_t pings;
} assembly;

static void take_delta(assembly *a, const ms_json *d) {
    const char *type = text_at(d, "delta.type"), *block = a->types[a->count - 1];
    assert_true(a->open && !a->signed_);
    ms_text *t = &a->blocks[a->count - 1];
    if (strcmp(type, "thinking_delta") == 0) {
        assert_string_equal(block, "thinking");
        ms_text_puts(t, text_at(d, "delta.thinking"));
    } else if (strcmp(type, "signature_delta") == 0) {
        assert_string_equal(block, "thinking");
        ms_text_puts(&a->ids[a->count - 1], text_at(d, "delta.signature"));
        a->signed_ = true;
    } else if (strcmp(type, "text_delta") == 0) {
        assert_string_equal(block, "text");
        ms_text_puts(t, text_at(d, "delta.text"));
    } else {
        assert_string_equal(type, "input_json_delta");
        assert_string_equal(block, "tool_use");
        ms_text_puts(t, text_at(d, "delta.partial_json"));
    }
}

static void take_event(assembly *a, const sse_event *e, size_t i, size_t last) {
    const ms_json *d = ms_json_root(e->doc);
    const char *type = text_at(d, "type");
    assert_string_equal(e->event, type);
    assert_int_equal(strcmp(type, "message_start") == 0, i == 0);
    assert_int_equal(strcmp(type, "message_stop") == 0, i == last);
    if (strcmp(type, "ping") == 0) {
        a->pings++;
    } else if (strcmp(type, "content_block_start") == 0) {
        assert_false(a->open || a->stopped);
        is_number(d, "index", (long long)a->count);
        (void)snprintf(a->types[a->count], sizeof a->types[0], "%s", text_at(d, "content_block.type"));
        if (strcmp(a->types[a->count], "tool_use") == 0) {
            assert_int_equal(at(d, "content_block.input")->count, 0);
            ms_text_puts(&a->ids[a->count], text_at(d, "content_block.id"));
        }
        a->count++;
        a->open = true;
        a->signed_ = false;
    } else if (strcmp(type, "content_block_delta") == 0) {
        is_number(d, "index", (long long)a->count - 1);
        take_delta(a, d);
    } else if (strcmp(type, "content_block_stop") == 0) {
        assert_true(a->open);
        assert_int_equal(a->signed_, strcmp(a->types[a->count - 1], "thinking") == 0);
        is_number(d, "index", (long long)a->count - 1);
        a->open = false;
    } else if (strcmp(type, "message_delta") == 0) {
        assert_false(a->open || a->stopped);
        is_text(d, "delta.stop_reason", "tool_use");
        is_number(d, "usage.output_tokens", 12);
        a->stopped = true;
    } else if (i == 0) {
        is_number(d, "message.usage.input_tokens", 20);
        is_number(d, "message.usage.cache_read_input_tokens", 10);
        assert_int_equal(at(d, "message.content")->count, 0);
        assert_int_equal(at(d, "message.stop_reason")->type, MS_JSON_NULL);
    } else {
        assert_int_equal(i, last);
        assert_true(a->stopped);
    }
}

static void stream_equals_document(void **state) {
    (void)state;
    ms_api_request r;
    parse_good(&r, api, ASK ",'stream':true}");
    for (unsigned seed = 0; seed < 250; seed++) {
        ms_text out = write_reply(api, &r, &full, seed);
        sse s = sse_read(&out);
        assembly a = {0};
        for (size_t i = 0; i < s.count; i++) take_event(&a, &s.items[i], i, s.count - 1);
        assert_int_equal(a.count, 4);
        assert_true(a.pings || !seed);
        assert_string_equal(a.types[0], "thinking");
        assert_string_equal(a.types[3], "tool_use");
        assert_string_equal(a.blocks[0].data, full.reasoning);
        assert_string_equal(a.blocks[1].data, full.content);
        assert_string_equal(a.blocks[2].data, full.calls[0].arguments);
        assert_true(ms_api_sign_good(r.key, full.reasoning, strlen(full.reasoning), a.ids[0].data, a.ids[0].len));
        assert_string_not_equal(a.ids[2].data, a.ids[3].data);
        for (size_t i = 0; i < 6; i++) {
            ms_text_free(&a.blocks[i]);
            ms_text_free(&a.ids[i]);
        }
        sse_free(&s);
        ms_text_free(&out);
    }
    ms_api_request_free(&r);
}

static void replayed_signature(void **state) {
    (void)state;
    ms_api_request r;
    ms_text body = {0}, sign = {0};
    ms_api_limits l = k3_limits();
    ms_api_sign(&sign, l.key, "hm \xc3\xa4", 5);
    ms_text_printf(&body,
                   HEAD ",'messages':[{'role':'assistant','content':[{'type':'thinking','thinking':'hm \xc3\xa4',"
                        "'signature':'%s'},{'type':'text','text':'x'}]},{'role':'user','content':'y'}]}",
                   sign.data);
    parse_good(&r, api, body.data);
    assert_null(r.ignored.data);
    ms_api_request_free(&r);
    l.key[0] ^= 1;
    parse_good_with(&r, api, &l, body.data);
    assert_string_equal(r.ignored.data, "messages[].content[].signature");
    is_text(ms_json_root(r.chat_doc), "messages[0].reasoning_content", "hm \xc3\xa4");
    ms_api_request_free(&r);
    ms_text_free(&body);
    ms_text_free(&sign);
}

/* HMAC-SHA-256 under HMAC-SHA-256(key, "signature"), computed elsewhere: replays of old versions stay good. */
static void known_signature(void **state) {
    (void)state;
    ms_text sign = {0};
    ms_api_limits l = k3_limits();
    ms_api_sign(&sign, l.key, "hm", 2);
    assert_string_equal(sign.data, "FOulj8lLuqQVlLLHiHnWEzBP4VU5mQ2WehgbXuHor08=");
    assert_true(ms_api_sign_good(l.key, "hm", 2, sign.data, sign.len));
    assert_false(ms_api_sign_good(l.key, "hm", 2, sign.data, sign.len - 1));
    assert_false(ms_api_sign_good(l.key, "hn", 2, sign.data, sign.len));
    ms_text_free(&sign);
}

#define USER_BLOCK(b)  HEAD ",'messages':[{'role':'user','content':[" b "]}]}"
#define MODEL_BLOCK(b) HEAD ",'messages':[{'role':'assistant','content':[" b "]},{'role':'user','content':'x'}]}"

static void types_and_paths(void **state) {
    (void)state;
    parse_bad(api, HEAD ",'messages':{}}", 400, "invalid_type", "messages");
    parse_bad(api, HEAD ",'messages':[7]}", 400, "invalid_type", "messages[0]");
    parse_bad(api, HEAD ",'messages':[{'content':'x'}]}", 400, "missing_field", "messages[0].role");
    parse_bad(api, HEAD ",'messages':[{'role':'user','content':7}]}", 400, "invalid_type", "messages[0].content");
    parse_bad(api, USER_BLOCK("7"), 400, "invalid_type", "messages[0].content[0]");
    parse_bad(api, USER_BLOCK("{'text':'x'}"), 400, "missing_field", "messages[0].content[0].type");
    parse_bad(api, USER_BLOCK("{'type':'text'}"), 400, "missing_field", "messages[0].content[0].text");
    parse_bad(api, USER_BLOCK("{'type':'text','text':7}"), 400, "invalid_type", "messages[0].content[0].text");
    parse_bad(api, USER_BLOCK("{'type':'tool_result'}"), 400, "missing_field", "messages[0].content[0].tool_use_id");
    parse_bad(api, USER_BLOCK("{'type':'tool_result','tool_use_id':''}"), 400, "invalid_value",
              "messages[0].content[0].tool_use_id");
    parse_bad(api, USER_BLOCK("{'type':'tool_result','tool_use_id':'a','content':7}"), 400, "invalid_type",
              "messages[0].content[0].content");
    parse_bad(api, USER_BLOCK("{'type':'tool_result','tool_use_id':'a','content':[7]}"), 400, "invalid_type",
              "messages[0].content[0].content[0]");
    parse_bad(api, USER_BLOCK("{'type':'tool_result','tool_use_id':'a','content':[{'type':'text'}]}"), 400,
              "missing_field", "messages[0].content[0].content[0].text");
    parse_bad(api, USER_BLOCK("{'type':'tool_result','tool_use_id':'a','is_error':1}"), 400, "invalid_type",
              "messages[0].content[0].is_error");
    parse_bad(api, MODEL_BLOCK("7"), 400, "invalid_type", "messages[0].content[0]");
    parse_bad(api, MODEL_BLOCK("{'type':'thinking'}"), 400, "missing_field", "messages[0].content[0].thinking");
    parse_bad(api, MODEL_BLOCK("{'type':'thinking','thinking':'x','signature':7}"), 400, "invalid_type",
              "messages[0].content[0].signature");
    parse_bad(api, MODEL_BLOCK("{'type':'tool_use','name':'f','input':{}}"), 400, "missing_field",
              "messages[0].content[0].id");
    parse_bad(api, MODEL_BLOCK("{'type':'tool_use','id':'a','input':{}}"), 400, "missing_field",
              "messages[0].content[0].name");
    parse_bad(api, MODEL_BLOCK("{'type':'tool_use','id':'a','name':'f'}"), 400, "missing_field",
              "messages[0].content[0].input");
    parse_bad(api, ASK ",'system':[7]}", 400, "invalid_type", "system[0]");
    parse_bad(api, ASK ",'system':[{'type':'text','text':7}]}", 400, "invalid_type", "system[0].text");
    parse_bad(api, ASK ",'tools':{}}", 400, "invalid_type", "tools");
    parse_bad(api, ASK ",'tools':[7]}", 400, "invalid_type", "tools[0]");
    parse_bad(api, ASK ",'tools':[{'type':7}]}", 400, "invalid_type", "tools[0].type");
    parse_bad(api, WITH("{}"), 400, "missing_field", "tool_choice.type");
    parse_bad(api, WITH("{'type':'auto','disable_parallel_tool_use':1}"), 400, "invalid_type",
              "tool_choice.disable_parallel_tool_use");
    parse_bad(api, ASK ",'output_config':7}", 400, "invalid_type", "output_config");
    parse_bad(api, ASK ",'output_config':{'format':7}}", 400, "invalid_type", "output_config.format");
    parse_bad(api, ASK ",'output_config':{'format':{'type':'json_schema'}}}", 400, "missing_field",
              "output_config.format.schema");
    parse_bad(api, ASK ",'thinking':true}", 400, "invalid_type", "thinking");
    parse_bad(api, ASK ",'stream':1}", 400, "invalid_type", "stream");
    parse_bad(api, ASK ",'mcp_servers':[{}]}", 400, "unsupported_value", "mcp_servers");
    parse_bad(api, ASK ",'container':'c'}", 400, "unsupported_parameter", "container");
}

static void errors(void **state) {
    (void)state;
    ms_api_request r;
    ms_api_error e;
    (void)ms_api_fail(&e, 503, "server_shutdown", NULL, "the server stops");
    parse_good(&r, api, ASK ",'stream':true}");
    ms_text out = write_reply(api, &r, &(reply){.reasoning = "x", .error = &e}, 0);
    sse s = sse_read(&out);
    const sse_event *last = &s.items[s.count - 1];
    assert_string_equal(last->event, "error");
    is_text(ms_json_root(last->doc), "type", "error");
    is_text(ms_json_root(last->doc), "error.type", "overloaded_error");
    is_text(ms_json_root(last->doc), "request_id", "req_1");
    sse_free(&s);
    ms_text_free(&out);
    ms_api_request_free(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(basics),          cmocka_unit_test(tool_turns),
                                       cmocka_unit_test(tools),           cmocka_unit_test(thinking),
                                       cmocka_unit_test(document),        cmocka_unit_test(stream_equals_document),
                                       cmocka_unit_test(errors),          cmocka_unit_test(replayed_signature),
                                       cmocka_unit_test(known_signature), cmocka_unit_test(types_and_paths)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
