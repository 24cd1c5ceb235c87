/* mzg2_build.c: a build of all layers in NAME.partial/: its state, its jobs, the finished store.
 *
 * state.jsonl: a first line with checkpoint and parameters, then a line for every finished layer and every hashed
 * shard, each synced when it is written.  A last line that a kill cut short is dropped.
 */
#include "store/mzg2_build.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/pool.h"
#include "io/file.h"
#include "store/mzg2_work.h"

enum { SAMPLE = 64, MAX_STATE = 64 << 20 };
static const char state_name[] = "state.jsonl", manifest_name[] = "manifest.json", cold_name[] = "cold";

typedef struct build {
    const ms_mzg2_source *source;
    const ms_mzg2_job_options *options;
    char dir[MZG2_PATH], partial[MZG2_PATH];
    ms_mzg2_manifest m; /* grows; shards in the order of the checkpoint */
    bool *layer_done, *shard_done;
    const char **shard_paths; /* of m.shards */
    int state_fd;
    pthread_mutex_t state_lock;
    mzg2_worker *workers;
    unsigned jobs;
    mzg2_outcome outcome;
    uint32_t kept;
} build;

/* ------------------------------------------------------------------ what there is to do */

static ms_status list_shards(build *b, ms_error *err) {
    size_t all = ms_checkpoint_shard_count(b->source->checkpoint);
    const ms_expert_table *t = b->source->experts;
    bool *used = calloc(all + 1, sizeof *used);
    b->m.shards = calloc(all + 1, sizeof *b->m.shards);
    b->shard_paths = calloc(all + 1, sizeof *b->shard_paths);
    b->shard_done = calloc(all + 1, sizeof *b->shard_done);
    if (!used || !b->m.shards || !b->shard_paths || !b->shard_done) {
        free(used);
        return ms_fail_memory(err, "the shard list", all * sizeof *b->m.shards);
    }
    for (size_t i = 0; i < (size_t)t->layer_count * t->expert_count; i++) used[t->extents[i].shard] = true;
    for (size_t i = 0; i < all; i++) {
        if (!used[i]) continue;
        const char *path = ms_checkpoint_shard_path(b->source->checkpoint, i), *base = strrchr(path, '/');
        ms_mzg2_shard_record *r = &b->m.shards[b->m.shard_count];
        b->shard_paths[b->m.shard_count++] = path;
        (void)snprintf(r->file, sizeof r->file, "%s", base ? base + 1 : path);
    }
    free(used);
    return MS_OK;
}

static ms_status prepare(build *b, const char *dir, ms_error *err) {
    const ms_expert_table *t = b->source->experts;
    if (t->layer_count == 0) return ms_fail(err, MS_ERR_USAGE, "the model has no routed experts");
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/') n--;
    if (n == 0 || n + 16 > sizeof b->dir)
        return ms_fail(err, MS_ERR_USAGE, "store: expected a path of 1 to %d bytes", MZG2_PATH - 16);
    (void)snprintf(b->dir, sizeof b->dir, "%.*s", (int)n, dir);
    (void)snprintf(b->partial, sizeof b->partial, "%.*s.partial", (int)n, dir);
    struct stat st;
    if (lstat(b->dir, &st) == 0)
        return ms_fail(err, MS_ERR_USAGE, "%s: expected a new folder, found an existing one", b->dir);
    b->m.parameters = (ms_mzg2_parameters){.tables = b->options->tables ? b->options->tables : MS_MZG2_FIT_TABLES,
                                           .column_classes = MS_MZG2_CLASSES,
                                           .sample = SAMPLE,
                                           .signs = b->options->signs};
    MS_TRY(ms_mzg2_identify(&b->m.identity, b->source, err));
    b->m.layers = calloc(t->layer_count, sizeof *b->m.layers);
    b->layer_done = calloc(t->layer_count, sizeof *b->layer_done);
    if (!b->m.layers || !b->layer_done)
        return ms_fail_memory(err, "the layer list", t->layer_count * sizeof *b->m.layers);
    return list_shards(b, err);
}

