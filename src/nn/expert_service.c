#include "nn/expert_service.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "io/file.h"
#include "nn/block_install.h"

enum {
    AHEAD_MAX = 32,    /* guessed reads under way */
    AHEAD_WINDOW = 32, /* guessed reads of a layer after which older ones count half */
    AHEAD_PAUSE = 32,  /* requests of a layer without guesses after bad ones, before they are looked at again */
    ALL_WINDOW = 128,  /* the same of all layers */
    ALL_PAUSE = 8,     /* tokens */
    PAUSE_DOUBLES = 2, /* of a pause, when it has not helped */
    TIME_SHARE = 8     /* a new time counts so much less than what is known */
};
/* Enough reads in flight for a drive: this many, or more if they are small. */
enum { FEW_READS = 3, FEW_BYTES = 6 << 20 };
#define AHEAD_TAG (1ull << 32) /* + place in `ahead`; tags below are indexes into the request */

typedef enum ahead_state {
    AHEAD_NONE,
    AHEAD_READING, /* guessed; nobody has asked for it yet */
    AHEAD_LANDED,  /* the same, in a staging buffer */
    AHEAD_WANTED,  /* of the open request: `want` */
    AHEAD_TAKEN,   /* the same, landed */
    AHEAD_WRONG    /* in flight, to be forgotten when it lands */
} ahead_state;

typedef struct ahead_read {
    ahead_state state;
    uint32_t expert, want;
    const uint8_t *data; /* landed */
    unsigned buffer;
} ahead_read;

/* How good the guesses for a layer were, or for all. */
typedef struct ahead_trust {
    uint32_t read, right; /* guessed reads, older ones count less; those that were wanted */
    uint32_t pause, bad;  /* requests without one; verdicts in a row that they were not good enough */
} ahead_trust;

/* What guesses are worth: times of late, in seconds; 0: not known. */
typedef struct ahead_times {
    double idle;        /* from a layer's last landing to the next layer's request: without guesses the drive rests */
    double read;        /* the drive's for an expert */
    uint64_t landed_ns; /* when the last expert of a request was taken; 0: there was none to read */
    uint64_t busy_ns, reads; /* of the reader when `read` was taken */
} ahead_times;

#define CHUNK_BYTES (1ull << 30) /* of slots */
enum { LEND_PAGE = 4096 };

/* An expert on its way from staging into its slot. */
typedef struct installing {
    uint32_t index;  /* of its want */
    uint32_t ticket; /* of the backend */
    unsigned buffer; /* held until the install has ended */
} installing;

/* Reader files of a shard and its copies, numbered one after the other; copies == 0: it holds no experts. */
typedef struct shard_files {
    unsigned first, copies;
} shard_files;

struct ms_expert_service {
    ms_backend *backend;
    const ms_checkpoint *checkpoint; /* its shards' paths */
    const ms_expert_table *table;
    ms_expert_service_options options;
    uint64_t expert_bytes;
    uint32_t scratch_count, few_reads; /* few_reads: in flight for a request of no more than the buffers take */
    uint32_t landing;                  /* most experts that ms_expert_next gives as they land */

    ms_expert_cache *cache;
    ms_reader *reader;
    shard_files *shards;   /* [checkpoint shards] */
    uint8_t **slot_chunks; /* [layers][layer_chunks]: device, chunk_slots experts each, the last of a layer fewer */
    uint32_t chunk_slots, layer_chunks;
    uint8_t *scratch; /* device, scratch_count experts */
    uint8_t *staging;
    size_t buffer_bytes;
    ms_block_install *blocks; /* NULL: experts are read as source bytes */

    /* the open request */
    bool open, hits_given;
    uint32_t layer, count, left;     /* left: misses that have not been given */
    ms_want *wants;                  /* [experts] */
    bool *committed;                 /* [experts]: a fill whose bytes are in its slot */
    ms_read_request *reads;          /* [experts] */
    installing installs[MS_TICKETS]; /* a ring */
    uint32_t first_install, install_count;
    uint32_t next_scratch;

    ms_expert_observer *observer;
    void *observer_arg;
    const ms_expert_watch *watch; /* NULL: the account is not kept */
    ms_expert_account account;

    /* lookahead */
    ahead_read ahead[AHEAD_MAX];
    uint32_t ahead_limit; /* of guessed reads at a time; 0: off */
    uint32_t guess_layer;
    bool guess_made;    /* since the last request */
    ahead_trust *trust; /* [layers] */
    ahead_trust trust_all;
    ahead_times times;
    uint64_t ahead_reads, ahead_used;

    uint64_t lent_bytes; /* counted again with every loan */
};

static uint32_t scratch_slots(const ms_expert_table *t, const ms_expert_service_options *o) {
    return o->slots - o->lent >= t->expert_count ? 0 : MS_SCRATCH_SLOTS;
}

uint64_t ms_expert_slot_bytes_total(const ms_expert_table *t, const ms_expert_service_options *o) {
    return (uint64_t)t->layer_count * o->slots * t->expert_bytes;
}

