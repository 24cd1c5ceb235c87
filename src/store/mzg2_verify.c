/* mzg2_verify.c: a finished store against its digests and its source; and source bytes out of a store. */
#include <errno.h>
#include <fcntl.h>
#include <lzma.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/pool.h"
#include "io/file.h"
#include "store/mzg2_signs.h"
#include "store/mzg2_work.h"

enum { OFFSET_BYTES = 8, CRC_BYTES = 4 };

/* ------------------------------------------------------------------ one layer, open */

typedef struct layer_file {
    char path[MZG2_PATH], signs_path[MZG2_PATH];
    int fd, signs_fd;
    ms_mzg2_layer layer;
    uint64_t signs_bytes;
} layer_file;

static ms_status open_file(const char *path, int *fd, uint64_t *bytes, ms_error *err) {
    struct stat st;
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0) return ms_fail_errno(err, MS_ERR_IO, errno, "%s: open", path);
    if (fstat(*fd, &st) != 0) return ms_fail_errno(err, MS_ERR_IO, errno, "%s: stat", path);
    if (!S_ISREG(st.st_mode)) return ms_fail_not_regular(err, path, st.st_mode);
    *bytes = (uint64_t)st.st_size;
    return MS_OK;
}

static void close_layer(layer_file *f) {
    if (f->fd >= 0) (void)close(f->fd);
    if (f->signs_fd >= 0) (void)close(f->signs_fd);
    ms_mzg2_layer_free(&f->layer);
}

static ms_status open_layer(layer_file *f, const char *dir, const ms_mzg2_layer_record *r, ms_error *err) {
    char name[MS_MZG2_NAME];
    uint64_t bytes = 0;
    f->fd = f->signs_fd = -1;
    f->layer = (ms_mzg2_layer){0};
    ms_mzg2_layer_name(name, r->layer);
    MS_TRY(mzg2_path(f->path, dir, name, err));
    MS_TRY(open_file(f->path, &f->fd, &bytes, err));
    MS_TRY(ms_mzg2_layer_read(&f->layer, f->fd, f->path, bytes, err));
    if (r->signs_bytes == 0) return MS_OK;
    ms_mzg2_signs_name(name, r->layer);
    MS_TRY(mzg2_path(f->signs_path, dir, name, err));
    MS_TRY(open_file(f->signs_path, &f->signs_fd, &f->signs_bytes, err));
    if (f->signs_bytes == r->signs_bytes && f->signs_bytes >= (uint64_t)f->layer.experts * OFFSET_BYTES + CRC_BYTES)
        return MS_OK;
    return ms_fail(err, MS_ERR_FORMAT, "%s: length: expected %llu, found %llu", f->signs_path,
                   (unsigned long long)r->signs_bytes, (unsigned long long)f->signs_bytes);
}

/* Reads and decodes an expert: canonical source bytes in w->canonical. */
static ms_status decode_expert(mzg2_worker *w, const layer_file *f, uint32_t expert, ms_error *err) {
    const ms_mzg2_entry *e = &f->layer.index[expert];
    ms_mzg2_block b;
    MS_TRY(ms_file_pread_exact(f->fd, f->path, w->block, e->stored_bytes, e->offset, err));
    uint32_t crc = lzma_crc32(w->block, e->payload_bytes, 0);
    if (crc != e->crc)
        return ms_fail(err, MS_ERR_FORMAT, "payload CRC: expected %08x, found %08x", (unsigned)e->crc, (unsigned)crc);
    MS_TRY(ms_mzg2_block_open(&b, w->block, e->stored_bytes, expert, f->layer.shape, err));
    MS_TRY(ms_mzg2_decode(ms_mzg2_codec_find(NULL), w->slot, &b, w->tables, err));
    ms_expert_extract(w->canonical, w->slot, f->layer.shape);
    return MS_OK;
}

/* Puts the signs of an expert back into w->canonical. */
static ms_status put_signs(mzg2_worker *w, const layer_file *f, uint32_t expert, ms_error *err) {
    uint8_t ends[2 * OFFSET_BYTES];
    uint64_t head = (uint64_t)f->layer.experts * OFFSET_BYTES, last = f->signs_bytes - CRC_BYTES;
    bool final = expert + 1 == f->layer.experts;
    MS_TRY(ms_file_pread_exact(f->signs_fd, f->signs_path, ends, final ? OFFSET_BYTES : sizeof ends,
                               (uint64_t)expert * OFFSET_BYTES, err));
    uint64_t from = ms_le64(ends), to = final ? last : ms_le64(ends + OFFSET_BYTES);
    if (from < head || to < from || to > last || to - from > ms_mzg2_signs_max_bytes(f->layer.shape))
        return ms_fail(err, MS_ERR_FORMAT,
                       "%s: offsets of expert %u: expected a range inside the file, found %llu..%llu", f->signs_path,
                       (unsigned)expert, (unsigned long long)from, (unsigned long long)to);
    MS_TRY(ms_file_pread_exact(f->signs_fd, f->signs_path, w->signs, (size_t)(to - from), from, err));
    if (ms_mzg2_signs_put(w->canonical, f->layer.shape, w->signs, (size_t)(to - from))) return MS_OK;
    return ms_fail(err, MS_ERR_FORMAT, "%s: expert %u: expected a sign for every zero, found another number",
                   f->signs_path, (unsigned)expert);
}

