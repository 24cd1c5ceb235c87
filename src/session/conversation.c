/* conversation.c: conversation.h.
 *
 * Owns: see the header.  Threads: none shared.
 * Invariant: `ids` ends at a message's end, and with the rendering of a new message behind it is a prompt.
 */
#include "session/conversation.h"

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------ requests and renderings */

static bool same_mode(const ms_think_mode *a, const ms_think_mode *b) {
    if (a->thinking != b->thinking) return false;
    if (!a->thinking || a->effort == b->effort) return true;
    return a->effort && b->effort && strcmp(a->effort, b->effort) == 0;
}

/* Renders messages (JSON objects joined with ",") under a mode. */
static ms_status render(const ms_text_model *model, const ms_text *messages, const ms_think_mode *mode, bool generation,
                        ms_segments *out, ms_error *err) {
    ms_text t = {0};
    ms_text_puts(&t, "{\"messages\":[");
    ms_text_append(&t, messages->data, messages->len);
    ms_text_printf(&t, "],\"thinking\":%s,\"add_generation_prompt\":%s", mode->thinking ? "true" : "false",
                   generation ? "true" : "false");
    if (mode->thinking && mode->effort) ms_text_printf(&t, ",\"thinking_effort\":\"%s\"", mode->effort);
    ms_text_puts(&t, "}");
    if (t.failed || messages->failed) {
        ms_text_free(&t);
        return ms_fail_memory(err, "the conversation's messages", messages->len);
    }
    static const ms_json_limits limits = {.allow_invalid_utf8 = true};
    ms_json_doc *doc = NULL;
    ms_status status = ms_json_parse(&doc, t.data, t.len, "conversation", &limits, err);
    if (status == MS_OK) status = model->lane->render(ms_json_root(doc), out, err);
    ms_json_free(doc);
    ms_text_free(&t);
    return status;
}

static bool segments_begin_with(const ms_segments *s, const ms_segments *prefix) {
    if (prefix->count > s->count) return false;
    for (size_t i = 0; i < prefix->count; i++) {
        const ms_segment *a = &s->items[i], *b = &prefix->items[i];
        if (a->control != b->control || a->len != b->len || memcmp(a->text, b->text, a->len) != 0) return false;
    }
    return true;
}

/* Encodes segments [from..count). */
static ms_status encode_from(const ms_text_model *model, const ms_segments *s, size_t from, ms_ids *out,
                             ms_error *err) {
    ms_segments rest = {.items = s->items + from, .count = s->count - from, .cap = 0};
    return rest.count ? ms_segments_encode(&rest, model->tokenizer, out, err) : MS_OK;
}

static void write_user(ms_text *out, const char *role, const char *text, size_t len) {
    ms_text_printf(out, "{\"role\":\"%s\",\"content\":", role);
    ms_json_write_string(out, text, len);
    ms_text_puts(out, "}");
}

static void write_assistant(ms_text *out, const ms_reply *r) {
    ms_text_puts(out, "{\"role\":\"assistant\",\"reasoning_content\":");
    ms_json_write_string(out, r->reasoning ? r->reasoning : "", r->reasoning_len);
    ms_text_puts(out, ",\"content\":");
    ms_json_write_string(out, r->content ? r->content : "", r->content_len);
    if (r->call_count) ms_text_puts(out, ",\"tool_calls\":[");
    for (size_t i = 0; i < r->call_count; i++) {
        ms_text_puts(out, i ? ",{\"function\":{\"name\":" : "{\"function\":{\"name\":");
        ms_json_write_string(out, r->calls[i].name, strlen(r->calls[i].name));
        ms_text_puts(out, ",\"arguments\":");
        ms_json_write_string(out, r->calls[i].arguments, r->calls[i].arguments_len);
        ms_text_puts(out, "}}");
    }
    ms_text_puts(out, r->call_count ? "]}" : "}");
}

static void append_message(ms_text *messages, const ms_text *one) {
    if (messages->len) ms_text_puts(messages, ",");
    ms_text_append(messages, one->data, one->len);
    messages->failed = messages->failed || one->failed;
}

/* ------------------------------------------------------------------ replies */

/* The segments of an assistant message behind its generation prompt. */
typedef struct reply_segments {
    ms_segments all;
    size_t first;
} reply_segments;

