/* mzg2_encode.h: fitting tables to experts, and writing blocks with them.
 *
 * Fitting: ms_mzg2_fit_add for a sample of the layer's experts, in a fixed order, then ms_mzg2_fit_sets.  Encoding: one
 * ms_mzg2_encoder a thread.  All take canonical source bytes (ms_mzg2_clear_zeros).
 *
 * Owns: a fit its counters, an encoder its encoding tables.
 * Threads: one a object.  Results depend on the sample and the bytes alone.
 */
#ifndef MS_STORE_MZG2_ENCODE_H
#define MS_STORE_MZG2_ENCODE_H

#include "store/mzg2.h"

enum { MS_MZG2_FIT_TABLES = 8 }; /* nibble tables that a fit gives at most */

/* Replaces every nibble 8 of the packed parts by 0. */
void ms_mzg2_clear_zeros(uint8_t *source, ms_expert_shape s);

typedef struct ms_mzg2_fit ms_mzg2_fit;

typedef struct ms_mzg2_fit_options {
    uint32_t tables;         /* 1..16; 0: MS_MZG2_FIT_TABLES */
    uint32_t column_classes; /* 1..8; 0: 8 */
} ms_mzg2_fit_options;

ms_status ms_mzg2_fit_create(ms_mzg2_fit **out, ms_expert_shape s, const ms_mzg2_fit_options *o, ms_error *err);
void ms_mzg2_fit_destroy(ms_mzg2_fit *f);
void ms_mzg2_fit_add(ms_mzg2_fit *f, const uint8_t *canonical);
ms_status ms_mzg2_fit_sets(ms_mzg2_fit *f, ms_mzg2_set out[MS_MZG2_SETS], ms_error *err);
uint64_t ms_mzg2_fit_bytes(ms_expert_shape s); /* what a fit allocates */

typedef struct ms_mzg2_encoder ms_mzg2_encoder;

ms_status ms_mzg2_encoder_create(ms_mzg2_encoder **out, ms_expert_shape s, const ms_mzg2_set sets[MS_MZG2_SETS],
                                 uint32_t column_classes, ms_error *err);
void ms_mzg2_encoder_destroy(ms_mzg2_encoder *e);
/* Writes the block of an expert: `out` has ms_mzg2_block_max_bytes.  *payload is its payload length, *stored its length
 * with the zeros behind it. */
void ms_mzg2_encode(ms_mzg2_encoder *e, uint8_t *out, const uint8_t *canonical, uint32_t expert, uint32_t *payload,
                    uint32_t *stored);

#endif
