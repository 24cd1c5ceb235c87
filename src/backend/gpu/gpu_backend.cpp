// gpu_backend.cpp - the backend object over the kernels of k_*.h: memory, weights, scratch, kept failure, calls.
//
// Compiled once per target (HIP, CUDA, emulator) into a library of its own; see gpu_backend.h.
// Owns: one stream, two pinned pieces for uploads, a device piece for raw weight rows, the scratch arena.
// Invariants: everything goes through the one stream, so operations take effect in call order.  A call that would need
// more
//   scratch than was reserved keeps MS_ERR_INTERNAL as the failure and does nothing.
// Errors: failures of the device's runtime are kept as MS_ERR_IO and given by sync(); rows that are not finite are seen
// by
//   kernels, which lower a word of `flags`.
#include "backend/gpu/gpu_backend.h"

#include "backend/gpu/k_dense.h"
#include "backend/gpu/k_experts.h"
#include "backend/gpu/k_kda.h"
#include "backend/gpu/k_mla.h"
#include "backend/gpu/k_router.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

namespace {

enum { ALIGN = 256, PAGE = 4096, PIECES = 2, TABLES = 2, EVENTS = PIECES + TABLES + 1, FETCH_HEAD = 64 };
constexpr size_t PIECE_BYTES = (size_t)4 << 20;
enum { FLAG_ROUTER, FLAG_WEIGHT, FLAG_EXPERT, FLAG_COUNT = FLAG_EXPERT + 3 };
constexpr uint32_t NO_ROW = UINT32_MAX;
// A router failure is (call << 20 | row), so that the lowest word is the first failure; later calls share the last
// number.
enum { ROUTER_ROW_BITS = 20, ROUTER_CALLS = 4094 };

// Pointers into one arena; [rows][dim] areas are dense.
struct gpu_scratch {
    ms_scratch_need need;
    void *base;
    int8_t *x_q;   // [rows][groups of input_cols * 128]
    float *x_s;    // [rows][groups of input_cols]
    float *gate;   // [rows][mlp_width]
    float *up;     // [rows][mlp_width]
    int8_t *act_q; // [rows][groups of mlp_width * 128], fast only, as all of *_q and *_s
    float *act_s;
    float *router; // [rows][router_experts]
    float *mla;    // as k_mla.h lays it out
    float *z;      // [rows][hidden], reference only
    int8_t *z_q;
    float *z_s;   // [rows][hidden / 32]
    float *e_act; // [pairs][inner], reference only
    int8_t *e_q;
    float *e_s;               // [pairs][inner / 32]
    void *table;              // of one experts_run
    void *table_host[TABLES]; // pinned, outside the arena
    uint8_t *fetched;         // pinned, outside the arena: FLAG_ROUTER, then what fetch_begin asked for
};

struct gpu_backend {
    ms_backend base; // first: the public object is this one
    gpuStream_t stream;
    ms_error failure; // code MS_OK: none kept
    char kernels[64];
    bool shares_memory; // the device's memory is the host's
    uint8_t *piece[PIECES]; // pinned
    gpuEvent_t piece_free[PIECES];
    gpuEvent_t table_free[TABLES]; // the table's last upload is done
    gpuEvent_t fetch_done;
    size_t fetch_bytes;         // of the open fetch; 0: none
    uint32_t fetch_calls;       // router_calls when it began
    unsigned events;            // made so far, in the order of event_of()
    unsigned next_piece, next_table;
    uint32_t experts_n; // rows prepared by experts_begin
    ms_expert_shape experts_shape;
    uint8_t *raw;    // device, PIECE_BYTES
    uint32_t *flags; // device, FLAG_COUNT words; all ones: nothing found
    uint32_t router_calls;
    gpu_scratch scratch;
};

gpu_backend *gpu_of(ms_backend *be) { return (gpu_backend *)be; }
bool is_fast(const gpu_backend *g) { return g->base.precision == MS_PRECISION_FAST; }

// ---------------------------------------------------------------- kept failure

__attribute__((format(printf, 3, 4))) void keep_failure(gpu_backend *g, ms_status code, const char *fmt, ...) {
    if (g->failure.code != MS_OK) return;
    char text[sizeof g->failure.message];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    (void)ms_fail(&g->failure, code, "%s", text);
}

bool need(gpu_backend *g, bool ok, const char *op, const char *what) {
    if (!ok) keep_failure(g, MS_ERR_INTERNAL, "%s: %s is outside what was reserved", op, what);
    return ok;
}

bool gpu_ok(gpu_backend *g, gpuError_t e, const char *op) {
    if (e != gpuSuccess) keep_failure(g, MS_ERR_IO, "%s: %s: %s", g->base.name, op, gpuGetErrorString(e));
    return e == gpuSuccess;
}

// After the launches of an operation.
void launched(gpu_backend *g, const char *op) { (void)gpu_ok(g, gpuGetLastError(), op); }

// Keeps what a word of FLAG_ROUTER says.
void router_found(gpu_backend *g, uint32_t found) {
    if (found != NO_ROW)
        keep_failure(g, MS_ERR_NUMERIC, "router: row %u: expected finite scores, found NaN or infinity",
                     found & ((1u << ROUTER_ROW_BITS) - 1));
}

ms_status give_failure(gpu_backend *g, ms_error *err) {
    ms_status code = g->failure.code;
    if (code == MS_OK) return MS_OK;
    if (err) *err = g->failure;
    memset(&g->failure, 0, sizeof g->failure);
    return code;
}

ms_status backend_sync(ms_backend *be, ms_error *err) {
    gpu_backend *g = gpu_of(be);
    if (g->router_calls) {
        uint32_t found = NO_ROW;
        (void)gpu_ok(g, gpuMemcpyAsync(&found, g->flags + FLAG_ROUTER, sizeof found, gpuMemcpyDeviceToHost, g->stream),
                     "download");
        (void)gpu_ok(g, gpuMemsetAsync(g->flags + FLAG_ROUTER, 0xff, sizeof found, g->stream), "zero");
        (void)gpu_ok(g, gpuStreamSynchronize(g->stream), "sync");
        g->router_calls = 0;
        router_found(g, found);
    } else {
        (void)gpu_ok(g, gpuStreamSynchronize(g->stream), "sync");
    }
    return give_failure(g, err);
}

void fetch_begin(ms_backend *be, const void *dev, size_t bytes) {
    gpu_backend *g = gpu_of(be);
    g->fetch_bytes = 0;
    bool fits = g->scratch.fetched && bytes <= (size_t)g->scratch.need.pairs * sizeof(uint32_t);
    if (!need(g, fits, "fetch", "size")) return;
    g->fetch_bytes = bytes;
    g->fetch_calls = g->router_calls;
    uint8_t *to = g->scratch.fetched;
    (void)gpu_ok(g, gpuMemcpyAsync(to + FETCH_HEAD, dev, bytes, gpuMemcpyDeviceToHost, g->stream), "fetch");
    if (g->router_calls)
        (void)gpu_ok(
            g, gpuMemcpyAsync(to, g->flags + FLAG_ROUTER, sizeof(uint32_t), gpuMemcpyDeviceToHost, g->stream), "fetch");
    (void)gpu_ok(g, gpuEventRecord(g->fetch_done, g->stream), "fetch");
}

ms_status fetch_end(ms_backend *be, void *host, ms_error *err) {
    gpu_backend *g = gpu_of(be);
    bool there = g->fetch_bytes && g->failure.code == MS_OK;
    if (!there || !gpu_ok(g, gpuEventSynchronize(g->fetch_done), "fetch")) return backend_sync(be, err);
    memcpy(host, g->scratch.fetched + FETCH_HEAD, g->fetch_bytes);
    g->fetch_bytes = 0;
    uint32_t found = NO_ROW;
    if (g->fetch_calls) memcpy(&found, g->scratch.fetched, sizeof found);
    if (found != NO_ROW) return backend_sync(be, err); // finds the same, and clears it
    if (g->fetch_calls == g->router_calls) g->router_calls = 0;
    return give_failure(g, err);
}

// ---------------------------------------------------------------- memory

void *device_new(gpu_backend *g, size_t bytes, bool zeroed) {
    void *p = nullptr;
    if (gpuMalloc(&p, bytes ? bytes : 1) != gpuSuccess) {
        (void)gpuGetLastError(); // seen: it must not be taken for a later call's
        return nullptr;
    }
    if (zeroed && bytes) (void)gpu_ok(g, gpuMemsetAsync(p, 0, bytes, g->stream), "zero");
    return p;
}

void device_free(gpu_backend *g, void *p) {
    if (!p) return;
    (void)gpu_ok(g, gpuStreamSynchronize(g->stream), "release");
    (void)gpu_ok(g, gpuFree(p), "release");
}

void device_memory(const ms_backend *be, uint64_t *total_bytes, uint64_t *free_bytes) {
    size_t total = 0, left = 0;
    *total_bytes = *free_bytes = 0;
    if (((const gpu_backend *)be)->shares_memory) return;
    if (gpuMemGetInfo(&left, &total) != gpuSuccess) {
        (void)gpuGetLastError();
        return;
    }
    *total_bytes = total;
    *free_bytes = left;
}

// Small pinned allocations share pages at any alignment (seen with CUDA 13); whole huge pages do not.
constexpr size_t PINNED_UNIT = (size_t)2 << 20;
constexpr uint64_t pinned_bytes(uint64_t bytes) { return (bytes / PINNED_UNIT + 1) * PINNED_UNIT; }

void *pinned_new(size_t bytes) {
    void *p = nullptr;
    if (bytes > SIZE_MAX - PINNED_UNIT || gpuHostAllocMapped(&p, pinned_bytes(bytes)) != gpuSuccess) {
        (void)gpuGetLastError();
        return nullptr;
    }
    if ((uintptr_t)p % PAGE != 0) {
        (void)gpuHostFree(p);
        return nullptr;
    }
    memset(p, 0, bytes);
    return p;
}

ms_status backend_alloc(ms_backend *be, ms_memory_kind kind, size_t bytes, const char *what, void **out,
                        ms_error *err) {
    *out = kind == MS_MEM_STAGING ? pinned_new(bytes) : device_new(gpu_of(be), bytes, true);
    return *out ? MS_OK : ms_fail_memory(err, what, bytes);
}

void backend_release(ms_backend *be, ms_memory_kind kind, void *p, size_t) {
    gpu_backend *g = gpu_of(be);
    if (!p) return;
    if (kind == MS_MEM_DEVICE) {
        device_free(g, p);
        return;
    }
    (void)gpu_ok(g, gpuStreamSynchronize(g->stream), "release");
    (void)gpu_ok(g, gpuHostFree(p), "release");
}

// Sends up to PIECE_BYTES; the host memory may change as soon as this returns.
void upload_piece(gpu_backend *g, void *dev, const void *host, size_t bytes) {
    unsigned i = g->next_piece;
    g->next_piece = (i + 1) % PIECES;
    if (!gpu_ok(g, gpuEventSynchronize(g->piece_free[i]), "upload")) return;
    memcpy(g->piece[i], host, bytes);
    (void)gpu_ok(g, gpuMemcpyAsync(dev, g->piece[i], bytes, gpuMemcpyHostToDevice, g->stream), "upload");
    (void)gpu_ok(g, gpuEventRecord(g->piece_free[i], g->stream), "upload");
}

void backend_upload(ms_backend *be, void *dev, const void *host, size_t bytes) {
    for (size_t at = 0; at < bytes; at += PIECE_BYTES)
        upload_piece(gpu_of(be), (uint8_t *)dev + at, (const uint8_t *)host + at,
                     bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES);
}

void backend_download(ms_backend *be, void *host, const void *dev, size_t bytes) {
    gpu_backend *g = gpu_of(be);
    if (!bytes) return;
    (void)gpu_ok(g, gpuMemcpyAsync(host, dev, bytes, gpuMemcpyDeviceToHost, g->stream), "download");
    (void)gpu_ok(g, gpuStreamSynchronize(g->stream), "download");
}

void backend_copy(ms_backend *be, void *dev_to, const void *dev_from, size_t bytes) {
    gpu_backend *g = gpu_of(be);
    if (bytes) (void)gpu_ok(g, gpuMemcpyAsync(dev_to, dev_from, bytes, gpuMemcpyDeviceToDevice, g->stream), "copy");
}

void backend_zero(ms_backend *be, void *dev, size_t bytes) {
    gpu_backend *g = gpu_of(be);
    if (bytes) (void)gpu_ok(g, gpuMemsetAsync(dev, 0, bytes, g->stream), "zero");
}

// ---------------------------------------------------------------- weights

uint32_t mode_of(const ms_weight *w, bool quantised) {
    if (w->format == MS_FORMAT_Q8) return quantised ? K_MODE_Q8 : K_MODE_Q8_EXACT;
    return w->format == MS_FORMAT_BF16 ? K_MODE_BF16 : K_MODE_F32;
}

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
           row = format == MS_FORMAT_Q8 ? k_q8_stride(cols) : (size_t)cols * (format == MS_FORMAT_BF16 ? 2 : 4);
    if (!__builtin_mul_overflow(row, (size_t)rows, &bytes)) w->data = device_new(g, bytes, true);
    if (w->data && format == MS_FORMAT_Q8)
        w->scales = (float *)device_new(g, (size_t)rows * k_q8_groups(cols) * sizeof(float), true);
    if (w->data && (w->scales || format != MS_FORMAT_Q8)) return MS_OK;
    weight_destroy(be, w);
    uint64_t total = ms_weight_bytes(format, rows, cols);
    return ms_fail_memory(err, "weight", total > SIZE_MAX ? SIZE_MAX : (size_t)total);
}

