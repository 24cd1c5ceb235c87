/* The golden case files, k3-nano's rank file, control names, special mode, decoding. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../golden/text_encode_cases.c" /* shared with other programs; compiled in here */

#define GOLDEN "tests/golden/k3-text/"
#define NANO "models/k3-nano/"

static ms_tokenizer *open_ranks(const char *path) {
    ms_tokenizer *t = NULL;
    ms_error err = {0};
    if (ms_tokenizer_open(&t, path, &err) != MS_OK) fail_msg("%s", err.message);
    return t;
}

static void encode(const ms_tokenizer *t, const char *text, size_t len, bool special, ms_ids *out) {
    ms_error err = {0};
    if (ms_tokenizer_encode(t, text, len, special, out, &err) != MS_OK) fail_msg("%s", err.message);
}

static void assert_ids(const ms_tokenizer *t, const char *text, bool special, const uint32_t *ids, size_t count) {
    ms_ids found = {0};
    encode(t, text, strlen(text), special, &found);
    assert_int_equal(found.count, count);
    assert_memory_equal(found.data, ids, count * sizeof *ids);
    ms_ids_free(&found);
}

/* ------------------------------------------------------------------ golden files */

typedef struct tally {
    size_t good, bad, skipped;
} tally;

static void count_case(void *arg, const char *name, bool ok, const char *detail) {
    tally *n = arg;
    if (!ok) {
        n->bad++;
        print_error("%s: %s\n", name, detail);
    } else if (strncmp(detail, "skipped", 7) == 0) {
        n->skipped++;
        print_message("%s: %s\n", name, detail);
    } else {
        n->good++;
    }
}

static void encode_cases(void **state) {
    (void)state;
    tally n = {0};
    assert_int_equal(golden_encode_file(GOLDEN "encode.json", NULL, count_case, &n), 0);
    assert_int_equal(n.good, 124);
}

static void stress_cases(void **state) {
    (void)state;
    tally n = {0};
    assert_int_equal(golden_encode_file(GOLDEN "stress.json", NULL, count_case, &n), 0);
    assert_int_equal(n.good, 26);
}

static void decode_cases(void **state) {
    (void)state;
    tally n = {0};
    assert_int_equal(golden_decode_file(GOLDEN "decode.json", NULL, count_case, &n), 0);
    assert_int_equal(n.good, 12);
}

static void files_without_ranks_are_skipped(void **state) {
    (void)state;
    tally n = {0};
    assert_int_equal(golden_encode_file(GOLDEN "encode-cl100k.json", NULL, count_case, &n), 0);
    assert_int_equal(golden_encode_file(GOLDEN "official-ids.json", NULL, count_case, &n), 0);
    assert_int_equal(n.skipped, 2);
    assert_int_equal(n.good + n.bad, 0);
}

/* The driver itself must be able to fail. */
static void swallow(void *arg, const char *name, bool ok, const char *detail) {
    (void)name;
    *(size_t *)arg += !ok && detail[0] != '\0';
}

static void driver_reports_differences(void **state) {
    (void)state;
    size_t bad = 0;
    ms_tokenizer *t = open_ranks(GOLDEN "tok4096.tiktoken");
    assert_int_equal(golden_encode_file(GOLDEN "no-such.json", NULL, swallow, &bad), 1);
    assert_int_equal(golden_encode_file(GOLDEN "stress.json", t, swallow, &bad), 1);
    assert_true(golden_encode_file(GOLDEN "official-ids.json", t, swallow, &bad) > 50);
    assert_true(bad > 52);
    ms_tokenizer_close(t);
}

/* ------------------------------------------------------------------ round trips */

