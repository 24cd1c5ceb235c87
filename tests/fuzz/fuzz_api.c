/* fuzz_api.c: any bytes as the body of a request of each API; what is accepted must be consistent and must be
 * answerable.
 *
 * The first byte chooses the API and the limits, the rest is the body.
 */
#include <stdlib.h>
#include <string.h>

#include "server/api.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool history(void *arg, const char *id, size_t len, ms_text *messages) {
    (void)arg;
    if (!len || id[0] != 'k') return false;
    ms_text_puts(messages, "{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"reasoning_content\":\"r\","
                           "\"tool_calls\":[{\"id\":\"k\",\"type\":\"function\",\"function\":{\"name\":\"f\"}}]}");
    return true;
}

static void require(bool good) {
    if (!good) abort();
}

static void check_error(const ms_api_error *e, ms_api_kind kind) {
    ms_text out = {0};
    ms_json_doc *doc = NULL;
    require(e->http >= 400 && e->code && e->message[0]);
    ms_api_error_document(&out, kind, e, NULL);
    require(ms_json_parse(&doc, out.data, out.len, "error", NULL, NULL) == MS_OK);
    ms_json_free(doc);
    ms_text_free(&out);
}

static void check_request(const ms_api_request *r) {
    require(r->max_tokens >= 1 && r->max_tokens <= 4096);
    require(!r->thinking || r->effort);
    if (r->kind == MS_API_COMPLETIONS) {
        require(r->has_prompt_text != (r->prompt_ids != NULL));
        return;
    }
    require(ms_json_root(r->chat_doc)->type == MS_JSON_OBJECT);
    require(!r->tool_count || (r->tools && r->tool_allowed));
    for (size_t i = 0; i < r->tool_count; i++) require(r->tools[i].name_len > 0);
    require((r->format == MS_API_JSON_SCHEMA) == (r->schema != NULL));
    require(ms_json_get(ms_json_root(r->chat_doc), "messages")->count == r->message_count);
}

static void write_all(const ms_api_codec *codec, const ms_api_request *r) {
    ms_text out = {0};
    ms_api_start start = {.id = "1", .model = "m", .fingerprint = "f"};
    ms_api_writer *w = codec->writer(r);
    require(w != NULL);
    w->ops->start(w, &out, &start);
    w->ops->text(w, &out, MS_CHANNEL_THINK, "a\n\"", 3, NULL, 0);
    w->ops->text(w, &out, MS_CHANNEL_RESPONSE, "\xc3\xa4", 2, NULL, 0);
    if (r->tool_count) {
        w->ops->tool_begin(w, &out, r->tools[0].name, r->tools[0].name_len);
        w->ops->tool_arguments(w, &out, "{}", 2);
        w->ops->tool_end(w, &out);
    }
    w->ops->finish(w, &out, &(ms_api_end){.finish = MS_API_STOP, .comment = "c"});
    w->ops->destroy(w);
    require(!out.failed && out.len);
    if (!r->stream) {
        ms_json_doc *doc = NULL;
        require(ms_json_parse(&doc, out.data, out.len, "reply", NULL, NULL) == MS_OK);
        ms_json_free(doc);
    }
    ms_text_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const ms_api_codec *const codecs[] = {&ms_api_chat, &ms_api_completions, &ms_api_messages,
                                                 &ms_api_responses};
    static const char *const efforts[2][3] = {{"low", "max", NULL}, {"none", "high", NULL}};
    if (!size) return 0;
    unsigned bits = data[0];
    bool greedy = bits & 4;
    ms_api_limits l = {.model_id = "m",
                       .any_model = bits & 8,
                       .max_output_ceiling = 4096,
                       .default_output = 256,
                       .clamp_max_tokens = bits & 16,
                       .sampling = !greedy,
                       .logprobs = !greedy,
                       .dynamic_tools = !greedy,
                       .efforts = efforts[greedy],
                       .default_effort = efforts[greedy][1],
                       .call_history = bits & 32 ? history : NULL,
                       .needs_reasoning = bits & 64};
    const ms_api_codec *codec = codecs[bits & 3];
    ms_api_request r;
    ms_api_error err;
    if (!codec->parse(&r, (const char *)data + 1, size - 1, &l, bits & 128, &err)) {
        check_error(&err, codec->kind);
        return 0;
    }
    require(!err.http);
    check_request(&r);
    write_all(codec, &r);
    ms_api_request_free(&r);
    return 0;
}
