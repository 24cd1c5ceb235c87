/* What goes wrong while a model runs: reads that fail, bytes that are wrong, values that are not finite.  The call fails with
 * the place named, the session keeps what it had, and going on gives the bits of an undisturbed run. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <math.h>

#include "engine_util.h"
#include "lane/k3/k3_weights.h"

enum { START = 3, TURN = 6, ALL_IDS = START + TURN };

/* ------------------------------------------------------------------ the n-th read or install fails */

typedef enum harm_kind {
    HARM_READ,  /* the next read fails */
    HARM_BEGIN, /* the install fails at once, after it has written */
    HARM_END    /* the same, and it is found when the install ends */
} harm_kind;

/* A test double around the backend's installs: counts, makes things fail at one count, and lets installs end late. */
static struct {
    ms_status (*begin)(ms_backend *be, void *slot, const uint8_t *staging, ms_expert_shape s, uint32_t *ticket,
                       ms_error *err);
    ms_reader *reader;
    uint64_t calls, at; /* at: call number that acts, from 1 */
    harm_kind harm;
    uint8_t *open[MS_TICKETS]; /* slots of tickets */
    uint32_t tickets, polls, failing;
} trap;

static void fail_next_read(ms_reader *r, unsigned count) {
    for (unsigned file = 0; file < 16; file++) ms_reader_inject_failure(r, file, count, EIO);
}

static ms_status trapped_begin(ms_backend *be, void *slot, const uint8_t *staging, ms_expert_shape s, uint32_t *ticket,
                               ms_error *err) {
    MS_TRY(trap.begin(be, slot, staging, s, ticket, err));
    *ticket = trap.tickets++ % MS_TICKETS;
    assert_null(trap.open[*ticket]);
    bool acts = ++trap.calls == trap.at;
    if (acts && trap.harm == HARM_READ) fail_next_read(trap.reader, 1);
    if (acts && trap.harm != HARM_READ) memset(slot, 0x5a, ms_expert_bytes(s));
    if (acts && trap.harm == HARM_BEGIN) return ms_fail(err, MS_ERR_FORMAT, "trap");
    if (acts && trap.harm == HARM_END) trap.failing = *ticket;
    trap.open[*ticket] = slot;
    return MS_OK;
}

/* Two times of three an install is not finished yet. */
static ms_status trapped_end(ms_backend *be, uint32_t ticket, bool wait, bool *done, ms_error *err) {
    (void)be;
    assert_true(ticket < MS_TICKETS && trap.open[ticket]);
    *done = wait || trap.polls++ % 3 == 0;
    if (!*done) return MS_OK;
    trap.open[ticket] = NULL;
    if (ticket != trap.failing) return MS_OK;
    trap.failing = UINT32_MAX;
    return ms_fail(err, MS_ERR_FORMAT, "trap");
}

static void set_trap(rig *r, uint64_t at, harm_kind harm) {
    ms_backend *be = r->e->backend;
    if (be->install_begin != trapped_begin) trap.begin = be->install_begin;
    be->install_begin = trapped_begin;
    be->finish = trapped_end;
    for (uint32_t i = 0; i < MS_TICKETS; i++) assert_null(trap.open[i]); /* all have ended */
    trap.reader = ms_expert_service_reader(r->e->experts);
    trap.calls = 0;
    trap.at = at;
    trap.harm = harm;
    trap.failing = UINT32_MAX;
}

typedef struct variant {
    uint32_t experts, range, staging;
    bool no_uring, cold; /* cold: nothing is cached when the turn begins */
} variant;

