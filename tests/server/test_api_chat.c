/* test_api_chat.c: chat completions requests: every rule. */
#include "api_test.h"

#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#define BEGIN    "{'model':'moonshine','messages':[{'role':'user','content':'hi'}]"
#define MESSAGES "{'model':'moonshine','messages':"
static const ms_api_codec *const chat = &ms_api_chat;

static void good(const char *text) {
    ms_api_request r;
    parse_good(&r, chat, text);
    ms_api_request_free(&r);
}

/* ------------------------------------------------------------------ JSON rules */

static void json_rules(void **state) {
    (void)state;
    parse_bad(chat, "", 400, "invalid_json", "");
    parse_bad(chat, "[]", 400, "invalid_json", "");
    parse_bad(chat, "{} x", 400, "invalid_json", "");
    parse_bad(chat, "{'a':1,}", 400, "invalid_json", "");
    parse_bad(chat, "{'a':NaN}", 400, "invalid_json", "");
    parse_bad(chat, "{'a':/**/1}", 400, "invalid_json", "");
    parse_bad(chat, "{'a':'\n'}", 400, "invalid_json", "");
    parse_bad(chat, "{'a':'\xff'}", 400, "invalid_json", "");
    parse_bad(chat, "{'a':'\xed\xa0\x80'}", 400, "invalid_json", "");
    assert_string_equal(parse_bad(chat, "{'secret':secret}", 400, "invalid_json", ""),
                        "the body is not valid JSON at byte 10");
    assert_string_equal(parse_bad(chat, "\xef\xbb\xbf{'secret':x", 400, "invalid_json", ""),
                        "the body is not valid JSON at byte 13");
    assert_string_equal(parse_bad(chat, BEGIN ",'x':{'a':[{'k':1,'k':2}]}}", 400, "duplicate_key", ""),
                        "an object has a key twice; second value at byte 86");
    char deep[400] = "{\"model\":\"moonshine\",\"a\":";
    size_t n = strlen(deep);
    memset(deep + n, '[', 128);
    parse_bad_n(chat, deep, n + 128, 400, "json_too_deep", "");
    parse_bad_n(chat, "{}\0", 3, 400, "invalid_json", "");
    good("\xef\xbb\xbf" BEGIN "}");
}

static void depth_of_unread_values(void **state) {
    (void)state;
    ms_text t = {0};
    ms_text_puts(&t, json(BEGIN ",'x':"));
    for (int i = 0; i < 127; i++) ms_text_puts(&t, "[");
    for (int i = 0; i < 127; i++) ms_text_puts(&t, "]");
    ms_text_puts(&t, "}");
    good(t.data);
    ms_text_free(&t);
}

static void surrogates(void **state) {
    (void)state;
    ms_api_request r;
    parse_good(&r, chat, MESSAGES "[{'role':'user','content':'a\\ud83d b\\ude00 \\ud83d\\ude00'}]}");
    assert_int_equal(r.repaired_surrogates, 2);
    const ms_json *root = ms_json_root(r.chat_doc);
    is_text(root, "messages[0].content", "a\xef\xbf\xbd b\xef\xbf\xbd \xf0\x9f\x98\x80");
    ms_api_request_free(&r);
}

static void nul_is_a_character(void **state) {
    (void)state;
    ms_api_request r;
    parse_good(&r, chat, MESSAGES "[{'role':'user','content':'a\\u0000b'}],'stop':'x\\u0000y'}");
    const ms_json *content = at(ms_json_root(r.chat_doc), "messages[0].content");
    assert_int_equal(content->str_len, 3);
    assert_memory_equal(content->str, "a\0b", 3);
    assert_int_equal(r.stops[0].len, 3);
    ms_api_request_free(&r);
    parse_bad(chat, "{'model':'moon\\u0000','messages':[]}", 400, "invalid_value", "model");
    parse_bad(chat, MESSAGES "[{'role':'user','content':'','name':'a\\u0000'}]}", 400, "invalid_value",
              "messages[0].name");
}

static void null_is_absent(void **state) {
    (void)state;
    good(
        "{'model':'moonshine','messages':[{'role':'user','content':'hi','name':null,'reasoning_content':null,"
        "'tool_calls':null,'tool_call_id':null,'tools':null,'audio':null}],'stream':null,'stream_options':null,"
        "'max_tokens':null,'max_completion_tokens':null,'tools':null,'tool_choice':null,'parallel_tool_calls':null,"
        "'response_format':null,'reasoning_effort':null,'thinking':null,'chat_template_kwargs':null,'temperature':null,"
        "'top_p':null,'top_k':null,'min_p':null,'seed':null,'stop':null,'logprobs':null,'top_logprobs':null,'n':null,"
        "'logit_bias':null,'functions':null,'audio':null,'store':null,'grammar':null,'user':null}");
    parse_bad(chat, "{'model':null,'messages':[]}", 400, "missing_field", "model");
    parse_bad(chat, MESSAGES "null}", 400, "missing_field", "messages");
}

static void types_and_paths(void **state) {
    (void)state;
    assert_string_equal(parse_bad(chat, BEGIN ",'stream':'true'}", 400, "invalid_type", "stream"),
                        "stream: expected true or false, found a string");
    static const char *const found[][2] = {
        {"7", "a number"}, {"true", "true"}, {"false", "false"}, {"[]", "an array"}, {"{}", "an object"}};
    for (size_t i = 0; i < 5; i++) {
        char body[64], why[64];
        (void)snprintf(body, sizeof body, "{'model':%s}", found[i][0]);
        (void)snprintf(why, sizeof why, "model: expected a string, found %s", found[i][1]);
        assert_string_equal(parse_bad(chat, body, 400, "invalid_type", "model"), why);
    }
    parse_bad(chat, MESSAGES "{}}", 400, "invalid_type", "messages");
    parse_bad(chat, MESSAGES "[]}", 400, "invalid_value", "messages");
    parse_bad(chat, MESSAGES "[7]}", 400, "invalid_type", "messages[0]");
    parse_bad(chat,
              MESSAGES "[{'role':'user','content':'a'},{'role':'user','content':[{'type':'text','text':'x'},"
                       "{'type':'text','text':7}]}]}",
              400, "invalid_type", "messages[1].content[1].text");
    parse_bad(chat, MESSAGES "[{'role':'user','content':[7]}]}", 400, "invalid_type", "messages[0].content[0]");
    parse_bad(chat, MESSAGES "[{'role':'user','content':{}}]}", 400, "invalid_type", "messages[0].content");
    parse_bad(chat, BEGIN ",'tools':{}}", 400, "invalid_type", "tools");
    parse_bad(chat, BEGIN ",'response_format':'json'}", 400, "invalid_type", "response_format");
    parse_bad(chat, BEGIN ",'stream_options':true}", 400, "invalid_type", "stream_options");
}

