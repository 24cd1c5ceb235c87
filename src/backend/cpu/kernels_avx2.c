/* kernels_avx2.c: the kernels with AVX2 and FMA.  The same bits as kernels_scalar.c: lanes are the partial sums of
 * docs/numerics.md, integer dots are exact in any order, and what vectors leave over runs the scalar steps. */
#include "backend/cpu/kernels.h"

#if defined(__x86_64__)

#include "backend/cpu/kernels_loops.h"
#include "base/fmath.h"
#include "quant/mxfp4.h"
#include "quant/q8.h"

#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))

enum { LANES = 32, V = 8, MX_GROUP = 32, MX_BYTES = 16, MX_TILE = 32 };

/* ------------------------------------------------------------------ dot32 */

INLINE __m256 widen(const uint16_t *h) {
    __m128i v = _mm_loadu_si128((const __m128i *)(const void *)h);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16));
}

/* Eight weights from index i of a row that is f32 or bf16. */
INLINE __m256 load_weight(const void *w, size_t i, bool bf16) {
    return bf16 ? widen((const uint16_t *)w + i) : _mm256_loadu_ps((const float *)w + i);
}

INLINE float scalar_weight(const void *w, size_t i, bool bf16) {
    return bf16 ? ms_bf16_to_f32(((const uint16_t *)w)[i]) : ((const float *)w)[i];
}

/* The butterfly: lane l of acc[a] is partial sum 8 a + l. */
INLINE float butterfly(const __m256 acc[4]) {
    __m256 t = _mm256_add_ps(_mm256_add_ps(acc[0], acc[2]), _mm256_add_ps(acc[1], acc[3]));
    __m128 u = _mm_add_ps(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1));
    u = _mm_add_ps(u, _mm_movehl_ps(u, u));
    u = _mm_add_ss(u, _mm_movehdup_ps(u));
    return _mm_cvtss_f32(u);
}

/* The last n % 32 products, each into its own partial sum. */
INLINE void dot_tail(__m256 acc[4], const float *x, const void *w, size_t first, size_t n, bool bf16) {
    float s[LANES];
    for (size_t a = 0; a < 4; a++) _mm256_storeu_ps(s + a * V, acc[a]);
    for (size_t i = first; i < n; i++) s[i - first] = fmaf(x[i], scalar_weight(w, i, bf16), s[i - first]);
    for (size_t a = 0; a < 4; a++) acc[a] = _mm256_loadu_ps(s + a * V);
}

/* One input row times nw (1 or 2, constant after inlining) weight rows; strides in elements. */
INLINE void dot_single(float *out, const float *x, const void *w, size_t w_bytes, size_t nw, size_t n, bool bf16) {
    const void *rows[2] = {w, (const uint8_t *)w + (nw > 1 ? w_bytes : 0)};
    size_t whole = n / LANES * LANES;
    __m256 acc[2][4];
    for (size_t j = 0; j < nw; j++)
        for (size_t a = 0; a < 4; a++) acc[j][a] = _mm256_setzero_ps();
    for (size_t i = 0; i < whole; i += LANES) {
        /* A single input row reads its weights from memory: fetch the rows after these into the second level cache.
         * The hardware stops at each page, which rows are about as long as. */
        for (size_t j = 0; j < nw; j++)
            _mm_prefetch((const char *)((uintptr_t)rows[j] + nw * w_bytes + i * (bf16 ? 2 : 4)), _MM_HINT_T1);
        for (size_t a = 0; a < 4; a++) {
            __m256 value = _mm256_loadu_ps(x + i + a * V);
            for (size_t j = 0; j < nw; j++)
                acc[j][a] = _mm256_fmadd_ps(value, load_weight(rows[j], i + a * V, bf16), acc[j][a]);
        }
    }
    for (size_t j = 0; j < nw; j++) {
        if (whole < n) dot_tail(acc[j], x, rows[j], whole, n, bf16);
        out[j] = butterfly(acc[j]);
    }
}

INLINE void rows_single(float *out, const float *x, const void *w, size_t w_bytes, size_t nw, size_t n, bool bf16) {
    size_t j = 0;
    for (; j + 2 <= nw; j += 2) dot_single(out + j, x, (const uint8_t *)w + j * w_bytes, w_bytes, 2, n, bf16);
    if (j < nw) dot_single(out + j, x, (const uint8_t *)w + j * w_bytes, w_bytes, 1, n, bf16);
}

/* Several input rows: X_ROWS at a time against W_TILE weight rows, in pieces of K_PIECE inputs that stay in the first
 * level cache; the partial sums of the tile wait in memory between pieces. */
enum { X_ROWS = 3, W_TILE = 16, K_PIECE = 1024 };

/* Inputs [first, last) of nx input rows times nw weight rows.  Half of the partial sums at a time, so that the sums of
 * 3 x 2 products fit the registers. */
