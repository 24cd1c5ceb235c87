/* synth.c: writes a synthetic checkpoint: checks, directory, shards, index, config.
 *
 * Every shard is a function from offset to bytes (synth_shard.c); workers fill and write chunks of it past the
 * page cache where the file system allows that, so generating and writing overlap and the cache is not flooded.
 *
 * Owns: the files it creates.  Threads: one pool a call.
 * Invariants: nothing is created before numbers, directory and free space have been checked; config.json comes last.
 * Errors: the first one; everything created is removed again.
 */
#include "lane/synth.h"

#include "base/bytes.h"
#include "base/pool.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum {
    BLOCK = 4096,       /* alignment of direct writes */
    CHUNK = 4 << 20,    /* bytes a write; a multiple of BLOCK and of 8 */
    CHUNKS_A_ROUND = 16 /* a worker, between two progress calls */
};

static const char index_name[] = "model.safetensors.index.json";
static const char config_name[] = "config.json";

/* Names of all tensors with their shards, for the index. */
typedef struct index_entry {
    const char *name;
    size_t at; /* in the name pool while it grows */
    uint32_t shard;
} index_entry;

typedef struct writer {
    const char *dir;
    ms_synth_model model;
    const ms_synth_options *opt;
    int folder;
    bool made_folder;
    uint32_t shards, shards_made;
    bool made_index, made_config;
    char (*files)[64]; /* [shards]: names, for the index and for removal */
    ms_pool *pool;
    uint8_t *buffers; /* one chunk a worker */
    ms_synth_report report;
    uint64_t done_bytes;
    ms_text names;
    index_entry *entries;
    size_t entry_count;
} writer;

/* ------------------------------------------------------------------ numbers and sizes */

void ms_synth_put_float(ms_text *t, float f) {
    double v = (double)f;
    for (int digits = 1; digits <= 9; digits++) {
        char s[40];
        (void)snprintf(s, sizeof s, "%.*g", digits, (double)f);
        double shorter = strtod(s, NULL);
        if (ms_f32_bits((float)shorter) == ms_f32_bits(f)) {
            v = shorter;
            break;
        }
    }
    ms_json_write_double(t, v);
}

/* The numbers must survive the trip through the config.json that is about to be written. */
static ms_status check_config(const ms_synth_model *m, ms_error *err) {
    ms_text text = {0};
    m->config_text(&text, m);
    if (text.failed) {
        ms_text_free(&text);
        return ms_fail_memory(err, "a config", text.cap);
    }
    ms_json_doc *doc = NULL;
    ms_status status = ms_json_parse(&doc, text.data, text.len, "the model's numbers", NULL, err);
    if (status == MS_OK) status = m->check(m, ms_json_root(doc), err);
    ms_json_free(doc);
    ms_text_free(&text);
    return status;
}

static ms_status add_names(writer *w, const ms_synth_plan *p, uint32_t shard, ms_error *err) {
    index_entry *grown = realloc(w->entries, (w->entry_count + p->count) * sizeof *grown);
    if (!grown) return ms_fail_memory(err, "the index", (w->entry_count + p->count) * sizeof *grown);
    w->entries = grown;
    for (size_t i = 0; i < p->count; i++) {
        w->entries[w->entry_count++] = (index_entry){.at = w->names.len, .shard = shard};
        ms_text_append(&w->names, p->tensors[i].name, strlen(p->tensors[i].name) + 1);
    }
    return w->names.failed ? ms_fail_memory(err, "tensor names", w->names.cap) : MS_OK;
}

/* First pass over all shards: sizes, and the names for the index. */
static ms_status measure(writer *w, bool keep_names, ms_error *err) {
    w->shards = w->model.shards(&w->model);
    w->report = (ms_synth_report){.shards = w->shards};
    free(w->files);
    w->files = calloc(w->shards ? w->shards : 1, sizeof *w->files);
    if (!w->files) return ms_fail_memory(err, "shard names", w->shards * sizeof *w->files);
    for (uint32_t i = 0; i < w->shards; i++) {
        ms_synth_plan p = {0};
        MS_TRY(ms_synth_plan_shard(&p, &w->model, i, err));
        memcpy(w->files[i], p.file, sizeof p.file);
        w->report.tensors += p.count;
        w->report.payload_bytes += p.payload_bytes;
        w->report.shard_bytes += ms_synth_plan_bytes(&p);
        ms_status status = keep_names ? add_names(w, &p, i, err) : MS_OK;
        ms_synth_plan_free(&p);
        MS_TRY(status);
        if (w->report.shard_bytes > (uint64_t)1 << 60)
            return ms_fail(err, MS_ERR_FORMAT, "the model's numbers: expected less than 2^60 bytes in all");
    }
    return MS_OK;
}

