/* server_options.h: the command line of moonshine-server. */
#ifndef MS_APPS_SERVER_OPTIONS_H
#define MS_APPS_SERVER_OPTIONS_H

#include "command.h"

enum { SERVER_NAMES_MAX = 64, SERVER_NAMES = 9 };

/* Values of the options of server_names.h. */
typedef struct server_names {
    uint32_t slots, prefill_chunk, cache_entries, cache_gib;
    int lookahead, expert_major, retain, reuse; /* 1: on */
    const char *cache_dir;
    bool given[SERVER_NAMES], common_given[SERVER_NAMES]; /* common_given: the option that it stands for */
} server_names;

typedef struct server_options {
    const char *model;
    ms_model_flags engine;
    server_names names;
    const char *host, *api_key, *api_key_file, *model_id;
    ms_option_list aliases, origins;
    uint32_t port, sequential_limit, deadline_s, keepalive_s, io_timeout_s, max_connections, grace_s, prefix_points;
    const char *checkpoint_root;
    uint64_t max_output, max_body, checkpoint_bytes, prefix_memory;
    uint32_t checkpoint_entries;
    bool prefix_memory_given;
    int buffer_structured, constrain, prefix_reuse, log_json; /* indexes into their choices */
    const char *diagnostics;
    bool restore_reasoning;
    bool logits_tap, state_digest, forget_experts;
    bool any_model, allow_sampling, clamp_max_tokens, metrics, slots_endpoint, ui;
    /* NULL-terminated forms of the lists. */
    const char *alias_names[SERVER_NAMES_MAX + 1], *origin_names[MS_OPTION_LIST_MAX + 1];
    char *alias_text; /* owned */
} server_options;

/* Returns -1 to go on, else the exit code.  The strings point into argv. */
int server_options_parse(server_options *o, int argc, char **argv);
void server_options_free(server_options *o);

#endif
