#include "server/job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

enum {
    TAKEN_BYTES = 1 << 16, /* sent bytes that are carried along at most */
    LARGE_PART = 16        /* of the queue: an event of more than that is a large one */
};
static const struct timespec step = {.tv_nsec = 1000000};

ms_job *ms_job_create(void) {
    ms_job *j = calloc(1, sizeof *j);
    if (!j) return NULL;
    j->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (j->event_fd < 0) {
        free(j);
        return NULL;
    }
    (void)pthread_mutex_init(&j->lock, NULL);
    j->max_queue_bytes = MS_JOB_QUEUE_BYTES;
    j->last_out_ns = ms_clock_ns();
    atomic_init(&j->stop, MS_STOP_NONE);
    atomic_init(&j->references, 1);
    return j;
}

void ms_job_hold(ms_job *j) { (void)atomic_fetch_add(&j->references, 1); }

void ms_job_release(ms_job *j) {
    if (!j || atomic_fetch_sub(&j->references, 1) != 1) return;
    if (j->writer) j->writer->ops->destroy(j->writer);
    ms_api_request_free(&j->request);
    ms_candidate_free(&j->prompt);
    ms_constraint_release(j->constraint);
    ms_text_free(&j->out);
    (void)close(j->event_fd);
    (void)pthread_mutex_destroy(&j->lock);
    free(j);
}

static void wake(ms_job *j) { (void)eventfd_write(j->event_fd, 1); }

void ms_job_stop(ms_job *j, ms_stop reason) {
    int none = MS_STOP_NONE;
    (void)atomic_compare_exchange_strong(&j->stop, &none, (int)reason);
}

ms_stop ms_job_stopped(ms_job *j) { return (ms_stop)atomic_load(&j->stop); }

/* ------------------------------------------------------------------ events */

static void lock(ms_job *j) { (void)pthread_mutex_lock(&j->lock); }
static void unlock(ms_job *j) { (void)pthread_mutex_unlock(&j->lock); }

static bool is_full(const ms_job *j) { return j->request.stream && j->out.len - j->taken > j->max_queue_bytes; }

/* Until the client has read so much that there is room, it is gone, or the time is up.  Behind the lock, which others
 * get meanwhile. */
static void wait_for_room(ms_job *j) {
    const uint64_t end = ms_clock_ns() + j->write_ns;
    uint64_t now = end - j->write_ns;
    for (; is_full(j) && !j->sent && ms_job_stopped(j) == MS_STOP_NONE && now < end; now = ms_clock_ns()) {
        unlock(j);
        (void)nanosleep(&step, NULL);
        lock(j);
    }
    j->write_ns = now < end ? end - now : 0;
}

/* Before every event: room in the queue, or a client that counts as gone. */
static size_t begin_event(ms_job *j) {
    lock(j);
    if (is_full(j) && (j->handing_over || j->large)) wait_for_room(j);
    if (is_full(j)) ms_job_stop(j, MS_STOP_GONE);
    return j->out.len - j->taken;
}

/* before: bytes that waited at its beginning. */
static void end_event(ms_job *j, size_t before) {
    size_t waiting = j->out.len - j->taken;
    if (j->out.failed) ms_job_stop(j, MS_STOP_GONE);
    if (j->request.stream && ms_job_stopped(j) == MS_STOP_GONE) { /* for nobody */
        waiting = before;
        j->out.len = j->taken + before;
    }
    if (waiting != before) j->last_out_ns = ms_clock_ns();
    j->large = waiting - before > j->max_queue_bytes / LARGE_PART;
    unlock(j);
    wake(j);
}

void ms_job_start(ms_job *j, const ms_api_start *s) {
    size_t before = begin_event(j);
    j->writer->ops->start(j->writer, &j->out, s);
    j->usage = s->usage;
    j->started = true;
    end_event(j, before);
}

void ms_job_text(ms_job *j, ms_channel channel, const char *text, size_t len, const ms_api_logprob *logprobs,
                 size_t count) {
    if (!len && !count) return;
    size_t before = begin_event(j);
    j->writer->ops->text(j->writer, &j->out, channel, text, len, logprobs, count);
    end_event(j, before);
}