static void integers(void **state) {
    (void)state;
    ms_api_request r;
    parse_bad(chat, BEGIN ",'max_tokens':1.0}", 400, "invalid_type", "max_tokens");
    parse_bad(chat, BEGIN ",'max_tokens':1e2}", 400, "invalid_type", "max_tokens");
    parse_bad(chat, BEGIN ",'max_tokens':'5'}", 400, "invalid_type", "max_tokens");
    assert_string_equal(parse_bad(chat, BEGIN ",'max_tokens':0}", 400, "out_of_range", "max_tokens"),
                        "max_tokens: expected an integer in [1,8192]");
    parse_bad(chat, BEGIN ",'max_tokens':-1}", 400, "out_of_range", "max_tokens");
    parse_bad(chat, BEGIN ",'max_tokens':8193}", 400, "out_of_range", "max_tokens");
    parse_bad(chat, BEGIN ",'max_tokens':99999999999999999999999}", 400, "out_of_range", "max_tokens");
    parse_bad(chat, BEGIN ",'max_completion_tokens':0,'max_tokens':5}", 400, "out_of_range", "max_completion_tokens");
    parse_good(&r, chat, BEGIN ",'max_completion_tokens':7,'max_tokens':99999}");
    assert_int_equal(r.max_tokens, 7);
    assert_string_equal(r.ignored.data, "max_tokens");
    ms_api_request_free(&r);
    parse_good(&r, chat, BEGIN "}");
    assert_int_equal(r.max_tokens, 256);
    assert_false(r.clamped);
    ms_api_request_free(&r);
    ms_api_limits l = k3_limits();
    l.clamp_max_tokens = true;
    parse_good_with(&r, chat, &l, BEGIN ",'max_tokens':99999999999999999999999}");
    assert_int_equal(r.max_tokens, 8192);
    assert_true(r.clamped);
    ms_api_request_free(&r);
    parse_bad_with(chat, &l, BEGIN ",'max_tokens':-99999999999999999999999}", 400, "out_of_range", "max_tokens");
    l.max_output_ceiling = 100;
    parse_good_with(&r, chat, &l, BEGIN "}");
    assert_int_equal(r.max_tokens, 100);
    ms_api_request_free(&r);
    parse_good(&r, chat, BEGIN ",'seed':-9223372036854775808,'temperature':1}");
    assert_true(r.has_seed && r.seed == INT64_MIN);
    ms_api_request_free(&r);
    parse_bad(chat, BEGIN ",'seed':9223372036854775808}", 400, "out_of_range", "seed");
    parse_bad(chat, BEGIN ",'n':1.5}", 400, "unsupported_value", "n");
}

/* ------------------------------------------------------------------ fields */

static void field_classes(void **state) {
    (void)state;
    ms_api_request r;
    parse_good(&r, chat,
               MESSAGES
               "[{'role':'user','content':[{'type':'text','text':'a','cache_control':{}},"
               "{'type':'text','text':'b','cache_control':{}}],'whatever':1,'refusal':'','annotations':[],'id':'m1'}],"
               "'user':'u','metadata':{},'store':false,'service_tier':'auto','prompt_cache_key':'k','verbosity':'low',"
               "'new field':1,'stream':true,'stream_options':{'include_obfuscation':true},'seed':4,'logit_bias':{},"
               "'presence_penalty':0,'frequency_penalty':0.0,'n':1,'modalities':['text']}");
    assert_string_equal(r.ignored.data, "stream_options.include_obfuscation,seed,user,metadata,store,service_tier,"
                                        "prompt_cache_key,verbosity,unnamed,messages[].content[].cache_control,"
                                        "messages[].whatever,messages[].id");
    ms_api_request_free(&r);
    static const char *const refused[][3] = {{"'n':2", "n", "unsupported_value"},
                                             {"'presence_penalty':0.1", "presence_penalty", "unsupported_value"},
                                             {"'frequency_penalty':-1", "frequency_penalty", "unsupported_value"},
                                             {"'logit_bias':{'5':1}", "logit_bias", "unsupported_value"},
                                             {"'functions':[]", "functions", "unsupported_parameter"},
                                             {"'function_call':'auto'", "function_call", "unsupported_parameter"},
                                             {"'modalities':['audio']", "modalities", "unsupported_value"},
                                             {"'audio':{}", "audio", "unsupported_parameter"},
                                             {"'prediction':{}", "prediction", "unsupported_parameter"},
                                             {"'web_search_options':{}", "web_search_options", "unsupported_parameter"},
                                             {"'store':true", "store", "unsupported_value"},
                                             {"'store':1", "store", "invalid_type"},
                                             {"'n':'1'", "n", "invalid_type"},
                                             {"'grammar':''", "grammar", "unsupported_parameter"},
                                             {"'guided_json':{}", "guided_json", "unsupported_parameter"},
                                             {"'guided_regex':'x'", "guided_regex", "unsupported_parameter"},
                                             {"'json_schema':{}", "json_schema", "unsupported_parameter"}};
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        char body[300];
        (void)snprintf(body, sizeof body, "%s,%s}", BEGIN, refused[i][0]);
        const char *why = parse_bad(chat, body, 400, refused[i][2], refused[i][1]);
        if (strncmp(refused[i][1], "guided_", 7) == 0) assert_non_null(strstr(why, "response_format"));
    }
    assert_non_null(
        strstr(parse_bad(chat, BEGIN ",'functions':[]}", 400, "unsupported_parameter", "functions"), "use tools"));
}

