/* fp8.h: FP8 e4m3 (finite variant) codes, and rows of them with block scales.
 *
 * A code has 1 sign, 4 exponent and 3 mantissa bits, bias 7.  Exponent 0 is subnormal: m * 2^-9.  0x7F and 0xFF are
 * NaN; there are no infinities, the largest value is 448.  Every value is exact in f32. A row record is how rows of an
 * FP8 matrix travel from file to backend: one f32 scale for each 128 columns (the last group may be shorter), then one
 * code a column.  value = code * scale, one rounding in f32. Threads: pure functions.
 */
#ifndef MS_QUANT_FP8_H
#define MS_QUANT_FP8_H

#include "quant/q8.h"

/* NaN for 0x7F and 0xFF. */
float ms_e4m3(uint8_t code);

static inline size_t ms_fp8_record_bytes(uint32_t cols) { return (size_t)ms_q8_groups(cols) * sizeof(float) + cols; }

#endif