static ms_status render_reply(const ms_text_model *model, bool thinking, const ms_reply *reply, reply_segments *out,
                              ms_error *err) {
    *out = (reply_segments){0};
    const ms_think_mode mode = {.thinking = thinking};
    ms_segments opening = {0};
    ms_text none = {0}, message = {0};
    write_assistant(&message, reply);
    ms_status status = render(model, &none, &mode, true, &opening, err);
    if (status == MS_OK) status = render(model, &message, &mode, false, &out->all, err);
    if (status == MS_OK && !segments_begin_with(&out->all, &opening)) {
        status = ms_fail(err, MS_ERR_INTERNAL, "%s: a rendered reply does not begin with the generation prompt",
                         model->lane->name);
    }
    out->first = opening.count;
    ms_segments_free(&opening);
    ms_text_free(&message);
    if (status != MS_OK) ms_segments_free(&out->all);
    return status;
}

ms_status ms_reply_finish_ids(const ms_text_model *model, bool thinking, const ms_reply *reply,
                              const uint32_t *generated, size_t count, bool *exact, ms_ids *out, ms_error *err) {
    reply_segments r;
    MS_TRY(render_reply(model, thinking, reply, &r, err));
    ms_segment_place p = {r.first, 0};
    *exact = ms_segments_spell(&r.all, model->tokenizer, &p, generated, count) && ms_segments_whole(&r.all, &p);
    ms_status status = MS_OK;
    if (!*exact) p = (ms_segment_place){r.first, 0};
    if (p.offset) {
        const ms_segment *seg = &r.all.items[p.segment++];
        status = ms_tokenizer_encode(model->tokenizer, seg->text + p.offset, seg->len - p.offset, false, out, err);
    }
    if (status == MS_OK) status = encode_from(model, &r.all, p.segment, out, err);
    ms_segments_free(&r.all);
    return status;
}

ms_status ms_reply_closing_count(const ms_text_model *model, bool thinking, size_t *out, ms_error *err) {
    const ms_reply empty = {0};
    ms_ids ids = {0};
    bool exact;
    ms_status status = ms_reply_finish_ids(model, thinking, &empty, NULL, 0, &exact, &ids, err);
    *out = ids.count;
    ms_ids_free(&ids);
    return status;
}

/* ------------------------------------------------------------------ life */

void ms_prompt_free(ms_prompt *p) {
    ms_ids_free(&p->ids);
    ms_text_free(&p->message);
    ms_text_free(&p->tools);
    *p = (ms_prompt){0};
}

void ms_conversation_init(ms_conversation *c, const ms_text_model *model) { *c = (ms_conversation){.model = model}; }

void ms_conversation_clear(ms_conversation *c) {
    c->messages.len = 0;
    c->message_count = 0;
    c->ids.count = 0;
    c->opaque = false;
    c->undo.possible = false;
}

void ms_conversation_fini(ms_conversation *c) {
    ms_text_free(&c->messages);
    ms_ids_free(&c->ids);
    *c = (ms_conversation){0};
}

ms_status ms_conversation_system(ms_conversation *c, const char *text, size_t len, ms_error *err) {
    if (c->ids.count || c->message_count > 1) {
        return ms_fail(err, MS_ERR_USAGE, "a system message must come before the first turn");
    }
    ms_text message = {0};
    write_user(&message, "system", text, len);
    c->messages.len = 0;
    append_message(&c->messages, &message);
    c->message_count = 1;
    ms_text_free(&message);
    return c->messages.failed ? ms_fail_memory(err, "the system message", len) : MS_OK;
}

/* ------------------------------------------------------------------ continuing foreign ids */

static ms_status parse_reply(const ms_text_model *model, ms_channel channel, const uint32_t *ids, size_t count,
                             ms_reply *out, ms_error *err) {
    const ms_reply_parser_ops *ops = model->lane->parser;
    void *parser = NULL;
    *out = (ms_reply){0};
    MS_TRY(ops->create(&parser, model->tokenizer, channel, err));
    ms_status status = MS_OK;
    bool done = false;
    for (size_t i = 0; i < count && !done && status == MS_OK; i++) status = ops->push(parser, ids[i], NULL, &done, err);
    if (status == MS_OK) status = ops->finish(parser, NULL, out, err);
    ops->destroy(parser);
    return status;
}

/* When tail is a generation prompt of this mode with a partial reply behind it, appends what closes it.  Ids that
 * cannot be extended exactly stay as they are: *found is false then. */
