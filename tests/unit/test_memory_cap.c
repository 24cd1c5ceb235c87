/* Memory caps on made-up cgroup trees: where the cgroup is made, what is written, what happens when something is
 * missing. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory_cap.h"
#include "io/file.h"

enum { NAME_BYTES = 512, CAP = 123456789 };

static const char *under(const char *root, const char *name) {
    static char path[4][NAME_BYTES];
    static unsigned turn;
    char *p = path[turn++ % 4];
    (void)snprintf(p, NAME_BYTES, "%s%s", root, name);
    return p;
}

static void put(const char *root, const char *name, const char *text) {
    char path[NAME_BYTES];
    (void)snprintf(path, sizeof path, "%s%s", root, name);
    for (char *p = strchr(path + 1, '/'); p; p = strchr(p + 1, '/')) {
        *p = '\0';
        (void)mkdir(path, 0700);
        *p = '/';
    }
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    assert_int_equal(close(fd), 0);
}

static void holds(const char *path, long long number) {
    char *text, want[32];
    size_t len;
    (void)snprintf(want, sizeof want, "%lld\n", number);
    assert_int_equal(ms_file_read_all(path, 4096, &text, &len, NULL), MS_OK);
    assert_string_equal(text, want);
    free(text);
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *walk) {
    (void)st;
    (void)kind;
    (void)walk;
    return remove(path);
}

static int make_root(void **state) {
    char *root = strdup("/tmp/ms-cap-XXXXXX");
    *state = root;
    return root && mkdtemp(root) ? 0 : -1;
}

static int drop_root(void **state) {
    int rc = nftw(*state, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    free(*state);
    return rc;
}

/* The kernel makes a cgroup's files; here they must be there before.  Returns the cgroup's path below the root. */
static const char *made_up(const char *root, const char *parent, const char *limit) {
    static char folder[NAME_BYTES];
    char name[2 * NAME_BYTES];
    (void)snprintf(folder, sizeof folder, "%s/moonshine-cap-%ld", parent, (long)getpid());
    (void)snprintf(name, sizeof name, "%s/%s", folder, limit);
    put(root, name, "");
    (void)snprintf(name, sizeof name, "%s/cgroup.procs", folder);
    put(root, name, "");
    return folder;
}

static void test_v1(void **state) {
    const char *root = *state;
    put(root, "/proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/user/a\n0::/other\n");
    put(root, "/sys/fs/cgroup/memory/user/a/cgroup.procs", "");
    const char *made = made_up(root, "/sys/fs/cgroup/memory/user/a", "memory.limit_in_bytes");
    ms_memory_cap c;
    ms_error err;
    if (ms_memory_cap_enter(&c, root, CAP, &err) != MS_OK) fail_msg("%s", err.message);
    assert_string_equal(c.folder, under(root, made));
    char file[2 * NAME_BYTES];
    (void)snprintf(file, sizeof file, "%.900s/memory.limit_in_bytes", c.folder);
    holds(file, CAP);
    (void)snprintf(file, sizeof file, "%.900s/cgroup.procs", c.folder);
    holds(file, getpid());
    ms_memory_cap_leave(&c);
    holds(under(root, "/sys/fs/cgroup/memory/user/a/cgroup.procs"), getpid());
    ms_memory_cap_leave(&c); /* nothing to do any more */
}

static void test_v2(void **state) {
    const char *root = *state;
    put(root, "/proc/self/cgroup", "0::/user.slice/app.slice/shell.scope\n");
    const char *made = made_up(root, "/sys/fs/cgroup/user.slice/app.slice", "memory.max");
    ms_memory_cap c;
    ms_error err;
    if (ms_memory_cap_enter(&c, root, CAP, &err) != MS_OK) fail_msg("%s", err.message);
    assert_string_equal(c.folder, under(root, made));
    assert_string_equal(c.home, under(root, "/sys/fs/cgroup/user.slice/app.slice/shell.scope"));
    char file[2 * NAME_BYTES];
    (void)snprintf(file, sizeof file, "%.900s/memory.max", c.folder);
    holds(file, CAP);
    ms_memory_cap_leave(&c);
}

static void refused(const char *root, ms_status code, const char *part) {
    ms_memory_cap c;
    ms_error err;
    assert_int_equal(ms_memory_cap_enter(&c, root, CAP, &err), code);
    if (!strstr(err.message, part)) fail_msg("expected '%s' in: %s", part, err.message);
    assert_int_equal(c.folder[0], '\0');
    ms_memory_cap_leave(&c);
}

static void test_refusals(void **state) {
    const char *root = *state;
    refused(root, MS_ERR_IO, "/proc/self/cgroup");
    put(root, "/proc/self/cgroup", "3:cpu:/\n7:memoryless:/\nrubbish\n");
    refused(root, MS_ERR_UNSUPPORTED, "no memory cgroup");
    put(root, "/proc/self/cgroup", "0::/\n");
    refused(root, MS_ERR_UNSUPPORTED, "sibling");
    put(root, "/proc/self/cgroup", "4:memory:/gone\n");
    refused(root, MS_ERR_IO, "/sys/fs/cgroup/memory/gone/moonshine-cap-");
    /* A cgroup without the memory controller: made, found useless, removed. */
    put(root, "/sys/fs/cgroup/memory/gone/cgroup.procs", "");
    refused(root, MS_ERR_IO, "memory.limit_in_bytes");
    char left[2 * NAME_BYTES];
    (void)snprintf(left, sizeof left, "%s/sys/fs/cgroup/memory/gone/moonshine-cap-%ld", root, (long)getpid());
    assert_int_not_equal(access(left, F_OK), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_v1, make_root, drop_root),
        cmocka_unit_test_setup_teardown(test_v2, make_root, drop_root),
        cmocka_unit_test_setup_teardown(test_refusals, make_root, drop_root),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
