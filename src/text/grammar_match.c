/* grammar_match.c: the walk of a matcher: frames, closures, steps (grammar_internal.h).
 *
 * Frames by kind: automaton a: state; sequence a: next item; repeat a: items begun; number a: value, b: digits read;
 * members and object a: next declared member, b: members so far (where that matters); array a: items, b: items that
 * `contains` counts; string: see grammar_string.c.
 *
 * Invariant: parents come before their children in `frames`, and no frame is kept whose stack has no completion.
 */
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "text/grammar_internal.h"
#include "text/grammar_taken.h"

enum { MAX_STACKS = 4096, CLEAN_FRAMES = 1 << 16, MAX_LOG = 1 << 30 };

/* ------------------------------------------------------------------ memory */

bool ms_match_grow(ms_matcher *m, void **data, uint32_t *cap, uint32_t need, size_t item) {
    if (need <= *cap) return true;
    uint64_t more = (uint64_t)*cap * 2 > need ? (uint64_t)*cap * 2 : (uint64_t)need + 16;
    void *p = more < UINT32_MAX / 2 ? realloc(*data, (size_t)more * item) : NULL;
    if (!p) {
        m->failed = true;
        return false;
    }
    *data = p;
    *cap = (uint32_t)more;
    return true;
}

void ms_list_push(ms_matcher *m, ms_list *l, uint32_t v) {
    if (ms_match_grow(m, (void **)&l->data, &l->cap, l->count + 1, sizeof *l->data)) l->data[l->count++] = v;
}

static uint32_t hash_of(const ms_frame *f) {
    const uint32_t *k = &f->parent;
    uint64_t h = 0;
    for (size_t i = 0; i < MS_FRAME_KEY_BYTES / sizeof *k; i++) h = (h ^ k[i]) * UINT64_C(0x9E3779B97F4A7C15) ^ h >> 29;
    return (uint32_t)(h >> 32);
}

static bool rehash(ms_matcher *m) {
    uint32_t size = 256;
    while (size < m->count * 2) size *= 2;
    uint32_t *buckets = malloc(size * sizeof *buckets);
    if (!buckets) {
        m->failed = true;
        return false;
    }
    free(m->buckets);
    m->buckets = buckets;
    m->bucket_mask = size - 1;
    memset(buckets, 0xff, size * sizeof *buckets);
    for (uint32_t i = MS_FRAME_FLOOR + 1; i < m->count; i++) {
        uint32_t *head = &buckets[hash_of(&m->frames[i]) & m->bucket_mask];
        m->frames[i].chain = *head;
        *head = i;
    }
    return true;
}

/* The hash of a whole stack.  Places in the log mean something to this matcher alone; texts seen count by what they are. */
static uint64_t stack_hash(const ms_matcher *m, const ms_frame *f) {
    const ms_frame *up = &m->frames[f->parent];
    if (f->phase == MS_PHASE_EXTRA || f->phase == MS_PHASE_ITEM || (f->parent > MS_FRAME_FLOOR && !up->stack)) return 0;
    ms_frame own = *f;
    uint64_t seen = m->seen[f->seen].hash;
    own.seen = f->seen != 0;
    uint64_t h = ms_fnv1a64(MS_FNV1A64_INIT ^ (up->stack + seen * 3) * UINT64_C(0x9E3779B97F4A7C15), &own.block,
                            MS_FRAME_KEY_BYTES - sizeof own.parent);
    return h ? h : 1;
}

