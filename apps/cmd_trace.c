/* cmd_trace.c: `moonshine trace`: evaluates tokens one by one and writes which experts each used (docs/formats.md). */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "command.h"
#include "interrupt.h"
#include "io/file.h"
#include "session/engine.h"
#include "token_ids.h"

typedef struct trace_flags {
    const char *ids, *ids_file, *out;
    uint32_t generate;
    int64_t seed;
    double temperature;
    bool replace;
} trace_flags;

#define FIELD(f) offsetof(trace_flags, f)
static const ms_option options[] = {
    {.name = "ids",
     .type = MS_OPTION_STRING,
     .offset = FIELD(ids),
     .arg = "LIST",
     .help = "Token ids to begin with, separated by commas or spaces."},
    {.name = "ids-file",
     .type = MS_OPTION_STRING,
     .offset = FIELD(ids_file),
     .arg = "FILE",
     .help = "The same from a file; '-' is standard input."},
    {.name = "generate",
     .type = MS_OPTION_U32,
     .offset = FIELD(generate),
     .arg = "N",
     .help = "Tokens to generate after them (default: 0)."},
    {.name = "temperature",
     .type = MS_OPTION_REAL,
     .offset = FIELD(temperature),
     .arg = "T",
     .low = 0,
     .high = 2,
     .help = "Of the generated tokens (default: 1, as greedy text of small models repeats itself)."},
    {.name = "seed",
     .type = MS_OPTION_I64,
     .offset = FIELD(seed),
     .arg = "N",
     .help = "Of the generated tokens (default: 0)."},
    {.name = "out", .type = MS_OPTION_STRING, .offset = FIELD(out), .arg = "FILE", .help = "The trace (needed)."},
    {.name = "force", .type = MS_OPTION_FLAG, .offset = FIELD(replace), .help = "Let --out replace an existing file."},
};

enum { FLUSH_BYTES = 1 << 20 };

typedef struct trace {
    ms_file_writer *out;
    ms_text text;        /* not yet written */
    ms_text ids, masks;  /* of the token at hand */
    uint32_t next_layer; /* routed layer whose request is expected */
    bool broken;         /* a request came that is not one token's */
    uint32_t top_k;
    uint64_t tokens, accesses, hits, fills, streams;
} trace;

static void observe(void *arg, uint32_t layer, const ms_want *wants, uint32_t count) {
    trace *t = arg;
    uint64_t mask = 0;
    if (layer != t->next_layer++ || count != t->top_k) t->broken = true;
    ms_text_puts(&t->ids, layer ? ",[" : "[");
    for (uint32_t i = 0; i < count; i++) {
        ms_text_printf(&t->ids, "%s%u", i ? "," : "", wants[i].expert);
        if (wants[i].kind == MS_WANT_HIT) mask |= 1ull << (i & 63);
        t->hits += wants[i].kind == MS_WANT_HIT;
        t->fills += wants[i].kind == MS_WANT_FILL;
        t->streams += wants[i].kind == MS_WANT_STREAM;
    }
    t->accesses += count;
    ms_text_puts(&t->ids, "]");
    ms_text_printf(&t->masks, "%s%" PRIu64, layer ? "," : "", mask);
}

static ms_status flush(trace *t, ms_error *err) {
    if (t->text.failed || t->ids.failed || t->masks.failed) return ms_fail_memory(err, "trace", t->text.len);
    MS_TRY(ms_file_writer_write(t->out, t->text.data, t->text.len, err));
    t->text.len = 0;
    return MS_OK;
}

static void put_head(trace *t, const ms_engine *e) {
    ms_model_info info;
    ms_engine_info(e, &info);
    const ms_expert_table *x = &e->model.experts;
    t->top_k = info.top_k;
    ms_text_printf(&t->text,
                   "{\"format\":\"moonshine-routes\",\"version\":1,\"lane\":\"%s\",\"layout\":\"%016" PRIx64
                   "\",\"experts\":%u,\"top_k\":%u,\"slots\":%u,\"half_life\":%d,\"expert_bytes\":%" PRIu64
                   ",\"layers\":[",
                   info.lane, info.layout_digest, x->expert_count, info.top_k, e->options.experts, MS_CACHE_HALF_LIFE,
                   x->expert_bytes);
    for (uint32_t i = 0; i < x->layer_count; i++) ms_text_printf(&t->text, "%s%u", i ? "," : "", x->layers[i]);
    ms_text_puts(&t->text, "]}\n");
}

static ms_status one_token(trace *t, const ms_engine *e, ms_session *s, uint32_t id, ms_error *err) {
    t->ids.len = t->masks.len = 0;
    t->next_layer = 0;
    MS_TRY(ms_session_forward(s, &id, 1, NULL, err));
    if (t->broken || t->next_layer != e->model.experts.layer_count)
        return ms_fail(err, MS_ERR_INTERNAL, "token %" PRIu64 ": requests are not one a layer", t->tokens);
    ms_text_printf(&t->text, "{\"tok\":%u,\"layers\":[", id);
    ms_text_append(&t->text, t->ids.data, t->ids.len);
    ms_text_puts(&t->text, "],\"hits\":[");
    ms_text_append(&t->text, t->masks.data, t->masks.len);
    ms_text_puts(&t->text, "]}\n");
    t->tokens++;
    return t->text.len < FLUSH_BYTES ? MS_OK : flush(t, err);
}

