#include "mimo_cases.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/bytes.h"
#include "case_file.h"
#include "io/file.h"
#include "lane/mimo26/mimo_chat.h"
#include "session/session_internal.h"

/* Largest difference of a logit.  Plain float32 stays below 1e-4; a wrong formula shows as tenths and more. */
static const double logits_tolerance = 1e-3;

typedef struct mimo_case {
    const char *dir, *backend;
    const ms_json *json;
    uint32_t *prompt, *greedy;
    uint32_t prompt_count, greedy_count, vocab;
    golden_report *report;
    void *arg;
} mimo_case;

typedef struct mimo_run {
    const mimo_case *c;
    float *rows; /* [prompt + greedy][vocab] */
    uint32_t *greedy_ids;
    uint32_t *routes[256]; /* per layer [prompt + greedy][top_k] */
    uint32_t top_k;
} mimo_run;

static void say(const mimo_case *c, const char *what, bool ok, const char *fmt, double a, double b) {
    char name[4200], detail[256];
    (void)snprintf(name, sizeof name, "%s %s", c->dir, what);
    (void)snprintf(detail, sizeof detail, fmt, a, b);
    c->report(c->arg, name, ok, detail);
}

static void say_error(const mimo_case *c, const char *what, const ms_error *err) {
    char name[4200];
    (void)snprintf(name, sizeof name, "%s %s", c->dir, what);
    c->report(c->arg, name, false, err->message);
}

static ms_status sink(void *arg, uint64_t first, uint32_t rows, const float *logits, ms_error *err) {
    (void)err;
    mimo_run *r = arg;
    memcpy(r->rows + first * r->c->vocab, logits, (size_t)rows * r->c->vocab * sizeof *logits);
    return MS_OK;
}

static void routes(void *arg, uint32_t layer, uint64_t first, uint32_t rows, uint32_t top_k, const uint32_t *ids) {
    mimo_run *r = arg;
    size_t all = (size_t)r->c->prompt_count + r->c->greedy_count;
    r->top_k = top_k;
    if (layer >= 256) return;
    if (!r->routes[layer]) r->routes[layer] = calloc(all * top_k, sizeof *ids);
    if (r->routes[layer]) memcpy(r->routes[layer] + first * top_k, ids, (size_t)rows * top_k * sizeof *ids);
}

/* The prompt in ranges, then every greedy token, the last one too: its experts are expected as well. */
static ms_status evaluate(ms_session *s, mimo_run *r, uint32_t range, ms_error *err) {
    const mimo_case *c = r->c;
    ms_forward_options o = {
        .range = range, .all_logits = true, .sink = sink, .sink_arg = r, .routes = routes, .routes_arg = r};
    MS_TRY(ms_session_forward(s, c->prompt, c->prompt_count, &o, err));
    ms_sampler sampler;
    ms_sampler_greedy(&sampler);
    for (uint32_t i = 0; i < c->greedy_count; i++) {
        MS_TRY(ms_sampler_pick(&sampler, ms_session_logits(s), c->vocab, &r->greedy_ids[i], err));
        MS_TRY(ms_session_forward(s, &r->greedy_ids[i], 1, &o, err));
    }
    return MS_OK;
}

static bool read_floats(const mimo_case *c, const char *file, float *out, size_t count) {
    char path[4200], *data = NULL;
    size_t len = 0, want = count * sizeof *out;
    ms_error err = {0};
    (void)snprintf(path, sizeof path, "%s/%s", c->dir, file);
    ms_status st = ms_file_read_all(path, want, &data, &len, &err);
    if (st == MS_OK && len == want)
        memcpy(out, data, want);
    else if (st != MS_OK)
        say_error(c, file, &err);
    else
        say(c, file, false, "expected %.0f bytes, found %.0f", (double)want, (double)len);
    free(data);
    return st == MS_OK && len == want;
}

static void check_floats(const mimo_run *r, const char *file, size_t first_row, size_t rows) {
    const mimo_case *c = r->c;
    size_t count = rows * c->vocab;
    float *want = malloc(count * sizeof *want + 1);
    if (want && ms_json_get(ms_json_get(c->json, "files"), file) && read_floats(c, file, want, count)) {
        double worst = 0;
        for (size_t i = 0; i < count; i++) {
            double d = fabs((double)r->rows[first_row * c->vocab + i] - (double)want[i]);
            if (!(d <= worst)) worst = d;
        }
        say(c, file, worst <= logits_tolerance, "largest difference %.3g, limit %.0g", worst, logits_tolerance);
    }
    free(want);
}