INLINE void dot_piece(__m256 part[2][X_ROWS][4], const float *x, size_t x_stride, size_t nx, const uint8_t *w,
                      size_t w_bytes, size_t nw, size_t first, size_t last, bool bf16) {
    const void *rows[2] = {w, w + (nw > 1 ? w_bytes : 0)};
    for (size_t half = 0; half < 4; half += 2) {
        __m256 acc[2][X_ROWS][2];
        for (size_t j = 0; j < nw; j++)
            for (size_t r = 0; r < nx; r++)
                for (size_t a = 0; a < 2; a++) acc[j][r][a] = part[j][r][half + a];
        for (size_t i = first + half * V; i < last; i += LANES) {
            for (size_t j = 0; half == 0 && j < nw; j++) /* the piece of the rows that come next */
                _mm_prefetch((const char *)((uintptr_t)rows[j] + nw * w_bytes + i * (bf16 ? 2 : 4)), _MM_HINT_T1);
            for (size_t a = 0; a < 2; a++) {
                __m256 weight[2];
                for (size_t j = 0; j < nw; j++) weight[j] = load_weight(rows[j], i + a * V, bf16);
                for (size_t r = 0; r < nx; r++) {
                    __m256 value = _mm256_loadu_ps(x + r * x_stride + i + a * V);
                    for (size_t j = 0; j < nw; j++) acc[j][r][a] = _mm256_fmadd_ps(value, weight[j], acc[j][r][a]);
                }
            }
        }
        for (size_t j = 0; j < nw; j++)
            for (size_t r = 0; r < nx; r++)
                for (size_t a = 0; a < 2; a++) part[j][r][half + a] = acc[j][r][a];
    }
}

/* nx input rows times nw <= W_TILE weight rows. */
INLINE void dot_tile(float *out, size_t out_stride, const float *x, size_t x_stride, size_t nx, const uint8_t *w,
                     size_t w_bytes, size_t nw, size_t n, bool bf16) {
    __m256 part[W_TILE][X_ROWS][4];
    size_t whole = n / LANES * LANES;
    for (size_t j = 0; j < nw; j++)
        for (size_t r = 0; r < nx; r++)
            for (size_t a = 0; a < 4; a++) part[j][r][a] = _mm256_setzero_ps();
    for (size_t first = 0; first < whole; first += K_PIECE) {
        size_t last = whole - first < K_PIECE ? whole : first + K_PIECE, j = 0;
        for (; j + 2 <= nw; j += 2)
            dot_piece(part + j, x, x_stride, nx, w + j * w_bytes, w_bytes, 2, first, last, bf16);
        if (j < nw) dot_piece(part + j, x, x_stride, nx, w + j * w_bytes, w_bytes, 1, first, last, bf16);
    }
    for (size_t j = 0; j < nw; j++) {
        for (size_t r = 0; r < nx; r++) {
            if (whole < n) dot_tail(part[j][r], x + r * x_stride, w + j * w_bytes, whole, n, bf16);
            out[r * out_stride + j] = butterfly(part[j][r]);
        }
    }
}

INLINE void rows_any(float *out, size_t out_stride, const float *x, size_t x_stride, size_t nx, const void *w,
                     size_t w_stride, size_t nw, size_t n, bool bf16) {
    size_t w_bytes = w_stride * (bf16 ? sizeof(uint16_t) : sizeof(float));
    if (nx == 1) {
        rows_single(out, x, w, w_bytes, nw, n, bf16);
        return;
    }
    for (size_t j = 0; j < nw; j += W_TILE) {
        size_t count = nw - j < W_TILE ? nw - j : W_TILE;
        const uint8_t *tile = (const uint8_t *)w + j * w_bytes;
        for (size_t i = 0; i < nx;) {
            size_t left = nx - i, take = left == 1 ? 1 : left == 2 || left == 4 ? 2 : X_ROWS;
            const float *xi = x + i * x_stride;
            float *to = out + i * out_stride + j;
            if (take == 1)
                rows_single(to, xi, tile, w_bytes, count, n, bf16);
            else if (take == 2)
                dot_tile(to, out_stride, xi, x_stride, 2, tile, w_bytes, count, n, bf16);
            else
                dot_tile(to, out_stride, xi, x_stride, X_ROWS, tile, w_bytes, count, n, bf16);
            i += take;
        }
    }
}

static void avx2_rows_f32(float *out, size_t out_stride, const float *x, size_t x_stride, size_t nx, const float *w,
                          size_t w_stride, size_t nw, size_t n) {
    rows_any(out, out_stride, x, x_stride, nx, w, w_stride, nw, n, false);
}

static void avx2_rows_bf16(float *out, size_t out_stride, const float *x, size_t x_stride, size_t nx, const uint16_t *w,
                           size_t w_stride, size_t nw, size_t n) {
    rows_any(out, out_stride, x, x_stride, nx, w, w_stride, nw, n, true);
}

