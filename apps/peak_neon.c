/* peak_neon.c: peaks with Advanced SIMD and its int8 dot product (see peak.h). */
#include "peak.h"

#if defined(__aarch64__)

#include <arm_neon.h>

enum { CHAINS = 16, PREFETCH = 4096 };

static uint64_t fold(uint64x2_t v) { return vgetq_lane_u64(v, 0) ^ vgetq_lane_u64(v, 1); }

static uint64_t neon_read(const void *p, size_t bytes) {
    const uint8_t *at = p;
    uint8x16_t sum[8];
    for (size_t k = 0; k < 8; k++) sum[k] = vdupq_n_u8(0);
    for (size_t i = 0; i < bytes; i += sizeof sum) {
        for (size_t k = 0; k < 8; k++) {
            if (k % 4 == 0) __builtin_prefetch((const void *)((uintptr_t)(at + i + k * 16) + PREFETCH));
            sum[k] = veorq_u8(sum[k], vld1q_u8(at + i + k * 16));
        }
    }
    for (size_t k = 1; k < 8; k++) sum[0] = veorq_u8(sum[0], sum[k]);
    return fold(vreinterpretq_u64_u8(sum[0]));
}

static uint64_t neon_fma(size_t rounds) {
    float32x4_t s[CHAINS], x = vdupq_n_f32(1.0f + (float)(rounds & 1) * 1e-3f), y = vdupq_n_f32((float)(rounds & 3));
    for (int k = 0; k < CHAINS; k++) s[k] = vdupq_n_f32((float)k);
    for (size_t i = 0; i < rounds; i++)
        for (int k = 0; k < CHAINS; k++) s[k] = vfmaq_f32(s[k], x, y);
    uint64x2_t all = vdupq_n_u64(0);
    for (int k = 0; k < CHAINS; k++) all = veorq_u64(all, vreinterpretq_u64_f32(s[k]));
    return fold(all);
}

/* An sdot for 16 products; the sums are an operand too, so that no chain can be computed in advance. */
static uint64_t neon_dot(size_t rounds) {
    int32x4_t s[CHAINS];
    int8x16_t x = vdupq_n_s8((int8_t)(rounds & 1));
    for (int k = 0; k < CHAINS; k++) s[k] = vdupq_n_s32(k);
    for (size_t i = 0; i < rounds; i++)
        for (int k = 0; k < CHAINS; k++) s[k] = vdotq_s32(s[k], x, vreinterpretq_s8_s32(s[k]));
    for (int k = 1; k < CHAINS; k++) s[0] = veorq_s32(s[0], s[k]);
    return fold(vreinterpretq_u64_s32(s[0]));
}

const ms_peaks ms_peaks_neon = {
    .name = "neon",
    .read = neon_read,
    .fma = neon_fma,
    .fma_ops = 2 * 4 * CHAINS,
    .dot = neon_dot,
    .dot_ops = 2 * 16 * CHAINS,
};

#endif
