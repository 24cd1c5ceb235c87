/* peak_avx512.c: peaks with AVX-512 and VNNI (see peak.h). */
#include "peak.h"

#if defined(__x86_64__)

#include <immintrin.h>

enum { CHAINS = 16, PREFETCH = 4096 };

/* Not _mm512_reduce_add_epi64: GCC's adds signed numbers, which may overflow. */
static uint64_t fold(__m512i v) {
    uint64_t part[8], sum = 0;
    _mm512_storeu_si512(part, v);
    for (int i = 0; i < 8; i++) sum += part[i];
    return sum;
}

static uint64_t avx512_read(const void *p, size_t bytes) {
    const uint8_t *at = p;
    __m512i sum[8];
    for (size_t k = 0; k < 8; k++) sum[k] = _mm512_setzero_si512();
    for (size_t i = 0; i < bytes; i += sizeof sum) {
        for (size_t k = 0; k < 8; k++) {
            _mm_prefetch((const char *)((uintptr_t)(at + i + k * 64) + PREFETCH), _MM_HINT_T0);
            sum[k] = _mm512_xor_si512(sum[k], _mm512_load_si512(at + i + k * 64));
        }
    }
    for (size_t k = 1; k < 8; k++) sum[0] = _mm512_xor_si512(sum[0], sum[k]);
    return fold(sum[0]);
}

static uint64_t avx512_fma(size_t rounds) {
    __m512 s[CHAINS], x = _mm512_set1_ps(1.0f + (float)(rounds & 1) * 1e-3f), y = _mm512_set1_ps((float)(rounds & 3));
    for (int k = 0; k < CHAINS; k++) s[k] = _mm512_set1_ps((float)k);
    for (size_t i = 0; i < rounds; i++)
        for (int k = 0; k < CHAINS; k++) s[k] = _mm512_fmadd_ps(s[k], x, y);
    __m512i all = _mm512_setzero_si512();
    for (int k = 0; k < CHAINS; k++) all = _mm512_xor_si512(all, _mm512_castps_si512(s[k]));
    return fold(all);
}

static uint64_t avx512_dot(size_t rounds) {
    __m512i s[CHAINS], x = _mm512_set1_epi8((char)(rounds & 1)), w = _mm512_set1_epi8((char)(rounds & 3));
    for (int k = 0; k < CHAINS; k++) s[k] = _mm512_set1_epi32(k);
    for (size_t i = 0; i < rounds; i++)
        for (int k = 0; k < CHAINS; k++) s[k] = _mm512_dpbusd_epi32(s[k], x, w);
    for (int k = 1; k < CHAINS; k++) s[0] = _mm512_xor_si512(s[0], s[k]);
    return fold(s[0]);
}

const ms_peaks ms_peaks_avx512 = {
    .name = "avx512",
    .read = avx512_read,
    .fma = avx512_fma,
    .fma_ops = 2 * 16 * CHAINS,
    .dot = avx512_dot,
    .dot_ops = 2 * 64 * CHAINS,
};

#endif
