/* The sampler: generator vectors, greedy, every filter, distribution, determinism, refusals. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/error.h"
#include "nn/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ANY_SEED = 20240607 };

static ms_sampler sampling(double temperature, int64_t seed) {
    ms_sampler s;
    ms_sampler_greedy(&s);
    s.temperature = temperature;
    s.seed = seed;
    return s;
}

static uint32_t pick(ms_sampler *s, const float *logits, uint32_t vocab) {
    uint32_t token = UINT32_MAX;
    ms_error err;
    if (ms_sampler_pick(s, logits, vocab, &token, &err) != MS_OK) fail_msg("%s", err.message);
    assert_true(token < vocab);
    return token;
}

/* Counts of `draws` picks. */
static void tally(ms_sampler *s, const float *logits, uint32_t vocab, uint32_t draws, uint32_t *counts) {
    memset(counts, 0, vocab * sizeof *counts);
    for (uint32_t i = 0; i < draws; i++) counts[pick(s, logits, vocab)]++;
}

/* ------------------------------------------------------------------ generator */

static void philox_gives_the_published_vectors(void **state) {
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], want[4];
    } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        uint32_t out[4];
        ms_philox4x32(out, known[i].counter, known[i].key);
        assert_memory_equal(out, known[i].want, sizeof out);
    }
}

static void uniform_is_made_of_the_first_two_words(void **state) {
    (void)state;
    assert_true(ms_sampler_uniform(0, 0) == (double)(UINT64_C(0xe169c58d6627e8d5) >> 11) / 9007199254740992.0);
    for (uint64_t d = 0; d < 1000; d++) {
        double u = ms_sampler_uniform(INT64_MIN + 5, d << 32 | d);
        assert_true(u >= 0.0 && u < 1.0);
    }
    assert_true(ms_sampler_uniform(1, 0) != ms_sampler_uniform(INT64_C(1) << 32, 0));
    assert_true(ms_sampler_uniform(1, 1) != ms_sampler_uniform(1, UINT64_C(1) << 32));
    assert_true(ms_sampler_uniform(-1, 0) != ms_sampler_uniform(1, 0));
}

/* Fixed picks: a change of the algorithm on any machine or compiler shows here. */
static void picks_are_the_documented_ones(void **state) {
    (void)state;
    float logits[1000];
    uint32_t x = 1;
    for (int i = 0; i < 1000; i++) logits[i] = (float)((x = x * 1664525u + 1013904223u) >> 20) / 512.0f;
    ms_sampler s = sampling(0.8, 42);
    s.top_k = 200;
    s.top_p = 0.9;
    s.min_p = 0.02;
    static const uint32_t want[8] = {614, 426, 526, 559, 313, 113, 587, 41};
    for (int i = 0; i < 8; i++) assert_int_equal(pick(&s, logits, 1000), want[i]);
    assert_int_equal(s.draws, 8);
    s = sampling(1.0, -7);
    static const uint32_t plain[8] = {673, 888, 673, 526, 413, 681, 489, 356};
    for (int i = 0; i < 8; i++) assert_int_equal(pick(&s, logits, 1000), plain[i]);
}

/* ------------------------------------------------------------------ greedy */

static void greedy_takes_the_first_maximum(void **state) {
    (void)state;
    ms_sampler s;
    memset(&s, 0x5a, sizeof s);
    ms_sampler_greedy(&s);
    assert_true(s.temperature == 0.0 && s.top_p == 1.0 && s.min_p == 0.0);
    assert_int_equal(s.top_k, 0);
    assert_int_equal(s.seed, 0);
    assert_int_equal(pick(&s, (const float[]){-3, 5, 1, 5, 5}, 5), 1);
    assert_int_equal(pick(&s, (const float[]){-0.0f, 0.0f, -1}, 3), 0);
    assert_int_equal(pick(&s, (const float[]){-INFINITY, -INFINITY, -9}, 3), 2);
    assert_int_equal(pick(&s, (const float[]){1, INFINITY, 3, INFINITY}, 4), 1);
    assert_int_equal(pick(&s, (const float[]){-2}, 1), 0);
    assert_int_equal(s.draws, 0);
    s.top_k = 3; /* temperature 0 is greedy regardless of the others */
    s.top_p = 0.1;
    s.min_p = 0.9;
    assert_int_equal(pick(&s, (const float[]){1, 2, 3, 3}, 4), 2);
}

/* ------------------------------------------------------------------ distribution and filters */

