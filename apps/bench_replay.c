/* bench_replay.c: `moonshine bench replay`: a route trace against real reads, with the arithmetic left out.
 *
 * The expert service runs as in decoding: one request a layer, cache, reads, lookahead; between requests the thread is
 * busy for --busy microseconds.  Installs do nothing unless --install asks for them.  So what is measured is the drive,
 * the cache and how reads and work overlap, and it is the same from run to run as far as the drive is.
 */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/loader.h"
#include "base/clock.h"
#include "bench.h"
#include "bench_probe.h"
#include "command.h"
#include "route_trace.h"

enum { MAX_REPEAT = 25, PROBE_DEPTHS = 6 };
static const unsigned probe_depths[PROBE_DEPTHS] = {1, 2, 4, 8, 16, 32};

typedef struct replay_flags {
    const char *trace, *csv;
    uint64_t probe_bytes;
    uint32_t tokens, experts, staging, depth, busy_us, repeat, threads;
    double reuse, guess;
    bool install, no_direct, no_uring;
} replay_flags;

#define FIELD(f) offsetof(replay_flags, f)
static const ms_option options[] = {
    {.name = "trace",
     .type = MS_OPTION_STRING,
     .offset = FIELD(trace),
     .arg = "FILE",
     .help = "Routes to replay, as moonshine trace writes them (default: made up)."},
    {.name = "tokens",
     .type = MS_OPTION_U32,
     .offset = FIELD(tokens),
     .arg = "N",
     .min = 1,
     .max = 1 << 20,
     .help = "Of a made up trace; at most so many of a file (default: 64, or the whole file)."},
    {.name = "reuse",
     .type = MS_OPTION_REAL,
     .offset = FIELD(reuse),
     .arg = "P",
     .low = 0,
     .high = 1,
     .help = "Made up: chance that the next token uses an expert again (default: 0.29)."},
    {.name = "experts",
     .type = MS_OPTION_U32,
     .offset = FIELD(experts),
     .arg = "N",
     .max = 65536,
     .help = "Cache slots a routed layer (default: 32, or all if that is less)."},
    {.name = "staging",
     .type = MS_OPTION_U32,
     .offset = FIELD(staging),
     .arg = "N",
     .min = 1,
     .max = 1024,
     .help = "Expert read buffers (default: 16)."},
    {.name = "depth",
     .type = MS_OPTION_U32,
     .offset = FIELD(depth),
     .arg = "N",
     .min = 1,
     .max = 1024,
     .help = "Expert reads in flight (default: the smallest that a short probe finds within 5 % of the best)."},
    {.name = "busy",
     .type = MS_OPTION_U32,
     .offset = FIELD(busy_us),
     .arg = "US",
     .max = 10000000,
     .help = "Microseconds of work a layer: half of it before the request, half beside its reads (default: 0)."},
    {.name = "guess",
     .type = MS_OPTION_REAL,
     .offset = FIELD(guess),
     .arg = "P",
     .low = 0,
     .high = 1,
     .help = "Lookahead in which a guessed expert is right with this chance (default: no lookahead)."},
    {.name = "install", .type = MS_OPTION_FLAG, .offset = FIELD(install), .help = "Put experts into their slots too."},
    {.name = "repeat",
     .type = MS_OPTION_U32,
     .offset = FIELD(repeat),
     .arg = "N",
     .min = 1,
     .max = MAX_REPEAT,
     .help = "Rounds, each from an empty cache; medians are printed (default: 3)."},
    {.name = "probe",
     .type = MS_OPTION_BYTES,
     .offset = FIELD(probe_bytes),
     .arg = "BYTES",
     .min = 1,
     .max = 1ull << 40,
     .help = "To read for one disk rate (default: 64M)."},
    {.name = "threads",
     .type = MS_OPTION_U32,
     .offset = FIELD(threads),
     .arg = "N",
     .max = 256,
     .help = "Threads that install (default: all processors)."},
    {.name = "csv",
     .type = MS_OPTION_STRING,
     .offset = FIELD(csv),
     .arg = "FILE",
     .help = "Write the figures also there."},
    {.name = "no-direct", .type = MS_OPTION_FLAG, .offset = FIELD(no_direct), .help = "Read through the page cache."},
    {.name = "no-uring", .type = MS_OPTION_FLAG, .offset = FIELD(no_uring), .help = "Read with pread."},
};

