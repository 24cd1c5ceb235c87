/* HTTP as it may arrive: framing, limits, methods, keys, origins, and clients that are slow or wrong. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "server_fixture.h"

static fixture f;
static ms_keys keys;
static const char *const origins[] = {"https://app.example", NULL};

static int start(void **state) {
    (void)state;
    fixture_init(&f);
    script_say(&f.engine, "alpha", "thought", "Answer.");
    f.o.origins = origins;
    f.o.max_connections = 24;
    f.o.io_timeout_s = 2;
    f.o.keys = &keys;
    fixture_start(&f);
    fixture_wait_ready(&f);
    return 0;
}

static int stop(void **state) {
    (void)state;
    fixture_free(&f);
    ms_keys_free(&keys);
    return 0;
}

#define CHAT  "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
#define HELLO "{\"model\":\"moonshine\",\"messages\":[{\"role\":\"user\",\"content\":\"alpha\"}]}"

/* Sends the text on a connection of its own and reads one response. */
static void raw(const char *text, http_response *r) {
    int fd = http_connect(f.port);
    assert_true(fd >= 0);
    assert_true(http_puts(fd, text));
    http_read(fd, r, strncmp(text, "HEAD", 4) == 0);
    (void)close(fd);
}

static void status_of(const char *text, int status, const char *code) {
    http_response r;
    raw(text, &r);
    if (r.status != status)
        fail_msg("%.60s: expected %d, found %d %s", text, status, r.status, r.body.data ? r.body.data : "");
    if (code) assert_string_equal(http_text(&r, "error.code"), code);
    http_free(&r);
}

static void with_length(ms_text *t, const char *head, const char *body) {
    ms_text_printf(t, "%sContent-Length: %zu\r\n\r\n%s", head, strlen(body), body);
}

/* ------------------------------------------------------------------ framing */

