/* synth_gauss.c: experts as a trained model's look to a quantiser: Gaussian weights whose size varies from row to row
 * and from column to column, rounded to E2M1 under the smallest scale that holds the group's largest.
 *
 * A code and its scale byte lie in different tensors, so each is made from the group's 32 weights, which are a function
 * of the matrix' key, row and place. Threads: pure functions over a finished table.
 */
#include <math.h>
#include <stdlib.h>

#include "base/bytes.h"
#include "lane/synth.h"

enum { GROUP = 32, LEVELS = MS_NORMAL_LEVELS };

/* Deviations of the row and column factors, and the size that gives the model its place between powers of two. */
static const float row_spread = 0.15f, column_spread = 0.23f, unit = 0.0392f;
static const uint64_t row_stream = UINT64_C(0x726f77), column_stream = UINT64_C(0x636f6c);

/* Quantiles of the normal distribution at the middles of equal parts, by Newton's method; behind them the column factors
 * that they stand for. */
float *ms_synth_normal_table(void) {
    float *t = malloc(2 * LEVELS * sizeof *t);
    if (!t) return NULL;
    double x = 0;
    for (int i = LEVELS / 2; i < LEVELS; i++) {
        double upper = ((double)(LEVELS - i) - 0.5) / LEVELS;
        for (int n = 0; n < 4; n++)
            x += (0.5 * erfc(x * 0.70710678118654752) - upper) * 2.50662827463100050 * exp(0.5 * x * x);
        t[i] = (float)x;
        t[LEVELS - 1 - i] = -t[i];
    }
    for (int i = 0; i < LEVELS; i++) t[LEVELS + i] = expf(column_spread * t[i]);
    return t;
}

static inline float pick(const float *table, uint64_t r, unsigned part) { return table[r >> 16 * part & 0xffff]; }

/* The weights of a group; gives its scale exponent: the least with which 6 holds the largest. */
static int group_weights(float w[GROUP], const float *table, uint64_t key, uint64_t group, uint64_t groups) {
    uint64_t row = group / groups, first = group % groups * (GROUP / 4);
    float size = unit * expf(row_spread * pick(table, ms_synth_word(key ^ row_stream, row), 0)), most = 0;
    for (unsigned i = 0; i < GROUP; i += 4) {
        uint64_t values = ms_synth_word(key, group * (GROUP / 4) + i / 4);
        uint64_t columns = ms_synth_word(key ^ column_stream, first + i / 4);
        for (unsigned j = 0; j < 4; j++) {
            w[i + j] = size * pick(table + LEVELS, columns, j) * pick(table, values, j);
            float a = fabsf(w[i + j]);
            most = a > most ? a : most;
        }
    }
    int exponent;
    float fraction = frexpf(most / 6, &exponent); /* in [1/2, 1): an exact power of two holds itself */
    if (fraction == 0.5f) exponent--;
    return exponent < -127 ? -127 : exponent > 127 ? 127 : exponent;
}

static uint8_t code(float w, float inverse) {
    static const float border[7] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
    float a = fabsf(w) * inverse;
    unsigned c = 0;
    for (int i = 0; i < 7; i++) c += a >= border[i];
    return (uint8_t)(c | (unsigned)(signbit(w) != 0) << 3);
}

void ms_synth_gauss_codes(uint8_t *out, const float *table, uint64_t key, uint64_t word, size_t words, uint64_t groups) {
    float w[GROUP];
    float inverse = 0;
    for (size_t i = 0; i < words; i++, word++, out += 8) {
        unsigned half = word % 2 ? GROUP / 2 : 0;
        if (i == 0 || half == 0) inverse = ldexpf(1, -group_weights(w, table, key, word / 2, groups));
        for (unsigned j = 0; j < 8; j++)
            out[j] = (uint8_t)(code(w[half + 2 * j], inverse) | code(w[half + 2 * j + 1], inverse) << 4);
    }
}

void ms_synth_gauss_scales(uint8_t *out, const float *table, uint64_t key, uint64_t word, size_t words, uint64_t groups) {
    float w[GROUP];
    for (uint64_t i = 0; i < 8 * words; i++)
        out[i] = (uint8_t)(127 + group_weights(w, table, key, 8 * word + i, groups));
}
