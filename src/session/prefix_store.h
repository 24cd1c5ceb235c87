/* prefix_store.h: a bounded set of causal states that conversations can come back to, in memory and on disk.
 *
 * An entry is the state after some token ids.  A prompt that begins with all of them, and has more, can start there:
 * the longest entry wins, ids are compared one by one.  Nothing else decides what may be reused.
 *
 * In memory an entry is a state image; on disk it is a folder (prefix_disk.h) that a thread of the store writes while
 * the session goes on.  Both sides have bounds of their own; the entry used longest ago goes first, never one that is
 * being written, restored, or that the request in progress was matched with.
 *
 * Owns: images, records, the folder, one writer thread.  Does not own: the session.
 * Threads: all calls but stats on the inference thread; stats and the log callback on any thread.
 * Invariants: memory images <= memory_bytes; files <= disk_bytes; entries on disk <= disk_entries, at every moment.
 * Errors: a failing disk never fails a request: it is logged, the state is just not kept.
 */
#ifndef MS_SESSION_PREFIX_STORE_H
#define MS_SESSION_PREFIX_STORE_H

#include "base/text.h"
#include "moonshine/moonshine.h"
#include "text/tokenizer.h"

typedef enum ms_prefix_event {
    MS_PREFIX_WRITTEN,
    MS_PREFIX_RESTORED,
    MS_PREFIX_EVICTED, /* from disk */
    MS_PREFIX_CORRUPT, /* and removed */
    MS_PREFIX_FAILED   /* a write; the disk is as before */
} ms_prefix_event;

typedef struct ms_prefix_options {
    uint64_t memory_bytes; /* for images; 0: none are kept */
    const char *root;      /* NULL: no disk */
    uint32_t disk_entries;
    uint64_t disk_bytes;
    uint64_t min_distance;   /* tokens: an entry that extends one on disk by fewer is written only when asked to */
    uint64_t identity_extra; /* of what the session does not know: tokenizer, chat template ... */
    /* error: one line without content of conversations; NULL: none.  It must not call the store. */
    void (*event)(void *arg, ms_prefix_event event, uint64_t entry, uint64_t tokens, uint64_t bytes, uint64_t ns,
                  const char *error);
    void *event_arg;
} ms_prefix_options;

typedef struct ms_prefix_store ms_prefix_store;

/* *disabled (may be NULL): the folder belongs to another process; the store then works in memory alone. */
ms_status ms_prefix_store_open(ms_prefix_store **out, ms_session *s, const ms_prefix_options *o, bool *disabled,
                               ms_error *err);
/* Waits for the write in progress.  NULL is fine. */
void ms_prefix_store_close(ms_prefix_store *p);

typedef struct ms_prefix_match {
    uint64_t entry;   /* 0: none */
    size_t count;     /* ids */
    const char *meta; /* the entry's; valid until the next find or peek */
    size_t meta_len;
} ms_prefix_match;

/* The longest entry that ids[0..count) begins with and that leaves at least min_rest of them.  It is protected until
 * the next find. */
void ms_prefix_store_find(ms_prefix_store *p, const uint32_t *ids, size_t count, size_t min_rest, ms_prefix_match *out);

/* The i'th entry's meta text and ids (most recently used first); false: there is none.  For a caller that must render
 * differently to match an entry (hidden directives). */
bool ms_prefix_store_peek(ms_prefix_store *p, size_t i, ms_prefix_match *out, const uint32_t **ids);

/* Brings the session to the entry's state.  A failure leaves the session as it was or reset (position tells) and
 * removes a damaged entry. */
ms_status ms_prefix_store_restore(ms_prefix_store *p, ms_session *s, uint64_t entry, ms_error *err);

/* Removes an entry: its continuation failed. */
void ms_prefix_store_drop(ms_prefix_store *p, uint64_t entry);

typedef enum ms_prefix_keep {
    MS_PREFIX_MEMORY,  /* in memory alone */
    MS_PREFIX_DISK,    /* and on disk, unless too near to an entry there */
    MS_PREFIX_DISK_NOW /* and on disk in any case */
} ms_prefix_keep;

/* Keeps the session's present state.  Copies it and returns; an entry of the same ids is only marked as used.  A state
 * that memory_bytes has no room for is written at once instead. */
void ms_prefix_store_save(ms_prefix_store *p, ms_session *s, const char *meta, size_t meta_len, ms_prefix_keep keep);

/* Waits until nothing is being written. */
void ms_prefix_store_flush(ms_prefix_store *p);

typedef struct ms_prefix_stats {
    uint64_t entries, memory_entries, memory_bytes, disk_entries, disk_bytes;
    uint64_t writes, write_failures, evictions, corrupt, restores;
    bool writing;
} ms_prefix_stats;
void ms_prefix_store_stats(ms_prefix_store *p, ms_prefix_stats *out);

#endif
