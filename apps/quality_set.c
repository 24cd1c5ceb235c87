#include "quality_set.h"

#include <stdlib.h>
#include <string.h>

#include "io/file.h"

enum { MAX_SET_BYTES = 64 << 20 };

static ms_status get_text(const char **out, const ms_json *root, const char *key, ms_error *err) {
    const ms_json *v = ms_json_get(root, key);
    if (!v || v->type != MS_JSON_STRING || !v->str_len)
        return ms_fail(err, MS_ERR_FORMAT, "%s: expected a string that is not empty, found %.*s", key,
                       v ? (int)(v->raw_len < 40 ? v->raw_len : 40) : 7, v ? v->raw : "nothing");
    /* Names go to the terminal and into reports. */
    for (size_t i = 0; i < v->str_len; i++)
        if ((unsigned char)v->str[i] < ' ' || v->str[i] == 0x7f)
            return ms_fail(err, MS_ERR_FORMAT, "%s: expected no control characters, found U+%04X", key,
                           (unsigned)(unsigned char)v->str[i]);
    *out = v->str;
    return MS_OK;
}

static ms_status get_list(const ms_json **out, const ms_json *expected, const char *key, ms_error *err) {
    *out = ms_json_get(expected, key);
    if (*out && (*out)->type == MS_JSON_ARRAY && (*out)->count) return MS_OK;
    return ms_fail(err, MS_ERR_FORMAT, "expected.%s: expected a list that is not empty", key);
}

static ms_status read_expected(ms_quality_item *item, const ms_json *root, ms_error *err) {
    const ms_json *expected = ms_json_get(root, "expected"), *ids, *margins;
    if (!expected || expected->type != MS_JSON_OBJECT)
        return ms_fail(err, MS_ERR_FORMAT, "expected: expected an object (--record writes it), found %s",
                       expected ? "another type" : "nothing");
    MS_TRY(get_list(&ids, expected, "ids", err));
    MS_TRY(get_list(&margins, expected, "margins", err));
    if (margins->count != ids->count)
        return ms_fail(err, MS_ERR_FORMAT, "expected.margins: expected %zu numbers as in ids, found %zu", ids->count,
                       margins->count);
    item->margins = calloc(margins->count, sizeof *item->margins);
    if (!item->margins) return ms_fail_memory(err, "margins", margins->count * sizeof *item->margins);
    size_t at = 0;
    for (const ms_json *v = ids->child; v; v = v->next) {
        uint64_t id;
        if (!ms_json_u64(v, &id) || id > UINT32_MAX)
            return ms_fail(err, MS_ERR_FORMAT, "expected.ids[%zu]: expected a token id, found %.*s", item->ids.count,
                           (int)(v->raw_len < 40 ? v->raw_len : 40), v->raw);
        MS_TRY(ms_ids_push(&item->ids, (uint32_t)id, err));
    }
    for (const ms_json *v = margins->child; v; v = v->next, at++)
        if (!ms_json_double(v, &item->margins[at]) || item->margins[at] < 0)
            return ms_fail(err, MS_ERR_FORMAT, "expected.margins[%zu]: expected a number from 0 on, found %.*s", at,
                           (int)(v->raw_len < 40 ? v->raw_len : 40), v->raw);
    return MS_OK;
}

static ms_status read_line(ms_quality_item *item, const char *line, size_t len, bool recorded, ms_error *err) {
    const ms_json_limits limits = {.max_depth = 512, .reject_duplicates = true};
    MS_TRY(ms_json_parse(&item->doc, line, len, "line", &limits, err));
    const ms_json *root = ms_json_root(item->doc);
    if (root->type != MS_JSON_OBJECT) return ms_fail(err, MS_ERR_FORMAT, "expected an object");
    MS_TRY(get_text(&item->name, root, "name", err));
    MS_TRY(get_text(&item->family, root, "family", err));
    item->request = ms_json_get(root, "request");
    if (!item->request || item->request->type != MS_JSON_OBJECT)
        return ms_fail(err, MS_ERR_FORMAT, "request: expected a chat request (an object)");
    return recorded ? read_expected(item, root, err) : MS_OK;
}

