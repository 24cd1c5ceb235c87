/* k3_config.c: reads and checks config.json of a Kimi K3 checkpoint.
 *
 * Owns: nothing.  Threads: any.
 * Invariants: every field comes from the file; after success the derived widths fit 32 bits and each layer has one
 *   kind.
 * Errors: MS_ERR_FORMAT with everything that is missing or wrong in one message (cut when there is no more room).
 */
#include "lane/k3/k3_config.h"

#include "base/text.h"

#include <math.h>
#include <string.h>

typedef enum section { TEXT, LINEAR, SECTIONS } section;

static const char *const section_path[SECTIONS] = {"text_config", "text_config.linear_attn_config"};

/* No dimension of a model comes near these; they keep all products of two or three far from overflow. */
enum { MAX_DIM = 1 << 24, MAX_HEADS = 1 << 16, MAX_EXPERTS = 1 << 16, MAX_WIDTH = 1 << 28 };

typedef struct uint_field {
    section where;
    const char *name;
    size_t offset;
    uint32_t min, max, multiple;
} uint_field;

#define AT(member) offsetof(k3_config, member)

static const uint_field uint_fields[] = {
    {TEXT, "vocab_size", AT(vocab), 1, MAX_DIM, 1},
    {TEXT, "hidden_size", AT(hidden), 1, MAX_DIM, 1},
    {TEXT, "num_hidden_layers", AT(layers), 1, K3_MAX_LAYERS, 1},
    {TEXT, "intermediate_size", AT(dense_width), 1, MAX_DIM, 1},
    {TEXT, "attn_res_block_size", AT(block_size), 1, K3_MAX_LAYERS, 1},
    {TEXT, "first_k_dense_replace", AT(first_dense), 0, K3_MAX_LAYERS, 1},
    {TEXT, "moe_layer_freq", AT(moe_freq), 1, K3_MAX_LAYERS, 1},
    {TEXT, "num_experts", AT(experts), 1, MAX_EXPERTS, 1},
    {TEXT, "num_experts_per_token", AT(top_k), 1, K3_MAX_TOP_K, 1},
    {TEXT, "num_shared_experts", AT(shared_experts), 1, 1024, 1},
    {TEXT, "moe_intermediate_size", AT(expert_inner), 32, MAX_DIM, 32},
    {TEXT, "routed_expert_hidden_size", AT(latent), 32, MAX_DIM, 32},
    {TEXT, "num_attention_heads", AT(mla_heads), 1, MAX_HEADS, 1},
    {TEXT, "q_lora_rank", AT(q_rank), 1, MAX_DIM, 1},
    {TEXT, "kv_lora_rank", AT(kv_rank), 1, MAX_DIM, 1},
    {TEXT, "qk_nope_head_dim", AT(nope), 1, MAX_DIM, 1},
    {TEXT, "qk_rope_head_dim", AT(extra), 1, MAX_DIM, 1},
    {TEXT, "v_head_dim", AT(value), 1, MAX_DIM, 1},
    {LINEAR, "num_heads", AT(kda_heads), 1, MAX_HEADS, 1},
    {LINEAR, "head_dim", AT(kda_dim), 1, MAX_DIM, 1},
    {LINEAR, "short_conv_kernel_size", AT(conv_taps), K3_MIN_CONV_TAPS, K3_MAX_CONV_TAPS, 1},
};

typedef struct float_field {
    section where;
    const char *name;
    size_t offset;
    double above, below; /* exclusive */
} float_field;

static const float_field float_fields[] = {
    {TEXT, "rms_norm_eps", AT(rms_eps), 0.0, 1.0},
    {TEXT, "activation_situ_beta", AT(situ_beta), 0.0, 1e6},
    {TEXT, "activation_situ_linear_beta", AT(situ_linear_beta), 0.0, 1e6},
    {TEXT, "routed_scaling_factor", AT(routed_scale), 0.0, 1e6},
    {LINEAR, "gate_lower_bound", AT(gate_bound), -80.0, 0.0}, /* exp(bound) stays a normal float */
};

