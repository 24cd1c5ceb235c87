/* kernels_avx512.c: the kernels with AVX-512 (F, BW, DQ, VL) and VNNI.  The same bits as kernels_scalar.c: lanes are
 * the partial sums of docs/numerics.md and integer dots are exact in any order.  What 512 bits do not make faster is
 * the AVX2 code, compiled with these instructions. */
#include "backend/cpu/kernels.h"

#if defined(__x86_64__)

#include "backend/cpu/kernels_avx2.h"
#include "quant/mxfp4.h"

enum { W = 16 };

/* ------------------------------------------------------------------ dot32 */

/* Sixteen weights from index i of a row that is f32 or bf16; the others are zero. */
INLINE __m512 load_weight16(const void *w, size_t i, bool bf16) {
    if (!bf16) return _mm512_loadu_ps((const float *)w + i);
    __m256i h = _mm256_loadu_si256((const __m256i *)(const void *)((const uint16_t *)w + i));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

INLINE __m512 load_some16(const void *w, size_t i, __mmask16 mask, bool bf16) {
    if (!bf16) return _mm512_maskz_loadu_ps(mask, (const float *)w + i);
    __m256i h = _mm256_maskz_loadu_epi16(mask, (const uint16_t *)w + i);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

/* Lanes of half h of the last n % 32 elements. */
INLINE __mmask16 tail_mask(size_t rest, size_t h) {
    size_t first = h * W, count = rest <= first ? 0 : rest - first < W ? rest - first : W;
    return (__mmask16)((1u << count) - 1);
}

/* The butterfly: lane l of acc[h] is partial sum 16 h + l. */
INLINE float butterfly16(const __m512 acc[2]) {
    __m512 s = _mm512_add_ps(acc[0], acc[1]);
    __m256 t = _mm256_add_ps(_mm512_castps512_ps256(s), _mm512_extractf32x8_ps(s, 1));
    __m128 u = _mm_add_ps(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1));
    u = _mm_add_ps(u, _mm_movehl_ps(u, u));
    u = _mm_add_ss(u, _mm_movehdup_ps(u));
    return _mm_cvtss_f32(u);
}

/* The last n % 32 products, each into its own partial sum; the other sums stay as they are. */
INLINE void dot_tail16(__m512 acc[2], const float *x, const void *w, size_t first, size_t n, bool bf16) {
    for (size_t h = 0; h < 2; h++) {
        __mmask16 mask = tail_mask(n - first, h);
        acc[h] = _mm512_mask3_fmadd_ps(_mm512_maskz_loadu_ps(mask, x + first + h * W),
                                       load_some16(w, first + h * W, mask, bf16), acc[h], mask);
    }
}

/* One input row times nw (1..SINGLE_ROWS, constant after inlining) weight rows; strides in elements. */
enum { SINGLE_ROWS = 4 };

INLINE void dot_single16(float *out, const float *x, const uint8_t *w, size_t w_bytes, size_t nw, size_t n, bool bf16) {
    size_t whole = n / LANES * LANES;
    __m512 acc[SINGLE_ROWS][2];
    for (size_t j = 0; j < nw; j++) acc[j][0] = acc[j][1] = _mm512_setzero_ps();
    for (size_t i = 0; i < whole; i += LANES) {
        /* A single input row reads its weights from memory: fetch the rows after these into the second level cache.
         * The hardware stops at each page, which rows are about as long as. */
        for (size_t j = 0; j < nw; j++)
            _mm_prefetch((const char *)((uintptr_t)w + (j + nw) * w_bytes + i * (bf16 ? 2 : 4)), _MM_HINT_T1);
        for (size_t h = 0; h < 2; h++) {
            __m512 value = _mm512_loadu_ps(x + i + h * W);
            for (size_t j = 0; j < nw; j++)
                acc[j][h] = _mm512_fmadd_ps(value, load_weight16(w + j * w_bytes, i + h * W, bf16), acc[j][h]);
        }
    }
    for (size_t j = 0; j < nw; j++) {
        if (whole < n) dot_tail16(acc[j], x, w + j * w_bytes, whole, n, bf16);
        out[j] = butterfly16(acc[j]);
    }
}

INLINE void rows_single16(float *out, const float *x, const uint8_t *w, size_t w_bytes, size_t nw, size_t n,
                          bool bf16) {
    size_t j = 0;
    for (; j + SINGLE_ROWS <= nw; j += SINGLE_ROWS)
        dot_single16(out + j, x, w + j * w_bytes, w_bytes, SINGLE_ROWS, n, bf16);
    for (; j < nw; j++) dot_single16(out + j, x, w + j * w_bytes, w_bytes, 1, n, bf16);
}

/* Several input rows: X_ROWS at a time against W_TILE weight rows, in pieces of K_PIECE inputs that stay in the first
 * level cache; the partial sums of the tile wait in memory between pieces. */
enum { X_ROWS = 4, W_ROWS = 4, W_TILE = 16, K_PIECE = 1024 };

/* Inputs [first, last) of nx input rows times nw weight rows.  Half of the partial sums at a time, so that the sums of
 * 4 x 4 products fit the registers. */
INLINE void dot_piece16(__m512 part[W_ROWS][X_ROWS][2], const float *x, size_t x_stride, size_t nx, const uint8_t *w,
                        size_t w_bytes, size_t nw, size_t first, size_t last, bool bf16) {
    for (size_t h = 0; h < 2; h++) {
        __m512 acc[W_ROWS][X_ROWS];
        for (size_t j = 0; j < nw; j++)
            for (size_t r = 0; r < nx; r++) acc[j][r] = part[j][r][h];
        for (size_t i = first + h * W; i < last; i += LANES) {
            __m512 weight[W_ROWS];
            for (size_t j = 0; h == 0 && j < nw; j++) /* the piece of the rows that come next */
                _mm_prefetch((const char *)((uintptr_t)w + (j + nw) * w_bytes + i * (bf16 ? 2 : 4)), _MM_HINT_T1);
            for (size_t j = 0; j < nw; j++) weight[j] = load_weight16(w + j * w_bytes, i, bf16);
            for (size_t r = 0; r < nx; r++) {
                __m512 value = _mm512_loadu_ps(x + r * x_stride + i);
                for (size_t j = 0; j < nw; j++) acc[j][r] = _mm512_fmadd_ps(value, weight[j], acc[j][r]);
            }
        }
        for (size_t j = 0; j < nw; j++)
            for (size_t r = 0; r < nx; r++) part[j][r][h] = acc[j][r];
    }
}

/* nx input rows (2..X_ROWS, constant after inlining) times nw <= W_TILE weight rows. */
INLINE void dot_tile16(float *out, size_t out_stride, const float *x, size_t x_stride, size_t nx, const uint8_t *w,
                       size_t w_bytes, size_t nw, size_t n, bool bf16) {
    __m512 part[W_TILE][X_ROWS][2];
    size_t whole = n / LANES * LANES;
    for (size_t j = 0; j < nw; j++)
        for (size_t r = 0; r < nx; r++) part[j][r][0] = part[j][r][1] = _mm512_setzero_ps();
    for (size_t first = 0; first < whole; first += K_PIECE) {
        size_t last = whole - first < K_PIECE ? whole : first + K_PIECE, j = 0;
        for (; j + W_ROWS <= nw; j += W_ROWS)
            dot_piece16(part + j, x, x_stride, nx, w + j * w_bytes, w_bytes, W_ROWS, first, last, bf16);
        for (; j < nw; j++) dot_piece16(part + j, x, x_stride, nx, w + j * w_bytes, w_bytes, 1, first, last, bf16);
    }
    for (size_t j = 0; j < nw; j++) {
        for (size_t r = 0; r < nx; r++) {
            if (whole < n) dot_tail16(part[j][r], x + r * x_stride, w + j * w_bytes, whole, n, bf16);
            out[r * out_stride + j] = butterfly16(part[j][r]);
        }
    }
}

INLINE void rows_any16(float *out, size_t out_stride, const float *x, size_t x_stride, size_t nx, const void *w,
                       size_t w_stride, size_t nw, size_t n, bool bf16) {
    size_t w_bytes = w_stride * (bf16 ? sizeof(uint16_t) : sizeof(float));
    if (nx == 1) {
        rows_single16(out, x, w, w_bytes, nw, n, bf16);
        return;
    }
    for (size_t j = 0; j < nw; j += W_TILE) {
        size_t count = nw - j < W_TILE ? nw - j : W_TILE, i = 0;
        const uint8_t *tile = (const uint8_t *)w + j * w_bytes;
        float *to = out + j;
        for (; i + 4 <= nx; i += 4)
            dot_tile16(to + i * out_stride, out_stride, x + i * x_stride, x_stride, 4, tile, w_bytes, count, n, bf16);
        const float *xi = x + i * x_stride;
        to += i * out_stride;
        if (nx - i == 3) dot_tile16(to, out_stride, xi, x_stride, 3, tile, w_bytes, count, n, bf16);
        if (nx - i == 2) dot_tile16(to, out_stride, xi, x_stride, 2, tile, w_bytes, count, n, bf16);
        if (nx - i == 1) rows_single16(to, xi, tile, w_bytes, count, n, bf16);
    }
}

static void avx512_rows_f32(float *out, size_t out_stride, const float *x, size_t x_stride, size_t nx, const float *w,
                            size_t w_stride, size_t nw, size_t n) {
    rows_any16(out, out_stride, x, x_stride, nx, w, w_stride, nw, n, false);
}

static void avx512_rows_bf16(float *out, size_t out_stride, const float *x, size_t x_stride, size_t nx,
                             const uint16_t *w, size_t w_stride, size_t nw, size_t n) {
    rows_any16(out, out_stride, x, x_stride, nx, w, w_stride, nw, n, true);
}

static float avx512_dot(const float *x, const float *y, size_t n) {
    float out;
    dot_single16(&out, x, (const uint8_t *)y, 0, 1, n, false);
    return out;
}

static float avx512_sum(const float *x, size_t n) {
    __m512 acc[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    size_t whole = n / LANES * LANES;
    for (size_t i = 0; i < whole; i += LANES)
        for (size_t h = 0; h < 2; h++) acc[h] = _mm512_add_ps(acc[h], _mm512_loadu_ps(x + i + h * W));
    for (size_t h = 0; h < 2; h++) {
        __mmask16 mask = tail_mask(n - whole, h);
        acc[h] = _mm512_mask_add_ps(acc[h], mask, acc[h], _mm512_maskz_loadu_ps(mask, x + whole + h * W));
    }
    return butterfly16(acc);
}

/* ------------------------------------------------------------------ int8 products */

/* Input rows that share a decoded group of weights; their partial sums lie in memory. */
enum { INT_ROWS = 16 };

/* Four vectors of 16 32-bit elements, transposed 4 x 4 in each 128-bit lane: element r of a lane of out[d] is element d
 * of that lane of in[r]. */
INLINE void transpose_lanes(__m512i out[4], const __m512i in[4]) {
    __m512i a = _mm512_unpacklo_epi32(in[0], in[1]), b = _mm512_unpackhi_epi32(in[0], in[1]);
    __m512i c = _mm512_unpacklo_epi32(in[2], in[3]), d = _mm512_unpackhi_epi32(in[2], in[3]);
    out[0] = _mm512_unpacklo_epi64(a, c);
    out[1] = _mm512_unpackhi_epi64(a, c);
    out[2] = _mm512_unpacklo_epi64(b, d);
    out[3] = _mm512_unpackhi_epi64(b, d);
}

/* The sum of the four lanes of v[0], then that of v[1]. */
INLINE __m256i add_lanes(const __m512i v[2]) {
    __m512i t = _mm512_add_epi32(_mm512_shuffle_i32x4(v[0], v[1], 0x44), _mm512_shuffle_i32x4(v[0], v[1], 0xee));
    t = _mm512_add_epi32(_mm512_shuffle_i32x4(t, t, 0x08), _mm512_shuffle_i32x4(t, t, 0x0d));
    return _mm512_castsi512_si256(t);
}

/* The dots of eight weight rows with one input row over up to 128 columns.  The inputs go in as x + 128, because VNNI
 * wants one factor unsigned; `start` holds minus 128 times the sums of the weights.  Element r of every lane belongs to
 * row r (or 4 + r) and every lane to a quarter of each 64 columns. */
INLINE __m256i q8_dots(const int8_t *x, __mmask64 low, __mmask64 high, __m512i w[2][2][4], const __m512i start[2]) {
    __m512i acc[2] = {start[0], start[1]};
    for (size_t h = 0; h < 2; h++) {
        __m512i v = _mm512_maskz_loadu_epi8(h ? high : low, x + h * 64);
        v = _mm512_xor_si512(v, _mm512_set1_epi8(-128));
        const __m512i part[4] = {_mm512_shuffle_epi32(v, 0x00), _mm512_shuffle_epi32(v, 0x55),
                                 _mm512_shuffle_epi32(v, 0xaa), _mm512_shuffle_epi32(v, 0xff)};
        for (size_t d = 0; d < 4; d++)
            for (size_t s = 0; s < 2; s++) acc[s] = _mm512_dpbusd_epi32(acc[s], part[d], w[s][h][d]);
    }
    return add_lanes(acc);
}

/* nx <= INT_ROWS input rows from row `first` on. */
INLINE void block_rows_q8(float *out, size_t out_stride, const ms_cpu_q8 *x, size_t first, size_t nx,
                          const int8_t *data, const float *scales, uint32_t rows, uint32_t cols) {
    __m256 p[INT_ROWS][4];
    for (size_t i = 0; i < nx; i++)
        for (size_t q = 0; q < 4; q++) p[i][q] = _mm256_setzero_ps();
    const __mmask8 row_mask = (__mmask8)((1u << rows) - 1);
    uint32_t groups = ms_q8_groups(cols);
    for (uint32_t g = 0; g < groups; g++) {
        size_t at = (size_t)g * MS_Q8_WEIGHT_GROUP;
        uint32_t n = ms_q8_group_cols(cols, g);
        const int8_t *from = data + at * rows;
        if (first == 0) fetch_ahead(from, (size_t)n * rows);
        __mmask64 low = n >= 64 ? ~UINT64_C(0) : (UINT64_C(1) << n) - 1;
        __mmask64 high = n >= 128 ? ~UINT64_C(0) : n > 64 ? (UINT64_C(1) << (n - 64)) - 1 : 0;
        __m512i w[2][2][4], start[2];
        for (size_t s = 0; s < 2; s++) {
            __m512i sum = _mm512_setzero_si512();
            for (size_t h = 0; h < 2; h++) {
                __m512i v[4];
                for (size_t r = 0; r < 4; r++) {
                    const int8_t *row = from + (s * 4 + r) * n + h * 64;
                    v[r] = s * 4 + r < rows ? _mm512_maskz_loadu_epi8(h ? high : low, row) : _mm512_setzero_si512();
                }
                transpose_lanes(w[s][h], v);
                for (size_t d = 0; d < 4; d++) sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(-128), w[s][h][d]);
            }
            start[s] = _mm512_sub_epi32(_mm512_setzero_si512(), sum);
        }
        __m256 ws = _mm256_maskz_loadu_ps(row_mask, scales + (size_t)g * rows);
        for (size_t i = 0; i < nx; i++) {
            __m256i dots = q8_dots(ms_cpu_q8_row(x, first + i) + at, low, high, w, start);
            __m256 scale = _mm256_mul_ps(ws, _mm256_set1_ps(ms_cpu_q8_scales(x, first + i)[g]));
            p[i][g % 4] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots), scale, p[i][g % 4]);
        }
    }
    for (size_t i = 0; i < nx; i++) _mm256_mask_storeu_ps(out + i * out_stride, row_mask, sum4(p[i]));
}

