/* rope.h: the angles of rotary position encoding, made on the host for every backend alike (docs/numerics.md).
 *
 * Invariants: built from double + - * / and comparisons only, so the bits are the same on every machine; no libm
 * function takes part. Threads: pure functions.
 */
#ifndef MS_NN_ROPE_H
#define MS_NN_ROPE_H

#include <stdint.h>

/* theta^(-2 j / rotary) for j < rotary / 2, each rounded to f32.  1 <= theta < 2^40. */
void ms_rope_frequencies(float *out, double theta, uint32_t rotary);

/* For rows of positions first, first + 1, ...: out [rows][rotary]: cosines of position * frequency (a f32 product of
 * the position as f32), then the sines.  Positions below 2^32. */
void ms_rope_rows(float *out, const float *frequencies, uint32_t rotary, uint64_t first, uint32_t rows);

#endif
