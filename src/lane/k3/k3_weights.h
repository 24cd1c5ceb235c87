/* k3_weights.h: the resident weights of a Kimi K3 model, by layer and part.
 *
 * Owned by the engine; filled by the loader from k3_statics' list.  A part a layer does not have stays zero.
 */
#ifndef MS_LANE_K3_WEIGHTS_H
#define MS_LANE_K3_WEIGHTS_H

#include "lane/k3/k3_layout.h"
#include "lane/lane.h"

typedef struct k3_weights {
    /* The two vectors of an AttnRes score are folded into the norm's place; the projection's place stays empty. */
    ms_weight layer[K3_MAX_LAYERS][K3_LAYER_PARTS];
    ms_weight outside[K3_PARTS - K3_LAYER_PARTS];
} k3_weights;

static inline const ms_weight *k3_outside(const k3_weights *w, k3_part part) {
    return &w->outside[part - K3_LAYER_PARTS];
}

ms_status k3_statics(const void *config, ms_static_format format, ms_static_list *out, ms_error *err);

/* Graph and what it needs. */
uint32_t k3_state_parts(const void *config, ms_precision precision, ms_state_part *parts);
uint32_t k3_workspace(const void *config, uint32_t rows, ms_workspace_item *items);
void k3_scratch_need(const void *config, uint32_t rows, uint64_t context, ms_scratch_need *out);
ms_status k3_forward(const ms_run *run, ms_error *err);

#endif