static void ignored_list_is_bounded(void **state) {
    (void)state;
    ms_text t = {0};
    ms_text_puts(&t, json(BEGIN));
    for (int i = 0; i < 3000; i++) ms_text_printf(&t, ",\"field_%d\":1", i);
    ms_text_puts(&t, "}");
    ms_api_request r;
    parse_good(&r, chat, t.data);
    assert_true(r.ignored.len > 1900 && r.ignored.len <= 2048);
    ms_api_request_free(&r);
    ms_text_free(&t);
}

static void models(void **state) {
    (void)state;
    good("{'model':'other','messages':[{'role':'user','content':'hi'}]}");
    const char *why = parse_bad(chat, "{'model':'secret-model','messages':[]}", 404, "model_not_found", "model");
    assert_null(strstr(why, "secret"));
    parse_bad(chat, "{'messages':[]}", 400, "missing_field", "model");
    parse_bad(chat, "{'model':'','messages':[]}", 400, "invalid_value", "model");
    ms_api_limits l = k3_limits();
    l.any_model = true;
    ms_api_request r;
    parse_good_with(&r, chat, &l, "{'model':'anything','messages':[{'role':'user','content':'hi'}]}");
    ms_api_request_free(&r);
}

static void sampling(void **state) {
    (void)state;
    ms_api_request r;
    parse_good(&r, chat, BEGIN ",'temperature':0.7,'top_p':0.9,'top_k':40,'min_p':0.05,'seed':3}");
    assert_true(r.sampled && r.has_seed && r.seed == 3 && r.top_k == 40);
    assert_true(r.temperature > 0.69 && r.temperature < 0.71 && r.top_p > 0.89 && r.min_p > 0.04);
    assert_null(r.ignored.data);
    ms_api_request_free(&r);
    parse_good(&r, chat, BEGIN ",'temperature':1,'top_k':1}");
    assert_false(r.sampled);
    ms_api_request_free(&r);
    parse_good(&r, chat, BEGIN ",'top_p':0.5}");
    assert_false(r.sampled);
    ms_api_request_free(&r);
    parse_bad(chat, BEGIN ",'temperature':2.1}", 400, "out_of_range", "temperature");
    parse_bad(chat, BEGIN ",'temperature':-0.1}", 400, "out_of_range", "temperature");
    parse_bad(chat, BEGIN ",'temperature':'1'}", 400, "invalid_type", "temperature");
    parse_bad(chat, BEGIN ",'temperature':1e999}", 400, "out_of_range", "temperature");
    parse_bad(chat, BEGIN ",'top_p':0}", 400, "out_of_range", "top_p");
    parse_bad(chat, BEGIN ",'top_p':1.01}", 400, "out_of_range", "top_p");
    parse_bad(chat, BEGIN ",'min_p':1}", 400, "out_of_range", "min_p");
    parse_bad(chat, BEGIN ",'top_k':-1}", 400, "out_of_range", "top_k");
    ms_api_limits l = greedy_limits();
    parse_good_with(&r, chat, &l, BEGIN ",'temperature':0,'top_p':1,'top_k':1,'min_p':0.0}");
    ms_api_request_free(&r);
    parse_bad_with(chat, &l, BEGIN ",'temperature':0.1}", 400, "unsupported_value", "temperature");
    parse_bad_with(chat, &l, BEGIN ",'top_p':0.9}", 400, "unsupported_value", "top_p");
    parse_bad_with(chat, &l, BEGIN ",'top_k':2}", 400, "unsupported_value", "top_k");
    parse_bad_with(chat, &l, BEGIN ",'min_p':0.1}", 400, "unsupported_value", "min_p");
}

static void stops(void **state) {
    (void)state;
    ms_api_request r;
    parse_good(&r, chat, BEGIN ",'stop':'END'}");
    assert_int_equal(r.stop_count, 1);
    assert_memory_equal(r.stops[0].text, "END", 3);
    ms_api_request_free(&r);
    parse_good(&r, chat, BEGIN ",'stop':['a','b','c','d']}");
    assert_int_equal(r.stop_count, 4);
    ms_api_request_free(&r);
    parse_bad(chat, BEGIN ",'stop':[]}", 400, "out_of_range", "stop");
    parse_bad(chat, BEGIN ",'stop':['a','b','c','d','e']}", 400, "out_of_range", "stop");
    parse_bad(chat, BEGIN ",'stop':''}", 400, "out_of_range", "stop");
    parse_bad(chat, BEGIN ",'stop':['a','']}", 400, "out_of_range", "stop[1]");
    parse_bad(chat, BEGIN ",'stop':['a',7]}", 400, "invalid_type", "stop[1]");
    parse_bad(chat, BEGIN ",'stop':7}", 400, "invalid_type", "stop");
    char body[600];
    (void)snprintf(body, sizeof body, "%s,'stop':'%0257d'}", BEGIN, 0);
    parse_bad(chat, body, 400, "out_of_range", "stop");
    (void)snprintf(body, sizeof body, "%s,'stop':'%0256d'}", BEGIN, 0);
    good(body);
}

