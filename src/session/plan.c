/* plan.c: the ledger.  Every allocation that lasts has its line here, from the same size functions the owners use. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/loader.h"
#include "base/bytes.h"
#include "base/memory_limit.h"
#include "nn/block_install.h"
#include "session/loader.h"
#include "session/session_internal.h"
#include "session/store_choice.h"

/* Code, libraries and heap slack: a chat program with one thread and a small vocabulary peaks (VmHWM) 3.3 MB above its
 * planned buffers; other C libraries may need more. */
#define PROCESS_BASE_BYTES (6ull << 20)
/* A rank file and what is made of it: about 17 bytes an id, twice, an offset of 4 and up to four hash slots of 8. */
enum { TEXT_BYTES_PER_ID = 72 };
/* A pool thread's touched stack and bookkeeping: 13 KB measured with 256 threads. */
enum { THREAD_BYTES = 32 << 10 };
#define DEVICE_RESERVE (1ull << 30)
enum { DEVICE_GRAIN = 64 }; /* allocations are rounded up: one part in so many of its memory (1.15 % seen) */
enum {
    DEFAULT_SLOTS = 32,
    DEFAULT_STAGING = 16,
    DEFAULT_RANGE = 512,
    AUTO_RANGE = 16384,
    DEFAULT_CONTEXT = 8192,
    MAX_RANGE = 1 << 20
};
#define LOGIT_BATCH_BYTES (4ull << 20)
enum { DIRECTORY_NAME_BYTES = 96 }; /* longer than the average tensor name of any lane */

void ms_engine_options_default(ms_engine_options *o, const char *model) {
    *o = (ms_engine_options){.model = model, .experts = MS_DEFAULT_EXPERTS, .reserve_bytes = MS_DEFAULT_RESERVE};
}

static uint64_t min_u64(uint64_t a, uint64_t b) { return a < b ? a : b; }

static ms_status resolve(const ms_model *m, const ms_engine_options *in, ms_engine_options *o, ms_error *err) {
    const ms_lane_info *info = &m->info;
    *o = *in;
    if (o->context == 0) o->context = min_u64(DEFAULT_CONTEXT, info->max_context);
    if (o->context > info->max_context)
        return ms_fail(err, MS_ERR_USAGE, "context %llu: the model's maximum is %llu", (unsigned long long)o->context,
                       (unsigned long long)info->max_context);
    if (o->experts == MS_DEFAULT_EXPERTS) o->experts = (uint32_t)min_u64(DEFAULT_SLOTS, info->experts);
    if (o->experts > info->experts)
        return ms_fail(err, MS_ERR_USAGE, "experts %u: expected 0 to %u, the experts of a layer", o->experts,
                       info->experts);
    if (o->staging == 0) o->staging = DEFAULT_STAGING;
    if (o->staging > 1024) return ms_fail(err, MS_ERR_USAGE, "staging %u: expected 1 to 1024", o->staging);
    if (o->read_depth > o->staging) o->read_depth = o->staging;
    if (o->range_rows == 0) o->range_rows = DEFAULT_RANGE;
    if (o->range_rows == MS_RANGE_AUTO) {
        o->range_rows = (uint32_t)min_u64(AUTO_RANGE, o->context);
        return MS_OK;
    }
    if (o->range_rows > MAX_RANGE)
        return ms_fail(err, MS_ERR_USAGE, "range %u: expected 1 to %d", o->range_rows, MAX_RANGE);
    o->range_rows = (uint32_t)min_u64(o->range_rows, o->context);
    return MS_OK;
}

/* Sizes that no machine has stay that large instead of wrapping. */
static uint64_t sum_or_max(uint64_t a, uint64_t b) {
    uint64_t sum;
    return ms_add_u64(a, b, &sum) ? sum : UINT64_MAX;
}
static uint64_t product_or_max(uint64_t a, uint64_t b) {
    uint64_t product;
    return ms_mul_u64(a, b, &product) ? product : UINT64_MAX;
}

typedef struct ledger {
    ms_plan *plan;
    size_t cap;
    bool failed;
} ledger;

typedef enum place { HOST, DEVICE } place;