static void check_routes(const mimo_run *r) {
    const mimo_case *c = r->c;
    uint32_t checked = 0, wrong = 0;
    const ms_json *layers = ms_json_get(c->json, "router");
    for (const ms_json *layer = layers ? layers->child : NULL; layer; layer = layer->next) {
        unsigned long l = strtoul(layer->key, NULL, 10);
        const ms_json *rows = ms_json_get(layer, "experts");
        uint32_t position = 0;
        for (const ms_json *row = rows ? rows->child : NULL; row; row = row->next, position++) {
            bool same =
                l < 256 && r->routes[l] && row->count == r->top_k && position < c->prompt_count + c->greedy_count;
            uint32_t i = 0;
            for (const ms_json *e = same ? row->child : NULL; e && same; e = e->next, i++) {
                uint64_t id = 0;
                same = ms_json_u64(e, &id) && id == r->routes[l][(size_t)position * r->top_k + i];
            }
            checked++;
            wrong += !same;
        }
    }
    say(c, "experts", wrong == 0 && checked > 0, "%.0f choices checked, %.0f differ", checked, wrong);
}

static void check_greedy(const mimo_run *r) {
    const mimo_case *c = r->c;
    uint32_t same = 0;
    while (same < c->greedy_count && r->greedy_ids[same] == c->greedy[same]) same++;
    say(c, "greedy", same == c->greedy_count, "%.0f of %.0f tokens", same, c->greedy_count);
}

/* Compares bits with the first run: results must not depend on how the prompt is cut. */
static void run_cuts(ms_session *s, mimo_run *r) {
    static const uint32_t cuts[] = {1, 2, 3, 5, 7, 11};
    const mimo_case *c = r->c;
    size_t bytes = ((size_t)c->prompt_count + c->greedy_count) * c->vocab * sizeof(float);
    float *whole = malloc(bytes);
    ms_error err = {0};
    if (whole) memcpy(whole, r->rows, bytes);
    for (size_t i = 0; whole && i < sizeof cuts / sizeof cuts[0]; i++) {
        char what[64];
        (void)snprintf(what, sizeof what, "ranges of %u equal the whole", cuts[i]);
        ms_session_reset(s);
        memset(r->rows, 0, bytes);
        if (evaluate(s, r, cuts[i], &err) != MS_OK)
            say_error(c, what, &err);
        else
            say(c, what, memcmp(whole, r->rows, bytes) == 0, "bits of %.0f rows", c->prompt_count + c->greedy_count, 0);
    }
    free(whole);
}

static void run_engine(ms_engine *e, mimo_run *r) {
    const mimo_case *c = r->c;
    ms_error err = {0};
    ms_session *s = NULL;
    if (ms_session_create(&s, e, &err) != MS_OK || evaluate(s, r, 0, &err) != MS_OK) {
        say_error(c, "run", &err);
        ms_session_destroy(s);
        return;
    }
    check_floats(r, "prompt_logits.f32.bin", 0, c->prompt_count);
    check_floats(r, "final_logits.f32.bin", c->prompt_count - 1, 1);
    check_floats(r, "greedy_logits.f32.bin", c->prompt_count - 1, c->greedy_count);
    check_greedy(r);
    check_routes(r);
    run_cuts(s, r);
    ms_session_destroy(s);
}