static void avx512_block_q8(float *out, size_t out_stride, const ms_cpu_q8 *x, size_t nx, const int8_t *data,
                            const float *scales, uint32_t rows, uint32_t cols) {
    if (nx == 1) { /* compiled for one */
        block_rows_q8(out, out_stride, x, 0, 1, data, scales, rows, cols);
        return;
    }
    for (size_t i = 0; i < nx; i += INT_ROWS)
        block_rows_q8(out + i * out_stride, out_stride, x, i, nx - i < INT_ROWS ? nx - i : INT_ROWS, data, scales, rows,
                      cols);
}

/* ------------------------------------------------------------------ MXFP4 */

/* Doubled E2M1 plus 12 is unsigned, as VNNI wants one factor; 12 * sum(x) is what a dot starts below zero. */
enum {
    MX_OFFSET = 12,
    MX_CHUNK = 16 /* groups */
};

INLINE __m512i mx_table(void) {
    const __m128i plain = _mm_loadu_si128((const __m128i *)(const void *)ms_e2m1_doubled);
    return _mm512_broadcast_i32x4(_mm_add_epi8(plain, _mm_set1_epi8(MX_OFFSET)));
}

/* out[g] = -12 * sum(x) of groups 0..MX_CHUNK-1, those from `groups` on undefined. */
INLINE void mx_starts(int32_t out[MX_CHUNK], const int8_t *x, size_t groups) {
    for (size_t g = 0; g < groups; g += 4) {
        __m128i s[4];
        for (size_t k = 0; k < 4; k++) {
            __m256i v = g + k < groups ? load_bytes(x + (g + k) * MX_GROUP) : _mm256_setzero_si256();
            v = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(MX_OFFSET), v);
            s[k] = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
        }
        __m128i t = _mm_hadd_epi32(_mm_hadd_epi32(s[0], s[1]), _mm_hadd_epi32(s[2], s[3]));
        _mm_storeu_si128((__m128i *)(void *)(out + g), _mm_sub_epi32(_mm_setzero_si128(), t));
    }
}