void ms_job_call_begin(ms_job *j, const char *name, size_t name_len, char call_id[48]) {
    size_t before = begin_event(j);
    j->writer->ops->tool_begin(j->writer, &j->out, name, name_len);
    (void)snprintf(call_id, 48, "%.47s", j->writer->call_id);
    end_event(j, before);
}

void ms_job_call_arguments(ms_job *j, const char *text, size_t len) {
    if (!len) return;
    size_t before = begin_event(j);
    j->writer->ops->tool_arguments(j->writer, &j->out, text, len);
    end_event(j, before);
}

void ms_job_call_end(ms_job *j) {
    size_t before = begin_event(j);
    j->writer->ops->tool_end(j->writer, &j->out);
    end_event(j, before);
}

void ms_job_hand_over(ms_job *j) { j->handing_over = true; }

void ms_job_finish(ms_job *j, const ms_api_end *e) {
    size_t before = begin_event(j);
    j->usage = e->usage;
    j->writer->ops->finish(j->writer, &j->out, e);
    j->ended = true;
    end_event(j, before);
}

void ms_job_fail(ms_job *j, const ms_api_error *e) {
    size_t before = begin_event(j);
    j->error = *e;
    if (j->started && j->request.stream) j->writer->ops->error(j->writer, &j->out, e, j->id);
    j->ended = true;
    end_event(j, before);
}

void ms_job_done(ms_job *j) {
    lock(j);
    j->ended = true;
    unlock(j);
    wake(j);
}

void ms_job_sent(ms_job *j) {
    lock(j);
    j->sent = true;
    unlock(j);
    wake(j);
}

bool ms_job_wait_sent(ms_job *j, uint64_t timeout_ns) {
    uint64_t end = ms_clock_ns() + timeout_ns;
    for (;;) {
        lock(j);
        bool sent = j->sent;
        unlock(j);
        if (sent) return true;
        if (ms_clock_ns() >= end) return false;
        (void)nanosleep(&step, NULL);
    }
}

/* ------------------------------------------------------------------ connection */

size_t ms_job_take(ms_job *j, char *to, size_t room) {
    lock(j);
    size_t n = j->out.len - j->taken;
    if (n > room) n = room;
    if (!n) {
        unlock(j);
        return 0;
    }
    memcpy(to, j->out.data + j->taken, n);
    j->taken += n;
    if (j->taken == j->out.len || j->taken > TAKEN_BYTES) {
        memmove(j->out.data, j->out.data + j->taken, j->out.len - j->taken);
        j->out.len -= j->taken;
        j->taken = 0;
    }
    unlock(j);
    return n;
}

void ms_job_describe(const ms_job_progress *p, char *out, size_t size) {
    switch (p->phase) {
    case MS_PHASE_PREFILL:
        (void)snprintf(out, size, "prefill %s %llu/%llu", p->layers ? "layer" : "token", (unsigned long long)p->done,
                       (unsigned long long)p->total);
        return;
    case MS_PHASE_DECODE:
        (void)snprintf(out, size, "decode %s %llu", p->part ? p->part : "response", (unsigned long long)p->generated);
        return;
    case MS_PHASE_WAITING:
    case MS_PHASE_EXPORT:
        (void)snprintf(out, size, "waiting");
        return;
    }
}

uint64_t ms_job_keepalive(ms_job *j, uint64_t interval_ns) {
    lock(j);
    size_t before = j->out.len;
    uint64_t now = ms_clock_ns(), due = j->last_out_ns + interval_ns;
    if (j->started && !j->ended && now >= due) {
        const ms_job_progress *p = &j->progress;
        char what[80];
        ms_job_describe(p, what, sizeof what);
        if (p->phase == MS_PHASE_PREFILL && j->request.return_progress) {
            j->writer->ops->progress(j->writer, &j->out, p->prompt, p->reused, p->processed,
                                     (now - p->start_ns) / 1000000);
        } else {
            j->writer->ops->keepalive(j->writer, &j->out, what);
        }
        j->last_out_ns = now;
        due = now + interval_ns;
    }
    bool more = j->out.len != before;
    unlock(j);
    if (more) wake(j);
    return due > now ? due - now : 0;
}
