/* expert_cache.h: which expert sits in which slot.  A pure plan: no memory, no I/O, no clock.
 *
 * Every routed layer has its own slots.  The victim of a miss is the coldest expert: heat is a sum over an expert's uses,
 * halved with every MS_CACHE_HALF_LIFE * slots uses of the layer; it is kept for experts without a slot too, so one that
 * comes back is as warm as its past (docs/learned.md compares policies).  Admission has two phases: ms_cache_plan
 * reserves a victim slot for each miss, whose old expert stays valid until ms_cache_commit (the bytes have
 * been installed) or comes back with ms_cache_abort (the read failed).  Slots handed out by a plan are leased:
 * no later plan replaces them until ms_cache_release.
 *
 * Owns: its tables.  Threads: one.
 * Invariants (ms_cache_check): an expert is in at most one slot of its layer; slot and expert maps agree; heat is
 *   finite; a reserved slot is leased; lease counts equal plans minus releases; a slot beyond the limit is empty.
 * The policy never changes results, only which reads happen.
 */
#ifndef MS_CACHE_EXPERT_CACHE_H
#define MS_CACHE_EXPERT_CACHE_H

#include "base/error.h"

typedef struct ms_expert_cache ms_expert_cache;

/* layers: routed layers, indexed 0..layers-1 here; slots: 0..experts. */
ms_status ms_cache_create(ms_expert_cache **out, uint32_t layers, uint32_t experts, uint32_t slots, ms_error *err);
void ms_cache_destroy(ms_expert_cache *c);
size_t ms_cache_table_bytes(uint32_t layers, uint32_t experts, uint32_t slots); /* for the ledger */

typedef enum ms_want_kind {
    MS_WANT_HIT,   /* resident: slot is leased */
    MS_WANT_FILL,  /* to be read and installed into the reserved, leased slot */
    MS_WANT_STREAM /* no slot free: to be read, used and forgotten */
} ms_want_kind;

enum { MS_NO_SLOT = UINT32_MAX, MS_CACHE_HALF_LIFE = 4 };

typedef struct ms_want {
    uint32_t expert;
    ms_want_kind kind;
    uint32_t slot; /* MS_NO_SLOT for MS_WANT_STREAM */
} ms_want;

/* Plans one use of `count` experts of a layer.  ids are distinct and < experts (else MS_ERR_USAGE and nothing
 * changes).  uses[i]: rows that use ids[i], which is what it gains in heat; NULL: one each.  wants[count] are in the order
 * of ids.  All hits are found and leased before any victim is chosen, so one plan never evicts what it needs; empty
 * slots are taken first, then the coldest, by the warmest misses first; equal ones in the order of ids and slots.
 * Heat is given out here, so it does not depend on the order in which reads land.  An expert that is on its way into a
 * slot for an earlier plan, or whose slot an earlier plan has reserved for another, is MS_WANT_STREAM: its slot's bytes
 * may be changing. */
ms_status ms_cache_plan(ms_expert_cache *c, uint32_t layer, const uint32_t *ids, const uint32_t *uses, uint32_t count,
                        ms_want *wants, ms_error *err);
/* MS_WANT_FILL: the expert's bytes are in its slot; still leased. */
ms_status ms_cache_commit(ms_expert_cache *c, uint32_t layer, const ms_want *want, ms_error *err);
/* MS_WANT_FILL whose install has begun (slot bytes damaged) sets damaged: the slot becomes empty.  Otherwise
 * the old expert stays, as cold as it was.  Ends the lease. */
ms_status ms_cache_abort(ms_expert_cache *c, uint32_t layer, const ms_want *want, bool damaged, ms_error *err);
/* Ends the lease of a hit or a committed fill.  MS_WANT_STREAM holds no lease: nothing happens, MS_OK.
 * A want that does not agree with the slot (not leased, another expert, not committed) is MS_ERR_USAGE. */
ms_status ms_cache_release(ms_expert_cache *c, uint32_t layer, const ms_want *want, ms_error *err);

/* Does a slot hold this expert's bytes?  True until the fill that replaces it is committed. */
bool ms_cache_resident(const ms_expert_cache *c, uint32_t layer, uint32_t expert);
/* Experts whose bytes the layer holds, the next victims first.  out [slots] gets them; returns how many. */
uint32_t ms_cache_ranked(const ms_expert_cache *c, uint32_t layer, uint32_t *out);
/* Forgets which expert is where and all heat (counters stay); MS_ERR_USAGE while anything is leased. */
ms_status ms_cache_clear(ms_expert_cache *c, ms_error *err);
/* From now on only the first `slots` of every layer are used; the experts in the others are forgotten, and slots that come
 * back are empty.  MS_ERR_USAGE while anything is leased, or for more slots than there are. */
ms_status ms_cache_limit(ms_expert_cache *c, uint32_t slots, ms_error *err);
ms_status ms_cache_check(const ms_expert_cache *c, ms_error *err);

typedef struct ms_cache_stats {
    uint64_t accesses, hits, fills, streams; /* counted by ms_cache_plan: accesses = hits + fills + streams */
    uint64_t evictions;                      /* experts lost to a committed or damaged fill */
    uint64_t aborts;
} ms_cache_stats;
void ms_cache_get_stats(const ms_expert_cache *c, ms_cache_stats *out);

#endif
