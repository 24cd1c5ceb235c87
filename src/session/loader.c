#include "session/loader.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "io/reader.h"
#include "quant/fp8.h"

/* A piece of a matrix on its way from file to device: large enough for the disk; and so many of them at a time. */
enum { PIECE_BYTES = 4 << 20, MAX_BUFFERS = 16 };

static ms_format source_format(const ms_tensor *t) { return t->dtype == MS_DTYPE_F32 ? MS_FORMAT_F32 : MS_FORMAT_BF16; }

/* FP8 has a meaning only beside its scales. */
static const ms_tensor *find(const ms_checkpoint *c, const char *name, bool scaled, ms_error *err) {
    const ms_tensor *t = ms_checkpoint_find(c, name);
    if (!t) ms_fail(err, MS_ERR_FORMAT, "tensor %s is missing", name);
    else if (scaled && t->dtype != MS_DTYPE_F8_E4M3) {
        ms_fail(err, MS_ERR_FORMAT, "tensor %s: expected F8_E4M3, found %s", name, ms_dtype_name((ms_dtype)t->dtype));
        t = NULL;
    } else if (!scaled && t->dtype != MS_DTYPE_F32 && t->dtype != MS_DTYPE_BF16) {
        ms_fail(err, MS_ERR_FORMAT, "tensor %s: expected BF16 or F32, found %s", name,
                ms_dtype_name((ms_dtype)t->dtype));
        t = NULL;
    }
    return t;
}

uint32_t ms_static_cols(const ms_checkpoint *c, const ms_static_item *item) {
    const ms_tensor *t = ms_checkpoint_find(c, item->name);
    if (!t || item->rows != 1) return item->cols;
    return (uint32_t)(t->bytes / ms_dtype_bytes((ms_dtype)t->dtype));
}

uint64_t ms_static_item_bytes(const ms_checkpoint *c, const ms_static_item *item) {
    return ms_weight_bytes(item->format, item->rows, ms_static_cols(c, item));
}

static float element(const void *data, ms_format f, size_t i) {
    return f == MS_FORMAT_F32 ? ((const float *)data)[i] : ms_bf16_to_f32(((const uint16_t *)data)[i]);
}

/* A value that is refused names its file as well as its tensor. */
static ms_status blame(const ms_checkpoint *c, const ms_tensor *t, ms_status st, ms_error *err) {
    if (st == MS_ERR_NUMERIC) ms_error_context(err, "%s: %s", ms_checkpoint_shard_path(c, t->shard), t->name);
    return st;
}

static ms_status read_vector(const ms_checkpoint *c, const ms_tensor *t, float *out, uint32_t n, void *scratch,
                             ms_error *err) {
    MS_TRY(ms_checkpoint_read(c, t, 0, scratch, (size_t)t->bytes, err));
    for (uint32_t i = 0; i < n; i++) {
        out[i] = element(scratch, source_format(t), i);
        if (!isfinite(out[i])) {
            ms_fail(err, MS_ERR_NUMERIC, "column %u: expected a finite value, found %g", i, (double)out[i]);
            return blame(c, t, MS_ERR_NUMERIC, err);
        }
    }
    return MS_OK;
}

/* Elementwise product of two vectors, folded once. */
static ms_status fill_folded(ms_backend *be, const ms_checkpoint *c, const ms_static_item *item, ms_weight *w,
                             ms_error *err) {
    const ms_tensor *a = find(c, item->name, false, err), *b = find(c, item->times, false, err);
    if (!a || !b) return MS_ERR_FORMAT;
    float *x = malloc(3 * (size_t)w->cols * sizeof *x);
    if (!x) return ms_fail_memory(err, "folded vector", 3 * (size_t)w->cols * sizeof *x);
    float *y = x + w->cols;
    ms_status st = read_vector(c, a, x, w->cols, y + w->cols, err);
    if (st == MS_OK) st = read_vector(c, b, y, w->cols, y + w->cols, err);
    if (st == MS_OK) {
        for (uint32_t i = 0; i < w->cols; i++) x[i] = x[i] * y[i];
        st = be->weight_fill(be, w, 0, 1, x, MS_FORMAT_F32, err);
        if (st == MS_ERR_NUMERIC) ms_error_context(err, "product with %s", b->name);
        st = blame(c, a, st, err);
    }
    free(x);
    return st;
}

