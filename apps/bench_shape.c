/* bench_shape.c: `moonshine bench shape`: decoding at the official K3 sizes without the official weights.
 *
 * Writes a sparse checkpoint (headers only) into a temporary folder, gives its first expert random bytes, fills every
 * expert slot with them and every resident weight with random values, makes the router choose among the experts that
 * have slots, and runs the lane's own graph.  Nothing is read while it measures, unless --hits asks for it.
 *
 * Owns: what it creates; the folder is removed before the program ends.  Threads: the calling thread.
 */
#include <ftw.h>
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/loader.h"
#include "bench.h"
#include "bench_phases.h"
#include "bench_probe.h"
#include "bench_shape.h"
#include "command.h"
#include "interrupt.h"
#include "lane/k3/k3_synth.h"
#include "lane/k3/k3_weights.h"
#include "session/loader.h"

enum { PIECE_VALUES = SHAPE_PIECE_VALUES, WARM_PASSES = 3 };
#define COPY_BYTES    (2ull << 30)
#define CHECKED_BYTES (4ull << 30)
#define LEAVE_BYTES   (2ull << 30) /* of device memory, when slots fill the rest */

static const char *const shapes[] = {"official", "small", NULL};
static const char *const precisions[] = {"fast", "reference", NULL};
static const char *const formats[] = {"q8", "bf16", NULL};

#define FIELD(f) offsetof(shape_flags, f)
static const ms_option options[] = {
    {.name = "backend",
     .type = MS_OPTION_STRING,
     .offset = FIELD(backend),
     .arg = "NAME",
     .env = "MOONSHINE_BACKEND",
     .help = "cpu, hip, cuda or auto (default: cpu)."},
    {.name = "device",
     .type = MS_OPTION_U32,
     .offset = FIELD(device),
     .arg = "N",
     .max = 64,
     .help = "GPU (default: 0)."},
    {.name = "shape",
     .type = MS_OPTION_CHOICE,
     .offset = FIELD(shape),
     .arg = "S",
     .choices = shapes,
     .help = "Sizes (default: official)."},
    {.name = "layers",
     .type = MS_OPTION_U32,
     .offset = FIELD(layers),
     .arg = "N",
     .min = 2,
     .max = K3_MAX_LAYERS,
     .help = "Layers (default: those of the shape)."},
    {.name = "slots",
     .type = MS_OPTION_U32,
     .offset = FIELD(slots),
     .arg = "N",
     .min = 1,
     .max = 65536,
     .help = "Expert slots a layer, at least the experts of a token (default: 32, or what the device's memory holds)."},
    {.name = "tokens",
     .type = MS_OPTION_U32,
     .offset = FIELD(tokens),
     .arg = "N",
     .min = 1,
     .max = 100000,
     .help = "Passes to measure (default: 32)."},
    {.name = "rows",
     .type = MS_OPTION_U32,
     .offset = FIELD(rows),
     .arg = "N",
     .min = 1,
     .max = 4096,
     .help = "Rows of a pass (default: 1, decoding)."},
    {.name = "position",
     .type = MS_OPTION_U64,
     .offset = FIELD(position),
     .arg = "N",
     .max = 1000000,
     .help = "Tokens before the first (default: 0)."},
    {.name = "precision",
     .type = MS_OPTION_CHOICE,
     .offset = FIELD(precision),
     .arg = "P",
     .choices = precisions,
     .help = "Arithmetic (default: fast)."},
    {.name = "static",
     .type = MS_OPTION_CHOICE,
     .offset = FIELD(static_format),
     .arg = "F",
     .choices = formats,
     .help = "Storage of the resident weights (default: q8)."},
    {.name = "hits",
     .type = MS_OPTION_STRING,
     .offset = FIELD(hits),
     .arg = "PERCENT[,...]",
     .help = "Of the experts that a pass takes, how many are in their slots; the others are read (default: 100). One "
             "after the other when there are several."},
    {.name = "guess",
     .type = MS_OPTION_U32,
     .offset = FIELD(guess),
     .arg = "PERCENT",
     .max = 100,
     .help = "With --hits and one row: a guessed expert of the next layer is right with this chance (default: 93). 0: "
             "no lookahead."},
    {.name = "depth",
     .type = MS_OPTION_U32,
     .offset = FIELD(depth),
     .arg = "N",
     .max = SHAPE_STAGING,
     .help = "With --hits: reads at a time (default: 0, as the product chooses)."},
    {.name = "real-layers",
     .type = MS_OPTION_U32,
     .offset = FIELD(real_layers),
     .arg = "N",
     .min = 1,
     .max = 8,
     .help = "With --hits: layers whose experts are written to disk, 15.7 GB each, to serve all layers (default: 1)."},
    {.name = "phases",
     .type = MS_OPTION_FLAG,
     .offset = FIELD(phases),
     .help = "Afterwards the same passes again, waiting after every operation, with the time of each kind."},
    {.name = "folder",
     .type = MS_OPTION_STRING,
     .offset = FIELD(folder),
     .arg = "DIR",
     .help = "Where the temporary folder goes; the official shape takes 130 MB (default: /tmp)."},
};

