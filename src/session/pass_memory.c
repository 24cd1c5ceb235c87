#include "session/pass_memory.h"

#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"

ms_status ms_host_alloc(const char *what, uint64_t bytes, void **out, ms_error *err) {
    enum { LINE = 64 };
    size_t size = bytes < SIZE_MAX / 2 ? (size_t)ms_align_up(bytes ? bytes : 1, LINE) : 0;
    *out = size ? aligned_alloc(LINE, size) : NULL;
    if (!*out) return ms_fail_memory(err, what, (size_t)bytes);
    memset(*out, 0, size);
    return MS_OK;
}

static ms_status device_alloc(ms_engine *e, const char *what, uint64_t bytes, void **out, ms_error *err) {
    return e->backend->alloc(e->backend, MS_MEM_DEVICE, (size_t)bytes, what, out, err);
}

static uint64_t embedding_bytes(const ms_engine *e, uint32_t rows, size_t size) {
    return (uint64_t)rows * e->model.info.hidden * size;
}

static ms_status create_workspace(ms_pass_memory *m, ms_engine *e, ms_error *err) {
    const ms_lane *lane = e->model.lane;
    uint32_t n = lane->workspace(e->model.config, m->rows, NULL);
    MS_TRY(ms_host_alloc("workspace items", n * sizeof *m->items, (void **)&m->items, err));
    MS_TRY(ms_host_alloc("workspace table", n * sizeof *m->workspace, (void **)&m->workspace, err));
    lane->workspace(e->model.config, m->rows, m->items);
    m->item_count = n;
    for (uint32_t i = 0; i < n; i++) {
        const ms_workspace_item *w = &m->items[i];
        MS_TRY(w->host ? ms_host_alloc(w->name, w->bytes, &m->workspace[i], err)
                       : device_alloc(e, w->name, w->bytes, &m->workspace[i], err));
    }
    return MS_OK;
}

/* Sizes here are the ledger's workspace items, "kernel scratch" and "embedding rows". */
static ms_status create(ms_pass_memory *m, ms_engine *e, ms_error *err) {
    MS_TRY(ms_engine_reserve_scratch(e, m->rows, err));
    MS_TRY(create_workspace(m, e, err));
    MS_TRY(ms_host_alloc("embedding rows", embedding_bytes(e, m->rows, sizeof(uint16_t)), (void **)&m->embed_host, err));
    MS_TRY(ms_host_alloc("embedding rows", embedding_bytes(e, m->rows, sizeof(float)), (void **)&m->embed_f32, err));
    return device_alloc(e, "embedding rows", embedding_bytes(e, m->rows, sizeof(float)), (void **)&m->embedding, err);
}

ms_status ms_pass_memory_create(ms_pass_memory *m, ms_engine *e, uint32_t rows, ms_error *err) {
    if (m->rows == rows) return MS_OK;
    ms_pass_memory_destroy(m, e);
    m->rows = rows;
    ms_status st = create(m, e, err);
    if (st != MS_OK) ms_pass_memory_destroy(m, e);
    return st;
}

void ms_pass_memory_destroy(ms_pass_memory *m, ms_engine *e) {
    ms_backend *be = e->backend;
    for (uint32_t i = 0; m->workspace && i < m->item_count; i++) {
        if (m->items[i].host)
            free(m->workspace[i]);
        else if (m->workspace[i])
            be->release(be, MS_MEM_DEVICE, m->workspace[i], (size_t)m->items[i].bytes);
    }
    if (m->embedding)
        be->release(be, MS_MEM_DEVICE, m->embedding, (size_t)embedding_bytes(e, m->rows, sizeof(float)));
    free(m->workspace);
    free(m->items);
    free(m->embed_host);
    free(m->embed_f32);
    *m = (ms_pass_memory){0};
}

/* ------------------------------------------------------------------ long passes */

uint32_t ms_pass_rows(const ms_engine *e, size_t count) {
    const ms_plan *p = e->plan;
    if (!p->lent_slots || count <= p->usual_rows) return p->usual_rows;
    uint64_t usual = (count - 1) / p->usual_rows + 1, longer = (count - 1) / p->range_rows + 1;
    uint64_t spared = (usual - longer) * (p->experts_all - p->experts);
    if (spared <= p->lent_slots) return p->usual_rows;
    return (uint32_t)((count - 1) / longer + 1);
}

ms_status ms_pass_memory_borrow(ms_pass_memory *m, ms_engine *e, uint32_t rows, ms_error *err) {
    ms_pass_memory_destroy(m, e);
    MS_TRY(ms_expert_service_lend(e->experts, e->plan->lent_slots, err));
    return ms_pass_memory_create(m, e, rows, err);
}

ms_status ms_pass_memory_return(ms_pass_memory *m, ms_engine *e, ms_error *err) {
    ms_pass_memory_destroy(m, e);
    MS_TRY(ms_engine_reserve_scratch(e, e->plan->usual_rows, err)); /* before the slots fill again */
    MS_TRY(ms_expert_service_lend(e->experts, 0, err));
    return ms_pass_memory_create(m, e, e->plan->usual_rows, err);
}
