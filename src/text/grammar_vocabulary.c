/* grammar_vocabulary.c: the tree of a vocabulary (grammar_vocabulary.h), and reading its tokens. */
#include "text/grammar_vocabulary.h"

#include <stdlib.h>
#include <string.h>

#include "text/grammar_groups.h"
#include "text/grammar_internal.h"

enum { MAX_TOKEN_BYTES = 4096 };

typedef struct token_text {
    const uint8_t *bytes;
    uint32_t len, id;
} token_text;

static int by_bytes(const void *x, const void *y) {
    const token_text *a = x, *b = y;
    uint32_t n = a->len < b->len ? a->len : b->len;
    int c = memcmp(a->bytes, b->bytes, n);
    return c ? c : (a->len > b->len) - (a->len < b->len);
}

static uint32_t common(const token_text *a, const token_text *b) {
    uint32_t n = 0;
    while (n < a->len && n < b->len && a->bytes[n] == b->bytes[n]) n++;
    return n;
}

static void fill_tree(ms_vocabulary *v, const token_text *list, uint32_t count, uint32_t *open) {
    uint32_t n = 0, depth = 0;
    memset(v->root, 0xff, sizeof v->root);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t keep = i ? common(&list[i - 1], &list[i]) : 0;
        while (depth > keep) v->end[open[--depth]] = n;
        for (; depth < list[i].len; depth++, n++) {
            v->byte[n] = list[i].bytes[depth];
            v->depth[n] = (uint16_t)(depth + 1);
            v->token[n] = depth + 1 == list[i].len ? list[i].id : MS_NO_TOKEN;
            open[depth] = n;
            if (depth == 0) v->root[v->byte[n]] = n;
        }
        if (list[i].len > v->deepest) v->deepest = list[i].len;
    }
    while (depth) v->end[open[--depth]] = n;
    v->nodes = n;
}

/* Strings of any text are in nearly every grammar: their groups are made at once and stay. */
static bool group_any_text(ms_vocabulary *v) {
    static const ms_string_form forms[] = {MS_STRING_JSON, MS_STRING_CANONICAL};
    const uint32_t parts[] = {0, ms_string_escape};
    v->groups = ms_group_store_create();
    for (int i = 0; i < 4 && v->groups; i++) {
        ms_group_key key = {.form = (uint32_t)forms[i / 2], .part = parts[i % 2]};
        if (!ms_groups_borrow(v, &key, true)) return false;
    }
    return v->groups != NULL;
}

ms_status ms_vocabulary_create(ms_vocabulary **out, const ms_tokenizer *t, uint32_t logits, ms_error *err) {
    *out = NULL;
    uint32_t ids = ms_tokenizer_ids(t), count = 0;
    ms_vocabulary *v = calloc(1, sizeof *v);
    token_text *list = malloc(ids * sizeof *list);
    uint32_t *open = malloc(MAX_TOKEN_BYTES * sizeof *open);
    size_t bytes = 0;
    bool good = v && list && open;
    for (uint32_t i = 0; good && i < ids; i++) {
        size_t len;
        const uint8_t *b = ms_tokenizer_token(t, i, &len);
        if (!b || !len || len > MAX_TOKEN_BYTES || i >= logits) continue; /* never proposed */
        list[count++] = (token_text){b, (uint32_t)len, i};
        bytes += len;
    }
    if (good) {
        *v = (ms_vocabulary){.tokenizer = t, .first_control = ms_tokenizer_first_control(t), .logits = logits};
        v->byte = malloc(bytes);
        v->depth = malloc(bytes * sizeof *v->depth);
        v->end = malloc(bytes * sizeof *v->end);
        v->token = malloc(bytes * sizeof *v->token);
        good = v->byte && v->depth && v->end && v->token;
    }
    if (good) {
        qsort(list, count, sizeof *list, by_bytes);
        fill_tree(v, list, count, open);
        good = group_any_text(v);
    }
    if (good) *out = v;
    free(list);
    free(open);
    if (good) return MS_OK;
    ms_vocabulary_destroy(v);
    return ms_fail_memory(err, "a vocabulary", bytes * 11);
}

void ms_vocabulary_destroy(ms_vocabulary *v) {
    if (!v) return;
    ms_group_store_destroy(v->groups);
    free(v->byte);
    free(v->depth);
    free(v->end);
    free(v->token);
    free(v);
}

size_t ms_vocabulary_mask_words(const ms_vocabulary *v) { return ((size_t)v->logits + 63) / 64; }

bool ms_matcher_token(ms_matcher *m, const ms_vocabulary *v, uint32_t id) {
    size_t len;
    const uint8_t *bytes = ms_tokenizer_token(v->tokenizer, id, &len);
    uint32_t offset = id - v->first_control;
    if (!bytes) return id >= v->first_control && offset < 256 && ms_matcher_symbol(m, MS_SYMBOL_CONTROL + offset);
    ms_match_clean(m);
    uint32_t *before = malloc((m->stacks.count + 1) * sizeof *before), count = m->stacks.count;
    if (!before || !len) {
        free(before);
        return false;
    }
    if (len == 1) {
        free(before);
        return ms_matcher_symbol(m, bytes[0]);
    }
    /* Clean-up renames frames: not between here and a step back. */
    uint32_t live = m->live;
    m->live = UINT32_MAX / 4;
    ms_match_mark mark = ms_match_marked(m);
    memcpy(before, m->stacks.data, count * sizeof *before);
    bool good = true;
    for (size_t i = 0; i < len && good; i++) good = ms_matcher_symbol(m, bytes[i]);
    if (!good) {
        ms_match_back(m, mark);
        ms_way_clear(&m->way); /* it went some bytes along */
        m->stacks.count = 0;
        for (uint32_t i = 0; i < count; i++) ms_list_push(m, &m->stacks, before[i]);
    }
    m->live = live;
    free(before);
    return good;
}
