/* mimo_lane.c: the MiMo V2.6 descriptor: config, weights list, chat format, graph, behind lane.h. */
#include <stddef.h>
#include <stdio.h>

#include "lane/mimo26/mimo_chat.h"
#include "lane/mimo26/mimo_grid.h"
#include "lane/mimo26/mimo_weights.h"

static ms_status config_parse(void *config, const ms_json *root, const char *file, ms_error *err) {
    return mimo_config_parse(config, root, file, err);
}

static ms_status config_bind(void *config, const ms_checkpoint *c, ms_error *err) {
    mimo_config *cfg = config;
    uint64_t chunks = cfg->chunks;
    MS_TRY(ms_checkpoint_metadata(c, "tp_size", &chunks, err));
    return mimo_config_set_chunks(cfg, chunks, err);
}

static void info(const void *config, ms_lane_info *out) {
    const mimo_config *c = config;
    uint32_t layers[MIMO_MAX_LAYERS];
    *out = (ms_lane_info){.vocab = c->vocab,
                          .hidden = c->hidden,
                          .layers = c->layers,
                          .experts = c->experts,
                          .top_k = c->top_k,
                          .bos = c->eos, /* there is none: text begins with its first token */
                          .eos = c->eos,
                          .max_context = c->max_context,
                          .expert_shape = mimo_expert_shape(c),
                          .moe_layer_count = mimo_moe_layers(c, layers)};
    mimo_tensor_name(out->embed_name, sizeof out->embed_name, 0, MIMO_EMBED);
}

static ms_status layout_check(const ms_checkpoint *c, const void *config, ms_expert_table *experts, ms_error *err) {
    return mimo_layout_check(c, config, experts, err);
}

static ms_status weights_check(const ms_checkpoint *c, const void *config, ms_text *report, ms_error *err) {
    return mimo_grid_check(c, config, report, err);
}

/* ------------------------------------------------------------------ weights */

/* How a resident weight is made of its tensor. */
typedef struct resident {
    mimo_part part, scale; /* scale: MIMO_PARTS for tensors without one */
    size_t offset;         /* in mimo_layer */
    bool quantizable;
    bool widened; /* BF16 kept as F32 */
} resident;

#define IN(member) offsetof(mimo_layer, member)
static const resident residents[] = {
    {MIMO_INPUT_NORM, MIMO_PARTS, IN(input_norm), false, false},
    {MIMO_POST_NORM, MIMO_PARTS, IN(post_norm), false, false},
    {MIMO_O_PROJ, MIMO_PARTS, IN(o), true, false},
    {MIMO_SINK, MIMO_PARTS, IN(sink), false, true},
    {MIMO_DENSE_GATE, MIMO_DENSE_GATE_SCALE, IN(gate), true, false},
    {MIMO_DENSE_UP, MIMO_DENSE_UP_SCALE, IN(up), true, false},
    {MIMO_DENSE_DOWN, MIMO_DENSE_DOWN_SCALE, IN(down), true, false},
    {MIMO_ROUTER, MIMO_PARTS, IN(router), false, false},
    {MIMO_ROUTER_BIAS, MIMO_PARTS, IN(router_bias), false, false},
};

/* As stored, or Q8 where a matrix product takes it. */
static ms_format resident_format(ms_dtype stored, const resident *r, ms_static_format format) {
    if (r->quantizable && format == MS_STATIC_Q8) return MS_FORMAT_Q8;
    if (stored == MS_DTYPE_F8_E4M3) return MS_FORMAT_FP8;
    return stored == MS_DTYPE_F32 || r->widened ? MS_FORMAT_F32 : MS_FORMAT_BF16;
}

static ms_status add_part(const mimo_config *c, ms_static_format format, uint32_t layer, const resident *r,
                          size_t weight_offset, const ms_row_chunks *chunks, ms_static_list *out, ms_error *err) {
    mimo_tensor t = mimo_tensor_describe(c, layer, r->part);
    ms_static_item item = {.format = resident_format(t.dtype, r, format),
                           .rows = t.dims > 1 ? (uint32_t)t.shape[0] : 1,
                           .cols = (uint32_t)t.shape[t.dims - 1],
                           .weight_offset = weight_offset};
    mimo_tensor_name(item.name, sizeof item.name, layer, r->part);
    if (r->scale != MIMO_PARTS) mimo_tensor_name(item.scales, sizeof item.scales, layer, r->scale);
    if (chunks) {
        item.chunks = *chunks;
        item.rows = c->chunks * chunks->take;
    }
    return ms_static_list_add(out, &item, err);
}

