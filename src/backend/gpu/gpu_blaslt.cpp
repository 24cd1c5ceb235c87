// gpu_blaslt.cpp - products of many rows by a matrix library, cuBLASLt or hipBLASLt: `--range-backend blas`.
//
// A diagnostic, a peer for the kernels of this folder.  The library adds in an order of its own, which its version, the
// device and the number of rows decide: results come near the canonical ones (docs/numerics.md) and are not their bits.
// In fast precision it multiplies bf16, rounded from what weights and input rows are (the input is not quantised); in
// reference precision f32.  Sums are f32 in both.  FP8, Q8 and BF16 weights become plain rows first, as many at a time
// as an area of scratch holds.
//
// The library is loaded when a backend that wants it opens, and stays loaded.  The few of its types and numbers that
// are needed are written out here, so that building needs nothing of it.
// Owns: its handle and the descriptions of products that it was asked for.
// Threads: as gpu_internal.h says.  Errors: opening fails with MS_ERR_UNSUPPORTED and names the library; what it
//   refuses later is kept as MS_ERR_IO.
#include "backend/gpu/gpu_internal.h"

#include "backend/gpu/k_plain.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

namespace {

#if GPU_HIP
#define BLAS(name) "hipblasLt" name
const char *const libraries[] = {"libhipblaslt.so.1", "libhipblaslt.so.0", "libhipblaslt.so",
                                 "/opt/rocm/lib/libhipblaslt.so"};
enum { BLAS_TRANSPOSED = 112, BLAS_F32_SUMS = 2, BLAS_DESC_TRANSA = 0, BLAS_ALGO_BYTES = 24 };
constexpr int align_preferences[] = {-1};
#else
#define BLAS(name) "cublasLt" name
#if GPU_EMU // a test's stand-in, with the names and numbers of cuBLASLt
const char *const libraries[] = {"libmoonshine_emublas.so"};
#else
const char *const libraries[] = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so",
                                 "/usr/local/cuda/lib64/libcublasLt.so"};
#endif
enum { BLAS_TRANSPOSED = 1, BLAS_F32_SUMS = 68, BLAS_DESC_TRANSA = 3, BLAS_ALGO_BYTES = 64 };
constexpr int align_preferences[] = {7, 8}; // of the result, as input and as output
#endif
enum { BLAS_F32 = 0, BLAS_BF16 = 14, BLAS_PREF_WORKSPACE = 1 };

struct blas_choice {
    alignas(8) uint8_t algorithm[BLAS_ALGO_BYTES];
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
};

struct blas_functions {
    int (*create)(void **handle);
    int (*destroy)(void *handle);
    int (*desc_create)(void **desc, int compute, int scale_type);
    int (*desc_set)(void *desc, int attribute, const void *value, size_t bytes);
    int (*desc_destroy)(void *desc);
    int (*layout_create)(void **layout, int type, uint64_t rows, uint64_t cols, int64_t stride);
    int (*layout_destroy)(void *layout);
    int (*pref_create)(void **pref);
    int (*pref_set)(void *pref, int attribute, const void *value, size_t bytes);
    int (*pref_destroy)(void *pref);
    int (*heuristic)(void *handle, void *desc, void *a, void *b, void *c, void *d, void *pref, int asked,
                     blas_choice *choices, int *found);
    int (*matmul)(void *handle, void *desc, const void *alpha, const void *a, void *a_layout, const void *b,
                  void *b_layout, const void *beta, const void *c, void *c_layout, void *d, void *d_layout,
                  const void *algorithm, void *workspace, size_t workspace_bytes, gpuStream_t stream);
};

const struct {
    const char *name;
    size_t offset;
} symbols[] = {
    {BLAS("Create"), offsetof(blas_functions, create)},
    {BLAS("Destroy"), offsetof(blas_functions, destroy)},
    {BLAS("MatmulDescCreate"), offsetof(blas_functions, desc_create)},
    {BLAS("MatmulDescSetAttribute"), offsetof(blas_functions, desc_set)},
    {BLAS("MatmulDescDestroy"), offsetof(blas_functions, desc_destroy)},
    {BLAS("MatrixLayoutCreate"), offsetof(blas_functions, layout_create)},
    {BLAS("MatrixLayoutDestroy"), offsetof(blas_functions, layout_destroy)},
    {BLAS("MatmulPreferenceCreate"), offsetof(blas_functions, pref_create)},
    {BLAS("MatmulPreferenceSetAttribute"), offsetof(blas_functions, pref_set)},
    {BLAS("MatmulPreferenceDestroy"), offsetof(blas_functions, pref_destroy)},
    {BLAS("MatmulAlgoGetHeuristic"), offsetof(blas_functions, heuristic)},
    {BLAS("Matmul"), offsetof(blas_functions, matmul)},
};

