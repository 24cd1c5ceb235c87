#include "session/text_model.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "io/file.h"

enum { MAX_CONFIG_BYTES = 1 << 20, MAX_PATH = 4096 };

/* An optional JSON file of the directory: *doc is NULL when it is not there.  What is there but cannot be read is an
 * error. */
static ms_status read_optional(const char *dir, const char *name, char path[MAX_PATH], ms_json_doc **doc, char **text,
                               ms_error *err) {
    *doc = NULL;
    *text = NULL;
    int n = snprintf(path, MAX_PATH, "%s/%s", dir, name);
    if (n < 0 || n >= MAX_PATH) return ms_fail(err, MS_ERR_USAGE, "path too long: %s", dir);
    struct stat entry;
    if (lstat(path, &entry) != 0 && errno == ENOENT) return MS_OK;
    size_t len = 0;
    MS_TRY(ms_file_read_all(path, MAX_CONFIG_BYTES, text, &len, err));
    return ms_json_parse(doc, *text, len, path, NULL, err);
}

/* Names of control ids must be ours. */
static ms_status check_names(const ms_tokenizer *t, const char *dir, ms_error *err) {
    char path[MAX_PATH], *text;
    ms_json_doc *doc;
    ms_status st = read_optional(dir, "tokenizer_config.json", path, &doc, &text, err);
    if (st == MS_OK && doc) st = ms_tokenizer_check_names(t, ms_json_root(doc), path, err);
    ms_json_free(doc);
    free(text);
    return st;
}

bool ms_text_model_stops(const ms_text_model *t, uint32_t id) {
    for (size_t i = 0; i < t->stop_count; i++)
        if (t->stops[i] == id) return true;
    return false;
}

uint32_t ms_text_model_ids(const ms_text_model *t) {
    uint32_t ids = ms_tokenizer_ids(t->tokenizer);
    return ids < t->info.vocab ? ids : t->info.vocab;
}

static ms_status add_stop(ms_text_model *out, const ms_json *v, const char *path, ms_error *err) {
    uint64_t id;
    if (!ms_json_u64(v, &id) || id >= out->info.vocab)
        return ms_fail(err, MS_ERR_FORMAT, "%s: eos_token_id: expected ids below %u, found %.*s", path, out->info.vocab,
                       v->raw_len < 60 ? (int)v->raw_len : 60, v->raw);
    if (ms_text_model_stops(out, (uint32_t)id)) return MS_OK;
    if (out->stop_count == MS_MAX_STOPS)
        return ms_fail(err, MS_ERR_FORMAT, "%s: eos_token_id: expected at most %d ids", path, MS_MAX_STOPS);
    out->stops[out->stop_count++] = (uint32_t)id;
    return MS_OK;
}

static ms_status read_stops(ms_text_model *out, const char *dir, ms_error *err) {
    char path[MAX_PATH], *text;
    ms_json_doc *doc;
    out->stops[out->stop_count++] = out->info.eos;
    ms_status st = read_optional(dir, "generation_config.json", path, &doc, &text, err);
    const ms_json *eos = st == MS_OK && doc ? ms_json_get(ms_json_root(doc), "eos_token_id") : NULL;
    if (eos && eos->type == MS_JSON_ARRAY) {
        for (const ms_json *v = eos->child; v && st == MS_OK; v = v->next) st = add_stop(out, v, path, err);
    } else if (eos && eos->type != MS_JSON_NULL) {
        st = add_stop(out, eos, path, err);
    }
    ms_json_free(doc);
    free(text);
    return st;
}

static ms_status read_info(ms_text_model *out, const char *dir, ms_error *err) {
    ms_json_doc *doc = NULL;
    char *text = NULL;
    MS_TRY(ms_checkpoint_read_config(dir, &doc, &text, err));
    out->lane = ms_lane_find(ms_json_root(doc));
    ms_status st = MS_OK;
    if (!out->lane) st = ms_fail(err, MS_ERR_UNSUPPORTED, "%s/config.json: no lane for this model_type", dir);
    if (st == MS_OK) {
        char file[MAX_PATH]; /* for messages: a longer one is cut */
        (void)snprintf(file, sizeof file, "%s/config.json", dir);
        void *config = calloc(1, out->lane->config_bytes);
        st = config ? out->lane->config_parse(config, ms_json_root(doc), file, err)
                    : ms_fail_memory(err, "model config", out->lane->config_bytes);
        if (st == MS_OK) out->lane->info(config, &out->info);
        free(config);
    }
    ms_json_free(doc);
    free(text);
    return st;
}

static ms_status open_hf(ms_text_model *out, const char *path, ms_error *err) {
    MS_TRY(ms_tokenizer_open_hf(&out->tokenizer, path, err));
    uint32_t ids = ms_tokenizer_ids(out->tokenizer);
    if (ids > out->info.vocab)
        return ms_fail(err, MS_ERR_FORMAT, "%s: ids up to %u, but config.json has vocab_size %u", path, ids - 1, out->info.vocab);
    if (!ms_tokenizer_control_name(out->tokenizer, out->info.eos))
        return ms_fail(err, MS_ERR_FORMAT, "%s: added_tokens: expected the eos_token_id %u of config.json, found nothing", path,
                       out->info.eos);
    /* The format's own control tokens. */
    void *parser = NULL;
    MS_TRY(out->lane->parser->create(&parser, out->tokenizer, MS_CHANNEL_RESPONSE, err));
    out->lane->parser->destroy(parser);
    return MS_OK;
}

static ms_status open_text(ms_text_model *out, const char *dir, ms_error *err) {
    MS_TRY(read_info(out, dir, err));
    char path[MAX_PATH];
    int n = snprintf(path, sizeof path, "%s/%s", dir, out->lane->rank_file);
    if (n < 0 || (size_t)n >= sizeof path) return ms_fail(err, MS_ERR_USAGE, "path too long: %s", dir);
    MS_TRY(read_stops(out, dir, err));
    if (out->lane->tokenizer_kind == MS_TOKENIZER_HF) return open_hf(out, path, err);
    MS_TRY(ms_tokenizer_open(&out->tokenizer, path, err));
    uint32_t ranks = ms_tokenizer_ranks(out->tokenizer);
    if (ranks + MS_CONTROL_COUNT != out->info.vocab)
        return ms_fail(err, MS_ERR_FORMAT, "%s: %u ranks and %d control ids, but config.json has vocab_size %u", path,
                       ranks, MS_CONTROL_COUNT, out->info.vocab);
    if (ranks + MS_CTL_END_OF_MSG != out->info.eos)
        return ms_fail(err, MS_ERR_FORMAT, "%s: end-of-message id is %u, but config.json has eos_token_id %u", path,
                       ranks + MS_CTL_END_OF_MSG, out->info.eos);
    return check_names(out->tokenizer, dir, err);
}

ms_status ms_text_model_open(ms_text_model *out, const char *dir, ms_error *err) {
    *out = (ms_text_model){0};
    ms_status st = open_text(out, dir, err);
    if (st != MS_OK) ms_text_model_close(out);
    return st;
}

void ms_text_model_close(ms_text_model *t) {
    ms_tokenizer_close(t->tokenizer);
    *t = (ms_text_model){0};
}
