/* options.c: the command line parser of options.h.
 *
 * Owns: nothing.  Threads: none shared.
 * Invariant: a field is only written after its text was checked completely.
 */
#include "base/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

/* ------------------------------------------------------------------ values */

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* Reads a run of digits; *big when it does not fit.  Returns the digits taken. */
static size_t read_digits(const char *s, uint64_t *value, bool *big) {
    size_t n = 0;
    *value = 0;
    *big = false;
    for (; is_digit(s[n]); n++) {
        if (__builtin_mul_overflow(*value, UINT64_C(10), value) ||
            __builtin_add_overflow(*value, (uint64_t)(s[n] - '0'), value)) {
            *big = true;
        }
    }
    return n;
}

static ms_status fail_range(ms_error *err, const char *name, const char *unit, uint64_t min, uint64_t max,
                            const char *text) {
    if (max == UINT64_MAX) {
        return ms_fail(err, MS_ERR_USAGE, "%s: expected %s of at least %llu, found \"%.80s\"", name, unit,
                       (unsigned long long)min, text);
    }
    return ms_fail(err, MS_ERR_USAGE, "%s: expected %s from %llu to %llu, found \"%.80s\"", name, unit,
                   (unsigned long long)min, (unsigned long long)max, text);
}

ms_status ms_option_parse_u64(uint64_t *out, const char *name, const char *text, uint64_t min, uint64_t max,
                              ms_error *err) {
    uint64_t value;
    bool big;
    size_t n = read_digits(text, &value, &big);
    if (!n || text[n] || big || value < min || value > max) return fail_range(err, name, "a number", min, max, text);
    *out = value;
    return MS_OK;
}

/* "", "K", "KB", "KiB" and so on; false: something else. */
static bool read_unit(const char *s, unsigned *shift) {
    static const char units[] = "KMGT";
    *shift = 0;
    if (*s == 0) return true;
    const char *unit = strchr(units, *s);
    if (!unit) return false;
    *shift = (unsigned)(unit - units + 1) * 10;
    return s[1] == 0 || strcmp(s + 1, "B") == 0 || strcmp(s + 1, "iB") == 0;
}

ms_status ms_option_parse_bytes(uint64_t *out, const char *name, const char *text, uint64_t min, uint64_t max,
                                ms_error *err) {
    uint64_t value;
    bool big;
    unsigned shift = 0;
    size_t n = read_digits(text, &value, &big);
    bool good =
        n && !big && read_unit(text + n, &shift) && !__builtin_mul_overflow(value, UINT64_C(1) << shift, &value);
    if (!good || value < min || value > max) {
        return fail_range(err, name, "a number of bytes (K, M, G, T are permitted)", min, max, text);
    }
    *out = value;
    return MS_OK;
}

static ms_status parse_i64(int64_t *out, const char *name, const char *text, ms_error *err) {
    bool minus = text[0] == '-', big;
    uint64_t value;
    size_t n = read_digits(text + minus, &value, &big);
    uint64_t limit = (uint64_t)INT64_MAX + minus;
    if (!n || text[minus + n] || big || value > limit) {
        return ms_fail(err, MS_ERR_USAGE, "%s: expected a number from %lld to %lld, found \"%.80s\"", name,
                       (long long)INT64_MIN, (long long)INT64_MAX, text);
    }
    *out = minus ? (int64_t)(0 - value) : (int64_t)value;
    return MS_OK;
}

static void describe_reals(char *out, size_t size, const ms_option *o) {
    (void)snprintf(out, size, "%s%g to %s%g", o->low_open ? "above " : "", o->low, o->high_open ? "below " : "",
                   o->high);
}

static ms_status parse_real(double *out, const char *name, const ms_option *o, const char *text, ms_error *err) {
    size_t n = text[0] == '-', first = n;
    while (is_digit(text[n])) n++;
    bool good = n > first;
    if (good && text[n] == '.') {
        size_t point = n++;
        while (is_digit(text[n])) n++;
        good = n > point + 1;
    }
    double value = good && !text[n] ? ms_json_number_value(text, n) : 0;
    good = good && !text[n] && (o->low_open ? value > o->low : value >= o->low) &&
           (o->high_open ? value < o->high : value <= o->high);
    if (!good) {
        char range[80];
        describe_reals(range, sizeof range, o);
        return ms_fail(err, MS_ERR_USAGE, "%s: expected digits like 0.5, a number from %s, found \"%.80s\"", name,
                       range, text);
    }
    *out = value;
    return MS_OK;
}

