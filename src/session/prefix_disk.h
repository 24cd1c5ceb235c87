/* prefix_disk.h: a folder of saved causal states: layout, crash safety, damage.  No policy.
 *
 *     lock                      held with flock while the folder is in use
 *     manifest.json             entries with sizes and last use; rebuilt from the folders when missing or broken
 *     e-<16 hex>/state.bin      causal-state file (docs/formats.md)
 *     e-<16 hex>/tokens.u32     its token ids, little endian
 *     e-<16 hex>/meta.json      identity, counts, the caller's text
 *     tmp-<16 hex>/             an entry being written; removed when the folder is opened
 *
 * The folder is 0700 and the user's own, files are 0600.  An entry appears by one rename after everything in it was
 * synced; so a process that dies leaves the old set or the new one.  What is not named like this is left alone. The
 * files hold conversations: whoever can read them can read what was said.
 *
 * Owns: the folder's descriptor and lock.  Threads: one at a time, but for ms_prefix_disk_path (any).
 * Errors: MS_ERR_IO, MS_ERR_FORMAT (a damaged entry), MS_ERR_USAGE (a path that is no private folder and cannot become
 * one), MS_ERR_MEMORY;
 * messages name the path.
 */
#ifndef MS_SESSION_PREFIX_DISK_H
#define MS_SESSION_PREFIX_DISK_H

#include "base/text.h"
#include "session/state_image.h"
#include "text/tokenizer.h"

typedef struct ms_prefix_disk ms_prefix_disk;

/* What an entry is, apart from its state. */
typedef struct ms_prefix_record {
    uint64_t id;       /* names the folder */
    uint64_t identity; /* of model, options and formats: only equal ones fit */
    uint64_t last_use; /* grows with every use; from the manifest */
    uint64_t bytes;    /* of its files */
    ms_ids ids;
    char *meta; /* the caller's, NUL-terminated */
    size_t meta_len;
} ms_prefix_record;
void ms_prefix_record_free(ms_prefix_record *r);

/* Creates the folder (its parent must exist) or finds out whether it could be taken over, the lock apart. */
ms_status ms_prefix_disk_prepare(const char *root, ms_error *err);
/* Creates the folder (its parent must exist) or takes it over; removes what an interrupted write left.
 * *in_use: another process has it (then the status is MS_ERR_IO). */
ms_status ms_prefix_disk_open(ms_prefix_disk **out, const char *root, bool *in_use, ms_error *err);
void ms_prefix_disk_close(ms_prefix_disk *d);

/* Reads every entry's record.  `damaged` (may be NULL) is told of entries that cannot be read; they are removed.  The
 * caller frees each record and the list. */
ms_status ms_prefix_disk_scan(ms_prefix_disk *d, ms_prefix_record **records, size_t *count,
                              void (*damaged)(void *arg, uint64_t id, const char *why), void *arg, ms_error *err);

/* Bytes that the files of an entry take. */
uint64_t ms_prefix_disk_need(const ms_prefix_record *r, uint64_t state_bytes);

/* Writes and publishes one entry; on failure nothing of it is left.  Fills r->bytes. */
ms_status ms_prefix_disk_write(ms_prefix_disk *d, ms_prefix_record *r, const ms_state_image *image, ms_error *err);
/* The same from the session itself, piece by piece: for a state that memory has no room to copy. */
ms_status ms_prefix_disk_export(ms_prefix_disk *d, ms_prefix_record *r, ms_session *s, ms_error *err);

ms_status ms_prefix_disk_remove(ms_prefix_disk *d, uint64_t id, ms_error *err);
/* The manifest is advice: losing it loses the order of use, no entry. */
ms_status ms_prefix_disk_manifest(ms_prefix_disk *d, const ms_prefix_record *const *records, size_t count,
                                  ms_error *err);

/* The path of an entry's state file, for ms_session_import. */
ms_status ms_prefix_disk_path(const ms_prefix_disk *d, uint64_t id, ms_text *out, ms_error *err);

#endif
