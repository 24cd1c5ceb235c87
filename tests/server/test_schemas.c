/* Replies of the small model under random schemas, sampled at temperature 1, as structured output and as arguments of
 * strict tools: each must fit its schema.  tests/soak runs this file with more rounds. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "program.h"
#include "text/schema.h"

#ifndef GENERATIONS
#define GENERATIONS 40
#endif

enum { DEPTH = 3 };

static uint32_t random_state = 7;

static uint32_t random_below(uint32_t n) {
    random_state = random_state * 1664525u + 1013904223u;
    return (random_state >> 8) % n;
}

/* ------------------------------------------------------------------ schemas */

static void any_schema(ms_text *t, int depth);

static void string_schema(ms_text *t) {
    static const char *const patterns[] = {"^[a-z]{2,5}$", "^[A-Z][0-9]+$",       "^(yes|no|maybe)$",
                                           "^x*y$",        "^[0-9]{3}-[0-9]{4}$", "^(?!b)(?=.*[0-9])[a-z0-9]{1,6}$"};
    static const char *const formats[] = {"date", "time", "date-time", "uuid", "email", "ipv4", "uri"};
    ms_text_puts(t, "{\"type\":\"string\"");
    switch (random_below(5)) {
    case 0:
        ms_text_printf(t, ",\"pattern\":\"%s\"", patterns[random_below(6)]);
        break;
    case 1:
        ms_text_printf(t, ",\"format\":\"%s\"", formats[random_below(7)]);
        break;
    case 2:
        ms_text_printf(t, ",\"minLength\":%u,\"maxLength\":%u", random_below(4), 4 + random_below(12));
        break;
    case 3:
        ms_text_printf(t, ",\"minLength\":%u", random_below(6));
        break;
    default:
        break;
    }
    ms_text_puts(t, "}");
}

static void number_schema(ms_text *t) {
    bool integer = random_below(2);
    ms_text_printf(t, "{\"type\":\"%s\"", integer ? "integer" : "number");
    if (random_below(2))
        ms_text_printf(t, ",\"%s\":%d", random_below(2) ? "minimum" : "exclusiveMinimum", (int)random_below(200) - 150);
    if (random_below(2))
        ms_text_printf(t, ",\"%s\":%u", random_below(2) ? "maximum" : "exclusiveMaximum", 60 + random_below(2000));
    if (random_below(3) == 0) ms_text_printf(t, ",\"multipleOf\":%s", random_below(2) ? "0.5" : "12");
    ms_text_puts(t, "}");
}

static void fixed_schema(ms_text *t) {
    static const char *const values[] = {"\"a\"", "\"two words\"", "7",     "-1.5",
                                         "null",  "true",          "[1,2]", "{\"k\":\"v\"}"};
    if (random_below(3) == 0) {
        ms_text_printf(t, "{\"const\":%s}", values[random_below(8)]);
        return;
    }
    size_t first = random_below(6);
    ms_text_printf(t, "{\"enum\":[%s,%s,%s]}", values[first], values[first + 1], values[(first + 2) % 8]);
}

static void array_schema(ms_text *t, int depth) {
    ms_text_puts(t, "{\"type\":\"array\"");
    if (random_below(3) == 0) {
        ms_text_puts(t, ",\"prefixItems\":[");
        any_schema(t, depth - 1);
        ms_text_puts(t, ",");
        any_schema(t, depth - 1);
        ms_text_puts(t, "]");
    }
    ms_text_puts(t, ",\"items\":");
    any_schema(t, depth - 1);
    if (random_below(2)) ms_text_printf(t, ",\"minItems\":%u", random_below(3));
    if (random_below(2)) ms_text_printf(t, ",\"maxItems\":%u", 2 + random_below(4));
    ms_text_puts(t, "}");
}

static void object_schema(ms_text *t, int depth) {
    static const char *const names[] = {"id", "name", "size of it", "Zahl \\u00fc", "next"};
    static const char *const extra[] = {"", ",\"additionalProperties\":false",
                                        ",\"additionalProperties\":{\"type\":\"integer\"}"};
    size_t count = 1 + random_below(5), required = 0;
    ms_text_puts(t, "{\"type\":\"object\",\"properties\":{");
    for (size_t i = 0; i < count; i++) {
        ms_text_printf(t, "%s\"%s\":", i ? "," : "", names[i]);
        any_schema(t, depth - 1);
    }
    ms_text_puts(t, "},\"required\":[");
    for (size_t i = 0; i < count; i++) {
        if (random_below(3)) ms_text_printf(t, "%s\"%s\"", required++ ? "," : "", names[i]);
    }
    ms_text_printf(t, "]%s}", extra[random_below(3)]);
}

