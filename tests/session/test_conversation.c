/* Conversations as ids: turns only append, cut replies are closed, foreign ids are continued, modes render again. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "session/conversation.h"

static ms_text_model model;

static int open_model(void **state) {
    (void)state;
    return ms_text_model_open(&model, "models/k3-nano", NULL) == MS_OK ? 0 : -1;
}

static int close_model(void **state) {
    (void)state;
    ms_text_model_close(&model);
    return 0;
}

/* The ids of a request, rendered from nothing. */
static ms_ids rendered(const char *request) {
    ms_json_doc *doc = NULL;
    ms_segments s = {0};
    ms_ids ids = {0};
    assert_int_equal(ms_json_parse(&doc, request, strlen(request), "request", NULL, NULL), MS_OK);
    assert_int_equal(model.lane->render(ms_json_root(doc), &s, NULL), MS_OK);
    assert_int_equal(ms_segments_encode(&s, model.tokenizer, &ids, NULL), MS_OK);
    ms_segments_free(&s);
    ms_json_free(doc);
    return ids;
}

static void same_ids(const ms_ids *a, const char *request) {
    ms_ids b = rendered(request);
    assert_int_equal(a->count, b.count);
    assert_memory_equal(a->data, b.data, a->count * sizeof *a->data);
    ms_ids_free(&b);
}

/* Special-mode ids of text as a model would generate it. */
static ms_ids generated(const char *text) {
    ms_ids ids = {0};
    assert_int_equal(ms_tokenizer_encode(model.tokenizer, text, strlen(text), true, &ids, NULL), MS_OK);
    return ids;
}

static ms_reply reply_of(ms_channel channel, const ms_ids *ids) {
    const ms_reply_parser_ops *ops = model.lane->parser;
    void *parser = NULL;
    ms_reply r;
    bool done = false;
    assert_int_equal(ops->create(&parser, model.tokenizer, channel, NULL), MS_OK);
    for (size_t i = 0; i < ids->count; i++) assert_int_equal(ops->push(parser, ids->data[i], NULL, &done, NULL), MS_OK);
    assert_int_equal(ops->finish(parser, NULL, &r, NULL), MS_OK);
    ops->destroy(parser);
    return r;
}

/* One turn: the user says something, the model generates `text`. */
static void turn(ms_conversation *c, const char *user, const char *text, size_t want_forced) {
    ms_prompt p;
    size_t forced = 999;
    assert_int_equal(ms_conversation_user(c, user, strlen(user), &p, NULL), MS_OK);
    ms_ids ids = generated(text);
    ms_reply r = reply_of(p.channel, &ids);
    assert_int_equal(ms_conversation_accept(c, &p, &r, ids.data, ids.count, &forced, NULL), MS_OK);
    assert_int_equal(forced, want_forced);
    ms_reply_free(&r);
    ms_ids_free(&ids);
    ms_prompt_free(&p);
}

#define END "<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>"

static void turns_append(void **state) {
    (void)state;
    ms_conversation c;
    ms_conversation_init(&c, &model);
    assert_int_equal(ms_conversation_system(&c, "Be kind.", 8, NULL), MS_OK);
    turn(&c, "Hi \"you\"\n", "Hello" END, 0);
    same_ids(&c.ids,
             "{\"thinking\":false,\"add_generation_prompt\":false,\"messages\":[{\"role\":\"system\",\"content\":\"Be "
             "kind.\"},"
             "{\"role\":\"user\",\"content\":\"Hi \\\"you\\\"\\n\"},{\"role\":\"assistant\",\"content\":\"Hello\"}]}");
    assert_int_equal(ms_conversation_system(&c, "late", 4, NULL), MS_ERR_USAGE);
    size_t before = c.ids.count;
    ms_prompt p;
    assert_int_equal(ms_conversation_user(&c, "More", 4, &p, NULL), MS_OK);
    assert_int_equal(p.appended_from, before);
    assert_memory_equal(p.ids.data, c.ids.data, before * sizeof *p.ids.data);
    same_ids(
        &p.ids,
        "{\"thinking\":false,\"messages\":[{\"role\":\"system\",\"content\":\"Be "
        "kind.\"},{\"role\":\"user\",\"content\":"
        "\"Hi "
        "\\\"you\\\"\\n\"},{\"role\":\"assistant\",\"content\":\"Hello\"},{\"role\":\"user\",\"content\":\"More\"}]}");
    ms_prompt_free(&p);
    turn(&c, "More", "Yes" END, 0);
    assert_true(ms_conversation_undo(&c));
    assert_int_equal(c.ids.count, before);
    assert_false(ms_conversation_undo(&c));
    ms_conversation_fini(&c);
}

static void cut_replies_are_closed(void **state) {
    (void)state;
    static const char whole[] =
        "{\"thinking\":false,\"add_generation_prompt\":false,\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},"
        "{\"role\":\"assistant\",\"content\":\"Hello\"}]}";
    static const struct {
        const char *text;
        size_t forced;
    } cuts[] = {
        {"Hello", 7},
        {"Hello<|close|>", 6},
        {"Hello<|close|>response", 5},
        {"Hello<|close|>response<|sep|>", 4},
        {"Hello<|close|>response<|sep|><|close|>message<|sep|>", 1},
    };
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        ms_conversation c;
        ms_conversation_init(&c, &model);
        turn(&c, "Hi", cuts[i].text, cuts[i].forced);
        same_ids(&c.ids, whole);
        ms_conversation_fini(&c);
    }
}

