/* rank_table.c: see rank_table.h. */
#include "text/rank_table.h"

#include <stdlib.h>

#include "base/bytes.h"

/* ------------------------------------------------------------------ hash */

/* Eight bytes a step; the length goes in first, so the overlapping loads of the tail cannot collide. */
static inline uint64_t hash_bytes(const uint8_t *p, size_t n) {
    const uint64_t k = UINT64_C(0x9E3779B97F4A7C15);
    uint64_t h = (n + 1) * UINT64_C(0xD6E8FEB86659FD93);
    for (; n >= 8; n -= 8, p += 8) {
        h = (h ^ ms_le64(p)) * k;
        h ^= h >> 32;
    }
    uint64_t tail = 0;
    if (n >= 4)
        tail = ms_le32(p) | (uint64_t)ms_le32(p + n - 4) << 32;
    else if (n > 0)
        tail = p[0] | (uint64_t)p[n / 2] << 8 | (uint64_t)p[n - 1] << 16;
    h = (h ^ tail) * k;
    h ^= h >> 32;
    h *= k;
    return h ^ h >> 29;
}

static inline bool same_token(const ms_rank_table *table, uint32_t rank, const uint8_t *bytes, size_t len) {
    uint32_t at = table->offsets[rank];
    return table->offsets[rank + 1] - at == len && memcmp(table->bytes + at, bytes, len) == 0;
}

/* The slot that holds these bytes, or the free one where they belong. */
static inline ms_rank_slot *find_slot(const ms_rank_table *table, uint64_t hash, const uint8_t *bytes, size_t len) {
    uint32_t tag = (uint32_t)(hash >> 32);
    for (size_t i = (size_t)hash & table->slot_mask;; i = (i + 1) & table->slot_mask) {
        ms_rank_slot *slot = &table->slots[i];
        if (slot->next == 0) return slot;
        if (slot->tag == tag && same_token(table, slot->next - 1, bytes, len)) return slot;
    }
}

uint32_t ms_rank_table_find(const ms_rank_table *table, const uint8_t *bytes, size_t len) {
    if (len == 1) return table->byte_rank[bytes[0]];
    if (len == 0 || len > table->longest_bytes) return MS_RANK_NONE;
    return find_slot(table, hash_bytes(bytes, len), bytes, len)->next - 1; /* free: 0 - 1 is MS_RANK_NONE */
}

/* ------------------------------------------------------------------ reader */

typedef struct line_span {
    const char *text, *end;
    size_t number; /* from 1 */
} line_span;

static int base64_value(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    if (c == '+') return 62;
    if (c == '/') return 63;
    return -1;
}

/* Decodes canonical padded base64 into out (room for 3 bytes a group).  False: not such a text. */
static bool decode_base64(uint8_t *out, size_t *out_len, const char *text, size_t len) {
    size_t made = 0;
    if (len % 4 != 0) return false;
    for (size_t i = 0; i < len; i += 4) {
        int pad = 0;
        if (i + 4 == len && text[i + 3] == '=') pad = text[i + 2] == '=' ? 2 : 1;
        uint32_t group = 0;
        for (int k = 0; k < 4; k++) {
            int v = k >= 4 - pad ? 0 : base64_value(text[i + (size_t)k]);
            if (v < 0) return false;
            group = group << 6 | (uint32_t)v;
        }
        if ((pad == 1 && (group & 0xFF) != 0) || (pad == 2 && (group & 0xFFFF) != 0)) return false;
        for (int k = 0; k < 3 - pad; k++) out[made++] = (uint8_t)(group >> (16 - 8 * k));
    }
    *out_len = made;
    return true;
}

/* Next line without its end; false after the last. */
static bool next_line(line_span *line, const char **rest, const char *end) {
    if (*rest == end) return false;
    const char *lf = memchr(*rest, '\n', (size_t)(end - *rest));
    line->text = *rest;
    line->end = lf == NULL ? end : lf;
    line->number++;
    *rest = lf == NULL ? end : lf + 1;
    if (line->end > line->text && line->end[-1] == '\r') line->end--;
    return true;
}

static bool is_rank(const char *text, const char *end, uint32_t expected) {
    uint64_t value = 0;
    if (text == end || end - text > 10) return false;
    for (; text < end; text++) {
        if (*text < '0' || *text > '9') return false;
        value = value * 10 + (uint64_t)(*text - '0');
    }
    return value == expected;
}

/* The start of a part of a line, made fit for a message. */
typedef struct shown_text {
    char text[61];
} shown_text;

static shown_text show(const char *text, const char *end) {
    shown_text shown = {{0}};
    for (size_t i = 0; i + 1 < sizeof shown.text && text + i < end; i++)
        shown.text[i] = (char)(text[i] >= ' ' && text[i] <= '~' ? text[i] : '?');
    return shown;
}

