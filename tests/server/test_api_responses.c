/* test_api_responses.c: Responses requests, documents and a strict checker of event streams. */
#include "api_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server/api_write.h"

#define HEAD         "{'model':'moonshine'"
#define ASK          HEAD ",'input':'hi'"
#define INPUT(items) HEAD ",'input':[" items "]}"
#define END          ",'thinking':true,'thinking_effort':'max'}"
static const ms_api_codec *const api = &ms_api_responses;

/* ------------------------------------------------------------------ requests */

static void basics(void **state) {
    (void)state;
    ms_api_request r;
    parse_good(&r, api,
               ASK
               ",'instructions':'be brief','store':true,'truncation':'disabled','prompt_cache_key':'k',"
               "'include':['reasoning.encrypted_content','file_search_call.results'],'reasoning':{'effort':'low',"
               "'summary':'auto'},'text':{'verbosity':'low','format':{'type':'json_schema','name':'n','schema':{}}},"
               "'stream':true,'temperature':1,'background':false}");
    chat_is(&r, "{'messages':[{'role':'system','content':'be brief'},{'role':'user','content':'hi'}],'response_format':"
                "{'type':'json_schema','json_schema':{'schema':{}}},'thinking':true,'thinking_effort':'low'}");
    assert_true(r.include_encrypted_reasoning && r.reasoning_summary && r.sampled && r.stream);
    assert_string_equal(r.ignored.data, "include[],text.verbosity,store,prompt_cache_key");
    assert_int_equal(r.max_tokens, 8192);
    ms_api_request_free(&r);
    parse_bad(api, HEAD "}", 400, "missing_field", "input");
    parse_bad(api, HEAD ",'input':7}", 400, "invalid_type", "input");
    parse_bad(api, HEAD ",'input':[]}", 400, "invalid_value", "input");
    parse_bad(api, ASK ",'previous_response_id':'r'}", 400, "previous_response_unsupported", "previous_response_id");
    parse_bad(api, ASK ",'conversation':'c'}", 400, "previous_response_unsupported", "conversation");
    parse_bad(api, ASK ",'background':true}", 400, "previous_response_unsupported", "background");
    parse_bad(api, ASK ",'truncation':'auto'}", 400, "unsupported_value", "truncation");
    parse_bad(api, ASK ",'max_output_tokens':0}", 400, "out_of_range", "max_output_tokens");
    parse_bad(api, ASK ",'reasoning':{'effort':'minimal'}}", 400, "unsupported_value", "reasoning.effort");
    parse_bad(api, ASK ",'text':{'format':{'type':'json_schema','schema':{}}}}", 400, "missing_field",
              "text.format.name");
    parse_bad(api, ASK ",'prompt':{'id':'x'}}", 400, "unsupported_parameter", "prompt");
    parse_bad(api, INPUT("{'type':'item_reference','id':'x'}"), 400, "previous_response_unsupported", "input[0].type");
    parse_bad(api, INPUT("{'type':'web_search_call'}"), 400, "unsupported_value", "input[0].type");
    parse_bad(api, INPUT("{'role':'tool','content':'x'}"), 400, "unsupported_role", "input[0].role");
    parse_bad(api, INPUT("{'role':'user','content':[{'type':'input_image'}]}"), 400, "unsupported_content_part",
              "input[0].content[0].type");
    parse_bad(api, INPUT("{'role':'user','content':'x'},{'role':'assistant','content':'y'}"), 400,
              "assistant_prefill_unsupported", "input[1]");
}

