/* expert_cache.c: slot tables, LRU order and two-phase admission (see expert_cache.h).
 *
 * One allocation holds everything: a table of slots (layer-major), the expert-to-slot map, one list head a
 * layer and the marks that find repeated ids.
 *
 * A slot is empty, valid or reserved.  Reserved: `incoming` is the expert to be installed, `expert` the old one
 * (MS_NO_SLOT: none), which stays in the map until the commit; the slot has exactly one lease, its plan's.
 * The list of a layer runs from cold to hot.  Empty slots that nobody has reserved form its cold end, so the
 * first slot without a lease is always the right victim; leased slots in front of it are few, since a lease
 * begins at the hot end.
 *
 * Threads: one.  Errors: MS_ERR_USAGE for calls that disagree with the tables, which then do not change.
 */
#include "cache/expert_cache.h"

#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"

enum { CACHE_NONE = MS_NO_SLOT };

typedef struct cache_slot {
    uint32_t expert;   /* whose bytes are here; CACHE_NONE: nobody's */
    uint32_t incoming; /* reserved for this expert; CACHE_NONE: not reserved */
    uint32_t leases;
    uint32_t colder, hotter; /* list neighbours inside the layer; CACHE_NONE at the ends */
} cache_slot;

typedef struct cache_list {
    uint32_t coldest, hottest;
} cache_list;

struct ms_expert_cache {
    uint32_t layers, experts, slots;
    uint64_t leased; /* leases in all layers */
    uint32_t stamp;  /* current mark */
    ms_cache_stats stats;
    cache_slot *slot;  /* [layers][slots] */
    uint32_t *slot_of; /* [layers][experts]: the slot whose expert or incoming this is, or CACHE_NONE */
    uint32_t *mark;    /* [experts]: == stamp when already named in the plan at hand */
    cache_list *list;  /* [layers] */
};

/* ------------------------------------------------------------------ creation */

static bool table_bytes(uint64_t layers, uint64_t experts, uint64_t slots, uint64_t *out) {
    uint64_t per_layer = slots * sizeof(cache_slot) + experts * sizeof(uint32_t) + sizeof(cache_list);
    uint64_t all;
    return ms_mul_u64(per_layer, layers, &all) && ms_add_u64(all, experts * sizeof(uint32_t), &all) &&
           ms_add_u64(all, sizeof(ms_expert_cache), out) && *out <= SIZE_MAX / 2;
}

size_t ms_cache_table_bytes(uint32_t layers, uint32_t experts, uint32_t slots) {
    uint64_t bytes;
    return table_bytes(layers, experts, slots, &bytes) ? (size_t)bytes : SIZE_MAX;
}

static cache_slot *layer_slots(const ms_expert_cache *c, uint32_t layer) {
    return c->slot + (size_t)layer * c->slots;
}

static uint32_t *layer_map(const ms_expert_cache *c, uint32_t layer) {
    return c->slot_of + (size_t)layer * c->experts;
}

static void reset(ms_expert_cache *c) {
    for (uint32_t layer = 0; layer < c->layers; layer++) {
        cache_slot *slot = layer_slots(c, layer);
        uint32_t *map = layer_map(c, layer);
        for (uint32_t e = 0; e < c->experts; e++) map[e] = CACHE_NONE;
        for (uint32_t s = 0; s < c->slots; s++) {
            slot[s] = (cache_slot){.expert = CACHE_NONE, .incoming = CACHE_NONE, .colder = s ? s - 1 : CACHE_NONE,
                                   .hotter = s + 1 < c->slots ? s + 1 : CACHE_NONE};
        }
        c->list[layer].coldest = c->slots ? 0 : CACHE_NONE;
        c->list[layer].hottest = c->slots ? c->slots - 1 : CACHE_NONE;
    }
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
    /* All parts need 4-byte alignment only. */
    c->slot = (cache_slot *)(c + 1);
    c->list = (cache_list *)(c->slot + (size_t)layers * slots);
    c->slot_of = (uint32_t *)(c->list + layers);
    c->mark = c->slot_of + (size_t)layers * experts;
    reset(c);
    *out = c;
    return MS_OK;
}

void ms_cache_destroy(ms_expert_cache *c) { free(c); }

/* ------------------------------------------------------------------ the list */

static void unlink_slot(cache_list *list, cache_slot *slot, uint32_t s) {
    uint32_t colder = slot[s].colder, hotter = slot[s].hotter;
    if (colder == CACHE_NONE) list->coldest = hotter;
    else slot[colder].hotter = hotter;
    if (hotter == CACHE_NONE) list->hottest = colder;
    else slot[hotter].colder = colder;
}

