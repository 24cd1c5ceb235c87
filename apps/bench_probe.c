#include "bench_probe.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/memory_limit.h"
#include "base/pool.h"
#include "io/file.h"
#include "io/reader.h"

enum { MIN_READS = 8, MEMORY_PASSES = 5, MEMORY_PIECE = 1 << 20 };
static const uint64_t memory_bytes = 256ull << 20;

/* ------------------------------------------------------------------ files */

static ms_status add_file(ms_probe_files *f, const char *path, ms_error *err) {
    struct stat st;
    if (stat(path, &st) != 0) return ms_fail_errno(err, MS_ERR_IO, errno, "%s", path);
    if (!S_ISREG(st.st_mode))
        return ms_fail(err, MS_ERR_FORMAT, "%s: expected a checkpoint directory or a regular file", path);
    f->sizes[f->count] = (uint64_t)st.st_size;
    f->paths[f->count] = strdup(path);
    if (!f->paths[f->count]) return ms_fail_memory(err, "path", strlen(path) + 1);
    f->count++;
    return MS_OK;
}

static ms_status open_files(ms_probe_files *f, const char *path, ms_error *err) {
    struct stat st;
    if (stat(path, &st) != 0) return ms_fail_errno(err, MS_ERR_IO, errno, "%s", path);
    size_t n = 1;
    if (S_ISDIR(st.st_mode)) {
        MS_TRY(ms_model_open(&f->model, path, err));
        f->has_model = true;
        n = f->model.store ? f->model.experts.layer_count : ms_checkpoint_shard_count(f->model.checkpoint);
    }
    f->paths = calloc(n ? n : 1, sizeof *f->paths);
    f->sizes = calloc(n ? n : 1, sizeof *f->sizes);
    if (!f->paths || !f->sizes) return ms_fail_memory(err, "file list", n * sizeof *f->paths);
    for (size_t i = 0; i < n; i++)
        MS_TRY(add_file(f, f->model.store ? ms_mzg2_store_path(f->model.store, (uint32_t)i)
                           : f->has_model ? ms_checkpoint_shard_path(f->model.checkpoint, i)
                                          : path,
                        err));
    return MS_OK;
}

ms_status ms_probe_files_open(ms_probe_files *out, const char *path, ms_error *err) {
    *out = (ms_probe_files){0};
    ms_status st = open_files(out, path, err);
    if (st != MS_OK) ms_probe_files_close(out);
    return st;
}

void ms_probe_files_close(ms_probe_files *f) {
    for (size_t i = 0; i < f->count; i++) free(f->paths[i]);
    free(f->paths);
    free(f->sizes);
    if (f->has_model) ms_model_close(&f->model);
    *f = (ms_probe_files){0};
}

/* ------------------------------------------------------------------ disk */

static uint64_t place_count(const ms_probe_files *f, const ms_probe_point *p) {
    if (p->experts) return f->has_model ? (uint64_t)f->model.experts.layer_count * f->model.experts.expert_count : 0;
    uint64_t n = 0;
    for (size_t i = 0; i < f->count; i++) n += f->sizes[i] / p->block_bytes;
    return n;
}

bool ms_probe_disk_possible(const ms_probe_files *f, const ms_probe_point *p) { return place_count(f, p) > 0; }

static uint64_t read_length(const ms_probe_files *f, const ms_probe_point *p) {
    return p->experts ? f->model.experts.read_bytes : p->block_bytes;
}

static ms_read_request place(const ms_probe_files *f, const ms_probe_point *p, uint64_t index) {
    ms_read_request q = {.length = read_length(f, p)};
    if (p->experts) {
        const ms_expert_extent *x = &f->model.experts.extents[index];
        q.file = x->shard;
        q.offset = x->offset;
        q.length = x->bytes;
        return q;
    }
    for (size_t i = 0; i < f->count; i++) {
        uint64_t here = f->sizes[i] / p->block_bytes;
        if (index < here) {
            q.file = (unsigned)i;
            q.offset = index * p->block_bytes;
            return q;
        }
        index -= here;
    }
    return q;
}

static uint64_t common_divisor(uint64_t a, uint64_t b) {
    while (b) {
        uint64_t r = a % b;
        a = b;
        b = r;
    }
    return a;
}

/* Steps of about 0.618 of the way around, prime to it: all places are met, and far apart. */
static uint64_t step_of(uint64_t places) {
    uint64_t step = (uint64_t)((double)places * 0.6180339887);
    while (step < 1 || common_divisor(step, places) != 1) step++;
    return step;
}

