/* tokenizer.c: see tokenizer.h.  Control names, text to pieces to ids, ids to text. */
#include "text/tokenizer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/utf8.h"
#include "text/bpe_merge.h"
#include "text/hf_tokenizer.h"
#include "text/pretokenize.h"
#include "text/rank_table.h"

enum { NAME_BYTES = 32 };

struct ms_tokenizer {
    ms_hf *hf; /* a tokenizer.json; NULL: a rank file, which the rest is about */
    ms_rank_table ranks;
    uint64_t digest;
    char names[MS_CONTROL_COUNT][NAME_BYTES];
    uint8_t name_bytes[MS_CONTROL_COUNT]; /* lengths */
};

static const ms_cut_limits usual_limits = {.chunk_chars = 400000, .run_chars = 25000};

/* ------------------------------------------------------------------ control names */

typedef struct listed_name {
    uint32_t offset; /* from the first control id */
    const char *name;
} listed_name;

/* All others are <|reserved_token_ID|> with their own id. */
static const listed_name listed_names[] = {
    {MS_CTL_BOS, "[BOS]"},
    {MS_CTL_EOS, "[EOS]"},
    {MS_CTL_END_OF_MSG, "<|end_of_msg|>"},
    {MS_CTL_OPEN, "<|open|>"},
    {MS_CTL_CLOSE, "<|close|>"},
    {MS_CTL_SEP, "<|sep|>"},
    {6, "[start_header_id]"},
    {7, "[end_header_id]"},
    {MS_CTL_EOT, "[EOT]"},
    {18, "<|media_begin|>"},
    {19, "<|media_content|>"},
    {20, "<|media_end|>"},
    {21, "<|media_pad|>"},
    {65, "<osagent_mode>"},
    {MS_CTL_UNK, "[UNK]"},
    {MS_CTL_PAD, "[PAD]"},
};
enum { LISTED_COUNT = sizeof listed_names / sizeof listed_names[0] };

static const char reserved_start[] = "<|reserved_token_";

static void fill_names(ms_tokenizer *t) {
    for (uint32_t i = 0; i < MS_CONTROL_COUNT; i++)
        (void)snprintf(t->names[i], NAME_BYTES, "%s%u|>", reserved_start, (unsigned)(t->ranks.count + i));
    for (size_t i = 0; i < LISTED_COUNT; i++)
        (void)snprintf(t->names[listed_names[i].offset], NAME_BYTES, "%s", listed_names[i].name);
    for (uint32_t i = 0; i < MS_CONTROL_COUNT; i++) t->name_bytes[i] = (uint8_t)strlen(t->names[i]);
}

static bool name_starts(const ms_tokenizer *t, uint32_t offset, const uint8_t *p, size_t len) {
    return len >= t->name_bytes[offset] && memcmp(p, t->names[offset], t->name_bytes[offset]) == 0;
}

/* Offset of the control name at p, or -1.  No name is the start of another. */
static int control_at(const ms_tokenizer *t, const uint8_t *p, size_t len) {
    if (*p != '[' && *p != '<') return -1;
    for (size_t i = 0; i < LISTED_COUNT; i++) {
        if (name_starts(t, listed_names[i].offset, p, len)) return (int)listed_names[i].offset;
    }
    size_t head = sizeof reserved_start - 1;
    if (len < head || memcmp(p, reserved_start, head) != 0) return -1;
    uint64_t id = 0;
    for (size_t i = head; i < len && i < head + 10 && p[i] >= '0' && p[i] <= '9'; i++) id = id * 10 + (p[i] - '0');
    if (id < t->ranks.count || id - t->ranks.count >= MS_CONTROL_COUNT) return -1;
    uint32_t offset = (uint32_t)(id - t->ranks.count);
    /* the whole spelling: refuses listed ids, leading zeros and a missing end */
    return name_starts(t, offset, p, len) ? (int)offset : -1;
}

const char *ms_tokenizer_control_name(const ms_tokenizer *t, uint32_t id) {
    if (t->hf) return ms_hf_added_name(t->hf, id);
    if (id < t->ranks.count || id - t->ranks.count >= MS_CONTROL_COUNT) return NULL;
    return t->names[id - t->ranks.count];
}

bool ms_tokenizer_control_id(const ms_tokenizer *t, const char *name, size_t len, uint32_t *id) {
    if (t->hf) return ms_hf_added_id(t->hf, name, len, id);
    if (len == 0) return false;
    int offset = control_at(t, (const uint8_t *)name, len);
    if (offset < 0 || t->name_bytes[offset] != len) return false;
    *id = t->ranks.count + (uint32_t)offset;
    return true;
}

bool ms_tokenizer_control_hidden(const ms_tokenizer *t, uint32_t id) {
    return t->hf ? ms_hf_added_special(t->hf, id) : ms_tokenizer_control_name(t, id) != NULL;
}