static float avx2_dot(const float *x, const float *y, size_t n) {
    float out;
    dot_single(&out, x, y, 0, 1, n, false);
    return out;
}

static float avx2_sum(const float *x, size_t n) {
    __m256 acc[4];
    size_t whole = n / LANES * LANES;
    for (size_t a = 0; a < 4; a++) acc[a] = _mm256_setzero_ps();
    for (size_t i = 0; i < whole; i += LANES)
        for (size_t a = 0; a < 4; a++) acc[a] = _mm256_add_ps(acc[a], _mm256_loadu_ps(x + i + a * V));
    if (whole < n) {
        float s[LANES];
        for (size_t a = 0; a < 4; a++) _mm256_storeu_ps(s + a * V, acc[a]);
        for (size_t i = whole; i < n; i++) s[i - whole] = s[i - whole] + x[i];
        for (size_t a = 0; a < 4; a++) acc[a] = _mm256_loadu_ps(s + a * V);
    }
    return butterfly(acc);
}

/* ------------------------------------------------------------------ col4 */

INLINE __m256 sum4(const __m256 p[4]) { return _mm256_add_ps(_mm256_add_ps(p[0], p[2]), _mm256_add_ps(p[1], p[3])); }

/* 8 * nv columns; nv is a constant after inlining. */
INLINE void col4_block(float *out, const float *a, const void *m, size_t m_stride, size_t rows, size_t c, size_t nv,
                       bool bf16) {
    __m256 p[2][4];
    for (size_t v = 0; v < nv; v++)
        for (size_t q = 0; q < 4; q++) p[v][q] = _mm256_setzero_ps();
    size_t whole = rows / 4 * 4;
    for (size_t d = 0; d < whole; d += 4) {
        for (size_t q = 0; q < 4; q++) {
            __m256 factor = _mm256_broadcast_ss(a + d + q);
            for (size_t v = 0; v < nv; v++)
                p[v][q] = _mm256_fmadd_ps(factor, load_weight(m, (d + q) * m_stride + c + v * V, bf16), p[v][q]);
        }
    }
    for (size_t q = 0; q < 3; q++) { /* rows % 4 more */
        if (whole + q >= rows) break;
        __m256 factor = _mm256_broadcast_ss(a + whole + q);
        for (size_t v = 0; v < nv; v++)
            p[v][q] = _mm256_fmadd_ps(factor, load_weight(m, (whole + q) * m_stride + c + v * V, bf16), p[v][q]);
    }
    for (size_t v = 0; v < nv; v++) _mm256_storeu_ps(out + c + v * V, sum4(p[v]));
}

INLINE void col4_any(float *out, const float *a, const void *m, size_t m_stride, size_t rows, size_t cols, bool bf16) {
    size_t c = 0;
    for (; c + 2 * V <= cols; c += 2 * V) col4_block(out, a, m, m_stride, rows, c, 2, bf16);
    for (; c + V <= cols; c += V) col4_block(out, a, m, m_stride, rows, c, 1, bf16);
    for (; c < cols; c++) {
        float p[4] = {0};
        for (size_t d = 0; d < rows; d++) p[d % 4] = fmaf(a[d], scalar_weight(m, d * m_stride + c, bf16), p[d % 4]);
        out[c] = loop_sum4(p);
    }
}

static void avx2_col4_f32(float *out, const float *a, const float *m, size_t m_stride, size_t rows, size_t cols) {
    col4_any(out, a, m, m_stride, rows, cols, false);
}

static void avx2_col4_bf16(float *out, const float *a, const uint16_t *m, size_t m_stride, size_t rows, size_t cols) {
    col4_any(out, a, m, m_stride, rows, cols, true);
}

/* ------------------------------------------------------------------ Q8 */

INLINE __m256i load_bytes(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }

/* acc += 32 products w * x in pairs: |x| times w with x's sign cannot saturate, since no value is -128. */
INLINE __m256i add_products(__m256i acc, __m256i w, __m256i x, __m256i x_abs) {
    __m256i pairs = _mm256_maddubs_epi16(x_abs, _mm256_sign_epi8(w, x));
    return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

static int32_t dot_int8(const int8_t *x, const int8_t *w, size_t n) {
    __m256i acc = _mm256_setzero_si256();
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m256i xv = load_bytes(x + i);
        acc = add_products(acc, load_bytes(w + i), xv, _mm256_abs_epi8(xv));
    }
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(acc), _mm256_extracti128_si256(acc, 1));
    s = _mm_add_epi32(s, _mm_unpackhi_epi64(s, s));
    int32_t sum = _mm_cvtsi128_si32(s) + _mm_extract_epi32(s, 1);
    for (; i < n; i++) sum += x[i] * w[i];
    return sum;
}

/* Four vectors to [sums of lane 0 | sums of lane 1], one element a vector. */
INLINE __m256i add_across(const __m256i s[4]) {
    return _mm256_hadd_epi32(_mm256_hadd_epi32(s[0], s[1]), _mm256_hadd_epi32(s[2], s[3]));
}

