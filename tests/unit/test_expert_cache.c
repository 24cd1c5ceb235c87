/* The expert cache: a table of scenarios, and a long random comparison with a naive model. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cache/expert_cache.h"

static ms_expert_cache *create(uint32_t layers, uint32_t experts, uint32_t slots) {
    ms_expert_cache *c;
    ms_error err;
    if (ms_cache_create(&c, layers, experts, slots, &err) != MS_OK) fail_msg("%s", err.message);
    return c;
}

static void check(const ms_expert_cache *c) {
    ms_error err;
    if (ms_cache_check(c, &err) != MS_OK) fail_msg("%s", err.message);
}

/* ------------------------------------------------------------------ scenarios
 *
 * A script of steps over one layer of 8 experts and 3 slots.  "p" plans the digits that follow and shows each
 * want as h (hit), f (fill) or s (stream) with its slot; the wants of the n-th plan are then a0, a1 .. for the
 * first, b0 .. for the second.  c, r, x, d commit, release, abort, abort damaged the want named after them.
 * "o" shows which experts are resident; "!" in front expects MS_ERR_USAGE; "k" clears. */
typedef struct scenario {
    const char *name, *script, *shows;
} scenario;

static const scenario scenarios[] = {
    {"empty slots first, in order", "p567 ca0 ca1 ca2 o", "f0f1f2 [567]"},
    {"nothing is resident before the commit", "p5 o ca0 o", "f0 [] [5]"},
    {"hits", "p56 ca0 ca1 ra0 ra1 p65", "f0f1 h1h0"},
    {"least recently used goes first", "p567 ca0 ca1 ca2 ra0 ra1 ra2 p5 rb0 p1 cc0 o", "f0f1f2 h0 f1 [157]"},
    {"recency is the order of ids, not of arrival", "p567 ca2 ca1 ca0 ra2 ra1 ra0 p1 cb0 o", "f0f1f2 f0 [167]"},
    {"a plan never evicts what it needs", "p567 ca0 ca1 ca2 ra0 ra1 ra2 p125 cb0 cb1 o", "f0f1f2 f1f2h0 [125]"},
    {"more experts than slots", "p12345 ca0 ca1 ca2 o", "f0f1f2s-s- [123]"},
    {"all hits stay, the rest streams", "p123 ca0 ca1 ca2 ra0 ra1 ra2 p41235 o", "f0f1f2 s-h0h1h2s- [123]"},
    {"leased slots are not replaced", "p123 ca0 ca1 ca2 ra1 p45 o", "f0f1f2 f1s- [123]"},
    {"two leases of one slot", "p1 ca0 p1 ra0 p234 rb0 !rb0", "f0 h0 f1f2s-"},
    {"abort keeps the old expert", "p123 ca0 ca1 ca2 ra0 ra1 ra2 p4 o xb0 o p4", "f0f1f2 f0 [123] [123] f0"},
    {"a damaged slot is empty", "p123 ca0 ca1 ca2 ra0 ra1 ra2 p4 db0 o p1", "f0f1f2 f0 [23] f0"},
    {"abort of an empty slot", "p1 xa0 o p2 cb0 o", "f0 [] f0 [2]"},
    {"an empty slot goes before an aborted one", "p123 ca0 ca1 ca2 ra0 ra1 ra2 p45 db1 xb0 p6 p7",
     "f0f1f2 f0f1 f1 f0"},
    {"an expert on its way streams", "p1 p1 ca0 p1", "f0 s- h0"},
    {"so does the old one of a reserved slot", "p123 ca0 ca1 ca2 ra0 ra1 ra2 p4 p1 xb0 p1", "f0f1f2 f0 s- h0"},
    {"the old one is gone after the commit", "p123 ca0 ca1 ca2 ra0 ra1 ra2 p4 cb0 p1", "f0f1f2 f0 f1"},
    {"empty plan", "p o", " []"},
    {"refused plans change nothing", "!p11 !p8 !p19 !p123456787 p1", "f0"},
    {"wrong ends", "p1 !ra0 ca0 !ca0 !xa0 !da0 ra0 !ra0 p1 !cb0 !xb0 rb0 !rb0", "f0 h0"},
    {"ends of a stream", "p1234 !ca3 !xa3 ra3 xa0 xa1 xa2 !xa2 !ca2", "f0f1f2s-"},
    {"a stale want", "p1 ca0 ra0 p23 cb0 cb1 rb0 rb1 p45 cc0 cc1 !ra0", "f0 f1f2 f0f1"},
    {"a stale want of a reserved slot", "p123 ca0 ca1 ca2 ra0 ra1 ra2 p4 !ra0 !xa0 cb0 rb0", "f0f1f2 f0"},
    {"clear", "p1 !k ca0 !k ra0 k o p2", "f0 [] f0"},
};

