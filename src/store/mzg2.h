/* mzg2.h: the compressed expert store's layer file and codec (docs/formats.md, "MZG2").
 *
 * A layer file holds the experts of one routed layer, each in one block that is read with one aligned request.  A block
 * is a list of tiles of 32 rows; each is coded by 32 interleaved rANS lanes, or raw.  Decoding gives the slot layout
 * (quant/mxfp4.h) of the canonical bytes: the source with every negative zero cleared.
 *
 * Owns: a ms_mzg2_layer owns its index.
 * Threads: a parsed layer, expanded tables and an opened block may be read by many threads; decoding is pure.
 * Invariants: whatever the bytes are, decoding never reads outside the block nor writes outside the tile.
 * Errors: MS_ERR_FORMAT naming field, expected and found; the caller puts the file in front.
 */
#ifndef MS_STORE_MZG2_H
#define MS_STORE_MZG2_H

#include "quant/mxfp4.h"

enum {
    MS_MZG2_VERSION = 1,
    MS_MZG2_ALIGN = 4096, /* of blocks, in offset and stored length */
    MS_MZG2_HEADER_BYTES = 512,
    MS_MZG2_ENTRY_BYTES = 32,  /* of the index */
    MS_MZG2_TAIL_BYTES = 1152, /* at least so many bytes lie behind a payload */
    MS_MZG2_SETS = 3,          /* one a matrix kind, in the order of ms_expert_matrix */
    MS_MZG2_CLASSES = 8,
    MS_MZG2_DELTAS = 32,
    MS_MZG2_MAX_TABLES = 16,
    MS_MZG2_PAIR_BITS = 12,
    MS_MZG2_SCALE_BITS = 8,
    MS_MZG2_LANES = 32,
    MS_MZG2_TILE_HEAD = 160, /* row bytes and states of a coded tile */
    MS_MZG2_SHA_BYTES = 32
};

/* ------------------------------------------------------------------ layer file */

typedef struct ms_mzg2_set {
    uint32_t tables; /* nibble tables in use */
    uint8_t e_base;
    uint32_t nmap[MS_MZG2_CLASSES][MS_MZG2_DELTAS]; /* digit q: the nibble table of byte columns of class q */
    uint16_t nibble[MS_MZG2_MAX_TABLES][256];       /* frequencies, sum 2^12 */
    uint16_t scale[MS_MZG2_CLASSES][256];           /* sum 2^8 */
} ms_mzg2_set;

typedef struct ms_mzg2_entry {
    uint64_t offset;
    uint32_t stored_bytes, payload_bytes, crc; /* CRC-32 of the payload */
} ms_mzg2_entry;

typedef struct ms_mzg2_layer {
    uint32_t layer, experts;
    ms_expert_shape shape;
    uint64_t first_block, file_bytes;
    uint8_t source_sha[MS_MZG2_SHA_BYTES], canonical_sha[MS_MZG2_SHA_BYTES];
    ms_mzg2_set set[MS_MZG2_SETS];
    ms_mzg2_entry *index; /* [experts] */
} ms_mzg2_layer;

/* Bytes in front of the first block, from the first MS_MZG2_HEADER_BYTES of a file of file_bytes: so many
 * ms_mzg2_layer_parse needs.  Checks the header's own fields and CRC. */
ms_status ms_mzg2_front_bytes(uint64_t *out, const uint8_t *header, uint64_t file_bytes, ms_error *err);
/* Parses the front of a layer file: `length` bytes as ms_mzg2_front_bytes says.  Frequencies, maps, index entries and
 * all CRCs are checked. */
ms_status ms_mzg2_layer_parse(ms_mzg2_layer *out, const uint8_t *front, size_t length, uint64_t file_bytes,
                              ms_error *err);
/* Reads and parses the front of an open file. */
ms_status ms_mzg2_layer_read(ms_mzg2_layer *out, int fd, const char *path, uint64_t file_bytes, ms_error *err);
void ms_mzg2_layer_free(ms_mzg2_layer *l);

