/* mimo_config.c: reads and checks config.json of a MiMo V2.6 checkpoint.
 *
 * Owns: nothing.  Threads: any.
 * Invariants: after success every width fits 32 bits and every layer has one kind.
 * Errors: MS_ERR_FORMAT with everything that is missing or wrong in one message (cut when there is no more room).
 */
#include "lane/mimo26/mimo_config.h"

#include "base/text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* No dimension of a model comes near these; they keep all products of two or three far from overflow. */
enum { MAX_DIM = 1 << 24, MAX_HEADS = 1 << 16, MAX_EXPERTS = 1 << 16, MAX_WIDTH = 1 << 28 };

typedef struct uint_field {
    const char *name;
    const char *fallback; /* taken when the field is absent or null; NULL: required */
    size_t offset;
    uint32_t min, max, multiple;
} uint_field;

#define AT(member) offsetof(mimo_config, member)
#define OF(kind, member)                                                                                               \
    (offsetof(mimo_config, attention) + (kind) * sizeof(mimo_attention) + offsetof(mimo_attention, member))

static const uint_field uint_fields[] = {
    {"vocab_size", NULL, AT(vocab), 1, MAX_DIM, 1},
    {"hidden_size", NULL, AT(hidden), 32, MAX_DIM, 32},
    {"num_hidden_layers", NULL, AT(layers), 1, MIMO_MAX_LAYERS, 1},
    {"intermediate_size", NULL, AT(dense_width), 1, MAX_DIM, 1},
    {"moe_intermediate_size", NULL, AT(expert_inner), 32, MAX_DIM, 32},
    {"n_routed_experts", NULL, AT(experts), 1, MAX_EXPERTS, 1},
    {"num_experts_per_tok", NULL, AT(top_k), 1, MIMO_MAX_TOP_K, 1},
    {"num_attention_heads", NULL, OF(MIMO_FULL, heads), 1, MAX_HEADS, 1},
    {"num_key_value_heads", NULL, OF(MIMO_FULL, kv_heads), 1, MAX_HEADS, 1},
    {"head_dim", NULL, OF(MIMO_FULL, key), 1, MAX_DIM, 1},
    {"v_head_dim", NULL, OF(MIMO_FULL, value), 1, MAX_DIM, 1},
    {"swa_num_attention_heads", "num_attention_heads", OF(MIMO_SLIDING, heads), 1, MAX_HEADS, 1},
    {"swa_num_key_value_heads", "num_key_value_heads", OF(MIMO_SLIDING, kv_heads), 1, MAX_HEADS, 1},
    {"swa_head_dim", "head_dim", OF(MIMO_SLIDING, key), 1, MAX_DIM, 1},
    {"swa_v_head_dim", "v_head_dim", OF(MIMO_SLIDING, value), 1, MAX_DIM, 1},
    {"sliding_window", NULL, OF(MIMO_SLIDING, window), 1, MAX_DIM, 1},
};

/* Fields with one accepted value, compared as JSON source text. */
typedef struct fixed_field {
    const char *name, *value;
    bool required;
} fixed_field;

static const fixed_field fixed_fields[] = {
    {"attention_projection_layout", "\"fused_qkv\"", true},
    {"scoring_func", "\"sigmoid\"", true},
    {"topk_method", "\"noaux_tc\"", false},
    {"hidden_act", "\"silu\"", false},
    {"attention_bias", "false", false},
    {"n_group", "1", false},
    {"topk_group", "1", false},
    {"tie_word_embeddings", "false", false},
};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

typedef struct reading {
    const ms_json *root;
    ms_text missing; /* names, comma-separated */
    ms_text wrong;   /* sentences, semicolon-separated */
} reading;

/* What the file has, cut to a readable length. */
static void put_found(reading *r, const ms_json *v) {
    const size_t most = 40;
    ms_text_puts(&r->wrong, ", found ");
    ms_text_append(&r->wrong, v->raw, v->raw_len < most ? v->raw_len : most);
    if (v->raw_len > most) ms_text_puts(&r->wrong, "...");
}

