/* block_install.h: compressed experts on their way from staging into slots, for the expert service.
 *
 * On a backend whose slots are host memory a block is decoded straight into its slot by the backend's workers.  A
 * device that can decode gets the block; for one that cannot, workers of its own decode into a pinned buffer in slot
 * layout, which is uploaded.
 *
 * Owns: expanded tables of one layer, buffers, workers.  Does not own: store, backend.
 * Threads: the inference thread.
 */
#ifndef MS_NN_BLOCK_INSTALL_H
#define MS_NN_BLOCK_INSTALL_H

#include "backend/backend.h"
#include "store/mzg2_store.h"

typedef struct ms_block_install ms_block_install;

/* A backend without install_block gets workers for all processors. */
ms_status ms_block_install_create(ms_block_install **out, ms_backend *be, const ms_mzg2_store *store,
                                  ms_expert_shape shape, ms_error *err);
void ms_block_install_destroy(ms_block_install *b);
/* Bytes that it allocates: on the host, and in the backend's memory. */
void ms_block_install_bytes(const ms_backend *be, ms_expert_shape shape, uint64_t *host, uint64_t *device);

/* `data`: the stored bytes of an expert.  Returns when they may be read over. */
ms_status ms_block_install_run(ms_block_install *b, void *slot, uint32_t moe_layer, uint32_t expert,
                               const uint8_t *data, ms_error *err);
uint64_t ms_block_install_ns(const ms_block_install *b); /* spent in ms_block_install_run */

#endif
