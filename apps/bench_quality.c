/* bench_quality.c: `moonshine bench quality`: does this arithmetic choose the tokens that the reference chose?
 *
 * Every request of a set is rendered, evaluated and answered greedily.  --record keeps the answers in the set file;
 * without it they are compared with the recorded ones.  The recorded token is what goes into the timeline, so each
 * token is judged on the history the reference had, also behind a difference; up to the first difference that is what
 * free decoding gives.
 *
 * Owns: the set, engines and sessions of one call.  Threads: the inference thread.
 * Errors: as ms_command_fail prints them; a difference is exit code 1.
 */
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "bench.h"
#include "command.h"
#include "interrupt.h"
#include "io/file.h"
#include "quality_set.h"
#include "session/text_model.h"

typedef struct quality_flags {
    const char *set;
    uint32_t max_tokens; /* 0: not given */
    bool record, against, json;
} quality_flags;

enum { RECORD_TOKENS = 64 };

#define FIELD(f) offsetof(quality_flags, f)
static const ms_option options[] = {
    {.name = "set",
     .type = MS_OPTION_STRING,
     .offset = FIELD(set),
     .arg = "FILE",
     .help = "Chat requests and expected tokens, JSON lines."},
    {.name = "record",
     .type = MS_OPTION_FLAG,
     .offset = FIELD(record),
     .help = "Write what the model answers into FILE; needs --precision reference --static bf16."},
    {.name = "max-tokens",
     .type = MS_OPTION_U32,
     .offset = FIELD(max_tokens),
     .arg = "N",
     .min = 1,
     .max = 65536,
     .help = "Most tokens of an answer (default: 64 when recording, else as many as were recorded)."},
    {.name = "against-reference",
     .type = MS_OPTION_FLAG,
     .offset = FIELD(against),
     .help = "Evaluate each prompt on a second engine in reference precision and print the error of its last logits."},
    {.name = "json", .type = MS_OPTION_FLAG, .offset = FIELD(json), .help = "Print the report as JSON."},
};

/* What one prompt gave. */
typedef struct outcome {
    size_t family; /* index into run.families */
    ms_ids prompt;
    size_t tokens, equal;
    bool differs;
    size_t position; /* of the first difference, in the answer */
    uint32_t expected, got;
    double margin;
    double relative, max_abs; /* of the last prompt row, against the reference */
    uint64_t prefill_ns, decode_ns;
} outcome;

typedef struct quality_run {
    const char *program;
    const quality_flags *flags;
    const ms_model_flags *model_flags;
    ms_quality_set set;
    ms_text_model text;
    ms_model_info info;
    ms_engine *engine, *ref_engine;
    ms_session *session, *ref_session;
    outcome *outcomes; /* [set.count] */
    const char **families;
    size_t family_count;
    ms_text recorded; /* the new file */
} quality_run;

/* ------------------------------------------------------------------ one prompt */

static ms_status render(quality_run *r, const ms_quality_item *item, ms_ids *out, ms_error *err) {
    ms_segments segments = {0};
    ms_status st = r->text.lane->render(item->request, &segments, err);
    if (st == MS_OK) st = ms_segments_encode(&segments, r->text.tokenizer, out, err);
    ms_segments_free(&segments);
    return st;
}

/* The logit of `id` less the largest other one. */
static double margin_of(const float *logits, uint32_t vocab, uint32_t id) {
    double best = -INFINITY;
    for (uint32_t i = 0; i < vocab; i++)
        if (i != id && (double)logits[i] > best) best = (double)logits[i];
    return (double)logits[id] - best;
}

static ms_status pick(const quality_run *r, uint32_t *id, ms_error *err) {
    ms_sampler greedy;
    ms_sampler_greedy(&greedy);
    return ms_sampler_pick(&greedy, ms_session_logits(r->session), r->info.vocab, id, err);
}

