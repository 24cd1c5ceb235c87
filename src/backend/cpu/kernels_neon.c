/* kernels_neon.c: the kernels with Advanced SIMD and its int8 dot product.  The same bits as kernels_scalar.c: lanes
 * are the partial sums of docs/numerics.md, integer dots are exact in any order, and what vectors leave over runs the
 * scalar steps. */
#include "backend/cpu/kernels.h"

#if defined(__aarch64__)

#include "backend/cpu/kernels_loops.h"
#include "base/fmath.h"
#include "quant/mxfp4.h"
#include "quant/q8.h"

#include <arm_neon.h>

#define INLINE static inline __attribute__((always_inline))

enum { LANES = 32, V = 4, ACC = LANES / V, MX_GROUP = 32, MX_BYTES = 16, MX_TILE = 32 };

/* Four weights from index i of a row that is f32 or bf16. */
INLINE float32x4_t load_weight(const void *w, size_t i, bool bf16) {
    return bf16 ? vreinterpretq_f32_u32(vshll_n_u16(vld1_u16((const uint16_t *)w + i), 16))
                : vld1q_f32((const float *)w + i);
}

INLINE float scalar_weight(const void *w, size_t i, bool bf16) {
    return bf16 ? ms_bf16_to_f32(((const uint16_t *)w)[i]) : ((const float *)w)[i];
}

INLINE void clear(float32x4_t *v, size_t count) {
    for (size_t i = 0; i < count; i++) v[i] = vdupq_n_f32(0.0f);
}

INLINE float32x4_t sum4(const float32x4_t p[4]) { return vaddq_f32(vaddq_f32(p[0], p[2]), vaddq_f32(p[1], p[3])); }

/* ------------------------------------------------------------------ dot32 */

/* The butterfly: lane l of acc[a] is partial sum 4 a + l. */
INLINE float butterfly(const float32x4_t acc[ACC]) {
    float32x4_t t[4];
    for (size_t a = 0; a < 4; a++) t[a] = vaddq_f32(acc[a], acc[a + 4]);
    float32x4_t u = sum4(t);
    float32x2_t v = vadd_f32(vget_low_f32(u), vget_high_f32(u));
    return vget_lane_f32(v, 0) + vget_lane_f32(v, 1);
}

/* The last n % 32 products, each into its own partial sum. */
INLINE void dot_tail(float32x4_t acc[ACC], const float *x, const void *w, size_t first, size_t n, bool bf16) {
    float s[LANES];
    for (size_t a = 0; a < ACC; a++) vst1q_f32(s + a * V, acc[a]);
    for (size_t i = first; i < n; i++) s[i - first] = fmaf(x[i], scalar_weight(w, i, bf16), s[i - first]);
    for (size_t a = 0; a < ACC; a++) acc[a] = vld1q_f32(s + a * V);
}

