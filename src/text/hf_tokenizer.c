/* hf_tokenizer.c: see hf_tokenizer.h. */
#include "text/hf_tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/utf8.h"
#include "text/hf_merges.h"
#include "text/nfc.h"
#include "text/pretokenize.h"

enum { MAX_IDS = 4 << 20, MAX_ADDED = 4096, MAX_NAME_BYTES = 256, NO_ID = -1 };

typedef struct added_token {
    char *name;
    size_t len;
    uint32_t id;
    bool special;
} added_token;

struct ms_hf {
    uint8_t *bytes;    /* of all ordinary tokens, by id */
    uint32_t *offsets; /* [ids + 1]; an empty token is none */
    uint32_t ids;
    uint32_t byte_ids[256];
    ms_hf_merges merges;
    added_token *added; /* longest first: the first that matches is the longest */
    size_t added_count;
    int32_t *added_at; /* [ids]: index in added, or NO_ID */
    bool starts[256];  /* first bytes of added tokens */
    bool nfc;
    uint64_t digest;
};

/* Tokens by their bytes while merges are resolved: ids + 1 by hash, 0 is free. */
typedef struct token_index {
    uint32_t *slots;
    size_t mask;
} token_index;

typedef struct parsing {
    ms_hf *t;
    const char *file;
    const ms_json *vocab;
    token_index index;
} parsing;

/* ------------------------------------------------------------------ fields */

static ms_status fail_field(const parsing *p, ms_status code, const char *field, const char *expected,
                            const ms_json *found, ms_error *err) {
    int n = found ? (found->raw_len < 80 ? (int)found->raw_len : (int)ms_utf8_valid_prefix(found->raw, 80)) : 7;
    return ms_fail(err, code, "%s: %s: expected %s, found %.*s", p->file, field, expected, n,
                   found ? found->raw : "nothing");
}

static bool absent(const ms_json *v) { return !v || v->type == MS_JSON_NULL; }
static bool is_type(const ms_json *v, const char *type) { return ms_json_is_string(ms_json_get(v, "type"), type); }
static bool is_false(const ms_json *v) { return absent(v) || v->type == MS_JSON_FALSE; }

static ms_status check_normalizer(parsing *p, const ms_json *root, ms_error *err) {
    const ms_json *n = ms_json_get(root, "normalizer");
    if (absent(n)) return MS_OK;
    if (is_type(n, "Sequence")) {
        const ms_json *list = ms_json_get(n, "normalizers");
        if (list && list->type == MS_JSON_ARRAY && list->count == 1) n = list->child;
    }
    if (!is_type(n, "NFC")) return fail_field(p, MS_ERR_UNSUPPORTED, "normalizer", "NFC or null", n, err);
    p->t->nfc = true;
    return MS_OK;
}

static ms_status check_pre_tokenizer(const parsing *p, const ms_json *root, ms_error *err) {
    const ms_json *pre = ms_json_get(root, "pre_tokenizer"), *list = ms_json_get(pre, "pretokenizers");
    bool two = is_type(pre, "Sequence") && list && list->type == MS_JSON_ARRAY && list->count == 2;
    if (!two || !is_type(list->child, "Split") || !is_type(list->child->next, "ByteLevel"))
        return fail_field(p, MS_ERR_UNSUPPORTED, "pre_tokenizer", "a sequence of Split and ByteLevel", pre, err);
    const ms_json *split = list->child, *bytes = split->next,
                  *regex = ms_json_get(ms_json_get(split, "pattern"), "Regex");
    if (!ms_json_is_string(regex, ms_pretoken_plain_pattern))
        return fail_field(p, MS_ERR_UNSUPPORTED, "pre_tokenizer.pattern", ms_pretoken_plain_pattern, regex, err);
    if (!ms_json_is_string(ms_json_get(split, "behavior"), "Isolated") || !is_false(ms_json_get(split, "invert")))
        return fail_field(p, MS_ERR_UNSUPPORTED, "pre_tokenizer.behavior", "Isolated, not inverted", split, err);
    const ms_json *use_regex = ms_json_get(bytes, "use_regex"), *space = ms_json_get(bytes, "add_prefix_space");
    if (!space || space->type != MS_JSON_FALSE || !use_regex || use_regex->type != MS_JSON_FALSE)
        return fail_field(p, MS_ERR_UNSUPPORTED, "pre_tokenizer ByteLevel", "add_prefix_space and use_regex false",
                          bytes, err);
    return MS_OK;
}

