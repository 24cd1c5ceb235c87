/* The worker pool: every task once, results visible to the caller, more threads than processors, idleness. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/pool.h"

typedef struct loop {
    unsigned *runs; /* plain memory on purpose: a missing barrier shows under the thread sanitizer */
    unsigned threads;
    _Atomic unsigned bad_worker;
    _Atomic unsigned *in_use; /* per worker: is it inside a task now? */
    unsigned spin;
} loop;

static void count_task(void *arg, size_t task, unsigned worker) {
    loop *l = arg;
    if (worker >= l->threads || atomic_fetch_add(&l->in_use[worker], 1) != 0) atomic_fetch_add(&l->bad_worker, 1);
    l->runs[task]++;
    for (volatile unsigned i = 0; i < l->spin; i++) { }
    if (worker < l->threads) atomic_fetch_sub(&l->in_use[worker], 1);
}

static void run_and_check(ms_pool *p, size_t tasks, unsigned repeats, unsigned spin) {
    unsigned threads = ms_pool_threads(p);
    loop l = {.runs = calloc(tasks + 1, sizeof(unsigned)), .threads = threads, .spin = spin};
    l.in_use = calloc(threads, sizeof *l.in_use);
    assert_non_null(l.runs);
    assert_non_null(l.in_use);
    for (unsigned r = 1; r <= repeats; r++) {
        ms_pool_run(p, count_task, &l, tasks);
        for (size_t i = 0; i < tasks; i++) {
            if (l.runs[i] != r) fail_msg("task %zu ran %u times, expected %u", i, l.runs[i], r);
        }
    }
    assert_int_equal(l.runs[tasks], 0);
    assert_int_equal(atomic_load(&l.bad_worker), 0);
    free(l.runs);
    free(l.in_use);
}

static void every_task_runs_once(void **state) {
    (void)state;
    static const unsigned threads[] = {1, 2, 3, 8, 33};
    static const size_t tasks[] = {0, 1, 2, 3, 7, 64, 1000};
    for (size_t t = 0; t < sizeof threads / sizeof threads[0]; t++) {
        ms_pool *p;
        ms_error err;
        assert_int_equal(ms_pool_create(&p, threads[t], &err), MS_OK);
        assert_int_equal(ms_pool_threads(p), threads[t]);
        for (size_t i = 0; i < sizeof tasks / sizeof tasks[0]; i++) run_and_check(p, tasks[i], 40, 20);
        ms_pool_destroy(p);
    }
}

static void many_small_loops(void **state) {
    (void)state;
    ms_pool *p;
    assert_int_equal(ms_pool_create(&p, 2, NULL), MS_OK);
    for (size_t tasks = 2; tasks < 40; tasks++) run_and_check(p, tasks, 500, 0);
    ms_pool_destroy(p);
}

/* Loops far apart: the workers have gone to sleep and must be woken, the last task may end after the caller slept. */
static void loops_after_idleness(void **state) {
    (void)state;
    ms_pool *p;
    assert_int_equal(ms_pool_create(&p, 4, NULL), MS_OK);
    for (int i = 0; i < 100; i++) {
        struct timespec pause = {.tv_nsec = (i % 10) * 50000L};
        (void)nanosleep(&pause, NULL);
        run_and_check(p, 5, 1, (unsigned)(i % 7) * 20000u);
    }
    ms_pool_destroy(p);
}

/* A pool that was told to rest works as well, and rests no longer than until the next loop. */
static void loops_after_rest(void **state) {
    (void)state;
    ms_pool *p;
    assert_int_equal(ms_pool_create(&p, 2, NULL), MS_OK);
    for (int i = 0; i < 2000; i++) {
        ms_pool_rest(p);
        if (i % 3 == 0) ms_pool_rest(p);
        run_and_check(p, 2 + (size_t)(i % 5), 1 + (unsigned)(i % 2), (unsigned)(i % 4) * 5000u);
    }
    ms_pool_destroy(p);
}

static void wait_for_company(void *arg, size_t task, unsigned worker) {
    _Atomic unsigned *arrived = arg;
    (void)task;
    (void)worker;
    uint64_t end = ms_clock_ns() + UINT64_C(10000000000);
    atomic_fetch_add(arrived, 1);
    while (atomic_load(arrived) < 3 && ms_clock_ns() < end) { }
}

/* Three tasks that end only when all three have begun: every sleeper must have been woken. */
static void sleeping_workers_take_part(void **state) {
    (void)state;
    ms_pool *p;
    assert_int_equal(ms_pool_create(&p, 3, NULL), MS_OK);
    for (int i = 0; i < 20; i++) {
        _Atomic unsigned arrived = 0;
        struct timespec pause = {.tv_nsec = 2000000L};
        if (i % 2) ms_pool_rest(p);
        (void)nanosleep(&pause, NULL);
        uint64_t start = ms_clock_ns();
        ms_pool_run(p, wait_for_company, &arrived, 3);
        assert_true(ms_clock_ns() - start < UINT64_C(10000000000));
    }
    ms_pool_destroy(p);
}

