#include "session/text_model.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "io/file.h"

enum { MAX_CONFIG_BYTES = 1 << 20, MAX_PATH = 4096 };

/* tokenizer_config.json is optional: when it is there, its names must be ours. */
static ms_status check_names(const ms_tokenizer *t, const char *dir, ms_error *err) {
    char path[MAX_PATH];
    int n = snprintf(path, sizeof path, "%s/tokenizer_config.json", dir);
    if (n < 0 || (size_t)n >= sizeof path) return ms_fail(err, MS_ERR_USAGE, "path too long: %s", dir);
    struct stat entry;
    if (lstat(path, &entry) != 0 && errno == ENOENT) return MS_OK; /* what is there but cannot be read is an error */
    char *text = NULL;
    size_t len = 0;
    MS_TRY(ms_file_read_all(path, MAX_CONFIG_BYTES, &text, &len, err));
    ms_json_doc *doc = NULL;
    ms_status st = ms_json_parse(&doc, text, len, path, NULL, err);
    if (st == MS_OK) st = ms_tokenizer_check_names(t, ms_json_root(doc), path, err);
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

static ms_status open_text(ms_text_model *out, const char *dir, ms_error *err) {
    MS_TRY(read_info(out, dir, err));
    char path[MAX_PATH];
    int n = snprintf(path, sizeof path, "%s/%s", dir, out->lane->rank_file);
    if (n < 0 || (size_t)n >= sizeof path) return ms_fail(err, MS_ERR_USAGE, "path too long: %s", dir);
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
