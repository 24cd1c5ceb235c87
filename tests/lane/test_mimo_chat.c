/* MiMo V2.6 chat: rendering beyond the released cases, refusals, and reading generated messages id by id. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "lane/mimo26/mimo_chat.h"

static ms_tokenizer *tokenizer;

static int open_tokenizer(void **state) {
    (void)state;
    ms_error err;
    if (ms_tokenizer_open_hf(&tokenizer, "tests/text/hf/tokenizer.json", &err) == MS_OK) return 0;
    print_message("%s\n", err.message);
    return -1;
}

static int close_tokenizer(void **state) {
    (void)state;
    ms_tokenizer_close(tokenizer);
    return 0;
}

/* ------------------------------------------------------------------ rendering */

static ms_status render(const char *request, ms_segments *out, ms_error *err) {
    ms_json_doc *doc;
    assert_int_equal(ms_json_parse(&doc, request, strlen(request), "test", NULL, err), MS_OK);
    ms_status status = mimo_render(ms_json_root(doc), out, err);
    ms_json_free(doc);
    return status;
}

#define S           "<|im_start|>"
#define E           "<|im_end|>"
#define PROMPT      E S "assistant\n"
#define TOOLS(list) S "system\nYou are provided with the following tools:\n\n<tools>\n" list "\n</tools>" E

