/* turn.h: evaluates a prompt on a session and generates the reply.
 *
 * A timeline is a session with one state copy at the end of the last prompt.  Before a prompt is evaluated the timeline
 * goes to the longest prefix that it can reach exactly: the session as it is or rewound, the copy, or the beginning.  Ids are
 * compared one by one; there is no other way to reuse state.
 *
 * Owns: the copy, its ids and logits.  Does not own: session, engine, text model.
 * Threads: the inference thread; ms_session_cancel stops a turn from anywhere.
 * Errors: those of ms_session_forward; MS_ERR_CONTEXT when prompt and closing leave no room for a token; MS_ERR_FORMAT
 * when the model's reply is malformed; what the text callback returns.
 */
#ifndef MS_SESSION_TURN_H
#define MS_SESSION_TURN_H

#include "session/conversation.h"
#include "session/stop_strings.h"

typedef struct ms_timeline {
    ms_engine *engine;
    ms_session *session;
    const ms_text_model *model;
    bool keep_prompt_end; /* take the copy; the engine's plan must count one snapshot */
    ms_snapshot *copy;
    ms_ids copy_ids;
    float *copy_logits; /* [vocab] */
} ms_timeline;

void ms_timeline_init(ms_timeline *t, ms_engine *engine, ms_session *session, const ms_text_model *model);
void ms_timeline_fini(ms_timeline *t); /* the session stays */
/* Drops the copy: after an import or a reset of the session by others.  A turn does it by itself when the session
 * refuses the copy; only ms_timeline_reusable counts on it until then. */
void ms_timeline_forget(ms_timeline *t);
/* How many of ids[0..count) need no evaluation. */
size_t ms_timeline_reusable(const ms_timeline *t, const uint32_t *ids, size_t count);
/* Makes the session hold exactly ids (nothing when count is 0). */
ms_status ms_timeline_settle(ms_timeline *t, const ms_ids *ids, ms_error *err);

typedef enum ms_finish {
    MS_FINISH_END,        /* end of message */
    MS_FINISH_LENGTH,     /* max_tokens or the context's room */
    MS_FINISH_TOOL_CALLS, /* end of message, with calls */
    MS_FINISH_STOP,       /* a stop string */
    MS_FINISH_CANCELLED   /* ms_session_cancel while generating; the reply is cut */
} ms_finish;

typedef struct ms_turn_options {
    uint64_t max_tokens;       /* of the reply, structure and end marker included */
    uint32_t sequential_limit; /* up to so many new prompt tokens run token by token */
    ms_sampler *sampler;
    ms_stop_strings *stops; /* NULL: none */
    /* Text as it becomes final, complete code points only; reasoning or response.  May be NULL. */
    ms_status (*text)(void *arg, ms_channel channel, const char *text, size_t len, ms_error *err);
    /* Prefill only; may be NULL. */
    void (*progress)(void *arg, ms_progress_unit unit, uint64_t done, uint64_t total);
    /* Once, when the prompt is evaluated; may be NULL. */
    void (*prefilled)(void *arg);
    void *arg;
} ms_turn_options;

typedef struct ms_turn_result {
    size_t prompt, reused, evaluated; /* ids; prompt == reused + evaluated once the prompt is done */
    bool layer_major;
    uint64_t sweeps;                 /* passes over all layers */
    uint64_t unique_min, unique_max; /* experts one routed layer needed in one sweep; layer-major only */
    double unique_avg;
    uint64_t prompt_ns, decode_ns, prompt_read_bytes;
    uint64_t cache_hits, cache_accesses;
    ms_ids generated; /* with the end marker; the last one is not evaluated yet */
    uint64_t reasoning_tokens;
    ms_reply reply; /* content ends before a stop string */
    ms_finish finish;
    bool replied; /* the prompt was evaluated: generated and reply are meaningful, also after an error */
} ms_turn_result;
void ms_turn_result_free(ms_turn_result *r);

/* *out is filled as far as the turn came, also on an error; the caller frees it.  A cancel in the prompt is
 * MS_ERR_CANCELLED; one while generating is MS_OK with MS_FINISH_CANCELLED. */
ms_status ms_turn_run(ms_timeline *t, const ms_prompt *prompt, const ms_turn_options *o, ms_turn_result *out,
                      ms_error *err);

#endif
