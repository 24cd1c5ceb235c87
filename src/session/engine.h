/* engine.h: the inside of ms_engine, for session code and the programs' inspection commands.
 *
 * Owns: config, checkpoint, backend, weights, expert service, plan.  Threads: the inference thread after open.
 */
#ifndef MS_SESSION_ENGINE_H
#define MS_SESSION_ENGINE_H

#include "lane/lane.h"
#include "moonshine/moonshine.h"
#include "store/mzg2_store.h"

/* A model as its headers describe it: nothing resident.  Serves plan, verify and engine. */
typedef struct ms_model {
    const ms_lane *lane;
    void *config;
    ms_lane_info info;
    ms_checkpoint *checkpoint;
    ms_expert_table experts;
    ms_mzg2_store *store; /* where the experts are, when not in the checkpoint; a bundle's, or the one that was chosen */
    const ms_tensor *embed;
} ms_model;
ms_status ms_model_open(ms_model *out, const char *dir, ms_error *err);
void ms_model_close(ms_model *m);
const char *ms_model_source(const ms_model *m);       /* "safetensors", "bundle" */
const char *ms_model_expert_store(const ms_model *m); /* "raw", "mzg2" */

struct ms_engine {
    ms_engine_options options; /* resolved: no zeros left that mean a default */
    char *model_path;
    ms_model model;
    ms_plan *plan;
    ms_backend *backend;
    void *weights;
    ms_static_list statics;
    ms_expert_service *experts;
    uint32_t sessions;
    uint32_t scratch_rows; /* of a pass, for which the backend's scratch is reserved; 0: none is */
    uint32_t logit_rows; /* rows of a logits batch */
};

/* Resolved options and the ledger for a model.  *backend gets the backend that the ledger was made for, without scratch;
 * NULL: it is closed. */
ms_status ms_plan_for_model(ms_plan **out, const ms_model *m, const ms_engine_options *options, ms_engine_options *resolved,
                            ms_backend **backend, ms_error *err);

/* Scratch of the backend for passes of at most `rows` rows; what was reserved is given up first. */
ms_status ms_engine_reserve_scratch(ms_engine *e, uint32_t rows, ms_error *err);

/* Rows of one logits batch. */
uint32_t ms_plan_logit_rows(const ms_lane_info *info, const ms_engine_options *resolved);

#endif
