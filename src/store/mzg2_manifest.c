#include "store/mzg2_manifest.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/bytes.h"
#include "io/file.h"

enum { MANIFEST_VERSION = 1, MAX_MANIFEST = 64 << 20, PROBE_BYTES = 4096, MAX_LAYERS = 1 << 16 };
static const char manifest_format[] = "mzg2-store";
static const char seal_key[] = "manifest_sha256";

void ms_mzg2_layer_name(char out[MS_MZG2_NAME], uint32_t layer) {
    (void)snprintf(out, MS_MZG2_NAME, "layer-%03u.mzg2", (unsigned)layer);
}
void ms_mzg2_signs_name(char out[MS_MZG2_NAME], uint32_t layer) {
    (void)snprintf(out, MS_MZG2_NAME, "cold/layer-%03u.nz", (unsigned)layer);
}

/* ------------------------------------------------------------------ identity */

ms_mzg2_source ms_mzg2_source_of(const ms_checkpoint *c, const ms_expert_table *experts, ms_expert_shape shape,
                                 const char *lane) {
    ms_mzg2_source s = {.checkpoint = c, .experts = experts, .shape = shape, .order = shape.order, .lane = lane};
    s.shape.order = MS_ORDER_W1_W2_W3;
    return s;
}

ms_status ms_mzg2_identify(ms_mzg2_identity *out, const ms_mzg2_source *source, ms_error *err) {
    const ms_expert_table *t = source->experts;
    *out = (ms_mzg2_identity){.layout_digest = ms_checkpoint_layout_digest(source->checkpoint),
                              .layers = t->layer_count,
                              .experts = t->expert_count,
                              .shape = source->shape};
    (void)snprintf(out->lane, sizeof out->lane, "%s", source->lane);
    size_t length = t->expert_bytes < PROBE_BYTES ? (size_t)t->expert_bytes : PROBE_BYTES;
    ms_sha256 *sha = NULL;
    MS_TRY(ms_sha256_begin(&sha, err));
    for (uint32_t l = 0; l < t->layer_count; l++) {
        const uint32_t experts[3] = {0, t->expert_count / 2, t->expert_count - 1};
        for (int i = 0; i < 3; i++) {
            uint8_t bytes[PROBE_BYTES];
            const ms_expert_extent *x = &t->extents[(size_t)l * t->expert_count + experts[i]];
            ms_status st = ms_checkpoint_read_shard(source->checkpoint, x->shard, x->offset, bytes, length, err);
            if (st != MS_OK) {
                ms_sha256_drop(sha);
                return st;
            }
            ms_sha256_add(sha, bytes, length);
        }
    }
    ms_sha256_end(sha, out->probe);
    return MS_OK;
}

ms_status ms_mzg2_same_identity(const ms_mzg2_identity *want, const ms_mzg2_identity *found, const char *where,
                                ms_error *err) {
    if (strcmp(want->lane, found->lane) != 0)
        return ms_fail(err, MS_ERR_FORMAT, "%s: model.lane: expected %s, found %s", where, want->lane, found->lane);
    if (want->shape.hidden != found->shape.hidden || want->shape.inner != found->shape.inner)
        return ms_fail(err, MS_ERR_FORMAT, "%s: model widths: expected %u and %u, found %u and %u", where,
                       (unsigned)want->shape.hidden, (unsigned)want->shape.inner, (unsigned)found->shape.hidden,
                       (unsigned)found->shape.inner);
    if (want->layers != found->layers || want->experts != found->experts)
        return ms_fail(err, MS_ERR_FORMAT, "%s: model: expected %u layers of %u experts, found %u of %u", where,
                       (unsigned)want->layers, (unsigned)want->experts, (unsigned)found->layers,
                       (unsigned)found->experts);
    if (want->layout_digest != found->layout_digest)
        return ms_fail(err, MS_ERR_FORMAT,
                       "%s: model.layout: expected %016llx, found %016llx: made from another checkpoint", where,
                       (unsigned long long)want->layout_digest, (unsigned long long)found->layout_digest);
    if (memcmp(want->probe, found->probe, sizeof want->probe) != 0) {
        char a[MS_SHA256_HEX], b[MS_SHA256_HEX];
        ms_sha256_hex(a, want->probe);
        ms_sha256_hex(b, found->probe);
        return ms_fail(err, MS_ERR_FORMAT, "%s: model.probe: expected %.16s, found %.16s: made from other weights",
                       where, a, b);
    }
    return MS_OK;
}