static void logprobs(void **state) {
    (void)state;
    ms_api_request r;
    parse_good(&r, chat, BEGIN ",'logprobs':true,'top_logprobs':20}");
    assert_true(r.logprobs && r.top_logprobs == 20);
    ms_api_request_free(&r);
    parse_bad(chat, BEGIN ",'top_logprobs':2}", 400, "invalid_value", "top_logprobs");
    parse_bad(chat, BEGIN ",'logprobs':true,'top_logprobs':21}", 400, "out_of_range", "top_logprobs");
    parse_bad(chat, BEGIN ",'logprobs':3}", 400, "invalid_type", "logprobs");
    ms_api_limits l = greedy_limits();
    parse_bad_with(chat, &l, BEGIN ",'logprobs':true}", 400, "unsupported_parameter", "logprobs");
    parse_good_with(&r, chat, &l, BEGIN ",'logprobs':false}");
    ms_api_request_free(&r);
}

static void efforts(void **state) {
    (void)state;
    ms_api_request r;
    parse_good(&r, chat, BEGIN "}");
    chat_is(&r, "{'messages':[{'role':'user','content':'hi'}],'thinking':true,'thinking_effort':'max'}");
    ms_api_request_free(&r);
    parse_good(&r, chat,
               BEGIN ",'reasoning_effort':'low','thinking':{'type':'enabled'},"
                     "'chat_template_kwargs':{'thinking':true}}");
    assert_string_equal(r.effort, "low");
    ms_api_request_free(&r);
    assert_string_equal(
        parse_bad(chat, BEGIN ",'reasoning_effort':'minimal'}", 400, "unsupported_value", "reasoning_effort"),
        "reasoning_effort: expected one of low, medium, high, max");
    parse_bad(chat, BEGIN ",'reasoning_effort':'none'}", 400, "unsupported_value", "reasoning_effort");
    parse_bad(chat, BEGIN ",'reasoning_effort':1}", 400, "invalid_type", "reasoning_effort");
    parse_bad(chat, BEGIN ",'thinking':{'type':'disabled'}}", 400, "unsupported_value", "thinking");
    parse_bad(chat, BEGIN ",'thinking':{'type':'on'}}", 400, "invalid_value", "thinking.type");
    parse_bad(chat, BEGIN ",'thinking':{}}", 400, "missing_field", "thinking.type");
    parse_bad(chat, BEGIN ",'chat_template_kwargs':{'thinking':false}}", 400, "unsupported_value",
              "chat_template_kwargs");
    parse_bad(chat, BEGIN ",'chat_template_kwargs':{'other':1}}", 400, "unsupported_parameter",
              "chat_template_kwargs.other");
    parse_bad(chat, BEGIN ",'chat_template_kwargs':{'thinking':1}}", 400, "invalid_type",
              "chat_template_kwargs.thinking");
    ms_api_limits l = greedy_limits();
    parse_good_with(&r, chat, &l, BEGIN ",'reasoning_effort':'none'}");
    assert_false(r.thinking);
    chat_is(&r, "{'messages':[{'role':'user','content':'hi'}],'thinking':false}");
    ms_api_request_free(&r);
    parse_good_with(&r, chat, &l, BEGIN ",'chat_template_kwargs':{'enable_thinking':false}}");
    assert_false(r.thinking);
    ms_api_request_free(&r);
    parse_good_with(&r, chat, &l, BEGIN ",'thinking':{'type':'enabled'}}");
    assert_true(r.thinking);
    assert_string_equal(r.effort, "high");
    ms_api_request_free(&r);
    parse_bad_with(chat, &l, BEGIN ",'reasoning_effort':'high','chat_template_kwargs':{'enable_thinking':false}}", 400,
                   "invalid_value", "chat_template_kwargs");
    parse_bad_with(chat, &l, BEGIN ",'thinking':{'type':'enabled'},'chat_template_kwargs':{'enable_thinking':false}}",
                   400, "invalid_value", "chat_template_kwargs.enable_thinking");
    l.default_effort = "none"; /* a model that thinks only when asked */
    parse_good_with(&r, chat, &l, BEGIN "}");
    assert_true(!r.thinking && !r.effort);
    ms_api_request_free(&r);
    parse_good_with(&r, chat, &l, BEGIN ",'chat_template_kwargs':{'enable_thinking':true}}");
    assert_string_equal(r.effort, "high");
    ms_api_request_free(&r);
    static const char *const never[] = {"none", NULL};
    l.efforts = never;
    parse_bad_with(chat, &l, BEGIN ",'thinking':{'type':'enabled'}}", 400, "unsupported_value", "thinking");
    l = greedy_limits();
    parse_bad_with(chat, &l, BEGIN ",'reasoning_effort':'max'}", 400, "unsupported_value", "reasoning_effort");
}

/* ------------------------------------------------------------------ messages */

