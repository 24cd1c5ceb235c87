/* cpu_backend.c: the backend object: creation, memory, kept failure (see backend.h and cpu.h). */
#include "backend/cpu/cpu.h"

#include "base/bytes.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { PAGE = 4096, LINE = 64 };
#define HUGE_BYTES ((size_t)2 << 20)

void *cpu_memory_new(size_t bytes, bool paged) {
    if (bytes > SIZE_MAX - HUGE_BYTES) return NULL;
    if (bytes >= HUGE_BYTES) {
        void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) return NULL;
        (void)madvise(p, bytes, MADV_HUGEPAGE); /* only speed is lost where it is refused */
        /* Every page now, about 0.2 s a GiB: memory that is not there shows when the engine opens, not while
         * it runs. */
        for (size_t at = 0; at < bytes; at += PAGE) ((volatile char *)p)[at] = 0;
        return p;
    }
    size_t align = paged ? PAGE : LINE, size = (size_t)ms_align_up(bytes ? bytes : 1, align);
    void *p = aligned_alloc(align, size);
    if (p) memset(p, 0, size);
    return p;
}

void cpu_memory_free(void *p, size_t bytes) {
    if (!p) return;
    if (bytes >= HUGE_BYTES)
        (void)munmap(p, bytes);
    else
        free(p);
}

void cpu_run(cpu_backend *c, ms_pool_fn *fn, void *arg, size_t tasks) {
    if (tasks == 1)
        fn(arg, 0, 0);
    else if (tasks > 1)
        ms_pool_run(c->pool, fn, arg, tasks);
}

void cpu_keep_failure(cpu_backend *c, ms_status code, const char *fmt, ...) {
    if (c->failure.code != MS_OK) return;
    char text[sizeof c->failure.message];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    (void)ms_fail(&c->failure, code, "%s", text);
}

bool cpu_need(cpu_backend *c, bool ok, const char *op, const char *what) {
    if (!ok) cpu_keep_failure(c, MS_ERR_INTERNAL, "%s: %s is outside what was reserved", op, what);
    return ok;
}

static void backend_destroy(ms_backend *be) {
    if (!be) return;
    cpu_backend *c = cpu_of(be);
    cpu_scratch_free(c);
    ms_pool_destroy(c->pool);
    free(c);
}

static ms_status backend_alloc(ms_backend *be, ms_memory_kind kind, size_t bytes, const char *what, void **out,
                               ms_error *err) {
    (void)be;
    *out = cpu_memory_new(bytes, kind == MS_MEM_STAGING);
    return *out ? MS_OK : ms_fail_memory(err, what, bytes);
}

static void backend_release(ms_backend *be, ms_memory_kind kind, void *p, size_t bytes) {
    (void)be;
    (void)kind;
    cpu_memory_free(p, bytes);
}

/* The rest of a page's bytes may be a neighbour's, so only whole pages go. */
static void backend_discard(ms_backend *be, void *p, size_t bytes) {
    (void)be;
    uintptr_t first = (uintptr_t)ms_align_up((uintptr_t)p, PAGE), end = ((uintptr_t)p + bytes) / PAGE * PAGE;
    if (first < end) (void)madvise((void *)first, end - first, MADV_DONTNEED);
}

static void backend_upload(ms_backend *be, void *dev, const void *host, size_t bytes) {
    (void)be;
    if (bytes) memcpy(dev, host, bytes);
}

static void backend_download(ms_backend *be, void *host, const void *dev, size_t bytes) {
    (void)be;
    if (bytes) memcpy(host, dev, bytes);
}

static void backend_copy(ms_backend *be, void *dev_to, const void *dev_from, size_t bytes) {
    (void)be;
    if (bytes) memmove(dev_to, dev_from, bytes);
}

static void backend_zero(ms_backend *be, void *dev, size_t bytes) {
    (void)be;
    if (bytes) memset(dev, 0, bytes);
}

static ms_status backend_sync(ms_backend *be, ms_error *err) {
    cpu_backend *c = cpu_of(be);
    ms_status code = c->failure.code;
    if (code == MS_OK) return MS_OK;
    if (err) *err = c->failure;
    c->failure = (ms_error){0};
    return code;
}

