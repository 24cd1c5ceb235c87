#include "nn/block_install.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/pool.h"
#include "store/mzg2_parallel.h"

struct ms_block_install {
    ms_backend *backend;
    const ms_mzg2_store *store;
    ms_expert_shape shape;
    ms_mzg2_tables *tables;
    uint32_t layer; /* of the tables; UINT32_MAX: none yet */
    uint8_t *bounce;
    ms_pool *pool;
    uint64_t ns;
};

uint64_t ms_block_install_bytes(ms_expert_shape shape, bool bounce) {
    return sizeof(ms_block_install) + sizeof(ms_mzg2_tables) + (bounce ? ms_expert_bytes(shape) : 0);
}

ms_status ms_block_install_create(ms_block_install **out, ms_backend *be, const ms_mzg2_store *store, ms_expert_shape shape,
                                  ms_error *err) {
    ms_block_install *b = calloc(1, sizeof *b);
    if (!b) return ms_fail_memory(err, "expert decoder", sizeof *b);
    *b = (ms_block_install){.backend = be, .store = store, .shape = shape, .layer = UINT32_MAX};
    b->tables = calloc(1, sizeof *b->tables);
    ms_status st = b->tables ? MS_OK : ms_fail_memory(err, "expert decoder", sizeof *b->tables);
    if (st == MS_OK && !be->install_block) {
        st = be->alloc(be, MS_MEM_STAGING, ms_expert_bytes(shape), "decoded expert", (void **)&b->bounce, err);
        if (st == MS_OK) st = ms_pool_create(&b->pool, 0, err);
    }
    if (st == MS_OK) *out = b;
    else ms_block_install_destroy(b);
    return st;
}

void ms_block_install_destroy(ms_block_install *b) {
    if (!b) return;
    if (b->bounce) b->backend->release(b->backend, MS_MEM_STAGING, b->bounce, ms_expert_bytes(b->shape));
    ms_pool_destroy(b->pool);
    free(b->tables);
    free(b);
}

static ms_status run(ms_block_install *b, void *slot, const ms_mzg2_block *block, ms_error *err) {
    if (b->backend->install_block) return b->backend->install_block(b->backend, slot, block, b->tables, err);
    ms_mzg2_parallel p;
    size_t tasks = ms_mzg2_parallel_begin(&p, b->bounce, block, b->tables);
    ms_pool_run(b->pool, ms_mzg2_parallel_task, &p, tasks);
    MS_TRY(ms_mzg2_parallel_end(&p, err));
    b->backend->upload(b->backend, slot, b->bounce, ms_expert_bytes(b->shape));
    return b->backend->sync(b->backend, err); /* the buffer is written again */
}

ms_status ms_block_install_run(ms_block_install *b, void *slot, uint32_t moe_layer, uint32_t expert, const uint8_t *data,
                               ms_error *err) {
    uint64_t begin = ms_clock_ns();
    const ms_mzg2_layer *layer = ms_mzg2_store_layer(b->store, moe_layer);
    ms_mzg2_block block;
    if (moe_layer != b->layer) {
        ms_mzg2_tables_expand(b->tables, layer);
        b->layer = moe_layer;
    }
    MS_TRY(ms_mzg2_block_open(&block, data, layer->index[expert].stored_bytes, expert, b->shape, err));
    MS_TRY(run(b, slot, &block, err));
    b->ns += ms_clock_ns() - begin;
    return MS_OK;
}

uint64_t ms_block_install_ns(const ms_block_install *b) { return b->ns; }