/* What cannot be extended exactly is replaced by the reply's rendering. */
static void other_replies_are_rendered(void **state) {
    (void)state;
    ms_conversation c;
    ms_conversation_init(&c, &model);
    turn(&c, "Hi", "Hello<|close|>message<|sep|><|end_of_msg|>", 0); /* the response was not closed */
    same_ids(&c.ids,
             "{\"thinking\":false,\"add_generation_prompt\":false,\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},"
             "{\"role\":\"assistant\",\"content\":\"Hello\"}]}");
    ms_conversation_fini(&c);
}

/* Token borders of the model's own are kept. */
static void generated_ids_are_kept(void **state) {
    (void)state;
    ms_conversation c;
    ms_prompt p;
    size_t forced;
    ms_conversation_init(&c, &model);
    assert_int_equal(ms_conversation_user(&c, "Hi", 2, &p, NULL), MS_OK);
    ms_ids ids = {0}, one = generated("H"), rest = generated("ello" END);
    assert_int_equal(ms_ids_append(&ids, one.data, one.count, NULL), MS_OK);
    assert_int_equal(ms_ids_append(&ids, rest.data, rest.count, NULL), MS_OK);
    ms_reply r = reply_of(p.channel, &ids);
    assert_int_equal(ms_conversation_accept(&c, &p, &r, ids.data, ids.count, &forced, NULL), MS_OK);
    assert_int_equal(c.ids.count, p.ids.count + ids.count);
    assert_memory_equal(c.ids.data + p.ids.count, ids.data, ids.count * sizeof *ids.data);
    ms_reply_free(&r);
    ms_ids_free(&ids);
    ms_ids_free(&one);
    ms_ids_free(&rest);
    ms_prompt_free(&p);
    ms_conversation_fini(&c);
}

static void a_new_mode_renders_again(void **state) {
    (void)state;
    ms_conversation c;
    ms_prompt p;
    ms_conversation_init(&c, &model);
    turn(&c, "Hi", "Hello" END, 0);
    c.mode = (ms_think_mode){.thinking = true, .effort = "low"};
    assert_true(ms_conversation_rerenders(&c));
    assert_int_equal(ms_conversation_user(&c, "More", 4, &p, NULL), MS_OK);
    assert_int_equal(p.appended_from, 0);
    assert_int_equal(p.channel, MS_CHANNEL_THINK);
    same_ids(
        &p.ids,
        "{\"thinking\":true,\"thinking_effort\":\"low\",\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":"
        "\"assistant\",\"content\":\"Hello\"},{\"role\":\"user\",\"content\":\"More\"}]}");
    ms_prompt_free(&p);
    ms_conversation_fini(&c);
}

/* A prefix of a conversation, cut at every id, continues: inside a reply it is closed, at a boundary nothing is added.
 */
static void foreign_ids_continue(void **state) {
    (void)state;
    ms_conversation c, d;
    ms_prompt p;
    ms_conversation_init(&c, &model);
    turn(&c, "Hi", "Hello there" END, 0);
    turn(&c, "More", "Yes" END, 0);
    ms_ids next = rendered("{\"thinking\":false,\"messages\":[{\"role\":\"user\",\"content\":\"Go on\"}]}");
    for (size_t n = 1; n <= c.ids.count; n++) {
        size_t closed;
        ms_conversation_init(&d, &model);
        assert_int_equal(ms_conversation_continue(&d, c.ids.data, n, &closed, NULL), MS_OK);
        assert_int_equal(d.ids.count, n + closed);
        assert_int_equal(d.ids.data[d.ids.count - 1], model.info.eos);
        assert_memory_equal(d.ids.data, c.ids.data, n * sizeof *d.ids.data);
        assert_int_equal(closed == 0, c.ids.data[n - 1] == model.info.eos);
        if (n + 7 == c.ids.count) assert_int_equal(closed, 7);
        assert_int_equal(ms_conversation_user(&d, "Go on", 5, &p, NULL), MS_OK);
        assert_int_equal(p.ids.count, d.ids.count + next.count);
        assert_memory_equal(p.ids.data + d.ids.count, next.data, next.count * sizeof *next.data);
        ms_prompt_free(&p);
        ms_conversation_fini(&d);
    }
    ms_ids_free(&next);
    ms_conversation_fini(&c);
}

static void tool_calls_stay_exact(void **state) {
    (void)state;
    ms_conversation c;
    ms_conversation_init(&c, &model);
    turn(&c, "Hi",
         "<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool=\"f\" index=\"1\"<|sep|><|open|>argument "
         "key=\"a\" "
         "type=\"number\"<|sep|>1e2<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|"
         "sep|>"
         "<|end_of_msg|>",
         0);
    assert_non_null(strstr(c.messages.data, "{\\\"a\\\":1e2}"));
    turn(&c, "More", "Yes", 7);
    ms_conversation_fini(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(turns_append),
        cmocka_unit_test(cut_replies_are_closed),
        cmocka_unit_test(other_replies_are_rendered),
        cmocka_unit_test(generated_ids_are_kept),
        cmocka_unit_test(a_new_mode_renders_again),
        cmocka_unit_test(foreign_ids_continue),
        cmocka_unit_test(tool_calls_stay_exact),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
