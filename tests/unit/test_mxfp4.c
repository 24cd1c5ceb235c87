/* MXFP4 experts: the known answer of the format, the slot layout against its formula, install and extract, refusals. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/bytes.h"
#include "quant/mxfp4.h"

#include <stdio.h>
#include <stdlib.h>

static uint8_t *source_bytes(ms_expert_shape s) {
    size_t n = ms_expert_bytes(s);
    uint8_t *p = malloc(n + 1);
    assert_non_null(p);
    uint32_t seed = 7;
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        p[i] = (uint8_t)(seed >> 24);
        if (p[i] == 255) p[i] = 254; /* everything else is legal, also as a scale */
    }
    return p;
}

/* One group of a real expert (scale byte 0x79) and its BF16 values. */
static void test_known_answer(void **state) {
    (void)state;
    static const uint8_t packed[16] = {0xab, 0x4c, 0x18, 0x65, 0x2c, 0x91, 0x04, 0x39,
                                       0x48, 0x94, 0x58, 0x33, 0x94, 0xb5, 0x5b, 0x30};
    static const uint16_t expected[32] = {0xbcc0, 0xbc80, 0xbd00, 0x3d00, 0x8000, 0x3c00, 0x3d40, 0x3d80,
                                          0xbd00, 0x3c80, 0x3c00, 0xbc00, 0x3d00, 0x0000, 0xbc00, 0x3cc0,
                                          0x8000, 0x3d00, 0x3d00, 0xbc00, 0x8000, 0x3d40, 0x3cc0, 0x3cc0,
                                          0x3d00, 0xbc00, 0x3d40, 0xbcc0, 0xbcc0, 0x3d40, 0x0000, 0x3cc0};
    ms_expert_shape s = {.hidden = 64, .inner = 32};
    uint8_t *source = calloc(1, ms_expert_bytes(s)), *slot = malloc(ms_expert_bytes(s));
    assert_non_null(source);
    assert_non_null(slot);
    /* w1 row 3, second group: row-major packed bytes, then scales after 32 rows of 32 bytes */
    memcpy(source + 3 * 32 + 16, packed, 16);
    source[32 * 32 + 3 * 2 + 1] = 0x79;
    assert_int_equal(ms_expert_install(slot, source, s, NULL), MS_OK);
    float row[64];
    ms_expert_row(row, slot, s, MS_W1, 3);
    for (int i = 0; i < 32; i++) assert_int_equal(ms_f32_bits(row[32 + i]), (uint32_t)expected[i] << 16);
    free(source);
    free(slot);
}

static void test_scale_values(void **state) {
    (void)state;
    assert_true(ms_e8m0(0) == 0x1p-127f && ms_e8m0(1) == 0x1p-126f && ms_e8m0(127) == 1.0f && ms_e8m0(254) == 0x1p127f);
    assert_true(ms_e8m0(255) != ms_e8m0(255));
    for (int i = 0; i < 16; i++) assert_true((float)ms_e2m1_doubled[i] == 2.0f * ms_e2m1[i]);
}

static void test_shapes(void **state) {
    (void)state;
    assert_int_equal(ms_expert_bytes((ms_expert_shape){.hidden = 3584, .inner = 3072}), 17547264);
    assert_true(ms_expert_shape_valid((ms_expert_shape){.hidden = 32, .inner = 32}));
    assert_false(ms_expert_shape_valid((ms_expert_shape){.hidden = 0, .inner = 32}));
    assert_false(ms_expert_shape_valid((ms_expert_shape){.hidden = 32, .inner = 0}));
    assert_false(ms_expert_shape_valid((ms_expert_shape){.hidden = 48, .inner = 32}));
    assert_false(ms_expert_shape_valid((ms_expert_shape){.hidden = 32, .inner = 33}));
    assert_false(ms_expert_shape_valid((ms_expert_shape){.hidden = 0xffffffe0u, .inner = 0xffffffe0u}));
}

/* Where the formula puts group g of row r: tiles of 32 rows, w1 and w3 alternating, then w2. */
static size_t formula(ms_expert_shape s, ms_expert_matrix m, uint32_t r, uint32_t g, size_t *scale) {
    size_t groups = (m == MS_W2 ? s.inner : s.hidden) / 32, tile_bytes = groups * 544, tile;
    if (m == MS_W2)
        tile = (size_t)s.inner / 32 * 2 * (s.hidden / 32 * 544) + r / 32 * tile_bytes;
    else
        tile = (r / 32 * 2 + (m == MS_W3 ? 1 : 0)) * tile_bytes;
    *scale = tile + groups * 512 + (size_t)g * 32 + r % 32;
    return tile + ((size_t)g * 32 + r % 32) * 16;
}

