/* text_encode_cases.c: see text_encode_cases.h. */
#include "text_encode_cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/utf8.h"

typedef struct case_file {
    ms_text source;
    ms_json_doc *doc;
    const ms_json *root;
    ms_tokenizer *t, *own;
    bool skipped;
} case_file;

/* A check returns true, or false with the reason in *why. */
typedef bool case_check(const ms_tokenizer *t, const ms_json *one, ms_error *why);

/* ------------------------------------------------------------------ files */

static bool read_whole(ms_text *out, const char *path, ms_error *why) {
    FILE *file = fopen(path, "rb");
    if (file == NULL) return ms_fail(why, MS_ERR_IO, "cannot open %s", path) == MS_OK;
    char block[16384];
    size_t got;
    while ((got = fread(block, 1, sizeof block, file)) > 0) ms_text_append(out, block, got);
    bool good = !ferror(file) && !out->failed;
    (void)fclose(file);
    return good || ms_fail(why, MS_ERR_IO, "cannot read %s", path) == MS_OK;
}

static bool open_own_ranks(case_file *f, const char *path, ms_error *why) {
    const ms_json *name = ms_json_get(f->root, "rank_file");
    if (name == NULL || name->type != MS_JSON_STRING)
        return ms_fail(why, MS_ERR_FORMAT, "%s names no rank_file", path) == MS_OK;
    const char *slash = strrchr(path, '/');
    ms_text full = {0};
    if (slash != NULL) ms_text_append(&full, path, (size_t)(slash + 1 - path));
    ms_text_puts(&full, name->str);
    bool good = !full.failed && ms_tokenizer_open(&f->own, full.data, why) == MS_OK;
    ms_text_free(&full);
    f->t = f->own;
    return good;
}

static bool open_cases(case_file *f, const char *path, ms_error *why) {
    if (!read_whole(&f->source, path, why)) return false;
    if (ms_json_parse(&f->doc, f->source.data, f->source.len, path, NULL, why) != MS_OK) return false;
    f->root = ms_json_root(f->doc);
    const ms_json *needs = ms_json_get(f->root, "needs");
    if (f->t == NULL && needs != NULL) {
        (void)ms_fail(why, MS_OK, "skipped: needs %.200s", needs->type == MS_JSON_STRING ? needs->str : "a rank file");
        f->skipped = true;
        return true;
    }
    if (f->t == NULL && !open_own_ranks(f, path, why)) return false;
    uint64_t base;
    if (ms_json_u64(ms_json_get(f->root, "special_base"), &base) && base != ms_tokenizer_ranks(f->t))
        return ms_fail(why, MS_ERR_FORMAT, "%s is for %llu ranks, the tokenizer has %u", path,
                       (unsigned long long)base, (unsigned)ms_tokenizer_ranks(f->t)) == MS_OK;
    return true;
}

static int check_file(const char *path, ms_tokenizer *t, const char *const lists[], case_check *check,
                      golden_report *report, void *arg) {
    case_file f = {.t = t};
    ms_error why = {0};
    int failed = 0;
    bool usable = open_cases(&f, path, &why);
    if (!usable || f.skipped) {
        failed = !usable;
        report(arg, path, usable, why.message);
    } else {
        size_t seen = 0;
        for (; *lists != NULL; lists++) {
            const ms_json *list = ms_json_get(f.root, *lists);
            for (const ms_json *one = list == NULL ? NULL : list->child; one != NULL; one = one->next, seen++) {
                const ms_json *name = ms_json_get(one, "name");
                why = (ms_error){0};
                bool ok = check(f.t, one, &why);
                failed += !ok;
                report(arg, name != NULL && name->type == MS_JSON_STRING ? name->str : "?", ok, ok ? "" : why.message);
            }
        }
        if (seen == 0) {
            failed = 1;
            report(arg, path, false, "no cases");
        }
    }
    ms_tokenizer_close(f.own);
    ms_json_free(f.doc);
    ms_text_free(&f.source);
    return failed;
}

/* ------------------------------------------------------------------ small comparisons */

static bool differ(ms_error *why, const char *fmt, const char *what) {
    return ms_fail(why, MS_ERR_FORMAT, fmt, what) == MS_OK;
}

static bool same_text(ms_error *why, const char *what, const ms_text *found, const ms_json *expected) {
    if (expected->type == MS_JSON_STRING && found->len == expected->str_len &&
        (found->len == 0 || memcmp(found->data, expected->str, found->len) == 0))
        return true;
    return ms_fail(why, MS_ERR_FORMAT, "%s: expected '%.200s', found '%.200s'", what,
                   expected->type == MS_JSON_STRING ? expected->str : "(not a string)",
                   found->data == NULL ? "" : found->data) == MS_OK;
}

