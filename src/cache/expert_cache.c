/* expert_cache.c: slot tables, heat and two-phase admission (see expert_cache.h).
 *
 * One allocation holds everything: a table of slots (layer-major), the heat of every expert, the expert-to-slot map,
 * and the marks that find repeated ids.
 *
 * A slot is empty, valid or reserved.  Reserved: `incoming` is the expert to be installed, `expert` the old one
 * (MS_NO_SLOT: none), which stays in the map until the commit; the slot has exactly one lease, its plan's.
 *
 * Nothing is halved: what a use is worth grows instead, which keeps all ratios and costs nothing for experts that are
 * not named.  A layer whose numbers become large is scaled down, and what that rounds to 0 is as cold as can be. Slots
 * are searched one by one: a layer has tens or hundreds, and a miss costs a read of megabytes.
 *
 * Threads: one.  Errors: MS_ERR_USAGE for calls that disagree with the tables, which then do not change.
 */
#include "cache/expert_cache.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"

enum { CACHE_NONE = MS_NO_SLOT };

typedef struct cache_slot {
    uint32_t expert;   /* whose bytes are here; CACHE_NONE: nobody's */
    uint32_t incoming; /* reserved for this expert; CACHE_NONE: not reserved */
    uint32_t leases;
} cache_slot;

#define CACHE_LARGE 0x1p400    /* far from overflow whatever one plan adds */
enum { CACHE_HALVINGS = 300 }; /* most of one plan: enough to forget what was before it */

struct ms_expert_cache {
    uint32_t layers, experts, slots;
    uint32_t usable; /* the first slots of a layer; the rest is empty */
    uint64_t leased; /* leases in all layers */
    uint32_t stamp;  /* current mark */
    ms_cache_stats stats;
    double *heat;      /* [layers][experts] */
    double *worth;     /* [layers]: what a use adds now */
    cache_slot *slot;  /* [layers][slots] */
    uint32_t *slot_of; /* [layers][experts]: the slot whose expert or incoming this is, or CACHE_NONE */
    uint32_t *mark;    /* [experts]: == stamp when already named in the plan at hand */
};

/* ------------------------------------------------------------------ creation */

static bool table_bytes(uint64_t layers, uint64_t experts, uint64_t slots, uint64_t *out) {
    uint64_t per_layer = slots * sizeof(cache_slot) + experts * (sizeof(double) + sizeof(uint32_t)) + sizeof(double);
    uint64_t all;
    return ms_mul_u64(per_layer, layers, &all) && ms_add_u64(all, experts * sizeof(uint32_t), &all) &&
           ms_add_u64(all, sizeof(ms_expert_cache), out) && *out <= SIZE_MAX / 2;
}

size_t ms_cache_table_bytes(uint32_t layers, uint32_t experts, uint32_t slots) {
    uint64_t bytes;
    return table_bytes(layers, experts, slots, &bytes) ? (size_t)bytes : SIZE_MAX;
}

static cache_slot *layer_slots(const ms_expert_cache *c, uint32_t layer) { return c->slot + (size_t)layer * c->slots; }

static uint32_t *layer_map(const ms_expert_cache *c, uint32_t layer) { return c->slot_of + (size_t)layer * c->experts; }

static void reset(ms_expert_cache *c) {
    size_t experts = (size_t)c->layers * c->experts, slots = (size_t)c->layers * c->slots;
    for (size_t i = 0; i < experts; i++) {
        c->slot_of[i] = CACHE_NONE;
        c->heat[i] = 0;
    }
    for (size_t i = 0; i < slots; i++) c->slot[i] = (cache_slot){.expert = CACHE_NONE, .incoming = CACHE_NONE};
    for (uint32_t layer = 0; layer < c->layers; layer++) c->worth[layer] = 1;
}

ms_status ms_cache_create(ms_expert_cache **out, uint32_t layers, uint32_t experts, uint32_t slots, ms_error *err) {
    uint64_t bytes;
    *out = NULL;
    if (experts == 0 || experts >= INT32_MAX) {
        return ms_fail(err, MS_ERR_USAGE, "expert cache: experts must be 1 to %d, found %u", INT32_MAX - 1, experts);
    }
    if (slots > experts) {
        return ms_fail(err, MS_ERR_USAGE, "expert cache: slots must be 0 to %u (all experts), found %u", experts,
                       slots);
    }
    if (!table_bytes(layers, experts, slots, &bytes)) {
        return ms_fail(err, MS_ERR_USAGE, "expert cache: tables of %u layers x %u experts are too large", layers,
                       experts);
    }
    ms_expert_cache *c = calloc(1, (size_t)bytes);
    if (!c) return ms_fail_memory(err, "expert cache tables", (size_t)bytes);
    c->layers = layers;
    c->experts = experts;
    c->slots = slots;
    c->usable = slots;
    /* The widest first: the others need 4-byte alignment only. */
    c->heat = (double *)(c + 1);
    c->worth = c->heat + (size_t)layers * experts;
    c->slot = (cache_slot *)(c->worth + layers);
    c->slot_of = (uint32_t *)(c->slot + (size_t)layers * slots);
    c->mark = c->slot_of + (size_t)layers * experts;
    reset(c);
    *out = c;
    return MS_OK;
}

