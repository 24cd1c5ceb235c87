/* grammar_internal.h: blocks, stacks and costs, shared by the files of the grammar.
 *
 * grammar.c builds blocks; grammar_cost.c knows what completions cost; grammar_string.c reads strings; grammar_taken.c
 * keeps texts that must not come again; grammar_match.c walks; grammar_mask.c runs walks over a vocabulary.
 *
 * A stack is a linked list of frames; frames are immutable and shared (equal frames are one), so a stack is the number of
 * its top frame.  The top of a live stack is a leaf: it waits for a symbol.
 */
#ifndef MS_TEXT_GRAMMAR_INTERNAL_H
#define MS_TEXT_GRAMMAR_INTERNAL_H

#include "text/grammar.h"

typedef enum ms_block_kind {
    MS_BLOCK_DFA, MS_BLOCK_CONTROL, MS_BLOCK_TEXT, MS_BLOCK_SEQUENCE, MS_BLOCK_CHOICE, MS_BLOCK_REPEAT,
    MS_BLOCK_NUMBER, MS_BLOCK_STRING, MS_BLOCK_OBJECT, MS_BLOCK_MEMBERS, MS_BLOCK_ARRAY
} ms_block_kind;

/* A member of an object; literal is the quoted key. */
typedef struct ms_member {
    char *literal;
    uint32_t literal_len, value;
    bool required;
} ms_member;

/* Texts of a length, with all shorter ones. */
typedef struct ms_level {
    uint32_t length; /* bytes, at most */
    uint64_t words, bytes;
} ms_level;

/* Keys or items that must differ: a leaf block and how long its shortest texts are. */
typedef struct ms_distinct {
    uint32_t leaf;
    uint32_t number;   /* among those of its block */
    uint32_t value;    /* extras: the member's value */
    ms_level *levels;  /* its shortest texts, by length */
    uint32_t level_count;
    uint32_t known; /* as many of them matter for a lower bound */
} ms_distinct;

typedef struct ms_object_block {
    ms_member *members;
    uint32_t member_count;
    uint32_t *sorted, *rank; /* member numbers by literal; the place of each there */
    uint32_t *next_required; /* [count + 1]: first required member from here; count: none */
    uint32_t *required_cost; /* [count + 1]: suffix sums of key, colon, value and one comma */
    uint32_t *required_left; /* [count + 1] */
    ms_distinct *extras;
    uint32_t extra_count, min, max;
    bool counted; /* min or max matters: frames count members */
} ms_object_block;

typedef struct ms_array_block {
    uint32_t *prefix;
    uint32_t *prefix_cost; /* [count + 1]: sums of item and one comma */
    uint32_t prefix_count, items, min, max, contained, other, min_contained, max_contained;
    bool unique;
    ms_distinct *classes; /* unique: the alternatives of items */
    uint32_t class_count;
    uint32_t clamp, contained_clamp; /* larger counts are all the same */
} ms_array_block;

typedef struct ms_block {
    ms_block_kind kind;
    uint32_t cost; /* shortest text, at most */
    uint32_t *items; /* sequence, choice, members */
    uint32_t count;
    uint32_t *tail; /* sequence: [count + 1] suffix sums of costs */
    bool *required; /* members */
    uint32_t min, max; /* repeat, members, string */
    ms_string_form form;
    uint32_t dfa; /* of ms_grammar.dfas; MS_DFA_NONE: any text */
    uint32_t *weights; /* string with automaton: bytes to acceptance along a shortest word, by state */
    uint32_t symbol; /* control */
    ms_object_block *object;
    ms_array_block *array;
} ms_block;

struct ms_grammar {
    ms_block *blocks; /* 0 is never used */
    uint32_t count, cap;
    ms_dfa *dfas;
    uint32_t dfa_count, dfa_cap;
    uint64_t count_work;  /* steps left for counting texts that must differ */
    uint64_t schema_work; /* ms_grammar_work */
    uint32_t root, space; /* space: the block of white space between JSON tokens */
    bool control_used[256];
    ms_status status;
    ms_error error;
};