static bool same_id(ms_error *why, const ms_ids *found, size_t at, const ms_json *expected) {
    uint64_t id;
    if (at < found->count && ms_json_u64(expected, &id) && found->data[at] == id) return true;
    return ms_fail(why, MS_ERR_FORMAT, "id %zu: expected %.20s, found %lld", at, expected->raw,
                   at < found->count ? (long long)found->data[at] : -1LL) == MS_OK;
}

static bool same_count(ms_error *why, const char *what, size_t found, uint64_t expected) {
    return found == expected || ms_fail(why, MS_ERR_FORMAT, "%s: expected %llu, found %zu", what,
                                        (unsigned long long)expected, found) == MS_OK;
}

static bool same_ids(const ms_ids *found, const ms_json *one, ms_error *why) {
    const ms_json *ids = ms_json_get(one, "ids"), *runs = ms_json_get(one, "ids_rle");
    const ms_json *hash = ms_json_get(one, "fnv1a64_le32");
    uint64_t count, times;
    size_t at = 0;
    if (ms_json_u64(ms_json_get(one, "count"), &count) && !same_count(why, "count", found->count, count)) return false;
    if (ids != NULL) {
        for (const ms_json *id = ids->child; id != NULL; id = id->next)
            if (!same_id(why, found, at++, id)) return false;
        if (!same_count(why, "ids", found->count, at)) return false;
    }
    if (runs != NULL) {
        at = 0;
        for (const ms_json *run = runs->child; run != NULL; run = run->next) {
            if (!ms_json_u64(ms_json_at(run, 1), &times)) return differ(why, "bad %s", "ids_rle");
            for (; times > 0; times--)
                if (!same_id(why, found, at++, ms_json_at(run, 0))) return false;
        }
        if (!same_count(why, "ids_rle", found->count, at)) return false;
    }
    if (hash != NULL) {
        uint64_t h = MS_FNV1A64_INIT;
        uint8_t word[4];
        char text[17];
        for (size_t i = 0; i < found->count; i++) {
            ms_put_le32(word, found->data[i]);
            h = ms_fnv1a64(h, word, sizeof word);
        }
        (void)snprintf(text, sizeof text, "%016llx", (unsigned long long)h);
        if (!ms_json_is_string(hash, text)) return differ(why, "other ids: their hash is %s", text);
    }
    return ids != NULL || runs != NULL || hash != NULL || differ(why, "the case has no %s", "ids");
}

/* ------------------------------------------------------------------ encode cases */

static int hex_value(char c) {
    const char *digits = "0123456789abcdef", *at = c == '\0' ? NULL : strchr(digits, c);
    return at == NULL ? -1 : (int)(at - digits);
}

static bool input_of(ms_text *out, const ms_json *one, ms_error *why) {
    const ms_json *v;
    if ((v = ms_json_get(one, "text")) != NULL) {
        ms_text_append(out, v->str, v->str_len);
    } else if ((v = ms_json_get(one, "repeat")) != NULL) {
        for (const ms_json *pair = v->child; pair != NULL; pair = pair->next) {
            const ms_json *text = ms_json_at(pair, 0);
            uint64_t times;
            if (text == NULL || text->type != MS_JSON_STRING || !ms_json_u64(ms_json_at(pair, 1), &times))
                return differ(why, "bad %s", "repeat");
            for (; times > 0; times--) ms_text_append(out, text->str, text->str_len);
        }
    } else if ((v = ms_json_get(one, "bytes_hex")) != NULL) {
        for (size_t i = 0; i + 1 < v->str_len; i += 2) {
            int high = hex_value(v->str[i]), low = hex_value(v->str[i + 1]);
            if (high < 0 || low < 0) return differ(why, "bad %s", "bytes_hex");
            ms_text_append(out, &(char){(char)(high * 16 + low)}, 1);
        }
    } else if ((v = ms_json_get(one, "json_literal")) != NULL) {
        ms_json_doc *doc;
        if (ms_json_parse(&doc, v->str, v->str_len, "json_literal", NULL, why) != MS_OK) return false;
        ms_text_append(out, ms_json_root(doc)->str, ms_json_root(doc)->str_len);
        ms_json_free(doc);
    } else {
        return differ(why, "the case has no %s", "input");
    }
    return !out->failed || differ(why, "%s", "out of memory");
}

static bool check_repair(const ms_text *input, const ms_json *one, ms_error *why) {
    const ms_json *expected = ms_json_get(one, "as_text");
    if (expected == NULL) return true;
    ms_text repaired = {0};
    ms_utf8_repair(&repaired, input->data, input->len);
    bool ok = same_text(why, "as_text", &repaired, expected);
    ms_text_free(&repaired);
    return ok;
}