/* One turn with a failure at `n`; false: the turn needed fewer than n. */
static bool disturbed(rig *r, const variant *v, uint64_t n, harm_kind harm, const uint64_t *state_at, uint64_t want) {
    uint32_t ids[ALL_IDS];
    ms_error err;
    some_ids(ids, ALL_IDS, r->vocab);
    ms_forward_options fo = {.range = v->range};
    ms_session_reset(r->s);
    service_is_sound(r);
    ok(ms_session_forward(r->s, ids, START, NULL, &err), &err);
    if (v->cold) service_is_sound(r);
    bool damage = harm != HARM_READ;
    set_trap(r, n, harm);
    if (n == 0) fail_next_read(trap.reader, 1);
    ms_engine_stats before, after;
    ms_engine_get_stats(r->e, &before);
    ms_status st = ms_session_forward(r->s, ids + START, TURN, &fo, &err);
    uint64_t seen = trap.calls;
    set_trap(r, UINT64_MAX, HARM_READ);
    fail_next_read(trap.reader, 0);
    if (st == MS_OK) { /* nothing was left to fail: the n-th was the last, or there were fewer */
        assert_true(seen < n || (!damage && seen == n) || (!damage && v->staging > 1));
        return false;
    }
    ms_engine_get_stats(r->e, &after);
    uint64_t position = ms_session_position(r->s);
    if (damage) {
        REFUSED(st, &err, MS_ERR_FORMAT, "layer ", "expert ", "trap");
        assert_true(harm == HARM_BEGIN ? seen == n : seen >= n);
    } else {
        REFUSED(st, &err, MS_ERR_IO, "layer ", "expert ", "model-0000", "offset", "Input/output error");
        assert_true(after.failed_reads == before.failed_reads + 1);
    }
    assert_null(ms_session_logits(r->s));
    assert_true(position >= START && position < ALL_IDS);
    assert_int_equal((position - START) % (v->range ? v->range : 512), 0); /* whole passes only */
    assert_int_equal(fingerprint(r), state_at[position]);
    service_is_sound(r);
    ok(ms_session_forward(r->s, ids + position, (size_t)(ALL_IDS - position), &fo, &err), &err);
    assert_int_equal(fingerprint_with_logits(r), want);
    assert_memory_equal(ms_session_tokens(r->s), ids, sizeof ids);
    service_is_sound(r);
    return true;
}

static void every_failure(const variant *v, harm_kind harm) {
    ms_engine_options o;
    ms_error err;
    rig r;
    uint32_t ids[ALL_IDS];
    uint64_t state_at[ALL_IDS + 1];
    ms_engine_options_default(&o, TINY);
    o.context = 32;
    o.threads = 1;
    o.experts = v->experts;
    o.staging = v->staging;
    o.no_uring = v->no_uring;
    rig_open(&r, &o);
    some_ids(ids, ALL_IDS, r.vocab);
    state_at[0] = fingerprint(&r);
    for (uint32_t i = 0; i < ALL_IDS; i++) {
        ok(ms_session_forward(r.s, ids + i, 1, NULL, &err), &err);
        state_at[i + 1] = fingerprint(&r);
    }
    uint64_t want = fingerprint_with_logits(&r), n = harm != HARM_READ, failures = 0;
    /* some counts may find nothing to fail (deep queues, a warm cache): two misses in a row are the end */
    for (int missed = 0; missed < 2; n++) {
        bool failed = disturbed(&r, v, n, harm, state_at, want);
        missed = failed ? 0 : missed + 1;
        failures += failed;
        assert_true(n < 1000);
    }
    assert_true(failures >= (v->staging > 1 ? 1 : 4));
    rig_close(&r);
}

static const variant variants[] = {{0, 1, 1, false, false}, {0, 0, 1, false, false}, {1, 1, 1, false, false},
                                   {1, 0, 1, false, false}, {3, 1, 1, false, false}, {3, 4, 1, false, false},
                                   {8, 1, 1, false, true},  {8, 0, 1, false, true},  {8, 0, 1, false, false},
                                   {0, 0, 16, false, true}, {2, 0, 5, false, false}, {8, 2, 16, false, true},
                                   {3, 0, 1, true, false}};

static void every_read_fails(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) every_failure(&variants[i], HARM_READ);
}

static void every_install_fails(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        every_failure(&variants[i], HARM_BEGIN);
        every_failure(&variants[i], HARM_END);
    }
}

/* ------------------------------------------------------------------ files that change under a running engine */