void ms_cache_destroy(ms_expert_cache *c) { free(c); }

/* ------------------------------------------------------------------ planning */

static ms_status check_layer(const ms_expert_cache *c, uint32_t layer, ms_error *err) {
    if (layer < c->layers) return MS_OK;
    return ms_fail(err, MS_ERR_USAGE, "expert cache: layer %u of %u", layer, c->layers);
}

static ms_status check_ids(ms_expert_cache *c, const uint32_t *ids, uint32_t count, ms_error *err) {
    if (++c->stamp == 0) { /* wrapped: old marks could look new */
        memset(c->mark, 0, (size_t)c->experts * sizeof *c->mark);
        c->stamp = 1;
    }
    for (uint32_t i = 0; i < count; i++) {
        if (ids[i] >= c->experts) {
            return ms_fail(err, MS_ERR_USAGE, "expert cache: expert %u of %u", ids[i], c->experts);
        }
        if (c->mark[ids[i]] == c->stamp) {
            return ms_fail(err, MS_ERR_USAGE, "expert cache: expert %u is named twice in one plan", ids[i]);
        }
        c->mark[ids[i]] = c->stamp;
    }
    return MS_OK;
}

/* ------------------------------------------------------------------ heat */

/* All uses of one plan count as happening now: what a range of rows used most stays for the tokens behind it. */
static void warm(ms_expert_cache *c, uint32_t layer, const uint32_t *ids, const uint32_t *uses, uint32_t count) {
    double *heat = c->heat + (size_t)layer * c->experts, *worth = &c->worth[layer], sum = 0;
    if (c->slots == 0) return; /* nothing to choose */
    for (uint32_t i = 0; i < count; i++) sum += uses ? uses[i] : 1;
    double halvings = sum / ((double)MS_CACHE_HALF_LIFE * c->slots);
    *worth *= exp2(halvings < CACHE_HALVINGS ? halvings : CACHE_HALVINGS);
    for (uint32_t i = 0; i < count; i++) heat[ids[i]] += (uses ? uses[i] : 1) * *worth;
    if (*worth < CACHE_LARGE) return;
    for (uint32_t e = 0; e < c->experts; e++) heat[e] /= CACHE_LARGE;
    *worth /= CACHE_LARGE;
}

/* Empty slots are colder than any expert.  CACHE_NONE: all are leased. */
static uint32_t coldest_slot(const ms_expert_cache *c, uint32_t layer) {
    const cache_slot *slot = layer_slots(c, layer);
    const double *heat = c->heat + (size_t)layer * c->experts;
    uint32_t best = CACHE_NONE;
    double least = INFINITY;
    for (uint32_t s = 0; s < c->usable; s++) {
        if (slot[s].leases > 0) continue;
        double h = slot[s].expert == CACHE_NONE ? -1 : heat[slot[s].expert];
        if (h >= least) continue;
        best = s;
        least = h;
    }
    return best;
}

/* A miss that has no slot yet; CACHE_NONE: there is none. */
static uint32_t warmest_miss(const ms_expert_cache *c, uint32_t layer, const ms_want *wants, uint32_t count) {
    const double *heat = c->heat + (size_t)layer * c->experts;
    uint32_t best = CACHE_NONE;
    for (uint32_t i = 0; i < count; i++) {
        if (wants[i].kind != MS_WANT_FILL || wants[i].slot != MS_NO_SLOT) continue;
        if (best == CACHE_NONE || heat[wants[i].expert] > heat[wants[best].expert]) best = i;
    }
    return best;
}

static void lease(ms_expert_cache *c, uint32_t layer, uint32_t s) {
    layer_slots(c, layer)[s].leases++;
    c->leased++;
}

static void find_hits(ms_expert_cache *c, uint32_t layer, const uint32_t *ids, uint32_t count, ms_want *wants) {
    const cache_slot *slot = layer_slots(c, layer);
    const uint32_t *map = layer_map(c, layer);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t s = map[ids[i]];
        wants[i] = (ms_want){.expert = ids[i], .kind = MS_WANT_FILL, .slot = MS_NO_SLOT};
        if (s == CACHE_NONE) continue;
        if (slot[s].incoming != CACHE_NONE) {
            wants[i].kind = MS_WANT_STREAM; /* its slot is between two experts */
            continue;
        }
        wants[i].kind = MS_WANT_HIT;
        wants[i].slot = s;
        lease(c, layer, s);
    }
}