/* Fields with one accepted value, compared as JSON source text. */
typedef struct fixed_field {
    section where;
    const char *name, *value;
} fixed_field;

static const fixed_field fixed_fields[] = {
    {TEXT, "hidden_act", "\"situ\""},
    {TEXT, "latent_moe_use_norm", "true"},
    {TEXT, "moe_router_activation_func", "\"sigmoid\""},
    {TEXT, "num_expert_group", "1"},
    {TEXT, "topk_group", "1"},
    {TEXT, "mla_use_nope", "true"},
    {TEXT, "mla_use_output_gate", "true"},
    {LINEAR, "use_full_rank_gate", "true"},
};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

typedef struct reading {
    const ms_json *root, *part[SECTIONS];
    ms_text missing[SECTIONS]; /* names, comma-separated */
    ms_text wrong;             /* sentences, semicolon-separated */
} reading;

static void note_missing(reading *r, section where, const char *name) {
    if (r->missing[where].len) ms_text_puts(&r->missing[where], ", ");
    ms_text_puts(&r->missing[where], name);
}

static void start_wrong(reading *r) {
    if (r->wrong.len) ms_text_puts(&r->wrong, "; ");
}

/* What the file has, cut to a readable length. */
static void put_found(reading *r, const ms_json *v) {
    const size_t most = 40;
    ms_text_puts(&r->wrong, ", found ");
    ms_text_append(&r->wrong, v->raw, v->raw_len < most ? v->raw_len : most);
    if (v->raw_len > most) ms_text_puts(&r->wrong, "...");
}

static const ms_json *get(reading *r, section where, const char *name) {
    const ms_json *v = ms_json_get(r->part[where], name);
    if (!v) note_missing(r, where, name);
    return v;
}

static void read_uints(reading *r, k3_config *c) {
    for (size_t i = 0; i < COUNT(uint_fields); i++) {
        const uint_field *f = &uint_fields[i];
        const ms_json *v = get(r, f->where, f->name);
        if (!v) continue;
        uint64_t n;
        if (!ms_json_u64(v, &n) || n < f->min || n > f->max || n % f->multiple != 0) {
            start_wrong(r);
            ms_text_printf(&r->wrong, "%s.%s: expected an integer from %u to %u", section_path[f->where], f->name,
                           (unsigned)f->min, (unsigned)f->max);
            if (f->multiple > 1) ms_text_printf(&r->wrong, " and a multiple of %u", (unsigned)f->multiple);
            put_found(r, v);
            continue;
        }
        uint32_t narrow = (uint32_t)n;
        memcpy((char *)c + f->offset, &narrow, sizeof narrow);
    }
}

static void read_floats(reading *r, k3_config *c) {
    for (size_t i = 0; i < COUNT(float_fields); i++) {
        const float_field *f = &float_fields[i];
        const ms_json *v = get(r, f->where, f->name);
        if (!v) continue;
        double d;
        float narrow = 0.0f;
        bool good = ms_json_double(v, &d) && d > f->above && d < f->below;
        if (good) narrow = (float)d;
        /* A positive number below float's range would become zero. */
        if (!good || !isfinite(narrow) || narrow == 0.0f) {
            start_wrong(r);
            ms_text_printf(&r->wrong, "%s.%s: expected a number between %g and %g", section_path[f->where], f->name,
                           f->above, f->below);
            put_found(r, v);
            continue;
        }
        memcpy((char *)c + f->offset, &narrow, sizeof narrow);
    }
}

static void read_fixed(reading *r) {
    for (size_t i = 0; i < COUNT(fixed_fields); i++) {
        const fixed_field *f = &fixed_fields[i];
        const ms_json *v = get(r, f->where, f->name);
        if (!v || (v->raw_len == strlen(f->value) && memcmp(v->raw, f->value, v->raw_len) == 0)) continue;
        start_wrong(r);
        ms_text_printf(&r->wrong, "%s.%s: expected %s", section_path[f->where], f->name, f->value);
        put_found(r, v);
    }
}