/* A piece that the backend has been given. */
typedef struct filling {
    uint32_t item, ticket;
    uint64_t bytes;
    unsigned buffer; /* held until it is finished */
} filling;

/* An item with block scales: they are there while pieces of it are on their way. */
typedef struct scaled_item {
    float *scales;
    uint32_t rows_left;
} scaled_item;

typedef struct loading {
    ms_backend *backend;
    const ms_checkpoint *checkpoint;
    const ms_static_list *list;
    void *weights;
    const ms_load_options *options;
    uint64_t done, total;
    size_t piece, record_bytes; /* of the largest: as read, and as FP8 records */
    scaled_item *scaled;        /* [items] */
    uint8_t *records;           /* one piece with its scales */

    uint8_t *staging;
    unsigned buffers;
    size_t buffer_bytes;
    ms_reader *reader;
    unsigned *file_of_shard;
    size_t next_item; /* to ask for: its rows from next_row on */
    uint32_t next_row;
    filling fills[MAX_BUFFERS]; /* a ring */
    unsigned first_fill, fill_count;
} loading;

static ms_weight *weight_at(void *weights, const ms_static_item *item) {
    return (ms_weight *)(void *)((char *)weights + item->weight_offset);
}

static ms_weight *weight_of(const loading *l, size_t item) { return weight_at(l->weights, &l->list->items[item]); }

static void advance(loading *l, uint64_t bytes) {
    l->done += bytes;
    if (l->options->progress) l->options->progress(l->options->arg, l->done, l->total);
}

static ms_status name_item(const loading *l, size_t item, ms_status st, ms_error *err) {
    if (st != MS_OK && st != MS_ERR_NUMERIC) ms_error_context(err, "%s", l->list->items[item].name);
    return st;
}

/* Rows of the tensor in which weight rows lie. */
typedef struct source_rows {
    ms_row_chunks chunks;
    const float *scales; /* [rows of blocks][columns of blocks] of an FP8 tensor; NULL: another */
    uint32_t chunk_blocks, cols;
} source_rows;

static uint64_t source_row(const source_rows *s, uint32_t row) {
    const ms_row_chunks *c = &s->chunks;
    return c->size ? (uint64_t)(row / c->take) * c->size + c->first + row % c->take : row;
}

/* Codes of n source rows from `first` on, all of one chunk, as records. */
static void make_records(uint8_t *records, const uint8_t *codes, const source_rows *s, uint64_t first, uint32_t n) {
    uint32_t groups = ms_q8_groups(s->cols);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t row = first + i, chunk = s->chunks.size ? row / s->chunks.size : 0;
        uint64_t in_chunk = s->chunks.size ? row % s->chunks.size : row;
        const float *scales = s->scales + (chunk * s->chunk_blocks + in_chunk / MS_Q8_WEIGHT_GROUP) * groups;
        memcpy(records, scales, groups * sizeof *scales);
        memcpy(records + groups * sizeof *scales, codes + (size_t)i * s->cols, s->cols);
        records += ms_fp8_record_bytes(s->cols);
    }
}

/* Source bytes that an item reads of its tensor. */
static uint64_t source_bytes(const ms_tensor *t, const ms_static_item *item) {
    return item->chunks.size ? t->bytes / item->chunks.size * item->chunks.take : t->bytes;
}

static uint64_t row_bytes_of(const ms_tensor *t, const ms_weight *w) {
    return (uint64_t)w->cols * ms_dtype_bytes((ms_dtype)t->dtype);
}

static uint32_t rows_at_once(uint64_t row_bytes) {
    return row_bytes >= PIECE_BYTES ? 1 : (uint32_t)(PIECE_BYTES / row_bytes);
}

