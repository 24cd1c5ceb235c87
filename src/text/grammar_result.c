/* grammar_result.c: see grammar_result.h. */
#include "text/grammar_result.h"

#include <stdlib.h>
#include <string.h>

enum { FEW_TOKENS = 1000 };

ms_result *ms_result_create(const ms_vocabulary *v) {
    ms_result *r = calloc(1, sizeof *r);
    if (r) r->words = ms_vocabulary_mask_words(v);
    return r;
}

void ms_result_free(ms_result *r) {
    if (!r) return;
    free(r->tokens);
    free(r->mask);
    free(r->rises);
    free(r->floors);
    free(r->suffixes);
    free(r->suffix_tokens);
    free(r);
}

size_t ms_result_words(const ms_result *r, const ms_vocabulary *v) {
    size_t bytes = r->floor_cap * sizeof *r->floors + r->suffix_cap * sizeof *r->suffixes;
    bytes += r->rise_cap * sizeof *r->rises + r->suffix_token_cap * sizeof *r->suffix_tokens + sizeof *r;
    return (r->mask ? ms_vocabulary_mask_words(v) : r->token_cap / 2) + bytes / sizeof(uint64_t);
}

static bool grow(ms_result *r, void **data, uint32_t *cap, uint32_t count, size_t item) {
    if (count < *cap) return true;
    uint32_t more = *cap ? *cap * 2 : 64;
    void *p = realloc(*data, more * item);
    if (!p) {
        r->failed = true;
        return false;
    }
    *data = p;
    *cap = more;
    return true;
}

static void set(uint64_t *mask, uint32_t token) { mask[token >> 6] |= UINT64_C(1) << (token & 63); }

/* From a list to a mask. */
static bool make_mask(ms_result *r) {
    if (r->mask) return true;
    r->mask = calloc(r->words, sizeof *r->mask);
    if (!r->mask) {
        r->failed = true;
        return false;
    }
    for (uint32_t i = 0; i < r->token_count; i++) set(r->mask, r->tokens[i]);
    free(r->tokens);
    r->tokens = NULL;
    r->token_count = r->token_cap = 0;
    return true;
}

static void note(ms_result *r, uint32_t token) {
    if (!r->mask && r->token_count == FEW_TOKENS && !make_mask(r)) return;
    if (r->mask)
        set(r->mask, token);
    else if (grow(r, (void **)&r->tokens, &r->token_cap, r->token_count, sizeof *r->tokens))
        r->tokens[r->token_count++] = token;
}

void ms_result_allow_all(ms_result *r, const uint64_t *mask) {
    if (!make_mask(r)) return;
    for (size_t i = 0; i < r->words; i++) r->mask[i] |= mask[i];
}

void ms_result_forbid(ms_result *r, uint32_t token) {
    if (make_mask(r)) r->mask[token >> 6] &= ~(UINT64_C(1) << (token & 63));
}

static int by_rise(const void *x, const void *y) {
    const ms_rise *a = x, *b = y;
    return a->by != b->by ? (a->by < b->by ? 1 : -1) : (a->token > b->token) - (a->token < b->token);
}

void ms_result_sort(ms_result *r) {
    if (r->rise_count) qsort(r->rises, r->rise_count, sizeof *r->rises, by_rise);
}

void ms_result_add(const ms_result *r, uint64_t slack, uint64_t *scratch, uint64_t *mask) {
    bool all = !r->rise_count || r->rises[0].by <= slack;
    uint64_t *to = all ? mask : scratch;
    if (!all) memset(scratch, 0, r->words * sizeof *scratch);
    for (size_t i = 0; r->mask && i < r->words; i++) to[i] |= r->mask[i];
    for (uint32_t i = 0; i < r->token_count; i++) set(to, r->tokens[i]);
    if (all) return;
    for (uint32_t i = 0; i < r->rise_count && r->rises[i].by > slack; i++)
        scratch[r->rises[i].token >> 6] &= ~(UINT64_C(1) << (r->rises[i].token & 63));
    for (size_t i = 0; i < r->words; i++) mask[i] |= scratch[i];
}

static void rises(ms_result *r, uint32_t token, uint32_t by) {
    if (!grow(r, (void **)&r->rises, &r->rise_cap, r->rise_count, sizeof *r->rises)) return;
    r->rises[r->rise_count++] = (ms_rise){by, token};
}

void ms_result_allow(ms_result *r, uint32_t token, uint32_t before, uint32_t after) {
    note(r, token);
    if (after > before) rises(r, token, after - before);
}

void ms_result_floor(ms_result *r, uint32_t node) {
    if (grow(r, (void **)&r->floors, &r->floor_cap, r->floor_count, sizeof *r->floors))
        r->floors[r->floor_count++] = node;
}

void ms_result_allow_like(ms_result *r, const ms_result *other) {
    if (other->mask) ms_result_allow_all(r, other->mask);
    for (uint32_t i = 0; i < other->token_count; i++) note(r, other->tokens[i]);
    for (uint32_t i = 0; i < other->rise_count; i++) rises(r, other->rises[i].token, other->rises[i].by);
}

/* ------------------------------------------------------------------ suffixes */

static uint32_t new_suffix(ms_result *r, uint8_t byte) {
    if (!grow(r, (void **)&r->suffixes, &r->suffix_cap, r->suffix_count, sizeof *r->suffixes)) return 0;
    r->suffixes[r->suffix_count] = (ms_suffix){.byte = byte};
    return r->suffix_count++;
}

static uint32_t suffix_child(ms_result *r, uint32_t parent, uint8_t byte) {
    for (uint32_t i = r->suffixes[parent].child; i; i = r->suffixes[i].next)
        if (r->suffixes[i].byte == byte) return i;
    uint32_t id = new_suffix(r, byte);
    if (r->failed) return 0;
    r->suffixes[id].next = r->suffixes[parent].child;
    r->suffixes[parent].child = id;
    return id;
}

static void suffix_token(ms_result *r, uint32_t at, uint32_t token, uint32_t floor) {
    if (token == MS_NO_TOKEN) return;
    if (!grow(r, (void **)&r->suffix_tokens, &r->suffix_token_cap, r->suffix_token_count, sizeof *r->suffix_tokens))
        return;
    r->suffix_tokens[r->suffix_token_count++] = (ms_suffix_token){token, floor, r->suffixes[at].tokens};
    r->suffixes[at].tokens = r->suffix_token_count;
}

void ms_result_suffixes(ms_result *r, const ms_vocabulary *v) {
    uint32_t *path = malloc(((size_t)v->deepest + 1) * sizeof *path);
    if (!path) r->failed = true;
    if (!r->failed) (void)new_suffix(r, 0);
    for (uint32_t i = 0; i < r->floor_count && !r->failed; i++) {
        uint32_t floor = r->floors[i], depth = r->at ? v->depth[floor] - 1u : v->depth[floor];
        path[0] = 0;
        if (!r->at) suffix_token(r, 0, v->token[floor], floor);
        for (uint32_t n = r->at ? floor : floor + 1; n < v->end[floor] && !r->failed; n++) {
            uint32_t d = v->depth[n] - depth;
            path[d] = suffix_child(r, path[d - 1], v->byte[n]);
            if (!r->failed) suffix_token(r, path[d], v->token[n], floor);
        }
    }
    free(path);
}
