/* text_model.h: the text side of a checkpoint: lane and tokenizer, without weights or a device.
 *
 * Owns: tokenizer.  Threads: immutable after open.
 */
#ifndef MS_SESSION_TEXT_MODEL_H
#define MS_SESSION_TEXT_MODEL_H

#include "lane/lane.h"

typedef struct ms_text_model {
    const ms_lane *lane;
    ms_lane_info info;
    ms_tokenizer *tokenizer;
} ms_text_model;

/* Reads config.json, the lane's rank file and, when present, tokenizer_config.json; checks that they agree
 * (ranks + 256 == vocab, control names, eos id). */
ms_status ms_text_model_open(ms_text_model *out, const char *dir, ms_error *err);
void ms_text_model_close(ms_text_model *t);

#endif