typedef struct player {
    ms_expert_cache *c;
    ms_want wants[26][16];
    unsigned plans;
    char shown[256];
} player;

static void show(player *p, const char *text) {
    size_t n = strlen(p->shown);
    (void)snprintf(p->shown + n, sizeof p->shown - n, "%s", text);
}

static ms_status play_plan(player *p, const char *digits, size_t n) {
    uint32_t ids[16];
    char text[8];
    for (size_t i = 0; i < n; i++) ids[i] = (uint32_t)(digits[i] - '0');
    ms_want *w = p->wants[p->plans];
    ms_status status = ms_cache_plan(p->c, 0, ids, (uint32_t)n, w, NULL);
    if (status != MS_OK) return status;
    p->plans++;
    show(p, p->plans > 1 ? " " : "");
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(w[i].expert, ids[i]);
        text[0] = w[i].kind == MS_WANT_HIT ? 'h' : w[i].kind == MS_WANT_FILL ? 'f' : 's';
        text[1] = w[i].slot == MS_NO_SLOT ? '-' : (char)('0' + w[i].slot);
        text[2] = '\0';
        show(p, text);
    }
    return status;
}

static ms_status play_step(player *p, const char *step, size_t n) {
    char text[16] = " [";
    size_t len = 2;
    if (step[0] == 'p') return play_plan(p, step + 1, n - 1);
    if (step[0] == 'k') return ms_cache_clear(p->c, NULL);
    if (step[0] == 'o') {
        for (uint32_t e = 0; e < 8; e++) {
            if (ms_cache_resident(p->c, 0, e)) text[len++] = (char)('0' + e);
        }
        text[len] = ']';
        show(p, text);
        return MS_OK;
    }
    const ms_want *w = &p->wants[step[1] - 'a'][step[2] - '0'];
    switch (step[0]) {
    case 'c': return ms_cache_commit(p->c, 0, w, NULL);
    case 'r': return ms_cache_release(p->c, 0, w, NULL);
    case 'x': return ms_cache_abort(p->c, 0, w, false, NULL);
    default: return ms_cache_abort(p->c, 0, w, true, NULL);
    }
}

static void scenario_table(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof scenarios / sizeof scenarios[0]; i++) {
        player p = {.c = create(1, 8, 3)};
        for (const char *s = scenarios[i].script; *s;) {
            size_t n = strcspn(s, " ");
            bool refuse = s[0] == '!';
            ms_status want = refuse ? MS_ERR_USAGE : MS_OK, got = play_step(&p, s + refuse, n - refuse);
            if (got != want) fail_msg("%s: step %.*s gave %s", scenarios[i].name, (int)n, s, ms_status_name(got));
            check(p.c);
            s += n + (s[n] == ' ');
        }
        if (strcmp(p.shown, scenarios[i].shows) != 0) {
            fail_msg("%s: expected \"%s\", found \"%s\"", scenarios[i].name, scenarios[i].shows, p.shown);
        }
        ms_cache_destroy(p.c);
    }
}