/* One input row times nw (1 or 2, constant after inlining) weight rows; strides in bytes. */
INLINE void dot_single(float *out, const float *x, const void *w, size_t w_bytes, size_t nw, size_t n, bool bf16) {
    const void *rows[2] = {w, (const uint8_t *)w + (nw > 1 ? w_bytes : 0)};
    size_t whole = n / LANES * LANES;
    float32x4_t acc[2][ACC];
    for (size_t j = 0; j < nw; j++) clear(acc[j], ACC);
    for (size_t i = 0; i < whole; i += LANES) {
        for (size_t a = 0; a < ACC; a++) {
            float32x4_t value = vld1q_f32(x + i + a * V);
            for (size_t j = 0; j < nw; j++)
                acc[j][a] = vfmaq_f32(acc[j][a], value, load_weight(rows[j], i + a * V, bf16));
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
enum { X_ROWS = 3, W_TILE = 16, K_PIECE = 1024, HALF = ACC / 2 };

/* Inputs [first, last) of nx input rows times nw weight rows.  Half of the partial sums at a time, so that the sums of
 * 3 x 2 products fit the registers. */
INLINE void dot_piece(float32x4_t part[2][X_ROWS][ACC], const float *x, size_t x_stride, size_t nx, const uint8_t *w,
                      size_t w_bytes, size_t nw, size_t first, size_t last, bool bf16) {
    const void *rows[2] = {w, w + (nw > 1 ? w_bytes : 0)};
    for (size_t half = 0; half < ACC; half += HALF) {
        float32x4_t acc[2][X_ROWS][HALF];
        for (size_t j = 0; j < nw; j++)
            for (size_t r = 0; r < nx; r++)
                for (size_t a = 0; a < HALF; a++) acc[j][r][a] = part[j][r][half + a];
        for (size_t i = first + half * V; i < last; i += LANES) {
            for (size_t a = 0; a < HALF; a++) {
                float32x4_t weight[2];
                for (size_t j = 0; j < nw; j++) weight[j] = load_weight(rows[j], i + a * V, bf16);
                for (size_t r = 0; r < nx; r++) {
                    float32x4_t value = vld1q_f32(x + r * x_stride + i + a * V);
                    for (size_t j = 0; j < nw; j++) acc[j][r][a] = vfmaq_f32(acc[j][r][a], value, weight[j]);
                }
            }
        }
        for (size_t j = 0; j < nw; j++)
            for (size_t r = 0; r < nx; r++)
                for (size_t a = 0; a < HALF; a++) part[j][r][half + a] = acc[j][r][a];
    }
}

/* nx input rows times nw <= W_TILE weight rows. */
INLINE void dot_tile(float *out, size_t out_stride, const float *x, size_t x_stride, size_t nx, const uint8_t *w,
                     size_t w_bytes, size_t nw, size_t n, bool bf16) {
    float32x4_t part[W_TILE][X_ROWS][ACC];
    size_t whole = n / LANES * LANES;
    for (size_t j = 0; j < nw; j++)
        for (size_t r = 0; r < nx; r++) clear(part[j][r], ACC);
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

static void neon_rows_f32(float *out, size_t out_stride, const float *x, size_t x_stride, size_t nx, const float *w,
                          size_t w_stride, size_t nw, size_t n) {
    rows_any(out, out_stride, x, x_stride, nx, w, w_stride, nw, n, false);
}

static void neon_rows_bf16(float *out, size_t out_stride, const float *x, size_t x_stride, size_t nx, const uint16_t *w,
                           size_t w_stride, size_t nw, size_t n) {
    rows_any(out, out_stride, x, x_stride, nx, w, w_stride, nw, n, true);
}

static float neon_dot(const float *x, const float *y, size_t n) {
    float out;
    dot_single(&out, x, y, 0, 1, n, false);
    return out;
}

static float neon_sum(const float *x, size_t n) {
    float32x4_t acc[ACC];
    size_t whole = n / LANES * LANES;
    clear(acc, ACC);
    for (size_t i = 0; i < whole; i += LANES)
        for (size_t a = 0; a < ACC; a++) acc[a] = vaddq_f32(acc[a], vld1q_f32(x + i + a * V));
    if (whole < n) {
        float s[LANES];
        for (size_t a = 0; a < ACC; a++) vst1q_f32(s + a * V, acc[a]);
        for (size_t i = whole; i < n; i++) s[i - whole] = s[i - whole] + x[i];
        for (size_t a = 0; a < ACC; a++) acc[a] = vld1q_f32(s + a * V);
    }
    return butterfly(acc);
}

/* ------------------------------------------------------------------ col4 */

/* Row d of the matrix, into partial sum q = d % 4 of 4 * nv columns; nv is a constant after inlining. */
INLINE void col4_row(float32x4_t p[4][4], size_t q, const float *a, const void *m, size_t at, size_t nv, bool bf16) {
    float32x4_t factor = vdupq_n_f32(*a);
    for (size_t v = 0; v < nv; v++) p[v][q] = vfmaq_f32(p[v][q], factor, load_weight(m, at + v * V, bf16));
}

INLINE void col4_block(float *out, const float *a, const void *m, size_t m_stride, size_t rows, size_t c, size_t nv,
                       bool bf16) {
    float32x4_t p[4][4];
    for (size_t v = 0; v < nv; v++) clear(p[v], 4);
    size_t whole = rows / 4 * 4;
    for (size_t d = 0; d < whole; d += 4)
        for (size_t q = 0; q < 4; q++) col4_row(p, q, a + d + q, m, (d + q) * m_stride + c, nv, bf16);
    for (size_t q = 0; q < 3; q++) { /* rows % 4 more */
        if (whole + q >= rows) break;
        col4_row(p, q, a + whole + q, m, (whole + q) * m_stride + c, nv, bf16);
    }
    for (size_t v = 0; v < nv; v++) vst1q_f32(out + c + v * V, sum4(p[v]));
}

INLINE void col4_any(float *out, const float *a, const void *m, size_t m_stride, size_t rows, size_t cols, bool bf16) {
    size_t c = 0;
    for (; c + 4 * V <= cols; c += 4 * V) col4_block(out, a, m, m_stride, rows, c, 4, bf16);
    for (; c + V <= cols; c += V) col4_block(out, a, m, m_stride, rows, c, 1, bf16);
    for (; c < cols; c++) {
        float p[4] = {0};
        for (size_t d = 0; d < rows; d++) p[d % 4] = fmaf(a[d], scalar_weight(m, d * m_stride + c, bf16), p[d % 4]);
        out[c] = loop_sum4(p);
    }
}

static void neon_col4_f32(float *out, const float *a, const float *m, size_t m_stride, size_t rows, size_t cols) {
    col4_any(out, a, m, m_stride, rows, cols, false);
}

static void neon_col4_bf16(float *out, const float *a, const uint16_t *m, size_t m_stride, size_t rows, size_t cols) {
    col4_any(out, a, m, m_stride, rows, cols, true);
}

/* ------------------------------------------------------------------ integer dots */

/* Sums of four vectors, one element a vector. */
INLINE int32x4_t add_across(const int32x4_t s[4]) {
    return vpaddq_s32(vpaddq_s32(s[0], s[1]), vpaddq_s32(s[2], s[3]));
}

INLINE float32x4_t add_group(float32x4_t p, int32x4_t dots, float32x4_t ws, float xs) {
    return vfmaq_f32(p, vcvtq_f32_s32(dots), vmulq_f32(ws, vdupq_n_f32(xs)));
}

/* ------------------------------------------------------------------ Q8 */

static int32_t dot_int8(const int8_t *x, const int8_t *w, size_t n) {
    int32x4_t acc = vdupq_n_s32(0);
    size_t i = 0;
    for (; i + 16 <= n; i += 16) acc = vdotq_s32(acc, vld1q_s8(w + i), vld1q_s8(x + i));
    int32_t sum = vaddvq_s32(acc);
    for (; i < n; i++) sum += x[i] * w[i];
    return sum;
}

/* Dots of four weight rows of a whole group with nx input rows. */
INLINE void group_dots(int32x4_t dots[4], const int8_t *const x[4], size_t nx, const int8_t *w) {
    int32x4_t s[4][4];
    for (size_t i = 0; i < nx; i++)
        for (size_t r = 0; r < 4; r++) s[i][r] = vdupq_n_s32(0);
    for (size_t at = 0; at < MS_Q8_WEIGHT_GROUP; at += 16) {
        int8x16_t weight[4];
        for (size_t r = 0; r < 4; r++) weight[r] = vld1q_s8(w + r * MS_Q8_WEIGHT_GROUP + at);
        for (size_t i = 0; i < nx; i++) {
            int8x16_t value = vld1q_s8(x[i] + at);
            for (size_t r = 0; r < 4; r++) s[i][r] = vdotq_s32(s[i][r], weight[r], value);
        }
    }
    for (size_t i = 0; i < nx; i++) dots[i] = add_across(s[i]);
}

/* Eight weight rows for nx (1, 2 or 4, constant after inlining) input rows from row `first` on. */
INLINE void block8_q8(float *out, size_t out_stride, const ms_cpu_q8 *x, size_t first, size_t nx, const int8_t *data,
                      const float *scales, uint32_t cols) {
    float32x4_t p[4][2][4]; /* [input row][four weight rows][g % 4] */
    const int8_t *xq[4];
    const float *xs[4];
    for (size_t i = 0; i < nx; i++) {
        xq[i] = ms_cpu_q8_row(x, first + i);
        xs[i] = ms_cpu_q8_scales(x, first + i);
        for (size_t h = 0; h < 2; h++) clear(p[i][h], 4);
    }
    uint32_t groups = ms_q8_groups(cols);
    for (uint32_t g = 0; g < groups; g++) {
        size_t at = (size_t)g * MS_Q8_WEIGHT_GROUP;
        uint32_t n = ms_q8_group_cols(cols, g);
        const int8_t *here[4];
        for (size_t i = 0; i < nx; i++) here[i] = xq[i] + at;
        for (size_t h = 0; h < 2; h++) {
            const int8_t *w = data + at * MS_Q8_BLOCK_ROWS + h * V * n;
            int32x4_t dots[4];
            if (n == MS_Q8_WEIGHT_GROUP) {
                group_dots(dots, here, nx, w);
            } else {
                for (size_t i = 0; i < nx; i++) {
                    int32_t d[V];
                    for (size_t r = 0; r < V; r++) d[r] = dot_int8(here[i], w + r * n, n);
                    dots[i] = vld1q_s32(d);
                }
            }
            float32x4_t ws = vld1q_f32(scales + (size_t)g * MS_Q8_BLOCK_ROWS + h * V);
            for (size_t i = 0; i < nx; i++) p[i][h][g % 4] = add_group(p[i][h][g % 4], dots[i], ws, xs[i][g]);
        }
    }
    for (size_t i = 0; i < nx; i++)
        for (size_t h = 0; h < 2; h++) vst1q_f32(out + i * out_stride + h * V, sum4(p[i][h]));
}

static void neon_block_q8(float *out, size_t out_stride, const ms_cpu_q8 *x, size_t nx, const int8_t *data,
                          const float *scales, uint32_t rows, uint32_t cols) {
    size_t i = 0;
    if (rows == MS_Q8_BLOCK_ROWS) {
        for (; i + 4 <= nx; i += 4) block8_q8(out + i * out_stride, out_stride, x, i, 4, data, scales, cols);
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

/* 2^(e - 128) of four scale bytes; a subnormal for e < 2. */
INLINE float32x4_t half_scales(const uint8_t *e) {
    uint32_t bytes;
    memcpy(&bytes, e, sizeof bytes);
    uint32x4_t v = vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(bytes))));
    uint32x4_t normal = vshlq_n_u32(vsubq_u32(v, vdupq_n_u32(1)), 23);
    uint32x4_t tiny = vshlq_u32(vdupq_n_u32(0x200000), vreinterpretq_s32_u32(v));
    return vreinterpretq_f32_u32(vbslq_u32(vcltq_u32(v, vdupq_n_u32(2)), tiny, normal));
}

/* A tile for nx (1, 2 or 4, constant after inlining) input rows from row `first` on. */
INLINE void tile_rows(float *out, size_t out_stride, const ms_cpu_q8 *x, size_t first, size_t nx, const uint8_t *tile,
                      uint32_t groups) {
    enum { FOURS = MX_TILE / V };
    const uint8_t *scales = tile + (size_t)groups * MX_TILE * MX_BYTES;
    const int8x16_t table = vld1q_s8(ms_e2m1_doubled);
    const int8_t *xq[4];
    const float *xs[4];
    float32x4_t p[4][FOURS][4]; /* [input row][four weight rows][g % 4] */
    for (size_t i = 0; i < nx; i++) {
        xq[i] = ms_cpu_q8_row(x, first + i);
        xs[i] = ms_cpu_q8_scales(x, first + i);
        for (size_t o = 0; o < FOURS; o++) clear(p[i][o], 4);
    }
    for (uint32_t g = 0; g < groups; g++) {
        const uint8_t *w = tile + (size_t)g * MX_TILE * MX_BYTES;
        int8x16_t even[4], odd[4];
        for (size_t i = 0; i < nx; i++) {
            even[i] = vld1q_s8(xq[i] + (size_t)g * MX_GROUP);
            odd[i] = vld1q_s8(xq[i] + (size_t)g * MX_GROUP + MX_BYTES);
        }
        for (size_t o = 0; o < FOURS; o++) {
            int8x16_t low[4], high[4];
            for (size_t r = 0; r < 4; r++) {
                uint8x16_t bytes = vld1q_u8(w + (o * V + r) * MX_BYTES);
                low[r] = vqtbl1q_s8(table, vandq_u8(bytes, vdupq_n_u8(15)));
                high[r] = vqtbl1q_s8(table, vshrq_n_u8(bytes, 4));
            }
            float32x4_t ws = half_scales(scales + (size_t)g * MX_TILE + o * V);
            for (size_t i = 0; i < nx; i++) {
                int32x4_t s[4];
                for (size_t r = 0; r < 4; r++)
                    s[r] = vdotq_s32(vdotq_s32(vdupq_n_s32(0), low[r], even[i]), high[r], odd[i]);
                p[i][o][g % 4] = add_group(p[i][o][g % 4], add_across(s), ws, xs[i][g]);
            }
        }
    }
    for (size_t i = 0; i < nx; i++)
        for (size_t o = 0; o < FOURS; o++) vst1q_f32(out + i * out_stride + o * V, sum4(p[i][o]));
}

static void neon_tile_mxfp4(float *out, size_t out_stride, const ms_cpu_q8 *x, size_t nx, const uint8_t *tile,
                            uint32_t groups) {
    size_t i = 0;
    for (; i + 4 <= nx; i += 4) tile_rows(out + i * out_stride, out_stride, x, i, 4, tile, groups);
    for (; i + 2 <= nx; i += 2) tile_rows(out + i * out_stride, out_stride, x, i, 2, tile, groups);
    if (i < nx) tile_rows(out + i * out_stride, out_stride, x, i, 1, tile, groups);
}

/* ------------------------------------------------------------------ quantising */

/* Largest |x| as bits, which order like the values and put NaN and infinity last; n % 4 == 0. */
INLINE uint32_t abs_max_bits(const float *x, size_t n) {
    uint32x4_t m = vdupq_n_u32(0);
    for (size_t i = 0; i < n; i += V) m = vmaxq_u32(m, vreinterpretq_u32_f32(vabsq_f32(vld1q_f32(x + i))));
    return vmaxvq_u32(m);
}

/* 16 values times inv, rounded half to even: |x * inv| < 127.5, so narrowing loses nothing. */
INLINE int8x16_t round16(const float *x, float inv) {
    int16x4_t v[4];
    for (size_t i = 0; i < 4; i++) v[i] = vmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + i * V), inv)));
    return vcombine_s8(vmovn_s16(vcombine_s16(v[0], v[1])), vmovn_s16(vcombine_s16(v[2], v[3])));
}