ms_status ms_synth_measure(const ms_synth_model *m, const ms_synth_options *opt, ms_synth_report *out, ms_error *err) {
    writer w = {.model = *m, .opt = opt, .folder = -1};
    w.model.vision = opt->vision;
    w.model.gaussian = opt->gaussian;
    ms_status status = check_config(&w.model, err);
    if (status == MS_OK) status = measure(&w, false, err);
    if (status == MS_OK) *out = w.report;
    free(w.files);
    return status;
}

/* ------------------------------------------------------------------ directory */

static ms_status check_empty(const writer *w, ms_error *err) {
    int copy = openat(w->folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = copy < 0 ? NULL : fdopendir(copy);
    if (!d) {
        int saved = errno;
        if (copy >= 0) (void)close(copy);
        return ms_fail_errno(err, MS_ERR_IO, saved, "%s", w->dir);
    }
    ms_status status = MS_OK;
    for (const struct dirent *e = readdir(d); e && status == MS_OK; e = readdir(d)) {
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            status = ms_fail(err, MS_ERR_USAGE, "%s: expected a new or empty directory, found \"%.200s\" in it", w->dir,
                             e->d_name);
    }
    (void)closedir(d);
    return status;
}

static ms_status open_folder(writer *w, ms_error *err) {
    if (mkdir(w->dir, 0755) == 0) w->made_folder = true;
    else if (errno != EEXIST) return ms_fail_errno(err, MS_ERR_IO, errno, "%s: cannot create the directory", w->dir);
    w->folder = open(w->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (w->folder < 0) return ms_fail_errno(err, errno == ENOTDIR ? MS_ERR_USAGE : MS_ERR_IO, errno, "%s", w->dir);
    return check_empty(w, err);
}

/* Headers and the index cost real space in every case; an index line repeats a header's name and adds a shard's. */
static ms_status check_space(const writer *w, ms_error *err) {
    struct statvfs fs;
    if (fstatvfs(w->folder, &fs) != 0) return ms_fail_errno(err, MS_ERR_IO, errno, "%s: free space", w->dir);
    uint64_t files = w->opt->sparse ? w->report.shard_bytes - w->report.payload_bytes : w->report.shard_bytes;
    uint64_t need = files + w->names.len + w->report.tensors * 64, room;
    if (!ms_mul_u64(fs.f_bavail, fs.f_frsize, &room)) room = UINT64_MAX;
    if (need <= room) return MS_OK;
    return ms_fail(err, MS_ERR_NO_FIT, "%s: expected %llu free bytes, found %llu", w->dir, (unsigned long long)need,
                   (unsigned long long)room);
}

static void remove_all(writer *w) {
    for (uint32_t i = 0; i < w->shards_made; i++) (void)unlinkat(w->folder, w->files[i], 0);
    if (w->made_index) (void)unlinkat(w->folder, index_name, 0);
    if (w->made_config) (void)unlinkat(w->folder, config_name, 0);
    if (w->made_folder) (void)rmdir(w->dir);
}

/* ------------------------------------------------------------------ writing */

static ms_status create_file(const writer *w, const char *name, int *fd, ms_error *err) {
    *fd = openat(w->folder, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (*fd < 0) return ms_fail_errno(err, MS_ERR_IO, errno, "%s/%s: cannot create the file", w->dir, name);
    return MS_OK;
}

/* 0, or errno. */
static int write_fully(int fd, const uint8_t *data, size_t length, uint64_t at) {
    while (length > 0) {
        ssize_t n = pwrite(fd, data, length, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno;
        if (n == 0) return EIO;
        data += n;
        at += (uint64_t)n;
        length -= (size_t)n;
    }
    return 0;
}

/* fsync and close; 0 or errno. */
static int finish_file(int fd, int error) {
    if (error == 0 && fsync(fd) != 0) error = errno;
    if (close(fd) != 0 && error == 0) error = errno;
    return error;
}

static ms_status write_text(writer *w, const char *name, const ms_text *text, bool *made, ms_error *err) {
    int fd;
    MS_TRY(create_file(w, name, &fd, err));
    *made = true;
    int error = finish_file(fd, write_fully(fd, (const uint8_t *)text->data, text->len, 0));
    return error ? ms_fail_errno(err, MS_ERR_IO, error, "%s/%s: write", w->dir, name) : MS_OK;
}

typedef struct shard_job {
    const writer *w;
    const ms_synth_plan *plan;
    uint64_t bytes;
    uint64_t first_chunk; /* of the current round */
    int fd;
    bool direct;
    atomic_int error; /* the first errno */
} shard_job;

/* One chunk: fill, write.  A direct write of the last chunk is rounded up; the file is cut to size afterwards. */
static void write_chunk(void *arg, size_t task, unsigned worker) {
    shard_job *job = arg;
    if (atomic_load(&job->error)) return;
    uint8_t *buffer = job->w->buffers + (size_t)worker * CHUNK;
    uint64_t at = (job->first_chunk + task) * CHUNK;
    size_t length = job->bytes - at < CHUNK ? (size_t)(job->bytes - at) : CHUNK;
    ms_synth_bytes(buffer, job->plan, job->w->opt->seed, at, length);
    if (job->direct && length % BLOCK != 0) {
        size_t whole = (length + BLOCK - 1) / BLOCK * BLOCK;
        memset(buffer + length, 0, whole - length);
        length = whole;
    }
    int error = write_fully(job->fd, buffer, length, at), none = 0;
    if (error) (void)atomic_compare_exchange_strong(&job->error, &none, error);
}

static ms_status report_progress(writer *w, uint64_t bytes, ms_error *err) {
    w->done_bytes += bytes;
    if (w->opt->progress && !w->opt->progress(w->opt->progress_arg, w->done_bytes, w->report.shard_bytes))
        return ms_fail(err, MS_ERR_CANCELLED, "%s: writing was cancelled after %llu of %llu bytes", w->dir,
                       (unsigned long long)w->done_bytes, (unsigned long long)w->report.shard_bytes);
    return MS_OK;
}

static bool set_direct(int fd, bool on) {
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0) return false;
    return fcntl(fd, F_SETFL, on ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

static ms_status write_payload(writer *w, shard_job *job, ms_error *err) {
    const uint64_t chunks = (job->bytes + CHUNK - 1) / CHUNK;
    const uint64_t round = (uint64_t)ms_pool_threads(w->pool) * CHUNKS_A_ROUND;
    while (job->first_chunk < chunks) {
        uint64_t n = chunks - job->first_chunk < round ? chunks - job->first_chunk : round;
        ms_pool_run(w->pool, write_chunk, job, (size_t)n);
        int error = atomic_load(&job->error);
        if (error == EINVAL && job->direct) { /* this file system takes the flag but not the writes */
            job->direct = false;
            if (!set_direct(job->fd, false))
                return ms_fail_errno(err, MS_ERR_IO, errno, "%s/%s", w->dir, job->plan->file);
            atomic_store(&job->error, 0);
            continue;
        }
        if (error) return ms_fail_errno(err, MS_ERR_IO, error, "%s/%s: write", w->dir, job->plan->file);
        uint64_t begin = job->first_chunk * CHUNK,
                 end = begin + n * CHUNK < job->bytes ? begin + n * CHUNK : job->bytes;
        job->first_chunk += n;
        MS_TRY(report_progress(w, end - begin, err));
    }
    return MS_OK;
}

static ms_status write_shard_data(writer *w, const ms_synth_plan *p, int fd, ms_error *err) {
    const uint64_t bytes = ms_synth_plan_bytes(p);
    if (w->opt->sparse) {
        int error = write_fully(fd, (const uint8_t *)p->header.data, p->header.len, 0);
        if (error) return ms_fail_errno(err, MS_ERR_IO, error, "%s/%s: write", w->dir, p->file);
    } else {
        /* Reserving the blocks keeps parallel writes from fragmenting the file and finds a full disk early. */
        int rc;
        do rc = fallocate(fd, 0, 0, (off_t)bytes);
        while (rc != 0 && errno == EINTR);
        if (rc != 0 && errno != EOPNOTSUPP && errno != ENOSYS && errno != EINVAL)
            return ms_fail_errno(err, MS_ERR_IO, errno, "%s/%s: reserving %llu bytes", w->dir, p->file,
                                 (unsigned long long)bytes);
        shard_job job = {.w = w, .plan = p, .bytes = bytes, .fd = fd, .direct = set_direct(fd, true)};
        MS_TRY(write_payload(w, &job, err));
        if (!job.direct) w->report.direct = false;
    }
    if (ftruncate(fd, (off_t)bytes) != 0)
        return ms_fail_errno(err, MS_ERR_IO, errno, "%s/%s: setting the size to %llu", w->dir, p->file,
                             (unsigned long long)bytes);
    return w->opt->sparse ? report_progress(w, bytes, err) : MS_OK;
}

static ms_status write_shard(writer *w, uint32_t number, ms_error *err) {
    ms_synth_plan p = {0};
    MS_TRY(ms_synth_plan_shard(&p, &w->model, number, err));
    int fd;
    ms_status status = create_file(w, p.file, &fd, err);
    if (status == MS_OK) {
        w->shards_made = number + 1;
        status = write_shard_data(w, &p, fd, err);
        int error = finish_file(fd, 0);
        if (error && status == MS_OK) status = ms_fail_errno(err, MS_ERR_IO, error, "%s/%s: write", w->dir, p.file);
    }
    ms_synth_plan_free(&p);
    return status;
}

static int by_entry_name(const void *a, const void *b) {
    return strcmp(((const index_entry *)a)->name, ((const index_entry *)b)->name);
}

static ms_status write_index(writer *w, ms_error *err) {
    for (size_t i = 0; i < w->entry_count; i++) w->entries[i].name = w->names.data + w->entries[i].at;
    qsort(w->entries, w->entry_count, sizeof *w->entries, by_entry_name);
    ms_text t = {0};
    ms_text_printf(&t, "{\n  \"metadata\": {\n    \"total_size\": %llu%s\n  },\n  \"weight_map\": {",
                   (unsigned long long)w->report.payload_bytes, w->model.metadata);
    for (size_t i = 0; i < w->entry_count; i++) {
        ms_text_printf(&t, "%s\n    \"%s\": \"%s\"", i ? "," : "", w->entries[i].name, w->files[w->entries[i].shard]);
    }
    ms_text_puts(&t, "\n  }\n}\n");
    ms_status status =
        t.failed ? ms_fail_memory(err, "the index", t.cap) : write_text(w, index_name, &t, &w->made_index, err);
    ms_text_free(&t);
    return status;
}

static ms_status write_config(writer *w, ms_error *err) {
    ms_text t = {0};
    w->model.config_text(&t, &w->model);
    ms_status status =
        t.failed ? ms_fail_memory(err, "a config", t.cap) : write_text(w, config_name, &t, &w->made_config, err);
    ms_text_free(&t);
    return status;
}

static ms_status prepare_workers(writer *w, ms_error *err) {
    if (w->opt->sparse) return MS_OK;
    MS_TRY(ms_pool_create(&w->pool, w->opt->threads, err));
    size_t bytes = (size_t)ms_pool_threads(w->pool) * CHUNK;
    w->buffers = aligned_alloc(BLOCK, bytes);
    if (!w->buffers) return ms_fail_memory(err, "write buffers", bytes);
    return MS_OK;
}

static ms_status write_all(writer *w, ms_error *err) {
    MS_TRY(open_folder(w, err));
    MS_TRY(check_space(w, err));
    MS_TRY(prepare_workers(w, err));
    w->report.direct = !w->opt->sparse;
    for (uint32_t i = 0; i < w->shards; i++) MS_TRY(write_shard(w, i, err));
    MS_TRY(write_index(w, err));
    MS_TRY(write_config(w, err));
    if (fsync(w->folder) != 0) return ms_fail_errno(err, MS_ERR_IO, errno, "%s", w->dir);
    return MS_OK;
}

ms_status ms_synth_write(const char *dir, const ms_synth_model *m, const ms_synth_options *opt, ms_error *err) {
    writer w = {.dir = dir, .model = *m, .opt = opt, .folder = -1};
    w.model.vision = opt->vision;
    w.model.gaussian = opt->gaussian;
    MS_TRY(check_config(&w.model, err));
    ms_status status = measure(&w, true, err);
    if (status == MS_OK) {
        status = write_all(&w, err);
        if (status != MS_OK && w.folder >= 0) remove_all(&w);
        else if (status != MS_OK && w.made_folder) (void)rmdir(dir);
    }
    if (status == MS_OK && opt->report) *opt->report = w.report;
    ms_pool_destroy(w.pool);
    free(w.buffers);
    if (w.folder >= 0) (void)close(w.folder);
    ms_text_free(&w.names);
    free(w.entries);
    free(w.files);
    return status;
}
