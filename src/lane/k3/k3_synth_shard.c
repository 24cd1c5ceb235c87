/* k3_synth_shard.c: what one synthetic shard holds: its tensors in official order, its header, and any range of its
 * bytes.
 *
 * Owns: plans.  Threads: k3_synth_bytes may run on many threads over one plan.
 * Invariants: F32, BF16, U8, by name within a type, without holes; the header is padded with spaces to 8 bytes, so
 *   elements lie aligned in the file and no element straddles an 8-aligned cut.
 * Errors: memory.
 */
#include "base/bytes.h"
#include "lane/k3/k3_layout.h"
#include "lane/k3/k3_synth_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_SIZE = 160, VISION_BLOCKS = 27 };

/* ------------------------------------------------------------------ tensors */

static ms_status add(k3_synth_plan *p, const char *name, const k3_synth_tensor *what, ms_error *err) {
    if (p->count == p->capacity) {
        size_t capacity = p->capacity ? p->capacity * 2 : 64;
        k3_synth_tensor *grown = realloc(p->tensors, capacity * sizeof *grown);
        if (!grown) return ms_fail_memory(err, "a shard's tensors", capacity * sizeof *grown);
        p->tensors = grown;
        p->capacity = capacity;
    }
    k3_synth_tensor *t = &p->tensors[p->count++];
    *t = *what;
    t->name_at = p->names.len;
    ms_text_append(&p->names, name, strlen(name) + 1);
    uint64_t elements = 1;
    for (unsigned i = 0; i < t->dims; i++) elements *= t->shape[i];
    t->bytes = elements * ms_dtype_bytes(t->dtype);
    if (t->live == 0) t->live = elements;
    return MS_OK;
}

/* Amplitude of a uniform distribution whose products over `inputs` unit inputs have variance 1. */
static float unit_amplitude(uint64_t inputs) { return sqrtf(3.0f / (float)inputs); }

static void choose_values(k3_synth_tensor *t, const k3_config *c, k3_part part, const k3_tensor_info *info) {
    t->amplitude = unit_amplitude(info->cols);
    if (info->dims == 1) { /* norm weights */
        t->mean = 1.0f;
        t->amplitude = 0.1f;
    }
    switch (part) {
    case K3_A_LOG: /* decay rates exp(0) .. exp(2.7) */
        t->mean = t->amplitude = 1.35f;
        t->live = c->kda_heads;
        break;
    case K3_DT_BIAS:
        t->mean = -1.0f;
        t->amplitude = 1.0f;
        break;
    case K3_ROUTER_BIAS:
        t->mean = 0.0f;
        t->amplitude = 0.01f;
        break;
    case K3_EMBED: t->amplitude = unit_amplitude(1); break;
    case K3_LM_HEAD: t->amplitude *= 3.0f; break; /* logits with clear maxima */
    default: break;
    }
}

static ms_status add_part(k3_synth_plan *p, const k3_config *c, uint32_t layer, k3_part part, ms_error *err) {
    char name[NAME_SIZE];
    k3_tensor_name(name, sizeof name, layer, part);
    k3_tensor_info info = k3_tensor_describe(c, layer, part);
    k3_synth_tensor t = {.dtype = info.dtype, .dims = info.dims, .fill = K3_FILL_UNIFORM};
    memcpy(t.shape, info.shape, sizeof info.shape);
    choose_values(&t, c, part, &info);
    return add(p, name, &t, err);
}

/* The lowest of four neighbouring scale bytes.  Uniform E2M1 codes have a root mean square of 2.93, and the four
 * scales one of 1.15 times the third: times sqrt(inputs) that should be near 1. */
static uint8_t scale_base(uint64_t inputs) {
    float size = 2.93f * 1.15f * sqrtf((float)inputs);
    int down = 0;
    while (size > 1.4142f && down < 100) {
        size *= 0.5f;
        down++;
    }
    return (uint8_t)(127 - down - 2);
}

static ms_status add_experts(k3_synth_plan *p, const k3_config *c, uint32_t layer, bool gaussian, ms_error *err) {
    ms_expert_naming naming;
    k3_expert_naming(c, &naming);
    for (uint32_t e = 0; e < c->experts; e++) {
        for (int i = 0; i < MS_EXPERT_PARTS; i++) {
            char name[NAME_SIZE];
            (void)snprintf(name, sizeof name, "%smodel.layers.%u.block_sparse_moe.experts.%u.%s", k3_text_prefix,
                           (unsigned)layer, (unsigned)e, naming.suffix[i]);
            bool packed = i % 2 == 0;
            k3_fill fill = packed ? K3_FILL_CODES : K3_FILL_SCALES;
            if (gaussian) fill = packed ? K3_FILL_GAUSS_CODES : K3_FILL_GAUSS_SCALES;
            uint64_t groups = naming.shape[i][1];
            k3_synth_tensor t = {
                .dtype = MS_DTYPE_U8,
                .dims = 2,
                .shape = {naming.shape[i][0], naming.shape[i][1]},
                .fill = fill,
                .scale_base = packed ? 0 : scale_base(groups * 32),
            };
            MS_TRY(add(p, name, &t, err));
        }
    }
    return MS_OK;
}

