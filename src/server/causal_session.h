/* causal_session.h: the timeline of a real engine: one ms_session, with kept states where room for them was given.
 *
 * Owns: engine, session and store of kept states, from open to close.
 * Threads: the inference thread; the view of kept states and the event callback on any.
 */
#ifndef MS_SERVER_CAUSAL_SESSION_H
#define MS_SERVER_CAUSAL_SESSION_H

#include "server/causal.h"
#include "session/prefix_store.h"

typedef struct ms_causal_session ms_causal_session;

typedef struct ms_causal_session_options {
    ms_engine_options engine;    /* snapshots: points of the timeline; kept_state_bytes: states in memory */
    ms_prefix_options kept;      /* memory_bytes is the engine's; a NULL root: none on disk */
    void (*disabled)(void *arg); /* the folder belongs to another process */
    void *disabled_arg;
    bool logits; /* a watch may ask for the router's products */
} ms_causal_session_options;

/* NULL: no memory. */
ms_causal_session *ms_causal_session_create(const ms_causal_session_options *options);
ms_causal_source ms_causal_session_source(ms_causal_session *s);
void ms_causal_session_destroy(ms_causal_session *s);

#endif
