/* q8.h: int8 with one f32 scale per group of inputs, and the layout of Q8 weights in memory.
 *
 * A weight [rows][cols] is cut into blocks of 8 rows (the last block may have fewer, nr) and groups of 128 columns
 *   (the last may be shorter).  data: [block][group][row 0..nr-1][columns of the group]; scales: [block][group][row].
 *   So data is exactly rows * cols bytes and scales rows * groups floats.
 * Threads: pure functions.
 */
#ifndef MS_QUANT_Q8_H
#define MS_QUANT_Q8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MS_Q8_WEIGHT_GROUP = 128, MS_Q8_BLOCK_ROWS = 8 };

/* Quantises one group of n values (docs/numerics.md, section 2).  A non-finite value gives q = 0, scale = NaN and
 * returns false. */
bool ms_q8_group(int8_t *q, float *scale, const float *x, size_t n);

static inline uint32_t ms_q8_groups(uint32_t cols) {
    return cols / MS_Q8_WEIGHT_GROUP + (cols % MS_Q8_WEIGHT_GROUP != 0);
}

/* Columns in group g. */
static inline uint32_t ms_q8_group_cols(uint32_t cols, uint32_t g) {
    uint32_t left = cols - g * MS_Q8_WEIGHT_GROUP;
    return left < MS_Q8_WEIGHT_GROUP ? left : (uint32_t)MS_Q8_WEIGHT_GROUP;
}

/* Rows in the block of row r. */
static inline uint32_t ms_q8_block_rows(uint32_t rows, uint32_t r) {
    uint32_t left = rows - r / MS_Q8_BLOCK_ROWS * MS_Q8_BLOCK_ROWS;
    return left < MS_Q8_BLOCK_ROWS ? left : (uint32_t)MS_Q8_BLOCK_ROWS;
}

/* Byte offset in data of group g of row r. */
static inline size_t ms_q8_data_offset(uint32_t rows, uint32_t cols, uint32_t r, uint32_t g) {
    size_t first = (size_t)(r / MS_Q8_BLOCK_ROWS) * MS_Q8_BLOCK_ROWS;
    size_t before = (size_t)g * MS_Q8_WEIGHT_GROUP * ms_q8_block_rows(rows, r);
    return first * cols + before + (r % MS_Q8_BLOCK_ROWS) * (size_t)ms_q8_group_cols(cols, g);
}

/* Index in scales of group g of row r. */
static inline size_t ms_q8_scale_index(uint32_t rows, uint32_t cols, uint32_t r, uint32_t g) {
    size_t first = (size_t)(r / MS_Q8_BLOCK_ROWS) * MS_Q8_BLOCK_ROWS;
    return first * ms_q8_groups(cols) + (size_t)g * ms_q8_block_rows(rows, r) + r % MS_Q8_BLOCK_ROWS;
}

#endif
