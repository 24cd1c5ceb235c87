/* Loading, the slot and its one waiting place, clients that leave, read slowly or not at all, deadlines, shutdown. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "server_fixture.h"

static fixture f;

static int begin(void **state) {
    (void)state;
    fixture_init(&f);
    script_say(&f.engine, "alpha", "thought", "Answer.");
    script_say(&f.engine, "longone", "a b c d e f g h i j k l m n o p q r s t u v w x y z",
               "a b c d e f g h i j k l m n o p q r s t u v w x y z");
    script_say(&f.engine, "anobj", "o", "{\"a\": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]}");
    return 0;
}

static int end(void **state) {
    (void)state;
    fixture_free(&f);
    return 0;
}

static void run(void) {
    fixture_start(&f);
    fixture_wait_ready(&f);
}

static void post(const char *body, http_response *r) {
    http_call(f.port, "POST", "/v1/chat/completions", NULL, body, r);
}

/* Sends a request and leaves the connection open. */
static int begin_post_to(const char *path, const char *body) {
    ms_text t = {0};
    int fd = http_connect(f.port);
    assert_true(fd >= 0);
    ms_text_printf(&t, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                   path, strlen(body), body);
    assert_true(http_send(fd, t.data, t.len));
    ms_text_free(&t);
    return fd;
}

static int begin_post(const char *body) { return begin_post_to("/v1/chat/completions", body); }

static void answer_is_good(void) {
    http_response r;
    post(fixture_body("alpha", ""), &r);
    if (r.status != 200) fail_msg("%d %s", r.status, r.body.data);
    assert_string_equal(http_text(&r, "choices.0.message.content"), "Answer.");
    http_free(&r);
}

/* Health answers at once, whatever the engine does. */
static void health_is(int status, const char *word, const char *slot) {
    http_response r;
    uint64_t start = ms_clock_ns();
    http_call(f.port, "GET", "/health", NULL, NULL, &r);
    assert_true(ms_clock_ns() - start < UINT64_C(250000000));
    assert_int_equal(r.status, status);
    assert_string_equal(http_text(&r, "status"), word);
    if (slot) assert_string_equal(http_text(&r, "slot_state"), slot);
    http_free(&r);
}

/* ------------------------------------------------------------------ loading */

static void loading(void **state) {
    (void)state;
    http_response r;
    atomic_store(&f.engine.open_us, 400000);
    fixture_start(&f);
    health_is(503, "loading", NULL);
    post(fixture_body("alpha", ""), &r);
    assert_int_equal(r.status, 503);
    assert_string_equal(http_text(&r, "error.code"), "model_loading");
    assert_string_equal(http_header(&r, "Retry-After"), "5");
    http_free(&r);
    post("{\"model\":7}", &r); /* malformed is malformed */
    assert_int_equal(r.status, 400);
    http_free(&r);
    fixture_wait_ready(&f);
    health_is(200, "ok", "idle");
    answer_is_good();
}

static void a_failed_load(void **state) {
    (void)state;
    http_response r;
    atomic_store(&f.engine.open_fails, true);
    fixture_start(&f);
    fixture_wait_failed(&f);
    health_is(503, "failed", NULL);
    post(fixture_body("alpha", ""), &r);
    assert_int_equal(r.status, 500);
    http_free(&r);
}

static void a_broken_engine(void **state) {
    (void)state;
    http_response r;
    run();
    atomic_store(&f.engine.broken, true);
    post(fixture_body("alpha", ""), &r);
    assert_int_equal(r.status, 500);
    assert_string_equal(http_text(&r, "error.code"), "engine_failure");
    http_free(&r);
    fixture_wait_failed(&f);
    assert_true(ms_server_loaded(f.server));
    health_is(503, "failed", NULL);
    assert_true(fixture_wait_log(&f, 0, "server.fatal"));
}

/* ------------------------------------------------------------------ one slot */

