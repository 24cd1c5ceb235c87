/* bench_kernels.c: `moonshine bench kernels`: the matrix products of the CPU backend beside what the processor and its
 * memory can do.
 *
 * Weights lie in one area much larger than a cache and are walked matrix after matrix, so few input rows measure the
 * path from memory and many the arithmetic.  Everything, peaks included, runs once a round and round after round: what
 * else happens on the machine meets all of it alike.  Printed are medians over the rounds, and the best.
 *
 * Owns: the area, inputs, outputs and pools of one call.  Threads: the calling thread and the pools' workers.
 * Errors: as ms_command_fail prints them.
 */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "base/clock.h"
#include "bench.h"
#include "bench_probe.h"
#include "command.h"
#include "peak.h"
#include "quant/q8.h"

typedef struct kernel_flags {
    ms_option_list kernels;
    uint32_t threads, rounds, milliseconds;
    int shapes;
    bool cpu_time;
    const char *csv;
} kernel_flags;

static const char *const shape_sets[] = {"all", "k3", "mid", NULL};

#define FIELD(f) offsetof(kernel_flags, f)
static const ms_option options[] = {
    {.name = "kernels",
     .type = MS_OPTION_LIST,
     .offset = FIELD(kernels),
     .arg = "NAME",
     .max = 3,
     .help = "CPU kernels to measure; may be repeated (default: the best this CPU has)."},
    {.name = "threads",
     .type = MS_OPTION_U32,
     .offset = FIELD(threads),
     .arg = "N",
     .min = 1,
     .max = 256,
     .help = "Only with N threads (default: with one and with all processors)."},
    {.name = "shapes",
     .type = MS_OPTION_CHOICE,
     .offset = FIELD(shapes),
     .arg = "SET",
     .choices = shape_sets,
     .help = "Which matrices (default: all)."},
    {.name = "rounds",
     .type = MS_OPTION_U32,
     .offset = FIELD(rounds),
     .arg = "N",
     .min = 1,
     .max = 1000,
     .help = "Repetitions (default: 5)."},
    {.name = "time",
     .type = MS_OPTION_U32,
     .offset = FIELD(milliseconds),
     .arg = "MS",
     .min = 1,
     .max = 60000,
     .help = "Least milliseconds of each measurement in a round (default: 40)."},
    {.name = "cpu-time",
     .type = MS_OPTION_FLAG,
     .offset = FIELD(cpu_time),
     .help = "One thread only; count its processor time, not elapsed time: for a machine that does other work."},
    {.name = "csv",
     .type = MS_OPTION_STRING,
     .offset = FIELD(csv),
     .arg = "FILE",
     .help = "Also write the table there."},
};

typedef enum case_kind { PEAK_READ, PEAK_COPY, PEAK_FMA, PEAK_DOT, CASE_BF16, CASE_Q8, CASE_MXFP4 } case_kind;
enum { PEAKS = 4 };

static const struct {
    const char *name;
    case_kind kind;
    int set; /* index into shape_sets */
    uint32_t rows, cols;
} products[] = {
    {"bf16", CASE_BF16, 1, 12288, 7168}, {"q8", CASE_Q8, 1, 12288, 7168}, {"mxfp4", CASE_MXFP4, 1, 3072, 3584},
    {"bf16", CASE_BF16, 2, 2048, 2048},  {"q8", CASE_Q8, 2, 2048, 2048},  {"mxfp4", CASE_MXFP4, 2, 1024, 1024},
};
static const char *const peak_names[PEAKS] = {"memory read", "memory copy", "f32 fma", "int8 dot"};
static const uint32_t input_rows[] = {1, 4, 16, 64};

#define COUNT(a) (sizeof(a) / sizeof(a)[0])
enum {
    MAX_ROWS = 12288,
    MAX_COLS = 7168,
    MAX_N = 64,
    MAX_TABLES = 3,
    MAX_SETTINGS = 2, /* of threads */
    TASK_ROWS = 64,
    TASKS = 64, /* of a peak */
    FMA_ROUNDS = 20000
};
#define AREA_BYTES ((size_t)192 << 20)

typedef struct bench_case {
    case_kind kind;
    const char *name, *set;
    uint32_t rows, cols, n;
    size_t matrix_bytes, copies, next;
    const ms_cpu_kernels *k;
    const ms_peaks *peaks;
    ms_pool *pool;
    double *gops, *gbps; /* [rounds] */
} bench_case;

