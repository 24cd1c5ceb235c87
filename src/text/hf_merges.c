#include "text/hf_merges.h"

#include <stdlib.h>

#define NONE UINT32_MAX

static size_t place_of(const ms_hf_merges *m, uint32_t left, uint32_t right) {
    uint64_t h = ((uint64_t)left << 32 | right) * UINT64_C(0x9E3779B97F4A7C15);
    return (size_t)(h >> 20) & m->mask;
}

ms_status ms_hf_merges_create(ms_hf_merges *m, size_t count, ms_error *err) {
    size_t slots = 64;
    while (slots / 3 * 2 < count) slots *= 2;
    m->slots = malloc(slots * sizeof *m->slots);
    if (!m->slots) return ms_fail_memory(err, "merges", slots * sizeof *m->slots);
    for (size_t i = 0; i < slots; i++) m->slots[i] = (ms_hf_slot){.rank = MS_HF_NO_RANK};
    m->mask = slots - 1;
    return MS_OK;
}

void ms_hf_merges_free(ms_hf_merges *m) {
    free(m->slots);
    *m = (ms_hf_merges){0};
}

bool ms_hf_merges_add(ms_hf_merges *m, uint32_t left, uint32_t right, int32_t rank, uint32_t joined) {
    size_t at = place_of(m, left, right);
    for (; m->slots[at].rank != MS_HF_NO_RANK; at = (at + 1) & m->mask)
        if (m->slots[at].left == left && m->slots[at].right == right) return false;
    m->slots[at] = (ms_hf_slot){left, right, rank, joined};
    return true;
}

const ms_hf_slot *ms_hf_merges_find(const ms_hf_merges *m, uint32_t left, uint32_t right) {
    for (size_t at = place_of(m, left, right); m->slots[at].rank != MS_HF_NO_RANK; at = (at + 1) & m->mask)
        if (m->slots[at].left == left && m->slots[at].right == right) return &m->slots[at];
    return NULL;
}

void ms_hf_space_free(ms_hf_space *s) {
    free(s->parts);
    free(s->heap);
    *s = (ms_hf_space){0};
}

static ms_status reserve(ms_hf_space *s, size_t len, ms_error *err) {
    if (len <= s->cap) return MS_OK;
    ms_hf_space_free(s);
    s->parts = malloc(len * sizeof *s->parts);
    s->heap = malloc(2 * len * sizeof *s->heap);
    if (!s->parts || !s->heap) {
        ms_hf_space_free(s);
        return ms_fail_memory(err, "merging a piece", len * (sizeof *s->parts + 2 * sizeof *s->heap));
    }
    s->cap = len;
    return MS_OK;
}

static void heap_push(uint64_t *heap, size_t *count, uint64_t entry) {
    size_t i = (*count)++;
    for (; i > 0 && heap[(i - 1) / 2] > entry; i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
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

/* Looks up the merge of a part with its neighbour and queues it. */
static void rate(const ms_hf_merges *m, ms_hf_space *s, size_t *queued, uint32_t at) {
    ms_hf_part *part = &s->parts[at];
    part->rank = MS_HF_NO_RANK;
    if (part->next == NONE) return;
    const ms_hf_slot *merge = ms_hf_merges_find(m, part->id, s->parts[part->next].id);
    if (!merge) return;
    part->rank = merge->rank;
    part->joined = merge->joined;
    heap_push(s->heap, queued, (uint64_t)(uint32_t)merge->rank << 32 | at);
}

/* Every join takes one entry off the heap and adds at most two: with less than one a byte at first, 2 * len always
 * suffice.  A part keeps the index of its first byte, so that equal ranks go left to right. */
ms_status ms_hf_merge(const ms_hf_merges *m, const uint32_t byte_ids[256], ms_hf_space *s, const uint8_t *piece,
                      size_t len, ms_ids *out, ms_error *err) {
    if (len == 1) return ms_ids_push(out, byte_ids[*piece], err);
    if (len > INT32_MAX) return ms_fail(err, MS_ERR_USAGE, "a piece of %zu bytes is too long to tokenize", len);
    MS_TRY(reserve(s, len, err));
    size_t queued = 0;
    for (uint32_t i = 0; i < len; i++)
        s->parts[i] = (ms_hf_part){byte_ids[piece[i]], i ? i - 1 : NONE, i + 1 < len ? i + 1 : NONE, MS_HF_NO_RANK, 0};
    for (uint32_t i = 0; i < len; i++) rate(m, s, &queued, i);
    while (queued > 0) {
        uint64_t entry = heap_pop(s->heap, &queued);
        uint32_t at = (uint32_t)entry;
        ms_hf_part *part = &s->parts[at];
        if (part->rank == MS_HF_NO_RANK || (uint32_t)part->rank != entry >> 32)
            continue; /* joined or rated anew since */
        ms_hf_part *gone = &s->parts[part->next];
        part->id = part->joined;
        part->next = gone->next;
        gone->rank = MS_HF_NO_RANK;
        if (part->next != NONE) s->parts[part->next].prev = at;
        rate(m, s, &queued, at);
        if (part->prev != NONE) rate(m, s, &queued, part->prev);
    }
    for (uint32_t i = 0; i != NONE; i = s->parts[i].next) MS_TRY(ms_ids_push(out, s->parts[i].id, err));
    return MS_OK;
}
