/* Nothing that a client or the model wrote gets into the log, in either format, at any endpoint; nor do keys.
 *
 * Every text that a request holds, in bodies, names, schemas, paths and headers, contains the same mark, and
 * constrained replies make the model write it too. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "program.h"
#include "server_fixture.h"

#define KEY "MARKKEY-0123456789abcdef"
/* A schema whose only text is the mark. */
#define SCHEMA                                                                                                         \
    "{\"type\":\"object\",\"description\":\"MARK\",\"properties\":{\"MARK\":{\"const\":\"MARK\"}},\"required\":"       \
    "[\"MARK\"],\"additionalProperties\":false}"
#define FUNCTION "\"name\":\"MARK_tool\",\"description\":\"MARK\",\"parameters\":" SCHEMA
#define CHAT     "{\"model\":\"moonshine\",\"max_tokens\":120,\"user\":\"MARK\",\"metadata\":{\"MARK\":\"MARK\"},"
#define CALL                                                                                                           \
    "\"tool_calls\":[{\"id\":\"call_MARK\",\"type\":\"function\",\"function\":{\"name\":\"MARK_tool\",\"arguments\":"  \
    "\"{\\\"MARK\\\":\\\"MARK\\\"}\"}}]"
#define ASK  "{\"role\":\"user\",\"name\":\"MARK\",\"content\":\"MARK\"}"
#define TALK "\"messages\":[{\"role\":\"system\",\"content\":\"MARK\"}," ASK

typedef struct request {
    const char *method, *path, *body;
    int status; /* 0: any */
} request;

