/* fuzz_hf_tokenizer.c: any bytes as a tokenizer.json; what is accepted must encode and decode.
 *
 * Input that begins with 0xFF goes to form C and the encoder of a good file instead: nearly no random file is accepted.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/nfc.h"
#include "text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The byte alphabet, one merge and one added token. */
static ms_tokenizer *small_tokenizer(void) {
    ms_text t = {0};
    ms_error err;
    ms_tokenizer *out;
    ms_text_puts(
        &t, "{\"added_tokens\":[{\"id\":257,\"content\":\"<x>\",\"special\":true}],\"normalizer\":{\"type\":\"NFC\"},"
            "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":"
            "\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}| "
            "?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|"
            "\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"},\"behavior\":\"Isolated\",\"invert\":false},"
            "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]},\"model\":{\"type\":\"BPE\","
            "\"vocab\":{");
    for (unsigned b = 0, next = 256; b < 256; b++) {
        bool plain = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b != 0xAD);
        char letter[4];
        ms_text_puts(&t, b ? ",\"" : "\"");
        if (b == '"' || b == '\\') ms_text_puts(&t, "\\");
        ms_text_append(&t, letter, ms_utf8_encode(plain ? b : next++, letter));
        ms_text_printf(&t, "\":%u", b);
    }
    ms_text_puts(&t, ",\"ab\":256},\"merges\":[\"a b\"]}}");
    if (ms_tokenizer_parse_hf(&out, t.data, t.len, "small", &err) != MS_OK) {
        (void)fprintf(stderr, "%s\n", err.message);
        abort();
    }
    ms_text_free(&t);
    return out;
}

/* Ids give the normalised text back; form C is a fixed point. */
static void round_trip(const ms_tokenizer *t, const char *text, size_t len, bool normal) {
    ms_ids ids = {0};
    ms_text repaired = {0}, want = {0}, again = {0}, back = {0};
    ms_error err;
    if (ms_tokenizer_encode(t, text, len, false, &ids, &err) != MS_OK) abort();
    if (ms_tokenizer_decode(t, ids.data, ids.count, false, &back, &err) != MS_OK) abort();
    ms_utf8_repair(&repaired, text, len);
    ms_nfc(&want, (const uint8_t *)repaired.data, repaired.len);
    ms_nfc(&again, (const uint8_t *)want.data, want.len);
    if (again.len != want.len || (want.len && memcmp(again.data, want.data, want.len) != 0)) abort();
    if (normal && (back.len != want.len || (want.len && memcmp(back.data, want.data, want.len) != 0))) abort();
    ids.count = 0;
    if (ms_tokenizer_encode(t, text, len, true, &ids, &err) != MS_OK) abort();
    for (size_t i = 0; i < ids.count; i++)
        if (ids.data[i] >= ms_tokenizer_ids(t)) abort();
    ms_ids_free(&ids);
    ms_text_free(&repaired);
    ms_text_free(&want);
    ms_text_free(&again);
    ms_text_free(&back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static ms_tokenizer *small; /* built once, for speed */
    if (!small) small = small_tokenizer();
    if (size && data[0] == 0xFF) {
        round_trip(small, (const char *)data + 1, size - 1, true);
        return 0;
    }
    ms_tokenizer *t = NULL;
    ms_error err = {0};
    ms_status st = ms_tokenizer_parse_hf(&t, (const char *)data, size, "fuzz", &err);
    if (st != MS_OK && (t || err.code != st || !err.message[0])) abort();
    if (st == MS_OK) round_trip(t, "some text ab <x> e\xCC\x81", 21, false);
    ms_tokenizer_close(t);
    return 0;
}
