#include "session/named_state.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/crc64.h"
#include "io/file.h"
#include "session/state_image.h"

enum { META_MAX = 16 << 20, HEAD_BYTES = 64 };

/* The open folder and the two paths in it.  Messages name what they are for instead (by_role): replies and logs repeat
 * them, and the name is a client's. */
typedef struct place {
    int folder;
    bool missing; /* what was looked for is not there */
    ms_text state, meta;
} place;

bool ms_named_state_valid(const char *name, size_t len) {
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    if (!len || len > MS_STATE_NAME_MAX || name[0] == '.') return false;
    for (size_t i = 0; i < len; i++) {
        if (!name[i] || !strchr(allowed, name[i])) return false;
    }
    return true;
}

/* The path in front of a message becomes `role`; any other path takes the message with it. */
static ms_status by_role(ms_status st, const char *path, const char *role, ms_error *err) {
    if (st == MS_OK || !err) return st;
    size_t n = strlen(path);
    ms_error was = *err;
    bool leads = strncmp(was.message, path, n) == 0 && was.message[n] == ':';
    if (leads) return ms_fail(err, st, "%s%s", role, was.message + n);
    return ms_fail(err, st, "%s: %s", role, strchr(was.message, '/') ? ms_status_name(st) : was.message);
}

/* ------------------------------------------------------------------ the folder */

static ms_status check_private(int fd, const char *what, ms_error *err) {
    struct stat st;
    if (fstat(fd, &st) != 0) return ms_fail_errno(err, MS_ERR_IO, errno, "%s: stat", what);
    if (st.st_uid == geteuid() && (st.st_mode & 07777) == 0700) return MS_OK;
    return ms_fail(err, MS_ERR_USAGE, "%s: expected a folder of this user with mode 0700, found mode 0%03o", what,
                   (unsigned)st.st_mode & 07777);
}

static ms_status open_private(int at, const char *name, const char *what, int *fd, bool *missing, ms_error *err) {
    *fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    *missing = *fd < 0 && errno == ENOENT;
    if (*fd < 0) return ms_fail_errno(err, MS_ERR_IO, errno, "%s: open", what);
    return check_private(*fd, what, err);
}

static ms_status open_named(place *p, int root, bool create, ms_error *err) {
    static const char what[] = "folder of named states";
    bool made = create && mkdirat(root, "named", 0700) == 0;
    if (create && !made && errno != EEXIST) return ms_fail_errno(err, MS_ERR_IO, errno, "%s: create", what);
    if (made && fchmodat(root, "named", 0700, 0) != 0) return ms_fail_errno(err, MS_ERR_IO, errno, "%s: chmod", what);
    return open_private(root, "named", what, &p->folder, &p->missing, err);
}

static void close_place(place *p) {
    if (p->folder >= 0) (void)close(p->folder);
    ms_text_free(&p->state);
    ms_text_free(&p->meta);
}

static ms_status open_place(place *p, const char *root, const char *name, bool create, ms_error *err) {
    int fd = -1;
    *p = (place){.folder = -1};
    if (!ms_named_state_valid(name, strlen(name))) return ms_fail(err, MS_ERR_USAGE, "name of a state: not allowed");
    ms_text_printf(&p->state, "%s/named/%s.state", root, name);
    ms_text_printf(&p->meta, "%s/named/%s.meta", root, name);
    bool failed = p->state.failed || p->meta.failed;
    ms_status st = failed ? ms_fail_memory(err, "a path", strlen(root))
                          : open_private(AT_FDCWD, root, "folder of states", &fd, &p->missing, err);
    if (st == MS_OK) st = open_named(p, fd, create, err);
    if (fd >= 0) (void)close(fd);
    if (st != MS_OK) close_place(p);
    return st;
}

static const char *last_part(const ms_text *path) { return strrchr(path->data, '/') + 1; }

/* ------------------------------------------------------------------ the caller's text */

/* First line: what ties it to a state. */
static void write_head(const ms_session *s, char head[HEAD_BYTES]) {
    uint64_t count = ms_session_position(s), crc = 0;
    const uint32_t *ids = ms_session_tokens(s);
    for (uint64_t i = 0; i < count; i++) {
        uint8_t le[4];
        ms_put_le32(le, ids[i]);
        crc = ms_crc64(crc, le, sizeof le);
    }
    (void)snprintf(head, HEAD_BYTES, "moonshine-meta 1 %" PRIu64 " %016" PRIx64 "\n", count, crc);
}

static ms_status save_meta(const ms_session *s, const place *p, const char *meta, size_t len, ms_error *err) {
    char head[HEAD_BYTES];
    ms_file_writer *w;
    write_head(s, head);
    MS_TRY(ms_file_writer_open_at(&w, p->folder, p->meta.data, true, err));
    ms_status st = ms_file_writer_write(w, head, strlen(head), err);
    if (st == MS_OK) st = ms_file_writer_write(w, meta, len, err);
    if (st == MS_OK) return ms_file_writer_commit(w, err);
    ms_file_writer_abort(w);
    return st;
}

/* Without it the state is as good: fewer prompts match it. */
static void load_meta(const ms_session *s, const place *p, ms_text *meta) {
    char head[HEAD_BYTES];
    struct stat st;
    int fd = openat(p->folder, last_part(&p->meta), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) return;
    bool good = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size <= META_MAX;
    size_t len = good ? (size_t)st.st_size : 0;
    char *data = good ? malloc(len + 1) : NULL;
    if (data && ms_file_pread_exact(fd, p->meta.data, data, len, 0, NULL) == MS_OK) {
        write_head(s, head);
        size_t n = strlen(head);
        if (len >= n && memcmp(data, head, n) == 0) ms_text_append(meta, data + n, len - n);
    }
    free(data);
    (void)close(fd);
}

/* ------------------------------------------------------------------ states */

static const char state_role[] = "state file";

static ms_status look(place *p, uint64_t *bytes, ms_error *err) {
    struct stat st;
    if (fstatat(p->folder, last_part(&p->state), &st, AT_SYMLINK_NOFOLLOW) != 0) {
        p->missing = errno == ENOENT;
        return ms_fail_errno(err, MS_ERR_IO, errno, "%s: stat", state_role);
    }
    *bytes = (uint64_t)st.st_size;
    return MS_OK;
}

ms_status ms_named_state_save(ms_session *s, const char *root, const char *name, const char *meta, size_t meta_len,
                              uint64_t *bytes, ms_error *err) {
    place p;
    MS_TRY(open_place(&p, root, name, true, err));
    ms_status st = ms_state_export_at(s, p.folder, p.state.data, true, err);
    st = by_role(st, p.state.data, state_role, err);
    if (st == MS_OK) st = by_role(save_meta(s, &p, meta, meta_len, err), p.meta.data, "file beside the state", err);
    if (st == MS_OK) st = look(&p, bytes, err);
    close_place(&p);
    return st;
}

ms_status ms_named_state_restore(ms_session *s, const char *root, const char *name, ms_text *meta, uint64_t *bytes,
                                 bool *missing, ms_error *err) {
    place p;
    ms_status st = open_place(&p, root, name, false, err);
    bool open = st == MS_OK;
    if (st == MS_OK) st = look(&p, bytes, err);
    if (st == MS_OK) st = by_role(ms_state_import_at(s, p.folder, p.state.data, err), p.state.data, state_role, err);
    if (st == MS_OK) load_meta(s, &p, meta);
    *missing = p.missing;
    if (open) close_place(&p);
    return st;
}
