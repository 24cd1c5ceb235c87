/* kernels_avx2.c: the kernels with AVX2 and FMA.  The same bits as kernels_scalar.c: lanes are the partial sums of
 * docs/numerics.md, integer dots are exact in any order, and what vectors leave over runs the scalar steps. */
#include "backend/cpu/kernels.h"

#if defined(__x86_64__)

#include "backend/cpu/kernels_avx2.h"
#include "quant/mxfp4.h"

/* ------------------------------------------------------------------ dot32 */

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

/* ------------------------------------------------------------------ Q8 */

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
        if (first == 0) fetch_ahead(w, (size_t)n * V);
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

/* Doubled E2M1 plus 12: unsigned, so that maddubs takes it as it is.  12 * sum(x) is subtracted from the dot. */
enum { MX_OFFSET = 12 };

INLINE __m256i mx_table(void) {
    __m128i t = _mm_add_epi8(_mm_loadu_si128((const __m128i *)(const void *)ms_e2m1_doubled), _mm_set1_epi8(MX_OFFSET));
    return _mm256_broadcastsi128_si256(t);
}

/* Eight row dots (offset by 12 sum(x)).  Sums of eight products fit 16 bits, 24 * 127 * 8, so that what madd made 32
 * bits wide can be packed for another one: fewer shuffles than horizontal adds. */
INLINE __m256i row_dots(const __m256i low[4], const __m256i high[4], __m256i even, __m256i odd) {
    const __m256i one = _mm256_set1_epi16(1);
    __m256i s[4];
    for (size_t i = 0; i < 4; i++)
        s[i] = _mm256_madd_epi16(
            _mm256_add_epi16(_mm256_maddubs_epi16(low[i], even), _mm256_maddubs_epi16(high[i], odd)), one);
    __m256 a = _mm256_castsi256_ps(_mm256_madd_epi16(_mm256_packs_epi32(s[0], s[1]), one));
    __m256 b = _mm256_castsi256_ps(_mm256_madd_epi16(_mm256_packs_epi32(s[2], s[3]), one));
    return row_order(_mm256_add_epi32(_mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88)),
                                      _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xdd))));
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
        if (first == 0) fetch_ahead(w, MX_TILE * MX_BYTES);
        __m256i even[4], odd[4], offset[4];
        for (size_t i = 0; i < nx; i++) {
            even[i] = broadcast16(xq[i] + (size_t)g * MX_GROUP);
            odd[i] = broadcast16(xq[i] + (size_t)g * MX_GROUP + MX_BYTES);
            offset[i] = offset_of(even[i], odd[i]);
        }
        for (size_t o = 0; o < 4; o++) {
            __m256i low[4], high[4];
            for (size_t r = 0; r < 4; r++) {
                const uint8_t *from = w + (o * V + r * 2) * MX_BYTES;
                __m256i bytes = load_bytes(from);
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

const ms_cpu_kernels ms_cpu_kernels_avx2 = {
    .name = "avx2",
    .dot = avx2_dot,
    .sum = avx2_sum,
    .rows_f32 = avx2_rows_f32,
    .rows_bf16 = avx2_rows_bf16,
    .block_q8 = avx2_block_q8,
    .tile_mxfp4 = avx2_tile_mxfp4,
    MS_CPU_KERNELS_AVX2,
    MS_CPU_KERNELS_LOOPS,
};

#endif
