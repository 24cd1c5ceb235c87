/* --range-backend blas: products of many rows near what the textbook gives, all others the canonical bits; its states
 * are its own; without the library, one error that names it.
 *
 * On the emulator the library is a stand-in (emublas/emublas.c), which is loaded here: a loaded library is found by its
 * name. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "../op/op_cases.h"
#include "../session/engine_util.h"
#include "backend/loader.h"
#include "gpu_test.h"

#include <dlfcn.h>
#include <math.h>

enum { MANY = MS_DECODE_BATCH + 1, PROMPT = 40 };

static int *products, *open_objects, *refuse; /* of the stand-in; NULL with a real library */

static ms_status open_blas(ms_backend **out, const char *name, ms_precision precision, ms_error *err) {
    const ms_backend_options o = {.name = name, .precision = precision, .range_blas = true};
    return ms_backend_open(out, &o, err);
}

static void no_library(void **state) {
    (void)state;
    ms_backend *be;
    ms_error err;
    REFUSED(open_blas(&be, "cpu", MS_PRECISION_FAST, &err), &err, MS_ERR_USAGE, "range backend blas", "CPU");
    assert_null(be);
    if (strcmp(gpu_test_name(), "emu") != 0) return;
    REFUSED(open_blas(&be, "emu", MS_PRECISION_FAST, &err), &err, MS_ERR_UNSUPPORTED, "range backend blas",
            "libmoonshine_emublas.so: cannot open");
    assert_null(be);
    const char *bin = getenv("MOONSHINE_BIN");
    char path[PATH_BYTES];
    (void)snprintf(path, sizeof path, "%s/tests/gpu/emublas/libmoonshine_emublas.so", bin ? bin : "build");
    void *library = dlopen(path, RTLD_NOW);
    if (!library) fail_msg("%s", dlerror());
    products = dlsym(library, "emublas_products");
    open_objects = dlsym(library, "emublas_open");
    refuse = dlsym(library, "emublas_refuse");
    assert_true(products && open_objects && refuse);
}

static float *run(ms_backend *be, const op_case *c, bool singles) {
    float *out = gpu_test_malloc(c->count(c) * sizeof *out);
    ms_error err;
    assert_non_null(out);
    c->run(be, c, singles, out);
    ok(be->sync(be, &err), &err);
    return out;
}

/* Near the textbook's result, and how many values have other bits than those of `exact`. */
static size_t compare(const op_case *c, const float *exact, const float *found, double tolerance) {
    const size_t count = c->count(c);
    double *want = calloc(count, sizeof *want), largest = 0;
    size_t different = 0;
    assert_non_null(want);
    c->naive(c, want);
    /* Of values that large or tiny, rounding alone decides what comes out. */
    const bool near = c->values != VALUES_LARGE && c->values != VALUES_TINY;
    for (size_t i = 0; i < count; i++) largest = fmax(largest, fabs(want[i]));
    for (size_t i = 0; i < count; i++) {
        different += memcmp(&exact[i], &found[i], sizeof *exact) != 0;
        if (near && !(fabs((double)found[i] - want[i]) <= tolerance * largest))
            fail_msg("%s n=%u d=%u,%u,%u format=%d values=%d: result %zu: expected %g, found %g", c->name, c->n,
                     c->d[0], c->d[1], c->d[2], (int)c->format, (int)c->values, i, want[i], (double)found[i]);
    }
    free(want);
    return different;
}

/* Whether the library has a product of such a case. */
static bool is_many(const op_case *c) {
    if (c->n <= MS_DECODE_BATCH) return false;
    return !strncmp(c->name, "project", 7) || (c->format != MS_FORMAT_F32 && !strcmp(c->name, "mlp"));
}