/* ------------------------------------------------------------------ writing */

static void put_sha(ms_text *out, const char *key, const uint8_t sha[MS_SHA256_BYTES]) {
    char hex[MS_SHA256_HEX];
    ms_sha256_hex(hex, sha);
    ms_text_printf(out, "\"%s\":\"%s\"", key, hex);
}

void ms_mzg2_write_identity(ms_text *out, const ms_mzg2_identity *id, const ms_mzg2_parameters *p) {
    ms_text_puts(out, "\"model\":{\"lane\":");
    ms_json_write_string(out, id->lane, strlen(id->lane));
    ms_text_printf(out, ",\"layout\":\"%016llx\",", (unsigned long long)id->layout_digest);
    put_sha(out, "probe", id->probe);
    ms_text_printf(out,
                   ",\"layers\":%u,\"experts\":%u,\"hidden\":%u,\"inner\":%u},\"parameters\":{\"tables\":%u,"
                   "\"column_classes\":%u,\"sample\":%u,\"signs\":%s}",
                   (unsigned)id->layers, (unsigned)id->experts, (unsigned)id->shape.hidden, (unsigned)id->shape.inner,
                   (unsigned)p->tables, (unsigned)p->column_classes, (unsigned)p->sample, p->signs ? "true" : "false");
}

void ms_mzg2_write_layer(ms_text *out, const ms_mzg2_layer_record *r) {
    char name[MS_MZG2_NAME];
    ms_mzg2_layer_name(name, r->layer);
    ms_text_printf(out, "{\"layer\":%u,\"file\":\"%s\",\"bytes\":%llu,\"payload_bytes\":%llu,", (unsigned)r->layer,
                   name, (unsigned long long)r->bytes, (unsigned long long)r->payload_bytes);
    put_sha(out, "sha256", r->sha);
    ms_text_puts(out, ",");
    put_sha(out, "source_sha256", r->source_sha);
    ms_text_puts(out, ",");
    put_sha(out, "canonical_sha256", r->canonical_sha);
    ms_text_printf(out, ",\"signs_bytes\":%llu,", (unsigned long long)r->signs_bytes);
    put_sha(out, "signs_sha256", r->signs_sha);
    ms_text_puts(out, "}");
}

void ms_mzg2_write_shard(ms_text *out, const ms_mzg2_shard_record *r) {
    ms_text_puts(out, "{\"shard\":");
    ms_json_write_string(out, r->file, strlen(r->file));
    ms_text_printf(out, ",\"bytes\":%llu,", (unsigned long long)r->bytes);
    put_sha(out, "sha256", r->sha);
    ms_text_puts(out, "}");
}

ms_status ms_mzg2_seal(ms_text *text, const char *key, uint8_t sha[MS_SHA256_BYTES], ms_error *err) {
    ms_sha256 *s = NULL;
    if (text->failed) return ms_fail_memory(err, "a manifest", text->cap);
    MS_TRY(ms_sha256_begin(&s, err));
    ms_sha256_add(s, text->data, text->len);
    ms_sha256_add(s, "}", 1);
    ms_sha256_end(s, sha);
    ms_text_puts(text, ",");
    put_sha(text, key, sha);
    ms_text_puts(text, "}\n");
    return text->failed ? ms_fail_memory(err, "a manifest", text->cap) : MS_OK;
}