static void idle_pool_burns_no_processor(void **state) {
    (void)state;
    ms_pool *p;
    assert_int_equal(ms_pool_create(&p, 8, NULL), MS_OK);
    run_and_check(p, 100, 10, 0);
    struct timespec before, after, pause = {.tv_nsec = 20000000L};
    (void)nanosleep(&pause, NULL); /* lets them finish spinning */
    pause.tv_nsec = 200000000L;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    (void)nanosleep(&pause, NULL);
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    int64_t used_ns = (after.tv_sec - before.tv_sec) * INT64_C(1000000000) + (after.tv_nsec - before.tv_nsec);
    if (used_ns > 20000000) fail_msg("an idle pool used %lld ns of processor time in 200 ms", (long long)used_ns);
    ms_pool_destroy(p);
}

static void create_and_destroy(void **state) {
    (void)state;
    ms_pool *p;
    ms_error err;
    for (int i = 0; i < 50; i++) {
        assert_int_equal(ms_pool_create(&p, 5, &err), MS_OK);
        if (i % 2) run_and_check(p, 9, 1, 0);
        ms_pool_destroy(p);
    }
    assert_int_equal(ms_pool_create(&p, 0, &err), MS_OK);
    assert_true(ms_pool_threads(p) >= 1 && ms_pool_threads(p) <= 256);
    ms_pool_destroy(p);
    assert_int_equal(ms_pool_create(&p, 256, &err), MS_OK);
    run_and_check(p, 1000, 2, 0);
    ms_pool_destroy(p);
    assert_int_equal(ms_pool_create(&p, 257, &err), MS_ERR_USAGE);
    assert_null(p);
    assert_non_null(strstr(err.message, "257"));
    ms_pool_destroy(NULL);
}

static void nothing(void *arg, size_t task, unsigned worker) {
    (void)arg;
    (void)task;
    (void)worker;
}

/* A loose bound, far above the cost and far below what a lost wake-up would take. */
static void an_empty_loop_is_cheap(void **state) {
    (void)state;
    ms_pool *p;
    assert_int_equal(ms_pool_create(&p, 2, NULL), MS_OK);
    enum { LOOPS = 20000 };
    uint64_t start = ms_clock_ns();
    for (int i = 0; i < LOOPS; i++) ms_pool_run(p, nothing, NULL, 4);
    uint64_t each = (ms_clock_ns() - start) / LOOPS;
    print_message("%llu ns for a loop of 4 empty tasks on 2 threads\n", (unsigned long long)each);
    assert_true(each < 200000);
    ms_pool_destroy(p);
}

/* Puts every thread of the process on one processor. */
static void pin_all_threads(size_t cpu) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    DIR *dir = opendir("/proc/self/task");
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));)
        if (e->d_name[0] != '.') assert_int_equal(sched_setaffinity((pid_t)atoi(e->d_name), sizeof one, &one), 0);
    closedir(dir);
}

static double processor_ns(void) {
    struct timespec t;
    assert_int_equal(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t), 0);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* Processor time of a loop and a pause, with every thread on one processor. */
static double shared_processor_ns(unsigned threads) {
    ms_pool *p;
    assert_int_equal(ms_pool_create(&p, threads, NULL), MS_OK);
    pin_all_threads((size_t)sched_getcpu());
    enum { LOOPS = 1000 };
    ms_pool_run(p, nothing, NULL, 2);
    struct timespec pause = {.tv_nsec = 100000}; /* the worker has its turn after every loop */
    double start = processor_ns();
    for (int i = 0; i < LOOPS; i++) {
        ms_pool_run(p, nothing, NULL, 2);
        nanosleep(&pause, NULL);
    }
    double each = (processor_ns() - start) / LOOPS;
    ms_pool_destroy(p);
    return each;
}

/* Woken threads often share the caller's processor while other programs use the rest.  A worker that spins there keeps
 * the caller from running: it must cost no more than one that never spins. */
static void nobody_spins_on_the_callers_processor(void **state) {
    (void)state;
    cpu_set_t before;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    int processors = CPU_COUNT(&before);
    if (processors < 2 || processors > 200) skip(); /* one: never spins; the comparison needs one thread more */
    double two = shared_processor_ns(2);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
    double many = shared_processor_ns((unsigned)processors + 1);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
    print_message("%.0f ns of processor time for a loop on one processor, %.0f ns without spinning\n", two, many);
    assert_true(two < many + 25000); /* spinning takes 40 us */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_task_runs_once),   cmocka_unit_test(many_small_loops),
        cmocka_unit_test(loops_after_idleness),
        cmocka_unit_test(loops_after_rest),   cmocka_unit_test(sleeping_workers_take_part),
        cmocka_unit_test(idle_pool_burns_no_processor), cmocka_unit_test(create_and_destroy),
        cmocka_unit_test(an_empty_loop_is_cheap), cmocka_unit_test(nobody_spins_on_the_callers_processor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
