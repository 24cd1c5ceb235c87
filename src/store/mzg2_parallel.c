#include "store/mzg2_parallel.h"

#include <string.h>

enum { PIECE_BYTES = 128 << 10, NAN_SCALE = 255 }; /* faults are below that */

size_t ms_mzg2_parallel_begin(ms_mzg2_parallel *p, void *slot, const ms_mzg2_block *block,
                              const ms_mzg2_tables *tables) {
    p->codec = ms_mzg2_codec_find(NULL);
    p->slot = slot;
    p->block = block;
    p->tables = tables;
    /* even, so that tiles that decode side by side come together */
    p->step = 2 * (uint32_t)(PIECE_BYTES / 2 / (ms_expert_bytes(block->shape) / block->tiles + 1) + 1);
    atomic_init(&p->bad, UINT64_MAX);
    return (block->tiles + p->step - 1) / p->step;
}

static void note(ms_mzg2_parallel *p, uint32_t tile, unsigned fault) {
    uint64_t mine = (uint64_t)tile << 8 | fault, seen = atomic_load(&p->bad);
    while (mine < seen && !atomic_compare_exchange_weak(&p->bad, &seen, mine)) {}
}

void ms_mzg2_parallel_task(void *arg, size_t task, unsigned worker) {
    ms_mzg2_parallel *p = arg;
    (void)worker;
    uint32_t first = (uint32_t)task * p->step, left = p->block->tiles - first, count = left < p->step ? left : p->step,
             bad;
    ms_mzg2_fault f = ms_mzg2_decode_tiles(p->codec, p->slot, p->block, p->tables, first, count, &bad);
    if (f != MS_MZG2_GOOD) {
        note(p, bad, f);
        return;
    }
    for (uint32_t t = first; t < first + count; t++) {
        ms_expert_shape s = p->block->shape;
        uint32_t first_w2 = 2 * (s.inner / MS_MZG2_LANES);
        ms_expert_matrix m = t >= first_w2 ? MS_W2 : t % 2 == 0 ? MS_W1 : MS_W3;
        size_t groups = ms_expert_groups(s, m), at = ms_expert_tile_offset(s, m, m == MS_W2 ? t - first_w2 : t / 2);
        if (memchr((const uint8_t *)p->slot + at + groups * 512, 255, groups * MS_MZG2_LANES)) {
            note(p, t, NAN_SCALE);
            return;
        }
    }
}

ms_status ms_mzg2_parallel_end(ms_mzg2_parallel *p, ms_error *err) {
    uint64_t bad = atomic_load(&p->bad);
    if (bad == UINT64_MAX) return MS_OK;
    if ((bad & 0xff) == NAN_SCALE)
        return ms_fail(err, MS_ERR_FORMAT, "tile %u: expected scale bytes 0..254, found 255 (NaN)",
                       (unsigned)(bad >> 8));
    return ms_mzg2_fault_fail((ms_mzg2_fault)(bad & 0xff), (uint32_t)(bad >> 8), err);
}