static ms_status compare_logits(quality_run *r, outcome *o, ms_error *err) {
    ms_session_reset(r->ref_session);
    MS_TRY(ms_session_forward(r->ref_session, o->prompt.data, o->prompt.count, NULL, err));
    const float *a = ms_session_logits(r->session), *b = ms_session_logits(r->ref_session);
    double difference = 0, norm = 0;
    for (uint32_t i = 0; i < r->info.vocab; i++) {
        double d = (double)a[i] - (double)b[i];
        difference += d * d;
        norm += (double)b[i] * (double)b[i];
        if (fabs(d) > o->max_abs) o->max_abs = fabs(d);
    }
    o->relative = norm > 0 ? sqrt(difference / norm) : sqrt(difference);
    return MS_OK;
}

static ms_status record_answer(quality_run *r, const ms_quality_item *item, outcome *o, ms_ids *ids, double *margins,
                               uint32_t limit, ms_error *err) {
    for (;;) {
        uint32_t id;
        MS_TRY(pick(r, &id, err));
        margins[ids->count] = margin_of(ms_session_logits(r->session), r->info.vocab, id);
        MS_TRY(ms_ids_push(ids, id, err));
        o->tokens = o->equal = ids->count;
        if (id == r->info.eos || ids->count == limit) break;
        MS_TRY(ms_session_forward(r->session, &id, 1, NULL, err));
    }
    ms_text text = {0};
    ms_status st = ms_tokenizer_decode(r->text.tokenizer, ids->data, ids->count, true, &text, err);
    if (st == MS_OK) ms_quality_item_write(&r->recorded, item, ids, &text, margins);
    ms_text_free(&text);
    return st;
}

static ms_status record(quality_run *r, const ms_quality_item *item, outcome *o, ms_error *err) {
    uint32_t limit = r->flags->max_tokens ? r->flags->max_tokens : RECORD_TOKENS;
    double *margins = calloc(limit, sizeof *margins);
    if (!margins) return ms_fail_memory(err, "margins", limit * sizeof *margins);
    ms_ids ids = {0};
    ms_status st = record_answer(r, item, o, &ids, margins, limit, err);
    ms_ids_free(&ids);
    free(margins);
    return st;
}

static ms_status compare(quality_run *r, const ms_quality_item *item, outcome *o, ms_error *err) {
    size_t limit = item->ids.count;
    if (r->flags->max_tokens && r->flags->max_tokens < limit) limit = r->flags->max_tokens;
    for (size_t i = 0; i < limit; i++) {
        uint32_t id, expected = item->ids.data[i];
        MS_TRY(pick(r, &id, err));
        o->tokens++;
        if (id == expected) {
            o->equal++;
        } else if (!o->differs) {
            o->differs = true;
            o->position = i;
            o->expected = expected;
            o->got = id;
            o->margin = item->margins[i];
        }
        if (i + 1 < limit) MS_TRY(ms_session_forward(r->session, &expected, 1, NULL, err));
    }
    return MS_OK;
}

static ms_status answer(quality_run *r, const ms_quality_item *item, outcome *o, ms_error *err) {
    ms_session_reset(r->session);
    uint64_t start = ms_clock_ns();
    MS_TRY(ms_session_forward(r->session, o->prompt.data, o->prompt.count, NULL, err));
    o->prefill_ns = ms_clock_ns() - start;
    if (r->ref_session) MS_TRY(compare_logits(r, o, err));
    start = ms_clock_ns();
    MS_TRY(r->flags->record ? record(r, item, o, err) : compare(r, item, o, err));
    o->decode_ns = ms_clock_ns() - start;
    return MS_OK;
}

/* ------------------------------------------------------------------ the report */

typedef struct sums {
    size_t prompts, prompt_tokens, tokens, equal, steps; /* steps: decoded tokens that needed a pass of their own */
    uint64_t prefill_ns, decode_ns;
    double relative, max_abs;
} sums;

