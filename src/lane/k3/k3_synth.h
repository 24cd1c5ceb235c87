/* k3_synth.h: writes a random checkpoint in the official Kimi K3 layout, of any size (lane/synth.h).
 *
 * Files: model-NNNNN-of-NNNNNN.safetensors (one a layer, one for the rest, two with vision dummies when asked for: 3 +
 * 165 tensors), index, config.json.
 *
 * Owns, threads, errors: as lane/synth.h.
 */
#ifndef MS_LANE_K3_SYNTH_H
#define MS_LANE_K3_SYNTH_H

#include "lane/k3/k3_config.h"
#include "lane/synth.h"

ms_status k3_synth_write(const char *dir, const k3_config *cfg, const ms_synth_options *opt, ms_error *err);
ms_status k3_synth_measure(const k3_config *cfg, const ms_synth_options *opt, ms_synth_report *out, ms_error *err);

/* For ms_synth_plan_shard; keeps the pointer. */
ms_synth_model k3_synth_model(const k3_config *cfg);
/* config.json of these numbers. */
void k3_synth_config_text(ms_text *out, const k3_config *c, bool vision);

/* The official model's numbers, for presets and tests; the engine reads config.json. */
void k3_config_official(k3_config *out);

#endif
