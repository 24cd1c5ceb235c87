/* reader.c: queue, buffers and the life of a request (see reader.h).
 *
 * A request waits in the queue, gets a buffer, and is one or more transfers until all its bytes are there or one
 * fails for good: short transfers are continued (from an aligned position when direct: only the end of the file
 * may be uneven), EAGAIN and EINTR are retried a bounded number of times, EINVAL of a direct transfer turns the
 * file to buffered reads.  finish_transfer decides; it does not care whether the ring or pread moved the bytes.
 *
 * Invariants: free_count + in_flight + held == buffer_count; in_flight counts the transfers that the kernel has.
 */
#include "io/reader.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "io/reader_internal.h"

enum {
    READER_MAX_DEPTH = 1024,
    READER_MAX_BUFFER_BYTES = 1 << 30, /* the largest that io_uring registers */
    READER_MAX_RETRIES = 100
};

typedef enum transfer_end { TRANSFER_DONE, TRANSFER_FAILED, TRANSFER_AGAIN } transfer_end;

/* ------------------------------------------------------------------ creation */

size_t ms_reader_buffer_bytes(size_t length) {
    if (length > SIZE_MAX - 2 * MS_READER_ALIGN) return SIZE_MAX - MS_READER_ALIGN + 1;
    return (size_t)ms_align_up((uint64_t)length + MS_READER_ALIGN - 1, MS_READER_ALIGN);
}

void ms_reader_warn(ms_reader *r, reader_warning kind, const char *fmt, ...) {
    if (r->warned & kind) return;
    r->warned |= kind;
    if (!r->options.warn) return;
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    r->options.warn(r->options.warn_arg, text);
}

static ms_status check_options(const ms_reader_options *o, ms_error *err) {
    uint64_t bytes;
    if (o->depth < 1 || o->depth > READER_MAX_DEPTH) {
        return ms_fail(err, MS_ERR_USAGE, "reader: depth must be 1 to %d, found %u", READER_MAX_DEPTH, o->depth);
    }
    if (!o->staging || (uintptr_t)o->staging % MS_READER_ALIGN != 0) {
        return ms_fail(err, MS_ERR_USAGE, "reader: staging memory must be aligned to %d bytes", MS_READER_ALIGN);
    }
    if (o->buffer_bytes == 0 || o->buffer_bytes % MS_READER_ALIGN != 0 || o->buffer_bytes > READER_MAX_BUFFER_BYTES) {
        return ms_fail(err, MS_ERR_USAGE, "reader: buffer bytes must be a multiple of %d up to %d, found %zu",
                       MS_READER_ALIGN, READER_MAX_BUFFER_BYTES, o->buffer_bytes);
    }
    if (o->buffer_count < 1 || o->buffer_count > INT32_MAX || !ms_mul_u64(o->buffer_count, o->buffer_bytes, &bytes) ||
        bytes > SIZE_MAX / 2) {
        return ms_fail(err, MS_ERR_USAGE, "reader: %u buffers of %zu bytes cannot be", o->buffer_count,
                       o->buffer_bytes);
    }
    return MS_OK;
}

ms_status ms_reader_create(ms_reader **out, const ms_reader_options *options, ms_error *err) {
    *out = NULL;
    MS_TRY(check_options(options, err));
    ms_reader *r = calloc(1, sizeof *r);
    if (!r) return ms_fail_memory(err, "reader", sizeof *r);
    r->options = *options;
    unsigned n = options->buffer_count;
    r->buffers = calloc(n, sizeof *r->buffers);
    r->free_buffers = calloc(n, sizeof *r->free_buffers);
    if (options->bytes_per_second) r->early = calloc(n, sizeof *r->early);
    if (!r->buffers || !r->free_buffers || (options->bytes_per_second && !r->early)) {
        ms_reader_destroy(r);
        return ms_fail_memory(err, "reader buffers", n * (sizeof *r->buffers + sizeof *r->free_buffers));
    }
    while (r->free_count < n) {
        r->free_buffers[r->free_count] = n - 1 - r->free_count;
        r->free_count++;
    }
    if (!options->no_uring) ms_reader_ring_open(r);
    *out = r;
    return MS_OK;
}

void ms_reader_destroy(ms_reader *r) {
    if (!r) return;
    ms_reader_cancel_all(r);
    ms_reader_ring_close(r);
    for (unsigned i = 0; i < r->file_count; i++) ms_reader_file_close(&r->files[i]);
    free(r->files);
    free(r->buffers);
    free(r->free_buffers);
    free(r->drive_in_flight);
    free(r->queue);
    free(r->early);
    free(r);
}

