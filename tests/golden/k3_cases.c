#include "k3_cases.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/json.h"
#include "io/file.h"
#include "session/session_internal.h"

enum { MAX_ROUTES = 256 };

/* Relative error over a whole file.  Plain float32 reaches 1.5e-6; a wrong formula shows as 1e-3 and more. */
static const double logits_tolerance = 1e-5;
static const double norm_tolerance = 1e-4;

typedef struct k3_case {
    const char *dir, *name, *backend;
    const ms_json *json;
    uint32_t *prompt, *greedy;
    uint32_t prompt_count, greedy_count, vocab;
    float *logits_all, *logits_greedy;
    golden_report *report;
    void *arg;
} k3_case;

typedef struct k3_run {
    const k3_case *c;
    float *all;    /* [prompt][vocab] */
    float *greedy; /* [greedy][vocab] */
    uint32_t *greedy_ids;
    uint32_t *routes[MAX_ROUTES]; /* per layer [prompt][top_k] */
    uint32_t top_k;
} k3_run;

static void say(const k3_case *c, const char *what, bool ok, const char *fmt, double a, double b) {
    char name[512], detail[256];
    (void)snprintf(name, sizeof name, "%s/%s %s", c->dir, c->name, what);
    (void)snprintf(detail, sizeof detail, fmt, a, b);
    c->report(c->arg, name, ok, detail);
}

static void say_error(const k3_case *c, const char *what, const ms_error *err) {
    char name[512];
    (void)snprintf(name, sizeof name, "%s/%s %s", c->dir, c->name, what);
    c->report(c->arg, name, false, err->message);
}

static double relative_error(const float *x, const float *want, size_t n) {
    double d = 0, s = 0;
    for (size_t i = 0; i < n; i++) {
        double e = (double)x[i] - (double)want[i];
        d += e * e;
        s += (double)want[i] * (double)want[i];
    }
    return s > 0 ? sqrt(d / s) : sqrt(d);
}

static ms_status sink(void *arg, uint64_t first, uint32_t rows, const float *logits, ms_error *err) {
    (void)err;
    k3_run *r = arg;
    if (first + rows <= r->c->prompt_count)
        memcpy(r->all + first * r->c->vocab, logits, (size_t)rows * r->c->vocab * sizeof *logits);
    return MS_OK;
}

static void routes(void *arg, uint32_t layer, uint64_t first, uint32_t rows, uint32_t top_k, const uint32_t *ids) {
    k3_run *r = arg;
    r->top_k = top_k;
    if (layer >= MAX_ROUTES || first + rows > r->c->prompt_count) return;
    if (!r->routes[layer]) r->routes[layer] = calloc((size_t)r->c->prompt_count * top_k, sizeof *ids);
    if (r->routes[layer]) memcpy(r->routes[layer] + first * top_k, ids, (size_t)rows * top_k * sizeof *ids);
}

static ms_status evaluate(ms_session *s, k3_run *r, uint32_t range, ms_error *err) {
    const k3_case *c = r->c;
    ms_forward_options o = {.range = range, .all_logits = true, .sink = sink, .sink_arg = r, .routes = routes, .routes_arg = r};
    MS_TRY(ms_session_forward(s, c->prompt, c->prompt_count, &o, err));
    return MS_OK;
}

static ms_status continue_greedily(ms_session *s, k3_run *r, ms_error *err) {
    const k3_case *c = r->c;
    ms_sampler sampler;
    ms_sampler_greedy(&sampler);
    for (uint32_t i = 0; i < c->greedy_count; i++) {
        memcpy(r->greedy + (size_t)i * c->vocab, ms_session_logits(s), c->vocab * sizeof(float));
        MS_TRY(ms_sampler_pick(&sampler, ms_session_logits(s), c->vocab, &r->greedy_ids[i], err));
        if (i + 1 < c->greedy_count) MS_TRY(ms_session_forward(s, &r->greedy_ids[i], 1, NULL, err));
    }
    return MS_OK;
}