uint32_t ms_match_frame(ms_matcher *m, const ms_frame *f) {
    const ms_frame *up = &m->frames[f->parent];
    /* Under a key or item that must be new, the cost depends on the bytes so far: such frames are not shared. */
    bool fresh = up->seen && (up->phase == MS_PHASE_EXTRA || up->phase == MS_PHASE_ITEM);
    uint32_t h = hash_of(f);
    for (uint32_t i = fresh ? MS_DFA_NONE : m->buckets[h & m->bucket_mask]; i != MS_DFA_NONE; i = m->frames[i].chain) {
        if (memcmp(&m->frames[i], f, MS_FRAME_KEY_BYTES) == 0) return i;
    }
    uint32_t total = ms_bound_add(ms_cost_frame(m, f), m->frames[f->parent].total);
    if (total >= MS_BOUND_NONE) return MS_DFA_NONE;
    ms_frame copy = *f;
    copy.total = total;
    copy.stack = stack_hash(m, f);
    copy.epoch = 0;
    if (m->count >= m->bucket_mask && !rehash(m)) return MS_DFA_NONE;
    if (!ms_match_grow(m, (void **)&m->frames, &m->cap, m->count + 1, sizeof *m->frames)) return MS_DFA_NONE;
    uint32_t *head = &m->buckets[h & m->bucket_mask];
    copy.chain = *head;
    *head = m->count;
    m->frames[m->count] = copy;
    return m->count++;
}

bool ms_match_log(ms_matcher *m, uint8_t byte) {
    if (m->log_len >= MAX_LOG) m->failed = true;
    if (m->failed || !ms_match_grow(m, (void **)&m->log, &m->log_cap, m->log_len + 1, 1)) return false;
    m->log[m->log_len++] = byte;
    return true;
}

ms_match_mark ms_match_marked(const ms_matcher *m) {
    return (ms_match_mark){m->count, m->seen_count, m->taken_count, m->branch_count, m->root_count, m->log_len};
}

void ms_match_back(ms_matcher *m, ms_match_mark mark) {
    while (m->count > mark.frames) { /* the newest frame heads its chain */
        const ms_frame *f = &m->frames[--m->count];
        m->buckets[hash_of(f) & m->bucket_mask] = f->chain;
    }
    m->seen_count = mark.seen;
    m->taken_count = mark.taken;
    m->branch_count = mark.branches;
    m->root_count = mark.roots;
    m->log_len = mark.log;
}

void ms_match_epoch(ms_matcher *m) {
    if (++m->epoch) return;
    for (uint32_t i = 0; i < m->count; i++) m->frames[i].epoch = 0;
    m->epoch = 1;
}

/* ------------------------------------------------------------------ closure */

/* Work is a list of pairs: a frame and a block to be entered above it, or no block: the frame is resumed. */
static void resume_later(ms_matcher *m, uint32_t frame) {
    if (frame == MS_DFA_NONE) return;
    ms_list_push(m, &m->work, frame);
    ms_list_push(m, &m->work, MS_DFA_NONE);
}

static void enter_later(ms_matcher *m, uint32_t parent, uint32_t block) {
    if (parent == MS_DFA_NONE || m->g->blocks[block].cost >= MS_BOUND_NONE) return;
    ms_list_push(m, &m->work, parent);
    ms_list_push(m, &m->work, block);
}

static uint32_t place(ms_matcher *m, ms_frame f, ms_phase phase) {
    f.phase = phase;
    return ms_match_frame(m, &f);
}

/* The frame in another phase, under white space. */
static void spaced(ms_matcher *m, ms_frame f, ms_phase phase) { enter_later(m, place(m, f, phase), m->g->space); }

static void resume_sequence(ms_matcher *m, const ms_frame *f, const ms_block *b) {
    if (f->a == b->count) {
        resume_later(m, f->parent);
        return;
    }
    ms_frame up = *f;
    up.a++;
    enter_later(m, up.a == b->count ? f->parent : ms_match_frame(m, &up), b->items[f->a]);
}

static void resume_repeat(ms_matcher *m, const ms_frame *f, const ms_block *b) {
    if (f->a >= b->min) resume_later(m, f->parent);
    ms_frame up = *f;
    if (f->a >= b->max) return;
    up.a++;
    enter_later(m, ms_match_frame(m, &up), b->items[0]);
}

static void resume_members(ms_matcher *m, const ms_frame *f, const ms_block *b) {
    bool open = true;
    for (uint32_t i = f->a; i < b->count && open; i++) {
        ms_frame up = *f;
        up.a = i + 1;
        up.b++;
        enter_later(m, ms_match_frame(m, &up), b->items[i]);
        open = !b->required[i];
    }
    if (open && f->b >= b->min) resume_later(m, f->parent);
}