/* Sixteen rows of a group: code[0..3] even inputs 4 d .. 4 d + 3, code[4..7] odd ones; element 4 l + r of each is row
 * 4 r + l. */
INLINE void mx_decode(__m512i code[8], const uint8_t *w, __m512i table) {
    const __m512i mask = _mm512_set1_epi8(15);
    __m512i v[4], t[4];
    for (size_t r = 0; r < 4; r++) v[r] = _mm512_loadu_si512(w + r * 64);
    transpose_lanes(t, v);
    for (size_t d = 0; d < 4; d++) {
        code[d] = _mm512_shuffle_epi8(table, _mm512_and_si512(t[d], mask));
        code[4 + d] = _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(t[d], 4), mask));
    }
}

/* 2^(e - 128) of sixteen scale bytes in the order of mx_decode; a subnormal for e < 2. */
INLINE __m512 mx_scales(const uint8_t *e) {
    const __m128i order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m128i bytes = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(const void *)e), order);
    __m512i v = _mm512_cvtepu8_epi32(bytes), one = _mm512_set1_epi32(1);
    __m512i bits = _mm512_slli_epi32(_mm512_sub_epi32(v, one), 23);
    bits = _mm512_mask_sllv_epi32(bits, _mm512_cmple_epu32_mask(v, one), _mm512_set1_epi32(0x200000), v);
    return _mm512_castsi512_ps(bits);
}

