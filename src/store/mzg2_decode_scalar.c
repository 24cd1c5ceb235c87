/* mzg2_decode_scalar.c: the decoder as a plain loop: what the other implementations must equal. */
#include "base/bytes.h"
#include "store/mzg2_internal.h"

/* One symbol of one lane; *words moves on when the state takes a word. */
static inline uint32_t step(uint32_t *state, const uint32_t *table, unsigned bits, const uint8_t **words) {
    uint32_t x = *state, entry = table[x & ((1u << bits) - 1)];
    x = (entry >> 8 & 0xfff) * (x >> bits) + (entry >> 20);
    if (x < MZG2_END_STATE) {
        x = x << 16 | ms_le16(*words);
        *words += 2;
    }
    *state = x;
    return entry & 0xff;
}

/* Row byte of lane l: class and base. */
static inline uint32_t scale_step(uint32_t *state, uint32_t *map, const mzg2_job *j, uint32_t l,
                                  const uint8_t **words) {
    uint32_t row = j->tile[l], c = row & 7;
    uint32_t s = step(state, j->scale + (c << MS_MZG2_SCALE_BITS), MS_MZG2_SCALE_BITS, words);
    *map = j->nmap[c * MS_MZG2_DELTAS + (s < MS_MZG2_DELTAS - 1 ? s : MS_MZG2_DELTAS - 1)];
    return (j->e_base + (row >> 3) + s) & 0xff;
}

static inline uint32_t pair_step(uint32_t *state, uint32_t map, const mzg2_job *j, uint32_t column,
                                 const uint8_t **words) {
    const uint32_t *table = j->nibble + ((map >> 4u * j->columns[column] & 15) << MS_MZG2_PAIR_BITS);
    return step(state, table, MS_MZG2_PAIR_BITS, words);
}

static ms_mzg2_fault decode(const mzg2_job *j) {
    uint32_t x[MZG2_LANES], h[MZG2_LANES], m[MZG2_LANES];
    for (uint32_t l = 0; l < MZG2_LANES; l++) {
        x[l] = ms_le32(j->tile + MZG2_LANES + 4 * l);
        h[l] = MZG2_HASH_START ^ l;
        if (x[l] < MZG2_END_STATE) return MS_MZG2_BAD_STATE;
    }
    const uint8_t *words = j->tile + MS_MZG2_TILE_HEAD;
    uint8_t *scales = j->out + (size_t)j->groups * MZG2_LANES * MZG2_GROUP_BYTES;
    for (uint32_t g = 0; g < j->groups; g++) {
        /* a group cannot take more than lies behind the end */
        if (words > j->end) return MS_MZG2_BAD_WORDS;
        for (uint32_t l = 0; l < MZG2_LANES; l++) {
            uint32_t scale = scale_step(&x[l], &m[l], j, l, &words);
            scales[g * MZG2_LANES + l] = (uint8_t)scale;
            h[l] = mzg2_fold(h[l], scale);
        }
        uint8_t *out = j->out + (size_t)g * MZG2_LANES * MZG2_GROUP_BYTES;
        for (uint32_t k = 0; k < MZG2_GROUP_BYTES; k++)
            for (uint32_t l = 0; l < MZG2_LANES; l++)
                out[l * MZG2_GROUP_BYTES + k] = (uint8_t)pair_step(&x[l], m[l], j, g * MZG2_GROUP_BYTES + k, &words);
        for (uint32_t l = 0; l < MZG2_LANES; l++)
            for (uint32_t w = 0; w < 4; w++) h[l] = mzg2_fold(h[l], ms_le32(out + l * MZG2_GROUP_BYTES + 4 * w));
    }
    if (words != j->end) return MS_MZG2_BAD_WORDS;
    for (uint32_t l = 0; l < MZG2_LANES; l++)
        if (x[l] != MZG2_END_STATE) return MS_MZG2_BAD_END;
    return mzg2_hash_end(h) == j->hash ? MS_MZG2_GOOD : MS_MZG2_BAD_HASH;
}

uint32_t mzg2_scalar_trace(uint32_t x[MZG2_LANES], const mzg2_job *j, unsigned pairs) {
    uint32_t m[MZG2_LANES];
    const uint8_t *const begin = j->tile + MS_MZG2_TILE_HEAD, *words = begin;
    for (uint32_t l = 0; l < MZG2_LANES; l++) {
        x[l] = ms_le32(j->tile + MZG2_LANES + 4 * l);
        (void)scale_step(&x[l], &m[l], j, l, &words);
    }
    for (uint32_t k = 0; k < pairs && k < MZG2_GROUP_BYTES; k++)
        for (uint32_t l = 0; l < MZG2_LANES; l++) (void)pair_step(&x[l], m[l], j, k, &words);
    return (uint32_t)(words - begin) / 2;
}

static void run(const mzg2_job *jobs, unsigned count, ms_mzg2_fault *faults) {
    for (unsigned i = 0; i < count; i++) faults[i] = decode(&jobs[i]);
}

const ms_mzg2_codec ms_mzg2_codec_scalar = {.name = "scalar", .run = run, .width = 1};