typedef struct replay {
    const replay_flags *flags;
    ms_probe_files files;
    ms_route_trace trace;
    ms_backend *backend;
    ms_expert_service *service;
    uint32_t *guess;        /* [top_k] */
    ms_expert_ready *ready; /* [top_k] */
    uint64_t random;
    double probe[PROBE_DEPTHS][MAX_REPEAT + 1], best; /* bytes a second */
    unsigned depth;
    double seconds[MAX_REPEAT], wait[MAX_REPEAT], cpu[MAX_REPEAT];
    ms_engine_stats stats; /* of one round: all are alike but in time */
} replay;

/* ------------------------------------------------------------------ a backend that moves nothing */

static ms_status install_nothing(ms_backend *be, void *slot, const uint8_t *staging, ms_expert_shape s,
                                 uint32_t *ticket, ms_error *err) {
    (void)be;
    (void)slot;
    (void)staging;
    (void)s;
    (void)err;
    *ticket = 0;
    return MS_OK;
}

static ms_status nothing_ended(ms_backend *be, uint32_t ticket, bool wait, bool *done, ms_error *err) {
    (void)be;
    (void)ticket;
    (void)wait;
    (void)err;
    *done = true;
    return MS_OK;
}

/* ------------------------------------------------------------------ probing */

static ms_status probe_round(replay *r, uint32_t round, ms_error *err) {
    for (size_t i = 0; i < PROBE_DEPTHS; i++) {
        ms_probe_point p = {.experts = true,
                            .depth = probe_depths[i],
                            .bytes = r->flags->probe_bytes,
                            .seed = 7919 * (uint64_t)round + i,
                            .buffered = r->flags->no_direct,
                            .no_uring = r->flags->no_uring};
        ms_probe_rate rate;
        MS_TRY(ms_probe_disk(&r->files, &p, &rate, err));
        r->probe[i][round] = rate.bytes_per_second;
    }
    return MS_OK;
}

static void choose_depth(replay *r) {
    double best = 0;
    for (size_t i = 0; i < PROBE_DEPTHS; i++)
        if (r->probe[i][0] > best) best = r->probe[i][0];
    size_t at = 0;
    while (r->probe[at][0] < 0.95 * best) at++;
    r->depth = r->flags->depth ? r->flags->depth : probe_depths[at];
    if (r->depth > r->flags->staging) r->depth = r->flags->staging;
}

/* ------------------------------------------------------------------ replaying */

static void be_busy(uint64_t us) {
    for (uint64_t end = ms_clock_ns() + 1000 * us; us && ms_clock_ns() < end;) continue;
}

static double draw(replay *r) {
    r->random ^= r->random << 13;
    r->random ^= r->random >> 7;
    r->random ^= r->random << 17;
    return (double)(r->random >> 11) * 0x1p-53;
}

static void guess_next(replay *r, uint32_t token, uint32_t layer) {
    const ms_route_trace *t = &r->trace;
    uint32_t experts = r->files.model.experts.expert_count, n = t->top_k - t->top_k / 4;
    if (layer + 1 >= t->layers || !ms_expert_wants_guess(r->service, layer + 1)) return;
    const uint32_t *right = ms_route_trace_row(t, token, layer + 1);
    for (uint32_t i = 0; i < n;) {
        uint32_t id = draw(r) < r->flags->guess ? right[i] : (uint32_t)(draw(r) * experts);
        bool twice = false;
        for (uint32_t j = 0; j < i; j++) twice |= r->guess[j] == id;
        if (!twice) r->guess[i++] = id;
    }
    ms_expert_guess(r->service, layer + 1, r->guess, n);
}

static ms_status one_layer(replay *r, uint32_t token, uint32_t layer, ms_error *err) {
    const ms_route_trace *t = &r->trace;
    uint64_t busy = r->flags->busy_us;
    be_busy(busy / 2);
    MS_TRY(ms_expert_request(r->service, layer, ms_route_trace_row(t, token, layer), NULL, t->top_k, err));
    be_busy(busy - busy / 2);
    ms_status st = MS_OK;
    for (uint32_t got = 1; got && st == MS_OK;) st = ms_expert_next(r->service, r->ready, &got, err);
    ms_expert_end(r->service);
    if (st == MS_OK) guess_next(r, token, layer);
    return st;
}

