/* job_progress.h: one line about long jobs on standard error: done, rate, time left.  Redrawn four times a second on a
 * terminal, once a minute elsewhere.  Threads: one at a time. */
#ifndef MS_APPS_JOB_PROGRESS_H
#define MS_APPS_JOB_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct job_progress {
    uint64_t start_ns, last_ns, first_bytes;
    bool terminal, begun;
} job_progress;

job_progress job_progress_begin(void);
/* A ms_mzg2_job_options.progress: false after a signal. */
bool job_progress_show(void *arg, uint64_t done_bytes, uint64_t total_bytes);
void job_progress_end(job_progress *p);

#endif
