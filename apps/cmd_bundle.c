/* cmd_bundle.c: `moonshine bundle`: makes and checks standalone bundles. */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "command.h"
#include "interrupt.h"
#include "job_progress.h"
#include "session/engine.h"
#include "store/bundle.h"

typedef struct bundle_flags {
    uint32_t jobs;
    bool fast, signs;
    const char *reuse;
} bundle_flags;

#define FIELD(f) offsetof(bundle_flags, f)

static void print_report(const char *what, const char *dir, const ms_bundle_report *r, uint64_t start_ns) {
    char sha[MS_SHA256_HEX];
    ms_sha256_hex(sha, r->sha);
    printf("%s: %s, %" PRIu64 " files, %" PRIu64 " bytes, static tensors %" PRIu64 " bytes", dir, what, r->files,
           r->bytes, r->static_bytes);
    if (r->store.layers)
        printf(", store %u layers, %" PRIu64 " experts%s", r->store.layers, r->store.experts,
               r->linked ? " (linked)" : "");
    printf(", %.1f s\nbundle %s\n", (double)(ms_clock_ns() - start_ns) / 1e9, sha);
}

static int run_build(int argc, char **argv) {
    static const ms_option options[] = {
        {.name = "reuse-mzg2",
         .type = MS_OPTION_STRING,
         .offset = FIELD(reuse),
         .arg = "STORE",
         .help = "Link the files of this finished store instead of building one (one file system)."},
        {.name = "signs",
         .type = MS_OPTION_FLAG,
         .offset = FIELD(signs),
         .help = "Keep the signs of zeros, so that source bytes can be restored."},
        {.name = "jobs",
         .type = MS_OPTION_U32,
         .offset = FIELD(jobs),
         .arg = "N",
         .min = 1,
         .max = 256,
         .help = "Layers worked on at a time (default: all processors). Never changes the result."},
    };
    bundle_flags f = {0};
    const ms_option_group groups[] = {{"Options", options, sizeof options / sizeof options[0], &f}};
    const ms_option_set set = {
        .program = "moonshine bundle build",
        .synopsis = "MODEL BUNDLE [options]",
        .about = "Makes the new folder BUNDLE, which holds all that MODEL needs, experts compressed. Works in "
                 "BUNDLE.partial: what was ended there goes on where it was.",
        .groups = groups,
        .group_count = 1,
        .max_args = 2};
    ms_option_result r;
    int code = ms_command_parse(&set, argc, argv, &r);
    if (code >= 0) return code;
    if (r.arg_count != 2) {
        fprintf(stderr, "%s: expected a checkpoint and the folder to write\n", set.program);
        return 2;
    }
    ms_model m;
    ms_error err;
    ms_bundle_report report;
    if (ms_model_open(&m, r.args[0], &err) != MS_OK) return ms_command_fail(set.program, &err);
    const ms_mzg2_source s = ms_mzg2_source_of(m.checkpoint, &m.experts, m.info.expert_shape, m.lane->name);
    job_progress p = job_progress_begin();
    ms_interrupt_watch();
    const ms_mzg2_job_options o = {.jobs = f.jobs, .signs = f.signs, .progress = job_progress_show, .progress_arg = &p};
    ms_status st = ms_bundle_build(r.args[1], &s, f.reuse, &o, &report, &err);
    job_progress_end(&p);
    if (st == MS_OK) print_report("published", r.args[1], &report, p.start_ns);
    ms_model_close(&m);
    return ms_interrupt_end(set.program, st, &err, "; the same command goes on from here");
}

static int run_verify(int argc, char **argv) {
    static const ms_option options[] = {
        {.name = "fast", .type = MS_OPTION_FLAG, .offset = FIELD(fast), .help = "Only the SHA-256 of every file."},
        {.name = "jobs",
         .type = MS_OPTION_U32,
         .offset = FIELD(jobs),
         .arg = "N",
         .min = 1,
         .max = 256,
         .help = "Layers worked on at a time (default: all processors)."},
    };
    bundle_flags f = {0};
    const ms_option_group groups[] = {{"Options", options, 2, &f}};
    const ms_option_set set = {
        .program = "moonshine bundle verify",
        .synopsis = "BUNDLE [options]",
        .about = "Checks every file of a bundle, that there is no other, its layout, and every block of its store.",
        .groups = groups,
        .group_count = 1,
        .max_args = 1};
    ms_option_result r;
    int code = ms_command_parse(&set, argc, argv, &r);
    if (code >= 0) return code;
    if (r.arg_count != 1) {
        fprintf(stderr, "%s: expected the folder of a bundle\n", set.program);
        return 2;
    }
    ms_model m;
    ms_error err;
    ms_bundle_report report;
    job_progress p = job_progress_begin();
    ms_interrupt_watch();
    const ms_mzg2_job_options o = {.jobs = f.jobs, .fast = f.fast, .progress = job_progress_show, .progress_arg = &p};
    ms_status st = ms_bundle_verify(r.args[0], &o, &report, &err);
    if (st == MS_OK) st = ms_model_open(&m, r.args[0], &err); /* as the engine opens it */
    job_progress_end(&p);
    if (st == MS_OK) {
        ms_model_close(&m);
        print_report("verified", r.args[0], &report, p.start_ns);
    }
    return ms_interrupt_end(set.program, st, &err, "");
}

static void usage(FILE *out) {
    fputs("usage: moonshine bundle COMMAND [arguments]\n\ncommands:\n"
          "  build    make a standalone bundle of a checkpoint\n"
          "  verify   check a bundle\n"
          "\nmoonshine bundle COMMAND --help describes one.\n",
          out);
}

int ms_command_bundle(int argc, char **argv) {
    if (argc < 2) {
        usage(stderr);
        return 2;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")) {
        usage(stdout);
        return ms_command_finish("moonshine bundle");
    }
    if (!strcmp(argv[1], "build")) return run_build(argc - 1, argv + 1);
    if (!strcmp(argv[1], "verify")) return run_verify(argc - 1, argv + 1);
    fprintf(stderr, "moonshine bundle: unknown command '%s'\n", argv[1]);
    usage(stderr);
    return 2;
}
