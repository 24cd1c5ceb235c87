/* expert_service.h: experts by (layer, id): cache, reader and install behind one call.
 *
 * A request names the experts one layer needs.  Hits can be used at once; misses are read in physical order into staging, and each is
 * installed into its cache slot, or into a scratch slot when the cache has no room, as it lands.  Where the backend installs beside
 * other work, reads, installs and products overlap; a staging buffer is read into again when its install has ended.
 *
 * Lookahead: a guess at the next request starts its reads early, behind those of the request that is open.  A guessed
 * expert waits in staging; the request takes it from there if it was right, and forgets it if not.  Guesses never enter the
 * cache, so they decide when bytes are read and nothing else.  They hold half of the staging buffers at most.
 *
 * A guess is worth the drive's rest between two layers and a wrong one costs a read, so it is measured what both take.
 *
 * Depth: a drive works on all reads that it has at a time, and they land together.  A request of a few reads gives it a few
 * at a time, enough to keep it busy: then the first can be worked on while the others come, and a guess that turns out
 * wrong has often not begun.
 *
 * Owns: slots, staging, reader, cache tables.  Does not own: backend, expert table.
 * Threads: the inference thread.
 * Invariants: at most one request is open; a slot handed out stays valid until the request ends, a scratch slot until the next
 *   ms_expert_next of the same request; what a backend was asked to do with it before that is done right.
 * Errors: a failed read ends the request: nothing read is lost, reserved slots keep their old experts; the next request works.
 *   A bad expert may be found after it was handed out, but before ms_expert_next says that all have been given.
 */
#ifndef MS_NN_EXPERT_SERVICE_H
#define MS_NN_EXPERT_SERVICE_H

#include "backend/backend.h"
#include "cache/expert_cache.h"
#include "io/reader.h"
#include "store/checkpoint.h"

typedef struct ms_expert_service ms_expert_service;

typedef struct ms_expert_service_options {
    ms_expert_shape shape;
    uint32_t slots;       /* a layer */
    uint32_t lent;        /* of them, most that are ever lent */
    uint32_t staging;     /* read buffers */
    uint32_t read_depth;  /* 0: as many as buffers, fewer for a request of a few reads */
    bool buffered, no_uring;
    bool lookahead; /* ms_expert_guess does something */
    const char *dirs; /* folders with copies of shards, separated by commas; NULL: none.  Experts take turns over the copies */
    uint64_t read_limit; /* bytes a second; 0: none */
    void (*warn)(void *arg, const char *text);
    void *warn_arg;
} ms_expert_service_options;

enum { MS_SCRATCH_SLOTS = 4 };

uint64_t ms_expert_slot_bytes_total(const ms_expert_table *t, const ms_expert_service_options *o);
/* What lending o->lent slots a layer gives back for certain. */
uint64_t ms_expert_lent_bytes(const ms_expert_table *t, const ms_expert_service_options *o);
uint64_t ms_expert_staging_bytes_total(const ms_expert_table *t, const ms_expert_service_options *o);
uint64_t ms_expert_scratch_bytes_total(const ms_expert_table *t, const ms_expert_service_options *o);
uint64_t ms_expert_table_bytes_total(const ms_expert_table *t, const ms_expert_service_options *o);

/* Whether every folder of such a list (`dirs`; NULL: none) is there. */
ms_status ms_expert_dirs_check(const char *dirs, ms_error *err);

ms_status ms_expert_service_create(ms_expert_service **out, ms_backend *be, const ms_checkpoint *c, const ms_expert_table *table,
                                   const ms_expert_service_options *options, ms_error *err);
void ms_expert_service_destroy(ms_expert_service *s);

/* Starts a request for distinct experts of routed layer index `moe_layer` (0-based among routed layers) and submits its reads.
 * uses: rows of each, for the cache; NULL: one each. */
ms_status ms_expert_request(ms_expert_service *s, uint32_t moe_layer, const uint32_t *experts, const uint32_t *uses,
                            uint32_t count, ms_error *err);

typedef struct ms_expert_ready {
    uint32_t index;   /* into the request's experts */
    const void *slot; /* device */
} ms_expert_ready;
/* Gives the next group of usable experts: first all hits, then misses as they land (at least one, at most MS_SCRATCH_SLOTS).
 * *count == 0: all have been given.  `ready` has room for the request's count. */
