/* bench_mask.c: `moonshine bench mask`: processor time of a token mask on a real vocabulary.
 *
 * Walks grammars along random replies that their own masks allow.  The examples are those that a mask has most to do with:
 * counts that make every state a new one, texts that must differ, wide patterns, long lists.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench.h"
#include "command.h"
#include "text/grammar_mask.h"
#include "text/schema.h"

typedef struct example {
    const char *name, *schema;
    bool arguments; /* as the arguments of a call, whose values end at a text */
} example;

static const example examples[] = {
    {"mixed",
     "{\"type\":\"object\",\"properties\":{\"title\":{\"type\":\"string\",\"maxLength\":80},\"date\":{\"type\":\"string\","
     "\"format\":\"date\"},\"score\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":100},\"tags\":{\"type\":\"array\",\"items\":"
     "{\"enum\":[\"red\",\"green\",\"blue\"]},\"uniqueItems\":true},\"notes\":{\"type\":\"array\",\"items\":{\"type\":\"object\","
     "\"properties\":{\"id\":{\"type\":\"string\",\"pattern\":\"^[a-z]{2,8}-[0-9]+$\"},\"text\":{\"type\":\"string\"}},"
     "\"required\":[\"id\",\"text\"],\"additionalProperties\":false},\"minItems\":3},\"more\":{\"type\":\"object\"}},"
     "\"required\":[\"title\",\"date\",\"score\",\"tags\",\"notes\"],\"additionalProperties\":false}",
     false},
    {"any object", "{\"type\":\"object\"}", false},
    {"max length", "{\"type\":\"string\",\"maxLength\":2000}", false},
    {"both lengths", "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"minLength\":100,\"maxLength\":300}}", false},
    {"counted pattern", "{\"type\":\"string\",\"pattern\":\"^[a-zA-Z ,.]{20,900}$\"}", false},
    {"any, counted", "{\"type\":\"string\",\"pattern\":\"^.{0,900}$\"}", false},
    {"words", "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"pattern\":\"^([a-z]+ ){3,60}[a-z]+$\",\"maxLength\":900}}", false},
    {"formats", "{\"type\":\"array\",\"items\":{\"anyOf\":[{\"type\":\"string\",\"format\":\"email\"},{\"type\":\"string\","
                "\"format\":\"uri\"},{\"type\":\"string\",\"format\":\"hostname\"},{\"type\":\"string\",\"format\":\"ipv6\"},"
                "{\"type\":\"string\",\"format\":\"date-time\"}]}}", false},
    {"unique strings", "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"maxLength\":20},\"uniqueItems\":true}", false},
    {"unique words", "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"pattern\":\"^[a-z]{1,3}$\"},\"uniqueItems\":true,"
                     "\"minItems\":100}", false},
    {"unique values", "{\"type\":\"array\",\"items\":{\"enum\":%E},\"uniqueItems\":true,\"minItems\":100}", false},
    {"unique numbers", "{\"type\":\"array\",\"items\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":1500},\"uniqueItems\":"
                       "true,\"minItems\":1400}", false},
    {"few left", "{\"type\":\"array\",\"items\":{\"enum\":%F},\"uniqueItems\":true,\"minItems\":78}", false},
    {"new keys", "{\"type\":\"object\",\"patternProperties\":{\"^[a-z]{1,3}$\":{\"type\":\"array\",\"items\":{\"type\":\"string\",\"maxLength\":4},"
                 "\"uniqueItems\":true}},\"additionalProperties\":false,\"minProperties\":200}", false},
    {"values", "{\"type\":\"array\",\"items\":{\"enum\":%E}}", false},
    {"numbers", "{\"type\":\"array\",\"items\":{\"anyOf\":[{\"type\":\"number\",\"minimum\":-12345.678,\"maximum\":98765.4321},"
                "{\"type\":\"integer\",\"multipleOf\":9973}]}}", false},
    {"key patterns", "{\"type\":\"object\",\"patternProperties\":{\"^[a-z]+_id$\":{\"type\":\"integer\"},\"[0-9]\":{\"type\":"
                     "\"boolean\"},\"^x\":{\"type\":\"string\"}},\"additionalProperties\":{\"type\":\"string\",\"maxLength\":9},"
                     "\"minProperties\":20}", false},
    {"tree", "{\"$ref\":\"#/$defs/n\",\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\","
             "\"maxLength\":40},\"kids\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/n\"},\"maxItems\":50}},\"required\":"
             "[\"name\",\"kids\"],\"additionalProperties\":false}}}", false},
    {"branches", "{\"type\":\"array\",\"items\":{\"anyOf\":%B}}", false},
    {"arguments", "{\"type\":\"object\",\"properties\":{\"text\":{\"type\":\"string\"},\"short\":{\"type\":\"string\",\"maxLength\":"
                  "500},\"any\":{}},\"required\":[\"text\",\"short\",\"any\"],\"additionalProperties\":false}", true}};