/* ------------------------------------------------------------------ checkpoint */

static void small_shape(k3_config *c) {
    c->vocab = 512;
    c->hidden = 256;
    c->layers = 5;
    c->dense_width = 512;
    c->block_size = 2;
    c->experts = 32;
    c->top_k = 4;
    c->expert_inner = c->latent = 128;
    c->mla_heads = c->kda_heads = 4;
    c->kda_dim = c->nope = c->value = 64;
    c->extra = 32;
    c->q_rank = 128;
    c->kv_rank = 96;
    c->bos = c->vocab - 3;
    c->eos = c->vocab - 2;
    c->pad = c->vocab - 1;
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw) {
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

static uint64_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 24;
}

ms_status shape_interrupted(ms_error *err) {
    return ms_interrupt_code() ? ms_fail(err, MS_ERR_CANCELLED, "interrupted") : MS_OK;
}

/* Random codes with scale bytes around 2^-6, and every expert of every layer in the same place of the file. */
static ms_status one_expert(shape_run *r, ms_error *err) {
    ms_expert_table *t = &r->model.experts;
    size_t bytes = (size_t)t->expert_bytes, matrix = bytes / 3, packed = matrix / 17 * 16;
    uint8_t *source = malloc(bytes);
    if (!source) return ms_fail_memory(err, "expert", bytes);
    uint64_t state = 7;
    for (size_t i = 0; i < bytes; i++)
        source[i] = (uint8_t)(i % matrix < packed ? next_random(&state) : 119 + next_random(&state) % 4);
    for (size_t i = 1; i < (size_t)t->layer_count * t->expert_count; i++) t->extents[i] = t->extents[0];
    const char *path = ms_checkpoint_shard_path(r->model.checkpoint, t->extents[0].shard);
    FILE *file = fopen(path, "r+b");
    bool ok = file && fseeko(file, (off_t)t->extents[0].offset, SEEK_SET) == 0;
    if (ok) ok = fwrite(source, 1, bytes, file) == bytes;
    if (file && fclose(file) != 0) ok = false;
    free(source);
    return ok ? MS_OK : ms_fail(err, MS_ERR_IO, "%s: cannot write an expert", path);
}

static ms_status write_model(shape_run *r, ms_error *err) {
    const shape_flags *f = r->f;
    k3_config *c = &r->config;
    k3_config_official(c);
    if (f->shape) small_shape(c);
    if (f->layers) c->layers = f->layers;
    if (f->shape || f->layers)
        for (uint32_t l = 0; l < K3_MAX_LAYERS; l++)
            c->is_mla[l] = l < c->layers && ((l + 1) % 4 == 0 || l + 1 == c->layers);
    int n = snprintf(r->dir, sizeof r->dir, "%s/moonshine-shape-XXXXXX", f->folder ? f->folder : "/tmp");
    if (n < 0 || (size_t)n >= sizeof r->dir || !mkdtemp(r->dir)) {
        r->dir[0] = 0;
        return ms_fail(err, MS_ERR_IO, "%s: cannot make a folder there", f->folder ? f->folder : "/tmp");
    }
    ms_synth_options so = {.sparse = true};
    MS_TRY(k3_synth_write(r->dir, c, &so, err));
    MS_TRY(ms_model_open(&r->model, r->dir, err));
    return shape_streams(f) ? shape_real_layers(r, err) : one_expert(r, err);
}

/* ------------------------------------------------------------------ resident weights */

