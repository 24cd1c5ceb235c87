/* command.h: the subcommands of `moonshine` and what they share.
 *
 * A command gets its own argv (argv[0] is its name) and returns the exit code: 0 success, 1 the work failed,
 * 2 wrong usage, 3 refused because it does not fit, 141 standard output was closed.
 */
#ifndef MS_APPS_COMMAND_H
#define MS_APPS_COMMAND_H

#include "base/options.h"
#include "moonshine/moonshine.h"

int ms_command_plan(int argc, char **argv);
int ms_command_verify(int argc, char **argv);
int ms_command_logits(int argc, char **argv);
int ms_command_text(int argc, char **argv);
int ms_command_trace(int argc, char **argv);
int ms_command_synth(int argc, char **argv);
int ms_command_bench(int argc, char **argv);
int ms_command_store(int argc, char **argv);
int ms_command_bundle(int argc, char **argv);

/* Engine options as every program takes them. */
typedef struct ms_model_flags {
    uint64_t context, memory_bytes, reserve_bytes;
    uint32_t experts, staging, depth, range, threads;
    int precision, static_format, lookahead, range_backend; /* indexes into their choices */
    const char *kernels, *backend, *expert_dirs, *store;
    double read_limit; /* GB/s; 0: none */
    bool no_direct, no_uring;
} ms_model_flags;

extern const ms_option ms_model_option_table[];
extern const char *const ms_range_backends[]; /* of --range-backend; the last two mean the same */
extern const size_t ms_model_option_count;

ms_model_flags ms_model_flags_default(void);
ms_engine_options ms_model_flags_engine(const ms_model_flags *f, const char *model);

/* First of all in main.  A closed pipe or a full file shows as a failed write, so that what was begun is cleaned up; a missing
 * standard stream stays an error instead of becoming whatever file is opened next. */
void ms_command_begin(void);
/* Parses; prints help or version.  Returns -1 to go on, else the exit code. */
int ms_command_parse(const ms_option_set *set, int argc, char **argv, ms_option_result *result);
/* Prints "program: message" to stderr and gives the exit code of the error. */
int ms_command_fail(const char *program, const ms_error *err);
/* A log of engines and backends: "program: line" to stderr.  program: a const char *, cast as those members need. */
void ms_command_log(void *program, const char *line);
/* Flushes standard output.  A write error there is exit code 1 with a message, a closed pipe 141 without one. */
int ms_command_finish(const char *program);
/* The MODEL argument or MOONSHINE_MODEL; NULL after a message when neither is given or the argument is empty.  An empty
 * variable counts as unset. */
const char *ms_command_model(const char *program, const ms_option_result *result, size_t index);

#endif
