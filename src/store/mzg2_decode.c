/* mzg2_decode.c: tables in decoding form, the choice of a decoder, tiles of a block. */
#include <string.h>

#include "base/bytes.h"
#include "store/mzg2_internal.h"

/* ------------------------------------------------------------------ choice */

static bool always(void) { return true; }
#if defined(__x86_64__)
static bool has_avx2(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("popcnt"); }
static bool has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni");
}
#endif

/* Best first. */
static const struct {
    const ms_mzg2_codec *codec;
    bool (*supported)(void);
} candidates[] = {
#if defined(__x86_64__)
    {&ms_mzg2_codec_avx512, has_avx512},
    {&ms_mzg2_codec_avx2, has_avx2},
#endif
    {&ms_mzg2_codec_scalar, always},
};

const ms_mzg2_codec *ms_mzg2_codec_find(const char *name) {
    for (size_t i = 0; i < sizeof candidates / sizeof candidates[0]; i++) {
        if (name && strcmp(name, candidates[i].codec->name) != 0) continue;
        if (candidates[i].supported()) return candidates[i].codec;
    }
    return NULL;
}

const char *ms_mzg2_codec_name(const ms_mzg2_codec *c) { return c->name; }

/* ------------------------------------------------------------------ tables */

static void expand(uint32_t *out, const uint16_t freq[256]) {
    for (uint32_t s = 0; s < 256; s++)
        for (uint32_t i = 0; i < freq[s]; i++) *out++ = s | (uint32_t)freq[s] << 8 | i << 20;
}

void ms_mzg2_tables_expand(ms_mzg2_tables *out, const ms_mzg2_layer *l) {
    for (int i = 0; i < MS_MZG2_SETS; i++) {
        const ms_mzg2_set *set = &l->set[i];
        for (uint32_t t = 0; t < set->tables; t++) expand(out->set[i].nibble[t], set->nibble[t]);
        for (uint32_t c = 0; c < MS_MZG2_CLASSES; c++) expand(out->set[i].scale[c], set->scale[c]);
        memcpy(out->set[i].nmap, set->nmap, sizeof set->nmap);
        out->set[i].e_base = set->e_base;
    }
}

/* ------------------------------------------------------------------ tiles */

uint32_t mzg2_tile_hash(const uint8_t *tile, uint32_t groups) {
    uint32_t h[MZG2_LANES];
    const uint8_t *scales = tile + (size_t)groups * MZG2_LANES * MZG2_GROUP_BYTES;
    for (uint32_t l = 0; l < MZG2_LANES; l++) h[l] = MZG2_HASH_START ^ l;
    for (uint32_t g = 0; g < groups; g++)
        for (uint32_t l = 0; l < MZG2_LANES; l++) {
            const uint8_t *bytes = tile + ((size_t)g * MZG2_LANES + l) * MZG2_GROUP_BYTES;
            h[l] = mzg2_fold(h[l], scales[g * MZG2_LANES + l]);
            for (uint32_t w = 0; w < 4; w++) h[l] = mzg2_fold(h[l], ms_le32(bytes + 4 * w));
        }
    return mzg2_hash_end(h);
}

/* The matrix a tile belongs to; in tile order w1 and w3 alternate. */
static ms_expert_matrix matrix_of(ms_expert_shape s, uint32_t tile) {
    if (tile >= 2 * (s.inner / MZG2_LANES)) return MS_W2;
    return tile % 2 == 0 ? MS_W1 : MS_W3;
}

static size_t slot_offset(ms_expert_shape s, uint32_t tile) {
    uint32_t first_w2 = 2 * (s.inner / MZG2_LANES);
    if (tile >= first_w2) return ms_expert_tile_offset(s, MS_W2, tile - first_w2);
    return ms_expert_tile_offset(s, tile % 2 == 0 ? MS_W1 : MS_W3, tile / 2);
}

static const uint8_t *directory(const ms_mzg2_block *b, uint32_t tile) { return b->data + 16 + 12 * (size_t)tile; }

typedef struct batch {
    mzg2_job job[MZG2_MAX_WIDTH];
    uint32_t tile[MZG2_MAX_WIDTH];
    unsigned count;
} batch;

