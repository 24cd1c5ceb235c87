/* bench_run.c: `moonshine bench decode` and `bench prefill`: tokens a second beside what disk and memory would allow.
 *
 * Ids are made up, so that routing varies as much as it can: a text that repeats itself has more hits.  One round is
 *   decode   prompt, cache emptied, tokens one by one (cold); back to the end of the prompt, the same again (warm)
 *   prefill  cache emptied, prompt (cold); from the start, the same prompt again (warm)
 * Rates of disk and memory are measured between the rounds of the same run, so the roofs are what this machine gave,
 * not what it is sold for: the best rate, or --read-limit if that is less.  A drive may be another one from second to
 * second; so the time that reads were under way in the rounds themselves stands beside, which is a roof as well.
 */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory_cap.h"
#include "bench.h"
#include "bench_plot.h"
#include "bench_probe.h"
#include "command.h"

enum { MAX_REPEAT = 25, MAX_SLOTS = 16, PROBE_DEPTHS = 2 };
static const unsigned probe_depths[PROBE_DEPTHS] = {8, 32};

typedef struct run_flags {
    const char *csv, *plot, *slots;
    uint64_t cap_bytes, probe_bytes;
    uint32_t prompt, tokens, repeat;
} run_flags;

#define FIELD(f) offsetof(run_flags, f)
static const ms_option options[] = {
    {.name = "prompt",
     .type = MS_OPTION_U32,
     .offset = FIELD(prompt),
     .arg = "N",
     .min = 1,
     .max = 1048576,
     .help = "Tokens of the prompt (default: 64)."},
    {.name = "tokens",
     .type = MS_OPTION_U32,
     .offset = FIELD(tokens),
     .arg = "N",
     .min = 1,
     .max = 1048576,
     .help = "Tokens to decode (default: 32)."},
    {.name = "repeat",
     .type = MS_OPTION_U32,
     .offset = FIELD(repeat),
     .arg = "N",
     .min = 1,
     .max = MAX_REPEAT,
     .help = "Rounds; medians are printed (default: 3)."},
    {.name = "slots",
     .type = MS_OPTION_STRING,
     .offset = FIELD(slots),
     .arg = "LIST",
     .help = "Values of --experts to measure, separated by commas; 'all' is one (default: that of --experts)."},
    {.name = "csv",
     .type = MS_OPTION_STRING,
     .offset = FIELD(csv),
     .arg = "FILE",
     .help = "Write the table also there."},
    {.name = "plot",
     .type = MS_OPTION_STRING,
     .offset = FIELD(plot),
     .arg = "FILE",
     .help = "Draw rates over --slots there, as SVG."},
    {.name = "probe",
     .type = MS_OPTION_BYTES,
     .offset = FIELD(probe_bytes),
     .arg = "BYTES",
     .min = 1,
     .max = 1ull << 40,
     .help = "To read for one disk rate (default: 128M)."},
    {.name = "cap",
     .type = MS_OPTION_BYTES,
     .offset = FIELD(cap_bytes),
     .arg = "BYTES",
     .min = 1,
     .help = "Run in no more memory than this: the plan must fit, and the kernel holds the process to it where it lets "
             "this user make a memory cgroup."},
};

enum { COLD, WARM, STATES };
static const char *const state_names[STATES] = {"cold", "warm"};

/* One figure of every round. */
typedef struct sample {
    double seconds[MAX_REPEAT], cpu[MAX_REPEAT], wait[MAX_REPEAT], busy[MAX_REPEAT];
    double read_bytes[MAX_REPEAT], accesses[MAX_REPEAT], hits[MAX_REPEAT];
    double guessed[MAX_REPEAT], used[MAX_REPEAT];
} sample;

/* What one value of --experts gave. */
typedef struct setting {
    uint32_t slots, threads;
    uint64_t static_bytes, expert_bytes, range_rows;
    sample samples[STATES];
} setting;

