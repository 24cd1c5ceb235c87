/* sampler.c: picks a token from logits, the same one on every machine (docs/formats.md, "Sampler").
 *
 * Only + - * / in double and compares take part, each sum in one fixed order; no libm result does.
 *
 * Owns: three temporary arrays of a pick.  Threads: one sampler belongs to one thread.
 * Invariants: candidates are ordered by (logit descending, id ascending); weights[0] is 1; draws grows by one with
 *   every successful pick at a temperature above 0 and never otherwise.
 * Errors: MS_ERR_USAGE (option out of range), MS_ERR_NUMERIC (NaN, +inf while sampling, nothing above -inf),
 *   MS_ERR_MEMORY.
 */
#include "nn/sampler.h"

#include "base/bytes.h"
#include "base/error.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PHILOX_M0 UINT32_C(0xD2511F53)
#define PHILOX_M1 UINT32_C(0xCD9E8D57)
#define PHILOX_W0 UINT32_C(0x9E3779B9)
#define PHILOX_W1 UINT32_C(0xBB67AE85)

#define EXP_LOG2E  0x1.71547652b82fep+0
#define EXP_SHIFT  0x1.8p+52       /* adding it rounds to an integer */
#define EXP_LN2_HI 0x1.62e42feep-1 /* short, so that k times it is exact */
#define EXP_LN2_LO 0x1.a39ef35793c76p-33
#define CUTOFF     (-87.0)

enum { PHILOX_ROUNDS = 10, SORT_BITS = 11, SORT_BUCKETS = 1 << SORT_BITS };

void ms_philox4x32(uint32_t out[4], const uint32_t counter[4], const uint32_t key[2]) {
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3], k0 = key[0], k1 = key[1];
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        uint64_t p0 = (uint64_t)PHILOX_M0 * c0, p1 = (uint64_t)PHILOX_M1 * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += PHILOX_W0;
        k1 += PHILOX_W1;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

double ms_sampler_uniform(int64_t seed, uint64_t draw) {
    uint64_t bits = (uint64_t)seed;
    uint32_t key[2] = {(uint32_t)bits, (uint32_t)(bits >> 32)};
    uint32_t counter[4] = {(uint32_t)draw, (uint32_t)(draw >> 32), 0, 0}, word[4];
    ms_philox4x32(word, counter, key);
    return (double)(((uint64_t)word[1] << 32 | word[0]) >> 11) * 0x1p-53;
}

void ms_sampler_greedy(ms_sampler *s) { *s = (ms_sampler){.top_p = 1.0}; }

/* Comparisons are written so that a NaN option fails them. */
static ms_status check_options(const ms_sampler *s, uint32_t vocab, ms_error *err) {
    if (!(s->temperature >= 0.0 && s->temperature <= 2.0)) {
        return ms_fail(err, MS_ERR_USAGE, "temperature: expected 0 to 2, found %g", s->temperature);
    }
    if (!(s->top_p > 0.0 && s->top_p <= 1.0)) {
        return ms_fail(err, MS_ERR_USAGE, "top_p: expected more than 0, at most 1, found %g", s->top_p);
    }
    if (!(s->min_p >= 0.0 && s->min_p < 1.0)) {
        return ms_fail(err, MS_ERR_USAGE, "min_p: expected at least 0, less than 1, found %g", s->min_p);
    }
    if (vocab == 0) return ms_fail(err, MS_ERR_USAGE, "vocab: expected at least 1 logit, found 0");
    return MS_OK;
}

static bool may_pick(const ms_sampler *s, uint32_t i) { return !s->allowed || (s->allowed[i >> 6] >> (i & 63) & 1); }

static ms_status first_maximum(const ms_sampler *s, const float *logits, uint32_t vocab, uint32_t *best, ms_error *err) {
    uint32_t found = vocab;
    for (uint32_t i = 0; i < vocab; i++) {
        if (isnan(logits[i])) return ms_fail(err, MS_ERR_NUMERIC, "logit of token %" PRIu32 " is not a number", i);
        if (may_pick(s, i) && (found == vocab || logits[i] > logits[found])) found = i;
    }
    if (found == vocab) return ms_fail(err, MS_ERR_USAGE, "allowed: expected at least 1 token, found 0");
    *best = found;
    if (logits[found] == -INFINITY) {
        return ms_fail(err, MS_ERR_NUMERIC, "all %" PRIu32 " logits are -infinity", vocab);
    }
    return MS_OK;
}

/* (l - max) / temperature: 0 for the best, -infinity at the far end. */
static double exponent_of(float logit, float maximum, double temperature) {
    return ((double)logit - (double)maximum) / temperature;
}