static ms_status make_values(shape_run *r, ms_error *err) {
    r->values = malloc(PIECE_VALUES * (size_t)(2 + 4));
    if (!r->values) return ms_fail_memory(err, "random values", PIECE_VALUES * (size_t)6);
    uint16_t *half = r->values;
    float *full = (float *)(void *)(half + PIECE_VALUES);
    uint64_t state = 1;
    for (size_t i = 0; i < PIECE_VALUES; i++) {
        full[i] = (float)(next_random(&state) % 65536) / 1638400.0f - 0.02f;
        uint32_t bits;
        memcpy(&bits, &full[i], sizeof bits);
        half[i] = (uint16_t)(bits >> 16);
    }
    return MS_OK;
}

static ms_status fill_matrix(shape_run *r, ms_weight *w, ms_error *err) {
    uint32_t at_once = PIECE_VALUES / w->cols;
    for (uint32_t row = 0; row < w->rows;) {
        uint32_t n = w->rows - row < at_once ? w->rows - row : at_once;
        MS_TRY(r->be->weight_fill(r->be, w, row, n, r->values, MS_FORMAT_BF16, err));
        row += n;
    }
    return MS_OK;
}

/* Norms lie around one; a router's bias leaves only experts with slots, in an order that changes with the input. */
static ms_status fill_vector(shape_run *r, ms_weight *w, size_t part, bool norm, ms_error *err) {
    size_t count = (size_t)w->rows * w->cols;
    float *x = (float *)(void *)((uint16_t *)r->values + PIECE_VALUES), *host = malloc(count * sizeof *host);
    if (!host) return ms_fail_memory(err, "vector", count * sizeof *host);
    for (size_t i = 0; i < count; i++) {
        host[i] = x[i % PIECE_VALUES] + (norm ? 1.0f : 0.0f);
        if (part == K3_ROUTER_BIAS) host[i] = i < r->slots ? 0.0f : -1000.0f;
    }
    ms_status st = r->be->weight_fill(r->be, w, 0, w->rows, host, MS_FORMAT_F32, err);
    free(host);
    return st;
}

/* On a GPU a matrix of a kind that exists is copied on the device: its rows have the same place in memory. */
static bool copy_known(shape_run *r, size_t part, ms_weight *w) {
    if (!strcmp(r->be->name, "cpu") || w->cols % MS_Q8_GROUP) return false;
    for (size_t i = 0; i < r->pattern_count; i++) {
        const ms_weight *p = &r->patterns[i].weight;
        if (r->patterns[i].part != part || p->rows != w->rows || p->cols != w->cols) continue;
        size_t elements = (size_t)w->rows * w->cols;
        size_t bytes = elements * (w->format == MS_FORMAT_Q8 ? 1 : w->format == MS_FORMAT_BF16 ? 2 : 4);
        r->be->copy(r->be, w->data, p->data, bytes);
        if (w->scales) r->be->copy(r->be, w->scales, p->scales, elements / MS_Q8_GROUP * sizeof(float));
        return true;
    }
    r->patterns[r->pattern_count++] = (pattern){part, *w};
    return false;
}

static ms_status load_weights(shape_run *r, ms_error *err) {
    const ms_lane *lane = r->model.lane;
    MS_TRY(lane->statics(r->model.config, r->f->static_format ? MS_STATIC_BF16 : MS_STATIC_Q8, &r->statics, err));
    r->weights = calloc(1, lane->weights_bytes);
    r->patterns = calloc(r->statics.count, sizeof *r->patterns);
    if (!r->weights || !r->patterns) return ms_fail_memory(err, "weights table", lane->weights_bytes);
    MS_TRY(make_values(r, err));
    for (size_t i = 0; i < r->statics.count; i++) {
        const ms_static_item *it = &r->statics.items[i];
        ms_weight *w = (ms_weight *)(void *)((char *)r->weights + it->weight_offset);
        size_t place = it->weight_offset / sizeof *w, inside = (size_t)K3_MAX_LAYERS * K3_LAYER_PARTS;
        size_t part = place < inside ? place % K3_LAYER_PARTS : K3_LAYER_PARTS + place - inside;
        MS_TRY(shape_interrupted(err));
        MS_TRY(r->be->weight_create(r->be, w, it->format, it->rows, ms_static_cols(r->model.checkpoint, it), err));
        r->static_bytes += ms_weight_bytes(w->format, w->rows, w->cols);
        if (copy_known(r, part, w)) continue;
        if (w->format == MS_FORMAT_F32 || w->rows == 1)
            MS_TRY(fill_vector(r, w, part, strstr(it->name, "norm") != NULL, err));
        else
            MS_TRY(fill_matrix(r, w, err));
    }
    return r->be->sync(r->be, err);
}

