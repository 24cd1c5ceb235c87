/* text_parse_cases.c: see the header. */
#include "text_parse_cases.h"

#include "lane/k3/k3_chat.h"

/* What a client that only sees deltas has at the end. */
typedef struct joined {
    ms_text reasoning, content;
} joined;

static void join(joined *all, const ms_reply_delta *d) {
    ms_text_append(&all->reasoning, d->reasoning.data, d->reasoning.len);
    ms_text_append(&all->content, d->content.data, d->content.len);
}

static bool feed(k3_parser *p, const ms_json *ids, joined *all, ms_reply *reply, ms_error *err) {
    ms_reply_delta delta = {0};
    bool done = false, ok = true;
    for (const ms_json *v = ids->child; v && ok && !done; v = v->next) {
        uint64_t id;
        ok = ms_json_u64(v, &id) && k3_parser_push(p, (uint32_t)id, &delta, &done, err) == MS_OK;
        join(all, &delta);
    }
    ok = ok && k3_parser_finish(p, &delta, reply, err) == MS_OK;
    join(all, &delta);
    ms_text_free(&delta.reasoning);
    ms_text_free(&delta.content);
    return ok;
}

static bool check_calls(const ms_json *want, const ms_reply *r) {
    if (!want || want->count != r->call_count) return false;
    size_t i = 0;
    for (const ms_json *w = want->child; w; w = w->next, i++) {
        const ms_tool_call *c = &r->calls[i];
        if (!golden_same(ms_json_get(w, "name"), c->name, c->name_len)) return false;
        if (!golden_same(ms_json_get(w, "arguments"), c->arguments, c->arguments_len)) return false;
    }
    return true;
}

static const char *compare(const ms_json *want, const ms_reply *r, const joined *all) {
    static const char *const status[] = {"complete", "truncated", "malformed"};
    const ms_json *error = ms_json_get(want, "error");
    bool recovered = false;
    if (!ms_json_is_string(ms_json_get(want, "status"), status[r->status])) return "status";
    if (r->error ? !ms_json_is_string(error, r->error) : !error || error->type != MS_JSON_NULL) return "error";
    if (!ms_json_bool(ms_json_get(want, "recovered"), &recovered) || recovered != r->recovered) return "recovered";
    if (!golden_same(ms_json_get(want, "reasoning"), r->reasoning, r->reasoning_len)) return "reasoning";
    if (!golden_same(ms_json_get(want, "content"), r->content, r->content_len)) return "content";
    if (!check_calls(ms_json_get(want, "tool_calls"), r)) return "tool_calls";
    const ms_text *reasoning = &all->reasoning, *content = &all->content;
    if (!golden_same(ms_json_get(want, "reasoning"), reasoning->data, reasoning->len)) return "reasoning deltas";
    if (!golden_same(ms_json_get(want, "content"), content->data, content->len)) return "content deltas";
    return NULL;
}

static bool check_segments(const ms_json *segments, const ms_json *want, const ms_tokenizer *t) {
    ms_segments list = {0};
    ms_ids ids = {0};
    ms_error err;
    bool ok = segments != NULL;
    for (const ms_json *s = ok ? segments->child : NULL; s && ok; s = s->next) {
        const ms_json *text = ms_json_at(s, 1);
        bool control = ms_json_is_string(ms_json_at(s, 0), "ctl");
        ok = text && ms_segments_push(&list, control, text->str, text->str_len, &err) == MS_OK;
    }
    ok = ok && ms_segments_encode(&list, t, &ids, &err) == MS_OK && ids.count == want->count;
    size_t i = 0;
    for (const ms_json *w = ok ? want->child : NULL; w && ok; w = w->next) {
        uint64_t id;
        ok = ms_json_u64(w, &id) && id == ids.data[i++];
    }
    ms_segments_free(&list);
    ms_ids_free(&ids);
    return ok;
}

static bool run_case(const ms_json *c, const ms_tokenizer *t, char *detail, size_t room) {
    const ms_json *channel = ms_json_get(c, "channel"), *ids = ms_json_get(c, "ids_tok4096");
    ms_channel start = ms_json_is_string(channel, "think")      ? MS_CHANNEL_THINK
                       : ms_json_is_string(channel, "response") ? MS_CHANNEL_RESPONSE
                                                                : MS_CHANNEL_NONE;
    k3_parser *p;
    ms_error err = {0};
    joined all = {0};
    ms_reply reply = {0};
    const char *wrong = NULL;
    if (!ids || k3_parser_create(&p, t, start, &err) != MS_OK) return false;
    if (!check_segments(ms_json_get(c, "segments"), ids, t)) wrong = "ids of the segments";
    if (!wrong && !feed(p, ids, &all, &reply, &err)) wrong = err.message;
    if (!wrong) wrong = compare(ms_json_get(c, "result"), &reply, &all);
    if (wrong) {
        (void)snprintf(detail, room, "differs in: %s; found status %d, error %s, recovered %d, reasoning \"%.200s\", "
                       "content \"%.200s\", %zu calls", wrong, (int)reply.status, reply.error ? reply.error : "none",
                       reply.recovered, reply.reasoning ? reply.reasoning : "", reply.content ? reply.content : "",
                       reply.call_count);
    }
    k3_parser_destroy(p);
    ms_reply_free(&reply);
    ms_text_free(&all.reasoning);
    ms_text_free(&all.content);
    return !wrong;
}

int golden_parse_file(const char *path, const ms_tokenizer *t, golden_report *report, void *arg) {
    char *text, detail[1200];
    ms_json_doc *doc;
    ms_error err;
    if (!golden_open(path, &text, &doc, &err)) {
        report(arg, "file", false, err.message);
        return -1;
    }
    int count = 0;
    const ms_json *cases = ms_json_get(ms_json_root(doc), "cases");
    for (const ms_json *c = cases ? cases->child : NULL; c; c = c->next, count++) {
        detail[0] = 0;
        bool ok = run_case(c, t, detail, sizeof detail);
        report(arg, golden_name(c), ok, detail);
    }
    ms_json_free(doc);
    free(text);
    return count;
}
