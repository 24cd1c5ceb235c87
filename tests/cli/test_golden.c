/* The golden runner passes every set in tests/golden, and fails when an expected number is changed. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

/* Runs a shell command; gives its exit code and its last line. */
static int run(const char *command, char *last, size_t size) {
    FILE *p = popen(command, "r");
    assert_non_null(p);
    last[0] = 0;
    while (fgets(last, (int)size, p)) {}
    int status = pclose(p);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static const char *bin(void) {
    const char *b = getenv("MOONSHINE_BIN");
    return b && *b ? b : "build";
}

static void sets_pass(void **state) {
    (void)state;
    char command[1024], last[256];
    (void)snprintf(command, sizeof command, "'%s/golden' tests/golden", bin());
    assert_int_equal(run(command, last, sizeof last), 0);
    unsigned passed = 0, failed = 1;
    assert_int_equal(sscanf(last, "%u passed, %u failed", &passed, &failed), 2);
    assert_int_equal(failed, 0);
    assert_true(passed >= 300);
}

static void changed_number_fails(void **state) {
    (void)state;
    char command[2048], last[256];
    (void)snprintf(command, sizeof command,
                   "d=$(mktemp -d) && cp -r tests/golden/k3/k3-tiny-a \"$d/a\" && chmod -R u+w \"$d\" && "
                   "sed -i 's/\"greedy\":\\[228,6/\"greedy\":[228,7/' \"$d\"/a/golden/p16.json && '%s/golden' \"$d\"; "
                   "code=$?; rm -rf \"$d\"; exit $code",
                   bin());
    assert_int_equal(run(command, last, sizeof last), 1);
    assert_non_null(strstr(last, "1 failed"));
}

static void nothing_found_fails(void **state) {
    (void)state;
    char command[1024], last[256];
    (void)snprintf(command, sizeof command, "'%s/golden' tests/text", bin());
    assert_int_equal(run(command, last, sizeof last), 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(sets_pass), cmocka_unit_test(changed_number_fails),
                                       cmocka_unit_test(nothing_found_fails)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
