/* mzg2_parallel.h: decoding one block on many threads: a pool function over pieces of a few tiles.
 *
 * Threads: ms_mzg2_parallel_task on any number; begin and end on one.
 */
#ifndef MS_STORE_MZG2_PARALLEL_H
#define MS_STORE_MZG2_PARALLEL_H

#include <stdatomic.h>

#include "store/mzg2.h"

typedef struct ms_mzg2_parallel {
    const ms_mzg2_codec *codec;
    void *slot;
    const ms_mzg2_block *block;
    const ms_mzg2_tables *tables;
    uint32_t step;             /* tiles a task */
    atomic_uint_least64_t bad; /* the first bad tile and its fault; UINT64_MAX: none */
} ms_mzg2_parallel;

/* How many tasks to run. */
size_t ms_mzg2_parallel_begin(ms_mzg2_parallel *p, void *slot, const ms_mzg2_block *block,
                              const ms_mzg2_tables *tables);
void ms_mzg2_parallel_task(void *p, size_t task, unsigned worker); /* a ms_pool_fn */
/* After all tasks.  A scale byte 255 is an error too, as in experts that are read raw. */
ms_status ms_mzg2_parallel_end(ms_mzg2_parallel *p, ms_error *err);

#endif
