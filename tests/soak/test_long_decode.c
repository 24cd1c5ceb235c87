/* 20,000 decoded tokens in one session, experts streaming all the while: memory does not grow, and the same work costs
 * at the end what it cost at the beginning.  Attention over a longer past costs more, so equal work is compared: the
 * first tokens again after the session was reset. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <time.h>

#include "moonshine/moonshine.h"

enum { TOKENS = 20000, WINDOW = 1000, ROUNDS = 5 };

static void ok(ms_status st, const ms_error *err) {
    if (st != MS_OK) fail_msg("%s", err->message);
}

static double cpu_seconds(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static uint64_t resident_bytes(void) {
    unsigned long long size, pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%llu %llu", &size, &pages), 2);
    (void)fclose(f);
    return pages * 4096;
}

/* Tokens that no sampler chooses: they go on for ever and are the same every time. */
static uint32_t token(uint32_t i, uint32_t vocab) { return (uint32_t)(((uint64_t)i * 2654435761u >> 7) % vocab); }

static double decode(ms_session *s, uint32_t first, uint32_t count, uint32_t vocab) {
    ms_error err;
    double start = cpu_seconds();
    for (uint32_t i = first; i < first + count; i++) {
        uint32_t id = token(i, vocab);
        ok(ms_session_forward(s, &id, 1, NULL, &err), &err);
    }
    return cpu_seconds() - start;
}

static double least_of(ms_session *s, uint32_t vocab) {
    double least = 1e9;
    for (int i = 0; i < ROUNDS; i++) {
        ms_session_reset(s);
        double t = decode(s, 0, WINDOW, vocab);
        if (t < least) least = t;
    }
    ms_session_reset(s);
    return least;
}

static void no_drift(void **state) {
    (void)state;
    ms_engine_options o;
    ms_engine *e;
    ms_session *s;
    ms_model_info info;
    ms_error err;
    ms_engine_options_default(&o, "models/k3-nano");
    o.context = TOKENS;
    o.experts = 12;
    o.threads = 1;
    o.range_rows = 1;
    ok(ms_engine_open(&e, &o, &err), &err);
    ok(ms_session_create(&s, e, &err), &err);
    ms_engine_info(e, &info);
    double before = least_of(s, info.vocab);
    uint64_t resident = resident_bytes();
    for (uint32_t at = 0; at < TOKENS; at += WINDOW) {
        double t = decode(s, at, WINDOW, info.vocab);
        print_message("%5u tokens: %.3f ms of processor time a token, %llu KiB resident\n", at + WINDOW,
                      1e3 * t / WINDOW, (unsigned long long)(resident_bytes() >> 10));
        assert_true(resident_bytes() <= resident + (1 << 20));
    }
    assert_int_equal(ms_session_position(s), TOKENS);
    double after = least_of(s, info.vocab);
    print_message("the first %d tokens: %.3f ms a token before, %.3f after\n", WINDOW, 1e3 * before / WINDOW,
                  1e3 * after / WINDOW);
    assert_true(after < 1.3 * before);
    ms_session_destroy(s);
    ms_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_drift)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
