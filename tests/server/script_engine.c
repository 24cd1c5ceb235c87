#include "script_engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static script_engine *of(const ms_causal *c) { return (script_engine *)(uintptr_t)c; }

static void pause_us(unsigned us) {
    const struct timespec t = {.tv_sec = us / 1000000, .tv_nsec = (long)(us % 1000000) * 1000};
    if (us) (void)nanosleep(&t, NULL);
}

/* ------------------------------------------------------------------ the script */

/* Where the reply in progress begins; 0: there is no generation prompt. */
static size_t reply_start(const script_engine *s) {
    for (size_t end = s->tokens.count; end > 0; end--) {
        for (size_t o = 0; o < 2; o++) {
            const ms_ids *opener = &s->openers[o];
            if (end >= opener->count &&
                memcmp(s->tokens.data + end - opener->count, opener->data, opener->count * sizeof(uint32_t)) == 0) {
                return end;
            }
        }
    }
    return 0;
}

static const char *last_of(const char *text, const char *key) {
    const char *found = NULL;
    for (const char *p = text; (p = strstr(p, key)); p++) found = p;
    return found;
}

static uint32_t next_token(const script_engine *s) {
    size_t start = reply_start(s);
    ms_text text = {0};
    const script_rule *best = NULL;
    const char *at = NULL;
    (void)ms_tokenizer_decode(s->text->tokenizer, s->tokens.data, start ? start : s->tokens.count, true, &text, NULL);
    for (size_t i = 0; i < s->rule_count && text.data; i++) {
        const char *p = last_of(text.data, s->rules[i].key);
        if (p && (!best || p > at)) {
            best = &s->rules[i];
            at = p;
        }
    }
    ms_text_free(&text);
    size_t n = start ? s->tokens.count - start : 0;
    return best && n < best->reply.count ? best->reply.data[n] : s->text->info.eos;
}

void script_rule_ids(script_engine *s, const char *key, const uint32_t *ids, size_t count) {
    script_rule *r = &s->rules[s->rule_count++];
    (void)snprintf(r->key, sizeof r->key, "%s", key);
    (void)ms_ids_append(&r->reply, ids, count, NULL);
}

void script_rule_raw(script_engine *s, const char *key, const char *reply) {
    ms_ids ids = {0};
    (void)ms_tokenizer_encode(s->text->tokenizer, reply, strlen(reply), true, &ids, NULL);
    script_rule_ids(s, key, ids.data, ids.count);
    ms_ids_free(&ids);
}

void script_rule_cut(script_engine *s, const char *key, const char *reply) {
    ms_ids whole = {0}, ids = {0};
    (void)ms_tokenizer_encode(s->text->tokenizer, reply, strlen(reply), true, &whole, NULL);
    for (size_t i = 0; i < whole.count; i++) {
        size_t len;
        const uint8_t *bytes = ms_tokenizer_token(s->text->tokenizer, whole.data[i], &len);
        if (!bytes) (void)ms_ids_push(&ids, whole.data[i], NULL);
        for (size_t b = 0; bytes && b < len; b++) {
            ms_ids one = {0};
            char c = (char)bytes[b];
            if ((unsigned char)c < 0x80) {
                (void)ms_tokenizer_encode(s->text->tokenizer, &c, 1, false, &one, NULL);
                (void)ms_ids_append(&ids, one.data, one.count, NULL);
            } else {
                (void)ms_ids_push(&ids, whole.data[i], NULL); /* a token with other characters stays whole */
                b = len;
            }
            ms_ids_free(&one);
        }
    }
    script_rule_ids(s, key, ids.data, ids.count);
    ms_ids_free(&ids);
    ms_ids_free(&whole);
}

#define END "<|close|>message<|sep|><|end_of_msg|>"

void script_say(script_engine *s, const char *key, const char *think, const char *response) {
    ms_text t = {0};
    ms_text_printf(&t, "%s<|close|>think<|sep|><|open|>response<|sep|>%s<|close|>response<|sep|>" END, think, response);
    script_rule_raw(s, key, t.data);
    ms_text_free(&t);
}

void script_call(script_engine *s, const char *key, const char *think, const char *tool, const char *arg,
                 const char *value) {
    ms_text t = {0};
    ms_text_printf(&t,
                   "%s<|close|>think<|sep|><|open|>response<|sep|><|close|>response<|sep|><|open|>tools<|sep|>"
                   "<|open|>call tool=\"%s\" index=\"1\"<|sep|><|open|>argument key=\"%s\" type=\"string\"<|sep|>%s"
                   "<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>" END,
                   think, tool, arg, value);
    script_rule_raw(s, key, t.data);
    ms_text_free(&t);
}

/* ------------------------------------------------------------------ timeline */

static uint64_t position(const ms_causal *c) { return of(c)->tokens.count; }
static const uint32_t *tokens(const ms_causal *c) { return of(c)->tokens.data; }

