/* decode.h: tokens of one reply, from logits to events of a job.
 *
 * Owns: parser, sampler and texts of the reply in progress.  Threads: the inference thread.
 * Errors: those of the timeline and the sampler.
 */
#ifndef MS_SERVER_DECODE_H
#define MS_SERVER_DECODE_H

#include "server/generate.h"
#include "session/stop_strings.h"

/* Tokens whose text is not given out yet. */
typedef struct ms_logprob_list {
    ms_api_logprob *items;
    size_t count, cap;
} ms_logprob_list;

typedef enum ms_decode_end {
    MS_END_MESSAGE,
    MS_END_STOP_STRING,
    MS_END_LENGTH,
    MS_END_DEADLINE,
    MS_END_CUT
} ms_decode_end;

typedef struct ms_decode {
    ms_generator *g;
    ms_job *job;
    void *parser; /* NULL: raw text */
    ms_utf8_stream utf8;
    ms_reply_delta delta;
    ms_sampler sampler;
    ms_held held; /* constraint NULL: the reply is free */
    ms_stop_strings stops;
    ms_text piece;
    ms_text shown;    /* response text that passed the stop strings */
    bool hold;        /* response text waits for the end */
    size_t held_from; /* of shown: not given out yet */
    /* Calls are shown while they are written: the grammar keeps them to every rule, and nothing waits before them. */
    bool live_calls;
    size_t calls_begun, calls_ended;
    size_t call_shown;             /* bytes of the arguments of the one that is open */
    char (*call_ids)[MS_CALL_ID_BYTES]; /* [calls_begun] */
    ms_logprob_list logprobs;
    ms_ids generated;
    uint64_t reasoning;
    uint64_t limit;
    ms_decode_end end;
    ms_stop stop; /* MS_END_CUT: why */
    uint64_t last_token_ns;
    bool reasons; /* the last token was of the reasoning */
} ms_decode;

/* channel: what the generation prompt opened. */
ms_status ms_decode_init(ms_decode *d, ms_generator *g, ms_job *j, ms_channel channel, uint64_t limit, ms_error *err);
/* Generates until the reply ends; logits are those of the prompt. */
ms_status ms_decode_run(ms_decode *d, const float *logits, ms_error *err);
/* Reads the reply to its end and gives out what was held back by the parser or the stop strings. */
ms_status ms_decode_finish(ms_decode *d, ms_reply *reply, ms_error *err);
/* Gives out response text that waited (hold). */
void ms_decode_release(ms_decode *d);
/* Shows the calls of a whole reply as far as they have not been; call_ids has the ids of all then. */
ms_status ms_decode_calls(ms_decode *d, const ms_tool_call *calls, size_t count, ms_error *err);
void ms_decode_fini(ms_decode *d);

#endif
