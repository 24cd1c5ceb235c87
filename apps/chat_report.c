/* chat_report.c: telemetry lines and the JSON object of a turn.  Their fields and order are stable: scripts read them.
 */
#include <string.h>

#include "chat.h"

static double seconds(uint64_t ns) { return (double)ns / 1e9; }
static double rate(double count, uint64_t ns) { return ns ? count / seconds(ns) : 0; }

static const char *finish_name(ms_finish f, bool wire) {
    switch (f) {
    case MS_FINISH_END:
        return wire ? "stop" : "end_of_message";
    case MS_FINISH_LENGTH:
        return "length";
    case MS_FINISH_TOOL_CALLS:
        return "tool_calls";
    case MS_FINISH_STOP:
        return "stop";
    case MS_FINISH_CANCELLED:
        break;
    }
    return "cancelled";
}

void chat_write_stats(ms_text *out, const ms_turn_result *r, size_t forced, uint64_t position) {
    double share = r->cache_accesses ? 100.0 * (double)r->cache_hits / (double)r->cache_accesses : 0;
    ms_text_printf(
        out,
        "[prompt=%zu %s %.3fs %.2f tok/s; generated=%zu %.3fs %.2f tok/s; finish=%s; forced=%zu; position=%llu; "
        "cache=%llu/%llu %.1f%%]\n",
        r->evaluated, r->layer_major ? "layer-major" : "token-major", seconds(r->prompt_ns),
        rate((double)r->evaluated, r->prompt_ns), r->generated.count, seconds(r->decode_ns),
        rate((double)r->generated.count, r->decode_ns), finish_name(r->finish, false), forced,
        (unsigned long long)position, (unsigned long long)r->cache_hits, (unsigned long long)r->cache_accesses, share);
    if (!r->layer_major) return;
    ms_text_printf(out, "[prefill read=%llu bytes; sweeps=%llu; experts=%llu/%.1f/%llu]\n",
                   (unsigned long long)r->prompt_read_bytes, (unsigned long long)r->sweeps,
                   (unsigned long long)r->unique_min, r->unique_avg, (unsigned long long)r->unique_max);
}

static void write_calls(ms_text *out, const ms_reply *reply, uint64_t position) {
    ms_text_puts(out, ",\"tool_calls\":[");
    for (size_t i = 0; i < reply->call_count; i++) {
        const ms_tool_call *call = &reply->calls[i];
        ms_text_printf(out, "%s{\"id\":\"call_%llu_%zu\",\"type\":\"function\",\"function\":{\"name\":", i ? "," : "",
                       (unsigned long long)position, i);
        ms_json_write_string(out, call->name, strlen(call->name));
        ms_text_puts(out, ",\"arguments\":");
        ms_json_write_string(out, call->arguments, call->arguments_len);
        ms_text_puts(out, "}}");
    }
    ms_text_puts(out, "]");
}

void chat_write_json(ms_text *out, const chat *c, const ms_prompt *p, const ms_turn_result *r, size_t forced) {
    uint64_t position = ms_session_position(c->session);
    ms_text_puts(out, "{\"content\":");
    if (!r->reply.content_len && r->reply.call_count)
        ms_text_puts(out, "null");
    else
        ms_json_write_string(out, r->reply.content, r->reply.content_len);
    ms_text_puts(out, ",\"reasoning_content\":");
    if (p->mode.thinking)
        ms_json_write_string(out, r->reply.reasoning, r->reply.reasoning_len);
    else
        ms_text_puts(out, "null");
    write_calls(out, &r->reply, position);
    ms_text_printf(out,
                   ",\"finish_reason\":\"%s\",\"usage\":{\"prompt_tokens\":%zu,\"completion_tokens\":%zu,"
                   "\"total_tokens\":%zu,\"prompt_tokens_details\":{\"cached_tokens\":%zu},"
                   "\"completion_tokens_details\":{\"reasoning_tokens\":%llu}}",
                   finish_name(r->finish, true), r->prompt, r->generated.count, r->prompt + r->generated.count,
                   r->reused, (unsigned long long)r->reasoning_tokens);
    ms_text_printf(out, ",\"timing\":{\"load_seconds\":%.6f,\"prompt_seconds\":%.6f,\"decode_seconds\":%.6f}",
                   c->load_seconds, seconds(r->prompt_ns), seconds(r->decode_ns));
    ms_text_printf(out, ",\"prefill\":{\"strategy\":\"%s\",\"evaluated\":%zu,\"reused\":%zu,\"read_bytes\":%llu}",
                   r->layer_major ? "layer-major" : "token-major", r->evaluated, r->reused,
                   (unsigned long long)r->prompt_read_bytes);
    ms_text_printf(out, ",\"position\":%llu,\"forced_trailer\":%zu,\"cache\":{\"hits\":%llu,\"accesses\":%llu}}\n",
                   (unsigned long long)position, forced, (unsigned long long)r->cache_hits,
                   (unsigned long long)r->cache_accesses);
}

ms_status chat_write_digest(ms_text *out, chat *c, ms_error *err) {
    ms_digest d;
    MS_TRY(ms_session_digest(c->session, &d, err));
    ms_text_printf(out, "[digest position=%llu", (unsigned long long)d.position);
    for (uint32_t i = 0; i < d.count; i++) {
        ms_text_printf(out, " %s=%016llx", d.part[i].kind, (unsigned long long)d.part[i].fnv1a64);
    }
    ms_text_puts(out, "]\n");
    return out->failed ? ms_fail_memory(err, "a digest line", out->len) : MS_OK;
}
