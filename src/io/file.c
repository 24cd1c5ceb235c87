/* file.c: whole-file reads, exact preads and the atomic writer (see file.h).
 *
 * The writer keeps a descriptor of the target's folder and works relative to it, so that the check of the
 * target, the temporary and the rename are about one folder even when a path component is swapped meanwhile.
 * Where the file system has files without a name (O_TMPFILE), a target that must not exist yet is written into one and
 * linked at the end: a killed process leaves nothing.  A link cannot replace, so replacing takes a named temporary.
 * Its name is random and of fixed length: a target name may use all of NAME_MAX.  It is locked while its writer lives,
 * so that what dead ones left can be told apart.
 *
 * Threads: a writer belongs to one thread; everything else is free.
 */
#include "io/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    FILE_TEMP_NAME_BYTES = 32,
    FILE_PROC_PATH_BYTES = 32,
    FILE_TEMP_TRIES = 100,
    FILE_IO_CHUNK = 1 << 30 /* the kernel moves at most 2 GiB a call; stay clear of it */
};

#define TEMP_PREFIX ".ms-tmp-"

struct ms_file_writer {
    char *path;       /* as given, for messages */
    const char *name; /* last component, inside path */
    int folder;
    int fd;
    int lock; /* the temporary's, when fd is closed */
    bool replace, failed;
    uint64_t written;
    char temp[FILE_TEMP_NAME_BYTES]; /* empty: the file has no name yet */
};

/* ------------------------------------------------------------------ reading */

static ms_status read_stream(int fd, const char *path, size_t hint, size_t max_bytes, char **data, size_t *len,
                             ms_error *err) {
    size_t cap = hint < 64 ? 64 : hint, n = 0; /* cap: payload bytes; the buffer has two more (probe, NUL) */
    char *buf = malloc(cap + 2);
    if (!buf) return ms_fail_memory(err, path, cap + 2);
    for (;;) {
        size_t room = cap + 1 - n; /* one byte beyond cap tells whether the file goes on */
        ssize_t got = read(fd, buf + n, room < FILE_IO_CHUNK ? room : FILE_IO_CHUNK);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            int saved = errno;
            free(buf);
            return ms_fail_errno(err, MS_ERR_IO, saved, "%s: read at offset %zu", path, n);
        }
        if (got == 0) break;
        n += (size_t)got;
        if (n > max_bytes) {
            free(buf);
            return ms_fail(err, MS_ERR_FORMAT, "%s: file is larger than %zu bytes", path, max_bytes);
        }
        if (n <= cap) continue;
        /* It grew, or it is one of the kernel's files whose size says 0. */
        size_t bigger = cap > max_bytes / 2 ? max_bytes : cap * 2;
        char *moved = realloc(buf, bigger + 2);
        if (!moved) {
            free(buf);
            return ms_fail_memory(err, path, bigger + 2);
        }
        buf = moved;
        cap = bigger;
    }
    buf[n] = '\0';
    *data = buf;
    *len = n;
    return MS_OK;
}

ms_status ms_file_read_all(const char *path, size_t max_bytes, char **data, size_t *len, ms_error *err) {
    *data = NULL;
    *len = 0;
    if (max_bytes > SIZE_MAX / 2) max_bytes = SIZE_MAX / 2;
    /* O_NONBLOCK: opening a FIFO must not wait for a writer; regular files do not care. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    struct stat st;
    if (fd < 0) {
        int saved = errno; /* ENXIO: a socket, or a device that is not there */
        if (saved == ENXIO && stat(path, &st) == 0) return ms_fail_not_regular(err, path, st.st_mode);
        return ms_fail_errno(err, MS_ERR_IO, saved, "%s: open", path);
    }
    ms_status status;
    if (fstat(fd, &st) != 0) {
        status = ms_fail_errno(err, MS_ERR_IO, errno, "%s: stat", path);
    } else if (!S_ISREG(st.st_mode)) {
        status = ms_fail_not_regular(err, path, st.st_mode);
    } else if ((uint64_t)st.st_size > max_bytes) {
        status = ms_fail(err, MS_ERR_FORMAT, "%s: expected at most %zu bytes, found %" PRIu64, path, max_bytes,
                         (uint64_t)st.st_size);
    } else {
        status = read_stream(fd, path, (size_t)st.st_size, max_bytes, data, len, err);
    }
    (void)close(fd);
    return status;
}

