/* grammar.h: what a reply may look like, as blocks, and a matcher that walks along it.
 *
 *     blocks --finish--> ms_grammar (immutable) --> ms_matcher (one reply) --> ms_mask (grammar_mask.h: allowed tokens)
 *
 * A grammar reads symbols: the 256 bytes of ordinary text and, above them, control tokens (MS_SYMBOL_CONTROL + offset).
 * Blocks are numbers; a block may be used in many places, and before it is defined, so that grammars can recurse.
 * Repeats and lengths are counted at run time, never written out.
 *
 * A matcher is a set of stacks.  Every stack in the set can be completed, and its `bound` says how many symbols its
 * shortest completion takes at most: from any state some symbol lowers the bound by one or more.  That is what keeps a
 * limited reply valid (grammar_mask.h).
 *
 * Owns: a grammar its blocks and automata; a matcher its stacks and the bytes so far.
 * Threads: a finished grammar may be used by many threads; a matcher belongs to one.
 * Errors: block functions return 0 after a failure, which ms_grammar_finish reports; a matcher that ran out of memory
 * accepts nothing more and says so.
 */
#ifndef MS_TEXT_GRAMMAR_H
#define MS_TEXT_GRAMMAR_H

#include "text/dfa.h"

typedef struct ms_grammar ms_grammar;

enum { MS_SYMBOL_CONTROL = 256, MS_SYMBOLS = 512 };
#define MS_UNLIMITED UINT32_MAX
/* A bound of this size or more: nothing completes it. */
#define MS_BOUND_NONE (UINT32_C(1) << 30)
/* Symbols of the shortest text that a grammar may have: what finds the shortest way to a reply's end goes that far. */
enum { MS_LEAST_MAX = 1 << 18 };

ms_status ms_grammar_create(ms_grammar **out, ms_error *err);
void ms_grammar_free(ms_grammar *g); /* NULL is fine */

/* Steps left for schemas that are compiled into it, beyond a share that each has for itself: so many schemas are not
 * more work than a few (schema_compile.c). */
uint64_t *ms_grammar_work(ms_grammar *g);

/* ------------------------------------------------------------------ blocks */

uint32_t ms_grammar_literal(ms_grammar *g, const char *text, size_t len);
/* A byte automaton, which moves into the grammar. */
uint32_t ms_grammar_dfa(ms_grammar *g, ms_dfa *bytes);
uint32_t ms_grammar_control(ms_grammar *g, uint32_t offset); /* offset: from the first control id, below 256 */
/* Any bytes up to what follows, which must begin with a control token. */
uint32_t ms_grammar_text(ms_grammar *g);
uint32_t ms_grammar_sequence(ms_grammar *g, const uint32_t *items, size_t count); /* none: the empty text */
uint32_t ms_grammar_choice(ms_grammar *g, const uint32_t *items, size_t count);   /* none: nothing fits */
uint32_t ms_grammar_repeat(ms_grammar *g, uint32_t item, uint32_t min, uint32_t max);
/* The decimal number, from 1, of the innermost repeat's current item. */
uint32_t ms_grammar_number_of_item(ms_grammar *g);
/* A block to be defined later as a choice. */
uint32_t ms_grammar_reserve(ms_grammar *g);
void ms_grammar_define(ms_grammar *g, uint32_t reserved, const uint32_t *items, size_t count);

typedef enum ms_string_form {
    MS_STRING_JSON,      /* quoted; any escape may be used */
    MS_STRING_CANONICAL, /* quoted; one spelling a text: only what must be escaped is, in the shortest way */
    MS_STRING_RAW        /* bare code points up to what follows, which must begin with a control token */
} ms_string_form;

typedef struct ms_string_rule {
    ms_string_form form;
    ms_dfa *dfa;       /* over code points, moves into the grammar; NULL: any text.  Not with MS_STRING_JSON */
    uint32_t min, max; /* code points; min only without an automaton (ms_dfa_bounded) */
} ms_string_rule;
uint32_t ms_grammar_string(ms_grammar *g, const ms_string_rule *rule);

typedef struct ms_member_rule {
    const char *key; /* decoded */
    size_t key_len;
    uint32_t value;
    bool required;
} ms_member_rule;

typedef struct ms_extra_rule {
    ms_dfa *key; /* over code points, moves in; must not hold a declared key; NULL: any text */
    uint32_t value;
} ms_extra_rule;

/* Lower bounds on members or items that must differ go up to this. */
enum { MS_DISTINCT_MAX = 4096 };

typedef struct ms_object_rule {
    const ms_member_rule *members; /* written in this order; optional ones may be left out */
    size_t member_count;
    const ms_extra_rule *extras; /* then these, in any order, no key twice */
    size_t extra_count;
    uint32_t min, max; /* members */
} ms_object_rule;
uint32_t ms_grammar_object(ms_grammar *g, const ms_object_rule *rule);

/* The members of an object in another spelling: `blocks` in order, optional ones may be left out. */
uint32_t ms_grammar_members(ms_grammar *g, const uint32_t *blocks, const bool *required, size_t count, uint32_t min,
                            uint32_t max);

typedef struct ms_array_rule {
    const uint32_t *prefix;
    size_t prefix_count;
    uint32_t items;            /* the others; 0: none */
    uint32_t min, max;
    uint32_t contained, other; /* `contains`: items that count and that do not; 0: no such rule.  Excludes prefix */
    uint32_t min_contained, max_contained;
    bool unique;               /* no text twice; items is then a choice of ms_grammar_dfa and canonical strings */
} ms_array_rule;
uint32_t ms_grammar_array(ms_grammar *g, const ms_array_rule *rule);

/* Ends building.  MS_ERR_USAGE when no text at all fits, or none of at most MS_LEAST_MAX symbols. */
ms_status ms_grammar_finish(ms_grammar *g, uint32_t root, ms_error *err);
/* Whether no text at all fits a block; after finish, also one that failed for its root. */
bool ms_grammar_is_empty(const ms_grammar *g, uint32_t block);
/* The failure that made blocks 0, before finish; MS_OK: none so far. */
ms_status ms_grammar_status(const ms_grammar *g);

/* ------------------------------------------------------------------ matcher */

typedef struct ms_matcher ms_matcher;
ms_status ms_matcher_create(ms_matcher **out, const ms_grammar *g, ms_error *err);
ms_status ms_matcher_copy(ms_matcher **out, const ms_matcher *from, ms_error *err);
void ms_matcher_destroy(ms_matcher *m);

/* Reads one symbol.  false: it does not fit (or memory ran out), and the matcher is as before. */
bool ms_matcher_symbol(ms_matcher *m, uint32_t symbol);
/* Whether what was read is complete. */
bool ms_matcher_accepts(const ms_matcher *m);
/* Symbols that a completion takes at most; 0 when accepted. */
uint32_t ms_matcher_bound(const ms_matcher *m);
bool ms_matcher_failed(const ms_matcher *m);

#endif