static void resume_object(ms_matcher *m, const ms_frame *f, const ms_block *b) {
    const ms_object_block *o = b->object;
    ms_frame up = *f;
    switch (f->phase) {
    case MS_PHASE_FIRST:
    case MS_PHASE_NEXT:
        up.start = m->log_len;
        for (up.c = 0; up.c < o->extra_count; up.c++)
            if (ms_extra_fits(m, f, up.c)) enter_later(m, place(m, up, MS_PHASE_EXTRA), o->extras[up.c].leaf);
        break;
    case MS_PHASE_EXTRA:
        up.seen = ms_taken_add(m, o->extras, o->extra_count, f->seen, f->start);
        if (up.seen == MS_DFA_NONE) return;
        up.a = o->member_count;
        up.b += o->counted;
        up.c = o->extras[f->c].value;
        up.start = 0;
        resume_later(m, place(m, up, MS_PHASE_COLON));
        break;
    case MS_PHASE_VALUE:
        up.c = 0;
        enter_later(m, place(m, up, MS_PHASE_AFTER), f->c);
        break;
    case MS_PHASE_AFTER:
        if (ms_may_end(m, f)) spaced(m, up, MS_PHASE_END);
        break;
    default: break;
    }
}

static void begin_item(ms_matcher *m, const ms_frame *f, const ms_array_block *a) {
    ms_frame up = *f;
    if (a->max != MS_UNLIMITED && f->a >= a->max) return;
    up.a = ms_count_up(f->a, a->clamp);
    if (a->unique) {
        up.start = m->log_len;
        uint32_t parent = place(m, up, MS_PHASE_ITEM);
        for (uint32_t i = 0; i < a->class_count; i++) enter_later(m, parent, a->classes[i].leaf);
        return;
    }
    if (!a->contained) {
        enter_later(m, place(m, up, MS_PHASE_AFTER), ms_item_at(a, f->a));
        return;
    }
    enter_later(m, place(m, up, MS_PHASE_AFTER), a->other);
    if (a->max_contained != MS_UNLIMITED && f->b >= a->max_contained) return;
    up.b = ms_count_up(f->b, a->contained_clamp);
    enter_later(m, place(m, up, MS_PHASE_AFTER), a->contained);
}

static void resume_array(ms_matcher *m, const ms_frame *f, const ms_block *b) {
    ms_frame up = *f;
    switch (f->phase) {
    case MS_PHASE_FIRST:
    case MS_PHASE_NEXT: begin_item(m, f, b->array); break;
    case MS_PHASE_ITEM:
        up.seen = ms_taken_add(m, b->array->classes, b->array->class_count, f->seen, f->start);
        if (up.seen == MS_DFA_NONE) return;
        up.start = 0;
        resume_later(m, place(m, up, MS_PHASE_AFTER));
        break;
    case MS_PHASE_AFTER:
        if (ms_may_end(m, f)) spaced(m, up, MS_PHASE_END);
        break;
    default: break;
    }
}

static void enter(ms_matcher *m, uint32_t parent, uint32_t block) {
    const ms_block *b = &m->g->blocks[block];
    ms_frame f = {.parent = parent, .block = block};
    if (b->kind == MS_BLOCK_CHOICE) {
        for (uint32_t i = 0; i < b->count; i++) enter_later(m, parent, b->items[i]);
        return;
    }
    for (uint32_t up = parent; b->kind == MS_BLOCK_NUMBER && up > MS_FRAME_FLOOR; up = m->frames[up].parent) {
        if (m->g->blocks[m->frames[up].block].kind != MS_BLOCK_REPEAT) continue;
        f.a = m->frames[up].a;
        break;
    }
    resume_later(m, ms_match_frame(m, &f));
}