/* "12" -> 12; plain decimal only. */
static bool parse_id(const char *text, size_t len, uint32_t *id) {
    uint64_t value = 0;
    if (len == 0 || len > 10) return false;
    for (size_t i = 0; i < len; i++) {
        if (text[i] < '0' || text[i] > '9') return false;
        value = value * 10 + (uint64_t)(text[i] - '0');
    }
    *id = (uint32_t)value;
    return value <= UINT32_MAX;
}

static ms_status check_name(const ms_tokenizer *t, const ms_json *entry, const char *file, ms_error *err) {
    uint32_t id;
    if (!parse_id(entry->key, entry->key_len, &id))
        return ms_fail(err, MS_ERR_FORMAT, "%s: added_tokens_decoder: expected an id as key, found '%.60s'", file,
                       entry->key);
    const char *name = ms_tokenizer_control_name(t, id);
    if (name == NULL)
        return ms_fail(err, MS_ERR_FORMAT, "%s: added_tokens_decoder: id %u is not a control id, expected %u to %u",
                       file, (unsigned)id, (unsigned)t->ranks.count, (unsigned)t->ranks.count + MS_CONTROL_COUNT - 1);
    const ms_json *content = ms_json_get(entry, "content");
    if (content == NULL || content->type != MS_JSON_STRING)
        return ms_fail(err, MS_ERR_FORMAT, "%s: added_tokens_decoder: id %u: expected a string 'content'", file,
                       (unsigned)id);
    if (content->str_len != strlen(name) || memcmp(content->str, name, content->str_len) != 0)
        return ms_fail(err, MS_ERR_FORMAT, "%s: added_tokens_decoder: id %u: expected the name '%s', found '%.60s'",
                       file, (unsigned)id, name, content->str);
    return MS_OK;
}

ms_status ms_tokenizer_check_names(const ms_tokenizer *t, const ms_json *config, const char *file, ms_error *err) {
    const ms_json *names = ms_json_get(config, "added_tokens_decoder");
    if (names == NULL || names->type != MS_JSON_OBJECT)
        return ms_fail(err, MS_ERR_FORMAT, "%s: expected an object 'added_tokens_decoder'", file);
    for (const ms_json *entry = names->child; entry != NULL; entry = entry->next)
        MS_TRY(check_name(t, entry, file, err));
    return MS_OK;
}

/* ------------------------------------------------------------------ opening */

static uint64_t digest_of(const ms_rank_table *ranks) {
    uint64_t h = MS_FNV1A64_INIT;
    for (uint32_t i = 0; i < ranks->count; i++) {
        uint8_t len[4];
        ms_put_le32(len, ranks->offsets[i + 1] - ranks->offsets[i]);
        h = ms_fnv1a64(h, len, sizeof len);
        h = ms_fnv1a64(h, ranks->bytes + ranks->offsets[i], ranks->offsets[i + 1] - ranks->offsets[i]);
    }
    return h;
}

ms_status ms_tokenizer_parse(ms_tokenizer **out, const char *data, size_t len, const char *name, ms_error *err) {
    *out = NULL;
    ms_tokenizer *t = calloc(1, sizeof *t);
    if (t == NULL) return ms_fail_memory(err, "a tokenizer", sizeof *t);
    ms_status status = ms_rank_table_parse(&t->ranks, data, len, name, err);
    if (status != MS_OK) {
        free(t);
        return status;
    }
    t->digest = digest_of(&t->ranks);
    fill_names(t);
    *out = t;
    return MS_OK;
}

ms_status ms_tokenizer_parse_hf(ms_tokenizer **out, const char *data, size_t len, const char *name, ms_error *err) {
    *out = NULL;
    ms_tokenizer *t = calloc(1, sizeof *t);
    if (t == NULL) return ms_fail_memory(err, "a tokenizer", sizeof *t);
    ms_status status = ms_hf_parse(&t->hf, data, len, name, err);
    if (status != MS_OK) {
        free(t);
        return status;
    }
    t->digest = ms_hf_digest(t->hf);
    *out = t;
    return MS_OK;
}

/* Only a regular file (or a link to one); O_NONBLOCK keeps a FIFO from waiting for a writer. */
static ms_status open_rank_file(FILE **out, const char *path, ms_error *err) {
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    bool found = fd >= 0 ? fstat(fd, &st) == 0 : errno == ENXIO && stat(path, &st) == 0; /* ENXIO: a socket */
    ms_status status = MS_OK;
    if (found && !S_ISREG(st.st_mode)) status = ms_fail_not_regular(err, path, st.st_mode);
    else if (!found || (*out = fdopen(fd, "rb")) == NULL)
        status = ms_fail_errno(err, MS_ERR_IO, errno, "%s: opening the tokenizer", path);
    if (status != MS_OK && fd >= 0) (void)close(fd);
    return status;
}

