/* fmath.h: exp, sigmoid and tanh as docs/numerics.md defines them, one value at a time.
 *
 * Invariants: built from + - * /, fma, compare and select only, so that every vector form can give the same bits.
 *   NaN gives NaN.  No libm function takes part (fmaf is the fused operation itself).
 * Threads: pure functions.
 */
#ifndef MS_BASE_FMATH_H
#define MS_BASE_FMATH_H

#include "base/bytes.h"

#include <math.h>

/* Coefficients, shared with the vector forms. */
#define MS_EXP_LOG2E   1.44269504f
#define MS_EXP_SHIFT   12582912.0f /* 1.5 * 2^23: adding it rounds to an integer in the low mantissa bits */
#define MS_EXP_LN2_HI  0.693145752f
#define MS_EXP_LN2_LO  1.42860677e-6f
#define MS_EXP_MIN     (-87.0f)
#define MS_EXP_MAX     88.0f
#define MS_EXP_C0      1.98756914e-4f
#define MS_EXP_C1      1.39819994e-3f
#define MS_EXP_C2      8.33345205e-3f
#define MS_EXP_C3      4.16657962e-2f
#define MS_EXP_C4      1.66666657e-1f
#define MS_EXP_C5      0.5f
#define MS_TANH_BRANCH 0.625f
#define MS_TANH_T0     (-5.69738355e-3f)
#define MS_TANH_T1     2.06325464e-2f
#define MS_TANH_T2     (-5.37377968e-2f)
#define MS_TANH_T3     1.33314207e-1f
#define MS_TANH_T4     (-3.33332807e-1f)

static inline float ms_exp(float x) {
    float t = fmaf(x, MS_EXP_LOG2E, MS_EXP_SHIFT);
    float k = t - MS_EXP_SHIFT;
    float r = fmaf(k, -MS_EXP_LN2_LO, fmaf(k, -MS_EXP_LN2_HI, x));
    float p = MS_EXP_C0;
    p = fmaf(p, r, MS_EXP_C1);
    p = fmaf(p, r, MS_EXP_C2);
    p = fmaf(p, r, MS_EXP_C3);
    p = fmaf(p, r, MS_EXP_C4);
    p = fmaf(p, r, MS_EXP_C5);
    p = fmaf(p, r * r, r) + 1.0f;
    /* t's bits are those of the shift plus n: moved up by 23 they leave n + 127 in the exponent field. */
    uint32_t n = ms_f32_bits(t) - ms_f32_bits(MS_EXP_SHIFT);
    float y = p * ms_f32_from_bits((n + 127u) << 23);
    y = x < MS_EXP_MIN ? 0.0f : y;
    return x > MS_EXP_MAX ? ms_f32_from_bits(0x7f800000u) : y;
}

static inline float ms_sigmoid(float x) { return 1.0f / (1.0f + ms_exp(-x)); }

static inline float ms_tanh(float x) {
    uint32_t sign = ms_f32_bits(x) & 0x80000000u;
    float a = ms_f32_from_bits(ms_f32_bits(x) & 0x7fffffffu);
    float z = a * a;
    float p = MS_TANH_T0;
    p = fmaf(p, z, MS_TANH_T1);
    p = fmaf(p, z, MS_TANH_T2);
    p = fmaf(p, z, MS_TANH_T3);
    p = fmaf(p, z, MS_TANH_T4);
    float y = a < MS_TANH_BRANCH ? fmaf(p * z, a, a) : 1.0f - 2.0f / (ms_exp(a + a) + 1.0f);
    return ms_f32_from_bits(ms_f32_bits(y) | sign);
}

#endif