static const char *const renderings[][2] = {
    {"{\"messages\":[]}", S "assistant\n"},
    {"{\"messages\":[{\"role\":\"user\",\"content\":\"\"}],\"thinking\":false}", S "user\n" PROMPT "<think></think>"},
    {"{\"messages\":[{\"role\":\"user\",\"content\":null}],\"thinking\":null}", S "user\n" PROMPT},
    {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"text\":\"t\"}]}],\"enable_thinking\":\"no\"}",
     S "user\nt" PROMPT},
    {"{\"messages\":[{\"role\":\"user\",\"content\":\"u\"}],\"enable_thinking\":false}",
     S "user\nu" PROMPT "<think></think>"},
    {"{\"messages\":[{\"role\":\"user\"}],\"enable_thinking\":true,\"tools\":[],\"thinking_effort\":\"max\"}",
     S "user\n" PROMPT},
    /* roles as they come, system anywhere, nothing is trimmed */
    {"{\"messages\":[{\"role\":\"user\",\"content\":\" a "
     "\\n\"},{\"role\":\"system\",\"content\":\"b\"},{\"role\":\"critic\",\"content\":\"c\"}]}",
     S "user\n a \n" E S "system\nb" E S "critic\nc" PROMPT},
    /* parts, and text that spells structure */
    {"{\"messages\":[{\"role\":\"user\",\"content\":[\"x\",{\"type\":\"text\",\"text\":\"<|im_end|>\"},{\"type\":"
     "\"text\",\"text\":\"\"}]}]}",
     S "user\nx<|im_end|>" PROMPT},
    {"{\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},\"b\"],\"reasoning_"
     "content\":7}],\"add_generation_prompt\":false}",
     S "assistant\n<think></think>ab" E},
    /* tools as they come: order, spelling of numbers, characters beyond ASCII, escapes */
    {"{\"messages\":[],\"add_generation_prompt\":false,\"tools\":[{\"z\":1.0,\"a\":[1e-5,1E2,-0,10,0.5,"
     "12345678901234567890],\"s\":\"\\u00fc\\u0001\\/\\u007f\\\"\\n\",\"n\":null,\"e\":{},\"l\":[]}]}",
     TOOLS("{\"z\": 1.0, \"a\": [1e-05, 100.0, 0, 10, 0.5, 12345678901234567890], \"s\": "
           "\"\xC3\xBC\\u0001/\x7F\\\"\\n\", \"n\": null, \"e\": {}, \"l\": []}")},
    {"{\"messages\":[],\"add_generation_prompt\":false,\"tools\":[{\"name\":\"a\"},{\"name\":\"b\"}]}",
     TOOLS("{\"name\": \"a\"}\n{\"name\": \"b\"}")},
    /* tools that a message brings */
    {"{\"messages\":[{\"role\":\"system\",\"content\":\"more\",\"tools\":[{\"name\":\"a\"}]},{\"role\":\"system\","
     "\"tools\":[{\"name\":\"b\"}]},{\"role\":\"user\",\"content\":\"c\",\"tools\":[]},{\"role\":\"assistant\","
     "\"tools\":[{\"name\":\"d\"}]}],\"add_generation_prompt\":false}",
     S "system\nmore\n\nYou are provided with the following tools:\n\n<tools>\n{\"name\": \"a\"}\n</tools>" E S
       "system\nYou are provided with the following tools:\n\n<tools>\n{\"name\": \"b\"}\n</tools>" E S "user\nc" E S
       "assistant\n<think></think>" E},
    /* calls: an object, its text, neither, nothing; with and without wrapper */
    {"{\"messages\":[{\"role\":\"assistant\",\"content\":\"t\",\"reasoning_content\":\"r\",\"tool_calls\":[{"
     "\"function\":{\"name\":\"f\",\"arguments\":{\"a\":\"x\\ny\",\"b\":1e2,\"c\":[true,null,\"q\"],\"d\":{\"k\":\"v\"}"
     ",\"a\":\"z\"}}},{\"function\":{\"name\":\"g\",\"arguments\":\"{\\\"p\\\": 1.50, \\\"q\\\": "
     "\\\"<s>\\\"}\"}},{\"name\":\"h\",\"arguments\":\"\"},{\"name\":\"i\"},{\"function\":{\"name\":\"j\","
     "\"arguments\":\"[1]\"}},{\"custom\":{\"name\":\"k\",\"input\":\"{\\\"raw\\\": "
     "1}\"}},{\"function\":{\"name\":\"l\",\"arguments\":null}}]}],\"add_generation_prompt\":false}",
     S "assistant\n<think>r</think>t<tool_call><function=f><parameter=a>z</parameter><parameter=b>100.0</"
       "parameter><parameter=c>[true, null, \"q\"]</parameter><parameter=d>{\"k\": "
       "\"v\"}</parameter></function></tool_call>"
       "<tool_call><function=g><parameter=p>1.5</parameter><parameter=q><s></parameter></function></tool_call>"
       "<tool_call><function=h></function></tool_call><tool_call><function=i></function></"
       "tool_call><tool_call><function=j>[1]</function></tool_call>"
       "<tool_call><function=k>{\"raw\": 1}</function></tool_call><tool_call><function=l></function></tool_call>" E},
    /* results: one turn each, the id is not shown */
    {"{\"messages\":[{\"role\":\"tool\",\"tool_call_id\":\"x\",\"content\":[{\"type\":\"text\",\"text\":\"1\"}]},{"
     "\"role\":\"tool\",\"content\":\"\"}]}",
     S "tool\n1" E S "tool\n" PROMPT},
};

static void requests_render(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof renderings / sizeof renderings[0]; i++) {
        ms_segments s = {0};
        ms_text all = {0};
        ms_error err;
        if (render(renderings[i][0], &s, &err) != MS_OK) fail_msg("%s: %s", renderings[i][0], err.message);
        for (size_t k = 0; k < s.count; k++) {
            ms_text_append(&all, s.items[k].text, s.items[k].len);
            assert_true(s.items[k].len > 0);
            assert_true(!k || s.items[k].control || s.items[k - 1].control); /* texts do not touch */
        }
        if (strcmp(all.data, renderings[i][1]) != 0)
            fail_msg("%s:\nexpected %s\nfound    %s", renderings[i][0], renderings[i][1], all.data);
        ms_segments_free(&s);
        ms_text_free(&all);
    }
}

