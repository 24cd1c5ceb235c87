#include "server/server_internal.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"

enum { DEFAULT_OUTPUT = 256, CALLS_MAX = 4096, CALLS_MAX_BYTES = 16 << 20, TURNS_MAX = 32, TURNS_MAX_BYTES = 32 << 20,
       REPLIES_MAX = 4096, REPLIES_MAX_BYTES = 32 << 20 };

static const ms_route routes[] = {
    {"/", false, MS_GET, true, MS_API_CHAT, ms_handle_ui},
    {"/health", false, MS_GET, true, MS_API_CHAT, ms_handle_health},
    {"/v1/health", false, MS_GET, true, MS_API_CHAT, ms_handle_health},
    {"/v1/models", false, MS_GET, false, MS_API_CHAT, ms_handle_models},
    {"/v1/models/", true, MS_GET, false, MS_API_CHAT, ms_handle_model},
    {"/v1/chat/completions", false, MS_POST, false, MS_API_CHAT, ms_handle_chat},
    {"/v1/chat/completions/input_tokens", false, MS_POST, false, MS_API_CHAT, ms_handle_chat_count},
    {"/v1/completions", false, MS_POST, false, MS_API_COMPLETIONS, ms_handle_completions},
    {"/v1/messages", false, MS_POST, false, MS_API_MESSAGES, ms_handle_messages},
    {"/v1/messages/count_tokens", false, MS_POST, false, MS_API_MESSAGES, ms_handle_messages_count},
    {"/v1/responses", false, MS_POST, false, MS_API_RESPONSES, ms_handle_responses},
    {"/v1/responses/input_tokens", false, MS_POST, false, MS_API_RESPONSES, ms_handle_responses_count},
    {"/tokenize", false, MS_POST, false, MS_API_CHAT, ms_handle_tokenize},
    {"/detokenize", false, MS_POST, false, MS_API_CHAT, ms_handle_detokenize},
    {"/apply-template", false, MS_POST, false, MS_API_CHAT, ms_handle_template},
    {"/props", false, MS_GET, false, MS_API_CHAT, ms_handle_props},
    {"/slots", false, MS_GET, false, MS_API_CHAT, ms_handle_slots},
    {"/slots/0", false, MS_POST, false, MS_API_CHAT, ms_handle_slot},
    {"/metrics", false, MS_GET, false, MS_API_CHAT, ms_handle_metrics},
    {0}};

void ms_server_options_default(ms_server_options *o) {
    *o = (ms_server_options){.host = "127.0.0.1",
                             .port = 8080,
                             .max_body_bytes = 8388608,
                             .max_connections = 128,
                             .io_timeout_s = 30,
                             .max_output = 8192,
                             .sequential_limit = 7,
                             .keepalive_s = 10,
                             .queue_bytes = MS_JOB_QUEUE_BYTES,
                             .reuse = true,
                             .buffer_structured = true,
                             .constrain = true,
                             .model_source = "safetensors",
                             .static_precision = "q8",
                             .expert_store = "raw",
                             .build = "",
                             .fingerprint = "moonshine"};
}

static ms_status set_limits(ms_server *s, ms_error *err) {
    const ms_lane *lane = s->o.text->lane;
    uint64_t ceiling = s->o.max_output < s->o.context ? s->o.max_output : s->o.context;
    s->limits = (ms_api_limits){.model_id = s->o.model_id,
                                .aliases = s->o.aliases,
                                .any_model = s->o.any_model,
                                .max_output_ceiling = ceiling,
                                .default_output = ceiling < DEFAULT_OUTPUT ? ceiling : DEFAULT_OUTPUT,
                                .clamp_max_tokens = s->o.clamp_max_tokens,
                                .sampling = !lane->greedy_only || s->o.allow_sampling,
                                .logprobs = !lane->greedy_only,
                                .dynamic_tools = lane->dynamic_tools,
                                .efforts = lane->efforts,
                                .default_effort = lane->default_effort,
                                .needs_reasoning = lane->keeps_reasoning};
    if (ms_api_machine_key(s->limits.key, "/etc/machine-id")) return MS_OK;
    return ms_fail(err, MS_ERR_IO, "no random bytes");
}