static bool has_id(const uint32_t *ids, uint32_t n, uint64_t id) {
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] == id) return true;
    return false;
}

/* Chosen experts must agree wherever the golden's selection gap is clear. */
static void check_routes(const k3_run *r) {
    const k3_case *c = r->c;
    uint32_t checked = 0, wrong = 0, l = 0;
    const ms_json *layers = ms_json_get(c->json, "layers");
    for (const ms_json *layer = layers ? layers->child : NULL; layer; layer = layer->next, l++) {
        const ms_json *experts = ms_json_get(layer, "experts"), *gaps = ms_json_get(layer, "select_gap");
        if (!experts || !gaps || l >= MAX_ROUTES) continue;
        const ms_json *gap = gaps->child;
        uint32_t pos = 0;
        for (const ms_json *row = experts->child; row && gap; row = row->next, gap = gap->next, pos++) {
            double g = 0;
            if (!ms_json_double(gap, &g) || g <= 1e-4) continue;
            checked++;
            bool same = r->routes[l] != NULL && row->count == r->top_k && pos < c->prompt_count;
            for (const ms_json *e = row->child; e && same; e = e->next) {
                uint64_t id = 0;
                same = ms_json_u64(e, &id) && has_id(r->routes[l] + (size_t)pos * r->top_k, r->top_k, id);
            }
            wrong += !same;
        }
    }
    say(c, "experts", wrong == 0 && checked > 0, "%.0f choices checked, %.0f differ", checked, wrong);
}

static double part_norm(const ms_session *s, const char *kind, uint32_t layer) {
    const ms_state_part *p = ms_state_find(&s->state, kind, layer);
    if (!p) return -1;
    /* reference precision: everything is f32 */
    uint64_t n = ms_state_part_bytes(&s->state, p) / sizeof(float);
    float *x = malloc((size_t)n * sizeof *x + 1);
    if (!x) return -1;
    s->engine->backend->download(s->engine->backend, x, p->current, (size_t)n * sizeof *x);
    double sum = 0;
    for (uint64_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    free(x);
    return sqrt(sum);
}

static void check_state(const ms_session *s, const k3_case *c) {
    static const struct {
        const char *key, *kind;
    } kinds[] = {{"kda_S_l2", "kda"}, {"kda_conv_l2", "conv"}, {"mla_rows_l2", "mla"}};
    const ms_json *want = ms_json_get(c->json, "state_after_prompt");
    if (!want) return;
    double worst = 0;
    uint32_t checked = 0;
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        const ms_json *layers = ms_json_get(want, kinds[k].key);
        for (const ms_json *v = layers ? layers->child : NULL; v; v = v->next) {
            double w = 0;
            (void)ms_json_double(v, &w);
            double d = fabs(part_norm(s, kinds[k].kind, (uint32_t)strtoul(v->key, NULL, 10)) - w) / (w > 0 ? w : 1);
            if (d > worst) worst = d;
            checked++;
        }
    }
    say(c, "state", worst < norm_tolerance && checked > 0, "%.0f norms, worst relative difference %.2g", checked, worst);
}

static void check_logits(const k3_run *r, const char *how) {
    const k3_case *c = r->c;
    char what[64];
    if (c->logits_all) {
        double e = relative_error(r->all, c->logits_all, (size_t)c->prompt_count * c->vocab);
        (void)snprintf(what, sizeof what, "logits (%s)", how);
        say(c, what, e < logits_tolerance, "relative error %.3g, limit %.0g", e, logits_tolerance);
    }
}

static void check_greedy(const k3_run *r) {
    const k3_case *c = r->c;
    uint32_t same = 0;
    while (same < c->greedy_count && r->greedy_ids[same] == c->greedy[same]) same++;
    say(c, "greedy", same == c->greedy_count, "%.0f of %.0f tokens", same, c->greedy_count);
    if (!c->logits_greedy) return;
    double e = relative_error(r->greedy, c->logits_greedy, (size_t)c->greedy_count * c->vocab);
    say(c, "greedy logits", e < logits_tolerance, "relative error %.3g, limit %.0g", e, logits_tolerance);
}

