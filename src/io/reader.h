/* reader.h: asynchronous reads of byte ranges of files into aligned staging buffers.
 *
 * One io_uring ring (liburing) with registered buffers and files opened O_DIRECT; every read is widened to
 * the file's alignment and the caller gets a pointer to the exact first byte.  Falls back, once said through
 * the warning callback and counted, to buffered reads (no O_DIRECT) and to pread (no io_uring).
 *
 * Owns: the ring, the open files, the queue.  Does not own: the staging memory (a backend allocates it, so
 * that it can be pinned); it must outlive the reader.
 * Threads: one at a time; the kernel does the overlapping.  A thread that ends cancels the reads it started (they
 *   complete with MS_ERR_CANCELLED).
 * Invariants: a buffer is free, reading, or held by the caller between ms_reader_next and ms_reader_release;
 *   at most `depth` reads are in flight on a drive (files of one device); those of a drive start in submit order, and
 *   one drive that has enough to do does not keep the others waiting.
 * Errors: a failed or short read is reported in that request's completion and touches no other request.
 */
#ifndef MS_IO_READER_H
#define MS_IO_READER_H

#include "base/error.h"

enum { MS_READER_ALIGN = 4096 };

typedef struct ms_reader ms_reader;

typedef struct ms_reader_options {
    unsigned depth;       /* reads in flight on one drive, 1..1024 */
    void *staging;        /* MS_READER_ALIGN-aligned memory of buffer_count * buffer_bytes */
    unsigned buffer_count;
    size_t buffer_bytes;  /* multiple of MS_READER_ALIGN; use ms_reader_buffer_bytes */
    bool buffered;        /* do not try O_DIRECT */
    bool no_uring;        /* do not try io_uring */
    uint64_t bytes_per_second; /* nothing completes earlier than a drive of this rate would have it; 0: no such limit */
    void (*warn)(void *arg, const char *text); /* may be NULL; called at most once per kind of fallback */
    void *warn_arg;
} ms_reader_options;

/* Smallest buffer that holds any read of `length` bytes at any misalignment. */
size_t ms_reader_buffer_bytes(size_t length);

ms_status ms_reader_create(ms_reader **out, const ms_reader_options *options, ms_error *err);
/* Cancels what is in flight, waits for the kernel to be done with the buffers, closes all.  NULL is fine. */
void ms_reader_destroy(ms_reader *r);

/* Opens a file for reading; *file is its index.  The size is remembered for bound checks. */
ms_status ms_reader_add_file(ms_reader *r, const char *path, unsigned *file, ms_error *err);

const char *ms_reader_file_path(const ms_reader *r, unsigned file);

typedef struct ms_read_request {
    unsigned file;
    uint64_t offset, length; /* bytes; inside the file; length > 0 and fits a buffer */
    uint64_t tag;            /* the caller's */
} ms_read_request;

/* Queues requests (any number) and starts as many as buffers and depth allow. */
ms_status ms_reader_submit(ms_reader *r, const ms_read_request *requests, size_t count, ms_error *err);

typedef struct ms_read_done {
    uint64_t tag;
    ms_status status;    /* MS_OK, MS_ERR_IO or MS_ERR_CANCELLED */
    ms_error error;      /* filled when status is not MS_OK: names file, offset, length, cause */
    const uint8_t *data; /* first byte asked for; valid until ms_reader_release; NULL on failure */
    uint64_t length;
    unsigned buffer;     /* for ms_reader_release; also on failure */
} ms_read_done;

/* Waits for the next completion (any order).  Returns MS_ERR_USAGE when nothing is queued or in flight, or
 * when every buffer is held by the caller so that nothing can ever complete. */
ms_status ms_reader_next(ms_reader *r, ms_read_done *done, ms_error *err);
/* Like ms_reader_next without waiting: *got tells whether there was one.  Nothing pending is not an error.
 * Without io_uring a queued read is done here, so that polling makes progress. */
ms_status ms_reader_poll(ms_reader *r, ms_read_done *done, bool *got, ms_error *err);
void ms_reader_release(ms_reader *r, unsigned buffer);

/* Drops queued requests and cancels those in flight; their completions are consumed and forgotten here.
 * Buffers held by the caller stay held. */
void ms_reader_cancel_all(ms_reader *r);

/* Takes one request back while it is queued.  False: it is in flight or over, and its completion comes or has come. */
bool ms_reader_withdraw(ms_reader *r, uint64_t tag);

/* From now on: reads in flight on one drive, 1..1024.  What is in flight stays so. */
void ms_reader_set_depth(ms_reader *r, unsigned depth);

size_t ms_reader_pending(const ms_reader *r); /* queued + in flight */

typedef struct ms_reader_stats {
    uint64_t reads, read_bytes;      /* requests that succeeded; bytes asked for, without alignment */
    uint64_t failed_reads;           /* requests reported as failed */
    uint64_t device_bytes;           /* bytes transferred, with alignment */
    uint64_t wait_ns;                /* time ms_reader_next blocked */
    uint64_t busy_ns;                /* time a transfer was certainly under way: those that end while nobody looks are
                                        counted up to the last look before */
    uint64_t short_reads, resubmits; /* transfers that ended early; transfers begun again for any reason */
    bool direct, uring, registered;  /* all files direct; ring in use; buffers registered */
    unsigned buffered_files;         /* files read through the page cache */
} ms_reader_stats;
void ms_reader_get_stats(const ms_reader *r, ms_reader_stats *out);

/* For tests: the next `count` transfers of `file` fail with errno_value as if the device had failed (so EAGAIN is
 * retried, and EINVAL of a direct read turns the file to buffered reads).  0: the transfer comes back half as long. */
void ms_reader_inject_failure(ms_reader *r, unsigned file, unsigned count, int errno_value);

#endif
