#include "session/store_choice.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/pool.h"
#include "io/file.h"
#include "io/reader.h"
#include "store/bundle.h"
#include "store/mzg2_parallel.h"

enum { PATH_BYTES = 4096, MAX_READS = 32, READ_DEPTH = 8 };
#define READ_NS   500000000ull /* enough reads for that long */
#define DECODE_NS 100000000ull
static const char auto_word[] = "auto";

static ms_mzg2_source source_of(const ms_model *m) {
    return ms_mzg2_source_of(m->checkpoint, &m->experts, m->info.expert_shape, m->lane->name);
}

/* ------------------------------------------------------------------ measuring */

static ms_status read_raw(double *rate, const ms_model *m, ms_reader *r, ms_error *err) {
    const ms_expert_table *t = &m->experts;
    size_t all = (size_t)t->layer_count * t->expert_count, shards = ms_checkpoint_shard_count(m->checkpoint);
    unsigned *files = malloc((shards + 1) * sizeof *files);
    if (!files) return ms_fail_memory(err, "files", shards * sizeof *files);
    for (size_t i = 0; i < shards; i++) files[i] = UINT32_MAX;
    ms_status st = MS_OK;
    uint64_t begin = ms_clock_ns(), bytes = 0;
    /* READ_DEPTH at a time, spread over the model */
    for (size_t i = 0; st == MS_OK && i < MAX_READS && (i < READ_DEPTH || ms_clock_ns() - begin < READ_NS);
         i += READ_DEPTH) {
        ms_read_request q[READ_DEPTH];
        for (size_t k = 0; st == MS_OK && k < READ_DEPTH; k++) {
            const ms_expert_extent *x = &t->extents[(i + k) * all / MAX_READS];
            if (files[x->shard] == UINT32_MAX)
                st = ms_reader_add_file(r, ms_checkpoint_shard_path(m->checkpoint, x->shard), &files[x->shard], err);
            q[k] = (ms_read_request){.file = files[x->shard], .offset = x->offset, .length = x->bytes, .tag = k};
        }
        if (st == MS_OK) st = ms_reader_submit(r, q, READ_DEPTH, err);
        for (size_t k = 0; st == MS_OK && k < READ_DEPTH; k++) {
            ms_read_done done;
            st = ms_reader_next(r, &done, err);
            if (st != MS_OK) break;
            ms_reader_release(r, done.buffer);
            bytes += done.length;
            st = done.status;
            if (st != MS_OK && err) *err = done.error;
        }
    }
    free(files);
    *rate = (double)bytes * 1e9 / (double)(ms_clock_ns() - begin + 1);
    return st;
}

static ms_status measure_read(double *rate, const ms_model *m, const ms_engine_options *o, ms_error *err) {
    size_t bytes = ms_reader_buffer_bytes((size_t)m->experts.read_bytes);
    ms_reader_options ro = {.depth = READ_DEPTH,
                            .staging = aligned_alloc(MS_READER_ALIGN, READ_DEPTH * bytes),
                            .buffer_count = READ_DEPTH,
                            .buffer_bytes = bytes,
                            .buffered = o->buffered_reads,
                            .no_uring = o->no_uring,
                            .bytes_per_second = o->read_limit};
    if (!ro.staging) return ms_fail_memory(err, "read buffers", READ_DEPTH * bytes);
    memset(ro.staging, 0, READ_DEPTH * bytes); /* page faults are not the drive's */
    ms_reader *r = NULL;
    ms_status st = ms_reader_create(&r, &ro, err);
    if (st == MS_OK) st = read_raw(rate, m, r, err);
    ms_reader_destroy(r);
    free(ro.staging);
    return st;
}

static ms_status read_block(uint8_t *out, const ms_mzg2_store *store, const ms_mzg2_entry *e, ms_error *err) {
    const char *path = ms_mzg2_store_path(store, 0);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return ms_fail(err, MS_ERR_IO, "%s: cannot be opened", path);
    ms_status st = ms_file_pread_exact(fd, path, out, e->stored_bytes, e->offset, err);
    (void)close(fd);
    return st;
}

