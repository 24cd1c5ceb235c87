/* bench_mask.c: `moonshine bench mask`: time of a token mask on a real vocabulary.
 *
 * Walks a grammar along random replies that its own masks allow, twice with the same choices: the first time fills the
 * cache, the second is what a warm server does.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "bench.h"
#include "command.h"
#include "text/grammar_mask.h"
#include "text/schema.h"

static const char default_schema[] =
    "{\"type\":\"object\",\"properties\":{\"title\":{\"type\":\"string\",\"maxLength\":80},\"date\":{\"type\":\"string\","
    "\"format\":\"date\"},\"score\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":100},\"tags\":{\"type\":\"array\",\"items\":"
    "{\"enum\":[\"red\",\"green\",\"blue\"]},\"uniqueItems\":true},\"notes\":{\"type\":\"array\",\"items\":{\"type\":\"object\","
    "\"properties\":{\"id\":{\"type\":\"string\",\"pattern\":\"^[a-z]{2,8}-[0-9]+$\"},\"text\":{\"type\":\"string\"}},"
    "\"required\":[\"id\",\"text\"],\"additionalProperties\":false},\"minItems\":3},\"more\":{\"type\":\"object\"}},"
    "\"required\":[\"title\",\"date\",\"score\",\"tags\",\"notes\"],\"additionalProperties\":false}";

enum { REPLY_TOKENS = 400 };

typedef struct bench {
    ms_tokenizer *tokenizer;
    ms_vocabulary *vocabulary;
    ms_json_doc *doc;
    ms_schema *schema;
    ms_grammar *grammar;
    ms_mask_cache *cache;
    uint64_t *mask;
    double *ms; /* one a mask */
    size_t count, cap;
} bench;

static uint32_t next_random(uint64_t *state) {
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*state >> 33);
}

/* A random allowed token, found from a random place on. */
static uint32_t pick(const uint64_t *mask, size_t words, uint64_t *seed) {
    size_t start = next_random(seed) % words;
    for (size_t i = 0; i < words; i++) {
        uint64_t bits = mask[(start + i) % words];
        for (uint32_t skip = (uint32_t)__builtin_popcountll(bits) ? next_random(seed) % (uint32_t)__builtin_popcountll(bits) : 0; skip; skip--) bits &= bits - 1;
        if (bits) return (uint32_t)((start + i) % words * 64) + (uint32_t)__builtin_ctzll(bits);
    }
    return UINT32_MAX;
}

static ms_status one_reply(bench *b, uint64_t seed, ms_error *err) {
    ms_matcher *m;
    MS_TRY(ms_matcher_create(&m, b->grammar, err));
    ms_status status = MS_OK;
    for (uint32_t used = 0; used < REPLY_TOKENS && !ms_matcher_accepts(m) && status == MS_OK && b->count < b->cap; used++) {
        uint64_t start = ms_clock_ns();
        status = ms_mask_next(b->cache, m, REPLY_TOKENS - used, b->mask, err);
        b->ms[b->count++] = (double)(ms_clock_ns() - start) * 1e-6;
        uint32_t id = pick(b->mask, ms_vocabulary_mask_words(b->vocabulary), &seed);
        if (status == MS_OK && !ms_matcher_token(m, b->vocabulary, id)) {
            status = ms_fail(err, MS_ERR_INTERNAL, "token %u of the mask: expected to fit", id);
        }
    }
    ms_matcher_destroy(m);
    return status;
}

static int by_time(const void *x, const void *y) {
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static void report(bench *b, const char *name) {
    double sum = 0;
    for (size_t i = 0; i < b->count; i++) sum += b->ms[i];
    qsort(b->ms, b->count, sizeof *b->ms, by_time);
    printf("%-6s %6zu masks  mean %8.4f ms  median %8.4f  p99 %8.4f  most %8.4f\n", name, b->count,
           sum / (double)b->count, b->ms[b->count / 2], b->ms[b->count * 99 / 100], b->ms[b->count - 1]);
    b->count = 0;
}

static ms_status open_bench(bench *b, const char *ranks, ms_error *err) {
    uint32_t root;
    bool exact;
    MS_TRY(ms_tokenizer_open(&b->tokenizer, ranks, err));
    uint64_t start = ms_clock_ns();
    MS_TRY(ms_vocabulary_create(&b->vocabulary, b->tokenizer, ms_tokenizer_ranks(b->tokenizer) + 256, err));
    printf("vocabulary %u tokens, tree built in %.0f ms\n", ms_tokenizer_ranks(b->tokenizer) + 256,
           (double)(ms_clock_ns() - start) * 1e-6);
    MS_TRY(ms_json_parse(&b->doc, default_schema, strlen(default_schema), "schema", NULL, err));
    start = ms_clock_ns();
    MS_TRY(ms_schema_open(&b->schema, ms_json_root(b->doc), NULL, err));
    MS_TRY(ms_grammar_create(&b->grammar, err));
    MS_TRY(ms_schema_compile(b->schema, b->grammar, &root, &exact, NULL, err));
    MS_TRY(ms_grammar_finish(b->grammar, root, err));
    printf("schema compiled in %.1f ms\n", (double)(ms_clock_ns() - start) * 1e-6);
    MS_TRY(ms_mask_cache_create(&b->cache, b->grammar, b->vocabulary, err));
    b->cap = 64 * REPLY_TOKENS;
    b->mask = malloc(ms_vocabulary_mask_words(b->vocabulary) * sizeof *b->mask);
    b->ms = malloc(b->cap * sizeof *b->ms);
    return b->mask && b->ms ? MS_OK : ms_fail_memory(err, "the times", b->cap * sizeof *b->ms);
}

static ms_status run(bench *b, const char *ranks, ms_error *err) {
    MS_TRY(open_bench(b, ranks, err));
    static const char *const names[] = {"first", "warm"};
    for (int pass = 0; pass < 2; pass++) {
        for (uint64_t seed = 1; seed <= 32; seed++) MS_TRY(one_reply(b, seed, err));
        report(b, names[pass]);
    }
    return MS_OK;
}

int ms_bench_mask(int argc, char **argv) {
    static const char usage[] = "usage: moonshine bench mask RANKFILE\n\n"
                                "Times the token masks of random replies to a built-in schema on the vocabulary of a rank "
                                "file.\n";
    if (argc == 2 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"))) {
        fputs(usage, stdout);
        return ms_command_finish("moonshine bench mask");
    }
    if (argc != 2) {
        fputs(usage, stderr);
        return 2;
    }
    bench b = {0};
    ms_error err = {0};
    ms_status status = run(&b, argv[1], &err);
    if (status != MS_OK) fprintf(stderr, "moonshine bench mask: %s\n", err.message);
    ms_mask_cache_destroy(b.cache);
    ms_grammar_free(b.grammar);
    ms_schema_close(b.schema);
    ms_json_free(b.doc);
    ms_vocabulary_destroy(b.vocabulary);
    ms_tokenizer_close(b.tokenizer);
    free(b.mask);
    free(b.ms);
    return status == MS_OK ? ms_command_finish("moonshine bench mask") : 1;
}
