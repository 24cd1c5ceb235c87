/* State parts, digests and snapshots over a backend of plain memory. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "../session/fake_session.h"

static void open_fake(fake_session *f) {
    fake_options o = fake_defaults();
    ms_error err;
    assert_int_equal(fake_open(f, &o, &err), MS_OK);
}

static void close_fake(fake_session *f) {
    fake_close(f);
    assert_int_equal(f->backend.held, 0);
    assert_int_equal(f->backend.held_bytes, 0);
}

static ms_digest digest_of(fake_session *f) {
    ms_digest d;
    ms_error err;
    assert_int_equal(ms_session_digest(&f->session, &d, &err), MS_OK);
    return d;
}

static void assert_same_digest(fake_session *f, const ms_digest *want) {
    ms_digest d = digest_of(f);
    assert_memory_equal(&d, want, sizeof d);
}

static void advance(fake_session *f, uint32_t first, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) fake_forward(f, first + i);
}

/* ------------------------------------------------------------------ parts */

static void parts_are_allocated_zeroed_and_found(void **state) {
    (void)state;
    fake_session f;
    open_fake(&f);
    ms_state *s = &f.session.state;
    assert_int_equal(s->part_count, 6);
    assert_int_equal(f.backend.held, 10);
    assert_int_equal(f.backend.held_bytes, 4 * 100 + 4 * 18 + 2 * 12 * 32);
    ms_state_part *kda = ms_state_find(s, "kda", 1), *mla = ms_state_find(s, "mla", 5);
    assert_ptr_equal(kda, &s->parts[1]);
    assert_ptr_equal(mla, &s->parts[5]);
    assert_null(ms_state_find(s, "kda", 2));
    assert_null(ms_state_find(s, "kd", 1));
    for (int i = 0; i < 100; i++) assert_int_equal(kda->current[i] | kda->next[i], 0);
    assert_null(mla->next);
    assert_int_equal(ms_state_part_bytes(s, kda), 100);
    assert_int_equal(ms_state_part_bytes(s, mla), 0);
    advance(&f, 1, 3);
    assert_int_equal(ms_state_part_bytes(s, mla), 36);
    close_fake(&f);
}

static void commit_swaps_and_reset_clears(void **state) {
    (void)state;
    fake_session f;
    open_fake(&f);
    ms_state *s = &f.session.state;
    ms_state_part *kda = ms_state_find(s, "kda", 0), *mla = ms_state_find(s, "mla", 2);
    const uint8_t *current = kda->current, *next = kda->next, *rows = mla->current;
    ms_state_commit(s, 5);
    assert_ptr_equal(kda->current, next);
    assert_ptr_equal(kda->next, current);
    assert_ptr_equal(mla->current, rows);
    assert_int_equal(s->position, 5);
    fake_reset(&f);
    ms_digest zero = digest_of(&f);
    advance(&f, 7, 4);
    ms_digest four = digest_of(&f);
    assert_int_not_equal(zero.part[0].fnv1a64 == four.part[0].fnv1a64, 1);
    fake_reset(&f);
    assert_same_digest(&f, &zero);
    advance(&f, 7, 4);
    assert_same_digest(&f, &four);
    close_fake(&f);
}