/* Vision tensors are never read; at the official width they have the official total size. */
static ms_status add_vision(k3_synth_plan *p, const char *name, unsigned dims, const uint64_t *shape, ms_error *err) {
    k3_synth_tensor t = {.dtype = MS_DTYPE_BF16, .dims = (uint8_t)dims, .fill = K3_FILL_UNIFORM, .amplitude = 0.02f};
    memcpy(t.shape, shape, dims * sizeof *shape);
    return add(p, name, &t, err);
}

static uint64_t vision_width(const k3_config *c) { return c->hidden == 7168 ? 1024 : 32; }

static ms_status plan_projector(k3_synth_plan *p, const k3_config *c, ms_error *err) {
    const uint64_t w = 4 * vision_width(c), first[] = {w, w}, second[] = {c->hidden, w}, norm[] = {c->hidden};
    MS_TRY(add_vision(p, "mm_projector.proj.0.weight", 2, first, err));
    MS_TRY(add_vision(p, "mm_projector.proj.2.weight", 2, second, err));
    return add_vision(p, "mm_projector.post_norm.weight", 1, norm, err);
}

static ms_status plan_tower(k3_synth_plan *p, const k3_config *c, ms_error *err) {
    const uint64_t w = vision_width(c), grid = w / 16, patch = w == 1024 ? 14 : 2, inner = w + w / 2;
    const uint64_t patches[] = {w, 3, patch, patch}, places[] = {grid, grid, w};
    const uint64_t norm[] = {w}, qkv[] = {3 * inner, w}, out[] = {w, inner}, up[] = {4 * w, w}, down[] = {w, 4 * w};
    const struct {
        const char *suffix;
        unsigned dims;
        const uint64_t *shape;
    } parts[] = {{"norm0", 1, norm}, {"norm1", 1, norm}, {"wqkv", 2, qkv},
                 {"wo", 2, out},     {"mlp.fc0", 2, up}, {"mlp.fc1", 2, down}};
    for (int b = 0; b < VISION_BLOCKS; b++) {
        for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
            char name[NAME_SIZE];
            (void)snprintf(name, sizeof name, "vision_tower.encoder.blocks.%d.%s.weight", b, parts[i].suffix);
            MS_TRY(add_vision(p, name, parts[i].dims, parts[i].shape, err));
        }
    }
    MS_TRY(add_vision(p, "vision_tower.patch_embed.proj.weight", 4, patches, err));
    MS_TRY(add_vision(p, "vision_tower.patch_embed.pos_emb.weight", 3, places, err));
    return add_vision(p, "vision_tower.encoder.final_layernorm.weight", 1, norm, err);
}

/* ------------------------------------------------------------------ order and header */

static int type_rank(ms_dtype t) { return t == MS_DTYPE_F32 ? 0 : t == MS_DTYPE_BF16 ? 1 : 2; }

static int by_type_and_name(const void *a, const void *b) {
    const k3_synth_tensor *x = a, *y = b;
    int order = type_rank(x->dtype) - type_rank(y->dtype);
    return order ? order : strcmp(x->name, y->name);
}

