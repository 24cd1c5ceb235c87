/* The reader: every misalignment in every mode, end of file, failures, fallbacks, cancelling, destroying. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "io/reader.h"

enum { FILE_BYTES = 300001, MAX_READ = 20000 };

static char dir[64], path[2][128];
static uint8_t *content[2];

/* What this system gives, found without the reader: containers often forbid io_uring, some file systems have no
 * O_DIRECT.  The reader must then say so and deliver all the same. */
static bool have_direct, have_ring;

static void look_at_system(void) {
    struct io_uring ring;
    have_ring = io_uring_queue_init(4, &ring, 0) == 0;
    if (have_ring) io_uring_queue_exit(&ring);
    int fd = open(path[0], O_RDONLY | O_DIRECT);
    void *page = aligned_alloc(4096, 4096);
    have_direct = fd >= 0 && page && pread(fd, page, 4096, 0) == 4096;
    free(page);
    if (fd >= 0) (void)close(fd);
    print_message("O_DIRECT under /tmp: %s, io_uring: %s\n", have_direct ? "yes" : "no", have_ring ? "yes" : "no");
}

typedef struct mode {
    const char *name;
    bool buffered, no_uring;
} mode;

static const mode modes[] = {{"direct", false, false}, {"buffered", true, false}, {"pread", false, true},
                             {"buffered pread", true, true}};
enum { MODES = sizeof modes / sizeof modes[0] };

static int make_files(void **state) {
    (void)state;
    strcpy(dir, "/tmp/ms-reader-XXXXXX");
    if (!mkdtemp(dir)) return -1;
    for (int f = 0; f < 2; f++) {
        (void)snprintf(path[f], sizeof path[f], "%s/file-%d", dir, f);
        content[f] = malloc(FILE_BYTES);
        if (!content[f]) return -1;
        uint64_t x = (uint64_t)f + 1;
        for (size_t i = 0; i < FILE_BYTES; i++) {
            x = x * UINT64_C(6364136223846793005) + 1;
            content[f][i] = (uint8_t)(x >> 56);
        }
        FILE *out = fopen(path[f], "wb");
        if (!out || fwrite(content[f], 1, FILE_BYTES, out) != FILE_BYTES || fclose(out) != 0) return -1;
    }
    look_at_system();
    return 0;
}

static int remove_files(void **state) {
    (void)state;
    for (int f = 0; f < 2; f++) {
        free(content[f]);
        (void)unlink(path[f]);
    }
    return rmdir(dir);
}

/* ------------------------------------------------------------------ helpers */

typedef struct rig {
    ms_reader *r;
    uint8_t *staging;
    unsigned warnings;
    char warning[256];
} rig;

static void count_warning(void *arg, const char *text) {
    rig *g = arg;
    g->warnings++;
    (void)snprintf(g->warning, sizeof g->warning, "%.255s", text);
}

/* A failed assertion jumps back to the list of tests, which a child must not go on with. */
static bool is_child;

static void rig_failed(const char *why) {
    if (!is_child) fail_msg("%s", why);
    (void)fprintf(stderr, "child: %s\n", why);
    _exit(1);
}

static void open_rig(rig *g, const mode *m, unsigned depth, unsigned buffers, size_t length) {
    ms_error err;
    unsigned file;
    *g = (rig){0};
    ms_reader_options o = {.depth = depth, .buffer_count = buffers, .buffer_bytes = ms_reader_buffer_bytes(length),
                           .buffered = m->buffered, .no_uring = m->no_uring, .warn = count_warning, .warn_arg = g};
    g->staging = aligned_alloc(MS_READER_ALIGN, o.buffer_bytes * buffers);
    if (!g->staging) rig_failed("out of memory");
    memset(g->staging, 0x5a, o.buffer_bytes * buffers);
    o.staging = g->staging;
    if (ms_reader_create(&g->r, &o, &err) != MS_OK) rig_failed(err.message);
    for (unsigned i = 0; i < 2; i++) {
        if (ms_reader_add_file(g->r, path[i], &file, &err) != MS_OK) rig_failed(err.message);
        if (file != i) rig_failed("files are not numbered in order");
    }
}

static void close_rig(rig *g) {
    ms_reader_destroy(g->r);
    free(g->staging);
}

/* Fallbacks that this system asks for. */
static unsigned usual_warnings(const mode *m) {
    return (unsigned)(!have_direct && !m->buffered) + (unsigned)(!have_ring && !m->no_uring);
}

static ms_reader_stats stats_of(const rig *g) {
    ms_reader_stats s;
    ms_reader_get_stats(g->r, &s);
    return s;
}

static void submit(rig *g, unsigned file, uint64_t offset, uint64_t length, uint64_t tag) {
    ms_error err;
    ms_read_request q = {.file = file, .offset = offset, .length = length, .tag = tag};
    if (ms_reader_submit(g->r, &q, 1, &err) != MS_OK) fail_msg("%s", err.message);
}

static ms_read_done next(rig *g) {
    ms_read_done d;
    ms_error err;
    if (ms_reader_next(g->r, &d, &err) != MS_OK) fail_msg("%s", err.message);
    return d;
}

static void expect_bytes(const ms_read_done *d, unsigned file, uint64_t offset, uint64_t length) {
    if (d->status != MS_OK) fail_msg("%s", d->error.message);
    assert_true(d->length == length);
    if (memcmp(d->data, content[file] + offset, length) != 0) {
        fail_msg("file %u offset %llu length %llu: wrong bytes", file, (unsigned long long)offset,
                 (unsigned long long)length);
    }
}

