/* peak.h: what a processor can do at most, for `moonshine bench kernels`: one table of loops per instruction set, the
 * same names as the kernel tables.
 *
 * Each loop does nothing but the one thing it measures, in registers where it is not about memory, and returns a value
 *   made of everything it computed, so that no work can be left out.  Threads: pure functions.
 */
#ifndef MS_APPS_PEAK_H
#define MS_APPS_PEAK_H

#include <stddef.h>
#include <stdint.h>

typedef struct ms_peaks {
    const char *name; /* of the kernel table */
    /* Reads all of p in order, which is 64-byte aligned; bytes % 512 == 0. */
    uint64_t (*read)(const void *p, size_t bytes);
    /* Independent chains of f32 multiply-adds; fma_ops operations a round, a multiply-add counting two. */
    uint64_t (*fma)(size_t rounds);
    uint64_t fma_ops;
    /* The same with int8 products summed in int32, by the instructions the kernels use. */
    uint64_t (*dot)(size_t rounds);
    uint64_t dot_ops;
} ms_peaks;

extern const ms_peaks ms_peaks_scalar;
#if defined(__x86_64__)
extern const ms_peaks ms_peaks_avx2;
extern const ms_peaks ms_peaks_avx512;
#elif defined(__aarch64__)
extern const ms_peaks ms_peaks_neon;
#endif

#endif