typedef struct chosen {
    uint32_t layer, ids[64], count; /* of one routed layer */
} chosen;

static void note_routes(void *arg, uint32_t layer, uint64_t first, uint32_t rows, uint32_t top_k, const uint32_t *ids) {
    chosen *c = arg;
    (void)first;
    if (layer != c->layer) return;
    for (uint32_t i = 0; i < rows * top_k && c->count < 64; i++) c->ids[c->count++] = ids[i];
}

static const ms_expert_extent *extent_of(const ms_engine *e, uint32_t layer, uint32_t expert) {
    const ms_expert_table *t = &e->model.experts;
    for (uint32_t l = 0; l < t->layer_count; l++)
        if (t->layers[l] == layer) return &t->extents[(size_t)l * t->expert_count + expert];
    fail_msg("layer %u has no experts", layer);
    return NULL;
}

typedef struct changed {
    char dir[PATH_BYTES];
    rig r;
    uint32_t ids[8];
    uint64_t want, empty;
    chosen chosen;
} changed;

static void changed_open(changed *c, uint32_t experts, uint32_t layer) {
    ms_engine_options o;
    ms_error err;
    copy_model(c->dir, TINY);
    ms_engine_options_default(&o, c->dir);
    o.context = 32;
    o.experts = experts;
    rig_open(&c->r, &o);
    some_ids(c->ids, 8, c->r.vocab);
    c->empty = fingerprint(&c->r);
    c->chosen = (chosen){.layer = layer};
    ms_forward_options fo = {.routes = note_routes, .routes_arg = &c->chosen};
    ok(ms_session_forward(c->r.s, c->ids, 8, &fo, &err), &err);
    c->want = fingerprint_with_logits(&c->r);
    ms_session_reset(c->r.s);
    service_is_sound(&c->r); /* empties the cache: the bytes will be read again */
}

static void changed_close(changed *c) {
    rig_close(&c->r);
    remove_model(c->dir);
}

static void same_again(changed *c) {
    ms_error err;
    ms_session_reset(c->r.s);
    ok(ms_session_forward(c->r.s, c->ids, 8, NULL, &err), &err);
    assert_int_equal(fingerprint_with_logits(&c->r), c->want);
    service_is_sound(&c->r);
}

static void shard_is_cut(void **state) {
    (void)state;
    static const uint32_t slots[] = {0, 1, 8};
    for (size_t i = 0; i < 3; i++) {
        changed c;
        ms_error err;
        changed_open(&c, slots[i], 2);
        char expert[32], offset[48];
        const ms_expert_extent *x = NULL;
        for (uint32_t k = 0; k < c.chosen.count; k++) { /* the last in the file: all others can be read */
            const ms_expert_extent *y = extent_of(c.r.e, 2, c.chosen.ids[k]);
            if (x && y->offset <= x->offset) continue;
            x = y;
            (void)snprintf(expert, sizeof expert, "layer 2, expert %u:", c.chosen.ids[k]);
            (void)snprintf(offset, sizeof offset, "offset %llu", (unsigned long long)y->offset);
        }
        assert_non_null(x);
        cut cut_shard;
        cut_file(&cut_shard, ms_checkpoint_shard_path(c.r.e->model.checkpoint, x->shard), x->offset + 100);
        REFUSED(ms_session_forward(c.r.s, c.ids, 8, NULL, &err), &err, MS_ERR_IO, expert, offset, "model-00003-of-000008",
                "short");
        assert_int_equal(fingerprint(&c.r), c.empty);
        mend_file(&cut_shard);
        same_again(&c);
        changed_close(&c);
    }
}

/* Cut between its header's check and the first read: the file is too short for what the header promised. */
typedef struct early_cut {
    char path[PATH_BYTES];
    cut cut;
} early_cut;

static void cut_while_loading(void *arg, uint64_t done, uint64_t total) {
    early_cut *c = arg;
    if (done == total && !c->cut.data) cut_file(&c->cut, c->path, 300000); /* behind the weights */
}