/* A group of n % 16 == 0 values; false: the group is stored as zeros. */
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

static void neon_quantize(int8_t *q, float *scales, const float *x, size_t n, size_t group) {
    for (size_t at = 0; at < n; at += group) {
        size_t count = n - at < group ? n - at : group;
        float *scale = scales + at / group, inv;
        if (count % 16) {
            (void)ms_q8_group(q + at, scale, x + at, count);
        } else if (!group_scale(scale, &inv, x + at, count)) {
            memset(q + at, 0, count);
        } else {
            for (size_t i = at; i < at + count; i += 16) vst1q_s8(q + i, round16(x + i, inv));
        }
    }
}

static void neon_quantize_split(int8_t *q, float *scales, const float *x, size_t n) {
    for (size_t at = 0; at < n; at += MX_GROUP) {
        float inv;
        int8x16_t a = vdupq_n_s8(0), b = a;
        if (group_scale(scales + at / MX_GROUP, &inv, x + at, MX_GROUP)) {
            a = round16(x + at, inv);
            b = round16(x + at + 16, inv);
        }
        vst1q_s8(q + at, vuzp1q_s8(a, b));
        vst1q_s8(q + at + MX_BYTES, vuzp2q_s8(a, b));
    }
}

/* ------------------------------------------------------------------ elementary functions, as base/fmath.h */

