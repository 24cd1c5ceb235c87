/* bench_load.c: `moonshine bench load`: reading and converting the resident weights beside what the disk gives. */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "backend/loader.h"
#include "base/clock.h"
#include "bench.h"
#include "bench_probe.h"
#include "command.h"
#include "session/loader.h"

enum { MAX_REPEAT = 25, DEPTH = 16 };
#define PIECE_BYTES (4ull << 20)

typedef struct load_flags {
    uint32_t repeat, threads, device;
    uint64_t probe_bytes;
    int static_format;
    bool no_direct, no_uring;
    const char *backend;
} load_flags;

static const char *const formats[] = {"q8", "bf16", NULL};

static const char program[] = "moonshine bench load";

#define FIELD(f) offsetof(load_flags, f)
static const ms_option options[] = {
    {.name = "backend",
     .type = MS_OPTION_STRING,
     .offset = FIELD(backend),
     .arg = "NAME",
     .env = "MOONSHINE_BACKEND",
     .help = "cpu, hip, cuda or auto (default: cpu)."},
    {.name = "device",
     .type = MS_OPTION_U32,
     .offset = FIELD(device),
     .arg = "N",
     .max = 64,
     .help = "GPU (default: 0)."},
    {.name = "static",
     .type = MS_OPTION_CHOICE,
     .offset = FIELD(static_format),
     .arg = "F",
     .choices = formats,
     .help = "Storage of the resident weights (default: q8)."},
    {.name = "threads",
     .type = MS_OPTION_U32,
     .offset = FIELD(threads),
     .arg = "N",
     .max = 256,
     .help = "Threads of the CPU backend (default: all processors)."},
    {.name = "repeat",
     .type = MS_OPTION_U32,
     .offset = FIELD(repeat),
     .arg = "N",
     .min = 1,
     .max = MAX_REPEAT,
     .help = "Rounds; medians are printed (default: 3)."},
    {.name = "probe",
     .type = MS_OPTION_BYTES,
     .offset = FIELD(probe_bytes),
     .arg = "BYTES",
     .min = 1,
     .max = 1ull << 40,
     .help = "To read for one disk rate (default: 512M)."},
    {.name = "no-direct", .type = MS_OPTION_FLAG, .offset = FIELD(no_direct), .help = "Read through the page cache."},
    {.name = "no-uring", .type = MS_OPTION_FLAG, .offset = FIELD(no_uring), .help = "Read with pread."},
};

typedef struct load_run {
    const load_flags *f;
    ms_probe_files files;
    ms_backend *be;
    ms_static_list statics;
    uint64_t source_bytes, weight_bytes;
    double seconds[MAX_REPEAT], disk[MAX_REPEAT];
} load_run;

static void count(void *arg, uint64_t done, uint64_t total) {
    (void)done;
    ((load_run *)arg)->source_bytes = total;
}

static ms_status load_once(load_run *r, double *seconds, ms_error *err) {
    const ms_model *m = &r->files.model;
    void *weights = calloc(1, m->lane->weights_bytes);
    if (!weights) return ms_fail_memory(err, "weights table", m->lane->weights_bytes);
    ms_load_options o = {.buffer_bytes = DEPTH * (PIECE_BYTES + 8192),
                         .buffered = r->f->no_direct,
                         .no_uring = r->f->no_uring,
                         .progress = count,
                         .arg = r};
    uint64_t start = ms_clock_ns();
    ms_status st = ms_statics_load(r->be, m->checkpoint, &r->statics, weights, &o, err);
    *seconds = (double)(ms_clock_ns() - start) / 1e9;
    if (st == MS_OK) ms_statics_unload(r->be, &r->statics, weights);
    free(weights);
    return st;
}

/* The disk is asked just before, for other bytes of the same files. */
static ms_status one_round(load_run *r, uint32_t round, ms_error *err) {
    ms_probe_point p = {.block_bytes = PIECE_BYTES,
                        .depth = DEPTH,
                        .bytes = r->f->probe_bytes,
                        .seed = round * 7919u,
                        .buffered = r->f->no_direct,
                        .no_uring = r->f->no_uring};
    if (!ms_probe_disk_possible(&r->files, &p)) p.block_bytes = 4096;
    ms_probe_rate rate;
    MS_TRY(ms_probe_disk(&r->files, &p, &rate, err));
    r->disk[round] = rate.bytes_per_second;
    return load_once(r, &r->seconds[round], err);
}

static ms_status measure(load_run *r, const char *model, ms_error *err) {
    const load_flags *f = r->f;
    MS_TRY(ms_probe_files_open(&r->files, model, err));
    if (!r->files.has_model) return ms_fail(err, MS_ERR_FORMAT, "%s: expected a checkpoint directory", model);
    const ms_model *m = &r->files.model;
    ms_backend_options bo = {.name = f->backend,
                             .threads = f->threads,
                             .device = (int)f->device,
                             .log = ms_command_log,
                             .log_arg = (void *)(uintptr_t)program};
    MS_TRY(ms_backend_open(&r->be, &bo, err));
    MS_TRY(m->lane->statics(m->config, f->static_format ? MS_STATIC_BF16 : MS_STATIC_Q8, &r->statics, err));
    for (size_t i = 0; i < r->statics.count; i++)
        r->weight_bytes += ms_static_item_bytes(m->checkpoint, &r->statics.items[i]);
    for (uint32_t i = 0; i < f->repeat; i++) MS_TRY(one_round(r, i, err));
    return MS_OK;
}

int ms_bench_load(int argc, char **argv) {
    load_flags flags = {.repeat = 3, .probe_bytes = 512 << 20};
    const ms_option_group groups[] = {{"Options", options, sizeof options / sizeof options[0], &flags}};
    const ms_option_set set = {.program = program,
                               .synopsis = "[MODEL] [options]",
                               .about = "Reads and converts the resident weights of a checkpoint, beside what the "
                                        "reader alone gets from its files.",
                               .groups = groups,
                               .group_count = 1,
                               .max_args = 1};
    ms_option_result result;
    int code = ms_command_parse(&set, argc, argv, &result);
    if (code >= 0) return code;
    const char *model = ms_command_model(set.program, &result, 0);
    if (!model) return 2;
    load_run r = {.f = &flags};
    ms_error err;
    ms_status st = measure(&r, model, &err);
    if (st == MS_OK) {
        double seconds = ms_probe_median(r.seconds, flags.repeat), disk = ms_probe_median(r.disk, flags.repeat);
        double bytes = (double)r.source_bytes, rate = bytes / seconds;
        printf("%s (%s), %u threads: %.1f MB read, %.1f MB of weights\n", r.be->name, r.be->kernels, r.be->threads,
               bytes / 1e6, (double)r.weight_bytes / 1e6);
        printf("  load %.3f s, median of %u: %.3f GB/s, %.1f %% of the disk (%.3f GB/s by the reader alone)\n", seconds,
               flags.repeat, rate / 1e9, 100 * rate / disk, disk / 1e9);
    }
    if (r.be) r.be->destroy(r.be);
    ms_static_list_free(&r.statics);
    ms_probe_files_close(&r.files);
    if (st != MS_OK) return ms_command_fail(set.program, &err);
    return ms_command_finish(set.program);
}
