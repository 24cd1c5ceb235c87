// gpu_backend.cpp - the backend object: life, memory, stream, scratch, kept failure.
//
// Compiled once per target (HIP, CUDA, emulator) into a library of its own; see gpu_backend.h.
// Owns: two streams, pinned pieces for uploads, a device piece for raw weight rows, the scratch arena.
// Invariants: everything but installs and fills goes through one stream, so operations take effect in call order;
//   gpu_install.cpp puts installs into that order.  A call that would need more scratch than was reserved keeps
//   MS_ERR_INTERNAL as the failure and does nothing.
// Errors: failures of the device's runtime are kept as MS_ERR_IO and given by sync(); rows that are not finite are seen
//   by kernels, which lower a word of `flags`.
#include "backend/gpu/gpu_internal.h"

#include "backend/gpu/gpu_wide.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

// ---------------------------------------------------------------- kept failure

void keep_failure(gpu_backend *g, ms_status code, const char *fmt, ...) {
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

void launched(gpu_backend *g, const char *op) {
    g->wrote.known = false;
    (void)gpu_ok(g, gpuGetLastError(), op);
}

namespace {

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
    settle(g);
    if (g->router_calls) {
        uint32_t found = NO_ROW;
        (void)gpu_ok(g, gpuMemcpyAsync(&found, g->flags + FLAG_ROUTER, sizeof found, gpuMemcpyDeviceToHost, g->stream),
                     "download");
        (void)gpu_ok(g, gpuMemsetAsync(g->flags + FLAG_ROUTER, 0xff, sizeof found, g->stream), "zero");
        (void)wait_all(g, "sync");
        g->router_calls = 0;
        router_found(g, found);
    } else {
        (void)wait_all(g, "sync");
    }
    return give_failure(g, err);
}

enum { ALIGN = 256, PAGE = 4096 };

void fetch_begin(ms_backend *be, const void *dev, size_t bytes) {
    gpu_backend *g = gpu_of(be);
    g->fetch_bytes = 0;
    bool fits = g->scratch.fetched && bytes <= (size_t)g->scratch.need.pairs * sizeof(uint32_t);
    if (!need(g, fits, "fetch", "size")) return;
    g->fetch_bytes = bytes;
    g->fetch_calls = g->router_calls;
    g->fetch_uses = g->order.uses;
    g->fetch_works = g->order.works;
    uint8_t *to = g->scratch.fetched;
    if (choice_fetch(g, dev, bytes)) return;
    settle(g);
    fetch_words(g, to + FETCH_HEAD, dev, bytes, g->router_calls ? to : nullptr);
    (void)gpu_ok(g, gpuEventRecord(g->fetch_done, g->stream), "fetch");
}

ms_status fetch_end(ms_backend *be, void *host, ms_error *err) {
    gpu_backend *g = gpu_of(be);
    if (g->choice.fetched) choice_settle(g);
    bool there = g->fetch_bytes && g->failure.code == MS_OK;
    if (!there || !gpu_ok(g, gpuEventSynchronize(g->fetch_done), "fetch")) return backend_sync(be, err);
    memcpy(host, g->scratch.fetched + FETCH_HEAD, g->fetch_bytes);
    g->fetch_bytes = 0;
    if (g->fetch_uses > g->order.uses_done) g->order.uses_done = g->fetch_uses;
    uint32_t found = NO_ROW;
    if (g->fetch_calls) memcpy(&found, g->scratch.fetched, sizeof found);
    if (found != NO_ROW) return backend_sync(be, err); // finds the same, and clears it
    if (g->fetch_calls == g->router_calls) g->router_calls = 0;
    return give_failure(g, err);
}

} // namespace

// ---------------------------------------------------------------- memory

void *device_new(gpu_backend *g, size_t bytes, bool zeroed) {
    void *p = nullptr;
    if (gpuMalloc(&p, bytes ? bytes : 1) != gpuSuccess) {
        (void)gpuGetLastError(); // seen: it must not be taken for a later call's
        return nullptr;
    }
    if (!zeroed || !bytes) return p;
    memory_use(g);
    (void)gpu_ok(g, gpuMemsetAsync(p, 0, bytes, g->stream), "zero");
    return p;
}

