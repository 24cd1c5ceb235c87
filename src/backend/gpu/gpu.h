// gpu.h - the thin layer under every kernel: one source, three targets.
//   GPU_HIP   clang -x hip (gfx11xx and others)     GPU_CUDA  nvcc (sm_75 and up)
//   GPU_EMU   any C++17 compiler: the grid is emulated on the CPU (gpu_emu.h)
// Rules for kernels written against it:
//   - a wave is 32 lanes (GPU_WAVE); blocks are 1-D and a multiple of 32; never use warpSize
//   - wave operations (gpu_shfl*, gpu_ballot) are called by all 32 lanes of the wave, or by none
//   - gpu_sync() is reached by every thread of the block; nobody returns before the last one
//   - one GPU_SHARED struct per kernel (so its size is known), at most 48 KiB (NVIDIA's static limit)
//   - float results that must agree bit for bit use + - * / sqrt, gpu_fma and what k_common.h builds from them only,
//     in a fixed order, with contraction off (mk/gpu.mk); no libm calls, no fast-math
#pragma once
#include <stdint.h>
#include <stddef.h>
#include <stdio.h>

#if defined(__HIP__)
#define GPU_HIP 1
#include <hip/hip_runtime.h>
#elif defined(__CUDACC__)
#define GPU_CUDA 1
#include <cuda_runtime.h>
#else
#define GPU_EMU 1
#include "backend/gpu/gpu_emu.h"
#endif

#define GPU_WAVE 32

#if defined(__gfx1030__) || defined(__gfx1100__) || defined(__gfx1101__) || defined(__gfx1102__) ||                    \
    defined(__gfx1103__) || defined(__gfx1150__) || defined(__gfx1151__) || defined(__gfx1152__) ||                    \
    defined(__gfx1200__) || defined(__gfx1201__)
#define GPU_GFX10_PLUS 1
#endif

