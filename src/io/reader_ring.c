/* reader_ring.c: the io_uring side of the reader.
 *
 * Every transfer is submitted by itself, so it is always known whether the kernel has it.  That matters because a
 * buffer the kernel has must be neither reused nor given back before its completion, whatever goes wrong: a ring
 * that refuses submissions is left alone for new work (ring_usable false), but its completions are still awaited.
 * One system call a transfer is nothing next to a transfer of megabytes.
 *
 * The kernel makes the completion queue twice as long as the ring: room for all reads and a cancel for each, so it
 * cannot overflow.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "io/reader_internal.h"

enum { READER_RING_MAX = 1024, RING_SUBMIT_TRIES = 1000 }; /* at 1 ms each */

static const uint64_t ring_cancel_mark = UINT64_MAX;

static void sleep_1ms(void) {
    struct timespec t = {.tv_nsec = 1000000};
    (void)nanosleep(&t, NULL);
}

static bool ring_supports_reads(struct io_uring *ring) {
    struct io_uring_probe *probe = io_uring_get_probe_ring(ring);
    if (!probe) return false;
    bool ok = io_uring_opcode_supported(probe, IORING_OP_READ) &&
              io_uring_opcode_supported(probe, IORING_OP_READ_FIXED) &&
              io_uring_opcode_supported(probe, IORING_OP_ASYNC_CANCEL);
    io_uring_free_probe(probe);
    return ok;
}

static void register_buffers(ms_reader *r) {
    unsigned n = r->options.buffer_count;
    struct iovec *v = calloc(n, sizeof *v);
    int rc = -ENOMEM;
    if (v) {
        for (unsigned i = 0; i < n; i++) {
            v[i].iov_base = (uint8_t *)r->options.staging + (size_t)i * r->options.buffer_bytes;
            v[i].iov_len = r->options.buffer_bytes;
        }
        rc = io_uring_register_buffers(&r->ring, v, n);
        free(v);
    }
    r->ring_fixed = rc == 0;
    if (rc != 0) {
        ms_reader_warn(r, READER_WARN_REGISTER,
                       "%u staging buffers cannot be registered with io_uring (%s; see ulimit -l); reads go on without",
                       n, strerror(-rc));
    }
}

void ms_reader_ring_open(ms_reader *r) {
    /* Never more transfers than buffers; the depth limits each drive, and how many there will be is not known yet. */
    r->ring_size = r->options.buffer_count < READER_RING_MAX ? r->options.buffer_count : READER_RING_MAX;
    int rc = io_uring_queue_init(r->ring_size, &r->ring, 0);
    if (rc != 0) {
        ms_reader_warn(r, READER_WARN_RING, "io_uring is not available (%s); reads are done one at a time",
                       strerror(-rc));
        return;
    }
    if (!ring_supports_reads(&r->ring)) {
        io_uring_queue_exit(&r->ring);
        ms_reader_warn(r, READER_WARN_RING, "this kernel's io_uring is too old; reads are done one at a time");
        return;
    }
    r->ring_open = r->ring_usable = true;
    register_buffers(r);
}

void ms_reader_ring_close(ms_reader *r) {
    if (r->ring_open) io_uring_queue_exit(&r->ring);
    r->ring_open = r->ring_usable = false;
}

/* Submits the one prepared entry.  0, or the errno after which nothing more can be submitted. */
static int submit_one(ms_reader *r) {
    int rc = -EAGAIN;
    for (int i = 0; i < RING_SUBMIT_TRIES; i++) {
        rc = io_uring_submit(&r->ring);
        if (rc > 0) return 0;
        if (rc == -EINTR) continue;
        if (rc != 0 && rc != -EAGAIN && rc != -EBUSY && rc != -ENOMEM) break;
        sleep_1ms(); /* short of memory: others will give some back */
    }
    return rc < 0 ? -rc : EAGAIN;
}

bool ms_reader_ring_start(ms_reader *r, unsigned buffer) {
    struct io_uring_sqe *sqe = r->ring_usable ? io_uring_get_sqe(&r->ring) : NULL;
    if (!sqe) return false;
    reader_transfer t = ms_reader_transfer_of(r, buffer);
    if (r->ring_fixed) {
        io_uring_prep_read_fixed(sqe, t.fd, t.to, (unsigned)t.length, t.offset, (int)buffer);
    } else {
        io_uring_prep_read(sqe, t.fd, t.to, (unsigned)t.length, t.offset);
    }
    sqe->user_data = buffer;
    int error = submit_one(r);
    if (error == 0) return true;
    /* The entry stays in the submission queue, which is never submitted again. */
    r->ring_usable = false;
    ms_reader_warn(r, READER_WARN_RING, "io_uring takes no more reads (%s); they are done one at a time",
                   strerror(error));
    return false;
}

void ms_reader_ring_cancel(ms_reader *r, unsigned buffer) {
    struct io_uring_sqe *sqe = r->ring_usable ? io_uring_get_sqe(&r->ring) : NULL;
    if (!sqe) return;
    io_uring_prep_cancel64(sqe, buffer, 0);
    sqe->user_data = ring_cancel_mark;
    if (submit_one(r) == 0) r->cancels++;
    else r->ring_usable = false;
}

unsigned ms_reader_ring_ready(const ms_reader *r) { return r->ring_open ? io_uring_cq_ready(&r->ring) : 0; }

bool ms_reader_ring_next(ms_reader *r, bool wait, unsigned *buffer, int *result) {
    while (r->in_flight > 0 || r->cancels > 0) {
        struct io_uring_cqe *cqe = NULL;
        int rc = wait ? io_uring_wait_cqe(&r->ring, &cqe) : io_uring_peek_cqe(&r->ring, &cqe);
        if (rc != 0 || !cqe) {
            if (!wait) return false;
            /* Completions arrive in shared memory even when the call that waits for them fails. */
            if (rc != -EINTR) sleep_1ms();
            continue;
        }
        uint64_t mark = cqe->user_data;
        int res = cqe->res;
        io_uring_cqe_seen(&r->ring, cqe);
        if (mark == ring_cancel_mark) {
            r->cancels--;
            continue;
        }
        *buffer = (unsigned)mark;
        *result = res;
        r->in_flight--;
        r->drive_in_flight[r->files[r->buffers[mark].request.file].drive]--;
        return true;
    }
    return false;
}
