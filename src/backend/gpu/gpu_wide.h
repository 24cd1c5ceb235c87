// gpu_wide.h - exact products of wide tiles by four waves together (a team), in the background: Hopper's wgmma.
//
// A tile in shared memory has rows of 128 bytes and begins at a multiple of 1024 bytes; byte b of its row r lies at
//   gpu_wide_at(r, b).
// gpu_wide_s8() sums 64 left rows of int8 with each of 64 right rows.  gpu_wide_f16() does so with 64 bytes, 32 halves,
//   from byte `byte` on: exact where all products of a sum are multiples of one power of two, 2^u, and the sum of their
//   absolutes is below 2^(u + 16).
// Sums: element [b][i] of lane l of wave w of the team is of left row 16 w + l / 4 + i / 2 * 8 and of right row
//   8 b + l % 4 * 2 + i % 2.
// Order: gpu_wide_written() by who wrote a tile, gpu_sync(), gpu_wide_open(), products, each with gpu_wide_close()
//   behind it; gpu_wide_wait<n>: all but the last n are there.  Until then nobody touches their sums or their tiles.
//   gpu_wide_take(), behind the wait, tells the compiler.
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

enum {
    GPU_WIDE_TEAM = 128,
    GPU_WIDE_ROWS = 64,
    GPU_WIDE_BYTES = 128,
    GPU_WIDE_BLOCKS = GPU_WIDE_ROWS / 8, // of eight right rows
    GPU_WIDE_SHARED = 227 << 10          // most shared memory of a block
};

// Whether kernels of wide tiles run on a device of this architecture.
static inline bool gpu_wide_device(const char *arch) {
#if GPU_CUDA
    return strcmp(arch, "sm_90") == 0;
#elif GPU_EMU
    return arch != nullptr;
#else
    (void)arch;
    return false;
#endif
}

#if GPU_WIDE_HOST
// Kernels with more shared memory than others: at most GPU_WIDE_SHARED bytes, all of it the one struct.
#if GPU_EMU
#define GPU_SHARED_WIDE(T, name)                           T &name = *(T *)gpu_emu_shared_wide(sizeof(T))
#define GPU_LAUNCH_WIDE(T, kern, grid, block, stream, ...) GPU_LAUNCH(kern, grid, block, stream, __VA_ARGS__)
#else
extern __shared__ __align__(1024) unsigned char gpu_wide_memory[];
#define GPU_SHARED_WIDE(T, name) T &name = *(T *)gpu_wide_memory
#define GPU_LAUNCH_WIDE(T, kern, grid, block, stream, ...)                                                             \
    do {                                                                                                               \
        (void)cudaFuncSetAttribute((const void *)kern, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(T));   \
        (void)cudaFuncSetAttribute((const void *)kern, cudaFuncAttributePreferredSharedMemoryCarveout, 100);           \
        kern<<<(grid), (block), sizeof(T), (stream)>>>(__VA_ARGS__);                                                   \
    } while (0)
#endif

// A walk over groups of columns by what partial sum they belong to (docs/numerics.md), so that one of the four is made
// at a time, in the order 0 2 1 3: pass 4 is the end.
struct gpu_wide_place {
    uint32_t group, pass;
};
// `step`, a multiple of 4, groups on.
GPU_DEV void gpu_wide_next(gpu_wide_place &p, uint32_t step, uint32_t groups) {
    p.group += step;
    while (p.group >= groups && p.pass < 4) {
        p.pass++;
        p.group = p.pass % 2 * 2 + p.pass / 2;
    }
}

GPU_DEV uint32_t gpu_wide_at(uint32_t row, uint32_t byte) { return row * GPU_WIDE_BYTES + (byte ^ row % 8 * 16); }

