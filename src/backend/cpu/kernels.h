/* kernels.h: the inner loops of the CPU backend, one table of functions per instruction set.
 *
 * What each computes, to the bit, is docs/numerics.md; the scalar table is the plain statement of it and every other
 *   table gives the same bits.  Adding an instruction set is one file kernels_<name>.c and one line in kernels.c.
 * Threads: pure functions over the rows they are given.  No alignment is assumed.
 */
#ifndef MS_BACKEND_CPU_KERNELS_H
#define MS_BACKEND_CPU_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Input rows quantised to int8.  Row i of a kernel call is stored row index[i], or first + i without an index. */
typedef struct ms_cpu_q8 {
    const int8_t *q;
    size_t q_stride;
    const float *scales;
    size_t scale_stride;
    const uint32_t *index;
    size_t first;
} ms_cpu_q8;

static inline const int8_t *ms_cpu_q8_row(const ms_cpu_q8 *x, size_t i) {
    return x->q + (x->index ? x->index[i] : x->first + i) * x->q_stride;
}
static inline const float *ms_cpu_q8_scales(const ms_cpu_q8 *x, size_t i) {
    return x->scales + (x->index ? x->index[i] : x->first + i) * x->scale_stride;
}

/* Columns of one KDA head over a run of tokens; see kda_columns. */
typedef struct ms_cpu_kda_run {
    size_t dim, tokens;
    const float *q, *k, *alpha; /* [tokens][dim], by key */
    const float *beta;          /* [tokens] */
    const float *v;             /* [tokens], dim apart: first column */
    float *o;                   /* [tokens], dim apart: first column */
    const float *state_in;      /* [dim key], dim apart: first column; before the first token */
    float *state;               /* the same after the last; may be state_in */
    float *work;                /* [dim key][16]: for tables that keep the columns dense between tokens */
} ms_cpu_kda_run;

enum { MS_CPU_KDA_COLUMNS = 16 };

typedef struct ms_cpu_kernels {
    const char *name;

    /* Reductions: dot32 and sum32. */
    float (*dot)(const float *x, const float *y, size_t n);
    float (*sum)(const float *x, size_t n);

    /* out[i * out_stride + j] = dot32(x row i, w row j) for i < nx, j < nw; strides in elements. */
    void (*rows_f32)(float *out, size_t out_stride, const float *x, size_t x_stride, size_t nx, const float *w,
                     size_t w_stride, size_t nw, size_t n);
    void (*rows_bf16)(float *out, size_t out_stride, const float *x, size_t x_stride, size_t nx, const uint16_t *w,
                      size_t w_stride, size_t nw, size_t n);

    /* out[c] = col4(a, m)[c] for c < cols; m is [rows][cols], m_stride apart. */
    void (*col4_f32)(float *out, const float *a, const float *m, size_t m_stride, size_t rows, size_t cols);
    void (*col4_bf16)(float *out, const float *a, const uint16_t *m, size_t m_stride, size_t rows, size_t cols);

    /* One block of a Q8 weight (quant/q8.h), 1..8 rows: out[i * out_stride + r]. */
    void (*block_q8)(float *out, size_t out_stride, const ms_cpu_q8 *x, size_t nx, const int8_t *data,
                     const float *scales, uint32_t rows, uint32_t cols);
    /* One tile of 32 rows of an MXFP4 slot (quant/mxfp4.h): out[i * out_stride + r].  x from quantize_split. */
    void (*tile_mxfp4)(float *out, size_t out_stride, const ms_cpu_q8 *x, size_t nx, const uint8_t *tile,
                       uint32_t groups);

    /* Quantises n values in groups (the last may be shorter); ceil(n / group) scales. */
    void (*quantize)(int8_t *q, float *scales, const float *x, size_t n, size_t group);
    /* Groups of 32, each stored as its 16 even inputs, then its 16 odd ones, as MXFP4 nibbles lie.  n % 32 == 0. */
    void (*quantize_split)(int8_t *q, float *scales, const float *x, size_t n);

    /* Elementwise, with our exp.  out may be an input. */
    void (*exp_sub)(float *out, const float *x, float m, size_t n); /* exp(x - m) */
    void (*sigmoid)(float *out, const float *x, size_t n);
    void (*gate)(float *out, const float *x, const float *g, size_t n); /* x * sigmoid(g) */
    void (*situ)(float *out, const float *g, const float *u, size_t n, float beta, float linear_beta);
    void (*decay)(float *out, const float *e, const float *bias, float a, float bound, size_t n);

    /* Elementwise, plain.  out may be an input. */
    void (*add)(float *out, const float *a, const float *b, size_t n);
    void (*scale)(float *out, const float *x, float r, size_t n);                     /* x * r */
    void (*scale_mul)(float *out, const float *x, float r, const float *w, size_t n); /* w * (x * r) */
    void (*axpy)(float *out, float p, const float *v, size_t n);                      /* fma(p, v, out) */
    void (*fma_rows)(float *out, const float *a, const float *b, size_t n);           /* fma(a, b, out) */
    void (*merge)(float *acc, float f, const float *part, float f_part, size_t n);    /* fma(acc, f, part * f_part) */
    void (*divide)(float *out, const float *x, float d, size_t n);                    /* x / d */
    void (*from_int8)(float *out, const int8_t *q, float scale, size_t n);            /* (float)q * scale */
    void (*from_fp8)(float *out, const uint8_t *codes, float scale, size_t n);        /* e4m3 * scale */
    void (*to_bf16)(uint16_t *out, const float *x, size_t n);
    void (*from_bf16)(float *out, const uint16_t *x, size_t n);
    void (*round_bf16)(float *out, const float *x, size_t n);

    /* The KDA recurrence of `columns` (1..16) value columns of a head, for all tokens of the run in order. */
    void (*kda_columns)(const ms_cpu_kda_run *run, size_t columns);
} ms_cpu_kernels;

extern const ms_cpu_kernels ms_cpu_kernels_scalar;
#if defined(__x86_64__)
extern const ms_cpu_kernels ms_cpu_kernels_avx2;
extern const ms_cpu_kernels ms_cpu_kernels_avx512; /* F, BW, DQ, VL, VNNI */
#elif defined(__aarch64__)
extern const ms_cpu_kernels ms_cpu_kernels_neon; /* with the int8 dot product */
#endif

/* The best table this CPU can run, or the one named; NULL when there is no such table or the CPU lacks it. */
const ms_cpu_kernels *ms_cpu_kernels_find(const char *name);

#endif