static ms_status evaluate(trace *t, const ms_engine *e, ms_session *s, const trace_flags *f, const ms_ids *ids,
                          ms_error *err) {
    ms_model_info info;
    ms_engine_info(e, &info);
    put_head(t, e);
    for (size_t i = 0; i < ids->count; i++) MS_TRY(one_token(t, e, s, ids->data[i], err));
    ms_sampler sampler;
    ms_sampler_greedy(&sampler);
    sampler.temperature = f->temperature;
    sampler.seed = f->seed;
    for (uint32_t i = 0; i < f->generate; i++) {
        uint32_t id;
        MS_TRY(ms_sampler_pick(&sampler, ms_session_logits(s), info.vocab, &id, err));
        MS_TRY(one_token(t, e, s, id, err));
    }
    ms_text_printf(&t->text,
                   "{\"end\":{\"tokens\":%" PRIu64 ",\"accesses\":%" PRIu64 ",\"hits\":%" PRIu64 ",\"fills\":%" PRIu64
                   ",\"streams\":%" PRIu64 "}}\n",
                   t->tokens, t->accesses, t->hits, t->fills, t->streams);
    return flush(t, err);
}

static ms_status record(trace *t, ms_engine *e, const trace_flags *f, const ms_ids *ids, ms_error *err) {
    ms_session *s = NULL;
    if (e->model.info.top_k > 64)
        return ms_fail(err, MS_ERR_UNSUPPORTED, "a trace has masks for 64 experts a token, the model uses %u",
                       e->model.info.top_k);
    MS_TRY(ms_session_create(&s, e, err));
    ms_interrupt_session(s);
    ms_expert_service_observe(e->experts, observe, t);
    ms_status st = evaluate(t, e, s, f, ids, err);
    ms_expert_service_observe(e->experts, NULL, NULL);
    ms_interrupt_session(NULL);
    ms_session_destroy(s);
    return st;
}

static ms_status run(const char *program, const trace_flags *f, const ms_model_flags *mf, const char *model,
                     ms_error *err) {
    ms_ids ids = {0};
    trace t = {0};
    ms_engine *e = NULL;
    if (!f->out) return ms_fail(err, MS_ERR_USAGE, "--out: a file is needed");
    ms_status st = ms_token_ids_read(f->ids, f->ids_file, &ids, err);
    ms_engine_options o = ms_model_flags_engine(mf, model);
    if (!o.range_rows) o.range_rows = 1;
    o.log = ms_command_log;
    o.log_arg = (void *)(uintptr_t)program;
    ms_interrupt_watch();
    if (st == MS_OK) st = ms_file_writer_open(&t.out, f->out, f->replace, err); /* before the long load */
    if (st == MS_OK) st = ms_engine_open(&e, &o, err);
    if (st == MS_OK) st = record(&t, e, f, &ids, err);
    if (st == MS_OK && ms_interrupt_code()) st = ms_fail(err, MS_ERR_CANCELLED, "interrupted");
    if (st == MS_OK) {
        st = ms_file_writer_commit(t.out, err);
        t.out = NULL;
    }
    ms_interrupt_unwatch();
    ms_file_writer_abort(t.out);
    if (st == MS_OK)
        printf("%" PRIu64 " tokens, %" PRIu64 " accesses, %.1f %% hits\n", t.tokens, t.accesses,
               t.accesses ? 100.0 * (double)t.hits / (double)t.accesses : 0);
    ms_engine_close(e);
    ms_ids_free(&ids);
    ms_text_free(&t.text);
    ms_text_free(&t.ids);
    ms_text_free(&t.masks);
    return st;
}

int ms_command_trace(int argc, char **argv) {
    trace_flags flags = {.temperature = 1};
    ms_model_flags model_flags = ms_model_flags_default();
    const ms_option_group groups[] = {
        {"Options", options, sizeof options / sizeof options[0], &flags},
        {"Model", ms_model_option_table, ms_model_option_count, &model_flags},
    };
    const ms_option_set set = {.program = "moonshine trace",
                               .synopsis = "[MODEL] --out FILE (--ids LIST | --ids-file FILE) [options]",
                               .about =
                                   "Evaluates tokens one by one, from an empty expert cache, and writes the experts of "
                                   "every layer and which of them were cached. The file tells what was said: it is "
                                   "private (0600).",
                               .groups = groups,
                               .group_count = 2,
                               .max_args = 1};
    ms_option_result r;
    int code = ms_command_parse(&set, argc, argv, &r);
    if (code >= 0) return code;
    const char *model = ms_command_model(set.program, &r, 0);
    if (!model) return 2;
    ms_error err;
    ms_status st = run(set.program, &flags, &model_flags, model, &err);
    return ms_interrupt_end(set.program, st, &err, "");
}