static ms_status plan_reads(const ms_probe_files *f, const ms_probe_point *p, ms_read_request **out, uint64_t *count,
                            ms_error *err) {
    uint64_t places = place_count(f, p), length = read_length(f, p), n = p->bytes / length + (p->bytes % length != 0);
    if (places == 0) return ms_fail(err, MS_ERR_USAGE, "no file holds a block of %" PRIu64 " bytes", length);
    if (n < MIN_READS) n = MIN_READS;
    if (n < 2 * (uint64_t)p->depth) n = 2 * (uint64_t)p->depth;
    ms_read_request *reads = n <= SIZE_MAX / sizeof *reads ? malloc((size_t)n * sizeof *reads) : NULL;
    if (!reads) return ms_fail_memory(err, "read list", (size_t)n);
    uint64_t step = step_of(places), at = p->seed % places;
    for (uint64_t i = 0; i < n; i++) {
        reads[i] = place(f, p, at);
        at = at >= places - step ? at - (places - step) : at + step;
    }
    *out = reads;
    *count = n;
    return MS_OK;
}

static ms_status pread_all(const ms_probe_files *f, const int *fds, uint8_t *buffer, const ms_read_request *reads,
                           uint64_t count, ms_error *err) {
    for (uint64_t i = 0; i < count; i++) {
        const ms_read_request *q = &reads[i];
        uint64_t first = ms_align_down(q->offset, MS_READER_ALIGN);
        uint64_t need = q->offset - first + q->length, want = ms_align_up(need, MS_READER_ALIGN);
        for (uint64_t got = 0; got < need;) {
            ssize_t n = pread(fds[q->file], buffer + got, (size_t)(want - got), (off_t)(first + got));
            if (n < 0 && errno == EINTR) continue;
            if (n < 0) return ms_fail_errno(err, MS_ERR_IO, errno, "%s: read", f->paths[q->file]);
            if (n == 0) return ms_fail(err, MS_ERR_IO, "%s: the file became shorter", f->paths[q->file]);
            got += (uint64_t)n;
        }
    }
    return MS_OK;
}

/* The baseline: what a program does that does not think about it, but with O_DIRECT so that it reads the disk. */
static ms_status probe_pread(const ms_probe_files *f, const ms_probe_point *p, uint8_t *buffer,
                             const ms_read_request *reads, uint64_t count, ms_probe_rate *out, ms_error *err) {
    int *fds = malloc(f->count * sizeof *fds);
    if (!fds) return ms_fail_memory(err, "descriptors", f->count * sizeof *fds);
    size_t opened = 0;
    ms_status st = MS_OK;
    out->direct = !p->buffered;
    for (; opened < f->count && st == MS_OK; opened++) {
        int fd = p->buffered ? -1 : open(f->paths[opened], O_RDONLY | O_CLOEXEC | O_DIRECT);
        if (fd < 0) {
            out->direct = false;
            fd = open(f->paths[opened], O_RDONLY | O_CLOEXEC);
        }
        if (fd < 0) {
            st = ms_fail_errno(err, MS_ERR_IO, errno, "%s: open", f->paths[opened]);
            break;
        }
        fds[opened] = fd;
    }
    uint64_t start = ms_clock_ns();
    if (st == MS_OK) st = pread_all(f, fds, buffer, reads, count, err);
    uint64_t ns = ms_clock_ns() - start;
    out->bytes_per_second = (double)out->read_bytes * 1e9 / (double)(ns ? ns : 1);
    while (opened > 0) (void)close(fds[--opened]);
    free(fds);
    return st;
}

static ms_status read_all(ms_reader *r, const ms_read_request *reads, uint64_t count, ms_error *err) {
    MS_TRY(ms_reader_submit(r, reads, (size_t)count, err));
    for (uint64_t i = 0; i < count; i++) {
        ms_read_done done;
        MS_TRY(ms_reader_next(r, &done, err));
        ms_reader_release(r, done.buffer);
        if (done.status != MS_OK) {
            if (err) *err = done.error;
            return done.status;
        }
    }
    return MS_OK;
}

static ms_status probe_reader(const ms_probe_files *f, const ms_probe_point *p, uint8_t *buffers, size_t buffer_bytes,
                              const ms_read_request *reads, uint64_t count, ms_probe_rate *out, ms_error *err) {
    ms_reader_options o = {.depth = p->depth,
                           .staging = buffers,
                           .buffer_count = p->depth,
                           .buffer_bytes = buffer_bytes,
                           .buffered = p->buffered,
                           .no_uring = p->no_uring};
    ms_reader *r = NULL;
    MS_TRY(ms_reader_create(&r, &o, err));
    ms_status st = MS_OK;
    for (size_t i = 0; i < f->count && st == MS_OK; i++) {
        unsigned file;
        st = ms_reader_add_file(r, f->paths[i], &file, err);
    }
    uint64_t start = ms_clock_ns();
    if (st == MS_OK) st = read_all(r, reads, count, err);
    uint64_t ns = ms_clock_ns() - start;
    ms_reader_stats stats;
    ms_reader_get_stats(r, &stats);
    out->direct = stats.direct;
    out->uring = stats.uring;
    out->registered = stats.registered;
    out->bytes_per_second = (double)out->read_bytes * 1e9 / (double)(ns ? ns : 1);
    ms_reader_destroy(r);
    return st;
}

