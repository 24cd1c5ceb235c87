// gpu_wide.h - exact products of wide tiles by four waves together (a team), in the background: Hopper's wgmma.
//
// A team's product has 64 left rows and up to 64 columns.  Tiles in shared memory have rows of 128 bytes; the tile
//   begins at a multiple of 1024 bytes; byte b of row r lies at gpu_wide_at(r, b).
// Sums: element [b][i] of lane l of wave w of the team is of left row 16 w + l / 4 + i / 2 * 8 and of column
//   8 b + l % 4 * 2 + i % 2.
// Left sides in registers (f16), a[4 s + i] for the s-th 16 columns k of 32: rows l / 4 and l / 4 + 8 for i % 2 = 0 and
//   1, the two columns from k = 16 s + i / 2 * 8 + l % 4 * 2 on.
// Order: gpu_wide_written() by who wrote a tile, gpu_sync(), gpu_wide_open(), products, gpu_wide_close(), which ends a
//   batch; gpu_wide_wait<n>: all but the last n batches are there.  Until then nobody touches their sums, their left
//   registers or their tiles.  gpu_wide_take() and gpu_wide_keep() tell the compiler that, behind the wait.
// Exact: int8 always.  f16: where all products of a sum are multiples of one power of two, and no partial sum has more
//   than 2^22 of it; then no addition rounds, whatever the order.
// Only kernels of devices that gpu_wide_device() names have bodies (GPU_WIDE_CODE); the emulator has them all.
#pragma once
#include "backend/gpu/gpu.h"

#include <string.h>

#if GPU_HIP
#define GPU_WIDE_HOST 0
#else
#define GPU_WIDE_HOST 1
#endif
#if GPU_EMU || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define GPU_WIDE_CODE 1
#else
#define GPU_WIDE_CODE 0
#endif

enum { GPU_WIDE_TEAM = 128, GPU_WIDE_ROWS = 64, GPU_WIDE_BYTES = 128, GPU_WIDE_SHARED = 227 << 10 };

// Whether kernels of wide tiles run on a device of this architecture.
static inline bool gpu_wide_device(const char *arch) {
#if GPU_CUDA
    return strcmp(arch, "sm_90") == 0;
#else
    return GPU_EMU && arch;
#endif
}

#if GPU_WIDE_HOST
// Kernels with more shared memory than others: at most GPU_WIDE_SHARED bytes, all of it the one struct.
#if GPU_EMU
#define GPU_SHARED_WIDE(T, name)                          T &name = *(T *)gpu_emu_shared_wide(sizeof(T))
#define GPU_LAUNCH_WIDE(T, kern, grid, block, stream, ...) GPU_LAUNCH(kern, grid, block, stream, __VA_ARGS__)
#else
extern __shared__ __align__(1024) unsigned char gpu_wide_memory[];
#define GPU_SHARED_WIDE(T, name) T &name = *(T *)gpu_wide_memory
#define GPU_LAUNCH_WIDE(T, kern, grid, block, stream, ...)                                                             \
    do {                                                                                                               \
        (void)cudaFuncSetAttribute((const void *)kern, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(T));   \
        kern<<<(grid), (block), sizeof(T), (stream)>>>(__VA_ARGS__);                                                   \
    } while (0)
#endif

GPU_DEV uint32_t gpu_wide_at(uint32_t row, uint32_t byte) {
    return row * GPU_WIDE_BYTES + (byte ^ row % 8 * 16);
}

#if GPU_EMU
GPU_DEV float gpu_half_f32(uint32_t h) { // finite
    const uint32_t e = h >> 10 & 31u, m = h & 1023u;
    const float x = e ? gpu_as_f32((e + 112u) << 23 | m << 13) : (float)m * 0x1p-24f;
    return h >> 15 & 1u ? -x : x;
}
GPU_DEV uint32_t gpu_f32_half(float x) { // a value that f16 has
    const uint32_t u = gpu_as_u32(x), sign = u >> 16 & 0x8000u, e = u >> 23 & 255u;
    if (e > 112) return sign | (e - 112) << 10 | (u >> 13 & 1023u);
    return sign | (uint32_t)(gpu_as_f32(u & 0x7fffffffu) * 0x1p24f);
}
// Two f16 values each, exact ones.
GPU_DEV uint32_t gpu_half2_sub(uint32_t a, uint32_t b) {
    return gpu_f32_half(gpu_half_f32(a) - gpu_half_f32(b)) | gpu_f32_half(gpu_half_f32(a >> 16) - gpu_half_f32(b >> 16))
                                                                 << 16;
}
GPU_DEV uint32_t gpu_half2_mul(uint32_t a, uint32_t b) {
    return gpu_f32_half(gpu_half_f32(a) * gpu_half_f32(b)) | gpu_f32_half(gpu_half_f32(a >> 16) * gpu_half_f32(b >> 16))
                                                                 << 16;
}
GPU_DEV void gpu_wide_written(void) {}
GPU_DEV void gpu_wide_open(void) {}
GPU_DEV void gpu_wide_close(void) {}
template <int N> GPU_DEV void gpu_wide_wait(void) {}
template <typename T, int N> GPU_DEV void gpu_wide_take(T (&)[N][4]) {}
GPU_DEV void gpu_wide_keep(const uint32_t (&)[8]) {}

