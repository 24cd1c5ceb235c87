/* The pre-tokenizer scanner on the unusual cases, and the hard cuts with small and with real limits. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/pretokenize.h"

#define WAVE "\xF0\x9F\x91\x8B"
#define KA "\xE3\x82\xAB"    /* katakana letter, Lo */
#define TA "\xE3\x82\xBF"
#define ACUTE "\xCC\x81"     /* a mark */
#define ZHONG "\xE4\xB8\xAD" /* Han letter */
#define ZERO "\xE3\x80\x87"  /* Han number */
#define RADICAL "\xE2\xBC\x80"
#define CLOSING "\xE3\x80\x86" /* U+3006: letter, not Han */
#define COMMA "\xE3\x80\x81"
#define LONG_S "\xC5\xBF"
#define TITLE "\xC7\x85" /* Lt */
#define NBSP "\xC2\xA0"
#define ZWSP "\xE2\x80\x8B"
#define WIDE "\xE3\x80\x80"

/* Pieces are written with '|' between them; the text is the same without the bars. */
static void check(const char *marked) {
    char text[256], found[512];
    size_t len = 0, out = 0;
    for (const char *p = marked; *p != '\0'; p++) {
        if (*p != '|') text[len++] = *p;
    }
    for (size_t at = 0; at < len;) {
        size_t piece = ms_pretoken_next((const uint8_t *)text + at, len - at);
        assert_true(piece > 0 && piece <= len - at);
        if (at > 0) found[out++] = '|';
        memcpy(found + out, text + at, piece);
        out += piece;
        at += piece;
    }
    found[out] = '\0';
    assert_string_equal(found, marked);
}

static void words(void **state) {
    (void)state;
    check("Hello| world");
    check("get|HTTPResponse");
    check("ABC");
    check("ABCd|Ef");
    check("a| B");
    check("\tx| y|-z|.W");
    check("a|\n|b");
    check("_a|_B|__|c");
    check(TITLE "a|" TITLE "B");
    check(KA TA "|A");       /* the greedy upper run gives back to the last letter that is lower too */
    check(KA "A" TA "|AB");
    check(KA "Ab|A");
    check(NBSP "a| b");
}

static void contractions(void **state) {
    (void)state;
    check("it's| IT'S| we're| I've| you'll| he'd| I'm| don't");
    check("X'RE|x'Ve|x'lL");
    check("a'" LONG_S "|b");
    check("a|'|1");
    check("a|'x| a|'r| a|'v| a|'l");
    check("a|'");
    check("a|'rx| a|'le");
    check("a's|s");
    check("a's|'s");
    check("a|\xE2\x80\x99s");    /* typographic apostrophe is a prefix only */
    check("'s's|'s"); /* a prefix, a letter, a contraction; then the same start again */
    check("1|'s");
}

static void marks(void **state) {
    (void)state;
    check("e" ACUTE "|X");
    check(ACUTE "a");
    check("1|" ACUTE "|2");
    check(" " ACUTE "a");
    check("." ACUTE "|B");
    check("A" ACUTE "|A");
    check(ACUTE ACUTE);
    check("1|" ACUTE);
    check("!" ACUTE);
}

static void han(void **state) {
    (void)state;
    check(ZHONG ZHONG "|a");
    check(" |" ZHONG "| |" ZHONG);
    check("a|" ZHONG);
    check(ZHONG "|" COMMA "|" ZHONG);
    check(ZHONG ZERO RADICAL "|" CLOSING);
    check("1" ZERO "|" ZHONG);  /* a Han number that is not first counts as a number */
    check("!" RADICAL "!|a");   /* a radical that is not first counts as punctuation */
    check("." RADICAL "|" ZHONG);
}

static void numbers_and_punctuation(void **state) {
    (void)state;
    check("123|456|7");
    check("a|1|b");
    check(" |123|.|5");
    check(" ..|a| .|b|.c");
    check(" ...|\t|!");
    check("a| | !"); /* only a plain space starts a punctuation piece */
    check("a|\t|!");
    check("!?\r\n\n| x");
    check("!|\t\n|x");
    check(" " WAVE WAVE "\n");
    check("\x1C\x1D");
    check(ZWSP "a|1|" ZWSP);
}

static void white_space(void **state) {
    (void)state;
    check(" | a");
    check("  | a|  ");
    check("a|   ");
    check("a|  |\tb");
    check("a| |1");
    check("a| | |1");
    check("\n\n|a");
    check(" \n \n| | |1");
    check("a| \r\n\t\n| b");
    check("\t|!");
    check(NBSP "|!");
    check(WIDE "|" WIDE "a");
    check(" ");
    check("\r");
}

/* ------------------------------------------------------------------ cuts */

static void check_cuts(const char *marked, size_t chunk, size_t run) {
    char text[256], found[512];
    size_t len = 0, out = 0;
    for (const char *p = marked; *p != '\0'; p++) {
        if (*p != '|') text[len++] = *p;
    }
    ms_cutter cutter = {.limits = {.chunk_chars = chunk, .run_chars = run}};
    for (size_t at = 0; at < len;) {
        size_t part = ms_cutter_next(&cutter, (const uint8_t *)text + at, len - at);
        assert_true(part > 0 && part <= len - at);
        if (at > 0) found[out++] = '|';
        memcpy(found + out, text + at, part);
        out += part;
        at += part;
    }
    found[out] = '\0';
    assert_string_equal(found, marked);
}

static void small_cuts(void **state) {
    (void)state;
    check_cuts("abcdef", 6, 6);
    check_cuts("abcde|f", 6, 5);
    check_cuts("abc|def|g", 100, 3);
    check_cuts("abc def ghi", 100, 3);
    check_cuts("ab   cde|f", 8, 5);
    check_cuts("ab   |   c", 100, 3);
    check_cuts("abcd|efgh", 4, 4);
    check_cuts("abc|d|efg", 4, 3);    /* the run starts anew in each chunk */
    check_cuts("a|b|c", 1, 1);
    check_cuts("a b|b c", 100, 1);
    check_cuts("a \x1C\t|\x1F", 100, 3); /* the separators are space here */
    check_cuts("a" ZWSP "b|c", 100, 3);
    check_cuts(ZHONG ZHONG "|" ZHONG ZHONG "|" ZHONG, 2, 9); /* code points, not bytes */
    check_cuts("", 1, 1);
}

static void real_cuts(void **state) {
    (void)state;
    size_t len = 900000;
    uint8_t *text = malloc(len);
    assert_non_null(text);
    for (size_t i = 0; i < len; i++) text[i] = i % 10 == 9 ? ' ' : 'a';
    memset(text + 800000, 'b', 60000);
    static const size_t ends[] = {400000, 800000, 825000, 850000, 900000};
    ms_cutter cutter = {.limits = {.chunk_chars = 400000, .run_chars = 25000}};
    size_t at = 0, n = 0;
    while (at < len) {
        at += ms_cutter_next(&cutter, text + at, len - at);
        assert_true(n < sizeof ends / sizeof ends[0]);
        assert_int_equal(at, ends[n++]);
    }
    assert_int_equal(n, sizeof ends / sizeof ends[0]);
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words),       cmocka_unit_test(contractions),
        cmocka_unit_test(marks),       cmocka_unit_test(han),
        cmocka_unit_test(numbers_and_punctuation),
        cmocka_unit_test(white_space), cmocka_unit_test(small_cuts),
        cmocka_unit_test(real_cuts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
