/* bench_shape_stream.c: the part of `moonshine bench shape` in which experts come from the disk.
 *
 * One or two routed layers have their experts on disk, and all layers read them: what is read is real, only the same
 * places serve many layers.  Decoding: a router's bias says which experts a layer takes, so that the rate of hits is
 * chosen: hits are a few experts that stay in their slots, misses go round through all others.  Ranges: rows choose
 * freely, which takes nearly every expert of a layer, and the slots are chosen.
 *
 * Owns: nothing that lasts.  Threads: the calling thread.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench_probe.h"
#include "bench_shape.h"
#include "io/reader.h"

enum { PROBE_EXPERTS = 48, MAX_PROBES = 64, APART = 7 };

/* ------------------------------------------------------------------ experts on disk */

/* Random codes with scale bytes around 2^-6: a window of random bytes that begins elsewhere for every expert. */
static void make_expert(uint8_t *to, size_t bytes, const uint8_t *random, uint32_t number) {
    size_t matrix = bytes / 3, packed = matrix / 17 * 16;
    memcpy(to, random + (size_t)number * 4099 % bytes, bytes);
    for (size_t m = 0; m < 3; m++)
        for (size_t i = packed; i < matrix; i++) to[m * matrix + i] = (uint8_t)(119 + to[m * matrix + i] % 4);
}

static ms_status write_all(int fd, const uint8_t *data, size_t bytes, uint64_t offset, const char *path,
                           ms_error *err) {
    while (bytes) {
        ssize_t n = pwrite(fd, data, bytes, (off_t)offset);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return ms_fail_errno(err, MS_ERR_IO, n ? errno : ENOSPC, "%s: write of an expert", path);
        data += n;
        offset += (uint64_t)n;
        bytes -= (size_t)n;
    }
    return MS_OK;
}

static ms_status write_layer(shape_run *r, uint32_t layer, const uint8_t *random, uint8_t *expert, ms_error *err) {
    const ms_expert_table *t = &r->model.experts;
    const ms_expert_extent *x = &t->extents[(size_t)layer * t->expert_count];
    const char *path = ms_checkpoint_shard_path(r->model.checkpoint, x->shard);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return ms_fail_errno(err, MS_ERR_IO, errno, "%s: cannot open", path);
    ms_status st = MS_OK;
    for (uint32_t e = 0; e < t->expert_count && st == MS_OK; e++) {
        make_expert(expert, (size_t)t->expert_bytes, random, layer * t->expert_count + e);
        st = write_all(fd, expert, (size_t)t->expert_bytes, x[e].offset, path, err);
        if (st == MS_OK) st = shape_interrupted(err);
    }
    if (fdatasync(fd) != 0 && st == MS_OK) st = ms_fail_errno(err, MS_ERR_IO, errno, "%s: write", path);
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    (void)close(fd);
    return st;
}

ms_status shape_real_layers(shape_run *r, ms_error *err) {
    const ms_expert_table *t = &r->model.experts;
    size_t bytes = (size_t)t->expert_bytes;
    uint8_t *random = malloc(3 * bytes);
    if (!random) return ms_fail_memory(err, "random experts", 3 * bytes);
    uint64_t state = 7, start = ms_clock_ns();
    for (size_t i = 0; i + 8 <= 2 * bytes; i += 8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        memcpy(random + i, &state, 8);
    }
    ms_status st = MS_OK;
    uint32_t real = r->f->real_layers < t->layer_count ? r->f->real_layers : t->layer_count;
    for (uint32_t l = 0; l < real && st == MS_OK; l++) st = write_layer(r, l, random, random + 2 * bytes, err);
    free(random);
    if (st != MS_OK) return st;
    for (size_t l = real; l < t->layer_count; l++)
        memcpy(&t->extents[l * t->expert_count], &t->extents[l % real * t->expert_count],
               t->expert_count * sizeof *t->extents);
    fprintf(stderr, SHAPE_PROGRAM ": experts of %u layers written, %.1f GB in %.1f s\n", real,
            1e-9 * (double)real * t->expert_count * (double)bytes, shape_seconds(start));
    return MS_OK;
}

/* ------------------------------------------------------------------ rate of the disk */

/* The reader alone, with as many reads in flight as the service has, between the passes. */
typedef struct disk_probe {
    void *staging;
    ms_reader *reader;
    unsigned *files; /* [shards] */
    uint32_t together, count;
    /* Bytes a second: scattered experts without a pause, and neighbours, `together` at a time. */
    double rate[MAX_PROBES], asked[MAX_PROBES];
} disk_probe;

