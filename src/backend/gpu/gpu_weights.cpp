// gpu_weights.cpp - weights of a GPU backend: creation, conversion from raw rows, checks of a weight's shape.
//
// Threads and errors: as gpu_internal.h says; a value that is not finite is found by the kernel that converts it.
#include "backend/gpu/gpu_internal.h"

#include "backend/gpu/k_convert.h"

#include <string.h>

extern "C" {
#include "quant/fp8.h"
}

uint32_t mode_of(const ms_weight *w, bool quantised) {
    if (w->format == MS_FORMAT_Q8) return quantised ? K_MODE_Q8 : K_MODE_Q8_EXACT;
    if (w->format == MS_FORMAT_FP8) return K_MODE_FP8;
    return w->format == MS_FORMAT_BF16 ? K_MODE_BF16 : K_MODE_F32;
}

k_vector vector_of(gpu_backend *g, const ms_weight *w, uint32_t dim, const char *op) {
    k_vector v = {nullptr, w->format == MS_FORMAT_BF16};
    bool plain = w->format == MS_FORMAT_F32 || (w->format == MS_FORMAT_BF16 && w->rows == 1);
    if (need(g, (uint64_t)w->rows * w->cols >= dim && plain, op, "norm weight")) v.data = w->data;
    return v;
}

const float *f32_of(gpu_backend *g, const ms_weight *w, uint64_t count, const char *op, const char *what) {
    bool ok = w->format == MS_FORMAT_F32 && (uint64_t)w->rows * w->cols >= count;
    return need(g, ok, op, what) ? (const float *)w->data : nullptr;
}

namespace {

void weight_destroy(ms_backend *be, ms_weight *w) {
    device_free(gpu_of(be), w->data);
    device_free(gpu_of(be), w->scales);
    memset(w, 0, sizeof *w);
}

ms_status weight_create(ms_backend *be, ms_weight *w, ms_format format, uint32_t rows, uint32_t cols, ms_error *err) {
    gpu_backend *g = gpu_of(be);
    memset(w, 0, sizeof *w);
    w->format = format;
    w->rows = rows;
    w->cols = cols;
    if (rows == 0 || cols == 0) return ms_fail(err, MS_ERR_FORMAT, "weight of %u x %u: expected a size", rows, cols);
    size_t bytes = 0,
           row = has_scales(format) ? k_q8_stride(cols) : (size_t)cols * (format == MS_FORMAT_BF16 ? 2 : 4);
    if (!__builtin_mul_overflow(row, (size_t)rows, &bytes)) w->data = device_new(g, bytes, true);
    if (w->data && has_scales(format))
        w->scales = (float *)device_new(g, (size_t)rows * k_q8_groups(cols) * sizeof(float), true);
    if (w->data && (w->scales || !has_scales(format))) return MS_OK;
    weight_destroy(be, w);
    uint64_t total = ms_weight_bytes(format, rows, cols);
    return refuse_memory(g, "weight", total > SIZE_MAX ? SIZE_MAX : (size_t)total, err);
}

// Value `col` of row i of the host's rows, which need not be aligned.
float host_value(const void *host, ms_format source, size_t i, uint32_t cols, uint32_t col) {
    float x;
    uint16_t h;
    size_t at = i * cols + col;
    if (source == MS_FORMAT_FP8) {
        const uint8_t *record = (const uint8_t *)host + i * ms_fp8_record_bytes(cols);
        memcpy(&x, record + col / K_Q8_GROUP * sizeof x, sizeof x);
        return ms_e4m3(record[k_q8_groups(cols) * sizeof x + col]) * x;
    }
    if (source == MS_FORMAT_F32) {
        memcpy(&x, (const uint8_t *)host + at * sizeof x, sizeof x);
        return x;
    }
    memcpy(&h, (const uint8_t *)host + at * sizeof h, sizeof h);
    uint32_t bits = (uint32_t)h << 16;
    memcpy(&x, &bits, sizeof x);
    return x;
}

// Exponent all ones; for a BF16 target also after rounding.
bool usable(const ms_weight *w, float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    u &= 0x7fffffffu;
    if (w->format == MS_FORMAT_BF16 && u < 0x7f800000u) u = u + 0x7fffu + (u >> 16 & 1u);
    return u < 0x7f800000u;
}

} // namespace

ms_status report_bad(const ms_weight *w, const void *host, ms_format source, uint32_t first, uint32_t i,
                     ms_error *err) {
    for (uint32_t col = 0; col < w->cols; col++) {
        float x = host_value(host, source, i, w->cols, col);
        if (!usable(w, x))
            return ms_fail(err, MS_ERR_NUMERIC, "row %u column %u: expected a finite value, found %g", first + i, col,
                           (double)x);
    }
    return ms_fail(err, MS_ERR_NUMERIC, "row %u: expected finite values", first + i);
}

