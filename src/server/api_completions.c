/* api_completions.c: raw text completions: a prompt as text or token ids, no template. */
#include "server/api_write.h"

#include <stdlib.h>

/* ------------------------------------------------------------------ request */

enum { DEFAULT_TOKENS = 16 };

static const ms_api_field request_fields[] = {{"model", MS_RULE_USED, NULL},
                                              {"prompt", MS_RULE_USED, NULL},
                                              {"max_tokens", MS_RULE_USED, NULL},
                                              {"stream", MS_RULE_USED, NULL},
                                              {"stream_options", MS_RULE_USED, NULL},
                                              {"temperature", MS_RULE_USED, NULL},
                                              {"top_p", MS_RULE_USED, NULL},
                                              {"top_k", MS_RULE_USED, NULL},
                                              {"min_p", MS_RULE_USED, NULL},
                                              {"seed", MS_RULE_USED, NULL},
                                              {"stop", MS_RULE_USED, NULL},
                                              {"echo", MS_RULE_FALSE, NULL},
                                              {"n", MS_RULE_ONE, NULL},
                                              {"best_of", MS_RULE_ONE, NULL},
                                              {"suffix", MS_RULE_NULL, NULL},
                                              {"logprobs", MS_RULE_NULL, "chat completions have them"},
                                              {"presence_penalty", MS_RULE_ZERO, NULL},
                                              {"frequency_penalty", MS_RULE_ZERO, NULL},
                                              {"repetition_penalty", MS_RULE_ONE, NULL},
                                              {"logit_bias", MS_RULE_EMPTY, NULL},
                                              {"response_format", MS_RULE_NULL, "use chat completions"},
                                              {"grammar", MS_RULE_NULL, "use chat completions"},
                                              {"guided_*", MS_RULE_NULL, "use chat completions"},
                                              {"json_schema", MS_RULE_NULL, "use chat completions"},
                                              {NULL, MS_RULE_USED, NULL}};

static bool prompt_ids(ms_api_parse *p, const ms_api_path *at, const ms_json *list) {
    ms_api_request *r = p->r;
    if (!list->count) return ms_api_bad(p, at, "invalid_value", "expected at least one token");
    r->prompt_ids = calloc(list->count, sizeof *r->prompt_ids);
    if (!r->prompt_ids) return ms_api_fail_memory(p->err);
    ms_api_path item = {.up = at};
    for (const ms_json *v = list->child; v; v = v->next, item.index++) {
        uint64_t id;
        if (v->type != MS_JSON_NUMBER) {
            if (v->type == MS_JSON_STRING || v->type == MS_JSON_ARRAY) {
                return ms_api_bad(p, &item, "unsupported_value", "only one prompt is supported");
            }
            return ms_api_bad_type(p, &item, v, "a token id");
        }
        if (!ms_json_u64(v, &id) || id > UINT32_MAX) {
            return ms_api_bad(p, &item, "out_of_range", "expected a token id of the vocabulary");
        }
        r->prompt_ids[r->prompt_id_count++] = (uint32_t)id;
    }
    return true;
}

static bool prompt(ms_api_parse *p) {
    static const ms_api_path at = {.key = "prompt"};
    const ms_json *v = ms_api_any(p->root, "prompt");
    if (!v) return ms_api_bad(p, &at, "missing_field", "this field is required");
    if (v->type == MS_JSON_ARRAY && v->count == 1 && v->child->type == MS_JSON_STRING) v = v->child;
    if (v->type == MS_JSON_ARRAY) return prompt_ids(p, &at, v);
    if (v->type != MS_JSON_STRING) return ms_api_bad_type(p, &at, v, "a string or an array of token ids");
    if (!v->str_len) return ms_api_bad(p, &at, "invalid_value", "expected at least one character");
    p->r->has_prompt_text = true;
    p->r->prompt = v->str;
    p->r->prompt_len = v->str_len;
    return true;
}

static bool completions_parse(ms_api_request *out, const char *body, size_t len, const ms_api_limits *limits,
                              bool count_only, ms_api_error *err) {
    ms_api_parse p;
    ms_api_parse_init(&p, out, MS_API_COMPLETIONS, limits, count_only, err);
    bool good = ms_api_body(&p, body, len) && ms_api_model(&p) && ms_api_stream_options(&p) &&
                ms_api_max_tokens(&p, "max_tokens", NULL, DEFAULT_TOKENS, false) && ms_api_sampling(&p) &&
                ms_api_stops(&p, "stop", 4, true) && ms_api_fields(&p, NULL, p.root, request_fields) && prompt(&p);
    ms_api_parse_fini(&p);
    if (!good) ms_api_request_free(out);
    return good;
}

/* ------------------------------------------------------------------ response */

typedef struct completions_writer {
    ms_api_base base;
    ms_text head, text;
} completions_writer;