static void reserve_slots(ms_expert_cache *c, uint32_t layer, uint32_t count, ms_want *wants) {
    for (;;) {
        uint32_t i = warmest_miss(c, layer, wants, count), s = i == CACHE_NONE ? CACHE_NONE : coldest_slot(c, layer);
        if (s == CACHE_NONE) return;
        wants[i].slot = s;
        layer_slots(c, layer)[s].incoming = wants[i].expert;
        layer_map(c, layer)[wants[i].expert] = s;
        lease(c, layer, s);
    }
}

ms_status ms_cache_plan(ms_expert_cache *c, uint32_t layer, const uint32_t *ids, const uint32_t *uses, uint32_t count,
                        ms_want *wants, ms_error *err) {
    MS_TRY(check_layer(c, layer, err));
    MS_TRY(check_ids(c, ids, count, err));
    warm(c, layer, ids, uses, count);
    find_hits(c, layer, ids, count, wants);
    reserve_slots(c, layer, count, wants);
    for (uint32_t i = 0; i < count; i++) {
        if (wants[i].slot == MS_NO_SLOT) wants[i].kind = MS_WANT_STREAM;
        c->stats.hits += wants[i].kind == MS_WANT_HIT;
        c->stats.fills += wants[i].kind == MS_WANT_FILL;
        c->stats.streams += wants[i].kind == MS_WANT_STREAM;
    }
    c->stats.accesses += count;
    return MS_OK;
}

/* ------------------------------------------------------------------ ends of a plan */

static ms_status disagree(const ms_want *want, uint32_t layer, const char *call, ms_error *err) {
    return ms_fail(err, MS_ERR_USAGE, "expert cache: %s of expert %u, slot %u, layer %u does not fit the slot's state",
                   call, want->expert, want->slot, layer);
}

/* The reserved slot of a fill that is still open. */
static ms_status open_fill(const ms_expert_cache *c, uint32_t layer, const ms_want *want, const char *call,
                           ms_error *err) {
    MS_TRY(check_layer(c, layer, err));
    if (want->kind != MS_WANT_FILL || want->slot >= c->slots || want->expert >= c->experts ||
        layer_slots(c, layer)[want->slot].incoming != want->expert) {
        return disagree(want, layer, call, err);
    }
    return MS_OK;
}

ms_status ms_cache_commit(ms_expert_cache *c, uint32_t layer, const ms_want *want, ms_error *err) {
    MS_TRY(open_fill(c, layer, want, "commit", err));
    cache_slot *slot = &layer_slots(c, layer)[want->slot];
    if (slot->expert != CACHE_NONE) {
        layer_map(c, layer)[slot->expert] = CACHE_NONE;
        c->stats.evictions++;
    }
    slot->expert = want->expert;
    slot->incoming = CACHE_NONE;
    return MS_OK;
}

ms_status ms_cache_abort(ms_expert_cache *c, uint32_t layer, const ms_want *want, bool damaged, ms_error *err) {
    MS_TRY(open_fill(c, layer, want, "abort", err));
    cache_slot *slot = &layer_slots(c, layer)[want->slot];
    uint32_t *map = layer_map(c, layer);
    map[slot->incoming] = CACHE_NONE;
    slot->incoming = CACHE_NONE;
    slot->leases--;
    c->leased--;
    c->stats.aborts++;
    if (damaged && slot->expert != CACHE_NONE) {
        map[slot->expert] = CACHE_NONE;
        slot->expert = CACHE_NONE;
        c->stats.evictions++;
    }
    return MS_OK;
}

ms_status ms_cache_release(ms_expert_cache *c, uint32_t layer, const ms_want *want, ms_error *err) {
    MS_TRY(check_layer(c, layer, err));
    if (want->kind == MS_WANT_STREAM) return MS_OK;
    if (want->slot >= c->slots || want->expert >= c->experts) return disagree(want, layer, "release", err);
    cache_slot *slot = &layer_slots(c, layer)[want->slot];
    if (slot->expert != want->expert || slot->incoming != CACHE_NONE || slot->leases == 0) {
        return disagree(want, layer, "release", err);
    }
    slot->leases--;
    c->leased--;
    return MS_OK;
}

/* ------------------------------------------------------------------ looking */

bool ms_cache_resident(const ms_expert_cache *c, uint32_t layer, uint32_t expert) {
    if (layer >= c->layers || expert >= c->experts) return false;
    uint32_t s = layer_map(c, layer)[expert];
    return s != CACHE_NONE && layer_slots(c, layer)[s].expert == expert;
}

