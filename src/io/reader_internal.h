/* reader_internal.h: what the parts of the reader share.
 *
 * reader.c       queue, buffers, the life of a request, the public calls
 * reader_file.c  opening, O_DIRECT and its fallback
 * reader_ring.c  io_uring: starting, waiting, cancelling
 */
#ifndef MS_IO_READER_INTERNAL_H
#define MS_IO_READER_INTERNAL_H

#include <liburing.h>

#include "io/reader.h"

enum { READER_NOT_INJECTED = -1 };

typedef struct reader_file {
    char *path;
    int fd;
    uint64_t size;
    uint64_t device; /* st_dev */
    unsigned drive;  /* files of one device share a drive */
    bool direct;
    unsigned inject_count;
    int inject_errno;
} reader_file;

typedef enum reader_buffer_state { READER_FREE, READER_READING, READER_HELD } reader_buffer_state;

/* Positions count from the buffer's first byte, which stands for the file offset `request.offset - skip`. */
typedef struct reader_buffer {
    reader_buffer_state state;
    ms_read_request request;
    size_t skip; /* of the first byte asked for: request.offset % MS_READER_ALIGN */
    size_t from; /* where the current transfer began */
    size_t best; /* how far any transfer came */
    unsigned retries;
    bool direct;  /* the current transfer, not the file, which may have changed meanwhile */
    int injected; /* READER_NOT_INJECTED, or what the current transfer must report */
    uint64_t due_ns; /* with bytes_per_second: when a drive of that rate would be done */
} reader_buffer;

typedef enum reader_warning { READER_WARN_DIRECT = 1, READER_WARN_RING = 2, READER_WARN_REGISTER = 4 } reader_warning;

struct ms_reader {
    ms_reader_options options;
    ms_read_done *early; /* with bytes_per_second: completions before their time, [buffer_count] */
    unsigned early_count;
    uint64_t drive_free_ns; /* when the drive that is imitated has done all it was given */
    reader_file *files;
    unsigned file_count;
    reader_buffer *buffers;
    unsigned *free_buffers; /* stack */
    unsigned free_count, in_flight;
    unsigned *drive_in_flight; /* [drive_count] */
    unsigned drive_count;
    ms_read_request *queue; /* ring buffer */
    size_t queue_head, queue_count, queue_cap;
    unsigned warned; /* reader_warning bits */
    uint64_t looked_ns; /* when it was last known whether transfers are under way */
    ms_reader_stats stats;

    struct io_uring ring;
    bool ring_open;   /* ring must be closed at the end */
    bool ring_usable; /* new transfers go to the ring */
    bool ring_fixed;  /* buffers are registered */
    unsigned ring_size; /* most transfers that it takes at a time */
    unsigned cancels; /* cancel requests whose completions are to come */
};

/* One transfer of a buffer as it stands: file position, memory, length. */
typedef struct reader_transfer {
    int fd;
    uint8_t *to;
    size_t length;
    uint64_t offset;
} reader_transfer;

reader_transfer ms_reader_transfer_of(const ms_reader *r, unsigned buffer);
void ms_reader_warn(ms_reader *r, reader_warning kind, const char *fmt, ...) MS_PRINTF(3, 4);

ms_status ms_reader_file_open(ms_reader *r, const char *path, reader_file *out, ms_error *err);
void ms_reader_file_close(reader_file *f);
/* From now on through the page cache; `why` goes into the warning. */
void ms_reader_file_make_buffered(ms_reader *r, reader_file *f, const char *why);

/* Sets ring_open, ring_usable and ring_fixed as far as the system allows; warns of what it does not. */
void ms_reader_ring_open(ms_reader *r);
void ms_reader_ring_close(ms_reader *r);
/* Hands the buffer's transfer to the kernel.  False: the kernel has not got it and the ring is not usable any more. */
bool ms_reader_ring_start(ms_reader *r, unsigned buffer);
/* Asks for an early end of a transfer; it completes in any case. */
void ms_reader_ring_cancel(ms_reader *r, unsigned buffer);
/* Next transfer that completed: its buffer and the kernel's result.  Without `wait` false means none yet; with it
 * this returns false only when nothing but cancels was outstanding. */
bool ms_reader_ring_next(ms_reader *r, bool wait, unsigned *buffer, int *result);
/* Transfers that completed and have not been taken. */
unsigned ms_reader_ring_ready(const ms_reader *r);

#endif
