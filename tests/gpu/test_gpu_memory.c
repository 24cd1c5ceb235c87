/* Device memory that runs out: what fits is planned from what the device says; where it says too much, or another
 * program took the rest, opening fails with a message wherever the refusal comes, and works once there is room. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/bytes.h"
#include "gpu_test.h"
#include "model_test.h"
#include "moonshine/moonshine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL "tests/golden/k3/k3-tiny-a"
enum { IDS = 5, HELD = 4096, PASS = 12 };

static bool emulated(void) { return !strcmp(gpu_test_name(), "emu"); }

static void ok(ms_status st, const ms_error *err) {
    if (st != MS_OK) fail_msg("%s", err->message);
}

/* NULL: what the emulator does by itself, memory shared with the host. */
static void emulate(const char *memory, const char *said) {
    const char *const names[] = {"GPU_EMU_DISCRETE", "GPU_EMU_MEMORY", "GPU_EMU_MEMORY_SAID"};
    const char *const values[] = {memory ? "1" : NULL, memory, said};
    for (size_t i = 0; i < 3; i++) assert_int_equal(values[i] ? setenv(names[i], values[i], 1) : unsetenv(names[i]), 0);
}

static void emulate_bytes(uint64_t memory, uint64_t said) {
    char a[32], b[32];
    (void)snprintf(a, sizeof a, "%llu", (unsigned long long)memory);
    (void)snprintf(b, sizeof b, "%llu", (unsigned long long)said);
    emulate(a, b);
}

static ms_engine_options options_of(uint32_t experts) {
    ms_engine_options o;
    ms_engine_options_default(&o, MODEL);
    o.backend = gpu_test_name();
    o.context = 16;
    o.experts = experts;
    return o;
}

static ms_plan *plan_of(uint32_t experts) {
    ms_engine_options o = options_of(experts);
    ms_plan *p;
    ms_error err;
    ok(ms_plan_create(&p, &o, &err), &err);
    return p;
}

static uint64_t logits_of(ms_engine *e, ms_session *s) {
    ms_model_info info;
    ms_engine_info(e, &info);
    const float *logits = ms_session_logits(s);
    assert_non_null(logits);
    return ms_fnv1a64(MS_FNV1A64_INIT, logits, info.vocab * sizeof *logits);
}

/* Opens and runs; MS_ERR_MEMORY is the only way to fail.  The digest of logits. */
static ms_status try_run(uint32_t experts, uint64_t *digest, ms_error *err) {
    ms_engine_options o = options_of(experts);
    ms_engine *e = NULL;
    ms_session *s = NULL;
    uint32_t ids[IDS] = {3, 1, 4, 1, 5};
    ms_status st = ms_engine_open(&e, &o, err);
    if (st == MS_OK) st = ms_session_create(&s, e, err);
    if (st == MS_OK) ok(ms_session_forward(s, ids, IDS, NULL, err), err);
    if (st == MS_OK) *digest = logits_of(e, s);
    ms_session_destroy(s);
    ms_engine_close(e);
    return st;
}

/* As many slots as fit beside everything else and the reserve, unless a number was given. */
static void planned_slots(void **state) {
    (void)state;
    if (!emulated()) { /* this model is small: all its experts fit */
        ms_plan *p = plan_of(MS_DEFAULT_EXPERTS);
        assert_true(p->has_device ? p->experts == p->experts_all && p->fits : p->experts <= 32);
        ms_plan_destroy(p);
        return;
    }
    emulate_bytes(1 << 30, 1 << 30);
    ms_plan *none = plan_of(0), *one = plan_of(1);
    uint64_t slot = one->device_total_bytes - none->device_total_bytes;
    assert_true(none->has_device && none->device_total_bytes > 0);
    uint64_t open = (1 << 30) - none->device_available_bytes; /* what an open backend has already */
    for (uint64_t slots = 0; slots < 4; slots++) {
        uint64_t room = none->device_total_bytes + slots * slot + slot / 2; /* what is left after the reserve */
        uint64_t all = room + open;
        while (all - open - all / 20 - all / 64 < room) all++;
        emulate_bytes(all, all);
        ms_plan *p = plan_of(MS_DEFAULT_EXPERTS);
        assert_int_equal(p->experts, slots);
        assert_true(p->fits);
        ms_plan_destroy(p);
        p = plan_of((uint32_t)slots + 1);
        assert_false(p->fits);
        ms_plan_destroy(p);
        uint64_t digest;
        ms_error err;
        assert_int_equal(try_run((uint32_t)slots + 1, &digest, &err), MS_ERR_NO_FIT);
        assert_non_null(strstr(err.message, "does not fit the device"));
    }
    emulate_bytes(1 << 30, 1 << 30);
    ms_plan *all = plan_of(MS_DEFAULT_EXPERTS);
    assert_int_equal(all->experts, all->experts_all);
    ms_plan_destroy(all);
    ms_plan_destroy(one);
    ms_plan_destroy(none);
    emulate(NULL, NULL);
}

