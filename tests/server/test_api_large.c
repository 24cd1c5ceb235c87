/* test_api_large.c: bodies of 8 MiB made of very many small things are parsed or refused in time that grows with their
 * size only. */
#include "api_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

enum { BODY_BYTES = 8 << 20, LIMIT_S = 30 }; /* a second or so; minutes where something is quadratic */

/* HEAD, then `item` (with its number for %zu) as often as fits, then `tail`.  code: what it is refused with; NULL:
 * good. */
static void check(const ms_api_codec *codec, const char *head, const char *item, const char *tail, const char *code) {
    ms_text body = {0};
    ms_api_request r;
    ms_api_error err;
    ms_api_limits l = k3_limits();
    l.needs_reasoning = true;
    ms_text_puts(&body, json(head));
    const char *format = json(item);
    for (size_t i = 0; body.len < BODY_BYTES - 400; i++) {
        if (i) ms_text_puts(&body, ",");
        const char *at = strchr(format, '#');
        ms_text_append(&body, format, at ? (size_t)(at - format) : strlen(format));
        if (at) ms_text_printf(&body, "%zu%s", i, at + 1);
    }
    ms_text_puts(&body, json(tail));
    assert_false(body.failed);
    uint64_t start = ms_clock_ns();
    bool good = codec->parse(&r, body.data, body.len, &l, false, &err);
    assert_true(ms_clock_ns() - start < (uint64_t)LIMIT_S * 1000000000u);
    if (good) ms_api_request_free(&r);
    if (good == (code != NULL) || (code && strcmp(code, err.code) != 0)) {
        fail_msg("%s: expected %s, found %s: %s", item, code ? code : "good", err.code ? err.code : "good",
                 err.message);
    }
    ms_text_free(&body);
}

#define CHAT "{'model':'moonshine','messages':["
#define USER "{'role':'user','content':'x'}"

static void chat(void **state) {
    (void)state;
    const ms_api_codec *c = &ms_api_chat;
    check(c, CHAT, USER, "]}", NULL);
    check(c, CHAT "{'role':'user','content':[", "{'type':'text','text':'#'}", "]}]}", NULL);
    check(c, CHAT "{'role':'assistant','tool_calls':[", "{'id':'c#','function':{'name':'f'}}", "]}," USER "]}",
          "tool_history_invalid");
    check(c, CHAT "{'role':'assistant','tool_calls':[{'id':'c0','function':{'name':'f'}}]},",
          "{'role':'tool','tool_call_id':'c#'}", "]}", "tool_history_invalid");
    check(c, CHAT "{'role':'assistant','tool_calls':[", "{'id':'same','function':{'name':'f'}}", "]}," USER "]}",
          "tool_history_invalid");
    check(c, CHAT USER "],'tools':[", "{'type':'function','function':{'name':'f#'}}", "]}", "invalid_tool");
    check(c, CHAT USER "],", "'key_#':0", "}", NULL);
    check(c, CHAT "{'role':'user','content':'x',", "'key_#':0", "}]}", NULL);
    check(c, CHAT USER "],'stop':[", "'#'", "]}", "out_of_range");
    check(c, CHAT USER "],'x':[", "[]", "]}", "invalid_json"); /* more values than are taken */
}

static void completions(void **state) {
    (void)state;
    check(&ms_api_completions, "{'model':'moonshine','prompt':[", "1234567", "]}", "invalid_json");
    check(&ms_api_completions, "{'model':'moonshine','prompt':[", "12345678910", "]}", "out_of_range");
}

#define ANTHROPIC "{'model':'moonshine','max_tokens':5,'messages':["

static void messages(void **state) {
    (void)state;
    const ms_api_codec *c = &ms_api_messages;
    check(c, ANTHROPIC "{'role':'user','content':[", "{'type':'text','text':'#'}", "]}]}", NULL);
    check(c, ANTHROPIC "{'role':'user','content':[", "{'type':'tool_result','tool_use_id':'#'}", "]}]}",
          "tool_history_invalid");
    check(c, ANTHROPIC "{'role':'assistant','content':[", "{'type':'tool_use','id':'t#','name':'f','input':{}}",
          "]}," USER "]}", "tool_history_invalid");
    check(c, ANTHROPIC USER "],'system':[", "{'type':'text','text':'x-anthropic-billing-header: #'}", "]}", NULL);
    check(c, ANTHROPIC USER "],'tools':[", "{'type':'kind_#'}", "]}", NULL);
    check(c, ANTHROPIC "{'role':'assistant','content':[", "{'type':'thinking','thinking':'#'}", "]}," USER "]}", NULL);
}

#define RESPONSES "{'model':'moonshine','input':["

static void responses(void **state) {
    (void)state;
    const ms_api_codec *c = &ms_api_responses;
    check(c, RESPONSES, USER, "]}", NULL);
    check(c, RESPONSES "{'type':'function_call','call_id':'c0','name':'f'},",
          "{'type':'function_call_output','call_id':'c#','output':''}", "]}", "missing_reasoning_state");
    check(c, RESPONSES "{'type':'reasoning','content':[]},", "{'type':'function_call','call_id':'c#','name':'f'}",
          "," USER "]}", "tool_history_invalid");
    check(c, RESPONSES "{'type':'reasoning','content':[]},{'type':'function_call','call_id':'c0','name':'f'},",
          "{'type':'function_call_output','call_id':'c#','output':''}", "]}", "tool_history_invalid");
    check(c, RESPONSES, "{'type':'reasoning','content':[{'text':'#'}]}", "," USER "]}", NULL);
    check(c, RESPONSES, "{'role':'assistant','content':'#'}", "," USER "]}", NULL);
    check(c, RESPONSES USER "],'include':[", "'x#'", "]}", NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(chat), cmocka_unit_test(completions),
                                       cmocka_unit_test(messages), cmocka_unit_test(responses)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
