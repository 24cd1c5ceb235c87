/* prefix_store.c: prefix_store.h.
 *
 * One lock guards the list of entries.  The folder is changed by one party at a time, which `busy` names: the writer
 * thread, or the inference thread when it must write without a copy.  Images are freed by the inference thread alone,
 * and not while `pending`; so the writer can read one without the lock.  Removing folders is left to the writer: an
 * entry whose folder must go is `doomed`, is found by nobody, and disappears when the writer has done it.
 *
 * Owns: see the header.  Threads: inference thread and writer.
 */
#include "session/prefix_store.h"

#include "base/bytes.h"
#include "base/clock.h"
#include "session/prefix_disk.h"
#include "session/session_internal.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

typedef struct entry {
    ms_prefix_record r;
    ms_state_image image; /* data NULL: not in memory */
    bool on_disk;
    bool pending;   /* to be written, or being written: the image stays */
    bool restoring; /* being read: the folder stays */
    bool doomed;
} entry;

struct ms_prefix_store {
    ms_prefix_options o;
    ms_prefix_disk *disk;
    uint64_t identity;
    pthread_mutex_t lock;
    pthread_cond_t wake, idle;
    pthread_t writer;
    bool has_writer, stop, busy, uses_changed;
    entry **entries;
    size_t count, cap;
    entry *queued;
    uint64_t clock, matched;
    ms_text shown; /* meta text of the last match: an entry may go while its reader looks at it */
    ms_ids shown_ids;
    ms_prefix_stats stats; /* counters only */
};

static void tell(const ms_prefix_store *p, ms_prefix_event event, const entry *e, uint64_t bytes, uint64_t start,
                 const char *error) {
    if (!p->o.event) return;
    p->o.event(p->o.event_arg, event, e->r.id, e->r.ids.count, bytes, start ? ms_clock_ns() - start : 0, error);
}

/* ------------------------------------------------------------------ the list (under the lock) */

static entry *find_id(const ms_prefix_store *p, uint64_t id) {
    for (size_t i = 0; i < p->count; i++) {
        if (p->entries[i]->r.id == id && !p->entries[i]->doomed) return p->entries[i];
    }
    return NULL;
}

static ms_status add_entry(ms_prefix_store *p, entry *e, ms_error *err) {
    if (p->count == p->cap) {
        size_t cap = p->cap ? 2 * p->cap : 16;
        entry **more = realloc(p->entries, cap * sizeof *more);
        if (!more) return ms_fail_memory(err, "list of kept states", cap * sizeof *more);
        p->entries = more;
        p->cap = cap;
    }
    p->entries[p->count++] = e;
    return MS_OK;
}

static void free_entry(entry *e) {
    if (!e) return;
    ms_state_image_free(&e->image);
    ms_prefix_record_free(&e->r);
    free(e);
}

static void delete_entry(ms_prefix_store *p, entry *e) {
    for (size_t i = 0; i < p->count; i++) {
        if (p->entries[i] != e) continue;
        p->entries[i] = p->entries[--p->count];
        break;
    }
    free_entry(e);
}

static void use(ms_prefix_store *p, entry *e) {
    e->r.last_use = ++p->clock;
    p->uses_changed = p->uses_changed || e->on_disk;
}

static uint64_t memory_used(const ms_prefix_store *p) {
    uint64_t n = 0;
    for (size_t i = 0; i < p->count; i++) n += p->entries[i]->image.bytes;
    return n;
}

/* What the folders take, those about to be removed among them. */
static uint64_t disk_used(const ms_prefix_store *p, size_t *entries) {
    uint64_t n = 0;
    *entries = 0;
    for (size_t i = 0; i < p->count; i++) {
        if (!p->entries[i]->on_disk) continue;
        n += p->entries[i]->r.bytes;
        ++*entries;
    }
    return n;
}

static bool begins_with(const uint32_t *ids, size_t count, const ms_ids *prefix) {
    return prefix->count <= count && (!prefix->count || memcmp(ids, prefix->data, prefix->count * sizeof *ids) == 0);
}

/* Its folder and image are not wanted any more. */
static void doom(ms_prefix_store *p, entry *e) {
    e->doomed = true;
    if (p->queued == e) {
        p->queued = NULL;
        e->pending = false;
    }
    if (!e->pending) ms_state_image_free(&e->image);
    if (!e->on_disk && !e->pending) delete_entry(p, e);
    pthread_cond_signal(&p->wake);
}

