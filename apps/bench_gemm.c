/* bench_gemm.c: see bench_gemm.h. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "bench_gemm.h"
#include "bench_probe.h"

/* The few names of cuBLAS that are needed, by its documented values. */
enum { CUBLAS_N = 0, CUBLAS_T = 1, CUDA_BF16 = 14, CUDA_F32 = 0, CUBLAS_F32_SUMS = 68, CUBLAS_ANY = -1 };
typedef int cublas_create(void **handle);
typedef int cublas_destroy(void *handle);
typedef int cublas_gemm(void *handle, int trans_a, int trans_b, int m, int n, int k, const void *alpha, const void *a,
                        int type_a, int lda, const void *b, int type_b, int ldb, const void *beta, void *c, int type_c,
                        int ldc, int compute, int algorithm);
typedef struct cublas {
    cublas_create *create;
    cublas_destroy *destroy;
    cublas_gemm *gemm;
} cublas;

static bool load(cublas *f) {
    static const char *const names[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so",
                                        "/usr/local/cuda/lib64/libcublas.so"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        void *library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL); /* stays loaded */
        if (!library) continue;
        *(void **)&f->create = dlsym(library, "cublasCreate_v2");
        *(void **)&f->destroy = dlsym(library, "cublasDestroy_v2");
        *(void **)&f->gemm = dlsym(library, "cublasGemmEx");
        return f->create && f->destroy && f->gemm;
    }
    return false;
}

typedef struct area {
    uint8_t *a, *b, *c;
    size_t bytes;
} area;

static ms_status make(area *m, ms_backend *be, uint32_t size, ms_error *err) {
    void *p;
    m->bytes = (size_t)size * size * 2;
    MS_TRY(be->alloc(be, MS_MEM_DEVICE, 3 * m->bytes, "matrices", &p, err));
    m->a = p;
    m->b = m->a + m->bytes;
    m->c = m->b + m->bytes;
    uint16_t *host = malloc(m->bytes);
    if (!host) return ms_fail_memory(err, "matrices", m->bytes);
    uint32_t s = 1;
    for (size_t i = 0; i < m->bytes / 2; i++) { /* +-0.5 .. +-2: random bits cost power, as real ones do */
        s = s * 1664525u + 1013904223u;
        host[i] = (uint16_t)((s >> 16 & 0x80ffu) + 0x3f00u);
    }
    be->upload(be, m->a, host, m->bytes);
    be->upload(be, m->b, host, m->bytes);
    free(host);
    return be->sync(be, err);
}

/* Work of the library is in the device's default stream, which the backend's stream waits for at its next operation. */
static ms_status measure(const cublas *f, void *handle, const area *m, ms_backend *be, uint32_t size, uint32_t rounds,
                         double *rate, char *why, size_t why_bytes, ms_error *err) {
    enum { REPETITIONS = 8, MAX_ROUNDS = 100 };
    const float one = 1.0f, zero = 0.0f;
    const int n = (int)size;
    double round[MAX_ROUNDS];
    if (rounds > MAX_ROUNDS) rounds = MAX_ROUNDS;
    for (uint32_t r = 0; r <= rounds; r++) { /* the first is not counted */
        uint64_t begin = ms_clock_ns();
        int bad = 0;
        for (int i = 0; i < REPETITIONS && !bad; i++)
            bad = f->gemm(handle, CUBLAS_T, CUBLAS_N, n, n, n, &one, m->a, CUDA_BF16, n, m->b, CUDA_BF16, n, &zero,
                          m->c, CUDA_BF16, n, CUBLAS_F32_SUMS, CUBLAS_ANY);
        if (bad) {
            (void)snprintf(why, why_bytes, "cublasGemmEx: status %d", bad);
            return MS_OK;
        }
        be->zero(be, m->a + m->bytes - 16, 16);
        MS_TRY(be->sync(be, err));
        double took = (double)(ms_clock_ns() - begin) * 1e-9;
        if (r) round[r - 1] = 2.0 * REPETITIONS * (double)size * (double)size * (double)size / took;
    }
    *rate = ms_probe_median(round, rounds);
    return MS_OK;
}

ms_status ms_probe_gemm(ms_backend *be, uint32_t size, uint32_t rounds, double *rate, char *why, size_t why_bytes,
                        ms_error *err) {
    cublas f;
    area m = {0};
    void *handle = NULL;
    *rate = 0;
    if (strcmp(be->name, "cuda") != 0) {
        (void)snprintf(why, why_bytes, "no matrix library is known for %s", be->name);
        return MS_OK;
    }
    if (!load(&f) || f.create(&handle) != 0) {
        (void)snprintf(why, why_bytes, "libcublas is not there");
        return MS_OK;
    }
    ms_status st = make(&m, be, size, err);
    if (st == MS_OK) st = measure(&f, handle, &m, be, size, rounds, rate, why, why_bytes, err);
    if (m.a) be->release(be, MS_MEM_DEVICE, m.a, 3 * m.bytes);
    (void)f.destroy(handle);
    return st;
}
