/* mzg2_layer.c: the front of a layer file (header, tables, index) and the head of a block, every field checked. */
#include <lzma.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "io/file.h"
#include "store/mzg2_internal.h"

enum {
    SET_HEAD = 4,
    NMAP_BYTES = 4 * MS_MZG2_CLASSES * MS_MZG2_DELTAS,
    TABLE_BYTES = 2 * 256,
    CRC_BYTES = 4,
    CRC_AT = MS_MZG2_HEADER_BYTES - CRC_BYTES,
    MAX_EXPERTS = 1 << 16
};

static uint32_t crc32_of(const void *data, size_t length) { return lzma_crc32(data, length, 0); }

static size_t set_bytes(uint32_t tables) {
    return SET_HEAD + NMAP_BYTES + (size_t)(tables + MS_MZG2_CLASSES) * TABLE_BYTES;
}
static uint64_t index_bytes(uint32_t experts) { return (uint64_t)experts * MS_MZG2_ENTRY_BYTES + CRC_BYTES; }

static ms_status expect(const char *field, uint64_t want, uint64_t found, ms_error *err) {
    if (want == found) return MS_OK;
    return ms_fail(err, MS_ERR_FORMAT, "%s: expected %llu, found %llu", field, (unsigned long long)want,
                   (unsigned long long)found);
}

/* ------------------------------------------------------------------ header */

ms_status ms_mzg2_front_bytes(uint64_t *out, const uint8_t *h, uint64_t file_bytes, ms_error *err) {
    if (file_bytes < MS_MZG2_ALIGN)
        return ms_fail(err, MS_ERR_FORMAT, "file length: expected at least %d, found %llu", MS_MZG2_ALIGN,
                       (unsigned long long)file_bytes);
    if (memcmp(h, "MZG2", 4) != 0)
        return ms_fail(err, MS_ERR_FORMAT, "magic: expected \"MZG2\", found %02x %02x %02x %02x", h[0], h[1], h[2],
                       h[3]);
    MS_TRY(expect("version", MS_MZG2_VERSION, ms_le16(h + 4), err));
    MS_TRY(expect("header CRC", crc32_of(h, CRC_AT), ms_le32(h + CRC_AT), err));
    MS_TRY(expect("flags", 1, ms_le16(h + 6), err));
    uint32_t experts = ms_le32(h + 12);
    if (experts == 0 || experts > MAX_EXPERTS)
        return ms_fail(err, MS_ERR_FORMAT, "experts: expected 1 to %d, found %u", MAX_EXPERTS, (unsigned)experts);
    ms_expert_shape s = {.hidden = ms_le32(h + 16), .inner = ms_le32(h + 20)};
    if (!ms_expert_shape_valid(s) || s.hidden > 1u << 24 || s.inner > 1u << 24 || ms_expert_bytes(s) > 1u << 30)
        return ms_fail(err, MS_ERR_FORMAT,
                       "widths: expected multiples of 32 and experts of at most 2^30 bytes, found %u and %u",
                       (unsigned)s.hidden, (unsigned)s.inner);
    MS_TRY(expect("probability bits of nibble tables", MS_MZG2_PAIR_BITS, ms_le32(h + 24), err));
    MS_TRY(expect("probability bits of scale tables", MS_MZG2_SCALE_BITS, ms_le32(h + 28), err));
    MS_TRY(expect("tables offset", MS_MZG2_HEADER_BYTES, ms_le32(h + 32), err));
    uint64_t tables = ms_le32(h + 36), most = MS_MZG2_SETS * set_bytes(MS_MZG2_MAX_TABLES) + CRC_BYTES;
    if (tables > most)
        return ms_fail(err, MS_ERR_FORMAT, "tables length: expected at most %llu, found %llu", (unsigned long long)most,
                       (unsigned long long)tables);
    uint64_t index_at = ms_le32(h + 40), first = ms_le32(h + 48);
    if (index_at < MS_MZG2_HEADER_BYTES + tables || index_at > MS_MZG2_HEADER_BYTES + tables + MS_MZG2_ALIGN)
        return ms_fail(err, MS_ERR_FORMAT, "index offset: expected %llu, found %llu",
                       (unsigned long long)(MS_MZG2_HEADER_BYTES + tables), (unsigned long long)index_at);
    MS_TRY(expect("index length", index_bytes(experts), ms_le32(h + 44), err));
    if (first % MS_MZG2_ALIGN != 0 || first < index_at + index_bytes(experts) || first > file_bytes)
        return ms_fail(err, MS_ERR_FORMAT, "first block: expected a multiple of %d in %llu..%llu, found %llu",
                       MS_MZG2_ALIGN, (unsigned long long)(index_at + index_bytes(experts)),
                       (unsigned long long)file_bytes, (unsigned long long)first);
    MS_TRY(expect("table sets", MS_MZG2_SETS, ms_le32(h + 52), err));
    MS_TRY(expect("file length", ms_le64(h + 56), file_bytes, err));
    *out = first;
    return MS_OK;
}