/* ------------------------------------------------------------------ room */

/* Frees images until `bytes` more fit; the one of the present request goes last.  false: they cannot. */
static bool make_memory_room(ms_prefix_store *p, uint64_t bytes) {
    while (memory_used(p) + bytes > p->o.memory_bytes) {
        entry *victim = NULL;
        for (size_t i = 0; i < p->count; i++) {
            entry *e = p->entries[i];
            if (!e->image.data || e->pending || e->restoring) continue;
            bool later = victim && (e->r.id == p->matched) != (victim->r.id == p->matched)
                             ? e->r.id == p->matched
                             : victim && e->r.last_use > victim->r.last_use;
            if (!later) victim = e;
        }
        if (!victim) return false;
        ms_state_image_free(&victim->image);
        if (!victim->on_disk) delete_entry(p, victim);
    }
    return true;
}

/* Bytes that the manifest may take beside the entries. */
static uint64_t manifest_bytes(size_t entries) { return 64 + 160 * (uint64_t)entries; }

/* The next folder to remove so that `bytes` more fit; NULL with *fits: none is needed; NULL without: nothing can go. */
static entry *disk_victim(const ms_prefix_store *p, uint64_t bytes, bool *fits) {
    size_t n;
    uint64_t used = disk_used(p, &n);
    *fits = n + 1 <= p->o.disk_entries && used + bytes + manifest_bytes(n + 1) <= p->o.disk_bytes;
    if (*fits) return NULL;
    entry *victim = NULL;
    for (size_t i = 0; i < p->count; i++) {
        entry *e = p->entries[i];
        if (!e->on_disk || e->restoring || (e->r.id == p->matched && p->o.disk_entries > 1)) continue;
        if (e->doomed) return e;
        if (!victim || e->r.last_use < victim->r.last_use) victim = e;
    }
    return victim;
}

/* ------------------------------------------------------------------ the folder (busy, without the lock but where said)
 */

/* Called with the lock; gives it back for the removal. */
static void remove_folder(ms_prefix_store *p, entry *e) {
    uint64_t id = e->r.id, tokens = e->r.ids.count, bytes = e->r.bytes;
    bool evicted = !e->doomed;
    e->doomed = true; /* nobody finds it while it goes */
    pthread_mutex_unlock(&p->lock);
    ms_error err = {0};
    ms_status status = ms_prefix_disk_remove(p->disk, id, &err);
    pthread_mutex_lock(&p->lock);
    e->on_disk = false;
    if (evicted) {
        p->stats.evictions++;
        if (p->o.event) {
            p->o.event(p->o.event_arg, MS_PREFIX_EVICTED, id, tokens, bytes, 0, status == MS_OK ? NULL : err.message);
        }
    }
    if (evicted && e->image.data) {
        e->doomed = false;
    } else if (!e->pending) {
        delete_entry(p, e);
    }
}

static bool make_disk_room(ms_prefix_store *p, uint64_t bytes) {
    for (;;) {
        bool fits;
        entry *victim = disk_victim(p, bytes, &fits);
        if (!victim) return fits;
        remove_folder(p, victim);
    }
}

/* Called with the lock; gives it back for the write. */
static void write_manifest(ms_prefix_store *p) {
    size_t n = 0;
    ms_prefix_record *copy = calloc(p->count + 1, sizeof *copy);
    const ms_prefix_record **list = calloc(p->count + 1, sizeof *list);
    for (size_t i = 0; copy && list && i < p->count; i++) {
        const entry *e = p->entries[i];
        if (!e->on_disk || e->doomed) continue;
        copy[n] = (ms_prefix_record){.id = e->r.id, .last_use = e->r.last_use, .bytes = e->r.bytes};
        copy[n].ids.count = e->r.ids.count;
        list[n] = &copy[n];
        n++;
    }
    p->uses_changed = false;
    pthread_mutex_unlock(&p->lock);
    if (copy && list) (void)ms_prefix_disk_manifest(p->disk, list, n, NULL); /* advice */
    pthread_mutex_lock(&p->lock);
    free(copy);
    free(list);
}