// ---------------------------------------------------------------- host side
#if GPU_HIP
#define GPU_API(n)       hip##n
#define GPU_NAME         "hip"
#define GPU_BACKEND_NAME "hip"
#define GPU_PROPERTIES   hipDeviceProp_t
#elif GPU_CUDA
#define GPU_API(n)       cuda##n
#define GPU_NAME         "cuda"
#define GPU_BACKEND_NAME "cuda"
#define GPU_PROPERTIES   cudaDeviceProp
#endif
#if GPU_HIP || GPU_CUDA
typedef GPU_API(Error_t) gpuError_t;
typedef GPU_API(Stream_t) gpuStream_t;
typedef GPU_API(Event_t) gpuEvent_t;
typedef dim3 gpuDim3;
#define gpuSuccess              GPU_API(Success)
#define gpuGetErrorString       GPU_API(GetErrorString)
#define gpuGetLastError         GPU_API(GetLastError)
#define gpuGetDeviceCount       GPU_API(GetDeviceCount)
#define gpuMalloc               GPU_API(Malloc)
#define gpuFree                 GPU_API(Free)
#define gpuMemcpyAsync          GPU_API(MemcpyAsync)
#define gpuMemsetAsync          GPU_API(MemsetAsync)
#define gpuMemcpyHostToDevice   GPU_API(MemcpyHostToDevice)
#define gpuMemcpyDeviceToHost   GPU_API(MemcpyDeviceToHost)
#define gpuMemcpyDeviceToDevice GPU_API(MemcpyDeviceToDevice)
#define gpuMemGetInfo           GPU_API(MemGetInfo)
#define gpuSetDevice            GPU_API(SetDevice)
#define gpuStreamCreate         GPU_API(StreamCreate)
#define gpuStreamDestroy        GPU_API(StreamDestroy)
#define gpuStreamSynchronize    GPU_API(StreamSynchronize)
#define gpuEventDestroy         GPU_API(EventDestroy)
#define gpuEventRecord          GPU_API(EventRecord)
#define gpuEventSynchronize     GPU_API(EventSynchronize)
#define gpuEventQuery           GPU_API(EventQuery)
#define gpuErrorNotReady        GPU_API(ErrorNotReady)
#define gpuErrorOldDriver       GPU_API(ErrorInsufficientDriver)
static inline gpuError_t gpuEventCreate(gpuEvent_t *e) {
    return GPU_API(EventCreateWithFlags)(e, GPU_API(EventDisableTiming));
}
static inline gpuError_t gpuStreamWaitEvent(gpuStream_t s, gpuEvent_t e) { return GPU_API(StreamWaitEvent)(s, e, 0); }
// A stream whose work goes first where it meets that of others.
static inline gpuError_t gpuStreamCreateFirst(gpuStream_t *s) {
    int last = 0, first = 0;
    gpuError_t e = GPU_API(DeviceGetStreamPriorityRange)(&last, &first);
    return e == gpuSuccess ? GPU_API(StreamCreateWithPriority)(s, GPU_API(StreamNonBlocking), first) : e;
}
static inline gpuError_t gpuHostAllocMapped(void **p, size_t n) {
#if GPU_HIP
    return hipHostMalloc(p, n, hipHostMallocMapped | hipHostMallocNonCoherent); // coherent is uncached by the GPU
#else
    return cudaHostAlloc(p, n, cudaHostAllocMapped);
#endif
}
static inline gpuError_t gpuHostFree(void *p) {
#if GPU_HIP
    return hipHostFree(p);
#else
    return cudaFreeHost(p);
#endif
}
// name and architecture ("gfx1151", "sm_90") of a device, and whether its memory is the host's
static inline gpuError_t gpuDescribe(int device, char *name, size_t name_bytes, char *arch, size_t arch_bytes,
                                     bool *shares_memory) {
    GPU_PROPERTIES prop;
    gpuError_t e = GPU_API(GetDeviceProperties)(&prop, device);
    if (e != gpuSuccess) return e;
    snprintf(name, name_bytes, "%s", prop.name);
    *shares_memory = prop.integrated != 0;
#if GPU_HIP
    snprintf(arch, arch_bytes, "%s", prop.gcnArchName);
#else
    snprintf(arch, arch_bytes, "sm_%d%d", prop.major, prop.minor);
#endif
    return e;
}
#define GPU_LAUNCH(kern, grid, block, stream, ...) kern<<<(grid), (block), 0, (stream)>>>(__VA_ARGS__)
#endif
// GPU_LAUNCH_EARLY: for a kernel that calls gpu_wait_previous() before it touches what the kernel before it writes: its
// blocks may start while that one still runs.
#if GPU_CUDA
template <typename Kernel, typename... Args>
static inline void gpu_launch_early(Kernel kern, dim3 grid, dim3 block, gpuStream_t stream, const Args &...args) {
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.stream = stream;
    config.attrs = &early;
    config.numAttrs = 1;
    (void)cudaLaunchKernelEx(&config, kern, args...); // gpuGetLastError() has the error too
}
#define GPU_LAUNCH_EARLY(kern, grid, block, stream, ...) gpu_launch_early(kern, grid, block, stream, __VA_ARGS__)
#else
#define GPU_LAUNCH_EARLY(kern, grid, block, stream, ...) GPU_LAUNCH(kern, grid, block, stream, __VA_ARGS__)
#endif

// ---------------------------------------------------------------- device side
#if GPU_HIP || GPU_CUDA
#define GPU_KERNEL          static __global__ void
#define GPU_DEV             static __device__ __forceinline__
#define GPU_SHARED(T, name) __shared__ T name
// GPU_BOUNDS(threads, blocks): at most `threads` a block, at least `blocks` resident a CU or SM.
// The second number means blocks an SM to CUDA, but waves a SIMD to HIP (2 SIMDs a CU on gfx11).
#if GPU_HIP
#define GPU_BOUNDS(t, b) __launch_bounds__(t, ((b) * ((t) / GPU_WAVE) + 1) / 2)
#else
#define GPU_BOUNDS(t, b) __launch_bounds__(t, b)
#endif
GPU_DEV unsigned gpu_tid(void) { return threadIdx.x; }
GPU_DEV unsigned gpu_bx(void) { return blockIdx.x; }
GPU_DEV unsigned gpu_by(void) { return blockIdx.y; }
GPU_DEV unsigned gpu_nt(void) { return blockDim.x; }
GPU_DEV unsigned gpu_nbx(void) { return gridDim.x; }
GPU_DEV unsigned gpu_nby(void) { return gridDim.y; }
GPU_DEV void gpu_sync(void) { __syncthreads(); }
GPU_DEV void gpu_fence(void) { __threadfence(); }
GPU_DEV uint32_t gpu_popc(uint32_t v) { return (uint32_t)__popc(v); }
GPU_DEV uint32_t gpu_atomic_add(uint32_t *p, uint32_t v) { return atomicAdd(p, v); }
GPU_DEV uint32_t gpu_atomic_min(uint32_t *p, uint32_t v) { return atomicMin(p, v); }
#else
#define GPU_KERNEL          static void
#define GPU_DEV             static inline
#define GPU_SHARED(T, name) T &name = *(T *)gpu_emu_shared(sizeof(T))
#define GPU_BOUNDS(t, b)
#endif

