/* Reading rank files: what is accepted, and one clear error for everything else. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "text/rank_table.h"
#include "text/tokenizer.h"

static void put_line(ms_text *out, const uint8_t *bytes, size_t len, unsigned rank, const char *line_end) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < len; i += 3) {
        uint32_t group = (uint32_t)bytes[i] << 16;
        if (i + 1 < len) group |= (uint32_t)bytes[i + 1] << 8;
        if (i + 2 < len) group |= bytes[i + 2];
        char four[4];
        for (int k = 0; k < 4; k++) four[k] = digits[group >> (18 - 6 * k) & 63];
        if (i + 2 >= len) four[3] = '=';
        if (i + 1 >= len) four[2] = '=';
        ms_text_append(out, four, 4);
    }
    ms_text_printf(out, " %u%s", rank, line_end);
}

/* The 256 single bytes without `skip` (256: all). */
static void put_bytes(ms_text *out, unsigned skip, const char *line_end) {
    unsigned rank = 0;
    for (unsigned b = 0; b < 256; b++) {
        uint8_t byte = (uint8_t)b;
        if (b != skip) put_line(out, &byte, 1, rank++, line_end);
    }
}

static void expect_good(ms_text *data, uint32_t ranks) {
    ms_tokenizer *t = NULL;
    ms_error err = {0};
    if (ms_tokenizer_parse(&t, data->data, data->len, "x.model", &err) != MS_OK) fail_msg("%s", err.message);
    assert_int_equal(ms_tokenizer_ranks(t), ranks);
    ms_tokenizer_close(t);
    ms_text_free(data);
}

static void expect_bad(ms_text *data, const char *message) {
    ms_tokenizer *t = NULL;
    ms_error err = {0};
    assert_int_equal(ms_tokenizer_parse(&t, data->data, data->len, "x.model", &err), MS_ERR_FORMAT);
    assert_null(t);
    assert_string_equal(err.message, message);
    ms_text_free(data);
}

/* All single bytes, then this as line 257. */
static void expect_bad_line(const char *line, const char *message) {
    ms_text data = {0};
    put_bytes(&data, 256, "\n");
    ms_text_puts(&data, line);
    expect_bad(&data, message);
}

static void good_line_ends(void **state) {
    (void)state;
    ms_text data = {0};
    put_bytes(&data, 256, "\n");
    expect_good(&data, 256);
    put_bytes(&data, 256, "\r\n");
    expect_good(&data, 256);
    put_bytes(&data, 256, "\n");
    ms_text_puts(&data, "QUI= 256"); /* no line end */
    expect_good(&data, 257);
    ms_text_puts(&data, "\n\r\n");
    put_bytes(&data, 256, "\r\n\n");
    ms_text_puts(&data, "QUJD 256\n\n\n");
    expect_good(&data, 257);
}

static void bad_base64(void **state) {
    (void)state;
    expect_bad_line("QU! 256\n", "x.model: line 257: bad base64 text 'QU!'");
    expect_bad_line("QUI 256\n", "x.model: line 257: bad base64 text 'QUI'");
    expect_bad_line("QU!= 256\n", "x.model: line 257: bad base64 text 'QU!='");
    expect_bad_line("QUJ= 256\n", "x.model: line 257: bad base64 text 'QUJ='"); /* bits left over */
    expect_bad_line("QR== 256\n", "x.model: line 257: bad base64 text 'QR=='");
    expect_bad_line("Q=== 256\n", "x.model: line 257: bad base64 text 'Q==='");
    expect_bad_line("==== 256\n", "x.model: line 257: bad base64 text '===='");
    expect_bad_line("QQ==QUI= 256\n", "x.model: line 257: bad base64 text 'QQ==QUI='");
    expect_bad_line("\xFF\x01zz 256\n", "x.model: line 257: bad base64 text '?" "?zz'");
    expect_bad_line("\tQUI= 256\n", "x.model: line 257: bad base64 text '?QUI='");
}

static void bad_rank(void **state) {
    (void)state;
    expect_bad_line("QUI= 257\n", "x.model: line 257: expected rank 256, found '257'");
    expect_bad_line("QUI= 255\n", "x.model: line 257: expected rank 256, found '255'");
    expect_bad_line("QUI= \n", "x.model: line 257: expected rank 256, found ''");
    expect_bad_line("QUI=  256\n", "x.model: line 257: expected rank 256, found ' 256'");
    expect_bad_line("QUI= 256 \n", "x.model: line 257: expected rank 256, found '256 '");
    expect_bad_line("QUI= -256\n", "x.model: line 257: expected rank 256, found '-256'");
    expect_bad_line("QUI= 0x100\n", "x.model: line 257: expected rank 256, found '0x100'");
    expect_bad_line("QUI= 18446744073709551872\n",
                    "x.model: line 257: expected rank 256, found '18446744073709551872'");
    expect_bad_line("\n\r\nQUI= 7\n", "x.model: line 259: expected rank 256, found '7'");
}

