/* retained.c: retained.h.
 *
 * Invariant: points are ascending, each at or before the timeline's end; marks are ascending and do not overlap.
 */
#include "server/retained.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------ marks */

ms_status ms_marks_add(ms_marks *m, bool hidden, size_t first, size_t count, ms_error *err) {
    if (!count) return MS_OK;
    if (m->count == m->cap) {
        size_t cap = m->cap ? 2 * m->cap : 16;
        ms_mark *items = realloc(m->items, cap * sizeof *items);
        if (!items) return ms_fail_memory(err, "marks of a prompt", cap * sizeof *items);
        m->items = items;
        m->cap = cap;
    }
    m->items[m->count++] = (ms_mark){hidden, first, count};
    return MS_OK;
}

void ms_marks_cut(ms_marks *m, size_t end) {
    while (m->count && m->items[m->count - 1].first >= end) m->count--;
    if (!m->count) return;
    ms_mark *last = &m->items[m->count - 1];
    if (last->first + last->count > end) last->count = end - last->first;
}

void ms_marks_write(const ms_marks *m, ms_text *out) {
    for (size_t i = 0; i < m->count; i++) {
        ms_text_printf(out, "%c%zu+%zu ", m->items[i].hidden ? 'h' : 'g', m->items[i].first, m->items[i].count);
    }
}

static bool read_number(const char **s, const char *end, size_t *out) {
    size_t v = 0;
    const char *start = *s;
    for (; *s < end && **s >= '0' && **s <= '9'; (*s)++) {
        if (v > SIZE_MAX / 16) return false;
        v = v * 10 + (size_t)(**s - '0');
    }
    *out = v;
    return *s > start;
}

bool ms_marks_read(ms_marks *m, const char *text, size_t len, size_t ids) {
    const char *s = text, *end = text + len;
    size_t from = 0;
    while (s < end) {
        bool hidden = *s == 'h';
        size_t first, count;
        if (*s != 'h' && *s != 'g') return false;
        s++;
        if (!read_number(&s, end, &first) || s == end || *s++ != '+' || !read_number(&s, end, &count)) return false;
        if (s == end || *s++ != ' ' || first < from || first > ids || !count || count > ids - first) return false;
        if (ms_marks_add(m, hidden, first, count, NULL) != MS_OK) return false;
        from = first + count;
    }
    return true;
}

/* ------------------------------------------------------------------ following */

typedef struct follower {
    const ms_candidate *c;
    const ms_tokenizer *tokenizer;
    const uint32_t *ids;
    ms_follow *at;
    size_t places, place;
    size_t matched, used;
} follower;

/* Notes the places up to where the prompt has come; `between`: it is inside one of its own ids. */
static void note_places(follower *f, bool between) {
    while (f->place < f->places && f->at[f->place].matched <= f->matched) {
        bool here = f->at[f->place].matched == f->matched && !between;
        f->at[f->place++].used = here ? f->used : SIZE_MAX;
    }
}

/* Segment that begins with the prompt's id number `used`; SIZE_MAX: none does. */
static size_t segment_at(const ms_candidate *c, size_t used) {
    size_t low = 0, high = c->segments.count;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (c->first[mid] < used)
            low = mid + 1;
        else
            high = mid;
    }
    return low < c->segments.count && c->first[low] == used ? low : SIZE_MAX;
}

static bool follow_equal(follower *f, size_t end) {
    for (; f->matched < end; f->matched++, f->used++) {
        note_places(f, false);
        if (f->used == f->c->ids.count || f->ids[f->matched] != f->c->ids.data[f->used]) return false;
    }
    return true;
}

static bool follow_hidden(follower *f, size_t end) {
    size_t n = end - f->matched;
    const ms_ids *own = &f->c->ids;
    bool has = own->count - f->used >= n && memcmp(own->data + f->used, f->ids + f->matched, n * sizeof *f->ids) == 0;
    if (has) return follow_equal(f, end);
    note_places(f, false);
    f->matched = end;
    return true;
}

