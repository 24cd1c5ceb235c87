#include "store/mzg2_probe.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/pool.h"
#include "io/reader.h"
#include "store/mzg2_work.h"

enum { LAYERS = 3, EXPERTS = 2, SAMPLES = LAYERS * EXPERTS, READS = 48, READ_DEPTH = 8, DECODE_PIECE = 8 };
#define MEASURE_NS 300000000ull

const uint32_t ms_mzg2_probe_tables[MS_MZG2_PROBE_FITS] = {1, 4, 8};

typedef struct probing {
    const ms_mzg2_source *s;
    ms_mzg2_probe *out;
    uint8_t *experts; /* canonical, SAMPLES of them */
    uint32_t count;
    mzg2_worker w;
} probing;

static double entropy(const uint64_t *n, int symbols) {
    double total = 0, bits = 0;
    for (int i = 0; i < symbols; i++) total += (double)n[i];
    for (int i = 0; i < symbols; i++)
        if (n[i]) bits -= (double)n[i] * log2((double)n[i] / total);
    return total > 0 ? bits / total : 0;
}

static ms_status read_samples(probing *p, ms_error *err) {
    const ms_expert_table *t = p->s->experts;
    size_t n = ms_expert_bytes(p->s->shape);
    p->experts = malloc(SAMPLES * n);
    if (!p->experts) return ms_fail_memory(err, "sampled experts", SAMPLES * n);
    uint32_t last = UINT32_MAX;
    for (uint32_t i = 0; i < LAYERS; i++) {
        uint32_t l = (t->layer_count - 1) * i / (LAYERS - 1);
        if (l == last) continue;
        last = l;
        p->out->layers++;
        for (uint32_t e = 0; e < EXPERTS && e < t->expert_count; e++, p->count++) {
            uint8_t *to = p->experts + p->count * n;
            MS_TRY(mzg2_read_source(to, p->s, l, e * (t->expert_count / EXPERTS), err));
            ms_mzg2_clear_zeros(to, p->s->shape);
        }
    }
    p->out->experts = p->count;
    return MS_OK;
}

static void count_order0(probing *p) {
    uint64_t nibble[16] = {0}, scale[256] = {0};
    size_t n = ms_expert_bytes(p->s->shape), part = n / 3, packed = part / 17 * 16;
    for (size_t i = 0; i < (size_t)p->count * 3; i++) {
        const uint8_t *b = p->experts + i * part;
        for (size_t g = 0; g < packed; g += 16) {
            unsigned most = 0;
            for (size_t k = 0; k < 16; k++) {
                unsigned low = b[g + k] & 15, high = b[g + k] >> 4;
                nibble[low]++;
                nibble[high]++;
                if ((low & 7) > most) most = low & 7;
                if ((high & 7) > most) most = high & 7;
            }
            p->out->group_max[most]++;
        }
        for (size_t k = packed; k < part; k++) scale[b[k]]++;
    }
    p->out->nibble_bits = entropy(nibble, 16);
    p->out->scale_bits = entropy(scale, 256);
    p->out->order0_saving = 1 - (32 * p->out->nibble_bits + p->out->scale_bits) / 136;
}

/* Codes the sample with so many tables and column classes; leaves the last block in w.block. */
static ms_status try_fit(probing *p, uint32_t tables, uint32_t classes, double *saving, ms_mzg2_layer *layer,
                         uint32_t *stored, ms_error *err) {
    ms_mzg2_fit_options o = {.tables = tables, .column_classes = classes};
    ms_mzg2_encoder *enc = NULL;
    size_t n = ms_expert_bytes(p->s->shape);
    uint64_t sum = 0, blocks = 0;
    ms_mzg2_fit_destroy(p->w.fit);
    p->w.fit = NULL;
    MS_TRY(ms_mzg2_fit_create(&p->w.fit, p->s->shape, &o, err));
    for (uint32_t i = 0; i < p->count; i++) ms_mzg2_fit_add(p->w.fit, p->experts + i * n);
    MS_TRY(ms_mzg2_fit_sets(p->w.fit, layer->set, err));
    MS_TRY(ms_mzg2_encoder_create(&enc, p->s->shape, layer->set, classes, err));
    uint64_t begin = ms_clock_ns();
    for (uint32_t i = 0; i < p->count; i++) {
        uint32_t payload;
        ms_mzg2_encode(enc, p->w.block, p->experts + i * n, i, &payload, stored);
        sum += payload;
        blocks += *stored;
    }
    p->out->encode_rate = (double)p->count * (double)n * 1e9 / (double)(ms_clock_ns() - begin + 1);
    ms_mzg2_encoder_destroy(enc);
    *saving = 1 - (double)sum / ((double)p->count * (double)n);
    p->out->stored_saving = 1 - (double)blocks / ((double)p->count * (double)n);
    return MS_OK;
}

/* ------------------------------------------------------------------ rates */

typedef struct decoding {
    const ms_mzg2_codec *codec;
    const ms_mzg2_block *block;
    const ms_mzg2_tables *tables;
    uint8_t *slot;
} decoding;

static void decode_piece(void *arg, size_t task, unsigned worker) {
    (void)worker;
    const decoding *d = arg;
    uint32_t bad, first = (uint32_t)task * DECODE_PIECE, left = d->block->tiles - first;
    (void)ms_mzg2_decode_tiles(d->codec, d->slot, d->block, d->tables, first, left < DECODE_PIECE ? left : DECODE_PIECE,
                               &bad);
}

