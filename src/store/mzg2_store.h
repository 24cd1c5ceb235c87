/* mzg2_store.h: a finished store, opened for reading experts.
 *
 * Opening reads the manifest and the front of every layer file and checks all of it, and that the store was made from
 * the checkpoint at hand; no block is read.
 *
 * Owns: fronts and paths.  Threads: immutable after open.
 * Errors: MS_ERR_FORMAT and MS_ERR_UNSUPPORTED naming file, field, expected, found; MS_ERR_IO for a missing file.
 */
#ifndef MS_STORE_MZG2_STORE_H
#define MS_STORE_MZG2_STORE_H

#include "store/mzg2_manifest.h"

typedef struct ms_mzg2_store ms_mzg2_store;

/* manifest_sha: NULL, or the store's manifest must have this digest, and weights are not compared (a bundle, which has
 * no source to compare with). */
ms_status ms_mzg2_store_open(ms_mzg2_store **out, const char *dir, const ms_mzg2_source *source,
                             const uint8_t *manifest_sha, ms_error *err);
void ms_mzg2_store_close(ms_mzg2_store *s); /* NULL is fine */

const ms_mzg2_layer *ms_mzg2_store_layer(const ms_mzg2_store *s, uint32_t moe_layer);
const char *ms_mzg2_store_path(const ms_mzg2_store *s, uint32_t moe_layer);
uint64_t ms_mzg2_store_memory(const ms_mzg2_store *s); /* bytes that it keeps */
/* Average share of an expert's bytes that reading it from here saves. */
double ms_mzg2_store_saving(const ms_mzg2_store *s);

/* Points the table's extents into the store: from now on they are blocks, `shard` the routed layer. */
void ms_mzg2_store_bind(const ms_mzg2_store *s, ms_expert_table *table);

#endif
