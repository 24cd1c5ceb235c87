/* cmd_store.c: `moonshine store`: builds, checks, probes and unpacks the compressed expert store. */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "command.h"
#include "interrupt.h"
#include "job_progress.h"
#include "session/engine.h"
#include "store/mzg2_build.h"
#include "store/mzg2_probe.h"

typedef struct store_flags {
    uint32_t jobs, layer, tables;
    bool signs, recheck, fast, canonical, no_direct, no_uring;
    double read_rate;
} store_flags;

#define FIELD(f) offsetof(store_flags, f)
static const ms_option jobs_option = {
    .name = "jobs",
    .type = MS_OPTION_U32,
    .offset = FIELD(jobs),
    .arg = "N",
    .min = 1,
    .max = 256,
    .help = "Layers worked on at a time (default: all processors). Never changes the result."};

/* ------------------------------------------------------------------ the source */

static ms_status open_source(ms_model *m, const char *dir, ms_mzg2_source *s, ms_error *err) {
    MS_TRY(ms_model_open(m, dir, err));
    *s = ms_mzg2_source_of(m->checkpoint, &m->experts, m->info.expert_shape, m->lane->name);
    if (!m->store) return MS_OK;
    ms_model_close(m);
    return ms_fail(err, MS_ERR_USAGE, "%s: expected a checkpoint, found a bundle", dir);
}

static void print_report(const char *what, const char *dir, const ms_mzg2_report *r, uint64_t start_ns) {
    char sha[MS_SHA256_HEX];
    double saved = r->canonical_bytes ? 100.0 * (1 - (double)r->stored_bytes / (double)r->canonical_bytes) : 0;
    ms_sha256_hex(sha, r->manifest_sha);
    printf("%s: %s, %u layers, %" PRIu64 " experts, %" PRIu64 " bytes in %" PRIu64 ", %.3f %% saved, %.1f s\n", dir,
           what, r->layers, r->experts, r->canonical_bytes, r->stored_bytes, saved,
           (double)(ms_clock_ns() - start_ns) / 1e9);
    if (r->kept_layers) printf("%u layers kept from an earlier build\n", r->kept_layers);
    printf("manifest %s\n", sha);
}

/* ------------------------------------------------------------------ build, layer */

static int run_build(int argc, char **argv) {
    static const ms_option options[] = {
        {.name = "signs",
         .type = MS_OPTION_FLAG,
         .offset = FIELD(signs),
         .help = "Keep the signs of zeros too, in cold/, so that restore gives the source bytes."},
        {.name = "recheck",
         .type = MS_OPTION_FLAG,
         .offset = FIELD(recheck),
         .help = "When an unfinished build goes on, hash the layers that it keeps."},
        {.name = "tables",
         .type = MS_OPTION_U32,
         .offset = FIELD(tables),
         .arg = "N",
         .min = 1,
         .max = 16,
         .help = "Probability tables a matrix kind (default: 8). More save a little and decode slower."},
    };
    store_flags f = {0};
    const ms_option_group groups[] = {{"Options", options, sizeof options / sizeof options[0], &f},
                                      {"Speed", &jobs_option, 1, &f}};
    const ms_option_set set = {
        .program = "moonshine store build",
        .synopsis = "MODEL STORE [options]",
        .about =
            "Compresses the experts of a checkpoint into the new folder STORE. Works in STORE.partial: a build that "
            "was ended there, however, goes on where it was.",
        .groups = groups,
        .group_count = 2,
        .max_args = 2};
    ms_option_result r;
    int code = ms_command_parse(&set, argc, argv, &r);
    if (code >= 0) return code;
    if (r.arg_count != 2) {
        fprintf(stderr, "%s: expected a checkpoint and the folder to write\n", set.program);
        return 2;
    }
    ms_model m;
    ms_mzg2_source s;
    ms_error err;
    ms_mzg2_report report;
    if (open_source(&m, r.args[0], &s, &err) != MS_OK) return ms_command_fail(set.program, &err);
    job_progress p = job_progress_begin();
    ms_interrupt_watch();
    const ms_mzg2_job_options o = {.jobs = f.jobs,
                                   .signs = f.signs,
                                   .recheck = f.recheck,
                                   .tables = f.tables,
                                   .progress = job_progress_show,
                                   .progress_arg = &p};
    ms_status st = ms_mzg2_build(r.args[1], &s, &o, &report, &err);
    job_progress_end(&p);
    if (st == MS_OK) print_report("published", r.args[1], &report, p.start_ns);
    ms_model_close(&m);
    return ms_interrupt_end(set.program, st, &err, "; the same command goes on from here");
}

