/* mzg2_manifest.h: what a store says of itself: manifest.json, and the identity of the checkpoint it was made from.
 *
 * The manifest's last member is the SHA-256 of the text that the manifest would be without it.
 *
 * Owns: a ms_mzg2_manifest its lists.  Threads: plain values.
 * Errors: MS_ERR_FORMAT naming file, field, expected and found.
 */
#ifndef MS_STORE_MZG2_MANIFEST_H
#define MS_STORE_MZG2_MANIFEST_H

#include "store/checkpoint.h"
#include "store/mzg2.h"
#include "store/sha256.h"

/* The experts that a store is made of, or is compared with.  A store knows one order of an expert's matrices, w1, w2,
 * w3, whatever that of the checkpoint is. */
typedef struct ms_mzg2_source {
    const ms_checkpoint *checkpoint;
    const ms_expert_table *experts; /* extents in the checkpoint's shards */
    ms_expert_shape shape;          /* in the store's order */
    ms_expert_order order;          /* of the checkpoint */
    const char *lane;
} ms_mzg2_source;
ms_mzg2_source ms_mzg2_source_of(const ms_checkpoint *c, const ms_expert_table *experts, ms_expert_shape shape,
                                 const char *lane);

/* Which checkpoint, and which experts of it.  `probe` is the SHA-256 of the first bytes of some experts of every layer,
 * so that other weights of the same layout are told apart without reading them all. */
typedef struct ms_mzg2_identity {
    char lane[32];
    uint64_t layout_digest;
    uint8_t probe[MS_SHA256_BYTES];
    uint32_t layers, experts;
    ms_expert_shape shape;
} ms_mzg2_identity;

typedef struct ms_mzg2_parameters {
    uint32_t tables, column_classes;
    uint32_t sample; /* most experts of a layer that tables are fitted to */
    bool signs;      /* with cold/ */
} ms_mzg2_parameters;

typedef struct ms_mzg2_layer_record {
    uint32_t layer;
    uint64_t bytes, payload_bytes;
    uint8_t sha[MS_SHA256_BYTES], source_sha[MS_SHA256_BYTES], canonical_sha[MS_SHA256_BYTES];
    uint64_t signs_bytes; /* 0: no file of signs */
    uint8_t signs_sha[MS_SHA256_BYTES];
} ms_mzg2_layer_record;

typedef struct ms_mzg2_shard_record {
    char file[256]; /* base name */
    uint64_t bytes;
    uint8_t sha[MS_SHA256_BYTES];
} ms_mzg2_shard_record;

typedef struct ms_mzg2_manifest {
    ms_mzg2_identity identity;
    ms_mzg2_parameters parameters;
    ms_mzg2_layer_record *layers; /* [identity.layers], ascending */
    ms_mzg2_shard_record *shards; /* that hold experts */
    size_t shard_count;
    uint8_t sha[MS_SHA256_BYTES]; /* as the file states it, checked */
} ms_mzg2_manifest;

/* Reads the probes. */
ms_status ms_mzg2_identify(ms_mzg2_identity *out, const ms_mzg2_source *source, ms_error *err);
/* MS_ERR_FORMAT naming `where` and the first difference. */
ms_status ms_mzg2_same_identity(const ms_mzg2_identity *want, const ms_mzg2_identity *found, const char *where,
                                ms_error *err);

/* JSON members, for the manifest and the state of a build. */
void ms_mzg2_write_identity(ms_text *out, const ms_mzg2_identity *id, const ms_mzg2_parameters *p);
void ms_mzg2_write_layer(ms_text *out, const ms_mzg2_layer_record *r);
void ms_mzg2_write_shard(ms_text *out, const ms_mzg2_shard_record *r);
ms_status ms_mzg2_parse_layer(ms_mzg2_layer_record *out, const ms_json *v, const char *where, ms_error *err);
ms_status ms_mzg2_parse_shard(ms_mzg2_shard_record *out, const ms_json *v, const char *where, ms_error *err);

void ms_mzg2_manifest_write(ms_text *out, const ms_mzg2_manifest *m);
/* DIR/manifest.json.  A folder without one is not a store: MS_ERR_FORMAT says so. */
ms_status ms_mzg2_manifest_read(ms_mzg2_manifest *out, const char *dir, ms_error *err);
void ms_mzg2_manifest_free(ms_mzg2_manifest *m);

/* "layer-001.mzg2", "cold/layer-001.nz" */
enum { MS_MZG2_NAME = 32 };
void ms_mzg2_layer_name(char out[MS_MZG2_NAME], uint32_t layer);
void ms_mzg2_signs_name(char out[MS_MZG2_NAME], uint32_t layer);

/* Members of a JSON object with their checks, named `where`: field in messages. */
ms_status ms_mzg2_json_u64(uint64_t *out, const ms_json *v, const char *key, uint64_t most, const char *where,
                           ms_error *err);
ms_status ms_mzg2_json_sha(uint8_t out[MS_SHA256_BYTES], const ms_json *v, const char *key, const char *where,
                           ms_error *err);
/* Splits a text that ends with ,"KEY":"64 hex digits"} and checks that this is the SHA-256 of what is before it, closed
 * by a brace. */
ms_status ms_mzg2_check_sealed(uint8_t sha[MS_SHA256_BYTES], const char *text, size_t length, const char *key,
                               const char *where, ms_error *err);
/* Appends that end to a text that lacks its closing brace. */
ms_status ms_mzg2_seal(ms_text *text, const char *key, uint8_t sha[MS_SHA256_BYTES], ms_error *err);

#endif