typedef struct bench {
    const kernel_flags *flags;
    uint8_t *area;
    float *scales; /* of Q8 weights, shared by all */
    float *x, *out;
    int8_t *x_q, *x_split;
    float *x_s, *split_s;
    const ms_cpu_kernels *tables[MAX_TABLES];
    const ms_peaks *peaks[MAX_TABLES];
    size_t table_count, setting_count, case_count, case_room;
    ms_pool *pools[MAX_SETTINGS];
    bench_case *cases;
    double *values;
} bench;

/* ------------------------------------------------------------------ one measurement */

typedef struct pass {
    const bench *b;
    const bench_case *c;
    const uint8_t *matrix;
    _Atomic uint64_t kept; /* results of peaks, so that they are wanted */
} pass;

static void bf16_task(const bench *b, const bench_case *c, const uint8_t *matrix, uint32_t first, uint32_t count) {
    const uint16_t *w = (const uint16_t *)(const void *)matrix + (size_t)first * c->cols;
    for (uint32_t x = 0; x < c->n; x += CPU_X_BLOCK) {
        uint32_t n = c->n - x < CPU_X_BLOCK ? c->n - x : CPU_X_BLOCK;
        c->k->rows_bf16(b->out + (size_t)x * c->rows + first, c->rows, b->x + (size_t)x * c->cols, c->cols, n, w,
                        c->cols, count, c->cols);
    }
}

static void q8_task(const bench *b, const bench_case *c, const uint8_t *matrix, uint32_t first, uint32_t count) {
    uint32_t groups = ms_q8_groups(c->cols);
    ms_cpu_q8 in = {.q = b->x_q, .q_stride = c->cols, .scales = b->x_s, .scale_stride = groups};
    for (uint32_t x = 0; x < c->n; x += CPU_X_BLOCK) {
        in.first = x;
        for (uint32_t r = first; r < first + count; r += MS_Q8_BLOCK_ROWS)
            c->k->block_q8(b->out + (size_t)x * c->rows + r, c->rows, &in,
                           c->n - x < CPU_X_BLOCK ? c->n - x : CPU_X_BLOCK,
                           (const int8_t *)matrix + (size_t)r * c->cols, b->scales + (size_t)r * groups,
                           MS_Q8_BLOCK_ROWS, c->cols);
    }
}

static void mxfp4_task(const bench *b, const bench_case *c, const uint8_t *matrix, uint32_t first, uint32_t count) {
    uint32_t groups = c->cols / CPU_TILE;
    ms_cpu_q8 in = {.q = b->x_split, .q_stride = c->cols, .scales = b->split_s, .scale_stride = groups};
    for (uint32_t r = first; r < first + count; r += CPU_TILE) {
        const uint8_t *tile = matrix + (size_t)r * groups * (CPU_TILE / 2 + 1);
        for (uint32_t x = 0; x < c->n; x += CPU_X_BLOCK) {
            in.first = x;
            c->k->tile_mxfp4(b->out + (size_t)x * c->rows + r, c->rows, &in,
                             c->n - x < CPU_X_BLOCK ? c->n - x : CPU_X_BLOCK, tile, groups);
        }
    }
}

static void task(void *arg, size_t i, unsigned worker) {
    pass *p = arg;
    const bench_case *c = p->c;
    const size_t part = AREA_BYTES / TASKS, half = part / 2;
    uint32_t first = (uint32_t)i * TASK_ROWS;
    (void)worker;
    switch (c->kind) {
    case PEAK_READ:
        p->kept += c->peaks->read(p->b->area + i * part, part);
        break;
    case PEAK_COPY:
        memcpy(p->b->area + i * part, p->b->area + i * part + half, half);
        break;
    case PEAK_FMA:
        p->kept += c->peaks->fma(FMA_ROUNDS);
        break;
    case PEAK_DOT:
        p->kept += c->peaks->dot(FMA_ROUNDS);
        break;
    case CASE_BF16:
        bf16_task(p->b, c, p->matrix, first, TASK_ROWS);
        break;
    case CASE_Q8:
        q8_task(p->b, c, p->matrix, first, TASK_ROWS);
        break;
    case CASE_MXFP4:
        mxfp4_task(p->b, c, p->matrix, first, TASK_ROWS);
        break;
    }
}

