/* UTF-8 validation, decoding, repair and the streaming reader. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "base/utf8.h"
#include "text/tokenizer.h"

#define FFFD "\xEF\xBF\xBD"

typedef struct sample {
    const char *bytes;
    size_t len;
    const char *repaired;
} sample;

#define SAMPLE(bytes, repaired) {bytes, sizeof bytes - 1, repaired}

static const sample samples[] = {
    SAMPLE("", ""),
    SAMPLE("plain ASCII, longer than eight bytes", "plain ASCII, longer than eight bytes"),
    SAMPLE("\xC3\xA9\xE4\xB8\xAD\xF0\x9F\x91\x8B", "\xC3\xA9\xE4\xB8\xAD\xF0\x9F\x91\x8B"),
    SAMPLE("a\x80" "b", "a" FFFD "b"),
    SAMPLE("\x80\xBF", FFFD FFFD),
    SAMPLE("\xC0\xAF", FFFD FFFD),
    SAMPLE("\xC1\xBF", FFFD FFFD),
    SAMPLE("\xC3", FFFD),
    SAMPLE("\xC3(", FFFD "("),
    SAMPLE("\xE0\x80\xAF", FFFD FFFD FFFD),
    SAMPLE("\xE0\x9F\x80", FFFD FFFD FFFD),
    SAMPLE("\xE0\xA0\x80", "\xE0\xA0\x80"),
    SAMPLE("\xE4\xB8", FFFD),
    SAMPLE("\xE4\xB8z", FFFD "z"),
    SAMPLE("\xE4\xB8\xE4\xB8\xAD", FFFD "\xE4\xB8\xAD"),
    SAMPLE("\xED\x9F\xBF", "\xED\x9F\xBF"),
    SAMPLE("\xED\xA0\x80", FFFD FFFD FFFD),
    SAMPLE("\xED\xBF\xBF", FFFD FFFD FFFD),
    SAMPLE("\xED\xA0" "a", FFFD FFFD "a"),
    SAMPLE("\xED\xA0", FFFD FFFD),
    SAMPLE("\xEE\x80\x80\xEF\xBF\xBF", "\xEE\x80\x80\xEF\xBF\xBF"),
    SAMPLE("\xF0\x8F\xBF\xBF", FFFD FFFD FFFD FFFD),
    SAMPLE("\xF0\x90\x80\x80", "\xF0\x90\x80\x80"),
    SAMPLE("\xF0\x9F\x91", FFFD),
    SAMPLE("\xF0\x9F\x91\xC3\xA9", FFFD "\xC3\xA9"),
    SAMPLE("\xF0\x9F\xF0\x9F\x91\x8B", FFFD "\xF0\x9F\x91\x8B"),
    SAMPLE("\xF4\x8F\xBF\xBF", "\xF4\x8F\xBF\xBF"),
    SAMPLE("\xF4\x90\x80\x80", FFFD FFFD FFFD FFFD),
    SAMPLE("\xF5\x80\xFE\xFF", FFFD FFFD FFFD FFFD),
    SAMPLE("eight ok\xFF" "eight ok", "eight ok" FFFD "eight ok"),
    SAMPLE(FFFD, FFFD),
};
enum { SAMPLES = sizeof samples / sizeof samples[0] };

static void assert_text(ms_text *found, const char *expected) {
    assert_int_equal(found->len, strlen(expected));
    if (found->len > 0) assert_memory_equal(found->data, expected, found->len);
    ms_text_free(found);
}

static void repair_replaces_each_subpart(void **state) {
    (void)state;
    for (size_t i = 0; i < SAMPLES; i++) {
        ms_text out = {0};
        ms_utf8_repair(&out, samples[i].bytes, samples[i].len);
        assert_text(&out, samples[i].repaired);
    }
}

static void valid_means_nothing_to_repair(void **state) {
    (void)state;
    for (size_t i = 0; i < SAMPLES; i++) {
        bool same = samples[i].len == strlen(samples[i].repaired) &&
                    memcmp(samples[i].bytes, samples[i].repaired, samples[i].len) == 0;
        assert_int_equal(ms_utf8_valid(samples[i].bytes, samples[i].len), same);
    }
    assert_int_equal(ms_utf8_valid_prefix("0123456789\xC3\xA9\xC3", 13), 12);
    assert_true(ms_utf8_valid("a\0b", 3));
}

static void every_code_point_round_trips(void **state) {
    (void)state;
    for (uint32_t cp = 0; cp <= 0x110010; cp++) {
        char bytes[4];
        unsigned len = ms_utf8_encode(cp, bytes);
        uint32_t back = 0;
        bool bad = true;
        assert_int_equal(ms_utf8_decode((const uint8_t *)bytes, len, &back, &bad), len);
        assert_false(bad);
        bool scalar = cp <= 0x10FFFF && (cp < 0xD800 || cp > 0xDFFF);
        assert_int_equal(back, scalar ? cp : MS_UTF8_REPLACEMENT);
        for (unsigned cut = 1; cut < len; cut++) {
            ms_utf8_fault fault;
            assert_int_equal(ms_utf8_decode_fault((const uint8_t *)bytes, cut, &back, &fault), cut);
            assert_int_equal(fault, MS_UTF8_CUT);
        }
    }
}

static void a_literal_replacement_is_no_fault(void **state) {
    (void)state;
    uint32_t cp = 0;
    bool bad = true;
    assert_int_equal(ms_utf8_decode((const uint8_t *)FFFD, 3, &cp, &bad), 3);
    assert_int_equal(cp, 0xFFFD);
    assert_false(bad);
    assert_int_equal(ms_utf8_decode((const uint8_t *)"\xFF", 1, &cp, &bad), 1);
    assert_int_equal(cp, 0xFFFD);
    assert_true(bad);
    assert_int_equal(ms_utf8_decode((const uint8_t *)"", 0, &cp, NULL), 0);
}

/* However a text is cut into pushes, the stream gives the repaired text. */
static void stream_gives_the_repaired_text(void **state) {
    (void)state;
    for (size_t i = 0; i < SAMPLES; i++) {
        for (size_t step = 1; step <= 4; step++) {
            ms_utf8_stream stream = {0};
            ms_text out = {0};
            for (size_t at = 0; at < samples[i].len; at += step) {
                size_t len = samples[i].len - at < step ? samples[i].len - at : step;
                ms_utf8_stream_push(&stream, (const uint8_t *)samples[i].bytes + at, len, &out);
                assert_true(stream.count <= 3);
            }
            ms_utf8_stream_end(&stream, &out);
            assert_int_equal(stream.count, 0);
            assert_text(&out, samples[i].repaired);
        }
    }
}