void ms_mzg2_manifest_write(ms_text *out, const ms_mzg2_manifest *m) {
    uint64_t stored = 0, payload = 0, experts = (uint64_t)m->identity.layers * m->identity.experts;
    ms_text_printf(out, "{\"format\":\"%s\",\"version\":%d,\"tool\":\"moonshine " MS_VERSION "\",\n", manifest_format,
                   MANIFEST_VERSION);
    ms_mzg2_write_identity(out, &m->identity, &m->parameters);
    ms_text_puts(out, ",\n\"source\":[");
    for (size_t i = 0; i < m->shard_count; i++) {
        ms_text_puts(out, i ? ",\n" : "\n");
        ms_mzg2_write_shard(out, &m->shards[i]);
    }
    ms_text_puts(out, "],\n\"layers\":[");
    for (uint32_t i = 0; i < m->identity.layers; i++) {
        ms_text_puts(out, i ? ",\n" : "\n");
        ms_mzg2_write_layer(out, &m->layers[i]);
        stored += m->layers[i].bytes;
        payload += m->layers[i].payload_bytes;
    }
    ms_text_printf(
        out, "],\n\"totals\":{\"experts\":%llu,\"canonical_bytes\":%llu,\"payload_bytes\":%llu,\"stored_bytes\":%llu}",
        (unsigned long long)experts, (unsigned long long)(experts * ms_expert_bytes(m->identity.shape)),
        (unsigned long long)payload, (unsigned long long)stored);
}

/* ------------------------------------------------------------------ parsing */

ms_status ms_mzg2_json_u64(uint64_t *out, const ms_json *v, const char *key, uint64_t most, const char *where,
                           ms_error *err) {
    const ms_json *m = ms_json_get(v, key);
    if (m && ms_json_u64(m, out) && *out <= most) return MS_OK;
    return ms_fail(err, MS_ERR_FORMAT, "%s: %s: expected a number up to %llu, found %.*s", where, key,
                   (unsigned long long)most, m ? (int)(m->raw_len < 40 ? m->raw_len : 40) : 7, m ? m->raw : "nothing");
}

ms_status ms_mzg2_json_sha(uint8_t out[MS_SHA256_BYTES], const ms_json *v, const char *key, const char *where,
                           ms_error *err) {
    const ms_json *m = ms_json_get(v, key);
    if (m && m->type == MS_JSON_STRING && ms_sha256_from_hex(out, m->str, m->str_len)) return MS_OK;
    return ms_fail(err, MS_ERR_FORMAT, "%s: %s: expected 64 hex digits, found %.*s", where, key,
                   m ? (int)(m->raw_len < 80 ? m->raw_len : 80) : 7, m ? m->raw : "nothing");
}

static ms_status get_u32(uint32_t *out, const ms_json *v, const char *key, const char *where, ms_error *err) {
    uint64_t n = 0;
    MS_TRY(ms_mzg2_json_u64(&n, v, key, UINT32_MAX, where, err));
    *out = (uint32_t)n;
    return MS_OK;
}

ms_status ms_mzg2_parse_layer(ms_mzg2_layer_record *out, const ms_json *v, const char *where, ms_error *err) {
    *out = (ms_mzg2_layer_record){0};
    MS_TRY(get_u32(&out->layer, v, "layer", where, err));
    MS_TRY(ms_mzg2_json_u64(&out->bytes, v, "bytes", INT64_MAX, where, err));
    MS_TRY(ms_mzg2_json_u64(&out->payload_bytes, v, "payload_bytes", INT64_MAX, where, err));
    MS_TRY(ms_mzg2_json_sha(out->sha, v, "sha256", where, err));
    MS_TRY(ms_mzg2_json_sha(out->source_sha, v, "source_sha256", where, err));
    MS_TRY(ms_mzg2_json_sha(out->canonical_sha, v, "canonical_sha256", where, err));
    MS_TRY(ms_mzg2_json_u64(&out->signs_bytes, v, "signs_bytes", INT64_MAX, where, err));
    return ms_mzg2_json_sha(out->signs_sha, v, "signs_sha256", where, err);
}