/* Slots of one chunk. */
static uint32_t slots_of_chunk(uint64_t expert_bytes, uint32_t slots) {
    uint64_t fit = CHUNK_BYTES / expert_bytes;
    return fit < 1 ? 1 : fit < slots ? (uint32_t)fit : slots;
}

uint64_t ms_expert_lent_bytes(const ms_expert_table *t, const ms_expert_service_options *o) {
    if (o->lent == 0) return 0;
    uint64_t bytes = o->lent * t->expert_bytes, chunks = o->lent / slots_of_chunk(t->expert_bytes, o->slots) + 2;
    uint64_t ends = chunks * 2 * LEND_PAGE; /* pages that are not whole stay */
    return bytes > ends ? t->layer_count * (bytes - ends) : 0;
}

uint64_t ms_expert_staging_bytes_total(const ms_expert_table *t, const ms_expert_service_options *o) {
    return (uint64_t)o->staging * ms_reader_buffer_bytes((size_t)t->read_bytes);
}

uint64_t ms_expert_scratch_bytes_total(const ms_expert_table *t, const ms_expert_service_options *o) {
    return scratch_slots(t, o) * t->expert_bytes;
}

uint64_t ms_expert_table_bytes_total(const ms_expert_table *t, const ms_expert_service_options *o) {
    uint64_t request = t->expert_count * (sizeof(ms_want) + sizeof(bool) + sizeof(ms_read_request) + sizeof(uint32_t));
    uint64_t extents = (uint64_t)t->layer_count * t->expert_count * sizeof(ms_expert_extent);
    return request + extents + ms_cache_table_bytes(t->layer_count, t->expert_count, o->slots);
}

/* The file of an expert's extent. */
static const char *extent_path(const ms_expert_service *s, const ms_expert_extent *x) {
    return s->table->store ? ms_mzg2_store_path(s->table->store, x->shard)
                           : ms_checkpoint_shard_path(s->checkpoint, x->shard);
}

/* A file of the same name in another folder is a copy when size and header are the shard's.  None there is no error. */
static ms_status is_copy(const char *path, const char *shard, bool *out, ms_error *err) {
    /* A layer file has its digests in the first bytes; a shard begins with the length of its header. */
    enum { PIECE = 1 << 16, HEAD_BYTES = 4096 };
    struct stat a, b;
    *out = false;
    if (stat(path, &a) != 0) return errno == ENOENT ? MS_OK : ms_fail_errno(err, MS_ERR_IO, errno, "%s", path);
    if (stat(shard, &b) != 0) return ms_fail_errno(err, MS_ERR_IO, errno, "%s", shard);
    if (a.st_size != b.st_size)
        return ms_fail(err, MS_ERR_FORMAT, "%s: expected a copy of %s of %lld bytes, found %lld", path, shard,
                       (long long)b.st_size, (long long)a.st_size);
    uint8_t x[PIECE], y[PIECE];
    int fx = open(path, O_RDONLY | O_CLOEXEC), fy = open(shard, O_RDONLY | O_CLOEXEC);
    ms_status st = fx < 0 || fy < 0 ? ms_fail_errno(err, MS_ERR_IO, errno, "%s: open", fx < 0 ? path : shard) : MS_OK;
    uint64_t size = (uint64_t)a.st_size, end = size < HEAD_BYTES ? size : HEAD_BYTES;
    for (uint64_t at = 0; st == MS_OK && at < end;) {
        size_t n = end - at < PIECE ? (size_t)(end - at) : PIECE;
        st = ms_file_pread_exact(fx, path, x, n, at, err);
        if (st == MS_OK) st = ms_file_pread_exact(fy, shard, y, n, at, err);
        if (st != MS_OK) break;
        if (memcmp(x, y, n) != 0) st = ms_fail(err, MS_ERR_FORMAT, "%s: its header is not that of %s", path, shard);
        if (at == 0 && n >= 8 && ms_le64(y) <= size - 8 && 8 + ms_le64(y) > end) end = 8 + ms_le64(y);
        at += n;
    }
    if (fx >= 0) (void)close(fx);
    if (fy >= 0) (void)close(fy);
    *out = st == MS_OK;
    return st;
}

ms_status ms_expert_dirs_check(const char *dirs, ms_error *err) {
    for (const char *dir = dirs; dir;) {
        size_t len = strcspn(dir, ",");
        char path[4096];
        struct stat st;
        int n = snprintf(path, sizeof path, "%.*s", (int)len, dir);
        if (n < 0 || (size_t)n >= sizeof path) return ms_fail(err, MS_ERR_USAGE, "--expert-dirs: a path is too long");
        if (!len)
            return ms_fail(err, MS_ERR_USAGE, "--expert-dirs: expected folders separated by commas, found %s", dirs);
        if (stat(path, &st) != 0)
            return ms_fail(err, MS_ERR_USAGE, "--expert-dirs: %s: expected a folder, found %s", path, strerror(errno));
        if (!S_ISDIR(st.st_mode))
            return ms_fail(err, MS_ERR_USAGE, "--expert-dirs: %s: expected a folder, found a file", path);
        dir = dir[len] ? dir + len + 1 : NULL;
    }
    return MS_OK;
}

