/* chat_options.c: the option tables of moonshine-chat and the checks between options. */
#include "chat_options.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

const char *const chat_efforts[] = {"low", "medium", "high", "max", NULL};
static const char *const when_bar[] = {"auto", "on", "off", NULL};
static const char *const when_color[] = {"auto", "always", "never", NULL};

#define FIELD(f) offsetof(chat_options, f)
#define COUNT(a) (sizeof(a) / sizeof *(a))

static const ms_option input_options[] = {
    {.name = "prompt",
     .letter = 'p',
     .type = MS_OPTION_STRING,
     .offset = FIELD(prompt),
     .arg = "TEXT",
     .help = "One turn with this message, then exit."},
    {.name = "prompt-file",
     .type = MS_OPTION_STRING,
     .offset = FIELD(prompt_file),
     .arg = "FILE",
     .help = "One turn with the bytes of a file; - is standard input."},
    {.name = "stdin",
     .type = MS_OPTION_FLAG,
     .offset = FIELD(from_stdin),
     .help = "One turn with everything on standard input."},
    {.name = "messages",
     .type = MS_OPTION_STRING,
     .offset = FIELD(messages),
     .arg = "FILE",
     .help = "One turn with a chat request (JSON: messages, tools, ...)."},
    {.name = "system",
     .type = MS_OPTION_STRING,
     .offset = FIELD(system),
     .arg = "TEXT",
     .help = "First system message."},
    {.name = "system-file",
     .type = MS_OPTION_STRING,
     .offset = FIELD(system_file),
     .arg = "FILE",
     .help = "First system message from a file."},
};

static const ms_option reply_options[] = {
    {.name = "max-tokens",
     .letter = 'n',
     .type = MS_OPTION_U64,
     .offset = FIELD(max_tokens),
     .arg = "N",
     .min = 1,
     .max = 1048576,
     .help = "Most tokens of a reply, structure included (default: 256)."},
    {.name = "think",
     .type = MS_OPTION_SET,
     .offset = FIELD(thinking),
     .set = 1,
     .help = "Let the model reason before it answers."},
    {.name = "no-think",
     .type = MS_OPTION_SET,
     .offset = FIELD(thinking),
     .set = 0,
     .help = "Answer directly (default)."},
    {.name = "effort",
     .type = MS_OPTION_CHOICE,
     .offset = FIELD(effort),
     .choices = chat_efforts,
     .help = "How much to reason; implies --think (default then: max)."},
    {.name = "show-reasoning",
     .type = MS_OPTION_FLAG,
     .offset = FIELD(show_reasoning),
     .help = "Print the reasoning on standard error."},
    {.name = "temperature",
     .type = MS_OPTION_REAL,
     .offset = FIELD(temperature),
     .arg = "T",
     .low = 0,
     .high = 2,
     .help = "Sampling temperature; 0 picks the best token (default)."},
    {.name = "allow-sampling",
     .type = MS_OPTION_FLAG,
     .offset = FIELD(allow_sampling),
     .help = "Let --temperature work with models that otherwise only give the best token."},
    {.name = "top-p",
     .type = MS_OPTION_REAL,
     .offset = FIELD(top_p),
     .arg = "P",
     .low = 0,
     .low_open = true,
     .high = 1,
     .help = "Sample from the tokens that make up this probability."},
    {.name = "top-k",
     .type = MS_OPTION_U32,
     .offset = FIELD(top_k),
     .arg = "K",
     .help = "Sample from the K best tokens; 0 is off."},
    {.name = "min-p",
     .type = MS_OPTION_REAL,
     .offset = FIELD(min_p),
     .arg = "P",
     .low = 0,
     .high = 1,
     .high_open = true,
     .help = "Drop tokens below this fraction of the best one's probability."},
    {.name = "seed",
     .type = MS_OPTION_I64,
     .offset = FIELD(seed),
     .arg = "N",
     .help = "Seed of the sampling; without it one is drawn and printed."},
    {.name = "stop",
     .type = MS_OPTION_LIST,
     .offset = FIELD(stop),
     .arg = "TEXT",
     .max = 4,
     .help = "End the reply before this text."},
};

