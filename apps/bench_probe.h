/* bench_probe.h: what the measurements of `moonshine bench` share: rates of disk and memory, medians, a CSV file.
 *
 * Threads: the calling thread; ms_probe_memory starts its own.
 * Errors: as the library gives them.
 */
#ifndef MS_APPS_BENCH_PROBE_H
#define MS_APPS_BENCH_PROBE_H

#include "base/error.h"
#include "base/text.h"
#include "session/engine.h"

/* What may be read: files, and the experts in them when they are a model's shards. */
typedef struct ms_probe_files {
    char **paths;
    uint64_t *sizes;
    size_t count;
    bool has_model; /* MODEL was a checkpoint directory */
    ms_model model;
} ms_probe_files;

/* `path`: a checkpoint directory or one regular file. */
ms_status ms_probe_files_open(ms_probe_files *out, const char *path, ms_error *err);
void ms_probe_files_close(ms_probe_files *f);

typedef struct ms_probe_point {
    uint64_t block_bytes; /* of one read; ignored with experts */
    bool experts;         /* read whole experts where they lie, which is not on a block boundary */
    unsigned depth;       /* reads in flight; 0: one pread after the other, without the product's reader */
    uint64_t bytes;       /* to read in all, at least; 8 reads and twice the depth at least */
    uint64_t seed;        /* where in the sequence of places to begin: other seeds read other places */
    bool buffered, no_uring;
} ms_probe_point;

typedef struct ms_probe_rate {
    double bytes_per_second;
    uint64_t reads, read_bytes;
    bool direct, uring, registered;
} ms_probe_rate;

/* Whether a file is large enough for the point. */
bool ms_probe_disk_possible(const ms_probe_files *f, const ms_probe_point *p);
/* Every place is read once before any is read again; neighbours in time are not neighbours on disk. */
ms_status ms_probe_disk(const ms_probe_files *f, const ms_probe_point *p, ms_probe_rate *out, ms_error *err);

/* Bytes a second that `threads` threads (0: all processors) read from memory; best of several passes over much more
 * than any cache holds. */
ms_status ms_probe_memory(unsigned threads, double *bytes_per_second, ms_error *err);

/* CPU seconds of the process so far, all threads, in the program and in the kernel. */
double ms_probe_cpu_seconds(void);

/* Sorts v.  The mean of the middle two when count is even; count > 0. */
double ms_probe_median(double *v, size_t count);

/* One line about the machine: system, processors, load. */
void ms_probe_machine(ms_text *t);

/* Writes the file in one step, replacing what was there.  NULL path: nothing. */
ms_status ms_probe_save_file(const char *path, const ms_text *text, ms_error *err);

#endif
