#include "server_options.h"
#include "server_names.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIELD(f) offsetof(server_options, f)
#define COUNT(a) (sizeof(a) / sizeof *(a))

enum { CONTEXT_MIN = 64 }; /* shorter ones have no room for a chat's own tokens */

static const char *const on_off[] = {"off", "on", NULL};
static const char *const formats[] = {"text", "json", NULL};

static const ms_option network[] = {
    {.name = "host",
     .type = MS_OPTION_STRING,
     .offset = FIELD(host),
     .arg = "ADDR",
     .help = "Address to listen on (default: 127.0.0.1). Others than loopback need a key."},
    {.name = "port",
     .type = MS_OPTION_U32,
     .offset = FIELD(port),
     .arg = "N",
     .max = 65535,
     .help = "Port; 0 lets the system choose (default: 8080)."},
    {.name = "api-key",
     .type = MS_OPTION_STRING,
     .offset = FIELD(api_key),
     .arg = "KEY",
     .env = "MOONSHINE_API_KEY",
     .help = "Key that clients must send. Prefer --api-key-file: arguments can be seen by others."},
    {.name = "api-key-file",
     .type = MS_OPTION_STRING,
     .filled = true,
     .offset = FIELD(api_key_file),
     .arg = "FILE",
     .help = "Keys, one a line, in a file that only its owner may read."},
    {.name = "cors-origin",
     .type = MS_OPTION_LIST,
     .filled = true,
     .offset = FIELD(origins),
     .arg = "ORIGIN",
     .help = "Lets pages of this origin use the server (repeatable)."},
    {.name = "max-body",
     .type = MS_OPTION_BYTES,
     .offset = FIELD(max_body),
     .arg = "BYTES",
     .min = 1024,
     .max = UINT64_C(1) << 30,
     .help = "Largest request body (default: 8M)."},
    {.name = "max-connections",
     .type = MS_OPTION_U32,
     .offset = FIELD(max_connections),
     .arg = "N",
     .min = 1,
     .max = 4096,
     .help = "Open connections (default: 128)."},
    {.name = "io-timeout-seconds",
     .type = MS_OPTION_U32,
     .offset = FIELD(io_timeout_s),
     .arg = "N",
     .min = 1,
     .max = 3600,
     .help = "Limit without progress for reading a request or writing a response (default: 30)."},
    {.name = "sse-keepalive-seconds",
     .type = MS_OPTION_U32,
     .offset = FIELD(keepalive_s),
     .arg = "N",
     .max = 3600,
     .help = "A comment in a stream that is silent so long; 0 is off (default: 10)."},
};

