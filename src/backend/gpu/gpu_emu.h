// gpu_emu.h - runs kernels on the CPU: one fiber a GPU thread, blocks spread over host threads.
// Environment: GPU_EMU_ORDER=fwd|rev|rand (order in which a block's threads run), GPU_EMU_SEED,
// GPU_EMU_WORKERS (host threads).
#pragma once
#include <stdint.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <functional>

struct gpuDim3 {
    unsigned x, y, z;
    gpuDim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
struct gpu_emu_ctx {
    unsigned tid, bx, by, nt, nbx, nby;
};
extern __thread gpu_emu_ctx *gpu_emu_c;
enum { GPU_EMU_XOR = 1, GPU_EMU_IDX, GPU_EMU_BALLOT, GPU_EMU_SHARE };

void gpu_emu_launch(gpuDim3 grid, gpuDim3 block, const std::function<void()> &fn);
void gpu_emu_sync(void);
void gpu_emu_fence(void);
void *gpu_emu_shared(size_t bytes);
uint32_t gpu_emu_wave(int op, int arg, uint32_t v);
// What all lanes of the wave give, `count` words (at most 8) each, until their second wave operation from here on.
struct gpu_emu_words {
    uint32_t v[8];
};
const gpu_emu_words *gpu_emu_share(const uint32_t *mine, unsigned count);

#define GPU_LAUNCH(kern, grid, block, stream, ...)                                                                     \
    ((void)(stream), gpu_emu_launch((grid), (block), [=] { kern(__VA_ARGS__); }))

// host side: a stream runs each thing at once
typedef int gpuError_t;
typedef int gpuStream_t;
typedef int gpuEvent_t;
#define GPU_NAME         "emu"
#define GPU_BACKEND_NAME "gpu-emulated"
#define gpuSuccess       0
enum { gpuMemcpyHostToDevice, gpuMemcpyDeviceToHost, gpuMemcpyDeviceToDevice };
static inline const char *gpuGetErrorString(gpuError_t e) { return e == 2 ? "out of memory" : "emulator error"; }
static inline gpuError_t gpuGetLastError(void) { return 0; }
static inline gpuError_t gpuGetDeviceCount(int *n) {
    *n = 1;
    return 0;
}
static inline gpuError_t gpuMalloc(void **p, size_t n) {
    // exactly n bytes, so that the address checker sees the end; filled with NaNs, so that reading before writing shows
    if (n >> 40 || posix_memalign(p, 4096, n ? n : 1) != 0) {
        *p = nullptr;
        return 2;
    }
    memset(*p, 0xff, n);
    return 0;
}
static inline gpuError_t gpuFree(void *p) {
    free(p);
    return 0;
}
static inline gpuError_t gpuMemcpyAsync(void *d, const void *s, size_t n, int, gpuStream_t) {
    if (n) memmove(d, s, n);
    return 0;
}
static inline gpuError_t gpuMemsetAsync(void *d, int v, size_t n, gpuStream_t) {
    if (n) memset(d, v, n);
    return 0;
}
static inline gpuError_t gpuSetDevice(int) { return 0; }
static inline gpuError_t gpuMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    *free_bytes = *total_bytes = 0;
    return 0;
}
static inline gpuError_t gpuDescribe(int, char *name, size_t name_bytes, char *arch, size_t arch_bytes,
                                     bool *shares_memory) {
    *shares_memory = true;
    snprintf(name, name_bytes, "emulator");
    snprintf(arch, arch_bytes, "emulated");
    return 0;
}
static inline gpuError_t gpuStreamCreate(gpuStream_t *s) {
    *s = 0;
    return 0;
}
static inline gpuError_t gpuStreamDestroy(gpuStream_t) { return 0; }
static inline gpuError_t gpuStreamSynchronize(gpuStream_t) { return 0; }
static inline gpuError_t gpuEventCreate(gpuEvent_t *e) {
    *e = 0;
    return 0;
}
static inline gpuError_t gpuEventDestroy(gpuEvent_t) { return 0; }
static inline gpuError_t gpuEventRecord(gpuEvent_t, gpuStream_t) { return 0; }
static inline gpuError_t gpuEventSynchronize(gpuEvent_t) { return 0; }
static inline gpuError_t gpuHostAllocMapped(void **p, size_t n) { return gpuMalloc(p, n); }
static inline gpuError_t gpuHostFree(void *p) { return gpuFree(p); }