/* {..., "choices":[{...}] without the closing brace. */
static void put_choice(completions_writer *c, ms_text *out, const char *text, size_t len, const char *finish) {
    ms_text_append(out, c->head.data, c->head.len);
    ms_text_puts(out, ",\"choices\":[{\"index\":0,\"text\":");
    ms_api_put_n(out, text, len);
    ms_text_puts(out, ",\"logprobs\":null,\"finish_reason\":");
    if (finish)
        ms_api_put(out, finish);
    else
        ms_text_puts(out, "null");
    ms_text_puts(out, "}]");
    out->failed = out->failed || c->head.failed;
}

static void completions_start(ms_api_writer *w, ms_text *out, const ms_api_start *s) {
    (void)out;
    completions_writer *c = (completions_writer *)w;
    c->base.start = *s;
    c->base.started = true;
    ms_text_printf(&c->head, "{\"id\":\"cmpl-%s\",\"object\":\"text_completion\",\"created\":%lld,\"model\":", s->id,
                   (long long)s->created);
    ms_api_put(&c->head, s->model);
    ms_text_puts(&c->head, ",\"system_fingerprint\":");
    ms_api_put(&c->head, s->fingerprint);
}

static void completions_text(ms_api_writer *w, ms_text *out, ms_channel channel, const char *text, size_t len,
                             const ms_api_logprob *logprobs, size_t count) {
    (void)channel;
    (void)logprobs;
    (void)count;
    completions_writer *c = (completions_writer *)w;
    if (!c->base.r->stream) {
        ms_text_append(&c->text, text, len);
        return;
    }
    if (!len) return;
    ms_text_puts(out, "data: ");
    put_choice(c, out, text, len, NULL);
    ms_text_puts(out, c->base.r->include_usage == 1 ? ",\"usage\":null}\n\n" : "}\n\n");
}

static void finish_stream(completions_writer *c, ms_text *out, const ms_api_end *e) {
    int include = c->base.r->include_usage;
    ms_api_comment(out, e->comment);
    ms_text_puts(out, "data: ");
    put_choice(c, out, "", 0, ms_api_finish_reason(e->finish));
    if (include) ms_text_puts(out, ",\"usage\":");
    if (include < 0) ms_api_put_usage(out, &e->usage);
    if (include == 1) ms_text_puts(out, "null");
    ms_text_puts(out, "}\n\n");
    if (include == 1) {
        ms_text_puts(out, "data: ");
        ms_text_append(out, c->head.data, c->head.len);
        ms_text_puts(out, ",\"choices\":[],\"usage\":");
        ms_api_put_usage(out, &e->usage);
        ms_text_puts(out, "}\n\n");
    }
    ms_text_puts(out, "data: [DONE]\n\n");
}

static void completions_finish(ms_api_writer *w, ms_text *out, const ms_api_end *e) {
    completions_writer *c = (completions_writer *)w;
    c->base.ended = true;
    if (c->base.r->stream) {
        finish_stream(c, out, e);
        return;
    }
    put_choice(c, out, c->text.data, c->text.len, ms_api_finish_reason(e->finish));
    ms_text_puts(out, ",\"usage\":");
    ms_api_put_usage(out, &e->usage);
    ms_text_puts(out, "}");
    out->failed = out->failed || c->text.failed;
}

static void completions_error(ms_api_writer *w, ms_text *out, const ms_api_error *e, const char *request_id) {
    completions_writer *c = (completions_writer *)w;
    c->base.ended = true;
    if (c->base.r->stream && c->base.started)
        ms_api_stream_error(out, e);
    else
        ms_api_error_document(out, MS_API_COMPLETIONS, e, request_id);
}

/* Raw text has no calls. */
static void no_tool(ms_api_writer *w, ms_text *out, const char *text, size_t len) {
    (void)w;
    (void)out;
    (void)text;
    (void)len;
}

static void no_tool_end(ms_api_writer *w, ms_text *out) {
    (void)w;
    (void)out;
}

static void completions_destroy(ms_api_writer *w) {
    completions_writer *c = (completions_writer *)w;
    ms_api_base_free(&c->base);
    ms_text_free(&c->head);
    ms_text_free(&c->text);
    free(c);
}

static const ms_api_writer_ops completions_ops = {.start = completions_start,
                                                  .text = completions_text,
                                                  .tool_begin = no_tool,
                                                  .tool_arguments = no_tool,
                                                  .tool_end = no_tool_end,
                                                  .finish = completions_finish,
                                                  .error = completions_error,
                                                  .keepalive = ms_api_keepalive,
                                                  .progress = ms_api_progress,
                                                  .destroy = completions_destroy};

static ms_api_writer *completions_writer_create(const ms_api_request *r) {
    completions_writer *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    c->base.writer.ops = &completions_ops;
    c->base.r = r;
    return &c->base.writer;
}

const ms_api_codec ms_api_completions = {
    .kind = MS_API_COMPLETIONS, .name = "completions", .parse = completions_parse, .writer = completions_writer_create};