template <int COLS>
GPU_DEV void gpu_wide_f16(float (&d)[COLS / 8][4], const uint32_t (&a)[8], const uint8_t *tile, uint32_t byte) {
    const gpu_emu_words *all = gpu_emu_share(a, 8);
    const uint32_t lane = gpu_tid() % GPU_WAVE;
    for (uint32_t b = 0; b < COLS / 8; b++) {
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t col = 8 * b + lane % 4 * 2 + i % 2;
            float s = 0.0f;
            for (uint32_t k = 0; k < 32; k++) {
                const uint32_t left = all[lane / 4 * 4 + k % 8 / 2].v[k / 16 * 4 + k / 8 % 2 * 2 + i / 2];
                const uint32_t right = *(const uint16_t *)(tile + gpu_wide_at(col, byte + k / 8 * 16) + k % 8 * 2);
                s += gpu_half_f32(left >> k % 2 * 16 & 0xffffu) * gpu_half_f32(right);
            }
            d[b][i] = s;
        }
    }
}

template <int COLS>
GPU_DEV void gpu_wide_s8(int32_t (&d)[COLS / 8][4], const uint8_t *left, const uint8_t *right) {
    const uint32_t lane = gpu_tid() % GPU_WAVE, row0 = gpu_tid() % GPU_WIDE_TEAM / GPU_WAVE * 16 + lane / 4;
    for (uint32_t b = 0; b < COLS / 8; b++) {
        for (uint32_t i = 0; i < 4; i++) {
            d[b][i] = 0;
            for (uint32_t k = 0; k < GPU_WIDE_BYTES; k++)
                d[b][i] += *(const int8_t *)(left + gpu_wide_at(row0 + i / 2 * 8, k / 16 * 16) + k % 16) *
                           *(const int8_t *)(right + gpu_wide_at(8 * b + lane % 4 * 2 + i % 2, k / 16 * 16) + k % 16);
        }
    }
}
#elif GPU_WIDE_CODE
GPU_DEV uint32_t gpu_half2_sub(uint32_t a, uint32_t b) {
    uint32_t r;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
GPU_DEV uint32_t gpu_half2_mul(uint32_t a, uint32_t b) {
    uint32_t r;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
GPU_DEV void gpu_wide_written(void) { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
GPU_DEV void gpu_wide_open(void) { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
GPU_DEV void gpu_wide_close(void) { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> GPU_DEV void gpu_wide_wait(void) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

template <int N> GPU_DEV void gpu_wide_take(float (&d)[N][4]) {
    GPU_UNROLL
    for (int i = 0; i < 4 * N; i++) asm volatile("" : "+f"(d[i / 4][i % 4])::"memory");
}
template <int N> GPU_DEV void gpu_wide_take(int32_t (&d)[N][4]) {
    GPU_UNROLL
    for (int i = 0; i < 4 * N; i++) asm volatile("" : "+r"(d[i / 4][i % 4])::"memory");
}
GPU_DEV void gpu_wide_keep(const uint32_t (&a)[8]) {
    GPU_UNROLL
    for (int i = 0; i < 8; i++) asm volatile("" ::"r"(a[i]) : "memory");
}

// The descriptor of a tile in shared memory: rows of 128 bytes, swizzled by 128, eight rows every 1024 bytes.
GPU_DEV uint64_t gpu_wide_tile(const uint8_t *tile) {
    return (uint64_t)(((uint32_t)__cvta_generic_to_shared(tile) & 0x3ffffu) >> 4) | (uint64_t)1 << 16 |
           (uint64_t)64 << 32 | (uint64_t)1 << 62;
}

#define GPU_WIDE_R8  "%0, %1, %2, %3, %4, %5, %6, %7"
#define GPU_WIDE_R12 GPU_WIDE_R8 ", %8, %9, %10, %11"
#define GPU_WIDE_R16 GPU_WIDE_R12 ", %12, %13, %14, %15"
#define GPU_WIDE_R20 GPU_WIDE_R16 ", %16, %17, %18, %19"
#define GPU_WIDE_R24 GPU_WIDE_R20 ", %20, %21, %22, %23"
#define GPU_WIDE_R28 GPU_WIDE_R24 ", %24, %25, %26, %27"
#define GPU_WIDE_R32 GPU_WIDE_R28 ", %28, %29, %30, %31"
#define GPU_WIDE_D1(type, b) "+" type(d[b][0]), "+" type(d[b][1]), "+" type(d[b][2]), "+" type(d[b][3])
#define GPU_WIDE_D2(type)    GPU_WIDE_D1(type, 0), GPU_WIDE_D1(type, 1)
#define GPU_WIDE_D3(type)    GPU_WIDE_D2(type), GPU_WIDE_D1(type, 2)
#define GPU_WIDE_D4(type)    GPU_WIDE_D3(type), GPU_WIDE_D1(type, 3)
#define GPU_WIDE_D5(type)    GPU_WIDE_D4(type), GPU_WIDE_D1(type, 4)
#define GPU_WIDE_D6(type)    GPU_WIDE_D5(type), GPU_WIDE_D1(type, 5)
#define GPU_WIDE_D7(type)    GPU_WIDE_D6(type), GPU_WIDE_D1(type, 6)
#define GPU_WIDE_D8(type)    GPU_WIDE_D7(type), GPU_WIDE_D1(type, 7)

// d = a * tile for 16 columns k, or d += with `more`.
template <int COLS>
GPU_DEV void gpu_wide_f16_step(float (&d)[COLS / 8][4], const uint32_t *a, uint64_t tile, int more);
#define GPU_WIDE_F16(cols, regs, outs, a0, a1, a2, a3, tile_, more_)                                                   \
    template <>                                                                                                        \
    __device__ __forceinline__ void gpu_wide_f16_step<cols>(float (&d)[cols / 8][4], const uint32_t *a, uint64_t tile, \
                                                            int more) {                                                \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " more_ ", 0;\n"                                                \
                     "wgmma.mma_async.sync.aligned.m64n" #cols "k16.f32.f16.f16 {" regs "}, {" a0 ", " a1 ", " a2      \
                     ", " a3 "}, " tile_ ", p, 1, 1, 0;\n}\n"                                                          \
                     : outs("f")                                                                                       \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(tile), "r"(more));                              \
    }
GPU_WIDE_F16(16, GPU_WIDE_R8, GPU_WIDE_D2, "%8", "%9", "%10", "%11", "%12", "%13")
GPU_WIDE_F16(24, GPU_WIDE_R12, GPU_WIDE_D3, "%12", "%13", "%14", "%15", "%16", "%17")
GPU_WIDE_F16(32, GPU_WIDE_R16, GPU_WIDE_D4, "%16", "%17", "%18", "%19", "%20", "%21")
GPU_WIDE_F16(40, GPU_WIDE_R20, GPU_WIDE_D5, "%20", "%21", "%22", "%23", "%24", "%25")
GPU_WIDE_F16(48, GPU_WIDE_R24, GPU_WIDE_D6, "%24", "%25", "%26", "%27", "%28", "%29")
GPU_WIDE_F16(56, GPU_WIDE_R28, GPU_WIDE_D7, "%28", "%29", "%30", "%31", "%32", "%33")
GPU_WIDE_F16(64, GPU_WIDE_R32, GPU_WIDE_D8, "%32", "%33", "%34", "%35", "%36", "%37")

GPU_DEV void gpu_wide_s8_step(int32_t (&d)[8][4], uint64_t left, uint64_t right, int more) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8 {" GPU_WIDE_R32 "}, %32, %33, p;\n}\n"
                 : GPU_WIDE_D8("r")
                 : "l"(left), "l"(right), "r"(more));
}

// 32 columns k of f16, from byte `byte` (0 or 64) of the tile's rows on.
template <int COLS>
GPU_DEV void gpu_wide_f16(float (&d)[COLS / 8][4], const uint32_t (&a)[8], const uint8_t *tile, uint32_t byte) {
    const uint64_t t = gpu_wide_tile(tile) + byte / 16;
    gpu_wide_f16_step<COLS>(d, a, t, 0);
    gpu_wide_f16_step<COLS>(d, a + 4, t + 2, 1);
}

// 128 columns k of int8.
template <int COLS>
GPU_DEV void gpu_wide_s8(int32_t (&d)[COLS / 8][4], const uint8_t *left, const uint8_t *right) {
    static_assert(COLS == 64, "the one that is used");
    const uint64_t l = gpu_wide_tile(left), r = gpu_wide_tile(right);
    GPU_UNROLL
    for (uint32_t k = 0; k < 4; k++) gpu_wide_s8_step(d, l + 2 * k, r + 2 * k, k > 0);
}
#endif
#endif