static void tools(void **state) {
    (void)state;
    ms_api_request r;
    parse_good(&r, api,
               ASK ",'tools':[{'type':'function','name':'f','description':'d','parameters':{'type':'object'},"
                   "'strict':true},{'type':'web_search'},{'type':'custom','name':'x'},{'type':'local_shell'}],"
                   "'tool_choice':{'type':'function','name':'f'},'parallel_tool_calls':false}");
    chat_is(&r, "{'messages':[{'role':'user','content':'hi'}],'tools':[{'type':'function','function':{'name':'f',"
                "'description':'d','parameters':{'type':'object'},'strict':true}}],'tool_choice':{'type':'function',"
                "'function':{'name':'f'}},'parallel_tool_calls':false" END);
    assert_string_equal(r.ignored_tools.data, "web_search,custom,local_shell");
    assert_true(r.tools[0].strict && r.tool_count == 1);
    ms_api_request_free(&r);
    parse_good(&r, api,
               ASK ",'tools':[{'type':'function','name':'f'},{'type':'function','name':'g'}],'tool_choice':"
                   "{'type':'allowed_tools','mode':'auto','tools':[{'type':'function','name':'g'}]}}");
    assert_true(r.tool_choice == MS_TOOLS_ALLOWED && !r.allowed_required && r.tool_allowed[1] && !r.tool_allowed[0]);
    ms_api_request_free(&r);
    parse_bad(api, ASK ",'tools':[{'name':'f'}]}", 400, "missing_field", "tools[0].type");
    parse_bad(api, ASK ",'tools':[{'type':'web_search'}],'tool_choice':'required'}", 400, "invalid_tool_choice",
              "tool_choice");
}

#define REASONING(t)                                                                                                   \
    "{'type':'reasoning','id':'rs_1','summary':[],'content':[{'type':'reasoning_text','text':'" t "'}]}"
#define SAYS(t)                                                                                                        \
    "{'type':'message','id':'m','status':'completed','role':'assistant','content':[{'type':'output_text',"             \
    "'text':'" t "','annotations':[],'logprobs':[]}]}"
#define CALL(id)   "{'type':'function_call','id':'fc','call_id':'" id "','name':'f','arguments':'{}'}"
#define OUTPUT(id) "{'type':'function_call_output','call_id':'" id "','output':'r" id "'}"
#define ASKS       "{'role':'user','content':'q'}"

static void items(void **state) {
    (void)state;
    ms_api_request r;
    parse_good(&r, api,
               INPUT("{'role':'developer','content':'d'}," ASKS
                     "," REASONING("t1") "," SAYS("s1") "," CALL("a") "," CALL("b") "," OUTPUT("b") "," OUTPUT(
                         "a") "," REASONING("t2") "," CALL("c") ","
                                                                "{'type':'function_call_output','call_id':'c','output':"
                                                                "[{'type':'input_text','text':'x'},"
                                                                "{'type':'input_text','text':'y'}]}," SAYS(
                                                                    "s2") "," SAYS("s3") "," ASKS));
    chat_is(
        &r,
        "{'messages':[{'role':'system','content':'d'},{'role':'user','content':'q'},"
        "{'role':'assistant','reasoning_content':'t1','content':'s1','tool_calls':["
        "{'type':'function','id':'a','function':{'name':'f','arguments':'{}'}},"
        "{'type':'function','id':'b','function':{'name':'f','arguments':'{}'}}]},"
        "{'role':'tool','tool_call_id':'a','content':'ra'},{'role':'tool','tool_call_id':'b','content':'rb'},"
        "{'role':'assistant','reasoning_content':'t2','content':'','tool_calls':["
        "{'type':'function','id':'c','function':{'name':'f','arguments':'{}'}}]},"
        "{'role':'tool','tool_call_id':'c','content':[{'type':'text','text':'x'},{'type':'text','text':'y'}]},"
        "{'role':'assistant','content':'s2'},{'role':'assistant','content':'s3'},{'role':'user','content':'q'}]" END);
    assert_null(r.ignored.data);
    ms_api_request_free(&r);
    parse_bad(api, INPUT(ASKS "," CALL("a") "," ASKS), 400, "tool_history_invalid", "input[1]");
    parse_bad(api, INPUT(ASKS "," CALL("a") "," OUTPUT("a") "," ASKS "," OUTPUT("a")), 400, "tool_history_invalid",
              "input[4]");
    parse_bad(api, INPUT(ASKS "," OUTPUT("zz")), 400, "unknown_call_id", "input[1].call_id");
    parse_bad(api, INPUT(OUTPUT("zz")), 400, "unknown_call_id", "input[0].call_id");
    parse_bad(api, INPUT("{'type':'function_call','name':'f'}"), 400, "missing_field", "input[0].call_id");
    parse_bad(api, INPUT("{'type':'function_call','call_id':'a','name':'f','arguments':'[]'}"), 400, "invalid_value",
              "input[0].arguments");
    parse_bad(api, INPUT(CALL("a") ",{'type':'function_call_output','call_id':'a'}"), 400, "missing_field",
              "input[1].output");
}

