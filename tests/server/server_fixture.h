/* server_fixture.h: a server on a scripted engine, in this process, with its log in memory. */
#ifndef TESTS_SERVER_SERVER_FIXTURE_H
#define TESTS_SERVER_SERVER_FIXTURE_H

#include "http_client.h"
#include "script_engine.h"
#include "server/server.h"

enum { FIXTURE_CONTEXT = 2048 };

typedef struct fixture {
    ms_text_model text;
    script_engine engine;
    ms_server_options o; /* may be changed between init and start */
    ms_log log;
    FILE *log_file;
    ms_server *server;
    uint32_t port;
    pthread_mutex_t lock;
    bool loaded, failed; /* behind the lock */
} fixture;

void fixture_init(fixture *f);
void fixture_init_model(fixture *f, const char *model); /* with another model's text side */
void fixture_start(fixture *f); /* listens; does not wait for loading */
void fixture_wait_ready(fixture *f);
void fixture_wait_failed(fixture *f);
void fixture_stop(fixture *f); /* may be started again */
void fixture_free(fixture *f);
/* The log so far. */
void fixture_log(fixture *f, ms_text *out);
/* Waits until the log has the text behind `from` bytes; false: the limit. */
bool fixture_wait_log(fixture *f, size_t from, const char *text);
size_t fixture_log_size(fixture *f);
/* Waits until nothing has the slot. */
void fixture_wait_idle(fixture *f);

/* POST of a chat completion; `rest` goes behind the model's name: "\"messages\":[...]". */
void fixture_chat(fixture *f, const char *rest, http_response *r);
/* The chat body for a single user message; `more`: further members with a leading comma, or "". */
const char *fixture_body(const char *message, const char *more);

#endif