static ms_status check_rest(const parsing *p, const ms_json *root, const ms_json *model, ms_error *err) {
    const ms_json *post = ms_json_get(root, "post_processor"), *decoder = ms_json_get(root, "decoder");
    if (!absent(post) && !is_type(post, "ByteLevel"))
        return fail_field(p, MS_ERR_UNSUPPORTED, "post_processor", "ByteLevel or null", post, err);
    if (!absent(decoder) && !is_type(decoder, "ByteLevel"))
        return fail_field(p, MS_ERR_UNSUPPORTED, "decoder", "ByteLevel", decoder, err);
    if (!absent(ms_json_get(model, "type")) && !is_type(model, "BPE"))
        return fail_field(p, MS_ERR_UNSUPPORTED, "model.type", "BPE", ms_json_get(model, "type"), err);
    static const char *const off[] = {"byte_fallback", "ignore_merges"};
    for (size_t i = 0; i < sizeof off / sizeof off[0]; i++)
        if (!is_false(ms_json_get(model, off[i])))
            return fail_field(p, MS_ERR_UNSUPPORTED, off[i], "false", ms_json_get(model, off[i]), err);
    static const char *const empty[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (size_t i = 0; i < sizeof empty / sizeof empty[0]; i++) {
        const ms_json *v = ms_json_get(model, empty[i]);
        if (!absent(v) && !ms_json_is_string(v, ""))
            return fail_field(p, MS_ERR_UNSUPPORTED, empty[i], "an empty text or null", v, err);
    }
    if (!absent(ms_json_get(model, "dropout")))
        return fail_field(p, MS_ERR_UNSUPPORTED, "model.dropout", "null", ms_json_get(model, "dropout"), err);
    return MS_OK;
}

/* ------------------------------------------------------------------ the byte alphabet */

/* Bytes that print stand for themselves; the others are U+0100 and up, in their order. */
static bool stands_for_itself(unsigned b) { return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b != 0xAD); }

/* The byte of a letter of the alphabet, or NO_ID. */
static int byte_of(uint32_t cp) {
    if (cp < 256) return stands_for_itself(cp) ? (int)cp : NO_ID;
    uint32_t at = 0x100;
    for (unsigned b = 0; b < 256; b++) {
        if (stands_for_itself(b)) continue;
        if (at++ == cp) return (int)b;
    }
    return NO_ID;
}

/* Writes the bytes that a spelled token stands for; SIZE_MAX when it has a letter that is none. */
static size_t spell_bytes(uint8_t *out, const int16_t table[512], const char *s, size_t len) {
    size_t n = 0;
    while (len > 0) {
        uint32_t cp;
        size_t used = ms_utf8_decode((const uint8_t *)s, len, &cp, NULL);
        if (cp >= 512 || table[cp] == NO_ID) return SIZE_MAX;
        out[n++] = (uint8_t)table[cp];
        s += used;
        len -= used;
    }
    return n;
}

/* ------------------------------------------------------------------ vocabulary */

static bool token_id(const ms_json *v, uint32_t *id) {
    uint64_t n;
    if (!ms_json_u64(v, &n) || n >= MAX_IDS) return false;
    *id = (uint32_t)n;
    return true;
}

/* Largest id + 1 over vocabulary and added tokens. */
static ms_status count_ids(parsing *p, const ms_json *added, ms_error *err) {
    for (const ms_json *v = p->vocab->child; v; v = v->next) {
        uint32_t id;
        if (!token_id(v, &id)) return fail_field(p, MS_ERR_FORMAT, "model.vocab", "ids below 4194304", v, err);
        if (id >= p->t->ids) p->t->ids = id + 1;
    }
    for (const ms_json *a = added ? added->child : NULL; a; a = a->next) {
        uint32_t id;
        const ms_json *v = ms_json_get(a, "id");
        if (!v || !token_id(v, &id))
            return fail_field(p, MS_ERR_FORMAT, "added_tokens.id", "an id below 4194304", v, err);
        if (id >= p->t->ids) p->t->ids = id + 1;
    }
    return MS_OK;
}

