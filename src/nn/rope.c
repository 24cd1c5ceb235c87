#include "nn/rope.h"

/* ln 2 in two parts, pi / 2 in three; products of the first, short ones with the integers that they meet are exact. */
static const double ln2_hi = 0x1.62e42feep-1, ln2_lo = 0x1.a39ef35793c76p-33;
static const double half_pi_hi = 0x1.921fbp+0, half_pi_mid = 0x1.5110bp-22, half_pi_lo = 0x1.18469898cc517p-44;
static const double shift = 0x1.8p52; /* adding it rounds to an integer */

/* ln x for x >= 1: x = m 2^k with m around 1, then the series of atanh. */
static double natural_log(double x) {
    double k = 0;
    while (x > 1.5) {
        x = x / 2;
        k = k + 1;
    }
    double s = (x - 1) / (x + 1), z = s * s, sum = 0;
    for (int n = 41; n >= 1; n -= 2) sum = sum * z + 1.0 / n;
    return k * ln2_hi + (k * ln2_lo + 2 * (s * sum));
}

/* e^x for -64 < x <= 0. */
static double natural_exp(double x) {
    double k = (x * 1.4426950408889634 + shift) - shift, r = (x - k * ln2_hi) - k * ln2_lo, sum = 1, power = 1;
    for (int n = 20; n >= 1; n--) sum = sum * (r / n) + 1;
    for (; k < 0; k = k + 1) power = power / 2;
    return sum * power;
}

static double sine(double r) {
    double z = r * r, sum = 1;
    for (int n = 20; n >= 2; n -= 2) sum = 1 - sum * (z / (n * (n + 1)));
    return r * sum;
}

static double cosine(double r) {
    double z = r * r, sum = 1;
    for (int n = 20; n >= 2; n -= 2) sum = 1 - sum * (z / (n * (n - 1)));
    return sum;
}

/* The quarter turn k, below 2^32, and the rest within pi / 4. */
static void turn(double a, double *s, double *c) {
    double k = (a * 0.63661977236758134 + shift) - shift, r = ((a - k * half_pi_hi) - k * half_pi_mid) - k * half_pi_lo;
    double y = sine(r), x = cosine(r);
    double quarter = k - 4 * ((k / 4 - 0.375 + shift) - shift); /* k mod 4, k >= 0 */
    if (quarter == 0)
        *s = y, *c = x;
    else if (quarter == 1)
        *s = x, *c = -y;
    else if (quarter == 2)
        *s = -y, *c = -x;
    else
        *s = -x, *c = y;
}

void ms_rope_frequencies(float *out, double theta, uint32_t rotary) {
    double log_theta = natural_log(theta);
    for (uint32_t j = 0; j < rotary / 2; j++) out[j] = (float)natural_exp(-(2.0 * j / rotary) * log_theta);
}

void ms_rope_rows(float *out, const float *frequencies, uint32_t rotary, uint64_t first, uint32_t rows) {
    uint32_t half = rotary / 2;
    for (uint32_t i = 0; i < rows; i++, out += rotary) {
        float position = (float)(first + i);
        for (uint32_t j = 0; j < half; j++) {
            double s, c;
            float angle = position * frequencies[j];
            turn((double)angle, &s, &c);
            out[j] = (float)c;
            out[half + j] = (float)s;
        }
    }
}
