// k_choose.h - the choice of experts for one row beside the int8 form of their input: two small things that wait for
// the same products, in one launch.
//
// Work: block 0 is k_router.h's, the others have groups of the input.  Owns: nothing.
#pragma once
#include "backend/gpu/k_experts.h"
#include "backend/gpu/k_router.h"

static_assert((int)K_ROUTER_BLOCK == (int)EXPERT_QUANT_THREADS, "one block size");
typedef struct k_choose_args {
    k_router_args router; // n == 1, k_router_is_few
    experts_quantize_args input;
} k_choose_args;

GPU_KERNEL GPU_BOUNDS(K_ROUTER_BLOCK, 2) kern_choose(k_choose_args a) {
    GPU_SHARED(k_router_few_shared, sh);
    gpu_begin();
    if (gpu_bx() == 0)
        k_router_few(&sh, a.router, 0);
    else
        experts_quantize(a.input, gpu_bx() - 1);
}

static inline void k_choose(gpuStream_t stream, const k_choose_args *a) {
    GPU_LAUNCH_EARLY(kern_choose, 1 + experts_quantize_blocks(a->input.groups), K_ROUTER_BLOCK, stream, *a);
}
