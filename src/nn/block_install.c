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
    uint32_t layer;  /* of the tables; UINT32_MAX: none yet */
    uint8_t *bounce; /* slot layout, on its way to a device that does not decode */
    ms_pool *pool;
    uint8_t *device; /* of a device that does: tables, fault word, block */
    uint64_t ns;
};

/* Parts of `device`. */
enum { BAD_AT = (sizeof(ms_mzg2_tables) + 63) / 64 * 64, BLOCK_AT = BAD_AT + 64, NAN_SCALE = 255 };

static size_t device_bytes(ms_expert_shape shape) { return BLOCK_AT + ms_mzg2_block_max_bytes(shape); }

void ms_block_install_bytes(const ms_backend *be, ms_expert_shape shape, uint64_t *host, uint64_t *device) {
    bool bounce = !be->install_block && !be->decode_blocks;
    *host = sizeof(ms_block_install) + sizeof(ms_mzg2_tables) + (bounce ? ms_expert_bytes(shape) : 0);
    *device = be->install_block || bounce ? 0 : device_bytes(shape);
}

static ms_status create_buffers(ms_block_install *b, ms_error *err) {
    ms_backend *be = b->backend;
    b->tables = calloc(1, sizeof *b->tables);
    if (!b->tables) return ms_fail_memory(err, "expert decoder", sizeof *b->tables);
    if (be->install_block) return MS_OK;
    if (be->decode_blocks)
        return be->alloc(be, MS_MEM_DEVICE, device_bytes(b->shape), "compressed expert", (void **)&b->device, err);
    MS_TRY(be->alloc(be, MS_MEM_STAGING, ms_expert_bytes(b->shape), "decoded expert", (void **)&b->bounce, err));
    return ms_pool_create(&b->pool, 0, err);
}

ms_status ms_block_install_create(ms_block_install **out, ms_backend *be, const ms_mzg2_store *store,
                                  ms_expert_shape shape, ms_error *err) {
    ms_block_install *b = calloc(1, sizeof *b);
    if (!b) return ms_fail_memory(err, "expert decoder", sizeof *b);
    *b = (ms_block_install){.backend = be, .store = store, .shape = shape, .layer = UINT32_MAX};
    ms_status st = create_buffers(b, err);
    if (st == MS_OK)
        *out = b;
    else
        ms_block_install_destroy(b);
    return st;
}

void ms_block_install_destroy(ms_block_install *b) {
    if (!b) return;
    if (b->bounce) b->backend->release(b->backend, MS_MEM_STAGING, b->bounce, ms_expert_bytes(b->shape));
    if (b->device) b->backend->release(b->backend, MS_MEM_DEVICE, b->device, device_bytes(b->shape));
    ms_pool_destroy(b->pool);
    free(b->tables);
    free(b);
}

/* Waits for the fault word, and with it for the slot. */
static ms_status run_on_device(ms_block_install *b, void *slot, const ms_mzg2_block *block, ms_error *err) {
    ms_backend *be = b->backend;
    const uint8_t *dev_block = b->device + BLOCK_AT;
    uint32_t bad = UINT32_MAX, *dev_bad = (uint32_t *)(void *)(b->device + BAD_AT);
    be->upload(be, b->device + BLOCK_AT, block->data, block->length);
    be->upload(be, dev_bad, &bad, sizeof bad);
    be->decode_blocks(be, &slot, &dev_block, 1, (const ms_mzg2_tables *)(const void *)b->device, b->shape, dev_bad);
    be->download(be, &bad, dev_bad, sizeof bad);
    MS_TRY(be->sync(be, err));
    if (bad == UINT32_MAX) return MS_OK;
    if ((bad & 0xff) == NAN_SCALE)
        return ms_fail(err, MS_ERR_FORMAT, "tile %u: expected scale bytes 0..254, found 255 (NaN)",
                       (unsigned)(bad >> 8));
    return ms_mzg2_fault_fail((ms_mzg2_fault)(bad & 0xff), bad >> 8, err);
}

static ms_status run(ms_block_install *b, void *slot, const ms_mzg2_block *block, ms_error *err) {
    if (b->backend->install_block) return b->backend->install_block(b->backend, slot, block, b->tables, err);
    if (b->device) return run_on_device(b, slot, block, err);
    ms_mzg2_parallel p;
    size_t tasks = ms_mzg2_parallel_begin(&p, b->bounce, block, b->tables);
    ms_pool_run(b->pool, ms_mzg2_parallel_task, &p, tasks);
    MS_TRY(ms_mzg2_parallel_end(&p, err));
    b->backend->upload(b->backend, slot, b->bounce, ms_expert_bytes(b->shape));
    return b->backend->sync(b->backend, err); /* the buffer is written again */
}

ms_status ms_block_install_run(ms_block_install *b, void *slot, uint32_t moe_layer, uint32_t expert,
                               const uint8_t *data, ms_error *err) {
    uint64_t begin = ms_clock_ns();
    const ms_mzg2_layer *layer = ms_mzg2_store_layer(b->store, moe_layer);
    ms_mzg2_block block;
    if (moe_layer != b->layer) {
        ms_mzg2_tables_expand(b->tables, layer);
        if (b->device) b->backend->upload(b->backend, b->device, b->tables, sizeof *b->tables);
        b->layer = moe_layer;
    }
    MS_TRY(ms_mzg2_block_open(&block, data, layer->index[expert].stored_bytes, expert, b->shape, err));
    MS_TRY(run(b, slot, &block, err));
    b->ns += ms_clock_ns() - begin;
    return MS_OK;
}

uint64_t ms_block_install_ns(const ms_block_install *b) { return b->ns; }