static bool follow_generated(follower *f, size_t end) {
    ms_segment_place p = {segment_at(f->c, f->used), 0};
    if (p.segment == SIZE_MAX) return follow_equal(f, end);
    for (; f->matched < end; f->matched++) {
        if (!p.offset) f->used = f->c->first[p.segment];
        note_places(f, p.offset != 0);
        if (!ms_segments_spell(&f->c->segments, f->tokenizer, &p, f->ids + f->matched, 1)) return false;
    }
    if (p.offset) return false;
    f->used = f->c->first[p.segment];
    return true;
}

size_t ms_follow_ids(const ms_candidate *c, const ms_tokenizer *t, const uint32_t *ids, size_t count,
                     const ms_marks *marks, ms_follow *at, size_t places) {
    follower f = {.c = c, .tokenizer = t, .ids = ids, .at = at, .places = places};
    bool good = true;
    for (size_t i = 0; i < marks->count && good; i++) {
        const ms_mark *m = &marks->items[i];
        if (m->first < f.matched || m->first + m->count > count) break;
        good = follow_equal(&f, m->first) &&
               (m->hidden ? follow_hidden(&f, m->first + m->count) : follow_generated(&f, m->first + m->count));
    }
    if (good && follow_equal(&f, count)) note_places(&f, false);
    size_t matched = f.matched;
    f.matched = SIZE_MAX;
    note_places(&f, true);
    return matched;
}

/* ------------------------------------------------------------------ points */

void ms_retained_init(ms_retained *r, ms_causal *timeline, const ms_text_model *model) {
    *r = (ms_retained){.timeline = timeline, .model = model};
}

static void drop_point(ms_retained *r, size_t i) {
    r->timeline->ops->unmark(r->timeline, r->points[i].point);
    free(r->points[i].logits);
    memmove(&r->points[i], &r->points[i + 1], (r->point_count - i - 1) * sizeof r->points[0]);
    r->point_count--;
}

static void drop_points_from(ms_retained *r, size_t i) {
    while (r->point_count > i) drop_point(r, r->point_count - 1);
}

void ms_retained_reset(ms_retained *r) {
    drop_points_from(r, 0);
    r->marks.count = 0;
    r->timeline->ops->reset(r->timeline);
}

void ms_retained_fini(ms_retained *r) {
    if (r->timeline) drop_points_from(r, 0);
    free(r->marks.items);
    *r = (ms_retained){0};
}

ms_status ms_retained_mark(ms_retained *r, bool anchor, const float *logits, ms_error *err) {
    ms_causal *t = r->timeline;
    size_t position = (size_t)t->ops->position(t), limit = t->points < MS_POINTS_MAX ? t->points : MS_POINTS_MAX;
    if (!limit || (anchor && limit < 2)) return MS_OK;
    for (size_t i = 0; i < r->point_count; i++) {
        if (r->points[i].position == position && (r->points[i].logits || !logits)) return MS_OK;
    }
    /* One anchor and the latest prompt ends. */
    size_t drop = SIZE_MAX;
    for (size_t i = 0; i < r->point_count; i++) {
        if (r->points[i].position == position || (anchor && r->points[i].anchor)) drop = i;
    }
    for (size_t i = 0; drop == SIZE_MAX && r->point_count == limit && i < r->point_count; i++) {
        if (!r->points[i].anchor || limit == 1) drop = i;
    }
    if (drop != SIZE_MAX) drop_point(r, drop);
    ms_point p = {.position = position, .anchor = anchor};
    size_t bytes = t->vocab * sizeof *p.logits;
    if (logits) {
        p.logits = malloc(bytes);
        if (!p.logits) return ms_fail_memory(err, "a copy of the logits", bytes);
        memcpy(p.logits, logits, bytes);
    }
    ms_status status = t->ops->mark(t, &p.point, err);
    if (status == MS_OK)
        r->points[r->point_count++] = p;
    else
        free(p.logits);
    return status;
}