/* The drive of a file that is not in the table yet. */
static ms_status find_drive(ms_reader *r, reader_file *f, ms_error *err) {
    for (unsigned i = 0; i < r->file_count; i++) {
        if (r->files[i].device != f->device) continue;
        f->drive = r->files[i].drive;
        return MS_OK;
    }
    size_t bytes = ((size_t)r->drive_count + 1) * sizeof *r->drive_in_flight;
    unsigned *counts = realloc(r->drive_in_flight, bytes);
    if (!counts) return ms_fail_memory(err, "reader drives", bytes);
    r->drive_in_flight = counts;
    counts[r->drive_count] = 0;
    f->drive = r->drive_count++;
    return MS_OK;
}

ms_status ms_reader_add_file(ms_reader *r, const char *path, unsigned *file, ms_error *err) {
    size_t bytes = ((size_t)r->file_count + 1) * sizeof *r->files;
    reader_file *files = realloc(r->files, bytes);
    if (!files) return ms_fail_memory(err, "reader files", bytes);
    r->files = files;
    ms_status status = ms_reader_file_open(r, path, &files[r->file_count], err);
    if (status == MS_OK) status = find_drive(r, &files[r->file_count], err);
    if (status != MS_OK) {
        ms_reader_file_close(&files[r->file_count]);
        return status;
    }
    *file = r->file_count++;
    return MS_OK;
}

const char *ms_reader_file_path(const ms_reader *r, unsigned file) { return r->files[file].path; }

/* ------------------------------------------------------------------ queue */

static ms_status check_request(const ms_reader *r, const ms_read_request *q, ms_error *err) {
    if (q->file >= r->file_count) {
        return ms_fail(err, MS_ERR_USAGE, "reader: file %u of %u", q->file, r->file_count);
    }
    const reader_file *f = &r->files[q->file];
    if (q->length == 0 || q->offset > f->size || q->length > f->size - q->offset) {
        return ms_fail(err, MS_ERR_USAGE, "%s: read of %" PRIu64 " bytes at offset %" PRIu64 " of %" PRIu64, f->path,
                       q->length, q->offset, f->size);
    }
    if (q->length > r->options.buffer_bytes - q->offset % MS_READER_ALIGN) {
        return ms_fail(err, MS_ERR_USAGE,
                       "%s: read of %" PRIu64 " bytes at offset %" PRIu64 " does not fit a buffer of %zu", f->path,
                       q->length, q->offset, r->options.buffer_bytes);
    }
    return MS_OK;
}

static ms_status grow_queue(ms_reader *r, size_t count, ms_error *err) {
    uint64_t need, cap = r->queue_cap ? r->queue_cap : 64;
    if (!ms_add_u64(r->queue_count, count, &need) || need > SIZE_MAX / 4 / sizeof *r->queue) {
        return ms_fail_memory(err, "read queue", SIZE_MAX);
    }
    if (need <= r->queue_cap) return MS_OK;
    while (cap < need) cap *= 2;
    ms_read_request *queue = malloc((size_t)cap * sizeof *queue);
    if (!queue) return ms_fail_memory(err, "read queue", (size_t)cap * sizeof *queue);
    for (size_t i = 0; i < r->queue_count; i++) queue[i] = r->queue[(r->queue_head + i) % r->queue_cap];
    free(r->queue);
    r->queue = queue;
    r->queue_head = 0;
    r->queue_cap = (size_t)cap;
    return MS_OK;
}

static void take_free_buffer(ms_reader *r, unsigned *buffer) {
    *buffer = r->free_buffers[--r->free_count];
}

static void give_free_buffer(ms_reader *r, unsigned buffer) {
    r->buffers[buffer].state = READER_FREE;
    r->free_buffers[r->free_count++] = buffer;
}

/* ------------------------------------------------------------------ transfers */

/* First position that the caller did not ask for. */
static size_t end_of(const reader_buffer *b) { return b->skip + (size_t)b->request.length; }

reader_transfer ms_reader_transfer_of(const ms_reader *r, unsigned buffer) {
    const reader_buffer *b = &r->buffers[buffer];
    size_t end = end_of(b);
    if (b->direct) end = (size_t)ms_align_up(end, MS_READER_ALIGN);
    return (reader_transfer){.fd = r->files[b->request.file].fd,
                             .to = (uint8_t *)r->options.staging + (size_t)buffer * r->options.buffer_bytes + b->from,
                             .length = end - b->from,
                             .offset = b->request.offset - b->skip + b->from};
}

