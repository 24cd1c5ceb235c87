/* cmd_synth.c: `moonshine synth`: a random checkpoint in a lane's official layout. */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "command.h"
#include "interrupt.h"
#include "lane/k3/k3_synth.h"
#include "lane/mimo26/mimo_synth.h"

enum { NOT_GIVEN = 0 };

/* Shape fields: 0 means the preset's value. */
typedef struct synth_flags {
    uint32_t layers, hidden, vocab, dense, block, first_dense;
    uint32_t experts, top_k, shared, inner, latent;
    uint32_t kda_heads, kda_dim, mla_heads, nope, extra, value, q_rank, kv_rank, mla_every;
    uint32_t heads, kv_heads, window_kv_heads, key, head_value, window, full_every, chunks;
    uint64_t max_context;
    int64_t seed;
    uint32_t threads;
    int lane, preset;
    bool sparse, vision, gaussian;
} synth_flags;

enum { LANE_K3, LANE_MIMO26 };
static const char *const lanes[] = {[LANE_K3] = "k3", [LANE_MIMO26] = "mimo26", NULL};
enum { SMALL, MID, OFFICIAL };
static const char *const presets[] = {[SMALL] = "small", [MID] = "mid", [OFFICIAL] = "official", NULL};

/* Ranges as config.json may have them. */
enum { MAX_DIM = 1 << 24, MAX_HEADS = 1 << 16, MAX_EXPERTS = 1 << 16, MAX_SHARED = 1024 };
#define DIM(n, f, most, what)                                                                                          \
    {                                                                                                                  \
        .name = n, .type = MS_OPTION_U32, .offset = offsetof(synth_flags, f), .arg = "N", .min = 1, .max = most,       \
        .help = what                                                                                                   \
    }
static const ms_option options[] = {
    {.name = "lane",
     .type = MS_OPTION_CHOICE,
     .offset = offsetof(synth_flags, lane),
     .arg = "L",
     .choices = lanes,
     .help = "Model family whose layout to write (default: k3)."},
    {.name = "preset",
     .type = MS_OPTION_CHOICE,
     .offset = offsetof(synth_flags, preset),
     .arg = "P",
     .choices = presets,
     .help = "Shape to start from (default: small); the options below change single numbers."},
    DIM("layers", layers, K3_MAX_LAYERS, "Layers."),
    DIM("hidden", hidden, MAX_DIM, "Width of the residual stream."),
    DIM("vocab", vocab, MAX_DIM, "Token ids."),
    DIM("dense", dense, MAX_DIM, "Inner width of dense layers."),
    DIM("experts", experts, MAX_EXPERTS, "Routed experts a layer."),
    DIM("top-k", top_k, K3_MAX_TOP_K, "Experts a token uses."),
    DIM("inner", inner, MAX_DIM, "Inner width of an expert."),
    {.name = "max-context",
     .type = MS_OPTION_U64,
     .offset = offsetof(synth_flags, max_context),
     .arg = "N",
     .min = 1,
     .max = 1048576,
     .help = "Longest context."},
    {.name = "seed",
     .type = MS_OPTION_I64,
     .offset = offsetof(synth_flags, seed),
     .arg = "N",
     .help = "Random seed (default: 0)."},
    {.name = "threads",
     .type = MS_OPTION_U32,
     .offset = offsetof(synth_flags, threads),
     .arg = "N",
     .min = 1,
     .max = 256,
     .help = "Generator threads (default: all processors)."},
    {.name = "sparse",
     .type = MS_OPTION_FLAG,
     .offset = offsetof(synth_flags, sparse),
     .help = "Real headers, holes for the weights (all read as zero)."},
    {.name = "gaussian",
     .type = MS_OPTION_FLAG,
     .offset = offsetof(synth_flags, gaussian),
     .help = "Experts of rounded Gaussian weights, as compressible as a trained model's."},
    {.name = "vision",
     .type = MS_OPTION_FLAG,
     .offset = offsetof(synth_flags, vision),
     .help = "Add tensors of other parts of the model, which are never read."},
};
static const ms_option k3_options[] = {
    DIM("block", block, K3_MAX_LAYERS, "Layers in an attention-residual block."),
    DIM("first-dense", first_dense, K3_MAX_LAYERS, "Dense layers at the start."),
    DIM("shared", shared, MAX_SHARED, "Shared experts."),
    DIM("latent", latent, MAX_DIM, "Width the routed experts work in."),
    DIM("kda-heads", kda_heads, MAX_HEADS, "KDA heads."),
    DIM("kda-dim", kda_dim, MAX_DIM, "KDA head width."),
    DIM("mla-heads", mla_heads, MAX_HEADS, "MLA heads."),
    DIM("mla-every", mla_every, K3_MAX_LAYERS, "Every N-th layer is MLA, and the last one."),
    DIM("nope", nope, MAX_DIM, "MLA content width a head."),
    DIM("extra", extra, MAX_DIM, "MLA extra width a head."),
    DIM("value", value, MAX_DIM, "MLA value width a head."),
    DIM("q-rank", q_rank, MAX_DIM, "MLA query rank."),
    DIM("kv-rank", kv_rank, MAX_DIM, "MLA latent rank."),
};
static const ms_option mimo_options[] = {
    DIM("heads", heads, MAX_HEADS, "Query heads."),
    DIM("kv-heads", kv_heads, MAX_HEADS, "Key heads of full layers."),
    DIM("window-kv-heads", window_kv_heads, MAX_HEADS, "Key heads of sliding layers."),
    DIM("head-dim", key, MAX_DIM, "Width of queries and keys a head; a third is rotated."),
    DIM("v-head-dim", head_value, MAX_DIM, "Width of values a head."),
    DIM("window", window, MAX_DIM, "Keys that a sliding layer sees."),
    DIM("full-every", full_every, MIMO_MAX_LAYERS, "Every N-th layer is full, and the first one."),
    DIM("chunks", chunks, MAX_HEADS, "Pieces of the stored fused matrix."),
};
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static void small_shape(k3_config *c) {
    c->vocab = 512;
    c->hidden = 256;
    c->layers = 5;
    c->dense_width = 512;
    c->block_size = 2;
    c->experts = 16;
    c->top_k = 4;
    c->expert_inner = 128;
    c->latent = 128;
    c->mla_heads = c->kda_heads = 4;
    c->kda_dim = 64;
    c->nope = 64;
    c->extra = 32;
    c->value = 64;
    c->q_rank = 128;
    c->kv_rank = 96;
    c->max_context = 65536;
}

