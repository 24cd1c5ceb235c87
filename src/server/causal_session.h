/* causal_session.h: the timeline of a real engine: one ms_session.
 *
 * Owns: engine and session, from open to close.  Threads: the inference thread.
 */
#ifndef MS_SERVER_CAUSAL_SESSION_H
#define MS_SERVER_CAUSAL_SESSION_H

#include "server/causal.h"

typedef struct ms_causal_session ms_causal_session;

/* options.snapshots is how many points the timeline may have.  NULL: no memory. */
ms_causal_session *ms_causal_session_create(const ms_engine_options *options);
ms_causal_source ms_causal_session_source(ms_causal_session *s);
void ms_causal_session_destroy(ms_causal_session *s);

#endif