/* DEVICE is the host's memory too where the backend has none of its own. */
static void add(ledger *l, place where, const char *group, const char *name, uint64_t bytes) {
    ms_plan *p = l->plan;
    if (bytes == 0 || l->failed) return;
    bool device = where == DEVICE && p->has_device;
    uint64_t *total = device ? &p->device_total_bytes : &p->total_bytes;
    for (size_t i = 0; i < p->item_count; i++) /* same line twice: one sum */
        if (p->items[i].group == group && p->items[i].device == device && !strcmp(p->items[i].name, name)) {
            p->items[i].bytes = sum_or_max(p->items[i].bytes, bytes);
            *total = sum_or_max(*total, bytes);
            return;
        }
    if (p->item_count == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 32;
        ms_plan_item *items = realloc(p->items, cap * sizeof *items);
        if (!items) {
            l->failed = true;
            return;
        }
        p->items = items;
        l->cap = cap;
    }
    p->items[p->item_count++] = (ms_plan_item){group, name, bytes, device};
    *total = sum_or_max(*total, bytes);
}

static const char g_static[] = "static", g_cache[] = "cache", g_state[] = "state", g_staging[] = "staging",
                  g_workspace[] = "workspace", g_process[] = "process";

static ms_status plan_statics(ledger *l, const ms_model *m, const ms_engine_options *o, ms_error *err) {
    static const char *const names[] = {[MS_FORMAT_F32] = "f32 vectors", [MS_FORMAT_BF16] = "bf16 weights",
                                        [MS_FORMAT_Q8] = "q8 weights", [MS_FORMAT_FP8] = "fp8 weights"};
    ms_static_list list = {0};
    ms_status st = m->lane->statics(m->config, o->static_format, &list, err);
    for (size_t i = 0; i < list.count; i++)
        add(l, DEVICE, g_static, names[list.items[i].format], ms_static_item_bytes(m->checkpoint, &list.items[i]));
    ms_static_list_free(&list);
    return st;
}

static ms_status plan_state(ledger *l, const ms_model *m, const ms_engine_options *o, ms_error *err) {
    uint32_t n = m->lane->state_parts(m->config, o->precision, NULL);
    ms_state_part *parts = calloc(n ? n : 1, sizeof *parts);
    if (!parts) return ms_fail_memory(err, "state parts", n * sizeof *parts);
    m->lane->state_parts(m->config, o->precision, parts);
    ms_state_size_rings(parts, n, o->range_rows);
    uint64_t fixed = 0, copied = 0;
    for (uint32_t i = 0; i < n; i++) {
        add(l, DEVICE, g_state, parts[i].kind, ms_state_memory_bytes(&parts[i], o->context));
        if (!parts[i].window) l->plan->state_bytes_per_token += parts[i].row_bytes;
        fixed = sum_or_max(fixed, parts[i].bytes);
        copied = sum_or_max(copied, ms_state_snapshot_bytes(&parts[i]));
    }
    free(parts);
    add(l, DEVICE, g_state, "pass in progress", fixed);
    add(l, DEVICE, g_state, "snapshots", product_or_max(copied, o->snapshots));
    add(l, HOST, g_state, "kept states", o->kept_state_bytes);
    add(l, HOST, g_state, "token history", o->context * sizeof(uint32_t));
    return MS_OK;
}

uint32_t ms_plan_logit_rows(const ms_lane_info *info, const ms_engine_options *o) {
    uint64_t rows = LOGIT_BATCH_BYTES / (4ull * info->vocab);
    return (uint32_t)min_u64(rows ? rows : 1, o->range_rows);
}