/* A window of 5 rows of 3 bytes in a ring of 256: what counts at a position, where it lies, and what is still there. */
static void windows_and_rings(void **state) {
    (void)state;
    fake_backend b;
    fake_backend_init(&b);
    ms_state_part parts[] = {{.kind = "full", .layer = 0, .row_bytes = 2},
                             {.kind = "window", .layer = 1, .row_bytes = 3, .window = 5}};
    ms_state s;
    ms_error err;
    assert_int_equal(ms_state_create(&s, &b.be, parts, 2, 1000, &err), MS_ERR_INTERNAL); /* no ring yet */
    ms_state_size_rings(parts, 2, 253);
    assert_int_equal(parts[1].ring, 512);
    ms_state_size_rings(parts, 2, 252);
    assert_int_equal(parts[1].ring, 256);
    assert_int_equal(parts[0].ring, 0);
    assert_int_equal(ms_state_memory_bytes(&parts[1], 1000), 768);
    assert_int_equal(ms_state_snapshot_bytes(&parts[1]), 12);
    assert_int_equal(ms_state_snapshot_bytes(&parts[0]), 0);
    parts[0].ring = 256;
    assert_int_equal(ms_state_create(&s, &b.be, parts, 2, 1000, &err), MS_ERR_INTERNAL); /* a ring without a window */
    parts[0].ring = 0;
    assert_int_equal(ms_state_create(&s, &b.be, parts, 2, 1000, &err), MS_OK);
    const ms_state_part *w = ms_state_find(&s, "window", 1);
    assert_int_equal(ms_state_bytes_at(w, 0), 0);
    assert_int_equal(ms_state_bytes_at(w, 3), 9);
    assert_int_equal(ms_state_bytes_at(w, 4), 12);
    assert_int_equal(ms_state_bytes_at(w, 900), 12);
    size_t n = 12;
    assert_ptr_equal(ms_state_span(w, 258, 0, &n), w->current + 254 * 3); /* rows 254..257 wrap */
    assert_int_equal(n, 6);
    n = 6;
    assert_ptr_equal(ms_state_span(w, 258, 6, &n), w->current);
    assert_int_equal(n, 6);
    ms_state_begin(&s, 252);
    ms_state_commit(&s, 252);
    assert_true(ms_state_can_rewind(&s, 1)); /* all rows are still there */
    ms_state_begin(&s, 100);                 /* a pass that fails: rows up to 352 may have been written */
    assert_true(ms_state_can_rewind(&s, 252) && ms_state_can_rewind(&s, 100));
    assert_false(ms_state_can_rewind(&s, 99)); /* needs row 95, where row 351 may lie */
    ms_state_rewind(&s, 100);
    assert_int_equal(s.position, 100);
    assert_false(ms_state_can_rewind(&s, 99));
    ms_state_adopt(&s, 300);
    assert_false(ms_state_can_rewind(&s, 299));
    assert_true(ms_state_can_rewind(&s, 0) && ms_state_can_rewind(&s, 300));
    ms_state_reset(&s);
    assert_int_equal(s.position, 0);
    ms_state_commit(&s, 10);
    assert_true(ms_state_can_rewind(&s, 3));
    ms_state_destroy(&s);
    assert_int_equal(b.held, 0);
}

static void bad_part_lists_are_refused(void **state) {
    (void)state;
    fake_backend b;
    fake_backend_init(&b);
    const ms_state_part two[][2] = {
        {{.kind = "", .layer = 0, .bytes = 1}, {.kind = "a", .layer = 0, .bytes = 1}},
        {{.kind = NULL, .layer = 0, .bytes = 1}, {.kind = "a", .layer = 0, .bytes = 1}},
        {{.kind = "12345678", .layer = 0, .bytes = 1}, {.kind = "a", .layer = 0, .bytes = 1}},
        {{.kind = "a", .layer = 0}, {.kind = "b", .layer = 0, .bytes = 1}},
        {{.kind = "a", .layer = 0, .bytes = 1, .row_bytes = 1}, {.kind = "b", .layer = 0, .bytes = 1}},
        {{.kind = "a", .layer = 1, .bytes = 1}, {.kind = "a", .layer = 1, .bytes = 1}},
        {{.kind = "a", .layer = 1, .bytes = 1}, {.kind = "a", .layer = 0, .bytes = 1}},
    };
    ms_state s;
    ms_error err;
    for (size_t i = 0; i < sizeof two / sizeof two[0]; i++) {
        assert_int_equal(ms_state_create(&s, &b.be, two[i], 2, 8, &err), MS_ERR_INTERNAL);
        ms_state_destroy(&s);
    }
    const ms_state_part back[] = {
        {.kind = "a", .bytes = 1}, {.kind = "b", .bytes = 1}, {.kind = "a", .layer = 1, .bytes = 1}};
    assert_int_equal(ms_state_create(&s, &b.be, back, 3, 8, &err), MS_ERR_INTERNAL);
    const char *const names[] = {"a", "b", "c", "d", "e", "f", "g", "h", "i"};
    ms_state_part nine[9];
    for (int i = 0; i < 9; i++) nine[i] = (ms_state_part){.kind = names[i], .bytes = 1};
    assert_int_equal(ms_state_create(&s, &b.be, nine, 9, 8, &err), MS_ERR_INTERNAL);
    assert_int_equal(ms_state_create(&s, &b.be, nine, 8, 8, &err), MS_OK);
    ms_state_destroy(&s);
    assert_int_equal(ms_state_create(&s, &b.be, nine, 1, 0, &err), MS_ERR_USAGE);
    const ms_state_part huge = {.kind = "mla", .row_bytes = UINT64_MAX / 4};
    assert_int_equal(ms_state_create(&s, &b.be, &huge, 1, 8, &err), MS_ERR_NO_FIT);
    const ms_state_part large = {.kind = "kda", .bytes = UINT64_MAX};
    assert_int_equal(ms_state_create(&s, &b.be, &large, 1, 8, &err), MS_ERR_NO_FIT);
    assert_int_equal(b.held, 0);
}

