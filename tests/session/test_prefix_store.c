/* Kept states: matching, bounds, restarts, damage, two processes, full disks, sudden death. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "fake_session.h"
#include "session/prefix_store.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CONTEXT = 200, IMAGE_AT_10 = 256 + 2 * 100 + 2 * 18 + 2 * 12 * 10 + 4 * 10 };

typedef struct fixture {
    char dir[64], root[96];
    fake_session f;
    ms_prefix_store *p;
    uint64_t events[5];
    char last_error[256];
} fixture;

static void count_event(void *arg, ms_prefix_event event, uint64_t entry, uint64_t tokens, uint64_t bytes, uint64_t ns,
                        const char *error) {
    (void)entry, (void)tokens, (void)bytes, (void)ns;
    fixture *x = arg;
    x->events[event]++;
    if (error) (void)snprintf(x->last_error, sizeof x->last_error, "%s", error);
}

static ms_prefix_options defaults(fixture *x) {
    return (ms_prefix_options){.memory_bytes = 1 << 20,
                               .root = x->root,
                               .disk_entries = 4,
                               .disk_bytes = 1 << 20,
                               .event = count_event,
                               .event_arg = x};
}

static void open_store(fixture *x, const ms_prefix_options *o) {
    ms_error err;
    bool disabled;
    if (ms_prefix_store_open(&x->p, &x->f.session, o, &disabled, &err) != MS_OK) fail_msg("%s", err.message);
    assert_false(disabled);
}

static void close_store(fixture *x) {
    ms_prefix_store_close(x->p);
    x->p = NULL;
}

static void reopen(fixture *x, const ms_prefix_options *o) {
    close_store(x);
    open_store(x, o);
}

static int setup(void **state) {
    fixture *x = calloc(1, sizeof *x);
    assert_non_null(x);
    strcpy(x->dir, "/tmp/ms-prefix-XXXXXX");
    assert_non_null(mkdtemp(x->dir));
    (void)snprintf(x->root, sizeof x->root, "%s/states", x->dir);
    fake_options o = fake_defaults();
    o.context = CONTEXT;
    ms_error err;
    assert_int_equal(fake_open(&x->f, &o, &err), MS_OK);
    *state = x;
    return 0;
}

static void remove_tree(const char *path) {
    DIR *d = opendir(path);
    if (d) {
        for (struct dirent *e; (e = readdir(d));) {
            char name[512];
            if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
            (void)snprintf(name, sizeof name, "%s/%.200s", path, e->d_name);
            remove_tree(name);
        }
        (void)closedir(d);
        (void)rmdir(path);
    } else {
        (void)unlink(path);
    }
}

static int teardown(void **state) {
    fixture *x = *state;
    close_store(x);
    fake_close(&x->f);
    assert_int_equal(x->f.backend.held, 0);
    remove_tree(x->dir);
    free(x);
    return 0;
}

/* The session as after ids[0..count): first + i. */
static void run_to(fixture *x, uint32_t first, uint32_t count) {
    fake_reset(&x->f);
    for (uint32_t i = 0; i < count; i++) fake_forward(&x->f, first + i);
}

static ms_digest digest(fixture *x) {
    ms_digest d;
    ms_error err;
    assert_int_equal(ms_session_digest(&x->f.session, &d, &err), MS_OK);
    return d;
}

static void save(fixture *x, uint32_t first, uint32_t count, ms_prefix_keep keep) {
    char meta[64];
    run_to(x, first, count);
    (void)snprintf(meta, sizeof meta, "meta of %u+%u \"\xc3\xa9\n", first, count);
    ms_prefix_store_save(x->p, &x->f.session, meta, strlen(meta), keep);
}

/* The match for `count` ids from `first`. */
static ms_prefix_match find(fixture *x, uint32_t first, uint32_t count) {
    uint32_t ids[CONTEXT];
    for (uint32_t i = 0; i < count; i++) ids[i] = first + i;
    ms_prefix_match m;
    ms_prefix_store_find(x->p, ids, count, 1, &m);
    return m;
}