static ms_status plan_workspace(ledger *l, const ms_model *m, const ms_engine_options *o, ms_backend *be,
                                ms_error *err) {
    uint32_t rows = l->plan->usual_rows, n = m->lane->workspace(m->config, rows, NULL);
    ms_workspace_item *items = calloc(n ? n : 1, sizeof *items);
    if (!items) return ms_fail_memory(err, "workspace items", n * sizeof *items);
    m->lane->workspace(m->config, rows, items);
    for (uint32_t i = 0; i < n; i++) add(l, items[i].host ? HOST : DEVICE, g_workspace, items[i].name, items[i].bytes);
    free(items);
    ms_scratch_need need;
    m->lane->scratch_need(m->config, rows, o->context, &need);
    uint64_t scratch = be->scratch_bytes(be, &need), host = be->scratch_host_bytes(be, &need);
    add(l, DEVICE, g_workspace, "kernel scratch", scratch - host);
    add(l, HOST, g_workspace, "kernel scratch", host);
    /* device rows as f32; on the host one pass as stored and widened */
    uint64_t embedding = (uint64_t)rows * m->info.hidden, logits = 4ull * m->info.vocab;
    add(l, DEVICE, g_workspace, "embedding rows", embedding * 4);
    add(l, HOST, g_workspace, "embedding rows", embedding * (4 + 2));
    uint64_t batch = ms_plan_logit_rows(&m->info, o);
    add(l, DEVICE, g_workspace, "logits", logits * batch);
    add(l, HOST, g_workspace, "logits", logits * (1 + batch));
    return MS_OK;
}

static void plan_experts(ledger *l, const ms_model *m, const ms_engine_options *o) {
    ms_expert_service_options eo = {.shape = m->info.expert_shape,
                                    .slots = o->experts,
                                    .lent = l->plan->lent_slots,
                                    .staging = o->staging,
                                    .read_depth = o->read_depth};
    add(l, DEVICE, g_cache, "expert slots", ms_expert_slot_bytes_total(&m->experts, &eo));
    add(l, HOST, g_staging, "expert read buffers", ms_expert_staging_bytes_total(&m->experts, &eo));
    add(l, DEVICE, g_staging, "expert scratch slots", ms_expert_scratch_bytes_total(&m->experts, &eo));
}

static void plan_process(ledger *l, const ms_model *m, const ms_engine_options *o, const ms_backend *be) {
    ms_expert_service_options eo = {.slots = o->experts};
    add(l, HOST, g_process, "expert tables", ms_expert_table_bytes_total(&m->experts, &eo));
    add(l, HOST, g_process, "tensor directory",
        ms_checkpoint_tensor_count(m->checkpoint) * (sizeof(ms_tensor) + DIRECTORY_NAME_BYTES));
    if (m->store) {
        uint64_t host, device;
        ms_block_install_bytes(be, m->info.expert_shape, &host, &device);
        add(l, HOST, g_process, "compressed store", sum_or_max(host, ms_mzg2_store_memory(m->store)));
        add(l, DEVICE, g_staging, "compressed expert", device);
    }
    add(l, HOST, g_process, "text tables", (uint64_t)m->info.vocab * TEXT_BYTES_PER_ID);
    add(l, HOST, g_process, "threads", (uint64_t)be->threads * THREAD_BYTES);
    add(l, HOST, g_process, "program", PROCESS_BASE_BYTES);
}

/* Scratch sizes depend on kernels and threads, so the backend that will run answers for them.  p has usual_rows and
 * lent_slots. */
static ms_status fill(ms_plan *p, const ms_model *m, const ms_engine_options *o, ms_backend *be, ms_error *err) {
    ledger l = {.plan = p};
    uint64_t device_bytes;
    be->device_memory(be, &device_bytes, &p->device_available_bytes);
    p->has_device = device_bytes != 0;
    if (p->has_device)
        p->device_reserve_bytes = min_u64(DEVICE_RESERVE, device_bytes / 20) + device_bytes / DEVICE_GRAIN;
    (void)snprintf(p->lane, sizeof p->lane, "%s", m->lane->name);
    p->model_source = ms_model_source(m);
    p->expert_store = ms_model_expert_store(m);
    p->context = o->context;
    p->experts = o->experts;
    p->experts_all = m->info.experts;
    p->moe_layers = m->info.moe_layer_count;
    p->range_rows = o->range_rows;
    p->staging = o->staging;
    p->expert_bytes = m->experts.expert_bytes;

    ms_status st = plan_statics(&l, m, o, err);
    plan_experts(&l, m, o);
    if (st == MS_OK) st = plan_state(&l, m, o, err);
    if (st == MS_OK) st = plan_workspace(&l, m, o, be, err);
    if (st != MS_OK) return st;
    plan_process(&l, m, o, be);
    if (l.failed) return ms_fail_memory(err, "plan", 0);
    return MS_OK;
}