ms_status ms_option_parse_real(double *out, const char *name, const char *text, double low, double high,
                               ms_error *err) {
    const ms_option bounds = {.low = low, .high = high};
    return parse_real(out, name, &bounds, text, err);
}

static ms_status fail_empty(const char *name, const ms_option *o, ms_error *err) {
    return ms_fail(err, MS_ERR_USAGE, "%s: expected %s, found \"\"", name, o->arg ? o->arg : "a value");
}

/* The choices as "a, b or c" or, for the help text, "a|b|c". */
static void write_choices(ms_text *t, const ms_option *o, bool sentence) {
    for (size_t i = 0; o->choices[i]; i++) {
        if (i) ms_text_puts(t, !sentence ? "|" : o->choices[i + 1] ? ", " : " or ");
        ms_text_puts(t, o->choices[i]);
    }
}

static ms_status parse_choice(int *out, const char *name, const ms_option *o, const char *text, ms_error *err) {
    for (size_t i = 0; o->choices[i]; i++) {
        if (strcmp(text, o->choices[i]) == 0) {
            *out = (int)i;
            return MS_OK;
        }
    }
    ms_text list = {0};
    write_choices(&list, o, true);
    ms_status status = ms_fail(err, MS_ERR_USAGE, "%s: expected %s, found \"%.80s\"", name,
                               list.failed ? "another word" : list.data, text);
    ms_text_free(&list);
    return status;
}

static bool takes_value(const ms_option *o) { return o->type != MS_OPTION_FLAG && o->type != MS_OPTION_SET; }

/* Writes the field of one option; text is NULL for flags and sets. */
static ms_status store(const ms_option_group *g, const ms_option *o, const char *name, const char *text,
                       ms_error *err) {
    unsigned char *field = (unsigned char *)g->values + o->offset;
    uint64_t max = o->max ? o->max : UINT64_MAX, value;
    switch (o->type) {
    case MS_OPTION_FLAG:
        *(bool *)(void *)field = true;
        return MS_OK;
    case MS_OPTION_SET:
        *(int *)(void *)field = o->set;
        return MS_OK;
    case MS_OPTION_STRING:
        if (o->filled && !*text) return fail_empty(name, o, err);
        *(const char **)(void *)field = text;
        return MS_OK;
    case MS_OPTION_LIST: {
        if (o->filled && !*text) return fail_empty(name, o, err);
        ms_option_list *list = (ms_option_list *)(void *)field;
        size_t most = o->max && o->max < MS_OPTION_LIST_MAX ? (size_t)o->max : MS_OPTION_LIST_MAX;
        if (list->count == most) {
            return ms_fail(err, MS_ERR_USAGE, "%s: expected at most %zu of them, found \"%.80s\"", name, most, text);
        }
        list->items[list->count++] = text;
        return MS_OK;
    }
    case MS_OPTION_U32:
        if (max > UINT32_MAX) max = UINT32_MAX;
        if (o->word && strcmp(text, o->word) == 0) {
            *(uint32_t *)(void *)field = UINT32_MAX;
            return MS_OK;
        }
        MS_TRY(ms_option_parse_u64(&value, name, text, o->min, max, err));
        *(uint32_t *)(void *)field = (uint32_t)value;
        return MS_OK;
    case MS_OPTION_U64:
        return ms_option_parse_u64((uint64_t *)(void *)field, name, text, o->min, max, err);
    case MS_OPTION_BYTES:
        return ms_option_parse_bytes((uint64_t *)(void *)field, name, text, o->min, max, err);
    case MS_OPTION_I64:
        return parse_i64((int64_t *)(void *)field, name, text, err);
    case MS_OPTION_REAL:
        return parse_real((double *)(void *)field, name, o, text, err);
    case MS_OPTION_CHOICE:
        return parse_choice((int *)(void *)field, name, o, text, err);
    }
    return ms_fail(err, MS_ERR_INTERNAL, "%s: a type that the option parser does not know", name);
}

/* ------------------------------------------------------------------ finding options */

/* A found option; number counts over all groups. */
typedef struct found {
    const ms_option_group *group;
    const ms_option *option;
    size_t number;
} found;

/* By name[0..len), or by letter when name is NULL. */
static bool find(const ms_option_set *set, const char *name, size_t len, char letter, found *out) {
    size_t number = 0;
    for (size_t g = 0; g < set->group_count; g++) {
        for (size_t i = 0; i < set->groups[g].count; i++, number++) {
            const ms_option *o = &set->groups[g].options[i];
            bool same = name ? strlen(o->name) == len && memcmp(o->name, name, len) == 0 : o->letter == letter;
            if (!same) continue;
            *out = (found){&set->groups[g], o, number};
            return true;
        }
    }
    return false;
}