static const float *logits(const ms_causal *c) {
    script_engine *s = of(c);
    if (!s->has_logits) return NULL;
    memset(s->values, 0, s->base.vocab * sizeof *s->values);
    s->values[next_token(s)] = 20.0f;
    return s->values;
}

static void reset(ms_causal *c) {
    of(c)->tokens.count = 0;
    of(c)->has_logits = false;
    (void)atomic_fetch_add(&of(c)->resets, 1);
}

static ms_status fail_now(script_engine *s, ms_error *err) {
    int left = atomic_load(&s->fail_in);
    if (left >= 0) atomic_store(&s->fail_in, left - 1);
    if (left == 0 || atomic_load(&s->broken)) return ms_fail(err, MS_ERR_IO, "secret-path/shard: scripted failure");
    return MS_OK;
}

/* One pass: layers, then its rows are there. */
static ms_status pass(script_engine *s, const uint32_t *ids, size_t rows, bool layers, const ms_forward_options *o,
                      uint64_t *done, uint64_t total, ms_error *err) {
    MS_TRY(fail_now(s, err));
    if (layers) {
        for (int l = 0; l < SCRIPT_LAYERS; l++) {
            pause_us(atomic_load(&s->layer_us));
            ++*done;
            if (o->progress) o->progress(o->progress_arg, MS_PROGRESS_LAYER, *done, total);
            if (atomic_load(&s->cancelled)) return ms_fail(err, MS_ERR_CANCELLED, "cancelled");
        }
    } else {
        pause_us(atomic_load(&s->token_us));
        if (atomic_load(&s->cancelled)) return ms_fail(err, MS_ERR_CANCELLED, "cancelled");
    }
    if (s->tokens.count + rows > s->base.context) return ms_fail(err, MS_ERR_CONTEXT, "full");
    (void)ms_ids_append(&s->tokens, ids, rows, NULL);
    s->has_logits = true;
    (void)atomic_fetch_add(&s->forwards, 1);
    (void)atomic_fetch_add(&s->rows, (unsigned)rows);
    if (rows > atomic_load(&s->largest_rows)) atomic_store(&s->largest_rows, (unsigned)rows);
    if (layers) return MS_OK;
    *done += rows;
    if (o->progress) o->progress(o->progress_arg, MS_PROGRESS_TOKEN, *done, total);
    return MS_OK;
}

static ms_status forward(ms_causal *c, const uint32_t *ids, size_t count, const ms_forward_options *o, ms_error *err) {
    script_engine *s = of(c);
    bool layers = o->range != 1;
    size_t rows = layers ? s->base.range_rows : 1;
    uint64_t done = 0, passes = (count + rows - 1) / rows, total = layers ? passes * SCRIPT_LAYERS : count;
    for (size_t i = 0; i < count; i++) {
        if (ids[i] >= s->base.vocab) return ms_fail(err, MS_ERR_USAGE, "id out of range");
    }
    while (count) {
        size_t n = count < rows ? count : rows;
        MS_TRY(pass(s, ids, n, layers, o, &done, total, err));
        ids += n;
        count -= n;
    }
    return MS_OK;
}

static void cancel(ms_causal *c) { atomic_store(&of(c)->cancelled, true); }
static void clear_cancel(ms_causal *c) { atomic_store(&of(c)->cancelled, false); }

typedef struct point {
    ms_ids ids;
} point;

static ms_status mark(ms_causal *c, void **out, ms_error *err) {
    (void)err;
    point *p = calloc(1, sizeof *p);
    (void)ms_ids_append(&p->ids, of(c)->tokens.data, of(c)->tokens.count, NULL);
    (void)atomic_fetch_add(&of(c)->points_alive, 1);
    *out = p;
    return MS_OK;
}

static ms_status go_back(ms_causal *c, const void *to, ms_error *err) {
    script_engine *s = of(c);
    const point *p = to;
    if (p->ids.count > s->tokens.count ||
        memcmp(p->ids.data, s->tokens.data, p->ids.count * sizeof(uint32_t)) != 0) {
        return ms_fail(err, MS_ERR_USAGE, "the point is not on this timeline");
    }
    s->tokens.count = p->ids.count;
    s->has_logits = false;
    return MS_OK;
}

static void unmark(ms_causal *c, void *p) {
    ms_ids_free(&((point *)p)->ids);
    free(p);
    (void)atomic_fetch_sub(&of(c)->points_alive, 1);
}

static void stats(const ms_causal *c, ms_engine_stats *out) {
    *out = (ms_engine_stats){.expert_accesses = atomic_load(&of(c)->rows), .expert_hits = atomic_load(&of(c)->forwards)};
}

/* ------------------------------------------------------------------ kept states */

