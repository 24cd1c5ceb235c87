/* Causal-state import from hostile files.
 *
 * The first input byte chooses what the rest means: 0: the file itself; else a list of 3-byte edits (offset, value) of
 * a good file, where bit 1 makes the payload checksum right again, bit 2 the header checksum, and bit 3 cuts or extends
 * the file to the last edit's offset.  A refused file must leave state, position and tokens; an accepted one must be
 * exported again to the same bytes.
 */
#include "../session/fake_session.h"
#include "base/crc64.h"

#include <fcntl.h>
#include <unistd.h>

enum { HEADER = 256, PART_BYTES = 2 * 100 + 2 * 18 + 2 * 12 * 7, WHOLE = HEADER + PART_BYTES + 4 * 7, MOST = 4096 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool what) {
    if (!what) abort();
}

static void store(const char *path, const uint8_t *data, size_t n) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    require(fd >= 0 && write(fd, data, n) == (ssize_t)n);
    (void)close(fd);
}

static size_t load(const char *path, uint8_t *to, size_t room) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    require(fd >= 0);
    ssize_t n = read(fd, to, room);
    require(n >= 0);
    (void)close(fd);
    return (size_t)n;
}

static size_t edited(uint8_t *file, const uint8_t *data, size_t size) {
    size_t n = WHOLE, last = WHOLE;
    uint8_t mode = data[0];
    for (size_t i = 1; i + 3 <= size; i += 3) {
        size_t at = ((size_t)data[i] << 8 | data[i + 1]) % (WHOLE + 64);
        file[at] = data[i + 2];
        last = at;
    }
    if (mode & 8) n = last;
    if ((mode & 2) && n >= HEADER) ms_put_le64(file + 240, ms_crc64(0, file + HEADER, n - HEADER));
    if (mode & 4) {
        memset(file + 248, 0, 8);
        ms_put_le64(file + 248, ms_crc64(0, file, HEADER));
    }
    return n;
}

static void check(fake_session *f, const char *path, const uint8_t *file, size_t n) {
    static uint8_t again[MOST];
    ms_digest before, after;
    ms_error err = {0};
    require(ms_session_digest(&f->session, &before, &err) == MS_OK);
    if (ms_session_import(&f->session, path, &err) == MS_OK) {
        require(f->session.state.position <= f->session.state.context && !f->session.has_logits);
        require(ms_session_export(&f->session, path, true, &err) == MS_OK);
        require(load(path, again, sizeof again) == n && memcmp(again, file, n) == 0);
        return;
    }
    require(err.code != MS_OK && strstr(err.message, path) != NULL && f->session.has_logits);
    require(ms_session_digest(&f->session, &after, &err) == MS_OK && memcmp(&before, &after, sizeof before) == 0);
    for (uint32_t i = 0; i < 5; i++) require(f->session.tokens[i] == 900 + i);
}

/* Made once: every export waits for the disk. */
static void good_file(const char *path, uint8_t *to) {
    static uint8_t good[MOST];
    static bool made;
    if (!made) {
        fake_options o = fake_defaults();
        fake_session f;
        ms_error err;
        require(fake_open(&f, &o, &err) == MS_OK);
        for (uint32_t i = 0; i < 7; i++) fake_forward(&f, i * 137 % 1000);
        (void)unlink(path);
        require(ms_session_export(&f.session, path, false, &err) == MS_OK);
        require(load(path, good, sizeof good) == WHOLE);
        fake_close(&f);
        made = true;
    }
    memcpy(to, good, WHOLE);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1 || size > MOST) return 0;
    static uint8_t file[MOST];
    char path[64];
    (void)snprintf(path, sizeof path, "/tmp/ms-fuzz-state-%ld", (long)getpid());
    fake_options o = fake_defaults();
    fake_session f;
    ms_error err;
    memset(file, 0, sizeof file);
    size_t n = size - 1;
    if (data[0] == 0) {
        memcpy(file, data + 1, n);
    } else {
        good_file(path, file);
        n = edited(file, data, size);
    }
    store(path, file, n);
    require(fake_open(&f, &o, &err) == MS_OK);
    for (uint32_t i = 0; i < 5; i++) fake_forward(&f, 900 + i);
    check(&f, path, file, n);
    require(f.backend.held == 10);
    fake_close(&f);
    require(f.backend.held == 0);
    (void)unlink(path);
    return 0;
}