/* What a request says never becomes a control token. */
static void text_stays_text(void **state) {
    (void)state;
    ms_segments s = {0};
    ms_ids ids = {0};
    ms_error err;
    uint32_t end;
    assert_int_equal(render("{\"messages\":[{\"role\":\"<|im_end|>\",\"content\":\"<|im_end|><think>\"}],\"tools\":[{"
                            "\"name\":\"<|im_end|>\"}]}",
                            &s, &err),
                     MS_OK);
    assert_int_equal(ms_segments_encode(&s, tokenizer, &ids, &err), MS_OK);
    assert_true(ms_tokenizer_control_id(tokenizer, E, strlen(E), &end));
    size_t ends = 0;
    for (size_t i = 0; i < ids.count; i++) ends += ids.data[i] == end;
    assert_int_equal(ends, 2);
    ms_segments_free(&s);
    ms_ids_free(&ids);
}

static const char *const refusals[][2] = {
    {"[]", "request"},
    {"{}", "messages: expected an array"},
    {"{\"messages\":{}}", "messages: expected an array"},
    {"{\"messages\":[1]}", "messages[0]"},
    {"{\"messages\":[{}]}", "messages[0].role"},
    {"{\"messages\":[{\"role\":\"\"}]}", "messages[0].role"},
    {"{\"messages\":[{\"role\":3}]}", "messages[0].role"},
    {"{\"messages\":[{\"role\":\"user\",\"content\":1}]}", "messages[0].content"},
    {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{}}]}]}",
     "messages[0].content[0]: expected a text part"},
    {"{\"messages\":[{\"role\":\"user\",\"content\":[\"a\",{\"type\":\"text\"}]}]}", "messages[0].content[1]"},
    {"{\"messages\":[{\"role\":\"user\",\"content\":[2]}]}", "messages[0].content[0]"},
    {"{\"messages\":[],\"tools\":{}}", "tools: expected an array"},
    {"{\"messages\":[],\"tools\":[\"x\"]}", "tools[0]"},
    {"{\"messages\":[{\"role\":\"user\",\"tools\":[1]}]}", "messages[0].tools[0]"},
    {"{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":{}}]}", "messages[0].tool_calls"},
    {"{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{}}]}]}", "tool_calls[0].function.name"},
    {"{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"name\":\"\"}]}]}", "tool_calls[0].function.name"},
    {"{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"name\":\"f\",\"arguments\":[1]}]}]}",
     "arguments: expected an object"},
    {"{\"messages\":[],\"thinking\":1}", "thinking: expected true or false"},
    {"{\"messages\":[],\"add_generation_prompt\":0}", "add_generation_prompt"},
};

static void bad_requests_are_refused(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        ms_segments s = {0};
        ms_error err = {0};
        assert_int_equal(ms_segments_push(&s, false, "kept", 4, &err), MS_OK);
        if (render(refusals[i][0], &s, &err) != MS_ERR_USAGE) fail_msg("%s was accepted", refusals[i][0]);
        if (!strstr(err.message, refusals[i][1])) fail_msg("%s: %s", refusals[i][0], err.message);
        assert_int_equal(s.count, 1);
        ms_segments_free(&s);
    }
}

/* ------------------------------------------------------------------ reading replies */

typedef struct reading {
    const char *output; /* control tokens by their names */
    ms_channel channel;
    const char *reasoning, *content, *calls; /* calls: name(arguments) joined with ; */
    ms_reply_status status;
} reading;

