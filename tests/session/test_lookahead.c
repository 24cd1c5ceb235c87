/* Guessed reads: taken by the request when right, forgotten when wrong, harmless when they fail. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <time.h>

#include "engine_util.h"

enum { MOST = 64 };

static void open_rig(rig *r, const char *model, uint32_t slots, uint32_t staging, bool no_uring) {
    ms_engine_options o;
    ms_engine_options_default(&o, model);
    o.context = 64;
    o.threads = 1;
    o.experts = slots;
    o.staging = staging;
    o.no_uring = no_uring;
    rig_open(r, &o);
}

static ms_engine_stats stats_of(const rig *r) {
    ms_engine_stats s;
    ms_engine_get_stats(r->e, &s);
    return s;
}

/* Slots of the experts hold what a read of each alone puts there. */
static void request(rig *r, uint32_t layer, const uint32_t *ids, uint32_t count) {
    ms_expert_ready ready[MOST];
    ms_error err;
    uint32_t seen = 0, got;
    ok(ms_expert_request(r->e->experts, layer, ids, NULL, count, &err), &err);
    const ms_expert_table *t = &r->e->model.experts;
    uint8_t *source = malloc(t->expert_bytes), *back = malloc(t->expert_bytes);
    assert_true(source && back);
    do {
        ok(ms_expert_next(r->e->experts, ready, &got, &err), &err);
        for (uint32_t i = 0; i < got; i++) {
            const ms_expert_extent *x = &t->extents[(size_t)layer * t->expert_count + ids[ready[i].index]];
            int fd = open(ms_checkpoint_shard_path(r->e->model.checkpoint, x->shard), O_RDONLY | O_CLOEXEC);
            assert_true(fd >= 0);
            assert_int_equal(pread(fd, source, t->expert_bytes, (off_t)x->offset), t->expert_bytes);
            close(fd);
            ms_expert_extract(back, ready[i].slot, r->e->model.info.expert_shape);
            assert_memory_equal(source, back, t->expert_bytes);
        }
        seen += got;
    } while (got);
    assert_int_equal(seen, count);
    ms_expert_end(r->e->experts);
    free(source);
    free(back);
}

static size_t pending(const rig *r) { return ms_reader_pending(ms_expert_service_reader(r->e->experts)); }

static void right_and_wrong(void **state) {
    (void)state;
    for (int pread_only = 0; pread_only < 2; pread_only++) {
        rig r;
        open_rig(&r, NANO, 2, 8, pread_only);
        ms_expert_service *s = r.e->experts;
        const uint32_t a[] = {0, 1, 2}, b[] = {1, 3, 4, 5}, c[] = {6}, d[] = {7};
        request(&r, 0, a, 3);
        ms_expert_guess(s, 1, a, 3);
        request(&r, 1, b, 4); /* expert 1 was guessed */
        ms_engine_stats x = stats_of(&r);
        uint32_t begun = x.uring; /* a read that had not begun when it turned out wrong is none */
        assert_int_equal(x.guessed_reads, 1 + 2 * begun);
        assert_int_equal(x.guesses_used, 1);
        ms_expert_guess(s, 1, c, 1); /* another layer comes */
        request(&r, 0, c, 1);
        ms_expert_guess(s, 1, c, 1); /* and a second guess instead of the first */
        ms_expert_guess(s, 1, d, 1);
        request(&r, 1, d, 1);
        x = stats_of(&r);
        assert_int_equal(x.guessed_reads, 2 + 4 * begun);
        assert_int_equal(x.guesses_used, 2);
        service_is_sound(&r);
        request(&r, 1, d, 1);
        ms_expert_guess(s, 1, d, 1); /* resident: nothing to read */
        assert_int_equal(pending(&r), 0);
        ms_expert_guess(s, 1, c, 1); /* under way when the service is looked at, and when it is closed */
        service_is_sound(&r);
        ms_expert_guess(s, 1, a, 3);
        rig_close(&r);
    }
}

