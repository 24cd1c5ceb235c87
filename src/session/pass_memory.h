/* pass_memory.h: what passes of at most so many rows need beside state and weights: the lane's workspace, embedding rows, and
 * the backend's scratch.
 *
 * A session holds that of the plan's usual_rows.  For a prompt that is worth it, ms_pass_memory_borrow trades it against that
 * of longer passes, whose place the last cache slots give, and ms_pass_memory_return undoes that.
 *
 * Owns: buffers.  Does not own: the engine.  Threads: the inference thread.
 * Invariants: rows == 0: there are no buffers.  The slots are lent while and only while a session holds more than usual_rows.
 * Errors: MS_ERR_MEMORY; then rows may be 0, and the next ms_pass_memory_create tries again.
 */
#ifndef MS_SESSION_PASS_MEMORY_H
#define MS_SESSION_PASS_MEMORY_H

#include "session/engine.h"

typedef struct ms_pass_memory {
    uint32_t rows;
    void **workspace;            /* in the order of lane->workspace */
    ms_workspace_item *items;
    uint32_t item_count;
    float *embedding;            /* device [rows][hidden] */
    uint16_t *embed_host;        /* host, one pass of embedding rows, bf16 */
    float *embed_f32;            /* host, the same widened */
} ms_pass_memory;

/* Zeroed by writing: what the plan counts is resident from the start, so that nothing grows while the model runs. */
ms_status ms_host_alloc(const char *what, uint64_t bytes, void **out, ms_error *err);

/* Nothing happens when it holds that many rows already. */
ms_status ms_pass_memory_create(ms_pass_memory *m, ms_engine *e, uint32_t rows, ms_error *err);
void ms_pass_memory_destroy(ms_pass_memory *m, ms_engine *e);

/* Rows of a pass with which `count` tokens are read best: more than usual_rows when the experts that fewer passes do not read
 * again outnumber the slots that they borrow. */
uint32_t ms_pass_rows(const ms_engine *e, size_t count);
ms_status ms_pass_memory_borrow(ms_pass_memory *m, ms_engine *e, uint32_t rows, ms_error *err);
ms_status ms_pass_memory_return(ms_pass_memory *m, ms_engine *e, ms_error *err);

#endif
