/* checkpoint.h: a checkpoint directory: config.json, headers of the SafeTensors shards, expert extents.
 *
 * ms_checkpoint_open reads model.safetensors.index.json (without an index: the only shard, model.safetensors), asks
 * the lane which tensors matter, opens only shards that hold at least one of them (others are never opened), parses
 * their headers with every bound checked, and keeps one directory of needed tensors sorted by name.  A tensor the index
 * names and no header has, or the other way round, is an error.  Headers of other tensors in an opened shard are checked for overlap and bounds, then dropped.
 *
 * Owns: names, directory, paths, descriptors.  Payload is read by offset through ms_checkpoint_read or by a reader
 *   that opens ms_checkpoint_shard_path itself.
 * Threads: immutable after open; ms_checkpoint_read may run on many threads.
 * Errors: MS_ERR_FORMAT naming shard, tensor, field, expected, found.
 */
#ifndef MS_STORE_CHECKPOINT_H
#define MS_STORE_CHECKPOINT_H

#include "base/error.h"
#include "base/json.h"
#include "store/safetensors.h"

typedef struct ms_tensor {
    const char *name;
    uint64_t offset, bytes; /* absolute in the shard file */
    uint64_t shape[MS_TENSOR_MAX_DIMS];
    uint16_t shard; /* index for ms_checkpoint_shard_path */
    uint8_t dims;
    uint8_t dtype; /* ms_dtype */
} ms_tensor;

typedef struct ms_checkpoint ms_checkpoint;

/* needed(arg, name, len): whether the lane uses a tensor of this name. */
typedef bool ms_tensor_needed_fn(void *arg, const char *name, size_t len);

/* Reads and parses DIR/config.json (strict JSON, at most 1 MB).  The caller frees the document and text. */
ms_status ms_checkpoint_read_config(const char *dir, ms_json_doc **doc, char **text, ms_error *err);

ms_status ms_checkpoint_open(ms_checkpoint **out, const char *dir, ms_tensor_needed_fn *needed, void *arg,
                             ms_error *err);
void ms_checkpoint_close(ms_checkpoint *c);

const char *ms_checkpoint_dir(const ms_checkpoint *c);
size_t ms_checkpoint_tensor_count(const ms_checkpoint *c);
const ms_tensor *ms_checkpoint_tensor(const ms_checkpoint *c, size_t index); /* sorted by name */
const ms_tensor *ms_checkpoint_find(const ms_checkpoint *c, const char *name);
size_t ms_checkpoint_shard_count(const ms_checkpoint *c); /* opened shards */
const char *ms_checkpoint_shard_path(const ms_checkpoint *c, size_t shard);

typedef struct ms_checkpoint_totals {
    uint64_t indexed_tensors;  /* in the index, all shards */
    uint64_t indexed_shards;
    uint64_t skipped_shards;   /* never opened */
    uint64_t payload_bytes;    /* of needed tensors */
    uint64_t header_bytes;
} ms_checkpoint_totals;
void ms_checkpoint_get_totals(const ms_checkpoint *c, ms_checkpoint_totals *out);

/* A whole number of the index's `metadata`; leaves *out as it is when there is no member of this name. */
ms_status ms_checkpoint_metadata(const ms_checkpoint *c, const char *key, uint64_t *out, ms_error *err);

/* FNV-1a-64 over names, dtypes, shapes, and offsets of the directory and the shards' base names: the layout's
 * identity. */
uint64_t ms_checkpoint_layout_digest(const ms_checkpoint *c);

/* The bundle that the directory is; NULL: a checkpoint.  A bundle has no expert tensors, and the layout digest of the
 * checkpoint it was made from. */
struct ms_bundle;
const struct ms_bundle *ms_checkpoint_bundle(const ms_checkpoint *c);

/* Reads bytes [at, at + length) of a tensor's payload (buffered, any alignment, any thread). */
ms_status ms_checkpoint_read(const ms_checkpoint *c, const ms_tensor *t, uint64_t at, void *to, size_t length,
                             ms_error *err);

/* Reads bytes of an opened shard's file, at an expert's extent for instance. */
ms_status ms_checkpoint_read_shard(const ms_checkpoint *c, size_t number, uint64_t offset, void *to, size_t length,
                                   ms_error *err);

/* Expected tensor, for checks that list all misses at once. */
ms_status ms_checkpoint_expect(const ms_checkpoint *c, const char *name, ms_dtype dtype, unsigned dims,
                               const uint64_t *shape, const ms_tensor **out, ms_error *err);

/* ------------------------------------------------------------------ experts */

enum { MS_EXPERT_PARTS = 6 };

/* How a lane names the parts of an expert, in the order they must lie on disk, with dtype U8 and these shapes. */
typedef struct ms_expert_naming {
    const char *prefix_format; /* printf format with two unsigned: layer, expert */
    const char *suffix[MS_EXPERT_PARTS];
    uint64_t shape[MS_EXPERT_PARTS][2];
} ms_expert_naming;

typedef struct ms_expert_extent {
    uint64_t offset; /* absolute in the shard */
    uint32_t bytes;  /* to read */
    uint16_t shard;  /* of the checkpoint; in a store the routed layer */
} ms_expert_extent;

struct ms_mzg2_store;

typedef struct ms_expert_table {
    uint32_t layer_count, expert_count;
    uint64_t expert_bytes; /* in a slot */
    uint64_t read_bytes;   /* most that one expert takes on disk */
    const struct ms_mzg2_store *store; /* extents are its blocks; NULL: source bytes in the checkpoint's shards */
    uint32_t *layers;          /* [layer_count] model layer index */
    ms_expert_extent *extents; /* [layer_count][expert_count] */
} ms_expert_table;

/* Of a bundle only the sizes: ms_mzg2_store_bind gives the extents.  Else:
 * finds and checks every expert of the given layers: names, dtypes, shapes, and that the six parts follow each
 * other without a gap.  The first violation is the error, naming layer, expert, tensor, expected and found offset. */
ms_status ms_expert_table_build(ms_expert_table *out, const ms_checkpoint *c, const ms_expert_naming *naming,
                                const uint32_t *layers, uint32_t layer_count, uint32_t expert_count, ms_error *err);
void ms_expert_table_free(ms_expert_table *t);

#endif
