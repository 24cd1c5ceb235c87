/* api.h: the wire APIs of the server as codecs around one neutral request and one stream of reply events.
 *
 *     body bytes -> ms_api_codec.parse -> ms_api_request -> (admission, prompt, generation) -> ms_api_writer -> body
 * bytes
 *
 * A codec (chat completions, completions, Messages, Responses) knows its JSON on both sides and nothing of sockets,
 * threads, lanes or engines.  What a model family allows comes in as ms_api_limits.  The same writer serves streams and
 * whole replies: with `stream` it appends wire bytes as events come, without it appends one JSON document at finish()
 * or error().
 *
 * Owns: a request owns its parsed body and every text in it; a writer owns what it must remember between events.
 * Threads: parse on any thread; a request is immutable afterwards; a writer belongs to one thread at a time.
 * Errors: parse fails with an ms_api_error that is complete (status, code, param, message) and never quotes the
 * client's bytes.
 */
#ifndef MS_SERVER_API_H
#define MS_SERVER_API_H

#include "base/json.h"
#include "text/chat.h"

typedef enum ms_api_kind { MS_API_CHAT, MS_API_COMPLETIONS, MS_API_MESSAGES, MS_API_RESPONSES } ms_api_kind;

/* One refusal or failure, in terms all APIs share; the codec chooses the envelope. */
typedef struct ms_api_error {
    int http;          /* status; 0: no error */
    const char *code;  /* static text: "invalid_type" */
    char param[256];   /* JSON path or pointer; "": null */
    char message[512]; /* fixed words, numbers and paths */
    char details[256]; /* JSON object text for error.details; "": absent */
    int retry_after;   /* seconds; 0: no header */
    int should_retry;  /* -1: x-should-retry: false, +1: true, 0: no header */
} ms_api_error;

/* Fills *e (NULL is fine) and returns false, so that `return ms_api_fail(...)` reads as one step. */
bool ms_api_fail(ms_api_error *e, int http, const char *code, const char *param, const char *fmt, ...) MS_PRINTF(5, 6);

#define MS_API_KEY_BYTES 32

/* A key for ms_api_limits that stays the same over restarts, so that clients can go on with sealed reasoning: from
 * id_file (/etc/machine-id) and the user.  Random where the file has no id.  false: no random source. */
bool ms_api_machine_key(uint8_t key[MS_API_KEY_BYTES], const char *id_file);

/* What a lane and the server's options allow, asked by parse. */
typedef struct ms_api_limits {
    const char *model_id;
    const char *const *aliases; /* NULL-terminated; may be NULL */
    bool any_model;
    uint64_t max_output_ceiling, default_output; /* tokens */
    bool clamp_max_tokens;
    bool sampling, logprobs, dynamic_tools;
    const char *const *efforts; /* NULL-terminated; "none" among them: thinking can be switched off */
    const char *default_effort;
    /* Signs thinking blocks and seals encrypted reasoning items.  What another key sealed cannot be read back. */
    uint8_t key[MS_API_KEY_BYTES];
    /* Responses: the conversation that made this call, as the elements of a chat.h `messages` list (comma between them)
     * whose last one is the assistant message with the call.  Appends and returns true, or returns false; called from
     * parse on its thread.  NULL: no call is remembered. */
    bool (*call_history)(void *arg, const char *call_id, size_t len, ms_text *messages);
    void *call_history_arg;
    bool needs_reasoning; /* the template renders the reasoning of old turns, so that a replay must have it */
} ms_api_limits;

#define MS_API_NO_MESSAGE UINT32_MAX

typedef struct ms_api_tool {
    const char *name;
    size_t name_len;
    const ms_json *parameters; /* NULL: no arguments */
    bool strict;
    uint32_t message, index; /* where the request has it: of its list, which is that of a message or MS_API_NO_MESSAGE */
} ms_api_tool;

typedef enum ms_api_tool_choice {
    MS_TOOLS_AUTO,
    MS_TOOLS_NONE,
    MS_TOOLS_REQUIRED,
    MS_TOOLS_NAMED,
    MS_TOOLS_ALLOWED
} ms_api_tool_choice;
typedef enum ms_api_format { MS_API_TEXT, MS_API_JSON_OBJECT, MS_API_JSON_SCHEMA } ms_api_format;