static void types_and_paths(void **state) {
    (void)state;
    parse_bad(api, INPUT("7"), 400, "invalid_type", "input[0]");
    parse_bad(api, INPUT("{'type':7}"), 400, "invalid_type", "input[0].type");
    parse_bad(api, INPUT("{'content':'x'}"), 400, "missing_field", "input[0].role");
    parse_bad(api, INPUT("{'role':'user'}"), 400, "missing_field", "input[0].content");
    parse_bad(api, INPUT("{'role':'user','content':7}"), 400, "invalid_type", "input[0].content");
    parse_bad(api, INPUT("{'type':'reasoning','encrypted_content':7}"), 400, "invalid_type",
              "input[0].encrypted_content");
    parse_bad(api, INPUT("{'type':'reasoning','content':7}"), 400, "invalid_type", "input[0].content");
    parse_bad(api, INPUT("{'type':'reasoning','content':[7]}"), 400, "invalid_type", "input[0].content[0]");
    parse_bad(api, INPUT("{'type':'reasoning','summary':[{}]}"), 400, "missing_field", "input[0].summary[0].text");
    parse_bad(api, INPUT("{'type':'function_call','call_id':'','name':'f'}"), 400, "invalid_value", "input[0].call_id");
    parse_bad(api, INPUT("{'type':'function_call','call_id':'a'}"), 400, "missing_field", "input[0].name");
    parse_bad(api, INPUT("{'type':'function_call','call_id':'a','name':'f','arguments':{}}"), 400, "invalid_type",
              "input[0].arguments");
    parse_bad(api, INPUT("{'type':'function_call_output','output':''}"), 400, "missing_field", "input[0].call_id");
    parse_bad(api, INPUT(CALL("a") ",{'type':'function_call_output','call_id':'a','output':7}"), 400, "invalid_type",
              "input[1].output");
    parse_bad(api, ASK ",'instructions':7}", 400, "invalid_type", "instructions");
    parse_bad(api, ASK ",'tools':7}", 400, "invalid_type", "tools");
    parse_bad(api, ASK ",'tools':[7]}", 400, "invalid_type", "tools[0]");
    parse_bad(api, ASK ",'tools':[{'type':'function'}]}", 400, "missing_field", "tools[0].name");
    parse_bad(api, ASK ",'parallel_tool_calls':1}", 400, "invalid_type", "parallel_tool_calls");
    parse_bad(api, ASK ",'include':'x'}", 400, "invalid_type", "include");
    parse_bad(api, ASK ",'include':[7]}", 400, "invalid_type", "include[0]");
    parse_bad(api, ASK ",'reasoning':'low'}", 400, "invalid_type", "reasoning");
    parse_bad(api, ASK ",'reasoning':{'summary':7}}", 400, "invalid_type", "reasoning.summary");
    parse_bad(api, ASK ",'reasoning':{'generate_summary':7}}", 400, "invalid_type", "reasoning.generate_summary");
    parse_bad(api, ASK ",'text':7}", 400, "invalid_type", "text");
    parse_bad(api, ASK ",'text':{'format':7}}", 400, "invalid_type", "text.format");
    parse_bad(api, ASK ",'truncation':7}", 400, "invalid_type", "truncation");
    parse_bad(api, ASK ",'background':7}", 400, "invalid_type", "background");
    parse_bad(api, ASK ",'stream':7}", 400, "invalid_type", "stream");
    parse_bad(api, ASK ",'top_logprobs':2}", 400, "unsupported_value", "top_logprobs");
#define FLAT(choice) ASK ",'tools':[{'type':'function','name':'f'}],'tool_choice':" choice "}"
    parse_bad(api, FLAT("{'type':'function'}"), 400, "missing_field", "tool_choice.name");
    parse_bad(api, FLAT("{'type':'web_search'}"), 400, "invalid_tool_choice", "tool_choice");
    parse_bad(api, FLAT("{'type':'allowed_tools','mode':'auto'}"), 400, "missing_field", "tool_choice.tools");
    parse_bad(api, FLAT("{'type':'allowed_tools','mode':'auto','tools':[7]}"), 400, "invalid_type",
              "tool_choice.tools[0]");
    parse_bad(api, FLAT("{'type':'allowed_tools','mode':'auto','tools':[{'name':'f'}]}"), 400, "missing_field",
              "tool_choice.tools[0].type");
    parse_bad(api, FLAT("{'type':'allowed_tools','mode':'auto','tools':[{'type':'mcp'}]}"), 400, "invalid_tool_choice",
              "tool_choice.tools[0]");
}

