/* mzg2_internal.h: what the implementations of the tile decoder share. */
#ifndef MS_STORE_MZG2_INTERNAL_H
#define MS_STORE_MZG2_INTERNAL_H

#include "store/mzg2.h"

enum {
    MZG2_LANES = MS_MZG2_LANES,
    MZG2_GROUP_BYTES = 16,
    MZG2_GROUP_WORDS = 17 * MZG2_LANES, /* most words a group takes */
    MZG2_TILE_GROUP = 17 * MZG2_LANES   /* slot bytes of a tile a group */
};
#define MZG2_END_STATE   65536u
#define MZG2_HASH_START  0x9E3779B1u
#define MZG2_HASH_FACTOR 0x85EBCA6Bu

/* One coded tile.  MS_MZG2_TAIL_BYTES may be read behind `end`. */
typedef struct mzg2_job {
    const uint32_t *nibble; /* [16][4096] */
    const uint32_t *scale;  /* [8][256] */
    const uint32_t *nmap;   /* [8][32] */
    uint32_t e_base;
    uint32_t groups;
    const uint8_t *columns; /* [16 * groups], 0..7 */
    const uint8_t *tile;    /* row bytes, states, words */
    const uint8_t *end;     /* behind the last word */
    uint32_t hash;
    uint8_t *out; /* 544 * groups bytes */
} mzg2_job;

struct ms_mzg2_codec {
    const char *name;
    /* Jobs with the same number of groups; faults[i] tells how job i went.  Words lie at even distances from tile. */
    void (*run)(const mzg2_job *jobs, unsigned count, ms_mzg2_fault *faults);
    unsigned width; /* jobs that run best together, at most MZG2_MAX_WIDTH */
};
enum { MZG2_MAX_WIDTH = 4 };

extern const ms_mzg2_codec ms_mzg2_codec_scalar;
#if defined(__x86_64__)
extern const ms_mzg2_codec ms_mzg2_codec_avx2, ms_mzg2_codec_avx512;
#endif

static inline uint32_t mzg2_fold(uint32_t h, uint32_t w) {
    h = (h ^ w) * MZG2_HASH_FACTOR;
    return h ^ h >> 15;
}
static inline uint32_t mzg2_hash_end(const uint32_t h[MZG2_LANES]) {
    uint32_t sum = h[0];
    for (unsigned l = 1; l < MZG2_LANES; l++) sum ^= h[l] << l | h[l] >> (32 - l);
    return sum;
}
/* Decodes the scale step and `pairs` pair steps of the first group: x gets the states; gives the words used. */
uint32_t mzg2_scalar_trace(uint32_t x[MZG2_LANES], const mzg2_job *j, unsigned pairs);
/* Over the slot image of a tile. */
uint32_t mzg2_tile_hash(const uint8_t *tile, uint32_t groups);

#endif