/* The device says more than there is: every amount refuses at another place, until there is enough. */
static void refused_midway(void **state) {
    (void)state;
    if (!emulated()) return; /* `full` does this to a device */
    uint64_t want, digest, failures = 0;
    ms_error err;
    emulate(NULL, NULL);
    ok(try_run(2, &want, &err), &err);
    emulate_bytes(1 << 30, 1 << 30);
    ms_plan *p = plan_of(2);
    uint64_t need = p->device_total_bytes;
    ms_plan_destroy(p);
    for (uint64_t part = 0; part <= 40; part++) {
        emulate_bytes(need * part / 32, 1 << 30);
        if (try_run(2, &digest, &err) == MS_OK) {
            assert_int_equal(digest, want);
            assert_true(part >= 30); /* the ledger is no larger than what is taken */
            break;
        }
        assert_int_equal(err.code, MS_ERR_MEMORY);
        assert_non_null(strstr(err.message, "memory: "));
        failures++;
    }
    assert_true(failures > 20 && failures <= 33); /* and no smaller */
    emulate(NULL, NULL);
}

/* All that a device has left, in pieces. */
typedef struct ballast {
    void *held[HELD];
    size_t bytes[HELD], count;
} ballast;

/* `err` is the last refusal. */
static void take_all(ballast *b, ms_backend *be, ms_error *err) {
    static const size_t sizes[] = {(size_t)1 << 30, (size_t)64 << 20, (size_t)2 << 20, 64 << 10, 4 << 10};
    b->count = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        while (b->count < HELD && be->alloc(be, MS_MEM_DEVICE, sizes[i], "ballast", &b->held[b->count], err) == MS_OK)
            b->bytes[b->count++] = sizes[i];
    assert_true(b->count > 0 && b->count < HELD);
    assert_int_equal(err->code, MS_ERR_MEMORY);
    assert_non_null(strstr(err->message, "out of device memory: ballast needs"));
}

static void give_all(ballast *b, ms_backend *be) {
    for (size_t i = 0; i < b->count; i++) be->release(be, MS_MEM_DEVICE, b->held[i], b->bytes[i]);
    b->count = 0;
}

/* A device that is full refuses, says so, and goes on when it is not full any more. */
static void full(void **state) {
    (void)state;
    ms_error err;
    uint64_t want, digest;
    emulate(NULL, NULL);
    ok(try_run(2, &want, &err), &err);
    if (emulated()) emulate("200000000", "200000000");
    ms_backend *be = gpu_test_open(MS_PRECISION_FAST);
    uint64_t total, left;
    be->device_memory(be, &total, &left);
    static ballast b;
    ms_weight w;
    if (total) { /* else the memory is the host's, and filling that is not a test */
        take_all(&b, be, &err);
        assert_int_equal(be->weight_create(be, &w, MS_FORMAT_Q8, 4096, 4096, &err), MS_ERR_MEMORY);
        assert_null(w.data);
        assert_int_equal(be->sync(be, &err), MS_OK); /* a refusal is not a failure of the device */
        ms_status st = try_run(2, &digest, &err);
        assert_true(st == MS_ERR_MEMORY || st == MS_ERR_NO_FIT || st == MS_ERR_UNSUPPORTED);
    }
    give_all(&b, be);
    assert_int_equal(be->weight_create(be, &w, MS_FORMAT_Q8, 4096, 4096, &err), MS_OK);
    be->weight_destroy(be, &w);
    assert_int_equal(be->sync(be, &err), MS_OK);
    be->destroy(be);
    ok(try_run(2, &digest, &err), &err);
    assert_int_equal(digest, want);
    emulate(NULL, NULL);
}

