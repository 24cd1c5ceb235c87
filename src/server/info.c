/* info.c: what the server says about itself: health, models, properties, slots, metrics.  Nothing here waits for the
 * engine. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "server/server_internal.h"

static const char *yes(bool v) { return v ? "true" : "false"; }

static const char *state_name(ms_worker_state s) {
    static const char *const names[] = {"loading", "ok", "draining", "failed"};
    return names[s];
}

static const char *slot_state(const ms_worker_view *v) {
    if (!v->busy) return "idle";
    if (v->exporting || v->progress.phase == MS_PHASE_EXPORT) return "export";
    return v->progress.phase == MS_PHASE_DECODE ? "decode" : "prefill";
}

static void string(ms_text *t, const char *key, const char *value) {
    ms_text_printf(t, ",\"%s\":", key);
    ms_json_write_string(t, value, strlen(value));
}

/* What decides replies and limits, as /health shows it. */
static void configuration(const ms_server *s, ms_text *t) {
    string(t, "model", s->o.model_id);
    string(t, "lane", s->o.text->lane->name);
    string(t, "engine", "Moonshine");
    string(t, "version", MS_VERSION);
    string(t, "build", s->o.build);
    string(t, "model_source", s->o.model_source);
    string(t, "expert_store", s->o.expert_store);
    string(t, "static_precision", s->o.static_precision);
    ms_text_printf(t, ",\"context_length\":%" PRIu64 ",\"max_output_tokens\":%" PRIu64 ",\"slots\":1", s->o.context,
                   s->limits.max_output_ceiling);
    ms_text_printf(t, ",\"expert_cache\":\"persistent\",\"experts_per_layer\":%" PRIu64, s->o.experts_per_layer);
    string(t, "prefix_reuse", s->o.reuse ? "automatic_exact_prefix" : "disabled");
    ms_text_printf(t, ",\"request_deadline_seconds\":%u", s->o.deadline_s);
    string(t, "sampling", s->limits.sampling ? "sampled" : "greedy");
    string(t, "range_backend", s->o.range_blas ? "blas" : "default");
}

void ms_server_profile(ms_server *s) {
    ms_text t = {0};
    configuration(s, &t);
    (void)snprintf(s->profile, sizeof s->profile, "%016" PRIx64,
                   ms_fnv1a64(MS_FNV1A64_INIT, t.data ? t.data : "", t.len));
    ms_text_free(&t);
}

static void look_kept(const ms_server *s, ms_kept_view *k) {
    *k = (ms_kept_view){0};
    if (s->o.source.kept) s->o.source.kept(s->o.source.self, k);
}

static void checkpoints(const ms_server *s, ms_text *t) {
    ms_kept_view k;
    look_kept(s, &k);
    ms_text_printf(t,
                   ",\"prefix_checkpoints\":{\"enabled\":%s,\"entries\":%" PRIu64 ",\"bytes\":%" PRIu64
                   ",\"max_entries\":%" PRIu64 ",\"max_bytes\":%" PRIu64 "},\"prefix_memory\":{\"entries\":%" PRIu64
                   ",\"bytes\":%" PRIu64 ",\"max_bytes\":%" PRIu64 "}",
                   yes(k.disk), k.disk_entries, k.disk_bytes, k.max_disk_entries, k.max_disk_bytes, k.memory_entries,
                   k.memory_bytes, k.max_memory_bytes);
}

void ms_handle_health(void *arg, ms_exchange *x) {
    ms_server *s = arg;
    ms_worker_view v;
    ms_worker_look(s->worker, &v);
    bool ready = v.state == MS_WORKER_READY;
    ms_text t = {0};
    ms_text_printf(&t, "{\"status\":\"%s\",\"ready\":%s", state_name(v.state), yes(ready));
    configuration(s, &t);
    string(&t, "slot_state", slot_state(&v));
    ms_text_printf(&t, ",\"queued\":%d", v.queued ? 1 : 0);
    checkpoints(s, &t);
    string(&t, "profile", s->profile);
    ms_text_printf(&t, ",\"uptime_seconds\":%.3f}", (double)(ms_clock_ns() - s->started_ns) / 1e9);
    ms_exchange_reply(x, ready ? 200 : 503, MS_JSON_CONTENT, &t);
}