static void limits(void **state) {
    (void)state;
    const uint32_t many[] = {0, 1, 2, 3, 4, 5, 6, 7}, bad[] = {0, 100000};
    rig r;
    open_rig(&r, NANO, 0, 4, false);
    ms_expert_guess(r.e->experts, 0, many, 8); /* half of the buffers */
    assert_int_equal(pending(&r), 2);
    request(&r, 0, many, 8);
    assert_int_equal(stats_of(&r).guesses_used, 2);
    ms_expert_guess(r.e->experts, 0, bad, 2);
    ms_expert_guess(r.e->experts, 100000, many, 2);
    assert_int_equal(pending(&r), 0);
    for (int i = 0; i < 50; i++) { /* wrong ones in flight pile up no further than that */
        ms_expert_guess(r.e->experts, 1, many, 8);
        request(&r, 0, many + i % 8, 1);
        service_is_sound(&r);
    }
    rig_close(&r);
    open_rig(&r, NANO, 0, 1, false); /* one buffer: none to spare */
    assert_false(ms_expert_wants_guess(r.e->experts, 0));
    ms_expert_guess(r.e->experts, 0, many, 8);
    assert_int_equal(pending(&r), 0);
    rig_close(&r);
}

/* While a request is open its reads come first; what is guessed then waits for the next one in at most half of the
 * buffers, however few there are, and whether or not the request comes to its end. */
static void during_a_request(void **state) {
    (void)state;
    const uint32_t a[] = {0, 1, 2, 3, 4, 5, 6, 7}, b[] = {8, 9, 10, 11, 12, 13};
    for (uint32_t staging = 2; staging < 20; staging += staging < 6 ? 1 : 7)
        for (int pread_only = 0; pread_only < 2; pread_only++) {
            rig r;
            ms_error err;
            ms_expert_ready ready[MOST];
            open_rig(&r, NANO, 0, staging, pread_only);
            ms_expert_service *s = r.e->experts;
            for (uint32_t round = 0; round < 12; round++) {
                uint32_t guess_at = round % 8, seen = 0, got = 1, dry = 0;
                ok(ms_expert_request(s, 0, a, NULL, 8, &err), &err);
                while (got) {
                    if (seen >= guess_at && ms_expert_wants_guess(s, 1)) ms_expert_guess(s, 1, b, 6);
                    ms_expert_guess(s, 0, b, 6); /* its own layer: not a guess at the next request */
                    dry += ms_expert_runs_dry(s);
                    assert_true(!ms_expert_runs_dry(s) || seen == 7);
                    ok(ms_expert_next(s, ready, &got, &err), &err);
                    seen += got;
                    if (round % 4 == 3 && seen > 4) break; /* given up */
                }
                assert_true(dry <= 1);
                ms_expert_end(s);
                if (round % 4 == 3) {
                    if (seen < 8) assert_int_equal(pending(&r), 0);
                    service_is_sound(&r);
                    continue;
                }
                assert_int_equal(seen, 8);
                uint64_t used = stats_of(&r).guesses_used;
                assert_false(ms_expert_wants_guess(s, 1)); /* made */
                if (round % 4 == 2) request(&r, 0, a, 4);  /* another layer comes: all wrong */
                request(&r, 1, b, 6);
                uint32_t most = staging / 2 < 6 ? staging / 2 : 6;
                assert_int_equal(stats_of(&r).guesses_used - used, round % 4 == 2 ? 0 : most);
                service_is_sound(&r);
            }
            rig_close(&r);
        }
}

static void bad_guesses_pause(void **state) {
    (void)state;
    const uint32_t a[] = {0, 1, 2, 3}, b[] = {4, 5, 6, 7};
    rig r;
    open_rig(&r, NANO, 0, 16, false);
    uint32_t made = 0, rounds = 200;
    for (uint32_t i = 0; i < rounds; i++) {
        if (ms_expert_wants_guess(r.e->experts, 0)) {
            ms_expert_guess(r.e->experts, 0, a, 4);
            made++;
        }
        request(&r, 0, b, 4);
    }
    assert_true(made > 8 && made < rounds / 2); /* given up, and tried again */
    made = 0;
    for (uint32_t i = 0; i < rounds; i++) {
        if (ms_expert_wants_guess(r.e->experts, 0)) {
            ms_expert_guess(r.e->experts, 0, b, 4);
            made++;
        }
        request(&r, 0, b, 4);
    }
    assert_true(made > rounds / 2); /* and taken up again for good */
    rig_close(&r);
}