/* The 32 results of a row, back in their order. */
INLINE void mx_store(float *out, __m512 p[2][4]) {
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    for (size_t h = 0; h < 2; h++) {
        __m512 sum = _mm512_add_ps(_mm512_add_ps(p[h][0], p[h][2]), _mm512_add_ps(p[h][1], p[h][3]));
        _mm512_storeu_ps(out + h * W, _mm512_permutexvar_ps(order, sum));
    }
}

INLINE __m512i broadcast4(const int8_t *p) {
    int32_t v;
    memcpy(&v, p, sizeof v);
    return _mm512_set1_epi32(v);
}

/* nx <= INT_ROWS input rows from row `first` on. */
INLINE void tile_rows_mxfp4(float *out, size_t out_stride, const ms_cpu_q8 *x, size_t first, size_t nx,
                            const uint8_t *tile, uint32_t groups) {
    const uint8_t *scales = tile + (size_t)groups * MX_TILE * MX_BYTES;
    const __m512i table = mx_table();
    int32_t start[INT_ROWS][MX_CHUNK];
    __m512 p[INT_ROWS][2][4];
    for (size_t i = 0; i < nx; i++)
        for (size_t q = 0; q < 4; q++) p[i][0][q] = p[i][1][q] = _mm512_setzero_ps();
    for (uint32_t g = 0; g < groups; g++) {
        if (g % MX_CHUNK == 0) {
            size_t count = groups - g < MX_CHUNK ? groups - g : MX_CHUNK;
            for (size_t i = 0; i < nx; i++)
                mx_starts(start[i], ms_cpu_q8_row(x, first + i) + (size_t)g * MX_GROUP, count);
        }
        if (first == 0) fetch_ahead(tile + (size_t)g * MX_TILE * MX_BYTES, MX_TILE * MX_BYTES);
        for (size_t h = 0; h < 2; h++) {
            const uint8_t *w = tile + ((size_t)g * MX_TILE + h * W) * MX_BYTES;
            __m512i code[8];
            mx_decode(code, w, table);
            __m512 ws = mx_scales(scales + (size_t)g * MX_TILE + h * W);
            for (size_t i = 0; i < nx; i++) {
                const int8_t *xq = ms_cpu_q8_row(x, first + i) + (size_t)g * MX_GROUP;
                __m512i dots = _mm512_set1_epi32(start[i][g % MX_CHUNK]);
                for (size_t d = 0; d < 8; d++) dots = _mm512_dpbusd_epi32(dots, code[d], broadcast4(xq + d * 4));
                __m512 scale = _mm512_mul_ps(ws, _mm512_set1_ps(ms_cpu_q8_scales(x, first + i)[g]));
                p[i][h][g % 4] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots), scale, p[i][h][g % 4]);
            }
        }
    }
    for (size_t i = 0; i < nx; i++) mx_store(out + i * out_stride, p[i]);
}