/* Called with the lock and busy; gives the lock back for the write.  s: NULL, or the session to write from. */
static void write_entry(ms_prefix_store *p, entry *e, ms_session *s, uint64_t state_bytes) {
    uint64_t start = ms_clock_ns();
    ms_error err = {0};
    ms_status status = MS_ERR_NO_FIT;
    if (make_disk_room(p, ms_prefix_disk_need(&e->r, state_bytes))) {
        pthread_mutex_unlock(&p->lock);
        status =
            s ? ms_prefix_disk_export(p->disk, &e->r, s, &err) : ms_prefix_disk_write(p->disk, &e->r, &e->image, &err);
        pthread_mutex_lock(&p->lock);
    } else {
        (void)ms_fail(&err, status, "the bounds have no room for %ju bytes", (uintmax_t)state_bytes);
    }
    e->pending = false;
    e->on_disk = status == MS_OK;
    if (status == MS_OK) {
        p->stats.writes++;
        tell(p, MS_PREFIX_WRITTEN, e, e->r.bytes, start, NULL);
        write_manifest(p);
    } else {
        p->stats.write_failures++;
        tell(p, MS_PREFIX_FAILED, e, state_bytes, start, err.message);
    }
}

static entry *doomed_folder(const ms_prefix_store *p) {
    for (size_t i = 0; i < p->count; i++) {
        entry *e = p->entries[i];
        if (e->doomed && !e->pending && !e->restoring) return e;
    }
    return NULL;
}

static void *writer_main(void *arg) {
    ms_prefix_store *p = arg;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        entry *gone = p->busy ? NULL : doomed_folder(p), *next = p->busy || gone ? NULL : p->queued;
        if (!gone && !next) {
            if (p->stop) break;
            pthread_cond_wait(&p->wake, &p->lock);
            continue;
        }
        p->busy = true;
        if (gone) {
            if (gone->on_disk)
                remove_folder(p, gone);
            else
                delete_entry(p, gone);
        } else {
            p->queued = NULL;
            write_entry(p, next, NULL, next->image.bytes);
        }
        p->busy = false;
        pthread_cond_broadcast(&p->idle);
    }
    if (p->uses_changed) write_manifest(p);
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* ------------------------------------------------------------------ life */

static void on_damaged(void *arg, uint64_t id, const char *why) {
    ms_prefix_store *p = arg;
    const entry e = {.r.id = id};
    p->stats.corrupt++;
    tell(p, MS_PREFIX_CORRUPT, &e, 0, 0, why);
}

static ms_status load_entries(ms_prefix_store *p, ms_error *err) {
    ms_prefix_record *records;
    size_t count;
    MS_TRY(ms_prefix_disk_scan(p->disk, &records, &count, on_damaged, p, err));
    ms_status status = MS_OK;
    for (size_t i = 0; i < count; i++) {
        entry *e = status == MS_OK ? calloc(1, sizeof *e) : NULL;
        if (status == MS_OK && !e) status = ms_fail_memory(err, "a kept state", sizeof *e);
        if (e) {
            e->r = records[i];
            e->on_disk = true;
            if (e->r.last_use > p->clock) p->clock = e->r.last_use;
            status = add_entry(p, e, err);
            if (status != MS_OK) free_entry(e);
        } else {
            ms_prefix_record_free(&records[i]);
        }
    }
    free(records);
    return status;
}

/* Bounds may be smaller than those of the process that wrote. */
static void keep_bounds(ms_prefix_store *p) {
    pthread_mutex_lock(&p->lock);
    for (;;) {
        size_t n;
        uint64_t used = disk_used(p, &n);
        if (n <= p->o.disk_entries && used + manifest_bytes(n) <= p->o.disk_bytes) break;
        entry *victim = NULL;
        for (size_t i = 0; i < p->count; i++) {
            entry *e = p->entries[i];
            if (e->on_disk && (!victim || e->r.last_use < victim->r.last_use)) victim = e;
        }
        if (!victim) break;
        remove_folder(p, victim);
    }
    pthread_mutex_unlock(&p->lock);
}

static ms_status open_disk(ms_prefix_store *p, bool *disabled, ms_error *err) {
    bool in_use;
    ms_error why;
    ms_status status = ms_prefix_disk_open(&p->disk, p->o.root, &in_use, &why);
    if (status != MS_OK && in_use && disabled) {
        *disabled = true;
        return MS_OK;
    }
    if (status != MS_OK) return ms_fail(err, status, "%s", why.message);
    MS_TRY(load_entries(p, err));
    keep_bounds(p);
    if (pthread_create(&p->writer, NULL, writer_main, p) != 0) {
        return ms_fail(err, MS_ERR_IO, "the thread that writes states did not start");
    }
    p->has_writer = true;
    return MS_OK;
}

