/* hf_merges.h: merges of pairs of token ids, and merging a piece with them.
 *
 * A piece starts as single bytes; of all neighbours that have a merge the one of lowest rank is joined, the leftmost on
 * a tie, until none is left.
 *
 * Owns: a table its slots, a space its scratch.  Threads: a built table may be shared; a space belongs to one thread.
 * Invariant: n log n in the length of the piece.
 */
#ifndef MS_TEXT_HF_MERGES_H
#define MS_TEXT_HF_MERGES_H

#include "text/tokenizer.h"

enum { MS_HF_NO_RANK = -1 };

typedef struct ms_hf_slot {
    uint32_t left, right;
    int32_t rank; /* MS_HF_NO_RANK: free */
    uint32_t joined;
} ms_hf_slot;

typedef struct ms_hf_merges {
    ms_hf_slot *slots; /* open addressing, at most two thirds used */
    size_t mask;
} ms_hf_merges;

ms_status ms_hf_merges_create(ms_hf_merges *m, size_t count, ms_error *err);
void ms_hf_merges_free(ms_hf_merges *m);
/* False: the pair is there already.  At most `count` of create. */
bool ms_hf_merges_add(ms_hf_merges *m, uint32_t left, uint32_t right, int32_t rank, uint32_t joined);
/* NULL: no such merge. */
const ms_hf_slot *ms_hf_merges_find(const ms_hf_merges *m, uint32_t left, uint32_t right);

typedef struct ms_hf_part {
    uint32_t id, prev, next; /* neighbours by index; UINT32_MAX: none */
    int32_t rank;            /* of the merge with the next part */
    uint32_t joined;
} ms_hf_part;

/* Zero-initialise. */
typedef struct ms_hf_space {
    ms_hf_part *parts;
    uint64_t *heap; /* rank << 32 | part, smallest first */
    size_t cap;     /* parts; the heap has twice as many entries */
} ms_hf_space;
void ms_hf_space_free(ms_hf_space *s);

/* Appends the ids of piece[0..len), whose bytes are ids byte_ids[b].  MS_ERR_USAGE when it has 2^31 bytes or more. */
ms_status ms_hf_merge(const ms_hf_merges *m, const uint32_t byte_ids[256], ms_hf_space *s, const uint8_t *piece,
                      size_t len, ms_ids *out, ms_error *err);

#endif