/* p * x + c, a step of Horner's rule. */
INLINE float32x4_t horner(float32x4_t p, float32x4_t x, float c) { return vfmaq_f32(vdupq_n_f32(c), p, x); }

INLINE float32x4_t exp4(float32x4_t x) {
    const float32x4_t shift = vdupq_n_f32(MS_EXP_SHIFT);
    float32x4_t t = vfmaq_f32(shift, x, vdupq_n_f32(MS_EXP_LOG2E));
    float32x4_t k = vsubq_f32(t, shift);
    float32x4_t r = vfmaq_f32(x, k, vdupq_n_f32(-MS_EXP_LN2_HI));
    r = vfmaq_f32(r, k, vdupq_n_f32(-MS_EXP_LN2_LO));
    float32x4_t p = vdupq_n_f32(MS_EXP_C0);
    p = horner(p, r, MS_EXP_C1);
    p = horner(p, r, MS_EXP_C2);
    p = horner(p, r, MS_EXP_C3);
    p = horner(p, r, MS_EXP_C4);
    p = horner(p, r, MS_EXP_C5);
    p = vaddq_f32(vfmaq_f32(r, p, vmulq_f32(r, r)), vdupq_n_f32(1.0f));
    uint32x4_t n = vsubq_u32(vreinterpretq_u32_f32(t), vreinterpretq_u32_f32(shift));
    uint32x4_t power = vshlq_n_u32(vaddq_u32(n, vdupq_n_u32(127)), 23);
    float32x4_t y = vmulq_f32(p, vreinterpretq_f32_u32(power));
    y = vbslq_f32(vcltq_f32(x, vdupq_n_f32(MS_EXP_MIN)), vdupq_n_f32(0.0f), y);
    const float32x4_t infinity = vreinterpretq_f32_u32(vdupq_n_u32(0x7f800000u));
    return vbslq_f32(vcgtq_f32(x, vdupq_n_f32(MS_EXP_MAX)), infinity, y);
}

