/* mzg2_encode.c: writes the block of one expert.
 *
 * A tile is coded backwards into a buffer that is filled from its end, so the words come out in reading order.
 */
#include "store/mzg2_encode.h"

#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "store/mzg2_model.h"

/* What coding a symbol needs, in one word: frequency and start. */
typedef struct code {
    uint16_t freq, start;
} code;

struct ms_mzg2_encoder {
    ms_expert_shape shape;
    uint32_t column_classes;
    struct {
        code nibble[MS_MZG2_MAX_TABLES][256];
        code scale[MS_MZG2_CLASSES][256];
        uint32_t nmap[MS_MZG2_CLASSES][MS_MZG2_DELTAS];
        uint32_t e_base;
    } set[MS_MZG2_SETS];
    uint8_t *row_bytes; /* [3][rows of the widest matrix] */
    uint8_t *base;      /* [rows of the widest matrix] */
    mzg2_ranked *order; /* [byte columns] */
    uint16_t *words;    /* of one tile: MZG2_GROUP_WORDS a group, and one that is never kept */
    uint8_t *image;     /* slot image of one tile */
};

static void make_codes(code out[256], const uint16_t freq[256]) {
    uint32_t start = 0;
    for (int s = 0; s < 256; s++) {
        out[s] = (code){.freq = freq[s], .start = (uint16_t)start};
        start += freq[s];
    }
}

ms_status ms_mzg2_encoder_create(ms_mzg2_encoder **out, ms_expert_shape s, const ms_mzg2_set sets[MS_MZG2_SETS],
                                 uint32_t column_classes, ms_error *err) {
    ms_mzg2_encoder *e = calloc(1, sizeof *e);
    if (!e) return ms_fail_memory(err, "an encoder", sizeof *e);
    uint32_t widest = s.hidden > s.inner ? s.hidden : s.inner, groups = widest / 32;
    e->shape = s;
    e->column_classes = column_classes ? column_classes : MS_MZG2_CLASSES;
    e->row_bytes = malloc((size_t)3 * widest);
    e->base = malloc(widest);
    e->order = malloc((size_t)widest / 2 * sizeof *e->order);
    e->words = malloc(((size_t)groups * MZG2_GROUP_WORDS + 1) * sizeof *e->words);
    e->image = malloc((size_t)groups * MZG2_TILE_GROUP);
    if (!e->row_bytes || !e->base || !e->order || !e->words || !e->image) {
        ms_mzg2_encoder_destroy(e);
        return ms_fail_memory(err, "an encoder", (size_t)groups * 4 * MZG2_GROUP_WORDS);
    }
    for (int i = 0; i < MS_MZG2_SETS; i++) {
        for (uint32_t t = 0; t < sets[i].tables; t++) make_codes(e->set[i].nibble[t], sets[i].nibble[t]);
        for (int c = 0; c < MS_MZG2_CLASSES; c++) make_codes(e->set[i].scale[c], sets[i].scale[c]);
        memcpy(e->set[i].nmap, sets[i].nmap, sizeof sets[i].nmap);
        e->set[i].e_base = sets[i].e_base;
    }
    *out = e;
    return MS_OK;
}

void ms_mzg2_encoder_destroy(ms_mzg2_encoder *e) {
    if (!e) return;
    free(e->row_bytes);
    free(e->base);
    free(e->order);
    free(e->words);
    free(e->image);
    free(e);
}

/* Slot image of tile number `tile` of a matrix. */
static void make_image(uint8_t *out, const mzg2_matrix *m, uint32_t tile) {
    uint8_t *scales = out + (size_t)m->groups * MZG2_LANES * MZG2_GROUP_BYTES;
    for (uint32_t l = 0; l < MZG2_LANES; l++) {
        const uint8_t *bytes = m->packed + ((size_t)tile * MZG2_LANES + l) * m->groups * MZG2_GROUP_BYTES;
        const uint8_t *from = m->scales + ((size_t)tile * MZG2_LANES + l) * m->groups;
        for (uint32_t g = 0; g < m->groups; g++) {
            memcpy(out + ((size_t)g * MZG2_LANES + l) * MZG2_GROUP_BYTES, bytes + (size_t)g * MZG2_GROUP_BYTES,
                   MZG2_GROUP_BYTES);
            scales[g * MZG2_LANES + l] = from[g];
        }
    }
}

/* Takes symbol `c` into the state; a state that would grow too large gives a word first.  *lost is set when the
 * tables cannot code the symbol. */
static inline uint32_t put(uint32_t x, code c, unsigned bits, uint16_t **words, uint32_t *lost) {
    uint32_t freq = c.freq;
    if (freq == 0) {
        *lost = 1;
        return x;
    }
    bool full = x >= (uint64_t)freq << (32 - bits);
    **words = (uint16_t)x; /* stays only when the pointer moves on */
    *words -= full;
    x = full ? x >> 16 : x;
    uint32_t quotient = x / freq;
    return (quotient << bits) + (x - quotient * freq) + c.start;
}

