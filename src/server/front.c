/* front.c: listening sockets, connections and the life of a request.
 *
 * Connections are accepted here and handed to libmicrohttpd, so that an address is judged as the system resolved it, a
 * socket too many gets an answer, and draining stops at once.
 */
#include "server/front_internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"

enum {
    IDLE_S = 15,                 /* a silent connection between requests */
    HEADERS_S = IDLE_S + 10,     /* for the headers of one request, however slowly they come */
    CONNECTION_BYTES = 80 << 10, /* request line and headers */
    THREAD_STACK_BYTES = 1 << 20,
    FINISH_S = 2,       /* at the end, for answers that are due */
    BODIES_AT_ONCE = 8, /* of the largest size */
    DISCARD_FACTOR = 4  /* a chunked body that is too large is read so much further for the answer to arrive */
};

/* ------------------------------------------------------------------ addresses */

static bool is_loopback(const struct sockaddr *a) {
    if (a->sa_family == AF_INET) {
        return (ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr) >> 24) == 127;
    }
    if (a->sa_family != AF_INET6) return false;
    const struct in6_addr *six = &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(six) || (IN6_IS_ADDR_V4MAPPED(six) && six->s6_addr[12] == 127);
}

static ms_status listen_on(ms_front *f, const struct addrinfo *a, ms_error *err) {
    int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, a->ai_protocol);
    const int on = 1;
    if (fd < 0) return ms_fail_errno(err, MS_ERR_IO, errno, "a listening socket");
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (a->ai_family == AF_INET6) (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
    if (bind(fd, a->ai_addr, a->ai_addrlen) != 0 || listen(fd, SOMAXCONN) != 0) {
        ms_status status = ms_fail_errno(err, MS_ERR_IO, errno, "port %u of %s", f->o.port, f->o.host ? f->o.host : "");
        (void)close(fd);
        return status;
    }
    f->listeners[f->listener_count++] = fd;
    return MS_OK;
}

static void name_address(ms_front *f) {
    struct sockaddr_storage a;
    socklen_t len = sizeof a;
    char host[64] = "?", port[8] = "0";
    if (getsockname(f->listeners[0], (struct sockaddr *)&a, &len) == 0) {
        (void)getnameinfo((struct sockaddr *)&a, len, host, sizeof host, port, sizeof port,
                          NI_NUMERICHOST | NI_NUMERICSERV);
    }
    f->port = (uint32_t)strtoul(port, NULL, 10);
    (void)snprintf(f->address, sizeof f->address, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, port);
}

static ms_status listen_all(ms_front *f, ms_error *err) {
    char port[16];
    const char *host = f->o.host && *f->o.host ? f->o.host : NULL;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *all = NULL;
    (void)snprintf(port, sizeof port, "%u", f->o.port);
    int code = getaddrinfo(host, port, &hints, &all);
    if (code != 0) return ms_fail(err, MS_ERR_USAGE, "--host %s: %s", host ? host : "", gai_strerror(code));
    ms_status status = MS_OK;
    for (const struct addrinfo *a = all; a && status == MS_OK; a = a->ai_next) {
        if (is_loopback(a->ai_addr) || (f->o.keys && f->o.keys->count)) continue;
        status = ms_fail(err, MS_ERR_USAGE,
                         "--host %s: expected a loopback address, or a key (--api-key-file), for others can reach it",
                         host ? host : "\"\"");
    }
    /* With port 0 each address would get a port of its own: then the first one serves. */
    for (const struct addrinfo *a = all; a && status == MS_OK && f->listener_count < MS_LISTENERS_MAX; a = a->ai_next) {
        if (f->listener_count && !f->o.port) break;
        status = listen_on(f, a, err);
    }
    freeaddrinfo(all);
    if (status == MS_OK) name_address(f);
    return status;
}

/* ------------------------------------------------------------------ sockets */

