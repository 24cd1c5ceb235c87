/* mimo_synth.h: writes a random checkpoint in the official MiMo V2.6 layout, of any size (lane/synth.h).
 *
 * Files: model_pp0_epN_shard0.safetensors, each with four experts of every MoE layer (the first also with all dense
 *   tensors), index with metadata.tp_size, config.json.  With vision dummies: tensors of the skipped prefixes in the
 * first shard, and model_mtp.safetensors.
 *
 * Owns, threads, errors: as lane/synth.h.
 */
#ifndef MS_LANE_MIMO26_SYNTH_H
#define MS_LANE_MIMO26_SYNTH_H

#include "lane/mimo26/mimo_config.h"
#include "lane/synth.h"

ms_status mimo_synth_write(const char *dir, const mimo_config *cfg, const ms_synth_options *opt, ms_error *err);

/* config.json of these numbers. */
void mimo_synth_config_text(ms_text *out, const mimo_config *c);

/* The official model's numbers, for presets and tests; the engine reads config.json. */
void mimo_config_official(mimo_config *out);

#endif