static void device_memory(const ms_backend *be, uint64_t *total_bytes, uint64_t *free_bytes) {
    (void)be;
    *total_bytes = *free_bytes = 0;
}

static uint64_t scratch_host_bytes(const ms_backend *be, const ms_scratch_need *need) {
    (void)be;
    (void)need;
    return 0;
}

static void fetch_begin(ms_backend *be, const void *dev, size_t bytes) {
    cpu_of(be)->fetch_from = dev;
    cpu_of(be)->fetch_bytes = bytes;
}

static ms_status fetch_end(ms_backend *be, void *host, ms_error *err) {
    backend_download(be, host, cpu_of(be)->fetch_from, cpu_of(be)->fetch_bytes);
    return backend_sync(be, err);
}

static ms_status install_begin(ms_backend *be, void *slot, const uint8_t *staging, ms_expert_shape s, uint32_t *ticket,
                               ms_error *err) {
    *ticket = 0;
    return cpu_install(be, slot, staging, s, err);
}

static ms_status fill_begin(ms_backend *be, ms_weight *w, uint32_t first, uint32_t count, const void *staging,
                            ms_format source, uint32_t *ticket, ms_error *err) {
    *ticket = 0;
    return cpu_weight_fill(be, w, first, count, staging, source, err);
}

static ms_status finish(ms_backend *be, uint32_t ticket, bool wait, bool *done, ms_error *err) {
    (void)be;
    (void)ticket;
    (void)wait;
    (void)err;
    *done = true;
    return MS_OK;
}

static void rest(ms_backend *be) { ms_pool_rest(cpu_of(be)->pool); }

static const ms_backend members = {
    .name = "cpu",
    .destroy = backend_destroy,
    .device_memory = device_memory,
    .alloc = backend_alloc,
    .release = backend_release,
    .discard = backend_discard,
    .upload = backend_upload,
    .download = backend_download,
    .copy = backend_copy,
    .zero = backend_zero,
    .sync = backend_sync,
    .fetch_begin = fetch_begin,
    .fetch_end = fetch_end,
    .weight_create = cpu_weight_create,
    .weight_fill = cpu_weight_fill,
    .fill_begin = fill_begin,
    .weight_destroy = cpu_weight_destroy,
    .scratch_bytes = cpu_scratch_bytes,
    .scratch_host_bytes = scratch_host_bytes,
    .scratch_reserve = cpu_scratch_reserve,
    .rms_norm = cpu_rms_norm,
    .mix_norm = cpu_mix_norm,
    .project = cpu_project,
    .mlp = cpu_mlp,
    .kda_range = cpu_kda_range,
    .mla_range = cpu_mla_range,
    .gqa_range = cpu_gqa_range,
    .add = cpu_add,
    .router_topk = cpu_router_topk,
    .install = cpu_install,
    .install_block = cpu_install_block,
    .install_begin = install_begin,
    .finish = finish,
    .rest = rest,
    .experts_begin = cpu_experts_begin,
    .experts_run = cpu_experts_run,
    .experts_reduce_norm = cpu_experts_reduce_norm,
};

ms_status ms_backend_cpu_create(ms_backend **out, const ms_cpu_options *options, ms_error *err) {
    *out = NULL;
    const ms_cpu_kernels *kernels = ms_cpu_kernels_find(options->kernels);
    if (!kernels)
        return ms_fail(err, MS_ERR_USAGE, "CPU kernels \"%s\": not built in, or this processor lacks them",
                       options->kernels);
    cpu_backend *c = calloc(1, sizeof *c);
    if (!c) return ms_fail_memory(err, "CPU backend", sizeof *c);
    c->base = members;
    c->k = kernels;
    c->base.kernels = kernels->name;
    c->base.precision = options->precision;
    ms_status status = ms_pool_create(&c->pool, options->threads, err);
    if (status != MS_OK) {
        free(c);
        return status;
    }
    c->base.threads = ms_pool_threads(c->pool);
    *out = &c->base;
    return MS_OK;
}