static bool is_added(const ms_hf *t, const char *s, size_t len) {
    uint32_t id;
    return ms_hf_added_id(t, s, len, &id);
}

/* Two passes over the vocabulary: lengths by id, then bytes at their places. */
static ms_status read_vocab(parsing *p, ms_error *err) {
    ms_hf *t = p->t;
    int16_t table[512];
    uint8_t *scratch = NULL;
    size_t longest = 0, total = 0;
    for (uint32_t cp = 0; cp < 512; cp++) table[cp] = (int16_t)byte_of(cp);
    t->offsets = calloc((size_t)t->ids + 2, sizeof *t->offsets);
    if (!t->offsets) return ms_fail_memory(err, "tokens", ((size_t)t->ids + 2) * sizeof *t->offsets);
    for (const ms_json *v = p->vocab->child; v; v = v->next) {
        total += v->key_len;
        if (v->key_len > longest) longest = v->key_len;
    }
    if (total > UINT32_MAX) return fail_field(p, MS_ERR_FORMAT, "model.vocab", "less than 4 GiB of tokens", NULL, err);
    t->bytes = malloc(total + 1);
    scratch = malloc(longest + 1);
    ms_status status = t->bytes && scratch ? MS_OK : ms_fail_memory(err, "tokens", total + longest);
    for (int fill = 0; fill < 2 && status == MS_OK; fill++) {
        for (const ms_json *v = p->vocab->child; v && status == MS_OK; v = v->next) {
            uint32_t id = 0;
            (void)token_id(v, &id);
            size_t n = spell_bytes(scratch, table, v->key, v->key_len);
            if (n == SIZE_MAX && is_added(t, v->key, v->key_len)) continue;
            if (n == SIZE_MAX || n == 0) {
                status = ms_fail(err, MS_ERR_FORMAT,
                                 "%s: model.vocab: id %u: expected letters of the byte alphabet, found \"%.60s\"",
                                 p->file, (unsigned)id, v->key);
            } else if (fill) {
                memcpy(t->bytes + t->offsets[id + 1], scratch, n);
                t->offsets[id + 1] += (uint32_t)n; /* ends as the end, which is the next one's start */
            } else if (t->offsets[id + 2]) {
                status = ms_fail(err, MS_ERR_FORMAT, "%s: model.vocab: id %u is given twice", p->file, (unsigned)id);
            } else {
                t->offsets[id + 2] = (uint32_t)n;
            }
        }
        /* lengths, two places up, become starts, one place up */
        for (uint32_t i = 0; !fill && i < t->ids; i++) t->offsets[i + 2] += t->offsets[i + 1];
    }
    free(scratch);
    return status;
}

/* ------------------------------------------------------------------ tokens by bytes */

static size_t hash_bytes(const uint8_t *b, size_t len) { return (size_t)ms_fnv1a64(MS_FNV1A64_INIT, b, len); }

static uint32_t find_token(const parsing *p, const uint8_t *b, size_t len) {
    for (size_t at = hash_bytes(b, len) & p->index.mask; p->index.slots[at]; at = (at + 1) & p->index.mask) {
        uint32_t id = p->index.slots[at] - 1;
        size_t n;
        const uint8_t *bytes = ms_hf_token(p->t, id, &n);
        if (bytes && n == len && memcmp(bytes, b, len) == 0) return id;
    }
    return UINT32_MAX;
}

static ms_status index_tokens(parsing *p, ms_error *err) {
    size_t slots = 1024;
    while (slots / 2 < p->t->ids) slots *= 2;
    p->index.slots = calloc(slots, sizeof *p->index.slots);
    if (!p->index.slots) return ms_fail_memory(err, "token index", slots * sizeof *p->index.slots);
    p->index.mask = slots - 1;
    for (uint32_t id = 0; id < p->t->ids; id++) {
        size_t n;
        const uint8_t *bytes = ms_hf_token(p->t, id, &n);
        if (!bytes) continue;
        if (find_token(p, bytes, n) != UINT32_MAX)
            return ms_fail(err, MS_ERR_FORMAT, "%s: model.vocab: id %u repeats another token", p->file, (unsigned)id);
        size_t at = hash_bytes(bytes, n) & p->index.mask;
        while (p->index.slots[at]) at = (at + 1) & p->index.mask;
        p->index.slots[at] = id + 1;
    }
    for (unsigned b = 0; b < 256; b++) {
        uint8_t byte = (uint8_t)b;
        p->t->byte_ids[b] = find_token(p, &byte, 1);
        if (p->t->byte_ids[b] == UINT32_MAX)
            return ms_fail(err, MS_ERR_FORMAT, "%s: model.vocab: expected a token for byte 0x%02x, found none", p->file,
                           b);
    }
    return MS_OK;
}

