/* bpe_merge.c: see bpe_merge.h. */
#include "text/bpe_merge.h"

#include <stdlib.h>

/* Up to this many bytes scanning for the lowest rank beats keeping a heap. */
enum { SHORT_BYTES = 48 };

/* ------------------------------------------------------------------ short pieces */

static ms_status merge_short(const ms_rank_table *table, const uint8_t *piece, uint32_t len, ms_ids *out,
                             ms_error *err) {
    uint32_t ids[SHORT_BYTES], pair[SHORT_BYTES];
    uint8_t start[SHORT_BYTES + 1];
    uint32_t count = len;
    for (uint32_t i = 0; i < len; i++) {
        start[i] = (uint8_t)i;
        ids[i] = table->byte_rank[piece[i]];
        pair[i] = i + 1 < len ? ms_rank_table_find(table, piece + i, 2) : MS_RANK_NONE;
    }
    start[len] = (uint8_t)len;
    for (;;) {
        uint32_t best = 0;
        for (uint32_t i = 1; i < count; i++) {
            if (pair[i] < pair[best]) best = i;
        }
        if (pair[best] == MS_RANK_NONE) break;
        ids[best] = pair[best];
        count--;
        for (uint32_t i = best + 1; i < count; i++) {
            ids[i] = ids[i + 1];
            start[i] = start[i + 1];
            pair[i] = pair[i + 1];
        }
        start[count] = (uint8_t)len;
        pair[best] = MS_RANK_NONE;
        if (best + 1 < count)
            pair[best] = ms_rank_table_find(table, piece + start[best], (size_t)start[best + 2] - start[best]);
        if (best > 0)
            pair[best - 1] =
                ms_rank_table_find(table, piece + start[best - 1], (size_t)start[best + 1] - start[best - 1]);
    }
    return ms_ids_append(out, ids, count, err);
}

/* ------------------------------------------------------------------ long pieces */

static ms_status reserve(ms_merge_space *space, size_t len, ms_error *err) {
    if (len <= space->cap) return MS_OK;
    ms_merge_space_clear(space);
    space->parts = malloc(len * sizeof *space->parts);
    space->heap = malloc(2 * len * sizeof *space->heap);
    if (space->parts == NULL || space->heap == NULL) {
        ms_merge_space_clear(space);
        return ms_fail_memory(err, "merging a piece", len * (sizeof *space->parts + 2 * sizeof *space->heap));
    }
    space->cap = len;
    return MS_OK;
}

static void heap_push(uint64_t *heap, size_t *count, uint64_t entry) {
    size_t i = (*count)++;
    while (i > 0 && heap[(i - 1) / 2] > entry) {
        heap[i] = heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap[i] = entry;
}

static uint64_t heap_pop(uint64_t *heap, size_t *count) {
    uint64_t top = heap[0], entry = heap[--*count];
    size_t i = 0, child;
    while ((child = 2 * i + 1) < *count) {
        if (child + 1 < *count && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= entry) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = entry;
    return top;
}

/* Looks up the part at `at` joined with its neighbour, and queues the pair when it is a token. */
static void rate_pair(const ms_rank_table *table, ms_merge_space *space, size_t *queued, const uint8_t *piece,
                      uint32_t len, uint32_t at) {
    ms_merge_part *part = &space->parts[at];
    part->pair = MS_RANK_NONE;
    if (part->next == len) return;
    part->pair = ms_rank_table_find(table, piece + at, space->parts[part->next].next - at);
    if (part->pair != MS_RANK_NONE) heap_push(space->heap, queued, (uint64_t)part->pair << 32 | at);
}

/* Every join takes one entry off the heap and adds at most two, so 2 * len entries always suffice. */
static ms_status merge_long(const ms_rank_table *table, ms_merge_space *space, const uint8_t *piece, uint32_t len,
                            ms_ids *out, ms_error *err) {
    MS_TRY(reserve(space, len, err));
    ms_merge_part *parts = space->parts;
    size_t queued = 0;
    for (uint32_t i = 0; i < len; i++) {
        uint32_t id = table->byte_rank[piece[i]];
        parts[i] = (ms_merge_part){.prev = i == 0 ? len : i - 1, .next = i + 1, .id = id, .pair = MS_RANK_NONE};
    }
    for (uint32_t i = 0; i + 1 < len; i++) rate_pair(table, space, &queued, piece, len, i);
    while (queued > 0) {
        uint64_t entry = heap_pop(space->heap, &queued);
        uint32_t at = (uint32_t)entry, rank = (uint32_t)(entry >> 32);
        ms_merge_part *part = &parts[at];
        if (part->pair != rank) continue; /* stale: this part or its neighbour has been joined since */
        uint32_t gone = part->next;
        part->id = rank;
        part->next = parts[gone].next;
        parts[gone].pair = MS_RANK_NONE;
        if (part->next < len) parts[part->next].prev = at;
        rate_pair(table, space, &queued, piece, len, at);
        if (part->prev < len) rate_pair(table, space, &queued, piece, len, part->prev);
    }
    for (uint32_t i = 0; i < len; i = parts[i].next) MS_TRY(ms_ids_push(out, parts[i].id, err));
    return MS_OK;
}

ms_status ms_merge_piece(const ms_rank_table *table, ms_merge_space *space, const uint8_t *piece, size_t len,
                         ms_ids *out, ms_error *err) {
    if (len == 0) return MS_OK;
    if (len > INT32_MAX)
        return ms_fail(err, MS_ERR_USAGE, "a piece of %zu bytes is too long to tokenize", len);
    uint32_t whole = ms_rank_table_find(table, piece, len);
    if (whole != MS_RANK_NONE) return ms_ids_push(out, whole, err);
    if (len <= SHORT_BYTES) return merge_short(table, piece, (uint32_t)len, out, err);
    return merge_long(table, space, piece, (uint32_t)len, out, err);
}

void ms_merge_space_clear(ms_merge_space *space) {
    free(space->parts);
    free(space->heap);
    *space = (ms_merge_space){0};
}