static void on_connection(void *arg, struct MHD_Connection *c, void **slot, enum MHD_ConnectionNotificationCode code) {
    ms_front *f = arg;
    ms_socket *s = *slot;
    if (code == MHD_CONNECTION_NOTIFY_CLOSED) {
        if (s) {
            (void)pthread_mutex_lock(&f->lock);
            *s->link = s->next;
            if (s->next) s->next->link = s->link;
            (void)pthread_mutex_unlock(&f->lock);
            free(s);
        }
        (void)atomic_fetch_sub(&f->connections, 1); /* last: is_owed counts what is not in the list */
        return;
    }
    s = calloc(1, sizeof *s);
    *slot = s;
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (!s) return;
    s->front = f;
    s->fd = info ? info->connect_fd : -1;
    s->waiting_since_ns = ms_clock_ns();
    (void)pthread_mutex_lock(&f->lock);
    s->next = f->sockets;
    s->link = &f->sockets;
    if (s->next) s->next->link = &s->next;
    f->sockets = s;
    (void)pthread_mutex_unlock(&f->lock);
}

static void begin_request(ms_socket *s) {
    if (!s) return;
    (void)pthread_mutex_lock(&s->front->lock);
    s->waiting_since_ns = 0;
    s->requests++;
    (void)pthread_mutex_unlock(&s->front->lock);
}

static void end_request(ms_socket *s) {
    if (!s) return;
    (void)pthread_mutex_lock(&s->front->lock);
    s->waiting_since_ns = ms_clock_ns();
    (void)pthread_mutex_unlock(&s->front->lock);
}

/* Headers that trickle in are cut off; libmicrohttpd only sees silence. */
static void cut_slow_sockets(ms_front *f) {
    (void)pthread_mutex_lock(&f->lock);
    uint64_t now = ms_clock_ns(); /* not before the lock: a socket that began to wait meanwhile would be ahead of it */
    for (const ms_socket *s = f->sockets; s; s = s->next) {
        if (s->waiting_since_ns && now - s->waiting_since_ns > HEADERS_S * UINT64_C(1000000000)) {
            (void)shutdown(s->fd, SHUT_RDWR);
        }
    }
    (void)pthread_mutex_unlock(&f->lock);
}

static void refuse_socket(int fd) {
    static const char body[] =
        "{\"error\":{\"message\":\"too many connections\",\"type\":\"server_error\",\"param\":null,"
        "\"code\":\"server_busy\"}}";
    char answer[512];
    int n = snprintf(answer, sizeof answer,
                     "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json; charset=utf-8\r\n"
                     "Content-Length: %zu\r\nCache-Control: no-store\r\nRetry-After: 5\r\nConnection: close\r\n\r\n%s",
                     sizeof body - 1, body);
    (void)send(fd, answer, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT);
    (void)shutdown(fd, SHUT_WR);
    (void)close(fd);
}

static void accept_one(ms_front *f, int listener) {
    struct sockaddr_storage a;
    socklen_t len = sizeof a;
    const int on = 1;
    int fd = accept4(listener, (struct sockaddr *)&a, &len, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
        if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return;
        ms_log_line l;
        ms_log_begin(&l, f->o.log, MS_LOG_ERROR, "server.accept.failed", NULL);
        ms_log_word(&l, "error", strerror(errno));
        ms_log_end(&l);
        (void)poll(NULL, 0, 100); /* the socket stays in the queue */
        return;
    }
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    /* Counted here: libmicrohttpd takes a socket over some time later. */
    if (atomic_fetch_add(&f->connections, 1) >= f->o.max_connections) {
        (void)atomic_fetch_sub(&f->connections, 1);
        refuse_socket(fd);
        return;
    }
    /* It closes the socket when it fails. */
    if (MHD_add_connection(f->daemon, fd, (struct sockaddr *)&a, len) != MHD_YES)
        (void)atomic_fetch_sub(&f->connections, 1);
}

static void *accept_loop(void *arg) {
    ms_front *f = arg;
    while (!atomic_load(&f->stopping)) {
        struct pollfd p[MS_LISTENERS_MAX + 1];
        for (size_t i = 0; i < f->listener_count; i++) p[i] = (struct pollfd){.fd = f->listeners[i], .events = POLLIN};
        p[f->listener_count] = (struct pollfd){.fd = f->wake_fd, .events = POLLIN};
        int n = poll(p, f->listener_count + 1, 1000);
        for (size_t i = 0; n > 0 && i < f->listener_count; i++) {
            if (p[i].revents) accept_one(f, f->listeners[i]);
        }
        cut_slow_sockets(f);
    }
    return NULL;
}

/* ------------------------------------------------------------------ requests */

