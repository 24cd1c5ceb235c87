/* An idle connection stays while the accepting thread looks for slow ones: its clock may begin between that thread's
 * look at the time and its look at the connection.
 *
 * The order is forced: this program's own clock_gettime holds the accepting thread at each look at the time, with the
 * earlier time in hand, while requests end on a connection. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdatomic.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "server_fixture.h"

enum { HOLD_MS = 250, REQUESTS = 60, BETWEEN_MS = 30 };

static _Thread_local bool accepts; /* this is the accepting thread */
static atomic_bool holding;
static atomic_uint held;

int accept4(int fd, struct sockaddr *address, socklen_t *len, int flags) {
    accepts = true;
    return (int)syscall(SYS_accept4, fd, address, len, flags);
}

int clock_gettime(clockid_t clock, struct timespec *t) {
    int code = (int)syscall(SYS_clock_gettime, clock, t);
    if (accepts && clock == CLOCK_MONOTONIC && atomic_load(&holding)) {
        (void)atomic_fetch_add(&held, 1);
        pause_ms(HOLD_MS);
    }
    return code;
}

static void health(int fd) {
    http_response r;
    assert_true(http_puts(fd, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n"));
    http_read(fd, &r, false);
    assert_int_equal(r.status, 200); /* 0: the connection was cut */
    http_free(&r);
}

static void an_idle_connection_stays(void **state) {
    (void)state;
    fixture f;
    fixture_init(&f);
    fixture_start(&f);
    fixture_wait_ready(&f);
    int one = http_connect(f.port);
    assert_true(one >= 0);
    health(one);
    atomic_store(&holding, true);
    int two = http_connect(f.port); /* makes the accepting thread look */
    assert_true(two >= 0);
    for (int i = 0; i < REQUESTS; i++) {
        health(one);
        pause_ms(BETWEEN_MS);
    }
    atomic_store(&holding, false);
    assert_true(atomic_load(&held) > 0);
    health(two);
    health(one);
    (void)close(one);
    (void)close(two);
    fixture_free(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(an_idle_connection_stays)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