/* Bytes of the front with these tables and so many experts, a multiple of MS_MZG2_ALIGN. */
uint64_t ms_mzg2_layer_front_bytes(const ms_mzg2_set set[MS_MZG2_SETS], uint32_t experts);
/* Writes the front, l->first_block bytes: the inverse of ms_mzg2_layer_parse. */
void ms_mzg2_layer_write(uint8_t *front, const ms_mzg2_layer *l);

/* ------------------------------------------------------------------ tables in decoding form */

/* An entry: symbol | frequency << 8 | (slot - start of the symbol) << 20. */
typedef struct ms_mzg2_tables {
    struct {
        uint32_t nibble[MS_MZG2_MAX_TABLES][1 << MS_MZG2_PAIR_BITS];
        uint32_t scale[MS_MZG2_CLASSES][1 << MS_MZG2_SCALE_BITS];
        uint32_t nmap[MS_MZG2_CLASSES][MS_MZG2_DELTAS];
        uint32_t e_base;
    } set[MS_MZG2_SETS];
} ms_mzg2_tables;
void ms_mzg2_tables_expand(ms_mzg2_tables *out, const ms_mzg2_layer *l);

/* ------------------------------------------------------------------ blocks */

typedef struct ms_mzg2_block {
    const uint8_t *data;
    size_t length;
    uint32_t expert, tiles, payload_bytes;
    ms_expert_shape shape;
    const uint8_t *columns[MS_MZG2_SETS]; /* column classes */
} ms_mzg2_block;

/* Bytes in front of the first tile. */
size_t ms_mzg2_block_head_bytes(ms_expert_shape s);
/* Most bytes a block may take, tail and padding included: what a read buffer must hold. */
size_t ms_mzg2_block_max_bytes(ms_expert_shape s);

/* Checks head, tile directory and column classes of a block of `length` bytes (the stored length). */
ms_status ms_mzg2_block_open(ms_mzg2_block *out, const uint8_t *data, size_t length, uint32_t expert,
                             ms_expert_shape shape, ms_error *err);

typedef enum ms_mzg2_fault {
    MS_MZG2_GOOD,
    MS_MZG2_BAD_STATE, /* a first state below 2^16 */
    MS_MZG2_BAD_WORDS, /* words are missing or left over */
    MS_MZG2_BAD_END,   /* a last state is not 2^16 */
    MS_MZG2_BAD_HASH
} ms_mzg2_fault;
const char *ms_mzg2_fault_text(ms_mzg2_fault f);

typedef struct ms_mzg2_codec ms_mzg2_codec; /* one implementation of the decoder */

/* NULL: the best for this CPU; else "scalar", "avx2" or "avx512".  NULL when there is none of that name here. */
const ms_mzg2_codec *ms_mzg2_codec_find(const char *name);
const char *ms_mzg2_codec_name(const ms_mzg2_codec *c);

/* Decodes tiles [first, first + count) into a slot.  On a fault *bad is the tile; its bytes, and those of the other
 * tiles of the call, are undefined. */
ms_mzg2_fault ms_mzg2_decode_tiles(const ms_mzg2_codec *c, void *slot, const ms_mzg2_block *b, const ms_mzg2_tables *t,
                                   uint32_t first, uint32_t count, uint32_t *bad);
/* The whole block; the error names the tile and what is wrong. */
ms_status ms_mzg2_decode(const ms_mzg2_codec *c, void *slot, const ms_mzg2_block *b, const ms_mzg2_tables *t,
                         ms_error *err);
/* For checks against recorded values: the 32 states, and the words used, of a coded tile after the scale step and
 * `pairs` (0..16) pair steps of its first group. */
void ms_mzg2_trace(uint32_t states[MS_MZG2_LANES], uint32_t *words_used, const ms_mzg2_block *b,
                   const ms_mzg2_tables *t, uint32_t tile, unsigned pairs);
ms_status ms_mzg2_fault_fail(ms_mzg2_fault f, uint32_t tile, ms_error *err);

#endif
