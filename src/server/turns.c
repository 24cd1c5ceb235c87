/* turns.c: the memory of turns.h: a ring of texts. */
#include "server/turns.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct turn {
    char *messages; /* elements of a chat.h list */
    size_t len;
    char (*ids)[MS_CALL_ID_BYTES];
    size_t id_count;
} turn;

struct ms_turn_memory {
    pthread_mutex_t lock;
    turn *ring; /* [cap], oldest at `first` */
    size_t cap, first, count, bytes, max_bytes;
};

ms_turn_memory *ms_turn_memory_create(size_t max_turns, size_t max_bytes) {
    ms_turn_memory *m = calloc(1, sizeof *m);
    if (!m) return NULL;
    (void)pthread_mutex_init(&m->lock, NULL);
    m->ring = calloc(max_turns, sizeof *m->ring);
    m->cap = max_turns;
    m->max_bytes = max_bytes;
    if (m->ring) return m;
    ms_turn_memory_destroy(m);
    return NULL;
}

static void turn_free(turn *t) {
    free(t->messages);
    free(t->ids);
    *t = (turn){0};
}

static void drop_oldest(ms_turn_memory *m) {
    m->bytes -= m->ring[m->first].len;
    turn_free(&m->ring[m->first]);
    m->first = (m->first + 1) % m->cap;
    m->count--;
}

void ms_turn_memory_destroy(ms_turn_memory *m) {
    if (!m) return;
    while (m->count) drop_oldest(m);
    free(m->ring);
    (void)pthread_mutex_destroy(&m->lock);
    free(m);
}

static void put(ms_text *t, const char *before, const char *s, size_t len) {
    ms_text_puts(t, before);
    ms_json_write_string(t, s ? s : "", len);
}

/* The request's messages and the reply as one more. */
static void write_turn(ms_text *t, const ms_json *messages, const ms_reply *reply, bool thinking,
                       const char (*ids)[MS_CALL_ID_BYTES]) {
    ms_text_append(t, messages->raw + 1, messages->raw_len - 2); /* without the brackets */
    put(t, ",{\"role\":\"assistant\",\"content\":", reply->content, reply->content_len);
    if (thinking) put(t, ",\"reasoning_content\":", reply->reasoning, reply->reasoning_len);
    for (size_t i = 0; i < reply->call_count; i++) {
        const ms_tool_call *c = &reply->calls[i];
        put(t, i ? ",{\"type\":\"function\",\"id\":" : ",\"tool_calls\":[{\"type\":\"function\",\"id\":", ids[i],
            strlen(ids[i]));
        put(t, ",\"function\":{\"name\":", c->name, c->name_len);
        put(t, ",\"arguments\":", c->arguments, c->arguments_len);
        ms_text_puts(t, "}}");
    }
    ms_text_puts(t, "]}");
}

void ms_turn_memory_add(ms_turn_memory *m, const ms_json *messages, const ms_reply *reply, bool thinking,
                        const char (*ids)[MS_CALL_ID_BYTES]) {
    if (!reply->call_count || !messages || messages->type != MS_JSON_ARRAY || !messages->count) return;
    ms_text text = {0};
    write_turn(&text, messages, reply, thinking, ids);
    turn t = {.len = text.len, .id_count = reply->call_count, .ids = calloc(reply->call_count, sizeof *t.ids)};
    if (text.failed || !t.ids || t.len > m->max_bytes) {
        ms_text_free(&text);
        free(t.ids);
        return;
    }
    t.messages = text.data;
    memcpy(t.ids, ids, t.id_count * sizeof *t.ids);
    (void)pthread_mutex_lock(&m->lock);
    while (m->count && (m->count == m->cap || m->bytes + t.len > m->max_bytes)) drop_oldest(m);
    m->ring[(m->first + m->count++) % m->cap] = t;
    m->bytes += t.len;
    (void)pthread_mutex_unlock(&m->lock);
}

static bool has_id(const turn *t, const char *id, size_t len) {
    for (size_t i = 0; i < t->id_count; i++) {
        if (strlen(t->ids[i]) == len && memcmp(t->ids[i], id, len) == 0) return true;
    }
    return false;
}

bool ms_turn_memory_history(void *arg, const char *call_id, size_t len, ms_text *messages) {
    ms_turn_memory *m = arg;
    bool found = false;
    (void)pthread_mutex_lock(&m->lock);
    for (size_t i = m->count; i-- > 0 && !found;) {
        const turn *t = &m->ring[(m->first + i) % m->cap];
        found = has_id(t, call_id, len);
        if (found) ms_text_append(messages, t->messages, t->len);
    }
    (void)pthread_mutex_unlock(&m->lock);
    return found;
}
