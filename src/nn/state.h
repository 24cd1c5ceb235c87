/* state.h: the causal state of one session, described as parts that a lane names.
 *
 * A fixed part has a current copy and a copy in progress: a pass reads the one and writes the other, and commits by
 * swapping, so that a failed or cancelled pass changes nothing.  A growing part (attention rows) is append-only:
 * rows at or beyond the position do not count.
 *
 * Owns: the device memory of its parts.  Threads: the inference thread.
 * Invariants: position <= context; every part belongs to one layer; parts are in digest order (kind, then layer).
 */
#ifndef MS_NN_STATE_H
#define MS_NN_STATE_H

#include "backend/backend.h"

typedef struct ms_state_part {
    const char *kind;    /* "kda", "conv", "mla" ...: digest and file segment */
    uint32_t layer;      /* model layer */
    uint64_t bytes;      /* fixed parts; 0 for growing ones */
    uint64_t row_bytes;  /* growing parts; 0 for fixed ones */
    uint8_t *current;    /* device */
    uint8_t *next;       /* device; fixed parts only */
} ms_state_part;

typedef struct ms_state {
    ms_backend *backend;
    ms_state_part *parts;
    uint32_t part_count;
    uint64_t context;    /* rows of growing parts */
    uint64_t position;
} ms_state;

/* `parts` is copied; current and next are allocated and zero. */
ms_status ms_state_create(ms_state *out, ms_backend *be, const ms_state_part *parts, uint32_t count, uint64_t context, ms_error *err);
void ms_state_destroy(ms_state *s);
void ms_state_reset(ms_state *s);                   /* position 0, fixed parts zero */
void ms_state_commit(ms_state *s, uint32_t rows);   /* the pass that wrote `next` is final; position += rows */
ms_state_part *ms_state_find(const ms_state *s, const char *kind, uint32_t layer); /* NULL: none */
/* Occupied bytes of a part at the current position. */
uint64_t ms_state_part_bytes(const ms_state *s, const ms_state_part *p);

#endif
