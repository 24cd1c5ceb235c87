/* Conversations on a state that can go back: turns begin at the longest common prefix, and say what a fresh session
 * says. The checkpoint is made here: random weights of the MiMo layout beside the small tokenizer of tests/text/hf. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine_util.h"
#include "lane/mimo26/mimo_synth.h"
#include "session/turn.h"

enum { MOST_TOKENS = 12, VOCAB = 448, WINDOW = 16 };

static char dir[PATH_BYTES];

static void put_file(const char *name, const char *text) {
    char path[PATH_BYTES + 64];
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
    assert_int_equal(fclose(f), 0);
}

static uint32_t control_id(const char *name) {
    ms_tokenizer *t;
    ms_error err;
    uint32_t id;
    ok(ms_tokenizer_open_hf(&t, "tests/text/hf/tokenizer.json", &err), &err);
    assert_true(ms_tokenizer_control_id(t, name, strlen(name), &id));
    ms_tokenizer_close(t);
    return id;
}

static int make_checkpoint(void **state) {
    (void)state;
    mimo_config c;
    ms_error err;
    char *text;
    size_t len;
    mimo_config_official(&c);
    c.vocab = VOCAB;
    c.hidden = 128;
    c.layers = 5;
    c.dense_width = 192;
    c.experts = 8;
    c.top_k = 2;
    c.expert_inner = 64;
    c.chunks = 2;
    c.eos = control_id("<|im_end|>");
    c.max_context = 4096;
    c.attention[MIMO_FULL] = (mimo_attention){4, 2, 48, 32, 16, 0, false, 1e7};
    c.attention[MIMO_SLIDING] = (mimo_attention){4, 2, 48, 32, 16, WINDOW, true, 1e4};
    for (uint32_t l = 0; l < c.layers; l++) c.kind[l] = l == 0 || l == 4 ? MIMO_FULL : MIMO_SLIDING;
    (void)snprintf(dir, sizeof dir, "/tmp/ms-turns-XXXXXX");
    if (!mkdtemp(dir)) return -1;
    const ms_synth_options so = {.seed = 11, .threads = 1};
    ok(mimo_synth_write(dir, &c, &so, &err), &err);
    ok(ms_file_read_all("tests/text/hf/tokenizer.json", 1 << 20, &text, &len, &err), &err);
    put_file("tokenizer.json", text);
    free(text);
    char stops[64];
    (void)snprintf(stops, sizeof stops, "{\"eos_token_id\": [%u, %u]}", control_id("<|endoftext|>"), c.eos);
    put_file("generation_config.json", stops);
    return 0;
}

static int remove_checkpoint(void **state) {
    (void)state;
    remove_model(dir);
    return 0;
}

typedef struct setup {
    ms_text_model text;
    ms_engine *engine;
    ms_session *session;
    ms_timeline timeline;
    ms_conversation conversation;
    ms_sampler sampler;
} setup;

static void open_setup(setup *s, bool keep) {
    ms_error err;
    ms_engine_options o;
    *s = (setup){0};
    ms_engine_options_default(&o, dir);
    o.context = 1500;
    o.range_rows = 64;
    o.snapshots = 1;
    o.threads = 1;
    ok(ms_text_model_open(&s->text, dir, &err), &err);
    ok(ms_engine_open(&s->engine, &o, &err), &err);
    ok(ms_session_create(&s->session, s->engine, &err), &err);
    ms_timeline_init(&s->timeline, s->engine, s->session, &s->text);
    s->timeline.keep_prompt_end = keep;
    ms_conversation_init(&s->conversation, &s->text);
    ms_sampler_greedy(&s->sampler);
}

static void close_setup(setup *s) {
    ms_timeline_fini(&s->timeline);
    ms_conversation_fini(&s->conversation);
    ms_session_destroy(s->session);
    ms_engine_close(s->engine);
    ms_text_model_close(&s->text);
}

static void run(setup *s, const ms_prompt *p, ms_turn_result *r) {
    const ms_turn_options o = {.max_tokens = MOST_TOKENS, .sampler = &s->sampler};
    ms_error err;
    ok(ms_turn_run(&s->timeline, p, &o, r, &err), &err);
    assert_true(r->replied);
    assert_int_equal(r->reused + r->evaluated, p->ids.count);
    for (size_t i = 0; i < r->generated.count; i++)
        assert_true(r->generated.data[i] < ms_tokenizer_ids(s->text.tokenizer));
}

/* The reply of a session that knows nothing. */
static void same_as_fresh(const ms_prompt *p, const ms_turn_result *r) {
    setup s;
    ms_turn_result fresh;
    open_setup(&s, false);
    run(&s, p, &fresh);
    assert_int_equal(fresh.reused, 0);
    assert_int_equal(fresh.generated.count, r->generated.count);
    assert_memory_equal(fresh.generated.data, r->generated.data, r->generated.count * sizeof *r->generated.data);
    assert_int_equal(fresh.reply.content_len, r->reply.content_len);
    ms_turn_result_free(&fresh);
    close_setup(&s);
}