static ms_status close_tail(const ms_text_model *model, bool thinking, const uint32_t *tail, size_t count,
                            ms_ids *closing, bool *found, ms_error *err) {
    const ms_think_mode mode = {.thinking = thinking};
    ms_segments opening = {0};
    ms_text none = {0};
    ms_ids prompt = {0};
    ms_reply reply = {0};
    ms_status status = render(model, &none, &mode, true, &opening, err);
    if (status == MS_OK) status = ms_segments_encode(&opening, model->tokenizer, &prompt, err);
    if (status == MS_OK && prompt.count && prompt.count <= count &&
        memcmp(prompt.data, tail, prompt.count * sizeof *tail) == 0) {
        tail += prompt.count;
        count -= prompt.count;
        status = parse_reply(model, thinking ? MS_CHANNEL_THINK : MS_CHANNEL_RESPONSE, tail, count, &reply, err);
        if (status == MS_OK) status = ms_reply_finish_ids(model, thinking, &reply, tail, count, found, closing, err);
        if (!*found) closing->count = 0;
    }
    ms_reply_free(&reply);
    ms_ids_free(&prompt);
    ms_segments_free(&opening);
    return status;
}

ms_status ms_conversation_continue(ms_conversation *c, const uint32_t *ids, size_t count, size_t *closed,
                                   ms_error *err) {
    size_t boundary = count;
    while (boundary && ids[boundary - 1] != c->model->info.eos) boundary--;
    ms_ids closing = {0}, all = {0};
    ms_status status = MS_OK;
    bool found = boundary == count;
    for (int thinking = 0; thinking <= 1 && !found && status == MS_OK; thinking++) {
        status = close_tail(c->model, thinking, ids + boundary, count - boundary, &closing, &found, err);
    }
    if (status == MS_OK && !found) status = ms_ids_push(&closing, c->model->info.eos, err);
    if (status == MS_OK) status = ms_ids_append(&all, ids, count, err);
    if (status == MS_OK && closing.count) status = ms_ids_append(&all, closing.data, closing.count, err);
    if (status == MS_OK) {
        if (closed) *closed = closing.count;
        ms_conversation_clear(c);
        ms_ids_free(&c->ids);
        c->ids = all;
        c->opaque = count > 0;
        c->ids_mode = c->mode;
    } else {
        ms_ids_free(&all);
    }
    ms_ids_free(&closing);
    return status;
}

/* ------------------------------------------------------------------ prompts */

bool ms_conversation_rerenders(const ms_conversation *c) {
    return c->ids.count && !c->opaque && !same_mode(&c->mode, &c->ids_mode);
}

/* The whole conversation with the new message, or only what follows the conversation's ids. */
static ms_status user_ids(const ms_conversation *c, const ms_text *message, ms_prompt *out, ms_error *err) {
    ms_segments before = {0}, all = {0};
    ms_text messages = {0};
    ms_text_append(&messages, c->messages.data, c->messages.len);
    append_message(&messages, message);
    bool whole = !c->ids.count || ms_conversation_rerenders(c);
    ms_status status = render(c->model, &messages, &c->mode, true, &all, err);
    if (status == MS_OK && !whole) status = render(c->model, &c->messages, &c->mode, false, &before, err);
    if (status == MS_OK && !whole && !segments_begin_with(&all, &before)) {
        if (c->opaque) {
            status = ms_fail(err, MS_ERR_INTERNAL, "%s: a longer conversation does not begin with the shorter one",
                             c->model->lane->name);
        }
        whole = true;
    }
    if (status == MS_OK && !whole) status = ms_ids_append(&out->ids, c->ids.data, c->ids.count, err);
    out->appended_from = out->ids.count;
    if (status == MS_OK) status = encode_from(c->model, &all, whole ? 0 : before.count, &out->ids, err);
    ms_segments_free(&before);
    ms_segments_free(&all);
    ms_text_free(&messages);
    return status;
}

ms_status ms_conversation_user(const ms_conversation *c, const char *text, size_t len, ms_prompt *out, ms_error *err) {
    *out = (ms_prompt){.mode = c->mode, .channel = c->mode.thinking ? MS_CHANNEL_THINK : MS_CHANNEL_RESPONSE};
    write_user(&out->message, "user", text, len);
    ms_status status = user_ids(c, &out->message, out, err);
    if (status == MS_OK) status = ms_reply_closing_count(c->model, c->mode.thinking, &out->closing_tokens, err);
    if (status != MS_OK) ms_prompt_free(out);
    return status;
}