/* ------------------------------------------------------------------ tables */

static ms_status parse_table(uint16_t out[256], const uint8_t *p, unsigned bits, const char *what, uint32_t number,
                             ms_error *err) {
    uint32_t sum = 0, range = 1u << bits;
    for (uint32_t s = 0; s < 256; s++) {
        out[s] = ms_le16(p + 2 * s);
        sum += out[s];
        if (out[s] >= range)
            return ms_fail(err, MS_ERR_FORMAT, "%s table %u: frequency of %u: expected less than %u, found %u", what,
                           (unsigned)number, (unsigned)s, (unsigned)range, out[s]);
    }
    if (sum != range)
        return ms_fail(err, MS_ERR_FORMAT, "%s table %u: sum: expected %u, found %u", what, (unsigned)number,
                       (unsigned)range, (unsigned)sum);
    return MS_OK;
}

static ms_status parse_map(ms_mzg2_set *s, const uint8_t *p, ms_error *err) {
    for (uint32_t c = 0; c < MS_MZG2_CLASSES; c++)
        for (uint32_t d = 0; d < MS_MZG2_DELTAS; d++) {
            uint32_t word = s->nmap[c][d] = ms_le32(p + 4 * (c * MS_MZG2_DELTAS + d));
            for (unsigned q = 0; q < MS_MZG2_CLASSES; q++)
                if ((word >> 4 * q & 15) >= s->tables)
                    return ms_fail(err, MS_ERR_FORMAT,
                                   "map of class %u, difference %u: expected tables below %u, found %08x", (unsigned)c,
                                   (unsigned)d, (unsigned)s->tables, (unsigned)word);
        }
    return MS_OK;
}

/* One set of at most `left` bytes; *used tells how many it took. */
static ms_status parse_set(ms_mzg2_set *s, const uint8_t *p, size_t left, size_t *used, ms_error *err) {
    if (left < SET_HEAD) return ms_fail(err, MS_ERR_FORMAT, "tables length: expected more, found the end");
    s->tables = p[0];
    if (s->tables < 1 || s->tables > MS_MZG2_MAX_TABLES)
        return ms_fail(err, MS_ERR_FORMAT, "nibble tables: expected 1 to %d, found %u", MS_MZG2_MAX_TABLES,
                       (unsigned)s->tables);
    MS_TRY(expect("row classes", MS_MZG2_CLASSES, p[1], err));
    s->e_base = p[2];
    MS_TRY(expect("byte 3", 0, p[3], err));
    *used = set_bytes(s->tables);
    if (left < *used) return ms_fail(err, MS_ERR_FORMAT, "tables length: expected %zu more, found %zu", *used, left);
    MS_TRY(parse_map(s, p + SET_HEAD, err));
    p += SET_HEAD + NMAP_BYTES;
    for (uint32_t t = 0; t < s->tables; t++, p += TABLE_BYTES)
        MS_TRY(parse_table(s->nibble[t], p, MS_MZG2_PAIR_BITS, "nibble", t, err));
    for (uint32_t c = 0; c < MS_MZG2_CLASSES; c++, p += TABLE_BYTES)
        MS_TRY(parse_table(s->scale[c], p, MS_MZG2_SCALE_BITS, "scale", c, err));
    return MS_OK;
}

static ms_status parse_tables(ms_mzg2_layer *l, const uint8_t *p, size_t length, ms_error *err) {
    if (length < CRC_BYTES) return ms_fail(err, MS_ERR_FORMAT, "tables length: expected more, found %zu", length);
    MS_TRY(expect("tables CRC", crc32_of(p, length - CRC_BYTES), ms_le32(p + length - CRC_BYTES), err));
    size_t at = 0;
    static const char *const names[MS_MZG2_SETS] = {"w1", "w3", "w2"};
    for (int i = 0; i < MS_MZG2_SETS; i++) {
        size_t used = 0;
        if (parse_set(&l->set[i], p + at, length - CRC_BYTES - at, &used, err) != MS_OK)
            return err ? ms_error_context(err, "%s", names[i]) : MS_ERR_FORMAT;
        at += used;
    }
    return expect("tables length", at + CRC_BYTES, length, err);
}