INLINE float32x4_t sigmoid4(float32x4_t x) {
    const float32x4_t one = vdupq_n_f32(1.0f);
    return vdivq_f32(one, vaddq_f32(one, exp4(vnegq_f32(x))));
}

INLINE float32x4_t tanh4(float32x4_t x) {
    const float32x4_t one = vdupq_n_f32(1.0f);
    float32x4_t a = vabsq_f32(x), z = vmulq_f32(a, a), p = vdupq_n_f32(MS_TANH_T0);
    p = horner(p, z, MS_TANH_T1);
    p = horner(p, z, MS_TANH_T2);
    p = horner(p, z, MS_TANH_T3);
    p = horner(p, z, MS_TANH_T4);
    float32x4_t small = vfmaq_f32(a, vmulq_f32(p, z), a);
    float32x4_t e = vaddq_f32(exp4(vaddq_f32(a, a)), one);
    float32x4_t large = vsubq_f32(one, vdivq_f32(vdupq_n_f32(2.0f), e));
    float32x4_t y = vbslq_f32(vcltq_f32(a, vdupq_n_f32(MS_TANH_BRANCH)), small, large);
    uint32x4_t sign = vandq_u32(vreinterpretq_u32_f32(x), vdupq_n_u32(0x80000000u));
    return vreinterpretq_f32_u32(vorrq_u32(vreinterpretq_u32_f32(y), sign));
}

