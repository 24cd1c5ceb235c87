/* fuzz_schema.c: any JSON as a schema; what compiles must be walkable to an end that the validator accepts, and its token
 * masks must be what the matcher says about every token.
 *
 * The first bytes are random choices of the walk, the rest is the schema's text.
 */
#include <stdlib.h>
#include <string.h>

#include "text/grammar_mask.h"
#include "text/schema.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The next symbol: one that `wish` asks for when it fits, else the first that lowers the bound. */
static bool step(ms_matcher *m, uint8_t wish, ms_text *text) {
    uint32_t bound = ms_matcher_bound(m);
    if (wish && ms_matcher_symbol(m, wish)) {
        ms_text_append(text, &wish, 1);
        return true;
    }
    for (uint32_t s = 0; s < 256; s++) {
        ms_matcher *trial;
        ms_error err;
        if (ms_matcher_copy(&trial, m, &err) != MS_OK) abort();
        bool good = ms_matcher_symbol(trial, s) && ms_matcher_bound(trial) < bound;
        ms_matcher_destroy(trial);
        if (!good) continue;
        uint8_t byte = (uint8_t)s;
        if (!ms_matcher_symbol(m, byte)) abort();
        ms_text_append(text, &byte, 1);
        return true;
    }
    return false;
}

/* ------------------------------------------------------------------ masks */

static ms_tokenizer *tokenizer;
static ms_vocabulary *vocabulary;

static void add_token(ms_text *ranks, const uint8_t *s, size_t n, unsigned rank) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        uint32_t v = (uint32_t)s[i] << 16 | (i + 1 < n ? (uint32_t)s[i + 1] << 8 : 0) | (i + 2 < n ? s[i + 2] : 0u);
        char out[4] = {digits[v >> 18], digits[v >> 12 & 63], i + 1 < n ? digits[v >> 6 & 63] : '=',
                       i + 2 < n ? digits[v & 63] : '='};
        ms_text_append(ranks, out, 4);
    }
    ms_text_printf(ranks, " %u\n", rank);
}

/* The bytes, and what crosses the parts of a reply. */
static void make_vocabulary(void) {
    static const char *const tokens[] = {"aa", "ab", "a\"", "\",\"", "\":\"", "\": ", "{\"", "[\"", "\"]", "\"}", "],[", "1,1", "12", "0.5",
                                         "1,", "},{", "true,", "null", "\xc3\xa9\"", "\xa9\"", "\xf0\x9f", "\\u00", "\\n", "\n\t",
                                         ", \"", "a,b", "\"\"", "\"a\"", "\",\"a", "\"a\":1", "\"a\":{\"a", "-1", "e5", "  "};
    ms_text ranks = {0};
    ms_error err;
    for (unsigned i = 0; i < 256; i++) add_token(&ranks, &(uint8_t){(uint8_t)i}, 1, i);
    for (unsigned i = 0; i < sizeof tokens / sizeof tokens[0]; i++)
        add_token(&ranks, (const uint8_t *)tokens[i], strlen(tokens[i]), 256 + i);
    if (ms_tokenizer_parse(&tokenizer, ranks.data, ranks.len, "fuzz", &err) != MS_OK) abort();
    if (ms_vocabulary_create(&vocabulary, tokenizer, ms_tokenizer_ranks(tokenizer) + 256, &err) != MS_OK) abort();
    ms_text_free(&ranks);
}

static void check_mask(ms_mask_cache *cache, ms_matcher *m) {
    uint64_t mask[16] = {0};
    ms_error err;
    if (ms_vocabulary_mask_words(vocabulary) > 16) abort();
    if (ms_mask_next(cache, m, MS_UNLIMITED, mask, &err) != MS_OK) return; /* nothing follows */
    for (uint32_t id = 0; id < ms_tokenizer_ranks(tokenizer); id++) {
        ms_matcher *trial;
        if (ms_matcher_copy(&trial, m, &err) != MS_OK) abort();
        if (ms_matcher_token(trial, vocabulary, id) != (bool)(mask[id >> 6] >> (id & 63) & 1)) abort();
        ms_matcher_destroy(trial);
    }
}

static void walk(const ms_schema *s, const ms_grammar *g, const uint8_t *wishes, size_t count) {
    ms_matcher *m;
    ms_error err;
    ms_text text = {0};
    if (ms_matcher_create(&m, g, &err) != MS_OK) abort();
    bool short_enough = ms_matcher_bound(m) < 300;
    ms_mask_cache *cache;
    if (!vocabulary) make_vocabulary();
    if (ms_mask_cache_create(&cache, g, vocabulary, &err) != MS_OK) abort();
    for (size_t i = 0; short_enough && (i < count || !ms_matcher_accepts(m)); i++) {
        if (i % 8 == 5 && i < 64) check_mask(cache, m);
        if (i >= count && ms_matcher_bound(m) > 1000) short_enough = false;
        else if (!step(m, i < count ? wishes[i] : 0, &text)) {
            if (!ms_matcher_accepts(m)) abort(); /* a state without a way to its end */
            break;
        }
    }
    ms_json_doc *doc = NULL;
    bool valid = true;
    ms_json_limits deep = {.max_depth = MS_JSON_MAX_DEPTH};
    if (short_enough) {
        if (ms_json_parse(&doc, text.data ? text.data : "", text.len, "result", &deep, &err) != MS_OK) abort();
        ms_status status = ms_schema_validate(s, ms_json_root(doc), &valid, &err);
        if (status == MS_OK && !valid) abort();
    }
    ms_json_free(doc);
    ms_text_free(&text);
    ms_mask_cache_destroy(cache);
    ms_matcher_destroy(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    enum { WISHES = 24 };
    if (size < WISHES) return 0;
    ms_json_doc *doc;
    ms_schema *s;
    ms_schema_fault fault;
    ms_error err = {0};
    const char *text = (const char *)data + WISHES;
    static const ms_json_limits limits = {.max_depth = 128, .reject_duplicates = true};
    if (ms_json_parse(&doc, text, size - WISHES, "schema", &limits, &err) != MS_OK) return 0;
    if (ms_schema_open(&s, ms_json_root(doc), &fault, &err) == MS_OK) {
        ms_grammar *g;
        uint32_t root;
        if (ms_grammar_create(&g, &err) != MS_OK) abort();
        ms_status status = ms_schema_compile(s, g, &root, &fault, &err);
        if (status == MS_OK && ms_grammar_finish(g, root, &err) == MS_OK) walk(s, g, data, WISHES);
        else if (!err.message[0]) abort();
        ms_grammar_free(g);
        ms_schema_close(s);
    } else if (!err.message[0]) {
        abort();
    }
    ms_json_free(doc);
    return 0;
}