/* ------------------------------------------------------------------ index */

static ms_status parse_entry(ms_mzg2_entry *e, const uint8_t *p, uint64_t first, uint64_t file_bytes, size_t head,
                             size_t most, ms_error *err) {
    *e = (ms_mzg2_entry){
        .offset = ms_le64(p), .stored_bytes = ms_le32(p + 8), .payload_bytes = ms_le32(p + 12), .crc = ms_le32(p + 16)};
    if (e->offset % MS_MZG2_ALIGN != 0 || e->offset < first || e->offset > file_bytes)
        return ms_fail(err, MS_ERR_FORMAT, "offset: expected a multiple of %d in %llu..%llu, found %llu", MS_MZG2_ALIGN,
                       (unsigned long long)first, (unsigned long long)file_bytes, (unsigned long long)e->offset);
    if (e->stored_bytes % MS_MZG2_ALIGN != 0 || e->stored_bytes > most || e->stored_bytes > file_bytes - e->offset)
        return ms_fail(err, MS_ERR_FORMAT,
                       "stored length: expected a multiple of %d up to %zu inside the file, found %u", MS_MZG2_ALIGN,
                       most, (unsigned)e->stored_bytes);
    if (e->payload_bytes < head || (uint64_t)e->payload_bytes + MS_MZG2_TAIL_BYTES > e->stored_bytes)
        return ms_fail(err, MS_ERR_FORMAT, "payload length: expected %zu to %lld, found %u", head,
                       (long long)e->stored_bytes - MS_MZG2_TAIL_BYTES, (unsigned)e->payload_bytes);
    for (int i = 20; i < MS_MZG2_ENTRY_BYTES; i++)
        if (p[i]) return ms_fail(err, MS_ERR_FORMAT, "byte %d of the entry: expected 0, found %u", i, p[i]);
    return MS_OK;
}

static ms_status parse_index(ms_mzg2_layer *l, const uint8_t *p, ms_error *err) {
    size_t length = (size_t)l->experts * MS_MZG2_ENTRY_BYTES;
    MS_TRY(expect("index CRC", crc32_of(p, length), ms_le32(p + length), err));
    l->index = calloc(l->experts, sizeof *l->index);
    if (!l->index) return ms_fail_memory(err, "the index of a layer", l->experts * sizeof *l->index);
    size_t head = ms_mzg2_block_head_bytes(l->shape), most = ms_mzg2_block_max_bytes(l->shape);
    for (uint32_t e = 0; e < l->experts; e++, p += MS_MZG2_ENTRY_BYTES)
        if (parse_entry(&l->index[e], p, l->first_block, l->file_bytes, head, most, err) != MS_OK)
            return err ? ms_error_context(err, "expert %u", (unsigned)e) : MS_ERR_FORMAT;
    return MS_OK;
}

ms_status ms_mzg2_layer_parse(ms_mzg2_layer *out, const uint8_t *front, size_t length, uint64_t file_bytes,
                              ms_error *err) {
    uint64_t need;
    *out = (ms_mzg2_layer){0};
    MS_TRY(ms_mzg2_front_bytes(&need, front, file_bytes, err));
    if (length < need)
        return ms_fail(err, MS_ERR_FORMAT, "front: expected %llu bytes, found %zu", (unsigned long long)need, length);
    ms_mzg2_layer l = {.layer = ms_le32(front + 8),
                       .experts = ms_le32(front + 12),
                       .shape = {.hidden = ms_le32(front + 16), .inner = ms_le32(front + 20)},
                       .first_block = need,
                       .file_bytes = file_bytes};
    memcpy(l.source_sha, front + 64, sizeof l.source_sha);
    memcpy(l.canonical_sha, front + 96, sizeof l.canonical_sha);
    ms_status st = parse_tables(&l, front + MS_MZG2_HEADER_BYTES, ms_le32(front + 36), err);
    if (st == MS_OK) st = parse_index(&l, front + ms_le32(front + 40), err);
    if (st == MS_OK)
        *out = l;
    else
        ms_mzg2_layer_free(&l);
    return st;
}