static void limits(void **state) {
    (void)state;
    ms_expert_cache *c;
    ms_error err;
    ms_want w[4];
    const uint32_t ids[4] = {3, 1, 2, 0};
    assert_int_equal(ms_cache_create(&c, 1, 8, 9, &err), MS_ERR_USAGE);
    assert_null(c);
    assert_non_null(strstr(err.message, "9"));
    assert_int_equal(ms_cache_create(&c, 1, 0, 0, &err), MS_ERR_USAGE);
    assert_int_equal(ms_cache_create(&c, UINT32_MAX, UINT32_MAX, UINT32_MAX, &err), MS_ERR_USAGE);
    assert_int_equal(ms_cache_create(&c, UINT32_MAX, INT32_MAX - 1, INT32_MAX - 1, &err), MS_ERR_USAGE);
    assert_true(ms_cache_table_bytes(UINT32_MAX, UINT32_MAX, UINT32_MAX) == SIZE_MAX);
    assert_true(ms_cache_table_bytes(60, 896, 32) < 1 << 20);
    c = create(0, 8, 8); /* a model without routed layers */
    check(c);
    assert_int_equal(ms_cache_plan(c, 0, ids, 1, w, &err), MS_ERR_USAGE);
    ms_cache_destroy(c);
    c = create(2, 4, 0); /* nothing is kept: everything streams */
    assert_int_equal(ms_cache_plan(c, 1, ids, 4, w, &err), MS_OK);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(w[i].kind, MS_WANT_STREAM);
        assert_int_equal(w[i].slot, MS_NO_SLOT);
    }
    assert_false(ms_cache_resident(c, 1, 3));
    assert_false(ms_cache_resident(c, 2, 0));
    assert_false(ms_cache_resident(c, 0, 4));
    check(c);
    ms_cache_destroy(c);
    c = create(1, 4, 4); /* everything fits: no eviction ever */
    for (int round = 0; round < 3; round++) {
        assert_int_equal(ms_cache_plan(c, 0, ids, 4, w, &err), MS_OK);
        for (int i = 0; i < 4; i++) {
            assert_int_equal(w[i].kind, round ? MS_WANT_HIT : MS_WANT_FILL);
            if (!round) assert_int_equal(ms_cache_commit(c, 0, &w[i], &err), MS_OK);
            assert_int_equal(ms_cache_release(c, 0, &w[i], &err), MS_OK);
        }
    }
    ms_cache_stats s;
    ms_cache_get_stats(c, &s);
    assert_true(s.accesses == 12 && s.hits == 8 && s.fills == 4 && s.streams == 0 && s.evictions == 0);
    ms_want odd = {.expert = 1, .kind = MS_WANT_HIT, .slot = 4};
    assert_int_equal(ms_cache_release(c, 0, &odd, &err), MS_ERR_USAGE);
    odd = (ms_want){.expert = 4, .kind = MS_WANT_FILL, .slot = 0};
    assert_int_equal(ms_cache_commit(c, 0, &odd, &err), MS_ERR_USAGE);
    odd = (ms_want){.expert = UINT32_MAX, .kind = MS_WANT_FILL, .slot = 0}; /* the value that means nobody */
    assert_int_equal(ms_cache_commit(c, 0, &odd, &err), MS_ERR_USAGE);
    assert_int_equal(ms_cache_release(c, 0, &odd, &err), MS_ERR_USAGE);
    assert_int_equal(ms_cache_release(c, 1, &w[0], &err), MS_ERR_USAGE);
    ms_cache_destroy(c);
    ms_cache_destroy(NULL);
}

/* ------------------------------------------------------------------ the naive model */

enum { LAYERS = 3, EXPERTS = 12, MAX_SLOTS = 12, MAX_OPEN = 40 };

typedef struct model_slot {
    int expert, incoming, leases;
    int64_t age; /* larger: used later */
} model_slot;