/* Restores the match and compares it with the state that the ids give. */
static void restores(fixture *x, uint32_t first, uint32_t count, uint32_t want) {
    char meta[64];
    ms_error err;
    run_to(x, first, want);
    ms_digest fresh = digest(x);
    run_to(x, 900, 3);
    ms_prefix_match m = find(x, first, count);
    assert_int_equal(m.count, want);
    (void)snprintf(meta, sizeof meta, "meta of %u+%u \"\xc3\xa9\n", first, want);
    assert_int_equal(m.meta_len, strlen(meta));
    assert_memory_equal(m.meta, meta, m.meta_len);
    if (ms_prefix_store_restore(x->p, &x->f.session, m.entry, &err) != MS_OK) fail_msg("%s", err.message);
    ms_digest back = digest(x);
    assert_memory_equal(&back, &fresh, sizeof back);
    for (uint32_t i = 0; i < want; i++) assert_int_equal(x->f.session.tokens[i], first + i);
}

static void misses(fixture *x, uint32_t first, uint32_t count) { assert_int_equal(find(x, first, count).entry, 0); }

static ms_prefix_stats stats(fixture *x) {
    ms_prefix_stats s;
    ms_prefix_store_flush(x->p);
    ms_prefix_store_stats(x->p, &s);
    return s;
}

/* Names in the root that begin with `prefix`; the first one's path if wanted. */
static size_t names(fixture *x, const char *prefix, char *first, size_t room) {
    size_t n = 0;
    DIR *d = opendir(x->root);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        if (strncmp(e->d_name, prefix, strlen(prefix)) != 0) continue;
        if (!n++ && first) (void)snprintf(first, room, "%s/%.60s", x->root, e->d_name);
    }
    (void)closedir(d);
    return n;
}

/* ------------------------------------------------------------------ matching */

static void the_longest_prefix_wins(void **state) {
    fixture *x = *state;
    ms_prefix_options o = defaults(x);
    o.root = NULL;
    open_store(x, &o);
    save(x, 10, 5, MS_PREFIX_MEMORY);
    save(x, 10, 20, MS_PREFIX_MEMORY);
    save(x, 300, 12, MS_PREFIX_MEMORY);
    restores(x, 10, 30, 20);
    restores(x, 10, 21, 20);
    restores(x, 10, 20, 5); /* nothing would be left to evaluate */
    restores(x, 300, 13, 12);
    misses(x, 10, 5);
    misses(x, 11, 30);
    misses(x, 300, 12);
    uint32_t ids[30];
    for (uint32_t i = 0; i < 30; i++) ids[i] = 10 + i;
    ids[19] ^= 1; /* one id of the longer entry is another */
    ms_prefix_match m;
    ms_prefix_store_find(x->p, ids, 30, 1, &m);
    assert_int_equal(m.count, 5);
}

static void equal_ids_are_kept_once(void **state) {
    fixture *x = *state;
    ms_prefix_options o = defaults(x);
    open_store(x, &o);
    for (int i = 0; i < 3; i++) save(x, 10, 10, MS_PREFIX_DISK);
    ms_prefix_stats s = stats(x);
    assert_int_equal(s.entries, 1);
    assert_int_equal(s.writes, 1);
    assert_int_equal(s.memory_bytes, IMAGE_AT_10);
}

static void entries_can_be_listed_by_use(void **state) {
    fixture *x = *state;
    ms_prefix_options o = defaults(x);
    open_store(x, &o);
    save(x, 10, 10, MS_PREFIX_MEMORY);
    save(x, 20, 10, MS_PREFIX_MEMORY);
    save(x, 30, 10, MS_PREFIX_MEMORY);
    restores(x, 10, 11, 10);
    static const uint32_t order[] = {10, 30, 20};
    ms_prefix_match m;
    const uint32_t *ids;
    for (size_t i = 0; i < 3; i++) {
        assert_true(ms_prefix_store_peek(x->p, i, &m, &ids));
        assert_int_equal(ids[0], order[i]);
    }
    assert_false(ms_prefix_store_peek(x->p, 3, &m, &ids));
}