/* ------------------------------------------------------------------ merges */

/* "left right", or a pair of texts. */
static bool merge_sides(const ms_json *m, const char **left, size_t *left_len, const char **right, size_t *right_len) {
    if (m->type == MS_JSON_ARRAY && m->count == 2 && m->child->type == MS_JSON_STRING &&
        m->child->next->type == MS_JSON_STRING) {
        *left = m->child->str;
        *left_len = m->child->str_len;
        *right = m->child->next->str;
        *right_len = m->child->next->str_len;
        return true;
    }
    if (m->type != MS_JSON_STRING) return false;
    const char *space = memchr(m->str, ' ', m->str_len);
    if (!space) return false;
    *left = m->str;
    *left_len = (size_t)(space - m->str);
    *right = space + 1;
    *right_len = m->str_len - *left_len - 1;
    return true;
}

static ms_status add_merge(parsing *p, const ms_json *m, int32_t rank, const int16_t table[512], uint8_t *scratch,
                           size_t room, ms_error *err) {
    const char *left, *right;
    size_t left_len, right_len;
    if (!merge_sides(m, &left, &left_len, &right, &right_len) || left_len + right_len > room)
        return fail_field(p, MS_ERR_FORMAT, "model.merges", "pairs of tokens", m, err);
    size_t a = spell_bytes(scratch, table, left, left_len), b = SIZE_MAX;
    if (a != SIZE_MAX && a) b = spell_bytes(scratch + a, table, right, right_len);
    uint32_t l = UINT32_MAX, r = UINT32_MAX, joined = UINT32_MAX;
    if (b != SIZE_MAX && b) {
        l = find_token(p, scratch, a);
        r = find_token(p, scratch + a, b);
        joined = find_token(p, scratch, a + b);
    }
    if (l == UINT32_MAX || r == UINT32_MAX || joined == UINT32_MAX)
        return fail_field(p, MS_ERR_FORMAT, "model.merges", "tokens of the vocabulary, joined too", m, err);
    if (!ms_hf_merges_add(&p->t->merges, l, r, rank, joined))
        return fail_field(p, MS_ERR_FORMAT, "model.merges", "each pair once", m, err);
    return MS_OK;
}

static ms_status read_merges(parsing *p, const ms_json *model, ms_error *err) {
    const ms_json *merges = ms_json_get(model, "merges");
    if (!merges || merges->type != MS_JSON_ARRAY || merges->count > MAX_IDS)
        return fail_field(p, MS_ERR_FORMAT, "model.merges", "an array of at most 4194304 pairs", merges, err);
    enum { ROOM = 1 << 16 };
    int16_t table[512];
    for (uint32_t cp = 0; cp < 512; cp++) table[cp] = (int16_t)byte_of(cp);
    uint8_t *scratch = malloc(ROOM);
    ms_status status =
        scratch ? ms_hf_merges_create(&p->t->merges, merges->count, err) : ms_fail_memory(err, "merges", ROOM);
    int32_t rank = 0;
    for (const ms_json *m = merges->child; m && status == MS_OK; m = m->next)
        status = add_merge(p, m, rank++, table, scratch, ROOM, err);
    free(scratch);
    return status;
}

/* ------------------------------------------------------------------ added tokens */

static int longest_first(const void *a, const void *b) {
    const added_token *x = a, *y = b;
    if (x->len != y->len) return x->len < y->len ? 1 : -1;
    int order = memcmp(x->name, y->name, x->len);
    return order ? order : (x->id > y->id) - (x->id < y->id);
}

