/* fuzz_mimo_request.c: any JSON as a MiMo config and as a chat request: accepted within the limits that other code
 * relies on, or one error. */
#include <stdlib.h>
#include <string.h>

#include "lane/mimo26/mimo_chat.h"
#include "lane/mimo26/mimo_layout.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_config(mimo_config *c) {
    ms_error err;
    if (c->layers == 0 || c->layers > MIMO_MAX_LAYERS || c->top_k == 0 || c->top_k > MIMO_MAX_TOP_K) abort();
    if (c->top_k > c->experts || c->hidden % 32 || c->expert_inner % 32 || c->eos >= c->vocab || !(c->eps > 0)) abort();
    for (int i = 0; i < MIMO_KINDS; i++) {
        const mimo_attention *a = &c->attention[i];
        if (!a->kv_heads || a->heads % a->kv_heads || a->rotary < 2 || a->rotary % 2 || a->rotary > a->key ||
            !(a->theta > 1))
            abort();
    }
    if (mimo_config_set_chunks(c, c->chunks, &err) != MS_OK) return; /* an index would have to give another number */
    for (uint32_t l = 0; l < c->layers; l++) {
        for (mimo_part p = 0; p < MIMO_LAYER_PARTS; p++) {
            mimo_tensor t = mimo_tensor_describe(c, l, p);
            if (t.shape[0] == 0 || (t.dims > 1 && (t.shape[1] == 0 || t.shape[0] > UINT64_MAX / t.shape[1]))) abort();
        }
    }
}

static void check_segments(const ms_json *root) {
    static const char *const controls[] = {"<|im_start|>", "<|im_end|>",  "<think>",
                                           "</think>",     "<tool_call>", "</tool_call>"};
    ms_error err = {0};
    ms_segments s = {0};
    ms_status status = mimo_render(root, &s, &err);
    if (status != MS_OK && (status != MS_ERR_USAGE || s.count || !err.message[0])) abort();
    for (size_t i = 0; i < s.count; i++) {
        bool known = false;
        for (size_t k = 0; k < sizeof controls / sizeof controls[0]; k++)
            known = known || strcmp(s.items[i].text, controls[k]) == 0;
        if (s.items[i].control ? !known : !s.items[i].len) abort();
    }
    ms_segments_free(&s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    ms_json_doc *doc = NULL;
    ms_error err = {0};
    if (ms_json_parse(&doc, (const char *)data, size, "fuzz", NULL, &err) != MS_OK) return 0;
    mimo_config c;
    ms_status status = mimo_config_parse(&c, ms_json_root(doc), "fuzz", &err);
    if (status == MS_OK)
        check_config(&c);
    else if (err.code != status || !err.message[0])
        abort();
    check_segments(ms_json_root(doc));
    ms_json_free(doc);
    return 0;
}