static void wrong(reading *r, const char *name, const char *expected, const ms_json *found) {
    if (r->wrong.len) ms_text_puts(&r->wrong, "; ");
    ms_text_printf(&r->wrong, "%s: expected %s", name, expected);
    if (found) put_found(r, found);
}

/* NULL for absent and null. */
static const ms_json *optional(const reading *r, const char *name) {
    const ms_json *v = ms_json_get(r->root, name);
    return v && v->type != MS_JSON_NULL ? v : NULL;
}

static const ms_json *required(reading *r, const char *name) {
    const ms_json *v = optional(r, name);
    if (v) return v;
    if (r->missing.len) ms_text_puts(&r->missing, ", ");
    ms_text_puts(&r->missing, name);
    return NULL;
}

static bool same_text(const ms_json *v, const char *text) {
    return v->raw_len == strlen(text) && memcmp(v->raw, text, v->raw_len) == 0;
}

static void read_uints(reading *r, mimo_config *c) {
    for (size_t i = 0; i < COUNT(uint_fields); i++) {
        const uint_field *f = &uint_fields[i];
        const char *name = f->name;
        const ms_json *v = optional(r, name);
        if (!v && f->fallback) v = optional(r, name = f->fallback);
        if (!v && f->fallback) continue; /* its own row tells */
        if (!v) v = required(r, name);
        if (!v) continue;
        uint64_t n;
        if (!ms_json_u64(v, &n) || n < f->min || n > f->max || n % f->multiple != 0) {
            ms_text expected = {0};
            ms_text_printf(&expected, "an integer from %u to %u", (unsigned)f->min, (unsigned)f->max);
            if (f->multiple > 1) ms_text_printf(&expected, ", a multiple of %u", (unsigned)f->multiple);
            wrong(r, name, expected.data ? expected.data : "an integer", v);
            ms_text_free(&expected);
            continue;
        }
        uint32_t narrow = (uint32_t)n;
        memcpy((char *)c + f->offset, &narrow, sizeof narrow);
    }
}

static void read_fixed(reading *r) {
    for (size_t i = 0; i < COUNT(fixed_fields); i++) {
        const fixed_field *f = &fixed_fields[i];
        const ms_json *v = f->required ? required(r, f->name) : optional(r, f->name);
        if (v && !same_text(v, f->value)) wrong(r, f->name, f->value, v);
    }
    const ms_json *shared = optional(r, "n_shared_experts");
    if (shared && !same_text(shared, "0")) wrong(r, "n_shared_experts", "null or 0", shared);
    const ms_json *scaling = optional(r, "rope_scaling");
    if (scaling && !ms_json_is_string(ms_json_get(scaling, "type"), "default") &&
        !ms_json_is_string(ms_json_get(scaling, "rope_type"), "default"))
        wrong(r, "rope_scaling", "null", scaling);
}

/* A number strictly between the bounds; `absent` stands for a field that may be missing, NaN for one that may not. */
static double read_number(reading *r, const char *name, double above, double below, double absent) {
    const ms_json *v = absent == absent ? optional(r, name) : required(r, name);
    if (!v) return absent;
    double d;
    if (ms_json_double(v, &d) && d > above && d < below && (float)d > (float)above) return d;
    ms_text expected = {0};
    ms_text_printf(&expected, "a number between %g and %g", above, below);
    wrong(r, name, expected.data ? expected.data : "a number", v);
    ms_text_free(&expected);
    return above;
}

static bool read_flag(reading *r, const char *name, bool must) {
    const ms_json *v = must ? required(r, name) : optional(r, name);
    bool flag = false;
    if (v && !ms_json_bool(v, &flag)) wrong(r, name, "true or false", v);
    return flag;
}

