/* The MZG2 codec: recorded stores to the bit with every decoder, damage of every kind, own encoding. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "store/mzg2_encode.h"
#include "store/mzg2_signs.h"
#include "store/sha256.h"
#include "store_util.h"

static const char golden_dir[] = "tests/golden/mzg2";
static const char *const decoders[] = {"scalar", "avx2", "avx512"};
enum { DECODERS = 3 };

/* A layer file as read, its tables, and copies of single blocks whose ends the sanitizer watches. */
typedef struct store {
    char *file;
    size_t length;
    ms_mzg2_layer layer;
    ms_mzg2_tables *tables;
} store;

static void open_store(store *s, const char *name) {
    ms_error err = {0};
    get_bytes(golden_dir, name, &s->file, &s->length);
    if (ms_mzg2_layer_parse(&s->layer, (const uint8_t *)s->file, s->length, s->length, &err) != MS_OK)
        fail_msg("%s", err.message);
    s->tables = calloc(1, sizeof *s->tables);
    assert_non_null(s->tables);
    ms_mzg2_tables_expand(s->tables, &s->layer);
}

static void close_store(store *s) {
    free(s->file);
    free(s->tables);
    ms_mzg2_layer_free(&s->layer);
}

static uint8_t *copy_block(const store *s, uint32_t expert) {
    uint8_t *b = malloc(s->layer.index[expert].stored_bytes);
    assert_non_null(b);
    memcpy(b, s->file + s->layer.index[expert].offset, s->layer.index[expert].stored_bytes);
    return b;
}

static void must_open(ms_mzg2_block *b, const uint8_t *data, size_t length, uint32_t expert, ms_expert_shape shape) {
    ms_error err = {0};
    if (ms_mzg2_block_open(b, data, length, expert, shape, &err) != MS_OK) fail_msg("%s", err.message);
}

static void must_decode(const char *decoder, void *slot, const ms_mzg2_block *b, const ms_mzg2_tables *t) {
    ms_error err = {0};
    const ms_mzg2_codec *c = ms_mzg2_codec_find(decoder);
    assert_non_null(c);
    if (ms_mzg2_decode(c, slot, b, t, &err) != MS_OK) fail_msg("%s: %s", decoder, err.message);
}

/* Decodes all experts of a recorded store with each decoder this CPU has. */
static void decode_golden(const char *name, const char *source_name) {
    store s;
    open_store(&s, name);
    ms_expert_shape shape = s.layer.shape;
    size_t bytes = ms_expert_bytes(shape), source_bytes;
    char *source;
    get_bytes(golden_dir, source_name, &source, &source_bytes);
    assert_int_equal(source_bytes, bytes * s.layer.experts);
    for (int d = 0; d < DECODERS; d++) {
        if (!ms_mzg2_codec_find(decoders[d])) continue; /* another CPU's */
        for (uint32_t e = 0; e < s.layer.experts; e++) {
            uint8_t *block = copy_block(&s, e), *slot = malloc(bytes), *back = malloc(bytes), *want = malloc(bytes);
            ms_mzg2_block b;
            must_open(&b, block, s.layer.index[e].stored_bytes, e, shape);
            must_decode(decoders[d], slot, &b, s.tables);
            ms_expert_extract(back, slot, shape);
            memcpy(want, source + e * bytes, bytes);
            ms_mzg2_clear_zeros(want, shape);
            assert_memory_equal(back, want, bytes);
            free(block);
            free(slot);
            free(back);
            free(want);
        }
    }
    free(source);
    close_store(&s);
}

static void recorded_stores_decode(void **state) {
    (void)state;
    assert_non_null(ms_mzg2_codec_find("scalar"));
    assert_null(ms_mzg2_codec_find("other"));
    decode_golden("layer-001.mzg2", "expert.bin");
    decode_golden("layer-002.mzg2", "edge.bin");
}

static void front_is_written_as_read(void **state) {
    (void)state;
    static const char *const names[] = {"layer-001.mzg2", "layer-002.mzg2"};
    for (int i = 0; i < 2; i++) {
        store s;
        open_store(&s, names[i]);
        assert_int_equal(s.layer.first_block, ms_mzg2_layer_front_bytes(s.layer.set, s.layer.experts));
        uint8_t *front = malloc((size_t)s.layer.first_block);
        ms_mzg2_layer_write(front, &s.layer);
        assert_memory_equal(front, s.file, (size_t)s.layer.first_block);
        free(front);
        close_store(&s);
    }
}