ms_status ms_file_pread_exact(int fd, const char *path, void *to, size_t length, uint64_t offset, ms_error *err) {
    uint64_t end;
    if (__builtin_add_overflow(offset, (uint64_t)length, &end) || end > (uint64_t)INT64_MAX) {
        return ms_fail(err, MS_ERR_IO, "%s: %zu bytes at offset %" PRIu64 " are outside any file", path, length,
                       offset);
    }
    size_t n = 0;
    while (n < length) {
        size_t want = length - n < FILE_IO_CHUNK ? length - n : FILE_IO_CHUNK;
        ssize_t got = pread(fd, (char *)to + n, want, (off_t)(offset + n));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            return ms_fail_errno(err, MS_ERR_IO, errno, "%s: read of %zu bytes at offset %" PRIu64, path, length,
                                 offset);
        }
        if (got == 0) {
            return ms_fail(err, MS_ERR_IO, "%s: expected %zu bytes at offset %" PRIu64 ", file ends after %zu", path,
                           length, offset, n);
        }
        n += (size_t)got;
    }
    return MS_OK;
}

/* ------------------------------------------------------------------ atomic writer */

static void writer_free(ms_file_writer *w) {
    if (w->fd >= 0) (void)close(w->fd);
    if (w->lock >= 0) (void)close(w->lock);
    if (w->folder >= 0) (void)close(w->folder);
    free(w->path);
    free(w);
}

/* What stands at the target now: nothing, or a regular file that may be replaced; anything else is refused. */
static ms_status check_target(const ms_file_writer *w, ms_error *err) {
    struct stat st;
    if (fstatat(w->folder, w->name, &st, AT_SYMLINK_NOFOLLOW) != 0) {
        if (errno == ENOENT) return MS_OK;
        return ms_fail_errno(err, MS_ERR_IO, errno, "%s: stat", w->path);
    }
    if (S_ISLNK(st.st_mode)) return ms_fail(err, MS_ERR_IO, "%s: is a symbolic link; refused as an output", w->path);
    if (!S_ISREG(st.st_mode)) {
        return ms_fail(err, MS_ERR_IO, "%s: is not a regular file; refused as an output", w->path);
    }
    if (!w->replace) return ms_fail(err, MS_ERR_IO, "%s: file exists; it is not replaced", w->path);
    return MS_OK;
}

/* folder: an open one, or -1: the path's. */
static ms_status open_folder(ms_file_writer *w, int folder, ms_error *err) {
    char *slash = strrchr(w->path, '/');
    w->name = slash ? slash + 1 : w->path;
    if (w->name[0] == '\0') return ms_fail(err, MS_ERR_USAGE, "\"%s\": expected a file name", w->path);
    const int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
    if (folder >= 0) {
        w->folder = openat(folder, ".", flags);
    } else if (!slash) {
        w->folder = open(".", flags);
    } else if (slash == w->path) {
        w->folder = open("/", flags);
    } else {
        *slash = '\0';
        w->folder = open(w->path, flags);
        *slash = '/';
    }
    if (w->folder < 0) return ms_fail_errno(err, MS_ERR_IO, errno, "%s: open its folder", w->path);
    return MS_OK;
}

static void proc_path(const ms_file_writer *w, char out[FILE_PROC_PATH_BYTES]) {
    (void)snprintf(out, FILE_PROC_PATH_BYTES, "/proc/self/fd/%d", w->fd);
}