ms_status ms_mzg2_layer_read(ms_mzg2_layer *out, int fd, const char *path, uint64_t file_bytes, ms_error *err) {
    uint8_t header[MS_MZG2_HEADER_BYTES];
    uint64_t need = 0;
    ms_error local = {0};
    if (!err) err = &local;
    *out = (ms_mzg2_layer){0};
    if (file_bytes < sizeof header)
        return ms_fail(err, MS_ERR_FORMAT, "%s: file length: expected at least %d, found %llu", path, MS_MZG2_ALIGN,
                       (unsigned long long)file_bytes);
    MS_TRY(ms_file_pread_exact(fd, path, header, sizeof header, 0, err));
    if (ms_mzg2_front_bytes(&need, header, file_bytes, err) != MS_OK) return ms_error_context(err, "%s", path);
    uint8_t *front = malloc((size_t)need);
    if (!front) return ms_fail_memory(err, path, (size_t)need);
    ms_status st = ms_file_pread_exact(fd, path, front, (size_t)need, 0, err);
    if (st == MS_OK) {
        st = ms_mzg2_layer_parse(out, front, (size_t)need, file_bytes, err);
        if (st != MS_OK) ms_error_context(err, "%s", path);
    }
    free(front);
    return st;
}

void ms_mzg2_layer_free(ms_mzg2_layer *l) {
    free(l->index);
    l->index = NULL;
}

/* ------------------------------------------------------------------ writing */

static size_t tables_bytes(const ms_mzg2_set set[MS_MZG2_SETS]) {
    size_t n = CRC_BYTES;
    for (int i = 0; i < MS_MZG2_SETS; i++) n += set_bytes(set[i].tables);
    return n;
}

uint64_t ms_mzg2_layer_front_bytes(const ms_mzg2_set set[MS_MZG2_SETS], uint32_t experts) {
    return ms_align_up(MS_MZG2_HEADER_BYTES + tables_bytes(set) + index_bytes(experts), MS_MZG2_ALIGN);
}

static void put16(uint8_t *p, uint16_t v) {
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

static uint8_t *write_set(uint8_t *p, const ms_mzg2_set *s) {
    p[0] = (uint8_t)s->tables;
    p[1] = MS_MZG2_CLASSES;
    p[2] = s->e_base;
    p[3] = 0;
    p += SET_HEAD;
    for (int c = 0; c < MS_MZG2_CLASSES; c++)
        for (int d = 0; d < MS_MZG2_DELTAS; d++, p += 4) ms_put_le32(p, s->nmap[c][d]);
    for (uint32_t t = 0; t < s->tables; t++)
        for (int i = 0; i < 256; i++, p += 2) put16(p, s->nibble[t][i]);
    for (int c = 0; c < MS_MZG2_CLASSES; c++)
        for (int i = 0; i < 256; i++, p += 2) put16(p, s->scale[c][i]);
    return p;
}

void ms_mzg2_layer_write(uint8_t *front, const ms_mzg2_layer *l) {
    memset(front, 0, (size_t)l->first_block);
    size_t tables = tables_bytes(l->set), index = MS_MZG2_HEADER_BYTES + tables;
    uint8_t *h = front, *p = front + MS_MZG2_HEADER_BYTES;
    memcpy(h, "MZG2", 4);
    put16(h + 4, MS_MZG2_VERSION);
    put16(h + 6, 1);
    const uint32_t fields[] = {l->layer,
                               l->experts,
                               l->shape.hidden,
                               l->shape.inner,
                               MS_MZG2_PAIR_BITS,
                               MS_MZG2_SCALE_BITS,
                               MS_MZG2_HEADER_BYTES,
                               (uint32_t)tables,
                               (uint32_t)index,
                               (uint32_t)index_bytes(l->experts),
                               (uint32_t)l->first_block,
                               MS_MZG2_SETS};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) ms_put_le32(h + 8 + 4 * i, fields[i]);
    ms_put_le64(h + 56, l->file_bytes);
    memcpy(h + 64, l->source_sha, sizeof l->source_sha);
    memcpy(h + 96, l->canonical_sha, sizeof l->canonical_sha);
    ms_put_le32(h + CRC_AT, crc32_of(h, CRC_AT));
    for (int i = 0; i < MS_MZG2_SETS; i++) p = write_set(p, &l->set[i]);
    ms_put_le32(p, crc32_of(front + MS_MZG2_HEADER_BYTES, tables - CRC_BYTES));
    p = front + index;
    for (uint32_t e = 0; e < l->experts; e++, p += MS_MZG2_ENTRY_BYTES) {
        ms_put_le64(p, l->index[e].offset);
        ms_put_le32(p + 8, l->index[e].stored_bytes);
        ms_put_le32(p + 12, l->index[e].payload_bytes);
        ms_put_le32(p + 16, l->index[e].crc);
    }
    ms_put_le32(p, crc32_of(front + index, (size_t)l->experts * MS_MZG2_ENTRY_BYTES));
}