static const ms_option requests[] = {
    {.name = "model-id",
     .type = MS_OPTION_STRING,
     .filled = true,
     .offset = FIELD(model_id),
     .arg = "ID",
     .help = "Name of the model (default: the model family's)."},
    {.name = "model-alias",
     .type = MS_OPTION_LIST,
     .filled = true,
     .offset = FIELD(aliases),
     .arg = "NAME[,NAME]",
     .help = "Other names that requests may use."},
    {.name = "any-model", .type = MS_OPTION_FLAG, .offset = FIELD(any_model), .help = "Take any name in a request."},
    {.name = "max-output-tokens",
     .type = MS_OPTION_U64,
     .offset = FIELD(max_output),
     .arg = "N",
     .min = 1,
     .max = 65536,
     .help = "Most tokens of a reply (default: 8192)."},
    {.name = "clamp-max-tokens",
     .type = MS_OPTION_FLAG,
     .offset = FIELD(clamp_max_tokens),
     .help = "Reduce a larger request to that instead of refusing it."},
    {.name = "restore-reasoning",
     .type = MS_OPTION_FLAG,
     .offset = FIELD(restore_reasoning),
     .help = "Put the reasoning of earlier replies back where a client leaves it out."},
    {.name = "request-deadline-seconds",
     .type = MS_OPTION_U32,
     .offset = FIELD(deadline_s),
     .arg = "N",
     .max = 1000000,
     .help = "Time for one request; 0 is none (default)."},
    {.name = "allow-sampling",
     .type = MS_OPTION_FLAG,
     .offset = FIELD(allow_sampling),
     .help = "Permit sampling on models that are greedy by default."},
    {.name = "buffer-structured",
     .type = MS_OPTION_CHOICE,
     .offset = FIELD(buffer_structured),
     .arg = "V",
     .choices = on_off,
     .help = "Show content in a response format when it is complete (default: on)."},
    {.name = "constrain",
     .type = MS_OPTION_CHOICE,
     .offset = FIELD(constrain),
     .arg = "V",
     .choices = on_off,
     .help =
         "Hold replies to tools and response formats token by token (default: on); off only checks them at the end."},
    {.name = "sequential-limit",
     .type = MS_OPTION_U32,
     .offset = FIELD(sequential_limit),
     .arg = "N",
     .max = 1048576,
     .help = "Prompts of up to N new tokens run token by token (default: 7)."},
    {.name = "prefix-reuse",
     .type = MS_OPTION_CHOICE,
     .offset = FIELD(prefix_reuse),
     .arg = "V",
     .choices = on_off,
     .help = "Keep what a prompt shares with the last one (default: on). Never changes a result."},
    {.name = "prefix-points",
     .type = MS_OPTION_U32,
     .offset = FIELD(prefix_points),
     .arg = "N",
     .max = 8,
     .help = "State copies in memory to go back to: ends of prompts and of the system part (default: 2)."},
    {.name = "prefix-memory",
     .type = MS_OPTION_BYTES,
     .offset = FIELD(prefix_memory),
     .arg = "BYTES",
     .help = "Memory for states of other conversations (default: four states, at most a quarter of what is free)."},
    {.name = "prefix-checkpoint-root",
     .type = MS_OPTION_STRING,
     .filled = true,
     .offset = FIELD(checkpoint_root),
     .arg = "DIR",
     .help = "Also keeps states in this folder (mode 0700), over restarts. They hold conversations."},
    {.name = "prefix-checkpoint-entries",
     .type = MS_OPTION_U32,
     .offset = FIELD(checkpoint_entries),
     .arg = "N",
     .min = 1,
     .max = 4096,
     .help = "Most states in the folder, which must be given (default: 4)."},
    {.name = "prefix-checkpoint-bytes",
     .type = MS_OPTION_BYTES,
     .offset = FIELD(checkpoint_bytes),
     .arg = "BYTES",
     .min = 1,
     .help = "Most bytes in the folder, which must be given (default: 20G)."},
};

static const ms_option operation[] = {
    {.name = "shutdown-grace-seconds",
     .type = MS_OPTION_U32,
     .offset = FIELD(grace_s),
     .arg = "N",
     .max = 86400,
     .help = "After SIGTERM or SIGINT a running request may go on so long (default: 30)."},
    {.name = "metrics", .type = MS_OPTION_FLAG, .offset = FIELD(metrics), .help = "Serve GET /metrics (Prometheus)."},
    {.name = "ui", .type = MS_OPTION_FLAG, .offset = FIELD(ui), .help = "Serve the built-in chat page at /."},
    {.name = "slots-endpoint",
     .type = MS_OPTION_FLAG,
     .offset = FIELD(slots_endpoint),
     .help = "Serve GET /slots and, with a checkpoint root, POST /slots/0."},
    {.name = "decode-diagnostics",
     .type = MS_OPTION_STRING,
     .filled = true,
     .offset = FIELD(diagnostics),
     .arg = "PREFIX",
     .help = "Write which experts each reply used to PREFIX.*.csv, which must be new. They tell what was said."},
    {.name = "router-logits-tap",
     .type = MS_OPTION_FLAG,
     .offset = FIELD(logits_tap),
     .help = "With it, also what routers saw, to PREFIX.logits.bin."},
    {.name = "decode-state-digest",
     .type = MS_OPTION_FLAG,
     .offset = FIELD(state_digest),
     .help = "Log a digest of the state after each reply."},
    {.name = "clear-expert-cache-per-request",
     .type = MS_OPTION_FLAG,
     .offset = FIELD(forget_experts),
     .help = "Begin every request with an empty expert cache and without reuse, to measure."},
    {.name = "log-format",
     .type = MS_OPTION_CHOICE,
     .offset = FIELD(log_json),
     .arg = "F",
     .choices = formats,
     .help = "Form of the log on standard error (default: text)."},
};

