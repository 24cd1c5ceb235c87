/* cpu_install_block.c: compressed experts into slots, tiles spread over the workers. */
#include "backend/cpu/cpu.h"
#include "store/mzg2_parallel.h"

ms_status cpu_install_block(ms_backend *be, void *slot, const ms_mzg2_block *block, const ms_mzg2_tables *tables,
                            ms_error *err) {
    ms_mzg2_parallel p;
    size_t tasks = ms_mzg2_parallel_begin(&p, slot, block, tables);
    cpu_run(cpu_of(be), ms_mzg2_parallel_task, &p, tasks);
    return ms_mzg2_parallel_end(&p, err);
}