static bool peek(ms_causal *c, size_t i, ms_causal_entry *out) {
    script_engine *s = of(c);
    if (i >= s->kept_count) return false;
    const script_kept *k = &s->kept[s->kept_count - 1 - i];
    *out = (ms_causal_entry){k->entry, k->ids.data, k->ids.count, k->meta.data ? k->meta.data : "", k->meta.len};
    return true;
}

static ms_status restore(ms_causal *c, uint64_t entry, ms_error *err) {
    script_engine *s = of(c);
    if (atomic_load(&s->restore_fails)) return ms_fail(err, MS_ERR_FORMAT, "corrupt");
    for (size_t i = 0; i < s->kept_count; i++) {
        if (s->kept[i].entry != entry) continue;
        s->tokens.count = 0;
        (void)ms_ids_append(&s->tokens, s->kept[i].ids.data, s->kept[i].ids.count, NULL);
        s->has_logits = false;
        (void)atomic_fetch_add(&s->restores, 1);
        return MS_OK;
    }
    return ms_fail(err, MS_ERR_USAGE, "no such entry");
}

static void drop(ms_causal *c, uint64_t entry) {
    script_engine *s = of(c);
    for (size_t i = 0; i < s->kept_count; i++) {
        if (s->kept[i].entry != entry) continue;
        ms_ids_free(&s->kept[i].ids);
        ms_text_free(&s->kept[i].meta);
        memmove(&s->kept[i], &s->kept[i + 1], (s->kept_count - i - 1) * sizeof s->kept[0]);
        s->kept_count--;
        return;
    }
}

static void save(ms_causal *c, const char *meta, size_t len, ms_keep keep) {
    script_engine *s = of(c);
    (void)keep;
    for (size_t i = 0; i < s->kept_count; i++) {
        const ms_ids *ids = &s->kept[i].ids;
        if (ids->count == s->tokens.count && memcmp(ids->data, s->tokens.data, ids->count * sizeof(uint32_t)) == 0) return;
    }
    if (s->kept_count == SCRIPT_KEPT) drop(c, s->kept[0].entry);
    script_kept *k = &s->kept[s->kept_count++];
    *k = (script_kept){.entry = ++s->next_entry};
    (void)ms_ids_append(&k->ids, s->tokens.data, s->tokens.count, NULL);
    ms_text_append(&k->meta, meta, len);
    (void)atomic_fetch_add(&s->saves, 1);
}

static const ms_causal_ops plain_ops = {position, tokens, logits,  reset,  forward, cancel, clear_cancel, mark,
                                        go_back,  unmark, stats,   NULL,   NULL,    NULL,   NULL,         NULL, NULL};
static const ms_causal_ops keeping_ops = {position, tokens, logits, reset, forward, cancel, clear_cancel, mark,
                                          go_back,  unmark, stats,  peek,  restore, drop,   save,         NULL, NULL};

/* ------------------------------------------------------------------ life */

static void make_opener(script_engine *s, size_t i, const char *request) {
    ms_json_doc *doc = NULL;
    ms_candidate c;
    if (ms_json_parse(&doc, request, strlen(request), "opener", NULL, NULL) != MS_OK) return;
    if (ms_candidate_build(&c, s->text, ms_json_root(doc), NULL) == MS_OK) {
        s->openers[i] = c.ids;
        c.ids = (ms_ids){0};
        ms_candidate_free(&c);
    }
    ms_json_free(doc);
}

void script_init(script_engine *s, const ms_text_model *text, uint64_t context) {
    memset(s, 0, sizeof *s);
    s->text = text;
    s->base = (ms_causal){.ops = &plain_ops, .context = context, .vocab = text->info.vocab, .range_rows = 64, .points = 2};
    s->values = calloc(text->info.vocab, sizeof *s->values);
    atomic_store(&s->fail_in, -1);
    make_opener(s, 0, "{\"messages\":[],\"thinking\":true}");
    make_opener(s, 1, "{\"messages\":[],\"thinking\":false}");
}

void script_free(script_engine *s) {
    for (size_t i = 0; i < s->rule_count; i++) ms_ids_free(&s->rules[i].reply);
    while (s->kept_count) drop(&s->base, s->kept[0].entry);
    for (size_t i = 0; i < 2; i++) ms_ids_free(&s->openers[i]);
    ms_ids_free(&s->tokens);
    free(s->values);
}

static ms_status open_script(void *self, ms_causal **out, ms_error *err) {
    script_engine *s = self;
    pause_us(atomic_load(&s->open_us));
    if (atomic_load(&s->open_fails)) return ms_fail(err, MS_ERR_NO_FIT, "scripted: does not fit");
    if (s->keeps) s->base.ops = &keeping_ops;
    *out = &s->base;
    return MS_OK;
}

/* The engine's memory is gone: what is kept elsewhere stays. */
static void close_script(void *self) {
    script_engine *s = self;
    s->tokens.count = 0;
    s->has_logits = false;
}

ms_causal_source script_source(script_engine *s) {
    return (ms_causal_source){.self = s, .open = open_script, .close = close_script};
}
