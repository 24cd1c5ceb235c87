/* Sliding windows in the session: rings that wrap, the window's edge, going back and on again, failed passes, snapshots
 * and files.  Everything is compared bit by bit with a session that saw the tokens once, one by one. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine_util.h"
#include "session/session_internal.h"

#define WINDOWED "tests/golden/mimo26/mimo-tiny" /* window 8 */
enum { CONTEXT = 900, LENGTH = 700, RANGE = 64 };

static uint32_t ids[CONTEXT];
static uint64_t fresh[CONTEXT + 1]; /* fingerprint, with logits, of ids[0..n) */

static void open_with(rig *r, ms_precision precision, uint32_t range) {
    ms_engine_options o;
    ms_engine_options_default(&o, WINDOWED);
    o.context = CONTEXT;
    o.precision = precision;
    o.range_rows = range;
    o.threads = 1;
    rig_open(r, &o);
}

static void forward(rig *r, uint64_t from, uint64_t to, uint32_t range) {
    ms_forward_options o = {.range = range};
    ms_error err;
    assert_int_equal(ms_session_position(r->s), from);
    ok(ms_session_forward(r->s, ids + from, to - from, &o, &err), &err);
}

static void expect(const rig *r, uint64_t position) {
    assert_int_equal(ms_session_position(r->s), position);
    if (fingerprint_with_logits(r) != fresh[position])
        fail_msg("position %llu: other bits", (unsigned long long)position);
}

static int make_fresh(void **state) {
    (void)state;
    rig r;
    some_ids(ids, CONTEXT, 320);
    open_with(&r, MS_PRECISION_FAST, 1);
    for (uint64_t i = 0; i < LENGTH; i++) {
        forward(&r, i, i + 1, 1);
        fresh[i + 1] = fingerprint_with_logits(&r);
    }
    rig_close(&r);
    return 0;
}

/* Ring 256 with ranges of 64, 512 with 300, no wrap with 512 in a context of 900. */
static void ranges_equal_tokens(void **state) {
    (void)state;
    static const uint32_t planned[] = {1, 7, 64, 249, 250, 300, 512}, cuts[] = {1, 3, 8, 64, 512};
    for (size_t p = 0; p < sizeof planned / sizeof planned[0]; p++) {
        rig r;
        open_with(&r, MS_PRECISION_FAST, planned[p]);
        for (size_t c = 0; c < sizeof cuts / sizeof cuts[0]; c++) {
            ms_session_reset(r.s);
            forward(&r, 0, 5, cuts[c]);
            expect(&r, 5);
            forward(&r, 5, 13, cuts[c]);
            expect(&r, 13);
            forward(&r, 13, LENGTH, cuts[c]);
            expect(&r, LENGTH);
        }
        rig_close(&r);
    }
}

/* Ring 256, window 8: from a position everything up to 249 tokens back is there, and nothing before. */
static void rewind_and_extend(void **state) {
    (void)state;
    rig r;
    ms_error err;
    open_with(&r, MS_PRECISION_FAST, RANGE);
    forward(&r, 0, 600, RANGE);
    static const uint64_t back[] = {599, 598, 590, 512, 400, 351};
    for (size_t i = 0; i < sizeof back / sizeof back[0]; i++) {
        assert_true(ms_session_can_rewind(r.s, back[i]));
        ok(ms_session_rewind(r.s, back[i], &err), &err);
        assert_null(ms_session_logits(r.s));
        forward(&r, back[i], back[i] + 1, 1);
        expect(&r, back[i] + 1);
    }
    /* what was written up to 600 is gone beyond the ring: 351 was the first row that it still covered */
    forward(&r, 352, 600, RANGE);
    expect(&r, 600);
    assert_true(ms_session_can_rewind(r.s, 351));
    assert_false(ms_session_can_rewind(r.s, 350));
    assert_false(ms_session_can_rewind(r.s, 1));
    assert_false(ms_session_can_rewind(r.s, 601));
    REFUSED(ms_session_rewind(r.s, 350, &err), &err, MS_ERR_USAGE, "position 350", "600");
    expect(&r, 600);
    ok(ms_session_rewind(r.s, 600, &err), &err);
    expect(&r, 600);
    assert_true(ms_session_can_rewind(r.s, 0));
    ok(ms_session_rewind(r.s, 0, &err), &err);
    forward(&r, 0, 100, RANGE);
    expect(&r, 100);
    assert_true(ms_session_can_rewind(r.s, 1)); /* the ring holds the beginning again */
    ok(ms_session_rewind(r.s, 3, &err), &err);
    forward(&r, 3, 100, 5);
    expect(&r, 100);
    rig_close(&r);
}

/* Another continuation in between leaves no trace. */
static void detours(void **state) {
    (void)state;
    rig r;
    ms_error err;
    open_with(&r, MS_PRECISION_FAST, RANGE);
    forward(&r, 0, 300, RANGE);
    for (uint32_t turn = 0; turn < 12; turn++) {
        uint32_t other[60];
        uint64_t at = 300 + turn * 20;
        for (uint32_t i = 0; i < 60; i++) other[i] = (ids[i] + turn + 1) % 320;
        ok(ms_session_forward(r.s, other, 60, NULL, &err), &err);
        ok(ms_session_rewind(r.s, at, &err), &err);
        forward(&r, at, at + 20, turn % 2 ? 1 : RANGE);
        expect(&r, at + 20);
    }
    rig_close(&r);
}

static void cancel_after(void *arg, ms_progress_unit unit, uint64_t done, uint64_t total) {
    (void)total;
    const rig *r = arg;
    if (unit == MS_PROGRESS_LAYER && done % 6 == 4) ms_session_cancel(r->s);
}

