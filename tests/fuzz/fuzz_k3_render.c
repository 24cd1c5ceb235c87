/* fuzz_k3_render.c: any JSON as a chat request to k3_render: segments, or one error and none. */
#include <stdlib.h>
#include <string.h>

#include "lane/k3/k3_chat.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const controls[] = {"<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"};
    ms_json_doc *doc;
    ms_error err = {0};
    if (ms_json_parse(&doc, (const char *)data, size, "request", NULL, &err) != MS_OK) return 0;
    ms_segments s = {0};
    ms_status status = k3_render(ms_json_root(doc), &s, &err);
    if (status != MS_OK && (status != MS_ERR_USAGE || s.count || !err.message[0])) abort();
    for (size_t i = 0; i < s.count; i++) {
        bool known = false;
        for (size_t k = 0; k < 4; k++) known = known || strcmp(s.items[i].text, controls[k]) == 0;
        if (s.items[i].control ? !known : !s.items[i].len) abort();
    }
    ms_segments_free(&s);
    ms_json_free(doc);
    return 0;
}
