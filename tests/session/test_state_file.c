/* Causal-state files: round trip, every kind of damage, foreign setups, odd files, failing disks. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/crc64.h"
#include "fake_session.h"
#include "session/state_image.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    HEADER = 256,
    POSITION = 7, /* of the exported session */
    PART_BYTES = 2 * 100 + 2 * 18 + 2 * 12 * POSITION,
    WHOLE = HEADER + PART_BYTES + 4 * POSITION
};

typedef struct fixture {
    char dir[64], path[96];
    fake_session from, to; /* the file's author; a session with a state of its own */
    uint8_t good[WHOLE];
    ms_digest from_digest, to_digest;
} fixture;

static ms_digest digest_of(fake_session *f) {
    ms_digest d;
    ms_error err;
    assert_int_equal(ms_session_digest(&f->session, &d, &err), MS_OK);
    return d;
}

static void write_file(const char *path, const void *data, size_t n) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, n), (ssize_t)n);
    assert_int_equal(close(fd), 0);
}

static size_t read_file(const char *path, uint8_t *to, size_t room) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    ssize_t n = read(fd, to, room);
    assert_true(n >= 0);
    assert_int_equal(close(fd), 0);
    return (size_t)n;
}

static void export_to(fake_session *f, const char *path) {
    ms_error err;
    if (ms_session_export(&f->session, path, true, &err) != MS_OK) fail_msg("%s", err.message);
}

static uint32_t author_token(uint32_t i) { return i * 137 % 1000; }

static int setup(void **state) {
    fixture *x = calloc(1, sizeof *x);
    assert_non_null(x);
    strcpy(x->dir, "/tmp/ms-state-XXXXXX");
    assert_non_null(mkdtemp(x->dir));
    (void)snprintf(x->path, sizeof x->path, "%s/a.state", x->dir);
    fake_options o = fake_defaults();
    ms_error err;
    assert_int_equal(fake_open(&x->from, &o, &err), MS_OK);
    assert_int_equal(fake_open(&x->to, &o, &err), MS_OK);
    for (uint32_t i = 0; i < POSITION; i++) fake_forward(&x->from, author_token(i));
    for (uint32_t i = 0; i < 11; i++) fake_forward(&x->to, 500 + i);
    x->from_digest = digest_of(&x->from);
    x->to_digest = digest_of(&x->to);
    export_to(&x->from, x->path);
    assert_int_equal(read_file(x->path, x->good, WHOLE), WHOLE);
    *state = x;
    return 0;
}

/* The folder must hold nothing but the fixture's file: no temporary may be left anywhere. */
static int teardown(void **state) {
    fixture *x = *state;
    (void)unlink(x->path);
    assert_int_equal(rmdir(x->dir), 0);
    fake_close(&x->from);
    fake_close(&x->to);
    assert_int_equal(x->from.backend.held + x->to.backend.held, 0);
    free(x);
    return 0;
}

static void assert_untouched(fixture *x) {
    ms_digest d = digest_of(&x->to);
    assert_memory_equal(&d, &x->to_digest, sizeof d);
    assert_true(x->to.session.has_logits);
    assert_int_equal(x->to.session.timeline, 0);
    assert_int_equal(x->to.backend.uploads, 0);
    for (uint32_t i = 0; i < 11; i++) assert_int_equal(x->to.session.tokens[i], 500 + i);
}

static void assert_import_refused(fixture *x, const char *path, ms_status code, const char *word) {
    ms_error err = {0};
    ms_status status = ms_session_import(&x->to.session, path, &err);
    if (status != code || !strstr(err.message, word) || !strstr(err.message, path)) {
        fail_msg("expected %s with \"%s\", found %s: %s", ms_status_name(code), word, ms_status_name(status),
                 err.message);
    }
    assert_untouched(x);
}

static void assert_bytes_refused(fixture *x, const void *data, size_t n, ms_status code, const char *word) {
    write_file(x->path, data, n);
    assert_import_refused(x, x->path, code, word);
}

/* Makes both checksums right again, as a careful forger would. */
static void forge(uint8_t *file, size_t n) {
    ms_put_le64(file + 240, ms_crc64(0, file + HEADER, n - HEADER));
    memset(file + 248, 0, 8);
    ms_put_le64(file + 248, ms_crc64(0, file, HEADER));
}

/* ------------------------------------------------------------------ round trip */

