/* k3_synth_shard.c: what one synthetic Kimi K3 shard holds, in official order: F32, BF16, U8, by name within a type.
 *
 * Owns: nothing; plans belong to the caller.  Threads: pure.  Errors: memory.
 */
#include "lane/k3/k3_layout.h"
#include "lane/k3/k3_synth.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_SIZE = 160, VISION_BLOCKS = 27 };

/* ------------------------------------------------------------------ tensors */

static void choose_values(ms_synth_tensor *t, const k3_config *c, k3_part part, const k3_tensor_info *info) {
    t->amplitude = ms_synth_amplitude(info->cols);
    if (info->dims == 1) { /* norm weights */
        t->mean = 1.0f;
        t->amplitude = 0.1f;
    }
    switch (part) {
    case K3_A_LOG: /* decay rates exp(0) .. exp(2.7) */
        t->mean = t->amplitude = 1.35f;
        t->live = c->kda_heads;
        break;
    case K3_DT_BIAS:
        t->mean = -1.0f;
        t->amplitude = 1.0f;
        break;
    case K3_ROUTER_BIAS:
        t->mean = 0.0f;
        t->amplitude = 0.01f;
        break;
    case K3_EMBED: t->amplitude = ms_synth_amplitude(1); break;
    case K3_LM_HEAD: t->amplitude *= 3.0f; break; /* logits with clear maxima */
    default: break;
    }
}

static ms_status add_part(ms_synth_plan *p, const k3_config *c, uint32_t layer, k3_part part, ms_error *err) {
    char name[NAME_SIZE];
    k3_tensor_name(name, sizeof name, layer, part);
    k3_tensor_info info = k3_tensor_describe(c, layer, part);
    ms_synth_tensor t = {.dtype = info.dtype, .dims = info.dims, .fill = MS_FILL_UNIFORM};
    memcpy(t.shape, info.shape, sizeof info.shape);
    choose_values(&t, c, part, &info);
    return ms_synth_add(p, name, &t, err);
}

static ms_status add_experts(ms_synth_plan *p, const k3_config *c, uint32_t layer, bool gaussian, ms_error *err) {
    ms_expert_naming naming;
    k3_expert_naming(c, &naming);
    for (uint32_t e = 0; e < c->experts; e++) {
        for (int i = 0; i < MS_EXPERT_PARTS; i++) {
            char name[NAME_SIZE];
            (void)snprintf(name, sizeof name, "%smodel.layers.%u.block_sparse_moe.experts.%u.%s", k3_text_prefix,
                           (unsigned)layer, (unsigned)e, naming.suffix[i]);
            bool packed = i % 2 == 0;
            uint64_t groups = naming.shape[i][1];
            ms_synth_tensor t = {
                .dtype = MS_DTYPE_U8,
                .dims = 2,
                .shape = {naming.shape[i][0], naming.shape[i][1]},
                .fill = ms_synth_expert_fill(i, gaussian),
                .scale_base = packed ? 0 : ms_synth_scale_base(groups * 32),
            };
            MS_TRY(ms_synth_add(p, name, &t, err));
        }
    }
    return MS_OK;
}

/* Vision tensors are never read; at the official width they have the official total size. */
static ms_status add_vision(ms_synth_plan *p, const char *name, unsigned dims, const uint64_t *shape, ms_error *err) {
    ms_synth_tensor t = {.dtype = MS_DTYPE_BF16, .dims = (uint8_t)dims, .fill = MS_FILL_UNIFORM, .amplitude = 0.02f};
    memcpy(t.shape, shape, dims * sizeof *shape);
    return ms_synth_add(p, name, &t, err);
}

static uint64_t vision_width(const k3_config *c) { return c->hidden == 7168 ? 1024 : 32; }

static ms_status plan_projector(ms_synth_plan *p, const k3_config *c, ms_error *err) {
    const uint64_t w = 4 * vision_width(c), first[] = {w, w}, second[] = {c->hidden, w}, norm[] = {c->hidden};
    MS_TRY(add_vision(p, "mm_projector.proj.0.weight", 2, first, err));
    MS_TRY(add_vision(p, "mm_projector.proj.2.weight", 2, second, err));
    return add_vision(p, "mm_projector.post_norm.weight", 1, norm, err);
}