/* One frame comes to the top: it becomes a leaf of the result, or others do for it, or both. */
static void resume(ms_matcher *m, uint32_t at, ms_list *out) {
    if (m->frames[at].epoch == m->epoch) return;
    m->frames[at].epoch = m->epoch;
    if (at <= MS_FRAME_FLOOR) {
        ms_list_push(m, out, at);
        return;
    }
    ms_frame f = m->frames[at];
    const ms_block *b = &m->g->blocks[f.block];
    bool leaf = true;
    switch (b->kind) {
    case MS_BLOCK_DFA:
        if (m->g->dfas[b->dfa].accept[f.a]) resume_later(m, f.parent);
        break;
    case MS_BLOCK_TEXT: resume_later(m, f.parent); break;
    case MS_BLOCK_STRING:
        if (b->form == MS_STRING_RAW && ms_string_may_end(m, &f)) resume_later(m, f.parent);
        break;
    case MS_BLOCK_SEQUENCE: resume_sequence(m, &f, b), leaf = false; break;
    case MS_BLOCK_REPEAT: resume_repeat(m, &f, b), leaf = false; break;
    case MS_BLOCK_MEMBERS: resume_members(m, &f, b), leaf = false; break;
    case MS_BLOCK_OBJECT:
        leaf = f.phase != MS_PHASE_EXTRA && f.phase != MS_PHASE_VALUE;
        resume_object(m, &f, b);
        break;
    case MS_BLOCK_ARRAY:
        leaf = f.phase != MS_PHASE_ITEM && f.phase != MS_PHASE_NEXT;
        resume_array(m, &f, b);
        break;
    default: break;
    }
    if (leaf && out->count < MAX_STACKS) ms_list_push(m, out, at);
}

static void run_work(ms_matcher *m, ms_list *out) {
    while (m->work.count && !m->failed) {
        uint32_t block = m->work.data[--m->work.count], frame = m->work.data[--m->work.count];
        if (block == MS_DFA_NONE) resume(m, frame, out);
        else enter(m, frame, block);
    }
    m->work.count = 0;
}

void ms_match_resume(ms_matcher *m, uint32_t frame, ms_list *out) {
    resume_later(m, frame);
    run_work(m, out);
}

/* ------------------------------------------------------------------ steps */

/* Of sorted members first..end, whose literals agree before `at`, the first with such a byte there or a larger one. */
static uint32_t member_from(const ms_object_block *o, uint32_t first, uint32_t end, uint32_t at, uint32_t byte) {
    while (first < end) {
        uint32_t mid = first + (end - first) / 2;
        if ((uint8_t)o->members[o->sorted[mid]].literal[at] < byte) first = mid + 1;
        else end = mid;
    }
    return first;
}

/* A declared key goes on: its range of sorted members shrinks. */
static void step_key(ms_matcher *m, ms_frame f, const ms_object_block *o, uint8_t byte) {
    f.c = member_from(o, f.c, f.d, f.start, byte);
    f.d = member_from(o, f.c, f.d, f.start, byte + 1u);
    if (f.c == f.d) return;
    const ms_member *x = &o->members[o->sorted[f.c]];
    f.start++;
    if (x->literal_len > f.start) {
        resume_later(m, ms_match_frame(m, &f));
        return;
    }
    uint32_t member = o->sorted[f.c];
    if (!ms_member_fits(m, &f, member)) return;
    f.a = member + 1;
    f.b += o->counted;
    f.c = x->value;
    f.d = f.start = 0;
    resume_later(m, place(m, f, MS_PHASE_COLON));
}

static void step_object(ms_matcher *m, ms_frame f, const ms_object_block *o, uint8_t byte) {
    switch (f.phase) {
    case MS_PHASE_START:
        if (byte == '{') spaced(m, f, MS_PHASE_FIRST);
        break;
    case MS_PHASE_FIRST:
    case MS_PHASE_NEXT:
        if (byte == '}' && f.phase == MS_PHASE_FIRST && ms_may_end(m, &f)) resume_later(m, f.parent);
        if (byte != '"') break;
        f.d = o->member_count;
        f.start = 1;
        if (f.d) resume_later(m, place(m, f, MS_PHASE_KEY));
        break;
    case MS_PHASE_KEY: step_key(m, f, o, byte); break;
    case MS_PHASE_COLON:
        if (byte == ':') spaced(m, f, MS_PHASE_VALUE);
        break;
    case MS_PHASE_AFTER:
        if (byte == ',' && ms_more_fits(m, &f)) spaced(m, f, MS_PHASE_NEXT);
        break;
    case MS_PHASE_END:
        if (byte == '}') resume_later(m, f.parent);
        break;
    default: break;
    }
}