typedef struct bench_run {
    const char *program;
    bool decode;
    const run_flags *flags;
    const ms_model_flags *model_flags;
    ms_probe_files files;
    setting settings[MAX_SLOTS];
    size_t setting_count;
    uint32_t *ids; /* prompt, then tokens */
    /* Bytes a second, of every probe. */
    double disk[MAX_SLOTS * (MAX_REPEAT + 1)], memory[MAX_SLOTS * (MAX_REPEAT + 1)];
    size_t probe_count;
    double disk_best, disk_median, memory_best; /* once all is measured */
    ms_engine *engine;
    ms_session *session;
    ms_text out, csv;
} bench_run;

/* ------------------------------------------------------------------ roofs */

static ms_status probe(bench_run *r, ms_error *err) {
    double *disk = &r->disk[r->probe_count], *memory = &r->memory[r->probe_count];
    *disk = 0;
    for (size_t i = 0; i < PROBE_DEPTHS; i++) {
        ms_probe_point p = {.experts = true,
                            .depth = probe_depths[i],
                            .bytes = r->flags->probe_bytes,
                            .seed = 7919 * (PROBE_DEPTHS * r->probe_count + i),
                            .buffered = r->model_flags->no_direct,
                            .no_uring = r->model_flags->no_uring};
        ms_probe_rate rate;
        MS_TRY(ms_probe_disk(&r->files, &p, &rate, err));
        if (rate.bytes_per_second > *disk) *disk = rate.bytes_per_second;
    }
    MS_TRY(ms_probe_memory(r->model_flags->threads, memory, err));
    r->probe_count++;
    return MS_OK;
}

static void sum_up_probes(bench_run *r) {
    double limit = 1e9 * r->model_flags->read_limit;
    r->disk_median = ms_probe_median(r->disk, r->probe_count); /* sorts */
    r->disk_best = r->disk[r->probe_count - 1];
    if (limit > 0 && limit < r->disk_best) r->disk_best = limit;
    if (limit > 0 && limit < r->disk_median) r->disk_median = limit;
    (void)ms_probe_median(r->memory, r->probe_count);
    r->memory_best = r->memory[r->probe_count - 1];
}

/* ------------------------------------------------------------------ rounds */

typedef struct mark {
    uint64_t ns;
    double cpu;
    ms_engine_stats stats;
} mark;

static mark now(const bench_run *r) {
    mark m;
    ms_engine_get_stats(r->engine, &m.stats);
    m.cpu = ms_probe_cpu_seconds();
    m.ns = ms_clock_ns();
    return m;
}

static void keep(const bench_run *r, setting *x, int state, uint32_t round, const mark *a) {
    mark b = now(r);
    sample *s = &x->samples[state];
    s->seconds[round] = (double)(b.ns - a->ns) / 1e9;
    s->cpu[round] = b.cpu - a->cpu;
    s->wait[round] = (double)(b.stats.read_wait_ns - a->stats.read_wait_ns) / 1e9;
    s->busy[round] = (double)(b.stats.read_busy_ns - a->stats.read_busy_ns) / 1e9;
    s->read_bytes[round] = (double)(b.stats.expert_read_bytes - a->stats.expert_read_bytes);
    s->accesses[round] = (double)(b.stats.expert_accesses - a->stats.expert_accesses);
    s->hits[round] = (double)(b.stats.expert_hits - a->stats.expert_hits);
    s->guessed[round] = (double)(b.stats.guessed_reads - a->stats.guessed_reads);
    s->used[round] = (double)(b.stats.guesses_used - a->stats.guesses_used);
}

static ms_status decode(bench_run *r, setting *x, int state, uint32_t round, ms_error *err) {
    const uint32_t *ids = r->ids + r->flags->prompt;
    mark start = now(r);
    for (uint32_t i = 0; i < r->flags->tokens; i++) MS_TRY(ms_session_forward(r->session, &ids[i], 1, NULL, err));
    keep(r, x, state, round, &start);
    return MS_OK;
}

