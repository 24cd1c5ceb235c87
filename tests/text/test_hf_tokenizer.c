/* tokenizer.json: ids of tests/text/hf (made by another implementation of the rules), decoding, control ids, form C,
 * and refusals. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "text/nfc.h"
#include "text/tokenizer.h"

#define FILE_NAME "tests/text/hf/tokenizer.json"

static char *read_file(const char *path, size_t *len) {
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("%s: cannot be read", path);
    (void)fseek(f, 0, SEEK_END);
    *len = (size_t)ftell(f);
    rewind(f);
    char *data = malloc(*len + 1);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, *len, f), *len);
    data[*len] = 0;
    (void)fclose(f);
    return data;
}

static ms_tokenizer *open_small(void) {
    ms_tokenizer *t = NULL;
    ms_error err;
    if (ms_tokenizer_open_hf(&t, FILE_NAME, &err) != MS_OK) fail_msg("%s", err.message);
    return t;
}

static void expect_ids(const ms_tokenizer *t, const ms_json *text, bool special, const ms_json *want) {
    ms_ids ids = {0};
    ms_error err;
    assert_int_equal(ms_tokenizer_encode(t, text->str, text->str_len, special, &ids, &err), MS_OK);
    size_t i = 0;
    for (const ms_json *w = want->child; w; w = w->next, i++) {
        uint64_t id;
        assert_true(ms_json_u64(w, &id));
        if (i >= ids.count || ids.data[i] != id)
            fail_msg("\"%s\": id %zu: expected %llu, found %d", text->str, i, (unsigned long long)id,
                     i < ids.count ? (int)ids.data[i] : -1);
    }
    assert_int_equal(ids.count, want->count);
    ms_ids_free(&ids);
}

static void for_cases(void (*fn)(const ms_tokenizer *t, const ms_json *c), const char *list) {
    size_t len;
    char *text = read_file("tests/text/hf/cases.json", &len);
    ms_json_doc *doc;
    ms_error err;
    assert_int_equal(ms_json_parse(&doc, text, len, "cases.json", NULL, &err), MS_OK);
    ms_tokenizer *t = open_small();
    const ms_json *cases = ms_json_get(ms_json_root(doc), list);
    assert_true(cases && cases->count > 200);
    for (const ms_json *c = cases->child; c; c = c->next) fn(t, c);
    ms_tokenizer_close(t);
    ms_json_free(doc);
    free(text);
}

static void encode_case(const ms_tokenizer *t, const ms_json *c) {
    expect_ids(t, ms_json_get(c, "text"), false, ms_json_get(c, "ids"));
    expect_ids(t, ms_json_get(c, "text"), true, ms_json_get(c, "special_ids"));
}

static void ids_are_those_of_the_rules(void **state) {
    (void)state;
    for_cases(encode_case, "cases");
}

static void nfc(ms_text *out, const char *s, size_t len) {
    out->len = 0;
    ms_nfc(out, (const uint8_t *)s, len);
}

static void nfc_case(const ms_tokenizer *t, const ms_json *c) {
    (void)t;
    ms_text out = {0};
    const ms_json *from = c->child, *want = from->next;
    nfc(&out, from->str, from->str_len);
    if (out.len != want->str_len || memcmp(out.data, want->str, out.len) != 0)
        fail_msg("\"%s\": expected \"%s\", found \"%s\"", from->str, want->str, out.data);
    nfc(&out, want->str, want->str_len); /* it is a fixed point */
    assert_int_equal(out.len, want->str_len);
    assert_memory_equal(out.data, want->str, out.len);
    if (!ms_nfc_may_change((const uint8_t *)from->str, from->str_len)) assert_string_equal(from->str, want->str);
    ms_text_free(&out);
}

static void form_c(void **state) {
    (void)state;
    for_cases(nfc_case, "nfc");
}

/* Decoding ids gives the normalised text back. */
static void decode_case(const ms_tokenizer *t, const ms_json *c) {
    const ms_json *text = ms_json_get(c, "text");
    ms_ids ids = {0};
    ms_text out = {0}, want = {0};
    ms_error err;
    nfc(&want, text->str, text->str_len);
    assert_int_equal(ms_tokenizer_encode(t, text->str, text->str_len, false, &ids, &err), MS_OK);
    assert_int_equal(ms_tokenizer_decode(t, ids.data, ids.count, false, &out, &err), MS_OK);
    assert_int_equal(out.len, want.len);
    if (out.len) assert_memory_equal(out.data, want.data, out.len);
    ms_ids_free(&ids);
    ms_text_free(&out);
    ms_text_free(&want);
}

static void decoding_is_the_inverse(void **state) {
    (void)state;
    for_cases(decode_case, "cases");
}

