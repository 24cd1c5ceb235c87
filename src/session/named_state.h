/* named_state.h: states that a person saves and restores under a name.
 *
 *     ROOT/named/NAME.state   causal-state file (docs/formats.md)
 *     ROOT/named/NAME.meta    the caller's text, tied to the state's token ids
 *
 * ROOT and the folder are 0700 and the user's own, files 0600.  Everything is opened from ROOT's descriptor on, and no
 * link is followed.  They are not counted with the kept states, and nothing removes them.
 *
 * Owns: nothing between calls.  Threads: the inference thread.
 * Errors: MS_ERR_USAGE (name, a folder that is not private), MS_ERR_IO, and those of ms_session_import; whatever fails
 * in a restore, the session is as before, or reset when it says so (position tells).  Messages hold no path and no
 * name: they say which file or folder by what it is for.
 */
#ifndef MS_SESSION_NAMED_STATE_H
#define MS_SESSION_NAMED_STATE_H

#include "base/text.h"
#include "moonshine/moonshine.h"

enum { MS_STATE_NAME_MAX = 64 };

/* Letters, digits, '.', '_' and '-', 1 to 64 of them, the first one no dot. */
bool ms_named_state_valid(const char *name, size_t len);
/* An earlier state of the name is replaced.  *bytes: of the state file. */
ms_status ms_named_state_save(ms_session *s, const char *root, const char *name, const char *meta, size_t meta_len,
                              uint64_t *bytes, ms_error *err);
/* *missing: there is no such state.  meta gets the caller's text, or nothing when it is not this state's. */
ms_status ms_named_state_restore(ms_session *s, const char *root, const char *name, ms_text *meta, uint64_t *bytes,
                                 bool *missing, ms_error *err);

#endif