/* ------------------------------------------------------------------ experts, state, workspace */

ms_status shape_new_experts(shape_run *r, bool buffered, ms_error *err) {
    ms_expert_service_options o = {.shape = r->model.info.expert_shape,
                                   .slots = r->slots,
                                   .staging = SHAPE_STAGING,
                                   .read_depth = r->f->depth,
                                   .lookahead = r->f->guess > 0,
                                   .buffered = buffered};
    ms_expert_service_destroy(r->experts);
    r->experts = NULL;
    return ms_expert_service_create(&r->experts, r->be, r->model.checkpoint, &r->model.experts, &o, err);
}

static ms_status load_experts(shape_run *r, ms_error *err) {
    const ms_expert_table *t = &r->model.experts;
    MS_TRY(shape_new_experts(r, !shape_streams(r->f), err));
    if (shape_streams(r->f)) return MS_OK; /* passes fill them */
    uint32_t *ids = malloc(r->slots * sizeof *ids), given;
    ms_expert_ready *ready = malloc(r->slots * sizeof *ready);
    ms_status st = ids && ready ? MS_OK : ms_fail_memory(err, "expert ids", r->slots * sizeof *ready);
    for (uint32_t i = 0; i < r->slots && st == MS_OK; i++) ids[i] = i;
    for (uint32_t l = 0; l < t->layer_count && st == MS_OK; l++) {
        st = ms_expert_request(r->experts, l, ids, NULL, r->slots, err);
        do {
            if (st == MS_OK) st = ms_expert_next(r->experts, ready, &given, err);
        } while (st == MS_OK && given);
        ms_expert_end(r->experts);
        if (st == MS_OK) st = shape_interrupted(err);
    }
    free(ids);
    free(ready);
    return st;
}

static ms_status create_state(shape_run *r, uint64_t context, ms_error *err) {
    const ms_lane *lane = r->model.lane;
    ms_precision precision = r->be->precision;
    uint32_t n = lane->state_parts(r->model.config, precision, NULL);
    ms_state_part *parts = calloc(n ? n : 1, sizeof *parts);
    if (!parts) return ms_fail_memory(err, "state parts", n * sizeof *parts);
    lane->state_parts(r->model.config, precision, parts);
    ms_status st = ms_state_create(&r->state, r->be, parts, n, context, err);
    free(parts);
    r->state.position = r->f->position;
    return st;
}

static ms_status create_workspace(shape_run *r, ms_error *err) {
    const ms_lane *lane = r->model.lane;
    const ms_lane_info *info = &r->model.info;
    r->item_count = lane->workspace(r->model.config, r->f->rows, NULL);
    r->items = calloc(r->item_count, sizeof *r->items);
    r->workspace = calloc(r->item_count, sizeof *r->workspace);
    if (!r->items || !r->workspace) return ms_fail_memory(err, "workspace table", r->item_count * sizeof *r->items);
    lane->workspace(r->model.config, r->f->rows, r->items);
    for (uint32_t i = 0; i < r->item_count; i++) {
        const ms_workspace_item *w = &r->items[i];
        if (!w->host) {
            MS_TRY(r->be->alloc(r->be, MS_MEM_DEVICE, (size_t)w->bytes, w->name, &r->workspace[i], err));
            continue;
        }
        r->workspace[i] = calloc(1, (size_t)w->bytes);
        if (!r->workspace[i]) return ms_fail_memory(err, w->name, (size_t)w->bytes);
    }
    size_t row = info->hidden * sizeof(float);
    MS_TRY(r->be->alloc(r->be, MS_MEM_DEVICE, r->f->rows * row, "embedding rows", (void **)&r->embedding, err));
    MS_TRY(r->be->alloc(r->be, MS_MEM_DEVICE, r->logit_rows * info->vocab * sizeof(float), "logits",
                        (void **)&r->logits, err));
    for (uint32_t i = 0; i < r->f->rows; i++)
        r->be->upload(r->be, r->embedding + (size_t)i * info->hidden, (uint16_t *)r->values + PIECE_VALUES + 64u * i,
                      row);
    return MS_OK;
}

