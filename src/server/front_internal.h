/* front_internal.h: the inside of ms_front, shared by front.c (connections), front_check.c (what a request must be
 * before it is handled) and front_reply.c (responses). */
#ifndef MS_SERVER_FRONT_INTERNAL_H
#define MS_SERVER_FRONT_INTERNAL_H

#include <microhttpd.h>
#include <pthread.h>

#include "server/front.h"
#include "server/http_path.h"

enum { MS_LISTENERS_MAX = 8, MS_ID_BYTES = 40, MS_EXTRA_HEADERS = 24 };

/* One open socket. */
typedef struct ms_socket {
    struct ms_front *front;
    struct ms_socket *next, **link;
    int fd;
    uint64_t waiting_since_ns; /* for the headers of a request; 0: a request is being handled */
    uint32_t requests;
    size_t uri_bytes; /* of the request line that was read last */
} ms_socket;

struct ms_front {
    ms_front_options o;
    struct MHD_Daemon *daemon;
    int listeners[MS_LISTENERS_MAX];
    size_t listener_count;
    uint32_t port;
    char address[80];
    int wake_fd;
    pthread_t acceptor;
    bool accepting;
    atomic_bool draining, stopping;
    atomic_uint connections;
    atomic_uint_fast64_t body_bytes; /* of all requests being received or handled */
    pthread_mutex_t lock;            /* sockets */
    ms_socket *sockets;
};

/* Headers that decide something.  The values belong to the connection. */
typedef struct ms_request_headers {
    unsigned count, lengths, hosts;
    size_t bytes; /* names, values and what stands between them */
    const char *length, *transfer, *encoding, *expect, *origin, *host, *authorization, *api_key, *type, *client_id;
} ms_request_headers;

struct ms_exchange {
    ms_front *front;
    struct MHD_Connection *connection;
    ms_socket *socket;
    const ms_route *route; /* NULL: none */
    const char *method;
    size_t line_bytes; /* of the request line */
    bool head, post, answered, failed_body, http_1_0;
    char id[MS_ID_BYTES], peer[64];
    char path[MS_PATH_BYTES], host[MS_HOST_BYTES]; /* host: of the target, where it has one */
    ms_request_headers headers;
    ms_text body;
    uint64_t body_seen, body_held; /* bytes that came, bytes that count in front->body_bytes */
    struct {
        char name[48];
        char *value;
    } extra[MS_EXTRA_HEADERS];
    size_t extra_count;
    ptrdiff_t (*next)(void *arg, char *to, size_t room);
    void *next_arg;
    void (*done)(void *arg, bool sent);
    void *done_arg;
};

/* Everything that can be known before the body: false when the exchange was answered with a refusal. */
bool ms_front_check(ms_exchange *x, const char *url);
/* A refusal of the transport: http.reject. */
void ms_front_refuse(ms_exchange *x, int http, const char *code, const char *fmt, ...) MS_PRINTF(4, 5);
/* Answers OPTIONS. */
void ms_front_preflight(ms_exchange *x);
bool ms_front_origin_listed(const ms_exchange *x);
void ms_exchange_free(ms_exchange *x);
void ms_exchange_timeout(ms_exchange *x, unsigned seconds);

#endif
