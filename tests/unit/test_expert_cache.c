/* The expert cache: a table of scenarios, and a long random comparison with a naive model. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
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
 * "u" is a plan in which a digit stands once for every row that uses it; "w" uses one expert twelve times, to its end.
 * "o" shows which experts are resident; "!" in front expects MS_ERR_USAGE; "k" clears; "l" limits the slots. */
typedef struct scenario {
    const char *name, *script, *shows;
} scenario;

static const scenario scenarios[] = {
    {"empty slots first, in order", "p567 ca0 ca1 ca2 o", "f0f1f2 [567]"},
    {"nothing is resident before the commit", "p5 o ca0 o", "f0 [] [5]"},
    {"hits", "p56 ca0 ca1 ra0 ra1 p65", "f0f1 h1h0"},
    {"least recently used goes first", "p567 ca0 ca1 ca2 ra0 ra1 ra2 p5 rb0 p1 cc0 o", "f0f1f2 h0 f1 [157]"},
    {"the order of arrival does not matter", "p567 ca2 ca1 ca0 ra2 ra1 ra0 p1 cb0 o", "f0f1f2 f0 [167]"},
    {"used twice outlives used later", "p567 ca0 ca1 ca2 ra0 ra1 ra2 p5 rb0 p1 cc0 rc0 p2 cd0 rd0 p3 ce0 o",
     "f0f1f2 h0 f1 f2 f1 [235]"},
    {"but not for ever", "p567 ca0 ca1 ca2 ra0 ra1 ra2 p5 rb0 w1 w2 w3 o", "f0f1f2 h0 [123]"},
    {"the past of one without a slot counts",
     "p567 ca0 ca1 ca2 ra0 ra1 ra2 p5 rb0 p5 rc0 p124 cd0 cd1 cd2 rd0 rd1 rd2 p124 re0 re1 re2 p5 cf0 rf0 p3 cg0 o",
     "f0f1f2 h0 h0 f1f2f0 h1h2h0 f0 f1 [235]"},
    {"what many rows use gets the slots", "u1112233334 ca2 o", "f1f2f0s- [3]"},
    {"a plan never evicts what it needs", "p567 ca0 ca1 ca2 ra0 ra1 ra2 p125 cb0 cb1 o", "f0f1f2 f1f2h0 [125]"},
    {"more experts than slots", "p12345 ca0 ca1 ca2 o", "f0f1f2s-s- [123]"},
    {"all hits stay, the rest streams", "p123 ca0 ca1 ca2 ra0 ra1 ra2 p41235 o", "f0f1f2 s-h0h1h2s- [123]"},
    {"leased slots are not replaced", "p123 ca0 ca1 ca2 ra1 p45 o", "f0f1f2 f1s- [123]"},
    {"two leases of one slot", "p1 ca0 p1 ra0 p234 rb0 !rb0", "f0 h0 f1f2s-"},
    {"abort keeps the old expert", "p123 ca0 ca1 ca2 ra0 ra1 ra2 p4 o xb0 o p4", "f0f1f2 f0 [123] [123] f0"},
    {"a limit forgets the last slots", "p123 ca0 ca1 ca2 ra0 ra1 ra2 l1 o p23 cb0 rb0 o", "f0f1f2 [1] f0s- [2]"},
    {"no slots, then all again", "p123 ca0 ca1 ca2 ra0 ra1 ra2 l0 o p1 l3 p12 cc0 cc1 o", "f0f1f2 [] s- f0f1 [12]"},
    {"no limit under a lease, nor beyond the slots", "p1 !l1 ca0 !l3 ra0 l2 !l4 o", "f0 [1]"},
    {"a damaged slot is empty", "p123 ca0 ca1 ca2 ra0 ra1 ra2 p4 db0 o p1", "f0f1f2 f0 [23] f0"},
    {"abort of an empty slot", "p1 xa0 o p2 cb0 o", "f0 [] f0 [2]"},
    {"an empty slot goes before an aborted one", "p123 ca0 ca1 ca2 ra0 ra1 ra2 p45 db1 xb0 p6 p7", "f0f1f2 f0f1 f1 f0"},
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

static ms_status play_plan(player *p, const char *digits, size_t len, bool with_uses) {
    uint32_t ids[16], uses[16], n = 0;
    char text[8];
    for (size_t i = 0; i < len; i++) {
        if (with_uses && i > 0 && digits[i] == digits[i - 1]) {
            uses[n - 1]++;
            continue;
        }
        uses[n] = 1;
        ids[n++] = (uint32_t)(digits[i] - '0');
    }
    ms_want *w = p->wants[p->plans];
    ms_status status = ms_cache_plan(p->c, 0, ids, with_uses ? uses : NULL, n, w, NULL);
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

static ms_status play_warm(player *p, char digit) {
    uint32_t id = (uint32_t)(digit - '0');
    for (int i = 0; i < 12; i++) {
        ms_want w;
        MS_TRY(ms_cache_plan(p->c, 0, &id, NULL, 1, &w, NULL));
        if (w.kind == MS_WANT_FILL) MS_TRY(ms_cache_commit(p->c, 0, &w, NULL));
        MS_TRY(ms_cache_release(p->c, 0, &w, NULL));
    }
    return MS_OK;
}

static ms_status play_step(player *p, const char *step, size_t n) {
    char text[16] = " [";
    size_t len = 2;
    if (step[0] == 'p' || step[0] == 'u') return play_plan(p, step + 1, n - 1, step[0] == 'u');
    if (step[0] == 'w') return play_warm(p, step[1]);
    if (step[0] == 'k') return ms_cache_clear(p->c, NULL);
    if (step[0] == 'l') return ms_cache_limit(p->c, (uint32_t)(step[1] - '0'), NULL);
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
    case 'c':
        return ms_cache_commit(p->c, 0, w, NULL);
    case 'r':
        return ms_cache_release(p->c, 0, w, NULL);
    case 'x':
        return ms_cache_abort(p->c, 0, w, false, NULL);
    default:
        return ms_cache_abort(p->c, 0, w, true, NULL);
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
    assert_true(ms_cache_table_bytes(60, 896, 32) >= 60 * 896 * 12);
    c = create(0, 8, 8); /* a model without routed layers */
    check(c);
    assert_int_equal(ms_cache_plan(c, 0, ids, NULL, 1, w, &err), MS_ERR_USAGE);
    ms_cache_destroy(c);
    c = create(2, 4, 0); /* nothing is kept: everything streams */
    assert_int_equal(ms_cache_plan(c, 1, ids, NULL, 4, w, &err), MS_OK);
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
        assert_int_equal(ms_cache_plan(c, 0, ids, NULL, 4, w, &err), MS_OK);
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

/* Ranges of very many rows, for a long time: numbers stay numbers, and the last range decides. */
static void huge_ranges(void **state) {
    (void)state;
    ms_expert_cache *c = create(1, 64, 2);
    ms_want w[64];
    ms_error err;
    uint32_t ids[64], uses[64];
    for (uint32_t i = 0; i < 64; i++) ids[i] = i;
    for (uint32_t round = 0; round < 2000; round++) {
        for (uint32_t i = 0; i < 64; i++) uses[i] = round % 3 ? 1 : UINT32_MAX - i;
        uint32_t favourite = round * 7 % 64;
        uses[favourite] = UINT32_MAX;
        assert_int_equal(ms_cache_plan(c, 0, ids, uses, 64, w, &err), MS_OK);
        if (round == 0) assert_int_equal(w[favourite].kind, MS_WANT_FILL);
        for (uint32_t i = 0; i < 64; i++) {
            if (w[i].kind == MS_WANT_FILL) assert_int_equal(ms_cache_commit(c, 0, &w[i], &err), MS_OK);
            assert_int_equal(ms_cache_release(c, 0, &w[i], &err), MS_OK);
        }
        check(c);
    }
    ms_cache_destroy(c);
}

/* ------------------------------------------------------------------ the naive model
 *
 * Heat by its definition: everything is halved as time goes.  Rounding differs from the cache's, so a victim is right
 * when none was colder by more than that. */

enum { LAYERS = 3, EXPERTS = 12, MAX_SLOTS = 12, MAX_OPEN = 40 };

typedef struct model_slot {
    int expert, incoming, leases;
} model_slot;

typedef struct model {
    uint32_t slots;
    model_slot slot[LAYERS][MAX_SLOTS];
    double heat[LAYERS][EXPERTS];
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
        for (uint32_t s = 0; s < m->slots; s++) m->slot[l][s] = (model_slot){-1, -1, 0};
        for (int e = 0; e < EXPERTS; e++) m->heat[l][e] = 0;
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

/* Negative: an empty slot. */
static double model_cold(const model *m, uint32_t layer, uint32_t s) {
    const model_slot *x = &m->slot[layer][s];
    return x->expert < 0 ? -1 : m->heat[layer][x->expert];
}

static void model_fill(model *m, uint32_t layer, const ms_want *got) {
    assert_true(got->slot < m->slots);
    model_slot *x = &m->slot[layer][got->slot];
    assert_int_equal(x->leases, 0);
    double mine = model_cold(m, layer, got->slot);
    for (uint32_t s = 0; s < m->slots; s++) {
        if (m->slot[layer][s].leases > 0) continue;
        double other = model_cold(m, layer, s);
        if (other < mine - 1e-9 * fabs(mine)) fail_msg("slot %u of heat %g, slot %u has %g", got->slot, mine, s, other);
        if (other < 0 && s < got->slot) fail_msg("slot %u, but %u is empty", got->slot, s);
    }
    x->incoming = (int)got->expert;
    x->leases++;
}

/* Follows what the cache chose, having checked it.  Fills are looked at from the warmest to the coldest. */
static void model_plan(model *m, uint32_t layer, const uint32_t *ids, const uint32_t *uses, uint32_t count,
                       const ms_want *got) {
    uint32_t sum = 0, fills = 0, order[EXPERTS];
    double *heat = m->heat[layer];
    for (uint32_t i = 0; i < count; i++) sum += uses[i];
    if (m->slots)
        for (int e = 0; e < EXPERTS; e++) heat[e] *= exp2(-(double)sum / (MS_CACHE_HALF_LIFE * m->slots));
    for (uint32_t i = 0; i < count; i++) heat[ids[i]] += uses[i];
    for (uint32_t i = 0; i < count; i++) {
        bool reserved = false;
        int s = model_find(m, layer, ids[i], &reserved);
        assert_int_equal(got[i].expert, ids[i]);
        if (s >= 0) assert_int_equal(got[i].kind, reserved ? MS_WANT_STREAM : MS_WANT_HIT);
        if (s >= 0 && !reserved) assert_int_equal(got[i].slot, s);
        if (s < 0 && got[i].kind == MS_WANT_HIT) fail_msg("a hit on expert %u, which is nowhere", ids[i]);
        m->stats.hits += got[i].kind == MS_WANT_HIT;
        m->stats.fills += got[i].kind == MS_WANT_FILL;
        m->stats.streams += got[i].kind == MS_WANT_STREAM;
        if (s < 0) order[fills++] = i;
    }
    m->stats.accesses += count;
    for (uint32_t i = 0; i < count; i++)
        if (got[i].kind == MS_WANT_HIT) m->slot[layer][got[i].slot].leases++;
    for (uint32_t i = 1; i < fills; i++)
        for (uint32_t j = i; j > 0 && heat[ids[order[j]]] > heat[ids[order[j - 1]]] * (1 + 1e-9); j--) {
            uint32_t t = order[j];
            order[j] = order[j - 1];
            order[j - 1] = t;
        }
    bool full = false;
    for (uint32_t i = 0; i < fills; i++) {
        const ms_want *w = &got[order[i]];
        if (w->kind == MS_WANT_FILL) {
            assert_false(full);
            model_fill(m, layer, w);
            continue;
        }
        full = true; /* the others are no warmer and must stream as well */
        assert_int_equal(w->slot, MS_NO_SLOT);
        for (uint32_t s = 0; s < m->slots; s++) assert_true(m->slot[layer][s].leases > 0);
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
}

static void random_plan(ms_expert_cache *c, model *m, open_want *open, uint32_t *n) {
    uint32_t ids[EXPERTS], layer = rnd(LAYERS), count = rnd(5);
    uint32_t uses[EXPERTS];
    ms_want got[EXPERTS];
    ms_error err;
    for (uint32_t i = 0; i < EXPERTS; i++) ids[i] = i;
    for (uint32_t i = 0; i < count; i++) { /* skewed, as routers are */
        uint32_t j = i + rnd(1 + rnd(EXPERTS - i)), t = ids[i];
        ids[i] = ids[j];
        ids[j] = t;
    }
    bool range = rnd(4) == 0;
    for (uint32_t i = 0; i < count; i++) uses[i] = range ? 1 + rnd(5) : 1;
    if (*n + count > MAX_OPEN) return;
    if (ms_cache_plan(c, layer, ids, range ? uses : NULL, count, got, &err) != MS_OK) fail_msg("%s", err.message);
    model_plan(m, layer, ids, uses, count, got);
    for (uint32_t i = 0; i < count; i++)
        if (got[i].kind != MS_WANT_STREAM) open[(*n)++] = (open_want){layer, got[i], got[i].kind == MS_WANT_HIT};
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
            if (rnd(3) == 0)
                random_plan(c, &m, open, &n);
            else
                random_end(c, &m, open, &n);
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

static void use_all(ms_expert_cache *c, const uint32_t *ids, uint32_t count) {
    ms_want wants[4];
    assert_int_equal(ms_cache_plan(c, 1, ids, NULL, count, wants, NULL), MS_OK);
    for (uint32_t i = 0; i < count; i++) {
        if (wants[i].kind == MS_WANT_FILL) assert_int_equal(ms_cache_commit(c, 1, &wants[i], NULL), MS_OK);
        assert_int_equal(ms_cache_release(c, 1, &wants[i], NULL), MS_OK);
    }
}

/* The first of the ranking is what the next miss replaces. */
static void ranking(void **state) {
    (void)state;
    ms_expert_cache *c = create(2, 8, 3);
    uint32_t out[3];
    assert_int_equal(ms_cache_ranked(c, 1, out), 0);
    assert_int_equal(ms_cache_ranked(c, 2, out), 0);
    use_all(c, (const uint32_t[]){5, 6, 7}, 3);
    use_all(c, (const uint32_t[]){5}, 1);
    use_all(c, (const uint32_t[]){7}, 1);
    assert_int_equal(ms_cache_ranked(c, 1, out), 3);
    assert_int_equal(out[0], 6);
    assert_int_equal(out[1], 5);
    assert_int_equal(out[2], 7);
    use_all(c, (const uint32_t[]){1}, 1);
    assert_false(ms_cache_resident(c, 1, 6));
    assert_int_equal(ms_cache_ranked(c, 1, out), 3);
    assert_int_equal(out[0], 1);
    assert_int_equal(ms_cache_ranked(c, 0, out), 0);
    ms_cache_destroy(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scenario_table),
        cmocka_unit_test(ranking),
        cmocka_unit_test(limits),
        cmocka_unit_test(huge_ranges),
        cmocka_unit_test(random_comparison),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
