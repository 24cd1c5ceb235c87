/* diagnostics.h: files that tell how experts were used while replies were generated (docs/formats.md).
 *
 * A capture is one reply: it begins with the first token, and its rows count once it is committed.  Until then they
 * may be rolled back, after which every file ends where it ended before; the number of the capture is not used again.
 *
 * Routes are derived from what was said: the files are private (0600), and hold no ids, text or weights.
 *
 * Owns: the files.  Threads: create and destroy anywhere, the rest on the inference thread.
 * Errors: MS_ERR_IO, MS_ERR_UNSUPPORTED.  A file that cannot be written never fails a request: the commit says so, and
 * the capture is rolled back.
 */
#ifndef MS_SERVER_DIAGNOSTICS_H
#define MS_SERVER_DIAGNOSTICS_H

#include "server/causal.h"

typedef struct ms_diagnostics ms_diagnostics;

/* Creates PREFIX.cache.csv, .ledger.csv, .routes.csv and, with logits, .logits.bin: all new, or none. */
ms_status ms_diagnostics_create(ms_diagnostics **out, const char *prefix, bool logits, const ms_lane_info *info,
                                ms_error *err);
void ms_diagnostics_destroy(ms_diagnostics *d);

void ms_diagnostics_begin(ms_diagnostics *d, ms_causal *t);
/* The capture goes on: what passed since its last pass is nobody's time. */
void ms_diagnostics_resume(ms_diagnostics *d);
/* Ends the capture.  *capture gets its number; 0: none was open, or it could not be written. */
ms_status ms_diagnostics_commit(ms_diagnostics *d, ms_causal *t, uint64_t *capture, ms_error *err);
/* Nothing happens when no capture is open. */
void ms_diagnostics_rollback(ms_diagnostics *d, ms_causal *t);

#endif