static void read_numbers(reading *r, mimo_config *c) {
    const double none = (double)NAN, most = 1e9;
    c->eps = (float)read_number(r, "layernorm_epsilon", 0, 1, none);
    c->value_scale = (float)read_number(r, "attention_value_scale", 0, 1e6, 1);
    c->routed_scale = (float)read_number(r, "routed_scaling_factor", 0, 1e6, 1);
    mimo_attention *full = &c->attention[MIMO_FULL], *sliding = &c->attention[MIMO_SLIDING];
    full->theta = read_number(r, "rope_theta", 1, most, none);
    sliding->theta = read_number(r, "swa_rope_theta", 1, most, full->theta);
    double factor = read_number(r, "partial_rotary_factor", 0, 1.0000001, none);
    for (int i = 0; i < MIMO_KINDS; i++) {
        mimo_attention *a = &c->attention[i];
        double rotary = factor > 0 ? (double)a->key * factor : 0;
        a->rotary = (uint32_t)rotary;
        if (a->key && factor > 0 && (a->rotary < 2 || a->rotary % 2 || a->rotary > a->key))
            wrong(r, "partial_rotary_factor", "an even number of rotated dimensions of every head",
                  ms_json_get(r->root, "partial_rotary_factor"));
    }
    c->renormalize = read_flag(r, "norm_topk_prob", true);
    full->sink = read_flag(r, "add_full_attention_sink_bias", false);
    sliding->sink = read_flag(r, "add_swa_attention_sink_bias", false);
    const ms_json *v = required(r, "max_position_embeddings");
    if (v && (!ms_json_u64(v, &c->max_context) || c->max_context == 0 || c->max_context > UINT64_C(1) << 32))
        wrong(r, "max_position_embeddings", "an integer from 1 to 4294967296", v);
}

/* A list of ids is what generation_config.json carries too; the first one ends a turn. */
static void read_eos(reading *r, mimo_config *c) {
    const ms_json *v = required(r, "eos_token_id"), *first = v && v->type == MS_JSON_ARRAY ? v->child : v;
    uint64_t n;
    if (!v) return;
    if (!first || !ms_json_u64(first, &n) || n >= c->vocab)
        wrong(r, "eos_token_id", "a token id below vocab_size", v);
    else
        c->eos = (uint32_t)n;
}

static void read_layers(reading *r, const mimo_config *c, const char *name, uint8_t *out) {
    const ms_json *list = required(r, name);
    if (!list) return;
    if (list->type != MS_JSON_ARRAY || (c->layers && list->count != c->layers)) {
        ms_text expected = {0};
        ms_text_printf(&expected, "an array with one number a layer (num_hidden_layers is %u)", (unsigned)c->layers);
        wrong(r, name, expected.data ? expected.data : "an array with one number a layer", list);
        ms_text_free(&expected);
        return;
    }
    size_t i = 0;
    for (const ms_json *v = list->child; v && i < MIMO_MAX_LAYERS; v = v->next, i++) {
        uint64_t n;
        if (!ms_json_u64(v, &n) || n > 1) {
            wrong(r, name, "0 or 1 for every layer", v);
            return;
        }
        out[i] = (uint8_t)n;
    }
}

static void check_attention(reading *r, const mimo_attention *a, const char *which) {
    ms_text expected = {0};
    if (!a->heads || !a->kv_heads || !a->key || !a->value) return; /* already told */
    if (a->heads % a->kv_heads) {
        ms_text_printf(&expected, "%u query heads to be a multiple of %u key heads", (unsigned)a->heads,
                       (unsigned)a->kv_heads);
        wrong(r, which, expected.data ? expected.data : "", NULL);
    } else if ((uint64_t)a->heads * (a->key > a->value ? a->key : a->value) > MAX_WIDTH) {
        ms_text_printf(&expected, "widths of at most %u", (unsigned)MAX_WIDTH);
        wrong(r, which, expected.data ? expected.data : "", NULL);
    }
    ms_text_free(&expected);
}