static ms_status decode_rate(double *out, const decoding *d, unsigned threads, unsigned *used, ms_error *err) {
    ms_pool *pool = NULL;
    MS_TRY(ms_pool_create(&pool, threads, err));
    size_t pieces = (d->block->tiles + DECODE_PIECE - 1) / DECODE_PIECE;
    uint64_t begin = ms_clock_ns(), now, rounds = 0;
    do {
        ms_pool_run(pool, decode_piece, (void *)(uintptr_t)d, pieces);
        rounds++;
        now = ms_clock_ns();
    } while (now - begin < MEASURE_NS);
    *out = (double)rounds * (double)ms_expert_bytes(d->block->shape) * 1e9 / (double)(now - begin);
    *used = ms_pool_threads(pool);
    ms_pool_destroy(pool);
    return MS_OK;
}

static ms_status read_experts(const probing *p, ms_reader *r, double *rate, ms_error *err) {
    const ms_expert_table *t = p->s->experts;
    ms_read_request requests[READS];
    size_t count = 0, shards = ms_checkpoint_shard_count(p->s->checkpoint),
           all = (size_t)t->layer_count * t->expert_count;
    unsigned *files = malloc((shards + 1) * sizeof *files);
    if (!files) return ms_fail_memory(err, "files", shards * sizeof *files);
    for (size_t i = 0; i < shards; i++) files[i] = UINT32_MAX;
    ms_status st = MS_OK;
    for (; st == MS_OK && count < READS && count < all; count++) {
        const ms_expert_extent *x = &t->extents[all * count / READS % all];
        if (files[x->shard] == UINT32_MAX)
            st = ms_reader_add_file(r, ms_checkpoint_shard_path(p->s->checkpoint, x->shard), &files[x->shard], err);
        requests[count] =
            (ms_read_request){.file = files[x->shard], .offset = x->offset, .length = t->expert_bytes, .tag = count};
    }
    free(files);
    MS_TRY(st);
    uint64_t begin = ms_clock_ns();
    MS_TRY(ms_reader_submit(r, requests, count, err));
    for (size_t i = 0; i < count; i++) {
        ms_read_done done;
        MS_TRY(ms_reader_next(r, &done, err));
        ms_reader_release(r, done.buffer);
        if (done.status != MS_OK) {
            if (err) *err = done.error;
            return done.status;
        }
    }
    *rate = (double)count * (double)t->expert_bytes * 1e9 / (double)(ms_clock_ns() - begin + 1);
    return MS_OK;
}

static ms_status read_rate(const probing *p, const ms_mzg2_probe_options *o, double *rate, ms_error *err) {
    size_t bytes = ms_reader_buffer_bytes((size_t)p->s->experts->expert_bytes);
    ms_reader_options ro = {.depth = READ_DEPTH,
                            .staging = aligned_alloc(MS_READER_ALIGN, READ_DEPTH * bytes),
                            .buffer_count = READ_DEPTH,
                            .buffer_bytes = bytes,
                            .buffered = o->buffered,
                            .no_uring = o->no_uring};
    if (!ro.staging) return ms_fail_memory(err, "read buffers", READ_DEPTH * bytes);
    memset(ro.staging, 0, READ_DEPTH * bytes);
    ms_reader *r = NULL;
    ms_status st = ms_reader_create(&r, &ro, err);
    if (st == MS_OK) st = read_experts(p, r, rate, err);
    ms_reader_destroy(r);
    free(ro.staging);
    return st;
}

static ms_status measure(probing *p, const ms_mzg2_layer *layer, uint32_t stored, const ms_mzg2_probe_options *o,
                         ms_error *err) {
    ms_mzg2_block b;
    unsigned one = 1;
    ms_mzg2_tables_expand(p->w.tables, layer);
    MS_TRY(ms_mzg2_block_open(&b, p->w.block, stored, p->count - 1, p->s->shape, err));
    decoding d = {.codec = ms_mzg2_codec_find(NULL), .block = &b, .tables = p->w.tables, .slot = p->w.slot};
    p->out->decoder = ms_mzg2_codec_name(d.codec);
    MS_TRY(ms_mzg2_decode(d.codec, d.slot, &b, d.tables, err));
    MS_TRY(decode_rate(&p->out->decode_rate, &d, 1, &one, err));
    MS_TRY(decode_rate(&p->out->decode_rate_all, &d, o->threads, &p->out->threads, err));
    return o->no_read ? MS_OK : read_rate(p, o, &p->out->read_rate, err);
}

ms_status ms_mzg2_probe_run(ms_mzg2_probe *out, const ms_mzg2_source *s, const ms_mzg2_probe_options *o,
                            ms_error *err) {
    probing p = {.s = s, .out = out};
    *out = (ms_mzg2_probe){0};
    if (s->experts->layer_count == 0) return ms_fail(err, MS_ERR_USAGE, "the model has no routed experts");
    ms_mzg2_layer *layer = calloc(1, sizeof *layer);
    if (!layer) return ms_fail_memory(err, "table sets", sizeof *layer);
    uint32_t stored = 0;
    ms_status st = mzg2_worker_init(&p.w, s->shape, err);
    if (st == MS_OK) st = read_samples(&p, err);
    if (st == MS_OK) count_order0(&p);
    for (int t = 0; st == MS_OK && t < MS_MZG2_PROBE_FITS; t++)
        for (int c = 0; st == MS_OK && c < 2; c++)
            st = try_fit(&p, ms_mzg2_probe_tables[t], c ? MS_MZG2_CLASSES : 1, &out->saving[t][c], layer, &stored, err);
    if (st == MS_OK) st = measure(&p, layer, stored, o, err);
    mzg2_worker_free(&p.w);
    free(p.experts);
    free(layer);
    return st;
}
