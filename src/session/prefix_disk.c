/* prefix_disk.c: prefix_disk.h.
 *
 * Everything is reached from the root's descriptor without following links; the two helpers that take paths (file
 * writer, import) get the root's own path, which nobody but the user can change.
 *
 * meta.json: {"format":1,"id":H,"identity":H,"tokens":N,"tokens_crc64":H,"state_bytes":N,"meta_crc64":H,"meta":TEXT},
 * H: 16 hex digits.  manifest.json: {"format":1,"entries":[{"id":H,"last_use":N,"bytes":N,"tokens":N}]}.
 *
 * Owns: see the header.  Threads: see the header.
 */
#include "session/prefix_disk.h"

#include "base/bytes.h"
#include "base/crc64.h"
#include "base/json.h"
#include "io/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FORMAT = 1, NAME_BYTES = 32, META_MAX = 4 << 20, MANIFEST_MAX = 16 << 20, MAX_TOKENS = 1 << 24 };

static const char *const entry_files[] = {"state.bin", "tokens.u32", "meta.json"};
enum { ENTRY_FILES = sizeof entry_files / sizeof entry_files[0] };

struct ms_prefix_disk {
    char *root;
    int folder, lock;
};

void ms_prefix_record_free(ms_prefix_record *r) {
    ms_ids_free(&r->ids);
    free(r->meta);
    *r = (ms_prefix_record){0};
}

static void entry_name(char out[NAME_BYTES], const char *prefix, uint64_t id) {
    (void)snprintf(out, NAME_BYTES, "%s-%016" PRIx64, prefix, id);
}

/* ------------------------------------------------------------------ the folder */

static ms_status check_private(const ms_prefix_disk *d, ms_error *err) {
    struct stat st;
    if (fstat(d->folder, &st) != 0) return ms_fail_errno(err, MS_ERR_IO, errno, "%s: stat", d->root);
    if (st.st_uid != geteuid()) {
        return ms_fail(err, MS_ERR_USAGE, "%s: owner: expected user %ju, found %ju", d->root, (uintmax_t)geteuid(),
                       (uintmax_t)st.st_uid);
    }
    unsigned mode = st.st_mode & 07777;
    if (mode == 0700) return MS_OK;
    return ms_fail(err, MS_ERR_USAGE, "%s: mode: expected 0700, because conversations are in it; found 0%03o", d->root,
                   mode);
}

/* Where the path itself is to blame it is wrong usage, like a folder of another mode. */
static ms_status path_status(int why) {
    bool path = why == ENOENT || why == ENOTDIR || why == EACCES || why == EPERM || why == EROFS || why == ELOOP ||
                why == ENAMETOOLONG;
    return path ? MS_ERR_USAGE : MS_ERR_IO;
}

