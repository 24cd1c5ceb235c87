/* mzg2_decode_avx512.c: the tile decoder with two vectors of sixteen lanes, and two tiles at once: the steps of one
 * fill the waits of the other. */
#if defined(__x86_64__)
#include <immintrin.h>

#include "base/bytes.h"
#include "store/mzg2_internal.h"

enum { VECTORS = 2, VECTOR_LANES = 16 };

#define INLINE static inline __attribute__((always_inline))

INLINE __m512i advance(__m512i x, __m512i entry, unsigned bits, const uint8_t **words) {
    __m512i freq = _mm512_and_si512(_mm512_srli_epi32(entry, 8), _mm512_set1_epi32(0xfff));
    x = _mm512_add_epi32(_mm512_mullo_epi32(freq, _mm512_srli_epi32(x, bits)), _mm512_srli_epi32(entry, 20));
    __mmask16 low = _mm512_cmplt_epu32_mask(x, _mm512_set1_epi32((int)MZG2_END_STATE));
    __m512i next = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)*words));
    next = _mm512_maskz_expand_epi32(low, next);
    *words += 2 * __builtin_popcount(low);
    return _mm512_mask_or_epi32(x, low, _mm512_slli_epi32(x, 16), next);
}

INLINE __m512i fold(__m512i h, __m512i w) {
    h = _mm512_mullo_epi32(_mm512_xor_si512(h, w), _mm512_set1_epi32((int)MZG2_HASH_FACTOR));
    return _mm512_xor_si512(h, _mm512_srli_epi32(h, 15));
}

INLINE __m512i gather(const uint32_t *table, __m512i at) { return _mm512_i32gather_epi32(at, table, 4); }

/* w[0..3]: four little-endian words of sixteen rows; out: 16 bytes a row. */
INLINE void store_rows(uint8_t *out, const __m512i w[4]) {
    __m512i a = _mm512_unpacklo_epi32(w[0], w[1]), b = _mm512_unpackhi_epi32(w[0], w[1]);
    __m512i c = _mm512_unpacklo_epi32(w[2], w[3]), d = _mm512_unpackhi_epi32(w[2], w[3]);
    /* rows i, 4 + i, 8 + i, 12 + i in the quarters of r<i> */
    __m512i r0 = _mm512_unpacklo_epi64(a, c), r1 = _mm512_unpackhi_epi64(a, c);
    __m512i r2 = _mm512_unpacklo_epi64(b, d), r3 = _mm512_unpackhi_epi64(b, d);
    __m512i low01 = _mm512_shuffle_i32x4(r0, r1, 0x44), low23 = _mm512_shuffle_i32x4(r2, r3, 0x44);
    __m512i high01 = _mm512_shuffle_i32x4(r0, r1, 0xee), high23 = _mm512_shuffle_i32x4(r2, r3, 0xee);
    _mm512_storeu_si512(out, _mm512_shuffle_i32x4(low01, low23, 0x88));
    _mm512_storeu_si512(out + 64, _mm512_shuffle_i32x4(low01, low23, 0xdd));
    _mm512_storeu_si512(out + 128, _mm512_shuffle_i32x4(high01, high23, 0x88));
    _mm512_storeu_si512(out + 192, _mm512_shuffle_i32x4(high01, high23, 0xdd));
}

typedef struct lanes {
    __m512i x[VECTORS], h[VECTORS], m[VECTORS], w[VECTORS][4];
    const uint8_t *words;
    ms_mzg2_fault fault;
} lanes;

INLINE void begin(lanes *s, const mzg2_job *j) {
    const __m512i end = _mm512_set1_epi32((int)MZG2_END_STATE);
    s->fault = MS_MZG2_GOOD;
    s->words = j->tile + MS_MZG2_TILE_HEAD;
    for (int v = 0; v < VECTORS; v++) {
        s->x[v] = _mm512_loadu_si512(j->tile + MZG2_LANES + 64 * v);
        __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        lane = _mm512_add_epi32(lane, _mm512_set1_epi32(16 * v));
        s->h[v] = _mm512_xor_si512(lane, _mm512_set1_epi32((int)MZG2_HASH_START));
        if (_mm512_cmplt_epu32_mask(s->x[v], end)) s->fault = MS_MZG2_BAD_STATE;
    }
}

INLINE void finish(lanes *s, const mzg2_job *j) {
    if (s->fault != MS_MZG2_GOOD) return;
    uint32_t h[MZG2_LANES];
    bool ended = true;
    for (int v = 0; v < VECTORS; v++) {
        if (_mm512_cmpneq_epi32_mask(s->x[v], _mm512_set1_epi32((int)MZG2_END_STATE))) ended = false;
        _mm512_storeu_si512(h + VECTOR_LANES * v, s->h[v]);
    }
    if (s->words != j->end)
        s->fault = MS_MZG2_BAD_WORDS;
    else if (!ended)
        s->fault = MS_MZG2_BAD_END;
    else if (mzg2_hash_end(h) != j->hash)
        s->fault = MS_MZG2_BAD_HASH;
}