static void expect_idle(rig *g) {
    ms_read_done d;
    ms_error err;
    bool got = true;
    assert_true(ms_reader_pending(g->r) == 0);
    assert_int_equal(ms_reader_next(g->r, &d, &err), MS_ERR_USAGE);
    assert_int_equal(ms_reader_poll(g->r, &d, &got, &err), MS_OK);
    assert_false(got);
}

/* ------------------------------------------------------------------ right bytes */

static void every_misalignment(void **state) {
    (void)state;
    static const uint64_t lengths[] = {1, 511, 513, 4095, 4096, 4097, 8191, 12289};
    enum { LENGTHS = sizeof lengths / sizeof lengths[0], COUNT = 4098 * LENGTHS };
    ms_read_request *q = malloc(COUNT * sizeof *q);
    assert_non_null(q);
    for (size_t i = 0; i < COUNT; i++) {
        q[i] = (ms_read_request){.file = i % 2, .offset = i / LENGTHS, .length = lengths[i % LENGTHS], .tag = i};
    }
    for (size_t m = 0; m < MODES; m++) {
        rig g;
        uint64_t bytes = 0;
        uint8_t *seen = calloc(COUNT, 1);
        assert_non_null(seen);
        open_rig(&g, &modes[m], 16, 20, 12289);
        assert_int_equal(ms_reader_submit(g.r, q, COUNT, NULL), MS_OK);
        assert_true(ms_reader_pending(g.r) == COUNT);
        for (size_t i = 0; i < COUNT; i++) {
            ms_read_done d = next(&g);
            assert_true(d.tag < COUNT && !seen[d.tag]);
            seen[d.tag] = 1;
            expect_bytes(&d, q[d.tag].file, q[d.tag].offset, q[d.tag].length);
            bytes += d.length;
            ms_reader_release(g.r, d.buffer);
        }
        expect_idle(&g);
        ms_reader_stats s = stats_of(&g);
        assert_true(s.reads == COUNT && s.read_bytes == bytes && s.failed_reads == 0 && s.device_bytes >= bytes);
        bool direct = have_direct && !modes[m].buffered;
        assert_true(s.uring == (have_ring && !modes[m].no_uring) && s.direct == direct);
        assert_int_equal(s.buffered_files, direct ? 0 : 2);
        if (g.warnings != usual_warnings(&modes[m])) fail_msg("%s: warning: %s", modes[m].name, g.warning);
        close_rig(&g);
        free(seen);
    }
    free(q);
}

static void depths_and_buffers(void **state) {
    (void)state;
    for (size_t m = 0; m < MODES; m++) {
        for (unsigned depth = 1; depth <= 16; depth++) {
            static const unsigned buffer_counts[] = {1, 2, 7, 40};
            for (size_t b = 0; b < 4; b++) {
                rig g;
                bool polled = depth % 2 == 0;
                open_rig(&g, &modes[m], depth, buffer_counts[b], MAX_READ);
                for (uint64_t i = 0; i < 50; i++) submit(&g, i % 2, i * 5003, 1 + i * 397, i);
                for (unsigned done = 0; done < 50;) {
                    ms_read_done d;
                    bool got = true;
                    if (polled) assert_int_equal(ms_reader_poll(g.r, &d, &got, NULL), MS_OK);
                    else d = next(&g);
                    if (!got) continue;
                    expect_bytes(&d, d.tag % 2, d.tag * 5003, 1 + d.tag * 397);
                    ms_reader_release(g.r, d.buffer);
                    ms_reader_release(g.r, d.buffer); /* twice is harmless */
                    ms_reader_release(g.r, 40);
                    done++;
                }
                expect_idle(&g);
                close_rig(&g);
            }
        }
    }
}

/* The queue is emptied in part and filled again, past its end and beyond its size. */
static void submitting_in_waves(void **state) {
    (void)state;
    for (size_t m = 0; m < MODES; m++) {
        rig g;
        uint64_t submitted = 0, done = 0;
        open_rig(&g, &modes[m], 1, 1, 4097);
        for (unsigned wave = 1; wave <= 20; wave++) {
            for (unsigned i = 0; i < wave * 7; i++, submitted++) {
                submit(&g, 0, submitted % 2000 * 101, 100, submitted);
            }
            for (unsigned i = 0; i < wave * 5; i++, done++) {
                ms_read_done d = next(&g);
                assert_true(d.tag == done); /* one at a time: in submit order */
                expect_bytes(&d, 0, d.tag % 2000 * 101, 100);
                ms_reader_release(g.r, d.buffer);
            }
            assert_true(ms_reader_pending(g.r) == submitted - done);
        }
        close_rig(&g);
    }
}

static void end_of_file(void **state) {
    (void)state;
    for (size_t m = 0; m < MODES; m++) {
        rig g;
        open_rig(&g, &modes[m], 4, 4, FILE_BYTES);
        for (uint64_t length = 1; length < 9000; length += 97) {
            submit(&g, 0, FILE_BYTES - length, length, 0);
            ms_read_done d = next(&g);
            expect_bytes(&d, 0, FILE_BYTES - length, length);
            ms_reader_release(g.r, d.buffer);
        }
        submit(&g, 1, 0, FILE_BYTES, 0);
        ms_read_done d = next(&g);
        expect_bytes(&d, 1, 0, FILE_BYTES);
        assert_true(stats_of(&g).resubmits == 0); /* a direct read that covers what was wanted is not short */
        close_rig(&g);
    }
}