static ms_status plan_tower(ms_synth_plan *p, const k3_config *c, ms_error *err) {
    const uint64_t w = vision_width(c), grid = w / 16, patch = w == 1024 ? 14 : 2, inner = w + w / 2;
    const uint64_t patches[] = {w, 3, patch, patch}, places[] = {grid, grid, w};
    const uint64_t norm[] = {w}, qkv[] = {3 * inner, w}, out[] = {w, inner}, up[] = {4 * w, w}, down[] = {w, 4 * w};
    const struct {
        const char *suffix;
        unsigned dims;
        const uint64_t *shape;
    } parts[] = {{"norm0", 1, norm}, {"norm1", 1, norm}, {"wqkv", 2, qkv},
                 {"wo", 2, out},     {"mlp.fc0", 2, up}, {"mlp.fc1", 2, down}};
    for (int b = 0; b < VISION_BLOCKS; b++) {
        for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
            char name[NAME_SIZE];
            (void)snprintf(name, sizeof name, "vision_tower.encoder.blocks.%d.%s.weight", b, parts[i].suffix);
            MS_TRY(add_vision(p, name, parts[i].dims, parts[i].shape, err));
        }
    }
    MS_TRY(add_vision(p, "vision_tower.patch_embed.proj.weight", 4, patches, err));
    MS_TRY(add_vision(p, "vision_tower.patch_embed.pos_emb.weight", 3, places, err));
    return add_vision(p, "vision_tower.encoder.final_layernorm.weight", 1, norm, err);
}

static ms_status plan_tensors(ms_synth_plan *p, const k3_config *c, bool gaussian, uint32_t number, ms_error *err) {
    if (number == c->layers + 1) return plan_projector(p, c, err);
    if (number == c->layers + 2) return plan_tower(p, c, err);
    if (number == c->layers) {
        for (k3_part part = K3_LAYER_PARTS; part < K3_PARTS; part++) MS_TRY(add_part(p, c, 0, part, err));
        return MS_OK;
    }
    for (k3_part part = 0; part < K3_LAYER_PARTS; part++) {
        if (k3_has_part(c, number, part)) MS_TRY(add_part(p, c, number, part, err));
    }
    return k3_is_moe(c, number) ? add_experts(p, c, number, gaussian, err) : MS_OK;
}

static uint32_t shard_count(const ms_synth_model *m) { return ((const k3_config *)m->config)->layers + 1 + (m->vision ? 2 : 0); }

static ms_status plan_shard(ms_synth_plan *p, const ms_synth_model *m, uint32_t number, ms_error *err) {
    (void)snprintf(p->file, sizeof p->file, "model-%05u-of-%06u.safetensors", (unsigned)(number + 1),
                   (unsigned)shard_count(m));
    MS_TRY(plan_tensors(p, m->config, m->gaussian, number, err));
    return ms_synth_sort(p, err);
}

static void config_text(ms_text *out, const ms_synth_model *m) { k3_synth_config_text(out, m->config, m->vision); }

static ms_status check(const ms_synth_model *m, const ms_json *root, ms_error *err) {
    k3_config back;
    (void)m;
    return k3_config_parse(&back, root, "the model's numbers", err);
}

ms_synth_model k3_synth_model(const k3_config *cfg) {
    return (ms_synth_model){
        .config = cfg, .shards = shard_count, .plan = plan_shard, .config_text = config_text, .check = check};
}

/* The layer lists have room for so many. */
static ms_status check_layers(const k3_config *cfg, ms_error *err) {
    if (cfg->layers > 0 && cfg->layers <= K3_MAX_LAYERS) return MS_OK;
    return ms_fail(err, MS_ERR_FORMAT, "num_hidden_layers: expected 1 to %d, found %u", K3_MAX_LAYERS, (unsigned)cfg->layers);
}

ms_status k3_synth_write(const char *dir, const k3_config *cfg, const ms_synth_options *opt, ms_error *err) {
    MS_TRY(check_layers(cfg, err));
    const ms_synth_model m = k3_synth_model(cfg);
    return ms_synth_write(dir, &m, opt, err);
}

ms_status k3_synth_measure(const k3_config *cfg, const ms_synth_options *opt, ms_synth_report *out, ms_error *err) {
    MS_TRY(check_layers(cfg, err));
    const ms_synth_model m = k3_synth_model(cfg);
    return ms_synth_measure(&m, opt, out, err);
}