static void messages(void **state) {
    (void)state;
    ms_api_request r;
    parse_good(
        &r, chat,
        MESSAGES
        "[{'role':'developer','content':'be nice'},{'role':'user','content':"
        "[{'type':'text','text':'a'},{'type':'text','text':''},{'type':'input_text','text':'b'}],'name':'Ann'},"
        "{'role':'assistant','content':[{'type':'output_text','text':'x'},{'type':'refusal','refusal':'y'}],"
        "'reasoning_content':''},{'role':'assistant','content':null,'reasoning':'r'},{'role':'user','content':[]},"
        "{'role':'system','content':'s'}]}");
    chat_is(&r,
            "{'messages':[{'role':'system','content':'be nice'},{'role':'user','name':'Ann','content':"
            "[{'type':'text','text':'a'},{'type':'text','text':'b'}]},{'role':'assistant','reasoning_content':'',"
            "'content':'xy'},{'role':'assistant','reasoning_content':'r','content':''},{'role':'user','content':''},"
            "{'role':'system','content':'s'}],'thinking':true,'thinking_effort':'max'}");
    assert_int_equal(r.message_count, 6);
    ms_api_request_free(&r);
    parse_bad(chat, MESSAGES "[{'role':'function','content':'x'}]}", 400, "unsupported_role", "messages[0].role");
    parse_bad(chat, MESSAGES "[{'content':'x'}]}", 400, "missing_field", "messages[0].role");
    parse_bad(chat, MESSAGES "[{'role':'user'}]}", 400, "missing_field", "messages[0].content");
    parse_bad(chat, MESSAGES "[{'role':'system','content':null}]}", 400, "missing_field", "messages[0].content");
    parse_bad(chat, MESSAGES "[{'role':'user','content':[{'type':'image_url','image_url':{}}]}]}", 400,
              "unsupported_content_part", "messages[0].content[0].type");
    parse_bad(chat, MESSAGES "[{'role':'user','content':[{'type':'output_text','text':'x'}]}]}", 400,
              "unsupported_content_part", "messages[0].content[0].type");
    parse_bad(chat, MESSAGES "[{'role':'user','content':[{'text':'x'}]}]}", 400, "missing_field",
              "messages[0].content[0].type");
    parse_bad(chat, MESSAGES "[{'role':'user','content':'x','reasoning_content':'r'}]}", 400, "invalid_value",
              "messages[0].reasoning_content");
    parse_bad(chat,
              MESSAGES "[{'role':'assistant','content':'x','reasoning_content':'r','reasoning':'q'},"
                       "{'role':'user','content':''}]}",
              400, "invalid_value", "messages[0].reasoning");
    parse_bad(chat, MESSAGES "[{'role':'user','content':'x','tool_calls':[{}]}]}", 400, "invalid_value",
              "messages[0].tool_calls");
    parse_bad(chat, MESSAGES "[{'role':'user','content':'x','tool_call_id':'c'}]}", 400, "invalid_value",
              "messages[0].tool_call_id");
    parse_bad(chat, MESSAGES "[{'role':'user','content':'x','name':''}]}", 400, "invalid_value", "messages[0].name");
    parse_bad(chat, MESSAGES "[{'role':'user','content':'x','audio':{}}]}", 400, "unsupported_parameter",
              "messages[0].audio");
    parse_bad(chat, MESSAGES "[{'role':'assistant','content':'x','function_call':{}},{'role':'user','content':''}]}",
              400, "unsupported_parameter", "messages[0].function_call");
    parse_bad(chat, MESSAGES "[{'role':'user','content':'x'},{'role':'assistant','content':'y'}]}", 400,
              "assistant_prefill_unsupported", "messages[1]");
}

#define CALL(id, name, args) "{'id':'" id "','type':'function','function':{'name':'" name "','arguments':" args "}}"
#define RESULT(id, text)     "{'role':'tool','tool_call_id':'" id "','content':'" text "'}"
#define TWO_CALLS                                                                                                      \
    "{'role':'user','content':'q'},{'role':'assistant','tool_calls':[" CALL("a", "f", "'{}'") "," CALL(                \
        "b", "g", "{'x':1.50}") "]}"

static void types_in_messages(void **state) {
    (void)state;
#define ONE(m) MESSAGES "[" m ",{'role':'user','content':'x'}]}"
    parse_bad(chat, ONE("{'role':7}"), 400, "invalid_type", "messages[0].role");
    parse_bad(chat, ONE("{'role':'user','content':'x','name':7}"), 400, "invalid_type", "messages[0].name");
    parse_bad(chat, ONE("{'role':'assistant','reasoning_content':7}"), 400, "invalid_type",
              "messages[0].reasoning_content");
    parse_bad(chat, ONE("{'role':'assistant','reasoning':7}"), 400, "invalid_type", "messages[0].reasoning");
    parse_bad(chat, ONE("{'role':'assistant','content':7}"), 400, "invalid_type", "messages[0].content");
    parse_bad(chat, ONE("{'role':'assistant','tool_calls':7}"), 400, "invalid_type", "messages[0].tool_calls");
    parse_bad(chat, ONE("{'role':'assistant','tool_calls':[7]}"), 400, "invalid_type", "messages[0].tool_calls[0]");
    parse_bad(chat, ONE("{'role':'tool','tool_call_id':7}"), 400, "invalid_type", "messages[0].tool_call_id");
    parse_bad(chat, ONE("{'role':'user','content':'x','tool_call_id':7}"), 400, "invalid_type",
              "messages[0].tool_call_id");
    parse_bad(chat, ONE("{'role':'assistant','content':[{'type':'refusal','refusal':7}]}"), 400, "invalid_type",
              "messages[0].content[0].refusal");
#define OLD(c) ONE("{'role':'assistant','tool_calls':[" c "]}")
    parse_bad(chat, OLD("{'id':7}"), 400, "invalid_type", "messages[0].tool_calls[0].id");
    parse_bad(chat, OLD("{'id':''}"), 400, "invalid_value", "messages[0].tool_calls[0].id");
    parse_bad(chat, OLD("{'id':'a','type':7}"), 400, "invalid_type", "messages[0].tool_calls[0].type");
    parse_bad(chat, OLD("{'id':'a','function':7}"), 400, "invalid_type", "messages[0].tool_calls[0].function");
    parse_bad(chat, OLD("{'id':'a','function':{'name':''}}"), 400, "invalid_value",
              "messages[0].tool_calls[0].function.name");
}