/* Reads the whole file, but not more than one byte beyond the largest accepted size. */
static ms_status read_rank_file(ms_text *out, FILE *file, const char *path, ms_error *err) {
    char block[16384];
    size_t got;
    while (out->len <= MS_RANK_FILE_MAX_BYTES && (got = fread(block, 1, sizeof block, file)) > 0)
        ms_text_append(out, block, got);
    if (ferror(file)) return ms_fail_errno(err, MS_ERR_IO, errno, "%s: reading the tokenizer", path);
    if (out->failed) return ms_fail_memory(err, path, out->len);
    if (out->len > MS_RANK_FILE_MAX_BYTES)
        return ms_fail(err, MS_ERR_FORMAT, "%s: a rank file has at most %d bytes, found more", path,
                       (int)MS_RANK_FILE_MAX_BYTES);
    return MS_OK;
}

typedef ms_status parse_fn(ms_tokenizer **out, const char *data, size_t len, const char *name, ms_error *err);

static ms_status open_with(parse_fn *parse, ms_tokenizer **out, const char *path, ms_error *err) {
    *out = NULL;
    FILE *file = NULL;
    MS_TRY(open_rank_file(&file, path, err));
    ms_text data = {0};
    ms_status status = read_rank_file(&data, file, path, err);
    (void)fclose(file);
    if (status == MS_OK) status = parse(out, data.data, data.len, path, err);
    ms_text_free(&data);
    return status;
}

ms_status ms_tokenizer_open(ms_tokenizer **out, const char *rank_path, ms_error *err) {
    return open_with(ms_tokenizer_parse, out, rank_path, err);
}

ms_status ms_tokenizer_open_hf(ms_tokenizer **out, const char *path, ms_error *err) {
    return open_with(ms_tokenizer_parse_hf, out, path, err);
}

void ms_tokenizer_close(ms_tokenizer *t) {
    if (t == NULL) return;
    ms_rank_table_clear(&t->ranks);
    ms_hf_free(t->hf);
    free(t);
}

uint32_t ms_tokenizer_ids(const ms_tokenizer *t) {
    return t->hf ? ms_hf_ids(t->hf) : t->ranks.count + MS_CONTROL_COUNT;
}

uint32_t ms_tokenizer_ranks(const ms_tokenizer *t) { return t->ranks.count; }

uint32_t ms_tokenizer_first_control(const ms_tokenizer *t) {
    if (!t->hf) return t->ranks.count;
    uint32_t id = 0;
    while (id < ms_hf_ids(t->hf) && !ms_hf_added_name(t->hf, id)) id++;
    return id;
}

uint64_t ms_tokenizer_digest(const ms_tokenizer *t) { return t->digest; }

/* ------------------------------------------------------------------ text to pieces */

/* Takes one piece; `control` is the control id's offset, or -1 for ordinary text. */
typedef ms_status piece_fn(void *arg, const uint8_t *piece, size_t len, int control, ms_error *err);

typedef struct walker {
    const ms_tokenizer *t;
    piece_fn *take;
    void *arg;
} walker;

static ms_status walk_plain(const walker *w, const uint8_t *text, size_t len, ms_error *err) {
    while (len > 0) {
        size_t piece = ms_pretoken_next(text, len);
        MS_TRY(w->take(w->arg, text, piece, -1, err));
        text += piece;
        len -= piece;
    }
    return MS_OK;
}

/* The text between control names is scanned by itself: the pattern sees its end before each name. */
static ms_status walk_special(const walker *w, const uint8_t *text, size_t len, ms_error *err) {
    size_t plain = 0;
    for (size_t at = 0; at < len;) {
        int control = control_at(w->t, text + at, len - at);
        if (control < 0) {
            at++;
            continue;
        }
        size_t name = w->t->name_bytes[control];
        MS_TRY(walk_plain(w, text + plain, at - plain, err));
        MS_TRY(w->take(w->arg, text + at, name, control, err));
        at += name;
        plain = at;
    }
    return walk_plain(w, text + plain, len - plain, err);
}

/* text[0..len) is well-formed. */
static ms_status walk(const walker *w, const uint8_t *text, size_t len, bool special, const ms_cut_limits *limits,
                      ms_error *err) {
    ms_cutter cutter = {.limits = *limits};
    while (len > 0) {
        size_t part = ms_cutter_next(&cutter, text, len);
        MS_TRY(special ? walk_special(w, text, part, err) : walk_plain(w, text, part, err));
        text += part;
        len -= part;
    }
    return MS_OK;
}

static ms_status repair(ms_text *repaired, const char *text, size_t len, ms_error *err) {
    ms_utf8_repair(repaired, text, len);
    if (repaired->failed) return ms_fail_memory(err, "repairing a text", len);
    return MS_OK;
}