/* Sets the buffer to the first transfer of its request, in the mode its file has now. */
static void first_transfer(const ms_reader *r, reader_buffer *b) {
    b->direct = r->files[b->request.file].direct;
    b->from = b->best = b->direct ? 0 : b->skip;
}

static void take_injection(ms_reader *r, reader_buffer *b) {
    reader_file *f = &r->files[b->request.file];
    b->injected = READER_NOT_INJECTED;
    if (f->inject_count == 0) return;
    f->inject_count--;
    b->injected = f->inject_errno;
}

static void begin_request(ms_reader *r, unsigned buffer, const ms_read_request *q) {
    reader_buffer *b = &r->buffers[buffer];
    *b = (reader_buffer){.state = READER_READING, .request = *q, .skip = (size_t)(q->offset % MS_READER_ALIGN)};
    first_transfer(r, b);
    take_injection(r, b);
    if (r->options.bytes_per_second == 0) return;
    /* one transfer after the other, each at the full rate: on average what many at a time get */
    uint64_t now = ms_clock_ns(), start = now > r->drive_free_ns ? now : r->drive_free_ns;
    uint64_t takes = (uint64_t)((double)q->length * 1e9 / (double)r->options.bytes_per_second);
    b->due_ns = r->drive_free_ns = start + takes;
    r->stats.busy_ns += takes;
}

static transfer_end transfer_failed(ms_reader *r, reader_buffer *b, int error, ms_error *err) {
    reader_file *f = &r->files[b->request.file];
    if ((error == EAGAIN || error == EINTR) && b->retries < READER_MAX_RETRIES) {
        b->retries++;
        return TRANSFER_AGAIN;
    }
    if ((error == EINVAL || error == EOPNOTSUPP) && b->direct) {
        ms_reader_file_make_buffered(r, f, strerror(error));
        first_transfer(r, b);
        return TRANSFER_AGAIN;
    }
    (void)ms_fail_errno(err, error == ECANCELED ? MS_ERR_CANCELLED : MS_ERR_IO, error,
                        "%s: read of %" PRIu64 " bytes at offset %" PRIu64, f->path, b->request.length,
                        b->request.offset);
    return TRANSFER_FAILED;
}

/* A transfer got no further than the one before: the end of the file, if that is where the file ends now. */
static transfer_end no_progress(ms_reader *r, reader_buffer *b, ms_error *err) {
    const reader_file *f = &r->files[b->request.file];
    struct stat st;
    uint64_t size = fstat(f->fd, &st) == 0 && st.st_size > 0 ? (uint64_t)st.st_size : 0;
    if (size >= b->request.offset + b->request.length && b->retries < READER_MAX_RETRIES) {
        b->retries++;
        return TRANSFER_AGAIN;
    }
    (void)ms_fail(err, MS_ERR_IO,
                  "%s: read of %" PRIu64 " bytes at offset %" PRIu64 " came back short: the file had %" PRIu64
                  " bytes when it was opened and has %" PRIu64 " now", f->path, b->request.length, b->request.offset,
                  f->size, size);
    return TRANSFER_FAILED;
}

/* What `result` (bytes moved or -errno) of the current transfer means; sets up the next one for TRANSFER_AGAIN. */
static transfer_end finish_transfer(ms_reader *r, reader_buffer *b, int64_t result, ms_error *err) {
    if (b->injected > 0) result = -(int64_t)b->injected;
    else if (b->injected == 0 && result > 1) result /= 2;
    if (result < 0) return transfer_failed(r, b, (int)-result, err);
    r->stats.device_bytes += (uint64_t)result;
    size_t reached = b->from + (size_t)result;
    if (reached >= end_of(b)) return TRANSFER_DONE;
    r->stats.short_reads++;
    if (reached <= b->best) return no_progress(r, b, err);
    b->best = reached;
    b->from = b->direct ? (size_t)ms_align_down(reached, MS_READER_ALIGN) : reached;
    return TRANSFER_AGAIN;
}

/* A drive that is imitated counts for itself. */
static void add_busy(ms_reader *r, uint64_t ns) {
    if (r->options.bytes_per_second == 0) r->stats.busy_ns += ns;
}

/* Transfers start in pump only, so one that is not over has been under way since the last look.  True: there is one. */
static bool look(ms_reader *r) {
    uint64_t now = ms_clock_ns();
    bool busy = r->in_flight > ms_reader_ring_ready(r);
    if (busy) add_busy(r, now - r->looked_ns);
    r->looked_ns = now;
    return busy;
}

