/* state_image.h: a causal-state file in memory.
 *
 * Capturing is one copy of the state, so that a session can go on at once while another thread writes the bytes to a
 * disk, and a state that the session has left can come back.  The bytes are exactly those of the file that
 * ms_session_export would write (docs/formats.md, "Causal-state file"), with the same checks on the way back.
 *
 * Owns: an image owns its bytes; it does not refer to its session.
 * Threads: capture and restore on the inference thread; the bytes may be read anywhere.
 * Errors: MS_ERR_MEMORY, the backend's; restore also those of ms_session_import.
 */
#ifndef MS_SESSION_STATE_IMAGE_H
#define MS_SESSION_STATE_IMAGE_H

#include "moonshine/moonshine.h"

typedef struct ms_state_image {
    uint8_t *data;
    size_t bytes;
    uint64_t position;
} ms_state_image;

/* Bytes of an image of `s` at `position`. */
ms_status ms_state_image_size(const ms_session *s, uint64_t position, uint64_t *bytes, ms_error *err);

ms_status ms_state_image_capture(ms_session *s, ms_state_image *out, ms_error *err);
/* Everything is checked before anything changes; on failure the session is as before. */
ms_status ms_state_image_restore(ms_session *s, const ms_state_image *image, ms_error *err);
void ms_state_image_free(ms_state_image *image);

/* As ms_session_export and ms_session_import, in an open folder: the file is the last part of `path`, the rest is for
 * messages.  folder -1: the path as it is. */
ms_status ms_state_export_at(ms_session *s, int folder, const char *path, bool replace, ms_error *err);
ms_status ms_state_import_at(ms_session *s, int folder, const char *path, ms_error *err);

#endif
