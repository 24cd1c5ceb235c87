/* mzg2_decode_avx2.c: the tile decoder with four vectors of eight lanes. */
#if defined(__x86_64__)
#include <immintrin.h>

#include "base/bytes.h"
#include "store/mzg2_internal.h"

enum { VECTORS = 4, VECTOR_LANES = 8 };

/* Byte i of spread[mask]: which of the next words lane i takes, for the lanes of the mask in ascending order. */
#define RANK(m, i)                                                                                                     \
    ((uint64_t)(((m)&1) + ((m) >> 1 & 1) + ((m) >> 2 & 1) + ((m) >> 3 & 1) + ((m) >> 4 & 1) + ((m) >> 5 & 1) +         \
                ((m) >> 6 & 1))                                                                                        \
     << 8 * (i))
#define BELOW(m, i) RANK((m) & ((1u << (i)) - 1), i)
#define S1(m)       (BELOW(m, 1) | BELOW(m, 2) | BELOW(m, 3) | BELOW(m, 4) | BELOW(m, 5) | BELOW(m, 6) | BELOW(m, 7))
#define S4(m)       S1(m), S1((m) + 1), S1((m) + 2), S1((m) + 3)
#define S16(m)      S4(m), S4((m) + 4), S4((m) + 8), S4((m) + 12)
#define S64(m)      S16(m), S16((m) + 16), S16((m) + 32), S16((m) + 48)
static const uint64_t spread[256] = {S64(0u), S64(64u), S64(128u), S64(192u)};

#define INLINE static inline __attribute__((always_inline))

/* x = freq * (x >> bits) + (slot - start); states below 2^16 take the next words. */
INLINE __m256i advance(__m256i x, __m256i entry, int bits, const uint8_t **words) {
    __m256i freq = _mm256_and_si256(_mm256_srli_epi32(entry, 8), _mm256_set1_epi32(0xfff));
    x = _mm256_add_epi32(_mm256_mullo_epi32(freq, _mm256_srli_epi32(x, bits)), _mm256_srli_epi32(entry, 20));
    __m256i low = _mm256_cmpeq_epi32(_mm256_srli_epi32(x, 16), _mm256_setzero_si256());
    unsigned mask = (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(low));
    __m256i next = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)*words));
    __m256i place = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)&spread[mask]));
    next = _mm256_permutevar8x32_epi32(next, place);
    *words += 2 * __builtin_popcount(mask);
    return _mm256_blendv_epi8(x, _mm256_or_si256(_mm256_slli_epi32(x, 16), next), low);
}

INLINE __m256i fold(__m256i h, __m256i w) {
    h = _mm256_mullo_epi32(_mm256_xor_si256(h, w), _mm256_set1_epi32((int)MZG2_HASH_FACTOR));
    return _mm256_xor_si256(h, _mm256_srli_epi32(h, 15));
}

INLINE __m256i gather(const uint32_t *table, __m256i at) {
    return _mm256_i32gather_epi32((const int *)(const void *)table, at, 4);
}

/* w[0..3]: four little-endian words of eight rows; out: 16 bytes a row. */
INLINE void store_rows(uint8_t *out, const __m256i w[4]) {
    __m256i a = _mm256_unpacklo_epi32(w[0], w[1]), b = _mm256_unpackhi_epi32(w[0], w[1]);
    __m256i c = _mm256_unpacklo_epi32(w[2], w[3]), d = _mm256_unpackhi_epi32(w[2], w[3]);
    __m256i r0 = _mm256_unpacklo_epi64(a, c), r1 = _mm256_unpackhi_epi64(a, c);
    __m256i r2 = _mm256_unpacklo_epi64(b, d), r3 = _mm256_unpackhi_epi64(b, d);
    __m256i *to = (__m256i *)(void *)out;
    _mm256_storeu_si256(to, _mm256_permute2x128_si256(r0, r1, 0x20));
    _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(r2, r3, 0x20));
    _mm256_storeu_si256(to + 2, _mm256_permute2x128_si256(r0, r1, 0x31));
    _mm256_storeu_si256(to + 3, _mm256_permute2x128_si256(r2, r3, 0x31));
}

/* The low bytes of 32 lanes. */
INLINE void store_bytes(uint8_t *out, const __m256i v[VECTORS]) {
    __m256i words = _mm256_packus_epi16(_mm256_packus_epi32(v[0], v[1]), _mm256_packus_epi32(v[2], v[3]));
    words = _mm256_permutevar8x32_epi32(words, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((__m256i *)(void *)out, words);
}

typedef struct lanes {
    __m256i x[VECTORS], h[VECTORS], base[VECTORS], scale_at[VECTORS], map_at[VECTORS];
} lanes;

static ms_mzg2_fault begin(lanes *s, const mzg2_job *j) {
    __m256i low = _mm256_setzero_si256();
    for (int v = 0; v < VECTORS; v++) {
        __m256i row = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(j->tile + 8 * v)));
        __m256i class = _mm256_and_si256(row, _mm256_set1_epi32(7));
        s->x[v] = _mm256_loadu_si256((const __m256i *)(const void *)(j->tile + MZG2_LANES + 32 * v));
        s->base[v] = _mm256_add_epi32(_mm256_srli_epi32(row, 3), _mm256_set1_epi32((int)j->e_base));
        s->scale_at[v] = _mm256_slli_epi32(class, MS_MZG2_SCALE_BITS);
        s->map_at[v] = _mm256_slli_epi32(class, 5);
        __m256i lane = _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(8 * v));
        s->h[v] = _mm256_xor_si256(lane, _mm256_set1_epi32((int)MZG2_HASH_START));
        low = _mm256_or_si256(low, _mm256_cmpeq_epi32(_mm256_srli_epi32(s->x[v], 16), _mm256_setzero_si256()));
    }
    return _mm256_testz_si256(low, low) ? MS_MZG2_GOOD : MS_MZG2_BAD_STATE;
}