static void requests_in_a_row(void **state) {
    (void)state;
    http_response r;
    ms_text t = {0};
    int fd = http_connect(f.port);
    fixture_wait_idle(&f);
    with_length(&t, CHAT, HELLO);
    ms_text_puts(&t, "GET /health HTTP/1.1\r\nHost: x\r\n\r\nHEAD /v1/models HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_true(http_send(fd, t.data, t.len)); /* all three at once */
    http_read(fd, &r, false);
    assert_int_equal(r.status, 200);
    assert_string_equal(http_text(&r, "choices.0.message.content"), "Answer.");
    http_free(&r);
    http_read(fd, &r, false);
    assert_int_equal(r.status, 200);
    assert_string_equal(http_text(&r, "engine"), "Moonshine");
    http_free(&r);
    http_read(fd, &r, true);
    assert_int_equal(r.status, 200);
    assert_true(atoi(http_header(&r, "Content-Length")) > 50);
    http_free(&r);
    (void)close(fd);
    ms_text_free(&t);
}

static void a_connection_ends_after_100_requests(void **state) {
    (void)state;
    int fd = http_connect(f.port);
    for (int i = 1; i <= 100; i++) {
        http_response r;
        assert_true(http_puts(fd, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n"));
        http_read(fd, &r, false);
        assert_int_equal(r.status, 200);
        const char *c = http_header(&r, "Connection");
        assert_int_equal(c && strcasecmp(c, "close") == 0, i == 100);
        http_free(&r);
    }
    char byte;
    assert_int_equal(recv(fd, &byte, 1, 0), 0);
    (void)close(fd);
}

static void chunked_bodies(void **state) {
    (void)state;
    ms_text t = {0};
    http_response r;
    fixture_wait_idle(&f);
    ms_text_puts(&t, CHAT "Transfer-Encoding: chunked\r\n\r\n");
    for (const char *p = HELLO; *p;) {
        size_t n = strlen(p) < 7 ? strlen(p) : 7;
        ms_text_printf(&t, "%zx;name=value\r\n%.*s\r\n", n, (int)n, p);
        p += n;
    }
    ms_text_puts(&t, "0\r\nTrailer: dropped\r\n\r\n");
    raw(t.data, &r);
    assert_int_equal(r.status, 200);
    assert_string_equal(http_text(&r, "choices.0.message.content"), "Answer.");
    http_free(&r);
    ms_text_free(&t);
}

/* Too large while it is read: the declared length is not there to tell. */
static void a_chunked_body_that_grows(void **state) {
    (void)state;
    http_response r;
    int fd = http_connect(f.port);
    static char block[65536 + 16];
    int n = snprintf(block, sizeof block, "10000\r\n");
    memset(block + n, ' ', 65536);
    memcpy(block + n + 65536, "\r\n", 2);
    assert_true(http_puts(fd, CHAT "Transfer-Encoding: chunked\r\n\r\n"));
    for (int i = 0; i < 130; i++) assert_true(http_send(fd, block, (size_t)n + 65538));
    assert_true(http_puts(fd, "0\r\n\r\n"));
    http_read(fd, &r, false);
    assert_int_equal(r.status, 413);
    assert_string_equal(http_text(&r, "error.code"), "body_too_large");
    http_free(&r);
    (void)close(fd);
}

static void broken_framing(void **state) {
    (void)state;
    status_of(CHAT "\r\n", 411, "length_required");
    status_of(CHAT "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400, "bad_http");
    status_of(CHAT "Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}", 400, NULL);
    status_of(CHAT "Transfer-Encoding: gzip\r\n\r\n", 501, "transfer_coding");
    status_of(CHAT "Content-Length: 99999999\r\n\r\n", 413, "body_too_large");
    static const char *const lengths[] = {"-1", "+2", "0x10", "2, 2", "2 2", "99999999999999999999999", "abc"};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        char text[256];
        (void)snprintf(text, sizeof text, CHAT "Content-Length: %s\r\n\r\n{}", lengths[i]);
        http_response r;
        raw(text, &r);
        if (r.status != 400 && r.status != 413) fail_msg("length %s: %d", lengths[i], r.status);
        http_free(&r);
    }
    status_of("GET /health HTTP/2.7\r\nHost: x\r\n\r\n", 505, NULL);
    status_of("GET /health HTTP/1.0\r\n\r\n", 200, NULL);
    http_response r;
    raw("nonsense\r\n\r\n", &r);
    assert_true(r.status == 0 || r.status >= 400);
    http_free(&r);
    fixture_wait_idle(&f);
}

static void expectations(void **state) {
    (void)state;
    http_response r;
    ms_text t = {0}, all = {0};
    int fd = http_connect(f.port);
    fixture_wait_idle(&f);
    ms_text_printf(&t, CHAT "Expect: 100-Continue\r\nContent-Length: %zu\r\n\r\n", strlen(HELLO));
    assert_true(http_send(fd, t.data, t.len));
    assert_true(http_read_until(fd, &all, "HTTP/1.1 100 Continue\r\n\r\n"));
    assert_true(http_puts(fd, HELLO));
    http_read(fd, &r, false);
    assert_int_equal(r.status, 200);
    http_free(&r);
    (void)close(fd);
    ms_text_free(&t);
    ms_text_free(&all);
    /* What is refused is refused before the body. */
    status_of("POST /nowhere HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n", 404,
              "not_found");
    status_of(CHAT "Expect: 100-continue\r\nContent-Length: 99999999\r\n\r\n", 413, "body_too_large");
    status_of(CHAT "Expect: tea\r\nContent-Length: 5\r\n\r\n", 417, "expectation_failed");
}

/* ------------------------------------------------------------------ paths, methods, limits */

static void paths_and_methods(void **state) {
    (void)state;
    http_response r;
    status_of("GET /health/?beta=true&x HTTP/1.1\r\nHost: x\r\n\r\n", 200, NULL);
    status_of("GET /v1/m%6Fdels HTTP/1.1\r\nHost: x\r\n\r\n", 200, NULL);
    status_of("GET /v1/models/moonshine HTTP/1.1\r\nHost: x\r\n\r\n", 200, NULL);
    status_of("GET /v1/models/other HTTP/1.1\r\nHost: x\r\n\r\n", 404, "model_not_found");
    status_of("GET /v1/%00models HTTP/1.1\r\nHost: x\r\n\r\n", 400, "bad_http");
    status_of("GET /v1/%0amodels HTTP/1.1\r\nHost: x\r\n\r\n", 400, "bad_http");
    status_of("GET /v1/../health HTTP/1.1\r\nHost: x\r\n\r\n", 400, "bad_http");
    status_of("GET /v1/%2e%2e/health HTTP/1.1\r\nHost: x\r\n\r\n", 400, "bad_http");
    status_of("GET /v1/%zz HTTP/1.1\r\nHost: x\r\n\r\n", 400, "bad_http");
    status_of("GET /v1/embeddings HTTP/1.1\r\nHost: x\r\n\r\n", 404, "not_found");
    status_of("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", 404, "endpoint_disabled");
    status_of("GET /slots HTTP/1.1\r\nHost: x\r\n\r\n", 404, "endpoint_disabled");
    raw("GET /v1/chat/completions HTTP/1.1\r\nHost: x\r\n\r\n", &r);
    assert_int_equal(r.status, 405);
    assert_string_equal(http_header(&r, "Allow"), "POST, OPTIONS");
    http_free(&r);
    raw("DELETE /health HTTP/1.1\r\nHost: x\r\n\r\n", &r);
    assert_int_equal(r.status, 405);
    assert_string_equal(http_header(&r, "Allow"), "GET, HEAD, OPTIONS");
    http_free(&r);
    raw("HEAD /health HTTP/1.1\r\nHost: x\r\n\r\n", &r);
    assert_int_equal(r.status, 200);
    http_free(&r);
    raw("GET /health HTTP/1.1\r\nHost: x\r\nX-Client-Request-Id: my id 7\r\n\r\n", &r);
    assert_string_equal(http_header(&r, "X-Client-Request-Id"), "my id 7");
    http_free(&r);
}

/* As proxies are asked: the host of the target counts, not the header's. */
static void absolute_targets(void **state) {
    (void)state;
#define POST_TO(target) "POST " target " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n"
    http_response r;
    raw("GET http://host:80/v1/models HTTP/1.1\r\nHost: x\r\n\r\n", &r);
    assert_int_equal(r.status, 200);
    assert_string_equal(http_text(&r, "object"), "list");
    http_free(&r);
    status_of("GET HTTP://[::1]/health/?beta=true HTTP/1.1\r\nHost: x\r\n\r\n", 200, NULL);
    status_of("GET http://host HTTP/1.1\r\nHost: x\r\n\r\n", 404, "endpoint_disabled"); /* the chat page's place */
    status_of("GET http://host/v1/../health HTTP/1.1\r\nHost: x\r\n\r\n", 400, "bad_http");
    status_of("GET http://me@host/health HTTP/1.1\r\nHost: x\r\n\r\n", 400, "bad_http");
    status_of("GET ftp://host/health HTTP/1.1\r\nHost: x\r\n\r\n", 400, "bad_http");
    status_of("GET http://host/health HTTP/1.1\r\n\r\n", 400, "bad_http"); /* the header is needed all the same */
    status_of("GET /health HTTP/1.1\r\n\r\n", 400, "bad_http");
    status_of("GET /health HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n", 400, "bad_http");
    status_of("GET /health HTTP/1.0\r\n\r\n", 200, NULL);
    status_of("OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", 204, NULL);
    status_of("GET * HTTP/1.1\r\nHost: x\r\n\r\n", 400, "bad_http");
    status_of("CONNECT host:80 HTTP/1.1\r\nHost: x\r\n\r\n", 400, "bad_http");
    status_of("DELETE http://host/health HTTP/1.1\r\nHost: x\r\n\r\n", 405, "method_not_allowed");
    status_of(POST_TO("http://other.localhost/v1/chat/completions") "Origin: http://other.localhost\r\n\r\n{}", 400,
              "missing_field");
    status_of(POST_TO("http://other/v1/chat/completions") "Origin: http://localhost\r\n\r\n{}", 403,
              "origin_not_allowed");
#undef POST_TO
}

static void large_heads(void **state) {
    (void)state;
    ms_text t = {0};
    ms_text_puts(&t, "GET /health HTTP/1.1\r\nHost: x\r\n");
    for (int i = 0; i < 101; i++) ms_text_printf(&t, "X-H%d: v\r\n", i);
    ms_text_puts(&t, "\r\n");
    status_of(t.data, 431, "headers_too_large");
    t.len = 0;
    ms_text_puts(&t, "GET /health HTTP/1.1\r\nHost: x\r\nX-Long: ");
    for (int i = 0; i < 20000; i++) ms_text_puts(&t, "abcdefgh");
    ms_text_puts(&t, "\r\n\r\n");
    status_of(t.data, 431, NULL);
    t.len = 0;
    ms_text_puts(&t, "GET /health HTTP/1.1\r\nHost: x\r\nX-Long: "); /* above 64 KiB, and what the library takes */
    for (int i = 0; i < 8750; i++) ms_text_puts(&t, "abcdefgh");
    ms_text_puts(&t, "\r\n\r\n");
    status_of(t.data, 431, "headers_too_large");
    t.len = 0;
    ms_text_puts(&t, "GET /");
    for (int i = 0; i < 20000; i++) ms_text_puts(&t, "abcdefgh");
    ms_text_puts(&t, " HTTP/1.1\r\nHost: x\r\n\r\n");
    status_of(t.data, 414, NULL);
    ms_text_free(&t);
}

/* "GET /a...?b... HTTP/1.1" of `line` bytes, `path` of them before the '?'. */
static void request_line(ms_text *t, size_t path, size_t line) {
    t->len = 0;
    ms_text_puts(t, "GET /v1/");
    while (t->len < strlen("GET ") + path) ms_text_puts(t, "a");
    ms_text_puts(t, "?");
    while (t->len < line - strlen(" HTTP/1.1")) ms_text_puts(t, "b");
    ms_text_puts(t, " HTTP/1.1\r\nHost: x\r\n\r\n");
}

/* 8 KiB, whatever of it is path or query; up to what the library takes the answer is the API's. */
static void long_request_lines(void **state) {
    (void)state;
    ms_text t = {0};
    static const size_t lines[] = {8193, 9000, 40000, 78000};
    request_line(&t, 8100, 8192);
    status_of(t.data, 404, "not_found");
    request_line(&t, 20, 8192);
    status_of(t.data, 404, "not_found");
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        http_response r;
        request_line(&t, i % 2 ? lines[i] - 20 : 20, lines[i]);
        raw(t.data, &r);
        assert_int_equal(r.status, 414);
        assert_string_equal(http_text(&r, "error.code"), "uri_too_long");
        assert_string_equal(http_text(&r, "error.type"), "invalid_request_error");
        assert_non_null(strstr(http_text(&r, "error.message"), "8192"));
        assert_non_null(http_header(&r, "X-Request-Id"));
        http_free(&r);
    }
    ms_text_free(&t);
}

static void content_types(void **state) {
    (void)state;
    static const struct {
        const char *headers;
        int status;
    } cases[] = {{"", 400},
                 {"Content-Type: application/json; charset=UTF-8\r\n", 400},
                 {"Content-Type: application/vnd.x+json\r\n", 400},
                 {"Content-Type: text/plain\r\n", 400},
                 {"Content-Type: application/x-www-form-urlencoded\r\n", 400},
                 {"Content-Type: text/plain\r\nOrigin: https://app.example\r\n", 415},
                 {"Content-Type: text/html\r\n", 415},
                 {"Content-Type: multipart/form-data; boundary=x\r\n", 415},
                 {"Content-Type: application/json; charset=latin1\r\n", 415},
                 {"Content-Encoding: gzip\r\n", 415},
                 {"Content-Encoding: identity\r\n", 400}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ms_text t = {0};
        ms_text_printf(&t, CHAT "%sContent-Length: 2\r\n\r\n{}", cases[i].headers); /* {} itself is a 400 */
        status_of(t.data, cases[i].status, NULL);
        ms_text_free(&t);
    }
}

/* ------------------------------------------------------------------ bodies */

static void post_body(const char *body, size_t len, http_response *r) {
    ms_text t = {0};
    int fd = http_connect(f.port);
    ms_text_printf(&t, CHAT "Content-Length: %zu\r\n\r\n", len);
    ms_text_append(&t, body, len);
    (void)http_send(fd, t.data, t.len);
    http_read(fd, r, false);
    (void)close(fd);
    ms_text_free(&t);
}

static void large_and_strange_bodies(void **state) {
    (void)state;
    http_response r;
    ms_text t = {0};
    fixture_wait_idle(&f);
    static const char head[] = "{\"model\":\"moonshine\",\"messages\":[{\"role\":\"user\",\"content\":\"",
                      tail[] = "\"}]}";
    ms_text_puts(&t, head);
    while (t.len < 8388608 - sizeof tail) ms_text_puts(&t, "x");
    ms_text_puts(&t, tail);
    post_body(t.data, t.len, &r); /* the largest body: read, understood, too long for the context */
    assert_int_equal(r.status, 400);
    assert_string_equal(http_text(&r, "error.code"), "context_length_exceeded");
    http_free(&r);
    t.len = 0;
    for (int i = 0; i < 500000; i++) ms_text_puts(&t, "[");
    post_body(t.data, t.len, &r);
    assert_int_equal(r.status, 400);
    assert_string_equal(http_text(&r, "error.code"), "json_too_deep");
    http_free(&r);
    ms_text_free(&t);
    fixture_wait_idle(&f);
    post_body(HELLO "\0", sizeof HELLO, &r);
    assert_int_equal(r.status, 400);
    assert_string_equal(http_text(&r, "error.code"), "invalid_json");
    http_free(&r);
    static const char strange[] = "{\"model\":\"moonshine\",\"messages\":[{\"role\":\"user\",\"content\":"
                                  "\"alpha \\ud83d \\u0000 \\ude00\"}]}";
    post_body(strange, sizeof strange - 1, &r);
    assert_int_equal(r.status, 200);
    assert_string_equal(http_header(&r, "X-Moonshine-Repaired"), "lone-surrogates=2");
    http_free(&r);
    fixture_wait_idle(&f);
    static const char bad[] = "{\"model\":\"moonshine\",\"messages\":[{\"role\":\"user\",\"content\":\"\xff\xfe\"}]}";
    post_body(bad, sizeof bad - 1, &r);
    assert_int_equal(r.status, 400);
    assert_string_equal(http_text(&r, "error.code"), "invalid_json");
    http_free(&r);
}

/* One byte at a time holds up nobody, and silence ends. */
static void slow_writers(void **state) {
    (void)state;
    http_response r;
    ms_text t = {0};
    int slow = http_connect(f.port), silent = http_connect(f.port);
    with_length(&t, CHAT, HELLO);
    fixture_wait_idle(&f);
    assert_true(http_puts(silent, CHAT "Content-Length: 50\r\n\r\n{"));
    for (size_t i = 0; i < t.len; i++) {
        assert_true(http_send(slow, t.data + i, 1));
        if (i % 20) continue;
        uint64_t start_ns = ms_clock_ns();
        status_of("GET /health HTTP/1.1\r\nHost: x\r\n\r\n", 200, NULL);
        assert_true(ms_clock_ns() - start_ns < UINT64_C(250000000));
        pause_ms(20);
    }
    http_read(slow, &r, false);
    assert_int_equal(r.status, 200);
    http_free(&r);
    (void)close(slow);
    uint64_t start_ns = ms_clock_ns();
    http_read(silent, &r, false); /* closed after the time-out, without an answer */
    assert_true(ms_clock_ns() - start_ns < UINT64_C(6000000000));
    assert_true(r.status == 0 || r.status == 408);
    http_free(&r);
    (void)close(silent);
    ms_text_free(&t);
}

static void too_many_connections(void **state) {
    (void)state;
    enum { MOST = 64 };
    int open[MOST];
    size_t n = 0;
    http_response r = {0};
    /* One of them is refused, once so many others are open; the others wait for a request. */
    for (; n < MOST && r.status == 0; n++) {
        open[n] = http_connect(f.port);
        assert_true(open[n] >= 0);
        struct pollfd p = {.fd = open[n], .events = POLLIN};
        if (poll(&p, 1, n < 20 ? 0 : 300) == 1) http_read(open[n], &r, false);
    }
    assert_int_equal(r.status, 503);
    assert_string_equal(http_text(&r, "error.code"), "server_busy");
    http_free(&r);
    while (n) (void)close(open[--n]);
    for (int i = 0; i < 1000 && r.status != 200; i++) {
        http_free(&r);
        pause_ms(10);
        raw("GET /health HTTP/1.1\r\nHost: x\r\n\r\n", &r);
    }
    assert_int_equal(r.status, 200);
    http_free(&r);
}

/* Sockets that come faster than they are taken over never meet the limit of libmicrohttpd. */
static void connections_in_a_burst(void **state) {
    (void)state;
    int open[300];
    const size_t count = sizeof open / sizeof open[0];
    for (size_t round = 0; round < 3; round++) {
        for (size_t i = 0; i < count; i++) {
            open[i] = http_connect(f.port);
            assert_true(open[i] >= 0);
        }
        for (size_t i = 0; i < count; i++) (void)close(open[i]);
    }
    http_response r = {0};
    for (int i = 0; i < 1000 && r.status != 200; i++) {
        http_free(&r);
        pause_ms(10);
        raw("GET /health HTTP/1.1\r\nHost: x\r\n\r\n", &r);
    }
    assert_int_equal(r.status, 200);
    http_free(&r);
}

/* ------------------------------------------------------------------ browsers and keys */

static void origins_are_checked(void **state) {
    (void)state;
    http_response r;
    raw("OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: x\r\nOrigin: https://app.example\r\n"
        "Access-Control-Request-Method: POST\r\n\r\n",
        &r);
    assert_int_equal(r.status, 204);
    assert_string_equal(http_header(&r, "Access-Control-Allow-Origin"), "https://app.example");
    assert_string_equal(http_header(&r, "Access-Control-Max-Age"), "600");
    assert_string_equal(http_header(&r, "Vary"), "Origin");
    http_free(&r);
    raw("OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: x\r\nOrigin: https://evil.example\r\n\r\n", &r);
    assert_int_equal(r.status, 204);
    assert_null(http_header(&r, "Access-Control-Allow-Origin"));
    http_free(&r);
    raw(CHAT "Origin: https://app.example\r\nContent-Length: 2\r\n\r\n{}", &r);
    assert_int_equal(r.status, 400); /* an error of the request, readable by the page */
    assert_string_equal(http_header(&r, "Access-Control-Allow-Origin"), "https://app.example");
    http_free(&r);
    status_of(CHAT "Origin: https://evil.example\r\nContent-Length: 2\r\n\r\n{}", 403, "origin_not_allowed");
    status_of(CHAT "Origin: null\r\nContent-Length: 2\r\n\r\n{}", 403, "origin_not_allowed");
    status_of(CHAT "Origin: http://localhost\r\nContent-Length: 2\r\n\r\n{}", 400, NULL);
    static const char *const own[] = {"127.0.0.1:8080", "[::1]:8080", "192.168.1.7", "chat.localhost:1", "LOCALHOST:9"},
                             *const strange[] = {"evil.example",
                                                 "evil.example:8080",
                                                 "localhost.evil.example",
                                                 "127.0.0.1.evil.example:8080",
                                                 "[evil.example]",
                                                 "1.2.3",
                                                 ":80"};
    char text[512];
    for (size_t i = 0; i < sizeof own / sizeof *own + sizeof strange / sizeof *strange; i++) {
        const size_t first = sizeof own / sizeof *own;
        const char *host = i < first ? own[i] : strange[i - first];
        (void)snprintf(text, sizeof text,
                       "POST /v1/chat/completions HTTP/1.1\r\nHost: %s\r\nOrigin: http://%s\r\n"
                       "Content-Length: 2\r\n\r\n{}",
                       host, host);
        status_of(text, i < first ? 400 : 403, i < first ? NULL : "origin_not_allowed");
    }
}

static void keys_are_checked(void **state) {
    (void)state;
    fixture_stop(&f);
    assert_int_equal(ms_keys_add(&keys, "sesame-MARKED", 13, NULL), MS_OK);
    assert_int_equal(ms_keys_add(&keys, "second", 6, NULL), MS_OK);
    fixture_start(&f);
    fixture_wait_ready(&f);
    static const struct {
        const char *headers;
        int status;
    } cases[] = {{"", 401},
                 {"Authorization: Bearer wrong\r\n", 401},
                 {"Authorization: Bearer\r\n", 401},
                 {"Authorization: Basic sesame-MARKED\r\n", 401},
                 {"Authorization: sesame-MARKED\r\n", 401},
                 {"Authorization: Bearer sesame-MARKEDx\r\n", 401},
                 {"Authorization: bearer sesame-MARKED\r\n", 200},
                 {"x-api-key: second\r\n", 200},
                 {"x-api-key: second\r\nAuthorization: Bearer sesame-MARKED\r\n", 200},
                 {"x-api-key: second\r\nAuthorization: Bearer wrong\r\n", 401},
                 {"x-api-key: wrong\r\nAuthorization: Bearer second\r\n", 401}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ms_text t = {0};
        ms_text_printf(&t, "GET /v1/models HTTP/1.1\r\nHost: x\r\n%s\r\n", cases[i].headers);
        http_response r;
        raw(t.data, &r);
        if (r.status != cases[i].status) fail_msg("%s: %d", cases[i].headers, r.status);
        if (r.status == 401) assert_string_equal(http_header(&r, "WWW-Authenticate"), "Bearer");
        if (r.status == 401) assert_string_equal(http_text(&r, "error.code"), "invalid_api_key");
        http_free(&r);
        ms_text_free(&t);
    }
    status_of("GET /health HTTP/1.1\r\nHost: x\r\n\r\n", 200, NULL);
    status_of("GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n", 401, "invalid_api_key");
    status_of("OPTIONS /v1/models HTTP/1.1\r\nHost: x\r\n\r\n", 204, NULL);
    status_of(CHAT "Content-Length: 99999999\r\n\r\n", 401, "invalid_api_key"); /* before the body */
    ms_text log = {0};
    fixture_log(&f, &log);
    assert_null(strstr(log.data, "MARKED"));
    assert_null(strstr(log.data, "wrong"));
    assert_non_null(strstr(log.data, "http.unauthorized"));
    ms_text_free(&log);
}

/* Decided on the resolved address. */
static void addresses(void **state) {
    (void)state;
    ms_error err;
    ms_server *s;
    ms_server_options o = f.o;
    static const char *const far[] = {"0.0.0.0", "::", "", "192.0.2.1"};
    o.keys = NULL;
    for (size_t i = 0; i < sizeof far / sizeof far[0]; i++) {
        o.host = far[i];
        assert_int_equal(ms_server_create(&s, &o, &err), MS_ERR_USAGE);
    }
    o.host = "no such host.invalid";
    assert_int_equal(ms_server_create(&s, &o, &err), MS_ERR_USAGE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_in_a_row),   cmocka_unit_test(a_connection_ends_after_100_requests),
        cmocka_unit_test(chunked_bodies),      cmocka_unit_test(a_chunked_body_that_grows),
        cmocka_unit_test(broken_framing),      cmocka_unit_test(expectations),
        cmocka_unit_test(paths_and_methods),   cmocka_unit_test(absolute_targets),
        cmocka_unit_test(large_heads),         cmocka_unit_test(long_request_lines),
        cmocka_unit_test(content_types),       cmocka_unit_test(large_and_strange_bodies),
        cmocka_unit_test(slow_writers),        cmocka_unit_test(too_many_connections),
        cmocka_unit_test(origins_are_checked), cmocka_unit_test(keys_are_checked),
        cmocka_unit_test(addresses),           cmocka_unit_test(connections_in_a_burst),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
