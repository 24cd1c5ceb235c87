/* grammar_result.c: see grammar_result.h. */
#include "text/grammar_result.h"

#include <stdlib.h>

ms_result *ms_result_create(const ms_vocabulary *v) {
    ms_result *r = calloc(1, sizeof *r);
    uint64_t *mask = calloc(ms_vocabulary_mask_words(v), sizeof *mask);
    if (!r || !mask) {
        free(r);
        free(mask);
        return NULL;
    }
    r->mask = mask;
    return r;
}

void ms_result_free(ms_result *r) {
    if (!r) return;
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
    return ms_vocabulary_mask_words(v) + bytes / sizeof(uint64_t);
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

void ms_result_allow(ms_result *r, uint32_t token, uint32_t before, uint32_t after) {
    r->mask[token >> 6] |= UINT64_C(1) << (token & 63);
    if (after <= before) return;
    if (!grow(r, (void **)&r->rises, &r->rise_cap, r->rise_count, sizeof *r->rises)) return;
    r->rises[r->rise_count++] = (ms_rise){after - before, token};
}

void ms_result_floor(ms_result *r, uint32_t node) {
    if (grow(r, (void **)&r->floors, &r->floor_cap, r->floor_count, sizeof *r->floors)) r->floors[r->floor_count++] = node;
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
    if (!grow(r, (void **)&r->suffix_tokens, &r->suffix_token_cap, r->suffix_token_count, sizeof *r->suffix_tokens)) return;
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