/* ------------------------------------------------------------------ bounds */

static void memory_keeps_what_was_used_last(void **state) {
    fixture *x = *state;
    ms_prefix_options o = defaults(x);
    o.root = NULL;
    o.memory_bytes = 3 * IMAGE_AT_10 + 1;
    open_store(x, &o);
    for (uint32_t i = 0; i < 3; i++) save(x, 100 * i, 10, MS_PREFIX_MEMORY);
    restores(x, 0, 11, 10);
    save(x, 300, 10, MS_PREFIX_MEMORY);
    misses(x, 100, 11);
    restores(x, 0, 11, 10);
    restores(x, 200, 11, 10);
    restores(x, 300, 11, 10);
    assert_true(stats(x).memory_bytes <= o.memory_bytes);
    o.memory_bytes = IMAGE_AT_10 - 1; /* no room at all: nothing is kept, nothing fails */
    reopen(x, &o);
    save(x, 0, 10, MS_PREFIX_DISK_NOW);
    assert_int_equal(stats(x).entries, 0);
}

static void the_folder_keeps_its_bounds(void **state) {
    fixture *x = *state;
    ms_prefix_options o = defaults(x);
    open_store(x, &o);
    for (uint32_t i = 0; i < 9; i++) {
        save(x, 100 * i, 10 + i, MS_PREFIX_DISK);
        ms_prefix_stats s = stats(x);
        assert_true(s.disk_entries <= 4);
        assert_int_equal(names(x, "e-", NULL, 0), s.disk_entries);
    }
    assert_int_equal(x->events[MS_PREFIX_EVICTED], 5);
    o.disk_entries = 2; /* a later process has less */
    o.memory_bytes = 0;
    reopen(x, &o);
    assert_int_equal(names(x, "e-", NULL, 0), 2);
    restores(x, 800, 19, 18);
    restores(x, 700, 18, 17);
    misses(x, 600, 60);
    o.disk_bytes = 300; /* less than one state */
    reopen(x, &o);
    assert_int_equal(names(x, "e-", NULL, 0), 0);
    save(x, 100, 10, MS_PREFIX_DISK_NOW);
    assert_int_equal(stats(x).entries, 0);
}

static void near_states_are_not_written(void **state) {
    fixture *x = *state;
    ms_prefix_options o = defaults(x);
    o.min_distance = 20;
    open_store(x, &o);
    save(x, 10, 10, MS_PREFIX_DISK);
    save(x, 10, 29, MS_PREFIX_DISK);
    assert_int_equal(stats(x).writes, 1);
    save(x, 10, 30, MS_PREFIX_DISK);
    assert_int_equal(stats(x).writes, 2);
    save(x, 50, 10, MS_PREFIX_DISK); /* another conversation */
    assert_int_equal(stats(x).writes, 3);
    save(x, 10, 29, MS_PREFIX_DISK_NOW);
    assert_int_equal(stats(x).writes, 4);
}

static void without_memory_states_are_written_at_once(void **state) {
    fixture *x = *state;
    ms_prefix_options o = defaults(x);
    o.memory_bytes = 0;
    open_store(x, &o);
    save(x, 10, 10, MS_PREFIX_DISK);
    assert_int_equal(names(x, "e-", NULL, 0), 1);
    restores(x, 10, 11, 10);
    save(x, 500, 10, MS_PREFIX_MEMORY);
    assert_int_equal(stats(x).entries, 1);
}

/* ------------------------------------------------------------------ restarts */

static void states_survive_a_restart(void **state) {
    fixture *x = *state;
    ms_prefix_options o = defaults(x);
    open_store(x, &o);
    save(x, 10, 10, MS_PREFIX_DISK);
    save(x, 400, 150, MS_PREFIX_DISK);
    ms_prefix_store_flush(x->p); /* a state that waits gives way to a newer one */
    save(x, 10, 40, MS_PREFIX_DISK);
    reopen(x, &o);
    restores(x, 10, 60, 40);
    restores(x, 400, 151, 150);
    struct stat st;
    char path[160], file[200];
    assert_int_equal(stat(x->root, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0700);
    assert_true(names(x, "e-", path, sizeof path) >= 2);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0700);
    static const char *const files[] = {"state.bin", "tokens.u32", "meta.json"};
    for (size_t i = 0; i < 3; i++) {
        (void)snprintf(file, sizeof file, "%s/%s", path, files[i]);
        assert_int_equal(stat(file, &st), 0);
        assert_int_equal(st.st_mode & 07777, 0600);
    }
}