// What the library was asked for once: out[n][rows] = in[n][cols] * weight[rows][cols].
struct blas_plan {
    uint32_t rows, n, align;
    size_t cols, out_stride;
    void *weight, *in, *out; // layouts; weight NULL: none yet
    blas_choice choice;
};

// A part of a weight as plain rows.  On the emulator a small one, so that weights of tests have several.
#if GPU_EMU
constexpr size_t WEIGHT_BYTES = 16 << 10, WORK_BYTES = 256;
#else
constexpr size_t WEIGHT_BYTES = (size_t)64 << 20, WORK_BYTES = (size_t)32 << 20;
#endif
enum { PLANS = 64, ALIGN = 256, ROWS_TOGETHER = 32, COLS_TOGETHER = 16 };

// Columns of plain rows: padded, so that every row is aligned.
uint64_t padded(uint64_t cols) { return (cols + COLS_TOGETHER - 1) / COLS_TOGETHER * COLS_TOGETHER; }
size_t element_bytes(const gpu_backend *g) { return is_fast(g) ? sizeof(gpu_bf16) : sizeof(float); }

} // namespace

struct gpu_blas {
    blas_functions f;
    void *handle, *desc;
    blas_plan plan[PLANS];
    uint32_t next_plan;
};

namespace {

ms_status load(blas_functions *f, ms_error *err) {
    char why[256] = "";
    for (const char *name : libraries) {
        void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
        const char *said = library ? nullptr : dlerror();
        if (!library && !*why) (void)snprintf(why, sizeof why, "%s", said ? said : name);
        if (!library) continue;
        for (const auto &s : symbols) {
            void *at = dlsym(library, s.name);
            if (!at) return ms_fail(err, MS_ERR_UNSUPPORTED, "range backend blas: %s: no %s", name, s.name);
            memcpy((char *)f + s.offset, &at, sizeof at);
        }
        return MS_OK;
    }
    return ms_fail(err, MS_ERR_UNSUPPORTED, "range backend blas: %s", why);
}

void forget(const blas_functions *f, blas_plan *p) {
    void *const layouts[] = {p->weight, p->in, p->out};
    for (void *layout : layouts)
        if (layout) (void)f->layout_destroy(layout);
    *p = {};
}

// The library's matrices are column-major: a row of the weight is a column of `cols` elements, and the description
// transposes them.
int describe(const gpu_blas *b, blas_plan *p, int type) {
    int bad = b->f.layout_create(&p->weight, type, p->cols, p->rows, (int64_t)p->cols);
    if (!bad) bad = b->f.layout_create(&p->in, type, p->cols, p->n, (int64_t)p->cols);
    if (!bad) bad = b->f.layout_create(&p->out, BLAS_F32, p->rows, p->n, (int64_t)p->out_stride);
    void *pref = nullptr;
    const uint64_t work = WORK_BYTES;
    if (!bad) bad = b->f.pref_create(&pref);
    if (!bad) bad = b->f.pref_set(pref, BLAS_PREF_WORKSPACE, &work, sizeof work);
    for (int preference : align_preferences)
        if (!bad && preference >= 0) bad = b->f.pref_set(pref, preference, &p->align, sizeof p->align);
    int found = 0;
    if (!bad) bad = b->f.heuristic(b->handle, b->desc, p->weight, p->in, p->out, p->out, pref, 1, &p->choice, &found);
    if (pref) (void)b->f.pref_destroy(pref);
    return bad ? bad : found < 1 ? -1 : p->choice.state;
}

// NULL, and a kept failure, when the library has nothing for such a product.
const blas_plan *plan_of(gpu_backend *g, const blas_plan *want) {
    gpu_blas *b = g->blas;
    for (const blas_plan &p : b->plan)
        if (p.weight && p.rows == want->rows && p.n == want->n && p.cols == want->cols &&
            p.out_stride == want->out_stride && p.align == want->align)
            return &p;
    blas_plan *p = &b->plan[b->next_plan];
    b->next_plan = (b->next_plan + 1) % PLANS;
    forget(&b->f, p);
    *p = *want;
    const int bad = describe(b, p, is_fast(g) ? BLAS_BF16 : BLAS_F32);
    if (!bad) return p;
    forget(&b->f, p);
    keep_failure(g, MS_ERR_IO, "%s: " BLAS("MatmulAlgoGetHeuristic") ": status %d for %u x %zu and %u rows",
                 g->base.name, bad, want->rows, want->cols, want->n);
    return nullptr;
}

// What the addresses of all rows of the result are multiples of.
uint32_t alignment(const float *out, size_t out_stride) {
    const uintptr_t bits = (uintptr_t)out | out_stride * sizeof(float) | ALIGN;
    return (uint32_t)(bits & (~bits + 1));
}

// Rows of scratch.blas_weight times those of scratch.blas_in.
void multiply(gpu_backend *g, blas_plan want, float *out) {
    const gpu_scratch *s = &g->scratch;
    const float one = 1.0f, zero = 0.0f;
    want.align = alignment(out, want.out_stride);
    const blas_plan *p = plan_of(g, &want);
    if (!p) return;
#if GPU_EMU // the stand-in knows no streams
    (void)gpuStreamSynchronize(g->stream);
#endif
    const int bad =
        g->blas->f.matmul(g->blas->handle, g->blas->desc, &one, s->blas_weight, p->weight, s->blas_in, p->in, &zero,
                          out, p->out, out, p->out, p->choice.algorithm, s->blas_work, WORK_BYTES, g->stream);
    if (bad) keep_failure(g, MS_ERR_IO, "%s: " BLAS("Matmul") ": status %d", g->base.name, bad);
}

void run_product(gpu_backend *g, const ms_product *product, uint32_t n) {
    const ms_weight *w = product->weight;
    const size_t cols = padded(w->cols);
    uint32_t most = (uint32_t)(blas_weight_bytes(&g->scratch.need) / (cols * element_bytes(g)));
    if (most > ROWS_TOGETHER) most = most / ROWS_TOGETHER * ROWS_TOGETHER;
    k_plain_args a = {};
    a.to = g->scratch.blas_weight;
    a.stride = cols;
    a.bf16 = is_fast(g);
    a.mode = mode_of(w, false);
    a.data = w->data;
    a.scales = w->scales;
    a.rows = w->rows;
    a.cols = w->cols;
    for (; a.first < w->rows; a.first += a.n) {
        a.n = w->rows - a.first < most ? w->rows - a.first : most;
        k_plain(g->stream, &a);
        blas_plan want = {};
        want.rows = a.n;
        want.n = n;
        want.cols = cols;
        want.out_stride = product->out_stride;
        multiply(g, want, product->out + a.first);
    }
}

void plain_input(gpu_backend *g, const product_input *in) {
    k_plain_args a = {};
    a.to = g->scratch.blas_in;
    a.stride = padded(in->cols);
    a.bf16 = is_fast(g);
    a.mode = K_MODE_F32;
    a.data = in->x;
    a.rows = a.n = in->n;
    a.cols = in->cols;
    k_plain(g->stream, &a);
}

} // namespace