static void a_second_request_is_refused(void **state) {
    (void)state;
    http_response r;
    ms_text all = {0};
    run();
    atomic_store(&f.engine.token_us, 20000);
    int fd = begin_post(fixture_body("longone", ",\"stream\":true,\"max_tokens\":1000"));
    assert_true(http_read_until(fd, &all, "reasoning_content\":\"a"));
    post(fixture_body("alpha", ""), &r);
    assert_int_equal(r.status, 503);
    assert_string_equal(http_text(&r, "error.code"), "server_busy");
    int after = atoi(http_header(&r, "Retry-After"));
    assert_in_range(after, 1, 60);
    http_free(&r);
    post("{\"messages\":[]}", &r);
    assert_int_equal(r.status, 400);
    http_free(&r);
    health_is(200, "ok", "decode");
    atomic_store(&f.engine.token_us, 0);
    assert_true(http_read_until(fd, &all, "[DONE]"));
    (void)close(fd);
    ms_text_free(&all);
    fixture_wait_idle(&f);
    answer_is_good();
}

/* The client has its answer while the state is completed; one more may wait for that. */
static void one_waits_for_the_export(void **state) {
    (void)state;
    http_response r;
    run();
    atomic_store(&f.engine.token_us, 0);
    post(fixture_body("alpha", ""), &r); /* learns nothing: just warm */
    http_free(&r);
    fixture_wait_idle(&f);
    size_t before = fixture_log_size(&f);
    atomic_store(&f.engine.token_us, 100000);
    post(fixture_body("alpha", ",\"max_tokens\":1"), &r); /* the reply is closed by a dozen slow tokens */
    assert_int_equal(r.status, 200);
    http_free(&r);
    health_is(200, "ok", "export");
    int waiting = begin_post(fixture_body("alpha", ""));
    assert_true(fixture_wait_log(&f, before, "request.queued"));
    post(fixture_body("alpha", ""), &r);
    assert_int_equal(r.status, 503);
    http_free(&r);
    atomic_store(&f.engine.token_us, 0);
    http_read(waiting, &r, false);
    assert_int_equal(r.status, 200);
    assert_string_equal(http_text(&r, "choices.0.message.content"), "Answer.");
    http_free(&r);
    (void)close(waiting);
    assert_true(fixture_wait_log(&f, before, "request.dequeued"));
}

/* ------------------------------------------------------------------ clients that leave */

static void leaves_in(const char *slot, bool stream, bool half) {
    size_t before = fixture_log_size(&f);
    int fd = begin_post(fixture_body("longone alpha-not beta longone",
                                     stream ? ",\"stream\":true,\"max_tokens\":1000" : ",\"max_tokens\":1000"));
    assert_true(
        fixture_wait_log(&f, before, strcmp(slot, "prefill") == 0 ? "request.prefill.start" : "request.decode.start"));
    pause_ms(30);
    if (half)
        (void)shutdown(fd, SHUT_WR);
    else
        (void)close(fd);
    assert_true(fixture_wait_log(&f, before, "reason=disconnect"));
    fixture_wait_idle(&f);
    if (half) (void)close(fd);
    ms_text log = {0};
    fixture_log(&f, &log);
    char phase[32];
    (void)snprintf(phase, sizeof phase, "phase=%s", slot);
    assert_non_null(strstr(log.data + before, phase));
    ms_text_free(&log);
}

static void clients_that_leave(void **state) {
    (void)state;
    run();
    for (int stream = 0; stream < 2; stream++) {
        for (int half = 0; half < 2; half++) {
            atomic_store(&f.engine.layer_us, 30000);
            leaves_in("prefill", stream, half);
            atomic_store(&f.engine.layer_us, 0);
            answer_is_good();
            fixture_wait_idle(&f);
            atomic_store(&f.engine.token_us, 10000);
            leaves_in("decode", stream, half);
            atomic_store(&f.engine.token_us, 0);
            answer_is_good();
            fixture_wait_idle(&f);
        }
    }
}

static void a_waiting_client_leaves(void **state) {
    (void)state;
    http_response r;
    run();
    atomic_store(&f.engine.token_us, 50000);
    post(fixture_body("alpha", ",\"max_tokens\":1"), &r);
    http_free(&r);
    size_t before = fixture_log_size(&f);
    int first = begin_post(fixture_body("alpha", ""));
    assert_true(fixture_wait_log(&f, before, "request.queued"));
    (void)close(first);
    pause_ms(50);
    int second = begin_post(fixture_body("alpha", "")); /* the place is free again */
    atomic_store(&f.engine.token_us, 0);
    http_read(second, &r, false);
    assert_int_equal(r.status, 200);
    http_free(&r);
    (void)close(second);
}