static ms_status add_added(parsing *p, const ms_json *a, ms_error *err) {
    const ms_json *content = ms_json_get(a, "content");
    if (!content || content->type != MS_JSON_STRING || content->str_len == 0 || content->str_len > MAX_NAME_BYTES ||
        memchr(content->str, 0, content->str_len))
        return fail_field(p, MS_ERR_FORMAT, "added_tokens.content", "a text of 1 to 256 bytes", content, err);
    static const char *const off[] = {"lstrip", "rstrip", "single_word"};
    for (size_t i = 0; i < sizeof off / sizeof off[0]; i++)
        if (!is_false(ms_json_get(a, off[i]))) return fail_field(p, MS_ERR_UNSUPPORTED, off[i], "false", a, err);
    added_token *t = &p->t->added[p->t->added_count];
    t->name = malloc(content->str_len + 1);
    if (!t->name) return ms_fail_memory(err, "added tokens", content->str_len + 1);
    p->t->added_count++;
    memcpy(t->name, content->str, content->str_len + 1);
    t->len = content->str_len;
    (void)token_id(ms_json_get(a, "id"), &t->id);
    (void)ms_json_bool(ms_json_get(a, "special"), &t->special);
    p->t->starts[(uint8_t)t->name[0]] = true;
    return MS_OK;
}

static ms_status read_added(parsing *p, const ms_json *list, ms_error *err) {
    ms_hf *t = p->t;
    if (!absent(list) && (list->type != MS_JSON_ARRAY || list->count > MAX_ADDED))
        return fail_field(p, MS_ERR_FORMAT, "added_tokens", "an array of at most 4096 tokens", list, err);
    size_t count = absent(list) ? 0 : list->count;
    MS_TRY(count_ids(p, absent(list) ? NULL : list, err));
    t->added = calloc(count + 1, sizeof *t->added);
    t->added_at = malloc(((size_t)t->ids + 1) * sizeof *t->added_at);
    if (!t->added || !t->added_at)
        return ms_fail_memory(err, "added tokens", ((size_t)t->ids + 1) * sizeof *t->added_at);
    for (uint32_t i = 0; i < t->ids; i++) t->added_at[i] = NO_ID;
    for (const ms_json *a = count ? list->child : NULL; a; a = a->next) MS_TRY(add_added(p, a, err));
    qsort(t->added, t->added_count, sizeof *t->added, longest_first);
    for (size_t i = 0; i < t->added_count; i++) {
        const added_token *a = &t->added[i];
        bool twice =
            t->added_at[a->id] != NO_ID || (i && a->len == a[-1].len && memcmp(a->name, a[-1].name, a->len) == 0);
        if (twice)
            return ms_fail(err, MS_ERR_FORMAT, "%s: added_tokens: id %u or its text is given twice", p->file,
                           (unsigned)a->id);
        t->added_at[a->id] = (int32_t)i;
    }
    return MS_OK;
}

/* ------------------------------------------------------------------ parsing */

static void make_digest(ms_hf *t) {
    uint64_t h = MS_FNV1A64_INIT;
    h = ms_fnv1a64(h, t->offsets, ((size_t)t->ids + 1) * sizeof *t->offsets);
    h = ms_fnv1a64(h, t->bytes, t->offsets[t->ids]);
    h = ms_fnv1a64(h, t->merges.slots, (t->merges.mask + 1) * sizeof *t->merges.slots);
    for (size_t i = 0; i < t->added_count; i++) {
        h = ms_fnv1a64(h, t->added[i].name, t->added[i].len + 1);
        h = ms_fnv1a64(h, &t->added[i].id, sizeof t->added[i].id);
    }
    t->digest = h;
}

static ms_status parse_all(parsing *p, const ms_json *root, ms_error *err) {
    const ms_json *model = ms_json_get(root, "model");
    p->vocab = ms_json_get(model, "vocab");
    if (!p->vocab || p->vocab->type != MS_JSON_OBJECT || p->vocab->count == 0)
        return fail_field(p, MS_ERR_FORMAT, "model.vocab", "an object of tokens", p->vocab, err);
    MS_TRY(check_normalizer(p, root, err));
    MS_TRY(check_pre_tokenizer(p, root, err));
    MS_TRY(check_rest(p, root, model, err));
    MS_TRY(read_added(p, ms_json_get(root, "added_tokens"), err));
    MS_TRY(read_vocab(p, err));
    MS_TRY(index_tokens(p, err));
    MS_TRY(read_merges(p, model, err));
    make_digest(p->t);
    return MS_OK;
}