/* Eight row dots of a whole group for nx input rows (1 or 2, constant after inlining). */
INLINE void group_dots(__m256i dots[2], const int8_t *const x[2], size_t nx, const int8_t *w) {
    __m256i half[2][2];
    for (size_t h = 0; h < 2; h++) {
        __m256i s[2][4];
        for (size_t i = 0; i < nx; i++)
            for (size_t r = 0; r < 4; r++) s[i][r] = _mm256_setzero_si256();
        for (size_t at = 0; at < MS_Q8_WEIGHT_GROUP; at += 32) {
            __m256i xv[2], x_abs[2];
            for (size_t i = 0; i < nx; i++) {
                xv[i] = load_bytes(x[i] + at);
                x_abs[i] = _mm256_abs_epi8(xv[i]);
            }
            for (size_t r = 0; r < 4; r++) {
                __m256i weight = load_bytes(w + (h * 4 + r) * MS_Q8_WEIGHT_GROUP + at);
                for (size_t i = 0; i < nx; i++) s[i][r] = add_products(s[i][r], weight, xv[i], x_abs[i]);
            }
        }
        for (size_t i = 0; i < nx; i++) half[i][h] = add_across(s[i]);
    }
    for (size_t i = 0; i < nx; i++)
        dots[i] = _mm256_add_epi32(_mm256_permute2x128_si256(half[i][0], half[i][1], 0x20),
                                   _mm256_permute2x128_si256(half[i][0], half[i][1], 0x31));
}

/* Eight rows for nx input rows from row `first` on. */
INLINE void block8_q8(float *out, size_t out_stride, const ms_cpu_q8 *x, size_t first, size_t nx, const int8_t *data,
                      const float *scales, uint32_t cols) {
    __m256 p[2][4];
    const int8_t *xq[2] = {ms_cpu_q8_row(x, first), nx > 1 ? ms_cpu_q8_row(x, first + 1) : NULL};
    const float *xs[2] = {ms_cpu_q8_scales(x, first), nx > 1 ? ms_cpu_q8_scales(x, first + 1) : NULL};
    for (size_t i = 0; i < nx; i++)
        for (size_t q = 0; q < 4; q++) p[i][q] = _mm256_setzero_ps();
    uint32_t groups = ms_q8_groups(cols);
    for (uint32_t g = 0; g < groups; g++) {
        size_t at = (size_t)g * MS_Q8_WEIGHT_GROUP;
        uint32_t n = ms_q8_group_cols(cols, g);
        const int8_t *w = data + at * V, *here[2] = {xq[0] + at, nx > 1 ? xq[1] + at : NULL};
        __m256i dots[2];
        if (n == MS_Q8_WEIGHT_GROUP) {
            group_dots(dots, here, nx, w);
        } else {
            for (size_t i = 0; i < nx; i++) {
                int32_t d[V];
                for (size_t r = 0; r < V; r++) d[r] = dot_int8(here[i], w + r * n, n);
                dots[i] = load_bytes(d);
            }
        }
        __m256 ws = _mm256_loadu_ps(scales + (size_t)g * V);
        for (size_t i = 0; i < nx; i++)
            p[i][g % 4] =
                _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[i]), _mm256_mul_ps(ws, _mm256_set1_ps(xs[i][g])), p[i][g % 4]);
    }
    for (size_t i = 0; i < nx; i++) _mm256_storeu_ps(out + i * out_stride, sum4(p[i]));
}

static void avx2_block_q8(float *out, size_t out_stride, const ms_cpu_q8 *x, size_t nx, const int8_t *data,
                          const float *scales, uint32_t rows, uint32_t cols) {
    size_t i = 0;
    if (rows == V) {
        for (; i + 2 <= nx; i += 2) block8_q8(out + i * out_stride, out_stride, x, i, 2, data, scales, cols);
        if (i < nx) block8_q8(out + i * out_stride, out_stride, x, i, 1, data, scales, cols);
        return;
    }
    uint32_t groups = ms_q8_groups(cols);
    for (; i < nx; i++) {
        for (uint32_t r = 0; r < rows; r++) {
            float p[4] = {0};
            for (uint32_t g = 0; g < groups; g++) {
                size_t at = (size_t)g * MS_Q8_WEIGHT_GROUP;
                uint32_t n = ms_q8_group_cols(cols, g);
                int32_t dot = dot_int8(ms_cpu_q8_row(x, i) + at, data + at * rows + (size_t)r * n, n);
                float scale = scales[(size_t)g * rows + r] * ms_cpu_q8_scales(x, i)[g];
                p[g % 4] = fmaf((float)dot, scale, p[g % 4]);
            }
            out[i * out_stride + r] = loop_sum4(p);
        }
    }
}

/* ------------------------------------------------------------------ MXFP4 */