bool ms_options_given(const ms_option_set *set, const ms_option_result *result, const char *name) {
    found f;
    return find(set, name, strlen(name), 0, &f) && f.number < MS_OPTION_GIVEN_MAX && result->given[f.number];
}

ms_status ms_options_exclusive(const ms_option_set *set, const ms_option_result *result, const char *const *names,
                               size_t count, ms_error *err) {
    const char *first = NULL;
    for (size_t i = 0; i < count; i++) {
        if (!ms_options_given(set, result, names[i])) continue;
        if (first) return ms_fail(err, MS_ERR_USAGE, "--%s and --%s exclude each other", first, names[i]);
        first = names[i];
    }
    return MS_OK;
}

/* ------------------------------------------------------------------ parsing */

typedef struct parse {
    const ms_option_set *set;
    ms_option_result *result;
    char *const *argv;
    int argc, at; /* argv[at] is being read */
    ms_error *err;
} parse;

static ms_status take(parse *p, const found *f, const char *shown, const char *value) {
    if (takes_value(f->option) && !value) {
        if (p->at + 1 >= p->argc) return ms_fail(p->err, MS_ERR_USAGE, "%s: expected a value after it", shown);
        value = p->argv[++p->at];
    }
    if (f->number < MS_OPTION_GIVEN_MAX) p->result->given[f->number] = true;
    return store(f->group, f->option, shown, value, p->err);
}

static ms_status long_option(parse *p, const char *name) {
    const char *equals = strchr(name, '=');
    size_t len = equals ? (size_t)(equals - name) : strlen(name);
    if (strcmp(name, "help") == 0 || strcmp(name, "version") == 0) {
        *(name[0] == 'h' ? &p->result->help : &p->result->version) = true;
        return MS_OK;
    }
    found f;
    if (!find(p->set, name, len, 0, &f)) {
        return ms_fail(p->err, MS_ERR_USAGE, "unknown option --%.*s", (int)(len < 80 ? len : 80), name);
    }
    if (equals && !takes_value(f.option)) return ms_fail(p->err, MS_ERR_USAGE, "--%s takes no value", f.option->name);
    char shown[96];
    (void)snprintf(shown, sizeof shown, "--%s", f.option->name);
    return take(p, &f, shown, equals ? equals + 1 : NULL);
}

static ms_status letters(parse *p, const char *s) {
    for (; *s; s++) {
        char shown[3] = {'-', *s, 0};
        found f;
        if (*s == 'h') {
            p->result->help = true;
            return MS_OK;
        }
        if (!find(p->set, NULL, 0, *s, &f)) return ms_fail(p->err, MS_ERR_USAGE, "unknown option %s", shown);
        if (takes_value(f.option)) return take(p, &f, shown, s[1] ? s + 1 : NULL);
        MS_TRY(take(p, &f, shown, NULL));
    }
    return MS_OK;
}

static ms_status positional(parse *p, const char *arg) {
    size_t most = p->set->max_args < MS_OPTION_ARGS_MAX ? p->set->max_args : MS_OPTION_ARGS_MAX;
    if (p->result->arg_count == most) return ms_fail(p->err, MS_ERR_USAGE, "superfluous argument \"%.200s\"", arg);
    p->result->args[p->result->arg_count++] = arg;
    return MS_OK;
}

static ms_status from_environment(const ms_option_set *set, const ms_option_result *result, ms_error *err) {
    size_t number = 0;
    for (size_t g = 0; g < set->group_count; g++) {
        for (size_t i = 0; i < set->groups[g].count; i++, number++) {
            const ms_option *o = &set->groups[g].options[i];
            if (!o->env || (number < MS_OPTION_GIVEN_MAX && result->given[number])) continue;
            const char *value = getenv(o->env);
            if (value && *value) MS_TRY(store(&set->groups[g], o, o->env, value, err));
        }
    }
    return MS_OK;
}