static void every_failing_allocation_leaves_nothing(void **state) {
    (void)state;
    const ms_state_part parts[] = {
        {.kind = "kda", .bytes = 4}, {.kind = "mla", .row_bytes = 4}, {.kind = "x", .bytes = 9}};
    fake_backend b;
    fake_backend_init(&b);
    ms_state s;
    ms_error err;
    for (long n = 0; n < 5; n++) {
        b.allocs_left = n;
        assert_int_equal(ms_state_create(&s, &b.be, parts, 3, 8, &err), MS_ERR_MEMORY);
        assert_int_equal(b.held, 0);
        assert_null(s.parts);
    }
    b.allocs_left = 5;
    assert_int_equal(ms_state_create(&s, &b.be, parts, 3, 8, &err), MS_OK);
    ms_state_destroy(&s);
    assert_int_equal(b.held, 0);
}

/* ------------------------------------------------------------------ digest and identity */

static void digest_is_fnv_per_kind_in_layer_order(void **state) {
    (void)state;
    fake_session f;
    open_fake(&f);
    advance(&f, 10, 3);
    ms_state_part *p = f.session.state.parts;
    ms_digest d = digest_of(&f);
    assert_int_equal(d.count, 3);
    assert_int_equal(d.position, 3);
    assert_string_equal(d.part[0].kind, "kda");
    assert_string_equal(d.part[1].kind, "conv");
    assert_string_equal(d.part[2].kind, "mla");
    assert_true(d.part[0].fnv1a64 == ms_fnv1a64(ms_fnv1a64(MS_FNV1A64_INIT, p[0].current, 100), p[1].current, 100));
    assert_true(d.part[1].fnv1a64 == ms_fnv1a64(ms_fnv1a64(MS_FNV1A64_INIT, p[2].current, 18), p[3].current, 18));
    assert_true(d.part[2].fnv1a64 == ms_fnv1a64(ms_fnv1a64(MS_FNV1A64_INIT, p[4].current, 36), p[5].current, 36));
    p[4].current[36] ^= 1; /* beyond the position: does not count */
    assert_same_digest(&f, &d);
    p[5].current[35] ^= 1;
    ms_digest other = digest_of(&f);
    assert_true(other.part[2].fnv1a64 != d.part[2].fnv1a64);
    f.backend.sync_fails = true;
    ms_error err;
    assert_int_equal(ms_session_digest(&f.session, &other, &err), MS_ERR_IO);
    close_fake(&f);
}

static void digest_of_large_parts_is_independent_of_pieces(void **state) {
    (void)state;
    fake_options o = fake_defaults();
    o.kda_bytes = (2u << 20) + 3;
    fake_session f;
    ms_error err;
    assert_int_equal(fake_open(&f, &o, &err), MS_OK);
    advance(&f, 1, 1);
    ms_state_part *p = f.session.state.parts;
    uint64_t want = ms_fnv1a64(MS_FNV1A64_INIT, p[0].current, o.kda_bytes);
    want = ms_fnv1a64(want, p[1].current, o.kda_bytes);
    assert_true(digest_of(&f).part[0].fnv1a64 == want);
    close_fake(&f);
}