static ms_status same_sha(const uint8_t *want, const uint8_t *found, const char *path, const char *what,
                          ms_error *err) {
    if (memcmp(want, found, MS_SHA256_BYTES) == 0) return MS_OK;
    char a[MS_SHA256_HEX], b[MS_SHA256_HEX];
    ms_sha256_hex(a, want);
    ms_sha256_hex(b, found);
    return ms_fail(err, MS_ERR_FORMAT, "%s: %s: expected %s, found %s", path, what, a, b);
}

/* ------------------------------------------------------------------ verify */

typedef struct verification {
    const char *dir;
    const ms_mzg2_source *source; /* NULL: without */
    const ms_mzg2_job_options *options;
    ms_mzg2_manifest m;
    mzg2_worker *workers;
    mzg2_outcome outcome;
} verification;

static ms_status check_file(const verification *v, const char *name, uint64_t bytes, const uint8_t *sha,
                            ms_error *err) {
    char path[MZG2_PATH];
    uint8_t found[MS_SHA256_BYTES];
    uint64_t length = 0;
    MS_TRY(mzg2_path(path, v->dir, name, err));
    MS_TRY(ms_sha256_file(found, path, &length, err));
    if (length != bytes)
        return ms_fail(err, MS_ERR_FORMAT, "%s: length: expected %llu, found %llu", path, (unsigned long long)bytes,
                       (unsigned long long)length);
    return same_sha(sha, found, path, "SHA-256", err);
}

typedef struct sums {
    ms_sha256 *decoded, *signed_again, *source, *cleared;
} sums;

static ms_status check_expert(verification *v, mzg2_worker *w, const layer_file *f, uint32_t l, uint32_t e,
                              const sums *s, ms_error *err) {
    size_t n = ms_expert_bytes(f->layer.shape);
    if (decode_expert(w, f, e, err) != MS_OK)
        return ms_error_context(err, "%s: layer %u, expert %u", f->path, (unsigned)f->layer.layer, (unsigned)e);
    ms_sha256_add(s->decoded, w->canonical, n);
    if (v->source) {
        MS_TRY(mzg2_read_source(w->source, v->source, l, e, err));
        ms_sha256_add(s->source, w->source, n);
        memcpy(w->image, w->source, n);
        ms_mzg2_clear_zeros(w->image, f->layer.shape);
        ms_sha256_add(s->cleared, w->image, n);
        if (memcmp(w->image, w->canonical, n) != 0)
            return ms_fail(err, MS_ERR_FORMAT, "%s: layer %u, expert %u: expected the source's bytes, found others",
                           f->path, (unsigned)f->layer.layer, (unsigned)e);
    }
    if (f->signs_fd >= 0) {
        MS_TRY(put_signs(w, f, e, err));
        ms_sha256_add(s->signed_again, w->canonical, n);
    }
    return MS_OK;
}

static ms_status finish_sums(sums *s, const verification *v, const layer_file *f, ms_error *err) {
    uint8_t decoded[MS_SHA256_BYTES], again[MS_SHA256_BYTES], source[MS_SHA256_BYTES], cleared[MS_SHA256_BYTES];
    ms_sha256_end(s->decoded, decoded);
    ms_sha256_end(s->signed_again, again);
    ms_sha256_end(s->source, source);
    ms_sha256_end(s->cleared, cleared);
    *s = (sums){0};
    MS_TRY(same_sha(f->layer.canonical_sha, decoded, f->path, "SHA-256 of the decoded bytes", err));
    if (f->signs_fd >= 0)
        MS_TRY(same_sha(f->layer.source_sha, again, f->signs_path, "SHA-256 of the source bytes", err));
    if (!v->source) return MS_OK;
    MS_TRY(same_sha(f->layer.source_sha, source, f->path, "SHA-256 of the source", err));
    return same_sha(f->layer.canonical_sha, cleared, f->path, "SHA-256 of the source without negative zeros", err);
}