typedef struct model {
    uint32_t slots;
    model_slot slot[LAYERS][MAX_SLOTS];
    int64_t latest, earliest;
    ms_cache_stats stats;
} model;

typedef struct open_want {
    uint32_t layer;
    ms_want want;
    bool committed;
} open_want;

static uint64_t rng_state;

static uint32_t rnd(uint32_t below) {
    rng_state = rng_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((rng_state >> 33) % below);
}

static void model_reset(model *m) {
    for (int l = 0; l < LAYERS; l++) {
        for (uint32_t s = 0; s < m->slots; s++) m->slot[l][s] = (model_slot){-1, -1, 0, ++m->latest};
    }
}

static int model_find(const model *m, uint32_t layer, uint32_t expert, bool *reserved) {
    for (uint32_t s = 0; s < m->slots; s++) {
        const model_slot *x = &m->slot[layer][s];
        if (x->expert != (int)expert && x->incoming != (int)expert) continue;
        *reserved = x->incoming >= 0;
        return (int)s;
    }
    return -1;
}

static int model_victim(const model *m, uint32_t layer) {
    int best = -1;
    for (uint32_t s = 0; s < m->slots; s++) {
        const model_slot *x = &m->slot[layer][s], *b = best < 0 ? NULL : &m->slot[layer][best];
        if (x->leases > 0) continue;
        if (!b || (x->expert < 0) > (b->expert < 0) || ((x->expert < 0) == (b->expert < 0) && x->age < b->age)) {
            best = (int)s;
        }
    }
    return best;
}

static void model_plan(model *m, uint32_t layer, const uint32_t *ids, uint32_t count, ms_want *out) {
    for (uint32_t i = 0; i < count; i++) {
        bool reserved = false;
        int s = model_find(m, layer, ids[i], &reserved);
        out[i] = (ms_want){ids[i], s < 0 ? MS_WANT_FILL : reserved ? MS_WANT_STREAM : MS_WANT_HIT, MS_NO_SLOT};
        if (out[i].kind != MS_WANT_HIT) continue;
        out[i].slot = (uint32_t)s;
        m->slot[layer][s].leases++;
        m->slot[layer][s].age = ++m->latest;
    }
    for (uint32_t i = 0; i < count; i++) {
        if (out[i].kind != MS_WANT_FILL) continue;
        int s = model_victim(m, layer);
        if (s < 0) {
            out[i].kind = MS_WANT_STREAM;
            continue;
        }
        out[i].slot = (uint32_t)s;
        m->slot[layer][s].incoming = (int)ids[i];
        m->slot[layer][s].leases++;
        m->slot[layer][s].age = ++m->latest;
    }
    m->stats.accesses += count;
    for (uint32_t i = 0; i < count; i++) {
        if (out[i].kind == MS_WANT_HIT) m->stats.hits++;
        else if (out[i].kind == MS_WANT_FILL) m->stats.fills++;
        else m->stats.streams++;
    }
}

static void model_commit(model *m, const open_want *o) {
    model_slot *x = &m->slot[o->layer][o->want.slot];
    m->stats.evictions += x->expert >= 0;
    x->expert = x->incoming;
    x->incoming = -1;
}

static void model_abort(model *m, const open_want *o, bool damaged) {
    model_slot *x = &m->slot[o->layer][o->want.slot];
    m->stats.aborts++;
    m->stats.evictions += damaged && x->expert >= 0;
    if (damaged) x->expert = -1;
    x->incoming = -1;
    x->leases--;
    x->age = --m->earliest;
}