/* A model that fits into a small machine but not into its caches: for measurements. */
static void mid_shape(k3_config *c) {
    c->vocab = 16384;
    c->hidden = 2048;
    c->layers = 12;
    c->dense_width = 4096;
    c->block_size = 4;
    c->experts = 96;
    c->top_k = 8;
    c->expert_inner = 1024;
    c->latent = 1024;
    c->mla_heads = c->kda_heads = 16;
    c->q_rank = 512;
    c->max_context = 65536;
}

static void set_u32(uint32_t *field, uint32_t given) {
    if (given != NOT_GIVEN) *field = given;
}

static void choose_layers(k3_config *c, uint32_t every) {
    for (uint32_t l = 0; l < c->layers && l < K3_MAX_LAYERS; l++)
        c->is_mla[l] = (l + 1) % every == 0 || (c->layers > 1 && l == c->layers - 1);
}

static void mimo_small_shape(mimo_config *c) {
    c->vocab = 512;
    c->hidden = 256;
    c->layers = 6;
    c->dense_width = 512;
    c->experts = 16;
    c->top_k = 4;
    c->expert_inner = 128;
    c->chunks = 2;
    c->max_context = 65536;
    c->attention[MIMO_FULL] = (mimo_attention){8, 2, 96, 64, 32, 0, false, 1e7};
    c->attention[MIMO_SLIDING] = (mimo_attention){8, 4, 96, 64, 32, 16, true, 1e4};
}

/* Official experts in few layers: for measurements. */
static void mimo_mid_shape(mimo_config *c) {
    c->vocab = 16384;
    c->layers = 8;
    c->dense_width = 8192;
    c->experts = 32;
    c->max_context = 65536;
}

static void choose_kinds(mimo_config *c, uint32_t every) {
    for (uint32_t l = 0; l < c->layers && l < MIMO_MAX_LAYERS; l++) {
        c->kind[l] = l == 0 || (l + 1) % every == 0 ? MIMO_FULL : MIMO_SLIDING;
        c->moe[l] = l > 0;
    }
}