static ms_status check_layer(verification *v, mzg2_worker *w, uint32_t l, layer_file *f, ms_error *err) {
    const ms_mzg2_layer_record *r = &v->m.layers[l];
    char name[MS_MZG2_NAME];
    ms_mzg2_layer_name(name, r->layer);
    MS_TRY(check_file(v, name, r->bytes, r->sha, err));
    ms_mzg2_signs_name(name, r->layer);
    if (r->signs_bytes) MS_TRY(check_file(v, name, r->signs_bytes, r->signs_sha, err));
    MS_TRY(open_layer(f, v->dir, r, err));
    if (f->layer.layer != r->layer || f->layer.experts != v->m.identity.experts ||
        f->layer.shape.hidden != v->m.identity.shape.hidden || f->layer.shape.inner != v->m.identity.shape.inner)
        return ms_fail(err, MS_ERR_FORMAT, "%s: layer, experts or widths: expected the manifest's, found others",
                       f->path);
    MS_TRY(same_sha(r->canonical_sha, f->layer.canonical_sha, f->path, "header's SHA-256", err));
    MS_TRY(same_sha(r->source_sha, f->layer.source_sha, f->path, "header's source SHA-256", err));
    if (v->options->fast) {
        mzg2_outcome_progress(&v->outcome, (uint64_t)f->layer.experts * ms_expert_bytes(f->layer.shape));
        return MS_OK;
    }
    ms_mzg2_tables_expand(w->tables, &f->layer);
    sums s = {0};
    ms_status st = ms_sha256_begin(&s.decoded, err);
    if (st == MS_OK) st = ms_sha256_begin(&s.signed_again, err);
    if (st == MS_OK) st = ms_sha256_begin(&s.source, err);
    if (st == MS_OK) st = ms_sha256_begin(&s.cleared, err);
    for (uint32_t e = 0; st == MS_OK && e < f->layer.experts && mzg2_outcome_good(&v->outcome); e++) {
        st = check_expert(v, w, f, l, e, &s, err);
        mzg2_outcome_progress(&v->outcome, ms_expert_bytes(f->layer.shape));
    }
    if (st == MS_OK && mzg2_outcome_good(&v->outcome)) st = finish_sums(&s, v, f, err);
    ms_sha256_drop(s.decoded);
    ms_sha256_drop(s.signed_again);
    ms_sha256_drop(s.source);
    ms_sha256_drop(s.cleared);
    return st;
}

static void job(void *arg, size_t task, unsigned worker) {
    verification *v = arg;
    ms_error err = {0};
    layer_file *f = calloc(1, sizeof *f);
    if (!mzg2_outcome_good(&v->outcome)) {
        free(f);
        return;
    }
    ms_status st = f ? MS_OK : ms_fail_memory(&err, "a layer", sizeof *f);
    if (f) {
        f->fd = f->signs_fd = -1;
        mzg2_worker *w = &v->workers[worker];
        if (!w->source) st = mzg2_worker_init(w, v->m.identity.shape, &err);
        if (st == MS_OK) st = check_layer(v, w, (uint32_t)task, f, &err);
        close_layer(f);
    }
    if (st != MS_OK) mzg2_outcome_fail(&v->outcome, st, &err);
    free(f);
}

static ms_status run(verification *v, ms_error *err) {
    ms_pool *pool = NULL;
    MS_TRY(ms_pool_create(&pool, v->options->jobs, err));
    unsigned jobs = ms_pool_threads(pool);
    v->workers = calloc(jobs, sizeof *v->workers);
    ms_status st = v->workers ? MS_OK : ms_fail_memory(err, "jobs", jobs * sizeof *v->workers);
    if (st == MS_OK) {
        uint64_t total = (uint64_t)v->m.identity.layers * v->m.identity.experts * ms_expert_bytes(v->m.identity.shape);
        mzg2_outcome_init(&v->outcome, v->options, total);
        ms_pool_run(pool, job, v, v->m.identity.layers);
        st = v->outcome.status;
        if (st != MS_OK && err) *err = v->outcome.error;
        mzg2_outcome_fini(&v->outcome);
    }
    for (unsigned i = 0; v->workers && i < jobs; i++) mzg2_worker_free(&v->workers[i]);
    free(v->workers);
    ms_pool_destroy(pool);
    return st;
}

static ms_status check_identity(verification *v, ms_error *err) {
    ms_mzg2_identity want;
    if (!ms_expert_shape_valid(v->m.identity.shape) || ms_expert_bytes(v->m.identity.shape) > 1u << 30)
        return ms_fail(err, MS_ERR_FORMAT,
                       "%s/manifest.json: model widths: expected multiples of 32 and experts of at most 2^30 bytes",
                       v->dir);
    if (!v->source) return MS_OK;
    MS_TRY(ms_mzg2_identify(&want, v->source, err));
    return ms_mzg2_same_identity(&want, &v->m.identity, v->dir, err);
}

