// k_install.h - re-tiling of raw expert bytes, at any address, into a slot.
//
// Owns: nothing.  Layout of a slot: quant/mxfp4.h; the oracle is ms_expert_install.
#pragma once
#include "backend/gpu/k_common.h"

extern "C" {
#include "quant/mxfp4.h"
}

// Blocks re-tile 32 rows by 32 groups through shared memory, so that both sides are read and written 512 bytes at a
// time.
enum { INSTALL_THREADS = 256, INSTALL_GROUPS = 32, INSTALL_WORDS = INSTALL_GROUPS * K_MX_BYTES / 4 };
struct install_shared {
    alignas(16) uint32_t piece[INSTALL_GROUPS][(K_TILE + 1) * 4]; // 4 words a row
    uint8_t scale[INSTALL_GROUPS][K_TILE + 4];
};

// Word i of the words that hold the bytes from p on, p anywhere; nothing in front of `begin` is touched.
GPU_DEV uint32_t install_word(const uint8_t *p, const uint8_t *begin, uint32_t i) {
    const uint8_t *word = p - (uintptr_t)p % 4 + 4 * (size_t)i;
    if (word >= begin) return *(const uint32_t *)word;
    uint32_t v = 0;
    for (uint32_t b = (uint32_t)(begin - word); b < 4; b++) v |= (uint32_t)word[b] << 8 * b;
    return v;
}

// One wave: `words` words from p on, p anywhere, to column `row` of the piece.
GPU_DEV void install_row(install_shared &sh, uint32_t row, const uint8_t *p, const uint8_t *begin, uint32_t words) {
    uint32_t shift = (uint32_t)((uintptr_t)p % 4), lane = gpu_lane(), end = words + (shift != 0),
             w[INSTALL_WORDS / 32 + 1];
    GPU_UNROLL
    for (uint32_t k = 0; k <= INSTALL_WORDS / 32; k++)
        w[k] = 32 * k + lane < end ? install_word(p, begin, 32 * k + lane) : 0;
    GPU_UNROLL
    for (uint32_t k = 0; k < INSTALL_WORDS / 32; k++) {
        uint32_t i = 32 * k + lane, next = gpu_shfl(w[k], (int)(lane + 1) % 32), wrapped = gpu_shfl(w[k + 1], 0);
        if (lane == 31) next = wrapped;
        if (i < words) sh.piece[i / 4][row * 4 + i % 4] = (uint32_t)(((uint64_t)next << 32 | w[k]) >> 8 * shift);
    }
}

// Grid: tiles (gate, up and down tiles in slot order), pieces of 32 groups.  bad[m]: lowest row * groups + group of
// matrix m (ms_expert_matrix) with scale byte 255; all ones before.
GPU_KERNEL GPU_BOUNDS(INSTALL_THREADS, 3) k_experts_install(uint8_t *slot, const uint8_t *source, uint32_t hidden,
                                                            uint32_t inner, uint32_t w2_first, uint32_t *bad) {
    GPU_SHARED(install_shared, sh);
    uint32_t inner_tiles = inner / K_TILE;
    bool down = gpu_bx() >= 2 * inner_tiles;
    uint32_t m = down ? (uint32_t)MS_W2 : gpu_bx() % 2 ? (uint32_t)MS_W3 : (uint32_t)MS_W1;
    uint32_t tile = down ? gpu_bx() - 2 * inner_tiles : gpu_bx() / 2, groups = (down ? inner : hidden) / K_MX_GROUP;
    uint32_t g0 = gpu_by() * INSTALL_GROUPS;
    if (g0 >= groups) return; // the whole block
    uint32_t count = groups - g0 < INSTALL_GROUPS ? groups - g0 : (uint32_t)INSTALL_GROUPS;
    size_t matrix = mx_matrix_bytes(hidden, inner), order = m == MS_W3 ? 2 : (m == MS_W1) == !w2_first ? 0 : 1;
    const uint8_t *packed = source + order * matrix,
                  *scales = packed + (size_t)hidden * (inner / K_MX_GROUP) * K_MX_BYTES;
    for (uint32_t row = gpu_wave(); row < K_TILE; row += INSTALL_THREADS / GPU_WAVE) {
        size_t at = ((size_t)tile * K_TILE + row) * groups + g0;
        install_row(sh, row, packed + at * K_MX_BYTES, source, count * (K_MX_BYTES / 4));
        if (gpu_lane() >= count) continue;
        uint8_t e = scales[at + gpu_lane()];
        sh.scale[gpu_lane()][row] = e;
        if (e == 255) gpu_atomic_min(&bad[m], (uint32_t)at + gpu_lane());
    }
    gpu_sync();
    uint8_t *to = slot + (down ? 2 * matrix : 0) + (size_t)(down ? tile : gpu_bx()) * mx_tile_bytes(groups);
    uint8_t *to_scales = to + (size_t)groups * K_TILE * K_MX_BYTES;
    for (uint32_t i = gpu_tid(); i < count * K_TILE; i += INSTALL_THREADS) {
        uint32_t g = i / K_TILE, row = i % K_TILE;
        *(gpu_u4 *)(to + ((size_t)(g0 + g) * K_TILE + row) * K_MX_BYTES) = gpu_load_u4(&sh.piece[g][row * 4]);
        to_scales[(size_t)(g0 + g) * K_TILE + row] = sh.scale[g][row];
    }
}

// `bad` (device, 3 words) is set to all ones first.  `source`: device-readable, at any address; only its own bytes are
// read.
static inline gpuError_t k_experts_retile(gpuStream_t stream, void *slot, const uint8_t *source, ms_expert_shape s,
                                          uint32_t *bad) {
    gpuError_t e = gpuMemsetAsync(bad, 0xff, 3 * sizeof *bad, stream);
    if (e != gpuSuccess) return e;
    uint32_t hidden = s.hidden, inner = s.inner, widest = (hidden > inner ? hidden : inner) / K_MX_GROUP;
    GPU_LAUNCH(k_experts_install, gpuDim3(2 * (inner / K_TILE) + hidden / K_TILE, k_ceil_div(widest, INSTALL_GROUPS)),
               gpuDim3(INSTALL_THREADS), stream, (uint8_t *)slot, source, hidden, inner, s.order == MS_ORDER_W2_W1_W3,
               bad);
    return gpuGetLastError();
}

// The first scale byte 255 in the order of ms_expert_install, from the three words; false: none.
static inline bool experts_bad_scale(const uint32_t bad[3], uint32_t hidden, uint32_t inner, ms_expert_matrix *m,
                                     uint32_t *row, uint32_t *group) {
    for (int i = 0; i < 3; i++) {
        if (bad[i] == UINT32_MAX) continue;
        uint32_t groups = (i == (int)MS_W2 ? inner : hidden) / K_MX_GROUP;
        *m = (ms_expert_matrix)i;
        *row = bad[i] / groups;
        *group = bad[i] % groups;
        return true;
    }
    return false;
}
