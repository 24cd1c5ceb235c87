/* MS_RANGE_AUTO: as many rows a pass as fit, never fewer than without it, and the same results. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine_util.h"

static void plan_of(ms_plan **p, uint32_t range, uint64_t context, uint64_t reserve) {
    ms_engine_options o;
    ms_error err;
    ms_engine_options_default(&o, NANO);
    o.context = context;
    o.threads = 1;
    o.range_rows = range;
    o.reserve_bytes = reserve;
    ok(ms_plan_create(p, &o, &err), &err);
}

static void both_ends_and_between(void **state) {
    (void)state;
    ms_plan *p, *usual;
    plan_of(&p, MS_RANGE_AUTO, 3000, 0);
    assert_true(p->fits);
    assert_int_equal(p->range_rows, 3000); /* the whole context */
    uint64_t available = p->available_bytes, all = p->total_bytes;
    ms_plan_destroy(p);

    plan_of(&p, MS_RANGE_AUTO, 3000, UINT64_MAX / 2); /* nothing fits: as without it */
    plan_of(&usual, 0, 3000, UINT64_MAX / 2);
    assert_false(p->fits);
    assert_int_equal(p->range_rows, usual->range_rows);
    assert_true(p->total_bytes == usual->total_bytes && p->total_bytes < all);
    ms_plan_destroy(p);

    /* Room for something between the two, as far as this machine's free memory stands still: what comes out fits or is
     * the usual one. */
    for (int part = 1; part < 8; part++) {
        plan_of(&p, MS_RANGE_AUTO, 3000,
                available - usual->total_bytes - (all - usual->total_bytes) * (uint64_t)part / 8);
        assert_true(p->range_rows >= usual->range_rows && p->range_rows <= 3000);
        assert_true(p->fits || p->range_rows == usual->range_rows);
        ms_plan_destroy(p);
    }
    ms_plan_destroy(usual);
    plan_of(&p, MS_RANGE_AUTO, 100, 0);
    assert_int_equal(p->range_rows, 100);
    ms_plan_destroy(p);
}

static void same_result(void **state) {
    (void)state;
    enum { IDS = 600 };
    uint64_t first = 0;
    for (int i = 0; i < 2; i++) {
        ms_engine_options o;
        ms_error err;
        rig r;
        uint32_t ids[IDS];
        ms_engine_options_default(&o, NANO);
        o.context = IDS;
        o.range_rows = i ? MS_RANGE_AUTO : 64;
        o.experts = 4;
        rig_open(&r, &o);
        some_ids(ids, IDS, r.vocab);
        ok(ms_session_forward(r.s, ids, IDS, NULL, &err), &err);
        ms_engine_stats x;
        ms_engine_get_stats(r.e, &x);
        if (i) {
            assert_int_equal(fingerprint_with_logits(&r), first);
            assert_true(x.expert_reads <= (uint64_t)r.e->model.experts.layer_count * r.e->model.experts.expert_count);
        }
        first = fingerprint_with_logits(&r);
        rig_close(&r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(both_ends_and_between), cmocka_unit_test(same_result)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