static void push_shows(ms_utf8_stream *stream, const char *bytes, const char *shown) {
    ms_text out = {0};
    ms_utf8_stream_push(stream, (const uint8_t *)bytes, strlen(bytes), &out);
    assert_text(&out, shown);
}

static void stream_shows_what_is_decided(void **state) {
    (void)state;
    ms_utf8_stream s = {0};
    push_shows(&s, "a\xF0\x9F", "a");
    push_shows(&s, "\x91", "");
    push_shows(&s, "\x8B" "b\xE4", "\xF0\x9F\x91\x8B" "b");
    push_shows(&s, "c", FFFD "c");
    push_shows(&s, "\xC0", FFFD);
    push_shows(&s, "\xF4\x90", FFFD FFFD);
    push_shows(&s, "\xE0\x80", FFFD FFFD);
    push_shows(&s, "\xED\xA0", ""); /* a surrogate waits for its third byte */
    push_shows(&s, "d", FFFD FFFD "d");
    push_shows(&s, "\xED\x9F", "");
    push_shows(&s, "\xF0", FFFD);
    ms_text out = {0};
    ms_utf8_stream_end(&s, &out);
    assert_text(&out, FFFD);
    ms_utf8_stream_end(&s, &out);
    assert_text(&out, "");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(repair_replaces_each_subpart),
        cmocka_unit_test(valid_means_nothing_to_repair),
        cmocka_unit_test(every_code_point_round_trips),
        cmocka_unit_test(a_literal_replacement_is_no_fault),
        cmocka_unit_test(stream_gives_the_repaired_text),
        cmocka_unit_test(stream_shows_what_is_decided),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
