/* Copies of shards in other folders: experts come from all of them, the result stays, and a file that is no copy is
 * refused. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>

#include "engine_util.h"

enum { IDS = 30 };
static const char shard[] = "model-00003-of-000010.safetensors";

static ms_engine_options options(const char *dirs) {
    ms_engine_options o;
    ms_engine_options_default(&o, NANO);
    o.context = 64;
    o.threads = 1;
    o.experts = 3;
    o.read_depth = 2;
    o.expert_dirs = dirs;
    return o;
}

static uint64_t run(const char *dirs, bool no_uring) {
    ms_engine_options o = options(dirs);
    ms_error err;
    rig r;
    uint32_t ids[IDS];
    o.no_uring = no_uring;
    rig_open(&r, &o);
    some_ids(ids, IDS, r.vocab);
    ok(ms_session_forward(r.s, ids, IDS / 2, NULL, &err), &err);
    for (uint32_t i = IDS / 2; i < IDS; i++) ok(ms_session_forward(r.s, ids + i, 1, NULL, &err), &err);
    uint64_t h = fingerprint_with_logits(&r);
    service_is_sound(&r);
    rig_close(&r);
    return h;
}

static void open_refused(const char *dirs, ms_status want, const char *a, const char *b) {
    ms_engine_options o = options(dirs);
    ms_engine *e = NULL;
    ms_error err;
    REFUSED(ms_engine_open(&e, &o, &err), &err, want, a, b);
    assert_null(e);
}

static void copies_are_read(void **state) {
    (void)state;
    char a[PATH_BYTES], b[PATH_BYTES], dirs[2 * PATH_BYTES + 16], path[PATH_BYTES];
    uint64_t want = run(NULL, false);
    copy_model(a, NANO);
    copy_model(b, NANO);
    (void)snprintf(dirs, sizeof dirs, "%s,%s", a, b);
    assert_int_equal(run(dirs, false), want);
    assert_int_equal(run(dirs, true), want);
    (void)snprintf(path, sizeof path, "%.200s/%s", b, shard); /* not every folder has every file */
    assert_int_equal(unlink(path), 0);
    (void)snprintf(dirs, sizeof dirs, "%s,%s,/tmp", b, a);
    assert_int_equal(run(dirs, false), want);

    /* An expert with a bad scale in one copy: found where it is, and named. */
    (void)snprintf(path, sizeof path, "%.200s/%s", a, shard);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    uint8_t header[8], bad[4096];
    assert_int_equal(pread(fd, header, 8, 0), 8);
    memset(bad, 255, sizeof bad);
    for (off_t at = (off_t)(8 + ms_le64(header)); at < st.st_size; at += (off_t)sizeof bad) {
        size_t n = st.st_size - at < (off_t)sizeof bad ? (size_t)(st.st_size - at) : sizeof bad;
        assert_int_equal(pwrite(fd, bad, n, at), n);
    }
    close(fd);
    ms_engine_options o = options(a);
    ms_error err;
    rig r;
    uint32_t ids[IDS];
    rig_open(&r, &o);
    some_ids(ids, IDS, r.vocab);
    ms_status got = ms_session_forward(r.s, ids, IDS, NULL, &err);
    REFUSED(got, &err, MS_ERR_FORMAT, path, "layer ", "expert ", "255");
    rig_close(&r);
    remove_model(a);
    remove_model(b);
}

static void others_are_refused(void **state) {
    (void)state;
    char a[PATH_BYTES], path[PATH_BYTES];
    copy_model(a, NANO);
    (void)snprintf(path, sizeof path, "%.200s/%s", a, shard);
    uint8_t bytes[1] = {'x'};
    swap_bytes(path, 20, bytes, 1); /* inside the header */
    open_refused(a, MS_ERR_FORMAT, path, "header");
    swap_bytes(path, 20, bytes, 1);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(truncate(path, st.st_size - 1), 0);
    open_refused(a, MS_ERR_FORMAT, path, "bytes");
    remove_model(a);
    open_refused("/nowhere", MS_ERR_USAGE, "--expert-dirs", "/nowhere");
    open_refused("/dev,/nowhere", MS_ERR_USAGE, "--expert-dirs", "/nowhere");
    open_refused("/dev", MS_ERR_USAGE, "--expert-dirs", "no folder");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(copies_are_read), cmocka_unit_test(others_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