ms_status refuse_memory(gpu_backend *g, const char *what, size_t bytes, ms_error *err) {
    uint64_t total, left;
    g->base.device_memory(&g->base, &total, &left);
    if (!total) return ms_fail_memory(err, what, bytes);
    return ms_fail(err, MS_ERR_MEMORY, "out of device memory: %s needs %zu bytes, %s says that %llu of %llu are free",
                   what, bytes, g->base.name, (unsigned long long)left, (unsigned long long)total);
}

void device_free(gpu_backend *g, void *p) {
    if (!p) return;
    (void)wait_all(g, "release");
    (void)gpu_ok(g, gpuFree(p), "release");
}

void upload_piece(gpu_backend *g, void *dev, const void *host, size_t bytes) {
    unsigned i = g->next_piece;
    g->next_piece = (i + 1) % PIECES;
    if (!gpu_ok(g, gpuEventSynchronize(g->piece_free[i]), "upload")) return;
    memcpy(g->piece[i], host, bytes);
    memory_use(g);
    (void)gpu_ok(g, gpuMemcpyAsync(dev, g->piece[i], bytes, gpuMemcpyHostToDevice, g->stream), "upload");
    (void)gpu_ok(g, gpuEventRecord(g->piece_free[i], g->stream), "upload");
}

namespace {

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

constexpr size_t PIECE_ALL_BYTES = PIECE_BYTES + 3 * MS_TICKETS * sizeof(uint32_t); // and side_bad

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
    if (*out) return MS_OK;
    if (kind == MS_MEM_STAGING) return ms_fail_memory(err, what, bytes);
    return refuse_memory(gpu_of(be), what, bytes, err);
}

void backend_release(ms_backend *be, ms_memory_kind kind, void *p, size_t) {
    gpu_backend *g = gpu_of(be);
    if (!p) return;
    if (kind == MS_MEM_DEVICE) {
        device_free(g, p);
        return;
    }
    (void)wait_all(g, "release");
    (void)gpu_ok(g, gpuHostFree(p), "release");
}

void backend_upload(ms_backend *be, void *dev, const void *host, size_t bytes) {
    for (size_t at = 0; at < bytes; at += PIECE_BYTES)
        upload_piece(gpu_of(be), (uint8_t *)dev + at, (const uint8_t *)host + at,
                     bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES);
}

void backend_download(ms_backend *be, void *host, const void *dev, size_t bytes) {
    gpu_backend *g = gpu_of(be);
    if (!bytes) return;
    memory_use(g);
    (void)gpu_ok(g, gpuMemcpyAsync(host, dev, bytes, gpuMemcpyDeviceToHost, g->stream), "download");
    (void)gpu_ok(g, gpuStreamSynchronize(g->stream), "download");
}

void backend_copy(ms_backend *be, void *dev_to, const void *dev_from, size_t bytes) {
    gpu_backend *g = gpu_of(be);
    if (!bytes) return;
    memory_use(g);
    (void)gpu_ok(g, gpuMemcpyAsync(dev_to, dev_from, bytes, gpuMemcpyDeviceToDevice, g->stream), "copy");
}

