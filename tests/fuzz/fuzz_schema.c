/* fuzz_schema.c: any JSON as a schema; what compiles must be walkable to an end that the validator accepts.
 *
 * The first bytes are random choices of the walk, the rest is the schema's text.
 */
#include <stdlib.h>
#include <string.h>

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

static void walk(const ms_schema *s, const ms_grammar *g, const uint8_t *wishes, size_t count, bool exact) {
    ms_matcher *m;
    ms_error err;
    ms_text text = {0};
    if (ms_matcher_create(&m, g, &err) != MS_OK) abort();
    bool short_enough = ms_matcher_bound(m) < 300;
    for (size_t i = 0; short_enough && (i < count || !ms_matcher_accepts(m)); i++) {
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
        if (status == MS_OK && !valid && exact) abort();
    }
    ms_json_free(doc);
    ms_text_free(&text);
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
        bool exact;
        if (ms_grammar_create(&g, &err) != MS_OK) abort();
        ms_status status = ms_schema_compile(s, g, &root, &exact, &fault, &err);
        if (status == MS_OK && ms_grammar_finish(g, root, &err) == MS_OK) walk(s, g, data, WISHES, exact);
        else if (!err.message[0]) abort();
        ms_grammar_free(g);
        ms_schema_close(s);
    } else if (!err.message[0]) {
        abort();
    }
    ms_json_free(doc);
    return 0;
}
