/* engine.c: from options to resident weights and a running expert service. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "session/engine.h"
#include "session/loader.h"
#include "session/store_choice.h"

static void say(void *arg, const char *text) {
    const ms_engine *e = arg;
    if (e->options.log) e->options.log(e->options.log_arg, text);
}

static double gib(uint64_t bytes) { return (double)bytes / (double)(1ull << 30); }

static ms_status refuse_device(const ms_plan *p, ms_error *err) {
    return ms_fail(
        err, MS_ERR_NO_FIT,
        "does not fit the device: needs %.3f GiB of its memory and a reserve of %.3f GiB, %.3f GiB are free; fewer "
        "--experts, a smaller --context or --range make it smaller",
        gib(p->device_total_bytes), gib(p->device_reserve_bytes), gib(p->device_available_bytes));
}

static uint64_t host_bytes(const ms_plan *p, const char *group) {
    uint64_t sum = 0;
    for (size_t i = 0; i < p->item_count; i++)
        if (!p->items[i].device && !strcmp(p->items[i].group, group)) sum += p->items[i].bytes;
    return sum;
}

static ms_status refuse(const ms_plan *p, ms_error *err) {
    if (p->has_device && (p->device_available_bytes < p->device_reserve_bytes ||
                          p->device_total_bytes > p->device_available_bytes - p->device_reserve_bytes))
        return refuse_device(p, err);
    return ms_fail(
        err, MS_ERR_NO_FIT,
        "does not fit: needs %.3f GiB (static %.3f, cache %.3f, state %.3f, staging %.3f, workspace %.3f, process "
        "%.3f) "
        "and a reserve of %.3f GiB, %.3f GiB are available; fewer --experts, a smaller --context or --range, or a "
        "smaller --reserve make it smaller",
        gib(p->total_bytes), gib(host_bytes(p, "static")), gib(host_bytes(p, "cache")), gib(host_bytes(p, "state")),
        gib(host_bytes(p, "staging")), gib(host_bytes(p, "workspace")), gib(host_bytes(p, "process")),
        gib(p->reserve_bytes), gib(p->available_bytes));
}

ms_status ms_engine_reserve_scratch(ms_engine *e, uint32_t rows, ms_error *err) {
    ms_scratch_need need;
    if (e->scratch_rows == rows) return MS_OK;
    e->scratch_rows = 0;
    e->model.lane->scratch_need(e->model.config, rows, e->options.context, &need);
    MS_TRY(e->backend->scratch_reserve(e->backend, &need, err));
    e->scratch_rows = rows;
    return MS_OK;
}

static ms_status reserve_scratch(ms_engine *e, ms_error *err) {
    const ms_engine_options *o = &e->options;
    if (!strcmp(e->backend->kernels, "scalar") && !o->kernels)
        say(e, "this CPU has no supported vector instructions: scalar kernels are used");
    if (o->range_blas)
        say(e, "range backend blas: products of many rows are a matrix library's; results are not the canonical ones "
               "and depend on how prompts are cut into passes");
    MS_TRY(e->model.lane->statics(e->model.config, o->static_format, &e->statics, err));
    return ms_engine_reserve_scratch(e, e->plan->usual_rows, err);
}

static ms_status load(ms_engine *e, ms_error *err) {
    const ms_engine_options *o = &e->options;
    const ms_lane *lane = e->model.lane;
    e->weights = calloc(1, lane->weights_bytes);
    if (!e->weights) return ms_fail_memory(err, "weights table", lane->weights_bytes);
    /* What comes later is larger than the load buffers, so that the plan's total stays the peak. */
    ms_load_options lo = {.buffer_bytes = host_bytes(e->plan, "cache") + host_bytes(e->plan, "staging"),
                          .buffered = o->buffered_reads,
                          .no_uring = o->no_uring,
                          .progress = o->load_progress,
                          .arg = o->load_progress_arg};
    MS_TRY(ms_statics_load(e->backend, e->model.checkpoint, &e->statics, e->weights, &lo, err));
    ms_expert_service_options eo = {.shape = e->model.info.expert_shape,
                                    .slots = o->experts,
                                    .lent = e->plan->lent_slots,
                                    .staging = o->staging,
                                    .read_depth = o->read_depth,
                                    .buffered = o->buffered_reads,
                                    .no_uring = o->no_uring,
                                    .lookahead = !o->no_lookahead,
                                    .dirs = o->expert_dirs,
                                    .read_limit = o->read_limit,
                                    .warn = say,
                                    .warn_arg = e};
    return ms_expert_service_create(&e->experts, e->backend, e->model.checkpoint, &e->model.experts, &eo, err);
}

static ms_status open_engine(ms_engine *e, const ms_engine_options *options, ms_error *err) {
    e->model_path = strdup(options->model);
    if (!e->model_path) return ms_fail_memory(err, "model path", strlen(options->model));
    ms_engine_options own = *options;
    own.model = e->model_path;
    MS_TRY(ms_model_open_for(&e->model, &own, err));
    MS_TRY(ms_plan_for_model(&e->plan, &e->model, options, &e->options, &e->backend, err));
    e->options.model = e->model_path;
    if (!e->plan->fits) return refuse(e->plan, err);
    e->logit_rows = ms_plan_logit_rows(&e->model.info, &e->options);
    MS_TRY(reserve_scratch(e, err));
    return load(e, err);
}

ms_status ms_engine_open(ms_engine **out, const ms_engine_options *options, ms_error *err) {
    if (!options->model || !*options->model) return ms_fail(err, MS_ERR_USAGE, "no model directory given");
    ms_engine *e = calloc(1, sizeof *e);
    if (!e) return ms_fail_memory(err, "engine", sizeof *e);
    ms_status st = open_engine(e, options, err);
    if (st != MS_OK) {
        ms_engine_close(e);
        return st;
    }
    *out = e;
    return MS_OK;
}

void ms_engine_close(ms_engine *e) {
    if (!e) return;
    ms_expert_service_destroy(e->experts);
    if (e->weights) ms_statics_unload(e->backend, &e->statics, e->weights);
    ms_static_list_free(&e->statics);
    free(e->weights);
    if (e->backend) e->backend->destroy(e->backend);
    ms_plan_destroy(e->plan);
    ms_model_close(&e->model);
    free(e->model_path);
    free(e);
}

const ms_plan *ms_engine_plan(const ms_engine *e) { return e->plan; }

void ms_engine_info(const ms_engine *e, ms_model_info *out) {
    const ms_lane_info *i = &e->model.info;
    *out = (ms_model_info){.vocab = i->vocab,
                           .layers = i->layers,
                           .moe_layers = i->moe_layer_count,
                           .experts = i->experts,
                           .top_k = i->top_k,
                           .bos = i->bos,
                           .eos = i->eos,
                           .context = e->options.context,
                           .max_context = i->max_context,
                           .layout_digest = ms_checkpoint_layout_digest(e->model.checkpoint),
                           .threads = e->backend->threads};
    (void)snprintf(out->lane, sizeof out->lane, "%s", e->model.lane->name);
    (void)snprintf(out->model_source, sizeof out->model_source, "%s", ms_model_source(&e->model));
    (void)snprintf(out->expert_store, sizeof out->expert_store, "%s", ms_model_expert_store(&e->model));
    (void)snprintf(out->kernels, sizeof out->kernels, "%s", e->backend->kernels);
}

void ms_engine_get_stats(const ms_engine *e, ms_engine_stats *out) { ms_expert_service_stats(e->experts, out); }