static void expect_member(reading *r, const ms_json *q, const char *name, const char *value, bool must) {
    const ms_json *v = ms_json_get(q, name);
    char path[64];
    (void)snprintf(path, sizeof path, "quantization_config.%s", name);
    if ((!v && must) || (v && !same_text(v, value))) wrong(r, path, value, v);
}

/* The list of layers left alone is not evaluated: which tensors are quantised follows from their names. */
static void check_quantization(reading *r) {
    const ms_json *q = required(r, "quantization_config");
    if (!q) return;
    expect_member(r, q, "quant_method", "\"fp8\"", true);
    expect_member(r, q, "fmt", "\"e4m3\"", false);
    expect_member(r, q, "store_dtype", "\"mxfp4\"", true);
    expect_member(r, q, "mxfp4_block_size", "32", false);
    const ms_json *block = ms_json_get(q, "weight_block_size");
    uint64_t rows, cols;
    bool good = block && block->type == MS_JSON_ARRAY && block->count == 2 && ms_json_u64(block->child, &rows) &&
                ms_json_u64(block->child->next, &cols) && rows == MIMO_FP8_BLOCK && cols == MIMO_FP8_BLOCK;
    if (!good) wrong(r, "quantization_config.weight_block_size", "[128, 128]", block);
}

static ms_status conclude(reading *r, const char *file, ms_error *err) {
    ms_text all = {0};
    if (r->missing.len) ms_text_printf(&all, "missing: %s", r->missing.data);
    if (all.len && r->wrong.len) ms_text_puts(&all, "; ");
    if (r->wrong.len) ms_text_append(&all, r->wrong.data, r->wrong.len);
    ms_status status = MS_OK;
    if (all.failed || r->wrong.failed || r->missing.failed)
        status = ms_fail_memory(err, "list of config fields", all.cap);
    else if (all.len)
        status = ms_fail(err, MS_ERR_FORMAT, "%s: %s", file, all.data);
    ms_text_free(&all);
    ms_text_free(&r->wrong);
    ms_text_free(&r->missing);
    return status;
}

bool mimo_config_matches(const ms_json *root) { return ms_json_is_string(ms_json_get(root, "model_type"), "mimo_v2"); }

ms_status mimo_config_parse(mimo_config *out, const ms_json *root, const char *file, ms_error *err) {
    reading r = {.root = root};
    mimo_config c = {0};
    const ms_json *type = ms_json_get(root, "model_type");
    if (!mimo_config_matches(root)) wrong(&r, "model_type", "\"mimo_v2\"", type);
    read_uints(&r, &c);
    read_fixed(&r);
    read_numbers(&r, &c);
    read_eos(&r, &c);
    read_layers(&r, &c, "hybrid_layer_pattern", c.kind);
    read_layers(&r, &c, "moe_layer_freq", c.moe);
    check_attention(&r, &c.attention[MIMO_FULL], "full attention");
    check_attention(&r, &c.attention[MIMO_SLIDING], "sliding attention");
    if (c.experts && c.top_k > c.experts)
        wrong(&r, "num_experts_per_tok", "at most n_routed_experts", ms_json_get(root, "num_experts_per_tok"));
    check_quantization(&r);
    MS_TRY(conclude(&r, file, err));
    c.chunks = c.attention[MIMO_FULL].kv_heads;
    *out = c;
    return MS_OK;
}

ms_status mimo_config_set_chunks(mimo_config *c, uint64_t chunks, ms_error *err) {
    for (uint32_t l = 0; l < c->layers; l++) {
        const mimo_attention *a = mimo_attention_of(c, l);
        if (chunks && a->heads % chunks == 0 && a->kv_heads % chunks == 0) continue;
        return ms_fail(
            err, MS_ERR_FORMAT,
            "model.safetensors.index.json: metadata.tp_size: expected a divisor of the %u query and %u key heads "
            "of layer %u, found %llu",
            (unsigned)a->heads, (unsigned)a->kv_heads, (unsigned)l, (unsigned long long)chunks);
    }
    c->chunks = (uint32_t)chunks;
    return MS_OK;
}
