/* bench_store.c: `moonshine bench store`: the codec on experts of a given shape, and decoding tokens from raw experts
 * beside compressed ones at the read rates of several drives. */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backend/loader.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/pool.h"
#include "bench.h"
#include "command.h"
#include "lane/k3/k3_synth.h"
#include "session/engine.h"
#include "session/store_choice.h"
#include "store/mzg2_encode.h"
#include "store/mzg2_parallel.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))
enum { EXPERTS = 2, MAX_RATES = 8 };
#define MEASURE_NS 500000000ull

typedef struct store_flags {
    uint32_t hidden, inner, tokens;
    ms_option_list rates;
    double gb[MAX_RATES]; /* the same as numbers */
} store_flags;

static const char program[] = "moonshine bench store";

#define FIELD(f) offsetof(store_flags, f)
static const ms_option options[] = {
    {.name = "latent",
     .type = MS_OPTION_U32,
     .offset = FIELD(hidden),
     .arg = "N",
     .min = 32,
     .max = 1 << 16,
     .help = "Width of the experts that are coded (default: 3584)."},
    {.name = "inner",
     .type = MS_OPTION_U32,
     .offset = FIELD(inner),
     .arg = "N",
     .min = 32,
     .max = 1 << 16,
     .help = "Their inner width (default: 3072)."},
    {.name = "tokens",
     .type = MS_OPTION_U32,
     .offset = FIELD(tokens),
     .arg = "N",
     .min = 1,
     .max = 100000,
     .help = "Tokens decoded for each figure with MODEL (default: 16)."},
    {.name = "rate",
     .type = MS_OPTION_LIST,
     .offset = FIELD(rates),
     .arg = "GB/S",
     .max = MAX_RATES,
     .help = "Drive to imitate with MODEL; may be repeated (default: 1, 3 and 7)."},
};

/* ------------------------------------------------------------------ the codec */

typedef struct coding {
    ms_expert_shape shape;
    size_t bytes;
    uint8_t *experts; /* canonical */
    uint8_t *block[EXPERTS];
    uint32_t stored[EXPERTS], payload[EXPERTS];
    uint8_t *slot;
    ms_mzg2_layer layer;
    ms_mzg2_tables *tables;
} coding;

/* Gaussian experts as `moonshine synth --gaussian` writes them. */
static ms_status make_experts(coding *c, ms_error *err) {
    k3_config k;
    k3_config_official(&k);
    k.latent = c->shape.hidden;
    k.expert_inner = c->shape.inner;
    k.experts = EXPERTS;
    ms_synth_plan p;
    ms_synth_model model = k3_synth_model(&k);
    model.gaussian = true;
    MS_TRY(ms_synth_plan_shard(&p, &model, k.first_dense, err));
    uint64_t at = 0;
    for (size_t i = p.count; i-- > 0;)
        if (p.tensors[i].fill == MS_FILL_GAUSS_CODES) at = p.tensors[i].begin;
    ms_synth_bytes(c->experts, &p, 1, p.header.len + at, EXPERTS * c->bytes);
    ms_synth_plan_free(&p);
    for (int i = 0; i < EXPERTS; i++) ms_mzg2_clear_zeros(c->experts + (size_t)i * c->bytes, c->shape);
    return MS_OK;
}

