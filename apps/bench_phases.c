#include "bench_phases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

enum { KINDS = 48 };

typedef struct kind {
    char name[40];
    uint64_t calls, ns, bytes; /* bytes: of weights */
} kind;

struct ms_phases {
    ms_backend base; /* first: the public object is this one */
    ms_backend *inner;
    ms_error failure;  /* first of the waits */
    kind kinds[KINDS]; /* the last one also takes what does not fit */
    uint32_t count;
};

static ms_phases *phases_of(ms_backend *be) { return (ms_phases *)(void *)be; }

/* Waits for what was begun at `start` and counts it. */
static void done(ms_phases *p, const char *name, uint64_t start, uint64_t bytes) {
    ms_error err;
    if (p->inner->sync(p->inner, &err) != MS_OK && p->failure.code == MS_OK) p->failure = err;
    uint64_t ns = ms_clock_ns() - start;
    uint32_t i = 0;
    while (i < p->count && strcmp(p->kinds[i].name, name) != 0) i++;
    if (i == KINDS) i--;
    kind *k = &p->kinds[i];
    if (i == p->count) {
        (void)snprintf(k->name, sizeof k->name, "%s", name);
        p->count++;
    }
    k->calls++;
    k->ns += ns;
    k->bytes += bytes;
}

static uint64_t weight_bytes(const ms_weight *w) { return ms_weight_bytes(w->format, w->rows, w->cols); }

static ms_status phase_sync(ms_backend *be, ms_error *err) {
    ms_phases *p = phases_of(be);
    ms_status st = p->inner->sync(p->inner, err);
    if (p->failure.code == MS_OK) return st;
    st = p->failure.code;
    if (err) *err = p->failure;
    p->failure = (ms_error){0};
    return st;
}

static void phase_fetch_begin(ms_backend *be, const void *dev, size_t bytes) {
    ms_backend *in = phases_of(be)->inner;
    in->fetch_begin(in, dev, bytes);
}

static ms_status phase_fetch_end(ms_backend *be, void *host, ms_error *err) {
    uint64_t start = ms_clock_ns();
    ms_phases *p = phases_of(be);
    ms_status st = p->inner->fetch_end(p->inner, host, err);
    if (p->failure.code != MS_OK) st = phase_sync(be, err);
    done(p, "fetch", start, 0);
    return st;
}

static void phase_copy(ms_backend *be, void *to, const void *from, size_t bytes) {
    uint64_t start = ms_clock_ns();
    ms_backend *in = phases_of(be)->inner;
    in->copy(in, to, from, bytes);
    done(phases_of(be), "copy", start, 0);
}

static void phase_rms_norm(ms_backend *be, float *out, const float *x, uint32_t n, uint32_t dim, const ms_weight *w,
                           float eps) {
    uint64_t start = ms_clock_ns();
    ms_backend *in = phases_of(be)->inner;
    in->rms_norm(in, out, x, n, dim, w, eps);
    done(phases_of(be), "rms_norm", start, 0);
}

static void phase_mix_norm(ms_backend *be, float *out, const ms_mix *mix, uint32_t n, uint32_t dim, float eps,
                           const ms_weight *norm) {
    uint64_t start = ms_clock_ns();
    ms_backend *in = phases_of(be)->inner;
    in->mix_norm(in, out, mix, n, dim, eps, norm);
    done(phases_of(be), "mix_norm", start, 0);
}

static void phase_project(ms_backend *be, const float *x, uint32_t n, const ms_product *products, uint32_t count) {
    uint64_t start = ms_clock_ns(), bytes = 0, rows = 0;
    ms_backend *in = phases_of(be)->inner;
    in->project(in, x, n, products, count);
    for (uint32_t i = 0; i < count; i++) {
        bytes += weight_bytes(products[i].weight);
        rows += products[i].weight->rows;
    }
    char name[40];
    (void)snprintf(name, sizeof name, "project %u: %llu x %u", count, (unsigned long long)rows,
                   count ? products[0].weight->cols : 0);
    done(phases_of(be), name, start, bytes);
}

static void phase_mlp(ms_backend *be, float *out, const float *x, uint32_t n, const ms_weight *gate,
                      const ms_weight *up, const ms_weight *down, ms_situ act) {
    uint64_t start = ms_clock_ns();
    ms_backend *in = phases_of(be)->inner;
    in->mlp(in, out, x, n, gate, up, down, act);
    char name[40];
    (void)snprintf(name, sizeof name, "mlp %u x %u", gate->rows, gate->cols);
    done(phases_of(be), name, start, weight_bytes(gate) + weight_bytes(up) + weight_bytes(down));
}