static bool random_hex(char out[MS_ID_BYTES]) {
    uint8_t bytes[16];
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes) return false;
    for (size_t i = 0; i < sizeof bytes; i++) (void)snprintf(out + 2 * i, 3, "%02x", bytes[i]);
    return true;
}

static ms_exchange *new_exchange(ms_front *f, struct MHD_Connection *c, const char *method, const char *version) {
    ms_exchange *x = calloc(1, sizeof *x);
    if (!x || !random_hex(x->id)) {
        free(x);
        return NULL;
    }
    x->front = f;
    x->connection = c;
    x->method = method;
    x->head = strcmp(method, "HEAD") == 0;
    x->post = strcmp(method, "POST") == 0;
    x->http_1_0 = strcmp(version, "HTTP/1.0") == 0;
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    x->socket = info ? info->socket_context : NULL;
    x->line_bytes = strlen(method) + strlen(version) + 2 + (x->socket ? x->socket->uri_bytes : 0);
    info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    const struct sockaddr *a = info ? info->client_addr : NULL;
    socklen_t len = a && a->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    if (!a || getnameinfo(a, len, x->peer, sizeof x->peer, NULL, 0, NI_NUMERICHOST) != 0) {
        (void)snprintf(x->peer, sizeof x->peer, "-");
    }
    return x;
}

/* The body's bytes count against one budget of all connections. */
static bool take_body(ms_exchange *x, const char *data, size_t len) {
    ms_front *f = x->front;
    x->body_seen += len;
    if (x->failed_body || !x->post) return x->body_seen <= DISCARD_FACTOR * f->o.max_body_bytes;
    uint64_t all = atomic_fetch_add(&f->body_bytes, len) + len;
    x->body_held += len;
    x->failed_body = x->body_seen > f->o.max_body_bytes || all > BODIES_AT_ONCE * f->o.max_body_bytes;
    if (!x->failed_body) ms_text_append(&x->body, data, len);
    if (x->body.failed) x->failed_body = true;
    if (x->failed_body) {
        ms_text_free(&x->body);
        (void)atomic_fetch_sub(&f->body_bytes, x->body_held);
        x->body_held = 0;
    }
    return true;
}

static void handle(ms_exchange *x) {
    ms_front *f = x->front;
    ms_exchange_timeout(x, 0); /* until there is an answer the client may be silent */
    if (x->failed_body && x->body_seen > f->o.max_body_bytes) {
        ms_front_refuse(x, 413, "body_too_large", "the body may have at most %llu bytes",
                        (unsigned long long)f->o.max_body_bytes);
    } else if (x->failed_body) {
        ms_api_error busy = {.http = 503, .code = "server_busy", .retry_after = 1};
        (void)snprintf(busy.message, sizeof busy.message, "too many large requests at once");
        ms_exchange_error(x, &busy);
    } else {
        x->route->handle(f->o.arg, x);
    }
}

static enum MHD_Result on_request(void *arg, struct MHD_Connection *c, const char *url, const char *method,
                                  const char *version, const char *data, size_t *size, void **slot) {
    ms_exchange *x = *slot;
    if (!x) {
        x = new_exchange(arg, c, method, version);
        *slot = x;
        if (!x) return MHD_NO;
        begin_request(x->socket);
        ms_exchange_timeout(x, x->front->o.io_timeout_s);
        return ms_front_check(x, url) || x->answered ? MHD_YES : MHD_NO;
    }
    if (*size) {
        bool more = take_body(x, data, *size);
        *size = 0;
        return more ? MHD_YES : MHD_NO;
    }
    if (x->answered) return MHD_YES;
    handle(x);
    return x->answered ? MHD_YES : MHD_NO;
}

static void on_completed(void *arg, struct MHD_Connection *c, void **slot, enum MHD_RequestTerminationCode code) {
    (void)arg;
    (void)c;
    ms_exchange *x = *slot;
    if (!x) return;
    *slot = NULL;
    if (x->done) x->done(x->done_arg, code == MHD_REQUEST_TERMINATED_COMPLETED_OK);
    ms_exchange_timeout(x, IDLE_S);
    end_request(x->socket);
    ms_exchange_free(x);
}

/* The only place that sees path and query as they came. */
static void *on_uri(void *arg, const char *uri, struct MHD_Connection *c) {
    (void)arg;
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    ms_socket *s = info ? info->socket_context : NULL;
    if (s) s->uri_bytes = strlen(uri);
    return NULL;
}

