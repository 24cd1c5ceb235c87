/* libFuzzer target: arbitrary bytes as a rank file, and as text for a file of known ranks.
 *
 *     make CC=clang SAN=address,undefined,fuzzer-no-link BUILD=build-fuzz MODULES="base text" lib
 *     clang -g -D_GNU_SOURCE -fsanitize=fuzzer,address,undefined -Iinclude -Isrc tests/fuzz/fuzz_tokenizer.c \
 *         build-fuzz/libmoonshine.a -llzma -lm -o build-fuzz/fuzz_tokenizer
 *
 * First byte: bit 0 rank file or text; bit 1 special mode; bits 2..4 small cut limits.  Properties of a text:
 * its ids decode to the repaired text; its pieces cover it; the stream, fed byte by byte, gives it too.
 */
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds) {
    if (!holds) abort();
}

/* Lines for the 256 single bytes. */
static void put_bytes(ms_text *file) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (unsigned b = 0; b < 256; b++) ms_text_printf(file, "%c%c== %u\n", digits[b >> 2], digits[(b & 3) << 4], b);
}

/* All bytes, then a few longer tokens that merge in several ways. */
static ms_tokenizer *known_ranks(void) {
    static const char *const more[] = {"YWE=", "YWI=", "YmM=", "YWJj", "YWFh", "IGE=", "CgoK", "w6k=", "5Lit", "ICA="};
    ms_text file = {0};
    put_bytes(&file);
    for (unsigned i = 0; i < sizeof more / sizeof more[0]; i++) ms_text_printf(&file, "%s %u\n", more[i], 256 + i);
    ms_tokenizer *t = NULL;
    require(ms_tokenizer_parse(&t, file.data, file.len, "known", NULL) == MS_OK);
    ms_text_free(&file);
    return t;
}

static void check_same(const ms_text *a, const ms_text *b) {
    require(a->len == b->len && (a->len == 0 || memcmp(a->data, b->data, a->len) == 0));
}

static void check_text(const ms_tokenizer *t, const uint8_t *bytes, size_t len, bool special, size_t run) {
    const char *text = (const char *)bytes;
    ms_ids ids = {0}, ends = {0};
    ms_text repaired = {0}, pieces = {0}, back = {0}, streamed = {0};
    ms_utf8_stream stream = {0};
    ms_cut_limits limits = {.chunk_chars = 3 * run, .run_chars = run};
    if (run == 0)
        require(ms_tokenizer_encode(t, text, len, special, &ids, NULL) == MS_OK);
    else
        require(ms_tokenizer_encode_cut(t, text, len, special, &limits, &ids, NULL) == MS_OK);
    ms_utf8_repair(&repaired, bytes, len);
    require(ms_utf8_valid(repaired.data, repaired.len));
    require(ms_tokenizer_decode(t, ids.data, ids.count, true, &back, NULL) == MS_OK);
    check_same(&back, &repaired);
    require(ms_tokenizer_pieces(t, text, len, special, &pieces, &ends, NULL) == MS_OK);
    check_same(&pieces, &repaired);
    for (size_t i = 0; i < ends.count; i++) require(ends.data[i] > (i == 0 ? 0 : ends.data[i - 1]));
    require((ends.count == 0 ? 0 : ends.data[ends.count - 1]) == repaired.len);
    for (size_t i = 0; i < len; i++) ms_utf8_stream_push(&stream, bytes + i, 1, &streamed);
    ms_utf8_stream_end(&stream, &streamed);
    check_same(&streamed, &repaired);
    ms_ids_free(&ids);
    ms_ids_free(&ends);
    ms_text_free(&repaired);
    ms_text_free(&pieces);
    ms_text_free(&back);
    ms_text_free(&streamed);
}

/* A file of its own rarely has all bytes, so the input also follows the 256 that are known to be good. */
static void check_rank_file(const uint8_t *bytes, size_t len) {
    ms_text file = {0};
    ms_tokenizer *t = NULL;
    ms_error err = {0};
    require((ms_tokenizer_parse(&t, (const char *)bytes, len, "input", &err) == MS_OK) == (t != NULL));
    require(t != NULL || strncmp(err.message, "input: line ", 12) == 0);
    ms_tokenizer_close(t);
    put_bytes(&file);
    ms_text_append(&file, bytes, len);
    if (ms_tokenizer_parse(&t, file.data, file.len, "input", &err) == MS_OK) {
        require(ms_tokenizer_ranks(t) >= 256);
        check_text(t, bytes, len, false, 0);
        ms_tokenizer_close(t);
    } else {
        require(t == NULL && strncmp(err.message, "input: line ", 12) == 0);
    }
    ms_text_free(&file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    if (data[0] & 1) {
        check_rank_file(data + 1, size - 1);
        return 0;
    }
    ms_tokenizer *t = known_ranks();
    check_text(t, data + 1, size - 1, (data[0] & 2) != 0, data[0] >> 2 & 7);
    ms_tokenizer_close(t);
    return 0;
}