static ms_status open_all(ms_server *s, ms_error *err) {
    MS_TRY(set_limits(s, err));
    s->calls = ms_call_memory_create(CALLS_MAX, CALLS_MAX_BYTES);
    if (!s->calls) return ms_fail_memory(err, "memory of calls", CALLS_MAX);
    s->turns = ms_turn_memory_create(TURNS_MAX, TURNS_MAX_BYTES);
    if (!s->turns) return ms_fail_memory(err, "memory of turns", TURNS_MAX);
    if (s->o.restore_reasoning && s->o.text->lane->keeps_reasoning) {
        s->reasoning = ms_reasoning_memory_create(REPLIES_MAX, REPLIES_MAX_BYTES);
        if (!s->reasoning) return ms_fail_memory(err, "memory of reasoning", REPLIES_MAX);
    }
    s->limits.call_history = ms_turn_memory_history;
    s->limits.call_history_arg = s->turns;
    if (s->o.constrain) MS_TRY(ms_constraints_create(&s->constraints, s->o.text, err));
    ms_server_profile(s);
    const ms_worker_options w = {.source = s->o.source,
                                 .generator = {.text = s->o.text,
                                               .log = s->o.log,
                                               .metrics = &s->metrics,
                                               .calls = s->calls,
                                               .turns = s->turns,
                                               .reasoning = s->reasoning,
                                               .model_id = s->o.model_id,
                                               .fingerprint = s->o.fingerprint,
                                               .sequential_limit = s->o.sequential_limit,
                                               .reuse = s->o.reuse && !s->o.forget_experts,
                                               .diagnostics = s->o.diagnostics,
                                               .digest = s->o.digest,
                                               .forget_experts = s->o.forget_experts,
                                               .buffer_structured = s->o.buffer_structured,
                                               .deadline_ns = (uint64_t)s->o.deadline_s * UINT64_C(1000000000)},
                                 .flush_ns = (uint64_t)s->o.io_timeout_s * UINT64_C(1000000000),
                                 .changed = s->o.changed,
                                 .changed_arg = s->o.changed_arg};
    const ms_front_options f = {.host = s->o.host,
                                .port = s->o.port,
                                .max_body_bytes = s->o.max_body_bytes,
                                .max_connections = s->o.max_connections,
                                .io_timeout_s = s->o.io_timeout_s,
                                .keys = s->o.keys,
                                .origins = s->o.origins,
                                .routes = routes,
                                .arg = s,
                                .log = s->o.log};
    /* An address that cannot be had is known before loading begins; handlers look at the worker from the first. */
    MS_TRY(ms_front_create(&s->front, &f, err));
    MS_TRY(ms_worker_create(&s->worker, &w, err));
    return ms_front_serve(s->front, err);
}

ms_status ms_server_create(ms_server **out, const ms_server_options *o, ms_error *err) {
    *out = NULL;
    ms_server *s = calloc(1, sizeof *s);
    if (!s) return ms_fail_memory(err, "server", sizeof *s);
    s->o = *o;
    if (!s->o.model_id) s->o.model_id = o->text->lane->model_id;
    s->created = (int64_t)time(NULL);
    s->started_ns = ms_clock_ns();
    (void)pthread_mutex_init(&s->parsing, NULL);
    ms_status status = open_all(s, err);
    if (status == MS_OK)
        *out = s;
    else
        ms_server_destroy(s);
    return status;
}

uint32_t ms_server_port(const ms_server *s) { return ms_front_port(s->front); }
const char *ms_server_address(const ms_server *s) { return ms_front_address(s->front); }

void ms_server_drain(ms_server *s) {
    if (s->front) ms_front_drain(s->front);
    ms_worker_drain(s->worker);
}

void ms_server_cancel(ms_server *s) {
    ms_server_drain(s);
    ms_worker_cancel(s->worker);
}

bool ms_server_idle(ms_server *s) { return ms_worker_idle(s->worker); }
bool ms_server_loaded(ms_server *s) { return ms_worker_loaded(s->worker); }

void ms_server_hang_up(ms_server *s) {
    ms_server_drain(s);
    ms_front_destroy(s->front);
    s->front = NULL;
}

/* Jobs end first, so that no connection waits for one; then connections, which hold jobs; then the rest. */
void ms_server_destroy(ms_server *s) {
    if (!s) return;
    if (s->worker) ms_server_cancel(s);
    if (s->worker) ms_worker_stop(s->worker);
    ms_front_destroy(s->front);
    ms_worker_destroy(s->worker);
    ms_call_memory_destroy(s->calls);
    ms_constraints_destroy(s->constraints);
    ms_turn_memory_destroy(s->turns);
    ms_reasoning_memory_destroy(s->reasoning);
    (void)pthread_mutex_destroy(&s->parsing);
    free(s);
}
