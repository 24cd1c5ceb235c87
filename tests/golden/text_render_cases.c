/* text_render_cases.c: see the header. */
#include "text_render_cases.h"

#include "lane/k3/k3_chat.h"

static bool check_segments(const ms_json *want, const ms_segments *got, char *detail, size_t room) {
    size_t i = 0;
    for (const ms_json *w = want ? want->child : NULL; w; w = w->next, i++) {
        bool control = ms_json_is_string(ms_json_at(w, 0), "ctl");
        const ms_json *text = ms_json_at(w, 1);
        if (i < got->count && got->items[i].control == control &&
            golden_same(text, got->items[i].text, got->items[i].len)) {
            continue;
        }
        (void)snprintf(detail, room, "segment %zu: expected \"%.200s\", found \"%.200s\"", i, text ? text->str : "",
                       i < got->count ? got->items[i].text : "(end)");
        return false;
    }
    if (want && i == got->count) return true;
    (void)snprintf(detail, room, "expected %zu segments, found %zu", i, got->count);
    return false;
}

static bool check_full(const ms_json *want, const ms_segments *got, char *detail, size_t room) {
    ms_text all = {0};
    for (size_t i = 0; i < got->count; i++) ms_text_append(&all, got->items[i].text, got->items[i].len);
    bool ok = golden_same(want, all.data, all.len);
    if (!ok) (void)snprintf(detail, room, "full text: found \"%.400s\"", all.data ? all.data : "");
    ms_text_free(&all);
    return ok;
}

static bool check_ids(const ms_json *want, const ms_segments *got, const ms_tokenizer *t, char *detail, size_t room) {
    ms_ids ids = {0};
    ms_error err;
    size_t i = 0;
    bool ok = want && ms_segments_encode(got, t, &ids, &err) == MS_OK && want->count == ids.count;
    for (const ms_json *w = ok ? want->child : NULL; w && ok; w = w->next, i++) {
        uint64_t id;
        ok = ms_json_u64(w, &id) && id == ids.data[i];
    }
    if (!ok) {
        (void)snprintf(detail, room, "ids: expected %zu, found %zu; the first difference is before %zu",
                       want ? want->count : 0, ids.count, i);
    }
    ms_ids_free(&ids);
    return ok;
}

static bool run_case(const ms_json *c, const ms_tokenizer *t, char *detail, size_t room) {
    const ms_json *request = ms_json_get(c, "request"), *spelled = ms_json_get(c, "request_text");
    ms_json_doc *doc = NULL;
    ms_error err;
    if (spelled) {
        if (ms_json_parse(&doc, spelled->str, spelled->str_len, "request_text", NULL, &err) != MS_OK) {
            (void)snprintf(detail, room, "%s", err.message);
            return false;
        }
        request = ms_json_root(doc);
    }
    ms_segments segments = {0};
    bool ok = k3_render(request, &segments, &err) == MS_OK;
    if (!ok) (void)snprintf(detail, room, "%s", err.message);
    ok = ok && check_segments(ms_json_get(c, "segments"), &segments, detail, room);
    ok = ok && check_full(ms_json_get(c, "full"), &segments, detail, room);
    if (t) ok = ok && check_ids(ms_json_get(c, "ids_tok4096"), &segments, t, detail, room);
    ms_segments_free(&segments);
    ms_json_free(doc);
    return ok;
}

static bool run_reject(const ms_json *c, char *detail, size_t room) {
    ms_segments segments = {0};
    ms_error err = {0};
    ms_status status = k3_render(ms_json_get(c, "request"), &segments, &err);
    bool ok = status == MS_ERR_USAGE && err.code == status && segments.count == 0;
    (void)snprintf(detail, room, "%s", status == MS_OK ? "was accepted" : err.message);
    ms_segments_free(&segments);
    return ok;
}

int golden_render_file(const char *path, const ms_tokenizer *t, golden_report *report, void *arg) {
    char *text, detail[1200];
    ms_json_doc *doc;
    ms_error err;
    if (!golden_open(path, &text, &doc, &err)) {
        report(arg, "file", false, err.message);
        return -1;
    }
    int count = 0;
    const ms_json *root = ms_json_root(doc), *cases = ms_json_get(root, "cases"), *reject = ms_json_get(root, "reject");
    for (const ms_json *c = cases ? cases->child : NULL; c; c = c->next, count++) {
        detail[0] = 0;
        bool ok = run_case(c, t, detail, sizeof detail);
        report(arg, golden_name(c), ok, detail);
    }
    for (const ms_json *c = reject ? reject->child : NULL; c; c = c->next, count++) {
        bool ok = run_reject(c, detail, sizeof detail);
        report(arg, golden_name(c), ok, detail);
    }
    ms_json_free(doc);
    free(text);
    return count;
}
