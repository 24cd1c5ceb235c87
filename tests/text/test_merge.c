/* Byte-pair merging: the heap and the short form against a plain quadratic reference, and very long pieces. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/bpe_merge.h"

#define GOLDEN "tests/golden/k3-text/"

static uint32_t rng_state = 12345;
static uint32_t rng(uint32_t below) {
    rng_state = rng_state * 1664525u + 1013904223u;
    return (uint32_t)((uint64_t)(rng_state >> 4) * below >> 28);
}

static void open_table(ms_rank_table *table, const char *path) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    static char data[1 << 20];
    size_t len = fread(data, 1, sizeof data, file);
    assert_int_equal(fclose(file), 0);
    ms_error err = {0};
    *table = (ms_rank_table){0};
    if (ms_rank_table_parse(table, data, len, path, &err) != MS_OK) fail_msg("%s", err.message);
}

/* The rule as it is written: rescan everything before each join. */
static size_t reference(const ms_rank_table *table, const uint8_t *piece, size_t len, uint32_t *ids) {
    size_t start[513], count = len;
    if ((ids[0] = ms_rank_table_find(table, piece, len)) != MS_RANK_NONE) return 1;
    for (size_t i = 0; i <= len; i++) start[i] = i;
    for (;;) {
        uint32_t best = MS_RANK_NONE;
        size_t at = 0;
        for (size_t i = 0; i + 1 < count; i++) {
            uint32_t rank = ms_rank_table_find(table, piece + start[i], start[i + 2] - start[i]);
            if (rank < best) {
                best = rank;
                at = i;
            }
        }
        if (best == MS_RANK_NONE) break;
        memmove(start + at + 1, start + at + 2, (count - at - 1) * sizeof *start);
        count--;
    }
    for (size_t i = 0; i < count; i++) ids[i] = ms_rank_table_find(table, piece + start[i], start[i + 1] - start[i]);
    return count;
}

static void compare_random(const char *path, const char *alphabet, int rounds) {
    ms_rank_table table;
    ms_merge_space space = {0};
    ms_ids found = {0};
    open_table(&table, path);
    for (int round = 0; round < rounds; round++) {
        uint8_t piece[512];
        uint32_t ids[512];
        size_t len = 1 + rng(round % 10 == 0 ? 512 : 80);
        uint32_t letters = 1 + rng((uint32_t)strlen(alphabet));
        for (size_t i = 0; i < len; i++) piece[i] = (uint8_t)alphabet[rng(letters)];
        size_t count = reference(&table, piece, len, ids);
        found.count = 0;
        assert_int_equal(ms_merge_piece(&table, &space, piece, len, &found, NULL), MS_OK);
        assert_int_equal(found.count, count);
        assert_memory_equal(found.data, ids, count * sizeof *ids);
    }
    ms_ids_free(&found);
    ms_merge_space_clear(&space);
    ms_rank_table_clear(&table);
}

static void matches_the_reference(void **state) {
    (void)state;
    compare_random(GOLDEN "tok-stress.tiktoken", "abcdz", 2000);
    compare_random(GOLDEN "tok-stress.tiktoken", "abcdefghijklmnopqrstuvwxyz .,!\n", 500);
    compare_random(GOLDEN "tok4096.tiktoken", "etaoinshrdlucm ", 1000);
    compare_random("models/k3-nano/tiktoken.model", " etaoinshr0123456789\n\xE4\xB8\xAD", 1000);
}

/* Pieces far beyond the sizes where an engine that rescans, or recurses, would still come back. */
static void very_long_pieces(void **state) {
    (void)state;
    ms_rank_table table;
    ms_merge_space space = {0};
    ms_ids found = {0};
    open_table(&table, GOLDEN "tok-stress.tiktoken");
    size_t len = 3000000;
    uint8_t *piece = malloc(len);
    assert_non_null(piece);
    memset(piece, 'a', len);
    assert_int_equal(ms_merge_piece(&table, &space, piece, 25000, &found, NULL), MS_OK);
    size_t bytes = 0;
    for (size_t i = 0; i < found.count; i++)
        bytes += table.offsets[found.data[i] + 1] - table.offsets[found.data[i]];
    assert_int_equal(bytes, 25000);
    assert_int_equal(found.count, 6250); /* aaaa each time */
    for (size_t i = 0; i < found.count; i++) assert_int_equal(found.data[i], 265);
    found.count = 0;
    for (size_t i = 0; i < len; i++) piece[i] = (uint8_t)"abcdz"[rng(5)];
    assert_int_equal(ms_merge_piece(&table, &space, piece, len, &found, NULL), MS_OK);
    size_t at = 0;
    for (size_t i = 0; i < found.count; i++) {
        const uint8_t *token = table.bytes + table.offsets[found.data[i]];
        size_t token_len = table.offsets[found.data[i] + 1] - table.offsets[found.data[i]];
        assert_true(token_len <= len - at);
        assert_memory_equal(piece + at, token, token_len);
        at += token_len;
    }
    assert_int_equal(at, len);
    free(piece);
    ms_ids_free(&found);
    ms_merge_space_clear(&space);
    ms_rank_table_clear(&table);
}

static void edges(void **state) {
    (void)state;
    ms_rank_table table;
    ms_merge_space space = {0};
    ms_ids found = {0};
    ms_error err = {0};
    open_table(&table, GOLDEN "tok-stress.tiktoken");
    assert_int_equal(ms_merge_piece(&table, &space, (const uint8_t *)"", 0, &found, &err), MS_OK);
    assert_int_equal(found.count, 0);
    for (unsigned b = 0; b < 256; b++) {
        uint8_t byte = (uint8_t)b;
        found.count = 0;
        assert_int_equal(ms_merge_piece(&table, &space, &byte, 1, &found, &err), MS_OK);
        assert_int_equal(found.count, 1);
        assert_int_equal(table.bytes[table.offsets[found.data[0]]], b);
    }
    assert_int_equal(ms_merge_piece(&table, &space, (const uint8_t *)"a", (size_t)INT32_MAX + 1, &found, &err),
                     MS_ERR_USAGE);
    assert_int_equal(ms_rank_table_find(&table, (const uint8_t *)"", 0), MS_RANK_NONE);
    ms_ids_free(&found);
    ms_merge_space_clear(&space);
    ms_rank_table_clear(&table);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matches_the_reference),
        cmocka_unit_test(very_long_pieces),
        cmocka_unit_test(edges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
