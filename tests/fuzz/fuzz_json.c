/* fuzz_json.c: any bytes to the JSON reader; what it accepts must survive writing and reading again.
 *
 * The first byte chooses the limits and the style, the rest is the text.
 */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static ms_text rewrite(const ms_json *v, const ms_json_style *style) {
    ms_text t = {0};
    ms_json_write(&t, v, style);
    return t;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!size) return 0;
    unsigned bits = data[0];
    ms_json_limits limits = {.max_depth = bits & 1 ? 20 : MS_JSON_MAX_DEPTH, .max_nodes = 100000,
                             .allow_nan = (bits & 2) != 0, .allow_control = (bits & 4) != 0,
                             .allow_invalid_utf8 = (bits & 8) != 0, .allow_trailing = (bits & 16) != 0,
                             .reject_duplicates = (bits & 32) != 0};
    const ms_json_style *style = bits & 64    ? &ms_json_compact_sorted
                                 : bits & 128 ? &ms_json_spaced
                                              : &ms_json_compact;
    ms_json_doc *doc, *again;
    ms_error err = {0};
    const char *text = (const char *)data + 1;
    if (ms_json_parse(&doc, text, size - 1, "fuzz", &limits, &err) != MS_OK) {
        if (!err.message[0] || doc) abort();
        return 0;
    }
    const ms_json *root = ms_json_root(doc);
    const char *end = ms_json_end(doc);
    if (root->raw < text || root->raw + root->raw_len != end || end > text + size - 1) abort();
    ms_text once = rewrite(root, style);
    /* Numbers beyond double are written as Infinity, as Python does. */
    ms_json_limits strict = {.max_depth = limits.max_depth, .allow_nan = true, .reject_duplicates = true};
    if (once.failed || ms_json_parse(&again, once.data, once.len, "again", &strict, &err) != MS_OK) abort();
    ms_text twice = rewrite(ms_json_root(again), style);
    if (once.len != twice.len || memcmp(once.data, twice.data, once.len) != 0) abort();
    ms_text_free(&once);
    ms_text_free(&twice);
    ms_json_free(again);
    ms_json_free(doc);
    return 0;
}
