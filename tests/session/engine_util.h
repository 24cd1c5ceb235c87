/* engine_util.h: engines on copies of small checkpoints that a test may damage. */
#ifndef MS_TESTS_ENGINE_UTIL_H
#define MS_TESTS_ENGINE_UTIL_H

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "io/file.h"
#include "session/engine.h"

#define TINY "tests/golden/k3/k3-tiny-a"
#define NANO "models/k3-nano"
/* A sanitizer's own memory would be counted. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1 };
#elif defined(__has_feature)
enum { SANITIZED = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) };
#else
enum { SANITIZED = 0 };
#endif

enum { PATH_BYTES = 512, MAX_VOCAB = 4096 };

static inline void ok(ms_status st, const ms_error *err) {
    if (st != MS_OK) fail_msg("%s", err->message);
}

/* The error must have this code and name all of these (NULL ends the list). */
static inline void refused(ms_status st, const ms_error *err, ms_status want, const char *const *parts) {
    if (st != want) fail_msg("expected %s, found %s: %s", ms_status_name(want), ms_status_name(st), st ? err->message : "");
    assert_int_equal(err->code, want);
    for (; *parts; parts++)
        if (!strstr(err->message, *parts)) fail_msg("expected \"%s\" in: %s", *parts, err->message);
}
#define REFUSED(st, err, want, ...) refused(st, err, want, (const char *const[]){__VA_ARGS__, NULL})

static inline void copy_model(char dir[PATH_BYTES], const char *model) {
    (void)snprintf(dir, PATH_BYTES, "/tmp/ms-engine-XXXXXX");
    assert_non_null(mkdtemp(dir));
    DIR *d = opendir(model);
    assert_non_null(d);
    for (struct dirent *x; (x = readdir(d));) {
        char from[PATH_BYTES], to[PATH_BYTES];
        struct stat st;
        (void)snprintf(from, sizeof from, "%s/%.200s", model, x->d_name);
        (void)snprintf(to, sizeof to, "%.200s/%.200s", dir, x->d_name);
        if (stat(from, &st) != 0 || !S_ISREG(st.st_mode)) continue;
        char *data;
        size_t len;
        ms_error err;
        ok(ms_file_read_all(from, (size_t)64 << 20, &data, &len, &err), &err);
        int fd = open(to, O_WRONLY | O_CREAT | O_EXCL, 0600);
        assert_true(fd >= 0);
        assert_int_equal(write(fd, data, len), len);
        assert_int_equal(close(fd), 0);
        free(data);
    }
    (void)closedir(d);
}

static inline void remove_model(const char *dir) {
    DIR *d = opendir(dir);
    if (!d) return;
    for (struct dirent *x; (x = readdir(d));)
        if (x->d_name[0] != '.') (void)unlinkat(dirfd(d), x->d_name, 0);
    (void)closedir(d);
    (void)rmdir(dir);
}

/* Swaps bytes of a file with those in `data`: twice restores. */
static inline void swap_bytes(const char *path, uint64_t offset, void *data, size_t len) {
    uint8_t old[256];
    assert_true(len <= sizeof old);
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, old, len, (off_t)offset), len);
    assert_int_equal(pwrite(fd, data, len, (off_t)offset), len);
    assert_int_equal(fsync(fd), 0);
    assert_int_equal(close(fd), 0);
    memcpy(data, old, len);
}

/* Replaces the first occurrence of `from` by `to` of the same length. */
static inline void edit_file(const char *dir, const char *name, const char *from, const char *to) {
    char path[PATH_BYTES], *data;
    size_t len, n = strlen(from);
    ms_error err;
    assert_int_equal(n, strlen(to));
    (void)snprintf(path, sizeof path, "%.200s/%.200s", dir, name);
    ok(ms_file_read_all(path, (size_t)64 << 20, &data, &len, &err), &err);
    const char *at = memmem(data, len, from, n);
    if (!at) fail_msg("%s: no %s", path, from);
    uint64_t offset = (uint64_t)(at - data);
    free(data);
    char text[256];
    assert_true(n < sizeof text);
    memcpy(text, to, n);
    swap_bytes(path, offset, text, n);
}

/* The tail that a file loses, to give it back. */
typedef struct cut {
    char path[PATH_BYTES];
    uint64_t at;
    char *data;
    size_t len;
} cut;

static inline void cut_file(cut *c, const char *path, uint64_t at) {
    ms_error err;
    (void)snprintf(c->path, sizeof c->path, "%s", path);
    c->at = at;
    ok(ms_file_read_all(path, (size_t)64 << 20, &c->data, &c->len, &err), &err);
    assert_true(at < c->len);
    assert_int_equal(truncate(path, (off_t)at), 0);
}

static inline void mend_file(cut *c) {
    int fd = open(c->path, O_WRONLY);
    assert_true(fd >= 0);
    size_t n = c->len - (size_t)c->at;
    assert_int_equal(pwrite(fd, c->data + c->at, n, (off_t)c->at), n);
    assert_int_equal(close(fd), 0);
    free(c->data);
}

/* ------------------------------------------------------------------ running */

typedef struct rig {
    ms_engine *e;
    ms_session *s;
    uint32_t vocab;
} rig;

static inline void rig_open(rig *r, const ms_engine_options *o) {
    ms_error err;
    *r = (rig){0};
    ok(ms_engine_open(&r->e, o, &err), &err);
    ok(ms_session_create(&r->s, r->e, &err), &err);
    ms_model_info info;
    ms_engine_info(r->e, &info);
    r->vocab = info.vocab;
    assert_true(r->vocab <= MAX_VOCAB);
}

static inline void rig_close(rig *r) {
    ms_session_destroy(r->s);
    ms_engine_close(r->e);
}

static inline void some_ids(uint32_t *ids, uint32_t count, uint32_t vocab) {
    for (uint32_t i = 0; i < count; i++) ids[i] = (i * 2654435761u >> 8) % (vocab - 256 > 255 ? vocab - 256 : vocab);
}

/* State and last logits as one number. */
static inline uint64_t fingerprint(const rig *r) {
    ms_digest d;
    ms_error err;
    ok(ms_session_digest(r->s, &d, &err), &err);
    uint64_t h = ms_fnv1a64(MS_FNV1A64_INIT, &d.position, sizeof d.position);
    for (uint32_t i = 0; i < d.count; i++) h = ms_fnv1a64(h, &d.part[i].fnv1a64, sizeof d.part[i].fnv1a64);
    return h;
}

static inline uint64_t fingerprint_with_logits(const rig *r) {
    const float *logits = ms_session_logits(r->s);
    assert_non_null(logits);
    return ms_fnv1a64(fingerprint(r), logits, r->vocab * sizeof *logits);
}

/* Between requests nothing may be leased, open or under way; also empties the cache. */
static inline void service_is_sound(const rig *r) {
    ms_error err;
    ok(ms_expert_service_check(r->e->experts, &err), &err);
}

#endif