/* "a,b" twice becomes four names. */
static ms_status split_aliases(server_options *o, ms_error *err) {
    size_t total = 1, n = 0;
    for (size_t i = 0; i < o->aliases.count; i++) total += strlen(o->aliases.items[i]) + 1;
    char *to = o->alias_text = malloc(total);
    if (!to) return ms_fail_memory(err, "--model-alias", total);
    for (size_t i = 0; i < o->aliases.count; i++) {
        for (const char *s = o->aliases.items[i]; s;) {
            size_t len = strcspn(s, ",");
            if (!len) {
                return ms_fail(err, MS_ERR_USAGE, "--model-alias: expected names separated by commas, found \"%.80s\"",
                               o->aliases.items[i]);
            }
            if (n == SERVER_NAMES_MAX) {
                return ms_fail(err, MS_ERR_USAGE, "--model-alias: expected at most %d names", SERVER_NAMES_MAX);
            }
            memcpy(to, s, len);
            to[len] = 0;
            o->alias_names[n++] = to;
            to += len + 1;
            s = s[len] ? s + len + 1 : NULL;
        }
    }
    return MS_OK;
}

/* An origin as browsers send it: scheme://host, a port perhaps, nothing behind. */
static bool is_origin(const char *s) {
    size_t scheme = strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-.");
    if (strcmp(s, "null") == 0) return true;
    if (!scheme || strncmp(s + scheme, "://", 3) != 0 || !s[scheme + 3]) return false;
    for (const char *c = s + scheme + 3; *c; c++) {
        if (*c <= ' ' || *c >= 0x7F || strchr("/?#@,*\\\"", *c)) return false;
    }
    return true;
}

static ms_status take_origins(server_options *o, ms_error *err) {
    for (size_t i = 0; i < o->origins.count; i++) {
        o->origin_names[i] = o->origins.items[i];
        if (!is_origin(o->origin_names[i]))
            return ms_fail(err, MS_ERR_USAGE,
                           "--cors-origin: expected one origin like https://app.example:8443, found \"%.80s\"",
                           o->origin_names[i]);
    }
    return MS_OK;
}

static ms_status check_values(const server_options *o, ms_error *err) {
    uint64_t context = o->engine.context;
    if (o->logits_tap && !o->diagnostics)
        return ms_fail(err, MS_ERR_USAGE, "--router-logits-tap: needs --decode-diagnostics");
    if (context && context < CONTEXT_MIN)
        return ms_fail(err, MS_ERR_USAGE, "--context: expected at least %d for a server, found %llu", CONTEXT_MIN,
                       (unsigned long long)context);
    return MS_OK;
}

int server_options_parse(server_options *o, int argc, char **argv) {
    *o = (server_options){.engine = ms_model_flags_default(),
                          .names = server_names_default(),
                          .host = "127.0.0.1",
                          .port = 8080,
                          .sequential_limit = 7,
                          .keepalive_s = 10,
                          .io_timeout_s = 30,
                          .max_connections = 128,
                          .grace_s = 30,
                          .prefix_points = 2,
                          .checkpoint_entries = 4,
                          .checkpoint_bytes = UINT64_C(21474836480),
                          .max_output = 8192,
                          .max_body = 8388608,
                          .buffer_structured = 1,
                          .constrain = 1,
                          .prefix_reuse = 1};
    const ms_option_group groups[] = {
        {"Network", network, COUNT(network), o},
        {"Requests", requests, COUNT(requests), o},
        {"Engine", ms_model_option_table, ms_model_option_count, &o->engine},
        {"Operation", operation, COUNT(operation), o},
        {"Other names, for models whose family has them", server_name_table, server_name_count, &o->names}};
    const ms_option_set set = {
        .program = "moonshine-server",
        .synopsis = "[MODEL] [options]",
        .about =
            "Serves a checkpoint over HTTP: OpenAI chat completions, completions and responses, Anthropic messages.",
        .epilogue = "MODEL is a checkpoint directory; without it MOONSHINE_MODEL is used.\n"
                    "Exit status: 0 stopped by a signal, 1 failed, 2 wrong usage, 3 does not fit into memory,\n"
                    "70 the engine stopped working.",
        .groups = groups,
        .group_count = COUNT(groups),
        .max_args = 1};
    ms_option_result r;
    ms_error err;
    int code = ms_command_parse(&set, argc, argv, &r);
    if (code >= 0) return code;
    o->model = ms_command_model(set.program, &r, 0);
    if (!o->model) return 2;
    o->prefix_memory_given = ms_options_given(&set, &r, "prefix-memory");
    ms_status status = check_values(o, &err);
    if (status == MS_OK) status = take_origins(o, &err);
    if (status == MS_OK) status = server_names_parsed(o, &set, &r, &err);
    if (status == MS_OK) status = split_aliases(o, &err);
    return status == MS_OK ? -1 : ms_command_fail(set.program, &err);
}

void server_options_free(server_options *o) { free(o->alias_text); }
