/* emublas.c: a stand-in for cuBLASLt on the emulator: the functions that src/backend/gpu/gpu_blaslt.cpp calls, with the
 * same numbers, in plain C.  It refuses what it was not made for, so that a wrong description is seen. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { OK, INVALID = 7, UNSUPPORTED = 15 };
enum { F32 = 0, BF16 = 14, F32_SUMS = 68, TRANSA = 3, TRANSPOSED = 1, PREF_WORKSPACE = 1, PREF_C = 7, PREF_D = 8 };
#define MAGIC UINT64_C(0x656d75626c61734c)

typedef struct layout {
    int type;
    uint64_t rows, cols;
    int64_t stride;
} layout;
typedef struct desc {
    int transa;
} desc;
typedef struct pref {
    uint64_t workspace;
    uint32_t align_c, align_d;
} pref;
typedef struct algorithm {
    uint64_t magic, align, workspace, unused[5];
} algorithm;
typedef struct choice {
    algorithm algo;
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
} choice;
_Static_assert(sizeof(choice) == 96, "as cublasLtMatmulHeuristicResult_t");

int emublas_products, emublas_open; /* products so far; objects that were not destroyed */
int emublas_refuse;                 /* not 0: the status of every product from now on */

static int give(void **out, size_t bytes) {
    *out = calloc(1, bytes);
    emublas_open++;
    return *out ? OK : INVALID;
}
static int take(void *p) {
    free(p);
    emublas_open--;
    return OK;
}

int cublasLtCreate(void **h);
int cublasLtDestroy(void *h);
int cublasLtMatmulDescCreate(void **d, int compute, int scale);
int cublasLtMatmulDescSetAttribute(void *d, int attribute, const void *value, size_t bytes);
int cublasLtMatmulDescDestroy(void *d);
int cublasLtMatrixLayoutCreate(void **out, int type, uint64_t rows, uint64_t cols, int64_t stride);
int cublasLtMatrixLayoutDestroy(void *l);
int cublasLtMatmulPreferenceCreate(void **p);
int cublasLtMatmulPreferenceSetAttribute(void *p, int attribute, const void *value, size_t bytes);
int cublasLtMatmulPreferenceDestroy(void *p);
int cublasLtMatmulAlgoGetHeuristic(void *h, void *d, void *a, void *b, void *c, void *to, void *p, int asked,
                                   choice *out, int *found);
int cublasLtMatmul(void *h, void *d, const void *alpha, const void *a, void *la, const void *b, void *lb,
                   const void *beta, const void *c, void *lc, void *to, void *lto, const void *algo, void *work,
                   size_t work_bytes, void *stream);

int cublasLtCreate(void **h) { return give(h, 1); }
int cublasLtDestroy(void *h) { return take(h); }
int cublasLtMatmulDescCreate(void **d, int compute, int scale) {
    return compute == F32_SUMS && scale == F32 ? give(d, sizeof(desc)) : UNSUPPORTED;
}
int cublasLtMatmulDescSetAttribute(void *d, int attribute, const void *value, size_t bytes) {
    if (attribute != TRANSA || bytes != sizeof(int)) return INVALID;
    memcpy(&((desc *)d)->transa, value, bytes);
    return OK;
}
int cublasLtMatmulDescDestroy(void *d) { return take(d); }
int cublasLtMatrixLayoutCreate(void **out, int type, uint64_t rows, uint64_t cols, int64_t stride) {
    if ((type != F32 && type != BF16) || !rows || !cols || stride < (int64_t)rows) return INVALID;
    int status = give(out, sizeof(layout));
    if (status == OK) *(layout *)*out = (layout){type, rows, cols, stride};
    return status;
}
int cublasLtMatrixLayoutDestroy(void *l) { return take(l); }
int cublasLtMatmulPreferenceCreate(void **p) {
    int status = give(p, sizeof(pref));
    if (status == OK) *(pref *)*p = (pref){0, 256, 256};
    return status;
}
int cublasLtMatmulPreferenceSetAttribute(void *p, int attribute, const void *value, size_t bytes) {
    pref *to = p;
    if (attribute == PREF_WORKSPACE && bytes == sizeof to->workspace)
        memcpy(&to->workspace, value, bytes);
    else if (attribute == PREF_C && bytes == sizeof to->align_c)
        memcpy(&to->align_c, value, bytes);
    else if (attribute == PREF_D && bytes == sizeof to->align_d)
        memcpy(&to->align_d, value, bytes);
    else
        return INVALID;
    return OK;
}
int cublasLtMatmulPreferenceDestroy(void *p) { return take(p); }

int cublasLtMatmulAlgoGetHeuristic(void *h, void *d, void *a, void *b, void *c, void *to, void *p, int asked,
                                   choice *out, int *found) {
    const layout *la = a, *lb = b, *lc = c;
    const pref *wish = p;
    *found = 0;
    if (!h || asked < 1 || c != to || ((desc *)d)->transa != TRANSPOSED || la->type != lb->type || lc->type != F32 ||
        la->rows != lb->rows || la->cols != lc->rows || lb->cols != lc->cols || wish->align_c != wish->align_d)
        return INVALID;
    *out = (choice){.algo = {.magic = MAGIC, .align = wish->align_c, .workspace = wish->workspace}};
    *found = 1;
    return OK;
}

static float element(const layout *l, const void *data, uint64_t row, uint64_t col) {
    const uint64_t at = col * (uint64_t)l->stride + row;
    if (l->type == F32) return ((const float *)data)[at];
    const uint32_t bits = (uint32_t)((const uint16_t *)data)[at] << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Sums from the last column to the first: no kernel adds like that. */
int cublasLtMatmul(void *h, void *d, const void *alpha, const void *a, void *la, const void *b, void *lb,
                   const void *beta, const void *c, void *lc, void *to, void *lto, const void *algo, void *work,
                   size_t work_bytes, void *stream) {
    const algorithm *how = algo;
    const layout *left = la, *right = lb, *out = lto;
    (void)stream;
    if (emublas_refuse) return emublas_refuse;
    if (!h || ((desc *)d)->transa != TRANSPOSED || *(const float *)alpha != 1.0f || *(const float *)beta != 0.0f)
        return INVALID;
    if (c != to || lc != lto || how->magic != MAGIC || work_bytes < how->workspace) return INVALID;
    if (((uintptr_t)to | (uint64_t)out->stride * sizeof(float)) % how->align || ((uintptr_t)a | (uintptr_t)b) % 256)
        return INVALID;
    memset(work, 0xa5, work_bytes);
    for (uint64_t col = 0; col < out->cols; col++) {
        for (uint64_t row = 0; row < out->rows; row++) {
            float sum = 0;
            for (uint64_t k = left->rows; k-- > 0;) sum += element(left, a, k, row) * element(right, b, k, col);
            ((float *)to)[col * (uint64_t)out->stride + row] = sum;
        }
    }
    emublas_products++;
    return OK;
}
