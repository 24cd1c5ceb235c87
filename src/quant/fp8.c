#include "quant/fp8.h"

#include "base/bytes.h"

float ms_e4m3(uint8_t code) {
    uint32_t magnitude = code & 0x7Fu, sign = (uint32_t)(code & 0x80u) << 24;
    if (magnitude == 0x7F) return ms_f32_from_bits(0x7fc00000u | sign);
    /* Exponent 0 with the implicit one that it does not have, which is then taken off: no f32 subnormal on the way. */
    float x = magnitude < 8 ? ms_f32_from_bits((magnitude << 20) + (121u << 23)) - 0x1p-6f
                            : ms_f32_from_bits((magnitude << 20) + (120u << 23));
    return ms_f32_from_bits(ms_f32_bits(x) | sign);
}