static ms_status replay_round(replay *r, uint32_t round, ms_error *err) {
    ms_engine_stats before, *after = &r->stats;
    MS_TRY(ms_expert_service_check(r->service, err)); /* empties the cache */
    ms_expert_service_stats(r->service, &before);
    double cpu = ms_probe_cpu_seconds();
    uint64_t start = ms_clock_ns();
    r->random = 0x9e3779b97f4a7c15u;
    for (uint32_t token = 0; token < r->trace.tokens; token++)
        for (uint32_t layer = 0; layer < r->trace.layers; layer++) MS_TRY(one_layer(r, token, layer, err));
    r->seconds[round] = (double)(ms_clock_ns() - start) / 1e9;
    r->cpu[round] = ms_probe_cpu_seconds() - cpu;
    ms_expert_service_stats(r->service, after);
    r->wait[round] = (double)(after->read_wait_ns - before.read_wait_ns) / 1e9;
    after->expert_accesses -= before.expert_accesses;
    after->expert_hits -= before.expert_hits;
    after->expert_reads -= before.expert_reads;
    after->expert_read_bytes -= before.expert_read_bytes;
    after->guessed_reads -= before.guessed_reads;
    after->guesses_used -= before.guesses_used;
    return MS_OK;
}

static ms_status open_service(replay *r, ms_error *err) {
    const replay_flags *f = r->flags;
    const ms_model *m = &r->files.model;
    ms_backend_options bo = {.threads = f->threads};
    MS_TRY(ms_backend_open(&r->backend, &bo, err));
    if (!f->install) {
        r->backend->install_begin = install_nothing;
        r->backend->finish = nothing_ended;
    }
    uint32_t slots = f->experts < m->experts.expert_count ? f->experts : m->experts.expert_count;
    ms_expert_service_options eo = {.shape = m->info.expert_shape,
                                    .slots = slots,
                                    .staging = f->staging,
                                    .read_depth = r->depth,
                                    .buffered = f->no_direct,
                                    .no_uring = f->no_uring,
                                    .lookahead = f->guess >= 0};
    return ms_expert_service_create(&r->service, r->backend, m->checkpoint, &m->experts, &eo, err);
}

static ms_status prepare(replay *r, const char *model, ms_error *err) {
    const replay_flags *f = r->flags;
    MS_TRY(ms_probe_files_open(&r->files, model, err));
    if (!r->files.has_model) return ms_fail(err, MS_ERR_FORMAT, "%s: expected a checkpoint directory", model);
    const ms_expert_table *x = &r->files.model.experts;
    MS_TRY(f->trace ? ms_route_trace_read(&r->trace, f->trace, x->layer_count, x->expert_count, err)
                    : ms_route_trace_make(&r->trace, f->tokens ? f->tokens : 64, x->layer_count,
                                          r->files.model.info.top_k, x->expert_count, f->reuse, err));
    if (f->tokens && f->tokens < r->trace.tokens) r->trace.tokens = f->tokens;
    r->guess = calloc(r->trace.top_k, sizeof *r->guess);
    r->ready = calloc(r->trace.top_k, sizeof *r->ready);
    if (!r->guess || !r->ready) return ms_fail_memory(err, "request", r->trace.top_k * sizeof *r->ready);
    MS_TRY(probe_round(r, 0, err));
    choose_depth(r);
    return open_service(r, err);
}

/* ------------------------------------------------------------------ report */