namespace {

// Rows on their way: `stream` copies them to `raw`, window by window, and converts them there.  `staged`: the host's
// rows stay as they are, so that the device may read them when it gets there.
struct fill {
    gpuStream_t stream;
    uint8_t *raw;
    uint32_t *bad;
    bool staged;
};

ms_status check_fill(const ms_weight *w, uint32_t first, uint32_t count, ms_format source, ms_error *err) {
    if (first > w->rows || count > w->rows - first)
        return ms_fail(err, MS_ERR_INTERNAL, "weight rows %u + %u: the weight has %u", first, count, w->rows);
    if (source != MS_FORMAT_Q8 && (w->format != MS_FORMAT_FP8 || source == MS_FORMAT_FP8)) return MS_OK;
    return ms_fail(err, MS_ERR_INTERNAL, "weight source must be BF16, F32 or FP8, and FP8 for FP8");
}

// Host bytes to f->raw + at; no more than a piece.
void send_raw(gpu_backend *g, const fill *f, size_t at, const void *from, size_t bytes) {
    if (f->staged)
        (void)gpu_ok(g, gpuMemcpyAsync(f->raw + at, from, bytes, gpuMemcpyHostToDevice, f->stream), "weight_fill");
    else
        upload_piece(g, f->raw + at, from, bytes);
}

// Whole records of a piece, or of a row that is longer, a window of columns with its scales.
void convert_records(gpu_backend *g, const fill *f, const ms_weight *w, uint32_t first, uint32_t count,
                     const void *host) {
    const size_t record = ms_fp8_record_bytes(w->cols), head = k_q8_groups(w->cols) * sizeof(float);
    const uint32_t at_once = record <= PIECE_BYTES ? (uint32_t)(PIECE_BYTES / record) : 1;
    const uint32_t window = record <= PIECE_BYTES ? w->cols : (uint32_t)(PIECE_BYTES / 2 / K_FP8_BLOCK) * K_FP8_BLOCK;
    k_convert_fp8_args a = {};
    a.raw = f->raw;
    a.data = w->data;
    a.scales = w->scales;
    a.mode = mode_of(w, true);
    a.rows = w->rows;
    a.cols = w->cols;
    a.bad = f->bad;
    for (uint32_t i = 0; i < count; i += a.n) {
        const uint8_t *from = (const uint8_t *)host + i * record;
        a.first = first + i;
        a.n = count - i < at_once ? count - i : at_once;
        a.bad_base = i;
        for (a.col0 = 0; a.col0 < w->cols; a.col0 += a.window) {
            a.window = w->cols - a.col0 < window ? w->cols - a.col0 : window;
            const size_t scales = k_q8_groups(a.window) * sizeof(float);
            a.row_bytes = scales + a.window;
            if (a.window == w->cols) {
                send_raw(g, f, 0, from, a.n * record);
            } else {
                send_raw(g, f, 0, from + a.col0 / K_Q8_GROUP * sizeof(float), scales);
                send_raw(g, f, scales, from + head + a.col0, a.window);
            }
            k_convert_fp8(f->stream, &a);
        }
    }
}

void convert_rows(gpu_backend *g, const fill *f, const ms_weight *w, uint32_t first, uint32_t count, const void *host,
                  ms_format source) {
    (void)gpu_ok(g, gpuMemsetAsync(f->bad, 0xff, sizeof *f->bad, f->stream), "weight_fill");
    if (source == MS_FORMAT_FP8) {
        convert_records(g, f, w, first, count, host);
        launched(g, "weight_fill");
        return;
    }
    const size_t element = source == MS_FORMAT_BF16 ? 2 : 4, row_bytes = w->cols * element;
    // Whole rows of a piece, or of a row that is longer, a window of columns.
    const uint32_t at_once = row_bytes <= PIECE_BYTES ? (uint32_t)(PIECE_BYTES / row_bytes) : 1;
    const uint32_t window =
        row_bytes <= PIECE_BYTES ? w->cols : (uint32_t)(PIECE_BYTES / element / K_BF16_BLOCK) * K_BF16_BLOCK;
    k_convert_args a = {};
    a.raw = f->raw;
    a.raw_bf16 = source == MS_FORMAT_BF16;
    a.data = w->data;
    a.scales = w->scales;
    a.mode = mode_of(w, true);
    a.rows = w->rows;
    a.cols = w->cols;
    a.bad = f->bad;
    for (uint32_t i = 0; i < count; i += a.n) {
        a.first = first + i;
        a.n = count - i < at_once ? count - i : at_once;
        a.bad_base = i;
        for (a.col0 = 0; a.col0 < w->cols; a.col0 += a.window) {
            a.window = w->cols - a.col0 < window ? w->cols - a.col0 : window;
            const uint8_t *from = (const uint8_t *)host + i * row_bytes + a.col0 * element;
            size_t bytes = (size_t)a.n * a.window * element;
            send_raw(g, f, 0, from, bytes);
            k_convert(f->stream, &a);
        }
    }
    launched(g, "weight_fill");
}

ms_status weight_fill(ms_backend *be, ms_weight *w, uint32_t first, uint32_t count, const void *host, ms_format source,
                      ms_error *err) {
    gpu_backend *g = gpu_of(be);
    MS_TRY(check_fill(w, first, count, source, err));
    fill f = {g->stream, g->raw, g->flags + FLAG_WEIGHT, false};
    convert_rows(g, &f, w, first, count, host, source);
    uint32_t bad = NO_ROW;
    be->download(be, &bad, f.bad, sizeof bad);
    if (g->failure.code != MS_OK) return be->sync(be, err);
    return bad == NO_ROW ? MS_OK : report_bad(w, host, source, first, bad, err);
}

ms_status fill_begin(ms_backend *be, ms_weight *w, uint32_t first, uint32_t count, const void *staging,
                     ms_format source, uint32_t *ticket, ms_error *err) {
    gpu_backend *g = gpu_of(be);
    MS_TRY(check_fill(w, first, count, source, err));
    gpu_side_work *work = side_begin(g, 0, ticket, err);
    if (!work) return MS_ERR_INTERNAL;
    fill f = {g->side, g->raw + PIECE_BYTES, side_flags(g, *ticket), true};
    convert_rows(g, &f, w, first, count, staging, source);
    work->weight = w;
    work->host = staging;
    work->source = source;
    work->first = first;
    return side_end(g, work, f.bad, err);
}

} // namespace

void set_weight_members(ms_backend *be) {
    be->weight_create = weight_create;
    be->weight_fill = weight_fill;
    be->fill_begin = fill_begin;
    be->weight_destroy = weight_destroy;
}