/* Order of rows after the tree of row_dots back to 0..7. */
INLINE __m256i row_order(__m256i v) {
    return _mm256_permutevar8x32_epi32(v, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

/* Doubled E2M1 plus 12: unsigned, so that maddubs takes it as it is.  12 * sum(x) is subtracted from the dot. */
enum { MX_OFFSET = 12 };

INLINE __m256i mx_table(void) {
    __m128i t = _mm_add_epi8(_mm_loadu_si128((const __m128i *)(const void *)ms_e2m1_doubled), _mm_set1_epi8(MX_OFFSET));
    return _mm256_broadcastsi128_si256(t);
}

/* Eight row dots (offset by 12 sum(x)): at most 24 * 127 * 4 in a 16-bit sum here, twice that after the first tree
 * step, so nothing saturates. */
INLINE __m256i row_dots(const __m256i low[4], const __m256i high[4], __m256i even, __m256i odd) {
    __m256i s[4];
    for (size_t i = 0; i < 4; i++)
        s[i] = _mm256_add_epi16(_mm256_maddubs_epi16(low[i], even), _mm256_maddubs_epi16(high[i], odd));
    __m256i one = _mm256_set1_epi16(1);
    __m256i a = _mm256_madd_epi16(_mm256_hadd_epi16(s[0], s[1]), one);
    __m256i b = _mm256_madd_epi16(_mm256_hadd_epi16(s[2], s[3]), one);
    return row_order(_mm256_hadd_epi32(a, b));
}

/* 2^(e - 128) of eight scale bytes; a subnormal for e < 2. */
INLINE __m256 half_scales(const uint8_t *e) {
    __m256i v = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)e));
    __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(v, _mm256_set1_epi32(1)), 23);
    __m256i tiny = _mm256_sllv_epi32(_mm256_set1_epi32(0x200000), v);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(normal, tiny, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), v)));
}

INLINE __m256i broadcast16(const int8_t *p) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)p));
}

/* 12 * sum(x) of a group in all elements. */
INLINE __m256i offset_of(__m256i even, __m256i odd) {
    __m256i twelve = _mm256_set1_epi8(MX_OFFSET);
    __m256i s = _mm256_add_epi16(_mm256_maddubs_epi16(twelve, even), _mm256_maddubs_epi16(twelve, odd));
    s = _mm256_madd_epi16(s, _mm256_set1_epi16(1)); /* both 128-bit lanes hold the same four sums */
    s = _mm256_add_epi32(s, _mm256_shuffle_epi32(s, 0x4e));
    return _mm256_add_epi32(s, _mm256_shuffle_epi32(s, 0xb1));
}

/* A tile for nx input rows from row `first` on; nx is a constant after inlining. */
INLINE void tile_rows(float *out, size_t out_stride, const ms_cpu_q8 *x, size_t first, size_t nx, const uint8_t *tile,
                      uint32_t groups) {
    const uint8_t *scales = tile + (size_t)groups * MX_TILE * MX_BYTES;
    const __m256i table = mx_table(), mask = _mm256_set1_epi8(15);
    const int8_t *xq[4];
    const float *xs[4];
    __m256 p[4][4][4]; /* [input row][8 rows][g % 4] */
    for (size_t i = 0; i < nx; i++) {
        xq[i] = ms_cpu_q8_row(x, first + i);
        xs[i] = ms_cpu_q8_scales(x, first + i);
        for (size_t o = 0; o < 4; o++)
            for (size_t q = 0; q < 4; q++) p[i][o][q] = _mm256_setzero_ps();
    }
    for (uint32_t g = 0; g < groups; g++) {
        const uint8_t *w = tile + (size_t)g * MX_TILE * MX_BYTES;
        __m256i even[4], odd[4], offset[4];
        for (size_t i = 0; i < nx; i++) {
            even[i] = broadcast16(xq[i] + (size_t)g * MX_GROUP);
            odd[i] = broadcast16(xq[i] + (size_t)g * MX_GROUP + MX_BYTES);
            offset[i] = offset_of(even[i], odd[i]);
        }
        for (size_t o = 0; o < 4; o++) {
            __m256i low[4], high[4];
            for (size_t r = 0; r < 4; r++) {
                __m256i bytes = load_bytes(w + (o * V + r * 2) * MX_BYTES);
                low[r] = _mm256_shuffle_epi8(table, _mm256_and_si256(bytes, mask));
                high[r] = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(bytes, 4), mask));
            }
            __m256 ws = half_scales(scales + (size_t)g * MX_TILE + o * V);
            for (size_t i = 0; i < nx; i++) {
                __m256i dots = _mm256_sub_epi32(row_dots(low, high, even[i], odd[i]), offset[i]);
                p[i][o][g % 4] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots), _mm256_mul_ps(ws, _mm256_set1_ps(xs[i][g])),
                                                 p[i][o][g % 4]);
            }
        }
    }
    for (size_t i = 0; i < nx; i++)
        for (size_t o = 0; o < 4; o++) _mm256_storeu_ps(out + i * out_stride + o * V, sum4(p[i][o]));
}