static uint64_t now_ns(const bench *b) {
    if (!b->flags->cpu_time) return ms_clock_ns();
    struct timespec t;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* Runs the case for at least the given time. */
static void measure(const bench *b, bench_case *c, size_t round) {
    pass p = {.b = b, .c = c};
    uint64_t least = (uint64_t)b->flags->milliseconds * 1000000, start = 0, spent = 0, passes = 0;
    double bytes = (double)c->matrix_bytes, ops = 2.0 * c->rows * c->cols * c->n;
    if (c->kind == PEAK_FMA) ops = (double)c->peaks->fma_ops * FMA_ROUNDS * TASKS;
    if (c->kind == PEAK_DOT) ops = (double)c->peaks->dot_ops * FMA_ROUNDS * TASKS;
    if (c->kind >= CASE_BF16) { /* inputs as this table quantises them */
        c->k->quantize(b->x_q, b->x_s, b->x, (size_t)c->n * c->cols, MS_Q8_WEIGHT_GROUP);
        c->k->quantize_split(b->x_split, b->split_s, b->x, (size_t)c->n * c->cols);
    }
    size_t tasks = c->kind < CASE_BF16 ? TASKS : c->rows / TASK_ROWS;
    start = now_ns(b);
    do {
        p.matrix = b->area + c->next * c->matrix_bytes;
        c->next = (c->next + 1) % c->copies;
        ms_pool_run(c->pool, task, &p, tasks);
        passes++;
        spent = now_ns(b) - start;
    } while (spent < least);
    double seconds = (double)spent * 1e-9;
    c->gbps[round] = bytes * (double)passes / seconds * 1e-9;
    c->gops[round] = ops * (double)passes / seconds * 1e-9;
}

/* ------------------------------------------------------------------ setting up */

static ms_status find_tables(bench *b, ms_error *err) {
    static const ms_peaks *const all[] = {
        &ms_peaks_scalar,
#if defined(__x86_64__)
        &ms_peaks_avx2,
        &ms_peaks_avx512,
#elif defined(__aarch64__)
        &ms_peaks_neon,
#endif
    };
    const ms_option_list *names = &b->flags->kernels;
    b->table_count = names->count ? names->count : 1;
    for (size_t t = 0; t < b->table_count; t++) {
        const char *name = names->count ? names->items[t] : NULL;
        b->tables[t] = ms_cpu_kernels_find(name);
        if (!b->tables[t])
            return ms_fail(err, MS_ERR_USAGE, "--kernels %s: not built in, or this processor lacks them", name);
        for (size_t i = 0; i < COUNT(all); i++)
            if (!strcmp(all[i]->name, b->tables[t]->name)) b->peaks[t] = all[i];
        if (!b->peaks[t]) return ms_fail(err, MS_ERR_INTERNAL, "kernels %s: no peaks are built in", b->tables[t]->name);
    }
    return MS_OK;
}

static ms_status make_pools(bench *b, ms_error *err) {
    if (b->flags->threads) {
        b->setting_count = 1;
        return ms_pool_create(&b->pools[0], b->flags->threads, err);
    }
    b->setting_count = 2;
    MS_TRY(ms_pool_create(&b->pools[0], 1, err));
    MS_TRY(ms_pool_create(&b->pools[1], 0, err));
    if (ms_pool_threads(b->pools[1]) > 1) return MS_OK;
    ms_pool_destroy(b->pools[1]);
    b->pools[1] = NULL;
    b->setting_count = 1;
    return MS_OK;
}

/* A pattern that is fit for every format: as BF16 0.5 to 1, as int8 no -128, as scale bytes small exponents. */
static void fill_area(bench *b) {
    uint64_t seed = 1;
    for (size_t i = 0; i < AREA_BYTES; i += sizeof seed) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        uint64_t bits = ((seed ^ seed >> 32) & UINT64_C(0x803f803f803f803f)) | UINT64_C(0x3f403f403f403f40);
        memcpy(b->area + i, &bits, sizeof bits);
    }
    for (size_t i = 0; i < (size_t)MAX_N * MAX_COLS; i++) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        b->x[i] = (float)(int32_t)(seed >> 32) * 0x1p-31f;
    }
    size_t scales = (size_t)MAX_ROWS * ms_q8_groups(MAX_COLS);
    for (size_t i = 0; i < scales; i++) b->scales[i] = 0.01f;
}

