/* grammar_vocabulary.h: the tree of a vocabulary's bytes, for the files of the mask (grammar_mask.h).
 *
 * Owns: a vocabulary its arrays.  Threads: immutable once created, but for the groups, which any thread may use.
 * Invariant: nodes are in preorder, so a subtree is a range and a child has a larger number than its parent.
 */
#ifndef MS_TEXT_GRAMMAR_VOCABULARY_H
#define MS_TEXT_GRAMMAR_VOCABULARY_H

#include "text/grammar_mask.h"

#define MS_NO_TOKEN UINT32_MAX

/* Nodes in preorder, so a subtree is a range; node 0 is the first byte of the first token. */
struct ms_vocabulary {
    const ms_tokenizer *tokenizer;
    uint32_t first_control, logits, nodes, deepest;
    uint8_t *byte;
    uint16_t *depth;            /* 1 for first bytes */
    uint32_t *end;              /* behind the subtree */
    uint32_t *token;            /* MS_NO_TOKEN: none ends here */
    struct ms_group_store *groups; /* grammar_groups.h */
    uint32_t root[256];         /* node of a first byte; UINT32_MAX: none */
};

/* Bytes of the way to a node: those of the first token below it. */
static inline const uint8_t *ms_vocabulary_path(const ms_vocabulary *v, uint32_t node) {
    size_t len;
    while (v->token[node] == MS_NO_TOKEN) node++;
    return ms_tokenizer_token(v->tokenizer, v->token[node], &len);
}

#endif
