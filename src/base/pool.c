/* pool.c: worker pool (see pool.h).
 *
 * One loop is described by fn and arg, which the caller writes before it publishes the number of tasks in
 * `remaining`.  A thread claims a task by taking one from `remaining`; a claim that found a positive value
 * always belongs to the loop that is current, because a loop ends only after every claimed task has been
 * subtracted from `unfinished`.  So a worker that is late, asleep or descheduled costs the caller nothing:
 * nobody waits for workers that hold no task.
 *
 * Waiting is spinning for a few tens of microseconds, then a futex.  The two sleep protocols (workers for
 * work, the caller for the last task) are store-then-load on both sides and therefore sequentially
 * consistent.  With more threads than processors nobody spins: the spinner would keep the processor from
 * the thread it waits for.  For the same reason nobody spins on the processor where the other side was last
 * seen, which is where the system puts a woken thread while other programs keep the rest busy.
 */
#include "base/pool.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"

enum {
    POOL_MAX_THREADS = 256,
    POOL_SPIN_NS = 40000,  /* longer than the serial gaps between the loops of one layer, far below a disk read */
    POOL_SPIN_BURST = 32,  /* pauses between two looks at the clock */
    POOL_CACHE_LINE = 64
};

typedef struct pool_worker {
    ms_pool *pool;
    pthread_t thread;
    unsigned index;
} pool_worker;

struct ms_pool {
    _Alignas(POOL_CACHE_LINE) _Atomic int64_t remaining; /* tasks nobody has claimed; may drift below 0 */
    ms_pool_fn *fn;
    void *arg;
    int64_t tasks;
    _Alignas(POOL_CACHE_LINE) _Atomic int64_t unfinished; /* tasks not yet run to their end */
    _Atomic uint32_t caller_sleeps;                       /* futex: 1 while the caller waits for unfinished == 0 */
    _Alignas(POOL_CACHE_LINE) _Atomic uint32_t wake;      /* futex: bumped to wake workers */
    _Atomic uint32_t sleepers;                            /* workers at or near the futex */
    _Atomic bool stop, rest; /* rest: nothing to spin for */
    _Atomic int caller_cpu; /* where the current or last loop was started */
    _Alignas(POOL_CACHE_LINE) _Atomic int helper_cpu; /* where a worker last claimed a task; -1: nowhere yet */
    _Alignas(POOL_CACHE_LINE) unsigned threads;
    unsigned started; /* workers that must be joined */
    uint64_t spin_ns;
    pool_worker workers[POOL_MAX_THREADS - 1];
};