static ms_status decode_round(bench_run *r, setting *x, uint32_t round, ms_error *err) {
    ms_session_reset(r->session);
    MS_TRY(ms_session_forward(r->session, r->ids, r->flags->prompt, NULL, err));
    ms_snapshot *end = NULL;
    MS_TRY(ms_session_snapshot(r->session, &end, err));
    ms_status st = ms_expert_service_check(r->engine->experts, err); /* empties the cache */
    if (st == MS_OK) st = decode(r, x, COLD, round, err);
    if (st == MS_OK) st = ms_session_restore(r->session, end, err);
    if (st == MS_OK) st = decode(r, x, WARM, round, err);
    ms_snapshot_destroy(end);
    return st;
}

static ms_status prefill_round(bench_run *r, setting *x, uint32_t round, ms_error *err) {
    MS_TRY(ms_expert_service_check(r->engine->experts, err)); /* empties the cache */
    for (int state = COLD; state < STATES; state++) {
        ms_session_reset(r->session);
        mark start = now(r);
        MS_TRY(ms_session_forward(r->session, r->ids, r->flags->prompt, NULL, err));
        keep(r, x, state, round, &start);
    }
    return MS_OK;
}

/* ------------------------------------------------------------------ report */

/* All a token, in seconds and bytes. */
typedef struct figures {
    double rate, slowest, fastest, seconds, cpu, wait, busy, read_bytes, hit_rate, guessed, used, memory_bytes;
    double disk_roof, memory_roof, roof, busy_roof, overlap;
} figures;

/* 1: reading was hidden behind the work, or the work behind reading, as far as the shorter of them goes; 0: time is
 * the sum. */
static double overlap_of(double seconds, double busy, double reading) {
    double shorter = reading < busy ? reading : busy;
    if (shorter <= 0) return 1;
    double hidden = (reading + busy - seconds) / shorter;
    return hidden < 0 ? 0 : hidden > 1 ? 1 : hidden;
}

static figures compute(const bench_run *r, setting *x, int state) {
    sample *s = &x->samples[state];
    uint32_t n = r->flags->repeat, count = r->decode ? r->flags->tokens : r->flags->prompt;
    double tokens = count, passes = r->decode ? tokens : (double)((count + x->range_rows - 1) / x->range_rows);
    figures f = {0};
    f.seconds = ms_probe_median(s->seconds, n) / tokens; /* sorts */
    f.fastest = tokens / s->seconds[0];
    f.slowest = tokens / s->seconds[n - 1];
    f.cpu = ms_probe_median(s->cpu, n) / tokens;
    f.wait = ms_probe_median(s->wait, n) / tokens;
    f.busy = ms_probe_median(s->busy, n) / tokens;
    f.rate = 1 / f.seconds;
    double accesses = ms_probe_median(s->accesses, n);
    f.read_bytes = ms_probe_median(s->read_bytes, n) / tokens;
    f.hit_rate = accesses > 0 ? ms_probe_median(s->hits, n) / accesses : 0;
    f.guessed = ms_probe_median(s->guessed, n) / tokens;
    f.used = ms_probe_median(s->used, n) / tokens;
    f.memory_bytes = (passes * (double)x->static_bytes + accesses * (double)x->expert_bytes) / tokens;
    f.disk_roof = f.read_bytes / r->disk_best;
    f.memory_roof = f.memory_bytes / r->memory_best;
    f.roof = f.disk_roof > f.memory_roof ? f.disk_roof : f.memory_roof;
    f.busy_roof = f.busy > f.memory_roof ? f.busy : f.memory_roof;
    f.overlap = overlap_of(f.seconds, f.seconds - f.wait, f.busy);
    return f;
}

static void report_head(bench_run *r) {
    ms_text_puts(&r->csv,
                 "what,state,slots,threads,rows,repeat,tokens_per_second,slowest,fastest,seconds_per_token,"
                 "cpu_seconds_per_token,wait_seconds_per_token,hit_rate,read_bytes_per_token,memory_bytes_per_token,"
                 "disk_bytes_per_second,disk_median_bytes_per_second,memory_bytes_per_second,disk_roof_seconds,memory_"
                 "roof_seconds,roof_ratio,overlap,guessed_reads_per_token,guesses_used_per_token,busy_seconds_per_token,"
                 "busy_ratio\n");
    ms_text_printf(&r->out, "%-5s %-4s %8s %17s %8s %8s %8s %6s %9s %8s %9s %9s %6s %6s %7s %7s\n", "slots", "", "tok/s",
                   "slowest-fastest", "ms/tok", "cpu ms", "wait ms", "hits", "MB read", "busy ms", "disk ms", "memory ms",
                   "busy", "roof", "overlap", "guesses");
}