void backend_zero(ms_backend *be, void *dev, size_t bytes) {
    gpu_backend *g = gpu_of(be);
    if (!bytes) return;
    memory_use(g);
    (void)gpu_ok(g, gpuMemsetAsync(dev, 0, bytes, g->stream), "zero");
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
    const gpu_backend *g = (const gpu_backend *)be;
    s->need = *n;
    s->gate = (float *)carve(v, n->rows, n->mlp_width, sizeof(float));
    s->up = (float *)carve(v, n->rows, n->mlp_width, sizeof(float));
    s->router = (float *)carve(v, n->rows, n->router_experts, sizeof(float));
    s->mix = (float *)carve(v, n->rows, mix_scratch_need(n), sizeof(float));
    if (be->precision == MS_PRECISION_FAST) {
        s->x_q = (int8_t *)carve(v, n->rows, x_groups, K_Q8_GROUP);
        s->x_s = (float *)carve(v, n->rows, x_groups, sizeof(float));
        s->act_q = (int8_t *)carve(v, n->rows, act_groups, K_Q8_GROUP);
        s->act_s = (float *)carve(v, n->rows, act_groups, sizeof(float));
        s->z_q = (int8_t *)carve(v, n->rows, n->expert.hidden, 1);
        s->z_s = (float *)carve(v, n->rows, n->expert.hidden / K_MX_GROUP, sizeof(float));
        s->e_q = (int8_t *)carve(v, n->pairs, n->expert.inner, 1);
        s->e_s = (float *)carve(v, n->pairs, n->expert.inner / K_MX_GROUP, sizeof(float));
        if (g->wide) {
            const uint64_t z_groups = halves_groups(n->expert.hidden), e_groups = halves_groups(n->expert.inner);
            s->z_h = (uint8_t *)carve(v, n->rows, z_groups, 2 * K_MX_GROUP);
            s->z_hs = (float *)carve(v, n->rows, z_groups, sizeof(float));
            s->e_h = (uint8_t *)carve(v, n->pairs, e_groups, 2 * K_MX_GROUP);
            s->e_hs = (float *)carve(v, n->pairs, e_groups, sizeof(float));
        }
    } else {
        s->z = (float *)carve(v, n->rows, n->expert.hidden, sizeof(float));
        s->e_act = (float *)carve(v, n->pairs, n->expert.inner, sizeof(float));
    }
    uint64_t mla = mla_scratch_need(n), gqa = gqa_scratch_need(n);
    if (!g->shares_memory) s->source = (uint8_t *)carve(v, 1, ms_expert_bytes(n->expert), 1);
    s->table = carve(v, 1, table_scratch_need(n), 1);
    if (g->blas) {
        s->blas_in = (uint8_t *)carve(v, n->rows, blas_input_bytes(g, n), 1);
        s->blas_weight = (uint8_t *)carve(v, 1, blas_weight_bytes(n), 1);
        s->blas_work = (uint8_t *)carve(v, 1, blas_work_bytes(), 1);
    }
    if (mla) s->mla = (float *)carve(v, 1, mla, 1);
    if (gqa) s->gqa = (float *)carve(v, 1, gqa, 1);
}

uint64_t fetch_room(const ms_scratch_need *n) { return FETCH_HEAD + (uint64_t)n->pairs * sizeof(uint32_t); }

// Pinned memory beside the arena.
uint64_t host_bytes(const ms_scratch_need *n) {
    return PIECES * pinned_bytes(PIECE_ALL_BYTES) + pinned_bytes(TABLES * table_scratch_need(n)) +
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
    return v.overflow || __builtin_add_overflow(v.used, host_bytes(n) + 2 * PIECE_BYTES, &total) ? UINT64_MAX : total;
}

void scratch_free(gpu_backend *g) {
    settle(g);
    g->held = {};
    device_free(g, g->scratch.base);
    if (g->scratch.table_host) (void)gpu_ok(g, gpuHostFree(g->scratch.table_host), "release");
    if (g->scratch.fetched) (void)gpu_ok(g, gpuHostFree(g->scratch.fetched), "release");
    g->scratch = {};
    g->fetch_bytes = 0;
    g->experts_n = 0;
}