static void avx2_tile_mxfp4(float *out, size_t out_stride, const ms_cpu_q8 *x, size_t nx, const uint8_t *tile,
                            uint32_t groups) {
    size_t i = 0;
    for (; i + 4 <= nx; i += 4) tile_rows(out + i * out_stride, out_stride, x, i, 4, tile, groups);
    for (; i + 2 <= nx; i += 2) tile_rows(out + i * out_stride, out_stride, x, i, 2, tile, groups);
    if (i < nx) tile_rows(out + i * out_stride, out_stride, x, i, 1, tile, groups);
}

/* ------------------------------------------------------------------ quantising */

/* Largest |x| as bits, which order like the values and put NaN and infinity last; n % 8 == 0. */
INLINE uint32_t abs_max_bits(const float *x, size_t n) {
    __m256i m = _mm256_setzero_si256(), mask = _mm256_set1_epi32(0x7fffffff);
    for (size_t i = 0; i < n; i += V) m = _mm256_max_epi32(m, _mm256_and_si256(load_bytes(x + i), mask));
    __m128i s = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    s = _mm_max_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    s = _mm_max_epi32(s, _mm_shuffle_epi32(s, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(s);
}

/* 32 values times inv, rounded half to even: |x * inv| < 127.5, so the packs never saturate. */
INLINE __m256i round32(const float *x, __m256 inv) {
    __m256i v[4];
    for (size_t i = 0; i < 4; i++) v[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i * V), inv));
    return row_order(_mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3])));
}

/* A group of n % 32 == 0 values; inv of a group that is stored as zeros is 0 and *plain is false. */
INLINE bool group_scale(float *scale, float *inv, const float *x, size_t n) {
    uint32_t bits = abs_max_bits(x, n);
    float amax = ms_f32_from_bits(bits);
    bool finite = bits < 0x7f800000u;
    if (!finite || amax < 0x1p-100f) {
        *scale = finite ? 0.0f : ms_f32_from_bits(0x7fc00000u);
        return false;
    }
    *scale = amax / 127.0f;
    *inv = 127.0f / amax;
    return true;
}

static void avx2_quantize(int8_t *q, float *scales, const float *x, size_t n, size_t group) {
    for (size_t at = 0; at < n; at += group) {
        size_t count = n - at < group ? n - at : group;
        float *scale = scales + at / group, inv;
        if (count % 32) {
            (void)ms_q8_group(q + at, scale, x + at, count);
        } else if (!group_scale(scale, &inv, x + at, count)) {
            memset(q + at, 0, count);
        } else {
            for (size_t i = at; i < at + count; i += 32)
                _mm256_storeu_si256((__m256i *)(void *)(q + i), round32(x + i, _mm256_set1_ps(inv)));
        }
    }
}

static void avx2_quantize_split(int8_t *q, float *scales, const float *x, size_t n) {
    const __m256i split = _mm256_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15, 0, 2, 4, 6, 8, 10, 12,
                                           14, 1, 3, 5, 7, 9, 11, 13, 15);
    for (size_t at = 0; at < n; at += MX_GROUP) {
        float inv;
        __m256i v = _mm256_setzero_si256();
        if (group_scale(scales + at / MX_GROUP, &inv, x + at, MX_GROUP))
            v = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(round32(x + at, _mm256_set1_ps(inv)), split), 0xd8);
        _mm256_storeu_si256((__m256i *)(void *)(q + at), v);
    }
}

/* ------------------------------------------------------------------ elementary functions, as base/fmath.h */

INLINE __m256 exp8(__m256 x) {
    const __m256 shift = _mm256_set1_ps(MS_EXP_SHIFT);
    __m256 t = _mm256_fmadd_ps(x, _mm256_set1_ps(MS_EXP_LOG2E), shift);
    __m256 k = _mm256_sub_ps(t, shift);
    __m256 r =
        _mm256_fmadd_ps(k, _mm256_set1_ps(-MS_EXP_LN2_LO), _mm256_fmadd_ps(k, _mm256_set1_ps(-MS_EXP_LN2_HI), x));
    __m256 p = _mm256_set1_ps(MS_EXP_C0);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(MS_EXP_C1));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(MS_EXP_C2));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(MS_EXP_C3));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(MS_EXP_C4));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(MS_EXP_C5));
    p = _mm256_add_ps(_mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r), _mm256_set1_ps(1.0f));
    __m256i n = _mm256_sub_epi32(_mm256_castps_si256(t), _mm256_castps_si256(shift));
    __m256i power = _mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23);
    __m256 y = _mm256_mul_ps(p, _mm256_castsi256_ps(power));
    y = _mm256_blendv_ps(y, _mm256_setzero_ps(), _mm256_cmp_ps(x, _mm256_set1_ps(MS_EXP_MIN), _CMP_LT_OQ));
    const __m256 infinity = _mm256_castsi256_ps(_mm256_set1_epi32(0x7f800000));
    return _mm256_blendv_ps(y, infinity, _mm256_cmp_ps(x, _mm256_set1_ps(MS_EXP_MAX), _CMP_GT_OQ));
}

