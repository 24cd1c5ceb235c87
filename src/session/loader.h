/* loader.h: reads a lane's resident weights from the checkpoint into a backend.
 *
 * Owns: nothing; the weights struct belongs to the engine.  Threads: the inference thread (the backend may convert in parallel).
 */
#ifndef MS_SESSION_LOADER_H
#define MS_SESSION_LOADER_H

#include "lane/lane.h"

/* Element count as stored: a vector may be stored longer or shorter than its matrix form says (A_log), the file decides. */
uint32_t ms_static_cols(const ms_checkpoint *c, const ms_static_item *item);
uint64_t ms_static_item_bytes(const ms_checkpoint *c, const ms_static_item *item);

/* Creates and fills every weight; on failure those made so far are destroyed.  progress(arg, done, total) counts source bytes. */
ms_status ms_statics_load(ms_backend *be, const ms_checkpoint *c, const ms_static_list *list, void *weights,
                          void (*progress)(void *arg, uint64_t done, uint64_t total), void *arg, ms_error *err);
void ms_statics_unload(ms_backend *be, const ms_static_list *list, void *weights);

#endif