static ms_status finish_plan(k3_synth_plan *p, ms_error *err) {
    if (p->names.failed) return ms_fail_memory(err, "tensor names", p->names.cap);
    for (size_t i = 0; i < p->count; i++) p->tensors[i].name = p->names.data + p->tensors[i].name_at;
    qsort(p->tensors, p->count, sizeof *p->tensors, by_type_and_name);

    ms_text *h = &p->header;
    ms_text_append(h, "\0\0\0\0\0\0\0\0", 8);
    for (size_t i = 0; i < p->count; i++) {
        k3_synth_tensor *t = &p->tensors[i];
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

static ms_status plan_tensors(k3_synth_plan *p, const k3_config *c, bool gaussian, uint32_t number, ms_error *err) {
    if (number == c->layers + 1) return plan_projector(p, c, err);
    if (number == c->layers + 2) return plan_tower(p, c, err);
    if (number == c->layers) {
        for (k3_part part = K3_LAYER_PARTS; part < K3_PARTS; part++) MS_TRY(add_part(p, c, 0, part, err));
        return MS_OK;
    }
    for (k3_part part = 0; part < K3_LAYER_PARTS; part++) {
        if (k3_has_part(c, number, part)) MS_TRY(add_part(p, c, number, part, err));
    }
    return k3_is_moe(c, number) ? add_experts(p, c, number, gaussian, err) : MS_OK;
}

uint32_t k3_synth_shard_count(const k3_config *c, bool vision) { return c->layers + 1 + (vision ? 2 : 0); }

ms_status k3_synth_plan_shard(k3_synth_plan *out, const k3_config *c, const k3_synth_options *opt, uint32_t number,
                              ms_error *err) {
    k3_synth_plan p = {0};
    (void)snprintf(p.file, sizeof p.file, "model-%05u-of-%06u.safetensors", (unsigned)(number + 1),
                   (unsigned)k3_synth_shard_count(c, opt->vision));
    ms_status status = plan_tensors(&p, c, opt->gaussian, number, err);
    if (status == MS_OK && opt->gaussian && !(p.normal = k3_synth_normal_table()))
        status = ms_fail_memory(err, "normal quantiles", 2 * K3_NORMAL_LEVELS * sizeof *p.normal);
    if (status == MS_OK) status = finish_plan(&p, err);
    if (status == MS_OK) *out = p;
    else k3_synth_plan_free(&p);
    return status;
}

void k3_synth_plan_free(k3_synth_plan *p) {
    ms_text_free(&p->names);
    ms_text_free(&p->header);
    free(p->tensors);
    free(p->normal);
    *p = (k3_synth_plan){0};
}

uint64_t k3_synth_plan_bytes(const k3_synth_plan *p) { return p->header.len + p->payload_bytes; }

/* ------------------------------------------------------------------ values */

/* SplitMix64's output function: word i of a stream is mix(key + i * golden), so words need no predecessor. */
static inline uint64_t mix(uint64_t z) {
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}
#define GOLDEN UINT64_C(0x9e3779b97f4a7c15)

uint64_t k3_synth_word(uint64_t key, uint64_t i) { return mix(key + i * GOLDEN); }

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

static void fill_words(uint8_t *out, const k3_synth_tensor *t, const float *normal, const uint16_t *levels, uint64_t key, uint64_t word,
                       size_t words) {
    switch (t->fill) {
    case K3_FILL_CODES: codes(out, key, word, words); break;
    case K3_FILL_SCALES: scales(out, key, word, words, t->scale_base); break;
    case K3_FILL_GAUSS_CODES: k3_synth_gauss_codes(out, normal, key, word, words, t->shape[1] / 16); break;
    case K3_FILL_GAUSS_SCALES: k3_synth_gauss_scales(out, normal, key, word, words, t->shape[1]); break;
    case K3_FILL_UNIFORM:
        if (t->dtype == MS_DTYPE_BF16) uniform_bf16(out, key, word, words, levels);
        else uniform_f32(out, key, word, words, t->mean, t->amplitude);
        break;
    }
}

/* Bytes [from, to) of a tensor; words at the edges are made whole and cut. */
static void fill_tensor(uint8_t *out, const k3_synth_tensor *t, const float *normal, uint64_t seed, uint64_t from,
                        uint64_t to) {
    size_t named = strlen(t->name);
    if (t->fill == K3_FILL_GAUSS_CODES || t->fill == K3_FILL_GAUSS_SCALES) /* one key for both tensors of a matrix */
        while (named > 0 && t->name[named - 1] != '.') named--;
    const uint64_t key = mix(seed + GOLDEN) ^ ms_fnv1a64(MS_FNV1A64_INIT, t->name, named);
    uint16_t levels[LEVELS];
    if (t->fill == K3_FILL_UNIFORM && t->dtype == MS_DTYPE_BF16) make_levels(levels, t->mean, t->amplitude);
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
static size_t tensor_at(const k3_synth_plan *p, uint64_t at) {
    size_t low = 0, high = p->count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (p->tensors[middle].begin <= at) low = middle;
        else high = middle;
    }
    return low;
}

void k3_synth_bytes(uint8_t *out, const k3_synth_plan *p, uint64_t seed, uint64_t at, size_t length) {
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
        const k3_synth_tensor *t = &p->tensors[i];
        uint64_t inside = from - t->begin, rest = t->bytes - inside;
        size_t n = rest < length ? (size_t)rest : length;
        fill_tensor(out, t, p->normal, seed, inside, inside + n);
        out += n;
        from += n;
        length -= n;
    }
}