INLINE __m256 sigmoid8(__m256 x) {
    const __m256 one = _mm256_set1_ps(1.0f), sign = _mm256_set1_ps(-0.0f);
    return _mm256_div_ps(one, _mm256_add_ps(one, exp8(_mm256_xor_ps(x, sign))));
}

INLINE __m256 tanh8(__m256 x) {
    const __m256 one = _mm256_set1_ps(1.0f), sign_bit = _mm256_set1_ps(-0.0f);
    __m256 sign = _mm256_and_ps(x, sign_bit), a = _mm256_andnot_ps(sign_bit, x), z = _mm256_mul_ps(a, a);
    __m256 p = _mm256_set1_ps(MS_TANH_T0);
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(MS_TANH_T1));
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(MS_TANH_T2));
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(MS_TANH_T3));
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(MS_TANH_T4));
    __m256 small = _mm256_fmadd_ps(_mm256_mul_ps(p, z), a, a);
    __m256 e = _mm256_add_ps(exp8(_mm256_add_ps(a, a)), one);
    __m256 large = _mm256_sub_ps(one, _mm256_div_ps(_mm256_set1_ps(2.0f), e));
    __m256 use_small = _mm256_cmp_ps(a, _mm256_set1_ps(MS_TANH_BRANCH), _CMP_LT_OQ);
    return _mm256_or_ps(_mm256_blendv_ps(large, small, use_small), sign);
}

static void avx2_exp_sub(float *out, const float *x, float m, size_t n) {
    size_t i = 0;
    for (; i + V <= n; i += V)
        _mm256_storeu_ps(out + i, exp8(_mm256_sub_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(m))));
    for (; i < n; i++) out[i] = ms_exp(x[i] - m);
}

static void avx2_sigmoid(float *out, const float *x, size_t n) {
    size_t i = 0;
    for (; i + V <= n; i += V) _mm256_storeu_ps(out + i, sigmoid8(_mm256_loadu_ps(x + i)));
    for (; i < n; i++) out[i] = ms_sigmoid(x[i]);
}

static void avx2_gate(float *out, const float *x, const float *g, size_t n) {
    size_t i = 0;
    for (; i + V <= n; i += V)
        _mm256_storeu_ps(out + i, _mm256_mul_ps(_mm256_loadu_ps(x + i), sigmoid8(_mm256_loadu_ps(g + i))));
    for (; i < n; i++) out[i] = x[i] * ms_sigmoid(g[i]);
}

static void avx2_situ(float *out, const float *g, const float *u, size_t n, float beta, float linear_beta) {
    const __m256 b = _mm256_set1_ps(beta), lb = _mm256_set1_ps(linear_beta);
    size_t i = 0;
    for (; i + V <= n; i += V) {
        __m256 gv = _mm256_loadu_ps(g + i), uv = _mm256_loadu_ps(u + i);
        __m256 capped = _mm256_mul_ps(b, tanh8(_mm256_div_ps(gv, b)));
        __m256 linear = _mm256_mul_ps(lb, tanh8(_mm256_div_ps(uv, lb)));
        _mm256_storeu_ps(out + i, _mm256_mul_ps(_mm256_mul_ps(capped, sigmoid8(gv)), linear));
    }
    for (; i < n; i++) {
        float capped = beta * ms_tanh(g[i] / beta);
        out[i] = capped * ms_sigmoid(g[i]) * (linear_beta * ms_tanh(u[i] / linear_beta));
    }
}

static void avx2_decay(float *out, const float *e, const float *bias, float a, float bound, size_t n) {
    const __m256 av = _mm256_set1_ps(a), bv = _mm256_set1_ps(bound);
    size_t i = 0;
    for (; i + V <= n; i += V) {
        __m256 x = _mm256_mul_ps(av, _mm256_add_ps(_mm256_loadu_ps(e + i), _mm256_loadu_ps(bias + i)));
        _mm256_storeu_ps(out + i, exp8(_mm256_mul_ps(bv, sigmoid8(x))));
    }
    for (; i < n; i++) out[i] = ms_exp(bound * ms_sigmoid(a * (e[i] + bias[i])));
}

/* ------------------------------------------------------------------ KDA */

