// k_mzg2.h - compressed experts into slots: one wave a tile, straight into the layout that the kernels use.
//
// Owns: nothing.  Format: store/mzg2.h; the oracle is its scalar decoder.
// Invariants: the host has checked the block's head (ms_mzg2_block_open), so directory and classes are good; words are
//   checked once a group, for which a block has room behind its payload; a wave writes its own tile alone.
#pragma once
#include "backend/gpu/k_common.h"

extern "C" {
#include "store/mzg2.h"
}

enum { MZG2_THREADS = 64, MZG2_BATCH = 16, MZG2_NAN = 255 };

// Word of a bad tile: tile << 8 | fault; the lowest stays.
struct mzg2_batch {
    uint8_t *slot[MZG2_BATCH];
    const uint8_t *block[MZG2_BATCH]; // 16-aligned, MS_MZG2_TAIL_BYTES readable behind the payload
    const ms_mzg2_tables *tables;
    uint32_t hidden, inner;
    uint32_t *bad; // [batch]
};

GPU_DEV uint32_t mzg2_load(const uint8_t *p) { return *(const uint32_t *)p; }

GPU_DEV uint32_t mzg2_hash(uint32_t h, uint32_t w) {
    h = (h ^ w) * 0x85EBCA6Bu;
    return h ^ h >> 15;
}

// One symbol of every lane; lanes whose state fell below 2^16 take the next words in ascending order.
GPU_DEV uint32_t mzg2_step(uint32_t &x, const uint32_t *table, uint32_t bits, const uint16_t *words, uint32_t &at) {
    uint32_t entry = table[x & ((1u << bits) - 1)];
    x = (entry >> 8 & 0xfffu) * (x >> bits) + (entry >> 20);
    bool low = x < 65536u;
    uint32_t all = gpu_ballot(low);
    if (low) x = x << 16 | words[at + gpu_popc(all & ((1u << gpu_lane()) - 1))];
    at += gpu_popc(all);
    return entry & 0xffu;
}

// A coded tile; gives the fault, and folds what it wrote into h.
GPU_DEV uint32_t mzg2_coded(uint8_t *out, const uint8_t *tile, uint32_t length, const ms_mzg2_tables *t, uint32_t m,
                            const uint8_t *columns, uint32_t groups, uint32_t &h, bool &nan) {
    uint32_t lane = gpu_lane(), row = tile[lane], c = row & 7, x = mzg2_load(tile + 32 + 4 * lane), at = 0;
    uint32_t count = (length - MS_MZG2_TILE_HEAD) / 2, base = t->set[m].e_base + (row >> 3);
    const uint16_t *words = (const uint16_t *)(tile + MS_MZG2_TILE_HEAD);
    const uint32_t *nibble = t->set[m].nibble[0], *scale = t->set[m].scale[c], *map = t->set[m].nmap[c];
    uint8_t *scales = out + (size_t)groups * K_TILE * K_MX_BYTES;
    if (gpu_ballot(x < 65536u)) return MS_MZG2_BAD_STATE;
    for (uint32_t g = 0; g < groups; g++) {
        if (at > count) return MS_MZG2_BAD_WORDS; // the same in all lanes
        uint32_t s = mzg2_step(x, scale, MS_MZG2_SCALE_BITS, words, at), e = (base + s) & 0xffu;
        uint32_t digits = map[s < MS_MZG2_DELTAS - 1 ? s : MS_MZG2_DELTAS - 1];
        scales[g * K_TILE + lane] = (uint8_t)e;
        nan |= e == 255;
        h = mzg2_hash(h, e);
        gpu_u4 v = {};
        GPU_UNROLL
        for (uint32_t k = 0; k < K_MX_BYTES; k++) {
            uint32_t q = columns[g * K_MX_BYTES + k];
            const uint32_t *table = nibble + ((digits >> 4 * q & 15) << MS_MZG2_PAIR_BITS);
            v.v[k / 4] |= mzg2_step(x, table, MS_MZG2_PAIR_BITS, words, at) << 8 * (k % 4);
        }
        GPU_UNROLL
        for (uint32_t w = 0; w < 4; w++) h = mzg2_hash(h, v.v[w]);
        *(gpu_u4 *)(out + ((size_t)g * K_TILE + lane) * K_MX_BYTES) = v;
    }
    if (at != count) return MS_MZG2_BAD_WORDS;
    return gpu_ballot(x != 65536u) ? MS_MZG2_BAD_END : MS_MZG2_GOOD;
}

