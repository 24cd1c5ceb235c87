/* api_test.h: requests and scripted replies for the codec tests.
 *
 * Texts use ' for " where a test says so: json("{'a':1}").
 */
#ifndef TESTS_SERVER_API_TEST_H
#define TESTS_SERVER_API_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "server/api.h"

/* The text with every ' replaced by "; a ring of 16 buffers, valid until the 16th later call. */
const char *json(const char *text);

/* K3's and a greedy lane's limits: model "moonshine", alias "other", ceiling 8192, default 256. */
ms_api_limits k3_limits(void);
ms_api_limits greedy_limits(void);

/* Must parse.  `text` goes through json(); parse_n takes bytes as they are. */
void parse_good(ms_api_request *r, const ms_api_codec *codec, const char *text);
void parse_good_with(ms_api_request *r, const ms_api_codec *codec, const ms_api_limits *l, const char *text);
/* Must be refused with status, code and param; returns the message (static buffer). */
const char *parse_bad(const ms_api_codec *codec, const char *text, int http, const char *code, const char *param);
const char *parse_bad_with(const ms_api_codec *codec, const ms_api_limits *l, const char *text, int http,
                           const char *code, const char *param);
const char *parse_bad_n(const ms_api_codec *codec, const char *text, size_t len, int http, const char *code,
                        const char *param);
/* The chat form must be this text (through json()). */
void chat_is(const ms_api_request *r, const char *text);

/* ------------------------------------------------------------------ replies */

typedef struct reply_call {
    const char *name, *arguments;
} reply_call;

typedef struct reply {
    const char *reasoning; /* NULL: no text event for it */
    const char *content;
    reply_call calls[4];
    size_t call_count;
    ms_api_finish finish;
    const char *stop;
    const ms_api_error *error; /* instead of the finish */
} reply;

/* Writes the reply, its texts cut at random code points (seed 0: whole).  Returns the output; the caller frees it. */
ms_text write_reply(const ms_api_codec *codec, const ms_api_request *r, const reply *what, unsigned seed);

/* ------------------------------------------------------------------ reading streams */

typedef struct sse_event {
    char *event;      /* NULL: no event line */
    char *data;       /* text of the data line */
    ms_json_doc *doc; /* NULL: not JSON, as "[DONE]" */
    char *comment;    /* comment instead of data */
} sse_event;

typedef struct sse {
    sse_event *items;
    size_t count;
} sse;

/* Reads a whole stream strictly: only event, data and comment lines, one data line an event, LF, an empty line after
 * each; fails the test otherwise. */
sse sse_read(const ms_text *stream);
void sse_free(sse *s);

ms_json_doc *doc_of(const ms_text *t);
/* The value at a path like "choices[0].delta.content"; NULL: none. */
const ms_json *at(const ms_json *v, const char *path);
const char *text_at(const ms_json *v, const char *path); /* "" when there is no string */
void is_text(const ms_json *v, const char *path, const char *expected);
void is_number(const ms_json *v, const char *path, long long expected);

#endif
