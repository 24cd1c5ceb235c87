/* job.h: one generation between the connection that asked for it and the inference thread.
 *
 *     connection thread                      inference thread
 *     parse, admit, render       -- job -->  events: start, text, calls, finish or fail
 *     wait, take bytes, send     <-- bytes --
 *     stop (gone), done          -- flag -->  looked at at every boundary
 *
 * Events become bytes at once, in a bounded queue.  While a reply is generated the inference thread never waits for a
 * client: when the queue is full the client counts as gone.  What was held back and is handed over at the end comes
 * faster than any client reads: then, and behind a single large event, the thread waits for the client, write_ns in
 * all. Keepalives are made by whoever waits for bytes, so they need no boundary.
 *
 * Owns: request, rendering, writer, queue.  Reference counted: both sides hold one.
 * Threads: as above; everything that both touch is behind the lock or atomic.
 */
#ifndef MS_SERVER_JOB_H
#define MS_SERVER_JOB_H

#include <pthread.h>
#include <stdatomic.h>

#include "server/api.h"
#include "server/candidate.h"
#include "server/constraint.h"

enum { MS_JOB_QUEUE_BYTES = 1 << 20 };

/* Why a job ends early; the first reason counts. */
typedef enum ms_stop { MS_STOP_NONE, MS_STOP_GONE, MS_STOP_DEADLINE, MS_STOP_SHUTDOWN } ms_stop;

typedef enum ms_phase { MS_PHASE_WAITING, MS_PHASE_PREFILL, MS_PHASE_DECODE, MS_PHASE_EXPORT } ms_phase;

/* What the job is doing, for keepalives, /slots and estimates.  Behind the job's lock. */
typedef struct ms_job_progress {
    ms_phase phase;
    bool layers; /* unit of prefill */
    uint64_t done, total;
    uint64_t prompt, reused, processed; /* ids */
    uint64_t generated, limit;
    const char *part; /* "reasoning", "response", "tool" */
    uint64_t start_ns, prefill_ns, decode_start_ns;
} ms_job_progress;

typedef enum ms_slot_action { MS_SLOT_NONE, MS_SLOT_SAVE, MS_SLOT_RESTORE, MS_SLOT_ERASE } ms_slot_action;
enum { MS_SLOT_NAME_BYTES = 65 };

typedef struct ms_job {
    ms_api_request request;
    const ms_api_codec *codec;
    ms_candidate prompt;
    ms_constraint *constraint; /* NULL: the reply is free */
    char id[40], peer[64];
    uint64_t admitted_ns, deadline_ns; /* 0: none */
    bool seeded;                       /* the seed was drawn here */
    uint64_t max_queue_bytes;
    uint64_t write_ns; /* what is left to wait for a client that reads slowly */
    bool handing_over; /* what comes now was held back; inference thread */

    pthread_mutex_t lock;
    int event_fd; /* readable: something changed */
    ms_api_writer *writer;
    ms_text out;
    size_t taken;
    bool large; /* the last event filled the queue by itself */
    uint64_t last_out_ns;
    bool started, ended; /* ended: nothing more comes */
    bool sent;           /* the connection is done with it, well or not */
    ms_api_error error;  /* http != 0: it failed */
    ms_job_progress progress;
    ms_api_usage usage;
    uint64_t prefill_ns, decode_ns;
    const char *stop_note; /* X-Moonshine-Stop */
    /* Not a request of a model but something to do with the slot: there is no writer.  tokens, bytes: the outcome. */
    ms_slot_action slot_action;
    char slot_name[MS_SLOT_NAME_BYTES];
    uint64_t slot_tokens, slot_bytes;

    atomic_int stop; /* ms_stop */
    atomic_uint references;
} ms_job;

/* References: one.  NULL: no memory. */
ms_job *ms_job_create(void);
void ms_job_hold(ms_job *j);
void ms_job_release(ms_job *j);

void ms_job_stop(ms_job *j, ms_stop reason);
ms_stop ms_job_stopped(ms_job *j);

/* ------------------------------------------------------------------ inference thread */

void ms_job_start(ms_job *j, const ms_api_start *s);
void ms_job_text(ms_job *j, ms_channel channel, const char *text, size_t len, const ms_api_logprob *logprobs,
                 size_t count);
/* A call, in pieces.  call_id gets the id that the client will send back. */
void ms_job_call_begin(ms_job *j, const char *name, size_t name_len, char call_id[48]);
void ms_job_call_arguments(ms_job *j, const char *text, size_t len);
void ms_job_call_end(ms_job *j);
/* What comes from here on was held back. */
void ms_job_hand_over(ms_job *j);
void ms_job_finish(ms_job *j, const ms_api_end *e);
void ms_job_fail(ms_job *j, const ms_api_error *e);
/* A slot action succeeded. */
void ms_job_done(ms_job *j);
/* Waits until the connection is done with the job; false: not within the time. */
bool ms_job_wait_sent(ms_job *j, uint64_t timeout_ns);

/* ------------------------------------------------------------------ connection thread */

/* Bytes to send, at most `room`.  0: none now. */
size_t ms_job_take(ms_job *j, char *to, size_t room);
/* Adds a keepalive when nothing was written for interval_ns.  Returns ns until the next one is due. */
uint64_t ms_job_keepalive(ms_job *j, uint64_t interval_ns);
void ms_job_sent(ms_job *j);
/* "prefill layer 41/93", into a buffer. */
void ms_job_describe(const ms_job_progress *p, char *out, size_t size);

#endif
