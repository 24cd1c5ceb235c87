/* k3_grammar.c: the grammar of a Kimi K3 reply (docs/formats.md, "K3 chat"; text/grammar_reply.h).
 *
 *     think text, close think, open response, response, close response, [tools], close message, end of message
 *
 * A call writes each argument as an element with its key and type.  Where a tool's schema allows more than the declared
 * arguments, the call may instead have one json element with the whole object.  Elements come without space between
 * them and calls are numbered from 1, as the renderer writes them, so a reply renders to its own tokens again.
 */
#include <string.h>

#include "lane/k3/k3_chat.h"

/* Blocks of a sequence while it grows. */
typedef struct run {
    uint32_t items[16];
    size_t count;
} run;

static void add(run *r, uint32_t block) {
    if (r->count < sizeof r->items / sizeof r->items[0]) r->items[r->count++] = block;
}

static void control(ms_grammar *g, run *r, uint32_t offset) { add(r, ms_grammar_control(g, offset)); }

static void literal(ms_grammar *g, run *r, const char *text) { add(r, ms_grammar_literal(g, text, strlen(text))); }

static void tag(ms_grammar *g, run *r, uint32_t kind, const char *name) {
    control(g, r, kind);
    literal(g, r, name);
    control(g, r, MS_CTL_SEP);
}

static void open_tag(ms_grammar *g, run *r, const char *name) { tag(g, r, MS_CTL_OPEN, name); }
static void close_tag(ms_grammar *g, run *r, const char *name) { tag(g, r, MS_CTL_CLOSE, name); }

static uint32_t sequence(ms_grammar *g, const run *r) { return ms_grammar_sequence(g, r->items, r->count); }

static void escape(ms_text *t, const char *value, size_t len) {
    for (size_t i = 0; i < len; i++) {
        if (value[i] == '&') ms_text_puts(t, "&amp;");
        else if (value[i] == '"') ms_text_puts(t, "&quot;");
        else ms_text_append(t, value + i, 1);
    }
}

/* before + escaped value + after as one literal; 0: no memory. */
static uint32_t attribute(ms_grammar *g, const char *before, const char *value, size_t len, const char *after) {
    ms_text t = {0};
    ms_text_puts(&t, before);
    escape(&t, value, len);
    ms_text_puts(&t, after);
    uint32_t block = t.failed ? 0 : ms_grammar_literal(g, t.data, t.len);
    ms_text_free(&t);
    return block;
}

static uint32_t argument(const void *arg, ms_grammar *g, const char *key, size_t key_len, const char *type, uint32_t body) {
    (void)arg;
    run r = {.count = 0};
    char after[32] = "\" type=\"";
    strncat(after, type, sizeof after - strlen(after) - 2);
    strcat(after, "\"");
    control(g, &r, MS_CTL_OPEN);
    add(&r, attribute(g, "argument key=\"", key, key_len, after));
    control(g, &r, MS_CTL_SEP);
    add(&r, body);
    close_tag(g, &r, "argument");
    return sequence(g, &r);
}

static const ms_arguments_syntax typed_arguments = {.argument = argument, .raw_strings = true};

static ms_status call(ms_grammar *g, const ms_reply_rules *rules, size_t tool, uint32_t *block, ms_reply_report *report,
                      ms_error *err) {
    uint32_t bodies[2], json = 0;
    MS_TRY(ms_reply_tool_blocks(g, rules, tool, &typed_arguments, &bodies[0], &json, report, err));
    run whole = {.count = 0}, r = {.count = 0};
    open_tag(g, &whole, "json type=\"object\"");
    add(&whole, json);
    close_tag(g, &whole, "json");
    bodies[1] = sequence(g, &whole);
    control(g, &r, MS_CTL_OPEN);
    add(&r, attribute(g, "call tool=\"", rules->tools[tool].name, rules->tools[tool].name_len, "\" index=\""));
    add(&r, ms_grammar_number_of_item(g));
    literal(g, &r, "\"");
    control(g, &r, MS_CTL_SEP);
    add(&r, ms_grammar_choice(g, bodies, 2));
    close_tag(g, &r, "call");
    *block = sequence(g, &r);
    return MS_OK;
}

/* 0: no tool may be called. */
static ms_status tools_region(ms_grammar *g, const ms_reply_rules *rules, uint32_t *block, ms_reply_report *report,
                              ms_error *err) {
    *block = 0;
    if (rules->choice == MS_REPLY_NO_TOOLS || !rules->tool_count) return MS_OK;
    uint32_t calls = ms_grammar_reserve(g);
    for (size_t i = 0; i < rules->tool_count; i++) {
        uint32_t one;
        MS_TRY(call(g, rules, i, &one, report, err));
        /* A chain of choices: each call or one of the later ones. */
        uint32_t rest = i + 1 < rules->tool_count ? ms_grammar_reserve(g) : 0, pair[2] = {one, rest};
        ms_grammar_define(g, i ? *block : calls, pair, rest ? 2 : 1);
        *block = rest;
    }
    run r = {.count = 0};
    open_tag(g, &r, "tools");
    add(&r, ms_grammar_repeat(g, calls, 1, rules->parallel ? MS_UNLIMITED : 1));
    close_tag(g, &r, "tools");
    *block = sequence(g, &r);
    return MS_OK;
}

/* From inside the response channel to behind the tools. */
static ms_status response(ms_grammar *g, const ms_reply_rules *rules, uint32_t *block, ms_reply_report *report,
                          ms_error *err) {
    uint32_t tools, body = 0;
    MS_TRY(tools_region(g, rules, &tools, report, err));
    bool text = rules->format == MS_REPLY_TEXT, must = rules->choice == MS_REPLY_MUST_CALL;
    if (text) body = ms_grammar_text(g);
    else MS_TRY(ms_reply_response_block(g, rules, &body, report, err));
    run plain = {.count = 0}, called = {.count = 0};
    add(&plain, body);
    close_tag(g, &plain, "response");
    if (text) add(&called, body);
    close_tag(g, &called, "response");
    add(&called, tools);
    uint32_t choices[2] = {sequence(g, &called), sequence(g, &plain)};
    *block = ms_grammar_choice(g, choices, must ? 1 : 2);
    return MS_OK;
}

static ms_status reply(ms_grammar *g, const ms_reply_rules *rules, ms_reply_report *report, ms_error *err) {
    run r = {.count = 0};
    uint32_t body;
    if (rules->channel == MS_CHANNEL_THINK) {
        add(&r, ms_grammar_text(g));
        close_tag(g, &r, "think");
        open_tag(g, &r, "response");
    }
    MS_TRY(response(g, rules, &body, report, err));
    add(&r, body);
    close_tag(g, &r, "message");
    control(g, &r, MS_CTL_END_OF_MSG);
    return ms_reply_finish(g, sequence(g, &r), report, err);
}

ms_status k3_reply_grammar(ms_grammar **out, const ms_reply_rules *rules, ms_reply_report *report, ms_error *err) {
    bool *unconstrained = report->unconstrained;
    *out = NULL;
    *report = (ms_reply_report){.fault_tool = MS_REPLY_RESPONSE, .unconstrained = unconstrained};
    for (size_t i = 0; unconstrained && i < rules->tool_count; i++) unconstrained[i] = false;
    ms_grammar *g;
    MS_TRY(ms_grammar_create(&g, err));
    ms_status status = reply(g, rules, report, err);
    if (status == MS_OK) *out = g;
    else ms_grammar_free(g);
    return status;
}
