#include "server/diagnostics.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"

enum { MASK_EXPERTS = 64, PATH_BYTES = 4096, TAP_HEAD = 32, TAP_RECORD = 16, TAP_VERSION = 1, TAP_F32 = 1 };
enum { FILE_CACHE, FILE_LEDGER, FILE_ROUTES, FILE_LOGITS, FILES };

/* Sums of one layer over the steps of a capture. */
typedef struct sums {
    uint64_t accesses, hits, misses, reads, logical_bytes, physical_bytes, waits, completions, most_in_flight;
    uint64_t before_ns, read_wait_ns, pipeline_ns, expert_sync_ns, shared_sync_ns, interval_ns;
} sums;

typedef struct output {
    char path[PATH_BYTES];
    FILE *file;
    off_t start; /* where the open capture begins */
} output;

struct ms_diagnostics {
    output out[FILES];
    uint32_t top_k, experts, layers;
    ms_expert_watch watch;
    ms_causal *timeline; /* NULL: no capture is open */
    uint64_t captures, steps;
    uint64_t last_ns; /* end of the last layer */
    ms_reader_stats reader;
    bool first;         /* no request of the capture has ended yet */
    bool broken;        /* a request came that is not one row's */
    uint32_t expected;  /* routed layer */
    sums *layer;        /* [layers] */
    uint32_t *resident; /* [experts] */
    uint8_t *record;    /* of the tap: [experts] floats, little endian */
};

/* ------------------------------------------------------------------ files */