static const request requests[] = {
    /* answered */
    {"POST", "/v1/chat/completions", CHAT "\"stop\":[\"MARK\"]," TALK "]}", 200},
    {"POST", "/v1/chat/completions",
     CHAT TALK "],\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"MARK\",\"strict\":true,"
               "\"schema\":" SCHEMA "}}}",
     200},
    {"POST", "/v1/chat/completions",
     CHAT "\"stream\":true," TALK "],\"tools\":[{\"type\":\"function\",\"function\":{" FUNCTION
          ",\"strict\":true}}],\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"MARK_tool\"}}}",
     200},
    {"POST", "/v1/chat/completions",
     CHAT TALK ",{\"role\":\"assistant\",\"reasoning_content\":\"MARK\",\"content\":\"MARK\"," CALL
               "},{\"role\":\"tool\",\"tool_call_id\":\"call_MARK\",\"content\":\"MARK\"}],\"tools\":[{\"type\":"
               "\"function\",\"function\":{" FUNCTION "}}]}",
     200},
    {"POST", "/v1/completions", "{\"model\":\"moonshine\",\"prompt\":\"MARK\",\"max_tokens\":4,\"stop\":\"MARK\"}",
     200},
    {"POST", "/v1/messages",
     "{\"model\":\"moonshine\",\"max_tokens\":90,\"system\":\"MARK\",\"stop_sequences\":[\"MARK\"],\"messages\":["
     "{\"role\":\"user\",\"content\":\"MARK\"}],\"tools\":[{\"name\":\"MARK_tool\",\"description\":\"MARK\","
     "\"input_schema\":" SCHEMA "}],\"tool_choice\":{\"type\":\"any\"}}",
     200},
    {"POST", "/v1/messages/count_tokens",
     "{\"model\":\"moonshine\",\"messages\":[{\"role\":\"user\",\"content\":\"MARK\"}]}", 200},
    {"POST", "/v1/responses",
     "{\"model\":\"moonshine\",\"instructions\":\"MARK\",\"input\":\"MARK\",\"max_output_tokens\":90,\"tools\":["
     "{\"type\":\"function\"," FUNCTION "}],\"tool_choice\":\"required\"}",
     200},
    {"POST", "/v1/responses/input_tokens", "{\"model\":\"moonshine\",\"input\":\"MARK\"}", 200},
    {"POST", "/v1/chat/completions/input_tokens", CHAT TALK "]}", 200},
    {"POST", "/tokenize", "{\"content\":\"MARK\",\"with_pieces\":true}", 200},
    {"POST", "/detokenize", "{\"tokens\":[77,65,82,75]}", 200},
    {"POST", "/apply-template", CHAT TALK "]}", 200},
    {"GET", "/health?MARK=MARK", NULL, 200},
    {"GET", "/props?MARK", NULL, 200},
    {"GET", "/slots?MARK", NULL, 200},
    {"GET", "/metrics?MARK", NULL, 200},
    {"GET", "/v1/models?MARK", NULL, 200},
    /* refused, at every stage */
    {"GET", "/v1/models/MARK", NULL, 404},
    {"GET", "/MARK?MARK=MARK", NULL, 404},
    {"DELETE", "/v1/chat/completions/MARK", NULL, 0},
    {"MARK", "/v1/chat/completions", NULL, 0},
    {"PUT", "/v1/messages?MARK", "MARK", 0},
    {"POST", "/v1/chat/completions", "{\"MARK\":", 400},
    {"POST", "/v1/chat/completions", "{\"MARK\":1,\"MARK\":2}", 400},
    {"POST", "/v1/chat/completions", "{\"model\":\"MARK\"," TALK "]}", 404},
    {"POST", "/v1/chat/completions", CHAT "\"MARK\":true," TALK "]}", 0},
    {"POST", "/v1/chat/completions", CHAT "\"messages\":[{\"role\":\"MARK\",\"content\":\"MARK\"}]}", 400},
    {"POST", "/v1/chat/completions", CHAT "\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"MARK\"}]}]}", 400},
    {"POST", "/v1/chat/completions",
     CHAT "\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{\"url\":\"MARK\"}}]}]}",
     400},
    {"POST", "/v1/chat/completions", CHAT "\"reasoning_effort\":\"MARK\"," TALK "]}", 400},
    {"POST", "/v1/chat/completions", CHAT "\"logit_bias\":{\"MARK\":1}," TALK "]}", 0},
    {"POST", "/v1/chat/completions", CHAT "\"tool_choice\":\"MARK\"," TALK "]}", 400},
    {"POST", "/v1/chat/completions",
     CHAT TALK "],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"MARK tool\"}}]}", 400},
    {"POST", "/v1/chat/completions",
     CHAT TALK "],\"tools\":[{\"type\":\"function\",\"function\":{" FUNCTION
               "}}],\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"MARK_other\"}}}",
     400},
    {"POST", "/v1/chat/completions",
     CHAT TALK "],\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\",\"strict\":true,"
               "\"schema\":{\"type\":\"object\",\"properties\":{\"MARK\":{\"MARK\":1}}}}}}",
     400},
    {"POST", "/v1/chat/completions",
     CHAT TALK "],\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\",\"strict\":true,"
               "\"schema\":{\"$ref\":\"#/$defs/MARK\"}}}}",
     400},
    {"POST", "/v1/chat/completions",
     CHAT TALK ",{\"role\":\"tool\",\"tool_call_id\":\"call_MARK\",\"content\":\"MARK\"}]}", 400},
    {"POST", "/v1/completions", "{\"model\":\"moonshine\",\"prompt\":{\"MARK\":1}}", 400},
    {"POST", "/v1/messages", "{\"model\":\"MARK\",\"max_tokens\":9,\"messages\":[]}", 0},
    {"POST", "/v1/messages",
     "{\"model\":\"moonshine\",\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"MARK\"}]}]}",
     400},
    {"POST", "/v1/messages/count_tokens", "{\"model\":\"moonshine\",\"messages\":\"MARK\"}", 400},
    {"POST", "/v1/responses", "{\"model\":\"moonshine\",\"input\":\"x\",\"previous_response_id\":\"MARK\"}", 400},
    {"POST", "/v1/responses",
     "{\"model\":\"moonshine\",\"input\":[{\"type\":\"function_call_output\",\"call_id\":\"MARK\",\"output\":\"MARK\"}]"
     "}",
     400},
    {"POST", "/v1/responses",
     "{\"model\":\"moonshine\",\"input\":[{\"type\":\"reasoning\",\"id\":\"MARK\",\"summary\":[],"
     "\"encrypted_content\":\"MARK\"}]}",
     400},
    {"POST", "/tokenize", "{\"content\":[\"MARK\"]}", 400},
    {"POST", "/detokenize", "{\"tokens\":[\"MARK\"]}", 400},
    {"POST", "/apply-template", "{\"messages\":\"MARK\"}", 400},
};

#define HEADERS                                                                                                        \
    "X-Client-Request-Id: MARK\r\nX-Request-Id: MARK\r\nUser-Agent: MARK\r\nReferer: http://MARK/\r\nCookie: "         \
    "MARK=MARK\r\nanthropic-version: MARK\r\nanthropic-beta: MARK\r\nX-MARK: MARK\r\n"

