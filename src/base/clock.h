/* clock.h: monotonic time for measurements and bounded waits.  Threads: any. */
#ifndef MS_BASE_CLOCK_H
#define MS_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

/* Nanoseconds since an unspecified start; never goes back. */
static inline uint64_t ms_clock_ns(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

#endif