static void buffers_never_overlap(void **state) {
    (void)state;
    rig g;
    ms_read_done d[8];
    open_rig(&g, &modes[0], 8, 8, 5000);
    for (uint64_t i = 0; i < 8; i++) submit(&g, 0, 4095 + i * 9001, 5000, i);
    for (int i = 0; i < 8; i++) d[i] = next(&g);
    for (int i = 0; i < 8; i++) expect_bytes(&d[i], 0, 4095 + d[i].tag * 9001, 5000); /* all still held */
    close_rig(&g);
}

static void the_smallest_buffer_is_enough(void **state) {
    (void)state;
    assert_true(ms_reader_buffer_bytes(1) == 4096);
    assert_true(ms_reader_buffer_bytes(2) == 8192);
    assert_true(ms_reader_buffer_bytes(4096) == 8192);
    assert_true(ms_reader_buffer_bytes(4097) == 8192);
    assert_true(ms_reader_buffer_bytes(4098) == 12288);
    assert_true(ms_reader_buffer_bytes(SIZE_MAX) % MS_READER_ALIGN == 0); /* refused later, not wrapped */
    assert_true(ms_reader_buffer_bytes(SIZE_MAX) > SIZE_MAX / 2);
}

/* ------------------------------------------------------------------ refusals */

static void wrong_requests_are_refused_whole(void **state) {
    (void)state;
    static const ms_read_request wrong[] = {
        {.file = 2, .offset = 0, .length = 1},
        {.file = 0, .offset = 0, .length = 0},
        {.file = 0, .offset = FILE_BYTES, .length = 1},
        {.file = 0, .offset = FILE_BYTES - 1, .length = 2},
        {.file = 0, .offset = UINT64_MAX, .length = 2},
        {.file = 0, .offset = 5, .length = UINT64_MAX},
        {.file = 0, .offset = 1, .length = 8192}, /* one byte too many for its misalignment */
    };
    rig g;
    ms_error err;
    open_rig(&g, &modes[0], 4, 4, 4097);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        ms_read_request q[2] = {{.file = 0, .offset = 0, .length = 8192}, wrong[i]};
        assert_int_equal(ms_reader_submit(g.r, q, 2, &err), MS_ERR_USAGE);
        if (i > 0) assert_non_null(strstr(err.message, path[0]));
        assert_true(ms_reader_pending(g.r) == 0);
    }
    assert_int_equal(ms_reader_submit(g.r, NULL, 0, &err), MS_OK);
    expect_idle(&g);
    close_rig(&g);
}

static void wrong_options_and_files(void **state) {
    (void)state;
    ms_reader *r;
    ms_error err;
    unsigned file;
    uint8_t *staging = aligned_alloc(4096, 8192);
    const ms_reader_options good = {.depth = 1, .staging = staging, .buffer_count = 2, .buffer_bytes = 4096};
    assert_non_null(staging);
    ms_reader_options o[10];
    for (int i = 0; i < 10; i++) o[i] = good;
    o[0].depth = 0;
    o[1].depth = 1025;
    o[2].staging = NULL;
    o[3].staging = staging + 1;
    o[4].buffer_count = 0;
    o[5].buffer_bytes = 0;
    o[6].buffer_bytes = 4097;
    o[7].buffer_bytes = SIZE_MAX - 4095;
    o[8].buffer_count = UINT32_MAX;
    o[9].buffer_bytes = ms_reader_buffer_bytes(SIZE_MAX);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(ms_reader_create(&r, &o[i], &err), MS_ERR_USAGE);
        assert_null(r);
    }
    assert_int_equal(ms_reader_create(&r, &good, &err), MS_OK);
    char other[160];
    (void)snprintf(other, sizeof other, "%s/none", dir);
    assert_int_equal(ms_reader_add_file(r, other, &file, &err), MS_ERR_IO);
    assert_non_null(strstr(err.message, other));
    assert_int_equal(ms_reader_add_file(r, dir, &file, &err), MS_ERR_FORMAT);
    assert_int_equal(mkfifo(other, 0600), 0);
    assert_int_equal(ms_reader_add_file(r, other, &file, &err), MS_ERR_FORMAT); /* and does not wait for a writer */
    assert_int_equal(unlink(other), 0);
    assert_int_equal(ms_reader_add_file(r, path[0], &file, &err), MS_OK);
    assert_int_equal(file, 0);
    ms_reader_destroy(r);
    ms_reader_destroy(NULL);
    free(staging);
}

static void held_buffers_are_an_answer_not_a_hang(void **state) {
    (void)state;
    for (size_t m = 0; m < MODES; m++) {
        rig g;
        ms_read_done d;
        ms_error err;
        bool got = true;
        open_rig(&g, &modes[m], 4, 2, 4097);
        for (uint64_t i = 0; i < 5; i++) submit(&g, 0, i * 100, 100, i);
        ms_read_done a = next(&g), b = next(&g);
        assert_int_equal(ms_reader_next(g.r, &d, &err), MS_ERR_USAGE);
        assert_non_null(strstr(err.message, "held"));
        assert_int_equal(ms_reader_poll(g.r, &d, &got, &err), MS_OK);
        assert_false(got);
        assert_true(ms_reader_pending(g.r) == 3);
        ms_reader_release(g.r, a.buffer);
        for (int i = 0; i < 3; i++) {
            d = next(&g);
            expect_bytes(&d, 0, d.tag * 100, 100);
            expect_bytes(&b, 0, b.tag * 100, 100);
            ms_reader_release(g.r, d.buffer);
        }
        expect_idle(&g);
        close_rig(&g);
    }
}