#if GPU_HIP
// Constant masks of a butterfly become one vector instruction where the part has it, not a trip through the LDS.
GPU_DEV uint32_t gpu_shfl_xor_u32(uint32_t v, int m) {
#if defined(GPU_GFX10_PLUS)
    switch (m) {
    case 1:
        return (uint32_t)__builtin_amdgcn_update_dpp(0, (int)v, 0x161, 0xf, 0xf, true); // row_xmask
    case 2:
        return (uint32_t)__builtin_amdgcn_update_dpp(0, (int)v, 0x162, 0xf, 0xf, true);
    case 4:
        return (uint32_t)__builtin_amdgcn_update_dpp(0, (int)v, 0x164, 0xf, 0xf, true);
    case 8:
        return (uint32_t)__builtin_amdgcn_update_dpp(0, (int)v, 0x168, 0xf, 0xf, true);
    case 16:
        return __builtin_amdgcn_permlanex16(v, v, 0x76543210u, 0xfedcba98u, true, false);
    default:
        break;
    }
#endif
    return (uint32_t)__shfl_xor((int)v, m, GPU_WAVE);
}
GPU_DEV uint32_t gpu_shfl(uint32_t v, int lane) { return (uint32_t)__shfl((int)v, lane, GPU_WAVE); }
// 64 bits wide on HIP whatever the wave is; the shift keeps our half on wave64 parts
GPU_DEV uint32_t gpu_ballot(bool p) { return (uint32_t)(__ballot(p) >> (__lane_id() & 32)); }
GPU_DEV float gpu_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
GPU_DEV float gpu_as_f32(uint32_t u) { return __builtin_bit_cast(float, u); }
GPU_DEV uint32_t gpu_as_u32(float f) { return __builtin_bit_cast(uint32_t, f); }
// bytes of sel (0..7) pick bytes out of hi:lo
GPU_DEV uint32_t gpu_lut8(uint32_t lo, uint32_t hi, uint32_t sel) { return __builtin_amdgcn_perm(hi, lo, sel); }
GPU_DEV int gpu_dot4(uint32_t a, uint32_t b, int c) { // signed 8-bit x4
#if defined(__gfx1100__) || defined(__gfx1101__) || defined(__gfx1102__) || defined(__gfx1103__) ||                    \
    defined(__gfx1150__) || defined(__gfx1151__) || defined(__gfx1152__) || defined(__gfx1200__) ||                    \
    defined(__gfx1201__)
    return __builtin_amdgcn_sudot4(true, (int)a, true, (int)b, c, false); // v_dot4_i32_iu8
#elif defined(__gfx906__) || defined(__gfx908__) || defined(__gfx90a__) || defined(__gfx942__) || defined(__gfx1030__)
    return __builtin_amdgcn_sdot4((int)a, (int)b, c, false); // v_dot4_i32_i8
#else
    for (int i = 0; i < 32; i += 8) c += (int)(int8_t)(a >> i) * (int)(int8_t)(b >> i);
    return c;
#endif
}
#elif GPU_CUDA
GPU_DEV uint32_t gpu_shfl_xor_u32(uint32_t v, int m) { return __shfl_xor_sync(0xffffffffu, v, m); }
GPU_DEV uint32_t gpu_shfl(uint32_t v, int lane) { return __shfl_sync(0xffffffffu, v, lane); }
GPU_DEV uint32_t gpu_ballot(bool p) { return __ballot_sync(0xffffffffu, p); }
GPU_DEV float gpu_fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
GPU_DEV float gpu_as_f32(uint32_t u) { return __uint_as_float(u); }
GPU_DEV uint32_t gpu_as_u32(float f) { return __float_as_uint(f); }
GPU_DEV uint32_t gpu_lut8(uint32_t lo, uint32_t hi, uint32_t sel) {     // selectors are nibbles here
    sel |= sel >> 4;                                                    // bytes s3 s2 s1 s0 ->
    return __byte_perm(lo, hi, (sel & 0xffu) | ((sel >> 8) & 0xff00u)); // nibbles s3s2s1s0
}
GPU_DEV int gpu_dot4(uint32_t a, uint32_t b, int c) { return __dp4a((int)a, (int)b, c); }
#else
GPU_DEV unsigned gpu_tid(void) { return gpu_emu_c->tid; }
GPU_DEV unsigned gpu_bx(void) { return gpu_emu_c->bx; }
GPU_DEV unsigned gpu_by(void) { return gpu_emu_c->by; }
GPU_DEV unsigned gpu_nt(void) { return gpu_emu_c->nt; }
GPU_DEV unsigned gpu_nbx(void) { return gpu_emu_c->nbx; }
GPU_DEV unsigned gpu_nby(void) { return gpu_emu_c->nby; }
GPU_DEV void gpu_sync(void) { gpu_emu_sync(); }
GPU_DEV void gpu_fence(void) { gpu_emu_fence(); }
GPU_DEV uint32_t gpu_popc(uint32_t v) { return (uint32_t)__builtin_popcount(v); }
GPU_DEV uint32_t gpu_atomic_add(uint32_t *p, uint32_t v) { return __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
GPU_DEV uint32_t gpu_atomic_min(uint32_t *p, uint32_t v) {
    uint32_t old = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (v < old && !__atomic_compare_exchange_n(p, &old, v, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
    return old;
}
GPU_DEV float gpu_as_f32(uint32_t u) {
    float f;
    __builtin_memcpy(&f, &u, 4);
    return f;
}
GPU_DEV uint32_t gpu_as_u32(float f) {
    uint32_t u;
    __builtin_memcpy(&u, &f, 4);
    return u;
}
GPU_DEV uint32_t gpu_shfl_xor_u32(uint32_t v, int m) { return gpu_emu_wave(GPU_EMU_XOR, m, v); }
GPU_DEV uint32_t gpu_shfl(uint32_t v, int lane) { return gpu_emu_wave(GPU_EMU_IDX, lane, v); }
GPU_DEV uint32_t gpu_ballot(bool p) { return gpu_emu_wave(GPU_EMU_BALLOT, 0, p); }
GPU_DEV float gpu_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
GPU_DEV uint32_t gpu_lut8(uint32_t lo, uint32_t hi, uint32_t sel) {
    uint64_t t = (uint64_t)hi << 32 | lo;
    uint32_t r = 0;
    for (int i = 0; i < 32; i += 8) r |= (uint32_t)((t >> (8 * ((sel >> i) & 7))) & 0xff) << i;
    return r;
}
GPU_DEV int gpu_dot4(uint32_t a, uint32_t b, int c) {
    for (int i = 0; i < 32; i += 8) c += (int)(int8_t)(a >> i) * (int)(int8_t)(b >> i);
    return c;
}
#endif

// A value that all lanes of the wave share, told to the compiler: addresses made of it stay in scalar registers.
#if GPU_HIP
GPU_DEV uint32_t gpu_uniform(uint32_t v) { return (uint32_t)__builtin_amdgcn_readfirstlane((int)v); }
#else
GPU_DEV uint32_t gpu_uniform(uint32_t v) { return v; }
#endif
GPU_DEV float gpu_shfl_xor(float v, int m) { return gpu_as_f32(gpu_shfl_xor_u32(gpu_as_u32(v), m)); }
#if GPU_CUDA
GPU_DEV float gpu_sqrt(float x) { return __fsqrt_rn(x); }
#else
GPU_DEV float gpu_sqrt(float x) { return __builtin_sqrtf(x); }
#endif

// 16 bytes, 16-aligned: one 128-bit access.  Indices must be constants after unrolling.
struct alignas(16) gpu_u4 {
    uint32_t v[4];
};
struct alignas(16) gpu_f4 {
    float v[4];
};
// 8 bytes, 8-aligned.
struct alignas(8) gpu_u2 {
    uint32_t v[2];
};
GPU_DEV gpu_u2 gpu_load_u2(const void *p) { return *(const gpu_u2 *)p; }
GPU_DEV void gpu_store_u2(void *p, gpu_u2 v) { *(gpu_u2 *)p = v; }
GPU_DEV gpu_u4 gpu_load_u4(const void *p) { return *(const gpu_u4 *)p; }
GPU_DEV gpu_f4 gpu_load_f4(const void *p) { return *(const gpu_f4 *)p; }

#if GPU_HIP || GPU_CUDA
#define GPU_UNROLL   _Pragma("unroll")
#define GPU_UNROLL_2 _Pragma("unroll 2")
#define GPU_UNROLL_8 _Pragma("unroll 8")
#define GPU_ROLLED   _Pragma("unroll 1")
#else
#define GPU_UNROLL
#define GPU_UNROLL_2
#define GPU_UNROLL_8
#define GPU_ROLLED
#endif

// gpu_wait_previous: after it, everything that earlier kernels of the stream wrote is visible, and the next kernel's
// blocks may start where there is room.  Every thread of a GPU_LAUNCH_EARLY kernel calls it before it returns.  What
// runs before it runs beside the kernel before this one and no other, since that one has waited too: it may read all
// that the kernel before this one does not write.  Weights and slots are never written by that one: what fills them is
// waited for by the host or by an event.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
GPU_DEV void gpu_wait_previous(void) {
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
#else
GPU_DEV void gpu_wait_previous(void) {}
#endif
GPU_DEV void gpu_begin(void) { gpu_wait_previous(); } // where nothing runs before it
// Asks for the cache line of p; never an error, and what is read later is what memory holds then.
#if defined(__CUDA_ARCH__)
GPU_DEV void gpu_prefetch(const void *p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }
#else
GPU_DEV void gpu_prefetch(const void *) {}
#endif

// 16, 8 or 4 bytes from memory to shared memory (gpu_copy16_or_zero: zeros if from == NULL), in the background until
// gpu_copy_wait<n>: all but the last n batches that gpu_copy_batch() closed are there, for the thread that asked. Loads
// and stores may pass a copy: a gpu_sync() must lie between it and the last use of what it overwrites.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
GPU_DEV void gpu_copy16_or_zero(void *to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(from ? 16 : 0));
}
GPU_DEV void gpu_copy16(void *to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from));
}
GPU_DEV void gpu_copy8(void *to, const void *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from));
}
GPU_DEV void gpu_copy4(void *to, const void *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from));
}
GPU_DEV void gpu_copy_batch(void) { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> GPU_DEV void gpu_copy_wait(void) { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }
#else
GPU_DEV void gpu_copy16_or_zero(void *to, const void *from) {
    gpu_u4 v = {{0, 0, 0, 0}};
    if (from) v = gpu_load_u4(from);
    *(gpu_u4 *)to = v;
}
GPU_DEV void gpu_copy16(void *to, const void *from) { *(gpu_u4 *)to = gpu_load_u4(from); }
GPU_DEV void gpu_copy8(void *to, const void *from) { gpu_store_u2(to, gpu_load_u2(from)); }
GPU_DEV void gpu_copy4(void *to, const void *from) { *(uint32_t *)to = *(const uint32_t *)from; }
GPU_DEV void gpu_copy_batch(void) {}
template <int N> GPU_DEV void gpu_copy_wait(void) {}
#endif

GPU_DEV unsigned gpu_lane(void) { return gpu_tid() & (GPU_WAVE - 1); }
GPU_DEV unsigned gpu_wave(void) { return gpu_tid() / GPU_WAVE; }

// bf16 is a bare uint16_t everywhere; the vendors' bf16 types round and promote differently
typedef uint16_t gpu_bf16;
GPU_DEV float gpu_bf16_f32(gpu_bf16 b) { return gpu_as_f32((uint32_t)b << 16); }
GPU_DEV gpu_bf16 gpu_f32_bf16(float f) { // round to nearest even
    uint32_t u = gpu_as_u32(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (gpu_bf16)(u >> 16 | 0x40);
    return (gpu_bf16)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

// butterflies: every lane ends with the same bits (a+b and b+a are equal)
GPU_DEV float gpu_wave_sum(float v) {
    GPU_UNROLL
    for (int m = GPU_WAVE / 2; m; m >>= 1) v = v + gpu_shfl_xor(v, m);
    return v;
}
GPU_DEV float gpu_wave_max(float v) {
    GPU_UNROLL
    for (int m = GPU_WAVE / 2; m; m >>= 1) {
        float o = gpu_shfl_xor(v, m);
        v = o > v ? o : v;
    }
    return v;
}
GPU_DEV uint32_t gpu_max_u32(uint32_t a, uint32_t b) { return a > b ? a : b; }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
GPU_DEV uint32_t gpu_wave_max_u32(uint32_t v) { return __reduce_max_sync(0xffffffffu, v); }
#else
GPU_DEV uint32_t gpu_wave_max_u32(uint32_t v) {
    v = gpu_max_u32(v, gpu_shfl_xor_u32(v, 16));
    v = gpu_max_u32(v, gpu_shfl_xor_u32(v, 8));
    v = gpu_max_u32(v, gpu_shfl_xor_u32(v, 4));
    v = gpu_max_u32(v, gpu_shfl_xor_u32(v, 2));
    return gpu_max_u32(v, gpu_shfl_xor_u32(v, 1));
}
#endif