static void run_case(const mimo_case *c) {
    mimo_run r = {.c = c};
    ms_engine_options o;
    ms_error err = {0};
    ms_engine *e = NULL;
    ms_engine_options_default(&o, c->dir);
    o.precision = MS_PRECISION_REFERENCE;
    o.static_format = MS_STATIC_BF16;
    o.backend = c->backend;
    o.context = c->prompt_count + c->greedy_count;
    r.rows = calloc((size_t)o.context * c->vocab, sizeof *r.rows);
    r.greedy_ids = calloc(c->greedy_count + 1u, sizeof *r.greedy_ids);
    if (!r.rows || !r.greedy_ids)
        say(c, "memory", false, "out of memory", 0, 0);
    else if (ms_engine_open(&e, &o, &err) != MS_OK)
        say_error(c, "open", &err);
    else if (e->model.info.vocab != c->vocab)
        say(c, "vocabulary", false, "case has %.0f, checkpoint %.0f", c->vocab, e->model.info.vocab);
    else
        run_engine(e, &r);
    ms_engine_close(e);
    for (size_t l = 0; l < 256; l++) free(r.routes[l]);
    free(r.rows);
    free(r.greedy_ids);
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

static void load_case(mimo_case *c, const char *path) {
    char *text = NULL;
    ms_json_doc *doc = NULL;
    ms_error err = {0};
    if (!golden_open(path, &text, &doc, &err)) {
        say_error(c, "golden.json", &err);
        return;
    }
    c->json = ms_json_root(doc);
    uint64_t vocab = 0;
    c->prompt = read_ids(ms_json_get(c->json, "prompt_ids"), &c->prompt_count);
    c->greedy = read_ids(ms_json_get(c->json, "greedy_ids"), &c->greedy_count);
    if (ms_json_u64(ms_json_get(c->json, "vocab_size"), &vocab) && vocab && vocab < 1u << 24 && c->prompt &&
        c->greedy && c->prompt_count) {
        c->vocab = (uint32_t)vocab;
        run_case(c);
    } else {
        say(c, "golden.json", false, "no prompt_ids or vocab_size", 0, 0);
    }
    free(c->prompt);
    free(c->greedy);
    ms_json_free(doc);
    free(text);
}

/* ------------------------------------------------------------------ chat cases */

/* A case is a request under other names; what it does not give is not given. */
static void chat_case(mimo_case *c, const ms_json *one) {
    char name[300], detail[1200] = "";
    ms_segments segments = {0};
    ms_text all = {0};
    ms_error err = {0};
    (void)snprintf(name, sizeof name, "chat_cases.json: %.200s", golden_name(one));
    bool ok = mimo_render(one, &segments, &err) == MS_OK;
    if (!ok) (void)snprintf(detail, sizeof detail, "%s", err.message);
    for (size_t i = 0; i < segments.count; i++) ms_text_append(&all, segments.items[i].text, segments.items[i].len);
    if (ok) {
        ok = golden_same(ms_json_get(one, "expected"), all.data ? all.data : "", all.len);
        if (!ok) (void)snprintf(detail, sizeof detail, "found \"%.1000s\"", all.data ? all.data : "");
    }
    c->report(c->arg, name, ok, detail);
    ms_segments_free(&segments);
    ms_text_free(&all);
}

static void chat_cases(mimo_case *c, const char *path) {
    char *text = NULL;
    ms_json_doc *doc = NULL;
    ms_error err = {0};
    if (!golden_open(path, &text, &doc, &err)) {
        say_error(c, "chat_cases.json", &err);
        return;
    }
    const ms_json *cases = ms_json_get(ms_json_root(doc), "cases");
    for (const ms_json *one = cases ? cases->child : NULL; one; one = one->next) chat_case(c, one);
    if (!cases || !cases->count) say(c, "chat_cases.json", false, "no cases", 0, 0);
    ms_json_free(doc);
    free(text);
}

static bool exists(const char *dir, const char *file, char *path, size_t size) {
    struct stat st;
    (void)snprintf(path, size, "%s/%s", dir, file);
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

bool golden_mimo_dir(const char *dir, const char *backend, golden_report *report, void *arg) {
    char *text = NULL, path[4200];
    ms_json_doc *doc = NULL;
    bool mine = ms_checkpoint_read_config(dir, &doc, &text, NULL) == MS_OK &&
                ms_lane_find(ms_json_root(doc)) == &ms_lane_mimo26;
    ms_json_free(doc);
    free(text);
    if (!mine) return false;
    mimo_case c = {.dir = dir, .backend = backend, .report = report, .arg = arg};
    bool found = false;
    if (exists(dir, "golden.json", path, sizeof path)) {
        found = true;
        load_case(&c, path);
    }
    if (exists(dir, "chat_cases.json", path, sizeof path)) {
        found = true;
        chat_cases(&c, path);
    }
    return found;
}
