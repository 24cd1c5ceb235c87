/* cmd_logits.c: `moonshine logits`: what the model computes for given ids, in numbers. */
#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/json.h"
#include "command.h"
#include "interrupt.h"
#include "io/file.h"
#include "token_ids.h"

typedef struct logits_flags {
    const char *ids, *ids_file, *out;
    uint32_t greedy;
    bool json, replace;
} logits_flags;

#define FIELD(f) offsetof(logits_flags, f)
static const ms_option options[] = {
    {.name = "ids", .type = MS_OPTION_STRING, .offset = FIELD(ids), .arg = "LIST",
     .help = "Prompt token ids, separated by commas or spaces."},
    {.name = "ids-file", .type = MS_OPTION_STRING, .offset = FIELD(ids_file), .arg = "FILE",
     .help = "The same from a file; '-' is standard input."},
    {.name = "greedy", .type = MS_OPTION_U32, .offset = FIELD(greedy), .arg = "N",
     .help = "Continue greedily for N tokens (default: 0)."},
    {.name = "out", .type = MS_OPTION_STRING, .offset = FIELD(out), .arg = "FILE",
     .help = "Write float32 rows, little endian: every prompt position, then the row that chose each greedy token."},
    {.name = "force", .type = MS_OPTION_FLAG, .offset = FIELD(replace), .help = "Let --out replace an existing file."},
    {.name = "json", .type = MS_OPTION_FLAG, .offset = FIELD(json),
     .help = "Print JSON: top-8 per position, greedy ids, chosen experts, state digests, cache counters."},
};

enum { TOP = 8 };

/* Chosen experts of one pass, kept until the end for the report. */
typedef struct route {
    struct route *next;
    uint32_t layer, rows, top_k;
    uint64_t position;
    uint32_t ids[];
} route;

typedef struct report {
    uint32_t vocab;
    ms_file_writer *out;
    ms_text top, greedy_top;
    bool json, failed;
    route *first, **last;
} report;

/* The TOP largest, best first, ties to the lower id. */
static void write_top(ms_text *t, const float *logits, uint32_t vocab) {
    uint32_t best[TOP];
    uint32_t n = 0;
    for (uint32_t id = 0; id < vocab; id++) {
        uint32_t at = n;
        while (at > 0 && logits[id] > logits[best[at - 1]]) at--;
        if (at >= TOP) continue;
        if (n < TOP) n++;
        for (uint32_t i = n - 1; i > at; i--) best[i] = best[i - 1];
        best[at] = id;
    }
    ms_text_puts(t, "[");
    for (uint32_t i = 0; i < n; i++) ms_text_printf(t, "%s[%u,%.9g]", i ? "," : "", best[i], (double)logits[best[i]]);
    ms_text_puts(t, "]");
}

static ms_status take_rows(report *r, ms_text *top, uint32_t rows, const float *logits, ms_error *err) {
    for (uint32_t i = 0; i < rows && r->json; i++) {
        ms_text_puts(top, top->len ? "," : "");
        write_top(top, logits + (size_t)i * r->vocab, r->vocab);
    }
    if (!r->out) return MS_OK;
    return ms_file_writer_write(r->out, logits, (size_t)rows * r->vocab * sizeof(float), err);
}

static ms_status sink(void *arg, uint64_t first, uint32_t rows, const float *logits, ms_error *err) {
    (void)first;
    report *r = arg;
    return take_rows(r, &r->top, rows, logits, err);
}

static void routes(void *arg, uint32_t layer, uint64_t position, uint32_t rows, uint32_t top_k, const uint32_t *ids) {
    report *r = arg;
    size_t bytes = (size_t)rows * top_k * sizeof *ids;
    route *x = malloc(sizeof *x + bytes);
    if (!x) {
        r->failed = true;
        return;
    }
    x->next = NULL;
    x->layer = layer;
    x->rows = rows;
    x->top_k = top_k;
    x->position = position;
    memcpy(x->ids, ids, bytes);
    *r->last = x;
    r->last = &x->next;
}