/* Codes the tile in e->image; gives its length in `out`, or 0 when it must be raw. */
static size_t code_tile(ms_mzg2_encoder *e, uint8_t *out, ms_expert_matrix kind, uint32_t groups, const uint8_t *rows,
                        const uint8_t *columns) {
    const uint8_t *scales = e->image + (size_t)groups * MZG2_LANES * MZG2_GROUP_BYTES;
    uint16_t *const end = e->words + (size_t)groups * MZG2_GROUP_WORDS + 1, *words = end - 1;
    uint32_t x[MZG2_LANES], m[MZG2_LANES], s[MZG2_LANES], lost = 0;
    for (uint32_t l = 0; l < MZG2_LANES; l++) x[l] = MZG2_END_STATE;
    for (uint32_t g = groups; g-- > 0;) {
        for (uint32_t l = 0; l < MZG2_LANES; l++) {
            s[l] = (scales[g * MZG2_LANES + l] - e->set[kind].e_base - (rows[l] >> 3)) & 0xff;
            m[l] = e->set[kind].nmap[rows[l] & 7][s[l] < MS_MZG2_DELTAS - 1 ? s[l] : MS_MZG2_DELTAS - 1];
        }
        const uint8_t *bytes = e->image + (size_t)g * MZG2_LANES * MZG2_GROUP_BYTES;
        for (uint32_t k = MZG2_GROUP_BYTES; k-- > 0;) {
            unsigned digit = 4u * columns[g * MZG2_GROUP_BYTES + k];
            for (uint32_t l = MZG2_LANES; l-- > 0;) {
                code c = e->set[kind].nibble[m[l] >> digit & 15][bytes[l * MZG2_GROUP_BYTES + k]];
                x[l] = put(x[l], c, MS_MZG2_PAIR_BITS, &words, &lost);
            }
        }
        for (uint32_t l = MZG2_LANES; l-- > 0;)
            x[l] = put(x[l], e->set[kind].scale[rows[l] & 7][s[l]], MS_MZG2_SCALE_BITS, &words, &lost);
        if (lost) return 0;
    }
    words++;
    size_t length = MS_MZG2_TILE_HEAD + (size_t)(end - words) * 2;
    if (length >= (size_t)groups * MZG2_TILE_GROUP) return 0;
    memcpy(out, rows, MZG2_LANES);
    for (uint32_t l = 0; l < MZG2_LANES; l++) ms_put_le32(out + MZG2_LANES + 4 * l, x[l]);
    uint8_t *to = out + MS_MZG2_TILE_HEAD;
    for (; words < end; words++, to += 2) {
        to[0] = (uint8_t)*words;
        to[1] = (uint8_t)(*words >> 8);
    }
    return length;
}

/* Appends one tile at *at (a multiple of 16) and fills its entry in the tile directory. */
static void add_tile(ms_mzg2_encoder *e, uint8_t *block, size_t *at, uint8_t *entry, const mzg2_matrix *m,
                     uint32_t tile, const uint8_t *rows, const uint8_t *columns) {
    make_image(e->image, m, tile);
    size_t length = code_tile(e, block + *at, m->kind, m->groups, rows, columns);
    uint32_t raw = 0;
    if (length == 0) {
        length = (size_t)m->groups * MZG2_TILE_GROUP;
        memcpy(block + *at, e->image, length);
        raw = 1;
    }
    ms_put_le32(entry, (uint32_t)*at);
    ms_put_le32(entry + 4, (uint32_t)length | raw << 31);
    ms_put_le32(entry + 8, mzg2_tile_hash(e->image, m->groups));
    size_t next = (size_t)ms_align_up(*at + length, 16);
    memset(block + *at + length, 0, next - *at - length);
    *at = next;
}

typedef struct prepared {
    mzg2_matrix m;
    uint8_t *rows; /* row bytes */
    const uint8_t *columns;
} prepared;

static void prepare(ms_mzg2_encoder *e, const uint8_t *source, ms_expert_matrix kind, uint8_t *columns, prepared *out) {
    mzg2_matrix m = mzg2_matrix_of(source, e->shape, kind);
    for (uint32_t r = 0; r < m.rows; r++) {
        uint32_t mean8 = mzg2_row_mean8(m.scales + (size_t)r * m.groups, m.groups);
        out->rows[r] = mzg2_row_byte(mean8, e->set[kind].e_base);
        e->base[r] = (uint8_t)((out->rows[r] >> 3) + e->set[kind].e_base);
    }
    mzg2_column_classes(columns, &m, e->base, e->column_classes, e->order);
    out->m = m;
    out->columns = columns;
}

void ms_mzg2_encode(ms_mzg2_encoder *e, uint8_t *out, const uint8_t *canonical, uint32_t expert, uint32_t *payload,
                    uint32_t *stored) {
    ms_expert_shape s = e->shape;
    uint32_t tiles = ms_expert_tiles(s), widest = s.hidden > s.inner ? s.hidden : s.inner;
    size_t at = ms_mzg2_block_head_bytes(s);
    memset(out, 0, at);
    memcpy(out, "MZGB", 4);
    ms_put_le32(out + 4, expert);
    ms_put_le32(out + 8, tiles);
    uint8_t *entry = out + 16, *columns = out + 16 + 12 * (size_t)tiles;
    prepared p[MS_MZG2_SETS];
    for (int i = 0; i < MS_MZG2_SETS; i++) {
        p[i].rows = e->row_bytes + (size_t)i * widest;
        prepare(e, canonical, (ms_expert_matrix)i, columns + (size_t)i * (s.hidden / 2), &p[i]);
    }
    for (uint32_t t = 0; t < tiles; t++, entry += 12) {
        uint32_t first_w2 = 2 * (s.inner / MZG2_LANES);
        int kind = t >= first_w2 ? MS_W2 : t % 2 == 0 ? MS_W1 : MS_W3;
        uint32_t tile = t >= first_w2 ? t - first_w2 : t / 2;
        add_tile(e, out, &at, entry, &p[kind].m, tile, p[kind].rows + (size_t)tile * MZG2_LANES, p[kind].columns);
    }
    *payload = (uint32_t)at;
    *stored = (uint32_t)ms_align_up(at + MS_MZG2_TAIL_BYTES, MS_MZG2_ALIGN);
    ms_put_le32(out + 12, *payload);
    memset(out + at, 0, *stored - at);
}