static void counts_follow_the_softmax(void **state) {
    (void)state;
    enum { VOCAB = 6, DRAWS = 40000 };
    const float logits[VOCAB] = {0.5f, -1.0f, 2.0f, 1.25f, -0.5f, 0.0f};
    const double temperatures[] = {0.5, 1.0, 2.0};
    for (size_t t = 0; t < 3; t++) {
        ms_sampler s = sampling(temperatures[t], ANY_SEED);
        uint32_t counts[VOCAB];
        tally(&s, logits, VOCAB, DRAWS, counts);
        double total = 0, chi2 = 0;
        for (int i = 0; i < VOCAB; i++) total += exp((double)logits[i] / temperatures[t]);
        for (int i = 0; i < VOCAB; i++) {
            double want = DRAWS * exp((double)logits[i] / temperatures[t]) / total;
            chi2 += ((double)counts[i] - want) * ((double)counts[i] - want) / want;
        }
        assert_true(chi2 < 20.5); /* 5 degrees of freedom: 0.1 % */
        assert_int_equal(s.draws, DRAWS);
    }
}

static void top_k_keeps_the_k_best_lower_ids_first(void **state) {
    (void)state;
    enum { VOCAB = 6 };
    const float logits[VOCAB] = {1, 2, 1.5f, 2, 1.5f, 1.5f};
    uint32_t counts[VOCAB];
    ms_sampler s = sampling(2.0, ANY_SEED);
    s.top_k = 3; /* 1 and 3, then the first of the three at 1.5 */
    tally(&s, logits, VOCAB, 2000, counts);
    assert_true(counts[1] > 0 && counts[3] > 0 && counts[2] > 0);
    assert_int_equal(counts[0] + counts[4] + counts[5], 0);
    s.top_k = 1;
    tally(&s, logits, VOCAB, 100, counts);
    assert_int_equal(counts[1], 100);
    ms_sampler beyond = sampling(2.0, ANY_SEED), off = beyond;
    beyond.top_k = UINT32_MAX;
    for (int i = 0; i < 200; i++) assert_int_equal(pick(&beyond, logits, VOCAB), pick(&off, logits, VOCAB));
    const float zeros[3] = {-0.0f, 0.0f, -0.0f}; /* equal, whatever the sign */
    tally(&s, zeros, 3, 100, counts);
    assert_int_equal(counts[0], 100);
}

static void top_p_keeps_the_smallest_sufficient_set(void **state) {
    (void)state;
    const float logits[4] = {logf(0.15f), logf(0.5f), logf(0.05f), logf(0.3f)};
    static const struct {
        double top_p;
        bool kept[4];
    } cases[] = {{1e-9, {0, 1, 0, 0}}, {0.49, {0, 1, 0, 0}}, {0.51, {0, 1, 0, 1}}, {0.79, {0, 1, 0, 1}},
                 {0.81, {1, 1, 0, 1}}, {0.96, {1, 1, 1, 1}}, {1.0, {1, 1, 1, 1}}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        ms_sampler s = sampling(1.0, ANY_SEED);
        s.top_p = cases[c].top_p;
        uint32_t counts[4];
        tally(&s, logits, 4, 1000, counts);
        for (int i = 0; i < 4; i++) assert_int_equal(counts[i] > 0, cases[c].kept[i]);
    }
}

/* top_p counts among what top_k left: 0.5 of (0.5, 0.3) is 0.625 of the rest. */
static void filters_apply_in_order(void **state) {
    (void)state;
    const float logits[4] = {logf(0.5f), logf(0.3f), logf(0.15f), logf(0.05f)};
    uint32_t counts[4];
    ms_sampler s = sampling(1.0, ANY_SEED);
    s.top_k = 2;
    s.top_p = 0.6;
    tally(&s, logits, 4, 500, counts);
    assert_int_equal(counts[0], 500);
    s.top_k = 0; /* now 0.5 of everything does not reach 0.6 */
    tally(&s, logits, 4, 500, counts);
    assert_true(counts[1] > 0);
    assert_int_equal(counts[2] + counts[3], 0);
    s = sampling(2.0, ANY_SEED); /* the temperature comes first: sqrt(0.15 / 0.5) = 0.548, sqrt(0.1) = 0.316 */
    s.min_p = 0.5;
    tally(&s, logits, 4, 500, counts);
    assert_true(counts[2] > 0);
    assert_int_equal(counts[3], 0);
}