/* `together` experts are asked for at a time; the next when all of them are there.  They lie `step` apart. */
static ms_status read_experts(shape_run *r, ms_reader *reader, const unsigned *files, uint32_t from, uint32_t step,
                              uint32_t together, double *rate, ms_error *err) {
    const ms_expert_table *t = &r->model.experts;
    uint32_t count = t->expert_count < PROBE_EXPERTS ? t->expert_count : PROBE_EXPERTS, real = r->f->real_layers;
    uint64_t start = ms_clock_ns();
    for (uint32_t i = 0, n; i < count; i += n) {
        ms_read_request requests[PROBE_EXPERTS];
        n = count - i < together ? count - i : together;
        for (uint32_t j = 0; j < n; j++) {
            const ms_expert_extent *x = &t->extents[(from + (size_t)(i + j) * step) % ((size_t)real * t->expert_count)];
            requests[j] = (ms_read_request){.file = files[x->shard], .offset = x->offset, .length = t->expert_bytes};
        }
        MS_TRY(ms_reader_submit(reader, requests, n, err));
        for (uint32_t j = 0; j < n; j++) {
            ms_read_done done;
            MS_TRY(ms_reader_next(reader, &done, err));
            ms_reader_release(reader, done.buffer);
            if (done.status == MS_OK) continue;
            if (err) *err = done.error;
            return done.status;
        }
    }
    *rate = (double)count * (double)t->expert_bytes / shape_seconds(start);
    return MS_OK;
}

static size_t probe_bytes(const shape_run *r) {
    return SHAPE_STAGING * ms_reader_buffer_bytes((size_t)r->model.experts.expert_bytes);
}

static void probe_close(shape_run *r, disk_probe *p) {
    ms_reader_destroy(p->reader);
    free(p->files);
    if (p->staging) r->be->release(r->be, MS_MEM_STAGING, p->staging, probe_bytes(r));
}

static ms_status probe_open(shape_run *r, disk_probe *p, ms_error *err) {
    const ms_expert_table *t = &r->model.experts;
    size_t shards = ms_checkpoint_shard_count(r->model.checkpoint);
    MS_TRY(r->be->alloc(r->be, MS_MEM_STAGING, probe_bytes(r), "probe buffers", &p->staging, err));
    ms_reader_options o = {.depth = SHAPE_STAGING,
                           .staging = p->staging,
                           .buffer_count = SHAPE_STAGING,
                           .buffer_bytes = probe_bytes(r) / SHAPE_STAGING};
    p->files = calloc(shards, sizeof *p->files);
    if (!p->files) return ms_fail_memory(err, "files", shards * sizeof *p->files);
    MS_TRY(ms_reader_create(&p->reader, &o, err));
    for (uint32_t l = 0; l < r->f->real_layers && l < t->layer_count; l++) {
        uint16_t shard = t->extents[(size_t)l * t->expert_count].shard;
        MS_TRY(
            ms_reader_add_file(p->reader, ms_checkpoint_shard_path(r->model.checkpoint, shard), &p->files[shard], err));
    }
    return MS_OK;
}

static ms_status probe(shape_run *r, disk_probe *p, ms_error *err) {
    uint32_t i = p->count;
    if (i == MAX_PROBES) return MS_OK;
    MS_TRY(read_experts(r, p->reader, p->files, i * 211, APART, PROBE_EXPERTS, &p->rate[i], err));
    MS_TRY(read_experts(r, p->reader, p->files, i * 211 + 97, 1, p->together, &p->asked[i], err));
    p->count++;
    return shape_interrupted(err);
}

/* ------------------------------------------------------------------ chosen routes */

enum { RIGHT_BIAS = 1000, SETTLE = 2 }; /* passes before those that count */

static uint32_t draw(uint64_t *state, uint32_t below) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*state >> 33) % below);
}

/* What is guessed for a layer that takes the experts with a bias in `route`: each of them, or by chance one of the
 * others in its place. */
static void guess_route(const shape_run *r, const float *route, float *guess, uint64_t *random) {
    uint32_t experts = r->model.info.experts;
    memset(guess, 0, experts * sizeof *guess);
    for (uint32_t e = 0; e < experts; e++) {
        uint32_t id = e;
        if (route[e] == 0) continue;
        if (draw(random, 100) >= r->f->guess) do
                id = draw(random, experts);
            while (route[id] != 0 || guess[id] != 0);
        guess[id] = RIGHT_BIAS;
    }
}