static ms_status make_area(bench *b, ms_error *err) {
    const size_t inputs = (size_t)MAX_N * MAX_COLS;
    b->area = cpu_memory_new(AREA_BYTES, true);
    b->scales = malloc((size_t)MAX_ROWS * ms_q8_groups(MAX_COLS) * sizeof *b->scales);
    b->x = malloc(inputs * sizeof *b->x);
    b->out = malloc((size_t)MAX_N * MAX_ROWS * sizeof *b->out);
    b->x_q = malloc(inputs);
    b->x_split = malloc(inputs);
    b->x_s = malloc(inputs / MS_Q8_WEIGHT_GROUP * sizeof *b->x_s);
    b->split_s = malloc(inputs / CPU_TILE * sizeof *b->split_s);
    if (!b->area || !b->scales || !b->x || !b->out || !b->x_q || !b->x_split || !b->x_s || !b->split_s)
        return ms_fail_memory(err, "weights to measure with", AREA_BYTES);
    fill_area(b);
    return MS_OK;
}

static void add_case(bench *b, bench_case c) {
    c.gops = b->values + b->case_count * 2 * b->flags->rounds;
    c.gbps = c.gops + b->flags->rounds;
    b->cases[b->case_count++] = c;
}

/* The peaks and products of one kernel table with one number of threads. */
static void add_cases(bench *b, size_t table, ms_pool *pool) {
    bench_case c = {.k = b->tables[table], .peaks = b->peaks[table], .pool = pool, .copies = 1, .set = ""};
    c.matrix_bytes = AREA_BYTES;
    for (int p = 0; p < PEAKS; p++) {
        c.kind = (case_kind)p;
        c.name = peak_names[p];
        add_case(b, c);
    }
    for (size_t i = 0; i < COUNT(products); i++) {
        if (b->flags->shapes && b->flags->shapes != products[i].set) continue;
        c.kind = products[i].kind;
        c.name = products[i].name;
        c.set = shape_sets[products[i].set];
        c.rows = products[i].rows;
        c.cols = products[i].cols;
        size_t weights = (size_t)c.rows * c.cols;
        c.matrix_bytes = c.kind == CASE_BF16 ? weights * 2 : c.kind == CASE_Q8 ? weights : weights / 32 * 17;
        c.copies = AREA_BYTES / c.matrix_bytes;
        for (size_t n = 0; n < COUNT(input_rows); n++) {
            c.n = input_rows[n];
            add_case(b, c);
        }
    }
}

static ms_status make_cases(bench *b, ms_error *err) {
    b->case_room = b->table_count * b->setting_count * (PEAKS + COUNT(products) * COUNT(input_rows));
    b->cases = calloc(b->case_room, sizeof *b->cases);
    b->values = calloc(b->case_room * b->flags->rounds * 2, sizeof *b->values);
    if (!b->cases || !b->values) return ms_fail_memory(err, "measurements", b->case_room * sizeof *b->cases);
    for (size_t s = 0; s < b->setting_count; s++)
        for (size_t t = 0; t < b->table_count; t++) add_cases(b, t, b->pools[s]);
    return MS_OK;
}

static void destroy(bench *b) {
    for (size_t s = 0; s < MAX_SETTINGS; s++) ms_pool_destroy(b->pools[s]);
    cpu_memory_free(b->area, AREA_BYTES);
    free(b->scales);
    free(b->x);
    free(b->out);
    free(b->x_q);
    free(b->x_split);
    free(b->x_s);
    free(b->split_s);
    free(b->cases);
    free(b->values);
}

/* ------------------------------------------------------------------ report */

typedef struct figures {
    double gbps, gops, best_gbps, best_gops;
} figures;

static figures figures_of(const bench *b, const bench_case *c) {
    size_t n = b->flags->rounds;
    figures f = {.gbps = ms_probe_median(c->gbps, n), .gops = ms_probe_median(c->gops, n)};
    f.best_gbps = c->gbps[n - 1]; /* sorted now */
    f.best_gops = c->gops[n - 1];
    return f;
}

static void report_peak(const bench_case *c, const figures *f, ms_text *csv) {
    bool memory = c->kind == PEAK_READ || c->kind == PEAK_COPY;
    double median = memory ? f->gbps : f->gops, best = memory ? f->best_gbps : f->best_gops;
    unsigned threads = ms_pool_threads(c->pool);
    printf("%-7s %7u  %-12s %10.1f %s, best %.1f\n", c->k->name, threads, c->name, median, memory ? "GB/s" : "Gop/s",
           best);
    ms_text_printf(csv, "%s,%u,%s,,,,,%.3f,%.3f,%.3f,%.3f,,\n", c->k->name, threads, c->name, memory ? f->gbps : 0.0,
                   memory ? 0.0 : f->gops, memory ? f->best_gbps : 0.0, memory ? 0.0 : f->best_gops);
}

