#include "token_ids.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "io/file.h"

enum { MAX_IDS_FILE = 64 << 20 };

static ms_status parse_ids(const char *text, size_t len, const char *name, ms_ids *out, ms_error *err) {
    const size_t before = out->count;
    if (strlen(text) != len)
        return ms_fail(err, MS_ERR_USAGE,
                       "%s: expected token ids separated by commas or spaces, found a NUL byte at offset %zu", name,
                       strlen(text));
    bool due = true; /* an id, before the next comma */
    for (const char *p = text;;) {
        p += strspn(p, " \t\r\n[]");
        if (!*p && due && out->count > before)
            return ms_fail(err, MS_ERR_USAGE, "%s: expected a token id behind the last comma, found the end", name);
        if (!*p) return MS_OK;
        if (*p == ',' && !due) {
            due = true;
            p++;
            continue;
        }
        due = false;
        size_t digits = strspn(p, "0123456789");
        char *end;
        unsigned long long v = digits && digits <= 10 ? strtoull(p, &end, 10) : UINT64_MAX;
        if (v > UINT32_MAX || !strchr(", \t\r\n]", p[digits]))
            return ms_fail(err, MS_ERR_USAGE, "%s: expected token ids separated by commas or spaces, found '%.20s'", name, p);
        MS_TRY(ms_ids_push(out, (uint32_t)v, err));
        p += digits;
    }
}

static ms_status read_stdin(char **data, size_t *len, ms_error *err) {
    ms_text t = {0};
    char piece[65536];
    size_t n;
    while (t.len <= MAX_IDS_FILE && (n = fread(piece, 1, sizeof piece, stdin)) > 0) ms_text_append(&t, piece, n);
    ms_status st = ferror(stdin) ? ms_fail_errno(err, MS_ERR_IO, errno, "standard input") : MS_OK;
    if (t.len > MAX_IDS_FILE)
        st = ms_fail(err, MS_ERR_FORMAT, "standard input: expected at most %d bytes, found more", MAX_IDS_FILE);
    ms_text_append(&t, "", 0);
    if (t.failed) st = ms_fail_memory(err, "standard input", t.len);
    *len = t.len;
    if (st == MS_OK) *data = t.data;
    else ms_text_free(&t);
    return st;
}

ms_status ms_token_ids_read(const char *list, const char *file, ms_ids *out, ms_error *err) {
    if (!list == !file) return ms_fail(err, MS_ERR_USAGE, "give either --ids or --ids-file");
    if (list) {
        MS_TRY(parse_ids(list, strlen(list), "--ids", out, err));
    } else {
        char *text = NULL;
        size_t len = 0;
        MS_TRY(strcmp(file, "-") ? ms_file_read_all(file, MAX_IDS_FILE, &text, &len, err)
                                        : read_stdin(&text, &len, err));
        ms_status st = text ? parse_ids(text, len, file, out, err) : MS_OK;
        free(text);
        MS_TRY(st);
    }
    if (!out->count) return ms_fail(err, MS_ERR_USAGE, "no token ids given");
    return MS_OK;
}