/* ------------------------------------------------------------------ slow clients */

static void keepalives(void **state) {
    (void)state;
    f.o.keepalive_s = 1;
    run();
    ms_text all = {0};
    atomic_store(&f.engine.layer_us, 400000); /* no boundary comes within a second of another's keepalive */
    int fd = begin_post(fixture_body("anobj", ",\"stream\":true,\"response_format\":{\"type\":\"json_object\"}"));
    assert_true(http_read_until(fd, &all, "\n: moonshine prefill layer "));
    atomic_store(&f.engine.layer_us, 0);
    atomic_store(&f.engine.token_us, 60000);
    assert_true(http_read_until(fd, &all, "\n: moonshine decode response ")); /* content is withheld */
    assert_null(strstr(all.data, "[1"));
    atomic_store(&f.engine.token_us, 0);
    assert_true(http_read_until(fd, &all, "[DONE]"));
    assert_non_null(strstr(all.data, "11, 12]}"));
    ms_text_free(&all);
    (void)close(fd);
}

/* Nobody reads: the queue fills, the engine never waits. */
static void a_client_that_does_not_read(void **state) {
    (void)state;
    f.o.max_output = 60000;
    f.o.context = f.engine.base.context = 65536;
    f.o.io_timeout_s = 2;
    f.o.queue_bytes = 65536;
    ms_text reply = {0};
    for (int i = 0; i < 30000; i++) ms_text_puts(&reply, "y ");
    script_say(&f.engine, "endless", "t", reply.data);
    ms_text_free(&reply);
    run();
    ms_text t = {0};
    const char *body = fixture_body("endless", ",\"stream\":true,\"max_tokens\":50000");
    int fd = http_connect(f.port), small = 4096;
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    ms_text_printf(&t, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n%s", strlen(body),
                   body);
    assert_true(http_send(fd, t.data, t.len));
    ms_text_free(&t);
    assert_true(fixture_wait_log(&f, 0, "reason=disconnect"));
    fixture_wait_idle(&f);
    (void)close(fd);
    answer_is_good();
}

static bool log_has(const char *text) {
    ms_text all = {0};
    fixture_log(&f, &all);
    bool found = strstr(all.data, text);
    ms_text_free(&all);
    return found;
}

/* A reply whose content is held back to its end, far larger on the wire than the queue. */
#define HELD                                                                                                           \
    ",\"response_format\":{\"type\":\"json_object\"},\"logprobs\":true,\"top_logprobs\":20,\"max_tokens\":10000"

static void held_init(int numbers) {
    f.o.max_output = 10000;
    f.o.context = f.engine.base.context = 16384;
    f.o.io_timeout_s = 2;
    f.o.queue_bytes = 65536;
    ms_text reply = {0};
    ms_text_puts(&reply, "{\"a\": [1");
    for (int i = 2; i < numbers; i++) ms_text_printf(&reply, ", %d", i);
    ms_text_puts(&reply, ", \"\xf0\x9f\x8c\x8a\"]}");
    script_say(&f.engine, "bigobj", "t", reply.data);
    ms_text_free(&reply);
}

/* Content and log probabilities of a stream, one after the other. */
static void join_stream(const char *data, ms_text *content, size_t *logprobs) {
    for (const char *line = data; (line = strstr(line, "data: {")); line++) {
        const char *end = strchr(line, '\n');
        ms_json_doc *doc = NULL;
        assert_non_null(end);
        assert_int_equal(ms_json_parse(&doc, line + 6, (size_t)(end - line) - 6, "chunk", NULL, NULL), MS_OK);
        const ms_json *choice = ms_json_at(ms_json_get(ms_json_root(doc), "choices"), 0);
        const ms_json *text = ms_json_get(ms_json_get(choice, "delta"), "content");
        const ms_json *list = ms_json_get(ms_json_get(choice, "logprobs"), "content");
        if (text) ms_text_append(content, text->str, text->str_len);
        if (list) *logprobs += list->count;
        ms_json_free(doc);
    }
    ms_text_append(content, "", 0);
}

