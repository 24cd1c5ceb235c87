/* chat.h: what the parts of moonshine-chat share.
 *
 * Owns: everything in `chat` but the options.  Threads: one; signals reach the session through chat_signals.h.
 */
#ifndef MS_APPS_CHAT_H
#define MS_APPS_CHAT_H

#include "chat_options.h"
#include "common_terminal.h"
#include "session/turn.h"

/* Exit codes, also used as the outcome of a turn. */
enum {
    CHAT_OK = 0,
    CHAT_FAILED = 1,
    CHAT_USAGE = 2,
    CHAT_REFUSED = 3,
    CHAT_INTERRUPTED = 130,
    CHAT_CLOSED = 141,
    CHAT_TERMINATED = 143
};

#define CHAT_FILE_MAX_BYTES ((size_t)64 << 20)

typedef struct chat {
    const chat_options *o;
    app_stream out, err;
    ms_text_model text;
    ms_engine *engine;
    ms_session *session;
    ms_timeline timeline;
    ms_conversation conversation;
    ms_sampler sampler;
    bool seeded; /* the seed was given */
    ms_stop_strings stops;
    uint64_t max_tokens;
    double load_seconds;
    bool interactive;  /* someone types: an interrupt ends a turn; else it ends the program */
    ms_text system;     /* first message of every conversation; empty: none */
    ms_text last_user;  /* last message that was sent */
    bool last_accepted; /* it is part of the conversation */
    ms_text last_stats; /* telemetry of the last turn */
    app_progress bar;
    bool reasoning_open; /* reasoning was shown and its line is not ended yet */
} chat;

/* chat_setup.c */

/* Text side, sampling and stop strings: everything without weights. */
ms_status chat_open_text(chat *c, const chat_options *o, ms_error *err);
/* Engine, session, --load. */
ms_status chat_open_engine(chat *c, ms_error *err);
void chat_close(chat *c);
/* "moonshine-chat: message" on standard error, or the JSON object with --json; returns the exit code. */
int chat_fail(chat *c, const ms_error *err);
/* One line on standard error. */
void chat_note(chat *c, const char *fmt, ...) MS_PRINTF(2, 3);
bool chat_wants_bar(const chat_options *o);
/* Refuses targets of --save and --history that could not be written in the end; nothing stays on the disk. */
ms_status chat_check_targets(chat *c, ms_error *err);
/* From here on signals cancel the session; where an interrupt ends the program, one that came before does too. */
void chat_begin_work(chat *c);
/* A new conversation with the system message. */
ms_status chat_restart(chat *c, ms_error *err);
/* The message of --prompt, --prompt-file or --stdin. */
ms_status chat_read_prompt(const chat_options *o, ms_text *out, ms_error *err);
/* A whole file; "-" is standard input. */
ms_status chat_read_file(const char *path, ms_text *out, ms_error *err);
ms_status chat_load(chat *c, const char *path, ms_error *err);
ms_status chat_save(chat *c, const char *path, bool replace, ms_error *err);

/* chat_turn.c: one turn each; the outcome is an exit code.  A failure was reported. */
int chat_turn_user(chat *c, const char *text, size_t len);
int chat_turn_prompt(chat *c, const ms_prompt *p);

/* chat_report.c: what is said about a finished turn. */
void chat_write_stats(ms_text *out, const ms_turn_result *r, size_t forced, uint64_t position);
void chat_write_json(ms_text *out, const chat *c, const ms_prompt *p, const ms_turn_result *r, size_t forced);
ms_status chat_write_digest(ms_text *out, chat *c, ms_error *err);

/* chat_request.c: a request file (--messages) with the options of the command line. */
typedef struct chat_request {
    ms_text file, text;
    ms_json_doc *doc;
} chat_request;
ms_status chat_request_open(chat_request *r, chat *c, const char *path, ms_error *err);
void chat_request_close(chat_request *r);
/* The prompt of a request file; errors name it. */
ms_status chat_request_prompt(chat *c, const char *path, ms_prompt *out, ms_error *err);

/* chat_text.c: --tokenize, --detokenize and --render-only. */
int chat_text_only(chat *c);

/* chat_loop.c: the conversation; returns the exit code. */
int chat_loop(chat *c);

#endif