static void sealed_reasoning(void **state) {
    (void)state;
    ms_api_limits l = k3_limits();
    ms_api_request r;
    for (size_t n = 0; n < 70; n++) {
        char text[80];
        memset(text, 'a' + (int)(n % 26), n);
        text[n] = 0;
        ms_text blob = {0}, back = {0};
        ms_api_seal(&blob, l.key, text, n);
        assert_false(blob.failed);
        assert_true(ms_api_unseal(&back, l.key, blob.data, blob.len));
        assert_int_equal(back.len, n);
        if (n) assert_memory_equal(back.data, text, n);
        for (size_t i = 0; i < blob.len;
             i++) { /* every change of every character is seen, but for spare bits at the end */
            char old = blob.data[i];
            blob.data[i] = old == 'A' ? 'B' : 'A';
            ms_text changed = {0};
            bool same = ms_api_unseal(&changed, l.key, blob.data, blob.len);
            assert_true(!same || (i + 1 == blob.len && changed.len == n));
            ms_text_free(&changed);
            blob.data[i] = old;
        }
        assert_false(ms_api_unseal(&back, l.key, blob.data, blob.len - 1));
        ms_text_free(&back);
        ms_text_free(&blob);
    }
    assert_false(ms_api_unseal(&(ms_text){0}, l.key, "!", 1));
    assert_false(ms_api_unseal(&(ms_text){0}, l.key, "", 0));
    ms_text blob = {0}, body = {0};
    ms_api_seal(&blob, l.key, "secret", 6);
    ms_text_printf(&body,
                   HEAD ",'input':[" ASKS
                        ",{'type':'reasoning','summary':[],'encrypted_content':'%s'}," SAYS("x") "," ASKS "]}",
                   blob.data);
    parse_good(&r, api, body.data);
    is_text(ms_json_root(r.chat_doc), "messages[1].reasoning_content", "secret");
    ms_api_request_free(&r);
    l.key[5] ^= 1;
    parse_bad_with(api, &l, body.data, 400, "missing_reasoning_state", "input[1].encrypted_content");
    ms_text_free(&blob);
    ms_text_free(&body);
}

static void key_from(const char *text, uint8_t key[MS_API_KEY_BYTES]) {
    char path[] = "/tmp/ms-machine-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    assert_true(ms_api_machine_key(key, path));
    unlink(path);
}

