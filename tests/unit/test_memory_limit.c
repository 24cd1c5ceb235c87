/* The memory limit against made-up /proc and cgroup trees, and once against the running system. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory_limit.h"

#define MIB UINT64_C(1048576)

static char root[64];

static int make_root(void **state) {
    (void)state;
    strcpy(root, "/tmp/ms-limit-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int remove_entry(const char *path, const struct stat *st, int flag, struct FTW *ftw) {
    (void)st;
    (void)flag;
    (void)ftw;
    return remove(path);
}

static int remove_root(void **state) {
    (void)state;
    return nftw(root, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* Writes root/path with its folders. */
static void put(const char *path, const char *text) {
    char full[512];
    (void)snprintf(full, sizeof full, "%s/%s", root, path);
    for (char *s = full + strlen(root) + 1; (s = strchr(s, '/')); s++) {
        *s = '\0';
        (void)mkdir(full, 0700);
        *s = '/';
    }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void put_meminfo(void) {
    put("proc/meminfo", "MemTotal:       16384 kB\nMemFree: 5 kB\nMemAvailable:    8192 kB\n");
}

static ms_memory_limit read_ok(void) {
    ms_memory_limit m;
    ms_error err;
    if (ms_memory_limit_read(&m, root, &err) != MS_OK) fail_msg("%s", err.message);
    return m;
}

#define V2_MOUNT "30 20 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"

static void meminfo_alone(void **state) {
    (void)state;
    put_meminfo();
    ms_memory_limit m = read_ok();
    assert_true(m.limit_bytes == 8 * MIB && m.available_bytes == 8 * MIB);
    assert_true(m.cgroup_bytes == MS_MEMORY_UNLIMITED);
    assert_string_equal(m.source, "MemAvailable");
}

static void v2_every_level_counts(void **state) {
    (void)state;
    put_meminfo();
    put("proc/self/cgroup", "0::/user.slice/app.scope\n");
    put("proc/self/mountinfo", "29 20 0:25 / /proc rw - proc proc rw\n" V2_MOUNT);
    put("sys/fs/cgroup/user.slice/app.scope/memory.max", "max\n");
    put("sys/fs/cgroup/user.slice/app.scope/memory.current", "1000\n");
    assert_true(read_ok().cgroup_bytes == MS_MEMORY_UNLIMITED);
    /* A parent limits; its inactive file pages can be had. */
    put("sys/fs/cgroup/user.slice/memory.max", "6291456\n");
    put("sys/fs/cgroup/user.slice/memory.current", "4194304\n");
    put("sys/fs/cgroup/user.slice/memory.stat", "anon 1\nfile 5\nactive_file 7\ninactive_file 1048576\nx 9\n");
    ms_memory_limit m = read_ok();
    assert_true(m.limit_bytes == 3 * MIB && m.cgroup_bytes == 3 * MIB && m.available_bytes == 8 * MIB);
    assert_string_equal(m.source, "/sys/fs/cgroup/user.slice");
    /* The leaf limits more. */
    put("sys/fs/cgroup/user.slice/app.scope/memory.max", "2098152\n");
    m = read_ok();
    assert_true(m.limit_bytes == 2098152 - 1000);
    assert_string_equal(m.source, "/sys/fs/cgroup/user.slice/app.scope");
    /* Throttling starts below the hard limit. */
    put("sys/fs/cgroup/user.slice/app.scope/memory.high", "1049576\n");
    assert_true(read_ok().limit_bytes == MIB);
    /* More in use than allowed: nothing is left, not 2^64. */
    put("sys/fs/cgroup/user.slice/app.scope/memory.current", "99999999\n");
    assert_true(read_ok().limit_bytes == 0);
}

static void a_wide_cgroup_leaves_meminfo_in_charge(void **state) {
    (void)state;
    put_meminfo();
    put("proc/self/cgroup", "0::/\n");
    put("proc/self/mountinfo", V2_MOUNT);
    put("sys/fs/cgroup/memory.max", "1073741824\n");
    put("sys/fs/cgroup/memory.current", "0\n");
    ms_memory_limit m = read_ok();
    assert_true(m.limit_bytes == 8 * MIB && m.cgroup_bytes == 1024 * MIB);
    assert_string_equal(m.source, "MemAvailable");
}

static void v1_and_hybrid(void **state) {
    (void)state;
    put_meminfo();
    put("proc/self/cgroup", "9:cpu,cpuacct:/a\n4:hugetlb,memory:/a/b\n0::/c\n");
    put("proc/self/mountinfo",
        "31 20 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "32 20 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
        "33 20 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("sys/fs/cgroup/memory/memory.usage_in_bytes", "123\n");
    assert_true(read_ok().cgroup_bytes == MS_MEMORY_UNLIMITED);
    put("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "5242880\n");
    put("sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "3145728\n");
    put("sys/fs/cgroup/memory/a/b/memory.stat", "inactive_file 5\ntotal_inactive_file 524288\n");
    assert_true(read_ok().limit_bytes == 2 * MIB + MIB / 2);
    /* Both hierarchies at once: the smaller decides. */
    put("sys/fs/cgroup/unified/c/memory.max", "1048576\n");
    put("sys/fs/cgroup/unified/c/memory.current", "0\n");
    ms_memory_limit m = read_ok();
    assert_true(m.limit_bytes == MIB);
    assert_string_equal(m.source, "/sys/fs/cgroup/unified/c");
}

static void containers_mount_a_subtree(void **state) {
    (void)state;
    put_meminfo();
    put("proc/self/cgroup", "0::/docker/abc/in\n");
    put("proc/self/mountinfo", "30 20 0:26 /docker/abc /sys/fs/cg\\040roup rw - cgroup2 cgroup2 rw\n");
    put("sys/fs/cg roup/memory.max", "4194304\n");
    put("sys/fs/cg roup/memory.current", "1048576\n");
    put("sys/fs/cg roup/in/memory.max", "2097152\n");
    put("sys/fs/cg roup/in/memory.current", "0\n");
    assert_true(read_ok().limit_bytes == 2 * MIB);
    /* A neighbour whose name starts the same, and a path outside the namespace: only the mount point is seen. */
    put("proc/self/cgroup", "0::/docker/abcd/in\n");
    assert_true(read_ok().limit_bytes == 3 * MIB);
    put("proc/self/cgroup", "0::/../in\n");
    assert_true(read_ok().limit_bytes == 3 * MIB);
}

static void bad_files_are_one_clear_error(void **state) {
    (void)state;
    ms_memory_limit m;
    ms_error err;
    assert_int_equal(ms_memory_limit_read(&m, root, &err), MS_ERR_FORMAT); /* no meminfo at all */
    assert_non_null(strstr(err.message, "/proc/meminfo"));
    static const char *const bad_meminfo[] = {"MemTotal: 5 kB\n", "MemAvailable: lots kB\n", "MemAvailable: -5 kB\n",
                                              "MemAvailable: 99999999999999999999999 kB\n",
                                              "MemAvailable: 18446744073709551615 kB\n", "MemAvailable:", ""};
    for (size_t i = 0; i < sizeof bad_meminfo / sizeof bad_meminfo[0]; i++) {
        put("proc/meminfo", bad_meminfo[i]);
        assert_int_equal(ms_memory_limit_read(&m, root, &err), MS_ERR_FORMAT);
        assert_non_null(strstr(err.message, "/proc/meminfo"));
    }
    put_meminfo();
    put("proc/self/cgroup", "garbage\n\n0::relative\n:::\n0::/x\n");
    put("proc/self/mountinfo", "garbage\n - \n1 2 3 4 5 - cgroup2\n" V2_MOUNT);
    put("sys/fs/cgroup/x/memory.max", "12\n");
    put("sys/fs/cgroup/x/memory.current", "0\n");
    assert_true(read_ok().limit_bytes == 12);
    put("sys/fs/cgroup/x/memory.max", "12 twelve\n");
    assert_int_equal(ms_memory_limit_read(&m, root, &err), MS_ERR_FORMAT);
    assert_non_null(strstr(err.message, "memory.max"));
    assert_non_null(strstr(err.message, "twelve"));
    put("sys/fs/cgroup/x/memory.max", "12000\n");
    put("sys/fs/cgroup/x/memory.current", "");
    assert_int_equal(ms_memory_limit_read(&m, root, &err), MS_ERR_FORMAT);
    assert_non_null(strstr(err.message, "memory.current"));
}

static void the_running_system(void **state) {
    (void)state;
    ms_memory_limit m;
    ms_error err;
    if (ms_memory_limit_read(&m, NULL, &err) != MS_OK) fail_msg("%s", err.message);
    assert_true(m.limit_bytes > 0 && m.limit_bytes <= m.available_bytes && m.limit_bytes <= m.cgroup_bytes);
}

int main(void) {
#define WITH_ROOT(f) cmocka_unit_test_setup_teardown(f, make_root, remove_root)
    const struct CMUnitTest tests[] = {
        WITH_ROOT(meminfo_alone),
        WITH_ROOT(v2_every_level_counts),
        WITH_ROOT(a_wide_cgroup_leaves_meminfo_in_charge),
        WITH_ROOT(v1_and_hybrid),
        WITH_ROOT(containers_mount_a_subtree),
        WITH_ROOT(bad_files_are_one_clear_error),
        cmocka_unit_test(the_running_system),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