/* ------------------------------------------------------------------ models */

static void efforts(const ms_server *s, ms_text *t) {
    ms_text_puts(t, "[");
    for (const char *const *e = s->limits.efforts; e && *e; e++) {
        ms_text_printf(t, e == s->limits.efforts ? "\"%s\"" : ",\"%s\"", *e);
    }
    ms_text_puts(t, "]");
}

static void model(const ms_server *s, ms_text *t) {
    ms_text_puts(t, "{\"id\":");
    ms_json_write_string(t, s->o.model_id, strlen(s->o.model_id));
    ms_text_printf(t,
                   ",\"object\":\"model\",\"created\":%" PRId64 ",\"owned_by\":\"local\",\"context_length\":%" PRIu64
                   ",\"max_output_tokens\":%" PRIu64 ",\"capabilities\":{\"tools\":true,\"reasoning_efforts\":",
                   s->created, s->o.context, s->limits.max_output_ceiling);
    efforts(s, t);
    ms_text_printf(t, ",\"structured_output\":true,\"sampling\":%s,\"logprobs\":%s}}", yes(s->limits.sampling),
                   yes(s->limits.logprobs));
}

void ms_handle_models(void *arg, ms_exchange *x) {
    ms_text t = {0};
    ms_text_puts(&t, "{\"object\":\"list\",\"data\":[");
    model(arg, &t);
    ms_text_puts(&t, "]}");
    ms_exchange_reply(x, 200, MS_JSON_CONTENT, &t);
}

static bool is_model(const ms_server *s, const char *name) {
    if (strcmp(name, s->o.model_id) == 0) return true;
    for (const char *const *a = s->o.aliases; a && *a; a++) {
        if (strcmp(name, *a) == 0) return true;
    }
    return false;
}

void ms_handle_model(void *arg, ms_exchange *x) {
    ms_text t = {0};
    if (is_model(arg, ms_exchange_tail(x))) {
        model(arg, &t);
        ms_exchange_reply(x, 200, MS_JSON_CONTENT, &t);
        return;
    }
    ms_api_error e = {0};
    (void)ms_api_fail(&e, 404, "model_not_found", "model", "this server has another model (GET /v1/models)");
    ms_exchange_reject(x, &e);
}

/* ------------------------------------------------------------------ properties, slots, metrics */

void ms_handle_props(void *arg, ms_exchange *x) {
    ms_server *s = arg;
    ms_text t = {0};
    ms_text_puts(&t, "{\"defaults\":{\"temperature\":0,\"top_p\":1,\"top_k\":0,\"min_p\":0");
    ms_text_printf(&t, ",\"max_tokens\":%" PRIu64 ",\"reasoning_effort\":", s->limits.default_output);
    if (s->limits.default_effort)
        ms_text_printf(&t, "\"%s\"}", s->limits.default_effort);
    else
        ms_text_puts(&t, "null}");
    ms_text_printf(&t,
                   ",\"limits\":{\"context_length\":%" PRIu64 ",\"max_output_tokens\":%" PRIu64
                   ",\"max_body_bytes\":%" PRIu64 ",\"max_connections\":%u},\"reasoning_efforts\":",
                   s->o.context, s->limits.max_output_ceiling, s->o.max_body_bytes, s->o.max_connections);
    efforts(s, &t);
    ms_text_printf(&t, ",\"dynamic_tools\":%s,\"sampling\":%s,\"logprobs\":%s", yes(s->limits.dynamic_tools),
                   yes(s->limits.sampling), yes(s->limits.logprobs));
    ms_text_printf(&t, ",\"tokenizer_digest\":\"%016" PRIx64 "\",\"vocab\":%u",
                   ms_tokenizer_digest(s->o.text->tokenizer), s->o.text->info.vocab);
    configuration(s, &t);
    string(&t, "profile", s->profile);
    ms_text_puts(&t, "}");
    ms_exchange_reply(x, 200, MS_JSON_CONTENT, &t);
}