static void control_ids(void **state) {
    (void)state;
    ms_tokenizer *t = open_small();
    uint32_t id = 0, think = 0;
    ms_error err;
    ms_text out = {0};
    assert_true(ms_tokenizer_control_id(t, "<|im_end|>", 10, &id));
    assert_string_equal(ms_tokenizer_control_name(t, id), "<|im_end|>");
    assert_true(ms_tokenizer_control_hidden(t, id));
    assert_true(ms_tokenizer_control_id(t, "<think>", 7, &think));
    assert_false(ms_tokenizer_control_hidden(t, think));
    assert_false(ms_tokenizer_control_id(t, "<think", 6, &id));
    assert_false(ms_tokenizer_control_id(t, "", 0, &id));
    assert_null(ms_tokenizer_control_name(t, 65));
    size_t len;
    assert_null(ms_tokenizer_token(t, think, &len));
    const uint8_t *bytes = ms_tokenizer_token(t, 0x41, &len);
    assert_true(bytes && len == 1 && *bytes == 0x41);
    assert_int_equal(ms_tokenizer_ids(t), think + 4);
    assert_int_equal(ms_tokenizer_ranks(t), 0);
    const uint32_t mixed[] = {0x41, id, think, 0xC3, id, 0xA9};
    assert_int_equal(ms_tokenizer_decode(t, mixed, 6, false, &out, &err), MS_OK);
    assert_string_equal(out.data, "A<think>\xEF\xBF\xBD\xEF\xBF\xBD");
    out.len = 0;
    assert_int_equal(ms_tokenizer_decode(t, mixed, 3, true, &out, &err), MS_OK);
    assert_string_equal(out.data, "A<|im_end|><think>");
    const uint32_t beyond = ms_tokenizer_ids(t);
    assert_int_equal(ms_tokenizer_decode(t, &beyond, 1, false, &out, &err), MS_ERR_USAGE);
    assert_int_not_equal(ms_tokenizer_digest(t), 0);
    ms_text_free(&out);
    ms_tokenizer_close(t);
}

static void ill_formed_text_is_repaired(void **state) {
    (void)state;
    ms_tokenizer *t = open_small();
    ms_ids a = {0}, b = {0};
    ms_error err;
    assert_int_equal(ms_tokenizer_encode(t, "x\xFFy\xC3", 4, false, &a, &err), MS_OK);
    assert_int_equal(ms_tokenizer_encode(t, "x\xEF\xBF\xBDy\xEF\xBF\xBD", 8, false, &b, &err), MS_OK);
    assert_int_equal(a.count, b.count);
    assert_memory_equal(a.data, b.data, a.count * sizeof *a.data);
    ms_ids_free(&a);
    ms_ids_free(&b);
    ms_tokenizer_close(t);
}

/* A long run of one letter and hostile marks take about linear time. */
static void long_pieces(void **state) {
    (void)state;
    enum { LEN = 1 << 20 };
    ms_tokenizer *t = open_small();
    char *text = malloc(LEN);
    assert_non_null(text);
    ms_ids ids = {0};
    ms_error err;
    memset(text, 'e', LEN);
    assert_int_equal(ms_tokenizer_encode(t, text, LEN, false, &ids, &err), MS_OK);
    assert_true(ids.count > 0 && ids.count <= LEN);
    ids.count = 0;
    for (size_t i = 0; i < LEN; i += 2) memcpy(text + i, i % 4 ? "\xCC\x81" : "\xCC\xA3", 2);
    assert_int_equal(ms_tokenizer_encode(t, text, LEN, false, &ids, &err), MS_OK);
    assert_true(ids.count > 0);
    ms_ids_free(&ids);
    free(text);
    ms_tokenizer_close(t);
}

/* ------------------------------------------------------------------ refusals */

/* The file with the first `from` replaced by `to`. */
static void refused(const char *from, const char *to, ms_status want, const char *part) {
    size_t len;
    char *data = read_file(FILE_NAME, &len), *at = strstr(data, from);
    if (!at) fail_msg("no %s in the file", from);
    ms_text changed = {0};
    ms_text_append(&changed, data, (size_t)(at - data));
    ms_text_puts(&changed, to);
    ms_text_puts(&changed, at + strlen(from));
    ms_tokenizer *t = NULL;
    ms_error err = {0};
    ms_status st = ms_tokenizer_parse_hf(&t, changed.data, changed.len, "t.json", &err);
    if (st != want || !strstr(err.message, "t.json") || !strstr(err.message, part))
        fail_msg("%s -> %s: expected %s with \"%s\", found %s: %s", from, to, ms_status_name(want), part,
                 ms_status_name(st), err.message);
    assert_null(t);
    ms_text_free(&changed);
    free(data);
}

