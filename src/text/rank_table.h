/* rank_table.h: the ranks of a tiktoken-style file, found by token bytes or by rank.
 *
 * File: lines of `<canonical padded base64> <decimal rank>`, one space between; LF or CR LF, the last line end
 * may be missing; empty lines are skipped.  Ranks are 0, 1, 2 ... in order; no token is empty or repeated; each
 * of the 256 single bytes is a token.
 *
 * Owns: the bytes of all tokens and a hash of them.
 * Threads: immutable after parsing.
 * Errors: MS_ERR_FORMAT naming the file and the line.
 */
#ifndef MS_TEXT_RANK_TABLE_H
#define MS_TEXT_RANK_TABLE_H

#include <stddef.h>
#include <stdint.h>

#include <stdbool.h>

#include "base/error.h"

#define MS_RANK_NONE UINT32_MAX

/* Far above any real file; they bound the memory that a hostile one can ask for. */
enum { MS_RANK_FILE_MAX_BYTES = 64 * 1024 * 1024, MS_RANK_MAX_COUNT = 4 * 1024 * 1024 };

typedef struct ms_rank_slot {
    uint32_t tag;  /* upper half of the hash */
    uint32_t next; /* rank + 1; 0: free */
} ms_rank_slot;

typedef struct ms_rank_table {
    uint8_t *bytes;       /* all tokens one after the other */
    uint32_t *offsets;    /* count + 1 */
    uint32_t count;
    uint32_t longest_bytes;
    ms_rank_slot *slots;  /* open addressing; slot_mask + 1 slots, at most half of them used */
    size_t slot_mask;
    uint32_t byte_rank[256];
} ms_rank_table;

/* `table` is zero-initialised by the caller; on failure it is left empty. */
ms_status ms_rank_table_parse(ms_rank_table *table, const char *data, size_t len, const char *name, ms_error *err);
void ms_rank_table_clear(ms_rank_table *table);

/* Rank of bytes[0..len), or MS_RANK_NONE. */
uint32_t ms_rank_table_find(const ms_rank_table *table, const uint8_t *bytes, size_t len);

#endif