/* ------------------------------------------------------------------ block head */

static uint32_t columns_of(ms_expert_shape s) { return s.hidden / 2 * 2 + s.inner / 2; }

size_t ms_mzg2_block_head_bytes(ms_expert_shape s) {
    return (size_t)ms_align_up(16 + 12ull * ms_expert_tiles(s) + columns_of(s), 16);
}

size_t ms_mzg2_block_max_bytes(ms_expert_shape s) {
    return (size_t)ms_align_up(ms_mzg2_block_head_bytes(s) + ms_expert_bytes(s) + MS_MZG2_TAIL_BYTES, MS_MZG2_ALIGN);
}

static ms_status check_tile(const uint8_t *entry, uint32_t groups, size_t head, uint64_t payload, ms_error *err) {
    uint64_t at = ms_le32(entry), length = ms_le32(entry + 4), raw = 17ull * MZG2_LANES * groups;
    bool is_raw = length >> 31;
    length &= 0x7fffffffu;
    if (at % 16 != 0 || at < head || at > payload)
        return ms_fail(err, MS_ERR_FORMAT, "offset: expected a multiple of 16 in %zu..%llu, found %llu", head,
                       (unsigned long long)payload, (unsigned long long)at);
    bool fits = is_raw ? length == raw : length >= MS_MZG2_TILE_HEAD && length % 2 == 0;
    if (!fits || length > payload - at)
        return ms_fail(err, MS_ERR_FORMAT, "length: expected %s, found %llu",
                       is_raw ? "that of the decoded tile, inside the payload" : "an even number inside the payload",
                       (unsigned long long)length);
    return MS_OK;
}

ms_status ms_mzg2_block_open(ms_mzg2_block *out, const uint8_t *data, size_t length, uint32_t expert,
                             ms_expert_shape shape, ms_error *err) {
    size_t head = ms_mzg2_block_head_bytes(shape);
    if (length < head + MS_MZG2_TAIL_BYTES)
        return ms_fail(err, MS_ERR_FORMAT, "block: expected at least %zu bytes, found %zu", head + MS_MZG2_TAIL_BYTES,
                       length);
    if (memcmp(data, "MZGB", 4) != 0)
        return ms_fail(err, MS_ERR_FORMAT, "block magic: expected \"MZGB\", found %02x %02x %02x %02x", data[0],
                       data[1], data[2], data[3]);
    MS_TRY(expect("block expert", expert, ms_le32(data + 4), err));
    ms_mzg2_block b = {
        .data = data, .length = length, .expert = expert, .tiles = ms_expert_tiles(shape), .shape = shape};
    MS_TRY(expect("block tiles", b.tiles, ms_le32(data + 8), err));
    b.payload_bytes = ms_le32(data + 12);
    if (b.payload_bytes < head || b.payload_bytes > length - MS_MZG2_TAIL_BYTES)
        return ms_fail(err, MS_ERR_FORMAT, "block payload: expected %zu to %zu bytes, found %u", head,
                       length - MS_MZG2_TAIL_BYTES, (unsigned)b.payload_bytes);
    uint32_t first_w2 = 2 * (shape.inner / MZG2_LANES);
    for (uint32_t t = 0; t < b.tiles; t++) {
        uint32_t groups = ms_expert_groups(shape, t >= first_w2 ? MS_W2 : MS_W1);
        if (check_tile(data + 16 + 12 * (size_t)t, groups, head, b.payload_bytes, err) != MS_OK)
            return err ? ms_error_context(err, "tile %u", (unsigned)t) : MS_ERR_FORMAT;
    }
    const uint8_t *columns = data + 16 + 12 * (size_t)b.tiles;
    for (uint32_t i = 0; i < columns_of(shape); i++)
        if (columns[i] >= MS_MZG2_CLASSES)
            return ms_fail(err, MS_ERR_FORMAT, "class of byte column %u: expected 0 to 7, found %u", (unsigned)i,
                           columns[i]);
    b.columns[MS_W1] = columns;
    b.columns[MS_W3] = columns + shape.hidden / 2;
    b.columns[MS_W2] = columns + shape.hidden;
    *out = b;
    return MS_OK;
}