/* ------------------------------------------------------------------ failures */

static void a_failure_stays_with_its_request(void **state) {
    (void)state;
    for (size_t m = 0; m < MODES; m++) {
        rig g;
        unsigned failed = 0;
        open_rig(&g, &modes[m], 8, 8, 4097);
        ms_reader_inject_failure(g.r, 1, 1, EIO);
        ms_reader_inject_failure(g.r, 2, 1, EIO); /* no such file: nothing */
        for (uint64_t i = 0; i < 20; i++) submit(&g, i % 2, i * 100, 100, i);
        for (uint64_t i = 0; i < 20; i++) {
            ms_read_done d = next(&g);
            if (d.status == MS_OK) {
                expect_bytes(&d, d.tag % 2, d.tag * 100, 100);
            } else {
                failed++;
                assert_int_equal(d.status, MS_ERR_IO);
                assert_int_equal(d.error.code, MS_ERR_IO);
                assert_true(d.tag == 1 && !d.data);
                assert_non_null(strstr(d.error.message, path[1]));
                assert_non_null(strstr(d.error.message, "offset 100"));
                assert_non_null(strstr(d.error.message, strerror(EIO)));
            }
            ms_reader_release(g.r, d.buffer);
        }
        assert_int_equal(failed, 1);
        assert_true(stats_of(&g).failed_reads == 1 && stats_of(&g).reads == 19);
        expect_idle(&g);
        close_rig(&g);
    }
}

static void passing_trouble_is_retried(void **state) {
    (void)state;
    static const int trouble[] = {EAGAIN, EINTR, 0};
    for (size_t m = 0; m < MODES; m++) {
        for (size_t t = 0; t < 3; t++) {
            for (uint64_t offset = 0; offset < 4098; offset += 683) {
                rig g;
                open_rig(&g, &modes[m], 2, 2, MAX_READ);
                ms_reader_inject_failure(g.r, 0, 5, trouble[t]);
                submit(&g, 0, offset, 12345, 7);
                ms_read_done d = next(&g);
                expect_bytes(&d, 0, offset, 12345);
                ms_reader_stats s = stats_of(&g);
                assert_true(s.resubmits >= 1 && s.resubmits <= 5 && (trouble[t] != 0) == (s.short_reads == 0));
                assert_int_equal(g.warnings, usual_warnings(&modes[m]));
                close_rig(&g);
            }
        }
        rig g; /* but not for ever */
        open_rig(&g, &modes[m], 2, 2, MAX_READ);
        ms_reader_inject_failure(g.r, 0, UINT32_MAX, EAGAIN);
        submit(&g, 0, 0, 10, 7);
        assert_int_equal(next(&g).status, MS_ERR_IO);
        close_rig(&g);
    }
}

static void a_cut_file_is_an_error_that_names_it(void **state) {
    (void)state;
    static const uint64_t cuts[] = {0, 100, 4096, 8191, 20000};
    for (size_t m = 0; m < MODES; m++) {
        for (size_t c = 0; c < sizeof cuts / sizeof cuts[0]; c++) {
            rig g;
            open_rig(&g, &modes[m], 4, 4, MAX_READ);
            assert_int_equal(truncate(path[1], (off_t)cuts[c]), 0);
            submit(&g, 1, 7001, 13777, 1); /* ends at 20778 */
            submit(&g, 0, 7001, 13777, 0);
            for (int i = 0; i < 2; i++) {
                ms_read_done d = next(&g);
                if (d.tag == 0) {
                    expect_bytes(&d, 0, 7001, 13777);
                    continue;
                }
                assert_int_equal(d.status, MS_ERR_IO);
                assert_non_null(strstr(d.error.message, path[1]));
                assert_non_null(strstr(d.error.message, "offset 7001"));
                assert_non_null(strstr(d.error.message, "came back short"));
            }
            close_rig(&g);
            FILE *f = fopen(path[1], "wb");
            assert_non_null(f);
            assert_true(fwrite(content[1], 1, FILE_BYTES, f) == FILE_BYTES);
            assert_int_equal(fclose(f), 0);
        }
    }
}

/* ------------------------------------------------------------------ cancelling */

static void cancel_with_many_in_flight(void **state) {
    (void)state;
    for (size_t m = 0; m < MODES; m++) {
        rig g;
        open_rig(&g, &modes[m], 16, 18, MAX_READ);
        for (int round = 0; round < 30; round++) {
            ms_read_done held = {0};
            for (uint64_t i = 0; i < 60; i++) submit(&g, i % 2, i * 4000 + (uint64_t)round, 15000, i);
            if (round % 3) held = next(&g);
            ms_reader_cancel_all(g.r);
            ms_reader_cancel_all(g.r);
            expect_idle(&g);
            if (round % 3) expect_bytes(&held, held.tag % 2, held.tag * 4000 + (uint64_t)round, 15000);
            if (round % 3) ms_reader_release(g.r, held.buffer);
            /* The reader is as good as new. */
            submit(&g, 0, 1, 10, 5);
            ms_read_done d = next(&g);
            expect_bytes(&d, 0, 1, 10);
            ms_reader_release(g.r, d.buffer);
        }
        close_rig(&g);
    }
}

