#include "server/worker.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "base/clock.h"

#define QUEUE_NS         (UINT64_C(30) * 1000000000)
#define FAILURE_FLUSH_NS UINT64_C(1000000000)
enum { RETRY_MIN_S = 1, RETRY_MAX_S = 60, RETRY_UNKNOWN_S = 15, RETRY_OTHER_S = 5 };

struct ms_worker {
    ms_worker_options o;
    ms_generator generator;
    ms_causal *timeline;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    ms_worker_state state;
    ms_job *slot;    /* has the slot: being rendered, running or exporting */
    bool submitted;  /* slot runs, or will as soon as the thread looks */
    bool exporting;  /* its terminal event is out */
    ms_job *waiting; /* for the end of the export */
    uint64_t waiting_since_ns;
    bool loaded, draining, ending;
};

/* ------------------------------------------------------------------ thread */

static void set_state(ms_worker *w, ms_worker_state state, const ms_error *err) {
    (void)pthread_mutex_lock(&w->lock);
    w->state = state;
    w->loaded = w->loaded || state == MS_WORKER_READY;
    (void)pthread_mutex_unlock(&w->lock);
    if (w->o.changed) w->o.changed(w->o.changed_arg, state, err);
}

static void wake_waiting(ms_worker *w) {
    if (w->waiting) (void)eventfd_write(w->waiting->event_fd, 1);
}

/* The slot is free: whoever waits has it now. */
static void free_slot(ms_worker *w) {
    w->slot = w->waiting;
    w->waiting = NULL;
    w->submitted = w->exporting = false;
    if (w->slot) (void)eventfd_write(w->slot->event_fd, 1);
    (void)pthread_cond_broadcast(&w->changed);
}

static void run_job(ms_worker *w, ms_job *j) {
    ms_turn_end end = {0};
    if (j->slot_action)
        ms_slot_run(&w->generator, j);
    else
        ms_generate(&w->generator, j, &end);
    (void)pthread_mutex_lock(&w->lock);
    w->exporting = true;
    (void)pthread_mutex_unlock(&w->lock);
    /* Also for a failure: the process may be about to end. */
    (void)ms_job_wait_sent(j, end.settle ? w->o.flush_ns : FAILURE_FLUSH_NS);
    ms_generate_settle(&w->generator, j, &end);
    ms_turn_end_free(&end);
    (void)pthread_mutex_lock(&w->lock);
    if (w->generator.broken) w->state = MS_WORKER_FAILED;
    free_slot(w);
    (void)pthread_mutex_unlock(&w->lock);
    (void)atomic_fetch_sub(&w->generator.metrics->in_progress, 1);
    ms_job_release(j);
}

/* The next job; NULL: the end. */
static ms_job *next_job(ms_worker *w) {
    (void)pthread_mutex_lock(&w->lock);
    while (!w->ending && !w->submitted) (void)pthread_cond_wait(&w->changed, &w->lock);
    ms_job *j = w->submitted ? w->slot : NULL;
    (void)pthread_mutex_unlock(&w->lock);
    return j;
}

static void *loop(void *arg) {
    ms_worker *w = arg;
    ms_error err;
    ms_status status = w->o.source.open(w->o.source.self, &w->timeline, &err);
    if (status == MS_OK) {
        w->generator.timeline = w->timeline;
        ms_retained_init(&w->generator.retained, w->timeline, w->generator.text);
        set_state(w, MS_WORKER_READY, NULL);
        for (ms_job *j; (j = next_job(w));) {
            run_job(w, j);
            if (w->generator.broken) break;
        }
        bool broken = w->generator.broken;
        if (!broken && w->generator.reuse) ms_retained_save(&w->generator.retained, MS_KEEP_NOW);
        if (broken) {
            (void)ms_fail(&err, MS_ERR_INTERNAL, "the engine does not work any more");
            set_state(w, MS_WORKER_FAILED, &err);
        }
        ms_retained_fini(&w->generator.retained);
    } else {
        set_state(w, MS_WORKER_FAILED, &err);
    }
    w->o.source.close(w->o.source.self);
    return NULL;
}

