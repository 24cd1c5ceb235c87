/* cpu_weight.c: weights in the CPU's layouts: F32 and BF16 row-major, Q8 and FP8 as quant/q8.h. */
#include "backend/cpu/cpu.h"

#include "base/bytes.h"
#include "quant/fp8.h"

#include <stdlib.h>

enum { FILL_ROWS = 8 };

static bool has_scales(ms_format f) { return f == MS_FORMAT_Q8 || f == MS_FORMAT_FP8; }

static uint64_t data_bytes(const ms_weight *w) {
    return (uint64_t)w->rows * w->cols * (has_scales(w->format) ? 1 : w->format == MS_FORMAT_BF16 ? 2 : 4);
}

static uint64_t scale_bytes(const ms_weight *w) {
    return has_scales(w->format) ? (uint64_t)w->rows * ms_q8_groups(w->cols) * sizeof(float) : 0;
}

ms_status cpu_weight_create(ms_backend *be, ms_weight *w, ms_format format, uint32_t rows, uint32_t cols,
                            ms_error *err) {
    (void)be;
    *w = (ms_weight){.format = format, .rows = rows, .cols = cols};
    uint64_t total = ms_weight_bytes(format, rows, cols);
    if (rows == 0 || cols == 0) return ms_fail(err, MS_ERR_FORMAT, "weight of %u x %u: expected a size", rows, cols);
    if (total >= SIZE_MAX) return ms_fail_memory(err, "weight", SIZE_MAX);
    w->data = cpu_memory_new((size_t)data_bytes(w), false);
    if (w->data && has_scales(format)) w->scales = cpu_memory_new((size_t)scale_bytes(w), false);
    if (w->data && (w->scales || !has_scales(format))) return MS_OK;
    cpu_weight_destroy(be, w);
    return ms_fail_memory(err, "weight", (size_t)total);
}

void cpu_weight_destroy(ms_backend *be, ms_weight *w) {
    (void)be;
    if (w->data) cpu_memory_free(w->data, (size_t)data_bytes(w));
    if (w->scales) cpu_memory_free(w->scales, (size_t)scale_bytes(w));
    *w = (ms_weight){0};
}

typedef struct fill_job {
    const cpu_backend *c;
    ms_weight *w;
    uint32_t first, count;
    const void *host;
    ms_format source;
    uint64_t *bad_row; /* [threads]: lowest row with a value that has no place, or UINT64_MAX */
} fill_job;

/* The record of source row i, its scale of column `at`. */
static const uint8_t *fp8_codes(const fill_job *job, uint32_t i, uint32_t at, float *scale) {
    const uint8_t *record = (const uint8_t *)job->host + i * ms_fp8_record_bytes(job->w->cols);
    memcpy(scale, record + at / MS_Q8_WEIGHT_GROUP * sizeof *scale, sizeof *scale);
    return record + ms_q8_groups(job->w->cols) * sizeof *scale + at;
}

/* Columns [at, at + n), n <= 128 and of one group, of source row i as f32.  The host rows need not be aligned. */
static void source_piece(const fill_job *job, float *x, uint32_t i, uint32_t at, uint32_t n) {
    size_t from = (size_t)i * job->w->cols + at;
    if (job->source == MS_FORMAT_FP8) {
        float scale;
        const uint8_t *codes = fp8_codes(job, i, at, &scale);
        job->c->k->from_fp8(x, codes, scale, n);
    } else if (job->source == MS_FORMAT_BF16) {
        uint16_t h[MS_Q8_WEIGHT_GROUP];
        memcpy(h, (const uint8_t *)job->host + from * sizeof *h, n * sizeof *h);
        job->c->k->from_bf16(x, h, n);
    } else {
        memcpy(x, (const uint8_t *)job->host + from * sizeof *x, n * sizeof *x);
    }
}

/* Exponent all ones; for a BF16 target also after rounding. */
static bool usable(const ms_weight *w, float x) {
    if (w->format == MS_FORMAT_BF16) x = ms_bf16_to_f32(ms_bf16_from_f32(x));
    return (ms_f32_bits(x) & 0x7f800000u) != 0x7f800000u;
}

static bool store_piece(const fill_job *job, const float *x, uint32_t row, uint32_t g, uint32_t n) {
    ms_weight *w = job->w;
    size_t at = (size_t)row * w->cols + (size_t)g * MS_Q8_WEIGHT_GROUP;
    if (w->format == MS_FORMAT_Q8) {
        float *scale = w->scales + ms_q8_scale_index(w->rows, w->cols, row, g);
        job->c->k->quantize((int8_t *)w->data + ms_q8_data_offset(w->rows, w->cols, row, g), scale, x, n, n);
        return *scale == *scale;
    }
    bool ok = true;
    for (uint32_t i = 0; i < n; i++) ok &= usable(w, x[i]);
    if (w->format == MS_FORMAT_BF16)
        job->c->k->to_bf16((uint16_t *)w->data + at, x, n);
    else
        memcpy((float *)w->data + at, x, n * sizeof *x);
    return ok;
}