/* Nothing writes to the staging memory any more once destroy or cancel has returned. */
static void destroy_in_flight(void **state) {
    (void)state;
    for (size_t m = 0; m < MODES; m++) {
        for (int round = 0; round < 20; round++) {
            rig g;
            size_t bytes = 16 * ms_reader_buffer_bytes(MAX_READ);
            open_rig(&g, &modes[m], 16, 16, MAX_READ);
            for (uint64_t i = 0; i < 40; i++) submit(&g, 0, i * 4001, 19000, i);
            if (round % 2) (void)next(&g);
            ms_reader_destroy(g.r);
            memset(g.staging, 0xa5, bytes);
            (void)usleep(300);
            for (size_t i = 0; i < bytes; i++) {
                if (g.staging[i] != 0xa5) fail_msg("staging byte %zu was written after destroy", i);
            }
            free(g.staging);
        }
    }
}

/* ------------------------------------------------------------------ fallbacks */

static void read_some(rig *g) {
    for (uint64_t i = 0; i < 30; i++) submit(g, i % 2, i * 1001, 9999, i);
    for (int i = 0; i < 30; i++) {
        ms_read_done d = next(g);
        expect_bytes(&d, d.tag % 2, d.tag * 1001, 9999);
        ms_reader_release(g->r, d.buffer);
    }
    expect_idle(g);
}

static void refused_direct_reads_turn_buffered(void **state) {
    (void)state;
    if (!have_direct) return; /* every other test has gone through the fallback already */
    for (size_t m = 0; m < MODES; m += 2) {
        rig g;
        open_rig(&g, &modes[m], 8, 8, MAX_READ);
        assert_true(stats_of(&g).direct);
        ms_reader_inject_failure(g.r, 1, 3, EINVAL); /* the first is answered by the fallback; the rest met it too */
        for (uint64_t i = 0; i < 8; i++) submit(&g, i % 2, i * 1001, 9999, i);
        unsigned failed = 0;
        for (int i = 0; i < 8; i++) {
            ms_read_done d = next(&g);
            if (d.status == MS_OK) expect_bytes(&d, d.tag % 2, d.tag * 1001, 9999);
            failed += d.status != MS_OK;
            ms_reader_release(g.r, d.buffer);
        }
        /* With pread the retry itself meets the second EINVAL, now buffered, which is a failure like any other. */
        assert_int_equal(failed, modes[m].no_uring || !have_ring ? 2 : 0);
        assert_int_equal(g.warnings, 1 + usual_warnings(&modes[m]));
        assert_non_null(strstr(g.warning, path[1]));
        ms_reader_stats s = stats_of(&g);
        assert_true(!s.direct && s.buffered_files == 1);
        read_some(&g);
        ms_reader_inject_failure(g.r, 0, 1, EOPNOTSUPP);
        read_some(&g);
        assert_int_equal(g.warnings, 1 + usual_warnings(&modes[m])); /* said once, counted twice */
        assert_int_equal(stats_of(&g).buffered_files, 2);
        close_rig(&g);
    }
}

static void more_buffers_than_the_ring_registers(void **state) {
    (void)state;
    rig g;
    open_rig(&g, &modes[0], 8, 16385 * 2, 1); /* more than the kernel's limit of fixed buffers */
    ms_reader_stats s = stats_of(&g);
    assert_true(s.uring == have_ring && !s.registered);
    assert_int_equal(g.warnings, 1 + (unsigned)!have_direct);
    for (uint64_t i = 0; i < 100; i++) submit(&g, 0, i % 70 * 4096, 4096 - i * 5 % 77, i);
    ms_reader_cancel_all(g.r);
    for (uint64_t i = 0; i < 70; i++) submit(&g, 0, i * 4096, 4096 - i, i);
    for (int i = 0; i < 70; i++) {
        ms_read_done d = next(&g);
        expect_bytes(&d, 0, d.tag * 4096, 4096 - d.tag);
    }
    close_rig(&g);
}

/* From now on `call` fails with `error`; when `bit` is not 0, only with `second` as its second argument and that bit
 * in its third. */
static void forbid(unsigned call, unsigned second, unsigned bit, unsigned error) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 5),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
        BPF_JUMP(BPF_JMP | (bit ? BPF_JEQ : BPF_JGE) | BPF_K, second, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | (bit ? BPF_JSET : BPF_JGE) | BPF_K, bit, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof code / sizeof code[0], .filter = code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) rig_failed("no_new_privs");
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) rig_failed("seccomp");
}

/* The filters cannot be taken off again, so each such test is a process of its own. */
static void in_child(void (*body)(void)) {
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        is_child = true;
        body();
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) fail_msg("child ended with status %#x", (unsigned)status);
}

#define CHILD_CHECK(cond)                                               \
    do {                                                                \
        if (!(cond)) {                                                  \
            (void)fprintf(stderr, "line %d: %s\n", __LINE__, #cond);    \
            _exit(1);                                                   \
        }                                                               \
    } while (0)

static void child_reads(rig *g, unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        ms_read_done d;
        CHILD_CHECK(ms_reader_next(g->r, &d, NULL) == MS_OK);
        CHILD_CHECK(d.status == MS_OK && d.length == 9999);
        CHILD_CHECK(memcmp(d.data, content[d.tag % 2] + d.tag * 1001, 9999) == 0);
        ms_reader_release(g->r, d.buffer);
    }
    CHILD_CHECK(ms_reader_pending(g->r) == 0);
}