static void mimo_shape(const synth_flags *f, mimo_config *c) {
    mimo_config_official(c);
    if (f->preset == SMALL) mimo_small_shape(c);
    if (f->preset == MID) mimo_mid_shape(c);
    mimo_attention *full = &c->attention[MIMO_FULL], *sliding = &c->attention[MIMO_SLIDING];
    set_u32(&c->layers, f->layers);
    set_u32(&c->hidden, f->hidden);
    set_u32(&c->vocab, f->vocab);
    set_u32(&c->dense_width, f->dense);
    set_u32(&c->experts, f->experts);
    set_u32(&c->top_k, f->top_k);
    set_u32(&c->expert_inner, f->inner);
    set_u32(&full->heads, f->heads);
    set_u32(&full->kv_heads, f->kv_heads);
    set_u32(&full->key, f->key);
    set_u32(&full->value, f->head_value);
    sliding->heads = full->heads;
    sliding->key = full->key;
    sliding->value = full->value;
    set_u32(&sliding->kv_heads, f->window_kv_heads);
    set_u32(&sliding->window, f->window);
    if (f->key) full->rotary = sliding->rotary = f->key / 3 / 2 * 2;
    if (f->kv_heads) c->chunks = f->kv_heads;
    set_u32(&c->chunks, f->chunks);
    if (f->max_context) c->max_context = f->max_context;
    if (f->preset != OFFICIAL || f->layers || f->full_every) choose_kinds(c, f->full_every ? f->full_every : 6);
    if (c->eos >= c->vocab) c->eos = c->vocab - 1;
}

static void shape(const synth_flags *f, k3_config *c) {
    k3_config_official(c);
    if (f->preset == SMALL) small_shape(c);
    if (f->preset == MID) mid_shape(c);
    set_u32(&c->layers, f->layers);
    set_u32(&c->hidden, f->hidden);
    set_u32(&c->vocab, f->vocab);
    set_u32(&c->dense_width, f->dense);
    set_u32(&c->block_size, f->block);
    set_u32(&c->first_dense, f->first_dense);
    set_u32(&c->experts, f->experts);
    set_u32(&c->top_k, f->top_k);
    set_u32(&c->shared_experts, f->shared);
    set_u32(&c->expert_inner, f->inner);
    set_u32(&c->latent, f->latent);
    set_u32(&c->kda_heads, f->kda_heads);
    set_u32(&c->kda_dim, f->kda_dim);
    set_u32(&c->mla_heads, f->mla_heads);
    set_u32(&c->nope, f->nope);
    set_u32(&c->extra, f->extra);
    set_u32(&c->value, f->value);
    set_u32(&c->q_rank, f->q_rank);
    set_u32(&c->kv_rank, f->kv_rank);
    if (f->max_context) c->max_context = f->max_context;
    /* the official lists are kept unless the layers change */
    if (f->preset != OFFICIAL || f->layers || f->mla_every) choose_layers(c, f->mla_every ? f->mla_every : 4);
    /* control ids sit behind the ranks, in the official order */
    if (c->vocab > 256) {
        c->bos = c->vocab - 256;
        c->eos = c->bos + 2;
        c->pad = c->vocab - 1;
    } else {
        c->bos = c->eos = c->pad = c->vocab - 1;
    }
}

/* Relations that one option's range cannot tell; what is left is told in the fields of config.json. */
static ms_status check_shape(const k3_config *c, ms_error *err) {
    if (c->top_k > c->experts)
        return ms_fail(err, MS_ERR_USAGE, "--top-k: expected at most the %u --experts, found %u", c->experts, c->top_k);
    if (c->first_dense > c->layers)
        return ms_fail(err, MS_ERR_USAGE, "--first-dense: expected at most the %u --layers, found %u", c->layers,
                       c->first_dense);
    if (c->expert_inner % 32)
        return ms_fail(err, MS_ERR_USAGE, "--inner: expected a multiple of 32, found %u", c->expert_inner);
    if (c->latent % 32) return ms_fail(err, MS_ERR_USAGE, "--latent: expected a multiple of 32, found %u", c->latent);
    return MS_OK;
}

typedef struct progress_state {
    uint64_t start_ns, last_ns;
    bool terminal;
} progress_state;

