/* worker.h: the one inference thread, its slot, and who gets it.
 *
 * One job at a time.  While a job's terminal event is out and its state is being completed (export), one more may wait
 * for the slot; everything else is refused at once.
 *
 * Owns: the thread, the timeline (it opens and closes the source), the generator.
 * Threads: admit, submit, leave and the readers on any thread; they never wait for the engine.
 * Errors: a failed open, and an engine that stopped working, show in the state.
 */
#ifndef MS_SERVER_WORKER_H
#define MS_SERVER_WORKER_H

#include "server/generate.h"

typedef struct ms_worker ms_worker;

typedef enum ms_worker_state {
    MS_WORKER_LOADING,
    MS_WORKER_READY,
    MS_WORKER_DRAINING,
    MS_WORKER_FAILED /* open failed, or the engine broke */
} ms_worker_state;

typedef struct ms_worker_options {
    ms_causal_source source;
    ms_generator generator; /* all but timeline and what it keeps itself */
    uint64_t flush_ns;      /* for the client to take its last bytes before the state is completed */
    /* Called on the inference thread when loading ended and when the engine broke. */
    void (*changed)(void *arg, ms_worker_state state, const ms_error *err);
    void *changed_arg;
} ms_worker_options;

ms_status ms_worker_create(ms_worker **out, const ms_worker_options *o, ms_error *err);
/* Stops what runs (it ends at its next boundary) and waits for the thread; every job has ended then, and new ones are
 * refused. */
void ms_worker_stop(ms_worker *w);
/* After the last connection. */
void ms_worker_destroy(ms_worker *w);

/* Takes the slot or the waiting place for a job.  false: refused, *e says why.  Sets the job's admission time. */
bool ms_worker_admit(ms_worker *w, ms_job *j, ms_api_error *e);
/* Whether an admitted job has the slot.  While it has not, its connection asks again when something may have changed;
 * *e is filled when the job was refused meanwhile (it is admitted no more). */
typedef enum ms_turn { MS_TURN_WAIT, MS_TURN_NOW, MS_TURN_REFUSED } ms_turn;
ms_turn ms_worker_turn(ms_worker *w, ms_job *j, ms_api_error *e);
/* The job that has the slot, rendered: it runs now.  The worker takes a reference. */
void ms_worker_submit(ms_worker *w, ms_job *j);
/* Gives the slot or the place back without running. */
void ms_worker_leave(ms_worker *w, ms_job *j);

/* No new jobs. */
void ms_worker_drain(ms_worker *w);
/* Cancels what runs and refuses what waits. */
void ms_worker_cancel(ms_worker *w);
/* Nothing runs or waits. */
bool ms_worker_idle(ms_worker *w);
/* open succeeded, whatever came later. */
bool ms_worker_loaded(ms_worker *w);

typedef struct ms_worker_view {
    ms_worker_state state;
    bool busy, exporting, queued;
    bool has_job;
    char job_id[40];
    const char *api;
    ms_job_progress progress;
    uint64_t admitted_ns;
} ms_worker_view;
void ms_worker_look(ms_worker *w, ms_worker_view *out);

#endif
