/* Long passes on borrowed cache slots: the plan promises less than they take, the process keeps the promise, and no bit
 * changes. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <sys/wait.h>

#include "engine_util.h"

enum { CONTEXT = 3000, IDS = 2600, STEPS = 8 };
#define LACKING ((uint64_t)2 << 20) /* of the memory that passes of the whole context take */

static ms_engine_options options_of(uint64_t memory, uint32_t experts) {
    ms_engine_options o;
    ms_engine_options_default(&o, NANO);
    o.context = CONTEXT;
    o.threads = 1;
    o.range_rows = MS_RANGE_AUTO;
    o.experts = experts;
    o.reserve_bytes = 0;
    o.memory_bytes = memory;
    return o;
}

static void plan_of(ms_plan **p, const ms_engine_options *o) {
    ms_error err;
    ok(ms_plan_create(p, o, &err), &err);
}

/* What passes of the whole context take. */
static uint64_t longest_total(uint32_t experts) {
    ms_engine_options o = options_of(0, experts);
    ms_plan *p;
    plan_of(&p, &o);
    assert_true(p->fits && p->range_rows == CONTEXT && p->usual_rows == CONTEXT && p->lent_slots == 0);
    uint64_t total = p->total_bytes;
    ms_plan_destroy(p);
    return total;
}

static void plan_borrows_when_memory_is_short(void **state) {
    (void)state;
    uint64_t all = longest_total(24), least = 0;
    for (uint64_t lacking = 0; lacking < all; lacking += 1u << 21) {
        ms_engine_options o = options_of(all - lacking, 24);
        ms_plan *p;
        plan_of(&p, &o);
        if (p->lent_slots) {
            assert_true(p->fits && p->usual_rows == 512 && p->range_rows > 512 && p->lent_slots <= 24);
            assert_true(p->total_bytes <= all - lacking && p->lent_bytes > 0);
        } else {
            assert_int_equal(p->usual_rows, p->range_rows);
        }
        if (lacking == 0) assert_int_equal(p->lent_slots, 0);
        if (lacking == LACKING) assert_true(p->lent_slots > 0 && p->range_rows == CONTEXT);
        if (!p->fits) least = least ? least : all - lacking;
        if (least) assert_false(p->fits); /* less memory never helps */
        ms_plan_destroy(p);
    }
    assert_true(least > 0);
    ms_engine_options o = options_of(all - LACKING, 0); /* nothing to lend: shorter passes */
    ms_plan *p;
    plan_of(&p, &o);
    assert_int_equal(p->lent_slots, 0);
    ms_plan_destroy(p);
}

static uint64_t borrowed(const rig *r) {
    ms_engine_stats x;
    ms_engine_get_stats(r->e, &x);
    return x.workspace_borrow_bytes;
}

typedef struct stopping {
    ms_session *s;
    uint64_t after;
} stopping;

static void stop(void *arg, ms_progress_unit unit, uint64_t done, uint64_t total) {
    stopping *x = arg;
    (void)unit;
    (void)total;
    if (done == x->after) ms_session_cancel(x->s);
}

/* A prompt, cancelled in its first pass and begun again, some tokens, and more prompt. */
static uint64_t run(const ms_engine_options *o, uint32_t first, bool cancelled, uint64_t *loans) {
    rig r;
    ms_error err;
    uint32_t ids[CONTEXT];
    rig_open(&r, o);
    some_ids(ids, CONTEXT, r.vocab);
    stopping at = {.s = r.s, .after = 4};
    const ms_forward_options stopped = {.progress = stop, .progress_arg = &at};
    if (cancelled) {
        assert_int_equal(ms_session_forward(r.s, ids, first, &stopped, &err), MS_ERR_CANCELLED);
        assert_null(ms_session_logits(r.s));
        ms_session_clear_cancel(r.s);
    }
    ok(ms_session_forward(r.s, ids, first, NULL, &err), &err);
    for (uint32_t i = 0; i < STEPS; i++) ok(ms_session_forward(r.s, ids + first + i, 1, NULL, &err), &err);
    ok(ms_session_forward(r.s, ids + first + STEPS, IDS - first - STEPS, NULL, &err), &err);
    uint64_t f = fingerprint_with_logits(&r);
    *loans = borrowed(&r);
    service_is_sound(&r);
    rig_close(&r);
    return f;
}