/* Where the choice of routes is.  next[l]: where layer l goes on among the experts that are not kept. */
typedef struct route_walk {
    uint32_t *next;
    uint64_t random;
} route_walk;

/* What every layer takes in the next pass, and what is guessed of it. */
static void choose_routes(shape_run *r, uint32_t hits, route_walk *w) {
    const ms_lane_info *info = &r->model.info;
    uint32_t k = info->top_k, others = info->experts - k;
    double misses = k * (100.0 - hits) / 100.0;
    for (uint32_t l = 0; l < info->moe_layer_count; l++) {
        float *route = r->routes + (size_t)l * info->experts, *guess = r->guesses + (size_t)l * info->experts;
        uint32_t miss = (uint32_t)(misses * (l + 1)) - (uint32_t)(misses * l);
        memset(route, 0, info->experts * sizeof *route);
        for (uint32_t i = 0; i < k - miss; i++) route[i] = RIGHT_BIAS;
        for (uint32_t i = 0; i < miss; i++) route[k + w->next[l]++ % others] = RIGHT_BIAS;
        guess_route(r, route, guess, &w->random);
        /* the layer before a routed one lets it know its route, when it has been guessed */
        shape_set_bias(r, l, r->model.experts.layers[l] ? guess : route);
    }
}

/* Layers begin at different places, as they share what is on disk. */
static ms_status routes_create(shape_run *r, route_walk *w, ms_error *err) {
    const ms_lane_info *info = &r->model.info;
    size_t n = (size_t)info->moe_layer_count * info->experts;
    *w = (route_walk){.next = calloc(info->moe_layer_count, sizeof *w->next), .random = 11};
    r->routes = calloc(n, sizeof *r->routes);
    r->guesses = calloc(n, sizeof *r->guesses);
    if (!w->next || !r->routes || !r->guesses) return ms_fail_memory(err, "routes", 2 * n * sizeof *r->routes);
    for (uint32_t l = 0; l < info->moe_layer_count; l++) w->next[l] = l * 211;
    return MS_OK;
}

static void routes_destroy(shape_run *r, route_walk *w) {
    free(w->next);
    free(r->routes);
    free(r->guesses);
    r->routes = r->guesses = NULL;
}

/* ------------------------------------------------------------------ passes */

typedef struct figures {
    double compute, wall, busy;       /* seconds of a pass; with reads under way */
    double hits, misses;              /* part; experts of a pass */
    double read_bytes, guessed, used; /* of a pass; guessed reads, those that were wanted */
    disk_probe disk;
} figures;

/* Passes whose times count, with what they read. */
static ms_status streamed(shape_run *r, uint32_t hits, route_walk *w, figures *f, ms_error *err) {
    ms_engine_stats before, after;
    ms_expert_service_stats(r->experts, &before);
    f->disk.count = 0;
    f->wall = 0;
    MS_TRY(probe(r, &f->disk, err));
    for (uint32_t i = 0; i < r->f->tokens; i++) {
        if (w) choose_routes(r, hits, w);
        MS_TRY(r->be->sync(r->be, err));
        uint64_t start = ms_clock_ns();
        MS_TRY(shape_pass(r, err));
        f->wall += shape_seconds(start) / r->f->tokens;
        MS_TRY(probe(r, &f->disk, err));
    }
    ms_expert_service_stats(r->experts, &after);
    uint64_t accesses = after.expert_accesses - before.expert_accesses;
    f->hits = accesses ? (double)(after.expert_hits - before.expert_hits) / (double)accesses : 0;
    f->read_bytes = (double)(after.expert_read_bytes - before.expert_read_bytes) / r->f->tokens;
    f->misses = (double)accesses * (1 - f->hits) / r->f->tokens;
    f->busy = (double)(after.read_busy_ns - before.read_busy_ns) / 1e9 / r->f->tokens;
    f->guessed = (double)(after.guessed_reads - before.guessed_reads) / r->f->tokens;
    f->used = (double)(after.guesses_used - before.guesses_used) / r->f->tokens;
    return MS_OK;
}