static void futex_wait(_Atomic uint32_t *word, uint32_t expected) {
    /* EAGAIN, EINTR and spurious returns are all the same to the callers: they look again. */
    (void)syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int count) {
    (void)syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

static inline void cpu_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Runs tasks of the current loop until none is left to claim. */
static void work(ms_pool *p, unsigned worker) {
    int64_t done = 0;
    while (atomic_load_explicit(&p->remaining, memory_order_relaxed) > 0) {
        int64_t left = atomic_fetch_sub_explicit(&p->remaining, 1, memory_order_acquire);
        if (left <= 0) break;
        if (done == 0 && worker != p->threads - 1)
            atomic_store_explicit(&p->helper_cpu, sched_getcpu(), memory_order_relaxed);
        p->fn(p->arg, (size_t)(p->tasks - left), worker);
        done++;
    }
    if (done == 0) return;
    /* Sequentially consistent: either this sees caller_sleeps or the caller sees unfinished == 0. */
    if (atomic_fetch_sub(&p->unfinished, done) == done && atomic_load(&p->caller_sleeps)) {
        atomic_store(&p->caller_sleeps, 0);
        futex_wake(&p->caller_sleeps, 1);
    }
}

static bool worker_has_reason(ms_pool *p) {
    return atomic_load(&p->remaining) > 0 || atomic_load(&p->stop);
}

/* Whether to spin for a thread that was last seen on processor `other`. */
static bool may_spin(const ms_pool *p, const _Atomic int *other) {
    return p->spin_ns > 0 && sched_getcpu() != atomic_load_explicit(other, memory_order_relaxed);
}

static void worker_wait(ms_pool *p) {
    if (may_spin(p, &p->caller_cpu)) {
        uint64_t end = ms_clock_ns() + p->spin_ns;
        do {
            for (int i = 0; i < POOL_SPIN_BURST; i++) {
                if (atomic_load_explicit(&p->remaining, memory_order_relaxed) > 0) return;
                cpu_pause();
            }
        } while (ms_clock_ns() < end && !atomic_load_explicit(&p->stop, memory_order_relaxed) &&
                 !atomic_load_explicit(&p->rest, memory_order_relaxed));
    }
    uint32_t seen = atomic_load(&p->wake);
    atomic_fetch_add(&p->sleepers, 1);
    if (!worker_has_reason(p)) futex_wait(&p->wake, seen);
    atomic_fetch_sub(&p->sleepers, 1);
}

static void *worker_main(void *arg) {
    pool_worker *w = arg;
    ms_pool *p = w->pool;
    while (!atomic_load(&p->stop)) {
        work(p, w->index);
        worker_wait(p);
    }
    return NULL;
}

static void wait_for_last_task(ms_pool *p) {
    if (atomic_load_explicit(&p->unfinished, memory_order_acquire) == 0) return;
    if (may_spin(p, &p->helper_cpu)) {
        uint64_t end = ms_clock_ns() + p->spin_ns;
        do {
            for (int i = 0; i < POOL_SPIN_BURST; i++) {
                if (atomic_load_explicit(&p->unfinished, memory_order_acquire) == 0) return;
                cpu_pause();
            }
        } while (ms_clock_ns() < end);
    }
    for (;;) {
        atomic_store(&p->caller_sleeps, 1);
        if (atomic_load(&p->unfinished) == 0) break;
        futex_wait(&p->caller_sleeps, 1);
    }
    atomic_store(&p->caller_sleeps, 0);
}

static void wake_workers(ms_pool *p, size_t wanted) {
    uint32_t asleep = atomic_load(&p->sleepers);
    if (asleep == 0) return;
    atomic_fetch_add(&p->wake, 1);
    futex_wake(&p->wake, wanted < asleep ? (int)wanted : (int)asleep);
}

void ms_pool_run(ms_pool *p, ms_pool_fn *fn, void *arg, size_t tasks) {
    unsigned self = p->threads - 1;
    if (p->threads == 1 || tasks <= 1 || tasks > (size_t)INT64_MAX) {
        for (size_t i = 0; i < tasks; i++) fn(arg, i, self);
        return;
    }
    /* Nobody reads these three now: a worker looks at them only after a successful claim. */
    p->fn = fn;
    p->arg = arg;
    p->tasks = (int64_t)tasks;
    atomic_store_explicit(&p->caller_cpu, sched_getcpu(), memory_order_relaxed);
    atomic_store_explicit(&p->rest, false, memory_order_relaxed);
    atomic_store_explicit(&p->unfinished, (int64_t)tasks, memory_order_relaxed);
    atomic_store(&p->remaining, (int64_t)tasks);
    wake_workers(p, tasks - 1);
    work(p, self);
    wait_for_last_task(p);
}

void ms_pool_rest(ms_pool *p) { atomic_store_explicit(&p->rest, true, memory_order_relaxed); }

/* Processors in this process's affinity mask. */
static unsigned usable_processors(void) {
    for (size_t cpus = 1024; cpus <= 65536; cpus *= 4) {
        cpu_set_t *set = CPU_ALLOC(cpus);
        if (!set) break;
        size_t bytes = CPU_ALLOC_SIZE(cpus);
        int rc = sched_getaffinity(0, bytes, set);
        int saved = errno;
        int n = rc == 0 ? CPU_COUNT_S(bytes, set) : 0;
        CPU_FREE(set);
        if (n > 0) return (unsigned)n;
        if (saved != EINVAL) break; /* EINVAL: the kernel's mask is larger than ours */
    }
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 && n < INT_MAX ? (unsigned)n : 1;
}

static void stop_workers(ms_pool *p) {
    atomic_store(&p->stop, true);
    atomic_fetch_add(&p->wake, 1);
    futex_wake(&p->wake, INT_MAX);
    for (unsigned i = 0; i < p->started; i++) (void)pthread_join(p->workers[i].thread, NULL);
}

/* Workers take no signals: those are for the threads that know what to do with them. */
static int start_workers(ms_pool *p) {
    sigset_t all, old;
    sigfillset(&all);
    int rc = pthread_sigmask(SIG_SETMASK, &all, &old);
    if (rc != 0) return rc;
    for (unsigned i = 0; i + 1 < p->threads && rc == 0; i++) {
        p->workers[i].pool = p;
        p->workers[i].index = i;
        rc = pthread_create(&p->workers[i].thread, NULL, worker_main, &p->workers[i]);
        if (rc == 0) p->started++;
    }
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc;
}

ms_status ms_pool_create(ms_pool **out, unsigned threads, ms_error *err) {
    *out = NULL;
    if (threads > POOL_MAX_THREADS) {
        return ms_fail(err, MS_ERR_USAGE, "threads must be 0 to %d, found %u", POOL_MAX_THREADS, threads);
    }
    unsigned processors = usable_processors();
    if (threads == 0) threads = processors < POOL_MAX_THREADS ? processors : POOL_MAX_THREADS;
    ms_pool *p = aligned_alloc(_Alignof(ms_pool), sizeof *p);
    if (!p) return ms_fail_memory(err, "worker pool", sizeof *p);
    *p = (ms_pool){.threads = threads, .helper_cpu = -1, .spin_ns = threads <= processors ? POOL_SPIN_NS : 0};
    int rc = start_workers(p);
    if (rc != 0) {
        unsigned started = p->started;
        ms_pool_destroy(p);
        return ms_fail_errno(err, MS_ERR_MEMORY, rc, "cannot start worker thread %u of %u", started + 1, threads - 1);
    }
    *out = p;
    return MS_OK;
}

void ms_pool_destroy(ms_pool *p) {
    if (!p) return;
    stop_workers(p);
    free(p);
}

unsigned ms_pool_threads(const ms_pool *p) { return p->threads; }