static void neon_exp_sub(float *out, const float *x, float m, size_t n) {
    size_t i = 0;
    for (; i + V <= n; i += V) vst1q_f32(out + i, exp4(vsubq_f32(vld1q_f32(x + i), vdupq_n_f32(m))));
    for (; i < n; i++) out[i] = ms_exp(x[i] - m);
}

static void neon_sigmoid(float *out, const float *x, size_t n) {
    size_t i = 0;
    for (; i + V <= n; i += V) vst1q_f32(out + i, sigmoid4(vld1q_f32(x + i)));
    for (; i < n; i++) out[i] = ms_sigmoid(x[i]);
}

static void neon_gate(float *out, const float *x, const float *g, size_t n) {
    size_t i = 0;
    for (; i + V <= n; i += V) vst1q_f32(out + i, vmulq_f32(vld1q_f32(x + i), sigmoid4(vld1q_f32(g + i))));
    for (; i < n; i++) out[i] = x[i] * ms_sigmoid(g[i]);
}

static void neon_situ(float *out, const float *g, const float *u, size_t n, float beta, float linear_beta) {
    const float32x4_t b = vdupq_n_f32(beta), lb = vdupq_n_f32(linear_beta);
    size_t i = 0;
    for (; i + V <= n; i += V) {
        float32x4_t gv = vld1q_f32(g + i), uv = vld1q_f32(u + i);
        float32x4_t capped = vmulq_f32(b, tanh4(vdivq_f32(gv, b)));
        float32x4_t linear = vmulq_f32(lb, tanh4(vdivq_f32(uv, lb)));
        vst1q_f32(out + i, vmulq_f32(vmulq_f32(capped, sigmoid4(gv)), linear));
    }
    for (; i < n; i++) {
        float capped = beta * ms_tanh(g[i] / beta);
        out[i] = capped * ms_sigmoid(g[i]) * (linear_beta * ms_tanh(u[i] / linear_beta));
    }
}

