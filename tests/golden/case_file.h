/* case_file.h: what the drivers of golden case files share.
 *
 * A driver reads one file and calls `report` once for every case; it returns the number of cases, or -1 when
 * the file itself is unreadable (reported as the case "file").
 */
#ifndef TESTS_GOLDEN_CASE_FILE_H
#define TESTS_GOLDEN_CASE_FILE_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "report.h"

/* Reads and parses a file; *text (malloced) must outlive *doc. */
static inline bool golden_open(const char *path, char **text, ms_json_doc **doc, ms_error *err) {
    *text = NULL;
    *doc = NULL;
    FILE *f = fopen(path, "rb");
    long size = -1;
    if (f && fseek(f, 0, SEEK_END) == 0) size = ftell(f);
    if (size < 0 || fseek(f, 0, SEEK_SET) != 0 || !(*text = malloc((size_t)size + 1)) ||
        fread(*text, 1, (size_t)size, f) != (size_t)size) {
        (void)ms_fail(err, MS_ERR_IO, "%s: cannot be read", path);
        if (f) (void)fclose(f);
        free(*text);
        *text = NULL;
        return false;
    }
    (void)fclose(f);
    if (ms_json_parse(doc, *text, (size_t)size, path, NULL, err) == MS_OK) return true;
    free(*text);
    *text = NULL;
    return false;
}

static inline const char *golden_name(const ms_json *c) {
    const ms_json *name = ms_json_get(c, "name");
    return name && name->type == MS_JSON_STRING ? name->str : "(no name)";
}

static inline bool golden_same(const ms_json *want, const char *s, size_t len) {
    return want && want->type == MS_JSON_STRING && want->str_len == len && (!len || memcmp(want->str, s, len) == 0);
}

#endif
