/* program.h: moonshine-server as a program of its own with the small model, and a client's side of a conversation.
 *
 * A failure ends the test.  Threads: one a program.
 */
#ifndef TESTS_SERVER_PROGRAM_H
#define TESTS_SERVER_PROGRAM_H

#include <sys/types.h>

#include "http_client.h"

typedef struct program {
    pid_t pid;
    int err; /* its standard error */
    ms_text log;
    uint32_t port;
} program;

#define PLAIN "models/k3-nano", "--port", "0", "--threads", "1", "--reserve", "0"

/* args: ended by NULL, without the program's name.  The program dies with this one. */
void program_start(program *p, const char *const *args);
/* The same with another executable. */
void program_start_path(program *p, const char *path, const char *const *args);
/* Reads the log until the text; false: it ended, or nothing came within HTTP_LIMIT_MS. */
bool program_log_has(program *p, const char *text);
/* false: it ended before. */
bool program_try_ready(program *p);
void program_ready(program *p);
/* Sends the signal unless 0, reads the log to its end and gives the exit code; a signal is negative. */
int program_end(program *p, int number);
/* Runs it to its own end. */
int program_exit(program *p, const char *const *args);
void program_free(program *p);

#define TOOLS                                                                                                          \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"description\":\"Weather of a city\","  \
    "\"parameters\":{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"}},\"required\":[\"city\"]}}}]"

/* A chat completion, again while the slot is taken; `messages`: a list without brackets; `more`: members behind it.
 * The status is 0 when the program went away, otherwise whatever it said. */
void chat_try(uint32_t port, const char *messages, const char *more, http_response *r);
/* The same, which must be 200. */
void chat(uint32_t port, const char *messages, const char *more, http_response *r);
/* Appends the reply's message to the list, as a client replays it. */
void replay(ms_text *messages, http_response *r);
long cached(http_response *r); /* reused tokens */
long total(http_response *r);  /* prompt and reply */

#endif