static void append_tools(ms_text *out, const ms_json *tools) {
    for (const ms_json *t = tools && tools->type == MS_JSON_ARRAY ? tools->child : NULL; t; t = t->next) {
        ms_text_puts(out, out->len ? "," : "[");
        ms_json_write(out, t, &ms_json_compact);
    }
}

/* What a request declares, for the parser of the reply. */
static ms_status collect_tools(const ms_json *request, ms_text *out, ms_error *err) {
    append_tools(out, ms_json_get(request, "tools"));
    const ms_json *messages = ms_json_get(request, "messages");
    for (const ms_json *m = messages && messages->type == MS_JSON_ARRAY ? messages->child : NULL; m; m = m->next)
        append_tools(out, ms_json_get(m, "tools"));
    if (out->len) ms_text_puts(out, "]");
    return out->failed ? ms_fail_memory(err, "declared tools", out->len) : MS_OK;
}

ms_status ms_conversation_request(const ms_conversation *c, const ms_json *request, ms_prompt *out, ms_error *err) {
    bool thinking = true, generation = true;
    (void)ms_json_bool(ms_json_get(request, "thinking"), &thinking); /* a wrong type is the renderer's to refuse */
    (void)ms_json_bool(ms_json_get(request, "add_generation_prompt"), &generation);
    *out = (ms_prompt){.mode = {.thinking = thinking}};
    out->channel = !generation ? MS_CHANNEL_NONE : thinking ? MS_CHANNEL_THINK : MS_CHANNEL_RESPONSE;
    ms_segments all = {0};
    ms_status status = c->model->lane->render(request, &all, err);
    if (status == MS_OK) status = encode_from(c->model, &all, 0, &out->ids, err);
    if (status == MS_OK) status = ms_reply_closing_count(c->model, thinking, &out->closing_tokens, err);
    if (status == MS_OK) status = collect_tools(request, &out->tools, err);
    ms_segments_free(&all);
    if (status != MS_OK) ms_prompt_free(out);
    return status;
}

/* ------------------------------------------------------------------ accepting a turn */

/* The turn's ids: prompt, reply, closing. */
static ms_status turn_ids(const ms_conversation *c, const ms_prompt *p, const ms_reply *reply,
                          const uint32_t *generated, size_t count, size_t *forced, ms_ids *out, ms_error *err) {
    ms_ids closing = {0};
    bool exact = false;
    ms_status status = ms_reply_finish_ids(c->model, p->mode.thinking, reply, generated, count, &exact, &closing, err);
    if (status == MS_OK) status = ms_ids_append(out, p->ids.data, p->ids.count, err);
    if (status == MS_OK && exact && count) status = ms_ids_append(out, generated, count, err);
    if (status == MS_OK && closing.count) status = ms_ids_append(out, closing.data, closing.count, err);
    *forced = exact ? closing.count : 0;
    ms_ids_free(&closing);
    return status;
}

ms_status ms_conversation_accept(ms_conversation *c, const ms_prompt *p, const ms_reply *reply,
                                 const uint32_t *generated, size_t count, size_t *forced, ms_error *err) {
    ms_ids ids = {0};
    ms_text messages = {0}, answer = {0};
    bool request = !p->message.len;
    ms_status status = turn_ids(c, p, reply, generated, count, forced, &ids, err);
    if (status == MS_OK && !request) {
        write_assistant(&answer, reply);
        ms_text_append(&messages, c->messages.data, c->messages.len);
        append_message(&messages, &p->message);
        append_message(&messages, &answer);
        if (messages.failed) status = ms_fail_memory(err, "the conversation's messages", messages.len);
    }
    ms_text_free(&answer);
    if (status != MS_OK) {
        ms_ids_free(&ids);
        ms_text_free(&messages);
        return status;
    }
    c->undo.possible = !request;
    c->undo.messages_len = c->messages.len;
    c->undo.message_count = c->message_count;
    c->undo.ids_count = p->appended_from;
    c->message_count = request ? 0 : c->message_count + 2;
    c->opaque = c->opaque || request;
    c->ids_mode = p->mode;
    ms_text_free(&c->messages);
    c->messages = messages;
    ms_ids_free(&c->ids);
    c->ids = ids;
    return MS_OK;
}

bool ms_conversation_undo(ms_conversation *c) {
    if (!c->undo.possible) return false;
    c->undo.possible = false;
    c->messages.len = c->undo.messages_len;
    c->message_count = c->undo.message_count;
    c->ids.count = c->undo.ids_count;
    return true;
}
