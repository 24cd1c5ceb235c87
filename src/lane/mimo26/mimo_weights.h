/* mimo_weights.h: the resident weights of a MiMo V2.6 model, by layer and part.
 *
 * Owned by the engine; filled by the loader from mimo_statics' list.  A part a layer does not have stays zero.
 */
#ifndef MS_LANE_MIMO26_WEIGHTS_H
#define MS_LANE_MIMO26_WEIGHTS_H

#include "lane/lane.h"
#include "lane/mimo26/mimo_layout.h"

typedef struct mimo_layer {
    ms_weight input_norm, post_norm;
    ms_weight q, k, v, o; /* q, k, v: the fused matrix in order of heads */
    ms_weight sink;
    ms_weight gate, up, down; /* dense layers */
    ms_weight router, router_bias;
} mimo_layer;

typedef struct mimo_weights {
    mimo_layer layer[MIMO_MAX_LAYERS];
    ms_weight final_norm, lm_head;
} mimo_weights;

ms_status mimo_statics(const void *config, ms_static_format format, ms_static_list *out, ms_error *err);

/* Graph and what it needs. */
uint32_t mimo_state_parts(const void *config, ms_precision precision, ms_state_part *parts);
uint32_t mimo_workspace(const void *config, uint32_t rows, ms_workspace_item *items);
void mimo_scratch_need(const void *config, uint32_t rows, uint64_t context, ms_scratch_need *out);
ms_status mimo_forward(const ms_run *run, ms_error *err);

#endif
