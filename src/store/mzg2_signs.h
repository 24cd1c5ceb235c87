/* mzg2_signs.h: the signs of zeros, which canonical bytes have lost, and the cold file that keeps them.
 *
 * An expert's signs: one bit for every zero nibble of its packed parts, w1 then w2 then w3, row-major, low nibble
 * first, 1 for negative; packed from bit 0 up, from a byte border.  A file: E u64 offsets from the file's start, the
 * experts' bits, CRC-32 of all before it. Threads: pure functions.
 */
#ifndef MS_STORE_MZG2_SIGNS_H
#define MS_STORE_MZG2_SIGNS_H

#include "quant/mxfp4.h"

/* Most bytes an expert's signs take. */
size_t ms_mzg2_signs_max_bytes(ms_expert_shape s);
/* Writes the signs of an expert's zeros; gives their bytes. */
size_t ms_mzg2_signs_take(uint8_t *bits, const uint8_t *source, ms_expert_shape s);
/* Puts them back into canonical bytes.  False: `length` is not what the zeros of the expert need. */
bool ms_mzg2_signs_put(uint8_t *canonical, ms_expert_shape s, const uint8_t *bits, size_t length);

#endif