static ms_status add_layer(const mimo_config *c, ms_static_format format, uint32_t l, ms_static_list *out,
                           ms_error *err) {
    size_t at = offsetof(mimo_weights, layer) + l * sizeof(mimo_layer);
    for (size_t i = 0; i < sizeof residents / sizeof residents[0]; i++)
        if (mimo_has_part(c, l, residents[i].part))
            MS_TRY(add_part(c, format, l, &residents[i], at + residents[i].offset, NULL, out, err));
    const resident qkv = {MIMO_QKV, MIMO_QKV_SCALE, 0, true, false};
    const mimo_chunk chunk = mimo_chunk_of(c, mimo_attention_of(c, l));
    const ms_row_chunks q = {chunk.rows, 0, chunk.q}, k = {chunk.rows, chunk.q, chunk.k},
                        v = {chunk.rows, chunk.q + chunk.k, chunk.v};
    MS_TRY(add_part(c, format, l, &qkv, at + IN(q), &q, out, err));
    MS_TRY(add_part(c, format, l, &qkv, at + IN(k), &k, out, err));
    return add_part(c, format, l, &qkv, at + IN(v), &v, out, err);
}

ms_status mimo_statics(const void *config, ms_static_format format, ms_static_list *out, ms_error *err) {
    const mimo_config *c = config;
    const resident norm = {MIMO_FINAL_NORM, MIMO_PARTS, 0, false, false},
                   head = {MIMO_LM_HEAD, MIMO_PARTS, 0, false, false};
    for (uint32_t l = 0; l < c->layers; l++) MS_TRY(add_layer(c, format, l, out, err));
    MS_TRY(add_part(c, format, 0, &norm, offsetof(mimo_weights, final_norm), NULL, out, err));
    return add_part(c, format, 0, &head, offsetof(mimo_weights, lm_head), NULL, out, err);
}

/* ------------------------------------------------------------------ chat */

static ms_status parser_create(void **out, const ms_tokenizer *t, ms_channel channel, ms_error *err) {
    mimo_parser *p = NULL;
    MS_TRY(mimo_parser_create(&p, t, channel, err));
    *out = p;
    return MS_OK;
}
static ms_status parser_tools(void *p, const ms_json *tools, ms_error *err) { return mimo_parser_tools(p, tools, err); }
static ms_status parser_push(void *p, uint32_t id, ms_reply_delta *delta, bool *done, ms_error *err) {
    return mimo_parser_push(p, id, delta, done, err);
}
static ms_status parser_finish(void *p, ms_reply_delta *delta, ms_reply *out, ms_error *err) {
    return mimo_parser_finish(p, delta, out, err);
}
static void parser_destroy(void *p) { mimo_parser_destroy(p); }

static void parser_calls(const void *p, ms_call_view *out) { mimo_parser_calls(p, out); }

static const ms_reply_parser_ops parser = {.create = parser_create,
                                           .tools = parser_tools,
                                           .push = parser_push,
                                           .finish = parser_finish,
                                           .destroy = parser_destroy,
                                           .calls = parser_calls};

static const char *const efforts[] = {"none", "high", NULL};

/* Names that servers of this family have had. */
static const char *const option_names[] = {
    "slots",           "prefill-chunk",    "expert-lookahead",     "expert-major",     "retain-experts",
    "kv-prefix-reuse", "prefix-cache-dir", "prefix-cache-entries", "prefix-cache-gib", NULL};

const ms_lane ms_lane_mimo26 = {
    .name = "mimo26",
    .config_bytes = sizeof(mimo_config),
    .weights_bytes = sizeof(mimo_weights),
    .greedy_only = true,
    .rank_file = "tokenizer.json",
    .tokenizer_kind = MS_TOKENIZER_HF,
    .matches = mimo_config_matches,
    .config_parse = config_parse,
    .config_bind = config_bind,
    .info = info,
    .tensor_needed = mimo_tensor_needed,
    .layout_check = layout_check,
    .weights_check = weights_check,
    .statics = mimo_statics,
    .state_parts = mimo_state_parts,
    .workspace = mimo_workspace,
    .scratch_need = mimo_scratch_need,
    .forward = mimo_forward,
    .render = mimo_render,
    .parser = &parser,
    .reply_grammar = mimo_reply_grammar,
    .model_id = "mimo-v2.6-flash",
    .efforts = efforts,
    .default_effort = "high",
    .option_names = option_names,
};