static int by_name(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

static ms_status check_names(const ms_quality_set *s, ms_error *err) {
    const char **names = calloc(s->count, sizeof *names);
    if (!names) return ms_fail_memory(err, "names", s->count * sizeof *names);
    for (size_t i = 0; i < s->count; i++) names[i] = s->items[i].name;
    qsort(names, s->count, sizeof *names, by_name);
    ms_status st = MS_OK;
    for (size_t i = 1; i < s->count && st == MS_OK; i++)
        if (!strcmp(names[i], names[i - 1]))
            st = ms_fail(err, MS_ERR_FORMAT, "name: expected once in the file, found '%s' twice", names[i]);
    free(names);
    return st;
}

static ms_status read_lines(ms_quality_set *s, size_t len, bool recorded, ms_error *err) {
    size_t lines = 1, number = 0;
    for (size_t i = 0; i < len; i++) lines += s->text[i] == '\n';
    s->items = calloc(lines, sizeof *s->items);
    if (!s->items) return ms_fail_memory(err, "set", lines * sizeof *s->items);
    for (const char *p = s->text, *end = p + len, *next; p < end; p = next) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        if (!stop) stop = end;
        next = stop + 1;
        number++;
        while (stop > p && (stop[-1] == '\r' || stop[-1] == ' ')) stop--;
        if (stop == p) continue;
        /* Counted first: what a bad line already holds is freed with the set. */
        ms_quality_item *item = &s->items[s->count++];
        if (read_line(item, p, (size_t)(stop - p), recorded, err) != MS_OK)
            return ms_error_context(err, "line %zu", number);
    }
    if (!s->count) return ms_fail(err, MS_ERR_FORMAT, "expected chat requests in JSON lines, found none");
    return check_names(s, err);
}

ms_status ms_quality_set_load(ms_quality_set *out, const char *path, bool recorded, ms_error *err) {
    ms_error local;
    if (!err) err = &local;
    *out = (ms_quality_set){0};
    size_t len = 0;
    MS_TRY(ms_file_read_all(path, MAX_SET_BYTES, &out->text, &len, err));
    ms_status st = read_lines(out, len, recorded, err);
    if (st == MS_OK) return MS_OK;
    ms_quality_set_free(out);
    return ms_error_context(err, "%s", path);
}

void ms_quality_set_free(ms_quality_set *s) {
    for (size_t i = 0; i < s->count; i++) {
        ms_json_free(s->items[i].doc);
        ms_ids_free(&s->items[i].ids);
        free(s->items[i].margins);
    }
    free(s->items);
    free(s->text);
    *s = (ms_quality_set){0};
}

void ms_quality_item_write(ms_text *out, const ms_quality_item *item, const ms_ids *ids, const ms_text *text,
                           const double *margins) {
    ms_text_puts(out, "{");
    for (const ms_json *v = ms_json_root(item->doc)->child; v; v = v->next) {
        if (!strcmp(v->key, "expected")) continue;
        ms_json_write_string(out, v->key, v->key_len);
        ms_text_puts(out, ":");
        ms_json_write(out, v, &ms_json_compact);
        ms_text_puts(out, ",");
    }
    ms_text_puts(out, "\"expected\":{\"ids\":[");
    for (size_t i = 0; i < ids->count; i++) ms_text_printf(out, "%s%u", i ? "," : "", ids->data[i]);
    ms_text_puts(out, "],\"text\":");
    ms_json_write_string(out, text->data ? text->data : "", text->len);
    ms_text_puts(out, ",\"margins\":[");
    for (size_t i = 0; i < ids->count; i++) ms_text_printf(out, "%s%.4g", i ? "," : "", margins[i]);
    ms_text_puts(out, "]}}\n");
}
