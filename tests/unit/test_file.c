/* Whole reads, exact preads and the atomic writer: the target appears whole or not at all. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "io/file.h"

static char dir[64], target[128];

static int make_dir(void **state) {
    (void)state;
    strcpy(dir, "/tmp/ms-file-XXXXXX");
    if (!mkdtemp(dir)) return -1;
    (void)snprintf(target, sizeof target, "%s/out", dir);
    return 0;
}

static int remove_dir(void **state) {
    (void)state;
    DIR *d = opendir(dir);
    if (!d) return -1;
    for (struct dirent *e; (e = readdir(d));) {
        if (unlinkat(dirfd(d), e->d_name, 0) != 0) (void)unlinkat(dirfd(d), e->d_name, AT_REMOVEDIR);
    }
    (void)closedir(d);
    return rmdir(dir);
}

static unsigned entries(void) {
    unsigned n = 0;
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    (void)closedir(d);
    return n;
}

static void put(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void expect_content(const char *path, const char *text) {
    char *data;
    size_t len;
    ms_error err;
    if (ms_file_read_all(path, 1 << 20, &data, &len, &err) != MS_OK) fail_msg("%s", err.message);
    assert_int_equal(len, strlen(text));
    assert_string_equal(data, text);
    free(data);
}

static ms_file_writer *open_ok(bool replace) {
    ms_file_writer *w;
    ms_error err;
    if (ms_file_writer_open(&w, target, replace, &err) != MS_OK) fail_msg("%s", err.message);
    return w;
}

static void expect_refused(const char *path, bool replace, ms_status code, const char *word) {
    ms_file_writer *w;
    ms_error err;
    unsigned before = entries();
    assert_int_equal(ms_file_writer_open(&w, path, replace, &err), code);
    assert_null(w);
    if (!strstr(err.message, word)) fail_msg("expected \"%s\" in \"%s\"", word, err.message);
    assert_int_equal(entries(), before);
}

/* ------------------------------------------------------------------ reading */

static void read_all_sizes_and_limit(void **state) {
    (void)state;
    static const size_t sizes[] = {0, 1, 63, 64, 65, 4096, 100000};
    char *data, *text = malloc(100001);
    size_t len;
    ms_error err;
    assert_non_null(text);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        memset(text, 'a' + (int)i, sizes[i]);
        text[sizes[i]] = '\0';
        put(target, text);
        assert_int_equal(ms_file_read_all(target, sizes[i], &data, &len, &err), MS_OK);
        assert_int_equal(len, sizes[i]);
        assert_string_equal(data, text);
        free(data);
        if (sizes[i] == 0) continue;
        assert_int_equal(ms_file_read_all(target, sizes[i] - 1, &data, &len, &err), MS_ERR_FORMAT);
        assert_null(data);
        assert_non_null(strstr(err.message, target));
    }
    free(text);
    /* The kernel's files say size 0 and have content. */
    assert_int_equal(ms_file_read_all("/proc/self/status", 1 << 20, &data, &len, &err), MS_OK);
    assert_true(len > 100);
    free(data);
    assert_int_equal(ms_file_read_all("/proc/self/status", 10, &data, &len, &err), MS_ERR_FORMAT);
}

static void read_all_refuses_what_is_not_a_file(void **state) {
    (void)state;
    char *data;
    size_t len;
    ms_error err;
    assert_int_equal(ms_file_read_all(target, 100, &data, &len, &err), MS_ERR_IO);
    assert_non_null(strstr(err.message, target));
    assert_int_equal(ms_file_read_all(dir, 100, &data, &len, &err), MS_ERR_FORMAT);
    assert_non_null(strstr(err.message, "expected a regular file, found a directory"));
    assert_int_equal(ms_file_read_all("/dev/null", 100, &data, &len, &err), MS_ERR_FORMAT);
    assert_non_null(strstr(err.message, "found a device"));
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    (void)snprintf(address.sun_path, sizeof address.sun_path, "%s/socket", dir);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(ms_file_read_all(address.sun_path, 100, &data, &len, &err), MS_ERR_FORMAT);
    assert_non_null(strstr(err.message, "found a socket"));
    (void)close(fd);
    assert_int_equal(mkfifo(target, 0600), 0);
    assert_int_equal(ms_file_read_all(target, 100, &data, &len, &err), MS_ERR_FORMAT); /* and does not wait */
    assert_non_null(strstr(err.message, "found a FIFO"));
    assert_null(data);
}