static void other_tokenizers_are_refused(void **state) {
    (void)state;
    refused("\"type\": \"NFC\"", "\"type\": \"NFKC\"", MS_ERR_UNSUPPORTED, "normalizer");
    refused("|\\\\p{N}|", "|\\\\p{N}{1,3}|", MS_ERR_UNSUPPORTED, "pre_tokenizer.pattern");
    refused("\"Isolated\"", "\"Removed\"", MS_ERR_UNSUPPORTED, "pre_tokenizer.behavior");
    refused("\"add_prefix_space\": false", "\"add_prefix_space\": true", MS_ERR_UNSUPPORTED, "ByteLevel");
    refused("\"Sequence\"", "\"Nothing\"", MS_ERR_UNSUPPORTED, "pre_tokenizer");
    refused("\"post_processor\": {\n  \"type\": \"ByteLevel\"",
            "\"post_processor\": {\n  \"type\": \"TemplateProcessing\"", MS_ERR_UNSUPPORTED, "post_processor");
    refused("\"decoder\": {\n  \"type\": \"ByteLevel\"", "\"decoder\": {\n  \"type\": \"Metaspace\"",
            MS_ERR_UNSUPPORTED, "decoder");
    refused("\"type\": \"BPE\"", "\"type\": \"Unigram\"", MS_ERR_UNSUPPORTED, "model.type");
    refused("\"byte_fallback\": false", "\"byte_fallback\": true", MS_ERR_UNSUPPORTED, "byte_fallback");
    refused("\"byte_fallback\": false", "\"ignore_merges\": true", MS_ERR_UNSUPPORTED, "ignore_merges");
    refused("\"dropout\": null", "\"dropout\": 0.1", MS_ERR_UNSUPPORTED, "dropout");
    refused("\"continuing_subword_prefix\": \"\"", "\"continuing_subword_prefix\": \"##\"", MS_ERR_UNSUPPORTED,
            "continuing_subword_prefix");
    refused("\"lstrip\": false", "\"lstrip\": true", MS_ERR_UNSUPPORTED, "lstrip");
}

static void damage_is_refused(void **state) {
    (void)state;
    refused("\"vocab\"", "\"vocabulary\"", MS_ERR_FORMAT, "model.vocab");
    refused("\"merges\"", "\"mergers\"", MS_ERR_FORMAT, "model.merges");
    refused("\"A\": 65", "\"A\": 66", MS_ERR_FORMAT, "given twice");
    refused("\"A\": 65", "\"A\": -1", MS_ERR_FORMAT, "ids below");
    refused("\"A\": 65", "\"A\": 4194304", MS_ERR_FORMAT, "ids below");
    refused("\"A\": 65", "\"AA\": 65", MS_ERR_FORMAT, "byte 0x41");
    refused("\"A\": 65", "\"A\": 65, \" \": 700", MS_ERR_FORMAT, "byte alphabet");
    refused("\"merges\": [\n", "\"merges\": [\n \"q q\",\n", MS_ERR_FORMAT, "tokens of the vocabulary");
    refused("\"merges\": [\n", "\"merges\": [\n \"qq\",\n", MS_ERR_FORMAT, "pairs of tokens");
    refused("\"merges\": [\n", "\"merges\": [\n 7,\n", MS_ERR_FORMAT, "pairs of tokens");
    refused("\"content\": \"<think>\"", "\"content\": \"\"", MS_ERR_FORMAT, "added_tokens.content");
    refused("\"content\": \"<think>\"", "\"content\": \"</think>\"", MS_ERR_FORMAT, "given twice");
    refused("\"version\"", "\"version", MS_ERR_FORMAT, "line");
}

/* Merges as pairs mean the same. */
static void merges_as_pairs(void **state) {
    (void)state;
    size_t len;
    char *data = read_file(FILE_NAME, &len), *merges = strstr(data, "\"merges\"");
    assert_non_null(merges);
    ms_text changed = {0};
    ms_text_append(&changed, data, (size_t)(merges - data));
    char *open = strchr(merges, '[');
    ms_text_append(&changed, merges, (size_t)(open - merges) + 1);
    const char *at = open + 1;
    while (*at && *at != ']') {
        if (*at != '"') {
            ms_text_append(&changed, at++, 1);
            continue;
        }
        ms_text_puts(&changed, "[\"");
        for (at++; *at != '"'; at++) {
            if (*at == '\\') ms_text_append(&changed, at++, 1);
            if (*at == ' ')
                ms_text_puts(&changed, "\",\"");
            else
                ms_text_append(&changed, at, 1);
        }
        at++;
        ms_text_puts(&changed, "\"]");
    }
    ms_text_puts(&changed, at);
    ms_tokenizer *a = open_small(), *b = NULL;
    ms_error err = {0};
    if (ms_tokenizer_parse_hf(&b, changed.data, changed.len, "pairs", &err) != MS_OK) fail_msg("%s", err.message);
    assert_true(ms_tokenizer_digest(a) == ms_tokenizer_digest(b));
    ms_tokenizer_close(a);
    ms_tokenizer_close(b);
    ms_text_free(&changed);
    free(data);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(ids_are_those_of_the_rules),
                                       cmocka_unit_test(form_c),
                                       cmocka_unit_test(decoding_is_the_inverse),
                                       cmocka_unit_test(control_ids),
                                       cmocka_unit_test(ill_formed_text_is_repaired),
                                       cmocka_unit_test(long_pieces),
                                       cmocka_unit_test(other_tokenizers_are_refused),
                                       cmocka_unit_test(damage_is_refused),
                                       cmocka_unit_test(merges_as_pairs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
