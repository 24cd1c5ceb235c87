/* state.h: the causal state of one session, described as parts that a lane names.
 *
 * A fixed part has a current copy and a copy in progress: a pass reads the one and writes the other, and commits by
 * swapping, so that a failed or cancelled pass changes nothing.  A growing part (attention rows) is append-only:
 * rows at or beyond the position do not count.  A window part is a growing part of which only the last window - 1 rows
 * count; they lie in a ring that is larger than the window by the rows of a pass, so that a pass overwrites nothing that
 * counts before it.  Without fixed parts a state can go back to an earlier position by moving the position alone, as
 * long as the rings still hold the rows before it.
 *
 * Owns: the device memory of its parts.  Threads: the inference thread.
 * Invariants: position <= context; every part belongs to one layer; parts are in digest order (kind, then layer).
 *   Row r of a ring is intact iff low <= r and high - ring <= r: rows below low were never there, rows below high may
 *   have been written.
 */
#ifndef MS_NN_STATE_H
#define MS_NN_STATE_H

#include "backend/backend.h"

typedef struct ms_state_part {
    const char *kind;    /* "kda", "conv", "mla" ...: digest and file segment */
    uint32_t layer;      /* model layer */
    uint64_t bytes;      /* fixed parts; 0 for growing ones */
    uint64_t row_bytes;  /* growing and window parts; 0 for fixed ones */
    uint32_t window;     /* window parts: rows that a token sees, its own included; else 0 */
    uint64_t ring;       /* window parts: rows in memory; row r lies at r % ring.  ms_state_size_rings */
    uint8_t *current;    /* device */
    uint8_t *next;       /* device; fixed parts only */
} ms_state_part;

typedef struct ms_state {
    ms_backend *backend;
    ms_state_part *parts;
    uint32_t part_count;
    uint64_t context;    /* rows of growing parts */
    uint64_t position;
    uint64_t low, high;  /* of all rings */
} ms_state;

enum { MS_STATE_RING_ROWS = 256 }; /* a ring is a multiple of it: attention takes keys in absolute blocks of so many */

/* Sets `ring` of window parts for passes of at most range_rows rows. */
void ms_state_size_rings(ms_state_part *parts, uint32_t count, uint32_t range_rows);
/* Memory of one copy of a part, and what a snapshot copies of it; UINT64_MAX when that is beyond 64 bits. */
uint64_t ms_state_memory_bytes(const ms_state_part *p, uint64_t context);
uint64_t ms_state_snapshot_bytes(const ms_state_part *p);

/* `parts` is copied; current and next are allocated and zero. */
ms_status ms_state_create(ms_state *out, ms_backend *be, const ms_state_part *parts, uint32_t count, uint64_t context, ms_error *err);
void ms_state_destroy(ms_state *s);
void ms_state_reset(ms_state *s);                   /* position 0, fixed parts zero */
void ms_state_begin(ms_state *s, uint32_t rows);    /* a pass is about to write so many rows from the position on */
void ms_state_commit(ms_state *s, uint32_t rows);   /* the pass that wrote `next` is final; position += rows */
/* Whether moving the position is all that it takes to be at an earlier one. */
bool ms_state_can_rewind(const ms_state *s, uint64_t position);
void ms_state_rewind(ms_state *s, uint64_t position); /* can_rewind says that it may */
/* The parts were filled for this position, rings with no more than the rows that count. */
void ms_state_adopt(ms_state *s, uint64_t position);
ms_state_part *ms_state_find(const ms_state *s, const char *kind, uint32_t layer); /* NULL: none */
/* Bytes of a part that count at a position, and at the current one. */
uint64_t ms_state_bytes_at(const ms_state_part *p, uint64_t position);
uint64_t ms_state_part_bytes(const ms_state *s, const ms_state_part *p);
/* Where byte `at` of what counts at `position` lies (of a fixed part: in its current copy); *length is cut to what
 * follows in one piece. */
uint8_t *ms_state_span(const ms_state_part *p, uint64_t position, uint64_t at, size_t *length);

#endif
