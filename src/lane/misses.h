/* misses.h: what a checkpoint lacks, collected into one message.
 *
 * Owns: a ms_misses owns its list until ms_misses_finish.  Threads: values belong to one thread.
 */
#ifndef MS_LANE_MISSES_H
#define MS_LANE_MISSES_H

#include "base/text.h"
#include "store/checkpoint.h"

/* Zero-initialise. */
typedef struct ms_misses {
    ms_text list;
    uint32_t listed, unlisted;
} ms_misses;

/* At most 20 are listed, fewer when they are long; the others are counted. */
void ms_misses_note(ms_misses *m, const char *what);
/* Notes a tensor that is missing or another than described; marks it in seen[] (by directory index) when it is there.
 */
void ms_misses_expect(ms_misses *m, const ms_checkpoint *c, const char *name, ms_dtype dtype, unsigned dims,
                      const uint64_t *shape, uint8_t *seen);
void ms_misses_unknown(ms_misses *m, const char *name);
/* MS_ERR_FORMAT with all that was noted, behind the folder's name; MS_OK when nothing was.  Frees the list. */
ms_status ms_misses_finish(ms_misses *m, const char *dir, ms_error *err);

#endif