static void bad_tokens(void **state) {
    (void)state;
    expect_bad_line(" 256\n", "x.model: line 257: empty token");
    expect_bad_line("QUI=\n", "x.model: line 257: expected '<base64> <rank>', found 'QUI='");
    expect_bad_line("QUI=\t256\n", "x.model: line 257: expected '<base64> <rank>', found 'QUI=?256'");
    expect_bad_line("QUI= 256\nQUJD 257\nQUI= 258\n", "x.model: line 259: token 'QUI=' repeats rank 256");
    expect_bad_line("QQ== 256\n", "x.model: line 257: token 'QQ==' repeats rank 65");
}

static void missing_bytes(void **state) {
    (void)state;
    ms_text data = {0};
    put_bytes(&data, 0x41, "\n");
    put_line(&data, (const uint8_t *)"bc", 2, 255, "\n");
    expect_bad(&data, "x.model: line 256: the file ends without a token for the single byte 0x41");
    put_bytes(&data, 0xFF, "\n");
    expect_bad(&data, "x.model: line 255: the file ends after 255 ranks, expected at least 256");
    ms_text_puts(&data, "\n\n");
    expect_bad(&data, "x.model: line 2: the file ends after 0 ranks, expected at least 256");
    expect_bad(&data, "x.model: line 1: the file is empty, expected at least 256 ranks");
}

static void long_tokens_and_lines(void **state) {
    (void)state;
    ms_text data = {0};
    uint8_t *bytes = malloc(70000);
    assert_non_null(bytes);
    memset(bytes, 'x', 70000);
    put_bytes(&data, 256, "\n");
    put_line(&data, bytes, 70000, 256, "\n");
    free(bytes);
    expect_good(&data, 257);
    put_bytes(&data, 256, "\n");
    for (int i = 0; i < 5000; i++) ms_text_puts(&data, "!");
    expect_bad(&data, "x.model: line 257: expected '<base64> <rank>', found "
                      "'!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!'");
}

static void sizes_are_limited(void **state) {
    (void)state;
    size_t len = (size_t)MS_RANK_FILE_MAX_BYTES + 1;
    char *data = malloc(len);
    assert_non_null(data);
    memset(data, '\n', len);
    ms_rank_table table = {0};
    ms_error err = {0};
    assert_int_equal(ms_rank_table_parse(&table, data, len, "x.model", &err), MS_ERR_FORMAT);
    assert_string_equal(err.message, "x.model: a rank file has at most 67108864 bytes, found 67108865");
    for (size_t i = 0; i < 2 * ((size_t)MS_RANK_MAX_COUNT + 1); i += 2) data[i] = 'A';
    assert_int_equal(ms_rank_table_parse(&table, data, len - 1, "x.model", &err), MS_ERR_FORMAT);
    assert_string_equal(err.message, "x.model: a rank file has at most 4194304 ranks, found 4194305 lines");
    assert_null(table.bytes);
    free(data);
}

static void files(void **state) {
    (void)state;
    char dir[] = "/tmp/ms-rank-XXXXXX", path[64];
    assert_non_null(mkdtemp(dir));
    (void)snprintf(path, sizeof path, "%s/ranks", dir);
    ms_tokenizer *t = NULL;
    ms_error err = {0};
    assert_int_equal(ms_tokenizer_open(&t, path, &err), MS_ERR_IO);
    assert_non_null(strstr(err.message, path));
    assert_null(t);
    assert_int_equal(ms_tokenizer_open(&t, dir, &err), MS_ERR_FORMAT);
    assert_non_null(strstr(err.message, dir));
    assert_non_null(strstr(err.message, "expected a regular file, found a directory"));
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(ms_tokenizer_open(&t, path, &err), MS_ERR_FORMAT); /* and does not wait */
    assert_non_null(strstr(err.message, "expected a regular file, found a FIFO"));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(ms_tokenizer_open(&t, "/dev/zero", &err), MS_ERR_FORMAT);
    assert_non_null(strstr(err.message, "found a device"));
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_true(fputs("QQ== 0\nQg== 2\n", file) >= 0);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(ms_tokenizer_open(&t, path, &err), MS_ERR_FORMAT);
    assert_non_null(strstr(err.message, "/ranks: line 2: expected rank 1, found '2'"));
    assert_int_equal(ms_tokenizer_open(&t, path, NULL), MS_ERR_FORMAT);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0);
}

/* Every truncation of a real file is read or refused, never worse. */
static void truncated_files(void **state) {
    (void)state;
    ms_text data = {0};
    put_bytes(&data, 256, "\n");
    size_t full = data.len;
    for (size_t len = 0; len < full - 4; len++) {
        char *copy = malloc(len + 1); /* exact size, so that a sanitizer sees reads beyond it */
        assert_non_null(copy);
        memcpy(copy, data.data, len);
        ms_tokenizer *t = NULL;
        ms_error err = {0};
        assert_int_equal(ms_tokenizer_parse(&t, copy, len, "x.model", &err), MS_ERR_FORMAT);
        assert_non_null(strstr(err.message, "x.model: line "));
        free(copy);
    }
    ms_text_free(&data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_line_ends),        cmocka_unit_test(bad_base64),        cmocka_unit_test(bad_rank),
        cmocka_unit_test(bad_tokens),            cmocka_unit_test(missing_bytes),
        cmocka_unit_test(long_tokens_and_lines), cmocka_unit_test(sizes_are_limited), cmocka_unit_test(files),
        cmocka_unit_test(truncated_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