ms_status reserve(gpu_backend *g, const ms_scratch_need *n, ms_error *err) {
    carver v = {};
    layout(&g->scratch, &v, &g->base, n);
    size_t bytes = (size_t)v.used, table = (size_t)(TABLES * table_scratch_need(n));
    void *base = device_new(g, bytes, false);
    if (!base) return refuse_memory(g, "workspace", bytes, err);
    v = {(uint8_t *)base, 0, false};
    layout(&g->scratch, &v, &g->base, n);
    g->scratch.base = base;
    g->scratch.table_host = (uint8_t *)pinned_new(table);
    if (!g->scratch.table_host) return ms_fail_memory(err, "expert tables", table);
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

// ---------------------------------------------------------------- creation

gpuEvent_t *event_of(gpu_backend *g, unsigned i) {
    if (i < PIECES) return &g->piece_free[i];
    if ((i -= PIECES) < TABLES) return &g->table_free[i];
    if ((i -= TABLES) < RUNS) return &g->run[i];
    if ((i -= RUNS) < MS_TICKETS) return &g->work[i].done;
    return &g->fetch_done;
}

void backend_destroy(ms_backend *be) {
    if (!be) return;
    gpu_backend *g = gpu_of(be);
    scratch_free(g);
    blas_close(g);
    device_free(g, g->raw);
    device_free(g, g->flags);
    for (unsigned i = 0; i < PIECES; i++)
        if (g->piece[i]) (void)gpuHostFree(g->piece[i]);
    for (unsigned i = 0; i < g->events; i++) (void)gpuEventDestroy(*event_of(g, i));
    (void)gpuStreamDestroy(g->side);
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
    be->scratch_bytes = scratch_bytes;
    be->scratch_host_bytes = scratch_host_bytes;
    be->scratch_reserve = scratch_reserve;
    set_weight_members(be);
    set_install_members(be);
    set_dense_members(be);
    set_moe_members(be);
    set_attention_members(be);
    set_gqa_members(be);
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
    if (e == gpuErrorOldDriver)
        return ms_fail(err, MS_ERR_UNSUPPORTED, "no " GPU_NAME " device: its driver is missing, or too old");
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
        g->piece[i] = (uint8_t *)pinned_new(PIECE_ALL_BYTES);
        if (!g->piece[i]) return ms_fail_memory(err, "pinned upload buffer", PIECE_BYTES);
    }
    g->side_bad = (uint32_t *)(void *)(g->piece[0] + PIECE_BYTES);
    g->raw = (uint8_t *)device_new(g, 2 * PIECE_BYTES, false);
    g->flags = (uint32_t *)device_new(g, FLAG_COUNT * sizeof(uint32_t), false);
    if (!g->raw || !g->flags) return ms_fail_memory(err, "GPU upload buffer", PIECE_BYTES);
    (void)gpu_ok(g, gpuMemsetAsync(g->flags, 0xff, FLAG_COUNT * sizeof(uint32_t), g->stream), "zero");
    // A library without code for this device shows itself at its first kernel.
    float *one = (float *)g->raw;
    g->base.add(&g->base, one, one, one, 1);
    ms_status status = backend_sync(&g->base, err);
    return status == MS_OK ? MS_OK : ms_error_context(err, "%s", g->kernels);
}

// Takes g over: on failure it is gone.
ms_status open_device(gpu_backend *g, const ms_gpu_options *o, ms_error *err) {
    char name[256], arch[64];
    gpuError_t e = gpuDescribe(o->device, name, sizeof name, arch, sizeof arch, &g->shares_memory);
    if (e == gpuSuccess) e = gpuStreamCreate(&g->stream);
    if (e == gpuSuccess && (e = gpuStreamCreateFirst(&g->side)) != gpuSuccess) (void)gpuStreamDestroy(g->stream);
    if (e != gpuSuccess) {
        free(g);
        return ms_fail(err, MS_ERR_UNSUPPORTED, GPU_NAME " device %d: %s", o->device, gpuGetErrorString(e));
    }
    size_t end = strcspn(arch, ":"); // "gfx1151:xnack-"
    (void)snprintf(g->kernels, sizeof g->kernels, "%.*s%s", (int)end, arch, o->range_blas ? "+blas" : "");
    g->base.kernels = g->kernels;
    g->wide = gpu_wide_device(g->kernels);
    g->base.precision = o->precision;
    g->base.threads = 1;
    set_members(&g->base);
    ms_status status = make_buffers(g, err);
    if (status == MS_OK && o->range_blas) status = blas_open(g, err);
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
