/* 24 clients that ask, stream, leave in the middle, and send nonsense, for the seconds in the first argument or
 * SOAK_SECONDS (600): every answer is that client's own, health is quick throughout, and memory does not grow by 2 %.
 *
 * Needs no weights: the engine is a script. */
#include <malloc.h>

#include "../server/http_client.c"
#include "../server/script_engine.c"
#include "../server/server_fixture.c"

enum { CLIENTS = 24 };

static fixture f;
static unsigned seconds = 600;
static atomic_bool ending;
static atomic_uint answers, busy, left, refused, faults, slow_health;

static uint32_t next_random(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static void fault(const char *what, const http_response *r) {
    (void)atomic_fetch_add(&faults, 1);
    (void)fprintf(stderr, "%s: %d %.300s\n", what, r->status, r->body.data ? r->body.data : "");
}

/* The response text: of a stream its pieces joined. */
static void join_content(const http_response *r, ms_text *out) {
    static const char key[] = "\"content\":\"";
    for (const char *s = r->body.data; s && (s = strstr(s, key));) {
        s += sizeof key - 1;
        ms_text_append(out, s, strcspn(s, "\""));
    }
    ms_text_append(out, "", 0);
}

static void ask_and_check(unsigned client, bool stream) {
    http_response r;
    char body[512], expected[64];
    (void)snprintf(body, sizeof body,
                   "{\"model\":\"moonshine\",\"messages\":[{\"role\":\"user\",\"content\":\"client%02u asks\"}]%s}",
                   client, stream ? ",\"stream\":true" : "");
    (void)snprintf(expected, sizeof expected, "This is own%02u and nobody else's.", client);
    http_call(f.port, "POST", "/v1/chat/completions", NULL, body, &r);
    if (r.status == 503) {
        (void)atomic_fetch_add(&busy, 1);
    } else {
        ms_text content = {0};
        join_content(&r, &content);
        bool whole = r.status == 200 && (!stream || strstr(r.body.data, "[DONE]"));
        if (!whole || !content.data || strcmp(content.data, expected) != 0)
            fault("not this client's answer", &r);
        else
            (void)atomic_fetch_add(&answers, 1);
        ms_text_free(&content);
    }
    http_free(&r);
}

static void ask_and_leave(unsigned client, uint32_t *state) {
    char text[512], body[256];
    (void)snprintf(
        body, sizeof body,
        "{\"model\":\"moonshine\",\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"client%02u asks\"}]}",
        client);
    int n =
        snprintf(text, sizeof text, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n%s",
                 strlen(body), body);
    int fd = http_connect(f.port);
    if (fd < 0) return;
    size_t part = next_random(state) % 2 ? (size_t)n : next_random(state) % (size_t)n;
    (void)http_send(fd, text, part);
    pause_ms(next_random(state) % 20);
    if (next_random(state) % 2) (void)shutdown(fd, SHUT_WR);
    (void)close(fd);
    (void)atomic_fetch_add(&left, 1);
}

static void nonsense(uint32_t *state) {
    static const char *const bodies[] = {"", "{", "[]", "{\"model\":\"x\"}",
                                         "{\"model\":\"moonshine\",\"messages\":[{}]}"};
    http_response r;
    http_call(f.port, "POST", "/v1/chat/completions", NULL, bodies[next_random(state) % 5], &r);
    if (r.status < 400 || r.status >= 500)
        fault("nonsense", &r);
    else
        (void)atomic_fetch_add(&refused, 1);
    http_free(&r);
}

static void *client_loop(void *arg) {
    unsigned client = (unsigned)(uintptr_t)arg;
    uint32_t state = client + 1;
    while (!atomic_load(&ending)) {
        switch (next_random(&state) % 5) {
        case 0:
            ask_and_leave(client, &state);
            break;
        case 1:
            nonsense(&state);
            break;
        case 2:
            ask_and_check(client, true);
            break;
        default:
            ask_and_check(client, false);
        }
        pause_ms(next_random(&state) % 50);
    }
    return NULL;
}

/* Without what an allocator keeps for later, or in its caches of freed blocks (main() below). */
static size_t resident_bytes(void) {
    (void)malloc_trim(0);
    unsigned long all = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file) {
        if (fscanf(file, "%lu %lu", &all, &resident) != 2) resident = 0;
        (void)fclose(file);
    }
    return resident * (size_t)sysconf(_SC_PAGESIZE);
}

static void clients(void **state) {
    (void)state;
    pthread_t threads[CLIENTS];
    fixture_init(&f);
    for (unsigned i = 0; i < CLIENTS; i++) {
        char key[32], reply[64];
        (void)snprintf(key, sizeof key, "client%02u", i);
        (void)snprintf(reply, sizeof reply, "This is own%02u and nobody else's.", i);
        script_say(&f.engine, key, "a thought", reply);
    }
    atomic_store(&f.engine.token_us, 200);
    fixture_start(&f);
    fixture_wait_ready(&f);
    for (unsigned i = 0; i < CLIENTS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, client_loop, (void *)(uintptr_t)i), 0);
    size_t warm = 0, end = 0; /* the most in the first and in the second half: what is in flight comes and goes */
    uint64_t begin = ms_clock_ns(), slowest = 0;
    for (uint64_t at = 0; at < seconds * UINT64_C(1000000000); at = ms_clock_ns() - begin) {
        http_response r;
        uint64_t start = ms_clock_ns();
        http_call(f.port, "GET", "/health", NULL, NULL, &r);
        uint64_t took = ms_clock_ns() - start;
        if (took > slowest) slowest = took;
        if (r.status != 200 || took > UINT64_C(250000000)) (void)atomic_fetch_add(&slow_health, 1);
        http_free(&r);
        size_t *most = at < seconds * UINT64_C(500000000) ? &warm : &end, now = resident_bytes();
        if (now > *most) *most = now;
        pause_ms(100);
    }
    atomic_store(&ending, true);
    for (unsigned i = 0; i < CLIENTS; i++) (void)pthread_join(threads[i], NULL);
    fixture_wait_idle(&f);
    print_message("%u s: answers %u, busy %u, left %u, refused %u, slowest health %.1f ms, resident %zu -> %zu KiB\n",
                  seconds, atomic_load(&answers), atomic_load(&busy), atomic_load(&left), atomic_load(&refused),
                  (double)slowest / 1e6, warm >> 10, end >> 10);
    assert_int_equal(atomic_load(&faults), 0);
    assert_int_equal(atomic_load(&slow_health), 0);
    assert_true(atomic_load(&answers) > 20);
    assert_true(end <= warm + warm / 50);
    fixture_free(&f);
}

int main(int argc, char **argv) {
    const char *given = argc > 1 ? argv[1] : getenv("SOAK_SECONDS");
    if (given) seconds = (unsigned)strtoul(given, NULL, 10);
    if (!seconds) return 2;
    /* glibc keeps freed blocks by thread and size, and fills that for many minutes: 0.3 MB of 12.8 in ten, while what
     * is in use stays the same. */
    if (!getenv("GLIBC_TUNABLES") && setenv("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0", 1) == 0)
        (void)execv("/proc/self/exe", argv);
    const struct CMUnitTest tests[] = {cmocka_unit_test(clients)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
