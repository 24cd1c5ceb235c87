/* The generated class tables against the ranges they were made from, and known totals. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/unicode.h"

enum { CODE_POINTS = 0x110000 };

static const uint32_t white[] = {0x09,   0x0A,   0x0B,   0x0C,   0x0D,   0x20,   0x85,   0xA0,   0x1680,
                                 0x2000, 0x2001, 0x2002, 0x2003, 0x2004, 0x2005, 0x2006, 0x2007, 0x2008,
                                 0x2009, 0x200A, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000};

static unsigned flags_of(const char *name) {
    unsigned flags = MS_UC_ANY;
    switch (name[0]) {
    case 'U': flags |= MS_UC_UP | MS_UC_LETTER; break;
    case 'l': flags |= MS_UC_LO | MS_UC_LETTER; break;
    case 'o': flags |= MS_UC_UP | MS_UC_LO | MS_UC_LETTER; break;
    case 'M': flags |= MS_UC_UP | MS_UC_LO; break;
    case 'N': flags |= MS_UC_NUMBER; break;
    case 'P': break;
    default: fail_msg("class %s", name);
    }
    if (name[1] == 'h') flags = (flags & ~(unsigned)(MS_UC_UP | MS_UC_LO)) | MS_UC_HAN;
    return flags;
}

static void tables_match_the_ranges(void **state) {
    (void)state;
    uint8_t *expected = malloc(CODE_POINTS);
    assert_non_null(expected);
    memset(expected, MS_UC_ANY, CODE_POINTS);
    for (size_t i = 0; i < sizeof white / sizeof white[0]; i++) expected[white[i]] |= MS_UC_WHITE;
    FILE *file = fopen("tests/golden/k3-text/unicode16-classes.tsv", "r");
    assert_non_null(file);
    char line[256], name[8];
    unsigned first, last;
    size_t ranges = 0;
    while (fgets(line, sizeof line, file) != NULL) {
        if (line[0] == '#') continue;
        assert_int_equal(sscanf(line, "%x %x %7s", &first, &last, name), 3);
        assert_true(first <= last && last < CODE_POINTS);
        for (unsigned cp = first; cp <= last; cp++) expected[cp] = (uint8_t)flags_of(name);
        ranges++;
    }
    assert_int_equal(fclose(file), 0);
    assert_int_equal(ranges, 2360);
    for (uint32_t cp = 0; cp < CODE_POINTS; cp++) assert_int_equal(ms_unicode_class(cp), expected[cp]);
    free(expected);
}

static void totals(void **state) {
    (void)state;
    size_t han = 0, up = 0, lo = 0, number = 0, letter = 0, space = 0, cut = 0;
    for (uint32_t cp = 0; cp < CODE_POINTS; cp++) {
        unsigned class = ms_unicode_class(cp);
        han += (class & MS_UC_HAN) != 0;
        up += (class & MS_UC_UP) != 0;
        lo += (class & MS_UC_LO) != 0;
        number += (class & MS_UC_NUMBER) != 0;
        letter += (class & MS_UC_LETTER) != 0;
        space += (class & MS_UC_WHITE) != 0;
        cut += ms_unicode_cut_space(cp);
        assert_true(class & MS_UC_ANY);
    }
    assert_int_equal(han, 99030);
    assert_int_equal(up, 42584);
    assert_int_equal(lo, 42953);
    assert_int_equal(number, 1911);
    assert_int_equal(letter, 141028);
    assert_int_equal(space, 25);
    assert_int_equal(cut, 29);
}

static void special_code_points(void **state) {
    (void)state;
    assert_int_equal(ms_unicode_class(0x3007), MS_UC_ANY | MS_UC_HAN | MS_UC_NUMBER); /* ideographic zero */
    assert_int_equal(ms_unicode_class(0x2F00), MS_UC_ANY | MS_UC_HAN);                /* radical */
    assert_int_equal(ms_unicode_class(0x16FF0), MS_UC_ANY | MS_UC_HAN);               /* Han mark */
    assert_int_equal(ms_unicode_class(0x3006), MS_UC_ANY | MS_UC_UP | MS_UC_LO | MS_UC_LETTER);
    assert_int_equal(ms_unicode_class(0x2EBF0), MS_UC_ANY | MS_UC_HAN | MS_UC_LETTER); /* extension I */
    assert_int_equal(ms_unicode_class(0x200B), MS_UC_ANY);
    assert_int_equal(ms_unicode_class(0xFEFF), MS_UC_ANY);
    assert_int_equal(ms_unicode_class(0x1C), MS_UC_ANY);
    assert_int_equal(ms_unicode_class(0x301), MS_UC_ANY | MS_UC_UP | MS_UC_LO);
    assert_int_equal(ms_unicode_class(0x110000), MS_UC_ANY);
    assert_int_equal(ms_unicode_class(UINT32_MAX), MS_UC_ANY);
    assert_true(ms_unicode_cut_space(0x1C) && ms_unicode_cut_space(0x1F) && ms_unicode_cut_space(0x3000));
    assert_false(ms_unicode_cut_space(0x1B) || ms_unicode_cut_space(0x200B) || ms_unicode_cut_space('a'));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables_match_the_ranges),
        cmocka_unit_test(totals),
        cmocka_unit_test(special_code_points),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