static void order_of_use_survives_and_a_lost_manifest_loses_no_state(void **state) {
    fixture *x = *state;
    char path[160];
    ms_prefix_options o = defaults(x);
    open_store(x, &o);
    for (uint32_t i = 0; i < 4; i++) {
        save(x, 100 * i, 10, MS_PREFIX_DISK);
        ms_prefix_store_flush(x->p);
    }
    restores(x, 0, 11, 10);
    reopen(x, &o);
    save(x, 600, 10, MS_PREFIX_DISK);
    ms_prefix_store_flush(x->p);
    misses(x, 100, 11); /* the one used longest ago */
    restores(x, 0, 11, 10);
    close_store(x);
    (void)snprintf(path, sizeof path, "%s/manifest.json", x->root);
    int fd = open(path, O_WRONLY | O_TRUNC);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "{\"entries\":[{", 13), 13);
    (void)close(fd);
    open_store(x, &o);
    restores(x, 0, 11, 10);
    restores(x, 600, 11, 10);
    close_store(x);
    (void)unlink(path);
    open_store(x, &o);
    restores(x, 300, 11, 10);
}

static void another_setup_finds_nothing_and_breaks_nothing(void **state) {
    fixture *x = *state;
    ms_prefix_options o = defaults(x);
    open_store(x, &o);
    save(x, 10, 10, MS_PREFIX_DISK);
    o.identity_extra = 7;
    reopen(x, &o);
    misses(x, 10, 11);
    o.identity_extra = 0;
    reopen(x, &o);
    restores(x, 10, 11, 10);
    x->f.layout++; /* another checkpoint */
    reopen(x, &o);
    misses(x, 10, 11);
    assert_int_equal(stats(x).disk_entries, 1);
    assert_int_equal(x->events[MS_PREFIX_CORRUPT], 0);
}

/* ------------------------------------------------------------------ damage */

static void every_damaged_byte_is_noticed_or_harmless(void **state) {
    fixture *x = *state;
    ms_prefix_options o = defaults(x);
    static const char *const files[] = {"state.bin", "tokens.u32", "meta.json"};
    size_t noticed = 0, tried = 0;
    run_to(x, 10, 10);
    const ms_digest right = digest(x);
    for (size_t f = 0; f < 3; f++) {
        for (size_t at = 0;; at += f ? 1 : 7) {
            char path[160], file[200];
            ms_error err;
            open_store(x, &o);
            save(x, 10, 10, MS_PREFIX_DISK_NOW);
            close_store(x);
            assert_int_equal(names(x, "e-", path, sizeof path), 1);
            (void)snprintf(file, sizeof file, "%s/%s", path, files[f]);
            int fd = open(file, O_RDWR);
            uint8_t byte;
            assert_true(fd >= 0);
            bool end = pread(fd, &byte, 1, (off_t)at) != 1;
            byte ^= 0x04;
            if (!end) assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
            (void)close(fd);
            if (end) break;
            tried++;
            open_store(x, &o);
            run_to(x, 900, 3);
            ms_prefix_match m = find(x, 10, 11);
            if (m.entry && ms_prefix_store_restore(x->p, &x->f.session, m.entry, &err) == MS_OK) {
                ms_digest d = digest(x);
                assert_memory_equal(&d, &right, sizeof d);
            } else {
                noticed++;
                if (x->events[MS_PREFIX_CORRUPT]) assert_int_equal(stats(x).disk_entries, 0);
            }
            close_store(x);
            remove_tree(x->root);
            x->events[MS_PREFIX_CORRUPT] = 0;
        }
    }
    assert_true(tried > 300);
    assert_true(noticed > tried * 9 / 10); /* spaces and the like may change */
}