typedef enum ms_phase {
    MS_PHASE_START, /* before the opening bracket; also the phase of all other kinds */
    MS_PHASE_FIRST, /* after the opening bracket */
    MS_PHASE_NEXT,  /* after a comma */
    MS_PHASE_KEY,   /* inside a declared key; c, d: range of sorted members; start: bytes of it read */
    MS_PHASE_COLON, /* after a key; c: block of the value */
    MS_PHASE_VALUE, /* after the colon; c as above */
    MS_PHASE_EXTRA, /* under the key of an extra member; c: which; start: where the key began */
    MS_PHASE_AFTER, /* after a member or item */
    MS_PHASE_END,   /* after white space that must be followed by the closing bracket */
    MS_PHASE_ITEM   /* under a unique item; start: where it began */
} ms_phase;

typedef struct ms_frame {
    uint32_t parent, block;
    uint32_t a, b, c, d; /* by kind: see grammar_match.c */
    uint32_t seen;       /* newest of the texts that must not come again; 0: none */
    uint32_t start;
    uint32_t phase;
    /* not part of its identity */
    uint32_t total; /* bound of the whole stack */
    uint64_t stack; /* hash of the whole stack; 0: it depends on the latest bytes (start) */
    uint32_t chain; /* hash chain */
    uint32_t epoch;
} ms_frame;
enum { MS_FRAME_KEY_BYTES = 9 * sizeof(uint32_t), MS_FRAME_ROOT = 0, MS_FRAME_FLOOR = 1 };

/* A text of the log that must not come again. */
typedef struct ms_seen {
    uint32_t older, start, len, count; /* count: how many with the older ones */
    uint32_t roots;                    /* their trees, by class (grammar_taken.h) */
    uint64_t hash; /* of all of them */
} ms_seen;

/* A node of a tree of taken texts. */
typedef struct ms_taken {
    uint32_t label, label_len; /* its run of bytes, in the log */
    uint32_t state;            /* of the class's automaton behind it */
    uint32_t branches, branch_count;
    uint32_t cost; /* from behind it to the end of a new text */
    bool taken;    /* a text ends here */
} ms_taken;

/* What a node goes on with; those of a node ascend. */
typedef struct ms_branch {
    uint32_t symbol, node;
} ms_branch;

typedef struct ms_list {
    uint32_t *data;
    uint32_t count, cap;
} ms_list;

/* A shortest completion of what was read, kept while it is kept to (grammar_way.h). */
typedef struct ms_way {
    const void *vocabulary; /* whose tokens; NULL: there is none */
    uint16_t *symbols;
    uint32_t *need, *first; /* [length + 1]: tokens from each symbol on, and the first of them */
    uint32_t length, at;
} ms_way;
void ms_way_clear(ms_way *w);

struct ms_matcher {
    const ms_grammar *g;
    ms_frame *frames; /* 0: under every stack; 1: floor of local walks (grammar_mask.c) */
    uint32_t count, cap;
    uint32_t *buckets;
    uint32_t bucket_mask;
    ms_seen *seen; /* 0 is none */
    uint32_t seen_count, seen_cap;
    ms_taken *taken; /* 0: the root of a tree without texts */
    ms_branch *branches;
    uint32_t *roots;
    uint32_t taken_count, taken_cap, branch_count, branch_cap, root_count, root_cap;
    uint8_t *log; /* bytes read so far */
    uint32_t log_len, log_cap;
    ms_list stacks, work, next, path;
    uint32_t epoch;
    uint32_t live; /* frames after the last clean-up */
    ms_way way;
    bool failed;
};

static inline uint32_t ms_bound_add(uint32_t a, uint32_t b) {
    return a >= MS_BOUND_NONE || b >= MS_BOUND_NONE || a + b >= MS_BOUND_NONE ? MS_BOUND_NONE : a + b;
}
static inline uint32_t ms_bound_times(uint32_t a, uint32_t n) {
    uint64_t v = (uint64_t)a * n;
    return n == 0 ? 0 : v >= MS_BOUND_NONE ? MS_BOUND_NONE : (uint32_t)v;
}

/* ------------------------------------------------------------------ grammar_cost.c */