// Two halves (IEEE binary16) at a time, where the results are halves too.
#if GPU_EMU
GPU_DEV float gpu_half_f32(uint32_t h) {
    const int e = (int)(h >> 10 & 31u);
    const float f = __builtin_ldexpf((float)(e ? 1024u + (h & 1023u) : h & 1023u), (e ? e : 1) - 25);
    return h & 0x8000u ? -f : f;
}
GPU_DEV uint32_t gpu_f32_half(float f) {
    const uint32_t sign = gpu_as_u32(f) >> 31 << 15;
    int e = 0;
    const float m = __builtin_frexpf(f < 0 ? -f : f, &e); // |f| = m * 2^e, m in [1/2, 1)
    if (m == 0.0f) return sign;
    if (e < -13) return sign | (uint32_t)__builtin_ldexpf(m, e + 24);
    return sign | (((uint32_t)(e + 14) << 10) + (uint32_t)__builtin_ldexpf(m, 11) - 1024u);
}
GPU_DEV uint32_t gpu_half2_mul(uint32_t a, uint32_t b) {
    return gpu_f32_half(gpu_half_f32(a & 0xffffu) * gpu_half_f32(b & 0xffffu)) |
           gpu_f32_half(gpu_half_f32(a >> 16) * gpu_half_f32(b >> 16)) << 16;
}
GPU_DEV uint32_t gpu_half2_add(uint32_t a, uint32_t b) {
    return gpu_f32_half(gpu_half_f32(a & 0xffffu) + gpu_half_f32(b & 0xffffu)) |
           gpu_f32_half(gpu_half_f32(a >> 16) + gpu_half_f32(b >> 16)) << 16;
}
#elif GPU_WIDE_CODE
GPU_DEV uint32_t gpu_half2_mul(uint32_t a, uint32_t b) {
    uint32_t c;
    asm("mul.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
    return c;
}
GPU_DEV uint32_t gpu_half2_add(uint32_t a, uint32_t b) {
    uint32_t c;
    asm("add.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
    return c;
}
#endif

#if GPU_EMU
GPU_DEV void gpu_wide_written(void) {}
GPU_DEV void gpu_wide_open(void) {}
GPU_DEV void gpu_wide_close(void) {}
template <int N> GPU_DEV void gpu_wide_wait(void) {}
template <class T> GPU_DEV void gpu_wide_take(T (&)[GPU_WIDE_BLOCKS][4]) {}

// The 16 bytes of tile row r from byte `byte` on.
GPU_DEV const uint8_t *gpu_wide_piece(const uint8_t *tile, uint32_t r, uint32_t byte) {
    return tile + gpu_wide_at(r, byte);
}
GPU_DEV uint32_t gpu_wide_row(uint32_t i) {
    return gpu_tid() % GPU_WIDE_TEAM / GPU_WAVE * 16 + gpu_tid() % GPU_WAVE / 4 + i / 2 * 8;
}
GPU_DEV uint32_t gpu_wide_col(uint32_t b, uint32_t i) { return 8 * b + gpu_tid() % 4 * 2 + i % 2; }

GPU_DEV void gpu_wide_s8(int32_t (&d)[GPU_WIDE_BLOCKS][4], const uint8_t *left, const uint8_t *right) {
    for (uint32_t b = 0; b < GPU_WIDE_BLOCKS; b++) {
        for (uint32_t i = 0; i < 4; i++) {
            d[b][i] = 0;
            for (uint32_t k = 0; k < GPU_WIDE_BYTES; k += 16) {
                const gpu_u4 l = gpu_load_u4(gpu_wide_piece(left, gpu_wide_row(i), k)),
                             r = gpu_load_u4(gpu_wide_piece(right, gpu_wide_col(b, i), k));
                for (uint32_t j = 0; j < 4; j++) d[b][i] = gpu_dot4(l.v[j], r.v[j], d[b][i]);
            }
        }
    }
}

GPU_DEV float gpu_wide_half(const uint8_t *tile, uint32_t r, uint32_t byte) {
    return gpu_half_f32(*(const uint16_t *)(tile + gpu_wide_at(r, byte)));
}
GPU_DEV void gpu_wide_f16(float (&d)[GPU_WIDE_BLOCKS][4], const uint8_t *left, const uint8_t *right, uint32_t byte) {
    for (uint32_t b = 0; b < GPU_WIDE_BLOCKS; b++) {
        for (uint32_t i = 0; i < 4; i++) {
            d[b][i] = 0.0f;
            for (uint32_t k = byte; k < byte + 64; k += 2)
                d[b][i] += gpu_wide_half(left, gpu_wide_row(i), k) * gpu_wide_half(right, gpu_wide_col(b, i), k);
        }
    }
}
#elif GPU_WIDE_CODE
GPU_DEV void gpu_wide_written(void) { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
GPU_DEV void gpu_wide_open(void) { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
GPU_DEV void gpu_wide_close(void) { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> GPU_DEV void gpu_wide_wait(void) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

GPU_DEV void gpu_wide_take(int32_t (&d)[GPU_WIDE_BLOCKS][4]) {
    GPU_UNROLL
    for (int i = 0; i < 4 * GPU_WIDE_BLOCKS; i++) asm volatile("" : "+r"(d[i / 4][i % 4])::"memory");
}
GPU_DEV void gpu_wide_take(float (&d)[GPU_WIDE_BLOCKS][4]) {
    GPU_UNROLL
    for (int i = 0; i < 4 * GPU_WIDE_BLOCKS; i++) asm volatile("" : "+f"(d[i / 4][i % 4])::"memory");
}

// The descriptor of a tile in shared memory: rows of 128 bytes, swizzled by 128, eight rows every 1024 bytes.
GPU_DEV uint64_t gpu_wide_tile(const uint8_t *tile) {
    return (uint64_t)(((uint32_t)__cvta_generic_to_shared(tile) & 0x3ffffu) >> 4) | (uint64_t)1 << 16 |
           (uint64_t)64 << 32 | (uint64_t)1 << 62;
}

// d = left * right, or d += with `more`: what `kind` says, with sums in registers of constraint c.
#define GPU_WIDE_D(c, b) c(d[b][0]), c(d[b][1]), c(d[b][2]), c(d[b][3])
#define GPU_WIDE_STEP(kind, c, signs)                                                                                  \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"                                                         \
                 "wgmma.mma_async.sync.aligned." kind                                                                  \
                 " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                            \
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "                   \
                 "%32, %33, p" signs ";\n}\n"                                                                          \
                 : GPU_WIDE_D(c, 0), GPU_WIDE_D(c, 1), GPU_WIDE_D(c, 2), GPU_WIDE_D(c, 3), GPU_WIDE_D(c, 4),           \
                   GPU_WIDE_D(c, 5), GPU_WIDE_D(c, 6), GPU_WIDE_D(c, 7)                                                \
                 : "l"(left), "l"(right), "r"(more))
// 32 columns of int8; 16 of halves.
GPU_DEV void gpu_wide_s8_step(int32_t (&d)[GPU_WIDE_BLOCKS][4], uint64_t left, uint64_t right, int more) {
    GPU_WIDE_STEP("m64n64k32.s32.s8.s8", "+r", "");
}
GPU_DEV void gpu_wide_f16_step(float (&d)[GPU_WIDE_BLOCKS][4], uint64_t left, uint64_t right, int more) {
    GPU_WIDE_STEP("m64n64k16.f32.f16.f16", "+f", ", 1, 1, 0, 0");
}

GPU_DEV void gpu_wide_s8(int32_t (&d)[GPU_WIDE_BLOCKS][4], const uint8_t *left, const uint8_t *right) {
    const uint64_t l = gpu_wide_tile(left), r = gpu_wide_tile(right);
    GPU_UNROLL
    for (uint32_t k = 0; k < 4; k++) gpu_wide_s8_step(d, l + 2 * k, r + 2 * k, k > 0);
}

GPU_DEV void gpu_wide_f16(float (&d)[GPU_WIDE_BLOCKS][4], const uint8_t *left, const uint8_t *right, uint32_t byte) {
    const uint64_t l = gpu_wide_tile(left) + byte / 16, r = gpu_wide_tile(right) + byte / 16;
    gpu_wide_f16_step(d, l, r, 0);
    gpu_wide_f16_step(d, l + 2, r + 2, 1);
}
#endif
#endif
