/* store_util.h: temporary checkpoint directories for tests: write, copy, damage, remove. */
#ifndef MS_TESTS_STORE_UTIL_H
#define MS_TESTS_STORE_UTIL_H

#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/error.h"
#include "io/file.h"

enum { PATH_BYTES = 512 };

static inline void make_dir(char dir[PATH_BYTES]) {
    (void)snprintf(dir, PATH_BYTES, "/tmp/ms-test-store-XXXXXX");
    assert_non_null(mkdtemp(dir));
}

static inline int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw) {
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

static inline void remove_dir(const char *dir) {
    assert_int_equal(nftw(dir, remove_entry, 8, FTW_DEPTH | FTW_PHYS), 0);
}

static inline void path_in(char out[PATH_BYTES], const char *dir, const char *name) {
    int n = snprintf(out, PATH_BYTES, "%s/%s", dir, name);
    assert_true(n > 0 && n < PATH_BYTES);
}

static inline void put_bytes(const char *dir, const char *name, const void *data, size_t len) {
    char path[PATH_BYTES];
    path_in(path, dir, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
}

static inline void put_text(const char *dir, const char *name, const char *text) {
    put_bytes(dir, name, text, strlen(text));
}

/* A shard with this header and `payload` zero bytes. */
static inline void put_shard(const char *dir, const char *name, const char *header, size_t payload) {
    size_t n = strlen(header);
    char *all = calloc(1, 8 + n + payload + 1);
    assert_non_null(all);
    ms_put_le64(all, n);
    memcpy(all + 8, header, n);
    put_bytes(dir, name, all, 8 + n + payload);
    free(all);
}

static inline void get_bytes(const char *dir, const char *name, char **data, size_t *len) {
    char path[PATH_BYTES];
    path_in(path, dir, name);
    ms_error err = {0};
    ms_status status = ms_file_read_all(path, (size_t)1 << 26, data, len, &err);
    if (status != MS_OK) fail_msg("%s", err.message);
}

static inline void copy_file(const char *from, const char *to, const char *name) {
    char *data;
    size_t len;
    get_bytes(from, name, &data, &len);
    put_bytes(to, name, data, len);
    free(data);
}

/* Replaces the first `from` in a text file by `to`. */
static inline void edit_text(const char *dir, const char *name, const char *from, const char *to) {
    char *data;
    size_t len;
    get_bytes(dir, name, &data, &len);
    char *at = strstr(data, from);
    if (!at) fail_msg("%s has no %s", name, from);
    size_t before = (size_t)(at - data), cut = strlen(from), add = strlen(to);
    char *edited = malloc(len + add);
    assert_non_null(edited);
    memcpy(edited, data, before);
    memcpy(edited + before, to, add);
    memcpy(edited + before + add, at + cut, len - before - cut);
    put_bytes(dir, name, edited, len - cut + add);
    free(edited);
    free(data);
}

/* The same in the header of a shard; the length field follows. */
static inline void edit_header(const char *dir, const char *name, const char *from, const char *to) {
    char *data;
    size_t len;
    get_bytes(dir, name, &data, &len);
    size_t n = (size_t)ms_le64(data), cut = strlen(from), add = strlen(to);
    char *at = memmem(data + 8, n, from, cut);
    if (!at) fail_msg("%s has no %s", name, from);
    size_t before = (size_t)(at - data);
    char *edited = malloc(len + add);
    assert_non_null(edited);
    memcpy(edited, data, before);
    memcpy(edited + before, to, add);
    memcpy(edited + before + add, at + cut, len - before - cut);
    ms_put_le64(edited, n - cut + add);
    put_bytes(dir, name, edited, len - cut + add);
    free(edited);
    free(data);
}

/* Status, and every part in the message. */
#define assert_error(status, err, code, ...)                                                                           \
    assert_error_parts(status, err, code, (const char *const[]){__VA_ARGS__, NULL})
static inline void assert_error_parts(ms_status status, const ms_error *err, ms_status code, const char *const *parts) {
    if (status != code || err->code != code)
        fail_msg("expected %s, found %s (%s)", ms_status_name(code), ms_status_name(status), err->message);
    for (; *parts; parts++) {
        if (!strstr(err->message, *parts)) fail_msg("expected \"%s\" in: %s", *parts, err->message);
    }
}

#endif
