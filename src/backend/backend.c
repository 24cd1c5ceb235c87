#include "backend/backend.h"

#include "base/bytes.h"
#include "quant/q8.h"

_Static_assert((int)MS_Q8_GROUP == (int)MS_Q8_WEIGHT_GROUP, "one Q8 group size");

uint64_t ms_weight_bytes(ms_format format, uint32_t rows, uint32_t cols) {
    uint64_t elements = (uint64_t)rows * cols, bytes = 0;
    if (format == MS_FORMAT_Q8 || format == MS_FORMAT_FP8) {
        /* scales are at most 4 bytes for each element: the sum stays far below 2^64 unless the product is near it */
        uint64_t scales = (uint64_t)rows * ms_q8_groups(cols);
        if (!ms_mul_u64(scales, sizeof(float), &scales) || !ms_add_u64(elements, scales, &bytes)) return UINT64_MAX;
        return bytes;
    }
    return ms_mul_u64(elements, format == MS_FORMAT_BF16 ? 2 : 4, &bytes) ? bytes : UINT64_MAX;
}