/* The bits of a front never parse with one of them turned, nor when it is short. */
static void damaged_fronts_are_refused(void **state) {
    (void)state;
    store s;
    open_store(&s, "layer-002.mzg2");
    size_t n = 512 + 18448 + 132;
    uint8_t *front = malloc((size_t)s.layer.first_block);
    memcpy(front, s.file, (size_t)s.layer.first_block);
    uint32_t seed = 1;
    for (int i = 0; i < 3000; i++) {
        size_t bit = i < 512 * 8 / 2 ? (size_t)i * 2 : (seed = seed * 1664525u + 1013904223u) % (n * 8);
        front[bit / 8] ^= (uint8_t)(1u << bit % 8);
        ms_mzg2_layer l;
        ms_error err = {0};
        ms_status st = ms_mzg2_layer_parse(&l, front, (size_t)s.layer.first_block, s.length, &err);
        if (st != MS_ERR_FORMAT || !err.message[0]) fail_msg("bit %zu: not refused", bit);
        front[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    ms_mzg2_layer l;
    ms_error err = {0};
    assert_error(ms_mzg2_layer_parse(&l, front, (size_t)s.layer.first_block - 1, s.length, &err), &err, MS_ERR_FORMAT, "front");
    assert_error(ms_mzg2_layer_parse(&l, front, (size_t)s.layer.first_block, s.length - 4096, &err), &err, MS_ERR_FORMAT,
                 "file length");
    free(front);
    close_store(&s);
}

static uint32_t tile_of(const ms_mzg2_block *b, size_t at) {
    for (uint32_t t = 0; t < b->tiles; t++) {
        size_t begin = ms_le32(b->data + 16 + 12 * (size_t)t), length = ms_le32(b->data + 20 + 12 * (size_t)t) & 0x7fffffffu;
        if (at >= begin && at < begin + length) return t;
    }
    return UINT32_MAX;
}

/* Slot bytes of a tile; the whole slot for UINT32_MAX. */
static void place_of(ms_expert_shape s, uint32_t tile, size_t *at, size_t *bytes) {
    uint32_t first_w2 = 2 * (s.inner / 32);
    *at = 0;
    *bytes = ms_expert_bytes(s);
    if (tile == UINT32_MAX) return;
    ms_expert_matrix m = tile >= first_w2 ? MS_W2 : tile % 2 ? MS_W3 : MS_W1;
    *at = ms_expert_tile_offset(s, m, m == MS_W2 ? tile - first_w2 : tile / 2);
    *bytes = (size_t)ms_expert_groups(s, m) * 32 * 17;
}

/* Decodes what the bit may concern; true: refused, or the slot is as it was. */
static bool caught(const ms_mzg2_codec *c, const ms_mzg2_block *b, const store *s, uint32_t tile, uint8_t *slot,
                   const uint8_t *want) {
    uint32_t bad = UINT32_MAX, first = tile == UINT32_MAX ? 0 : tile, count = tile == UINT32_MAX ? b->tiles : 1;
    size_t at, bytes;
    place_of(b->shape, tile, &at, &bytes);
    ms_mzg2_fault f = ms_mzg2_decode_tiles(c, slot, b, s->tables, first, count, &bad);
    if (f != MS_MZG2_GOOD) return bad < b->tiles && ms_mzg2_fault_text(f)[0];
    return memcmp(slot + at, want + at, bytes) == 0;
}

/* 20,000 single bits turned over both stores, wherever they fall: refused by the head's checks or the tile's, or
 * harmless.  Every decoder must say the same. */
static void turned_bits_are_caught(void **state) {
    (void)state;
    static const char *const names[] = {"layer-001.mzg2", "layer-002.mzg2"};
    uint64_t seed = 7;
    unsigned refused = 0;
    for (int i = 0; i < 2; i++) {
        store s;
        open_store(&s, names[i]);
        size_t bytes = ms_expert_bytes(s.layer.shape);
        uint8_t *slot = malloc(bytes), *want = malloc(bytes);
        for (uint32_t e = 0; e < s.layer.experts; e++) {
            uint8_t *block = copy_block(&s, e);
            uint32_t stored = s.layer.index[e].stored_bytes;
            ms_mzg2_block b;
            must_open(&b, block, stored, e, s.layer.shape);
            must_decode("scalar", want, &b, s.tables);
            for (int n = 0; n < (i == 0 ? 16000 : 1000); n++) {
                seed = seed * 6364136223846793005u + 1442695040888963407u;
                size_t bit = (size_t)((seed >> 20) % (8ull * b.payload_bytes));
                uint32_t tile = tile_of(&b, bit / 8);
                block[bit / 8] ^= (uint8_t)(1u << bit % 8);
                ms_mzg2_block damaged;
                if (ms_mzg2_block_open(&damaged, block, stored, e, s.layer.shape, NULL) == MS_OK) {
                    for (int d = 0; d < DECODERS; d++) {
                        const ms_mzg2_codec *c = ms_mzg2_codec_find(decoders[d]);
                        if (c && !caught(c, &damaged, &s, tile, slot, want))
                            fail_msg("%s, expert %u, bit %zu, %s: decoded to other bytes", names[i], e, bit, decoders[d]);
                    }
                } else {
                    refused++;
                }
                block[bit / 8] ^= (uint8_t)(1u << bit % 8);
            }
            free(block);
        }
        free(slot);
        free(want);
        close_store(&s);
    }
    assert_true(refused > 100); /* the head's own checks have been reached */
}

/* A block that ends at any tile's border, a tile that is two bytes short or long, a payload cut to fit. */
static void truncations_are_caught(void **state) {
    (void)state;
    store s;
    open_store(&s, "layer-001.mzg2");
    size_t bytes = ms_expert_bytes(s.layer.shape);
    uint8_t *slot = malloc(bytes), *block = copy_block(&s, 0);
    uint32_t stored = s.layer.index[0].stored_bytes;
    ms_mzg2_block b;
    must_open(&b, block, stored, 0, s.layer.shape);
    ms_error err = {0};
    for (uint32_t t = 0; t < b.tiles; t++) {
        uint8_t *entry = block + 16 + 12 * (size_t)t;
        uint32_t at = ms_le32(entry), length = ms_le32(entry + 4), payload = b.payload_bytes;
        for (int edge = 0; edge < 2; edge++) { /* the block ends where a tile begins, or ends */
            size_t cut = at + (edge ? length : 0);
            uint8_t *piece = malloc(cut);
            memcpy(piece, block, cut);
            ms_mzg2_block short_block;
            assert_int_equal(ms_mzg2_block_open(&short_block, piece, cut, 0, s.layer.shape, &err), MS_ERR_FORMAT);
            free(piece);
        }
        ms_put_le32(block + 12, at); /* the payload ends in front of the tile */
        ms_mzg2_block cut_block;
        assert_int_equal(ms_mzg2_block_open(&cut_block, block, stored, 0, s.layer.shape, &err), MS_ERR_FORMAT);
        ms_put_le32(block + 12, payload);
        static const int changes[] = {-2, 2};
        for (int k = 0; k < 2; k++) {
            ms_put_le32(entry + 4, length + (uint32_t)changes[k]);
            if (ms_mzg2_block_open(&cut_block, block, stored, 0, s.layer.shape, &err) == MS_OK) {
                for (int d = 0; d < DECODERS; d++) {
                    uint32_t bad = UINT32_MAX;
                    const ms_mzg2_codec *c = ms_mzg2_codec_find(decoders[d]);
                    if (!c) continue;
                    assert_int_equal(ms_mzg2_decode_tiles(c, slot, &cut_block, s.tables, 0, b.tiles, &bad), MS_MZG2_BAD_WORDS);
                    assert_int_equal(bad, t);
                }
            }
        }
        ms_put_le32(entry + 4, length);
    }
    free(block);
    free(slot);
    close_store(&s);
}

/* Blocks of random bytes behind a valid head: nothing outside is touched (the sanitizer watches), nothing decodes. */
static void noise_is_refused(void **state) {
    (void)state;
    store s;
    open_store(&s, "layer-001.mzg2");
    size_t bytes = ms_expert_bytes(s.layer.shape), head = ms_mzg2_block_head_bytes(s.layer.shape);
    uint32_t stored = s.layer.index[0].stored_bytes;
    uint8_t *slot = malloc(bytes), *block = copy_block(&s, 0);
    uint64_t seed = 3;
    for (int round = 0; round < 20; round++) {
        for (size_t i = head; i < stored; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            /* small words keep states low, so that many are taken */
            block[i] = round % 2 ? (uint8_t)(seed >> 40) : (uint8_t)(i % 2 ? 0 : seed >> 60);
        }
        for (uint32_t t = 0; t < ms_expert_tiles(s.layer.shape); t++)
            for (int l = 0; l < 32; l++) block[ms_le32(block + 16 + 12 * (size_t)t) + 32 + 4 * (size_t)l + 2] = 1;
        ms_mzg2_block b;
        must_open(&b, block, stored, 0, s.layer.shape);
        for (int d = 0; d < DECODERS; d++) {
            const ms_mzg2_codec *c = ms_mzg2_codec_find(decoders[d]);
            for (uint32_t t = 0; c && t < b.tiles; t++) {
                uint32_t bad;
                assert_int_not_equal(ms_mzg2_decode_tiles(c, slot, &b, s.tables, t, 1, &bad), MS_MZG2_GOOD);
            }
        }
    }
    free(block);
    free(slot);
    close_store(&s);
}

/* ------------------------------------------------------------------ encoding */

static uint64_t next_random(uint64_t *seed) {
    uint64_t z = (*seed += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    return z ^ z >> 31;
}

/* Kinds of experts: zero, one byte, noise, skewed codes, scales that run over the whole range. */
static void make_expert(uint8_t *out, ms_expert_shape s, int kind, uint64_t seed) {
    size_t n = ms_expert_bytes(s), part = n / 3, packed = part / 17 * 16;
    for (size_t i = 0; i < n; i++) {
        uint64_t r = next_random(&seed);
        bool scale = i % part >= packed;
        switch (kind) {
        case 0: out[i] = 0; break;
        case 1: out[i] = scale ? 120 : 0x35; break;
        case 2: out[i] = (uint8_t)r; break;
        case 3: out[i] = scale ? (uint8_t)(118 + __builtin_ctzll(r | 1u << 5)) : (uint8_t)(r & r >> 8 & 0x77); break;
        default: out[i] = scale ? (uint8_t)(i % 254) : (uint8_t)(r & r >> 9 & 0xff); break;
        }
    }
}

static void check_coding(ms_expert_shape s, const uint8_t *experts, uint32_t count, uint32_t *payload_out) {
    size_t bytes = ms_expert_bytes(s);
    ms_error err = {0};
    ms_mzg2_fit *fit;
    assert_int_equal(ms_mzg2_fit_create(&fit, s, NULL, &err), MS_OK);
    uint8_t *source = malloc(bytes), *slot = malloc(bytes), *back = malloc(bytes);
    uint8_t *block = malloc(ms_mzg2_block_max_bytes(s)), *signs = malloc(ms_mzg2_signs_max_bytes(s));
    for (uint32_t e = 0; e < count; e++) {
        memcpy(source, experts + e * bytes, bytes);
        ms_mzg2_clear_zeros(source, s);
        ms_mzg2_fit_add(fit, source);
    }
    ms_mzg2_layer layer = {.experts = 1, .shape = s};
    assert_int_equal(ms_mzg2_fit_sets(fit, layer.set, &err), MS_OK);
    ms_mzg2_encoder *enc;
    assert_int_equal(ms_mzg2_encoder_create(&enc, s, layer.set, 0, &err), MS_OK);
    ms_mzg2_tables *t = calloc(1, sizeof *t);
    ms_mzg2_tables_expand(t, &layer);
    for (uint32_t e = 0; e < count; e++) {
        uint32_t payload, stored;
        memcpy(source, experts + e * bytes, bytes);
        size_t sign_bytes = ms_mzg2_signs_take(signs, source, s);
        ms_mzg2_clear_zeros(source, s);
        ms_mzg2_encode(enc, block, source, e, &payload, &stored);
        assert_true(stored % 4096 == 0 && stored >= payload + MS_MZG2_TAIL_BYTES && stored <= ms_mzg2_block_max_bytes(s));
        uint8_t *exact = malloc(stored);
        memcpy(exact, block, stored);
        ms_mzg2_block b;
        must_open(&b, exact, stored, e, s);
        for (int d = 0; d < DECODERS; d++) {
            if (!ms_mzg2_codec_find(decoders[d])) continue;
            memset(slot, 0xee, bytes);
            must_decode(decoders[d], slot, &b, t);
            ms_expert_extract(back, slot, s);
            assert_memory_equal(back, source, bytes);
        }
        assert_false(sign_bytes && ms_mzg2_signs_put(back, s, signs, sign_bytes - 1));
        memcpy(back, source, bytes);
        assert_true(ms_mzg2_signs_put(back, s, signs, sign_bytes));
        assert_memory_equal(back, experts + e * bytes, bytes);
        if (payload_out) payload_out[e] = payload;
        free(exact);
    }
    free(t);
    ms_mzg2_encoder_destroy(enc);
    ms_mzg2_fit_destroy(fit);
    free(source);
    free(slot);
    free(back);
    free(block);
    free(signs);
}

static void odd_experts_survive(void **state) {
    (void)state;
    static const ms_expert_shape shapes[] = {{.hidden = 32, .inner = 32},
                                             {.hidden = 64, .inner = 32},
                                             {.hidden = 32, .inner = 96},
                                             {.hidden = 160, .inner = 64},
                                             {.hidden = 512, .inner = 256}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        size_t bytes = ms_expert_bytes(shapes[i]);
        uint8_t *experts = malloc(5 * bytes);
        for (int k = 0; k < 5; k++) make_expert(experts + (size_t)k * bytes, shapes[i], k, 11 + i);
        check_coding(shapes[i], experts, 5, NULL);                                       /* tables for all kinds */
        for (int k = 0; k < 5; k++) check_coding(shapes[i], experts + (size_t)k * bytes, 1, NULL); /* and for each */
        free(experts);
    }
}

/* Experts that the tables were not made for, of every kind, still come back. */
static void foreign_tables_still_code(void **state) {
    (void)state;
    ms_expert_shape s = {.hidden = 64, .inner = 64};
    size_t bytes = ms_expert_bytes(s);
    ms_error err = {0};
    uint8_t *expert = malloc(bytes), *slot = malloc(bytes), *back = malloc(bytes), *block = malloc(ms_mzg2_block_max_bytes(s));
    ms_mzg2_tables *t = calloc(1, sizeof *t);
    for (int from = 0; from < 5; from++) {
        ms_mzg2_fit *fit;
        assert_int_equal(ms_mzg2_fit_create(&fit, s, NULL, &err), MS_OK);
        make_expert(expert, s, from, 5);
        ms_mzg2_clear_zeros(expert, s);
        ms_mzg2_fit_add(fit, expert);
        ms_mzg2_layer layer = {.experts = 1, .shape = s};
        assert_int_equal(ms_mzg2_fit_sets(fit, layer.set, &err), MS_OK);
        ms_mzg2_tables_expand(t, &layer);
        ms_mzg2_encoder *enc;
        assert_int_equal(ms_mzg2_encoder_create(&enc, s, layer.set, 0, &err), MS_OK);
        for (int to = 0; to < 5; to++) {
            uint32_t payload, stored;
            make_expert(expert, s, to, 99);
            ms_mzg2_clear_zeros(expert, s);
            ms_mzg2_encode(enc, block, expert, 3, &payload, &stored);
            ms_mzg2_block b;
            must_open(&b, block, stored, 3, s);
            must_decode("scalar", slot, &b, t);
            ms_expert_extract(back, slot, s);
            assert_memory_equal(back, expert, bytes);
        }
        ms_mzg2_encoder_destroy(enc);
        ms_mzg2_fit_destroy(fit);
    }
    free(expert);
    free(slot);
    free(back);
    free(block);
    free(t);
}

static void sample_is_small(void **state) {
    (void)state;
    char *expert;
    size_t n;
    uint32_t payload = 0;
    get_bytes(golden_dir, "expert.bin", &expert, &n);
    check_coding((ms_expert_shape){.hidden = 512, .inner = 256}, (const uint8_t *)expert, 1, &payload);
    assert_in_range(payload, 1, 181854);
    free(expert);
}

static void signs_are_as_recorded(void **state) {
    (void)state;
    char *expert, *want;
    size_t n, want_n;
    get_bytes(golden_dir, "expert.bin", &expert, &n);
    get_bytes(golden_dir, "expert.nz", &want, &want_n);
    ms_expert_shape s = {.hidden = 512, .inner = 256};
    uint8_t *bits = malloc(ms_mzg2_signs_max_bytes(s));
    assert_int_equal(ms_mzg2_signs_take(bits, (const uint8_t *)expert, s), want_n);
    assert_memory_equal(bits, want, want_n);
    free(bits);
    free(expert);
    free(want);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_stores_decode), cmocka_unit_test(front_is_written_as_read),
        cmocka_unit_test(damaged_fronts_are_refused), cmocka_unit_test(turned_bits_are_caught),
        cmocka_unit_test(truncations_are_caught), cmocka_unit_test(noise_is_refused),
        cmocka_unit_test(odd_experts_survive), cmocka_unit_test(foreign_tables_still_code),
        cmocka_unit_test(sample_is_small), cmocka_unit_test(signs_are_as_recorded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