static void pread_exact(void **state) {
    (void)state;
    char buf[16] = "";
    ms_error err;
    put(target, "0123456789");
    int fd = open(target, O_RDONLY);
    assert_true(fd >= 0);
    assert_int_equal(ms_file_pread_exact(fd, target, buf, 4, 3, &err), MS_OK);
    assert_memory_equal(buf, "3456", 4);
    assert_int_equal(ms_file_pread_exact(fd, target, buf, 0, 99, &err), MS_OK);
    assert_int_equal(ms_file_pread_exact(fd, target, buf, 10, 1, &err), MS_ERR_IO);
    assert_non_null(strstr(err.message, target));
    assert_non_null(strstr(err.message, "offset 1"));
    assert_non_null(strstr(err.message, "after 9"));
    assert_int_equal(ms_file_pread_exact(fd, target, buf, 10, UINT64_MAX - 3, &err), MS_ERR_IO);
    (void)close(fd);
    assert_int_equal(ms_file_pread_exact(fd, target, buf, 1, 0, &err), MS_ERR_IO);
}

/* ------------------------------------------------------------------ writing */

static void commit_makes_a_0600_file(void **state) {
    (void)state;
    mode_t old = umask(0277); /* would take the owner's write bit */
    ms_file_writer *w = open_ok(false);
    (void)umask(old);
    assert_int_equal(ms_file_writer_write(w, "....hello", 9, NULL), MS_OK);
    assert_int_equal(ms_file_writer_write(w, " world", 6, NULL), MS_OK);
    assert_int_equal(ms_file_writer_patch(w, 0, "HEAD", 4, NULL), MS_OK);
    assert_int_equal(ms_file_writer_patch(w, 15, "", 0, NULL), MS_OK);
    assert_int_equal(access(target, F_OK), -1); /* nothing there before the commit */
    assert_int_equal(ms_file_writer_commit(w, NULL), MS_OK);
    expect_content(target, "HEADhello world");
    struct stat st;
    assert_int_equal(stat(target, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(entries(), 1);
}

static void abort_leaves_nothing(void **state) {
    (void)state;
    put(target, "old");
    ms_file_writer *w = open_ok(true);
    assert_int_equal(ms_file_writer_write(w, "new", 3, NULL), MS_OK);
    ms_file_writer_abort(w);
    ms_file_writer_abort(NULL);
    expect_content(target, "old");
    assert_int_equal(entries(), 1);
}

static bool has_nameless_files(void) {
    int fd = open(dir, O_TMPFILE | O_RDWR, 0600);
    if (fd >= 0) (void)close(fd);
    return fd >= 0 && access("/proc/self/fd", F_OK) == 0;
}

/* A killed writer never leaves a part of the target, and nothing at all where files can be without a name. */
static void killed_writer(void **state) {
    (void)state;
    for (int replace = 0; replace < 2; replace++) {
        unsigned before = entries();
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
            ms_file_writer *w;
            if (ms_file_writer_open(&w, target, replace, NULL) != MS_OK) _exit(1);
            if (ms_file_writer_write(w, "half", 4, NULL) != MS_OK) _exit(2);
            (void)kill(getpid(), SIGKILL);
            _exit(3);
        }
        int how;
        assert_int_equal(waitpid(pid, &how, 0), pid);
        assert_true(WIFSIGNALED(how));
        assert_int_equal(access(target, F_OK), -1);
        assert_int_equal(entries() - before, !replace && has_nameless_files() ? 0 : 1);
    }
}

/* Bytes of file names that no reader could show. */
static void messages_are_printable(void **state) {
    (void)state;
    ms_error err;
    ms_fail(&err, MS_ERR_IO, "a\x1b[0m\x7f\xff\xc3z\xe2\x82 \xc2\x9b");
    assert_string_equal(err.message, "a?[0m???z?? ??");
    ms_fail(&err, MS_ERR_IO, "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80");
    assert_string_equal(err.message, "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80");
}

static void patch_stays_inside(void **state) {
    (void)state;
    ms_error err;
    ms_file_writer *w = open_ok(false);
    assert_int_equal(ms_file_writer_write(w, "abc", 3, &err), MS_OK);
    assert_int_equal(ms_file_writer_patch(w, 1, "xyz", 3, &err), MS_ERR_USAGE);
    assert_int_equal(ms_file_writer_patch(w, UINT64_MAX, "xyz", 3, &err), MS_ERR_USAGE);
    assert_non_null(strstr(err.message, target));
    assert_int_equal(ms_file_writer_patch(w, 1, "xy", 2, &err), MS_OK);
    assert_int_equal(ms_file_writer_commit(w, &err), MS_OK); /* a refused patch spoils nothing */
    expect_content(target, "axy");
}

static void replacing(void **state) {
    (void)state;
    put(target, "old");
    expect_refused(target, false, MS_ERR_IO, "exists");
    ms_file_writer *w = open_ok(true);
    assert_int_equal(ms_file_writer_write(w, "new", 3, NULL), MS_OK);
    assert_int_equal(ms_file_writer_commit(w, NULL), MS_OK);
    expect_content(target, "new");
    assert_int_equal(unlink(target), 0);
    /* It appears while we write. */
    ms_error err;
    w = open_ok(false);
    put(target, "theirs");
    assert_int_equal(ms_file_writer_commit(w, &err), MS_ERR_IO);
    assert_non_null(strstr(err.message, target));
    expect_content(target, "theirs");
    assert_int_equal(entries(), 1);
}

static void odd_targets_are_refused(void **state) {
    (void)state;
    char other[128], path[400];
    (void)snprintf(other, sizeof other, "%s/other", dir);
    put(other, "precious");
    assert_int_equal(symlink(other, target), 0);
    expect_refused(target, true, MS_ERR_IO, "symbolic link");
    expect_refused(target, false, MS_ERR_IO, "symbolic link");
    assert_int_equal(unlink(target), 0);
    assert_int_equal(symlink("/nowhere/at/all", target), 0); /* dangling */
    expect_refused(target, true, MS_ERR_IO, "symbolic link");
    assert_int_equal(unlink(target), 0);
    /* A link that appears while we write is not followed either. */
    ms_file_writer *w = open_ok(true);
    assert_int_equal(ms_file_writer_write(w, "new", 3, NULL), MS_OK);
    assert_int_equal(symlink(other, target), 0);
    assert_int_equal(ms_file_writer_commit(w, NULL), MS_ERR_IO);
    expect_content(other, "precious");
    assert_int_equal(unlink(target), 0);
    assert_int_equal(mkfifo(target, 0600), 0);
    expect_refused(target, true, MS_ERR_IO, "regular");
    assert_int_equal(unlink(target), 0);
    expect_refused(dir, true, MS_ERR_IO, "regular");
    expect_refused("", true, MS_ERR_USAGE, "file name");
    (void)snprintf(path, sizeof path, "%s/", dir);
    expect_refused(path, true, MS_ERR_USAGE, "file name");
    (void)snprintf(path, sizeof path, "%s/none/out", dir);
    expect_refused(path, true, MS_ERR_IO, "none/out");
    (void)snprintf(path, sizeof path, "%s/%0*d", dir, 256, 0); /* one more than NAME_MAX */
    expect_refused(path, true, MS_ERR_IO, "00000");
}

static void the_longest_name_works(void **state) {
    (void)state;
    char path[400];
    ms_file_writer *w;
    (void)snprintf(path, sizeof path, "%s/%0*d", dir, 255, 0);
    assert_int_equal(ms_file_writer_open(&w, path, false, NULL), MS_OK);
    assert_int_equal(ms_file_writer_write(w, "x", 1, NULL), MS_OK);
    assert_int_equal(ms_file_writer_commit(w, NULL), MS_OK);
    expect_content(path, "x");
}

/* A file system that takes only part of the bytes, as a full disk does. */
static void a_failed_write_never_reaches_the_target(void **state) {
    (void)state;
    struct rlimit old, small = {.rlim_cur = 1000};
    ms_error err;
    char block[600];
    memset(block, 'x', sizeof block);
    put(target, "old");
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small.rlim_max = old.rlim_max;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    ms_file_writer *w = open_ok(true);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    ms_status first = ms_file_writer_write(w, block, sizeof block, &err);
    ms_status second = ms_file_writer_write(w, block, sizeof block, &err); /* 400 bytes fit, then EFBIG */
    (void)setrlimit(RLIMIT_FSIZE, &old);
    (void)signal(SIGXFSZ, handler);
    assert_int_equal(first, MS_OK);
    assert_int_equal(second, MS_ERR_IO);
    assert_non_null(strstr(err.message, target));
    assert_non_null(strstr(err.message, strerror(EFBIG)));
    /* The room is back, yet what was written has a hole in its story. */
    assert_int_equal(ms_file_writer_write(w, "y", 1, &err), MS_ERR_IO);
    assert_int_equal(ms_file_writer_patch(w, 0, "y", 1, &err), MS_ERR_IO);
    assert_int_equal(ms_file_writer_commit(w, &err), MS_ERR_IO);
    expect_content(target, "old");
    assert_int_equal(entries(), 1);
}

static void remove_temporaries_here(void) {
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(fd >= 0);
    ms_file_remove_temporaries(fd);
    (void)close(fd);
}

/* What a dead writer left goes; a living one's, a link and what only looks similar stay. */
static void temporaries_of_the_dead_are_removed(void **state) {
    (void)state;
    char path[128];
    ms_error err = {0};
    ms_file_writer *w = NULL;
    put(target, "old");
    (void)snprintf(path, sizeof path, "%s/.ms-tmp-left", dir);
    put(path, "x");
    (void)snprintf(path, sizeof path, "%s/.ms-tmp-link", dir);
    assert_int_equal(symlink(target, path), 0);
    (void)snprintf(path, sizeof path, "%s/.ms-tm", dir);
    put(path, "x");
    assert_int_equal(ms_file_writer_open(&w, target, true, &err), MS_OK);
    assert_int_equal(ms_file_writer_write(w, "new", 3, &err), MS_OK);
    assert_int_equal(entries(), 5);
    remove_temporaries_here();
    assert_int_equal(entries(), 4); /* target, the writer's temporary, the link, .ms-tm */
    assert_int_equal(ms_file_writer_commit(w, &err), MS_OK);
    remove_temporaries_here();
    assert_int_equal(entries(), 3);
}

/* Saves go well while another process cleans up without end. */
static void cleaning_up_never_meets_a_save(void **state) {
    (void)state;
    int rounds[2];
    assert_int_equal(pipe(rounds), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        for (;;) {
            remove_temporaries_here();
            (void)!write(rounds[1], "r", 1);
        }
    }
    (void)close(rounds[1]);
    for (unsigned i = 0; i < 300; i++) {
        char r;
        ms_error err = {0};
        ms_file_writer *w = NULL;
        assert_int_equal(read(rounds[0], &r, 1), 1);
        assert_int_equal(ms_file_writer_open(&w, target, true, &err), MS_OK);
        assert_int_equal(ms_file_writer_write(w, "new", 3, &err), MS_OK);
        if (ms_file_writer_commit(w, &err) != MS_OK) fail_msg("round %u: %s", i, err.message);
    }
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    (void)close(rounds[0]);
    remove_temporaries_here();
    assert_int_equal(entries(), 1);
}

int main(void) {
#define IN_DIR(f) cmocka_unit_test_setup_teardown(f, make_dir, remove_dir)
    const struct CMUnitTest tests[] = {
        IN_DIR(read_all_sizes_and_limit),
        IN_DIR(read_all_refuses_what_is_not_a_file),
        IN_DIR(pread_exact),
        IN_DIR(commit_makes_a_0600_file),
        IN_DIR(abort_leaves_nothing),
        IN_DIR(patch_stays_inside),
        IN_DIR(killed_writer),
        IN_DIR(temporaries_of_the_dead_are_removed),
        IN_DIR(cleaning_up_never_meets_a_save),
        cmocka_unit_test(messages_are_printable),
        IN_DIR(replacing),
        IN_DIR(odd_targets_are_refused),
        IN_DIR(the_longest_name_works),
        IN_DIR(a_failed_write_never_reaches_the_target),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
