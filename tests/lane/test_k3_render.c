/* test_k3_render.c: K3 requests as segments and ids: the golden cases, and what they leave open. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "../golden/text_render_cases.c"

static void count_failures(void *arg, const char *name, bool ok, const char *detail) {
    if (ok) return;
    ++*(int *)arg;
    print_error("%s: %s\n", name, detail);
}

static void golden_cases(void **state) {
    (void)state;
    int failures = 0;
    assert_int_equal(golden_render_file("tests/golden/k3-text/render.json", NULL, count_failures, &failures), 101);
    assert_int_equal(failures, 0);
}

static void golden_ids(void **state) {
    (void)state;
    ms_tokenizer *t;
    ms_error err = {0};
    assert_int_equal(ms_tokenizer_open(&t, "tests/golden/k3-text/tok4096.tiktoken", &err), MS_OK);
    int failures = 0;
    assert_int_equal(golden_render_file("tests/golden/k3-text/render.json", t, count_failures, &failures), 101);
    ms_tokenizer_close(t);
    assert_int_equal(failures, 0);
}

/* Renders a request given as text and returns the joined segments (freed by the caller), or NULL. */
static char *render(const char *request, ms_error *err) {
    ms_json_doc *doc;
    assert_int_equal(ms_json_parse(&doc, request, strlen(request), "request", NULL, err), MS_OK);
    ms_segments s = {0};
    ms_text all = {0};
    ms_status status = k3_render(ms_json_root(doc), &s, err);
    for (size_t i = 0; i < s.count; i++) ms_text_append(&all, s.items[i].text, s.items[i].len);
    if (status != MS_OK) assert_int_equal(s.count, 0);
    ms_segments_free(&s);
    ms_json_free(doc);
    return all.data;
}

static void expect(const char *request, const char *part) {
    ms_error err = {0};
    char *all = render(request, &err);
    if (!all) fail_msg("%s", err.message);
    if (!strstr(all, part)) fail_msg("\"%s\" is not in \"%s\"", part, all);
    free(all);
}

static void refuse(const char *request, const char *message) {
    ms_error err = {0};
    char *all = render(request, &err);
    assert_null(all);
    assert_int_equal(err.code, MS_ERR_USAGE);
    assert_string_equal(err.message, message);
}

static void project_rules(void **state) {
    (void)state;
    expect("{\"messages\":[{\"role\":\"developer\",\"content\":\"d\",\"name\":\"n\"}]}",
           "message role=\"system\" name=\"n\"<|sep|>d<|close|>message<|sep|><|end_of_msg|>");
    expect("{\"messages\":[],\"reasoning_effort\":\"high\"}", "`thinking_effort=high`.");
    expect("{\"messages\":[],\"reasoning_effort\":\"high\",\"thinking_effort\":\"low\"}", "`thinking_effort=low`.");
    /* Without thinking there is no note; the value is still checked. */
    expect("{\"messages\":[],\"reasoning_effort\":\"high\",\"thinking\":false,\"add_generation_prompt\":true}",
           "<|open|>message role=\"assistant\"<|sep|><|open|>response<|sep|>");
    refuse("{\"messages\":[],\"reasoning_effort\":\"huge\",\"thinking\":false}",
           "reasoning_effort: expected low, medium, high or max, found \"huge\"");
    /* An object's repeated argument: the last value at the first place; a text keeps both. */
    expect("{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"name\":\"f\",\"arguments\":"
           "{\"a\":1,\"b\":[1,2],\"a\":\"x\"}}]}]}",
           "<|open|>argument key=\"a\" type=\"string\"<|sep|>x<|close|>argument<|sep|>"
           "<|open|>argument key=\"b\" type=\"array\"<|sep|>[1, 2]<|close|>argument<|sep|><|close|>call");
    expect("{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"name\":\"f\",\"arguments\":\" \"}]}]}",
           "<|open|>json type=\"object\"<|sep|> <|close|>json<|sep|><|close|>call");
    /* parallel_tool_calls says nothing when no call may be made. */
    ms_error err = {0};
    char *all = render("{\"messages\":[],\"tools\":[{\"name\":\"f\"}],\"tool_choice\":\"none\","
                       "\"parallel_tool_calls\":false}", &err);
    assert_non_null(all);
    assert_null(strstr(all, "parallel-tool-calls"));
    assert_non_null(strstr(all, "tool_choice=none"));
    free(all);
}

static void refusals_name_the_field(void **state) {
    (void)state;
    refuse("[]", "request: expected an object, found an array");
    refuse("{}", "messages: expected a list, found nothing");
    refuse("{\"messages\":[{\"role\":\"user\"},7]}", "messages[1]: expected an object, found 7");
    refuse("{\"messages\":[{\"role\":\"robot\"}]}",
           "messages[0].role: expected system, user, assistant, tool or developer, found \"robot\"");
    refuse("{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{}}]}]}",
           "messages[0].content[0].type: expected \"text\" (images are not supported), found \"image_url\"");
    refuse("{\"messages\":[{\"role\":\"user\",\"content\":[{\"text\":\"a\"}]}]}",
           "messages[0].content[0].type: expected \"text\", found nothing");
    refuse("{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":3}}]}]}",
           "messages[0].tool_calls[0].function.arguments: expected an object or a string, found 3");
    refuse("{\"messages\":[],\"thinking\":\"yes\"}", "thinking: expected true or false, found \"yes\"");
    refuse("{\"messages\":[],\"tools\":{}}", "tools: expected a list, found an object");
    refuse("{\"messages\":[],\"tool_choice\":\"any\"}",
           "tool_choice: expected auto, required, none or a named function, found \"any\"");
    refuse("{\"messages\":[],\"response_format\":{\"type\":\"xml\"}}",
           "response_format.type: expected text, json_object or json_schema, found \"xml\"");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_cases),
        cmocka_unit_test(golden_ids),
        cmocka_unit_test(project_rules),
        cmocka_unit_test(refusals_name_the_field),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