/* ------------------------------------------------------------------ pieces to ids */

typedef struct encoder {
    const ms_tokenizer *t;
    ms_ids *out;
    ms_merge_space space;
} encoder;

static ms_status encode_piece(void *arg, const uint8_t *piece, size_t len, int control, ms_error *err) {
    encoder *e = arg;
    if (control >= 0) return ms_ids_push(e->out, e->t->ranks.count + (uint32_t)control, err);
    return ms_merge_piece(&e->t->ranks, &e->space, piece, len, e->out, err);
}

ms_status ms_tokenizer_encode_cut(const ms_tokenizer *t, const char *text, size_t len, bool special,
                                  const ms_cut_limits *limits, ms_ids *out, ms_error *err) {
    if (limits->chunk_chars == 0 || limits->run_chars == 0)
        return ms_fail(err, MS_ERR_USAGE, "tokenizer cut limits must be at least 1, found %zu and %zu",
                       limits->chunk_chars, limits->run_chars);
    if (len == 0) return MS_OK;
    size_t before = out->count;
    ms_text repaired = {0};
    encoder e = {.t = t, .out = out};
    walker w = {.t = t, .take = encode_piece, .arg = &e};
    ms_status status = MS_OK;
    if (!ms_utf8_valid(text, len)) {
        status = repair(&repaired, text, len, err);
        text = repaired.data;
        len = repaired.len;
    }
    if (status == MS_OK && t->hf) status = ms_hf_encode(t->hf, (const uint8_t *)text, len, special, out, err);
    else if (status == MS_OK) status = walk(&w, (const uint8_t *)text, len, special, limits, err);
    if (status != MS_OK) out->count = before;
    ms_merge_space_clear(&e.space);
    ms_text_free(&repaired);
    return status;
}

ms_status ms_tokenizer_encode(const ms_tokenizer *t, const char *text, size_t len, bool special, ms_ids *out,
                              ms_error *err) {
    return ms_tokenizer_encode_cut(t, text, len, special, &usual_limits, out, err);
}

typedef struct splitter {
    const uint8_t *base;
    ms_ids *ends;
} splitter;

static ms_status note_end(void *arg, const uint8_t *piece, size_t len, int control, ms_error *err) {
    splitter *s = arg;
    (void)control;
    return ms_ids_push(s->ends, (uint32_t)((size_t)(piece - s->base) + len), err);
}

ms_status ms_tokenizer_pieces(const ms_tokenizer *t, const char *text, size_t len, bool special, ms_text *repaired,
                              ms_ids *ends, ms_error *err) {
    if (t->hf) return ms_fail(err, MS_ERR_USAGE, "pieces are listed for rank files only");
    if (len > UINT32_MAX / 3) /* repair can triple a text, and ends are 32 bits wide */
        return ms_fail(err, MS_ERR_USAGE, "a text of %zu bytes is too long to list its pieces", len);
    size_t start = repaired->len;
    MS_TRY(repair(repaired, text, len, err));
    if (repaired->len == start) return MS_OK;
    splitter s = {.base = (const uint8_t *)repaired->data + start, .ends = ends};
    walker w = {.t = t, .take = note_end, .arg = &s};
    return walk(&w, s.base, repaired->len - start, special, &usual_limits, err);
}

/* ------------------------------------------------------------------ ids to text */

const uint8_t *ms_tokenizer_token(const ms_tokenizer *t, uint32_t id, size_t *len) {
    if (t->hf) return ms_hf_token(t->hf, id, len);
    if (id >= t->ranks.count) {
        *len = 0;
        return NULL;
    }
    *len = t->ranks.offsets[id + 1] - t->ranks.offsets[id];
    return t->ranks.bytes + t->ranks.offsets[id];
}

ms_status ms_tokenizer_decode(const ms_tokenizer *t, const uint32_t *ids, size_t count, bool names, ms_text *out,
                              ms_error *err) {
    ms_utf8_stream stream = {0};
    for (size_t i = 0; i < count; i++) {
        size_t len;
        const uint8_t *bytes = ms_tokenizer_token(t, ids[i], &len);
        if (bytes != NULL) {
            ms_utf8_stream_push(&stream, bytes, len, out);
            continue;
        }
        const char *name = ms_tokenizer_control_name(t, ids[i]);
        if (name == NULL)
            return ms_fail(err, MS_ERR_USAGE, "token id %u at position %zu is beyond the last id %u", (unsigned)ids[i], i,
                           (unsigned)ms_tokenizer_ids(t) - 1);
        ms_utf8_stream_end(&stream, out);
        if (names || !ms_tokenizer_control_hidden(t, ids[i])) ms_text_puts(out, name);
    }
    ms_utf8_stream_end(&stream, out);
    if (out->failed) return ms_fail_memory(err, "decoded text", out->len);
    return MS_OK;
}
