/* api_test.c: the helpers of api_test.h. */
#include "api_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *json(const char *text) {
    static char *ring[16];
    static unsigned next;
    char **slot = &ring[next++ % 16];
    free(*slot);
    *slot = strdup(text);
    for (char *c = *slot; *c; c++) {
        if (*c == '\'') *c = '"';
    }
    return *slot;
}

static const char *const aliases[] = {"other", NULL};
static const char *const k3_efforts[] = {"low", "medium", "high", "max", NULL};
static const char *const greedy_efforts[] = {"none", "high", NULL};

ms_api_limits k3_limits(void) {
    return (ms_api_limits){.model_id = "moonshine",
                           .aliases = aliases,
                           .max_output_ceiling = 8192,
                           .default_output = 256,
                           .sampling = true,
                           .logprobs = true,
                           .dynamic_tools = true,
                           .efforts = k3_efforts,
                           .default_effort = "max",
                           .key = "0123456789abcdef0123456789abcde"};
}

ms_api_limits greedy_limits(void) {
    ms_api_limits l = k3_limits();
    l.sampling = l.logprobs = l.dynamic_tools = false;
    l.efforts = greedy_efforts;
    l.default_effort = "high";
    return l;
}

void parse_good_with(ms_api_request *r, const ms_api_codec *codec, const ms_api_limits *l, const char *text) {
    ms_api_error err;
    const char *body = json(text);
    if (!codec->parse(r, body, strlen(body), l, false, &err)) {
        fail_msg("%s\n%d %s %s: %s", body, err.http, err.code, err.param, err.message);
    }
    assert_int_equal(err.http, 0);
}

void parse_good(ms_api_request *r, const ms_api_codec *codec, const char *text) {
    ms_api_limits l = k3_limits();
    parse_good_with(r, codec, &l, text);
}

static const char *bad(const ms_api_codec *codec, const ms_api_limits *l, const char *body, size_t len, int http,
                       const char *code, const char *param) {
    static ms_api_error err;
    ms_api_request r;
    if (codec->parse(&r, body, len, l, false, &err)) fail_msg("accepted: %.2000s", body);
    if (err.http != http || strcmp(err.code, code) != 0 || strcmp(err.param, param) != 0) {
        fail_msg("%.1000s\nexpected %d %s \"%s\"\nfound    %d %s \"%s\": %s", body, http, code, param, err.http,
                 err.code, err.param, err.message);
    }
    ms_api_request empty = {0};
    assert_memory_equal(&r, &empty, sizeof r);
    return err.message;
}

const char *parse_bad_with(const ms_api_codec *codec, const ms_api_limits *l, const char *text, int http,
                           const char *code, const char *param) {
    const char *body = json(text);
    return bad(codec, l, body, strlen(body), http, code, param);
}

const char *parse_bad(const ms_api_codec *codec, const char *text, int http, const char *code, const char *param) {
    ms_api_limits l = k3_limits();
    return parse_bad_with(codec, &l, text, http, code, param);
}

const char *parse_bad_n(const ms_api_codec *codec, const char *text, size_t len, int http, const char *code,
                        const char *param) {
    ms_api_limits l = k3_limits();
    return bad(codec, &l, text, len, http, code, param);
}

void chat_is(const ms_api_request *r, const char *text) { assert_string_equal(r->chat.data, json(text)); }

/* ------------------------------------------------------------------ replies */

static unsigned random_below(unsigned *seed, unsigned n) {
    *seed = *seed * 1103515245u + 12345u;
    return (*seed >> 16) % n;
}

typedef void piece_fn(void *arg, const char *s, size_t len);

static void pieces(const char *text, unsigned *seed, piece_fn *fn, void *arg) {
    size_t len = strlen(text);
    if (!*seed) {
        if (len) fn(arg, text, len);
        return;
    }
    while (len) {
        size_t n = 1 + random_below(seed, 7);
        if (n > len) n = len;
        while (n < len && ((unsigned char)text[n] & 0xc0) == 0x80) n++;
        fn(arg, text, n);
        text += n;
        len -= n;
        if (random_below(seed, 5) == 0) fn(arg, text, 0);
    }
}

typedef struct text_target {
    ms_api_writer *w;
    ms_text *out;
    ms_channel channel;
} text_target;

static void put_text(void *arg, const char *s, size_t len) {
    text_target *t = arg;
    t->w->ops->text(t->w, t->out, t->channel, s, len, NULL, 0);
}

static void put_arguments(void *arg, const char *s, size_t len) {
    text_target *t = arg;
    t->w->ops->tool_arguments(t->w, t->out, s, len);
}

static void put_calls(text_target *t, const reply *what, unsigned *seed) {
    for (size_t i = 0; i < what->call_count; i++) {
        char before[48];
        memcpy(before, t->w->call_id, sizeof before);
        t->w->ops->tool_begin(t->w, t->out, what->calls[i].name, strlen(what->calls[i].name));
        assert_string_not_equal(before, t->w->call_id);
        pieces(what->calls[i].arguments, seed, put_arguments, t);
        if (*seed) t->w->ops->keepalive(t->w, t->out, "decode tool 3");
        t->w->ops->tool_end(t->w, t->out);
    }
}

