/* mxfp4.h: MXFP4 experts: E2M1 codes with one E8M0 scale byte per 32 inputs, and the slot layout.
 *
 * An expert has three matrices over latent width `hidden` and inner width `inner`:
 *   w1 (gate) [inner][hidden], w3 (up) [inner][hidden], w2 (down) [hidden][inner].
 * Source bytes (checkpoint order): the three matrices in the order that the shape names, each packed, then its scales,
 *   row-major; the even input is in the low nibble.
 * Slot layout, the only one that kernels know: tiles of 32 whole rows, in the order w1 rows 0..31, w3 rows 0..31,
 *   w1 rows 32..63, w3 rows 32..63, ..., then the tiles of w2.  A tile with G groups a row:
 *     nibbles [g][row 0..31][16 bytes], then scales [g][row 0..31].
 * Both have the same size.  hidden and inner are multiples of 32.
 * Threads: pure functions.
 */
#ifndef MS_QUANT_MXFP4_H
#define MS_QUANT_MXFP4_H

#include "base/error.h"

typedef enum ms_expert_order { MS_ORDER_W1_W2_W3, MS_ORDER_W2_W1_W3 } ms_expert_order;

typedef struct ms_expert_shape {
    uint32_t hidden, inner;
    ms_expert_order order; /* of the source; slots have one layout */
} ms_expert_shape;

typedef enum ms_expert_matrix { MS_W1, MS_W3, MS_W2 } ms_expert_matrix;

extern const float ms_e2m1[16];         /* values */
extern const int8_t ms_e2m1_doubled[16]; /* 2 x values */

bool ms_expert_shape_valid(ms_expert_shape s); /* multiples of 32, non-zero, sizes fit */
size_t ms_expert_bytes(ms_expert_shape s);     /* source and slot */
uint32_t ms_expert_rows(ms_expert_shape s, ms_expert_matrix m);
uint32_t ms_expert_groups(ms_expert_shape s, ms_expert_matrix m); /* 32-input groups a row */
/* Byte offset in a slot of the tile that holds row r (r / 32) of matrix m. */
size_t ms_expert_tile_offset(ms_expert_shape s, ms_expert_matrix m, uint32_t tile);

/* 2^(e - 127); e = 255 gives NaN. */
float ms_e8m0(uint8_t e);

/* Source bytes to slot layout.  `source` has any alignment.  Scale byte 255 is MS_ERR_FORMAT naming matrix, row and group; the
 * slot's contents are then undefined. */
ms_status ms_expert_install(void *slot, const uint8_t *source, ms_expert_shape s, ms_error *err);
/* The same in independent pieces, for several threads: tiles 0 .. ms_expert_tiles - 1 fill the slot.  False: a scale
 * byte of the tile is 255; ms_expert_check then gives the error. */
uint32_t ms_expert_tiles(ms_expert_shape s);
bool ms_expert_install_tile(void *slot, const uint8_t *source, ms_expert_shape s, uint32_t tile);
ms_status ms_expert_check(const uint8_t *source, ms_expert_shape s, ms_error *err);
/* Slot layout back to source bytes. */
void ms_expert_extract(uint8_t *source, const void *slot, ms_expert_shape s);

/* Decodes row r of matrix m of a slot to f32 (exact). out[32 * groups]. */
void ms_expert_row(float *out, const void *slot, ms_expert_shape s, ms_expert_matrix m, uint32_t row);

#endif