static void step_array(ms_matcher *m, ms_frame f, uint8_t byte) {
    switch (f.phase) {
    case MS_PHASE_START:
        if (byte == '[') spaced(m, f, MS_PHASE_FIRST);
        break;
    case MS_PHASE_FIRST:
        if (byte == ']' && ms_may_end(m, &f)) resume_later(m, f.parent);
        break;
    case MS_PHASE_AFTER:
        if (byte == ',' && ms_more_fits(m, &f)) spaced(m, f, MS_PHASE_NEXT);
        break;
    case MS_PHASE_END:
        if (byte == ']') resume_later(m, f.parent);
        break;
    default: break;
    }
}

static void step_number(ms_matcher *m, ms_frame f, uint8_t byte) {
    char digits[12];
    uint32_t n = 0, v = f.a;
    do digits[n++] = (char)('0' + v % 10);
    while (v /= 10);
    if (digits[n - 1 - f.b] != (char)byte) return;
    f.b++;
    resume_later(m, f.b == n ? f.parent : ms_match_frame(m, &f));
}

void ms_match_step(ms_matcher *m, uint32_t from, uint32_t symbol, ms_list *out) {
    if (from <= MS_FRAME_FLOOR) return;
    ms_frame f = m->frames[from];
    const ms_block *b = &m->g->blocks[f.block];
    if (symbol >= MS_SYMBOL_CONTROL) {
        if (b->kind == MS_BLOCK_CONTROL && b->symbol == symbol) resume_later(m, f.parent);
        run_work(m, out);
        return;
    }
    uint8_t byte = (uint8_t)symbol;
    switch (b->kind) {
    case MS_BLOCK_DFA:
        f.a = ms_dfa_step(&m->g->dfas[b->dfa], f.a, byte);
        if (f.a != MS_DFA_NONE) resume_later(m, ms_match_frame(m, &f));
        break;
    case MS_BLOCK_TEXT: resume_later(m, from); break;
    case MS_BLOCK_NUMBER: step_number(m, f, byte); break;
    case MS_BLOCK_STRING: {
        int result = ms_string_step(m, &f, byte);
        if (result) resume_later(m, result == 2 ? f.parent : ms_match_frame(m, &f));
        break;
    }
    case MS_BLOCK_OBJECT: step_object(m, f, b->object, byte); break;
    case MS_BLOCK_ARRAY: step_array(m, f, byte); break;
    default: break;
    }
    run_work(m, out);
}

/* The bytes that a frame of this phase reads; NULL: it depends. */
static const char *opening(const ms_block *b, const ms_frame *f) {
    bool object = b->kind == MS_BLOCK_OBJECT;
    if (b->kind == MS_BLOCK_NUMBER) return "0123456789";
    if (b->kind == MS_BLOCK_STRING) return f->phase == MS_PHASE_START && b->form != MS_STRING_RAW ? "\"" : NULL;
    if (!object && b->kind != MS_BLOCK_ARRAY) return NULL;
    switch (f->phase) {
    case MS_PHASE_START: return object ? "{" : "[";
    case MS_PHASE_FIRST: return object ? "}\"" : "]";
    case MS_PHASE_NEXT: return object ? "\"" : "";
    case MS_PHASE_COLON: return ":";
    case MS_PHASE_AFTER: return ",";
    case MS_PHASE_END: return object ? "}" : "]";
    default: return "";
    }
}