static void cut_and_missing_files_remove_the_entry(void **state) {
    fixture *x = *state;
    ms_prefix_options o = defaults(x);
    static const char *const files[] = {"state.bin", "tokens.u32", "meta.json"};
    for (size_t f = 0; f < 6; f++) {
        char path[160], file[200];
        struct stat st;
        open_store(x, &o);
        save(x, 10, 10, MS_PREFIX_DISK_NOW);
        close_store(x);
        assert_int_equal(names(x, "e-", path, sizeof path), 1);
        (void)snprintf(file, sizeof file, "%s/%s", path, files[f / 2]);
        assert_int_equal(stat(file, &st), 0);
        assert_int_equal(f % 2 ? unlink(file) : truncate(file, st.st_size - 2), 0);
        x->events[MS_PREFIX_CORRUPT] = 0;
        open_store(x, &o);
        assert_int_equal(x->events[MS_PREFIX_CORRUPT], 1);
        assert_int_equal(names(x, "e-", NULL, 0), 0);
        misses(x, 10, 11);
        close_store(x);
    }
}

static void a_state_whose_ids_are_others_is_not_used(void **state) {
    fixture *x = *state;
    char a[160], b[160], file[200], other[200];
    ms_prefix_options o = defaults(x);
    o.memory_bytes = 0;
    open_store(x, &o);
    save(x, 10, 10, MS_PREFIX_DISK);
    close_store(x);
    assert_int_equal(names(x, "e-", a, sizeof a), 1);
    (void)snprintf(b, sizeof b, "%s/aside", x->dir);
    (void)snprintf(file, sizeof file, "%s/state.bin", a);
    (void)snprintf(other, sizeof other, "%s/state.bin", b);
    assert_int_equal(rename(a, b), 0);
    open_store(x, &o);
    save(x, 500, 10, MS_PREFIX_DISK);
    close_store(x);
    assert_int_equal(names(x, "e-", a, sizeof a), 1);
    (void)snprintf(file, sizeof file, "%s/state.bin", a);
    assert_int_equal(rename(other, file), 0); /* a good file of the right size, but not this entry's */
    open_store(x, &o);
    ms_error err;
    ms_prefix_match m = find(x, 500, 11);
    assert_int_equal(m.count, 10);
    run_to(x, 900, 3);
    assert_int_equal(ms_prefix_store_restore(x->p, &x->f.session, m.entry, &err), MS_ERR_FORMAT);
    assert_int_equal(x->f.session.state.position, 0);
    misses(x, 500, 11);
    assert_int_equal(stats(x).disk_entries, 0);
    assert_int_equal(x->events[MS_PREFIX_CORRUPT], 1);
}

static void a_dropped_entry_is_gone_for_good(void **state) {
    fixture *x = *state;
    ms_prefix_options o = defaults(x);
    open_store(x, &o);
    save(x, 10, 10, MS_PREFIX_DISK);
    ms_prefix_store_drop(x->p, find(x, 10, 11).entry); /* perhaps while it is being written */
    misses(x, 10, 11);
    reopen(x, &o);
    misses(x, 10, 11);
    assert_int_equal(names(x, "e-", NULL, 0), 0);
}

/* ------------------------------------------------------------------ the folder */

static void foreign_files_stay_and_leftovers_go(void **state) {
    fixture *x = *state;
    char path[160], inner[200];
    ms_prefix_options o = defaults(x);
    open_store(x, &o);
    close_store(x);
    static const char *const keep[] = {"notes.txt", "e-xyz", "e-0123", "tmp-zz", "named"};
    for (size_t i = 0; i < 5; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", x->root, keep[i]);
        assert_int_equal(mkdir(path, 0700), 0);
    }
    (void)snprintf(path, sizeof path, "%s/tmp-0123456789abcdef", x->root);
    assert_int_equal(mkdir(path, 0700), 0);
    (void)snprintf(inner, sizeof inner, "%s/state.bin", path);
    int fd = open(inner, O_WRONLY | O_CREAT, 0600);
    assert_true(fd >= 0);
    (void)close(fd);
    open_store(x, &o);
    assert_int_equal(access(path, F_OK), -1);
    for (size_t i = 0; i < 5; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", x->root, keep[i]);
        assert_int_equal(access(path, F_OK), 0);
    }
}