static void report(replay *r, ms_text *out, ms_text *csv) {
    uint32_t n = r->flags->repeat;
    double seconds = ms_probe_median(r->seconds, n), wait = ms_probe_median(r->wait, n),
           cpu = ms_probe_median(r->cpu, n);
    double best = 0, at_depth = 0, tokens = r->trace.tokens;
    ms_probe_machine(out);
    ms_text_puts(out, "reader alone, GB/s:");
    for (size_t i = 0; i < PROBE_DEPTHS; i++) {
        double rate = ms_probe_median(r->probe[i], n + 1);
        if (rate > best) best = rate;
        if (probe_depths[i] <= r->depth && rate > at_depth) at_depth = rate;
        ms_text_printf(out, "  depth %u %.3f", probe_depths[i], rate / 1e9);
    }
    const ms_engine_stats *s = &r->stats;
    double rate = (double)s->expert_read_bytes / seconds, busy = 1e-6 * r->flags->busy_us * tokens * r->trace.layers;
    double disk = (double)s->expert_read_bytes / best, roof = disk > busy ? disk : busy;
    double hits = s->expert_accesses ? (double)s->expert_hits / (double)s->expert_accesses : 0;
    double used = s->guessed_reads ? (double)s->guesses_used / (double)s->guessed_reads : 0;
    ms_text_printf(out, "\n%u tokens, %u layers, %u experts each; depth %u; %.1f %% hits\n", r->trace.tokens,
                   r->trace.layers, r->trace.top_k, r->depth, 100 * hits);
    ms_text_printf(
        out, "%.2f tokens/s, %.0f reads/s, %.3f GB/s = %.1f %% of the best depth alone; %.0f %% of the time waiting\n",
        tokens / seconds, (double)s->expert_reads / seconds, rate / 1e9, 100 * rate / best, 100 * wait / seconds);
    ms_text_printf(out, "%.3f s; disk alone %.3f, work alone %.3f: %.1f %% of the larger; %.3f CPU seconds\n", seconds,
                   disk, busy, 100 * roof / seconds, cpu);
    if (s->guessed_reads)
        ms_text_printf(out, "%" PRIu64 " guessed reads, %.1f %% of them used\n", s->guessed_reads, 100 * used);
    ms_text_puts(csv,
                 "tokens,layers,top_k,depth,hit_rate,seconds,reads,read_bytes,bytes_per_second,best_bytes_per_second,"
                 "depth_bytes_per_second,share,wait_seconds,busy_seconds,roof_ratio,cpu_seconds,guessed,used\n");
    ms_text_printf(csv,
                   "%u,%u,%u,%u,%.6g,%.6g,%" PRIu64 ",%" PRIu64 ",%.0f,%.0f,%.0f,%.4f,%.6g,%.6g,%.4f,%.6g,%" PRIu64
                   ",%" PRIu64 "\n",
                   r->trace.tokens, r->trace.layers, r->trace.top_k, r->depth, hits, seconds, s->expert_reads,
                   s->expert_read_bytes, rate, best, at_depth, rate / best, wait, busy, roof / seconds, cpu,
                   s->guessed_reads, s->guesses_used);
}

static ms_status run(replay *r, const char *model, ms_error *err) {
    MS_TRY(prepare(r, model, err));
    for (uint32_t i = 0; i < r->flags->repeat; i++) {
        MS_TRY(replay_round(r, i, err));
        MS_TRY(probe_round(r, i + 1, err));
    }
    ms_text out = {0}, csv = {0};
    report(r, &out, &csv);
    ms_status st = out.failed ? ms_fail_memory(err, "report", out.len) : ms_probe_save_file(r->flags->csv, &csv, err);
    if (st == MS_OK) (void)fwrite(out.data, 1, out.len, stdout);
    ms_text_free(&out);
    ms_text_free(&csv);
    return st;
}

int ms_bench_replay(int argc, char **argv) {
    replay_flags flags = {
        .experts = 32, .staging = 16, .repeat = 3, .probe_bytes = 64 << 20, .reuse = 0.29, .guess = -1};
    const ms_option_group groups[] = {{"Options", options, sizeof options / sizeof options[0], &flags}};
    const ms_option_set set = {
        .program = "moonshine bench replay",
        .synopsis = "[MODEL] [options]",
        .about = "Replays which experts tokens use, with the model's real reads and cache and without "
                 "its arithmetic.",
        .groups = groups,
        .group_count = 1,
        .max_args = 1};
    ms_option_result result;
    int code = ms_command_parse(&set, argc, argv, &result);
    if (code >= 0) return code;
    const char *model = ms_command_model(set.program, &result, 0);
    if (!model) return 2;
    replay *r = calloc(1, sizeof *r);
    ms_error err;
    ms_status st = r ? MS_OK : ms_fail_memory(&err, "figures", sizeof *r);
    if (r) {
        r->flags = &flags;
        st = run(r, model, &err);
        ms_expert_service_destroy(r->service);
        if (r->backend) r->backend->destroy(r->backend);
        ms_probe_files_close(&r->files);
        ms_route_trace_free(&r->trace);
        free(r->guess);
        free(r->ready);
        free(r);
    }
    return st == MS_OK ? ms_command_finish(set.program) : ms_command_fail(set.program, &err);
}
