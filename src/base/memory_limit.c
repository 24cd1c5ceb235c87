/* memory_limit.c: MemAvailable and the room of the memory cgroups (see memory_limit.h).
 *
 * The folder of a cgroup is its mount point plus the process's path less the part that the mount already
 * starts at (containers mount a subtree).  A path outside the mounted subtree leaves the mount point itself:
 * that is the nearest level that can be seen.
 */
#include "base/memory_limit.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"

enum { LIMIT_PATH_BYTES = 4096 };

/* One memory controller that is mounted: where, and which cgroup its root is. */
typedef struct cgroup_mount {
    bool found, v2;
    char point[LIMIT_PATH_BYTES], root[LIMIT_PATH_BYTES];
} cgroup_mount;

typedef struct cgroup_files {
    const char *limit, *soft_limit, *usage, *reclaimable;
} cgroup_files;

static const cgroup_files files_v2 = {"memory.max", "memory.high", "memory.current", "inactive_file "};
static const cgroup_files files_v1 = {"memory.limit_in_bytes", NULL, "memory.usage_in_bytes", "total_inactive_file "};

/* A decimal number at the start of s, not followed by another word character. */
static bool parse_u64(const char *s, uint64_t *out) {
    if (*s < '0' || *s > '9') return false;
    uint64_t v = 0;
    for (; *s >= '0' && *s <= '9'; s++) {
        if (!ms_mul_u64(v, 10, &v) || !ms_add_u64(v, (uint64_t)(*s - '0'), &v)) return false;
    }
    if (*s != '\0' && *s != '\n' && *s != ' ' && *s != '\t') return false;
    *out = v;
    return true;
}

/* Opens root + path.  NULL with *status MS_OK when there is no such file. */
static FILE *open_under(const char *root, const char *path, ms_status *status, ms_error *err) {
    char full[3 * LIMIT_PATH_BYTES];
    *status = MS_OK;
    if ((size_t)snprintf(full, sizeof full, "%s%s", root, path) >= sizeof full) {
        *status = ms_fail(err, MS_ERR_IO, "%s: path is too long", path);
        return NULL;
    }
    FILE *f = fopen(full, "re");
    /* EACCES: a level above that this user may not look into limits nothing we could know of. */
    if (!f && errno != ENOENT && errno != ENOTDIR && errno != EACCES) {
        *status = ms_fail_errno(err, MS_ERR_IO, errno, "%s: open", path);
    }
    return f;
}

/* The number after a line's prefix ("MemAvailable:", "inactive_file "); *found is false when no line has it. */
static ms_status read_field(const char *root, const char *path, const char *prefix, uint64_t *out, bool *found,
                            ms_error *err) {
    ms_status status;
    char line[512];
    *found = false;
    FILE *f = open_under(root, path, &status, err);
    if (!f) return status;
    size_t n = strlen(prefix);
    while (!*found && fgets(line, sizeof line, f)) {
        if (strncmp(line, prefix, n) != 0) continue;
        *found = true;
        if (!parse_u64(line + n + strspn(line + n, " \t"), out)) {
            line[strcspn(line, "\n")] = '\0';
            status = ms_fail(err, MS_ERR_FORMAT, "%s: expected a number after \"%s\", found \"%s\"", path, prefix,
                             line);
        }
    }
    (void)fclose(f);
    return status;
}

/* A file of one number or the word "max"; a missing file is "max". */
static ms_status read_limit(const char *root, const char *path, uint64_t *out, ms_error *err) {
    ms_status status;
    char line[128];
    *out = MS_MEMORY_UNLIMITED;
    FILE *f = open_under(root, path, &status, err);
    if (!f) return status;
    if (!fgets(line, sizeof line, f)) line[0] = '\0';
    (void)fclose(f);
    line[strcspn(line, "\n")] = '\0';
    if (strcmp(line, "max") == 0) return MS_OK;
    if (line[strspn(line, "0123456789")] != '\0' || !parse_u64(line, out)) {
        return ms_fail(err, MS_ERR_FORMAT, "%s: expected a number of bytes or \"max\", found \"%s\"", path, line);
    }
    return MS_OK;
}