ms_status ms_mzg2_parse_shard(ms_mzg2_shard_record *out, const ms_json *v, const char *where, ms_error *err) {
    *out = (ms_mzg2_shard_record){0};
    const ms_json *name = ms_json_get(v, "shard");
    if (!name || name->type != MS_JSON_STRING || name->str_len == 0 || name->str_len >= sizeof out->file ||
        memchr(name->str, '/', name->str_len) || memchr(name->str, 0, name->str_len))
        return ms_fail(err, MS_ERR_FORMAT, "%s: shard: expected a plain file name", where);
    memcpy(out->file, name->str, name->str_len);
    MS_TRY(ms_mzg2_json_u64(&out->bytes, v, "bytes", INT64_MAX, where, err));
    return ms_mzg2_json_sha(out->sha, v, "sha256", where, err);
}

static ms_status parse_identity(ms_mzg2_manifest *m, const ms_json *root, const char *where, ms_error *err) {
    const ms_json *model = ms_json_get(root, "model"), *p = ms_json_get(root, "parameters");
    const ms_json *lane = ms_json_get(model, "lane"), *layout = ms_json_get(model, "layout");
    ms_mzg2_identity *id = &m->identity;
    if (!lane || lane->type != MS_JSON_STRING || lane->str_len >= sizeof id->lane)
        return ms_fail(err, MS_ERR_FORMAT, "%s: model.lane: expected a short name", where);
    memcpy(id->lane, lane->str, lane->str_len);
    char *end = NULL;
    if (layout && layout->type == MS_JSON_STRING && layout->str_len == 16)
        id->layout_digest = strtoull(layout->str, &end, 16);
    if (!end || *end) return ms_fail(err, MS_ERR_FORMAT, "%s: model.layout: expected 16 hex digits", where);
    MS_TRY(ms_mzg2_json_sha(id->probe, model, "probe", where, err));
    MS_TRY(get_u32(&id->layers, model, "layers", where, err));
    MS_TRY(get_u32(&id->experts, model, "experts", where, err));
    MS_TRY(get_u32(&id->shape.hidden, model, "hidden", where, err));
    MS_TRY(get_u32(&id->shape.inner, model, "inner", where, err));
    MS_TRY(get_u32(&m->parameters.tables, p, "tables", where, err));
    MS_TRY(get_u32(&m->parameters.column_classes, p, "column_classes", where, err));
    MS_TRY(get_u32(&m->parameters.sample, p, "sample", where, err));
    if (!ms_json_bool(ms_json_get(p, "signs"), &m->parameters.signs))
        return ms_fail(err, MS_ERR_FORMAT, "%s: parameters.signs: expected true or false", where);
    return MS_OK;
}

static ms_status parse_lists(ms_mzg2_manifest *m, const ms_json *root, const char *where, ms_error *err) {
    const ms_json *source = ms_json_get(root, "source"), *layers = ms_json_get(root, "layers");
    if (!source || source->type != MS_JSON_ARRAY)
        return ms_fail(err, MS_ERR_FORMAT, "%s: source: expected a list", where);
    if (!layers || layers->type != MS_JSON_ARRAY || layers->count != m->identity.layers || layers->count > MAX_LAYERS)
        return ms_fail(err, MS_ERR_FORMAT, "%s: layers: expected a list of %u, found %zu", where,
                       (unsigned)m->identity.layers, layers ? layers->count : 0);
    m->layers = calloc(layers->count + 1, sizeof *m->layers);
    m->shards = calloc(source->count + 1, sizeof *m->shards);
    if (!m->layers || !m->shards) return ms_fail_memory(err, where, layers->count * sizeof *m->layers);
    size_t n = 0;
    for (const ms_json *v = layers->child; v; v = v->next, n++) {
        MS_TRY(ms_mzg2_parse_layer(&m->layers[n], v, where, err));
        if (n && m->layers[n].layer <= m->layers[n - 1].layer)
            return ms_fail(err, MS_ERR_FORMAT, "%s: layers: expected ascending numbers, found %u after %u", where,
                           (unsigned)m->layers[n].layer, (unsigned)m->layers[n - 1].layer);
    }
    for (const ms_json *v = source->child; v; v = v->next)
        MS_TRY(ms_mzg2_parse_shard(&m->shards[m->shard_count++], v, where, err));
    return MS_OK;
}