static bool progress(void *arg, uint64_t done, uint64_t total) {
    progress_state *p = arg;
    uint64_t now = ms_clock_ns(), every = p->terminal ? 250000000ull : 60000000000ull;
    if (now - p->last_ns >= every) {
        p->last_ns = now;
        double seconds = (double)(now - p->start_ns) / 1e9, rate = (double)done / (seconds > 0 ? seconds : 1);
        fprintf(stderr, "%s%.2f of %.2f GB, %.2f GB/s, %.0f s left%s", p->terminal ? "\r\033[K" : "",
                (double)done / 1e9, (double)total / 1e9, rate / 1e9, rate > 0 ? (double)(total - done) / rate : 0.0,
                p->terminal ? "" : "\n");
    }
    return ms_interrupt_code() == 0;
}

/* Numbers that the chosen lane has no place for. */
static ms_status check_lane(const synth_flags *f, ms_error *err) {
    const ms_option *other = f->lane == LANE_K3 ? mimo_options : k3_options;
    size_t count = f->lane == LANE_K3 ? COUNT(mimo_options) : COUNT(k3_options);
    for (size_t i = 0; i < count; i++) {
        uint32_t given;
        memcpy(&given, (const char *)f + other[i].offset, sizeof given);
        if (given != NOT_GIVEN)
            return ms_fail(err, MS_ERR_USAGE, "--%s: lane %s has no such number", other[i].name, lanes[f->lane]);
    }
    return MS_OK;
}

static ms_status write_lane(const synth_flags *f, const char *dir, const ms_synth_options *o, ms_error *err) {
    MS_TRY(check_lane(f, err));
    if (f->lane == LANE_MIMO26) {
        mimo_config m;
        mimo_shape(f, &m);
        return mimo_synth_write(dir, &m, o, err);
    }
    k3_config c;
    shape(f, &c);
    MS_TRY(check_shape(&c, err));
    return k3_synth_write(dir, &c, o, err);
}

int ms_command_synth(int argc, char **argv) {
    synth_flags flags = {0};
    const ms_option_group groups[] = {{"Options", options, COUNT(options), &flags},
                                      {"Numbers of lane k3", k3_options, COUNT(k3_options), &flags},
                                      {"Numbers of lane mimo26", mimo_options, COUNT(mimo_options), &flags}};
    const ms_option_set set = {
        .program = "moonshine synth",
        .synopsis = "DIR [options]",
        .about =
            "Writes a random checkpoint in the official layout of a model family into the new or empty folder DIR.",
        .groups = groups,
        .group_count = COUNT(groups),
        .max_args = 1};
    ms_option_result r;
    int code = ms_command_parse(&set, argc, argv, &r);
    if (code >= 0) return code;
    if (r.arg_count != 1) {
        fprintf(stderr, "%s: expected the folder to write\n", set.program);
        return 2;
    }
    ms_error err;
    ms_interrupt_watch();
    progress_state p = {.start_ns = ms_clock_ns(), .terminal = isatty(STDERR_FILENO) == 1};
    p.last_ns = p.start_ns;
    ms_synth_report report = {0};
    ms_synth_options o = {.seed = (uint64_t)flags.seed,
                          .sparse = flags.sparse,
                          .vision = flags.vision,
                          .gaussian = flags.gaussian,
                          .threads = flags.threads,
                          .progress = progress,
                          .progress_arg = &p,
                          .report = &report};
    ms_status st = write_lane(&flags, r.args[0], &o, &err);
    if (p.terminal && p.last_ns != p.start_ns) fputs("\r\033[K", stderr);
    ms_interrupt_unwatch();
    if (st == MS_ERR_CANCELLED) {
        /* a folder that was there before stays */
        fprintf(stderr, "%s: interrupted, %s %s\n", set.program, r.args[0],
                access(r.args[0], F_OK) == 0 ? "emptied" : "removed");
        return ms_interrupt_code();
    }
    if (st == MS_ERR_FORMAT) err.code = MS_ERR_USAGE; /* numbers that no config.json may have: they are the options' */
    if (st != MS_OK) return ms_command_fail(set.program, &err);
    if (ms_interrupt_code()) fprintf(stderr, "%s: the signal came too late: %s is complete\n", set.program, r.args[0]);
    if (!flags.sparse && !report.direct)
        fprintf(stderr, "%s: some shards were written through the page cache: no direct I/O here\n", set.program);
    printf("%s: %u shards, %" PRIu64 " tensors, %" PRIu64 " bytes of weights, %.1f s\n", r.args[0], report.shards,
           report.tensors, report.payload_bytes, (double)(ms_clock_ns() - p.start_ns) / 1e9);
    return ms_command_finish(set.program);
}