static void assert_round_trip(const ms_tokenizer *t, const char *bytes, size_t len) {
    ms_ids ids = {0};
    ms_text repaired = {0}, back = {0};
    encode(t, bytes, len, false, &ids);
    ms_utf8_repair(&repaired, bytes, len);
    assert_int_equal(ms_tokenizer_decode(t, ids.data, ids.count, false, &back, NULL), MS_OK);
    assert_int_equal(back.len, repaired.len);
    if (back.len > 0) assert_memory_equal(back.data, repaired.data, back.len);
    ms_ids_free(&ids);
    ms_text_free(&repaired);
    ms_text_free(&back);
}

static void nano_round_trips(void **state) {
    (void)state;
    static const char *const texts[] = {
        "",
        "a",
        "What is the capital of France?",
        "  two  spaces\r\n\r\n and lines \n",
        "caf\xC3\xA9 \xE4\xB8\xAD\xE6\x96\x87",
        "\xF0\x9F\x91\x8B\xF0\x9F\x8F\xBD \xE0\xA4\xA8\xE0\xA4\xAE",
        "bad \xFF\xC0\xAF\xED\xA0\x80 bytes \xF0\x9F",
        "<|open|>message<|sep|>",
        "{\"name\": [1, 2.5e-3, null]}",
        "1234567890123",
        "I'LL we're it'\xC5\xBF",
    };
    ms_tokenizer *t = open_ranks(NANO "tiktoken.model");
    assert_int_equal(ms_tokenizer_ranks(t), 3840);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) assert_round_trip(t, texts[i], strlen(texts[i]));
    assert_round_trip(t, "nul\0inside\0", 11);
    uint32_t seed = 1;
    for (int round = 0; round < 300; round++) {
        char bytes[200];
        for (size_t i = 0; i < sizeof bytes; i++) {
            seed = seed * 1664525u + 1013904223u;
            bytes[i] = (char)(round % 2 ? seed >> 24 : (seed >> 24) % 64 + 32);
        }
        assert_round_trip(t, bytes, sizeof bytes);
    }
    ms_tokenizer_close(t);
}

static void every_nano_token_is_found_again(void **state) {
    (void)state;
    ms_tokenizer *t = open_ranks(NANO "tiktoken.model");
    size_t whole = 0;
    for (uint32_t id = 0; id < ms_tokenizer_ranks(t); id++) {
        size_t len;
        const uint8_t *bytes = ms_tokenizer_token(t, id, &len);
        assert_non_null(bytes);
        assert_true(len > 0);
        if (!ms_utf8_valid(bytes, len)) continue;
        ms_ids ids = {0};
        encode(t, (const char *)bytes, len, false, &ids);
        whole += ids.count == 1 && ids.data[0] == id;
        ms_ids_free(&ids);
    }
    assert_true(whole > 3500); /* the others span pieces or are parts of code points */
    size_t len = 1;
    assert_null(ms_tokenizer_token(t, ms_tokenizer_ranks(t), &len));
    assert_int_equal(len, 0);
    ms_tokenizer_close(t);
}

static void digest_depends_on_the_tokens(void **state) {
    (void)state;
    ms_tokenizer *a = open_ranks(NANO "tiktoken.model"), *b = open_ranks(NANO "tiktoken.model");
    ms_tokenizer *c = open_ranks(GOLDEN "tok4096.tiktoken");
    assert_true(ms_tokenizer_digest(a) == ms_tokenizer_digest(b));
    assert_true(ms_tokenizer_digest(a) != ms_tokenizer_digest(c));
    ms_tokenizer_close(a);
    ms_tokenizer_close(b);
    ms_tokenizer_close(c);
}

/* ------------------------------------------------------------------ control ids */

