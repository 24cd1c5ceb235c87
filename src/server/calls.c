#include "server/calls.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct call {
    char id[64];
    char *arguments;
    size_t len;
} call;

struct ms_call_memory {
    pthread_mutex_t lock;
    call *ring; /* [cap], oldest at `first` */
    size_t cap, first, count, bytes, max_bytes;
};

ms_call_memory *ms_call_memory_create(size_t max_calls, size_t max_bytes) {
    ms_call_memory *m = calloc(1, sizeof *m);
    if (!m) return NULL;
    m->ring = calloc(max_calls, sizeof *m->ring);
    m->cap = max_calls;
    m->max_bytes = max_bytes;
    (void)pthread_mutex_init(&m->lock, NULL);
    if (m->ring) return m;
    ms_call_memory_destroy(m);
    return NULL;
}

static void drop_oldest(ms_call_memory *m) {
    call *c = &m->ring[m->first];
    m->bytes -= c->len;
    free(c->arguments);
    *c = (call){0};
    m->first = (m->first + 1) % m->cap;
    m->count--;
}

void ms_call_memory_destroy(ms_call_memory *m) {
    if (!m) return;
    while (m->count) drop_oldest(m);
    free(m->ring);
    (void)pthread_mutex_destroy(&m->lock);
    free(m);
}

void ms_call_memory_add(ms_call_memory *m, const char *id, const char *arguments, size_t len) {
    char *copy = strlen(id) < sizeof m->ring->id && len < m->max_bytes ? malloc(len + 1) : NULL;
    if (!copy) return;
    if (len) memcpy(copy, arguments, len);
    copy[len] = 0;
    (void)pthread_mutex_lock(&m->lock);
    while (m->count && (m->count == m->cap || m->bytes + len > m->max_bytes)) drop_oldest(m);
    call *c = &m->ring[(m->first + m->count++) % m->cap];
    memcpy(c->id, id, strlen(id) + 1);
    c->arguments = copy;
    c->len = len;
    m->bytes += len;
    (void)pthread_mutex_unlock(&m->lock);
}

/* Appends the remembered text; false: unknown. */
static bool find(ms_call_memory *m, const ms_json *id, ms_text *out) {
    bool found = false;
    if (!id || id->type != MS_JSON_STRING) return false;
    (void)pthread_mutex_lock(&m->lock);
    for (size_t i = m->count; i-- > 0 && !found;) {
        const call *c = &m->ring[(m->first + i) % m->cap];
        found = strlen(c->id) == id->str_len && memcmp(c->id, id->str, id->str_len) == 0;
        if (found) ms_text_append(out, c->arguments, c->len);
    }
    (void)pthread_mutex_unlock(&m->lock);
    return found && !out->failed;
}

/* ------------------------------------------------------------------ equality */

static bool same_object(const ms_json *a, const ms_json *b) {
    if (a->count != b->count) return false;
    for (const ms_json *m = a->child; m; m = m->next) {
        const ms_json *other = b->child;
        while (other && (other->key_len != m->key_len || memcmp(other->key, m->key, m->key_len) != 0)) {
            other = other->next;
        }
        if (!other || !ms_json_same(m, other)) return false;
    }
    return true;
}

/* Nesting is bounded by the reader. */
bool ms_json_same(const ms_json *a, const ms_json *b) {
    if (a->type != b->type) return false;
    switch (a->type) {
    case MS_JSON_STRING:
        return a->str_len == b->str_len && memcmp(a->str, b->str, a->str_len) == 0;
    case MS_JSON_NUMBER: {
        if (a->raw_len == b->raw_len && memcmp(a->raw, b->raw, a->raw_len) == 0) return true;
        double x = ms_json_number_value(a->raw, a->raw_len), y = ms_json_number_value(b->raw, b->raw_len);
        double limit = 9007199254740992.0; /* beyond 2^53 two integers may share a double */
        return x == y && x < limit && x > -limit;
    }
    case MS_JSON_OBJECT:
        return same_object(a, b);
    case MS_JSON_ARRAY: {
        const ms_json *x = a->child, *y = b->child;
        for (; x && y; x = x->next, y = y->next) {
            if (!ms_json_same(x, y)) return false;
        }
        return !x && !y;
    }
    case MS_JSON_NULL:
    case MS_JSON_FALSE:
    case MS_JSON_TRUE:
        break;
    }
    return true;
}

static bool same_text(const ms_text *remembered, const ms_json *arguments) {
    if (arguments->type == MS_JSON_STRING && arguments->str_len == remembered->len &&
        memcmp(arguments->str, remembered->data, remembered->len) == 0) {
        return false; /* nothing to replace */
    }
    ms_json_doc *mine = NULL, *theirs = NULL;
    const ms_json *other = arguments;
    static const ms_json_limits limits = {.max_depth = 128};
    bool same = ms_json_parse(&mine, remembered->data, remembered->len, "arguments", &limits, NULL) == MS_OK;
    if (same && arguments->type == MS_JSON_STRING) {
        same = ms_json_parse(&theirs, arguments->str, arguments->str_len, "arguments", &limits, NULL) == MS_OK;
        other = ms_json_root(theirs);
    }
    same = same && ms_json_same(ms_json_root(mine), other);
    ms_json_free(mine);
    ms_json_free(theirs);
    return same;
}

/* ------------------------------------------------------------------ rewriting */

static const ms_json *call_arguments(const ms_json *c) {
    const ms_json *f = ms_json_get(c, "function");
    return ms_json_get(f ? f : c, "arguments");
}

/* The request's text with pieces put in place of others, in source order. */
typedef struct rewriting {
    ms_call_memory *memory;
    ms_text out;
    const char *copied; /* source up to here is in `out` */
    bool replaced;
} rewriting;

static void one_call(rewriting *r, const ms_json *c) {
    const ms_json *arguments = call_arguments(c);
    ms_text remembered = {0};
    if (arguments && find(r->memory, ms_json_get(c, "id"), &remembered) && same_text(&remembered, arguments) &&
        arguments->raw >= r->copied) {
        ms_text_append(&r->out, r->copied, (size_t)(arguments->raw - r->copied));
        ms_json_write_string(&r->out, remembered.data, remembered.len);
        r->copied = arguments->raw + arguments->raw_len;
        r->replaced = true;
    }
    ms_text_free(&remembered);
}

bool ms_call_memory_apply(ms_call_memory *m, const ms_json *request, ms_text *out) {
    const ms_json *messages = ms_json_get(request, "messages");
    rewriting r = {.memory = m, .copied = request->raw};
    if (!messages || messages->type != MS_JSON_ARRAY) return false;
    for (const ms_json *message = messages->child; message; message = message->next) {
        const ms_json *calls = ms_json_get(message, "tool_calls");
        if (!calls || calls->type != MS_JSON_ARRAY) continue;
        for (const ms_json *c = calls->child; c; c = c->next) one_call(&r, c);
    }
    if (r.replaced) {
        ms_text_append(&r.out, r.copied, (size_t)(request->raw + request->raw_len - r.copied));
        r.replaced = !r.out.failed;
    }
    if (!r.replaced) {
        ms_text_free(&r.out);
        return false;
    }
    *out = r.out;
    return true;
}