/* Fields that stand in text_config, at the top, or (agreeing) in both. */
static const ms_json *get_shared(reading *r, const char *name) {
    const ms_json *inner = ms_json_get(r->part[TEXT], name), *outer = ms_json_get(r->root, name);
    if (!inner && !outer) note_missing(r, TEXT, name);
    if (inner && outer && (inner->raw_len != outer->raw_len || memcmp(inner->raw, outer->raw, inner->raw_len) != 0)) {
        start_wrong(r);
        ms_text_printf(&r->wrong, "%s: text_config and the top level differ", name);
        put_found(r, inner);
        put_found(r, outer);
    }
    return inner ? inner : outer;
}

static void read_token_id(reading *r, const k3_config *c, const char *name, uint32_t *out) {
    const ms_json *v = get_shared(r, name);
    uint64_t n;
    if (!v) return;
    uint32_t below = c->vocab ? c->vocab : MAX_DIM;
    if (!ms_json_u64(v, &n) || n >= below) {
        start_wrong(r);
        ms_text_printf(&r->wrong, "%s: expected a token id below %u", name, (unsigned)below);
        put_found(r, v);
        return;
    }
    *out = (uint32_t)n;
}

static void read_flags(reading *r, k3_config *c) {
    const ms_json *v = get(r, TEXT, "moe_renormalize");
    if (v && !ms_json_bool(v, &c->renormalize)) {
        start_wrong(r);
        ms_text_puts(&r->wrong, "text_config.moe_renormalize: expected true or false");
        put_found(r, v);
    }
    bool tied;
    v = get_shared(r, "tie_word_embeddings");
    if (v && (!ms_json_bool(v, &tied) || tied)) {
        start_wrong(r);
        ms_text_puts(&r->wrong, "tie_word_embeddings: expected false");
        put_found(r, v);
    }
    uint64_t n;
    v = ms_json_get(r->part[TEXT], "num_nextn_predict_layers");
    if (v && (!ms_json_u64(v, &n) || n != 0)) {
        start_wrong(r);
        ms_text_puts(&r->wrong, "text_config.num_nextn_predict_layers: expected 0");
        put_found(r, v);
    }
    v = get(r, TEXT, "max_position_embeddings");
    if (v && (!ms_json_u64(v, &c->max_context) || c->max_context == 0 || c->max_context > UINT64_C(1) << 32)) {
        start_wrong(r);
        ms_text_puts(&r->wrong, "text_config.max_position_embeddings: expected an integer from 1 to 4294967296");
        put_found(r, v);
    }
}

/* ------------------------------------------------------------------ layer kinds */

enum { KIND_NONE = 0, KIND_KDA = 1, KIND_MLA = 2 };

static void read_layer_list(reading *r, uint32_t layers, const char *name, uint8_t kind, uint8_t kinds[K3_MAX_LAYERS]) {
    const ms_json *list = get(r, LINEAR, name);
    if (!list) return;
    const char *path = section_path[LINEAR];
    if (list->type != MS_JSON_ARRAY) {
        start_wrong(r);
        ms_text_printf(&r->wrong, "%s.%s: expected an array of layer numbers", path, name);
        put_found(r, list);
        return;
    }
    for (const ms_json *v = list->child; v; v = v->next) {
        uint64_t n;
        if (!ms_json_u64(v, &n) || n < 1 || n > layers) {
            start_wrong(r);
            ms_text_printf(&r->wrong, "%s.%s: expected layer numbers from 1 to %u", path, name, (unsigned)layers);
            put_found(r, v);
            return;
        }
        if (kinds[n - 1] != KIND_NONE) {
            start_wrong(r);
            ms_text_printf(&r->wrong, "%s.%s: layer %u is listed %s", path, name, (unsigned)n,
                           kinds[n - 1] == kind ? "twice" : "as both MLA and KDA");
            return;
        }
        kinds[n - 1] = kind;
    }
}