/* exp(x) for CUTOFF <= x <= 0 by + - * alone: x = k ln 2 + r, the series of exp(r) up to r^11, times 2^k. */
static double weight_of(double x) {
    double t = x * EXP_LOG2E + EXP_SHIFT, k = t - EXP_SHIFT;
    double r = x - k * EXP_LN2_HI - k * EXP_LN2_LO, p = 1.0 / 39916800;
    p = p * r + 1.0 / 3628800;
    p = p * r + 1.0 / 362880;
    p = p * r + 1.0 / 40320;
    p = p * r + 1.0 / 5040;
    p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120;
    p = p * r + 1.0 / 24;
    p = p * r + 1.0 / 6;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    uint64_t bits = (uint64_t)((int64_t)k + 1023) << 52;
    double power;
    memcpy(&power, &bits, sizeof power);
    return p * power;
}

/* Ascending keys are descending logits; both zeros give one key. */
static uint32_t sort_key(float logit) {
    uint32_t bits = logit == 0.0f ? 0 : ms_f32_bits(logit);
    return bits & 0x80000000u ? bits : ~bits & 0x7fffffffu;
}

/* A stable radix sort by the upper 32 bits; items come with ascending ids below.  After its three rounds `b` is it. */
static void sort_candidates(uint64_t *a, uint64_t *b, size_t count) {
    for (unsigned shift = 32; shift < 64; shift += SORT_BITS) {
        size_t start[SORT_BUCKETS] = {0};
        for (size_t i = 0; i < count; i++) start[a[i] >> shift & (SORT_BUCKETS - 1)]++;
        for (size_t d = 0, sum = 0; d < SORT_BUCKETS; d++) {
            size_t n = start[d];
            start[d] = sum;
            sum += n;
        }
        for (size_t i = 0; i < count; i++) b[start[a[i] >> shift & (SORT_BUCKETS - 1)]++] = a[i];
        uint64_t *swap = a;
        a = b;
        b = swap;
    }
}

/* How many of the ordered candidates top_p and min_p leave; at least one. */
static size_t filter(const ms_sampler *s, const double *weights, size_t count) {
    if (s->top_p < 1.0) {
        double total = 0.0, sum = 0.0;
        for (size_t i = 0; i < count; i++) total += weights[i];
        size_t kept = 0;
        while (kept < count) {
            sum += weights[kept++];
            if (sum >= s->top_p * total) break;
        }
        count = kept;
    }
    if (s->min_p > 0.0) {
        size_t kept = 1;
        while (kept < count && weights[kept] >= s->min_p * weights[0]) kept++;
        count = kept;
    }
    return count;
}

static size_t draw_index(const double *weights, size_t count, double uniform) {
    double total = 0.0, sum = 0.0;
    for (size_t i = 0; i < count; i++) total += weights[i];
    double target = uniform * total;
    for (size_t i = 0; i < count; i++) {
        sum += weights[i];
        if (sum > target) return i;
    }
    return count - 1;
}

static ms_status sample(ms_sampler *s, const float *logits, uint32_t vocab, float maximum, uint32_t *token,
                        ms_error *err) {
    uint64_t *items = malloc(vocab * sizeof *items), *sorted = malloc(vocab * sizeof *sorted);
    double *weights = malloc(vocab * sizeof *weights);
    ms_status status = MS_OK;
    if (items && sorted && weights) {
        size_t count = 0;
        for (uint32_t i = 0; i < vocab; i++) {
            if (may_pick(s, i) && exponent_of(logits[i], maximum, s->temperature) >= CUTOFF) {
                items[count++] = (uint64_t)sort_key(logits[i]) << 32 | i;
            }
        }
        sort_candidates(items, sorted, count);
        if (s->top_k > 0 && s->top_k < count) count = s->top_k;
        for (size_t i = 0; i < count; i++) {
            weights[i] = weight_of(exponent_of(logits[(uint32_t)sorted[i]], maximum, s->temperature));
        }
        count = filter(s, weights, count);
        *token = (uint32_t)sorted[draw_index(weights, count, ms_sampler_uniform(s->seed, s->draws))];
        s->draws++;
    } else {
        status = ms_fail_memory(err, "sampling candidates", vocab * (2 * sizeof *items + sizeof *weights));
    }
    free(items);
    free(sorted);
    free(weights);
    return status;
}

ms_status ms_sampler_pick(ms_sampler *s, const float *logits, uint32_t vocab, uint32_t *token, ms_error *err) {
    uint32_t best = 0;
    MS_TRY(check_options(s, vocab, err));
    MS_TRY(first_maximum(s, logits, vocab, &best, err));
    if (s->temperature == 0.0) {
        *token = best;
        return MS_OK;
    }
    if (logits[best] == INFINITY) {
        return ms_fail(err, MS_ERR_NUMERIC, "logit of token %" PRIu32 " is +infinity: no distribution to sample", best);
    }
    return sample(s, logits, vocab, logits[best], token, err);
}
