// gpu_gate.h - gates: waves of a block wait until other waves have come to a place, in shared memory (mbarrier).
//
// A gate opens, and closes again, each time as many waves have arrived as gpu_gate_init() said: that was a turn, the
//   first one has number 0.  gpu_gate_wait(gate, t): turn t is over; nobody may be two turns behind.  Turn -1 always
//   is.  All lanes arrive: as fast as one of them for all (276 TFLOP/s, H200), and race checkers follow it.
// What a lane did before it arrived is seen by those that wait for the turn.
// Threads: gpu_gate_init() by one thread, then gpu_sync(); the others by whole waves.
// gpu_registers_more<n>, _fewer<n>: all four waves of a team get, or give back, registers: n each, a multiple of 8.
// For kernels of wide tiles (gpu_wide.h) only.
#pragma once
#include "backend/gpu/gpu_wide.h"

#if GPU_EMU
typedef gpu_emu_gate gpu_gate;
GPU_DEV void gpu_gate_init(gpu_gate *g, uint32_t waves) { gpu_emu_gate_init(g, waves * GPU_WAVE); }
GPU_DEV void gpu_gate_arrive(gpu_gate *g) { gpu_emu_gate_arrive(g); }
GPU_DEV void gpu_gate_wait(gpu_gate *g, uint32_t turn) { gpu_emu_gate_wait(g, turn); }
template <int N> GPU_DEV void gpu_registers_more(void) {}
template <int N> GPU_DEV void gpu_registers_fewer(void) {}
#elif GPU_WIDE_HOST
struct alignas(8) gpu_gate {
    uint64_t state;
};
#if GPU_WIDE_CODE
GPU_DEV uint32_t gpu_gate_at(const gpu_gate *g) { return (uint32_t)__cvta_generic_to_shared(g); }
GPU_DEV void gpu_gate_init(gpu_gate *g, uint32_t waves) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(gpu_gate_at(g)), "r"(waves * GPU_WAVE) : "memory");
}
GPU_DEV void gpu_gate_arrive(gpu_gate *g) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(gpu_gate_at(g)) : "memory");
}
GPU_DEV void gpu_gate_wait(gpu_gate *g, uint32_t turn) {
    asm volatile("{\n.reg .pred p;\nagain:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@!p bra again;\n}\n" ::"r"(gpu_gate_at(g)),
                 "r"(turn & 1u)
                 : "memory");
}
template <int N> GPU_DEV void gpu_registers_more(void) { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }
template <int N> GPU_DEV void gpu_registers_fewer(void) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
#endif
#endif