static void control_names_follow_the_ranks(void **state) {
    (void)state;
    ms_tokenizer *t = open_ranks(NANO "tiktoken.model");
    assert_null(ms_tokenizer_control_name(t, 3839));
    assert_string_equal(ms_tokenizer_control_name(t, 3840), "[BOS]");
    assert_string_equal(ms_tokenizer_control_name(t, 3840 + MS_CTL_END_OF_MSG), "<|end_of_msg|>");
    assert_string_equal(ms_tokenizer_control_name(t, 3840 + MS_CTL_OPEN), "<|open|>");
    assert_string_equal(ms_tokenizer_control_name(t, 3840 + MS_CTL_CLOSE), "<|close|>");
    assert_string_equal(ms_tokenizer_control_name(t, 3840 + MS_CTL_SEP), "<|sep|>");
    assert_string_equal(ms_tokenizer_control_name(t, 3848), "<|reserved_token_3848|>");
    assert_string_equal(ms_tokenizer_control_name(t, 3840 + 65), "<osagent_mode>");
    assert_string_equal(ms_tokenizer_control_name(t, 4095), "[PAD]");
    assert_null(ms_tokenizer_control_name(t, 4096));
    assert_null(ms_tokenizer_control_name(t, UINT32_MAX));
    ms_tokenizer_close(t);
}

static void special_mode_knows_every_name(void **state) {
    (void)state;
    ms_tokenizer *t = open_ranks(GOLDEN "tok-stress.tiktoken");
    uint32_t base = ms_tokenizer_ranks(t);
    for (uint32_t i = 0; i < MS_CONTROL_COUNT; i++) {
        const char *name = ms_tokenizer_control_name(t, base + i);
        uint32_t id = base + i;
        assert_ids(t, name, true, &id, 1);
        ms_ids plain = {0};
        encode(t, name, strlen(name), false, &plain);
        assert_true(plain.count > 1);
        for (size_t k = 0; k < plain.count; k++) assert_true(plain.data[k] < base);
        ms_ids_free(&plain);
    }
    ms_tokenizer_close(t);
}

static void special_mode_refuses_near_names(void **state) {
    (void)state;
    static const char *const texts[] = {
        "<|reserved_token_278|>",  /* listed: [BOS] */
        "<|reserved_token_0287|>", "<|reserved_token_287", "<|reserved_token_287|", "<|reserved_token_534|>",
        "<|reserved_token_277|>",  "<|reserved_token_|>",  "<|reserved_token_99999999999999999999|>", "[BOS", "[bos]",
        "<|open|",                 "<| open|>",            "<",
    };
    ms_tokenizer *t = open_ranks(GOLDEN "tok-stress.tiktoken");
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        ms_ids special = {0}, plain = {0};
        encode(t, texts[i], strlen(texts[i]), true, &special);
        encode(t, texts[i], strlen(texts[i]), false, &plain);
        assert_int_equal(special.count, plain.count);
        assert_memory_equal(special.data, plain.data, plain.count * sizeof *plain.data);
        ms_ids_free(&special);
        ms_ids_free(&plain);
    }
    assert_ids(t, "<<|open|>[[BOS]", true, (const uint32_t[]){27, 281, 58, 278}, 4);
    ms_tokenizer_close(t);
}

static void check_config(const ms_tokenizer *t, const char *text, ms_status status, const char *message) {
    ms_json_doc *doc = NULL;
    ms_error err = {0};
    assert_int_equal(ms_json_parse(&doc, text, strlen(text), "test", NULL, &err), MS_OK);
    assert_int_equal(ms_tokenizer_check_names(t, ms_json_root(doc), "dir/tokenizer_config.json", &err), status);
    if (status != MS_OK) {
        assert_non_null(strstr(err.message, "dir/tokenizer_config.json"));
        assert_non_null(strstr(err.message, message));
    }
    ms_json_free(doc);
}