static ms_status open_root(ms_prefix_disk *d, ms_error *err) {
    bool made = mkdir(d->root, 0700) == 0;
    if (!made && errno != EEXIST) return ms_fail_errno(err, path_status(errno), errno, "%s: create", d->root);
    d->folder = open(d->root, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (d->folder < 0 && (errno == ELOOP || errno == ENOTDIR)) {
        return ms_fail(err, MS_ERR_USAGE, "%s: expected a folder, found a link or a file", d->root);
    }
    if (d->folder < 0) return ms_fail_errno(err, path_status(errno), errno, "%s: open", d->root);
    if (made && fchmod(d->folder, 0700) != 0) return ms_fail_errno(err, MS_ERR_IO, errno, "%s: chmod", d->root);
    return check_private(d, err);
}

static ms_status take_lock(ms_prefix_disk *d, bool *in_use, ms_error *err) {
    d->lock = openat(d->folder, "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600);
    if (d->lock < 0) return ms_fail_errno(err, MS_ERR_IO, errno, "%s/lock: open", d->root);
    if (flock(d->lock, LOCK_EX | LOCK_NB) == 0) return MS_OK;
    if (errno != EWOULDBLOCK) return ms_fail_errno(err, MS_ERR_IO, errno, "%s/lock: lock", d->root);
    *in_use = true;
    return ms_fail(err, MS_ERR_IO, "%s: in use by another process", d->root);
}

/* Removes a folder of ours: its known files, and whatever plain files an interrupted write left in it. */
static ms_status remove_folder(const ms_prefix_disk *d, const char *name, ms_error *err) {
    int fd = openat(d->folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) return MS_OK;
    if (fd < 0) return ms_fail_errno(err, MS_ERR_IO, errno, "%s/%s: open", d->root, name);
    DIR *dir = fdopendir(fd);
    if (!dir) {
        (void)close(fd);
        return ms_fail_errno(err, MS_ERR_IO, errno, "%s/%s: list", d->root, name);
    }
    for (struct dirent *e; (e = readdir(dir));) {
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) (void)unlinkat(dirfd(dir), e->d_name, 0);
    }
    (void)closedir(dir);
    if (unlinkat(d->folder, name, AT_REMOVEDIR) == 0 || errno == ENOENT) return MS_OK;
    return ms_fail_errno(err, MS_ERR_IO, errno, "%s/%s: remove", d->root, name);
}

static bool is_hex16(const char *s) { return strlen(s) == 16 && strspn(s, "0123456789abcdef") == 16; }

/* "PREFIX-<16 hex>"; *id gets the number. */
static bool is_entry_name(const char *name, const char *prefix, uint64_t *id) {
    size_t n = strlen(prefix);
    if (strncmp(name, prefix, n) != 0 || name[n] != '-' || !is_hex16(name + n + 1)) return false;
    *id = strtoull(name + n + 1, NULL, 16);
    return true;
}

/* Calls `visit` for each entry folder with that prefix, over a list made first, so that visitors may remove. */
static ms_status each_folder(const ms_prefix_disk *d, const char *prefix, uint64_t **ids, size_t *count,
                             ms_error *err) {
    *ids = NULL;
    *count = 0;
    int copy = openat(d->folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = copy < 0 ? NULL : fdopendir(copy);
    if (!dir) {
        int why = errno;
        if (copy >= 0) (void)close(copy);
        return ms_fail_errno(err, MS_ERR_IO, why, "%s: list", d->root);
    }
    size_t cap = 0;
    ms_status status = MS_OK;
    for (struct dirent *e; status == MS_OK && (e = readdir(dir));) {
        uint64_t id;
        if (!is_entry_name(e->d_name, prefix, &id)) continue;
        if (*count == cap) {
            cap = cap ? 2 * cap : 16;
            uint64_t *more = realloc(*ids, cap * sizeof *more);
            if (!more) status = ms_fail_memory(err, "a list of saved states", cap * sizeof *more);
            if (!more) break;
            *ids = more;
        }
        (*ids)[(*count)++] = id;
    }
    (void)closedir(dir);
    return status;
}

static ms_status remove_interrupted(const ms_prefix_disk *d, ms_error *err) {
    uint64_t *ids;
    size_t count;
    ms_status status = each_folder(d, "tmp", &ids, &count, err);
    for (size_t i = 0; i < count && status == MS_OK; i++) {
        char name[NAME_BYTES];
        entry_name(name, "tmp", ids[i]);
        status = remove_folder(d, name, err);
    }
    free(ids);
    return status;
}

/* Files are written through a temporary beside them. */
static void remove_old_temporaries(const ms_prefix_disk *d, const char *folder) {
    int fd = openat(d->folder, folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return;
    ms_file_remove_temporaries(fd);
    (void)close(fd);
}

ms_status ms_prefix_disk_prepare(const char *root, ms_error *err) {
    ms_prefix_disk d = {.root = strdup(root), .folder = -1, .lock = -1};
    ms_status status = d.root ? open_root(&d, err) : ms_fail_memory(err, "a path", strlen(root));
    if (d.folder >= 0) (void)close(d.folder);
    free(d.root);
    return status;
}

ms_status ms_prefix_disk_open(ms_prefix_disk **out, const char *root, bool *in_use, ms_error *err) {
    *out = NULL;
    *in_use = false;
    ms_prefix_disk *d = calloc(1, sizeof *d);
    if (!d) return ms_fail_memory(err, "prefix disk", sizeof *d);
    d->folder = d->lock = -1;
    d->root = strdup(root);
    ms_status status = d->root ? open_root(d, err) : ms_fail_memory(err, "a path", strlen(root));
    if (status == MS_OK) status = take_lock(d, in_use, err);
    if (status == MS_OK) status = remove_interrupted(d, err);
    if (status != MS_OK) {
        ms_prefix_disk_close(d);
        return status;
    }
    remove_old_temporaries(d, ".");
    remove_old_temporaries(d, "named"); /* states with names (named_state.h) */
    *out = d;
    return MS_OK;
}

void ms_prefix_disk_close(ms_prefix_disk *d) {
    if (!d) return;
    if (d->lock >= 0) (void)close(d->lock); /* gives the lock back */
    if (d->folder >= 0) (void)close(d->folder);
    free(d->root);
    free(d);
}

ms_status ms_prefix_disk_path(const ms_prefix_disk *d, uint64_t id, ms_text *out, ms_error *err) {
    ms_text_printf(out, "%s/e-%016" PRIx64 "/state.bin", d->root, id);
    return out->failed ? ms_fail_memory(err, "a path", strlen(d->root) + NAME_BYTES) : MS_OK;
}

/* ------------------------------------------------------------------ reading */

/* A small file of an entry (name may hold a slash), or of the root. */
static ms_status read_small(const ms_prefix_disk *d, const char *name, size_t most, char **data, size_t *len,
                            ms_error *err) {
    *data = NULL;
    int fd = openat(d->folder, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return ms_fail_errno(err, MS_ERR_IO, errno, "%s/%s: open", d->root, name);
    struct stat st;
    ms_status status = MS_OK;
    if (fstat(fd, &st) != 0) {
        status = ms_fail_errno(err, MS_ERR_IO, errno, "%s/%s: stat", d->root, name);
    } else if (!S_ISREG(st.st_mode)) {
        status = ms_fail_not_regular(err, name, st.st_mode);
    } else if (st.st_size < 0 || (uint64_t)st.st_size > most) {
        status = ms_fail(err, MS_ERR_FORMAT, "%s/%s: size: expected at most %zu bytes, found %jd", d->root, name, most,
                         (intmax_t)st.st_size);
    } else {
        *len = (size_t)st.st_size;
        *data = malloc(*len + 1);
        status = *data ? ms_file_pread_exact(fd, name, *data, *len, 0, err) : ms_fail_memory(err, name, *len);
        if (*data) (*data)[*len] = '\0';
    }
    (void)close(fd);
    if (status == MS_OK) return MS_OK;
    free(*data);
    *data = NULL;
    return status;
}

static bool get_u64(const ms_json *o, const char *key, uint64_t *out) { return ms_json_u64(ms_json_get(o, key), out); }

static bool get_hex(const ms_json *o, const char *key, uint64_t *out) {
    const ms_json *v = ms_json_get(o, key);
    if (!v || v->type != MS_JSON_STRING || v->str_len != 16 || !is_hex16(v->str)) return false;
    *out = strtoull(v->str, NULL, 16);
    return true;
}

/* What meta.json says of the other files. */
typedef struct expected {
    uint64_t tokens, tokens_crc, state_bytes;
} expected;

static ms_status parse_meta(const char *data, size_t len, const char *name, ms_prefix_record *r, expected *x,
                            ms_error *err) {
    ms_json_doc *doc;
    const ms_json_limits limits = {.max_depth = 2, .reject_duplicates = true};
    MS_TRY(ms_json_parse(&doc, data, len, name, &limits, err));
    const ms_json *root = ms_json_root(doc), *meta = ms_json_get(root, "meta");
    uint64_t format = 0, id = 0, meta_crc = 0;
    bool good = root->type == MS_JSON_OBJECT && get_u64(root, "format", &format) && format == FORMAT &&
                get_hex(root, "id", &id) && id == r->id && get_hex(root, "identity", &r->identity) &&
                get_u64(root, "tokens", &x->tokens) && x->tokens <= MAX_TOKENS &&
                get_hex(root, "tokens_crc64", &x->tokens_crc) && get_u64(root, "state_bytes", &x->state_bytes) &&
                get_hex(root, "meta_crc64", &meta_crc) && meta && meta->type == MS_JSON_STRING &&
                ms_crc64(0, meta->str, meta->str_len) == meta_crc;
    ms_status status = good ? MS_OK : ms_fail(err, MS_ERR_FORMAT, "%s: a field is missing or damaged", name);
    if (status == MS_OK) {
        r->meta = malloc(meta->str_len + 1);
        if (r->meta) {
            memcpy(r->meta, meta->str, meta->str_len);
            r->meta[meta->str_len] = '\0';
            r->meta_len = meta->str_len;
        } else {
            status = ms_fail_memory(err, name, meta->str_len);
        }
    }
    ms_json_free(doc);
    return status;
}

static ms_status read_ids(const ms_prefix_disk *d, const char *folder, const expected *x, ms_ids *ids, ms_error *err) {
    char name[2 * NAME_BYTES], *data;
    size_t len;
    (void)snprintf(name, sizeof name, "%s/tokens.u32", folder);
    MS_TRY(read_small(d, name, (size_t)MAX_TOKENS * 4, &data, &len, err));
    ms_status status = MS_OK;
    if (len != x->tokens * 4 || ms_crc64(0, data, len) != x->tokens_crc) {
        status = ms_fail(err, MS_ERR_FORMAT, "%s/%s: length or CRC is not what meta.json says", d->root, name);
    }
    for (size_t i = 0; i < len && status == MS_OK; i += 4) {
        status = ms_ids_push(ids, ms_le32((const uint8_t *)data + i), err);
    }
    free(data);
    return status;
}

static ms_status file_bytes(const ms_prefix_disk *d, const char *folder, const char *file, uint64_t *bytes,
                            ms_error *err) {
    char name[2 * NAME_BYTES];
    struct stat st;
    (void)snprintf(name, sizeof name, "%s/%s", folder, file);
    if (fstatat(d->folder, name, &st, AT_SYMLINK_NOFOLLOW) != 0) {
        return ms_fail_errno(err, MS_ERR_IO, errno, "%s/%s: stat", d->root, name);
    }
    if (!S_ISREG(st.st_mode) || st.st_size < 0) return ms_fail_not_regular(err, name, st.st_mode);
    *bytes = (uint64_t)st.st_size;
    return MS_OK;
}

static ms_status read_record(const ms_prefix_disk *d, uint64_t id, ms_prefix_record *r, ms_error *err) {
    char folder[NAME_BYTES], name[2 * NAME_BYTES], *data;
    size_t len;
    expected x;
    *r = (ms_prefix_record){.id = id};
    entry_name(folder, "e", id);
    (void)snprintf(name, sizeof name, "%s/meta.json", folder);
    MS_TRY(read_small(d, name, META_MAX, &data, &len, err));
    ms_status status = parse_meta(data, len, name, r, &x, err);
    free(data);
    if (status == MS_OK) status = read_ids(d, folder, &x, &r->ids, err);
    for (size_t i = 0; i < ENTRY_FILES && status == MS_OK; i++) {
        uint64_t bytes;
        status = file_bytes(d, folder, entry_files[i], &bytes, err);
        if (status != MS_OK) break;
        if (i == 0 && bytes != x.state_bytes) {
            status = ms_fail(err, MS_ERR_FORMAT, "%s/%s/state.bin: expected %" PRIu64 " bytes, found %" PRIu64, d->root,
                             folder, x.state_bytes, bytes);
        }
        r->bytes += bytes;
    }
    if (status != MS_OK) ms_prefix_record_free(r);
    return status;
}

/* Order of use; a manifest that cannot be read says nothing. */
static void read_uses(const ms_prefix_disk *d, ms_prefix_record *records, size_t count) {
    char *data;
    size_t len;
    ms_json_doc *doc = NULL;
    if (read_small(d, "manifest.json", MANIFEST_MAX, &data, &len, NULL) != MS_OK) return;
    if (ms_json_parse(&doc, data, len, "manifest.json", NULL, NULL) == MS_OK) {
        const ms_json *entries = ms_json_get(ms_json_root(doc), "entries");
        bool list = entries && entries->type == MS_JSON_ARRAY;
        for (const ms_json *e = list ? entries->child : NULL; e; e = e->next) {
            uint64_t id, use;
            if (!get_hex(e, "id", &id) || !get_u64(e, "last_use", &use) || use > INT64_MAX) continue;
            for (size_t i = 0; i < count; i++) {
                if (records[i].id == id) records[i].last_use = use;
            }
        }
    }
    ms_json_free(doc);
    free(data);
}

ms_status ms_prefix_disk_scan(ms_prefix_disk *d, ms_prefix_record **records, size_t *count,
                              void (*damaged)(void *arg, uint64_t id, const char *why), void *arg, ms_error *err) {
    uint64_t *ids;
    size_t found;
    *records = NULL;
    *count = 0;
    ms_status status = each_folder(d, "e", &ids, &found, err);
    if (status == MS_OK && found) {
        *records = calloc(found, sizeof **records);
        if (!*records) status = ms_fail_memory(err, "records of saved states", found * sizeof **records);
    }
    for (size_t i = 0; i < found && status == MS_OK; i++) {
        ms_error why;
        ms_status one = read_record(d, ids[i], &(*records)[*count], &why);
        if (one == MS_OK) {
            ++*count;
        } else if (one == MS_ERR_MEMORY) {
            status = ms_fail(err, one, "%s", why.message);
        } else {
            if (damaged) damaged(arg, ids[i], why.message);
            (void)ms_prefix_disk_remove(d, ids[i], NULL);
        }
    }
    free(ids);
    if (status == MS_OK) read_uses(d, *records, *count);
    if (status == MS_OK) return MS_OK;
    for (size_t i = 0; i < *count; i++) ms_prefix_record_free(&(*records)[i]);
    free(*records);
    *records = NULL;
    *count = 0;
    return status;
}

/* ------------------------------------------------------------------ writing */

static void meta_text(ms_text *t, const ms_prefix_record *r, uint64_t tokens_crc, uint64_t state_bytes) {
    ms_text_printf(t,
                   "{\"format\":%d,\"id\":\"%016" PRIx64 "\",\"identity\":\"%016" PRIx64
                   "\",\"tokens\":%zu,\"tokens_crc64\":\"%016" PRIx64 "\",\"state_bytes\":%" PRIu64
                   ",\"meta_crc64\":\"%016" PRIx64 "\",\"meta\":",
                   FORMAT, r->id, r->identity, r->ids.count, tokens_crc, state_bytes,
                   ms_crc64(0, r->meta ? r->meta : "", r->meta_len));
    ms_json_write_string(t, r->meta ? r->meta : "", r->meta_len);
    ms_text_puts(t, "}\n");
}

uint64_t ms_prefix_disk_need(const ms_prefix_record *r, uint64_t state_bytes) {
    ms_text t = {0};
    meta_text(&t, r, 0, state_bytes);
    uint64_t n = t.failed ? 512 + 6 * (uint64_t)r->meta_len : t.len;
    ms_text_free(&t);
    return state_bytes + 4 * (uint64_t)r->ids.count + n;
}

static ms_status write_whole(const ms_prefix_disk *d, const char *folder, const char *file, const void *data,
                             size_t len, ms_error *err) {
    ms_text path = {0};
    ms_text_printf(&path, "%s/%s/%s", d->root, folder, file);
    if (path.failed) return ms_fail_memory(err, "a path", strlen(d->root));
    ms_file_writer *w;
    ms_status status = ms_file_writer_open(&w, path.data, false, err);
    ms_text_free(&path);
    MS_TRY(status);
    status = ms_file_writer_write(w, data, len, err);
    if (status == MS_OK) return ms_file_writer_commit(w, err);
    ms_file_writer_abort(w);
    return status;
}

static ms_status write_ids(const ms_prefix_disk *d, const char *folder, const ms_ids *ids, uint64_t *crc,
                           ms_error *err) {
    size_t len = ids->count * 4;
    uint8_t *raw = malloc(len + 1);
    if (!raw) return ms_fail_memory(err, "token ids", len);
    for (size_t i = 0; i < ids->count; i++) ms_put_le32(raw + 4 * i, ids->data[i]);
    *crc = ms_crc64(0, raw, len);
    ms_status status = write_whole(d, folder, "tokens.u32", raw, len, err);
    free(raw);
    return status;
}

static ms_status write_meta(const ms_prefix_disk *d, const char *folder, const ms_prefix_record *r, uint64_t crc,
                            uint64_t state_bytes, ms_error *err) {
    ms_text t = {0};
    meta_text(&t, r, crc, state_bytes);
    ms_status status = t.failed ? ms_fail_memory(err, "meta.json", r->meta_len)
                                : write_whole(d, folder, "meta.json", t.data, t.len, err);
    ms_text_free(&t);
    return status;
}

static ms_status write_state(const ms_prefix_disk *d, const char *folder, const ms_state_image *image, ms_session *s,
                             ms_error *err) {
    if (image) return write_whole(d, folder, "state.bin", image->data, image->bytes, err);
    ms_text path = {0};
    ms_text_printf(&path, "%s/%s/state.bin", d->root, folder);
    ms_status status =
        path.failed ? ms_fail_memory(err, "a path", strlen(d->root)) : ms_session_export(s, path.data, false, err);
    ms_text_free(&path);
    return status;
}

static ms_status fill_folder(const ms_prefix_disk *d, const char *folder, ms_prefix_record *r,
                             const ms_state_image *image, ms_session *s, ms_error *err) {
    uint64_t crc = 0, state_bytes;
    MS_TRY(write_state(d, folder, image, s, err));
    MS_TRY(file_bytes(d, folder, "state.bin", &state_bytes, err));
    MS_TRY(write_ids(d, folder, &r->ids, &crc, err));
    MS_TRY(write_meta(d, folder, r, crc, state_bytes, err));
    r->bytes = ms_prefix_disk_need(r, state_bytes);
    return MS_OK;
}

static ms_status publish(const ms_prefix_disk *d, const char *from, const char *to, ms_error *err) {
    if (renameat(d->folder, from, d->folder, to) != 0) {
        return ms_fail_errno(err, MS_ERR_IO, errno, "%s/%s: rename", d->root, to);
    }
    if (fsync(d->folder) != 0) return ms_fail_errno(err, MS_ERR_IO, errno, "%s: sync", d->root);
    return MS_OK;
}

static ms_status write_entry(ms_prefix_disk *d, ms_prefix_record *r, const ms_state_image *image, ms_session *s,
                             ms_error *err) {
    char temp[NAME_BYTES], name[NAME_BYTES];
    entry_name(temp, "tmp", r->id);
    entry_name(name, "e", r->id);
    if (mkdirat(d->folder, temp, 0700) != 0) {
        return ms_fail_errno(err, MS_ERR_IO, errno, "%s/%s: create", d->root, temp);
    }
    ms_status status = fchmodat(d->folder, temp, 0700, 0) == 0
                           ? fill_folder(d, temp, r, image, s, err)
                           : ms_fail_errno(err, MS_ERR_IO, errno, "%s/%s: chmod", d->root, temp);
    if (status == MS_OK) status = publish(d, temp, name, err);
    if (status == MS_OK) return MS_OK;
    (void)ms_prefix_disk_remove(d, r->id, NULL); /* it was renamed, but perhaps not for good */
    (void)remove_folder(d, temp, NULL);
    return status;
}

ms_status ms_prefix_disk_write(ms_prefix_disk *d, ms_prefix_record *r, const ms_state_image *image, ms_error *err) {
    return write_entry(d, r, image, NULL, err);
}

ms_status ms_prefix_disk_export(ms_prefix_disk *d, ms_prefix_record *r, ms_session *s, ms_error *err) {
    return write_entry(d, r, NULL, s, err);
}

/* Renamed first: an entry that is half removed must not look like one. */
ms_status ms_prefix_disk_remove(ms_prefix_disk *d, uint64_t id, ms_error *err) {
    char name[NAME_BYTES], temp[NAME_BYTES];
    entry_name(name, "e", id);
    entry_name(temp, "tmp", id);
    if (renameat(d->folder, name, d->folder, temp) != 0) {
        return errno == ENOENT ? MS_OK : ms_fail_errno(err, MS_ERR_IO, errno, "%s/%s: rename", d->root, name);
    }
    return remove_folder(d, temp, err);
}

ms_status ms_prefix_disk_manifest(ms_prefix_disk *d, const ms_prefix_record *const *records, size_t count,
                                  ms_error *err) {
    ms_text t = {0}, path = {0};
    ms_text_printf(&t, "{\"format\":%d,\"entries\":[", FORMAT);
    for (size_t i = 0; i < count; i++) {
        const ms_prefix_record *r = records[i];
        ms_text_printf(&t,
                       "%s\n{\"id\":\"%016" PRIx64 "\",\"last_use\":%" PRIu64 ",\"bytes\":%" PRIu64 ",\"tokens\":%zu}",
                       i ? "," : "", r->id, r->last_use, r->bytes, r->ids.count);
    }
    ms_text_puts(&t, "]}\n");
    ms_text_printf(&path, "%s/manifest.json", d->root);
    ms_file_writer *w;
    ms_status status = t.failed || path.failed ? ms_fail_memory(err, "manifest.json", t.len)
                                               : ms_file_writer_open(&w, path.data, true, err);
    if (status == MS_OK) {
        status = ms_file_writer_write(w, t.data, t.len, err);
        if (status == MS_OK)
            status = ms_file_writer_commit(w, err);
        else
            ms_file_writer_abort(w);
    }
    ms_text_free(&t);
    ms_text_free(&path);
    return status;
}
