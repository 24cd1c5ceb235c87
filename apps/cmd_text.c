/* cmd_text.c: `moonshine text`: the text boundary on JSON lines, one answer line for each input line. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "command.h"
#include "session/text_model.h"

typedef ms_status answer_fn(const ms_text_model *m, const ms_json *in, ms_text *out, ms_error *err);

static ms_status get_ids(const ms_json *in, ms_ids *out, ms_error *err) {
    const ms_json *list = ms_json_get(in, "ids");
    if (!list || list->type != MS_JSON_ARRAY) return ms_fail(err, MS_ERR_FORMAT, "ids: expected an array of token ids");
    size_t at = 0;
    for (const ms_json *v = list->child; v; v = v->next, at++) {
        uint64_t id;
        if (!ms_json_u64(v, &id) || id > UINT32_MAX)
            return ms_fail(err, MS_ERR_FORMAT, "ids[%zu]: expected a token id, found %.*s", at, (int)(v->raw_len < 40 ? v->raw_len : 40), v->raw);
        MS_TRY(ms_ids_push(out, (uint32_t)id, err));
    }
    return MS_OK;
}

static void write_ids(ms_text *out, const ms_ids *ids) {
    ms_text_puts(out, "[");
    for (size_t i = 0; i < ids->count; i++) ms_text_printf(out, "%s%u", i ? "," : "", ids->data[i]);
    ms_text_puts(out, "]");
}

static ms_status get_flag(const ms_json *in, const char *key, bool *out, ms_error *err) {
    const ms_json *v = ms_json_get(in, key);
    *out = false;
    if (v && !ms_json_bool(v, out)) return ms_fail(err, MS_ERR_FORMAT, "%s: expected true or false", key);
    return MS_OK;
}

static ms_status encode(const ms_text_model *m, const ms_json *in, ms_text *out, ms_error *err) {
    const ms_json *text = ms_json_get(in, "text");
    bool special;
    if (!text || text->type != MS_JSON_STRING) return ms_fail(err, MS_ERR_FORMAT, "text: expected a string");
    MS_TRY(get_flag(in, "special", &special, err));
    ms_ids ids = {0};
    ms_status st = ms_tokenizer_encode(m->tokenizer, text->str, text->str_len, special, &ids, err);
    if (st == MS_OK) {
        ms_text_puts(out, "{\"ids\":");
        write_ids(out, &ids);
        ms_text_puts(out, "}");
    }
    ms_ids_free(&ids);
    return st;
}

static ms_status decode(const ms_text_model *m, const ms_json *in, ms_text *out, ms_error *err) {
    bool names;
    MS_TRY(get_flag(in, "names", &names, err));
    ms_ids ids = {0};
    ms_text text = {0};
    ms_status st = get_ids(in, &ids, err);
    if (st == MS_OK) st = ms_tokenizer_decode(m->tokenizer, ids.data, ids.count, names, &text, err);
    if (st == MS_OK) {
        ms_text_puts(out, "{\"text\":");
        ms_json_write_string(out, text.data ? text.data : "", text.len);
        ms_text_puts(out, "}");
    }
    ms_ids_free(&ids);
    ms_text_free(&text);
    return st;
}

static ms_status render(const ms_text_model *m, const ms_json *in, ms_text *out, ms_error *err) {
    ms_segments segments = {0};
    ms_ids ids = {0};
    ms_status st = m->lane->render(in, &segments, err);
    if (st == MS_OK) st = ms_segments_encode(&segments, m->tokenizer, &ids, err);
    if (st == MS_OK) {
        ms_text_puts(out, "{\"segments\":[");
        for (size_t i = 0; i < segments.count; i++) {
            ms_text_printf(out, "%s[\"%s\",", i ? "," : "", segments.items[i].control ? "ctl" : "text");
            ms_json_write_string(out, segments.items[i].text, segments.items[i].len);
            ms_text_puts(out, "]");
        }
        ms_text_puts(out, "],\"ids\":");
        write_ids(out, &ids);
        ms_text_puts(out, "}");
    }
    ms_segments_free(&segments);
    ms_ids_free(&ids);
    return st;
}

static ms_status get_channel(const ms_json *in, ms_channel *out, ms_error *err) {
    const ms_json *v = ms_json_get(in, "channel");
    *out = MS_CHANNEL_NONE;
    if (!v || v->type == MS_JSON_NULL) return MS_OK;
    if (ms_json_is_string(v, "think")) *out = MS_CHANNEL_THINK;
    else if (ms_json_is_string(v, "response")) *out = MS_CHANNEL_RESPONSE;
    else return ms_fail(err, MS_ERR_FORMAT, "channel: expected \"think\", \"response\" or null");
    return MS_OK;
}

static void write_reply(ms_text *out, const ms_reply *r) {
    static const char *const status[] = {"complete", "truncated", "malformed"};
    ms_text_printf(out, "{\"status\":\"%s\",\"error\":", status[r->status]);
    if (r->error) ms_json_write_string(out, r->error, strlen(r->error));
    else ms_text_puts(out, "null");
    ms_text_printf(out, ",\"recovered\":%s,\"reasoning\":", r->recovered ? "true" : "false");
    ms_json_write_string(out, r->reasoning ? r->reasoning : "", r->reasoning_len);
    ms_text_puts(out, ",\"content\":");
    ms_json_write_string(out, r->content ? r->content : "", r->content_len);
    ms_text_puts(out, ",\"tool_calls\":[");
    for (size_t i = 0; i < r->call_count; i++) {
        ms_text_puts(out, i ? ",{\"name\":" : "{\"name\":");
        ms_json_write_string(out, r->calls[i].name, r->calls[i].name_len);
        ms_text_puts(out, ",\"arguments\":");
        ms_json_write_string(out, r->calls[i].arguments, r->calls[i].arguments_len);
        ms_text_puts(out, "}");
    }
    ms_text_puts(out, "]}");
}

static ms_status parse_ids(const ms_text_model *m, const ms_ids *ids, ms_channel channel, const ms_json *tools, ms_text *out,
                           ms_error *err) {
    void *p = NULL;
    MS_TRY(m->lane->parser->create(&p, m->tokenizer, channel, err));
    ms_status st = tools && m->lane->parser->tools ? m->lane->parser->tools(p, tools, err) : MS_OK;
    bool done = false;
    for (size_t i = 0; i < ids->count && !done && st == MS_OK; i++)
        st = m->lane->parser->push(p, ids->data[i], NULL, &done, err);
    ms_reply reply = {0};
    if (st == MS_OK) st = m->lane->parser->finish(p, NULL, &reply, err);
    if (st == MS_OK) {
        write_reply(out, &reply);
        ms_reply_free(&reply);
    }
    m->lane->parser->destroy(p);
    return st;
}

static ms_status parse(const ms_text_model *m, const ms_json *in, ms_text *out, ms_error *err) {
    ms_channel channel;
    ms_ids ids = {0};
    MS_TRY(get_channel(in, &channel, err));
    ms_status st = get_ids(in, &ids, err);
    if (st == MS_OK) st = parse_ids(m, &ids, channel, ms_json_get(in, "tools"), out, err);
    ms_ids_free(&ids);
    return st;
}

static ms_status answer(answer_fn *fn, const ms_text_model *m, const char *line, size_t len, ms_text *out, ms_error *err) {
    ms_json_doc *doc = NULL;
    const ms_json_limits limits = {.max_depth = 512};
    MS_TRY(ms_json_parse(&doc, line, len, "input", &limits, err));
    ms_status st = fn(m, ms_json_root(doc), out, err);
    ms_json_free(doc);
    if (st == MS_OK && out->failed) st = ms_fail_memory(err, "answer", out->len);
    return st;
}

/* Every line is answered; a bad one gives {"error": ...} on its line and exit code 1 at the end. */
static int run_lines(answer_fn *fn, const ms_text_model *m, const char *program) {
    char *line = NULL;
    size_t cap = 0;
    ssize_t len;
    int code = 0;
    while ((len = getline(&line, &cap, stdin)) > 0) {
        size_t n = (size_t)len;
        while (n && (line[n - 1] == '\n' || line[n - 1] == '\r')) n--;
        if (!n) continue;
        ms_text out = {0};
        ms_error err;
        if (answer(fn, m, line, n, &out, &err) != MS_OK) {
            code = 1;
            ms_text_free(&out);
            ms_text_puts(&out, "{\"error\":");
            ms_json_write_string(&out, err.message, strlen(err.message));
            ms_text_puts(&out, "}");
        }
        ms_text_puts(&out, "\n");
        if (out.data) (void)fwrite(out.data, 1, out.len, stdout);
        ms_text_free(&out);
        if (fflush(stdout) != 0) break; /* each answer goes out before the next question: the asker may wait for it */
    }
    bool read_failed = ferror(stdin) != 0;
    free(line);
    if (read_failed) {
        fprintf(stderr, "%s: standard input: %s\n", program, strerror(errno));
        return 1;
    }
    int end = ms_command_finish(program);
    return end ? end : code;
}