ms_text write_reply(const ms_api_codec *codec, const ms_api_request *r, const reply *what, unsigned seed) {
    ms_text out = {0};
    ms_api_start start = {.id = "00112233445566778899aabbccddeeff",
                          .created = 1790000000,
                          .model = "moonshine",
                          .fingerprint = "moonshine-q8-greedy",
                          .usage = {.prompt = 30, .cached = 10}};
    ms_api_end end = {.finish = what->finish,
                      .usage = {.prompt = 30, .cached = 10, .completion = 12, .reasoning = 5},
                      .stop = what->stop,
                      .stop_len = what->stop ? strlen(what->stop) : 0,
                      .comment = "moonshine prompt total=30 evaluated=20 reused=10"};
    ms_api_writer *w = codec->writer(r);
    assert_non_null(w);
    w->ops->keepalive(w, &out, "not started: nothing");
    w->ops->start(w, &out, &start);
    if (seed) w->ops->progress(w, &out, 30, 10, 20, 1500);
    text_target t = {w, &out, MS_CHANNEL_THINK};
    if (what->reasoning) pieces(what->reasoning, &seed, put_text, &t);
    if (seed) w->ops->keepalive(w, &out, "decode reasoning 128");
    t.channel = MS_CHANNEL_RESPONSE;
    if (what->content) pieces(what->content, &seed, put_text, &t);
    put_calls(&t, what, &seed);
    if (what->error)
        w->ops->error(w, &out, what->error, "req_1");
    else
        w->ops->finish(w, &out, &end);
    w->ops->keepalive(w, &out, "ended: nothing");
    w->ops->destroy(w);
    assert_false(out.failed);
    assert_non_null(out.data);
    return out;
}

/* ------------------------------------------------------------------ reading streams */

static char *cut(const char *s, size_t len) {
    char *c = malloc(len + 1);
    assert_non_null(c);
    memcpy(c, s, len);
    c[len] = 0;
    return c;
}

static void read_line(sse_event *e, const char *s, size_t len) {
    if (len > 2 && memcmp(s, ": ", 2) == 0) {
        assert_null(e->comment);
        e->comment = cut(s + 2, len - 2);
    } else if (len > 7 && memcmp(s, "event: ", 7) == 0) {
        assert_null(e->event);
        assert_null(e->data);
        e->event = cut(s + 7, len - 7);
    } else if (len > 6 && memcmp(s, "data: ", 6) == 0) {
        assert_null(e->data);
        e->data = cut(s + 6, len - 6);
    } else {
        fail_msg("not a line of this stream: %.*s", (int)len, s);
    }
}

sse sse_read(const ms_text *stream) {
    sse s = {0};
    const char *pos = stream->data, *end = pos + stream->len;
    assert_null(memchr(stream->data, 0, stream->len));
    assert_null(memchr(stream->data, '\r', stream->len));
    while (pos < end) {
        sse_event e = {0};
        while (*pos != '\n') {
            const char *line_end = strchr(pos, '\n');
            assert_non_null(line_end);
            read_line(&e, pos, (size_t)(line_end - pos));
            pos = line_end + 1;
        }
        pos++;
        assert_true((e.data != NULL) != (e.comment != NULL));
        if (e.data && ms_json_parse(&e.doc, e.data, strlen(e.data), "data", NULL, NULL) != MS_OK) {
            assert_string_equal(e.data, "[DONE]");
        }
        s.items = realloc(s.items, (s.count + 1) * sizeof *s.items);
        assert_non_null(s.items);
        s.items[s.count++] = e;
    }
    return s;
}

void sse_free(sse *s) {
    for (size_t i = 0; i < s->count; i++) {
        free(s->items[i].event);
        free(s->items[i].data);
        free(s->items[i].comment);
        ms_json_free(s->items[i].doc);
    }
    free(s->items);
    *s = (sse){0};
}

ms_json_doc *doc_of(const ms_text *t) {
    ms_json_doc *doc;
    ms_error err;
    ms_json_limits limits = {.reject_duplicates = true};
    if (ms_json_parse(&doc, t->data, t->len, "document", &limits, &err) != MS_OK)
        fail_msg("%s\n%s", err.message, t->data);
    return doc;
}

const ms_json *at(const ms_json *v, const char *path) {
    while (*path && v) {
        if (*path == '.') path++;
        if (*path == '[') {
            v = ms_json_at(v, strtoul(path + 1, NULL, 10));
            path = strchr(path, ']') + 1;
            continue;
        }
        char key[64];
        size_t n = strcspn(path, ".[");
        assert_true(n < sizeof key);
        memcpy(key, path, n);
        key[n] = 0;
        v = ms_json_get(v, key);
        path += n;
    }
    return v;
}

const char *text_at(const ms_json *v, const char *path) {
    const ms_json *s = at(v, path);
    return s && s->type == MS_JSON_STRING ? s->str : "";
}

void is_text(const ms_json *v, const char *path, const char *expected) {
    const ms_json *s = at(v, path);
    if (!s || s->type != MS_JSON_STRING) fail_msg("no string at %s in %.*s", path, (int)v->raw_len, v->raw);
    assert_string_equal(s->str, expected);
}

void is_number(const ms_json *v, const char *path, long long expected) {
    int64_t n;
    const ms_json *s = at(v, path);
    if (!ms_json_i64(s, &n)) fail_msg("no integer at %s in %.*s", path, (int)v->raw_len, v->raw);
    assert_int_equal(n, expected);
}
