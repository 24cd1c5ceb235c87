/* Fuzzes the expert store's codec: the input replaces bytes of a recorded front or block, then everything is parsed and
 * decoded by every decoder; all must agree. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "store/mzg2_encode.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const ms_expert_shape shape = {.hidden = 64, .inner = 32};

/* A small expert, coded: front and block that inputs are laid over. */
typedef struct base {
    ms_mzg2_layer layer;
    ms_mzg2_entry entry;
    uint8_t *front, *block, *expert;
    ms_mzg2_tables *tables;
} base;

static void make_base(base *b) {
    ms_mzg2_fit *fit;
    ms_mzg2_encoder *enc;
    size_t n = ms_expert_bytes(shape);
    b->expert = malloc(n);
    b->block = malloc(ms_mzg2_block_max_bytes(shape));
    b->tables = calloc(1, sizeof *b->tables);
    if (!b->expert || !b->block || !b->tables) abort();
    uint32_t r = 1;
    for (size_t i = 0; i < n; i++) {
        r = r * 1664525u + 1013904223u;
        b->expert[i] = i % (n / 3) >= n / 51 * 16 ? (uint8_t)(120 + (r >> 30)) : (uint8_t)(r >> 24 & r >> 16 & 0x77);
    }
    b->layer = (ms_mzg2_layer){.layer = 1, .experts = 1, .shape = shape, .index = &b->entry};
    if (ms_mzg2_fit_create(&fit, shape, NULL, NULL) != MS_OK) abort();
    ms_mzg2_fit_add(fit, b->expert);
    if (ms_mzg2_fit_sets(fit, b->layer.set, NULL) != MS_OK) abort();
    ms_mzg2_fit_destroy(fit);
    if (ms_mzg2_encoder_create(&enc, shape, b->layer.set, 0, NULL) != MS_OK) abort();
    ms_mzg2_encode(enc, b->block, b->expert, 0, &b->entry.payload_bytes, &b->entry.stored_bytes);
    ms_mzg2_encoder_destroy(enc);
    b->layer.first_block = b->entry.offset = ms_mzg2_layer_front_bytes(b->layer.set, 1);
    b->layer.file_bytes = b->layer.first_block + b->entry.stored_bytes;
    b->front = malloc((size_t)b->layer.first_block);
    if (!b->front) abort();
    ms_mzg2_layer_write(b->front, &b->layer);
    ms_mzg2_tables_expand(b->tables, &b->layer);
}

/* Input: pairs of a 16-bit place and a byte. */
static void lay_over(uint8_t *to, size_t length, const uint8_t *data, size_t size) {
    for (size_t i = 0; i + 3 <= size; i += 3) to[ms_le16(data + i) % length] = data[i + 2];
}

static void decode_all(const uint8_t *block, size_t stored, const ms_mzg2_tables *tables) {
    static const char *const names[] = {"scalar", "avx2", "avx512"};
    size_t n = ms_expert_bytes(shape);
    ms_mzg2_block b;
    if (ms_mzg2_block_open(&b, block, stored, 0, shape, NULL) != MS_OK) return;
    uint8_t *slot = malloc(n), *first = malloc(n);
    if (!slot || !first) abort();
    for (uint32_t t = 0; t < b.tiles; t++) {
        ms_mzg2_fault want = MS_MZG2_GOOD;
        for (int i = 0; i < 3; i++) {
            const ms_mzg2_codec *c = ms_mzg2_codec_find(names[i]);
            uint32_t bad = 0;
            if (!c) continue;
            memset(slot, 0, n);
            ms_mzg2_fault f = ms_mzg2_decode_tiles(c, slot, &b, tables, t, 1, &bad);
            if (i == 0) {
                want = f;
                memcpy(first, slot, n);
            }
            if (f != want || (f == MS_MZG2_GOOD && memcmp(first, slot, n) != 0)) abort();
        }
    }
    free(slot);
    free(first);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static base b;
    if (!b.front) make_base(&b);
    if (size < 1) return 0;
    if (data[0] % 4 == 0) {
        size_t n = (size_t)b.layer.first_block;
        uint8_t *front = malloc(n);
        ms_mzg2_layer l;
        if (!front) abort();
        memcpy(front, b.front, n);
        lay_over(front, n, data + 1, size - 1);
        if (ms_mzg2_layer_parse(&l, front, n, b.layer.file_bytes, NULL) == MS_OK) ms_mzg2_layer_free(&l);
        free(front);
    } else {
        uint8_t *block = malloc(b.entry.stored_bytes);
        if (!block) abort();
        memcpy(block, b.block, b.entry.stored_bytes);
        lay_over(block, b.entry.payload_bytes, data + 1, size - 1);
        decode_all(block, b.entry.stored_bytes, b.tables);
        free(block);
    }
    return 0;
}