void ms_match_candidates(const ms_matcher *m, uint32_t from, uint64_t symbols[MS_SYMBOLS / 64]) {
    if (from <= MS_FRAME_FLOOR) return;
    const ms_frame *f = &m->frames[from];
    const ms_block *b = &m->g->blocks[f->block];
    if (b->kind == MS_BLOCK_CONTROL) {
        symbols[b->symbol / 64] |= UINT64_C(1) << b->symbol % 64;
    } else if (b->kind == MS_BLOCK_DFA) {
        const ms_dfa *d = &m->g->dfas[b->dfa];
        for (uint32_t e = d->first[f->a]; e < d->first[f->a + 1]; e++)
            for (uint32_t s = d->edges[e].lo; s <= d->edges[e].hi; s++) symbols[s / 64] |= UINT64_C(1) << s % 64;
    } else if (f->phase != MS_PHASE_KEY && opening(b, f)) {
        for (const char *s = opening(b, f); *s; s++) symbols[(uint8_t)*s / 64] |= UINT64_C(1) << (uint8_t)*s % 64;
    } else if (f->phase == MS_PHASE_KEY) {
        const ms_object_block *o = b->object;
        for (uint32_t i = f->c; i < f->d;) {
            uint8_t s = (uint8_t)o->members[o->sorted[i]].literal[f->start];
            symbols[s / 64] |= UINT64_C(1) << s % 64;
            i = member_from(o, i, f->d, f->start, s + 1u);
        }
    } else {
        memset(symbols, 0xff, MS_SYMBOL_CONTROL / 8);
    }
}

/* ------------------------------------------------------------------ interface */

void ms_way_clear(ms_way *w) {
    free(w->symbols);
    free(w->need);
    free(w->first);
    *w = (ms_way){0};
}

static void go_along(ms_way *w, uint32_t symbol) {
    if (!w->vocabulary) return;
    if (w->at < w->length && w->symbols[w->at] == symbol) w->at++;
    else ms_way_clear(w);
}

ms_status ms_matcher_create(ms_matcher **out, const ms_grammar *g, ms_error *err) {
    *out = NULL;
    ms_matcher *m = calloc(1, sizeof *m);
    if (!m) return ms_fail_memory(err, "a matcher", sizeof *m);
    m->g = g;
    if (ms_match_grow(m, (void **)&m->frames, &m->cap, 64, sizeof *m->frames) &&
        ms_match_grow(m, (void **)&m->seen, &m->seen_cap, 8, sizeof *m->seen) &&
        ms_match_grow(m, (void **)&m->taken, &m->taken_cap, 8, sizeof *m->taken) &&
        ms_match_grow(m, (void **)&m->branches, &m->branch_cap, 8, sizeof *m->branches)) {
        memset(m->frames, 0, 2 * sizeof *m->frames);
        m->count = 2;
        m->seen[0] = (ms_seen){0};
        m->seen_count = 1;
        m->taken[0] = (ms_taken){0};
        m->taken_count = 1;
    }
    if (!m->failed && rehash(m)) {
        ms_match_epoch(m);
        enter_later(m, MS_FRAME_ROOT, g->root);
        run_work(m, &m->stacks);
    }
    if (m->failed) {
        ms_matcher_destroy(m);
        return ms_fail_memory(err, "a matcher", sizeof *m);
    }
    *out = m;
    return MS_OK;
}

static bool copy_array(ms_matcher *m, void **data, uint32_t *cap, const void *from, uint32_t count, size_t item) {
    *data = NULL;
    *cap = 0;
    if (!ms_match_grow(m, data, cap, count + 1, item)) return false;
    if (count) memcpy(*data, from, count * item);
    return true;
}

