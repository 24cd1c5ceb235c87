/* session_internal.h: the inside of ms_session, shared by session.c, snapshot.c and state_file.c.
 *
 * Owns: state, workspace, token history, host logits.  Does not own: the engine.
 * Threads: the inference thread; cancel alone may be set from anywhere.
 * Invariants: tokens[0 .. state.position) produced the state; logits are valid iff has_logits.
 */
#ifndef MS_SESSION_SESSION_INTERNAL_H
#define MS_SESSION_SESSION_INTERNAL_H

#include <stdatomic.h>

#include "session/engine.h"
#include "session/pass_memory.h"

struct ms_session {
    ms_engine *engine;
    ms_state state;
    uint32_t *tokens;    /* [context] */
    uint64_t timeline;   /* changes when rows below the position may have been overwritten: reset, import, restore */
    ms_snapshot *snapshots; /* living snapshots of this session, linked */
    float *logits;       /* host [vocab] */
    bool has_logits;
    float *dev_logits;   /* device [logit_rows][vocab] */
    float *sink_logits;  /* host [logit_rows][vocab] */
    ms_pass_memory memory;
    atomic_bool cancel;
};

/* Identity of what a state file or snapshot belongs to: lane name, layout digest, part kinds and sizes, precision, static format,
 * and whether products of ranges are a matrix library's. */
uint64_t ms_session_identity(const ms_session *s);

/* Position 0, fixed parts zero, no logits; no older snapshot fits any more. */
void ms_session_clear(ms_session *s);

/* Destroying a session: its living snapshots stay allocated until their own destroy, but can no longer be restored. */
void ms_session_detach_snapshots(ms_session *s);

#endif