/* Another program takes what is left of the device while a model is open: what needs more is an error, what runs goes
 * on, and once there is room the rest works too, with the same bits. */
static void full_midway(void **state) {
    (void)state;
    static ballast b;
    uint32_t ids[PASS];
    ms_error err;
    ms_engine *e;
    ms_session *s, *other;
    ms_snapshot *snap = NULL;
    uint64_t total, left, want[2];
    for (uint32_t i = 0; i < PASS; i++) ids[i] = 7 * i % 31;
    if (emulated()) emulate("200000000", "200000000");
    ms_backend *be = gpu_test_open(MS_PRECISION_FAST);
    be->device_memory(be, &total, &left);
    for (int filled = 0; total && filled < 2; filled++) {
        ms_engine_options o = options_of(2);
        ok(ms_engine_open(&e, &o, &err), &err);
        ok(ms_session_create(&s, e, &err), &err);
        ok(ms_session_forward(s, ids, IDS, NULL, &err), &err);
        if (filled) {
            take_all(&b, be, &err);
            assert_int_equal(ms_session_create(&other, e, &err), MS_ERR_MEMORY);
            assert_non_null(strstr(err.message, "out of device memory: "));
            assert_int_equal(ms_session_snapshot(s, &snap, &err), MS_ERR_MEMORY);
            assert_int_equal(ms_session_position(s), IDS);
        }
        ok(ms_session_forward(s, ids + IDS, PASS - IDS, NULL, &err), &err);
        const uint64_t found = logits_of(e, s);
        if (filled) {
            give_all(&b, be);
            assert_true(found == want[0]);
        }
        want[0] = found;
        ok(ms_session_snapshot(s, &snap, &err), &err);
        ok(ms_session_forward(s, ids, 1, NULL, &err), &err);
        if (filled) assert_true(logits_of(e, s) == want[1]);
        want[1] = logits_of(e, s);
        ms_snapshot_destroy(snap);
        ms_session_destroy(s);
        ms_engine_close(e);
    }
    ok(be->sync(be, &err), &err);
    be->destroy(be);
    emulate(NULL, NULL);
}

/* What a model takes of the device, all in all, is what its ledger says, less what it rounds. */
static void check_ledger(const char *model, ms_static_format format, ms_precision precision) {
    ms_engine_options o;
    ms_engine *e;
    ms_session *s;
    ms_plan *p;
    ms_error err;
    uint32_t ids[IDS] = {3, 1, 4, 1, 5};
    uint64_t total, before, after;
    ms_engine_options_default(&o, model);
    o.backend = gpu_test_name();
    o.precision = precision;
    o.static_format = format;
    o.context = 600;
    o.experts = 2;
    ok(ms_plan_create(&p, &o, &err), &err);
    ms_backend *be = gpu_test_open(MS_PRECISION_FAST);
    be->device_memory(be, &total, &before);
    ok(ms_engine_open(&e, &o, &err), &err);
    ok(ms_session_create(&s, e, &err), &err);
    ok(ms_session_forward(s, ids, IDS, NULL, &err), &err);
    be->device_memory(be, &total, &after);
    ms_session_destroy(s);
    ms_engine_close(e);
    be->destroy(be);
    const uint64_t taken = before - after, planned = p->device_total_bytes;
    if (taken > planned + planned / 50 || planned > taken + taken / 50)
        fail_msg("%s: planned %llu bytes of the device, took %llu", model, (unsigned long long)planned,
                 (unsigned long long)taken);
    ms_plan_destroy(p);
}

static void ledger(void **state) {
    (void)state;
    char mimo[MODEL_PATH];
    if (!emulated()) return; /* a device hands memory out in units that are as large as these models */
    model_make_mimo(mimo);
    emulate_bytes((uint64_t)4 << 30, (uint64_t)4 << 30);
    const char *const models[] = {MODEL, "tests/golden/mimo26/mimo-tiny", mimo};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        check_ledger(models[i], MS_STATIC_Q8, MS_PRECISION_FAST);
        check_ledger(models[i], MS_STATIC_BF16, MS_PRECISION_FAST);
        check_ledger(models[i], MS_STATIC_BF16, MS_PRECISION_REFERENCE);
    }
    emulate(NULL, NULL);
    model_remove(mimo);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ledger), cmocka_unit_test(planned_slots), cmocka_unit_test(refused_midway),
        cmocka_unit_test(full),   cmocka_unit_test(full_midway),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