/* ------------------------------------------------------------------ measuring */

/* A copy reads and writes: both count.  The CPU's own memory rate is that of all its threads reading. */
static ms_status measure_copy(shape_run *r, ms_error *err) {
    if (!strcmp(r->be->name, "cpu")) return ms_probe_memory(0, &r->copy_bytes_per_second, err);
    enum { COPIES = 8 };
    void *buffer[2] = {NULL, NULL};
    ms_status st = MS_OK;
    for (int i = 0; i < 2 && st == MS_OK; i++)
        st = r->be->alloc(r->be, MS_MEM_DEVICE, COPY_BYTES, "copy buffer", &buffer[i], err);
    for (int i = 0; i < 3 && st == MS_OK; i++) {
        st = r->be->sync(r->be, err);
        uint64_t start = ms_clock_ns();
        for (int j = 0; j < COPIES; j++) r->be->copy(r->be, buffer[j % 2], buffer[1 - j % 2], COPY_BYTES);
        if (st == MS_OK) st = r->be->sync(r->be, err);
        double rate = 2.0 * COPIES * (double)COPY_BYTES / shape_seconds(start);
        if (rate > r->copy_bytes_per_second) r->copy_bytes_per_second = rate;
    }
    for (int i = 0; i < 2; i++) r->be->release(r->be, MS_MEM_DEVICE, buffer[i], COPY_BYTES);
    return st;
}

/* Slots that the device holds beside everything else. */
static void choose_slots(shape_run *r) {
    const ms_lane_info *info = &r->model.info;
    uint64_t total, left, statics = 0;
    uint32_t most = info->experts < 32 ? info->experts : 32;
    if (shape_streams(r->f) && r->f->rows > 1) { /* first all, then as many as --hits says */
        r->slots = info->experts;
        return;
    }
    r->slots = r->f->slots ? r->f->slots : most;
    if (r->f->slots || !info->moe_layer_count) return;
    r->be->device_memory(r->be, &total, &left);
    if (!total) return;
    ms_static_list list = {0};
    ms_static_format format = r->f->static_format ? MS_STATIC_BF16 : MS_STATIC_Q8;
    if (r->model.lane->statics(r->model.config, format, &list, NULL) == MS_OK)
        for (size_t i = 0; i < list.count; i++) statics += ms_static_item_bytes(r->model.checkpoint, &list.items[i]);
    ms_static_list_free(&list);
    uint64_t layer = r->model.experts.expert_bytes * info->moe_layer_count, other = statics + 2 * LEAVE_BYTES;
    uint64_t fit = left > other ? (left - other) / layer : 0;
    if (fit < most) r->slots = fit < info->top_k ? info->top_k : (uint32_t)fit;
}

/* What the product's own ledger says of these sizes; its memory is measured from here on. */
static ms_status plan_memory(shape_run *r, uint64_t context, ms_error *err) {
    const shape_flags *f = r->f;
    ms_engine_options o, resolved;
    ms_plan *plan = NULL;
    ms_engine_options_default(&o, r->dir);
    o.precision = r->be->precision;
    o.static_format = f->static_format ? MS_STATIC_BF16 : MS_STATIC_Q8;
    o.context = context;
    o.experts = r->slots;
    o.staging = SHAPE_STAGING;
    o.range_rows = f->rows;
    o.backend = f->backend;
    MS_TRY(ms_plan_for_model(&plan, &r->model, &o, &resolved, NULL, err));
    r->planned_bytes = plan->device_total_bytes;
    r->planned_slots = r->slots;
    r->logit_rows = ms_plan_logit_rows(&r->model.info, &resolved);
    ms_plan_destroy(plan);
    uint64_t total;
    r->be->device_memory(r->be, &total, &r->free_bytes);
    return MS_OK;
}

