/* Fuzzes config.json of K3: whatever is accepted must be within the limits that other code relies on. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "lane/k3/k3_layout.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const k3_config *c) {
    if (c->layers == 0 || c->layers > K3_MAX_LAYERS || c->top_k == 0 || c->top_k > K3_MAX_TOP_K) abort();
    if (c->top_k > c->experts || c->latent % 32 || c->expert_inner % 32 || c->latent == 0 || c->expert_inner == 0)
        abort();
    if (c->conv_taps < K3_MIN_CONV_TAPS || c->conv_taps > K3_MAX_CONV_TAPS || c->eos >= c->vocab) abort();
    if (!(c->rms_eps > 0) || !(c->gate_bound < 0) || c->block_size == 0 || c->moe_freq == 0) abort();
    for (uint32_t l = 0; l < c->layers; l++) {
        for (k3_part p = 0; p < K3_LAYER_PARTS; p++) {
            k3_tensor_info t = k3_tensor_describe(c, l, p);
            if (t.rows == 0 || t.cols == 0 || (uint64_t)t.rows * t.cols > UINT64_C(1) << 60) abort();
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    ms_json_doc *doc = NULL;
    ms_error err = {0};
    if (ms_json_parse(&doc, (const char *)data, size, "fuzz", NULL, &err) != MS_OK) return 0;
    k3_config c;
    ms_status status = k3_config_parse(&c, ms_json_root(doc), "fuzz", &err);
    if (status == MS_OK) check(&c);
    else if (err.code != status || !err.message[0]) abort();
    ms_json_free(doc);
    return 0;
}