static int run_layer(int argc, char **argv) {
    store_flags f = {.layer = UINT32_MAX};
    static const ms_option options[] = {{.name = "tables",
                                         .type = MS_OPTION_U32,
                                         .offset = FIELD(tables),
                                         .arg = "N",
                                         .min = 1,
                                         .max = 16,
                                         .help = "Probability tables a matrix kind (default: 8)."}};
    const ms_option_group groups[] = {{"Options", options, 1, &f}};
    const ms_option_set set = {.program = "moonshine store layer",
                               .synopsis = "MODEL LAYER FILE [options]",
                               .about = "Compresses the experts of one layer into a new file.",
                               .groups = groups,
                               .group_count = 1,
                               .max_args = 3};
    ms_option_result r;
    int code = ms_command_parse(&set, argc, argv, &r);
    if (code >= 0) return code;
    char *rest = NULL;
    unsigned long layer =
        r.arg_count == 3 && r.args[1][0] >= '0' && r.args[1][0] <= '9' ? strtoul(r.args[1], &rest, 10) : 0;
    if (!rest || *rest) {
        fprintf(stderr, "%s: expected a checkpoint, the number of a layer and the file to write\n", set.program);
        return 2;
    }
    ms_model m;
    ms_mzg2_source s;
    ms_error err;
    if (open_source(&m, r.args[0], &s, &err) != MS_OK) return ms_command_fail(set.program, &err);
    uint32_t at = UINT32_MAX;
    for (uint32_t l = 0; l < m.experts.layer_count; l++)
        if (m.experts.layers[l] == layer) at = l;
    job_progress p = job_progress_begin();
    ms_mzg2_layer_record rec = {0};
    ms_interrupt_watch();
    const ms_mzg2_job_options o = {.tables = f.tables, .progress = job_progress_show, .progress_arg = &p};
    ms_status st = at == UINT32_MAX
                       ? ms_fail(&err, MS_ERR_USAGE, "layer %lu: the model has no such routed layer", layer)
                       : ms_mzg2_build_layer(r.args[2], &s, at, &o, &rec, &err);
    job_progress_end(&p);
    if (st == MS_OK) {
        char sha[MS_SHA256_HEX];
        uint64_t raw = (uint64_t)m.experts.expert_count * m.experts.expert_bytes;
        ms_sha256_hex(sha, rec.sha);
        printf("%s: layer %u, %u experts, %" PRIu64 " bytes in %" PRIu64
               ", %.3f %% saved, every block decoded and compared\nsha256 %s\n",
               r.args[2], rec.layer, m.experts.expert_count, raw, rec.bytes,
               100.0 * (1 - (double)rec.bytes / (double)raw), sha);
    }
    ms_model_close(&m);
    return ms_interrupt_end(set.program, st, &err, "");
}

/* ------------------------------------------------------------------ verify, restore */