static void tool_history(void **state) {
    (void)state;
    ms_api_request r;
    parse_good(&r, chat, MESSAGES "[" TWO_CALLS "," RESULT("b", "2") "," RESULT("a", "1") "]}");
    chat_is(&r, "{'messages':[{'role':'user','content':'q'},{'role':'assistant','content':'','tool_calls':["
                "{'type':'function','id':'a','function':{'name':'f','arguments':'{}'}},"
                "{'type':'function','id':'b','function':{'name':'g','arguments':{'x':1.50}}}]},"
                "{'role':'tool','tool_call_id':'a','content':'1'},{'role':'tool','tool_call_id':'b','content':'2'}],"
                "'thinking':true,'thinking_effort':'max'}");
    ms_api_request_free(&r);
    /* The same id again in a later turn; a result without content. */
    good(MESSAGES "[{'role':'user','content':'q'},{'role':'assistant','tool_calls':[" CALL(
        "a", "f", "''") "]},"
                        "{'role':'tool','tool_call_id':'a'},{'role':'assistant','tool_calls':[" CALL(
                            "a", "f", "null") "]}," RESULT("a", "x") "]}");
    const char *why = parse_bad(chat, MESSAGES "[" TWO_CALLS "," RESULT("a", "1") ",{'role':'user','content':'x'}]}",
                                400, "tool_history_invalid", "messages[1]");
    assert_string_equal(why, "messages[1]: a call has no result right after this message: b");
    parse_bad(chat, MESSAGES "[" TWO_CALLS "," RESULT("b", "1") "]}", 400, "tool_history_invalid", "messages[1]");
    parse_bad(chat, MESSAGES "[" TWO_CALLS "," RESULT("a", "1") "," RESULT("a", "1") "]}", 400, "tool_history_invalid",
              "messages[3]");
    parse_bad(chat, MESSAGES "[" TWO_CALLS "," RESULT("a", "1") "," RESULT("zz", "1") "]}", 400, "tool_history_invalid",
              "messages[3]");
    parse_bad(chat, MESSAGES "[" TWO_CALLS "," RESULT("a", "1") "," RESULT("b", "1") "," RESULT("b", "1") "]}", 400,
              "tool_history_invalid", "messages[4]");
    parse_bad(chat, MESSAGES "[{'role':'user','content':'q'}," RESULT("a", "1") "]}", 400, "tool_history_invalid",
              "messages[1]");
    parse_bad(chat,
              MESSAGES "[{'role':'assistant','tool_calls':[" CALL("a", "f", "''") "," CALL("a", "f", "''") "]}," RESULT(
                  "a", "1") "," RESULT("a", "1") "]}",
              400, "tool_history_invalid", "messages[0]");
    why = parse_bad(chat, MESSAGES "[" TWO_CALLS "," RESULT("a", "1") "," RESULT("secret text", "1") "]}", 400,
                    "tool_history_invalid", "messages[3]");
    assert_null(strstr(why, "secret"));
    parse_bad(chat, MESSAGES "[{'role':'tool','content':'x'}]}", 400, "missing_field", "messages[0].tool_call_id");
    parse_bad(chat, MESSAGES "[{'role':'tool','tool_call_id':'','content':'x'}]}", 400, "invalid_value",
              "messages[0].tool_call_id");
}

static void old_arguments(void **state) {
    (void)state;
    ms_api_request r;
    parse_good(
        &r, chat,
        MESSAGES "[{'role':'assistant','tool_calls':[" CALL("a", "f", "'{\\'k\\': [1, 2.50e1]}'") "," CALL(
            "b", "f",
            "'not json'") "," CALL("c", "f",
                                   "'  '") "," CALL("d", "f",
                                                    "''") "]}," RESULT("a",
                                                                       "1") "," RESULT("b",
                                                                                       "") "," RESULT("c",
                                                                                                      "") "," RESULT("d",
                                                                                                                     "") "]}");
    const ms_json *root = ms_json_root(r.chat_doc);
    is_text(root, "messages[0].tool_calls[0].function.arguments", "{\"k\": [1, 2.50e1]}");
    is_text(root, "messages[0].tool_calls[1].function.arguments", "not json");
    is_text(root, "messages[0].tool_calls[2].function.arguments", "  ");
    is_text(root, "messages[0].tool_calls[3].function.arguments", "{}");
    ms_api_request_free(&r);
#define WITH(args) MESSAGES "[{'role':'assistant','tool_calls':[" CALL("a", "f", args) "]}," RESULT("a", "") "]}"
    parse_bad(chat, WITH("'[1]'"), 400, "invalid_value", "messages[0].tool_calls[0].function.arguments");
    parse_bad(chat, WITH("'7'"), 400, "invalid_value", "messages[0].tool_calls[0].function.arguments");
    parse_bad(chat, WITH("7"), 400, "invalid_type", "messages[0].tool_calls[0].function.arguments");
    parse_bad(chat, MESSAGES "[{'role':'assistant','tool_calls':[{'type':'function','function':{'name':'f'}}]}]}", 400,
              "missing_field", "messages[0].tool_calls[0].id");
    parse_bad(chat, MESSAGES "[{'role':'assistant','tool_calls':[{'id':'a','type':'custom'}]}]}", 400,
              "unsupported_value", "messages[0].tool_calls[0].type");
    parse_bad(chat, MESSAGES "[{'role':'assistant','tool_calls':[{'id':'a','function':{}}]}]}", 400, "missing_field",
              "messages[0].tool_calls[0].function.name");
}

/* ------------------------------------------------------------------ tools */

#define TOOL(name, more) "{'type':'function','function':{'name':'" name "'" more "}}"
#define TOOLS(list)      BEGIN ",'tools':[" list "]"

