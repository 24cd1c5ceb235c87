/* loader.h: reads a lane's resident weights from the checkpoint into a backend.
 *
 * Matrices come in pieces of whole rows, several reads ahead, past the page cache; the backend converts one piece while
 * others are read. Owns: nothing; the weights struct belongs to the engine.  Threads: the inference thread (the backend
 * may convert in parallel).
 */
#ifndef MS_SESSION_LOADER_H
#define MS_SESSION_LOADER_H

#include "lane/lane.h"

/* Element count as stored: a vector may be stored longer or shorter than its matrix form says (A_log), the file
 * decides. */
uint32_t ms_static_cols(const ms_checkpoint *c, const ms_static_item *item);
uint64_t ms_static_item_bytes(const ms_checkpoint *c, const ms_static_item *item);

typedef struct ms_load_options {
    uint64_t buffer_bytes; /* of read buffers, or one buffer if that is more; they are gone when the call returns */
    bool buffered, no_uring;
    void (*progress)(void *arg, uint64_t done, uint64_t total); /* source bytes; may be NULL */
    void *arg;
} ms_load_options;

/* Creates and fills every weight; on failure all of them are destroyed. */
ms_status ms_statics_load(ms_backend *be, const ms_checkpoint *c, const ms_static_list *list, void *weights,
                          const ms_load_options *options, ms_error *err);
void ms_statics_unload(ms_backend *be, const ms_static_list *list, void *weights);

#endif
