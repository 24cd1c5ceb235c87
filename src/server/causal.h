/* causal.h: what the server asks of an inference engine: one causal timeline, and states that it can come back to.
 *
 * The real one is an ms_session with its engine (causal_session.c); tests put a script behind the same table.
 *
 * Threads: everything runs on the thread that opened the source, but for the constants.
 * Errors: those of ms_session_forward and its neighbours.
 */
#ifndef MS_SERVER_CAUSAL_H
#define MS_SERVER_CAUSAL_H

#include "moonshine/moonshine.h"
#include "session/text_model.h"

typedef struct ms_causal ms_causal;

/* A state that is kept elsewhere than on the timeline. */
typedef struct ms_causal_entry {
    uint64_t entry; /* its name */
    const uint32_t *ids;
    size_t count;
    const char *meta; /* what was given to save */
    size_t meta_len;
} ms_causal_entry;

/* How long a state is worth keeping: in memory; on disk too unless one like it is there; on disk in any case. */
typedef enum ms_keep { MS_KEEP_MEMORY, MS_KEEP_DISK, MS_KEEP_NOW } ms_keep;

typedef struct ms_causal_ops {
    uint64_t (*position)(const ms_causal *c);
    const uint32_t *(*tokens)(const ms_causal *c); /* [position] */
    const float *(*logits)(const ms_causal *c);    /* [vocab] after a forward, else NULL */
    void (*reset)(ms_causal *c);
    ms_status (*forward)(ms_causal *c, const uint32_t *ids, size_t count, const ms_forward_options *o, ms_error *err);
    /* Makes the running forward stop at its next boundary; cleared by clear_cancel. */
    void (*cancel)(ms_causal *c);
    void (*clear_cancel)(ms_causal *c);
    /* Goes back without a point, where the state allows it (ms_session_rewind). */
    bool (*can_rewind)(const ms_causal *c, uint64_t position);
    ms_status (*rewind)(ms_causal *c, uint64_t position, ms_error *err);
    /* Points of the timeline, as ms_session_snapshot and _restore. */
    ms_status (*mark)(ms_causal *c, void **point, ms_error *err);
    ms_status (*go_back)(ms_causal *c, const void *point, ms_error *err);
    void (*unmark)(ms_causal *c, void *point);
    void (*stats)(const ms_causal *c, ms_engine_stats *out);
    /* Kept states; all four may be NULL together.  peek: the i'th entry, most recently used first; false: no more.
     * restore: the timeline becomes the entry; a failure leaves it as it was or empty.  drop: its continuation failed.
     * save: keeps the present state, at once or in the background. */
    bool (*peek)(ms_causal *c, size_t i, ms_causal_entry *out);
    ms_status (*restore)(ms_causal *c, uint64_t entry, ms_error *err);
    void (*drop)(ms_causal *c, uint64_t entry);
    void (*save)(ms_causal *c, const char *meta, size_t meta_len, ms_keep keep);
    /* Looking on (expert_service.h): all four may be NULL together.  watch: NULL ends it; only with `logits` given at
     * opening it may ask for them.  resident: experts of a routed layer, coldest first, to out [experts]. */
    void (*watch)(ms_causal *c, const ms_expert_watch *watch);
    uint32_t (*resident)(const ms_causal *c, uint32_t moe_layer, uint32_t *out);
    ms_status (*digest)(ms_causal *c, ms_digest *out, ms_error *err);
    ms_status (*forget_experts)(ms_causal *c, ms_error *err); /* empties the cache */
    /* States under a name (session/named_state.h); both may be NULL together.  A failed restore leaves the timeline as
     * it was, or empty. */
    ms_status (*save_named)(ms_causal *c, const char *name, const char *meta, size_t meta_len, uint64_t *bytes,
                            ms_error *err);
    ms_status (*restore_named)(ms_causal *c, const char *name, ms_text *meta, uint64_t *bytes, bool *missing,
                               ms_error *err);
} ms_causal_ops;

struct ms_causal {
    const ms_causal_ops *ops;
    uint64_t context;
    uint32_t vocab, range_rows;
    uint32_t points; /* that may be marked at a time */
    const uint32_t *routed; /* [routed_count]: model layers with experts; for resident */
    uint32_t routed_count;
    float *tap_device, *tap_host; /* [experts] each, for a watch that wants logits; else NULL */
};

/* Where a timeline comes from: open may take minutes. */
typedef struct ms_kept_view {
    bool disk;
    uint64_t entries, memory_entries, memory_bytes, max_memory_bytes;
    uint64_t disk_entries, disk_bytes, max_disk_entries, max_disk_bytes;
    uint64_t writes, write_failures, evictions, corrupt, restores;
} ms_kept_view;

typedef struct ms_causal_source {
    void *self;
    ms_status (*open)(void *self, ms_causal **out, ms_error *err);
    void (*close)(void *self);                   /* also after a failed open */
    void (*kept)(void *self, ms_kept_view *out); /* any thread; NULL: nothing is kept */
} ms_causal_source;

#endif