static void held_content_waits_for_its_reader(void **state) {
    (void)state;
    held_init(400);
    run();
    http_response r;
    ms_text all = {0}, content = {0};
    size_t logprobs = 0;
    post(fixture_body("bigobj", HELD), &r);
    assert_int_equal(r.status, 200);
    const ms_json *whole =
        ms_json_get(ms_json_get(ms_json_at(ms_json_get(http_json(&r), "choices"), 0), "logprobs"), "content");
    assert_true(r.body.len > 10 * f.o.queue_bytes);
    fixture_wait_idle(&f);
    int fd = begin_post(fixture_body("bigobj", HELD ",\"stream\":true"));
    char piece[16384];
    for (ssize_t n; (n = recv(fd, piece, sizeof piece, 0)) > 0;) { /* behind the engine all the time */
        ms_text_append(&all, piece, (size_t)n);
        pause_ms(1);
    }
    assert_non_null(strstr(all.data, "data: [DONE]"));
    join_stream(all.data, &content, &logprobs);
    assert_string_equal(content.data, http_text(&r, "choices.0.message.content"));
    assert_int_equal(logprobs, whole->count);
    assert_false(log_has("client=disconnected"));
    ms_text_free(&all);
    ms_text_free(&content);
    http_free(&r);
    (void)close(fd);
}

/* The last events of this API repeat the whole reply. */
static void large_last_events(void **state) {
    (void)state;
    f.o.max_output = 10000;
    f.o.context = f.engine.base.context = 16384;
    f.o.queue_bytes = 32768;
    atomic_store(&f.engine.token_us, 100); /* a reader keeps up with the tokens */
    ms_text think = {0}, say = {0}, all = {0};
    for (int i = 0; i < 2000; i++) ms_text_puts(&think, "thought ");
    for (int i = 0; i < 2000; i++) ms_text_puts(&say, "said ");
    script_say(&f.engine, "muchtext", think.data, say.data);
    run();
    int fd = begin_post_to(
        "/v1/responses", "{\"model\":\"moonshine\",\"stream\":true,\"max_output_tokens\":9000,\"input\":\"muchtext\"}");
    char piece[16384];
    for (ssize_t n; (n = recv(fd, piece, sizeof piece, 0)) > 0;) ms_text_append(&all, piece, (size_t)n);
    const char *last = strstr(all.data, "event: response.completed");
    assert_non_null(last);
    assert_non_null(strstr(last, say.data));
    assert_non_null(strstr(last, think.data));
    assert_false(log_has("client=disconnected"));
    ms_text_free(&all);
    ms_text_free(&think);
    ms_text_free(&say);
    (void)close(fd);
}

/* Nobody reads it: the slot is free again, and the next request is answered. */
static void held_content_that_nobody_reads(void **state) {
    (void)state;
    held_init(3000); /* more than a socket's own buffers */
    run();
    int fd = http_connect(f.port), small = 4096;
    ms_text t = {0};
    const char *body = fixture_body("bigobj", HELD ",\"stream\":true");
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    ms_text_printf(&t, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n%s", strlen(body),
                   body);
    assert_true(http_send(fd, t.data, t.len));
    ms_text_free(&t);
    assert_true(fixture_wait_log(&f, 0, "client=disconnected"));
    fixture_wait_idle(&f);
    answer_is_good();
    (void)close(fd);
}

/* ------------------------------------------------------------------ deadlines */