static void identity_tells_setups_apart(void **state) {
    (void)state;
    uint64_t seen[8];
    for (int i = 0; i < 8; i++) {
        fake_options o = fake_defaults();
        if (i == 1) o.lane = "fakf";
        if (i == 2) o.layout++;
        if (i == 3) o.precision = MS_PRECISION_REFERENCE;
        if (i == 4) o.static_format = MS_STATIC_BF16;
        if (i == 5) o.kda_bytes++;
        if (i == 6) o.row_bytes++;
        if (i == 7) o.context++; /* the capacity is no part of the identity */
        fake_session f;
        ms_error err;
        assert_int_equal(fake_open(&f, &o, &err), MS_OK);
        seen[i] = ms_session_identity(&f.session);
        advance(&f, 1, 2);
        assert_true(seen[i] == ms_session_identity(&f.session));
        for (int j = 0; j < i; j++) assert_true(i == 7 && j == 0 ? seen[i] == seen[j] : seen[i] != seen[j]);
        close_fake(&f);
    }
}

/* ------------------------------------------------------------------ snapshots */

static ms_snapshot *take(fake_session *f) {
    ms_snapshot *snap;
    ms_error err;
    assert_int_equal(ms_session_snapshot(&f->session, &snap, &err), MS_OK);
    assert_int_equal(ms_snapshot_position(snap), f->session.state.position);
    return snap;
}

static void assert_restores(fake_session *f, const ms_snapshot *snap, const ms_digest *want) {
    ms_error err;
    assert_int_equal(ms_session_restore(&f->session, snap, &err), MS_OK);
    assert_false(f->session.has_logits);
    assert_same_digest(f, want);
}

static void assert_stale(fake_session *f, const ms_snapshot *snap) {
    ms_error err;
    ms_digest before = digest_of(f);
    bool has_logits = f->session.has_logits;
    assert_int_equal(ms_session_restore(&f->session, snap, &err), MS_ERR_USAGE);
    assert_int_equal(f->session.has_logits, has_logits);
    assert_same_digest(f, &before);
}

static void restore_and_go_on_gives_the_same_state(void **state) {
    (void)state;
    fake_session f;
    open_fake(&f);
    advance(&f, 10, 4);
    ms_snapshot *snap = take(&f);
    ms_digest four = digest_of(&f);
    advance(&f, 50, 5);
    ms_digest nine = digest_of(&f);
    for (int i = 0; i < 3; i++) { /* any number of times */
        assert_restores(&f, snap, &four);
        assert_int_equal(f.session.tokens[3], 13);
        advance(&f, 50, 5);
        assert_same_digest(&f, &nine);
        assert_restores(&f, snap, &four);
        advance(&f, 90, 7); /* another continuation */
    }
    ms_snapshot_destroy(snap);
    close_fake(&f);
}

