/* Installs beside other work: whatever overlaps, each run sees the bytes that call order gives its slots, staging
 * memory is free again when install_end says so, and results belong to their own ticket.  On the emulator once more
 * with streams that work as late as they may, with and without memory of the device's own. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "gpu_test.h"

#include <stdlib.h>
#include <string.h>

enum { HIDDEN = 64, INNER = 32, SLOTS = 5, SOURCES = 6, ZERO = SOURCES, UNKNOWN, BUFFERS = 7, STEPS = 600, PAIRS = 4 };
static const ms_expert_shape shape = {.hidden = HIDDEN, .inner = INNER};
static const ms_situ act = {4.0f, 25.0f};

static const char *const modes[][2] = {{NULL, NULL}, {"1", NULL}, {"1", "1"}, {NULL, "1"}};

static void set_or_not(const char *name, const char *value) {
    if (value)
        assert_int_equal(setenv(name, value, 1), 0);
    else
        assert_int_equal(unsetenv(name), 0);
}

static ms_backend *open_mode(size_t mode) {
    ms_scratch_need need = {.rows = 1, .input_cols = HIDDEN, .expert = shape, .pairs = PAIRS};
    ms_error err;
    set_or_not("GPU_EMU_LAZY", modes[mode][0]);
    set_or_not("GPU_EMU_DISCRETE", modes[mode][1]);
    ms_backend *be = gpu_test_open(MS_PRECISION_FAST);
    if (be->scratch_reserve(be, &need, &err) != MS_OK) fail_msg("%s", err.message);
    return be;
}

static uint32_t random_below(uint64_t *state, uint32_t n) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33) % n;
}

static void make_source(uint8_t *to, uint32_t number) {
    size_t bytes = ms_expert_bytes(shape), packed = HIDDEN * INNER / 2, matrix = bytes / 3;
    uint64_t state = number + 5;
    for (size_t i = 0; i < bytes; i++)
        to[i] = (uint8_t)(i % matrix < packed ? random_below(&state, 256) : 120 + random_below(&state, 5));
}

static void *memory(ms_backend *be, ms_memory_kind kind, size_t bytes) {
    void *p;
    assert_int_equal(be->alloc(be, kind, bytes, "test", &p, NULL), MS_OK);
    return p;
}

typedef struct bench {
    ms_backend *be;
    size_t bytes;
    uint8_t *slots, *staging; /* BUFFERS pieces of bytes + 3 */
    uint8_t source[SOURCES][3 * HIDDEN * (INNER / 32) * 17];
    float *z, *y; /* [STEPS][PAIRS][HIDDEN] */
    float want[SOURCES + 1][HIDDEN];
    uint32_t content[SLOTS], run_content[STEPS][PAIRS], runs;
    bool busy[BUFFERS];
    uint32_t ticket[BUFFERS];
} bench;

static uint8_t *slot_of(const bench *b, uint32_t slot) { return b->slots + slot * b->bytes; }

static uint8_t *buffer_of(const bench *b, uint32_t i) { return b->staging + i * (b->bytes + 3) + i % 4; }

/* Results of runs go to places of their own: nothing has to wait for them. */
static void run(bench *b, const uint32_t *slots, uint32_t count) {
    uint32_t row[PAIRS] = {0}, pair[PAIRS];
    ms_expert_batch batches[PAIRS];
    for (uint32_t i = 0; i < count; i++) {
        pair[i] = i;
        batches[i] = (ms_expert_batch){slot_of(b, slots[i]), &row[i], &pair[i], 1};
        b->run_content[b->runs][i] = b->content[slots[i]];
    }
    for (uint32_t i = count; i < PAIRS; i++) b->run_content[b->runs][i] = UNKNOWN;
    b->be->experts_run(b->be, b->y + (size_t)b->runs++ * PAIRS * HIDDEN, shape, act, batches, count);
}

