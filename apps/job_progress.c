#include "job_progress.h"

#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "interrupt.h"

job_progress job_progress_begin(void) {
    job_progress p = {.start_ns = ms_clock_ns(), .terminal = isatty(STDERR_FILENO) == 1};
    p.last_ns = p.start_ns;
    return p;
}

bool job_progress_show(void *arg, uint64_t done, uint64_t total) {
    job_progress *p = arg;
    uint64_t now = ms_clock_ns(), every = p->terminal ? 250000000ull : 60000000000ull;
    if (!p->begun) { /* what an earlier run has done counts neither for rate nor for time left */
        p->begun = true;
        p->first_bytes = done;
    }
    if (now - p->last_ns >= every) {
        p->last_ns = now;
        double seconds = (double)(now - p->start_ns) / 1e9,
               rate = (double)(done - p->first_bytes) / (seconds > 0 ? seconds : 1);
        fprintf(stderr, "%s%.2f of %.2f GB, %.3f GB/s, %.0f s left%s", p->terminal ? "\r\033[K" : "",
                (double)done / 1e9, (double)total / 1e9, rate / 1e9, rate > 0 ? (double)(total - done) / rate : 0.0,
                p->terminal ? "" : "\n");
    }
    return ms_interrupt_code() == 0;
}

void job_progress_end(job_progress *p) {
    if (p->terminal && p->last_ns != p->start_ns) fputs("\r\033[K", stderr);
}
