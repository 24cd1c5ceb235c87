/* bench_disk.c: `moonshine bench disk`: what the drive gives, and what the reader and the expert service get of it. */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/loader.h"
#include "base/clock.h"
#include "bench.h"
#include "bench_plot.h"
#include "bench_probe.h"
#include "command.h"
#include "io/reader.h"

enum { DEPTHS = 7, BLOCKS = 6, MAX_REPEAT = 25, INSTALL_BYTES = 64 << 20 };
static const unsigned depths[DEPTHS] = {0, 1, 2, 4, 8, 16, 32}; /* 0: pread */

typedef struct disk_flags {
    const char *csv, *plot;
    uint64_t bytes;
    uint32_t repeat, staging, threads;
    bool no_direct, no_uring;
} disk_flags;

#define FIELD(f) offsetof(disk_flags, f)
static const ms_option options[] = {
    {.name = "csv",
     .type = MS_OPTION_STRING,
     .offset = FIELD(csv),
     .arg = "FILE",
     .help = "Write the table also there."},
    {.name = "plot",
     .type = MS_OPTION_STRING,
     .offset = FIELD(plot),
     .arg = "FILE",
     .help = "Draw rates over depths there, as SVG."},
    {.name = "bytes",
     .type = MS_OPTION_BYTES,
     .offset = FIELD(bytes),
     .arg = "BYTES",
     .min = 1,
     .max = 1ull << 40,
     .help = "To read for one figure (default: 128M)."},
    {.name = "repeat",
     .type = MS_OPTION_U32,
     .offset = FIELD(repeat),
     .arg = "N",
     .min = 1,
     .max = MAX_REPEAT,
     .help = "Rounds over all figures; medians are printed (default: 3)."},
    {.name = "staging",
     .type = MS_OPTION_U32,
     .offset = FIELD(staging),
     .arg = "N",
     .min = 1,
     .max = 1024,
     .help = "Read buffers of the expert service (default: 16)."},
    {.name = "threads",
     .type = MS_OPTION_U32,
     .offset = FIELD(threads),
     .arg = "N",
     .max = 256,
     .help = "Threads that put experts into their slots (default: all processors)."},
    {.name = "no-direct", .type = MS_OPTION_FLAG, .offset = FIELD(no_direct), .help = "Read through the page cache."},
    {.name = "no-uring", .type = MS_OPTION_FLAG, .offset = FIELD(no_uring), .help = "Read with pread."},
};

/* Rates of one figure over the rounds, bytes a second. */
typedef struct figure {
    double rate[MAX_REPEAT];
    uint64_t read_bytes; /* of a round */
    bool direct, uring;
} figure;

/* The expert service without compute. */
typedef struct streaming {
    figure figure;
    double share[MAX_REPEAT]; /* of what the reader alone gives at the same depth, measured just before */
    double wait[MAX_REPEAT];  /* part of the time in which it waited for a read */
} streaming;

typedef struct disk_run {
    const disk_flags *flags;
    ms_probe_files files;
    uint64_t blocks[BLOCKS];
    size_t block_count, expert_block; /* expert_block == block_count: a file without experts */
    figure sweep[BLOCKS][DEPTHS];
    streaming layer, top_k;
    figure install;
    ms_backend *backend;
    ms_expert_service *service;
} disk_run;

static ms_probe_point point(const disk_run *r, size_t block, unsigned depth, uint32_t round) {
    return (ms_probe_point){.block_bytes = r->blocks[block],
                            .experts = block == r->expert_block,
                            .depth = depth,
                            .bytes = r->flags->bytes,
                            .seed = (uint64_t)round * 7919 + depth * 131 + block * 17,
                            .buffered = r->flags->no_direct,
                            .no_uring = r->flags->no_uring};
}

static void choose_blocks(disk_run *r) {
    static const uint64_t plain[] = {64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20};
    uint64_t expert = r->files.has_model ? r->files.model.experts.expert_bytes : 0;
    bool placed = expert == 0;
    r->expert_block = BLOCKS;
    for (size_t i = 0; i <= sizeof plain / sizeof plain[0]; i++) {
        bool end = i == sizeof plain / sizeof plain[0];
        if (!placed && (end || expert <= plain[i])) {
            r->expert_block = r->block_count;
            r->blocks[r->block_count++] = expert;
            placed = true;
        }
        if (end) break;
        ms_probe_point p = {.block_bytes = plain[i]};
        if (ms_probe_disk_possible(&r->files, &p)) r->blocks[r->block_count++] = plain[i];
    }
    if (r->expert_block == BLOCKS) r->expert_block = r->block_count;
}