static sums add_up(const quality_run *r, const char *family) {
    sums s = {0};
    for (size_t i = 0; i < r->set.count; i++) {
        const outcome *o = &r->outcomes[i];
        if (family && strcmp(r->families[o->family], family) != 0) continue;
        s.prompts++;
        s.prompt_tokens += o->prompt.count;
        s.tokens += o->tokens;
        s.equal += o->equal;
        s.steps += o->tokens - 1;
        s.prefill_ns += o->prefill_ns;
        s.decode_ns += o->decode_ns;
        s.relative += o->relative;
        s.max_abs += o->max_abs;
    }
    return s;
}

static double rate(size_t tokens, uint64_t ns) { return ns ? (double)tokens * 1e9 / (double)ns : 0; }

static void json_string(ms_text *t, const char *s) { ms_json_write_string(t, s, strlen(s)); }

static void write_counts(ms_text *t, const sums *s) {
    ms_text_printf(t, "\"prompts\":%zu,\"tokens\":%zu,\"equal\":%zu", s->prompts, s->tokens, s->equal);
}

static void write_rate(ms_text *t, const char *name, size_t tokens, uint64_t ns) {
    ms_text_printf(t, ",\"%s\":{\"tokens\":%zu,\"seconds\":%.6f,\"tokens_per_second\":%.3f}", name, tokens,
                   (double)ns / 1e9, rate(tokens, ns));
}

static void report_json(const quality_run *r, ms_text *t) {
    const ms_model_flags *mf = r->model_flags;
    sums all = add_up(r, NULL);
    ms_text_puts(t, "{\"set\":");
    json_string(t, r->flags->set);
    ms_text_printf(t,
                   ",\"lane\":\"%s\",\"kernels\":\"%s\",\"threads\":%u,\"precision\":\"%s\",\"static\":\"%s\","
                   "\"recorded\":%s,",
                   r->info.lane, r->info.kernels, r->info.threads, mf->precision ? "reference" : "fast",
                   mf->static_format ? "bf16" : "q8", r->flags->record ? "true" : "false");
    write_counts(t, &all);
    ms_text_puts(t, ",\"families\":[");
    for (size_t i = 0; i < r->family_count; i++) {
        sums s = add_up(r, r->families[i]);
        ms_text_puts(t, i ? ",{\"family\":" : "{\"family\":");
        json_string(t, r->families[i]);
        ms_text_puts(t, ",");
        write_counts(t, &s);
        ms_text_puts(t, "}");
    }
    ms_text_puts(t, "],\"differences\":[");
    const char *sep = "";
    for (size_t i = 0; i < r->set.count; i++) {
        const outcome *o = &r->outcomes[i];
        if (!o->differs) continue;
        ms_text_printf(t, "%s{\"name\":", sep);
        json_string(t, r->set.items[i].name);
        ms_text_printf(t, ",\"position\":%zu,\"expected\":%u,\"got\":%u,\"reference_margin\":", o->position,
                       o->expected, o->got);
        ms_json_write_double(t, o->margin);
        ms_text_printf(t, ",\"tokens\":%zu,\"equal\":%zu}", o->tokens, o->equal);
        sep = ",";
    }
    ms_text_puts(t, "]");
    write_rate(t, "prefill", all.prompt_tokens, all.prefill_ns);
    write_rate(t, "decode", all.steps, all.decode_ns);
    ms_text_puts(t, ",\"against_reference\":");
    if (r->ref_session) {
        ms_text_puts(t, "{\"relative_error\":");
        ms_json_write_double(t, all.relative / (double)all.prompts);
        ms_text_puts(t, ",\"max_abs\":");
        ms_json_write_double(t, all.max_abs / (double)all.prompts);
        ms_text_puts(t, "}");
    } else {
        ms_text_puts(t, "null");
    }
    ms_text_puts(t, "}\n");
}

static void report_row(const quality_run *r, ms_text *t, const char *name, const sums *s) {
    ms_text_printf(t, "%-20s %7zu %7zu %7zu", name, s->prompts, s->tokens, s->equal);
    if (r->ref_session)
        ms_text_printf(t, " %11.3g %11.3g", s->relative / (double)s->prompts, s->max_abs / (double)s->prompts);
    ms_text_puts(t, "\n");
}