static ms_status add_token(ms_rank_table *table, const line_span *line, const char *name, ms_error *err) {
    const char *space = memchr(line->text, ' ', (size_t)(line->end - line->text));
    if (space == NULL)
        return ms_fail(err, MS_ERR_FORMAT, "%s: line %zu: expected '<base64> <rank>', found '%s'", name,
                       line->number, show(line->text, line->end).text);
    if (space == line->text)
        return ms_fail(err, MS_ERR_FORMAT, "%s: line %zu: empty token", name, line->number);
    uint32_t rank = table->count, at = table->offsets[rank];
    size_t len;
    if (!decode_base64(table->bytes + at, &len, line->text, (size_t)(space - line->text)))
        return ms_fail(err, MS_ERR_FORMAT, "%s: line %zu: bad base64 text '%s'", name, line->number,
                       show(line->text, space).text);
    if (!is_rank(space + 1, line->end, rank))
        return ms_fail(err, MS_ERR_FORMAT, "%s: line %zu: expected rank %u, found '%s'", name, line->number,
                       (unsigned)rank, show(space + 1, line->end).text);
    uint64_t hash = hash_bytes(table->bytes + at, len);
    ms_rank_slot *slot = find_slot(table, hash, table->bytes + at, len);
    if (slot->next != 0)
        return ms_fail(err, MS_ERR_FORMAT, "%s: line %zu: token '%s' repeats rank %u", name, line->number,
                       show(line->text, space).text, (unsigned)(slot->next - 1));
    slot->tag = (uint32_t)(hash >> 32);
    slot->next = rank + 1;
    if (len == 1) table->byte_rank[table->bytes[at]] = rank;
    if (len > table->longest_bytes) table->longest_bytes = (uint32_t)len;
    table->offsets[rank + 1] = at + (uint32_t)len;
    table->count = rank + 1;
    return MS_OK;
}

/* Room for `lines` tokens that come from `len` bytes of text. */
static ms_status reserve(ms_rank_table *table, size_t lines, size_t len, const char *name, ms_error *err) {
    size_t slots = 1024;
    while (slots < 2 * lines) slots *= 2;
    table->bytes = malloc(len + 3);
    table->offsets = malloc((lines + 1) * sizeof *table->offsets);
    table->slots = calloc(slots, sizeof *table->slots);
    if (table->bytes == NULL || table->offsets == NULL || table->slots == NULL)
        return ms_fail_memory(err, name, len + (lines + 1) * sizeof *table->offsets + slots * sizeof *table->slots);
    table->slot_mask = slots - 1;
    table->offsets[0] = 0;
    for (int i = 0; i < 256; i++) table->byte_rank[i] = MS_RANK_NONE;
    return MS_OK;
}

static ms_status read_lines(ms_rank_table *table, const char *data, size_t len, const char *name, ms_error *err) {
    const char *end = data + len, *rest = data;
    line_span line = {0};
    size_t lines = 0;
    while (next_line(&line, &rest, end)) lines += line.text < line.end;
    if (lines > MS_RANK_MAX_COUNT)
        return ms_fail(err, MS_ERR_FORMAT, "%s: a rank file has at most %d ranks, found %zu lines", name,
                       (int)MS_RANK_MAX_COUNT, lines);
    MS_TRY(reserve(table, lines, len, name, err));
    rest = data;
    line.number = 0;
    while (next_line(&line, &rest, end)) {
        if (line.text < line.end) MS_TRY(add_token(table, &line, name, err));
    }
    if (table->count < 256)
        return ms_fail(err, MS_ERR_FORMAT, "%s: line %zu: the file ends after %u ranks, expected at least 256", name,
                       line.number, (unsigned)table->count);
    for (unsigned i = 0; i < 256; i++) {
        if (table->byte_rank[i] == MS_RANK_NONE)
            return ms_fail(err, MS_ERR_FORMAT, "%s: line %zu: the file ends without a token for the single byte 0x%02X",
                           name, line.number, i);
    }
    return MS_OK;
}

ms_status ms_rank_table_parse(ms_rank_table *table, const char *data, size_t len, const char *name, ms_error *err) {
    if (len > MS_RANK_FILE_MAX_BYTES)
        return ms_fail(err, MS_ERR_FORMAT, "%s: a rank file has at most %d bytes, found %zu", name,
                       (int)MS_RANK_FILE_MAX_BYTES, len);
    if (len == 0)
        return ms_fail(err, MS_ERR_FORMAT, "%s: line 1: the file is empty, expected at least 256 ranks", name);
    ms_status status = read_lines(table, data, len, name, err);
    if (status != MS_OK) ms_rank_table_clear(table);
    return status;
}

void ms_rank_table_clear(ms_rank_table *table) {
    free(table->bytes);
    free(table->offsets);
    free(table->slots);
    *table = (ms_rank_table){0};
}