static void config_names_are_compared(void **state) {
    (void)state;
    ms_tokenizer *t = open_ranks(NANO "tiktoken.model");
    ms_text config = {0};
    ms_error err = {0};
    assert_true(read_whole(&config, NANO "tokenizer_config.json", &err));
    check_config(t, config.data, MS_OK, "");
    ms_text_free(&config);
    check_config(t, "{\"added_tokens_decoder\": {}}", MS_OK, "");
    check_config(t, "{\"added_tokens_decoder\": {\"3841\": {\"content\": \"[BOS]\"}}}", MS_ERR_FORMAT,
                 "id 3841: expected the name '[EOS]', found '[BOS]'");
    check_config(t, "{\"added_tokens_decoder\": {\"3841\": {\"content\": \"[EOS]\\u0000\"}}}", MS_ERR_FORMAT, "3841");
    check_config(t, "{\"added_tokens_decoder\": {\"4096\": {\"content\": \"[EOS]\"}}}", MS_ERR_FORMAT,
                 "id 4096 is not a control id, expected 3840 to 4095");
    check_config(t, "{\"added_tokens_decoder\": {\"3841\": {}}}", MS_ERR_FORMAT,
                 "id 3841: expected a string 'content'");
    check_config(t, "{\"added_tokens_decoder\": {\"38x1\": {}}}", MS_ERR_FORMAT, "38x1");
    check_config(t, "{\"added_tokens_decoder\": []}", MS_ERR_FORMAT, "expected an object");
    check_config(t, "[]", MS_ERR_FORMAT, "expected an object");
    ms_tokenizer_close(t);
}

/* ------------------------------------------------------------------ decoding */

static void decode_hides_names_unless_asked(void **state) {
    (void)state;
    ms_tokenizer *t = open_ranks(GOLDEN "tok-stress.tiktoken");
    const uint32_t ids[] = {64, 281, 65, 160, 283}; /* a <|open|> b, a cut code point, <|sep|> */
    ms_text out = {0};
    ms_error err = {0};
    assert_int_equal(ms_tokenizer_decode(t, ids, 5, false, &out, &err), MS_OK);
    assert_string_equal(out.data, "ab\xEF\xBF\xBD");
    ms_text_free(&out);
    assert_int_equal(ms_tokenizer_decode(t, ids, 5, true, &out, &err), MS_OK);
    assert_string_equal(out.data, "a<|open|>b\xEF\xBF\xBD<|sep|>");
    ms_text_free(&out);
    const uint32_t beyond[] = {64, 278 + 256};
    assert_int_equal(ms_tokenizer_decode(t, beyond, 2, true, &out, &err), MS_ERR_USAGE);
    assert_string_equal(err.message, "token id 534 at position 1 is beyond the last id 533");
    ms_text_free(&out);
    assert_int_equal(ms_tokenizer_decode(t, NULL, 0, true, &out, &err), MS_OK);
    assert_int_equal(out.len, 0);
    ms_tokenizer_close(t);
}

static void encode_appends(void **state) {
    (void)state;
    ms_tokenizer *t = open_ranks(GOLDEN "tok-stress.tiktoken");
    ms_ids ids = {0};
    encode(t, "a", 1, false, &ids);
    encode(t, NULL, 0, false, &ids);
    encode(t, "abc", 3, false, &ids);
    assert_int_equal(ids.count, 2);
    assert_int_equal(ids.data[0], 64);
    assert_int_equal(ids.data[1], 258);
    ms_ids_free(&ids);
    assert_null(ids.data);
    ms_tokenizer_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(encode_cases),
        cmocka_unit_test(stress_cases),
        cmocka_unit_test(decode_cases),
        cmocka_unit_test(files_without_ranks_are_skipped),
        cmocka_unit_test(driver_reports_differences),
        cmocka_unit_test(nano_round_trips),
        cmocka_unit_test(every_nano_token_is_found_again),
        cmocka_unit_test(digest_depends_on_the_tokens),
        cmocka_unit_test(control_names_follow_the_ranks),
        cmocka_unit_test(special_mode_knows_every_name),
        cmocka_unit_test(special_mode_refuses_near_names),
        cmocka_unit_test(config_names_are_compared),
        cmocka_unit_test(decode_hides_names_unless_asked),
        cmocka_unit_test(encode_appends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