/* Slots that fit beside everything else, which is `p`, into what the device has free now, less its reserve. */
static uint32_t slots_that_fit(const ms_plan *p, const ms_model *m) {
    uint64_t layer = product_or_max(m->experts.layer_count, m->experts.expert_bytes);
    uint64_t taken = sum_or_max(p->device_total_bytes, p->device_reserve_bytes);
    uint64_t fit = layer && p->device_available_bytes > taken ? (p->device_available_bytes - taken) / layer : 0;
    return (uint32_t)min_u64(fit, m->info.experts);
}

static void judge(ms_plan *p, const ms_engine_options *o, const ms_memory_limit *limit) {
    p->available_bytes = limit->limit_bytes;
    p->reserve_bytes =
        o->reserve_bytes != MS_DEFAULT_RESERVE ? o->reserve_bytes : min_u64(4ull << 30, p->available_bytes / 10);
    p->fits = sum_or_max(p->total_bytes, p->reserve_bytes) <= p->available_bytes &&
              sum_or_max(p->device_total_bytes, p->device_reserve_bytes) <= p->device_available_bytes;
}

static ms_status plan_with(ms_plan **out, const ms_model *m, const ms_engine_options *o, ms_backend *be,
                           const ms_memory_limit *limit, uint32_t usual_rows, uint32_t lent_slots, ms_error *err) {
    ms_plan *p = calloc(1, sizeof *p);
    if (!p) return ms_fail_memory(err, "plan", sizeof *p);
    p->usual_rows = usual_rows;
    p->lent_slots = lent_slots;
    ms_status st = fill(p, m, o, be, err);
    if (st != MS_OK) {
        ms_plan_destroy(p);
        return st;
    }
    judge(p, o, limit);
    *out = p;
    return MS_OK;
}

/* Slots a layer that a long pass has to borrow to fit; 0: not even all of them are enough. */
static uint32_t slots_to_lend(const ms_plan *long_pass, const ms_model *m, const ms_engine_options *o, uint64_t *bytes) {
    uint64_t want = sum_or_max(long_pass->total_bytes, long_pass->reserve_bytes);
    ms_expert_service_options eo = {.slots = o->experts};
    uint64_t missing = want - long_pass->available_bytes;
    for (eo.lent = 1; eo.lent <= o->experts; eo.lent++) {
        *bytes = ms_expert_lent_bytes(&m->experts, &eo);
        if (*bytes >= missing) return eo.lent;
    }
    return 0;
}

/* A plan whose long passes borrow slots; *out stays NULL when that does not fit either. */
static ms_status plan_loan(ms_plan **out, const ms_model *m, const ms_engine_options *o, ms_backend *be,
                           const ms_memory_limit *limit, ms_error *err) {
    ms_plan *usual, *longer;
    *out = NULL;
    uint32_t rows = (uint32_t)min_u64(DEFAULT_RANGE, o->range_rows);
    if (rows == o->range_rows || !be->discard || o->experts == 0) return MS_OK;
    MS_TRY(plan_with(&usual, m, o, be, limit, rows, 1, err));
    ms_status st = plan_with(&longer, m, o, be, limit, o->range_rows, 1, err);
    if (st == MS_OK) {
        usual->lent_slots = longer->fits ? 0 : slots_to_lend(longer, m, o, &usual->lent_bytes);
        ms_plan_destroy(longer);
    }
    if (st == MS_OK && usual->fits && usual->lent_slots) {
        *out = usual;
    } else {
        ms_plan_destroy(usual);
    }
    return st;
}

static ms_status make_plan(ms_plan **out, const ms_model *m, const ms_engine_options *o, ms_backend *be,
                           const ms_memory_limit *limit, ms_error *err) {
    ms_plan *p, *loan;
    MS_TRY(plan_with(&p, m, o, be, limit, o->range_rows, 0, err));
    ms_status st = p->fits || p->has_device ? MS_OK : plan_loan(&loan, m, o, be, limit, err);
    if (st != MS_OK || p->fits || p->has_device || !loan) {
        if (st == MS_OK) *out = p;
        else ms_plan_destroy(p);
        return st;
    }
    ms_plan_destroy(p);
    *out = loan;
    return MS_OK;
}