/* ------------------------------------------------------------------ beginnings */

/* A prompt needs the logits of its last id: at the very end they must be there. */
static bool enough(const ms_candidate *c, size_t used, const float *logits) {
    return used != SIZE_MAX && (used < c->ids.count || (used == c->ids.count && logits));
}

static void find_on_timeline(const ms_retained *r, const ms_candidate *c, ms_beginning *best) {
    const ms_causal *t = r->timeline;
    ms_follow at[MS_POINTS_MAX + 1];
    size_t end = (size_t)t->ops->position(t);
    for (size_t i = 0; i < r->point_count; i++) at[i].matched = r->points[i].position;
    at[r->point_count].matched = end;
    if (!end) return;
    best->matched = ms_follow_ids(c, r->model->tokenizer, t->ops->tokens(t), end, &r->marks, at, r->point_count + 1);
    for (size_t i = 0; i <= r->point_count; i++) {
        bool live = i == r->point_count;
        if (!at[i].matched || !enough(c, at[i].used, live ? t->ops->logits(t) : r->points[i].logits)) continue;
        if (at[i].matched < best->at.matched) continue;
        best->origin = live ? MS_ORIGIN_LIVE : MS_ORIGIN_POINT;
        best->at = at[i];
        best->point = i;
    }
}

/* A timeline that can go back by itself serves up to where the prompt differs. */
static void find_rewind(const ms_retained *r, const ms_candidate *c, ms_beginning *best) {
    const ms_causal *t = r->timeline;
    size_t end = (size_t)t->ops->position(t), matched = best->matched;
    size_t places[3] = {matched, matched ? matched - 1 : 0, 0};
    for (size_t i = 0; i < r->marks.count; i++) {
        const ms_mark *m = &r->marks.items[i];
        if (m->first < matched && matched < m->first + m->count) places[2] = m->first;
    }
    for (size_t i = 0; i < 3; i++) {
        ms_follow at = {.matched = places[i]};
        if (places[i] <= best->at.matched || places[i] >= end || !t->ops->can_rewind(t, places[i])) continue;
        (void)ms_follow_ids(c, r->model->tokenizer, t->ops->tokens(t), end, &r->marks, &at, 1);
        if (!enough(c, at.used, NULL)) continue;
        best->origin = MS_ORIGIN_REWIND;
        best->at = at;
    }
}

static void find_kept(const ms_retained *r, const ms_candidate *c, ms_beginning *best) {
    ms_causal *t = r->timeline;
    ms_causal_entry e;
    for (size_t i = 0; t->ops->peek && t->ops->peek(t, i, &e); i++) {
        if (e.count <= best->at.matched) continue;
        ms_marks marks = {0};
        ms_follow at = {.matched = e.count};
        if (ms_marks_read(&marks, e.meta, e.meta_len, e.count)) {
            (void)ms_follow_ids(c, r->model->tokenizer, e.ids, e.count, &marks, &at, 1);
            if (enough(c, at.used, NULL)) {
                best->origin = MS_ORIGIN_KEPT;
                best->at = at;
                best->entry = e.entry;
            }
        }
        free(marks.items);
    }
}

ms_beginning ms_retained_find(const ms_retained *r, const ms_candidate *c) {
    ms_beginning best = {.origin = MS_ORIGIN_COLD};
    find_on_timeline(r, c, &best);
    find_rewind(r, c, &best);
    find_kept(r, c, &best);
    return best;
}

static ms_status go_to_point(ms_retained *r, size_t i, ms_error *err) {
    MS_TRY(r->timeline->ops->go_back(r->timeline, r->points[i].point, err));
    drop_points_from(r, i + 1);
    ms_marks_cut(&r->marks, r->points[i].position);
    return MS_OK;
}