/* Sixteen rows of a group times one input row.  A sum of eight products fits 16 bits, 8 * 12 * 127, so that the four of
 * a row can be added by packing and madd.  The order of rows is that of mx_decode. */
INLINE __m512i mx_single_dots(const uint8_t *w, __m512i table, __m512i even, __m512i odd, __m512i start) {
    const __m512i mask = _mm512_set1_epi8(15), one = _mm512_set1_epi16(1);
    __m512i s[4];
    for (size_t r = 0; r < 4; r++) {
        __m512i v = _mm512_loadu_si512(w + r * 64);
        __m512i low = _mm512_shuffle_epi8(table, _mm512_and_si512(v, mask));
        __m512i high = _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(v, 4), mask));
        s[r] = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(start, low, even), high, odd);
    }
    __m512 a = _mm512_castsi512_ps(_mm512_madd_epi16(_mm512_packs_epi32(s[0], s[1]), one));
    __m512 b = _mm512_castsi512_ps(_mm512_madd_epi16(_mm512_packs_epi32(s[2], s[3]), one));
    return _mm512_add_epi32(_mm512_castps_si512(_mm512_shuffle_ps(a, b, 0x88)),
                            _mm512_castps_si512(_mm512_shuffle_ps(a, b, 0xdd)));
}