/* ------------------------------------------------------------------ sizes and memory */

/* The piece: a row at least, the largest matrix at most. */
static ms_status measure(loading *l, ms_error *err) {
    for (size_t i = 0; i < l->list->count; i++) {
        const ms_static_item *it = &l->list->items[i];
        const ms_tensor *t = find(l->checkpoint, it->name, it->scales[0] != 0, err);
        if (!t) return MS_ERR_FORMAT;
        uint64_t bytes = source_bytes(t, it), row = bytes / it->rows;
        uint64_t want = bytes < PIECE_BYTES ? bytes : PIECE_BYTES;
        l->total += bytes;
        if (want < row) want = row;
        if (want > l->piece) l->piece = (size_t)want;
        uint64_t as_records = it->scales[0] ? want / it->cols * ms_fp8_record_bytes(it->cols) : 0;
        if (as_records > l->record_bytes) l->record_bytes = (size_t)as_records;
    }
    size_t n = l->list->count;
    l->scaled = calloc(n ? n : 1, sizeof *l->scaled);
    l->records = malloc(l->record_bytes ? l->record_bytes : 1);
    return l->scaled && l->records ? MS_OK : ms_fail_memory(err, "load buffer", l->record_bytes);
}

static ms_status create_weights(loading *l, ms_error *err) {
    for (size_t i = 0; i < l->list->count; i++) {
        const ms_static_item *it = &l->list->items[i];
        ms_status st = l->backend->weight_create(l->backend, weight_of(l, i), it->format, it->rows,
                                                 ms_static_cols(l->checkpoint, it), err);
        MS_TRY(name_item(l, i, st, err));
    }
    return MS_OK;
}

static ms_status create_reader(loading *l, ms_error *err) {
    size_t shards = ms_checkpoint_shard_count(l->checkpoint);
    l->buffer_bytes = ms_reader_buffer_bytes(l->piece ? l->piece : 1);
    uint64_t buffers = l->options->buffer_bytes / l->buffer_bytes;
    l->buffers = buffers < 1 ? 1 : buffers > MAX_BUFFERS ? MAX_BUFFERS : (unsigned)buffers;
    MS_TRY(l->backend->alloc(l->backend, MS_MEM_STAGING, l->buffers * l->buffer_bytes, "load buffers",
                             (void **)&l->staging, err));
    ms_reader_options o = {.depth = l->buffers,
                           .staging = l->staging,
                           .buffer_count = l->buffers,
                           .buffer_bytes = l->buffer_bytes,
                           .buffered = l->options->buffered,
                           .no_uring = l->options->no_uring}; /* the expert reader says what does not work here */
    MS_TRY(ms_reader_create(&l->reader, &o, err));
    l->file_of_shard = malloc((shards ? shards : 1) * sizeof *l->file_of_shard);
    if (!l->file_of_shard) return ms_fail_memory(err, "shard table", shards * sizeof *l->file_of_shard);
    for (size_t i = 0; i < shards; i++) l->file_of_shard[i] = UINT32_MAX;
    for (size_t i = 0; i < l->list->count; i++) {
        unsigned *file = &l->file_of_shard[ms_checkpoint_find(l->checkpoint, l->list->items[i].name)->shard];
        if (*file != UINT32_MAX) continue;
        MS_TRY(ms_reader_add_file(l->reader, ms_checkpoint_shard_path(l->checkpoint, (size_t)(file - l->file_of_shard)),
                                  file, err));
    }
    return MS_OK;
}

/* ------------------------------------------------------------------ the pipeline */

static ms_status fold(loading *l, size_t item, ms_error *err) {
    const ms_static_item *it = &l->list->items[item];
    ms_status st = fill_folded(l->backend, l->checkpoint, it, weight_of(l, item), err);
    if (st == MS_OK) advance(l, ms_checkpoint_find(l->checkpoint, it->name)->bytes);
    return st;
}

