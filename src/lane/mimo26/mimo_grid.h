/* mimo_grid.h: whether the block scales of the fused matrices are read as they were written.
 *
 * Shapes do not tell how scale blocks lie in a chunk of [Q; K; V]: running through it, or starting anew at K and V. The
 * weights do: a quantiser maps the largest value of a block to the largest code, so under the right reading nearly
 * every block has such a code.
 *
 * Owns: nothing.  Threads: pure but for reading the checkpoint.
 */
#ifndef MS_LANE_MIMO26_GRID_H
#define MS_LANE_MIMO26_GRID_H

#include "base/text.h"
#include "lane/mimo26/mimo_layout.h"

/* Blocks that have a row of K or V, and how many of them have the largest code, under both readings. */
typedef struct mimo_grid {
    uint64_t running, running_full;
    uint64_t restarting, restarting_full;
} mimo_grid;

/* Counts over one matrix of chunks * chunk.rows rows. */
void mimo_grid_count(mimo_grid *g, const uint8_t *codes, uint32_t chunks, const mimo_chunk *chunk, uint32_t cols);

/* Reads the fused matrices of all layers (2.9 GB at the official size) and appends a line.  MS_ERR_FORMAT when the
 * other reading fits better. */
ms_status mimo_grid_check(const ms_checkpoint *c, const mimo_config *cfg, ms_text *report, ms_error *err);

#endif