uint32_t ms_cache_ranked(const ms_expert_cache *c, uint32_t layer, uint32_t *out) {
    if (layer >= c->layers) return 0;
    const cache_slot *slot = layer_slots(c, layer);
    const double *heat = c->heat + (size_t)layer * c->experts;
    uint32_t count = 0;
    for (uint32_t s = 0; s < c->slots; s++) {
        if (slot[s].expert == CACHE_NONE) continue;
        uint32_t at = count++;
        for (; at > 0 && heat[out[at - 1]] > heat[slot[s].expert]; at--) out[at] = out[at - 1];
        out[at] = slot[s].expert;
    }
    return count;
}

ms_status ms_cache_clear(ms_expert_cache *c, ms_error *err) {
    if (c->leased > 0) {
        return ms_fail(err, MS_ERR_USAGE, "expert cache: cannot be cleared, %llu leases are open",
                       (unsigned long long)c->leased);
    }
    reset(c);
    return MS_OK;
}

static void forget_slot(ms_expert_cache *c, uint32_t layer, cache_slot *slot) {
    if (slot->expert == CACHE_NONE) return;
    layer_map(c, layer)[slot->expert] = CACHE_NONE;
    slot->expert = CACHE_NONE;
    c->stats.evictions++;
}

ms_status ms_cache_limit(ms_expert_cache *c, uint32_t slots, ms_error *err) {
    if (slots > c->slots)
        return ms_fail(err, MS_ERR_USAGE, "expert cache: expected a limit of at most %u slots, found %u", c->slots, slots);
    if (c->leased > 0)
        return ms_fail(err, MS_ERR_USAGE, "expert cache: cannot be limited, %llu leases are open",
                       (unsigned long long)c->leased);
    for (uint32_t layer = 0; layer < c->layers; layer++)
        for (uint32_t s = slots; s < c->slots; s++) forget_slot(c, layer, &layer_slots(c, layer)[s]);
    c->usable = slots;
    return MS_OK;
}

void ms_cache_get_stats(const ms_expert_cache *c, ms_cache_stats *out) { *out = c->stats; }

static ms_status broken(ms_error *err, uint32_t layer, uint32_t at, const char *what) {
    return ms_fail(err, MS_ERR_INTERNAL, "expert cache: layer %u, entry %u: %s", layer, at, what);
}

static ms_status check_heat(const ms_expert_cache *c, uint32_t layer, ms_error *err) {
    for (uint32_t e = 0; e < c->experts; e++) {
        double heat = c->heat[(size_t)layer * c->experts + e];
        if (!(heat >= 0 && heat < INFINITY)) return broken(err, layer, e, "heat is not a number");
    }
    return c->worth[layer] > 0 && c->worth[layer] < INFINITY ? MS_OK : broken(err, layer, 0, "a use is worth nothing");
}

static ms_status check_tables(const ms_expert_cache *c, uint32_t layer, uint64_t *leases, ms_error *err) {
    const cache_slot *slot = layer_slots(c, layer);
    const uint32_t *map = layer_map(c, layer);
    uint32_t named = 0, mapped = 0;
    for (uint32_t s = 0; s < c->slots; s++) {
        const uint32_t both[2] = {slot[s].expert, slot[s].incoming};
        for (int i = 0; i < 2; i++) {
            if (both[i] == CACHE_NONE) continue;
            if (both[i] >= c->experts || map[both[i]] != s) return broken(err, layer, s, "slot and map disagree");
            named++;
        }
        if (both[0] == both[1] && both[0] != CACHE_NONE) return broken(err, layer, s, "reserved for its own expert");
        if (both[1] != CACHE_NONE && slot[s].leases != 1) return broken(err, layer, s, "reserved, not leased once");
        if (both[0] == CACHE_NONE && both[1] == CACHE_NONE && slot[s].leases > 0) {
            return broken(err, layer, s, "empty and leased");
        }
        *leases += slot[s].leases;
    }
    for (uint32_t e = 0; e < c->experts; e++) mapped += map[e] != CACHE_NONE;
    /* Every named expert maps to its slot; equal counts say that no map entry is left over. */
    if (named != mapped) return broken(err, layer, mapped, "map names experts that no slot has");
    return MS_OK;
}

ms_status ms_cache_check(const ms_expert_cache *c, ms_error *err) {
    uint64_t leases = 0;
    for (uint32_t layer = 0; layer < c->layers; layer++) {
        MS_TRY(check_heat(c, layer, err));
        MS_TRY(check_tables(c, layer, &leases, err));
    }
    if (leases != c->leased) return broken(err, c->layers, 0, "lease counts disagree");
    if (c->stats.accesses != c->stats.hits + c->stats.fills + c->stats.streams) {
        return broken(err, c->layers, 0, "counters disagree");
    }
    return MS_OK;
}
