/* Orders of threads that are rare, forced: this program has functions of its own in front of the system's, which hold a
 * thread where another one must not get ahead of it. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "server_fixture.h"

enum { HOLD_MS = 250, REQUESTS = 60, BETWEEN_MS = 30 };

static _Thread_local bool accepts; /* this is the accepting thread */
static _Thread_local bool creates; /* this is the thread that begins the server */
static atomic_bool holding;        /* the accepting thread, at each look at the time */
static atomic_uint held;

int accept4(int fd, struct sockaddr *address, socklen_t *len, int flags) {
    int (*real)(int, struct sockaddr *, socklen_t *, int);
    *(void **)&real = dlsym(RTLD_NEXT, "accept4");
    accepts = true;
    return real(fd, address, len, flags);
}

/* The accepting thread goes on with the earlier time in hand. */
int clock_gettime(clockid_t clock, struct timespec *t) {
    int (*real)(clockid_t, struct timespec *);
    *(void **)&real = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(clock, t);
    if (accepts && clock == CLOCK_MONOTONIC && atomic_load(&holding)) {
        (void)atomic_fetch_add(&held, 1);
        pause_ms(HOLD_MS);
    }
    return code;
}

int pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *), void *arg) {
    int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    *(void **)&real = dlsym(RTLD_NEXT, "pthread_create");
    if (creates) pause_ms(HOLD_MS);
    return real(thread, how, run, arg);
}

static void health(int fd, int status) {
    http_response r;
    assert_true(http_puts(fd, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n"));
    http_read(fd, &r, false);
    assert_int_equal(r.status, status); /* 0: the connection was cut */
    http_free(&r);
}

/* The clock of an idle connection may begin between the accepting thread's look at the time and its look at the
 * connection. */
static void an_idle_connection_stays(void **state) {
    (void)state;
    fixture f;
    fixture_init(&f);
    fixture_start(&f);
    fixture_wait_ready(&f);
    int one = http_connect(f.port);
    assert_true(one >= 0);
    health(one, 200);
    atomic_store(&holding, true);
    int two = http_connect(f.port); /* makes the accepting thread look */
    assert_true(two >= 0);
    for (int i = 0; i < REQUESTS; i++) {
        health(one, 200);
        pause_ms(BETWEEN_MS);
    }
    atomic_store(&holding, false);
    assert_true(atomic_load(&held) > 0);
    health(two, 200);
    health(one, 200);
    (void)close(one);
    (void)close(two);
    fixture_free(&f);
}

/* A port that was free a moment ago. */
static uint32_t free_port(void) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, len), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &len), 0);
    (void)close(fd);
    return ntohs(a.sin_port);
}

typedef struct early {
    uint32_t port;
    int status; /* of its answer */
} early;

/* Connects as soon as somebody listens. */
static void *come_early(void *arg) {
    early *e = arg;
    http_response r;
    int fd = -1;
    for (int i = 0; i < HTTP_LIMIT_MS && fd < 0; i++) {
        fd = http_connect(e->port);
        if (fd < 0) pause_ms(1);
    }
    if (fd < 0 || !http_puts(fd, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n")) return NULL;
    http_read(fd, &r, false);
    e->status = r.status;
    http_free(&r);
    (void)close(fd);
    return NULL;
}

/* Between listening and the thread that loads the model. */
static void the_first_comer_is_answered(void **state) {
    (void)state;
    fixture f;
    pthread_t thread;
    early e = {.port = free_port()};
    fixture_init(&f);
    f.o.port = e.port;
    assert_int_equal(pthread_create(&thread, NULL, come_early, &e), 0);
    creates = true;
    fixture_start(&f);
    creates = false;
    fixture_wait_ready(&f);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(e.status == 200 || e.status == 503);
    fixture_free(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_idle_connection_stays),
        cmocka_unit_test(the_first_comer_is_answered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