uint64_t blas_input_bytes(const gpu_backend *g, const ms_scratch_need *n) {
    return padded(n->input_cols > n->mlp_width ? n->input_cols : n->mlp_width) * element_bytes(g);
}

uint64_t blas_weight_bytes(const ms_scratch_need *n) {
    const uint64_t row = padded(n->input_cols > n->mlp_width ? n->input_cols : n->mlp_width) * sizeof(float);
    return row > WEIGHT_BYTES ? row : WEIGHT_BYTES;
}

uint64_t blas_work_bytes(void) { return WORK_BYTES; }

bool blas_takes(const gpu_backend *g, uint32_t n) { return g->blas && n > MS_DECODE_BATCH; }

uint32_t run_blas(gpu_backend *g, const product_input *in, ms_product *products, uint32_t count) {
    if (!blas_takes(g, in->n)) return count;
    uint32_t left = 0;
    bool there = false;
    for (uint32_t i = 0; i < count; i++) {
        const ms_product p = products[i];
        if (p.exact_input || p.weight->format == MS_FORMAT_F32) {
            products[left++] = p;
            continue;
        }
        if (!there) plain_input(g, in);
        there = true;
        run_product(g, &p, in->n);
    }
    return left;
}

ms_status blas_open(gpu_backend *g, ms_error *err) {
    g->blas = (gpu_blas *)calloc(1, sizeof *g->blas);
    if (!g->blas) return ms_fail_memory(err, "range backend blas", sizeof *g->blas);
    gpu_blas *b = g->blas;
    MS_TRY(load(&b->f, err));
    const int transposed = BLAS_TRANSPOSED;
    int bad = b->f.create(&b->handle);
    if (!bad) bad = b->f.desc_create(&b->desc, BLAS_F32_SUMS, BLAS_F32);
    if (!bad) bad = b->f.desc_set(b->desc, BLAS_DESC_TRANSA, &transposed, sizeof transposed);
    return bad ? ms_fail(err, MS_ERR_UNSUPPORTED, "range backend blas: " BLAS("Create") ": status %d", bad) : MS_OK;
}

void blas_close(gpu_backend *g) {
    gpu_blas *b = g->blas;
    if (!b) return;
    for (blas_plan &p : b->plan) forget(&b->f, &p);
    if (b->desc) (void)b->f.desc_destroy(b->desc);
    if (b->handle) (void)b->f.destroy(b->handle);
    free(b);
    g->blas = nullptr;
}