static void report_text(const quality_run *r, ms_text *t) {
    sums all = add_up(r, NULL);
    ms_text_printf(t, "%-20s %7s %7s %7s", "family", "prompts", "tokens", r->flags->record ? "written" : "equal");
    ms_text_puts(t, r->ref_session ? " logit error     max abs\n" : "\n");
    for (size_t i = 0; i < r->family_count; i++) {
        sums s = add_up(r, r->families[i]);
        report_row(r, t, r->families[i], &s);
    }
    report_row(r, t, "all", &all);
    for (size_t i = 0; i < r->set.count; i++) {
        const outcome *o = &r->outcomes[i];
        if (!o->differs) continue;
        ms_text_printf(t,
                       "%s differs at position %zu: expected %u, got %u, reference margin %.4g, "
                       "%zu of %zu tokens equal\n",
                       r->set.items[i].name, o->position, o->expected, o->got, o->margin, o->equal, o->tokens);
    }
    ms_text_printf(t, "prefill %zu tokens, %.1f/s; decode %zu tokens, %.1f/s (%s kernels, %u threads)\n",
                   all.prompt_tokens, rate(all.prompt_tokens, all.prefill_ns), all.steps,
                   rate(all.steps, all.decode_ns), r->info.kernels, r->info.threads);
    if (r->ref_session)
        ms_text_printf(t, "last logits of a prompt against reference, mean: relative error %.4g, max abs %.4g\n",
                       all.relative / (double)all.prompts, all.max_abs / (double)all.prompts);
}

/* ------------------------------------------------------------------ the whole run */

static ms_status open_engine(const quality_run *r, const ms_model_flags *flags, const char *model, ms_engine **engine,
                             ms_session **session, ms_error *err) {
    ms_engine_options o = ms_model_flags_engine(flags, model);
    o.log = ms_command_log;
    o.log_arg = (void *)(uintptr_t)r->program;
    MS_TRY(ms_engine_open(engine, &o, err));
    return ms_session_create(session, *engine, err);
}

/* Renders everything before an engine is opened: a bad request costs no time. */
static ms_status prepare(quality_run *r, const char *model, ms_error *err) {
    MS_TRY(ms_quality_set_load(&r->set, r->flags->set, !r->flags->record, err));
    MS_TRY(ms_text_model_open(&r->text, model, err));
    const char *path = r->flags->set;
    size_t n = r->set.count;
    r->outcomes = calloc(n, sizeof *r->outcomes);
    r->families = calloc(n, sizeof *r->families);
    if (!r->outcomes || !r->families) return ms_fail_memory(err, "results", n * sizeof *r->outcomes);
    for (size_t i = 0; i < n; i++) {
        const ms_quality_item *item = &r->set.items[i];
        outcome *o = &r->outcomes[i];
        while (o->family < r->family_count && strcmp(r->families[o->family], item->family) != 0) o->family++;
        if (o->family == r->family_count) r->families[r->family_count++] = item->family;
        if (render(r, item, &o->prompt, err) != MS_OK)
            return ms_error_context(err, "%s: %s: request", path, item->name);
        if (!o->prompt.count) return ms_fail(err, MS_ERR_FORMAT, "%s: %s: request: no tokens", path, item->name);
    }
    return MS_OK;
}

static ms_status save(const quality_run *r, ms_error *err) {
    if (r->recorded.failed) return ms_fail_memory(err, "recorded set", r->recorded.len);
    ms_interrupt_watch(); /* until here a signal ended the program; the file is written whole */
    ms_file_writer *w = NULL;
    ms_status st = ms_file_writer_open(&w, r->flags->set, true, err);
    if (st == MS_OK) st = ms_file_writer_write(w, r->recorded.data, r->recorded.len, err);
    if (st == MS_OK) st = ms_file_writer_commit(w, err);
    else ms_file_writer_abort(w);
    ms_interrupt_unwatch();
    return st;
}