static const ms_option state_options[] = {
    {.name = "load",
     .type = MS_OPTION_STRING,
     .offset = FIELD(load),
     .arg = "FILE",
     .help = "Continue the conversation of a state file."},
    {.name = "save",
     .type = MS_OPTION_STRING,
     .offset = FIELD(save),
     .arg = "FILE",
     .help = "Write the state before a normal exit."},
    {.name = "force", .type = MS_OPTION_FLAG, .offset = FIELD(force), .help = "Let --save replace a file."},
    {.name = "decode-state-digest",
     .type = MS_OPTION_FLAG,
     .offset = FIELD(digest),
     .help = "Print digests of the state after each turn."},
    {.name = "history",
     .type = MS_OPTION_STRING,
     .offset = FIELD(history),
     .arg = "FILE",
     .help = "Keep typed lines in this file (mode 0600)."},
};

static const ms_option output_options[] = {
    {.name = "json",
     .type = MS_OPTION_FLAG,
     .offset = FIELD(json),
     .help = "One JSON object a turn on standard output."},
    {.name = "render-only",
     .type = MS_OPTION_FLAG,
     .offset = FIELD(render_only),
     .help = "Print the prompt's token ids and text; loads no weights."},
    {.name = "tokenize",
     .type = MS_OPTION_STRING,
     .offset = FIELD(tokenize),
     .arg = "TEXT",
     .help = "Print the token ids of a text; loads no weights."},
    {.name = "detokenize",
     .type = MS_OPTION_STRING,
     .offset = FIELD(detokenize),
     .arg = "IDS",
     .help = "Print the text of token ids (separated by spaces or commas)."},
    {.name = "stats", .type = MS_OPTION_FLAG, .offset = FIELD(stats), .help = "Telemetry on standard error (default)."},
    {.name = "quiet", .type = MS_OPTION_FLAG, .offset = FIELD(quiet), .help = "No telemetry."},
    {.name = "progress",
     .type = MS_OPTION_CHOICE,
     .offset = FIELD(progress),
     .choices = when_bar,
     .help = "Progress of loading and prompts."},
    {.name = "color",
     .type = MS_OPTION_CHOICE,
     .offset = FIELD(color),
     .choices = when_color,
     .help = "Colour and cursor control (auto: on a terminal, unless NO_COLOR is set)."},
};

/* Without a help text they are not in the help: they only explain themselves. */
static const ms_option later_options[] = {
    {.name = "url", .type = MS_OPTION_STRING, .offset = FIELD(url)},
    {.name = "api-key", .type = MS_OPTION_STRING, .offset = FIELD(api_key)},
    {.name = "schema", .type = MS_OPTION_STRING, .offset = FIELD(schema)},
    {.name = "json-object", .type = MS_OPTION_FLAG, .offset = FIELD(json_object)},
    {.name = "decode-diagnostics", .type = MS_OPTION_STRING, .offset = FIELD(decode_diagnostics)},
};

static const ms_option run_options[] = {
    {.name = "sequential-limit",
     .type = MS_OPTION_U32,
     .offset = FIELD(sequential_limit),
     .arg = "N",
     .help = "Prompts of up to N new tokens run token by token (default: 7)."},
};

static chat_options defaults(void) {
    return (chat_options){.max_tokens = 256,
                          .thinking = -1,
                          .effort = -1,
                          .top_p = 1,
                          .sequential_limit = CHAT_DEFAULT_SEQUENTIAL,
                          .engine = ms_model_flags_default()};
}

static ms_status check_later(const ms_option_set *set, const ms_option_result *r, ms_error *err) {
    for (size_t i = 0; i < COUNT(later_options); i++) {
        if (!ms_options_given(set, r, later_options[i].name)) continue;
        return ms_fail(err, MS_ERR_USAGE, "--%s is not available in this version", later_options[i].name);
    }
    return MS_OK;
}