static void bench_open(bench *b, size_t mode) {
    float z[HIDDEN];
    memset(b, 0, sizeof *b);
    b->be = open_mode(mode);
    b->bytes = ms_expert_bytes(shape);
    assert_int_equal(b->bytes, sizeof b->source[0]);
    b->slots = memory(b->be, MS_MEM_DEVICE, SLOTS * b->bytes);
    b->staging = memory(b->be, MS_MEM_STAGING, BUFFERS * (b->bytes + 3) + 3);
    b->z = memory(b->be, MS_MEM_DEVICE, sizeof z);
    b->y = memory(b->be, MS_MEM_DEVICE, (size_t)STEPS * PAIRS * HIDDEN * sizeof(float));
    for (uint32_t i = 0; i < HIDDEN; i++) z[i] = (float)(i * 29 % 31) / 16.0f - 1.0f;
    b->be->upload(b->be, b->z, z, sizeof z);
    b->be->experts_begin(b->be, b->z, 1, shape);
    for (uint32_t e = 0; e <= SOURCES; e++) { /* one after the other, waiting each time */
        if (e < SOURCES) {
            make_source(b->source[e], e);
            memcpy(buffer_of(b, 0), b->source[e], b->bytes);
            assert_int_equal(b->be->install(b->be, b->slots, buffer_of(b, 0), shape, NULL), MS_OK);
        } else {
            b->be->zero(b->be, b->slots, b->bytes);
        }
        run(b, &(uint32_t){0}, 1);
        b->be->download(b->be, b->want[e], b->y + (size_t)e * PAIRS * HIDDEN, sizeof b->want[e]);
        for (uint32_t i = 0; i < e; i++) assert_memory_not_equal(b->want[i], b->want[e], sizeof b->want[e]);
    }
    b->runs = 0;
    for (uint32_t i = 0; i < SLOTS; i++) b->content[i] = UNKNOWN;
    b->content[0] = ZERO;
}

static void bench_close(bench *b) {
    b->be->release(b->be, MS_MEM_DEVICE, b->slots, SLOTS * b->bytes);
    b->be->release(b->be, MS_MEM_STAGING, b->staging, BUFFERS * (b->bytes + 3) + 3);
    b->be->release(b->be, MS_MEM_DEVICE, b->z, HIDDEN * sizeof(float));
    b->be->release(b->be, MS_MEM_DEVICE, b->y, 0);
    b->be->destroy(b->be);
}

static bool end(bench *b, uint32_t buffer, bool wait) {
    bool done;
    ms_error err;
    if (b->be->install_end(b->be, b->ticket[buffer], wait, &done, &err) != MS_OK) fail_msg("%s", err.message);
    assert_true(done || !wait);
    if (!done) return false;
    b->busy[buffer] = false;
    memset(buffer_of(b, buffer), 0x33, b->bytes); /* the device does not look here any more */
    return true;
}

static void begin(bench *b, uint32_t buffer, uint32_t slot, uint32_t source) {
    ms_error err;
    if (b->busy[buffer]) (void)end(b, buffer, true);
    memcpy(buffer_of(b, buffer), b->source[source], b->bytes);
    if (b->be->install_begin(b->be, slot_of(b, slot), buffer_of(b, buffer), shape, &b->ticket[buffer], &err) != MS_OK)
        fail_msg("%s", err.message);
    b->busy[buffer] = true;
    b->content[slot] = source;
}

static void random_step(bench *b, uint64_t *state) {
    uint32_t slot = random_below(state, SLOTS), other = (slot + 1 + random_below(state, SLOTS - 1)) % SLOTS;
    uint32_t buffer = random_below(state, BUFFERS), id;
    switch (random_below(state, 10)) {
    case 0:
        b->be->zero(b->be, slot_of(b, slot), b->bytes);
        b->content[slot] = ZERO;
        return;
    case 1:
        b->be->copy(b->be, slot_of(b, slot), slot_of(b, other), b->bytes);
        b->content[slot] = b->content[other];
        return;
    case 2: /* as a layer does: what was called before this has run when it ends */
        b->be->fetch_begin(b->be, b->z, sizeof id);
        if (random_below(state, 2)) run(b, &slot, 1);
        assert_int_equal(b->be->fetch_end(b->be, &id, NULL), MS_OK);
        return;
    case 3:
        if (b->busy[buffer]) (void)end(b, buffer, random_below(state, 2));
        return;
    case 4:
    case 5:
    case 6:
        begin(b, buffer, slot, random_below(state, SOURCES));
        return;
    default:
        run(b, (uint32_t[2]){slot, other}, 1 + random_below(state, 2));
    }
}