void ms_server_disabled(ms_exchange *x, const char *flag) {
    ms_api_error e = {0};
    (void)ms_api_fail(&e, 404, "endpoint_disabled", "", "this endpoint is off: start the server with %s", flag);
    ms_exchange_reject(x, &e);
}

void ms_handle_slots(void *arg, ms_exchange *x) {
    ms_server *s = arg;
    if (!s->o.slots_endpoint) {
        ms_server_disabled(x, "--slots-endpoint");
        return;
    }
    ms_worker_view v;
    ms_worker_look(s->worker, &v);
    ms_text t = {0};
    ms_text_printf(&t, "[{\"id\":0,\"state\":\"%s\"", slot_state(&v));
    if (v.has_job) {
        string(&t, "request", v.job_id);
        string(&t, "client", v.api);
        ms_text_printf(&t,
                       ",\"elapsed_seconds\":%.3f,\"prompt_tokens\":%" PRIu64 ",\"processed\":%" PRIu64
                       ",\"reused\":%" PRIu64 ",\"generated\":%" PRIu64,
                       (double)(ms_clock_ns() - v.admitted_ns) / 1e9, v.progress.prompt, v.progress.processed,
                       v.progress.reused, v.progress.generated);
    }
    ms_text_puts(&t, "}]");
    ms_exchange_reply(x, 200, MS_JSON_CONTENT, &t);
}

/* Planned bytes of each group, whichever memory they are in. */
static void write_memory(const ms_plan *plan, ms_text *t) {
    static const char *const pools[] = {"static", "cache", "state", "staging", "workspace", "process"};
    if (!plan) return;
    ms_text_puts(t, "# HELP moonshine_memory_bytes Memory that was planned.\n# TYPE moonshine_memory_bytes gauge\n");
    for (size_t i = 0; i < sizeof pools / sizeof pools[0]; i++)
        ms_text_printf(t, "moonshine_memory_bytes{pool=\"%s\"} %" PRIu64 "\n", pools[i],
                       ms_plan_group_bytes(plan, pools[i]));
}

void ms_handle_metrics(void *arg, ms_exchange *x) {
    ms_server *s = arg;
    if (!s->o.metrics) {
        ms_server_disabled(x, "--metrics");
        return;
    }
    static const char *const states[] = {"idle", "prefill", "decode", "export"};
    ms_worker_view v;
    ms_worker_look(s->worker, &v);
    ms_text t = {0};
    ms_metrics_write(&s->metrics, &t);
    ms_text_puts(&t, "# HELP moonshine_slot_state What the slot does.\n# TYPE moonshine_slot_state gauge\n");
    for (size_t i = 0; i < sizeof states / sizeof states[0]; i++) {
        ms_text_printf(&t, "moonshine_slot_state{state=\"%s\"} %d\n", states[i],
                       strcmp(states[i], slot_state(&v)) == 0);
    }
    ms_kept_view k;
    look_kept(s, &k);
    ms_text_printf(&t,
                   "# HELP moonshine_prefix_checkpoints Kept states.\n# TYPE moonshine_prefix_checkpoints gauge\n"
                   "moonshine_prefix_checkpoints{state=\"memory\"} %" PRIu64
                   "\nmoonshine_prefix_checkpoints{state=\"disk\"} "
                   "%" PRIu64 "\n# HELP moonshine_prefix_checkpoint_writes_total Kept states written to disk.\n"
                   "# TYPE moonshine_prefix_checkpoint_writes_total counter\n"
                   "moonshine_prefix_checkpoint_writes_total{outcome=\"ok\"} %" PRIu64
                   "\nmoonshine_prefix_checkpoint_writes_total{outcome=\"failed\"} %" PRIu64 "\n",
                   k.memory_entries, k.disk_entries, k.writes, k.write_failures);
    write_memory(s->o.plan, &t);
    ms_text_printf(&t,
                   "# HELP moonshine_build_info Build.\n# TYPE moonshine_build_info gauge\n"
                   "moonshine_build_info{version=\"%s\",lane=\"%s\"} 1\n",
                   MS_VERSION, s->o.text->lane->name);
    ms_exchange_reply(x, 200, "text/plain; version=0.0.4; charset=utf-8", &t);
}