static void import_gives_the_exported_state(void **state) {
    fixture *x = *state;
    ms_error err;
    struct stat st;
    assert_int_equal(stat(x->path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(st.st_size, WHOLE);
    assert_int_equal(ms_session_import(&x->to.session, x->path, &err), MS_OK);
    ms_digest d = digest_of(&x->to);
    assert_memory_equal(&d, &x->from_digest, sizeof d);
    assert_int_equal(d.position, POSITION);
    assert_false(x->to.session.has_logits);
    assert_int_not_equal(x->to.session.timeline, 0);
    for (uint32_t i = 0; i < POSITION; i++) assert_int_equal(x->to.session.tokens[i], author_token(i));
    for (uint32_t i = 0; i < 9; i++) { /* both go on alike */
        fake_forward(&x->from, 30 + i);
        fake_forward(&x->to, 30 + i);
    }
    ms_digest a = digest_of(&x->from), b = digest_of(&x->to);
    assert_memory_equal(&a, &b, sizeof a);
    export_to(&x->to, x->path);
    assert_int_equal(ms_session_import(&x->from.session, x->path, &err), MS_OK);
}

static void export_is_canonical(void **state) {
    fixture *x = *state;
    ms_error err;
    uint8_t again[WHOLE + 1];
    assert_int_equal(ms_session_import(&x->to.session, x->path, &err), MS_OK);
    export_to(&x->to, x->path);
    assert_int_equal(read_file(x->path, again, sizeof again), WHOLE);
    assert_memory_equal(again, x->good, WHOLE);
}

static void header_is_the_documented_one(void **state) {
    fixture *x = *state;
    const uint8_t *h = x->good;
    static const uint8_t start[32] = "MSSTATE\0\1\0\0\0\4\3\2\1\0\1\0\0\1\0\0\0\1\0\0\0\xe8\3\0";
    assert_memory_equal(h, start, sizeof start);
    char lane[32] = "fake";
    assert_memory_equal(h + 32, lane, 32);
    assert_int_equal(ms_le64(h + 64), 32);
    assert_int_equal(ms_le64(h + 72), POSITION);
    assert_true(ms_le64(h + 80) == UINT64_C(0x1122334455667788));
    assert_true(ms_le64(h + 88) == ms_session_identity(&x->from.session));
    assert_int_equal(ms_le32(h + 96), 6);
    assert_int_equal(ms_le32(h + 100), 3);
    static const char kinds[3][8] = {"kda", "conv", "mla"};
    static const uint64_t bytes[3] = {200, 36, 24 * POSITION};
    for (int i = 0; i < 8; i++) {
        static const char none[8] = "";
        assert_memory_equal(h + 104 + 16 * i, i < 3 ? kinds[i] : none, 8);
        assert_int_equal(ms_le64(h + 112 + 16 * i), i < 3 ? bytes[i] : 0);
    }
    assert_int_equal(ms_le64(h + 232), WHOLE - HEADER);
    assert_true(ms_le64(h + 240) == ms_crc64(0, h + HEADER, WHOLE - HEADER));
    uint8_t zeroed[HEADER];
    memcpy(zeroed, h, HEADER);
    memset(zeroed + 248, 0, 8);
    assert_true(ms_le64(h + 248) == ms_crc64(0, zeroed, HEADER));
    const ms_state_part *p = x->from.session.state.parts;
    const uint8_t *at = h + HEADER;
    for (int i = 0; i < 6; i++) {
        size_t n = (size_t)ms_state_part_bytes(&x->from.session.state, &p[i]);
        assert_memory_equal(at, p[i].current, n);
        at += n;
    }
    for (uint32_t i = 0; i < POSITION; i++) assert_int_equal(ms_le32(at + 4 * i), author_token(i));
}

static void empty_and_full_sessions_travel(void **state) {
    fixture *x = *state;
    ms_error err;
    uint8_t raw[HEADER + 236 + 1];
    fake_reset(&x->from);
    ms_digest empty = digest_of(&x->from);
    export_to(&x->from, x->path);
    assert_int_equal(read_file(x->path, raw, sizeof raw), HEADER + 236);
    assert_int_equal(ms_session_import(&x->to.session, x->path, &err), MS_OK);
    ms_digest d = digest_of(&x->to);
    assert_memory_equal(&d, &empty, sizeof d);
    for (uint32_t i = 0; i < 32; i++) fake_forward(&x->from, 999 - i);
    ms_digest full = digest_of(&x->from);
    export_to(&x->from, x->path);
    assert_int_equal(ms_session_import(&x->to.session, x->path, &err), MS_OK);
    d = digest_of(&x->to);
    assert_memory_equal(&d, &full, sizeof d);
    assert_int_equal(x->to.session.tokens[31], 999 - 31);
}

static void parts_larger_than_a_piece_travel(void **state) {
    fixture *x = *state;
    fake_options o = fake_defaults();
    o.kda_bytes = (1u << 20) + 1;
    o.conv_bytes = 2u << 20;
    o.row_bytes = 600001;
    fake_session a, b;
    ms_error err;
    assert_int_equal(fake_open(&a, &o, &err), MS_OK);
    assert_int_equal(fake_open(&b, &o, &err), MS_OK);
    for (uint32_t i = 0; i < 3; i++) fake_forward(&a, i);
    export_to(&a, x->path);
    assert_int_equal(ms_session_import(&b.session, x->path, &err), MS_OK);
    ms_digest da = digest_of(&a), db = digest_of(&b);
    assert_memory_equal(&da, &db, sizeof da);
    fake_close(&a);
    fake_close(&b);
}

static void import_ends_snapshots(void **state) {
    fixture *x = *state;
    ms_error err;
    ms_snapshot *snap;
    assert_int_equal(ms_session_snapshot(&x->to.session, &snap, &err), MS_OK);
    uint8_t bad[WHOLE];
    memcpy(bad, x->good, WHOLE);
    bad[WHOLE - 1] ^= 1;
    assert_bytes_refused(x, bad, WHOLE, MS_ERR_FORMAT, "payload CRC");
    fake_forward(&x->to, 1);
    assert_int_equal(ms_session_restore(&x->to.session, snap, &err), MS_OK); /* a refused import changes nothing */
    write_file(x->path, x->good, WHOLE);
    assert_int_equal(ms_session_import(&x->to.session, x->path, &err), MS_OK);
    assert_int_equal(ms_session_restore(&x->to.session, snap, &err), MS_ERR_USAGE);
    ms_snapshot_destroy(snap);
}

/* ------------------------------------------------------------------ damage */

static void every_damaged_header_byte_is_noticed(void **state) {
    fixture *x = *state;
    uint8_t bad[WHOLE];
    for (int i = 0; i < HEADER; i++) {
        static const uint8_t flips[] = {0x01, 0x80, 0xff};
        for (int k = 0; k < 3; k++) {
            memcpy(bad, x->good, WHOLE);
            bad[i] ^= flips[k];
            const char *word = i < 8    ? "magic"
                               : i < 12 ? "version"
                               : i < 16 ? "byte order"
                               : i < 20 ? "header length"
                                        : "header CRC";
            assert_bytes_refused(x, bad, WHOLE, i >= 8 && i < 12 ? MS_ERR_UNSUPPORTED : MS_ERR_FORMAT, word);
        }
    }
}

static void every_damaged_payload_byte_is_noticed(void **state) {
    fixture *x = *state;
    uint8_t bad[WHOLE];
    for (int i = HEADER; i < WHOLE; i++) {
        memcpy(bad, x->good, WHOLE);
        bad[i] ^= (uint8_t)(1u << i % 8);
        assert_bytes_refused(x, bad, WHOLE, MS_ERR_FORMAT, "payload CRC");
    }
    memcpy(bad, x->good, WHOLE); /* swapped halves */
    memcpy(bad + HEADER, x->good + HEADER + 100, 100);
    memcpy(bad + HEADER + 100, x->good + HEADER, 100);
    assert_bytes_refused(x, bad, WHOLE, MS_ERR_FORMAT, "payload CRC");
}

/* Fields with a right checksum around a wrong value. */
static void every_forged_field_is_named(void **state) {
    fixture *x = *state;
    static const struct {
        size_t at;
        uint64_t value;
        int bytes;
        ms_status code;
        const char *word;
    } cases[] = {
        {8, 0, 4, MS_ERR_UNSUPPORTED, "version: expected 1, found 0"},
        {8, 2, 4, MS_ERR_UNSUPPORTED, "version: expected 1, found 2"},
        {12, 0x04030201, 4, MS_ERR_FORMAT, "byte order mark: expected 0x01020304, found 0x04030201"},
        {16, 255, 4, MS_ERR_FORMAT, "header length: expected 256, found 255"},
        {16, 0xffffffff, 4, MS_ERR_FORMAT, "header length"},
        {20, 2, 4, MS_ERR_UNSUPPORTED, "precision: expected fast, found reference"},
        {20, 0, 4, MS_ERR_UNSUPPORTED, "precision: expected fast, found unknown"},
        {24, 2, 4, MS_ERR_UNSUPPORTED, "static format: expected q8, found bf16"},
        {24, 77, 4, MS_ERR_UNSUPPORTED, "static format: expected q8, found unknown"},
        {28, 1001, 4, MS_ERR_UNSUPPORTED, "vocabulary: expected 1000, found 1001"},
        {32, 0x656b6f, 4, MS_ERR_UNSUPPORTED, "lane: expected fake, found oke"},
        {56, 1, 8, MS_ERR_UNSUPPORTED, "lane: expected fake, found fake"},
        {64, 31, 8, MS_ERR_UNSUPPORTED, "context: expected 32, found 31"},
        {64, UINT64_MAX, 8, MS_ERR_UNSUPPORTED, "context: expected 32, found 18446744073709551615"},
        {72, 33, 8, MS_ERR_FORMAT, "position: expected at most the context of 32, found 33"},
        {72, UINT64_MAX, 8, MS_ERR_FORMAT, "position"},
        {72, UINT64_MAX / 12 + 1, 8, MS_ERR_FORMAT, "position"},
        {72, 6, 8, MS_ERR_FORMAT, "segment 2: expected \"mla\" of 144 bytes, found \"mla\" of 168"},
        {72, 8, 8, MS_ERR_FORMAT, "segment 2"},
        {72, 0, 8, MS_ERR_FORMAT, "segment 2"},
        {80, 5, 8, MS_ERR_UNSUPPORTED, "checkpoint layout: expected 1122334455667788, found 0000000000000005"},
        {88, 5, 8, MS_ERR_UNSUPPORTED, "state layout: expected "},
        {96, 5, 4, MS_ERR_FORMAT, "part count: expected 6, found 5"},
        {96, 0xffffffff, 4, MS_ERR_FORMAT, "part count"},
        {100, 2, 4, MS_ERR_FORMAT, "segment count: expected 3, found 2"},
        {100, 0xffffffff, 4, MS_ERR_FORMAT, "segment count"},
        {104, 0x616b64, 4, MS_ERR_FORMAT, "segment 0: expected \"kda\""},
        {111, 0x41, 1, MS_ERR_FORMAT, "segment 0"},
        {112, 201, 8, MS_ERR_FORMAT, "segment 0: expected \"kda\" of 200 bytes, found \"kda\" of 201"},
        {128, 0, 8, MS_ERR_FORMAT, "segment 1: expected \"conv\" of 36 bytes"},
        {144, UINT64_MAX, 8, MS_ERR_FORMAT, "segment 2"},
        {152, 0x78, 8, MS_ERR_FORMAT, "segment 3: expected \"\" of 0 bytes, found \"x\" of 0"},
        {224, 1, 8, MS_ERR_FORMAT, "segment 7"},
        {232, WHOLE - HEADER - 1, 8, MS_ERR_FORMAT, "payload length: expected 432, found 431"},
        {232, UINT64_MAX, 8, MS_ERR_FORMAT, "payload length"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint8_t bad[WHOLE];
        memcpy(bad, x->good, WHOLE);
        for (int b = 0; b < cases[i].bytes; b++) bad[cases[i].at + (size_t)b] = (uint8_t)(cases[i].value >> 8 * b);
        forge(bad, WHOLE);
        assert_bytes_refused(x, bad, WHOLE, cases[i].code, cases[i].word);
    }
}

static void forged_token_ids_are_refused(void **state) {
    fixture *x = *state;
    static const uint32_t ids[] = {1000, 0x80000000u, 0xffffffffu};
    for (int i = 0; i < 3; i++) {
        uint8_t bad[WHOLE];
        memcpy(bad, x->good, WHOLE);
        ms_put_le32(bad + WHOLE - 8, ids[i]);
        forge(bad, WHOLE);
        char word[80];
        (void)snprintf(word, sizeof word, "token 5: expected an id below 1000, found %u", ids[i]);
        assert_bytes_refused(x, bad, WHOLE, MS_ERR_FORMAT, word);
    }
    uint8_t fine[WHOLE];
    memcpy(fine, x->good, WHOLE);
    ms_put_le32(fine + WHOLE - 8, 999);
    forge(fine, WHOLE);
    write_file(x->path, fine, WHOLE);
    ms_error err;
    assert_int_equal(ms_session_import(&x->to.session, x->path, &err), MS_OK);
    assert_int_equal(x->to.session.tokens[5], 999);
}

static void every_truncation_is_noticed(void **state) {
    fixture *x = *state;
    static const size_t borders[] = {HEADER + 100, HEADER + 200, HEADER + 218,
                                     HEADER + 236, HEADER + 320, HEADER + PART_BYTES};
    for (size_t n = 0; n <= HEADER + 1; n++) {
        assert_bytes_refused(x, x->good, n, MS_ERR_FORMAT, "file size");
    }
    for (size_t i = 0; i < sizeof borders / sizeof borders[0]; i++) {
        for (size_t n = borders[i] - 1; n <= borders[i] + 1; n++) {
            assert_bytes_refused(x, x->good, n, MS_ERR_FORMAT, "file size: expected 688 bytes");
        }
    }
    assert_bytes_refused(x, x->good, WHOLE - 1, MS_ERR_FORMAT, "file size: expected 688 bytes, found 687");
}

static void appended_bytes_are_refused(void **state) {
    fixture *x = *state;
    uint8_t longer[WHOLE + 4096] = {0};
    memcpy(longer, x->good, WHOLE);
    assert_bytes_refused(x, longer, WHOLE + 1, MS_ERR_FORMAT, "file size: expected 688 bytes, found 689");
    assert_bytes_refused(x, longer, sizeof longer, MS_ERR_FORMAT, "file size");
    write_file(x->path, x->good, WHOLE); /* a hole of a terabyte must not even be read */
    assert_int_equal(truncate(x->path, (off_t)1 << 40), 0);
    assert_import_refused(x, x->path, MS_ERR_FORMAT, "file size: expected 688 bytes, found 1099511627776");
}

/* ------------------------------------------------------------------ other setups */

static void other_setups_are_named(void **state) {
    fixture *x = *state;
    static const char *const words[] = {"context: expected 32, found 33",
                                        "precision: expected fast, found reference",
                                        "static format: expected q8, found bf16",
                                        "checkpoint layout: expected 1122334455667788, found 1122334455667789",
                                        "lane: expected fake, found other",
                                        "state layout: expected ",
                                        "vocabulary: expected 1000, found 999",
                                        "precision: expected fast, found reference; context: expected 32, found 64"};
    for (int i = 0; i < 8; i++) {
        fake_options o = fake_defaults();
        if (i == 0) o.context = 33;
        if (i == 1 || i == 7) o.precision = MS_PRECISION_REFERENCE;
        if (i == 2) o.static_format = MS_STATIC_BF16;
        if (i == 3) o.layout++;
        if (i == 4) o.lane = "other";
        if (i == 5) o.row_bytes = 24;
        if (i == 6) o.vocab = 999;
        if (i == 7) o.context = 64;
        fake_session other;
        ms_error err;
        assert_int_equal(fake_open(&other, &o, &err), MS_OK);
        for (uint32_t t = 0; t < 4; t++) fake_forward(&other, t);
        export_to(&other, x->path);
        assert_import_refused(x, x->path, MS_ERR_UNSUPPORTED, words[i]);
        fake_close(&other);
    }
}

/* ------------------------------------------------------------------ odd files */

static void odd_files_are_refused_without_waiting(void **state) {
    fixture *x = *state;
    char other[128];
    (void)snprintf(other, sizeof other, "%s/odd", x->dir);
    (void)alarm(20); /* a hang ends the program */
    assert_import_refused(x, other, MS_ERR_IO, "open");
    assert_int_equal(symlink(x->path, other), 0);
    assert_import_refused(x, other, MS_ERR_IO, "symbolic link");
    ms_error err;
    assert_int_equal(ms_session_export(&x->from.session, other, true, &err), MS_ERR_IO);
    assert_int_equal(unlink(other), 0);
    assert_int_equal(mkfifo(other, 0600), 0);
    assert_import_refused(x, other, MS_ERR_FORMAT, "expected a regular file");
    assert_int_equal(ms_session_export(&x->from.session, other, true, &err), MS_ERR_IO);
    assert_int_equal(unlink(other), 0);
    assert_import_refused(x, x->dir, MS_ERR_FORMAT, "expected a regular file");
    assert_import_refused(x, "/dev/zero", MS_ERR_FORMAT, "expected a regular file");
    assert_import_refused(x, "", MS_ERR_IO, "open");
    (void)alarm(0);
}

static size_t entries_in(const char *dir) {
    DIR *d = opendir(dir);
    assert_non_null(d);
    size_t n = 0;
    for (const struct dirent *e = readdir(d); e; e = readdir(d)) n += e->d_name[0] != '.' || strlen(e->d_name) > 2;
    (void)closedir(d);
    return n;
}

static void an_existing_target_stays_without_replace(void **state) {
    fixture *x = *state;
    ms_error err;
    write_file(x->path, "mine", 4);
    assert_int_equal(ms_session_export(&x->from.session, x->path, false, &err), MS_ERR_IO);
    assert_non_null(strstr(err.message, x->path));
    uint8_t back[WHOLE];
    assert_int_equal(read_file(x->path, back, sizeof back), 4);
    assert_memory_equal(back, "mine", 4);
    assert_int_equal(entries_in(x->dir), 1);
    assert_int_equal(ms_session_export(&x->from.session, x->path, true, &err), MS_OK);
    assert_int_equal(read_file(x->path, back, sizeof back), WHOLE);
    assert_int_equal(unlink(x->path), 0);
    assert_int_equal(ms_session_export(&x->from.session, x->path, false, &err), MS_OK);
    assert_int_equal(entries_in(x->dir), 1);
}

static void an_unwritable_folder_is_an_error(void **state) {
    fixture *x = *state;
    ms_error err;
    assert_int_equal(chmod(x->dir, 0555), 0);
    bool root = geteuid() == 0; /* root writes anywhere */
    if (root) assert_int_equal(seteuid(65534), 0);
    char other[128];
    (void)snprintf(other, sizeof other, "%s/new", x->dir);
    ms_status status = ms_session_export(&x->from.session, other, false, &err);
    if (root) assert_int_equal(seteuid(0), 0);
    assert_int_equal(chmod(x->dir, 0700), 0);
    assert_int_equal(status, MS_ERR_IO);
    assert_non_null(strstr(err.message, other));
    assert_int_equal(entries_in(x->dir), 1);
    assert_int_equal(ms_session_export(&x->from.session, "/nowhere/at/all", false, &err), MS_ERR_IO);
}

static void assert_export_leaves_the_old_file(fixture *x, const char *path, const char *dir) {
    ms_error err;
    assert_int_equal(ms_session_export(&x->to.session, path, true, &err), MS_ERR_IO);
    assert_non_null(strstr(err.message, path));
    assert_int_equal(entries_in(dir), 1);
    uint8_t back[WHOLE + 1];
    assert_int_equal(read_file(path, back, sizeof back), WHOLE);
    assert_memory_equal(back, x->good, WHOLE);
    assert_untouched(x);
}

static void a_file_size_limit_leaves_the_old_file(void **state) {
    fixture *x = *state;
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    static const rlim_t limits[] = {0, 100, HEADER, HEADER + 1, WHOLE - 1};
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        small = (struct rlimit){.rlim_cur = limits[i], .rlim_max = old.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        ms_error err;
        ms_status status = ms_session_export(&x->to.session, x->path, true, &err);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
        assert_int_equal(status, MS_ERR_IO);
    }
    small = (struct rlimit){.rlim_cur = 300, .rlim_max = old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    assert_export_leaves_the_old_file(x, x->path, x->dir);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    (void)signal(SIGXFSZ, handler);
}

/* Where mounting is allowed; the limit above covers the rest. */
static void a_full_disk_leaves_the_old_file(void **state) {
    fixture *x = *state;
    char disk[128], path[160], ballast[160];
    (void)snprintf(disk, sizeof disk, "%s/disk", x->dir);
    assert_int_equal(mkdir(disk, 0700), 0);
    if (mount("none", disk, "tmpfs", 0, "size=64k") == 0) {
        (void)snprintf(path, sizeof path, "%s/a.state", disk);
        (void)snprintf(ballast, sizeof ballast, "%s/ballast", x->dir);
        write_file(path, x->good, WHOLE);
        char inside[192];
        (void)snprintf(inside, sizeof inside, "%s/.b", disk);
        int fd = open(inside, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        assert_true(fd >= 0);
        static const char block[4096];
        while (write(fd, block, sizeof block) == (ssize_t)sizeof block) continue;
        (void)close(fd);
        ms_error err;
        ms_status status = ms_session_export(&x->to.session, path, true, &err);
        (void)unlink(inside);
        size_t left = entries_in(disk);
        uint8_t back[WHOLE + 1];
        size_t n = read_file(path, back, sizeof back);
        assert_int_equal(umount(disk), 0);
        assert_int_equal(status, MS_ERR_IO);
        assert_int_equal(left, 1);
        assert_int_equal(n, WHOLE);
        assert_memory_equal(back, x->good, WHOLE);
        assert_untouched(x);
    }
    assert_int_equal(rmdir(disk), 0);
}

/* ------------------------------------------------------------------ trouble inside */

typedef struct meddler {
    const char *path;
    size_t when, at; /* after upload `when`, flip the byte at `at`; at == SIZE_MAX: cut the file short */
} meddler;

static void meddle(void *arg, size_t number) {
    const meddler *m = arg;
    if (number != m->when) return;
    if (m->at == SIZE_MAX) {
        assert_int_equal(truncate(m->path, HEADER + 210), 0);
        return;
    }
    int fd = open(m->path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    uint8_t b;
    assert_int_equal(pread(fd, &b, 1, (off_t)m->at), 1);
    b ^= 1;
    assert_int_equal(pwrite(fd, &b, 1, (off_t)m->at), 1);
    assert_int_equal(close(fd), 0);
}

/* A file that changes between the two reads: never half a state. */
static void a_file_that_changes_while_read_is_noticed(void **state) {
    fixture *x = *state;
    static const struct {
        size_t when, at;
        ms_status code;
        bool reset;
    } cases[] = {
        {1, SIZE_MAX, MS_ERR_IO, false},           /* ends inside the fixed parts: nothing was overwritten */
        {4, SIZE_MAX, MS_ERR_IO, false},           /* ends before the rows */
        {5, SIZE_MAX, MS_ERR_IO, true},            /* ends between the rows */
        {1, HEADER + 150, MS_ERR_FORMAT, true},    /* a fixed part changed */
        {1, HEADER + 236 + 5, MS_ERR_FORMAT, true} /* a row changed */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ms_error err;
        write_file(x->path, x->good, WHOLE);
        meddler m = {x->path, cases[i].when, cases[i].at};
        fake_session f;
        fake_options o = fake_defaults();
        assert_int_equal(fake_open(&f, &o, &err), MS_OK);
        ms_digest zero = digest_of(&f);
        for (uint32_t t = 0; t < 9; t++) fake_forward(&f, t);
        ms_digest before = digest_of(&f);
        f.backend.on_upload = meddle;
        f.backend.on_upload_arg = &m;
        assert_int_equal(ms_session_import(&f.session, x->path, &err), cases[i].code);
        ms_digest after = digest_of(&f);
        assert_memory_equal(&after, cases[i].reset ? &zero : &before, sizeof after);
        assert_int_equal(f.session.has_logits, !cases[i].reset);
        assert_int_equal(strstr(err.message, "was reset to position 0") != NULL, cases[i].reset);
        fake_close(&f);
    }
}

/* The token ids come from the checked read: a later change of them in the file has no effect. */
static void token_ids_are_those_that_were_checked(void **state) {
    fixture *x = *state;
    ms_error err;
    meddler m = {x->path, 1, WHOLE - 2};
    x->to.backend.on_upload = meddle;
    x->to.backend.on_upload_arg = &m;
    assert_int_equal(ms_session_import(&x->to.session, x->path, &err), MS_OK);
    for (uint32_t i = 0; i < POSITION; i++) assert_int_equal(x->to.session.tokens[i], author_token(i));
}

static void a_fresh_session_needs_no_reset(void **state) {
    fixture *x = *state;
    ms_error err;
    fake_reset(&x->to);
    ms_digest zero = digest_of(&x->to);
    meddler m = {x->path, 1, WHOLE - 40};
    x->to.backend.on_upload = meddle;
    x->to.backend.on_upload_arg = &m;
    assert_int_equal(ms_session_import(&x->to.session, x->path, &err), MS_ERR_FORMAT);
    assert_non_null(strstr(err.message, "changed while it was read"));
    assert_null(strstr(err.message, "reset"));
    ms_digest d = digest_of(&x->to);
    assert_memory_equal(&d, &zero, sizeof d);
}

static void a_failing_device_fails_export_and_import(void **state) {
    fixture *x = *state;
    ms_error err;
    x->to.backend.sync_fails = true;
    assert_int_equal(ms_session_export(&x->to.session, x->path, true, &err), MS_ERR_IO);
    assert_int_equal(ms_session_import(&x->to.session, x->path, &err), MS_ERR_IO);
    x->to.backend.sync_fails = false;
    ms_digest d = digest_of(&x->to);
    assert_memory_equal(&d, &x->to_digest, sizeof d); /* it failed at the first fixed part */
    assert_int_equal(entries_in(x->dir), 1);
    uint8_t back[WHOLE + 1];
    assert_int_equal(read_file(x->path, back, sizeof back), WHOLE);
    assert_memory_equal(back, x->good, WHOLE);
}

/* ------------------------------------------------------------------ images */

static void an_image_is_the_file(void **state) {
    fixture *x = *state;
    ms_error err;
    ms_state_image image;
    uint64_t bytes;
    assert_int_equal(ms_state_image_size(&x->from.session, POSITION, &bytes, &err), MS_OK);
    assert_int_equal(bytes, WHOLE);
    assert_int_equal(ms_state_image_capture(&x->from.session, &image, &err), MS_OK);
    assert_int_equal(image.bytes, WHOLE);
    assert_int_equal(image.position, POSITION);
    assert_memory_equal(image.data, x->good, WHOLE);
    assert_int_equal(ms_state_image_restore(&x->to.session, &image, &err), MS_OK);
    ms_digest d = digest_of(&x->to);
    assert_memory_equal(&d, &x->from_digest, sizeof d);
    ms_state_image_free(&image);
    assert_null(image.data);
}

static void a_damaged_image_is_refused(void **state) {
    fixture *x = *state;
    ms_error err;
    uint8_t copy[WHOLE];
    for (size_t at = 0; at < WHOLE; at++) {
        memcpy(copy, x->good, WHOLE);
        copy[at] ^= 0x10;
        const ms_state_image image = {.data = copy, .bytes = WHOLE, .position = POSITION};
        assert_int_not_equal(ms_state_image_restore(&x->to.session, &image, &err), MS_OK);
        assert_non_null(strstr(err.message, "state image"));
        assert_untouched(x);
    }
    for (size_t n = 0; n < WHOLE; n++) {
        const ms_state_image image = {.data = x->good, .bytes = n, .position = POSITION};
        assert_int_not_equal(ms_state_image_restore(&x->to.session, &image, &err), MS_OK);
        assert_untouched(x);
    }
}

static void a_failing_device_gives_no_image(void **state) {
    fixture *x = *state;
    ms_error err;
    ms_state_image image;
    x->from.backend.sync_fails = true;
    assert_int_equal(ms_state_image_capture(&x->from.session, &image, &err), MS_ERR_IO);
    assert_null(image.data);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        CASE(import_gives_the_exported_state),
        CASE(export_is_canonical),
        CASE(header_is_the_documented_one),
        CASE(empty_and_full_sessions_travel),
        CASE(parts_larger_than_a_piece_travel),
        CASE(import_ends_snapshots),
        CASE(every_damaged_header_byte_is_noticed),
        CASE(every_damaged_payload_byte_is_noticed),
        CASE(every_forged_field_is_named),
        CASE(forged_token_ids_are_refused),
        CASE(every_truncation_is_noticed),
        CASE(appended_bytes_are_refused),
        CASE(other_setups_are_named),
        CASE(odd_files_are_refused_without_waiting),
        CASE(an_existing_target_stays_without_replace),
        CASE(an_unwritable_folder_is_an_error),
        CASE(a_file_size_limit_leaves_the_old_file),
        CASE(a_full_disk_leaves_the_old_file),
        CASE(a_file_that_changes_while_read_is_noticed),
        CASE(token_ids_are_those_that_were_checked),
        CASE(a_fresh_session_needs_no_reset),
        CASE(a_failing_device_fails_export_and_import),
        CASE(an_image_is_the_file),
        CASE(a_damaged_image_is_refused),
        CASE(a_failing_device_gives_no_image),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