/* A file without a name, when it can be made and will be able to get one. */
static bool open_nameless(ms_file_writer *w) {
    char proc[FILE_PROC_PATH_BYTES];
    w->fd = openat(w->folder, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (w->fd < 0) return false;
    proc_path(w, proc);
    if (access(proc, F_OK) == 0 && fchmod(w->fd, 0600) == 0) return true;
    (void)close(w->fd);
    w->fd = -1;
    return false;
}

/* False: ms_file_remove_temporaries() found it before it was locked. */
static bool lock_temp(int fd) {
    struct stat st;
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) return errno != EWOULDBLOCK; /* some filesystems have no locks */
    return fstat(fd, &st) != 0 || st.st_nlink > 0;
}

static ms_status open_temp(ms_file_writer *w, ms_error *err) {
    if (!w->replace && open_nameless(w)) return MS_OK;
    for (int i = 0; i < FILE_TEMP_TRIES && w->fd < 0; i++) {
        uint64_t random;
        if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random) {
            return ms_fail_errno(err, MS_ERR_IO, errno, "%s: random temporary name", w->path);
        }
        (void)snprintf(w->temp, sizeof w->temp, TEMP_PREFIX "%016" PRIx64, random);
        w->fd = openat(w->folder, w->temp, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (w->fd < 0 && errno != EEXIST) break;
        if (w->fd < 0 || lock_temp(w->fd)) continue;
        (void)close(w->fd);
        w->fd = -1;
        errno = EEXIST;
    }
    if (w->fd < 0) return ms_fail_errno(err, MS_ERR_IO, errno, "%s: create a temporary beside it", w->path);
    /* An unusual umask must not leave a file that its owner cannot read. */
    if (fchmod(w->fd, 0600) != 0) {
        int saved = errno;
        (void)unlinkat(w->folder, w->temp, 0);
        return ms_fail_errno(err, MS_ERR_IO, saved, "%s: set mode 0600", w->path);
    }
    return MS_OK;
}

ms_status ms_file_writer_open(ms_file_writer **out, const char *path, bool replace, ms_error *err) {
    return ms_file_writer_open_at(out, -1, path, replace, err);
}

ms_status ms_file_writer_open_at(ms_file_writer **out, int folder, const char *path, bool replace, ms_error *err) {
    *out = NULL;
    ms_file_writer *w = calloc(1, sizeof *w);
    if (!w) return ms_fail_memory(err, "output file", sizeof *w);
    w->folder = w->fd = w->lock = -1;
    w->replace = replace;
    w->path = strdup(path);
    ms_status status = w->path ? MS_OK : ms_fail_memory(err, "output path", strlen(path) + 1);
    if (status == MS_OK) status = open_folder(w, folder, err);
    if (status == MS_OK) status = check_target(w, err);
    if (status == MS_OK) status = open_temp(w, err);
    if (status != MS_OK) {
        writer_free(w);
        return status;
    }
    *out = w;
    return MS_OK;
}

static ms_status write_at(ms_file_writer *w, uint64_t offset, const void *data, size_t length, ms_error *err) {
    uint64_t end;
    if (w->failed) return ms_fail(err, MS_ERR_IO, "%s: an earlier write failed", w->path);
    if (__builtin_add_overflow(offset, (uint64_t)length, &end) || end > (uint64_t)INT64_MAX) {
        return ms_fail(err, MS_ERR_USAGE, "%s: %zu bytes at offset %" PRIu64 " do not fit a file", w->path, length,
                       offset);
    }
    size_t n = 0;
    while (n < length) {
        size_t want = length - n < FILE_IO_CHUNK ? length - n : FILE_IO_CHUNK;
        ssize_t put = pwrite(w->fd, (const char *)data + n, want, (off_t)(offset + n));
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) {
            int saved = put < 0 ? errno : EIO;
            w->failed = true;
            return ms_fail_errno(err, MS_ERR_IO, saved, "%s: write of %zu bytes at offset %" PRIu64, w->path, length,
                                 offset);
        }
        n += (size_t)put;
    }
    return MS_OK;
}

