/* api_params.c: parameters that the APIs share: model, limits, sampling, stop strings, log probabilities, effort. */
#include "server/api_read.h"

#include <stdio.h>
#include <string.h>

bool ms_api_model(ms_api_parse *p) {
    static const ms_api_path at = {.key = "model"};
    const ms_json *v;
    if (!ms_api_need(p, NULL, p->root, "model", MS_WANT_STRING, &v) || !ms_api_name(p, &at, v, 256)) return false;
    const ms_api_limits *l = p->limits;
    if (l->any_model || ms_json_is_string(v, l->model_id)) return true;
    for (const char *const *a = l->aliases; a && *a; a++) {
        if (ms_json_is_string(v, *a)) return true;
    }
    return ms_api_fail(p->err, 404, "model_not_found", "model", "this server has no model of that name; it serves %s",
                       l->model_id);
}

/* ------------------------------------------------------------------ output limit */

static bool all_digits(const ms_json *v) {
    for (size_t i = 0; i < v->raw_len; i++) {
        if (v->raw[i] < '0' || v->raw[i] > '9') return false;
    }
    return true;
}

bool ms_api_max_tokens(ms_api_parse *p, const char *first, const char *second, uint64_t fallback, bool required) {
    uint64_t ceiling = p->limits->max_output_ceiling, n;
    const char *key = first;
    const ms_json *v = ms_api_any(p->root, first);
    const ms_json *other = second ? ms_api_any(p->root, second) : NULL;
    if (!v && other) {
        v = other;
        key = second;
    } else if (other) {
        ms_api_path unread = {.key = second};
        ms_api_ignore(p, &unread);
    }
    ms_api_path at = {.key = key};
    p->r->max_tokens_key = key;
    if (!v) {
        if (required) return ms_api_bad(p, &at, "missing_field", "this field is required");
        p->r->max_tokens = fallback < ceiling ? fallback : ceiling;
        return true;
    }
    if (v->type != MS_JSON_NUMBER) return ms_api_bad_type(p, &at, v, "an integer");
    bool negative = v->raw[0] == '-';
    ms_json digits = {.type = MS_JSON_NUMBER, .raw = v->raw + negative, .raw_len = v->raw_len - negative};
    if (!all_digits(&digits)) {
        return ms_api_bad(p, &at, "invalid_type", "expected an integer without fraction or exponent");
    }
    if (!ms_json_u64(&digits, &n)) n = UINT64_MAX;
    bool too_large = !negative && n > ceiling;
    if (too_large && p->limits->clamp_max_tokens) {
        n = ceiling;
        p->r->clamped = true;
    } else if (negative || !n || too_large) {
        return ms_api_bad(p, &at, "out_of_range", "expected an integer in [1,%llu]", (unsigned long long)ceiling);
    }
    p->r->max_tokens = n;
    return true;
}

/* ------------------------------------------------------------------ streams */

bool ms_api_stream_options(ms_api_parse *p) {
    const ms_json *v;
    static const ms_api_path at = {.key = "stream_options"};
    static const ms_api_field fields[] = {{"include_usage", MS_RULE_USED, NULL}, {NULL, MS_RULE_USED, NULL}};
    ms_api_request *r = p->r;
    if (!ms_api_get_bool(p, NULL, p->root, "stream", &r->stream)) return false;
    if (!ms_api_get(p, NULL, p->root, "stream_options", MS_WANT_OBJECT, &v) || !v) return !v;
    bool usage = false;
    if (!ms_api_get_bool(p, &at, v, "include_usage", &usage)) return false;
    if (!r->stream) return ms_api_bad(p, &at, "invalid_value", "this needs \"stream\": true");
    if (ms_api_any(v, "include_usage")) r->include_usage = usage;
    return ms_api_fields(p, &at, v, fields);
}

/* ------------------------------------------------------------------ sampling */

