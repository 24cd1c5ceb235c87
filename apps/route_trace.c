#include "route_trace.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/json.h"
#include "io/file.h"

enum { MAX_TRACE_BYTES = 1 << 30, MAX_TOKENS = 1 << 22 };

/* ------------------------------------------------------------------ from a file */

typedef struct trace_file {
    const char *path;
    size_t line;
    uint32_t max_layers, experts;
    size_t cap; /* rows */
    size_t rows;
} trace_file;

static ms_status bad(const trace_file *f, const char *what, ms_error *err) {
    return ms_fail(err, MS_ERR_FORMAT, "%s: line %zu: %s", f->path, f->line, what);
}

static ms_status grow(ms_route_trace *t, trace_file *f, ms_error *err) {
    if (f->rows < f->cap) return MS_OK;
    uint64_t cap = f->cap ? 2 * (uint64_t)f->cap : 1024, bytes;
    uint32_t *ids = ms_mul_u64(cap, t->top_k * sizeof *ids, &bytes) && bytes <= SIZE_MAX / 2
                        ? realloc(t->ids, (size_t)bytes)
                        : NULL;
    if (!ids) return ms_fail_memory(err, "trace", (size_t)cap);
    t->ids = ids;
    f->cap = (size_t)cap;
    return MS_OK;
}

static ms_status read_row(ms_route_trace *t, trace_file *f, const ms_json *row, ms_error *err) {
    if (row->type != MS_JSON_ARRAY || row->count == 0 || row->count > f->experts)
        return bad(f, "layers: expected arrays of expert ids", err);
    if (!t->top_k) t->top_k = (uint32_t)row->count;
    if (row->count != t->top_k) return bad(f, "layers: expected as many experts as in the first layer", err);
    MS_TRY(grow(t, f, err));
    uint32_t *ids = t->ids + f->rows++ * t->top_k, n = 0;
    for (const ms_json *v = row->child; v; v = v->next) {
        uint64_t id;
        if (!ms_json_u64(v, &id) || id >= f->experts)
            return ms_fail(err, MS_ERR_FORMAT, "%s: line %zu: expected an expert id below %u, found %.*s", f->path,
                           f->line, f->experts, (int)(v->raw_len < 40 ? v->raw_len : 40), v->raw);
        for (uint32_t i = 0; i < n; i++)
            if (ids[i] == id) return bad(f, "layers: an expert is named twice", err);
        ids[n++] = (uint32_t)id;
    }
    return MS_OK;
}

static ms_status read_token(ms_route_trace *t, trace_file *f, const ms_json *layers, ms_error *err) {
    if (layers->type != MS_JSON_ARRAY || layers->count == 0) return bad(f, "layers: expected an array", err);
    if (!t->layers) t->layers = (uint32_t)layers->count;
    if (layers->count > f->max_layers)
        return ms_fail(err, MS_ERR_FORMAT, "%s: line %zu: expected at most %u layers, found %zu", f->path, f->line,
                       f->max_layers, layers->count);
    if (layers->count != t->layers) return bad(f, "expected as many layers as for the first token", err);
    for (const ms_json *row = layers->child; row; row = row->next) MS_TRY(read_row(t, f, row, err));
    return ++t->tokens < MAX_TOKENS ? MS_OK : bad(f, "too many tokens", err);
}

/* Lines without "layers" of arrays are a trace's head and end. */
static ms_status read_line(ms_route_trace *t, trace_file *f, const char *text, size_t len, ms_error *err) {
    ms_json_doc *doc = NULL;
    MS_TRY(ms_json_parse(&doc, text, len, f->path, NULL, err));
    const ms_json *root = ms_json_root(doc), *layers = ms_json_get(root, "layers");
    ms_status st = MS_OK;
    if (root->type != MS_JSON_OBJECT)
        st = bad(f, "expected an object", err);
    else if (!ms_json_get(root, "format") && !ms_json_get(root, "end"))
        st = layers ? read_token(t, f, layers, err) : bad(f, "expected \"layers\"", err);
    ms_json_free(doc);
    return st;
}

ms_status ms_route_trace_read(ms_route_trace *out, const char *path, uint32_t max_layers, uint32_t experts,
                              ms_error *err) {
    char *text = NULL;
    size_t len;
    *out = (ms_route_trace){0};
    trace_file f = {.path = path, .max_layers = max_layers, .experts = experts};
    MS_TRY(ms_file_read_all(path, MAX_TRACE_BYTES, &text, &len, err));
    ms_status st = MS_OK;
    for (size_t at = 0; at < len && st == MS_OK;) {
        const char *end = memchr(text + at, '\n', len - at);
        size_t n = end ? (size_t)(end - text) - at : len - at;
        f.line++;
        if (n) st = read_line(out, &f, text + at, n, err);
        at += n + 1;
    }
    if (st == MS_OK && !out->tokens) st = ms_fail(err, MS_ERR_FORMAT, "%s: expected tokens, found none", path);
    free(text);
    if (st != MS_OK) ms_route_trace_free(out);
    return st;
}

/* ------------------------------------------------------------------ made up */

static double draw(uint64_t *x) {
    *x ^= *x << 13;
    *x ^= *x >> 7;
    *x ^= *x << 17;
    return (double)(*x >> 11) * 0x1p-53;
}

static bool has(const uint32_t *ids, uint32_t n, uint32_t id) {
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] == id) return true;
    return false;
}

ms_status ms_route_trace_make(ms_route_trace *out, uint32_t tokens, uint32_t layers, uint32_t top_k, uint32_t experts,
                              double reuse, ms_error *err) {
    *out = (ms_route_trace){.tokens = tokens, .layers = layers, .top_k = top_k};
    uint64_t bytes = (uint64_t)layers * top_k * sizeof *out->ids;
    out->ids = ms_mul_u64(bytes, tokens, &bytes) && bytes <= SIZE_MAX / 2 ? malloc((size_t)bytes) : NULL;
    if (!out->ids) return ms_fail_memory(err, "trace", (size_t)bytes);
    uint64_t x = 0x9e3779b97f4a7c15u;
    for (size_t row = 0; row < (size_t)tokens * layers; row++) {
        uint32_t *ids = out->ids + row * top_k, n = 0;
        const uint32_t *before = row < layers ? NULL : ids - (size_t)layers * top_k;
        for (uint32_t i = 0; before && i < top_k; i++)
            if (draw(&x) < reuse) ids[n++] = before[i];
        while (n < top_k) {
            uint32_t id = (uint32_t)(draw(&x) * experts);
            if (!has(ids, n, id)) ids[n++] = id;
        }
    }
    return MS_OK;
}

void ms_route_trace_free(ms_route_trace *t) {
    free(t->ids);
    *t = (ms_route_trace){0};
}
