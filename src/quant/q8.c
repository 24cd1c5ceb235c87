#include "quant/q8.h"

#include "base/bytes.h"

/* Round half to even of |v| < 2^22 without libm: the shift leaves the integer in the low mantissa bits. */
static int32_t round_even(float v) { return (int32_t)(ms_f32_bits(v + 12582912.0f) - ms_f32_bits(12582912.0f)); }

bool ms_q8_group(int8_t *q, float *scale, const float *x, size_t n) {
    uint32_t amax_bits = 0; /* as bits: a NaN or an infinity is larger than every finite value */
    for (size_t i = 0; i < n; i++) {
        uint32_t b = ms_f32_bits(x[i]) & 0x7fffffffu;
        amax_bits = b > amax_bits ? b : amax_bits;
    }
    float amax = ms_f32_from_bits(amax_bits);
    bool finite = amax_bits < 0x7f800000u;
    if (!finite || amax < 0x1p-100f) {
        for (size_t i = 0; i < n; i++) q[i] = 0;
        *scale = finite ? 0.0f : ms_f32_from_bits(0x7fc00000u);
        return finite;
    }
    float inv = 127.0f / amax;
    for (size_t i = 0; i < n; i++) {
        int32_t v = round_even(x[i] * inv);
        q[i] = (int8_t)(v < -127 ? -127 : v > 127 ? 127 : v);
    }
    *scale = amax / 127.0f;
    return true;
}
