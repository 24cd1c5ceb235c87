/* server.h: the HTTP server around one engine: endpoints, admission, life.
 *
 * Owns: front, worker, metrics.  Does not own: text model, engine source, keys, log, strings of the options.
 * Threads: create, drain, cancel and destroy on one thread.
 * Errors: MS_ERR_USAGE for an address that must not be bound; MS_ERR_IO.  A model that cannot be loaded shows in the
 * `changed` callback.
 */
#ifndef MS_SERVER_SERVER_H
#define MS_SERVER_SERVER_H

#include "server/front.h"
#include "server/worker.h"

typedef struct ms_server ms_server;

typedef struct ms_server_options {
    const char *host;
    uint32_t port;
    uint64_t max_body_bytes;
    uint32_t max_connections, io_timeout_s;
    const ms_keys *keys;
    const char *const *origins;

    const ms_text_model *text;
    ms_causal_source source;
    const char *model_id;       /* NULL: the lane's */
    const char *const *aliases; /* NULL-terminated; may be NULL */
    bool any_model, allow_sampling, clamp_max_tokens;
    uint64_t context;    /* of the engine */
    uint64_t max_output; /* ceiling of a request */
    uint32_t sequential_limit, deadline_s, keepalive_s;
    uint64_t queue_bytes; /* of a stream's client that reads too slowly; more, and it counts as gone */
    bool reuse, buffer_structured;
    bool constrain; /* replies are held to tools and formats while they are generated; else only checked afterwards */
    bool metrics, slots_endpoint, ui;
    bool named_states; /* the source has a folder for them */
    bool restore_reasoning; /* of the model's own replies, when a client leaves it out */
    const char *fingerprint;
    ms_diagnostics *diagnostics; /* NULL: none */
    bool digest;                 /* the log gets a digest of the state after every reply */
    bool forget_experts;         /* every request begins with an empty expert cache and without reuse */

    const ms_plan *plan; /* for the metric of memory; NULL: not given */
    /* For /health and /props. */
    const char *model_source, *static_precision, *expert_store, *build;
    uint64_t experts_per_layer;
    bool range_blas; /* as the engine's option; `reuse` is then false */

    ms_log *log;
    void (*changed)(void *arg, ms_worker_state state, const ms_error *err); /* on the inference thread */
    void *changed_arg;
} ms_server_options;

void ms_server_options_default(ms_server_options *o);
/* Listens, then loads. */
ms_status ms_server_create(ms_server **out, const ms_server_options *o, ms_error *err);
uint32_t ms_server_port(const ms_server *s);
const char *ms_server_address(const ms_server *s);
/* No new work. */
void ms_server_drain(ms_server *s);
/* What runs ends at its next boundary. */
void ms_server_cancel(ms_server *s);
bool ms_server_idle(ms_server *s);
/* Loading succeeded, whatever came later. */
bool ms_server_loaded(ms_server *s);
/* Ends listening and connections alone, for a process that ends while the model is still being loaded: nothing runs. */
void ms_server_hang_up(ms_server *s);
void ms_server_destroy(ms_server *s);

#endif
