/* synth_shard.c: what one synthetic shard holds: its tensors in order, its header, and any range of its bytes.
 *
 * Owns: plans.  Threads: ms_synth_bytes may run on many threads over one plan.
 * Invariants: no holes; the header is padded with spaces to 8 bytes, so elements lie aligned in the file and no element
 *   straddles an 8-aligned cut.
 * Errors: memory.
 */
#include "base/bytes.h"
#include "lane/synth.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------ tensors */

ms_status ms_synth_add(ms_synth_plan *p, const char *name, const ms_synth_tensor *what, ms_error *err) {
    if (p->count == p->capacity) {
        size_t capacity = p->capacity ? p->capacity * 2 : 64;
        ms_synth_tensor *grown = realloc(p->tensors, capacity * sizeof *grown);
        if (!grown) return ms_fail_memory(err, "a shard's tensors", capacity * sizeof *grown);
        p->tensors = grown;
        p->capacity = capacity;
    }
    ms_synth_tensor *t = &p->tensors[p->count++];
    *t = *what;
    t->name_at = p->names.len;
    ms_text_append(&p->names, name, strlen(name) + 1);
    uint64_t elements = 1;
    for (unsigned i = 0; i < t->dims; i++) elements *= t->shape[i];
    t->bytes = elements * ms_dtype_bytes(t->dtype);
    if (t->live == 0) t->live = elements;
    return MS_OK;
}

float ms_synth_amplitude(uint64_t inputs) { return sqrtf(3.0f / (float)inputs); }

/* Uniform E2M1 codes have a root mean square of 2.93, and the four
 * scales one of 1.15 times the third: times sqrt(inputs) that should be near 1. */
uint8_t ms_synth_scale_base(uint64_t inputs) {
    float size = 2.93f * 1.15f * sqrtf((float)inputs);
    int down = 0;
    while (size > 1.4142f && down < 100) {
        size *= 0.5f;
        down++;
    }
    return (uint8_t)(127 - down - 2);
}

/* ------------------------------------------------------------------ order and header */

static int type_rank(ms_dtype t) { return t == MS_DTYPE_F32 ? 0 : t == MS_DTYPE_BF16 ? 1 : 2; }

static int by_type_and_name(const void *a, const void *b) {
    const ms_synth_tensor *x = a, *y = b;
    int order = type_rank(x->dtype) - type_rank(y->dtype);
    return order ? order : strcmp(x->name, y->name);
}

/* The pool has moved while it grew. */
static ms_status place_names(ms_synth_plan *p, ms_error *err) {
    if (p->names.failed) return ms_fail_memory(err, "tensor names", p->names.cap);
    for (size_t i = 0; i < p->count; i++) p->tensors[i].name = p->names.data + p->tensors[i].name_at;
    return MS_OK;
}

ms_status ms_synth_sort(ms_synth_plan *p, ms_error *err) {
    MS_TRY(place_names(p, err));
    qsort(p->tensors, p->count, sizeof *p->tensors, by_type_and_name);
    return MS_OK;
}