/* ------------------------------------------------------------------ state */

static void first_line(const build *b, ms_text *out) {
    ms_text_puts(out, "{\"format\":\"mzg2-build\",\"version\":1,\"tool\":\"moonshine " MS_VERSION "\",");
    ms_mzg2_write_identity(out, &b->m.identity, &b->m.parameters);
    ms_text_puts(out, "}\n");
}

static ms_status write_state(build *b, const char *line, size_t length, ms_error *err) {
    size_t done = 0;
    while (done < length) {
        ssize_t n = write(b->state_fd, line + done, length - done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return ms_fail_errno(err, MS_ERR_IO, n == 0 ? EIO : errno, "%s/%s: write", b->partial, state_name);
        done += (size_t)n;
    }
    if (fsync(b->state_fd) != 0) return ms_fail_errno(err, MS_ERR_IO, errno, "%s/%s: sync", b->partial, state_name);
    return MS_OK;
}

static uint32_t layer_index(const build *b, uint32_t layer) {
    for (uint32_t i = 0; i < b->m.identity.layers; i++)
        if (b->source->experts->layers[i] == layer) return i;
    return UINT32_MAX;
}

/* Whether the finished file of a state line is still what the line says. */
static ms_status check_kept(const build *b, const char *name, uint64_t bytes, const uint8_t sha[MS_SHA256_BYTES],
                            bool *kept, ms_error *err) {
    char path[MZG2_PATH];
    struct stat st;
    uint8_t found[MS_SHA256_BYTES];
    MS_TRY(mzg2_path(path, b->partial, name, err));
    *kept = lstat(path, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size == bytes;
    if (!*kept || !b->options->recheck) return MS_OK;
    MS_TRY(ms_sha256_file(found, path, NULL, err));
    *kept = memcmp(found, sha, sizeof found) == 0;
    return MS_OK;
}

static ms_status take_line(build *b, const ms_json *v, const char *where, ms_error *err) {
    if (ms_json_get(v, "shard")) {
        ms_mzg2_shard_record r;
        MS_TRY(ms_mzg2_parse_shard(&r, v, where, err));
        for (size_t i = 0; i < b->m.shard_count; i++) {
            struct stat st;
            if (strcmp(r.file, b->m.shards[i].file) != 0) continue;
            if (stat(b->shard_paths[i], &st) != 0 || (uint64_t)st.st_size != r.bytes) continue;
            b->m.shards[i] = r;
            b->shard_done[i] = true;
        }
        return MS_OK;
    }
    ms_mzg2_layer_record r;
    MS_TRY(ms_mzg2_parse_layer(&r, v, where, err));
    uint32_t at = layer_index(b, r.layer);
    if (at == UINT32_MAX)
        return ms_fail(err, MS_ERR_FORMAT, "%s: layer %u: the model has no such routed layer", where,
                       (unsigned)r.layer);
    char name[MS_MZG2_NAME];
    bool kept = false, kept_signs = true;
    ms_mzg2_layer_name(name, r.layer);
    MS_TRY(check_kept(b, name, r.bytes, r.sha, &kept, err));
    ms_mzg2_signs_name(name, r.layer);
    if (b->m.parameters.signs) MS_TRY(check_kept(b, name, r.signs_bytes, r.signs_sha, &kept_signs, err));
    b->layer_done[at] = kept && kept_signs;
    b->m.layers[at] = r;
    return MS_OK;
}

/* Reads what an earlier build left; the file ends behind its last whole line afterwards. */
static ms_status resume(build *b, const char *path, const char *text, size_t length, ms_error *err) {
    ms_text want = {0};
    first_line(b, &want);
    if (want.failed) return ms_fail_memory(err, path, want.cap);
    size_t good = 0;
    const char *end = memchr(text, '\n', length);
    bool same = end && (size_t)(end + 1 - text) == want.len && memcmp(text, want.data, want.len) == 0;
    if (end && !same) {
        ms_text_free(&want);
        return ms_fail(
            err, MS_ERR_USAGE,
            "%s: parameters: expected those of this build, found others (another checkpoint, version or option): "
            "remove %s to start anew",
            path, b->partial);
    }
    ms_status st = MS_OK;
    if (same) good = want.len;
    while (st == MS_OK && good && good < length && (end = memchr(text + good, '\n', length - good))) {
        ms_json_doc *doc = NULL;
        size_t n = (size_t)(end - (text + good));
        if (ms_json_parse(&doc, text + good, n, path, NULL, NULL) != MS_OK) break; /* torn, although it has an end */
        st = take_line(b, ms_json_root(doc), path, err);
        ms_json_free(doc);
        good += n + 1;
    }
    MS_TRY(st);
    if (ftruncate(b->state_fd, (off_t)good) != 0 || lseek(b->state_fd, (off_t)good, SEEK_SET) < 0)
        st = ms_fail_errno(err, MS_ERR_IO, errno, "%s: truncate", path);
    if (st == MS_OK && good == 0) st = write_state(b, want.data, want.len, err);
    ms_text_free(&want);
    return st;
}

static bool is_ours(const build *b, const char *name) {
    char layer[MS_MZG2_NAME];
    static const char *const fixed[] = {".", "..", state_name, manifest_name, cold_name};
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        if (!strcmp(name, fixed[i])) return true;
    for (uint32_t i = 0; i < b->m.identity.layers; i++) {
        ms_mzg2_layer_name(layer, b->source->experts->layers[i]);
        if (!strcmp(name, layer)) return true;
    }
    return false;
}

/* Whatever lies in the folder is published with it, so nothing else may. */
static ms_status only_ours(const build *b, ms_error *err) {
    DIR *dir = opendir(b->partial);
    if (!dir) return ms_fail_errno(err, MS_ERR_IO, errno, "%s: list", b->partial);
    ms_status st = MS_OK;
    for (const struct dirent *e; st == MS_OK && (e = readdir(dir));) {
        size_t n = mzg2_output_name(e->d_name);
        char name[sizeof e->d_name];
        (void)snprintf(name, sizeof name, "%.*s", (int)n, e->d_name);
        if (!is_ours(b, name))
            st = ms_fail(err, MS_ERR_USAGE,
                         "%s: expected only files of this build, found %s: move it away and run again", b->partial,
                         e->d_name);
    }
    (void)closedir(dir);
    return st;
}

static ms_status open_state(build *b, ms_error *err) {
    char path[MZG2_PATH], cold[MZG2_PATH], *text = NULL;
    size_t length = 0;
    if (mkdir(b->partial, 0755) != 0 && errno != EEXIST)
        return ms_fail_errno(err, MS_ERR_IO, errno, "%s: create", b->partial);
    MS_TRY(only_ours(b, err));
    MS_TRY(mzg2_path(cold, b->partial, cold_name, err));
    if (b->m.parameters.signs && mkdir(cold, 0755) != 0 && errno != EEXIST)
        return ms_fail_errno(err, MS_ERR_IO, errno, "%s: create", cold);
    MS_TRY(mzg2_path(path, b->partial, state_name, err));
    b->state_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (b->state_fd < 0) return ms_fail_errno(err, MS_ERR_IO, errno, "%s: open", path);
    if (flock(b->state_fd, LOCK_EX | LOCK_NB) != 0)
        return ms_fail(err, MS_ERR_USAGE, "%s: another build is at work there", b->partial);
    MS_TRY(ms_file_read_all(path, MAX_STATE, &text, &length, err));
    ms_status st = resume(b, path, text, length, err);
    free(text);
    return st;
}

static ms_status add_state(build *b, const ms_text *line, ms_error *err) {
    if (line->failed) return ms_fail_memory(err, "a state line", line->cap);
    (void)pthread_mutex_lock(&b->state_lock);
    ms_status st = write_state(b, line->data, line->len, err);
    (void)pthread_mutex_unlock(&b->state_lock);
    return st;
}

/* ------------------------------------------------------------------ jobs */

static ms_status build_one(build *b, mzg2_worker *w, uint32_t l, ms_error *err) {
    char name[MS_MZG2_NAME], path[MZG2_PATH], signs[MZG2_PATH];
    ms_mzg2_layer_record r;
    uint32_t layer = b->source->experts->layers[l];
    ms_mzg2_layer_name(name, layer);
    MS_TRY(mzg2_path(path, b->partial, name, err));
    ms_mzg2_signs_name(name, layer);
    MS_TRY(mzg2_path(signs, b->partial, name, err));
    MS_TRY(mzg2_write_layer(w, b->source, l, &b->m.parameters, path, b->m.parameters.signs ? signs : NULL, true,
                            &b->outcome, &r, err));
    MS_TRY(mzg2_sync_dir(b->partial, err));
    if (b->m.parameters.signs) {
        MS_TRY(mzg2_path(path, b->partial, cold_name, err));
        MS_TRY(mzg2_sync_dir(path, err));
    }
    ms_text line = {0};
    ms_mzg2_write_layer(&line, &r);
    ms_text_puts(&line, "\n");
    ms_status st = add_state(b, &line, err);
    ms_text_free(&line);
    b->m.layers[l] = r;
    return st;
}

static ms_status hash_one(build *b, size_t i, ms_error *err) {
    ms_mzg2_shard_record *r = &b->m.shards[i];
    MS_TRY(ms_sha256_file(r->sha, b->shard_paths[i], &r->bytes, err));
    ms_text line = {0};
    ms_mzg2_write_shard(&line, r);
    ms_text_puts(&line, "\n");
    ms_status st = add_state(b, &line, err);
    ms_text_free(&line);
    return st;
}

static void job(void *arg, size_t task, unsigned worker) {
    build *b = arg;
    ms_error err = {0};
    ms_status st = MS_OK;
    if (!mzg2_outcome_good(&b->outcome)) return;
    if (task < b->m.identity.layers) {
        if (b->layer_done[task]) return;
        mzg2_worker *w = &b->workers[worker]; /* made when first needed: there may be more threads than layers */
        if (!w->source) st = mzg2_worker_init(w, b->source->shape, &err);
        if (st == MS_OK) st = build_one(b, w, (uint32_t)task, &err);
    } else if (!b->shard_done[task - b->m.identity.layers]) {
        st = hash_one(b, task - b->m.identity.layers, &err);
    }
    if (st != MS_OK) mzg2_outcome_fail(&b->outcome, st, &err);
}

/* Codes one expert to see what the rest will take. */
static ms_status check_space(build *b, uint32_t left, uint32_t first, ms_error *err) {
    mzg2_worker *w = &b->workers[0];
    ms_mzg2_encoder *enc = NULL;
    ms_mzg2_set sets[MS_MZG2_SETS];
    uint32_t payload = 0, stored = 0;
    struct statvfs fs;
    if (left == 0) return MS_OK;
    MS_TRY(mzg2_worker_init(w, b->source->shape, err));
    MS_TRY(mzg2_read_source(w->source, b->source, first, 0, err));
    ms_mzg2_clear_zeros(w->source, b->source->shape);
    MS_TRY(ms_mzg2_fit_create(&w->fit, b->source->shape, NULL, err));
    ms_mzg2_fit_add(w->fit, w->source);
    MS_TRY(ms_mzg2_fit_sets(w->fit, sets, err));
    MS_TRY(ms_mzg2_encoder_create(&enc, b->source->shape, sets, MS_MZG2_CLASSES, err));
    ms_mzg2_encode(enc, w->block, w->source, 0, &payload, &stored);
    ms_mzg2_encoder_destroy(enc);
    uint64_t want = (uint64_t)left * b->m.identity.experts * stored;
    if (b->m.parameters.signs)
        want += (uint64_t)left * b->m.identity.experts * (ms_expert_bytes(b->source->shape) / 32);
    want += want / 50;
    if (statvfs(b->partial, &fs) != 0) return ms_fail_errno(err, MS_ERR_IO, errno, "%s: free space", b->partial);
    uint64_t available = (uint64_t)fs.f_bavail * fs.f_frsize;
    if (want <= available) return MS_OK;
    return ms_fail(err, MS_ERR_NO_FIT, "%s: free space: expected %llu bytes for the layers left, found %llu",
                   b->partial, (unsigned long long)want, (unsigned long long)available);
}

static ms_status run_jobs(build *b, ms_error *err) {
    uint32_t layers = b->m.identity.layers, left = 0, first = layers;
    uint64_t layer_bytes = (uint64_t)b->m.identity.experts * ms_expert_bytes(b->source->shape);
    for (uint32_t l = layers; l-- > 0;)
        if (!b->layer_done[l]) left++, first = l;
    b->kept = layers - left;
    unsigned threads = b->options->jobs;
    ms_pool *pool = NULL;
    MS_TRY(ms_pool_create(&pool, threads, err));
    b->jobs = ms_pool_threads(pool);
    b->workers = calloc(b->jobs, sizeof *b->workers);
    ms_status st = b->workers ? MS_OK : ms_fail_memory(err, "jobs", b->jobs * sizeof *b->workers);
    if (st == MS_OK) st = check_space(b, left, first, err);
    if (st == MS_OK) {
        mzg2_outcome_init(&b->outcome, b->options, layers * layer_bytes);
        b->outcome.done_bytes = b->kept * layer_bytes;
        ms_pool_run(pool, job, b, layers + b->m.shard_count);
        st = b->outcome.status;
        if (st != MS_OK && err) *err = b->outcome.error;
        mzg2_outcome_fini(&b->outcome);
    }
    ms_pool_destroy(pool);
    return st;
}

/* ------------------------------------------------------------------ publishing */

static ms_status write_manifest(build *b, ms_error *err) {
    char path[MZG2_PATH];
    mzg2_output out;
    uint8_t sha[MS_SHA256_BYTES];
    ms_text text = {0};
    MS_TRY(mzg2_path(path, b->partial, manifest_name, err));
    ms_mzg2_manifest_write(&text, &b->m);
    ms_status st = ms_mzg2_seal(&text, "manifest_sha256", b->m.sha, err);
    if (st == MS_OK) {
        st = mzg2_output_open(&out, path, err);
        if (st == MS_OK) st = mzg2_output_write(&out, text.data, text.len, err);
        if (st == MS_OK) st = mzg2_output_finish(&out, true, sha, err);
        mzg2_output_drop(&out);
    }
    ms_text_free(&text);
    return st;
}

/* The manifest is synced before the state goes; a kill in between leaves a folder that only has to be renamed, or the
 * state, from which the same manifest comes again. */
static ms_status publish(build *b, ms_error *err) {
    char path[MZG2_PATH], parent[MZG2_PATH];
    MS_TRY(write_manifest(b, err));
    MS_TRY(mzg2_sync_dir(b->partial, err));
    MS_TRY(mzg2_path(path, b->partial, state_name, err));
    if (unlink(path) != 0 && errno != ENOENT) return ms_fail_errno(err, MS_ERR_IO, errno, "%s: remove", path);
    MS_TRY(mzg2_sync_dir(b->partial, err));
    if (renameat2(AT_FDCWD, b->partial, AT_FDCWD, b->dir, RENAME_NOREPLACE) != 0)
        return ms_fail_errno(err, errno == EEXIST ? MS_ERR_USAGE : MS_ERR_IO, errno, "%s: rename from %s", b->dir,
                             b->partial);
    (void)snprintf(parent, sizeof parent, "%s", b->dir);
    char *slash = strrchr(parent, '/');
    if (slash) slash[slash == parent] = 0;
    return mzg2_sync_dir(slash ? parent : ".", err);
}

/* A build that was killed between its last two steps: the manifest is there and the state is not. */
static bool finished_before(const build *b) {
    char path[MZG2_PATH];
    struct stat st;
    ms_mzg2_manifest m;
    if (mzg2_path(path, b->partial, state_name, NULL) != MS_OK || lstat(path, &st) == 0) return false;
    if (ms_mzg2_manifest_read(&m, b->partial, NULL) != MS_OK) return false;
    bool same = ms_mzg2_same_identity(&b->m.identity, &m.identity, b->partial, NULL) == MS_OK &&
                memcmp(&b->m.parameters, &m.parameters, sizeof m.parameters) == 0;
    ms_mzg2_manifest_free(&m);
    return same;
}

static void fill_report(ms_mzg2_report *r, const ms_mzg2_manifest *m, uint32_t kept) {
    *r = (ms_mzg2_report){.layers = m->identity.layers,
                          .kept_layers = kept,
                          .experts = (uint64_t)m->identity.layers * m->identity.experts};
    r->canonical_bytes = r->experts * ms_expert_bytes(m->identity.shape);
    for (uint32_t l = 0; l < m->identity.layers; l++) {
        r->payload_bytes += m->layers[l].payload_bytes;
        r->stored_bytes += m->layers[l].bytes;
    }
    memcpy(r->manifest_sha, m->sha, sizeof m->sha);
}

static ms_status build_all(build *b, const char *dir, ms_mzg2_report *report, ms_error *err) {
    MS_TRY(prepare(b, dir, err));
    if (finished_before(b)) {
        ms_mzg2_manifest m;
        MS_TRY(ms_mzg2_manifest_read(&m, b->partial, err));
        ms_mzg2_manifest_free(&b->m);
        b->m = m;
        b->kept = m.identity.layers;
    } else {
        MS_TRY(open_state(b, err));
        MS_TRY(run_jobs(b, err));
    }
    MS_TRY(only_ours(b, err));
    MS_TRY(publish(b, err));
    fill_report(report, &b->m, b->kept);
    return MS_OK;
}

ms_status ms_mzg2_build(const char *dir, const ms_mzg2_source *source, const ms_mzg2_job_options *o,
                        ms_mzg2_report *report, ms_error *err) {
    ms_error local = {0};
    build *b = calloc(1, sizeof *b);
    if (!b) return ms_fail_memory(err, "a build", sizeof *b);
    b->source = source;
    b->options = o;
    b->state_fd = -1;
    (void)pthread_mutex_init(&b->state_lock, NULL);
    ms_status st = build_all(b, dir, report, err ? err : &local);
    if (b->state_fd >= 0) (void)close(b->state_fd);
    if (st != MS_OK && b->partial[0]) (void)rmdir(b->partial); /* goes only if nothing came into it */
    for (unsigned i = 0; b->workers && i < b->jobs; i++) mzg2_worker_free(&b->workers[i]);
    free(b->workers);
    free(b->layer_done);
    free(b->shard_done);
    free(b->shard_paths);
    ms_mzg2_manifest_free(&b->m);
    (void)pthread_mutex_destroy(&b->state_lock);
    free(b);
    return st;
}

ms_status ms_mzg2_build_layer(const char *path, const ms_mzg2_source *source, uint32_t moe_layer,
                              const ms_mzg2_job_options *o, ms_mzg2_layer_record *record, ms_error *err) {
    ms_mzg2_parameters p = {
        .tables = o->tables ? o->tables : MS_MZG2_FIT_TABLES, .column_classes = MS_MZG2_CLASSES, .sample = SAMPLE};
    mzg2_worker w;
    mzg2_outcome outcome;
    struct stat st;
    ms_error local = {0};
    if (!err) err = &local;
    if (lstat(path, &st) == 0)
        return ms_fail(err, MS_ERR_USAGE, "%s: expected a new file, found an existing one", path);
    MS_TRY(mzg2_worker_init(&w, source->shape, err));
    mzg2_outcome_init(&outcome, o, (uint64_t)source->experts->expert_count * source->experts->expert_bytes);
    ms_status status = mzg2_write_layer(&w, source, moe_layer, &p, path, NULL, false, &outcome, record, err);
    mzg2_outcome_fini(&outcome);
    mzg2_worker_free(&w);
    return status;
}