static ms_status add_copies(ms_expert_service *s, const char *shard, shard_files *files, ms_error *err) {
    const char *name = strrchr(shard, '/') ? strrchr(shard, '/') + 1 : shard;
    for (const char *dir = s->options.dirs; dir;) {
        size_t len = strcspn(dir, ",");
        char path[4096];
        unsigned number;
        bool copy = false;
        int n = snprintf(path, sizeof path, "%.*s/%s", (int)len, dir, name);
        if (n < 0 || (size_t)n >= sizeof path) return ms_fail(err, MS_ERR_USAGE, "--expert-dirs: a path is too long");
        MS_TRY(is_copy(path, shard, &copy, err));
        if (copy) {
            MS_TRY(ms_reader_add_file(s->reader, path, &number, err));
            files->copies++;
        }
        dir = dir[len] ? dir + len + 1 : NULL;
    }
    return MS_OK;
}

static ms_status add_expert_files(ms_expert_service *s, ms_error *err) {
    size_t shards = s->table->store ? s->table->layer_count : ms_checkpoint_shard_count(s->checkpoint), copies = 0,
           used = 0;
    s->shards = calloc(shards ? shards : 1, sizeof *s->shards);
    if (!s->shards) return ms_fail_memory(err, "shard table", shards * sizeof *s->shards);
    uint64_t n = (uint64_t)s->table->layer_count * s->table->expert_count;
    for (uint64_t i = 0; i < n; i++) {
        const char *path = extent_path(s, &s->table->extents[i]);
        shard_files *files = &s->shards[s->table->extents[i].shard];
        if (files->copies) continue;
        MS_TRY(ms_reader_add_file(s->reader, path, &files->first, err));
        files->copies = 1;
        MS_TRY(add_copies(s, path, files, err));
        copies += files->copies - 1;
        used++;
    }
    if (s->options.dirs && used && !copies)
        return ms_fail(err, MS_ERR_USAGE, "--expert-dirs: no folder of %s has a copy of a file with experts",
                       s->options.dirs);
    return MS_OK;
}

/* Some devices give no very large pieces. */
static void choose_chunks(ms_expert_service *s) {
    uint32_t slots = s->options.slots;
    s->chunk_slots = slots_of_chunk(s->expert_bytes, slots);
    s->layer_chunks = slots ? (slots - 1) / s->chunk_slots + 1 : 0;
}

/* Reads of FEW_BYTES. */
static uint32_t bytes_to_reads(const ms_expert_service *s) { return (uint32_t)(FEW_BYTES / s->table->read_bytes) + 1; }

static void choose_depths(ms_expert_service *s) {
    ms_expert_service_options *o = &s->options;
    /* Where products run later, half of the scratch slots can be filled while the other half is in use. */
    s->landing = s->backend->deferred ? MS_SCRATCH_SLOTS / 2 : MS_SCRATCH_SLOTS;
    uint32_t few = bytes_to_reads(s);
    if (few < FEW_READS) few = FEW_READS;
    s->few_reads = o->read_depth ? o->read_depth : few > o->staging ? o->staging : few;
    if (o->read_depth == 0) o->read_depth = o->staging;
}

static size_t chunk_bytes(const ms_expert_service *s, size_t chunk) {
    uint32_t first = (uint32_t)(chunk % s->layer_chunks) * s->chunk_slots, left = s->options.slots - first;
    return (size_t)((left < s->chunk_slots ? left : s->chunk_slots) * s->expert_bytes);
}

static ms_status create_memory(ms_expert_service *s, ms_error *err) {
    const ms_expert_table *t = s->table;
    s->slot_chunks = calloc((size_t)t->layer_count * s->layer_chunks + 1, sizeof *s->slot_chunks);
    s->wants = calloc(t->expert_count, sizeof *s->wants);
    s->committed = calloc(t->expert_count, sizeof *s->committed);
    s->reads = calloc(t->expert_count, sizeof *s->reads);
    s->trust = calloc(t->layer_count, sizeof *s->trust);
    if (!s->slot_chunks || !s->wants || !s->committed || !s->reads || !s->trust)
        return ms_fail_memory(err, "expert request tables", t->expert_count * sizeof *s->reads);
    for (size_t i = 0; i < (size_t)t->layer_count * s->layer_chunks; i++)
        MS_TRY(s->backend->alloc(s->backend, MS_MEM_DEVICE, chunk_bytes(s, i), "expert slots",
                                 (void **)&s->slot_chunks[i], err));
    if (s->scratch_count)
        MS_TRY(s->backend->alloc(s->backend, MS_MEM_DEVICE, (size_t)(s->scratch_count * s->expert_bytes),
                                 "expert scratch slots", (void **)&s->scratch, err));
    return s->backend->alloc(s->backend, MS_MEM_STAGING, s->options.staging * s->buffer_bytes, "expert staging",
                             (void **)&s->staging, err);
}