static void operations(ms_precision precision) {
    ms_error err;
    ms_backend *own = gpu_test_open(precision), *blas;
    ok(open_blas(&blas, gpu_test_name(), precision, &err), &err);
    assert_non_null(strstr(blas->kernels, "+blas"));
    assert_null(strstr(own->kernels, "+blas"));
    ms_backend *const both[] = {own, blas};
    for (size_t i = 0; i < 2; i++) ok(both[i]->scratch_reserve(both[i], &op_scratch_need, &err), &err);
    assert_true(blas->scratch_bytes(blas, &op_scratch_need) > own->scratch_bytes(own, &op_scratch_need));
    size_t cases = 0, other = 0;
    for (size_t i = 0; i < op_case_count; i++) {
        op_case c = op_cases[i];
        if (strncmp(c.name, "project", 7) != 0 && strcmp(c.name, "mlp") != 0) continue;
        for (int many = 0; many < 2; many++) {
            if (many) c.n = MANY;
            gpu_test_use(own);
            float *want = run(own, &c, false);
            gpu_test_use(blas);
            const int before = products ? *products : 0;
            float *found = run(blas, &c, false);
            if (products) assert_true(is_many(&c) == (*products > before));
            const bool rounded = precision == MS_PRECISION_FAST || c.format == MS_FORMAT_Q8;
            const size_t different = compare(&c, want, found, rounded ? c.fast_tolerance : 1e-5);
            if (c.flag && c.name[0] == 'p') /* the first product's input is exact: that is not the library's */
                assert_memory_equal(want, found, (size_t)c.n * c.d[1] * sizeof *want);
            if (!is_many(&c)) assert_int_equal(different, 0);
            cases += is_many(&c);
            other += is_many(&c) && different;
            gpu_test_free(found);
            gpu_test_use(own);
            gpu_test_free(want);
        }
    }
    gpu_test_use(NULL);
    assert_true(cases > 10 && other > cases / 2); /* it is not the same sum */
    if (refuse) {                                 /* what the library refuses is an error, and not for ever */
        const op_case *c = NULL;
        for (size_t i = 0; i < op_case_count && !c; i++)
            if (!strcmp(op_cases[i].name, "project")) c = &op_cases[i];
        assert_non_null(c);
        op_case many = *c;
        many.n = MANY;
        float *out = calloc(many.count(&many), sizeof *out);
        *refuse = 13;
        many.run(blas, &many, false, out);
        REFUSED(blas->sync(blas, &err), &err, MS_ERR_IO, "cublasLtMatmul: status 13");
        *refuse = 0;
        many.run(blas, &many, false, out);
        ok(blas->sync(blas, &err), &err);
        free(out);
    }
    own->destroy(own);
    blas->destroy(blas);
    if (open_objects) assert_int_equal(*open_objects, 0);
}

static void fast(void **state) {
    (void)state;
    operations(MS_PRECISION_FAST);
}

static void reference(void **state) {
    (void)state;
    operations(MS_PRECISION_REFERENCE);
}

static int notes;
static void on_log(void *arg, const char *line) {
    (void)arg;
    notes += strstr(line, "range backend blas") != NULL;
}

/* A long prompt: other bits, and a state that only such an engine takes.  A short one: the canonical bits. */
static void states(void **state) {
    (void)state;
    ms_error err;
    rig own, blas;
    uint32_t ids[PROMPT];
    char folder[] = "/tmp/moonshine-blas-XXXXXX", file[2][64];
    assert_non_null(mkdtemp(folder));
    for (int i = 0; i < 2; i++) (void)snprintf(file[i], sizeof file[i], "%s/state%d", folder, i);
    ms_engine_options o;
    ms_engine_options_default(&o, TINY);
    o.backend = gpu_test_name();
    o.context = PROMPT;
    o.experts = 2;
    o.threads = 1;
    rig_open(&own, &o);
    o.range_blas = true;
    o.log = on_log;
    rig_open(&blas, &o);
    assert_int_equal(notes, 1);
    some_ids(ids, PROMPT, own.vocab);
    rig *const both[] = {&own, &blas};
    uint64_t print[2];
    for (int i = 0; i < 2; i++) {
        ok(ms_session_forward(both[i]->s, ids, MS_DECODE_BATCH, NULL, &err), &err);
        print[i] = fingerprint_with_logits(both[i]);
        ms_session_reset(both[i]->s);
    }
    assert_true(print[0] == print[1]);
    for (int i = 0; i < 2; i++) {
        ok(ms_session_forward(both[i]->s, ids, PROMPT - 1, NULL, &err), &err);
        print[i] = fingerprint_with_logits(both[i]);
        ok(ms_session_export(both[i]->s, file[i], false, &err), &err);
    }
    assert_true(print[0] != print[1]);
    REFUSED(ms_session_import(own.s, file[1], &err), &err, MS_ERR_UNSUPPORTED, "expected fast, found fast with range");
    REFUSED(ms_session_import(blas.s, file[0], &err), &err, MS_ERR_UNSUPPORTED, "with range backend blas, found fast");
    ok(ms_session_import(blas.s, file[1], &err), &err);
    ok(ms_session_forward(blas.s, ids, 1, NULL, &err), &err);
    for (int i = 0; i < 2; i++) {
        rig_close(both[i]);
        assert_int_equal(unlink(file[i]), 0);
    }
    assert_int_equal(rmdir(folder), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_library), /* first: it loads the stand-in */
        cmocka_unit_test(fast),
        cmocka_unit_test(reference),
        cmocka_unit_test(states),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
