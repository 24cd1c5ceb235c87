#include "session/loader.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "quant/fp8.h"

/* One piece of a matrix on its way from file to device: large enough for the disk.  It is gone before the expert
 * service and the sessions get their memory, which is more than this, so that the plan's total stays the peak. */
enum { PIECE_BYTES = 4 << 20 };

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

typedef struct loading {
    ms_backend *backend;
    const ms_checkpoint *checkpoint;
    void *piece;
    uint8_t *records; /* FP8 rows with their scales; as many rows as the piece */
    uint64_t done, total;
    void (*progress)(void *arg, uint64_t done, uint64_t total);
    void *arg;
} loading;

static void advance(loading *l, uint64_t bytes) {
    l->done += bytes;
    if (l->progress) l->progress(l->arg, l->done, l->total);
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

static ms_status fill_rows(loading *l, const ms_tensor *t, const source_rows *s, ms_weight *w, ms_error *err) {
    uint64_t row_bytes = (uint64_t)w->cols * ms_dtype_bytes((ms_dtype)t->dtype);
    uint32_t at_once = row_bytes >= PIECE_BYTES ? 1 : (uint32_t)(PIECE_BYTES / row_bytes);
    for (uint32_t row = 0; row < w->rows;) {
        uint32_t left = s->chunks.size ? s->chunks.take - row % s->chunks.take : w->rows - row;
        uint32_t n = left < at_once ? left : at_once;
        uint64_t first = source_row(s, row);
        MS_TRY(ms_checkpoint_read(l->checkpoint, t, first * row_bytes, l->piece, (size_t)(n * row_bytes), err));
        if (s->scales) make_records(l->records, l->piece, s, first, n);
        ms_status st = l->backend->weight_fill(l->backend, w, row, n, s->scales ? l->records : l->piece,
                                               s->scales ? MS_FORMAT_FP8 : source_format(t), err);
        MS_TRY(blame(l->checkpoint, t, st, err));
        advance(l, n * row_bytes);
        row += n;
    }
    return MS_OK;
}

/* All block scales of an item's tensor, which the layout has checked against it. */
static ms_status read_scales(loading *l, const ms_static_item *item, source_rows *s, float **out, ms_error *err) {
    const ms_tensor *t = find(l->checkpoint, item->scales, false, err);
    if (!t) return MS_ERR_FORMAT;
    uint32_t chunk = item->chunks.size ? item->chunks.size : item->rows;
    s->chunk_blocks = ms_q8_groups(chunk);
    uint64_t chunks = item->chunks.size ? item->rows / item->chunks.take : 1;
    uint64_t want = chunks * s->chunk_blocks * ms_q8_groups(item->cols) * sizeof(float);
    if (t->dtype != MS_DTYPE_F32 || t->bytes != want)
        return ms_fail(err, MS_ERR_FORMAT, "tensor %s: expected %llu bytes of F32, found %llu of %s", item->scales,
                       (unsigned long long)want, (unsigned long long)t->bytes, ms_dtype_name((ms_dtype)t->dtype));
    *out = malloc((size_t)want);
    if (!*out) return ms_fail_memory(err, "block scales", (size_t)want);
    s->scales = *out;
    return ms_checkpoint_read(l->checkpoint, t, 0, *out, (size_t)want, err);
}

static ms_status load_item(loading *l, const ms_static_item *item, ms_weight *w, ms_error *err) {
    const ms_tensor *t = find(l->checkpoint, item->name, item->scales[0] != 0, err);
    if (!t) return MS_ERR_FORMAT;
    MS_TRY(
        l->backend->weight_create(l->backend, w, item->format, item->rows, ms_static_cols(l->checkpoint, item), err));
    if (item->times[0]) {
        MS_TRY(fill_folded(l->backend, l->checkpoint, item, w, err));
        advance(l, t->bytes);
        return MS_OK;
    }
    source_rows s = {.chunks = item->chunks, .cols = w->cols};
    float *scales = NULL;
    ms_status st = item->scales[0] ? read_scales(l, item, &s, &scales, err) : MS_OK;
    if (st == MS_OK) st = fill_rows(l, t, &s, w, err);
    free(scales);
    return st;
}

/* Source bytes that an item reads of its tensor. */
static uint64_t source_bytes(const ms_tensor *t, const ms_static_item *item) {
    return item->chunks.size ? t->bytes / item->chunks.size * item->chunks.take : t->bytes;
}

/* The piece: a row at least, the largest matrix at most. */
static ms_status create_buffers(loading *l, const ms_static_list *list, ms_error *err) {
    uint64_t piece = 0, records = 0;
    for (size_t i = 0; i < list->count; i++) {
        const ms_static_item *item = &list->items[i];
        const ms_tensor *t = find(l->checkpoint, item->name, item->scales[0] != 0, err);
        if (!t) return MS_ERR_FORMAT;
        uint64_t bytes = source_bytes(t, item), row = bytes / item->rows;
        uint64_t want = bytes < PIECE_BYTES ? bytes : PIECE_BYTES;
        l->total += bytes;
        if (want < row) want = row;
        if (want > piece) piece = want;
        uint64_t as_records = item->scales[0] ? want / item->cols * ms_fp8_record_bytes(item->cols) : 0;
        if (as_records > records) records = as_records;
    }
    l->piece = malloc(piece ? (size_t)piece : 1);
    l->records = malloc(records ? (size_t)records : 1);
    return l->piece && l->records ? MS_OK : ms_fail_memory(err, "load buffer", (size_t)(piece + records));
}

static ms_weight *weight_at(void *weights, const ms_static_item *item) {
    return (ms_weight *)(void *)((char *)weights + item->weight_offset);
}

ms_status ms_statics_load(ms_backend *be, const ms_checkpoint *c, const ms_static_list *list, void *weights,
                          void (*progress)(void *arg, uint64_t done, uint64_t total), void *arg, ms_error *err) {
    loading l = {.backend = be, .checkpoint = c, .progress = progress, .arg = arg};
    ms_status st = create_buffers(&l, list, err);
    for (size_t i = 0; i < list->count && st == MS_OK; i++) {
        st = load_item(&l, &list->items[i], weight_at(weights, &list->items[i]), err);
        if (st != MS_OK && st != MS_ERR_NUMERIC) ms_error_context(err, "%s", list->items[i].name);
    }
    free(l.piece);
    free(l.records);
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
