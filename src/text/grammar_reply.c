/* grammar_reply.c: the schemas of a reply as blocks (grammar_reply.h). */
#include "text/grammar_reply.h"

#include <stdio.h>
#include <string.h>

ms_status ms_reply_response_block(ms_grammar *g, const ms_reply_rules *rules, uint32_t *block, ms_reply_report *report,
                                  ms_error *err) {
    *block = 0;
    report->fault_tool = MS_REPLY_RESPONSE;
    if (rules->format == MS_REPLY_JSON_OBJECT) {
        (void)ms_schema_any(g, block);
        return MS_OK;
    }
    ms_schema *s;
    MS_TRY(ms_schema_open(&s, rules->schema, &report->fault, err));
    ms_status status = ms_schema_compile(s, g, block, &report->fault, err);
    report->response = *block;
    report->has_response = status == MS_OK;
    ms_schema_close(s);
    return status;
}

/* Ends a grammar; schema: the block of one that is all of it or a part, NULL: none. */
static ms_status finish(ms_grammar *g, uint32_t root, const uint32_t *schema, ms_schema_fault *fault, ms_error *err) {
    ms_status status = ms_grammar_finish(g, root, err);
    if (ms_grammar_status(g) != MS_OK) return status;
    if (schema && ms_grammar_is_empty(g, *schema)) {
        *fault = (ms_schema_fault){.kind = MS_SCHEMA_IMPOSSIBLE};
        return ms_fail(err, MS_ERR_USAGE, "schema #: expected a schema that some value fits");
    }
    if (status == MS_ERR_USAGE) {
        *fault = (ms_schema_fault){.kind = MS_SCHEMA_UNSUPPORTED};
        if (err) (void)snprintf(fault->reason, sizeof fault->reason, "%.159s", err->message);
    }
    return status;
}

ms_status ms_reply_finish(ms_grammar *g, uint32_t root, ms_reply_report *report, ms_error *err) {
    report->fault_tool = MS_REPLY_RESPONSE;
    return finish(g, root, report->has_response ? &report->response : NULL, &report->fault, err);
}

/* Whether any object fits the schema, found in a grammar of its own. */
static ms_status check_alone(const ms_schema *s, ms_grammar *for_it, ms_reply_report *report, ms_error *err) {
    ms_grammar *g;
    uint32_t block;
    MS_TRY(ms_grammar_create(&g, err));
    *ms_grammar_work(g) = *ms_grammar_work(for_it);
    ms_status status = ms_schema_compile_object(s, g, &block, &report->fault, err);
    if (status == MS_OK) status = finish(g, block, &block, &report->fault, err);
    *ms_grammar_work(for_it) = *ms_grammar_work(g);
    ms_grammar_free(g);
    return status;
}

static ms_status compile_tool(ms_grammar *g, const ms_schema *s, const ms_arguments_syntax *syntax, uint32_t *typed,
                              uint32_t *json, ms_reply_report *report, ms_error *err) {
    bool extra;
    MS_TRY(check_alone(s, g, report, err));
    MS_TRY(ms_schema_compile_arguments(s, g, syntax, typed, &extra, &report->fault, err));
    *json = 0;
    return extra ? ms_schema_compile_object(s, g, json, &report->fault, err) : MS_OK;
}

ms_status ms_reply_tool_blocks(ms_grammar *g, const ms_reply_rules *rules, size_t tool,
                               const ms_arguments_syntax *syntax, uint32_t *typed, uint32_t *json,
                               ms_reply_report *report, ms_error *err) {
    static const char plain[] = "{\"type\":\"object\"}";
    const ms_reply_tool *t = &rules->tools[tool];
    ms_json_doc *doc = NULL;
    ms_schema *s = NULL;
    report->fault_tool = tool;
    if (!t->parameters) MS_TRY(ms_json_parse(&doc, plain, strlen(plain), "parameters", NULL, err));
    ms_error why = {0};
    ms_status status = ms_schema_open(&s, t->parameters ? t->parameters : ms_json_root(doc), &report->fault, &why);
    if (status == MS_OK) status = compile_tool(g, s, syntax, typed, json, report, &why);
    ms_schema_close(s);
    ms_json_free(doc);
    if (status == MS_ERR_USAGE && !t->strict && ms_grammar_status(g) == MS_OK) {
        if (report->unconstrained) report->unconstrained[tool] = true;
        report->fault = (ms_schema_fault){0};
        *typed = 0;
        (void)ms_schema_any(g, json);
        return MS_OK;
    }
    if (status != MS_OK) return ms_fail(err, status, "tool %zu: %s", tool, why.message);
    return MS_OK;
}