static void machine_keys(void **state) {
    (void)state;
    uint8_t a[MS_API_KEY_BYTES], b[MS_API_KEY_BYTES];
    key_from("0123456789abcdef0123456789abcdef\n", a);
    key_from("0123456789abcdef0123456789abcdef", b);
    assert_memory_equal(a, b, sizeof a);
    key_from("0123456789abcdef0123456789abcdee\n", b);
    assert_memory_not_equal(a, b, sizeof a);
    /* No id: random, each time another. */
    static const char *const none[] = {"", "uninitialized\n", "0123456789abcdef\n",
                                       "0123456789abcdef0123456789abcdef0\n"};
    for (size_t i = 0; i < 4; i++) {
        key_from(none[i], a);
        key_from(none[i], b);
        assert_memory_not_equal(a, b, sizeof a);
    }
    assert_true(ms_api_machine_key(a, "/nowhere/at/all"));
    assert_true(ms_api_machine_key(b, "/nowhere/at/all"));
    assert_memory_not_equal(a, b, sizeof a);
}

static bool history(void *arg, const char *id, size_t len, ms_text *messages) {
    const char *known = arg;
    if (len != strlen(known) || memcmp(known, id, len) != 0) return false;
    ms_text_puts(messages,
                 json("{'role':'system','content':'sys'},{'role':'user','content':'q'},{'role':'assistant',"
                      "'reasoning_content':'live thought','content':'','tool_calls':[{'id':'live','type':'function',"
                      "'function':{'name':'f','arguments':'{\\'a\\': 1}'}}]}"));
    return true;
}

static void remembered_calls(void **state) {
    (void)state;
    ms_api_request r;
    ms_api_limits l = k3_limits();
    l.needs_reasoning = true;
    char known[] = "live";
    l.call_history = history;
    l.call_history_arg = known;
#define LIVE                                                                                                           \
    "{'messages':[{'role':'system','content':'sys'},{'role':'user','content':'q'},{'role':'assistant',"                \
    "'reasoning_content':'live thought','content':'','tool_calls':[{'type':'function','id':'live','function':"         \
    "{'name':'f','arguments':'{\\\"a\\\": 1}'}}]},{'role':'tool','tool_call_id':'live','content':'rlive'}]" END
    parse_good_with(&r, api, &l, INPUT(OUTPUT("live")));
    chat_is(&r, LIVE);
    ms_api_request_free(&r);
    parse_good_with(&r, api, &l, HEAD ",'instructions':'sys','input':[" OUTPUT("live") "]}");
    chat_is(&r, LIVE);
    ms_api_request_free(&r);
    parse_good_with(&r, api, &l, HEAD ",'instructions':'other','input':[" OUTPUT("live") "]}");
    is_text(ms_json_root(r.chat_doc), "messages[0].content", "other");
    is_text(ms_json_root(r.chat_doc), "messages[1].content", "sys");
    ms_api_request_free(&r);
    /* The whole input but without its reasoning item. */
    parse_good_with(&r, api, &l, INPUT(ASKS "," CALL("live") "," OUTPUT("live")));
    is_text(ms_json_root(r.chat_doc), "messages[1].reasoning_content", "live thought");
    ms_api_request_free(&r);
    parse_bad_with(api, &l, INPUT(ASKS "," CALL("gone") "," OUTPUT("gone")), 400, "missing_reasoning_state",
                   "input[1]");
    parse_bad_with(api, &l, INPUT(OUTPUT("gone")), 400, "unknown_call_id", "input[0].call_id");
    parse_bad_with(api, &l, INPUT(OUTPUT("live") "," OUTPUT("live")), 400, "tool_history_invalid", "input[1]");
    /* Of several such turns the last one's conversation has all. */
    parse_bad_with(api, &l, INPUT(ASKS "," CALL("gone") "," OUTPUT("gone") "," CALL("live") "," OUTPUT("live")), 400,
                   "missing_reasoning_state", "input[1]");
    parse_good_with(&r, api, &l, INPUT(CALL("live") "," OUTPUT("live") "," CALL("live") "," OUTPUT("live")));
    is_text(ms_json_root(r.chat_doc), "messages[0].reasoning_content", "live thought");
    is_text(ms_json_root(r.chat_doc), "messages[2].reasoning_content", "live thought");
    ms_api_request_free(&r);
    /* An item that says there was no reasoning is enough. */
    parse_good_with(&r, api, &l,
                    INPUT(ASKS ",{'type':'reasoning','summary':[],'content':[]}," CALL("gone") "," OUTPUT("gone")));
    is_text(ms_json_root(r.chat_doc), "messages[1].reasoning_content", "");
    ms_api_request_free(&r);
    parse_bad_with(api, &l, INPUT(ASKS ",{'type':'reasoning','summary':[]}," CALL("gone") "," OUTPUT("gone")), 400,
                   "missing_reasoning_state", "input[1]");
    l.needs_reasoning = false;
    parse_good_with(&r, api, &l, INPUT(ASKS "," CALL("gone") "," OUTPUT("gone")));
    ms_api_request_free(&r);
}

