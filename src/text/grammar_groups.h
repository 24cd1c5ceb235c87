/* grammar_groups.h: the tokens of a vocabulary, grouped by what a string of a grammar sees of them.
 *
 * A string's language cuts the code points into classes that it never tells apart.  Tokens that are the same sequence
 * of classes are one group, so a walk from any state of the string steps from group to group, by whole code points, and
 * takes their tokens as they are.  For a string of any text a group is a number of code points.
 *
 * A grouping depends on the vocabulary and the classes alone, so grammars share it: a store makes it when it is first asked
 * for and keeps those that were used last.
 *
 * Owns: a store its groupings; a borrowed one stays until it is given back.
 * Threads: any; groupings are immutable.
 * Invariant: a group's parent (one code point less) has a smaller number; group 0 has read nothing.
 */
#ifndef MS_TEXT_GRAMMAR_GROUPS_H
#define MS_TEXT_GRAMMAR_GROUPS_H

#include "text/grammar_internal.h"
#include "text/grammar_vocabulary.h"

enum { MS_GROUP_CUTS = 160, MS_GROUP_CLASSES = 32 };

/* What a grouping is made for. */
typedef struct ms_group_key {
    uint32_t form, part;                     /* part: what a token begins in the middle of */
    uint32_t cuts[MS_GROUP_CUTS], cut_count; /* first code points of the ranges but the first */
    uint8_t classes[MS_GROUP_CUTS + 1];      /* by range */
    uint64_t stops[4];                       /* a bare string's: bytes that may follow it */
} ms_group_key;

typedef struct ms_group {
    uint32_t parent, symbol;        /* a code point of its last class */
    uint32_t tokens, parts, floors; /* where its share of the arrays begins; that of the next group is its end */
    uint64_t *mask;                 /* of the tokens, where they are many */
} ms_group;

typedef struct ms_group_part {
    uint32_t part, token;
} ms_group_part;

typedef struct ms_groups {
    ms_group_key key;
    uint32_t count;
    ms_group *groups;     /* [count + 1] */
    uint32_t *tokens;     /* that end behind the group */
    ms_group_part *parts; /* that end inside the next code point; by part */
    uint32_t *floors;     /* nodes behind (bare strings: at) which the string may have ended */
    bool too_many;        /* groups: there are none */
    /* of the store */
    struct ms_groups *next; /* from the latest to the oldest */
    uint32_t borrowed;
} ms_groups;

/* The classes of a block's language.  false: they are too many. */
bool ms_group_key_of(const ms_grammar *g, const ms_block *b, ms_group_key *key);
bool ms_group_keys_equal(const ms_group_key *a, const ms_group_key *b);

typedef struct ms_group_store ms_group_store;
ms_group_store *ms_group_store_create(void);   /* NULL: no memory */
void ms_group_store_destroy(ms_group_store *s); /* NULL is fine; nothing is borrowed */
/* The grouping of a key, to be given back.  NULL: no memory, or it was not made and is not to be. */
const ms_groups *ms_groups_borrow(const ms_vocabulary *v, const ms_group_key *key, bool make);
void ms_groups_return(const ms_vocabulary *v, const ms_groups *g);

#endif
