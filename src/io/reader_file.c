/* reader_file.c: files of the reader: regular files only, O_DIRECT where the file system allows it. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/reader_internal.h"

/* Does the file system say that direct reads of MS_READER_ALIGN pieces do not work here?  Silence is consent. */
static const char *direct_refused(int fd) {
#ifdef STATX_DIOALIGN
    struct statx st;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &st) == 0 && (st.stx_mask & STATX_DIOALIGN)) {
        if (st.stx_dio_offset_align == 0 || st.stx_dio_mem_align == 0) return "the file system has no direct reads";
        if (MS_READER_ALIGN % st.stx_dio_offset_align != 0 || MS_READER_ALIGN % st.stx_dio_mem_align != 0) {
            return "the file system asks for a larger alignment";
        }
    }
#else
    (void)fd;
#endif
    return NULL;
}

void ms_reader_file_make_buffered(ms_reader *r, reader_file *f, const char *why) {
    if (!f->direct) return;
    /* On the open description, not by opening the path again: the path may lead to another file by now.
     * Transfers that the kernel already has keep the mode they were started with. */
    int flags = fcntl(f->fd, F_GETFL);
    if (flags >= 0) (void)fcntl(f->fd, F_SETFL, flags & ~O_DIRECT);
    f->direct = false;
    r->stats.buffered_files++;
    ms_reader_warn(r, READER_WARN_DIRECT, "%s: no O_DIRECT (%s); reads go through the page cache", f->path, why);
}

ms_status ms_reader_file_open(ms_reader *r, const char *path, reader_file *out, ms_error *err) {
    struct stat st;
    *out = (reader_file){.fd = -1};
    /* O_NONBLOCK only so that a FIFO cannot hold us up; io_uring would take it as "fail rather than wait". */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0) return ms_fail_errno(err, MS_ERR_IO, errno, "%s: open", path);
    out->fd = fd;
    if (fstat(fd, &st) != 0) return ms_fail_errno(err, MS_ERR_IO, errno, "%s: stat", path);
    if (!S_ISREG(st.st_mode)) return ms_fail_not_regular(err, path, st.st_mode);
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) != 0) {
        return ms_fail_errno(err, MS_ERR_IO, errno, "%s: set its flags", path);
    }
    out->size = (uint64_t)st.st_size;
    out->device = (uint64_t)st.st_dev;
    out->path = strdup(path);
    if (!out->path) return ms_fail_memory(err, path, strlen(path) + 1);
    if (r->options.buffered) {
        r->stats.buffered_files++;
        return MS_OK;
    }
    out->direct = true;
    const char *why = direct_refused(fd);
    if (!why && fcntl(fd, F_SETFL, (flags & ~O_NONBLOCK) | O_DIRECT) != 0) why = strerror(errno);
    if (why) ms_reader_file_make_buffered(r, out, why);
    return MS_OK;
}

void ms_reader_file_close(reader_file *f) {
    if (f->fd >= 0) (void)close(f->fd);
    free(f->path);
    *f = (reader_file){.fd = -1};
}