INLINE __m512i broadcast16x4(const int8_t *p) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)p));
}

/* Groups [g, g + count) of one input row; count <= 4, g % 4 == 0. */
INLINE void mx_single_groups(__m512 p[2][4], const int8_t *x, const float *x_scales, const uint8_t *tile,
                             const uint8_t *scales, uint32_t g, uint32_t count, __m512i table) {
    const __m512i offset = _mm512_set1_epi8(MX_OFFSET);
    for (uint32_t q = 0; q < count; q++) {
        fetch_ahead(tile + (size_t)(g + q) * MX_TILE * MX_BYTES, MX_TILE * MX_BYTES);
        __m512i even = broadcast16x4(x + (size_t)(g + q) * MX_GROUP);
        __m512i odd = broadcast16x4(x + (size_t)(g + q) * MX_GROUP + MX_BYTES);
        __m512i start = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(_mm512_setzero_si512(), offset, even), offset, odd);
        start = _mm512_sub_epi32(_mm512_setzero_si512(), start);
        for (size_t h = 0; h < 2; h++) {
            const uint8_t *w = tile + ((size_t)(g + q) * MX_TILE + h * W) * MX_BYTES;
            __m512i dots = mx_single_dots(w, table, even, odd, start);
            __m512 ws = mx_scales(scales + (size_t)(g + q) * MX_TILE + h * W);
            p[h][q] =
                _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots), _mm512_mul_ps(ws, _mm512_set1_ps(x_scales[g + q])), p[h][q]);
        }
    }
}

static void single_row_mxfp4(float *out, const int8_t *x, const float *x_scales, const uint8_t *tile, uint32_t groups) {
    const uint8_t *scales = tile + (size_t)groups * MX_TILE * MX_BYTES;
    const __m512i table = mx_table();
    __m512 p[2][4];
    for (size_t q = 0; q < 4; q++) p[0][q] = p[1][q] = _mm512_setzero_ps();
    uint32_t g = 0;
    for (; g + 4 <= groups; g += 4) mx_single_groups(p, x, x_scales, tile, scales, g, 4, table);
    mx_single_groups(p, x, x_scales, tile, scales, g, groups - g, table);
    mx_store(out, p);
}

static void avx512_tile_mxfp4(float *out, size_t out_stride, const ms_cpu_q8 *x, size_t nx, const uint8_t *tile,
                              uint32_t groups) {
    if (nx == 1) {
        single_row_mxfp4(out, ms_cpu_q8_row(x, 0), ms_cpu_q8_scales(x, 0), tile, groups);
        return;
    }
    for (size_t i = 0; i < nx; i += INT_ROWS)
        tile_rows_mxfp4(out + i * out_stride, out_stride, x, i, nx - i < INT_ROWS ? nx - i : INT_ROWS, tile, groups);
}

const ms_cpu_kernels ms_cpu_kernels_avx512 = {
    .name = "avx512",
    .dot = avx512_dot,
    .sum = avx512_sum,
    .rows_f32 = avx512_rows_f32,
    .rows_bf16 = avx512_rows_bf16,
    .block_q8 = avx512_block_q8,
    .tile_mxfp4 = avx512_tile_mxfp4,
    MS_CPU_KERNELS_AVX2,
    MS_CPU_KERNELS_LOOPS,
};

#endif