static void open_fails(fixture *x, const ms_prefix_options *o, ms_status want, const char *word) {
    ms_error err;
    bool disabled;
    ms_status status = ms_prefix_store_open(&x->p, &x->f.session, o, &disabled, &err);
    if (status != want || !strstr(err.message, word)) fail_msg("%s: %s", ms_status_name(status), err.message);
    assert_null(x->p);
}

static void a_folder_that_is_not_private_is_refused(void **state) {
    fixture *x = *state;
    char target[160];
    ms_prefix_options o = defaults(x);
    assert_int_equal(mkdir(x->root, 0700), 0);
    assert_int_equal(chmod(x->root, 0750), 0);
    open_fails(x, &o, MS_ERR_USAGE, "mode: expected 0700");
    assert_int_equal(rmdir(x->root), 0);
    (void)snprintf(target, sizeof target, "%s/target", x->dir);
    assert_int_equal(mkdir(target, 0700), 0);
    assert_int_equal(symlink(target, x->root), 0);
    open_fails(x, &o, MS_ERR_USAGE, "expected a folder");
    assert_int_equal(unlink(x->root), 0);
    o.root = "/proc/no/such/place";
    open_fails(x, &o, MS_ERR_USAGE, "create");
}

static void a_second_process_works_without_the_folder(void **state) {
    fixture *x = *state;
    ms_prefix_options o = defaults(x);
    ms_error err;
    bool disabled;
    ms_prefix_store *second;
    open_store(x, &o);
    assert_int_equal(ms_prefix_store_open(&second, &x->f.session, &o, &disabled, &err), MS_OK);
    assert_true(disabled);
    run_to(x, 10, 10);
    ms_prefix_store_save(second, &x->f.session, "", 0, MS_PREFIX_DISK_NOW);
    ms_prefix_stats s;
    ms_prefix_store_stats(second, &s);
    assert_int_equal(s.memory_entries, 1);
    assert_int_equal(s.disk_entries, 0);
    ms_prefix_store_close(second);
    assert_int_equal(names(x, "e-", NULL, 0), 0);
}

