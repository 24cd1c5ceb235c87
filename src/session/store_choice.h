/* store_choice.h: where a model's experts are read from: the checkpoint, a store, or the faster of the two.
 *
 * Threads: the inference thread.  Errors: MS_ERR_USAGE (a bundle with a store of its own choice), those of opening a
 * store.
 */
#ifndef MS_SESSION_STORE_CHOICE_H
#define MS_SESSION_STORE_CHOICE_H

#include "session/engine.h"

/* A model with its experts bound as options->store says; *out is closed with ms_model_close. */
ms_status ms_model_open_for(ms_model *out, const ms_engine_options *options, ms_error *err);

typedef struct ms_store_race {
    double read_rate;   /* of raw experts, bytes a second */
    double decode_rate; /* of decoded experts, all threads */
} ms_store_race;

/* Measures both on this host: some raw experts are read, one block is decoded for a moment.  The model's experts are
 * raw. */
ms_status ms_store_race_run(ms_store_race *out, const ms_model *m, const ms_mzg2_store *store,
                            const ms_engine_options *o, ms_error *err);

#endif