static void a_deadline_in_the_prompt(void **state) {
    (void)state;
    f.o.deadline_s = 1;
    run();
    http_response r;
    ms_text words = {0}, body = {0};
    for (int i = 0; i < 400; i++) ms_text_printf(&words, "word%d ", i);
    ms_text_printf(&body, "{\"model\":\"moonshine\",\"messages\":[{\"role\":\"user\",\"content\":\"alpha %s alpha\"}]}",
                   words.data);
    atomic_store(&f.engine.layer_us, 20000); /* 160 ms a pass */
    long before = -1;
    int tries = 0;
    for (; tries < 20; tries++) {
        post(body.data, &r);
        if (r.status == 200) break;
        assert_int_equal(r.status, 504);
        assert_string_equal(http_text(&r, "error.code"), "deadline_exceeded");
        assert_string_equal(http_header(&r, "x-should-retry"), "true");
        long reused = http_number(&r, "error.details.reused");
        assert_true(reused > before); /* each attempt gets further */
        before = reused;
        http_free(&r);
        fixture_wait_idle(&f);
    }
    assert_true(tries > 1);
    assert_int_equal(r.status, 200);
    assert_string_equal(http_text(&r, "choices.0.message.content"), "Answer.");
    assert_true(http_number(&r, "usage.prompt_tokens_details.cached_tokens") > 0);
    http_free(&r);
    ms_text_free(&words);
    ms_text_free(&body);
}

static void a_deadline_in_the_reply(void **state) {
    (void)state;
    f.o.deadline_s = 1;
    run();
    http_response r;
    atomic_store(&f.engine.token_us, 50000);
    post(fixture_body("longone", ",\"max_tokens\":1000"), &r);
    assert_int_equal(r.status, 200);
    assert_string_equal(http_text(&r, "choices.0.finish_reason"), "length");
    assert_string_equal(http_header(&r, "X-Moonshine-Stop"), "deadline");
    http_free(&r);
    fixture_wait_idle(&f);
    ms_text all = {0};
    int fd = begin_post(fixture_body("longone", ",\"stream\":true,\"max_tokens\":1000"));
    assert_true(http_read_until(fd, &all, "[DONE]"));
    assert_non_null(strstr(all.data, ": moonshine stop=deadline\n"));
    assert_non_null(strstr(all.data, "\"finish_reason\":\"length\""));
    ms_text_free(&all);
    (void)close(fd);
    fixture_wait_idle(&f);
    post(fixture_body("anobj", ",\"response_format\":{\"type\":\"json_object\"},\"max_tokens\":1000"), &r);
    assert_int_equal(r.status, 504);
    http_free(&r);
}

/* ------------------------------------------------------------------ shutdown */

static void draining(void **state) {
    (void)state;
    http_response r;
    ms_text all = {0};
    run();
    atomic_store(&f.engine.token_us, 20000);
    int fd = begin_post(fixture_body("longone", ",\"stream\":true,\"max_tokens\":1000"));
    assert_true(http_read_until(fd, &all, "reasoning_content\":\"a"));
    ms_server_drain(f.server);
    health_is(503, "draining", "decode");
    post(fixture_body("alpha", ""), &r);
    assert_int_equal(r.status, 503);
    assert_string_equal(http_text(&r, "error.code"), "shutting_down");
    http_free(&r);
    atomic_store(&f.engine.token_us, 0);
    assert_true(http_read_until(fd, &all, "[DONE]")); /* what runs goes on */
    assert_null(strstr(all.data, "\"error\""));
    ms_text_free(&all);
    (void)close(fd);
}

static void cancelling(void **state) {
    (void)state;
    http_response r;
    ms_text all = {0};
    run();
    atomic_store(&f.engine.token_us, 20000);
    int fd = begin_post(fixture_body("longone", ",\"stream\":true,\"max_tokens\":1000"));
    assert_true(http_read_until(fd, &all, "reasoning_content\":\"a"));
    ms_server_cancel(f.server);
    assert_true(http_read_until(fd, &all, "[DONE]"));
    assert_non_null(strstr(all.data, "server_shutdown"));
    assert_null(strstr(all.data, "\"finish_reason\":\"stop\""));
    ms_text_free(&all);
    (void)close(fd);
    fixture_wait_idle(&f);
    fixture_stop(&f);
    run();
    atomic_store(&f.engine.layer_us, 50000);
    fd = begin_post(fixture_body("longone", ""));
    assert_true(fixture_wait_log(&f, fixture_log_size(&f) ? 1 : 0, "request.prefill.start"));
    pause_ms(100);
    ms_server_cancel(f.server);
    http_read(fd, &r, false);
    assert_int_equal(r.status, 503);
    assert_string_equal(http_text(&r, "error.code"), "server_shutdown");
    http_free(&r);
    (void)close(fd);
}