/* Compares bits with a first run: results must not depend on how the prompt is cut. */
static void run_cuts(ms_session *s, k3_run *r, const k3_case *c) {
    static const uint32_t cuts[] = {1, 2, 3, 5};
    size_t bytes = (size_t)c->prompt_count * c->vocab * sizeof(float);
    float *whole = malloc(bytes);
    ms_error err = {0};
    if (!whole) return;
    memcpy(whole, r->all, bytes);
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        char what[64];
        (void)snprintf(what, sizeof what, "ranges of %u equal the whole", cuts[i]);
        ms_session_reset(s);
        memset(r->all, 0, bytes);
        if (evaluate(s, r, cuts[i], &err) != MS_OK) say_error(c, what, &err);
        else say(c, what, memcmp(whole, r->all, bytes) == 0, "bits of %.0f rows", c->prompt_count, 0);
    }
    free(whole);
}

static void run_reference(ms_engine *e, k3_run *r) {
    const k3_case *c = r->c;
    ms_error err = {0};
    ms_session *s = NULL;
    if (ms_session_create(&s, e, &err) != MS_OK || evaluate(s, r, 0, &err) != MS_OK) {
        say_error(c, "run", &err);
        ms_session_destroy(s);
        return;
    }
    check_logits(r, "whole prompt");
    check_routes(r);
    check_state(s, c);
    if (continue_greedily(s, r, &err) != MS_OK) say_error(c, "greedy", &err);
    else check_greedy(r);
    run_cuts(s, r, c);
    ms_session_destroy(s);
}

/* Q8 static weights: informative, but three times the listed deviation says that something is wrong. */
static void run_q8(ms_engine *e, k3_run *r) {
    const k3_case *c = r->c;
    double listed = 0;
    const ms_json *d = ms_json_get(ms_json_get(c->json, "deviation_of_other_arithmetic"), "q8_128");
    if (!c->logits_all || !ms_json_double(ms_json_get(d, "logits_all_rel_l2"), &listed)) return;
    ms_error err = {0};
    ms_session *s = NULL;
    if (ms_session_create(&s, e, &err) != MS_OK || evaluate(s, r, 0, &err) != MS_OK) {
        say_error(c, "q8 weights", &err);
    } else {
        double dev = relative_error(r->all, c->logits_all, (size_t)c->prompt_count * c->vocab);
        say(c, "q8 weights", dev < 3 * listed, "relative error %.3g, limit %.3g", dev, 3 * listed);
    }
    ms_session_destroy(s);
}

static void with_engine(const k3_case *c, k3_run *r, ms_static_format format, void (*fn)(ms_engine *e, k3_run *r)) {
    ms_engine_options o;
    ms_error err = {0};
    ms_engine *e = NULL;
    ms_engine_options_default(&o, c->dir);
    o.precision = MS_PRECISION_REFERENCE;
    o.static_format = format;
    o.backend = c->backend;
    o.context = c->prompt_count + c->greedy_count;
    if (ms_engine_open(&e, &o, &err) != MS_OK) {
        say_error(c, "open", &err);
        return;
    }
    if (e->model.info.vocab == c->vocab) fn(e, r);
    else say(c, "vocabulary", false, "case has %.0f, checkpoint %.0f", c->vocab, e->model.info.vocab);
    ms_engine_close(e);
}

static uint32_t *read_ids(const ms_json *list, uint32_t *count) {
    *count = list && list->type == MS_JSON_ARRAY ? (uint32_t)list->count : 0;
    uint32_t *ids = calloc(*count ? *count : 1, sizeof *ids), i = 0;
    for (const ms_json *v = ids && *count ? list->child : NULL; v; v = v->next) {
        uint64_t id = UINT32_MAX;
        (void)ms_json_u64(v, &id);
        ids[i++] = (uint32_t)id;
    }
    return ids;
}

