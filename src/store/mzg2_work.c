#include "store/mzg2_work.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "io/file.h"

/* ------------------------------------------------------------------ outcome */

void mzg2_outcome_init(mzg2_outcome *o, const ms_mzg2_job_options *options, uint64_t total_bytes) {
    *o = (mzg2_outcome){.options = options, .total_bytes = total_bytes};
    (void)pthread_mutex_init(&o->lock, NULL);
}

void mzg2_outcome_fini(mzg2_outcome *o) { (void)pthread_mutex_destroy(&o->lock); }

bool mzg2_outcome_good(mzg2_outcome *o) {
    (void)pthread_mutex_lock(&o->lock);
    bool good = o->status == MS_OK;
    (void)pthread_mutex_unlock(&o->lock);
    return good;
}

static void fail_locked(mzg2_outcome *o, ms_status status, const ms_error *err) {
    if (o->status != MS_OK) return;
    o->status = status;
    o->error = *err;
}

void mzg2_outcome_fail(mzg2_outcome *o, ms_status status, const ms_error *err) {
    (void)pthread_mutex_lock(&o->lock);
    fail_locked(o, status, err);
    (void)pthread_mutex_unlock(&o->lock);
}

void mzg2_outcome_progress(mzg2_outcome *o, uint64_t bytes) {
    (void)pthread_mutex_lock(&o->lock);
    o->done_bytes += bytes;
    if (o->options->progress && !o->options->progress(o->options->progress_arg, o->done_bytes, o->total_bytes)) {
        ms_error err;
        fail_locked(o, ms_fail(&err, MS_ERR_CANCELLED, "cancelled"), &err);
    }
    (void)pthread_mutex_unlock(&o->lock);
}

/* ------------------------------------------------------------------ one job */

ms_status mzg2_worker_init(mzg2_worker *w, ms_expert_shape s, ms_error *err) {
    size_t n = ms_expert_bytes(s);
    *w = (mzg2_worker){.source = malloc(n),
                       .canonical = malloc(n),
                       .block = malloc(ms_mzg2_block_max_bytes(s)),
                       .slot = malloc(n),
                       .image = malloc(n),
                       .signs = malloc(ms_mzg2_signs_max_bytes(s)),
                       .tables = calloc(1, sizeof *w->tables)};
    if (w->source && w->canonical && w->block && w->slot && w->image && w->signs && w->tables) return MS_OK;
    mzg2_worker_free(w);
    return ms_fail_memory(err, "buffers of a job", 6 * n);
}

void mzg2_worker_free(mzg2_worker *w) {
    free(w->source);
    free(w->canonical);
    free(w->block);
    free(w->slot);
    free(w->image);
    free(w->signs);
    free(w->tables);
    ms_mzg2_fit_destroy(w->fit);
    *w = (mzg2_worker){0};
}

/* The three matrices, which have the same size, from their places in the checkpoint to those in the store. */
static ms_status read_matrices(uint8_t *out, const ms_mzg2_source *s, const ms_expert_extent *x, ms_error *err) {
    static const uint8_t from[][3] = {[MS_ORDER_W1_W2_W3] = {0, 1, 2}, [MS_ORDER_W2_W1_W3] = {1, 0, 2}};
    size_t part = ms_expert_bytes(s->shape) / 3;
    if (s->order == MS_ORDER_W1_W2_W3)
        return ms_checkpoint_read_shard(s->checkpoint, x->shard, x->offset, out, 3 * part, err);
    for (size_t i = 0; i < 3; i++)
        MS_TRY(ms_checkpoint_read_shard(s->checkpoint, x->shard, x->offset + from[s->order][i] * part, out + i * part,
                                        part, err));
    return MS_OK;
}

ms_status mzg2_read_source(uint8_t *out, const ms_mzg2_source *s, uint32_t moe_layer, uint32_t expert, ms_error *err) {
    const ms_expert_table *t = s->experts;
    const ms_expert_extent *x = &t->extents[(size_t)moe_layer * t->expert_count + expert];
    ms_status st = read_matrices(out, s, x, err);
    if (st == MS_OK) {
        st = ms_expert_check(out, s->shape, err);
        if (st != MS_OK) ms_error_context(err, "%s", ms_checkpoint_shard_path(s->checkpoint, x->shard));
    }
    if (st != MS_OK) ms_error_context(err, "layer %u, expert %u", (unsigned)t->layers[moe_layer], (unsigned)expert);
    return st;
}