/* {"LAYER":[[ids of position 0],[...]],...}: passes come in position order within a layer. */
static void print_experts(const report *r, uint32_t layers) {
    printf("{");
    const char *layer_sep = "";
    for (uint32_t l = 0; l < layers; l++) {
        const char *sep = "";
        bool any = false;
        for (const route *x = r->first; x; x = x->next) {
            if (x->layer != l) continue;
            if (!any) printf("%s\"%u\":[", layer_sep, l);
            any = true;
            for (uint32_t i = 0; i < x->rows; i++) {
                printf("%s[", sep);
                sep = ",";
                for (uint32_t k = 0; k < x->top_k; k++) printf("%s%u", k ? "," : "", x->ids[i * x->top_k + k]);
                printf("]");
            }
        }
        if (any) {
            printf("]");
            layer_sep = ",";
        }
    }
    printf("}");
}

static void print_json(const report *r, const ms_engine *e, const ms_ids *prompt, const ms_ids *greedy, const ms_digest *d) {
    ms_model_info info;
    ms_engine_stats st;
    ms_engine_info(e, &info);
    ms_engine_get_stats(e, &st);
    printf("{\"model\":{\"lane\":\"%s\",\"vocab\":%u,\"layers\":%u,\"kernels\":\"%s\",\"threads\":%u,\"source\":\"%s\","
           "\"expert_store\":\"%s\"},\"prompt\":[", info.lane, info.vocab, info.layers, info.kernels, info.threads,
           info.model_source, info.expert_store);
    for (size_t i = 0; i < prompt->count; i++) printf("%s%u", i ? "," : "", prompt->data[i]);
    printf("],\"top8\":[%s],\"greedy\":[", r->top.data ? r->top.data : "");
    for (size_t i = 0; i < greedy->count; i++) printf("%s%u", i ? "," : "", greedy->data[i]);
    printf("],\"greedy_top8\":[%s],\"experts\":", r->greedy_top.data ? r->greedy_top.data : "");
    print_experts(r, info.layers);
    printf(",\"digest\":{\"position\":%" PRIu64, d->position);
    for (uint32_t i = 0; i < d->count; i++) printf(",\"%s\":\"%016" PRIx64 "\"", d->part[i].kind, d->part[i].fnv1a64);
    printf("},\"cache\":{\"accesses\":%" PRIu64 ",\"hits\":%" PRIu64 ",\"fills\":%" PRIu64 ",\"streams\":%" PRIu64
           ",\"evictions\":%" PRIu64 ",\"reads\":%" PRIu64 ",\"read_bytes\":%" PRIu64 ",\"direct\":%s,\"uring\":%s}}\n",
           st.expert_accesses, st.expert_hits, st.expert_fills, st.expert_streams, st.expert_evictions, st.expert_reads,
           st.expert_read_bytes, st.direct ? "true" : "false", st.uring ? "true" : "false");
}

static ms_status evaluate(ms_session *s, const logits_flags *f, report *r, const ms_ids *prompt, ms_ids *greedy, ms_error *err) {
    ms_forward_options fo = {.all_logits = r->json || r->out, .sink = sink, .sink_arg = r,
                             .routes = r->json ? routes : NULL, .routes_arg = r};
    MS_TRY(ms_session_forward(s, prompt->data, prompt->count, &fo, err));
    ms_sampler sampler;
    ms_sampler_greedy(&sampler);
    fo.all_logits = false;
    for (uint32_t i = 0; i < f->greedy; i++) {
        const float *row = ms_session_logits(s);
        uint32_t id;
        MS_TRY(take_rows(r, &r->greedy_top, 1, row, err));
        MS_TRY(ms_sampler_pick(&sampler, row, r->vocab, &id, err));
        MS_TRY(ms_ids_push(greedy, id, err));
        if (i + 1 < f->greedy) MS_TRY(ms_session_forward(s, &id, 1, &fo, err));
    }
    return MS_OK;
}