static void send_all(uint32_t port, const char *headers, bool authorized) {
    for (size_t i = 0; i < sizeof requests / sizeof requests[0]; i++) {
        const request *q = &requests[i];
        http_response r;
        for (int again = 0; again < 200; again++) {
            http_call(port, q->method, q->path, headers, q->body, &r);
            if (r.status != 503) break;
            http_free(&r);
            pause_ms(20);
        }
        int expected = authorized ? q->status : strncmp(q->path, "/health", 7) == 0 ? 0 : 401;
        if (!r.status || (expected && r.status != expected)) {
            fail_msg("request %zu: expected %d, found %d %s", i, expected, r.status, r.body.data ? r.body.data : "");
        }
        http_free(&r);
    }
}

/* What is not even a request. */
static void send_noise(uint32_t port) {
    static const char *const noise[] = {
        "MARK\r\n\r\n",
        "MARK /MARK MARK/1.1\r\n\r\n",
        "POST /v1/messages HTTP/1.1\r\nHost: MARK\r\nContent-Length: MARK\r\n\r\nMARK",
        "POST /v1/messages HTTP/1.1\r\nHost: x\r\nMARK: a\r\n MARK\r\nTransfer-Encoding: MARK\r\n\r\nMARK",
        "POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Type: MARK/MARK\r\nContent-Length: 4\r\n\r\nMARK",
        "POST /v1/messages HTTP/1.1\r\nHost: x\r\nExpect: MARK\r\nContent-Length: 400\r\n\r\nMARK",
        "GET /health HTTP/1.1\r\nHost: x\r\nAuthorization: MARK MARK\r\n\r\n",
    };
    for (size_t i = 0; i < sizeof noise / sizeof noise[0]; i++) {
        int fd = http_connect(port);
        assert_true(fd >= 0);
        (void)http_puts(fd, noise[i]);
        pause_ms(20);
        (void)close(fd);
    }
}

static void audit(const char *format) {
    char folder[] = "/tmp/moonshine-audit-XXXXXX", root[64];
    assert_non_null(mkdtemp(folder));
    (void)snprintf(root, sizeof root, "%s/states", folder);
    const char *const args[] = {
        PLAIN, "--api-key", KEY, "--log-format", format, "--metrics", "--slots-endpoint", "--prefix-checkpoint-root",
        root,  NULL};
    program p;
    program_start(&p, args);
    program_ready(&p);
    send_all(p.port, "Authorization: Bearer " KEY "\r\n" HEADERS, true);
    send_all(p.port, "x-api-key: " KEY "\r\n" HEADERS, true); /* again, on what is kept */
    send_all(p.port, "Authorization: Bearer MARK\r\n" HEADERS, false);
    send_all(p.port, "x-api-key: MARK\r\n" HEADERS, false);
    http_response r;
    http_call(p.port, "POST", "/tokenize", "Origin: http://MARK\r\nx-api-key: " KEY "\r\n", "{\"content\":\"MARK\"}",
              &r);
    assert_int_equal(r.status, 403);
    http_free(&r);
    send_noise(p.port);
    assert_int_equal(program_end(&p, SIGTERM), 0);
    const char *found = strcasestr(p.log.data, "MARK");
    if (found) fail_msg("the log has a mark: %.300s", found - p.log.data > 200 ? found - 200 : p.log.data);
    static const char *const events[] = {"request.complete",  "request.reject",          "http.reject",
                                         "http.unauthorized", "prefix.checkpoint.write", "server.stop"};
    for (size_t i = 0; i < sizeof events / sizeof events[0]; i++) {
        if (!strstr(p.log.data, events[i])) fail_msg("no %s", events[i]);
    }
    program_free(&p);
    char command[96];
    (void)snprintf(command, sizeof command, "rm -rf -- '%s'", folder);
    assert_int_equal(system(command), 0);
}

static void text_log(void **state) {
    (void)state;
    audit("text");
}

static void json_log(void **state) {
    (void)state;
    audit("json");
}

/* A file of keys that is refused at the start. */
static void refused_keys(void **state) {
    (void)state;
    char name[] = "/tmp/moonshine-keys-XXXXXX";
    int fd = mkstemp(name);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "MARK\n", 5), 5);
    assert_int_equal(fchmod(fd, 0644), 0);
    (void)close(fd);
    const char *const args[] = {PLAIN, "--api-key-file", name, NULL};
    program p;
    program_start(&p, args);
    assert_int_equal(program_end(&p, 0), 2);
    assert_null(strstr(p.log.data, "MARK"));
    program_free(&p);
    (void)unlink(name);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_log),
        cmocka_unit_test(json_log),
        cmocka_unit_test(refused_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