/* Destroying ends everything, with clients in every state. */
static void the_end_with_clients(void **state) {
    (void)state;
    run();
    atomic_store(&f.engine.token_us, 20000);
    int running = begin_post(fixture_body("longone", ",\"stream\":true,\"max_tokens\":1000"));
    int silent = http_connect(f.port), half = http_connect(f.port);
    assert_true(http_puts(half, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"));
    pause_ms(100);
    uint64_t start = ms_clock_ns();
    fixture_stop(&f);
    assert_true(ms_clock_ns() - start < UINT64_C(5000000000));
    (void)close(running);
    (void)close(silent);
    (void)close(half);
}

/* Clients that come while the server goes. */
enum { COMERS = 6 };
static atomic_bool gone;
static atomic_uint answered, refused, empty;

static void come_once(void) {
    static const char request[] = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}";
    char byte;
    int fd = http_connect(f.port);
    ssize_t n = fd < 0 || !http_puts(fd, request) ? -1 : recv(fd, &byte, 1, 0);
    if (n > 0)
        (void)atomic_fetch_add(&answered, 1);
    else if (n == 0)
        (void)atomic_fetch_add(&empty, 1);
    else
        (void)atomic_fetch_add(&refused, 1);
    if (fd >= 0) (void)close(fd);
}

static void *come(void *arg) {
    while (!atomic_load(&gone)) come_once();
    return arg;
}

/* Whoever gets a connection gets an answer, or is refused before the request was read. */
static void the_end_with_comers(void **state) {
    (void)state;
    for (int round = 0; round < 25; round++) {
        pthread_t threads[COMERS];
        bool loading = round % 3 == 2;
        atomic_store(&f.engine.open_us, loading ? 100000 : 0);
        fixture_start(&f);
        if (!loading) fixture_wait_ready(&f);
        atomic_store(&gone, false);
        for (size_t i = 0; i < COMERS; i++) assert_int_equal(pthread_create(&threads[i], NULL, come, NULL), 0);
        pause_ms(5);
        if (round % 2) ms_server_drain(f.server);
        uint64_t start = ms_clock_ns();
        if (loading) ms_server_hang_up(f.server);
        fixture_stop(&f);
        assert_true(ms_clock_ns() - start < UINT64_C(5000000000));
        atomic_store(&gone, true);
        for (size_t i = 0; i < COMERS; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    print_message("%u answered, %u refused, %u empty\n", atomic_load(&answered), atomic_load(&refused),
                  atomic_load(&empty));
    assert_true(atomic_load(&answered) > 0);
    assert_true(atomic_load(&refused) > 0);
    assert_int_equal(atomic_load(&empty), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(loading, begin, end),
        cmocka_unit_test_setup_teardown(a_failed_load, begin, end),
        cmocka_unit_test_setup_teardown(a_broken_engine, begin, end),
        cmocka_unit_test_setup_teardown(a_second_request_is_refused, begin, end),
        cmocka_unit_test_setup_teardown(one_waits_for_the_export, begin, end),
        cmocka_unit_test_setup_teardown(clients_that_leave, begin, end),
        cmocka_unit_test_setup_teardown(a_waiting_client_leaves, begin, end),
        cmocka_unit_test_setup_teardown(keepalives, begin, end),
        cmocka_unit_test_setup_teardown(a_client_that_does_not_read, begin, end),
        cmocka_unit_test_setup_teardown(held_content_waits_for_its_reader, begin, end),
        cmocka_unit_test_setup_teardown(large_last_events, begin, end),
        cmocka_unit_test_setup_teardown(held_content_that_nobody_reads, begin, end),
        cmocka_unit_test_setup_teardown(a_deadline_in_the_prompt, begin, end),
        cmocka_unit_test_setup_teardown(a_deadline_in_the_reply, begin, end),
        cmocka_unit_test_setup_teardown(draining, begin, end),
        cmocka_unit_test_setup_teardown(cancelling, begin, end),
        cmocka_unit_test_setup_teardown(the_end_with_clients, begin, end),
        cmocka_unit_test_setup_teardown(the_end_with_comers, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