static int run_verify(int argc, char **argv) {
    static const ms_option options[] = {
        {.name = "fast", .type = MS_OPTION_FLAG, .offset = FIELD(fast), .help = "Only the SHA-256 of every file."}};
    store_flags f = {0};
    const ms_option_group groups[] = {{"Options", options, 1, &f}, {"Speed", &jobs_option, 1, &f}};
    const ms_option_set set = {
        .program = "moonshine store verify",
        .synopsis = "STORE [MODEL] [options]",
        .about = "Checks a store: file digests, every block decoded, and with MODEL every byte against the checkpoint.",
        .groups = groups,
        .group_count = 2,
        .max_args = 2};
    ms_option_result r;
    int code = ms_command_parse(&set, argc, argv, &r);
    if (code >= 0) return code;
    if (r.arg_count < 1) {
        fprintf(stderr, "%s: expected the folder of a store\n", set.program);
        return 2;
    }
    ms_model m = {0};
    ms_mzg2_source s;
    ms_error err;
    ms_mzg2_report report;
    if (r.arg_count == 2 && open_source(&m, r.args[1], &s, &err) != MS_OK) return ms_command_fail(set.program, &err);
    job_progress p = job_progress_begin();
    ms_interrupt_watch();
    const ms_mzg2_job_options o = {.jobs = f.jobs, .fast = f.fast, .progress = job_progress_show, .progress_arg = &p};
    ms_status st = ms_mzg2_verify(r.args[0], r.arg_count == 2 ? &s : NULL, &o, &report, &err);
    job_progress_end(&p);
    if (st == MS_OK)
        print_report(f.fast             ? "file digests verified"
                     : r.arg_count == 2 ? "verified against the source"
                                        : "verified",
                     r.args[0], &report, p.start_ns);
    if (r.arg_count == 2) ms_model_close(&m);
    return ms_interrupt_end(set.program, st, &err, "");
}

static int run_restore(int argc, char **argv) {
    static const ms_option options[] = {{.name = "canonical",
                                         .type = MS_OPTION_FLAG,
                                         .offset = FIELD(canonical),
                                         .help = "Without the signs of zeros: what the engine computes with."}};
    store_flags f = {0};
    const ms_option_group groups[] = {{"Options", options, 1, &f}};
    const ms_option_set set = {.program = "moonshine store restore",
                               .synopsis = "STORE LAYER FILE [options]",
                               .about =
                                   "Writes the source bytes of a layer's experts, one behind the other, to a new file.",
                               .groups = groups,
                               .group_count = 1,
                               .max_args = 3};
    ms_option_result r;
    int code = ms_command_parse(&set, argc, argv, &r);
    if (code >= 0) return code;
    char *rest = NULL;
    unsigned long layer =
        r.arg_count == 3 && r.args[1][0] >= '0' && r.args[1][0] <= '9' ? strtoul(r.args[1], &rest, 10) : 0;
    if (!rest || *rest || layer > UINT32_MAX) {
        fprintf(stderr, "%s: expected the folder of a store, the number of a layer and the file to write\n",
                set.program);
        return 2;
    }
    ms_error err;
    if (ms_mzg2_restore(r.args[0], (uint32_t)layer, r.args[2], f.canonical, &err) != MS_OK)
        return ms_command_fail(set.program, &err);
    printf("%s: layer %lu restored, SHA-256 as in its header\n", r.args[2], layer);
    return ms_command_finish(set.program);
}

/* ------------------------------------------------------------------ probe */

static void print_probe(const ms_mzg2_probe *p, double read_rate) {
    static const char *const codes[8] = {"0", "0.5", "1", "1.5", "2", "3", "4", "6"};
    printf("sample: %u experts of %u layers\n", p->experts, p->layers);
    printf("order 0: %.4f bits a nibble, %.4f a scale, ideal saving %.2f %%\n", p->nibble_bits, p->scale_bits,
           100 * p->order0_saving);
    printf("largest value of a group:");
    for (int i = 0; i < 8; i++) printf(" %s:%" PRIu64, codes[i], p->group_max[i]);
    printf("\n");
    for (int t = 0; t < MS_MZG2_PROBE_FITS; t++)
        printf("%u tables: %.2f %% saved, %.2f %% with column classes\n", ms_mzg2_probe_tables[t],
               100 * p->saving[t][0], 100 * p->saving[t][1]);
    printf("in blocks of 4 KiB, as a store has them: %.2f %% saved\n", 100 * p->stored_saving);
    printf("encode: %.0f MB/s a core\n", p->encode_rate / 1e6);
    printf("decode (%s): %.2f GB/s a core, %.2f GB/s with %u threads\n", p->decoder, p->decode_rate / 1e9,
           p->decode_rate_all / 1e9, p->threads);
    printf("read: %.2f GB/s\n", read_rate / 1e9);
    double smaller = 1 / (1 - p->stored_saving), decoded = p->decode_rate_all / read_rate;
    if (smaller <= 1)
        printf("the raw store wins here: these experts do not get smaller\n");
    else if (decoded <= 1)
        printf("the raw store wins here: the drive reads faster than this host decodes\n");
    else
        printf("the store wins here: experts come up to %.2f times as fast as raw\n",
               smaller < decoded ? smaller : decoded);
}

