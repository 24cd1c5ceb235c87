/* retained.h: what a timeline holds, and how much of it a new prompt may keep.
 *
 * The timeline's ids are the truth about its state.  Marks say what some of them are: directives that the client never
 * saw (hidden), and what the model generated.  A prompt matches as long as
 *   - its ids equal the timeline's;
 *   - where the timeline has hidden ids the prompt may lack them: they stay;
 *   - where the timeline has generated ids, the prompt's text is what they spell: the model's own cut into tokens
 *     stays.
 * Nothing else is equal.  A match is used at a place where the state is: the end of the timeline, a point marked on it,
 * a place that it can be rewound to, or a state kept elsewhere.  Only then the prompt's ids are the timeline's up to there, and its own behind it.
 *
 * Owns: marks, points and the logits of points.  Does not own: the timeline, the text model.
 * Threads: the inference thread.  Errors: MS_ERR_MEMORY; those of the timeline.
 */
#ifndef MS_SERVER_RETAINED_H
#define MS_SERVER_RETAINED_H

#include "server/candidate.h"
#include "server/causal.h"

typedef struct ms_mark {
    bool hidden; /* else generated */
    size_t first, count;
} ms_mark;

typedef struct ms_marks {
    ms_mark *items;
    size_t count, cap;
} ms_marks;

ms_status ms_marks_add(ms_marks *m, bool hidden, size_t first, size_t count, ms_error *err);
/* Forgets what is at or behind `end`; a mark across it is cut. */
void ms_marks_cut(ms_marks *m, size_t end);
/* As text for a kept state, and back; false: not such a text, or no memory. */
void ms_marks_write(const ms_marks *m, ms_text *out);
bool ms_marks_read(ms_marks *m, const char *text, size_t len, size_t ids);

/* How far a prompt follows ids: `matched` of them, which stand for `used` ids of the prompt. */
typedef struct ms_follow {
    size_t matched, used;
} ms_follow;
/* at[i].matched (ascending) are the places of interest; at[i].used becomes SIZE_MAX where the prompt does not come so
 * far or is between two of its ids there.  Returns how many ids matched. */
size_t ms_follow_ids(const ms_candidate *c, const ms_tokenizer *t, const uint32_t *ids, size_t count,
                     const ms_marks *marks, ms_follow *at, size_t places);

enum { MS_POINTS_MAX = 8 };

typedef struct ms_point {
    void *point; /* of the timeline */
    size_t position;
    float *logits; /* [vocab]: a prompt may end here; NULL: it needs one id more */
    bool anchor;
} ms_point;

typedef struct ms_retained {
    ms_causal *timeline;
    const ms_text_model *model;
    ms_marks marks;
    ms_point points[MS_POINTS_MAX]; /* by position */
    size_t point_count;
} ms_retained;

void ms_retained_init(ms_retained *r, ms_causal *timeline, const ms_text_model *model);
void ms_retained_fini(ms_retained *r);
/* Empties timeline, marks and points. */
void ms_retained_reset(ms_retained *r);

typedef enum ms_origin {
    MS_ORIGIN_COLD,
    MS_ORIGIN_LIVE,   /* the end of the timeline */
    MS_ORIGIN_REWIND, /* an earlier place that the timeline can go back to by itself */
    MS_ORIGIN_POINT,
    MS_ORIGIN_KEPT
} ms_origin;
typedef struct ms_beginning {
    ms_origin origin;
    ms_follow at;   /* reused ids, and where the prompt goes on */
    size_t point;   /* POINT */
    uint64_t entry; /* KEPT */
    size_t matched; /* ids of the timeline that the prompt follows, whether used or not */
} ms_beginning;

/* The longest beginning.  Changes nothing. */
ms_beginning ms_retained_find(const ms_retained *r, const ms_candidate *c);
/* Brings back the kept state of a beginning that is one; only then is it sure.  false: it cannot be read, and *b is the
 * longest beginning without it. */
bool ms_retained_take(ms_retained *r, const ms_candidate *c, ms_beginning *b);
/* Goes to a beginning, a kept one after take. */
ms_status ms_retained_begin(ms_retained *r, const ms_beginning *b, ms_error *err);
/* Marks the present end, in place of the oldest point of its kind when there is no room.  logits: NULL or [vocab].
 * Without room for points nothing happens. */
ms_status ms_retained_mark(ms_retained *r, bool anchor, const float *logits, ms_error *err);
/* Goes back to `position`, or where that cannot be to the last point before it; without one the timeline is emptied. */
ms_status ms_retained_back(ms_retained *r, size_t position, ms_error *err);
/* The timeline as it is, under a name, and back (causal.h).  A failed restore leaves it as it was, or empty. */
ms_status ms_retained_save_named(ms_retained *r, const char *name, uint64_t *bytes, ms_error *err);
ms_status ms_retained_restore_named(ms_retained *r, const char *name, uint64_t *bytes, bool *missing, ms_error *err);
/* Keeps the present state (causal.h, save). */
void ms_retained_save(ms_retained *r, ms_keep keep);

#endif