GPU_DEV void mzg2_raw(uint8_t *out, const uint8_t *tile, uint32_t groups, uint32_t &h, bool &nan) {
    uint32_t lane = gpu_lane();
    size_t scales = (size_t)groups * K_TILE * K_MX_BYTES;
    for (uint32_t g = 0; g < groups; g++) {
        size_t at = ((size_t)g * K_TILE + lane) * K_MX_BYTES;
        uint32_t e = tile[scales + g * K_TILE + lane];
        gpu_u4 v = gpu_load_u4(tile + at);
        out[scales + g * K_TILE + lane] = (uint8_t)e;
        nan |= e == 255;
        h = mzg2_hash(h, e);
        GPU_UNROLL
        for (uint32_t w = 0; w < 4; w++) h = mzg2_hash(h, v.v[w]);
        *(gpu_u4 *)(out + at) = v;
    }
}

// Grid: pairs of tiles, experts.
GPU_KERNEL GPU_BOUNDS(MZG2_THREADS, 16) k_mzg2_decode(mzg2_batch b) {
    uint32_t tile = gpu_bx() * (MZG2_THREADS / GPU_WAVE) + gpu_wave(), inner_tiles = b.inner / K_TILE;
    uint32_t tiles = 2 * inner_tiles + b.hidden / K_TILE;
    if (tile >= tiles) return; // the whole wave
    bool down = tile >= 2 * inner_tiles;
    uint32_t m = down ? (uint32_t)MS_W2 : tile % 2 ? (uint32_t)MS_W3 : (uint32_t)MS_W1;
    uint32_t groups = (down ? b.inner : b.hidden) / K_MX_GROUP;
    const uint8_t *block = b.block[gpu_by()], *entry = block + 16 + 12 * (size_t)tile;
    const uint8_t *columns = block + 16 + 12 * (size_t)tiles + (down ? b.hidden : m == MS_W3 ? b.hidden / 2 : 0);
    size_t up = (size_t)(b.hidden / K_MX_GROUP) * K_TILE * (K_MX_BYTES + 1); // a tile of w1 or w3
    uint8_t *out = b.slot[gpu_by()] +
                   (down ? 2 * inner_tiles * up + (size_t)(tile - 2 * inner_tiles) * groups * K_TILE * (K_MX_BYTES + 1)
                         : tile * up);
    uint32_t length = mzg2_load(entry + 4), h = 0x9E3779B1u ^ gpu_lane(), fault = MS_MZG2_GOOD;
    bool nan = false;
    const uint8_t *data = block + mzg2_load(entry);
    if (length >> 31)
        mzg2_raw(out, data, groups, h, nan);
    else
        fault = mzg2_coded(out, data, length, b.tables, m, columns, groups, h, nan);
    uint32_t lane = gpu_lane(), sum = lane ? h << lane | h >> (32 - lane) : h;
    for (int i = 16; i; i /= 2) sum ^= gpu_shfl_xor_u32(sum, i);
    bool any_nan = gpu_ballot(nan) != 0;
    if (fault == MS_MZG2_GOOD && sum != mzg2_load(entry + 8)) fault = MS_MZG2_BAD_HASH;
    if (fault == MS_MZG2_GOOD && any_nan) fault = MZG2_NAN;
    if (fault != MS_MZG2_GOOD && lane == 0) gpu_atomic_min(b.bad + gpu_by(), tile << 8 | fault);
}

static inline gpuError_t k_mzg2_launch(gpuStream_t stream, const mzg2_batch &b, uint32_t experts) {
    uint32_t tiles = 2 * (b.inner / K_TILE) + b.hidden / K_TILE;
    GPU_LAUNCH(k_mzg2_decode, gpuDim3(k_ceil_div(tiles, MZG2_THREADS / GPU_WAVE), experts), gpuDim3(MZG2_THREADS),
               stream, b);
    return gpuGetLastError();
}