static void check_layout(ms_expert_shape s) {
    size_t bytes = ms_expert_bytes(s), groups_all = (size_t)s.hidden * s.inner / 32;
    uint8_t *source = source_bytes(s), *slot = malloc(bytes), *back = malloc(bytes), *moved = malloc(bytes + 1);
    assert_true(slot && back && moved);
    memcpy(moved + 1, source, bytes); /* any misalignment */
    assert_int_equal(ms_expert_install(slot, moved + 1, s, NULL), MS_OK);
    static const ms_expert_matrix order[3] = {MS_W1, MS_W2, MS_W3};
    for (size_t i = 0; i < 3; i++) {
        const uint8_t *packed = source + i * groups_all * 17, *scales = packed + groups_all * 16;
        uint32_t groups = ms_expert_groups(s, order[i]);
        for (uint32_t r = 0; r < ms_expert_rows(s, order[i]); r++) {
            for (uint32_t g = 0; g < groups; g++) {
                size_t scale, at = formula(s, order[i], r, g, &scale);
                assert_memory_equal(slot + at, packed + ((size_t)r * groups + g) * 16, 16);
                assert_int_equal(slot[scale], scales[(size_t)r * groups + g]);
            }
            size_t scale;
            assert_int_equal(ms_expert_tile_offset(s, order[i], r / 32), formula(s, order[i], r / 32 * 32, 0, &scale));
        }
    }
    ms_expert_extract(back, slot, s);
    assert_memory_equal(back, source, bytes);
    free(source);
    free(slot);
    free(back);
    free(moved);
}

static void test_layout(void **state) {
    (void)state;
    check_layout((ms_expert_shape){.hidden = 32, .inner = 32});
    check_layout((ms_expert_shape){.hidden = 96, .inner = 64});
    check_layout((ms_expert_shape){.hidden = 64, .inner = 160});
}

static void test_nan_scale(void **state) {
    (void)state;
    ms_expert_shape s = {.hidden = 96, .inner = 64};
    size_t groups_all = 96 * 64 / 32;
    static const struct {
        size_t matrix, row, group, groups;
        const char *text;
    } bad[] = {{0, 37, 2, 3, "w1 scale of row 37 group 2"},
               {1, 95, 1, 2, "w2 scale of row 95 group 1"},
               {2, 0, 0, 3, "w3 scale of row 0 group 0"}};
    for (size_t i = 0; i < 3; i++) {
        uint8_t *source = source_bytes(s), *slot = malloc(ms_expert_bytes(s));
        assert_non_null(slot);
        source[bad[i].matrix * groups_all * 17 + groups_all * 16 + bad[i].row * bad[i].groups + bad[i].group] = 255;
        source[0] = 255; /* two nibbles of -6: legal */
        ms_error err = {0};
        assert_int_equal(ms_expert_install(slot, source, s, &err), MS_ERR_FORMAT);
        if (!strstr(err.message, bad[i].text)) fail_msg("expected '%s' in '%s'", bad[i].text, err.message);
        free(source);
        free(slot);
    }
}

static uint8_t *read_file(const char *path, size_t expected) {
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("cannot open %s", path);
    uint8_t *p = malloc(expected + 1);
    assert_non_null(p);
    assert_int_equal(fread(p, 1, expected + 1, f), expected);
    (void)fclose(f);
    return p;
}

/* An independent slot image, which holds no negative zeros: code 8 stands as 0. */
static void test_golden_slot(void **state) {
    (void)state;
    ms_expert_shape s = {.hidden = 512, .inner = 256};
    size_t bytes = ms_expert_bytes(s), groups_all = (size_t)s.hidden * s.inner / 32;
    assert_int_equal(bytes, 208896);
    uint8_t *source = read_file("tests/golden/mzg2/expert.bin", bytes), *slot = malloc(bytes);
    uint8_t *expected = read_file("tests/golden/mzg2/slot.bin", bytes);
    assert_non_null(slot);
    for (size_t m = 0; m < 3; m++) {
        uint8_t *packed = source + m * groups_all * 17;
        for (size_t i = 0; i < groups_all * 16; i++) {
            if ((packed[i] & 15) == 8) packed[i] &= 0xf0;
            if (packed[i] >> 4 == 8) packed[i] &= 0x0f;
        }
    }
    assert_int_equal(ms_expert_install(slot, source, s, NULL), MS_OK);
    assert_memory_equal(slot, expected, bytes);
    free(source);
    free(slot);
    free(expected);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_answer), cmocka_unit_test(test_scale_values), cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_layout),       cmocka_unit_test(test_nan_scale),    cmocka_unit_test(test_golden_slot),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
