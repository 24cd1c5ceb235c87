#include "server/reasoning.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/bytes.h"

typedef struct reply {
    ms_history history;
    char *reasoning;
    size_t len;
} reply;

struct ms_reasoning_memory {
    pthread_mutex_t lock;
    uint64_t key[4];
    reply *ring; /* [cap], oldest at `first` */
    size_t cap, first, count, bytes, max_bytes;
};

/* ------------------------------------------------------------------ digest */

static uint64_t turn(uint64_t x, int bits) { return x << bits | x >> (64 - bits); }

static void sip_round(uint64_t v[4]) {
    v[0] += v[1];
    v[1] = turn(v[1], 13) ^ v[0];
    v[0] = turn(v[0], 32);
    v[2] += v[3];
    v[3] = turn(v[3], 16) ^ v[2];
    v[0] += v[3];
    v[3] = turn(v[3], 21) ^ v[0];
    v[2] += v[1];
    v[1] = turn(v[1], 17) ^ v[2];
    v[2] = turn(v[2], 32);
}

/* SipHash-2-4. */
static uint64_t sip(const uint64_t key[2], const uint8_t *data, size_t len) {
    uint64_t v[4] = {key[0] ^ 0x736f6d6570736575u, key[1] ^ 0x646f72616e646f6du, key[0] ^ 0x6c7967656e657261u,
                     key[1] ^ 0x7465646279746573u};
    size_t whole = len & ~(size_t)7;
    uint8_t last[8] = {0};
    for (size_t i = 0; i <= whole; i += 8) {
        if (i == whole) {
            memcpy(last, data + i, len - whole);
            last[7] = (uint8_t)len;
        }
        uint64_t word = ms_le64(i == whole ? last : data + i);
        v[3] ^= word;
        sip_round(v);
        sip_round(v);
        v[0] ^= word;
    }
    v[2] ^= 0xff;
    for (int i = 0; i < 4; i++) sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* One field of a message, with its length before it, so that neighbours cannot run together. */
static void put(ms_text *t, const char *s, size_t len) {
    uint8_t size[8];
    ms_put_le64(size, len);
    ms_text_append(t, size, sizeof size);
    ms_text_append(t, s, len);
}

static void put_json(ms_text *t, const ms_json *v) {
    if (v && v->type == MS_JSON_STRING)
        put(t, v->str, v->str_len);
    else
        put(t, v ? v->raw : "", v ? v->raw_len : 0);
}

/* message: what `put` made of it.  false: no memory. */
static bool add_message(const ms_reasoning_memory *m, ms_history *h, ms_text *message) {
    uint8_t before[16];
    ms_put_le64(before, h->digest[0]);
    ms_put_le64(before + 8, h->digest[1]);
    ms_text_append(message, before, sizeof before);
    if (message->failed) return false;
    h->digest[0] = sip(m->key, (const uint8_t *)message->data, message->len);
    h->digest[1] = sip(m->key + 2, (const uint8_t *)message->data, message->len);
    return true;
}

static bool add_json(const ms_reasoning_memory *m, ms_history *h, const ms_json *message) {
    ms_text t = {0};
    const ms_json *calls = ms_json_get(message, "tool_calls");
    put_json(&t, ms_json_get(message, "role"));
    put_json(&t, ms_json_get(message, "content"));
    put_json(&t, ms_json_get(message, "name"));
    put_json(&t, ms_json_get(message, "tool_call_id"));
    put_json(&t, ms_json_get(message, "tools"));
    for (const ms_json *c = calls && calls->type == MS_JSON_ARRAY ? calls->child : NULL; c; c = c->next) {
        const ms_json *f = ms_json_get(c, "function");
        put_json(&t, ms_json_get(c, "id"));
        put_json(&t, ms_json_get(f, "name"));
        put_json(&t, ms_json_get(f, "arguments"));
    }
    bool good = add_message(m, h, &t);
    ms_text_free(&t);
    return good;
}

/* As the client will send it back. */
static bool add_reply(const ms_reasoning_memory *m, ms_history *h, const ms_reply *r, const char (*ids)[48]) {
    ms_text t = {0};
    put(&t, "assistant", strlen("assistant"));
    put(&t, r->content ? r->content : "", r->content_len);
    for (int i = 0; i < 3; i++) put(&t, "", 0);
    for (size_t i = 0; i < r->call_count; i++) {
        put(&t, ids[i], strlen(ids[i]));
        put(&t, r->calls[i].name, r->calls[i].name_len);
        put(&t, r->calls[i].arguments, r->calls[i].arguments_len);
    }
    bool good = add_message(m, h, &t);
    ms_text_free(&t);
    return good;
}

/* ------------------------------------------------------------------ memory */

ms_reasoning_memory *ms_reasoning_memory_create(size_t max_replies, size_t max_bytes) {
    ms_reasoning_memory *m = calloc(1, sizeof *m);
    if (!m) return NULL;
    (void)pthread_mutex_init(&m->lock, NULL);
    m->ring = calloc(max_replies, sizeof *m->ring);
    m->cap = max_replies;
    m->max_bytes = max_bytes;
    if (m->ring && getrandom(m->key, sizeof m->key, 0) == (ssize_t)sizeof m->key) return m;
    ms_reasoning_memory_destroy(m);
    return NULL;
}

static void drop_oldest(ms_reasoning_memory *m) {
    m->bytes -= m->ring[m->first].len;
    free(m->ring[m->first].reasoning);
    m->first = (m->first + 1) % m->cap;
    m->count--;
}

void ms_reasoning_memory_destroy(ms_reasoning_memory *m) {
    if (!m) return;
    while (m->count) drop_oldest(m);
    free(m->ring);
    (void)pthread_mutex_destroy(&m->lock);
    free(m);
}

void ms_reasoning_memory_add(ms_reasoning_memory *m, const ms_history *history, const ms_reply *r,
                             const char (*ids)[48]) {
    reply one = {.history = *history, .len = r->reasoning_len};
    if (one.len > m->max_bytes || !add_reply(m, &one.history, r, ids)) return;
    one.reasoning = malloc(one.len + 1);
    if (!one.reasoning) return;
    if (one.len) memcpy(one.reasoning, r->reasoning, one.len);
    (void)pthread_mutex_lock(&m->lock);
    while (m->count && (m->count == m->cap || m->bytes + one.len > m->max_bytes)) drop_oldest(m);
    m->ring[(m->first + m->count++) % m->cap] = one;
    m->bytes += one.len;
    (void)pthread_mutex_unlock(&m->lock);
}

/* The latest reply of that history, as a JSON string. */
static bool find(ms_reasoning_memory *m, const ms_history *h, ms_text *out) {
    bool found = false;
    (void)pthread_mutex_lock(&m->lock);
    for (size_t i = m->count; i-- > 0 && !found;) {
        const reply *r = &m->ring[(m->first + i) % m->cap];
        found = r->history.digest[0] == h->digest[0] && r->history.digest[1] == h->digest[1];
        if (found) ms_json_write_string(out, r->reasoning, r->len);
    }
    (void)pthread_mutex_unlock(&m->lock);
    return found;
}

size_t ms_reasoning_memory_apply(ms_reasoning_memory *m, const ms_json *request, ms_text *out, ms_history *history) {
    static const char key[] = "{\"reasoning_content\":";
    const ms_json *messages = ms_json_get(request, "messages");
    const char *copied = request->raw;
    ms_text anew = {0};
    size_t restored = 0;
    *history = (ms_history){0};
    if (!messages || messages->type != MS_JSON_ARRAY) return 0;
    for (const ms_json *v = messages->child; v; v = v->next) {
        ms_text text = {0};
        if (!add_json(m, history, v)) break;
        bool lacks = ms_json_is_string(ms_json_get(v, "role"), "assistant") && !ms_json_get(v, "reasoning_content");
        if (lacks && find(m, history, &text)) { /* role is a member, so that one follows */
            ms_text_append(&anew, copied, (size_t)(v->raw - copied));
            ms_text_append(&anew, key, sizeof key - 1);
            ms_text_append(&anew, text.data, text.len);
            ms_text_append(&anew, ",", 1);
            copied = v->raw + 1;
            restored++;
        }
        anew.failed = anew.failed || text.failed;
        ms_text_free(&text);
    }
    if (restored) ms_text_append(&anew, copied, (size_t)(request->raw + request->raw_len - copied));
    if (restored && !anew.failed) {
        *out = anew;
        return restored;
    }
    ms_text_free(&anew);
    return 0;
}