/* Lowers out->cgroup_bytes to the room of the one cgroup at `folder`. */
static ms_status add_level(ms_memory_limit *out, const char *root, const char *folder, const cgroup_files *names,
                           ms_error *err) {
    char path[2 * LIMIT_PATH_BYTES + 64];
    uint64_t limit, usage, reclaimable = 0;
    bool found;
    (void)snprintf(path, sizeof path, "%s/%s", folder, names->limit);
    MS_TRY(read_limit(root, path, &limit, err));
    if (names->soft_limit) {
        uint64_t soft;
        (void)snprintf(path, sizeof path, "%s/%s", folder, names->soft_limit);
        MS_TRY(read_limit(root, path, &soft, err));
        if (soft < limit) limit = soft;
    }
    /* v1 writes "no limit" as the largest page-aligned int64. */
    if (limit >= (uint64_t)INT64_MAX / 2) return MS_OK;
    (void)snprintf(path, sizeof path, "%s/%s", folder, names->usage);
    MS_TRY(read_limit(root, path, &usage, err));
    if (usage == MS_MEMORY_UNLIMITED) return ms_fail(err, MS_ERR_FORMAT, "%s: expected the bytes in use", path);
    (void)snprintf(path, sizeof path, "%s/memory.stat", folder);
    MS_TRY(read_field(root, path, names->reclaimable, &reclaimable, &found, err));
    if (!found) reclaimable = 0;
    uint64_t used = usage > reclaimable ? usage - reclaimable : 0;
    uint64_t room = limit > used ? limit - used : 0;
    if (room >= out->cgroup_bytes) return MS_OK;
    out->cgroup_bytes = room;
    if (room < out->limit_bytes) {
        out->limit_bytes = room;
        (void)snprintf(out->source, sizeof out->source, "%.*s", (int)sizeof out->source - 1, folder);
    }
    return MS_OK;
}

/* All levels from the process's cgroup up to the mount point. */
static ms_status add_levels(ms_memory_limit *out, const char *root, const cgroup_mount *mount, const char *cgroup,
                            ms_error *err) {
    char folder[2 * LIMIT_PATH_BYTES];
    size_t skip = strcmp(mount->root, "/") == 0 ? 0 : strlen(mount->root);
    const char *below = "";
    if (strncmp(cgroup, mount->root, skip) == 0 && (cgroup[skip] == '/' || cgroup[skip] == '\0')) below = cgroup + skip;
    if (strstr(below, "/..")) below = ""; /* outside our cgroup namespace */
    size_t base = strlen(mount->point);
    (void)snprintf(folder, sizeof folder, "%s%s", mount->point, below);
    for (;;) {
        size_t n = strlen(folder);
        while (n > base && folder[n - 1] == '/') folder[--n] = '\0';
        MS_TRY(add_level(out, root, folder, mount->v2 ? &files_v2 : &files_v1, err));
        if (n <= base) return MS_OK;
        *strrchr(folder, '/') = '\0';
    }
}

/* Copies a mountinfo word, undoing its \ooo escapes. */
static void copy_unescaped(char *to, const char *from) {
    while (*from) {
        if (from[0] == '\\' && from[1] >= '0' && from[1] <= '3' && from[2] >= '0' && from[2] <= '7' &&
            from[3] >= '0' && from[3] <= '7') {
            *to++ = (char)((from[1] - '0') << 6 | (from[2] - '0') << 3 | (from[3] - '0'));
            from += 4;
        } else {
            *to++ = *from++;
        }
    }
    *to = '\0';
}

/* Is `word` one of the comma-separated words of `list`? */
static bool has_word(const char *list, const char *word) {
    size_t n = strlen(word);
    for (const char *s = list; *s; s += *s == ',') {
        size_t len = strcspn(s, ",\n ");
        if (len == n && strncmp(s, word, n) == 0) return true;
        s += len;
        if (*s != ',') break;
    }
    return false;
}