/* Rates of one core count the time it was ours: other programs take their share of the clock, not of the work. */
static uint64_t core_ns(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static double rate(double bytes, uint64_t ns) { return bytes * 1e9 / (double)(ns ? ns : 1); }

static ms_status code_experts(coding *c, ms_error *err) {
    ms_mzg2_fit *fit = NULL;
    ms_mzg2_encoder *enc = NULL;
    double all = (double)EXPERTS * (double)c->bytes;
    MS_TRY(ms_mzg2_fit_create(&fit, c->shape, NULL, err));
    uint64_t t0 = core_ns();
    for (int i = 0; i < EXPERTS; i++) ms_mzg2_fit_add(fit, c->experts + (size_t)i * c->bytes);
    uint64_t t1 = core_ns();
    ms_status st = ms_mzg2_fit_sets(fit, c->layer.set, err);
    uint64_t t2 = core_ns();
    ms_mzg2_fit_destroy(fit);
    if (st == MS_OK) st = ms_mzg2_encoder_create(&enc, c->shape, c->layer.set, 0, err);
    MS_TRY(st);
    ms_mzg2_encode(enc, c->block[0], c->experts, 0, &c->payload[0], &c->stored[0]); /* touches the memory */
    uint64_t best = UINT64_MAX, payload = 0;
    for (int i = 0; i < EXPERTS; i++) {
        uint64_t begin = core_ns();
        ms_mzg2_encode(enc, c->block[i], c->experts + (size_t)i * c->bytes, (uint32_t)i, &c->payload[i], &c->stored[i]);
        uint64_t took = core_ns() - begin;
        best = took < best ? took : best;
        payload += c->payload[i];
    }
    ms_mzg2_encoder_destroy(enc);
    printf("expert of %u x %u, %zu bytes: %.3f %% saved\n", c->shape.hidden, c->shape.inner, c->bytes,
           100 * (1 - (double)payload / all));
    printf("count for tables: %.0f MB/s a core, tables of a layer: %.0f ms\n", rate(all, t1 - t0) / 1e6,
           (double)(t2 - t1) / 1e6);
    printf("encode: %.1f MB/s a core\n", rate((double)c->bytes, best) / 1e6);
    return MS_OK;
}

static ms_status decode_with(coding *c, const char *name, double copy, ms_error *err) {
    const ms_mzg2_codec *codec = ms_mzg2_codec_find(name);
    if (!codec) {
        printf("decode, %s: not on this CPU\n", name);
        return MS_OK;
    }
    uint64_t best = UINT64_MAX, begin = ms_clock_ns();
    for (int i = 0; i < 3 || ms_clock_ns() - begin < MEASURE_NS; i++) {
        ms_mzg2_block b;
        MS_TRY(ms_mzg2_block_open(&b, c->block[i % EXPERTS], c->stored[i % EXPERTS], (uint32_t)(i % EXPERTS), c->shape,
                                  err));
        uint64_t t = core_ns();
        MS_TRY(ms_mzg2_decode(codec, c->slot, &b, c->tables, err));
        t = core_ns() - t;
        if (t < best) best = t;
    }
    double got = rate((double)c->bytes, best);
    printf("decode, %s: %.3f GB/s a core, hash included; %.0f %% of a copy's %.2f GB/s\n", name, got / 1e9,
           100 * got / copy, copy / 1e9);
    return MS_OK;
}

static double copy_rate(const coding *c) {
    uint64_t best = UINT64_MAX, begin = ms_clock_ns();
    for (int i = 0; i < 3 || ms_clock_ns() - begin < MEASURE_NS / 4; i++) {
        uint64_t t = core_ns();
        memcpy(c->slot, c->experts + (size_t)(i % EXPERTS) * c->bytes, c->bytes);
        t = core_ns() - t;
        if (t < best) best = t;
    }
    return rate((double)c->bytes, best);
}

static ms_status decode_parallel(coding *c, unsigned threads, ms_error *err) {
    ms_pool *pool = NULL;
    ms_mzg2_block b;
    MS_TRY(ms_mzg2_block_open(&b, c->block[0], c->stored[0], 0, c->shape, err));
    MS_TRY(ms_pool_create(&pool, threads, err));
    ms_status st = MS_OK;
    uint64_t best = UINT64_MAX, begin = ms_clock_ns();
    for (int i = 0; st == MS_OK && (i < 3 || ms_clock_ns() - begin < MEASURE_NS); i++) {
        ms_mzg2_parallel p;
        uint64_t t = ms_clock_ns();
        size_t tasks = ms_mzg2_parallel_begin(&p, c->slot, &b, c->tables);
        ms_pool_run(pool, ms_mzg2_parallel_task, &p, tasks);
        st = ms_mzg2_parallel_end(&p, err);
        t = ms_clock_ns() - t;
        if (t < best) best = t;
    }
    if (st == MS_OK)
        printf("decode, %u threads: %.3f GB/s\n", ms_pool_threads(pool), rate((double)c->bytes, best) / 1e9);
    ms_pool_destroy(pool);
    return st;
}

/* On a device: DEVICE_EXPERTS at a time, blocks and tables there already. */
static ms_status decode_device(coding *c, const char *name, ms_error *err) {
    enum { DEVICE_EXPERTS = MS_DECODE_BATCH, ROUNDS = 20 };
    ms_backend *be = NULL;
    const ms_backend_options bo = {.name = name,
                                   .precision = MS_PRECISION_FAST,
                                   .log = ms_command_log,
                                   .log_arg = (void *)(uintptr_t)program};
    MS_TRY(ms_backend_open(&be, &bo, err));
    size_t block = ms_mzg2_block_max_bytes(c->shape),
           bytes[3] = {DEVICE_EXPERTS * c->bytes, EXPERTS * block, sizeof *c->tables + 4096};
    uint8_t *dev[3] = {NULL};
    ms_status st = be->decode_blocks ? MS_OK : ms_fail(err, MS_ERR_UNSUPPORTED, "backend %s does not decode", be->name);
    for (int i = 0; st == MS_OK && i < 3; i++)
        st = be->alloc(be, MS_MEM_DEVICE, bytes[i], "experts", (void **)&dev[i], err);
    if (st == MS_OK) {
        uint32_t bad[DEVICE_EXPERTS], *dev_bad = (uint32_t *)(void *)(dev[2] + ms_align_up(sizeof *c->tables, 64));
        void *slots[DEVICE_EXPERTS];
        const uint8_t *blocks[DEVICE_EXPERTS];
        memset(bad, 0xff, sizeof bad);
        for (int i = 0; i < DEVICE_EXPERTS; i++) {
            slots[i] = dev[0] + (size_t)i * c->bytes;
            blocks[i] = dev[1] + (size_t)(i % EXPERTS) * block;
        }
        for (int i = 0; i < EXPERTS; i++) be->upload(be, dev[1] + (size_t)i * block, c->block[i], c->stored[i]);
        be->upload(be, dev[2], c->tables, sizeof *c->tables);
        be->upload(be, dev_bad, bad, sizeof bad);
        uint64_t best[3] = {UINT64_MAX, UINT64_MAX, UINT64_MAX};
        for (int round = 0; st == MS_OK && round < 3 * ROUNDS; round++) { /* sixteen, one, a copy in turn */
            st = be->sync(be, err);
            uint64_t t = ms_clock_ns();
            if (round % 3 < 2)
                be->decode_blocks(be, slots, blocks, round % 3 ? 1 : DEVICE_EXPERTS,
                                  (const ms_mzg2_tables *)(const void *)dev[2], c->shape, dev_bad);
            else
                be->copy(be, dev[0], dev[0] + DEVICE_EXPERTS / 2 * c->bytes, DEVICE_EXPERTS / 2 * c->bytes);
            if (st == MS_OK) st = be->sync(be, err);
            t = ms_clock_ns() - t;
            if (t < best[round % 3]) best[round % 3] = t;
        }
        be->download(be, bad, dev_bad, sizeof bad);
        be->download(be, c->slot, slots[DEVICE_EXPERTS - 1], c->bytes);
        if (st == MS_OK) st = be->sync(be, err);
        uint8_t *want = st == MS_OK ? malloc(c->bytes) : NULL;
        ms_mzg2_block b;
        if (want) st = ms_mzg2_block_open(&b, c->block[1], c->stored[1], 1, c->shape, err);
        if (want && st == MS_OK) st = ms_mzg2_decode(ms_mzg2_codec_find(NULL), want, &b, c->tables, err);
        for (int i = 0; st == MS_OK && i < DEVICE_EXPERTS; i++)
            if (bad[i] != UINT32_MAX)
                st = ms_fail(err, MS_ERR_INTERNAL, "expert %d: fault %08x on the device", i, (unsigned)bad[i]);
        if (st == MS_OK && (!want || memcmp(want, c->slot, c->bytes) != 0))
            st = ms_fail(err, MS_ERR_INTERNAL, "the device decodes to other bytes");
        free(want);
        double copy = rate((double)(DEVICE_EXPERTS / 2) * (double)c->bytes, best[2]);
        if (st == MS_OK)
            printf("decode, %s: %.1f GB/s, %d experts at a time; %.1f GB/s, one; hash included, checked; its copies "
                   "%.0f GB/s\n",
                   be->name, rate((double)DEVICE_EXPERTS * (double)c->bytes, best[0]) / 1e9, (int)DEVICE_EXPERTS,
                   rate((double)c->bytes, best[1]) / 1e9, copy / 1e9);
    }
    for (int i = 0; i < 3; i++)
        if (dev[i]) be->release(be, MS_MEM_DEVICE, dev[i], bytes[i]);
    be->destroy(be);
    return st;
}

static ms_status bench_codec(ms_expert_shape shape, unsigned threads, const char *device, ms_error *err) {
    static const char *const names[] = {"scalar", "avx2", "avx512"};
    coding c = {.shape = shape};
    if (!ms_expert_shape_valid(shape)) return ms_fail(err, MS_ERR_USAGE, "--latent, --inner: expected multiples of 32");
    c.bytes = ms_expert_bytes(shape);
    c.experts = malloc(EXPERTS * c.bytes);
    c.slot = malloc(c.bytes);
    c.tables = calloc(1, sizeof *c.tables);
    bool all = c.experts && c.slot && c.tables;
    for (int i = 0; i < EXPERTS; i++) all = (c.block[i] = malloc(ms_mzg2_block_max_bytes(shape))) && all;
    ms_status st = all ? make_experts(&c, err) : ms_fail_memory(err, "experts", 5 * c.bytes);
    if (st == MS_OK) st = code_experts(&c, err);
    if (st == MS_OK) {
        ms_mzg2_tables_expand(c.tables, &c.layer);
        double copy = copy_rate(&c);
        for (int i = 0; st == MS_OK && i < 3; i++) st = decode_with(&c, names[i], copy, err);
        if (st == MS_OK) st = decode_parallel(&c, threads, err);
        if (st == MS_OK && device && strcmp(device, "cpu") != 0) st = decode_device(&c, device, err);
    }
    for (int i = 0; i < EXPERTS; i++) free(c.block[i]);
    free(c.experts);
    free(c.slot);
    free(c.tables);
    return st;
}

/* ------------------------------------------------------------------ tokens */

typedef struct figure {
    double tokens_s, read_rate, decode_share, wait_share;
    char store[8];
} figure;

static ms_status decode_tokens(figure *f, const ms_engine_options *o, uint32_t tokens, ms_error *err) {
    ms_engine *e = NULL;
    ms_session *s = NULL;
    ms_engine_stats a, b;
    ms_model_info info;
    MS_TRY(ms_engine_open(&e, o, err));
    ms_engine_info(e, &info);
    ms_status st = ms_session_create(&s, e, err);
    uint32_t id = 1 % info.vocab;
    for (int i = 0; st == MS_OK && i < 2; i++) st = ms_session_forward(s, &id, 1, NULL, err);
    ms_engine_get_stats(e, &a);
    uint64_t begin = ms_clock_ns();
    for (uint32_t i = 0; st == MS_OK && i < tokens; i++) {
        id = (id * 2654435761u + 12345u) % info.vocab; /* other experts each time */
        st = ms_session_forward(s, &id, 1, NULL, err);
    }
    double ns = (double)(ms_clock_ns() - begin);
    ms_engine_get_stats(e, &b);
    *f = (figure){.tokens_s = tokens * 1e9 / ns,
                  .read_rate = (double)(b.expert_read_bytes - a.expert_read_bytes) * 1e9 / ns,
                  .decode_share = (double)(b.decode_ns - a.decode_ns) / ns,
                  .wait_share = (double)(b.read_wait_ns - a.read_wait_ns) / ns};
    (void)snprintf(f->store, sizeof f->store, "%s", info.expert_store);
    ms_session_destroy(s);
    ms_engine_close(e);
    return st;
}

static void print_figure(const char *what, const figure *f) {
    printf("  %-5s %8.3f tokens/s, reads %.2f GB/s, %.0f %% of the time waiting, %.0f %% decoding\n", what, f->tokens_s,
           f->read_rate / 1e9, 100 * f->wait_share, 100 * f->decode_share);
}

static ms_status bench_rate(const ms_engine_options *base, const char *store, double gb, uint32_t tokens,
                            ms_error *err) {
    figure raw, packed, chosen;
    ms_engine_options o = *base;
    o.read_limit = (uint64_t)(gb * 1e9);
    o.store = "raw";
    MS_TRY(decode_tokens(&raw, &o, tokens, err));
    o.store = store;
    MS_TRY(decode_tokens(&packed, &o, tokens, err));
    o.store = "auto";
    o.auto_store = store;
    o.log = ms_command_log;
    o.log_arg = (void *)(uintptr_t)program;
    MS_TRY(decode_tokens(&chosen, &o, tokens, err));
    printf("drive of %g GB/s: %s wins, %.2f times\n", gb, packed.tokens_s > raw.tokens_s ? "the store" : "raw",
           packed.tokens_s > raw.tokens_s ? packed.tokens_s / raw.tokens_s : raw.tokens_s / packed.tokens_s);
    print_figure("raw", &raw);
    print_figure("store", &packed);
    printf("  auto: %s\n", chosen.store);
    return MS_OK;
}

static ms_status bench_tokens(const ms_engine_options *base, const store_flags *f, ms_error *err) {
    static const double usual[] = {1, 3, 7};
    size_t count = f->rates.count ? f->rates.count : COUNT(usual);
    if (!base->store) return ms_fail(err, MS_ERR_USAGE, "MODEL: expected --store with it");
    for (size_t i = 0; i < count; i++) {
        MS_TRY(bench_rate(base, base->store, f->rates.count ? f->gb[i] : usual[i], f->tokens, err));
    }
    return MS_OK;
}

static ms_status read_rates(store_flags *f, ms_error *err) {
    for (size_t i = 0; i < f->rates.count; i++)
        MS_TRY(ms_option_parse_real(&f->gb[i], "--rate", f->rates.items[i], 0.001, 1000, err));
    return MS_OK;
}

int ms_bench_store(int argc, char **argv) {
    store_flags flags = {.hidden = 3584, .inner = 3072, .tokens = 16};
    ms_model_flags model_flags = ms_model_flags_default();
    const ms_option_group groups[] = {{"Options", options, sizeof options / sizeof options[0], &flags},
                                      {"Model", ms_model_option_table, ms_model_option_count, &model_flags}};
    const ms_option_set set = {
        .program = program,
        .synopsis = "[MODEL --store DIR] [options]",
        .about =
            "Measures the codec of the compressed expert store. With MODEL: decoded tokens a second from raw and from "
            "compressed experts, on drives that it imitates.",
        .groups = groups,
        .group_count = 2,
        .max_args = 1};
    ms_option_result r;
    int code = ms_command_parse(&set, argc, argv, &r);
    if (code >= 0) return code;
    ms_error err;
    ms_status st = read_rates(&flags, &err);
    if (st != MS_OK) return ms_command_fail(set.program, &err);
    if (r.arg_count == 0) {
        st = bench_codec((ms_expert_shape){.hidden = flags.hidden, .inner = flags.inner}, model_flags.threads,
                         model_flags.backend, &err);
    } else {
        const char *model = ms_command_model(set.program, &r, 0);
        if (!model) return 2;
        ms_engine_options o = ms_model_flags_engine(&model_flags, model);
        if (o.context == 0) o.context = flags.tokens + 8;
        st = bench_tokens(&o, &flags, &err);
    }
    return st == MS_OK ? ms_command_finish(set.program) : ms_command_fail(set.program, &err);
}
