/* A matcher and its masks when memory runs out: that is what they say, never that a text does not fit. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <dlfcn.h>

#include "grammar_walk.h"
#include "text/schema.h"

/* ------------------------------------------------------------------ arrays that cannot grow */

static bool counting;
static unsigned left; /* of those that may grow yet */

typedef void *realloc_fn(void *p, size_t size);

void *realloc(void *p, size_t size) {
    static realloc_fn *next;
    if (!next) {
        void *found = dlsym(RTLD_NEXT, "realloc");
        memcpy(&next, &found, sizeof next);
    }
    if (counting && left == 0) return NULL;
    if (counting) left--;
    return next(p, size);
}

/* ------------------------------------------------------------------ replies */

static const struct {
    const char *schema, *open, *item, *close; /* item: printed with its number */
} replies[] = {{"{\"type\":\"array\",\"items\":{\"type\":\"string\",\"pattern\":\"^[a-z0-9]{1,9}$\"},\"uniqueItems\":true}", "[",
                "\"text%u\"", "]"},
               {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"uniqueItems\":true}", "[", "%u", "]"},
               {"{\"type\":\"object\",\"additionalProperties\":{\"type\":\"integer\"}}", "{", "\"k%u\":%u", "}"},
               {"{\"type\":\"array\",\"items\":{\"type\":\"object\"}}", "[", "{\"k\":{\"b\":%u}}", "]"}};

enum { ITEMS = 60 };

/* Reads on as long as there is memory; true: to the end. */
static bool read_reply(ms_matcher *m, ms_mask_cache *cache, uint64_t *mask, const char *text) {
    for (size_t i = 0; text[i]; i++) {
        ms_error err;
        if (i % 16 == 0) {
            ms_status status = ms_mask_next(cache, m, i % 32 ? 2000 : MS_UNLIMITED, mask, &err);
            if (status == MS_ERR_MEMORY) return false;
            if (status != MS_OK) fail_msg("byte %zu of %s: %s", i, text, err.message);
        }
        if (ms_matcher_symbol(m, (uint8_t)text[i])) continue;
        if (!ms_matcher_failed(m)) fail_msg("byte %zu of %s does not fit", i, text);
        return false;
    }
    if (!ms_matcher_accepts(m) && !ms_matcher_failed(m)) fail_msg("%s is not complete", text);
    return !ms_matcher_failed(m);
}

/* Once for every growth that may fail. */
static void check_reply(const ms_vocabulary *v, const ms_grammar *g, const char *text) {
    uint64_t *mask = calloc(ms_vocabulary_mask_words(v), sizeof *mask);
    bool whole = false;
    unsigned failures = 0;
    for (unsigned growths = 0; !whole; growths++) {
        ms_matcher *m;
        ms_mask_cache *cache;
        ms_error err;
        assert_int_equal(ms_matcher_create(&m, g, &err), MS_OK);
        assert_int_equal(ms_mask_cache_create(&cache, g, v, &err), MS_OK);
        left = growths;
        counting = true;
        whole = read_reply(m, cache, mask, text);
        counting = false;
        failures += !whole;
        ms_mask_cache_destroy(cache);
        ms_matcher_destroy(m);
    }
    assert_true(failures > 10);
    free(mask);
}

static void no_memory_is_no_dead_end(void **state) {
    (void)state;
    ms_tokenizer *t = walk_tokenizer(5, 300);
    ms_vocabulary *v;
    ms_error err;
    assert_int_equal(ms_vocabulary_create(&v, t, ms_tokenizer_ranks(t) + 256, &err), MS_OK);
    for (size_t i = 0; i < sizeof replies / sizeof replies[0]; i++) {
        ms_json_doc *doc;
        ms_schema *s;
        ms_grammar *g;
        ms_text text = {0};
        uint32_t root;
        assert_int_equal(ms_json_parse(&doc, replies[i].schema, strlen(replies[i].schema), "schema", NULL, &err), MS_OK);
        assert_int_equal(ms_schema_open(&s, ms_json_root(doc), NULL, &err), MS_OK);
        assert_int_equal(ms_grammar_create(&g, &err), MS_OK);
        assert_int_equal(ms_schema_compile(s, g, &root, NULL, &err), MS_OK);
        assert_int_equal(ms_grammar_finish(g, root, &err), MS_OK);
        ms_text_puts(&text, replies[i].open);
        for (unsigned k = 0; k < ITEMS; k++) {
            if (k) ms_text_puts(&text, ",");
            for (const char *p = replies[i].item; *p; p++) {
                if (*p == '%') ms_text_printf(&text, "%u", k * 37 % 101), p++;
                else ms_text_append(&text, p, 1);
            }
        }
        ms_text_puts(&text, replies[i].close);
        check_reply(v, g, text.data);
        ms_text_free(&text);
        ms_grammar_free(g);
        ms_schema_close(s);
        ms_json_free(doc);
    }
    ms_vocabulary_destroy(v);
    ms_tokenizer_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_memory_is_no_dead_end)};
    return cmocka_run_group_tests_name("grammar memory", tests, NULL, NULL);
}