static ms_status sweep_round(disk_run *r, uint32_t round, ms_error *err) {
    for (size_t b = 0; b < r->block_count; b++)
        for (size_t d = 0; d < DEPTHS; d++) {
            ms_probe_point p = point(r, b, depths[d], round);
            ms_probe_rate rate;
            MS_TRY(ms_probe_disk(&r->files, &p, &rate, err));
            figure *f = &r->sweep[b][d];
            f->rate[round] = rate.bytes_per_second;
            f->read_bytes = rate.read_bytes;
            f->direct = rate.direct;
            f->uring = rate.uring;
        }
    return MS_OK;
}

/* ------------------------------------------------------------------ expert service */

static ms_status open_service(disk_run *r, ms_error *err) {
    ms_backend_options bo = {.threads = r->flags->threads};
    MS_TRY(ms_backend_open(&r->backend, &bo, err));
    const ms_model *m = &r->files.model;
    ms_expert_service_options eo = {.shape = m->info.expert_shape,
                                    .slots = 0, /* nothing is kept: every request is read */
                                    .staging = r->flags->staging,
                                    .read_depth = r->flags->staging,
                                    .buffered = r->flags->no_direct,
                                    .no_uring = r->flags->no_uring};
    return ms_expert_service_create(&r->service, r->backend, m->checkpoint, &m->experts, &eo, err);
}

static ms_status stream_request(disk_run *r, uint32_t layer, const uint32_t *ids, uint32_t count,
                                ms_expert_ready *ready, ms_error *err) {
    MS_TRY(ms_expert_request(r->service, layer, ids, NULL, count, err));
    ms_status st = MS_OK;
    for (uint32_t got = 1; got && st == MS_OK;) st = ms_expert_next(r->service, ready, &got, err);
    ms_expert_end(r->service);
    return st;
}

/* Requests of `count` experts, one layer after the other as a pass does, until enough is read. */
static ms_status stream(disk_run *r, uint32_t round, uint32_t count, streaming *x, ms_error *err) {
    const ms_expert_table *t = &r->files.model.experts;
    ms_probe_point alone = point(r, r->expert_block, r->flags->staging, round);
    ms_probe_rate reader;
    MS_TRY(ms_probe_disk(&r->files, &alone, &reader, err));
    uint32_t *ids = malloc(count * sizeof *ids);
    ms_expert_ready *ready = malloc(count * sizeof *ready);
    ms_status st = ids && ready ? MS_OK : ms_fail_memory(err, "request", count * sizeof *ready);
    ms_engine_stats before, after;
    ms_expert_service_stats(r->service, &before);
    uint64_t start = ms_clock_ns(), bytes = 0;
    for (uint32_t turn = 0; st == MS_OK && (turn < t->layer_count || bytes < r->flags->bytes); turn++) {
        uint32_t spread = t->expert_count / count, shift = (turn / t->layer_count + round) % spread;
        for (uint32_t i = 0; i < count; i++) ids[i] = i * spread + shift;
        st = stream_request(r, turn % t->layer_count, ids, count, ready, err);
        bytes += count * t->expert_bytes;
    }
    uint64_t ns = ms_clock_ns() - start;
    ms_expert_service_stats(r->service, &after);
    figure *f = &x->figure;
    f->rate[round] = (double)bytes * 1e9 / (double)(ns ? ns : 1);
    f->read_bytes = bytes;
    f->direct = after.direct;
    f->uring = after.uring;
    x->share[round] = f->rate[round] / reader.bytes_per_second;
    x->wait[round] = (double)(after.read_wait_ns - before.read_wait_ns) / (double)(ns ? ns : 1);
    free(ids);
    free(ready);
    return st;
}

static ms_status install_once(disk_run *r, const uint8_t *source, uint8_t *slots, uint32_t count, double *rate,
                              ms_error *err) {
    uint64_t each = r->files.model.experts.expert_bytes, start = ms_clock_ns();
    for (uint32_t i = 0; i < count; i++)
        MS_TRY(r->backend->install(r->backend, slots + i * each, source + i * each, r->files.model.info.expert_shape,
                                   err));
    MS_TRY(r->backend->sync(r->backend, err));
    uint64_t ns = ms_clock_ns() - start;
    *rate = (double)(count * each) * 1e9 / (double)(ns ? ns : 1);
    return MS_OK;
}