ms_status ms_matcher_copy(ms_matcher **out, const ms_matcher *from, ms_error *err) {
    *out = NULL;
    ms_matcher *m = calloc(1, sizeof *m);
    if (!m) return ms_fail_memory(err, "a matcher", sizeof *m);
    m->g = from->g;
    m->failed = from->failed;
    m->epoch = from->epoch;
    m->live = from->live;
    bool good = copy_array(m, (void **)&m->frames, &m->cap, from->frames, from->count, sizeof *m->frames) &&
                copy_array(m, (void **)&m->seen, &m->seen_cap, from->seen, from->seen_count, sizeof *m->seen) &&
                copy_array(m, (void **)&m->taken, &m->taken_cap, from->taken, from->taken_count, sizeof *m->taken) &&
                copy_array(m, (void **)&m->branches, &m->branch_cap, from->branches, from->branch_count,
                           sizeof *m->branches) &&
                copy_array(m, (void **)&m->roots, &m->root_cap, from->roots, from->root_count, sizeof *m->roots) &&
                copy_array(m, (void **)&m->log, &m->log_cap, from->log, from->log_len, 1) &&
                copy_array(m, (void **)&m->stacks.data, &m->stacks.cap, from->stacks.data, from->stacks.count,
                           sizeof *m->stacks.data);
    m->count = from->count;
    m->seen_count = from->seen_count;
    m->taken_count = from->taken_count;
    m->branch_count = from->branch_count;
    m->root_count = from->root_count;
    m->log_len = from->log_len;
    m->stacks.count = from->stacks.count;
    if (!good || !rehash(m)) {
        ms_matcher_destroy(m);
        return ms_fail_memory(err, "a matcher", from->count * sizeof *m->frames);
    }
    *out = m;
    return MS_OK;
}

void ms_matcher_destroy(ms_matcher *m) {
    if (!m) return;
    free(m->frames);
    free(m->buckets);
    free(m->seen);
    free(m->taken);
    free(m->branches);
    free(m->roots);
    free(m->log);
    free(m->stacks.data);
    free(m->work.data);
    free(m->next.data);
    free(m->path.data);
    ms_way_clear(&m->way);
    free(m);
}

/* Keeps only the frames under live stacks.  Ids change, order stays. */
void ms_match_clean(ms_matcher *m) {
    if (m->count < m->live * 2 + CLEAN_FRAMES) return;
    uint32_t *name = calloc(m->count, sizeof *name), n = 2;
    if (!name) return; /* it can wait */
    for (uint32_t i = 0; i < m->stacks.count; i++) {
        for (uint32_t f = m->stacks.data[i]; f > MS_FRAME_FLOOR && !name[f]; f = m->frames[f].parent) name[f] = 1;
    }
    name[1] = 1;
    for (uint32_t i = 2; i < m->count; i++) {
        if (!name[i]) continue;
        name[i] = n;
        m->frames[n] = m->frames[i];
        m->frames[n].parent = name[m->frames[i].parent];
        n++;
    }
    for (uint32_t i = 0; i < m->stacks.count; i++) m->stacks.data[i] = name[m->stacks.data[i]];
    m->count = m->live = n;
    free(name);
    (void)rehash(m);
}

bool ms_matcher_symbol(ms_matcher *m, uint32_t symbol) {
    if (m->failed || symbol >= MS_SYMBOLS) return false;
    ms_match_clean(m);
    ms_match_mark mark = ms_match_marked(m);
    if (symbol < MS_SYMBOL_CONTROL && !ms_match_log(m, (uint8_t)symbol)) return false;
    ms_match_epoch(m);
    m->next.count = 0;
    for (uint32_t i = 0; i < m->stacks.count; i++) ms_match_step(m, m->stacks.data[i], symbol, &m->next);
    if (!m->next.count || m->failed) {
        ms_match_back(m, mark);
        return false;
    }
    ms_list swap = m->stacks;
    m->stacks = m->next;
    m->next = swap;
    go_along(&m->way, symbol);
    return true;
}

bool ms_matcher_accepts(const ms_matcher *m) {
    for (uint32_t i = 0; i < m->stacks.count; i++)
        if (m->stacks.data[i] == MS_FRAME_ROOT) return true;
    return false;
}

uint32_t ms_matcher_bound(const ms_matcher *m) {
    uint32_t best = MS_BOUND_NONE;
    for (uint32_t i = 0; i < m->stacks.count; i++)
        if (m->frames[m->stacks.data[i]].total < best) best = m->frames[m->stacks.data[i]].total;
    return best;
}

bool ms_matcher_failed(const ms_matcher *m) { return m->failed; }