static void any_order(void **state) {
    (void)state;
    bench *b = malloc(sizeof *b);
    assert_non_null(b);
    for (size_t mode = 0; mode < sizeof modes / sizeof modes[0]; mode++) {
        bench_open(b, mode);
        uint64_t seed = mode + 1;
        for (uint32_t i = 0; i < STEPS; i++) random_step(b, &seed);
        for (uint32_t i = 0; i < BUFFERS; i++)
            if (b->busy[i]) (void)end(b, i, true);
        size_t bytes = (size_t)STEPS * PAIRS * HIDDEN * sizeof(float);
        float *y = malloc(bytes);
        assert_non_null(y);
        b->be->download(b->be, y, b->y, bytes);
        for (uint32_t r = 0; r < b->runs; r++)
            for (uint32_t p = 0; p < PAIRS; p++)
                if (b->run_content[r][p] != UNKNOWN)
                    assert_memory_equal(y + (size_t)(r * PAIRS + p) * HIDDEN, b->want[b->run_content[r][p]],
                                        sizeof b->want[0]);
        assert_true(b->runs > STEPS / 5);
        free(y);
        assert_int_equal(b->be->sync(b->be, NULL), MS_OK);
        bench_close(b);
    }
    free(b);
}

/* A bad scale is the result of its own ticket, also when it is asked for last. */
static void own_results(void **state) {
    (void)state;
    size_t packed = HIDDEN * INNER / 2;
    for (size_t mode = 0; mode < sizeof modes / sizeof modes[0]; mode++) {
        ms_backend *be = open_mode(mode);
        size_t bytes = ms_expert_bytes(shape);
        uint8_t *slots = memory(be, MS_MEM_DEVICE, 3 * bytes), *staging = memory(be, MS_MEM_STAGING, 3 * bytes);
        uint32_t ticket[3];
        bool done;
        for (uint32_t i = 0; i < 3; i++) make_source(staging + i * bytes, i);
        staging[bytes + packed + 7] = 255;
        for (uint32_t i = 0; i < 3; i++)
            assert_int_equal(be->install_begin(be, slots + i * bytes, staging + i * bytes, shape, &ticket[i], NULL),
                             MS_OK);
        ms_error err;
        assert_int_equal(be->install_end(be, ticket[2], true, &done, &err), MS_OK);
        assert_int_equal(be->install_end(be, ticket[0], true, &done, &err), MS_OK);
        assert_int_equal(be->install_end(be, ticket[1], true, &done, &err), MS_ERR_FORMAT);
        assert_non_null(strstr(err.message, "w1 scale of row 3 group 1"));
        assert_true(done);
        assert_int_equal(be->install_end(be, ticket[1], true, &done, &err), MS_ERR_INTERNAL); /* once only */
        assert_int_equal(be->install(be, slots, staging, shape, &err), MS_OK);
        assert_int_equal(be->sync(be, &err), MS_OK);
        be->release(be, MS_MEM_DEVICE, slots, 3 * bytes);
        be->release(be, MS_MEM_STAGING, staging, 3 * bytes);
        be->destroy(be);
    }
}

static void too_many(void **state) {
    (void)state;
    ms_backend *be = open_mode(1);
    size_t bytes = ms_expert_bytes(shape);
    uint8_t *slot = memory(be, MS_MEM_DEVICE, bytes), *staging = memory(be, MS_MEM_STAGING, bytes);
    uint32_t ticket[MS_INSTALLS], more;
    bool done;
    make_source(staging, 1);
    for (uint32_t i = 0; i < MS_INSTALLS; i++)
        assert_int_equal(be->install_begin(be, slot, staging, shape, &ticket[i], NULL), MS_OK);
    assert_int_equal(be->install_begin(be, slot, staging, shape, &more, NULL), MS_ERR_INTERNAL);
    assert_int_equal(be->install_end(be, ticket[0], true, &done, NULL), MS_OK);
    assert_int_equal(be->install_begin(be, slot, staging, shape, &more, NULL), MS_OK);
    for (uint32_t i = 1; i < MS_INSTALLS; i++)
        assert_int_equal(be->install_end(be, ticket[i], true, &done, NULL), MS_OK);
    assert_int_equal(be->install_end(be, more, true, &done, NULL), MS_OK);
    be->release(be, MS_MEM_STAGING, staging, bytes);
    be->release(be, MS_MEM_DEVICE, slot, bytes);
    be->destroy(be);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_order),
        cmocka_unit_test(own_results),
        cmocka_unit_test(too_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