ms_status ms_prefix_store_open(ms_prefix_store **out, ms_session *s, const ms_prefix_options *o, bool *disabled,
                               ms_error *err) {
    *out = NULL;
    if (disabled) *disabled = false;
    ms_prefix_store *p = calloc(1, sizeof *p);
    if (!p) return ms_fail_memory(err, "prefix store", sizeof *p);
    p->o = *o;
    const uint64_t parts[] = {ms_session_identity(s), s->state.context, o->identity_extra};
    p->identity = ms_fnv1a64(MS_FNV1A64_INIT, parts, sizeof parts);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    pthread_cond_init(&p->idle, NULL);
    ms_status status = o->root ? open_disk(p, disabled, err) : MS_OK;
    if (status != MS_OK) {
        ms_prefix_store_close(p);
        return status;
    }
    *out = p;
    return MS_OK;
}

void ms_prefix_store_close(ms_prefix_store *p) {
    if (!p) return;
    if (p->has_writer) {
        pthread_mutex_lock(&p->lock);
        p->stop = true;
        pthread_cond_signal(&p->wake);
        pthread_mutex_unlock(&p->lock);
        pthread_join(p->writer, NULL);
    }
    for (size_t i = 0; i < p->count; i++) free_entry(p->entries[i]);
    free(p->entries);
    ms_text_free(&p->shown);
    ms_ids_free(&p->shown_ids);
    ms_prefix_disk_close(p->disk);
    pthread_cond_destroy(&p->idle);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

/* Waits, with the lock, until nobody works on the folder and nothing waits for it. */
static void wait_idle(ms_prefix_store *p) {
    while (p->has_writer && (p->busy || p->queued || doomed_folder(p))) pthread_cond_wait(&p->idle, &p->lock);
}

void ms_prefix_store_flush(ms_prefix_store *p) {
    pthread_mutex_lock(&p->lock);
    wait_idle(p);
    pthread_mutex_unlock(&p->lock);
}

/* ------------------------------------------------------------------ finding and restoring */

static void show(ms_prefix_store *p, const entry *e, ms_prefix_match *out) {
    ms_text_free(&p->shown);
    ms_text_append(&p->shown, e->r.meta, e->r.meta_len);
    *out = (ms_prefix_match){e->r.id, e->r.ids.count, p->shown.data, p->shown.len};
    if (p->shown.failed || !p->shown.data) *out = (ms_prefix_match){e->r.id, e->r.ids.count, "", 0};
}

void ms_prefix_store_find(ms_prefix_store *p, const uint32_t *ids, size_t count, size_t min_rest,
                          ms_prefix_match *out) {
    *out = (ms_prefix_match){0};
    pthread_mutex_lock(&p->lock);
    const entry *best = NULL;
    for (size_t i = 0; i < p->count; i++) {
        const entry *e = p->entries[i];
        if (e->doomed || (!e->on_disk && !e->image.data) || e->r.identity != p->identity || !e->r.ids.count) continue;
        if (e->r.ids.count > count || count - e->r.ids.count < min_rest) continue;
        if (best && e->r.ids.count <= best->r.ids.count) continue;
        if (begins_with(ids, count, &e->r.ids)) best = e;
    }
    p->matched = best ? best->r.id : 0;
    if (best) show(p, best, out);
    pthread_mutex_unlock(&p->lock);
}

/* Uses may be equal: those of entries that the manifest said nothing of. */
static bool used_later(const entry *a, const entry *b) {
    return a->r.last_use != b->r.last_use ? a->r.last_use > b->r.last_use : a->r.id > b->r.id;
}

bool ms_prefix_store_peek(ms_prefix_store *p, size_t i, ms_prefix_match *out, const uint32_t **ids) {
    pthread_mutex_lock(&p->lock);
    const entry *e = NULL;
    for (size_t n = 0; n <= i; n++) {
        const entry *last = e;
        e = NULL;
        for (size_t k = 0; k < p->count; k++) {
            const entry *x = p->entries[k];
            if (x->doomed || x->r.identity != p->identity || (last && !used_later(last, x))) continue;
            if (!e || used_later(x, e)) e = x;
        }
        if (!e) break;
    }
    if (e) {
        show(p, e, out);
        p->shown_ids.count = 0;
        if (ms_ids_append(&p->shown_ids, e->r.ids.data, e->r.ids.count, NULL) != MS_OK) e = NULL;
        *ids = p->shown_ids.data;
    }
    pthread_mutex_unlock(&p->lock);
    return e != NULL;
}

static ms_status load(ms_prefix_store *p, ms_session *s, const entry *e, ms_error *err) {
    if (e->image.data) return ms_state_image_restore(s, &e->image, err);
    ms_text path = {0};
    ms_status status = ms_prefix_disk_path(p->disk, e->r.id, &path, err);
    if (status == MS_OK) status = ms_session_import(s, path.data, err);
    ms_text_free(&path);
    return status;
}

ms_status ms_prefix_store_restore(ms_prefix_store *p, ms_session *s, uint64_t id, ms_error *err) {
    uint64_t start = ms_clock_ns();
    pthread_mutex_lock(&p->lock);
    entry *e = find_id(p, id);
    if (e) e->restoring = true; /* neither image nor folder goes away; what is written meanwhile is another entry */
    pthread_mutex_unlock(&p->lock);
    if (!e) return ms_fail(err, MS_ERR_USAGE, "the kept state is gone");
    ms_error why = {0};
    ms_status status = load(p, s, e, &why);
    uint64_t position = status == MS_OK ? s->state.position : 0;
    if (status == MS_OK && (position != e->r.ids.count || !begins_with(s->tokens, (size_t)position, &e->r.ids))) {
        status = ms_fail(&why, MS_ERR_FORMAT, "state.bin and tokens.u32 hold different ids");
        ms_session_clear(s);
    }
    pthread_mutex_lock(&p->lock);
    e->restoring = false;
    if (status == MS_OK) {
        p->stats.restores++;
        use(p, e);
        tell(p, MS_PREFIX_RESTORED, e, e->image.data ? e->image.bytes : e->r.bytes, start, NULL);
    } else if (status == MS_ERR_FORMAT || status == MS_ERR_IO) {
        p->stats.corrupt++;
        tell(p, MS_PREFIX_CORRUPT, e, e->r.bytes, start, why.message);
        doom(p, e);
    } else if (status == MS_ERR_UNSUPPORTED) {
        e->r.identity = ~p->identity; /* well formed, of another setup */
    }
    pthread_mutex_unlock(&p->lock);
    return status == MS_OK ? MS_OK : ms_fail(err, status, "%s", why.message);
}

void ms_prefix_store_drop(ms_prefix_store *p, uint64_t id) {
    pthread_mutex_lock(&p->lock);
    entry *e = find_id(p, id);
    if (e) doom(p, e);
    pthread_mutex_unlock(&p->lock);
}

/* ------------------------------------------------------------------ saving */

static ms_status new_entry(ms_prefix_store *p, ms_session *s, const char *meta, size_t meta_len, entry **out,
                           ms_error *err) {
    entry *e = calloc(1, sizeof *e);
    if (!e) return ms_fail_memory(err, "a kept state", sizeof *e);
    e->r.identity = p->identity;
    ms_status status = ms_ids_append(&e->r.ids, s->tokens, (size_t)s->state.position, err);
    e->r.meta = status == MS_OK ? malloc(meta_len + 1) : NULL;
    if (status == MS_OK && !e->r.meta) status = ms_fail_memory(err, "a kept state's text", meta_len);
    if (status == MS_OK && getrandom(&e->r.id, sizeof e->r.id, 0) != (ssize_t)sizeof e->r.id) {
        status = ms_fail(err, MS_ERR_IO, "no random number for a kept state");
    }
    if (status != MS_OK) {
        free_entry(e);
        return status;
    }
    if (meta_len) memcpy(e->r.meta, meta, meta_len);
    e->r.meta[meta_len] = '\0';
    e->r.meta_len = meta_len;
    e->r.id |= e->r.id == 0; /* 0 is "none" */
    *out = e;
    return MS_OK;
}

/* Whether the folder should get these ids (under the lock). */
static bool wants_disk(const ms_prefix_store *p, const uint32_t *ids, size_t count, uint64_t bytes,
                       ms_prefix_keep keep) {
    if (!p->disk || keep == MS_PREFIX_MEMORY || bytes + manifest_bytes(1) > p->o.disk_bytes || !p->o.disk_entries) {
        return false;
    }
    if (keep == MS_PREFIX_DISK_NOW) return true;
    for (size_t i = 0; i < p->count; i++) {
        const entry *e = p->entries[i];
        bool there = (e->on_disk || e->pending) && !e->doomed && e->r.identity == p->identity;
        if (there && count - e->r.ids.count < p->o.min_distance && begins_with(ids, count, &e->r.ids)) return false;
    }
    return true;
}

/* The newer state takes the place of one that waits (under the lock). */
static void enqueue(ms_prefix_store *p, entry *e) {
    if (p->queued) p->queued->pending = false;
    p->queued = e;
    e->pending = true;
    pthread_cond_signal(&p->wake);
}

static entry *same_ids(const ms_prefix_store *p, const uint32_t *ids, size_t count) {
    for (size_t i = 0; i < p->count; i++) {
        entry *e = p->entries[i];
        if (e->doomed || e->r.identity != p->identity || e->r.ids.count != count) continue;
        if (begins_with(ids, count, &e->r.ids)) return e;
    }
    return NULL;
}

/* Under the lock, which is given back while the state is copied. */
static ms_status keep_in_memory(ms_prefix_store *p, ms_session *s, entry *e, ms_error *err) {
    pthread_mutex_unlock(&p->lock);
    ms_status status = ms_state_image_capture(s, &e->image, err);
    pthread_mutex_lock(&p->lock);
    if (status == MS_OK) status = add_entry(p, e, err);
    return status;
}

/* Writes from the session, on this thread: there is no room for a copy (under the lock). */
static ms_status keep_on_disk(ms_prefix_store *p, ms_session *s, entry *e, uint64_t bytes, ms_error *err) {
    wait_idle(p);
    MS_TRY(add_entry(p, e, err));
    p->busy = true;
    e->pending = true;
    write_entry(p, e, s, bytes);
    p->busy = false;
    if (!e->on_disk) delete_entry(p, e);
    pthread_cond_broadcast(&p->idle);
    pthread_cond_signal(&p->wake);
    return MS_OK;
}

static void save_new(ms_prefix_store *p, ms_session *s, entry *e, uint64_t bytes, ms_prefix_keep keep) {
    uint64_t start = ms_clock_ns();
    bool disk = wants_disk(p, e->r.ids.data, e->r.ids.count, ms_prefix_disk_need(&e->r, bytes), keep);
    bool memory = bytes <= p->o.memory_bytes;
    if (memory && !make_memory_room(p, bytes)) {
        wait_idle(p); /* what is being written cannot go before it is */
        memory = make_memory_room(p, bytes);
    }
    ms_error err = {0};
    ms_status status = MS_OK;
    use(p, e);
    if (memory) {
        status = keep_in_memory(p, s, e, &err);
        if (status == MS_OK && disk) enqueue(p, e);
    } else if (disk) {
        status = keep_on_disk(p, s, e, bytes, &err);
    } else {
        free_entry(e);
    }
    if (status == MS_OK) return;
    p->stats.write_failures++;
    tell(p, MS_PREFIX_FAILED, e, bytes, start, err.message);
    free_entry(e);
}

void ms_prefix_store_save(ms_prefix_store *p, ms_session *s, const char *meta, size_t meta_len, ms_prefix_keep keep) {
    size_t count = (size_t)s->state.position;
    uint64_t bytes;
    entry *e;
    if (!count || ms_state_image_size(s, count, &bytes, NULL) != MS_OK) return;
    pthread_mutex_lock(&p->lock);
    e = same_ids(p, s->tokens, count);
    if (e) {
        use(p, e);
        bool disk = !e->on_disk && !e->pending && e->image.data &&
                    wants_disk(p, e->r.ids.data, count, ms_prefix_disk_need(&e->r, bytes), keep);
        if (disk) enqueue(p, e);
    } else if (new_entry(p, s, meta, meta_len, &e, NULL) == MS_OK) {
        save_new(p, s, e, bytes, keep);
    }
    pthread_mutex_unlock(&p->lock);
}

void ms_prefix_store_stats(ms_prefix_store *p, ms_prefix_stats *out) {
    pthread_mutex_lock(&p->lock);
    *out = p->stats;
    for (size_t i = 0; i < p->count; i++) {
        const entry *e = p->entries[i];
        if (e->doomed) continue;
        out->entries++;
        if (e->image.data) out->memory_entries++;
    }
    out->memory_bytes = memory_used(p);
    size_t n;
    out->disk_bytes = disk_used(p, &n);
    out->disk_entries = n;
    out->writing = p->busy || p->queued;
    pthread_mutex_unlock(&p->lock);
}
