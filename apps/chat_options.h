/* chat_options.h: the command line of moonshine-chat.
 *
 * Owns: nothing; strings point into argv or the environment.
 */
#ifndef MS_APPS_CHAT_OPTIONS_H
#define MS_APPS_CHAT_OPTIONS_H

#include "command.h"
#include "common_terminal.h"

enum { CHAT_DEFAULT_SEQUENTIAL = 7 };

typedef struct chat_options {
    const char *model;
    /* input */
    const char *prompt, *prompt_file, *system, *system_file, *messages;
    bool from_stdin;
    /* reply */
    uint64_t max_tokens;
    bool max_tokens_given;
    int thinking; /* 1, 0; -1: not said */
    int effort;   /* index of chat_efforts; -1: not said */
    bool show_reasoning;
    double temperature, top_p, min_p;
    uint32_t top_k;
    int64_t seed;
    bool allow_sampling; /* also with a model that only gives the best token */
    bool temperature_given, top_p_given, min_p_given, top_k_given, seed_given;
    ms_option_list stop;
    /* state */
    const char *load, *save;
    bool force, digest;
    /* output */
    bool json, quiet, stats, render_only;
    const char *tokenize, *detokenize, *history;
    int progress, color; /* app_when order: auto, on/always, off/never */
    /* engine */
    uint32_t sequential_limit;
    ms_model_flags engine;
    /* known, but not available in this version */
    const char *url, *api_key, *schema, *decode_diagnostics;
    bool json_object;
} chat_options;

extern const char *const chat_efforts[]; /* low, medium, high, max, NULL */

/* Parses and checks everything that needs no file.  Returns -1 to go on, else the exit code; messages and help are
 * printed. */
int chat_options_parse(chat_options *o, int argc, char **argv);

/* One turn and then exit. */
bool chat_options_one_shot(const chat_options *o);

#endif
