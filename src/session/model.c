/* model.c: opening a checkpoint by its headers: lane, config, directory, experts. */
#include <stdio.h>
#include <stdlib.h>

#include "session/engine.h"
#include "store/bundle.h"

static ms_status find_lane(ms_model *m, const char *dir, ms_error *err) {
    ms_json_doc *doc = NULL;
    char *text = NULL;
    MS_TRY(ms_checkpoint_read_config(dir, &doc, &text, err));
    char file[512];
    (void)snprintf(file, sizeof file, "%s/config.json", dir);
    const ms_json *root = ms_json_root(doc);
    ms_status st = MS_OK;
    m->lane = ms_lane_find(root);
    if (!m->lane) {
        const ms_json *type = ms_json_get(root, "model_type");
        st = ms_fail(err, MS_ERR_UNSUPPORTED, "%s: model_type: expected %s, found %.*s", file,
                     ms_lane_model_types(), type ? (int)(type->raw_len < 64 ? type->raw_len : 64) : 7, type ? type->raw : "nothing");
    }
    if (st == MS_OK) {
        m->config = calloc(1, m->lane->config_bytes);
        st = m->config ? m->lane->config_parse(m->config, root, file, err)
                       : ms_fail_memory(err, "model config", m->lane->config_bytes);
    }
    ms_json_free(doc);
    free(text);
    return st;
}

/* A bundle's experts are in its own store. */
static ms_status open_bundled_store(ms_model *m, const char *dir, ms_error *err) {
    const ms_bundle *b = ms_checkpoint_bundle(m->checkpoint);
    if (!b) return MS_OK;
    char path[4096];
    int n = snprintf(path, sizeof path, "%s/%s", dir, ms_bundle_store_name);
    if (n < 0 || (size_t)n >= sizeof path) return ms_fail(err, MS_ERR_USAGE, "path too long: %s", dir);
    const ms_mzg2_source source = ms_mzg2_source_of(m->checkpoint, &m->experts, m->info.expert_shape, m->lane->name);
    MS_TRY(ms_mzg2_store_open(&m->store, path, &source, b->store_sha, err));
    ms_mzg2_store_bind(m->store, &m->experts);
    return MS_OK;
}

static ms_status open_parts(ms_model *m, const char *dir, ms_error *err) {
    MS_TRY(find_lane(m, dir, err));
    MS_TRY(ms_checkpoint_open(&m->checkpoint, dir, m->lane->tensor_needed, m->config, err));
    if (m->lane->config_bind) MS_TRY(m->lane->config_bind(m->config, m->checkpoint, err));
    m->lane->info(m->config, &m->info); /* again: what the index carries may show */
    MS_TRY(m->lane->layout_check(m->checkpoint, m->config, &m->experts, err));
    m->embed = ms_checkpoint_find(m->checkpoint, m->info.embed_name);
    if (!m->embed) return ms_fail(err, MS_ERR_FORMAT, "%s: tensor %s is missing", dir, m->info.embed_name);
    return open_bundled_store(m, dir, err);
}

ms_status ms_model_open(ms_model *out, const char *dir, ms_error *err) {
    *out = (ms_model){0};
    if (!dir || !*dir) return ms_fail(err, MS_ERR_USAGE, "no model directory given");
    ms_status st = open_parts(out, dir, err);
    if (st != MS_OK) ms_model_close(out);
    return st;
}

void ms_model_close(ms_model *m) {
    ms_expert_table_free(&m->experts);
    ms_mzg2_store_close(m->store);
    ms_checkpoint_close(m->checkpoint);
    free(m->config);
    *m = (ms_model){0};
}

const char *ms_model_source(const ms_model *m) { return ms_checkpoint_bundle(m->checkpoint) ? "bundle" : "safetensors"; }
const char *ms_model_expert_store(const ms_model *m) { return m->store ? "mzg2" : "raw"; }