static void min_p_is_relative_to_the_best(void **state) {
    (void)state;
    const float logits[4] = {logf(0.15f), logf(0.5f), logf(0.05f), logf(0.3f)};
    static const struct {
        double min_p;
        bool kept[4];
    } cases[] = {{0.999, {0, 1, 0, 0}}, {0.59, {0, 1, 0, 1}}, {0.29, {1, 1, 0, 1}}, {0.09, {1, 1, 1, 1}}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        ms_sampler s = sampling(1.0, ANY_SEED);
        s.min_p = cases[c].min_p;
        uint32_t counts[4];
        tally(&s, logits, 4, 1000, counts);
        for (int i = 0; i < 4; i++) assert_int_equal(counts[i] > 0, cases[c].kept[i]);
    }
}

static void what_is_left_is_renormalised(void **state) {
    (void)state;
    enum { DRAWS = 20000 };
    const float logits[4] = {logf(0.4f), logf(0.1f), logf(0.2f), logf(0.3f)};
    ms_sampler s = sampling(1.0, ANY_SEED);
    s.top_k = 2;
    uint32_t counts[4];
    tally(&s, logits, 4, DRAWS, counts);
    double share = (double)counts[0] / DRAWS; /* 4/7, sigma 0.0035 */
    assert_true(fabs(share - 4.0 / 7.0) < 0.014);
}

static void extreme_logits_and_temperatures(void **state) {
    (void)state;
    const float wide[4] = {-3e38f, 3e38f, -INFINITY, 1.0f};
    ms_sampler s = sampling(4.9e-324, ANY_SEED);
    for (int i = 0; i < 20; i++) assert_int_equal(pick(&s, wide, 4), 1);
    s.temperature = 2.0;
    for (int i = 0; i < 20; i++) assert_int_equal(pick(&s, wide, 4), 1);
    const float one[3] = {-INFINITY, -50.0f, -INFINITY};
    for (int i = 0; i < 20; i++) assert_int_equal(pick(&s, one, 3), 1);
    const float single = -7.0f;
    assert_int_equal(pick(&s, &single, 1), 0);
}

static void large_vocabulary_agrees_with_a_plain_sort(void **state) {
    (void)state;
    enum { VOCAB = 20000, KEPT = 500 };
    float *logits = malloc(VOCAB * sizeof *logits);
    uint32_t *rank = malloc(VOCAB * sizeof *rank);
    assert_non_null(logits);
    assert_non_null(rank);
    uint32_t x = 9;
    for (int i = 0; i < VOCAB; i++) { /* many ties, both signs */
        x = x * 1664525u + 1013904223u;
        logits[i] = (float)((int32_t)(x >> 20) - 2048) / 256.0f;
    }
    for (uint32_t i = 0; i < VOCAB; i++) { /* rank by definition: (logit descending, id ascending) */
        rank[i] = 0;
        for (uint32_t j = 0; j < VOCAB; j++) rank[i] += logits[j] > logits[i] || (logits[j] == logits[i] && j < i);
    }
    ms_sampler s = sampling(2.0, ANY_SEED);
    s.top_k = KEPT;
    uint32_t deepest = 0;
    for (int i = 0; i < 400; i++) {
        uint32_t r = rank[pick(&s, logits, VOCAB)];
        assert_true(r < KEPT);
        if (r > deepest) deepest = r;
    }
    assert_true(deepest > KEPT / 2);
    free(logits);
    free(rank);
}

/* ------------------------------------------------------------------ determinism and refusals */

static void same_inputs_same_tokens(void **state) {
    (void)state;
    float logits[64];
    for (int i = 0; i < 64; i++) logits[i] = (float)(i * 37 % 64) / 16.0f;
    ms_sampler a = sampling(1.0, 5), b = a, other = sampling(1.0, 6);
    uint32_t seen[100], differing = 0;
    for (int i = 0; i < 100; i++) seen[i] = pick(&a, logits, 64);
    for (int i = 0; i < 100; i++) {
        assert_int_equal(pick(&b, logits, 64), seen[i]);
        differing += pick(&other, logits, 64) != seen[i];
    }
    assert_true(differing > 50);
    for (uint64_t d = 100; d-- > 0;) { /* any draw alone, in any order */
        ms_sampler jump = sampling(1.0, 5);
        jump.draws = d;
        assert_int_equal(pick(&jump, logits, 64), seen[d]);
        assert_int_equal(jump.draws, d + 1);
    }
}

