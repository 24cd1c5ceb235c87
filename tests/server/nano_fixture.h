/* nano_fixture.h: a server on the small model, in this process, with its log in a file. */
#ifndef TESTS_SERVER_NANO_FIXTURE_H
#define TESTS_SERVER_NANO_FIXTURE_H

#include "http_client.h"
#include "server/causal_session.h"
#include "server/server.h"

#define NANO_MODEL "models/k3-nano"
enum { NANO_CONTEXT = 1024 };

typedef struct served_options {
    const char *diagnostics; /* prefix, with the tap */
    const char *root;        /* of kept and named states */
    bool forget_experts, reference;
} served_options;

typedef struct served {
    ms_text_model text;
    ms_causal_session *engine;
    ms_diagnostics *diagnostics;
    ms_server *server;
    ms_log log;
    FILE *log_file;
    atomic_bool loaded;
} served;

/* Replies are not held to rules. */
void served_start(served *s, const served_options *o);
void served_stop(served *s);
/* Waits for the slot before and behind the request. */
void served_post(served *s, const char *path, const char *body, http_response *r);
/* What stands behind `key` in the last line of an event. */
void served_log(served *s, const char *event, const char *key, char *out, size_t size);

#endif
