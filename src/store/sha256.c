#include "store/sha256.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/file.h"

struct ms_sha256 {
    EVP_MD_CTX *context;
};

enum { PIECE = 4 << 20 };

ms_status ms_sha256_begin(ms_sha256 **out, ms_error *err) {
    ms_sha256 *s = calloc(1, sizeof *s);
    if (s) s->context = EVP_MD_CTX_new();
    if (!s || !s->context || EVP_DigestInit_ex(s->context, EVP_sha256(), NULL) != 1) {
        ms_sha256_drop(s);
        return ms_fail_memory(err, "SHA-256", sizeof *s);
    }
    *out = s;
    return MS_OK;
}

void ms_sha256_add(ms_sha256 *s, const void *data, size_t length) { (void)EVP_DigestUpdate(s->context, data, length); }

void ms_sha256_end(ms_sha256 *s, uint8_t out[MS_SHA256_BYTES]) {
    unsigned n = MS_SHA256_BYTES;
    (void)EVP_DigestFinal_ex(s->context, out, &n);
    ms_sha256_drop(s);
}

void ms_sha256_drop(ms_sha256 *s) {
    if (!s) return;
    EVP_MD_CTX_free(s->context);
    free(s);
}

void ms_sha256_hex(char out[MS_SHA256_HEX], const uint8_t sha[MS_SHA256_BYTES]) {
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < MS_SHA256_BYTES; i++) {
        out[2 * i] = digits[sha[i] >> 4];
        out[2 * i + 1] = digits[sha[i] & 15];
    }
    out[2 * MS_SHA256_BYTES] = 0;
}

static int digit(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; }

bool ms_sha256_from_hex(uint8_t out[MS_SHA256_BYTES], const char *text, size_t length) {
    if (length != 2 * MS_SHA256_BYTES) return false;
    for (int i = 0; i < MS_SHA256_BYTES; i++) {
        int high = digit(text[2 * i]), low = digit(text[2 * i + 1]);
        if (high < 0 || low < 0) return false;
        out[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

static ms_status add_file(ms_sha256 *s, int fd, const char *path, uint64_t *bytes, ms_error *err) {
    struct stat st;
    if (fstat(fd, &st) != 0) return ms_fail_errno(err, MS_ERR_IO, errno, "%s: stat", path);
    if (!S_ISREG(st.st_mode)) return ms_fail_not_regular(err, path, st.st_mode);
    uint8_t *piece = malloc(PIECE);
    if (!piece) return ms_fail_memory(err, path, PIECE);
    uint64_t size = (uint64_t)st.st_size;
    ms_status status = MS_OK;
    for (uint64_t at = 0; status == MS_OK && at < size; at += PIECE) {
        size_t n = size - at < PIECE ? (size_t)(size - at) : PIECE;
        status = ms_file_pread_exact(fd, path, piece, n, at, err);
        if (status == MS_OK) ms_sha256_add(s, piece, n);
    }
    free(piece);
    if (bytes) *bytes = size;
    return status;
}

ms_status ms_sha256_file(uint8_t out[MS_SHA256_BYTES], const char *path, uint64_t *bytes, ms_error *err) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return ms_fail_errno(err, MS_ERR_IO, errno, "%s: open", path);
    ms_sha256 *s = NULL;
    ms_status status = ms_sha256_begin(&s, err);
    if (status == MS_OK) status = add_file(s, fd, path, bytes, err);
    if (status == MS_OK)
        ms_sha256_end(s, out);
    else
        ms_sha256_drop(s);
    (void)close(fd);
    return status;
}