/* The file is in place before anything is printed: from here on a signal may end the program as it likes. */
static ms_status commit(report *r, ms_error *err) {
    if (r->failed || r->top.failed || r->greedy_top.failed) return ms_fail_memory(err, "report", 0);
    if (ms_interrupt_code()) return ms_fail(err, MS_ERR_CANCELLED, "interrupted");
    ms_file_writer *out = r->out;
    r->out = NULL;
    if (out) MS_TRY(ms_file_writer_commit(out, err));
    ms_interrupt_unwatch();
    return MS_OK;
}

static ms_status run_session(ms_engine *e, const logits_flags *f, report *r, const ms_ids *prompt, ms_error *err) {
    ms_session *s = NULL;
    MS_TRY(ms_session_create(&s, e, err));
    ms_interrupt_session(s);
    ms_ids greedy = {0};
    ms_digest digest;
    ms_status st = evaluate(s, f, r, prompt, &greedy, err);
    if (st == MS_OK) st = ms_session_digest(s, &digest, err);
    ms_interrupt_session(NULL);
    if (st == MS_OK) st = commit(r, err);
    if (st == MS_OK && r->json) {
        print_json(r, e, prompt, &greedy, &digest);
    } else if (st == MS_OK) {
        for (size_t i = 0; i < greedy.count; i++) printf("%u%s", greedy.data[i], i + 1 < greedy.count ? " " : "\n");
        for (uint32_t i = 0; i < digest.count; i++) printf("%s %016" PRIx64 "\n", digest.part[i].kind, digest.part[i].fnv1a64);
        printf("position %" PRIu64 "\n", digest.position);
    }
    ms_ids_free(&greedy);
    ms_session_destroy(s);
    return st;
}

/* Loading cannot be cancelled from inside; there is nothing to put away but the file. */
static void loading(void *arg, uint64_t done, uint64_t total) {
    const report *r = arg;
    (void)done;
    (void)total;
    if (!ms_interrupt_code()) return;
    ms_file_writer_abort(r->out);
    _exit(ms_interrupt_code());
}

static ms_status run(const char *program, const logits_flags *f, const ms_model_flags *mf, const char *model, ms_error *err) {
    ms_ids prompt = {0};
    report r = {.json = f->json};
    r.last = &r.first;
    ms_engine *e = NULL;
    ms_engine_options o = ms_model_flags_engine(mf, model);
    o.log = ms_command_log;
    o.log_arg = (void *)(uintptr_t)program;
    o.load_progress = loading;
    o.load_progress_arg = &r;
    ms_status st = ms_token_ids_read(f->ids, f->ids_file, &prompt, err);
    ms_interrupt_watch();
    if (st == MS_OK && f->out) st = ms_file_writer_open(&r.out, f->out, f->replace, err); /* before the long load */
    if (st == MS_OK) st = ms_engine_open(&e, &o, err);
    if (st == MS_OK) {
        ms_model_info info;
        ms_engine_info(e, &info);
        r.vocab = info.vocab;
    }
    if (st == MS_OK) st = run_session(e, f, &r, &prompt, err);
    ms_file_writer_abort(r.out);
    ms_engine_close(e);
    ms_ids_free(&prompt);
    ms_text_free(&r.top);
    ms_text_free(&r.greedy_top);
    for (route *x = r.first, *next; x; x = next) {
        next = x->next;
        free(x);
    }
    return st;
}

int ms_command_logits(int argc, char **argv) {
    logits_flags flags = {0};
    ms_model_flags model_flags = ms_model_flags_default();
    const ms_option_group groups[] = {
        {"Options", options, sizeof options / sizeof options[0], &flags},
        {"Model", ms_model_option_table, ms_model_option_count, &model_flags},
    };
    const ms_option_set set = {.program = "moonshine logits",
                               .synopsis = "[MODEL] (--ids LIST | --ids-file FILE) [options]",
                               .about = "Evaluates token ids. Without --json prints the greedy ids and the state digests.",
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