/* Fills all block costs, which only fall, from "none" to the shortest text.  MS_ERR_USAGE: it takes too many steps. */
ms_status ms_cost_blocks(ms_grammar *g, ms_error *err);
/* What the frame alone takes to its end. */
uint32_t ms_cost_frame(const ms_matcher *m, const ms_frame *f);
/* Whether a class has so many texts, and how long the longest of the shortest so many are at most. */
bool ms_texts_known(const ms_distinct *d, uint64_t texts, uint32_t *longest);
/* Whether an object or array frame may close, and whether a member or item may follow; its a, b and seen count. */
bool ms_may_end(const ms_matcher *m, const ms_frame *f);
bool ms_more_fits(const ms_matcher *m, const ms_frame *f);
/* Which: a member by its number, an extra one, an item of a class of distinct items. */
bool ms_member_fits(const ms_matcher *m, const ms_frame *f, uint32_t member);
bool ms_extra_fits(const ms_matcher *m, const ms_frame *f, uint32_t extra);
/* The count after one more item; larger ones than matter are all the same. */
static inline uint32_t ms_count_up(uint32_t count, uint32_t clamp) { return count < clamp ? count + 1 : count; }
/* Block of the item at a place; 0: none. */
static inline uint32_t ms_item_at(const ms_array_block *a, uint32_t place) {
    return place < a->prefix_count ? a->prefix[place] : a->items;
}

/* ------------------------------------------------------------------ grammar_string.c */

/* Moves a string frame by one byte; result: 0 does not fit, 1 goes on as *f, 2 the closing quote: the string ends. */
int ms_string_step(const ms_matcher *m, ms_frame *f, uint8_t byte);
/* What a byte makes of a code point that is not complete (a frame's c), whatever the string's language. */
typedef enum ms_decoded { MS_DECODED_BAD, MS_DECODED_PART, MS_DECODED_SYMBOL, MS_DECODED_END } ms_decoded;
ms_decoded ms_string_decode(ms_string_form form, uint32_t *part, uint8_t byte, uint32_t *cp);
uint32_t ms_string_begun(uint32_t part); /* bytes of it that were read */
/* Moves a frame by a whole code point; false: the language or the length does not allow it. */
bool ms_string_take(const ms_matcher *m, ms_frame *f, uint32_t cp);
extern const uint32_t ms_string_escape; /* the part behind a backslash */
bool ms_string_may_end(const ms_matcher *m, const ms_frame *f); /* as it stands */
uint32_t ms_string_cost(const ms_matcher *m, const ms_frame *f);
/* Code points that a part can become, and bytes to come of them. */
typedef struct ms_piece {
    uint32_t lo, hi, rest;
} ms_piece;
/* Fewest bytes of a code point of lo..hi inside a string of this form. */
uint32_t ms_char_cost(ms_string_form form, uint32_t lo, uint32_t hi);

/* ------------------------------------------------------------------ grammar_match.c */

/* Appends to out the stacks that `from` becomes by a symbol.  The log must end with the symbol's byte already. */
void ms_match_step(ms_matcher *m, uint32_t from, uint32_t symbol, ms_list *out);
/* Adds to the set the symbols that the stack may be able to read. */
void ms_match_candidates(const ms_matcher *m, uint32_t from, uint64_t symbols[MS_SYMBOLS / 64]);
/* Appends the leaves of a stack whose top frame is to be resumed. */
void ms_match_resume(ms_matcher *m, uint32_t frame, ms_list *out);
uint32_t ms_match_frame(ms_matcher *m, const ms_frame *f); /* MS_DFA_NONE: no completion, or no memory */
void ms_match_epoch(ms_matcher *m); /* before the steps whose results are one set */
bool ms_match_log(ms_matcher *m, uint8_t byte);
/* Forgets frames and texts made since. */
typedef struct ms_match_mark {
    uint32_t frames, seen, taken, branches, roots, log;
} ms_match_mark;
ms_match_mark ms_match_marked(const ms_matcher *m);
void ms_match_back(ms_matcher *m, ms_match_mark mark);
void ms_match_clean(ms_matcher *m); /* forgets unreachable frames when they are many; renames the others */
void ms_list_push(ms_matcher *m, ms_list *l, uint32_t v);
/* Room for `need` items; false: no memory, the matcher has failed. */
bool ms_match_grow(ms_matcher *m, void **data, uint32_t *cap, uint32_t need, size_t item);

#endif
