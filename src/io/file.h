/* file.h: small synchronous file helpers: whole reads with a limit, exact preads, atomic 0600 output.
 *
 * Threads: any.  Errors name the path.
 */
#ifndef MS_IO_FILE_H
#define MS_IO_FILE_H

#include "base/error.h"

/* Reads a whole regular file, or the one that a link names, of at most max_bytes (else MS_ERR_FORMAT).  Anything else
 * is MS_ERR_FORMAT too, and a FIFO is not waited for.  *data is NUL-terminated, free() it. */
ms_status ms_file_read_all(const char *path, size_t max_bytes, char **data, size_t *len, ms_error *err);

/* Reads exactly `length` bytes at `offset`, retrying EINTR and short reads; end of file is MS_ERR_IO.
 * `path` is for messages. */
ms_status ms_file_pread_exact(int fd, const char *path, void *to, size_t length, uint64_t offset, ms_error *err);

/* An output file that appears whole or not at all: a 0600 temporary beside the target (O_EXCL|O_NOFOLLOW) or one
 * without a name (O_TMPFILE), then fsync, rename or link, fsync of the folder.  replace: an existing target may be
 * overwritten, else it is an error, also when it appears meanwhile.  A target that is a symlink or not a regular file
 * is refused.
 * After a failed write only abort and commit (which then fails) make sense.  A process that dies never leaves a
 * partial target; it leaves a ".ms-tmp-*" file when replace is set or the file system has no O_TMPFILE, else nothing. */
typedef struct ms_file_writer ms_file_writer;
ms_status ms_file_writer_open(ms_file_writer **out, const char *path, bool replace, ms_error *err);
/* The same in an open folder, whatever its path leads to by now: the target is the last part of `path`, the rest is for
 * messages. */
ms_status ms_file_writer_open_at(ms_file_writer **out, int folder, const char *path, bool replace, ms_error *err);
ms_status ms_file_writer_write(ms_file_writer *w, const void *data, size_t length, ms_error *err);
/* Rewrites bytes already written (a header whose checksum comes last). */
ms_status ms_file_writer_patch(ms_file_writer *w, uint64_t offset, const void *data, size_t length, ms_error *err);
ms_status ms_file_writer_commit(ms_file_writer *w, ms_error *err); /* frees w in every case */
void ms_file_writer_abort(ms_file_writer *w);                      /* removes the temporary; NULL is fine */

/* Removes the temporaries that dead processes left in an open folder; those of living writers are locked, and stay.
 * What cannot be removed stays too. */
void ms_file_remove_temporaries(int folder);

#endif