static void random_plan(ms_expert_cache *c, model *m, open_want *open, uint32_t *n) {
    uint32_t ids[EXPERTS], layer = rnd(LAYERS), count = rnd(5);
    ms_want got[EXPERTS], want[EXPERTS];
    ms_error err;
    for (uint32_t i = 0; i < EXPERTS; i++) ids[i] = i;
    for (uint32_t i = 0; i < count; i++) { /* skewed, as routers are */
        uint32_t j = i + rnd(1 + rnd(EXPERTS - i)), t = ids[i];
        ids[i] = ids[j];
        ids[j] = t;
    }
    if (*n + count > MAX_OPEN) return;
    if (ms_cache_plan(c, layer, ids, count, got, &err) != MS_OK) fail_msg("%s", err.message);
    model_plan(m, layer, ids, count, want);
    for (uint32_t i = 0; i < count; i++) {
        if (got[i].expert != want[i].expert || got[i].kind != want[i].kind || got[i].slot != want[i].slot) {
            fail_msg("expert %u: expected kind %d slot %u, found kind %d slot %u", want[i].expert, (int)want[i].kind,
                     want[i].slot, (int)got[i].kind, got[i].slot);
        }
        if (got[i].kind != MS_WANT_STREAM) open[(*n)++] = (open_want){layer, got[i], got[i].kind == MS_WANT_HIT};
    }
}

static void random_end(ms_expert_cache *c, model *m, open_want *open, uint32_t *n) {
    if (*n == 0) return;
    open_want *o = &open[rnd(*n)];
    ms_error err;
    if (o->committed) {
        if (rnd(8) == 0) { /* wrong calls on the way */
            assert_int_equal(ms_cache_commit(c, o->layer, &o->want, &err), MS_ERR_USAGE);
            assert_int_equal(ms_cache_abort(c, o->layer, &o->want, true, &err), MS_ERR_USAGE);
        }
        if (ms_cache_release(c, o->layer, &o->want, &err) != MS_OK) fail_msg("%s", err.message);
        m->slot[o->layer][o->want.slot].leases--;
        *o = open[--*n];
    } else if (rnd(4) != 0) {
        if (rnd(8) == 0) assert_int_equal(ms_cache_release(c, o->layer, &o->want, &err), MS_ERR_USAGE);
        if (ms_cache_commit(c, o->layer, &o->want, &err) != MS_OK) fail_msg("%s", err.message);
        model_commit(m, o);
        o->committed = true;
    } else {
        bool damaged = rnd(2) == 0;
        if (ms_cache_abort(c, o->layer, &o->want, damaged, &err) != MS_OK) fail_msg("%s", err.message);
        model_abort(m, o, damaged);
        *o = open[--*n];
    }
}

static void compare(const ms_expert_cache *c, const model *m) {
    ms_cache_stats s;
    check(c);
    for (uint32_t l = 0; l < LAYERS; l++) {
        for (uint32_t e = 0; e < EXPERTS; e++) {
            bool want = false;
            for (uint32_t i = 0; i < m->slots; i++) want |= m->slot[l][i].expert == (int)e;
            if (ms_cache_resident(c, l, e) != want) fail_msg("layer %u expert %u: expected %d", l, e, want);
        }
    }
    ms_cache_get_stats(c, &s);
    assert_memory_equal(&s, &m->stats, sizeof s);
}

static void random_comparison(void **state) {
    (void)state;
    for (uint32_t slots = 0; slots <= MAX_SLOTS; slots += 3) {
        open_want open[MAX_OPEN];
        uint32_t n = 0;
        ms_expert_cache *c = create(LAYERS, EXPERTS, slots);
        model m = {.slots = slots};
        rng_state = 12345 + slots;
        model_reset(&m);
        for (int op = 0; op < 25000; op++) {
            if (rnd(3) == 0) random_plan(c, &m, open, &n);
            else random_end(c, &m, open, &n);
            compare(c, &m);
            if (n == 0 && rnd(50) == 0) {
                assert_int_equal(ms_cache_clear(c, NULL), MS_OK);
                model_reset(&m);
            } else if (n > 0 && rnd(100) == 0) {
                assert_int_equal(ms_cache_clear(c, NULL), MS_ERR_USAGE);
            }
        }
        ms_cache_destroy(c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scenario_table),
        cmocka_unit_test(limits),
        cmocka_unit_test(random_comparison),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