ms_status ms_hf_parse(ms_hf **out, const char *data, size_t len, const char *name, ms_error *err) {
    *out = NULL;
    ms_json_doc *doc = NULL;
    MS_TRY(ms_json_parse(&doc, data, len, name, NULL, err));
    parsing p = {.file = name};
    p.t = calloc(1, sizeof *p.t);
    ms_status status = p.t ? parse_all(&p, ms_json_root(doc), err) : ms_fail_memory(err, "a tokenizer", sizeof *p.t);
    free(p.index.slots);
    ms_json_free(doc);
    if (status == MS_OK)
        *out = p.t;
    else
        ms_hf_free(p.t);
    return status;
}

void ms_hf_free(ms_hf *t) {
    if (!t) return;
    for (size_t i = 0; i < t->added_count; i++) free(t->added[i].name);
    free(t->added);
    free(t->added_at);
    free(t->bytes);
    free(t->offsets);
    ms_hf_merges_free(&t->merges);
    free(t);
}

/* ------------------------------------------------------------------ lookups */

uint32_t ms_hf_ids(const ms_hf *t) { return t->ids; }
uint64_t ms_hf_digest(const ms_hf *t) { return t->digest; }

/* An added token that the vocabulary has too is an added token. */
const uint8_t *ms_hf_token(const ms_hf *t, uint32_t id, size_t *len) {
    *len = 0;
    if (id >= t->ids || t->added_at[id] != NO_ID || t->offsets[id] == t->offsets[id + 1]) return NULL;
    *len = t->offsets[id + 1] - t->offsets[id];
    return t->bytes + t->offsets[id];
}

const char *ms_hf_added_name(const ms_hf *t, uint32_t id) {
    return id < t->ids && t->added_at[id] != NO_ID ? t->added[t->added_at[id]].name : NULL;
}

bool ms_hf_added_id(const ms_hf *t, const char *name, size_t len, uint32_t *id) {
    for (size_t i = 0; i < t->added_count; i++) {
        if (t->added[i].len != len || memcmp(t->added[i].name, name, len) != 0) continue;
        *id = t->added[i].id;
        return true;
    }
    return false;
}

bool ms_hf_added_special(const ms_hf *t, uint32_t id) {
    return id < t->ids && t->added_at[id] != NO_ID && t->added[t->added_at[id]].special;
}

/* ------------------------------------------------------------------ encoding */

static ms_status encode_plain(const ms_hf *t, ms_hf_space *space, const uint8_t *text, size_t len, ms_ids *out,
                              ms_error *err) {
    ms_text normal = {0};
    ms_status status = MS_OK;
    if (t->nfc && ms_nfc_may_change(text, len)) {
        ms_nfc(&normal, text, len);
        if (normal.failed) status = ms_fail_memory(err, "normalising a text", len);
        text = (const uint8_t *)normal.data;
        len = normal.len;
    }
    while (status == MS_OK && len > 0) {
        size_t piece = ms_pretoken_plain_next(text, len);
        status = ms_hf_merge(&t->merges, t->byte_ids, space, text, piece, out, err);
        text += piece;
        len -= piece;
    }
    ms_text_free(&normal);
    return status;
}

/* The longest added token at the start of text[0..len), or NULL. */
static const added_token *added_here(const ms_hf *t, const uint8_t *text, size_t len) {
    if (!t->starts[*text]) return NULL;
    for (size_t i = 0; i < t->added_count; i++) {
        const added_token *a = &t->added[i];
        if (a->len <= len && memcmp(a->name, text, a->len) == 0) return a;
    }
    return NULL;
}

ms_status ms_hf_encode(const ms_hf *t, const uint8_t *text, size_t len, bool special, ms_ids *out, ms_error *err) {
    ms_hf_space space = {0};
    ms_status status = MS_OK;
    size_t plain = 0;
    for (size_t at = 0; special && at < len && status == MS_OK;) {
        const added_token *a = added_here(t, text + at, len - at);
        if (!a) {
            at++;
            continue;
        }
        status = encode_plain(t, &space, text + plain, at - plain, out, err);
        if (status == MS_OK) status = ms_ids_push(out, a->id, err);
        at += a->len;
        plain = at;
    }
    if (status == MS_OK) status = encode_plain(t, &space, text + plain, len - plain, out, err);
    ms_hf_space_free(&space);
    return status;
}