ms_status ms_probe_disk(const ms_probe_files *f, const ms_probe_point *p, ms_probe_rate *out, ms_error *err) {
    *out = (ms_probe_rate){0};
    ms_read_request *reads = NULL;
    MS_TRY(plan_reads(f, p, &reads, &out->reads, err));
    uint64_t length = read_length(f, p);
    out->read_bytes = out->reads * length;
    unsigned buffers = p->depth ? p->depth : 1;
    size_t each = ms_reader_buffer_bytes((size_t)length);
    uint8_t *memory = each <= SIZE_MAX / 2 / buffers ? aligned_alloc(MS_READER_ALIGN, buffers * each) : NULL;
    if (!memory) {
        free(reads);
        return ms_fail_memory(err, "read buffers", each);
    }
    memset(memory, 0, buffers * each);
    ms_status st = p->depth ? probe_reader(f, p, memory, each, reads, out->reads, out, err)
                            : probe_pread(f, p, memory, reads, out->reads, out, err);
    free(memory);
    free(reads);
    return st;
}

/* ------------------------------------------------------------------ memory */

typedef struct memory_job {
    const uint64_t *words;
    uint64_t *sums; /* [pieces]: so that no read can be left out */
} memory_job;

static void read_piece(void *arg, size_t piece, unsigned worker) {
    const memory_job *j = arg;
    const uint64_t *w = j->words + piece * (MEMORY_PIECE / sizeof *w);
    uint64_t s[8] = {0};
    (void)worker;
    for (size_t i = 0; i < MEMORY_PIECE / sizeof *w; i += 8)
        for (size_t k = 0; k < 8; k++) s[k] ^= w[i + k];
    j->sums[piece] = s[0] ^ s[1] ^ s[2] ^ s[3] ^ s[4] ^ s[5] ^ s[6] ^ s[7];
}

ms_status ms_probe_memory(unsigned threads, double *bytes_per_second, ms_error *err) {
    ms_memory_limit limit;
    MS_TRY(ms_memory_limit_read(&limit, NULL, err));
    size_t bytes = (size_t)(limit.limit_bytes / 4 < memory_bytes ? limit.limit_bytes / 4 : memory_bytes);
    size_t pieces = bytes / MEMORY_PIECE ? bytes / MEMORY_PIECE : 1;
    ms_pool *pool = NULL;
    MS_TRY(ms_pool_create(&pool, threads, err));
    uint64_t *words = aligned_alloc(MS_READER_ALIGN, pieces * MEMORY_PIECE), *sums = calloc(pieces, sizeof *sums);
    ms_status st = words && sums ? MS_OK : ms_fail_memory(err, "memory probe", pieces * MEMORY_PIECE);
    double best = 0;
    if (st == MS_OK) memset(words, 1, pieces * MEMORY_PIECE);
    for (int i = 0; i < MEMORY_PASSES && st == MS_OK; i++) {
        memory_job job = {words, sums};
        uint64_t start = ms_clock_ns();
        ms_pool_run(pool, read_piece, &job, pieces);
        uint64_t ns = ms_clock_ns() - start;
        double rate = (double)(pieces * MEMORY_PIECE) * 1e9 / (double)(ns ? ns : 1);
        if (rate > best) best = rate;
    }
    *bytes_per_second = best;
    free(words);
    free(sums);
    ms_pool_destroy(pool);
    return st;
}

/* ------------------------------------------------------------------ the rest */

static double seconds(struct timeval t) { return (double)t.tv_sec + (double)t.tv_usec / 1e6; }

double ms_probe_cpu_seconds(void) {
    struct rusage u;
    (void)getrusage(RUSAGE_SELF, &u);
    return seconds(u.ru_utime) + seconds(u.ru_stime);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double ms_probe_median(double *v, size_t count) {
    qsort(v, count, sizeof *v, by_value);
    return count % 2 ? v[count / 2] : (v[count / 2 - 1] + v[count / 2]) / 2;
}

void ms_probe_machine(ms_text *t) {
    struct utsname u;
    double load[3] = {0};
    if (uname(&u) != 0) return;
    (void)getloadavg(load, 3);
    ms_text_printf(t, "machine: %s %s %s, %d processors, load %.2f %.2f %.2f\n", u.sysname, u.release, u.machine,
                   get_nprocs(), load[0], load[1], load[2]);
}

ms_status ms_probe_save_file(const char *path, const ms_text *text, ms_error *err) {
    if (text->failed) return ms_fail_memory(err, "table", text->len);
    if (!path) return MS_OK;
    ms_file_writer *w = NULL;
    MS_TRY(ms_file_writer_open(&w, path, true, err));
    ms_status st = ms_file_writer_write(w, text->data, text->len, err);
    if (st == MS_OK) return ms_file_writer_commit(w, err);
    ms_file_writer_abort(w);
    return st;
}