enum { REPLY_TOKENS = 400, REPLIES = 12, ENUM_VALUES = 4000, FEW_VALUES = 80, BRANCHES = 100, ROUNDS = 3 };

typedef struct bench {
    ms_tokenizer *tokenizer;
    ms_vocabulary *vocabulary;
    ms_text text; /* of the schema */
    ms_json_doc *doc;
    ms_schema *schema;
    ms_grammar *grammar;
    ms_mask_cache *cache;
    uint64_t *mask;
    double *ms[2];   /* first and warm: one a mask, the least of all rounds */
    size_t count[2], cap;
    double compiled, ready, again; /* ms, the least of all rounds: the grammar; what its masks need, for a first and a second
                                      grammar of its kind */
} bench;

/* Processor time of this thread: what a mask takes of a machine that other work shares. */
static double now_ms(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

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

/* Other work on the machine only ever adds to a time. */
static void least(double *known, double ms, bool again) {
    if (!again || ms < *known) *known = ms;
}

static ms_status one_reply(bench *b, int pass, bool again, uint64_t seed, ms_error *err) {
    ms_matcher *m;
    uint32_t limit;
    MS_TRY(ms_grammar_tokens_needed(b->grammar, b->vocabulary, &limit, err));
    limit += REPLY_TOKENS;
    MS_TRY(ms_matcher_create(&m, b->grammar, err));
    ms_status status = MS_OK;
    for (uint32_t used = 0; used < limit && !ms_matcher_accepts(m) && status == MS_OK && b->count[pass] < b->cap; used++) {
        double start = now_ms();
        status = ms_mask_next(b->cache, m, limit - used, b->mask, err);
        least(&b->ms[pass][b->count[pass]++], now_ms() - start, again);
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
    static const char *const passes[] = {"first", "warm"};
    printf("%-16s compiled in %.1f ms, masks ready in %.1f, again in %.1f\n", name, b->compiled, b->ready, b->again);
    for (int pass = 0; pass < 2; pass++) {
        double sum = 0, *ms = b->ms[pass];
        size_t n = b->count[pass];
        for (size_t i = 0; i < n; i++) sum += ms[i];
        qsort(ms, n, sizeof *ms, by_time);
        printf("%-16s %-5s %5zu masks  mean %8.4f ms  p99 %8.4f  most %8.4f\n", name, passes[pass], n, sum / (double)n,
               ms[n * 99 / 100], ms[n - 1]);
    }
}

/* %E: many values; %F: few; %B: many objects that begin alike. */
static void write_schema(ms_text *t, const char *s) {
    for (; *s; s++) {
        if (*s != '%') {
            ms_text_append(t, s, 1);
            continue;
        }
        s++;
        for (unsigned i = 0; (*s == 'E' && i < ENUM_VALUES) || (*s == 'F' && i < FEW_VALUES); i++) {
            ms_text_printf(t, "%s\"%s value %u of %u\"", i ? "," : "[", i % 3 ? "some" : "another", i * 7919u % 100003u, i);
        }
        for (unsigned i = 0; *s == 'B' && i < BRANCHES; i++) {
            ms_text_printf(t, "%s{\"type\":\"object\",\"properties\":{\"kind\":{\"const\":\"kind%u\"},\"text\":{\"type\":\"string\","
                           "\"maxLength\":%u}},\"required\":[\"kind\",\"text\"]}", i ? "," : "[", i, 10 + i);
        }
        ms_text_puts(t, "]");
    }
}

static uint32_t spell_argument(const void *arg, ms_grammar *g, const char *key, size_t key_len, const char *type,
                               uint32_t body) {
    (void)arg;
    (void)type;
    char open[64];
    int n = snprintf(open, sizeof open, "<parameter=%.*s>", (int)key_len, key);
    uint32_t parts[3] = {ms_grammar_literal(g, open, (size_t)n), body, ms_grammar_literal(g, "</parameter>", 12)};
    return ms_grammar_sequence(g, parts, 3);
}

static ms_status compile(bench *b, const example *e, bool again, ms_error *err) {
    static const ms_arguments_syntax syntax = {.argument = spell_argument, .raw_strings = true, .end = "</parameter>"};
    uint32_t root;
    bool extra;
    write_schema(&b->text, e->schema);
    if (b->text.failed) return ms_fail_memory(err, "the schema", b->text.len);
    MS_TRY(ms_json_parse(&b->doc, b->text.data, b->text.len, e->name, NULL, err));
    double start = now_ms();
    MS_TRY(ms_schema_open(&b->schema, ms_json_root(b->doc), NULL, err));
    MS_TRY(ms_grammar_create(&b->grammar, err));
    if (e->arguments) {
        MS_TRY(ms_schema_compile_arguments(b->schema, b->grammar, &syntax, &root, &extra, NULL, err));
    } else {
        MS_TRY(ms_schema_compile(b->schema, b->grammar, &root, NULL, err));
    }
    MS_TRY(ms_grammar_finish(b->grammar, root, err));
    least(&b->compiled, now_ms() - start, again);
    start = now_ms();
    MS_TRY(ms_mask_cache_create(&b->cache, b->grammar, b->vocabulary, err));
    least(&b->ready, now_ms() - start, again);
    ms_mask_cache_destroy(b->cache);
    b->cache = NULL;
    start = now_ms();
    MS_TRY(ms_mask_cache_create(&b->cache, b->grammar, b->vocabulary, err));
    least(&b->again, now_ms() - start, again);
    return MS_OK;
}

static void close_example(bench *b) {
    ms_mask_cache_destroy(b->cache);
    ms_vocabulary_destroy(b->vocabulary);
    ms_grammar_free(b->grammar);
    ms_schema_close(b->schema);
    ms_json_free(b->doc);
    ms_text_free(&b->text);
    b->cache = NULL;
    b->vocabulary = NULL;
    b->grammar = NULL;
    b->schema = NULL;
    b->doc = NULL;
}

/* The first replies fill the cache; then others, that a warm server gets.  Nothing of a round is left to the next. */
static ms_status one_round(bench *b, const example *e, bool again, ms_error *err) {
    uint64_t seed = 1;
    MS_TRY(ms_vocabulary_create(&b->vocabulary, b->tokenizer, ms_tokenizer_ranks(b->tokenizer) + 256, err));
    MS_TRY(compile(b, e, again, err));
    for (int pass = 0; pass < 2; pass++) {
        b->count[pass] = 0;
        for (int i = 0; i < REPLIES; i++) MS_TRY(one_reply(b, pass, again, seed++, err));
    }
    return MS_OK;
}

static ms_status run_example(bench *b, const example *e, ms_error *err) {
    for (int round = 0; round < ROUNDS; round++) {
        ms_status status = one_round(b, e, round > 0, err);
        close_example(b);
        MS_TRY(status);
    }
    report(b, e->name);
    return MS_OK;
}

static ms_status run(bench *b, const char *ranks, const char *only, ms_error *err) {
    MS_TRY(ms_tokenizer_open(&b->tokenizer, ranks, err));
    double start = now_ms();
    MS_TRY(ms_vocabulary_create(&b->vocabulary, b->tokenizer, ms_tokenizer_ranks(b->tokenizer) + 256, err));
    printf("vocabulary %u tokens, tree built in %.0f ms\n", ms_tokenizer_ranks(b->tokenizer) + 256,
           now_ms() - start);
    b->cap = (size_t)REPLIES * REPLY_TOKENS * 8;
    b->mask = malloc(ms_vocabulary_mask_words(b->vocabulary) * sizeof *b->mask);
    close_example(b);
    for (int i = 0; i < 2; i++) b->ms[i] = malloc(b->cap * sizeof *b->ms[i]);
    if (!b->mask || !b->ms[0] || !b->ms[1]) return ms_fail_memory(err, "the times", b->cap * sizeof *b->ms[0]);
    bool known = false;
    for (size_t i = 0; i < sizeof examples / sizeof examples[0]; i++) {
        if (only && strcmp(only, examples[i].name)) continue;
        known = true;
        MS_TRY(run_example(b, &examples[i], err));
    }
    return known ? MS_OK : ms_fail(err, MS_ERR_USAGE, "expected the name of an example, found '%s'", only);
}

int ms_bench_mask(int argc, char **argv) {
    static const char usage[] = "usage: moonshine bench mask RANKFILE [NAME]\n\n"
                                "Times the token masks of random replies to built-in schemas, or to the one of that name, on "
                                "the vocabulary of a\nrank file: first, and on replies that are new once the cache is warm. "
                                "Processor time, the least of three rounds.\n";
    if (argc == 2 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"))) {
        fputs(usage, stdout);
        return ms_command_finish("moonshine bench mask");
    }
    if (argc != 2 && argc != 3) {
        fputs(usage, stderr);
        return 2;
    }
    bench b = {0};
    ms_error err = {0};
    ms_status status = run(&b, argv[1], argc == 3 ? argv[2] : NULL, &err);
    if (status != MS_OK) fprintf(stderr, "moonshine bench mask: %s\n", err.message);
    ms_tokenizer_close(b.tokenizer);
    free(b.mask);
    free(b.ms[0]);
    free(b.ms[1]);
    return status == MS_OK ? ms_command_finish("moonshine bench mask") : 1;
}