static void tools(void **state) {
    (void)state;
    ms_api_request r;
    parse_good(
        &r, chat,
        TOOLS(TOOL(
            "f",
            ",'description':null,'parameters':{'type':'object','properties':{'n':"
            "{'const':123456789012345678901234567890.50}}},'strict':true") "," TOOL("g",
                                                                                    ",'parameters':null")) ",'parallel_"
                                                                                                           "tool_calls'"
                                                                                                           ":false}");
    assert_int_equal(r.tool_count, 2);
    assert_string_equal(r.tools[0].name, "f");
    assert_true(r.tools[0].strict && !r.tools[1].strict && r.tools[0].parameters && !r.tools[1].parameters);
    assert_true(r.tool_allowed[0] && r.tool_allowed[1]);
    assert_non_null(strstr(r.chat.data, "123456789012345678901234567890.50"));
    assert_non_null(strstr(r.chat.data, json(",'parallel_tool_calls':false,")));
    assert_int_equal(r.tool_choice, MS_TOOLS_AUTO);
    ms_api_request_free(&r);
    parse_good(&r, chat,
               BEGIN ",'tools':[{'type':'function','cache_control':{'type':'ephemeral'},'function':{'name':'f'}}]}");
    chat_is(&r, "{'messages':[{'role':'user','content':'hi'}],'tools':[{'type':'function','function':{'name':'f'}}],"
                "'thinking':true,'thinking_effort':'max'}");
    assert_string_equal(r.ignored.data, "tools[].cache_control");
    ms_api_request_free(&r);
    good(TOOLS("") ",'parallel_tool_calls':false,'tool_choice':'none'}");
    parse_bad(chat, TOOLS("7") "}", 400, "invalid_type", "tools[0]");
    parse_bad(chat, TOOLS("{'type':'custom'}") "}", 400, "invalid_tool", "tools[0].type");
    parse_bad(chat, TOOLS("{'type':'function'}") "}", 400, "missing_field", "tools[0].function");
    parse_bad(chat, TOOLS("{'type':'function','function':{}}") "}", 400, "missing_field", "tools[0].function.name");
    parse_bad(chat, TOOLS(TOOL("a b", "")) "}", 400, "invalid_tool", "tools[0].function.name");
    parse_bad(chat, TOOLS(TOOL("", "")) "}", 400, "invalid_tool", "tools[0].function.name");
    parse_bad(chat, TOOLS(TOOL("f", "") "," TOOL("f", "")) "}", 400, "invalid_tool", "tools[1].function.name");
    parse_bad(chat, TOOLS(TOOL("f", ",'description':1")) "}", 400, "invalid_type", "tools[0].function.description");
    parse_bad(chat, TOOLS(TOOL("f", ",'strict':'x'")) "}", 400, "invalid_type", "tools[0].function.strict");
    parse_bad(chat, TOOLS(TOOL("f", ",'parameters':[]")) "}", 400, "invalid_type", "tools[0].function.parameters");
    parse_bad(chat, TOOLS(TOOL("f", ",'parameters':{'type':'array'}")) "}", 400, "invalid_tool",
              "tools[0].function.parameters.type");
    ms_text t = {0};
    ms_text_puts(&t, BEGIN ",'tools':[");
    for (int i = 0; i < 513; i++) {
        ms_text_printf(&t, "%s{'type':'function','function':{'name':'f%d'}}", i ? "," : "", i);
    }
    ms_text_puts(&t, "]}");
    parse_bad(chat, t.data, 400, "invalid_tool", "tools[512].function");
    ms_text_free(&t);
}

static void tool_choices(void **state) {
    (void)state;
    ms_api_request r;
    parse_good(&r, chat, TOOLS(TOOL("f", "")) ",'tool_choice':'required'}");
    assert_int_equal(r.tool_choice, MS_TOOLS_REQUIRED);
    assert_non_null(strstr(r.chat.data, json(",'tool_choice':'required'")));
    ms_api_request_free(&r);
    parse_good(&r, chat, TOOLS(TOOL("f", "")) ",'tool_choice':'none'}");
    assert_true(r.tool_choice == MS_TOOLS_NONE && !r.tool_allowed[0]);
    assert_non_null(strstr(r.chat.data, json(",'tool_choice':'none'")));
    ms_api_request_free(&r);
    parse_good(&r, chat,
               TOOLS(TOOL("f", "") "," TOOL("g", "")) ",'tool_choice':{'type':'function','function':{'name':'g'}}}");
    assert_true(r.tool_choice == MS_TOOLS_NAMED && !r.tool_allowed[0] && r.tool_allowed[1]);
    assert_non_null(strstr(r.chat.data, json(",'tool_choice':{'type':'function','function':{'name':'g'}}")));
    ms_api_request_free(&r);
    parse_good(&r, chat,
               TOOLS(TOOL("f", "") "," TOOL(
                   "g", "")) ",'tool_choice':{'type':'allowed_tools','allowed_tools':"
                             "{'mode':'required','tools':[{'type':'function','function':{'name':'f'}}]}}}");
    assert_true(r.tool_choice == MS_TOOLS_ALLOWED && r.allowed_required && r.tool_allowed[0] && !r.tool_allowed[1]);
    ms_api_request_free(&r);
#define CHOICE(c) TOOLS(TOOL("f", "")) ",'tool_choice':" c "}"
    parse_bad(chat, CHOICE("'any'"), 400, "invalid_tool_choice", "tool_choice");
    parse_bad(chat, CHOICE("7"), 400, "invalid_type", "tool_choice");
    parse_bad(chat, CHOICE("{'type':'x'}"), 400, "invalid_tool_choice", "tool_choice");
    parse_bad(chat, CHOICE("{'type':'function'}"), 400, "missing_field", "tool_choice.function");
    parse_bad(chat, CHOICE("{'type':'function','function':{'name':'zz'}}"), 400, "invalid_tool_choice", "tool_choice");
    parse_bad(chat, CHOICE("{'type':'allowed_tools'}"), 400, "missing_field", "tool_choice.allowed_tools");
    parse_bad(chat, CHOICE("{'type':'allowed_tools','allowed_tools':{'mode':'x','tools':[]}}"), 400,
              "invalid_tool_choice", "tool_choice.allowed_tools.mode");
    parse_bad(chat, CHOICE("{'type':'allowed_tools','allowed_tools':{'mode':'auto','tools':[]}}"), 400,
              "invalid_tool_choice", "tool_choice.allowed_tools.tools");
    parse_bad(chat,
              CHOICE("{'type':'allowed_tools','allowed_tools':{'mode':'auto','tools':[{'type':'function',"
                     "'function':{'name':'zz'}}]}}"),
              400, "invalid_tool_choice", "tool_choice.allowed_tools.tools[0]");
    parse_bad(chat, CHOICE("{'type':7}"), 400, "invalid_type", "tool_choice.type");
    parse_bad(chat, CHOICE("{'type':'function','function':7}"), 400, "invalid_type", "tool_choice.function");
    parse_bad(chat, CHOICE("{'type':'function','function':{'name':7}}"), 400, "invalid_type",
              "tool_choice.function.name");
    parse_bad(chat, CHOICE("{'type':'allowed_tools','allowed_tools':{'mode':7,'tools':[]}}"), 400, "invalid_type",
              "tool_choice.allowed_tools.mode");
    parse_bad(chat,
              CHOICE("{'type':'allowed_tools','allowed_tools':{'mode':'auto','tools':[{'type':'function',"
                     "'function':{'name':'f'}},7]}}"),
              400, "invalid_type", "tool_choice.allowed_tools.tools[1]");
    parse_bad(chat, BEGIN ",'tool_choice':'required'}", 400, "invalid_tool_choice", "tool_choice");
    good(BEGIN ",'tool_choice':'none'}");
    good(BEGIN ",'tool_choice':'auto'}");
}

