/* front.h: HTTP over libmicrohttpd: listening, limits, keys, browsers, routing, responses.
 *
 * The front knows the protocol and nothing of models.  Each connection has a thread of its own (libmicrohttpd's), so a
 * handler may block; it never touches the engine.  A handler must answer its exchange exactly once: reply, error or
 * stream.
 *
 * Left to libmicrohttpd: parsing, chunked bodies, 100-continue, HEAD, keep-alive, its answers to what is not HTTP
 * (400, 414 and 431 far beyond the limits, 505, with a page of its own), and closing without an answer when a client
 * stops in the middle.
 *
 * Owns: listening sockets, connections, bodies.  Does not own: routes, keys, log.
 * Threads: create, serve, drain and destroy on one thread; exchange functions on the thread of its handler.
 * Errors: MS_ERR_USAGE for an address that must not be bound without a key; MS_ERR_IO when it cannot be bound.
 */
#ifndef MS_SERVER_FRONT_H
#define MS_SERVER_FRONT_H

#include "server/api.h"
#include "server/keys.h"
#include "server/log.h"

typedef struct ms_front ms_front;
typedef struct ms_exchange ms_exchange;

enum { MS_GET = 1, MS_POST = 2 }; /* GET includes HEAD */

typedef struct ms_route {
    const char *path;
    bool tail; /* path is the beginning: what follows is ms_exchange_tail */
    unsigned methods;
    bool open;        /* without a key */
    ms_api_kind kind; /* whose error envelope */
    void (*handle)(void *arg, ms_exchange *x);
} ms_route;

typedef struct ms_front_options {
    const char *host; /* "" and NULL: every address */
    uint32_t port;    /* 0: the system chooses */
    uint64_t max_body_bytes;
    uint32_t max_connections;
    uint32_t io_timeout_s;
    const ms_keys *keys;
    const char *const *origins; /* NULL-terminated; NULL: no cross-origin use */
    const ms_route *routes;     /* ends with a NULL path */
    void *arg;
    ms_log *log;
} ms_front_options;

/* Binds and listens: who connects waits. */
ms_status ms_front_create(ms_front **out, const ms_front_options *o, ms_error *err);
/* Connections are served from here on, once: what handlers use must be there. */
ms_status ms_front_serve(ms_front *f, ms_error *err);
/* "127.0.0.1:8080": the first address that was bound. */
const char *ms_front_address(const ms_front *f);
uint32_t ms_front_port(const ms_front *f);
/* Every response from now on closes its connection; new ones are still answered. */
void ms_front_drain(ms_front *f);
/* Accepts no more, lets what was accepted get its answer for a moment, closes all connections and waits for their
 * threads: no handler may block for ever any more. */
void ms_front_destroy(ms_front *f);

/* ------------------------------------------------------------------ one request and its response */

const char *ms_exchange_id(const ms_exchange *x);   /* random hex */
const char *ms_exchange_peer(const ms_exchange *x); /* numeric address */
const char *ms_exchange_tail(const ms_exchange *x);
const ms_text *ms_exchange_body(const ms_exchange *x);
/* The value of a query key, not decoded; NULL: absent. */
const char *ms_exchange_query(const ms_exchange *x, const char *key);

/* A response header, before the answer. */
void ms_exchange_header(ms_exchange *x, const char *name, const char *value);
/* Takes the text over. */
void ms_exchange_reply(ms_exchange *x, unsigned http, const char *content_type, ms_text *body);
void ms_exchange_error(ms_exchange *x, const ms_api_error *e);
/* Also logged as request.reject. */
void ms_exchange_reject(ms_exchange *x, const ms_api_error *e);
/* A close-delimited body.  next blocks until it has bytes and returns their number, 0 at the end, -1 to break off. */
void ms_exchange_stream(ms_exchange *x, const char *content_type, ptrdiff_t (*next)(void *arg, char *to, size_t room),
                        void *arg);
/* Called once, when the answer is with the system (sent) or the connection is gone. */
void ms_exchange_on_done(ms_exchange *x, void (*done)(void *arg, bool sent), void *arg);

typedef enum ms_wait { MS_WAIT_TIME, MS_WAIT_EVENT, MS_WAIT_GONE } ms_wait;
/* Until event_fd is readable (it is emptied), the client is gone (also when it only closed its sending side), or
 * timeout_ms passed (-1: none). */
ms_wait ms_exchange_wait(ms_exchange *x, int event_fd, int timeout_ms);

#endif