ms_status ms_options_parse(const ms_option_set *set, int argc, char *const *argv, ms_option_result *result,
                           ms_error *err) {
    *result = (ms_option_result){0};
    parse p = {.set = set, .result = result, .argv = argv, .argc = argc, .err = err};
    bool only_args = false;
    for (p.at = 1; p.at < argc; p.at++) {
        const char *arg = argv[p.at];
        if (only_args || arg[0] != '-' || !arg[1])
            MS_TRY(positional(&p, arg));
        else if (strcmp(arg, "--") == 0)
            only_args = true;
        else if (arg[1] == '-')
            MS_TRY(long_option(&p, arg + 2));
        else
            MS_TRY(letters(&p, arg + 1));
        if (result->help || result->version) return MS_OK;
    }
    return from_environment(set, result, err);
}

/* ------------------------------------------------------------------ help */

enum { HELP_COLUMN = 30, HELP_WIDTH = 100 };

static void pad_to(ms_text *out, size_t from, size_t to) {
    for (; from < to; from++) ms_text_puts(out, " ");
}

/* Wraps text at spaces between `indent` and HELP_WIDTH; the cursor stands at `indent`. */
static void wrap(ms_text *out, const char *text, size_t indent) {
    size_t column = indent;
    while (*text) {
        size_t word = strcspn(text, " ");
        if (column > indent && column + 1 + word > HELP_WIDTH) {
            ms_text_puts(out, "\n");
            pad_to(out, 0, indent);
            column = indent;
        } else if (column > indent) {
            ms_text_puts(out, " ");
            column++;
        }
        ms_text_append(out, text, word);
        column += word;
        text += word;
        while (*text == ' ') text++;
    }
    ms_text_puts(out, "\n");
}

static void describe(ms_text *t, const ms_option *o) {
    ms_text_puts(t, o->help);
    bool whole = o->type == MS_OPTION_U32 || o->type == MS_OPTION_U64 || o->type == MS_OPTION_BYTES;
    if (whole && o->max) {
        ms_text_printf(t, " (%llu to %llu%s%s)", (unsigned long long)o->min, (unsigned long long)o->max,
                       o->word ? ", or " : "", o->word ? o->word : "");
    } else if (whole && o->min) {
        ms_text_printf(t, " (at least %llu)", (unsigned long long)o->min);
    } else if (o->type == MS_OPTION_REAL) {
        char range[80];
        describe_reals(range, sizeof range, o);
        ms_text_printf(t, " (%s)", range);
    } else if (o->type == MS_OPTION_LIST) {
        ms_text_printf(t, " (up to %llu times)", (unsigned long long)(o->max ? o->max : MS_OPTION_LIST_MAX));
    }
    if (o->env) ms_text_printf(t, " [%s]", o->env);
}

static void help_line(ms_text *out, const char *left, const char *right) {
    size_t used = strlen(left);
    ms_text_puts(out, left);
    if (used + 2 > HELP_COLUMN) {
        ms_text_puts(out, "\n");
        used = 0;
    }
    pad_to(out, used, HELP_COLUMN);
    wrap(out, right, HELP_COLUMN);
}

static void help_option(ms_text *out, const ms_option *o) {
    ms_text left = {0}, right = {0};
    if (o->letter)
        ms_text_printf(&left, "  -%c, --%s", o->letter, o->name);
    else
        ms_text_printf(&left, "      --%s", o->name);
    if (o->type == MS_OPTION_CHOICE) {
        ms_text_puts(&left, " ");
        write_choices(&left, o, false);
    } else if (takes_value(o)) {
        ms_text_printf(&left, " %s", o->arg ? o->arg : "VALUE");
    }
    describe(&right, o);
    if (left.failed || right.failed)
        out->failed = true;
    else
        help_line(out, left.data, right.data);
    ms_text_free(&left);
    ms_text_free(&right);
}

void ms_options_help(const ms_option_set *set, ms_text *out) {
    ms_text_printf(out, "usage: %s %s\n", set->program, set->synopsis);
    if (set->about) {
        ms_text_puts(out, "\n");
        wrap(out, set->about, 0);
    }
    for (size_t g = 0; g < set->group_count; g++) {
        const ms_option_group *group = &set->groups[g];
        if (!group->title) continue;
        ms_text_printf(out, "\n%s:\n", group->title);
        for (size_t i = 0; i < group->count; i++) {
            if (group->options[i].help) help_option(out, &group->options[i]);
        }
    }
    ms_text_puts(out, "\nGeneral:\n");
    help_line(out, "  -h, --help", "print this text");
    help_line(out, "      --version", "print the version");
    if (!set->epilogue) return;
    ms_text_printf(out, "\n%s", set->epilogue);
    size_t len = strlen(set->epilogue);
    if (len && set->epilogue[len - 1] != '\n') ms_text_puts(out, "\n");
}
