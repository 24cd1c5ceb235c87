/* http_client.h: a small HTTP client for tests that can also misbehave.  Every wait ends after HTTP_LIMIT_MS. */
#ifndef TESTS_SERVER_HTTP_CLIENT_H
#define TESTS_SERVER_HTTP_CLIENT_H

#include "base/json.h"

enum { HTTP_LIMIT_MS = 90000 };

typedef struct http_response {
    int status;    /* 0: the connection ended before a status line */
    ms_text head;  /* status line and headers, with the empty line */
    ms_text body;  /* dechunked */
    bool complete; /* the body ended as its framing says */
    ms_json_doc *doc;
} http_response;

int http_connect(uint32_t port);
/* false: the other side does not take it. */
bool http_send(int fd, const char *data, size_t len);
bool http_puts(int fd, const char *text);
/* Reads one response; bytes behind it stay in the socket only when it has a length.  keep: what was read too much. */
void http_read(int fd, http_response *r, bool head_request);
/* Reads until `text` arrived or the end or the limit; appends to *all. */
bool http_read_until(int fd, ms_text *all, const char *text);
void http_free(http_response *r);
/* The value of a header, in a static buffer; NULL: absent. */
const char *http_header(const http_response *r, const char *name);
/* The body as JSON; NULL: it is not. */
const ms_json *http_json(http_response *r);
/* A JSON string at a dotted path ("error.code", "choices.0.message.content"); "" when absent or null. */
const char *http_text(http_response *r, const char *path);
/* A number there; -1 when absent. */
long http_number(http_response *r, const char *path);

/* One request on a connection of its own.  headers: lines with CR LF, or NULL. */
void http_call(uint32_t port, const char *method, const char *path, const char *headers, const char *body,
               http_response *r);

void pause_ms(unsigned ms);

#endif
