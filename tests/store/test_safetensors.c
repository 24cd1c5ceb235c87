/* SafeTensors headers: what is accepted, and each way a header can be wrong. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "store/safetensors.h"
#include "store_util.h"

#define A "\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}"
#define B "\"b\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[24,32]}"

static ms_status parse(const char *header, uint64_t payload, ms_safetensors *s, ms_error *err) {
    size_t n = strlen(header);
    return ms_safetensors_parse(s, header, n, 8 + n + payload, "x.safetensors", err);
}

static void test_good(void **state) {
    (void)state;
    ms_safetensors s = {0};
    ms_error err = {0};
    const char *header = "{\"__metadata__\":{\"format\":\"pt\"}," B "," A
                         ",\"scalar\":{\"data_offsets\":[32,40],\"shape\":[],\"dtype\":\"I64\"}"
                         ",\"none\":{\"dtype\":\"U8\",\"shape\":[5,0],\"data_offsets\":[32,32]}}   ";
    assert_int_equal(parse(header, 40, &s, &err), MS_OK);
    assert_int_equal(s.count, 4);
    assert_int_equal(s.data_offset, 8 + strlen(header));
    const char *const order[] = {"a", "b", "none", "scalar"};
    for (size_t i = 0; i < 4; i++) assert_string_equal(s.entries[i].name, order[i]);
    assert_int_equal(s.entries[0].dtype, MS_DTYPE_F32);
    assert_int_equal(s.entries[0].dims, 2);
    assert_int_equal(s.entries[0].shape[1], 3);
    assert_int_equal(s.entries[1].begin, 24);
    assert_int_equal(s.entries[1].end, 32);
    assert_int_equal(s.entries[3].dims, 0);
    ms_safetensors_free(&s);
    assert_int_equal(parse("{}", 0, &s, &err), MS_OK);
    assert_int_equal(s.count, 0);
    ms_safetensors_free(&s);
}

typedef struct bad_case {
    const char *header;
    uint64_t payload;
    const char *parts[3];
} bad_case;

#define T(fields) "{\"a\":{" fields "}}"

static const bad_case bad_cases[] = {
    {"[]", 0, {"x.safetensors", "JSON object"}},
    {"{\"a\":", 0, {"x.safetensors"}},
    {"{" A "," A "}", 24, {"each key once", "\"a\""}},
    {"{" A "," B "}", 31, {"\"b\"", "data_offsets", "31 payload bytes"}},
    {"{" A "," B "}", 33, {"expected 32 payload bytes", "found 33"}},
    {"{" B "}", 32, {"\"b\"", "begin at 0", "hole"}},
    {"{" A ",\"b\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[20,28]}}",
     28,
     {"\"b\"", "begin at 24", "overlap"}},
    {"{" A ",\"b\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[28,36]}}", 36, {"\"b\"", "begin at 24", "hole"}},
    {T("\"dtype\":\"F33\",\"shape\":[1],\"data_offsets\":[0,4]"), 4, {"\"a\"", "dtype", "found \"F33\""}},
    {T("\"dtype\":4,\"shape\":[1],\"data_offsets\":[0,4]"), 4, {"\"a\"", "dtype", "found 4"}},
    {T("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]"), 4, {"\"a\"", "expected 8 bytes", "found 4"}},
    {T("\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]"), 4, {"\"a\"", "shape", "found [-1]"}},
    {T("\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]"), 4, {"\"a\"", "shape", "found [1.0]"}},
    {T("\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1],\"data_offsets\":[0,4]"), 4, {"\"a\"", "shape", "at most 6"}},
    {T("\"dtype\":\"F32\",\"shape\":1,\"data_offsets\":[0,4]"), 4, {"\"a\"", "shape", "found 1"}},
    /* 2^62 x 4 bytes wraps to 0 */
    {T("\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]"), 0, {"\"a\"", "shape", "2^64"}},
    {T("\"dtype\":\"U8\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]"), 0, {"\"a\"", "shape", "2^64"}},
    {T("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]"), 4, {"\"a\"", "begin <= end", "[4,0]"}},
    {T("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]"), 4, {"\"a\"", "two integers"}},
    {T("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]"), 4, {"\"a\"", "two integers"}},
    {T("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,18446744073709551616]"), 4, {"\"a\"", "two integers"}},
    {T("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,18446744073709551615]"),
     4,
     {"\"a\"", "within", "4 payload"}},
    {T("\"dtype\":\"F32\",\"shape\":[1]"), 4, {"\"a\"", "exactly dtype, shape and data_offsets"}},
    {T("\"dtype\":\"F32\",\"shape\":[1],\"offsets\":[0,4]"), 4, {"\"a\"", "data_offsets", "found nothing"}},
    {T("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1"), 4, {"\"a\"", "exactly"}},
    {"{\"a\":3}", 0, {"\"a\"", "an object", "found 3"}},
    {"{\"\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0, {"a name"}},
    {"{\"a\\u0000b\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0, {"U+0000"}},
    {"{\"__metadata__\":{\"format\":1}}", 0, {"__metadata__", "object of strings", "found 1"}},
    {"{\"__metadata__\":[]}", 0, {"__metadata__", "object of strings"}},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[[[[1]]]],\"data_offsets\":[0,1]}}", 1, {"levels of nesting"}},
};