static void shard_is_cut_while_loading(void **state) {
    (void)state;
    char dir[PATH_BYTES];
    early_cut c = {0};
    ms_engine_options o;
    ms_error err;
    rig r;
    uint32_t ids[8];
    copy_model(dir, TINY);
    (void)snprintf(c.path, sizeof c.path, "%.200s/model-00004-of-000008.safetensors", dir);
    ms_engine_options_default(&o, dir);
    o.load_progress = cut_while_loading;
    o.load_progress_arg = &c;
    rig_open(&r, &o);
    assert_non_null(c.cut.data);
    some_ids(ids, 8, r.vocab);
    uint64_t empty = fingerprint(&r);
    REFUSED(ms_session_forward(r.s, ids, 8, NULL, &err), &err, MS_ERR_IO, "layer 3", "model-00004-of-000008", "offset");
    assert_int_equal(fingerprint(&r), empty);
    service_is_sound(&r);
    rig_close(&r);
    free(c.cut.data);
    remove_model(dir);
}

static void embedding_is_cut(void **state) {
    (void)state;
    changed c;
    ms_error err;
    changed_open(&c, 8, 2);
    const ms_tensor *t = c.r.e->model.embed;
    char row[96];
    (void)snprintf(row, sizeof row, "%s row %u:", t->name, c.ids[5]);
    uint64_t lowest = c.ids[5];
    for (int i = 0; i < 5; i++) assert_true(c.ids[i] != c.ids[5]);
    /* rows are read in order, so one before may be the first to miss */
    for (int i = 4; i >= 0; i--)
        if (c.ids[i] > lowest) (void)snprintf(row, sizeof row, "%s row %u:", t->name, c.ids[i]);
    cut cut_shard;
    cut_file(&cut_shard, ms_checkpoint_shard_path(c.r.e->model.checkpoint, t->shard), t->offset + lowest * 256 + 1);
    REFUSED(ms_session_forward(c.r.s, c.ids, 8, NULL, &err), &err, MS_ERR_IO, row, "model-00006-of-000008", "offset");
    assert_int_equal(fingerprint(&c.r), c.empty);
    mend_file(&cut_shard);
    same_again(&c);
    changed_close(&c);
}

/* A scale byte that is no number: the expert is refused, others work, and so does the expert once its byte is back. */
static void scale_is_nan(void **state) {
    (void)state;
    static const char *const names[3] = {"w1", "w2", "w3"}; /* source order */
    for (uint32_t i = 0; i < 3; i++) {
        changed c;
        ms_error err;
        changed_open(&c, i * 4, 3);
        ms_expert_shape s = c.r.e->model.info.expert_shape;
        uint32_t expert = c.chosen.ids[i], groups = (i == 1 ? s.inner : s.hidden) / 32, row = 5 + i, group = groups - 1;
        const ms_expert_extent *x = extent_of(c.r.e, 3, expert);
        uint64_t matrix = (uint64_t)s.hidden * s.inner / 32 * 17, packed = (uint64_t)s.hidden * s.inner / 2;
        uint64_t at = x->offset + i * matrix + packed + row * groups + group;
        uint8_t byte = 255;
        const char *path = ms_checkpoint_shard_path(c.r.e->model.checkpoint, x->shard);
        swap_bytes(path, at, &byte, 1);
        char who[32], where[64];
        (void)snprintf(who, sizeof who, "layer 3, expert %u:", expert);
        (void)snprintf(where, sizeof where, "%s scale of row %u group %u", names[i], row, group);
        for (int again = 0; again < 2; again++) { /* the failed fill must not be taken for a good one */
            REFUSED(ms_session_forward(c.r.s, c.ids, 8, NULL, &err), &err, MS_ERR_FORMAT, who, path, where, "255");
            assert_int_equal(fingerprint(&c.r), c.empty);
        }
        uint32_t worked = 0;
        for (uint32_t id = 0; id < 40; id++) {
            ms_session_reset(c.r.s);
            ms_status st = ms_session_forward(c.r.s, &id, 1, NULL, &err);
            if (st == MS_OK) worked++;
            else REFUSED(st, &err, MS_ERR_FORMAT, who, where);
        }
        assert_true(worked > 0);
        service_is_sound(&c.r);
        swap_bytes(path, at, &byte, 1);
        same_again(&c);
        changed_close(&c);
    }
}

