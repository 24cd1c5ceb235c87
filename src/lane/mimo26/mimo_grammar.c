/* mimo_grammar.c: the grammar of a MiMo V2.6 reply (docs/formats.md, "MiMo V2.6 chat"; text/grammar_reply.h).
 *
 *     [think] think text, close think, response, calls, end of turn
 *
 * Controls are tokens; `<function=`, `<parameter=` and their ends are text, so no value holds `</parameter>`.  Types
 * are not spelled out: a key whose schema is read as text has bare strings alone, any other key has JSON or a bare
 * string that no reader takes for JSON.  Where a tool's schema allows more than the declared arguments, the call may
 * instead have one JSON object.  Nothing stands between the tags, as the renderer writes them.
 */
#include <string.h>

#include "lane/mimo26/mimo_chat.h"

typedef struct writer {
    ms_grammar *g;
    const ms_reply_rules *rules;
    ms_reply_report *report;
    ms_error *err;
    uint32_t think, end_think, call, end_call, end; /* blocks of the control tokens */
} writer;

static uint32_t literal(ms_grammar *g, const char *text) { return ms_grammar_literal(g, text, strlen(text)); }

/* before + name + ">" as one literal; 0: the name cannot be spelled. */
static uint32_t named(ms_grammar *g, const char *before, const char *name, size_t len) {
    if (memchr(name, '>', len)) return 0;
    ms_text t = {0};
    ms_text_puts(&t, before);
    ms_text_append(&t, name, len);
    ms_text_puts(&t, ">");
    uint32_t block = t.failed ? 0 : ms_grammar_literal(g, t.data, t.len);
    ms_text_free(&t);
    return block;
}

static uint32_t argument(const void *arg, ms_grammar *g, const char *key, size_t key_len, const char *type,
                         uint32_t body) {
    (void)arg;
    (void)type;
    uint32_t open = named(g, "<parameter=", key, key_len);
    const uint32_t items[] = {open, body, literal(g, "</parameter>")};
    return open ? ms_grammar_sequence(g, items, 3) : 0;
}

static bool is_text(const void *arg, const char *key, size_t key_len) {
    return mimo_argument_is_text(arg, key, key_len);
}

static ms_status call(const writer *w, size_t tool, uint32_t *block) {
    const ms_reply_tool *t = &w->rules->tools[tool];
    const ms_arguments_syntax syntax = {
        .argument = argument, .arg = t->parameters, .raw_strings = true, .end = "</parameter>", .is_text = is_text};
    uint32_t bodies[2];
    MS_TRY(ms_reply_tool_blocks(w->g, w->rules, tool, &syntax, &bodies[0], &bodies[1], w->report, w->err));
    const uint32_t items[] = {w->call, named(w->g, "<function=", t->name, t->name_len),
                              ms_grammar_choice(w->g, bodies, 2), literal(w->g, "</function>"), w->end_call};
    *block = ms_grammar_sequence(w->g, items, 5);
    return MS_OK;
}

/* 0: no tool may be called. */
static ms_status calls(const writer *w, uint32_t *block) {
    const ms_reply_rules *rules = w->rules;
    *block = 0;
    if (rules->choice == MS_REPLY_NO_TOOLS || !rules->tool_count) return MS_OK;
    uint32_t any = ms_grammar_reserve(w->g), open = any;
    for (size_t i = 0; i < rules->tool_count; i++) {
        bool last = i + 1 == rules->tool_count;
        uint32_t pair[2] = {0, last ? 0 : ms_grammar_reserve(w->g)}; /* this one, or one of the later ones */
        MS_TRY(call(w, i, &pair[0]));
        ms_grammar_define(w->g, open, pair, last ? 1 : 2);
        open = pair[1];
    }
    *block = ms_grammar_repeat(w->g, any, 1, rules->parallel ? MS_UNLIMITED : 1);
    return MS_OK;
}

static ms_status response(const writer *w, uint32_t *block) {
    bool text = w->rules->format == MS_REPLY_TEXT, must = w->rules->choice == MS_REPLY_MUST_CALL;
    uint32_t called, body;
    MS_TRY(calls(w, &called));
    if (text) body = ms_grammar_text(w->g);
    else MS_TRY(ms_reply_response_block(w->g, w->rules, &body, w->report, w->err));
    const uint32_t spoken[] = {body, called};
    uint32_t choices[2] = {0, body};
    if (called) choices[0] = text ? ms_grammar_sequence(w->g, spoken, 2) : called;
    *block = ms_grammar_choice(w->g, choices, must ? 1 : 2);
    return MS_OK;
}

static ms_status reply(const writer *w) {
    uint32_t body;
    MS_TRY(response(w, &body));
    const uint32_t nothing = ms_grammar_sequence(w->g, NULL, 0), starts[] = {w->think, nothing};
    const uint32_t items[] = {ms_grammar_choice(w->g, starts, 2), ms_grammar_text(w->g), w->end_think, body, w->end};
    bool thinks = w->rules->channel == MS_CHANNEL_THINK;
    uint32_t root = ms_grammar_sequence(w->g, thinks ? items : items + 3, thinks ? 5 : 2);
    return ms_reply_finish(w->g, root, w->report, w->err);
}

static ms_status control(const writer *w, const ms_tokenizer *t, const char *name, uint32_t *block) {
    uint32_t id, first = ms_tokenizer_first_control(t);
    if (!ms_tokenizer_control_id(t, name, strlen(name), &id) || id - first >= MS_CONTROL_COUNT)
        return ms_fail(w->err, MS_ERR_FORMAT, "tokenizer.json: added_tokens: expected %s within %d ids from %u", name,
                       (int)MS_CONTROL_COUNT, (unsigned)first);
    *block = ms_grammar_control(w->g, id - first);
    return MS_OK;
}

static ms_status write_grammar(writer *w, const ms_tokenizer *t) {
    MS_TRY(control(w, t, "<think>", &w->think));
    MS_TRY(control(w, t, "</think>", &w->end_think));
    MS_TRY(control(w, t, "<tool_call>", &w->call));
    MS_TRY(control(w, t, "</tool_call>", &w->end_call));
    MS_TRY(control(w, t, "<|im_end|>", &w->end));
    return reply(w);
}

ms_status mimo_reply_grammar(ms_grammar **out, const ms_tokenizer *t, const ms_reply_rules *rules,
                             ms_reply_report *report, ms_error *err) {
    bool *unconstrained = report->unconstrained;
    *out = NULL;
    *report = (ms_reply_report){.fault_tool = MS_REPLY_RESPONSE, .unconstrained = unconstrained};
    for (size_t i = 0; unconstrained && i < rules->tool_count; i++) unconstrained[i] = false;
    writer w = {.rules = rules, .report = report, .err = err};
    MS_TRY(ms_grammar_create(&w.g, err));
    ms_status status = write_grammar(&w, t);
    if (status == MS_OK) *out = w.g;
    else ms_grammar_free(w.g);
    return status;
}
