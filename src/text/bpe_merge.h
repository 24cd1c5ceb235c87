/* bpe_merge.h: byte-pair merging of one piece by the rank of the joined bytes.
 *
 * A piece that is a token is that token.  Otherwise the parts start as single bytes, and the neighbours whose
 * joined bytes have the lowest rank are joined, the leftmost on a tie, until no join is possible.
 *
 * Owns: ms_merge_space owns scratch memory that grows to the longest piece seen.
 * Threads: one space belongs to one thread; the table may be shared.
 * Invariant: n log n in the length of the piece.
 */
#ifndef MS_TEXT_BPE_MERGE_H
#define MS_TEXT_BPE_MERGE_H

#include "text/rank_table.h"
#include "text/tokenizer.h"

/* One part of the piece; parts form a list in text order. */
typedef struct ms_merge_part {
    uint32_t prev, next; /* byte offsets of the neighbours; the piece's length stands for none after the last */
    uint32_t id;
    uint32_t pair; /* rank of this part joined with the next, or MS_RANK_NONE */
} ms_merge_part;

/* Zero-initialise. */
typedef struct ms_merge_space {
    ms_merge_part *parts;
    uint64_t *heap; /* rank << 32 | byte offset, smallest first */
    size_t cap;     /* parts; the heap has twice as many entries */
} ms_merge_space;
void ms_merge_space_clear(ms_merge_space *space);

/* Appends the ids of piece[0..len).  MS_ERR_USAGE when the piece has 2^31 bytes or more. */
ms_status ms_merge_piece(const ms_rank_table *table, ms_merge_space *space, const uint8_t *piece, size_t len,
                         ms_ids *out, ms_error *err);

#endif