static void report_state(bench_run *r, setting *x, int state) {
    figures f = compute(r, x, state);
    ms_text_printf(&r->out,
                   "%-5u %-4s %8.2f %8.2f-%-8.2f %8.2f %8.2f %8.2f %5.1f%% %9.3f %8.2f %9.3f %9.3f %6.3f %6.3f %7.2f",
                   x->slots, state_names[state], f.rate, f.slowest, f.fastest, 1e3 * f.seconds, 1e3 * f.cpu,
                   1e3 * f.wait, 100 * f.hit_rate, f.read_bytes / 1e6, 1e3 * f.busy, 1e3 * f.disk_roof,
                   1e3 * f.memory_roof, f.busy_roof / f.seconds, f.roof / f.seconds, f.overlap);
    if (f.guessed > 0)
        ms_text_printf(&r->out, " %6.1f%%\n", 100 * f.used / f.guessed);
    else
        ms_text_puts(&r->out, "       -\n");
    ms_text_printf(&r->csv, "%s,%s,%u,%u,%u,%u,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g,%.0f,%.0f,",
                   r->decode ? "decode" : "prefill", state_names[state], x->slots, x->threads,
                   r->decode ? r->flags->tokens : r->flags->prompt, r->flags->repeat, f.rate, f.slowest, f.fastest,
                   f.seconds, f.cpu, f.wait, f.hit_rate, f.read_bytes, f.memory_bytes);
    ms_text_printf(&r->csv, "%.0f,%.0f,%.0f,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g\n", r->disk_best, r->disk_median,
                   r->memory_best, f.disk_roof, f.memory_roof, f.roof / f.seconds, f.overlap, f.guessed, f.used, f.busy,
                   f.busy_roof / f.seconds);
}

/* Measured rates and, dashed, what the roofs of the run would allow. */
static ms_status draw(bench_run *r, ms_error *err) {
    ms_plot p = {.x_name = "slots a layer", .y_name = "tokens/s", .points = r->setting_count};
    (void)snprintf(p.title, sizeof p.title, "%s, %u threads", r->program, r->settings[0].threads);
    for (int state = COLD; state < STATES; state++)
        for (int roof = 0; roof < 2; roof++) {
            char name[MS_PLOT_NAME];
            (void)snprintf(name, sizeof name, "%s%s", state_names[state], roof ? ", roof" : "");
            ms_plot_series *s = ms_plot_add(&p, name, roof);
            for (size_t i = 0; i < r->setting_count; i++) {
                figures f = compute(r, &r->settings[i], state);
                s->y[i] = roof ? 1 / f.roof : f.rate;
                (void)snprintf(p.x[i], sizeof p.x[i], "%u", r->settings[i].slots);
            }
        }
    return ms_plot_save(&p, r->flags->plot, err);
}

/* ------------------------------------------------------------------ one engine */

static ms_engine_options engine_options(const bench_run *r, const char *model, uint32_t slots) {
    ms_engine_options o = ms_model_flags_engine(r->model_flags, model);
    uint64_t need = (uint64_t)r->flags->prompt + r->flags->tokens;
    if (!o.context) o.context = need;
    o.experts = slots;
    o.snapshots = r->decode ? 1 : 0;
    o.log = ms_command_log;
    o.log_arg = (void *)(uintptr_t)r->program;
    return o;
}

