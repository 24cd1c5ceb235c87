/* server_internal.h: the inside of ms_server, shared by server.c, completion.c, info.c and utility.c. */
#ifndef MS_SERVER_SERVER_INTERNAL_H
#define MS_SERVER_SERVER_INTERNAL_H

#include "server/server.h"

#define MS_JSON_CONTENT "application/json; charset=utf-8"

struct ms_server {
    ms_server_options o;
    ms_api_limits limits;
    ms_metrics metrics;
    ms_call_memory *calls;
    ms_constraints *constraints; /* NULL: replies are free, and checked afterwards */
    ms_turn_memory *turns;
    ms_reasoning_memory *reasoning; /* NULL: it is not put back */
    ms_front *front;
    ms_worker *worker;
    int64_t created;     /* Unix seconds */
    uint64_t started_ns; /* of the monotonic clock */
    char profile[17];
    pthread_mutex_t parsing; /* one body is turned into a request at a time: trees are large */
};

/* Handlers; arg is the server. */
void ms_handle_chat(void *arg, ms_exchange *x);
void ms_handle_completions(void *arg, ms_exchange *x);
void ms_handle_messages(void *arg, ms_exchange *x);
void ms_handle_responses(void *arg, ms_exchange *x);
void ms_handle_chat_count(void *arg, ms_exchange *x);
void ms_handle_messages_count(void *arg, ms_exchange *x);
void ms_handle_responses_count(void *arg, ms_exchange *x);
void ms_handle_template(void *arg, ms_exchange *x);
void ms_handle_tokenize(void *arg, ms_exchange *x);
void ms_handle_detokenize(void *arg, ms_exchange *x);
void ms_handle_health(void *arg, ms_exchange *x);
void ms_handle_models(void *arg, ms_exchange *x);
void ms_handle_model(void *arg, ms_exchange *x);
void ms_handle_props(void *arg, ms_exchange *x);
void ms_handle_slots(void *arg, ms_exchange *x);
void ms_handle_slot(void *arg, ms_exchange *x);
void ms_handle_metrics(void *arg, ms_exchange *x);
void ms_handle_ui(void *arg, ms_exchange *x);

/* 404 that names the option which turns the endpoint on. */
void ms_server_disabled(ms_exchange *x, const char *option);
/* The body as an object; NULL: *e is filled. */
ms_json_doc *ms_server_body(ms_exchange *x, ms_api_error *e);
/* Renders a parsed request with remembered calls put in; false: *e is filled. */
bool ms_server_render(ms_server *s, const ms_api_request *q, ms_candidate *out, ms_api_error *e);
/* Digest of what decides replies and limits. */
void ms_server_profile(ms_server *s);

#endif
