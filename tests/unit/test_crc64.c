/* CRC-64/XZ: the catalogue's check value, chaining, empty input. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/crc64.h"

/* Bit by bit from the polynomial, as an independent reference. */
static uint64_t slow_crc64(const uint8_t *p, size_t n) {
    uint64_t crc = ~UINT64_C(0);
    for (size_t i = 0; i < n; i++) {
        crc ^= p[i];
        for (int b = 0; b < 8; b++) crc = crc & 1 ? crc >> 1 ^ UINT64_C(0xC96C5795D7870F42) : crc >> 1;
    }
    return ~crc;
}

static void known_answers(void **state) {
    (void)state;
    assert_true(ms_crc64(0, "123456789", 9) == UINT64_C(0x995DC9BBDF1939FA));
    assert_true(ms_crc64(0, NULL, 0) == 0);
    assert_true(ms_crc64(77, NULL, 0) == 77);
}

static void matches_the_polynomial_at_every_length_and_cut(void **state) {
    (void)state;
    uint8_t data[600];
    uint32_t x = 1;
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)((x = x * 1664525u + 1013904223u) >> 24);
    for (size_t n = 0; n <= sizeof data; n++) {
        uint64_t want = slow_crc64(data, n);
        assert_true(ms_crc64(0, data, n) == want);
        size_t cut = n * 3 / 7;
        assert_true(ms_crc64(ms_crc64(0, data, cut), data + cut, n - cut) == want);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_answers),
        cmocka_unit_test(matches_the_polynomial_at_every_length_and_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
