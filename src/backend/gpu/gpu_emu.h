// gpu_emu.h - runs kernels on the CPU: one fiber a GPU thread, blocks spread over host threads.
// Environment: GPU_EMU_ORDER=fwd|rev|rand (order in which a block's threads run), GPU_EMU_SEED,
// GPU_EMU_WORKERS (host threads), GPU_EMU_LAZY (any value: streams work as late as they may; else at once),
// GPU_EMU_DISCRETE (any value: says that the device has memory of its own), GPU_EMU_MEMORY (bytes of that),
// GPU_EMU_MEMORY_SAID (what it says instead: drivers have been seen to say too much).
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
void *gpu_emu_shared_wide(size_t bytes); // of kernels that may have more than 48 KiB
uint32_t gpu_emu_wave(int op, int arg, uint32_t v);
// What all lanes of the wave give, `count` words (at most 8) each, until their second wave operation from here on.
struct gpu_emu_words {
    uint32_t v[8];
};
const gpu_emu_words *gpu_emu_share(const uint32_t *mine, unsigned count);

// A gate (gpu_gate.h): it opens when `arrivals` threads have come.
struct gpu_emu_gate {
    uint32_t arrivals, pending, turn;
};
void gpu_emu_gate_init(gpu_emu_gate *g, uint32_t arrivals);
void gpu_emu_gate_arrive(gpu_emu_gate *g);
void gpu_emu_gate_wait(gpu_emu_gate *g, uint32_t turn);

// Host side.  A stream runs each thing at once, or, lazy, when somebody waits for it: work that a missing wait lets
// happen too early on a device then happens too late here.
struct gpu_emu_stream;
struct gpu_emu_event {
    gpu_emu_stream *stream; // NULL: never recorded
    uint64_t at;            // done when the stream has done so much
};
typedef int gpuError_t;
typedef gpu_emu_stream *gpuStream_t; // NULL: at once
typedef gpu_emu_event *gpuEvent_t;
void gpu_emu_enqueue(gpuStream_t s, std::function<void()> fn);
// Arguments are taken when this is called, as a launch does.
template <typename... Params, typename... Args>
static inline void gpu_emu_call(void (*kern)(Params...), gpuDim3 grid, gpuDim3 block, gpuStream_t s, Args... args) {
    gpu_emu_enqueue(s, [=] { gpu_emu_launch(grid, block, [=] { kern(args...); }); });
}
#define GPU_LAUNCH(kern, grid, block, stream, ...) gpu_emu_call(kern, grid, block, stream, __VA_ARGS__)
#define GPU_NAME                                   "emu"
#define GPU_BACKEND_NAME                           "gpu-emulated"
#define gpuSuccess                                 0
#define gpuErrorNotReady                           3
#define gpuErrorOldDriver                          35
enum { gpuMemcpyHostToDevice, gpuMemcpyDeviceToHost, gpuMemcpyDeviceToDevice };
static inline const char *gpuGetErrorString(gpuError_t e) { return e == 2 ? "out of memory" : "emulator error"; }
static inline gpuError_t gpuGetLastError(void) { return 0; }
static inline gpuError_t gpuGetDeviceCount(int *n) {
    *n = 1;
    return 0;
}
gpuError_t gpuMalloc(void **p, size_t n);
gpuError_t gpuFree(void *p);
gpuError_t gpuMemGetInfo(size_t *free_bytes, size_t *total_bytes);
static inline gpuError_t gpuMemcpyAsync(void *d, const void *from, size_t n, int, gpuStream_t s) {
    if (n) gpu_emu_enqueue(s, [=] { memmove(d, from, n); });
    return 0;
}
static inline gpuError_t gpuMemsetAsync(void *d, int v, size_t n, gpuStream_t s) {
    if (n) gpu_emu_enqueue(s, [=] { memset(d, v, n); });
    return 0;
}
static inline gpuError_t gpuSetDevice(int) { return 0; }
static inline gpuError_t gpuDescribe(int, char *name, size_t name_bytes, char *arch, size_t arch_bytes,
                                     bool *shares_memory) {
    *shares_memory = !getenv("GPU_EMU_DISCRETE");
    snprintf(name, name_bytes, "emulator");
    snprintf(arch, arch_bytes, "emulated");
    return 0;
}
gpuError_t gpuStreamCreate(gpuStream_t *s);
static inline gpuError_t gpuStreamCreateFirst(gpuStream_t *s) { return gpuStreamCreate(s); }
gpuError_t gpuStreamDestroy(gpuStream_t s);
gpuError_t gpuStreamSynchronize(gpuStream_t s);
gpuError_t gpuStreamWaitEvent(gpuStream_t s, gpuEvent_t e);
gpuError_t gpuEventCreate(gpuEvent_t *e);
gpuError_t gpuEventDestroy(gpuEvent_t e);
gpuError_t gpuEventRecord(gpuEvent_t e, gpuStream_t s);
gpuError_t gpuEventSynchronize(gpuEvent_t e);
gpuError_t gpuEventQuery(gpuEvent_t e);
gpuError_t gpuHostAllocMapped(void **p, size_t n);
static inline gpuError_t gpuHostFree(void *p) {
    free(p);
    return 0;
}