/* Small shapes are all granularity of the device's allocator. */
static ms_status check_memory(shape_run *r, ms_error *err) {
    uint64_t total, left;
    MS_TRY(r->be->sync(r->be, err));
    r->be->device_memory(r->be, &total, &left);
    if (!total) return MS_OK;
    double planned = (double)r->planned_bytes, taken = (double)r->free_bytes - (double)left;
    double off = 100 * (taken - planned) / planned;
    printf("  ledger      %.3f GB planned on the device, %.3f GB taken: %+.2f %%\n", planned / 1e9, taken / 1e9, off);
    if (planned < (double)CHECKED_BYTES || fabs(off) <= 2) return MS_OK;
    return ms_fail(err, MS_ERR_INTERNAL, "device memory: %.0f bytes planned, %.0f taken: expected at most 2 %% between",
                   planned, taken);
}

static ms_status create(shape_run *r, ms_error *err) {
    const shape_flags *f = r->f;
    MS_TRY(write_model(r, err));
    ms_backend_options bo = {.name = f->backend,
                             .device = (int)f->device,
                             .precision = f->precision ? MS_PRECISION_REFERENCE : MS_PRECISION_FAST,
                             .log = ms_command_log,
                             .log_arg = (void *)(uintptr_t)SHAPE_PROGRAM};
    MS_TRY(ms_backend_open(&r->be, &bo, err));
    r->timed = r->be;
    MS_TRY(measure_copy(r, err));
    choose_slots(r);
    const ms_lane_info *info = &r->model.info;
    if (r->slots < info->top_k || r->slots > info->experts)
        return ms_fail(err, MS_ERR_USAGE, "slots %u: expected %u to %u", r->slots, info->top_k, info->experts);
    if (shape_streams(f) && f->rows == 1 && r->slots > info->experts - info->top_k)
        return ms_fail(err, MS_ERR_USAGE, "slots %u: with --hits expected at most %u, so that there are misses",
                       r->slots, info->experts - info->top_k);
    uint64_t passes =
        (f->phases ? 2u : 1u) * (uint64_t)f->tokens + WARM_PASSES + f->hit_rate_count * (f->tokens + 2ull);
    uint64_t context = f->position + passes * f->rows;
    MS_TRY(plan_memory(r, context, err));
    ms_scratch_need need;
    r->model.lane->scratch_need(r->model.config, f->rows, context, &need);
    MS_TRY(r->be->scratch_reserve(r->be, &need, err));
    uint64_t start = ms_clock_ns();
    MS_TRY(load_weights(r, err));
    double weights = shape_seconds(start);
    start = ms_clock_ns();
    MS_TRY(load_experts(r, err));
    fprintf(stderr, SHAPE_PROGRAM ": weights %.1f s, experts %.1f s\n", weights, shape_seconds(start));
    MS_TRY(create_state(r, context, err));
    return create_workspace(r, err);
}

static ms_status keep_logits(void *arg, uint32_t first_row, uint32_t rows, const float *logits, ms_error *err) {
    (void)arg;
    (void)first_row;
    (void)rows;
    (void)logits;
    (void)err;
    return MS_OK;
}

void shape_set_bias(shape_run *r, uint32_t l, const float *bias) {
    size_t at = (size_t)r->model.experts.layers[l] * K3_LAYER_PARTS + K3_ROUTER_BIAS;
    r->be->upload(r->be, ((ms_weight *)r->weights)[at].data, bias, r->model.info.experts * sizeof *bias);
}

/* The next layer has been guessed: from here on its router says what it takes. */
static ms_status layer_done(void *arg, uint32_t layer, ms_error *err) {
    shape_run *r = arg;
    const ms_expert_table *t = &r->model.experts;
    for (uint32_t l = 0; r->routes && l < t->layer_count; l++)
        if (t->layers[l] == layer + 1) shape_set_bias(r, l, r->routes + (size_t)l * t->expert_count);
    return shape_interrupted(err);
}

ms_status shape_pass(shape_run *r, ms_error *err) {
    ms_run run = {.backend = r->timed,
                  .config = r->model.config,
                  .weights = r->weights,
                  .state = &r->state,
                  .experts = r->experts,
                  .workspace = r->workspace,
                  .rows = r->f->rows,
                  .max_rows = r->f->rows,
                  .embedding = r->embedding,
                  .want_logits = 1,
                  .logits = r->logits,
                  .logit_rows = 1,
                  .emit = keep_logits,
                  .layer_done = layer_done,
                  .layer_done_arg = r};
    MS_TRY(r->model.lane->forward(&run, err));
    ms_state_commit(&r->state, r->f->rows);
    return MS_OK;
}