static void neon_decay(float *out, const float *e, const float *bias, float a, float bound, size_t n) {
    const float32x4_t av = vdupq_n_f32(a), bv = vdupq_n_f32(bound);
    size_t i = 0;
    for (; i + V <= n; i += V) {
        float32x4_t x = vmulq_f32(av, vaddq_f32(vld1q_f32(e + i), vld1q_f32(bias + i)));
        vst1q_f32(out + i, exp4(vmulq_f32(bv, sigmoid4(x))));
    }
    for (; i < n; i++) out[i] = ms_exp(bound * ms_sigmoid(a * (e[i] + bias[i])));
}

/* ------------------------------------------------------------------ KDA */

enum { KDA_VECTORS = MS_CPU_KDA_COLUMNS / V };

/* Row i of the decay pass: work = alpha * from, partial sum q = i % 4 += k * work. */
INLINE void decay_row(float32x4_t p[KDA_VECTORS][4], size_t q, float *work, const float *from, float alpha, float k) {
    for (size_t v = 0; v < KDA_VECTORS; v++) {
        float32x4_t s = vmulq_n_f32(vld1q_f32(from + v * V), alpha);
        vst1q_f32(work + v * V, s);
        p[v][q] = vfmaq_n_f32(p[v][q], s, k);
    }
}