static void no_bit_changes(void **state) {
    (void)state;
    for (uint32_t experts = 24; experts <= 32; experts += 8) {
        uint64_t loans, all = longest_total(experts);
        ms_engine_options plain = options_of(0, experts), tight = options_of(all - LACKING, experts);
        plain.range_rows = 100;
        uint64_t want = run(&plain, 1500, false, &loans);
        assert_int_equal(loans, 0);
        assert_int_equal(run(&tight, 1500, false, &loans), want);
        assert_int_equal(loans > 0, experts < 32); /* with every expert cached a second pass reads nothing */
        uint64_t twice = loans;
        assert_int_equal(run(&tight, 1500, true, &loans), want);
        assert_int_equal(loans, twice / 2 * 3);
        tight.no_uring = true;
        assert_int_equal(run(&tight, 513, false, &loans), want);
    }
}

/* With 31 of 32 experts cached a second pass reads one a layer: less than a loan gives up. */
static void not_worth_it(void **state) {
    (void)state;
    rig r;
    ms_error err;
    uint32_t ids[513];
    ms_engine_options o = options_of(longest_total(31) - LACKING, 31);
    rig_open(&r, &o);
    assert_true(ms_engine_plan(r.e)->lent_slots > 1);
    some_ids(ids, 513, r.vocab);
    ok(ms_session_forward(r.s, ids, 513, NULL, &err), &err);
    assert_int_equal(borrowed(&r), 0);
    rig_close(&r);
}

static uint64_t peak_bytes(void) {
    char line[256];
    uint64_t value = 0;
    FILE *f = fopen("/proc/self/status", "r");
    if (!f) return 0;
    while (fgets(line, sizeof line, f))
        if (!strncmp(line, "VmHWM:", 6)) value = strtoull(line + 6, NULL, 10) * 1024;
    (void)fclose(f);
    return value;
}

/* In a child: a process has one peak.  0: it failed. */
static uint64_t peak_of(const ms_engine_options *o) {
    int ends[2], how = 0;
    uint64_t peak = 0;
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        ms_engine *e;
        ms_session *s;
        ms_error err;
        uint32_t ids[CONTEXT];
        some_ids(ids, CONTEXT, MAX_VOCAB);
        ms_status st = ms_engine_open(&e, o, &err);
        if (st == MS_OK) st = ms_session_create(&s, e, &err);
        if (st == MS_OK) st = ms_session_forward(s, ids, CONTEXT, NULL, &err);
        if (st != MS_OK) (void)fprintf(stderr, "%s\n", err.message);
        peak = st == MS_OK ? peak_bytes() : 0;
        _exit(write(ends[1], &peak, sizeof peak) == sizeof peak ? 0 : 1);
    }
    (void)close(ends[1]);
    ssize_t n = read(ends[0], &peak, sizeof peak);
    (void)close(ends[0]);
    assert_int_equal(waitpid(pid, &how, 0), pid);
    return n == sizeof peak && WIFEXITED(how) && WEXITSTATUS(how) == 0 ? peak : 0;
}

/* The buffers of the two differ by nothing but what is lent. */
static void promise_is_kept(void **state) {
    (void)state;
    if (SANITIZED) {
        print_message("not measured: a sanitizer's memory is not the program's\n");
        return;
    }
    uint64_t all = longest_total(24);
    ms_engine_options plain = options_of(all, 24), tight = options_of(all - LACKING, 24);
    uint64_t without = peak_of(&plain), with = peak_of(&tight);
    print_message("peak %.2f MB, with a loan %.2f\n", (double)without / 1e6, (double)with / 1e6);
    assert_true(with > 0 && without <= all && with <= all - LACKING);
    assert_true(with + LACKING - (LACKING >> 2) <= without);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(promise_is_kept), /* before others leave memory behind */
        cmocka_unit_test(plan_borrows_when_memory_is_short),
        cmocka_unit_test(no_bit_changes),
        cmocka_unit_test(not_worth_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