static source_rows rows_of(const loading *l, size_t item) {
    const ms_static_item *it = &l->list->items[item];
    return (source_rows){.chunks = it->chunks,
                         .scales = l->scaled[item].scales,
                         .chunk_blocks = ms_q8_groups(it->chunks.size ? it->chunks.size : it->rows),
                         .cols = weight_of(l, item)->cols};
}

/* All block scales of an item's tensor, which the layout has checked against it. */
static ms_status read_scales(loading *l, size_t item, ms_error *err) {
    const ms_static_item *it = &l->list->items[item];
    const ms_tensor *t = find(l->checkpoint, it->scales, false, err);
    if (!t) return MS_ERR_FORMAT;
    source_rows s = rows_of(l, item);
    uint64_t chunks = it->chunks.size ? it->rows / it->chunks.take : 1;
    uint64_t want = chunks * s.chunk_blocks * ms_q8_groups(it->cols) * sizeof(float);
    if (t->dtype != MS_DTYPE_F32 || t->bytes != want)
        return ms_fail(err, MS_ERR_FORMAT, "tensor %s: expected %llu bytes of F32, found %llu of %s", it->scales,
                       (unsigned long long)want, (unsigned long long)t->bytes, ms_dtype_name((ms_dtype)t->dtype));
    l->scaled[item] = (scaled_item){malloc((size_t)want), it->rows};
    if (!l->scaled[item].scales) return ms_fail_memory(err, "block scales", (size_t)want);
    return ms_checkpoint_read(l->checkpoint, t, 0, l->scaled[item].scales, (size_t)want, err);
}

/* Asks for the next pieces, as many as keep the reader busy. */
static ms_status ask(loading *l, ms_error *err) {
    while (l->next_item < l->list->count && ms_reader_pending(l->reader) < 2 * (size_t)l->buffers) {
        size_t i = l->next_item;
        const ms_static_item *it = &l->list->items[i];
        const ms_tensor *t = ms_checkpoint_find(l->checkpoint, it->name);
        const ms_weight *w = weight_of(l, i);
        if (it->times[0]) {
            MS_TRY(name_item(l, i, fold(l, i, err), err));
            l->next_item++;
            continue;
        }
        if (it->scales[0] && l->next_row == 0) MS_TRY(name_item(l, i, read_scales(l, i, err), err));
        source_rows s = rows_of(l, i);
        uint64_t row_bytes = row_bytes_of(t, w);
        uint32_t left = s.chunks.size ? s.chunks.take - l->next_row % s.chunks.take : w->rows - l->next_row;
        uint32_t n = left < rows_at_once(row_bytes) ? left : rows_at_once(row_bytes);
        ms_read_request q = {.file = l->file_of_shard[t->shard],
                             .offset = t->offset + source_row(&s, l->next_row) * row_bytes,
                             .length = n * row_bytes,
                             .tag = (uint64_t)i << 32 | l->next_row};
        ms_status st = ms_reader_submit(l->reader, &q, 1, err);
        if (st == MS_ERR_USAGE) { /* inside the file by its header: the file was cut before the reader opened it */
            st = MS_ERR_IO;
            if (err) err->code = st;
        }
        MS_TRY(name_item(l, i, st, err));
        l->next_row += n;
        if (l->next_row < w->rows) continue;
        l->next_row = 0;
        l->next_item++;
    }
    return MS_OK;
}

/* Ends what has ended, and as many fills as it takes to leave at most `most` at work. */
static ms_status end_fills(loading *l, unsigned most, ms_error *err) {
    while (l->fill_count) {
        const filling f = l->fills[l->first_fill];
        bool done;
        ms_status st = l->backend->finish(l->backend, f.ticket, l->fill_count > most, &done, err);
        if (!done) return MS_OK;
        l->first_fill = (l->first_fill + 1) % MAX_BUFFERS;
        l->fill_count--;
        ms_reader_release(l->reader, f.buffer);
        const ms_tensor *t = ms_checkpoint_find(l->checkpoint, l->list->items[f.item].name);
        MS_TRY(name_item(l, f.item, blame(l->checkpoint, t, st, err), err));
        advance(l, f.bytes);
    }
    return MS_OK;
}