/* "36 35 98:0 /root /point opts optional... - type source super-options" */
static void parse_mount_line(char *line, cgroup_mount mounts[2]) {
    char *tail = strstr(line, " - "), *save = NULL;
    char *words[5], *type, *super;
    if (!tail) return;
    *tail = '\0';
    for (int i = 0; i < 5; i++) {
        words[i] = strtok_r(i ? NULL : line, " ", &save);
        if (!words[i]) return;
    }
    type = strtok_r(tail + 3, " \n", &save);
    if (!type || !strtok_r(NULL, " \n", &save)) return;
    super = strtok_r(NULL, " \n", &save);
    bool v2 = strcmp(type, "cgroup2") == 0;
    bool v1 = strcmp(type, "cgroup") == 0 && super && has_word(super, "memory");
    cgroup_mount *m = &mounts[v2 ? 1 : 0];
    if ((!v1 && !v2) || m->found) return;
    if (strlen(words[3]) >= sizeof m->root || strlen(words[4]) >= sizeof m->point) return;
    m->found = true;
    m->v2 = v2;
    copy_unescaped(m->root, words[3]);
    copy_unescaped(m->point, words[4]);
}

typedef void line_fn(void *arg, char *line);

/* Calls fn for every line of a file; a missing file has none. */
static ms_status each_line(const char *root, const char *path, line_fn *fn, void *arg, ms_error *err) {
    ms_status status;
    char *line = NULL;
    size_t cap = 0;
    FILE *f = open_under(root, path, &status, err);
    if (!f) return status;
    while (getline(&line, &cap, f) > 0) fn(arg, line);
    free(line);
    (void)fclose(f);
    return MS_OK;
}

static void mount_line(void *arg, char *line) { parse_mount_line(line, arg); }

typedef struct own_cgroups {
    bool found[2];
    char path[2][LIMIT_PATH_BYTES]; /* [0]: v1 memory, [1]: v2 */
} own_cgroups;

/* "4:memory:/path" (v1) or "0::/path" (v2) */
static void own_cgroup_line(void *arg, char *line) {
    own_cgroups *own = arg;
    char *controllers = strchr(line, ':');
    char *path = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!path) return;
    *path++ = '\0';
    controllers++;
    path[strcspn(path, "\n")] = '\0';
    int which = controllers[0] == '\0' ? 1 : has_word(controllers, "memory") ? 0 : -1;
    if (which < 0 || own->found[which] || path[0] != '/' || strlen(path) >= sizeof own->path[which]) return;
    own->found[which] = true;
    (void)strcpy(own->path[which], path);
}

static ms_status add_cgroups(ms_memory_limit *out, const char *root, cgroup_mount mounts[2], own_cgroups *own,
                             ms_error *err) {
    MS_TRY(each_line(root, "/proc/self/cgroup", own_cgroup_line, own, err));
    MS_TRY(each_line(root, "/proc/self/mountinfo", mount_line, mounts, err));
    for (int i = 0; i < 2; i++) {
        if (own->found[i] && mounts[i].found) MS_TRY(add_levels(out, root, &mounts[i], own->path[i], err));
    }
    return MS_OK;
}

ms_status ms_memory_limit_read(ms_memory_limit *out, const char *root, ms_error *err) {
    static const char meminfo[] = "/proc/meminfo";
    uint64_t kib, bytes;
    bool found;
    if (!root) root = "";
    MS_TRY(read_field(root, meminfo, "MemAvailable:", &kib, &found, err));
    if (!found || !ms_mul_u64(kib, 1024, &bytes)) {
        return ms_fail(err, MS_ERR_FORMAT, "%s: expected a line \"MemAvailable: <KiB> kB\"", meminfo);
    }
    *out = (ms_memory_limit){.limit_bytes = bytes, .available_bytes = bytes, .cgroup_bytes = MS_MEMORY_UNLIMITED,
                             .source = "MemAvailable"};
    cgroup_mount *mounts = calloc(2, sizeof *mounts);
    own_cgroups *own = calloc(1, sizeof *own);
    ms_status status = mounts && own ? add_cgroups(out, root, mounts, own, err)
                                     : ms_fail_memory(err, "cgroup paths", 2 * sizeof *mounts + sizeof *own);
    free(mounts);
    free(own);
    return status;
}