static void child_submit(rig *g, unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        ms_read_request q = {.file = i % 2, .offset = i * 1001, .length = 9999, .tag = i};
        CHILD_CHECK(ms_reader_submit(g->r, &q, 1, NULL) == MS_OK);
    }
}

static void without_io_uring(void) {
    rig g;
    forbid(SYS_io_uring_setup, 0, 0, EPERM);
    open_rig(&g, &modes[0], 8, 8, MAX_READ);
    child_submit(&g, 30);
    child_reads(&g, 30);
    ms_reader_stats s = stats_of(&g);
    CHILD_CHECK(!s.uring && !s.registered && s.direct == have_direct);
    CHILD_CHECK(g.warnings == 1 + (unsigned)!have_direct);
    if (have_direct) CHILD_CHECK(strstr(g.warning, "io_uring") && strstr(g.warning, strerror(EPERM)));
    close_rig(&g);
}

static void io_uring_lost_on_the_way(void) {
    rig g;
    open_rig(&g, &modes[0], 4, 8, MAX_READ);
    child_submit(&g, 30);
    forbid(SYS_io_uring_enter, 0, 0, EPERM);
    child_reads(&g, 30);
    CHILD_CHECK(!stats_of(&g).uring && g.warnings == 1 + (unsigned)!have_direct);
    child_submit(&g, 30);
    ms_reader_cancel_all(g.r);
    child_submit(&g, 30);
    child_reads(&g, 30);
    close_rig(&g);
}

static void io_uring_lost_before_cancel(void) {
    rig g;
    open_rig(&g, &modes[0], 8, 8, MAX_READ);
    child_submit(&g, 30);
    forbid(SYS_io_uring_enter, 0, 0, EPERM);
    ms_reader_cancel_all(g.r);
    CHILD_CHECK(ms_reader_pending(g.r) == 0);
    child_submit(&g, 30);
    child_reads(&g, 30);
    close_rig(&g);
}

static void without_registration(void) {
    rig g;
    forbid(SYS_io_uring_register, 0, 0, EPERM); /* no probe either: as good as too old */
    open_rig(&g, &modes[0], 8, 8, MAX_READ);
    child_submit(&g, 30);
    child_reads(&g, 30);
    CHILD_CHECK(!stats_of(&g).registered && g.warnings == 1 + (unsigned)!have_direct);
    close_rig(&g);
}

static void without_o_direct(void) {
    rig g;
    forbid(SYS_fcntl, F_SETFL, O_DIRECT, EINVAL);
    open_rig(&g, &modes[0], 8, 8, MAX_READ);
    child_submit(&g, 30);
    child_reads(&g, 30);
    ms_reader_stats s = stats_of(&g);
    CHILD_CHECK(s.uring == have_ring && !s.direct && s.buffered_files == 2);
    CHILD_CHECK(g.warnings == 1 + (unsigned)!have_ring && strstr(g.warning, "O_DIRECT"));
    close_rig(&g);
}

static void systems_that_refuse(void **state) {
    (void)state;
    in_child(without_io_uring);
    in_child(io_uring_lost_on_the_way);
    in_child(io_uring_lost_before_cancel);
    in_child(without_registration);
    in_child(without_o_direct);
}

static void large_reads(void **state) {
    (void)state;
    char big[160];
    const uint64_t size = UINT64_C(65) << 20, length = UINT64_C(64) << 20;
    (void)snprintf(big, sizeof big, "%s/big", dir);
    int fd = open(big, O_RDWR | O_CREAT, 0600);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)size), 0);
    for (uint64_t at = 0; at < size; at += 1 << 20) assert_int_equal(pwrite(fd, &at, 8, (off_t)at + 99), 8);
    assert_int_equal(close(fd), 0);
    for (size_t m = 0; m < 3; m++) {
        rig g;
        unsigned file;
        open_rig(&g, &modes[m], 2, 2, length);
        assert_int_equal(ms_reader_add_file(g.r, big, &file, NULL), MS_OK);
        submit(&g, file, 99, length, 0);
        submit(&g, file, 99 + 77777, length, 1);
        for (int i = 0; i < 2; i++) {
            ms_read_done d = next(&g);
            assert_int_equal(d.status, MS_OK);
            if (d.tag != 0) continue;
            for (uint64_t at = 0; at < length; at += 1 << 20) assert_memory_equal(d.data + at, &at, 8);
        }
        close_rig(&g);
    }
    assert_int_equal(unlink(big), 0);
}