typedef struct ms_api_request {
    ms_api_kind kind;
    ms_json_doc *doc; /* the body; every ms_json pointer below points into it or into chat_doc */
    ms_text body;     /* the text behind doc */

    /* The conversation as a chat.h request (messages, tools, tool_choice, parallel_tool_calls, response_format,
     * thinking, thinking_effort): what the lane renders.  Tool results are already in call order.  Texts of several
     * parts stay several text parts, each encoded by itself, but for assistant messages, which are one reply. */
    ms_text chat;
    ms_json_doc *chat_doc;
    /* Completions only: text or ids, exactly one of them. */
    bool has_prompt_text;
    const char *prompt;
    size_t prompt_len;
    uint32_t *prompt_ids;
    size_t prompt_id_count;
    bool echo;

    bool stream;
    int include_usage; /* chat: -1 absent, 0 false, 1 true */
    bool return_progress, include_encrypted_reasoning, reasoning_summary;
    bool thinking;       /* after the lane's default */
    const char *effort;  /* static text of the limits' list; NULL: none */
    uint64_t max_tokens; /* resolved, within the ceiling; the context's room is not applied yet */
    const char *max_tokens_key; /* static text: the field that says so, or would */
    bool clamped;

    bool sampled; /* temperature > 0 and top_k != 1 */
    double temperature, top_p, min_p;
    uint64_t top_k;
    bool has_seed;
    int64_t seed;
    struct {
        const char *text;
        size_t len;
    } stops[16];
    size_t stop_count;
    bool logprobs;
    uint32_t top_logprobs;

    ms_api_tool *tools;
    size_t tool_count;
    ms_api_tool_choice tool_choice;
    bool allowed_required; /* MS_TOOLS_ALLOWED with mode required */
    bool *tool_allowed;    /* [tool_count]: may be called */
    bool parallel_tools;
    ms_api_format format;
    const ms_json *schema; /* MS_API_JSON_SCHEMA only */
    bool schema_strict;

    uint8_t key[MS_API_KEY_BYTES]; /* of the limits */
    ms_text ignored;       /* comma list for X-Moonshine-Ignored-Fields */
    ms_text ignored_tools; /* Responses and Messages: tool kinds skipped */
    uint32_t repaired_surrogates;
    uint32_t message_count;
} ms_api_request;

void ms_api_request_free(ms_api_request *r);

typedef enum ms_api_finish { MS_API_STOP, MS_API_STOP_STRING, MS_API_LENGTH, MS_API_TOOL_CALLS } ms_api_finish;

typedef struct ms_api_usage {
    uint64_t prompt, cached, completion, reasoning; /* tokens; evaluated = prompt - cached */
} ms_api_usage;

/* What is known when a reply starts. */
typedef struct ms_api_start {
    char id[64];       /* random hex; the codec adds its prefix */
    int64_t created;   /* Unix seconds */
    const char *model; /* lane id */
    const char *fingerprint;
    ms_api_usage usage; /* prompt and cached are known, the rest is 0 */
} ms_api_start;

/* One generated token's logprob entry, of response text only. */
typedef struct ms_api_logprob {
    const char *bytes;
    size_t len;
    float logprob;
    struct {
        const char *bytes;
        size_t len;
        float logprob;
    } top[20];
    uint32_t top_count;
} ms_api_logprob;

typedef struct ms_api_end {
    ms_api_finish finish;
    ms_api_usage usage;
    const char *stop; /* the stop string that matched; NULL */
    size_t stop_len;
    const char *comment; /* accounting text of the last stream comment, without ": "; each line is one comment */
} ms_api_end;

/* Events come in this order: start, {think text}, {response text}, {tool_begin, {tool_arguments}, tool_end}, finish; or
 * error at any point, also instead of start.  Text pieces are whole code points.  keepalive may come between any two
 * events after start. Bytes are appended to `out`; a failed allocation is out->failed. */
typedef struct ms_api_writer ms_api_writer;
typedef struct ms_api_writer_ops {
    void (*start)(ms_api_writer *w, ms_text *out, const ms_api_start *s);
    void (*text)(ms_api_writer *w, ms_text *out, ms_channel channel, const char *text, size_t len,
                 const ms_api_logprob *logprobs, size_t logprob_count);
    void (*tool_begin)(ms_api_writer *w, ms_text *out, const char *name, size_t len); /* draws the call id */
    void (*tool_arguments)(ms_api_writer *w, ms_text *out, const char *text, size_t len);
    void (*tool_end)(ms_api_writer *w, ms_text *out);
    void (*finish)(ms_api_writer *w, ms_text *out, const ms_api_end *e);
    /* After start of a stream: the API's error event and ending.  Else: the error document. */
    void (*error)(ms_api_writer *w, ms_text *out, const ms_api_error *e, const char *request_id);
    /* what: "prefill layer 41/93".  progress: total, cached and processed tokens (cached ones included), ms; a data chunk where the request has
     * return_progress, else the same as keepalive.  Both write nothing without `stream`. */
    void (*keepalive)(ms_api_writer *w, ms_text *out, const char *what);
    void (*progress)(ms_api_writer *w, ms_text *out, uint64_t total, uint64_t cached, uint64_t processed,
                     uint64_t elapsed_ms);
    void (*destroy)(ms_api_writer *w);
} ms_api_writer_ops;
struct ms_api_writer {
    const ms_api_writer_ops *ops;
    char call_id[48]; /* of the call that tool_begin opened last, as the client will send it back */
};

typedef struct ms_api_codec {
    ms_api_kind kind;
    const char *name; /* metric and log label: "chat" */
    /* body[0..len) is copied.  `count_only`: the token-counting form of the endpoint (max_tokens not required). */
    bool (*parse)(ms_api_request *out, const char *body, size_t len, const ms_api_limits *limits, bool count_only,
                  ms_api_error *err);
    /* NULL: no memory.  The request outlives the writer. */
    ms_api_writer *(*writer)(const ms_api_request *request);
} ms_api_codec;

extern const ms_api_codec ms_api_chat, ms_api_completions, ms_api_messages, ms_api_responses;

/* The error document of an API outside any stream (also for transport errors): appended to `out`.  request_id may be
 * NULL. */
void ms_api_error_document(ms_text *out, ms_api_kind kind, const ms_api_error *e, const char *request_id);

#endif