/* Puts s right on the hot side of `below` (CACHE_NONE: at the cold end). */
static void link_above(cache_list *list, cache_slot *slot, uint32_t s, uint32_t below) {
    uint32_t above = below == CACHE_NONE ? list->coldest : slot[below].hotter;
    slot[s].colder = below;
    slot[s].hotter = above;
    if (below == CACHE_NONE) list->coldest = s;
    else slot[below].hotter = s;
    if (above == CACHE_NONE) list->hottest = s;
    else slot[above].colder = s;
}

static void make_hottest(cache_list *list, cache_slot *slot, uint32_t s) {
    if (list->hottest == s) return;
    unlink_slot(list, slot, s);
    link_above(list, slot, s, list->hottest);
}

/* Next to be replaced: the cold end, behind the empty slots unless it is one. */
static void make_coldest(cache_list *list, cache_slot *slot, uint32_t s) {
    uint32_t below = CACHE_NONE, next;
    unlink_slot(list, slot, s);
    if (slot[s].expert != CACHE_NONE) {
        for (next = list->coldest; next != CACHE_NONE; next = slot[next].hotter) {
            if (slot[next].expert != CACHE_NONE || slot[next].incoming != CACHE_NONE) break;
            below = next;
        }
    }
    link_above(list, slot, s, below);
}

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

static void lease(ms_expert_cache *c, uint32_t layer, uint32_t s) {
    cache_slot *slot = layer_slots(c, layer);
    slot[s].leases++;
    c->leased++;
    make_hottest(&c->list[layer], slot, s);
}

/* The coldest slot without a lease.  *from is where to go on looking: inside one plan everything colder is leased. */
static uint32_t find_victim(const cache_slot *slot, uint32_t *from) {
    while (*from != CACHE_NONE && slot[*from].leases > 0) *from = slot[*from].hotter;
    uint32_t victim = *from;
    if (victim != CACHE_NONE) *from = slot[victim].hotter;
    return victim;
}

ms_status ms_cache_plan(ms_expert_cache *c, uint32_t layer, const uint32_t *ids, uint32_t count, ms_want *wants,
                        ms_error *err) {
    MS_TRY(check_layer(c, layer, err));
    MS_TRY(check_ids(c, ids, count, err));
    cache_slot *slot = layer_slots(c, layer);
    uint32_t *map = layer_map(c, layer);
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
        c->stats.hits++;
    }
    uint32_t from = c->list[layer].coldest;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t s = wants[i].kind == MS_WANT_FILL ? find_victim(slot, &from) : CACHE_NONE;
        if (s != CACHE_NONE) {
            wants[i].slot = s;
            slot[s].incoming = ids[i];
            map[ids[i]] = s;
            lease(c, layer, s);
            c->stats.fills++;
        } else if (wants[i].kind != MS_WANT_HIT) {
            wants[i].kind = MS_WANT_STREAM;
            c->stats.streams++;
        }
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
    make_coldest(&c->list[layer], layer_slots(c, layer), want->slot);
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

ms_status ms_cache_clear(ms_expert_cache *c, ms_error *err) {
    if (c->leased > 0) {
        return ms_fail(err, MS_ERR_USAGE, "expert cache: cannot be cleared, %llu leases are open",
                       (unsigned long long)c->leased);
    }
    reset(c);
    return MS_OK;
}

void ms_cache_get_stats(const ms_expert_cache *c, ms_cache_stats *out) { *out = c->stats; }

static ms_status broken(ms_error *err, uint32_t layer, uint32_t at, const char *what) {
    return ms_fail(err, MS_ERR_INTERNAL, "expert cache: layer %u, entry %u: %s", layer, at, what);
}

/* The list names each slot once, both ways, empty ones first. */
static ms_status check_list(const ms_expert_cache *c, uint32_t layer, ms_error *err) {
    const cache_slot *slot = layer_slots(c, layer);
    uint32_t n = 0, below = CACHE_NONE;
    bool past_empty = false;
    for (uint32_t s = c->list[layer].coldest; s != CACHE_NONE; below = s, s = slot[s].hotter) {
        /* As many steps as slots and right back links leave no room for a repeated one. */
        if (s >= c->slots || n++ >= c->slots) return broken(err, layer, s, "list is longer than the slots");
        if (slot[s].colder != below) return broken(err, layer, s, "list links disagree");
        bool empty = slot[s].expert == CACHE_NONE && slot[s].incoming == CACHE_NONE;
        if (empty && past_empty) return broken(err, layer, s, "an empty slot is not at the cold end");
        past_empty = !empty;
    }
    if (n != c->slots || c->list[layer].hottest != below) return broken(err, layer, n, "list misses slots");
    return MS_OK;
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
        MS_TRY(check_list(c, layer, err));
        MS_TRY(check_tables(c, layer, &leases, err));
    }
    if (leases != c->leased) return broken(err, c->layers, 0, "lease counts disagree");
    if (c->stats.accesses != c->stats.hits + c->stats.fills + c->stats.streams) {
        return broken(err, c->layers, 0, "counters disagree");
    }
    return MS_OK;
}