/* A file on another device, where there is one, has a depth of its own. */
static void two_drives(void **state) {
    (void)state;
    char other[] = "/dev/shm/ms-reader-XXXXXX";
    int fd = mkstemp(other);
    if (fd < 0) { /* no such folder: the same device twice */
        (void)snprintf(other, sizeof other, "/tmp/ms-reader-XXXXXX");
        fd = mkstemp(other);
    }
    assert_true(fd >= 0);
    assert_int_equal(write(fd, content[1], FILE_BYTES), FILE_BYTES);
    (void)close(fd);
    for (int m = 0; m < MODES; m++) {
        rig g;
        open_rig(&g, &modes[m], 1, 5, 6000);
        unsigned third;
        ms_error err;
        assert_int_equal(ms_reader_add_file(g.r, other, &third, &err), MS_OK);
        assert_int_equal(third, 2);
        assert_string_equal(ms_reader_file_path(g.r, 2), other);
        for (unsigned i = 0; i < 40; i++) submit(&g, i % 7 < 4 ? 0 : 2, i * 6111, 6000 - i, i);
        bool seen[40] = {false};
        for (unsigned i = 0; i < 40; i++) {
            ms_read_done d = next(&g);
            assert_false(seen[d.tag]);
            seen[d.tag] = true;
            expect_bytes(&d, d.tag % 7 < 4 ? 0 : 1, d.tag * 6111, 6000 - d.tag);
            ms_reader_release(g.r, d.buffer);
        }
        expect_idle(&g);
        for (unsigned i = 0; i < 20; i++) submit(&g, i % 2 ? 0 : 2, i * 6111, 6000, i); /* and is cancelled with the rest */
        ms_reader_cancel_all(g.r);
        expect_idle(&g);
        submit(&g, 2, 0, 6000, 1);
        ms_read_done d = next(&g);
        expect_bytes(&d, 1, 0, 6000);
        ms_reader_release(g.r, d.buffer);
        close_rig(&g);
    }
    (void)unlink(other);
}

static void queued_requests_can_be_withdrawn(void **state) {
    (void)state;
    for (int m = 0; m < MODES; m++) {
        rig g;
        open_rig(&g, &modes[m], 2, 2, 4000);
        for (uint64_t tag = 0; tag < 10; tag++) submit(&g, tag % 2, tag * 4096, 4000, tag);
        bool gone[10], withdrawn = false;
        for (uint64_t tag = 0; tag < 10; tag++) {
            gone[tag] = tag % 3 == 1 && ms_reader_withdraw(g.r, tag);
            withdrawn |= gone[tag];
        }
        assert_true(withdrawn && !ms_reader_withdraw(g.r, 7) && !ms_reader_withdraw(g.r, 99));
        unsigned seen = 0;
        while (ms_reader_pending(g.r)) {
            ms_read_done d;
            ms_error err;
            assert_int_equal(ms_reader_next(g.r, &d, &err), MS_OK);
            assert_int_equal(d.status, MS_OK);
            assert_false(gone[d.tag]);
            expect_bytes(&d, d.tag % 2, d.tag * 4096, 4000);
            assert_false(ms_reader_withdraw(g.r, d.tag));
            ms_reader_release(g.r, d.buffer);
            gone[d.tag] = true;
            seen++;
        }
        for (unsigned tag = 0; tag < 10; tag++) assert_true(gone[tag]);
        assert_true(seen < 10);
        expect_idle(&g);
        close_rig(&g);
    }
}

/* Fewer at a time from now on: what a drive has is not more than that once it has ended what it had; a limit of its rate
 * changes nothing about it. */
static void depth_can_change(void **state) {
    (void)state;
    for (int m = 0; m < MODES; m++)
        for (uint64_t rate = 0; rate <= 100000000; rate += 100000000) {
            rig g;
            ms_error err;
            unsigned file;
            ms_reader_options o = {.depth = 8, .buffer_count = 8, .buffer_bytes = ms_reader_buffer_bytes(4000),
                                   .buffered = modes[m].buffered, .no_uring = modes[m].no_uring,
                                   .bytes_per_second = rate};
            o.staging = g.staging = aligned_alloc(MS_READER_ALIGN, 8 * o.buffer_bytes);
            assert_non_null(o.staging);
            assert_int_equal(ms_reader_create(&g.r, &o, &err), MS_OK);
            assert_int_equal(ms_reader_add_file(g.r, path[0], &file, &err), MS_OK);
            static const unsigned depths[] = {2, 1, 5, 0, 5000};
            for (size_t d = 0; d < sizeof depths / sizeof depths[0]; d++) {
                ms_reader_set_depth(g.r, depths[d]);
                for (uint64_t tag = 0; tag < 8; tag++) {
                    const ms_read_request q = {.file = file, .offset = tag * 5000, .length = 4000, .tag = tag};
                    assert_int_equal(ms_reader_submit(g.r, &q, 1, &err), MS_OK);
                }
                ms_read_done done;
                assert_int_equal(ms_reader_next(g.r, &done, &err), MS_OK); /* one more has begun */
                ms_reader_release(g.r, done.buffer);
                unsigned most = depths[d] == 0 ? 1 : depths[d] > 8 ? 8 : depths[d], queued = 0;
                for (uint64_t tag = 0; tag < 8; tag++) queued += ms_reader_withdraw(g.r, tag);
                if (have_ring && !modes[m].no_uring && most < 7) assert_true(queued >= 7 - most);
                while (ms_reader_pending(g.r)) {
                    assert_int_equal(ms_reader_next(g.r, &done, &err), MS_OK);
                    expect_bytes(&done, 0, done.tag * 5000, 4000);
                    ms_reader_release(g.r, done.buffer);
                }
            }
            close_rig(&g);
        }
}

