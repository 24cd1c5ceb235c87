/* bundle_build.c: makes a bundle in NAME.partial/: store, static tensors, small files, bundle.json; then renames it.
 *
 * .state.json says of which checkpoint an unfinished bundle is (no file that is copied has such a name).
 * Finished parts are kept: the static tensors by their length (they appear whole), the store by its own state.  The
 * folder is locked while a build is at work in it, also through its new name.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/file.h"
#include "store/bundle_internal.h"

enum { MAX_SMALL = 256 << 20, MAX_STATE = 1 << 16 };
static const char state_name[] = ".state.json";

typedef struct making {
    const ms_mzg2_source *source;
    const ms_mzg2_job_options *options;
    const char *reuse;
    int lock; /* of the folder; -1: not yet */
    char dir[MZG2_PATH], partial[MZG2_PATH], store[MZG2_PATH];
    ms_text identity;
    bundle_files files;
    uint8_t store_sha[MS_SHA256_BYTES];
    ms_bundle_report *report;
} making;

/* ------------------------------------------------------------------ files */

static ms_status note_file(making *m, const char *name, const uint8_t *sha, ms_error *err) {
    bundle_file f = {.bytes = 0};
    char path[MZG2_PATH];
    struct stat st;
    (void)snprintf(f.name, sizeof f.name, "%s", name);
    MS_TRY(mzg2_path(path, m->partial, name, err));
    if (stat(path, &st) != 0) return ms_fail_errno(err, MS_ERR_IO, errno, "%s: stat", path);
    f.bytes = (uint64_t)st.st_size;
    if (sha)
        memcpy(f.sha, sha, sizeof f.sha);
    else
        MS_TRY(ms_sha256_file(f.sha, path, NULL, err));
    m->report->files++;
    m->report->bytes += f.bytes;
    return bundle_files_add(&m->files, &f, err);
}

static ms_status write_file(const char *path, const void *data, size_t length, uint8_t sha[MS_SHA256_BYTES],
                            ms_error *err) {
    mzg2_output o;
    ms_status st = mzg2_output_open(&o, path, err);
    if (st == MS_OK) st = mzg2_output_write(&o, data, length, err);
    if (st == MS_OK) st = mzg2_output_finish(&o, true, sha, err);
    mzg2_output_drop(&o);
    return st;
}

static ms_status write_small(making *m, const char *name, const void *data, size_t length, ms_error *err) {
    char path[MZG2_PATH];
    uint8_t sha[MS_SHA256_BYTES];
    MS_TRY(mzg2_path(path, m->partial, name, err));
    MS_TRY(write_file(path, data, length, sha, err));
    return note_file(m, name, sha, err);
}

/* Config, tokenizer, licences and whatever else lies beside the shards; not what has a name that the bundle needs. */
static bool is_small_file(const struct dirent *e) {
    size_t n = strlen(e->d_name);
    static const char shard[] = ".safetensors";
    if (e->d_name[0] == '.' || n >= BUNDLE_NAME - 8) return false;
    if (n >= sizeof shard - 1 && !strcmp(e->d_name + n - (sizeof shard - 1), shard)) return false;
    return strcmp(e->d_name, bundle_index) != 0 && strcmp(e->d_name, bundle_json) != 0 &&
           strcmp(e->d_name, ms_bundle_store_name) != 0;
}
static int by_name(const struct dirent **a, const struct dirent **b) { return strcmp((*a)->d_name, (*b)->d_name); }

static ms_status copy_small(making *m, const char *name, ms_error *err) {
    char path[MZG2_PATH], *data = NULL;
    size_t length = 0;
    struct stat st;
    MS_TRY(mzg2_path(path, ms_checkpoint_dir(m->source->checkpoint), name, err));
    if (stat(path, &st) != 0) return ms_fail_errno(err, MS_ERR_IO, errno, "%s: stat", path);
    if (!S_ISREG(st.st_mode)) return MS_OK;
    MS_TRY(ms_file_read_all(path, MAX_SMALL, &data, &length, err));
    ms_status status = write_small(m, name, data, length, err);
    free(data);
    return status;
}

static int wanted(const struct dirent *e) { return is_small_file(e); }

static ms_status copy_all_small(making *m, ms_error *err) {
    struct dirent **entries = NULL;
    const char *from = ms_checkpoint_dir(m->source->checkpoint);
    int n = scandir(from, &entries, wanted, by_name);
    if (n < 0) return ms_fail_errno(err, MS_ERR_IO, errno, "%s: list", from);
    ms_status st = MS_OK;
    for (int i = 0; i < n; i++) {
        if (st == MS_OK) st = copy_small(m, entries[i]->d_name, err);
        free(entries[i]);
    }
    free(entries);
    return st;
}

/* ------------------------------------------------------------------ static tensors */

