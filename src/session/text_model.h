/* text_model.h: the text side of a checkpoint: lane and tokenizer, without weights or a device.
 *
 * Owns: tokenizer.  Threads: immutable after open.
 */
#ifndef MS_SESSION_TEXT_MODEL_H
#define MS_SESSION_TEXT_MODEL_H

#include "lane/lane.h"

enum { MS_MAX_STOPS = 16 };

typedef struct ms_text_model {
    const ms_lane *lane;
    ms_lane_info info;
    ms_tokenizer *tokenizer;
    uint32_t stops[MS_MAX_STOPS]; /* ids that end a reply */
    size_t stop_count;
} ms_text_model;

/* Reads config.json, the lane's tokenizer file and, when present, generation_config.json and (beside a rank file)
 * tokenizer_config.json; checks that they agree: ranks + 256 == vocab, or no more tokens than vocab; control names; the eos
 * id.  Stops are the eos id of config.json and those of generation_config.json. */
ms_status ms_text_model_open(ms_text_model *out, const char *dir, ms_error *err);
void ms_text_model_close(ms_text_model *t);

bool ms_text_model_stops(const ms_text_model *t, uint32_t id);
/* Ids that a reply may have: those behind them are padding of the model's matrices, without text. */
uint32_t ms_text_model_ids(const ms_text_model *t);

#endif