int ms_command_text(int argc, char **argv) {
    static const struct {
        const char *name;
        answer_fn *fn;
    } modes[] = {{"encode", encode}, {"decode", decode}, {"render", render}, {"parse", parse}};
    const ms_option_set set = {
        .program = "moonshine text",
        .synopsis = "encode|decode|render|parse [MODEL]",
        .about = "Reads JSON lines from standard input and answers each with one line.",
        .epilogue = "encode  {\"text\": T, \"special\": false}     -> {\"ids\": [...]}\n"
                    "decode  {\"ids\": [...], \"names\": false}     -> {\"text\": T}\n"
                    "render  a chat request                      -> {\"segments\": [[kind, text], ...], \"ids\": [...]}\n"
                    "parse   {\"ids\": [...], \"channel\": \"think\"}  -> {\"status\", \"error\", \"recovered\", \"reasoning\", "
                    "\"content\", \"tool_calls\"}\n"
                    "        \"tools\": declared tools, where argument types come from them\n"
                    "A line that cannot be answered gives {\"error\": ...} and exit code 1 at the end.",
        .max_args = 2};
    ms_option_result r;
    int code = ms_command_parse(&set, argc, argv, &r);
    if (code >= 0) return code;
    answer_fn *fn = NULL;
    for (size_t i = 0; r.arg_count && i < sizeof modes / sizeof modes[0]; i++)
        if (!strcmp(r.args[0], modes[i].name)) fn = modes[i].fn;
    if (!fn) {
        fprintf(stderr, "%s: expected encode, decode, render or parse, found '%s'\n", set.program, r.arg_count ? r.args[0] : "");
        return 2;
    }
    const char *dir = ms_command_model(set.program, &r, 1);
    if (!dir) return 2;
    ms_text_model m;
    ms_error err;
    if (ms_text_model_open(&m, dir, &err) != MS_OK) return ms_command_fail(set.program, &err);
    code = run_lines(fn, &m, set.program);
    ms_text_model_close(&m);
    return code;
}
