/* dfa.h: deterministic automata over code points or bytes, and the construction that all of them come from.
 *
 * An automaton is built by exploring a "virtual" one: states are keys of a fixed size, a callback lists the edges of a
 * key.  Patterns, products, complements, word lists and number ranges are each one such callback.
 *
 * Owns: ms_dfa owns its arrays.
 * Threads: immutable once built.
 * Invariants: state 0 is the start; every state reaches acceptance (others are cut off), so a walk that is not refused can
 * always be finished; no states at all is the empty language; edges of a state ascend and are disjoint.
 * Errors: MS_ERR_USAGE when the automaton would be larger than the limit, MS_ERR_MEMORY.
 */
#ifndef MS_TEXT_DFA_H
#define MS_TEXT_DFA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define MS_DFA_NONE UINT32_MAX

typedef struct ms_dfa_edge {
    uint32_t lo, hi, to;
} ms_dfa_edge;

typedef struct ms_dfa {
    uint32_t states;
    uint32_t *first; /* [states + 1] */
    ms_dfa_edge *edges;
    uint8_t *accept;
    uint32_t *dist; /* symbols of a shortest word from here */
} ms_dfa;
void ms_dfa_clear(ms_dfa *d);
ms_status ms_dfa_copy(ms_dfa *out, const ms_dfa *d, ms_error *err);

/* Target of a symbol, or MS_DFA_NONE. */
static inline uint32_t ms_dfa_step(const ms_dfa *d, uint32_t state, uint32_t symbol) {
    for (uint32_t e = d->first[state]; e < d->first[state + 1]; e++) {
        if (symbol <= d->edges[e].hi) return symbol >= d->edges[e].lo ? d->edges[e].to : MS_DFA_NONE;
    }
    return MS_DFA_NONE;
}

/* Collects the edges of one key: call in ascending symbol order. */
typedef struct ms_dfa_sink ms_dfa_sink;
void ms_dfa_emit(ms_dfa_sink *sink, uint32_t lo, uint32_t hi, const void *key);
/* Steps that finding the edges took beyond emitting them; false: the work has run out, and the rest can be left. */
bool ms_dfa_spend(ms_dfa_sink *sink, uint64_t steps);

typedef struct ms_dfa_source {
    const void *arg;
    size_t key_bytes;  /* at most 4096; keys are compared byte by byte */
    const void *start;
    void (*edges)(const void *arg, const void *key, ms_dfa_sink *sink);
    bool (*accept)(const void *arg, const void *key);
} ms_dfa_source;

/* max_states bounds the states before the cut; *work (may be NULL) is lowered by the steps taken and must not run out. */
ms_status ms_dfa_build(ms_dfa *out, const ms_dfa_source *source, uint32_t max_states, uint64_t *work, ms_error *err);

/* All words of both; of the whole alphabet (code points without surrogates) that are not in a. */
ms_status ms_dfa_intersect(ms_dfa *out, const ms_dfa *a, const ms_dfa *b, uint32_t max_states, uint64_t *work,
                           ms_error *err);
ms_status ms_dfa_complement(ms_dfa *out, const ms_dfa *a, uint32_t max_states, uint64_t *work, ms_error *err);
/* Words of a with min to max symbols; max UINT32_MAX: no bound. */
ms_status ms_dfa_bounded(ms_dfa *out, const ms_dfa *a, uint32_t min, uint32_t max, uint32_t max_states, uint64_t *work,
                         ms_error *err);

/* A word list; symbols are bytes, or code points when `utf8` (words are then well-formed). */
typedef struct ms_word {
    const char *text;
    size_t len;
} ms_word;
ms_status ms_dfa_words(ms_dfa *out, const ms_word *words, size_t count, bool utf8, uint64_t *work, ms_error *err);

/* The shortest words, counted by length: levels ascend, and have words.  At least `needed` words (fewer when there are no
 * more, or the work runs out, which leaves *work 0) and then, in few steps more, as far as `enough`; levels: room for
 * `cap`, *count of them are filled. */
typedef struct ms_dfa_level {
    uint32_t length; /* symbols */
    uint64_t words;  /* as short, or shorter */
} ms_dfa_level;
typedef struct ms_dfa_count {
    uint64_t needed, enough;
    ms_dfa_level *levels;
    uint32_t cap;
} ms_dfa_count;
ms_status ms_dfa_count_words(const ms_dfa *d, const ms_dfa_count *what, uint32_t *count, uint64_t *work, ms_error *err);

#endif