static void read_layer_kinds(reading *r, k3_config *c) {
    uint8_t kinds[K3_MAX_LAYERS] = {KIND_NONE};
    if (c->layers == 0) { /* already reported; the lists cannot be judged, only missed */
        (void)get(r, LINEAR, "full_attn_layers");
        (void)get(r, LINEAR, "kda_layers");
        return;
    }
    size_t before = r->wrong.len + r->missing[LINEAR].len;
    read_layer_list(r, c->layers, "full_attn_layers", KIND_MLA, kinds);
    read_layer_list(r, c->layers, "kda_layers", KIND_KDA, kinds);
    if (r->wrong.len + r->missing[LINEAR].len != before) return;
    for (uint32_t i = 0; i < c->layers; i++) {
        if (kinds[i] == KIND_NONE) {
            start_wrong(r);
            ms_text_printf(&r->wrong, "%s: layer %u of %u is in neither full_attn_layers nor kda_layers",
                           section_path[LINEAR], (unsigned)(i + 1), (unsigned)c->layers);
            return;
        }
        c->is_mla[i] = kinds[i] == KIND_MLA;
    }
}

/* ------------------------------------------------------------------ relations between fields */

static void check_width(reading *r, const char *what, uint64_t a, uint64_t b) {
    uint64_t width;
    if (!__builtin_mul_overflow(a, b, &width) && width <= MAX_WIDTH) return;
    start_wrong(r);
    ms_text_printf(&r->wrong, "%s: expected at most %u, found %llu x %llu", what, (unsigned)MAX_WIDTH,
                   (unsigned long long)a, (unsigned long long)b);
}

static void check_relations(reading *r, const k3_config *c) {
    if (c->experts && c->top_k > c->experts) {
        start_wrong(r);
        ms_text_printf(&r->wrong, "text_config.num_experts_per_token: expected at most num_experts (%u), found %u",
                       (unsigned)c->experts, (unsigned)c->top_k);
    }
    if (c->layers && c->first_dense > c->layers) {
        start_wrong(r);
        ms_text_printf(&r->wrong,
                       "text_config.first_k_dense_replace: expected at most num_hidden_layers (%u), found %u",
                       (unsigned)c->layers, (unsigned)c->first_dense);
    }
    check_width(r, "KDA width (linear_attn_config.num_heads x head_dim)", c->kda_heads, c->kda_dim);
    check_width(r, "MLA query width (num_attention_heads x (qk_nope_head_dim + qk_rope_head_dim))", c->mla_heads,
                (uint64_t)c->nope + c->extra);
    check_width(r, "MLA key and value width (num_attention_heads x (qk_nope_head_dim + v_head_dim))", c->mla_heads,
                (uint64_t)c->nope + c->value);
    check_width(r, "shared expert width (num_shared_experts x moe_intermediate_size)", c->shared_experts,
                c->expert_inner);
}

/* ------------------------------------------------------------------ quantization */

static void expect_text(reading *r, const ms_json *obj, const char *path, const char *name, const char *value) {
    const ms_json *v = ms_json_get(obj, name);
    if (!v || (v->raw_len == strlen(value) && memcmp(v->raw, value, v->raw_len) == 0)) return;
    start_wrong(r);
    ms_text_printf(&r->wrong, "%s.%s: expected %s", path, name, value);
    put_found(r, v);
}

/* The patterns of tensors to leave alone are not evaluated: which tensors are quantised follows from their names. */
static void check_quantization(reading *r, const ms_json *owner, const char *path) {
    const ms_json *q = ms_json_get(owner, "quantization_config");
    if (!q || q->type == MS_JSON_NULL) return;
    if (q->type != MS_JSON_OBJECT) {
        start_wrong(r);
        ms_text_printf(&r->wrong, "%s: expected an object", path);
        put_found(r, q);
        return;
    }
    expect_text(r, q, path, "format", "\"mxfp4-pack-quantized\"");
    const ms_json *groups = ms_json_get(q, "config_groups");
    if (!groups) return;
    for (const ms_json *g = groups->child; g; g = g->next) {
        expect_text(r, g, path, "format", "\"mxfp4-pack-quantized\"");
        const ms_json *w = ms_json_get(g, "weights");
        expect_text(r, w, path, "num_bits", "4");
        expect_text(r, w, path, "type", "\"float\"");
        expect_text(r, w, path, "group_size", "32");
        expect_text(r, w, path, "scale_dtype", "\"torch.uint8\"");
    }
}

