/* cmd_bench.c: `moonshine bench`: picks the measurement. */
#include <stdio.h>
#include <string.h>

#include "bench.h"
#include "command.h"

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *about;
} measurements[] = {
    {"quality", ms_bench_quality, "greedy tokens of a set of chat requests against the recorded ones"},
    {"kernels", ms_bench_kernels, "matrix products of the CPU beside the rates of its memory and arithmetic"},
    {"mask", ms_bench_mask, "token masks of grammar-constrained replies on the vocabulary of a rank file"},
    {"gpu", ms_bench_gpu, "operations of a backend at official sizes beside the device's memory and matrix rates"},
    {"shape", ms_bench_shape, "official sizes with random weights, experts in their slots or from the disk"},
    {"load", ms_bench_load, "reading and converting the resident weights beside the rate of the disk"},
    {"disk", ms_bench_disk, "read rates by block size and depth; what the expert service gets of them"},
    {"replay", ms_bench_replay, "a route trace with real reads and without arithmetic"},
    {"store", ms_bench_store, "codec of the compressed expert store; tokens from raw and compressed experts"},
    {"decode", ms_bench_decode, "decoded tokens a second beside what disk and memory allow"},
    {"prefill", ms_bench_prefill, "prompt tokens a second, the same way"},
};
enum { MEASUREMENTS = sizeof measurements / sizeof measurements[0] };

static void usage(FILE *out) {
    fputs("usage: moonshine bench MEASUREMENT [arguments]\n\nmeasurements:\n", out);
    for (size_t i = 0; i < MEASUREMENTS; i++) fprintf(out, "  %-8s %s\n", measurements[i].name, measurements[i].about);
    fputs("\nmoonshine bench MEASUREMENT --help describes one.\n", out);
}

int ms_command_bench(int argc, char **argv) {
    if (argc < 2) {
        usage(stderr);
        return 2;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")) {
        usage(stdout);
        return ms_command_finish("moonshine bench");
    }
    for (size_t i = 0; i < MEASUREMENTS; i++)
        if (!strcmp(argv[1], measurements[i].name)) return measurements[i].run(argc - 1, argv + 1);
    fprintf(stderr, "moonshine bench: unknown measurement '%s'\n", argv[1]);
    usage(stderr);
    return 2;
}