/* The plan against --cap, whether or not the kernel enforces it. */
static ms_status check_cap(const bench_run *r, const ms_engine_options *o, ms_error *err) {
    uint64_t cap = r->flags->cap_bytes;
    if (!cap) return MS_OK;
    ms_plan *p = NULL;
    MS_TRY(ms_plan_create(&p, o, err));
    uint64_t total = p->total_bytes, reserve = o->reserve_bytes, left = cap / 10 < 4ull << 30 ? cap / 10 : 4ull << 30;
    uint32_t slots = p->experts;
    ms_plan_destroy(p);
    if (reserve == MS_DEFAULT_RESERVE) reserve = left;
    if (total <= cap && reserve <= cap - total) return MS_OK;
    return ms_fail(err, MS_ERR_NO_FIT,
                   "%u slots: the plan of %" PRIu64 " bytes and a reserve of %" PRIu64 " do not fit a cap of %" PRIu64,
                   slots, total, reserve, cap);
}

static ms_status rounds(bench_run *r, setting *x, ms_error *err) {
    MS_TRY(ms_session_create(&r->session, r->engine, err));
    for (uint32_t i = 0; i < r->flags->repeat; i++) {
        MS_TRY(probe(r, err));
        MS_TRY(r->decode ? decode_round(r, x, i, err) : prefill_round(r, x, i, err));
    }
    return probe(r, err);
}

static void close_engine(bench_run *r) {
    ms_session_destroy(r->session);
    ms_engine_close(r->engine);
    r->session = NULL;
    r->engine = NULL;
}

static ms_status measure(bench_run *r, const char *model, setting *x, ms_error *err) {
    ms_engine_options o = engine_options(r, model, x->slots);
    MS_TRY(ms_engine_open(&r->engine, &o, err));
    ms_model_info info;
    ms_engine_info(r->engine, &info);
    const ms_plan *plan = ms_engine_plan(r->engine);
    x->threads = info.threads;
    x->slots = plan->experts;
    x->static_bytes = ms_plan_group_bytes(plan, "static");
    x->expert_bytes = plan->expert_bytes;
    x->range_rows = plan->range_rows;
    ms_status st = rounds(r, x, err);
    close_engine(r);
    return st;
}

/* ------------------------------------------------------------------ the whole run */

static ms_status add_slots(bench_run *r, const char *text, size_t len, ms_error *err) {
    uint32_t all = r->files.model.experts.expert_count;
    char item[16];
    uint64_t v = all;
    if (r->setting_count == MAX_SLOTS)
        return ms_fail(err, MS_ERR_USAGE, "--slots: expected at most %d values", MAX_SLOTS);
    (void)snprintf(item, sizeof item, "%.*s", len < sizeof item ? (int)len : 15, text);
    if (strcmp(item, "all") != 0) MS_TRY(ms_option_parse_u64(&v, "--slots", item, 0, all, err));
    r->settings[r->setting_count++].slots = (uint32_t)v;
    return MS_OK;
}

static ms_status parse_slots(bench_run *r, ms_error *err) {
    const char *text = r->flags->slots;
    if (!text) {
        r->settings[r->setting_count++].slots = r->model_flags->experts;
        return MS_OK;
    }
    for (;;) {
        size_t len = strcspn(text, ",");
        MS_TRY(add_slots(r, text, len, err));
        if (!text[len]) return MS_OK;
        text += len + 1;
    }
}

static ms_status make_ids(bench_run *r, ms_error *err) {
    size_t n = (size_t)r->flags->prompt + r->flags->tokens;
    uint32_t vocab = r->files.model.info.vocab;
    r->ids = malloc(n * sizeof *r->ids);
    if (!r->ids) return ms_fail_memory(err, "token ids", n * sizeof *r->ids);
    uint64_t x = 0x9e3779b97f4a7c15u;
    for (size_t i = 0; i < n; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        r->ids[i] = (uint32_t)(x % vocab);
    }
    return MS_OK;
}

static ms_status prepare(bench_run *r, const char *model, ms_error *err) {
    MS_TRY(ms_probe_files_open(&r->files, model, err));
    if (!r->files.has_model) return ms_fail(err, MS_ERR_FORMAT, "%s: expected a checkpoint directory", model);
    MS_TRY(parse_slots(r, err));
    MS_TRY(make_ids(r, err));
    for (size_t i = 0; i < r->setting_count; i++) {
        ms_engine_options o = engine_options(r, model, r->settings[i].slots);
        MS_TRY(check_cap(r, &o, err));
    }
    ms_probe_machine(&r->out);
    return MS_OK;
}