static ms_status rewind_to(ms_retained *r, size_t position, ms_error *err) {
    MS_TRY(r->timeline->ops->rewind(r->timeline, position, err));
    size_t i = r->point_count;
    while (i && r->points[i - 1].position > position) i--;
    drop_points_from(r, i);
    ms_marks_cut(&r->marks, position);
    return MS_OK;
}

/* The kept state's marks are read before its state is. */
static ms_status restore_kept(ms_retained *r, uint64_t entry, ms_error *err) {
    ms_causal *t = r->timeline;
    ms_causal_entry e;
    ms_marks marks = {0};
    bool found = false;
    for (size_t i = 0; !found && t->ops->peek(t, i, &e); i++) {
        found = e.entry == entry && ms_marks_read(&marks, e.meta, e.meta_len, e.count);
    }
    ms_status status = found ? t->ops->restore(t, entry, err) : ms_fail(err, MS_ERR_INTERNAL, "a kept state is gone");
    if (status != MS_OK) {
        free(marks.items);
        if (!t->ops->position(t)) {
            drop_points_from(r, 0);
            r->marks.count = 0;
        }
        return status;
    }
    drop_points_from(r, 0);
    free(r->marks.items);
    r->marks = marks;
    return MS_OK;
}

bool ms_retained_take(ms_retained *r, const ms_candidate *c, ms_beginning *b) {
    if (b->origin != MS_ORIGIN_KEPT || restore_kept(r, b->entry, NULL) == MS_OK) return true;
    *b = (ms_beginning){.origin = MS_ORIGIN_COLD};
    find_on_timeline(r, c, b);
    find_rewind(r, c, b);
    return false;
}

ms_status ms_retained_begin(ms_retained *r, const ms_beginning *b, ms_error *err) {
    if (b->origin == MS_ORIGIN_POINT) return go_to_point(r, b->point, err);
    if (b->origin == MS_ORIGIN_REWIND) return rewind_to(r, b->at.matched, err);
    if (b->origin == MS_ORIGIN_COLD) ms_retained_reset(r);
    return MS_OK;
}

ms_status ms_retained_back(ms_retained *r, size_t position, ms_error *err) {
    const ms_causal *t = r->timeline;
    if (t->ops->can_rewind && t->ops->can_rewind(t, position)) return rewind_to(r, position, err);
    size_t i = r->point_count;
    while (i && r->points[i - 1].position > position) i--;
    if (i) return go_to_point(r, i - 1, err);
    ms_retained_reset(r);
    return MS_OK;
}

void ms_retained_save(ms_retained *r, ms_keep keep) {
    ms_causal *t = r->timeline;
    if (!t->ops->save || !t->ops->position(t)) return;
    ms_text meta = {0};
    ms_marks_write(&r->marks, &meta);
    if (!meta.failed) t->ops->save(t, meta.data ? meta.data : "", meta.len, keep);
    ms_text_free(&meta);
}

ms_status ms_retained_save_named(ms_retained *r, const char *name, uint64_t *bytes, ms_error *err) {
    ms_text meta = {0};
    ms_marks_write(&r->marks, &meta);
    ms_status st =
        meta.failed ? ms_fail_memory(err, "marks of a state", meta.len)
                    : r->timeline->ops->save_named(r->timeline, name, meta.data ? meta.data : "", meta.len, bytes, err);
    ms_text_free(&meta);
    return st;
}

ms_status ms_retained_restore_named(ms_retained *r, const char *name, uint64_t *bytes, bool *missing, ms_error *err) {
    ms_causal *t = r->timeline;
    ms_text meta = {0};
    ms_status st = t->ops->restore_named(t, name, &meta, bytes, missing, err);
    size_t end = (size_t)t->ops->position(t);
    if (st == MS_OK || !end) {
        drop_points_from(r, 0);
        r->marks.count = 0;
    }
    /* Marks that are not understood are none: only a prompt of the same ids matches then. */
    if (st == MS_OK && !ms_marks_read(&r->marks, meta.data ? meta.data : "", meta.len, end)) r->marks.count = 0;
    ms_text_free(&meta);
    return st;
}