/* A layer's guesses of which three in five are right, token by token: how many of the last 16 were made. */
static uint32_t made_beside(uint32_t pause_ms) {
    const uint32_t guess[] = {0, 1, 2, 3, 4}, want[] = {0, 1, 2, 8, 9};
    const struct timespec pause = {.tv_nsec = 1000000 * (long)pause_ms};
    ms_engine_options o;
    rig r;
    ms_engine_options_default(&o, NANO);
    o.context = 64;
    o.threads = 1;
    o.experts = 0;
    o.read_limit = 3000000; /* an expert takes 9 ms */
    rig_open(&r, &o);
    uint32_t made = 0, layers = r.e->model.experts.layer_count, rounds = 48;
    for (uint32_t i = 0; i < rounds; i++) {
        uint32_t layer = i % layers;
        if (ms_expert_wants_guess(r.e->experts, layer)) {
            ms_expert_guess(r.e->experts, layer, guess, 5);
            made += i >= rounds - 16;
        }
        (void)nanosleep(&pause, NULL);
        request(&r, layer, want, 5);
    }
    rig_close(&r);
    return made;
}

/* Where the drive would not rest between layers, a wrong guess costs more than a right one saves. */
static void guesses_must_pay(void **state) {
    (void)state;
    assert_int_equal(made_beside(12), 16);
    assert_true(made_beside(0) < 8);
}

/* What a range asks for: the experts that are not resident in the order of the file, as many as have room. */
static void all_experts(void **state) {
    (void)state;
    uint32_t all[32];
    for (uint32_t i = 0; i < 32; i++) all[i] = i;
    rig r;
    open_rig(&r, NANO, 8, 8, false);
    ms_expert_service *s = r.e->experts;
    const uint32_t some[] = {0, 2, 31};
    request(&r, 1, some, 3);
    ms_expert_guess_all(s, 1);
    assert_int_equal(pending(&r), 4);
    ms_expert_guess_all(s, 1); /* made */
    request(&r, 1, all, 32);
    assert_int_equal(stats_of(&r).guesses_used, 4);
    ms_expert_guess_all(s, 1000);
    assert_int_equal(pending(&r), 0);
    service_is_sound(&r);
    rig_close(&r);
    open_rig(&r, NANO, 32, 8, false); /* all have slots: what is not there is read once only */
    ms_expert_guess_all(r.e->experts, 1);
    assert_int_equal(pending(&r), 0);
    rig_close(&r);
}

/* Through the model: a range of many rows reads ahead over the borders of layers, and gives the bits of one without. */
static void ranges(void **state) {
    (void)state;
    uint64_t want = 0;
    for (int on = 0; on < 2; on++) {
        ms_engine_options o;
        ms_error err;
        rig r;
        uint32_t ids[60];
        ms_engine_options_default(&o, NANO);
        o.context = 64;
        o.threads = 1;
        o.experts = 12;
        o.no_lookahead = !on;
        rig_open(&r, &o);
        some_ids(ids, 60, r.vocab);
        ok(ms_session_forward(r.s, ids, 60, NULL, &err), &err);
        if (!on) want = fingerprint_with_logits(&r);
        assert_int_equal(fingerprint_with_logits(&r), want);
        assert_true(!on == !stats_of(&r).guesses_used);
        service_is_sound(&r);
        rig_close(&r);
    }
}