/* Time in which reads are under way: all of it while they are waited for, none of it when there are none. */
static void busy_time(void **state) {
    (void)state;
    for (int m = 0; m < MODES; m++) {
        rig g;
        open_rig(&g, &modes[m], 2, 2, MAX_READ);
        uint64_t start = ms_clock_ns();
        for (uint64_t i = 0; i < 200; i++) submit(&g, i % 2, i * 1000, MAX_READ, i);
        while (ms_reader_pending(g.r)) {
            ms_read_done d;
            ms_error err;
            assert_int_equal(ms_reader_next(g.r, &d, &err), MS_OK);
            ms_reader_release(g.r, d.buffer);
        }
        uint64_t took = ms_clock_ns() - start;
        ms_reader_stats a, b;
        ms_reader_get_stats(g.r, &a);
        assert_true(a.busy_ns <= took && (a.busy_ns > 0 || !a.direct)); /* a page cache answers at once */
        struct timespec pause = {.tv_nsec = 5000000};
        (void)nanosleep(&pause, NULL);
        ms_read_done d;
        bool got;
        assert_int_equal(ms_reader_poll(g.r, &d, &got, NULL), MS_OK);
        ms_reader_get_stats(g.r, &b);
        assert_true(!got && a.busy_ns == b.busy_ns);
        close_rig(&g);
    }
}

/* With a limit nothing comes before a drive of that rate would have it, in every mode; polls do not wait; all comes. */
static void limited_rate(void **state) {
    (void)state;
    enum { READS = 20, LENGTH = 15000, RATE = 3000000 };
    for (int m = 0; m < MODES; m++) {
        rig g;
        ms_error err;
        unsigned file;
        ms_reader_options o = {.depth = 4, .buffer_count = 4, .buffer_bytes = ms_reader_buffer_bytes(LENGTH),
                               .buffered = modes[m].buffered, .no_uring = modes[m].no_uring, .bytes_per_second = RATE};
        o.staging = g.staging = aligned_alloc(MS_READER_ALIGN, 4 * o.buffer_bytes);
        assert_non_null(o.staging);
        assert_int_equal(ms_reader_create(&g.r, &o, &err), MS_OK);
        assert_int_equal(ms_reader_add_file(g.r, path[0], &file, &err), MS_OK);
        uint64_t begin = ms_clock_ns(), polls = 0;
        for (uint64_t i = 0; i < READS; i++) {
            const ms_read_request q = {.file = 0, .offset = i * 9001, .length = LENGTH, .tag = i};
            assert_int_equal(ms_reader_submit(g.r, &q, 1, &err), MS_OK);
        }
        bool seen[READS] = {false};
        for (unsigned n = 0; n < READS;) {
            ms_read_done done;
            bool got = true;
            if (n % 2) assert_int_equal(ms_reader_next(g.r, &done, &err), MS_OK);
            else assert_int_equal(ms_reader_poll(g.r, &done, &got, &err), MS_OK);
            polls += !got;
            if (!got) continue;
            assert_int_equal(done.status, MS_OK);
            assert_false(seen[done.tag]);
            seen[done.tag] = true;
            assert_memory_equal(done.data, content[0] + done.tag * 9001, LENGTH);
            ms_reader_release(g.r, done.buffer);
            n++;
            uint64_t least = (uint64_t)n * LENGTH * 1000000000u / RATE;
            assert_true(ms_clock_ns() - begin + 1000 >= least);
        }
        assert_true(polls > 0);
        assert_int_equal(ms_reader_pending(g.r), 0);
        ms_reader_stats s; /* the drive that is imitated had all that to do */
        ms_reader_get_stats(g.r, &s);
        assert_int_equal(s.busy_ns, UINT64_C(1000000000) * READS * LENGTH / RATE);
        /* what waits for its time is cancelled too */
        const ms_read_request q[2] = {{.file = 0, .length = LENGTH}, {.file = 0, .offset = LENGTH, .length = LENGTH}};
        bool got;
        ms_read_done done;
        assert_int_equal(ms_reader_submit(g.r, q, 2, &err), MS_OK);
        assert_int_equal(ms_reader_poll(g.r, &done, &got, &err), MS_OK);
        if (got) ms_reader_release(g.r, done.buffer); /* a slow machine */
        ms_reader_cancel_all(g.r);
        assert_int_equal(ms_reader_pending(g.r), 0);
        close_rig(&g);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_misalignment),
        cmocka_unit_test(depths_and_buffers),
        cmocka_unit_test(submitting_in_waves),
        cmocka_unit_test(end_of_file),
        cmocka_unit_test(buffers_never_overlap),
        cmocka_unit_test(the_smallest_buffer_is_enough),
        cmocka_unit_test(wrong_requests_are_refused_whole),
        cmocka_unit_test(wrong_options_and_files),
        cmocka_unit_test(held_buffers_are_an_answer_not_a_hang),
        cmocka_unit_test(a_failure_stays_with_its_request),
        cmocka_unit_test(passing_trouble_is_retried),
        cmocka_unit_test(a_cut_file_is_an_error_that_names_it),
        cmocka_unit_test(cancel_with_many_in_flight),
        cmocka_unit_test(destroy_in_flight),
        cmocka_unit_test(refused_direct_reads_turn_buffered),
        cmocka_unit_test(more_buffers_than_the_ring_registers),
        cmocka_unit_test(systems_that_refuse),
        cmocka_unit_test(limited_rate),
        cmocka_unit_test(large_reads),
        cmocka_unit_test(queued_requests_can_be_withdrawn),
        cmocka_unit_test(depth_can_change),
        cmocka_unit_test(busy_time),
        cmocka_unit_test(two_drives),
    };
    return cmocka_run_group_tests(tests, make_files, remove_files);
}