ms_status ms_expert_service_create(ms_expert_service **out, ms_backend *be, const ms_checkpoint *c,
                                   const ms_expert_table *table, const ms_expert_service_options *options,
                                   ms_error *err) {
    ms_expert_service *s = calloc(1, sizeof *s);
    if (!s) return ms_fail_memory(err, "expert service", sizeof *s);
    s->backend = be;
    s->checkpoint = c;
    s->table = table;
    s->options = *options;
    s->expert_bytes = table->expert_bytes;
    s->scratch_count = scratch_slots(table, options);
    s->buffer_bytes = ms_reader_buffer_bytes((size_t)table->read_bytes);
    if (options->lookahead) s->ahead_limit = options->staging / 2 < AHEAD_MAX ? options->staging / 2 : AHEAD_MAX;
    choose_depths(s);
    choose_chunks(s);
    ms_status st = create_memory(s, err);
    if (st == MS_OK) st = ms_cache_create(&s->cache, table->layer_count, table->expert_count, options->slots, err);
    if (st == MS_OK) {
        ms_reader_options ro = {.depth = s->options.read_depth,
                                .staging = s->staging,
                                .buffer_count = options->staging,
                                .buffer_bytes = s->buffer_bytes,
                                .buffered = options->buffered,
                                .no_uring = options->no_uring,
                                .bytes_per_second = options->read_limit,
                                .warn = options->warn,
                                .warn_arg = options->warn_arg};
        st = ms_reader_create(&s->reader, &ro, err);
    }
    if (st == MS_OK) st = add_expert_files(s, err);
    if (st == MS_OK && table->store) st = ms_block_install_create(&s->blocks, be, table->store, options->shape, err);
    if (st != MS_OK) {
        ms_expert_service_destroy(s);
        return st;
    }
    *out = s;
    return MS_OK;
}

void ms_expert_service_destroy(ms_expert_service *s) {
    if (!s) return;
    if (s->open) ms_expert_end(s);
    ms_reader_destroy(s->reader); /* before its staging goes */
    ms_cache_destroy(s->cache);
    ms_block_install_destroy(s->blocks);
    ms_backend *be = s->backend;
    for (size_t i = 0; s->slot_chunks && i < (size_t)s->table->layer_count * s->layer_chunks; i++)
        if (s->slot_chunks[i]) be->release(be, MS_MEM_DEVICE, s->slot_chunks[i], chunk_bytes(s, i));
    if (s->scratch) be->release(be, MS_MEM_DEVICE, s->scratch, (size_t)(s->scratch_count * s->expert_bytes));
    if (s->staging) be->release(be, MS_MEM_STAGING, s->staging, s->options.staging * s->buffer_bytes);
    free(s->slot_chunks);
    free(s->shards);
    free(s->wants);
    free(s->committed);
    free(s->reads);
    free(s->trust);
    free(s);
}