ms_status ms_worker_create(ms_worker **out, const ms_worker_options *o, ms_error *err) {
    *out = NULL;
    ms_worker *w = calloc(1, sizeof *w);
    if (!w) return ms_fail_memory(err, "the inference thread", sizeof *w);
    w->o = *o;
    w->generator = o->generator;
    (void)pthread_mutex_init(&w->lock, NULL);
    (void)pthread_cond_init(&w->changed, NULL);
    int code = pthread_create(&w->thread, NULL, loop, w);
    if (code != 0) {
        free(w);
        return ms_fail_errno(err, MS_ERR_IO, code, "the inference thread");
    }
    *out = w;
    return MS_OK;
}

void ms_worker_stop(ms_worker *w) {
    ms_worker_cancel(w);
    (void)pthread_mutex_lock(&w->lock);
    bool running = !w->ending;
    w->ending = true;
    (void)pthread_cond_broadcast(&w->changed);
    (void)pthread_mutex_unlock(&w->lock);
    if (running) (void)pthread_join(w->thread, NULL);
}

void ms_worker_destroy(ms_worker *w) {
    if (!w) return;
    ms_worker_stop(w);
    (void)pthread_cond_destroy(&w->changed);
    (void)pthread_mutex_destroy(&w->lock);
    free(w);
}

/* ------------------------------------------------------------------ admission */

/* Remaining seconds of what runs, from its own speed. */
static int estimate(ms_job *j) {
    (void)pthread_mutex_lock(&j->lock);
    ms_job_progress p = j->progress;
    (void)pthread_mutex_unlock(&j->lock);
    uint64_t now = ms_clock_ns();
    double left = RETRY_UNKNOWN_S;
    if (p.phase == MS_PHASE_EXPORT) left = RETRY_MIN_S;
    if (p.phase == MS_PHASE_DECODE && p.generated && now > p.decode_start_ns) {
        double one = (double)(now - p.decode_start_ns) / 1e9 / (double)p.generated;
        left = one * (double)(p.limit - (p.generated < p.limit ? p.generated : p.limit));
    } else if (p.phase == MS_PHASE_PREFILL && p.done && p.total > p.done && now > p.start_ns) {
        left = (double)(now - p.start_ns) / 1e9 / (double)p.done * (double)(p.total - p.done);
    }
    return left < RETRY_MIN_S ? RETRY_MIN_S : left > RETRY_MAX_S ? RETRY_MAX_S : (int)left;
}

static bool refuse_state(const ms_worker *w, ms_api_error *e) {
    switch (w->draining ? MS_WORKER_DRAINING : w->state) {
    case MS_WORKER_READY:
        return false;
    case MS_WORKER_LOADING:
        (void)ms_api_fail(e, 503, "model_loading", "", "the model is being loaded");
        break;
    case MS_WORKER_DRAINING:
        (void)ms_api_fail(e, 503, "shutting_down", "", "the server is shutting down");
        break;
    case MS_WORKER_FAILED:
        (void)ms_api_fail(e, 500, "engine_failure", "", "the engine does not work");
        return true;
    }
    e->retry_after = RETRY_OTHER_S;
    return true;
}

/* Behind the lock: the terminal event of the slot's job is out.  Its client may have it, and come again, before the
 * inference thread says so. */
static bool is_exporting(const ms_worker *w) {
    (void)pthread_mutex_lock(&w->slot->lock);
    bool ended = w->slot->ended;
    (void)pthread_mutex_unlock(&w->slot->lock);
    return ended || w->exporting;
}

bool ms_worker_admit(ms_worker *w, ms_job *j, ms_api_error *e) {
    (void)pthread_mutex_lock(&w->lock);
    bool refused = refuse_state(w, e);
    j->admitted_ns = ms_clock_ns();
    if (!refused && !w->slot) {
        w->slot = j;
        ms_job_hold(j);
    } else if (!refused && is_exporting(w) && !w->waiting) {
        w->waiting = j;
        w->waiting_since_ns = j->admitted_ns;
        ms_job_hold(j);
    } else if (!refused) {
        refused = true;
        (void)ms_api_fail(e, 503, "server_busy", "", "another request has the model");
        e->retry_after = estimate(w->slot);
        (void)atomic_fetch_add(&w->generator.metrics->busy_rejections, 1);
    }
    if (!refused) (void)atomic_fetch_add(&w->generator.metrics->in_progress, 1);
    (void)pthread_mutex_unlock(&w->lock);
    return !refused;
}