/* A device with memory of its own gets as many slots as fit beside everything else, with passes of the usual length. */
static ms_status fill_device(const ms_model *m, ms_engine_options *o, bool any_range, ms_backend *be,
                             const ms_memory_limit *limit, ms_error *err) {
    uint64_t device_bytes, device_free;
    be->device_memory(be, &device_bytes, &device_free);
    if (!device_bytes) return MS_OK;
    uint32_t rows = o->range_rows;
    if (any_range) o->range_rows = (uint32_t)min_u64(DEFAULT_RANGE, rows);
    o->experts = 0;
    ms_plan *p;
    MS_TRY(make_plan(&p, m, o, be, limit, err));
    o->experts = slots_that_fit(p, m);
    o->range_rows = rows;
    ms_plan_destroy(p);
    return MS_OK;
}

/* The plan with the longest passes that fit, for every expert is read once a pass.  What does not fit with the usual
 * passes, or fewer rows, stays refused. */
static ms_status longest_passes(ms_plan **out, const ms_model *m, ms_engine_options *o, ms_backend *be,
                                const ms_memory_limit *limit, ms_error *err) {
    uint32_t least = (uint32_t)min_u64(DEFAULT_RANGE, o->context), most = o->range_rows;
    while (least < most) {
        o->range_rows = most - (most - least) / 2;
        MS_TRY(make_plan(out, m, o, be, limit, err));
        bool fits = (*out)->fits;
        ms_plan_destroy(*out);
        if (fits)
            least = o->range_rows;
        else
            most = o->range_rows - 1;
    }
    o->range_rows = least;
    return make_plan(out, m, o, be, limit, err);
}

ms_status ms_plan_for_model(ms_plan **out, const ms_model *m, const ms_engine_options *options,
                            ms_engine_options *resolved, ms_backend **backend, ms_error *err) {
    MS_TRY(resolve(m, options, resolved, err));
    MS_TRY(ms_expert_dirs_check(resolved->expert_dirs, err));
    ms_backend *be = NULL;
    ms_backend_options bo = {.name = resolved->backend,
                             .precision = resolved->precision,
                             .threads = resolved->threads,
                             .kernels = resolved->kernels,
                             .range_blas = resolved->range_blas,
                             .log = resolved->log,
                             .log_arg = resolved->log_arg};
    MS_TRY(ms_backend_open(&be, &bo, err));
    ms_memory_limit limit;
    ms_plan *p = NULL;
    bool any_range = options->range_rows == MS_RANGE_AUTO;
    ms_status st = ms_memory_limit_read(&limit, NULL, err);
    if (st == MS_OK && options->memory_bytes && (!backend || options->memory_bytes < limit.limit_bytes))
        limit.limit_bytes = options->memory_bytes;
    if (st == MS_OK && options->experts == MS_DEFAULT_EXPERTS)
        st = fill_device(m, resolved, any_range, be, &limit, err);
    if (st == MS_OK)
        st = any_range ? longest_passes(&p, m, resolved, be, &limit, err)
                       : make_plan(&p, m, resolved, be, &limit, err);
    if (st != MS_OK || !backend) be->destroy(be);
    if (st != MS_OK) return st;
    if (backend) *backend = be;
    *out = p;
    return MS_OK;
}

ms_status ms_plan_create(ms_plan **out, const ms_engine_options *options, ms_error *err) {
    ms_model m;
    MS_TRY(ms_model_open_for(&m, options, err));
    ms_engine_options resolved;
    ms_status st = ms_plan_for_model(out, &m, options, &resolved, NULL, err);
    ms_model_close(&m);
    return st;
}

void ms_plan_destroy(ms_plan *p) {
    if (!p) return;
    free(p->items);
    free(p);
}

uint64_t ms_plan_group_bytes(const ms_plan *p, const char *group) {
    uint64_t sum = 0;
    for (size_t i = 0; i < p->item_count; i++)
        if (!strcmp(p->items[i].group, group)) sum += p->items[i].bytes;
    return sum;
}