/* Rows [i, i + count), count <= 4, of the decay pass: work = alpha * from, p += k * work. */
INLINE void decay_rows(__m256 p[2][4], float *work, const float *from, size_t stride, const float *alpha,
                       const float *k, size_t i, size_t count) {
    for (size_t q = 0; q < count; q++) {
        __m256 a = _mm256_broadcast_ss(alpha + i + q), key = _mm256_broadcast_ss(k + i + q);
        for (size_t v = 0; v < 2; v++) {
            __m256 s = _mm256_mul_ps(a, _mm256_loadu_ps(from + (i + q) * stride + v * V));
            _mm256_storeu_ps(work + (i + q) * MS_CPU_KDA_COLUMNS + v * V, s);
            p[v][q] = _mm256_fmadd_ps(key, s, p[v][q]);
        }
    }
}

/* The same rows of the write pass: to = work + k * delta, p += q * to. */
INLINE void write_rows(__m256 p[2][4], float *to, size_t stride, const float *work, const float *k, const float *query,
                       const __m256 delta[2], size_t i, size_t count) {
    for (size_t q = 0; q < count; q++) {
        __m256 key = _mm256_broadcast_ss(k + i + q), factor = _mm256_broadcast_ss(query + i + q);
        for (size_t v = 0; v < 2; v++) {
            __m256 s = _mm256_loadu_ps(work + (i + q) * MS_CPU_KDA_COLUMNS + v * V);
            s = _mm256_fmadd_ps(key, delta[v], s);
            _mm256_storeu_ps(to + (i + q) * stride + v * V, s);
            p[v][q] = _mm256_fmadd_ps(factor, s, p[v][q]);
        }
    }
}

INLINE void clear8(__m256 p[2][4]) {
    for (size_t v = 0; v < 2; v++)
        for (size_t q = 0; q < 4; q++) p[v][q] = _mm256_setzero_ps();
}

/* The 16 columns live in `work` between the passes and tokens: state rows are too far apart to stay in the first
 * level cache together. */
static void kda_columns16(const ms_cpu_kda_run *run) {
    size_t dim = run->dim, whole = dim / 4 * 4, rest = dim % 4;
    for (size_t t = 0; t < run->tokens; t++) {
        const float *q = run->q + t * dim, *k = run->k + t * dim, *alpha = run->alpha + t * dim;
        const float *from = t == 0 ? run->state_in : run->work;
        size_t from_stride = t == 0 ? dim : MS_CPU_KDA_COLUMNS;
        bool last = t + 1 == run->tokens;
        float *to = last ? run->state : run->work;
        size_t to_stride = last ? dim : MS_CPU_KDA_COLUMNS;
        __m256 p[2][4], delta[2];
        clear8(p);
        for (size_t i = 0; i < whole; i += 4) decay_rows(p, run->work, from, from_stride, alpha, k, i, 4);
        for (size_t i = 0; i < rest; i++) {
            __m256 one[2][4];
            one[0][0] = p[0][i];
            one[1][0] = p[1][i];
            decay_rows(one, run->work, from, from_stride, alpha, k, whole + i, 1);
            p[0][i] = one[0][0];
            p[1][i] = one[1][0];
        }
        for (size_t v = 0; v < 2; v++) {
            __m256 value = _mm256_sub_ps(_mm256_loadu_ps(run->v + t * dim + v * V), sum4(p[v]));
            delta[v] = _mm256_mul_ps(_mm256_set1_ps(run->beta[t]), value);
        }
        clear8(p);
        for (size_t i = 0; i < whole; i += 4) write_rows(p, to, to_stride, run->work, k, q, delta, i, 4);
        for (size_t i = 0; i < rest; i++) {
            __m256 one[2][4];
            one[0][0] = p[0][i];
            one[1][0] = p[1][i];
            write_rows(one, to, to_stride, run->work, k, q, delta, whole + i, 1);
            p[0][i] = one[0][0];
            p[1][i] = one[1][0];
        }
        for (size_t v = 0; v < 2; v++) _mm256_storeu_ps(run->o + t * dim + v * V, sum4(p[v]));
    }
}

static void avx2_kda_columns(const ms_cpu_kda_run *run, size_t columns) {
    if (columns == MS_CPU_KDA_COLUMNS && run->tokens)
        kda_columns16(run);
    else
        loop_kda_columns(run, columns);
}

const ms_cpu_kernels ms_cpu_kernels_avx2 = {
    .name = "avx2",
    .dot = avx2_dot,
    .sum = avx2_sum,
    .rows_f32 = avx2_rows_f32,
    .rows_bf16 = avx2_rows_bf16,
    .col4_f32 = avx2_col4_f32,
    .col4_bf16 = avx2_col4_bf16,
    .block_q8 = avx2_block_q8,
    .tile_mxfp4 = avx2_tile_mxfp4,
    .quantize = avx2_quantize,
    .quantize_split = avx2_quantize_split,
    .exp_sub = avx2_exp_sub,
    .sigmoid = avx2_sigmoid,
    .gate = avx2_gate,
    .situ = avx2_situ,
    .decay = avx2_decay,
    MS_CPU_KERNELS_LOOPS,
    .kda_columns = avx2_kda_columns,
};

#endif