static void any_schema(ms_text *t, int depth) {
    switch (depth > 0 ? random_below(10) : random_below(5)) {
    case 0:
        string_schema(t);
        break;
    case 1:
        number_schema(t);
        break;
    case 2:
        fixed_schema(t);
        break;
    case 3:
        ms_text_puts(t, "{\"type\":[\"boolean\",\"null\"]}");
        break;
    case 4:
        ms_text_puts(t, random_below(2) ? "{\"$ref\":\"#/$defs/tree\"}" : "{\"type\":[\"string\",\"integer\"]}");
        break;
    case 5:
    case 6:
        array_schema(t, depth);
        break;
    case 7:
        ms_text_puts(t, "{\"anyOf\":[");
        any_schema(t, depth - 1);
        ms_text_puts(t, ",");
        any_schema(t, depth - 1);
        ms_text_puts(t, "]}");
        break;
    default:
        object_schema(t, depth);
    }
}

/* An object with the definition that references lead to, which refers to itself.  open: it may leave out that it is an
 * object, which arguments are all the same. */
static void root_schema(ms_text *t, bool open) {
    static const char type[] = "\"type\":\"object\",";
    ms_text inner = {0};
    object_schema(&inner, DEPTH);
    size_t skip = open && random_below(2) ? strlen(type) : 0;
    ms_text_puts(t, "{\"discriminator\":{},\"x-name\":1,");
    ms_text_append(t, inner.data + 1 + skip, inner.len - 2 - skip);
    ms_text_puts(
        t, ",\"$defs\":{\"tree\":{\"type\":\"object\",\"properties\":{\"leaf\":{\"type\":\"string\",\"maxLength\":"
           "6},\"more\":{\"type\":\"array\",\"maxItems\":2,\"items\":{\"$ref\":\"#/$defs/tree\"}}},"
           "\"required\":[\"leaf\"],\"additionalProperties\":false}}}");
    ms_text_free(&inner);
}

/* ------------------------------------------------------------------ replies */

static bool fits(const char *schema, const char *value) {
    ms_json_doc *s = NULL, *v = NULL;
    ms_schema *open = NULL;
    bool valid = false;
    static const ms_json_limits limits = {.max_depth = 200, .reject_duplicates = true};
    bool good = ms_json_parse(&s, schema, strlen(schema), "schema", &limits, NULL) == MS_OK &&
                ms_json_parse(&v, value, strlen(value), "value", &limits, NULL) == MS_OK &&
                ms_schema_open(&open, ms_json_root(s), NULL, NULL) == MS_OK &&
                ms_schema_validate(open, ms_json_root(v), &valid, NULL) == MS_OK && valid;
    ms_schema_close(open);
    ms_json_free(s);
    ms_json_free(v);
    return good;
}

static void ask(program *p, const char *schema, unsigned seed, bool tool, http_response *r) {
    ms_text more = {0};
    ms_text_printf(&more, ",\"temperature\":1,\"seed\":%u,\"reasoning_effort\":\"low\",", seed);
    if (tool) {
        ms_text_printf(&more,
                       "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"make\",\"strict\":%s,"
                       "\"parameters\":%s}}],\"tool_choice\":\"required\",\"parallel_tool_calls\":false",
                       seed % 2 ? "true" : "false", schema);
    } else {
        ms_text_printf(&more,
                       "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"it\",\"strict\":true,"
                       "\"schema\":%s}}",
                       schema);
    }
    chat_try(p->port, "{\"role\":\"user\",\"content\":\"Make something.\"}", more.data, r);
    ms_text_free(&more);
}

static void generations(bool tool) {
    const char *const args[] = {PLAIN, NULL};
    program p;
    size_t wrong = 0, refused = 0, done = 0;
    program_start(&p, args);
    program_ready(&p);
    for (unsigned i = 0; done < GENERATIONS && refused < GENERATIONS; i++) {
        ms_text schema = {0};
        http_response r;
        root_schema(&schema, tool);
        ask(&p, schema.data, i, tool, &r);
        const char *text =
            http_text(&r, tool ? "choices.0.message.tool_calls.0.function.arguments" : "choices.0.message.content");
        if (r.status == 400) {
            refused++;
            if (refused < 4) print_message("refused: %s\n  %s\n", schema.data, r.body.data);
        } else if (r.status != 200 || !fits(schema.data, text)) {
            wrong++;
            print_error("%s\n  %d %s\n", schema.data, r.status, r.body.data ? r.body.data : "");
        } else {
            done++;
        }
        http_free(&r);
        ms_text_free(&schema);
        if (wrong > 5) break;
    }
    print_message("%zu fit, %zu do not, %zu refused\n", done, wrong, refused);
    assert_int_equal(program_end(&p, SIGTERM), 0);
    program_free(&p);
    assert_int_equal(wrong, 0);
    assert_true(refused <= GENERATIONS / 20);
}

static void structured_output(void **state) {
    (void)state;
    generations(false);
}

static void strict_tools(void **state) {
    (void)state;
    generations(true);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(structured_output), cmocka_unit_test(strict_tools)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