/* ------------------------------------------------------------------ files */

ms_status mzg2_path(char out[MZG2_PATH], const char *dir, const char *name, ms_error *err) {
    int n = snprintf(out, MZG2_PATH, "%s/%s", dir, name);
    if (n > 0 && n < MZG2_PATH) return MS_OK;
    return ms_fail(err, MS_ERR_USAGE, "%s: the path is too long", dir);
}

static const char temporary_suffix[] = ".tmp";

size_t mzg2_output_name(const char *name) {
    size_t n = strlen(name), m = sizeof temporary_suffix - 1;
    return n > m && !strcmp(name + n - m, temporary_suffix) ? n - m : n;
}

ms_status mzg2_output_open(mzg2_output *o, const char *path, ms_error *err) {
    *o = (mzg2_output){.fd = -1};
    int n = snprintf(o->path, sizeof o->path, "%s", path),
        m = snprintf(o->temporary, sizeof o->temporary, "%s%s", path, temporary_suffix);
    if (n < 0 || m < 0 || n >= MZG2_PATH || m >= MZG2_PATH)
        return ms_fail(err, MS_ERR_USAGE, "%s: the path is too long", path);
    if (unlink(o->temporary) != 0 && errno != ENOENT)
        return ms_fail_errno(err, MS_ERR_IO, errno, "%s: remove what an earlier run left", o->temporary);
    o->fd = open(o->temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (o->fd < 0) return ms_fail_errno(err, MS_ERR_IO, errno, "%s: create", o->temporary);
    return MS_OK;
}

static ms_status write_at(const mzg2_output *o, uint64_t at, const void *data, size_t length, ms_error *err) {
    for (size_t done = 0; done < length;) {
        ssize_t n = pwrite(o->fd, (const uint8_t *)data + done, length - done, (off_t)(at + done));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return ms_fail_errno(err, MS_ERR_IO, n == 0 ? EIO : errno, "%s: write", o->temporary);
        done += (size_t)n;
    }
    return MS_OK;
}

ms_status mzg2_output_write(mzg2_output *o, const void *data, size_t length, ms_error *err) {
    MS_TRY(write_at(o, o->at, data, length, err));
    o->at += length;
    return MS_OK;
}

ms_status mzg2_output_patch(mzg2_output *o, uint64_t at, const void *data, size_t length, ms_error *err) {
    return write_at(o, at, data, length, err);
}

ms_status mzg2_output_finish(mzg2_output *o, bool replace, uint8_t sha[MS_SHA256_BYTES], ms_error *err) {
    uint64_t bytes = 0;
    if (fsync(o->fd) != 0) return ms_fail_errno(err, MS_ERR_IO, errno, "%s: sync", o->temporary);
    MS_TRY(ms_sha256_file(sha, o->temporary, &bytes, err));
    if (bytes != o->at)
        return ms_fail(err, MS_ERR_IO, "%s: length: expected %llu, found %llu", o->temporary, (unsigned long long)o->at,
                       (unsigned long long)bytes);
    (void)posix_fadvise(o->fd, 0, 0, POSIX_FADV_DONTNEED); /* written once, not needed again soon */
    if (!replace && renameat2(AT_FDCWD, o->temporary, AT_FDCWD, o->path, RENAME_NOREPLACE) != 0) {
        if (errno == EEXIST)
            return ms_fail(err, MS_ERR_USAGE, "%s: expected a new file, found an existing one", o->path);
        return ms_fail_errno(err, MS_ERR_IO, errno, "%s: rename", o->path);
    }
    if (replace && rename(o->temporary, o->path) != 0)
        return ms_fail_errno(err, MS_ERR_IO, errno, "%s: rename", o->path);
    o->temporary[0] = 0;
    return MS_OK;
}

void mzg2_output_drop(mzg2_output *o) {
    if (o->fd < 0) return;
    (void)close(o->fd);
    o->fd = -1;
    if (o->temporary[0]) (void)unlink(o->temporary);
}

ms_status mzg2_sync_dir(const char *dir, ms_error *err) {
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return ms_fail_errno(err, MS_ERR_IO, errno, "%s: open", dir);
    int bad = fsync(fd) != 0 && errno != EINVAL ? errno : 0; /* EINVAL: this file system needs none */
    (void)close(fd);
    return bad ? ms_fail_errno(err, MS_ERR_IO, bad, "%s: sync", dir) : MS_OK;
}
