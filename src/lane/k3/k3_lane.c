/* k3_lane.c: the Kimi K3 descriptor: config, weights list, chat format, graph, behind lane.h. */
#include <stddef.h>
#include <stdio.h>

#include "lane/k3/k3_chat.h"
#include "lane/k3/k3_weights.h"

static ms_status config_parse(void *config, const ms_json *root, const char *file, ms_error *err) {
    return k3_config_parse(config, root, file, err);
}

static void info(const void *config, ms_lane_info *out) {
    const k3_config *c = config;
    uint32_t layers[K3_MAX_LAYERS];
    *out = (ms_lane_info){.vocab = c->vocab,
                          .hidden = c->hidden,
                          .layers = c->layers,
                          .experts = c->experts,
                          .top_k = c->top_k,
                          .bos = c->bos,
                          .eos = c->eos,
                          .max_context = c->max_context,
                          .expert_shape = k3_expert_shape(c),
                          .moe_layer_count = k3_moe_layers(c, layers)};
    k3_tensor_name(out->embed_name, sizeof out->embed_name, 0, K3_EMBED);
}

static ms_status layout_check(const ms_checkpoint *c, const void *config, ms_expert_table *experts, ms_error *err) {
    return k3_layout_check(c, config, experts, err);
}

/* Parts that are the second factor of a folded AttnRes score: loaded with the first. */
static k3_part fold_partner(k3_part part) {
    switch (part) {
    case K3_ATTN_RES_NORM: return K3_ATTN_RES_PROJ;
    case K3_MLP_RES_NORM: return K3_MLP_RES_PROJ;
    case K3_OUT_RES_NORM: return K3_OUT_RES_PROJ;
    default: return K3_PARTS;
    }
}

static bool is_fold_partner(k3_part part) {
    return part == K3_ATTN_RES_PROJ || part == K3_MLP_RES_PROJ || part == K3_OUT_RES_PROJ;
}

static ms_format resident_format(const k3_tensor_info *t, ms_static_format format) {
    if (t->dtype == MS_DTYPE_F32) return MS_FORMAT_F32;
    return t->quantizable && format == MS_STATIC_Q8 ? MS_FORMAT_Q8 : MS_FORMAT_BF16;
}

static ms_status add_part(const k3_config *c, ms_static_format format, uint32_t layer, k3_part part,
                          size_t weight_offset, ms_static_list *out, ms_error *err) {
    k3_tensor_info t = k3_tensor_describe(c, layer, part);
    if (!t.resident || is_fold_partner(part)) return MS_OK;
    ms_static_item item = {
        .format = resident_format(&t, format), .rows = t.rows, .cols = t.cols, .weight_offset = weight_offset};
    k3_tensor_name(item.name, sizeof item.name, layer, part);
    k3_part partner = fold_partner(part);
    if (partner != K3_PARTS) {
        k3_tensor_name(item.times, sizeof item.times, layer, partner);
        item.format = MS_FORMAT_F32; /* the size of the two BF16 vectors it replaces */
    }
    return ms_static_list_add(out, &item, err);
}

ms_status k3_statics(const void *config, ms_static_format format, ms_static_list *out, ms_error *err) {
    const k3_config *c = config;
    for (uint32_t l = 0; l < c->layers; l++)
        for (int p = 0; p < K3_LAYER_PARTS; p++)
            if (k3_has_part(c, l, (k3_part)p))
                MS_TRY(add_part(c, format, l, (k3_part)p, offsetof(k3_weights, layer) + (l * (size_t)K3_LAYER_PARTS + (size_t)p) * sizeof(ms_weight),
                                out, err));
    for (int p = K3_LAYER_PARTS; p < K3_PARTS; p++)
        MS_TRY(add_part(c, format, 0, (k3_part)p,
                        offsetof(k3_weights, outside) + (size_t)(p - K3_LAYER_PARTS) * sizeof(ms_weight), out, err));
    return MS_OK;
}

static ms_status parser_create(void **out, const ms_tokenizer *t, ms_channel channel, ms_error *err) {
    k3_parser *p = NULL;
    MS_TRY(k3_parser_create(&p, t, channel, err));
    *out = p;
    return MS_OK;
}
static ms_status parser_push(void *p, uint32_t id, ms_reply_delta *delta, bool *done, ms_error *err) {
    return k3_parser_push(p, id, delta, done, err);
}
static ms_status parser_finish(void *p, ms_reply_delta *delta, ms_reply *out, ms_error *err) {
    return k3_parser_finish(p, delta, out, err);
}
static void parser_calls(const void *p, ms_call_view *out) { k3_parser_calls(p, out); }
static void parser_destroy(void *p) { k3_parser_destroy(p); }

static const ms_reply_parser_ops parser = {
    .create = parser_create, .push = parser_push, .finish = parser_finish, .destroy = parser_destroy,
    .calls = parser_calls};

static const char *const efforts[] = {"low", "medium", "high", "max", NULL};

/* Control offsets of a rank file are the same in each. */
static ms_status reply_grammar(ms_grammar **out, const ms_tokenizer *t, const ms_reply_rules *rules,
                               ms_reply_report *report, ms_error *err) {
    (void)t;
    return k3_reply_grammar(out, rules, report, err);
}

const ms_lane ms_lane_k3 = {
    .name = "k3",
    .config_bytes = sizeof(k3_config),
    .weights_bytes = sizeof(k3_weights),
    .greedy_only = false,
    .rank_file = "tiktoken.model",
    .matches = k3_config_matches,
    .config_parse = config_parse,
    .info = info,
    .tensor_needed = k3_tensor_needed,
    .layout_check = layout_check,
    .statics = k3_statics,
    .state_parts = k3_state_parts,
    .workspace = k3_workspace,
    .scratch_need = k3_scratch_need,
    .forward = k3_forward,
    .render = k3_render,
    .parser = &parser,
    .reply_grammar = reply_grammar,
    .model_id = "moonshine",
    .efforts = efforts,
    .default_effort = "max",
    .dynamic_tools = true,
    .keeps_reasoning = true,
};