static int run_probe(int argc, char **argv) {
    static const ms_option options[] = {
        {.name = "jobs",
         .type = MS_OPTION_U32,
         .offset = FIELD(jobs),
         .arg = "N",
         .min = 1,
         .max = 256,
         .help = "Threads that decode (default: all processors)."},
        {.name = "read-rate",
         .type = MS_OPTION_REAL,
         .offset = FIELD(read_rate),
         .arg = "GB/S",
         .low = 0.001,
         .high = 1000,
         .help = "Read rate to compare with, instead of measuring the drive."},
        {.name = "no-direct",
         .type = MS_OPTION_FLAG,
         .offset = FIELD(no_direct),
         .help = "Read through the page cache."},
        {.name = "no-uring", .type = MS_OPTION_FLAG, .offset = FIELD(no_uring), .help = "Read with pread."},
    };
    store_flags f = {0};
    const ms_option_group groups[] = {{"Options", options, sizeof options / sizeof options[0], &f}};
    const ms_option_set set = {
        .program = "moonshine store probe",
        .synopsis = "[MODEL] [options]",
        .about =
            "Tells what a store of a checkpoint would save, and whether it is faster than raw experts on this host.",
        .groups = groups,
        .group_count = 1,
        .max_args = 1};
    ms_option_result r;
    int code = ms_command_parse(&set, argc, argv, &r);
    if (code >= 0) return code;
    const char *dir = ms_command_model(set.program, &r, 0);
    if (!dir) return 2;
    ms_model m;
    ms_mzg2_source s;
    ms_error err;
    ms_mzg2_probe p;
    if (open_source(&m, dir, &s, &err) != MS_OK) return ms_command_fail(set.program, &err);
    const ms_mzg2_probe_options o = {
        .threads = f.jobs, .no_read = f.read_rate > 0, .buffered = f.no_direct, .no_uring = f.no_uring};
    ms_status st = ms_mzg2_probe_run(&p, &s, &o, &err);
    ms_model_close(&m);
    if (st != MS_OK) return ms_command_fail(set.program, &err);
    print_probe(&p, f.read_rate > 0 ? f.read_rate * 1e9 : p.read_rate);
    return ms_command_finish(set.program);
}

/* ------------------------------------------------------------------ choice */

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *about;
} commands[] = {
    {"build", run_build, "compress the experts of a checkpoint"},
    {"verify", run_verify, "check a store, with or without its checkpoint"},
    {"probe", run_probe, "what a store would save, and whether it is faster here"},
    {"restore", run_restore, "give the source bytes of a layer back"},
    {"layer", run_layer, "compress one layer into a file"},
};
enum { COMMANDS = sizeof commands / sizeof commands[0] };

static void usage(FILE *out) {
    fputs("usage: moonshine store COMMAND [arguments]\n\ncommands:\n", out);
    for (size_t i = 0; i < COMMANDS; i++) fprintf(out, "  %-8s %s\n", commands[i].name, commands[i].about);
    fputs("\nmoonshine store COMMAND --help describes one.\n", out);
}

int ms_command_store(int argc, char **argv) {
    if (argc < 2) {
        usage(stderr);
        return 2;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")) {
        usage(stdout);
        return ms_command_finish("moonshine store");
    }
    for (size_t i = 0; i < COMMANDS; i++)
        if (!strcmp(argv[1], commands[i].name)) return commands[i].run(argc - 1, argv + 1);
    fprintf(stderr, "moonshine store: unknown command '%s'\n", argv[1]);
    usage(stderr);
    return 2;
}