/* Rows with their scales lie elsewhere than what was read: the backend takes them at once. */
static ms_status fill_scaled(loading *l, size_t item, uint32_t row, uint32_t rows, const uint8_t *codes, ms_error *err) {
    source_rows s = rows_of(l, item);
    scaled_item *scaled = &l->scaled[item];
    make_records(l->records, codes, &s, source_row(&s, row), rows);
    ms_status st = l->backend->weight_fill(l->backend, weight_of(l, item), row, rows, l->records, MS_FORMAT_FP8, err);
    scaled->rows_left -= rows;
    if (scaled->rows_left) return st;
    free(scaled->scales);
    scaled->scales = NULL;
    return st;
}

/* Waits for a piece and gives it to the backend. */
static ms_status take(loading *l, ms_error *err) {
    ms_read_done d;
    MS_TRY(ms_reader_next(l->reader, &d, err));
    uint32_t item = (uint32_t)(d.tag >> 32), row = (uint32_t)d.tag, ticket;
    const ms_tensor *t = ms_checkpoint_find(l->checkpoint, l->list->items[item].name);
    ms_status st = d.status;
    ms_weight *w = weight_of(l, item);
    uint32_t rows = (uint32_t)(d.length / row_bytes_of(t, w));
    bool scaled = l->list->items[item].scales[0] != 0;
    if (st != MS_OK) {
        if (err) *err = d.error;
    } else if (scaled) {
        st = fill_scaled(l, item, row, rows, d.data, err);
    } else {
        st = l->backend->fill_begin(l->backend, w, row, rows, d.data, source_format(t), &ticket, err);
    }
    if (st != MS_OK || scaled) {
        ms_reader_release(l->reader, d.buffer);
        if (st == MS_OK) advance(l, d.length);
        return name_item(l, item, blame(l->checkpoint, t, st, err), err);
    }
    l->fills[(l->first_fill + l->fill_count++) % MAX_BUFFERS] = (filling){item, ticket, d.length, d.buffer};
    return MS_OK;
}

static ms_status run(loading *l, ms_error *err) {
    for (;;) {
        MS_TRY(ask(l, err));
        if (!ms_reader_pending(l->reader)) return end_fills(l, 0, err);
        MS_TRY(end_fills(l, l->buffers - 1, err)); /* one is free to read into */
        MS_TRY(take(l, err));
    }
}

static void destroy(loading *l) {
    bool done;
    for (; l->fill_count; l->fill_count--) {
        (void)l->backend->finish(l->backend, l->fills[l->first_fill].ticket, true, &done, NULL);
        l->first_fill = (l->first_fill + 1) % MAX_BUFFERS;
    }
    ms_reader_destroy(l->reader);
    if (l->staging) l->backend->release(l->backend, MS_MEM_STAGING, l->staging, l->buffers * l->buffer_bytes);
    for (size_t i = 0; l->scaled && i < l->list->count; i++) free(l->scaled[i].scales);
    free(l->scaled);
    free(l->records);
    free(l->file_of_shard);
}

ms_status ms_statics_load(ms_backend *be, const ms_checkpoint *c, const ms_static_list *list, void *weights,
                          const ms_load_options *options, ms_error *err) {
    loading l = {.backend = be, .checkpoint = c, .list = list, .weights = weights, .options = options};
    ms_status st = measure(&l, err);
    if (st == MS_OK) st = create_weights(&l, err);
    if (st == MS_OK) st = create_reader(&l, err);
    if (st == MS_OK) st = run(&l, err);
    destroy(&l);
    if (st != MS_OK) ms_statics_unload(be, list, weights);
    return st;
}

void ms_statics_unload(ms_backend *be, const ms_static_list *list, void *weights) {
    for (size_t i = 0; i < list->count; i++) {
        ms_weight *w = weight_at(weights, &list->items[i]);
        if (w->data) be->weight_destroy(be, w);
        *w = (ms_weight){0};
    }
}