static void a_restore_ends_later_snapshots_only(void **state) {
    (void)state;
    fake_session f;
    open_fake(&f);
    ms_snapshot *at0 = take(&f);
    ms_digest d0 = digest_of(&f);
    advance(&f, 1, 2);
    ms_snapshot *at2 = take(&f);
    ms_digest d2 = digest_of(&f);
    advance(&f, 3, 3);
    ms_snapshot *at5 = take(&f);
    ms_digest d5 = digest_of(&f);
    advance(&f, 6, 3);
    ms_snapshot *at8 = take(&f);
    ms_digest d8 = digest_of(&f);
    assert_restores(&f, at8, &d8); /* where it already is */
    assert_restores(&f, at5, &d5);
    assert_stale(&f, at8);
    advance(&f, 70, 3); /* position 8 again, other rows */
    assert_stale(&f, at8);
    ms_snapshot *other8 = take(&f);
    ms_digest e8 = digest_of(&f);
    advance(&f, 80, 1);
    assert_restores(&f, other8, &e8);
    assert_stale(&f, at8); /* the same position on the left timeline does not come along */
    assert_restores(&f, at5, &d5);
    assert_stale(&f, other8);
    assert_restores(&f, at2, &d2);
    assert_stale(&f, at5);
    advance(&f, 1, 1);
    assert_stale(&f, at8); /* a left timeline never comes back */
    assert_restores(&f, at0, &d0);
    assert_stale(&f, at2);
    assert_restores(&f, at0, &d0);
    ms_snapshot_destroy(at5); /* any order */
    ms_snapshot_destroy(at0);
    ms_snapshot_destroy(other8);
    ms_snapshot_destroy(at8);
    ms_snapshot_destroy(at2);
    ms_snapshot_destroy(NULL);
    assert_null(f.session.snapshots);
    close_fake(&f);
}

static void reset_ends_all_snapshots(void **state) {
    (void)state;
    fake_session f;
    open_fake(&f);
    ms_snapshot *at0 = take(&f);
    advance(&f, 1, 2);
    ms_snapshot *at2 = take(&f);
    fake_reset(&f);
    assert_stale(&f, at0);
    assert_stale(&f, at2);
    ms_snapshot_destroy(at0);
    ms_snapshot_destroy(at2);
    close_fake(&f);
}

static void snapshots_of_other_or_dead_sessions_are_refused(void **state) {
    (void)state;
    fake_session f, g;
    open_fake(&f);
    open_fake(&g);
    advance(&f, 1, 2);
    advance(&g, 1, 2);
    ms_snapshot *snap = take(&f), *second = take(&f);
    assert_stale(&g, snap);
    ms_session_detach_snapshots(&f.session); /* as destroying the session does */
    assert_null(f.session.snapshots);
    assert_stale(&f, snap);
    ms_snapshot_destroy(snap);
    ms_snapshot_destroy(second);
    close_fake(&f);
    close_fake(&g);
}

static void failing_devices_leave_the_session(void **state) {
    (void)state;
    fake_session f;
    open_fake(&f);
    advance(&f, 1, 2);
    ms_snapshot *snap = take(&f), *none;
    ms_digest two = digest_of(&f);
    advance(&f, 1, 2);
    ms_digest four = digest_of(&f);
    size_t held = f.backend.held;
    ms_error err;
    f.backend.allocs_left = 0;
    assert_int_equal(ms_session_snapshot(&f.session, &none, &err), MS_ERR_MEMORY);
    f.backend.allocs_left = -1;
    f.backend.sync_fails = true;
    assert_int_equal(ms_session_snapshot(&f.session, &none, &err), MS_ERR_IO);
    assert_null(none);
    assert_int_equal(ms_session_restore(&f.session, snap, &err), MS_ERR_IO);
    f.backend.sync_fails = false;
    assert_int_equal(f.backend.held, held);
    assert_true(f.session.has_logits);
    assert_same_digest(&f, &four);
    assert_restores(&f, snap, &two);
    ms_snapshot_destroy(snap);
    close_fake(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_are_allocated_zeroed_and_found),
        cmocka_unit_test(commit_swaps_and_reset_clears),
        cmocka_unit_test(bad_part_lists_are_refused), cmocka_unit_test(windows_and_rings),
        cmocka_unit_test(every_failing_allocation_leaves_nothing),
        cmocka_unit_test(digest_is_fnv_per_kind_in_layer_order),
        cmocka_unit_test(digest_of_large_parts_is_independent_of_pieces),
        cmocka_unit_test(identity_tells_setups_apart),
        cmocka_unit_test(restore_and_go_on_gives_the_same_state),
        cmocka_unit_test(a_restore_ends_later_snapshots_only),
        cmocka_unit_test(reset_ends_all_snapshots),
        cmocka_unit_test(snapshots_of_other_or_dead_sessions_are_refused),
        cmocka_unit_test(failing_devices_leave_the_session),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