static void a_full_disk_is_told_and_changes_nothing(void **state) {
    fixture *x = *state;
    ms_prefix_options o = defaults(x);
    char inside[160];
    assert_int_equal(mkdir(x->root, 0700), 0);
    if (mount("none", x->root, "tmpfs", 0, "size=64k,mode=0700") != 0) return; /* only root can */
    open_store(x, &o);
    save(x, 10, 10, MS_PREFIX_DISK);
    ms_prefix_store_flush(x->p);
    (void)snprintf(inside, sizeof inside, "%s/ballast", x->root);
    int fd = open(inside, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    static const char block[4096];
    while (write(fd, block, sizeof block) == (ssize_t)sizeof block) continue;
    (void)close(fd);
    save(x, 500, 150, MS_PREFIX_DISK);
    ms_prefix_stats s = stats(x);
    size_t left = names(x, "tmp-", NULL, 0), there = names(x, "e-", NULL, 0);
    close_store(x);
    open_store(x, &o);
    ms_prefix_match m = find(x, 10, 11);
    close_store(x);
    assert_int_equal(umount(x->root), 0);
    assert_int_equal(s.write_failures, 1);
    assert_int_equal(s.memory_entries, 2);
    assert_int_equal(left, 0);
    assert_int_equal(there, 1);
    assert_int_equal(m.count, 10);
    assert_non_null(strstr(x->last_error, "No space left"));
}

static void make_file(const fixture *x, const char *name) {
    char path[240];
    (void)snprintf(path, sizeof path, "%s/%s", x->root, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    (void)close(fd);
}
static bool remove_file(const fixture *x, const char *name) {
    char path[240];
    (void)snprintf(path, sizeof path, "%s/%s", x->root, name);
    return unlink(path) == 0;
}

static void what_a_dying_process_left_is_removed(void **state) {
    fixture *x = *state;
    ms_prefix_options o = defaults(x);
    char named[200];
    assert_int_equal(mkdir(x->root, 0700), 0);
    (void)snprintf(named, sizeof named, "%s/named", x->root);
    assert_int_equal(mkdir(named, 0700), 0);
    make_file(x, ".ms-tmp-0123456789abcdef");
    make_file(x, "named/.ms-tmp-0123456789abcdef");
    make_file(x, "named/mine");
    open_store(x, &o);
    close_store(x);
    assert_false(remove_file(x, ".ms-tmp-0123456789abcdef"));
    assert_false(remove_file(x, "named/.ms-tmp-0123456789abcdef"));
    assert_true(remove_file(x, "named/mine"));
    assert_int_equal(rmdir(named), 0);
}

/* A child saves without end; whenever it dies, what is found is whole. */
static void sudden_death_leaves_whole_states(void **state) {
    fixture *x = *state;
    ms_prefix_options o = defaults(x);
    o.memory_bytes = 1 << 16;
    o.event = NULL;
    for (int round = 0; round < 40; round++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            ms_error err;
            if (ms_prefix_store_open(&x->p, &x->f.session, &o, NULL, &err) != MS_OK) _exit(1);
            for (uint32_t i = 0;; i++)
                save(x, 10 * (i % 50), 20 + i % 100, i % 3 ? MS_PREFIX_DISK : MS_PREFIX_DISK_NOW);
        }
        (void)usleep((useconds_t)(500 + round * 377 % 9000));
        assert_int_equal(kill(child, SIGKILL), 0);
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
        o.event = count_event;
        open_store(x, &o);
        assert_int_equal(x->events[MS_PREFIX_CORRUPT], 0);
        assert_int_equal(names(x, "tmp-", NULL, 0), 0);
        assert_int_equal(names(x, ".ms-tmp-", NULL, 0), 0);
        ms_prefix_stats s = stats(x);
        assert_true(s.disk_entries <= o.disk_entries);
        assert_true(s.disk_bytes <= o.disk_bytes);
        ms_prefix_match m;
        const uint32_t *ids;
        for (size_t i = 0; ms_prefix_store_peek(x->p, i, &m, &ids); i++) {
            uint32_t first = ids[0];
            run_to(x, first, (uint32_t)m.count);
            ms_digest fresh = digest(x);
            ms_error err;
            if (ms_prefix_store_restore(x->p, &x->f.session, m.entry, &err) != MS_OK) fail_msg("%s", err.message);
            ms_digest back = digest(x);
            assert_memory_equal(&back, &fresh, sizeof back);
        }
        close_store(x);
        o.event = NULL;
    }
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        CASE(the_longest_prefix_wins),
        CASE(equal_ids_are_kept_once),
        CASE(entries_can_be_listed_by_use),
        CASE(memory_keeps_what_was_used_last),
        CASE(the_folder_keeps_its_bounds),
        CASE(near_states_are_not_written),
        CASE(without_memory_states_are_written_at_once),
        CASE(states_survive_a_restart),
        CASE(order_of_use_survives_and_a_lost_manifest_loses_no_state),
        CASE(another_setup_finds_nothing_and_breaks_nothing),
        CASE(every_damaged_byte_is_noticed_or_harmless),
        CASE(cut_and_missing_files_remove_the_entry),
        CASE(a_state_whose_ids_are_others_is_not_used),
        CASE(a_dropped_entry_is_gone_for_good),
        CASE(foreign_files_stay_and_leftovers_go),
        CASE(a_folder_that_is_not_private_is_refused),
        CASE(a_second_process_works_without_the_folder),
        CASE(a_full_disk_is_told_and_changes_nothing),
        CASE(what_a_dying_process_left_is_removed),
        CASE(sudden_death_leaves_whole_states),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