static ms_status finish_plan(ms_synth_plan *p, ms_error *err) {
    MS_TRY(place_names(p, err));
    ms_text *h = &p->header;
    ms_text_append(h, "\0\0\0\0\0\0\0\0", 8);
    for (size_t i = 0; i < p->count; i++) {
        ms_synth_tensor *t = &p->tensors[i];
        t->begin = p->payload_bytes;
        p->payload_bytes += t->bytes;
        ms_text_printf(h, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", i ? "," : "{", t->name, ms_dtype_name(t->dtype));
        for (unsigned d = 0; d < t->dims; d++)
            ms_text_printf(h, "%s%llu", d ? "," : "", (unsigned long long)t->shape[d]);
        ms_text_printf(h, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)t->begin,
                       (unsigned long long)p->payload_bytes);
    }
    ms_text_puts(h, "}");
    while (!h->failed && h->len % 8 != 0) ms_text_puts(h, " ");
    if (h->failed) return ms_fail_memory(err, "a shard header", h->cap);
    ms_put_le64(h->data, h->len - 8);
    return MS_OK;
}

ms_status ms_synth_plan_shard(ms_synth_plan *out, const ms_synth_model *m, uint32_t number, ms_error *err) {
    ms_synth_plan p = {0};
    ms_status status = m->plan(&p, m, number, err);
    if (status == MS_OK && m->gaussian && !(p.normal = ms_synth_normal_table()))
        status = ms_fail_memory(err, "normal quantiles", 2 * MS_NORMAL_LEVELS * sizeof *p.normal);
    if (status == MS_OK) status = finish_plan(&p, err);
    if (status == MS_OK)
        *out = p;
    else
        ms_synth_plan_free(&p);
    return status;
}

void ms_synth_plan_free(ms_synth_plan *p) {
    ms_text_free(&p->names);
    ms_text_free(&p->header);
    free(p->tensors);
    free(p->normal);
    *p = (ms_synth_plan){0};
}

uint64_t ms_synth_plan_bytes(const ms_synth_plan *p) { return p->header.len + p->payload_bytes; }

/* ------------------------------------------------------------------ values */

/* SplitMix64's output function: word i of a stream is mix(key + i * golden), so words need no predecessor. */
static inline uint64_t mix(uint64_t z) {
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}
#define GOLDEN UINT64_C(0x9e3779b97f4a7c15)

uint64_t ms_synth_word(uint64_t key, uint64_t i) { return mix(key + i * GOLDEN); }

/* ms_put_le64 as one store: not every compiler merges its eight. */
static inline void store_word(uint8_t *out, uint64_t v) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    memcpy(out, &v, sizeof v);
#else
    ms_put_le64(out, v);
#endif
}

static void codes(uint8_t *out, uint64_t key, uint64_t word, size_t words) {
    for (size_t i = 0; i < words; i++) store_word(out + 8 * i, mix(key + (word + i) * GOLDEN));
}

static void scales(uint8_t *out, uint64_t key, uint64_t word, size_t words, uint8_t base) {
    const uint64_t low_two = UINT64_C(0x0303030303030303), bases = UINT64_C(0x0101010101010101) * base;
    for (size_t i = 0; i < words; i++) store_word(out + 8 * i, (mix(key + (word + i) * GOLDEN) & low_two) + bases);
}

/* Codes below 2 in size, so none is NaN; sizes spread over all smaller exponents, their root mean square is 0.6. */
static void fp8_codes(uint8_t *out, uint64_t key, uint64_t word, size_t words) {
    const uint64_t below_two = UINT64_C(0xBFBFBFBFBFBFBFBF);
    for (size_t i = 0; i < words; i++) store_word(out + 8 * i, mix(key + (word + i) * GOLDEN) & below_two);
}

/* 12 random bits a value are more than BF16 resolves; converting them once into a table triples the speed. */
enum { LEVELS = 4096 };

static void make_levels(uint16_t levels[LEVELS], float mean, float amplitude) {
    const float step = amplitude / (float)(LEVELS / 2);
    for (int i = 0; i < LEVELS; i++) levels[i] = ms_bf16_from_f32(mean + ((float)(i - LEVELS / 2) + 0.5f) * step);
}

static void uniform_bf16(uint8_t *out, uint64_t key, uint64_t word, size_t words, const uint16_t levels[LEVELS]) {
    for (size_t i = 0; i < words; i++) {
        uint64_t r = mix(key + (word + i) * GOLDEN);
        uint64_t packed = (uint64_t)levels[r >> 52] << 48 | (uint64_t)levels[r >> 36 & 0xfff] << 32 |
                          (uint64_t)levels[r >> 20 & 0xfff] << 16 | levels[r >> 4 & 0xfff];
        store_word(out + 8 * i, packed);
    }
}

static void uniform_f32(uint8_t *out, uint64_t key, uint64_t word, size_t words, float mean, float amplitude) {
    const float step = amplitude / 8388608.0f;
    for (size_t i = 0; i < words; i++) {
        uint64_t r = mix(key + (word + i) * GOLDEN), packed = 0;
        for (int j = 0; j < 2; j++) {
            float v = mean + (float)((int32_t)(r >> 32 * j & 0xffffff) - 8388608) * step;
            packed |= (uint64_t)ms_f32_bits(v) << 32 * j;
        }
        store_word(out + 8 * i, packed);
    }
}