static void print_figures(const shape_run *r, figures *f) {
    ms_reader_stats stats;
    ms_reader_get_stats(f->disk.reader, &stats);
    double rate = ms_probe_median(f->disk.rate, f->disk.count), asked = ms_probe_median(f->disk.asked, f->disk.count);
    double best = f->disk.rate[f->disk.count - 1]; /* sorted now */
    double needed = f->misses * (double)r->model.experts.expert_bytes, disk = needed / rate;
    double larger = disk > f->compute ? disk : f->compute;
    printf("  experts     the files of %u routed layers serve all %u layers; %s reads\n", r->f->real_layers,
           r->model.info.moe_layer_count, stats.direct ? "direct" : "buffered");
    printf("  disk        %.3f GB/s by the reader alone, %u at a time, median of %u between the passes (best %.3f; %u "
           "neighbours at a time with waits between %.3f)\n",
           rate / 1e9, SHAPE_STAGING, f->disk.count, best / 1e9, f->disk.together, asked / 1e9);
    printf("  misses      %.3f GB a pass: %.2f ms of the disk; %.3f GB read\n", needed / 1e9, 1e3 * disk,
           f->read_bytes / 1e9);
    if (r->f->rows == 1 && r->f->guess)
        printf("  guesses     each right with a chance of %u %%; %.0f reads a pass, %.1f %% of them wanted\n",
               r->f->guess, f->guessed, f->guessed > 0 ? 100 * f->used / f->guessed : 0);
    else if (r->f->guess)
        printf("  guesses     all experts of the next layer; %.0f reads a pass, %.1f %% of them wanted\n", f->guessed,
               f->guessed > 0 ? 100 * f->used / f->guessed : 0);
    printf("  compute     %.2f ms a pass of %u rows with every expert in its slot\n", 1e3 * f->compute, r->f->rows);
    printf("  streaming   %.2f ms a pass, %u passes, %.1f %% hits, %u slots a layer; %.2f rows/s\n", 1e3 * f->wall,
           r->f->tokens, 100 * f->hits, r->slots, r->f->rows / f->wall);
    printf("  idle        %.2f ms a layer without a read under way\n",
           1e3 * (f->wall - f->busy) / r->model.info.moe_layer_count);
    printf("  overlap     %.1f %%: max(disk of the misses, compute) of streaming\n", 100 * larger / f->wall);
}

static ms_status decode_at(shape_run *r, uint32_t hits, route_walk *w, figures *f, ms_error *err) {
    double misses = r->model.info.top_k * (100.0 - hits) / 100.0;
    f->disk.together = misses < 1 ? 1 : (uint32_t)(misses + 0.5);
    for (uint32_t i = 0; i < SETTLE; i++) {
        choose_routes(r, hits, w);
        MS_TRY(shape_pass(r, err));
    }
    MS_TRY(streamed(r, hits, w, f, err));
    print_figures(r, f);
    return MS_OK;
}

static ms_status decode(shape_run *r, figures *f, ms_error *err) {
    route_walk w;
    double unused;
    ms_status st = routes_create(r, &w, err);
    if (st == MS_OK) choose_routes(r, 100, &w);
    if (st == MS_OK) st = shape_passes(r, 1, &unused, err); /* reads what is kept */
    float *routes = r->routes;
    r->routes = NULL; /* they stay as they are */
    if (st == MS_OK) st = shape_passes(r, 1, &unused, err);
    if (st == MS_OK) st = shape_passes(r, r->f->tokens, &f->compute, err);
    if (st == MS_OK && r->f->phases) st = shape_phases(r, err);
    r->routes = routes;
    for (uint32_t i = 0; i < r->f->hit_rate_count && st == MS_OK; i++)
        st = decode_at(r, r->f->hit_rates[i], &w, f, err);
    routes_destroy(r, &w);
    return st;
}

static ms_status range_at(shape_run *r, uint32_t hits, figures *f, ms_error *err) {
    double unused;
    r->slots = (uint32_t)((uint64_t)r->model.info.experts * hits / 100);
    f->disk.together = PROBE_EXPERTS;
    MS_TRY(shape_new_experts(r, false, err));
    MS_TRY(shape_passes(r, 1, &unused, err));
    MS_TRY(streamed(r, hits, NULL, f, err));
    print_figures(r, f);
    return MS_OK;
}

static ms_status range(shape_run *r, figures *f, ms_error *err) {
    double unused;
    MS_TRY(shape_passes(r, 2, &unused, err)); /* reads nearly every expert */
    MS_TRY(shape_passes(r, r->f->tokens, &f->compute, err));
    if (r->f->phases) MS_TRY(shape_phases(r, err));
    for (uint32_t i = 0; i < r->f->hit_rate_count; i++) MS_TRY(range_at(r, r->f->hit_rates[i], f, err));
    return MS_OK;
}

ms_status shape_stream(shape_run *r, ms_error *err) {
    figures f = {0};
    ms_status st = probe_open(r, &f.disk, err);
    if (st == MS_OK) st = r->f->rows == 1 ? decode(r, &f, err) : range(r, &f, err);
    probe_close(r, &f.disk);
    return st;
}