static bool real(ms_api_parse *p, const char *key, double low, bool low_open, double high, bool high_open,
                 double neutral, double *out, bool *changes) {
    const ms_json *v;
    ms_api_path at = {.key = key};
    *out = neutral;
    *changes = false;
    if (!ms_api_get(p, NULL, p->root, key, MS_WANT_NUMBER, &v)) return false;
    if (!v) return true;
    double d;
    if (!ms_json_double(v, &d) || d < low || (low_open && d <= low) || d > high || (high_open && d >= high)) {
        return ms_api_bad(p, &at, "out_of_range", "expected a number in %c%g,%g%c", low_open ? '(' : '[', low, high,
                          high_open ? ')' : ']');
    }
    *out = d;
    *changes = d < neutral || d > neutral;
    return true;
}

static bool greedy_only(ms_api_parse *p, const char *key) {
    ms_api_path at = {.key = key};
    return ms_api_bad(p, &at, "unsupported_value",
                      "this server decodes greedily; sampling that is silently ignored would hide that its output is "
                      "exact, so only values that mean greedy are accepted");
}

bool ms_api_sampling(ms_api_parse *p) {
    ms_api_request *r = p->r;
    bool fixed = !p->limits->sampling, changes, found;
    int64_t n;
    if (!real(p, "temperature", 0.0, false, 2.0, false, 0.0, &r->temperature, &changes)) return false;
    if (changes && fixed) return greedy_only(p, "temperature");
    if (!real(p, "top_p", 0.0, true, 1.0, false, 1.0, &r->top_p, &changes)) return false;
    if (changes && fixed) return greedy_only(p, "top_p");
    if (!real(p, "min_p", 0.0, false, 1.0, true, 0.0, &r->min_p, &changes)) return false;
    if (changes && fixed) return greedy_only(p, "min_p");
    if (!ms_api_get_integer(p, NULL, p->root, "top_k", 0, INT64_MAX, &found, &n)) return false;
    if (found) r->top_k = (uint64_t)n;
    if (found && n > 1 && fixed) return greedy_only(p, "top_k");
    if (!ms_api_get_integer(p, NULL, p->root, "seed", INT64_MIN, INT64_MAX, &r->has_seed, &r->seed)) return false;
    r->sampled = r->temperature > 0.0 && r->top_k != 1;
    static const ms_api_path seed = {.key = "seed"};
    if (r->has_seed && !r->sampled) ms_api_ignore(p, &seed);
    return true;
}

/* ------------------------------------------------------------------ stop strings */

enum { MAX_STOP_BYTES = 256 };

static bool add_stop(ms_api_parse *p, const ms_api_path *at, const ms_json *v) {
    if (!ms_api_is(p, at, v, MS_WANT_STRING)) return false;
    if (!v->str_len || v->str_len > MAX_STOP_BYTES) {
        return ms_api_bad(p, at, "out_of_range", "expected 1 to %d bytes, found %zu", MAX_STOP_BYTES, v->str_len);
    }
    ms_api_request *r = p->r;
    r->stops[r->stop_count].text = v->str;
    r->stops[r->stop_count++].len = v->str_len;
    return true;
}

bool ms_api_stops(ms_api_parse *p, const char *key, size_t most, bool or_string) {
    const ms_json *v = ms_api_any(p->root, key);
    ms_api_path at = {.key = key};
    if (!v) return true;
    if (v->type == MS_JSON_STRING && or_string) return add_stop(p, &at, v);
    if (v->type != MS_JSON_ARRAY) return ms_api_bad_type(p, &at, v, or_string ? "a string or an array" : "an array");
    if (v->count > most || (or_string && !v->count)) {
        return ms_api_bad(p, &at, "out_of_range", "expected %d to %zu strings, found %zu", or_string ? 1 : 0, most,
                          v->count);
    }
    ms_api_path item = {.up = &at};
    for (const ms_json *s = v->child; s; s = s->next, item.index++) {
        if (!add_stop(p, &item, s)) return false;
    }
    return true;
}

/* ------------------------------------------------------------------ log probabilities */

