#include "server/keys.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { KEY_FILE_MAX_BYTES = 1 << 16 };

ms_status ms_keys_add(ms_keys *k, const char *key, size_t len, ms_error *err) {
    if (!len) return MS_OK;
    uint8_t(*digests)[MS_KEY_DIGEST_BYTES] = realloc(k->digests, (k->count + 1) * sizeof *digests);
    if (!digests) return ms_fail_memory(err, "API keys", (k->count + 1) * sizeof *digests);
    k->digests = digests;
    (void)SHA256((const unsigned char *)key, len, digests[k->count++]);
    return MS_OK;
}

static ms_status add_lines(ms_keys *k, const char *text, size_t len, ms_error *err) {
    for (size_t at = 0; at < len;) {
        const char *line = text + at, *end = memchr(line, '\n', len - at);
        size_t n = end ? (size_t)(end - line) : len - at;
        at += n + 1;
        while (n && (line[n - 1] == ' ' || line[n - 1] == '\t' || line[n - 1] == '\r')) n--;
        while (n && (*line == ' ' || *line == '\t')) line++, n--;
        if (n && *line != '#') MS_TRY(ms_keys_add(k, line, n, err));
    }
    return MS_OK;
}

static ms_status read_lines(ms_keys *k, int fd, const char *path, ms_error *err) {
    struct stat st;
    if (fstat(fd, &st) != 0) return ms_fail_errno(err, MS_ERR_IO, errno, "%s", path);
    if (!S_ISREG(st.st_mode)) return ms_fail_not_regular(err, path, st.st_mode);
    if (st.st_mode & 077) {
        return ms_fail(err, MS_ERR_USAGE,
                       "%s: expected a key file that only its owner may access (mode 0600), found %03o", path,
                       st.st_mode & 0777);
    }
    char *text = malloc(KEY_FILE_MAX_BYTES);
    if (!text) return ms_fail_memory(err, path, KEY_FILE_MAX_BYTES);
    size_t len = 0;
    ssize_t n = 0;
    while (len < KEY_FILE_MAX_BYTES && (n = read(fd, text + len, KEY_FILE_MAX_BYTES - len)) > 0) len += (size_t)n;
    ms_status status = n < 0 ? ms_fail_errno(err, MS_ERR_IO, errno, "%s", path) : MS_OK;
    if (status == MS_OK && len == KEY_FILE_MAX_BYTES) {
        status = ms_fail(err, MS_ERR_USAGE, "%s: expected less than %d bytes of keys", path, KEY_FILE_MAX_BYTES);
    }
    size_t before = k->count;
    if (status == MS_OK) status = add_lines(k, text, len, err);
    if (status == MS_OK && k->count == before)
        status = ms_fail(err, MS_ERR_USAGE, "%s: expected a key, found none", path);
    OPENSSL_cleanse(text, KEY_FILE_MAX_BYTES);
    free(text);
    return status;
}

ms_status ms_keys_add_file(ms_keys *k, const char *path, ms_error *err) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return ms_fail_errno(err, MS_ERR_USAGE, errno, "%s", path);
    ms_status status = read_lines(k, fd, path, err);
    (void)close(fd);
    return status;
}

void ms_keys_free(ms_keys *k) {
    free(k->digests);
    *k = (ms_keys){0};
}

bool ms_keys_match(const ms_keys *k, const char *key, size_t len) {
    uint8_t digest[MS_KEY_DIGEST_BYTES];
    (void)SHA256((const unsigned char *)key, len, digest);
    unsigned found = 0;
    for (size_t i = 0; i < k->count; i++) found |= CRYPTO_memcmp(digest, k->digests[i], sizeof digest) == 0;
    return found;
}