/* Paths are decoded here, once, with their length in sight. */
static size_t keep_escapes(void *arg, struct MHD_Connection *c, char *s) {
    (void)arg;
    (void)c;
    return strlen(s);
}

static void no_log(void *arg, const char *fmt, va_list ap) {
    (void)arg;
    (void)fmt;
    (void)ap;
}

/* ------------------------------------------------------------------ life */

/* The limit of connections is kept in accept_one: libmicrohttpd 0.9.75 locks up for good where it meets its own. */
static ms_status start(ms_front *f, ms_error *err) {
    f->daemon = MHD_start_daemon(
        MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL | MHD_USE_NO_LISTEN_SOCKET |
            MHD_USE_ITC | MHD_USE_ERROR_LOG,
        0, NULL, NULL, on_request, f, MHD_OPTION_EXTERNAL_LOGGER, no_log, NULL, MHD_OPTION_NOTIFY_COMPLETED,
        on_completed, f, MHD_OPTION_NOTIFY_CONNECTION, on_connection, f, MHD_OPTION_UNESCAPE_CALLBACK, keep_escapes, f,
        MHD_OPTION_URI_LOG_CALLBACK, on_uri, f, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_S,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)INT_MAX, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_BYTES,
        MHD_OPTION_THREAD_STACK_SIZE, (size_t)THREAD_STACK_BYTES, MHD_OPTION_END);
    return f->daemon ? MS_OK : ms_fail(err, MS_ERR_IO, "libmicrohttpd %s does not start", MHD_get_version());
}

ms_status ms_front_serve(ms_front *f, ms_error *err) {
    int code = pthread_create(&f->acceptor, NULL, accept_loop, f);
    if (code != 0) return ms_fail_errno(err, MS_ERR_IO, code, "the accepting thread");
    f->accepting = true;
    return MS_OK;
}

ms_status ms_front_create(ms_front **out, const ms_front_options *o, ms_error *err) {
    *out = NULL;
    ms_front *f = calloc(1, sizeof *f);
    if (!f) return ms_fail_memory(err, "HTTP front", sizeof *f);
    f->o = *o;
    (void)pthread_mutex_init(&f->lock, NULL);
    f->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    ms_status status =
        f->wake_fd < 0 ? ms_fail_errno(err, MS_ERR_IO, errno, "an event descriptor") : listen_all(f, err);
    if (status == MS_OK) status = start(f, err);
    if (status == MS_OK)
        *out = f;
    else
        ms_front_destroy(f);
    return status;
}

const char *ms_front_address(const ms_front *f) { return f->address; }
uint32_t ms_front_port(const ms_front *f) { return f->port; }

void ms_front_drain(ms_front *f) { atomic_store(&f->draining, true); }

static void stop_accepting(ms_front *f) {
    atomic_store(&f->stopping, true);
    (void)eventfd_write(f->wake_fd, 1);
    if (f->accepting) (void)pthread_join(f->acceptor, NULL);
    f->accepting = false;
    for (size_t i = 0; i < f->listener_count; i++) (void)close(f->listeners[i]);
    f->listener_count = 0;
}

/* Whether some connection has a request without an answer, or may still send its first one. */
static bool is_owed(ms_front *f) {
    unsigned idle = 0;
    (void)pthread_mutex_lock(&f->lock);
    for (const ms_socket *s = f->sockets; s; s = s->next) idle += s->waiting_since_ns && s->requests;
    (void)pthread_mutex_unlock(&f->lock);
    return atomic_load(&f->connections) > idle;
}

/* Who was accepted gets an answer, not just an end. */
static void finish_answers(ms_front *f) {
    uint64_t end = ms_clock_ns() + FINISH_S * UINT64_C(1000000000);
    while (is_owed(f) && ms_clock_ns() < end) (void)poll(NULL, 0, 1);
}

void ms_front_destroy(ms_front *f) {
    if (!f) return;
    ms_front_drain(f);
    stop_accepting(f);
    if (f->daemon) finish_answers(f);
    if (f->daemon) MHD_stop_daemon(f->daemon);
    if (f->wake_fd >= 0) (void)close(f->wake_fd);
    (void)pthread_mutex_destroy(&f->lock);
    free(f);
}
