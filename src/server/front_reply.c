/* front_reply.c: responses of an exchange. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "server/front_internal.h"

enum { STREAM_BLOCK = 16384, REQUESTS_MAX = 100 };

#define EXPOSED                                                                                                        \
    "X-Request-Id, X-Client-Request-Id, X-Moonshine-Prompt-Evaluated-Tokens, X-Moonshine-Prompt-Reused-Tokens, "       \
    "X-Moonshine-Prompt-Seconds, X-Moonshine-Decode-Seconds, X-Moonshine-Decode-Tokens-Per-Second, "                   \
    "X-Moonshine-Ignored-Fields, X-Moonshine-Ignored-Tools, X-Moonshine-Repaired, X-Moonshine-Clamped, "               \
    "X-Moonshine-Stop, X-Moonshine-Seed, X-Moonshine-Reasoning-Restored"

const char *ms_exchange_id(const ms_exchange *x) { return x->id; }
const char *ms_exchange_peer(const ms_exchange *x) { return x->peer; }
const char *ms_exchange_tail(const ms_exchange *x) { return x->path + strlen(x->route->path); }
const ms_text *ms_exchange_body(const ms_exchange *x) { return &x->body; }

const char *ms_exchange_query(const ms_exchange *x, const char *key) {
    return MHD_lookup_connection_value(x->connection, MHD_GET_ARGUMENT_KIND, key);
}

void ms_exchange_timeout(ms_exchange *x, unsigned seconds) {
    (void)MHD_set_connection_option(x->connection, MHD_CONNECTION_OPTION_TIMEOUT, seconds);
}

void ms_exchange_free(ms_exchange *x) {
    if (!x) return;
    for (size_t i = 0; i < x->extra_count; i++) free(x->extra[i].value);
    ms_text_free(&x->body);
    if (x->body_held) (void)atomic_fetch_sub(&x->front->body_bytes, x->body_held);
    free(x);
}

/* A value goes out as it is, so what could end a header is replaced. */
void ms_exchange_header(ms_exchange *x, const char *name, const char *value) {
    if (x->extra_count == MS_EXTRA_HEADERS) return;
    char *copy = strdup(value);
    if (!copy) return;
    for (char *s = copy; *s; s++) {
        if ((unsigned char)*s < 0x20 || (unsigned char)*s >= 0x7F) *s = '?';
    }
    (void)snprintf(x->extra[x->extra_count].name, sizeof x->extra[0].name, "%s", name);
    x->extra[x->extra_count++].value = copy;
}

static void add(struct MHD_Response *r, const char *name, const char *value) {
    (void)MHD_add_response_header(r, name, value);
}

static void add_cross_origin(ms_exchange *x, struct MHD_Response *r) {
    if (!x->front->o.origins || !*x->front->o.origins) return;
    add(r, "Vary", "Origin");
    if (!ms_front_origin_listed(x)) return;
    add(r, "Access-Control-Allow-Origin", x->headers.origin);
    add(r, "Access-Control-Expose-Headers", EXPOSED);
}

static void send_response(ms_exchange *x, unsigned http, const char *content_type, struct MHD_Response *r) {
    if (content_type) add(r, "Content-Type", content_type);
    add(r, "Cache-Control", x->next ? "no-cache, no-store" : "no-store");
    add(r, "Server", "moonshine/" MS_VERSION);
    add(r, "X-Request-Id", x->id);
    for (size_t i = 0; i < x->extra_count; i++) add(r, x->extra[i].name, x->extra[i].value);
    add_cross_origin(x, r);
    if (x->socket && x->socket->requests >= REQUESTS_MAX) add(r, "Connection", "close");
    if (x->next || atomic_load(&x->front->draining)) add(r, "Connection", "close");
    ms_exchange_timeout(x, 0); /* the time begins anew */
    ms_exchange_timeout(x, x->front->o.io_timeout_s);
    (void)MHD_queue_response(x->connection, http, r);
    MHD_destroy_response(r);
    x->answered = true;
}