/* A mask is as good as logits without the other tokens, ties and draws included. */
static void masked_tokens_are_as_if_absent(void **state) {
    (void)state;
    float logits[130], left[130];
    uint64_t mask[3] = {0};
    for (uint32_t i = 0; i < 130; i++) {
        logits[i] = (float)(i * 37 % 11);
        bool allowed = i % 3 == 1;
        if (allowed) mask[i >> 6] |= UINT64_C(1) << (i & 63);
        left[i] = allowed ? logits[i] : -INFINITY;
    }
    for (int t = 0; t < 3; t++) {
        ms_sampler a = sampling(t * 0.7, 9), b = a;
        a.top_k = t == 2 ? 7 : 0;
        b.top_k = a.top_k;
        a.allowed = mask;
        for (int i = 0; i < 200; i++) assert_int_equal(pick(&a, logits, 130), pick(&b, left, 130));
        assert_int_equal(a.draws, b.draws);
    }
}

static void assert_refused(ms_sampler s, const float *logits, uint32_t vocab, ms_status code, const char *word) {
    ms_error err;
    uint32_t token = 77;
    uint64_t draws = s.draws;
    assert_int_equal(ms_sampler_pick(&s, logits, vocab, &token, &err), code);
    assert_int_equal(err.code, code);
    assert_non_null(strstr(err.message, word));
    assert_int_equal(token, 77);
    assert_int_equal(s.draws, draws);
    assert_int_equal(ms_sampler_pick(&s, logits, vocab, &token, NULL), code);
}

static void options_out_of_range_are_named(void **state) {
    (void)state;
    const float logits[2] = {1, 2};
    const double temperatures[] = {-0.1, 2.0000001, NAN, INFINITY, -INFINITY};
    const double top_ps[] = {0.0, -1.0, 1.0000001, NAN, INFINITY};
    const double min_ps[] = {-1e-9, 1.0, NAN, INFINITY};
    for (size_t i = 0; i < 5; i++) assert_refused(sampling(temperatures[i], 0), logits, 2, MS_ERR_USAGE, "temperature");
    for (size_t i = 0; i < 5; i++) {
        ms_sampler s = sampling(1.0, 0);
        s.top_p = top_ps[i];
        assert_refused(s, logits, 2, MS_ERR_USAGE, "top_p");
    }
    for (size_t i = 0; i < 4; i++) {
        ms_sampler s = sampling(0.0, 0);
        s.min_p = min_ps[i];
        assert_refused(s, logits, 2, MS_ERR_USAGE, "min_p");
    }
    assert_refused(sampling(0.0, 0), logits, 0, MS_ERR_USAGE, "vocab");
}

static void logits_without_a_meaning_are_refused(void **state) {
    (void)state;
    const float nan_first[3] = {NAN, 1, 2}, nan_last[3] = {1, 2, NAN}, none[2] = {-INFINITY, -INFINITY};
    const float inf[4] = {0, 1, INFINITY, NAN}, plus[3] = {0, INFINITY, 1};
    for (int t = 0; t < 2; t++) {
        ms_sampler s = sampling(t, 3);
        s.draws = 9;
        assert_refused(s, nan_first, 3, MS_ERR_NUMERIC, "token 0");
        assert_refused(s, nan_last, 3, MS_ERR_NUMERIC, "token 2");
        assert_refused(s, inf, 4, MS_ERR_NUMERIC, "token 3");
        assert_refused(s, none, 2, MS_ERR_NUMERIC, "-infinity");
    }
    assert_refused(sampling(1.0, 3), plus, 3, MS_ERR_NUMERIC, "token 1");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(masked_tokens_are_as_if_absent),
        cmocka_unit_test(philox_gives_the_published_vectors),
        cmocka_unit_test(uniform_is_made_of_the_first_two_words),
        cmocka_unit_test(picks_are_the_documented_ones),
        cmocka_unit_test(greedy_takes_the_first_maximum),
        cmocka_unit_test(counts_follow_the_softmax),
        cmocka_unit_test(top_k_keeps_the_k_best_lower_ids_first),
        cmocka_unit_test(top_p_keeps_the_smallest_sufficient_set),
        cmocka_unit_test(filters_apply_in_order),
        cmocka_unit_test(min_p_is_relative_to_the_best),
        cmocka_unit_test(what_is_left_is_renormalised),
        cmocka_unit_test(extreme_logits_and_temperatures),
        cmocka_unit_test(large_vocabulary_agrees_with_a_plain_sort),
        cmocka_unit_test(same_inputs_same_tokens),
        cmocka_unit_test(options_out_of_range_are_named),
        cmocka_unit_test(logits_without_a_meaning_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