/* A pass that stops half way has written rows into the rings, and yet nothing has changed. */
static void cancelled_passes_change_nothing(void **state) {
    (void)state;
    rig r;
    ms_error err;
    open_with(&r, MS_PRECISION_FAST, RANGE);
    for (uint64_t at = 0; at < 640; at += RANGE) {
        uint32_t other[RANGE];
        for (uint32_t i = 0; i < RANGE; i++) other[i] = (ids[i] + 7) % 320;
        ms_forward_options o = {.progress = cancel_after, .progress_arg = &r};
        assert_int_equal(ms_session_forward(r.s, other, RANGE, &o, &err), MS_ERR_CANCELLED);
        ms_session_clear_cancel(r.s);
        forward(&r, at, at + RANGE, at % 128 ? 9 : RANGE);
        expect(&r, at + RANGE);
    }
    rig_close(&r);
}

/* Snapshots bring back what a ring has lost, and fit a timeline as long as nothing before them was rewritten. */
static void snapshots(void **state) {
    (void)state;
    rig r;
    ms_error err;
    ms_snapshot *early, *late;
    open_with(&r, MS_PRECISION_FAST, RANGE);
    forward(&r, 0, 100, RANGE);
    ok(ms_session_snapshot(r.s, &early, &err), &err);
    forward(&r, 100, 580, RANGE);
    ok(ms_session_snapshot(r.s, &late, &err), &err);
    forward(&r, 580, LENGTH, RANGE);
    assert_false(ms_session_can_rewind(r.s, 100));
    ok(ms_session_restore(r.s, late, &err), &err); /* the ring still covers it */
    forward(&r, 580, 620, RANGE);
    expect(&r, 620);
    ok(ms_session_restore(r.s, early, &err), &err);
    assert_false(ms_session_can_rewind(r.s, 99)); /* only the window came back */
    forward(&r, 100, 110, 1);
    expect(&r, 110);
    assert_true(ms_session_can_rewind(r.s, 101));
    ok(ms_session_rewind(r.s, 101, &err), &err);
    forward(&r, 101, 400, RANGE);
    expect(&r, 400);
    REFUSED(ms_session_restore(r.s, late, &err), &err, MS_ERR_USAGE, "position 580");
    ok(ms_session_restore(r.s, early, &err), &err);
    forward(&r, 100, 101, 1);
    expect(&r, 101);
    ok(ms_session_restore(r.s, early, &err), &err);
    ok(ms_session_rewind(r.s, 0, &err), &err);
    REFUSED(ms_session_restore(r.s, early, &err), &err, MS_ERR_USAGE, "position 100");
    ms_snapshot_destroy(early);
    ms_snapshot_destroy(late);
    rig_close(&r);
}

/* A file holds logical rows: the sizes of rings do not matter to it. */
static void files_fit_other_ranges(void **state) {
    (void)state;
    static const uint64_t positions[] = {0, 3, 7, 8, 300, 513};
    char dir[] = "/tmp/ms-window-XXXXXX", path[64];
    ms_error err;
    assert_non_null(mkdtemp(dir));
    (void)snprintf(path, sizeof path, "%s/state", dir);
    for (size_t i = 0; i < sizeof positions / sizeof positions[0]; i++) {
        rig from, to;
        open_with(&from, MS_PRECISION_FAST, RANGE);
        open_with(&to, MS_PRECISION_FAST, 400);
        if (positions[i]) forward(&from, 0, positions[i], RANGE);
        ok(ms_session_export(from.s, path, true, &err), &err);
        forward(&to, 0, 650, 0); /* something else is there before */
        ok(ms_session_import(to.s, path, &err), &err);
        assert_int_equal(fingerprint(&from), fingerprint(&to));
        forward(&to, positions[i], positions[i] + 30, 0);
        expect(&to, positions[i] + 30);
        assert_int_equal(ms_session_can_rewind(to.s, positions[i] + 1), true);
        if (positions[i] > 8) assert_false(ms_session_can_rewind(to.s, positions[i] - 1));
        rig_close(&from);
        rig_close(&to);
    }
    unlink(path);
    rmdir(dir);
}

/* A recurrence has no way back. */
static void other_states_do_not_rewind(void **state) {
    (void)state;
    rig r;
    ms_error err;
    ms_engine_options o;
    ms_engine_options_default(&o, TINY);
    rig_open(&r, &o);
    uint32_t few[5];
    some_ids(few, 5, r.vocab);
    ok(ms_session_forward(r.s, few, 5, NULL, &err), &err);
    uint64_t before = fingerprint_with_logits(&r);
    assert_false(ms_session_can_rewind(r.s, 4));
    REFUSED(ms_session_rewind(r.s, 4, &err), &err, MS_ERR_USAGE, "position 4");
    ok(ms_session_rewind(r.s, 5, &err), &err);
    assert_true(before == fingerprint_with_logits(&r));
    ok(ms_session_rewind(r.s, 0, &err), &err);
    assert_int_equal(ms_session_position(r.s), 0);
    rig_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(ranges_equal_tokens),
                                       cmocka_unit_test(rewind_and_extend),
                                       cmocka_unit_test(detours),
                                       cmocka_unit_test(cancelled_passes_change_nothing),
                                       cmocka_unit_test(snapshots),
                                       cmocka_unit_test(files_fit_other_ranges),
                                       cmocka_unit_test(other_states_do_not_rewind)};
    return cmocka_run_group_tests(tests, make_fresh, NULL);
}
