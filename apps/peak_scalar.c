/* peak_scalar.c: peaks of plain C (see peak.h).  A multiply and an add, since without an instruction for it fused ones
 * are library calls. */
#include "peak.h"

#include <string.h>

enum { LANES = 32, PREFETCH = 4096 };

static uint64_t scalar_read(const void *p, size_t bytes) {
    const uint64_t *v = p;
    uint64_t sum[8] = {0}, all = 0;
    for (size_t i = 0; i < bytes / sizeof *v; i += 8) {
        __builtin_prefetch((const void *)((uintptr_t)(v + i) + PREFETCH));
        for (size_t k = 0; k < 8; k++) sum[k] += v[i + k];
    }
    for (size_t k = 0; k < 8; k++) all += sum[k];
    return all;
}

static uint64_t scalar_fma(size_t rounds) {
    float s[LANES], x = 1.0f + (float)(rounds & 1) * 1e-3f, y = (float)(rounds & 3);
    uint32_t bits, all = 0;
    for (size_t k = 0; k < LANES; k++) s[k] = (float)k;
    for (size_t i = 0; i < rounds; i++)
        for (size_t k = 0; k < LANES; k++) s[k] = s[k] * x + y;
    for (size_t k = 0; k < LANES; k++) {
        memcpy(&bits, &s[k], sizeof bits);
        all ^= bits;
    }
    return all;
}

static uint64_t scalar_dot(size_t rounds) {
    int32_t s[LANES] = {0};
    int8_t w[LANES];
    uint32_t all = 0;
    for (size_t k = 0; k < LANES; k++) w[k] = (int8_t)(rounds + k);
    for (size_t i = 0; i < rounds; i++) {
        int8_t x = (int8_t)(i & 1);
        for (size_t k = 0; k < LANES; k++) s[k] = (s[k] ^ (int32_t)i) + w[k] * x;
    }
    for (size_t k = 0; k < LANES; k++) all ^= (uint32_t)s[k];
    return all;
}

const ms_peaks ms_peaks_scalar = {
    .name = "scalar",
    .read = scalar_read,
    .fma = scalar_fma,
    .fma_ops = 2 * LANES,
    .dot = scalar_dot,
    .dot_ops = 2 * LANES,
};