static void prompt_of(setup *s, const char *text, ms_prompt *p) {
    ms_error err;
    ok(ms_conversation_user(&s->conversation, text, strlen(text), p, &err), &err);
}

static void text_side(void **state) {
    (void)state;
    setup s;
    open_setup(&s, false);
    assert_string_equal(s.text.lane->name, "mimo26");
    assert_true(s.text.lane->greedy_only);
    assert_int_equal(s.text.stop_count, 2);
    assert_true(ms_text_model_stops(&s.text, control_id("<|endoftext|>")) &&
                ms_text_model_stops(&s.text, control_id("<|im_end|>")));
    assert_false(ms_text_model_stops(&s.text, 65));
    close_setup(&s);
}

/* Turn after turn, thinking on and off; what was said is never evaluated again. */
static void turns_continue(void **state) {
    (void)state;
    static const char *const texts[] = {"Hello there.", "And then?", "x", "Tell me more about that, please."};
    for (int thinking = 0; thinking < 2; thinking++) {
        setup s;
        ms_error err;
        open_setup(&s, true);
        s.conversation.mode.thinking = thinking;
        for (size_t i = 0; i < 4; i++) {
            ms_prompt p;
            ms_turn_result r;
            size_t forced, before = s.conversation.ids.count;
            prompt_of(&s, texts[i], &p);
            run(&s, &p, &r);
            assert_int_equal(r.reused, before);
            same_as_fresh(&p, &r);
            ok(ms_conversation_accept(&s.conversation, &p, &r.reply, r.generated.data, r.generated.count, &forced,
                                      &err),
               &err);
            ok(ms_timeline_settle(&s.timeline, &s.conversation.ids, &err), &err);
            assert_int_equal(ms_session_position(s.session), s.conversation.ids.count);
            ms_turn_result_free(&r);
            ms_prompt_free(&p);
        }
        close_setup(&s);
    }
}

static size_t common(const ms_ids *a, const ms_ids *b) {
    size_t n = 0;
    while (n < a->count && n < b->count && a->data[n] == b->data[n]) n++;
    return n;
}

/* Without any copy: another prompt begins where it parts from the session. */
static void other_prompts_share_their_beginning(void **state) {
    (void)state;
    setup s;
    ms_prompt p[4];
    ms_turn_result r;
    open_setup(&s, false);
    static const char *const texts[] = {"Once upon a time there was a table of numbers: tokens of the text that is read.",
                                        "Once upon a time there was a table of letters.",
                                        "Once upon a time there was a table of letters!", "Quite another beginning"};
    for (int i = 0; i < 4; i++) prompt_of(&s, texts[i], &p[i]);
    run(&s, &p[0], &r);
    ms_turn_result_free(&r);
    for (int i = 1; i < 4; i++) {
        run(&s, &p[i], &r);
        assert_int_equal(r.reused, common(&p[i - 1].ids, &p[i].ids));
        assert_true(r.reused > 3 || i == 3);
        same_as_fresh(&p[i], &r);
        ms_turn_result_free(&r);
    }
    run(&s, &p[3], &r); /* the same once more: only its last token, for the logits */
    assert_int_equal(r.reused, p[3].ids.count - 1);
    same_as_fresh(&p[3], &r);
    ms_turn_result_free(&r);
    for (int i = 0; i < 4; i++) ms_prompt_free(&p[i]);
    close_setup(&s);
}

