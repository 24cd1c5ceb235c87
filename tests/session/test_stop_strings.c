/* Stop strings in streamed text: every cut of a text gives the same result. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "session/stop_strings.h"

/* Feeds text in pieces of `step` bytes; compares what comes out and whether it matched. */
static void run(const char *const *stops, const char *text, size_t step, const char *want, bool matched) {
    ms_stop_strings s = {0};
    ms_text out = {0};
    ms_error err;
    for (; *stops; stops++) assert_int_equal(ms_stop_strings_add(&s, *stops, strlen(*stops), &err), MS_OK);
    for (int again = 0; again < 2; again++) {
        ms_stop_strings_restart(&s);
        out.len = 0;
        ms_text_append(&out, "", 0);
        for (size_t at = 0, len = strlen(text); at < len; at += step) {
            size_t n = len - at < step ? len - at : step;
            assert_int_equal(ms_stop_strings_push(&s, text + at, n, &out, &err), MS_OK);
        }
        assert_int_equal(ms_stop_strings_finish(&s, &out, &err), MS_OK);
        assert_string_equal(out.data, want);
        assert_int_equal(s.matched, matched);
    }
    ms_text_free(&out);
    ms_stop_strings_free(&s);
}

#define STOPS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void the_earliest_match_wins(void **state) {
    (void)state;
    for (size_t step = 1; step < 12; step++) {
        run(STOPS("end"), "the end of it", step, "the ", true);
        run(STOPS("it", "of i"), "the end of it", step, "the end ", true);
        run(STOPS("aab"), "aaaab", step, "aa", true);
        run(STOPS("abab", "babx"), "aababx", step, "a", true);
        run(STOPS("abcx", "bc"), "abcd", step, "a", true);
        run(STOPS("xyz"), "xyxyxy", step, "xyxyxy", false);
        run(STOPS("\xC3\xA9t"), "un \xC3\xA9t\xC3\xA9", step, "un ", true);
        run(STOPS("all"), "all", step, "", true);
    }
}

static void only_a_possible_beginning_is_held_back(void **state) {
    (void)state;
    ms_stop_strings s = {0};
    ms_text out = {0};
    ms_error err;
    assert_int_equal(ms_stop_strings_add(&s, "stop", 4, &err), MS_OK);
    assert_int_equal(ms_stop_strings_push(&s, "a sto", 5, &out, &err), MS_OK);
    assert_string_equal(out.data, "a ");
    assert_int_equal(ms_stop_strings_push(&s, "rm st", 5, &out, &err), MS_OK);
    assert_string_equal(out.data, "a storm ");
    assert_int_equal(ms_stop_strings_push(&s, "op now", 6, &out, &err), MS_OK);
    assert_int_equal(ms_stop_strings_push(&s, " more", 5, &out, &err), MS_OK);
    assert_string_equal(out.data, "a storm ");
    ms_text_free(&out);
    ms_stop_strings_free(&s);
}

static void limits(void **state) {
    (void)state;
    ms_stop_strings s = {0};
    ms_error err;
    assert_int_equal(ms_stop_strings_add(&s, "", 0, &err), MS_ERR_USAGE);
    for (unsigned i = 0; i < MS_STOP_STRINGS_MAX; i++) assert_int_equal(ms_stop_strings_add(&s, "x", 1, &err), MS_OK);
    assert_int_equal(ms_stop_strings_add(&s, "x", 1, &err), MS_ERR_USAGE);
    ms_stop_strings_free(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_earliest_match_wins),
        cmocka_unit_test(only_a_possible_beginning_is_held_back),
        cmocka_unit_test(limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