/* From memory to memory, more of both than a cache holds; a first round outside the clock brings the pages in. */
static ms_status measure_install(disk_run *r, ms_error *err) {
    uint64_t each = r->files.model.experts.expert_bytes;
    uint32_t count = (uint32_t)(INSTALL_BYTES / each) + 2;
    void *source = NULL, *slots = NULL;
    ms_backend *be = r->backend;
    ms_status st = be->alloc(be, MS_MEM_STAGING, (size_t)(count * each), "install source", &source, err);
    if (st == MS_OK) st = be->alloc(be, MS_MEM_DEVICE, (size_t)(count * each), "install slots", &slots, err);
    double warm;
    if (st == MS_OK) {
        memset(source, 0x21, (size_t)(count * each)); /* any code and any scale but 255 */
        st = install_once(r, source, slots, count, &warm, err);
    }
    for (uint32_t i = 0; i < r->flags->repeat && st == MS_OK; i++)
        st = install_once(r, source, slots, count, &r->install.rate[i], err);
    r->install.read_bytes = count * each;
    if (source) be->release(be, MS_MEM_STAGING, source, (size_t)(count * each));
    if (slots) be->release(be, MS_MEM_DEVICE, slots, (size_t)(count * each));
    return st;
}

static ms_status service_round(disk_run *r, uint32_t round, ms_error *err) {
    const ms_model *m = &r->files.model;
    MS_TRY(stream(r, round, m->experts.expert_count, &r->layer, err));
    return stream(r, round, m->info.top_k, &r->top_k, err);
}

static ms_status measure(disk_run *r, ms_error *err) {
    bool model = r->files.has_model;
    if (model) MS_TRY(open_service(r, err));
    for (uint32_t round = 0; round < r->flags->repeat; round++) {
        MS_TRY(sweep_round(r, round, err));
        if (model) MS_TRY(service_round(r, round, err));
    }
    return model ? measure_install(r, err) : MS_OK;
}

/* ------------------------------------------------------------------ report */

static double gigabytes(double bytes) { return bytes / 1e9; }

static void csv_row(ms_text *csv, const char *what, uint64_t block, unsigned depth, const figure *f, double rate,
                    double share, double wait) {
    ms_text_printf(csv, "%s,%" PRIu64 ",%u,%" PRIu64 ",%.0f,%.4f,%.4f,%d,%d\n", what, block, depth, f->read_bytes, rate,
                   share, wait, f->direct, f->uring);
}

static void block_name(char name[24], uint64_t bytes) {
    if (bytes % (1 << 20) == 0)
        (void)snprintf(name, 24, "%" PRIu64 "M", bytes >> 20);
    else if (bytes % (1 << 10) == 0)
        (void)snprintf(name, 24, "%" PRIu64 "K", bytes >> 10);
    else
        (void)snprintf(name, 24, "%" PRIu64, bytes);
}

static void report_block(disk_run *r, size_t b, ms_text *out, ms_text *csv, double *expert_best) {
    char name[24];
    double rate[DEPTHS], best = 0;
    bool expert = b == r->expert_block;
    block_name(name, r->blocks[b]);
    ms_text_printf(out, "%-10s%s", name, expert ? " expert" : "       ");
    for (size_t d = 0; d < DEPTHS; d++) {
        rate[d] = ms_probe_median(r->sweep[b][d].rate, r->flags->repeat);
        if (d > 0 && rate[d] > best) best = rate[d];
        ms_text_printf(out, " %8.3f", gigabytes(rate[d]));
    }
    ms_text_printf(out, " %8.2f\n", rate[0] > 0 ? best / rate[0] : 0);
    for (size_t d = 0; d < DEPTHS; d++)
        csv_row(csv,
                depths[d] ? expert ? "reader-experts" : "reader"
                : expert  ? "pread-experts"
                          : "pread",
                r->blocks[b], depths[d], &r->sweep[b][d], rate[d], rate[d] / best, 0);
    if (expert) *expert_best = best;
}

static void report_service(disk_run *r, const char *what, const char *text, uint32_t count, streaming *x, ms_text *out,
                           ms_text *csv) {
    uint32_t n = r->flags->repeat;
    double rate = ms_probe_median(x->figure.rate, n), share = ms_probe_median(x->share, n);
    double wait = ms_probe_median(x->wait, n);
    ms_text_printf(out,
                   "service, %s of a layer (%u): %.3f GB/s, %.1f %% of the reader alone; %.0f %% of the time waiting\n",
                   text, count, gigabytes(rate), 100 * share, 100 * wait);
    csv_row(csv, what, r->files.model.experts.expert_bytes, r->flags->staging, &x->figure, rate, share, wait);
}