bool ms_api_logprobs(ms_api_parse *p) {
    ms_api_request *r = p->r;
    bool found;
    int64_t n = 0;
    static const ms_api_path logprobs = {.key = "logprobs"}, top = {.key = "top_logprobs"};
    if (!ms_api_get_bool(p, NULL, p->root, "logprobs", &r->logprobs)) return false;
    if (!ms_api_get_integer(p, NULL, p->root, "top_logprobs", 0, 20, &found, &n)) return false;
    if (r->logprobs && !p->limits->logprobs) {
        return ms_api_bad(p, &logprobs, "unsupported_parameter", "this model's server has no log probabilities");
    }
    if (found && !r->logprobs) return ms_api_bad(p, &top, "invalid_value", "this needs \"logprobs\": true");
    r->top_logprobs = (uint32_t)n;
    return true;
}

/* ------------------------------------------------------------------ thinking */

static const char *known_effort(const ms_api_limits *l, const char *s, size_t len) {
    for (const char *const *e = l->efforts; e && *e; e++) {
        if (strlen(*e) == len && memcmp(*e, s, len) == 0) return *e;
    }
    return NULL;
}

static bool refuse_effort(ms_api_parse *p, const ms_api_path *at) {
    char list[256] = "";
    size_t used = 0;
    for (const char *const *e = p->limits->efforts; e && *e && used < sizeof list; e++) {
        int n = snprintf(list + used, sizeof list - used, "%s%s", used ? ", " : "", *e);
        if (n > 0) used += (size_t)n;
    }
    return ms_api_bad(p, at, "unsupported_value", "expected one of %s", list[0] ? list : "none (no effort can be set)");
}

/* What thinking means when it is only switched on: the default, else the first effort that thinks. */
static const char *thinking_effort(const ms_api_limits *l) {
    if (l->default_effort && strcmp(l->default_effort, "none") != 0) return l->default_effort;
    for (const char *const *e = l->efforts; e && *e; e++) {
        if (strcmp(*e, "none") != 0) return *e;
    }
    return NULL;
}

bool ms_api_effort(ms_api_parse *p, const ms_api_path *at, const ms_json *given, int switched,
                   const ms_api_path *switch_at) {
    const ms_api_limits *l = p->limits;
    const char *effort = l->default_effort;
    if (given) {
        if (!ms_api_is(p, at, given, MS_WANT_STRING)) return false;
        effort = known_effort(l, given->str, given->str_len);
        if (!effort) return refuse_effort(p, at);
        bool off = strcmp(effort, "none") == 0;
        if (switched >= 0 && off == (switched == 1)) {
            return ms_api_bad(p, switch_at, "invalid_value", "this contradicts the effort that is also given");
        }
    } else if (switched == 0) {
        effort = known_effort(l, "none", 4);
        if (!effort) return ms_api_bad(p, switch_at, "unsupported_value", "thinking cannot be switched off here");
    } else if (switched == 1) {
        effort = thinking_effort(l);
        if (!effort) return ms_api_bad(p, switch_at, "unsupported_value", "this model does not think");
    }
    bool thinking = effort && strcmp(effort, "none") != 0;
    p->r->thinking = thinking;
    p->r->effort = thinking ? effort : NULL;
    return true;
}

bool ms_api_thinking(ms_api_parse *p, int *switched) {
    const ms_json *v, *type;
    ms_api_path at = {.key = "thinking"}, type_at = {.up = &at, .key = "type"};
    *switched = -1;
    if (!ms_api_get(p, NULL, p->root, "thinking", MS_WANT_OBJECT, &v)) return false;
    if (!v) return true;
    if (!ms_api_need(p, &at, v, "type", MS_WANT_STRING, &type)) return false;
    bool on = ms_json_is_string(type, "enabled") || ms_json_is_string(type, "adaptive");
    if (!on && !ms_json_is_string(type, "disabled")) {
        return ms_api_bad(p, &type_at, "invalid_value", "expected enabled, adaptive or disabled");
    }
    *switched = on;
    static const ms_api_field fields[] = {{"type", MS_RULE_USED, NULL}, {NULL, MS_RULE_USED, NULL}};
    return ms_api_fields(p, &at, v, fields);
}