static ms_status measure_decode(double *rate, const ms_mzg2_store *store, const ms_engine_options *o, ms_error *err) {
    const ms_mzg2_layer *layer = ms_mzg2_store_layer(store, 0);
    const ms_mzg2_entry *e = &layer->index[0];
    size_t n = ms_expert_bytes(layer->shape);
    uint8_t *data = malloc(e->stored_bytes), *slot = malloc(n);
    ms_mzg2_tables *tables = calloc(1, sizeof *tables);
    ms_mzg2_block b;
    ms_pool *pool = NULL;
    ms_status st = data && slot && tables ? MS_OK : ms_fail_memory(err, "an expert", 2 * n);
    if (st == MS_OK) st = read_block(data, store, e, err);
    if (st == MS_OK) st = ms_mzg2_block_open(&b, data, e->stored_bytes, 0, layer->shape, err);
    if (st == MS_OK) st = ms_pool_create(&pool, o->threads, err);
    if (st == MS_OK) ms_mzg2_tables_expand(tables, layer);
    uint64_t begin = ms_clock_ns(), now = begin, rounds = 0;
    for (; st == MS_OK && (rounds < 2 || now - begin < DECODE_NS); rounds++) {
        if (rounds == 1) begin = ms_clock_ns(); /* the first one touches memory and wakes the workers */
        ms_mzg2_parallel p;
        size_t tasks = ms_mzg2_parallel_begin(&p, slot, &b, tables);
        ms_pool_run(pool, ms_mzg2_parallel_task, &p, tasks);
        st = ms_mzg2_parallel_end(&p, err);
        now = ms_clock_ns();
    }
    *rate = rounds > 1 ? (double)(rounds - 1) * (double)n * 1e9 / (double)(now - begin + 1) : 0;
    ms_pool_destroy(pool);
    free(data);
    free(slot);
    free(tables);
    return st;
}

ms_status ms_store_race_run(ms_store_race *out, const ms_model *m, const ms_mzg2_store *store,
                            const ms_engine_options *o, ms_error *err) {
    MS_TRY(measure_read(&out->read_rate, m, o, err));
    return measure_decode(&out->decode_rate, store, o, err);
}

/* ------------------------------------------------------------------ choosing */

static bool holds_store(const char *dir) {
    char path[PATH_BYTES];
    struct stat st;
    int n = snprintf(path, sizeof path, "%s/manifest.json", dir);
    return n > 0 && (size_t)n < sizeof path && stat(path, &st) == 0;
}

/* The store that "auto" looks at: the given one, mzg2/ in the model's folder, or the folder NAME.mzg2 beside it. */
static bool find_store(char out[PATH_BYTES], const ms_engine_options *o) {
    const char *model = o->model;
    size_t n = strlen(model);
    while (n > 1 && model[n - 1] == '/') n--;
    if (o->auto_store) {
        (void)snprintf(out, PATH_BYTES, "%s", o->auto_store);
        return true;
    }
    (void)snprintf(out, PATH_BYTES, "%.*s/%s", (int)(n < PATH_BYTES / 2 ? n : PATH_BYTES / 2), model,
                   ms_bundle_store_name);
    if (holds_store(out)) return true;
    (void)snprintf(out, PATH_BYTES, "%.*s.%s", (int)(n < PATH_BYTES / 2 ? n : PATH_BYTES / 2), model,
                   ms_bundle_store_name);
    return holds_store(out);
}

static void say(const ms_engine_options *o, const char *text) {
    if (o->log) o->log(o->log_arg, text);
}

static ms_status choose(ms_model *m, const ms_engine_options *o, ms_error *err) {
    char dir[PATH_BYTES], line[PATH_BYTES + 256];
    ms_store_race race;
    ms_mzg2_source source = source_of(m);
    if (!find_store(dir, o)) {
        say(o, "store auto: there is none: raw experts");
        return MS_OK;
    }
    MS_TRY(ms_mzg2_store_open(&m->store, dir, &source, NULL, err));
    MS_TRY(ms_store_race_run(&race, m, m->store, o, err));
    bool faster = race.decode_rate > race.read_rate;
    (void)snprintf(line, sizeof line, "store auto: reads %.2f GB/s, decodes %.2f GB/s, %.1f %% saved: %s",
                   race.read_rate / 1e9, race.decode_rate / 1e9, 100 * ms_mzg2_store_saving(m->store),
                   faster ? dir : "raw experts");
    say(o, line);
    if (faster) {
        ms_mzg2_store_bind(m->store, &m->experts);
    } else {
        ms_mzg2_store_close(m->store);
        m->store = NULL;
    }
    return MS_OK;
}

static ms_status select_store(ms_model *m, const ms_engine_options *o, ms_error *err) {
    const char *word = o->store;
    if (ms_checkpoint_bundle(m->checkpoint)) {
        if (!word || !strcmp(word, auto_word) || !strcmp(word, "off")) return MS_OK;
        return ms_fail(err, MS_ERR_USAGE, "store %s: %s is a bundle, which has its own experts", word, o->model);
    }
    if (!word || !*word || !strcmp(word, "raw") || !strcmp(word, "off")) return MS_OK;
    if (!strcmp(word, auto_word)) return choose(m, o, err);
    ms_mzg2_source source = source_of(m);
    MS_TRY(ms_mzg2_store_open(&m->store, word, &source, NULL, err));
    ms_mzg2_store_bind(m->store, &m->experts);
    return MS_OK;
}

ms_status ms_model_open_for(ms_model *out, const ms_engine_options *options, ms_error *err) {
    MS_TRY(ms_model_open(out, options->model, err));
    ms_status st = select_store(out, options, err);
    if (st != MS_OK) ms_model_close(out);
    return st;
}