static ms_mzg2_fault run_batch(const ms_mzg2_codec *c, batch *p, uint32_t *bad) {
    ms_mzg2_fault faults[MZG2_MAX_WIDTH];
    if (!p->count) return MS_MZG2_GOOD;
    c->run(p->job, p->count, faults);
    unsigned n = p->count;
    p->count = 0;
    for (unsigned i = 0; i < n; i++)
        if (faults[i] != MS_MZG2_GOOD) {
            *bad = p->tile[i];
            return faults[i];
        }
    return MS_MZG2_GOOD;
}

static mzg2_job job_of(const ms_mzg2_block *b, const ms_mzg2_tables *t, uint32_t tile, uint8_t *out) {
    ms_expert_matrix m = matrix_of(b->shape, tile);
    const uint8_t *entry = directory(b, tile);
    const uint8_t *data = b->data + ms_le32(entry);
    return (mzg2_job){.nibble = t->set[m].nibble[0],
                      .scale = t->set[m].scale[0],
                      .nmap = t->set[m].nmap[0],
                      .e_base = t->set[m].e_base,
                      .groups = ms_expert_groups(b->shape, m),
                      .columns = b->columns[m],
                      .tile = data,
                      .end = data + ms_le32(entry + 4),
                      .hash = ms_le32(entry + 8),
                      .out = out};
}

ms_mzg2_fault ms_mzg2_decode_tiles(const ms_mzg2_codec *c, void *slot, const ms_mzg2_block *b, const ms_mzg2_tables *t,
                                   uint32_t first, uint32_t count, uint32_t *bad) {
    batch p = {.count = 0};
    for (uint32_t tile = first; tile < first + count; tile++) {
        uint8_t *out = (uint8_t *)slot + slot_offset(b->shape, tile);
        const uint8_t *entry = directory(b, tile);
        uint32_t length = ms_le32(entry + 4), groups = ms_expert_groups(b->shape, matrix_of(b->shape, tile));
        if (length >> 31) {
            memcpy(out, b->data + ms_le32(entry), length & 0x7fffffffu);
            if (mzg2_tile_hash(out, groups) == ms_le32(entry + 8)) continue;
            *bad = tile;
            return MS_MZG2_BAD_HASH;
        }
        if (p.count == c->width || (p.count && p.job[0].groups != groups)) {
            ms_mzg2_fault f = run_batch(c, &p, bad);
            if (f != MS_MZG2_GOOD) return f;
        }
        p.job[p.count] = job_of(b, t, tile, out);
        p.tile[p.count++] = tile;
    }
    return run_batch(c, &p, bad);
}

const char *ms_mzg2_fault_text(ms_mzg2_fault f) {
    switch (f) {
    case MS_MZG2_GOOD:
        return "good";
    case MS_MZG2_BAD_STATE:
        return "a first state is below 65536";
    case MS_MZG2_BAD_WORDS:
        return "words are missing or left over";
    case MS_MZG2_BAD_END:
        return "a last state is not 65536";
    case MS_MZG2_BAD_HASH:
        return "the hash of the decoded bytes is another one";
    }
    return "?";
}

ms_status ms_mzg2_fault_fail(ms_mzg2_fault f, uint32_t tile, ms_error *err) {
    if (f == MS_MZG2_GOOD) return MS_OK;
    return ms_fail(err, MS_ERR_FORMAT, "tile %u: expected a tile that decodes, found damage: %s", (unsigned)tile,
                   ms_mzg2_fault_text(f));
}

void ms_mzg2_trace(uint32_t states[MS_MZG2_LANES], uint32_t *words_used, const ms_mzg2_block *b,
                   const ms_mzg2_tables *t, uint32_t tile, unsigned pairs) {
    mzg2_job j = job_of(b, t, tile, NULL);
    *words_used = mzg2_scalar_trace(states, &j, pairs);
}

ms_status ms_mzg2_decode(const ms_mzg2_codec *c, void *slot, const ms_mzg2_block *b, const ms_mzg2_tables *t,
                         ms_error *err) {
    uint32_t bad = 0;
    ms_mzg2_fault f = ms_mzg2_decode_tiles(c, slot, b, t, 0, b->tiles, &bad);
    return ms_mzg2_fault_fail(f, bad, err);
}