/* Beyond what the ring holds the copy serves, and without one the beginning. */
static void far_back(void **state) {
    (void)state;
    for (int keep = 0; keep < 2; keep++) {
        setup s;
        ms_error err;
        ms_prompt p;
        ms_turn_result r;
        open_setup(&s, keep);
        prompt_of(&s, "A first question of some length, so that there is something to go back to.", &p);
        run(&s, &p, &r);
        same_as_fresh(&p, &r);
        ms_turn_result_free(&r);
        uint32_t filler[700];
        some_ids(filler, 700, 256);
        ok(ms_session_forward(s.session, filler, 700, NULL, &err), &err);
        assert_false(ms_session_can_rewind(s.session, p.ids.count));
        run(&s, &p, &r);
        assert_int_equal(r.reused, keep ? p.ids.count : 0);
        same_as_fresh(&p, &r);
        ms_turn_result_free(&r);
        ms_prompt_free(&p);
        close_setup(&s);
    }
}

static void declared_tools_reach_the_parser(void **state) {
    (void)state;
    static const char request[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"system\",\"tools\":[{\"name\":\"b\"}]}],"
        "\"tools\":[{\"name\":\"a\",\"n\":1.0}],\"thinking\":false}";
    setup s;
    ms_error err;
    ms_json_doc *doc;
    ms_prompt p;
    ms_turn_result r;
    open_setup(&s, false);
    ok(ms_json_parse(&doc, request, strlen(request), "request", NULL, &err), &err);
    ok(ms_conversation_request(&s.conversation, ms_json_root(doc), &p, &err), &err);
    assert_int_equal(p.tools.len, strlen("[{\"name\":\"a\",\"n\":1.0},{\"name\":\"b\"}]"));
    assert_memory_equal(p.tools.data, "[{\"name\":\"a\",\"n\":1.0},{\"name\":\"b\"}]", p.tools.len);
    run(&s, &p, &r);
    ms_turn_result_free(&r);
    ms_prompt_free(&p);
    ms_json_free(doc);
    close_setup(&s);
}

static void refused_text(const char *name, const char *from, const char *to, const char *part) {
    ms_text_model t;
    ms_error err = {0};
    edit_file(dir, name, from, to);
    ms_status st = ms_text_model_open(&t, dir, &err);
    edit_file(dir, name, to, from);
    REFUSED(st, &err, MS_ERR_FORMAT, part);
}

static void text_files_must_agree(void **state) {
    (void)state;
    char eos[64], other[64];
    refused_text("config.json", "\"vocab_size\": 448", "\"vocab_size\": 300", "eos_token_id");
    (void)snprintf(eos, sizeof eos, "\"eos_token_id\": %u", control_id("<|im_end|>"));
    (void)snprintf(other, sizeof other, "\"eos_token_id\": %u", 100u);
    refused_text("config.json", eos, other, "tokenizer.json: added_tokens");
    (void)snprintf(eos, sizeof eos, "[%u", control_id("<|endoftext|>"));
    refused_text("generation_config.json", eos, "[999", "generation_config.json: eos_token_id");
    refused_text("tokenizer.json", "<|im_end|>", "<|im_enq|>", "added_tokens: expected <|im_end|>");
    refused_text("tokenizer.json", "<|im_start|>", "<|im_stars|>", "added_tokens: expected <|im_start|>");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(text_side),
                                       cmocka_unit_test(turns_continue),
                                       cmocka_unit_test(other_prompts_share_their_beginning),
                                       cmocka_unit_test(far_back),
                                       cmocka_unit_test(declared_tools_reach_the_parser),
                                       cmocka_unit_test(text_files_must_agree)};
    return cmocka_run_group_tests(tests, make_checkpoint, remove_checkpoint);
}