ms_status shape_passes(shape_run *r, uint32_t passes, double *mean, ms_error *err) {
    uint64_t start = ms_clock_ns();
    for (uint32_t i = 0; i < passes; i++) MS_TRY(shape_pass(r, err));
    *mean = shape_seconds(start) / passes;
    return MS_OK;
}

/* Bytes that one row cannot do without: every resident weight once, its experts, the KDA state read and written. */
static double floor_bytes(const shape_run *r) {
    const ms_lane_info *info = &r->model.info;
    uint64_t state = 0;
    for (uint32_t i = 0; i < r->state.part_count; i++)
        state += 2 * r->state.parts[i].bytes + r->state.parts[i].row_bytes * r->f->position;
    return (double)(r->static_bytes + state) +
           (double)info->moe_layer_count * info->top_k * (double)r->model.experts.expert_bytes;
}

static ms_status measure(shape_run *r, ms_error *err) {
    const shape_flags *f = r->f;
    double *pass = malloc(f->tokens * sizeof *pass);
    if (!pass) return ms_fail_memory(err, "times", f->tokens * sizeof *pass);
    ms_status st = MS_OK;
    for (uint32_t i = 0; i < WARM_PASSES && st == MS_OK; i++) st = shape_pass(r, err);
    uint64_t all = ms_clock_ns();
    for (uint32_t i = 0; i < f->tokens && st == MS_OK; i++) {
        uint64_t start = ms_clock_ns();
        st = shape_pass(r, err);
        pass[i] = shape_seconds(start);
    }
    double mean = shape_seconds(all) / f->tokens, best = pass[0], median = 0;
    for (uint32_t i = 1; i < f->tokens; i++) best = pass[i] < best ? pass[i] : best;
    if (st == MS_OK) median = ms_probe_median(pass, f->tokens);
    free(pass);
    if (st != MS_OK) return st;
    ms_engine_stats stats;
    ms_expert_service_stats(r->experts, &stats);
    double bytes = floor_bytes(r), roof = bytes / r->copy_bytes_per_second;
    printf("  memory      %.1f GB/s by copies\n", r->copy_bytes_per_second / 1e9);
    double experts =
        (double)r->model.info.moe_layer_count * r->model.info.top_k * (double)r->model.experts.expert_bytes;
    printf("  floor       %.3f GB a row: %.3f GB resident, %.3f GB experts, rest state; %.3f ms, %.2f rows/s\n",
           bytes / 1e9, (double)r->static_bytes / 1e9, experts / 1e9, 1e3 * roof, 1 / roof);
    printf("  passes      %u of %u rows: mean %.3f ms, median %.3f ms, fastest %.3f ms\n", f->tokens, f->rows,
           1e3 * mean, 1e3 * median, 1e3 * best);
    printf("  rate        %.2f rows/s\n", f->rows / mean);
    if (f->rows == 1) printf("  of floor    %.1f %%\n", 100 * roof / mean);
    printf("  hits        %" PRIu64 " of %" PRIu64 " since the slots were filled\n", stats.expert_hits,
           stats.expert_accesses - stats.expert_fills);
    return MS_OK;
}

ms_status shape_phases(shape_run *r, ms_error *err) {
    ms_phases *p = NULL;
    MS_TRY(ms_phases_create(&p, r->be, err));
    r->timed = ms_phases_backend(p);
    ms_status st = MS_OK;
    uint64_t start = ms_clock_ns();
    for (uint32_t i = 0; i < r->f->tokens && st == MS_OK; i++) st = shape_pass(r, err);
    double seconds = shape_seconds(start);
    if (st == MS_OK) ms_phases_print(p, r->f->tokens, seconds);
    r->timed = r->be;
    ms_phases_destroy(p);
    return st;
}