ms_status ms_expert_next(ms_expert_service *s, ms_expert_ready *ready, uint32_t *count, ms_error *err);
/* Experts (distinct, the surest first) that the next request will probably want, of the layer it will be for, which is
 * not that of an open request.  What is not resident is read, as far as half of the staging buffers goes and as keeps the
 * drive busy until then; an earlier guess is forgotten, except for what is under way of the same layer.  Never fails: the
 * request itself meets what a guess met. */
void ms_expert_guess(ms_expert_service *s, uint32_t moe_layer, const uint32_t *experts, uint32_t count);
/* Whether a guess for this layer is worth making now: lookahead is on, none has been made since the last request,
 * those for this layer have been right as often as not, and those for all layers often enough for what the drive would
 * rest between two layers beside the time of a read; or it is time to look again. */
bool ms_expert_wants_guess(const ms_expert_service *s, uint32_t moe_layer);
/* Experts of the open request are still to be read. */
bool ms_expert_waits(const ms_expert_service *s);
/* The open request has given all but the expert it reads last (where a backend works later: the last two, which may land
 * together): a guess now keeps the drive busy when that has landed. */
bool ms_expert_runs_dry(const ms_expert_service *s);
/* A guess at a request of nearly all experts of a layer, made by a range that has just asked for nearly all of another:
 * those that are not resident, in physical order, as far as buffers go.  Does nothing where a guess is not wanted. */
void ms_expert_guess_all(ms_expert_service *s, uint32_t moe_layer);

/* Ends the request, finished or not. */
void ms_expert_end(ms_expert_service *s);

/* Called in every request, after the cache has planned it: wants [count] in the order of the request.  NULL: nobody. */
typedef void ms_expert_observer(void *arg, uint32_t moe_layer, const ms_want *wants, uint32_t count);
void ms_expert_service_observe(ms_expert_service *s, ms_expert_observer *observer, void *arg);

/* What the request of one layer was, told when it has ended well. */
typedef struct ms_expert_account {
    uint32_t moe_layer, layer; /* among routed layers; of the model */
    const ms_want *wants;      /* [count], in the order of the request */
    uint32_t count;
    uint64_t miss_bytes;       /* stored bytes of the experts that were not resident */
    uint64_t wait_calls, completions, in_flight; /* of the request; most reads queued or under way */
    uint64_t planned_ns, first_ns, ended_ns;     /* the cache's plan; the first expert asked for; the end */
    uint64_t install_ns;                         /* waiting for installs */
    ms_reader_stats reader_before, reader;       /* at the plan and at the end, since the service was created */
} ms_expert_account;

/* Somebody who looks on.  Looking on changes no result and no read. */
typedef struct ms_expert_watch {
    void (*request)(void *arg, const ms_expert_account *account);
    /* The router's products for one row, before bias and choice; NULL: not wanted.  moe.c gives them. */
    void (*logits)(void *arg, uint32_t layer, const float *logits, uint32_t experts);
    void *arg;
    float *device, *host; /* [experts] each; with logits only */
} ms_expert_watch;
/* `watch` stays the caller's; NULL: nobody. */
void ms_expert_service_watch(ms_expert_service *s, const ms_expert_watch *watch);
const ms_expert_watch *ms_expert_service_watching(const ms_expert_service *s);
/* Between requests: the resident experts of a routed layer, coldest first, to out [experts]; returns how many. */
uint32_t ms_expert_service_resident(const ms_expert_service *s, uint32_t moe_layer, uint32_t *out);
/* Between requests: empties the cache and ends guessed reads. */
ms_status ms_expert_service_forget(ms_expert_service *s, ms_error *err);

/* Between requests: the last `slots` of every layer are not used, and their memory is the caller's until he lends fewer; what
 * was in them is forgotten.  0: all are used again.  At most options->lent, of a backend that can discard. */
ms_status ms_expert_service_lend(ms_expert_service *s, uint32_t slots, ms_error *err);

void ms_expert_service_stats(const ms_expert_service *s, ms_engine_stats *out);
/* For tests, between requests: the cache's invariants, nothing leased, no read pending.  Forgets what the cache holds. */
ms_status ms_expert_service_check(ms_expert_service *s, ms_error *err);
/* The reader, for failure injection in tests. */
ms_reader *ms_expert_service_reader(ms_expert_service *s);

#endif