static void report(disk_run *r, ms_text *out, ms_text *csv) {
    double best = 0;
    const figure *any = &r->sweep[0][1];
    ms_probe_machine(out);
    ms_text_printf(out, "%zu files%s%s; GB/s, medians of %u\n", r->files.count, any->direct ? ", direct" : ", buffered",
                   any->uring ? ", io_uring" : ", pread", r->flags->repeat);
    ms_text_printf(out, "%-17s", "block");
    for (size_t d = 0; d < DEPTHS; d++)
        if (depths[d])
            ms_text_printf(out, " depth %2u", depths[d]);
        else
            ms_text_printf(out, " %8s", "pread");
    ms_text_puts(out, "   ratio\n");
    ms_text_puts(csv, "what,block_bytes,depth,read_bytes,bytes_per_second,share,wait_share,direct,uring\n");
    for (size_t b = 0; b < r->block_count; b++) report_block(r, b, out, csv, &best);
    if (!r->files.has_model) return;
    const ms_model *m = &r->files.model;
    report_service(r, "service-layer", "all experts", m->experts.expert_count, &r->layer, out, csv);
    report_service(r, "service-top-k", "chosen experts", m->info.top_k, &r->top_k, out, csv);
    double install = ms_probe_median(r->install.rate, r->flags->repeat);
    ms_text_printf(out, "install: %.3f GB/s with %u threads = %.2f times the best read rate\n", gigabytes(install),
                   r->backend->threads, install / best);
    csv_row(csv, "install", m->experts.expert_bytes, r->backend->threads, &r->install, install, install / best, 0);
}

/* After the report, which sorts the rates. */
static ms_status draw(disk_run *r, ms_error *err) {
    ms_plot p = {.title = "Reads at scattered places", .x_name = "reads in flight", .y_name = "GB/s", .points = DEPTHS};
    for (size_t d = 0; d < DEPTHS; d++) {
        if (depths[d])
            (void)snprintf(p.x[d], sizeof p.x[d], "%u", depths[d]);
        else
            (void)snprintf(p.x[d], sizeof p.x[d], "pread");
    }
    for (size_t b = 0; b < r->block_count; b++) {
        char size[24], name[MS_PLOT_NAME];
        block_name(size, r->blocks[b]);
        (void)snprintf(name, sizeof name, "%s%s", size, b == r->expert_block ? " experts" : "");
        ms_plot_series *s = ms_plot_add(&p, name, false);
        for (size_t d = 0; d < DEPTHS; d++)
            s->y[d] = gigabytes(ms_probe_median(r->sweep[b][d].rate, r->flags->repeat));
    }
    return ms_plot_save(&p, r->flags->plot, err);
}

static ms_status run(disk_run *r, const char *path, ms_error *err) {
    MS_TRY(ms_probe_files_open(&r->files, path, err));
    choose_blocks(r);
    if (!r->block_count) return ms_fail(err, MS_ERR_USAGE, "%s: expected at least 64 KiB, found less", path);
    MS_TRY(measure(r, err));
    ms_text out = {0}, csv = {0};
    report(r, &out, &csv);
    ms_status st = out.failed ? ms_fail_memory(err, "report", out.len) : ms_probe_save_file(r->flags->csv, &csv, err);
    if (st == MS_OK) st = draw(r, err);
    if (!out.failed) (void)fwrite(out.data, 1, out.len, stdout);
    ms_text_free(&out);
    ms_text_free(&csv);
    return st;
}

int ms_bench_disk(int argc, char **argv) {
    disk_flags flags = {.bytes = 128 << 20, .repeat = 3, .staging = 16};
    const ms_option_group groups[] = {{"Options", options, sizeof options / sizeof options[0], &flags}};
    const ms_option_set set = {.program = "moonshine bench disk",
                               .synopsis = "[MODEL | FILE] [options]",
                               .about = "Reads at scattered places, in blocks of several sizes and at several depths, "
                                        "through the product's reader and with plain pread; for a MODEL also the "
                                        "expert service with nothing to compute.",
                               .epilogue =
                                   "The ratio of a line is its best depth over pread. Only --csv and --plot write.",
                               .groups = groups,
                               .group_count = 1,
                               .max_args = 1};
    ms_option_result result;
    int code = ms_command_parse(&set, argc, argv, &result);
    if (code >= 0) return code;
    const char *path = ms_command_model(set.program, &result, 0);
    if (!path) return 2;
    disk_run *r = calloc(1, sizeof *r);
    ms_error err;
    ms_status st = r ? MS_OK : ms_fail_memory(&err, "figures", sizeof *r);
    if (r) {
        r->flags = &flags;
        st = run(r, path, &err);
        ms_expert_service_destroy(r->service);
        if (r->backend) r->backend->destroy(r->backend);
        ms_probe_files_close(&r->files);
        free(r);
    }
    return st == MS_OK ? ms_command_finish(set.program) : ms_command_fail(set.program, &err);
}