static ms_status make_statics(making *m, ms_error *err) {
    bundle_statics b;
    char path[MZG2_PATH];
    struct stat st;
    uint8_t sha[MS_SHA256_BYTES];
    ms_text index = {0};
    MS_TRY(mzg2_path(path, m->partial, bundle_static, err));
    MS_TRY(bundle_statics_list(&b, m->source, err));
    bool kept = lstat(path, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size == b.bytes;
    ms_status status = kept ? MS_OK : bundle_statics_write(&b, m->source->checkpoint, path, sha, err);
    if (status == MS_OK) status = note_file(m, bundle_static, kept ? NULL : sha, err);
    if (status == MS_OK) status = bundle_statics_index(&b, m->source->checkpoint, &index, err);
    if (status == MS_OK) status = write_small(m, bundle_index, index.data, index.len, err);
    m->report->static_bytes = b.bytes;
    m->report->static_tensors = (uint32_t)b.count;
    ms_text_free(&index);
    bundle_statics_free(&b);
    return status;
}

/* ------------------------------------------------------------------ the store */

static ms_status link_file(const making *m, const char *name, ms_error *err) {
    char from[MZG2_PATH], to[MZG2_PATH];
    MS_TRY(mzg2_path(from, m->reuse, name, err));
    MS_TRY(mzg2_path(to, m->store, name, err));
    if (unlink(to) != 0 && errno != ENOENT) return ms_fail_errno(err, MS_ERR_IO, errno, "%s: remove", to);
    /* A layer that is a link to another folder: its file, for the link would point elsewhere from here. */
    if (linkat(AT_FDCWD, from, AT_FDCWD, to, AT_SYMLINK_FOLLOW) == 0) return MS_OK;
    if (errno == EXDEV)
        return ms_fail(err, MS_ERR_USAGE,
                       "%s: expected a store on the file system of %s (its files are linked), found another one",
                       m->reuse, m->partial);
    return ms_fail_errno(err, MS_ERR_IO, errno, "%s: link to %s", to, from);
}

static ms_status link_store(making *m, const ms_mzg2_manifest *manifest, ms_error *err) {
    char cold[MZG2_PATH], name[MS_MZG2_NAME];
    if (mkdir(m->store, 0755) != 0 && errno != EEXIST)
        return ms_fail_errno(err, MS_ERR_IO, errno, "%s: create", m->store);
    MS_TRY(mzg2_path(cold, m->store, "cold", err));
    for (uint32_t l = 0; l < manifest->identity.layers; l++) {
        const ms_mzg2_layer_record *r = &manifest->layers[l];
        ms_mzg2_layer_name(name, r->layer);
        MS_TRY(link_file(m, name, err));
        if (!r->signs_bytes) continue;
        if (mkdir(cold, 0755) != 0 && errno != EEXIST) return ms_fail_errno(err, MS_ERR_IO, errno, "%s: create", cold);
        ms_mzg2_signs_name(name, r->layer);
        MS_TRY(link_file(m, name, err));
    }
    MS_TRY(link_file(m, "manifest.json", err)); /* last: only a whole store has one */
    m->report->linked = true;
    return mzg2_sync_dir(m->store, err);
}

/* An existing store is opened as the engine would, so that one of another checkpoint is refused. */
static ms_status reuse_store(making *m, ms_error *err) {
    ms_mzg2_manifest manifest;
    ms_mzg2_identity want;
    MS_TRY(ms_mzg2_identify(&want, m->source, err));
    MS_TRY(ms_mzg2_manifest_read(&manifest, m->reuse, err));
    ms_status st = ms_mzg2_same_identity(&want, &manifest.identity, m->reuse, err);
    if (st == MS_OK) st = link_store(m, &manifest, err);
    ms_mzg2_manifest_free(&manifest);
    return st;
}

static ms_status note_store(making *m, ms_error *err) {
    ms_mzg2_manifest manifest;
    char name[MS_MZG2_NAME], inside[BUNDLE_NAME];
    MS_TRY(ms_mzg2_manifest_read(&manifest, m->store, err));
    memcpy(m->store_sha, manifest.sha, sizeof m->store_sha);
    ms_mzg2_report *r = &m->report->store;
    *r = (ms_mzg2_report){.layers = manifest.identity.layers,
                          .experts = (uint64_t)manifest.identity.layers * manifest.identity.experts};
    r->canonical_bytes = r->experts * ms_expert_bytes(manifest.identity.shape);
    memcpy(r->manifest_sha, manifest.sha, sizeof manifest.sha);
    ms_status st = MS_OK;
    for (uint32_t l = 0; st == MS_OK && l < manifest.identity.layers; l++) {
        const ms_mzg2_layer_record *x = &manifest.layers[l];
        ms_mzg2_layer_name(name, x->layer);
        (void)snprintf(inside, sizeof inside, "%s/%s", ms_bundle_store_name, name);
        st = note_file(m, inside, x->sha, err);
        ms_mzg2_signs_name(name, x->layer);
        (void)snprintf(inside, sizeof inside, "%s/%s", ms_bundle_store_name, name);
        if (st == MS_OK && x->signs_bytes) st = note_file(m, inside, x->signs_sha, err);
        r->stored_bytes += x->bytes;
        r->payload_bytes += x->payload_bytes;
    }
    ms_mzg2_manifest_free(&manifest);
    MS_TRY(st);
    (void)snprintf(inside, sizeof inside, "%s/manifest.json", ms_bundle_store_name);
    return note_file(m, inside, NULL, err);
}

static ms_status make_store(making *m, ms_error *err) {
    ms_mzg2_manifest manifest;
    if (ms_mzg2_manifest_read(&manifest, m->store, NULL) == MS_OK) { /* of an earlier run */
        ms_mzg2_manifest_free(&manifest);
    } else if (m->reuse) {
        MS_TRY(reuse_store(m, err));
    } else {
        ms_mzg2_report r;
        MS_TRY(ms_mzg2_build(m->store, m->source, m->options, &r, err));
    }
    return note_store(m, err);
}

/* ------------------------------------------------------------------ start and end */

/* The folder that is locked must still be the one of that name: another build may have published it meanwhile. */
static ms_status lock_partial(making *m, ms_error *err) {
    struct stat held, there;
    m->lock = open(m->partial, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (m->lock < 0) return ms_fail_errno(err, MS_ERR_IO, errno, "%s: open", m->partial);
    bool busy = flock(m->lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (fstat(m->lock, &held) != 0) return ms_fail_errno(err, MS_ERR_IO, errno, "%s: stat", m->partial);
    bool moved = lstat(m->partial, &there) != 0 || there.st_ino != held.st_ino || there.st_dev != held.st_dev;
    if (busy || moved) return ms_fail(err, MS_ERR_USAGE, "%s: another build is at work there", m->partial);
    return MS_OK;
}

/* Without a state the folder is new, or a finished bundle that only has to be renamed. */
static ms_status check_new(const making *m, ms_error *err) {
    char path[MZG2_PATH];
    struct stat st;
    struct dirent **entries = NULL;
    MS_TRY(mzg2_path(path, m->partial, bundle_json, err));
    if (lstat(path, &st) == 0) return MS_OK;
    int n = scandir(m->partial, &entries, NULL, NULL);
    if (n < 0) return ms_fail_errno(err, MS_ERR_IO, errno, "%s: list", m->partial);
    for (int i = 0; i < n; i++) free(entries[i]);
    free(entries);
    if (n <= 2) return MS_OK; /* . and .. */
    return ms_fail(err, MS_ERR_USAGE, "%s: expected an unfinished bundle with %s, found other files: move them away",
                   m->partial, state_name);
}

static ms_status begin(making *m, const char *dir, ms_error *err) {
    size_t n = strlen(dir);
    struct stat st;
    ms_mzg2_identity id;
    const ms_mzg2_parameters p = {.tables = m->options->tables, .signs = m->options->signs};
    char path[MZG2_PATH], *text = NULL;
    size_t length = 0;
    uint8_t sha[MS_SHA256_BYTES];
    while (n > 1 && dir[n - 1] == '/') n--;
    if (n == 0 || n + 64 > sizeof m->dir)
        return ms_fail(err, MS_ERR_USAGE, "bundle: expected a path of 1 to %d bytes", MZG2_PATH - 64);
    if (ms_checkpoint_bundle(m->source->checkpoint))
        return ms_fail(err, MS_ERR_USAGE, "%s: expected a checkpoint, found a bundle",
                       ms_checkpoint_dir(m->source->checkpoint));
    (void)snprintf(m->dir, sizeof m->dir, "%.*s", (int)n, dir);
    (void)snprintf(m->partial, sizeof m->partial, "%.*s.partial", (int)n, dir);
    MS_TRY(mzg2_path(m->store, m->partial, ms_bundle_store_name, err));
    if (lstat(m->dir, &st) == 0)
        return ms_fail(err, MS_ERR_USAGE, "%s: expected a new folder, found an existing one", m->dir);
    MS_TRY(ms_mzg2_identify(&id, m->source, err));
    ms_text_puts(&m->identity, "{");
    ms_mzg2_write_identity(&m->identity, &id, &p);
    ms_text_puts(&m->identity, "}\n");
    if (m->identity.failed) return ms_fail_memory(err, "a state", m->identity.cap);
    if (mkdir(m->partial, 0755) != 0 && errno != EEXIST)
        return ms_fail_errno(err, MS_ERR_IO, errno, "%s: create", m->partial);
    MS_TRY(lock_partial(m, err));
    MS_TRY(mzg2_path(path, m->partial, state_name, err));
    if (lstat(path, &st) != 0) {
        MS_TRY(check_new(m, err));
        return write_file(path, m->identity.data, m->identity.len, sha, err);
    }
    MS_TRY(ms_file_read_all(path, MAX_STATE, &text, &length, err));
    bool same = length == m->identity.len && memcmp(text, m->identity.data, length) == 0;
    free(text);
    if (same) return MS_OK;
    return ms_fail(err, MS_ERR_USAGE,
                   "%s: parameters: expected those of this bundle, found others (another checkpoint or option): "
                   "remove %s to start anew",
                   path, m->partial);
}

static int by_file(const void *a, const void *b) {
    return strcmp(((const bundle_file *)a)->name, ((const bundle_file *)b)->name);
}

static ms_status write_json(making *m, ms_error *err) {
    ms_text t = {0};
    char path[MZG2_PATH], hex[MS_SHA256_HEX];
    uint8_t sha[MS_SHA256_BYTES];
    qsort(m->files.list, m->files.count, sizeof *m->files.list, by_file);
    ms_sha256_hex(hex, m->store_sha);
    ms_text_printf(&t,
                   "{\"format\":\"%s\",\"version\":%d,\"tool\":\"moonshine " MS_VERSION
                   "\",\"layout\":\"%016llx\",\"store\":\"%s\",\n\"files\":[",
                   bundle_format, BUNDLE_VERSION,
                   (unsigned long long)ms_checkpoint_layout_digest(m->source->checkpoint), hex);
    for (size_t i = 0; i < m->files.count; i++) {
        const bundle_file *f = &m->files.list[i];
        ms_sha256_hex(hex, f->sha);
        ms_text_puts(&t, i ? ",\n{\"file\":" : "\n{\"file\":");
        ms_json_write_string(&t, f->name, strlen(f->name));
        ms_text_printf(&t, ",\"bytes\":%llu,\"sha256\":\"%s\"}", (unsigned long long)f->bytes, hex);
    }
    ms_text_puts(&t, "]");
    ms_status st = ms_mzg2_seal(&t, bundle_seal, m->report->sha, err);
    if (st == MS_OK) st = mzg2_path(path, m->partial, bundle_json, err);
    if (st == MS_OK) st = write_file(path, t.data, t.len, sha, err);
    ms_text_free(&t);
    return st;
}

/* A kill between removing the state and the rename is no loss: the next run finds every part and comes here again. */
static ms_status publish(making *m, ms_error *err) {
    char path[MZG2_PATH], parent[MZG2_PATH];
    MS_TRY(mzg2_sync_dir(m->partial, err));
    MS_TRY(mzg2_path(path, m->partial, state_name, err));
    if (unlink(path) != 0 && errno != ENOENT) return ms_fail_errno(err, MS_ERR_IO, errno, "%s: remove", path);
    MS_TRY(bundle_nothing_more(m->partial, &m->files, err));
    MS_TRY(mzg2_sync_dir(m->partial, err));
    if (renameat2(AT_FDCWD, m->partial, AT_FDCWD, m->dir, RENAME_NOREPLACE) != 0)
        return ms_fail_errno(err, errno == EEXIST ? MS_ERR_USAGE : MS_ERR_IO, errno, "%s: rename from %s", m->dir,
                             m->partial);
    (void)snprintf(parent, sizeof parent, "%s", m->dir);
    char *slash = strrchr(parent, '/');
    if (slash) slash[slash == parent] = 0;
    return mzg2_sync_dir(slash ? parent : ".", err);
}

static ms_status make(making *m, const char *dir, ms_error *err) {
    MS_TRY(begin(m, dir, err));
    MS_TRY(make_store(m, err));
    MS_TRY(make_statics(m, err));
    MS_TRY(copy_all_small(m, err));
    MS_TRY(write_json(m, err));
    return publish(m, err);
}

ms_status ms_bundle_build(const char *dir, const ms_mzg2_source *source, const char *reuse,
                          const ms_mzg2_job_options *o, ms_bundle_report *report, ms_error *err) {
    making *m = calloc(1, sizeof *m);
    if (!m) return ms_fail_memory(err, "a bundle", sizeof *m);
    m->lock = -1;
    m->source = source;
    m->options = o;
    m->reuse = reuse;
    m->report = report;
    *report = (ms_bundle_report){0};
    ms_status st = make(m, dir, err);
    if (st != MS_OK && m->partial[0]) (void)rmdir(m->partial); /* goes only if nothing came into it */
    if (m->lock >= 0) (void)close(m->lock);
    bundle_files_free(&m->files);
    ms_text_free(&m->identity);
    free(m);
    return st;
}