// One value of the host's rows, which need not be aligned.
float host_value(const void *host, ms_format source, size_t at) {
    float x;
    uint16_t h;
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

ms_status report_bad(const ms_weight *w, const void *host, ms_format source, uint32_t first, uint32_t i,
                     ms_error *err) {
    for (uint32_t col = 0; col < w->cols; col++) {
        float x = host_value(host, source, (size_t)i * w->cols + col);
        if (!usable(w, x))
            return ms_fail(err, MS_ERR_NUMERIC, "row %u column %u: expected a finite value, found %g", first + i, col,
                           (double)x);
    }
    return ms_fail(err, MS_ERR_NUMERIC, "row %u: expected finite values", first + i);
}

ms_status weight_fill(ms_backend *be, ms_weight *w, uint32_t first, uint32_t count, const void *host, ms_format source,
                      ms_error *err) {
    gpu_backend *g = gpu_of(be);
    if (first > w->rows || count > w->rows - first)
        return ms_fail(err, MS_ERR_INTERNAL, "weight rows %u + %u: the weight has %u", first, count, w->rows);
    if (source == MS_FORMAT_Q8) return ms_fail(err, MS_ERR_INTERNAL, "weight source must be BF16 or F32");
    const size_t element = source == MS_FORMAT_BF16 ? 2 : 4, row_bytes = w->cols * element;
    // Whole rows of a piece, or of a row that is longer, a window of columns.
    const uint32_t at_once = row_bytes <= PIECE_BYTES ? (uint32_t)(PIECE_BYTES / row_bytes) : 1;
    const uint32_t window =
        row_bytes <= PIECE_BYTES ? w->cols : (uint32_t)(PIECE_BYTES / element / K_BF16_BLOCK) * K_BF16_BLOCK;
    if (!gpu_ok(g, gpuMemsetAsync(g->flags + FLAG_WEIGHT, 0xff, sizeof(uint32_t), g->stream), "weight_fill"))
        return backend_sync(be, err);
    k_convert_args a = {};
    a.raw = g->raw;
    a.raw_bf16 = source == MS_FORMAT_BF16;
    a.data = w->data;
    a.scales = w->scales;
    a.mode = mode_of(w, true);
    a.rows = w->rows;
    a.cols = w->cols;
    a.bad = g->flags + FLAG_WEIGHT;
    for (uint32_t i = 0; i < count; i += a.n) {
        a.first = first + i;
        a.n = count - i < at_once ? count - i : at_once;
        a.bad_base = i;
        for (a.col0 = 0; a.col0 < w->cols; a.col0 += a.window) {
            a.window = w->cols - a.col0 < window ? w->cols - a.col0 : window;
            upload_piece(g, g->raw, (const uint8_t *)host + i * row_bytes + a.col0 * element,
                         (size_t)a.n * a.window * element);
            k_convert(g->stream, &a);
        }
    }
    launched(g, "weight_fill");
    uint32_t bad = NO_ROW;
    backend_download(be, &bad, a.bad, sizeof bad);
    if (g->failure.code != MS_OK) return backend_sync(be, err);
    return bad == NO_ROW ? MS_OK : report_bad(w, host, source, first, bad, err);
}

// A vector weight of `dim` entries; data == NULL, and a kept failure, when it is not one.
k_vector vector_of(gpu_backend *g, const ms_weight *w, uint32_t dim, const char *op) {
    k_vector v = {nullptr, w->format == MS_FORMAT_BF16};
    bool plain = w->format == MS_FORMAT_F32 || (w->format == MS_FORMAT_BF16 && w->rows == 1);
    if (need(g, (uint64_t)w->rows * w->cols >= dim && plain, op, "norm weight")) v.data = w->data;
    return v;
}

// F32 data of a weight with at least `count` elements; NULL and a kept failure otherwise.
const float *f32_of(gpu_backend *g, const ms_weight *w, uint64_t count, const char *op, const char *what) {
    bool ok = w->format == MS_FORMAT_F32 && (uint64_t)w->rows * w->cols >= count;
    return need(g, ok, op, what) ? (const float *)w->data : nullptr;
}

// ---------------------------------------------------------------- scratch

struct carver {
    uint8_t *base; // NULL: only count
    uint64_t used;
    bool overflow;
};

// a * b * element_bytes more bytes.
void *carve(carver *v, uint64_t a, uint64_t b, uint64_t element_bytes) {
    uint64_t bytes, end, at = v->used;
    if (__builtin_mul_overflow(a, b, &bytes) || __builtin_mul_overflow(bytes, element_bytes, &bytes) ||
        __builtin_add_overflow(bytes, (uint64_t)(ALIGN - 1), &bytes) ||
        __builtin_add_overflow(at, bytes / ALIGN * ALIGN, &end)) {
        v->overflow = true;
        return nullptr;
    }
    v->used = end;
    return v->base ? v->base + at : nullptr;
}

void layout(gpu_scratch *s, carver *v, const ms_backend *be, const ms_scratch_need *n) {
    uint64_t x_groups = k_q8_groups(n->input_cols), act_groups = k_q8_groups(n->mlp_width);
    s->need = *n;
    s->gate = (float *)carve(v, n->rows, n->mlp_width, sizeof(float));
    s->up = (float *)carve(v, n->rows, n->mlp_width, sizeof(float));
    s->router = (float *)carve(v, n->rows, n->router_experts, sizeof(float));
    if (be->precision == MS_PRECISION_FAST) {
        s->x_q = (int8_t *)carve(v, n->rows, x_groups, K_Q8_GROUP);
        s->x_s = (float *)carve(v, n->rows, x_groups, sizeof(float));
        s->act_q = (int8_t *)carve(v, n->rows, act_groups, K_Q8_GROUP);
        s->act_s = (float *)carve(v, n->rows, act_groups, sizeof(float));
        s->z_q = (int8_t *)carve(v, n->rows, n->expert.hidden, 1);
        s->z_s = (float *)carve(v, n->rows, n->expert.hidden / K_MX_GROUP, sizeof(float));
        s->e_q = (int8_t *)carve(v, n->pairs, n->expert.inner, 1);
        s->e_s = (float *)carve(v, n->pairs, n->expert.inner / K_MX_GROUP, sizeof(float));
    } else {
        s->z = (float *)carve(v, n->rows, n->expert.hidden, sizeof(float));
        s->e_act = (float *)carve(v, n->pairs, n->expert.inner, sizeof(float));
    }
    s->table = carve(v, 1, experts_table_bytes(n->pairs), 1);
    bool mla = n->mla_rank && mla_fits(n->mla_heads ? n->mla_heads : 1, n->mla_extra, n->mla_rank);
    if (mla) s->mla = (float *)carve(v, 1, mla_scratch_bytes(n->rows, n->mla_heads, n->mla_extra, n->mla_rank), 1);
}

uint64_t fetch_room(const ms_scratch_need *n) { return FETCH_HEAD + (uint64_t)n->pairs * sizeof(uint32_t); }

// Pinned memory beside the arena.
uint64_t host_bytes(const ms_scratch_need *n) {
    return PIECES * pinned_bytes(PIECE_BYTES) + TABLES * pinned_bytes(experts_table_bytes(n->pairs)) +
           pinned_bytes(fetch_room(n));
}

uint64_t scratch_host_bytes(const ms_backend *be, const ms_scratch_need *n) {
    return ((const gpu_backend *)be)->shares_memory ? 0 : host_bytes(n);
}

uint64_t scratch_bytes(const ms_backend *be, const ms_scratch_need *n) {
    gpu_scratch s = {};
    carver v = {};
    layout(&s, &v, be, n);
    uint64_t total;
    return v.overflow || __builtin_add_overflow(v.used, host_bytes(n) + PIECE_BYTES, &total) ? UINT64_MAX : total;
}

void scratch_free(gpu_backend *g) {
    device_free(g, g->scratch.base);
    for (unsigned i = 0; i < TABLES; i++)
        if (g->scratch.table_host[i]) (void)gpu_ok(g, gpuHostFree(g->scratch.table_host[i]), "release");
    if (g->scratch.fetched) (void)gpu_ok(g, gpuHostFree(g->scratch.fetched), "release");
    g->scratch = {};
    g->fetch_bytes = 0;
    g->experts_n = 0;
}

ms_status reserve(gpu_backend *g, const ms_scratch_need *n, ms_error *err) {
    carver v = {};
    layout(&g->scratch, &v, &g->base, n);
    size_t bytes = (size_t)v.used, table = experts_table_bytes(n->pairs);
    void *base = device_new(g, bytes, false);
    if (!base) return ms_fail_memory(err, "workspace", bytes);
    v = {(uint8_t *)base, 0, false};
    layout(&g->scratch, &v, &g->base, n);
    g->scratch.base = base;
    for (unsigned i = 0; i < TABLES; i++) {
        g->scratch.table_host[i] = pinned_new(table);
        if (!g->scratch.table_host[i]) return ms_fail_memory(err, "expert table", table);
    }
    size_t room = (size_t)fetch_room(n);
    g->scratch.fetched = (uint8_t *)pinned_new(room);
    if (!g->scratch.fetched) return ms_fail_memory(err, "router result", room);
    return MS_OK;
}

ms_status scratch_reserve(ms_backend *be, const ms_scratch_need *n, ms_error *err) {
    gpu_backend *g = gpu_of(be);
    uint64_t bytes = scratch_bytes(be, n);
    if (bytes == UINT64_MAX || bytes > SIZE_MAX / 2) return ms_fail_memory(err, "workspace", SIZE_MAX);
    scratch_free(g);
    ms_status status = reserve(g, n, err);
    if (status != MS_OK) scratch_free(g);
    return status;
}

// ---------------------------------------------------------------- dense operations

void rms_norm(ms_backend *be, float *out, const float *x, uint32_t n, uint32_t dim, const ms_weight *w, float eps) {
    gpu_backend *g = gpu_of(be);
    k_rms_norm_args a = {out, x, vector_of(g, w, dim, "rms_norm"), n, dim, eps};
    if (!a.w.data) return;
    k_rms_norm(g->stream, &a);
    launched(g, "rms_norm");
}

void mix_norm(ms_backend *be, float *out, const ms_mix *mix, uint32_t n, uint32_t dim, float eps,
              const ms_weight *norm) {
    gpu_backend *g = gpu_of(be);
    if (!need(g, mix->block_count < K_MIX_SOURCES, "mix_norm", "block count")) return;
    k_mix_args a = {};
    a.out = out;
    a.blocks = mix->blocks;
    a.block_stride = mix->block_stride;
    a.block_count = mix->block_count;
    a.prefix = mix->prefix;
    a.score = f32_of(g, mix->score, dim, "mix_norm", "score weight");
    if (!a.score) return;
    if (norm && !(a.norm = vector_of(g, norm, dim, "mix_norm")).data) return;
    a.n = n;
    a.dim = dim;
    a.eps = eps;
    k_mix_norm(g->stream, &a);
    launched(g, "mix_norm");
}

bool quantised(const gpu_backend *g, const ms_weight *w, bool exact_input) {
    return is_fast(g) && w->format == MS_FORMAT_Q8 && !exact_input;
}

// An input of products: f32 rows, and their int8 form where a product wants it.
struct product_input {
    const float *x;
    const int8_t *q;
    const float *scales;
    uint32_t n, cols;
};

void quantise_input(gpu_backend *g, product_input *in) {
    k_quantise_args a = {};
    a.q = g->scratch.x_q;
    a.scales = g->scratch.x_s;
    a.x = in->x;
    a.n = in->n;
    a.cols = in->cols;
    k_quantise(g->stream, &a);
    in->q = a.q;
    in->scales = a.scales;
}

void run_products(gpu_backend *g, const product_input *in, const ms_product *products, uint32_t count) {
    for (uint32_t at = 0; at < count; at += K_PRODUCTS) {
        k_project_args a = {};
        a.count = count - at < K_PRODUCTS ? count - at : (uint32_t)K_PRODUCTS;
        a.x = in->x;
        a.x_q = in->q;
        a.x_s = in->scales;
        a.n = in->n;
        a.cols = in->cols;
        for (uint32_t i = 0; i < a.count; i++) {
            const ms_product *p = &products[at + i];
            const ms_weight *w = p->weight;
            a.product[i] = {
                w->data, w->scales, p->out, p->out_stride, w->rows, mode_of(w, quantised(g, w, p->exact_input)), 0};
        }
        k_project(g->stream, &a);
    }
}

void project(ms_backend *be, const float *x, uint32_t n, const ms_product *products, uint32_t count) {
    gpu_backend *g = gpu_of(be);
    product_input in = {x, nullptr, nullptr, n, count ? products[0].weight->cols : 0};
    bool quantise = false;
    bool fits = n <= g->scratch.need.rows && in.cols <= g->scratch.need.input_cols;
    if (!need(g, fits, "project", "input")) return;
    for (uint32_t i = 0; i < count; i++) {
        if (!need(g, products[i].weight->cols == in.cols, "project", "width of a product")) return;
        quantise |= quantised(g, products[i].weight, products[i].exact_input);
    }
    if (n == 0) return;
    if (quantise) quantise_input(g, &in);
    run_products(g, &in, products, count);
    launched(g, "project");
}

void mlp(ms_backend *be, float *out, const float *x, uint32_t n, const ms_weight *gate, const ms_weight *up,
         const ms_weight *down, ms_situ act) {
    gpu_backend *g = gpu_of(be);
    const gpu_scratch *s = &g->scratch;
    uint32_t cols = gate->cols, width = gate->rows;
    bool same = up->cols == cols && up->rows == width && down->cols == width;
    if (!need(g, same, "mlp", "shape of a weight")) return;
    if (!need(g, n <= s->need.rows && cols <= s->need.input_cols, "mlp", "input")) return;
    if (!need(g, width <= s->need.mlp_width, "mlp", "inner width")) return;
    if (n == 0) return;
    product_input in = {x, nullptr, nullptr, n, cols};
    if (quantised(g, gate, false) || quantised(g, up, false)) quantise_input(g, &in);
    ms_product first[2] = {{gate, s->gate, width, false}, {up, s->up, width, false}};
    run_products(g, &in, first, 2);

    k_quantise_args a = {};
    a.x = s->gate;
    a.up = s->up;
    a.beta = act.beta;
    a.linear_beta = act.linear_beta;
    a.n = n;
    a.cols = width;
    a.q = s->act_q;
    a.scales = s->act_s;
    if (!quantised(g, down, false)) a.plain = s->gate; // each value is read by the lane that overwrites it
    k_quantise(g->stream, &a);
    product_input inner = {s->gate, s->act_q, s->act_s, n, width};
    ms_product last = {down, out, down->rows, false};
    run_products(g, &inner, &last, 1);
    launched(g, "mlp");
}

void add(ms_backend *be, float *sum, const float *a, const float *b, size_t count) {
    gpu_backend *g = gpu_of(be);
    k_add_args args = {sum, a, b, count};
    k_add(g->stream, &args);
    launched(g, "add");
}

void router_topk(ms_backend *be, uint32_t *ids, float *weights, const float *x, uint32_t n, const ms_router *r) {
    gpu_backend *g = gpu_of(be);
    const ms_scratch_need *have = &g->scratch.need;
    uint32_t experts = r->gate->rows;
    bool fits = n <= have->rows && experts <= have->router_experts && n <= 1u << ROUTER_ROW_BITS;
    if (!need(g, fits && r->gate->cols <= have->input_cols, "router_topk", "rows or experts")) return;
    bool sane = r->top_k <= experts && r->top_k <= K_ROUTER_TOP && r->gate->format != MS_FORMAT_Q8;
    if (!need(g, sane, "router_topk", "gate or top_k")) return;
    k_router_args a = {};
    a.bias = f32_of(g, r->bias, experts, "router_topk", "bias");
    if (!a.bias || n == 0) return;
    product_input in = {x, nullptr, nullptr, n, r->gate->cols};
    ms_product product = {r->gate, g->scratch.router, experts, true};
    run_products(g, &in, &product, 1);
    a.ids = ids;
    a.weights = weights;
    a.score = g->scratch.router;
    a.n = n;
    a.experts = experts;
    a.top_k = r->top_k;
    a.renormalize = r->renormalize;
    a.scale = r->scale;
    a.bad = g->flags + FLAG_ROUTER;
    a.bad_base = (g->router_calls < ROUTER_CALLS ? g->router_calls : (uint32_t)ROUTER_CALLS) << ROUTER_ROW_BITS;
    g->router_calls++;
    k_router(g->stream, &a);
    launched(g, "router_topk");
}

// ---------------------------------------------------------------- KDA and MLA

void kda_range(ms_backend *be, const ms_kda *kda, const ms_kda_io *io, uint32_t n) {
    gpu_backend *g = gpu_of(be);
    const ms_scratch_need *have = &g->scratch.need;
    uint64_t inner = (uint64_t)kda->heads * kda->dim;
    bool fits = kda->dim <= have->kda_dim && kda->taps <= have->kda_taps && kda->heads <= have->kda_heads;
    if (!need(g, fits && kda_fits(kda->heads, kda->dim, kda->taps), "kda_range", "head shape")) return;
    kda_args a = {};
    for (int i = 0; i < KDA_STREAMS; i++)
        if (!(a.conv[i] = f32_of(g, kda->conv[i], inner * kda->taps, "kda_range", "conv weight"))) return;
    a.a_log = f32_of(g, kda->a_log, kda->heads, "kda_range", "a_log");
    a.dt_bias = f32_of(g, kda->dt_bias, inner, "kda_range", "dt_bias");
    a.o_norm = f32_of(g, kda->o_norm, kda->dim, "kda_range", "o_norm");
    if (!a.a_log || !a.dt_bias || !a.o_norm) return;
    a.heads = kda->heads;
    a.dim = kda->dim;
    a.taps = kda->taps;
    a.n = n;
    a.gate_bound = kda->gate_bound;
    a.norm_eps = kda->norm_eps;
    a.in[0] = io->q;
    a.in[1] = io->k;
    a.in[2] = io->v;
    a.e = io->e;
    a.b = io->b;
    a.g = io->g;
    a.state_in = io->state_in;
    a.state_out = io->state_out;
    a.history_in = io->history_in;
    a.history_out = io->history_out;
    a.out = io->out;
    a.history_bf16 = is_fast(g);
    k_kda_range(g->stream, &a);
    launched(g, "kda_range");
}

void mla_range(ms_backend *be, const ms_mla *mla, const ms_mla_io *io, uint32_t n) {
    gpu_backend *g = gpu_of(be);
    const ms_scratch_need *have = &g->scratch.need;
    bool fits = mla->rank <= have->mla_rank && mla->extra <= have->mla_extra && mla->value <= have->mla_value &&
                mla->heads <= have->mla_heads && mla->nope <= have->mla_nope && n <= have->rows;
    if (!need(g, fits && mla_fits(mla->heads, mla->extra, mla->rank), "mla_range", "head shape")) return;
    if (!need(g, io->position <= have->context && n <= have->context - io->position, "mla_range", "context")) return;
    uint64_t kv_rows = (uint64_t)mla->heads * ((uint64_t)mla->nope + mla->value);
    bool kv_ok = mla->kv_b->format == MS_FORMAT_BF16 && mla->kv_b->cols == mla->rank && mla->kv_b->rows == kv_rows;
    if (!need(g, kv_ok && kv_rows > 1, "mla_range", "kv_b weight")) return;
    mla_args a = {};
    a.kv_norm = vector_of(g, mla->kv_norm, mla->rank, "mla_range");
    if (!a.kv_norm.data) return;
    a.heads = mla->heads;
    a.nope = mla->nope;
    a.extra = mla->extra;
    a.value = mla->value;
    a.rank = mla->rank;
    a.n = n;
    a.norm_eps = mla->norm_eps;
    a.scale = mla->scale;
    a.kv_b = (const gpu_bf16 *)mla->kv_b->data;
    a.q = io->q;
    a.c = io->c;
    a.gate = io->gate;
    a.rows = io->rows;
    a.rows_bf16 = is_fast(g);
    a.position = io->position;
    a.out = io->out;
    a.scratch = g->scratch.mla;
    k_mla_range(g->stream, &a);
    launched(g, "mla_range");
}

// ---------------------------------------------------------------- experts

// Waits: the staging memory is the caller's again, and a bad scale is this call's error.
ms_status install(ms_backend *be, void *slot, const uint8_t *staging, ms_expert_shape s, ms_error *err) {
    static const char *const names[] = {"w1", "w3", "w2"}; // by ms_expert_matrix
    gpu_backend *g = gpu_of(be);
    if (!ms_expert_shape_valid(s) || !experts_fit(s.hidden, s.inner))
        return ms_fail(err, MS_ERR_INTERNAL, "expert of %u x %u: expected multiples of 32", s.hidden, s.inner);
    uint32_t bad[3] = {NO_ROW, NO_ROW, NO_ROW}, row, group;
    ms_expert_matrix m;
    (void)gpu_ok(g, k_experts_retile(g->stream, slot, staging, s.hidden, s.inner, g->flags + FLAG_EXPERT), "install");
    backend_download(be, bad, g->flags + FLAG_EXPERT, sizeof bad);
    if (g->failure.code != MS_OK) return backend_sync(be, err);
    if (!experts_bad_scale(bad, s.hidden, s.inner, &m, &row, &group)) return MS_OK;
    return ms_fail(err, MS_ERR_FORMAT, "expert %s scale of row %u group %u: expected a byte 0..254, found 255 (NaN)",
                   names[m], row, group);
}

void experts_begin(ms_backend *be, const float *z, uint32_t n, ms_expert_shape s) {
    gpu_backend *g = gpu_of(be);
    const ms_scratch_need *have = &g->scratch.need;
    bool fits = ms_expert_shape_valid(s) && s.hidden <= have->expert.hidden && s.inner <= have->expert.inner;
    g->experts_n = 0;
    if (!need(g, fits && experts_fit(s.hidden, s.inner) && n <= have->rows, "experts_begin", "rows or expert shape"))
        return;
    g->experts_n = n;
    g->experts_shape = s;
    if (is_fast(g))
        k_experts_begin(g->stream, (uint8_t *)g->scratch.z_q, g->scratch.z_s, z, n, s.hidden);
    else
        backend_copy(be, g->scratch.z, z, (size_t)n * s.hidden * sizeof *z);
    launched(g, "experts_begin");
}

// The tables of a call go through one of two pinned copies, so that the next call can be prepared while this one runs.
void experts_run(ms_backend *be, float *y, ms_expert_shape s, ms_situ act, const ms_expert_batch *batches,
                 uint32_t count) {
    gpu_backend *g = gpu_of(be);
    const gpu_scratch *sc = &g->scratch;
    bool same = s.hidden == g->experts_shape.hidden && s.inner == g->experts_shape.inner;
    if (!need(g, same && g->experts_n, "experts_run", "shape")) return;
    unsigned i = g->next_table;
    experts_args a = {};
    size_t bytes = 0;
    if (!gpu_ok(g, gpuEventSynchronize(g->table_free[i]), "experts_run")) return;
    if (!need(g,
              experts_table_build(&a.table, &bytes, sc->table_host[i], sc->table, batches, count, g->experts_n,
                                  sc->need.pairs),
              "experts_run", "row or pair"))
        return;
    if (!a.table.count) return;
    g->next_table = (i + 1) % TABLES;
    (void)gpu_ok(g, k_experts_send(g->stream, sc->table, sc->table_host[i], bytes), "experts_run");
    (void)gpu_ok(g, gpuEventRecord(g->table_free[i], g->stream), "experts_run");
    a.hidden = s.hidden;
    a.inner = s.inner;
    a.beta = act.beta;
    a.linear_beta = act.linear_beta;
    a.z_q = (const uint8_t *)sc->z_q;
    a.z_s = sc->z_s;
    a.z = sc->z;
    a.act_q = (uint8_t *)sc->e_q;
    a.act_s = sc->e_s;
    a.act = sc->e_act;
    a.y = y;
    k_experts_run(g->stream, &a, is_fast(g));
    launched(g, "experts_run");
}

void experts_reduce_norm(ms_backend *be, float *out, const float *y, const float *weights, uint32_t n, uint32_t k,
                         uint32_t hidden, const ms_weight *norm, float eps) {
    gpu_backend *g = gpu_of(be);
    reduce_args a = {out, y, weights, vector_of(g, norm, hidden, "experts_reduce_norm"), k, hidden, eps};
    if (!a.norm.data) return;
    k_experts_reduce_norm(g->stream, &a, n);
    launched(g, "experts_reduce_norm");
}

// ---------------------------------------------------------------- creation

gpuEvent_t *event_of(gpu_backend *g, unsigned i) {
    if (i < PIECES) return &g->piece_free[i];
    return i < PIECES + TABLES ? &g->table_free[i - PIECES] : &g->fetch_done;
}

void backend_destroy(ms_backend *be) {
    if (!be) return;
    gpu_backend *g = gpu_of(be);
    scratch_free(g);
    device_free(g, g->raw);
    device_free(g, g->flags);
    for (unsigned i = 0; i < PIECES; i++)
        if (g->piece[i]) (void)gpuHostFree(g->piece[i]);
    for (unsigned i = 0; i < g->events; i++) (void)gpuEventDestroy(*event_of(g, i));
    (void)gpuStreamDestroy(g->stream);
    free(g);
}

void set_members(ms_backend *be) {
    be->name = GPU_BACKEND_NAME;
    be->destroy = backend_destroy;
    be->device_memory = device_memory;
    be->alloc = backend_alloc;
    be->release = backend_release;
    be->upload = backend_upload;
    be->download = backend_download;
    be->copy = backend_copy;
    be->zero = backend_zero;
    be->sync = backend_sync;
    be->fetch_begin = fetch_begin;
    be->fetch_end = fetch_end;
    be->deferred = true;
    be->weight_create = weight_create;
    be->weight_fill = weight_fill;
    be->weight_destroy = weight_destroy;
    be->scratch_bytes = scratch_bytes;
    be->scratch_host_bytes = scratch_host_bytes;
    be->scratch_reserve = scratch_reserve;
    be->rms_norm = rms_norm;
    be->mix_norm = mix_norm;
    be->project = project;
    be->mlp = mlp;
    be->kda_range = kda_range;
    be->mla_range = mla_range;
    be->add = add;
    be->router_topk = router_topk;
    be->install = install;
    be->experts_begin = experts_begin;
    be->experts_run = experts_run;
    be->experts_reduce_norm = experts_reduce_norm;
}

ms_status check_caller(const ms_gpu_options *o, ms_error *err) {
    if (o->interface == MS_GPU_INTERFACE && o->backend_bytes == sizeof(ms_backend) && !strcmp(o->version, MS_VERSION))
        return MS_OK;
    return ms_fail(err, MS_ERR_UNSUPPORTED,
                   "library of version " MS_VERSION " interface %d, the program is another build",
                   (int)MS_GPU_INTERFACE);
}

ms_status find_device(int device, ms_error *err) {
    int count = 0;
    gpuError_t e = gpuGetDeviceCount(&count);
    if (e != gpuSuccess || count <= 0)
        return ms_fail(err, MS_ERR_UNSUPPORTED, "no " GPU_NAME " device: %s",
                       e != gpuSuccess ? gpuGetErrorString(e) : "none found");
    if (device < 0 || device >= count)
        return ms_fail(err, MS_ERR_UNSUPPORTED, "no " GPU_NAME " device %d: %d found", device, count);
    e = gpuSetDevice(device);
    if (e == gpuSuccess) return MS_OK;
    return ms_fail(err, MS_ERR_UNSUPPORTED, GPU_NAME " device %d: %s", device, gpuGetErrorString(e));
}

ms_status make_buffers(gpu_backend *g, ms_error *err) {
    for (; g->events < EVENTS; g->events++)
        if (gpuEventCreate(event_of(g, g->events)) != gpuSuccess)
            return ms_fail(err, MS_ERR_IO, "%s: no event", GPU_NAME);
    for (unsigned i = 0; i < PIECES; i++) {
        g->piece[i] = (uint8_t *)pinned_new(PIECE_BYTES);
        if (!g->piece[i]) return ms_fail_memory(err, "pinned upload buffer", PIECE_BYTES);
    }
    g->raw = (uint8_t *)device_new(g, PIECE_BYTES, false);
    g->flags = (uint32_t *)device_new(g, FLAG_COUNT * sizeof(uint32_t), false);
    if (!g->raw || !g->flags) return ms_fail_memory(err, "GPU upload buffer", PIECE_BYTES);
    (void)gpu_ok(g, gpuMemsetAsync(g->flags, 0xff, FLAG_COUNT * sizeof(uint32_t), g->stream), "zero");
    // A library without code for this device shows itself at its first kernel.
    k_add_args a = {(float *)g->raw, (float *)g->raw, (float *)g->raw, 1};
    k_add(g->stream, &a);
    launched(g, "first kernel");
    ms_status status = backend_sync(&g->base, err);
    return status == MS_OK ? MS_OK : ms_error_context(err, "%s", g->kernels);
}

// Takes g over: on failure it is gone.
ms_status open_device(gpu_backend *g, const ms_gpu_options *o, ms_error *err) {
    char name[256], arch[64];
    gpuError_t e = gpuDescribe(o->device, name, sizeof name, arch, sizeof arch, &g->shares_memory);
    if (e == gpuSuccess) e = gpuStreamCreate(&g->stream);
    if (e != gpuSuccess) {
        free(g);
        return ms_fail(err, MS_ERR_UNSUPPORTED, GPU_NAME " device %d: %s", o->device, gpuGetErrorString(e));
    }
    size_t end = strcspn(arch, ":"); // "gfx1151:xnack-"
    (void)snprintf(g->kernels, sizeof g->kernels, "%.*s", (int)end, arch);
    g->base.kernels = g->kernels;
    g->base.precision = o->precision;
    g->base.threads = 1;
    set_members(&g->base);
    ms_status status = make_buffers(g, err);
    if (status != MS_OK) backend_destroy(&g->base);
    return status;
}

} // namespace

ms_status ms_backend_gpu_create(ms_backend **out, const ms_gpu_options *options, ms_error *err) {
    *out = nullptr;
    MS_TRY(check_caller(options, err));
    MS_TRY(find_device(options->device, err));
    gpu_backend *g = (gpu_backend *)calloc(1, sizeof *g);
    if (!g) return ms_fail_memory(err, "GPU backend", sizeof *g);
    ms_status status = open_device(g, options, err);
    if (status == MS_OK) *out = &g->base;
    return status;
}
