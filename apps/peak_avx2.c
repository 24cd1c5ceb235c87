/* peak_avx2.c: peaks with AVX2 and FMA (see peak.h). */
#include "peak.h"

#if defined(__x86_64__)

#include <immintrin.h>

enum { CHAINS = 12, PREFETCH = 4096 };

static uint64_t fold(__m256i v) {
    __m128i s = _mm_xor_si128(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    return (uint64_t)_mm_extract_epi64(s, 0) ^ (uint64_t)_mm_extract_epi64(s, 1);
}

static uint64_t avx2_read(const void *p, size_t bytes) {
    const uint8_t *at = p;
    __m256i sum[8];
    for (size_t k = 0; k < 8; k++) sum[k] = _mm256_setzero_si256();
    for (size_t i = 0; i < bytes; i += sizeof sum) {
        for (size_t k = 0; k < 8; k++) {
            if (k % 2 == 0) _mm_prefetch((const char *)((uintptr_t)(at + i + k * 32) + PREFETCH), _MM_HINT_T0);
            sum[k] = _mm256_xor_si256(sum[k], _mm256_load_si256((const __m256i *)(const void *)(at + i + k * 32)));
        }
    }
    for (size_t k = 1; k < 8; k++) sum[0] = _mm256_xor_si256(sum[0], sum[k]);
    return fold(sum[0]);
}

static uint64_t avx2_fma(size_t rounds) {
    __m256 s[CHAINS], x = _mm256_set1_ps(1.0f + (float)(rounds & 1) * 1e-3f), y = _mm256_set1_ps((float)(rounds & 3));
    for (int k = 0; k < CHAINS; k++) s[k] = _mm256_set1_ps((float)k);
    for (size_t i = 0; i < rounds; i++)
        for (int k = 0; k < CHAINS; k++) s[k] = _mm256_fmadd_ps(s[k], x, y);
    __m256i all = _mm256_setzero_si256();
    for (int k = 0; k < CHAINS; k++) all = _mm256_xor_si256(all, _mm256_castps_si256(s[k]));
    return fold(all);
}

/* maddubs, madd and an add for 32 products. */
static uint64_t avx2_dot(size_t rounds) {
    __m256i s[CHAINS], x = _mm256_set1_epi8((char)(rounds & 1)), one = _mm256_set1_epi16((short)(1 + (rounds & 1)));
    for (int k = 0; k < CHAINS; k++) s[k] = _mm256_set1_epi32(k);
    for (size_t i = 0; i < rounds; i++)
        for (int k = 0; k < CHAINS; k++)
            s[k] = _mm256_add_epi32(s[k], _mm256_madd_epi16(_mm256_maddubs_epi16(x, s[k]), one));
    for (int k = 1; k < CHAINS; k++) s[0] = _mm256_xor_si256(s[0], s[k]);
    return fold(s[0]);
}

const ms_peaks ms_peaks_avx2 = {
    .name = "avx2",
    .read = avx2_read,
    .fma = avx2_fma,
    .fma_ops = 2 * 8 * CHAINS,
    .dot = avx2_dot,
    .dot_ops = 2 * 32 * CHAINS,
};

#endif