/* Behind the lock. */
static void forget(ms_worker *w, ms_job *j) {
    if (w->waiting == j)
        w->waiting = NULL;
    else if (w->slot == j && !w->submitted)
        free_slot(w);
    else
        return;
    (void)atomic_fetch_sub(&w->generator.metrics->in_progress, 1);
    ms_job_release(j);
}

ms_turn ms_worker_turn(ms_worker *w, ms_job *j, ms_api_error *e) {
    ms_turn turn = MS_TURN_WAIT;
    (void)pthread_mutex_lock(&w->lock);
    if (refuse_state(w, e)) {
        turn = MS_TURN_REFUSED;
    } else if (w->slot == j) {
        turn = MS_TURN_NOW;
        j->admitted_ns = ms_clock_ns();
    } else if (ms_clock_ns() - w->waiting_since_ns > QUEUE_NS) {
        (void)ms_api_fail(e, 503, "server_busy", "", "the model did not become free in time");
        e->retry_after = RETRY_OTHER_S;
        turn = MS_TURN_REFUSED;
    }
    if (turn == MS_TURN_REFUSED) forget(w, j);
    (void)pthread_mutex_unlock(&w->lock);
    return turn;
}

void ms_worker_leave(ms_worker *w, ms_job *j) {
    (void)pthread_mutex_lock(&w->lock);
    forget(w, j);
    (void)pthread_mutex_unlock(&w->lock);
}

void ms_worker_submit(ms_worker *w, ms_job *j) {
    ms_api_error e = {0};
    (void)pthread_mutex_lock(&w->lock);
    bool dead = w->ending || w->state == MS_WORKER_FAILED;
    if (dead) {
        (void)ms_api_fail(&e, 503, "server_shutdown", "", "the server is shutting down");
        ms_job_hold(j);
        forget(w, j);
    } else {
        w->submitted = w->slot == j;
        (void)pthread_cond_broadcast(&w->changed);
    }
    (void)pthread_mutex_unlock(&w->lock);
    if (!dead) return;
    ms_job_fail(j, &e);
    ms_job_release(j);
}

/* ------------------------------------------------------------------ ends and views */

void ms_worker_drain(ms_worker *w) {
    (void)pthread_mutex_lock(&w->lock);
    w->draining = true;
    wake_waiting(w);
    (void)pthread_mutex_unlock(&w->lock);
}

void ms_worker_cancel(ms_worker *w) {
    (void)pthread_mutex_lock(&w->lock);
    w->draining = true;
    if (w->slot) ms_job_stop(w->slot, MS_STOP_SHUTDOWN);
    wake_waiting(w);
    (void)pthread_mutex_unlock(&w->lock);
}

bool ms_worker_idle(ms_worker *w) {
    (void)pthread_mutex_lock(&w->lock);
    bool idle = !w->slot && !w->waiting;
    (void)pthread_mutex_unlock(&w->lock);
    return idle;
}

bool ms_worker_loaded(ms_worker *w) {
    (void)pthread_mutex_lock(&w->lock);
    bool loaded = w->loaded;
    (void)pthread_mutex_unlock(&w->lock);
    return loaded;
}

void ms_worker_look(ms_worker *w, ms_worker_view *out) {
    (void)pthread_mutex_lock(&w->lock);
    *out = (ms_worker_view){.state = w->draining && w->state != MS_WORKER_FAILED ? MS_WORKER_DRAINING : w->state,
                            .busy = w->slot != NULL,
                            .exporting = w->exporting,
                            .queued = w->waiting};
    if (w->slot) {
        ms_job *j = w->slot;
        out->has_job = true;
        (void)snprintf(out->job_id, sizeof out->job_id, "%s", j->id);
        out->api = j->codec->name;
        out->admitted_ns = j->admitted_ns;
        (void)pthread_mutex_lock(&j->lock);
        out->progress = j->progress;
        (void)pthread_mutex_unlock(&j->lock);
    }
    (void)pthread_mutex_unlock(&w->lock);
}
