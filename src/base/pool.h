/* pool.h: a worker pool for loops over independent tasks.
 *
 * Owns: threads-1 workers; the calling thread is the last one.  Threads: ms_pool_run from one thread at a time.
 * Invariants: every task index runs exactly once; ms_pool_run returns after all have; which thread runs which
 *   task is not defined, so tasks must not depend on it.  Workers spin briefly, then sleep.
 */
#ifndef MS_BASE_POOL_H
#define MS_BASE_POOL_H

#include "base/error.h"

typedef struct ms_pool ms_pool;

/* threads: 1..256; 0: the number of online processors this process may use. */
ms_status ms_pool_create(ms_pool **out, unsigned threads, ms_error *err);
void ms_pool_destroy(ms_pool *p);
unsigned ms_pool_threads(const ms_pool *p);

/* Calls fn(arg, task, worker) for task in [0, tasks); worker < ms_pool_threads tells which scratch to use. */
typedef void ms_pool_fn(void *arg, size_t task, unsigned worker);
void ms_pool_run(ms_pool *p, ms_pool_fn *fn, void *arg, size_t tasks);
/* The caller is about to wait for something else: workers sleep at once, until the next loop. */
void ms_pool_rest(ms_pool *p);

#endif
