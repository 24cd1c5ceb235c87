/* A chat request with remembered calls: what is put in reads back as the same request. */
#include <stdlib.h>
#include <string.h>

#include "server/calls.h"
#include "server/retained.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *text = (const char *)data;
    ms_marks marks = {0};
    (void)ms_marks_read(&marks, text, size, 1000);
    free(marks.items);
    ms_json_doc *doc = NULL, *again = NULL;
    const ms_json_limits limits = {.max_depth = 64};
    if (ms_json_parse(&doc, text, size, "request", &limits, NULL) != MS_OK) return 0;
    ms_call_memory *m = ms_call_memory_create(4, 1024);
    if (m) {
        ms_call_memory_add(m, "a", "{}", 2);
        ms_call_memory_add(m, "b", "{\"x\":1.0,\"y\":[\"\\u00e4\"]}", 23);
        ms_text out = {0};
        if (ms_call_memory_apply(m, ms_json_root(doc), &out)) {
            if (ms_json_parse(&again, out.data, out.len, "again", &limits, NULL) != MS_OK) abort();
            ms_json_free(again);
        }
        ms_text_free(&out);
        ms_call_memory_destroy(m);
    }
    ms_json_free(doc);
    return 0;
}