static bool check_pieces(const ms_tokenizer *t, const ms_text *input, bool special, const ms_json *one, ms_error *why) {
    const ms_json *pieces = ms_json_get(one, "pieces");
    if (pieces == NULL) return true;
    ms_text repaired = {0};
    ms_ids ends = {0};
    bool ok = ms_tokenizer_pieces(t, input->data, input->len, special, &repaired, &ends, why) == MS_OK;
    size_t at = 0, start = 0;
    for (const ms_json *piece = pieces->child; ok && piece != NULL; piece = piece->next, at++) {
        ms_text found = {0};
        if (at < ends.count) ms_text_append(&found, repaired.data + start, ends.data[at] - start);
        if (at < ends.count) start = ends.data[at];
        ok = same_text(why, "piece", &found, piece);
        ms_text_free(&found);
    }
    ok = ok && same_count(why, "pieces", ends.count, at) && same_count(why, "pieces end", start, repaired.len);
    ms_text_free(&repaired);
    ms_ids_free(&ends);
    return ok;
}

static bool check_encode(const ms_tokenizer *t, const ms_json *one, ms_error *why) {
    const ms_json *mode = ms_json_get(one, "mode");
    bool special = ms_json_is_string(mode, "special");
    if (mode != NULL && !special && !ms_json_is_string(mode, "text")) return differ(why, "unknown %s", "mode");
    ms_text input = {0};
    ms_ids ids = {0};
    uint64_t run = 25000, chunk = 400000;
    bool limited = ms_json_u64(ms_json_get(one, "run_chars"), &run);
    limited = ms_json_u64(ms_json_get(one, "chunk_chars"), &chunk) || limited;
    ms_cut_limits limits = {.chunk_chars = chunk, .run_chars = run};
    bool ok = input_of(&input, one, why) && check_repair(&input, one, why) &&
              check_pieces(t, &input, special, one, why);
    if (ok && limited)
        ok = ms_tokenizer_encode_cut(t, input.data, input.len, special, &limits, &ids, why) == MS_OK;
    else if (ok)
        ok = ms_tokenizer_encode(t, input.data, input.len, special, &ids, why) == MS_OK;
    ok = ok && same_ids(&ids, one, why);
    ms_ids_free(&ids);
    ms_text_free(&input);
    return ok;
}

int golden_encode_file(const char *path, ms_tokenizer *t, golden_report *report, void *arg) {
    return check_file(path, t, (const char *const[]){"cases", "encode", NULL}, check_encode, report, arg);
}

/* ------------------------------------------------------------------ decode cases */

/* What one id adds to a stream, as a program with control names shown would print it. */
static void stream_id(const ms_tokenizer *t, ms_utf8_stream *stream, uint32_t id, ms_text *out) {
    size_t len;
    const uint8_t *bytes = ms_tokenizer_token(t, id, &len);
    const char *name = ms_tokenizer_control_name(t, id);
    if (bytes != NULL) {
        ms_utf8_stream_push(stream, bytes, len, out);
    } else {
        ms_utf8_stream_end(stream, out);
        ms_text_puts(out, name == NULL ? "(no such id)" : name);
    }
}

static bool check_stream(const ms_tokenizer *t, const ms_ids *ids, const ms_json *expected, ms_error *why) {
    ms_utf8_stream stream = {0};
    bool ok = same_count(why, "stream steps", ids->count + 1, expected->count);
    size_t at = 0;
    for (const ms_json *step = expected->child; ok && step != NULL; step = step->next, at++) {
        ms_text found = {0};
        if (at < ids->count)
            stream_id(t, &stream, ids->data[at], &found);
        else
            ms_utf8_stream_end(&stream, &found);
        ok = same_text(why, "stream", &found, step);
        ms_text_free(&found);
    }
    return ok;
}

static bool check_decode(const ms_tokenizer *t, const ms_json *one, ms_error *why) {
    const ms_json *list = ms_json_get(one, "ids"), *text = ms_json_get(one, "text");
    const ms_json *stream = ms_json_get(one, "stream");
    if (list == NULL || text == NULL) return differ(why, "the case has no %s", "ids or text");
    ms_ids ids = {0};
    ms_text found = {0};
    bool ok = true;
    for (const ms_json *id = list->child; ok && id != NULL; id = id->next) {
        uint64_t value;
        ok = (ms_json_u64(id, &value) && value <= UINT32_MAX) || differ(why, "bad %s", "ids");
        ok = ok && ms_ids_push(&ids, (uint32_t)value, why) == MS_OK;
    }
    ok = ok && ms_tokenizer_decode(t, ids.data, ids.count, true, &found, why) == MS_OK &&
         same_text(why, "text", &found, text) && (stream == NULL || check_stream(t, &ids, stream, why));
    ms_text_free(&found);
    ms_ids_free(&ids);
    return ok;
}

int golden_decode_file(const char *path, ms_tokenizer *t, golden_report *report, void *arg) {
    return check_file(path, t, (const char *const[]){"cases", NULL}, check_decode, report, arg);
}