/* ------------------------------------------------------------------ replies */

static const reply full = {
    .reasoning = "Think \xf0\x9f\x98\x80\xe6\xbc\xa2 \"x\"\n",
    .content = "Answer \xf0\x9f\x8e\x89\xf0\x9f\x8e\x89 \\",
    .calls = {{"get_weather", "{\"city\":\"Z\xc3\xbcrich \xf0\x9f\x8c\xa7\",\"n\":1.50}"}, {"none", "{}"}},
    .call_count = 2,
    .finish = MS_API_TOOL_CALLS};

static void check_output(const ms_json *d, bool summary) {
    is_text(d, "status", "completed");
    is_text(d, "object", "response");
    assert_int_equal(at(d, "output")->count, 4);
    is_text(d, "output[0].type", "reasoning");
    is_text(d, summary ? "output[0].summary[0].text" : "output[0].content[0].text", full.reasoning);
    is_text(d, "output[1].content[0].text", full.content);
    is_text(d, "output[1].role", "assistant");
    is_text(d, "output[2].name", "get_weather");
    is_text(d, "output[2].arguments", full.calls[0].arguments);
    is_text(d, "output[3].arguments", "{}");
    assert_memory_equal(text_at(d, "output[2].call_id"), "call_", 5);
    assert_memory_equal(text_at(d, "output[2].id"), "fc_", 3);
    assert_string_not_equal(text_at(d, "output[2].call_id"), text_at(d, "output[3].call_id"));
    is_number(d, "usage.input_tokens", 30);
    is_number(d, "usage.input_tokens_details.cached_tokens", 10);
    is_number(d, "usage.output_tokens_details.reasoning_tokens", 5);
    is_number(d, "usage.total_tokens", 42);
}