static float *read_floats(const k3_case *c, const char *key, size_t rows) {
    const ms_json *f = ms_json_at(ms_json_get(ms_json_get(c->json, "files"), key), 0);
    char path[4096], *data = NULL;
    size_t len = 0, want = rows * c->vocab * sizeof(float);
    ms_error err = {0};
    if (!f || f->type != MS_JSON_STRING) return NULL;
    (void)snprintf(path, sizeof path, "%s/golden/%s", c->dir, f->str);
    if (ms_file_read_all(path, want, &data, &len, &err) == MS_OK && len == want) return (float *)(void *)data;
    free(data);
    say(c, key, false, "expected %.0f bytes, found %.0f", (double)want, (double)len);
    return NULL;
}

static void run_case(const k3_case *c) {
    k3_run r = {.c = c};
    r.all = calloc((size_t)c->prompt_count * c->vocab, sizeof(float));
    r.greedy = calloc((size_t)c->greedy_count * c->vocab + 1, sizeof(float));
    r.greedy_ids = calloc(c->greedy_count + 1u, sizeof(uint32_t));
    if (r.all && r.greedy && r.greedy_ids) {
        with_engine(c, &r, MS_STATIC_BF16, run_reference);
        with_engine(c, &r, MS_STATIC_Q8, run_q8);
    } else {
        say(c, "memory", false, "out of memory", 0, 0);
    }
    for (int l = 0; l < MAX_ROUTES; l++) free(r.routes[l]);
    free(r.all);
    free(r.greedy);
    free(r.greedy_ids);
}

static void load_case(const char *dir, const char *file, const char *backend, golden_report *report, void *arg) {
    char path[4096], *text = NULL;
    size_t len = 0;
    ms_error err = {0};
    ms_json_doc *doc = NULL;
    k3_case c = {.dir = dir, .name = file, .backend = backend, .report = report, .arg = arg};
    (void)snprintf(path, sizeof path, "%s/golden/%s", dir, file);
    if (ms_file_read_all(path, 64 << 20, &text, &len, &err) != MS_OK ||
        ms_json_parse(&doc, text, len, path, NULL, &err) != MS_OK) {
        say_error(&c, "read", &err);
        free(text);
        return;
    }
    c.json = ms_json_root(doc);
    uint64_t vocab = 0;
    c.prompt = read_ids(ms_json_get(c.json, "prompt"), &c.prompt_count);
    c.greedy = read_ids(ms_json_get(c.json, "greedy"), &c.greedy_count);
    if (ms_json_u64(ms_json_get(c.json, "vocab"), &vocab) && vocab < 1u << 24 && c.prompt_count && c.prompt && c.greedy) {
        c.vocab = (uint32_t)vocab;
        c.logits_all = read_floats(&c, "logits_all", c.prompt_count);
        c.logits_greedy = read_floats(&c, "logits_greedy", c.greedy_count);
        run_case(&c);
    } else {
        say(&c, "read", false, "no prompt or vocab", 0, 0);
    }
    free(c.logits_all);
    free(c.logits_greedy);
    free(c.prompt);
    free(c.greedy);
    ms_json_free(doc);
    free(text);
}

static int by_name(const struct dirent **a, const struct dirent **b) { return strcmp((*a)->d_name, (*b)->d_name); }
static int is_json(const struct dirent *d) {
    size_t n = strlen(d->d_name);
    return n > 5 && !strcmp(d->d_name + n - 5, ".json");
}

bool golden_k3_dir(const char *dir, const char *backend, golden_report *report, void *arg) {
    char *text = NULL, path[4096];
    ms_json_doc *doc = NULL;
    bool k3 = ms_checkpoint_read_config(dir, &doc, &text, NULL) == MS_OK && ms_lane_find(ms_json_root(doc)) == &ms_lane_k3;
    ms_json_free(doc);
    free(text);
    if (!k3) return false;
    struct dirent **files = NULL;
    (void)snprintf(path, sizeof path, "%s/golden", dir);
    int n = scandir(path, &files, is_json, by_name);
    for (int i = 0; i < n; i++) {
        load_case(dir, files[i]->d_name, backend, report, arg);
        free(files[i]);
    }
    free(files);
    return n > 0;
}