static void destroy(shape_run *r) {
    ms_backend *be = r->be;
    if (be) {
        ms_expert_service_destroy(r->experts);
        if (r->weights) ms_statics_unload(be, &r->statics, r->weights);
        ms_state_destroy(&r->state);
        for (uint32_t i = 0; r->workspace && i < r->item_count; i++)
            if (r->items[i].host)
                free(r->workspace[i]);
            else if (r->workspace[i])
                be->release(be, MS_MEM_DEVICE, r->workspace[i], (size_t)r->items[i].bytes);
        if (r->embedding)
            be->release(be, MS_MEM_DEVICE, r->embedding, r->f->rows * r->model.info.hidden * sizeof(float));
        if (r->logits) be->release(be, MS_MEM_DEVICE, r->logits, r->logit_rows * r->model.info.vocab * sizeof(float));
        be->destroy(be);
    }
    ms_static_list_free(&r->statics);
    free(r->weights);
    free(r->patterns);
    free(r->values);
    free(r->items);
    free(r->workspace);
    ms_model_close(&r->model);
    if (r->dir[0]) (void)nftw(r->dir, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

#define NOT_GIVEN UINT32_MAX

/* "100": nothing is read. */
static bool read_hits(shape_flags *f) {
    if (!f->hits || !strcmp(f->hits, "100")) return true;
    for (const char *at = f->hits;; at++) {
        char *end;
        if (*at < '0' || *at > '9' || f->hit_rate_count == SHAPE_MAX_HITS) return false;
        unsigned long rate = strtoul(at, &end, 10);
        if (rate > 99) return false;
        f->hit_rates[f->hit_rate_count++] = (uint32_t)rate;
        if (!*end) return true;
        if (*end != ',') return false;
        at = end;
    }
}

/* Options that say how experts are read: their defaults, or an error where none are. */
static ms_status settle_reads(shape_flags *f, ms_error *err) {
    const struct {
        const char *name;
        uint32_t *value, by_default;
    } reads[] = {{"guess", &f->guess, 93}, {"depth", &f->depth, 0}, {"real-layers", &f->real_layers, 1}};
    for (size_t i = 0; i < sizeof reads / sizeof reads[0]; i++) {
        if (*reads[i].value == NOT_GIVEN)
            *reads[i].value = reads[i].by_default;
        else if (!shape_streams(f))
            return ms_fail(err, MS_ERR_USAGE, "--%s: expected --hits below 100 beside it: nothing is read",
                           reads[i].name);
    }
    return MS_OK;
}

int ms_bench_shape(int argc, char **argv) {
    shape_flags flags = {.tokens = 32, .rows = 1, .guess = NOT_GIVEN, .depth = NOT_GIVEN, .real_layers = NOT_GIVEN};
    const ms_option_group groups[] = {{"Options", options, sizeof options / sizeof options[0], &flags}};
    const ms_option_set set = {.program = SHAPE_PROGRAM,
                               .synopsis = "[options]",
                               .about = "Runs the official sizes with random weights made in memory, beside what the "
                                        "rates of memory and, with --hits, of the disk allow.",
                               .groups = groups,
                               .group_count = 1};
    ms_option_result result;
    int code = ms_command_parse(&set, argc, argv, &result);
    if (code >= 0) return code;
    ms_error err = {0};
    if (!read_hits(&flags)) {
        (void)ms_fail(&err, MS_ERR_USAGE, "--hits %s: expected 100, or at most %d numbers from 0 to 99 with commas",
                      flags.hits, (int)SHAPE_MAX_HITS);
        return ms_command_fail(set.program, &err);
    }
    if (settle_reads(&flags, &err) != MS_OK) return ms_command_fail(set.program, &err);
    shape_run r = {.f = &flags};
    ms_interrupt_watch(); /* the folder goes before the program does */
    ms_status st = create(&r, &err);
    if (st == MS_OK) {
        printf("%s (%s): %u layers, %u slots a layer, position %" PRIu64 "\n", r.be->name, r.be->kernels,
               r.config.layers, r.slots, flags.position);
        st = shape_streams(&flags) ? shape_stream(&r, &err) : measure(&r, &err);
    }
    if (st == MS_OK && flags.phases && !shape_streams(&flags)) st = shape_phases(&r, &err);
    if (st == MS_OK && r.slots == r.planned_slots) st = check_memory(&r, &err);
    destroy(&r);
    ms_interrupt_unwatch();
    if (ms_interrupt_code()) {
        fprintf(stderr, "%s: interrupted\n", set.program);
        return ms_interrupt_code();
    }
    if (st != MS_OK) return ms_command_fail(set.program, &err);
    return ms_command_finish(set.program);
}