static ms_status create_file(output *o, const char *prefix, const char *suffix, ms_error *err) {
    int n = snprintf(o->path, sizeof o->path, "%s%s", prefix, suffix);
    if (n < 0 || (size_t)n >= sizeof o->path) {
        o->path[0] = 0;
        return ms_fail(err, MS_ERR_USAGE, "--decode-diagnostics: the path is too long");
    }
    int fd = open(o->path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    ms_status st = fd < 0 ? ms_fail_errno(err, MS_ERR_IO, errno, "%s: create", o->path) : MS_OK;
    if (st != MS_OK) {
        o->path[0] = 0; /* not ours */
        return st;
    }
    if (fchmod(fd, 0600) == 0) o->file = fdopen(fd, "w");
    if (o->file) return MS_OK;
    st = ms_fail_errno(err, MS_ERR_IO, errno, "%s: create", o->path);
    (void)close(fd);
    return st;
}

static ms_status flush_all(ms_diagnostics *d, ms_error *err) {
    for (size_t i = 0; i < FILES; i++) {
        FILE *f = d->out[i].file;
        if (!f) continue;
        if (fflush(f) != 0 || ferror(f)) return ms_fail_errno(err, MS_ERR_IO, errno, "%s: write", d->out[i].path);
    }
    return MS_OK;
}

static void write_heads(ms_diagnostics *d) {
    (void)fputs("capture,layer,lru_rank,expert_id\n", d->out[FILE_CACHE].file);
    (void)fputs("capture,scope,layer,steps,accesses,hits,misses,read_requests,logical_expert_bytes,physical_read_bytes,"
                "wait_calls,completions,max_inflight,pre_moe_seconds,io_wait_seconds,expert_pipeline_seconds,"
                "expert_sync_seconds,shared_sync_seconds,host_interval_seconds\n",
                d->out[FILE_LEDGER].file);
    FILE *routes = d->out[FILE_ROUTES].file;
    (void)fputs("capture,step,position,layer,observed_hit_mask", routes);
    for (uint32_t i = 0; i < d->top_k; i++) (void)fprintf(routes, ",expert_%u", i);
    (void)fputc('\n', routes);
    if (!d->out[FILE_LOGITS].file) return;
    uint8_t head[TAP_HEAD] = "MSRLTAP1";
    ms_put_le32(head + 8, TAP_VERSION);
    ms_put_le32(head + 12, d->layers);
    ms_put_le32(head + 16, d->experts);
    ms_put_le32(head + 20, TAP_F32);
    (void)fwrite(head, 1, sizeof head, d->out[FILE_LOGITS].file);
}

static ms_status create_all(ms_diagnostics *d, const char *prefix, bool logits, ms_error *err) {
    static const char *const suffixes[] = {".cache.csv", ".ledger.csv", ".routes.csv", ".logits.bin"};
    d->layer = calloc(d->layers, sizeof *d->layer);
    d->resident = calloc(d->experts, sizeof *d->resident);
    d->record = calloc(d->experts, sizeof(float));
    if (!d->layer || !d->resident || !d->record) return ms_fail_memory(err, "decode diagnostics", d->experts);
    for (size_t i = 0; i < (logits ? FILES : FILE_LOGITS); i++) {
        MS_TRY(create_file(&d->out[i], prefix, suffixes[i], err));
    }
    write_heads(d);
    return flush_all(d, err);
}

ms_status ms_diagnostics_create(ms_diagnostics **out, const char *prefix, bool logits, const ms_lane_info *info,
                                ms_error *err) {
    *out = NULL;
    if (!info->moe_layer_count || !info->top_k || info->top_k > MASK_EXPERTS)
        return ms_fail(err, MS_ERR_UNSUPPORTED, "--decode-diagnostics: expected 1 to %d experts a token, found %u",
                       MASK_EXPERTS, info->top_k);
    ms_diagnostics *d = calloc(1, sizeof *d);
    if (!d) return ms_fail_memory(err, "decode diagnostics", sizeof *d);
    d->top_k = info->top_k;
    d->experts = info->experts;
    d->layers = info->moe_layer_count;
    ms_status st = create_all(d, prefix, logits, err);
    if (st == MS_OK) {
        *out = d;
        return MS_OK;
    }
    for (size_t i = 0; i < FILES; i++) {
        if (d->out[i].path[0]) (void)unlink(d->out[i].path);
    }
    ms_diagnostics_destroy(d);
    return st;
}

void ms_diagnostics_destroy(ms_diagnostics *d) {
    if (!d) return;
    for (size_t i = 0; i < FILES; i++) {
        if (d->out[i].file) (void)fclose(d->out[i].file);
    }
    free(d->layer);
    free(d->resident);
    free(d->record);
    free(d);
}

/* ------------------------------------------------------------------ looking on */

static void write_route(ms_diagnostics *d, const ms_expert_account *a) {
    FILE *f = d->out[FILE_ROUTES].file;
    uint64_t mask = 0;
    for (uint32_t i = 0; i < a->count; i++) mask |= (uint64_t)(a->wants[i].kind == MS_WANT_HIT) << i;
    (void)fprintf(f, "%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%u,%" PRIu64, d->captures, d->steps,
                  d->timeline->ops->position(d->timeline), a->layer, mask);
    for (uint32_t i = 0; i < a->count; i++) (void)fprintf(f, ",%u", a->wants[i].expert);
    (void)fputc('\n', f);
}

static void add_account(ms_diagnostics *d, const ms_expert_account *a) {
    sums *s = &d->layer[a->moe_layer];
    for (uint32_t i = 0; i < a->count; i++) s->hits += a->wants[i].kind == MS_WANT_HIT;
    s->accesses += a->count;
    s->misses = s->accesses - s->hits;
    s->logical_bytes += a->miss_bytes;
    s->waits += a->wait_calls;
    s->completions += a->completions;
    if (a->in_flight > s->most_in_flight) s->most_in_flight = a->in_flight;
    const ms_reader_stats *before = d->first ? &a->reader_before : &d->reader; /* guesses are read in between */
    s->reads += a->reader.reads - before->reads;
    s->physical_bytes += a->reader.device_bytes - before->device_bytes;
    s->read_wait_ns += a->reader.wait_ns - before->wait_ns;
    s->before_ns += a->planned_ns - d->last_ns;
    s->pipeline_ns += a->ended_ns - a->planned_ns;
    s->shared_sync_ns += a->first_ns - a->planned_ns;
    s->expert_sync_ns += a->install_ns;
    s->interval_ns += a->ended_ns - d->last_ns;
}

static void on_request(void *arg, const ms_expert_account *a) {
    ms_diagnostics *d = arg;
    if (a->count != d->top_k || a->moe_layer != d->expected || a->moe_layer >= d->layers) {
        d->broken = true;
        return;
    }
    write_route(d, a);
    add_account(d, a);
    d->reader = a->reader;
    d->last_ns = a->ended_ns;
    d->first = false;
    if (++d->expected < d->layers) return;
    d->expected = 0;
    d->steps++;
}

static void on_logits(void *arg, uint32_t layer, const float *logits, uint32_t experts) {
    ms_diagnostics *d = arg;
    uint8_t head[TAP_RECORD] = {0};
    if (experts != d->experts || layer > UINT16_MAX) {
        d->broken = true;
        return;
    }
    ms_put_le32(head, (uint32_t)d->captures);
    ms_put_le32(head + 4, (uint32_t)d->steps);
    ms_put_le32(head + 8, (uint32_t)d->timeline->ops->position(d->timeline));
    head[12] = (uint8_t)layer;
    head[13] = (uint8_t)(layer >> 8);
    for (uint32_t i = 0; i < experts; i++) ms_put_le32(d->record + 4 * (size_t)i, ms_f32_bits(logits[i]));
    (void)fwrite(head, 1, sizeof head, d->out[FILE_LOGITS].file);
    (void)fwrite(d->record, sizeof(float), experts, d->out[FILE_LOGITS].file);
}

/* ------------------------------------------------------------------ captures */

static void write_cache(ms_diagnostics *d, ms_causal *t) {
    for (uint32_t i = 0; i < t->routed_count; i++) {
        uint32_t n = t->ops->resident(t, i, d->resident);
        for (uint32_t k = 0; k < n; k++)
            (void)fprintf(d->out[FILE_CACHE].file, "%" PRIu64 ",%u,%u,%u\n", d->captures, t->routed[i], k,
                          d->resident[k]);
    }
}

void ms_diagnostics_begin(ms_diagnostics *d, ms_causal *t) {
    if (!d || !t->ops->watch) return;
    ms_diagnostics_rollback(d, t);
    d->captures++;
    d->timeline = t;
    d->steps = d->expected = 0;
    d->broken = false;
    for (size_t i = 0; i < FILES; i++) {
        output *o = &d->out[i];
        if (o->file) o->start = ftello(o->file);
        if (o->file && o->start < 0) d->broken = true;
    }
    memset(d->layer, 0, d->layers * sizeof *d->layer);
    write_cache(d, t);
    d->first = true;
    d->last_ns = ms_clock_ns();
    bool logits = d->out[FILE_LOGITS].file && t->tap_device;
    d->watch = (ms_expert_watch){.request = on_request,
                                 .logits = logits ? on_logits : NULL,
                                 .arg = d,
                                 .device = t->tap_device,
                                 .host = t->tap_host};
    t->ops->watch(t, &d->watch);
}

void ms_diagnostics_resume(ms_diagnostics *d) {
    if (d) d->last_ns = ms_clock_ns();
}

static double seconds(uint64_t ns) { return (double)ns / 1e9; }

static void write_sums(ms_diagnostics *d, const char *scope, uint32_t layer, const sums *s) {
    (void)fprintf(d->out[FILE_LEDGER].file,
                  "%" PRIu64 ",%s,%u,%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64
                  ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%.9f,%.9f,%.9f,%.9f,%.9f,%.9f\n",
                  d->captures, scope, layer, d->steps, s->accesses, s->hits, s->misses, s->reads, s->logical_bytes,
                  s->physical_bytes, s->waits, s->completions, s->most_in_flight, seconds(s->before_ns),
                  seconds(s->read_wait_ns), seconds(s->pipeline_ns), seconds(s->expert_sync_ns),
                  seconds(s->shared_sync_ns), seconds(s->interval_ns));
}

static void write_ledger(ms_diagnostics *d, const ms_causal *t) {
    sums all = {0};
    for (uint32_t i = 0; i < d->layers; i++) {
        const sums *s = &d->layer[i];
        all.accesses += s->accesses;
        all.hits += s->hits;
        all.misses += s->misses;
        all.reads += s->reads;
        all.logical_bytes += s->logical_bytes;
        all.physical_bytes += s->physical_bytes;
        all.waits += s->waits;
        all.completions += s->completions;
        if (s->most_in_flight > all.most_in_flight) all.most_in_flight = s->most_in_flight;
        all.before_ns += s->before_ns;
        all.read_wait_ns += s->read_wait_ns;
        all.pipeline_ns += s->pipeline_ns;
        all.expert_sync_ns += s->expert_sync_ns;
        all.shared_sync_ns += s->shared_sync_ns;
        all.interval_ns += s->interval_ns;
    }
    write_sums(d, "summary", 0, &all);
    for (uint32_t i = 0; i < d->layers; i++) write_sums(d, "layer", t->routed[i], &d->layer[i]);
}

ms_status ms_diagnostics_commit(ms_diagnostics *d, ms_causal *t, uint64_t *capture, ms_error *err) {
    *capture = 0;
    if (!d || !d->timeline) return MS_OK;
    t->ops->watch(t, NULL);
    ms_status st = d->broken || d->expected || t->routed_count != d->layers
                       ? ms_fail(err, MS_ERR_INTERNAL, "diagnostics: requests are not one a layer")
                       : MS_OK;
    if (st == MS_OK) {
        write_ledger(d, t);
        st = flush_all(d, err);
    }
    if (st != MS_OK) {
        ms_diagnostics_rollback(d, t);
        return st;
    }
    d->timeline = NULL;
    *capture = d->captures;
    return MS_OK;
}

void ms_diagnostics_rollback(ms_diagnostics *d, ms_causal *t) {
    if (!d || !d->timeline) return;
    t->ops->watch(t, NULL);
    d->timeline = NULL;
    for (size_t i = 0; i < FILES; i++) {
        output *o = &d->out[i];
        if (!o->file || o->start < 0) continue;
        __fpurge(o->file); /* a full disk may have left something in the buffer */
        clearerr(o->file);
        if (ftruncate(fileno(o->file), o->start) == 0) (void)fseeko(o->file, o->start, SEEK_SET);
    }
}