/* Codes stay as they are; x tells whether they are numbers. */
static bool store_codes(const fill_job *job, const float *x, uint32_t i, uint32_t g, uint32_t n) {
    ms_weight *w = job->w;
    uint32_t row = job->first + i;
    const uint8_t *codes = fp8_codes(job, i, g * MS_Q8_WEIGHT_GROUP,
                                     w->scales + ms_q8_scale_index(w->rows, w->cols, row, g));
    memcpy((uint8_t *)w->data + ms_q8_data_offset(w->rows, w->cols, row, g), codes, n);
    bool ok = true;
    for (uint32_t c = 0; c < n; c++) ok &= usable(w, x[c]);
    return ok;
}

static void fill_task(void *arg, size_t task, unsigned worker) {
    const fill_job *job = arg;
    uint32_t from = (uint32_t)task * FILL_ROWS, to = from + FILL_ROWS < job->count ? from + FILL_ROWS : job->count;
    float x[MS_Q8_WEIGHT_GROUP];
    for (uint32_t i = from; i < to; i++) {
        for (uint32_t g = 0; g < ms_q8_groups(job->w->cols); g++) {
            uint32_t n = ms_q8_group_cols(job->w->cols, g);
            source_piece(job, x, i, g * MS_Q8_WEIGHT_GROUP, n);
            bool good = job->w->format == MS_FORMAT_FP8 ? store_codes(job, x, i, g, n)
                                                        : store_piece(job, x, job->first + i, g, n);
            if (!good && job->bad_row[worker] > i) job->bad_row[worker] = i;
        }
    }
}

static ms_status report_bad(const fill_job *job, uint32_t i, ms_error *err) {
    for (uint32_t col = 0; col < job->w->cols; col++) {
        float x;
        source_piece(job, &x, i, col, 1);
        if (!usable(job->w, x))
            return ms_fail(err, MS_ERR_NUMERIC, "row %u column %u: expected a finite value, found %g", job->first + i,
                           col, (double)x);
    }
    return ms_fail(err, MS_ERR_NUMERIC, "row %u: expected finite values", job->first + i);
}

ms_status cpu_weight_fill(ms_backend *be, ms_weight *w, uint32_t first, uint32_t count, const void *host,
                          ms_format source, ms_error *err) {
    cpu_backend *c = cpu_of(be);
    if (first > w->rows || count > w->rows - first)
        return ms_fail(err, MS_ERR_INTERNAL, "weight rows %u + %u: the weight has %u", first, count, w->rows);
    if (source == MS_FORMAT_Q8 || (w->format == MS_FORMAT_FP8 && source != MS_FORMAT_FP8))
        return ms_fail(err, MS_ERR_INTERNAL, "weight source must be BF16, F32 or FP8, and FP8 for FP8");
    uint64_t *bad_row = malloc(be->threads * sizeof *bad_row);
    if (!bad_row) return ms_fail_memory(err, "weight check", be->threads * sizeof *bad_row);
    for (unsigned i = 0; i < be->threads; i++) bad_row[i] = UINT64_MAX;
    fill_job job = {c, w, first, count, host, source, bad_row};
    cpu_run(c, fill_task, &job, count / FILL_ROWS + (count % FILL_ROWS != 0));
    uint64_t lowest = UINT64_MAX;
    for (unsigned i = 0; i < be->threads; i++) lowest = bad_row[i] < lowest ? bad_row[i] : lowest;
    free(bad_row);
    return lowest == UINT64_MAX ? MS_OK : report_bad(&job, (uint32_t)lowest, err);
}

const float *cpu_vector(cpu_backend *c, const ms_weight *w, uint32_t dim, const char *op) {
    if (!cpu_need(c, (uint64_t)w->rows * w->cols >= dim && !has_scales(w->format), op, "norm weight")) return NULL;
    if (w->format == MS_FORMAT_F32) return w->data;
    if (!cpu_need(c, dim <= c->scratch.max_cols, op, "vector width")) return NULL;
    c->k->from_bf16(c->scratch.vector, w->data, dim);
    return c->scratch.vector;
}

const float *cpu_f32(cpu_backend *c, const ms_weight *w, uint64_t count, const char *op, const char *what) {
    bool ok = w->format == MS_FORMAT_F32 && (uint64_t)w->rows * w->cols >= count;
    return cpu_need(c, ok, op, what) ? w->data : NULL;
}