INLINE void scale_step(lanes *s, const mzg2_job *j, uint32_t g) {
    const __m512i byte = _mm512_set1_epi32(0xff);
    uint8_t *scales = j->out + ((size_t)j->groups * MZG2_GROUP_BYTES + g) * MZG2_LANES;
    for (int v = 0; v < VECTORS; v++) {
        __m512i row = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(j->tile + 16 * v)));
        __m512i class = _mm512_and_si512(row, _mm512_set1_epi32(7));
        __m512i at = _mm512_or_si512(_mm512_slli_epi32(class, MS_MZG2_SCALE_BITS), _mm512_and_si512(s->x[v], byte));
        __m512i entry = gather(j->scale, at), symbol = _mm512_and_si512(entry, byte);
        s->x[v] = advance(s->x[v], entry, MS_MZG2_SCALE_BITS, &s->words);
        __m512i d = _mm512_min_epu32(symbol, _mm512_set1_epi32(MS_MZG2_DELTAS - 1));
        s->m[v] = gather(j->nmap, _mm512_or_si512(_mm512_slli_epi32(class, 5), d));
        __m512i scale = _mm512_add_epi32(_mm512_srli_epi32(row, 3), _mm512_set1_epi32((int)j->e_base));
        scale = _mm512_and_si512(_mm512_add_epi32(scale, symbol), byte);
        s->h[v] = fold(s->h[v], scale);
        _mm_storeu_si128((__m128i *)(void *)(scales + VECTOR_LANES * v), _mm512_cvtepi32_epi8(scale));
    }
}

INLINE void pair_step(lanes *s, const mzg2_job *j, const uint8_t *columns, int k) {
    const __m512i byte = _mm512_set1_epi32(0xff);
    const __m128i digit = _mm_cvtsi32_si128(4 * columns[k]);
    for (int v = 0; v < VECTORS; v++) {
        __m512i table = _mm512_and_si512(_mm512_srl_epi32(s->m[v], digit), _mm512_set1_epi32(15));
        __m512i slot = _mm512_and_si512(s->x[v], _mm512_set1_epi32((1 << MS_MZG2_PAIR_BITS) - 1));
        __m512i entry = gather(j->nibble, _mm512_or_si512(_mm512_slli_epi32(table, MS_MZG2_PAIR_BITS), slot));
        s->x[v] = advance(s->x[v], entry, MS_MZG2_PAIR_BITS, &s->words);
        __m512i symbol = _mm512_slli_epi32(_mm512_and_si512(entry, byte), (unsigned)(8 * (k % 4)));
        s->w[v][k / 4] = k % 4 == 0 ? symbol : _mm512_or_si512(s->w[v][k / 4], symbol);
        if (k % 4 == 3) s->h[v] = fold(s->h[v], s->w[v][k / 4]);
    }
}

INLINE void store_group(const lanes *s, const mzg2_job *j, uint32_t g) {
    uint8_t *out = j->out + (size_t)g * MZG2_LANES * MZG2_GROUP_BYTES;
    for (int v = 0; v < VECTORS; v++) store_rows(out + v * VECTOR_LANES * MZG2_GROUP_BYTES, s->w[v]);
}

/* A faulty tile stands still: its words, which may lie anywhere, are read from its start instead. */
INLINE void check_group(lanes *s, const mzg2_job *j) {
    if (__builtin_expect(s->words <= j->end, 1)) return;
    if (s->fault == MS_MZG2_GOOD) s->fault = MS_MZG2_BAD_WORDS;
    s->words = j->tile;
}

static void decode_two(const mzg2_job *j, ms_mzg2_fault *faults) {
    lanes a, b;
    begin(&a, &j[0]);
    begin(&b, &j[1]);
    for (uint32_t g = 0; g < j[0].groups; g++) {
        check_group(&a, &j[0]);
        check_group(&b, &j[1]);
        scale_step(&a, &j[0], g);
        scale_step(&b, &j[1], g);
        const uint8_t *ca = j[0].columns + g * MZG2_GROUP_BYTES, *cb = j[1].columns + g * MZG2_GROUP_BYTES;
#pragma GCC unroll 16
        for (int k = 0; k < MZG2_GROUP_BYTES; k++) {
            pair_step(&a, &j[0], ca, k);
            pair_step(&b, &j[1], cb, k);
        }
        store_group(&a, &j[0], g);
        store_group(&b, &j[1], g);
    }
    finish(&a, &j[0]);
    finish(&b, &j[1]);
    faults[0] = a.fault;
    faults[1] = b.fault;
}

static ms_mzg2_fault decode_one(const mzg2_job *j) {
    lanes a;
    begin(&a, j);
    for (uint32_t g = 0; g < j->groups; g++) {
        check_group(&a, j);
        scale_step(&a, j, g);
#pragma GCC unroll 16
        for (int k = 0; k < MZG2_GROUP_BYTES; k++) pair_step(&a, j, j->columns + g * MZG2_GROUP_BYTES, k);
        store_group(&a, j, g);
    }
    finish(&a, j);
    return a.fault;
}

static void run(const mzg2_job *jobs, unsigned count, ms_mzg2_fault *faults) {
    unsigned i = 0;
    for (; i + 2 <= count; i += 2) decode_two(jobs + i, faults + i);
    if (i < count) faults[i] = decode_one(&jobs[i]);
}

const ms_mzg2_codec ms_mzg2_codec_avx512 = {.name = "avx512", .run = run, .width = 2};
#endif