static void test_bad(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof bad_cases / sizeof bad_cases[0]; i++) {
        const bad_case *c = &bad_cases[i];
        ms_safetensors s = {0};
        ms_error err = {0};
        ms_status status = parse(c->header, c->payload, &s, &err);
        for (int j = 0; j < 3 && c->parts[j]; j++)
            assert_error(status, &err, MS_ERR_FORMAT, "x.safetensors", c->parts[j]);
        assert_null(s.entries);
    }
}

/* Reading from a file: the length field against the file. */
static ms_status read_file(const void *data, size_t len, ms_error *err) {
    char dir[PATH_BYTES], path[PATH_BYTES];
    make_dir(dir);
    put_bytes(dir, "x.safetensors", data, len);
    path_in(path, dir, "x.safetensors");
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    ms_safetensors s = {0};
    char *text = NULL;
    ms_status status = ms_safetensors_read(&s, &text, fd, len, path, err);
    if (status == MS_OK) {
        ms_safetensors_free(&s);
        free(text);
    }
    (void)close(fd);
    remove_dir(dir);
    return status;
}

static void test_length(void **state) {
    (void)state;
    ms_error err = {0};
    char file[16] = {2, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
    assert_int_equal(read_file(file, 10, &err), MS_OK);
    assert_error(read_file(file, 9, &err), &err, MS_ERR_FORMAT, "x.safetensors", "header length", "9 bytes", "found 2");
    assert_error(read_file(file, 7, &err), &err, MS_ERR_FORMAT, "x.safetensors", "at least 8 bytes", "found 7");
    assert_error(read_file(file, 0, &err), &err, MS_ERR_FORMAT, "at least 8 bytes", "found 0");
    ms_put_le64(file, UINT64_MAX);
    assert_error(read_file(file, 10, &err), &err, MS_ERR_FORMAT, "at most 100000000", "found 18446744073709551615");
    ms_put_le64(file, 100000001);
    assert_error(read_file(file, 10, &err), &err, MS_ERR_FORMAT, "at most 100000000", "found 100000001");
    ms_put_le64(file, 100000000);
    assert_error(read_file(file, 10, &err), &err, MS_ERR_FORMAT, "inside the file of 10 bytes", "found 100000000");
    /* the limit itself is fine when the file is that long */
    assert_int_equal(ms_safetensors_check_length(100000000, 100000008, "x", &err), MS_OK);
    assert_int_equal(ms_safetensors_check_length(100000000, 100000007, "x", NULL), MS_ERR_FORMAT);
}

static void test_dtypes(void **state) {
    (void)state;
    assert_string_equal(ms_dtype_name(MS_DTYPE_BF16), "BF16");
    assert_string_equal(ms_dtype_name(MS_DTYPE_F8_E4M3), "F8_E4M3");
    assert_int_equal(ms_dtype_bytes(MS_DTYPE_F32), 4);
    assert_int_equal(ms_dtype_bytes(MS_DTYPE_BOOL), 1);
    assert_int_equal(ms_dtype_bytes(MS_DTYPE_F64), 8);
    assert_string_equal(ms_dtype_name((ms_dtype)99), "unknown");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),
        cmocka_unit_test(test_bad),
        cmocka_unit_test(test_length),
        cmocka_unit_test(test_dtypes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