static void failing_guesses(void **state) {
    (void)state;
    const uint32_t a[] = {0, 1}, b[] = {2, 3};
    ms_expert_ready ready[MOST];
    ms_error err;
    uint32_t got;
    rig r;
    open_rig(&r, NANO, 1, 8, false);
    ms_expert_service *s = r.e->experts;
    for (unsigned file = 0; file < 16; file++) ms_reader_inject_failure(ms_expert_service_reader(s), file, 2, EIO);
    ms_expert_guess(s, 0, a, 2); /* both fail, and were wrong: nobody is told */
    for (unsigned file = 0; file < 16; file++) ms_reader_inject_failure(ms_expert_service_reader(s), file, 0, EIO);
    request(&r, 0, b, 2);
    service_is_sound(&r);
    for (unsigned file = 0; file < 16; file++) ms_reader_inject_failure(ms_expert_service_reader(s), file, 1, EIO);
    ms_expert_guess(s, 0, a, 2); /* one fails, and was right: it is read once more */
    for (unsigned file = 0; file < 16; file++) ms_reader_inject_failure(ms_expert_service_reader(s), file, 0, EIO);
    uint64_t failed = stats_of(&r).failed_reads;
    request(&r, 0, a, 2);
    assert_int_equal(stats_of(&r).failed_reads - failed, stats_of(&r).uring); /* without, no guess had begun */
    service_is_sound(&r);
    /* A guess that lands, failed, while another request is open is forgotten as well. */
    ok(ms_expert_request(s, 1, b, NULL, 2, &err), &err);
    for (unsigned file = 0; file < 16; file++) ms_reader_inject_failure(ms_expert_service_reader(s), file, 1, EIO);
    ms_expert_guess(s, 0, b, 2);
    for (unsigned file = 0; file < 16; file++) ms_reader_inject_failure(ms_expert_service_reader(s), file, 0, EIO);
    for (got = 1; got;) ok(ms_expert_next(s, ready, &got, &err), &err);
    ms_expert_end(s);
    request(&r, 0, b, 2);
    service_is_sound(&r);
    for (unsigned file = 0; file < 16; file++) ms_reader_inject_failure(ms_expert_service_reader(s), file, 9, EIO);
    ms_expert_guess(s, 0, a, 2); /* and now the request's own reads fail too */
    ok(ms_expert_request(s, 0, a, NULL, 2, &err), &err);
    ms_status st = MS_OK;
    for (got = 1; got && st == MS_OK;) st = ms_expert_next(s, ready, &got, &err);
    REFUSED(st, &err, MS_ERR_IO, "layer ", "expert ", "Input/output error");
    ms_expert_end(s);
    for (unsigned file = 0; file < 16; file++) ms_reader_inject_failure(ms_expert_service_reader(s), file, 0, EIO);
    service_is_sound(&r);
    request(&r, 0, a, 2);
    rig_close(&r);
}

/* Through the model: guesses are made, some are right, and the result is that of a run without. */
static void decode_with_and_without(const char *model, uint32_t slots) {
    uint64_t want = 0;
    for (int on = 0; on < 2; on++) {
        ms_engine_options o;
        ms_error err;
        rig r;
        uint32_t ids[40];
        ms_engine_options_default(&o, model);
        o.context = 64;
        o.threads = 1;
        o.experts = slots;
        o.no_lookahead = !on;
        rig_open(&r, &o);
        some_ids(ids, 40, r.vocab);
        for (int i = 0; i < 40; i++) ok(ms_session_forward(r.s, ids + i, 1, NULL, &err), &err);
        ms_engine_stats x = stats_of(&r);
        if (on) {
            assert_int_equal(fingerprint_with_logits(&r), want);
            assert_true(x.guessed_reads > 20 && x.guesses_used > 10 && x.guesses_used <= x.guessed_reads);
        } else {
            want = fingerprint_with_logits(&r);
            assert_int_equal(x.guessed_reads, 0);
        }
        service_is_sound(&r);
        rig_close(&r);
    }
}

static void whole_models(void **state) {
    (void)state;
    decode_with_and_without(NANO, 4);
    decode_with_and_without(TINY, 0);
    decode_with_and_without("tests/golden/mimo26/mimo-tiny", 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_and_wrong),  cmocka_unit_test(limits),          cmocka_unit_test(bad_guesses_pause),
        cmocka_unit_test(during_a_request), cmocka_unit_test(failing_guesses), cmocka_unit_test(whole_models),
        cmocka_unit_test(guesses_must_pay), cmocka_unit_test(all_experts),     cmocka_unit_test(ranges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