static void document(void **state) {
    (void)state;
    ms_api_request r;
    parse_good(&r, api, ASK ",'include':['reasoning.encrypted_content']}");
    ms_text out = write_reply(api, &r, &full, 0), back = {0};
    ms_json_doc *doc = doc_of(&out);
    const ms_json *d = ms_json_root(doc), *blob = at(d, "output[0].encrypted_content");
    check_output(d, false);
    is_text(d, "id", "resp_00112233445566778899aabbccddeeff");
    assert_true(ms_api_unseal(&back, r.key, blob->str, blob->str_len));
    assert_string_equal(back.data, full.reasoning);
    ms_text_free(&back);
    ms_json_free(doc);
    ms_text_free(&out);
    /* A limit inside the thinking: one incomplete item. */
    out = write_reply(api, &r, &(reply){.reasoning = "th", .finish = MS_API_LENGTH}, 0);
    doc = doc_of(&out);
    is_text(ms_json_root(doc), "status", "incomplete");
    is_text(ms_json_root(doc), "incomplete_details.reason", "max_output_tokens");
    is_text(ms_json_root(doc), "output[0].status", "incomplete");
    assert_int_equal(at(ms_json_root(doc), "output")->count, 1);
    ms_json_free(doc);
    ms_text_free(&out);
    /* Thoughts, but nothing said: an empty message, so that there is an answer. */
    out = write_reply(api, &r, &(reply){.reasoning = "th", .finish = MS_API_STOP}, 0);
    doc = doc_of(&out);
    assert_int_equal(at(ms_json_root(doc), "output")->count, 2);
    is_text(ms_json_root(doc), "output[0].content[0].text", "th");
    is_text(ms_json_root(doc), "output[1].content[0].text", "");
    assert_int_equal(at(ms_json_root(doc), "store")->type, MS_JSON_FALSE);
    assert_int_equal(at(ms_json_root(doc), "background")->type, MS_JSON_FALSE);
    ms_json_free(doc);
    ms_text_free(&out);
    /* Nothing said at all. */
    out = write_reply(api, &r, &(reply){.finish = MS_API_STOP}, 0);
    doc = doc_of(&out);
    assert_int_equal(at(ms_json_root(doc), "output")->count, 2);
    assert_int_equal(at(ms_json_root(doc), "output[0].content")->count, 0);
    is_text(ms_json_root(doc), "output[1].content[0].text", "");
    ms_json_free(doc);
    ms_text_free(&out);
    ms_api_request_free(&r);
}

/* What a strict client knows of a stream so far. */
typedef struct checker {
    size_t items; /* done */
    bool open, part, text_done, part_done;
    char id[64], type[24];
    ms_text text;
    long long sequence;
    bool ended, summary;
} checker;

static bool is(const char *type, const char *name) {
    return strncmp(type, "response.", 9) == 0 && strcmp(type + 9, name) == 0;
}

static void item_began(checker *c, const ms_json *d) {
    assert_false(c->open);
    is_text(d, "item.status", "in_progress");
    (void)snprintf(c->id, sizeof c->id, "%s", text_at(d, "item.id"));
    (void)snprintf(c->type, sizeof c->type, "%s", text_at(d, "item.type"));
    c->open = true;
    c->part = c->text_done = c->part_done = false;
    c->text.len = 0;
    is_number(d, "output_index", (long long)c->items);
}

static void item_ended(checker *c, const ms_json *d) {
    bool call = strcmp(c->type, "function_call") == 0;
    assert_true(c->open && c->text_done && (call || c->part_done));
    is_text(d, "item.id", c->id);
    is_number(d, "output_index", (long long)c->items++);
    c->open = false;
}

static void take_part(checker *c, const char *type, const ms_json *d) {
    bool call = strcmp(c->type, "function_call") == 0, thinks = strcmp(c->type, "reasoning") == 0;
    bool summary = thinks && c->summary;
    const char *prefix = call      ? "function_call_arguments"
                         : !thinks ? "output_text"
                         : summary ? "reasoning_summary_text"
                                   : "reasoning_text";
    char delta[64], done[64];
    (void)snprintf(delta, sizeof delta, "response.%s.delta", prefix);
    (void)snprintf(done, sizeof done, "response.%s.done", prefix);
    assert_true(c->open);
    is_text(d, "item_id", c->id);
    is_number(d, "output_index", (long long)c->items);
    if (!call) is_number(d, summary ? "summary_index" : "content_index", 0);
    if (strcmp(type, delta) == 0) {
        assert_true((c->part || call) && !c->text_done);
        ms_text_puts(&c->text, text_at(d, "delta"));
        assert_int_equal(at(d, "logprobs") != NULL, !call && !thinks);
    } else if (strcmp(type, done) == 0) {
        assert_true((c->part || call) && !c->text_done);
        is_text(d, call ? "arguments" : "text", c->text.len ? c->text.data : "");
        c->text_done = true;
    } else if (is(type, summary ? "reasoning_summary_part.added" : "content_part.added")) {
        assert_false(c->part || call);
        is_text(d, "part.text", "");
        c->part = true;
    } else {
        assert_string_equal(type + 9, summary ? "reasoning_summary_part.done" : "content_part.done");
        assert_true(c->text_done && !c->part_done);
        is_text(d, "part.text", c->text.len ? c->text.data : "");
        c->part_done = true;
    }
}