/* ------------------------------------------------------------------ values that are not finite */

static void embedding_is_nan(void **state) {
    (void)state;
    static const uint32_t ranges[] = {1, 3, 0};
    changed c;
    ms_error err;
    changed_open(&c, 2, 2);
    const ms_tensor *t = c.r.e->model.embed;
    uint16_t value = 0x7f80;
    uint32_t bad = 77;
    swap_bytes(ms_checkpoint_shard_path(c.r.e->model.checkpoint, t->shard), t->offset + (bad * 128 + 127) * 2, &value, 2);
    char row[96];
    (void)snprintf(row, sizeof row, "%s row 77: column 127", t->name);
    for (size_t i = 0; i < 3; i++) {
        ms_forward_options fo = {.range = ranges[i]};
        ms_session_reset(c.r.s);
        ok(ms_session_forward(c.r.s, c.ids, 3, &fo, &err), &err);
        uint64_t before = fingerprint(&c.r);
        uint32_t ids[2] = {bad, c.ids[3]};
        REFUSED(ms_session_forward(c.r.s, ids, 2, &fo, &err), &err, MS_ERR_NUMERIC, row, "inf");
        assert_int_equal(ms_session_position(c.r.s), 3);
        assert_int_equal(fingerprint(&c.r), before);
        ok(ms_session_forward(c.r.s, c.ids + 3, 5, &fo, &err), &err);
        assert_int_equal(fingerprint_with_logits(&c.r), c.want);
    }
    changed_close(&c);
}

/* Weights that go bad in memory stand for sums that overflow: a router sees it, or the logits do. */
static void run_time_nan(void **state) {
    (void)state;
    changed c;
    ms_error err;
    changed_open(&c, 3, 2);
    k3_weights *w = c.r.e->weights;
    uint16_t *norm = w->layer[2][K3_POST_NORM].data, *last = w->outside[K3_FINAL_NORM - K3_LAYER_PARTS].data;
    assert_int_equal(w->layer[2][K3_POST_NORM].format, MS_FORMAT_BF16);
    for (uint32_t range = 0; range < 3; range++) {
        ms_forward_options fo = {.range = range};
        ms_session_reset(c.r.s);
        ok(ms_session_forward(c.r.s, c.ids, 3, &fo, &err), &err);
        uint64_t before = fingerprint(&c.r);
        for (int where = 0; where < 2; where++) {
            uint16_t *weight = (where ? last : norm) + 11, good = *weight;
            *weight = 0x7fc0;
            ms_status st = ms_session_forward(c.r.s, c.ids + 3, 5, &fo, &err);
            if (where == 0) REFUSED(st, &err, MS_ERR_NUMERIC, "tokens from position 3: layer 2: router: row 0");
            else REFUSED(st, &err, MS_ERR_NUMERIC, "logits of position", "id 0", "nan");
            *weight = good;
            uint64_t position = ms_session_position(c.r.s);
            assert_null(ms_session_logits(c.r.s));
            if (where == 0) assert_int_equal(fingerprint(&c.r), before);
            if (where == 0) continue;
            ok(ms_session_forward(c.r.s, c.ids + position, (size_t)(8 - position), &fo, &err), &err);
            assert_int_equal(fingerprint_with_logits(&c.r), c.want);
        }
        service_is_sound(&c.r);
    }
    changed_close(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_read_fails), cmocka_unit_test(every_install_fails),
                                       cmocka_unit_test(shard_is_cut),     cmocka_unit_test(shard_is_cut_while_loading),
                                       cmocka_unit_test(embedding_is_cut),
                                       cmocka_unit_test(scale_is_nan),     cmocka_unit_test(embedding_is_nan),
                                       cmocka_unit_test(run_time_nan)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
