#include "server/metrics.h"

#include <inttypes.h>

static const double bounds[MS_BUCKETS] = {0.001, 0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 5, 30, 120, 600};
static const char *const apis[MS_APIS] = {"chat", "completions", "messages", "responses"};
static const char *const outcomes[MS_OUTCOMES] = {"ok", "client_error", "failed", "cancelled"};
static const char *const phases[MS_CANCEL_PHASES] = {"queue", "prefill", "decode"};

void ms_histogram_add(ms_histogram *h, double seconds) {
    size_t i = 0;
    while (i < MS_BUCKETS && seconds > bounds[i]) i++;
    (void)atomic_fetch_add(&h->bucket[i], 1);
    (void)atomic_fetch_add(&h->sum_us, (uint64_t)(seconds * 1e6));
    (void)atomic_fetch_add(&h->count, 1);
}

static void head(ms_text *out, const char *name, const char *type, const char *help) {
    ms_text_printf(out, "# HELP moonshine_%s %s\n# TYPE moonshine_%s %s\n", name, help, name, type);
}

static void counter(ms_text *out, const char *name, const char *help, ms_counter *c) {
    head(out, name, "counter", help);
    ms_text_printf(out, "moonshine_%s %" PRIu64 "\n", name, (uint64_t)atomic_load(c));
}

static void seconds(ms_text *out, const char *name, const char *help, ms_counter *us) {
    head(out, name, "counter", help);
    ms_text_printf(out, "moonshine_%s %.6f\n", name, (double)atomic_load(us) / 1e6);
}

static void histogram(ms_text *out, const char *name, const char *help, ms_histogram *h) {
    uint64_t sum = 0;
    head(out, name, "histogram", help);
    for (size_t i = 0; i < MS_BUCKETS; i++) {
        sum += atomic_load(&h->bucket[i]);
        ms_text_printf(out, "moonshine_%s_bucket{le=\"%g\"} %" PRIu64 "\n", name, bounds[i], sum);
    }
    sum += atomic_load(&h->bucket[MS_BUCKETS]);
    ms_text_printf(out, "moonshine_%s_bucket{le=\"+Inf\"} %" PRIu64 "\n", name, sum);
    ms_text_printf(out, "moonshine_%s_sum %.6f\nmoonshine_%s_count %" PRIu64 "\n", name,
                   (double)atomic_load(&h->sum_us) / 1e6, name, sum);
}

void ms_metrics_write(ms_metrics *m, ms_text *out) {
    head(out, "requests_total", "counter", "Finished requests for the model.");
    for (size_t a = 0; a < MS_APIS; a++) {
        for (size_t o = 0; o < MS_OUTCOMES; o++) {
            ms_text_printf(out, "moonshine_requests_total{endpoint=\"%s\",outcome=\"%s\"} %" PRIu64 "\n", apis[a],
                           outcomes[o], (uint64_t)atomic_load(&m->requests[a][o]));
        }
    }
    head(out, "requests_in_progress", "gauge", "Requests that have the slot or wait for it.");
    ms_text_printf(out, "moonshine_requests_in_progress %" PRIu64 "\n", (uint64_t)atomic_load(&m->in_progress));
    counter(out, "prompt_tokens_total", "Tokens of all prompts.", &m->prompt_tokens);
    counter(out, "prompt_tokens_reused_total", "Prompt tokens taken over from a state.", &m->prompt_tokens_reused);
    counter(out, "completion_tokens_total", "Generated tokens.", &m->completion_tokens);
    counter(out, "reasoning_tokens_total", "Generated tokens of reasoning.", &m->reasoning_tokens);
    seconds(out, "prefill_seconds_total", "Time in prompts.", &m->prefill_us);
    seconds(out, "decode_seconds_total", "Time in generation.", &m->decode_us);
    histogram(out, "time_to_first_token_seconds", "From admission to the first token.", &m->first_token);
    histogram(out, "decode_token_seconds", "Between two tokens.", &m->decode_token);
    counter(out, "busy_rejections_total", "Requests refused because the slot was taken.", &m->busy_rejections);
    head(out, "cancelled_total", "counter", "Requests that ended early, by what they were doing.");
    for (size_t i = 0; i < MS_CANCEL_PHASES; i++) {
        ms_text_printf(out, "moonshine_cancelled_total{phase=\"%s\"} %" PRIu64 "\n", phases[i],
                       (uint64_t)atomic_load(&m->cancelled[i]));
    }
    counter(out, "deadline_exceeded_total", "Requests cut by their deadline.", &m->deadline_exceeded);
    counter(out, "expert_cache_hits_total", "Experts found in the cache.", &m->expert_hits);
    counter(out, "expert_cache_accesses_total", "Experts looked for in the cache.", &m->expert_accesses);
    counter(out, "expert_read_bytes_total", "Bytes of experts read.", &m->expert_read_bytes);
    counter(out, "workspace_borrow_bytes_total", "Bytes of cache slots that long passes borrowed.", &m->borrowed_bytes);
}