/* Physical order: by file, then by offset. */
static int by_place(const void *a, const void *b) {
    const ms_read_request *x = a, *y = b;
    if (x->file != y->file) return x->file < y->file ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static ms_read_request read_of(const ms_expert_service *s, uint32_t layer, uint32_t expert, uint64_t tag) {
    const ms_expert_extent *x = &s->table->extents[(size_t)layer * s->table->expert_count + expert];
    const shard_files *f = &s->shards[x->shard];
    return (ms_read_request){
        .file = f->first + expert % f->copies, .offset = x->offset, .length = x->bytes, .tag = tag};
}

/* ------------------------------------------------------------------ lookahead */

static double mean_of_late(double mean, double now) { return mean > 0 ? mean + (now - mean) / TIME_SHARE : now; }

/* With each request.  What the drive does between layers has nothing to do with what it does between tokens. */
static void measure_times(ms_expert_service *s, bool next_layer) {
    ahead_times *t = &s->times;
    ms_reader_stats r;
    ms_reader_get_stats(s->reader, &r);
    if (next_layer && t->landed_ns) t->idle = mean_of_late(t->idle, 1e-9 * (double)(ms_clock_ns() - t->landed_ns));
    t->landed_ns = 0;
    uint64_t reads = r.reads - t->reads;
    if (reads < AHEAD_WINDOW) return;
    t->read = mean_of_late(t->read, 1e-9 * (double)(r.busy_ns - t->busy_ns) / (double)reads);
    t->busy_ns = r.busy_ns;
    t->reads = r.reads;
}

/* The drive's rest between two layers in reads; negative: not known. */
static double idle_reads(const ahead_times *t) { return t->idle > 0 && t->read > 0 ? t->idle / t->read : -1; }

/* Part of the guesses that must be right.  A right one saves what the drive would have rested, a wrong one costs the
 * rest of its read: where reads are long beside what a layer computes, few may be wrong. */
static double needed_part(const ahead_times *t) {
    double idle = idle_reads(t);
    return idle < 0 || idle > 0.5 ? 0.5 : 1 - idle;
}

/* Reads that keep the drive busy until the request comes, twice over; more would only be wrong more often. */
static uint32_t useful_reads(const ms_expert_service *s) {
    double idle = idle_reads(&s->times);
    if (idle < 0 || idle > AHEAD_MAX) return AHEAD_MAX;
    uint32_t few = bytes_to_reads(s), most = 1 + (uint32_t)(2 * idle);
    return most > few ? most : few;
}

static void count_guess(ahead_trust *t, bool right, uint32_t window, double needed, uint32_t pause) {
    t->read++;
    t->right += right;
    if (t->read < window) return;
    if (t->right < needed * t->read) {
        t->pause = pause << t->bad;
        t->bad += t->bad < PAUSE_DOUBLES;
    } else {
        t->bad = 0;
    }
    t->read /= 2;
    t->right /= 2;
}

/* A guess that cost a read has been right or wrong. */
static void judge(ms_expert_service *s, bool right) {
    count_guess(&s->trust[s->guess_layer], right, AHEAD_WINDOW, 0.5, AHEAD_PAUSE);
    count_guess(&s->trust_all, right, ALL_WINDOW, needed_part(&s->times), ALL_PAUSE * s->table->layer_count);
    s->ahead_reads++;
    s->ahead_used += right;
}

/* What has not begun costs nothing. */
static void withdraw_guesses(ms_expert_service *s) {
    for (uint32_t i = 0; i < s->ahead_limit; i++)
        if (s->ahead[i].state == AHEAD_READING && ms_reader_withdraw(s->reader, AHEAD_TAG + i))
            s->ahead[i].state = AHEAD_NONE;
}

static void forget_guesses(ms_expert_service *s) {
    withdraw_guesses(s);
    for (uint32_t i = 0; i < s->ahead_limit; i++) {
        ahead_read *a = &s->ahead[i];
        if (a->state != AHEAD_READING && a->state != AHEAD_LANDED) continue;
        if (a->state == AHEAD_LANDED) ms_reader_release(s->reader, a->buffer);
        a->state = a->state == AHEAD_LANDED ? AHEAD_NONE : AHEAD_WRONG;
        judge(s, false);
    }
}

/* Nothing is in flight any more, neither of the request nor of a guess. */
static void cancel_reads(ms_expert_service *s) {
    ms_reader_cancel_all(s->reader);
    for (uint32_t i = 0; i < s->ahead_limit; i++) {
        ahead_read *a = &s->ahead[i];
        if (a->state == AHEAD_LANDED || a->state == AHEAD_TAKEN) ms_reader_release(s->reader, a->buffer);
        a->state = AHEAD_NONE;
    }
}

bool ms_expert_wants_guess(const ms_expert_service *s, uint32_t moe_layer) {
    if (s->ahead_limit == 0 || s->options.slots >= s->table->expert_count || moe_layer >= s->table->layer_count)
        return false;
    if (s->guess_made && s->guess_layer == moe_layer) return false;
    return s->trust[moe_layer].pause == 0 && s->trust_all.pause == 0;
}

bool ms_expert_waits(const ms_expert_service *s) { return s->open && s->left; }

bool ms_expert_runs_dry(const ms_expert_service *s) {
    return ms_expert_waits(s) && s->hits_given && s->left <= (s->backend->deferred ? s->landing : 1);
}

static ahead_read *guessed(ms_expert_service *s, uint32_t expert) {
    for (uint32_t i = 0; i < s->ahead_limit; i++) {
        ahead_read *a = &s->ahead[i];
        if ((a->state == AHEAD_READING || a->state == AHEAD_LANDED) && a->expert == expert) return a;
    }
    return NULL;
}

void ms_expert_guess(ms_expert_service *s, uint32_t moe_layer, const uint32_t *experts, uint32_t count) {
    if (s->ahead_limit == 0 || moe_layer >= s->table->layer_count || count > s->table->expert_count) return;
    if (s->open && moe_layer == s->layer) return;
    for (uint32_t i = 0; i < count; i++)
        if (experts[i] >= s->table->expert_count) return;
    if (moe_layer == s->guess_layer)
        withdraw_guesses(s);
    else
        forget_guesses(s);
    s->guess_layer = moe_layer;
    s->guess_made = true;
    uint32_t left = useful_reads(s);
    for (uint32_t i = 0; i < count && left; i++) {
        if (ms_cache_resident(s->cache, moe_layer, experts[i])) continue;
        left--;
        if (guessed(s, experts[i])) continue;
        uint32_t at = 0;
        while (at < s->ahead_limit && s->ahead[at].state != AHEAD_NONE) at++;
        if (at == s->ahead_limit) return;
        ms_read_request read = read_of(s, moe_layer, experts[i], AHEAD_TAG + at);
        if (ms_reader_submit(s->reader, &read, 1, NULL) != MS_OK) return;
        s->ahead[at] = (ahead_read){.state = AHEAD_READING, .expert = experts[i]};
    }
}

void ms_expert_guess_all(ms_expert_service *s, uint32_t moe_layer) {
    if (!ms_expert_wants_guess(s, moe_layer)) return;
    uint32_t ids[AHEAD_MAX], count = 0;
    for (uint32_t e = 0; e < s->table->expert_count; e++)
        if (!ms_cache_resident(s->cache, moe_layer, e)) s->reads[count++] = read_of(s, moe_layer, e, e);
    qsort(s->reads, count, sizeof *s->reads, by_place);
    if (count > s->ahead_limit) count = s->ahead_limit;
    for (uint32_t i = 0; i < count; i++) ids[i] = (uint32_t)s->reads[i].tag;
    ms_expert_guess(s, moe_layer, ids, count);
}

/* A guess that is this want becomes its read. */
static bool take_guess(ms_expert_service *s, uint32_t layer, uint32_t expert, uint32_t want) {
    ahead_read *a = layer == s->guess_layer ? guessed(s, expert) : NULL;
    if (!a) return false;
    a->want = want;
    a->state = a->state == AHEAD_READING ? AHEAD_WANTED : AHEAD_TAKEN;
    judge(s, true);
    return true;
}

/* A guessed expert of the request that landed before it. */
static bool taken_guess(ms_expert_service *s, ms_read_done *done) {
    for (uint32_t i = 0; i < s->ahead_limit; i++) {
        ahead_read *a = &s->ahead[i];
        if (a->state != AHEAD_TAKEN) continue;
        done->tag = a->want;
        done->status = MS_OK;
        done->data = a->data;
        done->buffer = a->buffer;
        a->state = AHEAD_NONE;
        return true;
    }
    return false;
}

/* Whether a completion is one of the request.  A guess that failed is as if it had not been made. */
static bool is_wanted(ms_expert_service *s, ms_read_done *done) {
    if (done->tag < AHEAD_TAG) return true;
    ahead_read *a = &s->ahead[done->tag - AHEAD_TAG];
    ahead_state was = a->state;
    a->state = AHEAD_NONE;
    done->tag = a->want;
    if (was == AHEAD_WANTED && done->status == MS_OK) return true;
    if (was == AHEAD_READING && done->status == MS_OK) {
        a->state = AHEAD_LANDED;
        a->data = done->data;
        a->buffer = done->buffer;
        return false;
    }
    if (was == AHEAD_WANTED) {
        ms_read_request again = read_of(s, s->layer, a->expert, a->want);
        if (ms_reader_submit(s->reader, &again, 1, NULL) != MS_OK) return true; /* no memory: the failure counts */
    }
    ms_reader_release(s->reader, done->buffer);
    return false;
}

/* ------------------------------------------------------------------ requests */

static void begin_account(ms_expert_service *s) {
    s->account = (ms_expert_account){.moe_layer = s->layer,
                                     .layer = s->table->layers[s->layer],
                                     .wants = s->wants,
                                     .count = s->count,
                                     .planned_ns = ms_clock_ns()};
    ms_reader_get_stats(s->reader, &s->account.reader_before);
    const ms_expert_extent *x = &s->table->extents[(size_t)s->layer * s->table->expert_count];
    for (uint32_t i = 0; i < s->count; i++)
        if (s->wants[i].kind != MS_WANT_HIT) s->account.miss_bytes += x[s->wants[i].expert].bytes;
}

static void end_account(ms_expert_service *s) {
    s->account.ended_ns = ms_clock_ns();
    ms_reader_get_stats(s->reader, &s->account.reader);
    s->watch->request(s->watch->arg, &s->account);
}

ms_status ms_expert_request(ms_expert_service *s, uint32_t moe_layer, const uint32_t *experts, const uint32_t *uses,
                            uint32_t count, ms_error *err) {
    if (s->open) return ms_fail(err, MS_ERR_INTERNAL, "an expert request is already open");
    if (moe_layer >= s->table->layer_count || count > s->table->expert_count)
        return ms_fail(err, MS_ERR_INTERNAL, "expert request for layer %u, %u experts is out of range", moe_layer,
                       count);
    if (s->ahead_limit) measure_times(s, moe_layer == s->layer + 1);
    MS_TRY(ms_cache_plan(s->cache, moe_layer, experts, uses, count, s->wants, err));
    if (s->observer) s->observer(s->observer_arg, moe_layer, s->wants, count);
    s->open = true;
    s->hits_given = false;
    s->layer = moe_layer;
    s->count = count;
    s->left = 0;
    if (s->watch) begin_account(s);
    uint32_t reads = 0;
    for (uint32_t i = 0; i < count; i++) {
        s->committed[i] = false;
        if (s->wants[i].kind == MS_WANT_HIT) continue;
        s->left++;
        if (!take_guess(s, moe_layer, experts[i], i)) s->reads[reads++] = read_of(s, moe_layer, experts[i], i);
    }
    forget_guesses(s);
    s->guess_made = false;
    if (s->trust[moe_layer].pause) s->trust[moe_layer].pause--;
    if (s->trust_all.pause) s->trust_all.pause--;
    ms_reader_set_depth(s->reader, s->left > s->options.staging ? s->options.read_depth : s->few_reads);
    if (reads) qsort(s->reads, reads, sizeof *s->reads, by_place);
    ms_status st = reads ? ms_reader_submit(s->reader, s->reads, reads, err) : MS_OK;
    if (st == MS_OK) {
        if (s->watch) s->account.in_flight = ms_reader_pending(s->reader);
        return MS_OK;
    }
    ms_expert_end(s);
    if (st == MS_ERR_USAGE) { /* inside the file by its header: the file was cut before the reader opened it */
        st = MS_ERR_IO;
        if (err) err->code = st;
    }
    ms_error_context(err, "layer %u", s->table->layers[moe_layer]);
    return st;
}

static uint8_t *slot_address(const ms_expert_service *s, uint32_t slot) {
    size_t chunk = (size_t)s->layer * s->layer_chunks + slot / s->chunk_slots;
    return s->slot_chunks[chunk] + slot % s->chunk_slots * s->expert_bytes;
}

static ms_status fail_context(const ms_expert_service *s, uint32_t expert, ms_error *err) {
    return ms_error_context(err, "layer %u, expert %u", s->table->layers[s->layer], expert);
}

/* The next landed expert of the request.  Without `wait` *got is false when there is none yet. */
static ms_status next_landed(ms_expert_service *s, bool wait, ms_read_done *done, bool *got, ms_error *err) {
    *got = true;
    if (taken_guess(s, done)) return MS_OK;
    do {
        if (wait && s->backend->rest) s->backend->rest(s->backend);
        if (wait)
            MS_TRY(ms_reader_next(s->reader, done, err));
        else
            MS_TRY(ms_reader_poll(s->reader, done, got, err));
    } while (*got && !is_wanted(s, done));
    return MS_OK;
}

/* The end of an install: the expert is in its slot, or the slot is damaged. */
static ms_status finish(ms_expert_service *s, uint32_t index, ms_status st, ms_error *err) {
    ms_want *w = &s->wants[index];
    bool fill = w->kind == MS_WANT_FILL;
    if (st == MS_OK) {
        if (!fill) return MS_OK;
        MS_TRY(ms_cache_commit(s->cache, s->layer, w, err));
        s->committed[index] = true;
        return MS_OK;
    }
    ms_error_context(err, "%s", ms_reader_file_path(s->reader, read_of(s, s->layer, w->expert, 0).file));
    fail_context(s, w->expert, err);
    if (fill) {
        (void)ms_cache_abort(s->cache, s->layer, w, true, NULL);
        w->kind = MS_WANT_STREAM; /* holds no slot any more */
        w->slot = MS_NO_SLOT;
    }
    return st;
}

/* Ends the oldest install, or leaves it when it is still at work and `wait` is false; *ended tells which. */
static ms_status end_install(ms_expert_service *s, bool wait, bool *ended, ms_error *err) {
    const installing *in = &s->installs[s->first_install];
    ms_status st = s->backend->finish(s->backend, in->ticket, wait, ended, err);
    if (!*ended) return MS_OK;
    s->first_install = (s->first_install + 1) % MS_TICKETS;
    s->install_count--;
    ms_reader_release(s->reader, in->buffer);
    return finish(s, in->index, st, err);
}

/* Ends what has ended, and as many as it takes to leave at most `most` at work. */
static ms_status end_installs(ms_expert_service *s, uint32_t most, ms_error *err) {
    uint64_t start = s->watch ? ms_clock_ns() : 0;
    for (bool ended = true; ended && s->install_count;) MS_TRY(end_install(s, s->install_count > most, &ended, err));
    if (s->watch) s->account.install_ns += ms_clock_ns() - start;
    return MS_OK;
}

/* Begins to move one landed expert out of staging. */
static ms_status take(ms_expert_service *s, const ms_read_done *done, ms_expert_ready *ready, ms_error *err) {
    uint32_t i = (uint32_t)done->tag;
    ms_want *w = &s->wants[i];
    if (done->status != MS_OK) {
        ms_reader_release(s->reader, done->buffer);
        if (err) *err = done->error;
        fail_context(s, w->expert, err);
        return done->status;
    }
    if (s->left == 1) s->times.landed_ns = ms_clock_ns();
    uint8_t *slot = w->kind == MS_WANT_FILL ? slot_address(s, w->slot) : s->scratch + s->next_scratch * s->expert_bytes;
    uint32_t ticket;
    ms_status st;
    if (s->blocks)
        st = ms_block_install_run(s->blocks, slot, s->layer, w->expert, done->data, err);
    else
        st = s->backend->install_begin(s->backend, slot, done->data, s->options.shape, &ticket, err);
    if (st != MS_OK || s->blocks) { /* a block is in its slot already */
        ms_reader_release(s->reader, done->buffer);
        MS_TRY(finish(s, i, st, err));
    } else {
        s->installs[(s->first_install + s->install_count) % MS_TICKETS] = (installing){i, ticket, done->buffer};
        s->install_count++;
    }
    if (w->kind != MS_WANT_FILL) s->next_scratch = (s->next_scratch + 1) % MS_SCRATCH_SLOTS;
    *ready = (ms_expert_ready){.index = i, .slot = slot};
    s->left--;
    s->account.completions++;
    return MS_OK;
}

ms_status ms_expert_next(ms_expert_service *s, ms_expert_ready *ready, uint32_t *count, ms_error *err) {
    *count = 0;
    if (!s->open) return ms_fail(err, MS_ERR_INTERNAL, "no expert request is open");
    if (!s->hits_given) {
        if (s->watch) s->account.first_ns = ms_clock_ns();
        s->hits_given = true;
        for (uint32_t i = 0; i < s->count; i++)
            if (s->wants[i].kind == MS_WANT_HIT)
                ready[(*count)++] = (ms_expert_ready){.index = i, .slot = slot_address(s, s->wants[i].slot)};
        if (*count) return MS_OK;
    }
    /* Wait for one, then take what has landed beside it.  A buffer must be free to read into. */
    uint32_t buffers = s->options.staging < MS_TICKETS ? s->options.staging : MS_TICKETS;
    for (bool got = true; s->left && *count < s->landing;) {
        ms_read_done done;
        MS_TRY(end_installs(s, buffers - 1, err));
        s->account.wait_calls += *count == 0;
        MS_TRY(next_landed(s, *count == 0, &done, &got, err));
        if (!got) break;
        MS_TRY(take(s, &done, &ready[*count], err));
        (*count)++;
    }
    return end_installs(s, *count ? buffers - 1 : 0, err);
}

void ms_expert_end(ms_expert_service *s) {
    if (!s->open) return;
    if (s->left) cancel_reads(s); /* given up */
    for (bool ended; s->install_count;) (void)end_install(s, true, &ended, NULL);
    for (uint32_t i = 0; i < s->count; i++) {
        const ms_want *w = &s->wants[i];
        if (w->kind == MS_WANT_STREAM) continue;
        if (w->kind == MS_WANT_FILL && !s->committed[i])
            (void)ms_cache_abort(s->cache, s->layer, w, false, NULL);
        else
            (void)ms_cache_release(s->cache, s->layer, w, NULL);
    }
    s->open = false;
    if (s->watch && s->hits_given && !s->left) end_account(s);
}

void ms_expert_service_observe(ms_expert_service *s, ms_expert_observer *observer, void *arg) {
    s->observer = observer;
    s->observer_arg = arg;
}

void ms_expert_service_watch(ms_expert_service *s, const ms_expert_watch *watch) { s->watch = watch; }
const ms_expert_watch *ms_expert_service_watching(const ms_expert_service *s) { return s->watch; }

uint32_t ms_expert_service_resident(const ms_expert_service *s, uint32_t moe_layer, uint32_t *out) {
    return ms_cache_ranked(s->cache, moe_layer, out);
}

ms_status ms_expert_service_forget(ms_expert_service *s, ms_error *err) {
    if (s->open) return ms_fail(err, MS_ERR_INTERNAL, "an expert request is open");
    cancel_reads(s);
    return ms_cache_clear(s->cache, err);
}

/* The memory of slots [first, slots) of a layer. */
static void discard_slots(ms_expert_service *s, uint32_t layer, uint32_t first) {
    for (uint32_t slot = first; slot < s->options.slots;) {
        uint32_t chunk = slot / s->chunk_slots, end = (chunk + 1) * s->chunk_slots;
        if (end > s->options.slots) end = s->options.slots;
        uint8_t *base = s->slot_chunks[(size_t)layer * s->layer_chunks + chunk];
        size_t skip = (size_t)((slot % s->chunk_slots) * s->expert_bytes),
               bytes = (size_t)((end - slot) * s->expert_bytes);
        s->backend->discard(s->backend, base + skip, bytes);
        s->lent_bytes += bytes;
        slot = end;
    }
}

ms_status ms_expert_service_lend(ms_expert_service *s, uint32_t slots, ms_error *err) {
    if (s->open) return ms_fail(err, MS_ERR_INTERNAL, "an expert request is open");
    if (slots > s->options.lent || (slots && !s->backend->discard))
        return ms_fail(err, MS_ERR_INTERNAL, "expected at most %u slots to lend, found %u", s->options.lent, slots);
    uint32_t first = s->options.slots - slots;
    MS_TRY(ms_cache_limit(s->cache, first, err));
    for (uint32_t layer = 0; layer < s->table->layer_count; layer++) discard_slots(s, layer, first);
    return MS_OK;
}

void ms_expert_service_stats(const ms_expert_service *s, ms_engine_stats *out) {
    ms_cache_stats c;
    ms_reader_stats r;
    ms_cache_get_stats(s->cache, &c);
    ms_reader_get_stats(s->reader, &r);
    *out = (ms_engine_stats){.expert_accesses = c.accesses,
                             .expert_hits = c.hits,
                             .expert_fills = c.fills,
                             .decode_ns = s->blocks ? ms_block_install_ns(s->blocks) : 0,
                             .expert_streams = c.streams,
                             .expert_evictions = c.evictions,
                             .expert_reads = r.reads,
                             .expert_read_bytes = r.read_bytes,
                             .failed_reads = r.failed_reads,
                             .read_wait_ns = r.wait_ns,
                             .read_busy_ns = r.busy_ns,
                             .buffered_files = r.buffered_files,
                             .workspace_borrow_bytes = s->lent_bytes,
                             .guessed_reads = s->ahead_reads,
                             .guesses_used = s->ahead_used,
                             .direct = r.direct,
                             .uring = r.uring};
}

ms_status ms_expert_service_check(ms_expert_service *s, ms_error *err) {
    if (s->open) return ms_fail(err, MS_ERR_INTERNAL, "an expert request is open");
    if (s->ahead_limit) cancel_reads(s);
    if (ms_reader_pending(s->reader)) return ms_fail(err, MS_ERR_INTERNAL, "expert reads are pending");
    MS_TRY(ms_cache_check(s->cache, err));
    return ms_cache_clear(s->cache, err);
}

ms_reader *ms_expert_service_reader(ms_expert_service *s) { return s->reader; }
