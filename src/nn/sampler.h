/* sampler.h: the random source of the sampler, apart so that its published vectors can be checked.
 * The sampler itself is ms_sampler_pick of moonshine.h; docs/formats.md, "Sampler", defines both.
 *
 * Threads: pure functions.
 */
#ifndef MS_NN_SAMPLER_H
#define MS_NN_SAMPLER_H

#include <stdint.h>

/* Philox4x32-10: four 32-bit words from a 128-bit counter and a 64-bit key. */
void ms_philox4x32(uint32_t out[4], const uint32_t counter[4], const uint32_t key[2]);

/* The draw'th number of a seed, in [0, 1), a multiple of 2^-53. */
double ms_sampler_uniform(int64_t seed, uint64_t draw);

#endif