/* Moves a begun request to its end with pread. */
static transfer_end read_in_place(ms_reader *r, unsigned buffer, ms_error *err) {
    reader_buffer *b = &r->buffers[buffer];
    for (;;) {
        reader_transfer t = ms_reader_transfer_of(r, buffer);
        uint64_t start = ms_clock_ns();
        ssize_t n = pread(t.fd, t.to, t.length, (off_t)t.offset);
        add_busy(r, ms_clock_ns() - start);
        transfer_end end = finish_transfer(r, b, n < 0 ? -(int64_t)errno : (int64_t)n, err);
        if (end != TRANSFER_AGAIN) return end;
        r->stats.resubmits++;
        take_injection(r, b);
    }
}

static ms_read_request *queued(const ms_reader *r, size_t i) { return &r->queue[(r->queue_head + i) % r->queue_cap]; }

/* Takes entry i out; those in front of it move back by one, as there are few as a rule. */
static void remove_queued(ms_reader *r, size_t i) {
    for (; i > 0; i--) *queued(r, i) = *queued(r, i - 1);
    r->queue_head = (r->queue_head + 1) % r->queue_cap;
    r->queue_count--;
}

/* The first request whose drive has room; queue_count: none. */
static size_t startable(const ms_reader *r) {
    size_t i = 0;
    while (i < r->queue_count && r->drive_in_flight[r->files[queued(r, i)->file].drive] >= r->options.depth) {
        if (r->drive_count == 1) return r->queue_count;
        i++;
    }
    return i;
}

static bool start_transfer(ms_reader *r, unsigned buffer) {
    if (!ms_reader_ring_start(r, buffer)) return false;
    r->in_flight++;
    r->drive_in_flight[r->files[r->buffers[buffer].request.file].drive]++;
    return true;
}

/* Starts queued requests while ring, buffers and depth allow. */
static void pump(ms_reader *r) {
    (void)look(r);
    while (r->ring_usable && r->queue_count > 0 && r->free_count > 0 && r->in_flight < r->ring_size) {
        if (r->early && r->in_flight + r->early_count >= r->options.depth) return; /* the imitated drive has them all */
        size_t at = startable(r);
        if (at == r->queue_count) return;
        const ms_read_request *q = queued(r, at);
        unsigned buffer, inject = r->files[q->file].inject_count;
        take_free_buffer(r, &buffer);
        begin_request(r, buffer, q);
        if (!start_transfer(r, buffer)) { /* stays in the queue; pread will do it */
            r->files[q->file].inject_count = inject;
            give_free_buffer(r, buffer);
            return;
        }
        remove_queued(r, at);
    }
}

ms_status ms_reader_submit(ms_reader *r, const ms_read_request *requests, size_t count, ms_error *err) {
    for (size_t i = 0; i < count; i++) MS_TRY(check_request(r, &requests[i], err));
    MS_TRY(grow_queue(r, count, err));
    for (size_t i = 0; i < count; i++) {
        r->queue_count++;
        *queued(r, r->queue_count - 1) = requests[i];
    }
    pump(r);
    return MS_OK;
}

/* ------------------------------------------------------------------ completions */

static void report(ms_reader *r, unsigned buffer, transfer_end end, ms_read_done *done) {
    reader_buffer *b = &r->buffers[buffer];
    b->state = READER_HELD;
    done->tag = b->request.tag;
    done->length = b->request.length;
    done->buffer = buffer;
    if (end == TRANSFER_DONE) {
        done->status = MS_OK;
        done->data = (const uint8_t *)r->options.staging + (size_t)buffer * r->options.buffer_bytes + b->skip;
        r->stats.reads++;
        r->stats.read_bytes += b->request.length;
    } else {
        done->status = done->error.code;
        done->data = NULL;
        r->stats.failed_reads++;
    }
}

/* One completion from the ring, with whatever transfers it still takes.  False: none, without `wait` only. */
static bool next_from_ring(ms_reader *r, bool wait, ms_read_done *done) {
    unsigned buffer;
    int result;
    while (ms_reader_ring_next(r, wait, &buffer, &result)) {
        transfer_end end = finish_transfer(r, &r->buffers[buffer], result, &done->error);
        if (end == TRANSFER_AGAIN) {
            r->stats.resubmits++;
            take_injection(r, &r->buffers[buffer]);
            if (start_transfer(r, buffer)) continue;
            end = read_in_place(r, buffer, &done->error);
        }
        report(r, buffer, end, done);
        return true;
    }
    return false;
}

/* The oldest queued request, done here and now. */
static void next_in_place(ms_reader *r, ms_read_done *done) {
    unsigned buffer;
    take_free_buffer(r, &buffer);
    begin_request(r, buffer, queued(r, 0));
    remove_queued(r, 0);
    report(r, buffer, read_in_place(r, buffer, &done->error), done);
}