ms_status ms_mzg2_verify(const char *dir, const ms_mzg2_source *source, const ms_mzg2_job_options *o,
                         ms_mzg2_report *report, ms_error *err) {
    ms_error local = {0};
    if (!err) err = &local;
    verification v = {.dir = dir, .source = source, .options = o};
    MS_TRY(ms_mzg2_manifest_read(&v.m, dir, err));
    ms_status st = check_identity(&v, err);
    if (st == MS_OK) st = run(&v, err);
    if (st == MS_OK) {
        *report = (ms_mzg2_report){.layers = v.m.identity.layers,
                                   .experts = (uint64_t)v.m.identity.layers * v.m.identity.experts};
        report->canonical_bytes = report->experts * ms_expert_bytes(v.m.identity.shape);
        for (uint32_t l = 0; l < v.m.identity.layers; l++) {
            report->payload_bytes += v.m.layers[l].payload_bytes;
            report->stored_bytes += v.m.layers[l].bytes;
        }
        memcpy(report->manifest_sha, v.m.sha, sizeof v.m.sha);
    }
    ms_mzg2_manifest_free(&v.m);
    return st;
}

/* ------------------------------------------------------------------ restore */

static ms_status restore_experts(mzg2_worker *w, const layer_file *f, bool canonical, ms_file_writer *out,
                                 ms_error *err) {
    size_t n = ms_expert_bytes(f->layer.shape);
    uint8_t found[MS_SHA256_BYTES];
    ms_sha256 *sha = NULL;
    ms_mzg2_tables_expand(w->tables, &f->layer);
    MS_TRY(ms_sha256_begin(&sha, err));
    ms_status st = MS_OK;
    for (uint32_t e = 0; st == MS_OK && e < f->layer.experts; e++) {
        st = decode_expert(w, f, e, err);
        if (st == MS_OK && !canonical) st = put_signs(w, f, e, err);
        if (st != MS_OK) {
            ms_error_context(err, "%s: layer %u, expert %u", f->path, (unsigned)f->layer.layer, (unsigned)e);
            break;
        }
        ms_sha256_add(sha, w->canonical, n);
        st = ms_file_writer_write(out, w->canonical, n, err);
    }
    ms_sha256_end(sha, found);
    MS_TRY(st);
    return same_sha(canonical ? f->layer.canonical_sha : f->layer.source_sha, found, f->path,
                    "SHA-256 of the restored bytes", err);
}

static ms_status restore(const ms_mzg2_manifest *m, const char *dir, uint32_t layer, const char *path, bool canonical,
                         layer_file *f, ms_error *err) {
    const ms_mzg2_layer_record *r = NULL;
    mzg2_worker w;
    ms_file_writer *out = NULL;
    for (uint32_t l = 0; l < m->identity.layers; l++)
        if (m->layers[l].layer == layer) r = &m->layers[l];
    if (!r) return ms_fail(err, MS_ERR_USAGE, "layer %u: the store has no such layer", (unsigned)layer);
    if (!canonical && r->signs_bytes == 0)
        return ms_fail(err, MS_ERR_USAGE,
                       "%s: layer %u: the store was built without the signs of zeros: only canonical bytes can "
                       "be restored",
                       dir, (unsigned)layer);
    MS_TRY(open_layer(f, dir, r, err));
    MS_TRY(mzg2_worker_init(&w, f->layer.shape, err));
    ms_status st = ms_file_writer_open(&out, path, false, err);
    if (st == MS_OK) {
        st = restore_experts(&w, f, canonical, out, err);
        if (st == MS_OK)
            st = ms_file_writer_commit(out, err);
        else
            ms_file_writer_abort(out);
    }
    mzg2_worker_free(&w);
    return st;
}

ms_status ms_mzg2_restore(const char *dir, uint32_t layer, const char *path, bool canonical, ms_error *err) {
    ms_error local = {0};
    if (!err) err = &local;
    ms_mzg2_manifest m;
    layer_file *f = calloc(1, sizeof *f);
    if (!f) return ms_fail_memory(err, "a layer", sizeof *f);
    f->fd = f->signs_fd = -1;
    ms_status st = ms_mzg2_manifest_read(&m, dir, err);
    if (st == MS_OK) {
        st = restore(&m, dir, layer, path, canonical, f, err);
        ms_mzg2_manifest_free(&m);
    }
    close_layer(f);
    free(f);
    return st;
}
