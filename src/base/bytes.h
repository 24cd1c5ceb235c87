/* bytes.h: little-endian loads and stores, overflow-checked sizes, alignment. */
#ifndef MS_BASE_BYTES_H
#define MS_BASE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint16_t ms_le16(const void *p) {
    const uint8_t *b = p;
    return (uint16_t)(b[0] | b[1] << 8);
}
static inline uint32_t ms_le32(const void *p) {
    const uint8_t *b = p;
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}
static inline uint64_t ms_le64(const void *p) {
    const uint8_t *b = p;
    return (uint64_t)ms_le32(b) | (uint64_t)ms_le32(b + 4) << 32;
}
static inline void ms_put_le32(void *p, uint32_t v) {
    uint8_t *b = p;
    for (int i = 0; i < 4; i++) b[i] = (uint8_t)(v >> 8 * i);
}
static inline void ms_put_le64(void *p, uint64_t v) {
    uint8_t *b = p;
    for (int i = 0; i < 8; i++) b[i] = (uint8_t)(v >> 8 * i);
}

/* *out = a * b or a + b; false when it does not fit. */
static inline bool ms_mul_u64(uint64_t a, uint64_t b, uint64_t *out) { return !__builtin_mul_overflow(a, b, out); }
static inline bool ms_add_u64(uint64_t a, uint64_t b, uint64_t *out) { return !__builtin_add_overflow(a, b, out); }

/* `align` is a power of two. */
static inline uint64_t ms_align_up(uint64_t v, uint64_t align) { return (v + align - 1) & ~(align - 1); }
static inline uint64_t ms_align_down(uint64_t v, uint64_t align) { return v & ~(align - 1); }

/* f32 <-> bits and bf16.  ms_bf16_from_f32 rounds to nearest even and keeps NaN a NaN. */
static inline uint32_t ms_f32_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}
static inline float ms_f32_from_bits(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}
static inline float ms_bf16_to_f32(uint16_t h) { return ms_f32_from_bits((uint32_t)h << 16); }
static inline uint16_t ms_bf16_from_f32(float f) {
    uint32_t u = ms_f32_bits(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

/* FNV-1a-64, for digests of state (spec: 64-bit offset basis and prime). */
#define MS_FNV1A64_INIT UINT64_C(0xcbf29ce484222325)
static inline uint64_t ms_fnv1a64(uint64_t h, const void *data, size_t n) {
    const uint8_t *p = data;
    for (size_t i = 0; i < n; i++) h = (h ^ p[i]) * UINT64_C(0x100000001b3);
    return h;
}

#endif