static void reply_text(ms_exchange *x, unsigned http, const char *content_type, ms_text *body) {
    struct MHD_Response *r = NULL;
    if (!body->failed) r = MHD_create_response_from_buffer(body->len, body->data, MHD_RESPMEM_MUST_FREE);
    if (!r) {
        ms_text_free(body);
        static char none[] = "{\"error\":{\"message\":\"out of memory\",\"type\":\"server_error\",\"param\":null,"
                             "\"code\":\"internal_error\"}}";
        r = MHD_create_response_from_buffer(sizeof none - 1, none, MHD_RESPMEM_PERSISTENT);
        http = 500;
    }
    *body = (ms_text){0};
    if (r) send_response(x, http, content_type, r);
}

void ms_exchange_reply(ms_exchange *x, unsigned http, const char *content_type, ms_text *body) {
    reply_text(x, http, content_type, body);
}

void ms_exchange_error(ms_exchange *x, const ms_api_error *e) {
    ms_text body = {0};
    char number[24];
    if (e->retry_after) {
        (void)snprintf(number, sizeof number, "%d", e->retry_after);
        ms_exchange_header(x, "Retry-After", number);
    }
    if (e->should_retry) ms_exchange_header(x, "x-should-retry", e->should_retry > 0 ? "true" : "false");
    ms_api_error_document(&body, x->route ? x->route->kind : MS_API_CHAT, e, x->id);
    reply_text(x, (unsigned)e->http, "application/json; charset=utf-8", &body);
}

void ms_exchange_reject(ms_exchange *x, const ms_api_error *e) {
    ms_log_line l;
    ms_log_begin(&l, x->front->o.log, MS_LOG_WARN, "request.reject", x->id);
    ms_log_word(&l, "peer", x->peer);
    ms_log_u64(&l, "status", (uint64_t)e->http);
    ms_log_word(&l, "code", e->code);
    ms_log_end(&l);
    ms_exchange_error(x, e);
}

void ms_front_preflight(ms_exchange *x) {
    struct MHD_Response *r = MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT);
    if (!r) return;
    if (ms_front_origin_listed(x)) {
        add(r, "Access-Control-Allow-Methods", "GET, POST, OPTIONS");
        add(r, "Access-Control-Allow-Headers",
            "authorization, content-type, x-api-key, anthropic-version, anthropic-beta");
        add(r, "Access-Control-Max-Age", "600");
    }
    send_response(x, 204, NULL, r);
}

/* ------------------------------------------------------------------ streams */

/* Waiting for the engine is not the client's silence: the time-out runs only while bytes wait for the client. */
static ssize_t stream_bytes(void *arg, uint64_t position, char *to, size_t room) {
    (void)position;
    ms_exchange *x = arg;
    ms_exchange_timeout(x, 0);
    ptrdiff_t n = x->next(x->next_arg, to, room);
    ms_exchange_timeout(x, x->front->o.io_timeout_s);
    if (n > 0) return n;
    return n == 0 ? MHD_CONTENT_READER_END_OF_STREAM : MHD_CONTENT_READER_END_WITH_ERROR;
}

void ms_exchange_stream(ms_exchange *x, const char *content_type, ptrdiff_t (*next)(void *arg, char *to, size_t room),
                        void *arg) {
    x->next = next;
    x->next_arg = arg;
    struct MHD_Response *r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK, stream_bytes, x, NULL);
    if (!r) return; /* not answered: the connection is closed */
    (void)MHD_set_response_options(r, MHD_RF_HTTP_1_0_COMPATIBLE_STRICT, MHD_RO_END);
    add(r, "X-Accel-Buffering", "no");
    send_response(x, 200, content_type, r);
}

void ms_exchange_on_done(ms_exchange *x, void (*done)(void *arg, bool sent), void *arg) {
    x->done = done;
    x->done_arg = arg;
}

ms_wait ms_exchange_wait(ms_exchange *x, int event_fd, int timeout_ms) {
    ms_exchange_timeout(x, 0);
    struct pollfd p[2] = {{.fd = x->socket ? x->socket->fd : -1, .events = POLLRDHUP},
                          {.fd = event_fd, .events = POLLIN}};
    int n;
    do {
        n = poll(p, 2, timeout_ms);
    } while (n < 0 && errno == EINTR);
    if (p[0].revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) return MS_WAIT_GONE;
    if (n > 0 && (p[1].revents & POLLIN)) {
        eventfd_t value;
        (void)eventfd_read(event_fd, &value);
        return MS_WAIT_EVENT;
    }
    return MS_WAIT_TIME;
}