ms_status ms_mzg2_check_sealed(uint8_t sha[MS_SHA256_BYTES], const char *text, size_t length, const char *key,
                               const char *where, ms_error *err) {
    char tail[64 + MS_SHA256_HEX];
    size_t head = (size_t)snprintf(tail, sizeof tail, ",\"%s\":\"", key), end = head + 64 + 2;
    while (length && text[length - 1] == '\n') length--;
    if (length < end || memcmp(text + length - end, tail, head) != 0 ||
        !ms_sha256_from_hex(sha, text + length - 66, 64))
        return ms_fail(err, MS_ERR_FORMAT, "%s: %s: expected it as the last member", where, key);
    uint8_t found[MS_SHA256_BYTES];
    ms_sha256 *s = NULL;
    MS_TRY(ms_sha256_begin(&s, err));
    ms_sha256_add(s, text, length - end);
    ms_sha256_add(s, "}", 1);
    ms_sha256_end(s, found);
    if (memcmp(found, sha, sizeof found) == 0) return MS_OK;
    char a[MS_SHA256_HEX], b[MS_SHA256_HEX];
    ms_sha256_hex(a, sha);
    ms_sha256_hex(b, found);
    return ms_fail(err, MS_ERR_FORMAT, "%s: %s: expected %s, found %s: the file was changed", where, key, a, b);
}

static ms_status parse_manifest(ms_mzg2_manifest *m, const char *text, size_t length, const char *path, ms_error *err) {
    ms_json_doc *doc = NULL;
    const ms_json_limits limits = {.max_depth = 8, .reject_duplicates = true};
    MS_TRY(ms_json_parse(&doc, text, length, path, &limits, err));
    const ms_json *root = ms_json_root(doc);
    uint64_t version = 0;
    ms_status st = MS_OK;
    if (!ms_json_is_string(ms_json_get(root, "format"), manifest_format))
        st = ms_fail(err, MS_ERR_FORMAT, "%s: format: expected \"%s\"", path, manifest_format);
    if (st == MS_OK) st = ms_mzg2_json_u64(&version, root, "version", UINT32_MAX, path, err);
    if (st == MS_OK && version != MANIFEST_VERSION)
        st = ms_fail(err, MS_ERR_UNSUPPORTED, "%s: version: expected %d, found %llu", path, MANIFEST_VERSION,
                     (unsigned long long)version);
    if (st == MS_OK) st = ms_mzg2_check_sealed(m->sha, text, length, seal_key, path, err);
    if (st == MS_OK) st = parse_identity(m, root, path, err);
    if (st == MS_OK) st = parse_lists(m, root, path, err);
    ms_json_free(doc);
    return st;
}

ms_status ms_mzg2_manifest_read(ms_mzg2_manifest *out, const char *dir, ms_error *err) {
    char path[4096], *text = NULL;
    size_t length = 0;
    struct stat s;
    *out = (ms_mzg2_manifest){0};
    int n = snprintf(path, sizeof path, "%s/manifest.json", dir);
    if (n < 0 || (size_t)n >= sizeof path) return ms_fail(err, MS_ERR_USAGE, "%s: the path is too long", dir);
    if (stat(path, &s) != 0 && errno == ENOENT)
        return ms_fail(err, MS_ERR_FORMAT, "%s: expected a finished store with manifest.json, found none", dir);
    MS_TRY(ms_file_read_all(path, MAX_MANIFEST, &text, &length, err));
    ms_status st = parse_manifest(out, text, length, path, err);
    free(text);
    if (st != MS_OK) ms_mzg2_manifest_free(out);
    return st;
}

void ms_mzg2_manifest_free(ms_mzg2_manifest *m) {
    free(m->layers);
    free(m->shards);
    *m = (ms_mzg2_manifest){0};
}
