/* generate.h: runs a job on a timeline: reuse, prompt, reply, and what is kept afterwards.
 *
 * ms_generate goes to the job's terminal event, ms_generate_settle from there to a state that the next turn of the
 * conversation can extend: the reply closed as its rendering closes it.
 *
 * Owns: what is known about the timeline.  Does not own: timeline, text model, log, metrics.
 * Threads: the inference thread.
 * Invariants: reuse never changes what is computed, only how much; a failed request leaves no state that matches
 * anything but its own prompt.
 */
#ifndef MS_SERVER_GENERATE_H
#define MS_SERVER_GENERATE_H

#include "server/calls.h"
#include "server/diagnostics.h"
#include "server/job.h"
#include "server/log.h"
#include "server/metrics.h"
#include "server/retained.h"
#include "server/turns.h"

typedef struct ms_generator {
    ms_causal *timeline;
    const ms_text_model *text;
    ms_log *log;
    ms_metrics *metrics;
    ms_call_memory *calls;
    ms_turn_memory *turns; /* NULL: not kept */
    ms_reasoning_memory *reasoning; /* NULL: not kept */
    const char *model_id, *fingerprint;
    uint32_t sequential_limit;
    bool reuse;             /* else every request begins with an empty timeline */
    bool buffer_structured; /* content in a response format is shown when it is complete */
    uint64_t deadline_ns;   /* of a whole request; 0: none */
    ms_diagnostics *diagnostics; /* NULL: none */
    bool digest;                 /* log a digest of the state after every reply */
    bool forget_experts;         /* every request begins with an empty expert cache */
    ms_retained retained;
    bool broken; /* the engine does not work any more */
} ms_generator;

/* What settle needs of the job that ran. */
typedef struct ms_turn_end {
    bool settle; /* there is something to do */
    size_t prompt_end;
    ms_ids generated; /* all but the last one are evaluated */
    ms_reply reply;
    bool raw, exact; /* exact: generated and closing are what the next prompt begins with */
    ms_ids closing;
} ms_turn_end;

void ms_generate(ms_generator *g, ms_job *j, ms_turn_end *end);
/* A job that is a slot action, to its end. */
void ms_slot_run(ms_generator *g, ms_job *j);
void ms_generate_settle(ms_generator *g, ms_job *j, ms_turn_end *end);
void ms_turn_end_free(ms_turn_end *end);

#endif