ms_status ms_file_writer_write(ms_file_writer *w, const void *data, size_t length, ms_error *err) {
    ms_status status = write_at(w, w->written, data, length, err);
    if (status == MS_OK) w->written += length;
    return status;
}

ms_status ms_file_writer_patch(ms_file_writer *w, uint64_t offset, const void *data, size_t length, ms_error *err) {
    if (offset > w->written || length > w->written - offset) {
        return ms_fail(err, MS_ERR_USAGE, "%s: patch of %zu bytes at offset %" PRIu64 " goes beyond the %" PRIu64
                       " bytes written", w->path, length, offset, w->written);
    }
    return write_at(w, offset, data, length, err);
}

static int publish_nameless(const ms_file_writer *w) {
    char proc[FILE_PROC_PATH_BYTES];
    proc_path(w, proc);
    return linkat(AT_FDCWD, proc, w->folder, w->name, AT_SYMLINK_FOLLOW); /* never replaces */
}

/* Gives the temporary its final name; the temporary is gone when this succeeds. */
static int publish(const ms_file_writer *w) {
    if (!w->temp[0]) return publish_nameless(w);
    if (w->replace) return renameat(w->folder, w->temp, w->folder, w->name);
    if (renameat2(w->folder, w->temp, w->folder, w->name, RENAME_NOREPLACE) == 0) return 0;
    if (errno != EINVAL && errno != ENOSYS) return -1;
    /* A filesystem without RENAME_NOREPLACE: a link never replaces either. */
    if (linkat(w->folder, w->temp, w->folder, w->name, 0) != 0) return -1;
    (void)unlinkat(w->folder, w->temp, 0);
    return 0;
}

ms_status ms_file_writer_commit(ms_file_writer *w, ms_error *err) {
    ms_status status = w->failed ? ms_fail(err, MS_ERR_IO, "%s: an earlier write failed", w->path) : MS_OK;
    if (status == MS_OK && fsync(w->fd) != 0) status = ms_fail_errno(err, MS_ERR_IO, errno, "%s: fsync", w->path);
    if (status == MS_OK && w->temp[0]) {
        w->lock = fcntl(w->fd, F_DUPFD_CLOEXEC, 0);
        int rc = close(w->fd); /* some filesystems report a failed write only here */
        w->fd = -1;
        if (rc != 0 && errno != EINTR) status = ms_fail_errno(err, MS_ERR_IO, errno, "%s: close", w->path);
    }
    if (status == MS_OK) status = check_target(w, err);
    if (status == MS_OK && publish(w) != 0) status = ms_fail_errno(err, MS_ERR_IO, errno, "%s: rename", w->path);
    if (status != MS_OK) {
        ms_file_writer_abort(w);
        return status;
    }
    /* EINVAL: a filesystem that knows no fsync of folders. */
    if (fsync(w->folder) != 0 && errno != EINVAL) {
        status = ms_fail_errno(err, MS_ERR_IO, errno, "%s: fsync of its folder (the file is in place)", w->path);
    }
    writer_free(w);
    return status;
}

void ms_file_writer_abort(ms_file_writer *w) {
    if (!w) return;
    if (w->temp[0]) (void)unlinkat(w->folder, w->temp, 0);
    writer_free(w);
}

/* ------------------------------------------------------------------ what dead writers left */

static void remove_temporary(int folder, const char *name) {
    struct stat st;
    int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && flock(fd, LOCK_EX | LOCK_NB) == 0) {
        (void)unlinkat(folder, name, 0);
    }
    (void)close(fd);
}

void ms_file_remove_temporaries(int folder) {
    int copy = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = copy < 0 ? NULL : fdopendir(copy);
    if (!dir) {
        if (copy >= 0) (void)close(copy);
        return;
    }
    for (struct dirent *e; (e = readdir(dir));) {
        if (strncmp(e->d_name, TEMP_PREFIX, sizeof TEMP_PREFIX - 1) == 0) remove_temporary(folder, e->d_name);
    }
    (void)closedir(dir);
}