static void dynamic_tools(void **state) {
    (void)state;
    ms_api_request r;
#define DYNAMIC(more)                                                                                                  \
    MESSAGES "[{'role':'system','tools':[" TOOL(                                                                       \
        "late", ",'strict':true") "]" more "},"                                                                        \
                                  "{'role':'user','content':'x'}],'tools':[" TOOL("f", "") "]"
    parse_good(&r, chat, DYNAMIC("") "}");
    assert_int_equal(r.tool_count, 2);
    assert_string_equal(r.tools[1].name, "late");
    assert_true(r.tools[1].strict && !r.tools[0].strict);
    ms_api_request_free(&r);
    parse_bad(chat, DYNAMIC(",'content':'x'") "}", 400, "invalid_value", "messages[0].content");
    parse_bad(chat, DYNAMIC("") ",'tool_choice':{'type':'function','function':{'name':'late'}}}", 400,
              "invalid_tool_choice", "tool_choice");
    parse_bad(chat, MESSAGES "[{'role':'system','content':'x','tools':'f'}]}", 400, "invalid_type",
              "messages[0].tools");
    ms_api_limits l = greedy_limits();
    parse_bad_with(chat, &l, DYNAMIC("") "}", 400, "unsupported_parameter", "messages[0].tools");
    parse_bad(chat, MESSAGES "[{'role':'user','content':'x','tools':[{}]}]}", 400, "unsupported_parameter",
              "messages[0].tools");
}

static void formats(void **state) {
    (void)state;
    ms_api_request r;
    parse_good(&r, chat,
               BEGIN ",'response_format':{'type':'json_schema','json_schema':{'name':'x','strict':true,"
                     "'schema':{'type':'object','minimum':1.0}}}}");
    assert_true(r.format == MS_API_JSON_SCHEMA && r.schema_strict);
    assert_int_equal(r.schema->count, 2);
    chat_is(&r, "{'messages':[{'role':'user','content':'hi'}],'response_format':{'type':'json_schema','json_schema':"
                "{'schema':{'type':'object','minimum':1.0}}},'thinking':true,'thinking_effort':'max'}");
    ms_api_request_free(&r);
    parse_good(&r, chat, BEGIN ",'response_format':{'type':'json_object'}}");
    assert_true(r.format == MS_API_JSON_OBJECT && !r.schema);
    ms_api_request_free(&r);
    parse_good(&r, chat, BEGIN ",'response_format':{'type':'text'}}");
    assert_int_equal(r.format, MS_API_TEXT);
    ms_api_request_free(&r);
    parse_bad(chat,
              BEGIN ",'response_format':{'type':'json_schema','json_schema':{'name':'x','description':7,'schema':{}}}}",
              400, "invalid_type", "response_format.json_schema.description");
    parse_bad(chat,
              BEGIN ",'response_format':{'type':'json_schema','json_schema':{'name':'x','strict':7,'schema':{}}}}", 400,
              "invalid_type", "response_format.json_schema.strict");
    parse_bad(chat, BEGIN ",'response_format':{'type':'json_schema','json_schema':{'schema':{}}}}", 400,
              "missing_field", "response_format.json_schema.name");
    parse_bad(chat, BEGIN ",'response_format':{}}", 400, "missing_field", "response_format.type");
    parse_bad(chat, BEGIN ",'response_format':{'type':'xml'}}", 400, "unsupported_value", "response_format.type");
    parse_bad(chat, BEGIN ",'response_format':{'type':'json_schema'}}", 400, "missing_field",
              "response_format.json_schema");
    parse_bad(chat, BEGIN ",'response_format':{'type':'json_schema','json_schema':{'name':'x'}}}", 400, "missing_field",
              "response_format.json_schema.schema");
    parse_bad(chat, BEGIN ",'response_format':{'type':'json_schema','json_schema':{'name':'x y','schema':{}}}}", 400,
              "invalid_value", "response_format.json_schema.name");
    parse_bad(chat, BEGIN ",'response_format':{'type':'json_schema','json_schema':{'name':'x','schema':[]}}}", 400,
              "invalid_type", "response_format.json_schema.schema");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(json_rules),     cmocka_unit_test(depth_of_unread_values),
                                       cmocka_unit_test(surrogates),     cmocka_unit_test(nul_is_a_character),
                                       cmocka_unit_test(null_is_absent), cmocka_unit_test(types_and_paths),
                                       cmocka_unit_test(integers),       cmocka_unit_test(field_classes),
                                       cmocka_unit_test(models),         cmocka_unit_test(ignored_list_is_bounded),
                                       cmocka_unit_test(sampling),       cmocka_unit_test(stops),
                                       cmocka_unit_test(logprobs),       cmocka_unit_test(efforts),
                                       cmocka_unit_test(messages),       cmocka_unit_test(types_in_messages),
                                       cmocka_unit_test(tool_history),   cmocka_unit_test(old_arguments),
                                       cmocka_unit_test(tools),          cmocka_unit_test(tool_choices),
                                       cmocka_unit_test(dynamic_tools),  cmocka_unit_test(formats)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