static ms_status run(quality_run *r, const char *model, ms_error *err) {
    MS_TRY(prepare(r, model, err));
    MS_TRY(open_engine(r, r->model_flags, model, &r->engine, &r->session, err));
    ms_engine_info(r->engine, &r->info);
    if (r->flags->against) {
        ms_model_flags reference = *r->model_flags;
        reference.precision = MS_PRECISION_REFERENCE;
        reference.static_format = MS_STATIC_BF16;
        reference.range_backend = 0;
        MS_TRY(open_engine(r, &reference, model, &r->ref_engine, &r->ref_session, err));
    }
    for (size_t i = 0; i < r->set.count; i++)
        if (answer(r, &r->set.items[i], &r->outcomes[i], err) != MS_OK)
            return ms_error_context(err, "%s: %s", r->flags->set, r->set.items[i].name);
    if (r->flags->record) MS_TRY(save(r, err));
    ms_text report = {0};
    if (r->flags->json)
        report_json(r, &report);
    else
        report_text(r, &report);
    if (!report.failed) (void)fwrite(report.data, 1, report.len, stdout);
    ms_status st = report.failed ? ms_fail_memory(err, "report", report.len) : MS_OK;
    ms_text_free(&report);
    return st;
}

static void close_run(quality_run *r) {
    ms_session_destroy(r->ref_session);
    ms_engine_close(r->ref_engine);
    ms_session_destroy(r->session);
    ms_engine_close(r->engine);
    for (size_t i = 0; r->outcomes && i < r->set.count; i++) ms_ids_free(&r->outcomes[i].prompt);
    free(r->outcomes);
    free(r->families);
    ms_text_free(&r->recorded);
    ms_text_model_close(&r->text);
    ms_quality_set_free(&r->set);
}

static ms_status check_flags(const quality_flags *f, const ms_model_flags *mf, ms_error *err) {
    if (!f->set) return ms_fail(err, MS_ERR_USAGE, "--set FILE is needed");
    if (f->record && f->against)
        return ms_fail(err, MS_ERR_USAGE, "--record and --against-reference exclude each other");
    if (f->record && (mf->precision != MS_PRECISION_REFERENCE || mf->static_format != MS_STATIC_BF16 ||
                      mf->range_backend))
        return ms_fail(err, MS_ERR_USAGE,
                       "--record needs --precision reference --static bf16 and no range backend: "
                       "it writes what others are judged by");
    return MS_OK;
}

int ms_bench_quality(int argc, char **argv) {
    quality_flags flags = {0};
    ms_model_flags model_flags = ms_model_flags_default();
    const ms_option_group groups[] = {
        {"Options", options, sizeof options / sizeof options[0], &flags},
        {"Model", ms_model_option_table, ms_model_option_count, &model_flags},
    };
    const ms_option_set set = {.program = "moonshine bench quality",
                               .synopsis = "[MODEL] --set FILE [options]",
                               .about = "Answers a set of chat requests greedily and compares every token with the "
                                        "recorded one. Exit code 1 when one differs.",
                               .groups = groups,
                               .group_count = 2,
                               .max_args = 1};
    ms_option_result result;
    int code = ms_command_parse(&set, argc, argv, &result);
    if (code >= 0) return code;
    ms_error err;
    if (check_flags(&flags, &model_flags, &err) != MS_OK) return ms_command_fail(set.program, &err);
    const char *model = ms_command_model(set.program, &result, 0);
    if (!model) return 2;
    quality_run r = {.program = set.program, .flags = &flags, .model_flags = &model_flags};
    ms_status st = run(&r, model, &err);
    sums all = st == MS_OK ? add_up(&r, NULL) : (sums){0};
    close_run(&r);
    if (st != MS_OK) return ms_command_fail(set.program, &err);
    code = ms_command_finish(set.program);
    return code ? code : all.equal != all.tokens;
}