static void fill_words(uint8_t *out, const ms_synth_tensor *t, const float *normal, const uint16_t *levels,
                       uint64_t key, uint64_t word, size_t words) {
    switch (t->fill) {
    case MS_FILL_CODES:
        codes(out, key, word, words);
        break;
    case MS_FILL_SCALES:
        scales(out, key, word, words, t->scale_base);
        break;
    case MS_FILL_GAUSS_CODES:
        ms_synth_gauss_codes(out, normal, key, word, words, t->shape[1] / 16);
        break;
    case MS_FILL_GAUSS_SCALES:
        ms_synth_gauss_scales(out, normal, key, word, words, t->shape[1]);
        break;
    case MS_FILL_FP8:
        fp8_codes(out, key, word, words);
        break;
    case MS_FILL_UNIFORM:
        if (t->dtype == MS_DTYPE_BF16)
            uniform_bf16(out, key, word, words, levels);
        else
            uniform_f32(out, key, word, words, t->mean, t->amplitude);
        break;
    }
}

/* Bytes [from, to) of a tensor; words at the edges are made whole and cut. */
static void fill_tensor(uint8_t *out, const ms_synth_tensor *t, const float *normal, uint64_t seed, uint64_t from,
                        uint64_t to) {
    size_t named = strlen(t->name);
    if (t->fill == MS_FILL_GAUSS_CODES || t->fill == MS_FILL_GAUSS_SCALES) /* one key for both tensors of a matrix */
        while (named > 0 && t->name[named - 1] != '.') named--;
    const uint64_t key = mix(seed + GOLDEN) ^ ms_fnv1a64(MS_FNV1A64_INIT, t->name, named);
    uint16_t levels[LEVELS];
    if (t->fill == MS_FILL_UNIFORM && t->dtype == MS_DTYPE_BF16) make_levels(levels, t->mean, t->amplitude);
    uint8_t edge[8];
    uint64_t at = from;
    while (at < to) {
        uint64_t word = at / 8;
        size_t skip = (size_t)(at % 8), left = (size_t)(to - at);
        if (skip == 0 && left >= 8) {
            fill_words(out + (at - from), t, normal, levels, key, word, left / 8);
            at += left / 8 * 8;
            continue;
        }
        size_t n = left < 8 - skip ? left : 8 - skip;
        fill_words(edge, t, normal, levels, key, word, 1);
        memcpy(out + (at - from), edge + skip, n);
        at += n;
    }
    uint64_t zero_from = t->live * ms_dtype_bytes(t->dtype);
    if (to > zero_from) {
        uint64_t first = zero_from > from ? zero_from : from;
        memset(out + (first - from), 0, (size_t)(to - first));
    }
}

/* The tensor that holds payload byte `at`. */
static size_t tensor_at(const ms_synth_plan *p, uint64_t at) {
    size_t low = 0, high = p->count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (p->tensors[middle].begin <= at)
            low = middle;
        else
            high = middle;
    }
    return low;
}

void ms_synth_bytes(uint8_t *out, const ms_synth_plan *p, uint64_t seed, uint64_t at, size_t length) {
    if (at < p->header.len) {
        size_t n = p->header.len - (size_t)at < length ? p->header.len - (size_t)at : length;
        memcpy(out, p->header.data + at, n);
        out += n;
        at += n;
        length -= n;
    }
    if (length == 0) return;
    uint64_t from = at - p->header.len;
    for (size_t i = tensor_at(p, from); length > 0 && i < p->count; i++) {
        const ms_synth_tensor *t = &p->tensors[i];
        uint64_t inside = from - t->begin, rest = t->bytes - inside;
        size_t n = rest < length ? (size_t)rest : length;
        fill_tensor(out, t, p->normal, seed, inside, inside + n);
        out += n;
        from += n;
        length -= n;
    }
}