static ms_status run_all(bench_run *r, const char *model, ms_error *err) {
    for (size_t i = 0; i < r->setting_count; i++) MS_TRY(measure(r, model, &r->settings[i], err));
    sum_up_probes(r);
    report_head(r);
    for (size_t i = 0; i < r->setting_count; i++)
        for (int state = COLD; state < STATES; state++) report_state(r, &r->settings[i], state);
    ms_text_printf(&r->out,
                   "this run: disk %.3f GB/s (median %.3f) in experts of %" PRIu64 " bytes, memory %.2f GB/s\n",
                   r->disk_best / 1e9, r->disk_median / 1e9, r->files.model.experts.expert_bytes, r->memory_best / 1e9);
    MS_TRY(ms_probe_save_file(r->flags->csv, &r->csv, err));
    MS_TRY(draw(r, err));
    if (r->out.failed) return ms_fail_memory(err, "report", r->out.len);
    (void)fwrite(r->out.data, 1, r->out.len, stdout);
    return MS_OK;
}

static ms_status run(bench_run *r, const char *model, ms_error *err) {
    MS_TRY(prepare(r, model, err));
    if (!r->flags->cap_bytes) return run_all(r, model, err);
    ms_memory_cap cap;
    ms_error why;
    if (ms_memory_cap_enter(&cap, NULL, r->flags->cap_bytes, &why) == MS_OK) {
        ms_text_printf(&r->out, "memory cgroup of %" PRIu64 " bytes: %s\n", r->flags->cap_bytes, cap.folder);
    } else {
        fprintf(stderr, "%s: no memory cgroup (%s); only the plan is held to the cap\n", r->program, why.message);
    }
    ms_status st = run_all(r, model, err);
    ms_memory_cap_leave(&cap);
    return st;
}

static void close_run(bench_run *r) {
    close_engine(r);
    ms_probe_files_close(&r->files);
    free(r->ids);
    ms_text_free(&r->out);
    ms_text_free(&r->csv);
    free(r);
}

static int bench(bool decoding, int argc, char **argv) {
    run_flags flags = {.prompt = 64, .tokens = 32, .repeat = 3, .probe_bytes = 128 << 20};
    ms_model_flags model_flags = ms_model_flags_default();
    const ms_option_group groups[] = {
        {"Options", options, sizeof options / sizeof options[0], &flags},
        {"Model", ms_model_option_table, ms_model_option_count, &model_flags},
    };
    const ms_option_set set = {
        .program = decoding ? "moonshine bench decode" : "moonshine bench prefill",
        .synopsis = "[MODEL] [options]",
        .about = decoding ? "Decodes tokens one by one, with an empty expert cache (cold) and again (warm)."
                          : "Evaluates a prompt, with an empty expert cache (cold) and again (warm).",
        .epilogue = "disk ms and memory ms: time a token that its bytes take at the best rates of this run (disk: or at "
                    "--read-limit); roof: the larger of them over the time it took; busy ms: time a token that reads "
                    "were certainly under way; busy: roof with that instead of disk ms; overlap: 1 when reading and "
                    "work hide each other, 0 when their times add up.",
        .groups = groups,
        .group_count = 2,
        .max_args = 1};
    ms_option_result result;
    int code = ms_command_parse(&set, argc, argv, &result);
    if (code >= 0) return code;
    const char *model = ms_command_model(set.program, &result, 0);
    if (!model) return 2;
    bench_run *r = calloc(1, sizeof *r);
    ms_error err;
    ms_status st = r ? MS_OK : ms_fail_memory(&err, "figures", sizeof *r);
    if (r) {
        r->program = set.program;
        r->decode = decoding;
        r->flags = &flags;
        r->model_flags = &model_flags;
        st = run(r, model, &err);
        close_run(r);
    }
    return st == MS_OK ? ms_command_finish(set.program) : ms_command_fail(set.program, &err);
}

int ms_bench_decode(int argc, char **argv) { return bench(true, argc, argv); }
int ms_bench_prefill(int argc, char **argv) { return bench(false, argc, argv); }