static ms_mzg2_fault finish(const lanes *s, const mzg2_job *j, const uint8_t *words) {
    if (words != j->end) return MS_MZG2_BAD_WORDS;
    __m256i off = _mm256_setzero_si256();
    uint32_t h[MZG2_LANES];
    for (int v = 0; v < VECTORS; v++) {
        off = _mm256_or_si256(off, _mm256_xor_si256(s->x[v], _mm256_set1_epi32((int)MZG2_END_STATE)));
        _mm256_storeu_si256((__m256i *)(void *)(h + VECTOR_LANES * v), s->h[v]);
    }
    if (!_mm256_testz_si256(off, off)) return MS_MZG2_BAD_END;
    return mzg2_hash_end(h) == j->hash ? MS_MZG2_GOOD : MS_MZG2_BAD_HASH;
}

static ms_mzg2_fault decode(const mzg2_job *j) {
    lanes s;
    ms_mzg2_fault f = begin(&s, j);
    if (f != MS_MZG2_GOOD) return f;
    const uint8_t *words = j->tile + MS_MZG2_TILE_HEAD;
    uint8_t *scales = j->out + (size_t)j->groups * MZG2_LANES * MZG2_GROUP_BYTES;
    const __m256i byte = _mm256_set1_epi32(0xff);
    __m256i x[VECTORS], m[VECTORS], w[VECTORS][4];
    for (int v = 0; v < VECTORS; v++) x[v] = s.x[v];
    for (uint32_t g = 0; g < j->groups; g++) {
        if (words > j->end) return MS_MZG2_BAD_WORDS;
        __m256i scale[VECTORS];
        for (int v = 0; v < VECTORS; v++) {
            __m256i entry = gather(j->scale, _mm256_or_si256(s.scale_at[v], _mm256_and_si256(x[v], byte)));
            __m256i symbol = _mm256_and_si256(entry, byte);
            x[v] = advance(x[v], entry, MS_MZG2_SCALE_BITS, &words);
            __m256i d = _mm256_min_epu32(symbol, _mm256_set1_epi32(MS_MZG2_DELTAS - 1));
            m[v] = gather(j->nmap, _mm256_or_si256(s.map_at[v], d));
            scale[v] = _mm256_and_si256(_mm256_add_epi32(symbol, s.base[v]), byte);
            s.h[v] = fold(s.h[v], scale[v]);
        }
        store_bytes(scales + g * MZG2_LANES, scale);
        const uint8_t *columns = j->columns + g * MZG2_GROUP_BYTES;
        for (int k = 0; k < MZG2_GROUP_BYTES / 4; k++) {
            for (int b = 0; b < 4; b++) {
                const __m128i digit = _mm_cvtsi32_si128(4 * columns[4 * k + b]);
                for (int v = 0; v < VECTORS; v++) {
                    __m256i table = _mm256_and_si256(_mm256_srl_epi32(m[v], digit), _mm256_set1_epi32(15));
                    __m256i slot = _mm256_and_si256(x[v], _mm256_set1_epi32((1 << MS_MZG2_PAIR_BITS) - 1));
                    __m256i entry =
                        gather(j->nibble, _mm256_or_si256(_mm256_slli_epi32(table, MS_MZG2_PAIR_BITS), slot));
                    x[v] = advance(x[v], entry, MS_MZG2_PAIR_BITS, &words);
                    __m256i symbol = _mm256_slli_epi32(_mm256_and_si256(entry, byte), 8 * b);
                    w[v][k] = b == 0 ? symbol : _mm256_or_si256(w[v][k], symbol);
                }
            }
            for (int v = 0; v < VECTORS; v++) s.h[v] = fold(s.h[v], w[v][k]);
        }
        uint8_t *out = j->out + (size_t)g * MZG2_LANES * MZG2_GROUP_BYTES;
        for (int v = 0; v < VECTORS; v++) store_rows(out + v * VECTOR_LANES * MZG2_GROUP_BYTES, w[v]);
    }
    for (int v = 0; v < VECTORS; v++) s.x[v] = x[v];
    return finish(&s, j, words);
}

static void run(const mzg2_job *jobs, unsigned count, ms_mzg2_fault *faults) {
    for (unsigned i = 0; i < count; i++) faults[i] = decode(&jobs[i]);
}

const ms_mzg2_codec ms_mzg2_codec_avx2 = {.name = "avx2", .run = run, .width = 1};
#endif
