#include "session/loader.h"

#include <math.h>
#include <stdlib.h>

#include "base/bytes.h"

/* One piece of a matrix on its way from file to device: large enough for the disk.  It is gone before the expert
 * service and the sessions get their memory, which is more than this, so that the plan's total stays the peak. */
enum { PIECE_BYTES = 4 << 20 };

static ms_format source_format(const ms_tensor *t) { return t->dtype == MS_DTYPE_F32 ? MS_FORMAT_F32 : MS_FORMAT_BF16; }

static const ms_tensor *find(const ms_checkpoint *c, const char *name, ms_error *err) {
    const ms_tensor *t = ms_checkpoint_find(c, name);
    if (!t)
        ms_fail(err, MS_ERR_FORMAT, "tensor %s is missing", name);
    else if (t->dtype != MS_DTYPE_F32 && t->dtype != MS_DTYPE_BF16) {
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
    const ms_tensor *a = find(c, item->name, err), *b = find(c, item->times, err);
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
    uint64_t done, total;
    void (*progress)(void *arg, uint64_t done, uint64_t total);
    void *arg;
} loading;

static void advance(loading *l, uint64_t bytes) {
    l->done += bytes;
    if (l->progress) l->progress(l->arg, l->done, l->total);
}

static ms_status fill_rows(loading *l, const ms_tensor *t, ms_weight *w, ms_error *err) {
    uint64_t row_bytes = (uint64_t)w->cols * ms_dtype_bytes((ms_dtype)t->dtype);
    uint32_t at_once = row_bytes >= PIECE_BYTES ? 1 : (uint32_t)(PIECE_BYTES / row_bytes);
    for (uint32_t row = 0; row < w->rows;) {
        uint32_t n = w->rows - row < at_once ? w->rows - row : at_once;
        MS_TRY(ms_checkpoint_read(l->checkpoint, t, row * row_bytes, l->piece, (size_t)(n * row_bytes), err));
        ms_status st = l->backend->weight_fill(l->backend, w, row, n, l->piece, source_format(t), err);
        MS_TRY(blame(l->checkpoint, t, st, err));
        advance(l, n * row_bytes);
        row += n;
    }
    return MS_OK;
}

static ms_status load_item(loading *l, const ms_static_item *item, ms_weight *w, ms_error *err) {
    const ms_tensor *t = find(l->checkpoint, item->name, err);
    if (!t) return MS_ERR_FORMAT;
    MS_TRY(
        l->backend->weight_create(l->backend, w, item->format, item->rows, ms_static_cols(l->checkpoint, item), err));
    if (item->times[0]) {
        MS_TRY(fill_folded(l->backend, l->checkpoint, item, w, err));
        advance(l, t->bytes);
        return MS_OK;
    }
    return fill_rows(l, t, w, err);
}

static ms_weight *weight_at(void *weights, const ms_static_item *item) {
    return (ms_weight *)(void *)((char *)weights + item->weight_offset);
}

ms_status ms_statics_load(ms_backend *be, const ms_checkpoint *c, const ms_static_list *list, void *weights,
                          void (*progress)(void *arg, uint64_t done, uint64_t total), void *arg, ms_error *err) {
    loading l = {.backend = be, .checkpoint = c, .progress = progress, .arg = arg};
    uint64_t piece = 0; /* a row at least, the largest matrix at most */
    for (size_t i = 0; i < list->count; i++) {
        const ms_tensor *t = find(c, list->items[i].name, err);
        if (!t) return MS_ERR_FORMAT;
        l.total += t->bytes;
        uint64_t row = t->bytes / list->items[i].rows, want = t->bytes < PIECE_BYTES ? t->bytes : PIECE_BYTES;
        if (want < row) want = row;
        if (want > piece) piece = want;
    }
    l.piece = malloc(piece ? (size_t)piece : 1);
    if (!l.piece) return ms_fail_memory(err, "load buffer", (size_t)piece);
    ms_status st = MS_OK;
    for (size_t i = 0; i < list->count && st == MS_OK; i++) {
        st = load_item(&l, &list->items[i], weight_at(weights, &list->items[i]), err);
        if (st != MS_OK && st != MS_ERR_NUMERIC) ms_error_context(err, "%s", list->items[i].name);
    }
    free(l.piece);
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