static void take_event(checker *c, const sse_event *e) {
    if (e->comment) return;
    const ms_json *d = ms_json_root(e->doc);
    const char *type = text_at(d, "type");
    assert_string_equal(e->event, type);
    assert_false(c->ended);
    is_number(d, "sequence_number", c->sequence);
    if (c->sequence < 2) {
        assert_true(is(type, c->sequence ? "in_progress" : "created"));
        is_text(d, "response.status", "in_progress");
    } else if (is(type, "output_item.added")) {
        item_began(c, d);
    } else if (is(type, "output_item.done")) {
        item_ended(c, d);
    } else if (is(type, "completed") || is(type, "incomplete") || is(type, "failed")) {
        assert_true(!c->open || is(type, "failed"));
        c->ended = true;
    } else {
        take_part(c, type, d);
    }
    c->sequence++;
}

static void streams(void **state) {
    (void)state;
    for (int summary = 0; summary < 2; summary++) {
        ms_api_request r;
        parse_good(&r, api, summary ? ASK ",'stream':true,'reasoning':{'summary':'auto'}}" : ASK ",'stream':true}");
        for (unsigned seed = 0; seed < 200; seed++) {
            ms_text out = write_reply(api, &r, &full, seed);
            sse s = sse_read(&out);
            checker c = {.summary = summary};
            for (size_t i = 0; i < s.count; i++) take_event(&c, &s.items[i]);
            assert_true(c.ended && c.items == 4);
            check_output(at(ms_json_root(s.items[s.count - 1].doc), "response"), summary);
            ms_text_free(&c.text);
            sse_free(&s);
            ms_text_free(&out);
        }
        ms_api_request_free(&r);
    }
}

static void other_ends(void **state) {
    (void)state;
    ms_api_request r;
    ms_api_error e;
    (void)ms_api_fail(&e, 504, "deadline_exceeded", NULL, "too late");
    parse_good(&r, api, ASK ",'stream':true,'instructions':'a secret instruction'}");
    for (int failed = 0; failed < 2; failed++) {
        reply cut = {.reasoning = "th", .content = "ans", .finish = MS_API_LENGTH, .error = failed ? &e : NULL};
        ms_text out = write_reply(api, &r, &cut, 7);
        sse s = sse_read(&out);
        checker c = {0};
        for (size_t i = 0; i < s.count; i++) take_event(&c, &s.items[i]);
        assert_true(c.ended);
        const ms_json *d = ms_json_root(s.items[s.count - 1].doc);
        is_text(d, "type", failed ? "response.failed" : "response.incomplete");
        is_text(d, "response.status", failed ? "failed" : "incomplete");
        if (failed) is_text(d, "response.error.code", "deadline_exceeded");
        if (failed) is_number(d, "response.error.status", 504);
        if (!failed) is_text(d, "response.output[1].status", "incomplete");
        ms_text_free(&c.text);
        sse_free(&s);
        ms_text_free(&out);
    }
    ms_api_request_free(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(types_and_paths), cmocka_unit_test(basics),           cmocka_unit_test(tools),
        cmocka_unit_test(items),           cmocka_unit_test(sealed_reasoning), cmocka_unit_test(machine_keys),
        cmocka_unit_test(document),        cmocka_unit_test(remembered_calls), cmocka_unit_test(streams),
        cmocka_unit_test(other_ends)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