static const char declared[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{\"s\":{"
    "\"type\":\"string\"},"
    "\"i\":{\"type\":\"integer\"},\"b\":{\"type\":\"boolean\"},\"o\":{\"type\":\"object\"},\"a\":{\"type\":\"array\"},"
    "\"n\":{\"type\":\"null\"},"
    "\"u\":{\"type\":[\"string\",\"null\"]},\"m\":{\"type\":[\"integer\",\"null\"]},\"any\":{}}}}},"
    "{\"name\":\"g\",\"input_schema\":{\"properties\":{\"s\":{\"type\":\"string\"}}}}]";

#define C       "<tool_call>"
#define D       "</tool_call>"
#define P(k, v) "<parameter=" k ">" v "</parameter>"
#define T       MS_CHANNEL_THINK
#define R       MS_CHANNEL_RESPONSE
static const reading readings[] = {
    {"<think>why</think>hi" E, T, "why", "hi", "", MS_REPLY_COMPLETE},
    {"why</think>hi" E, T, "why", "hi", "", MS_REPLY_COMPLETE},
    {"<think><think>a</think></think>b" E, T, "<think>a", "</think>b", "", MS_REPLY_COMPLETE},
    {"a<think>b</think>", T, "a<think>b", "", "", MS_REPLY_TRUNCATED},
    {"<think>never ends", T, "never ends", "", "", MS_REPLY_TRUNCATED},
    {"<think>" C "<function=f></function>" D "x" E, T, "<tool_call><function=f></function></tool_call>x", "", "",
     MS_REPLY_COMPLETE},
    {"", T, "", "", "", MS_REPLY_TRUNCATED},
    {E, R, "", "", "", MS_REPLY_COMPLETE},
    {" plain \n" E, R, "", " plain \n", "", MS_REPLY_COMPLETE},
    {"<think>no</think>" E, R, "", "<think>no</think>", "", MS_REPLY_COMPLETE},
    {"a<|vision_pad|>b<tool_response>c" E, R, "", "ab<tool_response>c", "", MS_REPLY_COMPLETE},
    {"done" E "more", R, "", "done", "", MS_REPLY_COMPLETE},
    /* calls */
    {C "<function=f></function>" D E, R, "", "", "f({})", MS_REPLY_COMPLETE},
    {"see " C "<function=f>" P("s", "42") P("i", "42") "</function>" D E, R, "", "see ", "f({\"s\":\"42\",\"i\":42})",
     MS_REPLY_COMPLETE},
    {C "<function=f>" P("s", "\n a <b> & \"q\"\\ \n") "</function>" D C "<function=g>" P("s", "null")
         P("x", "null") "</function>" D E,
     R, "", "", "f({\"s\":\"\\n a <b> & \\\"q\\\"\\\\ \\n\"});g({\"s\":\"null\",\"x\":null})", MS_REPLY_COMPLETE},
    {C "\n<function=f>\n" P("b", "true") "\n" P("o", "{\"k\": [1, 2.50]}") "\n" P(
         "a", " [1] ") "\n</function>\n" D "\n" C "<function=h>" P("q", "1e3") P("r", "a b") "</function>" D "\n" E,
     R, "", "", "f({\"b\":true,\"o\":{\"k\": [1, 2.50]},\"a\":[1]});h({\"q\":1e3,\"r\":\"a b\"})", MS_REPLY_COMPLETE},
    {C "<function=f>" P("i", "many") P("b", "") P("n", "null") P("u", "null") P("m", "null") P("any", "7")
         P("any2", "[") "</function>" D E,
     R, "", "", "f({\"i\":\"many\",\"b\":\"\",\"n\":null,\"u\":\"null\",\"m\":null,\"any\":7,\"any2\":\"[\"})",
     MS_REPLY_COMPLETE},
    {C "<function=f>{\"s\": 1, \"t\": [2]}</function>" D E, R, "", "", "f({\"s\": 1, \"t\": [2]})", MS_REPLY_COMPLETE},
    {C "<function=f>{\"s\": \"</function>\"} </function>\n" D E, R, "", "", "f({\"s\": \"</function>\"})",
     MS_REPLY_COMPLETE},
    {C "<function=f>{}</function></function>" D E, R, "", "<tool_call><function=f>{}</function></function></tool_call>",
     "", MS_REPLY_COMPLETE},
    {C "<function=f>" P("s", "<think>x</think>" C) "</function>" D E, R, "", "",
     "f({\"s\":\"<think>x</think><tool_call>\"})", MS_REPLY_COMPLETE},
    /* text behind a call is kept, white space is not */
    {C "<function=f></function>" D "\n\n" E, R, "", "", "f({})", MS_REPLY_COMPLETE},
    {"a" C "<function=f></function>" D " \nb \n" C "<function=g></function>" D E, R, "", "a \nb \n", "f({});g({})",
     MS_REPLY_COMPLETE},
    /* what is no call is text */
    {C "<function=></function>" D E, R, "", "<tool_call><function=></function></tool_call>", "", MS_REPLY_COMPLETE},
    {C "hello" D " x" E, R, "", "<tool_call>hello</tool_call> x", "", MS_REPLY_COMPLETE},
    {C "<function=f>[1]</function>" D E, R, "", "<tool_call><function=f>[1]</function></tool_call>", "",
     MS_REPLY_COMPLETE},
    {C "<function=f>" P("s", "a") "b</function>" D E, R, "",
     "<tool_call><function=f><parameter=s>a</parameter>b</function></tool_call>", "", MS_REPLY_COMPLETE},
    {C "<function=f>" P("s", "a") D E, R, "", "<tool_call><function=f><parameter=s>a</parameter></tool_call>", "",
     MS_REPLY_COMPLETE},
    {C "<function=f></function>x" D E, R, "", "<tool_call><function=f></function>x</tool_call>", "", MS_REPLY_COMPLETE},
    {"t" C "<function=f>" P("s", "cut"), R, "", "t<tool_call><function=f><parameter=s>cut</parameter>", "",
     MS_REPLY_TRUNCATED},
    {C "<function=f></function>" D " " C "<fun" E, R, "", " <tool_call><fun", "f({})", MS_REPLY_COMPLETE},
    {D "x" E, R, "", "</tool_call>x", "", MS_REPLY_COMPLETE},
};

/* What was told of the reply's calls so far. */
typedef struct told {
    size_t count;
    ms_text name, arguments; /* of the one that was open last */
} told;

/* The calls after an id: none goes away, and the text of the open one grows to what it is in the end. */
static void check_calls(const mimo_parser *p, told *t) {
    ms_call_view v;
    mimo_parser_calls(p, &v);
    assert_true(v.count == t->count || v.count == t->count + 1);
    const ms_tool_call *done = v.count > t->count ? &v.whole[t->count] : NULL;
    const char *arguments = done ? done->arguments : v.arguments;
    size_t len = done ? done->arguments_len : v.arguments_len;
    if (done || (v.name && t->name.len)) {
        const char *name = done ? done->name : v.name;
        assert_true(len >= t->arguments.len && ms_utf8_valid(arguments, len));
        if (t->name.len) assert_string_equal(name, t->name.data);
        if (t->arguments.len) assert_memory_equal(arguments, t->arguments.data, t->arguments.len);
    }
    t->count = v.count;
    t->name.len = t->arguments.len = 0;
    if (!v.name) return;
    ms_text_append(&t->name, v.name, v.name_len);
    ms_text_append(&t->arguments, v.arguments, v.arguments_len);
}

static void told_free(told *t) {
    ms_text_free(&t->name);
    ms_text_free(&t->arguments);
}

static void check_delta(ms_text *sum, const ms_text *delta) { ms_text_append(sum, delta->data, delta->len); }

static void read_one(const reading *r, bool with_tools) {
    ms_ids ids = {0};
    ms_error err;
    mimo_parser *p;
    ms_reply reply;
    ms_reply_delta delta = {.channel = MS_CHANNEL_NONE};
    ms_text reasoning = {0}, content = {0}, calls = {0};
    bool done = false;
    assert_int_equal(ms_tokenizer_encode(tokenizer, r->output, strlen(r->output), true, &ids, &err), MS_OK);
    assert_int_equal(mimo_parser_create(&p, tokenizer, r->channel, &err), MS_OK);
    if (with_tools) {
        ms_json_doc *doc;
        assert_int_equal(ms_json_parse(&doc, declared, strlen(declared), "tools", NULL, &err), MS_OK);
        assert_int_equal(mimo_parser_tools(p, ms_json_root(doc), &err), MS_OK);
        ms_json_free(doc);
    }
    told calls_told = {0};
    for (size_t i = 0; i < ids.count; i++) {
        assert_int_equal(mimo_parser_push(p, ids.data[i], &delta, &done, &err), MS_OK);
        check_calls(p, &calls_told);
        check_delta(&reasoning, &delta.reasoning);
        check_delta(&content, &delta.content);
    }
    assert_int_equal(done, r->status == MS_REPLY_COMPLETE);
    assert_int_equal(mimo_parser_finish(p, &delta, &reply, &err), MS_OK);
    check_delta(&reasoning, &delta.reasoning);
    check_delta(&content, &delta.content);
    ms_text_puts(&calls, "");
    assert_int_equal(calls_told.count, reply.call_count);
    told_free(&calls_told);
    for (size_t i = 0; i < reply.call_count; i++)
        ms_text_printf(&calls, "%s%s(%s)", i ? ";" : "", reply.calls[i].name, reply.calls[i].arguments);
    if (with_tools && (strcmp(reply.reasoning, r->reasoning) != 0 || strcmp(reply.content, r->content) != 0 ||
                       strcmp(calls.data ? calls.data : "", r->calls) != 0 || reply.status != r->status))
        fail_msg("%s:\nexpected \"%s\" \"%s\" %s\nfound    \"%s\" \"%s\" %s", r->output, r->reasoning, r->content,
                 r->calls, reply.reasoning, reply.content, calls.data ? calls.data : "");
    /* the deltas are the whole */
    assert_int_equal(reasoning.len, reply.reasoning_len);
    assert_int_equal(content.len, reply.content_len);
    if (content.len) assert_memory_equal(content.data, reply.content, content.len);
    ms_reply_free(&reply);
    ms_text_free(&delta.reasoning);
    ms_text_free(&delta.content);
    ms_text_free(&reasoning);
    ms_text_free(&content);
    ms_text_free(&calls);
    ms_ids_free(&ids);
    mimo_parser_destroy(p);
}

static void replies_are_read(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof readings / sizeof readings[0]; i++) {
        read_one(&readings[i], true);
        read_one(&readings[i], false);
    }
}

/* Each id's channel, and whether the reply is where calls are: t(hink), r(esponse) or - for neither; N where calls are. */
static void channels_are_told(void **state) {
    (void)state;
    static const char output[] = "<think>a</think>b" C "c" D " " C "d" D "e";
    ms_ids ids = {0};
    ms_error err;
    mimo_parser *p;
    ms_reply_delta delta = {.channel = MS_CHANNEL_NONE};
    bool done;
    ms_text found = {0};
    assert_int_equal(ms_tokenizer_encode(tokenizer, output, strlen(output), true, &ids, &err), MS_OK);
    assert_int_equal(mimo_parser_create(&p, tokenizer, T, &err), MS_OK);
    for (size_t i = 0; i < ids.count; i++) {
        assert_int_equal(mimo_parser_push(p, ids.data[i], &delta, &done, &err), MS_OK);
        ms_text_puts(&found, delta.in_tools ? "N" : (const char *const[]){"-", "t", "r"}[delta.channel]);
        assert_true(!delta.in_tools || delta.channel != MS_CHANNEL_THINK);
    }
    assert_int_equal(found.len, ids.count);
    assert_string_equal(found.data, "-t-rNN-rNN-r");
    mimo_parser_destroy(p);
    ms_text_free(&found);
    ms_text_free(&delta.reasoning);
    ms_text_free(&delta.content);
    ms_ids_free(&ids);
}

/* Open arguments behind every byte of a call: how many bytes of them are known. */
static void calls_are_told_as_they_come(void **state) {
    (void)state;
    static const struct {
        const char *before, *after;   /* pushed one after the other */
        const char *name, *arguments; /* as told between them; NULL: no call is */
    } cases[] = {
        {C "<function=", "f>", NULL, NULL},
        {C "<function=f", "></function>" D, NULL, NULL},
        {C "<function=f>", "</function>" D, "f", ""},
        {C "\n<function=f>\n<param", "eter=s>a</parameter></function>" D, "f", ""},
        {C "<function=f><parameter=s>", "</parameter></function>" D, "f", "{\"s\":\""},
        {C "<function=f><parameter=s>a\"b</par", "a</parameter></function>" D, "f", "{\"s\":\"a\\\"b"},
        {C "<function=f><parameter=s>a</par\n<", "</parameter></function>" D, "f", "{\"s\":\"a</par\\n"},
        {C "<function=f><parameter=s>a</parameter>", "</function>" D, "f", "{\"s\":\"a\""},
        {C "<function=f><parameter=i>12", "34</parameter></function>" D, "f", "{\"i\":"},
        {C "<function=f><parameter=i>12</parameter>", "</function>" D, "f", "{\"i\":12"},
        {C "<function=f><parameter=i>1</parameter><parameter=s>\xe6\x97\xa5", "</parameter></function>" D, "f",
         "{\"i\":1,\"s\":\"\xe6\x97\xa5"},
        {C "<function=f>{\"a\": [\"}\\\"\", ", "1]}</function>" D, "f", "{\"a\": [\"}\\\"\", "},
        {C "<function=f>{\"a\": 1} ", "</function>" D, "f", "{\"a\": 1}"},
        {C "<function=f></function>", D, "f", "{}"},
        {C "<function=f></function>x", D, NULL, NULL},
        {C "hello", D, NULL, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ms_ids ids = {0};
        ms_error err;
        mimo_parser *p;
        bool done;
        ms_call_view v;
        assert_int_equal(ms_tokenizer_encode(tokenizer, cases[i].before, strlen(cases[i].before), true, &ids, &err),
                         MS_OK);
        size_t between = ids.count;
        assert_int_equal(ms_tokenizer_encode(tokenizer, cases[i].after, strlen(cases[i].after), true, &ids, &err),
                         MS_OK);
        assert_int_equal(mimo_parser_create(&p, tokenizer, R, &err), MS_OK);
        ms_json_doc *doc;
        assert_int_equal(ms_json_parse(&doc, declared, strlen(declared), "tools", NULL, &err), MS_OK);
        assert_int_equal(mimo_parser_tools(p, ms_json_root(doc), &err), MS_OK);
        ms_json_free(doc);
        for (size_t k = 0; k < between; k++)
            assert_int_equal(mimo_parser_push(p, ids.data[k], NULL, &done, &err), MS_OK);
        mimo_parser_calls(p, &v);
        assert_int_equal(v.count, 0);
        if (!cases[i].name != !v.name) fail_msg("%s: %s", cases[i].before, v.name ? v.name : "no call");
        if (v.name) assert_string_equal(v.name, cases[i].name);
        if (v.name && (v.arguments_len != strlen(cases[i].arguments) ||
                       memcmp(v.arguments, cases[i].arguments, v.arguments_len) != 0))
            fail_msg("%s: expected %s, found %.*s", cases[i].before, cases[i].arguments, (int)v.arguments_len,
                     v.arguments);
        for (size_t k = between; k < ids.count; k++)
            assert_int_equal(mimo_parser_push(p, ids.data[k], NULL, &done, &err), MS_OK);
        mimo_parser_destroy(p);
        ms_ids_free(&ids);
    }
}

static void unknown_ids_are_refused(void **state) {
    (void)state;
    mimo_parser *p;
    ms_error err;
    bool done;
    assert_int_equal(mimo_parser_create(&p, tokenizer, R, &err), MS_OK);
    assert_int_equal(mimo_parser_push(p, ms_tokenizer_ids(tokenizer), NULL, &done, &err), MS_ERR_USAGE);
    mimo_parser_destroy(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_render),          cmocka_unit_test(text_stays_text),
        cmocka_unit_test(bad_requests_are_refused), cmocka_unit_test(replies_are_read),
        cmocka_unit_test(channels_are_told),        cmocka_unit_test(calls_are_told_as_they_come),
        cmocka_unit_test(unknown_ids_are_refused)};
    return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}
