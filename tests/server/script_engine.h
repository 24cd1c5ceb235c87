/* script_engine.h: a timeline without weights: what it says next is a function of its tokens and a list of rules.
 *
 * The rule whose key stands last in the text before the latest generation prompt gives the reply.  So reuse, restoring
 * and repeating behave as with a model: equal tokens, equal logits.
 */
#ifndef TESTS_SERVER_SCRIPT_ENGINE_H
#define TESTS_SERVER_SCRIPT_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>

#include "server/candidate.h"
#include "server/causal.h"

enum { SCRIPT_RULES = 64, SCRIPT_KEPT = 8, SCRIPT_LAYERS = 8 };

typedef struct script_rule {
    char key[128];
    ms_ids reply;
} script_rule;

typedef struct script_kept {
    ms_ids ids;
    ms_text meta;
    uint64_t entry;
} script_kept;

typedef struct script_engine {
    ms_causal base; /* first */
    const ms_text_model *text;
    ms_ids tokens;
    float *values;
    bool has_logits;
    ms_ids openers[2]; /* with and without thinking */
    script_rule rules[SCRIPT_RULES];
    size_t rule_count;
    atomic_bool cancelled;
    /* Knobs; atomics may be turned while it runs. */
    atomic_uint layer_us, token_us; /* of a pass of several rows, of one row */
    atomic_int fail_in;             /* forwards until one fails; negative: never */
    atomic_bool broken;             /* every forward fails */
    atomic_bool open_fails;
    atomic_uint open_us;
    bool keeps;   /* has kept states */
    bool rewinds; /* can go back to any position */
    atomic_bool restore_fails;
    script_kept kept[SCRIPT_KEPT];
    size_t kept_count;
    uint64_t next_entry;
    /* What happened. */
    atomic_uint forwards, rows, resets, restores, saves, largest_rows;
    atomic_int points_alive;
} script_engine;

void script_init(script_engine *s, const ms_text_model *text, uint64_t context);
void script_free(script_engine *s);
ms_causal_source script_source(script_engine *s);
/* reply: text with control names, from behind the generation prompt on. */
void script_rule_raw(script_engine *s, const char *key, const char *reply);
/* The same cut into single characters: ids that no encoder would give. */
void script_rule_cut(script_engine *s, const char *key, const char *reply);
void script_rule_ids(script_engine *s, const char *key, const uint32_t *ids, size_t count);
/* A thinking reply with a response. */
void script_say(script_engine *s, const char *key, const char *think, const char *response);
/* A thinking reply that calls a tool with one string argument. */
void script_call(script_engine *s, const char *key, const char *think, const char *tool, const char *arg,
                 const char *value);

#endif