static void phase_kda_range(ms_backend *be, const ms_kda *kda, const ms_kda_io *io, uint32_t n) {
    uint64_t start = ms_clock_ns();
    ms_backend *in = phases_of(be)->inner;
    in->kda_range(in, kda, io, n);
    done(phases_of(be), "kda_range", start, 8ull * kda->heads * kda->dim * kda->dim); /* state: read and written */
}

static void phase_mla_range(ms_backend *be, const ms_mla *mla, const ms_mla_io *io, uint32_t n) {
    uint64_t start = ms_clock_ns();
    ms_backend *in = phases_of(be)->inner;
    in->mla_range(in, mla, io, n);
    done(phases_of(be), "mla_range", start, weight_bytes(mla->kv_b));
}

static void phase_add(ms_backend *be, float *sum, const float *a, const float *b, size_t n) {
    uint64_t start = ms_clock_ns();
    ms_backend *in = phases_of(be)->inner;
    in->add(in, sum, a, b, n);
    done(phases_of(be), "add", start, 0);
}

static void phase_router_topk(ms_backend *be, uint32_t *ids, float *weights, const float *x, uint32_t n,
                              const ms_router *r) {
    uint64_t start = ms_clock_ns();
    ms_backend *in = phases_of(be)->inner;
    in->router_topk(in, ids, weights, x, n, r);
    done(phases_of(be), "router_topk", start, weight_bytes(r->gate));
}

static void phase_experts_begin(ms_backend *be, const float *z, uint32_t n, ms_expert_shape s) {
    uint64_t start = ms_clock_ns();
    ms_backend *in = phases_of(be)->inner;
    in->experts_begin(in, z, n, s);
    done(phases_of(be), "experts_begin", start, 0);
}

static void phase_experts_run(ms_backend *be, float *y, ms_expert_shape s, ms_situ act, const ms_expert_batch *batches,
                              uint32_t count) {
    uint64_t start = ms_clock_ns();
    ms_backend *in = phases_of(be)->inner;
    in->experts_run(in, y, s, act, batches, count);
    done(phases_of(be), "experts_run", start, count * (uint64_t)ms_expert_bytes(s));
}

static void phase_experts_reduce_norm(ms_backend *be, float *out, const float *y, const float *weights, uint32_t n,
                                      uint32_t k, uint32_t hidden, const ms_weight *norm, float eps) {
    uint64_t start = ms_clock_ns();
    ms_backend *in = phases_of(be)->inner;
    in->experts_reduce_norm(in, out, y, weights, n, k, hidden, norm, eps);
    done(phases_of(be), "experts_reduce_norm", start, 0);
}

ms_status ms_phases_create(ms_phases **out, ms_backend *inner, ms_error *err) {
    ms_phases *p = calloc(1, sizeof *p);
    if (!p) return ms_fail_memory(err, "phases", sizeof *p);
    p->inner = inner;
    p->base = (ms_backend){.name = inner->name,
                           .kernels = inner->kernels,
                           .precision = inner->precision,
                           .threads = inner->threads,
                           .sync = phase_sync,
                           .fetch_begin = phase_fetch_begin,
                           .fetch_end = phase_fetch_end,
                           .deferred = inner->deferred,
                           .copy = phase_copy,
                           .rms_norm = phase_rms_norm,
                           .mix_norm = phase_mix_norm,
                           .project = phase_project,
                           .mlp = phase_mlp,
                           .kda_range = phase_kda_range,
                           .mla_range = phase_mla_range,
                           .add = phase_add,
                           .router_topk = phase_router_topk,
                           .experts_begin = phase_experts_begin,
                           .experts_run = phase_experts_run,
                           .experts_reduce_norm = phase_experts_reduce_norm};
    *out = p;
    return MS_OK;
}

ms_backend *ms_phases_backend(ms_phases *p) { return &p->base; }

void ms_phases_print(const ms_phases *p, uint32_t passes, double seconds) {
    double counted = 0;
    printf("  %-28s %8s %10s %10s %9s\n", "waiting after each", "calls", "ms", "us a call", "GB/s");
    for (uint32_t i = 0; i < p->count; i++) {
        const kind *k = &p->kinds[i];
        double ms = (double)k->ns / 1e6 / passes, calls = (double)k->calls / passes;
        counted += ms;
        printf("  %-28s %8.1f %10.3f %10.1f", k->name, calls, ms, 1e3 * ms / calls);
        if (k->bytes) printf(" %9.0f", (double)k->bytes / (double)k->ns);
        printf("\n");
    }
    printf("  %-28s %8s %10.3f\n", "rest: host", "", 1e3 * seconds / passes - counted);
}

void ms_phases_destroy(ms_phases *p) { free(p); }