/* ------------------------------------------------------------------ entry points */

bool k3_config_matches(const ms_json *root) { return ms_json_is_string(ms_json_get(root, "model_type"), "kimi_k3"); }

static bool check_frame(reading *r) {
    r->part[TEXT] = ms_json_get(r->root, "text_config");
    r->part[LINEAR] = ms_json_get(r->part[TEXT], "linear_attn_config");
    const ms_json *type = ms_json_get(r->root, "model_type");
    if (!k3_config_matches(r->root)) {
        start_wrong(r);
        ms_text_puts(&r->wrong, "model_type: expected \"kimi_k3\"");
        if (type) put_found(r, type);
        else ms_text_puts(&r->wrong, ", found nothing");
    }
    type = ms_json_get(r->part[TEXT], "model_type");
    if (type && !ms_json_is_string(type, "kimi_linear")) {
        start_wrong(r);
        ms_text_puts(&r->wrong, "text_config.model_type: expected \"kimi_linear\"");
        put_found(r, type);
    }
    if (!r->part[TEXT] || r->part[TEXT]->type != MS_JSON_OBJECT) {
        start_wrong(r);
        ms_text_puts(&r->wrong, "text_config: expected an object");
        if (r->part[TEXT]) put_found(r, r->part[TEXT]);
        else ms_text_puts(&r->wrong, ", found nothing");
        return false;
    }
    if (r->part[LINEAR] && r->part[LINEAR]->type != MS_JSON_OBJECT) {
        start_wrong(r);
        ms_text_printf(&r->wrong, "%s: expected an object", section_path[LINEAR]);
        put_found(r, r->part[LINEAR]);
        return false;
    }
    return true;
}

static ms_status conclude(reading *r, const char *file, ms_error *err) {
    ms_text all = {0};
    for (int i = 0; i < SECTIONS; i++) {
        if (!r->missing[i].len) continue;
        if (all.len) ms_text_puts(&all, "; ");
        ms_text_printf(&all, "missing in %s: ", section_path[i]);
        ms_text_append(&all, r->missing[i].data, r->missing[i].len);
    }
    if (all.len && r->wrong.len) ms_text_puts(&all, "; ");
    if (r->wrong.len) ms_text_append(&all, r->wrong.data, r->wrong.len);
    bool failed = all.failed || r->wrong.failed || r->missing[TEXT].failed || r->missing[LINEAR].failed;
    ms_status status = MS_OK;
    if (failed) status = ms_fail_memory(err, "list of config fields", all.cap);
    else if (all.len) status = ms_fail(err, MS_ERR_FORMAT, "%s: %s", file, all.data);
    ms_text_free(&all);
    ms_text_free(&r->wrong);
    for (int i = 0; i < SECTIONS; i++) ms_text_free(&r->missing[i]);
    return status;
}

ms_status k3_config_parse(k3_config *out, const ms_json *root, const char *file, ms_error *err) {
    reading r = {.root = root};
    k3_config c = {0};
    if (check_frame(&r)) {
        read_uints(&r, &c);
        read_floats(&r, &c);
        read_fixed(&r);
        read_flags(&r, &c);
        read_token_id(&r, &c, "bos_token_id", &c.bos);
        read_token_id(&r, &c, "eos_token_id", &c.eos);
        read_token_id(&r, &c, "pad_token_id", &c.pad);
        read_layer_kinds(&r, &c);
        check_relations(&r, &c);
        check_quantization(&r, r.part[TEXT], "text_config.quantization_config");
        check_quantization(&r, root, "quantization_config");
    }
    ms_status status = conclude(&r, file, err);
    if (status == MS_OK) *out = c;
    return status;
}