static bool next_transferred(ms_reader *r, bool wait, ms_read_done *done) {
    done->status = MS_OK;
    done->error.code = MS_OK;
    done->error.message[0] = '\0';
    pump(r);
    if (r->in_flight > 0) {
        bool blocks = wait && look(r), got = next_from_ring(r, wait, done);
        if (blocks) { /* until now, when the first of them was over */
            uint64_t now = ms_clock_ns();
            add_busy(r, now - r->looked_ns);
            r->looked_ns = now;
        }
        if (!r->early) pump(r);
        return got;
    }
    if (r->queue_count == 0 || r->free_count == 0) return false;
    next_in_place(r, done); /* with buffers free and nothing in flight, the ring would have taken it */
    return true;
}

static void sleep_until(uint64_t ns) {
    struct timespec t = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR) {}
}

/* Gathers what has come and gives the one that is due first, at its time. */
static bool next_due(ms_reader *r, bool wait, ms_read_done *done) {
    unsigned most = r->options.depth < r->options.buffer_count ? r->options.depth : r->options.buffer_count;
    while (r->early_count < most &&
           next_transferred(r, wait && r->early_count == 0, &r->early[r->early_count]))
        r->early_count++;
    if (r->early_count == 0) return false;
    unsigned first = 0;
    for (unsigned i = 1; i < r->early_count; i++)
        if (r->buffers[r->early[i].buffer].due_ns < r->buffers[r->early[first].buffer].due_ns) first = i;
    uint64_t due = r->buffers[r->early[first].buffer].due_ns;
    if (ms_clock_ns() < due) {
        if (!wait) return false;
        sleep_until(due);
    }
    *done = r->early[first];
    r->early[first] = r->early[--r->early_count];
    pump(r);
    return true;
}

static bool next_done(ms_reader *r, bool wait, ms_read_done *done) {
    return r->early ? next_due(r, wait, done) : next_transferred(r, wait, done);
}

ms_status ms_reader_next(ms_reader *r, ms_read_done *done, ms_error *err) {
    uint64_t start = ms_clock_ns();
    bool got = next_done(r, true, done);
    r->stats.wait_ns += ms_clock_ns() - start;
    if (got) return MS_OK;
    if (r->queue_count > 0) {
        return ms_fail(err, MS_ERR_USAGE, "reader: %zu reads wait, but all %u buffers are held by the caller",
                       r->queue_count, r->options.buffer_count);
    }
    return ms_fail(err, MS_ERR_USAGE, "reader: nothing to wait for");
}

ms_status ms_reader_poll(ms_reader *r, ms_read_done *done, bool *got, ms_error *err) {
    (void)err;
    *got = next_done(r, false, done);
    return MS_OK;
}

void ms_reader_release(ms_reader *r, unsigned buffer) {
    if (buffer >= r->options.buffer_count || r->buffers[buffer].state != READER_HELD) return;
    give_free_buffer(r, buffer);
    pump(r);
}

void ms_reader_cancel_all(ms_reader *r) {
    unsigned buffer;
    int result;
    r->queue_count = 0;
    r->queue_head = 0;
    for (unsigned i = 0; r->in_flight > 0 && i < r->options.buffer_count; i++) {
        if (r->buffers[i].state == READER_READING) ms_reader_ring_cancel(r, i);
    }
    while (ms_reader_ring_next(r, true, &buffer, &result)) give_free_buffer(r, buffer);
    while (r->early_count) give_free_buffer(r, r->early[--r->early_count].buffer);
}

bool ms_reader_withdraw(ms_reader *r, uint64_t tag) {
    for (size_t i = 0; i < r->queue_count; i++) {
        if (queued(r, i)->tag != tag) continue;
        remove_queued(r, i);
        return true;
    }
    return false;
}

void ms_reader_set_depth(ms_reader *r, unsigned depth) {
    r->options.depth = depth < 1 ? 1 : depth > READER_MAX_DEPTH ? READER_MAX_DEPTH : depth;
}

size_t ms_reader_pending(const ms_reader *r) { return r->queue_count + r->in_flight + r->early_count; }

void ms_reader_get_stats(const ms_reader *r, ms_reader_stats *out) {
    *out = r->stats;
    out->direct = r->stats.buffered_files == 0 && !r->options.buffered;
    out->uring = r->ring_usable;
    out->registered = r->ring_usable && r->ring_fixed;
}

void ms_reader_inject_failure(ms_reader *r, unsigned file, unsigned count, int errno_value) {
    if (file >= r->file_count) return;
    r->files[file].inject_count = count;
    r->files[file].inject_errno = errno_value;
}
