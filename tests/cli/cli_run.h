/* cli_run.h: runs a built program through pipes or on a pseudo terminal, with time limits.
 *
 * Programs are taken from the folder in MOONSHINE_BIN (default: build).  Every wait ends after CLI_LIMIT_MS.
 */
#ifndef CLI_RUN_H
#define CLI_RUN_H

#include <sys/types.h>

#include "base/text.h"

enum { CLI_LIMIT_MS = 60000, CLI_ARGS_MAX = 40 };

#define CLI_MODEL "models/k3-nano"

typedef struct cli {
    pid_t pid;
    int in, out, err; /* -1: closed; on a terminal all three are its master side and everything arrives in out_text */
    ms_text out_text, err_text;
} cli;

/* args: NULL-terminated, without the program's name. */
void cli_start(cli *c, const char *program, const char *const *args);
/* The same with nobody reading its standard output. */
void cli_start_deaf(cli *c, const char *program, const char *const *args);
void cli_start_terminal(cli *c, const char *program, const char *const *args);
void cli_send(cli *c, const char *text);
void cli_signal(cli *c, int number);
/* Reads until `text` (out_text or err_text) holds the pattern at or behind `from`; false after the time limit or at the
 * end. */
bool cli_wait_for(cli *c, const ms_text *text, size_t from, const char *pattern);
void cli_close_input(cli *c);
/* Reads to the end and returns the exit code, or -signal. */
int cli_finish(cli *c);
void cli_free(cli *c);

/* Runs to the end with `input` on standard input. */
int cli_run(cli *c, const char *program, const char *const *args, const char *input);

/* A fresh folder below /tmp; cli_remove_tree takes it away with its plain files. */
void cli_make_folder(char path[64]);
void cli_remove_folder(const char *path);
/* "folder/name" in a static buffer that the next four calls leave alone. */
const char *cli_path(const char *folder, const char *name);
void cli_write_file(const char *path, const char *text);

#endif
