/* server_program.h: moonshine-server as a program, with its log. */
#ifndef TESTS_SERVER_SERVER_PROGRAM_H
#define TESTS_SERVER_SERVER_PROGRAM_H

#include <sys/types.h>

#include "base/text.h"

typedef struct program {
    pid_t pid;
    int err; /* its standard error */
    ms_text log;
    uint32_t port;
} program;

/* args: NULL-terminated, without the program's name. */
void program_start(program *p, const char *const *args);
/* The same with another executable. */
void program_start_path(program *p, const char *path, const char *const *args);
/* Reads the log until the text or its end. */
bool log_has(program *p, const char *text);
/* Waits until it serves, and notes the port. */
void program_ready(program *p);
/* Sends a signal (0: none) and waits; the exit code, a signal is negative. */
int program_end(program *p, int number);
/* Runs it to its own end. */
int program_exit(const char *const *args, program *p);
void program_free(program *p);

#endif