/* Peaks of a table and number of threads lie in front of its products. */
static void report(bench *b, ms_text *csv) {
    figures peak[PEAKS] = {{0}};
    ms_text_printf(csv, "kernels,threads,what,shapes,rows,cols,n,GBps,Gops,best_GBps,best_Gops,of_read,of_peak\n");
    for (size_t i = 0; i < b->case_count; i++) {
        const bench_case *c = &b->cases[i];
        figures f = figures_of(b, c);
        unsigned threads = ms_pool_threads(c->pool);
        if (c->kind < CASE_BF16) {
            if (c->kind == PEAK_READ) printf("\nkernels threads\n");
            peak[c->kind] = f;
            report_peak(c, &f, csv);
            continue;
        }
        if (b->cases[i - 1].kind < CASE_BF16)
            printf("\nkernels threads  what   shape             n     GB/s    Gop/s   of read  of peak   best: GB/s   "
                   "Gop/s\n");
        double of_read = f.gbps / peak[PEAK_READ].gbps;
        double of_peak = f.gops / peak[c->kind == CASE_BF16 ? PEAK_FMA : PEAK_DOT].gops;
        printf("%-7s %7u  %-6s %-3s %5u x %-5u %3u %8.1f %8.1f %8.0f%% %7.0f%%   %10.1f %7.1f\n", c->k->name, threads,
               c->name, c->set, c->rows, c->cols, c->n, f.gbps, f.gops, 100 * of_read, 100 * of_peak, f.best_gbps,
               f.best_gops);
        ms_text_printf(csv, "%s,%u,%s,%s,%u,%u,%u,%.3f,%.3f,%.3f,%.3f,%.4f,%.4f\n", c->k->name, threads, c->name,
                       c->set, c->rows, c->cols, c->n, f.gbps, f.gops, f.best_gbps, f.best_gops, of_read, of_peak);
    }
}

static ms_status run(bench *b, ms_error *err) {
    MS_TRY(find_tables(b, err));
    MS_TRY(make_pools(b, err));
    MS_TRY(make_area(b, err));
    MS_TRY(make_cases(b, err));
    for (size_t round = 0; round < b->flags->rounds; round++)
        for (size_t i = 0; i < b->case_count; i++) measure(b, &b->cases[i], round);
    ms_text machine = {0}, csv = {0};
    ms_probe_machine(&machine);
    if (machine.data) printf("%s", machine.data);
    printf("medians of %" PRIu32 " rounds of %" PRIu32
           " ms of %s; a multiply-add counts as two operations; GB/s are bytes of "
           "weights, or bytes read and written\n",
           b->flags->rounds, b->flags->milliseconds, b->flags->cpu_time ? "processor time" : "elapsed time");
    report(b, &csv);
    ms_status st = machine.failed || csv.failed ? ms_fail_memory(err, "report", csv.len) : MS_OK;
    if (st == MS_OK) st = ms_probe_save_file(b->flags->csv, &csv, err);
    ms_text_free(&machine);
    ms_text_free(&csv);
    return st;
}

int ms_bench_kernels(int argc, char **argv) {
    static const char program[] = "moonshine bench kernels";
    kernel_flags flags = {.rounds = 5, .milliseconds = 40};
    const ms_option_group groups[] = {{"Options", options, COUNT(options), &flags}};
    const ms_option_set set = {
        .program = program,
        .synopsis = "[options]",
        .about =
            "Measures the matrix products of the CPU backend: BF16 weights, int8 weights (q8) and MXFP4 experts, for "
            "1, 4, 16 and 64 input rows, beside the rates of memory and arithmetic that this processor reaches.",
        .groups = groups,
        .group_count = COUNT(groups),
    };
    ms_option_result result;
    int code = ms_command_parse(&set, argc, argv, &result);
    if (code >= 0) return code;
    bench b = {.flags = &flags};
    ms_error err;
    ms_status st = MS_OK;
    if (flags.cpu_time && flags.threads > 1)
        st =
            ms_fail(&err, MS_ERR_USAGE, "--cpu-time: one thread is permitted, found --threads %" PRIu32, flags.threads);
    if (flags.cpu_time) flags.threads = 1;
    if (st == MS_OK) st = run(&b, &err);
    destroy(&b);
    return st == MS_OK ? ms_command_finish(program) : ms_command_fail(program, &err);
}
