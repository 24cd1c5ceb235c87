#include "base/memory_cap.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CAP_PATH_BYTES = 4096 };

typedef struct cgroup_place {
    bool v2;
    char path[CAP_PATH_BYTES]; /* as /proc/self/cgroup names it */
} cgroup_place;

/* Is "memory" among the comma-separated names? */
static bool names_memory(const char *names, size_t len) {
    for (size_t at = 0; at <= len;) {
        const char *comma = memchr(names + at, ',', len - at);
        size_t n = comma ? (size_t)(comma - names) - at : len - at;
        if (n == 6 && !memcmp(names + at, "memory", 6)) return true;
        at += n + 1;
    }
    return false;
}

/* Lines are "NUMBER:CONTROLLERS:PATH"; v2 is "0::PATH".  A v1 memory controller goes before v2, which then has none. */
static bool take_line(const char *line, cgroup_place *out) {
    const char *names = strchr(line, ':');
    const char *path = names ? strchr(names + 1, ':') : NULL;
    if (!path) return false;
    bool v1 = names_memory(names + 1, (size_t)(path - names - 1));
    bool v2 = !strncmp(line, "0::", 3);
    if (!v1 && !v2) return false;
    size_t n = strcspn(path + 1, "\n");
    if (n >= sizeof out->path) return false;
    out->v2 = v2;
    memcpy(out->path, path + 1, n);
    out->path[n] = '\0';
    if (n == 1) out->path[0] = '\0'; /* "/": the top */
    return true;
}

static ms_status own_cgroup(cgroup_place *out, const char *root, ms_error *err) {
    char name[CAP_PATH_BYTES], line[CAP_PATH_BYTES + 64];
    if ((size_t)snprintf(name, sizeof name, "%s/proc/self/cgroup", root) >= sizeof name)
        return ms_fail(err, MS_ERR_IO, "%s: path is too long", root);
    FILE *f = fopen(name, "re");
    if (!f) return ms_fail_errno(err, MS_ERR_IO, errno, "%s", name);
    bool found = false;
    while (fgets(line, sizeof line, f)) {
        cgroup_place here;
        if (!take_line(line, &here) || (found && here.v2)) continue;
        *out = here;
        found = true;
    }
    (void)fclose(f);
    if (!found) return ms_fail(err, MS_ERR_UNSUPPORTED, "%s: no memory cgroup", name);
    return MS_OK;
}

static ms_status write_number(const char *folder, const char *file, uint64_t v, ms_error *err) {
    char path[2 * CAP_PATH_BYTES], text[24];
    int n = snprintf(text, sizeof text, "%" PRIu64 "\n", v);
    (void)snprintf(path, sizeof path, "%s/%s", folder, file);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return ms_fail_errno(err, MS_ERR_IO, errno, "%s", path);
    ssize_t done = write(fd, text, (size_t)n);
    int cause = errno;
    (void)close(fd);
    if (done != n) return ms_fail_errno(err, MS_ERR_IO, done < 0 ? cause : EIO, "%s", path);
    return MS_OK;
}

static ms_status name_folders(ms_memory_cap *c, const cgroup_place *own, const char *root, ms_error *err) {
    const char *mount = own->v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    int n = snprintf(c->home, sizeof c->home, "%s%s%s", root, mount, own->path);
    size_t parent = strlen(own->path);
    if (own->v2) {
        const char *slash = strrchr(own->path, '/');
        if (!slash) return ms_fail(err, MS_ERR_UNSUPPORTED, "%s: the top has no sibling", c->home);
        parent = (size_t)(slash - own->path);
    }
    int m = snprintf(c->folder, sizeof c->folder, "%s%s%.*s/moonshine-cap-%ld", root, mount, (int)parent, own->path,
                     (long)getpid());
    if (n < 0 || (size_t)n >= sizeof c->home || m < 0 || (size_t)m >= sizeof c->folder)
        return ms_fail(err, MS_ERR_IO, "%s: path is too long", own->path);
    return MS_OK;
}

static ms_status enter(ms_memory_cap *c, bool v2, uint64_t bytes, ms_error *err) {
    MS_TRY(write_number(c->folder, v2 ? "memory.max" : "memory.limit_in_bytes", bytes, err));
    return write_number(c->folder, "cgroup.procs", (uint64_t)getpid(), err);
}

ms_status ms_memory_cap_enter(ms_memory_cap *out, const char *root, uint64_t bytes, ms_error *err) {
    cgroup_place own;
    *out = (ms_memory_cap){0};
    if (!root) root = "";
    MS_TRY(own_cgroup(&own, root, err));
    ms_memory_cap c = {0};
    MS_TRY(name_folders(&c, &own, root, err));
    /* One that is there already was left by a process of the same number. */
    if (mkdir(c.folder, 0755) != 0 && errno != EEXIST) return ms_fail_errno(err, MS_ERR_IO, errno, "%s", c.folder);
    ms_status st = enter(&c, own.v2, bytes, err);
    if (st == MS_OK)
        *out = c;
    else
        (void)rmdir(c.folder);
    return st;
}

void ms_memory_cap_leave(ms_memory_cap *c) {
    if (!c->folder[0]) return;
    if (write_number(c->home, "cgroup.procs", (uint64_t)getpid(), NULL) == MS_OK) (void)rmdir(c->folder);
    *c = (ms_memory_cap){0};
}