static ms_status exclude(const ms_option_set *set, const ms_option_result *r, ms_error *err) {
    static const char *const inputs[] = {"prompt", "prompt-file", "stdin", "messages"};
    static const char *const modes[] = {"render-only", "tokenize", "detokenize"};
    static const char *const pairs[][2] = {
        {"system", "system-file"},   {"system", "load"},      {"system-file", "load"}, {"system", "messages"},
        {"system-file", "messages"}, {"stats", "quiet"},      {"think", "no-think"},   {"effort", "no-think"},
        {"render-only", "load"},     {"render-only", "save"},
    };
    MS_TRY(ms_options_exclusive(set, r, inputs, COUNT(inputs), err));
    MS_TRY(ms_options_exclusive(set, r, modes, COUNT(modes), err));
    for (size_t i = 0; i < COUNT(pairs); i++) MS_TRY(ms_options_exclusive(set, r, pairs[i], 2, err));
    return MS_OK;
}

static ms_status check(const ms_option_set *set, const ms_option_result *r, chat_options *o, ms_error *err) {
    MS_TRY(check_later(set, r, err));
    MS_TRY(exclude(set, r, err));
    for (size_t i = 0; i < o->stop.count; i++) {
        if (!*o->stop.items[i]) return ms_fail(err, MS_ERR_USAGE, "--stop: expected text, found an empty string");
    }
    if (o->render_only && !chat_options_one_shot(o)) {
        return ms_fail(err, MS_ERR_USAGE, "--render-only needs --prompt, --prompt-file, --stdin or --messages");
    }
    const char *const files[][2] = {{"save", o->save}, {"load", o->load}, {"history", o->history}};
    for (size_t i = 0; i < COUNT(files); i++) {
        if (!files[i][1] || *files[i][1]) continue;
        return ms_fail(err, MS_ERR_USAGE, "--%s: expected a file name, found an empty string", files[i][0]);
    }
    o->max_tokens_given = ms_options_given(set, r, "max-tokens");
    o->temperature_given = ms_options_given(set, r, "temperature");
    o->top_p_given = ms_options_given(set, r, "top-p");
    o->top_k_given = ms_options_given(set, r, "top-k");
    o->min_p_given = ms_options_given(set, r, "min-p");
    o->seed_given = ms_options_given(set, r, "seed");
    if (o->effort >= 0) o->thinking = 1;
    return MS_OK;
}

/* The engine's options, with the chat client's bounds of --context. */
static size_t engine_options(ms_option *to, size_t room) {
    size_t n = ms_model_option_count < room ? ms_model_option_count : room;
    for (size_t i = 0; i < n; i++) {
        to[i] = ms_model_option_table[i];
        if (strcmp(to[i].name, "context") == 0) to[i].min = 64;
    }
    return n;
}

int chat_options_parse(chat_options *o, int argc, char **argv) {
    *o = defaults();
    ms_option engine[32];
    const ms_option_group groups[] = {
        {"Input", input_options, COUNT(input_options), o},
        {"Reply", reply_options, COUNT(reply_options), o},
        {"State", state_options, COUNT(state_options), o},
        {"Output", output_options, COUNT(output_options), o},
        {"Engine", engine, engine_options(engine, COUNT(engine)), &o->engine},
        {"Prompt evaluation", run_options, COUNT(run_options), o},
        {NULL, later_options, COUNT(later_options), o},
    };
    const ms_option_set set = {
        .program = "moonshine-chat",
        .synopsis = "[MODEL] [options]",
        .about = "Talks to the model in a checkpoint directory (MODEL or the variable MOONSHINE_MODEL). Without an "
                 "input option "
                 "it is a conversation: on a terminal with line editing and commands (/help), else with each line of "
                 "standard "
                 "input as one message. Replies go to standard output, everything else to standard error.",
        .epilogue =
            "Exit codes: 0 success, 1 a turn or the loading failed, 2 wrong usage, 3 refused because memory does not\n"
            "suffice, 130 interrupted, 141 standard output closed, 143 terminated.\n",
        .groups = groups,
        .group_count = COUNT(groups),
        .max_args = 1,
    };
    ms_option_result result;
    int code = ms_command_parse(&set, argc, argv, &result);
    if (code >= 0) return code;
    ms_error err;
    if (check(&set, &result, o, &err) != MS_OK) return ms_command_fail(set.program, &err);
    o->model = ms_command_model(set.program, &result, 0);
    return o->model ? -1 : 2;
}

bool chat_options_one_shot(const chat_options *o) {
    return o->prompt || o->prompt_file || o->from_stdin || o->messages;
}