/* The same row of the write pass: to = work + k * delta, partial sum q += query * to. */
INLINE void write_row(float32x4_t p[KDA_VECTORS][4], size_t q, float *to, const float *work,
                      const float32x4_t delta[KDA_VECTORS], float k, float query) {
    for (size_t v = 0; v < KDA_VECTORS; v++) {
        float32x4_t s = vfmaq_n_f32(vld1q_f32(work + v * V), delta[v], k);
        vst1q_f32(to + v * V, s);
        p[v][q] = vfmaq_n_f32(p[v][q], s, query);
    }
}

/* The 16 columns live in `work` between the passes and tokens: state rows are too far apart to stay in the first
 * level cache together. */
static void kda_columns16(const ms_cpu_kda_run *run) {
    enum { C = MS_CPU_KDA_COLUMNS };
    size_t dim = run->dim, whole = dim / 4 * 4;
    for (size_t t = 0; t < run->tokens; t++) {
        const float *q = run->q + t * dim, *k = run->k + t * dim, *alpha = run->alpha + t * dim;
        const float *from = t == 0 ? run->state_in : run->work;
        size_t from_stride = t == 0 ? dim : C;
        bool last = t + 1 == run->tokens;
        float *to = last ? run->state : run->work, *work = run->work;
        size_t to_stride = last ? dim : C;
        float32x4_t p[KDA_VECTORS][4], delta[KDA_VECTORS];
        clear(p[0], 4 * KDA_VECTORS);
        for (size_t i = 0; i < whole; i += 4)
            for (size_t r = 0; r < 4; r++)
                decay_row(p, r, work + (i + r) * C, from + (i + r) * from_stride, alpha[i + r], k[i + r]);
        for (size_t r = 0; r < 3; r++) { /* dim % 4 more */
            size_t i = whole + r;
            if (i >= dim) break;
            decay_row(p, r, work + i * C, from + i * from_stride, alpha[i], k[i]);
        }
        for (size_t v = 0; v < KDA_VECTORS; v++)
            delta[v] = vmulq_n_f32(vsubq_f32(vld1q_f32(run->v + t * dim + v * V), sum4(p[v])), run->beta[t]);
        clear(p[0], 4 * KDA_VECTORS);
        for (size_t i = 0; i < whole; i += 4)
            for (size_t r = 0; r < 4; r++)
                write_row(p, r, to + (i + r) * to_stride, work + (i + r) * C, delta, k[i + r], q[i + r]);
        for (size_t r = 0; r < 3; r++) {
            size_t i = whole + r;
            if (i >= dim) break;
            write_row(p, r, to + i * to_stride, work + i * C, delta, k[i], q[i]);
        }
        for (size_t v = 0; v < KDA_VECTORS; v++) vst1q_f32(run->o + t * dim + v * V, sum4(p[v]));
    }
}

static void neon_kda_columns(const ms_cpu_kda_run *run, size_t columns) {
    if (columns == MS_CPU_KDA_COLUMNS && run->tokens)
        kda_columns16(run);
    else
        loop_kda_columns(run, columns);
}

const ms_cpu_kernels ms_cpu_kernels_neon = {
    .name = "neon",
    .dot = neon_dot,
    .sum = neon_sum,
    .rows_f32 = neon_rows_f32,
    .rows_bf16 = neon_rows_bf16,
    .col4_f32 = neon_col4_f32,
    .col4_bf16 = neon_col4_bf16,
    .block_q8 = neon_block_q8,
    .tile_mxfp4 = neon_tile_mxfp4,
    .quantize = neon_quantize,
    .quantize_split = neon_quantize_split,
    .exp_sub = neon_exp_sub,
    .sigmoid = neon_sigmoid,
    .gate = neon_gate,
    .situ = neon_situ,
    .decay = neon_decay,
    MS_CPU_KERNELS_LOOPS,
    .kda_columns = neon_kda_columns,
};

#endif
